"""Power against simulated t tests; single-split conclusions; the PCA simulation against scikit-learn."""

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import make_regression
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from lm_validity.missing import Missing
from lm_validity.studies.bias.statistics.effects import (
    EffectVariance,
    detection_power,
    meta_analysis,
    simulate_pca,
    smallest_detectable,
    subsamples_needed,
    tasks_needed,
    variance_components,
)
from lm_validity.studies.bias.trials import paired_counts


@pytest.mark.parametrize("effect, tasks, subsamples", [(0.01, 12, 10), (0.005, 25, 20), (0.0, 5, 3)])
def test_power_equals_simulated_t_tests(effect, tasks, subsamples):
    components = EffectVariance(between_tasks=0.005, within_task=0.04)
    generator = np.random.default_rng(0)
    spread = np.sqrt(0.005**2 + 0.04**2 / subsamples)
    means = generator.normal(effect, spread, (8000, tasks))
    found = np.mean(stats.ttest_1samp(means, 0, axis=1).pvalue < 0.05)
    expected = detection_power(effect, components, tasks, subsamples)
    assert found == pytest.approx(expected, abs=3.5 * np.sqrt(expected * (1 - expected) / 8000))


def test_fewest_subsamples_and_tasks_are_the_fewest():
    components = EffectVariance(0.001, 0.07)
    subsamples = subsamples_needed(0.005, components, tasks=25)
    assert detection_power(0.005, components, 25, subsamples) >= 0.8
    assert detection_power(0.005, components, 25, subsamples - 1) < 0.8
    tasks = tasks_needed(0.005, components, subsamples=20)
    assert detection_power(0.005, components, tasks, 20) >= 0.8 > detection_power(0.005, components, tasks - 1, 20)
    smallest = smallest_detectable(components, 25, 20)
    assert detection_power(smallest, components, 25, 20) == pytest.approx(0.8, abs=1e-6)


def test_subsamples_cannot_make_up_for_tasks_that_differ():
    assert isinstance(subsamples_needed(0.005, EffectVariance(0.02, 0.07), tasks=10), Missing)


def test_equal_differences_have_no_spread_and_are_found_at_once():
    """0.1 as differences of counts: their mean and their spread are equal numbers' rounding."""
    differences, task = np.array([7, 2, 9] * 2) / 10 - np.array([6, 1, 8] * 2) / 10, np.repeat([0, 1], 3)
    assert np.ptp(differences) > 0
    components = variance_components(differences, task)
    assert components == EffectVariance(0.0, 0.0)
    assert subsamples_needed(0.005, components, tasks=2) == 1 and tasks_needed(0.005, components, subsamples=3) == 2
    apart = variance_components(differences + 0.1 * task, task)
    assert apart.within_task == 0 and apart.between_tasks == pytest.approx(0.1 / np.sqrt(2))


@pytest.mark.parametrize("tasks", [2, 3, 25])
def test_power_is_one_however_small_the_spread(tasks):
    for spread in np.geomspace(1e-4, 1e-30, 27):
        assert detection_power(0.5, EffectVariance(spread, spread), tasks, 1) == pytest.approx(1.0, abs=1e-6)


def test_variance_components_recover_the_truth():
    generator = np.random.default_rng(0)
    task = np.repeat(np.arange(4000), 10)
    differences = generator.normal(0, 0.03, 4000)[task] + generator.normal(0, 0.1, 40_000)
    components = variance_components(differences, task)
    assert components.between_tasks == pytest.approx(0.03, rel=0.15)
    assert components.within_task == pytest.approx(0.1, rel=0.05)
    assert isinstance(variance_components(np.array([0.1, 0.2]), np.array(["a", "b"])), Missing)


def test_slices_of_pure_binomial_data_are_calibrated(trials):
    table = trials(models=2, tasks=12, subsamples=60, sizes=(100,))
    result = meta_analysis(paired_counts(table, "bias"), slices=150)
    # without training noise the binomial model's 89% intervals are right; 150 slices share their trials
    assert 0.03 < result.share_excluding_zero < 0.22
    assert 0.03 < result.share_t_excluding_zero < 0.22
    noisy = trials(models=2, tasks=12, subsamples=60, sizes=(500,), noise=0.4)
    noisy = meta_analysis(paired_counts(noisy, "bias"), slices=150)
    assert noisy.share_excluding_zero > 0.4
    assert noisy.share_t_excluding_zero < 0.25


def test_the_model_free_share_does_not_hang_on_the_seed(trials):
    counts = paired_counts(trials(models=2, tasks=12, subsamples=60, sizes=(100,)), "bias")
    shares = [meta_analysis(counts, slices=2, seed=seed).share_t_excluding_zero for seed in range(4)]
    assert np.ptp(shares) < 0.02  # 500 slices: a standard error of 0.014 each


def test_a_planted_effect_shows_in_the_slices(trials):
    table = trials(models=2, tasks=12, subsamples=10, sizes=(100,), shift={"test": 0.5})
    result = meta_analysis(paired_counts(table, "bias"), slices=40)
    assert np.mean(result.means) == pytest.approx(0.5, abs=0.1)
    assert result.share_beyond > 0.95
    assert np.array_equal(result.means, meta_analysis(paired_counts(table, "bias"), slices=40).means)


def test_pca_trials_equal_scikit_learn():
    result = simulate_pca(effective_rank=10, n=40, trials=2)
    x, y = make_regression(
        n_samples=180, n_features=20, n_informative=10, effective_rank=10, noise=1.0, random_state=123
    )
    for trial in range(2):
        train, rest = train_test_split(np.arange(180), train_size=100, random_state=42 + trial)
        extra, test = train_test_split(rest, train_size=40, test_size=40, random_state=43 + trial)
        for arm, rows in ((1, extra), (2, test)):
            components = PCA(6).fit(x[rows])
            model = LinearRegression().fit(components.transform(x[train]), y[train])
            expected = model.score(components.transform(x[test]), y[test])
            assert result[trial, arm] == pytest.approx(expected, abs=1e-9)
        base = make_pipeline(LinearRegression()).fit(x[train], y[train])
        assert result[trial, 0] == pytest.approx(base.score(x[test], y[test]), abs=1e-9)
