"""Resampling: intervals of known draws, weights as repetitions, the paired test against enumeration."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.statistics import Interval
from lm_validity.studies.agreement.statistics import ranking, resampling
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, mean_over_pairs, pair_signs


def test_percentile_interval_of_known_draws():
    draws = np.arange(1001.0)
    interval = resampling.percentile_interval(draws)
    assert (interval.low, interval.high) == (pytest.approx(25), pytest.approx(975))
    wider = resampling.percentile_interval(draws, units=10)
    tail = stats.norm.cdf(-stats.t.ppf(0.975, 9) * np.sqrt(10 / 9))
    assert wider.low == pytest.approx(1000 * tail) and wider.high == pytest.approx(1000 * (1 - tail))


def test_percentile_interval_leaves_undefined_draws_out():
    draws = np.tile(np.arange(100.0)[:, None], 2)
    draws[95:, 0] = draws[94:, 1] = np.nan  # 5 and 6 of 100
    interval = resampling.percentile_interval(draws)
    assert (interval.low[0], interval.high[0]) == pytest.approx((0.025 * 94, 0.975 * 94))
    assert np.isnan(interval.low[1])
    # of three models one draw in nine is of one model again and again: 0.95 of 8/9 is enough
    three = np.tile(np.arange(900.0)[:, None], 2)
    three[765:, 0] = three[755:, 1] = np.nan
    interval = resampling.percentile_interval(three, units=3)
    assert np.isfinite(interval.low[0]) and np.isnan([interval.low[1], interval.high[1]]).all()


def test_two_way_interval_has_the_two_way_variance():
    """Crossed normal effects: resampling both counts the cells' variance three times, the interval once."""
    rng = np.random.default_rng(8)
    rows, columns = 40, 30
    table = rng.normal(size=(rows, 1)) * 0.1 + rng.normal(size=(1, columns)) * 0.1 + rng.normal(size=(rows, columns))
    by_row, by_column = (resampling.multiplicities(size, 20_000, rng) / size for size in (rows, columns))
    both = np.einsum("ri,ij,rj->r", by_row, table, by_column)
    one, other = by_row @ table.mean(axis=1), by_column @ table.mean(axis=0)
    interval = resampling.two_way_interval(both, one, other, rows)
    expected = max(2 * (one.var() + other.var()) - both.var(), one.var(), other.var())
    full = resampling.percentile_interval(both, rows)
    ratio = (interval.high - interval.low) / (full.high - full.low)
    assert ratio == pytest.approx(np.sqrt(expected / both.var()))
    assert ratio < 0.8  # cells dominate here: the pigeonhole bootstrap is much too wide
    assert interval.low < np.median(both) < interval.high


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("some", [100, 0])
@pytest.mark.parametrize(("models", "columns"), [(12, 5), (12, 20), (270, 3), (270, 18)])
def test_resampled_tau_is_the_tau_of_each_resample(models, columns, some, missing, monkeypatch):
    """Up to `SOME_COLUMNS` columns are summed by products of two, in parts, more by resample; a column that ranks no
    models, one without scores, and with missing cells others that lack the same ones."""
    monkeypatch.setattr(ranking, "SOME_COLUMNS", some)
    rng = np.random.default_rng(4)
    scores, other = rng.integers(0, 9, size=(2, models, columns)).astype(float)
    scores[rng.random(scores.shape) < missing], other = np.nan, other[:, :2]
    if missing:
        scores[: models // 3, columns // 3 :], scores[:, 1], scores[:, 2] = np.nan, 1.0, np.nan
        scores[models // 3 :, columns // 3 :] = rng.integers(0, 9, size=(models - models // 3, columns - columns // 3))
    signs, other_signs, weights = pair_signs(scores), pair_signs(other), resampling.multiplicities(models, 6, rng)
    weights[0] = models * np.eye(models)[3]  # one model alone: no tau at all
    many, with_others = (ranking.resampled_kendall_tau(signs, weights, of) for of in (None, other_signs))
    means = resampling.resampled_mean_tau(signs, weights)
    np.testing.assert_allclose(means, resampling.mean_over_pairs_by_resample(many), atol=1e-11)
    for index, row in enumerate(weights.astype(int)):
        # a model and its copy are tied: no pair
        copies, other_copies = (pair_signs(np.repeat(values, row, axis=0)) for values in (scores, other))
        tau = kendall_tau_matrix(copies)
        np.testing.assert_allclose(many[index], tau, atol=1e-12)
        np.testing.assert_allclose(with_others[index], kendall_tau_matrix(copies, other_signs=other_copies), atol=1e-12)
        np.testing.assert_allclose(means[index], mean_over_pairs(tau), atol=1e-12)
    same = pair_signs(np.repeat(rng.normal(size=(9, 1)), 3, axis=1))
    assert (resampling.resampled_mean_tau(same, resampling.multiplicities(9, 20, rng)) == 1).all()


def test_few_units_take_percentiles_further_out():
    assert resampling.expanded_level(None) == resampling.expanded_level(1) == 0.95
    assert resampling.expanded_level(8) == pytest.approx(1 - 2 * stats.norm.sf(stats.t.isf(0.025, 7) * np.sqrt(8 / 7)))
    assert 0.9999 < resampling.expanded_level(3) < 1
    assert resampling.expanded_level(10**6) == pytest.approx(0.95, abs=1e-4)


def test_hull_holds_both_intervals():
    one = Interval(np.array([1.0, 3.0, np.nan]), np.array([2.0, 9.0, 4.0]))
    both = resampling.hull(one, Interval(np.zeros(3), np.full(3, 5.0)))
    assert both.low[:2].tolist() == [0, 0] and both.high[:2].tolist() == [5, 9] and np.isnan(both.low[2])
