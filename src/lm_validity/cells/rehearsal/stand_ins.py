"""What torch and transformers would do on a GPU and cannot do on a pretended one, put in for as long as it is used."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
import torch.nn.functional as F
import transformers.masking_utils as masking
from torch._subclasses.fake_tensor import FakeTensor

from lm_validity.cells.rehearsal.ledger import Ledger

aten = torch.ops.aten
_REAL_ATTENTION = F.scaled_dot_product_attention
_REAL_GENERATOR = torch.Generator
_REAL_APPLY = torch.nn.Module._apply
_DRAWING = ("bernoulli_", "normal_", "uniform_")


@contextlib.contextmanager
def installed(kind: str, ledger: Ledger) -> Iterator[None]:
    """Inside the block the stand-ins are in place, for devices of this kind."""

    def packed_sequences(position_ids: torch.Tensor) -> None:
        """Rows here are never several texts behind each other; a GPU would be asked."""
        ledger.host_reads["packed sequences"] += position_ids.device.type == kind

    def to_list(tensor: torch.Tensor) -> list[Any]:
        """One copy to the host, which is a read for each number of a fake tensor."""
        return tensor.cpu().tolist()

    replaced = [
        (FakeTensor, "tolist", to_list),
        *((torch.Tensor, name, _drawing(name, kind)) for name in _DRAWING),
        (F, "scaled_dot_product_attention", _attention_of(kind)),
        (torch, "Generator", _generator_of(kind)),
        (torch.nn.Module, "_apply", _apply),
        # a fake tensor counts as tracing, and tracing builds masks that a GPU does not
        (masking, "is_tracing", lambda tensor=None: False),
        (masking, "find_packed_sequence_indices", packed_sequences),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, new in replaced:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)


Change = Callable[[torch.Tensor], torch.Tensor]


def _attention_of(kind: str) -> Callable[..., torch.Tensor]:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """The kernel that CUDA would take: flash in 16 bits without a mask, memory-efficient with a mask or in float32,
        plain products where one head of keys is broadcast."""
        heads, of_keys = query.shape[1], key.shape[1]
        if query.device.type != kind or (heads != of_keys and not enable_gqa):
            return _REAL_ATTENTION(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
            raise RuntimeError(
                f"Expected attn_mask dtype to be bool or float or to match query dtype, not {attn_mask.dtype}"
            )
        half = query.dtype in (torch.bfloat16, torch.float16)
        if attn_mask is None and half and query.shape[-1] == value.shape[-1] <= 256:
            flash = aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        if heads != of_keys:
            key, value = (one.repeat_interleave(heads // of_keys, 1) for one in (key, value))
        if attn_mask is not None:
            attn_mask = attn_mask.expand(query.shape[0], heads, query.shape[2], key.shape[2])
        keeps = torch.is_grad_enabled() and query.requires_grad
        efficient = aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]

    return attention


def _generator_of(kind: str) -> type:
    class Generator(_REAL_GENERATOR):  # type: ignore[misc, valid-type] # torch's class before it is replaced
        """torch's, which knows no generator of a pretended device."""

        def __new__(cls, device: object = "cpu") -> Self:
            asked = torch.device(device)
            made = super().__new__(cls, device="cpu" if asked.type == kind else asked)
            made.asked = asked
            return made

        @property
        def device(self) -> torch.device:
            return self.asked

    return Generator


def _drawing(name: str, kind: str) -> Callable[..., torch.Tensor]:
    """A method that fills a tensor with random numbers. Below it torch knows no more which generator was given, so
    that one of the tensor's own device is left out, and any other is refused (`device.py`)."""
    draw = getattr(torch.Tensor, name)

    def drawn(tensor: torch.Tensor, *arguments: Any, generator: torch.Generator | None = None) -> torch.Tensor:
        own = generator is not None and tensor.device.type == kind == generator.device.type
        return draw(tensor, *arguments, generator=None if own else generator)

    return drawn


def _apply(self: torch.nn.Module, change: Change, recurse: bool = True) -> torch.nn.Module:
    """torch's own puts new contents into a parameter, which a fake one does not allow: a new parameter in its place,
    one for all modules that share it."""
    modules = list(self.modules()) if recurse else [self]
    if not any(_moves(value, change) for module in modules for value in module.parameters(recurse=False)):
        return _REAL_APPLY(self, change, recurse)
    made: dict[int, torch.Tensor] = {}

    def changed(value: torch.Tensor) -> torch.Tensor:
        if id(value) not in made:
            with torch.no_grad():
                new = change(value)
            of_parameter = isinstance(value, torch.nn.Parameter) and new is not value
            made[id(value)] = torch.nn.Parameter(new, value.requires_grad) if of_parameter else new
        return made[id(value)]

    for module in modules:
        for table in (module._parameters, module._buffers):
            table.update({name: changed(value) for name, value in table.items() if value is not None})
    return self


def _moves(value: torch.Tensor, change: Change) -> bool:
    """Whether the tensor is pretended, or would be."""
    return isinstance(value, FakeTensor) or isinstance(change(value[:0] if value.dim() else value), FakeTensor)
