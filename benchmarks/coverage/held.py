"""What is recorded of an interval on one simulated table."""

from typing import NamedTuple

import numpy as np

from lm_validity.studies.agreement.statistics.resampling import Interval

NOTHING = (float("nan"), float("nan"))


class Result(NamedTuple):
    """`covered`: share of the interval's values that it holds (0 or 1 for one value); `width`. NaN: no interval."""

    covered: float
    width: float


def one(estimate: float, interval: Interval, truth: float) -> Result:
    """A scalar interval; a page gives none that leaves its estimate out."""
    low, high = (float(end) for end in interval)
    if not low <= estimate <= high:
        return Result(*NOTHING)
    return Result(float(low <= truth <= high), high - low)


def many(interval: Interval, truth: np.ndarray) -> Result:
    """Intervals of several values: the share that holds."""
    low, high = interval
    defined = np.isfinite(low) & np.isfinite(truth)
    if not defined.any():
        return Result(*NOTHING)
    inside = (low <= truth) & (truth <= high)
    return Result(float(inside[defined].mean()), float((high - low)[defined].mean()))
