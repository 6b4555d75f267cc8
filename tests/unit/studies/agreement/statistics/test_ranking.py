"""Vectorised Kendall's tau: hand-computed, against scipy with ties and missing values, and weighted."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from lm_validity.studies.agreement.statistics import ranking
from lm_validity.studies.agreement.statistics.noise import taus_left_out
from lm_validity.studies.agreement.statistics.ranking import (
    average_ranks,
    kendall_tau,
    kendall_tau_matrix,
    pair_signs,
    resampled_kendall_tau,
)


def test_by_hand():
    # pairs of (1, 2, 3, 4) against (1, 3, 2, 4): 5 concordant, 1 discordant of 6
    assert kendall_tau(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(4 / 6)
    # one tie in the second: 5 untied pairs, all concordant: 5 / sqrt(6 · 5)
    assert kendall_tau(np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 2, 4])) == pytest.approx(5 / np.sqrt(30))
    assert np.isnan(kendall_tau(np.array([1.0, 2, 3]), np.array([5.0, 5, 5])))


@pytest.mark.parametrize("seed", range(5))
def test_equals_scipy_with_ties_and_missing_values(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 8, size=(25, 6)).astype(float)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    tau = kendall_tau_matrix(pair_signs(scores))
    for i, j in np.ndindex(tau.shape):
        both = np.isfinite(scores[:, i]) & np.isfinite(scores[:, j])
        expected = kendalltau(scores[both, i], scores[both, j]).statistic
        assert tau[i, j] == pytest.approx(expected, abs=1e-12)


def test_weights_are_repetitions_without_pairs_of_copies():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(7, 3))
    weights = np.array([2, 0, 1, 3, 1, 0, 1])
    repeated = np.repeat(np.arange(7), weights)
    first, second = np.triu_indices(len(repeated), 1)
    distinct = repeated[first] != repeated[second]
    sign = np.sign(scores[repeated[first[distinct]]] - scores[repeated[second[distinct]]])
    expected = sign[:, 0] @ sign[:, 1] / len(sign)
    (tau,) = resampled_kendall_tau(pair_signs(scores), weights[None])
    assert tau[0, 1] == pytest.approx(expected)
    assert np.diag(tau) == pytest.approx(1.0)  # copies create no ties


def test_unit_weights_change_nothing_and_columns_may_differ():
    scores = np.random.default_rng(0).normal(size=(9, 5))
    signs = pair_signs(scores)
    np.testing.assert_allclose(resampled_kendall_tau(signs, np.ones((1, 9)))[0], kendall_tau_matrix(signs))
    across = kendall_tau_matrix(pair_signs(scores[:, :2]), other_signs=pair_signs(scores[:, 2:]))
    np.testing.assert_allclose(across, kendall_tau_matrix(signs)[:2, 2:])


def test_ranks_share_ties_and_keep_missing_values():
    ranks = average_ranks(np.array([[0.5, np.nan], [0.9, 1.0], [0.5, 3.0]]))
    np.testing.assert_array_equal(ranks, [[2.5, np.nan], [1, 2], [2.5, 1]])


def test_leaving_out_clusters_at_once_is_leaving_out_each():
    rng = np.random.default_rng(4)
    scores = rng.integers(0, 6, size=(20, 4)).astype(float)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    for clusters in (np.arange(20), rng.integers(0, 4, 20)):
        signs = pair_signs(scores)
        taus, _ = taus_left_out(signs, None, np.ones(len(signs.first), dtype=bool), clusters)
        for number, tau in enumerate(taus[:, 1:].T):
            rest = kendall_tau_matrix(pair_signs(scores[clusters != number]))
            np.testing.assert_allclose(tau, rest[np.triu_indices(4, 1)], atol=1e-12)


def test_resamples_at_once_are_each_resample_with_missing_values_and_other_columns():
    rng = np.random.default_rng(5)
    scores = rng.integers(0, 6, size=(12, 5)).astype(float)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    weights = rng.multinomial(12, np.full(12, 1 / 12), size=6)
    signs, others = pair_signs(scores), pair_signs(scores[:, :2])
    found, across = resampled_kendall_tau(signs, weights), resampled_kendall_tau(signs, weights, others)
    for row, tau, tau_across in zip(weights, found, across, strict=True):
        copies = np.repeat(scores, row, axis=0)  # a model and its copy are tied: no pair
        signs, others = pair_signs(copies), pair_signs(copies[:, :2])
        np.testing.assert_allclose(tau, kendall_tau_matrix(signs), atol=1e-12)
        np.testing.assert_allclose(tau_across, kendall_tau_matrix(signs, other_signs=others), atol=1e-12)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_sums_of_resamples_are_the_same_in_each_way(missing, monkeypatch):
    rng = np.random.default_rng(4)
    scores = rng.integers(0, 30, (20, 7)).astype(float)
    scores[rng.random(scores.shape) < missing] = np.nan
    signs, draws = pair_signs(scores), rng.multinomial(20, np.full(20, 0.05), size=5)
    ways = []
    for some in (100, 0):
        monkeypatch.setattr(ranking, "SOME_COLUMNS", some)
        ways.append(ranking.resampled_kendall_tau(signs, draws))
    copies = [kendall_tau_matrix(pair_signs(np.repeat(scores, draw, axis=0))) for draw in draws]
    assert all(np.array_equal(way, ways[0], equal_nan=True) for way in ways)
    np.testing.assert_allclose(ways[0], copies, atol=1e-12)
