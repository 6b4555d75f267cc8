"""Values of the two reports: intervals, why there is none, and how sentences, tables and charts write them."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lm_validity.studies.agreement.statistics.noise import LEAST_CLUSTERS, MOST_IN_ONE, cluster_numbers, shown_ceiling
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.words import Missing, Reason, ReasonCode, decimal, is_known, known, number, with_interval

Value = float | Missing
Range = Interval[float] | Missing
ByProtocol = dict[str, Value]
Entry = dict[str, Any]  # of summary.json, with `Missing` where a value is
MINIMUM_FAMILY = 3  # models of a family: with two a tau can only be -1, 0 or 1
JACKKNIFED = 5  # models; with fewer, the taus without each of them say nothing about other models
FEW_FAMILIES = 5
MOST_DRAWN = 150  # models that a figure with a row for each one shows
# the share of the models that any two benchmarks have in common, from which on headlines are those of a whole table
NEARLY_WHOLE = 0.95
# what intervals take for granted where cells are missing that no plan left out
BY_CHANCE = " (intervals assume that cells are missing by chance)"

# ----------------------------------------------------------------------------------------------------------------------
# Why there is no value or no interval.

NO_FAMILIES = f"The models sheet names no family of at least {MINIMUM_FAMILY} models with scores."
SMALL_FAMILY = Reason(f"The family has fewer than {MINIMUM_FAMILY} models.", ReasonCode.TOO_FEW)
OUTSIDE = Reason(
    "The estimate lies outside what its resamples give, so there is no interval to trust.", ReasonCode.NO_INTERVAL
)
NO_SPREAD = Reason(
    "Every resample gives the same value, which says nothing about other models: there is no interval.",
    ReasonCode.NO_INTERVAL,
)
UNDEFINED_RESAMPLES = Reason("Too few of the resamples give a value, so there is no interval.", ReasonCode.NO_INTERVAL)
LOST_MODEL = Reason(
    "Without one of the models no tau is left, or a tau is 1 or -1, where this interval does not exist.",
    ReasonCode.NO_INTERVAL,
)
LOST_CLUSTER = (
    f"There are fewer than {LEAST_CLUSTERS} families, or one holds more than half of the models. Or leaving one of "
    "them out leaves no tau, or a tau of 1 or -1."
)
LOST_CATEGORY = (
    f"There are fewer than {LEAST_CLUSTERS} families, or one family or category holds more than half of its kind. Or "
    "leaving a family or a category out leaves no tau, or a tau of 1 or -1."
)
WHY_ABOVE = (
    "A ceiling counts the noise of each score as independent. Models that answer the same items share part of theirs, "
    "and so do benchmarks with items in common. Standard errors that are too large, or chance, can cause this too."
)
NARROWER = (
    f"There are fewer than {FEW_FAMILIES} families, and it would be narrower than the interval over models: these "
    "families happen to differ less than their models do, which says nothing about other families."
)
FEW_IN_BOTH = Reason("Fewer than 3 models have scores under both protocols.", ReasonCode.TOO_FEW)


def no_intervals(resamples: int, models: int) -> str:
    """Why there are no intervals over models, empty where there are."""
    if resamples == 0:
        return Reason("No resampling was asked for (--resamples 0).", ReasonCode.SKIPPED)
    return (
        Reason(f"There are too few models to resample ({models}).", ReasonCode.TOO_FEW)
        if models < MINIMUM_FAMILY
        else ""
    )


def no_clusters(families: np.ndarray) -> str:
    """Why families give no clusters, empty where they do; a model of unknown family is a cluster of its own."""
    named = [name for name in families if name is not None]
    if not named:
        return "The models sheet names no family."
    if len(named) == len(set(named)):
        return "No family has two models: the interval over models is that over families."
    clusters = int(cluster_numbers(families).max()) + 1
    if clusters < LEAST_CLUSTERS:
        return Reason(f"There are fewer than {LEAST_CLUSTERS} families.", ReasonCode.TOO_FEW)
    largest = max(set(named), key=named.count)
    most = named.count(largest)
    return f"{most} of {len(families)} models are of one family." if most > MOST_IN_ONE * len(families) else ""


def no_categories(categories: list[str | None]) -> str:
    """Why categories give no clusters, empty where they do; a benchmark of no category is a cluster of its own."""
    named = [name for name in categories if name is not None]
    if not named:
        return "The benchmarks sheet names no category."
    if len(named) == len(set(named)):
        return "No category has two benchmarks: the interval over benchmarks is that over categories."
    clusters = len(set(named)) + len(categories) - len(named)
    return (
        Reason(f"There are fewer than {LEAST_CLUSTERS} categories.", ReasonCode.TOO_FEW)
        if clusters < LEAST_CLUSTERS
        else ""
    )


# ----------------------------------------------------------------------------------------------------------------------
# Values and intervals as summaries hold them.


def ends(value: Value | None, interval: Interval[float] | None, reason: str) -> Range:
    """A summary's interval of `value`: missing as the value is, for the `reason` where there is none, or undefined."""
    if isinstance(value, Missing):
        return value
    if interval is None:
        return Missing(reason)
    if not np.isfinite(interval.low):
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


# ----------------------------------------------------------------------------------------------------------------------
# Words, table columns, charts.

WHICH_INTERVAL = (
    "There are two intervals. The first holds for other models of the same families. The second treats families as "
    "clusters and also holds for models of other families. For a claim about language models in general, quote the "
    "second, or the first where it is wider. The second is wide where families are few. In simulations with five "
    "families of unequal size it contained the truth in 94% to 98% of cases."
)


def value_in_words(value: Value, interval: Range | None = None, digits: int = 2, *, signed: bool = False) -> str:
    """`0.52 (95% interval 0.48 to 0.56)`, the number alone without an interval, `unknown` without a number."""
    return with_interval(number(value), interval if is_known(interval) else None, digits, signed=signed)


def in_words(interval: Range, *, signed: bool = False) -> str:
    """`0.48 to 0.56`; `unknown` without an interval."""
    if isinstance(interval, Missing):
        return "unknown"
    return " to ".join(decimal(float(end), signed=signed) for end in interval)


def both_intervals(value: Value, interval: Range, clustered: Range, *, signed: bool = False) -> str:
    """A value with its interval over models and, where there is one, that over families."""
    text = value_in_words(value, interval, signed=signed)
    if isinstance(clustered, Missing):
        return text
    if isinstance(interval, Missing):
        return f"{value_in_words(value, clustered, signed=signed)[:-1]} over families)"
    low, high = (decimal(end, signed=signed) for end in clustered)
    return f"{text[:-1]} over models, {low} to {high} over families)"


def shown_mean(compared: Value, own: Value, interval: Range | None) -> str:
    """A mean of a comparison; with the interval where it is that of the protocol's `own` mean."""
    return value_in_words(compared, interval if compared == own else None)


def which_interval(clustered: Sequence[Range]) -> str:
    """What both intervals are for, or why there is none over families."""
    if any(is_known(interval) for interval in clustered):
        return WHICH_INTERVAL
    reasons = [interval.reason for interval in clustered if isinstance(interval, Missing)]
    return f"There is no interval over families. {reasons[0]}"


def over_both(*, partly: bool) -> str:
    """The end of a sentence that compares the protocols where that leaves cells out."""
    return ", over what is known under both protocols" if partly else ""


def with_ceiling(frame: pd.DataFrame) -> pd.DataFrame:
    """`plotted`, with the `ceiling` of each `tau` where it is shown."""
    drawn = plotted(frame)
    return drawn.assign(ceiling=shown_ceiling(drawn["ceiling"].to_numpy(float), drawn["tau"].to_numpy(float)))


def plotted(frame: pd.DataFrame) -> pd.DataFrame:
    """A table's frame for a chart: missing values are NaN."""
    concerned = [name for name, values in frame.items() if any(isinstance(value, Missing) for value in values)]
    return frame.assign(
        **{name: [np.nan if isinstance(value, Missing) else value for value in frame[name]] for name in concerned}
    )
