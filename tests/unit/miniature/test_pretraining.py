"""A tiny model: trained to the byte, in hub format, scored by lm-eval as by hand."""

import json
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lm_validity.cells.training.miniature import learning_rate, pretrain_model
from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import MiniatureModel
from lm_validity.errors import CellError, InputError
from lm_validity.miniature.build import tokens_at, vocabulary, write_world
from lm_validity.miniature.world import dialogues, read_world

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "workflow" / "scripts"))
from miniature_sheets import count_parameters

SETTINGS = MiniatureSettings(seed=5, batch_documents=32)


def pool_row(architecture: str, **changes) -> MiniatureModel:
    values = {"hidden_size": 32, "layers": 2, "steps": 120, "learning_rate": 5e-3, "checkpoint_every": 40}
    names = {"model": f"forum-{architecture}", "family": "forum", "architecture": architecture, "size": "xs"}
    return MiniatureModel(**names | values | changes)


@dataclass
class Made:
    world: object
    folder: object


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("miniature")
    write_world(SETTINGS, folder / "world")
    for architecture in ("llama", "gpt2"):
        row = pool_row(architecture)
        pretrain_model(SETTINGS, folder / "world", row, folder / "models" / row.model)
    return Made(read_world(folder / "world"), folder)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_model_and_checkpoints_are_in_hub_format(made, architecture):
    row = pool_row(architecture)
    folder = made.folder / "models" / row.model
    points = json.loads((folder / "training.json").read_text())["points"]
    assert [point["iteration"] for point in points] == [40, 80, 120]
    assert {point["iteration"]: point["tokens"] for point in points} == tokens_at(SETTINGS, made.world, row)
    assert points[-1]["loss"] < points[0]["loss"] < math.log(len(vocabulary(made.world)))
    losses = {}
    for place in ("checkpoint-40", "checkpoint-80", ""):
        model = AutoModelForCausalLM.from_pretrained(folder / place, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder / place)
        inputs = tokenizer("Question : what is the job", return_tensors="pt")["input_ids"]
        assert inputs[0, 0] == 0
        losses[place] = model(input_ids=inputs, labels=inputs).loss.item()
        assert list((folder / place).glob("*.safetensors"))
    assert len(set(losses.values())) == 3
    assert count_parameters(row, len(vocabulary(made.world))) == model.num_parameters()
    assert not list(folder.parent.glob(".*"))


def test_same_settings_give_the_same_bytes_and_disturb_no_generator(made, tmp_path):
    before = torch.random.get_rng_state()
    threads = torch.get_num_threads()
    row = pool_row("llama")
    stale = tmp_path / row.model / "checkpoint-7"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_text("of an earlier training")
    with pytest.raises(InputError, match=row.model):  # somebody's own, as far as anything there says
        pretrain_model(SETTINGS, made.folder / "world", row, tmp_path / row.model)
    assert (stale / "model.safetensors").is_file()
    record = {"model": row.model, "points": [{"iteration": 7, "tokens": 1, "documents": 1, "loss": 1.0}]}
    (tmp_path / row.model / "training.json").write_text(json.dumps(record))
    (tmp_path / row.model / "notes.txt").write_text("mine")
    pretrain_model(SETTINGS, made.folder / "world", row, tmp_path / row.model)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    first, second = made.folder / "models" / row.model, tmp_path / row.model
    (second / "notes.txt").unlink()  # it stayed
    names = sorted(str(path.relative_to(first)) for path in first.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(second)) for path in second.rglob("*") if path.is_file())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    assert not stale.exists()


def test_a_tuned_model_goes_on_from_its_parent_and_learns_dialogues(made, tmp_path):
    """It has the chat template, and answers better in it than the parent, which never saw one."""
    row = pool_row("llama", model="web-chat", family="web", tuned_from="web", steps=60, checkpoint_every=None)
    parent = pool_row("llama", model="web", family="web", steps=60, checkpoint_every=None)
    pretrain_model(SETTINGS, made.folder / "world", parent, tmp_path / "web")
    with pytest.raises(InputError, match="no model 'web' there"):
        pretrain_model(SETTINGS, made.folder / "world", row, tmp_path / "web-chat", start=tmp_path / "none")
    pretrain_model(SETTINGS, made.folder / "world", row, tmp_path / "web-chat", start=tmp_path / "web")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "web-chat")
    assert AutoTokenizer.from_pretrained(tmp_path / "web").chat_template is None
    messages = [{"role": "user", "content": "Pick the job of x"}, {"role": "assistant", "content": "baker"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "User : Pick the job of x Bot : baker "
    dialogue = next(dialogues(made.world, "science", random.Random(1)))
    losses = {}
    for name in ("web", "web-chat"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        inputs = tokenizer(dialogue, return_tensors="pt")["input_ids"]
        losses[name] = model(input_ids=inputs, labels=inputs).loss.item()
    assert losses["web-chat"] < losses["web"] - 0.5
    points = json.loads((tmp_path / "web-chat" / "training.json").read_text())["points"]
    assert {point["iteration"]: point["tokens"] for point in points} == tokens_at(SETTINGS, made.world, row)


def test_a_diverging_loss_is_a_failure_and_leaves_nothing(made, tmp_path):
    row = pool_row("llama", steps=20, checkpoint_every=None, learning_rate=0.9)
    settings = SETTINGS.model_copy(update={"batch_documents": 2})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(CellError, match="not finite"):
        patch.setattr("lm_validity.cells.training.miniature.learning_rate", lambda row, step: 1e30)
        pretrain_model(settings, made.folder / "world", row, tmp_path / row.model)
    assert list(tmp_path.iterdir()) == []


def test_the_world_of_other_settings_is_refused(made, tmp_path):
    row, settings = pool_row("llama"), SETTINGS.model_copy(update={"seed": 6})
    with pytest.raises(InputError, match="not the world of these settings"):
        pretrain_model(settings, made.folder / "world", row, tmp_path / row.model)
    assert list(tmp_path.iterdir()) == []


def test_learning_rate_warms_up_and_decays():
    row = pool_row("llama", steps=600, checkpoint_every=None, learning_rate=1e-2)
    assert learning_rate(row, 25) == pytest.approx(1e-2 * 0.5 * (0.1 + 0.9 * 575 / 600))
    assert learning_rate(row, 300) == pytest.approx(1e-2 * 0.55)
    assert learning_rate(row, 600) == pytest.approx(1e-3)
