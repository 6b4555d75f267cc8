"""The adapter path against PEFT's own: the same bits, and no copy of what goes through a layer."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lm_validity.cells.training.loop import FinetuneSettings
from lm_validity.cells.training.lora import adapted_layers, add_adapter
from lm_validity.cells.training.low_rank import BatchPosition

SETTINGS = FinetuneSettings(learning_rate=1e-3, rank=4, alpha=8, dropout=0.25)


@pytest.fixture
def layer(llama):
    """A function (dtype) -> (an adapted layer in the second of three micro-batches of a batch, its position)."""

    def make(dtype):
        llama.base.to(dtype)
        position = BatchPosition(seed=3, step=5, rows=6, width=9, start=2, count=2, length=7, training=True)
        chosen = adapted_layers(add_adapter(llama, SETTINGS, "all-linear", position))[3]
        with torch.no_grad():
            chosen.lora_B["default"].weight.normal_(generator=torch.Generator().manual_seed(1))
        return chosen, position

    return make


def derivatives(layer, forward) -> list[torch.Tensor]:
    """Output and gradients of input, A and B, for the same input and upstream gradient."""
    draw = torch.Generator().manual_seed(2)
    dtype = layer.base_layer.weight.dtype
    x = torch.randn(2, 7, layer.in_features, generator=draw).to(dtype).requires_grad_()
    weights = (layer.lora_A["default"].weight, layer.lora_B["default"].weight)
    out = forward(x)
    return [out, *torch.autograd.grad(out, (x, *weights), torch.randn(out.shape, generator=draw).to(dtype))]


@pytest.mark.parametrize("scaling", [2.0, 1.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_and_gradients_are_pefts_to_the_bit(layer, dtype, scaling):
    chosen, _ = layer(dtype)
    chosen.scaling["default"] = scaling
    ours, theirs = derivatives(chosen, chosen), derivatives(chosen, type(chosen).forward.__get__(chosen))
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(ours, theirs, strict=True))
    assert all(bool(one.any()) for one in ours)


def test_a_layer_keeps_its_input_and_nothing_as_large(layer):
    """PEFT's keeps its input in float32, the masked input, and the whole batch's mask of which it reads a part."""

    def kept_bytes(forward, x) -> int:
        kept = {}

        def note(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            forward(x)
        weights = {weight.untyped_storage().data_ptr() for weight in chosen.parameters()}
        return sum(size for place, size in kept.items() if place not in weights)

    chosen, position = layer(torch.bfloat16)
    x = torch.randn(2, 7, chosen.in_features, dtype=torch.bfloat16, requires_grad=True)
    inner = 2 * 7 * 4 * 4  # A dropout(x), of rank 4 in float32
    assert kept_bytes(chosen, x) == x.nbytes + inner
    whole_mask = position.rows * position.width * chosen.in_features
    assert kept_bytes(type(chosen).forward.__get__(chosen), x) >= 2 * x.nbytes + whole_mask


class Launches(TorchDispatchMode):
    """Operations that compute something."""

    def __init__(self):
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if not func.is_view and name not in ("empty", "empty_like", "new_empty", "detach", "_unsafe_view"):
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_launches_few_kernels(layer, dtype):
    """Forward and backward: six products, a mask, five for casts, masks and factors, two sums."""
    chosen, _ = layer(dtype)

    def launches(forward) -> int:
        x = torch.randn(2, 7, chosen.in_features).to(dtype).requires_grad_()
        with Launches() as seen:
            forward(x).backward(torch.ones(2, 7, chosen.out_features, dtype=dtype))
        return seen.found.total() - 2  # the base layer's own products

    assert launches(chosen) <= 14 < launches(type(chosen).forward.__get__(chosen))


def test_a_small_mask_is_drawn_once_a_step_and_a_large_one_again_each_time(layer, monkeypatch):
    """A GPU keeps what is small: drawing is a launch. What is large is drawn anew, in the backward pass too."""
    chosen, position = layer(torch.float32)
    dropout = chosen.lora_dropout["default"]
    drawn = []
    draw = type(dropout)._draw
    monkeypatch.setattr(type(dropout), "_draw", lambda one, shape, device: drawn.append(1) or draw(one, shape, "cpu"))
    gpu, size = torch.device("meta"), position.rows * position.width * 8
    for kept, count in ((size, 1), (size - 1, 3)):
        monkeypatch.setattr("lm_validity.cells.training.low_rank.KEPT", kept)
        dropout._kept = None
        drawn.clear()
        masks = [dropout._batch_mask(8, gpu) for _ in range(3)]
        assert len(drawn) == count and all(torch.equal(masks[0], mask) for mask in masks)
