"""Statistics that several studies share, against closed forms, enumerations and simulated truth."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binomtest

from lm_validity import statistics
from lm_validity.words import Missing, ReasonCode


def sampled(answers):
    """A model's (runs, items) answers, taken apart."""
    noise = statistics.run_noise(answers, [(None, run) for run in range(len(answers))])
    return statistics.SampledScore(answers.mean(axis=0).var(ddof=1), answers.shape[1], noise)


def test_items_and_sampling_by_hand():
    """Two runs, three items: m = (1, 1/2, 0), w = mean of (0, 1/2, 0), b = variance of m = 1/4; d² = 1/18 = w / n."""
    found = sampled(np.array([[1, 1, 0], [1, 0, 0]]))
    assert (found.noise.sampled, found.noise.total) == pytest.approx((1 / 36, 1 / 36))
    assert found.error == pytest.approx(np.sqrt(0.25 / 3)) == found.error_with(2)
    assert found.share_of_sampling == pytest.approx((1 / 6) / (0.25 + (1 / 6) / 2))
    assert found.error_with(np.inf) == pytest.approx(np.sqrt((0.25 - 1 / 12) / 3))


def test_runs_of_several_seeds_and_items_without_a_value():
    """d² and w are within seeds: runs .5 and 1 of seed 0, 0 and .5 of seed 1, on the items that each run has."""
    values = np.array([[1, 0, np.nan], [1, 1, 0], [0, 0, 1], [1, 0, 1]], dtype=float)
    noise = statistics.run_noise(values, [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert (noise.runs, noise.freedom) == (4, 2)
    assert noise.total == pytest.approx(0.125 / 4) and noise.sampled == pytest.approx(0.25 / 2 / 4)
    for rows, runs in ((slice(1), [(0, 0)]), (slice(None, None, 2), [(0, 0), (1, 0)])):
        assert statistics.run_noise(values[rows], runs) is None


def test_the_number_of_runs_from_which_only_items_help():
    """Item variance .2, within .1, 50 items: error(K)² / error(∞)² = 1 + .5 / K <= 1.1025 first at K = 5."""
    runs = statistics.RunNoise({(None, run): 0.5 for run in range(4)}, 0.1 / 50 / 4)
    found = statistics.SampledScore(0.2 + 0.1 / 4, 50, runs)
    assert found.runs_that_help == 5
    assert found.error_with(5) <= 1.05 * found.error_with(np.inf) < found.error_with(4)
    assert statistics.SampledScore(0.02, 50, runs).runs_that_help is None
    assert statistics.SampledScore(0.02, 50, statistics.RunNoise(runs.means, 0.0)).runs_that_help == 1


@pytest.mark.parametrize("shock", [0.0, 0.08])
def test_the_error_is_right_for_other_items_and_other_runs(shock):
    """Mean estimated squared error over 2,000 worlds of 60 items and 5 runs, against the variance of the scores."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.3, 0.7, (2000, 1, 60)) + rng.uniform(-shock, shock, (2000, 5, 1))
    answers = (rng.random((2000, 5, 60)) < p).astype(float)
    found = np.mean([sampled(world).error ** 2 for world in answers])
    truth = np.var(answers.mean(axis=(1, 2)))
    assert 0.93 < found / truth < 1.4  # the part of runs is never taken below what items explain


def test_errors_from_scores_alone():
    """s = .084 and d = .042 of ten runs: sqrt(.084² - .042² + .042² / 10)."""
    assert statistics.error_of_mean(0.084, 0.042, 10) == pytest.approx(np.sqrt(0.084**2 - 0.9 * 0.042**2))
    shared = np.sqrt(0.05**2 / 2 + 0.04**2)  # runs share something
    assert statistics.error_of_mean(0.05, 0.08, 4) == pytest.approx(shared)
    assert statistics.error_of_mean(0.05, np.nan, 1) == 0.05
    assert np.isnan(statistics.error_of_mean(np.nan, 0.05, 3))


def test_spread_between_runs_against_numpy():
    scores = np.array([[0.1, 0.2, 0.4], [0.5, np.nan, 0.7], [0.3, np.nan, np.nan]])
    spread = statistics.spread_of_runs(scores)
    assert spread[:2] == pytest.approx([np.std(scores[0], ddof=1), np.std([0.5, 0.7], ddof=1)])
    assert np.isnan(spread[2])
    assert statistics.typical_spread(scores) == pytest.approx(np.sqrt((spread[0] ** 2 + spread[1] ** 2) / 2))
    assert np.isnan(statistics.typical_spread(scores[2:]))


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_pass_at_k_and_pass_hat_k_by_enumeration(k):
    answers = np.random.default_rng(3).random((12, 5)) < 0.5
    draws = [list(chosen) for chosen in combinations(range(5), k)]
    correct, runs = answers.sum(axis=1), np.full(12, 5)
    some = np.mean([answers[:, draw].any(axis=1) for draw in draws])
    every = np.mean([answers[:, draw].all(axis=1) for draw in draws])
    assert statistics.pass_at_k(correct, runs, k).value == pytest.approx(some)
    assert statistics.pass_hat_k(correct, runs, k).value == pytest.approx(every)


def test_k_above_the_runs_of_an_item_is_a_reason():
    found = statistics.pass_at_k(np.array([1, 2]), np.array([4, 3]), 4)
    assert isinstance(found, Missing) and found.code == ReasonCode.TOO_FEW and "4" in found.reason
    assert isinstance(statistics.pass_hat_k(np.array([1]), np.array([2]), 0), Missing)
    assert isinstance(statistics.pass_hat_k(np.array([]), np.array([]), 1), Missing)


def test_an_interval_of_items_that_all_agree_has_a_width():
    found = statistics.pass_hat_k(np.full(30, 4), np.full(30, 4), 4)
    low, high = found.interval
    assert found.value == high == 1 and 0.7 < low < 0.95
    assert low <= binomtest(30, 30).proportion_ci(method="exact").low + 0.05


@pytest.mark.parametrize(("runs", "k"), [(4, 1), (4, 2), (8, 4)])
def test_the_interval_of_pass_hat_k_holds(runs, k):
    """Coverage over 1,500 worlds of 50 items, with four Monte Carlo errors of leeway below 95%."""
    rng = np.random.default_rng(runs * 10 + k)
    truth = np.mean(rng.beta(0.8, 1.2, 400_000) ** k)
    held = 0
    for _ in range(1500):
        correct = rng.binomial(runs, rng.beta(0.8, 1.2, 50))
        low, high = statistics.pass_hat_k(correct, np.full(50, runs), k).interval
        held += low <= truth <= high
    assert held / 1500 > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 1500)


def test_p_above_chance():
    scores, errors = np.array([0.25, 0.25 + 1.644854 * 0.02, 0.3, 0.2, np.nan]), np.array([0.02, 0.02, 0, 0, 0.1])
    p = statistics.p_above_chance(scores, errors, 0.25)
    np.testing.assert_allclose(p, [0.5, 0.05, 0, 1, np.nan], atol=1e-6)
    # p = .03 each: above chance alone, not beside another; an unknown one is not counted
    assert statistics.models_above_chance([0.25 + 1.88 * 0.02], [0.02], 0.25) == 1
    assert statistics.models_above_chance([0.25 + 1.88 * 0.02] * 2, [0.02] * 2, 0.25) == 0
    assert statistics.models_above_chance([0.25 + 1.88 * 0.02] * 2, [0.02, np.nan], 0.25) == 1


def test_holm_holds_the_familywise_level():
    assert statistics.holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    generator = np.random.default_rng(0)
    false = [(statistics.holm(generator.uniform(size=20)) < 0.05).any() for _ in range(2000)]
    assert np.mean(false) == pytest.approx(0.05, abs=0.015)
