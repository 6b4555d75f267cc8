"""Simulation-based calibration (Talts et al. 2018, arXiv 1804.06788) of the Laplace path.

Draw parameters from the prior and counts from the parameters, fit, and ask at which quantile of its posterior the true
parameter lies. If the fits are right, these quantiles are uniform. For a fit that is too sure they are not.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from lm_validity.studies.bias.statistics.latent import FORMULAS, PairedCounts, build_design
from lm_validity.studies.bias.statistics.model import fit_laplace, simulate


@dataclass(frozen=True)
class Calibration:
    """Quantiles (R,) of the true beta in its posterior, the Kolmogorov-Smirnov p of their uniformity, coverage.

    coverage: share of the 89% intervals that hold the true beta; unreliable: fits with too few effective nodes.
    """

    quantiles: np.ndarray
    uniformity_p: float
    coverage: float
    unreliable: int


def balanced_layout(tasks: int, models: int, subsamples: int, total: int) -> PairedCounts:
    """A layout without counts: every task, model and subsample, `total` observations each."""
    task, model, subsample = np.indices((tasks, models, subsamples)).reshape(3, -1)
    empty = np.zeros(len(task))
    return PairedCounts(
        tasks=tuple(f"task {index}" for index in range(tasks)),
        language_models=tuple(f"model {index}" for index in range(models)),
        task=task,
        language_model=model,
        subsample=subsample,
        total=empty + total,
        control=empty,
        treatment=empty,
    )


def calibrate(formula: str, layout: PairedCounts, replicates: int, seed: int = 0, nodes: int = 64) -> Calibration:
    """Simulation-based calibration of beta under `formula` with `replicates` simulated data sets."""
    design = build_design(layout, FORMULAS[formula])
    quantiles, covered, unreliable = np.empty(replicates), 0, 0
    for index, generator in enumerate(np.random.default_rng(seed).spawn(replicates)):
        correct, beta = simulate(design, generator)
        posterior = fit_laplace(replace(design, correct=correct), nodes=nodes, seed=index)
        quantiles[index] = posterior.weights @ stats.norm.cdf(beta, posterior.node_means, posterior.node_sds)
        covered += posterior.interval[0] <= beta <= posterior.interval[1]
        unreliable += posterior.effective_nodes < nodes / 4
    return Calibration(quantiles, float(stats.kstest(quantiles, "uniform").pvalue), covered / replicates, unreliable)


@pytest.mark.slow
@pytest.mark.parametrize("formula", FORMULAS)
def test_the_laplace_path_is_calibrated(formula):
    result = calibrate(formula, balanced_layout(tasks=6, models=2, subsamples=8, total=100), replicates=200)
    assert result.uniformity_p > 0.01
    assert stats.binomtest(round(result.coverage * 200), 200, 0.89).pvalue > 0.01
    # the same fits with half their spread would be found out
    halved = stats.norm.cdf(2 * stats.norm.ppf(np.clip(result.quantiles, 1e-9, 1 - 1e-9)))
    assert stats.kstest(halved, "uniform").pvalue < 0.01


def test_quantiles_are_reproducible_probabilities():
    layout = balanced_layout(tasks=3, models=1, subsamples=2, total=50)
    result = calibrate("equations", layout, replicates=4)
    assert ((result.quantiles > 0) & (result.quantiles < 1)).all()
    assert np.array_equal(result.quantiles, calibrate("equations", layout, replicates=4).quantiles)
    assert not np.array_equal(result.quantiles, calibrate("equations", layout, replicates=4, seed=1).quantiles)
