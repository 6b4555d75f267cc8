"""Learning rates trained side by side: K adapters on one frozen base, in one forward and one backward pass.

The rows of a step go through the base K times over as one batch, each copy with its own adapter. Nothing trainable is
shared, so each adapter's gradient is what it would be alone; clipping, optimizer and schedule stay its own, and the
dropout mask is one for all, as it is when rates are trained one after another with one seed.

Only the work folders are written: a fine-tune that finds its epochs there (`finetune`) has nothing left to train. So
this is a way to get there faster where kernels are launched more slowly than they run: on a GPU, not on a CPU.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.memory import is_out_of_memory
from lm_validity.cells.training.loop import (
    Epoch,
    FinetuneSettings,
    Training,
    TrainingStopped,
    one_text_must_fit,
)
from lm_validity.cells.training.lora import add_adapter
from lm_validity.cells.training.loss import MicroBatch, Row, loss_scale, token_losses, unscale
from lm_validity.cells.training.low_rank import DEFAULT_ADAPTER, BatchPosition
from lm_validity.cells.training.micro_batching import passes
from lm_validity.cells.training.recompute import less_memory
from lm_validity.cells.training.state import SavedState, fingerprint
from lm_validity.cells.training.text import Example


@dataclass(frozen=True)
class Member:
    """One of the fine-tunes: settings that differ in the learning rate only, and its work folder."""

    settings: FinetuneSettings
    work: Path
    on_epoch: Callable[[Epoch], None] | None = None


def train_side_by_side(
    lm: LanguageModel,
    examples: Sequence[Example],
    validate: Callable[[], float],
    members: Sequence[Member],
    *,
    seed: int,
    higher_is_better: bool,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Bring the saved state of every member to its last epoch (which may be an early one, `Training.is_done`), or to
    the one before it diverges.

    Arguments as in `finetune`. Members that were interrupted at different epochs catch up with each other. Running out
    of memory takes fewer members at a time, and only then smaller micro-batches; the effective batch stays. Returns
    how many were trained at a time in the end.
    Raises CannotStack where the model does not allow it, and CellError where memory runs out at one row; nothing is
    lost then.
    """
    settings = members[0].settings
    position = BatchPosition(seed % 2**63)
    names = [DEFAULT_ADAPTER, *(f"rate{number}" for number in range(1, len(members)))]
    with one_text_must_fit(lm, examples), ExitStack() as stack:
        model = add_adapter(lm, settings, settings.target_modules, position, also=names[1:])
        stack.callback(model.unload)
        run = _Run(lm, model, position, examples, members, names, seed)
        run.train(validate, higher_is_better=higher_is_better, stop=stop)
        return run.together


class _Run:
    """The members in training."""

    def __init__(
        self,
        lm: LanguageModel,
        model: PeftModel,
        position: BatchPosition,
        examples: Sequence[Example],
        members: Sequence[Member],
        names: Sequence[str],
        seed: int,
    ):
        self.lm, self.position, self.members = lm, position, members
        self.trainings = [
            Training(lm, model, examples, member.settings, position, name)
            for member, name in zip(members, names, strict=True)
        ]
        self.states = [
            SavedState(member.work / "training.safetensors", fingerprint(lm, examples, member.settings, seed))
            for member in members
        ]
        for training, state in zip(self.trainings, self.states, strict=True):
            state.restore(training)
        self.together = len(members)
        self.micro_batch = min(training.micro_batch for training in self.trainings)

    def train(self, validate: Callable[[], float], *, higher_is_better: bool, stop: Callable[[], bool]) -> None:
        """Epoch by epoch, those that are furthest behind first, until all are done or diverged."""
        diverged: set[int] = set()
        while True:
            behind = [
                number
                for number, training in enumerate(self.trainings)
                if number not in diverged and not training.is_done
            ]
            if not behind:
                return
            done = min(len(self.trainings[number].epochs) for number in behind)
            now = [number for number in behind if len(self.trainings[number].epochs) == done]
            losses, weights = self._run_steps([self.trainings[number] for number in now], done + 1, stop)
            for place, number in enumerate(now):
                training, member = self.trainings[number], self.members[number]
                self.position.adapters = [training.adapter]
                own = [loss[place] for loss in losses]
                if training.finish_epoch(done + 1, own, weights, validate):
                    diverged.add(number)
                    continue
                training.micro_batch = self.micro_batch
                training.keep_if_best(higher_is_better=higher_is_better)
                self.states[number].save(training)
                if member.on_epoch:
                    member.on_epoch(training.epochs[-1])

    def _run_steps(
        self, trainings: list[Training], epoch: int, stop: Callable[[], bool]
    ) -> tuple[list[torch.Tensor], list[int]]:
        """Every step of an epoch; the losses (one a training) and predicted tokens of each."""
        losses, weights = [], []
        first = trainings[0]
        self.position.step = (epoch - 1) * first.steps_per_epoch
        with less_memory(self.lm.base, layers=first.settings.gradient_checkpointing), self.lm.counters.phase("train"):
            for batch in first.batches(epoch):
                if stop():
                    raise TrainingStopped(f"{self.lm.model_id}: stopped in epoch {epoch}, epoch {epoch - 1} is saved")
                predicted = sum(row.predicted for row in batch)
                losses.append(self._gradients(trainings, batch, predicted))
                weights.append(predicted)
                for training in trainings:
                    training.update()
                self.position.step += 1
        return losses, weights

    def _gradients(self, trainings: list[Training], batch: list[Row], predicted: int) -> torch.Tensor:
        """Gradients of one step for all, as many at a time as fit into memory; the loss of each."""
        while True:
            try:
                found = [
                    self._accumulate(trainings[start : start + self.together], batch, predicted)
                    for start in range(0, len(trainings), self.together)
                ]
                return torch.cat(found)
            except RuntimeError as error:
                if self.together == self.micro_batch == 1 or not is_out_of_memory(error):
                    raise
            # outside `except`, whose traceback holds the tensors that did not fit
            if self.together > 1:
                self.together = -(-min(self.together, len(trainings)) // 2)
            else:
                self.micro_batch //= 2
            for training in trainings:
                training.optimizer.zero_grad(set_to_none=True)
            self.lm.counters.oom_halvings += 1
            torch.cuda.empty_cache()

    def _accumulate(self, trainings: list[Training], batch: list[Row], predicted: int) -> torch.Tensor:
        here, counters, copies = self.position, self.lm.counters, len(trainings)
        here.rows, here.width, here.training = len(batch), len(batch[0].token_ids), True
        here.adapters = [training.adapter for training in trainings]
        total = torch.zeros(copies, device=self.lm.device)
        first = trainings[0]
        scale = loss_scale(self.lm.base.dtype, predicted)
        try:
            lengths = [len(row.token_ids) for row in batch]
            # what a pass costs by itself is shared by the copies
            cost = first.pass_tokens / copies
            for start, end in passes(lengths, self.micro_batch, cost, self.lm.position_encoding):
                rows = batch[start:end]
                micro = MicroBatch.of(rows, self.lm.tokenizer.pad_token_id, self.lm.device, copies)
                here.start, here.count, here.length = start, len(rows), micro.inputs.shape[1]
                losses = token_losses(self.lm.base, micro, narrow=first.narrow, part=first.part).reshape(copies, -1)
                loss = losses.sum(1) / predicted
                (loss.sum() * scale).backward()
                total += loss.detach().to(total.device)
                counters.training_tokens += copies * sum(len(row.token_ids) for row in rows)
                counters.training_tokens_padded += micro.inputs.numel()
        finally:
            here.rest()
        for training in trainings:
            unscale(training.parameters.values(), scale)
        return total
