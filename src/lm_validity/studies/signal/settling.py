"""From when on the models have their final order, with intervals over items."""

import numpy as np

from lm_validity.studies.signal.analysis import BenchmarkResult
from lm_validity.studies.signal.scores import Design, point_values, ranked_curves
from lm_validity.studies.signal.statistics.quality import QUANTILE
from lm_validity.studies.signal.statistics.ranking import (
    agreement_with_last,
    difference_errors,
    from_then_on,
    separable_pairs,
    settled_from,
    settling_interval,
    size_ordering,
)
from lm_validity.studies.signal.summary import Bounds, Ranking, Value, known_bounds
from lm_validity.summaries import Missing, known

STABLE_TAU = 0.8  # a ranking that differs from the final one in one pair of ten


def ranking_of(result: BenchmarkResult) -> Ranking | Missing:
    """The order of the models along training, over the points that they have in common.

    Their final order is that at the last of these points, which need not be the end of any training.
    """
    design, noise = result.design, result.noise
    alignment = design.alignment
    if len(design.scored) < 2 or len(alignment.progress) < 2:
        few = "An order along training needs two models with two points of training in common."
        return Missing(alignment.reason or few)
    curves, tokens = ranked_curves(design, point_values(design)), alignment.tokens_b
    ordering = size_ordering(curves, design.larger_pairs)
    unknown = bool(np.isnan(tokens).any())
    alone = Missing("No two models differ in size only.")
    deviations = noise if isinstance(noise, Missing) else difference_errors(noise)
    pairs = np.ones(len(curves) * (len(curves) - 1) // 2, dtype=bool)
    separable = deviations if isinstance(deviations, Missing) else separable_pairs(curves[:, -1], deviations[:, -1])
    tau = agreement_with_last(curves)
    tied = "Tokens are unknown." if unknown else "Models tie at the last common point: their order cannot settle."
    equal = "Tokens are unknown." if unknown else "No two models can be told apart at the last common point."
    exact, nearly = (known(float(from_then_on(tau, tokens, least)), tied) for least in (1.0, STABLE_TAU))
    told = (
        separable
        if isinstance(separable, Missing)
        else known(float(settled_from(curves, tokens, separable, STABLE_TAU)), equal)
    )

    def interval(value: Value, threshold: float, of: np.ndarray | Missing) -> Bounds:
        """When the order of the pairs may have settled, given the noise of items."""
        if isinstance(value, Missing):
            return value
        if isinstance(deviations, Missing):
            return deviations
        if isinstance(of, Missing):
            return of
        return known_bounds(*settling_interval(curves, deviations, tokens, of, threshold), equal)

    return Ranking(
        models=design.scored,
        tokens_b=Missing("Tokens are unknown.") if unknown else tokens,
        interpolated=[int(number) for number in alignment.interpolated],
        agreement_with_last=tau,
        stable_from_b=exact,
        stable_from_interval_b=interval(exact, 1.0, pairs),
        nearly_stable_tau=STABLE_TAU,
        nearly_stable_from_b=nearly,
        nearly_stable_from_interval_b=interval(nearly, STABLE_TAU, pairs),
        pairs=len(pairs),
        separable_pairs=separable if isinstance(separable, Missing) else int(separable.sum()),
        settled_from_b=told,
        settled_from_interval_b=interval(told, STABLE_TAU, separable),
        size_pairs=ordering.pairs,
        size_order_share=ordering.share if ordering.pairs else alone,
        size_gap=ordering.gap if ordering.pairs else alone,
        separated_from_b=_separated_from(design, noise, ordering.gap) if ordering.pairs else alone,
        progress=alignment.progress,
    )


def separable_at_end(result: BenchmarkResult) -> int | Missing:
    """Pairs of models whose scores at the last checkpoint of each differ by more than noise."""
    if isinstance(result.end_noise, Missing):
        return result.end_noise
    last = np.array([result.design.curves[model].values[-1] for model in result.design.scored])
    return int(separable_pairs(last, difference_errors(result.end_noise[None])[:, 0]).sum())


def _separated_from(design: Design, noise: np.ndarray | Missing, gap: np.ndarray) -> Value:
    """Tokens from which larger models are ahead by more than noise for good: by 1.96 standard errors of the mean gap
    (points,)."""
    if isinstance(noise, Missing):
        return noise
    weights = np.zeros(len(design.scored))
    for smaller, larger in design.larger_pairs:
        weights[[smaller, larger]] += np.array([-1, 1]) / len(design.larger_pairs)
    ahead = gap > QUANTILE * np.sqrt(np.maximum(weights @ noise @ weights, 0.0))
    for_good = np.flip(np.logical_and.accumulate(np.flip(ahead)))
    end = known(float(design.alignment.tokens_b[np.argmax(for_good)]), "Tokens are unknown.")
    if isinstance(end, Missing) or for_good.any():
        return end
    return Missing("Larger models are not ahead by more than noise at the last common point.")
