"""Cells, tasks and averages against values worked out by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lm_validity.missing import Missing
from lm_validity.studies.bias.effects import cell_effects, headline, task_effects
from lm_validity.studies.bias.page import unmoved
from lm_validity.studies.bias.statistics.effects import equivalence_p, mean_over_tasks
from lm_validity.studies.bias.trials import coverage_notes, missing_trials, pair_arms

KEYS = ["experiment", "language_model", "m", "n", "task", "subsample"]


def table(*trials):
    """Trials given as (n, task, subsample, base, extra, test)."""
    rows = []
    for n, task, subsample, *counts in trials:
        for arm, correct in zip(("base", "extra", "test"), counts, strict=True):
            if correct is not None:
                rows.append(("e", "lm", 50, n, task, subsample, arm, correct, n, None, np.nan))
    return pair_arms(pd.DataFrame(rows, columns=[*KEYS, "arm", "correct", "total", "test_hash", "pretraining_loss"]))


def test_cell_means_and_standard_errors():
    (row,) = cell_effects(
        table((10, "a", 1, 2, 4, 5), (10, "a", 2, 3, 5, 4), (10, "b", 1, 5, 5, 8), (10, "b", 2, 5, 6, 8))
    ).itertuples()
    # boosts by trial: .2 .2 .0 .1; task means .2 and .05; biases .1 -.1 .3 .2; task means 0 and .25
    assert row.boost_mean == pytest.approx(0.125)
    assert row.boost_se == pytest.approx(np.std([0.2, 0.05], ddof=1) / np.sqrt(2))
    assert row.bias_mean == pytest.approx(0.125)
    assert row.bias_se == pytest.approx(0.125)
    assert (row.subsamples, row.tasks, row.trials) == (2, 2, 4)


def test_a_task_with_more_subsamples_has_no_more_weight_in_a_cell():
    cells = cell_effects(table(*[(10, "a", s, 0, 4, 8) for s in range(1, 10)], (10, "b", 1, 0, 0, 0)))
    assert cells.loc[0, ["boost_mean", "bias_mean"]].tolist() == pytest.approx([0.2, 0.2])  # by trial it would be .36


def test_tasks_weigh_cells_not_trials():
    (task,) = task_effects(
        table((10, "a", 1, 0, 0, 5), (10, "a", 2, 0, 0, 5), (10, "a", 3, 0, 0, 5), (20, "a", 1, 0, 10, 0))
    ).itertuples()
    # by cell: bias .5 and -.5, mean 0; by trial it would be (3 x .5 - .5) / 4 = .25
    assert task.bias == 0.0
    assert task.boost == pytest.approx(0.25)
    assert task.cells == 2


def test_differences_that_cancel_are_exactly_zero():
    trials = [(100, "a", s, 0, 29 + d, 29 - d) for s, d in enumerate((7, -3, -4, 1, -1))]
    assert task_effects(table(*trials))["bias"].tolist() == [0.0]


def test_one_task_has_no_standard_error():
    (cell,) = cell_effects(table((10, "a", 1, 2, 4, 5))).itertuples()
    assert cell.bias_mean == pytest.approx(0.1) and isinstance(cell.bias_se, Missing)


def test_trials_without_an_arm_do_not_count():
    (cell,) = cell_effects(table((10, "a", 1, None, 4, 5), (10, "a", 2, 1, 2, None))).itertuples()
    assert (cell.boost_mean, cell.bias_mean) == pytest.approx((0.1, 0.1))


def test_an_effects_sizes_count_trials_with_both_its_arms():
    cells = cell_effects(
        table((10, "a", 1, None, 4, 5), (10, "a", 2, 1, 2, None), (10, "b", 1, None, 4, 4), (20, "a", 1, 3, 4, None))
    )
    sizes = ["subsamples", "tasks", "trials"]
    assert cells[sizes].values.tolist() == [[2, 2, 3], [1, 1, 1]]
    assert cells[[f"boost_{size}" for size in sizes]].values.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert cells[[f"bias_{size}" for size in sizes]].values.tolist() == [[1, 2, 2], [0, 0, 0]]
    assert isinstance(cells["bias_mean"][1], Missing) and isinstance(cells["bias_se"][1], Missing)


def test_missing_trials_are_looked_for_in_every_model_setting_and_task(trials):
    whole = trials(tasks=2, subsamples=3)
    assert missing_trials(whole, "bias").empty
    last, second = whole["subsample"] == 2, (whole["language_model"] == "lm1") & (whole["task"] == "task1")
    gaps = missing_trials(whole[~(last & (whole["n"] == 80)) & ~(second & (whole["n"] == 40))], "bias")
    # at n = 80 every task has two subsamples: that is a design, no gap
    assert gaps.values.tolist() == [["demo", "lm1", 16, 40, "task1", 0, 3]]
    whole.loc[second & last, "test"] = np.nan
    assert missing_trials(whole, "boost").empty
    assert missing_trials(whole, "bias")[["n", "subsamples", "expected"]].values.tolist() == [[40, 2, 3], [80, 2, 3]]


def test_an_effect_that_an_experiment_never_has_is_no_gap(trials):
    assert missing_trials(trials(arms=("base", "extra")), "bias").empty


def test_mean_over_tasks_is_the_t_interval():
    values = np.array([0.01, -0.02, 0.03, 0.0])
    mean = mean_over_tasks(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean.interval == pytest.approx((expected.low, expected.high))
    assert (mean.tasks, mean.positive, mean.negative) == (4, 2, 1)


def test_equivalence_is_two_one_sided_t_tests():
    values = np.array([0.002, -0.001, 0.0015, 0.0005, -0.0005, 0.001])
    mean = mean_over_tasks(values)
    for test in mean.equivalence:
        below = stats.ttest_1samp(values, test.margin, alternative="less").pvalue
        above = stats.ttest_1samp(values, -test.margin, alternative="greater").pvalue
        assert test.p == pytest.approx(max(below, above))
    # an effect of exactly this size is rejected at exactly 5%, and the interval's power is that of its t test
    assert equivalence_p(mean.mean, mean.standard_error, 6, mean.excluded_beyond) == pytest.approx(0.05)
    shift, critical = mean.smallest_detectable / mean.standard_error, stats.t.ppf(0.975, 5)
    assert stats.nct.sf(critical, 5, shift) + stats.nct.cdf(-critical, 5, shift) == pytest.approx(0.8)


@pytest.mark.slow
def test_equivalence_holds_its_level_where_the_effect_is_as_large_as_the_margin():
    generator = np.random.default_rng(0)
    found = [mean_over_tasks(generator.normal(0.005, 0.004, 8)).equivalence[0].p < 0.05 for _ in range(2000)]
    assert np.mean(found) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [0.1 + 0.2, 0.3, 0.3]])
def test_tasks_without_a_spread_have_no_interval(values):
    mean = mean_over_tasks(np.array(values))
    assert mean.standard_error == 0.0
    assert all(
        isinstance(value, Missing)
        for value in (mean.interval, mean.excluded_beyond, mean.equivalence, mean.smallest_detectable)
    )


def test_tasks_at_the_ceiling_or_the_floor_are_named():
    trials = table((10, "full", 1, 10, 10, 10), (10, "none", 1, 0, 0, None), (10, "some", 1, 10, 10, 9))
    assert any("2 of 3 tasks" in note and "(full, none)" in note for note in coverage_notes(trials))
    assert not any("ceiling" in note for note in coverage_notes(table((10, "some", 1, 10, 10, 9))))


def test_language_models_with_equal_counts_are_named(trials):
    assert not any("two names" in note for note in coverage_notes(trials()))
    once = trials(models=1)
    twice = pd.concat([once, once.assign(language_model="copy")], ignore_index=True)
    (note,) = [note for note in coverage_notes(twice) if "two names" in note]
    assert "copy and lm0" in note and f"{len(once)} trials" in note
    twice.loc[len(once), "test"] += 1
    assert not any("two names" in note for note in coverage_notes(twice))


def test_one_task_has_no_interval_and_no_task_no_mean():
    one = mean_over_tasks(np.array([0.1]))
    assert one.mean == 0.1 and isinstance(one.interval, Missing) and isinstance(one.standard_error, Missing)
    for values in ([], [0.1, np.nan]):
        with pytest.raises(ValueError, match="at least one task"):
            mean_over_tasks(np.array(values))


def test_the_headline_leaves_out_tasks_without_the_effect():
    found = headline(task_effects(table((10, "a", 1, 2, 4, None), (10, "b", 1, 5, 5, 8))))
    assert found["e"]["bias"].mean == pytest.approx(0.3) and found["e"]["bias"].tasks == 1
    assert found["e"]["boost"].mean == pytest.approx(0.1) and found["e"]["boost"].tasks == 2
    assert isinstance(headline(task_effects(table((10, "a", 1, 2, 4, None))))["e"]["bias"], Missing)


def test_a_third_of_tasks_without_any_difference_comes_before_the_mean():
    assert unmoved(mean_over_tasks(np.array([0.0, 0.01, 0.02]))).startswith("1 of 3 tasks")
    assert unmoved(mean_over_tasks(np.array([0.0, 0.01, 0.02, 0.03]))) == ""
    assert unmoved(mean_over_tasks(np.zeros(3))) == ""  # without an interval there is nothing to say of it
