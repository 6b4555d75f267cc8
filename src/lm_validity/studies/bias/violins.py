"""Distributions on the bias page: split violins by task, and ridges of the posterior predictive differences."""

import json
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.pages.figures import dashed_lines, listed_color, tooltips
from lm_validity.pages.page import Figure
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.summary import BiasSummary

EFFECT_COLORS = {"boost": "#2f7ec0", "bias": "#d55e00"}
VIOLIN_POINTS = 25
VIOLIN_REACH = 0.5  # accuracy differences beyond it are cut, as in the paper's figures


def violins(summary: BiasSummary) -> list[Figure]:
    """One figure a language model and experiment: split violins by task, the setting chosen from a list."""
    several = len(summary.experiments) > 1
    found: list[Figure] = []
    for (experiment, name), trials in summary.trials.groupby(["experiment", "language_model"]):
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
    axis = _row_axis(tasks)
    y = alt.Y("edge:Q", title=None, axis=axis, scale=alt.Scale(domain=[len(tasks) - 0.4, -0.6], nice=False))
    base = alt.Chart(alt.InlineData(values=rows)).transform_filter("datum.setting == setting_shown")
    x_scale = alt.Scale(domain=[-VIOLIN_REACH, VIOLIN_REACH])
    tips = tooltips(task="Task", effect="Effect", mean="Mean|+.4f", trials="Subsamples")
    area = base.transform_flatten(["x", "edge"]).mark_area(opacity=0.75, interpolate="monotone", clip=True)
    area = area.encode(
        x=alt.X("x:Q", title="Accuracy difference", scale=x_scale),
        y=y,
        y2=alt.Y2("line:Q"),
        color=listed_color("effect", EFFECT_COLORS),
        detail="task:N",
        tooltip=tips,
    )
    mean = base.mark_tick(thickness=2, size=11, color="#444").encode(
        x=alt.X("mean:Q", scale=x_scale), y=alt.Y("middle:Q", axis=axis), tooltip=tips
    )
    chart = alt.layer(dashed_lines("zero", 0), area, mean).add_params(pick)
    return chart.properties(width="container", height=max(27 * len(tasks), 90))


def predictive_ridges(summary: BiasSummary) -> alt.LayerChart:
    """Densities of the posterior predictive differences, a row per setting, under the headline formula."""
    labels = list(setting_labels(summary).items())
    rows = []
    for line, (key, label) in enumerate(labels):
        for fit in summary.posterior:
            if (fit.experiment, fit.m, fit.n) == key and fit.formula == summary.headline_formula:
                shape = _violin(fit.difference_draws, line, "boost", reach=0.85)
                rows.append({"setting": label, "effect": fit.effect, "mean": fit.difference_mean, **shape})
    axis = _row_axis([label for _, label in labels])
    y = alt.Y("edge:Q", title=None, axis=axis, scale=alt.Scale(domain=[len(labels) - 0.7, -1.0], nice=False))
    areas = alt.Chart(alt.InlineData(values=rows)).transform_flatten(["x", "edge"])
    areas = areas.mark_area(opacity=0.75, interpolate="monotone").encode(
        x=alt.X("x:Q", title="Average accuracy difference"),
        y=y,
        y2=alt.Y2("line:Q"),
        color=listed_color("effect", EFFECT_COLORS),
        detail="setting:N",
        tooltip=tooltips(setting="Setting", effect="Effect", mean="Mean|+.4f"),
    )
    return alt.layer(dashed_lines("zero", 0), areas).properties(width="container", height=44 * len(labels) + 20)


def _violin(differences: np.ndarray, line: int, effect: str, reach: float = 0.44) -> dict[str, Any]:
    """A kernel density as the edge of one half of a violin at the height `line`: the boost's is above it."""
    spread = differences.std(ddof=1) if len(differences) > 1 else 0.0
    width = spread * len(differences) ** -0.2 or 0.004  # Scott's rule; a narrow spike where nothing varies
    grid = np.linspace(differences.min() - 3 * width, differences.max() + 3 * width, VIOLIN_POINTS)
    density = stats.norm.pdf((grid[:, None] - differences) / width).sum(axis=1)
    side = -reach if effect == "boost" else reach  # the axis points down
    edge = line + side * density / density.max()
    return {
        "x": [round(float(value), 5) for value in grid],
        "edge": [round(float(value), 3) for value in edge],
        "line": line,
        "middle": line + side / 2,
    }


def _row_axis(names: list[str]) -> alt.Axis:
    """Names at the heights 0, 1, 2, …"""
    labels = f"{json.dumps([str(name) for name in names])}[datum.value]"
    return alt.Axis(values=list(range(len(names))), labelExpr=labels, grid=True, gridDash=[1, 3], labelOverlap=False)


def setting_label(experiment: str, m: int, n: int, *, several: bool) -> str:
    """How figures name a setting; the experiment only where there are several."""
    return f"{experiment}: m={m}, n={n}" if several else f"m={m}, n={n}"


def setting_labels(summary: BiasSummary) -> dict[tuple[str, int, int], str]:
    """Label by (experiment, m, n), sorted."""
    several = len(summary.experiments) > 1
    keys = {(cell.experiment, cell.m, cell.n) for cell in summary.cells}
    return {key: setting_label(*key, several=several) for key in sorted(keys)}
