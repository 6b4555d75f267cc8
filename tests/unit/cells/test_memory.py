"""Logits a part at a time, memory that runs out, models over several GPUs, and learning rates trained side by side."""

import json
import tempfile
import time
from functools import partial
from pathlib import Path

import accelerate
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import toy_run
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from test_scorer import ARCHITECTURES, SHARED, differences, random_requests
from toy_run import SETTINGS, Killed, jobs_of, make_world, run, run_all, run_of, start_run
from toy_world import evaluate, in_memory, load_toy, random_model, save_model, split_documents

from lm_validity.cells import workers
from lm_validity.cells.models import passes
from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.loading import check_on_gpus
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training import loop, lora
from lm_validity.cells.training.loop import FinetuneSettings, Member, Plan, TrainingRun
from lm_validity.cells.training.lora import CannotStack, use_adapter
from lm_validity.cells.workers import AdapterTrainer
from lm_validity.errors import CellError, InputError


def model_of(name: str) -> LanguageModel:
    return in_memory(random_model(name, 3, **ARCHITECTURES[name][0]))


@pytest.fixture(params=["llama", "gpt2", "gpt_neox", "opt", "gemma2", "mamba"])
def split(request) -> LanguageModel:
    return model_of(request.param)


def largest_logits(lm) -> list[int]:
    """Positions that each call of the output head sees from now on."""
    seen = []
    lm.base.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(output[..., 0].numel())
    )
    return seen


def training(lm, micro_batch: int = 4) -> TrainingRun:
    """Fresh adapters in training on sixteen texts of 5 to 30 tokens, always the same."""
    draw = np.random.default_rng(1)
    examples = [Example(tuple(map(int, draw.integers(5, 400, size=size))), 1) for size in draw.integers(5, 30, size=16)]
    return run_of(lm, examples, FinetuneSettings(learning_rate=3e-3, rank=4, alpha=8, micro_batch=micro_batch))


def steps(one: TrainingRun) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and adapter weights after two steps."""
    (member,) = one.trainings
    losses = [float(one.step(one.trainings, batch)) for batch in member.batches(1)]
    weights = [weight.detach().clone() for weight in member.parameters.values()]
    one.end()
    return losses, weights


def test_scores_in_parts_are_those_of_all_logits_at_once(split, monkeypatch):
    requests = [request for request in random_requests() if len(request[1]) < 80]
    expected = split._loglikelihood_tokens(requests)
    monkeypatch.setattr(passes, "PART", 6 * 420)
    monkeypatch.setattr(split, "_holds", lambda *_: True)  # the check is a plain pass over one text, whole
    seen = largest_logits(split)
    assert differences(split._loglikelihood_tokens(requests), expected, requests) < 2e-5
    assert max(seen) == 6, "never more positions than a part"


def test_a_head_that_is_not_apart_is_not_split(monkeypatch):
    lm = model_of("llama")
    monkeypatch.setattr(type(lm.base), "get_decoder", lambda self: None)
    monkeypatch.setattr(type(lm.base), "base_model", property(lambda self: self))
    requests = random_requests()[:8]
    found = lm._loglikelihood_tokens(requests)
    assert lm.head_part() is None and lm._allowed == SHARED
    monkeypatch.setattr(passes, "PART", 6 * 420)
    seen, softmax = [], torch.log_softmax
    monkeypatch.setattr(
        torch, "log_softmax", lambda logits, *a, **k: seen.append(len(logits)) or softmax(logits, *a, **k)
    )
    assert lm._loglikelihood_tokens(requests) == found
    assert max(seen) == 6, "the softmax is in parts all the same"


def test_training_in_parts_keeps_no_logits_and_changes_rounding_only(split, monkeypatch):
    losses, weights = steps(training(split))
    monkeypatch.setattr(passes, "PART", 6 * 420)
    one = training(split)
    seen = largest_logits(split)  # from here on: which layers get adapters is found out on a text of its own
    again, others = steps(one)
    assert max(seen) == 6
    assert again == pytest.approx(losses, rel=1e-5)
    assert max(float((one - other).abs().max()) for one, other in zip(weights, others, strict=True)) < 1e-4


TWICE = SETTINGS.model_copy(update={"epochs": 2})


def train(lm, task, folder, settings=TWICE):
    return run(lm, *make_world(lm, task), folder, settings)


def fail_at(monkeypatch, owner, name: str, calls: set[int], after: bool) -> None:
    """Make the numbered training calls of a function run out of memory, before or after it did its work."""
    original, seen = getattr(owner, name), []

    def wrapped(*args, **kwargs):
        if not torch.is_grad_enabled():
            return original(*args, **kwargs)
        seen.append(None)
        found = original(*args, **kwargs) if after or len(seen) not in calls else None
        if len(seen) in calls:
            raise torch.OutOfMemoryError("injected")
        return found

    monkeypatch.setattr(owner, name, wrapped)


BOTH = (False, True)


@pytest.mark.parametrize(
    ("function", "after", "calls", "micro_batch", "checkpointing"),
    [
        ("forward", False, {1}, 4, False),  # the first forward pass of all
        *(("forward", False, {3, 5}, 2, either) for either in BOTH),  # of epoch 1 the last, smaller batch; then epoch 2
        ("cross_entropy", False, {2}, 4, False),  # between forward and backward
        ("backward", False, {1, 2, 3}, 1, True),  # three halvings in one step
        *(("backward", True, {2}, 4, either) for either in BOTH),  # gradients of the failed attempt must not count
        *(("backward", True, {1, 3}, 2, either) for either in BOTH),  # the second micro-batch of a repeated step
    ],
)
def test_out_of_memory_changes_the_micro_batch_and_nothing_else(
    function, after, calls, micro_batch, checkpointing, undisturbed, llama, toy_task, tmp_path, monkeypatch
):
    whole, folder = undisturbed("llama", 2)
    settings = TWICE.model_copy(update={"gradient_checkpointing": checkpointing})
    owners = {"forward": llama.base, "cross_entropy": F, "backward": torch.Tensor}
    fail_at(monkeypatch, owners[function], function, calls, after)
    spared = train(llama, toy_task("toy_choice"), tmp_path, settings)
    assert spared.micro_batch == micro_batch
    assert spared.steps == whole.steps == 6 and len(spared.step_losses) == 6
    assert spared.step_losses == pytest.approx(whole.step_losses, rel=1e-6)
    ours, theirs = (load_file(path / "adapter/adapter_model.safetensors") for path in (tmp_path, folder))
    assert all(torch.allclose(ours[key], theirs[key], atol=1e-5) for key in theirs)


def spread(lm, *modules: str) -> None:
    """Give the modules, and the head, the hooks with which accelerate spreads a model over several GPUs."""
    places = dict.fromkeys([*modules, "lm_head"], "cpu")
    accelerate.dispatch_model(lm.base, places, main_device="cpu", force_hooks=True)


def test_layers_spread_by_accelerate_train_and_score_the_same(model_folders, toy_task, tmp_path):
    task, plain, hooked = toy_task("toy_choice"), load_toy(model_folders["llama"]), load_toy(model_folders["llama"])
    spread(hooked, *(f"model.{name}" for name in ("embed_tokens", "layers.0", "layers.1", "norm", "rotary_emb")))
    assert all(hasattr(layer, "_hf_hook") for layer in hooked.base.model.layers)
    results = [train(lm, task, tmp_path / name) for lm, name in ((plain, "plain"), (hooked, "spread"))]
    assert results[0] == results[1]
    docs, scores = split_documents(task, "test"), []
    for lm, name in ((plain, "plain"), (hooked, "spread")):
        with use_adapter(lm, tmp_path / name / "adapter"):
            scores.append(evaluate(lm, task, docs, metric="acc,none").items.choice_loglikelihoods.tolist())
    assert scores[0] == scores[1]


def test_device_all_loads_through_accelerate(model_folders, toy_task, monkeypatch):
    """The model comes through device_map; without a GPU there is one place only."""
    original, asked = transformers.AutoModelForCausalLM.from_pretrained, []

    def from_pretrained(*args, **kwargs):
        asked.append(kwargs["device_map"])
        return original(*args, **kwargs)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    lm, task = load_toy(model_folders["llama"], device="all"), toy_task("toy_choice")
    assert asked == ["auto"] and lm.device.type == "cpu"
    score = partial(evaluate, task=task, docs=split_documents(task, "test"), metric="acc,none")
    first, second = (score(each).items.choice_loglikelihoods for each in (lm, load_toy(model_folders["llama"])))
    assert first.tolist() == second.tolist()


def test_a_model_that_does_not_fit_the_gpus_is_refused():
    check_on_gpus("m", {"model.embed_tokens": 0, "model.layers.0": 1})
    with pytest.raises(CellError, match=r"does not fit the GPUs of the job \(layers on cpu, disk\)"):
        check_on_gpus("m", {"model.embed_tokens": 0, "model.layers.0": "cpu", "lm_head": "disk"})


@pytest.mark.parametrize(
    ("wanted", "gpus", "there", "device"),  # or how many GPUs are needed and missing
    [
        *[("auto", 0, 0, "cpu"), ("auto", 0, 4, "cpu"), ("auto", 1, 4, "cuda"), ("auto", 2, 2, "all")],
        *[("cpu", 2, 0, "cpu"), ("all", 2, 2, "all"), ("cuda", 2, 1, "cuda"), ("cuda:1", 1, 2, "cuda:1")],
        *[("auto", 1, 0, 1), ("auto", 4, 0, 4), ("auto", 2, 1, 2), ("all", 2, 1, 2), ("all", 0, 0, 1)],
        *[("cuda", 1, 0, 1), ("cuda:1", 1, 1, 2)],
    ],
)
def test_a_gpu_that_is_missing_is_never_replaced_by_the_cpu(wanted, gpus, there, device, monkeypatch):
    """On a machine with `there` GPUs, for a size class with `gpus`."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    if isinstance(device, str):
        assert workers.resolve_device(wanted, "large", gpus) == device
        return
    with pytest.raises(InputError) as caught:
        workers.resolve_device(wanted, "large", gpus)
    facts = (f"needs {device} GPU", f"can use {there} ", f"'large' with gpu: {gpus}", str(torch.version.cuda))
    assert all(fact in caught.value.problem for fact in facts)


@pytest.mark.parametrize("rule", ["evaluate_model", "finetune_adapter"])
def test_a_job_without_its_gpu_ends_and_no_cell_is_recorded(start, rule, tmp_path, monkeypatch):
    """Of a size class without a GPU it computes on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    settings = {"evaluation": {"device": "auto"}, "finetuning": {"rates_side_by_side": True}}
    workspace = start(**settings)
    with pytest.raises(InputError, match=r"size class 'small' with gpu: 1; .* CUDA_VISIBLE_DEVICES '2'\)"):
        run_all(workspace, rule)
    assert not any(Path(path).exists() for path in workspace.grid.all_manifests())
    assert not list(workspace.store.folders()) and not list((workspace.store.root / ".leases").iterdir())
    workspace = start(**settings, size_classes={"small": {"gpu": 0}})
    run_all(workspace, "evaluate_model")
    assert len(list(workspace.store.folders())) == 2


@pytest.mark.parametrize("hooked", [False, True])
def test_recomputed_activations_do_not_switch_a_models_own_dropout_on(hooked, toy_task, tmp_path):
    """OPT's layers drop out residuals by their own flag and the process's random numbers."""
    folder = save_model(random_model("opt", dropout=0.5), tmp_path / "opt")
    lm, task = load_toy(folder), toy_task("toy_choice")
    if hooked:
        names = ("layers.0", "layers.1", "embed_tokens", "embed_positions", "final_layer_norm")
        spread(lm, *(f"model.decoder.{name}" for name in names))
    layer = lm.base.model.decoder.layers[0]
    before = layer.__dict__.get("forward")
    assert (before is not None) == hooked
    plain = train(lm, task, tmp_path / "plain")
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        checkpoint = torch.utils.checkpoint.checkpoint
        patch.setattr(torch.utils.checkpoint, "checkpoint", lambda *a, **k: seen.append(1) or checkpoint(*a, **k))
        settings = TWICE.model_copy(update={"gradient_checkpointing": True})
        spared = train(lm, task, tmp_path / "spared", settings)
    assert seen, "activations are recomputed"
    assert spared.step_losses == pytest.approx(plain.step_losses, rel=1e-6)
    assert layer.__dict__.get("forward") is before and not layer.training


RATES = (1e-3, 3e-3, 1e-2)


def members(folder, **changes) -> list[Member]:
    return [
        Member(SETTINGS.model_copy(update={"learning_rate": rate, **changes}), folder / str(rate)) for rate in RATES
    ]


def side_by_side(lm, examples, validate, group) -> int:
    return loop.train_side_by_side(Plan(lm, examples, group, validate, 7))


def saved(folder) -> tuple[dict, list]:
    with safe_open(folder / "training.safetensors", framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["history"])["epochs"]  # noqa: SIM118


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_each_rate_is_what_it_is_alone(lm, world, tmp_path, dropout):
    examples, validate = world(lm)
    before = toy_run.weights(lm)
    group = members(tmp_path / "together", dropout=dropout, epochs=2)
    assert side_by_side(lm, examples, validate, group) == 3
    together = [run(lm, examples, validate, member.work, member.settings) for member in group]
    assert {result.resumed_epochs for result in together} == {2}, "all was trained already"
    for member, found in zip(group, together, strict=True):
        alone = run(lm, examples, validate, tmp_path / "alone" / str(member.settings.learning_rate), member.settings)
        np.testing.assert_allclose(found.step_losses, alone.step_losses, rtol=1e-5, atol=1e-5)
        assert [epoch.validation_value for epoch in found.epochs] == [epoch.validation_value for epoch in alone.epochs]
        assert found.best_epoch == alone.best_epoch and found.steps == alone.steps
        mine, _ = saved(member.work)
        theirs, _ = saved(tmp_path / "alone" / str(member.settings.learning_rate))
        assert mine.keys() == theirs.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-3, atol=1e-4)
    assert len({result.step_losses[-1] for result in together}) == 3, "three different trainings"
    toy_run.check_unchanged(lm, before)


def test_the_same_bytes_twice_and_members_catch_up(llama, world, tmp_path):
    examples, validate = world(llama)
    for name in ("a", "b"):
        side_by_side(llama, examples, validate, members(tmp_path / name))
    for rate in RATES:
        first, second = (tmp_path / name / str(rate) / "training.safetensors" for name in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
    # interrupted after one member saved its second epoch: the others are one behind
    group = members(tmp_path / "c")

    def stop_after_first(epoch):
        if epoch.number == 2:
            raise Killed

    group[0] = group[0]._replace(on_epoch=stop_after_first)
    with pytest.raises(Killed):
        side_by_side(llama, examples, validate, group)
    assert [len(saved(member.work)[1]) for member in group] == [2, 1, 1]
    side_by_side(llama, examples, validate, members(tmp_path / "c"))
    for rate in RATES:
        whole, resumed = (saved(tmp_path / name / str(rate))[0] for name in ("a", "c"))
        for name in whole:
            torch.testing.assert_close(whole[name], resumed[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [16, 8, 3])
def test_out_of_memory_takes_fewer_rates_then_fewer_rows(llama, world, tmp_path, monkeypatch, rows):
    """A machine that holds `rows` rows: 16 are two rates of 8, 8 one rate, 3 a micro-batch of 2."""
    examples, validate = world(llama)
    real = loop.token_losses

    def limited(base, micro, **options):
        if len(micro.inputs) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(base, micro, **options)

    side_by_side(llama, examples, validate, members(tmp_path / "a", epochs=1))
    monkeypatch.setattr(loop, "token_losses", limited)
    llama.counters["oom_halvings"] = 0
    assert side_by_side(llama, examples, validate, members(tmp_path / "b", epochs=1)) == {16: 2, 8: 1, 3: 1}[rows]
    assert llama.counters["oom_halvings"] == {16: 1, 8: 2, 3: 4}[rows]
    for rate in RATES:
        whole, small = (saved(tmp_path / name / str(rate))[0]["step_losses"] for name in ("a", "b"))
        torch.testing.assert_close(whole, small, rtol=1e-5, atol=1e-5)


def test_a_rate_that_diverges_takes_nobody_with_it(llama, world, tmp_path):
    examples, validate = world(llama)
    group = members(tmp_path, epochs=2)
    for at, rate in enumerate((RATES[0], 1e9, RATES[2])):
        wild = group[at].settings.model_copy(update={"learning_rate": rate, "max_gradient_norm": 1e9})
        group[at] = group[at]._replace(settings=wild)
    side_by_side(llama, examples, validate, group)
    results = [run(llama, examples, validate, member.work, member.settings) for member in group]
    assert [bool(result.diverged) for result in results] == [False, True, False]
    alone = run(llama, examples, validate, tmp_path / "alone", group[0].settings)
    np.testing.assert_allclose(results[0].step_losses, alone.step_losses, rtol=1e-5, atol=1e-5)


def test_a_job_side_by_side_gives_the_cells_of_one_after_another(tmp_path, monkeypatch):
    results, joint, train = {}, [], AdapterTrainer.compute_together

    def timed(worker, places):
        start = time.perf_counter()
        train(worker, places)
        joint.append(time.perf_counter() - start)

    monkeypatch.setattr(AdapterTrainer, "compute_together", timed)
    for side in (False, True):
        folder = tmp_path / str(side)
        folder.mkdir()
        monkeypatch.chdir(folder)
        workspace = start_run(folder, finetuning={"epochs": 2, "rates_side_by_side": side})
        run_all(workspace, "finetune_adapter")
        found = toy_run.sidecars(workspace.store)
        assert sum(toy_run.steps_of(workspace.store)) == 12
        assert {one.get("side_by_side") for one in found.values()} == {3 if side else None}
        assert not any(one["resumed_epochs"] for one in found.values())
        if side:
            assert min(one["wall_seconds"] for one in found.values()) > joint[0] / 3 - 0.001
        (job,) = jobs_of(workspace, "finetune_adapter")
        results[side] = [workspace.store.read(workspace.address(cell).folder)["result"] for cell in job.cells]
    for one, other in zip(results[False], results[True], strict=True):
        assert one["best_epoch"] == other["best_epoch"] and one["best_value"] == other["best_value"]
        for first, second in zip(one["epochs"], other["epochs"], strict=True):
            assert first["train_loss"] == pytest.approx(second["train_loss"], rel=1e-5)


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=8).map(lambda values: sorted(values, reverse=True))


@given(lengths, st.integers(1, 8), st.sampled_from([0.0, 5.0, 50.0, 1e9]))
def test_micro_batches_cover_every_row_once_at_least_cost(rows, most, pass_cost):
    runs = loop.micro_batches(rows, most, pass_cost)
    assert [row for start, end in runs for row in range(start, end)] == list(range(len(rows)))
    assert all(end - start <= most for start, end in runs)

    def cost(cut) -> float:
        return sum(pass_cost + (end - start) * rows[start] for start, end in cut)

    def cuts(start=0):
        if start == len(rows):
            yield []
        for end in range(start + 1, min(len(rows), start + most) + 1):
            for rest in cuts(end):
                yield [(start, end), *rest]

    assert cost(runs) == min(map(cost, cuts()))
    if pass_cost == 1e9:
        assert len(runs) == -(-len(rows) // most)


def test_what_cannot_be_stacked_is_trained_in_turn(start, monkeypatch):
    """A layer that sees other tokens than the batch's (routed ones) ends the attempt; the cells are the same."""

    inner = lora.adapted_forward

    def routed(layer, position, x):
        if len(position.adapters) > 1:
            raise CannotStack
        return inner(layer, position, x)

    monkeypatch.setattr(lora, "adapted_forward", routed)
    workspace = start(finetuning={"epochs": 1, "rates_side_by_side": True})
    run_all(workspace, "finetune_adapter")
    assert sum(toy_run.steps_of(workspace.store)) == 6


def test_a_layer_that_sees_other_tokens_is_noticed(llama, world, tmp_path, monkeypatch):
    examples, validate = world(llama)
    inner = lora.adapted_forward

    def half(layer, position, x):
        return inner(layer, position, x[: len(x) // 2] if len(position.adapters) > 1 else x)

    monkeypatch.setattr(lora, "adapted_forward", half)
    with pytest.raises(CannotStack):
        side_by_side(llama, examples, validate, members(tmp_path))
    assert "lora_A" not in str(llama.base), "the base model is given back"
