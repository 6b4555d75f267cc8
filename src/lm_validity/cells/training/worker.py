"""Fine-tunes of a job: epochs with validation, the adapter that is kept."""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks.evaluation import (
    Example,
    PreparedRequests,
    metric_value,
    prepare_requests,
    training_examples,
)
from lm_validity.cells.training.loop import Epoch, FinetuneSettings, Member, started, train_side_by_side
from lm_validity.cells.training.lora import CannotStack, find_targets, save_adapter
from lm_validity.cells.worker import Computed, Worker
from lm_validity.run.cell import BenchmarkCell, Prompt, derive_seed, given
from lm_validity.run.rules.benchmarks import OF_ALL_CELLS
from lm_validity.run.store import Address
from lm_validity.tables.schema import LOSSES, write_table

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
