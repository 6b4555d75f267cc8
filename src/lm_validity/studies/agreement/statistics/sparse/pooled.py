"""Agreement where many cells are missing: pooled over pairs of models, alone and assisted by a model's predictions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import PairSigns


@dataclass(frozen=True)
class PooledTau:
    """Agreement over all pairs of benchmarks together, in [-1, 1].

    `mean`: concordant less discordant comparisons over their number; `standard_error`: over models, by the jackknife;
    `comparisons`: (pair of models, pair of benchmarks) with all four cells known; `by_benchmark`: (k,) each benchmark
    with the others. NaN where there is no comparison.
    """

    mean: float
    standard_error: float
    comparisons: int
    by_benchmark: np.ndarray


@dataclass(frozen=True)
class AssistedTau:
    """`pooled` corrected by predictions of every cell; `difference_error`: standard error of their difference."""

    mean: float
    standard_error: float
    difference_error: float
    by_benchmark: np.ndarray


def pooled_tau(signs: PairSigns) -> PooledTau:
    """sum s_pa s_pb / sum k_pa k_pb over pairs of models p and pairs of benchmarks a < b; s the signs, k known.

    Every comparison counts once, so a pair of benchmarks with few models in common weighs as little as it knows. With
    every cell known it is the mean of tau-a over pairs of benchmarks.
    """
    agreeing, number = _products(signs.sign), _products(signs.known)
    return PooledTau(
        mean=float(_ratio(agreeing.sum(), number.sum())),
        standard_error=_jackknife(signs, lambda keep: _ratio(keep(agreeing), keep(number))),
        comparisons=round(number.sum()),
        by_benchmark=_ratio(_with_others(signs.sign).sum(axis=0), _with_others(signs.known).sum(axis=0)),
    )


def assisted_tau(signs: PairSigns, expected: np.ndarray) -> AssistedTau:
    """The pooled tau of `expected` signs over all cells, plus how much the measured comparisons differ from theirs.

    `expected`: (pairs of models, benchmarks) in [-1, 1], P(first better) - P(second better) by a model that did not see
    the two cells themselves. A wrong model costs precision only: what it gets wrong where cells are measured is put
    right (Angelopoulos et al. 2023, prediction-powered inference, pooled). That takes the measured cells to be like the
    others, which random cells are and cheap benchmarks may not be. With every cell known it is `pooled_tau`.
    """
    measured = expected * signs.known
    everywhere, whole = _products(expected), _products(np.ones_like(expected))
    rest, number = _products(signs.sign) - _products(measured), _products(signs.known)

    def assisted(keep: Keep) -> np.ndarray:
        return _ratio(keep(everywhere), keep(whole)) + _ratio(keep(rest), keep(number))

    def difference(keep: Keep) -> np.ndarray:
        return assisted(keep) - _ratio(keep(_products(signs.sign)), keep(number))

    by_model = _ratio(_with_others(expected).sum(axis=0), _with_others(np.ones_like(expected)).sum(axis=0))
    corrected = (_with_others(signs.sign) - _with_others(measured)).sum(axis=0)
    return AssistedTau(
        mean=float(assisted(np.sum)),
        standard_error=_jackknife(signs, assisted),
        difference_error=_jackknife(signs, difference),
        by_benchmark=by_model + _ratio(corrected, _with_others(signs.known).sum(axis=0)),
    )


def pooled_left_out(signs: PairSigns, clusters: np.ndarray) -> np.ndarray:
    """(1 + clusters,) pooled taus: over everything, then without each cluster of models; NaN without a comparison.

    `clusters`: (models,) whole numbers, such as families or, to leave out one model at a time, the models themselves.
    """
    agreeing, number = _products(signs.sign), _products(signs.known)
    without_each = _without_each(signs, clusters)
    whole = _ratio(agreeing.sum(), number.sum())
    return np.concatenate([[whole], _ratio(without_each(agreeing), without_each(number))])


Keep = Callable[[np.ndarray], np.ndarray]  # takes sums of what pairs of models have


def _products(values: np.ndarray) -> np.ndarray:
    """(pairs,) sum over a < b of v_a v_b, from the square of the sum."""
    return (values.sum(axis=1) ** 2 - (values**2).sum(axis=1)) / 2


def _with_others(values: np.ndarray) -> np.ndarray:
    """(pairs, benchmarks) v_a times the sum of the other benchmarks' v."""
    return values * (values.sum(axis=1, keepdims=True) - values)


def _jackknife(signs: PairSigns, estimate: Callable[[Keep], np.ndarray]) -> float:
    """Standard error of an estimate over models, each left out in turn: sqrt((n - 1) / n sum (t_i - mean)²).

    `estimate` makes numbers of sums over pairs of models, and gets the function that takes those sums. Here it takes
    (models,) of them at once: the whole sum less what belongs to pairs with the model.
    """
    models = int(signs.second.max()) + 1 if len(signs.second) else 0
    if models < 3:
        return float("nan")
    values = estimate(_without_each(signs, np.arange(models)))
    return float(np.sqrt((models - 1) / models * ((values - values.mean()) ** 2).sum()))


def _without_each(signs: PairSigns, clusters: np.ndarray) -> Keep:
    """(pairs,) -> (clusters,): the sum without the pairs that have a model of the cluster."""
    first, second, number = clusters[signs.first], clusters[signs.second], int(clusters.max()) + 1

    def without_each(part: np.ndarray) -> np.ndarray:
        twice = np.where(first == second, part, 0.0)
        gone = np.bincount(first, part, number) + np.bincount(second, part, number) - np.bincount(first, twice, number)
        return part.sum() - gone

    return without_each


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, NaN where there is nothing; counts are whole numbers but for rounding."""
    part, whole = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0.5)
