"""The factors report's page and its findings."""

from lm_validity.pages.page import Finding, Page
from lm_validity.studies.agreement.factors.component_sections import (
    compute_section,
    entry_of,
    family_section,
    score_section,
    variance_section,
)
from lm_validity.studies.agreement.factors.front import above_the_folds
from lm_validity.studies.agreement.factors.sections import (
    completion_section,
    main_protocol,
    potential_section,
)
from lm_validity.studies.agreement.factors.summary import FactorsSummary
from lm_validity.studies.agreement.robustness import influence_section
from lm_validity.studies.agreement.statistics.ranking import fewest_in_common
from lm_validity.studies.agreement.values import JACKKNIFED, NEARLY_WHOLE, both_intervals, shown_mean, value_in_words
from lm_validity.summaries import Missing, is_known, number
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, count, explain_protocols, percent

DIRECT, TRAINED = PROTOCOLS


def factors_page(summary: FactorsSummary) -> Page:
    """The page of the report."""
    sections = [
        variance_section(summary),
        family_section(summary),
        score_section(summary),
        compute_section(summary),
        potential_section(summary),
        completion_section(summary),
        influence_section(
            summary.influence,
            {p: shares[0] for p, shares in summary.explained_variance.items() if not isinstance(shares, Missing)},
            measure="first_component",
            prefix="share_influence",
            name="share of the first component",
        ),
    ]
    return Page(
        name="factors",
        title="Factors and potential",
        question="How many factors does the score matrix have, what is the first, and which model has most potential? "
        "A factor (here a principal component) is a weighted sum of the benchmarks. The first is the one along which "
        f"models differ most. {explain_protocols(summary.matrix.protocols, own=summary.matrix.trained_here)}",
        findings=_findings(summary),
        sections=[section for section in sections if section is not None],
        notes=summary.notes,
        **above_the_folds(summary),
    )


def _findings(summary: FactorsSummary) -> list[Finding]:
    findings = [_share_finding(summary), _factor_count_finding(summary), _compute_finding(summary)]
    findings += [_pick_finding(summary), _completion_finding(summary)]
    return [finding for finding in findings if finding is not None]


def _share_finding(summary: FactorsSummary) -> Finding:
    compared = all(is_known(shares) for shares in summary.explained_variance_in_both.values())
    shares, intervals = summary.explained_variance, summary.explained_variance_interval
    families = summary.explained_variance_interval_clustered
    if compared:
        shares, intervals = summary.explained_variance_in_both, summary.explained_variance_in_both_interval
        families = summary.explained_variance_in_both_interval_clustered
    parts = [
        both_intervals(entry_of(shares[p], 0), entry_of(intervals[p], 0), families[p])
        + f"{'' if i else ' of the variance'} {UNDER[p]}"
        for i, p in enumerate(p for p in PROTOCOLS if is_known(shares[p]))
    ]
    some = compared and summary.models_in_both < summary.models
    models = count(summary.models_in_both if compared else summary.models, "model")
    cells = f", {count(summary.cells_in_both, 'cell')} known under both protocols" if compared else ""
    basis = (
        f"Standardised scores of {models} on {count(summary.benchmarks, 'benchmark')}{cells}. The intervals are for "
        "other models on these benchmarks. In simulations with 20 and 61 models, some of them far from the rest (heavy "
        "tails), they contained the truth in 78% to 91% of cases, not 95%. Fewer models were not simulated."
    )
    if not parts:
        return Finding("The components cannot be computed.", basis)
    without = [
        f"{value_in_words(entry_of(shares, 0))} {UNDER[p]}"
        for p, shares in summary.explained_variance_without_size.items()
        if is_known(shares) and not some  # it is over all models of a protocol
    ]
    more = "Of the variance that model size leaves unexplained, its own first factor explains"
    more = f" {more} {' and '.join(without)}." if without else ""
    # an interval's condition comes before its number
    assumed = "no heavy tails"
    if any(fewest_in_common(completion.scores) < NEARLY_WHOLE for completion in summary.completion.values()):
        assumed += " and that cells are missing by chance"
    among = f"Among the {models} known under both protocols, the" if some else "The"
    first = f"{among} first factor (intervals assume {assumed})"
    return Finding(f"{first} explains {' and '.join(parts)}.{more}", basis)


def _factor_count_finding(summary: FactorsSummary) -> Finding | None:
    parts, several = [], len(set(summary.matrix.families)) > 1
    for protocol, parallel in summary.parallel_analysis.items():
        if not isinstance(parallel, Missing):
            within = parallel.factors_within_families
            inside = f" ({within} within families)" if is_known(within) and several else ""
            parts.append(f"{count(parallel.factors, 'factor')} {UNDER[protocol]}{inside}")
    if not parts:
        return None
    limits = [
        f"{percent(number(ceiling))} {UNDER[protocol]}"
        for protocol, ceiling in summary.first_component_ceiling.items()
        if is_known(ceiling)
    ]
    basis = (
        "Parallel analysis counts the factors above the 95th percentile of tables with shuffled columns. Differences "
        "between families of models look like factors even where benchmarks are independent within families."
    )
    first = [f"{p.p_first:.3f} {UNDER[protocol]}" for protocol, p in summary.parallel_analysis.items() if is_known(p)]
    basis += f" Shuffled tables have so large a first factor with a probability of {' and '.join(first)}."
    if limits:
        basis += (
            f" If all benchmarks ordered the models alike, noise would leave the first factor {' and '.join(limits)}."
        )
    return Finding(f"Factors beyond what chance would give: {' and '.join(parts)}.", basis)


def _compute_finding(summary: FactorsSummary) -> Finding | None:
    own, both = summary.pc1_compute, summary.pc1_compute_in_both
    relation = both if all(is_known(found.kendall) for found in both.values()) else own
    parts = [
        f"{shown_mean(relation[p].kendall, own[p].kendall, own[p].kendall_interval)} {UNDER[p]}"
        for p in PROTOCOLS
        if is_known(relation[p].kendall)
    ]
    if not parts:
        return None
    return Finding(
        f"Tau between the first factor and pretraining compute is {' and '.join(parts)}.",
        f"{count(max(found.models for found in relation.values()), 'model')} with known and reliable compute: "
        "6 × parameters × tokens.",
    )


def _pick_finding(summary: FactorsSummary) -> Finding | None:
    protocol = main_protocol(summary)
    ranks = {name: one for name, one in summary.potential.get(protocol, {}).items() if is_known(one.rank)}
    if not ranks or len(ranks) < min(JACKKNIFED, summary.models / 2):
        return None
    labels = dict(zip(summary.matrix.models, summary.matrix.labels, strict=True))
    best = min(ranks, key=lambda name: number(ranks[name].rank))
    potential = ranks[best]
    by_category = is_known(potential.interval_population_of_categories)
    bounds = potential.interval_population_of_benchmarks
    bounds = potential.interval_population_of_categories if by_category else bounds
    interval = "" if isinstance(bounds, Missing) else f", 95% interval {bounds.low:.0f} to {bounds.high:.0f}"
    resampled = "categories" if by_category else "benchmarks"
    basis = f"Interval over {resampled}." if interval else "These benchmarks give no interval for others like them."
    if is_known(potential.share_in_top["1"]):
        basis += (
            f" It is first in {percent(number(potential.share_in_top['1']))} of the resamples of {resampled}. That is "
            "not the probability that it truly is first."
        )
    potential_words = " (its potential)" if protocol == TRAINED else ""
    first = f"ranks first on the first factor {UNDER[protocol]}{potential_words}: rank"
    ranked = f"{len(ranks)}" if len(ranks) == summary.models else f"the {count(len(ranks), 'model')} with enough scores"
    return Finding(
        f"{labels[best]} {first} {number(potential.rank):.0f} of {ranked}{interval}.",
        basis,
    )


def _completion_finding(summary: FactorsSummary) -> Finding | None:
    checked = {
        UNDER[p]: completion
        for p, completion in summary.completion.items()
        if is_known(completion.held_out.mean_absolute_error)
    }
    if not checked:
        return None
    errors = [
        f"{value_in_words(values.held_out.error_in_sd)} standard deviations {words} (the benchmark's mean misses it by "
        f"{value_in_words(values.held_out.baseline_in_sd)})"
        for words, values in checked.items()
    ]
    covered = [
        f"{words}: {values.held_out.cells} cells held out in turn, {percent(number(values.held_out.coverage))} "
        f"inside their 95% intervals, {count(values.missing_cells, 'missing cell')} predicted"
        for words, values in checked.items()
    ]
    sentence = f"On average, a prediction by one factor misses a held-out score by {' and '.join(errors)}."
    basis = "; ".join(covered)
    return Finding(sentence, f"{basis[0].upper()}{basis[1:]}.")
