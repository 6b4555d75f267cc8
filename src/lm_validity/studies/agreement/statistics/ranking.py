"""Rank correlation of many score columns at once, with ties, missing values and resampling weights."""

from typing import Literal, NamedTuple

import numpy as np

TauVariant = Literal["a", "b", "c"]


class PairSigns(NamedTuple):
    """Which model of each pair is better, by column.

    `sign`: (pairs, columns) in {-1, 0, 1}, 0 where tied or unknown. `known`: (pairs, columns), 1 where both
    models have a score. `first`, `second`: (pairs,) indices of the pair's models, first < second.
    """

    sign: np.ndarray
    known: np.ndarray
    first: np.ndarray
    second: np.ndarray


def pair_signs(scores: np.ndarray) -> PairSigns:
    """Signs of all pairwise differences of `scores` (models, columns), NaN where missing; ties are equal floats."""
    first, second = np.triu_indices(len(scores), 1)
    difference = scores[first] - scores[second]
    known = np.isfinite(difference)
    sign = np.sign(np.where(known, difference, 0.0))
    return PairSigns(sign, known.astype(float), first, second)


def kendall_tau_matrix(
    signs: PairSigns,
    weights: np.ndarray | None = None,
    variant: TauVariant = "b",
    others: PairSigns | None = None,
) -> np.ndarray:
    """Kendall's tau between all columns: a (columns, columns of `others`) array; `others` is `signs` by default.

    With a, b the signs of a pair of models i < j in two columns and w its weight, over pairs known in both,

        tau_a = sum w a b / sum w
        tau_b = sum w a b / sqrt(sum w a² · sum w b²)
        tau_c = 2 m sum w a b / (n² (m - 1)),  m the smaller number of distinct values of the two columns

    (Kendall 1945; Stuart 1953). `weights`: (models,) multiplicities of a resample; a pair weighs w_i w_j,
    and a model is never compared with its own copy, so that resampling creates no ties. Unweighted, tau_b
    is `scipy.stats.kendalltau`'s of the models known in both columns. tau_c takes the numbers of models and
    of distinct values from the pairs, unweighted only.

    NaN where a column has no untied pair among those known in both.
    """
    others = signs if others is None else others
    weighted = _pair_weights(signs, weights)
    left = signs.sign if weighted is None else signs.sign * weighted
    product = left.T @ others.sign
    if variant == "b":
        untied_left = np.abs(left).T @ others.known
        untied_right = (signs.known if weighted is None else signs.known * weighted).T @ np.abs(others.sign)
        scale = np.sqrt(untied_left * untied_right)
    elif variant == "a":
        scale = (signs.known if weighted is None else signs.known * weighted).T @ others.known
    else:
        if weighted is not None:
            raise ValueError("tau-c is defined for unweighted models only")
        scale = _tau_c_scale(signs, others)
    return np.divide(product, scale, out=np.full(product.shape, np.nan), where=scale > 0)


def kendall_tau(x: np.ndarray, y: np.ndarray) -> float:
    """tau-b of two score vectors (models,); models missing in either are left out; NaN where undefined."""
    return float(kendall_tau_matrix(pair_signs(np.column_stack([x, y])))[0, 1])


def average_ranks(scores: np.ndarray) -> np.ndarray:
    """Ranks down the columns of `scores` (models, columns), 1 = highest, ties averaged; NaN stays NaN."""
    from scipy.stats import rankdata

    return rankdata(-np.asarray(scores, dtype=float), axis=0, nan_policy="omit")


def _pair_weights(signs: PairSigns, weights: np.ndarray | None) -> np.ndarray | None:
    if weights is None:
        return None
    weights = np.asarray(weights, dtype=float)
    return (weights[signs.first] * weights[signs.second])[:, None]


def _tau_c_scale(signs: PairSigns, others: PairSigns) -> np.ndarray:
    """n² (m - 1) / (2 m) by pair of columns, with n and m counted among the models known in both."""
    shape = (signs.sign.shape[1], others.sign.shape[1])
    models = int(signs.second.max()) + 1 if len(signs.second) else 0
    scale = np.zeros(shape)
    for i, j in np.ndindex(shape):
        both = (signs.known[:, i] * others.known[:, j]) > 0
        n = len(np.union1d(signs.first[both], signs.second[both]))
        m = min(_distinct(signs, i, both, models), _distinct(others, j, both, models))
        scale[i, j] = n**2 * (m - 1) / (2 * m) if m > 1 else 0.0
    return scale


def _distinct(signs: PairSigns, column: int, both: np.ndarray, models: int) -> int:
    """Number of distinct values of a column: models that no earlier one equals."""
    tied = both & (signs.sign[:, column] == 0)
    present = np.zeros(models, dtype=bool)
    present[signs.first[both]] = present[signs.second[both]] = True
    present[signs.second[tied]] = False
    return int(present.sum())


def resampled_kendall_tau(
    signs: PairSigns, weights: np.ndarray, others: PairSigns | None = None, memory: int = 2**24
) -> np.ndarray:
    """`kendall_tau_matrix` (tau-b) of many resamples at once: (resamples, columns, columns of `others`).

    `weights`: (resamples, models) multiplicities. The sums over pairs are matrix products of the pairs'
    weights with the pairs' products of signs. `memory` bounds the number of elements of an intermediate
    array.
    """
    others = signs if others is None else others
    pairs, columns = signs.sign.shape
    tau = np.empty((len(weights), columns, others.sign.shape[1]))
    untied, untied_others = np.abs(signs.sign), np.abs(others.sign)
    all_known = bool(signs.known.all() and others.known.all())
    step = max(1, memory // max(pairs, 1))
    for start in range(0, len(weights), step):
        chunk = np.asarray(weights[start : start + step], dtype=float)
        pair_weights = chunk[:, signs.first] * chunk[:, signs.second]
        right_complete = pair_weights @ untied_others if all_known else None
        for j in range(columns):
            product = pair_weights @ (signs.sign[:, [j]] * others.sign)
            if all_known:
                left, right = (pair_weights @ untied[:, j])[:, None], right_complete
            else:
                left = pair_weights @ (untied[:, [j]] * others.known)
                right = pair_weights @ (signs.known[:, [j]] * untied_others)
            scale = np.sqrt(left * right)
            target = tau[start : start + step, j]
            target.fill(np.nan)
            np.divide(product, scale, out=target, where=scale > 0)
    return tau
