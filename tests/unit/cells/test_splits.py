"""Train, validation and test are disjoint, and stay what they were; corpora of one's own."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from toy_run import jobs_of, run_all, write_sheet
from toy_world import evaluate, toy_rows, write_lines, write_toy_tasks

from lm_validity.cells.tasks.finding import TaskRecord, find_task
from lm_validity.cells.tasks.splits import Split, documents, make_splits, prefetch_benchmark
from lm_validity.cells.tasks.tasks import load_task
from lm_validity.config.sheets import read_benchmarks
from lm_validity.errors import CellError, InputError
from lm_validity.run.workspace import read_manifest
from lm_validity.tables.schema import read_benchmark_facts


def load(folder, name: str, **options):
    return load_task(find_task(name, write_toy_tasks(folder, **options)))


def test_own_splits_are_kept(toy_task):
    splits = make_splits(toy_task("toy_choice"))
    assert splits.train.addresses == tuple(f"train:{row}" for row in range(24))
    assert splits.validation.addresses == tuple(f"validation:{row}" for row in range(10))
    assert splits.test.addresses == tuple(f"test:{row}" for row in range(14))
    assert splits.train.rule == "the task's own splits"


def kinds(split: Split) -> set[str]:
    return {address.split(":")[0] for address in split.addresses}


def test_without_test_split_validation_is_scored_and_a_fifth_of_train_validates(tmp_path):
    task = load(tmp_path, "toy_choice", splits=("train", "validation"))  # the shape of GLUE's tasks
    splits = make_splits(task)
    assert [kinds(split) for split in splits] == [{"train"}, {"train"}, {"validation"}]
    assert (len(splits.train.addresses), len(splits.validation.addresses)) == (19, 5)  # round(0.2 * 24) = 5
    assert not set(splits.train.addresses) & set(splits.validation.addresses)
    assert make_splits(task).train == splits.train
    assert make_splits(task, seed=1).train.addresses != splits.train.addresses
    # medmcqa: one split that is named twice is not validation
    path = write_toy_tasks(tmp_path) / "toy_choice.yaml"
    path.write_text(path.read_text().replace("test_split: test", "test_split: validation"))
    splits = make_splits(load_task(find_task("toy_choice", tmp_path)))
    assert splits.validation.rule == "20% of train becomes validation"
    assert kinds(splits.validation) == {"train"} and len(splits.test.addresses) == 10


def test_corpus_of_one_split_is_cut(tmp_path):
    splits = make_splits(load(tmp_path, "toy_corpus", splits=("test",), rows=lambda _: toy_rows("train")[:20]))
    assert [len(split.addresses) for split in splits] == [16, 2, 2]
    assert len({address for split in splits for address in split.addresses}) == 20
    assert splits.test.rule == "8:1:1 of the one split"


def test_question_task_without_train_only_tests(tmp_path):
    task = load(tmp_path, "toy_choice", splits=("test",))
    with pytest.raises(InputError, match="toy_choice: it has no training documents"):
        make_splits(task)
    splits = make_splits(task, test_only=True)
    assert splits.train is None and splits.validation is None and len(splits.test.addresses) == 14


def overlapping(split: str) -> list[dict]:
    """Test's first question is also validation's last, and train's first in other case, spacing and label."""
    rows = [row | {"id": f"{split}-{number}"} for number, row in enumerate(toy_rows(split))]
    test = toy_rows("test")[0]
    if split == "validation":
        rows[-1] = test | {"id": "other"}
    if split == "train":
        rows[0] = test | {"name": f"  {test['name'].upper()}", "gold": (test["gold"] + 1) % 4, "id": "other"}
        rows[1] = rows[1] | {"id": "test-3"}
        rows[2] = toy_rows("validation")[4] | {"id": "other"}
    return rows


def test_overlap_leaves_the_lower_split_only(tmp_path):
    task = load(tmp_path, "toy_choice", rows=overlapping)
    with pytest.raises(InputError, match=r"1 of 10 rows of the validation split occur in test \(1 by text"):
        make_splits(task)
    splits = make_splits(task, allow_overlap=True)
    assert len(splits.test.addresses) == 14
    assert splits.validation.addresses == tuple(f"validation:{row}" for row in range(9))
    assert splits.train.addresses == tuple(f"train:{row}" for row in range(3, 24))
    assert (splits.train.removed_by_text, splits.train.removed_by_id) == (2, 1)


def test_caps_are_prefixes_of_one_permutation(toy_task):
    task = toy_task("toy_choice")
    large, small = make_splits(task, caps=(12, 6, 8)), make_splits(task, caps=(5, 3, 4))
    for more, less, counts in zip(large, small, ((12, 5), (6, 3), (8, 4)), strict=True):
        assert (len(more.addresses), len(less.addresses)) == counts
        assert set(less.addresses) < set(more.addresses)


def test_json_round_trip_and_tampering(toy_task):
    split = make_splits(toy_task("toy_blank")).train
    record = json.loads(json.dumps(split.to_json()))
    assert Split.from_json(record) == split
    record["hashes"][0], record["hashes"][1] = record["hashes"][1], record["hashes"][0]
    for changed in (record, record | {"addresses": record["addresses"][1:]}):
        with pytest.raises(CellError, match="changed after it was written"):
            Split.from_json(changed)


def test_changed_data_names_the_row(tmp_path):
    splits = make_splits(load(tmp_path / "a", "toy_choice"))

    def changed(split: str) -> list[dict]:
        rows = toy_rows(split)
        rows[6]["gold"] = (rows[6]["gold"] + (split == "validation")) % 4
        return rows

    task = load(tmp_path / "b", "toy_choice", rows=changed)
    assert len(documents(task, splits.train)) == 24
    with pytest.raises(CellError, match="document validation:6 changed"):
        documents(task, splits.validation)


def test_lost_rows_fail_the_cells_that_read_them_and_no_other(start, tmp_path):
    workspace = start()
    rows_of_test = tmp_path / "tasks/data/test.jsonl"
    rows_of_test.write_text("".join(rows_of_test.read_text().splitlines(keepends=True)[:-1]))
    run_all(workspace, "evaluate_model")
    (job,) = jobs_of(workspace, "evaluate_model")
    validation, test = (read_manifest(path)[0] for path in sorted(workspace.grid.manifests(job), reverse=True))
    assert (validation.status, test.status) == ("done", "failed")
    assert "there is no document test:9, only 9" in test.error and "split it again" in test.hint


def test_reading_train_and_validation_never_reads_test(toy_task):
    task = toy_task("toy_choice")
    splits = make_splits(task)

    def forbidden():
        raise AssertionError("the test split was read")

    task.test_docs = forbidden
    assert len(documents(task, splits.train)) + len(documents(task, splits.validation)) == 34


def test_empty_and_broken_rows(tmp_path):
    with pytest.raises(InputError):
        make_splits(load(tmp_path / "a", "toy_choice", rows=lambda s: toy_rows(s) if s == "test" else []))

    def broken(split: str) -> list[dict]:
        rows = toy_rows(split)
        rows[5] |= {"choices": None} if split == "train" else {}
        return rows

    with pytest.raises(InputError, match="toy_choice: train row 5 cannot be rendered"):
        make_splits(load(tmp_path / "b", "toy_choice", rows=broken))


TEXTS = [f'Letter {number}: "{{{{ no template }}}}" and {"a word " * (1 + number % 9)}.\n' for number in range(30)]


def write_corpus(kind: str, texts=TEXTS) -> str:
    """The texts as a corpus of one kind in the working directory; its path."""
    if kind == "txt":
        Path("texts").mkdir()
        for number, text in enumerate(texts):
            Path(f"texts/{number:02}.txt").write_text(text, newline="")
        return "texts"
    if kind == "parquet":
        pd.DataFrame({"id": range(len(texts)), "body": texts}).to_parquet("texts.parquet")
        return "texts.parquet"
    write_lines("texts.jsonl", [{"body": text} for text in texts])
    return "texts.jsonl"


pytestmark = pytest.mark.usefixtures("start")  # whose working directory is empty


def row(corpus: str, **more):
    columns = {"benchmark": "letters", "corpus": corpus, "text_column": "body", **more}
    return read_benchmarks(write_sheet("b.tsv", columns), "run")["letters"]


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


def test_blank_documents_are_left_out_and_reports_read_the_same_row():
    record = prefetch_benchmark(row(write_corpus("jsonl", [*TEXTS, " \n", ""])))
    splits = make_splits(load_task(TaskRecord.from_json(record["record"])))
    assert sum(len(split.addresses) for split in splits) == 30
    (facts,) = read_benchmark_facts("b.tsv").itertuples()
    assert (facts.metric, facts.output_type) == ("bits_per_byte,none", "loglikelihood_rolling")
    assert not facts.higher_is_better


BAD_CORPORA = [
    ("texts.jsonl", '{"body": "a"}\n{"body": 3}\n', r"texts.jsonl, row 2, column 'body', value '3': not a text"),
    ("texts.jsonl", '{"body": "a"}\n{"boby": "b"}\n', r"row 2, column 'body', value 'None': not a text"),
    ("texts.jsonl", '{"boby": "a"}\n', r"the column 'body'.*did you mean 'boby'"),
    ("texts.jsonl", '{"body": "a"}\n["b"]\n', r"JSON parse error"),
    ("texts.jsonl", '{"body": "a"}\n{"body": \n', r"texts.jsonl, line 2: not JSON"),
    ("texts.jsonl", '{"body": "a"}\n{"body": "b\\ud800"}\n', r"surrogate pair"),
    ("texts.jsonl", '{"body": "a"}\n' * 9, r"texts.jsonl: 9 documents with text \(0 blank\), fewer than 10"),
    ("none.jsonl", None, "no such file or folder"),
    ("texts.csv", "a", "not a kind of corpus"),
    ("texts.parquet", "a", "cannot build the task"),
    (".", None, "no .txt file in it"),
]


@pytest.mark.parametrize(("corpus", "content", "problem"), BAD_CORPORA)
def test_a_bad_corpus_is_named(corpus, content, problem):
    if content is not None:
        Path(corpus).write_text(content)
    with pytest.raises(InputError, match=problem):
        prefetch_benchmark(row(corpus))
    with pytest.raises(InputError, match="column 'task', value 'arc_easy': not for a corpus"):
        row(corpus, task="arc_easy")
