"""Signal quality of learning curves and its uncertainty, the criteria of others beside it, and the overall score."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.stats import rankdata

from lm_validity.config.sections import E2LM, Convention, SignalConventions, Ties
from lm_validity.statistics import Interval

# ----------------------------------------------------------------------------------------------------------------------
# Is a score above that of guessing, and from when on?
#
# A score x with standard error se is above chance c where (x - c) / se exceeds a normal quantile (one-sided). The
# normal approximation is poor below about ten right answers, and a standard error says nothing of another training
# seed. Chance is that of a guess among the choices: a model that always gives one letter can beat it where right
# answers are unevenly spread over the letters.

QUANTILE = 1.959964  # one-sided 2.5%


def above_chance_from(values: np.ndarray, errors: np.ndarray, chance: float) -> int | None:
    """Index of the first checkpoint from which every score (n,) is above chance by 1.96 standard errors, to the end.

    None where the last one is not. `values` are oriented: higher is better. Since every later checkpoint has to be
    above chance too, a lucky early one does not count; the point found is rather late than early.
    """
    above = values - QUANTILE * errors > chance
    for_good = np.flip(np.logical_and.accumulate(np.flip(above)))
    return int(np.argmax(for_good)) if for_good.any() else None


# ----------------------------------------------------------------------------------------------------------------------
# Monotonicity, autocorrelation and signal quality of learning curves.
#
# Source: "NeurIPS 2025 E2LMC: Early-stage Evaluation for LLM Training Competition" (2026). Its scoring
# notebook and its text differ; both conventions are here:
#
#     what                     "code" (default: the notebook)            "paper" (the text, square root
#     restored) lags                     1 .. floor(n/4) - 1                       1 .. floor(n/4)
#     centring of a segment    on the segment's own mean (Pearson r)     on the mean of the whole curve
#
# The text's printed formula lacks the square root in the denominator; taken literally it gives values far
# above 1.

MINIMUM_CHECKPOINTS = 8  # by `code`: below it floor(n/4) - 1 = 0, there is no lag to correlate over

# Curves whose spread is below rounding error relative to their level are constant
_CONSTANT = 1e-12


@dataclass(frozen=True)
class SignalQuality:
    """Scores of a batch of curves; every array has the curves' leading shape.

    `rank_correlation` is the unclipped monotonicity in [-1, 1], which shows the inverse curves that
    clipping hides. `degenerate` marks constant curves, which score 0 on everything.
    """

    monotonicity: np.ndarray
    autocorrelation: np.ndarray
    signal_quality: np.ndarray
    rank_correlation: np.ndarray
    degenerate: np.ndarray


def fewest_checkpoints(convention: Convention) -> int:
    """The number of checkpoints from which a curve has an autocorrelation, and with it a signal quality."""
    return MINIMUM_CHECKPOINTS if convention == "code" else MINIMUM_CHECKPOINTS // 2


def is_constant(curves: np.ndarray) -> np.ndarray:
    """Whether each curve (..., n) has the same value everywhere, up to rounding."""
    level = np.abs(curves).max(axis=-1)
    result: np.ndarray = np.ptp(curves, axis=-1) <= _CONSTANT * level
    return result


def rank_correlation(curves: np.ndarray, ties: Ties = "stable", degenerate: np.ndarray | None = None) -> np.ndarray:
    """1 - 6 sum_j d_j^2 / (n (n^2 - 1)), d_j = j - rank of x_j: in [-1, 1], shape (...) for curves (..., n).

    `stable` gives tied scores their ranks in order of training, so a tie counts as an increase (the
    notebook's argsort, made independent of the platform); `average` is Spearman's correlation with average
    ranks. A constant curve scores 0: by stable ties it would score 1. NaN for fewer than two scores and
    for a curve with NaN. `degenerate`: which curves are constant, where that has been found.
    """
    n = curves.shape[-1]
    if n < 2:
        return np.full(curves.shape[:-1], np.nan)
    if ties == "stable":
        # sum_j (j - rank_j)^2, summed in order of rank: one sort instead of two
        order = np.argsort(curves, axis=-1, kind="stable")
        result = 1.0 - 6.0 * np.sum((order - np.arange(n)) ** 2, axis=-1) / (n * (n**2 - 1))
    else:
        positions = np.broadcast_to(np.arange(1.0, n + 1), curves.shape)
        result = _pearson(rankdata(curves, axis=-1), positions, level=np.full(curves.shape[:-1], float(n)))
    degenerate = is_constant(curves) if degenerate is None else degenerate
    return np.where(np.isnan(curves).any(axis=-1), np.nan, np.where(degenerate, 0.0, result))


def autocorrelation(
    curves: np.ndarray, convention: Convention = "code", degenerate: np.ndarray | None = None
) -> np.ndarray:
    """Mean over lags l of |r(x[l:], x[:n-l])|: in [0, 1] by `code`; shape (...) for curves (..., n).

    A lag at which a segment is constant has no correlation and counts as 0. With fewer than eight
    checkpoints (`code`; four for `paper`) there is no lag: NaN. By `paper` the segments are centred on the
    whole curve's mean. NaN in, NaN out. `degenerate`: as in `rank_correlation`.
    """
    n = curves.shape[-1]
    last_lag = n // 4 if convention == "paper" else n // 4 - 1
    if n < fewest_checkpoints(convention):
        return np.full(curves.shape[:-1], np.nan)
    degenerate = is_constant(curves) if degenerate is None else degenerate
    if convention == "paper":
        curves = curves - curves.mean(axis=-1, keepdims=True)
    level = np.abs(curves).max(axis=-1)
    total = np.zeros(curves.shape[:-1])
    for lag in range(1, last_lag + 1):
        total += np.abs(_pearson(curves[..., lag:], curves[..., :-lag], level, centred=convention == "paper"))
    return np.where(np.isnan(curves).any(axis=-1), np.nan, np.where(degenerate, 0.0, total / last_lag))


def signal_quality(curves: np.ndarray, options: SignalConventions = E2LM) -> SignalQuality:
    """Scores of learning curves (..., n): higher is better, checkpoints in order of training.

        monotonicity    = max(0, rank correlation of score and checkpoint)
        autocorrelation = mean |correlation of the curve with itself, some checkpoints later|
        signal quality  = (monotonicity + autocorrelation) / 2

    White noise does not score 0: for n = 14 its mean is 0.168, for n = 27 it is 0.119
    (`noise_levels`).
    """
    degenerate = is_constant(curves)
    correlation = rank_correlation(curves, options.ties, degenerate)
    monotonicity = np.maximum(correlation, 0.0)
    coherence = autocorrelation(curves, options.convention, degenerate)
    return SignalQuality(
        monotonicity=monotonicity,
        autocorrelation=coherence,
        signal_quality=0.5 * monotonicity + 0.5 * coherence,
        rank_correlation=correlation,
        degenerate=degenerate,
    )


def _pearson(first: np.ndarray, second: np.ndarray, level: np.ndarray, *, centred: bool = False) -> np.ndarray:
    """Correlation along the last axis; 0 where a side is constant up to rounding of values of size `level`.

    `centred`: the means are already subtracted.
    """
    if not centred:
        first = first - first.mean(axis=-1, keepdims=True)
        second = second - second.mean(axis=-1, keepdims=True)
    covariance = np.einsum("...i,...i->...", first, second)
    squares = np.einsum("...i,...i->...", first, first), np.einsum("...i,...i->...", second, second)
    rounding = first.shape[-1] * (_CONSTANT * level) ** 2
    defined = (squares[0] > rounding) & (squares[1] > rounding)
    result: np.ndarray = np.divide(
        covariance, np.sqrt(squares[0] * squares[1]), out=np.zeros_like(covariance), where=defined
    )
    return result


# ----------------------------------------------------------------------------------------------------------------------
# Signal quality and the number of items: of fewer items, and without the noise of items.
#
# Noise lowers signal quality, so that of two benchmarks on which models learn alike the one with more items scores
# higher: the same rise of 6 points has about 0.54 with 300 items and 0.89 with 3,000. To compare benchmarks, take both
# at the same number of items, or take the noise out.

MINIMUM_RELIABILITY = 0.5
GROUPS = 20  # of items, left out in turn


class NoiseFree(NamedTuple):
    """Signal quality of a curve of endlessly many items, and the share of the curve's variance that is no noise."""

    value: float
    reliability: float


def error_covariance(scores: np.ndarray, clusters: np.ndarray | None = None) -> np.ndarray:
    """Covariances (n, n) of the errors of the means of `scores` (n, items) over the same items.

    With `clusters` (items,), whole numbers from 0 of clusters that are drawn whole: G / (G - 1) times the products of
    the G clusters' sums of residuals, over the squared number of items (Cameron and Miller 2015, J. Human Resources
    50:317).
    """
    items = scores.shape[1]
    residual = scores - scores.mean(axis=1, keepdims=True)
    if clusters is None:
        result: np.ndarray = residual @ residual.T / (items - 1) / items
        return result
    number = int(clusters.max()) + 1
    sums = np.array([np.bincount(clusters, row, number) for row in residual])
    result = number / (number - 1) * (sums @ sums.T) / items**2
    return result


def random_items_quality(
    curves: list[np.ndarray], size: int, draws: int, generator: np.random.Generator, options: SignalConventions = E2LM
) -> np.ndarray:
    """Mean signal quality (draws,) over models of item scores [(n, items)] on random choices of `size` items each.

    A choice is without replacement, the same for all models and checkpoints. NaN for no items.
    """
    if size == 0:
        return np.full(draws, np.nan)
    chosen = np.zeros((draws, curves[0].shape[1]))
    for row in chosen:
        row[generator.choice(chosen.shape[1], size=size, replace=False)] = 1.0
    # sums of right answers are exact, so that ties between checkpoints stay ties
    result: np.ndarray = np.mean(
        [signal_quality(chosen @ scores.T / size, options).signal_quality for scores in curves], axis=0
    )
    return result


def quality_by_items(
    curves: list[np.ndarray],
    sizes: tuple[int, ...],
    draws: int,
    generator: np.random.Generator,
    options: SignalConventions = E2LM,
) -> dict[int, float]:
    """Mean signal quality over models of item scores [(n, items)] if the benchmark had each of the `sizes`.

    Mean over `draws` choices of so many items (`random_items_quality`). No entry for sizes above the number of items.
    The choices are of one set of items, so that near its own size they are nearly the same choice: that value is as
    uncertain as the benchmark's own.
    """
    return {
        size: float(np.mean(random_items_quality(curves, size, draws, generator, options)))
        for size in sizes
        if size <= curves[0].shape[1]
    }


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
    n, items = scores.shape
    lags = range(1, n // 4)
    mean = scores.mean(axis=1)
    spread = _centred(mean, mean)
    if not lags or items < 2 or spread <= 0:
        return NoiseFree(np.nan, np.nan)
    noise = error_covariance(scores, clusters)
    reliability = 1.0 - _centred_trace(noise) / spread
    if reliability < MINIMUM_RELIABILITY:
        return NoiseFree(np.nan, reliability)
    monotonicity = min(1.0, max(0.0, float(rank_correlation(mean, ties))) / np.sqrt(reliability))
    correlations = []
    for lag in lags:
        late, early = slice(lag, None), slice(None, n - lag)
        covariance = _centred(mean[late], mean[early]) - _centred_trace(noise[late, early])
        parts = [_centred(mean[part], mean[part]) - _centred_trace(noise[part, part]) for part in (late, early)]
        correlations.append(min(1.0, abs(covariance) / np.sqrt(parts[0] * parts[1])) if min(parts) > 0 else np.nan)
    return NoiseFree(0.5 * monotonicity + 0.5 * float(np.mean(correlations)), reliability)


def noise_free_interval(
    curves: list[np.ndarray], generator: np.random.Generator, ties: Ties = "stable", clusters: np.ndarray | None = None
) -> Interval[float]:
    """Interval of the mean noise-free quality of models' item scores [(n, items)], over items.

    Items (or whole `clusters` of them) are dealt into 20 groups, and each group is left out in turn, for all models at
    once: mean ± t √((G - 1) / G · Σ (θ₍g₎ - mean θ₍g₎)²), t with G - 1 degrees of freedom, cut to [0, 1] (the delete-a-
    group jackknife, Shao and Tu 1995, section 2.3). A bootstrap would count the noise of the items twice where this
    figure takes it out once. NaN with fewer than 40 items or 20 clusters, or where a group leaves none.
    """
    units = curves[0].shape[1] if clusters is None else int(clusters.max()) + 1
    if units < (2 * GROUPS if clusters is None else GROUPS):
        return Interval(np.nan, np.nan)
    group = generator.permutation(np.arange(units) % GROUPS)
    group = group if clusters is None else group[clusters]

    def mean_of(is_kept: np.ndarray) -> float:
        numbers = None if clusters is None else np.unique(clusters[is_kept], return_inverse=True)[1]
        return float(np.mean([noise_free_quality(scores[:, is_kept], ties, numbers).value for scores in curves]))

    value = mean_of(np.ones(len(group), dtype=bool))
    left_out = np.array([mean_of(group != left_out_group) for left_out_group in range(GROUPS)])
    if not np.isfinite([value, *left_out]).all():
        return Interval(np.nan, np.nan)
    error = np.sqrt((GROUPS - 1) / GROUPS * ((left_out - left_out.mean()) ** 2).sum())
    reach = stats.t.ppf(0.975, GROUPS - 1) * error
    return Interval(float(max(0.0, value - reach)), float(min(1.0, value + reach)))


def quality_by_errors(
    curves: list[tuple[np.ndarray, np.ndarray]],
    numbers: list[float],
    sizes: tuple[int, ...],
    draws: int,
    generator: np.random.Generator,
    options: SignalConventions = E2LM,
) -> dict[int, float]:
    """As `quality_by_items`, from standard errors: `curves` [(values (n,), errors (n,))] of `numbers` of items each.

    A score of m of N items has the variance se² (N / m - 1) on top of its own, drawn from a normal distribution,
    independently at each checkpoint. Checkpoints share their items, so that true noise moves together and disturbs a
    curve less: the result is too low. No entry for sizes above the smallest number.
    """
    by_size = {}
    for size in (size for size in sizes if size <= min(numbers)):
        quality = []
        for (values, errors), items in zip(curves, numbers, strict=True):
            noise = errors * np.sqrt(items / size - 1) * generator.standard_normal((draws, len(values)))
            quality.append(signal_quality(values + noise, options).signal_quality)
        by_size[size] = float(np.mean(quality))
    return by_size


def _centred(first: np.ndarray, second: np.ndarray) -> float:
    return float((first - first.mean()) @ (second - second.mean()))


def _centred_trace(covariance: np.ndarray) -> float:
    """tr(C K) of a square block: what noise adds to a centred sum of products on average."""
    return float(np.trace(covariance) - covariance.sum() / len(covariance))


# ----------------------------------------------------------------------------------------------------------------------
# Uncertainty of curve scores: paired item bootstrap, and what curves that learn nothing would score.

# Resamples per matrix product: 100 x 15,000 items of float64 are 12 MB
_BATCH = 100


def draw_items(
    items: int, resamples: int, generator: np.random.Generator, clusters: np.ndarray | None = None
) -> np.ndarray:
    """How often each item is drawn in each bootstrap resample: counts (resamples, items).

    `clusters`: (items,) whole numbers from 0, such as subjects: whole clusters are drawn, as many as there are, so that
    the number of items differs from draw to draw. Without them the counts sum to `items`.
    """
    if clusters is not None:
        return draw_items(int(clusters.max()) + 1, resamples, generator)[:, clusters]
    counts = np.empty((resamples, items), dtype=np.uint16)
    for start in range(0, resamples, _BATCH):
        size = min(_BATCH, resamples - start)
        drawn = generator.integers(items, size=(size, items)) + items * np.arange(size)[:, None]
        counts[start : start + size] = np.bincount(drawn.ravel(), minlength=size * items).reshape(size, items)
    return counts


def resample_item_means(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Bootstrap means of items: shape (resamples, curves) for `values` (curves, items) and `draw_items`' counts.

    Every curve, i.e. every checkpoint, model and score, uses the same draws: what items have in common (their
    difficulty) cancels in comparisons. Sums of 0/1 items are exact, so that ties between checkpoints stay ties. NaN
    in, NaN out.
    """
    means = np.empty((len(counts), len(values)))
    for start in range(0, len(counts), _BATCH):
        means[start : start + _BATCH] = counts[start : start + _BATCH].astype(float) @ values.T
    result: np.ndarray = means / counts.sum(axis=1, dtype=float)[:, None]
    return result


def resampling_interval(
    value: float, resampled: np.ndarray, minimum: float = -np.inf, maximum: float = np.inf
) -> Interval[float]:
    """From the lower to the higher of two 95% intervals: the resamples' percentiles, and these less twice their bias.

    A resampled curve carries the items' noise twice, once from the data and once from the draw, so a score
    that falls with noise (as signal quality does) is lower in nearly every resample than in the data, and
    the percentile interval need not even hold the value. Moving it by the bias mends that where the curve
    is smooth. Where a curve's score is low by chance it can hardly fall further, so that the bias shows too
    small; moving by twice the bias mends this in part. It held the mean score of newly drawn items in 94% to 100%
    of simulated benchmarks, percentiles alone in 54% to 100%, moved by once the bias in 86% to 100%
    (docs/reference/signal.md). Bounds are cut to [minimum, maximum]. `resampled` is (resamples,); NaN among them are
    left out, and without any the bounds are NaN.
    """
    resampled = resampled[np.isfinite(resampled)]
    if resampled.size == 0 or not np.isfinite(value):
        return Interval(np.nan, np.nan)
    low, high = np.quantile(resampled, [0.025, 0.975])
    bias = resampled.mean() - value
    low, high = np.clip([min(low, low - 2 * bias), max(high, high - 2 * bias)], minimum, maximum)
    # The mean of a very skewed distribution can lie outside its own percentiles
    return Interval(min(float(low), float(value)), max(float(high), float(value)))


def shuffled_quality(
    curves: list[np.ndarray], shuffles: int, generator: np.random.Generator, options: SignalConventions = E2LM
) -> np.ndarray:
    """Signal quality (shuffles, curves) of each curve (n_c,) with its own checkpoints in random order.

    The null is that the order of the checkpoints says nothing (white noise): p-values against it are uniform
    then. A small p excludes white noise only; any slow drift, up or down, is autocorrelated and rejects it too.
    Curves with too few checkpoints give NaN.
    """
    draws = np.empty((shuffles, len(curves)))
    for index, curve in enumerate(curves):
        shuffled = generator.permuted(np.tile(curve, (shuffles, 1)), axis=1)
        draws[:, index] = signal_quality(shuffled, options).signal_quality
    return draws


def walked_quality(
    curves: list[np.ndarray],
    checkpoints: list[tuple[str, ...]],
    draws: int,
    generator: np.random.Generator,
    options: SignalConventions = E2LM,
) -> np.ndarray:
    """Signal quality (draws, curves) of each curve (n_c,) with the signs of its steps drawn at random.

        x*_1 = x_1,  x*_i = x*_(i-1) + s_i (x_i - x_(i-1)),  s_i = +1 or -1 with probability 1/2

    The null is that the curve drifts: its steps are independent of each other and as likely to go down as up (a
    random walk; such sums look like trends, Slutsky 1937). A draw gives one sign to all curves that step to the
    checkpoint of one name (`checkpoints`: the names, a tuple per curve), so that what the models of one benchmark
    have in common stays, and steps keep their sizes, whatever the spacing of checkpoints. White noise has less signal
    quality than its own draws: there the p-value is too large, never too small. Curves with too few checkpoints
    give NaN.
    """
    names = list(dict.fromkeys(name for names_of_curve in checkpoints for name in names_of_curve))
    places = {name: position for position, name in enumerate(names)}
    signs = generator.integers(2, size=(draws, len(names))) * 2.0 - 1.0
    quality = np.empty((draws, len(curves)))
    for index, (curve, names_of_curve) in enumerate(zip(curves, checkpoints, strict=True)):
        steps = np.diff(curve, prepend=curve[:1] if curve.size else 0.0)
        rows = np.array([places[name] for name in names_of_curve], dtype=np.intp)
        walks = curve[:1] + np.cumsum(signs[:, rows] * steps, axis=1)
        quality[:, index] = signal_quality(walks, options).signal_quality
    return quality


def drawn_around(values: np.ndarray, errors: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Normal draws (draws, n) around a curve `values` (n,) with standard errors `errors` (n,): x_i + se_i z_i.

    Stands for resampled items where only standard errors are known. The errors are drawn independently, as though
    every checkpoint had items of its own. Checkpoints share their items, so that their true errors move together and
    disturb the shape of a curve less: intervals from these draws are too wide, and lie too low for a score that noise
    lowers.
    """
    return values + errors * generator.standard_normal((draws, len(values)))


def exceedance_p(observed: float, draws: np.ndarray) -> float:
    """One-sided p: (1 + draws at least as high) / (1 + draws); NaN for an unknown value or null."""
    if draws.size == 0 or not np.isfinite(observed) or not np.isfinite(draws).all():
        return float("nan")
    # Equal outcomes can differ in the last bit of a sum
    return float((1 + np.count_nonzero(draws >= observed - 1e-12)) / (1 + draws.size))


class NoiseLevels(NamedTuple):
    """Mean signal quality of curves that learn nothing."""

    white_noise: float
    random_walk: float


def noise_levels(
    checkpoints: int, draws: int, generator: np.random.Generator, options: SignalConventions = E2LM
) -> NoiseLevels:
    """Mean signal quality of white noise and of a Gaussian random walk of so many checkpoints, by simulation."""
    noise = generator.standard_normal((draws, checkpoints))
    walks = np.cumsum(noise, axis=1)
    white, walk = (signal_quality(curves, options).signal_quality.mean() for curves in (noise, walks))
    return NoiseLevels(float(white), float(walk))


# ----------------------------------------------------------------------------------------------------------------------
# Criteria of others for early-training benchmarks, side by side with signal quality.
#
# FineTasks (FineWeb2, app. A.5): monotonicity, signal-to-noise over seeds, non-randomness, ordering
# consistency. Signal and Noise (arXiv 2508.13144): signal, noise and their ratio over the last checkpoints,
# direction of steps, total variation. Curves are oriented (higher is better); accuracies are fractions. Ratios to
# a mean take its size: bits per byte, a positive score of which less is better, is negative here.

FINETASKS_MONOTONICITY = 0.5
FINETASKS_SIGNAL_TO_NOISE = 20.0
FINETASKS_NON_RANDOMNESS = 3.0
LAST_CHECKPOINTS = 5  # both sources average over the final five
ROUNDING = 1e-12  # residuals of a line through equal scores, relative to these, are below it


def ordering_consistency(curves: np.ndarray) -> float:
    """Mean tau-a (C - D) / pairs between rankings at consecutive checkpoints, second half of training.

    `curves` (models, n). FineTasks observes it without a threshold. NaN for fewer than two models, or fewer
    than two checkpoints in the second half.
    """
    models, n = curves.shape
    late = curves[:, n // 2 :]
    if models < 2 or late.shape[1] < 2:
        return float("nan")
    first, second = np.triu_indices(models, k=1)
    signs = np.sign(late[first] - late[second])
    return float(np.mean(signs[:, 1:] * signs[:, :-1]))


class SeedCriteria(NamedTuple):
    """FineTasks' criteria that compare repeated trainings; NaN where one is unknown."""

    signal_to_noise: float
    non_randomness: float


def seed_criteria(groups: list[np.ndarray], chance: float, best_final: float) -> SeedCriteria:
    """FineTasks' signal-to-noise and non-randomness from groups of `runs` (seeds, n), one group a model.

        signal-to-noise = mean over groups and checkpoints of |mu| / sigma
        non-randomness  = (best final score of any model - chance) / sigma of the last five checkpoints
        sigma^2         = sum over groups and checkpoints of the squared deviations from mu / sum of (seeds - 1)

    mu is the mean over the seeds of a group at a checkpoint. FineTasks averages mu / sigma over checkpoints, each with
    a sigma of its own seeds. With two seeds that mean has no finite expectation: one checkpoint at which they nearly
    agree decides it. So sigma is pooled. NaN without any noise; the second also for an unknown (NaN) chance.
    """
    means = np.concatenate([runs.mean(axis=0) for runs in groups])
    noise = ROUNDING * np.abs(means).max()
    sigma = pooled_deviation(groups)
    late = pooled_deviation([runs[:, -LAST_CHECKPOINTS:] for runs in groups])
    return SeedCriteria(
        float(np.abs(means).mean() / sigma) if sigma > noise else float("nan"),
        float((best_final - chance) / late) if late > noise else float("nan"),
    )


def pooled_deviation(groups: list[np.ndarray]) -> float:
    """Standard deviation between repeated trainings, pooled over groups of `runs` (seeds, n) and their checkpoints."""
    squares = sum(float(((runs - runs.mean(axis=0)) ** 2).sum()) for runs in groups)
    freedom = sum((len(runs) - 1) * runs.shape[1] for runs in groups)
    return float(np.sqrt(squares / freedom)) if freedom else float("nan")


class SignalToNoise(NamedTuple):
    """Signal and Noise's ratio, with its two parts relative to the mean score."""

    signal: float
    noise: float
    ratio: float


def signal_to_noise(curves: list[np.ndarray], training: tuple[float, int] | None = None) -> SignalToNoise:
    """Spread between models over scatter within, from the last five checkpoints of each model's curve (n_m,).

        signal = max_{j,k} |m_j - m_k| / |mean(m)|,  m_j = mean of model j's last checkpoints
        noise  = mean over models of sd of its last checkpoints / |mean(m)|

    The source's script pools all models before taking the deviation, so that its noise holds part of the
    signal; this is the deviation within models, of the residuals from a straight line (progress is no noise; 3 degrees
    of freedom). Checkpoints of one training are more alike than trainings of one model: where these are known,
    `training` is (their standard deviation, its degrees of freedom), and takes the place of the scatter. NaN for fewer
    than two models, a model with fewer than five checkpoints, or last scores of either sign, which have no relative
    spread (margins; all zero); the ratio alone is NaN without any noise.
    """
    nothing = SignalToNoise(float("nan"), float("nan"), float("nan"))
    if len(curves) < 2 or min(map(len, curves)) < LAST_CHECKPOINTS:
        return nothing
    tails = np.array([curve[-LAST_CHECKPOINTS:] for curve in curves])
    level = abs(tails.mean())
    if level == 0 or tails.min() < 0 < tails.max():
        return nothing
    scatter = _residual_deviation(tails) if training is None else np.full(len(tails), training[0])
    signal = float(np.ptp(tails.mean(axis=1)) / level)
    noise = float(scatter.mean() / level)
    return SignalToNoise(signal, noise, signal / noise if noise > ROUNDING else float("nan"))


def signal_to_noise_interval(
    curves: list[np.ndarray], draws: int, generator: np.random.Generator, training: tuple[float, int] | None = None
) -> Interval[float]:
    """95% interval of the ratio for other checkpoints near the end of these trainings; NaN where the ratio is.

        m*_j = m_j + s_j z / sqrt(last),   s*_j = s_j sqrt(chi2(last - 2) / (last - 2))
        draw = ratio^2 / ratio*,           ratio* = range(m*) / mean(s*)

    with m_j the mean and s_j the residual standard deviation of model j's last checkpoints (see `signal_to_noise`): a
    basic bootstrap on the log scale with independent normal residuals about a line. Five checkpoints leave three
    degrees of freedom per model, so that the noise is poorly known, and estimated too low on average; ratio / ratio*
    undoes that. The range of equal models is not 0 but grows with their number: where the ratio is below twice the
    95th percentile of that of equal models, the lower end is 0. Coverage in simulations (400 a row, 2 to 16 models):
    see docs/reference/signal.md. Fails for residuals that are not independent, and does not speak for other models.

    With `training` (see `signal_to_noise`) the interval is for other trainings of these models: s_j is its standard
    deviation with its degrees of freedom, and since another training moves all of a model's last checkpoints together,
    z is not divided by sqrt(last).
    """
    ratio = signal_to_noise(curves, training).ratio
    if not np.isfinite(ratio) or not draws:
        return Interval(float("nan"), float("nan"))
    last = LAST_CHECKPOINTS
    tails = np.array([curve[-last:] for curve in curves])
    if training is None:
        scatter, freedom, size, shape = _residual_deviation(tails), last - 2, last, (draws, len(tails))
    else:
        scatter, freedom, size, shape = np.full(len(tails), training[0]), training[1], 1, (draws, 1)
    disturbance = generator.standard_normal((draws, len(tails))) / np.sqrt(size)
    chi = np.sqrt(generator.chisquare(freedom, shape) / freedom)
    drawn = np.ptp(tails.mean(axis=1) + scatter * disturbance, axis=1) / (scatter * chi).mean(axis=1)
    equal = np.quantile(np.ptp(disturbance, axis=1) / chi.mean(axis=1), 0.95)
    low, high = np.quantile(ratio**2 / drawn, [0.025, 0.975])
    return Interval(float(0.0 if ratio < 2 * equal else min(low, ratio)), float(max(high, ratio)))


def pair_share_interval(share: float, models: int) -> Interval[float]:
    """95% interval of a share of pairs of models for other models like these: Wilson (1927), with models // 2 pairs.

    The m (m - 1) / 2 pairs of m models share their models. A mean over all pairs is at least as precise as one over
    m // 2 pairs without a model in common (Hoeffding 1963, on U-statistics), hence never too narrow by counting pairs
    twice, and often too wide. It holds the share itself. Fails where the models are not drawn alike: sizes of one
    family. At least two models.
    """
    pairs, z = models // 2, QUANTILE
    centre = (share + z**2 / (2 * pairs)) / (1 + z**2 / pairs)
    half = z / (1 + z**2 / pairs) * np.sqrt(share * (1 - share) / pairs + z**2 / (4 * pairs**2))
    # up to rounding, the share lies inside
    return Interval(float(np.clip(centre - half, 0.0, share)), float(np.clip(centre + half, share, 1.0)))


def _residual_deviation(tails: np.ndarray) -> np.ndarray:
    """Standard deviation (models,) of `tails` (models, n) about a line of its own each, n - 2 degrees of freedom."""
    steps = np.arange(tails.shape[1]) - (tails.shape[1] - 1) / 2
    slopes = tails @ steps / (steps @ steps)
    residuals = tails - tails.mean(axis=1, keepdims=True) - slopes[:, None] * steps
    result: np.ndarray = np.sqrt((residuals**2).sum(axis=1) / (tails.shape[1] - 2))
    return result


def step_direction(curves: np.ndarray) -> np.ndarray:
    """(rising - falling) / (rising + falling) steps of each curve (..., n): in [-1, 1]; 0 without any."""
    steps = np.diff(curves, axis=-1)
    rising, falling = (steps > 0).sum(axis=-1), (steps < 0).sum(axis=-1)
    moved = rising + falling
    result: np.ndarray = np.divide(rising - falling, moved, out=np.zeros(moved.shape), where=moved > 0)
    return result


def total_variation(curves: np.ndarray) -> np.ndarray:
    """Mean |step| of each curve (..., n) over its range, less the net rise's part: 0 for a straight climb.

        (sum |x_i+1 - x_i| - |x_n - x_1|) / ((n - 1) range)

    NaN for constant curves.
    """
    wander = np.abs(np.diff(curves, axis=-1)).sum(axis=-1) - np.abs(curves[..., -1] - curves[..., 0])
    spread = np.ptp(curves, axis=-1) * (curves.shape[-1] - 1)
    result: np.ndarray = np.divide(wander, spread, out=np.full(np.shape(wander), np.nan), where=spread > 0)
    return result


# ----------------------------------------------------------------------------------------------------------------------
# What the weights of the overall score decide.


class WeightSensitivity(NamedTuple):
    """By row, (benchmarks,): the share of the simplex for which it has the highest overall score, and the 2.5% and
    97.5% quantiles of its rank, 1 = best."""

    share_first: np.ndarray
    low: np.ndarray
    high: np.ndarray


def weight_sensitivity(components: np.ndarray, draws: int, generator: np.random.Generator) -> WeightSensitivity:
    """How the ranking of the rows of `components` (benchmarks, 3) depends on weights, drawn uniformly from the simplex.

    Rows must be finite. Rows that tie for the first place share it: the shares sum to 1.
    """
    weights = generator.dirichlet(np.ones(components.shape[1]), size=draws)
    overall = weights @ components.T
    first = overall >= overall.max(axis=1, keepdims=True) - 1e-12
    share = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
    ranks = 1 + (overall[:, None, :] > overall[:, :, None]).sum(axis=2)
    low, high = np.quantile(ranks, [0.025, 0.975], axis=0)
    return WeightSensitivity(share, low, high)
