"""The next batch of the bias study: more subsamples for the tasks whose interval is still too wide.

Whether a task goes on is asked of the width of its interval, never of where it lies.
"""

from pathlib import Path

import pandas as pd

from lm_validity.config.bias_plan import COLUMNS, BiasPlan, PlannedBatch, read_batches
from lm_validity.config.load import Run
from lm_validity.errors import InputError
from lm_validity.monitor.planning import write_sheet
from lm_validity.run.rules.pretrain_on_test import PRETRAIN_ON_TEST
from lm_validity.studies.bias.stops import OPEN, stop_words, task_stops
from lm_validity.studies.bias.summary import TaskStop
from lm_validity.studies.bias.table import read_trials
from lm_validity.summaries import is_known
from lm_validity.words import listing

NAMED = 6  # batches listed where some are missing


def add_batch(run: Run) -> tuple[list[str], int]:
    """Write the next batch of the tasks that are too wide, if any, into the plan: lines on every task, and how many get
    one.

    Raises InputError where planned subsamples are not in the run's table.
    """
    plan = run.bias_plan
    assert plan is not None and run.bias.plan is not None, "`next` asks runs that have one"
    path = run.results / "tables" / "trials.parquet"
    if not path.is_file():
        raise InputError(
            f"{path}: no such file.", "run the workflow first. Batches are added by the widths it measures."
        )
    trials = read_trials(path)
    _check_finished(run, trials)
    stops = task_stops(trials, plan)
    number = 1 + max((row.round for row in plan.rows.values()), default=1)
    added = [_next_batch(stop, plan, number) for stop in stops if stop.state == OPEN]
    lines = [f"  {prefix(run, stop)}{stop_words(stop)}" for stop in stops]
    if not added:
        last = f"no task of the bias study gets another batch: each is ±{plan.half_width:g} or narrower, has all, or "
        last += "would stay too wide"
        return [*lines, last], 0
    place = Path(run.bias.plan)
    experiments, tasks = run.bias.experiments, run.tasks
    write_sheet(
        place,
        COLUMNS,
        [*plan.rows.values(), *added],
        unchanged=lambda: read_batches(place, experiments, tasks) == plan.rows,
        read_back=lambda temporary: read_batches(temporary, experiments, tasks),
    )
    left = {min(plan.batch, plan.most[row.experiment] - plan.planned(row.experiment, row.task)) for row in added}
    more = " to ".join(str(size) for size in sorted({min(left), max(left)}))
    return [*lines, f"{place}: {more} more subsamples for {len(added)} of {len(stops)} tasks"], len(added)


def prefix(run: Run, stop: TaskStop) -> str:
    """The experiment before a task, where there are several."""
    return f"{stop.experiment}, " if len(run.bias.experiments) > 1 else ""


def _next_batch(stop: TaskStop, plan: BiasPlan, number: int) -> PlannedBatch:
    return PlannedBatch.model_construct(
        experiment=stop.experiment,
        task=stop.task,
        round=number,
        subsamples=plan.planned(stop.experiment, stop.task) + plan.batch,
        half_width=stop.half_width if is_known(stop.half_width) else None,
    )


def _check_finished(run: Run, trials: pd.DataFrame) -> None:
    """Raises InputError where planned subsamples have no trial yet: what they say would come too late."""
    keys = ["experiment", "language_model", "task", "m", "n"]
    found = {(*key[0:2], *map(str, key[2:])): set(own) for key, own in trials.groupby(keys)["subsample"]}
    missing = [
        f"{cell.model} {cell.name}"
        for model in run.language_models
        for _, cell in PRETRAIN_ON_TEST.cells_by_round(run, model)
        if not set(range(cell.first, cell.last + 1))
        <= found.get((cell.experiment, cell.model, cell.task, str(cell.m), str(cell.n)), set())
    ]
    if missing:
        raise InputError(
            f"{len(missing)} planned batches are not in {run.results}/tables yet ({listing(missing, NAMED)}).",
            "run the workflow first.",
        )
