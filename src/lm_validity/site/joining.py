"""A model that joins a finished study: which few cells place it among the others, at what cost, with what interval.

The cells are chosen by what the other models' scores and its own direct ones say of its rank, so they enter ranks and
predictions only (`PlannedCell.by_scores`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lm_validity.config.load import Run
from lm_validity.config.plan import JOINS, Plan, PlannedCell
from lm_validity.errors import InputError, did_you_mean
from lm_validity.monitor.planning import Cost, Pair, hours_in_words, next_round, total
from lm_validity.site.rounds import Goal, Standing, check_finished, standing_of
from lm_validity.studies.agreement.statistics.ranking import average_ranks
from lm_validity.studies.agreement.statistics.sparse.choice import Choice
from lm_validity.studies.agreement.statistics.sparse.standing import mean_standing, rank_draws
from lm_validity.words import count

COMPLETE = "complete"


@dataclass(frozen=True)
class Place:
    """A cell of the joining model, hours of it and those before it, and its rank's expected half-width after them."""

    benchmark: str
    hours: float
    half_width: float


@dataclass(frozen=True)
class Joining:
    """`rank` and `interval`: the model's as predicted without a train-before-test score. `places`: its cells in the
    order of choice; `whole_hours`: of all of them."""

    model: str
    models: int
    rank: float
    interval: tuple[float, float]
    half_width: float
    places: list[Place]
    whole_hours: float

    def reaches(self, goal: Goal) -> bool:
        """Whether its cells are expected to make the interval as narrow as asked, or a budget pays for one of them."""
        if goal.kind == "budget":
            return bool(self.until(goal))
        return min([self.half_width, *(one.half_width for one in self.places)]) <= goal.value

    def until(self, goal: Goal) -> list[Place]:
        """The places needed for a goal of width, or those that a budget of hours pays for."""
        if goal.kind == "budget":
            return [one for one in self.places if one.hours <= goal.value]
        if self.half_width <= goal.value:
            return []
        enough = next((i for i, one in enumerate(self.places, 1) if one.half_width <= goal.value), len(self.places))
        return self.places[:enough]


def earlier_cells(run: Run, model: str) -> Plan:
    """The cells of the study that the model joins: those of its plan, or all of the other models.

    Raises InputError for a model that is not in the sheet, or is planned already.
    """
    models, benchmarks = run.agreement_names
    if model not in models:
        hint = did_you_mean(model, models, f"add its row to {run.configuration.models} first.")
        raise InputError(f"{run.configuration.models}: no model {model!r} of the agreement study.", hint)
    if run.plan is None:
        cell: dict[str, Any] = {"round": 1, "reason": COMPLETE, "probability": None, "seed": None}
        return {
            (name, benchmark): PlannedCell.model_construct(model=name, benchmark=benchmark, **cell)
            for name in models
            if name != model
            for benchmark in benchmarks
        }
    own = [benchmark for name, benchmark in run.plan if name == model]
    if own:
        raise InputError(
            f"{run.configuration.plan}: {model!r} is planned on {count(len(own), 'benchmark')} already.",
            "add further cells with `lm-validity next`.",
        )
    return run.plan


def place_model(run: Run, model: str, costs: Mapping[Pair, Cost]) -> Joining:
    """What a model's cells would say of its rank, the one that says most an hour first.

    Raises InputError where cells of the study are not measured, or the model has a train-before-test score.
    """
    standing, earlier = standing_of(run, (model,)), earlier_cells(run, model)
    check_finished(standing, earlier)
    models, benchmarks = standing.names
    row = models.index(model)
    if standing.fitted.process.measured[row].any():
        raise InputError(
            f"{model!r} has train-before-test scores already.", "add further cells with `lm-validity next`."
        )
    tables = standing.tables()
    own, places = _own_hours(standing, costs, row), list[Place]()
    for step in Choice(tables).steps(own, np.arange(len(models)) == row):
        spent = own[row, step.benchmark] + (places[-1].hours if places else 0.0)
        places.append(Place(benchmarks[step.benchmark], float(spent), float(step.outlook.half_width[row])))
    low, high = np.quantile(rank_draws(tables)[:, row], [0.025, 0.975])
    return Joining(
        model,
        len(models),
        float(average_ranks(mean_standing(tables).mean(axis=0))[row]),
        (float(low), float(high)),
        float(high - low) / 2,
        places,
        total(costs, ((model, name) for name in benchmarks)).hours,
    )


def _own_hours(standing: Standing, costs: Mapping[Pair, Cost], row: int) -> np.ndarray:
    """(models, benchmarks) hours of the model's cells, inf elsewhere."""
    hours = standing.hours(costs, {})
    return np.where((np.arange(len(hours)) == row)[:, None], hours, np.inf)


def joining_cells(found: Joining, goal: Goal, earlier: Plan) -> list[PlannedCell]:
    """The planned cells of the model, as the next round."""
    number = next_round(earlier)
    return [
        PlannedCell.model_construct(
            model=found.model, benchmark=one.benchmark, round=number, reason=JOINS, probability=None, seed=None
        )
        for one in found.until(goal)
    ]


def describe_cells(found: Joining, goal: Goal) -> str:
    """One line on whether the goal is reached, and with how many cells."""
    number, reached = len(found.until(goal)), found.reaches(goal)
    if goal.kind == "budget":
        return f"{number} cells fit into {goal}" if reached else f"no cell fits into {goal}"
    if not reached:
        return f"{goal} is NOT expected to be reached, not even with all {number} cells"
    return f"{goal} is expected to be reached with {number} cells" if number else f"{goal} is reached without a cell"


def describe_joining(found: Joining) -> list[str]:
    """Where the model is expected, and what each further cell costs and brings; a line each."""
    lines = [
        f"{found.model} among {found.models} models, without a fine-tune: rank {found.rank:.0f}, 95% interval "
        f"{found.interval[0]:.0f} to {found.interval[1]:.0f} (±{found.half_width:.1f})",
        f"{'cells':>5} {'hours':>9} {'of all':>7} {'rank ±':>7}  with",
    ]
    for number, one in enumerate(found.places, 1):
        share = f"{one.hours / found.whole_hours:.1%}" if found.whole_hours else ""
        lines.append(f"{number:>5} {hours_in_words(one.hours):>9} {share:>7} {one.half_width:>7.1f}  {one.benchmark}")
    return lines
