"""The sections on items: filters on trial, the same items under other scores, subjects and answer lengths."""

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.missing import as_columns, is_known
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.signal.benchmark import CONTROLS, as_numbers
from lm_validity.studies.signal.filters.recipe import DESIGNS
from lm_validity.studies.signal.numbers import SignalSummary
from lm_validity.studies.signal.statistics.items import METRICS
from lm_validity.words import count, decimal, percent

SHOWN_SUBGROUPS = 60


def filters_on_trial(summary: SignalSummary) -> Part:
    """In-sample, held-out and random choices side by side, and whether any filter holds beyond its own data."""
    rows = [
        {"benchmark": name, **vars(trial)}
        for name, trials in summary.filters.items()
        if is_known(trials)
        for trial in trials
    ]
    if not rows:
        return Part({})
    table = pd.DataFrame(rows).drop(columns="kept_by_fold")
    numbers = ["unfiltered", "in_sample", "held_out", "optimism_gap", "control_mean", "control_high", "p"]
    frame = as_numbers(table, numbers)
    charts = []
    for index, (name, trials) in enumerate(frame.groupby("benchmark", sort=False)):
        dots = [
            {"row": f"{trial.filter}, {DESIGNS[trial.design][0]}", "kind": kind, **values}
            for trial in trials[trials["score"] != "correct"].itertuples()
            for kind, values in {
                "where it was fitted": {"value": trial.in_sample},
                "held out": {"value": trial.held_out},
                "random, same size": {
                    "value": trial.control_mean, "low": trial.control_mean, "high": trial.control_high
                },
            }.items()
        ]  # fmt: skip
        drawn = pd.DataFrame(dots, columns=["row", "kind", "value", "low", "high"])
        kinds = {"where it was fitted": "#d55e00", "held out": "#2f7ec0", "random, same size": "#8a8a8a"}
        chart = figures.interval_dots(
            drawn,
            y="row",
            value="value",
            title="Signal quality, mean over models",
            y_order=list(dict.fromkeys(drawn["row"])),
            offset="kind",
            color=figures.listed_color("kind", kinds),
            tooltip=figures.tooltips(row="Filter", kind="Items chosen", value="Signal quality|.3f"),
            zero=True,
            row_height=30,
        )
        caption = "Each filter by the item score of its authors. Grey: random choices of the same number of items, "
        caption += "up to their 97.5th percentile."
        charts.append(Figure(f"filters_{index}", f"Filters on {name}", chart, caption=caption))
    scores = {metric: described.label for metric, described in METRICS.items()} | {"correct": "the benchmark's own"}
    designs = " ".join(
        f"{short.capitalize()}: {text}." for design, (short, text) in DESIGNS.items() if design in set(frame["design"])
    )
    section = Section(
        "Filters on data they were not fitted on",
        hint="whether fewer items give more signal",
        explanation=f"Ignore the per item score ratio: it is near 2 for any half of the items, good or bad. {designs}",
        figures=charts,
        tables=[
            Table(
                "filters",
                "All trials",
                table.replace({"design": {design: short for design, (short, _) in DESIGNS.items()}, "score": scores}),
                formats=dict.fromkeys([*numbers, "length_dependence", "per_item_score_ratio"], ".3f") | {"p": "p"},
                labels={
                    "score": "item score",
                    "in_sample": "where it was fitted",
                    "optimism_gap": "gain lost on new data",
                    "control_mean": "random choices, mean",
                    "control_high": "97.5th percentile of random choices",
                    "kept_in_sample": "items kept",
                },
                folded=True,
            )
        ],
    )
    return Part({}, section, [_filter_finding(frame)])


def _filter_finding(frame: pd.DataFrame) -> Finding | None:
    judged = frame[frame["p"].notna()]
    if judged.empty:
        return None
    basis = (
        f"A filter keeps some of a benchmark's items. {count(len(judged), 'trial')} of filters on models or "
        f"checkpoints that they did not see, each against {CONTROLS} random choices of as many items."
    )
    # A filter can keep items in every fold and none over all models: there is no optimism to tell of
    gaps = [gap for gap in judged["optimism_gap"] if np.isfinite(gap)]
    if gaps:
        basis += f" On the data that they were fitted on, they gain {decimal(sum(gaps) / len(gaps), signed=True)} more."
    useful = judged[judged["useful"]]
    if useful.empty:
        return Finding("The filters found nothing that holds beyond the data they were fitted on.", basis)
    gains = useful["held_out"] - useful["control_mean"]
    best = useful.loc[gains.idxmax()]
    sentence = (
        f"In {len(useful)} of {count(len(judged), 'trial')} ({percent(len(useful) / len(judged))}), a filter of items "
        "beats both no filter and 97.5% of random choices of as many items. By chance, at most 2.5% of trials would. "
        f"The largest gain over random choices is {decimal(gains.max(), signed=True)}, with the filter "
        f"{best['filter']} on {best['benchmark']}."
    )
    return Finding(sentence, basis)


def item_metrics(summary: SignalSummary) -> Part:
    """Signal quality of a benchmark if its items were scored otherwise; the same draws for all metrics."""
    with_items = {name: metrics for name, metrics in summary.item_metrics.items() if is_known(metrics)}
    rows = [
        {
            "benchmark": name,
            "label": METRICS[metric].label,
            "signal_quality": entry.signal_quality,
            **as_columns(entry.interval),
            "less_accuracy": entry.less_accuracy,
            **as_columns(entry.less_accuracy_interval, "less_accuracy_low", "less_accuracy_high"),
        }
        for name, metrics in with_items.items()
        for metric, entry in metrics.items()
    ]
    if not rows:
        return Part({})
    frame = pd.DataFrame(rows)
    labels = [described.label for described in METRICS.values() if described.label in set(frame["label"])]
    # A score that a benchmark lacks is a grey cell, not a hole
    grid = pd.MultiIndex.from_product([list(with_items), labels], names=["benchmark", "label"])
    drawn = as_numbers(frame, ["signal_quality"])
    cells = drawn.set_index(["benchmark", "label"])[["signal_quality"]].reindex(grid).reset_index()
    chart = figures.heatmap(
        cells,
        x="benchmark",
        y="label",
        value="signal_quality",
        title="Signal quality",
        x_order=list(with_items),
        y_order=labels,
        tooltip=figures.tooltips(label="Item score", benchmark="Benchmark", signal_quality="Signal quality|.3f"),
        number_format=".2f",
    )
    minus = {"less_accuracy": "", "less_accuracy_low": ", from", "less_accuracy_high": ", to"}
    section = Section(
        "Item scores",
        hint="the same items scored otherwise",
        explanation="Scores of different tokenizers are not comparable, and log-probability scores depend on the "
        "length of answers. Compare within a row, and look at the views by length.",
        figures=[Figure("item_metrics", "Signal quality by item score", chart, wide=True)],
        tables=[
            Table(
                "item_metrics",
                "With intervals",
                frame,
                formats=dict.fromkeys(frame.columns[2:], ".3f"),
                labels={"label": "item score"} | {name: f"minus that of accuracy{end}" for name, end in minus.items()},
                folded=True,
            )
        ],
    )
    return Part({}, section)


def subgroups(summary: SignalSummary) -> Part:
    """Views by subject and by length of the gold answer."""
    rows = [
        {"benchmark": name, **{key: value for key, value in vars(group).items() if key != "interval"}}
        | as_columns(group.interval)
        for name, groups in summary.subgroups.items()
        for group in (groups if is_known(groups) else ())
    ]
    if not rows:
        return Part({})
    frame = pd.DataFrame(rows)
    numbers = ["signal_quality", "last_score", "last_log_likelihood_per_token", "low", "high"]
    charts = []
    for kind, groups in as_numbers(frame, numbers).groupby("kind"):
        drawn = groups.assign(row=groups["benchmark"] + ": " + groups["name"]).head(SHOWN_SUBGROUPS)
        caption = f"The first {SHOWN_SUBGROUPS} of {len(groups)}." if len(drawn) == SHOWN_SUBGROUPS else ""
        chart = figures.interval_dots(
            drawn,
            y="row",
            value="signal_quality",
            title="Signal quality, mean over models",
            y_order=list(drawn["row"]),
            color=alt.ColorValue(figures.CATEGORY_COLORS[0]),
            tooltip=figures.tooltips(row="Items", items="Number|d", signal_quality="Signal quality|.3f"),
            zero=True,
        )
        by_subject = kind == "subject"
        name, title = ("subjects", "By subject") if by_subject else ("answer_lengths", "By length of the gold answer")
        charts.append(Figure(name, title, chart, caption=caption))
    table = Table("subgroups", "All groups", frame, formats=dict.fromkeys(numbers, ".3f"), folded=True)
    return Part({}, Section("Subjects and answer lengths", hint="groups of items", figures=charts, tables=[table]))
