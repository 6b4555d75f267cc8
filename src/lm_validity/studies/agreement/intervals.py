"""Values and their intervals as summaries hold them, each with the reason where it is missing."""

from collections.abc import Iterable

import numpy as np

from lm_validity.missing import Missing, known
from lm_validity.statistics import Interval
from lm_validity.studies.agreement.reasons import FEW_FAMILIES, NARROWER, NO_SPREAD, OUTSIDE, UNDEFINED_RESAMPLES
from lm_validity.studies.agreement.statistics.resampling import cluster_numbers

Value = float | Missing
Range = Interval[float] | Missing
ByProtocol = dict[str, Value]
RangeByProtocol = dict[str, Range]


def ends(value: Value | None, interval: Interval[float] | None, reason: str | None = None) -> Range:
    """A summary's interval of `value`: missing as the value is, or where there is none or it is not finite, for the
    `reason`, by default that too few resamples give a value."""
    if isinstance(value, Missing):
        return value
    if interval is None or not np.isfinite(interval.low):
        return Missing(reason or UNDEFINED_RESAMPLES)
    if value is not None and not interval.low <= value <= interval.high:
        return Missing(OUTSIDE)
    if interval.high - interval.low < 1e-12:
        return Missing(NO_SPREAD)
    return interval


def each(names: Iterable[str], values: Iterable[float | None], reason: str) -> dict[str, Value]:
    """`values` by name, missing for one reason where they are not finite."""
    return {name: known(value, reason) for name, value in zip(names, values, strict=True)}


def over_families(interval: Range, over_models: Range, families: np.ndarray) -> Range:
    """The interval over `families` (models,), missing where they are few and it is narrower than that over models."""
    many = cluster_numbers(families).max() + 1 >= FEW_FAMILIES
    if many or isinstance(interval, Missing) or isinstance(over_models, Missing):
        return interval
    narrower = interval.high - interval.low < over_models.high - over_models.low
    return Missing(NARROWER) if narrower else interval


def wider(*intervals: Range) -> Interval[float] | None:
    """The one that a claim about other models quotes: the widest of those that exist."""
    exist = [interval for interval in intervals if not isinstance(interval, Missing)]
    return max(exist, key=lambda interval: interval.high - interval.low, default=None)
