"""Dates and generation settings that come with a model's files: neither changes a prompt or an answer."""

import datetime
import json
from types import SimpleNamespace

import pytest
import transformers
import transformers.utils.chat_template_utils as rendering
from toy_run import start_run
from toy_world import load_toy, toy_model

from lm_validity.cells.models.chat import read_chat_template
from lm_validity.cells.models.prefetch import (
    adapts_otherwise,
    ignored_generation_settings,
    prefetch_model,
)
from lm_validity.config.sheets import Model

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


def test_the_record_says_what_applies_and_only_then(tmp_path):
    folder = toy_model("llama", tmp_path / "m")
    row = Model(model="m", path=str(folder))
    record = prefetch_model(row)
    assert "chat_date" not in record and "ignored_generation_settings" not in record
    assert ignored_generation_settings(folder) == []
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"repetition_penalty": 1.1, "temperature": 0.7}))
    (folder / "chat_template.jinja").write_text(DATED[0])
    assert read_chat_template(folder) == DATED[0]
    record = prefetch_model(row)
    assert record["chat_date"] == "2024-07-26"
    assert record["ignored_generation_settings"] == ["repetition_penalty"]


def test_recipes_say_so_where_numbers_change(tmp_path, monkeypatch):
    """The chat cells of a model whose template prints a date, and its generated ones; no others."""
    monkeypatch.chdir(tmp_path)
    workspace = start_run(tmp_path)
    cell = next(cell for job in workspace.grid.jobs.values() for cell in job.cells if job.rule == "evaluate_model")
    plain = workspace.recipe(cell)
    workspace.model_record(cell.model).update(
        chat_date="2024-07-26", ignored_generation_settings=["repetition_penalty"]
    )
    assert workspace.recipe(cell) == plain, "plain prompt, choices"
    trained = next(cell for job in workspace.grid.jobs.values() for cell in job.cells if job.rule == "finetune_adapter")
    before = workspace.recipe(trained)
    workspace.model_record(cell.model)["all_linear"] = "what a text goes through"
    assert workspace.recipe(trained) == before | {"all_linear": "what a text goes through"}
    chat = workspace.recipe(cell._replace(prompt="chat"))
    assert chat["chat_date"] == "2024-07-26" and "ignored_generation_settings" not in chat


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


@pytest.mark.parametrize(
    ("configuration", "otherwise"),
    [
        ({"model_type": "llama"}, False),
        ({"model_type": "qwen3", "num_experts": None}, False),
        ({"model_type": "mixtral", "num_local_experts": 8}, True),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {}}, True),
        ({"model_type": "llama4", "text_config": {"num_local_experts": 16}}, True),
        ({"model_type": "falcon_mamba"}, True),
    ],
)
def test_which_models_all_linear_means_more_or_less_for(configuration, otherwise):
    assert adapts_otherwise(configuration) == otherwise
