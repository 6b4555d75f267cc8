"""Scores, directions and metrics that contradict the benchmarks sheet are named, as are impossible errors."""

import re

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import BENCHMARKS, DIRECT, SMALL, TRAINED, matrix_of, run, score_rows

from lm_validity.errors import InputError
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.factors import report_factors
from lm_validity.studies.agreement.report import agreement, report_agreement


def notes_of(tmp_path, rows, benchmarks=BENCHMARKS) -> list[str]:
    return matrix_of(tmp_path, rows, benchmarks=benchmarks).notes


def checks_of(tmp_path, rows, benchmarks=BENCHMARKS) -> list[tuple]:
    matrix = matrix_of(tmp_path, rows, benchmarks=benchmarks)
    return [(one.benchmark, one.code, one.scores, one.ratio and round(one.ratio, 9)) for one in matrix.error_checks]


def binomial(rows: pd.DataFrame, items: int) -> pd.DataFrame:
    share = rows["value"].clip(0, 1)  # of the corpus: bits per byte, which no check is for
    return rows.assign(n_items=items, stderr=np.sqrt(share * (1 - share) / (items - 1)))


def on_a(rows: pd.DataFrame) -> pd.Series:
    return rows["benchmark"] == "a"


def test_percentages_with_standard_errors_of_fractions_are_named_twice(tmp_path):
    rows = binomial(score_rows(), 500)
    rows.loc[on_a(rows), "value"] *= 100
    assert notes_of(tmp_path, rows)[0].startswith("Scores above 1")
    assert checks_of(tmp_path, rows) == [("a", "other_size", 8, 0.01)]


@pytest.mark.parametrize(("factor", "named"), [(100, True), (3.5, True), (2.5, False), (0.4, False), (0.3, True)])
def test_standard_errors_are_held_against_the_number_of_items(tmp_path, factor, named):
    rows = binomial(score_rows(), 500)
    rows.loc[on_a(rows), "stderr"] *= factor
    expected = [("a", "other_size", 8, factor)] * named
    assert checks_of(tmp_path, rows) == expected
    sheet = "".join(line + (",n_items" if i == 0 else ",500") + "\n" for i, line in enumerate(BENCHMARKS.split()))
    assert checks_of(tmp_path, rows.drop(columns="n_items"), sheet) == expected


@pytest.mark.parametrize("error", [0.0, 1.3])
def test_nothing_rests_on_impossible_standard_errors(tmp_path, error):
    """Two models of four have one on benchmark a: no reliability, no separation, no verdict of theirs."""
    rows = binomial(score_rows(), 500)
    concerned = on_a(rows) & rows["model"].isin(["m0", "m3"])
    rows.loc[concerned, "stderr"] = error
    data = Data.of(matrix_of(tmp_path, rows))
    (check,) = data.matrix.error_checks
    assert (check.benchmark, check.scores, check.of) == ("a", 4, 8)
    assert check.code == ("zero" if error == 0 else "other_size")
    found = agreement(data)[1]
    place = {"protocol": DIRECT, "subject": "a"}
    assert np.isnan(found.value("reliability", **place))
    assert found.row("separated", at_most=None, **place).n == 1
    assert np.abs(data.significant[DIRECT].sign[:, 0]).sum() == 1


@pytest.mark.parametrize("report", [report_agreement, report_factors])
def test_percentages_for_some_models_only_are_an_error(tmp_path, report):
    rows = score_rows()
    rows.loc[on_a(rows) & (rows["model"] == "m3"), "value"] *= 100
    with pytest.raises(
        InputError, match=r"a has percentages and fractions under acc: 40 for m3 \(direct\), 0.1 for m0"
    ):
        run(tmp_path, rows, report=report)
    assert not (tmp_path / "report").exists()


def test_directions_that_contradict_the_sheet_are_named_both(tmp_path):
    rows = score_rows().assign(higher_is_better=True)
    rows.loc[on_a(rows) & (rows["protocol"] == TRAINED), "higher_is_better"] = False
    rows.loc[rows["benchmark"] == "wiki", "higher_is_better"] = False
    _, notes = run(tmp_path, rows)
    (note,) = [note for note in notes.split("\n") if "of 8 scores" in note]
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
    found, _ = run(tmp_path, pd.concat([rows[~mixed], others[mixed]]))
    assert found.value("cells_in_both") == sum(len(SMALL[DIRECT][name]) for name in "abc") - 1


@pytest.mark.parametrize(
    ("metric", "name", "asked"),
    [
        ("own", "a_bpb", False),
        (None, "a_bpb", True),
        ("bpb", "a", True),
        (None, "a_error (top-1)", True),
        (None, "ppl_c4", True),
        (None, "val_cross_entropy", True),
        (None, "a_toxicity", True),
        (None, "weight_loss_qa", False),
        (None, "a_error_rate", True),
        (None, "translation_error_detection", False),
    ],
)
def test_the_direction_of_what_is_named_like_a_loss_is_asked_for(tmp_path, metric, name, asked):
    rows = score_rows({DIRECT: {name: [0.9, 0.8, 0.7, 0.6], "b": [0.1, 0.2, 0.3, 0.4]}})
    rows["metric"] = metric
    sheet = f"benchmark,metric\n{name},{metric or ''}\nb,{metric or ''}\n"
    if not asked:
        assert f"{name}" in " ".join(notes_of(tmp_path, rows, sheet))  # higher counts as better
        return
    with pytest.raises(InputError, match=f"higher is better on {re.escape(name)}") as error:
        notes_of(tmp_path, rows, sheet)
    assert "higher_is_better" in error.value.hint
    given = sheet.replace("metric\n", "metric,higher_is_better\n", 1).replace(
        f"{metric or ''}\n", f"{metric or ''},0\n"
    )
    assert notes_of(tmp_path, rows, given) == ()
