"""Block elimination against the same model written out with dense matrices, for every formula and incomplete data."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit

from lm_validity.studies.bias.statistics.latent import (
    FORMULAS,
    Formula,
    build_design,
    draw_predictors,
    find_modes,
)
from lm_validity.studies.bias.trials import paired_counts


class Dense:
    """All latent effects in one vector, all precisions in one diagonal."""

    def __init__(self, design, scale):
        rows, slots = np.nonzero(design.total > 0)
        self.correct, self.total = design.correct[rows, slots], design.total[rows, slots]
        fixed = design.columns[design.pattern[rows, slots]]
        pairs = np.eye(len(design.total))[rows]
        spread = np.where(design.column_scale >= 0, scale[design.column_scale], design.fixed_scale)
        blocks, scales = [fixed, pairs], [spread, np.full(len(design.total), scale[design.pair])]
        if design.noise is not None:
            blocks.append(np.eye(len(rows)))
            scales.append(scale[design.noise[rows, slots]])
        self.matrix, self.precision = np.hstack(blocks), np.concatenate(scales) ** -2.0

    def negative(self, effects):
        predictor = self.matrix @ effects
        value = self.total @ np.logaddexp(0, predictor) - self.correct @ predictor
        gradient = self.matrix.T @ (self.total * expit(predictor) - self.correct) + self.precision * effects
        return value + 0.5 * self.precision @ effects**2, gradient

    def hessian(self, effects):
        share = expit(self.matrix @ effects)
        weight = self.total * share * (1 - share)
        return (self.matrix.T * weight) @ self.matrix + np.diag(self.precision)

    def mode(self):
        """The mode, polished by plain Newton steps, and the Laplace log marginal."""
        effects = optimize.minimize(self.negative, np.zeros(len(self.precision)), jac=True, method="L-BFGS-B").x
        for _ in range(20):
            effects = effects - np.linalg.solve(self.hessian(effects), self.negative(effects)[1])
        hessian = self.hessian(effects)
        log_determinant = np.linalg.slogdet(hessian)[1]
        return effects, -self.negative(effects)[0] + 0.5 * (np.log(self.precision).sum() - log_determinant), hessian


def incomplete(table):
    """Unequal subsamples: one model lacks some, one task has fewer."""
    gone = (table["language_model"] == "lm1") & (table["subsample"] == 0)
    gone |= (table["task"] == "task2") & (table["subsample"] > 1)
    return table[~gone]


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("whole", [True, False])
def test_equals_the_dense_model(trials, formula, whole):
    table = trials(models=2, tasks=3, subsamples=4, sizes=(40,), noise=0.4)
    counts = paired_counts(table if whole else incomplete(table), "bias")
    design = build_design(counts, FORMULAS[formula])
    scales = np.random.default_rng(1).uniform(0.1, 0.9, (3, len(design.names))) * [[1], [5], [0.02]]
    modes, columns, pairs = find_modes(design, scales), design.columns.shape[1], len(design.total)
    for index, scale in enumerate(scales):
        # empty slots keep an effect of their own, which the data say nothing about: its prior cancels
        effects, log_marginal, hessian = Dense(design, scale).mode()
        assert modes.u[index] == pytest.approx(effects[:columns], abs=1e-6)
        assert modes.v[index] == pytest.approx(effects[columns : columns + pairs], abs=1e-6)
        assert modes.log_marginal[index] == pytest.approx(log_marginal, abs=1e-6)
        variance = np.linalg.inv(hessian)[design.beta, design.beta]
        assert modes.beta_variance[index] == pytest.approx(variance, rel=1e-6)


@pytest.mark.parametrize("formula", FORMULAS)
def test_modes_that_are_found_together_are_those_found_alone(trials, formula, monkeypatch):
    """Each its own counts and start; of some the iteration ends before that of others."""
    design = build_design(paired_counts(incomplete(trials(noise=0.4)), "bias"), FORMULAS[formula])
    generator = np.random.default_rng(2)
    scales = generator.uniform(0.01, 2.0, (5, len(design.names)))
    counts = generator.binomial(design.total.astype(int), 0.6, (5, *design.total.shape)).astype(float)
    several = replace(design, correct=counts, total=np.broadcast_to(design.total, counts.shape))
    start = find_modes(several, scales[::-1])
    together = find_modes(several, scales, start)
    monkeypatch.setattr("lm_validity.studies.bias.statistics.latent.AT_ONCE", 2 * design.total.size)
    in_parts = find_modes(several, scales, start)
    for index in range(5):
        alone = find_modes(replace(design, correct=counts[index]), scales[index : index + 1])
        for found in (together, in_parts):
            assert found.u[index] == pytest.approx(alone.u[0], abs=1e-6)
            assert found.log_marginal[index] == pytest.approx(alone.log_marginal[0], abs=1e-6)
            assert found.beta_variance[index] == pytest.approx(alone.beta_variance[0], rel=1e-6)


@pytest.mark.parametrize("formula", ["notebooks", "overdispersed"])
def test_draws_have_the_dense_covariance(trials, formula):
    counts = paired_counts(trials(models=2, tasks=2, subsamples=2, sizes=(40,)), "boost")
    design = build_design(counts, FORMULAS[formula])
    scale = np.full(len(design.names), 0.5)
    (draws,) = draw_predictors(design, find_modes(design, scale[None]), 40_000, np.random.default_rng(0))
    draws = draws.reshape(40_000, -1)
    dense = Dense(design, scale)
    effects, _, hessian = dense.mode()
    assert draws.mean(axis=0) == pytest.approx(dense.matrix @ effects, abs=0.02)
    assert np.cov(draws.T) == pytest.approx(dense.matrix @ np.linalg.inv(hessian) @ dense.matrix.T, abs=0.01)


def test_marginal_likelihood_equals_quadrature():
    """One pair, nothing else: the Laplace integral over its effect against numerical integration."""
    formula = Formula("pair only", groups={}, pair_within_model=True)
    import pandas as pd

    trial = {"task": ["t"], "language_model": ["a"], "subsample": [0], "total": [200], "base": [90.0], "extra": [110.0]}
    design = build_design(paired_counts(pd.DataFrame(trial | {"test": [np.nan]}), "boost"), formula)
    # tiny priors on mu and beta leave the pair's effect as the only latent one
    design = replace(design, fixed_scale=np.full(2, 1e-6))
    modes = find_modes(design, np.array([[0.7]]))
    effect = np.linspace(-3, 3, 20_001)
    log_density = 200 * effect - 400 * np.logaddexp(0, effect) + stats.norm.logpdf(effect, scale=0.7)
    exact = np.log(np.trapezoid(np.exp(log_density - log_density.max()), effect)) + log_density.max()
    assert modes.log_marginal[0] == pytest.approx(exact, abs=2e-3)


def test_one_language_model_drops_its_terms(trials):
    design = build_design(paired_counts(trials(models=1), "bias"), FORMULAS["overdispersed"])
    assert design.names == ("task", "task x arm", "pair", "observation (lm0)")
    notebooks = build_design(paired_counts(trials(models=1), "bias"), FORMULAS["notebooks"])
    assert dict(zip(notebooks.names, notebooks.prior_scale, strict=True))["task x arm"] == 2.5
    both = build_design(paired_counts(trials(models=2), "bias"), FORMULAS["notebooks"])
    assert dict(zip(both.names, both.prior_scale, strict=True))["task x arm"] == 3.5355
