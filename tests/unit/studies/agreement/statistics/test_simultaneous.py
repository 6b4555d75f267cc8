"""Ranks that hold together, shares in the top, clusters resampled whole, second factors, families as factors."""

import numpy as np
import pytest

from lm_validity.studies.agreement.statistics.factors import parallel_analysis, second_factor, without_group_means
from lm_validity.studies.agreement.statistics.resampling import (
    cluster_multiplicities,
    share_in_top,
    shortest_interval,
    simultaneous_ranks,
)


def test_simultaneous_ranks_of_clear_and_of_equal_models():
    rng = np.random.default_rng(0)
    estimates = np.array([10.0, 5.0, 0.0, 0.01, np.nan])
    draws = estimates + 0.1 * rng.normal(size=(400, 5))
    low, high = simultaneous_ranks(estimates, draws)
    assert low[:4].tolist() == [1, 2, 3, 3] and high[:4].tolist() == [1, 2, 4, 4] and np.isnan(low[4])
    certain = simultaneous_ranks(np.array([1.0, 2.0]), np.tile([1.0, 2.0], (20, 1)))
    assert certain.low.tolist() == certain.high.tolist() == [2, 1]


def test_simultaneous_ranks_hold_all_true_ranks():
    rng = np.random.default_rng(1)
    truth = np.linspace(0, 2, 12)
    ranks = np.arange(12, 0, -1)
    together = []
    for _ in range(200):
        estimates = truth + 0.2 * rng.normal(size=12)
        low, high = simultaneous_ranks(estimates, estimates + 0.2 * rng.normal(size=(200, 12)))
        together.append(bool(((low <= ranks) & (ranks <= high)).all()))
    assert np.mean(together) >= 0.92


def test_few_resampled_benchmarks_tell_fewer_models_apart():
    """Draws whose largest deviation exceeds the difference, and the 0.95 quantile of the deviations does not."""
    estimates, deviation = np.array([1.0, 0.0]), np.linspace(-1.02, 1.02, 501)
    draws = estimates + np.column_stack([deviation, np.zeros(501)])
    assert [end.tolist() for end in simultaneous_ranks(estimates, draws)] == [[1, 2], [1, 2]]
    assert [end.tolist() for end in simultaneous_ranks(estimates, draws, units=4)] == [[1, 1], [2, 2]]


def test_share_in_top_counts_draws_with_a_rank():
    ranks = np.array([[1.0, 2, np.nan], [2.0, 1, 3], [1.0, 2, 3], [1.0, 2.5, 2.5]])
    assert share_in_top(ranks, 1).tolist() == pytest.approx([0.75, 0.25, 0.0])
    assert share_in_top(ranks, 2).tolist() == pytest.approx([1.0, 0.75, 0.0])
    assert np.isnan(share_in_top(np.full((3, 1), np.nan), 1)[0])


def test_clusters_are_drawn_whole():
    weights = cluster_multiplicities(np.array([0, 1, 0, 2]), 50, np.random.default_rng(2))
    assert (weights[:, 0] == weights[:, 2]).all()
    assert (weights[:, 0] + weights[:, 1] + weights[:, 3] == 3).all()


def test_the_shortest_interval_holds_the_estimate():
    draws = np.array([[2.0, 1], [2, 1], [3, 1], [3, 1]])
    low, high = shortest_interval(draws, holding=np.array([1.0, 1.0]))
    assert low.tolist() == [1, 1] and high.tolist() == [3, 1]


def test_a_second_factor_is_found_and_one_factor_is_not_called_two():
    rng = np.random.default_rng(3)
    ability = rng.normal(size=(60, 2))
    one = ability[:, :1] + 0.5 * rng.normal(size=(60, 10))
    two = one + np.where(np.arange(10) < 5, 1, -1) * 0.6 * ability[:, 1:]
    assert second_factor(two, rng) <= 0.05
    found = [second_factor(rng.normal(size=(40, 1)) + 0.5 * rng.normal(size=(40, 8)), rng, 60) for _ in range(20)]
    assert np.mean(np.array(found) <= 0.05) <= 0.2


def test_families_are_no_factors_within_families():
    rng = np.random.default_rng(4)
    families = np.repeat(np.array(list("abcdefg"), dtype=object), [10] * 6 + [2])
    scores = 3 * rng.normal(size=(7, 12))[np.repeat(np.arange(7), [10] * 6 + [2])] + rng.normal(size=(62, 12))
    assert parallel_analysis(scores, rng, 100).factors >= 2
    rest = without_group_means(scores, families)
    assert len(rest) == 60 and parallel_analysis(rest, rng, 100).factors == 0


def test_models_without_a_score_in_some_draws_leave_the_ranks_of_the_others_open():
    rng = np.random.default_rng(2)
    estimates = np.array([10.0, 5.0, 0.0])
    draws = estimates + 0.01 * rng.normal(size=(400, 3))
    draws[:20, 1] = np.nan  # few: these draws are left out
    low, high = simultaneous_ranks(estimates, draws)
    assert low.tolist() == high.tolist() == [1, 2, 3]
    draws[:300, 1] = np.nan  # most: the model is, and may be anywhere
    low, high = simultaneous_ranks(estimates, draws)
    assert low[[0, 2]].tolist() == [1, 2] and high[[0, 2]].tolist() == [2, 3] and np.isnan([low[1], high[1]]).all()
