"""Model-free effects of the bias study: cells, tasks, and their averages, with the weighting stated.

boost = accuracy(extra) - accuracy(base), bias = accuracy(test) - accuracy(extra), fractions. Differences are
those of integer counts, so a task without a difference is exactly 0. All functions take the frame of
`tables.trials.pair_arms`; trials that lack an arm of an effect do not count for that effect.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.table import CELL

_SIZES = {"subsamples": "max", "tasks": "size", "trials": "sum"}  # of a cell, from its tasks' numbers of trials


def task_means(trials: pd.DataFrame, effect: str, keys: list[str]) -> pd.DataFrame:
    """Mean `effect` and number of `trials` by `keys`: the difference of the counts over the observations."""
    treatment, control = EFFECTS[effect]
    known = trials.dropna(subset=[treatment, control])
    known = known.assign(difference=known[treatment] - known[control])
    sums = known.groupby(keys)[["difference", "total"]].sum()
    sums["trials"] = known.groupby(keys).size()
    sums[effect] = sums["difference"] / sums["total"]
    return sums[[effect, "trials"]].reset_index()


def cell_effects(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per (experiment, language_model, m, n): the paper's table 1.

    `boost_mean`, `bias_mean`: over all subsamples of all tasks. `boost_se`, `bias_se`: the standard deviation
    of the task means over the root of the number of tasks (NaN with one task). `subsamples`: the largest
    number of subsamples of a task; `tasks`, `trials`: what the cell holds, whatever the arms. The same with
    `boost_` and `bias_` before them: of the trials that have both arms of the effect, which its mean rests on.
    An effect without such trials is NaN, with counts of 0.
    """
    per_task = trials.groupby([*CELL, "task"]).size().reset_index(name="trials")
    cells = per_task.groupby(CELL)["trials"].agg(**_SIZES).reset_index()
    for effect in EFFECTS:
        whole = task_means(trials, effect, CELL).rename(columns={effect: f"{effect}_mean"})
        per_task = task_means(trials, effect, [*CELL, "task"])
        by_task = per_task.groupby(CELL)[effect]
        spread = (by_task.std() / np.sqrt(by_task.count())).rename(f"{effect}_se").reset_index()
        sizes = per_task.groupby(CELL)["trials"].agg(**_SIZES).add_prefix(f"{effect}_")
        cells = cells.merge(whole.drop(columns="trials"), "left", CELL).merge(spread, "left", CELL)
        cells = cells.merge(sizes.reset_index(), "left", CELL)
        cells[sizes.columns] = cells[sizes.columns].fillna(0).astype("int64")
    order = [f"{effect}_{column}" for effect in EFFECTS for column in ("mean", "se")]
    counts = [*_SIZES, *(f"{effect}_{size}" for effect in EFFECTS for size in _SIZES)]
    return cells[[*CELL, *order, *counts]]


def missing_trials(trials: pd.DataFrame, effect: str) -> pd.DataFrame:
    """Cells with fewer trials of a task than there could be: [*CELL, task, `subsamples`, `expected`].

    `subsamples`: trials with both arms of `effect`; `expected`: the most that a language model has of any task at
    that m and n, at least 1. Looked for in every language model, setting and task of an experiment, also in
    combinations without any row; an experiment without a trial of the effect is left out.
    """
    rows = []
    for experiment, group in trials.groupby("experiment"):
        known = group.dropna(subset=list(EFFECTS[effect]))
        if known.empty:
            continue
        places = group[["m", "n"]].drop_duplicates().merge(group[["language_model"]].drop_duplicates(), "cross")
        places = places.merge(group[["task"]].drop_duplicates(), "cross").assign(experiment=experiment)
        keys = [*CELL, "task"]
        places = places.merge(known.groupby(keys).size().rename("subsamples").reset_index(), "left", keys)
        places["subsamples"] = places["subsamples"].fillna(0).astype("int64")
        places["expected"] = places.groupby(["m", "n"])["subsamples"].transform("max").clip(lower=1)
        rows.append(places[places["subsamples"] < places["expected"]])
    columns = [*CELL, "task", "subsamples", "expected"]
    return (
        pd.concat(rows)[columns].sort_values(columns).reset_index(drop=True) if rows else pd.DataFrame(columns=columns)
    )


def task_effects(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per (experiment, task): `boost`, `bias`, every cell (language_model, m, n) weighing the same.

    Weighting trials instead would let the cells with small n, which have most subsamples, decide: in the
    published data 10 instead of 12 tasks then have a positive bias. `cells` counts the cells averaged.
    """
    keys = ["experiment", "task"]
    tasks = trials.groupby([*keys, *CELL[1:]]).size().groupby(keys).size().reset_index(name="cells")
    for effect in EFFECTS:
        means = task_means(trials, effect, [*CELL, "task"]).groupby(keys)[effect].mean().reset_index()
        tasks = tasks.merge(means, "left", keys)
    return tasks[[*keys, *EFFECTS, "cells"]]


@dataclass(frozen=True)
class MeanOverTasks:
    """Mean over tasks with its standard error and 95% t interval; None where there are fewer than 2 tasks."""

    mean: float
    standard_error: float | None
    interval: tuple[float, float] | None
    tasks: int
    positive: int
    negative: int


def mean_over_tasks(values: np.ndarray) -> MeanOverTasks | None:
    """Mean of (T,) task effects, tasks being the sampling unit; NaN are left out, None without any value."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return None
    mean, error, interval = float(values.mean()), None, None
    if len(values) > 1:
        error = float(values.std(ddof=1) / np.sqrt(len(values)))
        reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
        interval = (mean - reach, mean + reach)
    return MeanOverTasks(mean, error, interval, len(values), int((values > 0).sum()), int((values < 0).sum()))


def mean_losses(trials: pd.DataFrame) -> pd.DataFrame:
    """Mean pretraining loss (nats a predicted token) of the arms `extra` and `test` by cell, over all its trials.

    Trials without a known loss are left out; no row where none is known.
    """
    columns = {"loss_extra": "extra", "loss_test": "test"}
    known = trials.dropna(subset=list(columns))
    return known.groupby(CELL)[list(columns)].mean().rename(columns=columns).reset_index()
