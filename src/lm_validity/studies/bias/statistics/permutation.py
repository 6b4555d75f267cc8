"""Exact paired sign-flip test.

Under the null hypothesis the two arms of a trial are exchangeable, so each trial's difference of counts d_k
is as likely -d_k. The 2^K sign patterns need not be drawn: the distribution of the sum of K independent ±d_k
is the convolution of K two-point distributions on the integers.
"""

from functools import cache

import numpy as np
from scipy import optimize, stats

from lm_validity.summaries import Missing


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


def smallest_detectable_shift(differences: np.ndarray, level: float, power: float = 0.8) -> float | Missing:
    """The mean difference that the sign-flip test finds at one-sided `level` with probability `power`.

    differences: (K,) of one task, in the unit of the result. The power of the test is taken to be that of the one-sided
    t test on K - 1 degrees of freedom, to which it is asymptotically equal (Hoeffding 1952, Ann. Math. Stat. 23, p.
    169). That is rough below about 10 differences, and where they are very skew. Missing where no K signs reach the
    level, or where the differences do not vary.
    """
    number = len(differences)
    if 2.0**-number > level:
        return Missing("Too few subsamples: even if all of them went up, q would not be below .05.")
    spread = float(np.std(differences, ddof=1))
    if spread < 1e-12:
        return Missing("The subsamples of the task do not differ: what a test could find is unknown.")
    return _shift_needed(number, level, power) * spread / np.sqrt(number)


@cache
def _shift_needed(number: int, level: float, power: float) -> float:
    """Noncentrality, in standard errors, at which the one-sided t test over `number` values has `power`."""
    critical = stats.t.ppf(1 - level, number - 1)
    return float(optimize.brentq(lambda shift: stats.nct.sf(critical, number - 1, shift) - power, 0.0, 50 + critical))
