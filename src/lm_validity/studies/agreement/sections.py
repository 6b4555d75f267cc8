"""Sections of the agreement report around the main figures: perplexity, significance, alignment, subsets, influence."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Section, Table
from lm_validity.studies.agreement.analysis import DIRECT, PREPARED, AgreementAnalysis
from lm_validity.studies.agreement.pair_alignment import PairAlignment
from lm_validity.studies.agreement.statistics.significance import opposite_significant_pairs
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, decimal, with_interval


def tau_heatmaps(
    values: dict[tuple[str, str], np.ndarray],
    rows: list[str],
    columns: list[str],
    *,
    caption: str = "",
    without_diagonal: bool = False,
    **options,
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


def over_both(partly: bool) -> str:
    """The end of a sentence that compares the protocols where that leaves cells out."""
    return ", over what is known under both protocols" if partly else ""


def shown_mean(compared: float, own: float, interval) -> str:
    """A mean of a comparison; with the interval where it is that of the protocol's `own` mean."""
    return with_interval(compared, interval if compared == own else None)


def perplexity_section(analysis: AgreementAnalysis, summary: dict) -> Section | None:
    """Corpora against benchmarks in both protocols, and perplexity before against scores after preparation."""
    if analysis.perplexity is None:
        return None
    values = summary["perplexity"]
    corpora, tasks = values["corpora"], analysis.tasks
    together = {
        (f"perplexity_{p}", label): np.hstack(
            [analysis.perplexity[p].corpus_corpus, analysis.perplexity[p].corpus_benchmark]
        )
        for p, label in figures.PROTOCOL_LABELS.items()
    }
    charts = tau_heatmaps(together, corpora, [*corpora, *tasks], without_diagonal=True, row_height=26)
    kinds = {"base": "Base models", "instruction_tuned": "Instruction-tuned models"}
    apart = {
        (f"perplexity_before_{kind}", title): analysis.before_after[kind]
        for kind, title in kinds.items()
        if np.isfinite(analysis.before_after[kind]).any()
    }
    caption = "Perplexity before preparation against scores after it."
    charts += tau_heatmaps(apart, corpora, tasks, caption=caption, row_height=26)
    return Section("Perplexity", finding=_before_sentence(values), figures=charts, tables=[_perplexity_table(values)])


def _before_sentence(values: dict) -> str:
    before, intervals = values["before_after"], values["before_after_interval"]
    parts = [
        f"{with_interval(before[kind], intervals.get(kind))} among {words}"
        for kind, words in (("base", "base models"), ("instruction_tuned", "instruction-tuned ones"))
        if before.get(kind) is not None
    ]
    if not parts:
        return ""
    return f"Perplexity before any preparation already tells the order after it with tau {' and '.join(parts)}."


def _perplexity_table(values: dict) -> Table:
    rows = [
        {"comparison": title, "protocol": label, "tau": values[key][p], **_ends(values[f"{key}_interval"].get(p))}
        for key, title in (
            ("corpus_benchmark", "corpus with benchmark"),
            ("corpus_corpus", "corpus with corpus"),
            ("average_average", "average perplexity with average score"),
        )
        for p, label in figures.PROTOCOL_LABELS.items()
    ]
    formats = {"tau": ".3f", "low": ".3f", "high": ".3f"}
    return Table("perplexity", "Agreement with perplexity", pd.DataFrame(rows), formats=formats, folded=True)


def _ends(interval) -> dict:
    low, high = interval or (None, None)
    return {"low": np.nan if low is None else low, "high": np.nan if high is None else high}


def significance_section(analysis: AgreementAnalysis, summary: dict) -> Section | None:
    """Agreement where only significant differences count: bars, grid, heatmaps, contradictions."""
    values = summary["significance_tau"]
    if values[DIRECT]["mean"] is None and values[PREPARED]["mean"] is None:
        return None
    names = analysis.tasks
    categories = list(analysis.agreement[DIRECT].categories)
    charts = [_significance_bars(analysis)]
    pairs = {
        (f"significance_by_pair_{p}", f"{label}, all pairs"): analysis.significance_tau[p]
        for p, label in figures.PROTOCOL_LABELS.items()
    }
    charts += tau_heatmaps(pairs, names, names, without_diagonal=True, row_height=16)
    if categories:
        grids = {
            (f"significance_by_category_{p}", f"{label}, categories"): analysis.significance[p].by_category
            for p, label in figures.PROTOCOL_LABELS.items()
        }
        charts += tau_heatmaps(grids, categories, categories, number_format=".2f", row_height=34)
    pairs = values["improved_pairs"]
    more = f"; {pairs} of {values['compared_pairs']} pairs agree more" if pairs is not None else ""
    own = {p: values[p]["mean"] for p in PROTOCOLS}
    shown = own if pairs is None else {p: analysis.comparison.significance[p].mean for p in PROTOCOLS}
    parts = [
        f"{shown_mean(shown[p], own[p], values[p]['interval'])} {word}"
        for p, word in ((DIRECT, "directly"), (PREPARED, "after preparation"))
        if shown[p] is not None
    ]
    return Section(
        "Counting significant differences only",
        finding="With models tied where they do not differ significantly, the mean tau is "
        f"{' and '.join(parts)}{over_both(shown != own)}{more}.",
        explanation="Two models differ where their scores are more than 1.96 standard errors of the difference apart "
        "(or, with items, where McNemar's test says so). Such ties are not transitive, so tau is taken over pairs of "
        "models: sum ab / sqrt(sum a² · sum b²), a and b being -1, 0 or 1.",
        figures=charts,
        tables=[_contradiction_table(analysis)],
    )


def _significance_bars(analysis: AgreementAnalysis) -> Figure:
    frame = pd.DataFrame(
        [
            {"benchmark": name, "protocol": label, "tau": analysis.significance[p].by_benchmark[i]}
            for i, name in enumerate(analysis.tasks)
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
        color=figures.protocol_color(),
        tooltip=figures.tooltips(benchmark="Benchmark", protocol="Protocol", tau="tau|.3f"),
    )
    return Figure("significance_by_benchmark", "Mean tau by benchmark", chart, wide=True, min_width=460)


def _contradiction_table(analysis: AgreementAnalysis) -> Table:
    opposite = {p: opposite_significant_pairs(signs) for p, signs in analysis.significant_side_by_side.items()}
    names = analysis.tasks
    rows = [
        {
            "benchmark": names[i],
            "with": names[j],
            **{figures.PROTOCOL_LABELS[p]: int(opposite[p][i, j]) for p in PROTOCOLS},
        }
        for i, j in zip(*np.triu_indices(len(names), 1), strict=True)
    ]
    return Table(
        "contradictions",
        "Contradictions: model pairs that both benchmarks order significantly, but oppositely",
        pd.DataFrame(rows),
        folded=True,
    )


def alignment_section(analysis: AgreementAnalysis, alignments: Sequence[PairAlignment]) -> Section | None:
    """Bump plots of the shown pair, and the figures of all aligned pairs."""
    shown = [pair for pair in alignments if pair.shown]
    if not shown:
        return None
    first, second = shown[0].benchmarks
    charts = [
        Figure(
            f"bump_{pair.protocol}",
            figures.PROTOCOL_LABELS[pair.protocol],
            _bump_chart(analysis, pair),
            caption=f"{pair.aligned.crossings} crossings are left of {pair.raw_crossings}; focus a family to see its "
            "rank bands.",
            min_width=420,
        )
        for pair in shown
    ]
    sentences = [
        f"{figures.PROTOCOL_LABELS[pair.protocol]}: {count(pair.opposite, 'pair')} of models in significant "
        f"contradiction, tau {decimal(pair.raw_tau)} as scored and {decimal(pair.aligned.tau)} aligned."
        for pair in shown
    ]
    table = pd.DataFrame([_alignment_row(pair) for pair in alignments])
    return Section(
        f"{first} and {second}, aligned as far as significance allows",
        finding=" ".join(sentences),
        explanation="Both rankings are rearranged to agree as much as they can while every significant difference "
        "keeps its order: crossings that remain are not noise. A band runs from 1 + the number of significantly better "
        "models to n - the number of significantly worse ones.",
        figures=charts,
        tables=[
            Table(
                "alignment",
                "Aligned pairs of benchmarks",
                table,
                formats={"tau": ".3f", "aligned_tau": ".3f"},
                folded=True,
            )
        ],
        notes=[f"Significant differences that an aligned order breaks: {sum(p.violations for p in alignments)}."],
    )


def _alignment_row(pair: PairAlignment) -> dict:
    row = pair.summary()
    first, second = row.pop("benchmarks")
    row["protocol"] = figures.PROTOCOL_LABELS[pair.protocol]
    return {"benchmark": first, "with": second, **row}


def _bump_chart(analysis: AgreementAnalysis, pair: PairAlignment) -> alt.LayerChart:
    rows = []
    families, labels = analysis.matrix.families, analysis.matrix.labels
    orders = (pair.aligned.first, pair.aligned.second)
    for side, (benchmark, order) in enumerate(zip(pair.benchmarks, orders, strict=True)):
        for place, position in enumerate(order, start=1):
            model = pair.models[position]
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
                    "score": analysis.scores[pair.protocol][model, analysis.tasks.index(benchmark)],
                    "error": analysis.stderr[pair.protocol][model, analysis.tasks.index(benchmark)],
                }
            )
    return figures.bump(pd.DataFrame(rows), analysis.matrix.families)
