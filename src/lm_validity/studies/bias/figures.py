"""Charts of the bias page."""

from collections.abc import Iterable

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages.figures import (
    chart_data,
    cycled_colors,
    dashed_lines,
    heatmap,
    interval_dots,
    layered,
    lines,
    listed_color,
    scatter,
    tooltips,
)
from lm_validity.studies.bias.statistics.effects import THRESHOLD, VarianceComponents, detection_power
from lm_validity.studies.bias.summary import BiasSummary, Power, Slices, TaskTest, rows_frame
from lm_validity.studies.bias.violins import setting_label, setting_labels
from lm_validity.summaries import Missing, as_columns, is_known, number

MARGINAL, MODEL_FREE = "marginal", "model-free"


def series_color(names: Iterable[str], field: str, title: str | None = None) -> alt.Color:
    """Colours of the named series, the first name the first colour."""
    names = list(names)
    columns = 2 if len(names) > 3 else 0  # room on a telephone
    return listed_color(field, cycled_colors(names), title, columns=columns)


def answer(summary: BiasSummary, effect: str) -> alt.LayerChart:
    """Marginal effects under the headline formula beside the model-free means, one row per setting; 95% intervals."""
    labels = setting_labels(summary)
    of_headline = [fit for fit in summary.fits(effect) if fit.formula == summary.headline_formula]
    found: list[tuple[str, int, int, str, float, tuple[float, float] | Missing]] = [
        (fit.experiment, fit.m, fit.n, MARGINAL, fit.marginal_mean, fit.marginal_interval) for fit in of_headline
    ]
    for row in summary.settings:
        if row.effect == effect:
            found.append((row.experiment, row.m, row.n, MODEL_FREE, row.over_tasks.mean, row.over_tasks.interval))
    rows = []
    for experiment, m, n, source, value, interval in found:
        shown = {"setting": labels[experiment, m, n], "source": source, "value": value}
        rows.append(shown | as_columns(interval if is_known(interval) else None))
    frame = pd.DataFrame(rows)
    chart = interval_dots(
        frame,
        y="setting",
        value="value",
        title=f"{effect}, in accuracy",
        y_order=list(labels.values()),
        offset="source",
        color=series_color((MARGINAL, MODEL_FREE), "source"),
        tooltip=tooltips(setting="Setting", source="From", value="Mean|+.4f", low="Low|+.4f", high="High|+.4f"),
        zero=True,
        row_height=38,
    )
    return layered(chart, dashed_lines("zero", 0))


def formula_intervals(summary: BiasSummary, effect: str) -> alt.LayerChart:
    """beta with 89% intervals, one row per setting, by formula."""
    labels = setting_labels(summary)
    rows = [
        {
            "setting": labels[fit.experiment, fit.m, fit.n],
            "formula": fit.formula,
            "beta": fit.beta_mean,
            **as_columns(fit.interval),
            "conclusion": {-1: "below zero", 0: "includes zero", 1: "above zero"}[fit.excludes_zero],
        }
        for fit in summary.fits(effect)
    ]
    chart = interval_dots(
        pd.DataFrame(rows),
        y="setting",
        value="beta",
        title="beta, log-odds",
        y_order=list(labels.values()),
        offset="formula",
        color=series_color(dict.fromkeys(str(row["formula"]) for row in rows), "formula"),
        tooltip=tooltips(
            setting="Setting",
            formula="Formula",
            beta="Mean|+.4f",
            low="Low|+.4f",
            high="High|+.4f",
            conclusion="Interval",
        ),
        zero=True,
        row_height=32,
    )
    return layered(chart, dashed_lines("zero", 0))


def calibrated_experiments(summary: BiasSummary) -> list[str]:
    """Experiments with a fit of the bias whose predictions can be held against what was observed."""
    return list(dict.fromkeys(fit.experiment for fit in summary.fits("bias") if is_known(fit.accuracies)))


def calibration(summary: BiasSummary, experiment: str) -> alt.LayerChart:
    """Predicted against observed accuracy by formula, in the experiment's largest setting."""
    fits = summary.fits("bias", experiment)
    m, n = max((fit.m, fit.n) for fit in fits)
    chosen = [(fit.formula, fit.accuracies) for fit in fits if (fit.m, fit.n) == (m, n)]
    frame = pd.concat([found.assign(formula=name) for name, found in chosen if not isinstance(found, Missing)])
    return scatter(
        frame,
        x="observed",
        y="predicted",
        color=series_color(frame["formula"].drop_duplicates(), "formula"),
        x_title=f"Observed accuracy (m={m}, n={n})",
        y_title="Predicted accuracy",
        tooltip=tooltips(
            task="Task",
            language_model="Model",
            arm="Arm",
            formula="Formula",
            observed="Observed|.3f",
            predicted="Predicted|.3f",
        ),
        diagonal=True,
        focus=False,
    )


def task_heatmap(tests: list[TaskTest]) -> alt.LayerChart:
    """Mean bias by task and cell."""
    frame = rows_frame(TaskTest, tests)
    several = frame["experiment"].nunique() > 1
    frame["cell"] = [
        f"{row.language_model}, {setting_label(row.experiment, row.m, row.n, several=several)}"
        for row in frame.itertuples()
    ]
    tasks, cells = sorted(frame["task"].unique()), list(dict.fromkeys(frame["cell"]))
    whole = pd.MultiIndex.from_product([tasks, cells], names=["task", "cell"])
    columns = ["task", "cell", "mean", "p", "p_adjusted", "trials"]
    frame = frame[columns].set_index(["task", "cell"]).reindex(whole).reset_index()
    reach = max(float(np.nanquantile(frame["mean"].abs(), 0.98)), 1e-3)
    tips = tooltips(task="Task", cell="Cell", mean="Mean bias|+.4f", p="p|.4f", p_adjusted="q|.4f", trials="Subsamples")
    chart = heatmap(
        frame,
        x="cell",
        y="task",
        value="mean",
        title="Mean bias",
        x_order=cells,
        y_order=tasks,
        tooltip=tips,
        domain=(-reach, reach),
        scheme="redblue",
    )
    marked = frame[frame["p_adjusted"] < 0.05]
    dots = alt.Chart(chart_data(marked)).mark_text(text="●", color="#111", fontSize=8)
    return layered(chart, dots.encode(x="cell:N", y="task:N"))


def meta_curves(results: list[Slices]) -> alt.LayerChart:
    """Cumulative distribution of the slices' posterior means."""
    several = len({row.experiment for row in results}) > 1
    shares = np.linspace(0.005, 0.995, 67)
    rows = []
    for row in results:
        label = setting_label(row.experiment, row.m, row.n, several=several)
        if isinstance(row.means, Missing):
            continue
        quantiles = np.quantile(row.means, shares)
        rows += [{"setting": label, "mean": q, "share": s} for q, s in zip(quantiles, shares, strict=True)]
    frame = pd.DataFrame(rows)
    chart = lines(
        frame,
        x="mean",
        y="share",
        color=series_color(frame["setting"].drop_duplicates(), "setting"),
        x_title="Posterior mean of beta, log-odds",
        y_title="Share of slices",
        tooltip=tooltips(setting="Setting", mean="Mean|+.3f", share="Share below|.2f"),
        domain=(0, 1),
        points=False,
    )
    return layered(chart, dashed_lines("limit", -THRESHOLD, THRESHOLD))


def power_curves(power: list[Power]) -> alt.LayerChart:
    """Power to find `effect_size` against the number of subsamples, a line per cell."""
    rows = []
    for row in power:
        components = VarianceComponents(number(row.between_tasks_sd), number(row.within_task_sd))
        for subsamples in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
            value = detection_power(row.effect_size, components, row.tasks, subsamples)
            cell = f"{row.experiment}, {row.language_model}, m={row.m}, n={row.n}"
            rows.append({"model": row.language_model, "cell": cell, "subsamples": subsamples, "power": value})
    frame = pd.DataFrame(rows)
    chart = lines(
        frame,
        x="subsamples",
        y="power",
        detail="cell",
        color=series_color(frame["model"].drop_duplicates(), "model"),
        x_title="Subsamples per task",
        y_title="Power",
        tooltip=tooltips(cell="Cell", subsamples="Subsamples", power="Power|.2f"),
        log_x=True,
        domain=(0, 1),
        points=False,
    )
    for layer in chart.layer:
        layer.encoding.x.axis = alt.Axis(values=[1, 10, 100, 1000], format="d", grid=True)
    return layered(chart, dashed_lines("goal", 0.8, channel="y"))


def base_by_n(summary: BiasSummary) -> alt.LayerChart:
    """Base accuracy against n, a line a language model and m; mixed provenance is a filled dot."""
    known = summary.trials.dropna(subset=["base"])
    known = known.assign(base=known["base"] / known["total"])
    keys = ["experiment", "language_model", "m", "n"]
    means = known.groupby([*keys, "task"])["base"].mean().groupby(keys).mean().reset_index()
    means["line"] = [f"{row.language_model}, m={row.m}" for row in means.itertuples()]
    return lines(
        means,
        x="n",
        y="base",
        color=series_color(means["line"].drop_duplicates(), "line"),
        detail="experiment",
        x_title="n",
        y_title="Base accuracy",
        tooltip=tooltips(experiment="Experiment", line="Line", n="n", base="Base accuracy|.4f"),
    )
