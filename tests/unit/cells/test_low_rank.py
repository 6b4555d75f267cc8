"""The adapter path against PEFT's own: the same bits, and no copy of what goes through a layer."""

import pytest
import torch

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_and_gradients_are_pefts_to_the_bit(layer, dtype):
    chosen, _ = layer(dtype)
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
