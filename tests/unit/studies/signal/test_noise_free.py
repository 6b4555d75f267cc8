"""Signal quality at other numbers of items and without their noise; intervals of the criteria of others."""

import numpy as np
import pytest
from signal_world import World, write_world

from lm_validity.config.sections import Reports
from lm_validity.missing import Missing, is_known
from lm_validity.studies.signal.report import analyze_signal, signal
from lm_validity.studies.signal.statistics.quality import (
    error_covariance,
    noise_free_interval,
    noise_free_quality,
    pair_share_interval,
    quality_by_errors,
    quality_by_items,
    signal_quality,
    signal_to_noise,
    signal_to_noise_interval,
)
from lm_validity.tables.schema import SCORES, read_scores, write_table


def answers(mean, items, rng):
    """Right and wrong answers (n, items) with these means; half of an item's luck is the same at all checkpoints."""
    difficulty = rng.normal(0.0, 1.2, items)
    chance = 1 / (1 + np.exp(-(1.25 * np.log(mean / (1 - mean))[:, None] + difficulty)))
    luck = np.where(rng.random(chance.shape) < 0.5, rng.random(items), rng.random(chance.shape))
    return (luck < chance).astype(float)


def test_the_same_learning_scores_more_with_more_items_but_not_without_their_noise():
    """A rise of 6 points over 14 checkpoints: signal quality 1 without noise."""
    rng = np.random.default_rng(0)
    rise = np.linspace(0.40, 0.46, 14)
    observed, free, matched = {}, {}, {}
    for items in (1000, 3000):
        worlds = [answers(rise, items, rng) for _ in range(30)]
        observed[items] = np.mean([float(signal_quality(world.mean(axis=1)).signal_quality) for world in worlds])
        free[items] = np.nanmean([noise_free_quality(world).value for world in worlds])
        matched[items] = np.mean([quality_by_items([world], (1000,), 20, rng)[1000] for world in worlds])
    assert observed[1000] < 0.8 < observed[3000]
    assert free[1000] > 0.88 and free[3000] > 0.95
    assert matched[3000] == pytest.approx(matched[1000], abs=0.06) and matched[1000] == pytest.approx(observed[1000])


def test_noise_alone_has_no_noise_free_quality():
    found = noise_free_quality(answers(np.full(14, 0.4), 300, np.random.default_rng(1)))
    assert np.isnan(found.value) and found.reliability < 0.5
    assert np.isnan(noise_free_quality(np.ones((14, 5))).value)
    assert np.isnan(noise_free_quality(np.random.default_rng(0).random((7, 50))).reliability)


def test_items_that_answer_alike_at_all_checkpoints_add_no_noise():
    """Every item has its own level and the same climb: the curve is exact, whatever the number of items."""
    rng = np.random.default_rng(2)
    found = noise_free_quality(np.linspace(0, 1, 14)[:, None] + 5 * rng.random(20))
    assert found.value == pytest.approx(1.0) and found.reliability == pytest.approx(1.0)


def test_intervals_without_noise_hold_the_quality_of_endlessly_many_items():
    """A walk of 14 checkpoints whose own quality is known; 3,000 items a world."""
    rng, held = np.random.default_rng(5), []
    for _ in range(20):
        rise = 0.45 + 0.012 * np.cumsum(rng.normal(size=14))
        world = (
            np.where(rng.random((14, 3000)) < 0.5, rng.random(3000), rng.random((14, 3000))) < rise[:, None]
        ).astype(float)
        low, high = noise_free_interval([world], rng)
        if np.isfinite(low):
            held.append(low <= float(signal_quality(rise).signal_quality) <= high)
    assert len(held) >= 12 and np.mean(held) >= 0.85
    assert np.isnan(noise_free_interval([world[:, :39]], rng)).all()


def test_subjects_are_left_out_whole():
    """Items of a subject rise alike, so the noise of subjects is more than that of as many single items."""
    rng = np.random.default_rng(6)
    subjects = np.repeat(np.arange(40), 25)
    of_subject = 0.15 * rng.normal(size=(14, 40)).cumsum(axis=0) / 4
    world = (rng.random((14, 1000)) < 0.3 + np.linspace(0, 0.3, 14)[:, None] + of_subject[:, subjects]).astype(float)
    single, clustered = noise_free_quality(world), noise_free_quality(world, clusters=subjects)
    assert clustered.reliability < single.reliability
    residual = world - world.mean(axis=1, keepdims=True)
    sums = np.array([residual[:, subjects == g].sum(axis=1) for g in range(40)]).T
    noise, curve = 40 / 39 * sums @ sums.T / 1000**2, world.mean(axis=1)
    expected = 1 - (np.trace(noise) - noise.sum() / 14) / ((curve - curve.mean()) ** 2).sum()
    assert clustered.reliability == pytest.approx(expected)
    low, high = noise_free_interval([world], np.random.default_rng(0), clusters=subjects)
    assert low <= clustered.value <= high
    assert error_covariance(world, subjects) == pytest.approx(noise)


def test_fewer_items_from_standard_errors_are_near_those_from_items_and_below():
    rng = np.random.default_rng(7)
    by_items, by_errors = [], []
    for _ in range(15):
        world = answers(np.linspace(0.40, 0.46, 14), 3000, rng)
        errors = world.std(axis=1, ddof=1) / np.sqrt(3000)
        by_items.append(quality_by_items([world], (1000,), 30, rng)[1000])
        by_errors.append(quality_by_errors([(world.mean(axis=1), errors)], [3000.0], (1000, 10_000), 30, rng)[1000])
    assert -0.12 < np.mean(by_errors) - np.mean(by_items) < 0
    exact = quality_by_errors([(world.mean(axis=1), errors)], [3000.0], (3000,), 5, rng)
    assert exact[3000] == pytest.approx(float(signal_quality(world.mean(axis=1)).signal_quality))


def test_a_report_with_subjects_draws_them_whole_and_one_without_items_matches_by_errors(tmp_path):
    files = write_world(tmp_path, World(items=120, subjects=12))
    found = signal(analyze_signal(files.scores, files.models, items=files.items, section=Reports(resamples=20)))[1]
    assert any("drawn by whole subjects (12)" in note for note in found.notes)
    scores = read_scores(files.scores).assign(n_items=400, stderr=0.02)
    write_table(scores, SCORES, tmp_path / "errors.parquet")
    summary = signal(analyze_signal(tmp_path / "errors.parquet", files.models, section=Reports(resamples=0))).summary
    entry = summary.benchmarks["facts"]
    assert set(entry.signal_quality_by_errors) == {100, 300}
    assert entry.signal_quality_by_errors[100] < entry.signal_quality
    assert found.benchmarks["facts"].signal_quality_by_errors is None


def test_the_report_has_both_beside_the_organisers_score(tmp_path):
    files = write_world(tmp_path, World(items=120))
    found = signal(analyze_signal(files.scores, files.models, items=files.items, section=Reports(resamples=20)))[1]
    entry = found.benchmarks["facts"]
    assert set(entry.signal_quality_by_items) == {100}
    low, high = entry.noise_free_quality_interval
    assert low <= entry.noise_free_quality <= high
    assert entry.signal_quality_by_items[100] < entry.signal_quality < entry.noise_free_quality <= 1
    small = signal(
        analyze_signal(files.scores, files.models, section=Reports(resamples=20)),
    )[1].benchmarks["facts"]
    assert isinstance(small.signal_quality_by_items, Missing) and isinstance(small.noise_free_quality, Missing)


# ---- intervals of the criteria of others -------------------------------------------------------------------------


@pytest.mark.parametrize(("models", "spread"), [(2, 0.4), (5, 0.4), (5, 0.04), (16, 0.04)])
def test_interval_of_signal_to_noise_covers_the_ratio_of_the_trainings(models, spread):
    """True ratio: spread of the models' levels over a scatter of 0.02."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        curves = [level + 0.02 * rng.standard_normal(5) for level in 0.3 + spread * np.linspace(0, 1, models)]
        low, high = signal_to_noise_interval(curves, 200, rng)
        covered += low <= spread / 0.02 <= high
        assert low <= signal_to_noise(curves).ratio <= high
    assert covered / 200 >= 0.95 - 2 * 0.0154
    assert np.isnan(signal_to_noise_interval([np.ones(3), np.ones(3)], 10, rng)).all()


def test_interval_of_a_share_of_pairs_holds_it_and_counts_models():
    for share in (0.0, 0.5, 0.9, 1.0):
        low, high = pair_share_interval(share, 6)
        assert low <= share <= high
    assert pair_share_interval(1.0, 40)[0] > pair_share_interval(1.0, 6)[0]
    # Wilson's for 10 of 10
    assert pair_share_interval(1.0, 20)[0] == pytest.approx(10 / (10 + 1.959964**2))


def test_criteria_have_intervals(tmp_path):
    files = write_world(tmp_path, World(items=40))
    criteria = signal(analyze_signal(files.scores, files.models, section=Reports(resamples=50)))[1].criteria["facts"]
    noise, decisions = criteria.signal_and_noise, criteria.decision_accuracy
    assert noise.signal_to_noise_interval[0] <= noise.signal_to_noise <= noise.signal_to_noise_interval[1]
    assert is_known(decisions.middle_to_last_interval) and is_known(decisions.smallest_to_largest_interval)
    low, high = decisions.middle_to_last_interval
    assert low <= decisions.middle_to_last <= high


def test_signal_to_noise_is_as_much_too_high_as_the_page_of_its_definition_says():
    """10% with ten models of five checkpoints (docs/reference/signal.md), for a true ratio of 20."""
    rng = np.random.default_rng(0)
    levels = 0.3 + 0.4 * np.linspace(0, 1, 10)
    ratios = [signal_to_noise([one + 0.02 * rng.standard_normal(5) for one in levels]).ratio for _ in range(1500)]
    assert np.mean(ratios) / 20 == pytest.approx(1.10, abs=0.015)
