"""Criteria of others for early-training benchmarks, side by side with signal quality.

FineTasks (FineWeb2, app. A.5): monotonicity, signal-to-noise over seeds, non-randomness, ordering
consistency. Signal and Noise (arXiv 2508.13144): signal, noise and their ratio over the last checkpoints,
direction of steps, total variation. Curves are oriented (higher is better); accuracies are fractions. Ratios to
a mean take its size: bits per byte, a positive score of which less is better, is negative here.
"""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.signal.statistics.quality import rank_correlation

FINETASKS_MONOTONICITY = 0.5
FINETASKS_SIGNAL_TO_NOISE = 20.0
FINETASKS_NON_RANDOMNESS = 3.0
LAST_CHECKPOINTS = 5  # both sources average over the final five
ROUNDING = 1e-12  # residuals of a line through equal scores, relative to these, are below it


@dataclass(frozen=True)
class SeedCriteria:
    """FineTasks' two criteria that need repeated trainings; NaN where there are none."""

    signal_to_noise: float
    non_randomness: float


def mean_rank_correlation(curves: list[np.ndarray]) -> float:
    """FineTasks' monotonicity: mean over models of Spearman(step, score), not clipped; passes at 0.5."""
    return float(np.mean([rank_correlation(curve) for curve in curves]))


def ordering_consistency(curves: np.ndarray) -> float:
    """Mean tau-a (C - D) / pairs between rankings at consecutive checkpoints, second half of training.

    `curves` (models, n). FineTasks observes it without a threshold. NaN for fewer than two models, or fewer
    than two checkpoints in the second half.
    """
    curves = np.asarray(curves, dtype=float)
    models, n = curves.shape
    late = curves[:, n // 2 :]
    if models < 2 or late.shape[1] < 2:
        return float("nan")
    first, second = np.triu_indices(models, k=1)
    signs = np.sign(late[first] - late[second])
    return float(np.mean(signs[:, 1:] * signs[:, :-1]))


def seed_criteria(groups: list[np.ndarray], chance: float | None, best_final: float) -> SeedCriteria:
    """FineTasks' signal-to-noise and non-randomness from groups of `runs` (seeds, n), one group a model.

        signal-to-noise = mean over groups and checkpoints of |mu| / sigma
        non-randomness  = (best final score of any model - chance) / sigma of the last five checkpoints
        sigma^2         = sum over groups and checkpoints of the squared deviations from mu / sum of (seeds - 1)

    mu is the mean over the seeds of a group at a checkpoint. FineTasks averages mu / sigma over checkpoints, each with
    a sigma of its own seeds. With two seeds that mean has no finite expectation: one checkpoint at which they nearly
    agree decides it. So sigma is pooled. NaN without any noise.
    """
    groups = [np.asarray(runs, dtype=float) for runs in groups]
    means = np.concatenate([runs.mean(axis=0) for runs in groups])
    noise = ROUNDING * np.abs(means).max()
    sigma = pooled_deviation(groups)
    late = pooled_deviation([runs[:, -LAST_CHECKPOINTS:] for runs in groups])
    return SeedCriteria(
        float(np.abs(means).mean() / sigma) if sigma > noise else float("nan"),
        float((best_final - chance) / late) if chance is not None and late > noise else float("nan"),
    )


def pooled_deviation(groups: list[np.ndarray]) -> float:
    """Standard deviation between repeated trainings, pooled over groups of `runs` (seeds, n) and their checkpoints."""
    squares = sum(float(((runs - runs.mean(axis=0)) ** 2).sum()) for runs in groups)
    freedom = sum((len(runs) - 1) * runs.shape[1] for runs in groups)
    return float(np.sqrt(squares / freedom)) if freedom else float("nan")


@dataclass(frozen=True)
class SignalToNoise:
    """Signal and Noise's ratio, with its two parts relative to the mean score."""

    signal: float
    noise: float
    ratio: float


def signal_to_noise(
    curves: list[np.ndarray],
    last: int = LAST_CHECKPOINTS,
    *,
    detrend: bool = True,
    training: tuple[float, int] | None = None,
) -> SignalToNoise:
    """Spread between models over scatter within, from the `last` checkpoints of each model's curve (n_m,).

        signal = max_{j,k} |m_j - m_k| / |mean(m)|,  m_j = mean of model j's last checkpoints
        noise  = mean over models of sd of its last checkpoints / |mean(m)|

    The source's script pools all models before taking the deviation, so that its noise holds part of the
    signal; this is the deviation within models, of the residuals from a straight line with `detrend`
    (progress is no noise; last - 2 degrees of freedom) and plain population sd without. Checkpoints of one training are
    more alike than trainings of one model: where these are known, `training` is (their standard deviation, its degrees
    of freedom), and takes the place of the scatter. NaN for fewer than
    two models, a model with fewer than `last` (or three) checkpoints, or last scores of either sign, which
    have no relative spread (margins; all zero); the ratio alone is NaN without any noise.
    """
    usable = [np.asarray(curve, dtype=float)[-last:] for curve in curves if len(curve) >= max(last, 3)]
    if len(usable) < 2 or len(usable) < len(curves):
        return SignalToNoise(float("nan"), float("nan"), float("nan"))
    tails = np.array(usable)
    level = abs(tails.mean())
    if level == 0 or tails.min() < 0 < tails.max():
        return SignalToNoise(float("nan"), float("nan"), float("nan"))
    if training is not None:
        scatter = np.full(len(tails), training[0])
    elif detrend:
        scatter = _residual_deviation(tails)
    else:
        scatter = tails.std(axis=1)
    signal = float(np.ptp(tails.mean(axis=1)) / level)
    noise = float(scatter.mean() / level)
    return SignalToNoise(signal, noise, signal / noise if noise > ROUNDING else float("nan"))


def signal_to_noise_interval(
    curves: list[np.ndarray],
    draws: int,
    generator: np.random.Generator,
    last: int = LAST_CHECKPOINTS,
    training: tuple[float, int] | None = None,
) -> tuple[float, float]:
    """95% interval of the ratio for other checkpoints near the end of these trainings; NaN where the ratio is.

        m*_j = m_j + s_j z / sqrt(last),   s*_j = s_j sqrt(chi2(last - 2) / (last - 2))
        draw = ratio^2 / ratio*,           ratio* = range(m*) / mean(s*)

    with m_j the mean and s_j the residual standard deviation of model j's last checkpoints (see `signal_to_noise`): a
    basic bootstrap on the log scale with independent normal residuals about a line. Five checkpoints leave three
    degrees of freedom per model, so that the noise is poorly known, and estimated too low on average; ratio / ratio*
    undoes that. The range of equal models is not 0 but grows with their number: where the ratio is below twice the
    95th percentile of that of equal models, the lower end is 0. Coverage in simulations (400 a row, 2 to 16 models):
    see docs/reference/statistics.md. Fails for residuals that are not independent, and does not speak for other models.

    With `training` (see `signal_to_noise`) the interval is for other trainings of these models: s_j is its standard
    deviation with its degrees of freedom, and since another training moves all of a model's last checkpoints together,
    z is not divided by sqrt(last).
    """
    ratio = signal_to_noise(curves, last, training=training).ratio
    if not np.isfinite(ratio) or not draws:
        return float("nan"), float("nan")
    tails = np.array([np.asarray(curve, dtype=float)[-last:] for curve in curves])
    if training is None:
        scatter, freedom, size, shape = _residual_deviation(tails), last - 2, last, (draws, len(tails))
    else:
        scatter, freedom, size, shape = np.full(len(tails), training[0]), training[1], 1, (draws, 1)
    disturbance = generator.standard_normal((draws, len(tails))) / np.sqrt(size)
    chi = np.sqrt(generator.chisquare(freedom, shape) / freedom)
    drawn = np.ptp(tails.mean(axis=1) + scatter * disturbance, axis=1) / (scatter * chi).mean(axis=1)
    equal = np.quantile(np.ptp(disturbance, axis=1) / chi.mean(axis=1), 0.95)
    low, high = np.quantile(ratio**2 / drawn, [0.025, 0.975])
    return float(0.0 if ratio < 2 * equal else min(low, ratio)), float(max(high, ratio))


def pair_share_interval(share: float, models: int) -> tuple[float, float]:
    """95% interval of a share of pairs of models for other models like these: Wilson (1927), with models // 2 pairs.

    The m (m - 1) / 2 pairs of m models share their models. A mean over all pairs is at least as precise as one over
    m // 2 pairs without a model in common (Hoeffding 1963, on U-statistics), hence never too narrow by counting pairs
    twice, and often too wide. It holds the share itself. Fails where the models are not drawn alike: sizes of one
    family. NaN for fewer than two models.
    """
    pairs = models // 2
    if pairs < 1 or not np.isfinite(share):
        return float("nan"), float("nan")
    z = 1.959964
    centre = (share + z**2 / (2 * pairs)) / (1 + z**2 / pairs)
    half = z / (1 + z**2 / pairs) * np.sqrt(share * (1 - share) / pairs + z**2 / (4 * pairs**2))
    # up to rounding, the share lies inside
    return float(np.clip(centre - half, 0.0, share)), float(np.clip(centre + half, share, 1.0))


def _residual_deviation(tails: np.ndarray) -> np.ndarray:
    """Standard deviation (models,) of `tails` (models, n) about a line of its own each, n - 2 degrees of freedom."""
    steps = np.arange(tails.shape[1]) - (tails.shape[1] - 1) / 2
    slopes = tails @ steps / (steps @ steps)
    residuals = tails - tails.mean(axis=1, keepdims=True) - slopes[:, None] * steps
    return np.sqrt((residuals**2).sum(axis=1) / (tails.shape[1] - 2))


def step_direction(curves: np.ndarray) -> np.ndarray:
    """(rising - falling) / (rising + falling) steps of each curve (..., n): in [-1, 1]; 0 without any."""
    steps = np.diff(np.asarray(curves, dtype=float), axis=-1)
    rising, falling = (steps > 0).sum(axis=-1), (steps < 0).sum(axis=-1)
    moved = rising + falling
    return np.divide(rising - falling, moved, out=np.zeros(moved.shape), where=moved > 0)


def total_variation(curves: np.ndarray) -> np.ndarray:
    """Mean |step| of each curve (..., n) over its range, less the net rise's part: 0 for a straight climb.

        (sum |x_i+1 - x_i| - |x_n - x_1|) / ((n - 1) range)

    NaN for constant curves.
    """
    curves = np.asarray(curves, dtype=float)
    wander = np.abs(np.diff(curves, axis=-1)).sum(axis=-1) - np.abs(curves[..., -1] - curves[..., 0])
    spread = np.ptp(curves, axis=-1) * (curves.shape[-1] - 1)
    return np.divide(wander, spread, out=np.full(np.shape(wander), np.nan), where=spread > 0)
