"""The scores that count as a heat table: a row a model, a column a benchmark, sortable, each with its interval."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.pages.page import Picture
from lm_validity.pages.svg import NAMES
from lm_validity.site.cards.values import CardSources
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.tables.sheets import unique_labels
from lm_validity.words import count

MOST = 6_000  # cells of the picture; more would make the page slow
SHADES = 8
Z_95 = 1.959964


def score_rows(sources: CardSources) -> pd.DataFrame:
    """model, benchmark, protocol, value, low, high, n_items: each model as it is finished, with its 95% interval.

    Seeds are averaged; their standard errors are root mean squares, since they share the items. NaN where unknown.
    """
    rows = sources.last_rows.assign(square=lambda rows: rows["stderr"].astype("float64") ** 2)
    keys = ["model", "benchmark", "protocol"]
    means = rows.groupby(keys, sort=False).agg(
        value=("value", "mean"), square=("square", "mean"), n_items=("n_items", "max")
    )
    half = Z_95 * np.sqrt(means["square"])
    frame = means.assign(low=means["value"] - half, high=means["value"] + half).reset_index()
    return frame[[*keys, "value", "low", "high", "n_items"]]


def heat_picture(rows: pd.DataFrame, higher_is_better: dict[str, bool]) -> Picture:
    """One table for each protocol that has scores. More colour is better within a column; a dash is a missing score."""
    tables, notes = (
        [],
        ["The more colour, the better on that benchmark. Point at a score, or tab to it, for its interval."],
    )
    for protocol in PROTOCOLS:
        rows_of_protocol = rows[rows["protocol"] == protocol]
        if len(rows_of_protocol):
            table, left_out = _table(rows_of_protocol, higher_is_better)
            heading = (
                Markup("<h2>{}</h2>").format(NAMES[protocol].capitalize()) if rows["protocol"].nunique() > 1 else ""
            )
            tables.append(heading + table)
            if left_out:
                notes.append(f"{count(left_out, 'model')} more {NAMES[protocol]}: in the table below.")
    return Picture(Markup("").join(tables), " ".join(notes))


class _Score(NamedTuple):
    """A score and its interval, NaN where unknown."""

    value: float
    low: float
    high: float


class _HeatTable(NamedTuple):
    """The table of a protocol, and how many models it leaves out."""

    markup: Markup
    left_out: int


def _table(rows: pd.DataFrame, higher_is_better: dict[str, bool]) -> _HeatTable:
    """The table of one protocol, best models first, and the number of models beyond MOST cells."""
    values = rows.pivot(index="model", columns="benchmark", values="value")
    oriented = values * [1.0 if higher_is_better.get(name, True) else -1.0 for name in values.columns]
    places = oriented.rank(axis=0, pct=True, na_option="keep")
    order = places.mean(axis=1).sort_values(ascending=False, kind="stable").index
    models_shown = order[: max(1, MOST // max(1, len(values.columns)))]
    short = unique_labels(pd.Series([name.split("/")[-1] for name in order]), pd.Series(order))
    labels = dict(zip(order, short, strict=True))
    numbers = rows[["value", "low", "high"]].to_numpy(dtype=float, na_value=math.nan).tolist()
    scores = {
        cell: _Score(*row)
        for cell, row in zip(zip(rows["model"], rows["benchmark"], strict=True), numbers, strict=True)
    }
    head = Markup("").join(
        Markup('<th scope="col"><button type="button">{} <span class="nb"></span></button></th>').format(_broken(name))
        for name in ("model", *values.columns)
    )
    body = Markup("").join(
        Markup('<tr><th scope="row" data-v="{}">{}</th>{}</tr>').format(
            labels[model],
            labels[model],
            Markup("").join(_cell(scores.get((model, name)), places.at[model, name]) for name in values.columns),
        )
        for model in models_shown
    )
    table = Markup(
        '<div class="scroll"><table class="m heat"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    )
    return _HeatTable(table.format(head, body), len(order) - len(models_shown))


def _broken(name: str) -> Markup:
    """The name, which may break after an underscore."""
    return Markup("_<wbr>").join(name.split("_"))


def _cell(score: _Score | None, share: float) -> Markup:
    """A score, shaded by its place among the models, with its interval under the pointer and for a screen reader."""
    if score is None or not math.isfinite(score.value):
        return Markup('<td data-v="" class="none">–</td>')
    tooltip = f"{score.value:.4g}"
    if math.isfinite(score.low):
        tooltip += f" (95%: {score.low:.4g} to {score.high:.4g})"
    shade = min(SHADES - 1, int(share * SHADES))
    return Markup('<td data-v="{}" class="h{}" title="{}" tabindex="0" aria-label="{}">{}</td>').format(
        score.value,
        shade,
        tooltip,
        tooltip,
        f"{score.value:.3f}" if abs(score.value) <= 1 else f"{score.value:.4g}",
    )
