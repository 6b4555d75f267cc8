"""What an adapter adds to a layer: dropout that any micro-batch reproduces, and little kept for the backward pass."""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

DEFAULT_ADAPTER = "default"  # the name PEFT gives to the first
KEPT = 2**23  # elements (bytes) of a block's masks that a GPU keeps for the rest of the step


class CannotStack(Exception):
    """The model mixes the rows of a batch (experts): its rates must be trained one after another."""


@dataclass
class Block:
    """Layers of one block of a model, whose masks a GPU draws in one launch: small models wait for launches.

    features: of each layer's input, by its number. masks: those at hand, (rows, tokens, features) of bool, all of
    `moment`.
    """

    features: dict[int, int] = field(default_factory=dict)
    moment: tuple[int, ...] = ()
    masks: dict[int, torch.Tensor] = field(default_factory=dict)


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
    _large: Block | None = None  # the one block whose masks are there although they are large
    _constants: dict[tuple[float, torch.device], torch.Tensor] = field(default_factory=dict)

    def generator(self, device: torch.device, layer: int) -> torch.Generator:
        """A generator seeded from (seed, step, layer)."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device)
        packed = struct.pack("<qqq", self.seed, self.step, layer)
        number = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
        return self._generators[device].manual_seed(number)

    def rest(self) -> None:
        """A step is over: nothing is dropped until the next, and no large mask waits for it."""
        self.training = False
        self.hold_large(None)

    def hold_large(self, block: Block | None) -> None:
        """Let go of the masks of the large block before: a GPU has no memory to spare for those of all."""
        if self._large is not None and self._large is not block:
            self._large.masks = {}
        self._large = block

    def constant(self, value: float, device: torch.device) -> torch.Tensor:
        """(1,) in float32: a kernel that is given it computes in float32, whatever the other tensors are."""
        if (value, device) not in self._constants:
            self._constants[value, device] = torch.tensor([value], device=device)
        return self._constants[value, device]


class BatchDropout(torch.nn.Module):
    """Dropout of a LoRA layer whose mask belongs to the effective batch.

    The mask is drawn for all rows of the effective batch from (seed, step, layer), and a micro-batch takes its rows of
    it; a GPU draws the masks of a whole block from (seed, step, its first layer). So neither the size of the
    micro-batch, nor a retry, a resume, a validation in between or gradient checkpointing changes what is dropped, and
    no global random state is read. Only layers that see routed tokens (experts) draw by micro-batch.
    """

    def __init__(self, probability: float, position: BatchPosition, layer: int, block: Block):
        super().__init__()
        self.probability, self.position, self.layer, self.block = probability, position, layer, block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x with some of its elements zero and the others scaled."""
        if not self._drops():
            return x
        mask, shape = self._mask(x)
        return (x.reshape(shape) * mask * (1 / (1 - self.probability))).reshape(x.shape)

    def dropped(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`forward` of x in float32, given in a dtype: in one kernel, and without a derivative."""
        if not self._drops():
            return x.to(dtype)
        mask, shape = self._mask(x)
        zero, out = self.position.constant(0.0, x.device), torch.empty(shape, dtype=dtype, device=x.device)
        torch.addcmul(zero, x.reshape(shape), mask, value=1 / (1 - self.probability), out=out)
        return out.reshape(x.shape)

    def _drops(self) -> bool:
        return self.position.training and self.probability > 0

    def _mask(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        """What is kept (bool), and the shape in which x goes with it: one mask for all copies."""
        here, features = self.position, x.shape[-1]
        shape = (len(here.adapters), here.count, here.length, features)
        if x.numel() == math.prod(shape):
            return self._batch_mask(features, x.device), shape
        return self._draw(self.layer, x.shape, x.device), tuple(x.shape)

    def _batch_mask(self, features: int, device: torch.device) -> torch.Tensor:
        """What the micro-batch keeps: bool, (rows, tokens, features)."""
        here, block = self.position, self.block
        moment = (here.step, here.rows, here.width)
        if block.moment != moment:
            block.moment, block.masks = moment, {}
        if self.layer not in block.masks:
            # on a CPU launches cost little, and numbers stay what they were
            members = {self.layer: features} if device.type == "cpu" else block.features
            sizes = [here.rows * here.width * one for one in members.values()]
            if device.type != "cpu" and sum(sizes) > KEPT:
                here.hold_large(block)
            drawn = self._draw(min(members), (sum(sizes),), device).split(sizes)
            for (layer, own), mask in zip(members.items(), drawn, strict=True):
                block.masks[layer] = mask.view(here.rows, here.width, own)
        return block.masks[self.layer][here.start : here.start + here.count, : here.length]

    def _draw(self, layer: int, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        mask = torch.empty(shape, dtype=torch.bool, device=device)
        return mask.bernoulli_(1 - self.probability, generator=self.position.generator(device, layer))


def adapted_forward(layer: torch.nn.Module, position: BatchPosition, x: torch.Tensor) -> torch.Tensor:
    """A LoRA layer in training: base(x) + scaling * B A dropout(x), or with B_k A_k for copy k of the micro-batch.

    PEFT's own forward for one adapter, to the bit, but for what it keeps and launches (see `_LowRank`). Raises
    CannotStack where there are copies and the layer sees the tokens in another order (experts).
    """
    result = layer.base_layer(x)
    first, *more = position.adapters
    down, up = layer.lora_A[first].weight, layer.lora_B[first].weight
    if more:
        if x.numel() != len(position.adapters) * position.count * position.length * x.shape[-1]:
            raise CannotStack
        down = torch.stack([layer.lora_A[name].weight for name in position.adapters])  # (K, rank, inputs)
        up = torch.stack([layer.lora_B[name].weight for name in position.adapters])  # (K, outputs, rank)
    return _LowRank.apply(result, x, down, up, layer.scaling[first], layer.lora_dropout[first])


class _LowRank(torch.autograd.Function):
    """result + scaling * B A dropout(x), for which autograd would keep dropout(x) and its mask: in bfloat16 training
    four bytes and one an element and layer. Here x alone is kept, which is there anyway; the backward pass draws the
    mask again. Changes of dtype, masks and factors go into one kernel each: a small model's step waits for launches.

    result: (..., outputs). x: (..., inputs). down: (rank, inputs), up: (outputs, rank), both float32, or each with K in
    front, for K copies in x.
    """

    @staticmethod
    def forward(
        ctx: Any,
        result: torch.Tensor,
        x: torch.Tensor,
        down: torch.Tensor,
        up: torch.Tensor,
        scaling: float,
        dropout: BatchDropout,
    ) -> torch.Tensor:
        inner = _rows(dropout.dropped(x, down.dtype), down) @ down.mT
        ctx.save_for_backward(x, down, up, inner)
        ctx.scaling, ctx.dropout = scaling, dropout
        change = (inner @ up.mT).reshape(result.shape)
        one = dropout.position.constant(1.0, x.device)
        return torch.addcmul(result, change, one, value=scaling, out=torch.empty_like(result))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, down, up, inner = ctx.saved_tensors
        dropout = ctx.dropout
        of_change = _rows(gradient * dropout.position.constant(ctx.scaling, x.device), up)  # float32
        of_inner = of_change @ up
        of_up = of_change.mT @ inner
        of_down = of_inner.mT @ _rows(dropout.dropped(x, down.dtype), down)
        of_x = dropout.dropped((of_inner @ down).reshape(x.shape), x.dtype) if ctx.needs_input_grad[1] else None
        return gradient, of_x, of_down, of_up, None, None


def _rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x as (tokens, features), or (K, tokens, features) where the weight has K in front."""
    return x.reshape(*weight.shape[:-2], -1, x.shape[-1])
