"""Simulation-based calibration: uniform for the Laplace path, not uniform for a fit that is too sure."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.studies.bias.statistics.calibration import balanced_layout, calibrate
from lm_validity.studies.bias.statistics.model import FORMULAS


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
