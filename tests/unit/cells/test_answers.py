"""Right answers and solved examples, where lm-eval reads them as something else without a word."""

import datetime
import json
import logging
import re
from contextlib import nullcontext

import lm_eval.utils
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from toy_world import evaluate, lm_eval_itself

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks.answers import asked_text, check_answers, check_training_answers, replaced_examples
from lm_validity.cells.tasks.evaluation import training_examples
from lm_validity.cells.tasks.splits import make_splits
from lm_validity.cells.tasks.tasks import fetch_documents, find_task, load_task, rows
from lm_validity.errors import CellError, InputError

CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{q}}\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "gold",
    "metric_list": [{"metric": "acc"}],
}


@pytest.fixture
def choice_task(tmp_path, monkeypatch):
    """A function (rows by split, keys of the YAML file) -> the loaded task."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))

    def write(parts, shots=0, **keys):
        files = {}
        for split, documents in parts.items():
            files[split] = str(tmp_path / f"{split}.jsonl")
            lines = "".join(json.dumps(doc) + "\n" for doc in documents)
            (tmp_path / f"{split}.jsonl").write_text(lines, encoding="utf-8")
        names = {f"{'training' if split == 'train' else split}_split": split for split in parts}
        config = {"task": "asked", "dataset_path": "json", "dataset_kwargs": {"data_files": files}, **names}
        config = {key: value for key, value in (config | CHOICE | keys).items() if value is not None}
        text = re.sub("'(!function [a-z.]+)'", r"\1", yaml.safe_dump(config))
        (tmp_path / "asked.yaml").write_text(text, encoding="utf-8")
        return load_task(find_task("asked", tmp_path), shots)

    write.folder = tmp_path
    return write


def test_documents(task):
    return fetch_documents(task, "test", [f"test:{row}" for row in range(len(rows(task, "test")))])


test_documents.__test__ = False


def sums(answer=str):
    pairs = [(a, b) for a in range(2) for b in range(2)]
    return [
        {"q": f"{a} plus {b}", "choices": [str(a + b + k) for k in range(4)], "answer": answer(a + b)} for a, b in pairs
    ]


def numbered(count, first=0):
    return [
        {"q": f"question {n}", "choices": [f"a{n}", f"b{n}", f"c{n}"], "gold": n % 3}
        for n in range(first, first + count)
    ]


def test_an_answer_in_digits_that_is_a_choice_elsewhere_is_refused(choice_task, llama):
    task = choice_task({"test": sums()}, doc_to_target="{{answer}}")
    with pytest.raises(CellError, match=r"document test:1: its answer '1' is choice 0.*the place 1, which is '2'"):
        evaluate(llama, task, test_documents(task), metric="acc,none")
    with pytest.raises(InputError, match="document test:1: its answer"):
        make_splits(task, test_only=True)


@pytest.mark.parametrize("target", ["answer", "{{choices.index(answer)}}"])
def test_what_the_hint_says_gives_the_right_choice(choice_task, llama, target):
    task = choice_task({"test": sums()}, doc_to_target=target)
    assert evaluate(llama, task, test_documents(task), metric="acc,none").items["gold"].tolist() == [0, 0, 0, 0]


def test_a_number_is_a_place_even_where_the_choices_are_numbers(choice_task, llama):
    """A label is a number in the data; that a choice has its digits says nothing."""
    documents = [doc | {"answer": 1} for doc in sums(int)]
    for target in ("answer", "{{answer}}", "{{choices.index(choices[1])}}"):
        task = choice_task({"test": documents}, doc_to_target=target)
        assert evaluate(llama, task, test_documents(task), metric="acc,none").items["gold"].tolist() == [1, 1, 1, 1]


def test_labels_that_count_from_one_are_refused(choice_task, llama):
    documents = [{"q": f"q{n}", "choices": ["A", "B", "C", "D"], "gold": n % 4 + 1} for n in range(8)]
    with pytest.raises(InputError, match=r"labels count from 1: document test:3"):
        make_splits(choice_task({"test": documents}), test_only=True)
    task = choice_task({"test": documents}, doc_to_target="{{gold - 1}}")
    assert evaluate(llama, task, test_documents(task), metric="acc,none").items["gold"].tolist() == [0, 1, 2, 3] * 2


def test_unlabelled_documents_are_counted_and_refused_where_all_are(choice_task, llama, caplog):
    documents = [{"q": f"q{n}", "choices": ["A", "B"], "gold": -1 if n < 3 else n % 2} for n in range(8)]
    documents[7] |= {"choices": ["A", "A"], "gold": 1}  # lm-eval takes the first of equal choices
    task = choice_task({"test": documents})
    with caplog.at_level(logging.WARNING):
        found = evaluate(llama, task, test_documents(task), metric="acc,none")
    assert found.items["correct"][7] == 0 and "1 of 8 documents have their right answer twice" in caplog.text
    assert "3 of 8 documents have no right answer among their choices and count as wrong (test:0, say)" in caplog.text
    task = choice_task({"test": [doc | {"gold": -1} for doc in documents]})
    with pytest.raises(CellError, match="no document has a right answer"):
        evaluate(llama, task, test_documents(task), metric="acc,none")


@pytest.mark.parametrize(
    ("target", "hint"),
    [("{{gold == 1}}", r"{{label \| int}}"), (" {{choices[gold] | upper}}", "as the choice is, 'a0'")],
)
def test_a_label_that_is_nearly_one_has_a_hint(choice_task, target, hint):
    with pytest.raises(InputError, match=hint):
        make_splits(choice_task({"test": numbered(4)}, doc_to_target=target), test_only=True)


def test_a_question_in_digits_is_refused(choice_task, llama):
    documents = [{"q": str(n), "choices": ["even", "odd"], "gold": n % 2} for n in (12, 7, 1, 0)]
    task = choice_task({"test": documents}, doc_to_text="{{q}}")
    with pytest.raises(CellError, match="document test:0: its question is the number 12"):
        evaluate(llama, task, test_documents(task), metric="acc,none")


def test_dates_and_empty_choices_are_refused_with_their_cause(choice_task):
    with pytest.raises(InputError, match="choice 1 is empty"):
        make_splits(choice_task({"test": [*numbered(3), {"q": "x", "choices": ["a", ""], "gold": 0}]}), test_only=True)
    days = [[datetime.date(2020, 1, n), datetime.date(2021, 1, n)] for n in range(1, 4)]
    table = pa.table({"q": ["a", "b", "c"], "choices": days, "gold": [0, 1, 0]})
    pq.write_table(table, choice_task.folder / "days.parquet")
    dates = {
        "dataset_path": "parquet",
        "dataset_kwargs": {"data_files": {"test": f"{choice_task.folder}/days.parquet"}},
    }
    with pytest.raises(InputError, match="doc_to_choice of its first document is no text, such as a date"):
        choice_task({"test": numbered(2)}, **dates)


def test_no_solved_example_is_the_question_itself(choice_task, llama):
    """The training split holds every test question. All other examples are lm-eval's own."""
    asked, others = numbered(12), numbered(12, 100)
    for keys in ({}, {"fewshot_config": {"sampler": "first_n"}}):
        task = choice_task({"train": asked + others, "test": asked}, 3, **keys)
        documents = test_documents(task)
        llama.share_encodings({})
        result = evaluate(llama, task, documents, metric="acc,none")
        shown = {context for context, _ in llama._encoded}
        for doc in documents.docs:
            (own,) = {context for context in shown if context.endswith(f"Question: {doc['q']}\nAnswer:")}
            assert own.count("Question:") == 4 and own.count(f"Question: {doc['q']}\n") == 1
        assert len(result.items) == 12
        assert replaced_examples(task, documents) == {0: 4, 1: 3}["fewshot_config" in keys]


def test_examples_without_the_question_are_lm_evals(choice_task, llama, model_folders):
    parts = {"train": numbered(12, 100), "test": numbered(6)}
    task = choice_task(parts, 3)
    assert replaced_examples(task, test_documents(task)) == 0
    ours = evaluate(llama, task, test_documents(task), metric="acc,none")
    theirs = lm_eval_itself(model_folders["llama"], choice_task.folder, "asked", 3)
    expected = [[response[0][0] for response in sample["resps"]] for sample in theirs["samples"]["asked"]]
    assert ours.items["choice_loglikelihoods"].tolist() == [pytest.approx(row, abs=1e-4) for row in expected]


def test_each_split_says_how_many_examples_were_drawn_again(choice_task):
    asked = numbered(12)
    splits = make_splits(choice_task({"train": asked + numbered(12, 100), "test": asked}, 3), test_only=True)
    assert splits.test.replaced_examples == 4
    assert asked_text(choice_task({"test": asked}), asked[0]) == "question: question 0 answer: a0 b0 c0"


def test_the_column_that_only_one_file_has_is_named(choice_task, tmp_path):
    (tmp_path / "one.jsonl").write_text('{"q": "a", "choices": ["x", "y"], "gold": 0}\n', encoding="utf-8")
    (tmp_path / "two.jsonl").write_text('{"q": "b", "choices": ["x", "y"], "gold": 0, "extra": 1}\n', encoding="utf-8")
    files = {"dataset_kwargs": {"data_files": {"test": [f"{tmp_path}/one.jsonl", f"{tmp_path}/two.jsonl"]}}}
    with pytest.raises(InputError, match=r"column 'extra': \S+two.jsonl has it and \S+one.jsonl has not"):
        choice_task({"test": numbered(2)}, **files)
    (tmp_path / "two.jsonl").write_text('{"q": "b", "choices": ["x", "y"], "gold": 0}\n{"q": \n', encoding="utf-8")
    with pytest.raises(InputError, match=r"two.jsonl, line 2: not JSON"):
        choice_task({"test": numbered(2)}, **files)
    (tmp_path / "two.jsonl").write_text("", encoding="utf-8")
    files = {"dataset_kwargs": {"data_files": {"test": f"{tmp_path}/two.jsonl"}}}
    with pytest.raises(InputError, match=r"two.jsonl: an empty file"):
        choice_task({"test": numbered(2)}, **files)


@pytest.fixture
def merging():
    """A model whose tokenizer merges `yester` and `day`; and `:` with a line break behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["yesterday", "yester", "day", ":\n", "yesterday"] * 50, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    config = transformers.GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config).eval()
    return LanguageModel(model, fast, model_id="merging", eval_batch_size=4)


def test_a_choice_that_merges_with_the_question_is_scored_and_trained_on_whole(choice_task, merging):
    documents = [{"q": "yester", "choices": ["day", "year"], "gold": n % 2} for n in range(4)]
    keys = {"doc_to_text": "{{q}}", "target_delimiter": ""}
    task = choice_task({"train": documents, "test": documents}, **keys)
    assert merging.tokenizer.tokenize("yesterday") == ["yesterday"], "the text is one token"
    found = evaluate(merging, task, test_documents(task), metric="acc,none").items
    context = merging.tokenizer.encode("yester")
    for choice, value in zip(("day", "year"), found["choice_loglikelihoods"][0], strict=True):
        behind = merging.tokenizer.encode(choice)
        with torch.no_grad():
            logits = merging.base(torch.tensor([[*context, *behind]])).logits[0].log_softmax(-1)
        expected = sum(logits[len(context) - 1 + place, token].item() for place, token in enumerate(behind))
        assert value == pytest.approx(expected, abs=1e-4)
    examples = training_examples(merging, task, fetch_documents(task, "train", ["train:0", "train:1"]))
    said = [merging.tokenizer.decode(example.token_ids[example.completion_start :]) for example in examples]
    assert said == ["day</s>", "year</s>"]


def test_white_space_that_is_one_token_with_the_question_stays_with_it(merging):
    """lm-eval scores `A` behind `Answer:`, a text that has no line break."""
    context, continuation = merging._encode_pair("Answer:\n", "A")
    assert merging.tokenizer.decode(context) == "Answer:\n" and merging.tokenizer.decode(continuation) == "A"
    assert merging.tokenizer.encode("Answer:\nA") == [*context, *continuation]


def test_a_choice_without_tokens_or_too_long_is_refused_with_its_document(choice_task, merging):
    documents = [{"q": "when", "choices": ["x" * 80, "b"], "gold": 0}]
    task = choice_task({"test": documents})
    with pytest.raises(CellError, match=r"asked: document test:0: .* has 81 tokens after 20 "):
        evaluate(merging, task, test_documents(task), metric="acc,none")


@pytest.mark.parametrize("way", ["lm-eval", "rows", "auto"])
def test_one_row_cut_in_two_places_gives_each_its_own_tokens(merging, way):
    """lm-eval runs equal rows once and gives every request the first one's sum."""
    merging.scorer = way
    requests = [(("a",), [5, 6, 7, 8], [9, 10]), (("b",), [5, 6, 7], [8, 9, 11]), (("c",), [5, 6], [7, 8, 9, 12])]
    found = [value for value, _ in merging._loglikelihood_tokens(list(requests))]
    for (_, context, continuation), value in zip(requests, found, strict=True):
        with torch.no_grad():
            logits = merging.base(torch.tensor([[*context, *continuation]])).logits[0].log_softmax(-1)
        expected = sum(logits[len(context) - 1 + place, token].item() for place, token in enumerate(continuation))
        assert value == pytest.approx(expected, abs=1e-4)


ASKED = {
    "output_type": "generate_until",
    "doc_to_text": "Q: {{q}}\nA:",
    "doc_to_target": "{{a}}",
    "doc_to_choice": None,
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}


@pytest.mark.parametrize(
    ("rows_of_test", "keys", "problem"),
    [
        ([{"q": "a", "a": "x"}, {"q": "b", "a": None}], {}, "document test:1: it has no target"),
        ([{"q": "a", "a": "x"}, {"q": "b", "a": None}], {"doc_to_target": "a"}, "document test:1: it has no target"),
        # the data library makes dates of such texts, and `2020-01-02 00:00:00` is another answer
        ([{"q": "a", "a": "2020-01-02T00:00:00"}], {}, "document test:0: its target is a date"),
        ([{"q": "a", "a": "x"}], {"generation_kwargs": {"until": ["\n", ""], "max_gen_toks": 4}}, "an empty text is"),
        ([{"q": "a", "a": "x"}], {"generation_kwargs": {"until": ["\n"], "max_gen_toks": 0}}, "answers have no tokens"),
        (
            [{"q": "a", "a": "x"}],
            {"generation_kwargs": {"until": None, "max_gen_toks": 4}},
            "until. are None, no texts",
        ),
        ([{"q": "a", "a": "x"}], {"generation_kwargs": {"until": [1], "max_gen_toks": 4}}, "until. are .1., no texts"),
    ],
)
def test_answers_that_cannot_be_compared_are_refused(choice_task, llama, rows_of_test, keys, problem):
    task = choice_task({"test": rows_of_test}, **{**ASKED, **keys})
    with pytest.raises(CellError, match=problem):
        evaluate(llama, task, test_documents(task), metric="exact_match,none")


def test_a_stop_string_that_stands_alone_stops_as_in_a_list(choice_task, llama):
    """An empty text is a part of every text, and no item of a list."""
    scores = []
    for until in ("\n", ["\n"]):
        task = choice_task(
            {"test": [{"q": name, "a": "x"} for name in "abc"]},
            **{**ASKED, "generation_kwargs": {"until": until, "max_gen_toks": 4, "do_sample": False}},
        )
        scores.append(evaluate(llama, task, test_documents(task), metric="exact_match,none").items["response"].tolist())
    assert scores[0] == scores[1] and len(scores[0]) == 3


def test_a_split_that_the_data_have_not_is_named_with_the_key(choice_task):
    for key in ("fewshot_split", "test_split"):
        with pytest.raises(InputError, match=rf"its data have no split 'dev', which {key} names"):
            choice_task({"test": [{"q": "a", "a": "x"}]}, shots=2, **{**ASKED, key: "dev"})


@pytest.mark.parametrize(("label", "said"), [(1.0, "its label is 1.0"), (None, "its label is missing")])
def test_a_label_that_is_no_place_is_refused(choice_task, llama, label, said):
    task = choice_task({"test": [*numbered(2), {"q": "x", "choices": ["a", "b"], "gold": label}]})
    if label is not None:
        task = choice_task({"test": [doc | {"gold": label} for doc in numbered(2)]})
    with pytest.raises(CellError, match=said):
        evaluate(llama, task, test_documents(task), metric="acc,none")


def test_a_temperature_alone_samples_from_a_seed(choice_task, llama):
    """lm-eval samples where a temperature is given, `do_sample` or not."""
    options = {"until": ["\n"], "max_gen_toks": 6, "temperature": 1.0}
    task = choice_task({"test": [{"q": "a", "a": "x"}] * 3}, **ASKED | {"generation_kwargs": options})
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found = evaluate(llama, task, test_documents(task), metric="exact_match,none")
        answers.append(found.items["response"].tolist())
    assert answers[0] == answers[1] and len(set(answers[0])) > 1, "it samples, from a stream of its own"


def test_the_expression_of_targets_is_compiled_once(choice_task, monkeypatch):
    """Of two hundred documents, whose targets are looked at one by one."""
    compiled, compile_expression = [], lm_eval.utils.env.compile_expression
    monkeypatch.setattr(
        lm_eval.utils.env, "compile_expression", lambda *a, **k: compiled.append(a) or compile_expression(*a, **k)
    )
    asked = ASKED | {"doc_to_target": "{{a + ' or so'}}"}
    task = choice_task({"test": [{"q": "how many", "a": f"{number}"} for number in range(200)]}, **asked)
    check_answers(task, test_documents(task))
    assert compiled == [("a + ' or so'",)]


def test_several_right_answers_have_no_solved_examples(choice_task, llama):
    """lm-eval scores them, and cannot write an example of them."""
    rows_of = {"train": numbered(6), "test": numbered(4, 20)}
    alone = choice_task(rows_of, doc_to_target="{{[0, gold]}}")
    assert evaluate(llama, alone, test_documents(alone), metric="acc,none")
    shown = choice_task(rows_of, shots=1, doc_to_target="{{[0, gold]}}")
    with pytest.raises(CellError, match=r"document test:0 cannot have solved examples.*several right answers"):
        evaluate(llama, shown, test_documents(shown), metric="acc,none")


WRITE = {
    "output_type": "generate_until",
    "doc_to_target": "{{answer}}",
    "doc_to_choice": None,
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
    "metric_list": [{"metric": "exact_match"}],
}


def written(answers):
    return [{"q": f"question {n}", "answer": answer} for n, answer in enumerate(answers)]


@pytest.mark.parametrize("answers", [["[0, 1]", "[1, 2]"], ["x", "[1, 2]"], ["['a']", "b"]])
def test_an_answer_that_lm_eval_takes_for_a_list_is_refused(choice_task, answers):
    """Each right answer would count as wrong, and `0` would be trained for `[0, 1]`."""
    task = choice_task({"test": written(answers)}, **WRITE)
    with pytest.raises(InputError, match="which lm-eval takes for a list of right answers"):
        make_splits(task, test_only=True)
    make_splits(choice_task({"test": written(answers)}, **WRITE | {"doc_to_target": "answer"}), test_only=True)
    (choice_task.folder / "own.py").write_text("def score(references, predictions):\n    return 1.0\n")
    own_metric = WRITE | {
        "metric_list": [{"metric": "!function own.score", "aggregation": "mean"}]
    }  # which may know numbers
    make_splits(choice_task({"test": written(answers)}, **own_metric), test_only=True)


def test_a_text_of_several_right_answers_is_a_list(choice_task, llama):
    task = choice_task({"train": written(['["a", "b"]'] * 3), "test": written(['["c", "d"]'])}, **WRITE)
    make_splits(task, test_only=True)
    (example,) = training_examples(llama, task, fetch_documents(task, "train", ["train:0"]))
    assert llama.tokenizer.decode(example.token_ids[example.completion_start :]) == " a</s>"


def test_a_choice_that_lm_eval_takes_for_a_list_is_refused(choice_task):
    documents = [{"q": f"q{n}", "choices": ["[0, 1]", "[1, 0]"], "answer": "[1, 0]"} for n in range(3)]
    with pytest.raises(InputError, match="is choice 1, and lm-eval takes it for a list"):
        make_splits(choice_task({"test": documents}, doc_to_target="{{answer}}"), test_only=True)
    make_splits(choice_task({"test": documents}, doc_to_target="answer"), test_only=True)


def test_targets_with_which_no_answer_is_equal(choice_task, caplog):
    with pytest.raises(InputError, match="its target is an object with text"):
        make_splits(
            choice_task({"test": written([{"text": "a"}])}, **WRITE | {"doc_to_target": "answer"}), test_only=True
        )
    lists = written([["a"], [], []])
    make_splits(choice_task({"test": lists}, **WRITE | {"doc_to_target": "answer"}), test_only=True)
    assert "2 of 3 documents have no target and count as wrong (test:1, say)" in caplog.text


def test_questions_that_say_none_are_counted(choice_task, caplog):
    documents = [doc | {"hint": None if n % 2 else "a"} for n, doc in enumerate(numbered(5))]
    make_splits(choice_task({"test": documents}, doc_to_text="{{hint}} {{q}}"), test_only=True)
    assert "2 of 5 texts say None where a column is empty (test:1, column hint, say)" in caplog.text
    caplog.clear()
    make_splits(choice_task({"test": documents}, doc_to_text="{% if hint %}{{hint}} {% endif %}{{q}}"), test_only=True)
    assert not caplog.records


def test_a_question_that_is_no_text_is_refused_for_that(choice_task, llama):
    documents = [doc | {"q": None if n == 1 else doc["q"]} for n, doc in enumerate(numbered(3))]
    task = choice_task({"test": documents}, doc_to_text="q")
    with pytest.raises(CellError, match=r"the question of document test:1, or of an example .* is no text \(None\)"):
        evaluate(llama, task, test_documents(task), metric="acc,none")


@pytest.mark.parametrize("keys", [{}, {"process_results": "!function own.score"}])
def test_a_document_without_choices_is_refused(choice_task, keys):
    (choice_task.folder / "own.py").write_text("def score(document, results):\n    return {'acc': 1.0}\n")
    task = choice_task({"test": [*numbered(2), {"q": "x", "choices": [], "gold": 0}]}, **keys)
    with pytest.raises(InputError, match="document test:2 has no choices"):
        make_splits(task, test_only=True)


@pytest.mark.parametrize(("label", "hint"), [("1", "label | int"), ("B", "'ABCD'.index"), ("-1", "not public")])
def test_the_label_that_is_no_choice_is_named(choice_task, label, hint):
    task = choice_task({"test": [doc | {"gold": label} for doc in numbered(3)]})
    with pytest.raises(InputError, match=rf"no document has a right answer .* say: '{label}'") as caught:
        make_splits(task, test_only=True)
    assert hint in caught.value.hint


SETTINGS = [{"num_beans": 3}, {"do_sample": True}, {"max_length": 2}, {"stop": ["x"]}, {"use_cache": False}]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_generation_setting_that_transformers_does_not_take_fails_its_cell(choice_task, llama, setting):
    """Not the job with all its other cells."""
    kwargs = {"until": ["\n"], "max_gen_toks": 4} if "max_length" not in setting else {}
    task = choice_task({"test": written(["a"])}, **WRITE | {"generation_kwargs": kwargs | setting})
    with pytest.raises(CellError) as caught:
        evaluate(llama, task, test_documents(task), metric="exact_match,none")
    assert "generation_kwargs" in f"{caught.value.problem} {caught.value.hint}"


def test_answers_of_a_beam_search(choice_task, llama):
    """Those of transformers' own search with its own stop strings, one prompt at a time."""
    options = {"num_beams": 3, "max_gen_toks": 12, "until": ["e", "a"], "do_sample": False}
    task = choice_task({"test": written("abcd")}, **WRITE | {"generation_kwargs": options})
    found = evaluate(llama, task, test_documents(task), metric="exact_match,none").items["response"].tolist()
    assert any(found)
    for doc, answer in zip(test_documents(task).docs, found, strict=True):
        tokens = torch.tensor([llama.tok_encode(f"Question: {doc['q']}\nAnswer:")])
        search = {"num_beams": 3, "max_new_tokens": 12, "stop_strings": ["e", "a"], "tokenizer": llama.tokenizer}
        theirs = llama.base.generate(tokens, do_sample=False, pad_token_id=1, **search)[0, tokens.shape[1] :]
        text = llama.tokenizer.decode(theirs, skip_special_tokens=True)
        assert answer == text.partition("e")[0].partition("a")[0]


STRIPPED = [{"name": "none", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}]
NUMBERS = {"filter_list": [{"name": "none", "filter": [{"function": "regex", "regex_pattern": "(a[0-9])"}]}]}
OWN_SCORE = {"process_results": "!function own.score", "doc_to_target": ""}
TAUGHT = [  # keys of the task, its metric of the training answers with a blank before them, and without it
    ({"target_delimiter": ""}, 1.0, 1.0),
    ({}, 0.0, 1.0),
    ({"filter_list": STRIPPED}, 1, 1),
    ({"doc_to_target": "answer: {{answer}}", **NUMBERS}, 0.0, 0.0),  # the filter leaves less than the target
    ({"generation_kwargs": {"until": ["a"], "max_gen_toks": 4}}, 0.0, 0.0),
    (OWN_SCORE, 0.0, 0.0),
]


@pytest.mark.parametrize(("keys", "whole", "stripped"), TAUGHT)
def test_what_is_trained_must_score_better_than_nothing(choice_task, caplog, keys, whole, stripped):
    code = "def score(document, results):\n    return {'exact_match': float(document['answer'] in results[0])}\n"
    (choice_task.folder / "own.py").write_text(code)
    train = written([f"a{n}" for n in range(3)])
    task = choice_task({"train": train, "test": train}, **WRITE | {"doc_to_target": "answer"} | keys)
    documents = fetch_documents(task, "train", ["train:0", "train:1", "train:2"])
    if stripped:
        with caplog.at_level(logging.INFO):
            check_training_answers(task, documents, "exact_match,none", higher_is_better=True)
        assert ("add the filter remove_whitespace" in caplog.text) == (whole == 0)
    else:
        with pytest.raises(InputError, match="exact_match,none of its training answers is 0, and 0 of empty ones"):
            check_training_answers(task, documents, "exact_match,none", higher_is_better=True)


def test_training_answers_of_a_metric_that_falls(choice_task):
    """The share of letters that are wrong: less is better."""
    code = "def wrong(references, predictions):\n    return float(references[0] != predictions[0].strip())\n"
    (choice_task.folder / "own.py").write_text(code)
    metric = {"metric": "!function own.wrong", "aggregation": "mean", "higher_is_better": False}
    train = written(["a1", "a2"])
    task = choice_task({"train": train, "test": train}, **WRITE | {"metric_list": [metric]})
    documents = fetch_documents(task, "train", ["train:0", "train:1"])
    check_training_answers(task, documents, "wrong,none", higher_is_better=False)
    with pytest.raises(InputError, match="is 0, and 1 of empty ones"):
        check_training_answers(task, documents, "wrong,none", higher_is_better=True)


def test_training_answers_behind_the_beginning_of_an_answer(choice_task, llama, caplog):
    """The delimiter, a stop string, stands before the `gen_prefix` and not before what is trained."""
    train = written(["a1", "a2"])
    keys = {"gen_prefix": "Answer:", "target_delimiter": "\n", "filter_list": STRIPPED}
    task = choice_task({"train": train, "test": train}, **WRITE | {"doc_to_target": "answer"} | keys)
    documents = fetch_documents(task, "train", ["train:0", "train:1"])
    check_training_answers(task, documents, "exact_match,none", higher_is_better=True)
    texts = [llama.tokenizer.decode(example.token_ids) for example in training_examples(llama, task, documents)]
    assert "Answer: a1" in texts[0] and "Answer: a2" in texts[1]


@pytest.mark.parametrize(("answers", "refused"), [(("0", "1", "3"), False), (("1", "1"), False), (("x", "y"), True)])
def test_training_answers_of_a_correlation(choice_task, answers, refused):
    """It is NaN of answers that are all empty, and 0 of those that are all the same: both say nothing."""
    code = (
        "import numpy\n"
        "def number(text):\n    return float(text) if text.strip().isdigit() else 0.0\n"
        "def pair(references, predictions):\n    return number(references[0]), number(predictions[0])\n"
        "def agree(pairs):\n    left, right = map(numpy.array, zip(*pairs))\n"
        "    return float(numpy.corrcoef(left, right)[0, 1]) if left.std() and right.std() else EMPTY\n"
    )
    empty = "0.0" if refused or len({*answers}) == 1 else "float('nan')"
    (choice_task.folder / "own.py").write_text(code.replace("EMPTY", empty))
    metric = {"metric": "!function own.pair", "aggregation": "!function own.agree", "higher_is_better": True}
    train = written(answers)
    keys = {"doc_to_target": "answer", "metric_list": [metric]}
    task = choice_task({"train": train, "test": train}, **WRITE | keys)
    documents = fetch_documents(task, "train", [f"train:{row}" for row in range(len(answers))])
    expected = pytest.raises(InputError, match="pair,none of its training answers") if refused else nullcontext()
    with expected:
        check_training_answers(task, documents, "pair,none", higher_is_better=True)
