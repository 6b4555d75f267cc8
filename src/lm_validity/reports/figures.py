"""Chart builders: one grammar (Vega-Lite through Altair) for every figure of every report.

A builder takes a tidy frame and column names and returns an Altair chart whose width is that of its
container. Missing values are drawn as missing (grey cells, an × on the axis), never left out silently.
Colours are legible on light and dark; text and lines of axes get their colour from the page's style sheet.
Every chart with a column `family` listens to the parameter `family_focus`, through which the page links the
selection of a family.

`save_figure` writes one chart as Vega-Lite, SVG and PDF.
"""

import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from lm_validity.files import replace_file, write_text

PROTOCOL_LABELS = {"direct": "Direct", "train_before_test": "Train before test"}
PROTOCOL_COLORS = {"Direct": "#d98b2b", "Train before test": "#2f7ec0"}
# Okabe and Ito's palette, legible for colour-blind readers, its black and yellow replaced for both backgrounds
CATEGORY_COLORS = (
    "#2f7ec0", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c6bb1", "#7f7f7f", "#a6761d", "#66a61e",
)  # fmt: skip
UNKNOWN_COLOR = "#8a8a8a"
MISSING_COLOR = "#9a9a9a"
FAMILY_FOCUS = "family_focus"
STATIC_WIDTH = 620  # of a chart without its own width, in SVG and PDF

CONFIG = {
    "background": None,
    "font": "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 11.5,
        "titleFontWeight": "normal",
        "labelLimit": 150,
        "gridOpacity": 0.35,
        "domainOpacity": 0.5,
        "tickOpacity": 0.5,
    },
    "legend": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "orient": "top"},
    "header": {"labelFontSize": 12, "titleFontSize": 12},
}


def chart_data(frame: pd.DataFrame) -> alt.InlineData:
    """The rows of `frame` as inline data; NaN and infinities become null. Give each encoding its type
    explicitly.
    """
    return alt.InlineData(values=[{k: _plain(v) for k, v in row.items()} for row in frame.to_dict("records")])


def family_color(families: Sequence[str | None], field: str = "family", title: str = "Family") -> alt.Color:
    """The colour of a family, the same in every figure given the same `families` (order of first
    appearance).
    """
    names = sorted({name for name in families if isinstance(name, str)})
    colors = [CATEGORY_COLORS[i % len(CATEGORY_COLORS)] for i in range(len(names))]
    scale = alt.Scale(domain=[*names, "unknown"], range=[*colors, UNKNOWN_COLOR])
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(title=title, values=names or ["unknown"]))


def family_opacity(visible: float = 0.9, faded: float = 0.12) -> alt.Opacity:
    """Fades the marks of other families while the page focuses one."""
    return alt.condition(
        f"{FAMILY_FOCUS} == null || datum.family == {FAMILY_FOCUS}", alt.value(visible), alt.value(faded)
    )


def with_family_focus(chart: alt.Chart | alt.LayerChart) -> alt.Chart | alt.LayerChart:
    """Declare the page's family parameter: needed once for a chart whose opacity is `family_opacity`."""
    return chart.add_params(alt.param(name=FAMILY_FOCUS, value=None))


def protocol_color(title: str | None = None) -> alt.Color:
    """The colours of the two protocols, for a column `protocol` that holds `PROTOCOL_LABELS`."""
    scale = alt.Scale(domain=list(PROTOCOL_COLORS), range=list(PROTOCOL_COLORS.values()))
    return alt.Color("protocol:N", scale=scale, legend=alt.Legend(title=title))


def tooltips(**fields: str) -> list[alt.Tooltip]:
    """Tooltip entries, column="Title|format": the title and an optional d3 number format."""
    entries = []
    for field, text in fields.items():
        title, _, number_format = text.partition("|")
        if number_format:
            entries.append(alt.Tooltip(f"{field}:Q", title=title, format=number_format))
        else:
            entries.append(alt.Tooltip(f"{field}:N", title=title))
    return entries


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
    row_height: int = 18,
) -> alt.LayerChart:
    """Cells coloured by `value`; a missing one is grey with an ×. `number_format` also writes the number."""
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(
            f"{x}:N", scale=_discrete(x_order), title=None, axis=alt.Axis(labelAngle=-50, labelOverlap=False)
        ),
        y=alt.Y(f"{y}:N", scale=_discrete(y_order), title=None, axis=alt.Axis(labelOverlap=False)),
        tooltip=tooltip,
    )
    known = f"isValid(datum.{value})"
    scale = alt.Scale(domain=list(domain), scheme=scheme, clamp=True)
    cells = (
        base.transform_filter(known)
        .mark_rect()
        .encode(
            color=alt.Color(f"{value}:Q", scale=scale, legend=alt.Legend(title=title, gradientLength=160))
        )
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
    return alt.layer(*layers).properties(width="container", height=row_height * max(len(y_order), 1))


def interval_dots(
    frame: pd.DataFrame,
    *,
    y: str,
    value: str,
    title: str,
    y_order: Sequence[str],
    color: alt.Color,
    tooltip: list[alt.Tooltip],
    low: str | None = None,
    high: str | None = None,
    offset: str | None = None,
    zero: bool = False,
    focus: bool = False,
    row_height: int = 18,
) -> alt.LayerChart:
    """One row per `y`: a dot at `value`, a line from `low` to `high`; a row without a value gets an × at
    the axis.
    """
    axis = alt.Axis(labelOverlap=False, grid=True, gridDash=[1, 3])
    encoding = {"y": alt.Y(f"{y}:N", scale=_discrete(y_order), title=None, axis=axis), "tooltip": tooltip}
    if offset:
        encoding["yOffset"] = alt.YOffset(f"{offset}:N", scale=_discrete(frame[offset].drop_duplicates()))
    base = alt.Chart(chart_data(frame)).encode(**encoding)
    known = base.transform_filter(f"isValid(datum.{value})")
    scale = alt.Scale(zero=zero)
    opacity = {"opacity": family_opacity()} if focus else {}
    layers = []
    if low and high:
        bar = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})").mark_rule(
            strokeWidth=1.6
        )
        layers.append(
            bar.encode(x=alt.X(f"{low}:Q", title=title, scale=scale), x2=f"{high}:Q", color=color, **opacity)
        )
    dot = known.mark_point(filled=True, size=52, opacity=1)
    layers.append(dot.encode(x=alt.X(f"{value}:Q", title=title, scale=scale), color=color, **opacity))
    missing = base.transform_filter(f"!isValid(datum.{value})").mark_text(
        text="×", color=MISSING_COLOR, fontSize=13
    )
    layers.append(missing.encode(x=alt.value(6)))
    chart = alt.layer(*layers).properties(width="container", height=row_height * max(len(y_order), 1))
    return with_family_focus(chart) if focus else chart


def grouped_bars(
    frame: pd.DataFrame,
    *,
    x: str,
    value: str,
    title: str,
    x_order: Sequence[str],
    color: alt.Color,
    tooltip: list[alt.Tooltip],
    group: str = "protocol",
    group_order: Sequence[str] | None = None,
    low: str | None = None,
    high: str | None = None,
    domain: tuple[float, float] | None = None,
    height: int = 240,
    x_title: str | None = None,
) -> alt.LayerChart:
    """Vertical bars side by side by `group`, with error bars from `low` to `high` where they are known."""
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(
            f"{x}:N",
            scale=_discrete(x_order),
            title=x_title,
            axis=alt.Axis(labelAngle=0 if len(x_order) < 9 else -50),
        ),
        xOffset=alt.XOffset(f"{group}:N", scale=_discrete(group_order or frame[group].drop_duplicates())),
        tooltip=tooltip,
    )
    scale = alt.Scale(domain=list(domain)) if domain else alt.Scale(zero=True)
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        y=alt.Y(f"{value}:Q", title=title, scale=scale), color=color
    )
    layers = [bars]
    if low and high:
        rule = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})").mark_rule(
            strokeWidth=1.4, color="#555"
        )
        layers.append(rule.encode(y=f"{low}:Q", y2=f"{high}:Q"))
    missing = base.transform_filter(f"!isValid(datum.{value})").mark_text(
        text="×", color=MISSING_COLOR, fontSize=13
    )
    layers.append(missing.encode(y=alt.value(height - 8)))
    return alt.layer(*layers).properties(width="container", height=height)


def lines(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    color: alt.Color,
    x_title: str,
    y_title: str,
    tooltip: list[alt.Tooltip],
    detail: str | None = None,
    low: str | None = None,
    high: str | None = None,
    log_x: bool = False,
    domain: tuple[float, float] | None = None,
    dash: alt.StrokeDash | None = None,
    height: int = 260,
    points: bool = True,
    focus: bool = False,
) -> alt.LayerChart:
    """Lines by colour (and `detail`), with a band from `low` to `high`; a missing value is a gap."""
    x_scale = alt.Scale(type="log") if log_x else alt.Scale(zero=False, nice=True)
    y_scale = alt.Scale(domain=list(domain)) if domain else alt.Scale(zero=False)
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=x_scale, axis=alt.Axis(format="~e" if log_x else "~g")),
        color=color,
        tooltip=tooltip,
    )
    if detail:
        base = base.encode(detail=f"{detail}:N")
    opacity = {"opacity": family_opacity()} if focus else {}
    layers = []
    if low and high:
        layers.append(
            base.mark_area(opacity=0.16).encode(
                y=alt.Y(f"{low}:Q", title=y_title, scale=y_scale), y2=f"{high}:Q"
            )
        )
    line = base.mark_line(strokeWidth=1.8, invalid="break-paths-show-domains")
    line = line.encode(y=alt.Y(f"{y}:Q", title=y_title, scale=y_scale), **opacity)
    layers.append(line.encode(strokeDash=dash) if dash is not None else line)
    if points:
        dots = base.transform_filter(f"isValid(datum.{y})").mark_point(filled=True, size=34)
        layers.append(dots.encode(y=alt.Y(f"{y}:Q", title=y_title, scale=y_scale), **opacity))
    chart = alt.layer(*layers).properties(width="container", height=height)
    return with_family_focus(chart) if focus else chart


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
    low: str | None = None,
    high: str | None = None,
    shape: alt.Shape | None = None,
    diagonal: bool = False,
    height: int = 320,
    focus: bool = True,
) -> alt.LayerChart:
    """Points (with vertical intervals from `low` to `high`); `focus` links them to the page's family
    selection.
    """
    x_scale = alt.Scale(type="log") if log_x else alt.Scale(zero=False)
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=x_scale, axis=alt.Axis(format="~e" if log_x else "~g")),
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
    if low and high:
        bars = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})").mark_rule(
            strokeWidth=1.2
        )
        layers.append(bars.encode(y=alt.Y(f"{low}:Q", title=y_title), y2=f"{high}:Q", **opacity))
    dots = base.mark_point(filled=True, size=62).encode(y=y_axis, **opacity)
    layers.append(dots.encode(shape=shape) if shape is not None else dots)
    chart = alt.layer(*layers).properties(width="container", height=height)
    return with_family_focus(chart) if focus else chart


def vega_lite(chart: alt.TopLevelMixin | dict) -> dict:
    """The Vega-Lite specification of a chart with the common configuration."""
    spec = copy.deepcopy(chart) if isinstance(chart, dict) else chart.to_dict(validate=False)
    spec["config"] = {**CONFIG, **{k: v for k, v in spec.get("config", {}).items() if k not in ("view",)}}
    return spec


def save_figure(spec: dict, stem: str | Path) -> None:
    """Write `stem`.vl.json, `stem`.svg and `stem`.pdf from a Vega-Lite specification, for papers: on
    white.
    """
    stem = Path(stem)
    static = static_spec(spec)
    svg = vl_convert.vegalite_to_svg(static)
    write_text(f"{stem}.vl.json", json.dumps(static, ensure_ascii=False, allow_nan=False))
    write_text(f"{stem}.svg", svg)
    with replace_file(f"{stem}.pdf") as temporary:
        temporary.write_bytes(vl_convert.svg_to_pdf(svg))


def static_spec(spec: dict) -> dict:
    """A copy of fixed width on a white background."""
    static = copy.deepcopy(spec)
    if static.get("width") == "container":
        static["width"] = STATIC_WIDTH
    static["config"] = {**static.get("config", {}), "background": "white"}
    return static


def _discrete(order: Sequence[str]) -> alt.Scale:
    """A fixed order, in which names without data keep their place."""
    return alt.Scale(domain=list(order))


def _plain(value):
    """A JSON value; numbers keep 6 significant digits, which is more than a figure shows."""
    if value is None or value is pd.NA:
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
