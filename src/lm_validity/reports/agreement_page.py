"""The agreement report's page: sentences, figures and tables out of its results."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lm_validity.reports import figures
from lm_validity.reports.page import Figure, Finding, Page, Section, Table
from lm_validity.reports.summary import count, decimal, with_interval
from lm_validity.tables.schema import PROTOCOLS

if TYPE_CHECKING:
    from lm_validity.reports.agreement import AgreementAnalysis


def agreement_page(analysis: AgreementAnalysis, summary: dict) -> Page:
    """The page of the report."""
    sections = [
        _benchmark_section(analysis, summary),
        _pair_section(analysis, summary),
        _category_section(analysis),
        _family_section(analysis),
    ]
    if analysis.perplexity is not None:
        sections.append(_perplexity_section(analysis, summary))
    sections.append(_score_section(analysis))
    return Page(
        name="agreement",
        title="Ranking agreement",
        question="Do the benchmarks agree on which model is better, as the models come and after equal preparation?",
        findings=_findings(analysis, summary),
        sections=sections,
        notes=summary["notes"],
    )


def _findings(analysis: AgreementAnalysis, summary: dict) -> list[Finding]:
    tau = summary["kendall_tau"]
    basis = (
        f"Mean Kendall's tau-b over {count(summary['pairs'], 'pair')} of {count(summary['benchmarks'], 'benchmark')}, "
        f"{count(summary['models'], 'model')}."
    )
    sentences = [
        f"{label}: two benchmarks' rankings agree with tau {with_interval(tau[protocol]['mean'], tau[protocol]['interval'])}."
        for protocol, label in figures.PROTOCOL_LABELS.items()
        if tau[protocol]["mean"] is not None
    ]
    findings = [Finding(" ".join(sentences) or "No pair of benchmarks can be compared.", basis)]
    if summary["improved_pairs"] is not None:
        findings.append(
            Finding(
                f"Preparation brings {summary['improved_pairs']} of {summary['compared_pairs']} pairs closer together.",
                "Pairs whose tau is strictly greater after preparation.",
            )
        )
    return findings


def _labelled(protocol: str) -> str:
    return figures.PROTOCOL_LABELS[protocol]


def _benchmark_section(analysis: AgreementAnalysis, summary: dict) -> Section:
    rows = [
        {
            "benchmark": name,
            "category": analysis.categories[i] or "unknown",
            "protocol": _labelled(protocol),
            "tau": analysis.agreement[protocol].by_benchmark[i],
        }
        for (i, name), protocol in product(enumerate(analysis.tasks), PROTOCOLS)
    ]
    frame = pd.DataFrame(rows)
    order = _order_by_direct(analysis)
    chart = figures.interval_dots(
        frame,
        y="benchmark",
        value="tau",
        title="Mean tau with the other benchmarks",
        y_order=order,
        color=figures.protocol_color(),
        tooltip=figures.tooltips(
            benchmark="Benchmark", category="Category", protocol="Protocol", tau="tau|.3f"
        ),
        offset="protocol",
        row_height=22,
    )
    wide = frame.pivot(index=["benchmark", "category"], columns="protocol", values="tau").reset_index()
    return Section(
        "Agreement of each benchmark with the others",
        figures=[Figure("tau_by_benchmark", "Mean tau by benchmark", chart, wide=True)],
        tables=[
            Table(
                "tau_by_benchmark",
                "Mean tau by benchmark",
                wide,
                formats={c: ".3f" for c in figures.PROTOCOL_COLORS},
            )
        ],
    )


def _order_by_direct(analysis: AgreementAnalysis) -> list[str]:
    values = analysis.agreement["direct"].by_benchmark
    if not np.isfinite(values).any():
        values = analysis.agreement["train_before_test"].by_benchmark
    return [
        analysis.tasks[i] for i in np.argsort(np.where(np.isfinite(values), -values, np.inf), kind="stable")
    ]


def _pair_section(analysis: AgreementAnalysis, summary: dict) -> Section:
    pair_frames = {p: _matrix_frame(analysis.tau[p], analysis.tasks, analysis.tasks) for p in PROTOCOLS}
    charts = [
        Figure(
            f"tau_by_pair_{protocol}",
            _labelled(protocol),
            figures.heatmap(
                pair_frames[protocol],
                x="column",
                y="row",
                value="tau",
                title="Kendall's tau-b",
                x_order=analysis.tasks,
                y_order=analysis.tasks,
                tooltip=figures.tooltips(row="Benchmark", column="with", tau="tau|.3f"),
                row_height=16,
            ),
            min_width=460,
        )
        for protocol in PROTOCOLS
    ]
    names = analysis.tasks
    upper = list(zip(*np.triu_indices(len(names), 1), strict=True))
    table = pd.DataFrame(
        {
            "benchmark": [names[i] for i, _ in upper],
            "with": [names[j] for _, j in upper],
            **{_labelled(p): [analysis.tau[p][i, j] for i, j in upper] for p in PROTOCOLS},
        }
    )
    table["change"] = table[_labelled("train_before_test")] - table[_labelled("direct")]
    formats = {c: ".3f" for c in figures.PROTOCOL_COLORS} | {"change": "+.3f"}
    return Section(
        "Pairs of benchmarks",
        figures=charts,
        tables=[Table("tau_by_pair", "All pairs", table, formats=formats, folded=True)],
    )


def _matrix_frame(values: np.ndarray, rows: list[str], columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"row": r, "column": c, "tau": values[i, j]}
            for i, r in enumerate(rows)
            for j, c in enumerate(columns)
        ]
    )


def _category_section(analysis: AgreementAnalysis) -> Section:
    names = list(analysis.agreement["direct"].categories)
    if not names:
        return Section("Categories", notes=["The benchmarks sheet names no categories."])
    charts = [
        Figure(
            f"tau_by_category_{protocol}",
            _labelled(protocol),
            figures.heatmap(
                _matrix_frame(analysis.agreement[protocol].by_category, names, names),
                x="column",
                y="row",
                value="tau",
                title="Mean tau-b",
                x_order=names,
                y_order=names,
                tooltip=figures.tooltips(row="Category", column="with", tau="tau|.3f"),
                number_format=".2f",
                row_height=34,
            ),
        )
        for protocol in PROTOCOLS
    ]
    return Section("Within and between categories", figures=charts)


def _family_section(analysis: AgreementAnalysis) -> Section:
    rows = [
        {"family": family, "models": int((analysis.matrix.families == family).sum())}
        | {_labelled(p): values[p] for p in PROTOCOLS}
        for family, values in analysis.families.items()
    ]
    frame = pd.DataFrame(rows, columns=["family", "models", *figures.PROTOCOL_COLORS])
    return Section(
        "Within families",
        tables=[
            Table(
                "tau_by_family",
                "Mean tau within each family",
                frame,
                formats={c: ".3f" for c in figures.PROTOCOL_COLORS},
            )
        ],
    )


def _perplexity_section(analysis: AgreementAnalysis, summary: dict) -> Section:
    corpora = summary["perplexity"]["corpora"]
    columns = [*corpora, *analysis.tasks]
    charts = []
    for protocol in PROTOCOLS:
        result = analysis.perplexity[protocol]
        values = np.hstack([result.corpus_corpus, result.corpus_benchmark])
        values[np.eye(*values.shape, dtype=bool)] = np.nan
        charts.append(
            _perplexity_heatmap(f"perplexity_{protocol}", _labelled(protocol), values, corpora, columns)
        )
    for kind, title in (("base", "Base models"), ("instruction_tuned", "Instruction-tuned models")):
        charts.append(
            _perplexity_heatmap(
                f"perplexity_before_{kind}",
                f"{title}: perplexity before, scores after preparation",
                analysis.before_after[kind],
                corpora,
                analysis.tasks,
            )
        )
    values = summary["perplexity"]
    finding = (
        f"Rankings by perplexity and by benchmark agree with tau {decimal(values['corpus_benchmark']['direct'])} directly and "
        f"{decimal(values['corpus_benchmark']['train_before_test'])} after preparation ({count(values['models'], 'model')})."
    )
    return Section("Perplexity", finding=finding, figures=charts)


def _perplexity_heatmap(
    name: str, title: str, values: np.ndarray, rows: list[str], columns: list[str]
) -> Figure:
    chart = figures.heatmap(
        _matrix_frame(values, rows, columns),
        x="column",
        y="row",
        value="tau",
        title="Kendall's tau-b",
        x_order=columns,
        y_order=rows,
        tooltip=figures.tooltips(row="Corpus", column="with", tau="tau|.3f"),
        row_height=26,
    )
    return Figure(name, title, chart, min_width=460)


def _score_section(analysis: AgreementAnalysis) -> Section:
    matrix = analysis.matrix
    rows = []
    for protocol in PROTOCOLS:
        for i, j in np.ndindex(len(matrix.models), len(matrix.benchmarks)):
            rows.append(
                {
                    "model": matrix.models[i],
                    "family": matrix.families[i] or "unknown",
                    "benchmark": matrix.benchmarks[j],
                    "protocol": _labelled(protocol),
                    "score": matrix.value[protocol][i, j],
                    "standard_error": matrix.stderr[protocol][i, j],
                }
            )
    return Section(
        "Scores",
        tables=[
            Table(
                "scores",
                "All scores",
                pd.DataFrame(rows),
                formats={"score": ".4f", "standard_error": ".4f"},
                folded=True,
            )
        ],
    )
