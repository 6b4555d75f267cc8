"""Means that leave missing values out, without numpy's warnings where nothing is left."""

from typing import overload

import numpy as np


@overload
def finite_mean(values: np.ndarray, axis: None = None) -> float: ...
@overload
def finite_mean(values: np.ndarray, axis: int) -> np.ndarray: ...
def finite_mean(values: np.ndarray, axis: int | None = None) -> np.ndarray | float:
    """Mean of the finite values along `axis` (all by default), NaN where there is none."""
    finite = np.isfinite(values)
    count = finite.sum(axis=axis)
    total = np.where(finite, values, 0.0).sum(axis=axis)
    mean = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=np.asarray(count) > 0)
    return mean if mean.ndim else float(mean)


def finite_quantile(values: np.ndarray, levels: list[float]) -> np.ndarray:
    """(levels, ...) quantiles of the finite values along the first axis, NaN where there is none."""
    known = np.isfinite(values).any(axis=0)
    quantiles = np.nanquantile(np.where(known, values, 0.0), levels, axis=0)
    return np.where(known, quantiles, np.nan)


def known_in_all(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays, all of one shape, with NaN wherever one of them is not finite."""
    known = np.logical_and.reduce([np.isfinite(values) for values in arrays.values()])
    return {name: np.where(known, values, np.nan) for name, values in arrays.items()}


def fewest_in_common(scores: np.ndarray) -> float:
    """The smallest share of the models, in [0, 1], that two benchmarks of `scores` (models, benchmarks) share."""
    known = np.isfinite(scores).astype(float)
    return float((known.T @ known).min() / len(scores)) if known.size else 0.0
