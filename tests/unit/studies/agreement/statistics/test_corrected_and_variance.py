"""Agreement without noise, among models of like size, with families as clusters; components of variance."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.studies.agreement.statistics.noise import noise_ceiling
from lm_validity.studies.agreement.statistics.ranking import PairSigns, kendall_tau_matrix, mean_over_pairs, pair_signs
from lm_validity.studies.agreement.statistics.resampling import (
    cluster_numbers,
    corrected_interval,
    effective_clusters,
    jackknife_interval,
    mean_tau_left_out,
    means_without_clusters,
    noise_corrected_tau,
    transformed_interval,
)


def world(rng, models=60, benchmarks=10, correlation=0.8, noise=0.5):
    """Normal scores with a common factor, and their standard errors."""
    ability = rng.normal(size=(models, 1))
    truth = np.sqrt(correlation) * ability + np.sqrt(1 - correlation) * rng.normal(size=(models, benchmarks))
    return truth + noise * rng.normal(size=truth.shape), np.full(truth.shape, noise)


def test_correction_gives_the_tau_without_noise():
    found = []
    for seed in range(12):
        scores, errors = world(np.random.default_rng(seed))
        ceiling = noise_ceiling(scores, errors, np.random.default_rng(seed), draws=20)
        found.append(noise_corrected_tau(ceiling.observed, ceiling.mean_tau))
    truth = 2 / np.pi * np.arcsin(0.8)
    assert np.mean(found) == pytest.approx(truth, abs=0.03) and ceiling.observed < truth - 0.1  # noise takes that much
    assert noise_corrected_tau(1 / 3, 1.0) == pytest.approx(1 / 3)
    assert noise_corrected_tau(1 / 3, 2 / 3) == pytest.approx(2 / np.pi * np.arcsin(0.5 / np.sin(np.pi / 3)))
    assert np.isnan([noise_corrected_tau(0.5, 0.4), noise_corrected_tau(0.5, -0.1)]).all()


def test_jackknife_interval_of_a_mean_is_students():
    values = np.array([1.0, 4, 2, 8, 5])
    left_out = (values.sum() - values) / 4
    reach = stats.t.ppf(0.975, 4) * values.std(ddof=1) / np.sqrt(5)
    assert jackknife_interval(values.mean(), left_out) == pytest.approx((4 - reach, 4 + reach))
    assert np.isnan(jackknife_interval(4.0, left_out[:2]).low)
    left_out = np.array([0.5, 0.9, 0.4])
    change, tau = transformed_interval(0.6, left_out, "change"), transformed_interval(0.3, left_out / 2, "tau")
    assert tuple(change) == pytest.approx([2 * end for end in tau])  # between -2 and 2
    low, high = transformed_interval(0.97, np.array([0.9, 0.99, 0.95]), "share")
    assert 0 < low < 0.97 < high < 1


def test_clusters_of_unequal_size_count_as_fewer():
    assert effective_clusters([5, 5, 5, 5]) == 4 and effective_clusters([3, 2, 1, 0]) == pytest.approx(36 / 14)
    assert np.isnan(effective_clusters([0, 0]))
    left_out = np.array([0.4, 0.55, 0.5, 0.45])
    error = np.sqrt(3 / 4 * ((left_out - left_out.mean()) ** 2).sum())
    low, high = jackknife_interval(0.5, left_out, [6, 3, 2, 1])
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 144 / 50 - 1) * error)
    assert jackknife_interval(0.5, left_out, [7, 7, 7, 7]) == jackknife_interval(0.5, left_out)
    assert np.isnan(jackknife_interval(0.5, left_out, [9, 1, 1, 1]).low)  # as good as 1.7
    wide, narrow = corrected_interval(0.5, 0.8, left_out, [6, 3, 2, 1]), corrected_interval(0.5, 0.8, left_out)
    assert wide.low < narrow.low and narrow.high < wide.high


def test_means_over_some_pairs_of_models_without_each_cluster_are_those_of_the_table_without_it():
    rng = np.random.default_rng(1)
    scores, errors = world(rng, models=14, benchmarks=4)
    scores[rng.random(scores.shape) < 0.15] = np.nan
    clusters = cluster_numbers(np.array(["a", "b", None, "a", None, "c", "b"] * 2, dtype=object))
    assert clusters.tolist() == [0, 1, 2, 0, 3, 4, 1, 0, 1, 5, 0, 6, 4, 1]
    signs = pair_signs(scores)
    chosen = rng.random(len(signs.first)) < 0.6
    ceiling = noise_ceiling(scores, errors, rng, draws=30, groups=2 * chosen + (signs.first == 0))
    observed, limit = mean_tau_left_out(signs, ceiling.expected, chosen, clusters)
    for number in range(-1, 7):
        keep = chosen & (clusters[signs.first] != number) & (clusters[signs.second] != number)
        kept = PairSigns(signs.sign * keep[:, None], signs.known * keep[:, None], signs.first, signs.second)
        tau = kendall_tau_matrix(kept)
        assert observed[number + 1] == pytest.approx(mean_over_pairs(tau))
    assert np.isfinite(limit) and limit > observed[0]
    everything, whole = mean_tau_left_out(signs, ceiling.expected, np.ones(len(chosen), bool), clusters)
    assert everything[0] == pytest.approx(ceiling.observed) and whole == pytest.approx(ceiling.mean_tau, abs=1e-5)
    masks = np.array([chosen, np.ones(len(chosen), bool)])
    of_masks = mean_tau_left_out(signs, ceiling.expected, masks, clusters)
    np.testing.assert_allclose(of_masks.observed, [observed, everything])
    np.testing.assert_allclose(of_masks.ceiling, [limit, whole])
    with pytest.raises(ValueError, match="some pairs of models of a group"):
        mean_tau_left_out(signs, ceiling.expected, chosen & (signs.first > 1), clusters)


def test_two_kinds_of_clusters_add_their_errors():
    models, benchmarks = np.array([0.4, 0.5, 0.55, 0.45]), np.array([0.3, 0.6, 0.5])
    one = jackknife_interval(0.5, models)
    low, high = jackknife_interval(0.5, models, also=(benchmarks, None))
    squares = np.array([3 / 4 * ((models - models.mean()) ** 2).sum(), 2 / 3 * ((benchmarks - 7 / 15) ** 2).sum()])
    freedom = squares.sum() ** 2 / (squares**2 / np.array([3, 2])).sum()
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(squares.sum()))
    few = jackknife_interval(0.5, models, also=(benchmarks, [2, 1, 1]))
    assert few.low < low and np.isnan(jackknife_interval(0.5, models, also=(benchmarks, [8, 1, 1])).low)
    assert high - low > one.high - one.low and jackknife_interval(0.5, models, also=(np.full(3, 0.5), None)) == one
    assert np.isnan(jackknife_interval(0.5, models, also=(benchmarks[:2], None)).low)


def test_means_without_each_category_are_those_of_the_other_benchmarks():
    tau = np.corrcoef(np.random.default_rng(0).normal(size=(5, 9)))
    expected = [mean_over_pairs(tau[np.ix_(keep, keep)]) for keep in ([1, 3, 4], [0, 2, 3], [0, 1, 2, 4])]
    assert means_without_clusters(tau, np.array([0, 1, 0, 2, 1])) == pytest.approx(expected)


@pytest.mark.slow
def test_intervals_over_categories_cover_the_agreement_of_benchmarks_in_categories():
    """Categories of three benchmarks measure a common ability to different degrees, and something of their own."""
    truth = np.mean([_category_table(np.random.default_rng(10_000 + seed), 300, 6)[1] for seed in range(200)])
    covered = []
    for seed in range(200):
        scores, _ = _category_table(np.random.default_rng(seed), 40, 6)
        taus, _ = mean_tau_left_out(signs := pair_signs(scores), None, np.ones(780, bool), np.arange(40))
        categories = means_without_clusters(kendall_tau_matrix(signs), np.repeat(np.arange(6), 3))
        low, high = transformed_interval(taus[0], taus[1:], "tau", categories)
        covered.append(low <= truth <= high)
    assert np.mean(covered) >= 0.95 - 2 * 0.0154


def _category_table(rng, models, categories):
    """Scores, and their mean tau."""
    loadings = rng.uniform(0.4, 0.95, size=(categories, 1)) * np.ones((1, 3))
    common, own = rng.normal(size=(models, 1, 1)), rng.normal(size=(models, categories, 1))
    error = rng.normal(size=(models, categories, 3))
    scores = loadings * common + np.sqrt(1 - loadings**2) * np.sqrt(0.5) * (own + error)
    scores = scores.reshape(models, -1)
    tau = kendall_tau_matrix(pair_signs(scores))
    return scores, mean_over_pairs(tau)
