"""Two models compared: values by hand, tables without items, bad input, the command and its page."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import typer
from scipy import stats
from typer.testing import CliRunner

from lm_validity.cli.reports import compare
from lm_validity.errors import InputError
from lm_validity.missing import Missing
from lm_validity.pages.page import page_document
from lm_validity.pages.svg import points
from lm_validity.studies.items.compare.numbers import CompareSummary, Comparison, compare_models
from lm_validity.studies.items.compare.page import MOST_ROWS, comparison_page
from lm_validity.studies.items.numbers import analyze_items

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
    assert [row.outcome for row in summary.comparisons] == ["first better", "not separated"]
    swapped = compare_models("b", "a", folder / "scores.parquet", folder / "items.parquet")
    assert [row.outcome for row in swapped.comparisons] == ["second better", "not separated"]
    assert swapped.comparisons[0].difference == pytest.approx(-far.difference)


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
    assert [row.outcome for row in summary.comparisons] == ["second better", "not separated"]


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
    summary = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet")
    far = summary.comparisons[0]
    assert far.items == 150 and far.test == "McNemar"
    assert far.difference == pytest.approx(np.mean((answers["a", "far", DIRECT] - answers["b", "far", DIRECT])[50:]))
    (note,) = [note for note in summary.notes if "far" in note and "150 of up to 200" in note]
    assert "near" not in note
    report = analyze_items(folder / "scores.parquet", folder / "items.parquet")
    alike = {row.benchmark: row.all_equal for row in report.benchmarks}
    assert alike == {name: (answers["a", name, DIRECT] == answers["b", name, DIRECT]).sum() for name in alike}


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


@pytest.mark.parametrize("direction", [True, None])
def test_several_metrics_need_a_name(write, answers, tmp_path, direction):
    def both(scores):
        scores = scores.assign(higher_is_better=pd.array([direction] * len(scores), dtype="boolean"))
        further = scores.assign(metric="f1,none", value=0.1)
        return pd.concat([scores, further[further["benchmark"] == "far"]])

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
    monkeypatch.setattr("lm_validity.pages.figures.save_figure", lambda spec, stem: None)
    app = typer.Typer()
    app.command()(compare)
    folder = write(answers)
    files = ["--scores", str(folder / "scores.parquet"), "--items", str(folder / "items.parquet")]
    arguments = ["a", "b", *files, "--output", str(folder / "page")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and "far: worse" in done.stdout
    summary = json.loads((folder / "page" / "summary.json").read_text())
    assert summary["first"] == "a" and len(summary["comparisons"]) == 2
    table = pd.read_csv(folder / "page" / "tables" / "comparisons.csv")
    assert table["outcome"].tolist() == ["first better", "not separated"]
    assert table["change"].to_numpy() == pytest.approx([-row["difference"] for row in summary["comparisons"]])
    ends = [row["interval"] for row in summary["comparisons"]]
    assert table[["low", "high"]].to_numpy().tolist() == [pytest.approx([-high, -low]) for low, high in ends]
    assert table["change"].to_numpy() == pytest.approx([row["change"] for row in summary["verdicts"]])
    # an import that knows no metric, and a benchmark that the sheet does not list, which stays out as in reports
    write(answers, changes=lambda scores: scores.assign(metric=None))
    (folder / "b.csv").write_text("benchmark,metric\nfar,acc\n")
    done = CliRunner().invoke(app, [*arguments, "--benchmarks", str(folder / "b.csv")], catch_exceptions=False)
    summary = json.loads((folder / "page" / "summary.json").read_text())
    assert done.exit_code == 0 and [row["metric"] for row in summary["comparisons"]] == ["acc,none"]
    assert any("near" in note and "stay out" in note for note in summary["notes"])


def page_of(summary):
    """The document of the comparison's page."""
    return page_document(comparison_page(summary))


def drawn(page) -> set[str]:
    """The names of benchmarks that the picture shows."""
    return set(re.findall(r'<text x="4"[^>]*>([^<]*)<', page["picture"]["svg"]))


@pytest.mark.parametrize(
    ("direct", "trained", "said"),
    [
        ((2, 0, 1), (), "a is better on 2 of 3 benchmarks; b on none"),
        ((0, 3, 0), (1, 1, 1), "Direct, b is better on 3 of 3 benchmarks, a on none; after training, each on one"),
        ((1, 2, 0), (2, 0, 1), "Direct, b is better on 2 of 3 benchmarks, a on one; after training, none and two"),
        ((0, 0, 3), (0, 1, 2), "Direct, neither is found better on 3 benchmarks; after training, b is "
         "better on 1, a on none"),
        ((1, 0, 0), (0, 0, 1), "Direct, a is better on 1 of 1 benchmark, b on none; after training, neither "
         "is found better"),
    ],
)  # fmt: skip
def test_the_page_says_who_is_better_on_how_many(direct, trained, said):
    rows = []
    for protocol, wins in ((DIRECT, direct), (TRAINED, trained)):
        for sign, number in zip((1, -1, 0), wins, strict=False):
            for _ in range(number):
                row = Comparison(f"b{len(rows)}", protocol, None, 0.5, 0.5 - sign * 0.2, sign * 0.2)
                rows.append(replace(row, p=0.01, p_adjusted=0.01 if sign else 0.5))
    page = page_of(CompareSummary("x/a", "y/b", tuple(rows), ()))
    assert page["lede"]["sentence"] == said and len(said.split()) <= 18
    assert page["lede"]["heading"].startswith("a or b")


def test_the_picture_has_what_was_tested_and_its_label_the_intervals(write, answers):
    folder = write(answers | {(m, "far", TRAINED): answers[m, "far", DIRECT] for m in "ab"})
    summary = compare_models("a", "b", folder / "scores.parquet", folder / "items.parquet")
    page = page_of(summary)
    assert drawn(page) == {"far", "near"}
    label = re.search('aria-label="([^"]*)"', page["picture"]["svg"])[1]
    for row in summary.comparisons:  # second less first, as in the verdicts
        assert all(points(-value, 1, signed=True) in label for value in (row.difference, *row.interval))
    assert label.startswith("b less a in points")
    dots = [float(x) for x in re.findall(r'<circle[^>]* cx="([^"]*)"', page["picture"]["svg"])]
    assert {row.outcome for row in summary.comparisons} == {"first better", "not separated"} and dots[-1] < max(dots)
    # scores that are no shares, and benchmarks without a test, are in the table alone
    row = summary.comparisons[0]
    others = (
        replace(row, benchmark="perplexity", first_score=12.0, in_points=False),
        Comparison("untested", DIRECT, None, 0.5, 0.1, 0.4),
    )
    assert drawn(page_of(replace(summary, comparisons=(row, *others)))) == {"far"}
    assert page_of(replace(summary, comparisons=others[:1]))["picture"] is None
    assert drawn(page_of(replace(summary, comparisons=others[1:]))) == {"untested"}


def test_a_picture_of_many_benchmarks_has_the_largest_differences():
    rows = [Comparison(f"b{i}", DIRECT, None, 0.9, 0.9 - i / 100, i / 100, p=0.5, p_adjusted=1.0) for i in range(80)]
    assert drawn(page_of(CompareSummary("a", "b", tuple(rows), ()))) == {f"b{i}" for i in range(80 - MOST_ROWS, 80)}
