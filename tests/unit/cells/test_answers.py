"""Right answers and solved examples, where lm-eval reads them as something else without a word."""

import datetime
from contextlib import nullcontext
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from toy_world import all_documents, evaluate, lm_eval_itself, loglikelihood, random_model, train_bytes

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks.answers import asked_text, check_training_answers, gold_choice
from lm_validity.cells.tasks.evaluation import training_examples
from lm_validity.cells.tasks.splits import make_splits
from lm_validity.cells.tasks.tasks import fetch_documents
from lm_validity.errors import CellError, InputError


def sums(answer=str):
    choices = {(a, b): [str(a + b + k) for k in range(4)] for a in range(2) for b in range(2)}
    return [{"q": f"{a} plus {b}", "choices": choices[a, b], "answer": answer(a + b)} for a, b in choices]


def numbered(count, first=0):
    numbers = range(first, first + count)
    return [{"q": f"question {n}", "choices": [f"a{n}", f"b{n}", f"c{n}"], "gold": n % 3} for n in numbers]


def written(answers):
    return [{"q": f"question {n}", "answer": answer} for n, answer in enumerate(answers)]


FROM_ONE = [{"q": f"q{n}", "choices": [*"ABCD"], "gold": n % 4 + 1} for n in range(8)]
LISTS = [{"q": f"q{n}", "choices": ["[0, 1]", "[1, 0]"], "answer": "[1, 0]"} for n in range(3)]
OWN_SCORE = {"process_results": "!function own.score"}
WRITE = {
    "output_type": "generate_until",
    "doc_to_target": "{{answer}}",
    "doc_to_choice": None,
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
    "metric_list": [{"metric": "exact_match"}],
}
NAMED = WRITE | {"doc_to_target": "answer"}


def labelled(label, documents=None):
    return [doc | {"gold": label} for doc in documents or numbered(3)]


REFUSED = {  # documents of the test split, keys of the YAML file, and what is said
    "answer in digits": (sums(), {"doc_to_target": "{{answer}}"}, r"test:1: its answer '1' is choice 0.*the place 1"),
    "labels from one": (FROM_ONE, {}, r"labels count from 1: document test:3"),
    "no labels": (labelled(-1), {}, "no document has a right answer .* say: '-1'.*not public"),
    "label in digits": (labelled("1"), {}, r"no document has a right answer .* say: '1'.*label \| int"),
    "label as a letter": (labelled("B"), {}, r"no document has a right answer .* say: 'B'.*'ABCD'.index"),
    "label with decimals": (labelled(1.0), {}, "its label is 1.0"),
    "label missing": ([*numbered(2), *labelled(None)], {}, "test:2: its label is missing"),
    "question in digits": ([doc | {"q": "12"} for doc in numbered(2)], {"doc_to_text": "{{q}}"}, "is the number 12"),
    "empty choice": ([*numbered(3), {"q": "x", "choices": ["a", ""], "gold": 0}], {}, "choice 1 is empty"),
    "no choices": ([*numbered(2), {"q": "x", "choices": [], "gold": 0}], {}, "test:2 has no choices"),
    "no choices, own score": ([*numbered(2), {"q": "x", "choices": [], "gold": 0}], OWN_SCORE, "has no choices"),
    "choice like a list": (LISTS, {"doc_to_target": "{{answer}}"}, "is choice 1, and lm-eval takes it for a list"),
    "answers like lists": (written(["[0, 1]", "[1, 2]"]), WRITE, "takes for a list of right answers"),
    "some like lists": (written(["x", "[1, 2]"]), WRITE, "document test:1: .* takes for a list of right answers"),
    "lists of texts": (written(["['a']", "b"]), WRITE, "document test:0: .* takes for a list of right answers"),
    "an object": (written([{"text": "a"}]), NAMED, "its target is an object with text"),
    "no target": (written(["x", None]), WRITE, "document test:1: it has no target"),
    "no target in a column": (written(["x", None]), NAMED, "document test:1: it has no target"),
    # the data library makes dates of such texts, and `2020-01-02 00:00:00` is another answer
    "a date": (written(["2020-01-02T00:00:00"]), WRITE, "document test:0: its target is a date"),
}
CODE = """import numpy

def score(document, results):
    return {"exact_match": float(document["answer"] in results[0]), "acc": 1.0}

def wrong(references, predictions):
    return float(references[0] != predictions[0].strip())

def number(text):
    return float(text) if text.strip().isdigit() else 0.0

def pair(references, predictions):
    return number(references[0]), number(predictions[0])

def agree(pairs, of_equals=0.0):
    left, right = map(numpy.array, zip(*pairs))
    return float(numpy.corrcoef(left, right)[0, 1]) if left.std() and right.std() else of_equals

def agree_or_nan(pairs):
    return agree(pairs, float("nan"))
"""


@pytest.mark.parametrize("case", REFUSED)
def test_what_lm_eval_would_read_wrongly_is_refused(write_task, case):
    documents, keys, problem = REFUSED[case]
    with pytest.raises(InputError, match=problem):
        make_splits(write_task({"test": documents}, code=CODE, **keys), test_only=True)


def test_what_is_refused_fails_the_cell_too(write_task, llama):
    task = write_task({"test": sums()}, doc_to_target="{{answer}}")
    with pytest.raises(CellError, match="document test:1: its answer"):
        evaluate(llama, task, all_documents(task), metric="acc,none")


NUMBERS = [doc | {"answer": 1} for doc in sums(int)]  # a label is a number; that a choice has its digits says nothing


@pytest.mark.parametrize(
    ("documents", "target", "golds"),
    [
        (sums(), "answer", [0] * 4),
        (sums(), "{{choices.index(answer)}}", [0] * 4),
        (NUMBERS, "answer", [1] * 4),
        (NUMBERS, "{{answer}}", [1] * 4),
        (NUMBERS, "{{choices.index(choices[1])}}", [1] * 4),
        (FROM_ONE, "{{gold - 1}}", [0, 1, 2, 3] * 2),
        (LISTS, "answer", [1] * 3),
    ],
)
def test_what_the_hints_say_gives_the_right_choice(write_task, documents, target, golds):
    task = write_task({"test": documents}, doc_to_target=target)
    make_splits(task, test_only=True)
    assert [gold_choice(task, doc) for doc in all_documents(task).docs] == golds


def test_answers_like_lists_are_texts_by_the_column_and_by_a_metric_of_ones_own(write_task):
    make_splits(write_task({"test": written(["[0, 1]", "x"])}, **NAMED), test_only=True)
    own = WRITE | {"metric_list": [{"metric": "!function own.score", "aggregation": "mean"}]}  # which may know numbers
    make_splits(write_task({"test": written(["[0, 1]", "x"])}, code=CODE, **own), test_only=True)


def test_what_counts_as_wrong_is_counted(write_task, llama, caplog):
    documents = [{"q": f"q{n}", "choices": ["A", "B"], "gold": -1 if n < 3 else n % 2} for n in range(8)]
    documents[7] |= {"choices": ["A", "A"], "gold": 1}  # lm-eval takes the first of equal choices
    task = write_task({"test": documents})
    found = evaluate(llama, task, all_documents(task), metric="acc,none")
    assert found.items["correct"][7] == 0 and "1 of 8 documents have their right answer twice" in caplog.text
    assert "3 of 8 documents have no right answer among their choices: wrong (test:0, say)" in caplog.text
    make_splits(write_task({"test": written([["a"], [], []])}, **NAMED), test_only=True)
    assert "2 of 3 documents have no target and count as wrong (test:1, say)" in caplog.text


def test_questions_that_say_none_are_counted(write_task, caplog):
    documents = [doc | {"hint": None if n % 2 else "a"} for n, doc in enumerate(numbered(5))]
    make_splits(write_task({"test": documents}, doc_to_text="{% if hint %}{{hint}} {% endif %}{{q}}"), test_only=True)
    assert not caplog.records
    make_splits(write_task({"test": documents}, doc_to_text="{{hint}} {{q}}"), test_only=True)
    assert "2 of 5 documents say None where a column is empty" in caplog.text


def test_dates_among_choices_and_files_of_other_columns_are_named(write_task, tmp_path):
    days = [[datetime.date(2020, 1, n), datetime.date(2021, 1, n)] for n in range(1, 4)]
    pq.write_table(pa.table({"q": ["a", "b", "c"], "choices": days, "gold": [0, 1, 0]}), tmp_path / "days.parquet")
    (tmp_path / "one.jsonl").write_text('{"q": "a", "choices": ["x", "y"], "gold": 0}\n', encoding="utf-8")
    two = '{"q": "b", "choices": ["x", "y"], "gold": 0'
    cases = {
        two + ', "extra": 1}\n': r"column 'extra': \S+two.jsonl has it and \S+one.jsonl has not",
        two + '}\n{"q": \n': r"two.jsonl, line 2: not JSON",
        "": r"two.jsonl: an empty file",
    }
    for text, problem in cases.items():
        (tmp_path / "two.jsonl").write_text(text, encoding="utf-8")
        files = [str(tmp_path / name) for name in ("one.jsonl", "two.jsonl")[not text :]]
        with pytest.raises(InputError, match=problem):
            write_task({"test": numbered(2)}, dataset_kwargs={"data_files": {"test": files}})
    with pytest.raises(InputError, match="doc_to_choice of its first document is no text, such as a date"):
        dates = {"dataset_kwargs": {"data_files": {"test": f"{tmp_path}/days.parquet"}}, "dataset_path": "parquet"}
        write_task({"test": numbered(2)}, **dates)


def test_no_solved_example_is_the_question_itself(write_task, llama):
    """The training split holds every test question. All other examples are lm-eval's own."""
    asked, others = numbered(12), numbered(12, 100)
    for keys in ({}, {"fewshot_config": {"sampler": "first_n"}}):
        task = write_task({"train": asked + others, "test": asked}, 3, **keys)
        documents = all_documents(task)
        llama.share_encodings({})
        result = evaluate(llama, task, documents, metric="acc,none")
        shown = {context for context, _ in llama._encoded}
        for doc in documents.docs:
            (own,) = {context for context in shown if context.endswith(f"Question: {doc['q']}\nAnswer:")}
            assert own.count("Question:") == 4 and own.count(f"Question: {doc['q']}\n") == 1
        assert len(result.items) == 12
    assert asked_text(task, asked[0]) == "question: question 0 answer: a0 b0 c0"


def test_examples_without_the_question_are_lm_evals(write_task, llama, model_folders, tmp_path):
    parts = {"train": numbered(12, 100), "test": numbered(6)}
    task = write_task(parts, 3)
    ours = evaluate(llama, task, all_documents(task), metric="acc,none")
    theirs = lm_eval_itself(model_folders["llama"], tmp_path, "asked", 3)
    expected = [[response[0][0] for response in sample["resps"]] for sample in theirs["samples"]["asked"]]
    assert ours.items["choice_loglikelihoods"].tolist() == [pytest.approx(row, abs=1e-4) for row in expected]


def test_what_cannot_be_rendered_is_named(write_task, llama):
    """lm-eval scores several right answers, and cannot write an example of them."""
    rows_of = {"train": numbered(6), "test": numbered(4, 20)}
    alone = write_task(rows_of, doc_to_target="{{[0, gold]}}")
    assert evaluate(llama, alone, all_documents(alone), metric="acc,none")
    shown = write_task(rows_of, 1, doc_to_target="{{[0, gold]}}")
    with pytest.raises(CellError, match=r"document test:0 cannot be rendered \(AssertionError: Answer is not a string"):
        evaluate(llama, shown, all_documents(shown), metric="acc,none")
    documents = [doc | {"q": None if n == 1 else doc["q"]} for n, doc in enumerate(numbered(3))]
    task = write_task({"test": documents}, doc_to_text="q")
    with pytest.raises(CellError, match=r"document test:1 cannot be rendered .*Context is not a string"):
        evaluate(llama, task, all_documents(task), metric="acc,none")


@pytest.fixture
def merging():
    """A model whose tokenizer merges `yester` and `day`; and `:` with a line break behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast = train_bytes(tokenizer, ["yesterday", "yester", "day", ":\n", "yesterday"] * 50, 300)
    return LanguageModel(random_model("gpt2", vocab_size=300), fast, model_id="merging", eval_batch_size=4)


def test_a_choice_that_merges_with_the_question_is_scored_and_trained_on_whole(write_task, merging):
    documents = [{"q": "yester", "choices": ["day", "year"], "gold": n % 2} for n in range(4)]
    keys = {"doc_to_text": "{{q}}", "target_delimiter": ""}
    task = write_task({"train": documents, "test": documents}, **keys)
    assert merging.tokenizer.tokenize("yesterday") == ["yesterday"], "the text is one token"
    found = evaluate(merging, task, all_documents(task), metric="acc,none").items
    context = merging.tokenizer.encode("yester")
    for choice, value in zip(("day", "year"), found["choice_loglikelihoods"][0], strict=True):
        expected = loglikelihood(merging.base, context, merging.tokenizer.encode(choice))
        assert value == pytest.approx(expected, abs=1e-4)
    examples = training_examples(merging, task, fetch_documents(task, "train", ["train:0", "train:1"]))
    said = [merging.tokenizer.decode(example.token_ids[example.completion_start :]) for example in examples]
    assert said == ["day</s>", "year</s>"]


def test_white_space_that_is_one_token_with_the_question_stays_with_it(merging):
    """lm-eval scores `A` behind `Answer:`, a text that has no line break."""
    context, continuation = merging._encode_pair("Answer:\n", "A")
    assert merging.tokenizer.decode(context) == "Answer:\n" and merging.tokenizer.decode(continuation) == "A"
    assert merging.tokenizer.encode("Answer:\nA") == [*context, *continuation]


def test_a_choice_without_tokens_or_too_long_is_refused_with_its_document(write_task, merging):
    documents = [{"q": "when", "choices": ["x" * 112, "b"], "gold": 0}]
    task = write_task({"test": documents})
    with pytest.raises(CellError, match=r"asked: document test:0: .* has 113 tokens after 20 "):
        evaluate(merging, task, all_documents(task), metric="acc,none")


@pytest.mark.parametrize("way", ["lm-eval", "rows", "auto"])
def test_one_row_cut_in_two_places_gives_each_its_own_tokens(merging, way):
    """lm-eval runs equal rows once and gives every request the first one's sum."""
    merging.scorer = way
    requests = [(("a",), [5, 6, 7, 8], [9, 10]), (("b",), [5, 6, 7], [8, 9, 11]), (("c",), [5, 6], [7, 8, 9, 12])]
    found = [value for value, _ in merging._loglikelihood_tokens(list(requests))]
    assert found == pytest.approx([loglikelihood(merging.base, *texts) for _, *texts in requests], abs=1e-4)


SETTINGS = [
    {"num_beans": 3},
    {"do_sample": True},
    {"max_length": 2, "max_gen_toks": None},
    {"stop": ["x"]},
    {"use_cache": False},
    {"until": ["\n", ""]},
    {"max_gen_toks": 0},
    {"until": None},
    {"until": [1]},
]


def responses(write_task, lm, answers, **options) -> list[str]:
    """What the model writes for a task with these generation settings."""
    task = write_task({"test": written(answers)}, **WRITE | {"generation_kwargs": options})
    return evaluate(lm, task, all_documents(task), metric="exact_match,none").items["response"].tolist()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_generation_setting_that_gives_no_answers_fails_its_cell(write_task, llama, setting):
    """Not the job with all its other cells."""
    options = {"until": ["\n"], "max_gen_toks": 4} | setting
    options = {key: value for key, value in options.items() if value is not None or key == "until"}
    with pytest.raises(CellError) as caught:
        responses(write_task, llama, ["a"], **options)
    assert "generation_kwargs" in f"{caught.value.problem} {caught.value.hint}"


def test_a_stop_string_that_stands_alone_stops_as_in_a_list(write_task, llama):
    """An empty text is a part of every text, and no item of a list."""
    options = {"max_gen_toks": 4, "do_sample": False}
    alone, listed = (responses(write_task, llama, "abc", until=until, **options) for until in ("\n", ["\n"]))
    assert alone == listed and len(alone) == 3


def test_a_split_that_the_data_have_not_is_named_with_the_key(write_task):
    for key in ("fewshot_split", "test_split"):
        with pytest.raises(InputError, match=rf"its data have no split 'dev', which {key} names"):
            write_task({"test": written("a")}, 2, **{**WRITE, key: "dev"})


def test_a_temperature_alone_samples_from_a_seed(write_task, llama):
    """lm-eval samples where a temperature is given, `do_sample` or not."""
    ask, answers = partial(responses, write_task, llama, "xxx", until=["\n"], max_gen_toks=6), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        answers.append(ask(temperature=1.0))
    assert answers[0] == answers[1] != ask(), "it samples, from a stream of its own"


def test_a_text_of_several_right_answers_is_a_list(write_task, llama):
    task = write_task({"train": written(['["a", "b"]'] * 3), "test": written(['["c", "d"]'])}, **WRITE)
    make_splits(task, test_only=True)
    (example,) = training_examples(llama, task, fetch_documents(task, "train", ["train:0"]))
    assert llama.tokenizer.decode(example.token_ids[example.completion_start :]) == " a</s>"


def test_answers_of_a_beam_search(write_task, llama):
    """Those of transformers' own search with its own stop strings, one prompt at a time."""
    found = responses(write_task, llama, "abcd", num_beams=3, max_gen_toks=12, until=["e", "a"], do_sample=False)
    assert any(found)
    for doc, answer in zip(written("abcd"), found, strict=True):
        tokens = torch.tensor([llama.tok_encode(f"Question: {doc['q']}\nAnswer:")])
        search = {"num_beams": 3, "max_new_tokens": 12, "stop_strings": ["e", "a"], "tokenizer": llama.tokenizer}
        theirs = llama.base.generate(tokens, do_sample=False, pad_token_id=1, **search)[0, tokens.shape[1] :]
        text = llama.tokenizer.decode(theirs, skip_special_tokens=True)
        assert answer == text.partition("e")[0].partition("a")[0]


STRIPPED = [{"name": "none", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}]
DIGITS = {"filter_list": [{"name": "none", "filter": [{"function": "regex", "regex_pattern": "(a[0-9])"}]}]}


def own(metric: str, aggregation: str, better: bool) -> dict:
    listed = {"metric": f"!function own.{metric}", "aggregation": aggregation, "higher_is_better": better}
    return {"metric_list": [listed]}


THREE, NOTHING = ("a0", "a1", "a2"), "exact_match,none of its training answers is 0, and 0 of empty ones"
WRONG = own("wrong", "mean", better=False)  # the share that is wrong: less is better
AGREE, AGREE_OR_NAN = (own("pair", f"!function own.{name}", better=True) for name in ("agree", "agree_or_nan"))
# training answers, keys of the task, its metric, whether a higher one is better, why they are refused
TAUGHT = [
    # with the blank before them or without it
    (THREE, {"target_delimiter": ""}, "exact_match", True, None),
    (THREE, {}, "exact_match", True, None),
    (THREE, {"filter_list": STRIPPED}, "exact_match", True, None),
    # the filter leaves less than the target
    (THREE, {"doc_to_target": "answer: {{answer}}", **DIGITS}, "exact_match", True, NOTHING),
    (THREE, {"generation_kwargs": {"until": ["a"], "max_gen_toks": 4}}, "exact_match", True, NOTHING),
    (THREE, OWN_SCORE | {"doc_to_target": ""}, "exact_match", True, NOTHING),
    (THREE, WRONG, "wrong", False, None),
    (THREE, WRONG, "wrong", True, "is 0, and 1 of empty ones"),
    # a correlation is NaN of answers that are all empty, and 0 of those that are all the same: both say nothing
    (("0", "1", "3"), AGREE_OR_NAN, "pair", True, None),
    (("1", "1"), AGREE, "pair", True, None),
    (("x", "y"), AGREE, "pair", True, "pair,none of its training answers"),
]


@pytest.mark.parametrize(("answers", "keys", "metric", "better", "problem"), TAUGHT)
def test_what_is_trained_must_score_better_than_nothing(write_task, answers, keys, metric, better, problem):
    task = write_task({"train": written(answers), "test": written(answers)}, code=CODE, **NAMED | keys)
    with pytest.raises(InputError, match=problem) if problem else nullcontext():
        check_training_answers(task, all_documents(task, "train"), f"{metric},none", higher_is_better=better)


def test_training_answers_behind_the_beginning_of_an_answer(write_task, llama):
    """The delimiter, a stop string, stands before the `gen_prefix` and not before what is trained."""
    train = written(["a1", "a2"])
    keys = {"gen_prefix": "Answer:", "target_delimiter": "\n", "filter_list": STRIPPED}
    task = write_task({"train": train, "test": train}, **NAMED | keys)
    documents = all_documents(task, "train")
    check_training_answers(task, documents, "exact_match,none", higher_is_better=True)
    texts = [llama.tokenizer.decode(example.token_ids) for example in training_examples(llama, task, documents)]
    assert "Answer: a1" in texts[0] and "Answer: a2" in texts[1]
