"""One plain training loop for both stages of a trial: AdamW, linear decay without warm-up, gradients clipped at norm 1.

Everything random is a function of the seed: the order of the batches, dropout, and the tokens that are masked.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
import transformers

from lm_validity.cells.training.loss import loss_scale, unscale
from lm_validity.cells.trials.batches import IGNORED, Batch
from lm_validity.cells.trials.resident import TrialCounters
from lm_validity.errors import CellError

MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class Schedule:
    """micro_batch: rows of a forward pass; null, the whole batch."""

    epochs: int
    learning_rate: float
    batch_size: int
    weight_decay: float
    seed: int
    shuffle: bool = True
    micro_batch: int | None = None


def train(
    model: transformers.PreTrainedModel,
    count: int,
    make_batch: Callable[[np.ndarray], Batch],
    predict: "Predict",
    schedule: Schedule,
    counters: TrialCounters,
    where: str,
) -> float:
    """Train in place; the mean loss (nats per predicted token or row) over the last epoch, dropout on.

    make_batch: of the given examples, on the model's device. predict: (logits, labels) of a batch's predictions.
    where: how an error names the training. Raises CellError for a loss that is not finite.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = _optimizer(trained, schedule)
    total = schedule.epochs * -(-count // schedule.batch_size)
    losses: list[torch.Tensor] = []
    weights: list[int] = []
    model.train()
    with _seeded(schedule.seed, trained[0].device):
        for step, examples in enumerate(_batches(count, schedule)):
            batch = make_batch(examples)
            predicted = max(1, batch.predicted)
            scale = loss_scale(model.dtype, predicted)
            losses.append(_backward(batch, predicted, scale, predict, schedule))
            unscale(trained, scale)
            weights.append(predicted)
            counters.training_tokens += batch.tokens
            torch.nn.utils.clip_grad_norm_(trained, MAX_GRADIENT_NORM)
            for group in optimizer.param_groups:
                group["lr"] = schedule.learning_rate * (1 - step / total)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    counters.trainings += 1
    counters.optimizer_steps += total
    values = torch.stack(losses).double().cpu().numpy()
    if not np.isfinite(values).all():
        raise CellError(f"{where}: the loss is not finite.", "lower the learning rate.")
    last = total // schedule.epochs
    return float(np.average(values[-last:], weights=weights[-last:]))


Predict = Callable[[Batch], tuple[torch.Tensor, torch.Tensor]]


def _backward(batch: Batch, predicted: int, scale: int, predict: Predict, schedule: Schedule) -> torch.Tensor:
    """Gradients of the mean over the whole batch times the scale, one micro-batch after another; the mean."""
    rows = len(batch.input_ids)
    size = schedule.micro_batch or rows
    total = torch.zeros((), device=batch.input_ids.device)
    for start in range(0, rows, size):
        logits, labels = predict(batch.rows(start, start + size) if size < rows else batch)
        loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum") / predicted
        (loss * scale).backward()
        total += loss.detach()
    return total


def _batches(count: int, schedule: Schedule) -> Iterator[np.ndarray]:
    for epoch in range(schedule.epochs):
        order = np.arange(count)
        if schedule.shuffle:
            order = np.random.default_rng([schedule.seed, epoch]).permutation(count)
        for start in range(0, count, schedule.batch_size):
            yield order[start : start + schedule.batch_size]


def _optimizer(trained: list[torch.nn.Parameter], schedule: Schedule) -> torch.optim.AdamW:
    """Weight decay on matrices only, as in the library's Trainer: not on biases and normalisation weights."""
    groups = [
        {"params": [each for each in trained if each.ndim > 1], "weight_decay": schedule.weight_decay},
        {"params": [each for each in trained if each.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=schedule.learning_rate, fused=True)


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The library's dropout reads torch's global generators: seeded inside the block, given back after it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
