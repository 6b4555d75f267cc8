"""Prompts as the model is given them: plain, in chat templates, in other wordings."""

import shutil
from pathlib import Path

import pytest
from lm_eval.api.metrics import stderr_for_metric
from shipped_data import COMPLETION, METRIC, ROWS, fake_data
from toy_run import merged, record_benchmark, run_all, write_sheet
from toy_world import TASKS, evaluate, load_toy, split_documents, toy_rows, write_toy_tasks
from transformers import AutoTokenizer

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.tasks import evaluation
from lm_validity.cells.tasks.answers import gold_choice
from lm_validity.cells.tasks.evaluation import prepare_requests, training_examples
from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.splits import make_splits
from lm_validity.cells.tasks.tasks import fetch_documents, load_task
from lm_validity.cells.training.miniature import build_model
from lm_validity.config.load import build_run
from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import Checkpoint, MiniatureModel, Model
from lm_validity.errors import CellError, InputError
from lm_validity.files import read_json
from lm_validity.miniature import build
from lm_validity.miniature.build import BENCHMARKS, vocabulary, write_world
from lm_validity.miniature.world import read_world
from lm_validity.run.workspace import Workspace
from lm_validity.tables.schema import read_benchmark_facts

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
        tokenizer = AutoTokenizer.from_pretrained(folder / name)
        models[prompt] = LanguageModel(build_model(row, size).eval(), tokenizer, model_id=prompt, eval_batch_size=8)
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
    lm.system_instruction = system
    examples = training_examples(lm, task, docs, prompt=prompt)
    fed = fed_to_model(lm, task, docs, prompt, metric=metric)
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
            if task.OUTPUT_TYPE == "multiple_choice" and not task.multiple_input:
                rows = rows[: len(task.doc_to_choice(doc))]  # what follows is without the question
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
    docs = split_documents(task, number=4)
    check_shared_prefix(lm, task, docs, prompt, METRICS.get(name, "acc,none"), None)


@pytest.mark.parametrize("prompt", ["plain", "chat"])
@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_miniature_tasks(benchmark, prompt, miniature):
    folder, models = miniature
    task = load_task(find_task(benchmark.task, folder / "tasks"))
    docs = split_documents(task, number=4)
    system = "the" if prompt == "chat" else None  # a word of the miniature's language
    metric = f"{build.METRICS[benchmark.output_type][0]},none"
    texts = check_shared_prefix(models[prompt], task, docs, prompt, metric, system)
    assert not any("unknown" in text for text in texts)
    if prompt == "chat" and task.OUTPUT_TYPE != "loglikelihood_rolling":
        assert all(text.split()[:4] == ["<|endoftext|>", "the", "User", ":"] for text in texts)
        assert all(text.endswith("Bot :") for text in texts)


@pytest.mark.parametrize("prompt", ["plain", "chat"])
@pytest.mark.parametrize("name", ROWS)
def test_tasks_of_lm_eval(name, prompt, model_folders, monkeypatch):
    """By name, over made-up rows. The toy template prints BOS and its tokenizer adds one."""
    monkeypatch.setattr(evaluation.harness, "stderr_for_metric", lambda metric, **_: stderr_for_metric(metric, 10))
    load = fake_data(monkeypatch)
    lm, task = load_toy(model_folders["llama"], max_length=96, max_generated_tokens=8), load(name)
    assert lm.tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False).startswith("<s>")
    assert lm.tokenizer.encode("x")[0] == 0
    splits = make_splits(task)
    own = name == "arc_easy"  # the others have no test split that lm-eval scores, or no validation split
    assert [len(split.addresses) for split in splits] == ([12, 12, 12] if own else [10, 2, 12])
    assert splits.train.removed_by_text == splits.train.removed_by_id == 0
    texts = check_shared_prefix(lm, task, split_documents(task, number=3), prompt, METRIC.get(name, "acc,none"), SYSTEM)
    assert all((SYSTEM in text) == (prompt == "chat") for text in texts)
    assert all((task.config.description or "").strip() in text for text in texts)
    (first,) = training_examples(lm, task, fetch_documents(task, "train", ["train:0"]))
    assert lm.tokenizer.decode(first.token_ids[first.completion_start : -1]) == COMPLETION[name]


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
    docs = split_documents(task, number=1)
    # a template that refuses the system message leaves it out on both sides
    system = SYSTEM if template == TURNS else None
    check_shared_prefix(lm, task, docs, "chat", "acc,none", system)
    (example,) = training_examples(lm, task, docs, prompt="chat")
    assert lm.tokenizer.decode(example.token_ids) == rendered
    lm.answer_start = ""  # as lm-eval does
    ((choice, *_),) = prepare_requests(lm, task, docs, prompt="chat").requests
    assert choice.args[1] == "red"


@pytest.mark.parametrize("refusal", ["{{ raise_exception('System role not supported') }}", ""])
def test_a_system_message_that_a_template_does_not_print_is_said(refusal, model_folders, toy_task, caplog):
    """A template that refuses the role, and one that skips it; without a system message both are used."""
    lm, task = load_toy(model_folders["llama"]), toy_task("toy_generation")
    docs = split_documents(task, number=1)
    skips = "{% if m['role'] == 'system' %}" + refusal + "{% else %}{{ m['content'] }}{% endif %}"
    lm.tokenizer.chat_template = "{% for m in messages %}" + skips + "{% endfor %}"
    lm.system_instruction = SYSTEM
    prepare_requests(lm, task, docs, prompt="chat")
    assert "prints no system message; prompts lack system_instruction" in caplog.text
    caplog.clear()
    lm.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    prepare_requests(lm, task, docs, prompt="chat")
    assert "system message" not in caplog.text


@pytest.mark.parametrize(("root", "point"), [("llama", ""), ("gpt2", ""), ("llama", "gpt2"), ("gpt2", "llama")])
def test_the_template_is_that_of_the_tokenizer_that_is_loaded(model_folders, tmp_path, root, point):
    """A checkpoint's own tokenizer goes before the model's, as when it is loaded. That of GPT-2 has no template."""
    shutil.copytree(model_folders[root], tmp_path / "m")
    columns = {"path": str(tmp_path / "m"), "instruction_tuned": True}
    if point:
        shutil.copytree(model_folders[point], tmp_path / "m" / "last")
        columns["checkpoints"] = (Checkpoint(checkpoint="final", subfolder="last"),)
    tuned, has = Model(model="m", **columns), (point or root) == "llama"
    if not has:
        with pytest.raises(InputError, match=r"'m', checkpoint 'final': its chat template is missing.*chat_template"):
            prefetch_model(tuned)
    assert prefetch_model(tuned, chat=has)["chat_template"] is has


def test_texts(llama, toy_task):
    def text(name: str, prompt: str = "plain") -> tuple[str, str]:
        task = toy_task(name)
        docs = split_documents(task, number=1)
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
    docs = split_documents(task, number=3)
    whole, cut = (training_examples(llama, task, docs, max_length=length) for length in (90, 9))
    for long, short in zip(whole, cut, strict=True):
        assert short.token_ids == long.token_ids[-9:]
        assert short.truncated == len(long.token_ids) - 9
        assert short.token_ids[short.completion_start :] == long.token_ids[long.completion_start :]
    corpus = toy_task("toy_corpus")
    docs = split_documents(corpus, number=3)
    whole, cut = (training_examples(llama, corpus, docs, max_length=length) for length in (90, 9))
    assert [short.token_ids for short in cut] == [long.token_ids[:9] for long in whole]


def test_an_answer_that_is_too_long_loses_its_beginning(llama, toy_task, caplog):
    task = toy_task("toy_choice")
    docs = split_documents(task)
    longer = [doc | {"choices": [f"{choice} indeed" for choice in doc["choices"]]} for doc in docs.docs[:5]]
    docs = type(docs)(docs.task, docs.split, docs.addresses, (*longer, *docs.docs[5:]))
    answers = [f" {doc['choices'][doc['gold']]}" for doc in docs.docs]
    lengths = [1 + len(llama.tok_encode(answer, add_special_tokens=False)) for answer in answers]
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
    docs = split_documents(task, number=2)
    unlabelled = type(docs)(docs.task, docs.split, docs.addresses, (docs.docs[0], docs.docs[1] | {"gold": -1}))
    with pytest.raises(CellError, match="document train:1 has no right answer"):
        training_examples(llama, task, unlabelled)


OTHER = "toy_choice_other"

SOME = """def results(doc, results):
    right = float(max(results)[0] == results[doc["gold"]][0])
    return {"acc": right} | ({"some": right} if doc["gold"] == 0 else {})
"""


def write_variant(folder: Path) -> None:
    body = (folder / "toy_choice.yaml").read_text().replace("task: toy_choice", f"task: {OTHER}")
    text = body.replace('"Question: what is the color of {{name}}?\\nAnswer:"', '"{{name}} has the color"')
    assert text != body
    (folder / f"{OTHER}.yaml").write_text(text)


def with_variant(workspace: Workspace, folder: Path, **changed) -> Workspace:
    """The run with a second row, prefetched and split."""
    own = {"benchmark": "toy_choice", "task": "toy_choice", "include_path": folder / "tasks"}
    row = own | {"benchmark": OTHER, "task": OTHER, "variant_of": "toy_choice"}
    write_sheet("benchmarks.tsv", own, row | changed)
    run = build_run(workspace.run.configuration.model_dump(exclude_none=True, exclude_defaults=True), "toy")
    return record_benchmark(run, OTHER)


def test_a_second_wording_is_a_facet_of_its_benchmark(start, tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/some.py").write_text(SOME)
    before = start(rows=toy_rows)
    run_all(before, "evaluate_model")
    recipes = {cell: before.recipe(cell) for cell in before.grid.cells() if cell.rule == "evaluate_model"}
    write_variant(tmp_path / "tasks")
    with open(tmp_path / "tasks" / f"{OTHER}.yaml", "a") as file:
        file.write("process_results: !function some.results\n")
    workspace = with_variant(before, tmp_path)
    assert all(workspace.recipe(cell) == recipe for cell, recipe in recipes.items())
    # scored on test only, never trained on
    cells = [cell for cell in workspace.grid.cells() if cell.benchmark == OTHER]
    assert [(cell.rule, cell.checkpoint, cell.split) for cell in cells] == [("evaluate_model", "final", "test")]
    run_all(workspace, "evaluate_model")
    scores = merged(workspace)
    assert set(scores["benchmark"]) == {"toy_choice"}
    test = scores[(scores["split"] == "test") & (scores["metric"] == "acc,none")]
    own, other = test[test["prompt_variant"].isna()], test[test["prompt_variant"] == OTHER]
    assert own["selected"].tolist() == [True] and other["selected"].tolist() == [False]
    assert own["n_items"].tolist() == other["n_items"].tolist() == [14]
    some = scores[scores["metric"] == "some,none"]
    count = sum(row["gold"] == 0 for row in toy_rows("test"))
    assert 0 < count < 14 and some["n_items"].tolist() == [count]  # of those that have a value, as its error is
    items = merged(workspace, "items").query("split == 'test'")
    texts = items.groupby(items["prompt_variant"].fillna(""))["choice_loglikelihoods"].first()
    assert list(texts[""]) != list(texts[OTHER])  # it read the other template
    assert read_benchmark_facts("benchmarks.tsv")["benchmark"].tolist() == ["toy_choice"]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_wording_of_other_questions_is_refused(start, tmp_path, reverse):
    """Or of the same rows in another order: as many documents, at the same addresses."""
    workspace = start(rows=toy_rows)
    folder = write_toy_tasks(tmp_path / "elsewhere", rows=lambda split: toy_rows(split)[:: -1 if reverse else 1])
    if not reverse:
        text = (folder / "toy_choice.yaml").read_text().replace("test_split: test", "test_split: validation")
        (folder / "toy_choice.yaml").write_text(text)
    write_variant(folder)
    with pytest.raises(InputError, match="its test documents are not those of 'toy_choice'"):
        with_variant(workspace, tmp_path, include_path=folder)
    assert len(read_json(workspace.split_path("toy_choice", "test"))["addresses"]) == 14


@pytest.mark.parametrize(
    ("changed", "column"),
    [({"variant_of": OTHER}, "variant_of"), ({"variant_of": "none"}, "variant_of"), ({"metric": "acc_norm"}, "metric")],
)
def test_a_row_that_is_no_wording_of_another_is_refused(start, tmp_path, changed, column):
    workspace = start()
    write_variant(tmp_path / "tasks")
    with pytest.raises(InputError, match=f"'{column}'"):
        with_variant(workspace, tmp_path, **changed)
