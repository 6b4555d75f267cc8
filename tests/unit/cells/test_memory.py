"""Logits a part at a time, reads of the GPU, memory that runs out, and models over several GPUs."""

import tempfile
from functools import partial
from pathlib import Path

import accelerate
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from test_scorer import ARCHITECTURES, SHARED, differences, random_requests
from toy_run import SETTINGS, make_world, run, run_all, run_of
from toy_world import evaluate, in_memory, load_toy, random_model, save_model, split_documents

from lm_validity.cells import workers
from lm_validity.cells.models import passes
from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.loading import check_on_gpus
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training.loop import FinetuneSettings, TrainingRun
from lm_validity.cells.training.lora import use_adapter
from lm_validity.errors import CellError, InputError


def model_of(name: str) -> LanguageModel:
    return in_memory(random_model(name, 3, **ARCHITECTURES[name][0]))


@pytest.fixture(params=["llama", "gpt2", "gpt_neox", "opt", "gemma2", "mamba"])
def lm(request) -> LanguageModel:
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


def test_scores_in_parts_are_those_of_all_logits_at_once(lm, monkeypatch):
    requests = [request for request in random_requests() if len(request[1]) < 80]
    expected = lm._loglikelihood_tokens(requests)
    monkeypatch.setattr(passes, "PART", 6 * 420)
    monkeypatch.setattr(lm, "_holds", lambda *_: True)  # the check is a plain pass over one text, whole
    seen = largest_logits(lm)
    assert differences(lm._loglikelihood_tokens(requests), expected, requests) < 2e-5
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


def test_training_in_parts_keeps_no_logits_and_changes_rounding_only(lm, monkeypatch):
    losses, weights = steps(training(lm))
    monkeypatch.setattr(passes, "PART", 6 * 420)
    one = training(lm)
    seen = largest_logits(lm)  # from here on: which layers get adapters is found out on a text of its own
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
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    settings = {"evaluation": {"device": "auto"}, "finetuning": {"rates_side_by_side": True}}
    workspace = start(**settings)
    with pytest.raises(InputError, match=r"size class 'small' with gpu: 1; .* CUDA_VISIBLE_DEVICES '2'\)"):
        run_all(workspace, rule)
    assert not any(Path(path).exists() for path in workspace.grid.all_manifests())
    assert not list(workspace.store.folders()) and not list((workspace.store.root / ".leases").iterdir())


def test_a_size_class_without_gpu_computes_on_the_cpu(start, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    on_cpu = {"evaluation": {"device": "auto"}, "size_classes": {"small": {"gpu": 0}}}
    workspace = start(**on_cpu)
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
