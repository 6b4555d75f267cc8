"""Sparse plans of the agreement study: which cells are drawn before any score is known, and how a plan is written."""

import csv
import io
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_validity.config import load
from lm_validity.config.load import AUDIT, BLOCK, RULED_OUT, Plan, Planned, PlannedCell, Run
from lm_validity.errors import InputError
from lm_validity.files import make_writable, replace_file
from lm_validity.monitor.status import Estimator, Pair, total
from lm_validity.run.store import hold_lease
from lm_validity.words import count

# ----------------------------------------------------------------------------------------------------------------------
# Which models are fine-tuned on which benchmarks, decided from expected cost and chance before any score is known.

CHEAP_SHARE = 10 / 24  # of the benchmarks, for all models
BLOCK_SHARE, LEAST_BLOCK = 0.15, 9  # of the models, on all benchmarks
BALANCED_SHARE = 0.4  # of the cells
CHEAP, IN_BLOCK, BALANCED, LISTED = "cheap benchmark", "block", "balanced", "own list"


Costs = Mapping[Pair, float]  # hours by (model, benchmark)
Cells = list[PlannedCell]


def cheap_and_block(costs: Costs, parameters: Mapping[str, float], seed: int, budget: float | None = None) -> Cells:
    """The cheapest benchmarks for all models, and all benchmarks for a block of models drawn by size.

    `costs` of all (model, benchmark); `parameters` by model, for the strata. Without a budget 10 of 24 benchmarks are
    cheap; with one, as many as fit into that many hours beside the block. Raises InputError where a budget does not
    hold the block and two benchmarks.
    """
    models, benchmarks = (list(dict.fromkeys(pair[index] for pair in costs)) for index in (0, 1))
    block = draw_block(sorted(models, key=lambda name: parameters[name]), random.Random(seed))
    order = sorted(benchmarks, key=lambda name: total(costs, ((model, name) for model in models)))
    least = min(2, len(order))
    number = max(least, round(CHEAP_SHARE * len(order)))
    if budget is not None:
        fitting = (n for n in range(len(order), -1, -1) if _hours_of(costs, block, order, n) <= budget)
        number = next(fitting, -1)  # of benchmarks that all models can be fine-tuned on within the budget
        if number < least:
            needed_hours = _hours_of(costs, block, order, least)
            raise InputError(
                f"a budget of {budget:g} hours: the block of {count(len(block), 'model')} and the {least} cheapest "
                f"benchmarks need {needed_hours:.4g} hours.",
                "raise it, or leave models or benchmarks out.",
            )
    cheap = set(order[:number])
    return [
        planned_cell(pair, CHEAP, 1, 1.0, seed)
        if pair[1] in cheap
        else planned_cell(pair, IN_BLOCK, 1, block[pair[0]], seed)
        for pair in costs
        if pair[1] in cheap or pair[0] in block
    ]


def first_plan(estimator: Estimator, costs: Costs, design: str, seed: int, budget: float | None) -> Cells:
    """The first round by `cheap-and-block` or `balanced`."""
    if design == "balanced":
        return balanced(costs, seed, budget)
    rows = estimator.run.models
    return cheap_and_block(costs, {name: estimator.workload.parameters(rows[name]) for name, _ in costs}, seed, budget)


def draw_block(models: Sequence[str], rng: random.Random) -> dict[str, float]:
    """Model -> the probability with which it was drawn: one model from each of equally large groups of neighbours.

    `models`: from the smallest to the largest. 15% of them, and at least 9.
    """
    number = min(len(models), max(LEAST_BLOCK, round(BLOCK_SHARE * len(models))))
    edges = [step * len(models) // number for step in range(number + 1)]
    groups = [models[low:high] for low, high in itertools.pairwise(edges)]
    return {rng.choice(group): 1 / len(group) for group in groups}


def _hours_of(costs: Costs, block: Iterable[str], order: Sequence[str], number: int) -> float:
    cheap = set(order[:number])
    return total(costs, (pair for pair in costs if pair[1] in cheap or pair[0] in block))


def balanced(costs: Costs, seed: int, budget: float | None = None) -> Cells:
    """Every model on nearly the same number of benchmarks drawn at random, every benchmark with as many models.

    40% of the cells, or as many as a budget of hours allows. Raises InputError where that leaves a benchmark fewer
    models than a plan needs.
    """
    models, benchmarks = (list(dict.fromkeys(pair[index] for pair in costs)) for index in (0, 1))
    order = _balanced_order(models, benchmarks, random.Random(seed))
    number = round(BALANCED_SHARE * len(order))
    if budget is not None:
        spent = itertools.accumulate(costs[pair] for pair in order)
        number = sum(1 for _ in itertools.takewhile(lambda hours: hours <= budget, spent))
    chosen = set(order[:number])
    if any(sum(name == benchmark for _, name in chosen) < min(BLOCK, len(models)) for benchmark in benchmarks):
        raise InputError(
            f"{number} of {len(order)} cells leave a benchmark fewer than {BLOCK} models.", "give a larger --budget."
        )
    probability = number / len(order)
    return [planned_cell(pair, BALANCED, 1, probability, seed) for pair in costs if pair in chosen]


def _balanced_order(models: list[str], benchmarks: list[str], rng: random.Random) -> list[Pair]:
    """All pairs, so that after any number of them models and benchmarks are taken nearly equally often.

    In each turn every model, in random order, takes the benchmark taken least so far that it does not have yet.
    """
    taken = dict.fromkeys(benchmarks, 0)
    free = {model: set(benchmarks) for model in models}
    order = []
    for _ in benchmarks:
        for model in rng.sample(models, len(models)):
            benchmark = min(sorted(free[model]), key=lambda name: (taken[name], rng.random()))
            free[model].remove(benchmark)
            taken[benchmark] += 1
            order.append((model, benchmark))
    return order


def audit(costs: Costs, planned: Plan, number: int, seed: int, ruled_out: Collection[Pair] = ()) -> Cells:
    """`number` random cells of those neither planned nor ruled out, as the next round. Raises InputError where there
    are fewer."""
    free_pairs = [pair for pair in costs if pair not in planned and pair not in ruled_out]
    if number > len(free_pairs):
        raise InputError(
            f"--audit {number}: {count(len(free_pairs), 'cell is', 'cells are')} not planned.",
            "ask for at most as many.",
        )
    chosen = set(random.Random(seed).sample(free_pairs, number))
    later, probability = load.next_round(planned.values()), number / len(free_pairs)
    return [planned_cell(pair, AUDIT, later, probability, seed) for pair in free_pairs if pair in chosen]


def planned_cell(
    pair: Pair, reason: str, later: int = 1, probability: float | None = None, seed: int | None = None
) -> PlannedCell:
    """A cell of names of the sheets, of which nothing is to be validated."""
    model, benchmark = pair
    return PlannedCell.model_construct(
        model=model, benchmark=benchmark, round=later, reason=reason, probability=probability, seed=seed
    )


# ----------------------------------------------------------------------------------------------------------------------
# Where a plan is written, and how: whole and readable again, or not at all.


def check_place(run: Run, configfile: Path, output: Path | None, *, adds_a_round: bool) -> Path:
    """The file to write. Raises InputError where that would change a plan instead of adding to it."""
    if "agreement" not in run.configuration.studies:
        raise InputError(f"{configfile}: a plan is for the study agreement.", "add it to studies.")
    if run.plan is not None and not adds_a_round:
        hint = "add a round with --cells or --audit, or set plan to null first."
        raise InputError(f"{configfile}: it has a plan already, {run.configuration.plan}.", hint)
    path = output or (configfile.parent / "plan.tsv" if run.plan is None else run.plan_file)
    if not is_plan_of(run, path) and (path.exists() or path.is_symlink()):
        raise InputError(f"{path}: exists already.", "name another file with --output, or remove it.")
    return path


def is_plan_of(run: Run, path: Path) -> bool:
    """Whether the configuration names this file as its plan."""
    return run.plan is not None and path.resolve() == run.plan_file.resolve()


def listed_cells(run: Run, path: Path) -> list[PlannedCell]:
    """The user's own list as the next round. Raises InputError for a cell that is planned already, or ruled out."""
    listed, previous, ruled_out = load.read_cells(path, **run.agreement_names._asdict()), run.plan or {}, run.ruled_out
    later = load.next_round(previous.values())
    for pair in (pair for pair in listed if pair in ruled_out or pair in previous):
        subject = f"{path}: model {pair[0]!r}, benchmark {pair[1]!r}"
        if pair in ruled_out:
            raise InputError(f"{subject}: the plan rules it out ({RULED_OUT}).", "take its row out of the plan first.")
        raise InputError(f"{subject}: planned already, in round {previous[pair].round}.", "list new cells only.")
    return [cell.model_copy(update={"round": later, "reason": cell.reason or LISTED}) for cell in listed.values()]


def write_plan(plan_path: Path, planned: Sequence[PlannedCell], run: Run) -> None:
    """Write the sheet, and what the run's plan rules out. Raises InputError where it cannot be read back as a plan of
    this run, or where it has changed since the run was loaded. Of two commands, one waits and then sees that."""
    previous = {**run.plan, **run.ruled_out} if run.plan is not None and is_plan_of(run, plan_path) else {}
    rows = (*planned, *run.ruled_out.values())
    write_sheet(plan_path, rows, previous, check=lambda path: load.read_plan(path, *run.agreement_names))


Check = Callable[[Path], object]


def write_sheet(path: Path, rows: Sequence[Planned], previous: Mapping[Any, Planned], check: Check) -> None:
    """Write rows of a plan of any study. Choosing them takes minutes, in which another command may have added a round
    that this one would remove: raises InputError where the file no longer holds the rows of `previous`, where what was
    written cannot be read back by `check`, and where nothing can be written."""
    kind, text = type(rows[0]), io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(kind.model_fields)
    values = ([getattr(row, name) for name in kind.model_fields] for row in rows)
    writer.writerows([f"{value:.6g}" if isinstance(value, float) else value for value in of_row] for of_row in values)
    make_writable(path.parent)
    with hold_lease(path.with_name(f".{path.name}.lease"), finished=lambda: False):
        if (load.read_sheet(path, kind) if path.exists() else {}) != previous:
            raise InputError(f"{path}: it was changed while this command ran.", "run the command again.")
        with replace_file(path) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")
            try:
                check(temporary)
            except InputError as error:
                raise InputError(error.problem.replace(str(temporary), str(path)), error.hint) from None
