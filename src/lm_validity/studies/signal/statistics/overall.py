"""The weighted overall score, and what its weights decide."""

from dataclasses import dataclass

import numpy as np

from lm_validity.config.sections import E2LM


@dataclass(frozen=True)
class Weights:
    """Weights of signal quality, ranking consistency and compliance (NeurIPS 2025 E2LMC)."""

    signal_quality: float
    ranking_consistency: float
    compliance: float

    def as_array(self) -> np.ndarray:
        """(3,): signal quality, ranking consistency and compliance, in the order of `overall_score`'s components."""
        return np.array([self.signal_quality, self.ranking_consistency, self.compliance])


DEFAULT_WEIGHTS = Weights(*E2LM.weights)


def overall_score(components: np.ndarray, weights: Weights = DEFAULT_WEIGHTS) -> np.ndarray:
    """0.5 SQ + 0.1 RC + 0.4 CS for `components` (..., 3) in this order. A missing component makes it NaN."""
    return np.asarray(components, dtype=float) @ weights.as_array()


@dataclass(frozen=True)
class WeightSensitivity:
    """How much the ranking of benchmarks (rows) depends on the weights."""

    share_first: np.ndarray  # share of the weight simplex for which each row has the highest overall; sums to 1
    rank_low: np.ndarray  # 2.5% and 97.5% quantiles of each row's rank, 1 = best
    rank_high: np.ndarray


def weight_sensitivity(components: np.ndarray, draws: int, generator: np.random.Generator) -> WeightSensitivity:
    """Ranks of the rows of `components` (benchmarks, 3) over weights drawn uniformly from the simplex.

    Rows must be finite. Rows that tie for the first place share it.
    """
    components = np.asarray(components, dtype=float)
    if not np.isfinite(components).all():
        raise ValueError("weight sensitivity needs all three components of every row")
    weights = generator.dirichlet(np.ones(components.shape[1]), size=draws)
    overall = weights @ components.T
    first = overall >= overall.max(axis=1, keepdims=True) - 1e-12
    share = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
    ranks = 1 + (overall[:, None, :] > overall[:, :, None]).sum(axis=2)
    low, high = np.quantile(ranks, [0.025, 0.975], axis=0)
    return WeightSensitivity(share, low, high)


def per_item_score_ratio(
    filtered_score: float, filtered_items: int, original_score: float, original_items: int
) -> float:
    """(filtered score / filtered items) / (original score / original items): team Shaikespear's ratio.

    It rises whenever the set shrinks faster than its score, so above 1 it is no evidence that a filter kept
    better items: a random half of a benchmark has a ratio near 2.
    """
    return filtered_score * original_items / (filtered_items * original_score)
