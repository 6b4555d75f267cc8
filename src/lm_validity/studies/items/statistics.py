"""Item response, paired comparisons, and how finely a benchmark tells models apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from scipy import optimize, special, stats
from scipy.special import expit, logit

from lm_validity.statistics import NO_RUNS, Interval, RunNoise, holm
from lm_validity.words import Missing, Reason, ReasonCode, is_known, number

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
# Guessing is not modelled: where a quarter is right by chance, discriminations are .74 of the truth and intervals of
# abilities cover .70 to .85 of them (docs/how_to/items.md).
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
    """discrimination, discrimination_z, intercept (items,); abilities, ability_sds (models,).

    Posterior means and sds. The scale is that on which abilities have mean 0 and variance 1 over these models (variance
    of the means plus mean squared sd), the able ones being positive. discrimination_z is the evidence of the item's own
    answers, without the prior: approximately N(0, 1) where the discrimination is 0. converged: within `STEPS`.
    """

    discrimination: np.ndarray
    discrimination_z: np.ndarray
    intercept: np.ndarray
    abilities: np.ndarray
    ability_sds: np.ndarray
    converged: bool

    def negative(self) -> np.ndarray:
        """(items,) whether the discrimination is below zero after Benjamini & Hochberg's correction, one-sided."""
        return stats.false_discovery_control(stats.norm.cdf(self.discrimination_z)) < 0.05


def fit_2pl(correct: np.ndarray) -> ItemParameters:
    """Fit `correct` (models, items): 0 or 1, fractions where seeds were averaged, NaN where unknown.

    Raises ValueError with fewer than 3 models or items, and for values outside 0 to 1.
    """
    correct = np.asarray(correct, dtype=float)
    is_known = np.isfinite(correct)
    if min(correct.shape) < 3:
        raise ValueError("the 2PL model needs at least 3 models and 3 items")
    if (correct[is_known] < 0).any() or (correct[is_known] > 1).any():
        raise ValueError("answers lie between 0 (wrong) and 1 (right)")
    count = correct.shape[1]
    theta, variance = _start(correct, axis=1), np.full(len(correct), 0.1)
    theta = (theta - theta.mean()) / max(theta.std(), TOLERANCE)
    item = np.column_stack([np.full(count, PRIOR_MEAN[0]), _start(correct, axis=0)])  # (items, 2): a and d
    covariance = np.tile(np.diag([0.2, 0.2]), (count, 1, 1))
    mean, sds = PRIOR_MEAN, LARGEST_SDS

    def answers_less_expected() -> np.ndarray:
        """(2, models, items): answers minus expected probabilities, and expected p (1 - p); 0 where there is no answer.

        For a logit x ~ N(m, v), E expit(x) ≈ expit(k m), where k = (1 + pi v / 8)^(-1/2). E p (1 - p) is its
        derivative.
        """
        logits = np.outer(theta, item[:, 0]) + item[:, 1]
        spread = np.outer(theta**2 + variance, covariance[:, 0, 0]) + 2 * np.outer(theta, covariance[:, 0, 1])
        spread = spread + covariance[:, 1, 1]
        shrink = (1 + np.pi / 8 * (spread + np.outer(variance, item[:, 0] ** 2))) ** -0.5
        right = expit(shrink * logits)
        return np.where(is_known, np.stack([correct - right, shrink * right * (1 - right)]), 0.0)

    converged = False
    for _ in range(STEPS):
        previous_fit = item, theta
        residual, weight = answers_less_expected()
        gradient = np.column_stack([residual.T @ theta - (weight.T @ variance) * item[:, 0], residual.sum(axis=0)])
        slope, mixed, constant = weight.T @ (theta**2 + variance), weight.T @ theta, weight.sum(axis=0)
        information = np.stack([slope, mixed, mixed, constant], axis=1).reshape(-1, 2, 2) + np.diag(sds**-2.0)
        covariance = np.linalg.inv(information)
        step = np.einsum("iab,ib->ia", covariance, gradient - (item - mean) / sds**2)
        item = item + np.clip(step, -LARGEST_STEP, LARGEST_STEP)

        residual, weight = answers_less_expected()
        pull = weight @ covariance[:, 0, 0] * theta + weight @ covariance[:, 0, 1] + theta
        variance = 1 / (weight @ (item[:, 0] ** 2 + covariance[:, 0, 0]) + 1)
        theta = theta + np.clip(variance * (residual @ item[:, 0] - pull), -LARGEST_STEP, LARGEST_STEP)

        mean = (PRIOR_ITEMS * PRIOR_MEAN + item.sum(axis=0)) / (PRIOR_ITEMS + count)
        spread = (item - mean) ** 2 + covariance[:, [0, 1], [0, 1]]
        sds = np.sqrt((PRIOR_ITEMS * LARGEST_SDS**2 + spread.sum(axis=0)) / (PRIOR_ITEMS + count))
        centre = theta.mean()
        scale = np.sqrt(np.mean(variance + (theta - centre) ** 2))
        moved = np.array([[scale, 0.0], [centre, 1.0]])  # a' = a scale, d' = d + a centre
        theta, variance = (theta - centre) / scale, variance / scale**2
        item, covariance, mean = item @ moved.T, moved @ covariance @ moved.T, moved @ mean
        sds = np.minimum(np.sqrt(moved**2 @ sds**2), LARGEST_SDS)
        if max(np.abs(item - previous_fit[0]).max(), np.abs(theta - previous_fit[1]).max()) < TOLERANCE:
            converged = True
            break
    precision = 1 / covariance[:, 0, 0]
    own_precision = np.maximum(precision - sds[0] ** -2, 1e-9 * precision)  # precision of the item's answers alone
    z = (item[:, 0] * precision - mean[0] / sds[0] ** 2) / np.sqrt(own_precision)
    return ItemParameters(item[:, 0], z, item[:, 1], theta, np.sqrt(variance), converged)


def _start(correct: np.ndarray, axis: int) -> np.ndarray:
    """Logits of the shares right, half an answer added to either side."""
    return np.asarray(logit((np.nansum(correct, axis=axis) + 0.5) / (np.isfinite(correct).sum(axis=axis) + 1.0)))


# ----------------------------------------------------------------------------------------------------------------------
# Two models on the same items: the difference of their scores, a test that is its interval, and what it could find.

LEVEL = 0.05
POWER = 0.8
FEWEST_CLUSTERS = 3  # with two, the spread between them rests on one number
FARTHEST = 1 - 1e-9  # a difference of two shares
NO_SPREAD = Missing("The two models differ by the same on every common item: there is no spread.")


@dataclass(frozen=True)
class StudentTest:
    """A difference with a standard error above 0 and Student's t; `freedom` infinite: a normal test.

    runs: the noise of the models that were run several times, which is part of the error. own_freedom: the degrees of
    freedom of the rest of the error.
    """

    difference: float
    error: float
    freedom: float
    runs: tuple[RunNoise, ...] = ()
    own_freedom: float = np.inf

    @property
    def own(self) -> float:
        """The squared error without the noise of runs."""
        return max(self.error**2 - sum(noise.total for noise in self.runs), 0.0)

    def p(self, null: float) -> float:
        """Two-sided, of the hypothesis that the true difference is `null`."""
        return float(2 * stats.t.sf(abs(self.difference - null) / self.error, self.freedom))

    def interval(self, level: float = LEVEL) -> Interval[float]:
        """The interval of confidence 1 - level: the differences that the test does not reject at this level."""
        reach = float(stats.t.ppf(1 - level / 2, self.freedom)) * self.error
        return Interval(self.difference - reach, self.difference + reach)

    @property
    def shift(self) -> float:
        """The shift, in standard errors, that is found four times out of five."""
        return noncentrality_needed(round(self.freedom, 1) if self.runs else self.freedom)

    def detectable(self) -> float:
        """The difference that is found four times out of five."""
        return self.shift * self.error

    def needed(self, distance: float, items: int) -> int | Missing:
        """How many items like these `items` show that the true difference is no `distance` away, 4 times out of 5."""
        if abs(distance) < 1e-12:
            return NO_DISTANCE
        shared = sum(noise.shared for noise in self.runs)
        room = (distance / (self.shift if shared else noncentrality_needed(self.freedom))) ** 2 - shared
        return ITEMS_DO_NOT_DECIDE if room <= 0 else int(np.ceil((self.error**2 - shared) * items / room))


def with_runs(difference: float, error: float, freedom: float, runs: Sequence[RunNoise]) -> StudentTest:
    """The test of a difference whose `error` over items holds what items explain of the noise of runs, w / (n R).

    Its squared error rises by what the runs share, and its degrees of freedom are Satterthwaite's (1946, Biometrics
    Bulletin 2:110): V² / Σ (v_i² / f_i) over the runs of each model, R - 1 of them, and the items.
    """
    if not runs:
        return StudentTest(difference, error, freedom, (), freedom)
    own = max(error**2 - sum(noise.sampled for noise in runs), 0.0)
    parts = [(own, freedom), *((noise.total, noise.freedom) for noise in runs)]
    total = sum(variance for variance, _ in parts)
    return StudentTest(difference, float(np.sqrt(total)), satterthwaite(parts), tuple(runs), freedom)


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """The degrees of freedom of a sum of estimated variances, each with its own; infinite where all are 0."""
    lowered = sum(variance**2 / freedom for variance, freedom in parts)
    return float(sum(variance for variance, _ in parts) ** 2 / lowered) if lowered > 0 else np.inf


@dataclass(frozen=True)
class McNemarTest:
    """Right-or-wrong answers of two models to `items` common items: `first_only` and `second_only` are those that one
    of them alone gets right. Exact for no difference (McNemar 1947, Psychometrika 12:153-157).

    For another difference d, with s = first_only - second_only - items d:

        p(d) = 2 P(B >= (M + |s|) / 2),   B ~ binomial(M, 1/2),   M = items (v(d) - d²)

    v(d): the maximum-likelihood share of items on which the two differ, where the true difference is d (Tango 1998,
    Statistics in Medicine 17:891). So s is a score statistic with variance M, referred to a binomial distribution of
    this variance instead of a normal one (by the incomplete beta function where M is no whole number). At d = 0, M is
    the number of items on which they differ: the exact test. Where few items differ, this is too cautious far from 0:
    p(d) is at most the exact binomial p of so few items that one model alone gets right, of which a true difference d
    needs a share d. The interval is all d that p does not refuse, also where the two never differ.
    """

    items: int
    first_only: int
    second_only: int

    @property
    def difference(self) -> float:
        """The difference of the two shares of right answers, first less second, in [-1, 1]."""
        return (self.first_only - self.second_only) / self.items

    @property
    def error(self) -> float:
        """The standard error of the difference; 0 where the models differ alike on every item."""
        spread = (self.first_only + self.second_only) / self.items - self.difference**2
        return float(np.sqrt(spread / max(self.items - 1, 1)))

    def p(self, null: float) -> float:
        """Two-sided, of the hypothesis that the true difference is `null`, within -1 and 1."""
        items, differing, net = self.items, self.first_only + self.second_only, self.first_only - self.second_only
        # the larger root of items v² - b v + c = 0, within |null| and 1
        b, c = differing + null * net, null * net - (items - differing) * null**2
        share = min(max((b + np.sqrt(max(b**2 - 4 * items * c, 0.0))) / (2 * items), abs(null)), 1.0)
        size, excess = items * (share - null**2), abs(net - items * null)
        if excess >= size + 2:
            return 0.0
        score = 2 * float(special.betainc((size + excess) / 2, (size - excess) / 2 + 1, 0.5))
        # a true difference beyond the observed one needs as many items that one model alone gets right
        wins = self.first_only if null > 0 else self.second_only
        beyond = null > self.difference if null > 0 else null < self.difference
        return min(1.0, score, 2 * float(special.bdtr(wins, items, abs(null))) if beyond else 1.0)

    def interval(self, level: float = LEVEL) -> Interval[float]:
        """The interval of confidence 1 - level: the differences that the test does not reject at this level."""

        def end(far: float) -> float:
            if abs(self.difference - far) < 1e-6 or self.p(far) >= level:
                return far
            return float(optimize.brentq(lambda null: self.p(null) - level, self.difference, far))

        return Interval(end(-FARTHEST), end(FARTHEST))

    def detectable(self) -> float:
        """The difference that is found four times out of five, where the two differ on as large a share of items as
        here or, if that is below the difference, on no more items than it takes.

        From items d = 1 + z(.975) √(items v) + z(.8) √(items (v - d²)) (Connor 1987, Biometrics 43:207), in which the 1
        is what the exact test costs.
        """
        share = (self.first_only + self.second_only) / self.items

        def lacking(size: float) -> float:
            differing = max(share, size)
            spread = np.sqrt(self.items * max(differing - size**2, 0.0))
            reach = _QUANTILES[0] * np.sqrt(self.items * differing)
            return float(self.items * size - 1 - reach - _QUANTILES[1] * spread)

        return float(optimize.brentq(lacking, 0.0, 1.0)) if lacking(1.0) > 0 else 1.0

    def needed(self, distance: float, items: int) -> int | Missing:
        """How many items like these `items` show that the true difference is no `distance` away, 4 times out of 5."""
        if abs(distance) < 1e-12:
            return NO_DISTANCE
        share = max((self.first_only + self.second_only) / items, abs(distance))
        reach = _QUANTILES[0] * np.sqrt(share) + _QUANTILES[1] * np.sqrt(share - distance**2)
        # `detectable` solved for the number of items
        root = (reach + np.sqrt(reach**2 + 4 * abs(distance))) / (2 * abs(distance))
        return int(np.ceil(root**2))


Test = StudentTest | McNemarTest
_QUANTILES = tuple(float(stats.norm.ppf(share)) for share in (1 - LEVEL / 2, POWER))
FACTOR = sum(_QUANTILES)
NO_DISTANCE = Missing("The two scores are equal: no number of items separates them.")
ITEMS_DO_NOT_DECIDE = Missing(Reason("More items do not decide: what the runs share is too large.", ReasonCode.NONE))


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference (first less second) over `items`, in the unit of the score, or over `clusters` of them.

    p: two-sided. first_only, second_only: items that only one of the two gets right (None for graded items). test:
    None where the two differ by the same on every item.
    """

    difference: float
    p: float
    items: int
    clusters: int | None
    first_only: int | None
    second_only: int | None
    test: Test | None

    @property
    def interval(self) -> tuple[float, float] | Missing:
        """The 95% interval: what the same test does not refuse."""
        return NO_SPREAD if self.test is None else self.test.interval()

    @property
    def smallest_detectable(self) -> float | Missing:
        """The difference that this test finds four times out of five."""
        return NO_SPREAD if self.test is None else self.test.detectable()


def paired_difference(
    first: np.ndarray, second: np.ndarray, clusters: np.ndarray | None = None, runs: Sequence[RunNoise] = ()
) -> PairedDifference:
    """Compare two models on (I,) common items, values of the metric without NaN; `clusters` (I,) labels or None.

    Without clusters, or with fewer than 3 of them: `McNemarTest` for right-or-wrong items, and the paired t test for
    graded ones. They take items as independent draws from a population of items.

    With clusters, such as the subjects of a benchmark: the jackknife that leaves out each in turn (CR3), and t on one
    degree of freedom less than as many clusters of equal size would be, I² / Σ I_g², for items of new subjects. In
    simulations it holds the difference in .94 to .98 with 3 to 40 clusters, and in more where one has most items.

    runs: of each model whose values are means over sampled runs, their noise on these items (`with_runs`).

    Raises ValueError without items.
    """
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if not len(first) or not np.isfinite(first - second).all():
        raise ValueError("a comparison takes at least one common item, and only known values")
    difference, items = first - second, len(first)
    mean = float(difference.mean())
    binary = bool(np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all())
    n_more, less = int((difference > 0).sum()), int((difference < 0).sum())
    first_only, second_only = (n_more, less) if binary else (None, None)
    number: int | None = None
    error, freedom = float(difference.std(ddof=1) / np.sqrt(items)) if items > 1 else 0.0, max(items - 1, 1.0)
    groups = np.zeros(items, dtype=int) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    if FEWEST_CLUSTERS <= groups.max() + 1 < items:
        number, sizes = int(groups.max()) + 1, np.bincount(groups)
        without = (difference.sum() - np.bincount(groups, difference)) / (items - sizes)
        error = float(np.sqrt((number - 1) / number * np.sum((without - mean) ** 2)))
        freedom = float(max(items**2 / np.sum(sizes**2.0) - 1, 1.0))
    test: Test | None = None
    if binary and number is None:
        test = McNemarTest(items, n_more, less)
    elif error >= 1e-12:
        test = with_runs(mean, error, freedom, runs)
    p = mcnemar_p(n_more, less) if test is None else test.p(0.0)
    return PairedDifference(mean, p, items, number, first_only, second_only, test)


Labels = np.ndarray | None  # of each item its cluster, such as its subject
Noises = Sequence[RunNoise | None]  # of the sampled runs of each model


def paired_tests(correct: np.ndarray, clusters: Labels = None, runs: Noises = ()) -> np.ndarray:
    """`paired_difference` of all pairs of M models at once: (3, M, M), symmetric: p, the difference found four times
    out of five, and the number of items that both models of a pair answered.

    correct: (M, I), NaN where a model did not answer. NaN on the diagonal and for models without a common item; the
    difference also where a pair has no spread.
    """
    is_known = np.isfinite(correct)
    items = is_known.astype(float) @ is_known.T.astype(float)
    labels = None if clusters is None else np.unique(clusters, return_inverse=True)[1]
    if labels is not None and not FEWEST_CLUSTERS <= labels.max(initial=-1) + 1 < len(labels):
        labels = None
    p, detectable = np.full((2, *items.shape), np.nan)
    if labels is None and np.isin(correct[is_known], (0, 1)).all():
        only = (correct == 1).astype(float) @ (correct == 0).T.astype(float)
        differing = only + only.T
        kinds, kind = np.unique(np.stack([items, differing])[:, items > 0].astype(int), axis=1, return_inverse=True)
        sizes = np.array([McNemarTest(count, total, 0).detectable() for count, total in kinds.T.tolist()])
        p = np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(only, only.T), differing, 0.5))
        detectable[items > 0] = sizes[kind.ravel()]
    else:
        for i, j in np.argwhere(np.triu(items > 0, 1)):
            pair = _pair(correct, labels, runs, i, j)
            p[i, j] = p[j, i] = pair.p
            detectable[i, j] = detectable[j, i] = number(pair.smallest_detectable)
    none = (items == 0) | np.eye(len(items), dtype=bool)
    return np.stack([np.where(none, np.nan, p), np.where(none, np.nan, detectable), items])


def neighbour_tests(correct: np.ndarray, clusters: Labels = None, runs: Noises = ()) -> list[PairedDifference]:
    """`paired_difference` of neighbours in the ranking of the models by their means over their own items.

    The arguments are those of `paired_tests`. Neighbours without a common item are left out.

    Neighbours were chosen because they are close: where all models are equal, chance tells fewer than 5% of them apart.
    """
    is_known = np.isfinite(correct)
    means = np.array([row[has].mean() if has.any() else np.nan for row, has in zip(correct, is_known, strict=True)])
    order = [int(index) for index in np.argsort(-means, kind="stable") if np.isfinite(means[index])]
    pairs = [(first, second) for first, second in pairwise(order) if (is_known[first] & is_known[second]).any()]
    return [_pair(correct, clusters, runs, first, second) for first, second in pairs]


def _pair(correct: np.ndarray, clusters: Labels, runs: Noises, first: int, second: int) -> PairedDifference:
    """`paired_difference` of two of the models."""
    in_both = np.isfinite(correct[first] + correct[second])
    noises = [noise for noise in (runs[first], runs[second]) if noise is not None] if runs else []
    labels = None if clusters is None else clusters[in_both]
    return paired_difference(correct[first, in_both], correct[second, in_both], labels, noises)


def mcnemar_p(first_only: int, second_only: int) -> float:
    """Two-sided exact p of McNemar's test; 1 where the models never differ."""
    total = first_only + second_only
    return float(stats.binomtest(first_only, total, 0.5).pvalue) if total else 1.0


def unpaired_difference(difference: float, errors: tuple[float, float], sampling: "SamplingPart | None") -> StudentTest:
    """The test of scores known by their standard errors only: difference / √(se₁² + se₂²).

    It takes the two scores as independent, which models on the same items are not: their errors move together, so it is
    mostly too cautious. It is normal, or where sampled runs are part of the errors, t with Satterthwaite's degrees of
    freedom. Raises ValueError where both errors are 0.
    """
    error = float(np.hypot(*errors))
    if error == 0:
        raise ValueError("two scores without an error cannot be compared by their errors")
    freedom = np.inf if sampling is None else satterthwaite([(sampling.now, sampling.freedom)])
    scale = 1.0 if sampling is None or not sampling.now else (error**2 / sampling.now) ** 2
    return StudentTest(difference, error, freedom * scale)


@cache
def noncentrality_needed(freedom: float) -> float:
    """The shift, in standard errors, that a two-sided t test on `freedom` degrees of freedom finds 4 times out of 5."""
    if freedom > 1000:
        return FACTOR
    critical = stats.t.ppf(1 - LEVEL / 2, freedom)
    return float(optimize.brentq(lambda shift: stats.nct.sf(critical, freedom, shift) - POWER, 0.0, 10 * critical))


# ----------------------------------------------------------------------------------------------------------------------
# Verdicts: is one model better, worse, or not worse by more than a margin?

Decision = Literal["better", "worse", "not worse", "not known"]


@dataclass(frozen=True)
class Verdict:
    """What is decided about the second model against the first, on a benchmark or on all together.

    change, interval: second less first, higher is better; the interval's `level` is .95, or more for all together under
    several protocols. margin: the loss that is accepted; None: none was named. p, p_margin: two-sided of no change, and
    of the margin as the true loss (None without a margin), adjusted by Holm over the benchmarks. items_needed,
    runs_needed: that would decide, each by itself, where the verdict is not known: more items with as many sampled
    runs, or more runs of each model on the same items.
    """

    decision: Decision
    change: float | Missing
    interval: tuple[float, float] | Missing
    margin: float | None = None
    p: float | Missing | None = None
    p_margin: float | Missing | None = None
    items_needed: int | Missing | None = None
    runs_needed: int | Missing | None = None
    level: float = 1 - LEVEL


class SamplingPart(NamedTuple):
    """What sampled answers put into the squared error of a difference. now: with the runs that there are, on `freedom`
    degrees of freedom. once: with one run of each model."""

    now: float
    once: float
    freedom: float

    @classmethod
    def of(cls, runs: Sequence[RunNoise]) -> "SamplingPart":
        """That of the models' runs."""
        now = sum(noise.total for noise in runs)
        once = sum(noise.total * noise.runs for noise in runs)
        return cls(now, once, satterthwaite([(noise.total, noise.freedom) for noise in runs]))

    def runs_needed(self, test: Test, distance: float) -> int | Missing:
        """How many runs of each model on the same items show that the true difference is no `distance` away, four times
        out of five: with the error at which `noncentrality_needed` errors are that distance."""
        if abs(distance) < 1e-12:
            return NO_DISTANCE
        room = (distance / noncentrality_needed(np.inf)) ** 2 - max(test.error**2 - self.now, 0.0)
        return RUNS_DO_NOT_DECIDE if room <= 0 else max(1, int(np.ceil(self.once / room)))


NO_TEST = Missing(
    Reason("Neither common items nor the standard errors of both scores are known.", ReasonCode.NO_ERRORS)
)
NO_COMMON_ITEMS = Missing(Reason("Items needed are known from common items only.", ReasonCode.NO_ITEMS))
DECIDED = Missing(Reason("The verdict is known.", ReasonCode.NONE))
RUNS_DO_NOT_DECIDE = Missing(Reason("More runs do not decide: the noise of the items is too large.", ReasonCode.NONE))


class Claim(NamedTuple):
    """A benchmark on which something is decided. test: of the second model less the first, higher is better; None:
    untested. margin: in the score's unit, at least 0, None where there is none. items: behind the test, None where
    unknown. sampling: the part of sampled runs in the test's error, None where unknown."""

    test: Test | None
    margin: float | None = None
    items: int | None = None
    sampling: SamplingPart | None = None


def verdicts(claims: Sequence[Claim]) -> list[Verdict]:
    """A verdict for each of K benchmarks.

    *better*: p of no change, after Holm over the tested benchmarks, is below 5%. *worse* and *not worse*: p of the
    margin as the true loss, after Holm over the benchmarks with a margin, is below 5% on the side of a greater or a
    smaller loss; without a margin *worse* is by p of no change. Each kind of claim is false somewhere in at most 5% of
    comparisons, and in one direction in about half of that, as in any family of tests under Holm's adjustment.
    """
    changed = _adjusted([None if claim.test is None else claim.test.p(0.0) for claim in claims])
    beyond = _adjusted(
        [None if claim.test is None or claim.margin is None else claim.test.p(-claim.margin) for claim in claims]
    )
    return [_verdict(*each) for each in zip(claims, changed, beyond, strict=True)]


def _adjusted(p: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment of those that are known."""
    adjusted = iter(holm(np.array([value for value in p if value is not None])).tolist())
    return [None if value is None else next(adjusted) for value in p]


def _verdict(claim: Claim, p: float | None, p_margin: float | None) -> Verdict:
    test, margin = claim.test, claim.margin
    if test is None or p is None:
        none = None if margin is None else NO_TEST
        return Verdict("not known", NO_TEST, NO_TEST, margin, NO_TEST, none, NO_TEST, NO_TEST)
    decision: Decision = "not known"
    if p < LEVEL and test.difference > 0:
        decision = "better"
    elif p_margin is not None and p_margin < LEVEL:
        decision = "not worse" if test.difference > -(margin or 0.0) else "worse"
    elif margin is None and p < LEVEL:
        decision = "worse"
    items_needed: int | Missing = DECIDED
    runs_needed: int | Missing = DECIDED
    if decision == "not known":
        # the nearer of the claims, if the true difference is the observed one; by one test alone, without Holm
        distances = [test.difference + (margin or 0.0), *([test.difference] if margin and test.difference > 0 else [])]
        items_needed, runs_needed = NO_COMMON_ITEMS, Missing(NO_RUNS)
        if claim.items is not None:
            items_needed = _fewest([test.needed(distance, claim.items) for distance in distances])
        if claim.sampling is not None:
            runs_needed = _fewest([claim.sampling.runs_needed(test, distance) for distance in distances])
    return Verdict(decision, test.difference, test.interval(), margin, p, p_margin, items_needed, runs_needed)


def _fewest(counts: Sequence[int | Missing]) -> int | Missing:
    """The smallest number that is known, else the first reason."""
    return min((count_known for count_known in counts if is_known(count_known)), default=counts[0])


def joint_verdict(tests: Sequence[Test], margin: float | None, level: float = LEVEL) -> Verdict:
    """The mean change over the benchmarks (K,), which are fixed: the interval speaks for other items of these.

    Items of different benchmarks are independent, so the ends lie √Σ(d_k - end_k)² / K from the mean (Zou and Donner
    2008, Statistics in Medicine 27:1693, MOVER), which for one benchmark is its own interval. Runs are not: one run may
    share something over benchmarks. So where models were run several times, the squared error of the mean is that of
    the items plus the noise of the means of the runs over the benchmarks, by Satterthwaite. No p.
    """
    differences = np.array([test.difference for test in tests])
    mean, number_of = float(differences.mean()), len(tests)
    sampled = [test for test in tests if isinstance(test, StudentTest) and test.runs]
    alone = [test for test in tests if not (isinstance(test, StudentTest) and test.runs)]
    squares = np.zeros(2)
    for test in alone:
        squares += np.square(np.array(test.interval(level)) - test.difference) / number_of**2
    if sampled:
        parts = [(test.own / number_of**2, test.own_freedom) for test in sampled] + _runs_of_all(sampled, number_of)
        reach = float(stats.t.ppf(1 - level / 2, satterthwaite(parts)))
        squares += reach**2 * sum(variance for variance, _ in parts)
    low, high = mean - float(np.sqrt(squares[0])), mean + float(np.sqrt(squares[1]))
    allowed = 0.0 if margin is None else margin
    decision: Decision = "better" if low > 0 else "worse" if high < -allowed else "not known"
    if decision == "not known" and margin is not None and low > -margin:
        decision = "not worse"
    return Verdict(decision, mean, (low, high), margin, level=1 - level)


def _runs_of_all(tests: Sequence[StudentTest], number_of: int) -> list[tuple[float, float]]:
    """The noise of the runs in the mean over `number_of` benchmarks, with its degrees of freedom.

    Of a model with the same runs on all of `tests`, from the mean of each run; else from the benchmarks as independent.
    """
    parts = list[tuple[float, float]]()
    for noises in zip(*(test.runs for test in tests), strict=False):
        labels = noises[0].means.keys()
        if any(noise.means.keys() != labels for noise in noises) or len({len(test.runs) for test in tests}) > 1:
            all_noises = [noise for test in tests for noise in test.runs]
            return [(noise.total / number_of**2, noise.freedom) for noise in all_noises]
        means = {label: sum(noise.means[label] for noise in noises) / number_of for label in labels}
        whole = RunNoise(means, sum(noise.sampled for noise in noises) / number_of**2)
        parts.append((whole.total, whole.freedom))
    return parts


# ----------------------------------------------------------------------------------------------------------------------
# All pairs of models on a benchmark: by standard errors, corrected, and who may be best.


def p_by_errors(scores: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Tests of all pairs of M scores with standard errors, as if independent: (2, M, M) p and detectable.

    p = 2 P(Z > |x_i - x_j| / √(se_i² + se_j²)); detectable = (z(.975) + z(.8)) √(se_i² + se_j²), the gap that this test
    by itself finds four times out of five. NaN where an error is unknown or both are 0, and on the diagonal.
    """
    gaps, error = np.abs(scores[:, None] - scores), np.hypot(errors[:, None], errors)
    error = np.where((error > 0) & ~np.eye(len(scores), dtype=bool), error, np.nan)
    return np.stack([2 * stats.norm.sf(gaps / error), FACTOR * error])


def holm_over_pairs(p: np.ndarray) -> np.ndarray:
    """p (M, M) adjusted by Holm over the known pairs above the diagonal; symmetric, NaN where unknown."""
    first, second = np.triu_indices(len(p), 1)
    values = p[first, second]
    tested = np.isfinite(values)
    adjusted = np.full(p.shape, np.nan)
    adjusted[first[tested], second[tested]] = holm(values[tested])
    adjusted[second, first] = adjusted[first, second]
    return adjusted
