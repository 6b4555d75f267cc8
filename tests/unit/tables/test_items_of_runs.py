"""Items of sampled runs as studies read them: means over the runs that scores are averaged over."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from lm_validity.missing import is_known
from lm_validity.studies.items.answers import model_items, model_scores
from lm_validity.studies.items.compare.numbers import Margin, compare_models, judged
from lm_validity.studies.items.numbers import analyze_items
from lm_validity.studies.items.page import items_page
from lm_validity.studies.items.statistics import RUNS_DO_NOT_DECIDE
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportOptions, mean_of_items, typed_scores
from lm_validity.tables.items import read_benchmark_items
from lm_validity.tables.schema import ITEMS, SCORES, write_table

KEY = {"checkpoint": "final", "benchmark": "sums", "protocol": "direct", "prompt": "plain", "split": "test"}


@pytest.fixture
def runs() -> dict[str, np.ndarray]:
    """(runs, items) of two models."""
    rng = np.random.default_rng(4)
    chance = rng.beta(2, 2, 40)
    return {name: (rng.random((3, 40)) < chance + shift).astype(float) for name, shift in (("a", 0.0), ("b", 0.1))}


def written(folder, runs, extra=()):
    """scores.parquet and items.parquet; `extra`: further (model, run, values of the first items)."""
    every = [(model, run, own) for model, table in runs.items() for run, own in enumerate(table)] + list(extra)
    scores = [KEY | {"model": m, "run": run, "metric": "acc,none"} | mean_of_items(v) for m, run, v in every]
    items = [
        KEY | {"model": m, "run": run, "doc_id": f"{n:02d}", "correct": float(value)}
        for m, run, values in every
        for n, value in enumerate(values)
    ]
    write_table(typed_scores(pd.DataFrame(scores)), SCORES, folder / "scores.parquet")
    frame = pd.DataFrame(items).reindex(columns=ITEMS.names).astype({"run": "Int64"})
    write_table(frame, ITEMS, folder / "items.parquet")
    return folder / "scores.parquet", folder / "items.parquet"


def test_learning_curves_read_means_over_runs(tmp_path, runs):
    _, items = written(tmp_path, runs, [("a", None, np.ones(40))])
    read = read_benchmark_items(items, "sums")
    assert read.doc_ids.tolist() == [f"{n:02d}" for n in range(40)]
    for model in read.models:
        np.testing.assert_allclose(model.correct[0], runs[model.model].mean(axis=0))


def test_a_table_without_runs_is_read_as_before(tmp_path, runs):
    _, items = written(tmp_path, {}, [("a", None, runs["a"][0]), ("b", None, runs["b"][0])])
    np.testing.assert_array_equal(read_benchmark_items(items, "sums").models[1].correct[0], runs["b"][0])


@pytest.mark.parametrize("extra", ["none", "greedy", "short"])
def test_items_are_those_of_the_scores(tmp_path, runs, extra):
    """The likeliest answers beside runs, and a run of fewer items, stay out of scores and of items."""
    more = {"none": [], "greedy": [("a", None, np.ones(40))], "short": [("a", 3, np.ones(12))]}[extra]
    scores, items = written(tmp_path, runs, more)
    rows = model_scores(scores).rows
    own = model_items(items, rows).set_index(["model", "doc_id"])["correct"]
    for model, table in runs.items():
        np.testing.assert_allclose(own[model].to_numpy(), table.mean(axis=0))
        assert rows.set_index("model")["value"][model] == pytest.approx(table.mean())
    (row,) = compare_models("a", "b", scores, items).comparisons
    difference = runs["a"].mean(axis=0) - runs["b"].mean(axis=0)
    assert row.difference == pytest.approx(difference.mean()) and row.items == 40 and row.test == "paired t"


def test_what_would_decide_knows_the_noise_of_runs(tmp_path, runs):
    """w and b of the two models by numpy; the error of the difference is that over items of the means over runs."""
    scores, items = written(tmp_path, runs)
    summary = judged(compare_models("a", "b", scores, items), {}, Margin())
    (row,), (verdict,) = summary.comparisons, summary.verdicts
    within = sum(table.var(axis=0, ddof=1).mean() for table in runs.values())
    assert row.sampling == pytest.approx((within / 3 / 40, within / 40))
    difference = runs["a"].mean(axis=0) - runs["b"].mean(axis=0)
    error = difference.std(ddof=1) / np.sqrt(40)
    assert row.tested.error == pytest.approx(error)
    assert is_known(verdict.runs_needed) or verdict.runs_needed is RUNS_DO_NOT_DECIDE or verdict.verdict != "not known"


def test_scores_alone_know_the_noise_of_runs_too(tmp_path, runs):
    """Spread between runs d: the part of the squared error of K runs is d² / K for each model."""
    scores, _ = written(tmp_path, runs)
    (row,) = compare_models("a", "b", scores).comparisons
    d2 = np.mean([table.mean(axis=1).var(ddof=1) for table in runs.values()])
    assert row.sampling == pytest.approx((2 * d2 / 3, 2 * d2)) and row.test == "standard errors"


def test_the_items_report_has_errors_and_passes(tmp_path, runs):
    """b, w and errors by numpy; pass@2 and pass^2 by enumerating the pairs of runs."""
    data = analyze_items(*written(tmp_path, runs))
    (row,) = (sampled for sampled in data.sampled if sampled.model == "a")
    table = runs["a"]
    within, between = table.var(axis=0, ddof=1).mean(), table.mean(axis=0).var(ddof=1)
    assert (row.runs, row.items, row.score) == (3, 40, pytest.approx(table.mean()))
    assert row.error == pytest.approx(np.sqrt(between / 40))
    assert row.error_endless_runs == pytest.approx(np.sqrt((between - within / 3) / 40))
    assert row.error_one_more_run == pytest.approx(np.sqrt((between - within / 3 + within / 4) / 40))
    assert row.share_of_sampling == pytest.approx(within / (between + within * 2 / 3))
    passes = {each["k"]: each for each in data.passes if each["model"] == "a"}
    assert sorted(passes) == [1, 2, 3]
    pairs = list(combinations(range(3), 2))
    assert passes[2]["pass_at_k"] == pytest.approx(np.mean([table[list(pair)].max(axis=0).mean() for pair in pairs]))
    assert passes[2]["pass_hat_k"] == pytest.approx(np.mean([table[list(pair)].min(axis=0).mean() for pair in pairs]))
    assert items_page(data).sections[-1].title == "Sampled runs"


def test_graded_answers_have_no_passes(tmp_path, runs):
    data = analyze_items(*written(tmp_path, {name: 0.5 + table / 4 for name, table in runs.items()}))
    assert {each["k"] for each in data.passes} == {1} and not is_known(data.passes[0]["pass_hat_k"])
    assert len(data.sampled) == 2


def test_items_get_the_names_that_their_scores_got(tmp_path):
    """A model and a benchmark that the reader renames, and two names of one model, are the same in both tables."""
    rows = [f"{model},quiz,{n},{n % 3 == 0:d}" for model in ("ant", "org/bee", "org__bee") for n in range(30)]
    (tmp_path / "a.csv").write_text("model,benchmark,question_id,correct\n" + "\n".join(rows))
    (tmp_path / "r.tsv").write_text("what\twhere\tdecided\nmodel\tant\torg/ant\nbenchmark\tquiz\ttest\n")
    options = ImportOptions(reading=tmp_path / "r.tsv")
    scores = import_files([tmp_path / "a.csv"], tmp_path / "out", options).scores
    items = pd.read_parquet(tmp_path / "out" / "items.parquet")
    assert items.groupby(["model", "benchmark"]).size().to_dict() == dict.fromkeys(
        [("org/ant", "test"), ("org/bee", "test")], 30
    )
    assert set(zip(scores["model"], scores["benchmark"], strict=True)) == {("org/ant", "test"), ("org/bee", "test")}
