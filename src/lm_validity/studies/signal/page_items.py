"""The parts of the signal page that rest on items: filters, item scores, subjects and answer lengths."""

import pandas as pd

from lm_validity.pages.page import Figure, Finding, Section, Table
from lm_validity.studies.signal import figures as signal_figures
from lm_validity.studies.signal.filters.apply import DESIGNS
from lm_validity.studies.signal.items import CONTROLS
from lm_validity.studies.signal.page_tables import as_numbers
from lm_validity.studies.signal.statistics.items import METRICS
from lm_validity.studies.signal.summary import SignalSummary, Trial
from lm_validity.summaries import as_columns, is_known, number
from lm_validity.words import count, decimal, percent

_SHOWN_SUBGROUPS = 60
_SHORT_DESIGNS = {
    "architecture": "by shape",
    "size": "by size",
    "model": "by model",
    "checkpoints": "by time",
    "fit_models": "by choice",
}
_TRIAL_LABELS = {
    "score": "item score",
    "in_sample": "where it was fitted",
    "optimism_gap": "gain lost on new data",
    "control_mean": "random choices, mean",
    "control_high": "97.5th percentile of random choices",
    "kept_in_sample": "items kept",
}


def filter_findings(summary: SignalSummary) -> list[Finding]:
    """Whether any filter holds beyond the data that it was fitted on."""
    judged = [(name, trial) for name, trial in _trials(summary) if is_known(trial.held_out)]
    if not judged:
        return []
    useful = [(name, trial) for name, trial in judged if trial.useful]
    basis = (
        f"A filter keeps some of a benchmark's items. {count(len(judged), 'trial')} of filters on models or "
        f"checkpoints that they did not see, each against {CONTROLS} random choices of as many items"
    )
    # A filter can keep items in every fold and none over all models: there is no optimism to tell of
    gaps = [trial.optimism_gap for _, trial in judged if is_known(trial.optimism_gap)]
    basis += "."
    if gaps:
        basis += f" On the data that they were fitted on, they gain {decimal(sum(gaps) / len(gaps), signed=True)} more."
    if not useful:
        return [Finding("The filters found nothing that holds beyond the data they were fitted on.", basis)]
    name, best = max(useful, key=lambda found: _gain(found[1]))
    sentence = (
        f"In {len(useful)} of {count(len(judged), 'trial')} ({percent(len(useful) / len(judged))}), a filter of items "
        "beats both no filter and 97.5% of random choices of as many items. By chance, at most 2.5% of trials would. "
        f"The largest gain over random choices is {decimal(_gain(best), signed=True)}, with the filter {best.filter} "
        f"on {name}."
    )
    return [Finding(sentence, basis)]


def _trials(summary: SignalSummary) -> list[tuple[str, Trial]]:
    return [(name, trial) for name, trials in summary.filters.items() if is_known(trials) for trial in trials]


def _gain(trial: Trial) -> float:
    """Held-out signal quality above that of random choices."""
    return number(trial.held_out) - number(trial.control_mean)


def filter_section(summary: SignalSummary) -> Section | None:
    """In-sample, held-out and random choices side by side."""
    rows = [{"benchmark": name, **vars(trial)} for name, trial in _trials(summary)]
    if not rows:
        return None
    table = pd.DataFrame(rows).drop(columns="kept_by_fold")
    numbers = ["unfiltered", "in_sample", "held_out", "optimism_gap", "control_mean", "control_high", "p"]
    frame = as_numbers(table, numbers)
    shown = set(frame["design"])
    formats = dict.fromkeys([*numbers, "length_dependence", "per_item_score_ratio"], ".3f") | {"p": "p"}
    scores = {metric: described.label for metric, described in METRICS.items()} | {"correct": "the benchmark's own"}
    table = table.replace({"design": _SHORT_DESIGNS, "score": scores})
    explanation = "Ignore the per item score ratio: it is near 2 for any half of the items, good or bad. "
    explanation += " ".join(
        f"{_SHORT_DESIGNS[design].capitalize()}: {text}." for design, text in DESIGNS.items() if design in shown
    )
    figures = [
        Figure(
            f"filters_{index}",
            f"Filters on {name}",
            signal_figures.filter_dots(_filter_rows(here[here["score"] != "correct"])),
            caption="Each filter by the item score of its authors. Grey: random choices of the same number of items, "
            "up to their 97.5th percentile.",
        )
        for index, (name, here) in enumerate(frame.groupby("benchmark", sort=False))
    ]
    return Section(
        "Filters on data they were not fitted on",
        explanation=explanation,
        figures=figures,
        tables=[Table("filters", "All trials", table, formats=formats, labels=_TRIAL_LABELS, folded=True)],
    )


def _filter_rows(frame: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for trial in frame.itertuples():
        row = f"{trial.filter}, {_SHORT_DESIGNS[trial.design]}"
        rows.append({"row": row, "kind": "where it was fitted", "value": trial.in_sample})
        rows.append({"row": row, "kind": "held out", "value": trial.held_out})
        rows.append(
            {
                "row": row,
                "kind": "random, same size",
                "value": trial.control_mean,
                "low": trial.control_mean,
                "high": trial.control_high,
            }
        )
    return pd.DataFrame(rows, columns=["row", "kind", "value", "low", "high"])


def metric_section(summary: SignalSummary) -> Section | None:
    """The same items under other scores."""
    rows = []
    with_items = {name: metrics for name, metrics in summary.item_metrics.items() if is_known(metrics)}
    for name, metrics in with_items.items():
        for metric, found in metrics.items():
            rows.append(
                {
                    "benchmark": name,
                    "metric": metric,
                    "label": found.label,
                    "signal_quality": found.signal_quality,
                    **as_columns(found.interval),
                    "less_accuracy": found.less_accuracy,
                    **as_columns(found.less_accuracy_interval, "less_accuracy_low", "less_accuracy_high"),
                }
            )
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    names = {"label": "item score", "less_accuracy": "minus that of accuracy"}
    names |= {"less_accuracy_low": "minus that of accuracy, from", "less_accuracy_high": "minus that of accuracy, to"}
    labels = [described.label for metric, described in METRICS.items() if metric in set(frame["metric"])]
    # A score that a benchmark lacks is a grey cell, not a hole
    grid = pd.MultiIndex.from_product([list(with_items), labels], names=["benchmark", "label"])
    drawn = as_numbers(frame, ["signal_quality"])
    cells = drawn.set_index(["benchmark", "label"])[["signal_quality"]].reindex(grid).reset_index()
    chart = signal_figures.metric_heatmap(cells, labels, list(with_items))
    return Section(
        "Item scores",
        explanation="Scores of different tokenizers are not comparable, and log-probability scores depend on the "
        "length of answers. Compare within a row, and look at the views by length.",
        figures=[Figure("item_metrics", "Signal quality by item score", chart, wide=True)],
        tables=[
            Table(
                "item_metrics",
                "With intervals",
                frame.drop(columns="metric"),
                formats=dict.fromkeys(frame.columns[3:], ".3f"),
                labels=names,
                folded=True,
            )
        ],
    )


def subgroup_section(summary: SignalSummary) -> Section | None:
    """Views by subject and by length of the gold answer."""
    rows = []
    for name, groups in summary.subgroups.items():
        for group in groups if is_known(groups) else ():
            found = {key: value for key, value in vars(group).items() if key != "interval"}
            rows.append({"benchmark": name, **found, **as_columns(group.interval)})
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    numbers = ["signal_quality", "last_score", "last_log_likelihood_per_token", "low", "high"]
    figures = []
    for kind, here in as_numbers(frame, numbers).groupby("kind"):
        here = here.assign(row=here["benchmark"] + ": " + here["name"]).head(_SHOWN_SUBGROUPS)
        title = "By subject" if kind == "subject" else "By length of the gold answer"
        caption = (
            f"The first {_SHOWN_SUBGROUPS} of {(frame['kind'] == kind).sum()}." if len(here) == _SHOWN_SUBGROUPS else ""
        )
        name = "subjects" if kind == "subject" else "answer_lengths"
        figures.append(Figure(name, title, signal_figures.subgroup_dots(here), caption=caption))
    return Section(
        "Subjects and answer lengths",
        figures=figures,
        tables=[Table("subgroups", "All groups", frame, formats=dict.fromkeys(numbers, ".3f"), folded=True)],
    )
