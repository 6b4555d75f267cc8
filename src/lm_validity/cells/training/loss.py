"""The loss of a micro-batch: cross-entropy at each predicted token, and the vocabulary nowhere else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lm_validity.cells.models.head import States, narrowed_head
from lm_validity.cells.models.host_reads import never_packed
from lm_validity.cells.training.text import Example


@dataclass(frozen=True)
class Row:
    """token_ids, of which all from place `first` on are predicted, each from the one before it."""

    token_ids: torch.Tensor
    first: int

    @property
    def predicted(self) -> int:
        """Number of tokens that are predicted."""
        return len(self.token_ids) - self.first


def row_of(example: Example, loss: str) -> Row:
    """The row of an example: predicted is its completion for the loss `completion`, else all but the first token."""
    first = max(1, example.completion_start) if loss == "completion" else 1
    return Row(torch.tensor(example.token_ids), first)


@dataclass(frozen=True)
class MicroBatch:
    """inputs: (rows, longest), padded on the right: a causal model never looks there, so no mask. row, position: where
    each predicted token is predicted from, row by row; targets: that token. Made on the CPU: finding the places on a
    GPU would make the host wait for it."""

    inputs: torch.Tensor
    row: torch.Tensor
    position: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], padding: int, device: torch.device, copies: int = 1) -> "MicroBatch":
        """`copies`: how often the rows are there, one time behind the other."""
        rows = [*rows] * copies
        parts = (
            torch.nn.utils.rnn.pad_sequence([row.token_ids for row in rows], batch_first=True, padding_value=padding),
            torch.cat([torch.full((row.predicted,), number) for number, row in enumerate(rows)]),
            torch.cat([torch.arange(row.first - 1, len(row.token_ids) - 1) for row in rows]),
            torch.cat([row.token_ids[row.first :] for row in rows]),
        )
        return cls(*(part.to(device, non_blocking=True) for part in parts))


def token_losses(base: torch.nn.Module, batch: MicroBatch, *, narrow: bool, part: int | None) -> torch.Tensor:
    """Cross-entropy in nats of each predicted token, row by row.

    narrow: whether the vocabulary can be computed there only. part: positions whose logits may be there at a time, or
    None for all; more positions change rounding only.
    """
    inputs = {"input_ids": batch.inputs, "use_cache": False}
    if part is not None and len(batch.targets) > part:
        with never_packed():
            states = States(base, base, **inputs)
        device = states.hidden.device
        hidden = states.hidden[batch.row.to(device), batch.position.to(device)]
        return _LossesInParts.apply(hidden, batch.targets, states, part)
    with never_packed():
        if narrow:
            with narrowed_head(base, batch.row, batch.position):
                logits = base(**inputs).logits[0]
        else:
            logits = base(**inputs).logits
            logits = logits[batch.row.to(logits.device), batch.position.to(logits.device)]
    return F.cross_entropy(logits.float(), batch.targets.to(logits.device), reduction="none")


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
    def forward(ctx: Any, hidden: torch.Tensor, targets: torch.Tensor, states: States, part: int) -> torch.Tensor:
        derivative = torch.empty_like(hidden)
        losses = []
        for start in range(0, len(hidden), part):
            with torch.enable_grad():
                one = hidden[start : start + part].detach().requires_grad_()
                logits = states.logits(one).float()
                loss = F.cross_entropy(logits, targets[start : start + part].to(logits.device), reduction="none")
                (derivative[start : start + part],) = torch.autograd.grad(loss.sum(), one)
            losses.append(loss.detach())
        ctx.save_for_backward(derivative)
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (derivative,) = ctx.saved_tensors
        return (derivative * gradient[:, None].to(derivative.device)).to(derivative.dtype), None, None, None
