"""Is a score above that of guessing, and from when on?

A score x with standard error se is above chance c where (x - c) / se exceeds a normal quantile (one-sided). The normal
approximation is poor below about ten right answers, and a standard error says nothing of another training seed. Chance
is that of a guess among the choices: a model that always gives one letter can beat it where right answers are unevenly
spread over the letters.
"""

import numpy as np
from scipy.stats import norm

QUANTILE = 1.959964  # one-sided 2.5%


def p_above_chance(values: np.ndarray, errors: np.ndarray, chance: float) -> np.ndarray:
    """One-sided p (...) of scores `values` (...) with standard errors (...) against `chance`; NaN in, NaN out.

    p = P(Z >= (x - c) / se). Without any error a score above chance has p = 0, any other p = 1.
    """
    gap = np.asarray(values, dtype=float) - chance
    errors = np.asarray(errors, dtype=float)
    z = np.divide(gap, errors, out=np.where(gap > 0, np.inf, -np.inf), where=errors > 0)
    return np.where(np.isnan(gap) | np.isnan(errors), np.nan, norm.sf(z))


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's (1979) step-down adjustment of p-values (tests,): family-wise error under any dependence."""
    p = np.asarray(p, dtype=float)
    order = np.argsort(p)
    stepped = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def above_chance_from(values: np.ndarray, errors: np.ndarray, chance: float) -> int | None:
    """Index of the first checkpoint from which every score (n,) is above chance by 1.96 standard errors, to the end.

    None where the last one is not. `values` are oriented: higher is better. Since every later checkpoint has to be
    above chance too, a lucky early one does not count; the point found is rather late than early.
    """
    above = np.asarray(values, dtype=float) - QUANTILE * np.asarray(errors, dtype=float) > chance
    for_good = np.flip(np.logical_and.accumulate(np.flip(above)))
    return int(np.argmax(for_good)) if for_good.any() else None
