"""What a job does: ask the store, compute what is missing, commit cell by cell, write the manifest last.

A cell that fails by its own fault (CellError) becomes a failure record and its siblings go on; anything else (a crash,
out of memory, a signal) ends the process with the finished cells kept, so that Snakemake's retries apply.
"""

import logging
from contextlib import AbstractContextManager, ExitStack

from lm_validity.cells.replay import ReplayWorker, split_record
from lm_validity.cells.selection import run_selection
from lm_validity.cells.trials.jobs import TrialWorker
from lm_validity.cells.worker import Worker
from lm_validity.errors import CellError
from lm_validity.files import write_json
from lm_validity.run.grid import Cell, Job
from lm_validity.run.leases import hold_lease
from lm_validity.run.manifests import Entry, write_manifest
from lm_validity.run.store import Place
from lm_validity.run.trial_grid import TRIALS_RULE, TrialCell
from lm_validity.run.workspace import MissingCell, Workspace

log = logging.getLogger(__name__)


def run_job(workspace: Workspace, job: Job) -> None:
    """Run one job and write its manifest(s)."""
    if job.rule in ("select_prompt", "select_adapter"):
        entries = run_selection(workspace, job)
    else:
        worker = _worker(workspace, job)
        if job.rule == "finetune_adapter" and workspace.run.configuration.finetuning.rates_side_by_side:
            _train_together(workspace, worker, job)
        entries = [_run_cell(workspace, worker, cell) for cell in job.cells]
    for path in workspace.grid.manifests(job):
        split = path.rsplit(".", 2)[1] if job.rule == "evaluate_model" else None
        write_manifest(path, [entry for entry in entries if split is None or entry.cell.split == split])
    failed = sum(entry.status == "failed" for entry in entries)
    log.info("%s %s %s: %d cells, %d failed", job.rule, job.model, job.batch, len(entries), failed)


def _worker(workspace: Workspace, job: Job) -> Worker | TrialWorker | ReplayWorker:
    """What computes the job's cells."""
    if job.rule == TRIALS_RULE:
        return TrialWorker(workspace)
    return (ReplayWorker if workspace.replay else Worker)(workspace, job.model)


def _lease(workspace: Workspace, place: Place) -> AbstractContextManager[bool]:
    lease = workspace.store.root / ".leases" / f"{place.folder.replace('/', '.')}.json"
    return hold_lease(lease, lambda: workspace.store.has(place), say=log.info)


def _train_together(workspace: Workspace, worker: Worker | ReplayWorker, job: Job) -> None:
    """Train the learning rates of each fine-tune of the job side by side, those that are missing; what cannot be
    trained so is left to `_run_cell`, which says why."""
    alike: dict[tuple, list[Place]] = {}
    for cell in job.cells:
        place = workspace.place(cell)
        if not workspace.store.has(place):
            alike.setdefault((cell.benchmark, cell.prompt, cell.seed), []).append(place)
    for places in alike.values() if isinstance(worker, Worker) else ():
        with ExitStack() as leases:
            ours = [place for place in places if leases.enter_context(_lease(workspace, place))]
            if len(ours) < 2:
                continue
            log.info("training %d learning rates of %s side by side", len(ours), ours[0].label)
            try:
                worker.train_together(ours)
            except CellError as error:
                log.info("not side by side: %s", error)


def _run_cell(workspace: Workspace, worker: Worker | TrialWorker | ReplayWorker, cell: Cell | TrialCell) -> Entry:
    """The cell's manifest entry; computed only if the store does not have it."""
    try:
        if cell.rule == "evaluate_adapter":
            selection = workspace.selection(cell)
            if selection["folder"] is None:  # no adapter was better on validation: the direct cell's test score
                direct = workspace.grid.direct(cell.model, cell.benchmark, selection["prompt"], "test")
                return _done(workspace, cell, workspace.finished(direct)["folder"])
        place = workspace.place(cell)
        if not workspace.store.has(place):
            with _lease(workspace, place) as ours:
                if ours:
                    log.info("computing %s", place.label)
                    worker.compute(place)
        return _done(workspace, cell, place.folder)
    except MissingCell as error:
        return Entry(cell, "missing", error=error.problem)
    except CellError as error:
        log.error("cell failed: %s %s %s: %s", cell.rule, cell.model, cell.name, error)
        return Entry(cell, "failed", error=error.problem, hint=error.hint)


def _done(workspace: Workspace, cell: Cell | TrialCell, folder: str) -> Entry:
    return Entry(cell, "done", folder=folder, sha256=workspace.store.digest(folder))


def write_splits(workspace: Workspace, benchmark: str) -> None:
    """Divide a benchmark's documents and write one file a split, so that training never opens test; and the texts of
    the test documents, for filters."""
    from lm_validity.tables.documents import write_no_documents

    texts = workspace.split_path(benchmark, "test").with_name("documents.parquet")
    if workspace.replay:
        for name in ("train", "validation", "test"):
            write_json(workspace.split_path(benchmark, name), split_record(workspace, name))
        write_no_documents(texts)
        return
    from lm_validity.cells.tasks.document_table import write_documents
    from lm_validity.cells.tasks.splits import documents, make_splits
    from lm_validity.cells.tasks.tasks import TaskRecord, load_task

    settings = workspace.run.configuration.splits
    record = TaskRecord.from_json(workspace.task_record(benchmark)["record"])
    task = load_task(record, **workspace.grid.prompt_settings(benchmark))
    splits = make_splits(
        task,
        caps=(settings.train, settings.validation, settings.test),
        seed=settings.seed,
        allow_overlap=benchmark in settings.allow_overlap,
        test_only=workspace.grid.is_test_only(benchmark),
    )
    for name, split in zip(splits._fields, splits, strict=True):
        # a benchmark that is only scored has no train and validation; the rule's files say so
        record = split.to_json() if split is not None else {"split": name, "documents": 0, "digest": None}
        write_json(workspace.split_path(benchmark, name), record)
        log.info("%s %s: %d documents", benchmark, name, record["documents"])
    write_documents(benchmark, task, documents(task, splits.test), texts)
