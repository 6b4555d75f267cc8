"""Which models a benchmark tells apart: shares of their pairs, the smallest gap that is found, the items it takes."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.statistics import Interval
from lm_validity.studies.agreement.statistics.noise import LEAST_MODELS, NONE, Estimate

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
