"""The adapter path against PEFT's own: the same bits, and no copy of what goes through a layer."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lm_validity.cells.training import lora
from lm_validity.cells.training.loop import FinetuneSettings
from lm_validity.cells.training.lora import BatchDropout, BatchPosition, adapted_layers, add_adapter

SETTINGS = FinetuneSettings(learning_rate=1e-3, rank=4, alpha=8, dropout=0.25)


@pytest.fixture
def layer(llama):
    """A function (dtype) -> (an adapted layer in the second of three micro-batches of a batch, its position)."""

    def make(dtype):
        llama.base.to(dtype)
        position = BatchPosition(seed=3, step=5, rows=6, width=9, start=2, count=2, length=7, training=True)
        chosen = [*adapted_layers(add_adapter(llama, SETTINGS, "all-linear", position)).values()][3]
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
def test_a_layer_launches_few_kernels(layer, dtype, monkeypatch):
    """Forward and backward: six products, a mask, five for casts, masks and factors, two sums."""
    monkeypatch.setattr(lora, "SMALL", 0)  # masks stay as they are, as on a GPU
    chosen, _ = layer(dtype)

    def launches(forward) -> int:
        x = torch.randn(2, 7, chosen.in_features).to(dtype).requires_grad_()
        with Launches() as seen:
            forward(x).backward(torch.ones(2, 7, chosen.out_features, dtype=dtype))
        return seen.found.total() - 2  # the base layer's own products

    assert launches(chosen) <= 14 < launches(type(chosen).forward.__get__(chosen))


@pytest.fixture
def two_blocks(llama, monkeypatch):
    """(dropouts of each of two blocks, position, layers and shapes of what is drawn, on the host in a GPU's place)."""
    position = BatchPosition(seed=3, step=5, rows=6, width=9, start=2, count=2, length=7, training=True)
    layers = adapted_layers(add_adapter(llama, SETTINGS, "all-linear", position))
    drawn, draw = [], BatchDropout._draw

    def note(one, layer, shape, device):
        drawn.append((layer, *shape))
        return draw(one, layer, shape, torch.device("cpu"))

    monkeypatch.setattr(BatchDropout, "_draw", note)
    blocks = [
        [layer.lora_dropout["default"] for path, layer in layers.items() if f".layers.{number}." in path]
        for number in range(2)
    ]
    assert [len(block) for block in blocks] == [7, 7]
    return blocks, position, drawn


GPU = torch.device("meta")
WIDTHS = [32, 32, 32, 32, 32, 32, 64]  # inputs of a layer's q, k, v, o, gate, up, down


def masks(block, device) -> list[torch.Tensor]:
    return [one._batch_mask(width, device) for one, width in zip(block, WIDTHS, strict=True)]


def test_a_gpu_draws_a_blocks_masks_at_once_whichever_layer_asks_first(two_blocks):
    (block, _), position, drawn = two_blocks
    forwards = masks(block, GPU)
    assert drawn == [(0, 6 * 9 * sum(WIDTHS))]
    assert [tuple(mask.shape) for mask in forwards] == [(2, 7, width) for width in WIDTHS]
    kept = torch.cat([mask.flatten() for mask in forwards]).double().mean()
    assert kept == pytest.approx(0.75, abs=0.03) and not torch.equal(forwards[0], forwards[1])
    block[0].block.moment = ()
    backwards = [one._batch_mask(width, GPU) for one, width in zip(block[::-1], WIDTHS[::-1], strict=True)]
    assert len(drawn) == 2 and all(map(torch.equal, forwards, backwards[::-1]))
    position.step += 1
    assert not torch.equal(masks(block, GPU)[0], forwards[0]) and len(drawn) == 3


def test_a_gpu_keeps_small_masks_for_the_step_and_the_last_blocks_large_ones(two_blocks, monkeypatch):
    """What is large is drawn once on the way there and once on the way back."""
    blocks, position, drawn = two_blocks
    size = 6 * 9 * sum(WIDTHS)
    for most, order in ((size, [0, 7]), (size - 1, [0, 7, 0])):
        monkeypatch.setattr("lm_validity.cells.training.lora.KEPT", most)
        drawn.clear()
        for block in (blocks[0], blocks[1], blocks[1], blocks[0]):
            masks(block, GPU)
        assert [layer for layer, _ in drawn] == order
        position.rest()
        assert all(bool(block[0].block.masks) == (most == size) for block in blocks)
        position.step += 1


def test_a_cpu_draws_each_layers_mask_by_itself_as_ever(two_blocks):
    """The bytes of fine-tunes on a CPU do not depend on how a GPU draws."""
    (_, block), position, drawn = two_blocks
    found = masks(block, torch.device("cpu"))
    assert drawn == [(7 + place, 6 * 9 * width) for place, width in enumerate(WIDTHS)]
    for place, width in enumerate(WIDTHS):
        alone = torch.empty(6, 9, width, dtype=torch.bool)
        alone.bernoulli_(0.75, generator=position.generator(torch.device("cpu"), 7 + place))
        assert torch.equal(found[place], alone[2:4, :7])
