"""What the sections of the agreement report start from: scores, taus and ceilings by protocol, notes on these; and how
both reports give values: with intervals, with reasons, in words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, Reason, ReasonCode, is_known, known, number
from lm_validity.statistics import Interval, section_generator
from lm_validity.studies.agreement.paired import use_paired_tests
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, Sizes
from lm_validity.studies.agreement.statistics.noise import (
    LEAST_CORRECTED,
    Ceiling,
    noise_ceiling,
    opposed_columns,
    shown_ceiling,
)
from lm_validity.studies.agreement.statistics.ranking import (
    PairSigns,
    RankAgreement,
    TauVariant,
    fewest_in_common,
    improved_pairs,
    kendall_tau_matrix,
    known_in_all,
    mean_over_pairs,
    pair_signs,
    resampled_kendall_tau,
    significant_signs,
    summarize_agreement,
)
from lm_validity.studies.agreement.statistics.resampling import (
    LEAST_CLUSTERS,
    MOST_IN_ONE,
    cluster_numbers,
    multiplicities,
)
from lm_validity.tables.reruns import NOT_MEASURED
from lm_validity.tables.schema import DIRECT, OWN, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, count, decimal, listing, no_scores, with_interval, with_names

draws = partial(section_generator, seed=1)  # of resamples, by what they are for
Value = float | Missing
Range = Interval[float] | Missing
ByProtocol = dict[str, Value]
Entry = dict[str, Any]  # of summary.json, with `Missing` where a value is
MINIMUM_FAMILY = 3  # models of a family: with two a tau can only be -1, 0 or 1
JACKKNIFED = 5  # models; with fewer, the taus without each of them say nothing about other models
FEW_FAMILIES = 5
LEAST_RESAMPLES = 400
MOST_PRODUCTS, MOST_TAUS = 2**36, 2**24  # of all resamples: products of signs, and taus
MOST_DRAWN = 150  # models that a figure with a row for each one shows
# the share of the models that any two benchmarks have in common, from which on headlines are those of a whole table
NEARLY_WHOLE = 0.95
DISTANCE_EDGES = (1.25, 2.0, 4.0)  # ratios of two models' sizes that reports tell apart
# what intervals take for granted where cells are missing that no plan left out
BY_CHANCE = " (intervals assume that cells are missing by chance)"

# ----------------------------------------------------------------------------------------------------------------------
# Why there is no value or no interval.

NO_FAMILIES = f"The models sheet names no family of at least {MINIMUM_FAMILY} models with scores."
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
WHY_ABOVE = (
    "Where benchmarks order all models alike, this happens by chance in half of all tables. A ceiling counts the noise "
    "of each score as independent. Models that answer the same items share part of theirs, and so do benchmarks with "
    "items in common. Standard errors that are too large can cause this too."
)
NARROWER = (
    f"There are fewer than {FEW_FAMILIES} families, and it would be narrower than the interval over models: these "
    "families happen to differ less than their models do, which says nothing about other families."
)
OPPOSED = (
    "Nothing says whether higher or lower is better on {}, and the order of the models there is against that of the "
    "other benchmarks. Whether benchmarks agree is not known until the column `higher_is_better` of the benchmarks "
    "sheet says it: 0 if lower is better, else 1."
)
OTHER_TAU = Reason(
    "Intervals, noise ceilings and corrections are of tau-b: another variant (--tau) has none.", ReasonCode.NOT_COMPUTED
)
NO_DIRECTION = Reason(
    "Nothing says whether higher or lower is better on it, and its order of the models is against the others'.",
    ReasonCode.NO_INTERVAL,
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
    size_of_largest = named.count(largest)
    return (
        f"{size_of_largest} of {len(families)} models are of one family."
        if size_of_largest > MOST_IN_ONE * len(families)
        else ""
    )


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


def shown_mean(compared: Value, own_mean: Value, interval: Range | None) -> str:
    """A mean of a comparison; with the interval where it is that of the protocol's `own_mean` mean."""
    return value_in_words(compared, interval if compared == own_mean else None)


def which_interval(clustered: Sequence[Range]) -> str:
    """What both intervals are for, or why there is none over families."""
    if any(is_known(interval) for interval in clustered):
        return WHICH_INTERVAL
    reasons = [interval.reason for interval in clustered if isinstance(interval, Missing)]
    return f"There is no interval over families. {reasons[0]}"


def over_both(*, partly: bool) -> str:
    """The end of a sentence that compares the protocols where that leaves cells out."""
    return ", over what is known under both protocols" if partly else ""


def shown_limit(ceiling: Value, tau: Value) -> Value:
    """The noise ceiling of a tau where a picture or a sentence may name it."""
    return known(shown_ceiling(number(ceiling), number(tau)), "It is not shown.")


def noise_leaves(taus: dict[str, tuple[Value, Value]]) -> str:
    """The noise ceilings that are shown, in a sentence to follow that on the taus. `taus`: with their ceilings."""
    limits = {p: shown_limit(ceiling, tau) for p, (tau, ceiling) in taus.items()}
    parts = [f"{value_in_words(limit)} {UNDER[p]}" for p, limit in limits.items() if is_known(limit)]
    return f" Noise would leave benchmarks that order all models alike {' and '.join(parts)}." if parts else ""


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


# ----------------------------------------------------------------------------------------------------------------------
# The data.


@dataclass(frozen=True, eq=False)
class Data:
    """Scores with what several sections compute from them; by protocol, NaN where undefined.

    Arrays over benchmarks are in the order of `tasks`, without perplexity corpora. What is named `common` is over the
    cells known under both protocols, and NaN in the same places under both. `significant`: signs of the differences of
    two models that are significant. `paired_notes`: how these were tested, where items were given. `resamples` are at
    most those `asked` for: fewer where the table is large.
    """

    matrix: ScoreMatrix
    significant: dict[str, PairSigns]
    resamples: int = 0
    variant: TauVariant = "b"
    paired_notes: tuple[str, ...] = ()
    asked: int = 0

    @classmethod
    def of(
        cls, matrix: ScoreMatrix, resamples: int = 0, variant: TauVariant = "b", items: str | Path | None = None
    ) -> "Data":
        """`items`: makes significance paired; without, it is from the noise of items and of training again."""
        asked_resamples, resamples = (
            resamples,
            affordable_resamples(resamples, len(matrix.models), len(matrix.task_names())),
        )
        data = cls(matrix, {}, resamples, variant)
        signs = {p: significant_signs(data.scores[p], data.noise[p]) for p in PROTOCOLS}
        notes: list[str] = []
        if items is not None:
            signs, notes = use_paired_tests(signs, items, matrix, data.tasks)
        return cls(matrix, signs, resamples, variant, tuple(notes), asked_resamples)

    @cached_property
    def tasks(self) -> list[str]:
        """The names of the benchmarks, in the order of the columns."""
        return self.matrix.task_names()

    @cached_property
    def categories(self) -> list[str | None]:
        """Of each benchmark, None where unknown."""
        of_tasks = self.matrix.benchmark_facts["category"][~self.matrix.is_corpus]
        return [name if isinstance(name, str) else None for name in of_tasks]

    @cached_property
    def scores(self) -> dict[str, np.ndarray]:
        """(models, benchmarks) of which more is better."""
        return {p: self.matrix.oriented(p)[:, ~self.matrix.is_corpus] for p in PROTOCOLS}

    @cached_property
    def stderr(self) -> dict[str, np.ndarray]:
        """(models, benchmarks) standard errors from items."""
        return {p: self.matrix.stderr[p][:, ~self.matrix.is_corpus] for p in PROTOCOLS}

    @cached_property
    def training_error(self) -> dict[str, np.ndarray]:
        """(models, benchmarks) standard deviations between trainings of one model."""
        return {p: self.matrix.training_error(p)[:, ~self.matrix.is_corpus] for p in PROTOCOLS}

    @cached_property
    def noise(self) -> dict[str, np.ndarray]:
        """(models, benchmarks) standard errors from items and, where it was measured, from training the model again."""
        return {p: np.sqrt(self.stderr[p] ** 2 + np.nan_to_num(self.training_error[p]) ** 2) for p in PROTOCOLS}

    @cached_property
    def corpora(self) -> dict[str, np.ndarray]:
        """(models, corpora) oriented scores on the perplexity corpora, NaN for models kept out of that analysis."""
        excluded = (~self.matrix.model_facts["in_perplexity_analysis"].fillna(value=True)).to_numpy(dtype=bool)
        return {
            p: np.where(excluded[:, None], np.nan, self.matrix.oriented(p)[:, self.matrix.is_corpus]) for p in PROTOCOLS
        }

    @cached_property
    def tau(self) -> dict[str, np.ndarray]:
        """(benchmarks, benchmarks) over all scores of each protocol."""
        return {p: kendall_tau_matrix(pair_signs(self.scores[p]), variant=self.variant) for p in PROTOCOLS}

    @cached_property
    def opposed(self) -> dict[str, list[str]]:
        """By protocol the benchmarks of which nothing says whether more is better, and that surely order the models
        against the others: turned around they would agree with them."""
        opposed_by_protocol = {
            p: opposed_columns(self.scores[p], self.matrix.assumed[~self.matrix.is_corpus]) for p in PROTOCOLS
        }
        return {
            p: [name for name, opposed in zip(self.tasks, columns, strict=True) if opposed]
            for p, columns in opposed_by_protocol.items()
        }

    def turned(self, protocol: str) -> np.ndarray:
        """(models, benchmarks) scores with those of `opposed` benchmarks the other way round."""
        return self.scores[protocol] * np.where(np.isin(self.tasks, self.opposed[protocol]), -1.0, 1.0)

    def turned_mean_tau(self, protocol: str) -> float:
        """The mean tau of `turned` scores."""
        return mean_over_pairs(kendall_tau_matrix(pair_signs(self.turned(protocol)), variant=self.variant))

    @cached_property
    def agreement(self) -> dict[str, RankAgreement]:
        """The means of `tau` under each protocol, over all pairs and within categories."""
        return {p: summarize_agreement(self.tau[p], self.categories) for p in PROTOCOLS}

    @cached_property
    def ceiling(self) -> dict[str, Ceiling]:
        """The noise ceiling of each protocol, from all of its scores."""
        rng, groups = section_generator("noise ceiling", 0), distance_groups(self.matrix.sizes())
        return {
            p: noise_ceiling(self.scores[p], measurement_error(self.matrix, p), rng, groups=groups) for p in PROTOCOLS
        }

    @cached_property
    def common(self) -> dict[str, np.ndarray]:
        """(models, benchmarks) scores of the cells known under both protocols."""
        return known_in_all(self.scores)

    @cached_property
    def in_both(self) -> np.ndarray:
        """(models, benchmarks) True for the cells known under both protocols."""
        result: np.ndarray = np.isfinite(self.common[DIRECT])
        return result

    @cached_property
    def models_in_both(self) -> np.ndarray:
        """Indices of the models with such a cell."""
        return np.flatnonzero(self.in_both.any(axis=1))

    @cached_property
    def common_tau(self) -> dict[str, np.ndarray]:
        """(benchmarks, benchmarks) taus that are defined under both."""
        return known_in_all(
            {p: kendall_tau_matrix(pair_signs(self.common[p]), variant=self.variant) for p in PROTOCOLS}
        )

    @cached_property
    def common_agreement(self) -> dict[str, RankAgreement]:
        """The means of `common_tau` under each protocol, over all pairs and within categories."""
        return {p: summarize_agreement(self.common_tau[p], self.categories) for p in PROTOCOLS}

    @cached_property
    def improved(self) -> tuple[int, int]:
        """(pairs of benchmarks whose tau is greater under train before test, pairs compared)."""
        return improved_pairs(self.common_tau[DIRECT], self.common_tau[TRAINED])

    @cached_property
    def common_significant(self) -> dict[str, PairSigns]:
        """The significant differences over the cells known under both."""
        if self.in_both.all():
            return self.significant
        in_both_protocols = pair_signs(self.common[DIRECT]).known
        return {
            p: PairSigns(signs.sign * in_both_protocols, signs.known * in_both_protocols, signs.first, signs.second)
            for p, signs in self.significant.items()
        }

    @cached_property
    def whole(self) -> bool:
        """Whether a comparison of the protocols leaves out no cell and no tau."""
        return all(
            np.array_equal(self.common[p], self.scores[p], equal_nan=True)
            and np.array_equal(self.common_tau[p], self.tau[p], equal_nan=True)
            for p in PROTOCOLS
        )

    @cached_property
    def compared_scores(self) -> dict[str, np.ndarray]:
        """`common` without benchmarks that rank no two models under one of the protocols."""
        ranked = np.logical_and.reduce([np.isfinite(np.diag(tau)) for tau in self.common_tau.values()])
        return {p: np.where(ranked, values, np.nan) for p, values in self.common.items()}

    @property
    def side_by_side(self) -> dict[str, RankAgreement]:
        """What sentences on both protocols read: means over common cells, or each protocol's own without any."""
        return self.common_agreement if self.improved[1] else self.agreement

    @property
    def significant_side_by_side(self) -> dict[str, PairSigns]:
        """The significant differences that pictures of both protocols show, likewise."""
        return self.common_significant if len(self.models_in_both) else self.significant

    @property
    def no_intervals(self) -> str:
        """Why there are no intervals from resampling, empty where there are."""
        return no_intervals(self.resamples, len(self.matrix.models))

    @cached_property
    def weights(self) -> np.ndarray:
        """(resamples, models) how often each model is in a resample."""
        return multiplicities(len(self.matrix.models), self.resamples, draws("models"))

    @cached_property
    def benchmark_weights(self) -> np.ndarray:
        """(resamples, benchmarks) how often each benchmark is in a resample."""
        return multiplicities(len(self.tasks), self.resamples, draws("benchmarks"))

    @cached_property
    def resampled_tau(self) -> dict[str, np.ndarray]:
        """(resamples, benchmarks, benchmarks) over models."""
        return {p: resampled_kendall_tau(pair_signs(self.scores[p]), self.weights) for p in PROTOCOLS}

    @property
    def incomplete(self) -> list[str]:
        """The protocols that have scores and lack some."""
        return [p for p in self.matrix.protocols if not np.isfinite(self.scores[p]).all()]

    @cached_property
    def lacks_many(self) -> bool:
        """Whether so many cells are missing that headlines are pooled, and say what intervals assume."""
        return any(fewest_in_common(self.scores[p]) < NEARLY_WHOLE for p in self.incomplete)

    @property
    def assumed(self) -> str:
        """What intervals of a table that lacks many cells take for granted, said before them."""
        return BY_CHANCE if self.lacks_many else ""

    def models(self, protocol: str) -> int:
        """How many models have a score under a protocol."""
        return int(np.isfinite(self.scores[protocol]).any(axis=1).sum())

    def no_tau(self, protocol: str, otherwise: str) -> str:
        """Why a protocol has no tau at all, else `otherwise`."""
        if not self.matrix.has(protocol):
            return no_scores(protocol)
        scored = np.isfinite(self.scores[protocol])
        if scored.any(axis=1).sum() < 2:
            return "One model has scores, so there is no ranking to compare."
        if scored.any(axis=0).sum() < 2:
            return "One benchmark has scores, so there are no two rankings to compare."
        return otherwise

    def mean_tau(self, protocol: str) -> Value:
        """The mean over the pairs of benchmarks of all scores under a protocol."""
        return self.mean_or_reason(
            protocol, self.agreement[protocol].mean, f"No pair of benchmarks has a tau. {NO_TAU}"
        )

    def mean_or_reason(self, protocol: str, mean: float, otherwise: str) -> Value:
        """A mean tau, missing where so few models have scores that beside the other protocol's it says nothing."""
        scored, models = self.models(protocol), len(self.matrix.models)
        if np.isfinite(mean) and scored < min(JACKKNIFED, models / 2):
            return Missing(
                f"{scored} of {models} models have scores {UNDER[protocol]}: too few to speak for the others."
            )
        return known(mean, self.no_tau(protocol, otherwise))

    def nothing_compared(self, kind: str) -> str:
        """Why nothing compares the two protocols."""
        absent = [p for p in PROTOCOLS if not self.matrix.has(p)]
        return no_scores(absent[0]) if absent else f"No pair of benchmarks has a {kind} under both protocols."

    @property
    def notes(self) -> list[str]:
        """On the data, and on what is left out of which comparison."""
        in_corpora = np.any([np.isfinite(scores).any(axis=1) for scores in self.corpora.values()], axis=0)
        absent = np.array(self.matrix.labels)[~in_corpora & self.matrix.is_corpus.any()]
        return [
            *self.matrix.notes,
            *resample_notes(self.resamples, self.asked),
            *coverage_notes(self.matrix, self.scores, self.stderr, self.tasks),
            *self.paired_notes,
            *comparison_notes(self.matrix, self.in_both, complete=self.whole),
            *family_notes(self.matrix.families),
            *with_names({"No perplexity of {}: left out of the comparisons with perplexity.": list(absent)}),
            *(
                note
                for p, entry in self.ceiling.items()
                for note in ceiling_notes(p, entry, self.tasks, "mean tau", entry.mean_tau, self.agreement[p].mean)
            ),
            *selection_notes(selected_on_test(self.matrix, self.scores)),
            *with_names({OPPOSED: list(dict.fromkeys(name for entry in self.opposed.values() for name in entry))}),
            *([] if any(self.matrix.training.values()) else [NOT_MEASURED]),
        ]


def affordable_resamples(resamples: int, models: int, benchmarks: int) -> int:
    """As many `resamples` of taus between all benchmarks as a minute and a gigabyte allow, at least 400 of them.

    Time grows with pairs of models × pairs of benchmarks, memory with pairs of benchmarks.
    """
    products = max(1, models * (models - 1) // 2 * benchmarks * (benchmarks + 1) // 2)
    limit = min(MOST_PRODUCTS // products, MOST_TAUS // max(1, benchmarks**2))
    return min(resamples, max(LEAST_RESAMPLES, limit))


def resample_notes(resamples: int, asked_resamples: int) -> list[str]:
    """That a large table was resampled less often than asked for."""
    if resamples >= asked_resamples:
        return []
    return [f"The table is large: intervals over models are from {resamples} resamples instead of {asked_resamples}."]


def measurement_error(matrix: ScoreMatrix, protocol: str) -> np.ndarray:
    """(models, benchmarks) standard errors of the scores from items and, where several were trained, from seeds of the
    fine-tune and from trainings of the model.

    A benchmark without repeated trainings has the noise of its items alone. NaN where standard errors are.
    """
    errors = matrix.stderr[protocol], matrix.seed_error(protocol), matrix.training_error(protocol)
    stderr, seed_error, training_error = (error[:, ~matrix.is_corpus] for error in errors)
    result: np.ndarray = np.sqrt(stderr**2 + np.nan_to_num(seed_error) ** 2 + np.nan_to_num(training_error) ** 2)
    return result


def size_ratios(size: np.ndarray) -> np.ndarray:
    """(models, models) the larger over the smaller `size` (models,), less rounding; NaN where one is unknown."""
    logarithm = np.log(np.where(size > 0, size, np.nan))
    ratios: np.ndarray = np.exp(np.abs(logarithm[:, None] - logarithm)) * (1 - 1e-9)
    return ratios


def distance_groups(sizes: Sizes) -> np.ndarray:
    """(pairs,) numbers of the groups of pairs of models, as `pair_signs` has them, that no distance in size or compute
    of a report divides."""
    pairs, groups = np.triu_indices(len(sizes.parameters), 1), []
    for size in sizes:
        ratio = size_ratios(size)[pairs]
        groups.append(
            np.where(np.isnan(ratio), len(DISTANCE_EDGES) + 1, np.digitize(ratio, DISTANCE_EDGES, right=True))
        )
    return np.unique(np.array(groups), axis=1, return_inverse=True)[1].ravel()


def family_members(families: np.ndarray) -> dict[str, np.ndarray]:
    """Indices of the models of each family, in order of first appearance."""
    return {name: np.flatnonzero(families == name) for name in dict.fromkeys(families) if name is not None}


def large_families(families: np.ndarray) -> dict[str, np.ndarray]:
    """`family_members` of the families of at least `MINIMUM_FAMILY` models."""
    return {name: rows for name, rows in family_members(families).items() if len(rows) >= MINIMUM_FAMILY}


def tuned_members(matrix: ScoreMatrix) -> dict[str, np.ndarray]:
    """Indices of base and of instruction-tuned models; models of unknown kind are in neither."""
    tuned = matrix.model_facts["instruction_tuned"]
    return {
        "base": np.flatnonzero(tuned.eq(other=False).fillna(value=False)),
        "instruction_tuned": np.flatnonzero(tuned.eq(other=True).fillna(value=False)),
    }


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


def family_notes(families: np.ndarray) -> list[str]:
    """Which families are too small for figures of their own."""
    large = large_families(families)
    sentence = f"Families of fewer than {MINIMUM_FAMILY} models get no figures of their own: {{}}."
    return with_names({sentence: [name for name in family_members(families) if name not in large]})


def ceiling_notes(
    protocol: str, ceiling: Ceiling, tasks: list[str], name: str, limit: float, value: float
) -> list[str]:
    """Which benchmarks the noise ceiling leaves out, where there is one, and why it is not shown where it is below the
    value called `name`. `limit`: the ceiling of that `value`."""
    notes, under = [], UNDER[protocol].capitalize()
    out = [task for task, is_used in zip(tasks, ceiling.used, strict=True) if not is_used]
    if out and np.isfinite(ceiling.mean_tau):
        notes.append(f"{under}, the noise ceiling is over the benchmarks other than {listing(out)}.")
    if value > limit and not is_known(shown_limit(limit, value)):
        notes.append(
            f"{under}, the {name} ({decimal(value)}) is above its noise ceiling ({decimal(limit)}), which is therefore "
            f"not shown. {WHY_ABOVE}"
        )
    return notes


def no_ceiling(ceiling: Ceiling, scores: np.ndarray, protocol: str) -> str:
    """Why a noise ceiling of `scores` (models, benchmarks) under `protocol` is not defined."""
    if not np.isfinite(scores).any():
        return no_scores(protocol)
    if (np.isfinite(scores).sum(axis=0) >= 2).sum() < 2:
        return Reason(
            "Fewer than two benchmarks have scores of two models, so there is no noise ceiling.", ReasonCode.TOO_FEW
        )
    if ceiling.used.sum() < 2:
        return Reason(
            "Fewer than two benchmarks on which models differ have standard errors, so there is no noise ceiling.",
            ReasonCode.TOO_FEW,
        )
    return Reason(
        "No two benchmarks with standard errors have models in common that differ, so there is no noise ceiling.",
        ReasonCode.TOO_FEW,
    )


def no_correction(ceiling: Ceiling, scores: np.ndarray, protocol: str) -> str:
    """Why a noise ceiling cannot correct a tau, empty where it can."""
    if np.isnan(ceiling.mean_tau):
        return no_ceiling(ceiling, scores, protocol)
    if ceiling.models < LEAST_CORRECTED:
        return f"The noise ceiling is over {count(ceiling.models, 'model')}, fewer than {LEAST_CORRECTED}."
    if not ceiling.above_zero:
        return f"At a tau of {decimal(ceiling.mean_tau)} the noise ceiling is not clearly above 0."
    return ""


def selected_on_test(matrix: ScoreMatrix, scores: dict[str, np.ndarray]) -> Entry | None:
    """Train-before-test scores that look like the larger of both test scores: `equal` cells, `below` (none), and the
    mean tau of these rankings without the equal cells. None where the scores do not look so."""
    if set(matrix.sources) <= {OWN}:
        return None  # selected on validation; equal cells are those that fell back to the untouched model
    in_both_protocols = np.isfinite(scores[DIRECT]) & np.isfinite(scores[TRAINED])
    equal = in_both_protocols & (scores[TRAINED] == scores[DIRECT])
    below = in_both_protocols & (scores[TRAINED] < scores[DIRECT])
    # many equal cells mean that a protocol was copied or that scores are constant, which is something else
    if below.any() or not 5 <= equal.sum() <= in_both_protocols.sum() / 5:
        return None
    without = np.where(equal, np.nan, scores[TRAINED])
    return {
        "equal": int(equal.sum()),
        "below": 0,
        "cells": int(in_both_protocols.sum()),
        "mean_tau_without": known(
            mean_over_pairs(kendall_tau_matrix(pair_signs(without))), "Without the equal cells no tau is defined."
        ),
    }


def selection_notes(chosen: Entry | None) -> list[str]:
    """What scores chosen on the test split mean."""
    if chosen is None:
        return []
    return [
        f"No train-before-test score is below its direct score, and {chosen['equal']} of {chosen['cells']} are exactly "
        "equal. So the train-before-test scores of this table are the better of both protocols on the test split, "
        "not a choice made on validation. Where fine-tuning does not help, the score is then too high by chance, and "
        "the model keeps its direct score there. Without the equal cells the mean tau under train before test is "
        f"{decimal(number(chosen['mean_tau_without']), 4)}."
    ]
