"""The integration over standard deviations against a fine grid, and what the model concludes from planted effects."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.studies.bias.statistics.latent import FORMULAS, build_design, find_modes
from lm_validity.studies.bias.statistics.model import fit_laplace
from lm_validity.studies.bias.trials import paired_counts


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
    assert fit.beta_mean == pytest.approx(centre, abs=0.02 * sd)
    assert fit.beta_sd == pytest.approx(sd, rel=0.02)
    assert fit.weights @ fit.scales == pytest.approx(
        [np.sum(weight.sum(1) * grid), np.sum(weight.sum(0) * grid)], rel=0.06
    )
    assert fit.log_evidence == pytest.approx(evidence, abs=0.1)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_planted_bias_is_found(trials, formula):
    table = trials(tasks=6, subsamples=20, sizes=(100,), shift={"test": 0.5})
    bias = fit_laplace(build_design(paired_counts(table, "bias"), FORMULAS[formula]))
    boost = fit_laplace(build_design(paired_counts(table, "boost"), FORMULAS[formula]))
    assert bias.reliable and boost.reliable
    assert bias.interval[0] < 0.5 < bias.interval[1]
    assert bias.interval[0] > 0.2
    assert boost.interval[0] < 0 < boost.interval[1]


def test_training_noise_widens_only_the_overdispersed_interval(trials):
    table = trials(tasks=6, subsamples=20, sizes=(500,), noise=0.4)
    counts = paired_counts(table, "bias")
    binomial = fit_laplace(build_design(counts, FORMULAS["equations"]))
    overdispersed = fit_laplace(build_design(counts, FORMULAS["overdispersed"]))
    assert overdispersed.beta_sd > 2.5 * binomial.beta_sd
    assert overdispersed.log_evidence > binomial.log_evidence + 100
    noise = build_design(counts, FORMULAS["overdispersed"]).names.index("observation (lm0)")
    assert overdispersed.weights @ overdispersed.scales[:, noise] == pytest.approx(0.4, rel=0.2)


def test_draws_follow_the_mixture(trials):
    fit = fit_laplace(build_design(paired_counts(trials(sizes=(40,)), "bias"), FORMULAS["notebooks"]))
    generator = np.random.default_rng(0)
    node = generator.choice(len(fit.weights), 200_000, p=fit.weights)
    draws = generator.normal(fit.node_means[node], fit.node_sds[node])
    assert draws.mean() == pytest.approx(fit.beta_mean, abs=0.01 * fit.beta_sd)
    assert draws.std() == pytest.approx(fit.beta_sd, rel=0.02)
    assert np.quantile(draws, [0.055, 0.945]) == pytest.approx(fit.interval, abs=0.02 * fit.beta_sd)


def test_the_same_seed_gives_the_same_fit(trials):
    design = build_design(paired_counts(trials(sizes=(40,)), "bias"), FORMULAS["overdispersed"])
    assert fit_laplace(design).beta_mean == fit_laplace(design).beta_mean


@pytest.mark.parametrize(
    "layout", [{"tasks": 1}, {"subsamples": 1}, {"models": 1, "tasks": 1, "subsamples": 1}, {"models": 3}]
)
def test_small_layouts_are_fitted(trials, layout):
    for formula in FORMULAS.values():
        fit = fit_laplace(build_design(paired_counts(trials(sizes=(40,), **layout), "bias"), formula))
        assert fit.reliable and np.isfinite(fit.interval).all()
