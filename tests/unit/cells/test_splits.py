"""Rules, disjointness, caps and hashes of the splits."""

import json

import pytest
from toy_run import start_run
from toy_world import toy_rows, write_toy_tasks

from lm_validity.cells.runner import run_job
from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.splits import Split, documents, make_splits
from lm_validity.cells.tasks.tasks import load_task
from lm_validity.errors import CellError, InputError
from lm_validity.run.workspace import read_manifest


def load(folder, name: str, **options):
    return load_task(find_task(name, write_toy_tasks(folder, **options)))


def test_own_splits_are_kept(toy_task):
    splits = make_splits(toy_task("toy_choice"))
    assert splits.train.addresses == tuple(f"train:{row}" for row in range(24))
    assert splits.validation.addresses == tuple(f"validation:{row}" for row in range(10))
    assert splits.test.addresses == tuple(f"test:{row}" for row in range(14))
    assert splits.train.rule == "the task's own splits"


def test_without_test_split_validation_is_scored_and_a_fifth_of_train_validates(tmp_path):
    task = load(tmp_path, "toy_choice", splits=("train", "validation"))  # the shape of GLUE's tasks
    splits = make_splits(task)
    assert {address.split(":")[0] for address in splits.test.addresses} == {"validation"}
    assert {address.split(":")[0] for address in splits.validation.addresses} == {"train"}
    assert (len(splits.train.addresses), len(splits.validation.addresses)) == (19, 5)  # round(0.2 * 24) = 5
    assert not set(splits.train.addresses) & set(splits.validation.addresses)
    assert make_splits(task).train == splits.train
    assert make_splits(task, seed=1).train.addresses != splits.train.addresses


def test_one_split_named_twice_is_not_validation(tmp_path):
    write_toy_tasks(tmp_path)
    path = tmp_path / "toy_choice.yaml"
    path.write_text(path.read_text().replace("test_split: test", "test_split: validation"))  # medmcqa
    splits = make_splits(load_task(find_task("toy_choice", tmp_path)))
    assert splits.validation.rule == "20% of train becomes validation"
    assert {address.split(":")[0] for address in splits.validation.addresses} == {"train"}
    assert len(splits.test.addresses) == 10


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
        rows[6] = rows[6] | {"gold": (rows[6]["gold"] + 1) % 4}
        return rows if split == "validation" else toy_rows(split)

    task = load(tmp_path / "b", "toy_choice", rows=changed)
    assert len(documents(task, splits.train)) == 24
    with pytest.raises(CellError, match="document validation:6 changed"):
        documents(task, splits.validation)


def test_lost_rows_fail_the_cells_that_read_them_and_no_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workspace = start_run(tmp_path)
    rows_of_test = tmp_path / "tasks/data/test.jsonl"
    rows_of_test.write_text("".join(rows_of_test.read_text().splitlines(keepends=True)[:-1]))
    (job,) = (job for job in workspace.grid.jobs.values() if job.rule == "evaluate_model")
    run_job(workspace, job)
    validation, test = (read_manifest(path)[0] for path in sorted(workspace.grid.manifests(job), reverse=True))
    assert (validation.status, test.status) == ("done", "failed")
    assert "there is no document test:9, only 9 of them" in test.error and "split it again" in test.hint


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
        return [
            row | {"choices": None} if number == 5 and split == "train" else row
            for number, row in enumerate(toy_rows(split))
        ]

    with pytest.raises(InputError, match="toy_choice: train row 5 cannot be rendered"):
        make_splits(load(tmp_path / "b", "toy_choice", rows=broken))
