"""Which rows of a scores table the reports read, and the tables that they refuse."""

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import BENCHMARKS, DIRECT, MODELS, NAMES, TRAINED, run, score_rows

from lm_validity.config.sections import Reports
from lm_validity.errors import InputError
from lm_validity.studies.agreement.factors import report_factors
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.studies.signal.report import report_signal
from lm_validity.tables.schema import NO_STUDY


def test_only_selected_test_rows_of_the_metric_count(tmp_path):
    rows = score_rows()
    noise = pd.concat(
        [
            rows.assign(value=0.5, selected=False),
            rows.assign(value=0.5, split="validation"),
            rows.assign(value=0.5, metric="f1,none"),
            rows.assign(value=0.5, checkpoint="step100"),
            rows.assign(value=0.5, benchmark="unlisted"),
        ]
    )
    found, notes = run(tmp_path, pd.concat([noise, rows.assign(split=None, selected=None)]))
    assert found.value("tau_mean", protocol=DIRECT) == pytest.approx(-1 / 3) and "unlisted" in notes


def _with_copies(copies: int, digits: int) -> pd.DataFrame:
    """Twelve models on four benchmarks under both protocols, the first `copies` of them under two names."""
    rng = np.random.default_rng(7)
    names = [f"m{number}" for number in range(12)]
    table = {
        protocol: {name: rng.uniform(0.3, 0.7, 12).round(digits).tolist() for name in "abc"} | {"wiki": [1.0] * 12}
        for protocol in (DIRECT, TRAINED)
    }
    rows = score_rows(table, names)
    return pd.concat(
        [rows, rows[rows["model"].isin(names[:copies])].assign(model=lambda each: "z_of_" + each["model"])]
    )


@pytest.mark.parametrize("report", [report_agreement, report_factors])
def test_a_model_under_two_names_counts_once(tmp_path, report):
    """All figures are those of the table without the copies; each copy is named beside its model."""
    (once, notes), (twice, more) = (
        run(tmp_path / name, _with_copies(copies, 3), report=report, resamples=20)
        for name, copies in (("once", 0), ("twice", 10))
    )
    said = [note for note in more.split("\n") if "z_of_m9 (as m9)" in note]
    assert len(said) == 1 and all(f"z_of_m{number} (as m{number})" in said[0] for number in range(10))
    assert [*twice] == [*once]
    of_names = ("Models that are not in the models sheet", said[0])
    left = ([note for note in text.split("\n") if not note.startswith(of_names)] for text in (notes, more))
    assert next(left) == next(left)


def test_equal_scores_that_may_be_chance_are_said_and_both_count(tmp_path):
    """Four models, of which two agree on three coarse benchmarks under one protocol only."""
    rows = score_rows()
    rows = rows[rows["protocol"] == DIRECT]
    rows = pd.concat([rows, rows[rows["model"] == "m0"].assign(model="n0")])
    found, notes = run(tmp_path, rows)
    assert found.value("models") == 5 and "m0 and n0 have exactly the same scores" in notes


def test_models_and_benchmarks_of_other_studies_stay_out(tmp_path):
    rows = score_rows()
    more = [rows.assign(model="early"), rows[rows["model"] == "m0"].assign(model="sparse")]
    others = pd.concat([*more, rows[rows["benchmark"] == "a"].assign(benchmark="curve")])
    models = "model,studies\n" + "".join(f'{name},"signal, agreement"\n' for name in NAMES) + "early,signal\n"
    models += f"sparse,{NO_STUDY}\n"
    benchmarks = BENCHMARKS.replace("higher_is_better\n", "higher_is_better,studies\n").replace(
        "choice,1\n", "choice,1,\n"
    )
    benchmarks = benchmarks.replace("true\n", "true,agreement\n").replace("rolling,0\n", "rolling,0,\n")
    curve = "curve,x,acc,multiple_choice,1,signal\n"
    found, notes = run(tmp_path, pd.concat([rows, others]), models, benchmarks + curve)
    assert (found.value("models"), found.value("benchmarks")) == (4, 3)
    assert found.value("tau_mean", protocol=DIRECT) == pytest.approx(-1 / 3)
    of_others = [note for note in notes.split("\n") if "early" in note]
    left_out = [note for note in notes.split("\n") if "sparse" in note]
    assert len(of_others) == len(left_out) == 1 and f"`{NO_STUDY}`" in left_out[0] and of_others != left_out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.assign(protocol="both"), "row 0, column 'protocol'"),
        (lambda rows: pd.concat([rows, rows.iloc[:1]]), "two selected test scores of m0 on a"),
        (lambda rows: rows.assign(metric="f1"), "benchmark 'a', column 'metric': no score has the metric 'acc,none'"),
        (lambda rows: rows.assign(selected=False), "no selected test score"),
        (lambda rows: rows.assign(stderr=-0.1), "row 0, column 'stderr'"),
        (lambda rows: rows.assign(model=rows["model"].where(rows.index != 3)), "row 3, column 'model': empty"),
        (lambda rows: rows.assign(benchmark=rows["benchmark"].mask(rows.index > 1)), "row 2, column 'benchmark'"),
    ],
)
def test_bad_tables_are_one_clear_error(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        run(tmp_path, change(score_rows()))
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("report", [report_agreement, report_factors, report_signal])
@pytest.mark.parametrize(
    ("lacking", "found", "words"),
    [
        ("value", "score", ["no column 'value'", "the columns are: model,"]),
        ("model", "model_id", ["no column 'model'", "rename 'model_id'"]),
        ("protocol", "how", ["no column 'protocol'"]),
    ],
)
def test_a_scores_table_without_a_required_column_is_refused(tmp_path, report, lacking, found, words):
    score_rows().rename(columns={lacking: found}).to_parquet(tmp_path / "scores.parquet")
    (tmp_path / "models.csv").write_text(MODELS, encoding="utf-8")
    (tmp_path / "benchmarks.csv").write_text(BENCHMARKS, encoding="utf-8")
    sheets = {name: tmp_path / f"{name}.csv" for name in ("models", "benchmarks")}
    with pytest.raises(InputError) as error:
        report(tmp_path / "scores.parquet", output=tmp_path / "report", section=Reports(resamples=0), **sheets)
    assert all(word in str(error.value) for word in ["scores.parquet", *words])
