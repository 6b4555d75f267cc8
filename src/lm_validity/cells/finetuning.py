"""LoRA fine-tuning on a benchmark's training split: one plain loop, validated and saved after every epoch.

AdamW, linear decay to zero without warm-up, gradients clipped at norm 1, the token mean over an effective batch that
does not depend on memory. Everything random is a function of the seed, the epoch, the step and the layer, so
a resumed run, a halved micro-batch and an undisturbed run take the same steps (a resumed one on a CPU: the same
bytes). The base model is frozen and is given back as it was.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers.modeling_layers import GradientCheckpointingLayer

from lm_validity.cells.evaluation import NonFiniteScore
from lm_validity.cells.language_model import LanguageModel
from lm_validity.cells.lora import (
    AdapterSettings,
    BatchPosition,
    adapter_tensors,
    add_adapter,
    save_adapter,
    target_modules,
)
from lm_validity.cells.training_text import Example
from lm_validity.errors import CellError
from lm_validity.files import replace_file

IGNORED = -100  # cross_entropy's label of tokens that are not predicted
STEPS_BETWEEN_CHECKS = 50  # reading a loss off a GPU waits for it


class TrainingStopped(Exception):
    """The caller asked to stop; the last finished epoch is saved in the work folder."""


@dataclass(frozen=True)
class FinetuneSettings:
    """Hyperparameters; the defaults are train-before-test's. `micro_batch` and `gradient_checkpointing` trade memory
    for time and change a result by rounding only."""

    learning_rate: float
    epochs: int = 5
    effective_batch: int = 8
    micro_batch: int = 8
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    loss: Literal["all", "completion"] = "all"
    rank: int = 8
    alpha: int = 32
    dropout: float = 0.1
    target_modules: Literal["all-linear", "attention", "paper"] = "all-linear"
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class Epoch:
    """number: from 1. train_loss: mean over the epoch's predicted tokens, in nats, dropout on."""

    number: int
    train_loss: float
    validation_value: float


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tune did. best_epoch is null, and there is no adapter, where it diverged in its first epoch.

    diverged: why training ended early, or null. tokens: training tokens of one epoch. step_losses: one a step of
    the finished epochs.
    micro_batch, resumed_epochs: of this process only; they belong in the sidecar.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int | None
    diverged: str | None
    adapter_sha256: str | None
    target_modules: tuple[str, ...]
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
    settings: FinetuneSettings,
    *,
    seed: int,
    higher_is_better: bool,
    work: Path,
    adapter_output: Path,
    on_epoch: Callable[[Epoch], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> FinetuneResult:
    """Train an adapter on `examples` and write that of the best epoch to `adapter_output` in PEFT's format.

    validate: the benchmark's metric under the model as it stands, after each epoch; ties go to the earlier epoch.
    work: holds the last finished epoch; a second call with the same arguments goes on from there.
    stop: asked before each step; TrainingStopped is raised when it says so.
    Running out of memory halves the micro-batch and repeats the step; at one row the error is the caller's.
    A loss or score that is not finite ends the training with the epochs so far and `diverged` set.
    Raises CellError where there is nothing to train on or the architecture has no layers for adapters.
    """
    if not examples:
        raise CellError(f"{lm.model_id}: no training examples.", "check the benchmark's train split.")
    position = BatchPosition(seed % 2**63)
    shape = AdapterSettings(settings.rank, settings.alpha, settings.dropout, settings.target_modules)
    model = add_adapter(lm, shape, position)
    try:
        training = _Training(lm, model, examples, settings, position)
        saved = _SavedState(work / "training.safetensors", _fingerprint(lm, examples, settings, seed))
        resumed = saved.restore(training)
        diverged = None
        for number in range(resumed + 1, settings.epochs + 1):
            diverged = training.run_epoch(number, validate, stop)
            if diverged:
                break
            training.keep_if_best(higher_is_better)
            saved.save(training)
            if on_epoch:
                on_epoch(training.epochs[-1])
        digest = save_adapter(model, training.best_tensors, adapter_output) if training.best_tensors else None
    finally:
        model.unload()
    return _result(lm, training, examples, diverged, digest, resumed)


class _Training:
    """The adapter's weights, its optimizer, and the history of the epochs."""

    def __init__(
        self,
        lm: LanguageModel,
        model: PeftModel,
        examples: Sequence[Example],
        settings: FinetuneSettings,
        position: BatchPosition,
    ):
        self.lm, self.model, self.settings, self.position = lm, model, settings, position
        self.rows = [_row(example, settings.loss) for example in examples]
        self.parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.micro_batch = min(settings.micro_batch, settings.effective_batch)
        self.steps_per_epoch = -(-len(self.rows) // settings.effective_batch)
        self.epochs: list[Epoch] = []
        self.step_losses: list[float] = []
        self.best_epoch: int | None = None
        self.best_tensors: dict[str, torch.Tensor] = {}

    def run_epoch(self, number: int, validate: Callable[[], float], stop: Callable[[], bool]) -> str | None:
        """Train one epoch and validate; the reason where it diverged."""
        losses, weights = [], []
        with (
            _checkpointing(self.lm.base, self.settings.gradient_checkpointing),
            self.lm.counters.phase("train"),
        ):
            for batch in self._batches(number):
                if stop():
                    raise TrainingStopped(f"{self.lm.model_id}: stopped in epoch {number}, epoch {number - 1} is saved")
                loss, predicted = self._step(batch)
                losses.append(loss)
                weights.append(predicted)
                if _due(loss, len(losses)) and not torch.isfinite(loss):
                    break
        values = torch.stack(losses).double().cpu()
        if not torch.isfinite(values).all():
            return f"the loss of epoch {number} is not finite"
        self.step_losses += values.tolist()
        try:
            score = validate()
        except NonFiniteScore as error:
            return f"validation after epoch {number}: {error.problem}"
        mean = float(np.average(values.numpy(), weights=weights))
        self.epochs.append(Epoch(number, mean, score))
        return None

    def keep_if_best(self, higher_is_better: bool) -> None:
        """Keep the adapter of the last epoch if it is strictly better than that of every one before."""
        values = [epoch.validation_value for epoch in self.epochs]
        best = values.index(max(values) if higher_is_better else min(values)) + 1
        if best == len(values):
            self.best_epoch, self.best_tensors = best, adapter_tensors(self.model)

    def _batches(self, epoch: int) -> Iterator[list["_Row"]]:
        """Effective batches in the epoch's order; the last may be smaller. Long rows first: the first micro-batch is
        the one that needs most memory."""
        order = np.random.default_rng([self.position.seed, epoch]).permutation(len(self.rows))
        size = self.settings.effective_batch
        for start in range(0, len(order), size):
            chosen = [self.rows[index] for index in order[start : start + size]]
            yield sorted(chosen, key=lambda row: -len(row.token_ids))

    def _step(self, batch: list["_Row"]) -> tuple[torch.Tensor, int]:
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
            torch.cuda.empty_cache()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.max_gradient_norm)
        left = 1 - self.position.step / (self.steps_per_epoch * self.settings.epochs)
        self.optimizer.param_groups[0]["lr"] = self.settings.learning_rate * left
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.position.step += 1
        self.lm.counters.optimizer_steps += 1
        return loss, predicted

    def _accumulate(self, batch: list["_Row"], predicted: int) -> torch.Tensor:
        """Gradients of the token mean over the whole batch, one micro-batch after another."""
        here, counters = self.position, self.lm.counters
        here.rows, here.width, here.training = len(batch), len(batch[0].token_ids), True
        total = torch.zeros((), device=self.lm.device)
        try:
            for start in range(0, len(batch), self.micro_batch):
                rows = batch[start : start + self.micro_batch]
                inputs, labels = _padded(rows, self.lm.tokenizer.pad_token_id, self.lm.device)
                here.start, (here.count, here.length) = start, inputs.shape
                logits = self.lm.base(input_ids=inputs, use_cache=False).logits
                labels = labels.to(logits.device)
                loss = F.cross_entropy(
                    logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
                )
                loss = loss / predicted
                loss.backward()
                total += loss.detach().to(total.device)
                counters.training_tokens += sum(len(row.token_ids) for row in rows)
                counters.training_tokens_padded += inputs.numel()
        finally:
            here.training = False
        return total


@dataclass(frozen=True)
class _Row:
    """token_ids and, at each position, the token to predict from it (IGNORED where none)."""

    token_ids: torch.Tensor
    labels: torch.Tensor
    predicted: int


def _result(
    lm: LanguageModel,
    training: _Training,
    examples: Sequence[Example],
    diverged: str | None,
    digest: str | None,
    resumed: int,
) -> FinetuneResult:
    return FinetuneResult(
        epochs=tuple(training.epochs),
        best_epoch=training.best_epoch,
        diverged=diverged,
        adapter_sha256=digest,
        target_modules=tuple(target_modules(lm, training.settings.target_modules)),
        trainable_parameters=sum(parameter.numel() for parameter in training.parameters.values()),
        examples=len(examples),
        truncated=sum(example.truncated > 0 for example in examples),
        tokens=sum(len(example.token_ids) for example in examples),
        steps=training.position.step,
        step_losses=tuple(training.step_losses),
        micro_batch=training.micro_batch,
        resumed_epochs=resumed,
    )


def _row(example: Example, loss: str) -> _Row:
    tokens = torch.tensor(example.token_ids)
    first = max(1, example.completion_start) if loss == "completion" else 1
    labels = torch.full_like(tokens, IGNORED)
    labels[first - 1 : -1] = tokens[first:]
    return _Row(tokens, labels, len(tokens) - first)


def _padded(rows: list[_Row], padding: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Input ids and labels (rows, longest), padded on the right: a causal model never looks there, so no mask."""
    inputs = torch.nn.utils.rnn.pad_sequence([row.token_ids for row in rows], True, padding)
    labels = torch.nn.utils.rnn.pad_sequence([row.labels for row in rows], True, IGNORED)
    return inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def _due(loss: torch.Tensor, steps: int) -> bool:
    return loss.device.type == "cpu" or steps % STEPS_BETWEEN_CHECKS == 0


@contextlib.contextmanager
def _checkpointing(base: torch.nn.Module, wanted: bool) -> Iterator[None]:
    """Recompute activations in the backward pass inside the block. Layers ask for it only in training mode, which the
    rest of the model stays out of: adapters are the only dropout there is."""
    if not wanted:
        yield
        return
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    layers = [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
        base.gradient_checkpointing_disable()


def _fingerprint(lm: LanguageModel, examples: Sequence[Example], settings: FinetuneSettings, seed: int) -> str:
    """What a saved state must agree on with the run that resumes from it."""
    same = replace(settings, micro_batch=0, gradient_checkpointing=False)
    digest = hashlib.sha256(json.dumps([lm.model_id, str(lm.base.dtype), asdict(same), seed]).encode())
    for example in examples:
        digest.update(np.asarray([example.completion_start, *example.token_ids], dtype="<i8").tobytes())
    return digest.hexdigest()


class _SavedState:
    """The last finished epoch on disk: weights, optimizer, best adapter and history in one file, replaced whole."""

    def __init__(self, path: Path, fingerprint: str):
        self.path, self.fingerprint = path, fingerprint

    def save(self, training: _Training) -> None:
        tensors = {f"best.{name}": tensor for name, tensor in training.best_tensors.items()}
        tensors["step_losses"] = torch.tensor(training.step_losses, dtype=torch.float64)
        for name, parameter in training.parameters.items():
            tensors[f"weight.{name}"] = parameter.detach().cpu()
            for key, value in training.optimizer.state[parameter].items():
                tensors[f"{key}.{name}"] = value.cpu()
        history = {
            "fingerprint": self.fingerprint,
            "best_epoch": training.best_epoch,
            "micro_batch": training.micro_batch,
            "epochs": [asdict(epoch) for epoch in training.epochs],
        }
        with replace_file(self.path) as temporary:
            save_file(tensors, temporary, metadata={"history": json.dumps(history)})

    def restore(self, training: _Training) -> int:
        """Number of epochs restored; 0 where there is no state of this very fine-tune."""
        if not self.path.is_file():
            return 0
        try:
            with safe_open(self.path, framework="pt") as file:
                history = json.loads(file.metadata()["history"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no dict)
        except (SafetensorError, OSError, ValueError, KeyError):
            return 0
        if history["fingerprint"] != self.fingerprint:
            return 0
        for name, parameter in training.parameters.items():
            with torch.no_grad():
                parameter.copy_(tensors[f"weight.{name}"])
            training.optimizer.state[parameter] = {
                key: tensors[f"{key}.{name}"].to(parameter.device) for key in ("step", "exp_avg", "exp_avg_sq")
            }
        training.epochs = [Epoch(**epoch) for epoch in history["epochs"]]
        training.step_losses = tensors["step_losses"].tolist()
        training.best_epoch = history["best_epoch"]
        training.best_tensors = {key[5:]: value for key, value in tensors.items() if key.startswith("best.")}
        training.micro_batch = min(training.micro_batch, history["micro_batch"])
        training.position.step = len(training.epochs) * training.steps_per_epoch
        return len(training.epochs)
