"""Subsets of benchmarks, ranks by potential, influence."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from lm_validity.studies.agreement.statistics.factors import ranks_over_benchmarks
from lm_validity.studies.agreement.statistics.ranking import one_with_others, standardize
from lm_validity.studies.agreement.statistics.resampling import expanded_level, multiplicities


def test_rank_intervals_of_few_units_hold_more_of_the_draws():
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(15, 1)) + 0.8 * rng.normal(size=(15, 6))
    weights = multiplicities(6, 400, rng)
    benchmarks, categories = ranks_over_benchmarks(scores, weights), ranks_over_benchmarks(scores, weights, units=4)
    assert (benchmarks.units, categories.units) == (6, 4)
    shares = []
    for ranks, level in ((benchmarks, expanded_level(6)), (categories, expanded_level(4))):
        low, high = ranks.interval()
        inside = ((ranks.draws >= low) & (ranks.draws <= high)).mean(axis=0)
        assert (inside >= level - 1e-9).all()
        shares.append(inside.mean())
    assert 0.95 < shares[0] < shares[1] == 1.0  # 400 draws of 4 categories: all of them


def test_one_benchmark_against_the_others_by_hand():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(12, 1)) + 0.7 * rng.normal(size=(12, 4))
    scores[2, 1] = np.nan
    found = one_with_others(scores)
    z = standardize(scores)

    def mean_tau(rows):
        rest = [np.nanmean(np.delete(z, j, axis=1), axis=1) for j in range(4)]
        ok = [np.isfinite(z[rows, j]) for j in range(4)]
        return np.mean([kendalltau(z[rows, j][ok[j]], rest[j][rows][ok[j]])[0] for j in range(4)])

    assert found[0] == pytest.approx(mean_tau(np.arange(12)))
    assert found[5] == pytest.approx(mean_tau(np.delete(np.arange(12), 4)))
    assert len(found) == 13
