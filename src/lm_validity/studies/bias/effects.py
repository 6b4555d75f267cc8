"""Effects without a model: by cell, by task, with the stops on their width, tests by task, common draws, and power.

Effects are fractions of accuracy: boost = accuracy(extra) - accuracy(base), bias = accuracy(test) - accuracy(extra).
Differences are those of integer counts, so a task without a difference is exactly 0. Trials that lack an arm of an
effect do not count for that effect. `trials` is the frame of `trials.pair_arms` throughout.
"""

import json
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.config.plan import BiasPlan
from lm_validity.errors import InputError
from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, is_known, known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Part, Section, Table
from lm_validity.studies.bias.import_published import MAJORITY
from lm_validity.studies.bias.statistics.effects import (
    LEVEL,
    ONE_TASK,
    ROUNDING,
    MeanOverTasks,
    common_subsamples,
    excluded_beyond,
    mean_over_tasks,
    sign_flip_p,
    smallest_detectable_shift,
)
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.trials import ARMS, CELL, CHANGE, SETTING, Study
from lm_validity.words import count, decimal, with_names

EFFECT_COLORS = {"boost": "#2f7ec0", "bias": "#d55e00"}


# ----------------------------------------------------------------------------------------------------------------------
# Means over cells and over tasks.


def without_arms(effect: str) -> Missing:
    """Why an effect is unknown where no trial has both its arms."""
    return Missing(f"No trial there has the arms {' and '.join(reversed(EFFECTS[effect]))}.")


def with_difference(trials: pd.DataFrame, effect: str) -> pd.DataFrame:
    """The trials with both arms of `effect`, its `change` in right answers and its `difference` of accuracies."""
    treatment, control = EFFECTS[effect]
    complete = trials.dropna(subset=[treatment, control])
    change = complete[treatment] - complete[control]
    return complete.assign(change=change, difference=change / complete["total"])


def task_means(trials: pd.DataFrame, effect: str, keys: list[str]) -> pd.DataFrame:
    """Mean `effect` and number of `trials` by `keys`: the difference of the counts over the observations."""
    groups = with_difference(trials, effect).groupby(keys)
    means = groups.agg(change=("change", "sum"), total=("total", "sum"), trials=("change", "size"))
    means[effect] = means["change"] / means["total"]
    return means[[effect, "trials"]].reset_index()


def cell_effects(trials: pd.DataFrame) -> pd.DataFrame:
    """The paper's table 1, by language model, m and n: the mean of the task means, and their standard error.

    That is their standard deviation over the root of the number of tasks. Where every task has as many subsamples, the
    mean is that over all trials; elsewhere that would let the tasks with most subsamples decide, which are the noisiest
    ones where tasks stop on a width.

    `subsamples` (the largest number that a task has), `tasks`, `trials`: what the cell holds, whatever the arms. The
    same with `boost_` and `bias_` before them: what has both arms of the effect, on which its mean rests.
    """
    sizes = {"subsamples": "max", "tasks": "size", "trials": "sum"}  # of a cell, from its tasks' numbers of trials
    cells = trials.groupby([*CELL, "task"]).size().groupby(CELL).agg(**sizes).reset_index()
    for effect in EFFECTS:
        by_task = task_means(trials, effect, [*CELL, "task"]).groupby(CELL)
        means = by_task[effect].agg(["mean", "sem"]).set_axis([f"{effect}_mean", f"{effect}_se"], axis=1)
        counts = by_task["trials"].agg(**sizes).add_prefix(f"{effect}_")
        cells = cells.merge(means.join(counts).reset_index(), "left", CELL)
        cells[counts.columns] = cells[counts.columns].fillna(0).astype("int64")
        for name in means.columns:
            cells[name] = [
                known(value, ONE_TASK if tasks else without_arms(effect).reason)
                for value, tasks in zip(cells[name], cells[f"{effect}_tasks"], strict=True)
            ]
    values = [f"{effect}_{value}" for effect in EFFECTS for value in ("mean", "se")]
    return cells[[*CELL, *values, *(name for name in cells.columns if name not in (*CELL, *values))]]


def task_effects(trials: pd.DataFrame) -> pd.DataFrame:
    """Means by (experiment, task), every one of its `cells` (language model, m, n) weighing the same.

    Weighting trials instead would let the cells with small n, which have most subsamples, decide: in the published
    data 10 instead of 12 tasks then have a positive bias.
    """
    keys = ["experiment", "task"]
    tasks = trials[[*keys, *CELL[1:]]].drop_duplicates().groupby(keys).size().reset_index(name="cells")
    for effect in EFFECTS:
        means = task_means(trials, effect, [*CELL, "task"]).groupby(keys)[effect].mean().reset_index()
        tasks = tasks.merge(means, "left", keys)
        tasks[effect] = [known(value, without_arms(effect).reason) for value in tasks[effect]]
    return tasks[[*keys, *EFFECTS, "cells"]]


def headline(tasks: pd.DataFrame) -> dict[str, dict[str, MeanOverTasks | Missing]]:
    """By experiment and effect: the mean over its tasks (`task_effects`)."""
    means: dict[str, dict[str, MeanOverTasks | Missing]] = {}
    for experiment, rows in tasks.groupby("experiment"):
        known_of = {effect: np.array([value for value in rows[effect] if is_known(value)]) for effect in EFFECTS}
        means[str(experiment)] = {
            effect: mean_over_tasks(values) if len(values) else without_arms(effect)
            for effect, values in known_of.items()
        }
    return means


def cell_section(study: Study) -> Part:
    """Means by language model, m and n; what each effect rests on only where that is not all that the cell holds."""
    frame = cell_effects(study.trials)
    quantities = [f"{effect}_{size}" for effect in EFFECTS for size in ("subsamples", "tasks", "trials")]
    complete = all((frame[name] == frame[name.partition("_")[2]]).all() for name in quantities)
    caption = "Means and standard errors over task means: every task has the same weight."
    table = Table(
        "cells",
        "Means by language model, m and n",
        frame.drop(columns=quantities) if complete else frame,
        formats=dict.fromkeys(["boost_mean", "bias_mean"], CHANGE) | dict.fromkeys(["boost_se", "bias_se"], ".4f"),
        caption=caption if complete else f"{caption} The figures of an effect use the trials that have both its arms.",
    )
    biases = frame["bias_mean"].map(number).dropna()
    finding = ""
    if len(biases):
        finding = f"The bias lies between {decimal(biases.min(), 4, signed=True)} and "
        finding += f"{decimal(biases.max(), 4, signed=True)} in {count(len(biases), 'cell')}."
    explanation = (
        "There are three arms: base (no pretraining), extra (pretraining on other text from the same source) and test "
        "(pretraining on the test set's own text). The boost is accuracy under extra minus accuracy under base. The "
        "bias is accuracy under test minus accuracy under extra. m labelled examples train the classifier, n texts are "
        "pretrained on, and n test items are scored."
    )
    section = Section(
        "By language model, m and n", finding, tables=[table], explanation=explanation, hint="the cells of the study"
    )
    return Part({"cells": frame.to_dict("records")}, section)


# ----------------------------------------------------------------------------------------------------------------------
# One task by itself: its mean effect with an interval over subsamples, and where it stops on the width of that.

ONE_SUBSAMPLE = Missing(
    Reason("One subsample has the two arms: the interval of a task is over subsamples.", ReasonCode.TOO_FEW)
)
NO_SPREAD = Missing(
    Reason("All subsamples have the same difference: without a spread there is no interval.", ReasonCode.NO_INTERVAL)
)
VIOLIN_POINTS = 25
VIOLIN_REACH = 0.5  # accuracy differences beyond it are cut, as in the paper's figures


@dataclass(frozen=True)
class TaskEffect:
    """Mean of one task over its cells, which weigh the same; the interval is over subsamples, the random draws.

    excluded_beyond: effects of this size or larger, up or down, are excluded at the 5% level, for this task.
    """

    experiment: str
    task: str
    effect: str
    mean: float
    interval: tuple[float, float] | Missing
    excluded_beyond: float | Missing
    cells: int
    subsamples: int
    trials: int


def effects_by_task(trials: pd.DataFrame, plan: BiasPlan | None = None) -> list[TaskEffect]:
    """Effects by (experiment, task), of trials with both arms.

    Every one of the C cells (language model, m, n) weighs the same. With d a trial's difference, n_c the trials of a
    cell and S the number of subsamples,

        mean ± t(.975, S - 1) · √(S / (S - 1) Σ_s u_s²),   u_s = Σ_c (d_cs - mean_c) / (C n_c)

    the cluster-robust error of the mean, subsamples being the clusters: language models share those of a number.

    With a `plan`, the bias' interval of a task that has not all subsamples is at least as wide as the width
    that it stops at, and what is excluded beyond it as much wider. The stop selects intervals that are narrow by
    chance. At this width the interval holds the truth at least as often as it says (docs/reference/coverage.md).
    """
    rows, present = [], _subsamples_there(trials)
    for effect in EFFECTS:
        for (experiment, task), group in with_difference(trials, effect).groupby(["experiment", "task"]):
            by_cell, apart = group.groupby(CELL)["difference"], _apart(group)
            mean, parts = float(by_cell.mean().mean()), apart.groupby(group["subsample"]).sum().to_numpy()
            key = str(experiment), str(task)
            least = plan.half_width if plan and effect == "bias" and plan.may_stop(*key, present[key]) else 0.0
            bounds = interval_over_subsamples(mean, parts, least)
            rows.append(TaskEffect(*key, effect, mean, *bounds, by_cell.ngroups, len(parts), len(group)))
    return rows


def _apart(trials: pd.DataFrame) -> pd.Series:
    """Of each trial of a task: (d_cs - mean_c) / (C n_c), whose sums over cells are the u_s."""
    by_cell = trials.groupby(CELL)["difference"]
    return (trials["difference"] - by_cell.transform("mean")) / (by_cell.ngroups * by_cell.transform("size"))


def _subsamples_there(trials: pd.DataFrame) -> dict[tuple[str, str], int]:
    """By (experiment, task): how many subsamples have a trial, whatever its arms."""
    result: dict[tuple[str, str], int] = trials.groupby(["experiment", "task"])["subsample"].nunique().to_dict()
    return result


class MeanInterval(NamedTuple):
    """The t interval of a mean over subsamples, and what is excluded beyond it."""

    interval: tuple[float, float] | Missing
    excluded_beyond: float | Missing


def interval_over_subsamples(mean: float, parts: np.ndarray, least: float) -> MeanInterval:
    """The interval of the mean, of half-width `least` or more; `parts`: u (subsamples,)."""
    number = len(parts)
    if number < 2 or np.abs(parts).max() <= ROUNDING:
        reason = ONE_SUBSAMPLE if number < 2 else NO_SPREAD
        return MeanInterval(reason, reason)
    quantile = float(stats.t.ppf(1 - LEVEL / 2, number - 1))
    error = max(float(np.sqrt(number / (number - 1) * (parts**2).sum())), least / quantile)
    reach = quantile * error
    return MeanInterval((mean - reach, mean + reach), excluded_beyond(mean, error, number))


def least_half_width(trials: pd.DataFrame, limit: int) -> float:
    """Half-width of a task's bias that cells with fewer subsamples than the task leave, however many the others get.

    `trials` of one task. Those cells have all of theirs. This is the interval of `effects_by_task` with the u_s over
    them alone, as if the other cells had no error, and with the S = `limit` that the task can have. 0 without such
    cells.
    """
    complete = with_difference(trials, "bias")
    sizes = complete.groupby(CELL)["difference"].transform("size")
    full = complete[sizes < complete["subsample"].nunique()]
    if full.empty:
        return 0.0
    parts = _apart(complete).loc[full.index].groupby(full["subsample"]).sum().to_numpy()
    return float(stats.t.ppf(1 - LEVEL / 2, limit - 1) * np.sqrt(limit / (limit - 1) * (parts**2).sum()))


def task_section(study: Study, by_task: list[TaskEffect]) -> Part:
    """Every task, with the distribution of its effects over subsamples."""
    frame = task_effects(study.trials)
    order = frame.assign(bias=frame["bias"].map(number)).sort_values(["experiment", "bias"], ascending=[True, False])
    violins: list[Figure] = []
    caption = "Density over subsamples, each violin as high as the others; boost above, bias below the line."
    for (experiment, name), trials in study.trials.groupby(["experiment", "language_model"]):
        chart = _violins(trials)
        if chart is not None:
            figure_name = f"violins_{len(violins) + 1}"
            violins.append(Figure(figure_name, f"{study.prefix(experiment)}{name}", chart, caption, min_width=360))

    def sentence(rows: pd.DataFrame) -> str:
        """How many tasks have a positive bias, and the largest in size."""
        biases = rows.set_index("task")["bias"].map(number).dropna()
        if biases.empty:
            return "No task has both arms of the bias."
        largest = biases.abs().idxmax()
        return (
            f"{(biases > 0).sum()} of {count(len(biases), 'task')} have a positive bias. The largest in size is "
            f"{decimal(biases[largest], 4, signed=True)} ({largest})."
        )

    rows_shown = frame.loc[order.index]
    for effect in EFFECTS:
        rows = {(row.experiment, row.task): row for row in by_task if row.effect == effect}
        task_rows = [rows.get(key) for key in zip(rows_shown["experiment"], rows_shown["task"], strict=True)]
        for name in ("excluded_beyond", "subsamples", "trials"):
            rows_shown[f"{effect}_{name}"] = [getattr(row, name) if row else without_arms(effect) for row in task_rows]
    section = Section(
        "Task by task",
        hint="distributions over draws of the texts",
        finding=study.sentences(frame, sentence),
        explanation=(
            "Each violin is the distribution over subsamples: the boost above the line, the bias below it. "
            "Subsamples differ in training set, test set and training noise. That is why single experiments disagree."
        ),
        figures=violins,
        tables=[
            Table(
                "tasks",
                "Boost and bias by task",
                rows_shown,
                formats=dict.fromkeys(EFFECTS, CHANGE) | {f"{effect}_excluded_beyond": ".4f" for effect in EFFECTS},
                caption="Every cell (language model, m, n) has the same weight. Excluded beyond: one-sided tests at 5% "
                "exclude effects of this size or larger.",
            )
        ],
    )
    return Part({"tasks": frame.to_dict("records"), "by_task": by_task}, section)


def _violins(trials: pd.DataFrame) -> alt.LayerChart | None:
    """Split violins by task, the setting chosen from a list; None where no trial has two arms."""
    names = sorted(trials["task"].unique())
    rows: list[dict[str, object]] = []
    for (m, n, task), group in trials.groupby(["m", "n", "task"]):
        for effect in EFFECTS:
            differences = with_difference(group, effect)["difference"].to_numpy()
            if len(differences):
                row = {"setting": f"m={m}, n={n}", "task": task, "effect": effect, "mean": float(differences.mean())}
                rows.append({**row, **half_violin(differences, names.index(task), effect), "trials": len(differences)})
    if not rows:
        return None
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    pick = alt.param(
        name="setting_shown", value=settings[-1], bind=alt.binding_select(options=settings, name="Setting ")
    )
    base = alt.Chart(figures.inline(rows)).transform_filter("datum.setting == setting_shown")
    x_scale = alt.Scale(domain=[-VIOLIN_REACH, VIOLIN_REACH])
    x = alt.X("x:Q", title="Accuracy difference", scale=x_scale)
    area = violin_areas(base, "task", names, 0.6, x, trials="Subsamples")
    mean = base.mark_tick(thickness=2, size=11, color="#444").encode(
        x=alt.X("mean:Q", scale=x_scale), y=alt.Y("middle:Q", axis=_row_axis(names))
    )
    chart = alt.layer(figures.dashed_lines("zero", 0), area, mean).add_params(pick)
    return chart.properties(width="container", height=max(27 * len(names), 90))


def violin_areas(chart: alt.Chart, row: str, names: list[str], above: float, x: alt.X, **tips: str) -> alt.Chart:
    """The chart's data, which are of `half_violin`, as areas; its field `row` is one of `names`, the rows from the top.

    `above`: the room over the first row.
    """
    scale = alt.Scale(domain=[len(names) - 0.4, -above], nice=False)
    area = chart.transform_flatten(["x", "edge"]).mark_area(opacity=0.75, interpolate="monotone", clip=True)
    return area.encode(
        x=x,
        y=alt.Y("edge:Q", title=None, axis=_row_axis(names), scale=scale),
        y2=alt.Y2("line:Q"),
        color=figures.listed_color("effect", EFFECT_COLORS),
        detail=alt.Detail(f"{row}:N"),
        tooltip=figures.tooltips(**{row: row.capitalize()}, effect="Effect", mean="Mean|+.4f", **tips),
    )


def half_violin(differences: np.ndarray, line: int, effect: str, reach: float = 0.44) -> dict[str, object]:
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


# states of a task in a study whose tasks stop on the width of their interval
STOPPED, OPEN, ALL, PLANNED = "stopped", "too wide", "all subsamples", "planned, not there yet"
HOPELESS = "cannot be narrow"  # cells that have all their subsamples keep it above the width


@dataclass(frozen=True)
class TaskStop:
    """How far a task is in a study whose tasks stop on the width of their interval.

    `subsamples` with both arms of the bias, of the experiment's `most`; half_width: of the interval as it was looked
    at, 0 where all differences are the same; stop_at: the width to reach. state: one of the five above.
    """

    experiment: str
    task: str
    subsamples: int
    most: int
    half_width: float | Missing
    stop_at: float
    state: str


def task_stops(trials: pd.DataFrame, plan: BiasPlan | None) -> list[TaskStop]:
    """How far each task with a bias is; none without a plan.

    Only the width of the bias' interval is read, never where it lies. Raises InputError where the trials are not those
    of the plan's experiments.
    """
    if plan is None:
        return []
    if strange := sorted(set(trials["experiment"]) - set(plan.subsamples)):
        raise InputError(
            f"experiment {strange[0]!r} of the trials is not in the configuration.",
            f"give the configuration that they were made with; it has {', '.join(plan.subsamples)}.",
        )
    present, stops = _subsamples_there(trials), []
    for row in effects_by_task(trials):
        if row.effect != "bias":
            continue
        key, maximum = (row.experiment, row.task), plan.subsamples[row.experiment]
        width: float | Missing
        if isinstance(row.interval, Missing):
            width = 0.0 if row.interval.code is ReasonCode.NO_INTERVAL else row.interval
        else:
            width = (row.interval[1] - row.interval[0]) / 2
        task_trials = trials[(trials["experiment"] == row.experiment) & (trials["task"] == row.task)]
        if present[key] < plan.planned(*key):
            state = PLANNED
        elif not plan.may_stop(*key, present[key]):
            state = ALL
        elif is_known(width) and width <= plan.half_width:
            state = STOPPED
        else:
            state = HOPELESS if least_half_width(task_trials, maximum) > plan.half_width else OPEN
        stops.append(TaskStop(*key, row.subsamples, maximum, width, plan.half_width, state))
    return stops


def stop_words(stop: TaskStop) -> str:
    """`news: 15 of 100 subsamples, stopped because the interval is ±0.0098`."""
    if isinstance(stop.half_width, Missing):
        reason = "the interval is unknown"
    elif stop.half_width == 0:
        reason = "all differences are the same"
    else:
        reason = f"the interval is ±{stop.half_width:.4f}"
    reasons = {
        STOPPED: f", stopped because {reason}",
        OPEN: f", needs more because {reason}",
        ALL: f", which is all; {reason}",
        HOPELESS: f", stopped although {reason}: cells that have all their subsamples keep it too wide",
        PLANNED: f", more are planned but not finished; {reason}",
    }
    return f"{stop.task}: {stop.subsamples} of {stop.most} subsamples{reasons[stop.state]}"


def stop_section(study: Study) -> Part:
    """How many subsamples each task has, and why it has no more."""
    stops_of_tasks = task_stops(study.trials, study.plan)
    if not stops_of_tasks:
        return Part({"stops": []})

    def sentence(rows: pd.DataFrame) -> str:
        """How many tasks stopped before all of their subsamples."""
        if rows.empty:
            return ""
        text = (
            f"{(rows['state'] == STOPPED).sum()} of {count(len(rows), 'task')} stopped before all "
            f"{rows['most'].iloc[0]} subsamples. The mean number is {rows['subsamples'].mean():.1f}."
        )
        waiting = {
            "Still too wide: {}. `lm-validity plan next` adds a batch.": OPEN,
            "Cells that have all their subsamples keep these too wide, so they get no more: {}.": HOPELESS,
            "Planned batches are not finished: {}.": PLANNED,
        }
        names = {words: rows.loc[rows["state"] == state, "task"].tolist() for words, state in waiting.items()}
        return " ".join([text, *with_names(names, 6)])

    frame, stop_at = pd.DataFrame(map(vars, stops_of_tasks)), f"{stops_of_tasks[0].stop_at:g}"
    section = Section(
        "Tasks that stopped",
        hint="subsamples of each",
        finding=study.sentences(frame, sentence),
        explanation=(
            f"A task gets further subsamples until the 95% interval of its bias is ±{stop_at} or narrower. Only the "
            "width decides, never the sign of the bias, its size or a p-value. If subsamples are added until an "
            "interval is narrow, it is slightly too often too narrow. The table has the width on which the decision "
            "was made. In summary.json and on cards, the interval of a task that may stop is at least "
            f"±{stop_at} wide."
        ),
        tables=[
            Table(
                "task_stops",
                "Subsamples by task",
                frame,
                formats={"half_width": ".4f", "stop_at": ".4f"},
                caption="Half-width: that of the 95% interval over subsamples on which the decision was made.",
            )
        ],
    )
    return Part({"stops": stops_of_tasks}, section)


# ----------------------------------------------------------------------------------------------------------------------
# Exact tests, task by task.


def task_tests(trials: pd.DataFrame) -> pd.DataFrame:
    """Exact sign-flip tests by (experiment, language model, m, n, task, effect).

    Adjusted by Benjamini & Hochberg (1995) over the tasks of a cell, each effect by itself. smallest_detectable: the
    mean difference that q < .05 finds four times out of five, were this the cell's only task with an effect.
    """
    frames, keys = [], [*CELL, "task"]
    for effect in EFFECTS:
        by_task = with_difference(trials, effect).groupby(keys)
        tested = by_task["change"].agg(lambda values: sign_flip_p(values.to_numpy())).rename("p").reset_index()
        tested["p_adjusted"] = tested.groupby(CELL)["p"].transform(stats.false_discovery_control)
        levels = 0.05 / tested.groupby(CELL)["p"].transform("size")  # what q < .05 asks of a test that stands alone
        shares = [values.to_numpy() for _, values in by_task["difference"]]
        tested["smallest_detectable"] = list(map(smallest_detectable_shift, shares, levels))
        means = task_means(trials, effect, keys).rename(columns={effect: "mean"})
        frames.append(tested.merge(means, "left", keys).assign(effect=effect))
    columns = [*keys, "effect", "p", "p_adjusted", "smallest_detectable", "mean", "trials"]
    return pd.concat([frame for frame in frames if len(frame)], ignore_index=True)[columns]


def test_section(study: Study) -> Part:
    """Exact sign-flip tests, task by task."""
    frame = task_tests(study.trials)
    of_bias = frame[frame["effect"] == "bias"]
    section = Section(
        "Tests by task",
        hint="exact, corrected",
        finding=study.sentences(frame, _tests_sentence),
        explanation=(
            "Each task of a cell has an exact one-sided sign-flip test. It asks: if the two arms were exchangeable, "
            "how often would random signs of the subsamples' differences give a mean at least as large? All 2^K sign "
            "patterns are counted. q is p adjusted over the tasks of a cell by the method of Benjamini and Hochberg."
        ),
        figures=[
            Figure(
                "task_bias",
                "Mean bias by task and cell",
                _heatmap(study, of_bias),
                "Hover for p and q; q < .05 is marked ●.",
                wide=True,
                min_width=640,
            )
        ]
        if len(of_bias)
        else [],
        tables=[
            Table(
                "permutation",
                "Sign-flip tests",
                frame[[*CELL, "task", "effect", "mean", "trials", "p", "p_adjusted", "smallest_detectable"]],
                formats={"mean": CHANGE, "p": "p", "p_adjusted": "p", "smallest_detectable": ".4f"},
                labels={"p_adjusted": "q"},
                caption="Smallest detectable: the mean difference for which q < .05 four times out of five, if this "
                "were the cell's only task with an effect.",
                folded=True,
            )
        ],
    )
    return Part({"permutation": frame.drop(columns=["mean", "trials"]).to_dict("records")}, section)


def _tests_sentence(tested: pd.DataFrame) -> str:
    parts = []
    for effect in ("bias", "boost"):
        rows = tested[tested["effect"] == effect]
        if rows.empty:
            continue
        below, smallest = (rows["p_adjusted"] < 0.05).sum(), rows["p_adjusted"].min()
        p_words = f"{smallest:.3f}" if smallest >= 0.001 else "below .001"
        parts.append(f"{below} of {count(len(rows), 'test')} of a {effect} have q < .05 (smallest {p_words}).")
        sizes = rows["smallest_detectable"].map(number).dropna()
        if not below and sizes.empty:
            parts.append("What these tests could have found is unknown, or they could have found nothing.")
        elif not below:
            parts.append(
                f"Such a test detects an effect of {sizes.median():.4f} in a single task with 80% power (median "
                f"over {count(len(sizes), 'test')}; {sizes.min():.4f} to {sizes.max():.4f}), so smaller effects may "
                "exist."
            )
    return " ".join(parts)


def _heatmap(study: Study, tested: pd.DataFrame) -> alt.LayerChart:
    """Mean bias by task and cell."""
    labels = [f"{row.language_model}, {study.label(row.experiment, row.m, row.n)}" for row in tested.itertuples()]
    names, columns = sorted(tested["task"].unique()), list(dict.fromkeys(labels))
    all_rows = pd.MultiIndex.from_product([names, columns], names=["task", "cell"])
    frame = tested.assign(cell=labels).set_index(["task", "cell"])[["mean", "p", "p_adjusted", "trials"]]
    frame = frame.reindex(all_rows).reset_index()
    reach = max(float(np.nanquantile(frame["mean"].abs(), 0.98)), 1e-3)
    chart = figures.heatmap(
        frame,
        x="cell",
        y="task",
        value="mean",
        title="Mean bias",
        x_order=columns,
        y_order=names,
        tooltip=figures.tooltips(
            task="Task", cell="Cell", mean="Mean bias|+.4f", p="p|.4f", p_adjusted="q|.4f", trials="Subsamples"
        ),
        domain=(-reach, reach),
        scheme="redblue",
    )
    marked = alt.Chart(figures.chart_data(frame[frame["p_adjusted"] < 0.05]))
    return figures.layered(
        chart, marked.mark_text(text="●", color="#111", fontSize=8).encode(x=alt.X("cell:N"), y=alt.Y("task:N"))
    )


# ----------------------------------------------------------------------------------------------------------------------
# What lies behind the means: effects that language models share, and accuracies by arm.


def model_correlations(trials: pd.DataFrame) -> pd.DataFrame:
    """Whether two language models show an effect in the same subsamples, by setting, effect and pair of models.

    See `statistics.effects.common_subsamples`. `tasks` with at least three common subsamples whose differences vary,
    `subsamples` of them together. null_interval: of the mean, 95%, where subsamples have nothing in common; p:
    one-sided, greater. Subsamples are matched by task and number. Those that had different test sets in the two are
    left out, where the tables say so.
    """
    rows = []
    for (experiment, m, n), group in trials.groupby(SETTING):
        for effect in EFFECTS:
            pairs = with_difference(group, effect)
            by_model = {str(name): group_rows for name, group_rows in pairs.groupby("language_model")}
            for first, second in combinations(by_model, 2):
                pairs = by_model[first].merge(by_model[second], on=["task", "subsample"])
                left_hashes, right = pairs["test_hash_x"], pairs["test_hash_y"]
                pairs = pairs[(left_hashes == right) | left_hashes.isna() | right.isna()]
                shared = common_subsamples(
                    [
                        group_rows[["difference_x", "difference_y"]].to_numpy().T
                        for _, group_rows in pairs.groupby("task")
                    ]
                )
                values: list[object] = [0, len(pairs), shared, shared, shared]
                if not isinstance(shared, Missing):
                    values = [shared.tasks, len(pairs), shared.correlation, shared.null_interval, shared.p]
                rows.append([str(experiment), int(m), int(n), effect, first, second, *values])
    columns = ["effect", "language_model", "other", "tasks", "subsamples", "correlation", "null_interval", "p"]
    return pd.DataFrame(rows, columns=[*SETTING, *columns])


def accuracies(trials: pd.DataFrame) -> pd.DataFrame:
    """Quantiles of accuracy over subsamples, by cell, task and arm, beside the share of the largest class."""
    share = trials["test_hash"].astype("string").str.extract(MAJORITY, expand=False).astype("float64")
    arms = [
        trials[[*CELL, "task"]].assign(arm=arm, accuracy=trials[arm] / trials["total"], majority=share) for arm in ARMS
    ]
    frame = pd.concat(arms, ignore_index=True).dropna(subset="accuracy")
    frame["below"] = (frame["accuracy"] < frame["majority"]).astype(float).where(frame["majority"].notna())
    groups = frame.groupby([*CELL, "task", "arm"])
    table = groups.agg(subsamples=("accuracy", "size"), mean=("accuracy", "mean"), sd=("accuracy", "std"))
    for name, level in {"lowest": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "highest": 1.0}.items():
        table[name] = groups["accuracy"].quantile(level)
    table = table.assign(majority=groups["majority"].mean(), below_majority=groups["below"].mean()).reset_index()
    return table.drop(columns=["majority", "below_majority"]) if table["majority"].isna().all() else table


def shared_section(study: Study) -> Part:
    """Two tables: effects that language models share, and accuracies by arm."""
    frame = model_correlations(study.trials)
    tested = frame["p"].map(number).dropna()
    ends = [as_columns(interval, "null_low", "null_high") for interval in frame["null_interval"]]
    frame_shown = frame.drop(columns=["null_interval", "p"]).join(pd.DataFrame(ends, columns=["null_low", "null_high"]))
    frame_shown["p"] = frame["p"]
    section = Section(
        "Behind the means",
        hint="draws that models share, accuracies",
        finding=(
            f"{(tested < 0.05).sum()} of {count(len(tested), 'correlation')} of an effect between two language models "
            "over subsamples have p < .05, each by itself (5% of them would, if nothing were shared)."
            if len(tested)
            else "No two language models have the same subsamples, so it is unknown whether effects depend on the draw."
        ),
        explanation=(
            "If the draw of the texts made an effect, subsamples in which one language model shows a large one would "
            "show a large one in another too. The correlation is Spearman's, over the subsamples of a task, mean over "
            "tasks. By chance: the middle 95% of the same mean where the other model's subsamples are in random order "
            "(1,000 permutations)."
        ),
        tables=[
            Table(
                "model_correlations",
                "Effects in the same subsamples of two language models",
                frame_shown,
                formats=dict.fromkeys(["correlation", "null_low", "null_high"], "+.3f") | {"p": "p"},
                labels={"other": "other model", "null_low": "by chance, low", "null_high": "by chance, high"},
                folded=True,
            ),
            Table(
                "accuracy_by_arm",
                "Accuracy by arm",
                accuracies(study.trials),
                formats=dict.fromkeys(["mean", "sd", "lowest", "q25", "median", "q75", "highest", "majority"], ".4f")
                | {"below_majority": ".2f"},
                labels={"majority": "share of the largest class", "below_majority": "subsamples below it (share)"},
                caption="Over the subsamples of a task. A classifier that always answers with the largest class has "
                "that class's share.",
                folded=True,
            ),
        ],
    )
    return Part({"correlations": frame.to_dict("records")}, section)
