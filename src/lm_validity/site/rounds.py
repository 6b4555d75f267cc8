"""The next round of a plan: which unmeasured cells bring the ranks nearer to a goal for the fewest hours.

Scores decide which cells these are, so they enter ranks and predictions only (`PlannedCell.by_scores`). Whether the
goal is reached is asked of widths and of expected agreement, never of a tau or a p.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from lm_validity.config.load import Run
from lm_validity.config.plan import BY_SCORES, RULED_OUT, PlannedCell
from lm_validity.errors import InputError
from lm_validity.monitor.planning import Cost, Pair, hours_in_words, next_round, total
from lm_validity.studies.agreement.incomplete.estimates import NO_PROCESS, SEED, Fitted, drawn_tables, fit_cells
from lm_validity.studies.agreement.score_matrix import PERPLEXITY, TRAINED, ScoreMatrix, read_score_matrix
from lm_validity.studies.agreement.statistics.sparse.choice import DRAWS, Choice, Outlook, Step
from lm_validity.studies.agreement.statistics.sparse.process import MOST_CELLS, MOST_MODELS
from lm_validity.words import count, decimal, listing

# of all cells, that a round takes: a round is a run of the workflow, and what is expected of late cells is less exact
LEAST_SHARE, MOST_SHARE = 0.02, 0.1
NAMED = 6  # cells listed where some are missing


Kind = Literal["tau", "rank", "budget"]


class Goal(NamedTuple):
    """`tau`: expected agreement with the full grid's ranking, at least. `rank`: half-width of every model's rank
    interval, at most. `budget`: hours of fine-tuning of the whole plan, at most."""

    kind: Kind
    value: float

    def reached(self, outlook: Outlook) -> bool:
        """Whether the ranks are as sure as asked; a budget never is, it is spent."""
        if self.kind == "tau":
            return outlook.tau >= self.value
        return self.kind == "rank" and outlook.half_width.max() <= self.value

    def models(self, outlook: Outlook) -> np.ndarray:
        """(models,) True for those whose ranks matter."""
        if self.kind == "rank":
            return outlook.half_width > self.value
        return np.ones(len(outlook.half_width), dtype=bool)

    def __str__(self) -> str:
        return f"{self.kind}={self.value:.10g}"


def parse_goal(text: str) -> Goal:
    """`tau=.95`, `rank=2` or `budget=500`. Raises InputError."""
    kind, _, value = text.partition("=")
    hint = "write tau=.95 (expected agreement), rank=2 (places up and down) or budget=500 (hours)."
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"--goal {text}: not a goal.", hint) from None
    most: dict[Kind, float] = {"tau": 1, "rank": np.inf, "budget": np.inf}
    for one, limit in most.items():
        if one == kind and 0 < number < limit:
            return Goal(one, number)
    raise InputError(f"--goal {text}: not a goal.", hint)


@dataclass(frozen=True)
class Standing:
    """What the measured cells of a run say of its ranks."""

    run: Run
    matrix: ScoreMatrix
    fitted: Fitted

    @property
    def names(self) -> tuple[tuple[str, ...], list[str]]:
        """Models and benchmarks in the order of the tables' axes."""
        return self.matrix.models, self.matrix.task_names()

    def choice(self) -> Choice:
        """A fresh choice of cells."""
        return Choice(self.tables())

    def tables(self) -> np.ndarray:
        """(draws, models, benchmarks) what the table may be, for a choice."""
        return drawn_tables(self.fitted, SEED, DRAWS)

    def hours(self, costs: Mapping[Pair, Cost], planned: Mapping[Pair, PlannedCell]) -> np.ndarray:
        """(models, benchmarks) hours of each cell that is not planned, ruled out or measured; inf for the others."""
        models, benchmarks = self.names
        free = costs.keys() - planned.keys() - self.run.ruled_out.keys()
        found = [[costs[m, b].hours if (m, b) in free else np.inf for b in benchmarks] for m in models]
        return np.where(self.fitted.process.measured, np.inf, found)


def standing_of(run: Run, also: tuple[str, ...] = ()) -> Standing:
    """From the merged tables, with the models `also` that may have no score there. Raises InputError where the tables
    are not there, or too small for a prediction."""
    scores, configuration = run.results / "tables" / "scores.parquet", run.configuration
    if not scores.is_file():
        raise InputError(
            f"{scores}: no such file.", "run the workflow first. Cells are chosen by the scores it measures."
        )
    assert configuration.models is not None and configuration.benchmarks is not None, "the study agreement has them"
    matrix = read_score_matrix(scores, configuration.models, configuration.benchmarks, configuration.plan, also)
    fitted = fit_cells(matrix, TRAINED, SEED)
    if fitted is None:
        raise InputError(f"{scores}: no model of the scores. {NO_PROCESS}", _hint(matrix))
    return Standing(run, matrix, fitted)


def _hint(matrix: ScoreMatrix) -> str:
    """What can be done where there are too many, or too few, scores for a prediction."""
    known = np.isfinite(matrix.measured(TRAINED)[:, ~matrix.is_corpus])
    if known.sum() > MOST_CELLS or len(known) > MOST_MODELS:
        return "choose the cells yourself: `lm-validity plan --cells LIST.tsv` adds a round of them."
    return "measure more cells first."


def check_finished(standing: Standing, planned: Mapping[Pair, PlannedCell]) -> None:
    """Raises InputError where planned cells have no score yet: what they say would come too late."""
    run, (models, benchmarks) = standing.run, standing.names
    # of the run, not of the table: a benchmark may have no score at all
    tasks = [name for name in run.agreement_names[1] if run.benchmarks[name].output_type != PERPLEXITY]
    measured = {(models[i], benchmarks[j]) for i, j in zip(*np.nonzero(standing.fitted.process.measured), strict=True)}
    open_cells = [f"{m} on {b}" for m, b in planned if b in tasks and (m, b) not in measured]
    if open_cells:
        otherwise = (
            f"write {RULED_OUT!r} as the reason of their rows of {run.configuration.plan}"
            if run.plan
            else "plan the others only (`lm-validity plan --cells`)"
        )
        raise InputError(
            f"{count(len(open_cells), 'planned cell is', 'planned cells are')} not in {run.results}/tables yet "
            f"({listing(open_cells, NAMED)}).",
            f"run the workflow first. If a fine-tune cannot succeed, {otherwise}.",
        )


@dataclass(frozen=True)
class Round:
    """The steps of a round in the order of choice, with what is known `before` them. `reached`: the goal needs none."""

    goal: Goal
    before: Outlook
    steps: list[Step]
    cells: list[PlannedCell]
    hours: float
    reached: bool
    planned_hours: float  # of the whole plan before the round

    @property
    def enough(self) -> bool:
        """Whether the goal is expected to be reached once the round is measured; a budget is to be spent."""
        return self.reached or self.goal.kind == "budget" or self.goal.reached(self.after)

    @property
    def after(self) -> Outlook:
        """What is expected once the round is measured."""
        return self.steps[-1].outlook if self.steps else self.before


def choose_round(standing: Standing, goal: Goal, costs: Mapping[Pair, Cost]) -> Round:
    """The cells that take most off the variance of ranks an hour, until the goal is expected to be reached or the round
    is full."""
    planned = standing.run.plan or {}
    choice, hours = standing.choice(), standing.hours(costs, planned)
    before, steps, spent = choice.outlook(), [], 0.0
    planned_hours = total(costs, planned).hours
    left = goal.value - planned_hours if goal.kind == "budget" else np.inf
    reached = goal.reached(before)
    for step in () if reached else choice.steps(hours, goal.models(before), left):
        steps.append(step)
        spent += hours[step.model, step.benchmark]
        if round_is_full(goal, step.outlook, len(steps), hours.size):
            break
    models, benchmarks = standing.names
    number = next_round(planned)
    cells = [
        PlannedCell.model_construct(
            model=models[one.model],
            benchmark=benchmarks[one.benchmark],
            round=number,
            reason=BY_SCORES,
            probability=None,
            seed=None,
        )
        for one in steps
    ]
    reached = reached or (goal.kind == "budget" and not steps)
    return Round(goal, before, steps, cells, float(spent), reached, planned_hours)


def round_is_full(goal: Goal, outlook: Outlook, chosen: int, cells: int) -> bool:
    """Whether so many `chosen` of all `cells`, with this outlook, are a round."""
    return chosen >= LEAST_SHARE * cells and (goal.reached(outlook) or chosen >= MOST_SHARE * cells)


def describe_outlook(outlook: Outlook) -> str:
    """One line on how sure the ranks are."""
    return (
        f"expected tau with the full grid's ranking {decimal(outlook.tau)}; ranks ±{outlook.half_width.mean():.1f} "
        f"on average, ±{outlook.half_width.max():.1f} at most"
    )


def describe_round(found: Round) -> list[str]:
    """Where the ranks stand, which cells were chosen and why, and what is expected of them; a line each."""
    lines = [f"now: {describe_outlook(found.before)}"]
    if not found.steps:
        return [*lines, _without_a_round(found)]
    for cell, step in zip(found.cells, found.steps, strict=True):
        lines.append(f"  {cell.model} on {cell.benchmark}: reduces the variance of ranks by {step.reduction:.3g}")
    lines.append(
        f"round {found.cells[0].round}: {count(len(found.cells), 'cell')}, {hours_in_words(found.hours)} hours, chosen "
        "for the largest expected reduction of the variance of ranks per hour"
    )
    lines.append(f"expected after it: {describe_outlook(found.after)}")
    if not found.enough:
        lines.append(f"this does not reach {found.goal} yet: another round may follow")
    return lines


def _without_a_round(found: Round) -> str:
    if found.goal.kind == "budget":
        if found.planned_hours > found.goal.value:
            hours = hours_in_words(found.planned_hours)
            return f"nothing is added: the plan takes {hours} hours already, more than {found.goal}"
        return f"goal {found.goal} is reached: no cell that makes the ranks more certain fits into the hours left"
    if found.reached:
        return f"goal {found.goal} is reached"
    return f"goal {found.goal} is NOT reached, and no unmeasured cell is expected to make the ranks more certain"


def plan_place(run: Run, configfile: Path) -> Path:
    """The plan's file. Raises InputError where the configuration names none."""
    if run.plan is None:
        raise InputError(f"{configfile}: it has no plan.", "write one with `lm-validity plan`, and name it under plan.")
    return run.plan_file
