"""Trials: pairing by key, every kind of bad row named, what is missing, and rows that do not belong together."""

import numpy as np
import pandas as pd
import pytest

from lm_validity.errors import InputError
from lm_validity.studies.bias import trials as module
from lm_validity.studies.bias.trials import base_drift, coverage_notes, missing_trials, pair_arms, provenance_notes


def test_arms_are_paired_by_key_not_by_row(rows):
    table = rows()
    shuffled = table.sample(frac=1, random_state=1).reset_index(drop=True)
    pd.testing.assert_frame_equal(pair_arms(shuffled), pair_arms(table))


@pytest.mark.parametrize(
    "column, value, message",
    [
        ("arm", "tets", "unknown arm 'tets'"),
        ("correct", 41, "41 correct answers of 40"),
        ("correct", -1, "-1 correct answers"),
        ("total", 0, "of 0"),
        ("task", None, "column 'task' is empty"),
        ("total", 39, "different numbers of test observations"),
        ("test_hash", "other", "different test sets"),
    ],
)
def test_bad_rows_are_named(rows, column, value, message):
    table = rows(models=1, sizes=(40,))
    table.loc[7, column] = value
    place = "" if column == "task" else f"task {table['task'].iloc[7]}"
    with pytest.raises(InputError, match=f"trials.parquet: row .*{place}.*{message}"):
        pair_arms(table, "trials.parquet")


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
    assert missing_trials(trials(arms=("base", "extra")), "bias").empty  # an effect that it never has is no gap


def test_tasks_at_the_ceiling_are_named(trials):
    once = trials(models=1, tasks=3)
    assert not any("ceiling" in note for note in coverage_notes(once))
    for task, share in (("task0", 1), ("task1", 0)):
        for arm in ("base", "extra", "test"):
            once[arm] = once[arm].where(once["task"] != task, share * once["total"])
    assert "2 of 3 tasks at the ceiling or the floor (task0, task1)" in " ".join(coverage_notes(once))


def test_a_base_that_drifts_with_n_is_mixed_provenance(trials):
    table = trials(tasks=6, subsamples=20, sizes=(50, 100, 200))
    assert not base_drift(table)["mixed"].any() and not [*provenance_notes(table)]
    odd = (table["n"] == 100) & (table["language_model"] == "lm1")
    table.loc[odd, "base"] = np.minimum(table.loc[odd, "base"] + 6, 100)
    (mixed,) = base_drift(table).query("mixed").itertuples()
    assert (mixed.language_model, mixed.n, mixed.reference_n) == ("lm1", 100, 50) and mixed.difference > 0.03
    (note,) = provenance_notes(table)
    assert "lm1 at m = 16" in note and f"z = {mixed.z:.1f}" in note
    for few in (trials(sizes=(50,)), trials(subsamples=1)):
        assert base_drift(few).empty


@pytest.mark.parametrize("share, z, p, mixed", [(0.7, np.inf, 0.0, True), (0.6, 0.0, 1.0, False)])
def test_constant_base_accuracies_have_no_bound_of_z_unless_they_agree(trials, share, z, p, mixed):
    table = trials(models=1, tasks=3, subsamples=3, sizes=(10, 100))
    table["base"] = np.where(table["n"] == 10, 6.0, 100 * share)
    (drift,) = base_drift(table).itertuples()
    assert (drift.z, drift.p, drift.mixed) == (z, p, mixed)
    assert drift.difference == pytest.approx(0.6 - share if drift.n == 10 else share - 0.6)
    assert "(no spread within subsamples)" in " ".join(provenance_notes(table)) or not mixed


def test_test_sets_that_differ_between_models_are_counted(trials):
    table = trials(tasks=2, subsamples=4, sizes=(50,))
    assert module.mismatched_test_sets(table).empty
    assert module.mismatched_test_sets(table.assign(test_hash=None)).empty
    odd = (table["task"] == "task1") & (table["subsample"] < 3) & (table["language_model"] == "lm1")
    table.loc[odd, "test_hash"] = "other"
    (found,) = module.mismatched_test_sets(table).itertuples()
    assert (found.task, found.subsamples, found.mismatched) == ("task1", 4, 3)
