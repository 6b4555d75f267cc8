"""Logs of Inspect: two that it wrote for its own mock model, and logs of which samples failed."""

from pathlib import Path

import pytest
from tests.unit.tables.conftest import inspect_log, read_files

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions
from lm_validity.tables.schema import ITEMS, SETTINGS, read_table

LOGS = Path(__file__).parents[2] / "fixtures"


def test_scores_and_items(tmp_path):
    """Three questions, and two sums asked twice each: epochs are runs."""
    scores, log = import_files(sorted(LOGS.glob("inspect_*.eval")), tmp_path / "out")
    columns = ["model", "benchmark", "metric", "value", "n_items"]
    assert scores[columns].values.tolist() == [
        ["mockllm/model", "quiz", "accuracy,choice", pytest.approx(1 / 3), 3],
        ["mockllm/model", "sums", "accuracy,match", 1.0, 2],
        ["mockllm/model", "sums", "accuracy,match", 0.5, 2],
    ]
    assert scores["stderr"].tolist() == pytest.approx([1 / 3, 0, 0.5]) and log.files == 2
    items = read_table(tmp_path / "out/items.parquet", ITEMS).sort_values(["benchmark", "doc_id", "run"])
    assert items[["benchmark", "doc_id", "correct", "response"]].values.tolist() == [
        ["quiz", "1", 1, "A"], ["quiz", "2", 0, "A"], ["quiz", "3", 0, "A"],
        ["sums", "s0", 1, "0"], ["sums", "s0", 1, "0"], ["sums", "s1", 1, "2"], ["sums", "s1", 0, "5"],
    ]  # fmt: skip
    assert dict(items["metric_values"].iloc[5]) == {"accuracy,match": 1.0}


def test_a_log_that_cannot_be_read(tmp_path):
    (tmp_path / "x.eval").write_bytes((LOGS / "inspect_quiz.eval").read_bytes()[:3000])
    with pytest.raises(InputError, match=r"x\.eval: not a log of Inspect"):
        read_files([tmp_path / "x.eval"], ImportOptions(), ImportLog())
    (tmp_path / "y.json").write_text('{"eval": {}, "status": "success", "plan": {}}')
    with pytest.raises(InputError, match=r"y\.json"):
        read_files([tmp_path / "y.json"], ImportOptions(), ImportLog())


@pytest.mark.parametrize("suffix", [".eval", ".json"])
def test_how_many_samples_were_scored_goes_to_the_settings(tmp_path, suffix):
    inspect_log(tmp_path / f"in/a{suffix}", "hf/acme/ant-1b", [1] * 4 + [0], total=20, task_version=2)
    inspect_log(tmp_path / f"in/b{suffix}", "acme/bee-1b", [1] * 7 + [0] * 13, task_version=2)
    scores, log = import_files([tmp_path / "in"], tmp_path / "out")
    assert scores[["model", "benchmark", "metric", "value", "n_items", "num_fewshot"]].values.tolist() == [
        ["acme/ant-1b", "quiz", "accuracy,match", 0.8, 5, 3],
        ["acme/bee-1b", "quiz", "accuracy,match", 0.35, 20, 3],
    ]
    made = read_table(tmp_path / "out/settings.parquet", SETTINGS).sort_values("model")
    columns = ["n_items_scored", "n_items_total", "task_version", "harness", "temperature", "max_gen_toks"]
    assert made[columns].values.tolist() == [[5, 20, "2", "inspect", 0, 64], [20, 20, "2", "inspect", 0, 64]]
    items = read_table(tmp_path / "out/items.parquet", ITEMS)
    assert items.groupby("model")["correct"].sum().tolist() == [4, 7] and len(items) == 25
    assert [note for note in log.notes if "1 file" in note]


def test_a_whole_run_counts_before_a_newer_one_of_which_samples_failed(tmp_path):
    inspect_log(tmp_path / "in/a.eval", "acme/ant-1b", [1] * 4 + [0], total=20, created="2026-11-27T10:00:00+00:00")
    inspect_log(tmp_path / "in/b.eval", "acme/ant-1b", [1] * 7 + [0] * 13)
    scores, _ = import_files([tmp_path / "in"], tmp_path / "out")
    assert scores["value"].tolist() == [0.35]


def test_a_limit_of_a_range_is_its_length(tmp_path):
    inspect_log(tmp_path / "a.eval", "acme/ant-1b", [1] * 7 + [0] * 3, config={"limit": [10, 20]})
    import_files([tmp_path / "a.eval"], tmp_path / "out")
    assert read_table(tmp_path / "out/settings.parquet", SETTINGS)["limit"].tolist() == [10]
