"""Workers that hold a model: fine-tunes, with the adapter that is kept; scores of documents; and judges."""

import hashlib
import logging
import os
import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import pandas as pd
import pyarrow
import torch

from lm_validity.cells.models.language_model import LanguageModel, Sampling, load_language_model
from lm_validity.cells.models.prefetch import check_unchanged
from lm_validity.cells.models.scorer import EncodedRequest
from lm_validity.cells.runner import Stopwatch
from lm_validity.cells.tasks import evaluation
from lm_validity.cells.tasks.evaluation import Example, Prepared, prepare_requests
from lm_validity.cells.tasks.splits import Split, documents, recorded_task
from lm_validity.cells.tasks.tasks import AnyTask, Documents, cell_fails
from lm_validity.cells.training.loop import Epoch, FinetuneSettings, Member, Plan, started, train_side_by_side
from lm_validity.cells.training.lora import CannotStack, find_targets, save_adapter, use_adapter
from lm_validity.config.sheets import Dtype
from lm_validity.errors import INSTALL_CUDA, ON_CPU, CellError, InputError
from lm_validity.files import read_json
from lm_validity.run.cell import BenchmarkCell, CheckpointRecord, Job, Prompt, derive_seed, given, label
from lm_validity.run.inputs import own_files
from lm_validity.run.rules.benchmarks import OF_ALL_CELLS
from lm_validity.run.store import Address
from lm_validity.run.workspace import Workspace
from lm_validity.tables.schema import ITEMS, LOSSES, write_table

# ----------------------------------------------------------------------------------------------------------------------
# What the workers of the agreement and signal studies share: the loaded model, tasks and documents of a job.


class Computed(NamedTuple):
    """The result of a cell, and what writes its files into a folder."""

    result: Mapping[str, object]
    write_files: Callable[[Path], None]


class Worker(ABC):
    """Computes cells of one rule and model."""

    def __init__(self, workspace: Workspace, job: Job[BenchmarkCell]):
        self.workspace, self.run, self.store = workspace, workspace.run, workspace.store
        self.model = self.run.models[job.model]
        self.size_class = self.run.configuration.size_classes[self.model.size_class]
        self._loaded: tuple[CheckpointRecord, LanguageModel] | None = None  # of one checkpoint
        self._load_errors: dict[str, CellError] = {}  # by checkpoint
        self._tasks: dict[str, AnyTask] = {}
        self._notes: dict[str, object] = {}  # of the cell at hand, for its sidecar
        self._shared: dict[str, tuple[float, float, dict[str, object]]] = {}  # by the cell's folder: as in `compute`

    def compute(self, address: Address[BenchmarkCell]) -> None:
        """Compute one cell and commit it to the store. Raises CellError for a failure that the cell causes."""
        # its part of what was computed side by side, in seconds of the clock and of processors, and notes of that
        wall, cpu, notes = self._shared.pop(address.folder, (0.0, 0.0, {}))
        stopwatch, self._notes = Stopwatch(wall, cpu), {}
        result, write_files = self._compute(address)
        _, lm = given(self._loaded)
        sidecar = stopwatch.costs(lm.device) | lm.take_account() | self._notes | notes
        self.store.commit(address, result, sidecar, write_files)
        # only now: a job killed before the commit resumes from it
        shutil.rmtree(self.workspace.work / address.folder, ignore_errors=True)

    @abstractmethod
    def _compute(self, address: Address[BenchmarkCell]) -> Computed:
        """Compute a cell of this rule."""

    # ---- what cells share ---------------------------------------------------------------------------------------

    def _language_model(self, checkpoint: str) -> LanguageModel:
        """The model at a checkpoint, loaded once; only one is held at a time."""
        if checkpoint in self._load_errors:
            raise self._load_errors[checkpoint]
        name = self.model.model
        point = self.workspace.model_record(name)["checkpoints"][checkpoint]
        if self._loaded is None or self._loaded[0] is not point:
            check_unchanged(name, self.workspace.model_record(name), own_files(self.run, "models", name))
            self._loaded = None  # given up before the next one is loaded
            try:
                self._loaded = (point, self._load(point))
            except CellError as error:
                self._load_errors[checkpoint] = error
                raise
        return self._loaded[1]

    def _load(self, point: CheckpointRecord) -> LanguageModel:
        evaluation = self.run.configuration.evaluation
        return load_language_model(
            point["path"],
            subfolder=point["subfolder"] or "",
            dtype=self.model.dtype,
            device=resolve_device(evaluation.device, self.model.size_class, self.size_class.gpu),
            eval_batch_size=evaluation.batch_size,
            max_length=evaluation.max_length,
            max_generated_tokens=evaluation.max_generated_tokens,
            window_prefix=self.model.document_bos,
            system_instruction=evaluation.system_instruction,
            scorer=evaluation.scorer,
            model_id=self.model.model,
            adapter=point["adapter"]["path"] if "adapter" in point else "",
        )

    def _task(self, benchmark: str) -> AnyTask:
        if benchmark not in self._tasks:
            with cell_fails():
                self._tasks[benchmark] = recorded_task(self.workspace, benchmark)
        return self._tasks[benchmark]

    def _documents(self, benchmark: str, split: str) -> Documents:
        record = read_json(self.workspace.split_path(benchmark, split))
        if not record["documents"]:
            raise CellError(
                f"benchmark {benchmark!r}: no {split} documents.", "it takes part in scoring only; see `studies`."
            )
        task = self._task(benchmark)
        with cell_fails():  # its data may have fewer rows now
            return documents(task, Split.from_json(record))


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
        environment = f"torch {torch.__version__}, CUDA_VISIBLE_DEVICES {os.environ.get('CUDA_VISIBLE_DEVICES')!r}"
        numbers = f"needs {needed_gpus} GPU(s) and can use {usable} on {socket.gethostname()}"
        asking = f"size class {size_class!r} with gpu: {gpus}; CUDA {torch.version.cuda}; {environment}"
        hint = f"check `nvidia-smi` on that node and what the job asks for; to compute on the CPU, {ON_CPU}."
        if usable:
            hint = "ask the scheduler for as many GPUs, or lower `gpu` in the size class."
        elif not torch.backends.cuda.is_built():
            hint = f"this torch is the build without CUDA: {INSTALL_CUDA}, or {ON_CPU}."
        raise InputError(f"the job {numbers} ({asking}).", hint)
    if device != "auto":
        return device
    return "all" if gpus > 1 else "cuda"


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


def finetune(plan: Plan) -> FinetuneResult:
    """Train the adapter of a plan's one member and write that of the best epoch to its work folder in PEFT's format.

    Running out of memory halves the micro-batch and repeats the step.
    A loss or score that is not finite ends the training with the epochs so far and `diverged` set.
    Raises CellError where there is nothing to train on, the architecture has no layers for adapters, or memory runs
    out at one row.
    """
    (member,) = plan.members
    with started(plan) as run:
        (training,) = run.trainings
        resumed = len(training.epochs)
        run.train()
        best = training.best_tensors
        digest = save_adapter(training.model, best, member.work / "adapter") if best else None
    targets = find_targets(plan.lm, member.settings.target_modules)
    return FinetuneResult(
        epochs=tuple(training.epochs),
        best_epoch=training.best_epoch,
        diverged=training.diverged,
        adapter_sha256=digest,
        target_modules=targets.described,
        adapted_share=targets.share,
        trainable_parameters=sum(parameter.numel() for parameter in training.parameters.values()),
        examples=len(plan.examples),
        truncated=sum(example.truncated > 0 for example in plan.examples),
        tokens=sum(len(example.token_ids) for example in plan.examples),
        steps=training.position.step,
        step_losses=tuple(training.step_losses),
        micro_batch=training.micro_batch,
        resumed_epochs=resumed,
    )


# ----------------------------------------------------------------------------------------------------------------------
# Fine-tunes of one model: from a cell to the plan of its training, alone or side by side with other rates.

log = logging.getLogger(__name__)


class AdapterTrainer(Worker):
    """Computes the LoRA fine-tunes of a job (rule `finetune_adapter`)."""

    # of a benchmark and prompt, kept for the next rate: requests on validation, and the texts to train on
    _prepared: tuple[tuple[str, str | None], Prepared, list[Example]] | None = None

    def _compute(self, address: Address[BenchmarkCell]) -> Computed:
        plan = self._plan(address)
        work, finetuned = plan.members[0].work, finetune(plan)
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
            """The adapter; and the loss of every step of finished epochs, with each epoch's value on validation."""
            if (work / "adapter").is_dir():  # there is none where training diverged at once
                shutil.copytree(work / "adapter", folder / "adapter")
            steps = range(1, len(finetuned.step_losses) + 1)
            of_epoch = len(steps) // max(1, len(finetuned.epochs))
            values = {epoch.number * of_epoch: epoch.validation_value for epoch in finetuned.epochs}
            frame = pd.DataFrame({"step": steps, "loss": finetuned.step_losses})
            frame["epoch"] = (frame["step"] - 1) // max(1, of_epoch) + 1
            frame["validation_value"] = frame["step"].map(values)
            columns = LOSSES.names[LOSSES.names.index("epoch") :]
            write_table(frame, pyarrow.schema([LOSSES.field(name) for name in columns]), folder / "losses.parquet")

        return Computed(result, write_files)

    def compute_together(self, addresses: list[Address[BenchmarkCell]]) -> None:
        """Bring fine-tunes that differ in the learning rate only to their last epoch, side by side, in their work
        folders; `compute` then finds nothing left to train. Their time is booked to the cells in equal parts, what is
        counted to the first."""
        wall, cpu, parts = time.perf_counter(), time.process_time(), len(addresses)
        # what an undisturbed cell finds of its epochs is its own; else an attempt that was killed had begun on it
        begun = {address.folder for address in addresses if (self.workspace.work / address.folder).exists()}
        try:
            plans = [self._plan(address) for address in addresses]
            train_side_by_side(plans[0]._replace(members=[plan.members[0] for plan in plans]))
        except CannotStack:
            log.info("%s: its rates are trained one after another", label(addresses[0].cell))
        finally:
            wall, cpu = (time.perf_counter() - wall) / parts, (time.process_time() - cpu) / parts
            for address in addresses:
                notes = {"side_by_side": parts} | ({} if address.folder in begun else {"resumed_epochs": 0})
                self._shared[address.folder] = (wall, cpu, {**notes})

    def _plan(self, address: Address[BenchmarkCell]) -> Plan:
        """What a cell is trained by."""
        cell, benchmark = address.cell, self.run.benchmarks[address.cell.benchmark]
        lm = self._language_model("final")
        if self._prepared is None or self._prepared[0] != (cell.benchmark, cell.prompt):
            lm.share_encodings({})
            prompt: Prompt = given(cell.prompt)
            task, longest = self._task(cell.benchmark), self.run.configuration.finetuning.max_length
            validation = prepare_requests(lm, task, self._documents(cell.benchmark, "validation"), prompt)
            train = self._documents(cell.benchmark, "train")
            examples = evaluation.training_examples(lm, task, train, prompt, longest)
            self._prepared = ((cell.benchmark, cell.prompt), validation, examples)
        _, validation, examples = self._prepared
        # texts are cut to max_length before
        options = self.run.configuration.finetuning.model_dump(exclude={*OF_ALL_CELLS, "max_length"})
        options["gradient_checkpointing"] |= self.size_class.gradient_checkpointing
        member = Member(
            FinetuneSettings(learning_rate=float(given(cell.learning_rate)), **options),
            # named after the recipe: a changed recipe does not resume from the old one's state
            work=self.workspace.work / address.folder,
            on_epoch=lambda epoch: log.info(
                "%s epoch %d: loss %.4f, validation %s %.4f", cell.name, epoch.number, epoch.train_loss,
                benchmark.metric, epoch.validation_value,
            ),
        )  # fmt: skip
        return Plan(
            lm,
            examples,
            [member],
            lambda: evaluation.metric_value(lm, validation, benchmark.metric),
            # without the learning rate, so that rates differ in nothing else
            seed=derive_seed("finetune_adapter", cell.model, cell.benchmark, cell.prompt, cell.seed),
            higher_is_better=benchmark.higher_is_better,
        )


# ----------------------------------------------------------------------------------------------------------------------
# Scores of one model on documents: untouched, or with the adapters that were selected.


class Scorer(Worker):
    """Scores of untouched models (rule `evaluate_model`), and of selected adapters (rule `evaluate_adapter`).

    Built and tokenised requests are kept for the next checkpoint with the same tokenizer: at most MOST_KEPT (about a
    kilobyte each); beyond that all are built again.
    """

    MOST_KEPT = 100_000

    def __init__(self, workspace: Workspace, job: Job[BenchmarkCell]):
        super().__init__(workspace, job)
        self._tokenizer: str | None = None
        self._prepared: dict[tuple[str, str, str], Prepared] = {}  # by benchmark, split and prompt
        self._encodings: dict[tuple[str, str], EncodedRequest] = {}

    def _compute(self, address: Address[BenchmarkCell]) -> Computed:
        cell = address.cell
        if cell.checkpoint is not None:
            return self._score(self._language_model(cell.checkpoint), cell, given(cell.prompt))
        selection = self.workspace.selection(cell)
        trained = given(selection["folder"])
        if damage := self.store.damage(trained):
            problem = f"{self.store.path(trained)}: {damage}."
            raise CellError(problem, "run `lm-validity preflight`, then the workflow again: the cell is computed anew.")
        lm = self._language_model("final")
        with use_adapter(lm, self.store.path(trained) / "adapter"):
            return self._score(lm, cell, selection["prompt"])

    def _score(self, lm: LanguageModel, cell: BenchmarkCell, prompt: Prompt) -> Computed:
        """Score the documents of a cell with the model as it is."""
        benchmark, split = cell.benchmark, cell.scored_split
        tokenizer, key = lm.tokenizer_key(), (benchmark, split, prompt)
        n_kept = sum(len(group) for prepared in self._prepared.values() for group in prepared.requests)
        if tokenizer != self._tokenizer or n_kept > self.MOST_KEPT:
            self._tokenizer, self._prepared, self._encodings = tokenizer, {}, {}
        lm.share_encodings(self._encodings)
        if key not in self._prepared:
            documents = self._documents(benchmark, split)
            self._prepared[key] = prepare_requests(lm, self._task(benchmark), documents, prompt)
        # how the answers of a sampled run are drawn: its seed comes from the cell's key
        drawn = self.run.configuration.evaluation.generation
        if drawn is not None and cell.run is not None:
            lm.sampling = Sampling(drawn.temperature, drawn.top_p, derive_seed(cell.rule, cell.model, cell.name))
        try:
            metric = self.run.benchmarks[benchmark].metric
            scored = evaluation.score_prepared(lm, self._prepared[key], metric=metric)
        finally:
            lm.sampling = None
        result: dict[str, object] = {
            "metrics": {
                key: {"value": value, "stderr": error, "n_items": scored.valued[key]}
                for key, (value, error) in scored.metrics.items()
            },
            "n_items": len(scored.items),
            "prompt_sha256": scored.prompt_sha256,
            "max_length": lm.max_length,
            "truncated_requests": scored.truncated_requests,
            "task_version": self.workspace.task_record(benchmark)["record"]["version"],
        }
        if self.run.benchmarks[benchmark].output_type == "loglikelihood_rolling":
            result["document_bos"] = lm.window_prefix
        of_documents = pyarrow.schema([ITEMS.field(name) for name in scored.items])
        return Computed(result, lambda folder: write_table(scored.items, of_documents, folder / "items.parquet"))


# ----------------------------------------------------------------------------------------------------------------------
# A local causal language model as judge of single questions (see `lm_validity.studies.signal.filters.recipe`).


class LocalJudge:
    """Answers prompts with a model read from a local folder: greedy first, sampled in repetitions.

    The prompt goes through the tokenizer's chat template where it has one. Samples are seeded by prompt and
    repetition and leave the global random state as it was.
    """

    def __init__(
        self, path: str | Path, *, dtype: str, device: str = "cpu", temperature: float = 0.7, max_new_tokens: int = 8
    ):
        if dtype not in get_args(Dtype):
            raise InputError(f"dtype {dtype!r} is not known.", f"one of {', '.join(get_args(Dtype))}.")
        try:
            self.lm = load_language_model(path, dtype=dtype, device=device, eval_batch_size=1)
        except CellError as error:
            raise InputError(error.problem, error.hint) from error
        self.model, self.tokenizer = self.lm.base, self.lm.tokenizer
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens

    @torch.inference_mode()
    def __call__(self, prompt: str, repetition: int) -> str:
        """The model's reply, without the prompt."""
        text, bare = prompt, not self.tokenizer.chat_template
        if not bare:
            text = self.lm.apply_chat_template([{"role": "user", "content": prompt}])
        tokens = self.tokenizer(text, return_tensors="pt", add_special_tokens=bare)["input_ids"].to(self.model.device)
        sampling = {"do_sample": False} if repetition == 0 else {"do_sample": True, "temperature": self.temperature}
        seed = int.from_bytes(hashlib.sha256(f"{repetition}\0{prompt}".encode()).digest()[:7], "big")
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            output = self.model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=self.max_new_tokens,
                pad_token_id=self.tokenizer.pad_token_id or self.tokenizer.eos_token_id or 0,
                **sampling,
            )
        result: str = self.tokenizer.decode(output[0, tokens.shape[1] :], skip_special_tokens=True)
        return result
