"""Signal quality and the number of items: of fewer items, and without the noise of items.

Noise lowers signal quality, so that of two benchmarks on which models learn alike the one with more items scores
higher: the same rise of 6 points has about 0.54 with 300 items and 0.89 with 3,000. To compare benchmarks, take both
at the same number of items, or take the noise out.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.studies.signal.statistics.quality import Convention, Ties, rank_correlation, signal_quality

MINIMUM_RELIABILITY = 0.5
GROUPS = 20  # of items, left out in turn


class NoiseFree(NamedTuple):
    """Signal quality of a curve of endlessly many items, and the share of the curve's variance that is no noise."""

    value: float
    reliability: float


def quality_by_items(
    curves: list[np.ndarray],
    sizes: tuple[int, ...],
    draws: int,
    generator: np.random.Generator,
    convention: Convention = "code",
    ties: Ties = "stable",
) -> dict[int, float]:
    """Mean signal quality over models of item scores [(n, items)] if the benchmark had each of the `sizes`.

    Mean over `draws` choices of so many items without replacement, the same items for all models and checkpoints. No
    entry for sizes above the number of items. The choices are of one set of items, so that near its own size they are
    nearly the same choice: that value is as uncertain as the benchmark's own.
    """
    items = curves[0].shape[1]
    found = {}
    for size in (size for size in sizes if size <= items):
        chosen = np.zeros((draws, items))
        for row in chosen:
            row[generator.choice(items, size=size, replace=False)] = 1.0
        # sums of right answers are exact, so that ties between checkpoints stay ties
        quality = [signal_quality(chosen @ scores.T / size, convention, ties).signal_quality for scores in curves]
        found[size] = float(np.mean(quality))
    return found


def noise_free_quality(scores: np.ndarray, ties: Ties = "stable", clusters: np.ndarray | None = None) -> NoiseFree:
    """Signal quality (convention `code`) of item scores (n, items), corrected for the noise of items.

    K = covariance of the n checkpoints over items / items is the noise's covariance in the mean curve x; what items
    have in common at all checkpoints is in it and cancels. With C centring and A, B the segments x[l:] and x[:n-l]:

        reliability     R = 1 - tr(C K) / (x' C x)
        monotonicity    = min(1, max(0, rank correlation) / sqrt(R))
        s_AB            = A'C B - tr(C K_AB), likewise s_AA and s_BB
        autocorrelation = mean over lags of min(1, |s_AB| / sqrt(s_AA s_BB))

    Spearman's (1904) correction for attenuation, with noise known from the items instead of from a repetition. Taken
    to be equal: a rank correlation and a linear one under noise. In simulated benchmarks (14 checkpoints, a rise of
    1.5 or 6 points, random wiggles and random walks; 300 to 3,000 items) it was within 0.15 of the truth on average
    where R was above 0.3 and the rise 6 points or the curve wiggled; it remains too low for a rise of 1.5 points (by
    0.19 with 3,000 items). Value NaN where R is below 0.5, which says that half of the curve is noise, or where a
    segment is nothing but noise. Both NaN for fewer than eight checkpoints, two items, or a constant curve.
    `clusters`: (items,) whole numbers from 0 of subjects that were drawn whole; K is then that of their sums.
    """
    scores = np.asarray(scores, dtype=float)
    n, items = scores.shape
    lags = range(1, n // 4)
    mean = scores.mean(axis=1)
    spread = _centred(mean, mean)
    if not lags or items < 2 or spread <= 0:
        return NoiseFree(np.nan, np.nan)
    noise = np.cov(scores) / items if clusters is None else _clustered_noise(scores - mean[:, None], clusters)
    reliability = 1.0 - _centred_trace(noise) / spread
    if reliability < MINIMUM_RELIABILITY:
        return NoiseFree(np.nan, reliability)
    monotonicity = min(1.0, max(0.0, float(rank_correlation(mean, ties))) / np.sqrt(reliability))
    correlations = []
    for lag in lags:
        late, early = slice(lag, None), slice(None, n - lag)
        covariance = _centred(mean[late], mean[early]) - _centred_trace(noise[late, early])
        parts = [_centred(mean[at], mean[at]) - _centred_trace(noise[at, at]) for at in (late, early)]
        correlations.append(min(1.0, abs(covariance) / np.sqrt(parts[0] * parts[1])) if min(parts) > 0 else np.nan)
    return NoiseFree(0.5 * monotonicity + 0.5 * float(np.mean(correlations)), reliability)


def noise_free_interval(
    curves: list[np.ndarray],
    generator: np.random.Generator,
    ties: Ties = "stable",
    clusters: np.ndarray | None = None,
    level: float = 0.95,
) -> tuple[float, float]:
    """Interval of the mean noise-free quality of models' item scores [(n, items)], over items.

    Items (or whole `clusters` of them) are dealt into 20 groups, and each group is left out in turn, for all models at
    once: mean ± t √((G - 1) / G · Σ (θ₍g₎ - mean θ₍g₎)²), t with G - 1 degrees of freedom, cut to [0, 1] (the delete-a-
    group jackknife, Shao and Tu 1995, section 2.3). A bootstrap would count the noise of the items twice where this
    figure takes it out once. NaN with fewer than 40 items or 20 clusters, or where a group leaves none.
    """
    units = curves[0].shape[1] if clusters is None else int(clusters.max()) + 1
    if units < (2 * GROUPS if clusters is None else GROUPS):
        return np.nan, np.nan
    group = generator.permutation(np.arange(units) % GROUPS)
    group = group if clusters is None else group[clusters]

    def mean_of(kept: np.ndarray) -> float:
        numbers = None if clusters is None else np.unique(clusters[kept], return_inverse=True)[1]
        return float(np.mean([noise_free_quality(scores[:, kept], ties, numbers).value for scores in curves]))

    value = mean_of(np.ones(len(group), dtype=bool))
    left_out = np.array([mean_of(group != place) for place in range(GROUPS)])
    if not np.isfinite([value, *left_out]).all():
        return np.nan, np.nan
    error = np.sqrt((GROUPS - 1) / GROUPS * ((left_out - left_out.mean()) ** 2).sum())
    reach = stats.t.ppf(0.5 + level / 2, GROUPS - 1) * error
    return float(max(0.0, value - reach)), float(min(1.0, value + reach))


def quality_by_errors(
    curves: list[tuple[np.ndarray, np.ndarray]],
    numbers: list[float],
    sizes: tuple[int, ...],
    draws: int,
    generator: np.random.Generator,
    convention: Convention = "code",
    ties: Ties = "stable",
) -> dict[int, float]:
    """As `quality_by_items`, from standard errors: `curves` [(values (n,), errors (n,))] of `numbers` of items each.

    A score of m of N items has the variance se² (N / m - 1) on top of its own, drawn from a normal distribution,
    independently at each checkpoint. Checkpoints share their items, so that true noise moves together and disturbs a
    curve less: the result is too low. No entry for sizes above the smallest number.
    """
    found = {}
    for size in (size for size in sizes if size <= min(numbers)):
        quality = []
        for (values, errors), items in zip(curves, numbers, strict=True):
            noise = errors * np.sqrt(items / size - 1) * generator.standard_normal((draws, len(values)))
            quality.append(signal_quality(values + noise, convention, ties).signal_quality)
        found[size] = float(np.mean(quality))
    return found


def _clustered_noise(residual: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Covariance (n, n) of the mean curve if whole clusters are drawn, from residuals (n, items)."""
    number = int(clusters.max()) + 1
    sums = np.array([np.bincount(clusters, row, number) for row in residual])
    return number / (number - 1) * (sums @ sums.T) / residual.shape[1] ** 2


def _centred(first: np.ndarray, second: np.ndarray) -> float:
    return float((first - first.mean()) @ (second - second.mean()))


def _centred_trace(covariance: np.ndarray) -> float:
    """tr(C K) of a square block: what noise adds to a centred sum of products on average."""
    return float(np.trace(covariance) - covariance.sum() / len(covariance))
