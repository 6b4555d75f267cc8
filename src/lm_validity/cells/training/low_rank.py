"""What an adapter adds to a layer: dropout that any micro-batch reproduces, and little kept for the backward pass."""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

DEFAULT_ADAPTER = "default"  # the name PEFT gives to the first


class CannotStack(Exception):
    """The model mixes the rows of a batch (experts): its rates must be trained one after another."""


@dataclass
class BatchPosition:
    """Where in training a forward pass stands; the dropout masks are a function of it and of nothing else.

    rows, width: documents of the effective batch and tokens of its longest;
    start, count, length: first row, rows and tokens of the micro-batch.
    adapters: those in training. Several: the micro-batch is there once for each, one copy behind another.
    """

    seed: int
    step: int = 0
    rows: int = 0
    width: int = 0
    start: int = 0
    count: int = 0
    length: int = 0
    training: bool = False
    adapters: Sequence[str] = (DEFAULT_ADAPTER,)
    _generators: dict[torch.device, torch.Generator] = field(default_factory=dict)

    def generator(self, device: torch.device, layer: int) -> torch.Generator:
        """A generator seeded from (seed, step, layer)."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device)
        packed = struct.pack("<qqq", self.seed, self.step, layer)
        number = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
        return self._generators[device].manual_seed(number)


class BatchDropout(torch.nn.Module):
    """Dropout of a LoRA layer whose mask belongs to the effective batch.

    The mask is drawn for all rows of the effective batch from (seed, step, layer), and a micro-batch takes
    its rows of it. So neither the size of the micro-batch, nor a retry, a resume, a validation in between or
    gradient checkpointing changes what is dropped, and no global random state is read. Only layers that see
    routed tokens (experts) draw by micro-batch.
    """

    def __init__(self, probability: float, position: BatchPosition, layer: int):
        super().__init__()
        self.probability, self.position, self.layer = probability, position, layer
        self._kept: tuple[int, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x with some of its elements zero and the others scaled; of a gradient, that of the same function."""
        here = self.position
        if not here.training:
            return x
        features, copies = x.shape[-1], len(here.adapters)
        if x.numel() == copies * here.count * here.length * features:
            mask = self._batch_mask(features, x.device)
            mask = mask.reshape(x.shape) if copies == 1 else mask.repeat(copies, 1, 1).reshape(x.shape)
        else:
            mask = self._draw(x.shape, x.device)
        return x * mask * (1 / (1 - self.probability))

    def _batch_mask(self, features: int, device: torch.device) -> torch.Tensor:
        """What the micro-batch keeps: bool, (rows, tokens, features)."""
        here = self.position
        moment, whole = here.step, (here.rows, here.width, features)
        if self._kept is None or self._kept[0] != moment or self._kept[1].shape != whole:
            mask = self._draw(whole, device)
            # drawing takes longer than a small model's layer; a GPU has no memory to spare for it
            self._kept = (moment, mask) if device.type == "cpu" else None
        else:
            mask = self._kept[1]
        return mask[here.start : here.start + here.count, : here.length]

    def _draw(self, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        mask = torch.empty(shape, dtype=torch.bool, device=device)
        return mask.bernoulli_(1 - self.probability, generator=self.position.generator(device, self.layer))


def adapted_forward(layer: torch.nn.Module, position: BatchPosition, x: torch.Tensor) -> torch.Tensor:
    """A LoRA layer in training: base(x) + scaling * B A dropout(x), or with B_k A_k for copy k of the micro-batch.

    PEFT's own forward for one adapter, to the bit, but for what it keeps (see `_LowRank`). Raises CannotStack where
    there are copies and the layer sees the tokens in another order (experts).
    """
    result = layer.base_layer(x)
    first, *more = position.adapters
    down, up = layer.lora_A[first].weight, layer.lora_B[first].weight
    if more:
        if x.numel() != len(position.adapters) * position.count * position.length * x.shape[-1]:
            raise CannotStack
        down = torch.stack([layer.lora_A[name].weight for name in position.adapters])  # (K, rank, inputs)
        up = torch.stack([layer.lora_B[name].weight for name in position.adapters])  # (K, outputs, rank)
    change = _LowRank.apply(x, down, up, layer.scaling[first], layer.lora_dropout[first])
    return (result + change).to(result.dtype)


class _LowRank(torch.autograd.Function):
    """scaling * B A dropout(x), for which autograd would keep dropout(x) and its mask: in bfloat16 training four bytes
    and one an element and layer. Here x alone is kept, which is there anyway; the backward pass draws the mask again.

    x: (..., inputs). down: (rank, inputs), up: (outputs, rank), or each with K in front, for K copies in x.
    """

    @staticmethod
    def forward(
        ctx,
        x: torch.Tensor,
        down: torch.Tensor,
        up: torch.Tensor,
        scaling: float,
        dropout: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        inner = _rows(dropout(x.to(down.dtype)), down) @ down.mT
        ctx.save_for_backward(x, down, up, inner)
        ctx.scaling, ctx.dropout = scaling, dropout
        return (inner @ up.mT).reshape(*x.shape[:-1], up.shape[-2]) * scaling

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple:
        x, down, up, inner = ctx.saved_tensors
        gradient = _rows(gradient * ctx.scaling, up)
        of_inner = gradient @ up
        of_up = gradient.mT @ inner
        of_down = of_inner.mT @ _rows(ctx.dropout(x.to(down.dtype)), down)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = ctx.dropout((of_inner @ down).reshape(x.shape)).to(x.dtype)
        return of_x, of_down, of_up, None, None


def _rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x as (tokens, features), or (K, tokens, features) where the weight has K in front."""
    return x.reshape(*weight.shape[:-2], -1, x.shape[-1])
