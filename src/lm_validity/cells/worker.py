"""What the workers of the agreement and signal studies share: the loaded model, tasks and documents of a job."""

import contextlib
import os
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import torch

from lm_validity.cells.models.language_model import LanguageModel, exchange_adapter, load_language_model
from lm_validity.cells.models.prefetch import check_unchanged
from lm_validity.cells.models.provenance import Counters, Seconds, Stopwatch
from lm_validity.cells.tasks.finding import TaskRecord
from lm_validity.cells.tasks.splits import Split, documents
from lm_validity.cells.tasks.tasks import AnyTask, Documents, fewshot_digest, load_task
from lm_validity.errors import INSTALL_CUDA, ON_CPU, CellError, InputError, Refusal, again
from lm_validity.files import read_json
from lm_validity.run.cell import BenchmarkCell, Job
from lm_validity.run.records import CheckpointRecord
from lm_validity.run.scoring import document_bos, prompt_settings
from lm_validity.run.store import Address
from lm_validity.run.workspace import Workspace


class Computed(NamedTuple):
    """The result of a cell, and what writes its files into a folder."""

    result: Mapping[str, object]
    write_files: Callable[[Path], None]


class _Loaded(NamedTuple):
    """A checkpoint by the login node's record, and its model."""

    point: CheckpointRecord
    lm: LanguageModel


class _Share(NamedTuple):
    """A cell's part of what was computed side by side, and notes of its sidecar."""

    seconds: Seconds
    counters: Counters
    notes: dict[str, object]


class Worker(ABC):
    """Computes cells of one rule, and of one model or of adapters that share its weights."""

    def __init__(self, workspace: Workspace, job: Job[BenchmarkCell]):
        self.workspace, self.run, self.store = workspace, workspace.run, workspace.store
        self.model = self.run.models[job.model]  # of the cell at hand
        self.size_class = self.run.configuration.size_classes[self.model.size_class]
        self._points = {(cell.model, cell.checkpoint) for cell in job.cells if cell.checkpoint}
        self._loaded: _Loaded | None = None
        self._load_errors: dict[tuple[str, str], CellError] = {}
        self._tasks: dict[str, AnyTask] = {}
        self._notes: dict[str, object] = {}  # of the cell at hand, for its sidecar
        self._shared: dict[str, _Share] = {}  # by the cell's folder

    def compute(self, address: Address[BenchmarkCell]) -> None:
        """Compute one cell and commit it to the store. Raises CellError for a failure that the cell causes."""
        stopwatch, self._notes = Stopwatch(), {}
        self.model = self.run.models[address.cell.model]
        result, write_files = self._compute(address)
        assert self._loaded is not None
        lm = self._loaded.lm
        if address.folder in self._shared:
            share = self._shared.pop(address.folder)
            stopwatch.add(share.seconds)
            lm.counters.add(share.counters)
            self._notes |= share.notes
        sidecar = stopwatch.costs(lm.device) | lm.take_account() | self._notes
        self.store.commit(address, result, sidecar, write_files)
        # only now: a job killed before the commit resumes from it
        shutil.rmtree(self.workspace.work / address.folder, ignore_errors=True)

    @contextlib.contextmanager
    def shared_cost(self, addresses: list[Address[BenchmarkCell]]) -> Iterator[None]:
        """What is computed inside the block is booked to the cells in equal parts."""
        stopwatch, parts = Stopwatch(), len(addresses)
        # what an undisturbed cell finds of its epochs is its own; else an attempt that was killed had begun on it
        begun = [(self.workspace.work / address.folder).exists() for address in addresses]
        try:
            yield
        finally:
            if self._loaded is not None:
                lm, (wall, cpu) = self._loaded.lm, stopwatch.seconds
                counters, lm.counters = lm.counters, Counters()
                for number, address in enumerate(addresses):
                    notes: dict[str, object] = {"side_by_side": parts}
                    if not begun[number]:
                        notes["resumed_epochs"] = 0
                    part = counters.part(number, parts)
                    self._shared[address.folder] = _Share(Seconds(wall / parts, cpu / parts), part, notes)

    @abstractmethod
    def _compute(self, address: Address[BenchmarkCell]) -> Computed:
        """Compute a cell of this rule."""

    # ---- what cells share ---------------------------------------------------------------------------------------

    @property
    def _device(self) -> str:
        return resolve_device(self.run.configuration.evaluation.device, self.model.size_class, self.size_class.gpu)

    def _language_model(self, checkpoint: str) -> LanguageModel:
        """The model of the cell at hand at a checkpoint, loaded once; only one is held at a time."""
        key = (self.model.model, checkpoint)
        if key in self._load_errors:
            raise self._load_errors[key]
        point = self._point(*key)
        if self._loaded is None or self._loaded.point is not point:
            check_unchanged(self.model.model, self.workspace.model_record(self.model.model))
            try:
                self._loaded = _Loaded(point, self._exchange_adapter(point) or self._load(point))
            except CellError as error:
                self._load_errors[key] = error
                raise
        return self._loaded.lm

    def _point(self, model: str, checkpoint: str) -> CheckpointRecord:
        """The login node's record of a checkpoint, read once."""
        return self.workspace.model_record(model)["checkpoints"][checkpoint]

    def _load(self, point: CheckpointRecord) -> LanguageModel:
        self._release()
        evaluation = self.run.configuration.evaluation
        other_points = (another for another in starmap(self._point, self._points) if another is not point)
        return load_language_model(
            point["path"],
            subfolder=point["subfolder"],
            dtype=self.model.dtype,
            device=self._device,
            eval_batch_size=evaluation.batch_size,
            max_length=evaluation.max_length,
            max_generated_tokens=evaluation.max_generated_tokens,
            window_prefix=document_bos(self.run, self.model.model),
            scorer=evaluation.scorer,
            model_id=self.model.model,
            adapter=_adapter_path(point),
            # a copy of what the adapter changes, where the job needs another one of the same base
            keep_base=any(_same_base(point, another) for another in other_points),
        )

    def _exchange_adapter(self, point: CheckpointRecord) -> LanguageModel | None:
        """The loaded model with another adapter in it, where the two differ in the user's adapter only."""
        if self._loaded is None or not _same_base(self._loaded.point, point):
            return None
        (_, lm), self._loaded = self._loaded, None  # whatever happens now, it is no longer the model that was held
        lm.model_id = self.model.model
        return lm if exchange_adapter(lm, _adapter_path(point)) else None

    def _release(self) -> None:
        """Give up what holds the last checkpoint, before the next one is loaded."""
        self._loaded = None

    def _task(self, benchmark: str) -> AnyTask:
        if benchmark not in self._tasks:
            record = self.workspace.task_record(benchmark)
            settings = prompt_settings(self.run, benchmark)
            try:
                task = load_task(TaskRecord.from_json(record["record"]), **settings)
                if fewshot_digest(task) != record.get("fewshot"):
                    raise InputError(
                        f"benchmark {benchmark!r}: its few-shot examples changed after they were recorded.",
                        f"run {again(f'prefetch-benchmark --benchmark {benchmark}')}, then the workflow.",
                    )
                self._tasks[benchmark] = task
            except InputError as error:  # this benchmark's cells fail; the job's others go on
                raise CellError(error.problem, error.hint) from error
        return self._tasks[benchmark]

    def _documents(self, benchmark: str, split: str) -> Documents:
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


def _adapter_path(point: CheckpointRecord) -> str | None:
    return point["adapter"]["path"] if "adapter" in point else None


def _same_base(first: CheckpointRecord, second: CheckpointRecord) -> bool:
    """Whether two recorded checkpoints differ in the user's adapter only, and read the same tokenizer."""
    tokenizers = {point["adapter"]["tokenizer"] if "adapter" in point else None for point in (first, second)}
    addresses = {(point["path"], point["subfolder"], point["revision"]) for point in (first, second)}
    return ("adapter" in first or "adapter" in second) and len(tokenizers) == 1 and len(addresses) == 1


def resolve_device(device: str, size_class: str, gpus: int) -> str:
    """The device for `evaluation.device` in a size class with `gpus` GPUs.

    `auto` is the CPU where the size class has no GPU, `cuda` where it has one, and `all` where it has several.
    Raises InputError where a GPU is needed and cannot be used. That is the machine's fault: the job ends, no cell is
    recorded as failed, and a retry may start on another node.
    """
    if device == "cpu" or (device == "auto" and not gpus):
        return "cpu"
    needed_gpus = max(gpus, 1) if device in ("auto", "all") else int(device.partition(":")[2] or 0) + 1
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if usable < needed_gpus:
        raise InputError(*describe_missing_gpu(needed_gpus, usable, f"size class {size_class!r} with gpu: {gpus}"))
    if device != "auto":
        return device
    return "all" if gpus > 1 else "cuda"


def describe_missing_gpu(needed_gpus: int, usable: int, device: str, on_cpu: str = ON_CPU) -> Refusal:
    """(problem, hint): what torch says about this machine's GPUs, and where to look; `on_cpu`: how to do without."""
    problem = (
        f"the job needs {needed_gpus} GPU(s) and can use {usable} on {socket.gethostname()} ({device}; torch "
        f"{torch.__version__}, CUDA {torch.version.cuda}, CUDA_VISIBLE_DEVICES "
        f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r})."
    )
    if usable:
        hint = "ask the scheduler for as many GPUs, or lower `gpu` in the size class."
    elif not torch.backends.cuda.is_built():
        hint = f"this torch is the build without CUDA: {INSTALL_CUDA}, or {on_cpu}."
    else:
        hint = f"check `nvidia-smi` on that node and what the job asks for; to compute on the CPU, {on_cpu}."
    return Refusal(problem, hint)
