"""Workers that hold a model, and those of fine-tunes: epochs with validation, the adapter that is kept."""

import contextlib
import logging
import os
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow
import torch

from lm_validity.cells.models.language_model import LanguageModel, exchange_adapter, load_language_model
from lm_validity.cells.models.prefetch import check_unchanged
from lm_validity.cells.models.provenance import Counters, Seconds, Stopwatch
from lm_validity.cells.tasks.evaluation import (
    Example,
    PreparedRequests,
    metric_value,
    prepare_requests,
    training_examples,
)
from lm_validity.cells.tasks.finding import TaskRecord
from lm_validity.cells.tasks.splits import Split, documents
from lm_validity.cells.tasks.tasks import AnyTask, Documents, fewshot_digest, load_task
from lm_validity.cells.training.loop import Epoch, FinetuneSettings, Member, started, train_side_by_side
from lm_validity.cells.training.lora import CannotStack, find_targets, save_adapter
from lm_validity.errors import INSTALL_CUDA, ON_CPU, CellError, InputError, Refusal, again
from lm_validity.files import read_json
from lm_validity.run.cell import BenchmarkCell, CheckpointRecord, Job, Prompt, derive_seed, given
from lm_validity.run.inputs import own_files
from lm_validity.run.rules.benchmarks import OF_ALL_CELLS
from lm_validity.run.scoring import document_bos, prompt_settings
from lm_validity.run.store import Address
from lm_validity.run.workspace import Workspace
from lm_validity.tables.schema import LOSSES, write_table

# ----------------------------------------------------------------------------------------------------------------------
# What the workers of the agreement and signal studies share: the loaded model, tasks and documents of a job.


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
            name = self.model.model
            check_unchanged(name, self.workspace.model_record(name), own_files(self.run, "models", name))
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
                f"benchmark {benchmark!r}: no {split} documents.", "it takes part in scoring only; see `studies`."
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


# ----------------------------------------------------------------------------------------------------------------------
# LoRA fine-tuning on a benchmark's training split: one plain loop, validated and saved after every epoch.
#
# AdamW, linear decay to zero without warm-up, gradients clipped at norm 1, the token mean over an effective batch that
# does not depend on memory. Everything random is a function of the seed, the epoch, the step and the layer, so
# a resumed run, a halved micro-batch and an undisturbed run take the same steps (a resumed one on a CPU: the same
# bytes). The base model is frozen and is given back as it was.


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tune did. best_epoch is null, and there is no adapter, where it diverged in its first epoch.

    diverged: why training ended early, or null. tokens: training tokens of one epoch. step_losses: one per step of
    the finished epochs.
    adapted_share: of the model's weights, those with an adapter (see `lora.Targets`).
    micro_batch, resumed_epochs: of this process only; they belong in the sidecar.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int | None
    diverged: str | None
    adapter_sha256: str | None
    target_modules: tuple[str, ...]
    adapted_share: float
    trainable_parameters: int
    examples: int
    truncated: int
    tokens: int
    steps: int
    step_losses: tuple[float, ...]
    micro_batch: int
    resumed_epochs: int


def finetune(
    lm: LanguageModel,
    examples: Sequence[Example],
    validate: Callable[[], float],
    member: Member,
    *,
    seed: int,
    higher_is_better: bool,
    stop: Callable[[], bool] = lambda: False,
) -> FinetuneResult:
    """Train an adapter on `examples` and write that of the best epoch to the member's work folder in PEFT's format.

    validate: the benchmark's metric under the model as it stands, after each epoch; ties go to the earlier epoch.
    member: its work folder holds the last finished epoch; a second call with the same arguments goes on from there.
    stop: asked before each step; TrainingStopped is raised when it says so.
    Running out of memory halves the micro-batch and repeats the step.
    A loss or score that is not finite ends the training with the epochs so far and `diverged` set.
    Raises CellError where there is nothing to train on, the architecture has no layers for adapters, or memory runs
    out at one row.
    """
    with started(lm, examples, [member], seed) as run:
        (training,) = run.trainings
        resumed = len(training.epochs)
        run.train(validate, higher_is_better=higher_is_better, stop=stop)
        best = training.best_tensors
        digest = save_adapter(training.model, best, member.work / "adapter") if best else None
    targets = find_targets(lm, member.settings.target_modules)
    return FinetuneResult(
        epochs=tuple(training.epochs),
        best_epoch=training.best_epoch,
        diverged=training.diverged,
        adapter_sha256=digest,
        target_modules=targets.described,
        adapted_share=targets.share,
        trainable_parameters=sum(parameter.numel() for parameter in training.parameters.values()),
        examples=len(examples),
        truncated=sum(example.truncated > 0 for example in examples),
        tokens=sum(len(example.token_ids) for example in examples),
        steps=training.position.step,
        step_losses=tuple(training.step_losses),
        micro_batch=training.micro_batch,
        resumed_epochs=resumed,
    )


# ----------------------------------------------------------------------------------------------------------------------
# Fine-tunes of one model: from a cell to the plan of its training, alone or side by side with other rates.

log = logging.getLogger(__name__)


class TrainingData(NamedTuple):
    """What a benchmark and prompt give: requests on validation, and the texts to train on."""

    validation: PreparedRequests
    examples: Sequence[Example]


class _Plan(NamedTuple):
    """What `finetune` is given for a cell. member: what differs between learning rates."""

    lm: LanguageModel
    examples: Sequence[Example]
    validate: Callable[[], float]
    member: Member
    seed: int
    higher_is_better: bool


class AdapterTrainer(Worker):
    """Computes the LoRA fine-tunes of a job (rule `finetune_adapter`)."""

    _prepared: tuple[tuple[str, str | None], TrainingData] | None = None

    def _compute(self, address: Address[BenchmarkCell]) -> Computed:
        plan = self._plan(address)
        work = plan.member.work
        finetuned = finetune(
            plan.lm, plan.examples, plan.validate, plan.member, seed=plan.seed, higher_is_better=plan.higher_is_better
        )
        if finetuned.diverged:
            log.warning("%s diverged: %s", address.cell.name, finetuned.diverged)
        self._notes = {"micro_batch": finetuned.micro_batch, "resumed_epochs": finetuned.resumed_epochs}
        cut_answers = sum(example.answer_lost > 0 for example in plan.examples)
        self._notes |= {"truncated_texts": finetuned.truncated, "cut_answers": cut_answers}
        if not finetuned.diverged:
            self._notes["epochs"] = len(finetuned.epochs)
        result = asdict(finetuned)
        # of this process only, or one number a step, which has a file of its own
        del result["micro_batch"], result["resumed_epochs"], result["step_losses"]
        best = finetuned.epochs[finetuned.best_epoch - 1].validation_value if finetuned.best_epoch else None
        # a rate that diverged is left out of the selection, whatever its first epochs gave
        result |= {"best_value": best, "diverged": finetuned.diverged is not None, "reason": finetuned.diverged}

        def write_files(folder: Path) -> None:
            if (work / "adapter").is_dir():  # there is none where training diverged at once
                shutil.copytree(work / "adapter", folder / "adapter")
            _write_losses(finetuned, folder)

        return Computed(result, write_files)

    def compute_together(self, addresses: list[Address[BenchmarkCell]]) -> None:
        """Bring fine-tunes that differ in the learning rate only to their last epoch, side by side, in their work
        folders; `compute` then finds nothing left to train."""
        plans = [self._plan(address) for address in addresses]
        (lm, examples, validate, _, seed, higher_is_better), members = plans[0], [plan.member for plan in plans]
        try:
            train_side_by_side(lm, examples, validate, members, seed=seed, higher_is_better=higher_is_better)
        except CannotStack:
            log.info("%s: its rates are trained one after another", addresses[0].label)

    def _plan(self, address: Address[BenchmarkCell]) -> _Plan:
        """Arguments of `finetune` for a cell."""
        cell, benchmark = address.cell, self.run.benchmarks[address.cell.benchmark]
        lm = self._language_model("final")
        validation, examples = self._training_data(lm, cell)
        # texts are cut to max_length before
        options = self.run.configuration.finetuning.model_dump(exclude={*OF_ALL_CELLS, "max_length"})
        options["gradient_checkpointing"] |= self.size_class.gradient_checkpointing
        member = Member(
            FinetuneSettings(learning_rate=float(given(cell.learning_rate)), **options),
            # named after the recipe: a changed recipe does not resume from the old one's state
            work=self.workspace.work / address.folder,
            on_epoch=lambda epoch: log.info(
                "%s epoch %d: loss %.4f, validation %s %.4f",
                cell.name,
                epoch.number,
                epoch.train_loss,
                benchmark.metric,
                epoch.validation_value,
            ),
        )
        return _Plan(
            lm,
            examples,
            lambda: metric_value(lm, validation, benchmark.metric),
            member,
            # without the learning rate, so that rates differ in nothing else
            seed=derive_seed("finetune_adapter", cell.model, cell.benchmark, cell.prompt, cell.seed),
            higher_is_better=benchmark.higher_is_better,
        )

    def _training_data(self, lm: LanguageModel, cell: BenchmarkCell) -> TrainingData:
        """What the cell's benchmark and prompt give, kept for the next rate."""
        key = (cell.benchmark, cell.prompt)
        if self._prepared is None or self._prepared[0] != key:
            lm.share_encodings({})
            task = self._task(cell.benchmark)
            prompt: Prompt = given(cell.prompt)
            system = self.run.configuration.evaluation.system_instruction
            documents = self._documents(cell.benchmark, "validation")
            validation = prepare_requests(lm, task, documents, prompt=prompt, system_instruction=system)
            longest = self.run.configuration.finetuning.max_length
            train = self._documents(cell.benchmark, "train")
            examples = training_examples(lm, task, train, max_length=longest, prompt=prompt, system_instruction=system)
            self._prepared = (key, TrainingData(validation, examples))
        return self._prepared[1]


def _write_losses(finetuned: FinetuneResult, folder: Path) -> None:
    """losses.parquet of a cell: the loss of every step of its finished epochs, and each epoch's value on validation."""
    steps = range(1, len(finetuned.step_losses) + 1)
    of_epoch = len(steps) // max(1, len(finetuned.epochs))
    values = {epoch.number * of_epoch: epoch.validation_value for epoch in finetuned.epochs}
    frame = pd.DataFrame({"step": steps, "loss": finetuned.step_losses})
    frame["epoch"] = (frame["step"] - 1) // max(1, of_epoch) + 1
    frame["validation_value"] = frame["step"].map(values)
    columns = LOSSES.names[LOSSES.names.index("epoch") :]
    write_table(frame, pyarrow.schema([LOSSES.field(name) for name in columns]), folder / "losses.parquet")
