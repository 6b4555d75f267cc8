"""Filters judged where they were not fitted: pure noise, real signal, and the folds."""

import numpy as np
import pytest

from lm_validity.studies.signal.filters.kinds import slopes
from lm_validity.studies.signal.filters.recipe import trial_sentence
from lm_validity.studies.signal.statistics.items import disjoint_checkpoints, judge_filter, leave_one_group_out
from lm_validity.studies.signal.statistics.quality import signal_quality

CHECKPOINTS = 14


def positive_slope_of(values):
    return lambda rows: sum(slopes(values[model][at]) for model, at in rows) > 0


def test_disjoint_checkpoints_leave_at_least_eight():
    (fold,) = disjoint_checkpoints([27, 14])
    (model, scored), (same, fitted) = fold.score[0], fold.fit[0]
    assert model == same == 0 and len(fold.score) == 1  # 14 checkpoints leave 7: too few
    assert len(scored) == 14 and scored[-1] == 26
    assert not set(scored) & set(fitted) and len(scored) + len(fitted) == 27
    assert disjoint_checkpoints([14, 9]) == []
    assert len(disjoint_checkpoints([15])[0].score[0][1]) == 8


def test_positive_slopes_of_pure_noise_are_found_out():
    generator = np.random.default_rng(0)
    trials = []
    for _ in range(200):
        values = [generator.standard_normal((CHECKPOINTS, 1000)) for _ in range(2)]
        folds = leave_one_group_out(["deep", "wide"], [CHECKPOINTS] * 2)
        trials.append(judge_filter(positive_slope_of(values), values, folds, generator, controls=100))
    held_out = np.array([trial.held_out for trial in trials])
    noise = signal_quality(generator.standard_normal((50_000, CHECKPOINTS))).signal_quality.mean()
    assert np.mean([trial.in_sample for trial in trials]) > 0.9
    assert held_out.mean() == pytest.approx(noise, abs=3 * held_out.std() / np.sqrt(len(trials)))
    # at most 2.5% are to beat the control by chance: 11 of 200 has a probability of 2%
    assert sum(trial.useful for trial in trials) <= 11


def test_a_filter_that_drops_dead_items_is_useful():
    generator = np.random.default_rng(1)
    rising = np.linspace(0, 1, CHECKPOINTS)[:, None] * (np.arange(400) < 80)
    values = [rising + 1.5 * generator.standard_normal((CHECKPOINTS, 400)) for _ in range(4)]
    folds = leave_one_group_out(["a", "b", "c", "d"], [CHECKPOINTS] * 4)

    def by_gain(rows):
        return sum(values[m][at][-5:].mean(0) - values[m][at][:5].mean(0) for m, at in rows) > 1.0

    trial = judge_filter(by_gain, values, folds, generator, controls=200)
    assert trial.useful and trial.held_out > trial.control_high > trial.control_mean
    assert trial.in_sample > trial.held_out
    assert trial.items == 400


def test_a_filter_that_keeps_nothing_cannot_be_judged():
    values = [np.random.default_rng(m).standard_normal((CHECKPOINTS, 20)) for m in range(2)]
    folds = leave_one_group_out(["a", "b"], [CHECKPOINTS] * 2)
    trial = judge_filter(lambda rows: np.zeros(20, bool), values, folds, np.random.default_rng(0), controls=10)
    assert np.isnan(trial.held_out) and np.isnan(trial.p) and not trial.useful


def test_a_filter_is_not_judged_by_a_score_that_some_items_lack():
    values = [np.random.default_rng(m).standard_normal((CHECKPOINTS, 20)) for m in range(2)]
    values[0][:, 0] = np.nan
    folds = leave_one_group_out(["a", "b"], [CHECKPOINTS] * 2)
    trial = judge_filter(lambda rows: np.arange(20) > 0, values, folds, np.random.default_rng(0), controls=50)
    assert np.isfinite(trial.held_out) and np.isnan([trial.unfiltered, trial.control_mean, trial.p]).all()
    assert not trial.useful and "nan" not in trial_sentence(trial)
