"""Items of sampled runs as studies read them: means over the runs that scores are averaged over."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from tests.unit.compared import compare_models

from lm_validity.studies.items.answers import mean_items, model_answers, model_scores
from lm_validity.studies.items.compare import Margins, judged
from lm_validity.studies.items.report import analyze_items, items_page
from lm_validity.studies.items.statistics import RUNS_DO_NOT_DECIDE
from lm_validity.tables.counted import Sources
from lm_validity.tables.formats.engine import mean_of_items
from lm_validity.tables.items import read_benchmark_items
from lm_validity.tables.schema import ITEMS, SCORES, write_table
from lm_validity.words import is_known

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
    write_table(pd.DataFrame(scores).astype({"run": "Int64"}), SCORES, folder / "scores.parquet")
    frame = pd.DataFrame(items).reindex(columns=ITEMS.names).astype({"run": "Int64"})
    write_table(frame, ITEMS, folder / "items.parquet")
    return folder / "scores.parquet", folder / "items.parquet"


def test_learning_curves_read_means_over_runs(tmp_path, runs):
    _, items = written(tmp_path, runs, [("a", None, np.ones(40))])
    read = read_benchmark_items(items, "sums")
    assert read.doc_ids.tolist() == [f"{n:02d}" for n in range(40)]
    for model in read.models:
        np.testing.assert_allclose(model.correct[0], runs[model.model].mean(axis=0))


@pytest.mark.parametrize("extra", ["none", "greedy", "short"])
def test_items_are_those_of_the_scores(tmp_path, runs, extra):
    """The likeliest answers beside runs, and a run of fewer items, stay out of scores and of items."""
    more = {"none": [], "greedy": [("a", None, np.ones(40))], "short": [("a", 3, np.ones(12))]}[extra]
    scores, items = written(tmp_path, runs, more)
    rows = model_scores(Sources(scores)).rows
    own = mean_items(model_answers(items, rows)).set_index(["model", "doc_id"])["correct"]
    for model, table in runs.items():
        np.testing.assert_allclose(own[model].to_numpy(), table.mean(axis=0))
        assert rows.set_index("model")["value"][model] == pytest.approx(table.mean())
    (row,) = compare_models("a", "b", scores, items).differences
    change = runs["b"].mean(axis=0) - runs["a"].mean(axis=0)
    assert row.change == pytest.approx(change.mean()) and row.paired.items == 40 and row.test == "paired t"


def noise(table):
    """w, b and max(d², w / n) of one model by numpy."""
    within, spread = table.var(axis=0, ddof=1).mean(), table.mean(axis=1).var(ddof=1)
    return within, table.mean(axis=0).var(ddof=1), max(spread, within / table.shape[1])


@pytest.mark.parametrize("shocks", [(0.0, 0.0, 0.0), (0.3, 0.0, -0.2)], ids=["none", "shared by a run"])
def test_what_runs_share_is_in_the_error_of_a_difference(tmp_path, runs, shocks):
    """The squared error over items rises by max(0, d² - w / n) / K of each model; the freedom is Satterthwaite's."""
    runs = {name: np.clip(table + np.array(shocks)[:, None], 0, 1) for name, table in runs.items()}
    scores, items = written(tmp_path, runs)
    comparison = compare_models("a", "b", scores, items)
    (row,) = comparison.differences
    change = runs["b"].mean(axis=0) - runs["a"].mean(axis=0)
    found = {name: noise(table) for name, table in runs.items()}
    own = change.var(ddof=1) / 40 - sum(within for within, *_ in found.values()) / 120
    parts = [(max(own, 0.0), 39), *((total / 3, 2) for *_, total in found.values())]
    assert row.tested.error == pytest.approx(np.sqrt(sum(part for part, _ in parts)))
    freedom = sum(part for part, _ in parts) ** 2 / sum(part**2 / of_part for part, of_part in parts)
    assert row.tested.freedom == pytest.approx(freedom)
    now = sum(total for *_, total in found.values()) / 3
    assert row.sampling[:2] == pytest.approx((now, 3 * now))
    together, single = judged(comparison, Margins())
    assert together.verdict.interval == pytest.approx(tuple(row.tested.interval()))
    needed = single.verdict.runs_needed
    assert is_known(needed) or needed is RUNS_DO_NOT_DECIDE or single.verdict.decision != "not known"


def test_scores_alone_know_the_noise_of_runs_too(tmp_path, runs):
    """Spread between runs d: the part of the squared error of K runs is d² / K for each model."""
    scores, _ = written(tmp_path, runs)
    (row,) = compare_models("a", "b", scores).differences
    d2 = np.mean([table.mean(axis=1).var(ddof=1) for table in runs.values()])
    assert row.sampling == pytest.approx((2 * d2 / 3, 2 * d2, 4)) and row.test == "standard errors"
    assert row.tested.freedom == pytest.approx(4 * (row.tested.error**2 / (2 * d2 / 3)) ** 2)


def test_the_items_report_has_errors_and_passes(tmp_path, runs):
    """b, w, d and errors by numpy; pass@2 and pass^2 by enumerating the pairs of runs."""
    rows = (data := analyze_items(Sources(tmp_path / "scores.parquet", items=written(tmp_path, runs)[1]))).rows
    table, of_a = runs["a"], {"subject": "sums", "other": "a"}
    within, between, total = noise(table)
    items, shared = (between - within / 3) / 40, (total - within / 40) / 3
    assert rows.row("score_of_runs", **of_a).n == 40
    expected = {
        "runs": 3,
        "score_of_runs": table.mean(),
        "sampled_error": np.sqrt(between / 40 + shared),
        "sampled_error_endless": np.sqrt(items),
        "sampled_error_one_more": np.sqrt(items + total / 4),
        "sampled_share": total / (items + total),
    }
    assert {name: rows.value(name, **of_a) for name in expected} == pytest.approx(expected)
    assert rows.labels("k", "pass_at_k") == [1, 2, 3]
    pairs = list(combinations(range(3), 2))
    at_2 = np.mean([table[list(pair)].max(axis=0).mean() for pair in pairs])
    hat_2 = np.mean([table[list(pair)].min(axis=0).mean() for pair in pairs])
    assert rows.value("pass_at_k", k=2, **of_a) == pytest.approx(at_2)
    assert rows.value("pass_hat_k", k=2, **of_a) == pytest.approx(hat_2)
    assert {"Sampled runs", "pass@k and pass^k"} <= {section.title for section in items_page(data).sections}


def test_graded_answers_have_no_passes(tmp_path, runs):
    rows = analyze_items(
        Sources(tmp_path / "scores.parquet", items=written(tmp_path, {m: 0.5 + t / 4 for m, t in runs.items()})[1])
    ).rows
    assert rows.labels("k", "pass_at_k") == [1] and rows.all("pass_hat_k")[0].value is None
    assert len(rows.all("runs")) == 2
