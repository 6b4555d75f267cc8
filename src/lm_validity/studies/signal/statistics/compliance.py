"""Compliance with the target domain: does training data rich in it raise the score?

Source: NeurIPS 2025 E2LMC (2026), score CS: two models of one size, one trained on science data, one on web
text. The text writes max(0, mean_i(science_i - web_i)) and says that the formula normalizes; the printed
values (0.419 where the raw gap is 0.030) need a normalisation that the text does not give. `joint_minmax`
is the hypothesis that reproduces the published curves best (0.390); the raw gap is always reported beside
it.
"""

from dataclasses import dataclass
from typing import get_args

import numpy as np

from lm_validity.config.sections import Normalisation

NORMALISATIONS = get_args(Normalisation)


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


def _scale(science: np.ndarray, web: np.ndarray, normalisation: Normalisation, chance: float | None) -> np.ndarray:
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


def exchanged_curves(
    science: np.ndarray, web: np.ndarray, exchanges: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mean curves (exchanges, n) of the two models after exchanging their labels item by item.

    `science` and `web` are item scores (n checkpoints, items). The null is that either model could have given
    either learning curve of an item, so each item's two curves swap with probability 1/2, whole. It is conditional
    on these two runs: another seed of the same training is not another item.
    """
    mean = (np.asarray(science, dtype=float) + web) / 2.0
    half = (np.asarray(science, dtype=float) - web) / 2.0
    shift = np.empty((exchanges, half.shape[0]))
    # In batches: exchanges x items of float64 can be large
    for start in range(0, exchanges, 100):
        size = min(100, exchanges - start)
        signs = generator.integers(2, size=(size, half.shape[1])) * 2.0 - 1.0
        shift[start : start + size] = signs @ half.T / half.shape[1]
    return mean.mean(axis=1) + shift, mean.mean(axis=1) - shift
