"""What the factors report computes before it writes: arrays by protocol, NaN where undefined."""

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.data import (
    ceiling_notes,
    comparison_notes,
    coverage_notes,
    family_members,
    family_notes,
    large_families,
    measurement_error,
    selected_on_test,
    selection_notes,
)
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.statistics.factors import (
    LEAST_UNITS,
    Ceiling,
    Components,
    ComputeRelation,
    HeldOutCheck,
    OneFactorModel,
    ParallelAnalysis,
    RankDraws,
    ability_ranks,
    check_held_out,
    fit_one_factor,
    noise_ceiling,
    parallel_analysis,
    principal_components,
    ranks_over_benchmarks,
    relate_to_compute,
    second_factor,
    share_intervals,
    without_group_means,
    without_size,
)
from lm_validity.studies.agreement.statistics.noise import cluster_numbers
from lm_validity.studies.agreement.statistics.ranking import known_in_all, pair_signs, resampled_kendall_tau
from lm_validity.studies.agreement.statistics.resampling import (
    Interval,
    cluster_multiplicities,
    multiplicities,
    percentile_interval,
)
from lm_validity.studies.agreement.statistics.subsets import LeftOut, leave_one_out
from lm_validity.studies.agreement.values import MINIMUM_FAMILY, no_intervals
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, listing

SHOWN_COMPONENTS = 5
NORMAL_95 = 1.959964
MINIMUM_RESAMPLED_FAMILY = 10  # models of a family: fewer give no usable interval of a share of variance


@dataclass(frozen=True)
class Completion:
    """One protocol's one-factor model, its held-out check, and ranks (1 = best) drawn from the abilities' posterior.

    `p_second`: probability of so large a second factor where there is none.
    """

    model: OneFactorModel
    check: HeldOutCheck
    ranks: np.ndarray
    p_second: float


@dataclass(frozen=True)
class FactorsAnalysis:
    """All results of the report. Dictionaries by protocol lack a protocol without scores.

    `common_*`: what compares the protocols, over the cells known under both of benchmarks that take part under both;
    `whole`: that leaves nothing out.
    """

    matrix: ScoreMatrix
    tasks: list[str]
    scores: dict[str, np.ndarray]
    components: dict[str, Components]
    common_scores: dict[str, np.ndarray]
    common_components: dict[str, Components]
    common_relation: dict[str, ComputeRelation]
    whole: bool
    parallel: dict[str, ParallelAnalysis]
    parallel_within: dict[str, ParallelAnalysis]
    without_size: dict[str, Components]
    ceiling: dict[str, Ceiling]
    families: dict[str, dict[str, np.ndarray]]
    compute: np.ndarray
    compute_relation: dict[str, ComputeRelation]
    completion: dict[str, Completion]
    influence: dict[str, list[LeftOut]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FactorsUncertainty:
    """95% intervals by protocol. `shares`: of the first components over models, arrays (5,); `families`: of
    the first share; `compute`: of Kendall's tau with compute; `population_ranks`: over benchmarks;
    `category_ranks`: over whole categories of benchmarks, where the sheet names enough. `common_*`: over the cells
    known under both protocols. `reason`: why there are none.
    """

    reason: str

    shares: dict[str, Interval[np.ndarray]] = field(default_factory=dict)
    common_shares: dict[str, Interval[np.ndarray]] = field(default_factory=dict)
    common_ranks: dict[str, RankDraws] = field(default_factory=dict)
    families: dict[str, dict[str, Interval[float]]] = field(default_factory=dict)
    compute: dict[str, Interval[float]] = field(default_factory=dict)
    population_ranks: dict[str, RankDraws] = field(default_factory=dict)
    category_ranks: dict[str, RankDraws] = field(default_factory=dict)


def analyze_factors(matrix: ScoreMatrix, seed: int = 2) -> FactorsAnalysis:
    """Everything that needs no bootstrap; simulations start from `seed`."""
    draws = partial(section_generator, seed=seed)
    tasks, is_task = matrix.task_names(), ~matrix.is_corpus
    scores = {p: matrix.oriented(p)[:, is_task] for p in PROTOCOLS}
    stderr = {p: matrix.stderr[p][:, is_task] for p in PROTOCOLS}
    components = {p: principal_components(scores[p]) for p in PROTOCOLS}
    common_scores, common_components = _common_components(scores)
    whole = all(np.array_equal(common_scores[p], scores[p], equal_nan=True) for p in PROTOCOLS)
    known = [p for p in PROTOCOLS if matrix.has(p)]
    _, compute = matrix.sizes()
    relation = {p: relate_to_compute(components[p].scores, compute) for p in PROTOCOLS}
    of_parallel, of_ceiling, of_completion = map(draws, ("parallel analysis", "noise ceiling", "completion"))
    parallel = {p: parallel_analysis(scores[p], of_parallel) for p in known}
    ceiling = {p: noise_ceiling(scores[p], measurement_error(matrix, p), of_ceiling) for p in known}
    completion = {p: _complete(scores[p], of_completion) for p in known}
    return FactorsAnalysis(
        matrix=matrix,
        tasks=tasks,
        scores=scores,
        components=components,
        common_scores=common_scores,
        common_components=common_components,
        common_relation={p: relate_to_compute(common_components[p].scores, compute) for p in PROTOCOLS},
        whole=whole,
        parallel=parallel,
        parallel_within={
            p: parallel_analysis(without_group_means(scores[p], matrix.families), draws(f"within families {p}"), 200)
            for p in known
        },
        without_size={p: principal_components(without_size(scores[p], matrix.sizes()[0])) for p in known},
        ceiling=ceiling,
        families=_family_components(matrix.families, scores),
        compute=compute,
        compute_relation=relation,
        completion=completion,
        influence={p: leave_one_out(scores[p], list(matrix.models), tasks, matrix.families) for p in known},
        notes=(
            *matrix.notes,
            *coverage_notes(matrix, scores, stderr, tasks),
            *selection_notes(selected_on_test(matrix, scores)),
            *(note for p in known for note in _component_notes(p, scores[p], components[p], tasks)),
            *comparison_notes(matrix, np.isfinite(common_scores[PROTOCOLS[0]]), whole=whole),
            *_compute_notes(compute),
            *family_notes(matrix.families),
            *(note for p in known for note in ceiling_notes(p, ceiling[p], tasks)),
        ),
    )


def factors_uncertainty(analysis: FactorsAnalysis, resamples: int, seed: int = 3) -> FactorsUncertainty:
    """Resample `resamples` times; 0 gives nothing."""
    models = len(analysis.matrix.models)
    reason = no_intervals(resamples, models)
    if reason:
        return FactorsUncertainty(reason)
    draws = partial(section_generator, seed=seed)
    # the same benchmarks for both protocols, so that the gap of a model's two ranks has an interval
    benchmark_weights = multiplicities(len(analysis.tasks), resamples, draws("benchmarks"))
    known = list(analysis.parallel)
    shares = {p: share_intervals(analysis.scores[p], np.arange(models)) for p in known}
    ranks = {p: ranks_over_benchmarks(analysis.scores[p], benchmark_weights) for p in known}
    return FactorsUncertainty(
        reason,
        shares=shares,
        common_shares=shares if analysis.whole else _common_shares(analysis),
        common_ranks=ranks if analysis.whole else _common_ranks(analysis, benchmark_weights),
        families=_family_intervals(analysis),
        compute={p: _compute_interval(analysis, p, resamples, draws(f"compute {p}")) for p in known},
        population_ranks=ranks,
        category_ranks=_category_ranks(analysis, resamples, known),
    )


def _category_ranks(analysis: FactorsAnalysis, resamples: int, known: list[str]) -> dict[str, RankDraws]:
    """Ranks when whole categories are resampled; a benchmark of unknown category is one of its own."""
    matrix = analysis.matrix
    names = matrix.benchmark_facts["category"][~matrix.is_corpus]
    clusters = cluster_numbers(np.array([name if isinstance(name, str) else None for name in names], dtype=object))
    if clusters.max() + 1 < LEAST_UNITS or clusters.max() + 1 == len(clusters):
        return {}
    weights = cluster_multiplicities(clusters, resamples, np.random.default_rng(4))
    return {p: ranks_over_benchmarks(analysis.scores[p], weights, int(clusters.max()) + 1) for p in known}


def _common_components(scores: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Components]]:
    """The cells known under both protocols of benchmarks that both components use, and their components."""
    common = known_in_all(scores)
    used = np.logical_and.reduce([principal_components(values).used for values in common.values()])
    common = {p: np.where(used, values, np.nan) for p, values in common.items()}
    return common, {p: principal_components(values) for p, values in common.items()}


def _common_shares(analysis: FactorsAnalysis) -> dict[str, Interval[np.ndarray]]:
    """Intervals of the shares over the models with a cell known under both protocols; {} for fewer than three."""
    rows = np.flatnonzero(np.isfinite(analysis.common_scores[PROTOCOLS[0]]).any(axis=1))
    if len(rows) < MINIMUM_FAMILY:
        return {}
    return {p: share_intervals(values[rows], np.arange(len(rows))) for p, values in analysis.common_scores.items()}


def _common_ranks(analysis: FactorsAnalysis, benchmark_weights: np.ndarray) -> dict[str, RankDraws]:
    """Ranks among the models with a cell known under both protocols; {} without such a cell."""
    if not np.isfinite(analysis.common_scores[PROTOCOLS[0]]).any():
        return {}
    return {p: ranks_over_benchmarks(values, benchmark_weights) for p, values in analysis.common_scores.items()}


def _complete(scores: np.ndarray, rng: np.random.Generator) -> Completion:
    model, check = fit_one_factor(scores), check_held_out(scores, rng)
    # a complete table's ranks are of the abilities behind it; a few cells' must also pay for what the model got wrong
    widening = 1.0 if np.isfinite(scores).all() else max(1.0, check.multiplier / NORMAL_95)
    found = Completion(model, check, ability_ranks(model, rng, widening=widening), float("nan"))
    return replace(found, p_second=second_factor(scores, np.random.default_rng(0)))


def _family_components(families: np.ndarray, scores: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Shares of variance within each family, none for those of fewer than `MINIMUM_FAMILY` models."""
    large = large_families(families)
    return {
        name: {
            p: principal_components(scores[p][rows]).explained_variance if name in large else np.empty(0)
            for p in PROTOCOLS
        }
        for name, rows in family_members(families).items()
    }


def _family_intervals(analysis: FactorsAnalysis) -> dict[str, dict[str, Interval[float]]]:
    """Intervals of the first share within each family that is large enough."""
    return {
        name: {
            p: Interval(*(end[0] for end in share_intervals(analysis.scores[p][rows], np.arange(len(rows)), 1)))
            for p in analysis.parallel
        }
        for name, rows in family_members(analysis.matrix.families).items()
        if len(rows) >= MINIMUM_RESAMPLED_FAMILY
    }


def _compute_notes(compute: np.ndarray) -> list[str]:
    known = int(np.isfinite(compute).sum())
    if known == len(compute):
        return []
    return [f"Pretraining compute is known and reliable for {known} of {len(compute)} models."]


def _compute_interval(
    analysis: FactorsAnalysis, protocol: str, resamples: int, rng: np.random.Generator
) -> Interval[float]:
    columns = np.column_stack([analysis.components[protocol].scores, analysis.compute])
    columns = columns[np.isfinite(columns).all(axis=1)]
    if len(columns) < 3:
        return Interval(float("nan"), float("nan"))
    draws = resampled_kendall_tau(pair_signs(columns), multiplicities(len(columns), resamples, rng))
    return percentile_interval(draws[:, 0, 1], len(columns))


def _component_notes(protocol: str, scores: np.ndarray, components: Components, tasks: list[str]) -> list[str]:
    notes, under = [], UNDER[protocol].capitalize()
    left_out = [name for name, used in zip(tasks, components.used, strict=True) if not used]
    if left_out:
        notes.append(
            f"{under}, these benchmarks are constant, alone or without enough common models, and not in the "
            f"components: {listing(left_out)}."
        )
    missing = int((~np.isfinite(scores[:, components.used])).sum())
    if missing and len(components.explained_variance):
        notes.append(
            f"{under}, {missing} cells are missing; correlations are over the models known on both benchmarks "
            f"(smallest eigenvalue share {components.explained_variance[-1]:.3f})."
        )
    return notes
