"""Rows as they are put, found, worded and drawn."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lm_validity.pages.page import Page
from lm_validity.results.put import Column, Rows, ends_of, labels_of
from lm_validity.results.sections import Dots, Heat, PanelOf, Says, SectionOf, Series, TableOf, write_rows
from lm_validity.words import Missing


def some_rows() -> Rows:
    """Three tasks of one experiment, one of them unknown, and a mean with two intervals."""
    rows = Rows("bias")
    at = rows.of(experiment="main", effect="bias")
    for task, value, ends in (("a", 0.02, (0.01, 0.03)), ("b", -0.01, (-0.04, 0.02))):
        at.put("task_effect", value, "accuracy", {"draws": ends}, subject=task, counted=("subsamples", 9))
    at.put("task_effect", math.nan, "accuracy", {"draws": (math.nan, 1.0)}, subject="c", why="Not measured.")
    at.put("effect", np.float64(0.005), "accuracy", {"tasks": (0.0, 0.01), "models": Missing("One model.")})
    return rows


def test_what_is_put_is_found_and_read_again(tmp_path: Path) -> None:
    rows = some_rows()
    row = rows.row("task_effect", subject="a")
    assert row is not None and (row.value, ends_of(row), row.n, row.level) == (0.02, (0.01, 0.03), 9, 0.95)
    assert labels_of(row) == {"subject": "a", "other": None, "protocol": None, "experiment": "main", "effect": "bias"}
    assert math.isnan(rows.value("task_effect", subject="c")) and rows.labels("subject", "task_effect") == [*"abc"]
    assert len([*rows]) == 5 and len(rows.all("effect")) == 1  # two intervals of one number
    overall = rows.row("effect", over="models")
    assert overall is not None and (overall.value, ends_of(overall), overall.reason) == (0.005, None, "One model.")
    with pytest.raises(ValueError, match="two rows"):
        rows.put("effect", 1.0, "accuracy", {"tasks": (0.0, 1.0)}, experiment="main", effect="bias")
    with pytest.raises(ValueError, match="without a reason"):
        rows.put("other", math.nan, "accuracy")
    rows.put("name", "=1+1", "text")  # which a spreadsheet would compute
    write_rows(Page("bias", "Bias", [], []), rows, tmp_path / "again")
    write_rows(Page("bias", "Bias", [], []), rows, tmp_path)
    for name in ("results.parquet", "results.csv", "results.json"):  # the same rows give the same bytes
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert "'=1+1" in (tmp_path / "results.csv").read_text()
    assert [row["text"] for row in json.loads((tmp_path / "results.json").read_text())][-1] == "=1+1"
    assert [*Rows.read(tmp_path / "results.parquet")] == [*rows]
    assert len([*Rows.read(tmp_path / "results.parquet", ["effect"])]) == 2
    table = rows.table(
        ["subject"], {"change": Column("task_effect", "change"), "n": Column("task_effect", "", part="n")}
    )
    assert table["subject"].tolist() == [*"abc"] and table["change"].tolist()[2] == Missing("Not measured.")


def test_a_section_says_shows_and_draws_its_rows() -> None:
    says = Says("task_effect", "{above} of {count:task}, {apart} apart; most {name} {value:+} ({interval}).")
    dots = Dots([Series("task_effect", {"subject": "{}"})], "Change")
    table = TableOf("tasks", {"subject": "task"}, {"change": Column("task_effect", "change")})
    section = SectionOf(
        "Tasks", says, table, [dots, Heat("task_effect", {"subject": "{}"}, {"effect": "{}"}, "Change")]
    )
    drawn = section.drawn(some_rows())
    assert drawn.finding == "1 of 2 tasks, 1 apart; most a +2.00 (95%: +1.00 to +3.00)."
    assert drawn.pictures[0].svg.count("<circle") == 2 and "<td" in drawn.pictures[1].svg
    panel = PanelOf("More?", says, dots, outcome=lambda value: "yes" if value > 0 else "no").drawn(some_rows())
    assert panel is not None and panel.outcome == "yes"
    assert section.drawn(Rows("bias")).pictures == [] and PanelOf("More?", says, dots).drawn(Rows("bias")) is None
