"""The agreement report's page: its findings, and the sections on agreement itself."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.agreement.analysis import DIRECT, NO_FAMILIES, PREPARED, AgreementAnalysis
from lm_validity.studies.agreement.influence_section import influence_section
from lm_validity.studies.agreement.pair_alignment import PairAlignment
from lm_validity.studies.agreement.prompt_section import prompt_section
from lm_validity.studies.agreement.robustness import (
    reliability_section,
    score_section,
    subset_section,
    subset_sentence,
)
from lm_validity.studies.agreement.sections import (
    alignment_section,
    over_both,
    perplexity_section,
    shown_mean,
    significance_section,
    tau_heatmaps,
)
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.agreement.uncertainty import AgreementUncertainty
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, decimal, percent, with_interval


def agreement_page(
    analysis: AgreementAnalysis,
    uncertainty: AgreementUncertainty,
    alignments: Sequence[PairAlignment],
    summary: dict,
    choices: pd.DataFrame | None = None,
) -> Page:
    """The page of the report."""
    sections = [
        _benchmark_section(analysis, uncertainty, summary),
        _pair_section(analysis, uncertainty, summary),
        _category_section(analysis, uncertainty),
        _family_section(analysis, uncertainty),
        perplexity_section(analysis, summary),
        significance_section(analysis, summary),
        alignment_section(analysis, alignments),
        subset_section(analysis),
        influence_section(
            analysis.influence,
            {p: analysis.agreement[p].mean for p in PROTOCOLS},
            measure="mean_tau",
            prefix="influence",
            name="mean tau",
        ),
        reliability_section(analysis),
        prompt_section(choices, analysis.matrix),
        score_section(analysis),
    ]
    return Page(
        name="agreement",
        title="Ranking agreement",
        question="Do the benchmarks agree on which model is better, as the models come and after equal preparation?",
        findings=_findings(analysis, summary),
        sections=[section for section in sections if section is not None],
        notes=summary["notes"],
    )


def _findings(analysis: AgreementAnalysis, summary: dict) -> list[Finding]:
    findings = [_agreement_finding(analysis, summary), _improvement_finding(summary), _ceiling_finding(summary)]
    findings += [_subset_finding(analysis), _perplexity_finding(summary), _selection_finding(analysis)]
    return [finding for finding in findings if finding is not None]


def _size(summary: dict) -> str:
    return f"{count(summary['models'], 'model')} × {count(summary['benchmarks'], 'benchmark')}"


def _agreement_finding(analysis: AgreementAnalysis, summary: dict) -> Finding:
    tau = summary["kendall_tau"]
    known = [p for p in PROTOCOLS if tau[p]["mean"] is not None]
    if not known:
        return Finding("No two benchmarks can be compared.", _size(summary))
    words = {DIRECT: "as the models come", PREPARED: "after equal preparation"}
    parts = [f"{with_interval(tau[p]['mean'], tau[p]['interval'])} {words[p]}" for p in known]
    own = "; each protocol over all cells it has" if len(known) > 1 and not analysis.comparison.whole else ""
    return Finding(
        f"Two benchmarks' rankings of the models agree with a mean Kendall's tau of {' and '.join(parts)}.",
        f"{_size(summary)}, {count(summary['pairs'], 'pair')}{own}; interval over other models, these benchmarks.",
    )


def _improvement_finding(summary: dict) -> Finding | None:
    if summary["improved_pairs"] is None:
        return None
    improvement, test = summary["improvement"], summary["improvement"]["test"]
    change = with_interval(improvement["mean"], improvement["interval"], signed=True)
    before, after = (decimal(improvement["means"][p]) for p in PROTOCOLS)
    sentence = (
        f"Preparation changes the mean tau from {before} to {after}, by {change}: {summary['improved_pairs']} of "
        f"{summary['compared_pairs']} pairs agree more."
    )
    basis = (
        f"Over the {count(summary['cells_in_both'], 'cell')} known under both protocols. Sign-flip test over "
        f"{count(test['units'], 'benchmark')}, one-sided p = {decimal(test['p'], 4)}."
    )
    population = improvement["interval_population_of_benchmarks"]
    if population and None not in population:
        basis += (
            f" For other benchmarks too: {decimal(population[0], signed=True)} to "
            f"{decimal(population[1], signed=True)}."
        )
    return Finding(sentence, basis)


def _ceiling_finding(summary: dict) -> Finding | None:
    parts = [
        f"{decimal(values['ceiling'])} {label.lower()}, of which {percent(values['share_of_ceiling'])} is reached"
        for (p, label), values in ((item, summary["kendall_tau"][item[0]]) for item in figures.PROTOCOL_LABELS.items())
        if values["ceiling"] is not None and values["share_of_ceiling"] is not None
    ]
    if not parts:
        return None
    return Finding(
        f"If one order of the models held everywhere, measurement error would still leave tau at {'; '.join(parts)}.",
        "Simulated from each benchmark's own scores and standard errors.",
    )


def _subset_finding(analysis: AgreementAnalysis) -> Finding | None:
    sentence = subset_sentence(analysis)
    if not sentence:
        return None
    return Finding(sentence, "Mean over random subsets, on groups of models; the whole set contains the subset.")


def _perplexity_finding(summary: dict) -> Finding | None:
    perplexity = summary["perplexity"]
    if perplexity is None or perplexity["corpus_benchmark"][DIRECT] is None:
        return None
    own, both = perplexity["corpus_benchmark"], perplexity["in_both"]["corpus_benchmark"]
    words = {DIRECT: "directly", PREPARED: "after preparation"}
    shown = own if None in both.values() else both
    parts = [
        f"{shown_mean(shown[p], own[p], perplexity['corpus_benchmark_interval'].get(p))} {words[p]}"
        for p in PROTOCOLS
        if shown[p] is not None
    ]
    return Finding(
        f"Rankings by perplexity agree with benchmarks' rankings with tau {' and '.join(parts)}.",
        f"{count(perplexity['models'], 'model')} with perplexities on "
        f"{count(len(perplexity['corpora']), 'corpus', 'corpora')}{over_both(shown != own)}.",
    )


def _selection_finding(analysis: AgreementAnalysis) -> Finding | None:
    maximum = analysis.maximum
    if maximum is None:
        return None
    return Finding(
        "Caution: the prepared scores of this table are the better of both protocols on the test split.",
        f"{maximum.equal} of {maximum.cells} cells equal the direct score, none is below it. Without the equal cells "
        f"the mean prepared tau is {decimal(maximum.mean_tau_without, 3)}.",
    )


def _interval_columns(interval: Interval | None, index) -> dict:
    return (
        {"low": np.nan, "high": np.nan}
        if interval is None
        else {"low": interval.low[index], "high": interval.high[index]}
    )


def _benchmark_section(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty, summary: dict) -> Section:
    rows = [
        {
            "benchmark": name,
            "category": analysis.categories[i] or "unknown",
            "protocol": figures.PROTOCOL_LABELS[p],
            "tau": analysis.agreement[p].by_benchmark[i],
            **_interval_columns(uncertainty.by_benchmark.get(p), i),
            "ceiling": analysis.ceiling[p].by_benchmark[i],
            "significance_tau": analysis.significance[p].by_benchmark[i],
        }
        for (i, name), p in product(enumerate(analysis.tasks), PROTOCOLS)
    ]
    frame = pd.DataFrame(rows)
    tooltip = figures.tooltips(
        benchmark="Benchmark", category="Category", protocol="Protocol", tau="tau|.3f", low="from|.3f", high="to|.3f",
        ceiling="noise ceiling|.3f",
    )  # fmt: skip
    chart = figures.interval_dots(
        frame,
        y="benchmark",
        value="tau",
        low="low",
        high="high",
        mark="ceiling",
        title="Mean tau with the other benchmarks",
        y_order=order_by_direct(analysis),
        color=figures.protocol_color(),
        tooltip=tooltip,
        offset="protocol",
        row_height=22,
    )
    caption = "Dot: mean tau with all others. Line: 95% interval over models. Tick: the noise ceiling."
    formats = {name: ".3f" for name in ("tau", "low", "high", "ceiling", "significance_tau")}
    return Section(
        "Agreement of each benchmark with the others",
        finding=_extremes_sentence(analysis),
        figures=[Figure("tau_by_benchmark", "Mean tau by benchmark", chart, caption=caption, wide=True)],
        tables=[Table("tau_by_benchmark", "Mean tau by benchmark", frame, formats=formats, folded=True)],
    )


def _extremes_sentence(analysis: AgreementAnalysis) -> str:
    """Which benchmark stands apart most, before and after."""
    values = analysis.side_by_side[DIRECT].by_benchmark
    if not np.isfinite(values).any():
        return ""
    lowest = int(np.nanargmin(values))
    sentence = (
        f"{analysis.tasks[lowest]} stands apart most as the models come, with a mean tau of {decimal(values[lowest])}"
    )
    after = analysis.side_by_side[PREPARED].by_benchmark[lowest]
    if not np.isfinite(after):
        return f"{sentence}."
    return f"{sentence}; after preparation it has {decimal(after)}{over_both(not analysis.comparison.whole)}."


def order_by_direct(analysis: AgreementAnalysis) -> list[str]:
    """Benchmarks from most to least agreement, directly where that is known."""
    values = analysis.agreement[DIRECT].by_benchmark
    if not np.isfinite(values).any():
        values = analysis.agreement[PREPARED].by_benchmark
    return [analysis.tasks[i] for i in np.argsort(np.where(np.isfinite(values), -values, np.inf), kind="stable")]


def _by_protocol(name: str, values: dict[str, np.ndarray]) -> dict[tuple[str, str], np.ndarray]:
    return {(f"{name}_{p}", label): values[p] for p, label in figures.PROTOCOL_LABELS.items()}


def _pair_section(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty, summary: dict) -> Section:
    names = analysis.tasks
    upper = list(zip(*np.triu_indices(len(names), 1), strict=True))
    table = pd.DataFrame(
        {
            "benchmark": [names[i] for i, _ in upper],
            "with": [names[j] for _, j in upper],
            **{figures.PROTOCOL_LABELS[p]: [analysis.tau[p][i, j] for i, j in upper] for p in PROTOCOLS},
        }
    )
    common = {p: analysis.comparison.tau[p][np.triu_indices(len(names), 1)] for p in PROTOCOLS}
    if not analysis.comparison.whole:
        for p, label in figures.PROTOCOL_LABELS.items():
            table[f"{label}, common cells"] = common[p]
    table["change"] = common[PREPARED] - common[DIRECT]
    finding = ""
    change = uncertainty.pair_change
    if change is not None:
        table["change_low"], table["change_high"] = (np.array([end[i, j] for i, j in upper]) for end in change)
        surely, worse = int((table["change_low"] > 0).sum()), int((table["change_high"] < 0).sum())
        finding = (
            f"For {surely} of {analysis.comparison.improved[1]} pairs the interval of the change lies above zero, for "
            f"{worse} below it (each pair for itself, not corrected for their number)."
        )
    return Section(
        "Pairs of benchmarks",
        finding=finding,
        figures=tau_heatmaps(
            _by_protocol("tau_by_pair", analysis.tau), names, names, without_diagonal=True, row_height=16
        ),
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


def _category_section(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty) -> Section:
    names = list(analysis.agreement[DIRECT].categories)
    if not names:
        return Section("Categories", notes=["The benchmarks sheet names no categories."])
    rows = []
    for (i, a), (j, b) in product(enumerate(names), repeat=2):
        if i > j:
            continue
        row = {"category": a, "with": b}
        for p, label in figures.PROTOCOL_LABELS.items():
            row[label] = analysis.agreement[p].by_category[i, j]
            interval = uncertainty.by_category.get(p)
            if interval is not None:
                row |= {f"{label} low": interval.low[i, j], f"{label} high": interval.high[i, j]}
        rows.append(row)
    table = pd.DataFrame(rows)
    grids = {p: analysis.agreement[p].by_category for p in PROTOCOLS}
    return Section(
        "Within and between categories",
        finding=_category_sentence(analysis),
        explanation="Diagonal: pairs within a category. A category with one benchmark has no pair of its own.",
        figures=tau_heatmaps(_by_protocol("tau_by_category", grids), names, names, number_format=".2f", row_height=34),
        tables=[
            Table(
                "tau_by_category",
                "Categories, with intervals over models",
                table,
                formats={name: ".3f" for name in table.columns[2:]},
                folded=True,
            )
        ],
    )


def _category_sentence(analysis: AgreementAnalysis) -> str:
    """Whether benchmarks of one category agree better than those of two."""
    shown = analysis.side_by_side
    parts = [
        f"{decimal(shown[p].within)} within and {decimal(shown[p].between)} between categories {word}"
        for p, word in ((DIRECT, "directly"), (PREPARED, "after preparation"))
        if np.isfinite(shown[p].mean)
    ]
    partly = len(parts) > 1 and not analysis.comparison.whole
    return f"Mean tau: {', '.join(parts)}{over_both(partly)}." if parts else ""


def _family_sentence(analysis: AgreementAnalysis) -> str:
    found = analysis.comparison.families
    known = [values for values in found.values() if all(np.isfinite(values[p]) for p in PROTOCOLS)]
    if not known:
        return ""
    more = sum(values[PREPARED] > values[DIRECT] for values in known)
    return (
        f"In {more} of {count(len(known), 'family', 'families')} the benchmarks agree more after preparation"
        f"{over_both(not analysis.comparison.whole)}."
    )


def _family_section(analysis: AgreementAnalysis, uncertainty: AgreementUncertainty) -> Section | None:
    if not np.isfinite([list(values.values()) for values in analysis.families.values()]).any():
        return Section("Within families", notes=[NO_FAMILIES])
    rows = []
    for family, values in analysis.families.items():
        for p, label in figures.PROTOCOL_LABELS.items():
            interval = uncertainty.families.get(family, {}).get(p)
            low, high = (np.nan, np.nan) if interval is None else interval
            rows.append(
                {
                    "family": family,
                    "models": int((analysis.matrix.families == family).sum()),
                    "protocol": label,
                    "tau": values[p],
                    "low": low,
                    "high": high,
                }
            )
    frame = pd.DataFrame(rows)
    chart = figures.interval_dots(
        frame,
        y="family",
        value="tau",
        low="low",
        high="high",
        title="Mean tau over pairs of benchmarks, models of the family only",
        y_order=list(analysis.families),
        color=figures.protocol_color(),
        tooltip=figures.tooltips(
            family="Family", models="Models", protocol="Protocol", tau="tau|.3f", low="from|.3f", high="to|.3f"
        ),
        offset="protocol",
        row_height=26,
    )
    return Section(
        "Within families",
        finding=_family_sentence(analysis),
        explanation="Ranking the models of one family only takes away differences between families in what they have "
        "seen in training.",
        figures=[Figure("tau_by_family", "Mean tau within each family", chart, wide=True)],
        tables=[
            Table(
                "tau_by_family",
                "Mean tau within each family",
                frame,
                formats={"tau": ".3f", "low": ".3f", "high": ".3f"},
                folded=True,
            )
        ],
    )
