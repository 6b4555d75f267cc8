"""One process's loaded model, tasks and documents, and the three kinds of cells it computes with them."""

import gc
import logging
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from lm_validity.cells.models.prefetch import check_unchanged
from lm_validity.errors import CellError, InputError
from lm_validity.files import read_json
from lm_validity.monitor.readiness import INSTALL_CUDA
from lm_validity.run.grid import Cell
from lm_validity.run.recipe import derive_seed
from lm_validity.run.store import Place
from lm_validity.run.workspace import Workspace

log = logging.getLogger(__name__)

Files = Callable[[Path], None]


class Worker:
    """Computes cells of one model. torch is imported when the first cell really has to be computed."""

    def __init__(self, workspace: Workspace, model: str):
        self.workspace, self.run, self.store = workspace, workspace.run, workspace.store
        self.model = self.run.models[model]
        self.size_class = self.run.configuration.size_classes[self.model.size_class]
        self._language_models: dict[str, object] = {}
        self._load_errors: dict[str, CellError] = {}
        self._tasks: dict[str, object] = {}
        self._prepared: tuple | None = None
        self._kept = KeptRequests()
        self._engine = None  # vLLM's, where it writes the answers

    def compute(self, place: Place) -> None:
        """Compute one cell and commit it to the store. Raises CellError where it fails by its own fault."""
        from lm_validity.cells.models.sidecar import Stopwatch

        stopwatch, self._notes = Stopwatch(), {}
        compute = {
            "evaluate_model": self._evaluate_model,
            "finetune_adapter": self._finetune_adapter,
            "evaluate_adapter": self._evaluate_adapter,
        }[place.cell.rule]
        result, write_files = compute(place)
        (lm,) = self._language_models.values()
        self.store.commit(place, result, stopwatch.sidecar(lm) | self._notes, write_files)
        # only now: a job killed before the commit resumes from it
        shutil.rmtree(self.workspace.work / place.folder, ignore_errors=True)

    # ---- the three kinds ----------------------------------------------------------------------------------------

    def _evaluate_model(self, place: Place) -> tuple[dict, Files]:
        cell = place.cell
        lm = self._language_model(cell.checkpoint)
        return self._score(lm, cell, cell.prompt)

    def _evaluate_adapter(self, place: Place) -> tuple[dict, Files]:
        from lm_validity.cells.training.lora import use_adapter

        selection = self.workspace.selection(place.cell)
        damage = self.store.damage(selection["folder"])
        if damage:
            raise CellError(
                f"{self.store.path(selection['folder'])}: {damage}.",
                "run `lm-validity preflight`, then the workflow again: the cell is computed anew.",
            )
        lm = self._language_model("final")
        folder = self.store.path(selection["folder"]) / "adapter"
        with use_adapter(lm, folder):
            return self._score(lm, place.cell, selection["prompt"], folder)

    def _finetune_adapter(self, place: Place) -> tuple[dict, Files]:
        from lm_validity.cells.training.finetuning import finetune

        plan = self._finetune_plan(place)
        work = plan["work"]
        found = finetune(**plan, adapter_output=work / "adapter")
        if found.diverged:
            log.warning("%s diverged: %s", place.cell.name, found.diverged)
        self._notes = {"micro_batch": found.micro_batch, "resumed_epochs": found.resumed_epochs}
        self._notes |= {"truncated_texts": found.truncated}
        return _training_result(found), lambda folder: _copy_adapter(work, folder)

    def train_together(self, places: list[Place]) -> None:
        """Bring fine-tunes that differ in the learning rate only to their last epoch, side by side, in their work
        folders; `compute` then finds nothing left to train."""
        from lm_validity.cells.training.stacked import CannotStack, Member, train_side_by_side

        plans = [self._finetune_plan(place) for place in places]
        members = [Member(plan.pop("settings"), plan.pop("work"), plan.pop("on_epoch")) for plan in plans]
        try:
            train_side_by_side(members=members, **plans[0])
        except CannotStack:
            log.info("%s: its rates are trained one after another", places[0].label)

    def _finetune_plan(self, place: Place) -> dict:
        """Arguments of `finetune` for a cell."""
        from lm_validity.cells.tasks.evaluation import metric_value
        from lm_validity.cells.training.finetuning import FinetuneSettings

        cell, benchmark = place.cell, self.run.benchmarks[place.cell.benchmark]
        lm = self._language_model("final")
        validation, examples = self._training_data(lm, cell)
        other = {"learning_rates", "seeds", "max_length", "rates_side_by_side"}
        own = self.run.configuration.finetuning.model_dump(exclude=other)
        own["gradient_checkpointing"] |= self.size_class.gradient_checkpointing
        return {
            "lm": lm,
            "examples": examples,
            "validate": lambda: metric_value(lm, validation, benchmark.metric),
            "settings": FinetuneSettings(learning_rate=float(cell.learning_rate), **own),
            # without the learning rate, so that rates differ in nothing else
            "seed": derive_seed("finetune_adapter", cell.model, cell.benchmark, cell.prompt, cell.seed),
            "higher_is_better": benchmark.higher_is_better,
            # named after the recipe: a changed recipe does not resume from the old one's state
            "work": self.workspace.work / place.folder,
            "on_epoch": lambda epoch: log.info(
                "%s epoch %d: loss %.4f, validation %s %.4f",
                cell.name,
                epoch.number,
                epoch.train_loss,
                benchmark.metric,
                epoch.validation_value,
            ),
        }

    def _training_data(self, lm, cell: Cell) -> tuple:
        """(prepared validation requests, training examples) of a benchmark and prompt, kept for the next rate."""
        from lm_validity.cells.tasks.evaluation import prepare_requests
        from lm_validity.cells.training.text import training_examples

        key = (cell.benchmark, cell.prompt)
        if self._prepared is None or self._prepared[0] != key:
            self._kept.forget(lm)
            task = self._task(cell.benchmark)
            prompt = {"prompt": cell.prompt, "system_instruction": self._system_instruction}
            validation = prepare_requests(lm, task, self._documents(cell.benchmark, "validation"), **prompt)
            longest = self.run.configuration.finetuning.max_length
            train = self._documents(cell.benchmark, "train")
            examples = training_examples(lm, task, train, max_length=longest, **prompt)
            self._prepared = (key, validation, examples)
        return self._prepared[1:]

    def _score(self, lm, cell: Cell, prompt: str, adapter: Path | None = None) -> tuple[dict, Files]:
        """Score the documents of a cell with the model as it is, which has `adapter` in it where there is one."""
        from lm_validity.cells.tasks.evaluation import prepare_requests, score_prepared

        benchmark, split = cell.benchmark, cell.split or "test"

        def prepare():
            return prepare_requests(
                lm,
                self._task(benchmark),
                self._documents(benchmark, split),
                prompt=prompt,
                system_instruction=self._system_instruction,
            )

        prepared = self._kept.requests(lm, (benchmark, split, prompt), prepare)
        lm.writer = self._writer(lm, cell, adapter) if self.workspace.grid.writes_with_vllm(cell) else None
        self._notes |= {"generation_backend": "vllm"} if lm.writer else {}
        try:
            found = score_prepared(lm, prepared, metric=self.run.benchmarks[benchmark].metric)
        finally:
            lm.writer = None  # it knows the model: neither would be freed before the next checkpoint
        metrics = {key: {"value": value, "stderr": error} for key, (value, error) in found.metrics.items()}
        result = {
            "metrics": metrics,
            "n_items": found.n_items,
            "prompt_sha256": found.prompt_sha256,
            "max_length": lm.max_length,
            "truncated_requests": found.truncated_requests,
            "task_version": self.workspace.task_record(benchmark)["record"]["version"],
        }
        if self.run.benchmarks[benchmark].output_type == "loglikelihood_rolling":
            result["document_bos"] = lm.window_prefix
        return result, lambda folder: _write_items(found.items, folder)

    @property
    def _system_instruction(self) -> str | None:
        return self.run.configuration.evaluation.system_instruction

    # ---- what cells share ---------------------------------------------------------------------------------------

    @property
    def _device(self) -> str:
        return resolve_device(self.run.configuration.evaluation.device, self.model.size_class, self.size_class.gpu)

    def _language_model(self, checkpoint: str):
        """The model at a checkpoint, loaded once; only one is held at a time."""
        if checkpoint in self._load_errors:
            raise self._load_errors[checkpoint]
        if checkpoint not in self._language_models:
            from lm_validity.cells.models.language_model import load_language_model

            self._language_models.clear()
            if self._engine is not None:  # it holds the model of the last checkpoint, and most of the GPU's memory
                self._engine = None
                gc.collect()
            record, evaluation = (
                self.workspace.model_record(self.model.model),
                self.run.configuration.evaluation,
            )
            point = record["checkpoints"][checkpoint]
            check_unchanged(self.model.model, point)
            try:
                self._language_models[checkpoint] = load_language_model(
                    point["path"],
                    subfolder=point["subfolder"],
                    revision=point["revision"],
                    dtype=self.model.dtype,
                    device=self._device,
                    eval_batch_size=evaluation.batch_size,
                    max_length=evaluation.max_length,
                    max_generated_tokens=evaluation.max_generated_tokens,
                    window_prefix=self.workspace.grid.document_bos(self.model.model),
                    answer_start=evaluation.chat_answer_start,
                    scorer=evaluation.scorer,
                    generation_cache=evaluation.generation_cache,
                    model_id=self.model.model,
                )
            except CellError as error:
                self._load_errors[checkpoint] = error
                raise
        return self._language_models[checkpoint]

    def _writer(self, lm, cell: Cell, adapter: Path | None):
        """vLLM's engine for the loaded checkpoint, made once; it writes with `adapter` or without any."""
        import torch

        from lm_validity.cells.models.model_files import model_and_tokenizer_folder
        from lm_validity.cells.models.vllm_answers import VllmAnswers

        if self._engine is None:
            point = self.workspace.model_record(self.model.model)["checkpoints"][cell.checkpoint or "final"]
            places = model_and_tokenizer_folder(point["path"], revision=point["revision"], subfolder=point["subfolder"])
            self._engine = VllmAnswers(
                lm,
                *places,
                dtype=self.model.dtype,
                gpus=torch.cuda.device_count() if self._device == "all" else 1,
                rank=self.run.configuration.finetuning.rank if adapter else None,
            )
        self._engine.use_adapter(adapter)
        return self._engine

    def _task(self, benchmark: str):
        from lm_validity.cells.tasks.tasks import TaskRecord, fewshot_digest, load_task

        if benchmark not in self._tasks:
            record = self.workspace.task_record(benchmark)
            settings = self.workspace.grid.prompt_settings(benchmark)
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

    def _documents(self, benchmark: str, split: str):
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


class KeptRequests:
    """Built and tokenised requests, for the next checkpoint with the same tokenizer.

    At most MOST_KEPT requests are held (about a kilobyte each); beyond that all are built again.
    """

    MOST_KEPT = 100_000

    def __init__(self):
        self._tokenizer: str | None = None
        self._prepared: dict[tuple, object] = {}
        self._encodings: dict = {}

    def requests(self, lm, key: tuple, prepare: Callable[[], object]):
        """The prepared requests of (benchmark, split, prompt), built by `prepare` where they are not kept."""
        tokenizer = lm.tokenizer_key()
        kept = sum(len(group) for prepared in self._prepared.values() for group in prepared.requests)
        if tokenizer != self._tokenizer or kept > self.MOST_KEPT:
            self._tokenizer, self._prepared, self._encodings = tokenizer, {}, {}
        lm.share_encodings(self._encodings)
        if key not in self._prepared:
            self._prepared[key] = prepare()
        return self._prepared[key]

    def forget(self, lm) -> None:
        """Keep nothing."""
        self._tokenizer, self._prepared = None, {}
        lm.forget_requests()


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
        raise InputError(*_describe_missing_gpu(needed, usable, f"size class {size_class!r} with gpu: {gpus}"))
    if device != "auto":
        return device
    return "all" if gpus > 1 else "cuda"


def _describe_missing_gpu(needed: int, usable: int, asked: str) -> tuple[str, str]:
    """(problem, hint): what torch says about the GPUs of this machine, and where to look."""
    import torch

    problem = (
        f"the job needs {needed} GPU{'s' if needed > 1 else ''} and can use {usable} on {socket.gethostname()} "
        f"({asked}; torch {torch.__version__}, torch.version.cuda {torch.version.cuda}, torch.cuda.is_available() "
        f"{torch.cuda.is_available()}, torch.cuda.device_count() {torch.cuda.device_count()}, CUDA_VISIBLE_DEVICES "
        f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r})."
    )
    if usable:
        hint = "ask the scheduler for as many GPUs (docs/cluster.md), or lower `gpu` in the size class."
    elif not torch.backends.cuda.is_built():
        hint = f"this torch is the build without CUDA: {INSTALL_CUDA}."
    else:
        hint = (
            "check `nvidia-smi` and the driver on that node, and what the job asks the scheduler for "
            "(docs/cluster.md). To compute on the CPU on purpose, set evaluation.device to cpu."
        )
    return problem, hint


def _training_result(found) -> dict:
    """What a fine-tune's cell records; what is of one process only goes to the sidecar."""
    from dataclasses import asdict

    result = asdict(found)
    # one number a step: at 50,000 documents a megabyte a cell, and the epochs' means say as much
    del result["micro_batch"], result["resumed_epochs"], result["step_losses"]
    best = found.epochs[found.best_epoch - 1].validation_value if found.best_epoch else None
    # a rate that diverged is left out of the selection, whatever its first epochs gave
    return result | {"best_value": best, "diverged": found.diverged is not None, "reason": found.diverged}


def _copy_adapter(work: Path, folder: Path) -> None:
    """The finished adapter into the cell's folder; there is none where training diverged at once."""
    if (work / "adapter").is_dir():
        shutil.copytree(work / "adapter", folder / "adapter")


def _write_items(items, folder: Path) -> None:
    """items.parquet of a cell: the columns of ITEMS that belong to a document."""
    import pyarrow

    from lm_validity.tables.schema import ITEMS, write_table

    own = ITEMS.names[ITEMS.names.index("doc_id") :]
    write_table(items, pyarrow.schema([ITEMS.field(name) for name in own]), folder / "items.parquet")
