"""Values and intervals as rows hold them, why one is missing, how pages word them, and notes on the data."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lm_validity.results.put import Condition, Rows, ends_of
from lm_validity.statistics import Interval
from lm_validity.studies.agreement.score_matrix import MINIMUM_FAMILY, ScoreMatrix
from lm_validity.studies.agreement.statistics.noise import LEAST_CORRECTED, Ceiling, shown_ceiling
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, mean_over_pairs, pair_signs
from lm_validity.studies.agreement.statistics.resampling import LEAST_CLUSTERS, MOST_IN_ONE, cluster_numbers
from lm_validity.tables.schema import DIRECT, OWN, PROTOCOLS, TRAINED
from lm_validity.words import (
    UNDER,
    Missing,
    Reason,
    ReasonCode,
    count,
    decimal,
    is_known,
    known,
    listing,
    no_scores,
    number,
    with_interval,
    with_names,
)

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


# ----------------------------------------------------------------------------------------------------------------------
# Notes: what is missing, equal, assumed or left out of which comparison.

WHY_ABOVE = (
    "Where benchmarks order all models alike, this happens by chance in half of all tables. A ceiling counts the noise "
    "of each score as independent. Models that answer the same items share part of theirs, and so do benchmarks with "
    "items in common. Standard errors that are too large can cause this too."
)
FAR = (
    "Far from all other models: {}. A noise ceiling takes the distance to such a model for the scale of all "
    "differences: it is too low (measured: by .04), and the tau without noise too high."
)
OPPOSED = (
    "Nothing says whether higher or lower is better on {}, and the order of the models there is against that of the "
    "other benchmarks. Whether benchmarks agree is not known until the column `higher_is_better` of the benchmarks "
    "sheet says it: 0 if lower is better, else 1."
)


def resample_notes(resamples: int, asked_resamples: int) -> list[str]:
    """That a large table was resampled less often than asked for."""
    if resamples >= asked_resamples:
        return []
    return [f"The table is large: intervals over models are from {resamples} resamples instead of {asked_resamples}."]


def coverage_notes(
    matrix: ScoreMatrix, scores: dict[str, np.ndarray], stderr: dict[str, np.ndarray], tasks: list[str]
) -> list[str]:
    """What is missing, constant or without a standard error, in sentences."""
    notes = []
    for protocol in PROTOCOLS:
        known_cells = np.isfinite(scores[protocol])
        if not known_cells.any():
            continue
        planned, under = matrix.planned(protocol)[:, ~matrix.is_corpus], UNDER[protocol].capitalize()
        aside = np.isfinite(matrix.measured(protocol)[:, ~matrix.is_corpus]) & ~known_cells
        notes += _missing_notes(under, known_cells, matrix.models, tasks, planned, aside)
        columns = list(zip(tasks, scores[protocol].T, stderr[protocol].T, known_cells.T, strict=True))
        constant = [name for name, column, _, ok in columns if ok.sum() > 1 and np.ptp(column[ok]) == 0]
        twins = _same_rows(scores[protocol], matrix.models)
        without = [name for name, _, error, ok in columns if ok.any() and not np.isfinite(error[ok]).any()]
        notes += with_names(
            {
                f"{under}, all models have the same score on {{}}, so there is no tau.": constant,
                f"{under}, {{}} have exactly the same scores on all benchmarks. Perhaps it is one model twice.": twins,
                f"{under}, there are no standard errors on {{}}. Without them no difference is significant there, and "
                "the benchmark is not in the noise ceiling.": without,
            }
        )
    return notes


def _same_rows(scores: np.ndarray, models: tuple[str, ...]) -> list[str]:
    """Sets of models with equal scores on at least two benchmarks, and on all that they have."""
    rows: dict[bytes, list[str]] = {}
    for name, row in zip(models, scores, strict=True):
        if np.isfinite(row).sum() >= 2 and np.ptp(row[np.isfinite(row)]) > 0:
            rows.setdefault(np.nan_to_num(row, nan=np.inf).tobytes(), []).append(name)
    return [" and ".join(names) for names in rows.values() if len(names) > 1]


def comparison_notes(matrix: ScoreMatrix, in_both: np.ndarray, *, complete: bool) -> list[str]:
    """Which cells a comparison is over if it leaves some out; `in_both`: (models, benchmarks) under both protocols."""
    if complete or not all(matrix.has(p) for p in PROTOCOLS):
        return []
    models, benchmarks = in_both.any(axis=1).sum(), in_both.any(axis=0).sum()
    return [
        f"{in_both.sum()} of {in_both.size} cells ({count(models, 'model')}, {count(benchmarks, 'benchmark')}) are "
        "known under both protocols. Everything that compares the two uses these cells, and only values that are "
        "defined under both. Figures of one protocol use all of its cells."
    ]


def _missing_notes(
    under: str, finite: np.ndarray, models: tuple[str, ...], tasks: list[str], planned: np.ndarray, aside: np.ndarray
) -> list[str]:
    if finite.all():
        return []
    cells = [f"{models[i]} on {tasks[j]}" for i, j in zip(*np.nonzero(~finite & planned & ~aside), strict=True)]
    basis_of_tau = "each tau is over the models known on both benchmarks"
    notes = []
    if not planned.all():
        left_out = int((~finite & ~planned).sum())
        notes.append(f"{under}, {left_out} of {finite.size} cells are not planned and not missing; {basis_of_tau}.")
    if aside.any():
        notes.append(
            f"{under}, {aside.sum()} of {finite.size} cells were chosen by earlier scores. They are used for the "
            "ranks despite missing cells and for the predictions, but for no agreement."
        )
    if cells:
        notes.append(f"{under}, {len(cells)} of {finite.size} cells are missing ({listing(cells, 6)}); {basis_of_tau}.")
    nowhere = [name for name, row in zip(models, finite, strict=True) if not row.any()]
    return notes + with_names({f"{under}, there is no score at all for {{}}.": nowhere})


def ceiling_notes(
    protocol: str, included: np.ndarray, tasks: list[str], name: str, limit: float, value: float
) -> list[str]:
    """Which benchmarks the noise ceiling leaves out, where there is one, and why it is not shown where it is below the
    value called `name`. `included`: mask of the others; `limit`: the ceiling of that `value`."""
    notes, under = [], UNDER[protocol].capitalize()
    out = [task for task, is_used in zip(tasks, included, strict=True) if not is_used]
    if out and np.isfinite(limit):
        notes.append(f"{under}, the noise ceiling is over the benchmarks other than {listing(out)}.")
    if value > limit and not is_known(shown_limit(limit, value)):
        notes.append(
            f"{under}, the {name} ({decimal(value)}) is above its noise ceiling ({decimal(limit)}), which is therefore "
            f"not shown. {WHY_ABOVE}"
        )
    return notes


@dataclass(frozen=True)
class SelectedOnTest:
    """Train-before-test scores that look like the larger of both test scores: how many `cells` are known under both
    protocols, `equal` or `below` (none) under train before test, and the mean tau of its rankings without the equal
    ones."""

    equal: int
    below: int
    cells: int
    mean_tau_without: Value


def selected_on_test(matrix: ScoreMatrix, scores: dict[str, np.ndarray]) -> SelectedOnTest | None:
    """Whether train-before-test scores look like the larger of both test scores; None where they do not."""
    if set(matrix.sources) <= {OWN}:
        return None  # selected on validation; equal cells are those that fell back to the untouched model
    in_both_protocols = np.isfinite(scores[DIRECT]) & np.isfinite(scores[TRAINED])
    equal = in_both_protocols & (scores[TRAINED] == scores[DIRECT])
    below = in_both_protocols & (scores[TRAINED] < scores[DIRECT])
    # many equal cells mean that a protocol was copied or that scores are constant, which is something else
    if below.any() or not 5 <= equal.sum() <= in_both_protocols.sum() / 5:
        return None
    without = np.where(equal, np.nan, scores[TRAINED])
    return SelectedOnTest(
        equal=int(equal.sum()),
        below=0,
        cells=int(in_both_protocols.sum()),
        mean_tau_without=known(
            mean_over_pairs(kendall_tau_matrix(pair_signs(without))), "Without the equal cells no tau is defined."
        ),
    )


def selection_notes(chosen: SelectedOnTest | None) -> list[str]:
    """What scores chosen on the test split mean."""
    if chosen is None:
        return []
    return [
        f"No train-before-test score is below its direct score, and {chosen.equal} of {chosen.cells} are exactly "
        "equal. So the train-before-test scores of this table are the better of both protocols on the test split, "
        "not a choice made on validation. Where fine-tuning does not help, the score is then too high by chance, and "
        "the model keeps its direct score there. Without the equal cells the mean tau under train before test is "
        f"{decimal(number(chosen.mean_tau_without), 4)}."
    ]
