"""What a job does: ask the store, load the model once, compute what is missing, commit cell by cell, manifest last.

A cell that fails by its own fault (CellError) becomes a failure record and its siblings go on; anything else (a crash,
out of memory, a signal) ends the process with the finished cells kept, so that Snakemake's retries apply.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from functools import cached_property

from lm_validity.cells.records import MissingCell, Workspace
from lm_validity.cells.selection import run_selection
from lm_validity.config.grid import Cell, Job
from lm_validity.errors import CellError, InputError
from lm_validity.store.cells import Place
from lm_validity.store.leases import hold_lease
from lm_validity.store.manifests import Entry, write_manifest

log = logging.getLogger(__name__)


def run_job(workspace: Workspace, job: Job) -> None:
    """Run one job and write its manifest(s)."""
    if job.rule in ("select_prompt", "select_adapter"):
        entries = run_selection(workspace, job)
    else:
        worker = Worker(workspace, job)
        entries = [worker.run_cell(cell) for cell in job.cells]
        worker.finish()
    for path in workspace.grid.manifests(job):
        split = path.rsplit(".", 2)[1] if job.rule == "evaluate_model" else None
        write_manifest(path, [entry for entry in entries if split is None or entry.cell.split == split])
    failed = sum(entry.status == "failed" for entry in entries)
    log.info("%s %s %s: %d cells, %d failed", job.rule, job.model, job.batch, len(entries), failed)


class Worker:
    """One process's loaded model, tasks and documents, shared by the cells of its job."""

    def __init__(self, workspace: Workspace, job: Job):
        self.workspace, self.job = workspace, job
        self.run, self.store = workspace.run, workspace.store
        self.model = self.run.models[job.model]
        self._loaded: tuple | None = None
        self._load_error: CellError | None = None
        self._tasks: dict = {}
        self._documents: dict = {}
        self.computed = 0

    # ---- one cell -----------------------------------------------------------------------------------------------

    def run_cell(self, cell: Cell) -> Entry:
        """The cell's manifest entry; computed only if the store does not have it."""
        try:
            if cell.rule == "evaluate_adapter":
                selection = self.workspace.selection(cell)
                if selection["folder"] is None:
                    return self._direct_instead(cell, selection)
            place = self.workspace.place(cell)
            if not self.store.has(place):
                self._compute(cell, place)
            return Entry(cell, "done", folder=place.folder)
        except MissingCell as error:
            return Entry(cell, "missing", error=error.problem)
        except CellError as error:
            log.error("cell failed: %s %s %s: %s", cell.rule, cell.model, cell.name, error)
            return Entry(cell, "failed", error=error.problem, hint=error.hint)

    def _direct_instead(self, cell: Cell, selection: dict) -> Entry:
        """No adapter beat the untouched model on validation: the test score is the direct cell's."""
        direct = self.workspace.grid.direct(cell.model, cell.benchmark, selection["prompt"], "test")
        return Entry(cell, "done", folder=self.workspace.finished(direct)["folder"])

    def _compute(self, cell: Cell, place: Place) -> None:
        lease = self.store.root / ".leases" / f"{place.folder.replace('/', '.')}.json"
        with hold_lease(lease, lambda: self.store.has(place), say=log.info) as ours:
            if not ours:
                return
            started = Stopwatch()
            log.info("computing %s", place.label)
            compute = {
                "evaluate_model": self._evaluate_model,
                "finetune_adapter": self._finetune_adapter,
                "evaluate_adapter": self._evaluate_adapter,
            }[cell.rule]
            with compute(cell, place) as (result, write_files):
                self.store.commit(place, result, started.sidecar(self), write_files)
            self.computed += 1

    # ---- the three kinds of cells -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _evaluate_model(self, cell: Cell, place: Place) -> Iterator[tuple]:
        model = self._language_model(cell.checkpoint)
        evaluation = self._evaluate(model, cell.benchmark, cell.split, cell.prompt)
        yield _scores(evaluation), lambda folder: _write_items(evaluation, folder)

    @contextlib.contextmanager
    def _evaluate_adapter(self, cell: Cell, place: Place) -> Iterator[tuple]:
        from lm_validity.cells.finetuning import use_adapter

        selection = self.workspace.selection(cell)
        damage = self.store.damage(selection["folder"])
        if damage:
            raise InputError(
                f"{self.store.path(selection['folder'])}: {damage}.",
                "run `lm-validity preflight`, then the workflow again: the cell is computed anew.",
            )
        model = self._language_model("final")
        with use_adapter(model, self.store.path(selection["folder"]) / "adapter"):
            evaluation = self._evaluate(model, cell.benchmark, "test", selection["prompt"])
        yield _scores(evaluation), lambda folder: _write_items(evaluation, folder)
