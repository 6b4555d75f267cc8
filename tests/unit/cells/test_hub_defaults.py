"""Dates and generation settings that come with a model's files: neither changes a prompt or an answer."""

import datetime
import json
from types import SimpleNamespace

import pytest
import transformers
import transformers.utils.chat_template_utils as rendering
from toy_run import start_run
from toy_world import load_toy, toy_model

QUESTION = [{"role": "user", "content": "red"}]
# Llama 3.2's way, and Granite's
BY_VARIABLE = "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
DATED = [BY_VARIABLE + "<{{ date_string }}>{{ messages[0].content }}", "{{ strftime_now('%B %d, %Y') }} {{ messages }}"]


class OtherDay(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2031, 5, 6)


@pytest.mark.parametrize("template", DATED)
def test_a_template_prints_the_same_date_every_day(llama, template, tmp_path, monkeypatch):
    llama.tokenizer.chat_template = template
    llama.tokenizer.save_pretrained(tmp_path)
    llama.base.save_pretrained(tmp_path)
    dated = load_toy(tmp_path)
    today = dated.apply_chat_template(QUESTION)
    assert "2024" in today and "26" in today
    monkeypatch.setattr(rendering, "datetime", OtherDay)
    assert dated.apply_chat_template(QUESTION) == today
    assert "2031" in dated.tokenizer.apply_chat_template(QUESTION, tokenize=False), "the template does ask for the day"


def test_a_template_with_a_date_of_its_own_is_given_ours(llama, tmp_path):
    llama.tokenizer.chat_template = "<{{ date_string | default('1 Jan 2000') }}>{{ messages[0].content }}"
    llama.tokenizer.save_pretrained(tmp_path)
    llama.base.save_pretrained(tmp_path)
    assert load_toy(tmp_path).apply_chat_template(QUESTION) == "<26 Jul 2024>red"


def answers(folder) -> list[str]:
    options = {"until": ["</s>"], "max_gen_toks": 12}
    return load_toy(folder).generate_until([SimpleNamespace(args=(word, options)) for word in ("red", "blue", "a")])


@pytest.mark.parametrize("setting", [{"repetition_penalty": 1.8}, {"max_new_tokens": 2}, {"no_repeat_ngram_size": 1}])
def test_a_hubs_generation_settings_change_no_answer(tmp_path, setting):
    folder = toy_model("llama", tmp_path)
    plain = answers(folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    ((name, value),) = setting.items()
    assert getattr(transformers.GenerationConfig.from_pretrained(folder), name) == value
    assert answers(folder) == plain and len(set(plain)) > 1


def test_end_tokens_of_the_hubs_settings_are_kept(tmp_path):
    """Llama 3 Instruct ends an answer with another token than a document."""
    folder = toy_model("llama", tmp_path)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [1, 7]}))
    assert load_toy(folder).base.generation_config.eos_token_id == [1, 7]


@pytest.mark.parametrize(
    ("device", "gpu", "said"), [("auto", 1, True), ("cuda:0", 1, True), ("cpu", 1, False), ("auto", 0, False)]
)
def test_recipes_of_fine_tunes_on_a_gpu_name_how_masks_are_drawn(tmp_path, monkeypatch, device, gpu, said):
    monkeypatch.chdir(tmp_path)
    sizes = {"small": {"gpu": gpu}}
    workspace = start_run(tmp_path, evaluation={"device": device}, size_classes=sizes)
    cells = {job.rule: cell for job in workspace.grid.jobs.values() for cell in job.cells}
    assert ("dropout_masks" in workspace.recipe(cells["finetune_adapter"])) == said
    assert "dropout_masks" not in workspace.recipe(cells["evaluate_model"])
