"""The factors report's results: what summary.json holds, and beside it the arrays that only its page shows."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.factors.analysis import Completion
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.statistics.factors import RankDraws
from lm_validity.studies.agreement.values import ByProtocol, InfluenceSummary, Range, Value
from lm_validity.summaries import Missing, page_only
from lm_validity.tables.standard_errors import ErrorCheck

Shares = list[float] | Missing
Ranges = list[Range] | Missing


@dataclass(frozen=True)
class ParallelSummary:
    """Parallel analysis: number of factors, shares of tables with shuffled columns, probability of the first."""

    factors: int
    factors_within_families: int | Missing
    null_mean: list[float]
    null_95: list[float]
    p_first: float


@dataclass(frozen=True)
class FamilySummary:
    """Components among the models of one family."""

    explained_variance: dict[str, Shares]
    first_component_interval: dict[str, Range] | Missing


@dataclass(frozen=True)
class RelationSummary:
    """Correlations of the first component with pretraining compute."""

    kendall: Value
    spearman: Value
    pearson: Value
    models: int


@dataclass(frozen=True)
class ComputeSummary(RelationSummary):
    """With the interval of Kendall's tau over models."""

    kendall_interval: Range


@dataclass(frozen=True)
class RankSummary:
    """A model's rank on the first component, 1 = best, with intervals over benchmarks and over their categories.

    `share_in_top`: share of resamples in which the model is among the first 1, 3 or 10, over categories where there are
    some, else over benchmarks.
    """

    rank: Value
    interval_population_of_benchmarks: Range
    interval_population_of_categories: Range
    share_in_top: dict[str, Value]


@dataclass(frozen=True)
class ChoiceSummary:
    """The best model up to a number of parameters, how often it is, and models that are it in at least 5%."""

    parameters_b: float
    model: str
    probability_best: Value
    rivals: list[str]


@dataclass(frozen=True)
class CheckSummary:
    """Known cells held out in turn and predicted from the others."""

    mean_absolute_error: Value
    baseline_error: Value
    coverage: Value
    multiplier: float
    cells: int
    level: float
    error_in_sd: Value
    baseline_in_sd: Value


@dataclass(frozen=True)
class CompletionSummary:
    """Missing cells predicted by one factor, and ranks of the abilities."""

    missing_cells: int
    held_out: CheckSummary
    second_factor_p: Value
    rank_interval: dict[str, list[float]] | Missing
    details: Completion = page_only()
    scores: np.ndarray = page_only()


@dataclass(frozen=True)
class DirectExcess:
    """How far a model's direct score lies above what the other models predict from its compute and its score under
    train before test; means over the benchmarks, which are fractions."""

    value: Value
    interval: Range


@dataclass(frozen=True)
class FactorsSummary:
    """The factors report. `compute`: (models,); `common_ranks`: draws by protocol, empty without resampling; `tasks`:
    benchmarks that are no perplexity corpora; `standard_errors`: those that are not used.
    """

    models: int
    benchmarks: int
    cells_in_both: int
    models_in_both: int
    explained_variance_in_both: dict[str, Shares]
    explained_variance_in_both_interval: dict[str, Ranges]
    explained_variance_in_both_interval_clustered: dict[str, Range]
    pc1_compute_in_both: dict[str, RelationSummary]
    explained_variance: dict[str, Shares]
    explained_variance_interval: dict[str, Ranges]
    explained_variance_interval_clustered: dict[str, Range]
    explained_variance_without_size: dict[str, Shares]
    first_component_ceiling: ByProtocol
    parallel_analysis: dict[str, ParallelSummary | Missing]
    families: dict[str, FamilySummary]
    pc1_scores: dict[str, dict[str, Value]]
    pc1_loadings: dict[str, dict[str, Value]]
    pc1_compute: dict[str, ComputeSummary]
    potential: dict[str, dict[str, RankSummary]]
    best_by_budget: dict[str, list[ChoiceSummary]]
    direct_excess: dict[str, DirectExcess]
    completion: dict[str, CompletionSummary]
    influence: dict[str, list[InfluenceSummary]]
    standard_errors: tuple[ErrorCheck, ...]
    resamples: int
    notes: tuple[str, ...]
    matrix: ScoreMatrix = page_only()
    tasks: list[str] = page_only()
    compute: np.ndarray = page_only()
    common_ranks: dict[str, RankDraws] = page_only()
