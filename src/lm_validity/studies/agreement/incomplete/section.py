"""Findings and the section on a protocol with missing cells: pooled agreement, ranks, and what was not measured."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.config.plan import AUDIT
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Section, Table
from lm_validity.studies.agreement.incomplete.summary import BY_CHANCE, Incomplete, Range, Trust, Value
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.words import UNDER, count, decimal, listing, percent, with_interval

LEAST_COVERAGE = 0.9
MOST_DRAWN = 60  # predicted cells in the figure, the most uncertain ones first
EXPLANATION = (
    "Pooled agreement counts every comparison of two models on two benchmarks once. It is the share of comparisons "
    "that agree minus the share that disagree, so a pair of benchmarks with few models in common gets little weight. "
    "The assisted estimate adds a statistical model's predictions for comparisons that were not measured. It is then "
    "corrected by the model's errors on measured comparisons. Neither estimate fills missing cells. Models are ranked "
    "by their mean standardised score over all benchmarks, averaged over many draws of the missing scores."
)


def incomplete_findings(found: dict[str, Incomplete]) -> list[Finding]:
    """A finding for each protocol with missing cells."""
    return [_finding(protocol, one) for protocol, one in found.items() if is_known(one.kendall_tau.mean)]


def _finding(protocol: str, one: Incomplete) -> Finding:
    tau = one.kendall_tau
    models = int(one.measured.any(axis=1).sum())
    on = "" if models == len(one.measured) else f" ({models} of {count(len(one.measured), 'model')})"
    sentence = (
        f"{UNDER[protocol].capitalize()}, {one.cells:,} of {one.cells + one.missing:,} cells were measured{on}. Pooled "
        f"over pairs of models{BY_CHANCE if one.missing > one.unplanned else ''}, tau is "
        f"{_words(tau.mean, tau.interval)}"
    )
    if is_known(tau.assisted):
        sentence += f". Assisted by predictions it is {_words(tau.assisted, tau.assisted_interval)}"
    planned = f"{one.unplanned:,} cells are not planned. " if one.unplanned else ""
    if one.by_scores:
        planned += f"{count(one.by_scores, 'measured cell')} chosen by earlier scores are left out. "
    basis = f"{planned}{tau.comparisons:,} comparisons."
    if not isinstance(tau.interval, Missing):
        basis += " Intervals are for other models on these benchmarks."
    else:
        basis += f" There is no interval for other models. {tau.interval.reason}"
    if is_known(tau.differ) and tau.differ:
        basis += (
            " The two estimates differ by more than twice the standard error of their difference. Either the measured "
            "cells are not typical of the others, or the model predicts them badly."
        )
    return Finding(f"{sentence}.", basis)


def _words(value: Value, interval: Range) -> str:
    return with_interval(number(value), None if isinstance(interval, Missing) else interval)


def incomplete_section(found: dict[str, Incomplete], matrix: ScoreMatrix) -> Section | None:
    """Pooled agreement by benchmark, ranks with intervals, and predictions in a table of their own."""
    if not found:
        return None
    tables, charts = [_benchmark_table(found)], []
    for protocol, one in found.items():
        ranks = _rank_frame(one, matrix)
        if len(ranks):
            tables.append(_rank_table(protocol, ranks))
        predictions = _prediction_frame(one, matrix)
        if len(predictions):
            tables.append(_prediction_table(protocol, predictions))
            charts.append(_prediction_figure(protocol, predictions))
    notes = [note for protocol, one in found.items() for note in trust_notes(protocol, one.trust)]
    return Section("Despite missing cells", explanation=EXPLANATION, figures=charts, tables=tables, notes=notes)


def trust_notes(protocol: str, trust: Trust | Missing) -> list[str]:
    """How often known cells lie inside their intervals, and warnings where that is too seldom."""
    if isinstance(trust, Missing):
        return [f"{figures.PROTOCOL_LABELS[protocol]}: no predictions. {trust.reason}"]
    checked = (
        f"{figures.PROTOCOL_LABELS[protocol]}: of {count(trust.cells, 'random cell')} of the audit"
        if trust.source == AUDIT
        else f"{figures.PROTOCOL_LABELS[protocol]}: of {count(trust.cells, 'measured cell')}, each predicted from the "
        "others"
    )
    notes = [f"{checked}, {percent(number(trust.coverage))} lie inside their 95% interval."]
    if is_known(trust.widening) and trust.widening > 1:
        notes[0] += f" All intervals were made {decimal(number(trust.widening))} times as wide for this reason."
    if trust.source != AUDIT:
        notes[0] += (
            " The cells that are hard to predict may all be unmeasured. Only an audit of random unmeasured cells can "
            "show this (`lm-validity plan --audit 40`)."
        )
    if is_known(trust.coverage) and trust.coverage < LEAST_COVERAGE:
        notes.append(
            f"{figures.PROTOCOL_LABELS[protocol]}: fewer than 90% lie inside. The predictions are less certain than "
            "their intervals say."
        )
    if trust.hardly_measured:
        notes.append(
            f"{figures.PROTOCOL_LABELS[protocol]}: fewer than 3 measured cells per model in "
            f"{listing(trust.hardly_measured)}. Predictions for these families are based on other families, so "
            "their intervals may be too narrow."
        )
    return notes


def _benchmark_table(found: dict[str, Incomplete]) -> Table:
    rows = [
        {
            "benchmark": name,
            "protocol": figures.PROTOCOL_LABELS[protocol],
            "pooled": value,
            "assisted": one.kendall_tau.assisted_by_benchmark[name],
        }
        for protocol, one in found.items()
        for name, value in one.kendall_tau.by_benchmark.items()
    ]
    formats = {"pooled": ".3f", "assisted": ".3f"}
    return Table("pooled_tau", "Pooled agreement of each benchmark with the others", pd.DataFrame(rows), formats,
                 folded=True)  # fmt: skip


def _rank_frame(one: Incomplete, matrix: ScoreMatrix) -> pd.DataFrame:
    if isinstance(one.ranks, Missing):
        return pd.DataFrame()
    labels = dict(zip(matrix.models, matrix.labels, strict=True))
    rows = [
        {
            "model": labels[model],
            "measured": int(measured),
            "rank": standing.rank,
            "low": standing.interval if isinstance(standing.interval, Missing) else standing.interval.low,
            "high": standing.interval if isinstance(standing.interval, Missing) else standing.interval.high,
        }
        for (model, standing), measured in zip(one.ranks.items(), one.measured.sum(axis=1), strict=True)
    ]
    return pd.DataFrame(sorted(rows, key=_by_rank))


def _by_rank(row: Mapping[str, Any]) -> float:
    return number(row["rank"]) if is_known(row["rank"]) else np.inf


def _rank_table(protocol: str, frame: pd.DataFrame) -> Table:
    return Table(
        f"ranks_{protocol}",
        f"{figures.PROTOCOL_LABELS[protocol]}: ranks despite missing cells",
        frame,
        formats={"rank": ".1f", "low": ".1f", "high": ".1f"},
        labels={"measured": "cells measured", "low": "from", "high": "to"},
        caption="95% intervals over the values that missing cells may have had, for these benchmarks and items.",
        folded=True,
    )


def _prediction_frame(one: Incomplete, matrix: ScoreMatrix) -> pd.DataFrame:
    labels = dict(zip(matrix.models, matrix.labels, strict=True))
    return pd.DataFrame(
        [
            {
                "model": labels[cell.model],
                "benchmark": cell.benchmark,
                "planned": "yes" if cell.planned else "no",
                "predicted": cell.value,
                **as_columns(cell.interval),
            }
            for cell in one.predictions
        ]
    )


def _prediction_table(protocol: str, frame: pd.DataFrame) -> Table:
    return Table(
        f"predictions_{protocol}",
        f"{figures.PROTOCOL_LABELS[protocol]}: predicted scores of cells that were not measured",
        frame,
        formats={"predicted": ".3f", "low": ".3f", "high": ".3f"},
        labels={"low": "from", "high": "to"},
        caption="Predictions, not results. Only the assisted estimates and the ranks above use the same model.",
        folded=True,
    )


def _prediction_figure(protocol: str, frame: pd.DataFrame) -> Figure:
    frame = frame.assign(cell=frame["model"] + ", " + frame["benchmark"], width=frame["high"] - frame["low"])
    drawn = frame.sort_values("width", ascending=False).head(MOST_DRAWN)
    base = alt.Chart(figures.chart_data(drawn)).encode(
        y=alt.Y("cell:N", title=None, scale=figures.discrete(drawn["cell"]), axis=alt.Axis(labelOverlap=False)),
        tooltip=figures.tooltips(
            cell="Not measured", predicted="Predicted|.3f", low="from|.3f", high="to|.3f", planned="Planned"
        ),
    )
    line = base.mark_rule(strokeDash=[4, 3]).encode(x=alt.X("low:Q", title="Predicted score"), x2="high:Q")
    dot = base.mark_point(filled=False, size=44, strokeDash=[2, 2]).encode(x="predicted:Q")
    chart = alt.layer(line, dot).properties(width="container", height=16 * len(drawn))
    more = f" The {MOST_DRAWN} most uncertain of {len(frame)} are drawn." if len(frame) > MOST_DRAWN else ""
    return Figure(
        f"predictions_{protocol}",
        f"{figures.PROTOCOL_LABELS[protocol]}: predicted, not measured",
        chart,
        caption=f"Hollow dot: the predicted score. Dashed line: its 95% interval.{more}",
        wide=True,
    )
