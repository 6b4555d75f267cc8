"""What the page shows of a table with missing cells: pooled agreement, ranks, and predictions apart from results."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lm_validity.config.plan import AUDIT
from lm_validity.missing import Missing, as_columns, is_known, number
from lm_validity.pages.page import Finding, Part, Picture, Section, Table
from lm_validity.results.put import Rows
from lm_validity.results.sections import Dots, Series
from lm_validity.studies.agreement.data import BY_CHANCE, Data
from lm_validity.studies.agreement.incomplete import Incomplete, RankRange, Trust
from lm_validity.studies.agreement.values import value_in_words
from lm_validity.words import UNDER, count, decimal, listing, percent

LABELS = {"direct": "Direct", "train_before_test": "Train before test"}
LEAST_COVERAGE = 0.9
MOST_PREDICTED = 60  # predicted cells in the figure, the most uncertain ones first


def despite_missing_cells(data: Data, entries: dict[str, Incomplete]) -> Part:
    """Of each protocol that lacks cells: pooled agreement by benchmark, ranks with intervals, and predictions in a
    table of their own. Findings only where so many cells are missing that headlines are pooled."""
    summary = {"incomplete": entries}
    if not entries:
        return Part(summary)
    findings, rows, charts, notes = [], [], [], []
    tables: list[Table] = []
    for p, entry in entries.items():
        title, tau = LABELS[p], entry.kendall_tau
        rows += [
            {"benchmark": name, "protocol": title, "pooled": value, "assisted": tau.assisted_by_benchmark[name]}
            for name, value in tau.by_benchmark.items()
        ]
        if is_known(tau.mean):
            findings.append(_finding(p, entry))
        if not isinstance(entry.ranks, Missing):
            tables.append(_rank_table(p, data.matrix.labels, entry.ranks, entry.cells_of_models))
        if len(entry.predictions):
            tables.append(
                Table(
                    f"predictions_{p}",
                    f"{title}: predicted scores of cells that were not measured",
                    entry.predictions,
                    formats={"predicted": ".3f", "low": ".3f", "high": ".3f"},
                    labels={"low": "from", "high": "to"},
                    caption="Predictions, not results. Only the assisted estimates and the ranks above use the same "
                    "model.",
                    folded=True,
                )
            )
            charts.append(_prediction_picture(p, entry.predictions))
        notes += trust_notes(p, entry.trust)
    title, formats = "Pooled agreement of each benchmark with the others", {"pooled": ".3f", "assisted": ".3f"}
    tables = [Table("pooled_tau", title, pd.DataFrame(rows), formats=formats, folded=True), *tables]
    section = Section(
        "Despite missing cells",
        hint="pooled agreement, ranks and predictions",
        explanation="Pooled agreement counts every comparison of two models on two benchmarks once. It is the share of "
        "comparisons that agree minus the share that disagree, so a pair of benchmarks with few models in common gets "
        "little weight. The assisted estimate adds a statistical model's predictions for comparisons that were not "
        "measured. It is then corrected by the model's errors on measured comparisons. Neither estimate fills missing "
        "cells. Models are ranked by their mean standardised score over all benchmarks, averaged over many draws of "
        "the missing scores.",
        pictures=charts,
        tables=tables,
        notes=notes,
    )
    return Part(summary, section, findings if data.lacks_many else [])


def _rank_table(protocol: str, labels: Sequence[str], ranks: dict[str, RankRange], measured: np.ndarray) -> Table:
    """By model its rank, the best first, and how many of its cells are `measured` (models,)."""
    rows = [
        {"model": label, "measured": int(cells), "rank": standing.rank, **as_columns(standing.interval)}
        for label, standing, cells in zip(labels, ranks.values(), measured, strict=True)
    ]
    rows.sort(key=lambda row: number(row["rank"]) if is_known(row["rank"]) else np.inf)
    return Table(
        f"ranks_{protocol}",
        f"{LABELS[protocol]}: ranks despite missing cells",
        pd.DataFrame(rows),
        formats={"rank": ".1f", "low": ".1f", "high": ".1f"},
        labels={"measured": "cells measured", "low": "from", "high": "to"},
        caption="95% intervals over the values that missing cells may have had, for these benchmarks and items.",
        folded=True,
    )


def _finding(protocol: str, entry: Incomplete) -> Finding:
    tau, unplanned = entry.kendall_tau, entry.unplanned
    models, scored = len(entry.cells_of_models), int((entry.cells_of_models > 0).sum())
    on = "" if scored == models else f" ({scored} of {count(models, 'model')})"
    sentence = (
        f"{UNDER[protocol].capitalize()}, {entry.cells:,} of {entry.cells + entry.missing:,} cells were measured{on}. "
        f"Pooled over pairs of models{BY_CHANCE if entry.missing > unplanned else ''}, tau is "
        f"{value_in_words(tau.mean, tau.interval)}"
    )
    if is_known(tau.assisted):
        sentence += f". Assisted by predictions it is {value_in_words(tau.assisted, tau.assisted_interval)}"
    basis = f"{unplanned:,} cells are not planned. " if unplanned else ""
    if entry.by_scores:
        basis += f"{count(entry.by_scores, 'measured cell')} chosen by earlier scores are left out. "
    basis += f"{tau.comparisons:,} comparisons."
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


def trust_notes(protocol: str, trust: Trust | Missing) -> list[str]:
    """How often known cells lie inside their intervals, and warnings where that is too seldom."""
    label = LABELS[protocol]
    if isinstance(trust, Missing):
        return [f"{label}: no predictions. {trust.reason}"]
    audited, coverage, widening = trust.source == AUDIT, number(trust.coverage), number(trust.widening)
    cells = (
        f"{count(trust.cells, 'random cell')} of the audit"
        if audited
        else f"{count(trust.cells, 'measured cell')}, each predicted from the others"
    )
    notes = [f"{label}: of {cells}, {percent(coverage)} lie inside their 95% interval."]
    if widening > 1:
        notes[0] += f" All intervals were made {decimal(widening)} times as wide for this reason."
    if not audited:
        notes[0] += (
            " The cells that are hard to predict may all be unmeasured. Only an audit of random unmeasured cells can "
            "show this (`lm-validity plan --audit 40`)."
        )
    if coverage < LEAST_COVERAGE:
        notes.append(f"{label}: fewer than 90% lie inside. The predictions are less certain than their intervals say.")
    if trust.hardly_measured:
        notes.append(
            f"{label}: fewer than 3 measured cells per model in {listing(trust.hardly_measured)}. Predictions for "
            "these families are based on other families, so their intervals may be too narrow."
        )
    return notes


def _prediction_picture(protocol: str, frame: pd.DataFrame) -> Picture:
    """Of the most uncertain cells the predicted score with its interval."""
    rows = Rows("agreement")
    frame = frame.assign(width=frame["high"] - frame["low"]).sort_values("width", ascending=False).head(MOST_PREDICTED)
    for row in frame.itertuples():
        ends = {"missing_cells": (row.low, row.high)}
        rows.put("predicted", row.predicted, "score", ends, subject=f"{row.model}, {row.benchmark}")
    label = f"{LABELS[protocol]}: predicted scores, not measured, with 95% intervals; the most uncertain cells"
    return Dots([Series("predicted", {"subject": "{}"})], label, zero=False).draw(rows)
