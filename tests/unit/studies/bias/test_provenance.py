"""Rows that do not belong together are found, others not."""

import numpy as np
import pytest

from lm_validity.missing import Missing
from lm_validity.studies.bias.trials import base_drift, mismatched_test_sets


def test_a_base_that_drifts_with_n_is_mixed_provenance(trials):
    table = trials(tasks=6, subsamples=20, sizes=(50, 100, 200))
    assert not base_drift(table)["mixed"].any()
    odd = (table["n"] == 100) & (table["language_model"] == "lm1")
    table.loc[odd, "base"] = np.minimum(table.loc[odd, "base"] + 6, 100)
    (mixed,) = base_drift(table).query("mixed").itertuples()
    assert (mixed.language_model, mixed.n, mixed.reference_n) == ("lm1", 100, 50) and mixed.difference > 0.03


def test_one_n_or_one_subsample_cannot_drift(trials):
    assert base_drift(trials(sizes=(50,))).empty
    assert base_drift(trials(subsamples=1)).empty


@pytest.mark.parametrize("share, z, p, mixed", [(0.7, None, 0.0, True), (0.6, 0.0, 1.0, False)])
def test_constant_base_accuracies_have_no_z_unless_they_agree(trials, share, z, p, mixed):
    table = trials(models=1, tasks=3, subsamples=3, sizes=(10, 100))
    table["base"] = np.where(table["n"] == 10, 6.0, 100 * share)
    (drift,) = base_drift(table).itertuples()
    assert (None if isinstance(drift.z, Missing) else drift.z, drift.p, drift.mixed) == (z, p, mixed)
    assert drift.difference == pytest.approx(0.6 - share if drift.n == 10 else share - 0.6)


def test_test_sets_that_differ_between_models_are_counted(trials):
    table = trials(tasks=2, subsamples=4, sizes=(50,))
    assert mismatched_test_sets(table).empty
    odd = (table["task"] == "task1") & (table["subsample"] < 3) & (table["language_model"] == "lm1")
    table.loc[odd, "test_hash"] = "other"
    (found,) = mismatched_test_sets(table).itertuples()
    assert (found.task, found.subsamples, found.mismatched) == ("task1", 4, 3)


def test_unknown_test_sets_are_no_mismatch(trials):
    table = trials(tasks=2, subsamples=4, sizes=(50,))
    table["test_hash"] = None
    assert mismatched_test_sets(table).empty
