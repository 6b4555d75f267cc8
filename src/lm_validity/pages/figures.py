"""The grammar of figures."""

import hashlib
import itertools
import json
import math
import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import altair as alt
import numpy as np
import pandas as pd
from altair.utils import schemapi

from lm_validity.errors import InputError
from lm_validity.files import write_text
from lm_validity.pages.svg import RAMP

try:
    import vl_convert
except ModuleNotFoundError:  # an installation for pages alone
    vl_convert = None  # type: ignore[assignment]

# Altair checks every value of a chart against Vega-Lite's schema, again and again, while the chart is put together: a
# tenth of a small report. The charts of these pages are checked whole, by the tests.
schemapi.DEBUG_MODE = False

# ----------------------------------------------------------------------------------------------------------------------
# What all figures share: colours, fonts, data.

PROTOCOL_LABELS = {"direct": "Direct", "train_before_test": "Train before test"}
# as in the style sheet, which replaces them by its own on dark ground
PROTOCOL_COLORS = {"Direct": "#b9540f", "Train before test": "#1f6fb2"}
# Okabe and Ito's palette, legible for colour-blind readers, its black and yellow replaced for both grounds. Blue and
# orange, nearly those of the protocols, come last
CATEGORY_COLORS = (
    "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c6bb1", "#7f7f7f", "#a6761d", "#66a61e", "#2f7ec0", "#d55e00",
)  # fmt: skip
MISSING_COLOR = "#9a9a9a"

CONFIG = {
    "aria": False,  # a figure is one image with a label; its values are in the tables
    "background": None,
    # as the style sheet's; bare system-ui gives wide DejaVu on Linux
    "font": "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', "
    "sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 11.5,
        "titleFontWeight": "normal",
        "labelLimit": 220,
        "labelSeparation": 6,
        "gridOpacity": 0.35,
        "domainOpacity": 0.5,
        "tickOpacity": 0.5,
    },
    "legend": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titleLimit": 400,
        "orient": "top",
        "symbolOpacity": 1,
    },
    "header": {"labelFontSize": 12, "titleFontSize": 12},
}


class Rows(alt.NamedData):  # type: ignore[misc]  # Altair has no types here
    """Rows of JSON values that the layers of a chart share. A chart holds their name alone, which is made of them:
    Altair would copy every value for each layer and each call."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
        super().__init__(name=f"data-{digest[:32]}")
        object.__setattr__(self, "rows", rows)  # an attribute that is set the usual way is a key of the specification


def inline(rows: list[dict[str, object]]) -> Rows:
    """Rows of JSON values as data. Give each encoding its type, as `alt.X("low:Q")`.

    Altair takes 20 milliseconds to find the class of a plain `x="low:Q"` or of a condition without one.
    """
    return Rows(rows)


def chart_data(frame: pd.DataFrame) -> Rows:
    """The rows of `frame` as inline data; NaN and infinities become null."""
    return inline([{k: _plain(v) for k, v in row.items()} for row in frame.to_dict("records")])


def matrix_frame(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], name: str, *, without_diagonal: bool = False
) -> pd.DataFrame:
    """A matrix in long form for `figures.heatmap`: columns `row`, `column` and `name`.

    `without_diagonal` leaves out what would compare a name with itself.
    """
    frame = pd.DataFrame(
        {
            "row": np.repeat(list(rows), len(columns)),
            "column": np.tile(list(columns), len(rows)),
            name: np.ravel(values),
        }
    )
    return frame[frame["row"] != frame["column"]] if without_diagonal else frame


def protocol_color() -> alt.Color:
    """The colours of the two protocols, for a column `protocol` that holds `PROTOCOL_LABELS`."""
    return listed_color("protocol", PROTOCOL_COLORS)


def listed_color(field: str, colors: dict[str, str], title: str | None = None, **legend: object) -> alt.Color:
    """A colour for each value of a column; `legend` is what Vega-Lite's legend takes."""
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(title=title, **legend))


def cycled_colors(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, the first name the first colour; they repeat where there are more names."""
    return dict(zip(names, itertools.cycle(CATEGORY_COLORS)))


def dashed_lines(field: str, *positions: float, channel: Literal["x", "y"] = "x") -> alt.Chart:
    """Dashed reference lines at these values."""
    base = alt.Chart(chart_data(pd.DataFrame({field: [*positions]})))
    encoding = alt.X if channel == "x" else alt.Y
    return base.mark_rule(color=MISSING_COLOR, strokeDash=[4, 4]).encode(**{channel: encoding(f"{field}:Q")})


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


def discrete(order: Iterable[str]) -> alt.Scale:
    """A fixed order, in which names without data keep their place."""
    return alt.Scale(domain=list(order))


def _plain(value: object) -> object:
    """A JSON value; numbers keep 6 significant digits, which is more than a figure shows."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA:
        return None
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


# ----------------------------------------------------------------------------------------------------------------------
# Whether a figure has anything to show, and the room that its names need.

Spec: TypeAlias = dict[str, Any]  # a Vega-Lite specification or a part of one, as altair writes it

_LABEL_LIMIT = 220  # pixels, as in CONFIG
_MANY = 24  # names on a horizontal axis that stand upright
_LETTER = 6.5  # pixels of its width
_TITLE_LETTER = 7.0  # the same in the title of an axis, in the widest of the page's fonts
_LEGEND = 220  # pixels of the two protocols' names above a figure
_NUMBER = 30.0  # pixels of a cell that a number is written into
PROTOCOL = "protocol"


def _parts(spec: Spec) -> Iterator[Spec]:
    """A specification, and the layers in it."""
    yield spec
    for layer in spec.get("layer", []):
        yield from _parts(layer)


def is_empty(spec: Spec) -> bool:
    """Whether a specification, or a layer of it, is of a builder here that had no value to draw."""
    return any(part.get("usermeta", {}).get("empty", False) for part in _parts(spec))


def label_room(spec: Spec) -> int:
    """Pixels of width that a specification needs so that names on its axes do not overlap, and neither a legend nor the
    title of the horizontal axis is cut; 0: it has none of them."""
    names_across, down = (_names(spec, channel) for channel in ("x", "y"))
    # from a name to the next: the height of a letter, more where names lean or numbers are written
    numbers = any("format" in text for text in _encoded(spec, "text"))
    step = max(13.0 if len(names_across) > _MANY else 16.0, _NUMBER if numbers else 0.0)
    legend = max(_LEGEND if down else 0.0, *map(_legend, _encoded(spec, "color")))
    titles = (axis.get("title") for axis in _encoded(spec, "x"))
    title = max((len(title) for title in titles if isinstance(title, str)), default=0)
    plot = max(step * len(names_across), legend, _TITLE_LETTER * title)
    if not plot:
        return 0
    beside = min(_LABEL_LIMIT, max((_LETTER * len(name) for name in down), default=60))
    return math.ceil(plot + beside + 20)


def _encoded(spec: Spec, channel: str) -> list[Spec]:
    """What a specification and its layers say of a channel."""
    return [part.get("encoding", {}).get(channel) or {} for part in _parts(spec)]


def _legend(color: Spec) -> float:
    """Pixels of a legend of names, in four columns as families have."""
    names = (color.get("legend") or {}).get("values") or (color.get("scale") or {}).get("domain") or []
    names = [name for name in names if isinstance(name, str)]
    columns = [
        max(min(160.0, _LETTER * len(name)) for name in names[first_name::4])
        for first_name in range(min(4, len(names)))
    ]
    return sum(columns) + 30 * len(columns)


def names_axis(names: Sequence[str]) -> alt.Axis:
    """A horizontal axis of names, none of which is left out."""
    return alt.Axis(labelAngle=-90 if len(names) > _MANY else -50, labelOverlap=False)


def _names(spec: Spec, channel: str) -> list[str]:
    """The names of a discrete axis, where its scale lists them."""
    domains = ((axis.get("scale") or {}).get("domain") for axis in _encoded(spec, channel))
    return next((names for names in domains
                 if isinstance(names, list) and all(isinstance(name, str) for name in names)), [])  # fmt: skip


def with_values(frame: pd.DataFrame, value: str, group: str | None, color: alt.Color) -> tuple[pd.DataFrame, alt.Color]:
    """The rows of groups that have a value at all, and the colours of those; everything where no group has one.

    Without a `group`, it is the protocol where the colours tell protocols apart.
    """
    field = color["shorthand"].partition(":")[0] if isinstance(color, alt.Color) else None
    group = group or (PROTOCOL if field == PROTOCOL else None)
    if group is None:
        return frame, color
    has_value = frame[value].notna().groupby(frame[group]).transform("any").to_numpy(dtype=bool)
    if not has_value.any():
        return frame, color
    frame, groups_drawn = frame[has_value], set(frame.loc[has_value, group])
    scale = color["scale"] if field == group else None
    if isinstance(scale, alt.Scale) and not groups_drawn.issuperset(scale["domain"]):
        pairs = [(name, shade) for name, shade in zip(scale["domain"], scale["range"], strict=True)
                 if name in groups_drawn]  # fmt: skip
        color = color.copy()
        color.scale = alt.Scale(domain=[name for name, _ in pairs], range=[shade for _, shade in pairs])
    return frame, color


# ----------------------------------------------------------------------------------------------------------------------
# Chart builders: one grammar (Vega-Lite through Altair) for every figure of every report.
#
# A builder takes a tidy frame and column names and returns layers of Altair's charts. Missing values are drawn as
# missing (grey cells, an × on the axis), never left out silently. A page shows a chart as an SVG, of `save_figure`.

STATIC_WIDTH = 620  # of a chart without its own width
ADDRESSES = 100e9  # bytes of virtual memory that drawing reserves at most


@dataclass(frozen=True)
class Layers:
    """Charts on top of each other, as wide as their container. `empty`: no value is drawn.

    They become a specification once, when a page is written; Altair's own layers copy each chart whole, a dozen times.
    """

    charts: "Sequence[Chart]"
    height: int
    description: str = ""
    empty: bool = False

    @property
    def data(self) -> Rows | None:
        """The rows that all layers share, None where they have several."""
        data = [chart.data for chart in self.charts]
        return data[0] if all(rows is data[0] for rows in data) else None


Chart: TypeAlias = alt.Chart | Layers


def layered(
    *charts: Chart, height: int | None = None, description: str = "", values: pd.Series | None = None
) -> Layers:
    """The charts on top of each other, the first the lowest, by default of its height. `values`: what they show, where
    there may be no number among it."""
    height = charts[0].height if height is None else height
    empty = values is not None and not np.isfinite(pd.to_numeric(values, errors="coerce").to_numpy(dtype=float)).any()
    return Layers(charts, height, description, empty)


def vega_lite(chart: Chart) -> Spec:
    """The Vega-Lite specification of a chart with the common configuration."""
    datasets: dict[str, list[dict[str, object]]] = {}
    spec = _specification(chart, datasets)
    return {"config": CONFIG, **spec, "$schema": alt.SCHEMA_URL, "datasets": datasets}


def _specification(chart: Chart, datasets: dict[str, list[dict[str, object]]]) -> Spec:
    """A chart's part of a specification; its rows go into `datasets`.

    What layers have in common stands above them: the name of their rows; the page's parameters and the width always.
    """
    if not isinstance(chart, Layers):
        datasets[chart.data.name] = chart.data.rows
        part: Spec = chart.to_dict(validate=False, context={"top_level": False})
        return part
    layers = [_specification(layer, datasets) for layer in chart.charts]
    spec: Spec = {"layer": layers}
    if chart.data is not None:
        spec["data"] = {"name": chart.data.name}
    if chart.description:
        spec["description"] = chart.description
    spec["height"] = chart.height
    params = [param for layer in layers for param in layer.pop("params", [])]
    if params:
        spec["params"] = params
    if chart.empty:
        spec["usermeta"] = {"empty": True}
    spec["width"] = "container"
    for layer in layers:
        for common in spec.keys() & {"data", "height", "width"}:
            layer.pop(common, None)
    return spec


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
    scheme: str | Sequence[str] = RAMP[::-1],
    number_format: str | None = None,
    row_height: int = 18,
) -> Layers:
    """Cells coloured by `value`, the higher the darker; a missing one is grey with an ×. `number_format` also writes
    the number. `scheme`: another of Vega's schemes, or colours from low to high."""
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(f"{x}:N", scale=discrete(x_order), title=None, axis=names_axis(x_order)),
        y=alt.Y(f"{y}:N", scale=discrete(y_order), title=None, axis=alt.Axis(labelOverlap=False)),
        tooltip=tooltip,
    )
    has_value = f"isValid(datum.{value})"
    named = isinstance(scheme, str)
    colours = {"scheme": scheme} if named else {"range": list(scheme), "interpolate": "rgb"}
    scale = alt.Scale(domain=list(domain), clamp=True, **colours)
    cells = (
        base.transform_filter(has_value)
        .mark_rect()
        .encode(color=alt.Color(f"{value}:Q", scale=scale, legend=alt.Legend(title=title, gradientLength=160)))
    )
    missing = base.transform_filter(f"!{has_value}")
    blank = missing.mark_rect(color=MISSING_COLOR, opacity=0.25)
    cross = missing.mark_text(text="×", color=MISSING_COLOR, fontSize=11)
    layers = [cells, blank, cross]
    if number_format:
        middle = domain[0] + 0.55 * (domain[1] - domain[0])
        dark, light = ("#111", "#fff") if named else ("#fff", "#111")
        ink = alt.condition(f"datum.{value} > {middle}", alt.value(dark), alt.value(light))
        text = base.transform_filter(has_value).mark_text(fontSize=11)
        layers.append(text.encode(text=alt.Text(f"{value}:Q", format=number_format), color=alt.ColorValue(**ink)))
    return layered(*layers, height=row_height * max(len(y_order), 1), values=frame[value])


def interval_dots(
    frame: pd.DataFrame,
    *,
    y: str,
    value: str,
    title: str,
    y_order: Sequence[str],
    tooltip: list[alt.Tooltip],
    color: alt.Color | None = None,
    mark: str | None = None,
    offset: str | None = None,
    zero: bool = False,
    row_height: int = 18,
) -> Layers:
    """One row per `y`: a dot at `value`, a line from `low` to `high` where known, a tick at `mark`; no value: an ×.

    `color`: by default that of the protocol. What `offset` tells apart (a protocol) is left out where none of it has a
    value.
    """
    frame, color = with_values(frame, value, offset, protocol_color() if color is None else color)
    axis = alt.Axis(labelOverlap=False, grid=True, gridDash=[1, 3])
    encoding = {"y": alt.Y(f"{y}:N", scale=discrete(y_order), title=None, axis=axis), "tooltip": tooltip}
    if offset:
        encoding["yOffset"] = alt.YOffset(f"{offset}:N", scale=discrete(frame[offset].drop_duplicates()))
    base = alt.Chart(chart_data(frame)).encode(**encoding)
    dots_known = base.transform_filter(f"isValid(datum.{value})")
    scale = alt.Scale(zero=zero)
    layers = []
    if _has_intervals(frame):
        bar = base.transform_filter("isValid(datum.low) && isValid(datum.high)").mark_rule(strokeWidth=1.6)
        layers.append(bar.encode(x=alt.X("low:Q", title=title, scale=scale), x2=alt.X2("high:Q"), color=color))
    if mark and frame[mark].notna().any():
        tick = base.transform_filter(f"isValid(datum.{mark})").mark_tick(thickness=2, height=9, opacity=0.55)
        layers.append(tick.encode(x=alt.X(f"{mark}:Q", title=title, scale=scale), color=color))
    dot = dots_known.mark_point(filled=True, size=52, opacity=1)
    layers.append(dot.encode(x=alt.X(f"{value}:Q", title=title, scale=scale), color=color))
    missing = base.transform_filter(f"!isValid(datum.{value})").mark_text(text="×", color=MISSING_COLOR, fontSize=13)
    layers.append(missing.encode(x=alt.XValue(6)))
    return layered(*layers, height=row_height * max(len(y_order), 1), values=frame[value])


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
) -> Layers:
    """Vertical bars, the protocols side by side, with error bars from `low` to `high` and a tick at `mark` where known.

    A protocol without any value is left out.
    """
    frame, color = with_values(frame, value, PROTOCOL, protocol_color())
    # whether upright names have room beside each other on the narrowest figure: 460 pixels, 6.5 a letter
    upright = len(x_order) * max(map(len, x_order), default=0) <= 70
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(
            f"{x}:N",
            scale=discrete(x_order),
            title=None,
            axis=alt.Axis(labelAngle=0) if upright else names_axis(x_order),
        ),
        xOffset=alt.XOffset(f"{PROTOCOL}:N", scale=discrete(frame[PROTOCOL].drop_duplicates())),
        tooltip=tooltip,
    )
    scale = alt.Scale(domain=list(domain)) if domain else alt.Scale(zero=True)
    bars = base.mark_bar(cornerRadiusEnd=2).encode(y=alt.Y(f"{value}:Q", title=title, scale=scale), color=color)
    layers = [bars]
    if _has_intervals(frame):
        rule = base.transform_filter("isValid(datum.low) && isValid(datum.high)").mark_rule(
            strokeWidth=1.4, color="#555"
        )
        layers.append(rule.encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q")))
    if mark and frame[mark].notna().any():
        tick = base.transform_filter(f"isValid(datum.{mark})").mark_tick(thickness=2, color="#888", width=26)
        layers.append(tick.encode(y=alt.Y(f"{mark}:Q")))
    missing = base.transform_filter(f"!isValid(datum.{value})").mark_text(text="×", color=MISSING_COLOR, fontSize=13)
    layers.append(missing.encode(y=alt.YValue(232)))
    return layered(*layers, height=240, values=frame[value])


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
    x_axis: alt.Axis | None = None,
    domain: tuple[float, float] | None = None,
    dash: alt.StrokeDash | None = None,
    points: bool = True,
) -> Layers:
    """Lines by colour (and `detail`), with a band from `low` to `high` where known; a missing value is a gap.

    `color`: by default that of the protocol. A protocol without any value is left out.
    """
    frame, color = with_values(frame, y, None, protocol_color() if color is None else color)
    x_scale = alt.Scale(type="log") if log_x else alt.Scale(zero=False, nice=False)
    y_scale = alt.Scale(domain=list(domain)) if domain else alt.Scale(zero=False)
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=x_scale, axis=x_axis or alt.Axis(format="~e" if log_x else ".6~g")),
        color=color,
        tooltip=tooltip,
    )
    if detail:
        base = base.encode(detail=alt.Detail(f"{detail}:N"))
    layers = []
    if _has_intervals(frame):
        layers.append(
            base.mark_area(opacity=0.16).encode(y=alt.Y("low:Q", title=y_title, scale=y_scale), y2=alt.Y2("high:Q"))
        )
    line = base.mark_line(strokeWidth=1.8, invalid="break-paths-show-domains")
    line = line.encode(y=alt.Y(f"{y}:Q", title=y_title, scale=y_scale))
    layers.append(line.encode(strokeDash=dash) if dash is not None else line)
    if points:
        dots = base.transform_filter(f"isValid(datum.{y})").mark_point(filled=True, size=34)
        layers.append(dots.encode(y=alt.Y(f"{y}:Q", title=y_title, scale=y_scale)))
    return layered(*layers, height=260, values=frame[y])


def scatter(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    color: alt.Color,
    x_title: str,
    y_title: str,
    tooltip: list[alt.Tooltip],
) -> Layers:
    """Points, and the diagonal on which both values are equal."""
    values = pd.concat([frame[x], frame[y]]).dropna()
    ends = pd.DataFrame({x: [values.min(), values.max()], y: [values.min(), values.max()]})
    line = alt.Chart(chart_data(ends)).mark_line(strokeDash=[4, 4], color=MISSING_COLOR, strokeWidth=1)
    points = alt.Chart(chart_data(frame)).mark_point(filled=True, size=62)
    points = points.encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=alt.Scale(zero=False), axis=alt.Axis(format=".6~g")),
        y=alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=False)),
        color=color,
        tooltip=tooltip,
    )
    line = line.encode(x=alt.X(f"{x}:Q"), y=alt.Y(f"{y}:Q"))
    return layered(line, points, height=320, values=frame[y].where(frame[x].notna()))


def _has_intervals(frame: pd.DataFrame) -> bool:
    ends = ["low", "high"]
    return {*ends} <= {*frame.columns} and bool(frame[ends].notna().any(axis=None))


def can_draw() -> bool:
    """Whether charts can be drawn."""
    return vl_convert is not None


def check_address_space() -> None:
    """Raise InputError where the process may not reserve the addresses that drawing takes.

    The JavaScript engine that draws reserves them without using them, and aborts the process where it cannot: between
    64 and 100 GB were measured.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < ADDRESSES:
        raise InputError(
            f"The process may reserve {limit / 1e9:.0f} GB of address space; drawing figures takes "
            f"{ADDRESSES / 1e9:.0f}.",
            "raise the limit with `ulimit -v unlimited`; the memory used is far less.",
        )


def save_figure(spec: Spec, path: str | Path) -> None:
    """Write an SVG of a Vega-Lite specification, on white, as wide as its labels need."""
    static = {**spec, "config": {**spec.get("config", {}), "background": "white"}}
    static |= {"width": max(STATIC_WIDTH, label_room(spec))} if static.get("width") == "container" else {}
    write_text(path, vl_convert.vegalite_to_svg(static))
