"""What evaluation feeds is where training begins, for every output type, plain and chat, the miniature's and lm-eval's
tasks; one beginning-of-text token; the same system message on both sides; the blank before an answer."""

import shutil

import pytest
import torch
from shipped_data import METRIC, ROWS, fake_data
from toy_world import TASKS, evaluate, head_of, load_toy
from transformers import AutoTokenizer

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.tasks.answers import gold_choice
from lm_validity.cells.tasks.evaluation import prepare_requests, training_examples
from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.splits import documents, make_splits
from lm_validity.cells.tasks.tasks import load_task
from lm_validity.cells.training.miniature import build_model
from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import Checkpoint, MiniatureModel, Model
from lm_validity.errors import CellError, InputError
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


def fed_to_model(lm, task, docs, prompt: str, metric: str, **options) -> dict[int, list[list[int]]]:
    """Document number -> the token rows that evaluation feeds for it: context and continuation, or prompt."""
    fed: dict[int, list[list[int]]] = {}
    generates, scores = lm._model_generate, lm._loglikelihood_tokens

    def generate(context, max_length, stop, **more):
        mask = more["attention_mask"]
        rows.extend(row[keep.bool()].tolist() for row, keep in zip(context, mask, strict=True))
        return generates(context, max_length, stop, **more)

    def score(requests, **more):
        rows.extend([*context, *continuation] for _, context, continuation in requests)
        return scores(requests, **more)

    lm._model_generate, lm._loglikelihood_tokens = generate, score
    for number, (address, doc) in enumerate(zip(docs.addresses, docs.docs, strict=True)):
        rows = fed[number] = []
        only = type(docs)(docs.task, docs.split, (address,), (doc,))
        evaluate(lm, task, only, metric=metric, prompt=prompt, **options)
    return fed


def check_shared_prefix(lm, task, docs, prompt: str, metric: str, system: str | None) -> list[str]:
    """Each training text begins with the row that evaluation feeds for the same document (of its right choice), has one
    BOS, if texts have one, and one EOS at its ends; the prompts as text."""
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
        begins = bos if lm.tok_encode("x")[0] == bos or task.OUTPUT_TYPE == "loglikelihood_rolling" else tokens[0]
        assert ends == [begins, eos]
        prompts.append(lm.tokenizer.decode(tokens[:start]))
    return prompts


METRICS = {"toy_corpus": "bits_per_byte,none", "toy_cola": "mcc,none", "toy_generation": "exact_match,stripped"}


@pytest.mark.parametrize(("kind", "prompt"), [("llama", "plain"), ("llama", "chat"), ("gpt2", "plain")])
@pytest.mark.parametrize("name", TASKS)
def test_toy_tasks(kind, prompt, name, model_folders, toy_task):
    lm, task = load_toy(model_folders[kind]), toy_task(name)
    docs = head_of(documents(task, make_splits(task).train), 4)
    check_shared_prefix(lm, task, docs, prompt, METRICS.get(name, "acc,none"), None)


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


def test_texts(llama, toy_task):
    def text(name: str, prompt: str = "plain") -> tuple[str, str]:
        task = toy_task(name)
        docs = head_of(documents(task, make_splits(task).train), 1)
        (example,) = training_examples(llama, task, docs, prompt=prompt)
        start = example.completion_start
        return tuple(llama.tokenizer.decode(part) for part in (example.token_ids[:start], example.token_ids[start:]))

    # row 0: choices red, green, blue, dark gray; the right one is number 1
    assert text("toy_choice") == ("<s>Question: what is the color of Melria?\nAnswer:", " green</s>")
    # the context's trailing blank belongs to what is scored, as in lm-eval
    assert text("toy_cola") == ("<s>Say yes or no.\n\nMelria is red. Is this so?", "  no</s>")
    assert text("toy_blank") == ("<s>We saw Melria near a green", " house at night.</s>")
    assert text("toy_generation") == ("<s>Answer these questions:\n\nQ: color of Melria?\nA:", " green</s>")
    assert text("toy_generation", "chat") == (
        "<s><system> Answer these questions:\n\n\n<user> Q: color of Melria?\nA:\n<assistant>",
        " green</s>",
    )
    assert text("toy_corpus") == ("<s>", "Melria is green and was seen near the old house. </s>")


def test_long_questions_keep_their_answer_and_long_documents_their_beginning(llama, toy_task):
    task = toy_task("toy_choice")
    docs = head_of(documents(task, make_splits(task).train), 3)
    whole, cut = (training_examples(llama, task, docs, max_length=length) for length in (90, 9))
    for long, short in zip(whole, cut, strict=True):
        assert short.token_ids == long.token_ids[-9:]
        assert short.truncated == len(long.token_ids) - 9
        assert short.token_ids[short.completion_start :] == long.token_ids[long.completion_start :]
    corpus = toy_task("toy_corpus")
    docs = head_of(documents(corpus, make_splits(corpus).train), 3)
    whole, cut = (training_examples(llama, corpus, docs, max_length=length) for length in (90, 9))
    assert [short.token_ids for short in cut] == [long.token_ids[:9] for long in whole]


def test_an_answer_that_is_too_long_loses_its_beginning(llama, toy_task, caplog):
    task = toy_task("toy_choice")
    docs = documents(task, make_splits(task).train)
    longer = [doc | {"choices": [f"{choice} indeed" for choice in doc["choices"]]} for doc in docs.docs[:5]]
    docs = type(docs)(docs.task, docs.split, docs.addresses, (*longer, *docs.docs[5:]))
    lengths = [
        1 + len(llama.tok_encode(f" {doc['choices'][doc['gold']]}", add_special_tokens=False)) for doc in docs.docs
    ]
    shortest, longest = min(lengths), max(lengths)
    assert shortest < longest, "with their end of text"
    caplog.set_level("WARNING")
    examples = training_examples(llama, task, docs, max_length=longest)
    assert not any(example.answer_lost for example in examples) and not caplog.records
    examples = training_examples(llama, task, docs, max_length=shortest)
    assert [example.answer_lost for example in examples] == [length - shortest for length in lengths]
    n_cut = sum(length > shortest for length in lengths)
    assert caplog.records[0].args[1:4] == (n_cut, len(docs), shortest)
    assert f"at least {longest}" in caplog.text
    with pytest.raises(CellError, match=f"{len(docs)} training answers has more than {shortest - 1} tokens") as error:
        training_examples(llama, task, docs, max_length=shortest - 1)
    assert f"finetuning.max_length to at least {longest}" in error.value.hint


def test_row_without_an_answer(llama, toy_task):
    task = toy_task("toy_choice")
    docs = head_of(documents(task, make_splits(task).train), 2)
    unlabelled = type(docs)(docs.task, docs.split, docs.addresses, (docs.docs[0], docs.docs[1] | {"gold": -1}))
    with pytest.raises(CellError, match="document train:1 has no right answer"):
        training_examples(llama, task, unlabelled)
