"""Signs in the trials that rows come from different code, data or splits: no statistics repairs that."""

import numpy as np
import pandas as pd
from scipy import stats

DRIFT_LEVEL = 1e-4  # familywise, so that a report is not marked by chance
DRIFT_SIZE = 0.01  # accuracy; smaller drifts are not worth a warning
ROUNDING = 1e-12  # accuracy; means of equal numbers differ by less


def base_drift(trials: pd.DataFrame) -> pd.DataFrame:
    """Base accuracy compared between values of n, within each (experiment, language_model, m).

    The base arm never sees the n texts, so its expected accuracy cannot depend on n. One row per n other than
    the one with most trials (`reference_n`): `base`, `reference_base`, `difference` (means over the shared
    tasks), `z` = difference over its standard error from the spread of the subsamples, `p` two-sided, `mixed`
    = p below `DRIFT_LEVEL` after Bonferroni and a difference of at least `DRIFT_SIZE`. Where accuracies differ
    between n but nowhere within, z has no bound: it is NaN, and p is 0. A value of n without tasks with two
    subsamples in common with the reference is left out.
    """
    known = trials.dropna(subset=["base"])
    known = known.assign(accuracy=known["base"] / known["total"])
    keys = ["experiment", "language_model", "m"]
    tasks = known.groupby([*keys, "n", "task"])["accuracy"].agg(["mean", "var", "count"]).reset_index()
    rows = []
    for names, group in tasks[tasks["count"] > 1].groupby(keys):
        reference_n = group.groupby("n")["count"].sum().idxmax()
        reference = group[group["n"] == reference_n].set_index("task")
        for n in sorted(set(group["n"]) - {reference_n}):
            other = group[group["n"] == n].set_index("task")
            shared = other.index.intersection(reference.index)
            if len(shared):
                drift = _drift(other.loc[shared], reference.loc[shared])
                rows.append({**dict(zip(keys, names, strict=True)), "n": n, "reference_n": reference_n, **drift})
    columns = [*keys, "n", "reference_n", "base", "reference_base", "difference", "z", "p", "mixed"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["mixed"] = (frame["p"] * len(frame) < DRIFT_LEVEL) & (frame["difference"].abs() >= DRIFT_SIZE)
    return frame


def _drift(other: pd.DataFrame, reference: pd.DataFrame) -> dict[str, float]:
    difference = float((other["mean"] - reference["mean"]).mean())
    variances = pd.concat([other["var"] / other["count"], reference["var"] / reference["count"]])
    freedom = float((pd.concat([other["count"], reference["count"]]) - 1).sum())
    error = float(np.sqrt(variances.sum())) / len(other)
    difference = difference if abs(difference) > ROUNDING else 0.0
    if error > ROUNDING:
        z = difference / error
        p = float(2 * stats.t.sf(abs(z), freedom))
    else:
        z, p = (np.nan, 0.0) if difference else (0.0, 1.0)
    means = {"base": float(other["mean"].mean()), "reference_base": float(reference["mean"].mean())}
    return {**means, "difference": difference, "z": float(z), "p": p}


def mismatched_test_sets(trials: pd.DataFrame) -> pd.DataFrame:
    """Subsamples that language models share by number but not by test set.

    One row per (experiment, m, n, task) with a mismatch: `subsamples` that at least two language models have
    with a known `test_hash`, and how many of these are `mismatched` (their hashes differ).
    """
    keys = ["experiment", "m", "n", "task"]
    known = trials.dropna(subset=["test_hash"])
    hashes = known.groupby([*keys, "subsample"])["test_hash"].agg(["nunique", "size"])
    shared = hashes[hashes["size"] > 1]
    counts = (shared["nunique"] > 1).groupby(keys).agg(subsamples="size", mismatched="sum").reset_index()
    return counts[counts["mismatched"] > 0].reset_index(drop=True)
