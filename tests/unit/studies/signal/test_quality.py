"""Signal quality, its intervals, rankings along training and compliance."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from lm_validity.config.sections import e2lm_tokens_b
from lm_validity.studies.signal.statistics.quality import (
    WindowMasks,
    agreement_with_last,
    autocorrelation,
    bootstrap_pair_consistency,
    coin_flip_consistency,
    compliance,
    draw_items,
    exceedance_p,
    from_then_on,
    pair_consistency,
    persistence,
    rank_correlation,
    resample_item_means,
    resampling_interval,
    separable_pairs,
    settled_from,
    settling_interval,
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


def test_pair_consistency_by_hand():
    base, later = np.array([1, 1, 0, 0, 0, 0], bool), np.array([0, 0, 1, 1, 1, 1], bool)
    first, second = np.array([0.2, 0.4, 0.5, 0.5, 0.3, 0.6]), np.array([0.3, 0.2, 0.4, 0.5, 0.4, 0.5])
    # base gap 0.05 > 0; later: better, tied (counts as not better), worse, better
    assert pair_consistency(first - second, WindowMasks(base, later)) == pytest.approx(0.5)
    assert pair_consistency(first - first, WindowMasks(base, later)) == 1.0
    for windows in (WindowMasks(np.zeros(6, bool), later), WindowMasks(base, np.zeros(6, bool))):
        assert np.isnan(pair_consistency(first - second, windows))
    batch = np.stack([first, second]) - second
    assert pair_consistency(batch, WindowMasks(base, later)) == pytest.approx([0.5, 1.0])


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
        coins = coin_flip_consistency(47, 199, rng, persistence(np.concatenate([gap[:6], later])))
        small += exceedance_p(value, coins) <= 0.05
        old += exceedance_p(value, coin_flip_consistency(47, 199, rng)) <= 0.05
    assert small / 300 <= 0.05 + 2.5 * 0.0126
    assert r < 0.9 or old / 300 > 0.15


def test_only_pairs_that_differ_at_the_end_have_an_order_to_settle():
    tokens = np.arange(1.0, 21.0)
    rng = np.random.default_rng(6)
    late, told = 0, 0
    for _ in range(200):
        noise = 0.01 * rng.standard_normal((3, 20))
        curves = np.array([np.full(20, 0.5), np.full(20, 0.5), np.linspace(0.2, 0.3, 20)]) + noise
        separable = separable_pairs(curves[:, -1], np.full(3, 0.01 * np.sqrt(2)))
        late += from_then_on(agreement_with_last(curves), tokens, 0.8) >= 19
        told += settled_from(curves, tokens, separable, 0.8) == 1.0
    assert late / 200 > 0.5 and told / 200 > 0.85
    nothing = settled_from(curves, tokens, np.zeros(3, dtype=bool), 0.8)
    assert np.isnan(nothing) and not separable_pairs(np.full(3, 0.5), np.zeros(3)).any()


def test_block_bootstrap_and_coin_flips():
    generator = np.random.default_rng(0)
    gap = np.r_[np.full(4, 0.1), np.tile([0.1, 0.1, -0.1, -0.1], 6)]
    base = np.arange(28) < 4
    draws = bootstrap_pair_consistency(gap, WindowMasks(base, ~base), 2000, generator)
    assert draws.mean() == pytest.approx(0.5, abs=0.02) and 0.05 < draws.std() < 0.2
    assert np.isnan(bootstrap_pair_consistency(0 * gap, WindowMasks(base, np.arange(28) >= 21), 5, generator)).all()
    coins = coin_flip_consistency(47, 20_000, generator)
    # 47 checkpoints in blocks of 4 are 12 coins
    assert coins.mean() == pytest.approx(0.5, abs=0.01)
    assert coins.std() == pytest.approx(0.5 / np.sqrt(12), rel=0.05)


def test_settling():
    curves = np.array([[1.0, 3.0, 2.0, 3.0], [2.0, 1.0, 1.0, 1.0], [0.0, 2.0, 3.0, 2.0]])
    # final order: 0 > 2 > 1; first: 1 > 0 > 2 differs in (0, 1) and (1, 2)
    assert agreement_with_last(curves) == pytest.approx([-1 / 3, 1.0, 1 / 3, 1.0])
    tokens = np.array([10.0, 20.0, 30.0, 40.0])
    tau = agreement_with_last(curves)
    assert from_then_on(tau, tokens, 1.0) == 40.0
    assert from_then_on(tau, tokens, 0.3) == 20.0
    tied = np.array([[1.0, 1.0], [1.0, 1.0]])
    assert np.isnan(from_then_on(agreement_with_last(tied), np.array([1.0, 2.0]), 1.0))
    assert from_then_on(np.stack([tau, tau]), tokens, 1.0).shape == (2,)


def test_compliance_by_hand():
    science, web = np.array([0.3, 0.5, 0.7]), np.array([0.3, 0.4, 0.4])
    assert compliance(science, web, "none")[0] == pytest.approx(0.4 / 3)
    assert compliance(science, web, "joint_minmax")[0] == pytest.approx(0.4 / 3 / 0.4)
    assert compliance(science, web, "sci_range")[0] == pytest.approx(0.4 / 3 / 0.4)
    assert compliance(science, web, "above_chance", 0.2)[0] == pytest.approx((0.1 / 0.3 + 0.3 / 0.5) / 3)
    behind, gap = compliance(web, science, "none")
    assert behind == 0.0 and gap == pytest.approx(-0.4 / 3)
    assert compliance(np.full(3, 0.2), np.full(3, 0.2))[0] == 0.0
    assert np.isnan(compliance(science, web, "above_chance", 0.3)[0])
    assert np.isnan(compliance(np.array([]), np.array([]))[0])
    unknown_chance = [compliance(science, other, "above_chance")[0] for other in (web, science)]
    assert np.isnan(unknown_chance).all()


def test_a_settling_interval_is_from_differences_beyond_noise():
    """Three models; the first two cross between the second and the third checkpoint, the third is far below."""
    curves = np.array([[0.4, 0.5, 0.6, 0.7, 0.8], [0.5, 0.55, 0.58, 0.6, 0.6], [0.1, 0.1, 0.1, 0.1, 0.1]])
    tokens, every = np.arange(1.0, 6), np.ones(3, dtype=bool)
    noise = np.full((3, 5), 0.03)
    assert settled_from(curves, tokens, every, 0.8) == 3
    # 0.1 is beyond 1.96 * 0.03, 0.05 and 0.02 are not: settled from the second checkpoint, or from the fourth
    assert settling_interval(curves, noise, tokens, every, 0.8) == (2, 4)
    assert settling_interval(curves, 1e-9 * noise, tokens, every, 0.8) == (3, 3)
    # nothing can be told apart at the end
    assert settling_interval(curves, 100 * noise, tokens, every, 0.8) == (1, 5)
    assert np.isnan(settling_interval(curves, noise, tokens, ~every, 0.8)).all()


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
        separable = separable_pairs(items.mean(axis=2)[:, -1], noise[:, -1])
        low, high = settling_interval(items.mean(axis=2), noise, tokens, separable, 0.8)
        held.append(low <= settled_from(truth, tokens, separable, 0.8) <= high)
        told += high < tokens[-1]
    assert np.mean(held) >= 0.95 and told > 0


REPEATS = 200
RESAMPLES = 300

# items, checkpoints, rise, whether items are right or wrong: from pure noise to a clear rise
BENCHMARKS = [
    (200, 14, 0.0, True),
    (200, 14, 0.1, False),
    (200, 27, 0.1, True),
    (1000, 14, 0.1, False),
    (200, 14, 0.3, True),
    (200, 27, 0.3, True),
    (1000, 14, 0.3, False),
    (200, 27, 1.0, True),
]


def new_items(rng, items, checkpoints, rise, binary):
    """Items of random difficulty that rise with the square root of training, with noise at every checkpoint."""
    training = np.sqrt(np.linspace(0, 1, checkpoints))[:, None]
    scores = rng.normal(0, 1, items) + rise * training + rng.standard_normal((checkpoints, items))
    return (scores > 0.5).astype(float) if binary else scores


def quality_of(curves):
    return signal_quality(curves).signal_quality


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_coverage(benchmark):
    rng = np.random.default_rng(BENCHMARKS.index(benchmark))
    truth = np.mean([quality_of(new_items(rng, *benchmark).mean(axis=1)) for _ in range(1000)])
    joint = percentiles = width = 0
    for _ in range(REPEATS):
        scores = new_items(rng, *benchmark)
        draws = quality_of(resample_item_means(scores, draw_items(scores.shape[1], RESAMPLES, rng)))
        lower, upper = resampling_interval(float(quality_of(scores.mean(axis=1))), draws, 0.0, 1.0)
        low, high = np.quantile(draws, [0.025, 0.975])
        joint += lower <= truth <= upper
        percentiles += low <= truth <= high
        width += upper - lower
    print(
        f"{benchmark}: mean score {truth:.3f}, coverage {joint / REPEATS:.3f} (percentiles alone "
        f"{percentiles / REPEATS:.3f}), mean width {width / REPEATS:.2f}"
    )
    # Standard error at 0.94 is 0.017
    assert joint / REPEATS >= 0.9
