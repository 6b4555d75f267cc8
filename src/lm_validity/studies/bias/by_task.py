"""What the trials say of one task by itself: its mean effect with an interval over subsamples."""

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.config.plan import BiasPlan
from lm_validity.studies.bias.statistics.effects import LEVEL, ROUNDING, excluded_beyond
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.summary import TaskEffect
from lm_validity.studies.bias.table import CELL
from lm_validity.summaries import Missing
from lm_validity.words import Reason, ReasonCode

ONE_SUBSAMPLE = Missing(
    Reason("One subsample has the two arms: the interval of a task is over subsamples.", ReasonCode.TOO_FEW)
)
NO_SPREAD = Missing(
    Reason("All subsamples have the same difference: without a spread there is no interval.", ReasonCode.NO_INTERVAL)
)


def effects_by_task(trials: pd.DataFrame, plan: BiasPlan | None = None) -> tuple[TaskEffect, ...]:
    """Effects by (experiment, task), of trials with both arms; `trials` is the frame of `table.pair_arms`.

    Every one of the C cells (language model, m, n) weighs the same. With d a trial's difference, n_c the trials of a
    cell and S the number of subsamples,

        mean ± t(.975, S - 1) · √(S / (S - 1) Σ_s u_s²),   u_s = Σ_c (d_cs - mean_c) / (C n_c)

    the cluster-robust error of the mean, subsamples being the clusters: language models share those of a number.

    With a `plan`, the bias' interval of a task that has not all subsamples is at least as wide as the width
    that it stops at, and what is excluded beyond it as much wider. The stop selects intervals that are narrow by
    chance. At this width the interval holds the truth at least as often as it says (docs/reference/coverage.md).
    """
    rows, there = [], subsamples_there(trials)
    for effect, (treatment, control) in EFFECTS.items():
        both = _with_difference(trials, treatment, control)
        for (experiment, task), group in both.groupby(["experiment", "task"]):
            cells, apart = group.groupby(CELL)["difference"], _apart(group)
            mean, parts = float(cells.mean().mean()), apart.groupby(group["subsample"]).sum().to_numpy()
            sizes = {"cells": cells.ngroups, "subsamples": len(parts), "trials": len(group)}
            key = str(experiment), str(task)
            least = plan.half_width if plan and effect == "bias" and plan.may_stop(*key, there[key]) else 0.0
            bounds = interval_over_subsamples(mean, parts, least)
            rows.append(TaskEffect(*key, effect, mean, *bounds, **sizes))
    return tuple(rows)


def _with_difference(trials: pd.DataFrame, treatment: str, control: str) -> pd.DataFrame:
    both = trials.dropna(subset=[treatment, control])
    return both.assign(difference=(both[treatment] - both[control]) / both["total"])


def _apart(trials: pd.DataFrame) -> pd.Series:
    """Of each trial of a task: (d_cs - mean_c) / (C n_c), whose sums over cells are the u_s."""
    cells = trials.groupby(CELL)["difference"]
    return (trials["difference"] - cells.transform("mean")) / (cells.ngroups * cells.transform("size"))


def least_half_width(trials: pd.DataFrame, most: int) -> float:
    """Half-width of a task's bias that cells with fewer subsamples than the task leave, however many the others get.

    `trials` of one task. Those cells have all of theirs. This is the interval of `effects_by_task` with the u_s over
    them alone, as if the other cells had no error, and with the S = `most` that the task can have. 0 without such
    cells.
    """
    both = _with_difference(trials, *EFFECTS["bias"])
    sizes = both.groupby(CELL)["difference"].transform("size")
    full = both[sizes < both["subsample"].nunique()]
    if full.empty:
        return 0.0
    parts = _apart(both).loc[full.index].groupby(full["subsample"]).sum().to_numpy()
    return float(stats.t.ppf(1 - LEVEL / 2, most - 1) * np.sqrt(most / (most - 1) * (parts**2).sum()))


def subsamples_there(trials: pd.DataFrame) -> dict[tuple[str, str], int]:
    """By (experiment, task): how many subsamples have a trial, whatever its arms."""
    return trials.groupby(["experiment", "task"])["subsample"].nunique().to_dict()


def interval_over_subsamples(
    mean: float, parts: np.ndarray, least: float
) -> tuple[tuple[float, float] | Missing, float | Missing]:
    """The t interval of the mean, of half-width `least` or more, and what is excluded beyond it; `parts`: u
    (subsamples,)."""
    number = len(parts)
    if number < 2 or np.abs(parts).max() <= ROUNDING:
        why = ONE_SUBSAMPLE if number < 2 else NO_SPREAD
        return why, why
    quantile = float(stats.t.ppf(1 - LEVEL / 2, number - 1))
    error = max(float(np.sqrt(number / (number - 1) * (parts**2).sum())), least / quantile)
    reach = quantile * error
    return (mean - reach, mean + reach), excluded_beyond(mean, error, number)
