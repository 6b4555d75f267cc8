"""The project's own code on one and two pretended GPUs, and the proof that a forgotten `.to(device)` is seen there."""

from types import SimpleNamespace

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from toy_world import toy_model

from lm_validity.cells.models import trees
from lm_validity.cells.models.language_model import load_language_model
from lm_validity.cells.rehearsal import rehearse
from lm_validity.cells.rehearsal.device import KIND, pretended_gpus
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training import loop, lora
from lm_validity.cells.training.loop import FinetuneSettings, TrainingStopped
from lm_validity.cells.training.lora import use_adapter
from lm_validity.cells.training.worker import finetune

EXAMPLES = [Example(tuple(range(5, 15 + number)), 1) for number in range(8)]
SETTINGS = FinetuneSettings(learning_rate=1e-3, epochs=2)  # a step of one pass each
ONCE = SETTINGS.model_copy(update={"epochs": 1})
QUESTIONS = [SimpleNamespace(args=("blue dark gray", f" {color}")) for color in ("red", "green", "blue")]


def train(lm, folder, settings=SETTINGS, stop=lambda: False):
    arguments = {"seed": 1, "higher_is_better": True, "work": folder / "work", "adapter_output": folder / "adapter"}
    return finetune(lm, EXAMPLES, lambda: 0.5, settings, stop=stop, **arguments)


def everything(lm, ledger, folder) -> None:
    """Score in three ways, roll, write, train with and without recomputing, stop, resume, use the adapter."""
    for way in ("rows", "packed", "cached"):
        lm.scorer = way
        assert len(lm.loglikelihood(QUESTIONS)) == 3
        assert way in lm._allowed
    assert len(lm.loglikelihood_rolling([SimpleNamespace(args=("red green " * 120,))])) == 1
    rehearse.generate(lm, ledger, prompts=2, tokens=16)
    train(lm, folder, ONCE.model_copy(update={"gradient_checkpointing": True}))
    asked = []
    with pytest.raises(TrainingStopped):
        train(lm, folder / "again", stop=lambda: asked.append(1) or len(asked) == 2)
    assert train(lm, folder / "again").resumed_epochs == 1
    with use_adapter(lm, folder / "adapter"):
        assert len(lm.loglikelihood(QUESTIONS)) == 3


@pytest.mark.parametrize("kind", ["llama", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gpt2", "gemma2"))])
def test_everything_runs_on_one_gpu(kind, tmp_path):
    with pretended_gpus() as ledger:
        lm = load_language_model(
            toy_model(kind, tmp_path / "model"), dtype="bfloat16", device=f"{KIND}:0", eval_batch_size=4
        )
        assert lm.base.dtype == torch.bfloat16 and str(lm.device) == f"{KIND}:0"
        everything(lm, ledger, tmp_path)
    assert ledger.host_reads["nonzero"] == 0


def test_everything_runs_on_two_gpus(tmp_path):
    config = rehearse.causal_config("m", {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64} | SHAPE)
    with pretended_gpus() as ledger:
        lm = rehearse.pretend_model(config, "m", dtype="bfloat16", device=f"{KIND}:0", batch_size=4, max_length=None)
        spread(lm.base)
        everything(lm, ledger, tmp_path)
        assert set(ledger.live) == {0, 1} and min(ledger.live.values()) > 0


SHAPE = {"vocab_size": 420, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 96}
SHAPE |= {"bos_token_id": 0, "eos_token_id": 1}


def spread(model: torch.nn.Module) -> None:
    """The last layer and what follows on a second GPU, as accelerate puts it there."""
    second = ("model.layers.1", "model.norm", "lm_head")
    for name in ("model.embed_tokens", "model.rotary_emb", "model.layers.0", *second):
        device = torch.device(f"{KIND}:{int(name in second)}")
        module = model.get_submodule(name).to(device)
        add_hook_to_module(module, AlignDevicesHook(execution_device=device))
    add_hook_to_module(
        model, AlignDevicesHook(execution_device=torch.device(f"{KIND}:0"), io_same_device=True), append=True
    )


def elsewhere(function, place: int = -1):
    """The function with its device left on the host."""

    def planted(*arguments):
        changed = list(arguments)
        changed[place] = torch.device("cpu")
        return function(*changed)

    return planted


BUGS = {
    "attention mask": (trees, "_additive", elsewhere(trees._additive), "score"),
    "token ids": (trees, "_padded", elsewhere(trees._padded), "score"),
    "mask of another type": (
        trees,
        "_additive",
        lambda seen, dtype, device, real=trees._additive: real(seen, torch.float64, device),
        "score",
    ),
    "dropout mask": (lora.BatchDropout, "_draw", elsewhere(lora.BatchDropout._draw), "train"),
    "generator": (
        lora.BatchPosition,
        "generator",
        lambda self, device, layer: torch.Generator("cpu"),
        "train",
    ),
    "training rows": (
        loop.MicroBatch,
        "of",
        lambda rows, padding, device, copies, real=loop.MicroBatch.of: real(rows, padding, torch.device("cpu"), copies),
        "train",
    ),
}


@pytest.mark.parametrize("bug", [None, *BUGS])
def test_a_planted_device_bug_is_seen(bug, tmp_path, monkeypatch):
    """Where the scorer tries a way before it uses it, a way that fails is not used."""
    if bug is not None:
        owner, name, planted, _ = BUGS[bug]
        monkeypatch.setattr(owner, name, staticmethod(planted) if name == "of" else planted)
    shape = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64} | SHAPE | {"num_hidden_layers": 1}
    config = rehearse.causal_config("m", shape)
    with pretended_gpus():
        lm = rehearse.pretend_model(config, "m", dtype="bfloat16", device=f"{KIND}:0", batch_size=4, max_length=None)
        work = "score" if bug is None else BUGS[bug][3]
        if bug is None or work == "score":
            every_way = {"rows", "packed", "cached"}
            assert (lm._probe() == every_way) == (bug is None)
        if bug is None:
            train(lm, tmp_path, ONCE)
        elif work == "train":
            lm._allowed = frozenset()
            with pytest.raises(RuntimeError):
                train(lm, tmp_path, ONCE)
