"""One adapter in training: its batches, its steps, its epochs, its history. Several of them may share a base model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from peft import PeftModel

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.memory import MORE_MEMORY, is_out_of_memory, must_fit
from lm_validity.cells.tasks.evaluation import NonFiniteScore
from lm_validity.cells.training.lora import adapter_parameters, adapter_tensors
from lm_validity.cells.training.loss import MicroBatch, Row, loss_scale, row_of, token_losses, unscale
from lm_validity.cells.training.low_rank import DEFAULT_ADAPTER, BatchPosition
from lm_validity.cells.training.micro_batching import pass_tokens, passes
from lm_validity.cells.training.recompute import less_memory
from lm_validity.cells.training.text import Example
from lm_validity.config.finetuning import PATIENCE, OneFinetune
from lm_validity.errors import CellError

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
        self.narrow, self.part = lm.narrows_head(), lm.head_part()
        self.steps_per_epoch = -(-len(self.rows) // settings.effective_batch)
        self.epochs: list[Epoch] = []
        self.step_losses: list[float] = []
        self.best_epoch: int | None = None
        self.best_tensors: dict[str, torch.Tensor] = {}

    def run_epoch(self, number: int, validate: Callable[[], float], stop: Callable[[], bool]) -> str | None:
        """Train one epoch and validate; the reason where it diverged."""
        losses, weights = [], []
        with (
            less_memory(self.lm.base, layers=self.settings.gradient_checkpointing),
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

    def keep_if_best(self, *, higher_is_better: bool) -> None:
        """Keep the adapter of the last epoch if it is strictly better than that of every one before."""
        values = [epoch.validation_value for epoch in self.epochs]
        best = values.index(max(values) if higher_is_better else min(values)) + 1
        if best == len(values):
            self.best_epoch, self.best_tensors = best, adapter_tensors(self.model, self.adapter)

    @property
    def is_done(self) -> bool:
        """Whether every epoch is trained, or the last ones were without improvement and that ends it."""
        if self.settings.early_stop and self.best_epoch and len(self.epochs) - self.best_epoch >= PATIENCE:
            return True
        return len(self.epochs) >= self.settings.epochs

    def batches(self, epoch: int) -> Iterator[list[Row]]:
        """Effective batches in the epoch's order; the last may be smaller. Long rows first: the first micro-batch is
        the one that needs most memory."""
        order = np.random.default_rng([self.position.seed, epoch]).permutation(len(self.rows))
        size = self.settings.effective_batch
        for start in range(0, len(order), size):
            chosen = [self.rows[index] for index in order[start : start + size]]
            yield sorted(chosen, key=lambda row: -len(row.token_ids))

    def _step(self, batch: list[Row]) -> tuple[torch.Tensor, int]:
        """One optimizer step; its loss and the number of predicted tokens."""
        predicted = sum(row.predicted for row in batch)
        while True:
            try:
                loss = self._accumulate(batch, predicted)
                break
            except RuntimeError as error:
                if self.micro_batch == 1 or not is_out_of_memory(error):
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

    def _accumulate(self, batch: list[Row], predicted: int) -> torch.Tensor:
        """Gradients of the token mean over the whole batch, one micro-batch after another."""
        here, counters = self.position, self.lm.counters
        here.rows, here.width, here.training = len(batch), len(batch[0].token_ids), True
        total = torch.zeros((), device=self.lm.device)
        scale = loss_scale(self.lm.base.dtype, predicted)
        try:
            lengths = [len(row.token_ids) for row in batch]
            for start, end in passes(lengths, self.micro_batch, self.pass_tokens, self.lm.position_encoding):
                rows = batch[start:end]
                micro = MicroBatch.of(rows, self.lm.tokenizer.pad_token_id, self.lm.device)
                here.start, (here.count, here.length) = start, micro.inputs.shape
                loss = token_losses(self.lm.base, micro, narrow=self.narrow, part=self.part).sum() / predicted
                (loss * scale).backward()
                total += loss.detach().to(total.device)
                counters.training_tokens += sum(len(row.token_ids) for row in rows)
                counters.training_tokens_padded += micro.inputs.numel()
        finally:
            here.rest()
        unscale(self.parameters.values(), scale)
        return total


def one_text_must_fit(lm: LanguageModel, examples: Sequence[Example]) -> AbstractContextManager[None]:
    """Inside the block it is a CellError where not even one text can be trained on; at once where there is none."""
    if not examples:
        raise CellError(f"{lm.model_id}: no training examples.", "check the benchmark's train split.")
    longest = max(len(example.token_ids) for example in examples)
    hint = f"{MORE_MEMORY}, set gradient_checkpointing for it, or lower finetuning.max_length."
    return must_fit(lm.model_id, f"one text of up to {longest} tokens to train on", hint)


def due(loss: torch.Tensor, steps: int) -> bool:
    """Whether to look at the loss after this step: on a GPU only now and then, since a look makes the host wait."""
    return loss.device.type == "cpu" or steps % STEPS_BETWEEN_CHECKS == 0
