"""Noise ceiling in closed form, parallel analysis on tables with a known number of factors."""

import numpy as np
import pytest

from lm_validity.studies.agreement.statistics.factors import parallel_analysis
from lm_validity.studies.agreement.statistics.noise import grid_steps, noise_ceiling, share_ceiling
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, mean_over_pairs, pair_signs


def test_the_ceiling_is_one_without_noise_and_that_of_the_reliability_of_normal_scores():
    scores = np.random.default_rng(0).normal(size=(15, 4))
    ceiling = noise_ceiling(scores, np.zeros_like(scores), np.random.default_rng(1), draws=3)
    assert [ceiling.mean_tau, *ceiling.by_benchmark] == pytest.approx(np.ones(5))
    # observed variance 1 = true variance 1 - s² + noise s²: two benchmarks of one order correlate with 1 - s², and
    # tau of normal variables is 2/pi asin(rho)
    rng, noise = np.random.default_rng(2), 0.5
    truth = rng.normal(size=1500) * np.sqrt(1 - noise**2)
    scores = np.column_stack([rng.permutation(truth) + noise * rng.normal(size=1500) for _ in range(2)])
    ceiling = noise_ceiling(scores, np.full_like(scores, noise), rng, draws=4)
    assert ceiling.mean_tau == pytest.approx(2 / np.pi * np.arcsin(1 - noise**2), abs=0.02)
    share = share_ceiling(scores, np.full_like(scores, noise), rng, draws=4)
    assert share.first_component == pytest.approx((1 + 0.75) / 2, abs=0.02)


ONE_ORDER = {  # world -> (noise-free abilities, standard error, what scores are rounded to)
    "normal": (lambda rng: rng.normal(size=20), 0.2, None),
    "much noise": (lambda rng: rng.normal(size=20), 0.5, None),
    "even gaps": (lambda rng: np.linspace(-1.7, 1.7, 20), 0.2, None),
    "rounded": (lambda rng: rng.normal(size=20), 0.2, 0.5),
    "few items": (lambda rng: rng.normal(size=20), 40, None),
}


@pytest.mark.parametrize("world", ONE_ORDER)
def test_tables_of_one_order_reach_their_ceiling(world):
    """The mean observed tau is the mean ceiling, and it is above it in about half of the tables."""
    draw, error, step = ONE_ORDER[world]
    rng, gaps = np.random.default_rng(3), []
    for _ in range(60):
        ability, shape = draw(rng)[:, None], (20, 8)
        stderr = np.full(shape, error, dtype=float)
        scores = ability + stderr * rng.normal(size=shape)
        if error == 40:
            share = np.clip(0.5 + 0.15 * np.broadcast_to(ability, shape), 0.05, 0.95)
            scores = rng.binomial(40, share) / 40
            stderr = np.sqrt(scores * (1 - scores) / 39)
        scores = scores if step is None else step * np.round(scores / step)
        observed = mean_over_pairs(kendall_tau_matrix(pair_signs(scores)))
        gaps.append(observed - noise_ceiling(scores, stderr, rng, draws=20).mean_tau)
    assert np.mean(gaps) == pytest.approx(0, abs=0.018)  # 0.01 to 0.09 with the sorted scores of each benchmark
    assert 0.3 < np.mean(np.array(gaps) > 0) < 0.75  # 0.67 to 1


def test_noise_within_clumps_of_models_is_no_order():
    """Two clumps of six models, in which noise is five times the abilities' spread: one order for all benchmarks."""
    rng, found = np.random.default_rng(0), []
    for _ in range(3):
        ability = np.repeat([-2.0, 2.0], 6)[:, None] + 0.1 * rng.normal(size=(12, 1))
        found.append(noise_ceiling(ability + 0.5 * rng.normal(size=(12, 6)), np.full((12, 6), 0.5), rng, 50).mean_tau)
    # 36 pairs between clumps are sure; the correlation within them is 0.01 / (0.01 + 0.25). It was 0.67
    assert np.mean(found) == pytest.approx((36 + 30 * 2 / np.pi * np.arcsin(1 / 26)) / 66, abs=0.06)


def test_scores_of_equal_models_show_what_they_are_rounded_to():
    columns = [0.1, 0.25, 0.4, 0.4, 0.4], [0.5, 0.25, 1, 0.75, 0.5], [1 / 3, 2 / 3, 2 / 3, 0, 1], [2, 3, 4, 5, np.nan]
    # of the last no two are equal: nothing is known
    assert grid_steps(np.column_stack(columns)) == pytest.approx([0.15, 0.25, 1 / 3, 0])
    rng = np.random.default_rng(0)
    assert grid_steps((rng.integers(0, 40, 30) / 40)[:, None]) == pytest.approx([1 / 40])


def table_with_factors(factors: int, rng: np.random.Generator) -> np.ndarray:
    loadings = np.column_stack([np.full(12, 0.8), np.repeat([0.55, -0.55], 6)])
    signal = rng.normal(size=(100, factors)) @ loadings[:, :factors].T
    return signal + 0.5 * rng.normal(size=(100, 12))


@pytest.mark.parametrize("factors", [1, 2])
def test_parallel_analysis_finds_the_number_of_factors_and_rarely_one_in_noise(factors):
    rng = np.random.default_rng(factors)
    result = parallel_analysis(table_with_factors(factors, rng), rng, permutations=100)
    assert (result.factors, result.p_first) == (factors, pytest.approx(1 / 101))
    found = [parallel_analysis(rng.normal(size=(30, 6)), rng, permutations=60).factors > 0 for _ in range(30)]
    assert np.mean(found) < 0.2


def test_a_ceiling_of_noise_alone_is_not_above_zero():
    same, order = np.full((6, 3), 0.5), np.outer(np.arange(6.0), np.ones(3))
    same[0] += 1e-9
    for seed in range(5):
        noise = noise_ceiling(same, np.full((6, 3), 0.05), np.random.default_rng(seed))
        assert noise.observed == pytest.approx(1) and np.isfinite(noise.mean_tau) and not noise.above_zero
    assert noise_ceiling(order, np.full((6, 3), 0.5), np.random.default_rng(0)).above_zero


def test_benchmarks_without_standard_errors_take_no_part():
    scores, stderr = np.random.default_rng(0).normal(size=(10, 3)), np.full((10, 3), 0.1)
    stderr[:, 1] = np.nan
    ceiling = noise_ceiling(scores, stderr, np.random.default_rng(0), draws=5)
    assert ceiling.included.tolist() == [True, False, True]
    assert np.isnan(ceiling.by_benchmark[1]) and np.isfinite(ceiling.mean_tau)
    without = [make(scores, stderr * np.nan, np.random.default_rng(0)) for make in (noise_ceiling, share_ceiling)]
    assert np.isnan([without[0].mean_tau, without[1].first_component]).all()
    assert not without[0].above_zero and without[0].expected is None and not any(one.included.any() for one in without)


def test_a_pair_of_benchmarks_without_a_tau_is_in_neither_mean():
    # a has four models, all equal on b: noise would give the two a tau, the scores give none
    scores = np.column_stack([np.arange(8.0)] * 3)
    scores[4:, 0], scores[:4, 1] = np.nan, 2.0
    assert np.isnan(kendall_tau_matrix(pair_signs(scores))[0, 1])
    ceiling = noise_ceiling(scores, np.full((8, 3), 0.5), np.random.default_rng(0), draws=50)
    assert ceiling.included.all() and ceiling.observed == pytest.approx((1 + 22 / np.sqrt(22 * 28)) / 2)
    # the mean of the pairs a, c and b, c: c's mean with the others
    assert ceiling.mean_tau == pytest.approx(ceiling.by_benchmark[2])
