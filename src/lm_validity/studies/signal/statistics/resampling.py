"""Uncertainty of curve scores: paired item bootstrap, permutation null, block bootstrap over checkpoints."""

import numpy as np

from lm_validity.studies.signal.statistics.quality import Convention, Ties, signal_quality

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
    in, NaN out; without items NaN.
    """
    values = np.asarray(values, dtype=float)
    means = np.empty((len(counts), len(values)))
    total = counts.sum(axis=1, dtype=float)[:, None]
    if values.shape[1] == 0:
        return np.full_like(means, np.nan)
    for start in range(0, len(counts), _BATCH):
        means[start : start + _BATCH] = counts[start : start + _BATCH].astype(float) @ values.T
    return means / total


def resampling_interval(
    value: float, resampled: np.ndarray, minimum: float = -np.inf, maximum: float = np.inf
) -> tuple[float, float]:
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
    resampled = np.asarray(resampled, dtype=float)
    resampled = resampled[np.isfinite(resampled)]
    if resampled.size == 0 or not np.isfinite(value):
        return np.nan, np.nan
    low, high = np.quantile(resampled, [0.025, 0.975])
    bias = resampled.mean() - value
    low, high = np.clip([min(low, low - 2 * bias), max(high, high - 2 * bias)], minimum, maximum)
    # The mean of a very skewed distribution can lie outside its own percentiles
    return min(float(low), float(value)), max(float(high), float(value))


def shuffled_quality(
    curves: list[np.ndarray],
    shuffles: int,
    generator: np.random.Generator,
    convention: Convention = "code",
    ties: Ties = "stable",
) -> np.ndarray:
    """Signal quality (shuffles, curves) of each curve (n_c,) with its own checkpoints in random order.

    The null is that the order of the checkpoints says nothing (white noise): p-values against it are uniform
    then. A small p excludes white noise only; any slow drift, up or down, is autocorrelated and rejects it too.
    Curves with NaN or too few checkpoints give NaN.
    """
    draws = np.empty((shuffles, len(curves)))
    for index, curve in enumerate(curves):
        shuffled = generator.permuted(np.tile(np.asarray(curve, dtype=float), (shuffles, 1)), axis=1)
        draws[:, index] = signal_quality(shuffled, convention, ties).signal_quality
    return draws


def walked_quality(
    curves: list[np.ndarray],
    checkpoints: list[tuple[str, ...]],
    draws: int,
    generator: np.random.Generator,
    convention: Convention = "code",
    ties: Ties = "stable",
) -> np.ndarray:
    """Signal quality (draws, curves) of each curve (n_c,) with the signs of its steps drawn at random.

        x*_1 = x_1,  x*_i = x*_(i-1) + s_i (x_i - x_(i-1)),  s_i = +1 or -1 with probability 1/2

    The null is that the curve drifts: its steps are independent of each other and as likely to go down as up (a
    random walk; such sums look like trends, Slutsky 1937). A draw gives one sign to all curves that step to the
    checkpoint of one name (`checkpoints`: the names, a tuple per curve), so that what the models of one benchmark
    have in common stays, and steps keep their sizes, whatever the spacing of checkpoints. White noise has less signal
    quality than its own draws: there the p-value is too large, never too small. Curves with NaN or too few
    checkpoints give NaN.
    """
    names = list(dict.fromkeys(name for found in checkpoints for name in found))
    places = {name: place for place, name in enumerate(names)}
    signs = generator.integers(2, size=(draws, len(names))) * 2.0 - 1.0
    found = np.empty((draws, len(curves)))
    for index, (curve, own) in enumerate(zip(curves, checkpoints, strict=True)):
        curve = np.asarray(curve, dtype=float)
        steps = np.diff(curve, prepend=curve[:1] if curve.size else 0.0)
        at = np.array([places[name] for name in own], dtype=np.intp)
        walks = curve[:1] + np.cumsum(signs[:, at] * steps, axis=1)
        found[:, index] = signal_quality(walks, convention, ties).signal_quality
    return found


def drawn_around(values: np.ndarray, errors: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Normal draws (draws, n) around a curve `values` (n,) with standard errors `errors` (n,): x_i + se_i z_i.

    Stands for resampled items where only standard errors are known. The errors are drawn independently, as though
    every checkpoint had items of its own. Checkpoints share their items, so that their true errors move together and
    disturb the shape of a curve less: intervals from these draws are too wide, and lie too low for a score that noise
    lowers.
    """
    values, errors = np.asarray(values, dtype=float), np.asarray(errors, dtype=float)
    return values + errors * generator.standard_normal((draws, len(values)))


def exceedance_p(observed: float, draws: np.ndarray) -> float:
    """One-sided p: (1 + draws at least as high) / (1 + draws); NaN for an unknown value or null."""
    draws = np.asarray(draws, dtype=float)
    if draws.size == 0 or not np.isfinite(observed) or not np.isfinite(draws).all():
        return float("nan")
    # Equal outcomes can differ in the last bit of a sum
    return float((1 + np.count_nonzero(draws >= observed - 1e-12)) / (1 + draws.size))


def noise_levels(
    checkpoints: int, draws: int, generator: np.random.Generator, convention: Convention = "code"
) -> tuple[float, float]:
    """Mean signal quality of white noise and of a Gaussian random walk of so many checkpoints, by simulation."""
    noise = generator.standard_normal((draws, checkpoints))
    walks = np.cumsum(noise, axis=1)
    white, walk = (signal_quality(curves, convention).signal_quality.mean() for curves in (noise, walks))
    return float(white), float(walk)


def block_length(checkpoints: int) -> int:
    """Checkpoints in a block, n^(1/3) rounded up: the usual order for a block bootstrap."""
    return max(1, int(np.ceil(checkpoints ** (1.0 / 3.0) - 1e-9)))


def resample_blocks(
    checkpoints: int, resamples: int, generator: np.random.Generator, length: int | None = None
) -> np.ndarray:
    """Indices (resamples, checkpoints) of a circular block bootstrap (Politis and Romano 1992).

    Neighbouring checkpoints share most of their training, so they are drawn in blocks of `length`, not one
    by one.
    """
    length = block_length(checkpoints) if length is None else length
    blocks = -(-checkpoints // length)
    starts = generator.integers(checkpoints, size=(resamples, blocks, 1))
    indices = (starts + np.arange(length)) % checkpoints
    return indices.reshape(resamples, blocks * length)[:, :checkpoints]
