"""Exact paired sign-flip test, and its table over tasks with Benjamini-Hochberg adjustment.

Under the null hypothesis the two arms of a trial are exchangeable, so each trial's difference of counts d_k
is as likely -d_k. The 2^K sign patterns need not be drawn: the distribution of the sum of K independent ±d_k
is the convolution of K two-point distributions on the integers.
"""

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.table import CELL


def sign_flip_p(differences: np.ndarray) -> float:
    """Exact one-sided p: P(sum of ±d_k >= observed sum), for (K,) integer differences (treated - control).

    At least 2^-K. Raises ValueError for an empty or non-integer array.
    """
    observed = np.asarray(differences)
    steps = np.rint(observed).astype(np.int64)
    if len(steps) == 0 or not np.array_equal(steps, observed):
        raise ValueError("the sign-flip test takes at least one whole-number difference")
    sizes = np.abs(steps[steps != 0])
    # counting how many flips go up: sum of ±d = 2 * (sum of the d that go up) - sum |d|
    distribution = np.ones(1)
    for size in sizes:
        longer = np.zeros(len(distribution) + size)
        longer[: len(distribution)] += 0.5 * distribution
        longer[size:] += 0.5 * distribution
        distribution = longer
    up = int(sizes.sum() + steps.sum()) // 2
    return float(min(1.0, distribution[up:].sum()))


def permutation_table(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per (experiment, language_model, m, n, task, effect): `p` (one-sided, greater), `p_adjusted`.

    Adjusted by Benjamini & Hochberg (1995) over the tasks of a cell, each effect by itself.
    """
    rows = []
    for effect, (treatment, control) in EFFECTS.items():
        known = trials.dropna(subset=[treatment, control])
        differences = (known[treatment] - known[control]).groupby([known[key] for key in [*CELL, "task"]])
        p = differences.agg(lambda values: sign_flip_p(values.to_numpy())).rename("p").reset_index()
        p["p_adjusted"] = p.groupby(CELL)["p"].transform(stats.false_discovery_control)
        rows.append(p.assign(effect=effect))
    return pd.concat(rows, ignore_index=True)[[*CELL, "task", "effect", "p", "p_adjusted"]]
