"""Where tasks stop on the width of their interval: how far each one is, and what the page says of it."""

from dataclasses import replace

import pandas as pd

from lm_validity.config.bias_plan import BiasPlan
from lm_validity.errors import InputError
from lm_validity.pages.page import Section, Table
from lm_validity.studies.bias.by_task import NO_SPREAD, effects_by_task, least_half_width, subsamples_there
from lm_validity.studies.bias.sections import per_rows
from lm_validity.studies.bias.summary import BiasSummary, TaskEffect, TaskStop, rows_frame
from lm_validity.summaries import Missing, is_known
from lm_validity.words import count, with_names

STOPPED, OPEN, ALL, PLANNED = "stopped", "too wide", "all subsamples", "planned, not there yet"
HOPELESS = "cannot be narrow"  # cells that have all their subsamples keep it above the width


def task_stops(trials: pd.DataFrame, plan: BiasPlan | None) -> tuple[TaskStop, ...]:
    """How far each task with a bias is; none without a plan. `trials` is the frame of `table.pair_arms`.

    Only the width of the bias' interval is read, never where it lies. Raises InputError where the trials are not those
    of the plan's experiments.
    """
    if plan is None:
        return ()
    if strange := sorted(set(trials["experiment"]) - set(plan.most)):
        raise InputError(
            f"experiment {strange[0]!r} of the trials is not in the configuration.",
            f"give the configuration that they were made with; it has {', '.join(plan.most)}.",
        )
    there, by_task = subsamples_there(trials), dict(tuple(trials.groupby(["experiment", "task"])))
    rows = [row for row in effects_by_task(trials) if row.effect == "bias"]
    stops = (_stop(row, plan, there[row.experiment, row.task]) for row in rows)
    return tuple(
        replace(stop, state=HOPELESS)
        if stop.state == OPEN and least_half_width(by_task[stop.experiment, stop.task], stop.most) > plan.half_width
        else stop
        for stop in stops
    )


def _stop(row: TaskEffect, plan: BiasPlan, there: int) -> TaskStop:
    width = _half_width(row)
    narrow = is_known(width) and width <= plan.half_width
    if there < plan.planned(row.experiment, row.task):
        state = PLANNED
    else:
        state = (STOPPED if narrow else OPEN) if plan.may_stop(row.experiment, row.task, there) else ALL
    return TaskStop(row.experiment, row.task, row.subsamples, plan.most[row.experiment], width, plan.half_width, state)


def _half_width(row: TaskEffect) -> float | Missing:
    if isinstance(row.interval, Missing):
        return 0.0 if row.interval is NO_SPREAD else row.interval
    return (row.interval[1] - row.interval[0]) / 2


def stop_words(stop: TaskStop) -> str:
    """`news: 15 of 100 subsamples, stopped because the interval is ±0.0098`."""
    if isinstance(stop.half_width, Missing):
        found = "the interval is unknown"
    elif stop.half_width == 0:
        found = "all differences are the same"
    else:
        found = f"the interval is ±{stop.half_width:.4f}"
    why = {
        STOPPED: f", stopped because {found}",
        OPEN: f", needs more because {found}",
        ALL: f", which is all; {found}",
        HOPELESS: f", stopped although {found}: cells that have all their subsamples keep it too wide",
        PLANNED: f", more are planned but not finished; {found}",
    }
    return f"{stop.task}: {stop.subsamples} of {stop.most} subsamples{why[stop.state]}"


def stop_section(summary: BiasSummary) -> Section | None:
    """How many subsamples each task has, and why it has no more."""
    if not summary.stops:
        return None
    return Section(
        "Tasks that stopped",
        finding=per_rows(summary, summary.stops, _sentence),
        explanation=(
            f"A task gets further subsamples until the 95% interval of its bias is ±{summary.stops[0].stop_at:g} or "
            "narrower. Only the width decides, never the sign of the bias, its size or a p-value. If subsamples are "
            "added until an interval is narrow, it is slightly too often too narrow. The table has the width on which "
            "the decision was made. In summary.json and on cards, the interval of a task that may stop is at least "
            f"±{summary.stops[0].stop_at:g} wide."
        ),
        tables=[
            Table(
                "task_stops",
                "Subsamples by task",
                rows_frame(TaskStop, summary.stops),
                formats={"half_width": ".4f", "stop_at": ".4f"},
                caption="Half-width: that of the 95% interval over subsamples on which the decision was made.",
            )
        ],
    )


def _sentence(own: list[TaskStop]) -> str:
    if not own:
        return ""
    stopped = sum(stop.state == STOPPED for stop in own)
    text = (
        f"{stopped} of {count(len(own), 'task')} stopped before all {own[0].most} subsamples. The mean number is "
        f"{sum(stop.subsamples for stop in own) / len(own):.1f}."
    )
    waiting = {
        OPEN: "Still too wide: {}. `lm-validity plan next` adds a batch.",
        HOPELESS: "Cells that have all their subsamples keep these too wide, so they get no more: {}.",
        PLANNED: "Planned batches are not finished: {}.",
    }
    tasks = {words: [stop.task for stop in own if stop.state == state] for state, words in waiting.items()}
    return " ".join([text, *with_names(tasks, 6)])
