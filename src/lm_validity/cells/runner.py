"""A job: asks the store, computes what is missing, commits each cell, writes the manifest last; and selections.

Imports no torch, nor does what it calls, until a cell really has to be computed.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from pkgutil import resolve_name
from typing import Protocol

from lm_validity.errors import CellError
from lm_validity.run.cell import BenchmarkCell, Candidate, Cell, Choice, Job, Prompt, given, label
from lm_validity.run.rules import rule_of
from lm_validity.run.rules.benchmarks import SELECT_ADAPTER, SELECT_PROMPT
from lm_validity.run.store import Address, hold_gpus, hold_lease
from lm_validity.run.workspace import Entry, MissingCell, Workspace, write_manifest

# ----------------------------------------------------------------------------------------------------------------------
# What a job does: ask the store, compute what is missing, commit cell by cell, write the manifest last.
#
# If the cell itself is the cause (CellError), it becomes a failure record and the other cells continue. Anything else
# (a crash, out of memory, a signal) ends the process with the finished cells kept, so that Snakemake's retries apply.

log = logging.getLogger(__name__)

REPLAY_WORKER = "lm_validity.cells.replay:ReplayWorker"  # of every rule, where known scores are served


class CellWorker(Protocol):
    """What a job asks of its rule's worker; the last two where the rule has groups of cells `side_by_side`."""

    def compute(self, address: Address[Cell]) -> None:
        """Compute one cell and commit it to the store. Raises CellError for a failure that the cell causes."""

    def compute_together(self, addresses: list[Address[Cell]]) -> None:
        """Bring cells as far as they can be brought side by side; `compute` finishes each."""

    def shared_cost(self, addresses: list[Address[Cell]]) -> AbstractContextManager[None]:
        """Inside the block, what is computed is booked to the cells in equal parts."""


def run_job(workspace: Workspace, job: Job[Cell]) -> None:
    """Run one job and write its manifest(s)."""
    rule, entries = rule_of(job), run_cells(workspace, job)
    for part, path in zip(rule.parts, workspace.grid.manifests(job), strict=True):
        write_manifest(path, [entry for entry in entries if rule.part(entry.cell) == part])
    failed = sum(entry.status == "failed" for entry in entries)
    log.info("%s %s %s: %d cells, %d failed", job.rule, job.model, job.batch, len(entries), failed)


def run_cells(workspace: Workspace, job: Job[Cell]) -> list[Entry]:
    """The manifest entries of a job's cells, computed where they are not in the store."""
    rule = rule_of(job)
    if not rule.in_store:
        make = resolve_name(rule.worker)
        return [_try(cell, lambda cell: Entry(cell, "done", content=make(workspace, cell))) for cell in job.cells]

    @cache
    def worker() -> CellWorker:
        made: CellWorker = resolve_name(REPLAY_WORKER if workspace.replay else rule.worker)(workspace, job)
        return made

    entries: dict[Cell, Entry] = {}
    groups = [] if workspace.replay else rule.side_by_side(workspace.run, job)
    for cells in groups:  # each to its end before the next, whose requests take the place of these
        _compute_together(workspace, worker, cells)
        entries |= {cell: _try(cell, lambda cell: _stored(workspace, worker, cell)) for cell in cells}
    return [entries.get(cell) or _try(cell, lambda cell: _stored(workspace, worker, cell)) for cell in job.cells]


def _try(cell: Cell, finish: Callable[[Cell], Entry]) -> Entry:
    """The cell's entry. A failure that the cell itself causes is recorded."""
    try:
        return finish(cell)
    except MissingCell as error:
        return Entry(cell, "missing", error=error.problem)
    except CellError as error:
        log.error("cell failed: %s: %s", label(cell), error)
        return Entry(cell, "failed", error=error.problem, hint=error.hint)


def _lease(workspace: Workspace, address: Address[Cell]) -> AbstractContextManager[bool]:
    """The lease of a cell that is missing. Its GPUs come first: who holds a lease never waits for a job that may wait
    for this lease."""
    # the other devices name their GPUs
    if workspace.run.configuration.evaluation.device in ("auto", "cuda") and not workspace.replay:
        hold_gpus(rule_of(address.cell).size_class(workspace.run, address.cell.model).gpu, say=log.info)
    return hold_lease(workspace.store.lease(address.folder), lambda: workspace.store.has(address), say=log.info)


def _compute_together(workspace: Workspace, worker: Callable[[], CellWorker], cells: list[Cell]) -> None:
    """Bring those of the cells that are missing to their end side by side; what cannot be computed so is left to
    `_stored`, which says why."""
    missing = [address for address in map(workspace.address, cells) if not workspace.store.has(address)]
    with ExitStack() as leases:
        held = [address for address in missing if leases.enter_context(_lease(workspace, address))]
        if len(held) < 2:
            return
        log.info("computing %d cells side by side, from %s on", len(held), held[0].label)
        try:
            with worker().shared_cost(held):
                worker().compute_together(held)
        except CellError as error:
            log.info("not side by side: %s", error)


def _stored(workspace: Workspace, worker: Callable[[], CellWorker], cell: Cell) -> Entry:
    """The entry of a cell that the store holds; computed only if it does not yet."""
    stand_in = rule_of(cell).stand_in(workspace, cell)
    if stand_in is not None:
        folder = workspace.finished(stand_in)["folder"]
    else:
        address = workspace.address(cell)
        folder = address.folder
        if not workspace.store.has(address):
            with _lease(workspace, address) as is_held:
                if is_held:
                    log.info("computing %s", address.label)
                    worker().compute(address)
    workspace.store.read(folder)  # raises where it is damaged
    return Entry(cell, "done", folder=folder, sha256=workspace.store.digest(folder))


# ----------------------------------------------------------------------------------------------------------------------
# Choosing on validation: the prompt of the direct regime, and the adapter of train-before-test.
#
# Reads validation results only. An adapter is chosen over the untouched model only where it is strictly better.

PROMPT_ORDER = ("plain", "chat")  # ties go to the earlier one


def select_prompt(workspace: Workspace, cell: BenchmarkCell) -> Choice:
    """The direct regime's prompt: the best on validation, ties to plain."""
    benchmark = workspace.run.benchmarks[cell.benchmark]
    values: dict[Prompt, float] = {}
    for direct in SELECT_PROMPT.stands_on(workspace.grid, cell):
        values[given(direct.prompt)] = workspace.finished(direct)["result"]["metrics"][benchmark.metric]["value"]
    better = 1 if benchmark.higher_is_better else -1
    best = max(values, key=lambda prompt: (better * values[prompt], -PROMPT_ORDER.index(prompt)))
    return {"prompt": best, "metric": benchmark.metric, "validation_value": values[best], "validation_values": values}


def select_adapter(workspace: Workspace, cell: BenchmarkCell) -> Choice:
    """The best (learning rate, prompt, epoch) on validation for (model, benchmark, seed).

    Ties go to the earlier epoch, then the smaller rate, then plain. A fine-tune that diverged is recorded and left
    out; where all diverged the cell fails. The untouched model stays unless an adapter is strictly better than the
    best direct prompt: then `learning_rate`, `epoch` and `folder` are None and the test score is the direct cell's.
    """
    benchmark = workspace.run.benchmarks[cell.benchmark]
    better = 1 if benchmark.higher_is_better else -1
    direct = select_prompt(workspace, cell)
    rows: list[Candidate] = []
    folders: list[str] = []
    for candidate in SELECT_ADAPTER.candidates(workspace.grid, cell):
        trained = workspace.finished(candidate)
        result = trained["result"]
        rows.append(
            {
                "prompt": given(candidate.prompt),
                "learning_rate": given(candidate.learning_rate),
                "epoch": result["best_epoch"],
                "validation_value": result["best_value"],
                "diverged": result["diverged"],
                "adapted_share": result.get("adapted_share"),  # replays have none
            }
        )
        folders.append(trained["folder"])

    def order(number: int) -> tuple[float, ...]:
        row = rows[number]
        rate, prompt = float(row["learning_rate"]), PROMPT_ORDER.index(row["prompt"])
        return better * given(row["validation_value"]), -given(row["epoch"]), -rate, -prompt

    number = max((number for number, row in enumerate(rows) if not row["diverged"]), key=order, default=None)
    if number is None:
        raise CellError(
            f"every fine-tune of {cell.model} on {cell.benchmark} (seed {cell.seed}) diverged",
            "try smaller finetuning.learning_rates, or check the training data.",
        )
    chosen = rows[number]
    best = given(chosen["validation_value"])
    trained_is_better = better * best > better * direct["validation_value"]
    return {
        "metric": benchmark.metric,
        "direct_prompt": direct["prompt"],
        "direct_validation_value": direct["validation_value"],
        "candidates": rows,
        "prompt": chosen["prompt"] if trained_is_better else direct["prompt"],
        "learning_rate": chosen["learning_rate"] if trained_is_better else None,
        "epoch": chosen["epoch"] if trained_is_better else None,
        "validation_value": best if trained_is_better else direct["validation_value"],
        "folder": folders[number] if trained_is_better else None,
    }
