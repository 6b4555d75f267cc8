"""Vectorised Kendall's tau: hand-computed, against scipy with ties and missing values, and weighted."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from lm_validity.studies.agreement.statistics import ranking
from lm_validity.studies.agreement.statistics.noise import taus_left_out
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, pair_signs, resampled_kendall_tau


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
