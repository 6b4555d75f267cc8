"""Learning rates trained side by side: K adapters on one frozen base, in one forward and one backward pass.

The rows of a step go through the base K times over as one batch, each copy with its own adapter. Nothing trainable is
shared, so each adapter's gradient is what it would be alone; clipping, optimizer and schedule stay its own, and the
dropout mask is one for all, as it is when rates are trained one after another with one seed.

Only the work folders are written: a fine-tune that finds its epochs there (`finetune`) has nothing left to train. So
this is a way to get there faster where kernels are launched more slowly than they run: on a GPU, not on a CPU.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.training.loop import (
    Epoch,
    FinetuneSettings,
    Row,
    Training,
    TrainingStopped,
    checkpointing,
    padded,
    token_losses,
)
from lm_validity.cells.training.lora import DEFAULT_ADAPTER, BatchPosition, adapted_layers, add_adapter
from lm_validity.cells.training.micro_batching import micro_batches
from lm_validity.cells.training.state import SavedState, fingerprint
from lm_validity.cells.training.text import Example


class CannotStack(Exception):
    """The model mixes the rows of a batch (experts): its rates must be trained one after another."""


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
    """Bring the saved state of every member to its last epoch, or to the one before it diverges.

    Arguments as in `finetune`. Members that were interrupted at different epochs catch up with each other. Running out
    of memory takes fewer members at a time, and only then smaller micro-batches; the effective batch stays. Returns
    how many were trained at a time in the end.
    Raises CannotStack where the model does not allow it; nothing is lost then.
    """
    settings = members[0].settings
    position = BatchPosition(seed % 2**63)
    names = [DEFAULT_ADAPTER, *(f"rate{number}" for number in range(1, len(members)))]
    model = add_adapter(lm, settings, settings.target_modules, position, also=names[1:])
    try:
        with _stacked(model, position) as stack:
            run = _Run(lm, model, stack, examples, members, names, seed)
            run.train(validate, higher_is_better, stop)
            return run.together
    finally:
        model.unload()


class _Stack:
    """Which adapters the copies of a batch belong to, in order; one name means that all rows are its."""

    def __init__(self, position: BatchPosition):
        self.names: list[str] = [DEFAULT_ADAPTER]
        self.position = position


@contextlib.contextmanager
def _stacked(model: PeftModel, position: BatchPosition) -> Iterator[_Stack]:
    """Inside the block the adapted layers read `names` of the yielded stack, whatever PEFT holds for active."""
    stack = _Stack(position)
    layers = adapted_layers(model)
    for layer in layers:
        layer.forward = functools.partial(_forward, layer, stack)
    try:
        yield stack
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: torch.nn.Module, stack: _Stack, x: torch.Tensor) -> torch.Tensor:
    """A LoRA layer over the copies of a batch: base(x) + scaling * B_k A_k dropout(x_k) for copy k."""
    result = layer.base_layer(x)
    first = stack.names[0]
    dropout, scaling = layer.lora_dropout[first], layer.scaling[first]
    dtype = layer.lora_A[first].weight.dtype
    if len(stack.names) == 1:
        change = layer.lora_B[first](layer.lora_A[first](dropout(x.to(dtype))))
        return (result + change * scaling).to(result.dtype)
    copies = x.to(dtype).reshape(len(stack.names), -1, x.shape[-1])
    here = stack.position
    if copies.shape[1] != here.count * here.length:
        raise CannotStack
    if here.training and hasattr(dropout, "batch_mask"):
        mask = dropout.batch_mask(x.shape[-1], x.device).reshape(1, -1, x.shape[-1])
        copies = copies * mask * (1 / (1 - dropout.probability))
    down = torch.stack([layer.lora_A[name].weight for name in stack.names])  # (K, rank, inputs)
    up = torch.stack([layer.lora_B[name].weight for name in stack.names])  # (K, outputs, rank)
    change = copies @ down.transpose(1, 2) @ up.transpose(1, 2)
    return (result + change.reshape(result.shape) * scaling).to(result.dtype)


class _Run:
    """The members in training."""

    def __init__(
        self,
        lm: LanguageModel,
        model: PeftModel,
        stack: _Stack,
        examples: Sequence[Example],
        members: Sequence[Member],
        names: Sequence[str],
        seed: int,
    ):
        self.lm, self.stack, self.members = lm, stack, members
        self.trainings = [
            Training(lm, model, examples, member.settings, stack.position, name)
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

    def train(self, validate: Callable[[], float], higher_is_better: bool, stop: Callable[[], bool]) -> None:
        """Epoch by epoch, those that are furthest behind first, until all are done or diverged."""
        diverged: set[int] = set()
        while True:
            behind = [
                number
                for number, training in enumerate(self.trainings)
                if number not in diverged and len(training.epochs) < training.settings.epochs
            ]
            if not behind:
                return
            done = min(len(self.trainings[number].epochs) for number in behind)
            now = [number for number in behind if len(self.trainings[number].epochs) == done]
            losses, weights = self._run_steps([self.trainings[number] for number in now], done + 1, stop)
            for place, number in enumerate(now):
                training, member = self.trainings[number], self.members[number]
                self.stack.names = [training.adapter]
                own = [loss[place] for loss in losses]
                if training.finish_epoch(done + 1, own, weights, validate):
                    diverged.add(number)
                    continue
                training.micro_batch = self.micro_batch
                training.keep_if_best(higher_is_better)
                self.states[number].save(training)
                if member.on_epoch:
                    member.on_epoch(training.epochs[-1])

    def _run_steps(
        self, trainings: list[Training], epoch: int, stop: Callable[[], bool]
    ) -> tuple[list[torch.Tensor], list[int]]:
        """Every step of an epoch; the losses (one a training) and predicted tokens of each."""
        losses, weights = [], []
        first = trainings[0]
        self.stack.position.step = (epoch - 1) * first.steps_per_epoch
        with checkpointing(self.lm.base, first.settings.gradient_checkpointing), self.lm.counters.phase("train"):
            for batch in first.batches(epoch):
                if stop():
                    raise TrainingStopped(f"{self.lm.model_id}: stopped in epoch {epoch}, epoch {epoch - 1} is saved")
                predicted = sum(row.predicted for row in batch)
                losses.append(self._gradients(trainings, batch, predicted))
                weights.append(predicted)
                for training in trainings:
                    training.update()
                self.stack.position.step += 1
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
            except torch.OutOfMemoryError:
                if self.together == self.micro_batch == 1:
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
        here, counters, copies = self.stack.position, self.lm.counters, len(trainings)
        here.rows, here.width, here.training = len(batch), len(batch[0].token_ids), True
        self.stack.names = [training.adapter for training in trainings]
        total = torch.zeros(copies, device=self.lm.device)
        first = trainings[0]
        try:
            lengths = [len(row.token_ids) for row in batch]
            # what a pass costs by itself is shared by the copies
            for start, end in micro_batches(lengths, self.micro_batch, first.pass_tokens / copies):
                rows = batch[start:end]
                inputs, labels = padded(rows, self.lm.tokenizer.pad_token_id, self.lm.device)
                here.start, (here.count, here.length) = start, inputs.shape
                losses = token_losses(
                    self.lm.base, inputs.repeat(copies, 1), labels.repeat(copies, 1), first.narrow
                ).reshape(copies, -1)
                loss = losses.sum(1) / predicted
                loss.sum().backward()
                total += loss.detach().to(total.device)
                counters.training_tokens += copies * sum(len(row.token_ids) for row in rows)
                counters.training_tokens_padded += copies * inputs.numel()
        finally:
            here.training = False
        return total
