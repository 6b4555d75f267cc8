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


def seed_criteria(runs: np.ndarray, chance: float | None, best_final: float) -> SeedCriteria:
    """FineTasks' signal-to-noise and non-randomness from `runs` (seeds, n) of one model.

        signal-to-noise = mean over checkpoints of |mu_s| / sigma_s   (population standard deviation over seeds)
        non-randomness  = (best final score of any model - chance) / mean of sigma_s over the last five

    Checkpoints at which the seeds agree exactly have no noise and are left out; NaN where none is left.
    """
    runs = np.asarray(runs, dtype=float)
    if runs.shape[0] < 2:
        return SeedCriteria(float("nan"), float("nan"))
    mean, deviation = runs.mean(axis=0), runs.std(axis=0)
    noisy = deviation > 0
    ratio = float(np.mean(np.abs(mean[noisy]) / deviation[noisy])) if noisy.any() else float("nan")
    late = float(deviation[-LAST_CHECKPOINTS:].mean())
    if chance is None or late == 0:
        return SeedCriteria(ratio, float("nan"))
    return SeedCriteria(ratio, (best_final - chance) / late)


@dataclass(frozen=True)
class SignalToNoise:
    """Signal and Noise's ratio, with its two parts relative to the mean score."""

    signal: float
    noise: float
    ratio: float


def signal_to_noise(curves: list[np.ndarray], last: int = LAST_CHECKPOINTS, detrend: bool = True) -> SignalToNoise:
    """Spread between models over scatter within, from the `last` checkpoints of each model's curve (n_m,).

        signal = max_{j,k} |m_j - m_k| / |mean(m)|,  m_j = mean of model j's last checkpoints
        noise  = mean over models of sd of its last checkpoints / |mean(m)|

    The source's script pools all models before taking the deviation, so that its noise holds part of the
    signal; this is the deviation within models, of the residuals from a straight line with `detrend`
    (progress is no noise; last - 2 degrees of freedom) and plain population sd without. NaN for fewer than
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
    if detrend:
        steps = np.arange(tails.shape[1]) - (tails.shape[1] - 1) / 2
        slopes = tails @ steps / (steps @ steps)
        residuals = tails - tails.mean(axis=1, keepdims=True) - slopes[:, None] * steps
        scatter = np.sqrt((residuals**2).sum(axis=1) / (tails.shape[1] - 2))
    else:
        scatter = tails.std(axis=1)
    signal = float(np.ptp(tails.mean(axis=1)) / level)
    noise = float(scatter.mean() / level)
    return SignalToNoise(signal, noise, signal / noise if noise > 0 else float("nan"))


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
