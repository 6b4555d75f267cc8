"""Scores, standard errors, directions and metrics that contradict the benchmarks sheet are named."""

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import BENCHMARKS, DIRECT, MODELS, SMALL, TRAINED, run, score_rows

from lm_validity.errors import InputError
from lm_validity.studies.agreement.factors.report import report_factors
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.tables.schema import SCORES, write_table


def notes_of(tmp_path, rows, benchmarks=BENCHMARKS) -> list[str]:
    write_table(rows, SCORES, tmp_path / "scores.parquet")
    (tmp_path / "models.csv").write_text(MODELS, encoding="utf-8")
    (tmp_path / "benchmarks.csv").write_text(benchmarks, encoding="utf-8")
    return read_score_matrix(*(tmp_path / name for name in ("scores.parquet", "models.csv", "benchmarks.csv"))).notes


def binomial(rows: pd.DataFrame, items: int) -> pd.DataFrame:
    share = rows["value"].clip(0, 1)  # of the corpus: bits per byte, which no check is for
    return rows.assign(n_items=items, stderr=np.sqrt(share * (1 - share) / (items - 1)))


def on_a(rows: pd.DataFrame) -> pd.Series:
    return rows["benchmark"] == "a"


def test_fractions_with_their_standard_errors_give_no_note(tmp_path):
    rows = binomial(score_rows(), 500)
    assert notes_of(tmp_path, rows) == ()
    assert notes_of(tmp_path, rows.assign(stderr=2 * rows["stderr"])) == ()  # clusters of items
    rows.loc[on_a(rows), ["metric", "value"]] = ["mcc,none", -0.1]
    assert notes_of(tmp_path, rows, BENCHMARKS.replace("a,x,acc", "a,x,mcc")) == ()


def test_percentages_are_named_by_benchmark(tmp_path):
    rows = binomial(score_rows(), 500)
    rows.loc[on_a(rows), ["value", "stderr"]] *= 100
    (note,) = notes_of(tmp_path, rows)
    assert note.startswith("Scores above 1") and "a (acc: 8 of 8 scores, up to 40)" in note


def test_percentages_with_standard_errors_of_fractions_are_named_twice(tmp_path):
    rows = binomial(score_rows(), 500)
    rows.loc[on_a(rows), "value"] *= 100
    first, second = notes_of(tmp_path, rows)
    assert (
        first.startswith("Scores above 1") and second.startswith("Standard errors far") and "a (0.01 times)" in second
    )


@pytest.mark.parametrize(("factor", "named"), [(100, True), (3.5, True), (2.5, False), (0.4, False), (0.3, True)])
def test_standard_errors_are_held_against_the_number_of_items(tmp_path, factor, named):
    rows = binomial(score_rows(), 500)
    rows.loc[on_a(rows), "stderr"] *= factor
    assert [f"a ({factor:g} times)" in note for note in notes_of(tmp_path, rows)] == [True] * named
    sheet = "".join(line + (",n_items" if i == 0 else ",500") + "\n" for i, line in enumerate(BENCHMARKS.split()))
    found = notes_of(tmp_path, rows.drop(columns="n_items"), sheet)
    assert [f"a ({factor:g} times)" in note for note in found] == [True] * named


def test_standard_errors_that_no_fraction_has_are_named_without_the_number_of_items(tmp_path):
    rows = score_rows()
    rows.loc[on_a(rows), "stderr"] = 1.3
    (note,) = notes_of(tmp_path, rows)
    assert note.startswith("Standard errors too large") and "a (8 of 8, up to 1.3)" in note


@pytest.mark.parametrize("report", [report_agreement, report_factors])
def test_percentages_for_some_models_only_are_an_error(tmp_path, report):
    rows = score_rows()
    rows.loc[on_a(rows) & (rows["model"] == "m3"), "value"] *= 100
    with pytest.raises(
        InputError, match=r"a has percentages and fractions under acc: 40 for m3 \(direct\), 0.1 for m0"
    ):
        run(tmp_path, rows, report=report)
    assert not (tmp_path / "report").exists()


def test_an_exact_match_below_one_percent_is_no_error(tmp_path):
    rows = score_rows()
    rows.loc[on_a(rows), "metric"] = "exact_match,none"
    rows.loc[on_a(rows), "value"] *= 4  # 0.4% to 1.6%
    (note,) = notes_of(tmp_path, rows, BENCHMARKS.replace("a,x,acc", "a,x,exact_match"))
    assert "a (exact_match: 4 of 8 scores, up to 1.6)" in note


def test_directions_that_contradict_the_sheet_are_named_both(tmp_path):
    rows = score_rows().assign(higher_is_better=True)
    rows.loc[on_a(rows) & (rows["protocol"] == TRAINED), "higher_is_better"] = False
    rows.loc[rows["benchmark"] == "wiki", "higher_is_better"] = False
    notes = run(tmp_path, rows)["notes"]
    (note,) = [note for note in notes if "of 8 scores" in note]
    assert "a (4 of 8 scores)." in note and note.index("higher") < note.index("lower")
    with pytest.raises(InputError, match="a has both directions in the scores: higher_is_better is true for m0, false"):
        run(tmp_path, rows, benchmarks=BENCHMARKS.replace("a,x,acc,multiple_choice,1", "a,x,acc,multiple_choice,"))


def test_scores_under_another_metric_only_are_named(tmp_path):
    rows = score_rows()
    others = rows.assign(metric="f1,none", value=0.5)
    assert notes_of(tmp_path, pd.concat([rows, others])) == ()  # each cell is there under its own metric too
    mixed = (rows["model"] == "m2") & on_a(rows) & (rows["protocol"] == DIRECT)
    (note,) = notes_of(tmp_path, pd.concat([rows[~mixed], others[mixed]]))
    assert note.startswith("a: the scores of m2 (direct) are not under its metric acc,none but under f1,none only")
    summary = run(tmp_path, pd.concat([rows[~mixed], others[mixed]]))
    assert summary["cells_in_both"] == sum(len(SMALL[DIRECT][name]) for name in "abc") - 1
