"""The training loop: losses, micro-batches, recomputation, a state from which it resumes, rates side by side."""

import contextlib
import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.autograd.function import FunctionCtx
from transformers.modeling_layers import GradientCheckpointingLayer

from lm_validity.cells.models import passes
from lm_validity.cells.models.language_model import LanguageModel, NonFiniteScore
from lm_validity.cells.models.scorer import Counters
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training.lora import BatchPosition, adapter_parameters, adapter_tensors, add_adapter
from lm_validity.config.sections import OneFinetune
from lm_validity.errors import CellError
from lm_validity.files import replace_file

# ----------------------------------------------------------------------------------------------------------------------
# The loss of a micro-batch: cross-entropy at each predicted token, and the vocabulary nowhere else.


class MicroBatch(NamedTuple):
    """inputs: (rows, longest), padded on the right: a causal model never looks there, so no mask. row, position: where
    each predicted token is predicted from, row by row; targets: that token. Made on the CPU: finding the places on a
    GPU would make the host wait for it."""

    inputs: Tensor
    row: Tensor
    position: Tensor
    targets: Tensor

    @classmethod
    def of(cls, rows: Sequence[Tensor], padding: int, device: torch.device, copies: int) -> "MicroBatch":
        """Of texts in tokens, of which all but the first are predicted. `copies`: how often the rows are there, one
        time behind the other."""
        rows = [*rows] * copies
        parts = (
            torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding),
            torch.cat([torch.full((len(row) - 1,), number) for number, row in enumerate(rows)]),
            torch.cat([torch.arange(len(row) - 1) for row in rows]),
            torch.cat([row[1:] for row in rows]),
        )
        return cls(*(part.to(device, non_blocking=True) for part in parts))


def token_losses(base: torch.nn.Module, batch: MicroBatch, *, narrow: bool, part: int | None) -> Tensor:
    """Cross-entropy in nats of each predicted token, row by row.

    narrow: whether the vocabulary can be computed there only. part: positions whose logits may be there at a time, or
    None for all; more positions change rounding only.
    """
    inputs = {"input_ids": batch.inputs, "use_cache": False}
    if part is not None and len(batch.targets) > part:
        with passes.never_packed():
            states = passes.States(base, base, **inputs)
        device = states.hidden.device
        hidden = states.hidden[batch.row.to(device), batch.position.to(device)]
        return _LossesInParts.apply(hidden, batch.targets, states, part)
    with passes.never_packed():
        if narrow:
            with passes.narrowed_head(base, batch.row, batch.position):
                logits = base(**inputs).logits[0]
        else:
            logits = base(**inputs).logits
            logits = logits[batch.row.to(logits.device), batch.position.to(logits.device)]
    return F.cross_entropy(logits.float(), batch.targets.to(logits.device), reduction="none")


def rows_are_alike(lm: LanguageModel, rows: Sequence[Tensor]) -> bool:
    """Whether texts beside each other have the losses that a plain pass over each alone gives: the scorer is asked for
    the longest of the rows, the longest that is padded, and the shortest, and checks what it answers."""
    ordered = sorted(rows, key=len)
    padded = [row for row in ordered if len(row) < len(ordered[-1])]
    chosen = [ordered[-1], *padded[-1:], *padded[:1]]
    if len(chosen) > 1:
        counters, lm.counters = lm.counters, Counters()  # no scores of the cell
        lm._loglikelihood_tokens([(None, row[:1].tolist(), row[1:].tolist()) for row in chosen])
        lm.counters = counters
    return not lm.alone


def loss_scale(dtype: torch.dtype, predicted: int) -> int:
    """What the mean loss of `predicted` tokens is multiplied by before the backward pass: under float16 their number,
    else 1. A token's part in the mean has gradients that float16 rounds to few digits, or to nothing; of the sum it has
    not. `unscale` afterwards."""
    return predicted if dtype == torch.float16 else 1


def unscale(parameters: Iterable[torch.nn.Parameter], scale: int) -> None:
    """Divide the gradients by the scale of their loss."""
    for parameter in parameters if scale != 1 else ():
        if parameter.grad is not None:
            parameter.grad /= scale


class _LossesInParts(torch.autograd.Function):
    """Losses (positions,) from hidden states (positions, width). A loss depends on its own position's state alone, so
    its derivative is computed with it, and no logits are kept for the backward pass."""

    @staticmethod
    def forward(ctx: FunctionCtx, hidden: Tensor, targets: Tensor, states: passes.States, part: int) -> Tensor:
        """The loss (rows,) of each hidden state (rows, width), `part` rows at a time; keeps its derivative."""
        derivative = torch.empty_like(hidden)
        losses = []
        for start in range(0, len(hidden), part):
            with torch.enable_grad():
                piece = hidden[start : start + part].detach().requires_grad_()
                logits = states.logits(piece).float()
                loss = F.cross_entropy(logits, targets[start : start + part].to(logits.device), reduction="none")
                (derivative[start : start + part],) = torch.autograd.grad(loss.sum(), piece)
            losses.append(loss.detach())
        ctx.save_for_backward(derivative)
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the hidden states; the other inputs have none."""
        (derivative,) = ctx.saved_tensors
        return (derivative * gradient[:, None].to(derivative.device)).to(derivative.dtype), None, None, None


# ----------------------------------------------------------------------------------------------------------------------
# How the rows of an optimizer step are cut into forward passes: by length, so that little padding is computed.
#
# Which rows make a step is fixed, and a step's gradient is the sum over them, so a cut changes rounding and cost only.

# Seconds a layer and pass, and multiplications a second (4 a parameter and token). CPU: measured
# (docs/explanation/lab_record.md). CUDA: not measured, launches of an eager layer and half of an H100's bf16
PASS_COST = {"cpu": (4e-3, 6e10), "cuda": (3e-3, 4e14)}


def micro_batches(lengths: Sequence[int], limit: int, pass_cost: float) -> list[tuple[int, int]]:
    """Cut rows, sorted by length, into runs [start, end) of at most `limit` rows that cost least: a run costs its rows
    times its longest, in tokens, and `pass_cost` for a forward and backward pass of its own."""
    costs, cuts = [0.0], [0]
    for end in range(1, len(lengths) + 1):
        options = [
            (costs[start] + pass_cost + (end - start) * max(lengths[start:end]), start)
            for start in range(max(0, end - limit), end)
        ]
        cost, start = min(options)
        costs.append(cost)
        cuts.append(start)
    runs, end = [], len(lengths)
    while end:
        runs.append((cuts[end], end))
        end = cuts[end]
    return runs[::-1]


def runs_alike(lm: LanguageModel, lengths: Sequence[int], limit: int, pass_cost: float) -> Iterator[tuple[int, int]]:
    """`micro_batches` of rows that have one position encoding."""
    first = 0
    for _, group in itertools.groupby(lengths, key=lm.outgrows):
        lengths_alike = list(group)
        for start, end in micro_batches(lengths_alike, limit, pass_cost):
            yield first + start, first + end
        first += len(lengths_alike)


# ----------------------------------------------------------------------------------------------------------------------
# What a training step computes twice instead of keeping it: each layer.

log = logging.getLogger(__name__)


@contextlib.contextmanager
def layers_recomputed(base: torch.nn.Module, *, recompute: bool = True) -> Iterator[None]:
    """Inside the block the backward pass computes each layer of the model again from its input: the same numbers.
    recompute: False: nothing changes.

    transformers' own switch works only in training mode, in which some layers (OPT's, Falcon's) drop out residuals
    by the process's random numbers. Adapters are the only dropout there is, so each layer stays as it is and its
    `forward` is called by way of torch's checkpoint."""
    modules = base.modules() if recompute else ()
    layers = [module for module in modules if isinstance(module, GradientCheckpointingLayer)]
    if recompute and not layers:
        log.warning("gradient_checkpointing has no effect: %s has no layers that allow it", type(base).__name__)
    forwards = {layer: layer.__dict__.get("forward") for layer in layers}
    for layer in layers:
        layer.forward = functools.partial(torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer, forward in forwards.items():
            if forward is None:
                del layer.forward
            else:  # accelerate's, which brings a layer's inputs to its device
                layer.forward = forward


# ----------------------------------------------------------------------------------------------------------------------
# One adapter in training: its batches, its epochs, its history. Several of them may share a base model (`TrainingRun`).

STEPS_BETWEEN_CHECKS = 50  # reading a loss off a GPU waits for it


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


class Member(NamedTuple):
    """One of the fine-tunes: settings that differ in the learning rate only, and its work folder."""

    settings: FinetuneSettings
    work: Path
    on_epoch: Callable[[Epoch], None] = lambda epoch: None


class Plan(NamedTuple):
    """Fine-tunes that differ in the learning rate only, or one.

    examples: texts to train on. members: what differs; the work folder of each holds its last finished epoch, and a
    second call with the same plan goes on from there. validate: the benchmark's metric under the model as it stands,
    asked after each epoch; ties go to the earlier epoch.
    """

    lm: LanguageModel
    examples: Sequence[Example]
    members: Sequence[Member]
    validate: Callable[[], float]
    seed: int
    higher_is_better: bool = True


class Training:
    """An adapter's weights, its optimizer, and the history of its epochs. `adapter` is its name in the model.

    diverged: why training ended early, or null. The last finished epoch is on disk, in one file that is replaced whole
    (weights, optimizer, best adapter, history), and a new object of the same fine-tune goes on from there.
    """

    def __init__(self, plan: Plan, model: PeftModel, member: Member, position: BatchPosition, adapter: str):
        self.plan, self.model, self.member, self.position, self.adapter = plan, model, member, position, adapter
        self.settings = settings = member.settings
        self.rows = [torch.tensor(example.token_ids) for example in plan.examples]
        self.parameters = adapter_parameters(model, adapter)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.micro_batch = min(settings.micro_batch, settings.effective_batch)
        self.steps_per_epoch = -(-len(self.rows) // settings.effective_batch)
        self.epochs: list[Epoch] = []
        self.step_losses: list[float] = []
        self.diverged: str | None = None
        self.best_epoch: int | None = None
        self.best_tensors: dict[str, Tensor] = {}
        self._saved = member.work / "training.safetensors"
        # what a saved state must agree on with the run that resumes from it
        determining = [plan.lm.model_id, str(plan.lm.base.dtype), settings.determining(), plan.seed]
        digest = hashlib.sha256(json.dumps(determining).encode())
        for example in plan.examples:
            digest.update(np.asarray([example.completion_start, *example.token_ids], dtype="<i8").tobytes())
        self._fingerprint = digest.hexdigest()
        self._restore()

    def batches(self, epoch: int) -> Iterator[list[Tensor]]:
        """Effective batches in the epoch's order; the last may be smaller. Long rows first: the first micro-batch is
        the one that needs most memory."""
        order = np.random.default_rng([self.position.seed, epoch]).permutation(len(self.rows))
        size = self.settings.effective_batch
        for start in range(0, len(order), size):
            chosen = [self.rows[index] for index in order[start : start + size]]
            yield sorted(chosen, key=lambda row: -len(row))

    def update(self) -> None:
        """Clip this adapter's gradients, set its rate by the schedule, step its optimizer."""
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.max_gradient_norm)
        share_left = 1 - self.position.step / (self.steps_per_epoch * self.settings.epochs)
        self.optimizer.param_groups[0]["lr"] = self.settings.learning_rate * share_left
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.plan.lm.counters["optimizer_steps"] += 1

    def finish_epoch(self, losses: list[Tensor], weights: list[int]) -> None:
        """Book an epoch's step losses (of `weights` predicted tokens each), validate, keep the adapter if it is
        strictly better than that of every epoch before, and save; or say why it diverged."""
        number, of_steps = len(self.epochs) + 1, torch.stack(losses).double().cpu()
        if not torch.isfinite(of_steps).all():
            self.diverged = f"the loss of epoch {number} is not finite"
            return
        try:
            score = self.plan.validate()
        except NonFiniteScore as error:
            self.diverged = f"validation after epoch {number}: {error.problem}"
            return
        self.step_losses += of_steps.tolist()
        self.epochs.append(Epoch(number, float(np.average(of_steps.numpy(), weights=weights)), score))
        values = [epoch.validation_value for epoch in self.epochs]
        if values.index(max(values) if self.plan.higher_is_better else min(values)) + 1 == number:
            self.best_epoch, self.best_tensors = number, adapter_tensors(self.model, self.adapter)
        self._save()
        self.member.on_epoch(self.epochs[-1])

    def _save(self) -> None:
        tensors = {f"best.{name}": tensor for name, tensor in self.best_tensors.items()}
        tensors["step_losses"] = torch.tensor(self.step_losses, dtype=torch.float64)
        for name, parameter in self.parameters.items():
            tensors[f"weight.{name}"] = parameter.detach().cpu()
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"{key}.{name}"] = value.cpu()
        history = {
            "fingerprint": self._fingerprint,
            "best_epoch": self.best_epoch,
            "micro_batch": self.micro_batch,
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }
        with replace_file(self._saved) as temporary:
            # not `save_file`, whose error on a full disk is no OSError
            temporary.write_bytes(save(tensors, metadata={"history": json.dumps(history)}))

    def _restore(self) -> None:
        """Nothing where there is no state of this very fine-tune."""
        try:
            with safe_open(self._saved, framework="pt") as file:
                history = json.loads(file.metadata()["history"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no dict)
        except (SafetensorError, OSError, ValueError, KeyError):
            return
        if history["fingerprint"] != self._fingerprint:
            return
        for name, parameter in self.parameters.items():
            with torch.no_grad():
                parameter.copy_(tensors[f"weight.{name}"])
            if f"step.{name}" in tensors:  # a layer that no text reaches never gets a gradient, nor a state
                self.optimizer.state[parameter] = {
                    key: tensors[f"{key}.{name}"].to(parameter.device) for key in ("step", "exp_avg", "exp_avg_sq")
                }
        self.epochs = [Epoch(**epoch) for epoch in history["epochs"]]
        self.step_losses = tensors["step_losses"].tolist()
        self.best_epoch = history["best_epoch"]
        self.best_tensors = {key[5:]: value for key, value in tensors.items() if key.startswith("best.")}
        self.micro_batch = min(self.micro_batch, history["micro_batch"])
        self.position.step = len(self.epochs) * self.steps_per_epoch


# ----------------------------------------------------------------------------------------------------------------------
# Training: one adapter, or learning rates side by side: K adapters on one frozen base, in one forward and one backward
# pass.
#
# The rows of a step go through the base K times over as one batch, each copy with its own adapter. Nothing trainable is
# shared, so each adapter's gradient is what it would be alone; clipping, optimizer and schedule stay its own, and the
# dropout mask is one for all, as it is when rates are trained one after another with one seed.
#
# Side by side only the work folders are written: a fine-tune that finds its epochs there (`finetune`) has nothing left
# to train. So this is a way to get there faster where kernels are launched more slowly than they run, as those of small
# models are.


def train_side_by_side(plan: Plan) -> int:
    """Bring the saved state of every member to its last epoch, or to the one before it diverges.

    Members that were interrupted at different epochs catch up with each other. Running out of memory takes fewer
    members at a time, and only then smaller micro-batches; the effective batch stays. Returns how many were trained at
    a time in the end.
    Raises CannotStack where the model does not allow it, and CellError where memory runs out at one row; nothing is
    lost then.
    """
    with started(plan) as run:
        run.train()
        return run.together


@contextlib.contextmanager
def started(plan: Plan) -> Iterator["TrainingRun"]:
    """Adapters on the base model, as far as their work folders say, to train on inside the block. It is a CellError
    where not even one text can be trained on; at once where there is none."""
    lm, members = plan.lm, plan.members
    if not plan.examples:
        raise CellError(f"{lm.model_id}: no training examples.", "check the benchmark's train split.")
    longest = max(len(example.token_ids) for example in plan.examples)
    hint = f"{passes.MORE_MEMORY}, set gradient_checkpointing for it, or lower finetuning.max_length."
    settings, position = members[0].settings, BatchPosition(plan.seed)
    names_of_others = [f"rate{number}" for number in range(1, len(members))]
    with passes.must_fit(lm.model_id, f"one text of up to {longest} tokens to train on", hint):
        model = add_adapter(lm, settings, settings.target_modules, position, also=names_of_others)
        try:
            names = zip(members, model.peft_config, strict=True)
            yield TrainingRun(lm, [Training(plan, model, member, position, name) for member, name in names])
        finally:
            model.unload()


class TrainingRun:
    """The members in training, each with its adapter."""

    def __init__(self, lm: LanguageModel, trainings: list[Training]):
        self.lm, self.trainings, self.together = lm, trainings, len(trainings)
        self.position = trainings[0].position
        self.micro_batch = min(training.micro_batch for training in trainings)
        # what a forward and backward pass costs beside its tokens, in tokens: the time to start its kernels over that
        # of a token, by the model's layers and parameters and the kind of device alone: no run differs from another
        seconds, speed = PASS_COST.get(lm.device.type, PASS_COST["cuda"])
        frozen = sum(parameter.numel() for parameter in lm.base.parameters() if not parameter.requires_grad)
        layers = lm.base.config.get_text_config().num_hidden_layers
        self.pass_tokens: float = seconds * layers * speed / (4 * frozen)
        self.narrow, self.part = self.lm.narrows_head(), self.lm.head_part()
        if self.micro_batch > 1 and not rows_are_alike(self.lm, trainings[0].rows):
            log.warning("%s: a text's loss changes with those beside it: one text a pass", self.lm.model_id)
            self.micro_batch = 1

    def train(self) -> None:
        """Epoch by epoch, those that are furthest behind first, until each diverged or is trained."""
        epochs, trainings = self.trainings[0].settings.epochs, self.trainings
        while behind := [training for training in trainings if not training.diverged and len(training.epochs) < epochs]:
            done = min(len(training.epochs) for training in behind)
            now = [training for training in behind if len(training.epochs) == done]
            losses: list[Tensor] = []  # of each step until none is finite, (trainings,)
            predicted = []  # tokens, in each step
            first = now[0]
            self.position.step = done * first.steps_per_epoch
            recompute = first.settings.gradient_checkpointing
            with layers_recomputed(self.lm.base, recompute=recompute), self.lm.counters.phase("train"):
                for batch in first.batches(done + 1):
                    losses.append(self.step(now, batch))
                    predicted.append(predicted_tokens(batch))
                    # a look at a GPU makes the host wait for it
                    looks = losses[-1].device.type == "cpu" or len(losses) % STEPS_BETWEEN_CHECKS == 0
                    if looks and not torch.isfinite(losses[-1]).any():
                        break
            for number, training in enumerate(now):
                self.position.adapters, training.micro_batch = [training.adapter], self.micro_batch
                training.finish_epoch([loss[number] for loss in losses], predicted)

    def step(self, trainings: list[Training], batch: list[Tensor]) -> Tensor:
        """One optimizer step for all, as many at a time as fit into memory; the loss of each."""
        while True:
            try:
                losses = [
                    self.accumulate(trainings[start : start + self.together], batch)
                    for start in range(0, len(trainings), self.together)
                ]
                break
            except RuntimeError as error:
                if self.together == self.micro_batch == 1 or not passes.is_out_of_memory(error):
                    raise
            # outside `except`, whose traceback holds the tensors that did not fit
            if self.together > 1:
                self.together = -(-min(self.together, len(trainings)) // 2)
            else:
                self.micro_batch //= 2
            for training in trainings:
                training.optimizer.zero_grad(set_to_none=True)
            self.lm.counters["oom_halvings"] += 1
            torch.cuda.empty_cache()
        for training in trainings:
            training.update()
        self.position.step += 1
        return torch.cat(losses)

    def accumulate(self, trainings: list[Training], batch: list[Tensor]) -> Tensor:
        """Gradients of the token mean over the whole batch, one micro-batch after another; the mean of each training,
        (trainings,)."""
        position, counters, copies, predicted = self.position, self.lm.counters, len(trainings), predicted_tokens(batch)
        position.rows, position.width, position.training = len(batch), len(batch[0]), True
        position.adapters = [training.adapter for training in trainings]
        total = torch.zeros(copies, device=self.lm.device)
        scale = loss_scale(self.lm.base.dtype, predicted)
        try:
            # what a pass costs by itself is shared by the copies
            cost, lengths = self.pass_tokens / copies, [len(row) for row in batch]
            for start, end in runs_alike(self.lm, lengths, self.micro_batch, cost):
                rows = batch[start:end]
                micro = MicroBatch.of(rows, self.lm.tokenizer.pad_token_id, self.lm.device, copies)
                position.start, position.count, position.length = start, len(rows), micro.inputs.shape[1]
                losses = token_losses(self.lm.base, micro, narrow=self.narrow, part=self.part).reshape(copies, -1)
                loss = losses.sum(1) / predicted
                loss.backward(torch.full_like(loss, scale))
                total += loss.detach().to(total.device)
                counters["training_tokens"] += copies * sum(map(len, rows))
        finally:
            position.rest()
        for training in trainings:
            unscale(training.parameters.values(), scale)
        return total


def predicted_tokens(batch: Sequence[Tensor]) -> int:
    """Tokens of an effective batch that are predicted: all but the first of each text."""
    return sum(map(len, batch)) - len(batch)
