"""Two models compared: values by hand, tables without items, bad input, the command and its page."""

import json

import numpy as np
import pandas as pd
import pytest
import typer
from scipy import stats
from typer.testing import CliRunner

from lm_validity.cli.reports import compare
from lm_validity.errors import InputError
from lm_validity.studies.items.compare import compare_models
from lm_validity.summaries import Missing

DIRECT, TRAINED = "direct", "train_before_test"


@pytest.fixture
def answers():
    """200 items of two benchmarks: `far` separates a from b, `near` does not."""
    generator = np.random.default_rng(0)
    far, near = (generator.uniform(size=(2, 200)) < [[0.7], [0.4]]), (generator.uniform(size=(2, 200)) < [[0.5], [0.5]])
    return {(m, b, DIRECT): v[i] for b, v in (("far", far), ("near", near)) for i, m in enumerate("ab")}


def test_common_items_are_compared_pairwise_and_corrected(write, answers):
    folder = write(answers)
    summary = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet")
    far, near = summary.comparisons
    first, second = (answers[m, "far", DIRECT].astype(float) for m in "ab")
    only = int((first > second).sum()), int((second > first).sum())
    assert (far.first_only, far.second_only, far.items, far.test) == (*only, 200, "McNemar")
    assert far.p == pytest.approx(stats.binomtest(only[0], sum(only)).pvalue)
    assert far.p_adjusted == pytest.approx(2 * far.p) and near.p_adjusted == near.p
    assert far.difference == pytest.approx(first.mean() - second.mean()) and far.interval[0] > 0
    assert summary.better(1, DIRECT) == [far] and summary.better(-1, DIRECT) == []
    swapped = compare_models("b", "a", folder / "scores.parquet", folder / "items.parquet")
    assert swapped.better(-1, DIRECT)[0].difference == pytest.approx(-far.difference)


def test_protocols_are_corrected_by_themselves(write, answers):
    trained = {(m, b, TRAINED): v for (m, b, _), v in answers.items() if b == "far"}
    folder = write(answers | trained)
    summary = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet")
    rows = {(row.benchmark, row.protocol): row for row in summary.comparisons}
    assert rows["far", TRAINED].p_adjusted == rows["far", TRAINED].p
    assert rows["far", DIRECT].p_adjusted == pytest.approx(2 * rows["far", TRAINED].p)


def test_a_metric_of_which_less_is_better_turns_the_difference(write, answers):
    folder = write(answers, higher_is_better=False)
    summary = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet")
    assert summary.better(-1, DIRECT)[0].benchmark == "far"


def test_subjects_are_clusters(write, answers):
    folder = write(answers, subjects=np.repeat([f"s{i}" for i in range(20)], 10))
    far = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet").comparisons[0]
    assert far.test == "clustered by subject" and far.subjects == 20
    folder = write(answers, subjects=np.repeat([f"s{i}" for i in range(5)], 40))
    far = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet").comparisons[0]
    assert far.test == "McNemar" and far.subjects is None


def test_without_items_standard_errors_are_used_or_nothing(write, answers):
    folder = write(answers)
    far, _ = compare_models("a", "b", folder / "scores.parquet").comparisons
    first, second = (answers[m, "far", DIRECT].astype(float) for m in "ab")
    error = np.hypot(first.std(ddof=1), second.std(ddof=1)) / np.sqrt(200)
    assert far.test == "standard errors"
    assert far.p == pytest.approx(2 * stats.norm.sf(abs(first.mean() - second.mean()) / error))
    folder = write(answers, changes=lambda scores: scores.assign(stderr=None))
    summary = compare_models("a", "b", folder / "scores.parquet")
    assert [row.test for row in summary.comparisons] == ["none", "none"]
    assert all(isinstance(row.p_adjusted, Missing) for row in summary.comparisons)


def test_a_score_that_is_no_mean_of_items_is_not_tested_on_them(write, answers):
    folder = write(answers, changes=lambda scores: scores.assign(value=scores["value"] ** 2))
    summary = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet")
    assert {row.test for row in summary.comparisons} == {"standard errors"}


def test_models_with_other_items_are_compared_on_the_common_ones(write, answers):
    answers = {key: value.astype(float) for key, value in answers.items()}
    answers["b", "far", DIRECT][:50] = np.nan
    folder = write(answers, changes=lambda s: s.assign(value=[np.nanmean(v) for v in answers.values()]))
    far = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet").comparisons[0]
    assert far.items == 150 and far.test == "McNemar"


@pytest.mark.parametrize("models, problem", [(("a", "c"), "no score of the model 'c'"), (("a", "a"), "named twice")])
def test_wrong_models_are_named(write, answers, models, problem):
    folder = write(answers)
    with pytest.raises(InputError, match=problem):
        compare_models(*models, folder / "scores.parquet")


def test_models_without_a_common_benchmark_cannot_be_compared(write, answers):
    kept = [("a", "far", DIRECT), ("b", "near", DIRECT)]
    folder = write({key: value for key, value in answers.items() if key in kept})
    with pytest.raises(InputError, match="share no benchmark"):
        compare_models("a", "b", folder / "scores.parquet")


def test_several_metrics_need_a_name(write, answers, tmp_path):
    def both(scores):
        return pd.concat([scores, scores.assign(metric="f1,none", value=0.1)])

    folder = write(answers, changes=both)
    with pytest.raises(InputError, match="several metrics"):
        compare_models("a", "b", folder / "scores.parquet")
    sheet = tmp_path / "benchmarks.csv"
    sheet.write_text("benchmark,metric\nfar,acc\nnear,acc\n")
    summary = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet", sheet)
    assert {row.metric for row in summary.comparisons} == {"acc,none"}


def test_impossible_standard_errors_give_no_test(write, answers):
    def without_error(scores):
        return scores.assign(stderr=scores["stderr"].mask(scores["benchmark"] == "far", 0.0))

    summary = compare_models("a", "b", write(answers, changes=without_error) / "scores.parquet")
    assert [row.test for row in summary.comparisons] == ["none", "standard errors"]
    assert any("far (2 of 2)" in note for note in summary.notes)


def test_the_command_prints_a_table_and_writes_a_page(write, answers, monkeypatch):
    monkeypatch.setattr("lm_validity.pages.page.save_figure", lambda spec, stem: None)
    app = typer.Typer()
    app.command()(compare)
    folder = write(answers)
    files = ["--scores", str(folder / "scores.parquet"), "--items", str(folder / "items.parquet")]
    arguments = ["a", "b", *files, "--output", str(folder / "page")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and done.stdout.splitlines()[1].startswith("far")
    summary = json.loads((folder / "page" / "summary.json").read_text())
    assert summary["first"] == "a" and len(summary["comparisons"]) == 2
    table = pd.read_csv(folder / "page" / "tables" / "comparisons.csv")
    assert table["outcome"].tolist() == ["first better", "not separated"]
    # a benchmark that the sheet does not list, of an import that knows no metric
    write(answers, changes=lambda scores: scores.assign(metric=None))
    (folder / "b.csv").write_text("benchmark,metric\nfar,acc\n")
    done = CliRunner().invoke(app, [*arguments, "--benchmarks", str(folder / "b.csv")], catch_exceptions=False)
    metrics = [row["metric"] for row in json.loads((folder / "page" / "summary.json").read_text())["comparisons"]]
    assert done.exit_code == 0 and metrics == ["acc,none", None]
