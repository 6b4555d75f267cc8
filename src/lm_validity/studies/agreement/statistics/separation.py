"""What one benchmark can tell apart, as functions of arrays: reliability, separated pairs of models, agreement."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.studies.agreement.statistics.noise import (
    ExpectedSigns,
    jackknife_interval,
    taus_left_out,
    transformed_interval,
)
from lm_validity.studies.agreement.statistics.ranking import PairSigns, finite_mean
from lm_validity.studies.agreement.statistics.resampling import Interval

LEAST_MODELS = 3
POWER = float(stats.norm.ppf(0.975) + stats.norm.ppf(0.8))  # standard errors: found four times out of five at p < .05
NONE = Interval(float("nan"), float("nan"))


class Estimate(NamedTuple):
    """A value and its 95% interval, NaN where there is none."""

    value: float
    interval: Interval[float]


def reliability(scores: np.ndarray, stderr: np.ndarray) -> Estimate:
    """Share of the variance of `scores` (models,) that is no error of the items: 1 - mean(stderr²) / var(scores).

    Spearman's reliability of one benchmark, over the models with a score and a standard error; below 0 it counts as 0.
    The interval is a jackknife over models on the scale log(1 - reliability). It fails where one model is far from all
    others. NaN for fewer than 3 models, or scores without a spread.
    """
    known = np.isfinite(scores) & np.isfinite(stderr)
    values, errors = scores[known], stderr[known] ** 2
    if len(values) < LEAST_MODELS or np.ptp(values) == 0:
        return Estimate(float("nan"), NONE)
    share = errors.mean() / values.var(ddof=1)
    interval = NONE
    if share > 0 and len(values) > LEAST_MODELS:
        parts = [np.delete(values, i) for i in range(len(values))]
        with np.errstate(divide="ignore"):
            left_out = [np.delete(errors, i).mean() / part.var(ddof=1) for i, part in enumerate(parts)]
            low, high = jackknife_interval(float(np.log(share)), np.log(left_out))
        interval = Interval(max(0.0, float(1 - np.exp(high))), max(0.0, float(1 - np.exp(low))))
    return Estimate(float(max(0.0, 1 - share)), interval)


def separated_share(significant: np.ndarray, known: np.ndarray, within: np.ndarray) -> Estimate:
    """Share of the pairs of models in the mask `within` that the benchmark separates.

    All (models, models), symmetric: whether a pair differs significantly, whether that is known, and the mask. Pairs
    that share a model are not independent. So the interval is that of Korn and Graubard (1998, Survey Methodology
    24:193-201): Clopper and Pearson's with the number of independent pairs that has the jackknife's variance over
    models, at least half the models: so many pairs share none. Where all pairs are separated, or none is, there is no
    such variance, and the number is that of the models. It fails there if single models decide whether a pair is
    separated, whatever the other one. NaN for fewer than 3 models.
    """
    counted = np.triu(known & within, 1)
    pairs, models = int(counted.sum()), int((counted | counted.T).any(axis=1).sum())
    if models < LEAST_MODELS:
        return Estimate(float("nan"), NONE)
    hits = (counted | counted.T) & significant
    each, found = (counted | counted.T).sum(axis=1), hits.sum(axis=1)
    share = found.sum() / 2 / pairs
    rest = pairs - each
    left_out = np.divide(found.sum() / 2 - found, rest, out=np.full(len(each), share), where=rest > 0)[each > 0]
    variance = (models - 1) / models * ((left_out - left_out.mean()) ** 2).sum()
    independent = share * (1 - share) / variance if variance > 0 else models
    if 0 < share < 1:
        quantile = stats.norm.ppf(0.975) / stats.t.ppf(0.975, models - 1)
        independent = max(models / 2, min(independent * quantile**2, pairs))
    right, wrong = share * independent, (1 - share) * independent
    low = stats.beta.ppf(0.025, right, wrong + 1) if right > 0 else 0.0
    high = stats.beta.ppf(0.975, right + 1, wrong) if wrong > 0 else 1.0
    return Estimate(float(share), Interval(float(low), float(high)))


def tau_with_others(scores: np.ndarray, within: np.ndarray) -> list[Estimate]:
    """Each benchmark's mean tau-b with the others over the pairs of models in the mask `within` (models, models).

    `scores`: (models, benchmarks), more is better, NaN where missing. The interval leaves out one model at a time
    (`transformed_interval`). NaN where no other benchmark has a tau, and without an interval where a model left out
    leaves none.
    """
    models, columns = scores.shape
    product, untied = np.zeros((2, models, columns, columns))
    for i in range(models):
        difference = scores[i] - scores[within[i]]
        known = np.isfinite(difference)
        sign = np.sign(np.where(known, difference, 0.0))
        product[i] = sign.T @ sign
        untied[i] = np.abs(sign).T @ known
    # each pair of models was met twice; without a model its pairs are gone
    whole = _mean_tau(product.sum(axis=0) / 2, untied.sum(axis=0) / 2)
    concerned = np.flatnonzero(within.any(axis=1))
    left_out = np.array(
        [_mean_tau(product.sum(axis=0) / 2 - product[i], untied.sum(axis=0) / 2 - untied[i]) for i in concerned]
    )
    if len(concerned) < LEAST_MODELS:
        return [Estimate(float("nan"), NONE)] * columns
    return [
        Estimate(float(whole[j]), transformed_interval(float(whole[j]), left_out[:, j], "tau")) for j in range(columns)
    ]


def _mean_tau(product: np.ndarray, untied: np.ndarray) -> np.ndarray:
    """(benchmarks,) mean over the others, NaN where there is none."""
    scale = np.sqrt(untied * untied.T)
    tau = np.divide(product, scale, out=np.full(product.shape, np.nan), where=scale > 0.5)
    np.fill_diagonal(tau, np.nan)
    return finite_mean(tau, axis=1)


def ceiling_with_others(signs: PairSigns, expected: ExpectedSigns | None, within: np.ndarray) -> np.ndarray:
    """(benchmarks,) each one's noise ceiling: its mean tau with the others if all ordered the models identically.

    Over the pairs of models in the mask `within` (models, models), from the `expected` signs of tables with one order.
    NaN for a benchmark without standard errors, and without `expected`.
    """
    ceilings = np.full(signs.sign.shape[1], np.nan)
    if expected is None:
        return ceilings
    nothing_left_out = np.zeros(len(within), dtype=int)
    _, limits = taus_left_out(signs, expected, within[signs.first, signs.second], nothing_left_out)
    by_pair = np.full((len(expected.columns),) * 2, np.nan)
    first, second = np.triu_indices(len(by_pair), 1)
    by_pair[first, second] = by_pair[second, first] = limits[:, 0]
    ceilings[expected.columns] = finite_mean(by_pair, axis=1)
    return ceilings


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


def typical_difference(scores: np.ndarray, stderr: np.ndarray, within: np.ndarray) -> tuple[float, float]:
    """(root mean square difference of the pairs of models in the mask, without noise; mean variance of the noise).

    The noise of a pair is se_i² + se_j², and its mean is taken off the mean square. 0 where noise is all there is; NaN
    without a pair that has scores and standard errors.
    """
    first, second = np.nonzero(np.triu(within, 1))
    square, noise = (scores[first] - scores[second]) ** 2, stderr[first] ** 2 + stderr[second] ** 2
    known = np.isfinite(square) & np.isfinite(noise)
    if not known.any():
        return float("nan"), float("nan")
    mean_noise = float(noise[known].mean())
    return float(np.sqrt(max(0.0, float(square[known].mean()) - mean_noise))), mean_noise


def items_needed(items: float, difference: float, noise: float, training: float = 0.0) -> float:
    """Items with which a test finds `difference` four times out of five, from `items` and the noise of a pair there.

    `training`: variance of the difference that no item takes away. Infinite where it alone hides the difference.
    """
    room = difference**2 / POWER**2 - training
    return items * noise / room if room > 0 else float("inf")
