"""The sheets of the published grid hold what the published files hold."""

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "config" / "paper"
PUBLISHED = ROOT / "examples" / "published"

pytestmark = pytest.mark.published


def rows(path: Path, delimiter: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, delimiter=delimiter))


def test_models_agree():
    sheet = {row["path"]: row for row in rows(PAPER / "train_before_test_models.tsv", "\t")}
    published = {row["model_id"]: row for row in rows(PUBLISHED / "models.csv", ",")}
    assert list(sheet) == list(published)
    for hub_id, row in published.items():
        ours = sheet[hub_id]
        for column in ("family", "instruction_tuned", "in_compute_plot"):
            assert ours[column] == row[column], (hub_id, column)
        assert float(ours["parameters_b"]) == float(row["params_B"]), hub_id
        assert float(ours["tokens_b"]) == float(row["tokens_B"]), hub_id
        # the published figures label GPT-2 medium, which has 355 million parameters, as 335M
        assert ours["display_name"] == row["display_name"].replace("335M", "355M"), hub_id


def test_benchmarks_agree():
    sheet = rows(PAPER / "train_before_test_benchmarks.tsv", "\t")
    published = [row for row in rows(PUBLISHED / "benchmarks.csv", ",") if row["category"] != "Perplexity"]
    assert [row["benchmark"] for row in sheet] == [row["task"] for row in published]
    same = dict.fromkeys(("category", "metric", "output_type", "higher_is_better")) | {
        "published_train_rows": "train_rows",
        "published_train_used": "train_used",
        "published_validation_used": "valid_used",
        "published_test_rows": "test_rows_inferred_from_stderr",
    }
    for ours, theirs in zip(sheet, published, strict=True):
        for column, source in same.items():
            assert ours[column] == theirs[source or column], (ours["benchmark"], column)
        assert theirs["test_split_scored"].startswith(ours["published_test_split"])
        assert theirs["valid_source"].startswith("own") == (ours["published_validation_source"] == "own split")
