"""Signs in the trials that rows come from different code, data or splits: no statistics repairs that."""

from dataclasses import replace
from typing import TypedDict

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.studies.bias.summary import Drift, Mismatch
from lm_validity.studies.bias.table import SETTING
from lm_validity.summaries import Missing, is_known

DRIFT_LEVEL = 1e-4  # familywise, so that a report is not marked by chance
DRIFT_SIZE = 0.01  # accuracy; smaller drifts are not worth a warning
ROUNDING = 1e-12  # accuracy; means of equal numbers differ by less
NO_SPREAD = "No task's base accuracies vary within either value of n, but those of the two differ: z has no bound."


def base_drift(trials: pd.DataFrame) -> tuple[Drift, ...]:
    """Base accuracy compared between values of n, within each (experiment, language_model, m).

    The base arm never sees the n texts, so its expected accuracy cannot depend on n. One row for each n other than the
    one with most trials (`reference_n`): `base`, `reference_base`, `difference` (means over the shared tasks), `z` =
    difference over its standard error from the spread of the subsamples, `p` two-sided, `mixed` = p below
    `DRIFT_LEVEL` after Bonferroni and a difference of at least `DRIFT_SIZE`. Where accuracies differ between n but
    nowhere within, z has no bound and p is 0. A value of n without tasks with two subsamples in common with the
    reference is left out.
    """
    known = trials.dropna(subset=["base"])
    known = known.assign(accuracy=known["base"] / known["total"])
    keys = ["experiment", "language_model", "m"]
    tasks = known.groupby([*keys, "n", "task"])["accuracy"].agg(["mean", "var", "count"]).reset_index()
    rows = []
    for (experiment, language_model, m), group in tasks[tasks["count"] > 1].groupby(keys):
        reference_n = group.groupby("n")["count"].sum().idxmax()
        reference = group[group["n"] == reference_n].set_index("task")
        for n in sorted(set(group["n"]) - {reference_n}):
            other = group[group["n"] == n].set_index("task")
            shared = other.index.intersection(reference.index)
            if len(shared):
                means = _compare_means(other.loc[shared], reference.loc[shared])
                rows.append(Drift(experiment, language_model, m, n, int(reference_n), **means, mixed=False))
    return tuple(replace(row, mixed=_is_mixed(row, len(rows))) for row in rows)


def _is_mixed(row: Drift, comparisons: int) -> bool:
    return row.p * comparisons < DRIFT_LEVEL and abs(row.difference) >= DRIFT_SIZE


class _Means(TypedDict):
    """Fields of `Drift`."""

    base: float
    reference_base: float
    difference: float
    z: float | Missing
    p: float


def _compare_means(other: pd.DataFrame, reference: pd.DataFrame) -> _Means:
    difference = float((other["mean"] - reference["mean"]).mean())
    variances = pd.concat([other["var"] / other["count"], reference["var"] / reference["count"]])
    freedom = float((pd.concat([other["count"], reference["count"]]) - 1).sum())
    error = float(np.sqrt(variances.sum())) / len(other)
    difference = difference if abs(difference) > ROUNDING else 0.0
    z: float | Missing
    if error > ROUNDING:
        z = difference / error
        p = float(2 * stats.t.sf(abs(difference / error), freedom))
    else:
        z, p = (Missing(NO_SPREAD), 0.0) if difference else (0.0, 1.0)
    base, reference_base = float(other["mean"].mean()), float(reference["mean"].mean())
    return {"base": base, "reference_base": reference_base, "difference": difference, "z": z, "p": p}


def mismatched_test_sets(trials: pd.DataFrame) -> tuple[Mismatch, ...]:
    """Subsamples that language models share by number but not by test set.

    One row for each (experiment, m, n, task) with a mismatch: `subsamples` that at least two language models have
    with a known `test_hash`, and how many of these are `mismatched` (their hashes differ).
    """
    keys = [*SETTING, "task"]
    known = trials.dropna(subset=["test_hash"])
    hashes = known.groupby([*keys, "subsample"])["test_hash"].agg(["nunique", "size"])
    shared = hashes[hashes["size"] > 1]
    counts = (shared["nunique"] > 1).groupby(keys).agg(subsamples="size", mismatched="sum").reset_index()
    return tuple(Mismatch(**row) for row in counts[counts["mismatched"] > 0].to_dict("records"))


def provenance_notes(drift: tuple[Drift, ...], mismatches: tuple[Mismatch, ...]) -> tuple[str, ...]:
    """What a reader must know about rows that come from different code, data or splits."""
    found = [
        f"Mixed provenance: the base accuracy of {row.language_model} at m = {row.m} is {row.base:.4f} for n = "
        f"{row.n} and {row.reference_base:.4f} for n = {row.reference_n} "
        f"({f'z = {row.z:.1f}' if is_known(row.z) else 'no spread within subsamples'}), though the base arm never sees "
        "the n texts. These rows come from different code or data; trends over n at this m are confounded."
        for row in drift
        if row.mixed
    ]
    if mismatches:
        places: dict[tuple[int, int], int] = {}
        for row in mismatches:
            places[row.m, row.n] = places.get((row.m, row.n), 0) + row.mismatched
        listed = ", ".join(f"{number} at m = {m}, n = {n}" for (m, n), number in places.items())
        names = ", ".join(sorted({row.task for row in mismatches}))
        found.append(
            f"Subsamples of the same number had different test sets in different language models ({listed}; tasks "
            f"{names}). The formulas equations and notebooks take models to share these sets and are wrong here. The "
            "formula overdispersed is not affected."
        )
    return tuple(found)
