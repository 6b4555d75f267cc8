"""Adapters on every kind of architecture: which weights get one, and that a fine-tune works with them."""

import numpy as np
import pytest
import torch
import transformers
from test_finetuning import run, weights
from toy_world import toy_tokenizer

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training import lora
from lm_validity.cells.training.loop import FinetuneSettings, TrainingStopped
from lm_validity.cells.training.lora import BatchPosition, CannotStack, find_targets, use_adapter
from lm_validity.errors import CellError

SMALL = {"vocab_size": 420, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 96, "initializer_range": 0.1}
SMALL |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}
GEMMA3 = SMALL | {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16, "pad_token_id": 0}
MIXTRAL = SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_MOE = SMALL | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
QWEN_MOE |= {"shared_expert_intermediate_size": 32}
MAMBA = {"vocab_size": 420, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
EXPERTS = {"model.layers.*.mlp.experts.gate_up_proj", "model.layers.*.mlp.experts.down_proj"}
SHORT = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}
# configuration and its sizes, what must get an adapter, at least this share of the weights
KINDS = {
    "mixtral": (transformers.MixtralConfig, MIXTRAL, SHORT | EXPERTS, 0.98),
    "qwen2_moe": (transformers.Qwen2MoeConfig, QWEN_MOE, SHORT | MLP | EXPERTS, 0.98),
    "phimoe": (transformers.PhimoeConfig, MIXTRAL, SHORT | EXPERTS, 0.98),
    "gemma3": (
        transformers.Gemma3Config,
        {"text_config": GEMMA3, "vision_config": VISION, "mm_tokens_per_image": 4},
        {"model.language_model.layers.*.mlp.gate_proj"},
        0.99,
    ),
    "mamba": (transformers.MambaConfig, MAMBA, {"in_proj"}, 0.5),
}

FALCON = SMALL | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
DEEPSEEK = SMALL | MLA | {"num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2}
DEEPSEEK |= {"topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
ALTUP = {"altup_num_inputs": 2, "laurel_rank": 8, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 420}
GEMMA3N = SMALL | ALTUP | {"num_hidden_layers": 4, "pad_token_id": 0, "head_dim": 16, "sliding_window": 24}
GEMMA3N |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 0}
GEMMA3N |= {"activation_sparsity_pattern": [0.0] * 4}
SHARED_BLOCK = {"hybrid_layer_ids": [1, 3], "layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 1}
ZAMBA = SMALL | SHARED_BLOCK | {"num_hidden_layers": 4, "num_key_value_heads": 2, "mamba_d_state": 8}
ZAMBA |= {"n_mamba_heads": 4, "mamba_ngroups": 1, "mamba_headdim": 16, "use_shared_attention_adapter": True}
ZAMBA |= {"adapter_rank": 4, "attention_hidden_size": 64, "attention_head_dim": 32}
UNUSUAL = {
    "falcon_h1": (transformers.FalconH1Config, FALCON, SHORT | MLP | {"in_proj"}, 0.8),
    "deepseek_v3": (transformers.DeepseekV3Config, DEEPSEEK, MLP | EXPERTS | {"q_a_proj", "kv_b_proj"}, 0.98),
    # its embeddings of each layer's input have no adapter
    "gemma3n": (
        transformers.Gemma3nTextConfig,
        GEMMA3N,
        {"model.layers.*.self_attn.q_proj", "model.layers.*.laurel.linear_left"},
        0.7,
    ),
    # one block of attention in several places
    "zamba2": (
        transformers.Zamba2Config,
        ZAMBA,
        {"model.layers.*.shared_transformer.self_attn.q_proj", "model.layers.*.mamba.in_proj"},
        0.85,
    ),
}


@pytest.fixture(params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in UNUSUAL)])
def adapted(request) -> tuple[LanguageModel, set[str], float]:
    configuration, sizes, expected, share = (KINDS | UNUSUAL)[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(configuration(**sizes), dtype=torch.float32).eval()
    tokenizer = toy_tokenizer(adds_bos=False, chat=False)
    return LanguageModel(model, tokenizer, model_id=request.param, eval_batch_size=4, max_length=90), expected, share


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

    before, settings, seen = weights(lm), FinetuneSettings(learning_rate=3e-3, epochs=3), []
    with pytest.raises(TrainingStopped):
        run(lm, examples(), validate, tmp_path, settings, on_epoch=seen.append, stop=lambda: len(seen) == 1)
    result = run(lm, examples(), validate, tmp_path, settings)
    assert result.resumed_epochs == 1 and result.adapted_share == targets.share
    assert result.epochs[-1].train_loss < result.epochs[0].train_loss
    with use_adapter(lm, tmp_path / "adapter"):
        assert validate() == pytest.approx(result.epochs[result.best_epoch - 1].validation_value, abs=1e-5)
    after = weights(lm)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


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


def test_experts_are_not_trained_side_by_side():
    with torch.random.fork_rng(devices=[]):
        model = transformers.AutoModelForCausalLM.from_config(transformers.MixtralConfig(**MIXTRAL)).eval()
    lm = LanguageModel(model, toy_tokenizer(adds_bos=False, chat=False), model_id="m", eval_batch_size=4)
    with pytest.raises(CannotStack):
        lora.add_adapter(lm, FinetuneSettings(learning_rate=1e-3), "all-linear", BatchPosition(1), also=["rate1"])


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
