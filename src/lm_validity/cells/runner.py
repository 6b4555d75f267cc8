"""A job: asks the store, computes what is missing, commits each cell, writes the manifest last."""

import contextlib
import importlib.metadata
import logging
import os
import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from importlib import import_module
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lm_validity.cells.models.prefetch import check_unchanged
from lm_validity.config.load import Run
from lm_validity.config.sheets import Benchmark, Model
from lm_validity.errors import INSTALL_CUDA, CellError, InputError
from lm_validity.files import read_json, write_json
from lm_validity.run.cell import BenchmarkCell, Cell, Job, label
from lm_validity.run.gpus import hold_gpus
from lm_validity.run.rules import benchmark_rule_of, rule_of
from lm_validity.run.scoring import document_bos, prompt_settings
from lm_validity.run.store import Entry, Place, hold_lease, write_manifest
from lm_validity.run.workspace import MissingCell, Workspace

if TYPE_CHECKING:
    from lm_validity.cells.models.language_model import LanguageModel
    from lm_validity.cells.tasks.tasks import AnyTask, Documents


# ----------------------------------------------------------------------------------------------------------------------
# What one process keeps while it computes the cells of a model: the loaded model, tasks and documents.

Files = Callable[[Path], None]


class SharedCost(NamedTuple):
    """A cell's part of what was computed for several cells side by side. resumed: an attempt that was killed had
    begun on the cell."""

    wall: float
    cpu: float
    counters: dict[str, Any]
    together: int
    resumed: bool


class Worker(ABC):
    """Computes cells of one rule, and of one model or of adapters that share its weights. torch is imported when the
    first cell really has to be computed."""

    def __init__(self, workspace: Workspace, job: Job[BenchmarkCell]):
        self.workspace, self.run, self.store = workspace, workspace.run, workspace.store
        self.model = self.run.models[job.model]  # of the cell at hand
        self.size_class = self.run.configuration.size_classes[self.model.size_class]
        self._points = {(cell.model, cell.checkpoint) for cell in job.cells if cell.checkpoint}
        self._loaded: tuple[dict[str, Any], LanguageModel] | None = None  # a checkpoint's record, and the model
        self._load_errors: dict[tuple[str, str], CellError] = {}
        self._tasks: dict[str, AnyTask] = {}
        self._notes: dict[str, object] = {}  # of the cell at hand, for its sidecar
        self._shared: dict[str, SharedCost] = {}  # by folder, of cells that are not committed yet

    def compute(self, place: Place[BenchmarkCell]) -> None:
        """Compute one cell and commit it to the store. Raises CellError for a failure that the cell causes."""
        from lm_validity.cells.models.provenance import Stopwatch

        stopwatch, self._notes = Stopwatch(), {}
        self.model = self.run.models[place.cell.model]
        result, write_files = self._compute(place)
        assert self._loaded is not None
        lm, shared = self._loaded[1], self._shared.pop(place.folder, None)
        if shared is not None:
            stopwatch.add(shared.wall, shared.cpu)
            lm.counters.add(shared.counters)
            self._notes["side_by_side"] = shared.together
            if not shared.resumed:
                self._notes["resumed_epochs"] = 0  # what the cell found was its own
        self.store.commit(place, result, stopwatch.sidecar(lm) | self._notes, write_files)
        # only now: a job killed before the commit resumes from it
        shutil.rmtree(self.workspace.work / place.folder, ignore_errors=True)

    @contextlib.contextmanager
    def shared_cost(self, places: list[Place[BenchmarkCell]]) -> Iterator[None]:
        """What is computed inside the block is booked to the cells in equal parts."""
        from lm_validity.cells.models.provenance import Stopwatch
        from lm_validity.cells.models.scorer import equal_part

        stopwatch, parts = Stopwatch(), len(places)
        resumed = [(self.workspace.work / place.folder).exists() for place in places]
        try:
            yield
        finally:
            if self._loaded is not None:
                lm, (wall, cpu) = self._loaded[1], stopwatch.seconds
                counts, lm.counters = lm.counters.to_json(), type(lm.counters)()
                for number, place in enumerate(places):
                    part = equal_part(counts, number, parts)
                    self._shared[place.folder] = SharedCost(wall / parts, cpu / parts, part, parts, resumed[number])

    @abstractmethod
    def _compute(self, place: Place[BenchmarkCell]) -> tuple[dict[str, Any], Files]:
        """(result, function that writes the cell's files into a folder)."""

    @property
    def _system_instruction(self) -> str | None:
        return self.run.configuration.evaluation.system_instruction

    # ---- what cells share ---------------------------------------------------------------------------------------

    @property
    def _device(self) -> str:
        return resolve_device(self.run.configuration.evaluation.device, self.model.size_class, self.size_class.gpu)

    def _language_model(self, checkpoint: str) -> "LanguageModel":
        """The model of the cell at hand at a checkpoint, loaded once; only one is held at a time."""
        key = (self.model.model, checkpoint)
        if key in self._load_errors:
            raise self._load_errors[key]
        point = self._point(*key)
        if self._loaded is None or self._loaded[0] is not point:
            check_unchanged(self.model.model, point)
            try:
                self._loaded = point, self._exchange_adapter(point) or self._load(point)
            except CellError as error:
                self._load_errors[key] = error
                raise
        return self._loaded[1]

    def _point(self, model: str, checkpoint: str) -> dict[str, Any]:
        """The login node's record of a checkpoint, read once."""
        point: dict[str, Any] = self.workspace.model_record(model)["checkpoints"][checkpoint]
        return point

    def _load(self, point: dict[str, Any]) -> "LanguageModel":
        from lm_validity.cells.models.language_model import load_language_model

        self._release()
        evaluation = self.run.configuration.evaluation
        others = (other for other in starmap(self._point, self._points) if other is not point)
        return load_language_model(
            point["path"],
            subfolder=point["subfolder"],
            revision=point["revision"],
            dtype=self.model.dtype,
            device=self._device,
            eval_batch_size=evaluation.batch_size,
            max_length=evaluation.max_length,
            max_generated_tokens=evaluation.max_generated_tokens,
            window_prefix=document_bos(self.run, self.model.model),
            scorer=evaluation.scorer,
            model_id=self.model.model,
            adapter=(point.get("adapter") or {}).get("path"),
            # a copy of what the adapter changes, where the job needs another one of the same base
            keep_base=any(_same_base(point, other) for other in others),
        )

    def _exchange_adapter(self, point: dict[str, Any]) -> "LanguageModel | None":
        """The loaded model with another adapter in it, where the two differ in the user's adapter only."""
        from lm_validity.cells.models.language_model import exchange_adapter

        if self._loaded is None or not _same_base(self._loaded[0], point):
            return None
        (_, lm), self._loaded = self._loaded, None  # whatever happens now, it is no longer the model that was held
        lm.model_id = self.model.model
        return lm if exchange_adapter(lm, (point.get("adapter") or {}).get("path")) else None

    def _release(self) -> None:
        """Give up what holds the last checkpoint, before the next one is loaded."""
        self._loaded = None

    def _task(self, benchmark: str) -> "AnyTask":
        from lm_validity.cells.tasks.tasks import TaskRecord, fewshot_digest, load_task

        if benchmark not in self._tasks:
            record = self.workspace.task_record(benchmark)
            settings = prompt_settings(self.run, benchmark)
            try:
                task = load_task(TaskRecord.from_json(record["record"]), **settings)
                if fewshot_digest(task) != record.get("fewshot"):
                    raise InputError(
                        f"benchmark {benchmark!r}: its few-shot examples changed after they were recorded.",
                        f"run lm-validity prefetch-benchmark --benchmark {benchmark} again, then the workflow.",
                    )
                self._tasks[benchmark] = task
            except InputError as error:  # this benchmark's cells fail; the job's others go on
                raise CellError(error.problem, error.hint) from error
        return self._tasks[benchmark]

    def _documents(self, benchmark: str, split: str) -> "Documents":
        from lm_validity.cells.tasks.splits import Split, documents

        record = read_json(self.workspace.split_path(benchmark, split))
        if not record["documents"]:
            raise CellError(
                f"benchmark {benchmark!r}: no {split} documents.",
                "it takes part in scoring only; see `studies`.",
            )
        task = self._task(benchmark)
        try:
            return documents(task, Split.from_json(record))
        except InputError as error:  # its data have fewer rows now: this benchmark's cells fail, the job's others go on
            raise CellError(error.problem, error.hint) from error


def _same_base(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two recorded checkpoints differ in the user's adapter only, and read the same tokenizer."""
    adapters = [point.get("adapter") or {} for point in (one, other)]
    same_tokenizer = len({adapter.get("tokenizer") for adapter in adapters}) == 1
    return any(adapters) and same_tokenizer and all(one[key] == other[key] for key in ("path", "subfolder", "revision"))


def resolve_device(device: str, size_class: str, gpus: int) -> str:
    """The device for `evaluation.device` in a size class with `gpus` GPUs.

    `auto` is the CPU where the size class has no GPU, `cuda` where it has one, and `all` where it has several.
    Raises InputError where a GPU is needed and cannot be used. That is the machine's fault: the job ends, no cell is
    recorded as failed, and a retry may start on another node.
    """
    if device == "cpu" or (device == "auto" and not gpus):
        return "cpu"
    import torch

    needed = max(gpus, 1) if device in ("auto", "all") else int(device.partition(":")[2] or 0) + 1
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if usable < needed:
        raise InputError(*describe_missing_gpu(needed, usable, f"size class {size_class!r} with gpu: {gpus}"))
    if device != "auto":
        return device
    return "all" if gpus > 1 else "cuda"


def describe_missing_gpu(needed: int, usable: int, asked: str) -> tuple[str, str]:
    """(problem, hint): what torch says about the GPUs of this machine, and where to look."""
    import torch

    problem = (
        f"the job needs {needed} GPU{'s' if needed > 1 else ''} and can use {usable} on {socket.gethostname()} "
        f"({asked}; torch {torch.__version__}, torch.version.cuda {torch.version.cuda}, torch.cuda.is_available() "
        f"{torch.cuda.is_available()}, torch.cuda.device_count() {torch.cuda.device_count()}, CUDA_VISIBLE_DEVICES "
        f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r})."
    )
    if usable:
        hint = "ask the scheduler for as many GPUs (docs/how_to/cluster.md), or lower `gpu` in the size class."
    elif not torch.backends.cuda.is_built():
        hint = f"this torch is the build without CUDA: {INSTALL_CUDA}."
    else:
        hint = (
            "check `nvidia-smi` and the driver on that node, and what the job asks the scheduler for "
            "(docs/how_to/cluster.md). To compute on the CPU on purpose, set evaluation.device to cpu."
        )
    return problem, hint


# ----------------------------------------------------------------------------------------------------------------------
# Replay: known scores are served instead of running models, so that the whole workflow runs without a GPU.
#
# Every rule, path, manifest, merge and report is the real one; only what a model would have said comes from a file. It
# cannot be taken for a result: the file's sha256 is in every recipe (so these cells lie in folders of their own), each
# score's `source` begins with `replay:`, and every page says so. No torch here.
#
# Published files hold test scores only. Where a selection asks for validation, the test score stands in: that of train
# before test for every prompt and learning rate, the direct one for the untouched model.


class Served(NamedTuple):
    """One score of the file. n_items is null where the file does not say."""

    value: float
    stderr: float | None
    n_items: int | None
    source: str


class ReplayWorker:
    """Stands where `Worker` stands: commits cells from the scores file."""

    def __init__(self, workspace: Workspace):
        self.workspace, self.run = workspace, workspace.run

    def compute(self, place: Place[BenchmarkCell]) -> None:
        """Commit one cell. Raises CellError where the file has no such score."""
        started, cell = time.time(), place.cell
        served = self._served(cell)
        scores = "scores" in benchmark_rule_of(cell).tables
        result = (self._evaluation if scores else _training)(cell, served)
        # a finished fine-tune has an adapter's folder and no items; nobody opens the adapter of a replay
        write_files = _write_no_items if scores else _write_nothing
        self.workspace.store.commit(place, result, self._sidecar(started), write_files)

    def _served(self, cell: BenchmarkCell) -> Served:
        protocol = benchmark_rule_of(cell).protocol
        path, digest = self.workspace.served
        scores, row = read_served(path, digest), self.run.models[cell.model]
        for model in (row.model, row.path):
            for seed in (cell.seed, None):
                found = scores.get((model, cell.checkpoint or "final", cell.benchmark, protocol, seed))
                if found is not None:
                    return found
        raise CellError(
            f"{path}: no {protocol} score of {row.path} ({cell.checkpoint or 'final'}) on {cell.benchmark}.",
            "leave the model or the benchmark out of the sheets, or complete the file.",
        )

    def _evaluation(self, cell: BenchmarkCell, served: Served) -> dict[str, Any]:
        metric = self.run.benchmarks[cell.benchmark].metric
        return {
            "metrics": {metric: {"value": served.value, "stderr": served.stderr}},
            "n_items": served.n_items,
            "prompt_sha256": None,
            "task_version": None,
            "source": f"{served.source}:test" if cell.split == "validation" else served.source,
        }

    def _sidecar(self, started: float) -> dict[str, Any]:
        path, digest = self.workspace.served
        return {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "wall_seconds": round(time.time() - started, 3),
            "replay": {"scores": path, "sha256": digest},
            "versions": {"lm-validity": importlib.metadata.version("lm-validity"), "replay": digest},
        }


def _training(cell: BenchmarkCell, served: Served) -> dict[str, Any]:
    """What a fine-tune of the real kind records, as far as a selection reads it."""
    return {
        "epochs": [],
        "best_epoch": 1,
        "best_value": served.value,
        "diverged": False,
        "reason": None,
        "adapter_sha256": None,
        "source": f"{served.source}:test",
    }


def _write_nothing(folder: Path) -> None:
    pass


def _write_no_items(folder: Path) -> None:
    (folder / "items.parquet").write_bytes(_empty_items())


@cache
def _empty_items() -> bytes:
    """A per-document table without documents."""
    import io

    import pyarrow.parquet

    from lm_validity.tables.schema import ITEMS

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(ITEMS.empty_table(), buffer)
    return buffer.getvalue()


@cache
def read_served(path: str, digest: str) -> dict[tuple[object, ...], Served]:
    """(model, checkpoint, benchmark, protocol, seed) -> score, of the selected test rows of a score file.

    digest: the file's sha256; it is read once as long as that stays. `.parquet`: a table with the columns of SCORES;
    anything else: the authors' JSON. Raises InputError for neither, and for two scores of one key.
    """
    from lm_validity.tables.formats.published import read_lm_harmony
    from lm_validity.tables.schema import REPLAY, read_scores

    table = read_scores(path) if str(path).endswith(".parquet") else read_lm_harmony(path)
    rows = table[table["selected"].fillna(value=True).astype(bool) & (table["split"].fillna("test") == "test")]
    found: dict[tuple[object, ...], Served] = {}
    for row in rows.astype(object).where(rows.notna(), None).to_dict("records"):
        seed = None if row["seed"] is None else int(row["seed"])
        key = (row["model"], row["checkpoint"] or "final", row["benchmark"], row["protocol"], seed)
        if key in found:
            raise InputError(f"{path}: two selected test scores of {key}.", "keep one of each.")
        items = None if row["n_items"] is None else int(row["n_items"])
        source = (row["source"] or Path(path).name).removeprefix(REPLAY)
        found[key] = Served(float(row["value"]), row["stderr"], items, f"{REPLAY}{source}")
    return found


# ---- what the login node writes down -----------------------------------------------------------------------------


def model_record(run: Run, row: Model) -> dict[str, Any]:
    """A model's record, as `prefetch_model` writes it, without fetching anything."""
    sha = _check_listed(run, 0, {row.model, row.path}, f"model {row.model!r} ({row.path})")
    point = {"path": row.path, "subfolder": None, "revision": None, "digest": f"{row.path} replayed", "files": None}
    return {
        "model": row.model,
        "path": row.path,
        "revision": None,
        "checkpoints": {one.checkpoint: point for one in row.checkpoints},
        "chat_template": row.instruction_tuned,
        "architecture": None,
        "context_length": None,
        "replay": sha,
    }


def benchmark_record(run: Run, row: Benchmark) -> dict[str, Any]:
    """A benchmark's record, as `prefetch_benchmark` writes it, without its data set."""
    sha = _check_listed(run, 2, {row.benchmark}, f"benchmark {row.benchmark!r}")
    return {
        "record": {"task": row.task, "version": None, "metrics": [row.metric]},
        "digest": f"{row.task} replayed",
        "output_type": row.output_type,
        "documents": {},
        "data": None,
        "fewshot": None,
        "replay": sha,
    }


def split_record(workspace: Workspace, split: str) -> dict[str, Any]:
    """A split's file: there are no documents to divide."""
    return {"split": split, "documents": 0, "digest": "replayed", "replay": workspace.replay}


def _check_listed(run: Run, part: int, names: set[str], what: str) -> str:
    """sha256 of the score file, which must have at least one score of the model or benchmark."""
    path, digest = Workspace(run).served
    if not any(key[part] in names for key in read_served(path, digest)):
        raise InputError(f"{path}: no score of {what}.", "leave it out of the sheet, or complete the file.")
    return digest


# ----------------------------------------------------------------------------------------------------------------------
# What a job does: ask the store, compute what is missing, commit cell by cell, write the manifest last.
#
# If the cell itself is the cause (CellError), it becomes a failure record and the other cells continue. Anything else
# (a crash, out of memory, a signal) ends the process with the finished cells kept, so that Snakemake's retries apply.

log = logging.getLogger(__name__)


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
    module, name = rule.worker.split(":")
    if not rule.in_store:
        choose = getattr(import_module(module), name)
        return [_try(cell, lambda cell: Entry(cell, "done", content=choose(workspace, cell))) for cell in job.cells]

    @cache
    def worker() -> Any:  # imports torch: only where the store lacks a cell
        return ReplayWorker(workspace) if workspace.replay else getattr(import_module(module), name)(workspace, job)

    if not workspace.replay:
        for cells in rule.side_by_side(workspace.run, job):
            _compute_together(workspace, worker, cells)
    return [_try(cell, lambda cell: _stored(workspace, worker, cell)) for cell in job.cells]


def _try(cell: Cell, finish: Callable[[Cell], Entry]) -> Entry:
    """The cell's entry. A failure that the cell itself causes is recorded."""
    try:
        return finish(cell)
    except MissingCell as error:
        return Entry(cell, "missing", error=error.problem)
    except CellError as error:
        log.error("cell failed: %s: %s", label(cell), error)
        return Entry(cell, "failed", error=error.problem, hint=error.hint)


def _lease(workspace: Workspace, place: Place[Cell]) -> AbstractContextManager[bool]:
    """The lease of a cell that is missing. Its GPUs come first: who holds a lease never waits for a job that may wait
    for this lease."""
    # the other devices name their GPUs
    if workspace.run.configuration.evaluation.device in ("auto", "cuda") and not workspace.replay:
        hold_gpus(rule_of(place.cell).size_class(workspace.run, place.cell.model).gpu, say=log.info)
    return hold_lease(workspace.store.lease(place.folder), lambda: workspace.store.has(place), say=log.info)


def _compute_together(workspace: Workspace, worker: Callable[[], Any], cells: list[Cell]) -> None:
    """Bring those of the cells that are missing to their end side by side; what cannot be computed so is left to
    `_stored`, which says why."""
    missing = [place for place in map(workspace.place, cells) if not workspace.store.has(place)]
    with ExitStack() as leases:
        ours = [place for place in missing if leases.enter_context(_lease(workspace, place))]
        if len(ours) < 2:
            return
        log.info("computing %d cells side by side, from %s on", len(ours), ours[0].label)
        try:
            with worker().shared_cost(ours):
                worker().compute_together(ours)
        except CellError as error:
            log.info("not side by side: %s", error)


def _stored(workspace: Workspace, worker: Callable[[], Any], cell: Cell) -> Entry:
    """The entry of a cell that the store holds; computed only if it does not yet."""
    stand_in = rule_of(cell).stand_in(workspace, cell)
    if stand_in is not None:
        return _done(workspace, cell, workspace.finished(stand_in)["folder"])
    place = workspace.place(cell)
    if not workspace.store.has(place):
        with _lease(workspace, place) as ours:
            if ours:
                log.info("computing %s", place.label)
                worker().compute(place)
    return _done(workspace, cell, place.folder)


def _done(workspace: Workspace, cell: Cell, folder: str) -> Entry:
    workspace.store.read(folder)  # raises where it is damaged
    return Entry(cell, "done", folder=folder, sha256=workspace.store.digest(folder))


def write_splits(workspace: Workspace, benchmark: str) -> None:
    """Divide a benchmark's documents and write one file per split, so that training never opens test; and the texts of
    the test documents, for filters."""
    from lm_validity.tables.documents import write_no_documents

    texts = workspace.split_path(benchmark, "test").with_name("documents.parquet")
    if workspace.replay:
        for name in ("train", "validation", "test"):
            write_json(workspace.split_path(benchmark, name), split_record(workspace, name))
        write_no_documents(texts)
        return
    from lm_validity.cells.tasks.splits import documents, make_splits, write_documents
    from lm_validity.cells.tasks.tasks import TaskRecord, load_task

    settings = workspace.run.configuration.splits
    record = TaskRecord.from_json(workspace.task_record(benchmark)["record"])
    task = load_task(record, **prompt_settings(workspace.run, benchmark))
    splits = make_splits(
        task,
        caps=(settings.train, settings.validation, settings.test),
        seed=settings.seed,
        allow_overlap=benchmark in settings.allow_overlap,
        test_only=workspace.grid.is_test_only(benchmark),
    )
    _check_wording(workspace, benchmark, documents(task, splits.test).docs)
    for name, split in zip(splits._fields, splits, strict=True):
        # a benchmark that is only scored has no train and validation; the rule's files say so
        written = split.to_json() if split is not None else {"split": name, "documents": 0, "digest": None}
        write_json(workspace.split_path(benchmark, name), written)
        log.info("%s %s: %d documents", benchmark, name, written["documents"])
    write_documents(benchmark, task, documents(task, splits.test), texts)


def _check_wording(workspace: Workspace, benchmark: str, docs: Sequence[dict[str, Any]]) -> None:
    """Raise InputError where another wording of a benchmark does not ask its questions, which are split first.

    Its documents are the benchmark's in the same order: equal in every column that both have.
    """
    from lm_validity.cells.tasks.splits import Split, documents
    from lm_validity.cells.tasks.tasks import TaskRecord, load_task

    own = workspace.run.benchmarks[benchmark].variant_of
    if own is None:
        return
    task = load_task(TaskRecord.from_json(workspace.task_record(own)["record"]), **prompt_settings(workspace.run, own))
    theirs = documents(task, Split.from_json(read_json(workspace.split_path(own, "test")))).docs
    same = len(docs) == len(theirs) and all(
        doc.keys() & other.keys() and all(doc[name] == other[name] for name in doc.keys() & other.keys())
        for doc, other in zip(docs, theirs, strict=True)
    )
    if not same:
        raise InputError(
            f"benchmark {benchmark!r}: its test documents are not those of {own!r}.",
            "another wording reads the same data and split names, changes none of their columns, and differs in its "
            "templates.",
        )
