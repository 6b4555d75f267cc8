"""What the sections of the agreement report start from: scores, taus and ceilings by protocol, values and intervals as
rows hold them, and why one is missing."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from lm_validity import statistics, words
from lm_validity.results.put import Condition, Rows, ends_of
from lm_validity.statistics import Interval, section_generator
from lm_validity.studies.agreement import score_matrix
from lm_validity.studies.agreement.statistics import noise as noise_model
from lm_validity.studies.agreement.statistics import ranking, resampling
from lm_validity.studies.agreement.statistics.sparse import standing_of_missing
from lm_validity.tables.schema import DIRECT, OWN, PROTOCOLS, TRAINED
from lm_validity.words import Missing, Reason, ReasonCode, known, number, too_few

UNDERS = {"protocol": {p: sentence.capitalize() for p, sentence in words.UNDER.items()}}  # for templates
draws = partial(section_generator, seed=1)  # of resamples, by what they are for
JACKKNIFED = 5  # models; with fewer, the taus without each of them say nothing about other models
LEAST_RESAMPLES = 400
MOST_PRODUCTS, MOST_TAUS = 2**36, 2**24  # of all resamples: products of signs, and taus
# the share of the models that any two benchmarks have in common, from which on headlines are those of a whole table
NEARLY_WHOLE = 0.95
FEW_LOST = 0.05  # share of the scores that may be missing whatever they are
SEEN = 0.55  # standard deviations on either side of the standing of missing scores: with more, .8 would not be found
# what intervals take for granted where cells are missing that no plan left out
BY_CHANCE = " (intervals assume that cells are missing by chance)"


# ----------------------------------------------------------------------------------------------------------------------
# Why a number is missing or has no interval.

FEW_FAMILIES = 5
NO_TAU = too_few("The two benchmarks have fewer than two models in common, or all of those are tied on one of the two.")
SMALL_FAMILY = too_few(f"The family has fewer than {score_matrix.MINIMUM_FAMILY} models.")
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
    f"There are fewer than {resampling.LEAST_CLUSTERS} families, or one holds more than half of the models. Or leaving "
    "one of them out leaves no tau, or a tau of 1 or -1."
)
LOST_CATEGORY = (
    f"There are fewer than {resampling.LEAST_CLUSTERS} families, or one family or category holds more than half of its "
    "kind. Or leaving a family or a category out leaves no tau, or a tau of 1 or -1."
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
FEW_IN_BOTH = too_few("Fewer than 3 models have scores under both protocols.")


def no_clusters(
    names: Iterable[str | None], kind: str = "family", kinds: str = "families", unit: str = "models"
) -> str:
    """Why the families of models, or the categories of benchmarks, give no clusters, "" where they do. A unit without a
    name is a cluster by itself."""
    numbers = Counter(names)
    units, unnamed = numbers.total(), numbers.pop(None, 0)
    if not numbers:
        return f"The {unit} sheet names no {kind}."
    if len(numbers) == numbers.total():
        return f"No {kind} has two {unit}: the interval over {unit} is that over {kinds}."
    if len(numbers) + unnamed < resampling.LEAST_CLUSTERS:
        return too_few(f"There are fewer than {resampling.LEAST_CLUSTERS} {kinds}.")
    largest = max(numbers.values())
    return f"{largest} of {units} {unit} are of one {kind}." if largest > resampling.MOST_IN_ONE * units else ""


def no_ceiling(included: np.ndarray, scores: np.ndarray, protocol: str) -> str:
    """Why a noise ceiling of `scores` (models, benchmarks) under `protocol`, over the benchmarks `included` (mask), is
    not defined."""
    if not np.isfinite(scores).any():
        return words.no_scores(protocol)
    if (np.isfinite(scores).sum(axis=0) >= 2).sum() < 2:
        return too_few("Fewer than two benchmarks have scores of two models, so there is no noise ceiling.")
    if included.sum() < 2:
        return too_few(
            "Fewer than two benchmarks on which models differ have standard errors, so there is no noise ceiling."
        )
    return too_few(
        "No two benchmarks with standard errors have models in common that differ, so there is no noise ceiling."
    )


def no_correction(ceiling: noise_model.Ceiling, scores: np.ndarray, protocol: str) -> str | None:
    """Why a noise ceiling cannot correct a tau, None where it can."""
    if np.isnan(ceiling.mean_tau):
        return no_ceiling(ceiling.included, scores, protocol)
    if ceiling.models < (least := noise_model.LEAST_CORRECTED):
        return f"The noise ceiling is over {words.count(ceiling.models, 'model')}, fewer than {least}."
    if not ceiling.above_zero:
        return f"At a tau of {words.decimal(ceiling.mean_tau)} the noise ceiling is not clearly above 0."
    return None


WHY_ABOVE = (
    "Where benchmarks order all models alike, this happens by chance in half of all tables. A ceiling counts the noise "
    "of each score as independent. Models that answer the same items share part of theirs, and so do benchmarks with "
    "items in common. Standard errors that are too large can cause this too."
)


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
    many = resampling.cluster_numbers(families).max() + 1 >= FEW_FAMILIES
    if many or isinstance(interval, Missing) or isinstance(over_models, Missing):
        return interval
    narrower = interval.high - interval.low < over_models.high - over_models.low
    return Missing(NARROWER) if narrower else interval


class Estimate(NamedTuple):
    """A number of the rows with its intervals over models and over families, and how many things it rests on."""

    value: Value
    models: Range
    families: Range
    n: int

    @property
    def quoted(self) -> Interval[float] | None:
        """The interval that a claim about other models quotes: the wider of those that there are."""
        intervals = [interval for interval in (self.models, self.families) if not isinstance(interval, Missing)]
        return max(intervals, key=lambda interval: interval.high - interval.low, default=None)


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


def for_others(rows: Rows, quantity: str, **place: Condition) -> Range:
    """The interval of a number for other benchmarks, too: by categories, else by benchmarks."""
    by_category = range_of(rows, quantity, "categories", **place)
    return by_category if words.is_known(by_category) else range_of(rows, quantity, "benchmarks", **place)


def value_in_words(value: Value, interval: Range | None = None, digits: int = 2, *, signed: bool = False) -> str:
    """`0.52 (95% interval 0.48 to 0.56)`, the number alone without an interval, `unknown` without a number."""
    return words.with_interval(number(value), interval if words.is_known(interval) else None, digits, signed=signed)


def in_words(interval: Range, *, signed: bool = False) -> str:
    """`0.48 to 0.56`; `not known` without an interval."""
    if isinstance(interval, Missing):
        return "not known"
    return " to ".join(words.decimal(float(end), signed=signed) for end in interval)


def shown_limit(ceiling: Value, tau: Value) -> Value:
    """The noise ceiling of a tau where a picture or a sentence may name it."""
    return known(noise_model.shown_ceiling(number(ceiling), number(tau)), "It is not shown.")


class SelectedOnTest(NamedTuple):
    """Train-before-test scores that look like the larger of both test scores, of `cells` known under both protocols:
    how many are `equal`, none below, and the mean tau of its rankings without the equal ones."""

    equal: int
    cells: int
    mean_tau_without: Value


# ----------------------------------------------------------------------------------------------------------------------
# The scores, and what several sections compute from them.


@dataclass(frozen=True, eq=False)
class Data:
    """Scores with what several sections compute from them; by protocol, NaN where undefined.

    Arrays over benchmarks are in the order of `tasks`, without perplexity corpora. What is named `common` is over the
    cells known under both protocols, and NaN in the same places under both. `significant`: signs of the differences of
    two models that are significant. `paired_notes`: how these were tested, where items were given. `resamples` are at
    most the `requested_resamples`: fewer where the table is large.
    """

    matrix: score_matrix.ScoreMatrix
    significant: dict[str, ranking.PairSigns]
    resamples: int = 0
    paired_notes: tuple[str, ...] = ()
    requested_resamples: int = 0

    @classmethod
    def of(cls, matrix: score_matrix.ScoreMatrix, resamples: int = 0, items: str | Path | None = None) -> "Data":
        """`items`: makes significance paired; without, it is from the noise of items and of training again.

        At least 400 resamples of taus between all benchmarks, else as many as a minute and a gigabyte allow: time grows
        with pairs of models × pairs of benchmarks, memory with pairs of benchmarks.
        """
        models, benchmarks = len(matrix.models), len(matrix.task_names())
        products = max(1, models * (models - 1) // 2 * benchmarks * (benchmarks + 1) // 2)
        limit = min(MOST_PRODUCTS // products, MOST_TAUS // max(1, benchmarks**2))
        affordable = min(resamples, max(LEAST_RESAMPLES, limit))
        data = cls(matrix, {}, affordable)
        signs = {p: ranking.significant_signs(data.scores[p], data.noise[p]) for p in PROTOCOLS}
        notes = [] if items is None else score_matrix.use_paired_tests(signs, items, matrix)
        return cls(matrix, signs, affordable, tuple(notes), resamples)

    @cached_property
    def tasks(self) -> list[str]:
        """The names of the benchmarks, in the order of the columns."""
        return self.matrix.task_names()

    @cached_property
    def categories(self) -> list[str | None]:
        """The category of each benchmark, in the order of `tasks`; None where unknown."""
        of_tasks = self.matrix.benchmark_facts["category"][~self.matrix.is_corpus]
        return [name if isinstance(name, str) else None for name in of_tasks]

    @cached_property
    def scores(self) -> dict[str, np.ndarray]:
        """By protocol the scores (models, benchmarks), turned so that more is better; NaN where missing."""
        return {p: self.matrix.oriented(p)[:, ~self.matrix.is_corpus] for p in PROTOCOLS}

    @cached_property
    def stderr(self) -> dict[str, np.ndarray]:
        """By protocol the standard errors of the scores from their items, (models, benchmarks); NaN where unknown."""
        return {p: self.matrix.stderr[p][:, ~self.matrix.is_corpus] for p in PROTOCOLS}

    @cached_property
    def noise(self) -> dict[str, np.ndarray]:
        """(models, benchmarks) standard errors from items and, where it was measured, from training the model again."""
        trainings = {p: np.nan_to_num(self.matrix.training_error(p)[:, ~self.matrix.is_corpus]) for p in PROTOCOLS}
        return {p: np.sqrt(self.stderr[p] ** 2 + trainings[p] ** 2) for p in PROTOCOLS}

    @cached_property
    def corpora(self) -> dict[str, np.ndarray]:
        """(models, corpora) oriented scores on the perplexity corpora, NaN for models kept out of that analysis."""
        excluded = (~self.matrix.model_facts["in_perplexity_analysis"].fillna(value=True)).to_numpy(dtype=bool)
        return {
            p: np.where(excluded[:, None], np.nan, self.matrix.oriented(p)[:, self.matrix.is_corpus]) for p in PROTOCOLS
        }

    @cached_property
    def tau(self) -> dict[str, np.ndarray]:
        """By protocol Kendall's tau between benchmarks over all scores, (benchmarks, benchmarks); NaN where
        undefined."""
        return {p: ranking.kendall_tau_matrix(ranking.pair_signs(self.scores[p])) for p in PROTOCOLS}

    @cached_property
    def opposed(self) -> dict[str, list[str]]:
        """By protocol the benchmarks of which nothing says whether more is better, and that surely order the models
        against the others: turned around they would agree with them."""
        against = {p: np.isin(self.tasks, self.against[p]) for p in PROTOCOLS}
        return {p: self._names(noise_model.opposed_columns(self.scores[p], against[p])) for p in PROTOCOLS}

    @cached_property
    def against(self) -> dict[str, list[str]]:
        """By protocol the benchmarks of which nothing says whether more is better, and that order the models against
        the others, surely (`opposed`) or not."""
        assumed = self.matrix.assumed[~self.matrix.is_corpus]
        return {p: self._names(noise_model.columns_against(self.scores[p], assumed)) for p in PROTOCOLS}

    def _names(self, columns: np.ndarray) -> list[str]:
        return [name for name, is_meant in zip(self.tasks, columns, strict=True) if is_meant]

    def sure(self, intervals: dict[str, Range], *protocols: str) -> dict[str, Range]:
        """The intervals of a mean under the protocols; none where the direction of a benchmark must be known first."""
        asked = any(self.opposed[protocol] for protocol in protocols)
        return dict.fromkeys(intervals, Missing(DIRECTION_ASKED)) if asked else intervals

    def either_way(self, protocol: str, name: str, interval: Interval[float]) -> Interval[float]:
        """The interval of a tau of the benchmark with others, which holds whichever way it counts where it is
        `against` them."""
        turned = Interval(-interval.high, -interval.low)
        return resampling.hull(interval, turned) if name in self.against[protocol] else interval

    def turned(self, protocol: str) -> np.ndarray:
        """The scores (models, benchmarks) of a protocol with those of its `opposed` benchmarks the other way round."""
        return self.scores[protocol] * np.where(np.isin(self.tasks, self.opposed[protocol]), -1.0, 1.0)

    @cached_property
    def ceiling(self) -> dict[str, noise_model.Ceiling]:
        """The noise ceiling of each protocol, from all of its scores."""
        rng, groups = section_generator("noise ceiling", 0), score_matrix.distance_groups(self.matrix.sizes())
        errors = {p: score_matrix.measurement_error(self.matrix, p) for p in PROTOCOLS}
        return {p: noise_model.noise_ceiling(self.scores[p], errors[p], rng, groups=groups) for p in PROTOCOLS}

    @cached_property
    def common(self) -> dict[str, np.ndarray]:
        """(models, benchmarks) scores of the cells known under both protocols."""
        return ranking.known_in_all(self.scores)

    @cached_property
    def in_both(self) -> np.ndarray:
        """(models, benchmarks) True for the cells known under both protocols."""
        return np.asarray(np.isfinite(self.common[DIRECT]))

    @cached_property
    def models_in_both(self) -> np.ndarray:
        """Indices of the models that have a score under both protocols on at least one benchmark."""
        return np.flatnonzero(self.in_both.any(axis=1))

    @cached_property
    def common_tau(self) -> dict[str, np.ndarray]:
        """By protocol the taus between benchmarks, (benchmarks, benchmarks), over the cells known under both protocols;
        NaN under both where one is undefined."""
        return ranking.known_in_all(
            {p: ranking.kendall_tau_matrix(ranking.pair_signs(self.common[p])) for p in PROTOCOLS}
        )

    @cached_property
    def improved(self) -> ranking.ImprovedPairs:
        """The pairs of benchmarks whose tau is greater under train before test, of `common_tau`."""
        return ranking.improved_pairs(self.common_tau[DIRECT], self.common_tau[TRAINED])

    @cached_property
    def common_significant(self) -> dict[str, ranking.PairSigns]:
        """The significant differences over the cells known under both."""
        if self.in_both.all():
            return self.significant
        known_pairs = ranking.pair_signs(self.common[DIRECT]).known
        return {
            p: signs._replace(sign=signs.sign * known_pairs, known=signs.known * known_pairs)
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
    def no_intervals(self) -> Reason | None:
        """Why there are no intervals from resampling, None where there are."""
        if self.resamples == 0:
            return Reason("No resampling was asked for (--resamples 0).", ReasonCode.SKIPPED)
        models = len(self.matrix.models)
        few = too_few(f"There are too few models to resample ({models}).")
        return few if models < score_matrix.MINIMUM_FAMILY else None

    @cached_property
    def weights(self) -> np.ndarray:
        """(resamples, models) how often each model is in a resample."""
        return resampling.multiplicities(len(self.matrix.models), self.resamples, draws("models"))

    @cached_property
    def benchmark_weights(self) -> np.ndarray:
        """(resamples, benchmarks) how often each benchmark is in a resample."""
        return resampling.multiplicities(len(self.tasks), self.resamples, draws("benchmarks"))

    @cached_property
    def resampled_tau(self) -> dict[str, np.ndarray]:
        """By protocol the taus between benchmarks in each resample of models, (resamples, benchmarks, benchmarks)."""
        return {p: ranking.resampled_kendall_tau(ranking.pair_signs(self.scores[p]), self.weights) for p in PROTOCOLS}

    @property
    def incomplete(self) -> list[str]:
        """The protocols that have scores and lack some."""
        return [p for p in self.matrix.protocols if not np.isfinite(self.scores[p]).all()]

    @cached_property
    def lacks_many(self) -> bool:
        """Whether so many cells are missing that headlines are pooled, and say what intervals assume."""
        return any(ranking.fewest_in_common(self.scores[p]) < NEARLY_WHOLE for p in self.incomplete)

    @cached_property
    def lost(self) -> dict[str, np.ndarray]:
        """By protocol the cells (models, benchmarks) that were to be there, and are missing."""
        planned = {p: self.matrix.planned(p)[:, ~self.matrix.is_corpus] for p in PROTOCOLS}
        return {p: ~np.isfinite(self.scores[p]) & planned[p] for p in PROTOCOLS}

    @cached_property
    def standing_of_missing(self) -> dict[str, statistics.Estimate]:
        """By protocol how high its missing scores would stand, as all others tell (`sparse.standing_of_missing`)."""
        table, nothing = np.hstack([self.turned(p) for p in PROTOCOLS]), np.zeros(self.scores[DIRECT].shape, bool)
        return {
            p: standing_of_missing(table, np.hstack([self.lost[p] if q == p else nothing for q in PROTOCOLS]))
            for p in PROTOCOLS
        }

    def gaps(self, *protocols: str) -> Literal["", "by value", "not seen"]:
        """Whether more than a few scores are missing, and not by chance; or so that this could not be seen if it were
        so. A sentence on such a table would be one on what is missing."""
        unseen = False
        for p in protocols:
            value, (low, high) = self.standing_of_missing[p]
            if self.lost[p].sum() <= FEW_LOST * (self.lost[p] | np.isfinite(self.scores[p])).sum():
                continue
            if low > 0 or high < 0:
                return "by value"
            unseen |= not high - value <= SEEN
        return "not seen" if unseen else ""

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
            return words.no_scores(protocol)
        scored = np.isfinite(self.scores[protocol])
        if scored.any(axis=1).sum() < 2:
            return "One model has scores, so there is no ranking to compare."
        if scored.any(axis=0).sum() < 2:
            return "One benchmark has scores, so there are no two rankings to compare."
        return otherwise

    def mean_or_reason(self, protocol: str, mean: float, otherwise: str) -> Value:
        """A mean tau, missing where so few models have scores that beside the other protocol's it says nothing."""
        scored, models = self.models(protocol), len(self.matrix.models)
        if np.isfinite(mean) and scored < min(JACKKNIFED, models / 2):
            return Missing(
                f"{scored} of {models} models have scores {words.UNDER[protocol]}: too few to speak for the others."
            )
        return known(mean, self.no_tau(protocol, otherwise))

    def nothing_compared(self, kind: str) -> str:
        """Why nothing compares the two protocols."""
        absent = [p for p in PROTOCOLS if not self.matrix.has(p)]
        return words.no_scores(absent[0]) if absent else f"No pair of benchmarks has a {kind} under both protocols."

    @cached_property
    def selected_on_test(self) -> SelectedOnTest | None:
        """Whether train-before-test scores look like the larger of both test scores; None where they do not."""
        if set(self.matrix.sources) <= {OWN}:
            return None  # selected on validation; equal cells are those that fell back to the untouched model
        direct, trained = (self.scores[p] for p in PROTOCOLS)
        in_both = np.isfinite(direct) & np.isfinite(trained)
        equal = in_both & (trained == direct)
        # many equal cells mean that a protocol was copied or that scores are constant, which is something else
        if (in_both & (trained < direct)).any() or not 5 <= equal.sum() <= in_both.sum() / 5:
            return None
        tau = ranking.kendall_tau_matrix(ranking.pair_signs(np.where(equal, np.nan, trained)))
        mean = known(ranking.mean_over_pairs(tau), "Without the equal cells no tau is defined.")
        return SelectedOnTest(int(equal.sum()), int(in_both.sum()), mean)
