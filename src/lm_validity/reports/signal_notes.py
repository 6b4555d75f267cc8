"""What the signal report lacks or assumed, in sentences."""

import numpy as np

from lm_validity.reports.score_matrix import listing
from lm_validity.reports.signal_analysis import BenchmarkResult
from lm_validity.reports.signal_data import LearningCurves
from lm_validity.statistics.signal_quality import MINIMUM_CHECKPOINTS

E2LM_LATER_CHECKPOINTS = 47  # of the competition's ranking consistency, 222.8 to 994.5 billion tokens


def summary_notes(
    learning: LearningCurves, results: dict[str, BenchmarkResult], resamples: int, relative: bool
) -> list[str]:
    """What is missing, what was assumed, and why a number is null. `relative`: the ranking windows are."""
    notes = list(learning.notes)
    notes += [note for result in results.values() if result.items for note in result.items.notes]
    if not resamples:
        notes.append("Intervals and p-values were skipped (resamples = 0).")
    without_items = [name for name, result in results.items() if result.resampled is None]
    if resamples and without_items:
        notes.append(f"No item intervals without items that reproduce the scores: {listing(without_items)}.")
    notes += _consistency_notes(results, relative)
    if not any(result.design.compliance_pairs for result in results.values()):
        notes.append(
            "Compliance is null: the models sheet has no pair of a science and a web model of one size "
            "(column training_data). The overall score needs it and is null too."
        )
    tied = [name for name, result in results.items() if _tied_at_the_end(result)]
    if tied:
        notes.append(f"Models tie at the last checkpoint, so their order cannot settle: {listing(tied)}.")
    degenerate = [
        f"{model} on {name}"
        for name, result in results.items()
        for model, quality in result.scores.quality.items()
        if result.design.selected[model].any() and quality.degenerate
    ]
    if degenerate:
        notes.append(f"Constant curves, scored 0: {listing(degenerate)}.")
    few = sorted(
        {
            model
            for result in results.values()
            for model, at in result.design.selected.items()
            if at.sum() < MINIMUM_CHECKPOINTS
        }
    )
    if few:
        notes.append(f"Fewer than {MINIMUM_CHECKPOINTS} selected checkpoints, signal quality null: {listing(few)}.")
    return notes


def _tied_at_the_end(result: BenchmarkResult) -> bool:
    return (
        len(result.design.ranked_at) > 1
        and len(result.design.ranked_tokens) > 1
        and not np.isnan(result.design.ranked_tokens).any()
        and bool(np.isnan(result.scores.stable_from))
    )


def _consistency_notes(results: dict[str, BenchmarkResult], relative: bool) -> list[str]:
    pairs = [pair for result in results.values() for pair in result.design.ranking_pairs]
    if not pairs:
        return ["Ranking consistency is null: no two architectures of one size (columns size and architecture)."]
    counts = sorted({int(pair.later.sum()) for pair in pairs})
    if not relative and all(np.isnan(c.tokens_b).all() for r in results.values() for c in r.design.curves.values()):
        return ["Ranking consistency is null: its windows are in billions of tokens, and tokens are unknown."]
    if counts[-1] == 0:
        return ["Ranking consistency is null: no checkpoint lies in the later window (220 to 1000 billion tokens)."]
    if counts[0] < E2LM_LATER_CHECKPOINTS:
        ends = counts[0] if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        if relative:
            return [f"Ranking consistency rests on {ends} later checkpoints a pair."]
        return [
            f"Ranking consistency rests on {ends} later checkpoints a pair; the competition had "
            f"{E2LM_LATER_CHECKPOINTS} up to 1000 billion tokens, which are not released."
        ]
    return []
