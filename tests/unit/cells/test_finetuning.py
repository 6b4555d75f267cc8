"""The training loop: its arithmetic, its independence of memory and interruption, its output."""

import contextlib
import errno
import functools
import json
import math
import resource
import shutil
from dataclasses import replace

import pytest
import torch
import toy_world
from peft import PeftModel
from safetensors import safe_open
from toy_run import SETTINGS, Killed, check_unchanged, files, make_world, run, weights
from toy_world import evaluate, load_toy, loglikelihood, never_fits, split_documents, toy_model
from transformers import AutoModelForCausalLM

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks import evaluation
from lm_validity.cells.tasks.evaluation import Example, NonFiniteScore, prepare_requests, training_examples
from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.splits import documents, make_splits
from lm_validity.cells.tasks.tasks import load_task
from lm_validity.cells.training.loop import FinetuneSettings
from lm_validity.cells.training.lora import find_targets, use_adapter
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
