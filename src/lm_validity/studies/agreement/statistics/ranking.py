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


def kendall_tau_matrix(signs: PairSigns, variant: TauVariant = "b", others: PairSigns | None = None) -> np.ndarray:
    """Kendall's tau between all columns: a (columns, columns of `others`) array; `others` is `signs` by default.

    With a, b the signs of a pair of models i < j in two columns, over the pairs known in both,

        tau_a = mean of a b
        tau_b = sum a b / sqrt(sum a² · sum b²)
        tau_c = 2 m sum a b / (n² (m - 1)),  m the smaller number of distinct values of the two columns

    (Kendall 1945; Stuart 1953). tau_b is `scipy.stats.kendalltau`'s of the models known in both columns. tau_c takes
    the numbers of models and of distinct values from the pairs. `resampled_kendall_tau` is tau_b over many resamples.

    NaN where a column has no untied pair among those known in both.
    """
    others = signs if others is None else others
    product = signs.sign.T @ others.sign
    if variant == "b":
        scale = np.sqrt((np.abs(signs.sign).T @ others.known) * (signs.known.T @ np.abs(others.sign)))
    elif variant == "a":
        scale = signs.known.T @ others.known
    else:
        scale = _tau_c_scale(signs, others)
    return np.divide(product, scale, out=np.full(product.shape, np.nan), where=scale > 0)


def kendall_tau(x: np.ndarray, y: np.ndarray) -> float:
    """tau-b of two score vectors (models,); models missing in either are left out; NaN where undefined."""
    return float(kendall_tau_matrix(pair_signs(np.column_stack([x, y])))[0, 1])


def average_ranks(scores: np.ndarray) -> np.ndarray:
    """Ranks down the columns of `scores` (models, columns), 1 = highest, ties averaged; NaN stays NaN."""
    from scipy.stats import rankdata

    return rankdata(-np.asarray(scores, dtype=float), axis=0, nan_policy="omit")


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


def resampled_kendall_tau(signs: PairSigns, weights: np.ndarray, others: PairSigns | None = None) -> np.ndarray:
    """`kendall_tau_matrix` (tau-b) of many resamples at once: (resamples, columns, columns of `others`).

    `weights`: (resamples, models) multiplicities. A pair of models weighs w_i w_j, so all sums of all resamples are
    one matrix product over the pairs. Sums of whole numbers are exact in single precision up to 4,096 models, above
    which they are taken in double precision.
    """
    symmetric = others is None
    others = signs if others is None else others
    columns, resamples = (signs.sign.shape[1], others.sign.shape[1]), len(weights)
    weights = np.asarray(weights, dtype=np.float32 if weights.shape[1] <= 4096 else np.float64)
    a, b = np.triu_indices(columns[0]) if symmetric else (part.ravel() for part in np.indices(columns))
    all_known = bool(signs.known.all() and others.known.all())
    # where all is known, the untied pairs of a column do not depend on the other column
    product = np.zeros((resamples, len(a)))
    untied = [np.zeros((resamples, size)) for size in (columns if all_known else (len(a), len(a)))]
    step = max(1, 2**19 // max(resamples, 1))  # pairs at a time, so that their weights stay in the cache
    for start in range(0, len(signs.first), step):
        part = slice(start, start + step)
        weight = weights[:, signs.first[part]] * weights[:, signs.second[part]]
        sign, known, sign_other, known_other = (
            values[part].astype(weights.dtype) for values in (signs.sign, signs.known, others.sign, others.known)
        )
        product += weight @ (sign[:, a] * sign_other[:, b])
        left, right = np.abs(sign), np.abs(sign_other)
        if not all_known:
            left, right = left[:, a] * known_other[:, b], known[:, a] * right[:, b]
        untied[0] += weight @ left
        untied[1] += weight @ right
    left, right = (untied[0][:, a], untied[1][:, b]) if all_known else untied
    scale = np.sqrt(left * right)
    tau = np.full((resamples, *columns), np.nan)
    tau[:, a, b] = np.divide(product, scale, out=np.full(scale.shape, np.nan), where=scale > 0)
    if symmetric:
        tau[:, b, a] = tau[:, a, b]
    return tau


def leave_out_kendall_tau(signs: PairSigns, clusters: np.ndarray) -> np.ndarray:
    """(clusters, columns, columns) tau-b without the models of each cluster in turn.

    `clusters`: (models,) whole numbers from 0. Without cluster g, a sum over pairs of models is the whole sum less the
    pairs with a first model in g and those with a second one, plus those counted twice: all clusters together cost
    one pass over the pairs, which is what makes influence quadratic in the number of models, not cubic.
    """
    first, second = clusters[signs.first], clusters[signs.second]
    number = int(clusters.max()) + 1
    within = first == second

    def totals(values: np.ndarray) -> np.ndarray:
        concerned = np.bincount(first, values, number) + np.bincount(second, values, number)
        return values.sum() - concerned + np.bincount(first[within], values[within], number)

    columns = signs.sign.shape[1]
    tau = np.full((number, columns, columns), np.nan)
    for a in range(columns):
        for b in range(a, columns):
            left = totals(np.abs(signs.sign[:, a]) * signs.known[:, b])
            right = totals(signs.known[:, a] * np.abs(signs.sign[:, b]))
            # totals of pairs are whole numbers: what rounding leaves of a sum of none is not a scale
            scale = np.sqrt(np.round(left) * np.round(right))
            product = totals(signs.sign[:, a] * signs.sign[:, b])
            np.divide(product, scale, out=tau[:, a, b], where=scale > 0)
            tau[:, b, a] = tau[:, a, b]
    return tau
