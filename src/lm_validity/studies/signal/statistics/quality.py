"""Signal quality of learning curves and its uncertainty, rankings of models along training, and compliance with what
their training data favour."""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.stats import false_discovery_control, norm, rankdata

from lm_validity.config.sections import E2LM, Convention, Normalisation, SignalConventions, Ties
from lm_validity.statistics import Interval

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
Flags = np.ndarray | None  # of curves (...), boolean


class SignalQuality(NamedTuple):
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
    return np.asarray(np.ptp(curves, axis=-1) <= _CONSTANT * level)


def rank_correlation(curves: np.ndarray, ties: Ties = "stable", degenerate: Flags = None) -> np.ndarray:
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


def autocorrelation(curves: np.ndarray, convention: Convention = "code", degenerate: Flags = None) -> np.ndarray:
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

    White noise does not score 0: for n = 14 its mean is 0.168, for n = 27 it is 0.119, that of a random walk of 14 is
    0.427.
    """
    degenerate = is_constant(curves)
    correlation = rank_correlation(curves, options.ties, degenerate)
    monotonicity = np.maximum(correlation, 0.0)
    coherence = autocorrelation(curves, options.convention, degenerate)
    return SignalQuality(monotonicity, coherence, 0.5 * monotonicity + 0.5 * coherence, correlation, degenerate)


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
    return np.asarray(
        np.divide(covariance, np.sqrt(squares[0] * squares[1]), out=np.zeros_like(covariance), where=defined)
    )


# ----------------------------------------------------------------------------------------------------------------------
# Uncertainty of curve scores: paired item bootstrap, random choices of items, and curves that drift.

Curves = list[np.ndarray]
UNLIMITED, SHARE, NOT_NEGATIVE = Interval(-np.inf, np.inf), Interval(0.0, 1.0), Interval(0.0, np.inf)
# Resamples per matrix product: 100 x 15,000 items of float64 are 12 MB
_BATCH = 100


def error_covariance(scores: np.ndarray, clusters: np.ndarray | None = None) -> np.ndarray:
    """Covariances (n, n) of the errors of the means of `scores` (n, items) over the same items.

    With `clusters` (items,), whole numbers from 0 of clusters that are drawn whole: G / (G - 1) times the products of
    the G clusters' sums of residuals, over the squared number of items (Cameron and Miller 2015, J. Human Resources
    50:317).
    """
    items = scores.shape[1]
    residual = scores - scores.mean(axis=1, keepdims=True)
    if clusters is None:
        return np.asarray(residual @ residual.T / (items - 1) / items)
    number = int(clusters.max()) + 1
    sums = np.array([np.bincount(clusters, row, number) for row in residual])
    return np.asarray(number / (number - 1) * (sums @ sums.T) / items**2)


class Controls(NamedTuple):
    """How many random draws stand beside a number, from which generator, and the conventions of signal quality."""

    generator: Generator
    number: int = 200
    options: SignalConventions = E2LM


def random_items_quality(curves: Curves, size: int, controls: Controls) -> np.ndarray:
    """Mean signal quality (draws,) over models of item scores [(n, items)] on random choices of `size` items each.

    A choice is without replacement, the same for all models and checkpoints. NaN for no items.
    """
    generator, draws, options = controls
    if size == 0:
        return np.full(draws, np.nan)
    chosen = np.zeros((draws, curves[0].shape[1]))
    for row in chosen:
        row[generator.choice(chosen.shape[1], size=size, replace=False)] = 1.0
    # sums of right answers are exact, so that ties between checkpoints stay ties
    means = (chosen @ scores.T / size for scores in curves)
    return np.asarray(np.mean([signal_quality(mean, options).signal_quality for mean in means], axis=0))


def draw_items(items: int, resamples: int, generator: Generator, clusters: np.ndarray | None = None) -> np.ndarray:
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
    return np.asarray(means / counts.sum(axis=1, dtype=float)[:, None])


def resampling_interval(value: float, resampled: np.ndarray, limits: Interval[float] = UNLIMITED) -> Interval[float]:
    """From the lower to the higher of two 95% intervals: the resamples' percentiles, and these less twice their bias.

    A resampled curve carries the items' noise twice, once from the data and once from the draw, so a score
    that falls with noise (as signal quality does) is lower in nearly every resample than in the data, and
    the percentile interval need not even hold the value. Moving it by the bias mends that where the curve
    is smooth. Where a curve's score is low by chance it can hardly fall further, so that the bias shows too
    small; moving by twice the bias mends this in part. It held the mean score of newly drawn items in 94% to 100%
    of simulated benchmarks, percentiles alone in 54% to 100%, moved by once the bias in 86% to 100%
    (docs/reference/signal.md). Bounds are cut to the `limits`. `resampled` is (resamples,); NaN among them are left
    out, and without any the bounds are NaN.
    """
    resampled = resampled[np.isfinite(resampled)]
    if resampled.size == 0 or not np.isfinite(value):
        return Interval(np.nan, np.nan)
    low, high = np.quantile(resampled, [0.025, 0.975])
    bias = resampled.mean() - value
    low, high = np.clip([min(low, low - 2 * bias), max(high, high - 2 * bias)], *limits)
    # The mean of a very skewed distribution can lie outside its own percentiles
    return Interval(min(float(low), float(value)), max(float(high), float(value)))


def walked_quality(curves: Curves, names: list[tuple[str, ...]], controls: Controls) -> np.ndarray:
    """Signal quality (draws, curves) of each curve (n_c,) with the signs of its steps drawn at random.

        x*_1 = x_1,  x*_i = x*_(i-1) + s_i (x_i - x_(i-1)),  s_i = +1 or -1 with probability 1/2

    The null is that the curve drifts: its steps are independent of each other and as likely to go down as up (a
    random walk; such sums look like trends, Slutsky 1937). A draw gives one sign to all curves that step to the
    checkpoint of one name (`names`: of the checkpoints, a tuple per curve), so that what the models of one benchmark
    have in common stays, and steps keep their sizes, whatever the spacing of checkpoints. White noise has less signal
    quality than its own draws: there the p-value is too large, never too small. Curves with too few checkpoints
    give NaN.
    """
    generator, draws, options = controls
    distinct = dict.fromkeys(name for names_of_curve in names for name in names_of_curve)
    places = {name: position for position, name in enumerate(distinct)}
    signs = generator.integers(2, size=(draws, len(places))) * 2.0 - 1.0
    quality = np.empty((draws, len(curves)))
    for index, (curve, names_of_curve) in enumerate(zip(curves, names, strict=True)):
        steps = np.diff(curve, prepend=curve[:1] if curve.size else 0.0)
        rows = np.array([places[name] for name in names_of_curve], dtype=np.intp)
        walks = curve[:1] + np.cumsum(signs[:, rows] * steps, axis=1)
        quality[:, index] = signal_quality(walks, options).signal_quality
    return quality


def exceedance_p(observed: float, draws: np.ndarray) -> float:
    """One-sided p: (1 + draws at least as high) / (1 + draws); NaN for an unknown value or null."""
    if draws.size == 0 or not np.isfinite(observed) or not np.isfinite(draws).all():
        return float("nan")
    # Equal outcomes can differ in the last bit of a sum
    return float((1 + np.count_nonzero(draws >= observed - 1e-12)) / (1 + draws.size))


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


class RankingWindows(NamedTuple):
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
STABLE_TAU = 0.8  # a ranking that differs from the final one in one pair of ten


def pair_consistency(gap: np.ndarray, windows: WindowMasks) -> np.ndarray:
    """Ranking consistency (...) of the gap (..., n) between two models' curves; NaN without either window.

        r = mean over base of the gap;  tau = mean over later of [ (gap > 0) == (r > 0) ]

    Equality counts as "not better" in both windows, so two constant equal curves are consistent (1). Chance is 1/2.
    """
    base, later = windows
    if not base.any() or not later.any():
        return np.full(gap.shape[:-1], np.nan)
    return np.asarray(np.mean((gap[..., later] > 0) == (gap[..., base].mean(axis=-1) > 0)[..., None], axis=-1))


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
    return np.asarray(np.mean(better == (base_gap > 0)[:, None], axis=1))


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
    return np.asarray(np.repeat(coins, length, axis=1)[:, :later_checkpoints].mean(axis=1))


def agreement_with_last(curves: np.ndarray, counted: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Kendall's tau-a (..., n) of the rankings of `curves` (..., models, n) at each checkpoint and the last.

    tau-a = (concordant - discordant) / pairs, in [-1, 1]; a tie counts 0. `counted` (pairs,): which pairs of
    `np.triu_indices(models, 1)` count, at least one.
    """
    pairs = np.array(np.triu_indices(curves.shape[-2], k=1))[:, counted]
    first, second = (np.take(curves, side, axis=-2) for side in pairs)
    # bytes: with a thousand resamples most of the time is that of moving these numbers
    signs = (first > second).view(np.int8) - (first < second).view(np.int8)
    return np.asarray((signs * signs[..., -1:]).sum(axis=-2, dtype=np.int32) / pairs.shape[1])


def difference_errors(covariance: np.ndarray) -> np.ndarray:
    """Standard errors (pairs, n) of the differences between models, from covariances (n, models, models) of errors.

    sqrt(c_ii + c_jj - 2 c_ij), pairs in the order of `np.triu_indices(models, 1)`; with independent errors
    sqrt(se_i^2 + se_j^2).
    """
    first, second = np.triu_indices(covariance.shape[-1], k=1)
    variance = covariance[:, first, first] + covariance[:, second, second] - 2 * covariance[:, first, second]
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)).T)


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


def settled_from(curves: np.ndarray, tokens_b: np.ndarray, separable: np.ndarray) -> np.ndarray:
    """Tokens (...,) from which tau-a over the `separable` pairs (pairs,) of `curves` (..., models, n) stays at .8.

    As over all pairs (`agreement_with_last`), but pairs that cannot be told apart at the end have no final order to
    settle into, and stay out: with them, one pair of equal models puts the point at the last checkpoint about every
    second time. NaN without any separable pair.
    """
    if not separable.any():
        return np.full(curves.shape[:-2], np.nan)
    return from_then_on(nearly_final(agreement_with_last(curves, separable)), tokens_b)


def settling_interval(curves: np.ndarray, errors: np.ndarray, tokens: np.ndarray, pairs: np.ndarray) -> Interval[float]:
    """Tokens at which the order of `curves` (models, n) may have settled at the earliest and at the latest.

    `errors` (pairs, n) are the standard errors of the differences of `np.triu_indices(models, 1)`, of which the mask
    `pairs` (pairs,) count. A difference within 1.96 of them is open. At the earliest every open difference has
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
    sure = np.abs(gap) > norm.ppf(0.975) * errors[pairs]
    agrees = np.sign(gap) * np.sign(gap[:, -1:])
    stays_sure = sure & sure[:, -1:]
    earliest, latest = (np.where(stays_sure, agrees, guess) for guess in (1.0, -1.0))
    latest[:, -1] = 1.0
    taus = (signs.mean(axis=0) for signs in (earliest, latest))
    return Interval(*(float(from_then_on(nearly_final(tau), tokens)) for tau in taus))


def nearly_final(tau: np.ndarray) -> np.ndarray:
    """Whether a ranking is nearly the final one, by their tau-a (..., n).

    The last checkpoint agrees with itself, so that an order that is nearly final from there on changed up to the end.
    Where models tie at the end, tau-a cannot reach 1.
    """
    return tau >= STABLE_TAU - 1e-12


def from_then_on(holds: np.ndarray, tokens_b: np.ndarray) -> np.ndarray:
    """Tokens (...,) from which something `holds` (..., n) to the end; NaN where it does not at the end.

    Since it has to hold at every later checkpoint too, a lucky early one does not count; the point found is rather late
    than early.
    """
    for_good = np.flip(np.logical_and.accumulate(np.flip(holds, axis=-1), axis=-1), axis=-1)
    return np.where(for_good.any(axis=-1), tokens_b[np.argmax(for_good, axis=-1)], np.nan)


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


def compliance(science: np.ndarray, web: np.ndarray, scaling: Normalisation, chance: float = np.nan) -> ScienceLead:
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
    scale = science - chance if scaling == "above_chance" else np.ones(1)
    if scaling in ("joint_minmax", "sci_range"):
        curves = science if scaling == "sci_range" else np.concatenate([science, web], axis=-1)
        scale = np.ptp(curves, axis=-1, keepdims=True)
    ratio = np.divide(difference, scale, out=np.full(difference.shape, np.nan), where=scale > 0).mean(axis=-1)
    value = np.where((difference == 0).all(axis=-1) & ~np.isnan(scale).any(axis=-1), 0.0, ratio)
    return ScienceLead(np.maximum(value, 0.0), gap)
