"""The agreement report's page: its findings, and the sections on agreement itself."""

from collections.abc import Iterable
from itertools import product

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.agreement.analysis import DIRECT, TRAINED
from lm_validity.studies.agreement.incomplete.estimates import JACKKNIFED
from lm_validity.studies.agreement.incomplete.section import incomplete_findings, incomplete_section
from lm_validity.studies.agreement.prompt_section import equal_training_section, prompt_section
from lm_validity.studies.agreement.robustness import (
    influence_section,
    reliability_section,
    score_section,
    subset_section,
    subset_sentence,
)
from lm_validity.studies.agreement.sections import (
    alignment_section,
    by_protocol,
    category_section,
    family_section,
    perplexity_section,
    significance_section,
    tau_heatmaps,
)
from lm_validity.studies.agreement.shown import (
    assumed,
    in_words,
    over_both,
    plotted,
    shown_mean,
    value_in_words,
)
from lm_validity.studies.agreement.similar_models import no_clusters
from lm_validity.studies.agreement.similar_sections import (
    TAU_LABELS,
    both_intervals,
    corrected_finding,
    for_other_benchmarks,
    noise_leaves,
    size_finding,
    size_section,
    variance_section,
)
from lm_validity.studies.agreement.summary import AgreementSummary, Value
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, count, decimal, explain_protocols


def agreement_page(summary: AgreementSummary) -> Page:
    """The page of the report."""
    sections = [
        size_section(summary),
        _benchmark_section(summary),
        _pair_section(summary),
        category_section(summary),
        family_section(summary),
        variance_section(summary),
        perplexity_section(summary),
        significance_section(summary),
        alignment_section(summary),
        subset_section(summary),
        influence_section(
            summary.influence,
            {p: tau.mean for p, tau in summary.kendall_tau.items()},
            measure="mean_tau",
            prefix="influence",
            name="mean tau",
        ),
        incomplete_section(summary.incomplete, summary.matrix),
        reliability_section(summary),
        equal_training_section(summary.adapted_shares, summary.matrix),
        prompt_section(summary.choices, summary.matrix),
        score_section(summary.matrix),
    ]
    return Page(
        name="agreement",
        title="Ranking agreement",
        question="Do the benchmarks agree on which model is better? "
        + explain_protocols(summary.matrix.protocols, own=summary.matrix.trained_here),
        findings=_findings(summary),
        sections=[section for section in sections if section is not None],
        notes=summary.notes,
    )


def _findings(summary: AgreementSummary) -> list[Finding]:
    findings = [size_finding(summary), _improvement_finding(summary), corrected_finding(summary)]
    findings += incomplete_findings(summary.incomplete) if summary.lacks_many else []
    findings += [_agreement_finding(summary), _subset_finding(summary)]
    findings += [_perplexity_finding(summary), _selection_finding(summary)]
    return [finding for finding in findings if finding is not None]


def _size(summary: AgreementSummary) -> str:
    return f"{count(summary.models, 'model')} × {count(summary.benchmarks, 'benchmark')}"


def _agreement_finding(summary: AgreementSummary) -> Finding:
    tau = summary.kendall_tau
    # of a protocol with so few models that there is no interval, the pooled finding says how few
    scored = [
        p for p in PROTOCOLS if is_known(tau[p].mean) and (p not in summary.incomplete or is_known(tau[p].interval))
    ]
    if not scored:
        return Finding("No two benchmarks can be compared.", _size(summary))
    parts = [f"{both_intervals(tau[p].mean, tau[p].interval, tau[p].interval_clustered)} {UNDER[p]}" for p in scored]
    own = ", each protocol over all cells it has" if len(scored) > 1 and not summary.improvement.whole else ""
    if summary.incomplete and not summary.lacks_many:
        missing = sum(one.missing + one.by_scores for one in summary.incomplete.values())
        own += f". {count(missing, 'cell is', 'cells are')} missing, by chance as the intervals assume"
    elif set(scored) & set(summary.incomplete):
        own += (
            ". A pair of benchmarks with few models in common counts like any other here. The pooled tau gives it "
            "less weight"
        )
    population = [
        f"{in_words(tau[p].interval_population_of_categories)} {UNDER[p]}"
        for p in scored
        if is_known(tau[p].interval_population_of_categories)
    ]
    families = not no_clusters(summary.matrix.families)
    uncorrected = [
        f" {UNDER[p].capitalize()}, there is no noise-corrected tau. {corrected.reason}"
        for p in scored
        if is_known(tau[p].ceiling) and isinstance(corrected := tau[p].corrected.mean, Missing)
    ]
    return Finding(
        f"Two benchmarks' rankings of the models have{assumed(summary)} a mean Kendall's tau of {' and '.join(parts)}."
        + _limits(summary, scored),
        f"{_size(summary)}, {count(summary.pairs, 'pair')} of benchmarks{own}. Intervals are for other models on these "
        f"benchmarks.{''.join(uncorrected)}{for_other_benchmarks(' and '.join(population), families=families)}",
    )


def _limits(summary: AgreementSummary, protocols: list[str]) -> str:
    """What noise would leave of a perfect agreement, and the agreement without benchmarks that are at chance."""
    tau = summary.kendall_tau
    text = noise_leaves({p: tau[p].ceiling for p in protocols})
    for p in protocols:
        found = tau[p].above_chance
        if isinstance(found, Missing):
            continue
        on = f"{found.above} of {count(found.known, 'benchmark')} with a known chance level"
        text += f" A model is above chance on {on} {UNDER[p]}"
        if is_known(found.mean) and is_known(found.ceiling):
            mean, limit = value_in_words(found.mean), value_in_words(found.ceiling)
            text += f"; over these, tau is {mean}, and noise would leave {limit}"
        text += "."
    return text


def _improvement_finding(summary: AgreementSummary) -> Finding | None:
    if not is_known(summary.improved_pairs):
        return None
    improvement, test = summary.improvement, summary.improvement.test
    if summary.lacks_many and "all" in summary.pooled:
        return _pooled_change_finding(summary)
    if not is_known(improvement.interval) and not is_known(improvement.interval_clustered):
        return None
    change = both_intervals(improvement.mean, improvement.interval, improvement.interval_clustered, signed=True)
    before, after = (value_in_words(improvement.means[p]) for p in PROTOCOLS)
    sentence = (
        f"Train before test changes the mean tau from {before} to {after}, by {change}: "
        f"{summary.improved_pairs} of {summary.compared_pairs} pairs agree more."
    )
    basis = (
        f"Over the {count(summary.cells_in_both, 'cell')} known under both protocols. Sign-flip test over "
        f"{count(test.units, 'benchmark')}, one-sided p = {value_in_words(test.p, digits=4)}. The test holds for these "
        "models only."
    )
    if 0.5**test.units > 0.05:
        basis += f" With {count(test.units, 'benchmark')} it cannot fall below {decimal(0.5**test.units, 4)}."
    categories, population = (
        improvement.interval_population_of_categories,
        improvement.interval_population_of_benchmarks,
    )
    if is_known(categories):
        families = not no_clusters(summary.matrix.families)
        basis += for_other_benchmarks(in_words(categories, signed=True), families=families)
    elif is_known(population):
        basis += f" For other benchmarks too: {in_words(population, signed=True)}."
    return Finding(sentence, basis)


def _pooled_change_finding(summary: AgreementSummary) -> Finding | None:
    """The change where cells are missing; none where too few models have a cell under both protocols."""
    pooled = summary.pooled["all"]
    if not is_known(pooled.change_interval):
        return None
    change = both_intervals(pooled.change, pooled.change_interval, pooled.change_interval_clustered, signed=True)
    before, after = (value_in_words(pooled.mean[p]) for p in PROTOCOLS)
    return Finding(
        f"Train before test changes the pooled tau{assumed(summary)} from {before} to {after}, by {change}.",
        f"Over the {count(summary.cells_in_both, 'cell')} of {count(pooled.models, 'model')} known under both "
        f"protocols: {pooled.comparisons:,} comparisons of two models on two benchmarks, each counted once. The mean "
        "over pairs of benchmarks gives a pair with few models in common the weight of any other. It changes by "
        f"{value_in_words(summary.improvement.mean, signed=True)}, and {summary.improved_pairs} of "
        f"{summary.compared_pairs} pairs agree more.",
    )


def _few_in_both(summary: AgreementSummary) -> bool:
    """Whether so few models have a cell under both protocols that comparing these says nothing about the others."""
    return bool(summary.incomplete) and summary.models_in_both < JACKKNIFED


def _subset_finding(summary: AgreementSummary) -> Finding | None:
    sentence = subset_sentence(summary)
    if not sentence:
        return None
    interval = " The interval is over models." if "interval" in sentence else ""
    return Finding(sentence, f"No benchmark is on both sides.{interval}")


def _perplexity_finding(summary: AgreementSummary) -> Finding | None:
    perplexity = summary.perplexity
    if isinstance(perplexity, Missing) or not is_known(perplexity.corpus_benchmark[DIRECT]):
        return None
    own, both = perplexity.corpus_benchmark, perplexity.in_both.corpus_benchmark
    compared = all(is_known(value) for value in both.values())
    if compared and _few_in_both(summary):  # a mean of taus of 1 and -1
        own, compared = {p: tau for p, tau in own.items() if p not in summary.incomplete}, False
    shown = both if compared and summary.lacks_many else own
    parts = [
        f"{shown_mean(shown[p], own[p], perplexity.corpus_benchmark_interval[p])} {UNDER[p]}"
        for p in shown
        if is_known(shown[p])
    ]
    return Finding(
        f"Between rankings by perplexity and rankings by benchmark{assumed(summary)}, the mean tau is "
        f"{' and '.join(parts)}.",
        f"{count(perplexity.models, 'model')} with perplexities on "
        f"{count(len(perplexity.corpora), 'corpus', 'corpora')}{over_both(partly=shown != own)}.",
    )


def _selection_finding(summary: AgreementSummary) -> Finding | None:
    maximum = summary.selected_on_test
    if maximum is None:
        return None
    return Finding(
        "Caution: the train-before-test scores of this table are the better of both protocols on the test split.",
        f"{maximum.equal} of {maximum.cells} cells equal the direct score and none is below it. Without the equal "
        f"cells the mean tau under train before test is {value_in_words(maximum.mean_tau_without, digits=3)}.",
    )


def _benchmark_section(summary: AgreementSummary) -> Section:
    rows = []
    for (i, name), p in product(enumerate(summary.tasks), PROTOCOLS):
        tau = summary.kendall_tau[p]
        intervals, corrected = tau.by_benchmark_interval, tau.corrected
        rows.append(
            {
                "benchmark": name,
                "category": summary.categories[i] or "unknown",
                "protocol": figures.PROTOCOL_LABELS[p],
                "tau": tau.by_benchmark[name],
                **as_columns(intervals if isinstance(intervals, Missing) else intervals[name]),
                "ceiling": tau.ceiling_by_benchmark[name],
                "corrected": corrected.by_benchmark[name],
                **as_columns(corrected.by_benchmark_interval[name], "corrected_low", "corrected_high"),
                "significance_tau": summary.significance_tau.by_protocol[p].by_benchmark[name],
            }
        )
    frame = pd.DataFrame(rows)
    order = _order_by_direct(summary)
    charts = [
        Figure(
            "tau_by_benchmark",
            "Mean tau by benchmark",
            _benchmark_chart(plotted(frame), "tau", ("low", "high"), order, mark="ceiling"),
            caption="Dot: mean tau with all other benchmarks. Line: 95% interval over models. Tick: noise ceiling.",
            wide=True,
        ),
        Figure(
            "corrected_by_benchmark",
            "Noise-corrected tau",
            _benchmark_chart(plotted(frame), "corrected", ("corrected_low", "corrected_high"), order),
            caption="Dot: mean tau with all other benchmarks, noise-corrected. Line: 95% interval over models.",
            wide=True,
        ),
    ]
    formats = dict.fromkeys(frame.columns[3:], ".3f")
    return Section(
        "Agreement of each benchmark with the others",
        finding=_extremes_sentence(summary),
        figures=charts,
        tables=[
            Table("tau_by_benchmark", "Mean tau by benchmark", frame, formats=formats, labels=TAU_LABELS, folded=True)
        ],
    )


def _benchmark_chart(
    frame: pd.DataFrame, value: str, ends: tuple[str, str], order: list[str], mark: str | None = None
) -> alt.LayerChart:
    low, high = ends
    shown = {value: "tau|.3f", low: "from|.3f", high: "to|.3f"} | ({mark: "noise ceiling|.3f"} if mark else {})
    return figures.interval_dots(
        frame,
        y="benchmark",
        value=value,
        ends=ends,
        mark=mark,
        title="Mean tau with the other benchmarks",
        y_order=order,
        tooltip=figures.tooltips(benchmark="Benchmark", category="Category", protocol="Protocol", **shown),
        offset="protocol",
        row_height=22,
    )


def _extremes_sentence(summary: AgreementSummary) -> str:
    """Which benchmark stands apart most, before and after."""
    side_by_side = summary.improvement.by_benchmark
    values = {name: number(tau) for name, tau in side_by_side[DIRECT].items() if is_known(tau)}
    if not values:
        return ""
    lowest = min(values, key=values.__getitem__)
    tau = decimal(values[lowest])
    sentence = f"{lowest} has the lowest mean tau with the others under direct evaluation: {tau}"
    after = side_by_side[TRAINED][lowest]
    if not is_known(after):
        return f"{sentence}."
    known_under_both = over_both(partly=not summary.improvement.whole)
    return f"{sentence}. Under train before test it has {value_in_words(after)}{known_under_both}."


def _order_by_direct(summary: AgreementSummary) -> list[str]:
    """Benchmarks from most to least agreement, directly where that is known."""

    def by_name(protocol: str) -> dict[str, Value]:
        return summary.kendall_tau[protocol].by_benchmark

    values = by_name(DIRECT) if any(is_known(tau) for tau in by_name(DIRECT).values()) else by_name(TRAINED)
    return sorted(summary.tasks, key=lambda name: -number(values[name]) if is_known(values[name]) else np.inf)


def _pair_section(summary: AgreementSummary) -> Section:
    names, improvement = summary.tasks, summary.improvement
    upper = np.triu_indices(len(names), 1)
    pairs = summary.kendall_tau[DIRECT].by_pair
    table = pd.DataFrame(
        {
            "benchmark": [first for first, _, _ in pairs],
            "with": [second for _, second, _ in pairs],
            **{label: [tau for *_, tau in summary.kendall_tau[p].by_pair] for p, label in _labels()},
        }
    )
    for p, label in _labels():
        corrected = summary.kendall_tau[p].corrected
        table[f"{label}, corrected"] = [tau for *_, tau in corrected.by_pair]
        ends = [as_columns(interval) for *_, interval in corrected.by_pair_interval]
        for end in ("low", "high"):
            table[f"{label}, corrected {end}"] = [found[end] for found in ends]
        table[f"{label}, Pearson"] = summary.kendall_tau[p].correlations[upper]
    common = {p: improvement.tau[p][upper] for p in PROTOCOLS}
    if not improvement.whole:
        for p, label in _labels():
            table[f"{label}, common cells"] = common[p]
    table["change"] = common[TRAINED] - common[DIRECT]
    finding = ""
    change = improvement.pair_change
    if not isinstance(change, Missing):
        table["change_low"], table["change_high"] = (end[upper] for end in change)
        surely, worse = int((table["change_low"] > 0).sum()), int((table["change_high"] < 0).sum())
        finding = (
            f"The interval of the change lies above zero for {surely} of {summary.compared_pairs} pairs and below "
            f"zero for {worse}. Each pair is judged alone: the intervals are not corrected for the number of pairs."
        )
    grids = {p: tau.matrix for p, tau in summary.kendall_tau.items()}
    return Section(
        "Pairs of benchmarks",
        finding=finding,
        figures=tau_heatmaps(by_protocol("tau_by_pair", grids), names, names, without_diagonal=True, row_height=16),
        tables=[
            Table(
                "tau_by_pair",
                "All pairs",
                table,
                formats={name: ".3f" for name in table.columns[2:]}
                | {"change": "+.3f", "change_low": "+.3f", "change_high": "+.3f"},
                folded=True,
            )
        ],
    )


def _labels() -> Iterable[tuple[str, str]]:
    return figures.PROTOCOL_LABELS.items()
