"""Chart builders: one grammar (Vega-Lite through Altair) for every figure of every report.

A builder takes a tidy frame and column names and returns an Altair chart whose width is that of its
container. Missing values are drawn as missing (grey cells, an × on the axis), never left out silently.
Colours are legible on light and dark; text and lines of axes get their colour from the page's style sheet.
Every chart with a column `family` listens to the parameter `family_focus`, through which the page links the
selection of a family.

`save_figure` writes one chart as Vega-Lite, SVG and PDF.
"""

import json
import resource
from collections.abc import Sequence
from pathlib import Path

import altair as alt
import pandas as pd
import vl_convert

from lm_validity.errors import InputError
from lm_validity.files import replace_file, write_text
from lm_validity.pages.figure_content import PROTOCOL, Spec, fits_in_one_line, marked_if_empty, names_axis, with_values
from lm_validity.pages.figure_style import (
    CATEGORY_COLORS,
    CONFIG,
    MISSING_COLOR,
    PROTOCOL_LABELS,
    chart_data,
    cycled_colors,
    dashed_lines,
    discrete,
    family_color,
    family_opacity,
    listed_color,
    matrix_frame,
    protocol_color,
    tooltips,
    with_family_focus,
)

__all__ = [
    "CATEGORY_COLORS",
    "MISSING_COLOR",
    "PROTOCOL_LABELS",
    "chart_data",
    "cycled_colors",
    "dashed_lines",
    "discrete",
    "family_color",
    "grouped_bars",
    "heatmap",
    "interval_dots",
    "layered",
    "lines",
    "listed_color",
    "matrix_frame",
    "protocol_color",
    "scatter",
    "strip",
    "tooltips",
    "vega_lite",
]

ENDS = ("low", "high")  # the columns of an interval
STATIC_WIDTH = 620  # of a chart without its own width, in SVG and PDF
ADDRESSES = 100e9  # bytes of virtual memory that drawing reserves at most


def heatmap(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    value: str,
    title: str,
    x_order: Sequence[str],
    y_order: Sequence[str],
    tooltip: list[alt.Tooltip],
    domain: tuple[float, float] = (0.0, 1.0),
    scheme: str = "viridis",
    number_format: str | None = None,
    reverse: bool = False,
    focus: bool = False,
    row_height: int = 18,
) -> alt.LayerChart:
    """Cells coloured by `value`; a missing one is grey with an ×. `number_format` also writes the number."""
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(f"{x}:N", scale=discrete(x_order), title=None, axis=names_axis(x_order)),
        y=alt.Y(f"{y}:N", scale=discrete(y_order), title=None, axis=alt.Axis(labelOverlap=False)),
        tooltip=tooltip,
    )
    known = f"isValid(datum.{value})"
    scale = alt.Scale(domain=list(domain), scheme=scheme, clamp=True, reverse=reverse)
    cells = (
        base.transform_filter(known)
        .mark_rect()
        .encode(color=alt.Color(f"{value}:Q", scale=scale, legend=alt.Legend(title=title, gradientLength=160)))
    )
    missing = base.transform_filter(f"!{known}")
    blank = missing.mark_rect(color=MISSING_COLOR, opacity=0.25)
    cross = missing.mark_text(text="×", color=MISSING_COLOR, fontSize=11)
    layers = [cells, blank, cross]
    if number_format:
        middle = domain[0] + 0.62 * (domain[1] - domain[0])
        ink = alt.condition(f"datum.{value} > {middle}", alt.value("#111"), alt.value("#fff"))
        text = base.transform_filter(known).mark_text(fontSize=11)
        layers.append(text.encode(text=alt.Text(f"{value}:Q", format=number_format), color=ink))
    chart = alt.layer(*layers).properties(width="container", height=row_height * max(len(y_order), 1))
    chart = marked_if_empty(chart, frame[value])
    return with_family_focus(chart) if focus else chart


def interval_dots(
    frame: pd.DataFrame,
    *,
    y: str,
    value: str,
    title: str,
    y_order: Sequence[str],
    tooltip: list[alt.Tooltip],
    color: alt.Color | None = None,
    ends: tuple[str, str] = ENDS,
    mark: str | None = None,
    offset: str | None = None,
    zero: bool = False,
    focus: bool = False,
    row_height: int = 18,
) -> alt.LayerChart:
    """One row per `y`: a dot at `value`, a line between its `ends`, a tick at `mark`; no value: an ×.

    `ends`: the columns of an interval, where the frame has them. `color`: by default that of the protocol. What
    `offset` tells apart (a protocol) is left out where none of it has a value.
    """
    low, high = ends
    frame, color = with_values(frame, value, offset, protocol_color() if color is None else color)
    axis = alt.Axis(labelOverlap=False, grid=True, gridDash=[1, 3])
    encoding = {"y": alt.Y(f"{y}:N", scale=discrete(y_order), title=None, axis=axis), "tooltip": tooltip}
    if offset:
        encoding["yOffset"] = alt.YOffset(f"{offset}:N", scale=discrete(frame[offset].drop_duplicates()))
    base = alt.Chart(chart_data(frame)).encode(**encoding)
    known = base.transform_filter(f"isValid(datum.{value})")
    scale = alt.Scale(zero=zero)
    opacity = {"opacity": family_opacity()} if focus else {}
    layers = []
    if _has_intervals(frame, ends):
        bar = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})").mark_rule(strokeWidth=1.6)
        layers.append(bar.encode(x=alt.X(f"{low}:Q", title=title, scale=scale), x2=f"{high}:Q", color=color, **opacity))
    if mark and frame[mark].notna().any():
        tick = base.transform_filter(f"isValid(datum.{mark})").mark_tick(thickness=2, height=9, opacity=0.55)
        layers.append(tick.encode(x=alt.X(f"{mark}:Q", title=title, scale=scale), color=color))
    dot = known.mark_point(filled=True, size=52, opacity=1)
    layers.append(dot.encode(x=alt.X(f"{value}:Q", title=title, scale=scale), color=color, **opacity))
    missing = base.transform_filter(f"!isValid(datum.{value})").mark_text(text="×", color=MISSING_COLOR, fontSize=13)
    layers.append(missing.encode(x=alt.value(6)))
    chart = alt.layer(*layers).properties(width="container", height=row_height * max(len(y_order), 1))
    chart = marked_if_empty(chart, frame[value])
    return with_family_focus(chart) if focus else chart


def grouped_bars(
    frame: pd.DataFrame,
    *,
    x: str,
    value: str,
    title: str,
    x_order: Sequence[str],
    tooltip: list[alt.Tooltip],
    mark: str | None = None,
    domain: tuple[float, float] | None = None,
) -> alt.LayerChart:
    """Vertical bars, the protocols side by side, with error bars from `low` to `high` and a tick at `mark` where known.

    A protocol without any value is left out.
    """
    frame, color = with_values(frame, value, PROTOCOL, protocol_color())
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(
            f"{x}:N",
            scale=discrete(x_order),
            title=None,
            axis=alt.Axis(labelAngle=0) if fits_in_one_line(x_order) else names_axis(x_order),
        ),
        xOffset=alt.XOffset(f"{PROTOCOL}:N", scale=discrete(frame[PROTOCOL].drop_duplicates())),
        tooltip=tooltip,
    )
    scale = alt.Scale(domain=list(domain)) if domain else alt.Scale(zero=True)
    bars = base.mark_bar(cornerRadiusEnd=2).encode(y=alt.Y(f"{value}:Q", title=title, scale=scale), color=color)
    layers = [bars]
    if _has_intervals(frame, ENDS):
        rule = base.transform_filter("isValid(datum.low) && isValid(datum.high)").mark_rule(
            strokeWidth=1.4, color="#555"
        )
        layers.append(rule.encode(y="low:Q", y2="high:Q"))
    if mark and frame[mark].notna().any():
        tick = base.transform_filter(f"isValid(datum.{mark})").mark_tick(thickness=2, color="#888", width=26)
        layers.append(tick.encode(y=f"{mark}:Q"))
    missing = base.transform_filter(f"!isValid(datum.{value})").mark_text(text="×", color=MISSING_COLOR, fontSize=13)
    layers.append(missing.encode(y=alt.value(232)))
    return marked_if_empty(alt.layer(*layers).properties(width="container", height=240), frame[value])


def lines(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    x_title: str,
    y_title: str,
    tooltip: list[alt.Tooltip],
    color: alt.Color | None = None,
    detail: str | None = None,
    log_x: bool = False,
    domain: tuple[float, float] | None = None,
    dash: alt.StrokeDash | None = None,
    points: bool = True,
) -> alt.LayerChart:
    """Lines by colour (and `detail`), with a band from `low` to `high` where known; a missing value is a gap.

    `color`: by default that of the protocol. A protocol without any value is left out.
    """
    frame, color = with_values(frame, y, None, protocol_color() if color is None else color)
    x_scale = alt.Scale(type="log") if log_x else alt.Scale(zero=False, nice=False)
    y_scale = alt.Scale(domain=list(domain)) if domain else alt.Scale(zero=False)
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=x_scale, axis=alt.Axis(format="~e" if log_x else ".6~g")),
        color=color,
        tooltip=tooltip,
    )
    if detail:
        base = base.encode(detail=f"{detail}:N")
    layers = []
    if _has_intervals(frame, ENDS):
        layers.append(base.mark_area(opacity=0.16).encode(y=alt.Y("low:Q", title=y_title, scale=y_scale), y2="high:Q"))
    line = base.mark_line(strokeWidth=1.8, invalid="break-paths-show-domains")
    line = line.encode(y=alt.Y(f"{y}:Q", title=y_title, scale=y_scale))
    layers.append(line.encode(strokeDash=dash) if dash is not None else line)
    if points:
        dots = base.transform_filter(f"isValid(datum.{y})").mark_point(filled=True, size=34)
        layers.append(dots.encode(y=alt.Y(f"{y}:Q", title=y_title, scale=y_scale)))
    return marked_if_empty(alt.layer(*layers).properties(width="container", height=260), frame[y])


def scatter(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    color: alt.Color,
    x_title: str,
    y_title: str,
    tooltip: list[alt.Tooltip],
    log_x: bool = False,
    diagonal: bool = False,
    focus: bool = True,
) -> alt.LayerChart:
    """Points; `focus` links them to the page's family selection."""
    x_scale = alt.Scale(type="log") if log_x else alt.Scale(zero=False)
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=x_scale, axis=alt.Axis(format="~e" if log_x else ".6~g")),
        color=color,
        tooltip=tooltip,
    )
    opacity = {"opacity": family_opacity()} if focus else {}
    layers = []
    if diagonal:
        values = pd.concat([frame[x], frame[y]]).dropna()
        ends = pd.DataFrame({x: [values.min(), values.max()], y: [values.min(), values.max()]})
        line = alt.Chart(chart_data(ends)).mark_line(strokeDash=[4, 4], color=MISSING_COLOR, strokeWidth=1)
        layers.append(line.encode(x=f"{x}:Q", y=f"{y}:Q"))
    y_axis = alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=False))
    layers.append(base.mark_point(filled=True, size=62).encode(y=y_axis, **opacity))
    chart = alt.layer(*layers).properties(width="container", height=320)
    chart = marked_if_empty(chart, frame[y].where(frame[x].notna()))
    return with_family_focus(chart) if focus else chart


def strip(
    frame: pd.DataFrame,
    *,
    y: str,
    value: str,
    title: str,
    y_order: Sequence[str],
    color: alt.Color,
    tooltip: list[alt.Tooltip],
) -> alt.Chart:
    """One row per `y`: a mark at every `value`; later rows of the frame lie on top."""
    axis = alt.Axis(labelOverlap=False, grid=True, gridDash=[1, 3])
    chart = alt.Chart(chart_data(frame)).mark_point(filled=True, size=46, opacity=0.85)
    chart = chart.encode(
        y=alt.Y(f"{y}:N", scale=discrete(y_order), title=None, axis=axis),
        x=alt.X(f"{value}:Q", title=title, scale=alt.Scale(zero=False)),
        color=color,
        tooltip=tooltip,
    ).properties(width="container", height=20 * max(len(y_order), 1))
    return marked_if_empty(chart, frame[value])


def layered(chart: alt.LayerChart, *others: alt.Chart) -> alt.LayerChart:
    """A chart with more layers on top, of its size."""
    return alt.layer(chart, *others).properties(width="container", height=chart.height)


def _has_intervals(frame: pd.DataFrame, ends: tuple[str, str]) -> bool:
    return {*ends} <= {*frame.columns} and bool(frame[[*ends]].notna().any(axis=None))


def vega_lite(chart: alt.TopLevelMixin | Spec) -> Spec:
    """The Vega-Lite specification of a chart with the common configuration."""
    spec = chart if isinstance(chart, dict) else chart.to_dict(validate=False)
    return {**spec, "config": {**CONFIG, **{k: v for k, v in spec.get("config", {}).items() if k not in ("view",)}}}


def check_address_space() -> None:
    """Raise InputError where the process may not reserve the addresses that drawing SVG and PDF takes.

    The JavaScript engine that draws reserves them without using them, and aborts the process where it cannot: between
    64 and 100 GB were measured.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < ADDRESSES:
        raise InputError(
            f"The process may reserve {limit / 1e9:.0f} GB of addresses; drawing figures takes {ADDRESSES / 1e9:.0f}.",
            "raise the limit with `ulimit -v unlimited`; the memory used is far less.",
        )


def save_figure(spec: Spec, stem: str | Path) -> None:
    """Write `stem`.vl.json, `stem`.svg and `stem`.pdf from a Vega-Lite specification, for papers: on white."""
    stem = Path(stem)
    static = static_spec(spec)
    svg = vl_convert.vegalite_to_svg(static)
    write_text(f"{stem}.vl.json", json.dumps(static, ensure_ascii=False, allow_nan=False))
    write_text(f"{stem}.svg", svg)
    with replace_file(f"{stem}.pdf") as temporary:
        temporary.write_bytes(vl_convert.svg_to_pdf(svg))


def static_spec(spec: Spec) -> Spec:
    """A copy of fixed width on a white background."""
    static = {**spec, "config": {**spec.get("config", {}), "background": "white"}}
    return static | {"width": STATIC_WIDTH} if static.get("width") == "container" else static
