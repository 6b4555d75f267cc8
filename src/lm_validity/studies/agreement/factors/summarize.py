"""From the arrays of the factors report to its summary: values, or why there is none."""

import numpy as np

from lm_validity.config.groups import KNOTS
from lm_validity.studies.agreement.data import no_ceiling
from lm_validity.studies.agreement.factors.analysis import (
    MINIMUM_RESAMPLED_FAMILY,
    SHOWN_COMPONENTS,
    Completion,
    FactorsAnalysis,
    FactorsUncertainty,
)
from lm_validity.studies.agreement.factors.summary import (
    CheckSummary,
    ChoiceSummary,
    CompletionSummary,
    ComputeSummary,
    DirectExcess,
    FactorsSummary,
    FamilySummary,
    ParallelSummary,
    Ranges,
    RankSummary,
    RelationSummary,
    Shares,
)
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.statistics.factors import (
    LEAST_UNITS,
    Components,
    ComputeRelation,
    best_by_budget,
    share_intervals,
)
from lm_validity.studies.agreement.statistics.noise import cluster_numbers
from lm_validity.studies.agreement.statistics.readiness import compute_terms, excess_over_prediction
from lm_validity.studies.agreement.statistics.resampling import Interval, hull, share_in_top
from lm_validity.studies.agreement.values import (
    JACKKNIFED,
    LOST_CLUSTER,
    MINIMUM_FAMILY,
    SMALL_FAMILY,
    InfluenceSummary,
    Range,
    Value,
    each,
    ends,
    no_clusters,
    over_families,
)
from lm_validity.summaries import Missing, known
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, Reason, ReasonCode, count, listing, no_scores

SECOND_FACTOR_LEVEL = 0.05
FEW_IN_COMMON = (
    f"Two benchmarks have fewer than half of the models in common, or fewer than {JACKKNIFED} models have scores and "
    "most have none. Correlations over so few models make the first share "
    "too large, and so would a table with predicted cells."
)
NO_COMPONENTS = Reason("Fewer than two benchmarks can take part, so there are no components.", ReasonCode.TOO_FEW)
NO_SHARE_INTERVAL = Reason(
    "Without one of the models there is no such component, or its share is 1.", ReasonCode.NO_INTERVAL
)
NO_RANK_INTERVAL = (
    f"There are fewer than {LEAST_UNITS} benchmarks, or the model has one of them, or most resamples give the "
    "model no rank: they contain none of its benchmarks, or fewer than two on which models differ."
)
NO_CATEGORIES = f"The benchmarks sheet names fewer than {LEAST_UNITS} categories, or no category with two benchmarks."
SECOND_FACTOR = "These ranks take one factor for granted, and residuals show a second one."
NO_EXCESS = Reason(
    "The model's compute or one of its scores is not known, or too few models are left to predict it.",
    ReasonCode.TOO_FEW,
)
NO_CHECK = Reason("There are too few scores to hold any out.", ReasonCode.TOO_FEW)


def summarize_factors_report(
    analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, resamples: int
) -> FactorsSummary:
    """The report's results in one object."""
    matrix, tasks = analysis.matrix, analysis.tasks
    common = np.isfinite(analysis.common_scores[PROTOCOLS[0]])
    shares = {p: first_shares(analysis, p, analysis.components[p], analysis.scores[p]) for p in PROTOCOLS}
    common_components, common_scores = analysis.common_components, analysis.common_scores
    in_both = {p: first_shares(analysis, p, common_components[p], common_scores[p]) for p in PROTOCOLS}
    intervals = {p: _share_ranges(shares[p], uncertainty.shares.get(p), uncertainty.reason) for p in PROTOCOLS}
    families = {p: _clustered(analysis, analysis.scores[p], shares[p], intervals[p]) for p in PROTOCOLS}
    both_intervals = {
        p: _share_ranges(in_both[p], uncertainty.common_shares.get(p), uncertainty.reason) for p in PROTOCOLS
    }
    return FactorsSummary(
        models=len(matrix.models),
        benchmarks=len(tasks),
        cells_in_both=int(common.sum()),
        models_in_both=int(common.any(axis=1).sum()),
        explained_variance_in_both=in_both,
        explained_variance_in_both_interval=both_intervals,
        explained_variance_in_both_interval_clustered=families
        if analysis.whole
        else {p: _clustered(analysis, common_scores[p], in_both[p], both_intervals[p]) for p in PROTOCOLS},
        pc1_compute_in_both={p: _relation(analysis, p, analysis.common_relation[p]) for p in PROTOCOLS},
        explained_variance=shares,
        explained_variance_interval=intervals,
        explained_variance_interval_clustered=families,
        explained_variance_without_size={p: _without_size(analysis, p) for p in PROTOCOLS},
        first_component_ceiling={
            p: known(ceiling.first_component, no_ceiling(ceiling, analysis.scores[p], p))
            for p, ceiling in analysis.ceiling.items()
        },
        parallel_analysis={p: _parallel(analysis, p) for p in PROTOCOLS},
        families={family: _family(analysis, uncertainty, family) for family in analysis.families},
        pc1_scores={p: _by_model(analysis, p) for p in PROTOCOLS},
        pc1_loadings={
            p: each(
                tasks,
                analysis.components[p].loadings,
                share.reason
                if isinstance(share := shares[p], Missing)
                else "The benchmark is constant, alone or without enough common models: not in the components.",
            )
            for p in PROTOCOLS
        },
        pc1_compute={p: _compute(analysis, uncertainty, p) for p in PROTOCOLS},
        potential={p: _ranks(analysis, uncertainty, p) for p in uncertainty.population_ranks},
        best_by_budget={p: _choices(analysis, uncertainty, p) for p in uncertainty.population_ranks},
        direct_excess=_direct_excess(matrix),
        completion={p: _completion(analysis, p) for p in analysis.completion},
        influence={p: [InfluenceSummary.of(left) for left in rows] for p, rows in analysis.influence.items()},
        resamples=resamples,
        standard_errors=analysis.matrix.error_checks,
        notes=(*analysis.notes, *_notes(analysis, uncertainty)),
        matrix=matrix,
        tasks=tasks,
        compute=analysis.compute,
        common_ranks=uncertainty.common_ranks,
    )


def _direct_excess(matrix: ScoreMatrix) -> dict[str, DirectExcess]:
    """By model; over the benchmarks whose scores are fractions, and the models known on all of them in both ways."""
    fractions = matrix.fractions & np.logical_and.reduce([np.isfinite(matrix.value[p]).any(axis=0) for p in PROTOCOLS])
    if not fractions.any():
        return {}
    direct, trained = (matrix.oriented(p)[:, fractions].mean(axis=1) for p in PROTOCOLS)
    found = excess_over_prediction(direct, trained, compute_terms(matrix.sizes()[1], KNOTS))
    if not np.isfinite(found.value).any():
        return {}
    return {
        model: DirectExcess(known(value, NO_EXCESS), Missing(NO_EXCESS) if np.isnan(value) else Interval(low, high))
        for model, value, low, high in zip(matrix.models, *(map(float, one) for one in found), strict=True)
    }


def first_shares(analysis: FactorsAnalysis, protocol: str, components: Components, scores: np.ndarray) -> Shares:
    """The first five shares of variance of the components of `scores`."""
    if not len(components.explained_variance):
        return Missing(NO_COMPONENTS if analysis.matrix.has(protocol) else no_scores(protocol))
    if has_few_in_common(scores[:, components.used]):
        return Missing(FEW_IN_COMMON)
    return components.explained_variance[:SHOWN_COMPONENTS].tolist()


def has_few_in_common(scores: np.ndarray) -> bool:
    """Whether two benchmarks have fewer than half of the models with `scores` (models, benchmarks) in common, or so few
    models have scores that they say nothing about the others."""
    known = np.isfinite(scores).astype(int)
    models = known.any(axis=1).sum()
    return bool((known.T @ known).min() < models / 2 or models < min(JACKKNIFED, len(scores) / 2))


def _share_ranges(shares: Shares, interval: Interval[np.ndarray] | None, reason: str) -> Ranges:
    """[low, high] of each of the first shares that exist."""
    if isinstance(shares, Missing):
        return shares
    if interval is None:
        return Missing(reason or Reason("Fewer than 3 models have scores under both protocols.", ReasonCode.TOO_FEW))
    if not np.isfinite(interval.low).any():
        return Missing(NO_SHARE_INTERVAL)
    ranges = zip(interval.low[: len(shares)], interval.high[: len(shares)], strict=True)
    return [Interval(low, high) if np.isfinite(low) else Missing(NO_SHARE_INTERVAL) for low, high in ranges]


def _clustered(analysis: FactorsAnalysis, scores: np.ndarray, shares: Shares, over_models: Ranges) -> Range:
    """The interval of the first share of `scores` with families as clusters."""
    reason = no_clusters(analysis.matrix.families)
    if isinstance(shares, Missing) or reason:
        return shares if isinstance(shares, Missing) else Missing(reason)
    clusters = cluster_numbers(analysis.matrix.families)
    low, high = share_intervals(scores, clusters, 1)
    found = ends(shares[0], Interval(low[0], high[0]), LOST_CLUSTER)
    of_models = over_models if isinstance(over_models, Missing) else over_models[0]
    return over_families(found, of_models, analysis.matrix.families)


def _without_size(analysis: FactorsAnalysis, protocol: str) -> Shares:
    """Shares of variance of scores less what goes with the logarithm of the number of parameters."""
    if protocol not in analysis.without_size:
        return Missing(no_scores(protocol))
    components = analysis.without_size[protocol]
    if np.isfinite(analysis.matrix.sizes()[0]).sum() < MINIMUM_FAMILY or not len(components.explained_variance):
        return Missing(f"Fewer than {MINIMUM_FAMILY} models have a known number of parameters, or {NO_COMPONENTS}")
    return first_shares(analysis, protocol, components, analysis.scores[protocol])


def _parallel(analysis: FactorsAnalysis, protocol: str) -> ParallelSummary | Missing:
    result = analysis.parallel.get(protocol)
    if result is None:
        return Missing(no_scores(protocol))
    if not len(result.observed):
        return Missing(NO_COMPONENTS)
    if has_few_in_common(analysis.scores[protocol][:, analysis.components[protocol].used]):
        return Missing(FEW_IN_COMMON)
    means, limits = (null[:SHOWN_COMPONENTS].tolist() for null in (result.null_mean, result.null_95))
    within = analysis.parallel_within[protocol]
    few = Missing(f"No family of at least {MINIMUM_FAMILY} models differs on two benchmarks.")
    inside = within.factors if len(within.observed) else few
    return ParallelSummary(result.factors, inside, means, limits, result.p_first)


def _family(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, family: str) -> FamilySummary:
    size = int((analysis.matrix.families == family).sum())
    reason = "Models of the family differ on fewer than two benchmarks." if size >= MINIMUM_FAMILY else SMALL_FAMILY
    shares = {p: _family_shares(analysis, p, family, reason) for p in PROTOCOLS}
    intervals = uncertainty.families.get(family)
    if intervals is None:
        few = Reason(f"The family has fewer than {MINIMUM_RESAMPLED_FAMILY} models.", ReasonCode.TOO_FEW)
        return FamilySummary(shares, Missing(uncertainty.reason or few))
    first = {p: found if isinstance(found, Missing) else found[0] for p, found in shares.items()}
    return FamilySummary(shares, {p: ends(first[p], intervals.get(p), no_scores(p)) for p in PROTOCOLS})


def _family_shares(analysis: FactorsAnalysis, protocol: str, family: str, reason: str) -> Shares:
    shares, scores = analysis.families[family][protocol], analysis.scores[protocol]
    if not len(shares):
        return Missing(reason if analysis.matrix.has(protocol) else no_scores(protocol))
    scores = scores[analysis.matrix.families == family]
    if has_few_in_common(scores[:, np.isfinite(scores).any(axis=0)]):
        return Missing(FEW_IN_COMMON)
    return shares[:SHOWN_COMPONENTS].tolist()


def _by_model(analysis: FactorsAnalysis, protocol: str) -> dict[str, Value]:
    """First component by model."""
    components = analysis.components[protocol]
    reason = "The model has no score on a benchmark of the components."
    if not len(components.explained_variance):
        reason = NO_COMPONENTS if analysis.matrix.has(protocol) else no_scores(protocol)
    return each(analysis.matrix.models, components.scores, reason)


def _relation(analysis: FactorsAnalysis, protocol: str, found: ComputeRelation) -> RelationSummary:
    reason = "Models are equal in compute or in the first component."
    if found.models < 3:
        reason = f"{count(found.models, 'model')} with a first component and known compute: too few for a relation."
    if not analysis.matrix.has(protocol):
        reason = no_scores(protocol)
    kendall, spearman, pearson = (known(value, reason) for value in (found.kendall, found.spearman, found.pearson))
    return RelationSummary(kendall, spearman, pearson, found.models)


def _compute(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, protocol: str) -> ComputeSummary:
    found = _relation(analysis, protocol, analysis.compute_relation[protocol])
    interval = ends(found.kendall, uncertainty.compute.get(protocol), uncertainty.reason)
    return ComputeSummary(**vars(found), kendall_interval=interval)


def _ranks(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, protocol: str) -> dict[str, RankSummary]:
    """Rank on the first component with intervals over benchmarks and over their categories, by model."""
    population = uncertainty.population_ranks[protocol]
    over_benchmarks = population.interval()
    categories = uncertainty.category_ranks.get(protocol)
    # few categories vary less in resamples than in truth: never shorter than over benchmarks one by one
    over_categories = over_benchmarks if categories is None else hull(categories.interval(), over_benchmarks)
    tops = {first: share_in_top((categories or population).draws, first) for first in (1, 3, 10)}
    scores = _by_model(analysis, protocol)
    found = {}
    for i, model in enumerate(analysis.matrix.models):
        score = scores[model]
        unranked = score if isinstance(score, Missing) else None
        found[model] = RankSummary(
            rank=unranked or float(population.rank[i]),
            interval_population_of_benchmarks=unranked or _rank_range(over_benchmarks, i, NO_RANK_INTERVAL),
            interval_population_of_categories=unranked
            or (Missing(NO_CATEGORIES) if categories is None else _rank_range(over_categories, i, NO_RANK_INTERVAL)),
            share_in_top={
                str(first): known(float(share[i]), NO_RANK_INTERVAL) if unranked is None else unranked
                for first, share in tops.items()
            },
        )
    return found


def _rank_range(interval: Interval[np.ndarray], index: int, reason: str) -> Range:
    low, high = interval.low[index], interval.high[index]
    return Interval(low, high) if np.isfinite(low) else Missing(reason)


def _choices(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, protocol: str) -> list[ChoiceSummary]:
    names = analysis.matrix.models
    parameters = analysis.matrix.model_facts["parameters_b"].to_numpy(float)
    return [
        ChoiceSummary(
            choice.parameters_b,
            names[choice.model],
            known(choice.probability_best, "No resample ranks a model of that size."),
            [names[i] for i in choice.rivals],
        )
        for choice in best_by_budget(uncertainty.population_ranks[protocol], parameters)
    ]


def _completion(analysis: FactorsAnalysis, protocol: str) -> CompletionSummary:
    completion, scores = analysis.completion[protocol], analysis.scores[protocol]
    check = completion.check
    return CompletionSummary(
        missing_cells=int((~np.isfinite(scores)).sum()),
        held_out=CheckSummary(
            mean_absolute_error=known(check.mean_absolute_error, NO_CHECK),
            baseline_error=known(check.baseline_error, NO_CHECK),
            coverage=known(check.coverage, NO_CHECK),
            multiplier=check.multiplier,
            cells=check.cells,
            level=check.level,
            error_in_sd=known(check.error_in_sd, NO_CHECK),
            baseline_in_sd=known(check.baseline_in_sd, NO_CHECK),
        ),
        second_factor_p=known(completion.p_second, "The residuals of one factor have no components."),
        rank_interval=_ability_ranks(analysis, completion),
        details=completion,
        scores=scores,
    )


def _ability_ranks(analysis: FactorsAnalysis, completion: Completion) -> dict[str, list[float]] | Missing:
    """Intervals of the ranks of abilities, where nothing speaks against one factor."""
    if completion.p_second <= SECOND_FACTOR_LEVEL:
        return Missing(SECOND_FACTOR)
    low, high = np.quantile(completion.ranks, [0.025, 0.975], axis=0)
    return {model: [low[i], high[i]] for i, model in enumerate(analysis.matrix.models)}


def _notes(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty) -> list[str]:
    """What weakens intervals that are given."""
    labels, notes = np.array(analysis.matrix.labels, dtype=object), []
    for protocol, ranks in uncertainty.population_ranks.items():
        defined = np.isfinite(ranks.draws).mean(axis=0)
        part = np.isfinite(ranks.rank) & np.isfinite(ranks.interval().low) & (defined < 1)
        if part.any():
            notes.append(
                f"{UNDER[protocol].capitalize()}, intervals of ranks over benchmarks leave out resamples that give a "
                "model no rank, since they contain none of its benchmarks, or fewer than two on which models differ: "
                f"{listing(labels[part])}."
            )
    return notes
