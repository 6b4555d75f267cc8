"""Effects without a model: by cell, by task, with the stops on their width, tests by task, common draws, and power.

Effects are fractions of accuracy: boost = accuracy(extra) - accuracy(base), bias = accuracy(test) - accuracy(extra).
Differences are those of integer counts, so a task without a difference is exactly 0. Trials that lack an arm of an
effect do not count for that effect. `trials` is the frame of `trials.pair_arms` throughout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.config.plan import BiasPlan
from lm_validity.errors import InputError
from lm_validity.missing import Missing, Reason, ReasonCode, is_known, known
from lm_validity.results.summary import page_only
from lm_validity.statistics import holm
from lm_validity.studies.bias.import_published import MAJORITY
from lm_validity.studies.bias.statistics.effects import (
    LEVEL,
    ONE_TASK,
    ROUNDING,
    Density,
    JointMean,
    MeanOverTasks,
    common_subsamples,
    detection_power,
    excluded_beyond,
    kernel_density,
    sign_flip_p,
    simultaneous,
    smallest_detectable,
    smallest_detectable_shift,
    subsamples_needed,
    tasks_needed,
    variance_components,
)
from lm_validity.studies.bias.trials import ARMS, CELL, EFFECTS, SETTING

# ----------------------------------------------------------------------------------------------------------------------
# Means over cells and over tasks.


def without_arms(effect: str) -> Missing:
    """Why an effect is unknown where no trial has both its arms."""
    return Missing(f"No trial there has the arms {' and '.join(reversed(EFFECTS[effect]))}.")


def with_difference(trials: pd.DataFrame, effect: str) -> pd.DataFrame:
    """The trials with both arms of `effect`, its `change` in right answers and its `difference` of accuracies."""
    treatment, control = EFFECTS[effect]
    change = trials[treatment] - trials[control]
    trials = trials.assign(change=change, difference=change / trials["total"])
    return trials[change.notna()] if change.hasnans else trials


def task_means(trials: pd.DataFrame, effect: str, keys: list[str]) -> pd.DataFrame:
    """Mean `effect` and number of `trials` by `keys`: the difference of the counts over the observations."""
    groups = with_difference(trials, effect).groupby(keys)
    sums = groups[["change", "total"]].sum()
    return pd.DataFrame({effect: sums["change"] / sums["total"], "trials": groups.size()}).reset_index()


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


def headline(tasks: pd.DataFrame) -> dict[str, dict[str, JointMean | Missing]]:
    """The mean of each effect over the tasks, by experiment and effect.

    Intervals hold over all experiments at once, each effect by itself: with many experiments one interval without 0 is
    found by chance. `tasks`: the frame of `task_effects`. Missing, with the reason, where no task has the effect.
    """
    means: dict[str, dict[str, JointMean | Missing]] = {str(name): {} for name in sorted(set(tasks["experiment"]))}
    for effect in EFFECTS:
        known_of = {name: rows[effect][rows[effect].map(is_known)] for name, rows in tasks.groupby("experiment")}
        with_tasks = {str(name): values.to_numpy(dtype=float) for name, values in known_of.items() if len(values)}
        known_means = dict(zip(with_tasks, simultaneous(list(with_tasks.values())), strict=True))
        for name, by_effect in means.items():
            by_effect[effect] = known_means.get(name, without_arms(effect))
    return means


# ----------------------------------------------------------------------------------------------------------------------
# One task by itself: its mean effect with an interval over subsamples, and where it stops on the width of that.

ONE_SUBSAMPLE = Missing(
    Reason("One subsample has the two arms: the interval of a task is over subsamples.", ReasonCode.TOO_FEW)
)
NO_SPREAD = Missing(
    Reason("All subsamples have the same difference: without a spread there is no interval.", ReasonCode.NO_INTERVAL)
)


ONLY_BIAS = Missing("Only the bias is tested task by task.")


@dataclass(frozen=True)
class TaskEffect:
    """Mean of one task over its cells, which weigh the same; the interval is over subsamples, the random draws.

    excluded_beyond: effects of this size or larger, up or down, are excluded at the 5% level, for this task.
    p_adjusted: of the t test of the interval that the bias is 0, by Holm over all tasks of all experiments.
    """

    experiment: str
    task: str
    effect: str
    mean: float
    interval: tuple[float, float] | Missing
    excluded_beyond: float | Missing
    p_adjusted: float | Missing
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
            rows.append(TaskEffect(*key, effect, mean, *bounds, ONLY_BIAS, by_cell.ngroups, len(parts), len(group)))
    return _with_adjusted_p(rows)


def _with_adjusted_p(rows: Sequence[TaskEffect]) -> list[TaskEffect]:
    """The rows of which each bias with an interval has its `p_adjusted`. In simulated studies without an effect 0% to
    5.5% had one below 5%."""
    p = dict[int, float]()
    for number, row in enumerate(rows):
        if row.effect == "bias" and not isinstance(row.interval, Missing):
            error = (row.interval[1] - row.interval[0]) / 2 / stats.t.ppf(1 - LEVEL / 2, row.subsamples - 1)
            p[number] = float(2 * stats.t.sf(abs(row.mean) / error, row.subsamples - 1))
    adjusted = dict(zip(p, holm(np.array([*p.values()])).tolist(), strict=True))
    reasons = [
        row.interval if row.effect == "bias" and isinstance(row.interval, Missing) else ONLY_BIAS for row in rows
    ]
    return [
        replace(row, p_adjusted=adjusted.get(number, reason))
        for number, (row, reason) in enumerate(zip(rows, reasons, strict=True))
    ]


@dataclass(frozen=True)
class Distribution:
    """The differences of a task's trials in a setting, over subsamples. density: a kernel density of them."""

    m: int
    n: int
    task: str
    effect: str
    mean: float
    trials: int
    density: Density


@dataclass(frozen=True)
class ModelDistributions:
    """The distributions of one language model in an experiment; tasks: all that it has trials of, by name."""

    experiment: str
    language_model: str
    tasks: list[str]
    distributions: list[Distribution]


def model_distributions(trials: pd.DataFrame) -> list[ModelDistributions]:
    """By experiment and language model, with a distribution for each setting, task and effect that has both arms."""
    models, keys = [], [*CELL, "task"]
    differences = {
        effect: {key: values.to_numpy() for key, values in with_difference(trials, effect).groupby(keys)["difference"]}
        for effect in EFFECTS
    }
    for (experiment, language_model), of_model in trials.groupby(["experiment", "language_model"]):
        distributions = []
        for (m, n, task), _ in of_model.groupby(["m", "n", "task"]):
            for effect in EFFECTS:
                values = differences[effect].get((experiment, language_model, m, n, task))
                if values is not None:
                    density = kernel_density(values)
                    distributions.append(Distribution(m, n, task, effect, float(values.mean()), len(values), density))
        tasks = sorted(of_model["task"].unique())
        models.append(ModelDistributions(str(experiment), str(language_model), tasks, distributions))
    return models


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
    columns = ["language_model", "task", "subsample", "test_hash", "difference"]
    by_effect = {effect: dict(iter(with_difference(trials, effect).groupby(SETTING)[columns])) for effect in EFFECTS}
    for (experiment, m, n), _ in trials.groupby(SETTING):
        for effect in EFFECTS:
            if (pairs := by_effect[effect].get((experiment, m, n))) is None:
                continue
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


# ----------------------------------------------------------------------------------------------------------------------
# Power: which bias the cells of the study could have found, and what would find a smaller one.

DETECTABLE_BIAS = 0.005  # half a point of accuracy, what the power analysis asks for


NUMBERS_OF_SUBSAMPLES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # of a task, at which the curve of a cell is drawn


@dataclass(frozen=True)
class CellPower:
    """What a cell's t test over its tasks' means could have detected, and what it takes to detect `effect_size`.

    power: to find that. curve: the same by the number of subsamples of each task; empty where the power is not known.
    """

    experiment: str
    language_model: str
    m: int
    n: int
    effect_size: float
    within_task_sd: float | Missing
    between_tasks_sd: float | Missing
    tasks: int
    subsamples: int
    power: float | Missing
    smallest_detectable: float | Missing
    subsamples_needed: int | Missing
    tasks_needed: int | Missing
    curve: dict[int, float] = page_only(default_factory=dict)


def cell_power(trials: pd.DataFrame) -> list[CellPower]:
    """The power of each cell to find `DETECTABLE_BIAS`."""
    cells, effect = [], DETECTABLE_BIAS
    for (experiment, language_model, m, n), cell in with_difference(trials, "bias").groupby(CELL):
        tasks = cell["task"].nunique()
        subsamples = max(1, round(len(cell) / tasks))
        key = str(experiment), str(language_model), int(m), int(n), effect
        variances = variance_components(cell["difference"].to_numpy(), cell["task"].to_numpy())
        if isinstance(variances, Missing):
            missing = variances
            cells.append(CellPower(*key, missing, missing, tasks, subsamples, missing, missing, missing, missing))
            continue
        cells.append(
            CellPower(
                *key,
                variances.within_task,
                variances.between_tasks,
                tasks,
                subsamples,
                detection_power(effect, variances, tasks, subsamples),
                smallest_detectable(variances, tasks, subsamples),
                subsamples_needed(effect, variances, tasks),
                tasks_needed(effect, variances, subsamples),
                {number: detection_power(effect, variances, tasks, number) for number in NUMBERS_OF_SUBSAMPLES},
            )
        )
    return cells


# ----------------------------------------------------------------------------------------------------------------------
# What is found over several experiments.


def biases_found(means: Mapping[str, Mapping[str, MeanOverTasks | Missing]]) -> dict[str, bool | None]:
    """By experiment, whether the interval of its mean bias, that of `headline`, excludes 0; None without one."""
    excludes_zero: dict[str, bool | None] = {}
    for name, by_effect in means.items():
        bias = by_effect["bias"]
        ends = bias if isinstance(bias, Missing) else bias.interval
        excludes_zero[name] = None if isinstance(ends, Missing) else ends[0] > 0 or ends[1] < 0
    return excludes_zero


def tasks_found(rows: Sequence[TaskEffect]) -> list[TaskEffect]:
    """Those of the tasks by themselves in which the bias differs from 0 at 5%, whatever other tasks show."""
    return [row for row in rows if not isinstance(row.p_adjusted, Missing) and row.p_adjusted < LEVEL]
