"""lm-eval's samples_*.jsonl as items: choices, right answers, filters, documents, and what the reports make of them."""

import gzip
import json
import math

import numpy as np
import pandas as pd
import pytest
from tests.unit.tables.conftest import put

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.lm_eval import read_sample
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.items import read_benchmark_items

DATE = "2024-11-26T10-47-32.305387"


def choice_line(doc_id: int, loglikelihoods, target, choices=("red", "green", "blue"), **more) -> dict:
    """A line as lm-eval >= 0.4.5 writes it."""
    return {
        "doc_id": doc_id,
        "doc": {"question": f"q{doc_id}", "subject": "colours"},
        "target": str(target),
        "arguments": {f"gen_args_{i}": {"arg_0": "Q:", "arg_1": f" {text}"} for i, text in enumerate(choices)},
        "resps": [[[str(each), "False"]] for each in loglikelihoods],
        "filtered_resps": [[str(each), "False"] for each in loglikelihoods],
        "filter": "none",
        "metrics": [name for name in more if name.startswith("acc")],
        "doc_hash": f"hash{doc_id}",
        **more,
    }


def answer_line(doc_id: int, text: str, filter_name: str | None, value: float) -> dict:
    line = {
        "doc_id": doc_id,
        "doc": {},
        "target": "5",
        "arguments": {"gen_args_0": {"arg_0": "Q:", "arg_1": {"until": ["\n"]}}},
        "resps": [[text]],
        "filtered_resps": [text.strip()],
        "exact_match": value,
    }
    return line if filter_name is None else line | {"filter": filter_name, "metrics": ["exact_match"]}


# ---- one line ----------------------------------------------------------------------------------------------------


def old_line() -> dict:
    """Requests as lists, log-likelihoods as numbers, neither metrics nor filter named."""
    line = choice_line(0, (-1.0, -2.0), 0, ("a", "é"), acc=1.0)
    del line["filter"], line["metrics"], line["doc_hash"]
    requests, answers = [["Q:", " a"], ["Q:", " é"]], [[[-1.0, False]], [[-2.0, True]]]
    return line | {"arguments": requests, "resps": answers, "target": 0}


def mutual_line() -> dict:
    """What acc_mutual_info adds: the same choices again, after nothing."""
    line = choice_line(0, (-1.0, -2.0, -7.0, -5.0), 0, ("a", "b", "a", "b"), acc=1.0)
    for number in (2, 3):
        line["arguments"][f"gen_args_{number}"]["arg_0"] = ""
    return line


COLOURS = {
    "doc_id": "4", "doc_hash": "hash4", "subject": "colours", "gold": 1,
    "choice_loglikelihoods": [-3.0, -1.5, -2.0], "choice_characters": [3, 5, 4], "choice_bytes": [3, 5, 4],
}  # fmt: skip
OLD = {"gold": 0, "choice_loglikelihoods": [-1.0, -2.0], "choice_characters": [1, 1], "choice_bytes": [1, 2]}
MUTUAL = {
    "choice_loglikelihoods": [-1.0, -2.0], "unconditional_loglikelihoods": [-7.0, -5.0], "choice_characters": [1, 1],
    "gold": 0,
}  # fmt: skip
ROLLING = {"doc_id": 0, "arguments": [["a text"]], "resps": [["-12.0"]]}
PAIR = choice_line(0, (-1.0, -2.0), 0, ("a", "b"), acc=1.0) | {"metrics": ["acc", "f1"], "f1": [0, 1]}


@pytest.mark.parametrize(
    ("line", "filter_name", "values", "item"),
    [
        (choice_line(4, (-3.0, -1.5, -2.0), 1, acc=1.0, acc_norm=0.0), "none", {"acc": 1.0, "acc_norm": 0.0}, COLOURS),
        (choice_line(4, (-3.0, -1.5, -2.0), 1, acc=1.0, acc_norm=1e300), "none", {"acc": 1.0}, COLOURS),  # of no score
        (old_line(), None, {"acc": 1.0}, OLD),
        (mutual_line(), "none", {"acc": 1.0}, MUTUAL),
        (ROLLING | {"bits_per_byte": [-12.0, 6]}, None, {"bits_per_byte": 2 / math.log(2)}, {
            "choice_loglikelihoods": [-12.0], "gold": None}),
        (ROLLING | {"word_perplexity": [-12.0, 6]}, None, {"word_perplexity": math.e**2}, {}),
        (answer_line(0, " 5", "strict", 1.0), "strict", {"exact_match": 1.0}, {"response": " 5"}),
        (PAIR, "none", {"acc": 1.0, "f1": 0.0}, {}),
    ],
    ids=["choices", "beyond all scores", "old", "mutual", "rolling", "perplexity", "written", "pair"],
)  # fmt: skip
def test_one_line(line, filter_name, values, item):
    sample = read_sample(line)
    assert (sample.filter, sample.values) == (filter_name, pytest.approx(values))
    assert {name: sample.item.get(name) for name in item} == item
    assert item is not COLOURS or sample.item == COLOURS


@pytest.mark.parametrize(
    ("loglikelihoods", "choices", "target", "accuracy", "gold"),
    [
        ((-1.0, -2.0, -3.0), ("a", "b", "c"), "2", 0.0, 2),  # its place
        ((-1.0, -2.0, -3.0), ("a", "b", "c"), "c", 0.0, 2),  # its text
        ((-1.0, -2.0, -3.0), ("2", "1", "0"), "2", 1.0, 0),  # a text that looks like a place
        ((-1.0, -2.0, -3.0), ("2", "1", "0"), "0", 0.0, 2),
        ((-1.0, -2.0), ("same end", "same end"), "same end", 0.0, 1),  # winogrande
        ((-1.0, -2.0), ("same end", "same end"), "same end", 1.0, 0),
        ((-1.0, -2.0, -3.0), ("a", "b", "c"), "1", 0.34, 1),  # an accuracy that is none
        ((-1.0, -2.0, -3.0), ("a", "b", "c"), "1", 1.0, 1),
        ((-1.0, -2.0, -3.0), ("a", "b", "c"), "0", 0.0, 0),
        ((-1.0, -2.0, -3.0), ("a", "b", "c"), "[0, 2]", 0.0, None),
        ((-1.0, -2.0, -3.0), ("a", "b", "c"), "7", None, None),
    ],
)
def test_the_right_choice(loglikelihoods, choices, target, accuracy, gold):
    more = {} if accuracy is None else {"acc": accuracy}
    sample = read_sample(choice_line(0, loglikelihoods, target, choices, **more))
    assert sample.item["gold"] == gold


# ---- files -------------------------------------------------------------------------------------------------------


def write_lines(path, lines: list[dict]) -> None:
    put(path, "".join(json.dumps(line) + "\n" for line in lines))


def quiz_lines(correct, gold=None) -> list[dict]:
    """Lines whose answers are right as asked; `acc_norm` is right on the first."""
    gold = [number % 3 for number in range(len(correct))] if gold is None else gold
    lines = []
    for number, right in enumerate(correct):
        loglikelihoods = [-5.0, -5.5, -6.0]
        loglikelihoods[gold[number] if right else (gold[number] + 1) % 3] = -1.0
        lines.append(choice_line(number, loglikelihoods, gold[number], acc=float(right), acc_norm=float(number == 0)))
    return lines


def put_model(folder, model: str, correct, date: str = DATE, examples: int = 3, step: int = 7) -> None:
    place = folder / model.replace("/", "__")
    lines = quiz_lines(correct)
    write_lines(place / f"samples_quiz_{date}.jsonl", lines)
    accuracy, norm = (float(np.mean([line[name] for line in lines])) for name in ("acc", "acc_norm"))
    results = {"quiz": {"acc,none": accuracy, "acc_norm,none": norm}}
    document = {"results": results, "model_name": model, "n-shot": {"quiz": examples}}
    document |= {"config": {"model_args": f"pretrained={model},revision=step{step}"}}
    put(place / f"results_{date}.json", document)


def test_items_have_what_the_result_file_says(tmp_path):
    put_model(tmp_path / "in", "org/a", (1, 0, 1, 1))
    scores, log = import_files([tmp_path / "in"], tmp_path / "out")
    items = pd.read_parquet(tmp_path / "out" / "items.parquet")
    assert log.items == len(items) == 4 and log.files == 2 and len(scores) == 2
    for column, value in {"model": "org/a", "checkpoint": "step7", "iteration": 7, "num_fewshot": 3}.items():
        assert set(items[column]) == {value}
    assert items["correct"].tolist() == [1, 0, 1, 1] and items["gold"].tolist() == [0, 1, 2, 0]
    assert dict(items["metric_values"][0]) == {"acc,none": 1.0, "acc_norm,none": 1.0}
    answers = read_benchmark_items(tmp_path / "out" / "items.parquet", "quiz", metric="acc_norm,none")
    assert answers.models[0].correct.tolist() == [[1, 0, 0, 0]] and answers.subjects.tolist() == ["colours"] * 4


@pytest.mark.parametrize("packed", [False, True])
def test_without_a_result_file_the_folder_names_the_model_and_items_give_the_scores(tmp_path, packed):
    path = tmp_path / "in" / "org__a" / f"samples_quiz_{DATE}.jsonl"
    write_lines(path, quiz_lines((1, 0, 1, 1)))
    if packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    scores, _ = import_files([tmp_path / "in"], tmp_path / "out")
    rows = scores.set_index("metric")
    assert set(scores["model"]) == {"org/a"} and set(scores["benchmark"]) == {"quiz"}
    assert rows["value"].to_dict() == {"acc,none": 0.75, "acc_norm,none": 0.25}
    assert rows["stderr"]["acc,none"] == pytest.approx(np.std([1, 0, 1, 1], ddof=1) / 2)
    assert rows["n_items"]["acc,none"] == 4 and scores["num_fewshot"].isna().all()


def filter_lines(names) -> list[dict]:
    return [
        answer_line(number, f" {number}", name, float(number == 0 or place == 1))
        for place, name in enumerate(names)
        for number in range(3)
    ]


@pytest.mark.parametrize("second", ["flexible", "#2", "#a"])
def test_filters_that_lines_name(tmp_path, second):
    """Half a pair of surrogates, which no table can hold, is a question mark."""
    lines = filter_lines(("strict", second))
    lines[2]["resps"] = [["\ud83d"]]
    write_lines(tmp_path / "in" / "a" / f"samples_sums_{DATE}.jsonl", lines)
    scores, _ = import_files([tmp_path / "in"], tmp_path / "out")
    values = {f"exact_match,{second}": 1.0, "exact_match,strict": pytest.approx(1 / 3)}
    assert scores.set_index("metric")["value"].to_dict() == values
    items = pd.read_parquet(tmp_path / "out" / "items.parquet")
    assert items["correct"].tolist() == [1, 0, 0] and items["response"].tolist() == [" 0", " 1", "?"]
    assert dict(items["metric_values"][2]) == {"exact_match,strict": 0.0, f"exact_match,{second}": 1.0}


@pytest.mark.parametrize(
    ("filters", "values"),
    [
        (
            {"exact_match,strict": 1 / 3, "exact_match,flexible": 1.0},
            {"exact_match,strict": 0, "exact_match,flexible": 1},
        ),
        ({}, {"exact_match,none": 0.0}),
    ],
)
def test_filters_that_only_the_result_file_names(filters, values, tmp_path):
    place = tmp_path / "in" / "a"
    write_lines(place / f"samples_sums_{DATE}.jsonl", filter_lines((None, None)))
    if filters:
        put(place / f"results_{DATE}.json", {"results": {"sums": filters}, "model_name": "a"})
    _, log = import_files([tmp_path / "in"], tmp_path / "out")
    assert dict(pd.read_parquet(tmp_path / "out" / "items.parquet")["metric_values"][2]) == values
    assert any("no name of their filters" in note for note in log.notes) == (not filters)


def test_a_document_that_is_there_twice_counts_once(tmp_path):
    lines = quiz_lines((1, 0, 1))
    write_lines(tmp_path / "in" / "a" / f"samples_quiz_{DATE}.jsonl", [*lines, lines[1] | {"acc": 1.0}])
    scores, log = import_files([tmp_path / "in"], tmp_path / "out")
    assert log.items == 3 and scores.set_index("metric")["value"]["acc,none"] == pytest.approx(2 / 3)
    assert any("repeat a document" in note for note in log.notes)


def test_items_of_other_documents_are_left_out(tmp_path):
    put_model(tmp_path / "in", "a", (1, 0, 1))
    put_model(tmp_path / "in", "b", (1, 0, 1))
    path = tmp_path / "in" / "b" / f"samples_quiz_{DATE}.jsonl"
    write_lines(path, [line | {"doc_hash": "other"} for line in quiz_lines((1, 0, 1))])
    scores, log = import_files([tmp_path / "in"], tmp_path / "out")
    assert set(pd.read_parquet(tmp_path / "out" / "items.parquet")["model"]) == {"a"} and len(scores) == 4
    assert [path for path, _ in log.skipped] == [str(tmp_path / "in" / "b" / f"samples_quiz_{DATE}.jsonl")]
    with pytest.raises(InputError, match="3 of 3"):
        import_files([tmp_path / "in"], tmp_path / "strict", ImportOptions(strict=True))
    assert not (tmp_path / "strict").exists()


def test_right_choices_are_known_of_all_documents_or_of_none(tmp_path):
    """One file that does not tell leaves the whole benchmark without: a table with some of them would be refused."""
    put_model(tmp_path / "in", "a", (1, 0, 1))
    lines = quiz_lines((1, 0, 1))
    lines[1]["target"] = "[0, 2]"
    put_model(tmp_path / "in", "b", (1, 0, 1))
    write_lines(tmp_path / "in" / "b" / f"samples_quiz_{DATE}.jsonl", lines)
    _, log = import_files([tmp_path / "in"], tmp_path / "out")
    answers = read_benchmark_items(tmp_path / "out" / "items.parquet", "quiz")
    assert answers.gold is None and len(answers.models) == 2
    assert any("Right choices unknown" in note and "quiz" in note for note in log.notes)


@pytest.mark.parametrize(
    "wrong",
    [
        '{"doc_id": 1}',
        "[1]",
        "{",
        '{"doc_id": 1, "resps": [], "arguments": []}',
        '{"doc_id": 9, "resps": ["a"], "filter": ["none"], "metrics": ["acc"], "acc": 1}',
    ],
)
def test_a_broken_line_skips_the_file_with_its_place(wrong, tmp_path):
    place = tmp_path / "in" / "a"
    write_lines(place / f"samples_quiz_{DATE}.jsonl", quiz_lines((1, 0)))
    path = place / f"samples_other_{DATE}.jsonl"
    write_lines(path, quiz_lines((1, 0)))
    path.write_text(path.read_text() + wrong + "\n")
    _, log = import_files([tmp_path / "in"], tmp_path / "out")
    assert [found for found, reason in log.skipped if reason.startswith("line 3:")] == [str(path)]
    assert set(pd.read_parquet(tmp_path / "out" / "items.parquet")["benchmark"]) == {"quiz"}
    with pytest.raises(InputError, match="line 3: not a sample"):
        import_files([path], tmp_path / "named")
    assert not (tmp_path / "named").exists()


def test_a_folder_of_several_models_needs_the_date(tmp_path):
    for model, date in (("a", "2024-01-01T00-00-00"), ("b", "2024-01-02T00-00-00")):
        document = {"results": {"quiz": {"acc,none": 0.5}}, "model_name": model}
        (tmp_path / f"results_{date}.json").write_text(json.dumps(document))
    write_lines(tmp_path / "samples_quiz_2024-01-02T00-00-00.jsonl", quiz_lines((1, 0)))
    write_lines(tmp_path / "samples_quiz_2024-01-03T00-00-00.jsonl", quiz_lines((1, 1)))
    _, log = import_files([tmp_path], tmp_path / "out")
    assert set(pd.read_parquet(tmp_path / "out" / "items.parquet")["model"]) == {"b"}
    assert len(log.skipped) == 1 and "several models" in log.skipped[0][1]


def test_the_items_of_a_group_are_those_of_its_tasks(tmp_path):
    tasks, own = ("mmlu_a", "mmlu_b", "mmlu_c"), {"acc,none": 0.5, "acc_stderr,none": 0.1}
    document = {
        "results": dict.fromkeys(("mmlu", *tasks), own), "groups": {"mmlu": own},
        "group_subtasks": {"mmlu": list(tasks)}, "n-shot": dict.fromkeys(tasks, 5), "model_name": "org/a",
    }  # fmt: skip
    put(tmp_path / "in" / f"results_{DATE}.json", document)
    for task in tasks:
        write_lines(tmp_path / "in" / f"samples_{task}_{DATE}.jsonl", quiz_lines((1, 0, 1, 1)))
    scores, _ = import_files([tmp_path / "in"], tmp_path / "out")
    items = pd.read_parquet(tmp_path / "out" / "items.parquet")
    assert scores["benchmark"].tolist() == ["mmlu"] and set(items["benchmark"]) == {"mmlu"}
    assert set(items["num_fewshot"]) == {5} and items["subject"].value_counts().to_dict() == dict.fromkeys(tasks, 4)
    assert items["doc_id"].is_unique and items["doc_id"][0] == "mmlu_a/0"
    without = {key: value for key, value in document["results"].items() if key != "mmlu"}
    for model in ("org/b", "org/c"):  # these have the tasks alone, so the tasks count for all models
        put(tmp_path / "in" / model.replace("/", "__") / "results.json", {"results": without, "model_name": model})
    scores, _ = import_files([tmp_path / "in"], tmp_path / "split")
    items = pd.read_parquet(tmp_path / "split" / "items.parquet")
    assert set(scores["benchmark"]) == set(tasks) == set(items["benchmark"]) and set(items["model"]) == {"org/a"}


def test_two_undated_files_of_samples_that_differ_are_a_conflict(tmp_path):
    for place, correct in (("x", (1, 0, 1, 1)), ("y", (1, 0, 1, 1))):
        write_lines(tmp_path / "in" / place / "org__a" / "samples_quiz.jsonl", quiz_lines(correct))
    assert len(import_files([tmp_path / "in"], tmp_path / "out")[0]) == 2
    write_lines(tmp_path / "in" / "y" / "org__a" / "samples_quiz.jsonl", quiz_lines((0, 0, 1, 1)))
    with pytest.raises(InputError, match="different values"):
        import_files([tmp_path / "in"], tmp_path / "out")


def test_samples_without_answers_are_scores_and_what_a_line_lacks_is_named(tmp_path):
    """Answers are left out where they are not to be published; a line without its document is refused by that name."""
    lines = quiz_lines((1, 0, 1, 1))
    for line in lines:
        del line["resps"]
    write_lines(tmp_path / "in" / "a" / "samples_quiz.jsonl", lines)
    scores, _ = import_files([tmp_path / "in"], tmp_path / "out")
    assert scores.set_index("metric")["value"]["acc,none"] == 0.75
    del lines[2]["doc_id"]
    write_lines(tmp_path / "in" / "a" / "samples_quiz.jsonl", lines)
    with pytest.raises(InputError, match=r"samples_quiz\.jsonl.*line 3: not a .* \(it has no doc_id\)"):
        import_files([tmp_path / "in"], tmp_path / "again")
