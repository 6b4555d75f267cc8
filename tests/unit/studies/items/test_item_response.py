"""The 2PL fit against simulated truths, against marginal maximum likelihood, and on tables that it cannot fit."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit, logsumexp

from lm_validity.studies.items.statistics import fit_2pl


def simulate(models, items, seed=0, reversed_share=0.0):
    """Abilities, discriminations, intercepts and answers of a world in which the model is true."""
    generator = np.random.default_rng(seed)
    abilities, slope = generator.standard_normal(models), generator.lognormal(0, 0.4, items)
    slope = np.where(generator.uniform(size=items) < reversed_share, -slope, slope)
    intercept = generator.normal(0, 1.2, items)
    right = expit(np.outer(abilities, slope) + intercept)
    return abilities, slope, intercept, (generator.uniform(size=right.shape) < right).astype(float)


def held(fit, abilities):
    """Which true abilities lie in their 95% interval, on the scale of these models."""
    expected = np.polyval(np.polyfit(abilities, fit.abilities, 1), abilities)
    return np.abs(fit.abilities - expected) < 1.96 * fit.ability_sds


def test_recovers_abilities_items_and_reversed_items():
    abilities, slope, intercept, correct = simulate(200, 300, reversed_share=0.05)
    fit = fit_2pl(correct)
    assert fit.converged and np.corrcoef(abilities, fit.abilities)[0, 1] > 0.97
    assert np.corrcoef(slope, fit.discrimination)[0, 1] > 0.85
    assert np.corrcoef(intercept, fit.intercept)[0, 1] > 0.95
    flagged = fit.negative()
    assert (slope[flagged] < 0).all() and flagged.sum() >= 0.6 * (slope < 0).sum()


def test_scale_is_that_of_the_truth_and_abilities_differ():
    """Many items: the prior of the items must not set the scale, and abilities lie between the points of any grid."""
    abilities, slope, _, correct = simulate(61, 4000, seed=2)
    fit = fit_2pl(correct)
    true = (abilities - abilities.mean()) / abilities.std()
    assert fit.abilities.mean() == pytest.approx(0, abs=1e-6) and fit.abilities.std() == pytest.approx(1, abs=0.01)
    assert np.abs(fit.abilities - true).max() < 0.2 and len(np.unique(fit.abilities.round(4))) == 61
    assert fit.discrimination.mean() == pytest.approx(slope.mean() * abilities.std(), rel=0.02)
    assert np.abs(fit.abilities - true).mean() < 2 * fit.ability_sds.mean()


def test_intervals_of_abilities_cover_the_truth():
    worlds = [simulate(12, 1000, seed=seed) for seed in range(20)]
    assert 0.9 < np.mean([held(fit_2pl(correct), abilities) for abilities, *_, correct in worlds]) < 0.99


def test_agrees_with_marginal_maximum_likelihood():
    """The exact optimum over a fine grid of abilities, without priors of items: 400 models say enough by themselves."""
    *_, correct = simulate(400, 20)
    fit, grid = fit_2pl(correct), np.linspace(-6, 6, 121)

    def loss(parameters):
        slope, intercept = parameters.reshape(2, -1)
        logits = np.outer(grid, slope) + intercept
        density = correct @ -np.logaddexp(0, -logits).T + (1 - correct) @ -np.logaddexp(0, logits).T
        density += stats.norm.logpdf(grid)
        likelihood = logsumexp(density, axis=1, keepdims=True)
        posterior = np.exp(density - likelihood)
        residual = correct.T @ posterior - posterior.sum(axis=0) * expit(logits).T
        return -likelihood.sum(), -np.concatenate([residual @ grid, residual.sum(axis=1)])

    start = np.concatenate([fit.discrimination, fit.intercept])
    slope, intercept = optimize.minimize(loss, start, jac=True).x.reshape(2, -1)
    assert fit.discrimination.mean() == pytest.approx(slope.mean(), rel=0.015)
    assert np.corrcoef(fit.discrimination, slope)[0, 1] > 0.99
    assert fit.intercept == pytest.approx(intercept, abs=0.1)


def test_without_reversed_items_none_is_called_so():
    flagged = [fit_2pl(simulate(30, 200, seed=seed)[3]).negative().any() for seed in range(20)]
    assert np.mean(flagged) <= 0.15
    alone = fit_2pl(simulate(30, 200)[3])
    for others, found in ((0, 1), (1, 0)):  # p = .03: found where it is the only item
        fit = replace(alone, discrimination_z=np.array([-1.88, *[1.0] * others]))
        assert fit.negative().sum() == found


def test_unknown_answers_are_left_out_and_what_cannot_be_fitted_is_refused():
    *_, correct = simulate(40, 100)
    holes = np.where(np.random.default_rng(1).uniform(size=correct.shape) < 0.2, np.nan, correct)
    assert np.corrcoef(fit_2pl(correct).abilities, fit_2pl(holes).abilities)[0, 1] > 0.98
    for wrong, problem in ((np.ones((2, 5)), "at least 3 models"), (np.full((4, 4), 2.0), "between 0")):
        with pytest.raises(ValueError, match=problem):
            fit_2pl(wrong)


def test_guessing_does_what_the_guide_says():
    """docs/how_to/items.md, 61 models × 500 items of which a quarter are right by chance, intercepts of sd 1.2:
    discriminations .70 of the truth, intervals hold .83, abilities in their order."""
    shares, covered, orders = [], [], []
    for seed in range(4):
        abilities, slope, _, correct = simulate(61, 500, seed=seed)
        lucky = np.random.default_rng(seed + 100).uniform(size=correct.shape) < 0.25
        fit = fit_2pl(np.where(lucky, 1.0, correct))
        shares.append(fit.discrimination.mean() / (slope.mean() * abilities.std()))
        covered.append(held(fit, abilities))
        orders.append(np.corrcoef(abilities, fit.abilities)[0, 1])
    assert np.mean(shares) == pytest.approx(0.70, abs=0.03)
    assert np.mean(covered) == pytest.approx(0.83, abs=0.05)
    assert np.mean(orders) > 0.97
