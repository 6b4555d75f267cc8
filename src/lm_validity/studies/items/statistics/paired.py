"""Two models on the same items: the difference of their scores, its error, a test, and what the test could find."""

from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from lm_validity.summaries import Missing

LEVEL = 0.05
POWER = 0.8
FEWEST_CLUSTERS = 10  # with fewer, a clustered standard error is itself too uncertain
NO_SPREAD = (
    "The two models have the same value on every common item, or differ by the same on each: there is no spread."
)


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference (first model less second) over `items`, in the unit of the score.

    standard_error, interval (95%): over items, or over clusters where `clusters` is not None. p: two-sided.
    first_only, second_only: items that only one of the two gets right (None for graded items). smallest_detectable:
    the difference that this test finds four times out of five. items_needed: items like these with which the observed
    difference would be found four times out of five.
    """

    difference: float
    standard_error: float
    interval: tuple[float, float] | Missing
    p: float
    items: int
    clusters: int | None
    first_only: int | None
    second_only: int | None
    smallest_detectable: float | Missing
    items_needed: int | Missing


def paired_difference(first: np.ndarray, second: np.ndarray, clusters: np.ndarray | None = None) -> PairedDifference:
    """Compare two models on (I,) common items, values of the metric without NaN; `clusters` (I,) labels or None.

    Without clusters, or with fewer than 10 of them: mean ± 1.96 sd / √I. p is that of McNemar's exact test for
    right-or-wrong items (McNemar 1947, Psychometrika 12:153-157: of the items that only one model gets right, is each
    as likely to be the first's?) and of the paired t test for graded ones. It takes items as independent draws from a
    population of items.

    With clusters, such as the subjects of a benchmark: the sandwich estimator with G / (G - 1) and t on G - 1 degrees
    of freedom (Cameron & Miller 2015, J. Human Resources 50:317-372), for items of new subjects. It fails with few
    clusters, or where one cluster holds most items.

    Raises ValueError without items.
    """
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if not len(first) or not np.isfinite(first - second).all():
        raise ValueError("a comparison takes at least one common item, and only known values")
    difference, items = first - second, len(first)
    mean = float(difference.mean())
    binary = bool(np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all())
    more, less = int((difference > 0).sum()), int((difference < 0).sum())
    first_only, second_only = (more, less) if binary else (None, None)
    groups = _clusters(clusters)
    error, freedom = _clustered_error(difference - mean, groups) if groups is not None else _plain_error(difference)
    number = None if groups is None else int(groups.max()) + 1
    if error < 1e-12:
        same, p = Missing(NO_SPREAD), mcnemar_p(more, less)
        return PairedDifference(mean, 0.0, same, p, items, number, first_only, second_only, same, same)
    reach = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
    p = mcnemar_p(more, less) if binary and groups is None else float(2 * stats.t.sf(abs(mean) / error, freedom))
    shift = noncentrality_needed(freedom)
    needed = items_needed(mean, error * np.sqrt(items), freedom)
    interval = (mean - reach, mean + reach)
    return PairedDifference(mean, error, interval, p, items, number, first_only, second_only, shift * error, needed)


def mcnemar_p(first_only: int, second_only: int) -> float:
    """Two-sided exact p of McNemar's test; 1 where the models never differ."""
    total = first_only + second_only
    return float(stats.binomtest(first_only, total, 0.5).pvalue) if total else 1.0


def unpaired_difference(difference: float, errors: tuple[float, float]) -> tuple[float, float, float]:
    """Standard error, two-sided p and smallest detectable difference of scores known by their standard errors only.

    z = difference / √(se₁² + se₂²). It takes the two scores as independent, which models on the same items are not:
    their errors move together, so it is mostly too cautious. Raises ValueError where both errors are 0.
    """
    error = float(np.hypot(*errors))
    if error == 0:
        raise ValueError("two scores without an error cannot be compared by their errors")
    p = float(2 * stats.norm.sf(abs(difference) / error))
    return error, p, noncentrality_needed(np.inf) * error


def items_needed(difference: float, deviation: float, freedom: float = np.inf) -> int | Missing:
    """Items with which `difference` is found four times out of five: ((z(.975) + z(.8)) deviation / difference)².

    deviation: the standard deviation of one item's difference (with clusters: the standard error times the root of the
    number of items). `freedom`: of the t test. Missing where the difference is 0.
    """
    if abs(difference) < 1e-12:
        return Missing("The two scores are equal: no number of items separates them.")
    return int(np.ceil((noncentrality_needed(freedom) * deviation / difference) ** 2))


def noncentrality_needed(freedom: float, level: float = LEVEL, power: float = POWER) -> float:
    """The shift, in standard errors, that a two-sided t test on `freedom` degrees of freedom finds with `power`."""
    if not np.isfinite(freedom) or freedom > 1000:
        return float(stats.norm.ppf(1 - level / 2) + stats.norm.ppf(power))
    critical = stats.t.ppf(1 - level / 2, freedom)
    return float(optimize.brentq(lambda shift: stats.nct.sf(critical, freedom, shift) - power, 0.0, 10 * critical))


def _clusters(labels: np.ndarray | None) -> np.ndarray | None:
    """Codes (I,) of at least `FEWEST_CLUSTERS` clusters that are fewer than the items, else None."""
    if labels is None:
        return None
    names, codes = np.unique(labels, return_inverse=True)
    return codes if FEWEST_CLUSTERS <= len(names) < len(codes) else None


def _plain_error(difference: np.ndarray) -> tuple[float, float]:
    freedom = max(len(difference) - 1, 1)
    spread = float(difference.std(ddof=1)) if len(difference) > 1 else 0.0
    return spread / float(np.sqrt(len(difference))), freedom


def _clustered_error(residual: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    sums = np.bincount(groups, residual)
    number = len(sums)
    return float(np.sqrt(number / (number - 1) * np.sum(sums**2))) / len(residual), number - 1
