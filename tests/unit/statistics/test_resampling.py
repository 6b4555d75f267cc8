"""Resampling: intervals of known draws, weights as repetitions, the paired test against enumeration."""

import itertools

import numpy as np
import pytest
from scipy import stats

from lm_validity.statistics.agreement import mean_over_pairs
from lm_validity.statistics.ranking import kendall_tau_matrix, pair_signs, resampled_kendall_tau
from lm_validity.statistics.resampling import (
    mean_over_pairs_by_resample,
    multiplicities,
    percentile_interval,
    preparation_contributions,
    sign_flip_test,
)


def test_percentile_interval_of_known_draws():
    draws = np.arange(1001.0)
    interval = percentile_interval(draws)
    assert (interval.low, interval.high) == (pytest.approx(25), pytest.approx(975))
    wider = percentile_interval(draws, units=10)
    tail = stats.norm.cdf(-stats.t.ppf(0.975, 9) * np.sqrt(10 / 9))
    assert wider.low == pytest.approx(1000 * tail) and wider.high == pytest.approx(1000 * (1 - tail))


def test_percentile_interval_leaves_undefined_draws_out():
    draws = np.array([[1.0, np.nan], [2.0, np.nan], [3.0, 5.0], [np.nan, np.nan]])
    interval = percentile_interval(draws, level=0.0)
    assert interval.low[0] == interval.high[0] == 2.0
    assert np.isnan(interval.low[1])


def test_multiplicities_sum_to_the_number_of_units():
    weights = multiplicities(7, 50, np.random.default_rng(0))
    assert weights.shape == (50, 7) and (weights.sum(axis=1) == 7).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_resampled_tau_is_the_tau_of_each_resample(missing):
    rng = np.random.default_rng(4)
    scores = rng.integers(0, 9, size=(12, 5)).astype(float)
    scores[rng.random(scores.shape) < missing] = np.nan
    signs, weights = pair_signs(scores), multiplicities(12, 20, rng)
    many = resampled_kendall_tau(signs, weights, memory=300)  # several chunks
    for row, tau in zip(weights, many, strict=True):
        np.testing.assert_allclose(tau, kendall_tau_matrix(signs, row), atol=1e-12)


def test_resampled_means_are_means_of_each_resample():
    rng = np.random.default_rng(5)
    tau = rng.uniform(-1, 1, size=(6, 4, 4))
    tau[2, 0, 1] = np.nan
    weights = multiplicities(4, 6, rng)
    expected = [mean_over_pairs(table, row) for table, row in zip(tau, weights, strict=True)]
    np.testing.assert_allclose(mean_over_pairs_by_resample(tau, weights), expected)
    np.testing.assert_allclose(mean_over_pairs_by_resample(tau), [mean_over_pairs(table) for table in tau])


def test_contributions_average_to_the_difference_and_flip_with_their_benchmark():
    rng = np.random.default_rng(6)
    direct = rng.normal(size=(15, 5))
    prepared = rng.normal(size=(15, 5)) + rng.normal(size=(15, 1))

    def contributions(before, after):
        a, b = pair_signs(before), pair_signs(after)
        return preparation_contributions(kendall_tau_matrix(a), kendall_tau_matrix(b), kendall_tau_matrix(b, others=a))

    def difference(before, after):
        return mean_over_pairs(kendall_tau_matrix(pair_signs(after))) - mean_over_pairs(
            kendall_tau_matrix(pair_signs(before))
        )

    c = contributions(direct, prepared)
    assert c.mean() == pytest.approx(difference(direct, prepared))
    # exchanging the two rankings of benchmarks 1 and 3 flips just their signs
    swapped_direct, swapped_prepared = direct.copy(), prepared.copy()
    swapped_direct[:, [1, 3]], swapped_prepared[:, [1, 3]] = prepared[:, [1, 3]], direct[:, [1, 3]]
    flips = np.array([1, -1, 1, -1, 1])
    assert (flips * c).mean() == pytest.approx(difference(swapped_direct, swapped_prepared))


def test_sign_flip_test_counts_all_flips():
    values = np.array([0.5, 0.2, -0.1, 0.3])
    flips = np.array(list(itertools.product([1, -1], repeat=4)))
    expected = ((flips @ values) >= values.sum() - 1e-12).mean()
    result = sign_flip_test(np.append(values, np.nan), np.random.default_rng(0))
    assert (result.p, result.units) == (expected, 4)
    assert result.effect == pytest.approx(values.mean())


def test_sign_flip_test_holds_its_level_under_the_null():
    rng = np.random.default_rng(1)
    p = [sign_flip_test(rng.normal(size=20), rng, resamples=199).p for _ in range(400)]
    assert 0.02 < np.mean(np.array(p) <= 0.05) < 0.09
