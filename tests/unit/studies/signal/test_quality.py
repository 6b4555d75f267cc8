"""Signal quality, its intervals, rankings along training and compliance."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from lm_validity.config.sections import e2lm_tokens_b
from lm_validity.statistics import Interval
from lm_validity.studies.signal.statistics import quality


def test_rank_correlation_is_that_of_scipy_but_for_ties():
    curves = np.random.default_rng(0).standard_normal((20, 11))
    expected = [spearmanr(range(11), curve).statistic for curve in curves]
    assert quality.rank_correlation(curves) == pytest.approx(expected) == quality.rank_correlation(curves, "average")
    tied = np.array([0.2, 0.1, 0.1, 0.3])
    # stable: ranks 2 0 1 3, d = -2 1 1 0: 1 - 36 / 60
    assert quality.rank_correlation(tied, "stable") == pytest.approx(0.4)
    assert quality.rank_correlation(tied, "average") == pytest.approx(spearmanr(range(4), tied).statistic)


def test_autocorrelation_is_the_mean_absolute_correlation():
    """By the paper centred on the whole curve, and with one lag more."""
    curves = np.random.default_rng(1).standard_normal((20, 17))
    expected = [np.mean([abs(pearsonr(c[lag:], c[:-lag]).statistic) for lag in (1, 2, 3)]) for c in curves]
    assert quality.autocorrelation(curves) == pytest.approx(expected)
    centred = curves[0, :9] - curves[0, :9].mean()
    pairs = [(centred[lag:], centred[:-lag]) for lag in (1, 2)]
    expected = np.mean([abs(a @ b) / np.sqrt((a @ a) * (b @ b)) for a, b in pairs])
    assert quality.autocorrelation(curves[0, :9], "paper") == pytest.approx(expected)


def test_degenerate_curves():
    constant = quality.signal_quality(np.full(14, 0.1))
    assert constant.degenerate and constant.monotonicity == constant.signal_quality == 0.0
    rounded = np.tile([0.1 + 0.2, 0.3], 10)  # as constant as their last digits
    assert quality.autocorrelation(rounded, "code") == quality.autocorrelation(rounded, "paper") == 0.0
    falling = quality.signal_quality(-np.arange(14.0))
    assert falling.monotonicity == 0.0 and falling.rank_correlation == pytest.approx(-1.0)
    assert falling.signal_quality == pytest.approx(0.5)
    # one step at the end: both early segments are constant, so no lag has a correlation
    step = quality.signal_quality(np.r_[np.zeros(13), 1.0])
    assert step.autocorrelation == 0.0 and not step.degenerate
    assert np.isnan(quality.signal_quality(np.r_[np.nan, np.arange(13.0)]).signal_quality)


def test_exceedance_p_by_hand():
    assert quality.exceedance_p(0.5, np.array([0.1, 0.5, 0.9])) == pytest.approx(3 / 4)
    assert np.isnan(quality.exceedance_p(np.nan, np.array([0.1]))) and np.isnan(quality.exceedance_p(0.5, np.array([])))


def test_item_resamples_are_paired_and_keep_ties():
    values = np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    counts = quality.draw_items(4, 250, np.random.default_rng(0))
    assert (counts.sum(axis=1) == 4).all() and counts.shape == (250, 4)
    means = quality.resample_item_means(values, counts)
    assert (means[:, 0] == means[:, 1]).all()  # equal items: equal in every draw
    assert means[:, 0] + means[:, 2] == pytest.approx(1.0)
    assert means[:, 0] == pytest.approx((counts[:, 0] + counts[:, 2]) / 4)


def test_whole_clusters_are_drawn():
    clusters = np.repeat(np.arange(5), [1, 2, 3, 4, 5])
    counts = quality.draw_items(15, 200, np.random.default_rng(0), clusters)
    assert all(np.ptp(counts[:, clusters == cluster], axis=1).max() == 0 for cluster in range(5))
    assert (counts[:, [0, 1, 3, 6, 10]].sum(axis=1) == 5).all()
    values = np.random.default_rng(1).random((2, 15))
    expected = (counts @ values.T) / counts.sum(axis=1)[:, None]
    assert quality.resample_item_means(values, counts) == pytest.approx(expected)


def test_resampling_interval_joins_percentiles_and_percentiles_less_twice_the_bias():
    draws = np.linspace(0.0, 1.0, 1001) * 0.2 + 0.6  # mean 0.7, percentiles 0.605 and 0.795
    assert quality.resampling_interval(0.8, draws, quality.SHARE) == pytest.approx((0.605, 0.995))  # the bias is -0.1
    assert quality.resampling_interval(0.98, draws, Interval(0, 1))[1] == 1.0
    assert np.isnan(quality.resampling_interval(0.5, np.array([]))).all()


def test_tokens_of_the_competition():
    printed = {4000: 4.194, 8000: 10.1106, 16000: 38.22, 32000: 105.33, 54000: 197.60, 56000: 205.99, 64000: 239.5466}
    assert {step: e2lm_tokens_b(step) for step in printed} == pytest.approx(printed, rel=1e-4)


def test_pair_consistency_by_hand():
    base, later = np.array([1, 1, 0, 0, 0, 0], bool), np.array([0, 0, 1, 1, 1, 1], bool)
    first, second = np.array([0.2, 0.4, 0.5, 0.5, 0.3, 0.6]), np.array([0.3, 0.2, 0.4, 0.5, 0.4, 0.5])
    # base gap 0.05 > 0; later: better, tied (counts as not better), worse, better
    gaps = np.stack([first, second]) - second
    assert quality.pair_consistency(gaps, quality.WindowMasks(base, later)) == pytest.approx([0.5, 1.0])
    assert quality.pair_consistency(gaps[0], quality.WindowMasks(base, later)) == pytest.approx(0.5)
    for windows in (quality.WindowMasks(np.zeros(6, bool), later), quality.WindowMasks(base, np.zeros(6, bool))):
        assert np.isnan(quality.pair_consistency(gaps[0], windows))


def persistent(r, n, count, rng):
    """Gaussian curves (count, n) with lag-1 autocorrelation r."""
    found = rng.standard_normal((count, n))
    for at in range(1, n):
        found[:, at] = r * found[:, at - 1] + np.sqrt(1 - r**2) * found[:, at]
    return found


@pytest.mark.parametrize("r", [0.5, 0.9])
def test_coins_last_as_long_as_a_gap_that_drifts(r):
    """A gap that says nothing of what comes: the p-value against coins is small in one world of twenty."""
    rng = np.random.default_rng(4)
    small = old = 0
    for gap in persistent(r, 56, 300, rng):
        later = gap[9:]
        value = np.mean((later > 0) == (gap[:6].mean() > 0))
        coins = quality.coin_flip_consistency(47, 199, rng, quality.persistence(np.concatenate([gap[:6], later])))
        small += quality.exceedance_p(value, coins) <= 0.05
        old += quality.exceedance_p(value, quality.coin_flip_consistency(47, 199, rng)) <= 0.05
    assert small / 300 <= 0.05 + 2.5 * 0.0126
    assert r < 0.9 or old / 300 > 0.15


def test_only_pairs_that_differ_at_the_end_have_an_order_to_settle():
    tokens = np.arange(1.0, 21.0)
    rng = np.random.default_rng(6)
    late, told = 0, 0
    for _ in range(200):
        noise = 0.01 * rng.standard_normal((3, 20))
        curves = np.array([np.full(20, 0.5), np.full(20, 0.5), np.linspace(0.2, 0.3, 20)]) + noise
        separable = quality.separable_pairs(curves[:, -1], np.full(3, 0.01 * np.sqrt(2)))
        late += quality.from_then_on(quality.nearly_final(quality.agreement_with_last(curves)), tokens) >= 19
        told += quality.settled_from(curves, tokens, separable) == 1.0
    assert late / 200 > 0.5 and told / 200 > 0.85
    nothing = quality.settled_from(curves, tokens, np.zeros(3, dtype=bool))
    assert np.isnan(nothing) and not quality.separable_pairs(np.full(3, 0.5), np.zeros(3)).any()


def test_block_bootstrap_and_coin_flips():
    generator = np.random.default_rng(0)
    gap = np.r_[np.full(4, 0.1), np.tile([0.1, 0.1, -0.1, -0.1], 6)]
    base = np.arange(28) < 4
    draws = quality.bootstrap_pair_consistency(gap, quality.WindowMasks(base, ~base), 2000, generator)
    assert draws.mean() == pytest.approx(0.5, abs=0.02) and 0.05 < draws.std() < 0.2
    few = quality.WindowMasks(base, np.arange(28) >= 21)
    assert np.isnan(quality.bootstrap_pair_consistency(0 * gap, few, 5, generator)).all()
    coins = quality.coin_flip_consistency(47, 20_000, generator)
    # 47 checkpoints in blocks of 4 are 12 coins
    assert coins.mean() == pytest.approx(0.5, abs=0.01)
    assert coins.std() == pytest.approx(0.5 / np.sqrt(12), rel=0.05)


def test_settling():
    curves = np.array([[1.0, 3.0, 2.0, 3.0], [2.0, 1.0, 1.0, 1.0], [0.0, 2.0, 3.0, 2.0]])
    # final order: 0 > 2 > 1; first: 1 > 0 > 2 differs in (0, 1) and (1, 2)
    assert quality.agreement_with_last(curves) == pytest.approx([-1 / 3, 1.0, 1 / 3, 1.0])
    tokens, tau = np.array([10.0, 20.0, 30.0, 40.0]), quality.agreement_with_last(curves)
    assert (quality.from_then_on(tau >= 1, tokens), quality.from_then_on(tau > 0.3, tokens)) == (40, 20)
    assert quality.nearly_final(np.array([0.79, 0.8])).tolist() == [False, True]
    ties = quality.agreement_with_last(np.ones((2, 2)))
    assert np.isnan(quality.from_then_on(quality.nearly_final(ties), tokens[:2]))
    assert quality.from_then_on(np.stack([tau, tau]) >= 1, tokens).shape == (2,)
    assert quality.from_then_on(np.array([0, 1, 0, 1], dtype=bool), tokens) == 40  # a lucky early one does not count


def test_compliance_by_hand():
    science, web = np.array([0.3, 0.5, 0.7]), np.array([0.3, 0.4, 0.4])
    by_hand = {"none": 0.4 / 3, "joint_minmax": 1 / 3, "sci_range": 1 / 3, "above_chance": (0.1 / 0.3 + 0.3 / 0.5) / 3}
    for scaling, expected in by_hand.items():
        assert quality.compliance(science, web, scaling, 0.2)[0] == pytest.approx(expected)
    behind, gap = quality.compliance(web, science, "none")
    assert behind == 0.0 and gap == pytest.approx(-0.4 / 3)
    assert quality.compliance(np.full(3, 0.2), np.full(3, 0.2), "joint_minmax")[0] == 0.0
    assert np.isnan(quality.compliance(science, web, "above_chance", 0.3)[0])
    assert np.isnan(quality.compliance(np.array([]), np.array([]), "joint_minmax")[0])
    assert np.isnan([quality.compliance(science, other, "above_chance")[0] for other in (web, science)]).all()


def test_a_settling_interval_is_from_differences_beyond_noise():
    """Three models; the first two cross between the second and the third checkpoint, the third is far below."""
    curves = np.array([[0.4, 0.5, 0.6, 0.7, 0.8], [0.5, 0.55, 0.58, 0.6, 0.6], [0.1, 0.1, 0.1, 0.1, 0.1]])
    tokens, every = np.arange(1.0, 6), np.ones(3, dtype=bool)
    noise = np.full((3, 5), 0.03)
    assert quality.settled_from(curves, tokens, every) == 3
    # 0.1 is beyond 1.96 * 0.03, 0.05 and 0.02 are not: settled from the second checkpoint, or from the fourth; with
    # much noise nothing can be told apart at the end
    for factor, ends in ((1, (2, 4)), (1e-9, (3, 3)), (100, (1, 5))):
        assert quality.settling_interval(curves, factor * noise, tokens, every) == ends
    assert np.isnan(quality.settling_interval(curves, noise, tokens, ~every)).all()


@pytest.mark.slow
def test_settling_intervals_hold_the_truth():
    """Six models that rise at different rates towards different ends; half of an item's noise lasts."""
    tokens, held, told = np.arange(1, 17) * 10.0, [], 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rate, start = rng.uniform(2, 6, size=(6, 1)), 0.25 + 0.02 * rng.normal(size=(6, 1))
        rise = (1 - np.exp(-rate * np.linspace(0.05, 1, 16))) / (1 - np.exp(-rate))
        truth = start + (0.45 + 0.04 * np.arange(6)[:, None] - start) * rise
        draw = np.where(rng.random((6, 16, 1000)) < 0.5, rng.random((6, 16, 1000)), rng.random(1000))
        items = (draw < truth[:, :, None]).astype(float)
        first, second = np.triu_indices(6, 1)
        noise = (items[first] - items[second]).std(axis=2) / np.sqrt(1000)
        separable = quality.separable_pairs(items.mean(axis=2)[:, -1], noise[:, -1])
        low, high = quality.settling_interval(items.mean(axis=2), noise, tokens, separable)
        held.append(low <= quality.settled_from(truth, tokens, separable) <= high)
        told += high < tokens[-1]
    assert np.mean(held) >= 0.95 and told > 0


# items, checkpoints, rise, whether items are right or wrong: from pure noise to a clear rise
BENCHMARKS = [(200, 14, 0.0, True), (200, 14, 0.1, False), (200, 27, 0.1, True), (1000, 14, 0.1, False)]
BENCHMARKS += [(200, 14, 0.3, True), (200, 27, 0.3, True), (1000, 14, 0.3, False), (200, 27, 1.0, True)]


def new_items(rng, items, checkpoints, rise, binary):
    """Items of random difficulty that rise with the square root of training, with noise at every checkpoint."""
    training = np.sqrt(np.linspace(0, 1, checkpoints))[:, None]
    scores = rng.normal(0, 1, items) + rise * training + rng.standard_normal((checkpoints, items))
    return (scores > 0.5).astype(float) if binary else scores


def quality_of(curves):
    return quality.signal_quality(curves).signal_quality


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_coverage(benchmark):
    rng = np.random.default_rng(BENCHMARKS.index(benchmark))
    truth = np.mean([quality_of(new_items(rng, *benchmark).mean(axis=1)) for _ in range(1000)])
    held = 0
    for _ in range(200):
        scores = new_items(rng, *benchmark)
        draws = quality_of(quality.resample_item_means(scores, quality.draw_items(scores.shape[1], 300, rng)))
        low, high = quality.resampling_interval(float(quality_of(scores.mean(axis=1))), draws, quality.SHARE)
        held += low <= truth <= high
    # Standard error at 0.94 is 0.017
    assert held / 200 >= 0.9
