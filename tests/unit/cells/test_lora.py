"""LoRA: which layers get an adapter, and low-rank layers that keep and launch little."""

import numpy as np
import pytest
import torch
from toy_run import Killed, check_unchanged, run, weights
from toy_world import in_memory, random_model

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training import lora
from lm_validity.cells.training.loop import FinetuneSettings
from lm_validity.cells.training.lora import BatchDropout, BatchPosition, adapted_layers, find_targets
from lm_validity.errors import CellError

ONE_HEAD = {"num_key_value_heads": 1}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}
TEXT = {"vocab_size": 420, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "pad_token_id": 0}
TEXT |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 24}
TEXT |= {"query_pre_attn_scalar": 16}
MIXTRAL = ONE_HEAD | {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_MOE = ONE_HEAD | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
QWEN_MOE |= {"shared_expert_intermediate_size": 32}
EXPERTS = {"model.layers.*.mlp.experts.gate_up_proj", "model.layers.*.mlp.experts.down_proj"}
SHORT = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}
GEMMA3 = {"text_config": TEXT, "vision_config": VISION, "mm_tokens_per_image": 4}
# sizes of an architecture, what must get an adapter, at least this share of the weights
KINDS = {
    "mixtral": (MIXTRAL, SHORT | EXPERTS, 0.98),
    "qwen2_moe": (QWEN_MOE, SHORT | MLP | EXPERTS, 0.98),
    "phimoe": (MIXTRAL, SHORT | EXPERTS, 0.98),
    "gemma3": (GEMMA3, {"model.language_model.layers.*.mlp.gate_proj"}, 0.99),
    "mamba": ({"state_size": 4}, {"in_proj"}, 0.5),
}

FALCON = ONE_HEAD | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
DEEPSEEK = MLA | {"num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2}
DEEPSEEK |= {"topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
ALTUP = {"altup_num_inputs": 2, "laurel_rank": 8, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 420}
GEMMA3N = ONE_HEAD | ALTUP | {"num_hidden_layers": 4, "pad_token_id": 0, "head_dim": 16, "sliding_window": 24}
GEMMA3N |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 0}
GEMMA3N |= {"activation_sparsity_pattern": [0.0] * 4}
ZAMBA = {"hybrid_layer_ids": [1, 3], "layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 1}
ZAMBA |= {"num_hidden_layers": 4, "num_key_value_heads": 2, "mamba_d_state": 8, "n_mamba_heads": 4}
ZAMBA |= {"mamba_ngroups": 1, "mamba_headdim": 16, "use_shared_attention_adapter": True}
ZAMBA |= {"adapter_rank": 4, "attention_hidden_size": 64, "attention_head_dim": 32}
UNUSUAL = {
    "falcon_h1": (FALCON, SHORT | MLP | {"in_proj"}, 0.8),
    "deepseek_v3": (DEEPSEEK, MLP | EXPERTS | {"q_a_proj", "kv_b_proj"}, 0.98),
    # its embeddings of each layer's input have no adapter
    "gemma3n_text": (GEMMA3N, {"model.layers.*.self_attn.q_proj", "model.layers.*.laurel.linear_left"}, 0.7),
    # one block of attention in several places
    "zamba2": (ZAMBA, {"model.layers.*.shared_transformer.self_attn.q_proj", "model.layers.*.mamba.in_proj"}, 0.85),
}


@pytest.fixture(params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in UNUSUAL)])
def adapted(request) -> tuple[LanguageModel, set[str], float]:
    sizes, expected, share = (KINDS | UNUSUAL)[request.param]
    model = random_model(request.param, **{"initializer_range": 0.1} | sizes)
    return in_memory(model, model_id=request.param, eval_batch_size=4, max_length=90), expected, share


def examples() -> list[Example]:
    draw = np.random.default_rng(1)
    return [Example(tuple(map(int, draw.integers(5, 400, size=size))), 1) for size in draw.integers(5, 20, size=8)]


def test_every_kind_trains_resumes_scores_and_is_given_back(adapted, tmp_path):
    lm, expected, share = adapted
    targets = find_targets(lm, "all-linear")
    assert set(targets.described) >= expected
    assert share <= targets.share <= 1
    routers = ("mlp.router", "mlp.gate", "block_sparse_moe.gate", "shared_expert_gate")
    assert not any("vision" in name or name.endswith(routers) for name in targets.layers)
    requests = [(None, [5, 6, 7], [8, 9]), (None, [15, 16, 17, 20], [18, 19, 11])]

    def validate() -> float:
        return sum(value for value, _ in lm._loglikelihood_tokens(requests))

    before, settings = weights(lm), FinetuneSettings(learning_rate=3e-3, epochs=3)
    with pytest.raises(Killed):
        run(lm, examples(), validate, tmp_path, settings, killed_after=1)
    result = run(lm, examples(), validate, tmp_path, settings)
    assert result.resumed_epochs == 1 and result.adapted_share == targets.share
    assert result.epochs[-1].train_loss < result.epochs[0].train_loss
    with lora.use_adapter(lm, tmp_path / "adapter"):
        assert validate() == pytest.approx(result.epochs[result.best_epoch - 1].validation_value, abs=1e-5)
    check_unchanged(lm, before)


def test_what_is_linear_by_its_class_alone_gets_no_adapter(llama):
    """A router may return scores and choices, a layer by group (DeepSeek V4) multiply parts of its input."""

    class Router(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), None

    layer = llama.base.model.layers[0]

    class ByGroup(torch.nn.Linear):
        def forward(self, x):
            return torch.einsum("...gi,goi->...go", x.unflatten(-1, (2, 16)), self.weight.unflatten(0, (2, 4)))

    layer.chooser, layer.plain, layer.grouped = Router(32, 4), torch.nn.Linear(32, 4), ByGroup(16, 8)

    def call_all(module, inputs):
        module.chooser(inputs[0]), module.plain(inputs[0]), module.grouped(inputs[0])

    layer.register_forward_pre_hook(call_all)
    found = {name.rpartition(".")[2] for name in find_targets(llama, "all-linear").layers}
    assert "plain" in found and not found & {"chooser", "grouped"}


def test_what_peft_refuses_fails_the_cell_and_leaves_the_model(llama, monkeypatch):
    """In the middle of its work, as with an architecture whose last layer it does not know."""
    real = lora.get_peft_model

    def refuses(base, config):
        real(base, config)
        raise ValueError("Target module of another kind")

    monkeypatch.setattr(lora, "get_peft_model", refuses)
    before = [*llama.base.state_dict()]
    with pytest.raises(
        CellError, match=r"llama: PEFT cannot adapt it under target_modules 'all-linear' \(Target module"
    ):
        lora.add_adapter(llama, FinetuneSettings(learning_rate=1e-3), "all-linear", BatchPosition(1))
    assert [*llama.base.state_dict()] == before


SETTINGS = FinetuneSettings(learning_rate=1e-3, rank=4, alpha=8, dropout=0.25)


@pytest.fixture
def position():
    """The second of three micro-batches of a batch."""
    return BatchPosition(seed=3, step=5, rows=6, width=9, start=2, count=2, length=7, training=True)


@pytest.fixture
def layer(llama, position):
    """A function (dtype) -> an adapted layer."""

    def make(dtype):
        llama.base.to(dtype)
        chosen = [*adapted_layers(lora.add_adapter(llama, SETTINGS, "all-linear", position)).values()][3]
        with torch.no_grad():
            chosen.lora_B["default"].weight.normal_(generator=torch.Generator().manual_seed(1))
        return chosen

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
    chosen = layer(dtype)
    chosen.scaling["default"] = scaling
    ours, theirs = derivatives(chosen, chosen), derivatives(chosen, type(chosen).forward.__get__(chosen))
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(ours, theirs, strict=True))
    assert all(bool(one.any()) for one in ours)


def test_a_layer_keeps_its_input_and_nothing_as_large(layer, position):
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

    chosen = layer(torch.bfloat16)
    x = torch.randn(2, 7, chosen.in_features, dtype=torch.bfloat16, requires_grad=True)
    inner = 2 * 7 * 4 * 4  # A dropout(x), of rank 4 in float32
    assert kept_bytes(chosen, x) == x.nbytes + inner
    whole_mask = position.rows * position.width * chosen.in_features
    assert kept_bytes(type(chosen).forward.__get__(chosen), x) >= 2 * x.nbytes + whole_mask


@pytest.fixture
def two_blocks(llama, position, monkeypatch):
    """(dropouts of each of two blocks, layers and shapes of what is drawn, on the host in a GPU's place)."""
    layers = adapted_layers(lora.add_adapter(llama, SETTINGS, "all-linear", position))
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
    return blocks, drawn


GPU = torch.device("meta")
WIDTHS = [32, 32, 32, 32, 32, 32, 64]  # inputs of a layer's q, k, v, o, gate, up, down


def masks(block, device) -> list[torch.Tensor]:
    return [one._batch_mask(width, device) for one, width in zip(block, WIDTHS, strict=True)]


def test_a_gpu_draws_a_blocks_masks_at_once_whichever_layer_asks_first(two_blocks, position):
    (block, _), drawn = two_blocks
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


def test_a_cpu_draws_each_layers_mask_by_itself_as_ever(two_blocks, position):
    """The bytes of fine-tunes on a CPU do not depend on how a GPU draws."""
    (_, block), drawn = two_blocks
    found = masks(block, torch.device("cpu"))
    assert drawn == [(7 + place, 6 * 9 * width) for place, width in enumerate(WIDTHS)]
    for place, width in enumerate(WIDTHS):
        alone = torch.empty(6, 9, width, dtype=torch.bool)
        alone.bernoulli_(0.75, generator=position.generator(torch.device("cpu"), 7 + place))
        assert torch.equal(found[place], alone[2:4, :7])
