"""Significance of differences where the answers to the same items are known."""

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import BENCHMARKS, DIRECT, SMALL, matrix_of, score_rows

from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.report import agreement, notes_on
from lm_validity.studies.agreement.score_matrix import without_shared_items
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix
from lm_validity.tables.schema import ITEMS, write_table


def items_of(patterns: dict[str, list[int]], benchmarks="ab", items=10, **columns) -> pd.DataFrame:
    """Items whose mean is the score: `patterns` gives each model's right answers; `columns`: functions of the item."""
    return pd.DataFrame(
        [
            {"model": model, "checkpoint": "final", "benchmark": benchmark, "protocol": DIRECT, "prompt": None,
             "split": "test", "doc_id": str(item), "correct": float(item in right)}
            | {name: column(item) for name, column in columns.items()}
            for benchmark in benchmarks
            for model, right in patterns.items()
            for item in range(items)
        ]
    )  # fmt: skip


# nested right answers: m3 is right wherever another is
NESTED = {"m0": [0], "m1": [0, 1], "m2": [0, 1, 2, 3], "m3": list(range(9))}
SHARES = [len(right) / 10 for right in NESTED.values()]


def started(tmp_path, rows, items: pd.DataFrame | None = None, **sheets) -> tuple[Data, str]:
    """What the report starts from, with its notes as one text."""
    if items is not None:
        write_table(items, ITEMS, tmp_path / "items.parquet")
    path = None if items is None else tmp_path / "items.parquet"
    data = Data.of(matrix_of(tmp_path, rows, **sheets), items=path)
    return data, "\n".join(notes_on(data))


def significant(data: Data) -> dict[str, int]:
    """By benchmark the pairs of models that differ significantly."""
    return dict(zip(data.tasks, np.abs(data.significant[DIRECT].sign).sum(axis=0).astype(int).tolist(), strict=True))


def test_items_make_significance_paired(tmp_path):
    # 8 discordant items: 8 / sqrt(8) = 2.8, 3: 1.7
    rows = score_rows({DIRECT: {"a": SHARES, "b": SHARES, "c": SMALL[DIRECT]["c"]}}, stderr=0.2)
    assert significant(started(tmp_path, rows)[0]) == {"a": 2, "b": 2, "c": 0}  # m0 and m1 from m3: 0.7 > 1.96 · 0.283
    data, notes = started(tmp_path, rows, items_of(NESTED))
    assert "McNemar" in notes and "a, b" in notes
    # paired: m3 beats m0 (8 of 8), m1 (7 of 7) and m2 (5 of 5: 2.24), m2 does not beat m0 (3 of 3: 1.73)
    assert significant(data) == {"a": 3, "b": 3, "c": 0}


def test_paired_significance_of_a_benchmark_where_lower_is_better_counts_the_lower_as_better(tmp_path):
    wrong = {name: [item for item in range(10) if item not in found] for name, found in NESTED.items()}
    rows = score_rows({DIRECT: {k: [len(v) / 10 for v in p.values()] for k, p in (("a", NESTED), ("b", wrong))}})
    items = pd.concat([items_of(NESTED, "a"), items_of(wrong, "b")])
    falling = BENCHMARKS.replace("b,x,acc,multiple_choice,1", "b,x,acc,multiple_choice,0")
    data, notes = started(tmp_path, rows, items, benchmarks=falling)
    assert "McNemar" in notes and "a, b" in notes
    assert kendall_tau_matrix(data.significant[DIRECT])[0, 1] == pytest.approx(1.0)


def test_items_with_subjects_are_tested_by_subject(tmp_path):
    """Ten subjects of three questions; m1 is better than m0 on all of the first three subjects alone."""
    patterns = {"m0": [], "m1": list(range(9)), "m2": list(range(0, 30, 3)), "m3": list(range(29))}
    items = items_of(patterns, "a", 30, subject=lambda item: f"s{item // 3}")
    rows = score_rows({DIRECT: {"a": [len(right) / 30 for right in patterns.values()]}}, stderr=0.4)
    data, notes = started(tmp_path, rows, items)
    # pairs 02, 03, 13, 23; by item 01 is 9 of 9: 3.0, by subject three sums of 3: 9 / sqrt(27) = 1.73
    assert significant(data) == {"a": 4} and "subjects as clusters" in notes
    data, notes = started(tmp_path, rows, items.assign(subject=None))
    assert significant(data) == {"a": 5} and "McNemar" in notes


def test_a_model_whose_items_do_not_make_up_its_score_leaves_the_others_paired(tmp_path):
    # of standard errors like these alone no difference is significant
    rows = score_rows({DIRECT: {"a": SHARES, "b": SHARES, "c": SMALL[DIRECT]["c"]}}, stderr=0.4)
    assert significant(started(tmp_path, rows)[0]) == {"a": 0, "b": 0, "c": 0}
    items = items_of(NESTED)
    items = items[~((items["model"] == "m1") & (items["benchmark"] == "a") & (items["doc_id"] > "4"))]
    on_b = items["benchmark"] == "b"
    items.loc[on_b & (items["model"] < "m2"), "doc_id"] += "x"  # nothing in common with m2 and m3
    data, notes = started(tmp_path, rows, pd.concat([items, items[on_b & (items["model"] == "m3")]]))
    # m3 is surely better than m0 and m2 on a (8 of 8, 5 of 5), and than m2 on b
    assert significant(data) == {"a": 2, "b": 1, "c": 0}
    assert all(words in notes for words in ("m1 on a", "b (4 pairs of models)", "b (10)"))


def test_benchmarks_that_share_items_count_once(tmp_path):
    """A benchmark of 60 items, a half of them under another name, and other items: two benchmarks, and a word of it."""
    rng, names = np.random.default_rng(0), [f"m{i}" for i in range(6)]
    whole, other = (rng.random((6, 60)) < np.linspace(0.2, 0.8, 6)[:, None] for _ in range(2))
    answers = {"whole": whole, "half": whole[:, :30], "other": other}
    rights = {name: {m: np.flatnonzero(row) for m, row in zip(names, of, strict=True)} for name, of in answers.items()}
    items = pd.concat([items_of(right, [name], answers[name].shape[1]) for name, right in rights.items()])
    write_table(items, ITEMS, tmp_path / "items.parquet")
    rows = score_rows({DIRECT: {name: of.mean(axis=1).tolist() for name, of in answers.items()}}, names)
    sheets = {"models": "model\n" + "\n".join(names), "benchmarks": "benchmark\nwhole\nhalf\nother\n"}
    matrix = without_shared_items(matrix_of(tmp_path, rows, **sheets), tmp_path / "items.parquet")
    assert matrix.task_names() == ["whole", "other"] and matrix.overlapping == ("half",)
    assert matrix.value[DIRECT].shape == (6, 2) and set(matrix.selected["benchmark"]) == {"whole", "other"}
    assert any("half is left out" in note for note in matrix.notes)
    page, found = agreement(Data.of(matrix))
    assert found.value("pairs") == 1 and "1 benchmark left out" in page.answers[0].basis
