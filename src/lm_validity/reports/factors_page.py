"""The factors report's page: sentences, figures and tables out of its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lm_validity.reports import figures
from lm_validity.reports.page import Figure, Finding, Page, Section, Table
from lm_validity.reports.summary import count, decimal, with_interval
from lm_validity.tables.schema import PROTOCOLS

if TYPE_CHECKING:
    from lm_validity.reports.factors import FactorsAnalysis


def factors_page(analysis: FactorsAnalysis, summary: dict) -> Page:
    """The page of the report."""
    return Page(
        name="factors",
        title="Factors of the score matrix",
        question="How many factors does the score matrix have, and what is the first?",
        findings=_findings(summary),
        sections=[
            _variance_section(analysis),
            _family_section(analysis),
            _score_section(analysis),
            _compute_section(analysis, summary),
        ],
        notes=summary["notes"],
    )


def _findings(summary: dict) -> list[Finding]:
    sentences = []
    for protocol, label in figures.PROTOCOL_LABELS.items():
        shares = summary["explained_variance"][protocol]
        if shares:
            interval = summary["explained_variance_interval"][protocol]
            share = with_interval(shares[0], interval[0] if interval else None)
            sentences.append(f"{label}: the first component carries a share of {share} of the variance.")
    basis = (
        f"Standardised scores of {count(summary['models'], 'model')} on {count(summary['benchmarks'], 'benchmark')}, "
        "perplexity corpora left out."
    )
    return [Finding(" ".join(sentences) or "The components cannot be computed.", basis)]


def _variance_section(analysis: FactorsAnalysis) -> Section:
    frame = _variance_frame({p: analysis.components[p].explained_variance for p in PROTOCOLS})
    return Section(
        "Explained variance",
        figures=[
            Figure(
                "explained_variance", "All models", _variance_chart(frame), caption="First five components."
            )
        ],
        tables=[
            Table("explained_variance", "Explained variance", frame, formats={"share": ".4f"}, folded=True)
        ],
    )


def _variance_frame(shares: dict[str, np.ndarray | None]) -> pd.DataFrame:
    rows = []
    for protocol in PROTOCOLS:
        values = shares[protocol]
        for index in range(5):
            value = values[index] if values is not None and index < len(values) else np.nan
            rows.append(
                {"component": f"PC{index + 1}", "protocol": figures.PROTOCOL_LABELS[protocol], "share": value}
            )
    return pd.DataFrame(rows)


def _variance_chart(frame: pd.DataFrame):
    return figures.grouped_bars(
        frame,
        x="component",
        value="share",
        title="Share of the variance",
        x_order=[f"PC{i}" for i in range(1, 6)],
        color=figures.protocol_color(),
        tooltip=figures.tooltips(component="Component", protocol="Protocol", share="Share|.3f"),
        domain=(0, 1),
    )


def _family_section(analysis: FactorsAnalysis) -> Section:
    rows = [
        {"family": family, "models": int((analysis.matrix.families == family).sum())}
        | {
            figures.PROTOCOL_LABELS[p]: np.nan if shares[p] is None or not len(shares[p]) else shares[p][0]
            for p in PROTOCOLS
        }
        for family, shares in analysis.families.items()
    ]
    frame = pd.DataFrame(rows, columns=["family", "models", *figures.PROTOCOL_COLORS])
    return Section(
        "Within families",
        tables=[
            Table(
                "explained_variance_by_family",
                "Share of the first component within each family",
                frame,
                formats={c: ".3f" for c in figures.PROTOCOL_COLORS},
            )
        ],
    )


def _score_frame(analysis: FactorsAnalysis) -> pd.DataFrame:
    matrix = analysis.matrix
    return pd.DataFrame(
        {
            "model": matrix.labels,
            "family": [family or "unknown" for family in matrix.families],
            "direct": analysis.components["direct"].scores,
            "train_before_test": analysis.components["train_before_test"].scores,
            "compute": analysis.compute,
        }
    )


def _score_section(analysis: FactorsAnalysis) -> Section:
    frame = _score_frame(analysis)
    order = frame.sort_values("train_before_test", ascending=False)["model"].tolist()
    chart = figures.interval_dots(
        frame,
        y="model",
        value="train_before_test",
        title="First component after preparation",
        y_order=order,
        color=figures.family_color(analysis.matrix.families),
        tooltip=figures.tooltips(
            model="Model", family="Family", train_before_test="PC1|.2f", direct="PC1 direct|.2f"
        ),
        focus=True,
        row_height=14,
    )
    return Section(
        "First component by model",
        figures=[Figure("pc1_by_model", "Train before test", chart, wide=True)],
        tables=[
            Table(
                "pc1_by_model",
                "First component by model",
                frame,
                formats={"direct": ".2f", "train_before_test": ".2f", "compute": ".3g"},
                labels=figures.PROTOCOL_LABELS | {"compute": "6ND"},
                folded=True,
            )
        ],
    )


def _compute_section(analysis: FactorsAnalysis, summary: dict) -> Section:
    frame = _score_frame(analysis)
    frame = frame[np.isfinite(frame["compute"])]
    if frame.empty:
        return Section(
            "Pretraining compute", notes=["No model has both parameters and tokens in the models sheet."]
        )
    charts = [
        Figure(
            f"pc1_compute_{protocol}",
            label,
            figures.scatter(
                frame,
                x="compute",
                y=protocol,
                color=figures.family_color(analysis.matrix.families),
                x_title="Pretraining compute 6ND (floating-point operations)",
                y_title="First component",
                tooltip=figures.tooltips(
                    model="Model", family="Family", compute="6ND|.2e", **{protocol: "PC1|.2f"}
                ),
                log_x=True,
            ),
        )
        for protocol, label in figures.PROTOCOL_LABELS.items()
    ]
    relation = summary["pc1_compute"]
    finding = (
        f"Over {count(relation['direct']['models'], 'model')} the first component orders models as compute does with tau "
        f"{decimal(relation['direct']['kendall'])} directly and {decimal(relation['train_before_test']['kendall'])} after "
        "preparation."
    )
    return Section("Pretraining compute", finding=finding, figures=charts)
