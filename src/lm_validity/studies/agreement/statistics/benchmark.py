"""What one benchmark tells: its reliability, its agreement with the others, and which models it tells apart."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.statistics import Interval
from lm_validity.studies.agreement.statistics import ranking, resampling
from lm_validity.studies.agreement.statistics.noise import ExpectedSigns, limits_of, tables_left_out

NONE = Interval(float("nan"), float("nan"))


class Estimate(NamedTuple):
    """A value and its 95% interval, NaN where there is none."""

    value: float
    interval: Interval[float]


def _by_pair(taus: np.ndarray, columns: int) -> np.ndarray:
    """(masks, columns, columns) from `taus` (masks, pairs of columns), NaN on the diagonal."""
    by_pair = np.full((len(taus), columns, columns), np.nan)
    first, second = np.triu_indices(columns, 1)
    by_pair[:, first, second] = by_pair[:, second, first] = taus
    return by_pair


LEAST_MODELS = 3


def reliability(scores: np.ndarray, stderr: np.ndarray) -> Estimate:
    """Share of the variance of `scores` (models,) that is no error of the items: 1 - mean(stderr²) / var(scores).

    Spearman's reliability of one benchmark, over the models with a score and a standard error; below 0 it counts as 0.
    The interval is a jackknife over models on the scale log(1 - reliability). It fails where one model is far from all
    others. NaN for fewer than 3 models, or scores without a spread.
    """
    is_known = np.isfinite(scores) & np.isfinite(stderr)
    values, errors = scores[is_known], stderr[is_known] ** 2
    if len(values) < LEAST_MODELS or np.ptp(values) == 0:
        return Estimate(float("nan"), NONE)
    share = errors.mean() / values.var(ddof=1)
    interval = NONE
    if share > 0 and len(values) > LEAST_MODELS:
        other_benchmarks = np.nonzero(~np.eye(len(values), dtype=bool))[1].reshape(len(values), -1)
        with np.errstate(divide="ignore"):
            left_out = errors[other_benchmarks].mean(axis=1) / values[other_benchmarks].var(axis=1, ddof=1)
            low, high = resampling.jackknife_interval(float(np.log(share)), np.log(left_out))
        interval = Interval(max(0.0, float(1 - np.exp(high))), max(0.0, float(1 - np.exp(low))))
    return Estimate(float(max(0.0, 1 - share)), interval)


def tau_with_others(scores: np.ndarray, in_range: np.ndarray) -> list[Estimate]:
    """Each benchmark's mean tau-b with the others over the pairs of models in the mask `in_range` (models, models).

    `scores`: (models, benchmarks), more is better, NaN where missing. The interval leaves out one model at a time
    (`transformed_interval`). NaN where no other benchmark has a tau, and without an interval where a model left out
    leaves none.
    """
    return taus_with_others(scores, [in_range])[0]


def taus_with_others(scores: np.ndarray, in_ranges: list[np.ndarray]) -> list[list[Estimate]]:
    """`tau_with_others` of each of some masks, for which the signs of all pairs of models are summed together."""
    signs, concerned = ranking.pair_signs(scores), [np.flatnonzero(mask.any(axis=1)) for mask in in_ranges]
    estimates = [[Estimate(float("nan"), NONE)] * scores.shape[1]] * len(in_ranges)
    enough = [index for index, models in enumerate(concerned) if len(models) >= LEAST_MODELS]
    if not enough:
        return estimates
    masks = np.array([in_ranges[index][signs.first, signs.second] for index in enough])
    means = np.array(  # (1 + models, masks, benchmarks)
        [
            ranking.finite_mean(_by_pair(taus, scores.shape[1]), axis=2)
            for taus, _ in tables_left_out(signs, None, masks, np.arange(len(scores)))
        ]
    )
    for row, index in enumerate(enough):
        whole_taus, left_out = means[0, row], means[1:, row][concerned[index]]
        intervals = resampling.transformed_interval(whole_taus, np.ascontiguousarray(left_out).T, "tau")
        estimates[index] = [
            Estimate(float(tau), Interval(float(low), float(high)))
            for tau, low, high in zip(whole_taus, *intervals, strict=True)
        ]
    return estimates


def columns_against(scores: np.ndarray, assumed: np.ndarray) -> np.ndarray:
    """(k,) True for columns of `scores` (models, k) whose direction is `assumed` (k,) and that are on the other side of
    the first eigenvector of the matrix of taus than the columns whose direction is known, or than most."""
    tau = np.nan_to_num(ranking.kendall_tau_matrix(ranking.pair_signs(scores)))
    if not assumed.any() or len(tau) < 3:
        return np.zeros(len(tau), dtype=bool)
    side = np.linalg.eigh(tau)[1][:, -1]
    side_told = side[~assumed].sum() if (np.abs(side[~assumed]) > 1e-9).any() else np.sign(side).sum()
    result: np.ndarray = assumed & (side * (1.0 if side_told >= 0 else -1.0) < -1e-9)
    return result


def opposed_columns(scores: np.ndarray, against: np.ndarray) -> np.ndarray:
    """(k,) True for those of the columns `against` (k,) the others that would surely agree with them if they counted
    the other way: turned around, the mean tau with the others has an interval above 0 or, where it has none, is above
    0.5."""
    if not against.any():
        return against
    estimates = tau_with_others(scores * np.where(against, -1.0, 1.0), ~np.eye(len(scores), dtype=bool))
    surely = [
        estimate.interval.low > 0 if np.isfinite(estimate.interval.low) else estimate.value > 0.5
        for estimate in estimates
    ]
    result: np.ndarray = against & np.array(surely)
    return result


def ceiling_with_others(signs: ranking.PairSigns, expected: ExpectedSigns | None, in_range: np.ndarray) -> np.ndarray:
    """(benchmarks,) each one's noise ceiling: its mean tau with the others if all ordered the models identically.

    Over the pairs of models in the mask `in_range` (models, models), from the `expected` signs of tables with one
    order. NaN for a benchmark without standard errors, and without `expected`.
    """
    ceilings = np.full(signs.sign.shape[1], np.nan)
    if expected is None:
        return ceilings
    limits = limits_of(expected, in_range[signs.first, signs.second][None])
    ceilings[expected.columns] = ranking.finite_mean(_by_pair(limits, len(expected.columns))[0], axis=1)
    return ceilings


# ----------------------------------------------------------------------------------------------------------------------
# Which pairs of models it tells apart, and how many items it would take.

POWER = float(stats.norm.ppf(0.975) + stats.norm.ppf(0.8))  # standard errors: found four times out of five at p < .05


def separated_shares(significant: np.ndarray, is_known: np.ndarray, in_range: np.ndarray) -> list[Estimate]:
    """Of each benchmark the share of the pairs of models in the mask `in_range` (models, models) that it separates.

    `significant`, `is_known`: (benchmarks, models, models), symmetric: whether a pair differs significantly, and
    whether that is known. Pairs that share a model are not independent. So the interval is that of Korn and Graubard
    (1998, Survey Methodology 24:193-201): Clopper and Pearson's with the number of independent pairs that has the
    jackknife's variance over models, at least half the models: so many pairs share none. Where all pairs are separated,
    or none is, there is no such variance, and the number is that of the models. It fails there if single models decide
    whether a pair is separated, whatever the other one. NaN for fewer than 3 models.
    """
    rows = [_separated(*rows_of_protocol, in_range) for rows_of_protocol in zip(significant, is_known, strict=True)]
    share, pairs, models, variance = np.array(rows, dtype=float).reshape(-1, 4).T
    enough = models >= LEAST_MODELS
    freedom = np.maximum(models, LEAST_MODELS) - 1
    independent = np.divide(share * (1 - share), variance, out=models.copy(), where=variance > 0)
    quantile = stats.norm.ppf(0.975) / stats.t.ppf(0.975, freedom)
    between = np.maximum(models / 2, np.minimum(independent * quantile**2, pairs))
    independent = np.where((share > 0) & (share < 1), between, independent)
    right, wrong = share * independent, (1 - share) * independent
    with np.errstate(invalid="ignore"):
        low = np.where(right > 0, stats.beta.ppf(0.025, right, wrong + 1), 0.0)
        high = np.where(wrong > 0, stats.beta.ppf(0.975, right + 1, wrong), 1.0)
    return [
        Estimate(float(value), Interval(float(least), float(most_pairs))) if some else Estimate(float("nan"), NONE)
        for value, least, most_pairs, some in zip(share, low, high, enough, strict=True)
    ]


class _Separation(NamedTuple):
    """The share of the `pairs` of `models` that are separated, and the jackknife's variance of it; zeros for fewer than
    3 models."""

    share: float
    pairs: int
    models: int
    variance: float


def _separated(significant: np.ndarray, is_known: np.ndarray, in_range: np.ndarray) -> _Separation:
    """All arguments (models, models)."""
    counted = is_known & in_range
    pairs_of_model = counted.sum(axis=1)
    pairs, models = int(pairs_of_model.sum()) // 2, int((pairs_of_model > 0).sum())
    if models < LEAST_MODELS:
        return _Separation(0.0, pairs, models, 0.0)
    separated = (counted & significant).sum(axis=1)
    share = separated.sum() / 2 / pairs
    pairs_without = pairs - pairs_of_model
    left_out = np.divide(
        separated.sum() / 2 - separated, pairs_without, out=np.full(len(pairs_of_model), share), where=pairs_without > 0
    )[pairs_of_model > 0]
    return _Separation(share, pairs, models, (models - 1) / models * ((left_out - left_out.mean()) ** 2).sum())


def smallest_difference(stderr: np.ndarray) -> float:
    """The difference of two scores that a test finds four times out of five: 2.8 · median of √(se_i² + se_j²).

    `stderr`: (models,). As though the two models had answered different items; a test paired over items sees smaller
    ones. NaN for fewer than 2 standard errors.
    """
    errors = stderr[np.isfinite(stderr)]
    if len(errors) < 2:
        return float("nan")
    first, second = np.triu_indices(len(errors), 1)
    return POWER * float(np.median(np.sqrt(errors[first] ** 2 + errors[second] ** 2)))


class TypicalDifference(NamedTuple):
    """The root mean square difference of two models without noise, and the mean variance of the noise."""

    difference: float
    noise: float


def typical_difference(scores: np.ndarray, stderr: np.ndarray, in_range: np.ndarray) -> TypicalDifference:
    """The typical true difference between two models of a pair: the root mean square of scores' differences, less
    noise.

    `scores`, `stderr`: (models,), NaN where unknown; `in_range`: (models, models) mask of the pairs. The noise of a
    pair is se_i² + se_j², and its mean is taken off the mean square. 0 where noise is all there is; NaN without a pair
    that has scores and standard errors.
    """
    first, second = np.nonzero(np.triu(in_range, 1))
    square, noise = (scores[first] - scores[second]) ** 2, stderr[first] ** 2 + stderr[second] ** 2
    is_known = np.isfinite(square) & np.isfinite(noise)
    if not is_known.any():
        return TypicalDifference(float("nan"), float("nan"))
    mean_noise = float(noise[is_known].mean())
    return TypicalDifference(float(np.sqrt(max(0.0, float(square[is_known].mean()) - mean_noise))), mean_noise)


def items_needed(items: float, difference: float, noise: float, training: float = 0.0) -> float:
    """Items with which a test finds `difference` four times out of five, from `items` and the noise of a pair there.

    `training`: variance of the difference that no item takes away. Infinite where it alone hides the difference.
    """
    room = difference**2 / POWER**2 - training
    return items * noise / room if room > 0 else float("inf")
