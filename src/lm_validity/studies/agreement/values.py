"""Values and intervals as rows hold them, why one is missing, and how pages word them."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from lm_validity.missing import Missing, Reason, ReasonCode, is_known, known, number
from lm_validity.results.put import Condition, Rows, ends_of
from lm_validity.statistics import Interval
from lm_validity.studies.agreement.score_matrix import MINIMUM_FAMILY
from lm_validity.studies.agreement.statistics.noise import LEAST_CORRECTED, Ceiling, shown_ceiling
from lm_validity.studies.agreement.statistics.resampling import LEAST_CLUSTERS, MOST_IN_ONE, cluster_numbers
from lm_validity.words import count, decimal, no_scores, with_interval

# ----------------------------------------------------------------------------------------------------------------------
# Why a number is missing or has no interval.

FEW_FAMILIES = 5
NO_TAU = Reason(
    "The two benchmarks have fewer than two models in common, or all of those are tied on one of the two.",
    ReasonCode.TOO_FEW,
)
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
NARROWER = (
    f"There are fewer than {FEW_FAMILIES} families, and it would be narrower than the interval over models: these "
    "families happen to differ less than their models do, which says nothing about other families."
)
NO_DIRECTION = Reason(
    "Nothing says whether higher or lower is better on it, and its order of the models is against the others'.",
    ReasonCode.NO_INTERVAL,
)
DIRECTION_ASKED = Reason(
    "Nothing says whether higher or lower is better on a benchmark whose order of the models is against the others'.",
    ReasonCode.NO_INTERVAL,
)
FEW_IN_BOTH = Reason("Fewer than 3 models have scores under both protocols.", ReasonCode.TOO_FEW)


def no_intervals(resamples: int, models: int) -> Reason | None:
    """Why there are no intervals over models, None where there are."""
    if resamples == 0:
        return Reason("No resampling was asked for (--resamples 0).", ReasonCode.SKIPPED)
    if models < MINIMUM_FAMILY:
        return Reason(f"There are too few models to resample ({models}).", ReasonCode.TOO_FEW)
    return None


def no_clusters(families: np.ndarray) -> str | None:
    """Why families give no clusters, None where they do; a model of unknown family is a cluster of its own."""
    named = [name for name in families if name is not None]
    if not named:
        return "The models sheet names no family."
    if len(named) == len(set(named)):
        return "No family has two models: the interval over models is that over families."
    clusters = int(cluster_numbers(families).max()) + 1
    if clusters < LEAST_CLUSTERS:
        return Reason(f"There are fewer than {LEAST_CLUSTERS} families.", ReasonCode.TOO_FEW)
    largest = max(set(named), key=named.count)
    size_of_largest = named.count(largest)
    if size_of_largest > MOST_IN_ONE * len(families):
        return f"{size_of_largest} of {len(families)} models are of one family."
    return None


def no_categories(categories: list[str | None]) -> str | None:
    """Why categories give no clusters, None where they do; a benchmark of no category is a cluster of its own."""
    named = [name for name in categories if name is not None]
    if not named:
        return "The benchmarks sheet names no category."
    if len(named) == len(set(named)):
        return "No category has two benchmarks: the interval over benchmarks is that over categories."
    clusters = len(set(named)) + len(categories) - len(named)
    if clusters < LEAST_CLUSTERS:
        return Reason(f"There are fewer than {LEAST_CLUSTERS} categories.", ReasonCode.TOO_FEW)
    return None


def no_ceiling(included: np.ndarray, scores: np.ndarray, protocol: str) -> str:
    """Why a noise ceiling of `scores` (models, benchmarks) under `protocol`, over the benchmarks `included` (mask), is
    not defined."""
    if not np.isfinite(scores).any():
        return no_scores(protocol)
    if (np.isfinite(scores).sum(axis=0) >= 2).sum() < 2:
        return Reason(
            "Fewer than two benchmarks have scores of two models, so there is no noise ceiling.", ReasonCode.TOO_FEW
        )
    if included.sum() < 2:
        return Reason(
            "Fewer than two benchmarks on which models differ have standard errors, so there is no noise ceiling.",
            ReasonCode.TOO_FEW,
        )
    return Reason(
        "No two benchmarks with standard errors have models in common that differ, so there is no noise ceiling.",
        ReasonCode.TOO_FEW,
    )


def no_correction(ceiling: Ceiling, scores: np.ndarray, protocol: str) -> str | None:
    """Why a noise ceiling cannot correct a tau, None where it can."""
    if np.isnan(ceiling.mean_tau):
        return no_ceiling(ceiling.included, scores, protocol)
    if ceiling.models < LEAST_CORRECTED:
        return f"The noise ceiling is over {count(ceiling.models, 'model')}, fewer than {LEAST_CORRECTED}."
    if not ceiling.above_zero:
        return f"At a tau of {decimal(ceiling.mean_tau)} the noise ceiling is not clearly above 0."
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Values with their intervals, and in words.

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


class Estimate(NamedTuple):
    """A number of the rows with its intervals over models and over families, and how many things it rests on."""

    value: Value
    models: Range
    families: Range
    n: int

    @property
    def quoted(self) -> Interval[float] | None:
        """The interval that a sentence quotes: the wider of other models and other families."""
        return wider(self.models, self.families)


def estimate(rows: Rows, quantity: str, **place: Condition) -> Estimate:
    """The number at a place; missing where there is none."""
    row = rows.row(quantity, **place)
    value: Value = Missing("There is none.") if row is None else known(row.value, row.reason or "")
    models, families = (range_of(rows, quantity, over, **place) for over in ("models", "families"))
    return Estimate(value, models, families, 0 if row is None else row.n or 0)


def range_of(rows: Rows, quantity: str, over: str, **place: Condition) -> Range:
    """The interval of a number over something."""
    row = rows.row(quantity, over=over, **place)
    ends = None if row is None else ends_of(row)
    return Missing(row.reason if row and row.reason else "There is none.") if ends is None else Interval(*ends)


def value_in_words(value: Value, interval: Range | None = None, digits: int = 2, *, signed: bool = False) -> str:
    """`0.52 (95% interval 0.48 to 0.56)`, the number alone without an interval, `unknown` without a number."""
    return with_interval(number(value), interval if is_known(interval) else None, digits, signed=signed)


def in_words(interval: Range, *, signed: bool = False) -> str:
    """`0.48 to 0.56`; `unknown` without an interval."""
    if isinstance(interval, Missing):
        return "unknown"
    return " to ".join(decimal(float(end), signed=signed) for end in interval)


def shown_limit(ceiling: Value, tau: Value) -> Value:
    """The noise ceiling of a tau where a picture or a sentence may name it."""
    return known(shown_ceiling(number(ceiling), number(tau)), "It is not shown.")
