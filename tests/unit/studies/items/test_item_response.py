"""The 2PL fit against simulated truths, against scipy's optimum, and on tables that it cannot fit."""

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit, logsumexp

from lm_validity.studies.items.statistics.item_response import ABILITIES, fit_2pl


def simulate(models, items, seed=0, reversed_share=0.0):
    """Abilities, discriminations, intercepts and answers of a world in which the model is true."""
    generator = np.random.default_rng(seed)
    abilities, slope = generator.standard_normal(models), generator.lognormal(0, 0.4, items)
    slope = np.where(generator.uniform(size=items) < reversed_share, -slope, slope)
    intercept = generator.normal(0, 1.2, items)
    right = expit(np.outer(abilities, slope) + intercept)
    return abilities, slope, intercept, (generator.uniform(size=right.shape) < right).astype(float)


def test_recovers_abilities_items_and_reversed_items():
    abilities, slope, intercept, correct = simulate(200, 300, reversed_share=0.05)
    fit = fit_2pl(correct)
    assert fit.converged
    assert np.corrcoef(abilities, fit.abilities)[0, 1] > 0.97
    assert np.corrcoef(slope, fit.discrimination)[0, 1] > 0.85
    assert np.corrcoef(intercept, fit.intercept)[0, 1] > 0.95
    flagged = fit.negative()
    assert (slope[flagged] < 0).all() and flagged.sum() >= 0.6 * (slope < 0).sum()


def test_is_the_optimum_of_the_penalised_marginal_likelihood():
    _, _, _, correct = simulate(15, 4, seed=1)
    fit = fit_2pl(correct)

    def loss(parameters):
        slope, intercept = parameters.reshape(2, -1)
        logits = np.outer(ABILITIES, slope) + intercept
        density = correct @ -np.logaddexp(0, -logits).T + (1 - correct) @ -np.logaddexp(0, logits).T
        density = density + stats.norm.logpdf(ABILITIES) + np.log(ABILITIES[1] - ABILITIES[0])
        prior = stats.norm.logpdf(slope, 1, 1).sum() + stats.norm.logpdf(intercept, 0, 3).sum()
        return -logsumexp(density, axis=1).sum() - prior

    best = optimize.minimize(loss, np.concatenate([fit.discrimination, fit.intercept]), tol=1e-10)
    assert np.concatenate([fit.discrimination, fit.intercept]) == pytest.approx(best.x, abs=0.02)


def test_without_reversed_items_none_is_called_so():
    flagged = [fit_2pl(simulate(30, 200, seed=seed)[3]).negative().any() for seed in range(20)]
    assert np.mean(flagged) <= 0.15


def test_information_is_the_inverse_variance_of_an_ability():
    *_, correct = simulate(60, 400)
    fit = fit_2pl(correct)
    items = list(zip(fit.discrimination, fit.intercept, strict=True))
    by_hand = [sum(a**2 * expit(a * t + d) * expit(-a * t - d) for a, d in items) for t in (-1.0, 0.5)]
    assert fit.information(np.array([-1.0, 0.5])) == pytest.approx(by_hand)
    middle = np.abs(fit.abilities) < 1.5
    expected = (fit.information(fit.abilities[middle]) + 1) ** -0.5  # the prior adds 1
    assert fit.ability_sds[middle] == pytest.approx(expected, rel=0.15)


def test_unknown_answers_are_left_out():
    *_, correct = simulate(40, 100)
    holes = np.where(np.random.default_rng(1).uniform(size=correct.shape) < 0.2, np.nan, correct)
    whole, part = fit_2pl(correct), fit_2pl(holes)
    assert np.corrcoef(whole.abilities, part.abilities)[0, 1] > 0.98


def test_refuses_what_it_cannot_fit():
    for wrong, problem in ((np.ones((2, 5)), "at least 3 models"), (np.full((4, 4), 2.0), "between 0")):
        with pytest.raises(ValueError, match=problem):
            fit_2pl(wrong)
