"""The next round of a plan: cells, models that join, batches of the bias study."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import pandas as pd

from lm_validity.config import load
from lm_validity.config.load import BY_SCORES, JOINS, RULED_OUT, Plan, PlannedBatch, PlannedCell, Run, next_round
from lm_validity.errors import InputError, again, did_you_mean
from lm_validity.monitor.render import hours_in_words
from lm_validity.monitor.status import Pair, total
from lm_validity.plans.drawing import planned_cell, write_sheet
from lm_validity.results.put import Rows
from lm_validity.run.rules.pretrain_on_test import PRETRAIN_ON_TEST
from lm_validity.studies.agreement.incomplete import NO_PROCESS, Fitted, drawn_tables, fit_cells
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import average_ranks
from lm_validity.studies.agreement.statistics.sparse import MOST_CELLS, MOST_MODELS, mean_standing, rank_draws
from lm_validity.studies.bias.numbers import OPEN, stop_rows, stop_words
from lm_validity.studies.bias.trials import read_trials
from lm_validity.tables.counted import Sources
from lm_validity.tables.metrics import PERPLEXITY
from lm_validity.tables.schema import TRAINED
from lm_validity.words import count, decimal, listing

# ----------------------------------------------------------------------------------------------------------------------
# Which unmeasured cells would say most about the ranks for what they cost, from draws of the whole table.

LEAST_VARIANCE = 1e-12
DRAWS = 4000  # that a choice takes, where they fit into memory; half of them to learn from
DRAWS_A_CELL = 4  # to learn from, for each chosen cell: with fewer, lines through them are mostly chance


class Outlook(NamedTuple):
    """How sure the ranks are. `tau`: expected agreement of the estimated ranking with the one that all cells would
    give; `half_width`: (models,) half of the central 95% of each true rank less the estimated one."""

    tau: float
    half_width: np.ndarray


class Step(NamedTuple):
    """A chosen cell (`model` and `benchmark` numbers), and what is expected once it and those before it are measured.

    `reduction`: of the sum of the rank variances it was chosen for, at least 0.
    """

    model: int
    benchmark: int
    reduction: float
    outlook: Outlook


class CellChoice:
    """Cells chosen one after the other from `tables` (draws, models, benchmarks), in which measured cells are the same
    in every draw.

    What a cell would say of the ranks is taken to be linear: measuring y leaves of a rank r what a straight line in y
    does not explain, so that the variance falls by cov(r, y)² / var(y). After a choice, ranks, standings and all cells
    are replaced by what the line leaves, which makes the next choice one that knows the first.

    Lines and choices are learnt from the first half of the draws. What is expected of them is read off the second half,
    which had no part in them: on its own draws a line also explains what only chance has in common with the cell.
    """

    def __init__(self, tables: np.ndarray):
        self._half, self._open = len(tables) // 2, np.ptp(tables, axis=0) > 0
        self._standing = mean_standing(tables)
        self._standing_left, self._ranks_left, self._cells_left = (
            values - values[: self._half].mean(axis=0)
            for values in (self._standing, rank_draws(tables), tables[:, self._open])
        )

    def outlook(self) -> Outlook:
        """As it is now, or is expected to be once the chosen cells are measured.

        A draw is a table that may be the true one. Its standings less what is left unexplained are those that would be
        estimated then. The mean of tau between the two over draws is the agreement to expect, and the central 95% of
        the true rank less the estimated one is how wide a rank's interval must be, wherever the model turns out to be.
        """
        truth, standing_left = self._standing[self._half :], self._standing_left[self._half :]
        estimated = truth - standing_left
        low, high = np.quantile(average_ranks(truth.T) - average_ranks(estimated.T), [0.025, 0.975], axis=1)
        first, second = np.triu_indices(truth.shape[1], 1)
        signs = [np.sign(values[:, first] - values[:, second]) for values in (estimated, truth)]
        return Outlook(float((signs[0] * signs[1]).mean()), (high - low) / 2)

    def reductions(self, models: np.ndarray) -> np.ndarray:
        """(models, benchmarks) by how much the sum of the rank variances of `models` (a mask) is expected to fall.

        Chance correlations of n draws, var(r) / n for each rank, are taken off.
        """
        ranks, cells = self._ranks_left[: self._half, models], self._cells_left[: self._half]
        variance = (cells**2).mean(axis=0)
        shared = np.tensordot(ranks, cells, (0, 0)) / len(cells)
        explained = (shared**2).sum(axis=0) - variance * (ranks**2).mean(axis=0).sum() / len(cells)
        reductions = np.zeros(self._open.shape)
        shares = np.divide(explained, variance, out=np.zeros_like(variance), where=variance > LEAST_VARIANCE)
        reductions[self._open] = shares.clip(0)
        return reductions

    def measure(self, model: int, benchmark: int) -> None:
        """Count a cell as measured: what is left unexplained shrinks by what it would tell."""
        index = np.count_nonzero(self._open.ravel()[: model * self._open.shape[1] + benchmark])
        value = self._cells_left[:, index].copy()
        learnt = value[: self._half]
        for values in (self._standing_left, self._ranks_left, self._cells_left):
            line = np.tensordot(learnt, values[: self._half], 1) / (learnt @ learnt)
            values -= np.multiply.outer(value, line)

    def steps(self, hours: np.ndarray, models: np.ndarray, most_hours: float = np.inf) -> Iterator[Step]:
        """The cell with the greatest expected reduction an hour, then the next, while there is one that helps, and at
        most an eighth as many as there are draws.

        `hours`: (models, benchmarks) what a cell costs, inf for those that cannot be chosen. `models`: (models,) the
        mask of those whose ranks matter. `most_hours`: of all chosen cells together.
        """
        free, hours_left, variance_before = np.isfinite(hours), most_hours, self._unsure(models)
        for _ in range(self._half // DRAWS_A_CELL):
            reductions = self.reductions(models) * (free & (hours <= hours_left))
            rate = np.divide(reductions, hours, out=np.zeros_like(reductions), where=(reductions > 0) & (hours > 0))
            model, benchmark = np.unravel_index(rate.argmax(), rate.shape)
            if rate[model, benchmark] <= 0:
                return
            free[model, benchmark] = False
            hours_left -= float(hours[model, benchmark])
            self.measure(model, benchmark)
            now = self._unsure(models)
            yield Step(int(model), int(benchmark), max(0.0, variance_before - now), self.outlook())
            variance_before = now

    def _unsure(self, models: np.ndarray) -> float:
        """The sum of the rank variances that are left, of draws that nothing was learnt from."""
        return float((self._ranks_left[self._half :, models] ** 2).mean(axis=0).sum())


# ----------------------------------------------------------------------------------------------------------------------
# The next round of a plan: which unmeasured cells bring the ranks nearer to a goal for the fewest hours.
#
# Scores decide which cells these are, so they enter ranks and predictions only (`PlannedCell.by_scores`). Whether the
# goal is reached is asked of widths and of expected agreement, never of a tau or a p.

# of all cells, that a round takes: a round is a run of the workflow, and what is expected of late cells is less exact
LEAST_SHARE, MOST_SHARE = 0.02, 0.1
NAMED = 6  # cells or batches listed where some are missing


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
        number = np.nan
    if not 0 < number < {"tau": 1, "rank": np.inf, "budget": np.inf}.get(kind, 0):
        raise InputError(f"--goal {text}: not a goal.", hint)
    return Goal(cast(Kind, kind), number)


class Standing(NamedTuple):
    """What the measured cells of a run say of its ranks."""

    run: Run
    matrix: ScoreMatrix
    fitted: Fitted

    @property
    def names(self) -> tuple[tuple[str, ...], list[str]]:
        """Models and benchmarks in the order of the tables' axes."""
        return self.matrix.models, self.matrix.task_names()

    def tables(self) -> np.ndarray:
        """(draws, models, benchmarks) what the table may be, for a choice."""
        return drawn_tables(self.fitted, DRAWS)

    def hours(self, costs: Mapping[Pair, float], planned: Mapping[Pair, PlannedCell]) -> np.ndarray:
        """(models, benchmarks) hours of each cell that is not planned, ruled out or measured; inf for the others."""
        models, benchmarks = self.names
        free = costs.keys() - planned.keys() - self.run.ruled_out.keys()
        free_hours = [[costs[m, b] if (m, b) in free else np.inf for b in benchmarks] for m in models]
        return np.where(self.fitted.process.measured, np.inf, free_hours)


def standing_of(run: Run, also: tuple[str, ...] = ()) -> Standing:
    """From the merged tables, with the models `also` that may have no score there. Raises InputError where the tables
    are not there, or too small for a prediction."""
    scores, configuration = run.results / "tables" / "scores.parquet", run.configuration
    if not scores.is_file():
        raise InputError(
            f"{scores}: no such file.", "run the workflow first. Cells are chosen by the scores it measures."
        )
    sources = Sources(scores, configuration.models, configuration.benchmarks, plan=configuration.plan)
    matrix = read_score_matrix(sources, also)
    fitted = fit_cells(matrix, TRAINED)
    if fitted is None:
        is_measured = np.isfinite(matrix.measured(TRAINED)[:, ~matrix.is_corpus])
        too_many = is_measured.sum() > MOST_CELLS or len(is_measured) > MOST_MODELS
        by_hand = "choose the cells yourself: `lm-validity plan --cells LIST.tsv` adds a round of them."
        hint = by_hand if too_many else "measure more cells first."
        raise InputError(f"{scores}: no model of the scores. {NO_PROCESS}", hint)
    return Standing(run, matrix, fitted)


def check_finished(standing: Standing, planned: Mapping[Pair, PlannedCell]) -> None:
    """Raises InputError where planned cells have no score yet: what they say would come too late."""
    run, (models, benchmarks) = standing.run, standing.names
    # of the run, not of the table: a benchmark may have no score at all
    tasks = [name for name in run.agreement_names[1] if run.benchmarks[name].output_type != PERPLEXITY]
    measured = {(models[i], benchmarks[j]) for i, j in zip(*np.nonzero(standing.fitted.process.measured), strict=True)}
    open_cells = [f"{m} on {b}" for m, b in planned if b in tasks and (m, b) not in measured]
    otherwise = "plan the others only (`lm-validity plan --cells`)"
    if run.plan:
        otherwise = f"write {RULED_OUT!r} as the reason of their rows of {run.configuration.plan}"
    words = "planned cell is", "planned cells are"
    _refuse_open(run, open_cells, words, f" If a fine-tune cannot succeed, {otherwise}.")


def _refuse_open(run: Run, parts: list[str], words: tuple[str, str], otherwise: str = "") -> None:
    """Raises InputError where planned parts of a study have no result yet."""
    if parts:
        raise InputError(
            f"{count(len(parts), *words)} not in {run.results}/tables yet ({listing(parts, NAMED)}).",
            f"run the workflow first.{otherwise}",
        )


class Round(NamedTuple):
    """The steps of a round in the order of choice, and the outlook before them. `reached`: the goal needs none."""

    goal: Goal
    outlook_before: Outlook
    steps: list[Step]
    cells: list[PlannedCell]
    hours: float
    reached: bool
    planned_hours: float  # of the whole plan before the round

    @property
    def after(self) -> Outlook:
        """What is expected once the round is measured."""
        return self.steps[-1].outlook if self.steps else self.outlook_before


def choose_round(standing: Standing, goal: Goal, costs: Mapping[Pair, float]) -> Round:
    """The cells that take most off the variance of ranks an hour, until the goal is expected to be reached or the round
    is full."""
    planned = standing.run.plan or {}
    choice, hours = CellChoice(standing.tables()), standing.hours(costs, planned)
    outlook_before, steps, spent = choice.outlook(), [], 0.0
    planned_hours = total(costs, planned)
    hours_left = goal.value - planned_hours if goal.kind == "budget" else np.inf
    reached = goal.reached(outlook_before)
    for step in () if reached else choice.steps(hours, goal.models(outlook_before), hours_left):
        steps.append(step)
        spent += hours[step.model, step.benchmark]
        if round_is_full(goal, step.outlook, len(steps), hours.size):
            break
    models, benchmarks = standing.names
    number = next_round(planned.values())
    cells = [planned_cell((models[step.model], benchmarks[step.benchmark]), BY_SCORES, number) for step in steps]
    reached = reached or (goal.kind == "budget" and not steps)
    return Round(goal, outlook_before, steps, cells, float(spent), reached, planned_hours)


def round_is_full(goal: Goal, outlook: Outlook, chosen: int, cells: int) -> bool:
    """Whether so many `chosen` of all `cells`, with this outlook, are a round."""
    return chosen >= LEAST_SHARE * cells and (goal.reached(outlook) or chosen >= MOST_SHARE * cells)


def describe_outlook(outlook: Outlook) -> str:
    """One line on how sure the ranks are."""
    return (
        f"expected tau with the full grid's ranking {decimal(outlook.tau)}; ranks ±{outlook.half_width.mean():.1f} "
        f"on average, ±{outlook.half_width.max():.1f} at most"
    )


def describe_round(chosen: Round) -> list[str]:
    """Where the ranks stand, which cells were chosen and why, and what is expected of them; a line each."""
    lines = [f"now: {describe_outlook(chosen.outlook_before)}"]
    if not chosen.steps:
        return [*lines, _without_a_round(chosen)]
    for cell, step in zip(chosen.cells, chosen.steps, strict=True):
        lines.append(f"  {cell.model} on {cell.benchmark}: reduces the variance of ranks by {step.reduction:.3g}")
    lines.append(
        f"round {chosen.cells[0].round}: {count(len(chosen.cells), 'cell')}, {hours_in_words(chosen.hours)} hours, "
        "chosen for the largest expected reduction of the variance of ranks per hour"
    )
    lines.append(f"expected after it: {describe_outlook(chosen.after)}")
    if chosen.goal.kind != "budget" and not chosen.goal.reached(chosen.after):
        lines.append(f"this does not reach {chosen.goal} yet: another round may follow")
    return lines


def _without_a_round(chosen: Round) -> str:
    if chosen.goal.kind == "budget":
        if chosen.planned_hours > chosen.goal.value:
            hours = hours_in_words(chosen.planned_hours)
            return f"nothing is added: the plan takes {hours} hours already, more than {chosen.goal}"
        return f"goal {chosen.goal} is reached: no cell that makes the ranks more certain fits into the hours left"
    if chosen.reached:
        return f"goal {chosen.goal} is reached"
    return f"goal {chosen.goal} is NOT reached, and no unmeasured cell is expected to make the ranks more certain"


def plan_place(run: Run, configfile: Path) -> Path:
    """The plan's file. Raises InputError where the configuration names none."""
    if run.plan is None:
        raise InputError(f"{configfile}: it has no plan.", "write one with `lm-validity plan`, and name it under plan.")
    return run.plan_file


# ----------------------------------------------------------------------------------------------------------------------
# A model that joins a finished study: which few cells place it among the others, at what cost, with what interval.
#
# The cells are chosen by what the other models' scores and its own direct ones say of its rank, so they enter ranks and
# predictions only (`PlannedCell.by_scores`).

COMPLETE = "complete"


class JoiningCell(NamedTuple):
    """A cell of the joining model, hours of it and those before it, and its rank's expected half-width after them."""

    benchmark: str
    hours: float
    half_width: float


class Joining(NamedTuple):
    """`rank` and `interval`: the model's as predicted without a train-before-test score. `places`: its cells in the
    order of choice; `whole_hours`: of all of them."""

    model: str
    models: int
    rank: float
    interval: tuple[float, float]
    half_width: float
    places: list[JoiningCell]
    whole_hours: float

    def reaches(self, goal: Goal) -> bool:
        """Whether its cells are expected to make the interval as narrow as asked, or a budget pays for one of them."""
        if goal.kind == "budget":
            return bool(self.until(goal))
        return min([self.half_width, *(joining_cell.half_width for joining_cell in self.places)]) <= goal.value

    def until(self, goal: Goal) -> list[JoiningCell]:
        """The places needed for a goal of width, or those that a budget of hours pays for."""
        if goal.kind == "budget":
            return [joining_cell for joining_cell in self.places if joining_cell.hours <= goal.value]
        if self.half_width <= goal.value:
            return []
        enough = (i for i, joining_cell in enumerate(self.places, 1) if joining_cell.half_width <= goal.value)
        return self.places[: next(enough, len(self.places))]


def earlier_cells(run: Run, model: str) -> Plan:
    """The cells of the study that the model joins: those of its plan, or all of the other models.

    Raises InputError for a model that is not in the sheet, or is planned already.
    """
    models, benchmarks = run.agreement_names
    if model not in models:
        hint = did_you_mean(model, models, f"add its row to {run.configuration.models} first.")
        raise InputError(f"{run.configuration.models}: no model {model!r} of the agreement study.", hint)
    if run.plan is None:
        pairs = [(name, benchmark) for name in models if name != model for benchmark in benchmarks]
        return {pair: planned_cell(pair, COMPLETE) for pair in pairs}
    benchmarks_of_model = [benchmark for name, benchmark in run.plan if name == model]
    if benchmarks_of_model:
        raise InputError(
            f"{run.configuration.plan}: {model!r} is planned on "
            f"{count(len(benchmarks_of_model), 'benchmark')} already.",
            f"add further cells with {again('plan next --goal rank=2')}.",
        )
    return run.plan


def place_model(run: Run, model: str, costs: Mapping[Pair, float]) -> Joining:
    """What a model's cells would say of its rank, the one that says most an hour first.

    Raises InputError where cells of the study are not measured, or the model has a train-before-test score.
    """
    standing, earlier = standing_of(run, (model,)), earlier_cells(run, model)
    check_finished(standing, earlier)
    models, benchmarks = standing.names
    row = models.index(model)
    if standing.fitted.process.measured[row].any():
        raise InputError(
            f"{model!r} has train-before-test scores already.",
            f"add further cells with {again('plan next --goal rank=2')}.",
        )
    tables = standing.tables()
    is_model, places = np.arange(len(models)) == row, list[JoiningCell]()
    hours_of_model = np.where(is_model[:, None], standing.hours(costs, {}), np.inf)  # (models, benchmarks)
    for step in CellChoice(tables).steps(hours_of_model, is_model):
        spent = hours_of_model[row, step.benchmark] + (places[-1].hours if places else 0.0)
        places.append(JoiningCell(benchmarks[step.benchmark], float(spent), float(step.outlook.half_width[row])))
    low, high = np.quantile(rank_draws(tables)[:, row], [0.025, 0.975])
    return Joining(
        model,
        len(models),
        float(average_ranks(mean_standing(tables).mean(axis=0))[row]),
        (float(low), float(high)),
        float(high - low) / 2,
        places,
        total(costs, ((model, name) for name in benchmarks)),
    )


def joining_cells(joining: Joining, goal: Goal, earlier: Plan) -> list[PlannedCell]:
    """The planned cells of the model, as the next round."""
    number = next_round(earlier.values())
    return [
        planned_cell((joining.model, joining_cell.benchmark), JOINS, number) for joining_cell in joining.until(goal)
    ]


def describe_cells(joining: Joining, goal: Goal) -> str:
    """One line on whether the goal is reached, and with how many cells."""
    number, reached = len(joining.until(goal)), joining.reaches(goal)
    if goal.kind == "budget":
        return f"{number} cells fit into {goal}" if reached else f"no cell fits into {goal}"
    if not reached:
        return f"{goal} is NOT expected to be reached, not even with all {number} cells"
    return f"{goal} is expected to be reached with {number} cells" if number else f"{goal} is reached without a cell"


def describe_joining(joining: Joining) -> list[str]:
    """Where the model is expected, and what each further cell costs and brings; a line each."""
    lines = [
        f"{joining.model} among {joining.models} models, without a fine-tune: rank {joining.rank:.0f}, 95% interval "
        f"{joining.interval[0]:.0f} to {joining.interval[1]:.0f} (±{joining.half_width:.1f})",
        f"{'cells':>5} {'hours':>9} {'of all':>7} {'rank ±':>7}  with",
    ]
    for number, joining_cell in enumerate(joining.places, 1):
        share = f"{joining_cell.hours / joining.whole_hours:.1%}" if joining.whole_hours else ""
        lines.append(
            f"{number:>5} {hours_in_words(joining_cell.hours):>9} {share:>7} {joining_cell.half_width:>7.1f}  "
            f"{joining_cell.benchmark}"
        )
    return lines


# ----------------------------------------------------------------------------------------------------------------------
# The next batch of the bias study: more subsamples for the tasks whose interval is still too wide.
#
# Whether a task goes on is asked of the width of its interval, never of where it lies.


class AddedBatch(NamedTuple):
    """Lines on every task, and how many tasks get another batch."""

    lines: list[str]
    tasks: int


def add_batch(run: Run) -> AddedBatch:
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
    rows = Rows("bias")
    stop_rows(rows, trials, plan)
    stops = [(str(row.said["experiment"]), str(row.subject), row.text) for row in rows.all("stop_state")]
    number = next_round(plan.rows.values(), first=2)
    added = [
        PlannedBatch.model_construct(
            experiment=experiment,
            task=task,
            round=number,
            subsamples=plan.planned(experiment, task) + plan.batch,
            half_width=None if row is None else row.value,
        )
        for experiment, task, state in stops
        if state == OPEN
        for row in [rows.row("stop_half_width", experiment=experiment, subject=task)]
    ]
    several = len(run.bias.experiments) > 1
    lines = [f"  {f'{stop[0]}, ' if several else ''}{stop_words(rows, stop[0], stop[1])}" for stop in stops]
    if not added:
        last = f"no task of the bias study gets another batch: each is ±{plan.half_width:g} or narrower, has all, or "
        last += "would stay too wide"
        return AddedBatch([*lines, last], 0)
    plan_path = Path(run.bias.plan)
    write_sheet(
        plan_path,
        [*plan.rows.values(), *added],
        plan.rows,
        check=lambda path: load.read_bias_plan(run.bias.model_copy(update={"plan": str(path)}), run.tasks),
    )
    sizes = {min(plan.batch, plan.subsamples[row.experiment] - plan.planned(row.experiment, row.task)) for row in added}
    sizes_in_words = " to ".join(str(size) for size in sorted({min(sizes), max(sizes)}))
    return AddedBatch(
        [*lines, f"{plan_path}: {sizes_in_words} more subsamples for {len(added)} of {len(stops)} tasks"], len(added)
    )


def _check_finished(run: Run, trials: pd.DataFrame) -> None:
    """Raises InputError where planned subsamples have no trial yet: what they say would come too late."""
    keys = ["experiment", "language_model", "task", "m", "n"]
    finished = {
        (*key[0:2], *map(str, key[2:])): set(subsamples) for key, subsamples in trials.groupby(keys)["subsample"]
    }
    missing = [
        f"{cell.model} {cell.name}"
        for model in run.language_models
        for _, cell in PRETRAIN_ON_TEST.cells_by_round(run, model)
        if not set(range(cell.first, cell.last + 1))
        <= finished.get((cell.experiment, cell.model, cell.task, str(cell.m), str(cell.n)), set())
    ]
    _refuse_open(run, missing, ("planned batch is", "planned batches are"))
