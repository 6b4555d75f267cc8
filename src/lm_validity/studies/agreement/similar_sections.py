"""Findings and sections of the agreement report on models of similar size, noise, and where variance comes from."""

import altair as alt
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Section, Table
from lm_validity.studies.agreement.shown import assumed, plotted, value_in_words
from lm_validity.studies.agreement.similar_models import HEADLINE_RATIO
from lm_validity.studies.agreement.summary import AgreementSummary, Range, RatioRow, Value, VarianceSummary
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, count, decimal, percent

TAU_LABELS = {
    "low": "from",
    "high": "to",
    "low_families": "from, families",
    "high_families": "to, families",
    "ceiling": "noise ceiling",
    "corrected": "noise-corrected",
    "corrected_low": "noise-corrected, from",
    "corrected_high": "noise-corrected, to",
    "corrected_low_families": "noise-corrected, from, families",
    "corrected_high_families": "noise-corrected, to, families",
    "significance_tau": "tau, significant differences only",
}
COMPONENTS = ("model", "model_benchmark", "item", "seed", "prompt", "training", "reliability")
SIZE_ALONE = "Among models of very different sizes, benchmarks can agree merely because scores rise with size."
WHICH_INTERVAL = (
    "There are two intervals. The first holds for other models of the same families. The second treats families as "
    "clusters and also holds for models of other families. For a claim about language models in general, quote the "
    "second, or the first where it is wider. The second is wide where families are few. In simulations with five "
    "families of unequal size it contained the truth in 94% to 98% of cases."
)


def for_other_benchmarks(intervals: str, *, families: bool) -> str:
    """Which interval a claim on benchmarks in general takes; empty without one."""
    if not intervals:
        return ""
    clusters = "families of models and categories of benchmarks" if families else "categories of benchmarks"
    return (
        f" For other models and other benchmarks, with {clusters} as clusters: {intervals}. For a claim about "
        "benchmarks in general, quote this last interval, or one before it that is wider. Those before it are for "
        "these benchmarks only."
    )


def both_intervals(value: Value, interval: Range, clustered: Range, *, signed: bool = False) -> str:
    """A value with its interval over models and, where there is one, that over families."""
    text = value_in_words(value, interval, signed=signed)
    if isinstance(clustered, Missing):
        return text
    if isinstance(interval, Missing):
        return f"{value_in_words(value, clustered, signed=signed)[:-1]} over families)"
    low, high = (decimal(end, signed=signed) for end in clustered)
    return f"{text[:-1]} over models, {low} to {high} over families)"


def _which_interval(clustered: list[Range]) -> str:
    """What both intervals are for, or why there is none over families."""
    if any(is_known(interval) for interval in clustered):
        return WHICH_INTERVAL
    reasons = [interval.reason for interval in clustered if isinstance(interval, Missing)]
    return f"There is no interval over families. {reasons[0]}"


def noise_leaves(ceilings: dict[str, Value]) -> str:
    """The noise ceilings that are known, in a sentence to follow that on the taus."""
    parts = [f"{value_in_words(ceiling)} {UNDER[p]}" for p, ceiling in ceilings.items() if is_known(ceiling)]
    return f" Noise would leave benchmarks that order all models alike {' and '.join(parts)}." if parts else ""


def _like_size(rows: list[RatioRow] | Missing) -> RatioRow | None:
    """The row of models that a reader chooses between, where it has a tau."""
    found = [] if isinstance(rows, Missing) else [row for row in rows if row.at_most == HEADLINE_RATIO]
    return found[0] if found and is_known(found[0].mean) else None


def _headline_rows(summary: AgreementSummary) -> tuple[dict[str, RatioRow], bool]:
    """The headline row by protocol, and whether it is over the cells known under both protocols."""
    for by_protocol, both in (
        (summary.improvement.by_size_ratio, True),
        ({p: summary.kendall_tau[p].by_size_ratio for p in PROTOCOLS}, False),
    ):
        found = {p: row for p, rows in by_protocol.items() if (row := _like_size(rows)) is not None}
        if len(found) == len(PROTOCOLS) or not both:
            return found, both
    return {}, False


def size_finding(summary: AgreementSummary) -> Finding | None:
    """Agreement among models that a reader chooses between: those of like size."""
    if summary.lacks_many:
        return _pooled_size_finding(summary)
    rows, both = _headline_rows(summary)
    if not rows:
        return None
    parts = [f"{both_intervals(row.mean, row.interval, row.interval_clustered)} {UNDER[p]}" for p, row in rows.items()]
    without = [f"{value_in_words(row.corrected)} {UNDER[p]}" for p, row in rows.items() if is_known(row.corrected)]
    noise = noise_leaves({p: row.ceiling for p, row in rows.items()})
    noise += f" The noise-corrected tau is {' and '.join(without)}." if without else ""
    pairs = " and ".join(dict.fromkeys(count(row.pairs_of_models, "pair") for row in rows.values()))
    cells = ""
    if not summary.improvement.whole and len(rows) > 1:
        common = f", over the {count(summary.cells_in_both, 'cell')} known under both protocols"
        cells = common if both else ", each protocol over all cells it has"
    which = _which_interval([row.interval_clustered for row in rows.values()])
    return Finding(
        "Among models at most 2× apart in size, two benchmarks' rankings "
        f"have a mean Kendall's tau of {' and '.join(parts)}.{noise}",
        f"{pairs} of models{cells}. {SIZE_ALONE} {which}",
    )


def _pooled_size_finding(summary: AgreementSummary) -> Finding | None:
    """The same where cells are missing; none where too few models have known cells."""
    row = summary.pooled.get("like_size")
    if row is None or not any(is_known(interval) for interval in row.interval.values()):
        return None
    parts = [f"{both_intervals(row.mean[p], row.interval[p], row.interval_clustered[p])} {UNDER[p]}" for p in row.mean]
    known_under = " known under both protocols" if len(parts) > 1 else ""
    return Finding(
        "Among models at most 2× apart in size, two benchmarks' rankings "
        f"have{assumed(summary)} a pooled Kendall's tau of {' and '.join(parts)}.",
        f"{row.comparisons:,} comparisons of two models on two benchmarks{known_under}, each counted once: "
        f"{count(row.pairs_of_models, 'pair')} of {count(row.models, 'model')}. {SIZE_ALONE}"
        f" {_which_interval(list(row.interval_clustered.values()))}",
    )


def corrected_finding(summary: AgreementSummary) -> Finding | None:
    """Agreement over all models without measurement error."""
    tau = summary.kendall_tau
    shown = [p for p in PROTOCOLS if is_known(tau[p].corrected.mean)]
    if not shown:
        return None
    parts = [
        f"{both_intervals(one.mean, one.interval, one.interval_clustered)} {UNDER[p]}"
        for p in shown
        for one in (tau[p].corrected,)
    ]
    ceilings = [f"{value_in_words(tau[p].ceiling)} {UNDER[p]}" for p in shown]
    return Finding(
        f"Over all models, the noise-corrected tau{assumed(summary)} is {' and '.join(parts)}.",
        "It estimates the tau without the noise that was measured: of items, and of seeds where fine-tuning was "
        "repeated. The observed tau is corrected with a noise ceiling: the tau that would be seen if all benchmarks "
        "ordered the models identically and only this noise set them apart. The "
        f"correction is not a simple division. The ceiling is {' and '.join(ceilings)}.",
    )


def size_section(summary: AgreementSummary) -> Section | None:
    """Agreement by distance in parameters and in compute, with ceilings and corrected."""
    frame = pd.DataFrame(_ratio_table(summary))
    if frame.empty:
        return None
    drawn = frame[frame["cells"] == frame["cells"].iloc[-1]]  # those known under both protocols where some are not
    charts = [_ratio_figure(plotted(part), str(what)) for what, part in drawn.groupby("by", sort=False) if len(part)]
    frame = frame.drop(columns="cells") if summary.improvement.whole else frame
    numbers = [name for name in frame.columns if name not in ("cells", "by", "models", "protocol", "pairs")]
    return Section(
        "Models of similar size",
        explanation="Kendall's tau over only those pairs of models whose numbers of parameters (or pretraining "
        "compute) differ by at most the given ratio. The ceiling is the tau that noise alone would allow on the same "
        "pairs. The noise-corrected tau is an estimate without that noise. Where cells are missing, the figure uses "
        "the cells known under both protocols. Where the families of the models are known, there are two intervals. "
        + WHICH_INTERVAL.removeprefix("There are two intervals. "),
        figures=charts,
        tables=[
            Table(
                "tau_by_size_ratio",
                "Agreement by distance in size",
                frame,
                formats=dict.fromkeys(numbers, ".3f"),
                labels=TAU_LABELS,
            )
        ],
    )


def _ratio_table(summary: AgreementSummary) -> list[dict[str, object]]:
    """Rows by distance, over all cells of each protocol and, where that is less, over those known under both."""
    rows = []
    own = {p: summary.kendall_tau[p] for p in PROTOCOLS}
    for what, key in (("parameters", "by_size_ratio"), ("compute", "by_compute_ratio")):
        sources = {"all of the protocol": {p: getattr(tau, key) for p, tau in own.items()}}
        if not summary.improvement.whole and is_known(summary.improvement.mean):
            sources["known under both"] = getattr(summary.improvement, key)
        for cells, by_protocol in sources.items():
            for p, found in by_protocol.items():
                label = figures.PROTOCOL_LABELS[p]
                rows += [_ratio_row(cells, what, label, row) for row in ([] if isinstance(found, Missing) else found)]
    return sorted(rows, key=lambda row: row["cells"] == "known under both")


def _ratio_row(cells: str, what: str, label: str, row: RatioRow) -> dict[str, object]:
    return {
        "cells": cells,
        "by": what,
        "models": f"within {row.at_most:g}×" if row.at_most else f"more than {row.at_least:g}× apart",
        "protocol": label,
        "pairs": row.pairs_of_models,
        "tau": row.mean,
        **as_columns(row.interval),
        **as_columns(row.interval_clustered, "low_families", "high_families"),
        "ceiling": row.ceiling,
        "corrected": row.corrected,
        **as_columns(row.corrected_interval, "corrected_low", "corrected_high"),
        **as_columns(row.corrected_interval_clustered, "corrected_low_families", "corrected_high_families"),
    }


def _ratio_figure(frame: pd.DataFrame, what: str) -> Figure:
    chart = figures.interval_dots(
        frame,
        y="models",
        value="tau",
        mark="ceiling",
        title="Mean tau",
        y_order=frame["models"].unique().tolist(),
        tooltip=figures.tooltips(
            models="Models", protocol="Protocol", pairs="Pairs of models", tau="tau|.3f", low="from|.3f",
            high="to|.3f", ceiling="noise ceiling|.3f", corrected="noise-corrected|.3f",
        ),
        offset="protocol",
        row_height=30,
    )  # fmt: skip
    caption = "Dot: mean tau. Line: 95% interval over models. Tick: noise ceiling."
    return Figure(f"tau_by_{what}_ratio", f"By distance in {what}", chart, caption=caption)


def variance_section(summary: AgreementSummary) -> Section | None:
    """Components of variance, and what more benchmarks, items or seeds would buy."""
    known_ones = {p: found for p, found in summary.variance_components.items() if is_known(found.model)}
    if not known_ones:
        return None
    components = pd.DataFrame(
        [
            {"protocol": figures.PROTOCOL_LABELS[p]} | {name: getattr(found, name) for name in COMPONENTS}
            for p, found in known_ones.items()
        ]
    )
    plans = pd.DataFrame(
        [
            {"protocol": figures.PROTOCOL_LABELS[p], **vars(plan)}
            for p, found in known_ones.items()
            for plan in found.decision_study
        ]
    )
    return Section(
        "Where differences between scores come from",
        finding=_variance_sentence(known_ones),
        explanation="This is a generalisability study. It divides the variance of standardised scores into models, "
        "models × benchmarks, and the noise of items, seeds and prompts where these were measured. "
        "In the table, the parts add up to n / (n - 1) for n models, unless one was set to 0. The reliability of a "
        "mean score is the share of its variance that would remain with other benchmarks, items and seeds of the same "
        "kind. It is computed over all models of the table. Among models of similar size it is lower."
        + _set_to_zero(known_ones)
        + _prompts(known_ones),
        figures=[Figure("reliability", "What more benchmarks would buy", _reliability_chart(plans), wide=True)],
        tables=[
            Table(
                "variance_components",
                "Components of variance",
                components,
                formats=dict.fromkeys(components.columns[1:], ".3f"),
                labels={"model_benchmark": "model × benchmark"},
            ),
            Table(
                "decision_study",
                "What more benchmarks, items or seeds would buy",
                plans,
                formats=dict.fromkeys(("items", "seeds", "prompts"), ".2g") | {"reliability": ".4f"},
                labels={name: f"times the {name}" for name in ("items", "seeds", "prompts")},
                folded=True,
            ),
        ],
    )


def _reliability_chart(plans: pd.DataFrame) -> alt.LayerChart:
    """The reliability of a mean over more benchmarks, with items, seeds and prompts as they are."""
    curve = plans[(plans[["items", "seeds", "prompts"]] == 1).all(axis=1)].drop_duplicates(["protocol", "benchmarks"])
    return figures.lines(
        curve.sort_values(["protocol", "benchmarks"]),
        x="benchmarks",
        y="reliability",
        x_title="Benchmarks in the mean",
        y_title="Reliability of the mean score",
        tooltip=figures.tooltips(protocol="Protocol", benchmarks="Benchmarks", reliability="Reliability|.3f"),
        points=True,
    )


def _variance_sentence(components: dict[str, VarianceSummary]) -> str:
    """The shares of all components that were measured; none where one was estimated below zero: they do not add up."""
    words = {
        "model": "is shared by all benchmarks",
        "model_benchmark": "is specific to that benchmark, with any noise that was not measured",
        "item": "is noise of the items",
        "seed": "is noise of the seeds",
        "prompt": "is due to the prompt",
        "training": "is noise of training the models again",
    }
    sentences = []
    for p, found in components.items():
        parts = {name: number(getattr(found, name)) for name in words if is_known(getattr(found, name))}
        if min(number(found.raw_model), number(found.raw_model_benchmark)) < 0:
            sentences.append(
                f"{UNDER[p].capitalize()}, the parts of a benchmark's variance over these models do not add up: one is "
                "estimated below zero."
            )
            continue
        shares = [f"{percent(part / sum(parts.values()))} {words[name]}" for name, part in parts.items()]
        sentences.append(
            f"Of a benchmark's variance over these models {UNDER[p]}, {', '.join(shares[:-1])}, and {shares[-1]}."
        )
    return " ".join(sentences)


def _set_to_zero(components: dict[str, VarianceSummary]) -> str:
    """Which components were estimated below zero."""
    below = [
        f"{name} {UNDER[p]} ({value_in_words(value)})"
        for p, found in components.items()
        for name, value in (("model", found.raw_model), ("model × benchmark", found.raw_model_benchmark))
        if is_known(value) and value < 0
    ]
    if not below:
        return ""
    return (
        f" Estimated below zero and set to zero: {', '.join(below)}. Such a component is too small to detect in this "
        "table, or the standard errors are too large."
    )


def _prompts(components: dict[str, VarianceSummary]) -> str:
    """That what prompts change was not measured, where it was not."""
    unknown = [UNDER[p] for p, found in components.items() if not is_known(found.prompt)]
    return f" The effect of other prompts was not measured {' or '.join(unknown)}." if unknown else ""
