"""Statistics that several studies share, so that each is defined once."""

import zlib
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.stats import norm

LEVEL = 0.05  # family-wise, of the tests against chance

Ends_co = TypeVar("Ends_co", bound=float | np.ndarray, covariant=True)


class Interval(NamedTuple, Generic[Ends_co]):
    """The ends of an interval, scalars or arrays of one shape; NaN where it is undefined."""

    low: Ends_co
    high: Ends_co


def section_generator(section: str, seed: int = 0) -> np.random.Generator:
    """The random numbers of one section of a report, by its name: what another section draws changes none of them."""
    return np.random.default_rng([seed, zlib.crc32(section.encode())])


def p_above_chance(values: np.ndarray, errors: np.ndarray, chance: float) -> np.ndarray:
    """One-sided p (...) of scores `values` (...) with standard errors (...) against `chance`; NaN in, NaN out.

    p = P(Z >= (x - c) / se). Without any error a score above chance has p = 0, any other p = 1. Scores are oriented:
    higher is better.
    """
    gap = np.asarray(values, dtype=float) - chance
    errors = np.asarray(errors, dtype=float)
    z = np.divide(gap, errors, out=np.where(gap > 0, np.inf, -np.inf), where=errors > 0)
    return np.where(np.isnan(gap) | np.isnan(errors), np.nan, norm.sf(z))


def holm(p: np.ndarray) -> np.ndarray:
    """p-values (tests,) adjusted so that any false finding among them has at most the nominal probability.

    Holm 1979, Scand. J. Statist. 6:65-70: the k-th smallest of K is multiplied by K - k + 1. Valid under any
    dependence.
    """
    p = np.asarray(p, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def models_above_chance(values: np.ndarray, errors: np.ndarray, chance: float) -> int:
    """How many models (models,) score above chance: one-sided tests at 5% with Holm's adjustment over the models.

    Over the models with a score and a standard error. Scores and chance are oriented: higher is better.
    """
    p = p_above_chance(values, errors, chance)
    return int((holm(p[~np.isnan(p)]) <= LEVEL).sum())
