"""Monotonicity, autocorrelation and signal quality of learning curves.

Source: "NeurIPS 2025 E2LMC: Early-stage Evaluation for LLM Training Competition" (2026). Its scoring
notebook and its text differ; both conventions are here:

    what                     "code" (default: the notebook)            "paper" (the text, square root
    restored) lags                     1 .. floor(n/4) - 1                       1 .. floor(n/4)
    centring of a segment    on the segment's own mean (Pearson r)     on the mean of the whole curve

The text's printed formula lacks the square root in the denominator; taken literally it gives values far
above 1.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from lm_validity.config.sections import Convention, Ties

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
    return np.ptp(curves, axis=-1) <= _CONSTANT * level


def rank_correlation(curves: np.ndarray, ties: Ties = "stable") -> np.ndarray:
    """1 - 6 sum_j d_j^2 / (n (n^2 - 1)), d_j = j - rank of x_j: in [-1, 1], shape (...) for curves (..., n).

    `stable` gives tied scores their ranks in order of training, so a tie counts as an increase (the
    notebook's argsort, made independent of the platform); `average` is Spearman's correlation with average
    ranks. A constant curve scores 0: by stable ties it would score 1. NaN in, NaN out.
    """
    curves = np.asarray(curves, dtype=float)
    n = curves.shape[-1]
    if n < 2:
        return np.full(curves.shape[:-1], np.nan)
    if ties == "stable":
        # sum_j (j - rank_j)^2, summed in order of rank: one sort instead of two
        order = np.argsort(curves, axis=-1, kind="stable")
        result = 1.0 - 6.0 * np.sum((order - np.arange(n)) ** 2, axis=-1) / (n * (n**2 - 1))
    elif ties == "average":
        positions = np.broadcast_to(np.arange(1.0, n + 1), curves.shape)
        result = _pearson(rankdata(curves, axis=-1), positions, level=np.full(curves.shape[:-1], float(n)))
    else:
        raise ValueError(f"ties must be 'stable' or 'average', got {ties!r}")
    result = np.where(is_constant(curves), 0.0, result)
    return np.where(np.isnan(curves).any(axis=-1), np.nan, result)


def autocorrelation(curves: np.ndarray, convention: Convention = "code") -> np.ndarray:
    """Mean over lags l of |r(x[l:], x[:n-l])|: in [0, 1] by `code`; shape (...) for curves (..., n).

    A lag at which a segment is constant has no correlation and counts as 0. With fewer than eight
    checkpoints (`code`; four for `paper`) there is no lag: NaN. By `paper` the segments are centred on the
    whole curve's mean. NaN in, NaN out.
    """
    curves = np.asarray(curves, dtype=float)
    n = curves.shape[-1]
    last_lag = n // 4 if convention == "paper" else n // 4 - 1
    if convention not in ("code", "paper"):
        raise ValueError(f"convention must be 'code' or 'paper', got {convention!r}")
    if n < fewest_checkpoints(convention):
        return np.full(curves.shape[:-1], np.nan)
    if convention == "paper":
        curves = curves - curves.mean(axis=-1, keepdims=True)
    level = np.abs(curves).max(axis=-1)
    total = np.zeros(curves.shape[:-1])
    for lag in range(1, last_lag + 1):
        total += np.abs(_pearson(curves[..., lag:], curves[..., :-lag], level, centred=convention == "paper"))
    result = np.where(is_constant(curves), 0.0, total / last_lag)
    return np.where(np.isnan(curves).any(axis=-1), np.nan, result)


def signal_quality(
    curves: np.ndarray,
    convention: Convention = "code",
    ties: Ties = "stable",
    monotonicity_weight: float = 0.5,
) -> SignalQuality:
    """Scores of learning curves (..., n): higher is better, checkpoints in order of training.

        monotonicity    = max(0, rank correlation of score and checkpoint)
        autocorrelation = mean |correlation of the curve with itself, some checkpoints later|
        signal quality  = w monotonicity + (1 - w) autocorrelation,  w = 1/2

    White noise does not score 0: for n = 14 its mean is 0.168, for n = 27 it is 0.119 (see
    `permutation_null`).
    """
    curves = np.asarray(curves, dtype=float)
    correlation = rank_correlation(curves, ties)
    monotonicity = np.maximum(correlation, 0.0)
    coherence = autocorrelation(curves, convention)
    return SignalQuality(
        monotonicity=monotonicity,
        autocorrelation=coherence,
        signal_quality=monotonicity_weight * monotonicity + (1.0 - monotonicity_weight) * coherence,
        rank_correlation=correlation,
        degenerate=is_constant(curves),
    )


def net_rise(curves: np.ndarray) -> np.ndarray:
    """Last minus first value of each curve (..., n): the size that a rank correlation does not see."""
    curves = np.asarray(curves, dtype=float)
    return curves[..., -1] - curves[..., 0]


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
    return np.divide(covariance, np.sqrt(squares[0] * squares[1]), out=np.zeros_like(covariance), where=defined)
