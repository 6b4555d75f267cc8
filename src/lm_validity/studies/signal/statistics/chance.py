"""Is a score above that of guessing, and from when on?

A score x with standard error se is above chance c where (x - c) / se exceeds a normal quantile (one-sided). The normal
approximation is poor below about ten right answers, and a standard error says nothing of another training seed. Chance
is that of a guess among the choices: a model that always gives one letter can beat it where right answers are unevenly
spread over the letters.
"""

import numpy as np

QUANTILE = 1.959964  # one-sided 2.5%


def above_chance_from(values: np.ndarray, errors: np.ndarray, chance: float) -> int | None:
    """Index of the first checkpoint from which every score (n,) is above chance by 1.96 standard errors, to the end.

    None where the last one is not. `values` are oriented: higher is better. Since every later checkpoint has to be
    above chance too, a lucky early one does not count; the point found is rather late than early.
    """
    above = np.asarray(values, dtype=float) - QUANTILE * np.asarray(errors, dtype=float) > chance
    for_good = np.flip(np.logical_and.accumulate(np.flip(above)))
    return int(np.argmax(for_good)) if for_good.any() else None
