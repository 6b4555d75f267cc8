"""The agreement report's results: what summary.json holds, and beside it the arrays that only its page shows."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lm_validity.studies.agreement.incomplete.summary import Incomplete, PooledRow, Range, Value
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.statistics.ranking import Alignment, PerplexityAgreement, RankBands
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.summaries import Missing, known, page_only
from lm_validity.tables.standard_errors import ErrorCheck
from lm_validity.words import Reason, ReasonCode

ByProtocol = dict[str, Value]
OUTSIDE = Reason(
    "The estimate lies outside what its resamples give, so there is no interval to trust.", ReasonCode.NO_INTERVAL
)
NO_SPREAD = Reason(
    "Every resample gives the same value, which says nothing about other models: there is no interval.",
    ReasonCode.NO_INTERVAL,
)
UNDEFINED_RESAMPLES = Reason("Too few of the resamples give a value, so there is no interval.", ReasonCode.NO_INTERVAL)


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


@dataclass(frozen=True)
class CorrectedTau:
    """Agreement without measurement error; intervals over models, `interval_clustered` over families of models."""

    mean: Value
    interval: Range
    interval_clustered: Range
    by_benchmark: dict[str, Value]
    by_benchmark_interval: dict[str, Range]
    by_pair: list[tuple[str, str, Value]]
    by_pair_interval: list[tuple[str, str, Range]]


@dataclass(frozen=True)
class RatioRow:
    """Agreement among pairs of models whose sizes differ by a factor from `at_least` to `at_most` (null: any)."""

    at_most: float | None
    at_least: float
    pairs_of_models: int
    mean: Value
    ceiling: Value
    corrected: Value
    interval: Range
    interval_clustered: Range
    corrected_interval: Range
    corrected_interval_clustered: Range


ByRatio = dict[str, list[RatioRow] | Missing]  # by protocol


@dataclass(frozen=True)
class Decision:
    """Reliability of a mean over `benchmarks` benchmarks with `items` times the items; likewise seeds and prompts."""

    benchmarks: int
    items: float
    seeds: float
    prompts: float
    reliability: float


@dataclass(frozen=True)
class VarianceSummary:
    """Components of the variance of standardised scores, the reliability of the mean score, and a decision study.

    `raw_model`, `raw_model_benchmark`: as estimated, before what is below 0 is set to 0.
    """

    model: Value
    model_benchmark: Value
    item: Value
    seed: Value
    prompt: Value
    training: Value
    reliability: Value
    raw_model: Value
    raw_model_benchmark: Value
    benchmarks: int
    decision_study: list[Decision]


@dataclass(frozen=True)
class AboveChance:
    """Agreement over the `above` benchmarks on which a model is above chance, of those where that is `known`.

    `mean` tau and noise `ceiling` are over the pairs of these.
    """

    above: int
    known: int
    mean: Value
    ceiling: Value


@dataclass(frozen=True)
class TauSummary:
    """Agreement under one protocol, over all its scores.

    `models`: with a score; `pearson`: mean correlation of the scores of two benchmarks. `matrix`: (benchmarks,
    benchmarks) taus, `correlations` likewise; `by_category_interval`: bounds (categories, categories).
    """

    models: int
    mean: Value
    interval: Range
    interval_population_of_benchmarks: Range
    by_benchmark: dict[str, Value]
    by_benchmark_interval: dict[str, Range] | Missing
    by_pair: list[tuple[str, str, Value]]
    by_category: dict[str, dict[str, Value]]
    ceiling: Value
    ceiling_by_benchmark: dict[str, Value]
    corrected: CorrectedTau
    interval_clustered: Range
    interval_population_of_categories: Range
    by_size_ratio: list[RatioRow] | Missing
    by_compute_ratio: list[RatioRow] | Missing
    above_chance: AboveChance | Missing
    pearson: Value
    matrix: np.ndarray = page_only()
    correlations: np.ndarray = page_only()
    by_category_interval: Interval[np.ndarray] | Missing = page_only()


@dataclass(frozen=True)
class TestSummary:
    """A paired test: mean contribution of a unit, one-sided probability of at least that, number of units."""

    effect: Value
    p: Value
    units: int


@dataclass(frozen=True)
class Improvement:
    """What train before test changes, over what is known under both protocols; `whole`: that leaves nothing out.

    `by_size_ratio`, `by_compute_ratio`: as in `TauSummary`, by protocol.
    `tau`: (benchmarks, benchmarks) by protocol; `pair_change`: bounds of such a shape; `within`, `between`,
    `by_benchmark`: means over pairs within and between categories and of each benchmark.
    """

    mean: Value
    means: ByProtocol
    interval: Range
    interval_clustered: Range
    interval_population_of_benchmarks: Range
    interval_population_of_categories: Range
    test: TestSummary
    by_size_ratio: ByRatio
    by_compute_ratio: ByRatio
    whole: bool = page_only()
    tau: dict[str, np.ndarray] = page_only()
    pair_change: Interval[np.ndarray] | Missing = page_only()
    within: ByProtocol = page_only()
    between: ByProtocol = page_only()
    by_benchmark: dict[str, dict[str, Value]] = page_only()


@dataclass(frozen=True)
class SignificanceTau:
    """Agreement under one protocol, counting significant differences only; `compared_mean`: over what is known in both.

    `matrix`: (benchmarks, benchmarks).
    """

    mean: Value
    interval: Range
    significant_pairs: dict[str, int]
    by_benchmark: dict[str, Value]
    by_pair: list[tuple[str, str, Value]]
    by_category: dict[str, dict[str, Value]]
    matrix: np.ndarray = page_only()
    compared_mean: Value = page_only()


@dataclass(frozen=True)
class SignificanceSummary:
    """Both protocols, counting significant differences only; `contradictions`: one row per pair of benchmarks."""

    direct: SignificanceTau
    train_before_test: SignificanceTau
    improved_pairs: int | Missing
    compared_pairs: int
    contradictions: pd.DataFrame = page_only()

    @property
    def by_protocol(self) -> dict[str, SignificanceTau]:
        """Protocol -> its agreement; `direct` comes first."""
        return {"direct": self.direct, "train_before_test": self.train_before_test}


@dataclass(frozen=True)
class PerplexityInBoth:
    """Agreement with perplexity over what is known under both protocols."""

    corpus_benchmark: ByProtocol
    corpus_corpus: ByProtocol
    average_average: ByProtocol


@dataclass(frozen=True)
class PerplexitySummary:
    """Agreement with perplexity. `same_corpus`: of each corpus, the tau of its direct ranking with that under train
    before test. `taus`, `before_after_taus`: the matrices behind the means, by protocol, by kind."""

    models: int
    corpora: list[str]
    corpus_benchmark: ByProtocol
    corpus_benchmark_interval: dict[str, Range]
    corpus_corpus: ByProtocol
    corpus_corpus_interval: dict[str, Range]
    average_average: ByProtocol
    average_average_interval: dict[str, Range]
    same_corpus: dict[str, Value]
    in_both: PerplexityInBoth
    before_after: dict[str, Value]
    before_after_interval: dict[str, Range]
    taus: dict[str, PerplexityAgreement] = page_only()
    before_after_taus: dict[str, np.ndarray] = page_only()


@dataclass(frozen=True)
class SubsetSummary:
    """How well subsets of benchmarks rank the models, by size; `greedy_order`: indices of benchmarks.

    `one_with_others`: mean tau of one benchmark with all others together, over all models; its interval is over models.
    """

    sizes: list[int]
    random_mean: list[Value]
    random_low: list[Value]
    random_high: list[Value]
    greedy_mean: list[Value]
    greedy_order: list[int]
    others_mean: list[Value]
    one_with_others: Value
    one_with_others_interval: Range


@dataclass(frozen=True)
class InfluenceSummary:
    """The headline figures without one family, benchmark or model."""

    kind: str
    name: str
    mean_tau: Value
    first_component: Value


@dataclass(frozen=True)
class PairAlignment:
    """Two benchmarks under one protocol, over the models known on both; under both protocols where both have scores.

    `tau`, `crossings`: of the plain rankings; `opposite_significant_pairs`: model pairs significant on both with
    opposite order; `violations`: significant differences that the aligned orders break (0). `rows`: indices of the
    models; `ranks`: (models, 2); `aligned`: orders of positions within `rows`; `shown`: drawn on the page.
    """

    protocol: str
    benchmarks: tuple[str, str]
    models: int
    tau: Value
    crossings: int
    aligned_tau: Value
    aligned_crossings: int
    opposite_significant_pairs: int
    violations: int
    rows: np.ndarray = page_only()
    ranks: np.ndarray = page_only()
    bands: tuple[RankBands, RankBands] = page_only()
    aligned: Alignment = page_only()
    shown: bool = page_only()


@dataclass(frozen=True)
class SelectionOnTest:
    """Train-before-test scores that look like the larger of both test scores: `equal` cells, `below` cells, and the
    mean tau of these rankings without the equal cells.
    """

    equal: int
    below: int
    cells: int
    mean_tau_without: Value


@dataclass(frozen=True)
class DistanceRow:
    """One benchmark among pairs of models whose sizes differ by a factor from `at_least` to `at_most` (null: any).

    separated: share of the pairs whose scores differ significantly. tau: mean tau with the other benchmarks;
    tau_ceiling: what it would be if all ordered the models identically.
    """

    at_least: float
    at_most: float | None
    pairs_of_models: int
    separated: Value
    separated_interval: Range
    tau: Value
    tau_interval: Range
    tau_ceiling: Value


@dataclass(frozen=True)
class BenchmarkFigures:
    """What one benchmark alone can tell under one protocol; scores in the metric's own unit and direction.

    models_above_chance: as `statistics.models_above_chance` counts them. models_at_best: models less than 1.96 standard
    errors below 1, the best score of a metric that is a fraction. reliability: share of the variance between models
    that is no noise of items. smallest_difference: of two scores, found four times out of five. typical_difference:
    between models within a factor 2 of each other's size, without noise. items_needed: to find that.
    """

    models: int
    items: int | Missing
    lowest: Value
    highest: Value
    models_above_chance: int | Missing
    models_at_best: int | Missing
    reliability: Value
    reliability_interval: Range
    training_noise: Value
    reruns: int
    smallest_difference: Value
    typical_difference: Value
    items_needed: int | Missing
    by_distance: list[DistanceRow] | Missing


@dataclass(frozen=True)
class PromptRange:
    """Best less worst score of one model over its prompts, mean over `models`; `prompts`: the most that one has."""

    mean: Value
    interval: Range
    models: int
    prompts: int


@dataclass(frozen=True)
class AgreementSummary:
    """The agreement report. `categories`: of each benchmark, None where unknown; `choices`: prompts chosen;
    `incomplete`: by protocol that lacks cells; `pooled`: rows `all` and `like_size` where cells are missing;
    `lacks_many`: so many that headlines are pooled, and say what intervals assume.
    `adapted_shares`: of each model's weights, those with an adapter; `standard_errors`: those that are not used."""

    models: int
    benchmarks: int
    pairs: int
    cells_in_both: int
    models_in_both: int
    improved_pairs: int | Missing
    compared_pairs: int
    kendall_tau: dict[str, TauSummary]
    improvement: Improvement
    significance_tau: SignificanceSummary
    variance_components: dict[str, VarianceSummary]
    perplexity: PerplexitySummary | Missing
    families: dict[str, ByProtocol]
    families_in_both: dict[str, ByProtocol]
    families_interval: dict[str, dict[str, Range]]
    reliability: dict[str, Value]
    subsets: dict[str, SubsetSummary]
    influence: dict[str, list[InfluenceSummary]]
    incomplete: dict[str, Incomplete]
    pooled: dict[str, PooledRow]
    alignment: list[PairAlignment]
    selected_on_test: SelectionOnTest | None
    by_benchmark: dict[str, dict[str, BenchmarkFigures | Missing]]
    prompt_range: dict[str, PromptRange | Missing]
    standard_errors: tuple[ErrorCheck, ...]
    resamples: int
    notes: tuple[str, ...]
    matrix: ScoreMatrix = page_only()
    tasks: list[str] = page_only()
    categories: list[str | None] = page_only()
    choices: pd.DataFrame = page_only()
    adapted_shares: pd.DataFrame = page_only()
    lacks_many: bool = page_only()
