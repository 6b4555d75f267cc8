"""Item response, paired comparisons, and how finely a benchmark tells models apart."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import optimize, stats
from scipy.special import expit, logit

from lm_validity.missing import Missing, Reason, ReasonCode, is_known, number

# ----------------------------------------------------------------------------------------------------------------------
# Item response theory: how hard each item is, and how well it tells able models from others (2PL).
#
#     P(model j answers item i right) = 1 / (1 + exp(-(a_i theta_j + d_i)))
#     theta_j ~ N(0, 1),   a_i ~ N(mean_a, sd_a²),   d_i ~ N(mean_d, sd_d²)
#
# a is the discrimination, -d / a the difficulty: the ability at which half the models are right (Birnbaum 1968).
# Abilities and items are estimated together, each with its uncertainty, by Gaussian variational Bayes (Bishop 2006,
# chapter 10; expectations of the logistic function as in MacKay 1992, Neural Computation 4:720-736). The means and sds
# of items come from the items themselves (empirical Bayes). Each step moves the scale to where abilities have mean 0
# and variance 1 (Liu, Rubin & Wu 1998, Biometrika 85:755-770). A fixed prior of thousands of items would set the scale
# instead.
#
# Assumptions: one ability for all items, and items that are independent given it. It fails where items share a passage,
# where a benchmark mixes abilities, and with few models: each item's two numbers rest on one answer by each model.
# Guessing is not modelled: with few choices, discriminations of hard items are too small.
#
# In simulated tables without guessing: the mean discrimination is right within 1% from 61 models on, 3% too large with
# 12 and 15% with 6. 95% intervals of abilities cover the truth in .92 to .94 of them (12 to 61 models, 200 to 14,000
# items). If 3% of the items are reversed, which no normal prior describes, it is 3% at 61 models, and the intervals
# cover .83 to .94. 14,000 items of 61 models take half a CPU-second.

PRIOR_MEAN = np.array([1.0, 0.0])  # of a and d, before the items have spoken
LARGEST_SDS = np.array([1.0, 3.0])  # also where they start; without a bound, few models have slopes without limit
PRIOR_ITEMS = 10  # as how many items the start counts: it stabilises tables of few items
STEPS = 500
TOLERANCE = 1e-3  # of a parameter
LARGEST_STEP = 1.0


@dataclass(frozen=True)
class ItemParameters:
    """discrimination, discrimination_se, discrimination_z, intercept (items,); abilities, ability_sds (models,).

    Posterior means and sds. The scale is that on which abilities have mean 0 and variance 1 over these models (variance
    of the means plus mean squared sd), the able ones being positive. discrimination_z is the evidence of the item's own
    answers, without the prior: approximately N(0, 1) where the discrimination is 0. converged: within `STEPS`.
    """

    discrimination: np.ndarray
    discrimination_se: np.ndarray
    discrimination_z: np.ndarray
    intercept: np.ndarray
    abilities: np.ndarray
    ability_sds: np.ndarray
    converged: bool

    def information(self, abilities: np.ndarray) -> np.ndarray:
        """(B,) test information at abilities (B,): sum of a² p (1 - p). Its inverse root is an ability's error."""
        right = expit(np.outer(abilities, self.discrimination) + self.intercept)
        return (right * (1 - right)) @ self.discrimination**2

    def negative(self) -> np.ndarray:
        """(items,) whether the discrimination is below zero after Benjamini & Hochberg's correction, one-sided."""
        return stats.false_discovery_control(stats.norm.cdf(self.discrimination_z)) < 0.05


def fit_2pl(correct: np.ndarray) -> ItemParameters:
    """Fit `correct` (models, items): 0 or 1, fractions where seeds were averaged, NaN where unknown.

    Raises ValueError with fewer than 3 models or items, and for values outside 0 to 1.
    """
    correct = np.asarray(correct, dtype=float)
    known = np.isfinite(correct)
    if min(correct.shape) < 3:
        raise ValueError("the 2PL model needs at least 3 models and 3 items")
    if (correct[known] < 0).any() or (correct[known] > 1).any():
        raise ValueError("answers lie between 0 (wrong) and 1 (right)")
    count = correct.shape[1]
    theta, variance = _start(correct, known, axis=1), np.full(len(correct), 0.1)
    theta = (theta - theta.mean()) / max(theta.std(), TOLERANCE)
    item = np.column_stack([np.full(count, PRIOR_MEAN[0]), _start(correct, known, axis=0)])  # (items, 2): a and d
    covariance = np.tile(np.diag([0.2, 0.2]), (count, 1, 1))
    mean, sds = PRIOR_MEAN, LARGEST_SDS
    converged = False
    for _ in range(STEPS):
        before = item, theta
        residual, weight = _answers(correct, known, theta, variance, item, covariance)
        gradient = np.column_stack([residual.T @ theta - (weight.T @ variance) * item[:, 0], residual.sum(axis=0)])
        slope, mixed, constant = weight.T @ (theta**2 + variance), weight.T @ theta, weight.sum(axis=0)
        information = np.stack([slope, mixed, mixed, constant], axis=1).reshape(-1, 2, 2) + np.diag(sds**-2.0)
        covariance = np.linalg.inv(information)
        item = item + _bounded(np.einsum("iab,ib->ia", covariance, gradient - (item - mean) / sds**2))

        residual, weight = _answers(correct, known, theta, variance, item, covariance)
        pull = weight @ covariance[:, 0, 0] * theta + weight @ covariance[:, 0, 1] + theta
        variance = 1 / (weight @ (item[:, 0] ** 2 + covariance[:, 0, 0]) + 1)
        theta = theta + _bounded(variance * (residual @ item[:, 0] - pull))

        mean = (PRIOR_ITEMS * PRIOR_MEAN + item.sum(axis=0)) / (PRIOR_ITEMS + count)
        spread = (item - mean) ** 2 + covariance[:, [0, 1], [0, 1]]
        sds = np.sqrt((PRIOR_ITEMS * LARGEST_SDS**2 + spread.sum(axis=0)) / (PRIOR_ITEMS + count))
        centre = theta.mean()
        scale = np.sqrt(np.mean(variance + (theta - centre) ** 2))
        moved = np.array([[scale, 0.0], [centre, 1.0]])  # a' = a scale, d' = d + a centre
        theta, variance = (theta - centre) / scale, variance / scale**2
        item, covariance, mean = item @ moved.T, moved @ covariance @ moved.T, moved @ mean
        sds = np.minimum(np.sqrt(moved**2 @ sds**2), LARGEST_SDS)
        if max(np.abs(item - before[0]).max(), np.abs(theta - before[1]).max()) < TOLERANCE:
            converged = True
            break
    precision = 1 / covariance[:, 0, 0]
    own = np.maximum(precision - sds[0] ** -2, 1e-9 * precision)  # precision of the item's answers alone
    z = (item[:, 0] * precision - mean[0] / sds[0] ** 2) / np.sqrt(own)
    return ItemParameters(item[:, 0], precision**-0.5, z, item[:, 1], theta, np.sqrt(variance), converged)


def _start(correct: np.ndarray, known: np.ndarray, axis: int) -> np.ndarray:
    """Logits of the shares right, half an answer added to either side."""
    return logit((np.where(known, correct, 0.0).sum(axis=axis) + 0.5) / (known.sum(axis=axis) + 1.0))


def _answers(
    correct: np.ndarray, known: np.ndarray, theta: np.ndarray, variance: np.ndarray, item: np.ndarray, cov: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(models, items): answers minus expected probabilities, and expected p (1 - p); 0 where the answer is unknown.

    For a logit x ~ N(m, v), E expit(x) ≈ expit(k m), where k = (1 + pi v / 8)^(-1/2). E p (1 - p) is its derivative.
    """
    logits = np.outer(theta, item[:, 0]) + item[:, 1]
    spread = np.outer(theta**2 + variance, cov[:, 0, 0]) + 2 * np.outer(theta, cov[:, 0, 1]) + cov[:, 1, 1]
    shrink = (1 + np.pi / 8 * (spread + np.outer(variance, item[:, 0] ** 2))) ** -0.5
    right = expit(shrink * logits)
    return np.where(known, correct - right, 0.0), np.where(known, shrink * right * (1 - right), 0.0)


def _bounded(step: np.ndarray) -> np.ndarray:
    return np.clip(step, -LARGEST_STEP, LARGEST_STEP)


# ----------------------------------------------------------------------------------------------------------------------
# Two models on the same items: the difference of their scores, its error, a test, and what the test could find.

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
    number = None
    if clusters is not None:
        names, groups = np.unique(clusters, return_inverse=True)
        number = len(names) if FEWEST_CLUSTERS <= len(names) < items else None
    if number is None:
        freedom = max(items - 1, 1)
        error = float(difference.std(ddof=1) / np.sqrt(items)) if items > 1 else 0.0
    else:
        freedom, sums = number - 1, np.bincount(groups, difference - mean)
        error = float(np.sqrt(number / freedom * np.sum(sums**2))) / items
    if error < 1e-12:
        same, p = Missing(NO_SPREAD), mcnemar_p(more, less)
        return PairedDifference(mean, 0.0, same, p, items, number, first_only, second_only, same, same)
    reach = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
    p = mcnemar_p(more, less) if binary and number is None else float(2 * stats.t.sf(abs(mean) / error, freedom))
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


def noncentrality_needed(freedom: float) -> float:
    """The shift, in standard errors, that a two-sided t test on `freedom` degrees of freedom finds 4 times out of 5."""
    if freedom > 1000:
        return float(stats.norm.ppf(1 - LEVEL / 2) + stats.norm.ppf(POWER))
    critical = stats.t.ppf(1 - LEVEL / 2, freedom)
    return float(optimize.brentq(lambda shift: stats.nct.sf(critical, freedom, shift) - POWER, 0.0, 10 * critical))


# ----------------------------------------------------------------------------------------------------------------------
# How finely a benchmark tells models apart: which neighbours in its ranking differ by more than chance.


@dataclass(frozen=True)
class Resolution:
    """Of the models of one benchmark, best first.

    neighbours: pairs of adjacent ranks. resolved: those whose difference has p < .05, each by itself.
    share_resolved: resolved / neighbours. minimal_detectable_difference: median over neighbours of what the paired test
    finds four times out of five.
    """

    neighbours: int
    resolved: int
    share_resolved: float | Missing
    minimal_detectable_difference: float | Missing


def resolution(correct: np.ndarray, clusters: np.ndarray | None = None) -> Resolution:
    """Resolution of a benchmark from `correct` (models, items), NaN where unknown; `clusters` (items,) or None.

    Models are ordered by their means over their own items; each neighbouring pair is tested on the items that both have
    (see `paired_difference`; its assumptions hold here). Neighbours were chosen because they are close: where all
    models are equal, chance resolves fewer than 5% of them. Neighbours without a common item are left out.
    """
    known = np.isfinite(correct)
    means = np.array([row[has].mean() if has.any() else np.nan for row, has in zip(correct, known, strict=True)])
    order = [int(index) for index in np.argsort(-means, kind="stable") if np.isfinite(means[index])]
    pairs = []
    for first, second in pairwise(order):
        both = known[first] & known[second]
        if both.any():
            labels = None if clusters is None else clusters[both]
            pairs.append(paired_difference(correct[first, both], correct[second, both], labels))
    if not pairs:
        none = Missing(Reason("Fewer than two models have answered the same items.", ReasonCode.TOO_FEW))
        return Resolution(0, 0, none, none)
    p = np.array([pair.p for pair in pairs])
    sizes = [number(pair.smallest_detectable) for pair in pairs if is_known(pair.smallest_detectable)]
    return Resolution(
        neighbours=len(pairs),
        resolved=int((p < LEVEL).sum()),
        share_resolved=float((p < LEVEL).mean()),
        minimal_detectable_difference=float(np.median(sizes)) if sizes else Missing("No two neighbours differ."),
    )
