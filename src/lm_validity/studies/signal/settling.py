"""From when on the models have their final order, with intervals over items."""

from typing import TypedDict

import numpy as np

from lm_validity.studies.signal.analysis import BenchmarkResult
from lm_validity.studies.signal.scores import Design, point_values, ranked_curves
from lm_validity.studies.signal.statistics.ranking import (
    agreement_with_last,
    from_then_on,
    separable_pairs,
    settled_from,
    settling_interval,
    size_ordering,
)
from lm_validity.studies.signal.statistics.resampling import resampling_interval
from lm_validity.studies.signal.summary import Bounds, Ranking, Value
from lm_validity.summaries import Missing, is_known, known

STABLE_TAU = 0.8  # a ranking that differs from the final one in one pair of ten


def ranking_of(result: BenchmarkResult) -> Ranking | Missing:
    """The order of the models along training, over the checkpoints that they have in common."""
    design = result.design
    if len(design.ranked) < 2 or len(design.ranked_tokens) < 2:
        return Missing("An order along training needs two models with two checkpoints in common.")
    curves = ranked_curves(design, point_values(design))
    ordering = size_ordering(curves, design.larger_pairs)
    unknown = bool(np.isnan(design.ranked_tokens).any())
    unsettled = "Tokens are unknown." if unknown else "Models tie at the last checkpoint: their order cannot settle."
    alone = Missing("No two models differ in size only.")
    drawn = result.resampled if isinstance(result.resampled, Missing) else ranked_curves(design, result.resampled)
    deviations = drawn if isinstance(drawn, Missing) else _deviations(drawn)
    pairs = np.ones(len(curves) * (len(curves) - 1) // 2, dtype=bool)
    tau = agreement_with_last(curves)
    exact, nearly = (
        known(float(from_then_on(tau, design.ranked_tokens, least)), unsettled) for least in (1.0, STABLE_TAU)
    )
    return Ranking(
        models=design.ranked,
        tokens_b=Missing("Tokens are unknown.") if unknown else design.ranked_tokens,
        agreement_with_last=tau,
        stable_from_b=exact,
        stable_from_interval_b=_interval(design, curves, deviations, exact, 1.0, pairs),
        nearly_stable_tau=STABLE_TAU,
        nearly_stable_from_b=nearly,
        nearly_stable_from_interval_b=_interval(design, curves, deviations, nearly, STABLE_TAU, pairs),
        pairs=len(pairs),
        **_settling(design, curves, deviations),
        size_pairs=ordering.pairs,
        size_order_share=ordering.share if ordering.pairs else alone,
        size_gap=ordering.gap if ordering.pairs else alone,
        separated_from_b=_separated_from(design, drawn, ordering.gap) if ordering.pairs else alone,
        progress=design.ranked_progress,
    )


class _Settling(TypedDict):
    """Fields of `Ranking`."""

    separable_pairs: int | Missing
    settled_from_b: Value
    settled_from_interval_b: Bounds


def _settling(design: Design, curves: np.ndarray, deviations: np.ndarray | Missing) -> _Settling:
    """From when on the models that can be told apart at the end have their final order, `curves` (models, n)."""
    if isinstance(deviations, Missing):
        return {"separable_pairs": deviations, "settled_from_b": deviations, "settled_from_interval_b": deviations}
    separable = separable_pairs(curves[:, -1], deviations[:, -1])
    equal = "No two models can be told apart at the last checkpoint." if not separable.any() else "Tokens are unknown."
    value = known(float(settled_from(curves, design.ranked_tokens, separable, STABLE_TAU)), equal)
    return {
        "separable_pairs": int(separable.sum()),
        "settled_from_b": value,
        "settled_from_interval_b": _interval(design, curves, deviations, value, STABLE_TAU, separable),
    }


def _interval(
    design: Design,
    curves: np.ndarray,
    deviations: np.ndarray | Missing,
    value: Value,
    threshold: float,
    pairs: np.ndarray,
) -> Bounds:
    """When the order of the `pairs` may have settled, given the noise of items."""
    if isinstance(value, Missing):
        return value
    if isinstance(deviations, Missing):
        return deviations
    return settling_interval(curves, deviations, design.ranked_tokens, pairs, threshold)


def _deviations(drawn: np.ndarray) -> np.ndarray:
    """Standard deviations (pairs, n) of the differences between models over `drawn` (resamples, models, n)."""
    first, second = np.triu_indices(drawn.shape[-2], k=1)
    drawn = np.ascontiguousarray(drawn.transpose(1, 2, 0))
    return np.array([np.std(drawn[i] - drawn[j], axis=-1) for i, j in zip(first, second, strict=True)])


def _separated_from(design: Design, drawn: np.ndarray | Missing, gap: np.ndarray) -> Value:
    """Tokens from which larger models are ahead by more than chance of items for good."""
    if isinstance(drawn, Missing):
        return drawn
    draws = size_ordering(drawn, design.larger_pairs).gap
    low = np.array([resampling_interval(float(value), draws[:, at]).low for at, value in enumerate(gap)])
    for_good = np.flip(np.logical_and.accumulate(np.flip(low > 0)))
    if not is_known(end := known(float(design.ranked_tokens[np.argmax(for_good)]), "Tokens are unknown.")):
        return end
    return end if for_good.any() else Missing("Larger models are not ahead by more than chance of items at the end.")
