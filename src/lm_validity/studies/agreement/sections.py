"""Sections around the main figures: perplexity, significance, alignment, families, categories."""

from itertools import product
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.figures import bump, bump_width
from lm_validity.pages.page import Figure, Section, Table
from lm_validity.studies.agreement.analysis import DIRECT, NO_FAMILIES, TRAINED
from lm_validity.studies.agreement.shown import over_both, plotted, shown_mean, value_in_words
from lm_validity.studies.agreement.summary import AgreementSummary, PairAlignment, PerplexitySummary, Value
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, count


def tau_heatmaps(
    values: dict[tuple[str, str], np.ndarray],
    rows: list[str],
    columns: list[str],
    *,
    caption: str = "",
    without_diagonal: bool = False,
    **options: Any,
) -> list[Figure]:
    """Heatmaps of taus on one colour scale, which starts below 0 only where a tau does.

    `values`: (rows, columns) arrays by (file name, title); `options` go to `figures.heatmap`.
    """
    lowest = min((float(np.nanmin(tau)) for tau in values.values() if np.isfinite(tau).any()), default=0.0)
    domain = (min(0.0, np.floor(10 * lowest) / 10), 1.0)
    return [
        Figure(
            name,
            title,
            figures.heatmap(
                figures.matrix_frame(tau, rows, columns, "tau", without_diagonal=without_diagonal),
                x="column",
                y="row",
                value="tau",
                title="Kendall's tau-b",
                x_order=columns,
                y_order=rows,
                tooltip=figures.tooltips(row="", column="with", tau="tau|.3f"),
                domain=domain,
                **options,
            ),
            caption=caption,
            min_width=460 if len(columns) > 12 else 320,
        )
        for (name, title), tau in values.items()
    ]


def by_protocol(name: str, values: dict[str, np.ndarray]) -> dict[tuple[str, str], np.ndarray]:
    """The grids of `tau_heatmaps` from values by protocol, under (file name, title)."""
    return {(f"{name}_{p}", label): values[p] for p, label in figures.PROTOCOL_LABELS.items()}


def category_grid(by_category: dict[str, dict[str, Value]]) -> np.ndarray:
    """(categories, categories) taus, NaN where missing."""
    return np.array([[number(tau) for tau in row.values()] for row in by_category.values()])


def perplexity_section(summary: AgreementSummary) -> Section | None:
    """Corpora against benchmarks in both protocols, and direct perplexity against train-before-test scores."""
    values = summary.perplexity
    if isinstance(values, Missing):
        return None
    corpora, tasks = values.corpora, summary.tasks
    together = {
        (f"perplexity_{p}", label): np.hstack([values.taus[p].corpus_corpus, values.taus[p].corpus_benchmark])
        for p, label in figures.PROTOCOL_LABELS.items()
    }
    charts = tau_heatmaps(together, corpora, [*corpora, *tasks], without_diagonal=True, row_height=26)
    kinds = {"base": "Base models", "instruction_tuned": "Instruction-tuned models"}
    apart = {
        (f"perplexity_before_{kind}", title): values.before_after_taus[kind]
        for kind, title in kinds.items()
        if is_known(values.before_after[kind])
    }
    caption = "Perplexity under direct evaluation against scores under train before test."
    charts += tau_heatmaps(apart, corpora, tasks, caption=caption, row_height=26)
    tables = [_perplexity_table(values)]
    if any(is_known(tau) for tau in values.same_corpus.values()):
        frame = pd.DataFrame({"corpus": corpora, "tau": list(values.same_corpus.values())})
        title = "The same corpus: its direct ranking with that under train before test"
        tables.append(Table("perplexity_same_corpus", title, frame, formats={"tau": ".3f"}, folded=True))
    return Section("Perplexity", finding=_before_sentence(values), figures=charts, tables=tables)


def _before_sentence(values: PerplexitySummary) -> str:
    parts = [
        f"{value_in_words(values.before_after[kind], values.before_after_interval[kind])} among {words}"
        for kind, words in (("base", "base models"), ("instruction_tuned", "instruction-tuned ones"))
        if is_known(values.before_after[kind])
    ]
    if not parts:
        return ""
    return (
        "Between the ranking by perplexity under direct evaluation and the ranking under train before test, tau is "
        f"{' and '.join(parts)}."
    )


def _perplexity_table(values: PerplexitySummary) -> Table:
    comparisons = (
        ("corpus with benchmark", values.corpus_benchmark, values.corpus_benchmark_interval),
        ("corpus with corpus", values.corpus_corpus, values.corpus_corpus_interval),
        ("average perplexity with average score", values.average_average, values.average_average_interval),
    )
    rows = [
        {"comparison": title, "protocol": label, "tau": tau[p], **as_columns(interval[p])}
        for title, tau, interval in comparisons
        for p, label in figures.PROTOCOL_LABELS.items()
    ]
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    return Table("perplexity", "Agreement with perplexity", pd.DataFrame(rows), formats=formats, folded=True)


def significance_section(summary: AgreementSummary) -> Section | None:
    """Agreement where only significant differences count: bars, grid, heatmaps, contradictions."""
    values, names = summary.significance_tau.by_protocol, summary.tasks
    if not any(is_known(tau.mean) for tau in values.values()):
        return None
    categories = list(values[DIRECT].by_category)
    charts = [_significance_bars(summary)]
    grids = {
        (f"significance_by_pair_{p}", f"{label}, all pairs"): values[p].matrix
        for p, label in figures.PROTOCOL_LABELS.items()
    }
    charts += tau_heatmaps(grids, names, names, without_diagonal=True, row_height=16)
    if categories:
        grids = {
            (f"significance_by_category_{p}", f"{label}, categories"): category_grid(values[p].by_category)
            for p, label in figures.PROTOCOL_LABELS.items()
        }
        charts += tau_heatmaps(grids, categories, categories, number_format=".2f", row_height=34)
    pairs = summary.significance_tau.improved_pairs
    more = (
        f". {pairs} of {summary.significance_tau.compared_pairs} pairs agree more under train before test"
        if is_known(pairs)
        else ""
    )
    means = {p: tau.compared_mean if summary.lacks_many else tau.mean for p, tau in values.items()}
    parts = [
        f"{shown_mean(means[p], values[p].mean, values[p].interval)} {UNDER[p]}"
        for p in PROTOCOLS
        if is_known(means[p])
    ]
    partly = any(means[p] != tau.mean for p, tau in values.items())
    return Section(
        "Counting significant differences only",
        finding="When models that do not differ significantly count as tied, the mean tau is "
        f"{' and '.join(parts)}{over_both(partly=partly)}{more}.",
        explanation="Two models differ significantly if their scores are more than 1.96 standard errors of the "
        "difference apart. If item results are known, McNemar's test decides. Tau is computed over pairs of "
        "models, since a tie of A with B and of B with C does not mean that A ties with C.",
        figures=charts,
        tables=[
            Table(
                "contradictions",
                "Contradictions: pairs of models that the two benchmarks order significantly in opposite ways",
                summary.significance_tau.contradictions.rename(columns=figures.PROTOCOL_LABELS),
                folded=True,
            )
        ],
    )


def _significance_bars(summary: AgreementSummary) -> Figure:
    values = summary.significance_tau.by_protocol
    frame = pd.DataFrame(
        [
            {"benchmark": name, "protocol": label, "tau": number(values[p].by_benchmark[name])}
            for name in summary.tasks
            for p, label in figures.PROTOCOL_LABELS.items()
        ]
    )
    direct = frame[frame["protocol"] == figures.PROTOCOL_LABELS[DIRECT]].sort_values("tau", ascending=False)
    chart = figures.grouped_bars(
        frame,
        x="benchmark",
        value="tau",
        title="Mean tau, significant differences only",
        x_order=direct["benchmark"].tolist(),
        tooltip=figures.tooltips(benchmark="Benchmark", protocol="Protocol", tau="tau|.3f"),
    )
    return Figure("significance_by_benchmark", "Mean tau by benchmark", chart, wide=True, min_width=460)


def alignment_section(summary: AgreementSummary) -> Section | None:
    """Bump plots of the shown pair, and the figures of all aligned pairs."""
    shown = [pair for pair in summary.alignment if pair.shown]
    if not shown:
        return None
    first, second = shown[0].benchmarks
    charts = [
        Figure(
            f"bump_{pair.protocol}",
            figures.PROTOCOL_LABELS[pair.protocol],
            _bump_chart(summary, pair),
            caption=f"{pair.aligned_crossings} of {pair.crossings} crossings remain. Select a family to see its "
            "rank bands.",
            min_width=bump_width(summary.matrix.labels),
        )
        for pair in shown
    ]
    sentences = [
        f"{figures.PROTOCOL_LABELS[pair.protocol]}: {count(pair.opposite_significant_pairs, 'pair')} of models in "
        f"significant contradiction, tau {value_in_words(pair.tau)} as scored and {value_in_words(pair.aligned_tau)} "
        "aligned."
        for pair in shown
    ]
    table = pd.DataFrame([_alignment_row(pair) for pair in summary.alignment])
    return Section(
        f"Two benchmarks side by side: {first} and {second}",
        finding=" ".join(sentences),
        explanation="Two models are in significant contradiction if each benchmark orders them significantly, and in "
        "opposite ways. Unless `--align` names two benchmarks, the page shows the two with the most contradictions, "
        "of one category if categories are known. To align them, both rankings are rearranged step by step to agree "
        "while every significant difference keeps its order. The crossings that remain could not be removed "
        "in this way. A rank band holds every rank that a model can have if all significant differences are kept.",
        figures=charts,
        tables=[
            Table(
                "alignment",
                "Aligned pairs of benchmarks",
                table,
                formats={"tau": ".3f", "aligned_tau": ".3f"},
                labels={
                    "crossings": "crossings as scored",
                    "aligned_tau": "tau after alignment",
                    "aligned_crossings": "crossings after alignment",
                    "opposite_significant_pairs": "pairs in significant contradiction",
                    "violations": "significant differences broken (should be 0)",
                },
                folded=True,
            )
        ],
    )


def _alignment_row(pair: PairAlignment) -> dict[str, object]:
    return {
        "benchmark": pair.benchmarks[0],
        "with": pair.benchmarks[1],
        "protocol": figures.PROTOCOL_LABELS[pair.protocol],
        "models": pair.models,
        "tau": pair.tau,
        "crossings": pair.crossings,
        "aligned_tau": pair.aligned_tau,
        "aligned_crossings": pair.aligned_crossings,
        "opposite_significant_pairs": pair.opposite_significant_pairs,
        "violations": pair.violations,
    }


def _bump_chart(summary: AgreementSummary, pair: PairAlignment) -> alt.LayerChart:
    matrix = summary.matrix
    scores, errors = matrix.oriented(pair.protocol), matrix.stderr[pair.protocol]
    rows = []
    families, labels = matrix.families, matrix.labels
    orders = (pair.aligned.first, pair.aligned.second)
    for side, (benchmark, order) in enumerate(zip(pair.benchmarks, orders, strict=True)):
        for place, position in enumerate(order, start=1):
            model = pair.rows[position]
            band = pair.bands[side]
            rows.append(
                {
                    "model": labels[model],
                    "family": families[model] or "unknown",
                    "benchmark": benchmark,
                    "side": side,
                    "place": place,
                    "rank": pair.ranks[position, side],
                    "best": int(band.best[position]),
                    "worst": int(band.worst[position]),
                    "score": scores[model, matrix.benchmarks.index(benchmark)],
                    "error": errors[model, matrix.benchmarks.index(benchmark)],
                }
            )
    return bump(pd.DataFrame(rows), matrix.families)


def _family_sentence(summary: AgreementSummary) -> str:
    compared = [values for values in summary.families_in_both.values() if all(is_known(values[p]) for p in PROTOCOLS)]
    if not compared:
        return ""
    more = sum(number(values[TRAINED]) > number(values[DIRECT]) for values in compared)
    return (
        f"In {more} of {count(len(compared), 'family', 'families')} the benchmarks agree more under train before test"
        f"{over_both(partly=not summary.improvement.whole)}."
    )


def family_section(summary: AgreementSummary) -> Section | None:
    """Agreement over the models of each family."""
    if not any(is_known(tau) for values in summary.families.values() for tau in values.values()):
        return Section("Within families", notes=[NO_FAMILIES])
    rows = []
    for family, values in summary.families.items():
        for p, label in figures.PROTOCOL_LABELS.items():
            tau, intervals = values[p], summary.families_interval.get(family)
            absent = tau if isinstance(tau, Missing) else Missing(NO_FAMILIES)
            rows.append(
                {
                    "family": family,
                    "models": int((summary.matrix.families == family).sum()),
                    "protocol": label,
                    "tau": tau,
                    **as_columns(absent if intervals is None else intervals[p]),
                }
            )
    frame = pd.DataFrame(rows)
    large = list(summary.families_in_both)
    chart = figures.interval_dots(
        plotted(frame[frame["family"].isin(large)]),
        y="family",
        value="tau",
        title="Mean tau over pairs of benchmarks, models of the family only",
        y_order=large,
        tooltip=figures.tooltips(
            family="Family", models="Models", protocol="Protocol", tau="tau|.3f", low="from|.3f", high="to|.3f"
        ),
        offset="protocol",
        row_height=26,
    )
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    return Section(
        "Within families",
        finding=_family_sentence(summary),
        explanation="Ranking only the models of one family removes differences between families, such as what they saw "
        "in training.",
        figures=[Figure("tau_by_family", "Mean tau within each family", chart, wide=True)],
        tables=[Table("tau_by_family", "Mean tau within each family", frame, formats=formats, folded=True)],
    )


def category_section(summary: AgreementSummary) -> Section:
    """Agreement within and between categories of benchmarks."""
    names = list(summary.kendall_tau[DIRECT].by_category)
    if not names:
        return Section("Categories", notes=["The benchmarks sheet names no categories."])
    rows = []
    for (i, a), (j, b) in product(enumerate(names), repeat=2):
        if i > j:
            continue
        row: dict[str, object] = {"category": a, "with": b}
        for p, label in figures.PROTOCOL_LABELS.items():
            row[label] = summary.kendall_tau[p].by_category[a][b]
            interval = summary.kendall_tau[p].by_category_interval
            if not isinstance(interval, Missing):
                row |= {f"{label} low": interval.low[i, j], f"{label} high": interval.high[i, j]}
        rows.append(row)
    table = pd.DataFrame(rows)
    grids = {p: category_grid(tau.by_category) for p, tau in summary.kendall_tau.items()}
    return Section(
        "Within and between categories",
        finding=_category_sentence(summary),
        explanation="The diagonal shows pairs within a category. A category with one benchmark has no such pair.",
        figures=tau_heatmaps(by_protocol("tau_by_category", grids), names, names, number_format=".2f", row_height=34),
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


def _category_sentence(summary: AgreementSummary) -> str:
    """Whether benchmarks of the same category agree better than others."""
    shown = summary.improvement
    parts = [
        f"{value_in_words(shown.within[p])} within and {value_in_words(shown.between[p])} between categories {UNDER[p]}"
        for p in PROTOCOLS
        if is_known(shown.within[p]) or is_known(shown.between[p])
    ]
    partly = len(parts) > 1 and not shown.whole
    return f"Mean tau: {', '.join(parts)}{over_both(partly=partly)}." if parts else ""
