"""Shares in the top, clusters resampled whole, second factors, families as factors."""

import numpy as np
import pytest

from lm_validity.studies.agreement.statistics.factors import parallel_analysis, second_factor, without_group_means
from lm_validity.studies.agreement.statistics.resampling import cluster_multiplicities, share_in_top, shortest_interval


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
