"""Criteria of FineTasks and Signal and Noise, by hand."""

import numpy as np
import pytest

from lm_validity.studies.signal.statistics.quality import (
    ordering_consistency,
    seed_criteria,
    signal_to_noise,
    step_direction,
    total_variation,
)


def test_ordering_consistency_looks_at_the_second_half():
    curves = np.array([[0, 9, 0, 3, 3, 3.0], [9, 0, 9, 2, 2, 4.0], [5, 5, 5, 1, 1, 1.0]])
    # second half: orders equal from 3 to 4; from 4 to 5 one of three pairs turns
    assert ordering_consistency(curves) == pytest.approx((1 + 1 / 3) / 2)
    assert np.isnan(ordering_consistency(curves[:1]))


def test_seed_criteria_by_hand():
    runs = np.array([[0.4, 0.5, 0.5, 0.5, 0.6, 0.6], [0.6, 0.5, 0.7, 0.7, 0.8, 0.8]])
    to_noise, non_randomness = seed_criteria([runs], chance=0.25, best_final=0.8)
    # variances of two seeds: 0 once, else 0.02; of the last five one is 0
    assert to_noise == pytest.approx(0.6 / np.sqrt(5 * 0.02 / 6))
    assert non_randomness == pytest.approx((0.8 - 0.25) / np.sqrt(4 * 0.02 / 5))
    assert np.isnan(seed_criteria([runs[:1]], 0.25, 0.8)[0])
    assert np.isnan(seed_criteria([runs], np.nan, 0.8)[1])
    assert np.isnan(seed_criteria([np.array([runs[0]] * 3)], 0.25, 0.8)[0])
    # several models: the sum of squares of all over all degrees of freedom, whatever their number of seeds
    noisy = np.array([[0.5], [0.7], [0.9]])
    both, _ = seed_criteria([runs, noisy], 0.25, 0.9)
    assert both == pytest.approx(0.6142857 / np.sqrt((0.1 + 0.08) / 8))


def test_checkpoints_at_which_two_seeds_nearly_agree_do_not_decide():
    rng = np.random.default_rng(0)
    found = [seed_criteria([0.6 + 0.05 * rng.standard_normal((2, 20))], np.nan, 0)[0] for _ in range(300)]
    # the truth is 12, and FineTasks passes at 20
    assert np.median(found) == pytest.approx(12, rel=0.05) and np.mean(np.array(found) >= 20) < 0.02


def test_signal_to_noise_by_hand():
    found = signal_to_noise([np.full(5, 0.3), np.array([0.5, 0.6, 0.5, 0.4, 0.5])], (0.1, 3))
    assert found == pytest.approx((0.2 / 0.4, 0.1 / 0.4, 2.0))


def test_detrending_takes_progress_out_of_the_noise():
    climbing = [np.linspace(0.1, 0.2, 9), np.linspace(0.3, 0.5, 9)]
    assert signal_to_noise(climbing).noise == pytest.approx(0.0, abs=1e-12)
    assert np.isnan(signal_to_noise(climbing).ratio)  # what rounding leaves is no noise
    # residuals of (0, 1, 0, -1, 0) from its line, by least squares: two parameters, three degrees of freedom
    wobble = np.array([0.0, 1.0, 0.0, -1.0, 0.0])
    residual = wobble - np.polyval(np.polyfit(range(5), wobble, 1), range(5))
    expected = np.sqrt((residual**2).sum() / 3) / 2 / 2.0
    assert signal_to_noise([wobble + 1, np.full(5, 3.0)]).noise == pytest.approx(expected)


def test_signal_to_noise_is_that_of_the_score_when_less_of_it_is_better():
    bits = [np.array([1.0, 1.1, 1.0, 0.9, 1.0]), np.full(5, 0.8)]
    found, oriented = signal_to_noise(bits), signal_to_noise([-curve for curve in bits])
    assert found == oriented and found.signal == pytest.approx(0.2 / 0.9) and found.ratio > 0


def test_signal_to_noise_needs_two_models_and_scores_of_one_sign():
    assert np.isnan(signal_to_noise([np.arange(5.0)]).ratio)
    assert np.isnan(signal_to_noise([np.arange(4.0), np.arange(4.0)]).ratio)
    wobble = np.array([1.0, 2.0, 1.0, 2.0, 1.0])
    assert np.isnan(signal_to_noise([wobble, -wobble / 10]).signal)  # mean 0.6, of either sign
    assert np.isnan(signal_to_noise([np.zeros(5), np.zeros(5)]).signal)
    flat = signal_to_noise([np.full(5, 1.0), np.full(5, 3.0)])
    assert flat.signal == 1.0 and flat.noise == 0.0 and np.isnan(flat.ratio)


def test_seeds_of_a_score_of_which_less_is_better_have_its_own_ratio():
    runs = np.array([[0.4, 0.5, 0.6], [0.6, 0.7, 0.8]])
    assert seed_criteria([-runs], np.nan, -0.6)[0] == pytest.approx(0.6 / np.sqrt(0.02))


def test_step_direction_and_total_variation():
    curve = np.array([0.0, 2.0, 1.0, 1.0, 3.0])
    assert step_direction(curve) == pytest.approx(1 / 3)  # two up, one down, one level
    assert total_variation(curve) == pytest.approx((2 + 1 + 0 + 2 - 3) / (4 * 3))
    assert total_variation(np.arange(5.0)) == pytest.approx(0.0)
    assert np.isnan(total_variation(np.ones(4))) and step_direction(np.ones(4)) == 0.0
