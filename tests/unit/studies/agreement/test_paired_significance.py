"""Significance of differences where the answers to the same items are known."""

import json

import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import BENCHMARKS, DIRECT, NAMES, SMALL, run, score_rows, written

from lm_validity.config.sections import Reports
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.tables.schema import ITEMS, write_table


def items_of(patterns: dict[str, list[int]]) -> pd.DataFrame:
    """Items whose mean is the score: `patterns` gives each model's right answers on ten questions."""
    return pd.DataFrame(
        [
            {"model": model, "checkpoint": "final", "benchmark": benchmark, "protocol": DIRECT, "prompt": None,
             "split": "test", "doc_id": str(item), "correct": float(item in right)}
            for benchmark in ("a", "b")
            for model, right in patterns.items()
            for item in range(10)
        ]
    )  # fmt: skip


def summary_with(items: pd.DataFrame, tmp_path, rows, **sheets) -> dict:
    """summary.json of the report that is given the items too."""
    write_table(items, ITEMS, tmp_path / "items.parquet")
    section = Reports(resamples=0)
    report_agreement(
        *written(tmp_path, rows, **sheets), tmp_path / "paired", items=tmp_path / "items.parquet", section=section
    )
    return json.loads((tmp_path / "paired" / "summary.json").read_text(encoding="utf-8"))


def significant(summary: dict) -> dict[str, int]:
    return summary["significance_tau"][DIRECT]["significant_pairs"]


def test_items_make_significance_paired(tmp_path):
    # nested right answers: m3 is right wherever another is; 8 discordant items: 8 / sqrt(8) = 2.8, 3: 1.7
    patterns = {"m0": [0], "m1": [0, 1], "m2": [0, 1, 2, 3], "m3": list(range(9))}
    values = [len(right) / 10 for right in patterns.values()]
    rows = score_rows({DIRECT: {"a": values, "b": values, "c": SMALL[DIRECT]["c"]}}, stderr=0.2)
    assert significant(run(tmp_path, rows)) == {"a": 2, "b": 2, "c": 0}  # m0 and m1 from m3: 0.7 > 1.96 · 0.283
    summary = summary_with(items_of(patterns), tmp_path, rows)
    assert any("McNemar" in note and "a, b" in note for note in summary["notes"])
    # paired: m3 beats m0 (8 of 8), m1 (7 of 7) and m2 (5 of 5: 2.24), m2 does not beat m0 (3 of 3: 1.73)
    assert significant(summary) == {"a": 3, "b": 3, "c": 0}


def test_paired_significance_of_a_benchmark_where_lower_is_better_counts_the_lower_as_better(tmp_path):
    right = {"m0": [0], "m1": [0, 1], "m2": [0, 1, 2, 3], "m3": list(range(9))}
    wrong = {name: [item for item in range(10) if item not in found] for name, found in right.items()}
    rows = score_rows({DIRECT: {k: [len(v) / 10 for v in p.values()] for k, p in (("a", right), ("b", wrong))}})
    items = pd.concat(
        [items_of(p).query("benchmark == @name") for name, p in (("a", right), ("b", wrong))], ignore_index=True
    )
    falling = BENCHMARKS.replace("b,x,acc,multiple_choice,1", "b,x,acc,multiple_choice,0")
    summary = summary_with(items, tmp_path, rows, benchmarks=falling)
    assert any("McNemar" in note and "a, b" in note for note in summary["notes"])
    assert summary["significance_tau"][DIRECT]["mean"] == pytest.approx(1.0)


def test_items_with_subjects_are_tested_by_subject(tmp_path):
    """Ten subjects of three questions; m1 is better than m0 on all of the first three subjects alone."""
    patterns = {"m0": [], "m1": list(range(9)), "m2": list(range(0, 30, 3)), "m3": list(range(29))}
    items = pd.DataFrame(
        [
            {"model": model, "checkpoint": "final", "benchmark": "a", "protocol": DIRECT, "prompt": None,
             "split": "test", "doc_id": str(item), "subject": f"s{item // 3}", "correct": float(item in right)}
            for model, right in patterns.items() for item in range(30)
        ]
    )  # fmt: skip
    rows = score_rows({DIRECT: {"a": [len(right) / 30 for right in patterns.values()]}}, stderr=0.4)
    summary = summary_with(items, tmp_path, rows)
    # pairs 02, 03, 13, 23; by item 01 is 9 of 9: 3.0, by subject three sums of 3: 9 / sqrt(27) = 1.73
    assert significant(summary) == {"a": 4} and any("subjects as clusters" in note for note in summary["notes"])
    summary = summary_with(items.assign(subject=None), tmp_path, rows)
    assert significant(summary) == {"a": 5} and any("McNemar" in note for note in summary["notes"])


def test_a_model_whose_items_do_not_make_up_its_score_leaves_the_others_paired(tmp_path):
    patterns = {"m0": [0], "m1": [0, 1], "m2": [0, 1, 2, 3], "m3": list(range(9))}
    values = [len(right) / 10 for right in patterns.values()]
    # of standard errors like these alone no difference is significant
    rows = score_rows({DIRECT: {"a": values, "b": values, "c": SMALL[DIRECT]["c"]}}, stderr=0.4)
    assert significant(run(tmp_path, rows)) == {"a": 0, "b": 0, "c": 0}
    items = items_of(patterns)
    items = items[~((items["model"] == "m1") & (items["benchmark"] == "a") & (items["doc_id"] > "4"))]
    on_b = items["benchmark"] == "b"
    items.loc[on_b & (items["model"] < "m2"), "doc_id"] += "x"  # nothing in common with m2 and m3
    summary = summary_with(pd.concat([items, items[on_b & (items["model"] == "m3")]]), tmp_path, rows)
    # m3 is surely better than m0 and m2 on a (8 of 8, 5 of 5), and than m2 on b
    assert significant(summary) == {"a": 2, "b": 1, "c": 0}
    for words in ("m1 on a", "b (4 pairs of models)", "b (10)"):
        assert any(words in note for note in summary["notes"]), words


def test_items_that_do_not_make_up_the_score_are_not_used(tmp_path):
    rows = score_rows({DIRECT: {name: SMALL[DIRECT][name] for name in "ab"}})
    summary = summary_with(items_of({name: [0] for name in NAMES}), tmp_path, rows)
    assert any("not the mean of its items" in note for note in summary["notes"])
