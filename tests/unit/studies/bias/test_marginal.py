"""Marginal effects against simulation, and their sign against beta's."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from lm_validity.studies.bias.statistics.latent import FORMULAS, build_design
from lm_validity.studies.bias.statistics.model import (
    fit_laplace,
    marginal_effect,
    model_levels,
    model_spreads,
    simulate,
)
from lm_validity.studies.bias.trials import paired_counts


def test_equals_the_mean_over_many_drawn_tasks():
    generator = np.random.default_rng(0)
    levels, spreads, weights = np.array([0.4, -1.0]), np.array([[0.5, 1.0], [1.5, 0.2]]), np.array([0.3, 0.7])
    drawn = generator.standard_normal(400_000)
    for beta in (-0.7, 0.3):
        expected = 0.0
        for node, weight in enumerate(weights):
            for model in range(2):
                middle = levels[model] + spreads[node, model] * drawn
                expected += weight * np.mean(expit(middle + beta / 2) - expit(middle - beta / 2)) / 2
        assert marginal_effect(levels, spreads, weights, np.array([beta]))[0] == pytest.approx(expected, abs=3e-4)


def test_has_the_sign_of_beta_and_grows_with_it():
    beta = np.linspace(-3, 3, 61)
    effects = marginal_effect(np.array([1.0]), np.array([[0.8]]), np.ones(1), beta)
    assert effects[30] == 0.0 and (np.diff(effects) > 0).all() and effects == pytest.approx(-effects[::-1])


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("models", [1, 2])
def test_levels_are_the_designs_and_variances_add_up(trials, formula, models):
    design = build_design(paired_counts(trials(models=models, sizes=(40,)), "bias"), FORMULAS[formula])
    scales = np.linspace(0.1, 0.5, len(design.names))[None]
    spreads = model_spreads(design, scales)
    assert spreads.shape == (1, models)
    shared = np.sum(scales[0, : design.pair + 1] ** 2)
    own = scales[0, design.pair + 1 :] ** 2 if design.noise is not None else np.zeros(models)
    assert spreads[0] ** 2 == pytest.approx(shared + own)
    fixed = np.arange(1.0, models + 1)
    for model, level in enumerate(model_levels(design, fixed)):
        both_arms = (design.columns @ np.append(fixed, np.zeros(design.columns.shape[1] - models)))[2 * model :][:2]
        assert both_arms == pytest.approx([level, level])


@pytest.mark.slow
def test_the_interval_holds_the_effect_of_new_tasks_and_trainings(trials):
    """Without an effect, 95% intervals for new tasks and trainings hold zero; the posterior predictive ones do not."""
    layout = paired_counts(trials(models=2, tasks=8, subsamples=4, sizes=(500,)), "bias")
    design, held = build_design(layout, FORMULAS["overdispersed"]), 0
    for generator in np.random.default_rng(0).spawn(100):
        correct, _ = simulate(design, generator, beta=0.0)
        low, high = fit_laplace(replace(design, correct=correct), nodes=64).interval_at(0.95)
        held += low <= 0 <= high
    assert held >= 89
