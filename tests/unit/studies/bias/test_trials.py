"""Trials: pairing by key, and every kind of bad row named."""

import pandas as pd
import pytest

from lm_validity.errors import InputError
from lm_validity.studies.bias.trials import TRIAL, pair_arms


def test_arms_are_paired_by_key_not_by_row(rows):
    table = rows()
    shuffled = table.sample(frac=1, random_state=1).reset_index(drop=True)
    pd.testing.assert_frame_equal(pair_arms(shuffled), pair_arms(table))


def test_a_trial_has_its_three_counts(rows):
    table = rows(models=1, tasks=1, subsamples=1, sizes=(40,))
    wide = pair_arms(table)
    assert len(wide) == 1
    for arm in ("base", "extra", "test"):
        assert wide[arm].iloc[0] == table.set_index("arm").loc[arm, "correct"]


def test_missing_arms_are_missing(rows):
    wide = pair_arms(rows(arms=("extra", "test")))
    assert wide["base"].isna().all() and wide["test"].notna().all()


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
    with pytest.raises(InputError, match=message) as caught:
        pair_arms(table, "trials.parquet")
    assert "trials.parquet: row" in caught.value.problem
    if column != "task":
        assert f"task {table['task'].iloc[7]}" in caught.value.problem


def test_an_arm_twice_is_named(rows):
    table = rows(models=1)
    with pytest.raises(InputError, match="'base' occurs twice"):
        pair_arms(pd.concat([table, table.head(1)]))


def test_no_rows_is_an_error(rows):
    with pytest.raises(InputError, match="no trials"):
        pair_arms(rows().head(0))


def test_keys_are_complete(rows):
    assert not pair_arms(rows()).duplicated(TRIAL).any()
