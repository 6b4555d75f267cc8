"""Charts of the bias page."""

import altair as alt
import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.reports.bias_analysis import DETECTABLE_BIAS, BiasAnalysis
from lm_validity.reports.figures import (
    CATEGORY_COLORS,
    MISSING_COLOR,
    chart_data,
    heatmap,
    interval_dots,
    lines,
    scatter,
    tooltips,
)
from lm_validity.reports.page import Figure
from lm_validity.statistics.bias_meta import THRESHOLD, MetaAnalysis
from lm_validity.statistics.bias_model import EFFECTS
from lm_validity.statistics.bias_pca import PcaSimulation
from lm_validity.statistics.bias_power import VarianceComponents, detection_power

EFFECT_COLORS = {"boost": "#2f7ec0", "bias": "#d55e00"}
MODEL_FREE = "model-free"
VIOLIN_POINTS = 25
VIOLIN_REACH = 0.5  # accuracy differences beyond it are cut, as in the paper's figures


def _color(names, field: str, title: str | None = None) -> alt.Color:
    names = list(names)
    colors = [CATEGORY_COLORS[index % len(CATEGORY_COLORS)] for index in range(len(names))]
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=names, range=colors), legend=alt.Legend(title=title))


def _setting(experiment: str, m: int, n: int, several: bool) -> str:
    return f"{experiment}: m={m}, n={n}" if several else f"m={m}, n={n}"


def _settings(analysis: BiasAnalysis) -> dict[tuple, str]:
    """Label by (experiment, m, n), sorted."""
    several = analysis.cells["experiment"].nunique() > 1
    keys = analysis.cells[["experiment", "m", "n"]].drop_duplicates().itertuples(index=False, name=None)
    return {key: _setting(*key, several) for key in sorted(keys)}


def answer(analysis: BiasAnalysis, effect: str) -> alt.LayerChart:
    """Posterior predictive differences by formula beside the model-free means, one row a setting."""
    labels = _settings(analysis)
    rows = [
        {
            "setting": labels[fit.experiment, fit.m, fit.n],
            "source": fit.formula,
            "value": fit.difference_mean,
            "low": fit.difference_interval[0],
            "high": fit.difference_interval[1],
        }
        for fit in analysis.fits
        if fit.effect == effect
    ]
    for row in analysis.settings[analysis.settings["effect"] == effect].itertuples():
        error, reach = row.standard_error, stats.t.ppf(0.975, max(row.tasks - 1, 1))
        low, high = (None, None) if error is None else (row.mean - reach * error, row.mean + reach * error)
        label = labels[row.experiment, row.m, row.n]
        rows.append({"setting": label, "source": MODEL_FREE, "value": row.mean, "low": low, "high": high})
    names = [*dict.fromkeys(fit.formula for fit in analysis.fits), MODEL_FREE]
    frame = pd.DataFrame(rows)
    frame["source"] = pd.Categorical(frame["source"], names)
    frame = frame.sort_values("source").astype({"source": str})
    chart = interval_dots(
        frame,
        y="setting",
        value="value",
        low="low",
        high="high",
        title=f"{effect}, in accuracy",
        y_order=list(labels.values()),
        offset="source",
        color=_color(names, "source"),
        tooltip=tooltips(setting="Setting", source="From", value="Mean|+.4f", low="Low|+.4f", high="High|+.4f"),
        zero=True,
        row_height=38,
    )
    return _with_zero(chart)


def _with_zero(chart: alt.LayerChart) -> alt.LayerChart:
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(color=MISSING_COLOR, strokeDash=[4, 4])
    height = chart.height
    return alt.layer(chart, zero.encode(x="zero:Q")).properties(width="container", height=height)


def formula_intervals(analysis: BiasAnalysis, effect: str) -> alt.LayerChart:
    """beta with 89% intervals, one row a setting, by formula."""
    labels = _settings(analysis)
    rows = [
        {
            "setting": labels[fit.experiment, fit.m, fit.n],
            "formula": fit.formula,
            "beta": fit.beta_mean,
            "low": fit.interval[0],
            "high": fit.interval[1],
            "conclusion": {-1: "below zero", 0: "includes zero", 1: "above zero"}[fit.excludes_zero],
        }
        for fit in analysis.fits
        if fit.effect == effect
    ]
    chart = interval_dots(
        pd.DataFrame(rows),
        y="setting",
        value="beta",
        low="low",
        high="high",
        title="beta, log-odds",
        y_order=list(labels.values()),
        offset="formula",
        color=_color(dict.fromkeys(row["formula"] for row in rows), "formula"),
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
    return _with_zero(chart)


def calibration(analysis: BiasAnalysis) -> alt.LayerChart:
    """Predicted against observed accuracy by formula, in the largest setting of the first experiment."""
    fits = [fit for fit in analysis.fits if fit.effect == "bias" and fit.accuracies is not None]
    if not fits:
        return alt.layer(alt.Chart(chart_data(pd.DataFrame())).mark_point()).properties(width="container")
    m, n = max((fit.m, fit.n) for fit in fits if fit.experiment == fits[0].experiment)
    chosen = [fit for fit in fits if (fit.experiment, fit.m, fit.n) == (fits[0].experiment, m, n)]
    frame = pd.concat([fit.accuracies.assign(formula=fit.formula) for fit in chosen])
    return scatter(
        frame,
        x="observed",
        y="predicted",
        color=_color(frame["formula"].drop_duplicates(), "formula"),
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


def violins(analysis: BiasAnalysis) -> list[Figure]:
    """One figure a language model and experiment: split violins by task, the setting chosen from a list."""
    several = analysis.cells["experiment"].nunique() > 1
    found = []
    for (experiment, name), trials in analysis.trials.groupby(["experiment", "language_model"]):
        title = f"{experiment}: {name}" if several else str(name)
        caption = "Density over subsamples, each violin as high as the others; boost above, bias below the line."
        chart = _violin_chart(trials)
        if chart is not None:
            found.append(Figure(f"violins_{len(found) + 1}", title, chart, caption, min_width=360))
    return found


def _violin_chart(trials: pd.DataFrame) -> alt.LayerChart | None:
    tasks = sorted(trials["task"].unique())
    rows = []
    for (m, n, task), group in trials.groupby(["m", "n", "task"]):
        for effect, (treatment, control) in EFFECTS.items():
            differences = ((group[treatment] - group[control]) / group["total"]).dropna().to_numpy()
            if len(differences):
                names = {"setting": f"m={m}, n={n}", "task": task, "effect": effect, "mean": float(differences.mean())}
                rows.append({**names, **_violin(differences, tasks.index(task), effect), "trials": len(differences)})
    if not rows:
        return None
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    pick = alt.param(
        name="setting_shown", value=settings[-1], bind=alt.binding_select(options=settings, name="Setting ")
    )
    labels = "[" + ",".join(repr(str(task)) for task in tasks) + "][datum.value]"
    axis = alt.Axis(values=list(range(len(tasks))), labelExpr=labels, grid=True, gridDash=[1, 3], labelOverlap=False)
    y = alt.Y("edge:Q", title=None, axis=axis, scale=alt.Scale(domain=[len(tasks) - 0.4, -0.6], nice=False))
    colors = alt.Scale(domain=list(EFFECT_COLORS), range=list(EFFECT_COLORS.values()))
    base = alt.Chart(alt.InlineData(values=rows)).transform_filter("datum.setting == setting_shown")
    x_scale = alt.Scale(domain=[-VIOLIN_REACH, VIOLIN_REACH])
    color = alt.Color("effect:N", scale=colors, legend=alt.Legend(title=None))
    tips = tooltips(task="Task", effect="Effect", mean="Mean|+.4f", trials="Subsamples")
    area = base.transform_flatten(["x", "edge"]).mark_area(opacity=0.75, interpolate="monotone", clip=True)
    area = area.encode(
        x=alt.X("x:Q", title="Accuracy difference", scale=x_scale),
        y=y,
        y2=alt.Y2("line:Q"),
        color=color,
        detail="task:N",
        tooltip=tips,
    )
    mean = base.mark_tick(thickness=2, size=11, color="#444").encode(
        x=alt.X("mean:Q", scale=x_scale), y=alt.Y("middle:Q", axis=axis), tooltip=tips
    )
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(color=MISSING_COLOR, strokeDash=[4, 4])
    chart = alt.layer(zero.encode(x="zero:Q"), area, mean).add_params(pick)
    return chart.properties(width="container", height=max(27 * len(tasks), 90))


def _violin(differences: np.ndarray, line: int, effect: str) -> dict:
    """A kernel density as the edge of one half of a violin around the height `line`."""
    spread = differences.std(ddof=1) if len(differences) > 1 else 0.0
    width = max(spread * len(differences) ** -0.2, 0.004)  # Scott's rule; a spike where nothing varies
    grid = np.linspace(differences.min() - 3 * width, differences.max() + 3 * width, VIOLIN_POINTS)
    density = stats.norm.pdf((grid[:, None] - differences) / width).sum(axis=1)
    side = -0.44 if effect == "boost" else 0.44  # the axis points down
    edge = line + side * density / density.max()
    return {
        "x": [round(float(value), 3) for value in grid],
        "edge": [round(float(value), 3) for value in edge],
        "line": line,
        "middle": line + side / 2,
    }


def task_heatmap(analysis: BiasAnalysis, table: pd.DataFrame) -> alt.LayerChart:
    """Mean bias by task and cell."""
    frame = table[table["effect"] == "bias"].copy()
    several = frame["experiment"].nunique() > 1
    frame["cell"] = [
        f"{row.language_model}, {_setting(row.experiment, row.m, row.n, several)}" for row in frame.itertuples()
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
    height = chart.height
    return alt.layer(chart, dots.encode(x="cell:N", y="task:N")).properties(width="container", height=height)


def meta_curves(results: dict[tuple, MetaAnalysis]) -> alt.LayerChart:
    """Cumulative distribution of the slices' posterior means."""
    several = len({key[0] for key in results}) > 1
    shares = np.linspace(0.005, 0.995, 67)
    rows = []
    for key, result in sorted(results.items()):
        label = _setting(*key, several)
        quantiles = np.quantile(result.means, shares)
        rows += [{"setting": label, "mean": q, "share": s} for q, s in zip(quantiles, shares, strict=True)]
    frame = pd.DataFrame(rows)
    chart = lines(
        frame,
        x="mean",
        y="share",
        color=_color(frame["setting"].drop_duplicates(), "setting"),
        x_title="Posterior mean of beta, log-odds",
        y_title="Share of slices",
        tooltip=tooltips(setting="Setting", mean="Mean|+.3f", share="Share below|.2f"),
        domain=(0, 1),
        points=False,
    )
    limits = alt.Chart(alt.InlineData(values=[{"limit": -THRESHOLD}, {"limit": THRESHOLD}]))
    rule = limits.mark_rule(color=MISSING_COLOR, strokeDash=[4, 4]).encode(x="limit:Q")
    height = chart.height
    return alt.layer(chart, rule).properties(width="container", height=height)


def power_curves(power: pd.DataFrame) -> alt.LayerChart:
    """Power to find `DETECTABLE_BIAS` against the number of subsamples, a line a cell."""
    rows = []
    for row in power.itertuples():
        components = VarianceComponents(row.between_tasks_sd, row.within_task_sd)
        for subsamples in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
            value = detection_power(DETECTABLE_BIAS, components, int(row.tasks), subsamples)
            cell = f"{row.experiment}, {row.language_model}, m={row.m}, n={row.n}"
            rows.append({"model": row.language_model, "cell": cell, "subsamples": subsamples, "power": value})
    frame = pd.DataFrame(rows)
    chart = lines(
        frame,
        x="subsamples",
        y="power",
        detail="cell",
        color=_color(frame["model"].drop_duplicates(), "model"),
        x_title="Subsamples per task",
        y_title="Power",
        tooltip=tooltips(cell="Cell", subsamples="Subsamples", power="Power|.2f"),
        log_x=True,
        domain=(0, 1),
        points=False,
    )
    for layer in chart.layer:
        layer.encoding.x.axis = alt.Axis(values=[1, 10, 100, 1000], format="d", grid=True)
    height = chart.height
    rule = alt.Chart(alt.InlineData(values=[{"goal": 0.8}])).mark_rule(color=MISSING_COLOR, strokeDash=[4, 4])
    return alt.layer(chart, rule.encode(y="goal:Q")).properties(width="container", height=height)


def base_by_n(analysis: BiasAnalysis) -> alt.LayerChart:
    """Base accuracy against n, a line a language model and m; mixed provenance is a filled dot."""
    known = analysis.trials.dropna(subset=["base"])
    known = known.assign(base=known["base"] / known["total"])
    keys = ["experiment", "language_model", "m", "n"]
    means = known.groupby([*keys, "task"])["base"].mean().groupby(keys).mean().reset_index()
    means["line"] = [f"{row.language_model}, m={row.m}" for row in means.itertuples()]
    return lines(
        means,
        x="n",
        y="base",
        color=_color(means["line"].drop_duplicates(), "line"),
        detail="experiment",
        x_title="n",
        y_title="Base accuracy",
        tooltip=tooltips(experiment="Experiment", line="Line", n="n", base="Base accuracy|.4f"),
    )


def prior_accuracies(analysis: BiasAnalysis) -> alt.LayerChart:
    """Histogram of accuracies by task, model and arm under the prior."""
    return _histogram(analysis.prior.accuracies[np.isfinite(analysis.prior.accuracies)], "Accuracy", 0.0, 1.0)


def prior_differences(analysis: BiasAnalysis) -> alt.LayerChart:
    """Histogram of average differences under the prior."""
    return _histogram(analysis.prior.differences, "Average accuracy difference", -1.0, 1.0)


def _histogram(values: np.ndarray, title: str, low: float, high: float, bins: int = 40) -> alt.LayerChart:
    number, edges = np.histogram(values, bins=bins, range=(low, high))
    frame = pd.DataFrame({"start": edges[:-1], "end": edges[1:], "share": number / max(number.sum(), 1)})
    bars = alt.Chart(chart_data(frame)).mark_bar(color=CATEGORY_COLORS[0], opacity=0.8)
    bars = bars.encode(
        x=alt.X("start:Q", title=title, bin="binned", axis=alt.Axis(format=".1f")),
        x2="end:Q",
        y=alt.Y("share:Q", title="Share of draws"),
        tooltip=tooltips(start="From|.3f", end="To|.3f", share="Share|.3f"),
    )
    return alt.layer(bars).properties(width="container", height=200)


def pca_curves(results: dict[tuple[int, int], PcaSimulation]) -> alt.LayerChart:
    """Bias of R^2 against n, a line an effective rank, with 95% bands."""
    rows = []
    for (rank, n), result in results.items():
        mean, error = result.bias
        rows.append({"rank": str(rank), "n": n, "bias": mean, "low": mean - 1.96 * error, "high": mean + 1.96 * error})
    frame = pd.DataFrame(rows)
    return lines(
        frame,
        x="n",
        y="bias",
        low="low",
        high="high",
        color=_color(frame["rank"].drop_duplicates(), "rank", "Effective rank"),
        x_title="n",
        y_title="Bias of R²",
        tooltip=tooltips(rank="Rank", n="n", bias="Bias|.3f"),
    )
