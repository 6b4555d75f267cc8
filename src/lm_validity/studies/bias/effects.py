"""Model-free effects of the trials: cells, tasks, settings, tests by task, and what is missing from them.

Differences are those of integer counts, so a task without a difference is exactly 0. Trials that lack an arm of an
effect do not count for that effect.
"""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.config.plan import BiasPlan
from lm_validity.studies.bias.statistics.effects import (
    ONE_TASK,
    MeanOverTasks,
    mean_over_tasks,
    sign_flip_p,
    smallest_detectable_shift,
)
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.summary import Cell, Loss, Setting, Task, TaskTest
from lm_validity.studies.bias.table import ARMS, CELL, SETTING
from lm_validity.summaries import Missing, is_known, known
from lm_validity.words import count, listing

SIZES = {"subsamples": "max", "tasks": "size", "trials": "sum"}  # of a cell, from its tasks' numbers of trials
GAPS_SHOWN = 12  # of an experiment; the rest is counted


def without_arms(effect: str) -> Missing:
    """Why an effect is unknown where no trial has both its arms."""
    return Missing(f"No trial there has the arms {' and '.join(reversed(EFFECTS[effect]))}.")


def task_means(trials: pd.DataFrame, effect: str, keys: list[str]) -> pd.DataFrame:
    """Mean `effect` and number of `trials` by `keys`: the difference of the counts over the observations."""
    treatment, control = EFFECTS[effect]
    known_trials = trials.dropna(subset=[treatment, control])
    known_trials = known_trials.assign(difference=known_trials[treatment] - known_trials[control])
    sums = known_trials.groupby(keys)[["difference", "total"]].sum()
    sums["trials"] = known_trials.groupby(keys).size()
    sums[effect] = sums["difference"] / sums["total"]
    return sums[[effect, "trials"]].reset_index()


def cell_effects(trials: pd.DataFrame) -> tuple[Cell, ...]:
    """The paper's table 1: the mean of the task means, and their standard deviation over the root of the number of
    tasks. Where every task has as many subsamples, this is the mean over all trials; elsewhere that would let the tasks
    with most subsamples decide, which are the noisiest ones where tasks stop on a width.
    """
    per_task = trials.groupby([*CELL, "task"]).size().reset_index(name="trials")
    cells = per_task.groupby(CELL)["trials"].agg(**SIZES).reset_index()
    for effect in EFFECTS:
        per_task = task_means(trials, effect, [*CELL, "task"])
        found = per_task.groupby(CELL)[effect].agg(["mean", "sem"])
        found.columns = [f"{effect}_mean", f"{effect}_se"]
        sizes = per_task.groupby(CELL)["trials"].agg(**SIZES).add_prefix(f"{effect}_")
        cells = cells.merge(found.reset_index(), "left", CELL)
        cells = cells.merge(sizes.reset_index(), "left", CELL)
        cells[sizes.columns] = cells[sizes.columns].fillna(0).astype("int64")
    return tuple(_cell(row) for row in cells.to_dict("records"))


def _cell(row: dict[str, Any]) -> Cell:
    for effect in EFFECTS:
        reason = without_arms(effect).reason if not row[f"{effect}_tasks"] else ONE_TASK
        for value in ("mean", "se"):
            row[f"{effect}_{value}"] = known(row[f"{effect}_{value}"], reason)
    return Cell(**row)


def task_effects(trials: pd.DataFrame) -> tuple[Task, ...]:
    """Means by (experiment, task), every cell (language model, m, n) weighing the same.

    Weighting trials instead would let the cells with small n, which have most subsamples, decide: in the published
    data 10 instead of 12 tasks then have a positive bias.
    """
    keys = ["experiment", "task"]
    tasks = trials.groupby([*keys, *CELL[1:]]).size().groupby(keys).size().reset_index(name="cells")
    for effect in EFFECTS:
        means = task_means(trials, effect, [*CELL, "task"]).groupby(keys)[effect].mean().reset_index()
        tasks = tasks.merge(means, "left", keys)
    rows = tasks.to_dict("records")
    return tuple(Task(**row | {e: known(row[e], without_arms(e).reason) for e in EFFECTS}) for row in rows)


def headline(tasks: tuple[Task, ...]) -> dict[str, dict[str, MeanOverTasks | Missing]]:
    """By experiment and effect: the mean over its tasks."""
    found: dict[str, dict[str, MeanOverTasks | Missing]] = {}
    for experiment in dict.fromkeys(task.experiment for task in tasks):
        own = [task for task in tasks if task.experiment == experiment]
        values = {effect: [v for v in (getattr(t, effect) for t in own) if is_known(v)] for effect in EFFECTS}
        found[experiment] = {e: mean_over_tasks(np.array(v)) if v else without_arms(e) for e, v in values.items()}
    return found


def setting_effects(trials: pd.DataFrame) -> tuple[Setting, ...]:
    """Means over tasks by (experiment, m, n, effect), without effects that no trial of a setting has both arms of."""
    rows = []
    for effect in EFFECTS:
        by_model = task_means(trials, effect, [*SETTING, "task", "language_model"])
        by_task = by_model.groupby([*SETTING, "task"])[effect].mean()
        for (experiment, m, n), values in by_task.groupby(SETTING):
            rows.append(Setting(experiment, m, n, effect, mean_over_tasks(values.to_numpy())))
    return tuple(rows)


def task_tests(trials: pd.DataFrame) -> tuple[TaskTest, ...]:
    """Sign-flip tests by (experiment, language model, m, n, task, effect).

    Adjusted by Benjamini & Hochberg (1995) over the tasks of a cell, each effect by itself.
    """
    rows, keys = [], [*CELL, "task"]
    for effect, (treatment, control) in EFFECTS.items():
        both = trials.dropna(subset=[treatment, control])
        counts = both[treatment] - both[control]
        by_task = [both[key] for key in keys]
        found = counts.groupby(by_task).agg(lambda values: sign_flip_p(values.to_numpy())).rename("p").reset_index()
        found["p_adjusted"] = found.groupby(CELL)["p"].transform(stats.false_discovery_control)
        levels = 0.05 / found.groupby(CELL)["p"].transform("size")  # what q < .05 asks of a test that stands alone
        shares = [values.to_numpy() for _, values in (counts / both["total"]).groupby(by_task)]
        found["smallest_detectable"] = list(map(smallest_detectable_shift, shares, levels))
        found = found.merge(task_means(trials, effect, keys).rename(columns={effect: "mean"}), "left", keys)
        rows += [TaskTest(**row, effect=effect) for row in found.to_dict("records")]
    return tuple(rows)


def mean_losses(trials: pd.DataFrame) -> tuple[Loss, ...]:
    """Mean pretraining loss by cell, over all its trials that know the losses of both arms."""
    columns = {"loss_extra": "extra", "loss_test": "test"}
    means = trials.dropna(subset=list(columns)).groupby(CELL)[list(columns)].mean().rename(columns=columns)
    return tuple(Loss(**row) for row in means.reset_index().to_dict("records"))


def missing_trials(trials: pd.DataFrame, effect: str, plan: BiasPlan | None = None) -> pd.DataFrame:
    """Cells with fewer trials of a task than there could be: [*CELL, task, `subsamples`, `expected`].

    `subsamples`: trials with both arms of `effect`; `expected`: the most that a language model has of any task at
    that m and n, at least 1. Looked for in every language model, setting and task of an experiment, also in
    combinations without any row; an experiment without a trial of the effect is left out. What `plan` has not planned
    of a task is not expected.
    """
    rows = []
    for experiment, group in trials.groupby("experiment"):
        both = group.dropna(subset=list(EFFECTS[effect]))
        if both.empty:
            continue
        places = group[["m", "n"]].drop_duplicates().merge(group[["language_model"]].drop_duplicates(), "cross")
        places = places.merge(group[["task"]].drop_duplicates(), "cross").assign(experiment=experiment)
        keys = [*CELL, "task"]
        places = places.merge(both.groupby(keys).size().rename("subsamples").reset_index(), "left", keys)
        places["subsamples"] = places["subsamples"].fillna(0).astype("int64")
        places["expected"] = places.groupby(["m", "n"])["subsamples"].transform("max").clip(lower=1)
        if plan is not None:
            planned = [plan.planned(str(experiment), task) for task in places["task"]]
            places["expected"] = np.minimum(places["expected"], planned)
        rows.append(places[places["subsamples"] < places["expected"]])
    columns = [*CELL, "task", "subsamples", "expected"]
    return (
        pd.concat(rows)[columns].sort_values(columns).reset_index(drop=True) if rows else pd.DataFrame(columns=columns)
    )


def coverage_notes(trials: pd.DataFrame, plan: BiasPlan | None = None) -> tuple[str, ...]:
    """Trials without an arm, gaps between cells, one language model alone, twins, and tasks at the ceiling."""
    found = []
    for arm in ARMS:
        if missing := int(trials[arm].isna().sum()):
            effects = " and ".join(effect for effect, arms in EFFECTS.items() if arm in arms)
            found.append(f"{missing} of {len(trials)} trials have no arm {arm}; they do not count for {effects}.")
    models = trials.groupby("experiment")["language_model"].nunique()
    alone = [
        f"Experiment {experiment} has one language model: the terms that tell models apart are dropped."
        for experiment in models.index[models == 1]
    ]
    return (*found, *_gap_notes(trials, plan), *alone, *_twin_notes(trials), *_ceiling_notes(trials))


def saturated_tasks(trials: pd.DataFrame, experiment: str) -> list[str]:
    """Tasks of an experiment on which every arm of every trial answers everything right, or everything wrong."""
    own = trials[trials["experiment"] == experiment]
    counts = own[list(ARMS)]
    full = counts.eq(own["total"], axis=0) | counts.isna()
    none = counts.eq(0) | counts.isna()
    by_task = pd.DataFrame({"full": full.all(axis=1), "none": none.all(axis=1)}).groupby(own["task"]).all()
    return by_task.index[by_task.any(axis=1)].tolist()


def _ceiling_notes(trials: pd.DataFrame) -> list[str]:
    found = []
    for experiment, own in trials.groupby("experiment"):
        if names := saturated_tasks(trials, experiment):
            found.append(
                f"Experiment {experiment}: {len(names)} of {count(own['task'].nunique(), 'task')} at the ceiling or "
                f"the floor ({listing(names)}). Every arm of every trial there has all answers right, or all wrong, so "
                "no effect can show."
            )
    return found


def _twin_notes(trials: pd.DataFrame) -> list[str]:
    """Language models with the same counts throughout: perhaps one model under two names."""
    found, arms = [], list(ARMS)
    for experiment, own in trials.groupby("experiment"):
        counts = {name: g.set_index(["m", "n", "task", "subsample"])[arms] for name, g in own.groupby("language_model")}
        for first, second in combinations(counts, 2):
            shared = counts[first].index.intersection(counts[second].index)
            if len(shared) and counts[first].loc[shared].equals(counts[second].loc[shared]):
                found.append(
                    f"Experiment {experiment}: {first} and {second} have the same counts in every one of the "
                    f"{count(len(shared), 'trial')} that both have. They may be one model under two names."
                )
    return found


def _gap_notes(trials: pd.DataFrame, plan: BiasPlan | None) -> list[str]:
    """Cells that lack tasks or subsamples which others have: what an average over cells then compares."""
    gaps, found = {effect: missing_trials(trials, effect, plan) for effect in EFFECTS}, []
    for experiment in trials["experiment"].unique():
        words = {effect: _gap_words(frame[frame["experiment"] == experiment]) for effect, frame in gaps.items()}
        same = len(set(words.values())) == 1
        for effect, gap in list(words.items())[: 1 if same else None]:
            if gap:
                concerned = " and the ".join(EFFECTS) if same else effect
                found.append(
                    f"Experiment {experiment} has gaps, for the {concerned}: {gap}. Averages over cells and over tasks "
                    "there are not of the same tasks and trials."
                )
    return found


def _gap_words(gaps: pd.DataFrame) -> str:
    """`gpt2 at m = 50, n = 50 and m = 50, n = 100 has no trial of trec and fewer of sst2 (3 of 5); …`."""
    places: dict[tuple[str, str], list[str]] = {}
    for (_, language_model, m, n), cell in gaps.groupby(CELL):
        none, fewer = cell[cell["subsamples"] == 0], cell[cell["subsamples"] > 0]
        parts = [f"no trial of {listing(none['task'])}"] if len(none) else []
        if len(fewer):
            listed = listing(f"{row.task} ({row.subsamples} of {row.expected})" for row in fewer.itertuples())
            parts.append(f"fewer of {listed}" if parts else f"fewer trials of {listed}")
        places.setdefault((str(language_model), " and ".join(parts)), []).append(f"m = {m}, n = {n}")
    said = [f"{model} at {' and '.join(where)} has {words}" for (model, words), where in places.items()]
    rest = [f"and {len(said) - GAPS_SHOWN} more"] if len(said) > GAPS_SHOWN else []
    return "; ".join(said[:GAPS_SHOWN] + rest)
