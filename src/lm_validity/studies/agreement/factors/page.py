"""The factors report's page: its findings, and the sections on components and compute."""

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.agreement.analysis import NO_FAMILIES
from lm_validity.studies.agreement.factors.analysis import SHOWN_COMPONENTS
from lm_validity.studies.agreement.factors.sections import (
    completion_section,
    first_shown,
    main_protocol,
    potential_section,
)
from lm_validity.studies.agreement.factors.summary import FactorsSummary
from lm_validity.studies.agreement.influence_section import influence_section
from lm_validity.studies.agreement.shown import MOST_DRAWN, bounds, plotted, shown_mean, value_in_words
from lm_validity.studies.agreement.similar_sections import both_intervals
from lm_validity.studies.agreement.summary import Range, Value
from lm_validity.summaries import Missing, is_known, number, summary_values
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, percent

DIRECT, PREPARED = PROTOCOLS
_WORDS = {DIRECT: "as the models come", PREPARED: "after equal preparation"}


def factors_page(summary: FactorsSummary) -> Page:
    """The page of the report."""
    sections = [
        _variance_section(summary),
        _family_section(summary),
        _score_section(summary),
        _compute_section(summary),
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
        question="How many factors does the score matrix have, what is the first, and which model has most potential?",
        findings=_findings(summary),
        sections=[section for section in sections if section is not None],
        notes=summary_values(summary)["notes"],
    )


def _findings(summary: FactorsSummary) -> list[Finding]:
    findings = [_share_finding(summary), _factor_count_finding(summary), _compute_finding(summary)]
    findings += [_pick_finding(summary), _completion_finding(summary)]
    return [finding for finding in findings if finding is not None]


def _share_finding(summary: FactorsSummary) -> Finding:
    compared = all(is_known(shares) for shares in summary.explained_variance_in_both.values())
    shares, intervals = summary.explained_variance, summary.explained_variance_interval
    if compared:
        shares, intervals = summary.explained_variance_in_both, summary.explained_variance_in_both_interval
    parts = [
        f"{both_intervals(_item(shares[p], 0), _item(intervals[p], 0), _families(summary, p, compared))} {_WORDS[p]}"
        for p in PROTOCOLS
        if is_known(shares[p])
    ]
    models = count(summary.models_in_both if compared else summary.models, "model")
    cells = f", {count(summary.cells_in_both, 'cell')} known under both protocols" if compared else ""
    basis = (
        f"Standardised scores of {models} on {count(summary.benchmarks, 'benchmark')}"
        f"{cells}; interval over other models, these benchmarks. Where some models lie far from the rest (heavy tails) "
        "it held 0.77 to 0.91 of simulated truths, not 0.95. A table that lacks such models by chance does not show it."
    )
    if not parts:
        return Finding("The components cannot be computed.", basis)
    without = [
        f"{value_in_words(_item(shares, 0))} {_WORDS[p]}"
        for p, shares in summary.explained_variance_without_size.items()
        if is_known(shares)
    ]
    more = f" With the logarithm of model size removed: {' and '.join(without)}." if without else ""
    # an interval's condition comes before its number
    assumed = "no heavy tails"
    if any(completion.missing_cells for completion in summary.completion.values()):
        assumed += " and cells that are missing by chance"
    sentence = f"One factor carries (intervals assume {assumed}) a share of the variance of {' and '.join(parts)}."
    return Finding(sentence + more, basis)


def _families(summary: FactorsSummary, protocol: str, compared: bool) -> Range:
    """The interval over families, where it is of the share shown."""
    if compared and summary.explained_variance_in_both[protocol] != summary.explained_variance[protocol]:
        return Missing("It is of all scores of the protocol.")
    return summary.explained_variance_interval_clustered[protocol]


def _item(values: list | Missing, index: int) -> Value | Range:
    """An entry of a list that may be missing as a whole, or have no such entry."""
    if isinstance(values, Missing):
        return values
    return values[index] if index < len(values) else Missing("There is no such component.")


def _of_protocol(values: dict[str, Range] | Missing, protocol: str) -> Range:
    return values if isinstance(values, Missing) else values[protocol]


def _factor_count_finding(summary: FactorsSummary) -> Finding | None:
    parts = []
    for protocol, parallel in summary.parallel_analysis.items():
        if not isinstance(parallel, Missing):
            ceiling = summary.first_component_ceiling.get(protocol)
            limit = f" (noise alone would allow one factor {percent(number(ceiling))})" if is_known(ceiling) else ""
            within = parallel.factors_within_families
            inside = f", {within} within families" if is_known(within) else ""
            parts.append(f"{count(parallel.factors, 'factor')} {_WORDS[protocol]}{inside}{limit}")
    if not parts:
        return None
    return Finding(
        f"More than chance would give: {' and '.join(parts)}.",
        "Parallel analysis: components above the 95th percentile of tables with shuffled columns. Differences between "
        "families of models look like factors even where benchmarks are independent within families.",
    )


def _compute_finding(summary: FactorsSummary) -> Finding | None:
    own, both = summary.pc1_compute, summary.pc1_compute_in_both
    relation = both if all(is_known(found.kendall) for found in both.values()) else own
    parts = [
        f"{shown_mean(relation[p].kendall, own[p].kendall, own[p].kendall_interval)} {_WORDS[p]}"
        for p in PROTOCOLS
        if is_known(relation[p].kendall)
    ]
    if not parts:
        return None
    return Finding(
        f"The first factor orders models as pretraining compute does with tau {' and '.join(parts)}.",
        f"{count(max(found.models for found in relation.values()), 'model')} of known and trusted compute, "
        "6 × parameters × tokens.",
    )


def _pick_finding(summary: FactorsSummary) -> Finding | None:
    protocol = main_protocol(summary)
    choices = summary.best_by_budget.get(protocol)
    if not choices:
        return None
    labels = dict(zip(summary.matrix.models, summary.matrix.labels, strict=True))
    best = choices[-1]
    potential = summary.potential[protocol][best.model]
    by_category = is_known(potential.interval_population_of_categories)
    bounds = potential.interval_population_of_benchmarks
    bounds = potential.interval_population_of_categories if by_category else bounds
    interval = "" if isinstance(bounds, Missing) else f", 95% interval {bounds.low:.0f} to {bounds.high:.0f}"
    resampled = "categories of benchmarks" if by_category else "benchmarks"
    together = potential.simultaneous_these_benchmarks
    basis = (
        f"Interval over {resampled}. First in {percent(number(potential.share_in_top['1']))} of resamples, which is "
    )
    basis += "not the probability that it truly is."
    if not isinstance(together, Missing):
        basis += (
            f" Ranks that hold for all models at once, these benchmarks: {together.low:.0f} to {together.high:.0f}."
        )
    return Finding(
        f"{labels[best.model]} has most potential: rank {number(potential.rank):.0f} of {summary.models}{interval}.",
        f"{basis} Among models of known size.",
    )


def _completion_finding(summary: FactorsSummary) -> Finding | None:
    checked = {
        _WORDS[p]: completion
        for p, completion in summary.completion.items()
        if is_known(completion.held_out.mean_absolute_error)
    }
    if not checked:
        return None
    errors = [
        f"{value_in_words(values.held_out.error_in_sd)} standard deviations {words} "
        f"(the benchmark's mean: {value_in_words(values.held_out.baseline_in_sd)})"
        for words, values in checked.items()
    ]
    covered = [
        f"{words}: {values.held_out.cells} cells held out in turn, {percent(number(values.held_out.coverage))} "
        f"inside their 95% intervals, {count(values.missing_cells, 'missing cell')} predicted"
        for words, values in checked.items()
    ]
    sentence = f"One factor predicts a held-out score with a mean error of {' and '.join(errors)}."
    basis = "; ".join(covered)
    return Finding(sentence, f"{basis[0].upper()}{basis[1:]}.")


def _variance_section(summary: FactorsSummary) -> Section:
    frame = _variance_frame(summary)
    finding = " ".join(
        f"{figures.PROTOCOL_LABELS[p]}: the first {SHOWN_COMPONENTS} components together carry {percent(sum(shares))}."
        for p, shares in summary.explained_variance.items()
        if not isinstance(shares, Missing)
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
        formats={name: ".4f" for name in ("share", "low", "high", "null_95")},
        labels={"null_95": "shuffled, 95th percentile"},
        folded=True,
    )
    return Section("Explained variance", finding=finding, figures=[figure], tables=[table, _loading_table(summary)])


def _variance_frame(summary: FactorsSummary) -> pd.DataFrame:
    rows = []
    for protocol, label in figures.PROTOCOL_LABELS.items():
        parallel = summary.parallel_analysis[protocol]
        limits = parallel if isinstance(parallel, Missing) else parallel.null_95
        for i in range(SHOWN_COMPONENTS):
            rows.append(
                {
                    "component": f"PC{i + 1}",
                    "protocol": label,
                    "share": _item(summary.explained_variance[protocol], i),
                    **bounds(_item(summary.explained_variance_interval[protocol], i)),
                    "null_95": _item(limits, i),
                }
            )
    return pd.DataFrame(rows)


def _variance_chart(frame: pd.DataFrame) -> alt.LayerChart:
    return figures.grouped_bars(
        frame,
        x="component",
        value="share",
        low="low",
        high="high",
        mark="null_95",
        title="Share of the variance",
        x_order=[f"PC{i + 1}" for i in range(SHOWN_COMPONENTS)],
        color=figures.protocol_color(),
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


def _family_section(summary: FactorsSummary) -> Section:
    frame = pd.DataFrame(
        [
            {
                "family": family,
                "models": int((summary.matrix.families == family).sum()),
                "protocol": label,
                "share": _item(found.explained_variance[p], 0),
                **bounds(_of_protocol(found.first_component_interval, p)),
            }
            for family, found in summary.families.items()
            for p, label in figures.PROTOCOL_LABELS.items()
        ]
    )
    if frame.empty or not plotted(frame)["share"].notna().any():
        return Section("Within families", notes=[NO_FAMILIES])
    drawn = plotted(frame).dropna(subset="share")
    chart = figures.interval_dots(
        drawn,
        y="family",
        value="share",
        low="low",
        high="high",
        title="Share of the first component, models of the family only",
        y_order=drawn["family"].unique().tolist(),
        color=figures.protocol_color(),
        tooltip=figures.tooltips(
            family="Family", models="Models", protocol="Protocol", share="Share|.3f", low="from|.3f", high="to|.3f"
        ),
        offset="protocol",
        row_height=26,
    )
    return Section(
        "Within families",
        explanation="With few models the first component takes a large share whatever the scores are; intervals are "
        "given for families of at least 10 models.",
        figures=[Figure("explained_variance_by_family", "First component within each family", chart, wide=True)],
        tables=[
            Table(
                "explained_variance_by_family",
                "Share of the first component within each family",
                frame,
                formats={"share": ".3f", "low": ".3f", "high": ".3f"},
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


def _score_section(summary: FactorsSummary) -> Section:
    frame = _score_frame(summary)
    drawn = plotted(frame)
    main = PREPARED if drawn[PREPARED].notna().any() else DIRECT
    drawn = drawn.sort_values(main, ascending=False).head(MOST_DRAWN)
    chart = figures.interval_dots(
        drawn,
        y="model",
        value=main,
        mark=DIRECT if main == PREPARED else None,
        title="First component",
        y_order=drawn["model"].tolist(),
        color=figures.family_color(summary.matrix.families),
        tooltip=figures.tooltips(
            model="Model", family="Family", train_before_test="PC1 prepared|.2f", direct="PC1 direct|.2f"
        ),
        focus=True,
        row_height=14,
    )
    caption = "Dot: after preparation. Tick: as the model comes." if main == PREPARED else ""
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
                labels=figures.PROTOCOL_LABELS | {"compute": "6ND"},
                folded=True,
            )
        ],
    )


def _compute_section(summary: FactorsSummary) -> Section:
    frame = plotted(_score_frame(summary))
    frame = frame[np.isfinite(frame["compute"])]
    if frame.empty:
        return Section("Pretraining compute", notes=["No model has both parameters and tokens in the models sheet."])
    charts = [
        Figure(
            f"pc1_compute_{protocol}",
            label,
            figures.scatter(
                frame,
                x="compute",
                y=protocol,
                color=figures.family_color(summary.matrix.families),
                x_title="Pretraining compute 6ND (floating-point operations)",
                y_title="First component",
                tooltip=figures.tooltips(model="Model", family="Family", compute="6ND|.2e", **{protocol: "PC1|.2f"}),
                log_x=True,
            ),
        )
        for protocol, label in figures.PROTOCOL_LABELS.items()
    ]
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
        caption="Pearson's with the logarithm of compute.",
        folded=True,
    )
    return Section("Pretraining compute", figures=charts, tables=[table])
