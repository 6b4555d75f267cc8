"""Signal quality of learning curves, its uncertainty, and scores above chance."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
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

    White noise does not score 0: for n = 14 its mean is 0.168, for n = 27 it is 0.119, that of a random walk of 14 is
    0.427.
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
# Uncertainty of curve scores: paired item bootstrap, random choices of items, and curves that drift.

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
        result: np.ndarray = residual @ residual.T / (items - 1) / items
        return result
    number = int(clusters.max()) + 1
    sums = np.array([np.bincount(clusters, row, number) for row in residual])
    result = number / (number - 1) * (sums @ sums.T) / items**2
    return result


def random_items_quality(
    curves: list[np.ndarray], size: int, draws: int, generator: Generator, options: SignalConventions = E2LM
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


def walked_quality(
    curves: list[np.ndarray],
    checkpoints: list[tuple[str, ...]],
    draws: int,
    generator: Generator,
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


def drawn_around(values: np.ndarray, errors: np.ndarray, draws: int, generator: Generator) -> np.ndarray:
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
