"""Reading scores to serve: from the authors' JSON and from tables, one score a key."""

import json

import pandas as pd
import pytest

from lm_validity.cells.replay import read_served
from lm_validity.errors import InputError
from lm_validity.tables.schema import SCORES, write_table

ROW = {
    "model": "org/m",
    "checkpoint": "final",
    "benchmark": "x",
    "protocol": "direct",
    "split": "test",
    "metric": "acc,none",
    "value": 0.25,
    "stderr": 0.01,
    "n_items": 7,
    "selected": True,
    "source": "lm-eval",
}


def table(path, *rows):
    write_table(pd.DataFrame(rows), SCORES, path)
    return str(path)


def test_of_a_table_the_selected_test_rows_are_served(tmp_path):
    early = {**ROW, "checkpoint": "step1", "value": 0.2, "stderr": None, "n_items": None}
    seeds = [{**ROW, "protocol": "train_before_test", "seed": seed, "value": 0.5 + seed} for seed in (0, 1)]
    left_out = [{**ROW, "split": "validation"}, {**ROW, "selected": False, "prompt": "chat"}]
    served = read_served(table(tmp_path / "scores.parquet", ROW, early, *seeds, *left_out), "")
    assert served["org/m", "final", "x", "direct", None] == (0.25, 0.01, 7, "replay:lm-eval")
    assert served["org/m", "step1", "x", "direct", None] == (0.2, None, None, "replay:lm-eval")
    assert [served["org/m", "final", "x", "train_before_test", seed].value for seed in (0, 1)] == [0.5, 1.5]
    assert len(served) == 4


def test_two_scores_of_one_key_are_refused(tmp_path):
    with pytest.raises(InputError, match="two selected test scores"):
        read_served(table(tmp_path / "twice.parquet", ROW, {**ROW, "metric": "acc_norm,none"}), "")


def test_the_authors_file_is_served(tmp_path):
    path = tmp_path / "all_results.json"
    path.write_text(json.dumps({"direct_eval": {"x": {"org/m": 0.25}}, "train_before_test": {"x": {"org/m": 0.5}}}))
    served = read_served(str(path), "")
    assert served["org/m", "final", "x", "train_before_test", None] == (0.5, None, None, "replay:lm-harmony")
