"""Exact paired sign-flip test.

Under the null hypothesis the two arms of a trial are exchangeable, so each trial's difference of counts d_k
is as likely -d_k. The 2^K sign patterns need not be drawn: the distribution of the sum of K independent ±d_k
is the convolution of K two-point distributions on the integers.
"""

import numpy as np


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
