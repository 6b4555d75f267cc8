"""The hierarchical model: against dense matrices, quadrature, simulation and NUTS; calibrated; its predictive draws."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats
from scipy.special import expit

from lm_validity.studies.bias.statistics import model as statistics
from lm_validity.studies.bias.statistics.latent import FORMULAS, Formula, build_design, draw_predictors, find_modes
from lm_validity.studies.bias.statistics.model import INTERVAL, fit_laplace, posterior_predictive
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
    formula = Formula(groups={}, pair_within_model=True)
    trial = {"task": ["t"], "language_model": ["a"], "subsample": [0], "total": [200], "base": [90.0], "extra": [110.0]}
    design = build_design(paired_counts(pd.DataFrame(trial | {"test": [np.nan]}), "boost"), formula)
    # tiny priors on mu and beta leave the pair's effect as the only latent one
    design = replace(design, fixed_scale=np.full(2, 1e-6))
    modes = find_modes(design, np.array([[0.7]]))
    effect = np.linspace(-3, 3, 20_001)
    log_density = 200 * effect - 400 * np.logaddexp(0, effect) + stats.norm.logpdf(effect, scale=0.7)
    exact = np.log(np.trapezoid(np.exp(log_density - log_density.max()), effect)) + log_density.max()
    assert modes.log_marginal[0] == pytest.approx(exact, abs=2e-3)


def test_equals_a_grid_over_both_standard_deviations(trials):
    design = build_design(paired_counts(trials(tasks=3, subsamples=4, sizes=(40,)), "bias"), FORMULAS["equations"])
    fit = fit_laplace(design, nodes=256)
    edges = np.linspace(0, 3.5, 51)
    grid = (edges[1:] + edges[:-1]) / 2
    scales = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=2)
    modes = find_modes(design, scales.reshape(-1, 2))
    density = modes.log_marginal.reshape(50, 50) + stats.halfnorm.logpdf(scales).sum(axis=2)
    mean, variance = modes.u[:, design.beta].reshape(50, 50), modes.beta_variance.reshape(50, 50)
    weight = np.exp(density - density.max())
    evidence = np.log(weight.sum() * (grid[1] - grid[0]) ** 2) + density.max()
    weight /= weight.sum()
    centre = np.sum(weight * mean)
    sd = np.sqrt(np.sum(weight * (variance + (mean - centre) ** 2)))
    assert fit.beta_mean == pytest.approx(centre, abs=0.02 * sd) and fit.beta_sd == pytest.approx(sd, rel=0.02)
    assert fit.weights @ fit.scales == pytest.approx([weight.sum(1) @ grid, weight.sum(0) @ grid], rel=0.06)
    assert fit.log_evidence == pytest.approx(evidence, abs=0.1)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_planted_bias_is_found_and_its_predictions_centre_on_what_was_observed(trials, formula):
    table = trials(tasks=6, subsamples=20, sizes=(100,), shift={"test": 0.5})
    counts = {effect: paired_counts(table, effect) for effect in ("bias", "boost")}
    designs = {effect: build_design(each, FORMULAS[formula]) for effect, each in counts.items()}
    fits = {effect: fit_laplace(design) for effect, design in designs.items()}
    (low, high), (below, above) = (fits[effect].interval_at(INTERVAL) for effect in fits)
    assert all(fit.reliable for fit in fits.values()) and 0.2 < low < 0.5 < high and below < 0 < above
    predictive, bias = posterior_predictive(designs["bias"], fits["bias"]), counts["bias"]
    observed = (bias.treatment - bias.control).sum() / bias.total.sum()
    assert predictive.mean() == pytest.approx(observed, abs=predictive.std())
    assert np.quantile(predictive, 0.055) < observed < np.quantile(predictive, 0.945)


def test_draws_follow_the_mixture(trials):
    fit = fit_laplace(build_design(paired_counts(trials(sizes=(40,)), "bias"), FORMULAS["notebooks"]))
    generator = np.random.default_rng(0)
    node = generator.choice(len(fit.weights), 200_000, p=fit.weights)
    draws = generator.normal(fit.node_means[node], fit.node_sds[node])
    assert draws.mean() == pytest.approx(fit.beta_mean, abs=0.01 * fit.beta_sd)
    assert draws.std() == pytest.approx(fit.beta_sd, rel=0.02)
    assert np.quantile(draws, [0.055, 0.945]) == pytest.approx(fit.interval_at(INTERVAL), abs=0.02 * fit.beta_sd)


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
        found = statistics.marginal_effect(levels, spreads, weights, np.array([beta]))
        assert found == pytest.approx([expected], abs=3e-4)


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("models", [1, 2])
def test_levels_are_the_designs_and_variances_add_up(trials, formula, models):
    design = build_design(paired_counts(trials(models=models, sizes=(40,)), "bias"), FORMULAS[formula])
    scales = np.linspace(0.1, 0.5, len(design.names))[None]
    spreads = statistics.model_spreads(design, scales)
    assert spreads.shape == (1, models)
    shared = np.sum(scales[0, : design.pair + 1] ** 2)
    own = scales[0, design.pair + 1 :] ** 2 if design.noise is not None else np.zeros(models)
    assert spreads[0] ** 2 == pytest.approx(shared + own)
    fixed = np.arange(1.0, models + 1)
    for model, level in enumerate(statistics.model_levels(design, fixed)):
        both_arms = (design.columns @ np.append(fixed, np.zeros(design.columns.shape[1] - models)))[2 * model :][:2]
        assert both_arms == pytest.approx([level, level])


def test_the_gaussian_sum_equals_drawing_every_count(trials):
    design = build_design(paired_counts(trials(tasks=3, subsamples=4, sizes=(40,)), "bias"), FORMULAS["equations"])
    generator = np.random.default_rng(0)
    probability = generator.uniform(0.2, 0.8, design.total.shape)
    drawn = statistics.difference_draws(design, np.broadcast_to(probability, (20_000, *probability.shape)), generator)
    counts = generator.binomial(design.total.astype(int), probability, (20_000, *probability.shape))
    share = counts / design.total
    exact = (share[:, design.arm == 1].sum(axis=1) - share[:, design.arm == 0].sum(axis=1)) / (design.total.size / 2)
    assert drawn.mean() == pytest.approx(exact.mean(), abs=4 * exact.std() / np.sqrt(10_000))
    assert drawn.std() == pytest.approx(exact.std(), rel=0.03)
    ends = [np.quantile(values, [0.025, 0.975]) for values in (drawn, exact)]
    assert ends[0] == pytest.approx(ends[1], abs=0.1 * exact.std())


@pytest.mark.slow
@pytest.mark.parametrize("formula", FORMULAS)
def test_the_laplace_path_is_calibrated(trials, formula):
    """By simulation: the quantiles of the true beta in its posterior are uniform, and 89% intervals hold it."""
    design = build_design(paired_counts(trials(tasks=6, subsamples=8, sizes=(100,)), "bias"), FORMULAS[formula])
    quantiles, covered = [], 0
    for seed, generator in enumerate(np.random.default_rng(0).spawn(200)):
        correct, beta = statistics.simulate(design, generator)
        posterior = fit_laplace(replace(design, correct=correct), nodes=64, seed=seed)
        quantiles.append(posterior.weights @ stats.norm.cdf(beta, posterior.node_means, posterior.node_sds))
        low, high = posterior.interval_at(INTERVAL)
        covered += low <= beta <= high
    assert stats.kstest(quantiles, "uniform").pvalue > 0.01
    assert stats.binomtest(covered, 200, 0.89).pvalue > 0.01
    # the same fits with half their spread would be found out
    halved = stats.norm.cdf(2 * stats.norm.ppf(np.clip(quantiles, 1e-9, 1 - 1e-9)))
    assert stats.kstest(halved, "uniform").pvalue < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("models", [1, 2])
def test_agrees_with_laplace(trials, formula, models):
    pytest.importorskip("nutpie")
    table = trials(models=models, tasks=6, subsamples=8, sizes=(100,), noise=0.3)
    counts = paired_counts(table, "bias")
    nuts = statistics.fit_nuts(counts, FORMULAS[formula], cores=2)
    design = build_design(counts, FORMULAS[formula])
    laplace = fit_laplace(design)
    # with six tasks an sd near zero can still cost a few of 8000 draws; the report shows any such fit in red
    assert nuts.divergences <= 8 and nuts.rhat_max < 1.02
    assert nuts.beta_mean == pytest.approx(laplace.beta_mean, abs=0.15 * laplace.beta_sd)
    # with few tasks the posterior has heavy tails: the standard deviation of 8000 draws is still off by a tenth
    assert nuts.interval_at(INTERVAL) == pytest.approx(laplace.interval_at(INTERVAL), abs=0.2 * laplace.beta_sd)
    predictive = posterior_predictive(design, laplace)
    assert nuts.difference_draws.mean() == pytest.approx(predictive.mean(), abs=0.2 * predictive.std())
    assert np.std(nuts.difference_draws) == pytest.approx(predictive.std(), rel=0.12)
