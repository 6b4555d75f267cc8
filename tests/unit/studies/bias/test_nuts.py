"""NUTS against the Laplace path, for every formula, with one and two language models."""

import numpy as np
import pytest

from lm_validity.studies.bias.statistics.latent import FORMULAS, build_design
from lm_validity.studies.bias.statistics.model import fit_laplace, posterior_predictive
from lm_validity.studies.bias.statistics.nuts import fit_nuts
from lm_validity.studies.bias.trials import paired_counts


@pytest.mark.slow
@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("models", [1, 2])
def test_agrees_with_laplace(trials, formula, models):
    pytest.importorskip("nutpie")
    table = trials(models=models, tasks=6, subsamples=8, sizes=(100,), noise=0.3)
    counts = paired_counts(table, "bias")
    nuts = fit_nuts(counts, FORMULAS[formula], cores=2)
    design = build_design(counts, FORMULAS[formula])
    laplace = fit_laplace(design)
    # with six tasks an sd near zero can still cost a few of 8000 draws; the report shows any such fit in red
    assert nuts.divergences <= 8 and nuts.rhat_max < 1.02
    assert nuts.beta_mean == pytest.approx(laplace.beta_mean, abs=0.15 * laplace.beta_sd)
    # with few tasks the posterior has heavy tails: the standard deviation of 8000 draws is still off by a tenth
    assert nuts.interval == pytest.approx(laplace.interval, abs=0.2 * laplace.beta_sd)
    predictive = posterior_predictive(design, laplace)
    assert nuts.difference_draws.mean() == pytest.approx(predictive.draws.mean(), abs=0.2 * predictive.draws.std())
    assert np.std(nuts.difference_draws) == pytest.approx(predictive.draws.std(), rel=0.12)
