"""The signal study in two stages: what the first checkpoints say of each benchmark, and what the page says of it."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lm_validity.config.signal_plan import SignalPlan
from lm_validity.pages.page import Finding, Section, Table
from lm_validity.studies.signal.curves import LearningCurves
from lm_validity.studies.signal.statistics.quality import Ties, rank_correlation
from lm_validity.studies.signal.summary import (
    BenchmarkQuality,
    Criteria,
    Decisions,
    Ranking,
    SignalSummary,
    Stage,
    Value,
)
from lm_validity.summaries import Missing, is_known
from lm_validity.words import count, listing

OPEN = "open"
NO_CURVE = Missing("No model has a curve at the checkpoints of the first stage.")
ONLY_EARLY = Missing("It is scored on the first quarter of training only. That does not tell how training ends.")


def first_stage(learning: LearningCurves, benchmark: str, plan: SignalPlan, ties: Ties) -> tuple[Value, int]:
    """(mean rank correlation of score and checkpoint at the first stage's checkpoints, models that it is the mean of).

    Of the models that count in the benchmark's scores and have all those checkpoints; each weighs the same.
    """
    found = []
    for model in learning.scored(benchmark):
        curve, first = learning.curves[benchmark][model], plan.first.get(model, frozenset())
        at = np.isin(np.array(curve.checkpoints, dtype=object), list(first))
        if first and at.sum() == len(first):
            found.append(float(rank_correlation(curve.values[at], ties)))
    return (float(np.mean(found)), len(found)) if found else (NO_CURVE, 0)


def stages_of(learning: LearningCurves, plan: SignalPlan | None) -> tuple[Stage, ...]:
    """What the plan says of each benchmark with a curve; none without a plan."""
    if plan is None:
        return ()
    found = []
    for benchmark, curves in learning.curves.items():
        row, most = plan.rows.get(benchmark), max(len(curve.values) for curve in curves.values())
        if row is None:
            not_yet = Missing("`lm-validity next` has not decided on it yet.")
            found.append(Stage(benchmark, OPEN, not_yet, 0, most, only_first=True))
        else:
            value = NO_CURVE if row.rank_correlation is None else row.rank_correlation
            waits = any(set(curve.checkpoints) <= plan.first.get(model, set()) for model, curve in curves.items())
            early = waits or row.verdict != "undecided"
            found.append(Stage(benchmark, row.verdict, value, row.models or 0, most, early))
    return tuple(found)


def without_the_end(summary: SignalSummary) -> SignalSummary:
    """The summary without what it says of the end of training, on benchmarks that have their first checkpoints only."""
    early = {one.benchmark for one in summary.stages if one.only_first}
    return replace(
        summary,
        benchmarks={name: _early(one) if name in early else one for name, one in summary.benchmarks.items()},
        ranking={
            name: _early_order(one) if name in early and is_known(one) else one for name, one in summary.ranking.items()
        },
        criteria={name: _early_criteria(one) if name in early else one for name, one in summary.criteria.items()},
    )


def _early(entry: BenchmarkQuality) -> BenchmarkQuality:
    """A benchmark's row; without chance or errors it says nothing of the end, for a reason of its own."""
    if is_known(entry.separable_at_end):
        entry = replace(entry, separable_at_end=ONLY_EARLY)
    if not is_known(entry.models_above_chance):
        return entry
    since = entry.above_chance_from_b if is_known(entry.above_chance_from_b) else ONLY_EARLY
    return replace(entry, models_above_chance=ONLY_EARLY, above_chance_from_b=since)


def _early_order(ranking: Ranking) -> Ranking:
    return replace(
        ranking,
        agreement_with_last=ONLY_EARLY,
        stable_from_b=ONLY_EARLY,
        stable_from_interval_b=ONLY_EARLY,
        nearly_stable_from_b=ONLY_EARLY,
        nearly_stable_from_interval_b=ONLY_EARLY,
        separable_pairs=ONLY_EARLY,
        settled_from_b=ONLY_EARLY,
        settled_from_interval_b=ONLY_EARLY,
        separated_from_b=ONLY_EARLY,
    )


def _early_criteria(criteria: Criteria) -> Criteria:
    return replace(criteria, decision_accuracy=Decisions(ONLY_EARLY, ONLY_EARLY, ONLY_EARLY, ONLY_EARLY))


def stage_findings(summary: SignalSummary) -> list[Finding]:
    """How many benchmarks the first stage decided, and how."""
    if not summary.stages:
        return []
    names = {
        verdict: [one.benchmark for one in summary.stages if one.verdict == verdict]
        for verdict in ("says something", "says nothing", "undecided", OPEN)
    }
    positive, negative, parts = len(names["says something"]), len(names["says nothing"]), []
    if positive or negative:
        parts.append(
            f"The first quarter of training decides on {positive + negative} of "
            f"{count(len(summary.stages), 'benchmark')}: {positive} {'says' if positive == 1 else 'say'} something "
            f"early and {negative} {'does' if negative == 1 else 'do'} not."
        )
    if names["undecided"]:
        parts.append(f"Undecided, and therefore scored at all checkpoints: {listing(names['undecided'], 8)}.")
    if names[OPEN]:
        parts.append(f"`lm-validity next` has not decided on these yet: {listing(names[OPEN], 8)}.")
    early = sum(one.only_first for one in summary.stages)
    basis = "Figures are based on the first checkpoints." if early else ""
    if 0 < early < len(summary.stages):
        basis = (
            f"Figures of {early} of {len(summary.stages)} benchmarks are based on their first checkpoints. Do not "
            "compare their signal quality with that of the others."
        )
    return [Finding(" ".join(parts), basis)]


def stage_section(summary: SignalSummary) -> Section | None:
    """Each benchmark's verdict, and the checkpoints that its figures rest on."""
    if not summary.stages:
        return None
    rows = [[one.benchmark, one.verdict, one.rank_correlation, one.models, one.checkpoints] for one in summary.stages]
    return Section(
        "Two stages",
        explanation=(
            "The first stage scores at most 8 checkpoints of the first quarter of training. A benchmark is decided "
            "if the mean rank correlation of score and checkpoint is high or low. Only the others are scored at all "
            "checkpoints. docs/reference/signal.md says how often such a verdict differs from that of whole curves."
        ),
        tables=[
            Table(
                "stages",
                "What the first stage decided",
                pd.DataFrame(rows, columns=["benchmark", "verdict", "rank_correlation", "models", "checkpoints"]),
                formats={"rank_correlation": ".3f"},
                labels={"checkpoints": "checkpoints here"},
                caption="Rank correlation: that of the first stage, averaged over this number of models. Checkpoints "
                "here: the most that any other figure of this page is based on.",
            )
        ],
    )
