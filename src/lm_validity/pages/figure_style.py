"""What all figures share: colours, fonts, data, tooltips, and the parameter that links the choice of a family."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from altair.utils.schemapi import debug_mode

PROTOCOL_LABELS = {"direct": "Direct", "train_before_test": "Train before test"}
PROTOCOL_COLORS = {"Direct": "#d98b2b", "Train before test": "#2f7ec0"}
# Okabe and Ito's palette, legible for colour-blind readers, its black and yellow replaced for both backgrounds
CATEGORY_COLORS = (
    "#2f7ec0", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c6bb1", "#7f7f7f", "#a6761d", "#66a61e",
)  # fmt: skip
UNKNOWN_COLOR = "#8a8a8a"
MISSING_COLOR = "#9a9a9a"
FAMILY_FOCUS = "family_focus"

CONFIG = {
    "aria": False,  # a figure is one image with a label; its values are in the tables
    "background": None,
    "font": "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif",
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


def chart_data(frame: pd.DataFrame) -> alt.InlineData:
    """The rows of `frame` as inline data; NaN and infinities become null. Give each encoding its type explicitly."""
    rows = [{k: _plain(v) for k, v in row.items()} for row in frame.to_dict("records")]
    with debug_mode(False):  # Altair would check every value against Vega-Lite's schema, which takes seconds
        return alt.InlineData(values=rows)


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


def family_color(families: Iterable[str | None]) -> alt.Color:
    """The colour of a family, the same in every figure given the same `families` (in the order of the alphabet)."""
    names = sorted({name for name in families if isinstance(name, str)})
    colors = cycled_colors(names) | {"unknown": UNKNOWN_COLOR}
    return listed_color("family", colors, "Family", values=names or ["unknown"], columns=4)


def family_opacity() -> alt.Opacity:
    """Fades the marks of other families while the page focuses one."""
    return alt.condition(f"{FAMILY_FOCUS} == null || datum.family == {FAMILY_FOCUS}", alt.value(0.9), alt.value(0.12))


def with_family_focus(chart: alt.Chart | alt.LayerChart) -> alt.Chart | alt.LayerChart:
    """Declare the page's family parameter: needed once for a chart whose opacity is `family_opacity`."""
    return chart.add_params(alt.param(name=FAMILY_FOCUS, value=None))


def protocol_color() -> alt.Color:
    """The colours of the two protocols, for a column `protocol` that holds `PROTOCOL_LABELS`."""
    return listed_color("protocol", PROTOCOL_COLORS)


def listed_color(field: str, colors: dict[str, str], title: str | None = None, **legend: Any) -> alt.Color:
    """A colour for each value of a column; `legend` is what Vega-Lite's legend takes."""
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(title=title, **legend))


def cycled_colors(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, the first name the first colour; they repeat where there are more names."""
    return dict(zip(names, itertools.cycle(CATEGORY_COLORS)))


def dashed_lines(field: str, *at: float, channel: str = "x") -> alt.Chart:
    """Dashed reference lines at these values."""
    base = alt.Chart(chart_data(pd.DataFrame({field: [*at]})))
    return base.mark_rule(color=MISSING_COLOR, strokeDash=[4, 4]).encode(**{channel: f"{field}:Q"})


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
