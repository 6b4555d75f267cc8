"""From when on the models have their final order, with intervals over items."""

import numpy as np

from lm_validity.studies.signal.analysis import BenchmarkResult
from lm_validity.studies.signal.scores import STABLE_TAU, point_values, ranked_curves
from lm_validity.studies.signal.statistics.ranking import (
    agreement_with_last,
    separable_pairs,
    settled_from,
    settling_interval,
    size_ordering,
)
from lm_validity.studies.signal.statistics.resampling import resampling_interval
from lm_validity.studies.signal.summary import Bounds, Ranking, Value
from lm_validity.summaries import Missing, is_known, known


def ranking_of(result: BenchmarkResult) -> Ranking | Missing:
    """The order of the models along training, over the checkpoints that they have in common."""
    design, scores = result.design, result.scores
    if len(design.ranked) < 2 or len(design.ranked_tokens) < 2:
        return Missing("An order along training needs two models with two checkpoints in common.")
    curves = ranked_curves(design, point_values(design))
    ordering = size_ordering(curves, design.larger_pairs)
    unknown = bool(np.isnan(design.ranked_tokens).any())
    unsettled = "Tokens are unknown." if unknown else "Models tie at the last checkpoint: their order cannot settle."
    alone = Missing("No two models are alike but for their size.")
    exact, nearly = (known(float(tokens), unsettled) for tokens in (scores.stable_from, scores.nearly_stable_from))
    return Ranking(
        models=design.ranked,
        tokens_b=Missing("Tokens are unknown.") if unknown else design.ranked_tokens,
        agreement_with_last=agreement_with_last(curves),
        stable_from_b=exact,
        stable_from_interval_b=_interval(result, curves, exact, 1.0),
        nearly_stable_tau=STABLE_TAU,
        nearly_stable_from_b=nearly,
        nearly_stable_from_interval_b=_interval(result, curves, nearly, STABLE_TAU),
        pairs=len(curves) * (len(curves) - 1) // 2,
        **_settling(result, curves),
        size_pairs=ordering.pairs,
        size_order_share=ordering.share if ordering.pairs else alone,
        size_gap=ordering.gap if ordering.pairs else alone,
        separated_from_b=_separated_from(result, ordering.gap) if ordering.pairs else alone,
        progress=design.ranked_progress,
    )


def _settling(result: BenchmarkResult, curves: np.ndarray) -> dict:
    """From when on the models that can be told apart at the end have their final order, `curves` (models, n)."""
    if isinstance(result.resampled, Missing):
        return dict.fromkeys(("separable_pairs", "settled_from_b", "settled_from_interval_b"), result.resampled)
    separable = separable_pairs(curves[:, -1], _deviations(result)[:, -1])
    equal = "No two models can be told apart at the last checkpoint." if not separable.any() else "Tokens are unknown."
    value = known(float(settled_from(curves, result.design.ranked_tokens, separable, STABLE_TAU)), equal)
    return {
        "separable_pairs": int(separable.sum()),
        "settled_from_b": value,
        "settled_from_interval_b": _interval(result, curves, value, STABLE_TAU, separable),
    }


def _interval(
    result: BenchmarkResult, curves: np.ndarray, value: Value, threshold: float, pairs: np.ndarray | None = None
) -> Bounds:
    """When the order of the `pairs` (all by default) may have settled, given the noise of items."""
    for missing in (value, result.resampled):
        if isinstance(missing, Missing):
            return missing
    deviations = _deviations(result)
    pairs = np.ones(len(deviations), dtype=bool) if pairs is None else pairs
    return settling_interval(curves, deviations, result.design.ranked_tokens, pairs, threshold)


def _deviations(result: BenchmarkResult) -> np.ndarray:
    """Standard deviations (pairs, n) of the differences between models over resampled items."""
    drawn = ranked_curves(result.design, result.resampled)
    first, second = np.triu_indices(drawn.shape[-2], k=1)
    return np.array([np.std(drawn[:, i] - drawn[:, j], axis=0) for i, j in zip(first, second, strict=True)])


def _separated_from(result: BenchmarkResult, gap: np.ndarray) -> Value:
    """Tokens from which larger models are ahead by more than chance of items for good."""
    if isinstance(result.resampled, Missing):
        return result.resampled
    draws = size_ordering(ranked_curves(result.design, result.resampled), result.design.larger_pairs).gap
    low = np.array([resampling_interval(float(value), draws[:, at]).low for at, value in enumerate(gap)])
    for_good = np.flip(np.logical_and.accumulate(np.flip(low > 0)))
    if not is_known(end := known(float(result.design.ranked_tokens[np.argmax(for_good)]), "Tokens are unknown.")):
        return end
    return end if for_good.any() else Missing("Larger models are not ahead by more than chance of items at the end.")
