"""Logs of Inspect: two that it wrote for its own mock model, read by its own reader where it is installed."""

import sys
from pathlib import Path

import pytest
from tests.unit.tables.conftest import read_files

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions
from lm_validity.tables.schema import ITEMS, read_table

LOGS = Path(__file__).parents[2] / "fixtures"


def test_scores_and_items(tmp_path):
    """Three questions, and two sums asked twice each: epochs are averaged."""
    pytest.importorskip("inspect_ai", reason="needs inspect_ai")
    scores, log = import_files([LOGS], tmp_path / "out")
    columns = ["model", "benchmark", "metric", "value", "n_items"]
    assert scores[columns].values.tolist() == [
        ["mockllm/model", "quiz", "accuracy,choice", pytest.approx(1 / 3), 3],
        ["mockllm/model", "sums", "accuracy,match", 0.75, 2],
    ]
    assert scores["stderr"].tolist() == pytest.approx([1 / 3, 0.25]) and log.files == 2
    items = read_table(tmp_path / "out/items.parquet", ITEMS).sort_values(["benchmark", "doc_id"])
    assert items[["benchmark", "doc_id", "correct", "response"]].values.tolist() == [
        ["quiz", "1", 1, "A"], ["quiz", "2", 0, "A"], ["quiz", "3", 0, "A"],
        ["sums", "s0", 1, "0"], ["sums", "s1", 0.5, "2"],
    ]  # fmt: skip
    assert dict(items["metric_values"].iloc[4]) == {"accuracy,match": 0.5}


def test_a_log_that_cannot_be_read(tmp_path):
    pytest.importorskip("inspect_ai", reason="needs inspect_ai")
    (tmp_path / "x.eval").write_bytes((LOGS / "inspect_quiz.eval").read_bytes()[:3000])
    with pytest.raises(InputError, match=r"x\.eval: not a log of Inspect"):
        read_files([tmp_path / "x.eval"], ImportOptions(), ImportLog())
    (tmp_path / "y.json").write_text('{"eval": {}, "status": "success", "plan": {}}')
    with pytest.raises(InputError, match=r"y\.json: not a log of Inspect"):
        read_files([tmp_path / "y.json"], ImportOptions(), ImportLog())


def test_without_the_package_the_log_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(InputError, match=r"inspect_quiz\.eval: inspect_ai is not installed") as caught:
        read_files([LOGS / "inspect_quiz.eval"], ImportOptions(), ImportLog())
    assert "lm-validity[inspect]" in caught.value.hint
