"""The factors report's page: its findings, and the sections on components and compute."""

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.agreement.analysis import NO_FAMILIES
from lm_validity.studies.agreement.factors.analysis import SHOWN_COMPONENTS, FactorsAnalysis, FactorsUncertainty
from lm_validity.studies.agreement.factors.sections import completion_section, potential_section
from lm_validity.studies.agreement.influence_section import influence_section
from lm_validity.studies.agreement.sections import shown_mean
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, decimal, percent, with_interval

DIRECT, PREPARED = PROTOCOLS
_WORDS = {DIRECT: "as the models come", PREPARED: "after equal preparation"}


def factors_page(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, summary: dict) -> Page:
    """The page of the report."""
    sections = [
        _variance_section(analysis, uncertainty, summary),
        _family_section(analysis, uncertainty),
        _score_section(analysis),
        _compute_section(analysis, summary),
        potential_section(analysis, uncertainty, summary),
        completion_section(analysis),
        influence_section(
            analysis.influence,
            {p: c.explained_variance[0] for p, c in analysis.components.items() if len(c.explained_variance)},
            measure="first_component",
            prefix="share_influence",
            name="share of the first component",
        ),
    ]
    return Page(
        name="factors",
        title="Factors and potential",
        question="How many factors does the score matrix have, what is the first, and which model has most potential?",
        findings=_findings(analysis, summary),
        sections=[section for section in sections if section is not None],
        notes=summary["notes"],
    )


def _findings(analysis: FactorsAnalysis, summary: dict) -> list[Finding]:
    findings = [_share_finding(summary), _factor_count_finding(summary), _compute_finding(summary)]
    findings += [_pick_finding(analysis, summary), _completion_finding(summary)]
    return [finding for finding in findings if finding is not None]


def _share_finding(summary: dict) -> Finding:
    parts = []
    compared = None not in summary["explained_variance_in_both"].values()
    key = "explained_variance_in_both" if compared else "explained_variance"
    for protocol in PROTOCOLS:
        shares, intervals = (summary[f"{key}{end}"][protocol] for end in ("", "_interval"))
        if shares:
            share = with_interval(shares[0], intervals[0] if intervals else None)
            parts.append(f"{share} {_WORDS[protocol]}")
    models = count(summary["models_in_both" if compared else "models"], "model")
    cells = f", {count(summary['cells_in_both'], 'cell')} known under both protocols" if compared else ""
    basis = (
        f"Standardised scores of {models} on {count(summary['benchmarks'], 'benchmark')}"
        f"{cells}; interval over other models, these benchmarks."
    )
    if not parts:
        return Finding("The components cannot be computed.", basis)
    return Finding(f"One factor carries a share of the variance of {' and '.join(parts)}.", basis)


def _factor_count_finding(summary: dict) -> Finding | None:
    parts = []
    for protocol in PROTOCOLS:
        parallel = summary["parallel_analysis"][protocol]
        ceiling = summary["first_component_ceiling"].get(protocol)
        if parallel is not None:
            limit = f" (noise alone would allow one factor {percent(ceiling)})" if ceiling is not None else ""
            parts.append(f"{count(parallel['factors'], 'factor')} {_WORDS[protocol]}{limit}")
    if not parts:
        return None
    return Finding(
        f"More than chance would give: {' and '.join(parts)}.",
        "Parallel analysis: components above the 95th percentile of tables with shuffled columns.",
    )


def _compute_finding(summary: dict) -> Finding | None:
    own, both = summary["pc1_compute"], summary["pc1_compute_in_both"]
    relation = own if None in [both[p]["kendall"] for p in PROTOCOLS] else both
    parts = [
        f"{shown_mean(relation[p]['kendall'], own[p]['kendall'], own[p]['kendall_interval'])} {_WORDS[p]}"
        for p in PROTOCOLS
        if relation[p]["kendall"] is not None
    ]
    if not parts:
        return None
    models = max(relation[p]["models"] for p in PROTOCOLS)
    return Finding(
        f"The first factor orders models as pretraining compute does with tau {' and '.join(parts)}.",
        f"{count(models, 'model')} of known and trusted compute, 6 × parameters × tokens.",
    )


def _pick_finding(analysis: FactorsAnalysis, summary: dict) -> Finding | None:
    protocol = PREPARED if PREPARED in summary["best_by_budget"] else DIRECT
    choices = summary["best_by_budget"].get(protocol)
    if not choices:
        return None
    labels = dict(zip(analysis.matrix.models, analysis.matrix.labels, strict=True))
    best = choices[-1]
    potential = summary["potential"][protocol][best["model"]]
    low, high = potential["interval_population_of_benchmarks"]
    interval = f", 95% interval {low:.0f} to {high:.0f}" if low is not None else ""  # a note says why there is none
    return Finding(
        f"{labels[best['model']]} has most potential: rank {potential['rank']:.0f} of {summary['models']}{interval}.",
        f"First in {percent(best['probability_best'])} of resamples of the benchmarks, among models of known size.",
    )


def _completion_finding(summary: dict) -> Finding | None:
    known = {
        words: summary["completion"][protocol]
        for protocol, words in ((DIRECT, "as the models come"), (PREPARED, "after equal preparation"))
        if (summary["completion"].get(protocol) or {"held_out": {"mean_absolute_error": None}})["held_out"][
            "mean_absolute_error"
        ]
        is not None
    }
    if not known:
        return None
    errors = [
        f"{decimal(values['held_out']['mean_absolute_error'], 3)} {words} "
        f"(the benchmark's mean: {decimal(values['held_out']['baseline_error'], 3)})"
        for words, values in known.items()
    ]
    covered = [
        f"{words}: {values['held_out']['cells']} cells held out in turn, {percent(values['held_out']['coverage'])} "
        f"inside their 95% intervals, {count(values['missing_cells'], 'missing cell')} predicted"
        for words, values in known.items()
    ]
    sentence = f"One factor predicts a held-out score with a mean error of {' and '.join(errors)}."
    basis = "; ".join(covered)
    return Finding(sentence, f"{basis[0].upper()}{basis[1:]}.")


def _variance_section(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, summary: dict) -> Section:
    frame = _variance_frame(analysis, uncertainty)
    sums = {p: sum(values) for p, values in summary["explained_variance"].items() if values}
    finding = " ".join(
        f"{figures.PROTOCOL_LABELS[p]}: the first {SHOWN_COMPONENTS} components together carry {percent(total)}."
        for p, total in sums.items()
    )
    figure = Figure(
        "explained_variance",
        "All models",
        _variance_chart(frame),
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
    return Section("Explained variance", finding=finding, figures=[figure], tables=[table, _loading_table(analysis)])


def _variance_frame(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty) -> pd.DataFrame:
    rows = []
    for protocol, label in figures.PROTOCOL_LABELS.items():
        shares, parallel = analysis.components[protocol].explained_variance, analysis.parallel.get(protocol)
        interval = uncertainty.shares.get(protocol)
        for i in range(SHOWN_COMPONENTS):
            rows.append(
                {
                    "component": f"PC{i + 1}",
                    "protocol": label,
                    "share": shares[i] if i < len(shares) else np.nan,
                    "low": np.nan if interval is None else interval.low[i],
                    "high": np.nan if interval is None else interval.high[i],
                    "null_95": parallel.null_95[i] if parallel and i < len(parallel.null_95) else np.nan,
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


def _loading_table(analysis: FactorsAnalysis) -> Table:
    frame = pd.DataFrame(
        {"benchmark": analysis.tasks} | {figures.PROTOCOL_LABELS[p]: analysis.components[p].loadings for p in PROTOCOLS}
    )
    formats = {label: ".3f" for label in figures.PROTOCOL_LABELS.values()}
    return Table("loadings", "Loadings of the first component", frame, formats=formats, folded=True)


def _family_section(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty) -> Section:
    rows = []
    for family, shares in analysis.families.items():
        for p, label in figures.PROTOCOL_LABELS.items():
            low, high = uncertainty.families.get(family, {}).get(p, (np.nan, np.nan))
            rows.append(
                {
                    "family": family,
                    "models": int((analysis.matrix.families == family).sum()),
                    "protocol": label,
                    "share": np.nan if shares[p] is None or not len(shares[p]) else shares[p][0],
                    "low": low,
                    "high": high,
                }
            )
    frame = pd.DataFrame(rows)
    if frame.empty or not frame["share"].notna().any():
        return Section("Within families", notes=[NO_FAMILIES])
    chart = figures.interval_dots(
        frame,
        y="family",
        value="share",
        low="low",
        high="high",
        title="Share of the first component, models of the family only",
        y_order=list(analysis.families),
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


def _score_frame(analysis: FactorsAnalysis) -> pd.DataFrame:
    matrix = analysis.matrix
    return pd.DataFrame(
        {
            "model": matrix.labels,
            "family": [family or "unknown" for family in matrix.families],
            **{p: analysis.components[p].scores for p in PROTOCOLS},
            "compute": analysis.compute,
        }
    )


def _score_section(analysis: FactorsAnalysis) -> Section:
    frame = _score_frame(analysis)
    main = PREPARED if np.isfinite(frame[PREPARED]).any() else DIRECT
    order = frame.sort_values(main, ascending=False)["model"].tolist()
    chart = figures.interval_dots(
        frame,
        y="model",
        value=main,
        mark=DIRECT if main == PREPARED else None,
        title="First component",
        y_order=order,
        color=figures.family_color(analysis.matrix.families),
        tooltip=figures.tooltips(
            model="Model", family="Family", train_before_test="PC1 prepared|.2f", direct="PC1 direct|.2f"
        ),
        focus=True,
        row_height=14,
    )
    caption = "Dot: after preparation. Tick: as the model comes." if main == PREPARED else ""
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


def _compute_section(analysis: FactorsAnalysis, summary: dict) -> Section:
    frame = _score_frame(analysis)
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
                color=figures.family_color(analysis.matrix.families),
                x_title="Pretraining compute 6ND (floating-point operations)",
                y_title="First component",
                tooltip=figures.tooltips(model="Model", family="Family", compute="6ND|.2e", **{protocol: "PC1|.2f"}),
                log_x=True,
            ),
        )
        for protocol, label in figures.PROTOCOL_LABELS.items()
    ]
    relation = summary["pc1_compute"]
    rows = [
        {"protocol": figures.PROTOCOL_LABELS[p]}
        | {k: relation[p][k] for k in ("kendall", "spearman", "pearson", "models")}
        for p in PROTOCOLS
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
