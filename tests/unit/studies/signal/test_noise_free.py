"""Signal quality at other numbers of items and without their noise; intervals of the criteria of others."""

import numpy as np
import pytest
from signal_world import World, write_world

from lm_validity.studies.signal.report import analyze_signal, summarize
from lm_validity.studies.signal.statistics.criteria import (
    pair_share_interval,
    signal_to_noise,
    signal_to_noise_interval,
)
from lm_validity.studies.signal.statistics.noise_free import noise_free_quality, quality_by_items
from lm_validity.studies.signal.statistics.quality import signal_quality
from lm_validity.summaries import Missing, is_known


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


def test_the_report_has_both_beside_the_organisers_score(tmp_path):
    files = write_world(tmp_path, World(items=120))
    found = summarize(analyze_signal(files.scores, files.models, items=files.items, resamples=20))
    entry = found.benchmarks["facts"]
    assert set(entry.signal_quality_by_items) == {100}
    assert entry.signal_quality_by_items[100] < entry.signal_quality < entry.noise_free_quality <= 1
    small = summarize(
        analyze_signal(files.scores, files.models, resamples=20),
    ).benchmarks["facts"]
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
    assert np.isnan(pair_share_interval(1.0, 1)).all()


def test_criteria_have_intervals(tmp_path):
    files = write_world(tmp_path, World(items=40))
    criteria = summarize(analyze_signal(files.scores, files.models, resamples=50)).criteria["facts"]
    noise, decisions = criteria.signal_and_noise, criteria.decision_accuracy
    assert noise.signal_to_noise_interval[0] <= noise.signal_to_noise <= noise.signal_to_noise_interval[1]
    assert is_known(decisions.middle_to_last_interval) and is_known(decisions.smallest_to_largest_interval)
    low, high = decisions.middle_to_last_interval
    assert low <= decisions.middle_to_last <= high
