"""Tiny models: trained to the byte, in hub format; and the classification tasks of the bias study's part."""

import json
import math
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from lm_validity.cells.training.miniature import learning_rate, pretrain_model
from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import MiniatureModel
from lm_validity.errors import CellError, InputError
from lm_validity.miniature.build import TASKS, TEXTS, tokens_at, vocabulary, write_world
from lm_validity.miniature.world import dialogues, make_world

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "workflow" / "scripts"))
from miniature_sheets import count_parameters

SETTINGS = MiniatureSettings(seed=5, batch_documents=32)
WORLD = make_world(SETTINGS)


def pool_row(architecture: str, **changes) -> MiniatureModel:
    values = {"hidden_size": 32, "layers": 2, "steps": 120, "learning_rate": 5e-3, "checkpoint_every": 40}
    names = {"model": f"forum-{architecture}", "family": "forum", "architecture": architecture, "size": "xs"}
    return MiniatureModel(**names | values | changes)


ROWS = {name: pool_row(name) for name in ("llama", "gpt2")}
ROWS["bert"] = pool_row("bert", steps=100, studies="bias", checkpoint_every=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The world, and the models of `ROWS`."""
    folder = tmp_path_factory.mktemp("miniature")
    write_world(SETTINGS, folder / "world")
    for row in ROWS.values():
        pretrain_model(SETTINGS, folder / "world", row, folder / "models" / row.model)
    return folder


def points_of(folder) -> list[dict]:
    return json.loads((folder / "training.json").read_text())["points"]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_model_and_checkpoints_are_in_hub_format(folder, architecture):
    row, trained = ROWS[architecture], folder / "models" / ROWS[architecture].model
    points, losses = points_of(trained), {}
    assert [point["iteration"] for point in points] == [40, 80, 120]
    assert {point["iteration"]: point["tokens"] for point in points} == tokens_at(SETTINGS, WORLD, row)
    assert points[-1]["loss"] < points[0]["loss"] < math.log(len(vocabulary(WORLD)))
    for place in ("checkpoint-40", "checkpoint-80", ""):
        model = AutoModelForCausalLM.from_pretrained(trained / place, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(trained / place)
        inputs = tokenizer("Question : what is the job", return_tensors="pt")["input_ids"]
        assert inputs[0, 0] == 0 and list((trained / place).glob("*.safetensors"))
        losses[place] = model(input_ids=inputs, labels=inputs).loss.item()
    assert len(set(losses.values())) == 3
    assert count_parameters(row, len(vocabulary(WORLD))) == model.num_parameters()
    assert not list(trained.parent.glob(".*"))


def test_a_bert_is_in_hub_format(folder):
    trained = folder / "models" / "forum-bert"
    tokenizer = AutoTokenizer.from_pretrained(trained)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("the boats near the road")["input_ids"])
    assert tokens == ["[CLS]", "the", "boats", "near", "the", "road", "[SEP]"]
    model = AutoModelForMaskedLM.from_pretrained(trained, dtype=torch.float32)
    assert points_of(trained)[-1]["loss"] < 0.8 * math.log(model.config.vocab_size)
    # the pooler that hub BERTs bring is there
    found = AutoModelForSequenceClassification.from_pretrained(trained, output_loading_info=True)[1]
    assert set(found["missing_keys"]) == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("architecture", ["llama", "bert"])
def test_same_settings_give_the_same_bytes_and_disturb_no_generator(folder, tmp_path, architecture):
    before, threads, row = torch.random.get_rng_state(), torch.get_num_threads(), ROWS[architecture]
    first, second = folder / "models" / row.model, tmp_path / row.model
    stale = second / "checkpoint-7" / "model.safetensors"
    stale.parent.mkdir(parents=True)
    stale.write_text("of an earlier training")
    with pytest.raises(InputError, match=row.model):  # somebody's own, as far as anything there says
        pretrain_model(SETTINGS, folder / "world", row, second)
    assert stale.is_file()
    record = {"model": row.model, "points": [{"iteration": 7, "tokens": 1, "documents": 1, "loss": 1.0}]}
    (second / "training.json").write_text(json.dumps(record))
    (second / "notes.txt").write_text("mine")
    pretrain_model(SETTINGS, folder / "world", row, second)
    assert torch.equal(before, torch.random.get_rng_state()) and torch.get_num_threads() == threads
    (second / "notes.txt").unlink()  # it stayed
    one, two = ({path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}
                for top in (first, second))  # fmt: skip
    assert one == two and not stale.parent.exists()


def test_a_tuned_model_goes_on_from_its_parent_and_learns_dialogues(folder, tmp_path):
    """It has the chat template, and answers better in it than the parent, which never saw one."""
    row = pool_row("llama", model="web-chat", family="web", tuned_from="web", steps=60, checkpoint_every=None)
    parent = pool_row("llama", model="web", family="web", steps=60, checkpoint_every=None)
    pretrain_model(SETTINGS, folder / "world", parent, tmp_path / "web")
    with pytest.raises(InputError, match="no model 'web' there"):
        pretrain_model(SETTINGS, folder / "world", row, tmp_path / "web-chat", start=tmp_path / "none")
    pretrain_model(SETTINGS, folder / "world", row, tmp_path / "web-chat", start=tmp_path / "web")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "web-chat")
    assert AutoTokenizer.from_pretrained(tmp_path / "web").chat_template is None
    messages = [{"role": "user", "content": "Pick the job of x"}, {"role": "assistant", "content": "baker"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "User : Pick the job of x Bot : baker "
    inputs = tokenizer(next(dialogues(WORLD, "science", random.Random(1))), return_tensors="pt")["input_ids"]
    load = AutoModelForCausalLM.from_pretrained
    models = (load(tmp_path / name, dtype=torch.float32) for name in ("web", "web-chat"))
    before, after = (model(input_ids=inputs, labels=inputs).loss.item() for model in models)
    assert after < before - 0.5
    found = {point["iteration"]: point["tokens"] for point in points_of(tmp_path / "web-chat")}
    assert found == tokens_at(SETTINGS, WORLD, row)


@pytest.mark.parametrize(
    ("settings", "error", "problem"),
    [({"batch_documents": 2}, CellError, "not finite"), ({"seed": 6}, InputError, "not the world of these settings")],
)
def test_what_cannot_be_trained_leaves_nothing(folder, tmp_path, monkeypatch, settings, error, problem):
    row = pool_row("llama", steps=20, checkpoint_every=None, learning_rate=0.9)
    monkeypatch.setattr("lm_validity.cells.training.miniature.learning_rate", lambda row, step: 1e30)
    with pytest.raises(error, match=problem):
        pretrain_model(SETTINGS.model_copy(update=settings), folder / "world", row, tmp_path / row.model)
    assert list(tmp_path.iterdir()) == []


def test_learning_rate_warms_up_and_decays():
    row = pool_row("llama", steps=600, checkpoint_every=None, learning_rate=1e-2)
    expected = {25: 1e-2 * 0.5 * (0.1 + 0.9 * 575 / 600), 300: 1e-2 * 0.55, 600: 1e-3}
    assert {step: learning_rate(row, step) for step in expected} == pytest.approx(expected)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_classification_tasks_are_balanced_distinct_and_in_the_worlds_words(folder, task):
    assert len(TASKS) >= 4
    lines = (folder / "world" / "classification" / f"{task.name}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows == task.rows(WORLD) and len({row["text"] for row in rows}) == len(rows) == TEXTS
    counts = Counter(row["label"] for row in rows)
    assert set(counts) == set(range(len(task.class_names))) and len(set(counts.values())) == 1
    for tokenizer in (AutoTokenizer.from_pretrained(folder / "world" / f"tokenizer{kind}") for kind in ("", "_masked")):
        for text in [*task.class_names, *(row["text"] for row in rows)]:
            assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"], text
    # no word gives a class away: each of a class's words occurs in another class too, or is one of many
    for label in counts:
        own = Counter(word for row in rows if row["label"] == label for word in set(row["text"].split()))
        elsewhere = {word for row in rows if row["label"] != label for word in row["text"].split()}
        assert max((own[word] for word in set(own) - elsewhere), default=0) < 0.1 * counts[label]
