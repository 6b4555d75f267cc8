"""A user's own texts as a perplexity corpus: three kinds of files, the cut 8:1:1, what is refused."""

import json
import math

import pandas as pd
import pytest
from toy_world import evaluate

from lm_validity.cells.tasks.finding import TaskRecord
from lm_validity.cells.tasks.splits import documents, make_splits, prefetch_benchmark
from lm_validity.cells.tasks.tasks import load_task
from lm_validity.config.sheets import read_benchmarks
from lm_validity.errors import InputError
from lm_validity.tables.schema import read_benchmark_facts

TEXTS = [f'Letter {number}: "{{{{ no template }}}}" and {"a word " * (1 + number % 9)}.\n' for number in range(30)]


def write_corpus(kind: str, texts=TEXTS) -> str:
    """The texts as a corpus of one kind in the working directory; its path."""
    from pathlib import Path

    if kind == "txt":
        Path("texts").mkdir()
        for number, text in enumerate(texts):
            Path(f"texts/{number:02}.txt").write_text(text, newline="")
        return "texts"
    if kind == "parquet":
        pd.DataFrame({"id": range(len(texts)), "body": texts}).to_parquet("texts.parquet")
        return "texts.parquet"
    Path("texts.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    return "texts.jsonl"


def row(corpus: str, **more):
    columns = {"benchmark": "letters", "corpus": corpus, "text_column": "body", **more}
    with open("b.tsv", "w") as sheet:
        sheet.write("\t".join(columns) + "\n" + "\t".join(columns.values()) + "\n")
    return read_benchmarks("b.tsv", "run")["letters"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_three_kinds_of_files_are_the_same_task(kind, llama):
    found = row(write_corpus(kind))
    assert found.include_path == "results/run/corpora/letters" and not found.higher_is_better
    record = prefetch_benchmark(found)
    assert record["documents"] == {"test": 30} and record["output_type"] == "loglikelihood_rolling"
    task = load_task(TaskRecord.from_json(record["record"]))
    splits = make_splits(task)
    parts = [documents(task, split) for split in splits]
    assert [len(part) for part in parts] == [24, 3, 3] and splits.test.rule == "8:1:1 of the one split"
    texts = [[task.doc_to_target(doc) for doc in part.docs] for part in parts]
    assert sorted(text for part in texts for text in part) == sorted(TEXTS)
    result = evaluate(llama, task, parts[2], metric=found.metric)
    nats = sum(lls[0] for lls in result.items.choice_loglikelihoods)
    size = sum(len(text.encode()) for text in texts[2])
    assert result.metrics["bits_per_byte,none"][0] == pytest.approx(-nats / math.log(2) / size, rel=1e-12)


def test_reports_read_the_same_row():
    row("texts", category="corpus")
    (facts,) = read_benchmark_facts("b.tsv").itertuples()
    assert (facts.metric, facts.output_type) == ("bits_per_byte,none", "loglikelihood_rolling")
    assert not facts.higher_is_better


def test_blank_documents_are_left_out():
    record = prefetch_benchmark(row(write_corpus("jsonl", [*TEXTS, " \n", ""])))
    splits = make_splits(load_task(TaskRecord.from_json(record["record"])))
    assert sum(len(split.addresses) for split in splits) == 30


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"body": "a"}\n{"body": 3}\n', r"texts.jsonl, row 2, column 'body', value '3': not a text"),
        ('{"body": "a"}\n{"boby": "b"}\n', r"row 2, column 'body', value 'None': not a text"),
        ('{"boby": "a"}\n', r"the column 'body'.*did you mean 'boby'"),
        ('{"body": "a"}\n["b"]\n', r"JSON parse error"),
        ('{"body": "a"}\n{"body": \n', r"texts.jsonl, line 2: not JSON"),
        ('{"body": "a"}\n{"body": "b\\ud800"}\n', r"surrogate pair"),
        ('{"body": "a"}\n' * 9, r"texts.jsonl: 9 documents with text \(0 blank\), fewer than 10"),
    ],
)
def test_a_bad_corpus_is_named(content, problem, tmp_path):
    (tmp_path / "texts.jsonl").write_text(content)
    with pytest.raises(InputError, match=problem):
        prefetch_benchmark(row("texts.jsonl"))


def test_other_mistakes(tmp_path):
    (tmp_path / "texts.csv").write_text("a")
    (tmp_path / "texts.parquet").write_text("a")
    (tmp_path / "empty").mkdir()
    for corpus, problem in (
        ("none.jsonl", "no such file or folder"),
        ("texts.csv", "not a kind of corpus"),
        ("texts.parquet", "cannot build the task"),
        ("empty", "no .txt file in it"),
    ):
        with pytest.raises(InputError, match=problem):
            prefetch_benchmark(row(corpus))
    with pytest.raises(InputError, match="column 'task', value 'arc_easy': not for a corpus"):
        row("texts.csv", task="arc_easy")
