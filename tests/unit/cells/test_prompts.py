"""What evaluation feeds is where training begins, for every output type, plain and chat, the miniature's and lm-eval's
tasks; one beginning-of-text token; the same system message on both sides; the blank before an answer."""

import shutil

import pytest
import torch
from shipped_data import METRIC, ROWS, fake_data
from test_training_text import fed_to_model
from toy_world import head_of, load_toy
from transformers import AutoTokenizer

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.tasks.answers import gold_choice
from lm_validity.cells.tasks.evaluation import prepare_requests, training_examples
from lm_validity.cells.tasks.splits import documents, make_splits
from lm_validity.cells.tasks.tasks import find_task, load_task
from lm_validity.cells.training.miniature import build_model
from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import Checkpoint, MiniatureModel, Model
from lm_validity.errors import InputError
from lm_validity.miniature.build import BENCHMARKS, vocabulary, write_world
from lm_validity.miniature.world import read_world

SYSTEM = "You are helpful ."
# what an instruction-tuned model's template may look like: prints BOS or not, a blank before the answer or not
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %} {{ m['content'] }}</s>"
    "{% else %}[INST] {{ m['content'] }} [/INST]{% endif %}{% endfor %}"
)
TURNS = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<turn>{{ m['role'] }}\n{{ m['content'] }}<end>\n{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}"
)


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    """A world's folder, and an untrained model with each of its tokenizers."""
    folder = tmp_path_factory.mktemp("world")
    write_world(MiniatureSettings(), folder)
    size = len(vocabulary(read_world(folder)))
    values = {"architecture": "llama", "size": "xs", "hidden_size": 16, "layers": 1, "steps": 1, "learning_rate": 1e-3}
    row = MiniatureModel(model="untrained", family="web", **values)
    models = {}
    for prompt, name in (("plain", "tokenizer"), ("chat", "tokenizer_chat")):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build_model(row, size).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder / name)
        models[prompt] = LanguageModel(model, tokenizer, model_id=prompt, eval_batch_size=8)
    return folder, models


def check_shared_prefix(lm, task, docs, prompt: str, metric: str, system: str | None) -> list[str]:
    """Each training text begins with the row that evaluation feeds for the same document (of its right choice), has one
    BOS and one EOS at its ends; the prompts as text."""
    prompts = []
    examples = training_examples(lm, task, docs, prompt=prompt, system_instruction=system)
    fed = fed_to_model(lm, task, docs, prompt, metric=metric, system_instruction=system)
    bos, eos = lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id
    for number, (doc, example) in enumerate(zip(docs.docs, examples, strict=True)):
        tokens, rows = list(example.token_ids), fed[number]
        row = rows[gold_choice(task, doc)] if task.OUTPUT_TYPE == "multiple_choice" else rows[0]
        start = example.completion_start
        assert tokens[: len(row)] == row
        if task.OUTPUT_TYPE == "generate_until":
            assert len(row) == start, "all of the prompt, and nothing of the answer"
        else:
            assert tokens == [*row, eos]
            if (
                task.OUTPUT_TYPE == "multiple_choice" and not task.multiple_input
            ):  # what follows is without the question
                rows = rows[: len(task.doc_to_choice(doc))]
                assert all(other[:start] == tokens[:start] for other in rows)
        ends = [tokens[0], *(token for token in tokens[1:-1] if token in (bos, eos)), tokens[-1]]
        assert ends == [bos, eos]
        prompts.append(lm.tokenizer.decode(tokens[:start]))
    return prompts


@pytest.mark.parametrize("prompt", ["plain", "chat"])
@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_miniature_tasks(benchmark, prompt, miniature):
    folder, models = miniature
    task = load_task(find_task(benchmark.task, folder / "tasks"))
    docs = head_of(documents(task, make_splits(task).train), 4)
    system = "the" if prompt == "chat" else None  # a word of the miniature's language
    texts = check_shared_prefix(models[prompt], task, docs, prompt, benchmark.metric, system)
    assert not any("unknown" in text for text in texts)
    if prompt == "chat" and task.OUTPUT_TYPE != "loglikelihood_rolling":
        assert all(text.split()[:4] == ["<|endoftext|>", "the", "User", ":"] for text in texts)
        assert all(text.endswith("Bot :") for text in texts)


@pytest.mark.parametrize("prompt", ["plain", "chat"])
@pytest.mark.parametrize("name", ROWS)
def test_tasks_of_lm_eval(name, prompt, model_folders, monkeypatch):
    """The toy template prints BOS and its tokenizer adds one."""
    load = fake_data(monkeypatch)
    lm, task = load_toy(model_folders["llama"], max_length=96, max_generated_tokens=8), load(name)
    assert lm.tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False).startswith("<s>")
    assert lm.tokenizer.encode("x")[0] == 0
    docs = head_of(documents(task, make_splits(task).train), 3)
    metric = METRIC.get(name, "acc,none")
    texts = check_shared_prefix(lm, task, docs, prompt, metric, SYSTEM)
    assert all((SYSTEM in text) == (prompt == "chat") for text in texts)
    description = getattr(task.config, "description", None)
    assert all(description.strip() in text for text in texts) if description else True


@pytest.mark.parametrize(
    ("template", "start", "rendered"),
    [
        (INST, " ", "<s>[INST] Question: what is the color of Melria?\nAnswer: [/INST] green</s>"),
        (TURNS, "", "<s><turn>user\nQuestion: what is the color of Melria?\nAnswer:<end>\n<turn>model\ngreen</s>"),
    ],
)
def test_the_blank_before_an_answer_is_the_templates(template, start, rendered, model_folders, toy_task):
    lm = load_toy(model_folders["llama"])
    lm.tokenizer.chat_template = template
    lm = LanguageModel(lm.base, lm.tokenizer, model_id="m", eval_batch_size=8)
    assert lm.answer_start == start
    task = toy_task("toy_choice")
    docs = head_of(documents(task, make_splits(task).train), 1)
    # a template that refuses the system message leaves it out on both sides
    system = SYSTEM if template == TURNS else None
    check_shared_prefix(lm, task, docs, "chat", "acc,none", system)
    (example,) = training_examples(lm, task, docs, prompt="chat", system_instruction=system)
    assert lm.tokenizer.decode(example.token_ids) == rendered
    lm.answer_start = ""  # as lm-eval does
    ((choice, *_),) = prepare_requests(lm, task, docs, prompt="chat").requests
    assert choice.args[1] == "red"


@pytest.mark.parametrize("name", ["toy_generation", "toy_cola"])
def test_description_and_system_message_are_in_both(name, model_folders, toy_task):
    lm, task = load_toy(model_folders["llama"]), toy_task(name)
    docs = head_of(documents(task, make_splits(task).train), 2)
    metric = {"toy_generation": "exact_match,stripped", "toy_cola": "mcc,none"}[name]
    texts = check_shared_prefix(lm, task, docs, "chat", metric, SYSTEM)
    assert all(f"<system> {SYSTEM}" in text and task.config.description.strip() in text for text in texts)


@pytest.mark.parametrize("refusal", ["{{ raise_exception('System role not supported') }}", ""])
def test_a_system_message_that_a_template_does_not_print_is_said(refusal, model_folders, toy_task, caplog):
    """A template that refuses the role, and one that skips it; without a system message both are used."""
    lm, task = load_toy(model_folders["llama"]), toy_task("toy_generation")
    docs = head_of(documents(task, make_splits(task).train), 1)
    lm.tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}" + refusal + "{% else %}{{ m['content'] }}{% endif %}"
        "{% endfor %}"
    )
    prepare_requests(lm, task, docs, prompt="chat", system_instruction=SYSTEM)
    assert "prints no system message; prompts lack system_instruction" in caplog.text
    caplog.clear()
    lm.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    prepare_requests(lm, task, docs, prompt="chat", system_instruction=SYSTEM)
    assert "system message" not in caplog.text


def test_a_tokenizer_without_a_template_is_named_when_the_model_is_fetched(model_folders):
    tuned = Model(model="m", path=str(model_folders["gpt2"]), instruction_tuned=True)
    with pytest.raises(
        InputError, match=r"'m': instruction-tuned, but its tokenizer has no chat template.*add chat_temp"
    ):
        prefetch_model(tuned)
    assert not prefetch_model(tuned, chat=False)["chat_template"]
    assert prefetch_model(Model(model="m", path=str(model_folders["llama"]), instruction_tuned=True))["chat_template"]


def test_the_template_is_that_of_the_tokenizer_that_is_loaded(model_folders, tmp_path):
    """A checkpoint's own tokenizer goes before the model's, as when it is loaded."""
    bare, own = tmp_path / "bare", tmp_path / "own"
    for root, of_root, of_point in ((bare, "llama", "gpt2"), (own, "gpt2", "llama")):
        shutil.copytree(model_folders[of_root], root)
        shutil.copytree(model_folders[of_point], root / "last")
    checkpoints = (Checkpoint(checkpoint="final", subfolder="last"),)
    with pytest.raises(InputError, match="no chat template"):
        prefetch_model(Model(model="m", path=str(bare), instruction_tuned=True, checkpoints=checkpoints))
    assert prefetch_model(Model(model="m", path=str(own), instruction_tuned=True, checkpoints=checkpoints))[
        "chat_template"
    ]
