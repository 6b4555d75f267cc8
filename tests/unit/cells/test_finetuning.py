"""The training loop: its arithmetic, what it does not depend on, its output; and which layers get an adapter."""

import contextlib
import errno
import functools
import json
import math
import resource
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import toy_world
from peft import PeftModel
from safetensors import safe_open
from toy_run import SETTINGS, Killed, check_unchanged, files, make_world, run, weights
from toy_world import evaluate, in_memory, load_toy, loglikelihood, never_fits, random_model, split_documents, toy_model
from transformers import AutoModelForCausalLM

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks import evaluation
from lm_validity.cells.tasks.evaluation import Example, NonFiniteScore, prepare_requests, training_examples
from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.splits import documents, make_splits
from lm_validity.cells.tasks.tasks import load_task
from lm_validity.cells.training import lora
from lm_validity.cells.training.loop import FinetuneSettings
from lm_validity.cells.training.lora import BatchDropout, BatchPosition, adapted_layers, find_targets, use_adapter
from lm_validity.errors import CellError


def changed(**settings) -> FinetuneSettings:
    return SETTINGS.model_copy(update=settings)


def test_learns_and_gives_the_base_back(lm, toy_task, tmp_path, model_folders):
    """And its adapter scores the same here and in plain PEFT."""
    task = toy_task("toy_choice")
    examples, validate = make_world(lm, task)
    before, score = weights(lm), validate()
    result = run(lm, examples, validate, tmp_path)
    assert [epoch.number for epoch in result.epochs] == [1, 2, 3]
    assert result.epochs[-1].train_loss < 0.8 * result.epochs[0].train_loss
    assert (result.steps, len(result.step_losses), result.examples) == (9, 9, 20)  # 20 rows in batches of 8: 3 steps
    assert result.tokens == sum(len(example.token_ids) for example in examples)
    assert not result.diverged and lm.counters["optimizer_steps"] == 9
    values = [epoch.validation_value for epoch in result.epochs]
    assert result.best_epoch == values.index(max(values)) + 1
    check_unchanged(lm, before)
    assert validate() == score
    with use_adapter(lm, tmp_path / "adapter"):
        assert validate() == max(values)
        docs = split_documents(task, "validation", 2)
        ours = evaluate(lm, task, docs, metric="acc,none").items.choice_loglikelihoods[0][0]
    kind = "gpt2" if lm.base.config.model_type == "gpt2" else "llama"
    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folders[kind]), tmp_path / "adapter")
    context, continuation = lm.encode_request(*prepare_requests(lm, task, docs).requests[0][0].args)
    assert ours == pytest.approx(loglikelihood(plain.eval(), context, continuation), abs=1e-4)
    text = (tmp_path / "adapter" / "adapter_config.json").read_text()
    assert json.loads(text)["base_model_name_or_path"] == lm.model_id == kind
    assert str(tmp_path.parent) not in text and str(model_folders[kind]) not in text


@pytest.mark.parametrize(("values", "best"), [([0.5, 0.7, 0.7], 2), ([0.7, 0.5, 0.7], 1), ([0.3, 0.7, 0.9], 3)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_adapter_is_that_of_the_best_epoch(llama, world, tmp_path, values, best, sign):
    """The first of the best ones, in whichever direction: as after so many epochs of the same training."""
    examples = world(llama)[0][:8]
    scores, only = iter([sign * value for value in values]), iter([sign * (number == best) for number in (1, 2, 3)])
    result = run(llama, examples, lambda: next(scores), tmp_path / "a", higher_is_better=sign > 0)
    assert result.best_epoch == best
    run(llama, examples, lambda: next(only), tmp_path / "b", higher_is_better=sign > 0)
    assert files(tmp_path / "a" / "adapter") == files(tmp_path / "b" / "adapter")


def test_same_bytes_twice_and_after_an_interruption(llama, world, undisturbed, tmp_path):
    examples, validate = world(llama)
    whole, folder = undisturbed("llama")
    torch.manual_seed(99)  # nothing may depend on global random state
    run(llama, examples, validate, tmp_path / "b")
    assert files(folder / "adapter") == files(tmp_path / "b" / "adapter")

    seen = []
    with pytest.raises(Killed):
        run(llama, examples, validate, tmp_path / "c", on_epoch=seen.append, killed_after=2)
    assert [epoch.number for epoch in seen] == [1, 2] and not (tmp_path / "c" / "adapter").exists()
    resumed = run(llama, examples, validate, tmp_path / "c", on_epoch=seen.append)
    assert resumed.resumed_epochs == 2 and seen[-1].number == 3 and len(seen) == 3
    assert replace(resumed, resumed_epochs=0) == whole
    assert files(tmp_path / "c" / "adapter") == files(folder / "adapter")
    # another recipe does not resume from this state
    other = run(llama, examples, validate, tmp_path / "c", changed(learning_rate=1e-3))
    assert other.resumed_epochs == 0


def test_a_full_disk_is_an_error_of_the_system_and_leaves_nothing(llama, world, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            run(llama, *world(llama), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_poisoned_test_split_changes_no_byte(llama, tmp_path):
    """After splitting, test gets other labels and texts that occur nowhere else: nothing that trains sees it."""

    def poisoned(split: str) -> list[dict]:
        rows = toy_world.toy_rows(split)
        spoilt = [row | {"name": f"poison {row['name']}", "gold": (row["gold"] + 1) % 4} for row in rows]
        return spoilt if split == "test" else rows

    clean = load_task(find_task("toy_choice", toy_world.write_toy_tasks(tmp_path / "clean")))
    splits = make_splits(clean)
    spoilt = load_task(find_task("toy_choice", toy_world.write_toy_tasks(tmp_path / "spoilt", rows=poisoned)))
    results = []
    for name, task in (("a", clean), ("b", spoilt)):
        examples = training_examples(llama, task, documents(task, splits.train))
        prepared = prepare_requests(llama, task, documents(task, splits.validation))
        validate = functools.partial(evaluation.metric_value, llama, prepared, "acc_norm,none")
        results.append(run(llama, examples, validate, tmp_path / name, changed(epochs=1)))
    assert results[0] == results[1]
    assert files(tmp_path / "a" / "adapter") == files(tmp_path / "b" / "adapter")
    with pytest.raises(CellError, match="document test:0 changed after the test split was made"):
        documents(spoilt, splits.test)


def test_seed_changes_the_run_and_the_rate_does_not_change_the_order(llama, world, undisturbed, tmp_path):
    examples, validate = world(llama)
    first, _ = undisturbed("llama")
    other = run(llama, examples, validate, tmp_path / "b", changed(epochs=1), seed=8)
    slower = run(llama, examples, validate, tmp_path / "c", changed(epochs=1, learning_rate=1e-3))
    assert first.step_losses[0] != other.step_losses[0]
    assert first.step_losses[0] == slower.step_losses[0] and first.step_losses[1] != slower.step_losses[1]


@pytest.mark.parametrize(
    "change",
    [{"micro_batch": 3}, {"gradient_checkpointing": True}, pytest.param({"micro_batch": 1}, marks=pytest.mark.slow)],
)
def test_memory_settings_change_rounding_only(lm, world, undisturbed, tmp_path, change):
    whole, _ = undisturbed(lm.base.config.model_type)
    spared = run(lm, *world(lm), tmp_path / "b", changed(**change))
    assert spared.step_losses == pytest.approx(whole.step_losses, rel=1e-6)
    assert spared.steps == whole.steps
    assert not any(module.training for module in lm.base.modules())


def test_bfloat16_trains_float32_adapters(model_folders, world, tmp_path):
    lm = load_toy(model_folders["llama"], dtype="bfloat16")
    examples, validate = world(lm)
    result = run(lm, examples, validate, tmp_path)
    assert result.epochs[-1].train_loss < result.epochs[0].train_loss
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118 (no dict)
    with use_adapter(lm, tmp_path / "adapter"):
        assert validate() == result.epochs[result.best_epoch - 1].validation_value


def test_float16_has_the_gradients_of_float32_in_large_batches(model_folders, world, tmp_path, monkeypatch):
    """A step of 480 texts, of which a token's share is below what float16 holds. part: logits a few at a time."""
    found = {}
    settings = changed(epochs=1, effective_batch=480, micro_batch=120, max_gradient_norm=1e9)
    for dtype, part in (("float32", None), ("float16", None), ("float16", 32)):
        monkeypatch.setattr(LanguageModel, "head_part", lambda self, part=part: part)
        lm = load_toy(model_folders["llama"], dtype=dtype)
        examples, _ = world(lm)
        lm.base.requires_grad_(requires_grad=False).get_output_embeddings().weight.mul_(2**-6)  # as a wide model's

        def step(self, way=(dtype, part)):
            (group,) = self.param_groups
            found[way] = torch.cat([parameter.grad.flatten() for parameter in group["params"]])

        monkeypatch.setattr(torch.optim.AdamW, "step", step)
        with contextlib.suppress(KeyError):  # of a state that no optimizer made
            run(lm, [*examples] * 24, lambda: 0.0, tmp_path / f"{dtype} {part}", settings)
    expected = found.pop(("float32", None))
    assert len(found) == 2
    for gradients in found.values():
        assert (gradients - expected).norm() < 0.02 * expected.norm()


def test_out_of_memory_at_one_row_is_an_error(llama, world, tmp_path):
    before, original = weights(llama), llama.base.forward
    llama.base.forward = never_fits
    with pytest.raises(CellError, match=r"llama: out of memory with one text of up to \d+ tokens to train on"):
        run(llama, *world(llama), tmp_path)
    llama.base.forward = original
    check_unchanged(llama, before)  # no adapter is left: the next cell finds the model as it was


def test_divergence_keeps_the_epochs_before(llama, world, tmp_path):
    examples, validate = world(llama)
    wild = run(llama, examples, validate, tmp_path / "a", changed(learning_rate=1e30))
    assert wild.diverged and wild.epochs == () and wild.best_epoch is None and wild.adapter_sha256 is None
    assert all(math.isfinite(loss) for loss in wild.step_losses)

    values = iter([0.25, 0.5])

    def fails_later() -> float:
        try:
            return next(values)
        except StopIteration:
            raise NonFiniteScore("a document", "a hint") from None

    late = run(llama, examples, fails_later, tmp_path / "b")
    assert [epoch.validation_value for epoch in late.epochs] == [0.25, 0.5]
    assert late.best_epoch == 2 and late.adapter_sha256 and "validation after epoch 3" in late.diverged


def test_first_step_is_adamw_on_the_token_mean(llama, tmp_path):
    """Without dropout, one step on two rows of different length against the same step written out."""
    examples = [Example((0, 5, 6, 7, 1), 3), Example((0, 8, 1), 2)]
    settings = FinetuneSettings(learning_rate=1e-2, epochs=1, dropout=0.0, micro_batch=1)
    total = sum(loglikelihood(llama.base, example.token_ids[:1], example.token_ids[1:]) for example in examples)
    result = run(llama, examples, lambda: 0.0, tmp_path, settings)
    assert result.step_losses == pytest.approx([-total / (4 + 2)], abs=1e-5)


def test_learning_rate_falls_to_zero_in_equal_steps(llama, world, tmp_path, monkeypatch):
    rates, original = [], torch.optim.AdamW.step
    step = lambda self: rates.append(self.param_groups[0]["lr"]) or original(self)  # noqa: E731
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    run(llama, *world(llama), tmp_path)
    assert rates == pytest.approx([3e-3 * (9 - step) / 9 for step in range(9)])


def test_target_modules(llama, model_folders):
    assert list(find_targets(llama, "attention").names) == ["k_proj", "q_proj", "v_proj"]
    assert list(find_targets(llama, "paper").names) == ["q_proj", "v_proj"]
    everything = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert list(find_targets(llama, "all-linear").names) == everything
    gpt2 = load_toy(model_folders["gpt2"])
    assert list(find_targets(gpt2, "attention").names) == ["c_attn"]
    assert list(find_targets(gpt2, "all-linear").names) == ["c_attn", "c_fc", "c_proj"]
    llama.base.config.model_type = "novel"
    with pytest.raises(CellError, match=r"no layers for adapters under target_modules 'paper'.*novel"):
        find_targets(llama, "paper")


def test_no_examples_and_foreign_adapter(llama, tmp_path, world):
    with pytest.raises(CellError, match="no training examples"):
        run(llama, [], lambda: 0.0, tmp_path)
    other = load_toy(toy_model("gpt2", tmp_path / "gpt2"))
    run(other, *world(other), tmp_path, changed(epochs=1))
    with pytest.raises(CellError, match="not an adapter of llama"), use_adapter(llama, tmp_path / "adapter"):
        pass
    shutil.rmtree(tmp_path / "adapter")
    with pytest.raises(CellError, match="not an adapter of"), use_adapter(other, tmp_path / "adapter"):
        pass


def test_resumes_where_an_adapter_never_gets_a_gradient(llama, world, tmp_path):
    """A layer whose output nobody uses."""
    layer = llama.base.model.layers[0]
    layer.spare_proj = torch.nn.Linear(32, 32)

    def call_it(module, inputs):
        module.spare_proj(inputs[0])

    layer.register_forward_pre_hook(call_it)
    examples, validate = world(llama)
    whole = run(llama, examples, validate, tmp_path / "a")
    with pytest.raises(Killed):
        run(llama, examples, validate, tmp_path / "b", killed_after=1)
    resumed = run(llama, examples, validate, tmp_path / "b")
    assert "spare_proj" in resumed.target_modules
    assert resumed.resumed_epochs == 1 and replace(resumed, resumed_epochs=0) == whole
    assert files(tmp_path / "b" / "adapter") == files(tmp_path / "a" / "adapter")


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
    refused = r"llama: PEFT cannot adapt it under target_modules 'all-linear' \(Target module"
    with pytest.raises(CellError, match=refused):
        lora.add_adapter(llama, FinetuneSettings(learning_rate=1e-3), "all-linear", BatchPosition(1))
    assert [*llama.base.state_dict()] == before


LOW_RANK = FinetuneSettings(learning_rate=1e-3, rank=4, alpha=8, dropout=0.25)


@pytest.fixture
def position():
    """The second of three micro-batches of a batch."""
    return BatchPosition(seed=3, step=5, rows=6, width=9, start=2, count=2, length=7, training=True)


@pytest.fixture
def layer(llama, position):
    """A function (dtype) -> an adapted layer."""

    def make(dtype):
        llama.base.to(dtype)
        chosen = [*adapted_layers(lora.add_adapter(llama, LOW_RANK, "all-linear", position)).values()][3]
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
    layers = adapted_layers(lora.add_adapter(llama, LOW_RANK, "all-linear", position))
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
