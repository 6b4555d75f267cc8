"""From the arrays of the agreement report to its summary: values, or why there is none."""

import numpy as np
import pandas as pd

from lm_validity.studies.agreement.analysis import (
    DIRECT,
    MINIMUM_FAMILY,
    TRAINED,
    AgreementAnalysis,
    no_ceiling,
    tuned_members,
)
from lm_validity.studies.agreement.by_benchmark.figures import benchmark_figures
from lm_validity.studies.agreement.incomplete.estimates import JACKKNIFED, incomplete_protocols
from lm_validity.studies.agreement.incomplete.summary import NEARLY_WHOLE
from lm_validity.studies.agreement.pair_alignment import align_pairs, contradictions, method_notes
from lm_validity.studies.agreement.pooled_comparison import compare_pooled
from lm_validity.studies.agreement.prompt_section import unequal_training
from lm_validity.studies.agreement.similar_models import (
    LOST_MODEL,
    clustered_change,
    clustered_interval,
    corrected_tau,
    over_families,
    population_change,
    population_interval,
    ratios,
    ratios_in_both,
)
from lm_validity.studies.agreement.statistics.noise import reliability_of, transformed_interval
from lm_validity.studies.agreement.statistics.ranking import (
    Agreement,
    PerplexityAgreement,
    fewest_in_common,
    finite_mean,
    kendall_tau_matrix,
    mean_over_pairs,
    pair_signs,
)
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.agreement.statistics.subsets import LeftOut, SubsetAgreement, one_with_others
from lm_validity.studies.agreement.summary import (
    AboveChance,
    AgreementSummary,
    BenchmarkFigures,
    ByProtocol,
    Decision,
    Improvement,
    InfluenceSummary,
    PerplexityInBoth,
    PerplexitySummary,
    PromptRange,
    Range,
    SignificanceSummary,
    SignificanceTau,
    SubsetSummary,
    TauSummary,
    TestSummary,
    Value,
    VarianceSummary,
    each,
    ends,
)
from lm_validity.studies.agreement.uncertainty import AgreementUncertainty
from lm_validity.summaries import Missing, is_known, known, number
from lm_validity.tables.reruns import NOT_MEASURED
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, Reason, ReasonCode, count, no_scores

NO_TAU = Reason(
    "The two benchmarks have fewer than two models in common, or all of those are tied on one of the two.",
    ReasonCode.TOO_FEW,
)
NO_PAIR = Reason(
    "The benchmark has fewer than two models in common with each other one, or they are tied.", ReasonCode.TOO_FEW
)
NO_SIGNIFICANT = "On one of the two benchmarks no difference of the models in common is known to be significant."
NO_INFLUENCE = "Without this part, too little of the table would be left."
FEW_SUBSET_MODELS = Reason("There are fewer than 8 models, or too few of their scores.", ReasonCode.TOO_FEW)
SMALL_FAMILY = Reason(f"The family has fewer than {MINIMUM_FAMILY} models.", ReasonCode.TOO_FEW)


def summarize_agreement_report(
    analysis: AgreementAnalysis,
    uncertainty: AgreementUncertainty,
    align: tuple[str, str] | None,
    choices: pd.DataFrame,
    resamples: int,
    prompts: dict[str, PromptRange | Missing] | None = None,
    shares: pd.DataFrame | None = None,
) -> AgreementSummary:
    """The report's results in one object. `align`: the pair of benchmarks to draw; `choices`: prompts chosen;
    `shares`: of each model's weights, those with an adapter; `prompts`: range of the scores over prompts, by
    benchmark."""
    comparison = analysis.comparison
    improved, compared = comparison.improved
    by_benchmark = benchmark_figures(analysis)
    tau = {p: _tau(analysis, uncertainty, p, by_benchmark[p]) for p in PROTOCOLS}
    incomplete = incomplete_protocols(analysis.matrix)
    return AgreementSummary(
        models=len(analysis.matrix.models),
        benchmarks=len(analysis.tasks),
        pairs=len(analysis.tasks) * (len(analysis.tasks) - 1) // 2,
        cells_in_both=int(comparison.known.sum()),
        models_in_both=len(comparison.models),
        improved_pairs=improved if compared else Missing(_nothing_compared(analysis, "tau")),
        compared_pairs=compared,
        kendall_tau=tau,
        improvement=_improvement(analysis, uncertainty, tau),
        significance_tau=_significance(analysis, uncertainty),
        variance_components={p: _variance(analysis, p) for p in PROTOCOLS},
        perplexity=_perplexity(analysis, uncertainty),
        families={name: _family(analysis, name, values) for name, values in analysis.families.items()},
        families_in_both={name: _family(analysis, name, values) for name, values in comparison.families.items()},
        families_interval={
            name: {p: ends(None, uncertainty.families.get(name, {}).get(p), uncertainty.reason) for p in PROTOCOLS}
            for name in comparison.families
        },
        reliability={
            name: known(
                tau, Reason("The seeds have fewer than two models in common, or they are tied.", ReasonCode.TOO_FEW)
            )
            for name, tau in analysis.reliability.items()
        },
        subsets={p: _subsets(subset, analysis.scores[p]) for p, subset in analysis.subsets.items()},
        influence={p: [influence_row(left) for left in rows] for p, rows in analysis.influence.items()},
        incomplete=incomplete,
        pooled=compare_pooled(analysis),
        alignment=align_pairs(analysis, align, every=resamples > 0),
        selected_on_test=analysis.maximum,
        by_benchmark=by_benchmark,
        prompt_range=prompts or {},
        standard_errors=analysis.matrix.error_checks,
        resamples=resamples,
        notes=(*analysis.notes, *unequal_training(shares), *method_notes(analysis)),
        matrix=analysis.matrix,
        tasks=analysis.tasks,
        categories=analysis.categories,
        choices=choices,
        adapted_shares=shares,
        lacks_many=any(fewest_in_common(analysis.scores[p]) < NEARLY_WHOLE for p in incomplete),
    )


def influence_row(left: LeftOut) -> InfluenceSummary:
    """One row of an influence table."""
    return InfluenceSummary(
        left.kind, left.name, known(left.mean_tau, NO_INFLUENCE), known(left.first_component, NO_INFLUENCE)
    )


def _no_tau(analysis: AgreementAnalysis, protocol: str, otherwise: str) -> str:
    """Why a protocol has no tau at all, else `otherwise`."""
    if not analysis.matrix.has(protocol):
        return no_scores(protocol)
    scored = np.isfinite(analysis.scores[protocol])
    if scored.any(axis=1).sum() < 2:
        return "One model has scores, so there is no ranking to compare."
    if scored.any(axis=0).sum() < 2:
        return "One benchmark has scores, so there are no two rankings to compare."
    return otherwise


def _models(analysis: AgreementAnalysis, protocol: str) -> int:
    """How many models have a score under a protocol."""
    return int(np.isfinite(analysis.scores[protocol]).any(axis=1).sum())


def _mean(analysis: AgreementAnalysis, protocol: str, mean: float, otherwise: str) -> Value:
    """A mean tau, missing where so few of the models have scores that beside the other protocol's it says nothing."""
    scored, models = _models(analysis, protocol), len(analysis.matrix.models)
    if np.isfinite(mean) and scored < min(JACKKNIFED, models / 2):
        return Missing(f"{scored} of {models} models have scores {UNDER[protocol]}: too few to speak for the others.")
    return known(mean, _no_tau(analysis, protocol, otherwise))


def _nothing_compared(analysis: AgreementAnalysis, kind: str) -> str:
    """Why nothing compares the two protocols."""
    absent = [p for p in PROTOCOLS if not analysis.matrix.has(p)]
    return no_scores(absent[0]) if absent else f"No pair of benchmarks has a {kind} under both protocols."


def _by_pair(names: list[str], tau: np.ndarray, reason: str) -> list[tuple[str, str, Value]]:
    upper = zip(*np.triu_indices(len(names), 1), strict=True)
    return [(names[i], names[j], known(float(tau[i, j]), reason)) for i, j in upper]


def _by_category(agreement: Agreement, categories: list[str | None], reason: str) -> dict[str, dict[str, Value]]:
    single = Missing(Reason("A category of one benchmark has no tau within itself.", ReasonCode.TOO_FEW))
    return {
        a: {
            b: single if a == b and categories.count(a) == 1 else known(float(agreement.by_category[i, j]), reason)
            for j, b in enumerate(agreement.categories)
        }
        for i, a in enumerate(agreement.categories)
    }


def _above_chance(
    analysis: AgreementAnalysis, protocol: str, figures: dict[str, BenchmarkFigures | Missing]
) -> AboveChance | Missing:
    """The agreement without the benchmarks on which no model is above chance; missing where there is none such."""
    counts = {
        place: number(one.models_above_chance)
        for place, one in enumerate(figures.values())
        if not isinstance(one, Missing) and is_known(one.models_above_chance)
    }
    above = [place for place, models in counts.items() if models]
    if len(above) == len(counts):
        return Missing("No benchmark is known to be one on which no model is above chance.")
    square, ceiling = np.ix_(above, above), analysis.ceiling[protocol].by_pair
    mean = mean_over_pairs(analysis.tau[protocol][square]) if above else float("nan")
    limit = mean_over_pairs(ceiling[square]) if above else float("nan")
    few = Reason(
        "Fewer than two benchmarks on which a model is above chance have a tau or a noise ceiling.", ReasonCode.TOO_FEW
    )
    return AboveChance(len(above), len(counts), known(mean, few), known(limit, few))


def _tau(
    analysis: AgreementAnalysis,
    uncertainty: AgreementUncertainty,
    protocol: str,
    figures: dict[str, BenchmarkFigures | Missing],
) -> TauSummary:
    names, tau, agreement = analysis.tasks, analysis.tau[protocol], analysis.agreement[protocol]
    ceiling, size, compute = analysis.ceiling[protocol], *analysis.matrix.sizes()
    of_pair, of_benchmark = (_no_tau(analysis, protocol, reason) for reason in (NO_TAU, NO_PAIR))
    without_ceiling = no_ceiling(ceiling, analysis.scores[protocol], protocol)
    mean = _mean(analysis, protocol, agreement.mean, f"No pair of benchmarks has a tau. {NO_TAU}")
    interval, families = ends(mean, uncertainty.mean.get(protocol), uncertainty.reason), analysis.matrix.families
    correlations = pd.DataFrame(analysis.scores[protocol]).corr(min_periods=2).to_numpy()
    by_benchmark = each(names, agreement.by_benchmark, of_benchmark)
    bounds = uncertainty.by_benchmark.get(protocol)
    intervals: dict[str, Range] | Missing = Missing(uncertainty.reason) if bounds is None else {}
    if bounds is not None:
        rows = zip(names, *bounds, strict=True)
        intervals = {
            name: ends(by_benchmark[name], Interval(low, high), uncertainty.reason) for name, low, high in rows
        }
    return TauSummary(
        models=_models(analysis, protocol),
        mean=mean,
        interval=interval,
        interval_population_of_benchmarks=ends(mean, uncertainty.mean_population.get(protocol), uncertainty.reason),
        by_benchmark=by_benchmark,
        by_benchmark_interval=mean if isinstance(mean, Missing) else intervals,
        by_pair=_by_pair(names, tau, of_pair),
        by_category=_by_category(agreement, analysis.categories, of_pair),
        ceiling=known(ceiling.mean_tau, without_ceiling),
        ceiling_by_benchmark=each(
            names,
            ceiling.by_benchmark,
            without_ceiling
            if np.isnan(ceiling.mean_tau)
            else "The benchmark is not in the noise ceiling: no standard errors, or models do not differ.",
        ),
        corrected=corrected_tau(analysis, protocol),
        interval_clustered=over_families(clustered_interval(analysis, protocol, mean), interval, families),
        interval_population_of_categories=population_interval(analysis, protocol, mean),
        by_size_ratio=ratios(analysis, protocol, size, "parameters"),
        by_compute_ratio=ratios(analysis, protocol, compute, "pretraining compute"),
        above_chance=_above_chance(analysis, protocol, figures),
        pearson=known(mean_over_pairs(correlations), of_pair),
        matrix=tau,
        correlations=correlations,
        by_category_interval=uncertainty.by_category.get(protocol, Missing(uncertainty.reason)),
    )


def _variance(analysis: AgreementAnalysis, protocol: str) -> VarianceSummary:
    """Components of variance, and what more benchmarks, items or seeds would buy."""
    found = analysis.variance[protocol]
    reason = Reason(
        "Fewer than 3 models have every benchmark, or fewer than two benchmarks differ between them.",
        ReasonCode.TOO_FEW,
    )
    reason = reason if analysis.matrix.has(protocol) else no_scores(protocol)
    no_item = Reason(
        "There are no standard errors. The noise of items is part of model × benchmark.", ReasonCode.NO_ERRORS
    )
    no_seed = "No benchmark was fine-tuned with several seeds. The noise of seeds is part of model × benchmark."
    no_seed = "Nothing is fine-tuned under direct evaluation." if protocol == DIRECT else no_seed
    no_prompt = (
        "The effect of prompts was not measured: no benchmark has 3 models with scores under two prompts or wordings. "
        "It is part of model × benchmark."
    )
    no_training = Reason(f"{NOT_MEASURED} It is part of model × benchmark.", NOT_MEASURED.code)
    undefined = np.isnan(found.model)
    plans = [] if undefined else [(n, 1.0, 1.0, 1.0) for n in (1, 2, 4, 8, 16, 32, 64)]
    plans += [] if undefined else [(found.benchmarks, more, 1.0, 1.0) for more in (0.25, 1.0, 4.0)]
    plans += [(found.benchmarks, 1.0, more, 1.0) for more in (2.0, 4.0)] if np.isfinite(found.seed) else []
    plans += [(found.benchmarks, 1.0, 1.0, 2.0)] if np.isfinite(found.prompt) else []
    return VarianceSummary(
        model=known(found.model, reason),
        model_benchmark=known(found.model_benchmark, reason),
        item=known(found.item, reason if undefined else no_item),
        seed=known(found.seed, reason if undefined else no_seed),
        prompt=known(found.prompt, reason if undefined else no_prompt),
        training=known(found.training, reason if undefined else no_training),
        reliability=known(found.reliability, reason),
        raw_model=known(found.raw_model, reason),
        raw_model_benchmark=known(found.raw_model_benchmark, reason),
        benchmarks=found.benchmarks,
        decision_study=[Decision(*plan, reliability_of(found, *plan)) for plan in dict.fromkeys(plans)],
    )


def _improvement(
    analysis: AgreementAnalysis, uncertainty: AgreementUncertainty, tau: dict[str, TauSummary]
) -> Improvement:
    comparison, reason = analysis.comparison, _nothing_compared(analysis, "tau")
    values = {p: analysis.side_by_side[p] for p in PROTOCOLS}
    means = {p: known(comparison.agreement[p].mean, reason) for p in PROTOCOLS}
    mean = known(comparison.agreement[TRAINED].mean - comparison.agreement[DIRECT].mean, reason)
    interval = ends(mean, uncertainty.improvement, uncertainty.improvement_reason)
    test, by_size, by_compute = uncertainty.test, *ratios_in_both(analysis, tau)
    return Improvement(
        mean=mean,
        means=means,
        interval=interval,
        interval_clustered=over_families(clustered_change(analysis, mean), interval, analysis.matrix.families),
        interval_population_of_benchmarks=ends(
            mean, uncertainty.improvement_population, uncertainty.improvement_reason
        ),
        interval_population_of_categories=population_change(analysis, mean),
        test=TestSummary(known(test.effect, reason), known(test.p, reason), test.units),
        by_size_ratio=by_size,
        by_compute_ratio=by_compute,
        whole=comparison.whole,
        tau=comparison.tau,
        pair_change=Missing(uncertainty.improvement_reason)
        if uncertainty.pair_change is None
        else uncertainty.pair_change,
        within={p: known(values[p].within, NO_TAU) for p in PROTOCOLS},
        between={p: known(values[p].between, NO_TAU) for p in PROTOCOLS},
        by_benchmark={p: each(analysis.tasks, values[p].by_benchmark, NO_PAIR) for p in PROTOCOLS},
    )


def _significance(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty) -> SignificanceSummary:
    improved, compared = analysis.comparison.significance_improved
    reason = _nothing_compared(analysis, "significance tau")
    return SignificanceSummary(
        **{p: _significance_tau(analysis, uncertainty, p) for p in PROTOCOLS},
        improved_pairs=improved if compared else Missing(reason),
        compared_pairs=compared,
        contradictions=contradictions(analysis),
    )


def _significance_tau(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty, protocol: str) -> SignificanceTau:
    agreement = analysis.significance[protocol]
    names, tau = analysis.tasks, analysis.significance_tau[protocol]
    reason = _no_tau(analysis, protocol, NO_SIGNIFICANT)
    mean = _mean(analysis, protocol, agreement.mean, NO_SIGNIFICANT)
    compared = analysis.comparison.significance[protocol].mean
    return SignificanceTau(
        mean=mean,
        interval=ends(mean, uncertainty.significance.get(protocol), uncertainty.reason),
        significant_pairs=dict(
            zip(names, np.abs(analysis.significant[protocol].sign).sum(axis=0).astype(int), strict=True)
        ),
        by_benchmark=each(names, agreement.by_benchmark, reason),
        by_pair=_by_pair(names, tau, reason),
        by_category=_by_category(agreement, analysis.categories, reason),
        matrix=tau,
        compared_mean=known(compared, reason) if analysis.comparison.significance_improved[1] else mean,
    )


def _family(analysis: AgreementAnalysis, name: str, values: dict[str, float]) -> ByProtocol:
    small = int((analysis.matrix.families == name).sum()) < MINIMUM_FAMILY
    alone = SMALL_FAMILY if small else "No two benchmarks have a tau among the models of the family."
    return {p: known(values[p], alone if analysis.matrix.has(p) else no_scores(p)) for p in PROTOCOLS}


def _subsets(subset: SubsetAgreement, scores: np.ndarray) -> SubsetSummary:
    def shown(curve: np.ndarray) -> list[Value]:
        return [known(float(value), FEW_SUBSET_MODELS) for value in curve]

    alone = Missing("There is no other benchmark left.")
    taus = one_with_others(scores)
    one = known(float(taus[0]), "No benchmark has a tau with the others.")
    return SubsetSummary(
        sizes=subset.sizes.tolist(),
        random_mean=shown(subset.random_mean),
        random_low=shown(subset.random_low),
        random_high=shown(subset.random_high),
        greedy_mean=shown(subset.greedy_mean),
        greedy_order=subset.greedy_order.tolist(),
        others_mean=[*shown(subset.others_mean[:-1]), alone],
        one_with_others=one,
        one_with_others_interval=ends(one, transformed_interval(taus[0], taus[1:], "tau"), LOST_MODEL),
    )


def _perplexity(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty) -> PerplexitySummary | Missing:
    if analysis.perplexity is None:
        return Missing("There is no perplexity corpus in the tables.")
    found, in_both, matrix = analysis.perplexity, analysis.comparison.perplexity, analysis.matrix
    means = _perplexity_means(analysis, found)
    before_after = {
        kind: known(finite_mean(tau), _no_before_after(analysis, kind)) for kind, tau in analysis.before_after.items()
    }

    corpora = [name for name, corpus in zip(matrix.benchmarks, matrix.is_corpus, strict=True) if corpus]
    twice = (np.column_stack([analysis.corpora[p][:, place] for p in PROTOCOLS]) for place in range(len(corpora)))
    same = [float(kendall_tau_matrix(pair_signs(columns))[0, 1]) for columns in twice]
    few = Reason(
        "Fewer than two models have its perplexity under both protocols, or they are tied.", ReasonCode.TOO_FEW
    )

    def interval(name: str) -> dict[str, Range]:
        found: dict[str, Interval[float]] = getattr(uncertainty, name)
        return {p: ends(means[name][p], found.get(p), uncertainty.reason) for p in PROTOCOLS}

    return PerplexitySummary(
        models=max(found[p].models for p in PROTOCOLS),
        corpora=corpora,
        corpus_benchmark=means["corpus_benchmark"],
        corpus_benchmark_interval=interval("corpus_benchmark"),
        corpus_corpus=means["corpus_corpus"],
        corpus_corpus_interval=interval("corpus_corpus"),
        average_average=means["average_average"],
        average_average_interval=interval("average_average"),
        same_corpus={name: known(tau, few) for name, tau in zip(corpora, same, strict=True)},
        in_both=PerplexityInBoth(**_perplexity_means(analysis, in_both, " under both protocols")),
        before_after=before_after,
        before_after_interval={
            kind: ends(value, uncertainty.before_after.get(kind), uncertainty.before_after_reason)
            for kind, value in before_after.items()
        },
        taus=found,
        before_after_taus=analysis.before_after,
    )  # fmt: skip


def _perplexity_means(
    analysis: AgreementAnalysis, found: dict[str, PerplexityAgreement], where: str = ""
) -> dict[str, ByProtocol]:
    """The three means by protocol."""
    means: dict[str, ByProtocol] = {"corpus_benchmark": {}, "corpus_corpus": {}, "average_average": {}}
    for p in PROTOCOLS:
        result = found[p]
        corpora = int(np.isfinite(analysis.corpora[p]).any(axis=0).sum())
        none = "No perplexity is known." if not corpora else ""
        across = no_scores(p) if not analysis.matrix.has(p) else f"No corpus and benchmark rank two models{where}."
        within = "There is one perplexity corpus." if corpora == 1 else f"No two corpora rank two models{where}."
        equal = "too equal" if result.complete_models >= 3 else "too few"
        average = f"{count(result.complete_models, 'model')} with all corpora and benchmarks: {equal} to compare."
        means["corpus_benchmark"][p] = known(finite_mean(result.corpus_benchmark), none or across)
        means["corpus_corpus"][p] = known(mean_over_pairs(result.corpus_corpus), none or within)
        means["average_average"][p] = known(result.average_average, average)
    return means


def _no_before_after(analysis: AgreementAnalysis, kind: str) -> str:
    """Why perplexity of untouched models and train-before-test scores cannot be compared among models of a kind."""
    members, words = tuned_members(analysis.matrix), kind.replace("_", "-")
    if not any(len(rows) for rows in members.values()):
        return "Which models are instruction-tuned is unknown."
    before, after = (np.isfinite(values).any(axis=1) for values in (analysis.corpora[DIRECT], analysis.scores[TRAINED]))
    both = int((before & after)[members[kind]].sum())
    if both < 2:
        return f"Fewer than two {words} models have both a perplexity and a train-before-test score ({both})."
    return f"The {both} {words} models are tied in perplexity or in scores, or share no two."
