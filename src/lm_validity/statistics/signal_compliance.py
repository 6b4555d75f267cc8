"""Compliance with the target domain: does training data rich in it raise the score?

Source: NeurIPS 2025 E2LMC (2026), score CS: two models of one size, one trained on science data, one on web
text. The text writes max(0, mean_i(science_i - web_i)) and says that the formula normalizes; the printed
values (0.419 where the raw gap is 0.030) need a normalisation that the text does not give. `joint_minmax`
is the hypothesis that reproduces the published curves best (0.390); the raw gap is always reported beside
it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Normalisation = Literal["none", "joint_minmax", "sci_range", "above_chance"]
NORMALISATIONS: tuple[Normalisation, ...] = ("none", "joint_minmax", "sci_range", "above_chance")


@dataclass(frozen=True)
class Compliance:
    """Arrays have the curves' leading shape. `gap` is in units of the score and keeps its sign."""

    value: np.ndarray
    gap: np.ndarray
    normalisation: Normalisation


def compliance(
    science: np.ndarray,
    web: np.ndarray,
    normalisation: Normalisation = "joint_minmax",
    chance: float | None = None,
) -> Compliance:
    """Compliance of two curves (..., n) at the same checkpoints, oriented so that higher is better.

        gap   = mean_i (science_i - web_i)
        value = max(0, gap / scale)
        none: scale = 1;  joint_minmax: range of both curves together;  sci_range: range of the science curve
        above_chance: value = max(0, mean_i (science_i - web_i) / (science_i - chance))

    Where the scale is not positive (constant curves, a science curve that touches chance) the value is 0
    for curves that are equal and NaN otherwise. All but `none` are free of the score's unit, hence apply to
    log-probability scores too, and all of these are blind to its size: a small consistent gap on a flat
    curve scores high. NaN without a checkpoint.
    """
    science, web = np.broadcast_arrays(np.asarray(science, dtype=float), np.asarray(web, dtype=float))
    if science.shape[-1] == 0:
        nothing = np.full(science.shape[:-1], np.nan)
        return Compliance(nothing, nothing, normalisation)
    difference = science - web
    gap = difference.mean(axis=-1)
    scale = _scale(science, web, normalisation, chance)
    ratio = np.divide(difference, scale, out=np.full(difference.shape, np.nan), where=scale > 0).mean(axis=-1)
    value = np.where((difference == 0).all(axis=-1), 0.0, ratio)
    return Compliance(np.maximum(value, 0.0), gap, normalisation)


def _scale(
    science: np.ndarray, web: np.ndarray, normalisation: Normalisation, chance: float | None
) -> np.ndarray:
    """What differences are divided by, broadcastable against (..., n)."""
    if normalisation == "none":
        return np.ones(1)
    if normalisation == "joint_minmax":
        return np.ptp(np.concatenate([science, web], axis=-1), axis=-1, keepdims=True)
    if normalisation == "sci_range":
        return np.ptp(science, axis=-1, keepdims=True)
    if normalisation == "above_chance":
        if chance is None:
            raise ValueError("above_chance needs the chance level")
        return science - chance
    raise ValueError(f"normalisation must be one of {', '.join(NORMALISATIONS)}, got {normalisation!r}")


def sign_flip_null(
    science: np.ndarray, web: np.ndarray, flips: int, generator: np.random.Generator
) -> tuple[float, float]:
    """One-sided p of the raw gap, and the null's 95th percentile, if the two models' labels meant nothing.

    `science` and `web` are item scores (n checkpoints, items). Under the null either model could have given
    either answer curve of an item: items' labels are exchanged at random, the whole curve of an item
    together. Conditional on these two runs: another seed of the same training is not another item.
    """
    difference = (np.asarray(science, dtype=float) - np.asarray(web, dtype=float)).mean(axis=0)
    observed = difference.mean()
    # Packed in batches: flips x items of float64 can be large
    null = np.empty(flips)
    for start in range(0, flips, 100):
        size = min(100, flips - start)
        signs = generator.integers(2, size=(size, difference.size)) * 2.0 - 1.0
        null[start : start + size] = signs @ difference / difference.size
    tolerance = 1e-12 * max(1.0, abs(observed))
    p = (1 + np.count_nonzero(null >= observed - tolerance)) / (1 + flips)
    return float(p), float(np.quantile(null, 0.95))
