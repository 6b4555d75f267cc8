"""Accuracies by arm, predicted effects by task, and effects that language models share."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.missing import Missing
from lm_validity.studies.bias.effects import accuracies, model_correlations
from lm_validity.studies.bias.numbers import analyze_bias
from lm_validity.studies.bias.page import bias_page
from lm_validity.studies.bias.statistics.effects import common_subsamples
from lm_validity.studies.bias.trials import Study


def test_the_mean_correlation_and_what_chance_gives():
    rng = np.random.default_rng(0)
    tasks = [rng.standard_normal((2, 30)) for _ in range(8)]
    found = common_subsamples(tasks)
    assert found.correlation == pytest.approx(np.mean([stats.spearmanr(*both).statistic for both in tasks]))
    wide = stats.norm.ppf(0.975) / np.sqrt(29 * 8)  # the variance of a rank correlation by chance is 1 / (K - 1)
    assert found.null_interval == pytest.approx((-wide, wide), abs=0.03)
    shared = [np.stack([both[0], both[0] + 2 * both[1]]) for both in tasks]
    assert common_subsamples(shared).p == pytest.approx(1 / 1001) and common_subsamples(shared).tasks == 8
    assert isinstance(common_subsamples([np.ones((2, 9)), np.arange(4.0).reshape(2, 2)]), Missing)


def test_p_is_uniform_where_models_share_nothing():
    rng = np.random.default_rng(1)
    p = [common_subsamples(rng.integers(-3, 4, (4, 2, 8)).astype(float), seed).p for seed in range(200)]
    assert 0.01 <= np.mean(np.array(p) < 0.05) <= 0.1 and 0.4 < np.mean(p) < 0.6


def test_subsamples_with_other_test_sets_are_left_out(trials):
    table = trials(models=2, tasks=3, subsamples=6, sizes=(40,))
    assert set(model_correlations(table)["subsamples"]) == {18}
    table.loc[(table["language_model"] == "lm1") & (table["subsample"] < 2), "test_hash"] = "another"
    rows = model_correlations(table)[["effect", "subsamples", "tasks"]].itertuples(index=False, name=None)
    assert set(rows) == {("bias", 12, 3), ("boost", 12, 3)}
    assert model_correlations(trials(models=1)).empty


def test_accuracies_stand_beside_the_largest_class(trials):
    table = trials(models=1, tasks=2, subsamples=5, sizes=(40,))
    assert "majority" not in accuracies(table)
    table["test_hash"] = np.where(table["task"] == "task0", "majority 0.550000", None)
    rows = accuracies(table).set_index(["task", "arm"])
    own = table.loc[table["task"] == "task0", "extra"] / 40
    row = rows.loc[("task0", "extra")]
    assert (row["subsamples"], row["majority"]) == (5, 0.55)
    assert row[["lowest", "median", "highest"]].tolist() == [own.min(), own.median(), own.max()]
    assert row["below_majority"] == (own < 0.55).mean() and np.isnan(rows.loc[("task1", "test"), "below_majority"])


def test_predicted_effects_by_task_hold_the_observed_ones(trials):
    rows = trials(tasks=4, subsamples=20, sizes=(200,), shift={"test": 0.3})
    study = Study(rows)
    summary = analyze_bias(study, formula="overdispersed")
    page = bias_page(study, summary)
    tables = {table.name: table.frame for section in page.sections for table in section.tables}
    table, own = tables["predictive_by_task"], rows[rows["task"] == "task2"]
    row = table[(table["effect"] == "bias") & (table["task"] == "task2")].iloc[0]
    assert len(table) == 8 and row["observed"] == pytest.approx(((own["test"] - own["extra"]) / own["total"]).mean())
    assert (table["low"] < table["median"]).all() and (table["median"] < table["high"]).all()
    assert table["observed"].between(table["low"], table["high"]).mean() > 0.7
    whole = next(fit for fit in summary.posterior if fit.effect == "bias")
    assert table.loc[table["effect"] == "bias", "mean"].mean() == pytest.approx(whole.difference_mean, abs=0.002)
