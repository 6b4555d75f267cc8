"""The factors report's sections on components: how much each explains, within families, by model, and compute."""

from collections.abc import Sequence
from typing import TypeVar

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Section, Table
from lm_validity.studies.agreement.factors.analysis import SHOWN_COMPONENTS
from lm_validity.studies.agreement.factors.sections import first_shown
from lm_validity.studies.agreement.factors.summary import FactorsSummary
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.agreement.values import MOST_DRAWN, NO_FAMILIES, Range, plotted
from lm_validity.summaries import Missing, as_columns, is_known
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import percent

DIRECT, TRAINED = PROTOCOLS


Entry = TypeVar("Entry", float, Interval[float])


def entry_of(values: Sequence[Entry | Missing] | Missing, index: int) -> Entry | Missing:
    """An entry of a list that may be missing as a whole, or have no such entry."""
    if isinstance(values, Missing):
        return values
    return values[index] if index < len(values) else Missing("There is no such component.")


def _of_protocol(values: dict[str, Range] | Missing, protocol: str) -> Range:
    return values if isinstance(values, Missing) else values[protocol]


def variance_section(summary: FactorsSummary) -> Section:
    """The share of each component, beside that of shuffled tables, and the loadings of the first."""
    frame = _variance_frame(summary)
    # nearly as many components as benchmarks explain nearly all, whatever the scores are
    finding = " ".join(
        f"{figures.PROTOCOL_LABELS[p]}: the first {SHOWN_COMPONENTS} components together explain "
        f"{percent(sum(shares))}."
        for p, shares in summary.explained_variance.items()
        if not isinstance(shares, Missing)
        and sum(map(is_known, summary.pc1_loadings[p].values())) >= 2 * SHOWN_COMPONENTS
    )
    figure = Figure(
        "explained_variance",
        "All models",
        _variance_chart(plotted(frame)),
        caption="Lines: 95% intervals over models. Ticks: 95th percentile of tables with shuffled columns.",
        wide=True,
    )
    table = Table(
        "explained_variance",
        "Explained variance",
        frame,
        formats={name: ".4f" for name in ("share", "low", "high", "null_mean", "null_95")},
        labels={"null_mean": "shuffled, mean", "null_95": "shuffled, 95th percentile"},
        folded=True,
    )
    return Section("Explained variance", finding=finding, figures=[figure], tables=[table, _loading_table(summary)])


def _variance_frame(summary: FactorsSummary) -> pd.DataFrame:
    rows = []
    for protocol, label in figures.PROTOCOL_LABELS.items():
        parallel = summary.parallel_analysis[protocol]
        means, limits = (parallel,) * 2 if isinstance(parallel, Missing) else (parallel.null_mean, parallel.null_95)
        for i in range(SHOWN_COMPONENTS):
            rows.append(
                {
                    "component": f"PC{i + 1}",
                    "protocol": label,
                    "share": entry_of(summary.explained_variance[protocol], i),
                    **as_columns(entry_of(summary.explained_variance_interval[protocol], i)),
                    "null_mean": entry_of(means, i),
                    "null_95": entry_of(limits, i),
                }
            )
    return pd.DataFrame(rows)


def _variance_chart(frame: pd.DataFrame) -> alt.LayerChart:
    return figures.grouped_bars(
        frame,
        x="component",
        value="share",
        mark="null_95",
        title="Share of the variance",
        x_order=[f"PC{i + 1}" for i in range(SHOWN_COMPONENTS)],
        tooltip=figures.tooltips(
            component="Component", protocol="Protocol", share="Share|.3f", low="from|.3f", high="to|.3f",
            null_95="95% of shuffled tables below|.3f",
        ),
        domain=(0, 1),
    )  # fmt: skip


def _loading_table(summary: FactorsSummary) -> Table:
    frame = pd.DataFrame(
        {"benchmark": summary.tasks}
        | {label: list(summary.pc1_loadings[p].values()) for p, label in figures.PROTOCOL_LABELS.items()}
    )
    formats = {label: ".3f" for label in figures.PROTOCOL_LABELS.values()}
    return Table("loadings", "Loadings of the first component", frame, formats=formats, folded=True)


def family_section(summary: FactorsSummary) -> Section:
    """The first component's share within each family."""
    frame = pd.DataFrame(
        [
            {
                "family": family,
                "models": int((summary.matrix.families == family).sum()),
                "protocol": label,
                "share": entry_of(found.explained_variance[p], 0),
                **as_columns(_of_protocol(found.first_component_interval, p)),
            }
            for family, found in summary.families.items()
            for p, label in figures.PROTOCOL_LABELS.items()
        ]
    )
    if frame.empty or not plotted(frame)["share"].notna().any():
        return Section("Within families", notes=[NO_FAMILIES])
    others = {
        f"PC{i + 1}": [
            entry_of(found.explained_variance[p], i) for found in summary.families.values() for p in PROTOCOLS
        ]
        for i in range(1, SHOWN_COMPONENTS)
    }
    drawn = plotted(frame).dropna(subset="share")
    chart = figures.interval_dots(
        drawn,
        y="family",
        value="share",
        title="Share of the first component, models of the family only",
        y_order=drawn["family"].unique().tolist(),
        tooltip=figures.tooltips(
            family="Family", models="Models", protocol="Protocol", share="Share|.3f", low="from|.3f", high="to|.3f"
        ),
        offset="protocol",
        row_height=26,
    )
    return Section(
        "Within families",
        explanation="With few models the first component explains a large share whatever the scores are. Intervals are "
        "given for families of at least 10 models.",
        figures=[Figure("explained_variance_by_family", "First component within each family", chart, wide=True)],
        tables=[
            Table(
                "explained_variance_by_family",
                "Share of each component within each family",
                frame.assign(**others),
                formats=dict.fromkeys(["share", "low", "high", *others], ".3f"),
                labels={"share": "PC1", "low": "PC1, from", "high": "PC1, to"},
                folded=True,
            )
        ],
    )


def _score_frame(summary: FactorsSummary) -> pd.DataFrame:
    matrix = summary.matrix
    return pd.DataFrame(
        {
            "model": matrix.labels,
            "family": [family or "unknown" for family in matrix.families],
            **{p: list(summary.pc1_scores[p].values()) for p in PROTOCOLS},
            "compute": summary.compute,
        }
    )


def score_section(summary: FactorsSummary) -> Section:
    """Each model's value on the first component."""
    frame = _score_frame(summary)
    drawn = plotted(frame)
    main = TRAINED if drawn[TRAINED].notna().any() else DIRECT
    drawn = drawn.sort_values(main, ascending=False).head(MOST_DRAWN)
    chart = figures.interval_dots(
        drawn,
        y="model",
        value=main,
        mark=DIRECT if main == TRAINED else None,
        title="First component",
        y_order=drawn["model"].tolist(),
        color=figures.family_color(summary.matrix.families),
        tooltip=figures.tooltips(
            model="Model", family="Family", train_before_test="PC1 train before test|.2f", direct="PC1 direct|.2f"
        ),
        focus=True,
        row_height=14,
    )
    caption = "Dot: train before test. Tick: direct." if main == TRAINED else ""
    caption += first_shown(len(frame))
    return Section(
        "First component by model",
        figures=[Figure("pc1_by_model", "First component", chart, caption=caption, wide=True)],
        tables=[
            Table(
                "pc1_by_model",
                "First component by model",
                frame,
                formats={"direct": ".2f", "train_before_test": ".2f", "compute": ".3g"},
                labels=figures.PROTOCOL_LABELS | {"compute": "pretraining compute (FLOPs)"},
                folded=True,
            )
        ],
    )


def compute_section(summary: FactorsSummary) -> Section:
    """The first component against pretraining compute."""
    if not np.isfinite(summary.compute).any():
        return Section("Pretraining compute", notes=["No model has both parameters and tokens in the models sheet."])
    rows = [
        {"protocol": figures.PROTOCOL_LABELS[p]}
        | {name: getattr(found, name) for name in ("kendall", "spearman", "pearson", "models")}
        for p, found in summary.pc1_compute.items()
    ]
    table = Table(
        "pc1_compute",
        "Correlations of the first component with compute",
        pd.DataFrame(rows),
        formats={"kendall": ".3f", "spearman": ".3f", "pearson": ".3f"},
        labels={"kendall": "Kendall's tau", "spearman": "Spearman", "pearson": "Pearson (log compute)"},
        folded=True,
    )
    return Section("Pretraining compute", hint="correlations with the first factor", tables=[table])
