"""Monotonicity, autocorrelation and signal quality against hand-computed values, scipy and simulations."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from lm_validity.config.sections import e2lm_tokens_b
from lm_validity.studies.signal.statistics.quality import (
    autocorrelation,
    draw_items,
    exceedance_p,
    rank_correlation,
    resample_item_means,
    resampling_interval,
    signal_quality,
)


def test_ties_count_as_increases_or_are_averaged():
    curve = np.array([0.2, 0.1, 0.1, 0.3])
    # stable: ranks 2 0 1 3, d = -2 1 1 0: 1 - 36 / 60
    assert rank_correlation(curve, "stable") == pytest.approx(0.4)
    assert rank_correlation(curve, "average") == pytest.approx(spearmanr(range(4), curve).statistic)


def test_rank_correlation_equals_scipy_without_ties():
    curves = np.random.default_rng(0).standard_normal((20, 11))
    expected = [spearmanr(range(11), curve).statistic for curve in curves]
    assert rank_correlation(curves) == pytest.approx(expected)
    assert rank_correlation(curves, "average") == pytest.approx(expected)


def test_autocorrelation_is_the_mean_absolute_pearson_correlation():
    curves = np.random.default_rng(1).standard_normal((20, 17))
    expected = [np.mean([abs(pearsonr(c[lag:], c[:-lag]).statistic) for lag in (1, 2, 3)]) for c in curves]
    assert autocorrelation(curves) == pytest.approx(expected)


def test_paper_convention_centres_on_the_whole_curve_and_has_one_lag_more():
    curve = np.random.default_rng(2).standard_normal(9)
    centred = curve - curve.mean()
    lags = []
    for lag in (1, 2):
        a, b = centred[lag:], centred[:-lag]
        lags.append(abs((a @ b) / np.sqrt((a @ a) * (b @ b))))
    assert autocorrelation(curve, "paper") == pytest.approx(np.mean(lags))


def test_degenerate_curves():
    constant = signal_quality(np.full(14, 0.1))
    assert constant.degenerate and constant.monotonicity == constant.signal_quality == 0.0
    rounded = np.tile([0.1 + 0.2, 0.3], 10)  # as constant as their last digits
    assert autocorrelation(rounded, "code") == autocorrelation(rounded, "paper") == 0.0
    falling = signal_quality(-np.arange(14.0))
    assert falling.monotonicity == 0.0 and falling.rank_correlation == pytest.approx(-1.0)
    assert falling.signal_quality == pytest.approx(0.5)
    # one step at the end: both early segments are constant, so no lag has a correlation
    step = signal_quality(np.r_[np.zeros(13), 1.0])
    assert step.autocorrelation == 0.0 and not step.degenerate
    assert np.isnan(signal_quality(np.r_[np.nan, np.arange(13.0)]).signal_quality)


def test_exceedance_p_by_hand():
    assert exceedance_p(0.5, np.array([0.1, 0.5, 0.9])) == pytest.approx(3 / 4)
    assert np.isnan(exceedance_p(np.nan, np.array([0.1]))) and np.isnan(exceedance_p(0.5, np.array([])))


def test_item_resamples_are_paired_and_keep_ties():
    values = np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    counts = draw_items(4, 250, np.random.default_rng(0))
    assert (counts.sum(axis=1) == 4).all() and counts.shape == (250, 4)
    means = resample_item_means(values, counts)
    assert (means[:, 0] == means[:, 1]).all()  # equal items: equal in every draw
    assert means[:, 0] + means[:, 2] == pytest.approx(1.0)
    assert means[:, 0] == pytest.approx((counts[:, 0] + counts[:, 2]) / 4)


def test_whole_clusters_are_drawn():
    clusters = np.repeat(np.arange(5), [1, 2, 3, 4, 5])
    counts = draw_items(15, 200, np.random.default_rng(0), clusters)
    assert all(np.ptp(counts[:, clusters == cluster], axis=1).max() == 0 for cluster in range(5))
    assert (counts[:, [0, 1, 3, 6, 10]].sum(axis=1) == 5).all()
    values = np.random.default_rng(1).random((2, 15))
    assert resample_item_means(values, counts) == pytest.approx((counts @ values.T) / counts.sum(axis=1)[:, None])


def test_resampling_interval_joins_percentiles_and_percentiles_less_twice_the_bias():
    draws = np.linspace(0.0, 1.0, 1001) * 0.2 + 0.6  # mean 0.7, percentiles 0.605 and 0.795
    assert resampling_interval(0.8, draws, 0.0, 1.0) == pytest.approx((0.605, 0.995))  # the bias is -0.1
    assert resampling_interval(0.98, draws, 0.0, 1.0)[1] == 1.0
    assert np.isnan(resampling_interval(0.5, np.array([]))).all()


@pytest.mark.parametrize(
    ("iteration", "tokens_b"),
    [
        (4000, 4.194),
        (8000, 10.1106),
        (16000, 38.22),
        (32000, 105.33),
        (54000, 197.60),
        (56000, 205.99),
        (64000, 239.5466),
    ],
)
def test_tokens_of_the_competition(iteration, tokens_b):
    assert e2lm_tokens_b(iteration) == pytest.approx(tokens_b, rel=1e-4)
