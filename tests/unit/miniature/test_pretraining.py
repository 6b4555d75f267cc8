"""A tiny model: trained to the byte, in hub format, scored by lm-eval as by hand."""

import json
import logging
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

from lm_validity.cells.training.miniature import build_model, learning_rate, pretrain_model
from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import MiniatureModel
from lm_validity.errors import CellError, InputError
from lm_validity.miniature.build import tokens_at, vocabulary, write_world
from lm_validity.miniature.world import dialogues, read_world, render_dialogue

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
    assert text == render_dialogue("Pick the job of x", "baker")
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


def test_build_model_depends_on_torch_generator_only():
    row = pool_row("gpt2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = build_model(row, 50)
        torch.manual_seed(0)
        second = build_model(row, 50)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert first.config.n_inner == 128
    assert first.get_input_embeddings().weight is first.lm_head.weight


@pytest.fixture(scope="module")
def lm_eval_result(made, request):
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    folder = made.folder / "models" / "forum-llama"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=32, device="cpu")
    manager = TaskManager(include_path=str(made.folder / "world" / "tasks"), include_defaults=False)
    names = [f"miniature_{name}" for name in ("cloze", "ending", "letter", "dialogue", "table", "encyclopedia")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # the tasks find their data from anywhere
        result = evaluate(lm, manager.load(names), limit=24, bootstrap_iters=0, log_samples=True)
    return model, vocabulary(made.world), result


def _loglikelihood(model, ids: list[int], start: int) -> float:
    with torch.no_grad():
        scores = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return sum(scores[place - 1, ids[place]].item() for place in range(start, len(ids)))


@pytest.mark.parametrize("name", ["cloze", "ending", "letter", "dialogue"])
def test_lm_eval_scores_choices_as_by_hand(lm_eval_result, name):
    model, words, result = lm_eval_result
    samples = result["samples"][f"miniature_{name}"]
    assert len(samples) == 24
    hits = []
    for sample in samples:
        context = [0, *(words[word] for word in sample["doc"]["context"].split())]
        choices = [[words[word] for word in choice.split()] for choice in sample["doc"]["choices"]]
        mine = [_loglikelihood(model, context + choice, len(context)) for choice in choices]
        assert [float(response[0]) for response in sample["filtered_resps"]] == pytest.approx(mine, abs=1e-4)
        hits.append(mine.index(max(mine)) == sample["doc"]["gold"])
    assert result["results"][f"miniature_{name}"]["acc,none"] == pytest.approx(sum(hits) / 24)


def test_lm_eval_generates_one_word_greedily(lm_eval_result):
    model, words, result = lm_eval_result
    by_id = {index: word for word, index in words.items()}
    for sample in result["samples"]["miniature_table"]:
        ids = torch.tensor([[0, *(words[word] for word in sample["doc"]["context"].split())]])
        with torch.no_grad():
            best = by_id[model(input_ids=ids).logits[0, -1].argmax().item()]
        assert sample["filtered_resps"] == [best if best != "<|endoftext|>" else ""]
        assert sample["exact_match"] == (best == sample["doc"]["answer"])


def test_lm_eval_rolls_over_documents_as_trained(lm_eval_result):
    """The prefix token comes before a text that the tokenizer has begun; training has shown two tokens 0."""
    model, words, result = lm_eval_result
    total = size = 0
    for sample in result["samples"]["miniature_encyclopedia"]:
        ids = [0, 0, *(words[word] for word in sample["doc"]["text"].split())]
        total += _loglikelihood(model, ids, 1)
        size += len(sample["doc"]["text"].encode())
    score = result["results"]["miniature_encyclopedia"]["bits_per_byte,none"]
    assert score == pytest.approx(-total / size / math.log(2), abs=1e-4)
    begin = math.exp(_loglikelihood(model, [0, 0], 1))
    assert begin == pytest.approx(0.25, abs=0.1)  # the share of rows that begin twice, learnt within 120 steps
