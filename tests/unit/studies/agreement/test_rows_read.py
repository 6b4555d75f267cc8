"""Which rows are read, which standard errors and directions count, and what bad or hostile tables do."""

import re

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement import conftest
from tests.unit.studies.agreement.conftest import BENCHMARKS, DIRECT, MODELS, NAMES, SMALL, TRAINED, run, score_rows

from lm_validity.config.sections import Reports
from lm_validity.errors import InputError
from lm_validity.files import read_page
from lm_validity.pages.page import write_html
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.factors import report_factors
from lm_validity.studies.agreement.report import agreement, report_agreement
from lm_validity.studies.signal.report import report_signal
from lm_validity.tables.counted import Sources, count_scores
from lm_validity.tables.schema import NO_STUDY


def test_only_selected_test_rows_of_the_metric_count(tmp_path):
    rows = score_rows()
    changes = ({"selected": False}, {"split": "validation"}, {"metric": "f1,none"}, {"checkpoint": "step100"})
    noise = [rows.assign(value=0.5, **change) for change in (*changes, {"benchmark": "unlisted"})]
    found, notes = run(tmp_path, pd.concat([*noise, rows.assign(split=None, selected=None)]))
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
    rows = score_rows({DIRECT: SMALL[DIRECT]})
    found, notes = run(tmp_path, pd.concat([rows, rows[rows["model"] == "m0"].assign(model="n0")]))
    assert found.value("models") == 5 and "m0 and n0 have exactly the same scores" in notes


def test_models_and_benchmarks_of_other_studies_stay_out(tmp_path):
    rows = score_rows()
    more = [rows.assign(model="early"), rows[rows["model"] == "m0"].assign(model="sparse")]
    others = pd.concat([*more, rows[rows["benchmark"] == "a"].assign(benchmark="curve")])
    models = "model,studies\n" + "".join(f'{name},"signal, agreement"\n' for name in NAMES)
    models += f"early,signal\nsparse,{NO_STUDY}\n"
    heading, *lines = BENCHMARKS.split()
    benchmarks = "\n".join([f"{heading},studies", *(f"{line}," for line in lines), ""]).replace(
        "true,", "true,agreement"
    )
    found, notes = run(
        tmp_path, pd.concat([rows, others]), models, benchmarks + "curve,x,acc,multiple_choice,1,signal\n"
    )
    assert (found.value("models"), found.value("benchmarks")) == (4, 3)
    assert found.value("tau_mean", protocol=DIRECT) == pytest.approx(-1 / 3)
    assert [note for note in notes.split("\n") if "early" in note and "sparse" in note]


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
    for name, text in (("models.csv", MODELS), ("benchmarks.csv", BENCHMARKS)):
        (tmp_path / name).write_text(text)
    sources = Sources(*(tmp_path / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")))
    with pytest.raises(InputError) as error:
        report(sources, tmp_path / "report", Reports(resamples=0))
    assert all(word in str(error.value) for word in ["scores.parquet", *words])


def test_hostile_names_are_text(tmp_path):
    names = ['<script>alert("m")</script>', "it's", 'a"b', "</script><b>x"]
    found, _ = run(tmp_path, score_rows(names=names), models='model,family\nit\'s,"<img src=x onerror=alert(1)>"\n')
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in html and "<img src=x" not in html and "</script><b>" not in html
    assert "&lt;script&gt;alert(&#34;m&#34;)&lt;/script&gt;" in html
    assert found.value("models") == 4


def test_an_unfinished_runs_report_says_so_on_its_own_page(tmp_path):
    run(tmp_path, score_rows())
    page = tmp_path / "report" / "index.html"
    assert "evaluate_model m9" not in page.read_text()
    write_html(read_page(tmp_path / "report" / "page.json"), tmp_path / "report", missing=["evaluate_model m9 <b>"])
    assert "evaluate_model m9 &lt;b&gt;" in page.read_text()


def matrix_of(tmp_path, rows, benchmarks=BENCHMARKS):
    return conftest.matrix_of(tmp_path, rows, benchmarks=benchmarks)


def binomial(rows: pd.DataFrame, items: int) -> pd.DataFrame:
    share = rows["value"].clip(0, 1)  # of the corpus: bits per byte, which no check is for
    return rows.assign(n_items=items, stderr=np.sqrt(share * (1 - share) / (items - 1)))


def on_a(rows: pd.DataFrame) -> pd.Series:
    return rows["benchmark"] == "a"


@pytest.mark.parametrize(
    ("scale", "factor", "ratio"),
    [(100, 1, 0.01), (1, 100, 100), (1, 3.5, 3.5), (1, 2.5, None), (1, 0.4, None), (1, 0.3, 0.3)],
)
def test_standard_errors_are_held_against_the_number_of_items(tmp_path, scale, factor, ratio):
    """Of the scores or of the sheet; percentages with the errors of fractions have a hundredth of theirs."""
    rows = binomial(score_rows(), 500)
    rows.loc[on_a(rows), "value"] *= scale
    rows.loc[on_a(rows), "stderr"] *= factor
    sheet = "".join(line + (",n_items" if i == 0 else ",500") + "\n" for i, line in enumerate(BENCHMARKS.split()))
    for table, benchmarks in ((rows, BENCHMARKS), (rows.drop(columns="n_items"), sheet)):
        checks = count_scores(Sources(*conftest.written(tmp_path, table, benchmarks=benchmarks))).checks
        found = [(check.benchmark, check.code, check.scores, pytest.approx(check.ratio)) for check in checks]
        assert found == ([] if ratio is None else [("a", "other_size", 8, ratio)])


@pytest.mark.parametrize("error", [0.0, 1.3])
def test_nothing_rests_on_impossible_standard_errors(tmp_path, error):
    """Two models of four have one on benchmark a: no reliability, no separation, no verdict of theirs."""
    rows = binomial(score_rows(), 500)
    concerned = on_a(rows) & rows["model"].isin(["m0", "m3"])
    rows.loc[concerned, "stderr"] = error
    data = Data.of(matrix_of(tmp_path, rows))
    found = agreement(data)[1]
    place = {"protocol": DIRECT, "subject": "a"}
    assert np.isnan(found.value("reliability", **place))
    assert found.row("separated", at_most=None, **place).n == 1
    assert np.abs(data.significant[DIRECT].sign[:, 0]).sum() == 1


@pytest.mark.parametrize("report", [report_agreement, report_factors])
def test_percentages_for_some_models_only_are_an_error(tmp_path, report):
    rows = score_rows()
    rows.loc[on_a(rows) & (rows["model"] == "m3"), "value"] *= 100
    problem = r"a has percentages and fractions under acc: 40 for m3 \(direct\), 0.1 for m0"
    with pytest.raises(InputError, match=problem):
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
    assert matrix_of(tmp_path, pd.concat([rows, others])).notes == ()  # each cell is there under its own metric too
    mixed = (rows["model"] == "m2") & on_a(rows) & (rows["protocol"] == DIRECT)
    found, notes = run(tmp_path, pd.concat([rows[~mixed], others[mixed]]))
    assert "a: m2 (direct) under f1,none only" in notes
    assert found.value("cells_in_both") == sum(len(SMALL[DIRECT][name]) for name in "abc") - 1


LOSSES = ("a_bpb", "a_error (top-1)", "ppl_c4", "val_cross_entropy", "a_toxicity", "a_error_rate")
NO_LOSSES = ("weight_loss_qa", "translation_error_detection")


@pytest.mark.parametrize(
    ("metric", "name", "asked"),
    [("own", "a_bpb", False), ("bpb", "a", True)] + [(None, name, name in LOSSES) for name in LOSSES + NO_LOSSES],
)
def test_the_direction_of_what_is_named_like_a_loss_is_asked_for(tmp_path, metric, name, asked):
    rows = score_rows({DIRECT: {name: [0.9, 0.8, 0.7, 0.6], "b": [0.1, 0.2, 0.3, 0.4]}})
    rows["metric"] = metric
    sheet = f"benchmark,metric\n{name},{metric or ''}\nb,{metric or ''}\n"
    if not asked:
        assert f"{name}" in " ".join(matrix_of(tmp_path, rows, sheet).notes)  # higher counts as better
        return
    with pytest.raises(InputError, match=f"higher is better on {re.escape(name)}") as error:
        matrix_of(tmp_path, rows, sheet)
    assert "higher_is_better" in error.value.hint
    given = f"benchmark,metric,higher_is_better\n{name},{metric or ''},0\nb,{metric or ''},0\n"
    assert matrix_of(tmp_path, rows, given).notes == ()
