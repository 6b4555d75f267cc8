"""The sections on the components: shares of the variance, within families, the first by model and with compute."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lm_validity.missing import Missing, as_columns, is_known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.agreement.factors.components import (
    SHOWN_COMPONENTS,
    ExplainedVariance,
    FactorData,
    FamilyShares,
    Relation,
    WithCompute,
    by_model,
    entry_of,
)
from lm_validity.studies.agreement.notes import ceiling_notes, family_notes
from lm_validity.studies.agreement.reasons import NO_FAMILIES
from lm_validity.studies.agreement.score_matrix import family_members
from lm_validity.studies.agreement.wording import (
    MOST_DRAWN,
    both_intervals,
    plotted,
    shown_limit,
    shown_mean,
    value_in_words,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import UNDER, count, percent

LABELS = figures.PROTOCOL_LABELS


# ----------------------------------------------------------------------------------------------------------------------
# How much the components explain.


def explained_variance(data: FactorData, variance: ExplainedVariance) -> Part:
    """The section on the shares of the components, with the loadings of the first."""
    shares, parallel, loadings = variance.over_all.shares, variance.parallel, variance.loadings
    frame = pd.DataFrame(
        {
            "component": f"PC{i + 1}",
            "protocol": label,
            "share": entry_of(shares[p], i),
            **as_columns(entry_of(variance.over_all.ranges[p], i)),
            "null_mean": entry_of(null if isinstance(null := parallel[p], Missing) else null.null_mean, i),
            "null_95": entry_of(null if isinstance(null, Missing) else null.null_95, i),
        }
        for p, label in LABELS.items()
        for i in range(SHOWN_COMPONENTS)
    )
    chart = figures.grouped_bars(
        plotted(frame),
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
    caption = "Lines: 95% intervals over models. Ticks: 95th percentile of tables with shuffled columns."
    section = Section(
        "Explained variance",
        # nearly as many components as benchmarks explain nearly all, whatever the scores are
        finding=" ".join(
            f"{LABELS[p]}: the first {SHOWN_COMPONENTS} components together explain {percent(sum(entry))}."
            for p, entry in shares.items()
            if not isinstance(entry, Missing) and sum(map(is_known, loadings[p].values())) >= 2 * SHOWN_COMPONENTS
        ),
        figures=[Figure("explained_variance", "All models", chart, caption=caption, wide=True)],
        tables=[
            Table(
                "explained_variance",
                "Explained variance",
                frame,
                formats=dict.fromkeys(("share", "low", "high", "null_mean", "null_95"), ".4f"),
                labels={"null_mean": "shuffled, mean", "null_95": "shuffled, 95th percentile"},
                folded=True,
            ),
            Table(
                "loadings",
                "Loadings of the first component",
                pd.DataFrame(
                    {"benchmark": data.tasks} | {LABELS[p]: list(entry.values()) for p, entry in loadings.items()}
                ),
                formats=dict.fromkeys(LABELS.values(), ".3f"),
                folded=True,
            ),
        ],
    )
    notes = [
        note
        for p, entry in variance.ceilings.items()
        for note in ceiling_notes(
            p,
            entry.included,
            data.tasks,
            "first factor's share",
            entry.first_component,
            number(variance.over_all.first(p)),
        )
    ]
    findings = [_share_finding(data, variance), _factor_count_finding(data, variance)]
    return Part(variance.summary, section, findings, notes)


def _share_finding(data: FactorData, variance: ExplainedVariance) -> Finding:
    compared, shares = variance.is_compared, variance.compared
    parts = [
        both_intervals(shares.first(p), entry_of(shares.ranges[p], 0), shares.families[p])
        + f"{'' if i else ' of the variance'} {UNDER[p]}"
        for i, p in enumerate(shares.known)
    ]
    everyone, in_both = len(data.matrix.models), len(data.models_in_both)
    models = count(in_both if compared else everyone, "model")
    cells = f", {count(int(data.in_both.sum()), 'cell')} known under both protocols" if compared else ""
    basis = (
        f"Standardised scores of {models} on {count(len(data.tasks), 'benchmark')}{cells}. The intervals are for "
        "other models on these benchmarks. In simulations with 20 and 61 models, some of them far from the rest (heavy "
        "tails), they contained the truth in 78% to 91% of cases, not 95%. Fewer models were not simulated."
    )
    if not parts:
        return Finding("The components cannot be computed.", basis)
    some = compared and in_both < everyone
    without = [
        f"{value_in_words(entry_of(entry, 0))} {UNDER[p]}"
        for p, entry in variance.without_size.items()
        if is_known(entry) and not some  # it is over all models of a protocol
    ]
    addition = " Of the variance that model size leaves unexplained, its own first factor explains "
    addition = f"{addition}{' and '.join(without)}." if without else ""
    # an interval's condition comes before its number
    assumed = "no heavy tails"
    if data.lacks_many:
        assumed += " and that cells are missing by chance"
    population = f"Among the {models} known under both protocols, the" if some else "The"
    return Finding(
        f"{population} first factor (intervals assume {assumed}) explains {' and '.join(parts)}.{addition}", basis
    )


def _factor_count_finding(data: FactorData, variance: ExplainedVariance) -> Finding | None:
    parts, first, several = [], [], len(set(data.matrix.families)) > 1
    for p, parallel in variance.parallel.items():
        if not isinstance(parallel, Missing):
            within_families = parallel.factors_within_families
            inside = f" ({within_families} within families)" if is_known(within_families) and several else ""
            parts.append(f"{count(parallel.factors, 'factor')} {UNDER[p]}{inside}")
            first.append(f"{parallel.p_first:.3f} {UNDER[p]}")
    if not parts:
        return None
    limits = [
        f"{percent(number(limit))} {UNDER[p]}"
        for p, limit in variance.ceiling.items()
        if is_known(shown_limit(limit, variance.over_all.first(p)))
    ]
    basis = (
        "Parallel analysis counts the factors above the 95th percentile of tables with shuffled columns. Differences "
        "between families of models look like factors even where benchmarks are independent within families. Shuffled "
        f"tables have so large a first factor with a probability of {' and '.join(first)}."
    )
    if limits:
        basis += (
            f" If all benchmarks ordered the models alike, noise would leave the first factor {' and '.join(limits)}."
        )
    return Finding(f"Factors beyond what chance would give: {' and '.join(parts)}.", basis)


# ----------------------------------------------------------------------------------------------------------------------
# Within families.


def within_families(data: FactorData, families: dict[str, FamilyShares]) -> Part:
    """The first component's share within each family."""
    members = family_members(data.matrix.families)
    rows = [
        {
            "family": family,
            "models": len(members[family]),
            "protocol": label,
            "share": entry_of(shares.explained_variance[p], 0),
            **as_columns(
                intervals if isinstance(intervals := shares.first_component_interval, Missing) else intervals[p]
            ),
            **{f"PC{i + 1}": entry_of(shares.explained_variance[p], i) for i in range(1, SHOWN_COMPONENTS)},
        }
        for family, shares in families.items()
        for p, label in LABELS.items()
    ]
    frame, notes = pd.DataFrame(rows), family_notes(data.matrix.families)
    drawn = frame if frame.empty else plotted(frame).dropna(subset="share")
    if drawn.empty:
        return Part({"families": families}, Section("Within families", notes=[NO_FAMILIES]), notes=notes)
    chart = figures.interval_dots(
        drawn[["family", "models", "protocol", "share", "low", "high"]],
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
    section = Section(
        "Within families",
        explanation="With few models the first component explains a large share whatever the scores are. Intervals are "
        "given for families of at least 10 models.",
        figures=[Figure("explained_variance_by_family", "First component within each family", chart, wide=True)],
        tables=[
            Table(
                "explained_variance_by_family",
                "Share of each component within each family",
                frame,
                formats=dict.fromkeys(frame.columns[3:], ".3f"),
                labels={"share": "PC1", "low": "PC1, from", "high": "PC1, to"},
                folded=True,
            )
        ],
    )
    return Part({"families": families}, section, notes=notes)


# ----------------------------------------------------------------------------------------------------------------------
# The first component by model, and with compute.


def first_component(data: FactorData) -> Part:
    """Each model's value on the first component."""
    values = {p: by_model(data, p) for p in PROTOCOLS}
    frame = pd.DataFrame(
        {**data.model_columns, **{p: list(entry.values()) for p, entry in values.items()}, "compute": data.compute}
    )
    drawn = plotted(frame)
    main = TRAINED if drawn[TRAINED].notna().any() else DIRECT
    title, caption = "First component", "Dot: train before test. Tick: direct." if main == TRAINED else ""
    tooltips = {TRAINED: "PC1 train before test|.2f", DIRECT: "PC1 direct|.2f"}
    drawn = drawn.sort_values(main, ascending=False)
    section = Section(
        "First component by model",
        figures=[model_figure(data, "pc1_by_model", title, drawn, main, title, tooltips, caption)],
        tables=[
            Table(
                "pc1_by_model",
                "First component by model",
                frame,
                formats={"direct": ".2f", "train_before_test": ".2f", "compute": ".3g"},
                labels=LABELS | {"compute": "pretraining compute (FLOPs)"},
                folded=True,
            )
        ],
    )
    return Part({"pc1_scores": values}, section)


def model_figure(
    data: FactorData,
    name: str,
    title: str,
    frame: pd.DataFrame,
    x: str,
    axis: str,
    tooltips: dict[str, str],
    caption: str,
) -> Figure:
    """A row for each of the frame's first models, in its order, coloured by family; `tooltips`: of the tooltip."""
    drawn = frame.head(MOST_DRAWN)
    chart = figures.interval_dots(
        drawn,
        y="model",
        value=x,
        mark=DIRECT if x == TRAINED else None,
        title=axis,
        y_order=drawn["model"].tolist(),
        color=figures.family_color(data.matrix.families),
        tooltip=figures.tooltips(model="Model", family="Family", **tooltips),
        focus=True,
        row_height=14,
    )
    caption += f" The first {MOST_DRAWN} models." if len(frame) > MOST_DRAWN else ""
    return Figure(name, title, chart, caption=caption, wide=True)


def with_compute(data: FactorData, relations: WithCompute) -> Part:
    """The section on the first component and pretraining compute."""
    has_compute, over_all = np.isfinite(data.compute), relations.over_all
    columns = ["kendall", "spearman", "pearson", "models"]
    table = Table(
        "pc1_compute",
        "Correlations of the first component with compute",
        pd.DataFrame({"protocol": LABELS[p], **vars(entry)} for p, entry in over_all.items())[["protocol", *columns]],
        formats=dict.fromkeys(columns[:3], ".3f"),
        labels={"kendall": "Kendall's tau", "spearman": "Spearman", "pearson": "Pearson (log compute)"},
        folded=True,
    )
    section = Section(
        "Pretraining compute",
        hint="correlations with the first factor",
        explanation="Compute is 6 × parameters × tokens, both from the models sheet.",
        tables=[table],
    )
    compared = all(is_known(entry.kendall) for entry in relations.in_both.values())
    quoted: Mapping[str, Relation] = relations.in_both if compared else over_all
    parts = [
        f"{shown_mean(relation.kendall, over_all[p].kendall, over_all[p].kendall_interval)} {UNDER[p]}"
        for p, relation in quoted.items()
        if is_known(relation.kendall)
    ]
    finding = Finding(
        f"Tau between the first factor and pretraining compute is {' and '.join(parts)}.",
        f"{count(max(relation.models for relation in quoted.values()), 'model')} with known and reliable compute: "
        "6 × parameters × tokens.",
    )
    notes = [f"Pretraining compute is known and reliable for {has_compute.sum()} of {len(has_compute)} models."]
    summary = {"pc1_compute_in_both": relations.in_both, "pc1_compute": over_all}
    return Part(summary, section, [finding] if parts else [], [] if has_compute.all() else notes)
