"""One adapter in training: its batches, its steps, its epochs, its history. Several of them may share a base model."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from peft import PeftModel
from transformers.modeling_layers import GradientCheckpointingLayer

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.scorer_forward import narrowed_head
from lm_validity.cells.tasks.evaluation import NonFiniteScore
from lm_validity.cells.training.lora import adapter_parameters, adapter_tensors
from lm_validity.cells.training.low_rank import DEFAULT_ADAPTER, BatchPosition
from lm_validity.cells.training.micro_batching import micro_batches, pass_tokens
from lm_validity.cells.training.text import Example
from lm_validity.config.sections import OneFinetune

IGNORED = -100  # cross_entropy's label of tokens that are not predicted
STEPS_BETWEEN_CHECKS = 50  # reading a loss off a GPU waits for it


class TrainingStopped(Exception):
    """The caller asked to stop; the last finished epoch is saved in the work folder."""


class FinetuneSettings(OneFinetune):
    """Hyperparameters of one fine-tune: those of the configuration, and its learning rate. `micro_batch` and
    `gradient_checkpointing` trade memory for time and change a result by rounding only."""

    learning_rate: float
    max_gradient_norm: float = 1.0


@dataclass(frozen=True)
class Epoch:
    """number: from 1. train_loss: mean over the epoch's predicted tokens, in nats, dropout on."""

    number: int
    train_loss: float
    validation_value: float


class Training:
    """An adapter's weights, its optimizer, and the history of its epochs. `adapter` is its name in the model."""

    def __init__(
        self,
        lm: LanguageModel,
        model: PeftModel,
        examples: Sequence[Example],
        settings: FinetuneSettings,
        position: BatchPosition,
        adapter: str = DEFAULT_ADAPTER,
    ):
        self.lm, self.model, self.settings, self.position = lm, model, settings, position
        self.adapter = adapter
        self.rows = [row_of(example, settings.loss) for example in examples]
        self.parameters = adapter_parameters(model, adapter)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.micro_batch = min(settings.micro_batch, settings.effective_batch)
        self.pass_tokens = pass_tokens(lm)
        self.narrow = lm.narrows_head()
        self.steps_per_epoch = -(-len(self.rows) // settings.effective_batch)
        self.epochs: list[Epoch] = []
        self.step_losses: list[float] = []
        self.best_epoch: int | None = None
        self.best_tensors: dict[str, torch.Tensor] = {}

    def run_epoch(self, number: int, validate: Callable[[], float], stop: Callable[[], bool]) -> str | None:
        """Train one epoch and validate; the reason where it diverged."""
        losses, weights = [], []
        with (
            checkpointing(self.lm.base, self.settings.gradient_checkpointing),
            self.lm.counters.phase("train"),
        ):
            for batch in self.batches(number):
                if stop():
                    raise TrainingStopped(f"{self.lm.model_id}: stopped in epoch {number}, epoch {number - 1} is saved")
                loss, predicted = self._step(batch)
                losses.append(loss)
                weights.append(predicted)
                if due(loss, len(losses)) and not torch.isfinite(loss):
                    break
        return self.finish_epoch(number, losses, weights, validate)

    def finish_epoch(
        self, number: int, losses: list[torch.Tensor], weights: list[int], validate: Callable[[], float]
    ) -> str | None:
        """Book an epoch's step losses (of `weights` predicted tokens each) and validate; the reason if it diverged."""
        values = torch.stack(losses).double().cpu()
        if not torch.isfinite(values).all():
            return f"the loss of epoch {number} is not finite"
        try:
            score = validate()
        except NonFiniteScore as error:
            return f"validation after epoch {number}: {error.problem}"
        self.step_losses += values.tolist()
        mean = float(np.average(values.numpy(), weights=weights))
        self.epochs.append(Epoch(number, mean, score))
        return None

    def keep_if_best(self, higher_is_better: bool) -> None:
        """Keep the adapter of the last epoch if it is strictly better than that of every one before."""
        values = [epoch.validation_value for epoch in self.epochs]
        best = values.index(max(values) if higher_is_better else min(values)) + 1
        if best == len(values):
            self.best_epoch, self.best_tensors = best, adapter_tensors(self.model, self.adapter)

    def batches(self, epoch: int) -> Iterator[list["Row"]]:
        """Effective batches in the epoch's order; the last may be smaller. Long rows first: the first micro-batch is
        the one that needs most memory."""
        order = np.random.default_rng([self.position.seed, epoch]).permutation(len(self.rows))
        size = self.settings.effective_batch
        for start in range(0, len(order), size):
            chosen = [self.rows[index] for index in order[start : start + size]]
            yield sorted(chosen, key=lambda row: -len(row.token_ids))

    def _step(self, batch: list["Row"]) -> tuple[torch.Tensor, int]:
        """One optimizer step; its loss and the number of predicted tokens."""
        predicted = sum(row.predicted for row in batch)
        while True:
            try:
                loss = self._accumulate(batch, predicted)
                break
            except torch.OutOfMemoryError:
                if self.micro_batch == 1:
                    raise
            # outside `except`, whose traceback holds the tensors that did not fit
            self.micro_batch //= 2
            self.optimizer.zero_grad(set_to_none=True)
            self.lm.counters.oom_halvings += 1
            torch.cuda.empty_cache()
        self.update()
        self.position.step += 1
        return loss, predicted

    def update(self) -> None:
        """Clip this adapter's gradients, set its rate by the schedule, step its optimizer."""
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.max_gradient_norm)
        left = 1 - self.position.step / (self.steps_per_epoch * self.settings.epochs)
        self.optimizer.param_groups[0]["lr"] = self.settings.learning_rate * left
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.lm.counters.optimizer_steps += 1

    def _accumulate(self, batch: list["Row"], predicted: int) -> torch.Tensor:
        """Gradients of the token mean over the whole batch, one micro-batch after another."""
        here, counters = self.position, self.lm.counters
        here.rows, here.width, here.training = len(batch), len(batch[0].token_ids), True
        total = torch.zeros((), device=self.lm.device)
        try:
            lengths = [len(row.token_ids) for row in batch]
            for start, end in micro_batches(lengths, self.micro_batch, self.pass_tokens):
                rows = batch[start:end]
                inputs, labels = padded(rows, self.lm.tokenizer.pad_token_id, self.lm.device)
                here.start, (here.count, here.length) = start, inputs.shape
                loss = token_losses(self.lm.base, inputs, labels, self.narrow).sum() / predicted
                loss.backward()
                total += loss.detach().to(total.device)
                counters.training_tokens += sum(len(row.token_ids) for row in rows)
                counters.training_tokens_padded += inputs.numel()
        finally:
            here.training = False
        return total


def token_losses(base: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor, narrow: bool) -> torch.Tensor:
    """Cross-entropy in nats of each labelled position, row by row. `narrow`: the vocabulary is computed there only."""
    wanted = labels != IGNORED
    if narrow:
        places = wanted.nonzero()
        with narrowed_head(base, places[:, 0], places[:, 1]):
            logits = base(input_ids=inputs, use_cache=False).logits[0]
    else:
        logits = base(input_ids=inputs, use_cache=False).logits
        logits = logits[wanted.to(logits.device)]
    return F.cross_entropy(logits.float(), labels[wanted].to(logits.device), reduction="none")


@dataclass(frozen=True)
class Row:
    """token_ids and, at each position, the token to predict from it (IGNORED where none)."""

    token_ids: torch.Tensor
    labels: torch.Tensor
    predicted: int


def row_of(example: Example, loss: str) -> Row:
    tokens = torch.tensor(example.token_ids)
    first = max(1, example.completion_start) if loss == "completion" else 1
    labels = torch.full_like(tokens, IGNORED)
    labels[first - 1 : -1] = tokens[first:]
    return Row(tokens, labels, len(tokens) - first)


def padded(rows: list[Row], padding: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Input ids and labels (rows, longest), padded on the right: a causal model never looks there, so no mask."""
    inputs = torch.nn.utils.rnn.pad_sequence([row.token_ids for row in rows], True, padding)
    labels = torch.nn.utils.rnn.pad_sequence([row.labels for row in rows], True, IGNORED)
    return inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def due(loss: torch.Tensor, steps: int) -> bool:
    return loss.device.type == "cpu" or steps % STEPS_BETWEEN_CHECKS == 0


@contextlib.contextmanager
def checkpointing(base: torch.nn.Module, wanted: bool) -> Iterator[None]:
    """Recompute activations in the backward pass inside the block. transformers' own switch works only in training
    mode, in which some layers (OPT's, Falcon's) drop out residuals by the process's random numbers. Adapters are the
    only dropout there is, so each layer stays as it is and its `forward` is called by way of torch's checkpoint."""
    layers = [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)] if wanted else []
    before = {layer: layer.__dict__.get("forward") for layer in layers}
    for layer in layers:
        layer.forward = functools.partial(torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer, forward in before.items():
            if forward is None:
                del layer.forward
            else:  # accelerate's, which brings a layer's inputs to its device
                layer.forward = forward
