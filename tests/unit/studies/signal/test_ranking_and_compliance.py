"""Ranking consistency, settling of rankings, compliance and the overall score, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from lm_validity.studies.signal.statistics.quality import exceedance_p, weight_sensitivity
from lm_validity.studies.signal.statistics.ranking import (
    E2LM_WINDOWS,
    agreement_with_last,
    bootstrap_pair_consistency,
    coin_flip_consistency,
    compliance,
    decision_accuracy,
    exchanged_curves,
    from_then_on,
    pair_consistency,
    persistence,
    separable_pairs,
    settled_from,
    size_ordering,
)


def test_windows():
    tokens = np.array([50.0, 100.0, 199.0, 200.0, 220.0, 1000.0, 1001.0])
    base, later = E2LM_WINDOWS.masks(tokens)
    assert list(np.flatnonzero(base)) == [1, 2] and list(np.flatnonzero(later)) == [4, 5]
    # scaled: 0.1 to 0.2 and 0.22 to 1 of the longest
    base, later = replace(E2LM_WINDOWS, relative=True).masks(np.arange(1.0, 11.0))
    assert list(np.flatnonzero(base)) == [0] and list(np.flatnonzero(later)) == list(range(2, 10))


def test_pair_consistency_by_hand():
    base, later = np.array([1, 1, 0, 0, 0, 0], bool), np.array([0, 0, 1, 1, 1, 1], bool)
    first = np.array([0.2, 0.4, 0.5, 0.5, 0.3, 0.6])
    second = np.array([0.3, 0.2, 0.4, 0.5, 0.4, 0.5])
    found = pair_consistency(first, second, base, later)
    # base gap 0.05 > 0; later: better, tied (counts as not better), worse, better
    assert found.base_gap == pytest.approx(0.05) and found.value == pytest.approx(0.5)
    assert found.with_last == pytest.approx(1 / 3)
    assert pair_consistency(first, first, base, later).value == 1.0
    assert np.isnan(pair_consistency(first, second, np.zeros(6, bool), later).value)
    assert np.isnan(pair_consistency(first, second, base, np.zeros(6, bool)).value)
    batch = pair_consistency(np.stack([first, second]), second, base, later)
    assert batch.value == pytest.approx([0.5, 1.0])


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


def test_persistence_is_short_for_noise_and_long_for_drift():
    rng = np.random.default_rng(5)
    assert np.median([persistence(gap) for gap in persistent(0.0, 47, 100, rng)]) <= 2
    assert np.median([persistence(gap) for gap in persistent(0.9, 47, 100, rng)]) > 8
    assert persistence(np.ones(12)) == 12 and persistence(np.array([1.0, -1.0, 1.0])) == 3


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
    draws = bootstrap_pair_consistency(gap, np.zeros(28), base, ~base, 2000, generator)
    assert draws.mean() == pytest.approx(0.5, abs=0.02) and 0.05 < draws.std() < 0.2
    assert np.isnan(bootstrap_pair_consistency(gap, gap, base, np.arange(28) >= 21, 5, generator)).all()
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


def test_decision_accuracy_counts_pairs():
    rising, falling = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    assert decision_accuracy(rising, np.array([1.0, 3.0, 2.0])) == pytest.approx(2 / 3)
    assert decision_accuracy(falling, rising) == 0.0
    # a tie counts one half, whichever of the two comes first
    tied = np.array([1.0, 1.0])
    assert [decision_accuracy(tied, other) for other in (rising[:2], falling[:2], tied)] == [0.5, 0.5, 0.5]


def test_size_ordering():
    curves = np.array([[0.1, 0.2], [0.3, 0.2], [0.2, 0.5]])
    share, gap = size_ordering(curves, [(0, 1), (1, 2)])
    assert share == pytest.approx([0.5, 0.75])  # the tie counts one half
    assert gap == pytest.approx([0.05, 0.15])


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


def test_exchanged_curves_keep_their_sum_and_forget_the_difference():
    rng = np.random.default_rng(0)
    science, web = rng.random((5, 300)) + 0.2, rng.random((5, 300))
    first, second = exchanged_curves(science, web, 500, rng)
    assert first + second == pytest.approx(np.broadcast_to(science.mean(1) + web.mean(1), (500, 5)))
    assert (first - second).mean(axis=0) == pytest.approx(np.zeros(5), abs=0.01)


def test_overall_and_its_weights():
    components = np.array([[0.9, 0.8, 0.4], [0.5, 0.5, 0.9]])
    share_first, _, _ = weight_sensitivity(components, 20_000, np.random.default_rng(0))
    assert share_first.sum() == pytest.approx(1.0)
    # the first wins where 0.4 w1 + 0.3 w2 > 0.5 w3
    weights = np.random.default_rng(1).dirichlet(np.ones(3), 100_000)
    expected = np.mean(weights @ np.array([0.4, 0.3, -0.5]) > 0)
    assert share_first[0] == pytest.approx(expected, abs=0.02)
    assert weight_sensitivity(components[:1], 10, np.random.default_rng(0))[0] == pytest.approx([1.0])
