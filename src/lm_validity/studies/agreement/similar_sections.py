"""Findings and sections of the agreement report on models of like size, noise, and where variance comes from."""

import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Section, Table
from lm_validity.studies.agreement.analysis import DIRECT, PREPARED
from lm_validity.studies.agreement.shown import bounds, plotted, value_in_words
from lm_validity.studies.agreement.summary import AgreementSummary, Range, RatioRow, Value
from lm_validity.summaries import Missing, is_known
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, decimal

WORDS = {DIRECT: "as the models come", PREPARED: "after equal preparation"}
HEADLINE_RATIO = 2.0  # models that a reader chooses between
WHICH_INTERVAL = (
    "Two intervals stand side by side. The first is for other models of the same "
    "families; the second takes families as clusters and is for models of other families too. Quote the second for a "
    "claim on language models in general; it is wide because families are few."
)


def both_intervals(value: Value, interval: Range, clustered: Range, signed: bool = False) -> str:
    """A value with its interval over models and, where there is one, that over families."""
    text = value_in_words(value, interval, signed=signed)
    if isinstance(clustered, Missing) or isinstance(interval, Missing):
        return text
    low, high = (decimal(end, signed=signed) for end in clustered)
    return f"{text[:-1]} over models, {low} to {high} over families)"


def _row(summary: AgreementSummary, protocol: str) -> RatioRow | None:
    rows = summary.kendall_tau[protocol].by_size_ratio
    if isinstance(rows, Missing):
        return None
    found = [row for row in rows if row.at_most == HEADLINE_RATIO and is_known(row.mean)]
    return found[0] if found else None


def size_finding(summary: AgreementSummary) -> Finding | None:
    """Agreement among models that a reader chooses between: those of like size."""
    rows = {p: row for p in PROTOCOLS if (row := _row(summary, p)) is not None}
    if not rows:
        return None
    parts = [f"{both_intervals(row.mean, row.interval, row.interval_clustered)} {WORDS[p]}" for p, row in rows.items()]
    without = [f"{value_in_words(row.corrected)} {WORDS[p]}" for p, row in rows.items() if is_known(row.corrected)]
    noise = f" Without measurement error: {' and '.join(without)}." if without else ""
    pairs = " and ".join(dict.fromkeys(count(row.pairs_of_models, "pair") for row in rows.values()))
    own = "; each protocol over all cells it has" if len(rows) > 1 and not summary.improvement.whole else ""
    which = f" {WHICH_INTERVAL}" if any(is_known(row.interval_clustered) for row in rows.values()) else ""
    return Finding(
        "Among models whose sizes differ by at most a factor of 2, two benchmarks' rankings agree with a mean "
        f"Kendall's tau of {' and '.join(parts)}.{noise}",
        f"{pairs} of models{own}. Two benchmarks agree on models of very different size whatever they measure.{which}",
    )


def corrected_finding(summary: AgreementSummary) -> Finding | None:
    """Agreement over all models without measurement error."""
    tau = summary.kendall_tau
    shown = [p for p in PROTOCOLS if is_known(tau[p].corrected.mean)]
    if not shown:
        return None
    parts = [
        f"{both_intervals(one.mean, one.interval, one.interval_clustered)} {WORDS[p]}"
        for p in shown
        for one in (tau[p].corrected,)
    ]
    ceilings = [f"{value_in_words(tau[p].ceiling)} {WORDS[p]}" for p in shown]
    return Finding(
        f"Over all models, the mean tau without measurement error would be {' and '.join(parts)}.",
        "The tau observed, corrected for attenuation by its noise ceiling, the tau that one common order of the models "
        f"would leave: {' and '.join(ceilings)}.",
    )


def size_section(summary: AgreementSummary) -> Section | None:
    """Agreement by distance in parameters and in compute, with ceilings and corrected."""
    rows = []
    for what, key in (("parameters", "by_size_ratio"), ("compute", "by_compute_ratio")):
        for p, label in figures.PROTOCOL_LABELS.items():
            found = getattr(summary.kendall_tau[p], key)
            for row in [] if isinstance(found, Missing) else found:
                rows.append(
                    {
                        "by": what,
                        "models": f"within {row.at_most:g}×" if row.at_most else f"more than {row.at_least:g}× apart",
                        "protocol": label,
                        "pairs": row.pairs_of_models,
                        "tau": row.mean,
                        **bounds(row.interval),
                        **bounds(row.interval_clustered, "low_families", "high_families"),
                        "ceiling": row.ceiling,
                        "corrected": row.corrected,
                        **bounds(row.corrected_interval, "corrected_low", "corrected_high"),
                        **bounds(row.corrected_interval_clustered, "corrected_low_families", "corrected_high_families"),
                    }
                )
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    charts = [_ratio_figure(plotted(part), str(what)) for what, part in frame.groupby("by", sort=False) if len(part)]
    numbers = [name for name in frame.columns if name not in ("by", "models", "protocol", "pairs")]
    labels = {"low": "from", "high": "to", "low_families": "from, families", "high_families": "to, families"}
    return Section(
        "Models of like size",
        explanation="Kendall's tau over those pairs of models only whose numbers of parameters (or pretraining "
        "compute) differ by at most a factor. The ceiling is the tau that measurement error alone would leave on the "
        "same pairs; corrected is the tau without that error. Where families of models are known: " + WHICH_INTERVAL,
        figures=charts,
        tables=[
            Table(
                "tau_by_size_ratio",
                "Agreement by distance in size",
                frame,
                formats=dict.fromkeys(numbers, ".3f"),
                labels=labels,
            )
        ],
    )


def _ratio_figure(frame: pd.DataFrame, what: str) -> Figure:
    chart = figures.interval_dots(
        frame,
        y="models",
        value="tau",
        low="low",
        high="high",
        mark="ceiling",
        title="Mean tau",
        y_order=frame["models"].unique().tolist(),
        color=figures.protocol_color(),
        tooltip=figures.tooltips(
            models="Models", protocol="Protocol", pairs="Pairs of models", tau="tau|.3f", low="from|.3f",
            high="to|.3f", ceiling="noise ceiling|.3f", corrected="without noise|.3f",
        ),
        offset="protocol",
        row_height=30,
    )  # fmt: skip
    caption = "Dot: mean tau. Line: 95% interval over models. Tick: the noise ceiling."
    return Figure(f"tau_by_{what}_ratio", f"By distance in {what}", chart, caption=caption)


def variance_section(summary: AgreementSummary) -> Section | None:
    """Components of variance, and what more benchmarks, items or seeds would buy."""
    known_ones = {p: found for p, found in summary.variance_components.items() if is_known(found.model)}
    if not known_ones:
        return None
    components = pd.DataFrame(
        [
            {"protocol": figures.PROTOCOL_LABELS[p]}
            | {name: getattr(found, name) for name in ("model", "model_benchmark", "item", "seed", "reliability")}
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
    curve = plans[(plans["items"] == 1) & (plans["seeds"] == 1)].drop_duplicates(["protocol", "benchmarks"])
    chart = figures.lines(
        curve.sort_values(["protocol", "benchmarks"]),
        x="benchmarks",
        y="reliability",
        color=figures.protocol_color(),
        x_title="Benchmarks in the mean",
        y_title="Reliability of the mean score",
        tooltip=figures.tooltips(protocol="Protocol", benchmarks="Benchmarks", reliability="Reliability|.3f"),
        points=True,
    )
    parts = [
        f"{value_in_words(found.model)} for differences between models that hold on every benchmark and "
        f"{value_in_words(found.model_benchmark)} for those that hold on one {WORDS[p]}"
        for p, found in known_ones.items()
    ]
    return Section(
        "Where differences between scores come from",
        finding=f"In units of the variance between models on one benchmark: {'; '.join(parts)}.",
        explanation="A generalisability study: standardised scores are taken apart into models, models × benchmarks, "
        "and the measurement error of items and seeds. The reliability of a mean score is the share of its variance "
        "that would stay with other benchmarks, items and seeds of the same kind. It is over all models of the table: "
        "among models of like size it is lower.",
        figures=[Figure("reliability", "What more benchmarks would buy", chart, wide=True)],
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
                formats={"items": ".2g", "seeds": ".2g", "reliability": ".4f"},
                labels={"items": "times the items", "seeds": "times the seeds"},
                folded=True,
            ),
        ],
    )
