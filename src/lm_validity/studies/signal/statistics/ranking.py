"""Rankings of models along training, and compliance with what their training data favour."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.stats import false_discovery_control, norm

from lm_validity.config.sections import E2LM, Normalisation
from lm_validity.statistics import Interval

# ----------------------------------------------------------------------------------------------------------------------
# Do rankings of early training last? Ranking consistency, and when the final order settles.
#
# Source of ranking consistency: NeurIPS 2025 E2LMC (2026). It compares two architectures of one size: which
# was better between 100 and 200 billion tokens, and at what share of the later checkpoints (220 to 1000
# billion) the same one is. Curves are oriented (higher is better) and have shape (..., n): leading axes are
# resamples.


class WindowMasks(NamedTuple):
    """Which of the checkpoints (n,) lie in the base and in the later window."""

    base: np.ndarray
    later: np.ndarray


@dataclass(frozen=True)
class RankingWindows:
    """Token windows in billions: base is [low, high), later is [low, high].

    With `relative` the windows are scaled from a training of 1000 billion tokens to the last of the given
    checkpoints (base 10% to 20% of it, later 22% to 100%), for trainings that are over before 100 billion
    tokens. The source has no such training; here each pair of models has windows of its own.
    """

    base: tuple[float, float]
    later: tuple[float, float]
    relative: bool = False

    def masks(self, tokens_b: np.ndarray) -> WindowMasks:
        """Which checkpoints (n,) lie in the base and in the later window."""
        if self.relative and tokens_b.size:
            tokens_b = tokens_b / tokens_b.max() * 1000.0
        base = (tokens_b >= self.base[0]) & (tokens_b < self.base[1])
        # A relative window ends at the last checkpoint, whatever the division rounds to
        return WindowMasks(base, (tokens_b >= self.later[0]) & (tokens_b <= self.later[1] * (1 + 1e-12)))


E2LM_WINDOWS = RankingWindows(E2LM.base_window, E2LM.later_window)
MINIMUM_FOR_BLOCKS = 8  # later checkpoints


def pair_consistency(gap: np.ndarray, windows: WindowMasks) -> np.ndarray:
    """Ranking consistency (...) of the gap (..., n) between two models' curves; NaN without either window.

        r = mean over base of the gap;  tau = mean over later of [ (gap > 0) == (r > 0) ]

    Equality counts as "not better" in both windows, so two constant equal curves are consistent (1). Chance is 1/2.
    """
    base, later = windows
    if not base.any() or not later.any():
        return np.full(gap.shape[:-1], np.nan)
    result: np.ndarray = np.mean((gap[..., later] > 0) == (gap[..., base].mean(axis=-1) > 0)[..., None], axis=-1)
    return result


def bootstrap_pair_consistency(gap: np.ndarray, windows: WindowMasks, draws: int, rng: Generator) -> np.ndarray:
    """Ranking consistency (draws,) of a gap (n,) under a block bootstrap of the checkpoints of each window.

    Neighbouring checkpoints of one training share most of it, so the number of independent observations is
    nearer to the number of blocks than to the number of checkpoints. NaN with fewer than eight later checkpoints:
    they make fewer than four blocks, too few to draw from.
    """
    base, later = (gap[window] for window in windows)
    if not len(base) or len(later) < MINIMUM_FOR_BLOCKS:
        return np.full(draws, np.nan)
    base_gap = base[resample_blocks(len(base), draws, rng)].mean(axis=1)
    better = later[resample_blocks(len(later), draws, rng)] > 0
    result: np.ndarray = np.mean(better == (base_gap > 0)[:, None], axis=1)
    return result


def block_length(checkpoints: int) -> int:
    """Checkpoints in a block, n^(1/3) rounded up: the usual order for a block bootstrap."""
    return max(1, int(np.ceil(checkpoints ** (1.0 / 3.0) - 1e-9)))


def resample_blocks(checkpoints: int, resamples: int, generator: Generator) -> np.ndarray:
    """Indices (resamples, checkpoints) of a circular block bootstrap (Politis and Romano 1992).

    Neighbouring checkpoints share most of their training, so they are drawn in blocks
    (`block_length`), not one by one.
    """
    length = block_length(checkpoints)
    blocks = -(-checkpoints // length)
    starts = generator.integers(checkpoints, size=(resamples, blocks, 1))
    indices = (starts + np.arange(length)) % checkpoints
    return indices.reshape(resamples, blocks * length)[:, :checkpoints]


def persistence(gap: np.ndarray) -> int:
    """Checkpoints for which a gap (n,) between two models stays much the same: (1 + r) / (1 - r), rounded up, 1 to n.

    r is the lag-1 autocorrelation about the mean, less its bias in short series, r = (n r' + 1) / (n - 4) (Kendall
    1954), cut to [0, 1): n autocorrelated values say as much about their mean as n (1 - r) / (1 + r) independent ones.
    n for up to four checkpoints and for a constant gap, of which nothing can be told.
    """
    n = len(gap)
    centred = gap - gap.mean()
    power = centred @ centred
    if n <= 4 or power <= n * (1e-12 * np.abs(gap).max()) ** 2:
        return n
    r = (n * (centred[1:] @ centred[:-1]) / power + 1) / (n - 4)
    return n if r >= 1 else int(np.clip(np.ceil((1 + r) / (1 - r) - 1e-9), 1, n))


def coin_flip_consistency(later_checkpoints: int, draws: int, generator: Generator, length: int = 1) -> np.ndarray:
    """Ranking consistency (draws,) of a pair if a fair coin decided each block of its later checkpoints.

    The level that says nothing: its mean is 1/2, its spread that of the blocks, not of the single checkpoints. Blocks
    have the length of a block bootstrap, or `length` (see `persistence`) where that is more. At least one checkpoint.
    """
    length = max(block_length(later_checkpoints), min(length, later_checkpoints))
    coins = generator.integers(2, size=(draws, -(-later_checkpoints // length)))
    result: np.ndarray = np.repeat(coins, length, axis=1)[:, :later_checkpoints].mean(axis=1)
    return result


def agreement_with_last(curves: np.ndarray, counted: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Kendall's tau-a (..., n) of the rankings of `curves` (..., models, n) at each checkpoint and the last.

    tau-a = (concordant - discordant) / pairs, in [-1, 1]; a tie counts 0. `counted` (pairs,): which pairs of
    `np.triu_indices(models, 1)` count, at least one.
    """
    pairs = np.array(np.triu_indices(curves.shape[-2], k=1))[:, counted]
    first, second = (np.take(curves, side, axis=-2) for side in pairs)
    # bytes: with a thousand resamples most of the time is that of moving these numbers
    signs = (first > second).view(np.int8) - (first < second).view(np.int8)
    result: np.ndarray = (signs * signs[..., -1:]).sum(axis=-2, dtype=np.int32) / pairs.shape[1]
    return result


def difference_errors(covariance: np.ndarray) -> np.ndarray:
    """Standard errors (pairs, n) of the differences between models, from covariances (n, models, models) of errors.

    sqrt(c_ii + c_jj - 2 c_ij), pairs in the order of `np.triu_indices(models, 1)`; with independent errors
    sqrt(se_i^2 + se_j^2).
    """
    first, second = np.triu_indices(covariance.shape[-1], k=1)
    variance = covariance[:, first, first] + covariance[:, second, second] - 2 * covariance[:, first, second]
    result: np.ndarray = np.sqrt(np.maximum(variance, 0.0)).T
    return result


def separable_pairs(last: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Which pairs (pairs,) of models differ by more than noise.

    `last` (models,) are their scores, `deviations` (pairs,) the standard errors of the differences
    (`difference_errors`), pairs in the order of `np.triu_indices(models, 1)`. Two-sided normal p-values, false
    discovery rate 5% over the pairs (Benjamini and Hochberg 1995): where all models are equal, any pair passes in one
    world of twenty.
    """
    first, second = np.triu_indices(len(last), k=1)
    if first.size == 0:
        return np.zeros(0, dtype=bool)
    gap = np.abs(last[first] - last[second])
    z = np.divide(gap, deviations, out=np.where(gap > 0, np.inf, 0.0), where=deviations > 0)
    return false_discovery_control(2 * norm.sf(z)) <= 0.05


def settled_from(curves: np.ndarray, tokens_b: np.ndarray, separable: np.ndarray, threshold: float) -> np.ndarray:
    """Tokens (...,) from which tau-a over the `separable` pairs (pairs,) of `curves` (..., models, n) stays high.

    As over all pairs (`agreement_with_last`), but pairs that cannot be told apart at the end have no final order to
    settle into, and stay out: with them, one pair of equal models puts the point at the last checkpoint about every
    second time. NaN without any separable pair.
    """
    if not separable.any():
        return np.full(curves.shape[:-2], np.nan)
    return from_then_on(agreement_with_last(curves, separable), tokens_b, threshold)


def settling_interval(
    curves: np.ndarray, deviations: np.ndarray, tokens_b: np.ndarray, pairs: np.ndarray, threshold: float
) -> Interval[float]:
    """Tokens at which the order of `curves` (models, n) may have settled at the earliest and at the latest.

    `deviations` (pairs, n) are the standard deviations of the differences of `np.triu_indices(models, 1)`, of which
    the mask `pairs` (pairs,) count. A difference within 1.96 of them is open. At the earliest every open difference has
    the final order, at the latest none has it; a pair that is open at the last checkpoint has no known final order and
    agrees at the earliest and disagrees at the latest. So the interval holds `settled_from` of the scores themselves.
    Resampled scores do not serve: they are noisier, and settle later than the scores that they come from. Each
    difference is judged by itself; in simulated trainings 96% to 100% of the intervals held the truth
    (docs/reference/signal.md). NaN without a pair.
    """
    first, second = np.triu_indices(len(curves), k=1)
    gap = (curves[first] - curves[second])[pairs]
    if not len(gap):
        return Interval(np.nan, np.nan)
    sure = np.abs(gap) > norm.ppf(0.975) * deviations[pairs]
    agrees = np.sign(gap) * np.sign(gap[:, -1:])
    stays_sure = sure & sure[:, -1:]
    earliest, latest = (np.where(stays_sure, agrees, guess) for guess in (1.0, -1.0))
    latest[:, -1] = 1.0
    low, high = (float(from_then_on(signs.mean(axis=0), tokens_b, threshold)) for signs in (earliest, latest))
    return Interval(low, high)


def from_then_on(tau: np.ndarray, tokens_b: np.ndarray, threshold: float) -> np.ndarray:
    """Tokens (...,) from which `tau` (..., n) is at least the threshold to the end; NaN where it is not at the end.

    The last checkpoint agrees with itself: the last of `tokens_b` (n,) says that the order changed up to the end. Where
    models tie at the end, tau-a cannot reach 1.
    """
    settled = np.flip(np.logical_and.accumulate(np.flip(tau >= threshold - 1e-12, axis=-1), axis=-1), axis=-1)
    earliest = tokens_b[np.argmax(settled, axis=-1)]
    return np.where(settled.any(axis=-1), earliest, np.nan)


# ----------------------------------------------------------------------------------------------------------------------
# Compliance with the target domain: does training data rich in it raise the score?
#
# Source: NeurIPS 2025 E2LMC (2026), score CS: two models of one size, one trained on science data, one on web
# text. The text writes max(0, mean_i(science_i - web_i)) and says that the formula normalizes; the printed
# values (0.419 where the raw gap is 0.030) need a normalisation that the text does not give. `joint_minmax`
# is the hypothesis that reproduces the published curves best (0.390); the raw gap is always reported beside
# it.


class ScienceLead(NamedTuple):
    """Compliance, and the raw gap in units of the score, which keeps its sign; of the curves' leading shape."""

    value: np.ndarray
    gap: np.ndarray


def compliance(
    science: np.ndarray, web: np.ndarray, normalisation: Normalisation = "joint_minmax", chance: float = np.nan
) -> ScienceLead:
    """Compliance of two curves (..., n) at the same checkpoints, oriented so that higher is better.

        gap   = mean_i (science_i - web_i)
        value = max(0, gap / scale)
        none: scale = 1;  joint_minmax: range of both curves together;  sci_range: range of the science curve
        above_chance: value = max(0, mean_i (science_i - web_i) / (science_i - chance))

    Where the scale is not positive (constant curves, a science curve that touches chance) the value is 0
    for curves that are equal and NaN otherwise. All but `none` are free of the score's unit, hence apply to
    log-probability scores too, and all of these are blind to its size: a small consistent gap on a flat
    curve scores high. NaN without a checkpoint, or without the chance level where it is needed.
    """
    if science.shape[-1] == 0:
        nothing = np.full(science.shape[:-1], np.nan)
        return ScienceLead(nothing, nothing)
    difference = science - web
    gap = difference.mean(axis=-1)
    scale = _scale(science, web, normalisation, chance)
    ratio = np.divide(difference, scale, out=np.full(difference.shape, np.nan), where=scale > 0).mean(axis=-1)
    value = np.where((difference == 0).all(axis=-1) & ~np.isnan(scale).any(axis=-1), 0.0, ratio)
    return ScienceLead(np.maximum(value, 0.0), gap)


def _scale(science: np.ndarray, web: np.ndarray, normalisation: Normalisation, chance: float) -> np.ndarray:
    """What differences are divided by, broadcastable against (..., n)."""
    if normalisation == "none":
        return np.ones(1)
    if normalisation == "joint_minmax":
        result: np.ndarray = np.ptp(np.concatenate([science, web], axis=-1), axis=-1, keepdims=True)
        return result
    if normalisation == "sci_range":
        result = np.ptp(science, axis=-1, keepdims=True)
        return result
    return science - chance
