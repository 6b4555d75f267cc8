"""The bump figure: two orders of the same models side by side."""

import json
import math
from collections.abc import Iterable

import altair as alt
import pandas as pd

from lm_validity.pages.figure_style import (
    FAMILY_FOCUS,
    chart_data,
    family_color,
    family_opacity,
    tooltips,
    with_family_focus,
)

LONGEST = 150  # pixels of a model's name; longer ones are cut
LETTER = 5.4  # pixels of its width


def bump(frame: pd.DataFrame, families: Iterable[str | None]) -> alt.LayerChart:
    """Two orders of the same models side by side, lines between a model's places.

    Columns of `frame`: model, family, benchmark, side (0 left, 1 right), place, rank, best, worst (its rank
    band), score, error. One row per model and side.
    """
    color = family_color(families)
    names = frame.drop_duplicates("side").sort_values("side")["benchmark"].tolist()
    places = int(frame["place"].max())
    tooltip = tooltips(
        model="Model", family="Family", benchmark="Benchmark", score="Score|.4f", error="±|.4f", rank="Rank|~g",
        place="Aligned place", best="Band from", worst="to",
    )  # fmt: skip
    titles = " · ".join(names)
    room = _room(frame["model"])
    # both names on one line, each from its edge of the figure to at most the middle
    axis = alt.Axis(
        values=[0, 1],
        labelAlign={"expr": "datum.value == 0 ? 'left' : 'right'"},
        labelOffset={"expr": f"datum.value == 0 ? {-room} : {room}"},
        labelLimit={"expr": "width / 2 - 6"},
        labelExpr=f"datum.value == 0 ? {json.dumps(names[0])} : {json.dumps(names[1])}",
        ticks=False,
    )
    y_axis = alt.Axis(values=[1, *range(10, places + 1, 10)], grid=False)
    base = alt.Chart(chart_data(frame)).encode(
        x=alt.X(
            "side:Q", scale=alt.Scale(domain=[0, 1], range=[room, {"expr": f"width - {room}"}]), axis=axis, title=None
        ),
        color=color,
        tooltip=tooltip,
        opacity=family_opacity(),
    )
    y = alt.Y("place:Q", scale=alt.Scale(domain=[0.5, places + 0.5], reverse=True), axis=y_axis, title="Place")
    # bands overlap: they are shown for the family that is focused
    shown = alt.condition(f"datum.family == {FAMILY_FOCUS}", alt.value(0.3), alt.value(0.0))
    band = base.mark_rule(strokeWidth=7).encode(y=alt.Y("best:Q", title="Place"), y2="worst:Q", opacity=shown)
    line = base.mark_line(strokeWidth=1.4).encode(y=y, detail="model:N")
    dot = base.mark_point(filled=True, size=26).encode(y=y)
    left = base.transform_filter("datum.side == 0").mark_text(align="right", dx=-6, fontSize=9, limit=LONGEST)
    right = base.transform_filter("datum.side == 1").mark_text(align="left", dx=6, fontSize=9, limit=LONGEST)
    labels = [text.encode(y=y, text="model:N") for text in (left, right)]
    chart = alt.layer(band, line, dot, *labels).properties(
        width="container", height=max(160, 11 * places), description=titles
    )
    return with_family_focus(chart)


def bump_width(models: Iterable[str]) -> int:
    """The least width in pixels of a `bump` figure: names on either side, lines between them."""
    return 2 * _room(models) + 140


def _room(models: Iterable[str]) -> int:
    """Pixels on either side for the models' names."""
    return 12 + math.ceil(min(LONGEST, LETTER * max(map(len, models))))
