"""What the sections of the agreement report start from: scores, taus and ceilings by protocol, with notes on these."""

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np

from lm_validity.statistics import Interval, section_generator
from lm_validity.studies.agreement import values as said
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, distance_groups, measurement_error, use_paired_tests
from lm_validity.studies.agreement.statistics import ranking
from lm_validity.studies.agreement.statistics.benchmark import Estimate, columns_against, opposed_columns
from lm_validity.studies.agreement.statistics.noise import Ceiling, far_models, in_clumps, noise_ceiling
from lm_validity.studies.agreement.statistics.resampling import hull, multiplicities
from lm_validity.studies.agreement.statistics.sparse import standing_of_missing
from lm_validity.studies.agreement.values import DIRECTION_ASKED, Range, Value, no_intervals
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.tables.training import NOT_MEASURED
from lm_validity.words import UNDER, Missing, Reason, known, no_scores, with_names

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


@dataclass(frozen=True, eq=False)
class Data:
    """Scores with what several sections compute from them; by protocol, NaN where undefined.

    Arrays over benchmarks are in the order of `tasks`, without perplexity corpora. What is named `common` is over the
    cells known under both protocols, and NaN in the same places under both. `significant`: signs of the differences of
    two models that are significant. `paired_notes`: how these were tested, where items were given. `resamples` are at
    most the `requested_resamples`: fewer where the table is large.
    """

    matrix: ScoreMatrix
    significant: dict[str, ranking.PairSigns]
    resamples: int = 0
    paired_notes: tuple[str, ...] = ()
    requested_resamples: int = 0

    @classmethod
    def of(cls, matrix: ScoreMatrix, resamples: int = 0, items: str | Path | None = None) -> "Data":
        """`items`: makes significance paired; without, it is from the noise of items and of training again."""
        affordable = affordable_resamples(resamples, len(matrix.models), len(matrix.task_names()))
        data = cls(matrix, {}, affordable)
        signs = {p: ranking.significant_signs(data.scores[p], data.noise[p]) for p in PROTOCOLS}
        notes: list[str] = []
        if items is not None:
            signs, notes = use_paired_tests(signs, items, matrix, data.tasks)
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
        """By protocol Kendall's tau between benchmarks over all scores, (benchmarks, benchmarks); NaN where
        undefined."""
        return {p: ranking.kendall_tau_matrix(ranking.pair_signs(self.scores[p])) for p in PROTOCOLS}

    @cached_property
    def opposed(self) -> dict[str, list[str]]:
        """By protocol the benchmarks of which nothing says whether more is better, and that surely order the models
        against the others: turned around they would agree with them."""
        against = {p: np.isin(self.tasks, self.against[p]) for p in PROTOCOLS}
        return {p: self._names(opposed_columns(self.scores[p], against[p])) for p in PROTOCOLS}

    @cached_property
    def clumped(self) -> dict[str, bool]:
        """By protocol whether models lie in clumps, so that what noise explains within them is hardly known."""
        return {p: in_clumps(self.scores[p]) for p in PROTOCOLS}

    @cached_property
    def far(self) -> dict[str, list[str]]:
        """By protocol the labels of models that lie far from all others."""
        labels = np.array(self.matrix.labels, dtype=object)
        return {p: labels[far_models(self.scores[p])].tolist() for p in self.matrix.protocols}

    @cached_property
    def against(self) -> dict[str, list[str]]:
        """By protocol the benchmarks of which nothing says whether more is better, and that order the models against
        the others, surely (`opposed`) or not."""
        assumed = self.matrix.assumed[~self.matrix.is_corpus]
        return {p: self._names(columns_against(self.scores[p], assumed)) for p in PROTOCOLS}

    def _names(self, columns: np.ndarray) -> list[str]:
        return [name for name, is_meant in zip(self.tasks, columns, strict=True) if is_meant]

    def sure(self, intervals: dict[str, Range], *protocols: str) -> dict[str, Range]:
        """The intervals of a mean under the protocols; none where the direction of a benchmark must be known first."""
        asked = any(self.opposed[protocol] for protocol in protocols)
        return dict.fromkeys(intervals, Missing(DIRECTION_ASKED)) if asked else intervals

    def either_way(self, protocol: str, name: str, interval: Interval[float]) -> Interval[float]:
        """The interval of a tau of the benchmark with others, which holds whichever way it counts where it is
        `against` them."""
        return hull(interval, Interval(-interval.high, -interval.low)) if name in self.against[protocol] else interval

    def turned(self, protocol: str) -> np.ndarray:
        """The scores (models, benchmarks) of a protocol with those of its `opposed` benchmarks the other way round."""
        return self.scores[protocol] * np.where(np.isin(self.tasks, self.opposed[protocol]), -1.0, 1.0)

    def turned_mean_tau(self, protocol: str) -> float:
        """The mean tau of `turned` scores."""
        return ranking.mean_over_pairs(ranking.kendall_tau_matrix(ranking.pair_signs(self.turned(protocol))))

    @cached_property
    def agreement(self) -> dict[str, ranking.RankAgreement]:
        """The means of `tau` under each protocol, over all pairs and within categories."""
        return {p: ranking.summarize_agreement(self.tau[p], self.categories) for p in PROTOCOLS}

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
        return ranking.known_in_all(self.scores)

    @cached_property
    def in_both(self) -> np.ndarray:
        """(models, benchmarks) True for the cells known under both protocols."""
        result: np.ndarray = np.isfinite(self.common[DIRECT])
        return result

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
    def common_agreement(self) -> dict[str, ranking.RankAgreement]:
        """The means of `common_tau` under each protocol, over all pairs and within categories."""
        return {p: ranking.summarize_agreement(self.common_tau[p], self.categories) for p in PROTOCOLS}

    @cached_property
    def improved(self) -> ranking.ImprovedPairs:
        """The pairs of benchmarks whose tau is greater under train before test, of `common_tau`."""
        return ranking.improved_pairs(self.common_tau[DIRECT], self.common_tau[TRAINED])

    @cached_property
    def common_significant(self) -> dict[str, ranking.PairSigns]:
        """The significant differences over the cells known under both."""
        if self.in_both.all():
            return self.significant
        in_both_protocols = ranking.pair_signs(self.common[DIRECT]).known
        return {
            p: ranking.PairSigns(
                signs.sign * in_both_protocols, signs.known * in_both_protocols, signs.first, signs.second
            )
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
    def side_by_side(self) -> dict[str, ranking.RankAgreement]:
        """What sentences on both protocols read: means over common cells, or each protocol's own without any."""
        return self.common_agreement if self.improved.compared else self.agreement

    @property
    def no_intervals(self) -> Reason | None:
        """Why there are no intervals from resampling, None where there are."""
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
    def standing_of_missing(self) -> dict[str, Estimate]:
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
            return no_scores(protocol)
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
            *said.resample_notes(self.resamples, self.requested_resamples),
            *said.coverage_notes(self.matrix, self.scores, self.stderr, self.tasks),
            *self.paired_notes,
            *said.comparison_notes(self.matrix, self.in_both, complete=self.whole),
            *with_names({"No perplexity of {}: left out of the comparisons with perplexity.": list(absent)}),
            *(
                note
                for p, entry in self.ceiling.items()
                for note in said.ceiling_notes(
                    p, entry.included, self.tasks, "mean tau", entry.mean_tau, self.agreement[p].mean
                )
            ),
            *said.selection_notes(said.selected_on_test(self.matrix, self.scores)),
            *with_names({said.FAR: list(dict.fromkeys(name for names in self.far.values() for name in names))}),
            *with_names({said.OPPOSED: list(dict.fromkeys(name for entry in self.opposed.values() for name in entry))}),
            *([] if any(self.matrix.training.values()) else [NOT_MEASURED]),
        ]


def affordable_resamples(resamples: int, models: int, benchmarks: int) -> int:
    """As many `resamples` of taus between all benchmarks as a minute and a gigabyte allow, at least 400 of them.

    Time grows with pairs of models × pairs of benchmarks, memory with pairs of benchmarks.
    """
    products = max(1, models * (models - 1) // 2 * benchmarks * (benchmarks + 1) // 2)
    limit = min(MOST_PRODUCTS // products, MOST_TAUS // max(1, benchmarks**2))
    return min(resamples, max(LEAST_RESAMPLES, limit))
