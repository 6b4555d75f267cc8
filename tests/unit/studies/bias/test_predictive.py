"""Posterior and prior predictive differences."""

import numpy as np
import pytest

from lm_validity.studies.bias.statistics.latent import FORMULAS, build_design
from lm_validity.studies.bias.statistics.model import (
    difference_draws,
    fit_laplace,
    posterior_predictive,
    prior_predictive,
    simulate,
)
from lm_validity.studies.bias.trials import paired_counts


def test_the_gaussian_sum_equals_drawing_every_count(trials):
    design = build_design(paired_counts(trials(tasks=3, subsamples=4, sizes=(40,)), "bias"), FORMULAS["equations"])
    generator = np.random.default_rng(0)
    probability = generator.uniform(0.2, 0.8, design.total.shape)
    drawn = difference_draws(design, np.broadcast_to(probability, (20_000, *probability.shape)), generator)
    counts = generator.binomial(design.total.astype(int), probability, (20_000, *probability.shape))
    share = counts / design.total
    exact = (share[:, design.arm == 1].sum(axis=1) - share[:, design.arm == 0].sum(axis=1)) / (design.total.size / 2)
    assert drawn.mean() == pytest.approx(exact.mean(), abs=4 * exact.std() / np.sqrt(10_000))
    assert drawn.std() == pytest.approx(exact.std(), rel=0.03)
    assert np.quantile(drawn, [0.025, 0.975]) == pytest.approx(
        np.quantile(exact, [0.025, 0.975]), abs=0.05 * exact.std() * 2
    )


@pytest.mark.parametrize("formula", FORMULAS)
def test_centres_on_the_observed_difference(trials, formula):
    counts = paired_counts(trials(tasks=5, subsamples=20, sizes=(200,), shift={"test": 0.3}), "bias")
    design = build_design(counts, FORMULAS[formula])
    predictive = posterior_predictive(design, fit_laplace(design))
    observed = (counts.treatment - counts.control).sum() / counts.total.sum()
    assert predictive.draws.mean() == pytest.approx(observed, abs=predictive.draws.std())
    assert np.quantile(predictive.draws, 0.055) < observed < np.quantile(predictive.draws, 0.945)


def test_only_a_task_by_model_term_follows_the_models_by_task(trials):
    table = trials(tasks=4, subsamples=10, sizes=(200,))
    # one model is far better at one task, which no sum of a task's and a model's level can say
    better = (table["task"] == "task0") & (table["language_model"] == "lm0")
    table.loc[better, ["base", "extra", "test"]] = 180.0
    errors = {}
    for formula in ("equations", "overdispersed"):
        design = build_design(paired_counts(table, "bias"), FORMULAS[formula])
        predictive = posterior_predictive(design, fit_laplace(design))
        errors[formula] = np.abs(predictive.predicted - predictive.observed).max()
    assert errors["overdispersed"] < 0.03 < 0.1 < errors["equations"]


def test_simulation_fixes_beta(trials):
    design = build_design(paired_counts(trials(), "bias"), FORMULAS["overdispersed"])
    correct, beta = simulate(design, np.random.default_rng(0), beta=0.2)
    assert beta == 0.2
    assert (correct <= design.total).all() and correct.shape == design.total.shape


def test_prior_predictive_is_symmetric_and_wide(trials):
    design = build_design(paired_counts(trials(models=1, sizes=(40,)), "bias"), FORMULAS["equations"])
    accuracies, differences = prior_predictive(design, 400, np.random.default_rng(0))
    assert accuracies.mean() == pytest.approx(0.5, abs=0.05)
    assert differences.mean() == pytest.approx(0, abs=4 * differences.std() / 20)
    assert differences.std() > 0.05
