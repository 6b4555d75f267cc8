"""What the signal report lacks or assumed, in sentences."""

import numpy as np

from lm_validity.studies.agreement.score_matrix import listing
from lm_validity.studies.signal.analysis import BenchmarkResult
from lm_validity.studies.signal.curves import LearningCurves
from lm_validity.studies.signal.scores import Options
from lm_validity.studies.signal.statistics.quality import MINIMUM_CHECKPOINTS
from lm_validity.studies.signal.statistics.ranking import E2LM_WINDOWS, MINIMUM_FOR_BLOCKS, RankingWindows

E2LM_LATER_CHECKPOINTS = 47  # of the competition's ranking consistency, 222.8 to 994.5 billion tokens


def summary_notes(
    learning: LearningCurves, results: dict[str, BenchmarkResult], resamples: int, options: Options
) -> list[str]:
    """What is missing, what was assumed, and why a number is null."""
    notes = list(learning.notes)
    notes += [note for result in results.values() if result.items for note in result.items.notes]
    if not resamples:
        notes.append("Intervals and p-values were skipped (resamples = 0).")
    without_items = [name for name, result in results.items() if result.resampled is None]
    if resamples and without_items:
        notes.append(f"No item intervals without items that reproduce the scores: {listing(without_items)}.")
    notes += _consistency_notes(results, options.windows)
    notes += _block_notes(results)
    notes += _compliance_notes(results, options.normalisation)
    if without := [name for name, result in results.items() if np.isnan(result.scores.overall)]:
        notes.append(
            "The overall score needs signal quality, ranking consistency and compliance, and is null where one of them "
            f"is: {listing(without)}."
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


def _consistency_notes(results: dict[str, BenchmarkResult], windows: RankingWindows) -> list[str]:
    pairs = [(name, pair) for name, result in results.items() for pair in result.design.ranking_pairs]
    if not pairs:
        return ["Ranking consistency is null: no two architectures of one size (columns size and architecture)."]
    curves = [curve for result in results.values() for curve in result.design.curves.values()]
    if not windows.relative and all(np.isnan(curve.tokens_b).all() for curve in curves):
        return ["Ranking consistency is null: its windows are in billions of tokens, and tokens are unknown."]
    notes = []
    if without := [name for name, result in results.items() if not result.design.ranking_pairs]:
        notes.append(f"Ranking consistency is null without two architectures of one size: {listing(without)}.")
    for kind in ("base", "later"):
        empty = [f"{pair.first} and {pair.second} on {name}" for name, pair in pairs if not getattr(pair, kind).any()]
        if empty:
            where = "" if len(empty) == len(pairs) else f" for {listing(empty, 4)}"
            notes.append(
                f"Ranking consistency is null{where}: no checkpoint lies in the {kind} window "
                f"({_window(getattr(windows, kind), windows.relative)})."
            )
    counts = sorted({int(pair.later.sum()) for _, pair in pairs if pair.base.any() and pair.later.any()})
    if counts and counts[0] < E2LM_LATER_CHECKPOINTS:
        ends = counts[0] if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        # other windows than the competition's hold other numbers of its checkpoints
        beside = (
            f"; the competition had {E2LM_LATER_CHECKPOINTS} up to 1000 billion tokens, which are not released"
            if windows == E2LM_WINDOWS
            else ""
        )
        notes.append(f"Ranking consistency rests on {ends} later checkpoints a pair{beside}.")
    return notes


def _block_notes(results: dict[str, BenchmarkResult]) -> list[str]:
    """The interval of ranking consistency needs blocks of every pair that counts in it."""
    without = [
        name
        for name, result in results.items()
        if np.isfinite(result.scores.consistency) and np.isnan(result.consistency_blocks).any()
    ]
    if not without:
        return []
    return [
        f"No interval of ranking consistency over checkpoints where one of its pairs has fewer than "
        f"{MINIMUM_FOR_BLOCKS} later checkpoints: {listing(without)}."
    ]


def _window(ends: tuple[float, float], relative: bool) -> str:
    """In billions of tokens, or in percent of a training: relative windows are of one of 1000 billion tokens."""
    low, high = (end / 10 for end in ends) if relative else ends
    return f"{low:g} to {high:g}{'% of the training' if relative else ' billion tokens'}"


def _compliance_notes(results: dict[str, BenchmarkResult], normalisation: str) -> list[str]:
    without = [name for name, result in results.items() if not result.design.compliance_pairs]
    if len(without) == len(results):
        return [
            "Compliance is null: the models sheet has no pair of a science and a web model of one size "
            "(column training_data)."
        ]
    paired = {name: result for name, result in results.items() if name not in without}
    apart = [name for name, r in paired.items() if not any(len(pair.first_at) for pair in r.design.compliance_pairs)]
    guessless = [name for name, result in paired.items() if result.chance is None]
    known = {*apart, *(guessless if normalisation == "above_chance" else ())}
    flat = [name for name, result in paired.items() if name not in known and np.isnan(result.scores.compliance)]
    notes = []
    if without:
        notes.append(f"Compliance is null without curves of a science and a web model of one size: {listing(without)}.")
    if apart:
        notes.append(f"Compliance is null: its models have no selected checkpoint in common on {listing(apart)}.")
    if guessless:
        what = "Compliance is" if normalisation == "above_chance" else "Compliance by gain over chance is"
        notes.append(
            f"{what} null without a chance level, which the items of an accuracy over choices give: "
            f"{listing(guessless)}."
        )
    if flat:
        notes.append(
            "Compliance is null where what it is divided by is not above 0 (a constant curve, a science curve at "
            f"chance): {listing(flat)}."
        )
    return notes
