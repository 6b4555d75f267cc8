"""Boost and bias of a cell: means, permutation tests, power, meta-analysis, and simulated components."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats
from scipy.special import softmax

from lm_validity.missing import Missing, Reason, ReasonCode, is_known
from lm_validity.studies.bias.statistics.latent import (
    PAIR_SCALE,
    Design,
    Formula,
    Modes,
    PairedCounts,
    build_design,
    find_modes,
)
from lm_validity.studies.bias.statistics.model import INTERVAL

# ----------------------------------------------------------------------------------------------------------------------
# How many subsamples and tasks an experiment needs to detect an effect of a given size.
#
# A task's mean over K subsamples varies between tasks by tau^2 (tasks differ in their true effect) and
# sigma^2 / K (splits and training noise); the mean over T tasks is tested by a two-sided t test on T - 1
# degrees of freedom, with noncentrality effect / sqrt((tau^2 + sigma^2 / K) / T).

LEAST_SPREAD = 1e-12  # of the largest difference: a standard deviation below it is the rounding of equal numbers
TOO_FEW = Reason(
    "Fewer than two tasks have two subsamples: variances within and between tasks are unknown.", ReasonCode.TOO_FEW
)
LEVEL, POWER = 0.05, 0.8
MOST_SUBSAMPLES, MOST_TASKS = 100_000, 10_000  # that are asked about
LARGEST_SHIFT = 1e6  # standard errors, which no t test misses; scipy's noncentral t is NaN for some larger shifts


@dataclass(frozen=True)
class EffectVariance:
    """sd of the true effect between tasks and of one subsample's effect within a task, in accuracy."""

    between_tasks: float
    within_task: float


def variance_components(differences: np.ndarray, task: np.ndarray) -> EffectVariance | Missing:
    """Moment estimates from (R,) accuracy differences and (R,) task labels; the between part is at least 0.

    Missing with fewer than 2 tasks that have 2 subsamples each. Unequal numbers of subsamples: sigma^2 is pooled,
    tau^2 is the variance of the task means less the mean of sigma^2 / K. Exactly 0 where differences are equal but
    for rounding.
    """
    labels, task = np.unique(task, return_inverse=True)
    number = np.bincount(task, minlength=len(labels))
    if (number > 1).sum() < 2:
        return Missing(TOO_FEW)
    mean = np.bincount(task, differences) / number
    within_tasks = float(np.sum((differences - mean[task]) ** 2) / np.sum(number - 1))
    between = float(np.var(mean, ddof=1) - np.mean(within_tasks / number))
    least = LEAST_SPREAD * float(np.abs(differences).max())
    sds = [float(np.sqrt(max(variance, 0.0))) for variance in (between, within_tasks)]
    return EffectVariance(*(sd if sd > least else 0.0 for sd in sds))


def detection_power(
    effect: float, components: EffectVariance, tasks: int, subsamples: int, level: float = LEVEL
) -> float:
    """Probability that a two-sided t test over `tasks` (at least 2) task means, at `level`, finds `effect` in
    accuracy."""
    variance = components.between_tasks**2 + components.within_task**2 / subsamples
    if variance == 0:
        return 1.0 if effect else level
    shift = min(abs(effect) / np.sqrt(variance / tasks), LARGEST_SHIFT)
    critical = stats.t.ppf(1 - level / 2, tasks - 1)
    # scipy's far tail is NaN for some large shifts, where it is zero to any precision that matters
    wrong_side = np.nan_to_num(stats.nct.cdf(-critical, tasks - 1, shift))
    return float(stats.nct.sf(critical, tasks - 1, shift) + wrong_side)


def subsamples_needed(effect: float, components: EffectVariance, tasks: int) -> int | Missing:
    """Fewest subsamples per task that give `POWER`; Missing where `MOST_SUBSAMPLES` of them do not suffice."""
    numbers = range(1, MOST_SUBSAMPLES + 1)
    index = bisect_left(numbers, POWER, key=lambda number: detection_power(effect, components, tasks, number))
    if index == len(numbers):
        return Missing("More subsamples alone never suffice: the tasks differ too much, or are too few.")
    return numbers[index]


def tasks_needed(effect: float, components: EffectVariance, subsamples: int) -> int | Missing:
    """Fewest tasks (at least 2) that give `POWER`; Missing where `MOST_TASKS` of them do not suffice."""
    numbers = range(2, MOST_TASKS + 1)
    index = bisect_left(numbers, POWER, key=lambda number: detection_power(effect, components, number, subsamples))
    if index == len(numbers):
        return Missing(f"Not even {MOST_TASKS:,} tasks suffice with so few subsamples.")
    return numbers[index]


def smallest_detectable(components: EffectVariance, tasks: int, subsamples: int, level: float = LEVEL) -> float:
    """The smallest effect, in units of accuracy, that a t test over tasks, at `level`, finds with probability `POWER`.

    `components`: standard deviations between and within tasks; 0 where both are 0.
    """
    error = float(np.sqrt((components.between_tasks**2 + components.within_task**2 / subsamples) / tasks))
    return error * _smallest_detectable_errors(tasks, level) if error else 0.0


@cache
def _smallest_detectable_errors(tasks: int, level: float) -> float:
    """`smallest_detectable` in standard errors of the mean over tasks."""
    of_one_error = EffectVariance(float(np.sqrt(tasks)), 0.0)

    def excess(effect: float) -> float:
        return detection_power(effect, of_one_error, tasks, 1, level) - POWER

    # the noncentrality that a t test on one degree of freedom needs is below 100 at 5%, and goes with 1 / level
    return float(optimize.brentq(excess, 0.0, 100 * LEVEL / level))


# ----------------------------------------------------------------------------------------------------------------------
# Averages over tasks, the sampling unit of the bias study: how large an effect is, and how large it is not.

ONE_TASK = Reason("Only one task has both arms. Standard errors and intervals need several.", ReasonCode.TOO_FEW)
NO_SPREAD = Reason(
    "All tasks have the same difference: without a spread between them there is no interval and no test.",
    ReasonCode.NO_INTERVAL,
)
ROUNDING = 1e-12  # accuracy; a spread below it is the rounding of equal numbers
MARGINS = (0.005, 0.0025, 0.0015)  # accuracy; sizes that an effect is tested to be smaller than


@dataclass(frozen=True)
class EquivalenceTest:
    """`p` of the test that the effect is smaller in size than `margin`, a fraction of accuracy."""

    margin: float
    p: float


@dataclass(frozen=True)
class MeanOverTasks:
    """Mean over `tasks` with its standard error and 95% t interval, and how many tasks are above and below zero.

    excluded_beyond: effects of this size or larger, up or down, are excluded at the 5% level. smallest_detectable: an
    effect of this size would have had an interval without zero four times out of five.
    """

    mean: float
    standard_error: float | Missing
    interval: tuple[float, float] | Missing
    tasks: int
    positive: int
    negative: int
    excluded_beyond: float | Missing
    equivalence: tuple[EquivalenceTest, ...] | Missing
    smallest_detectable: float | Missing


@dataclass(frozen=True)
class JointMean(MeanOverTasks):
    """experiments: over how many the interval, what it excludes, the tests and what they detect hold at once."""

    experiments: int


def simultaneous(by_experiment: Sequence[np.ndarray]) -> list[JointMean]:
    """The mean over tasks in each of K experiments, with intervals and tests that hold in all of them at once.

    Bonferroni's correction for the k experiments that have an interval: mean ± t(1 - .025 / k, T - 1) standard errors.
    """
    means = [mean_over_tasks(values) for values in by_experiment]
    tested = max(1, sum(is_known(mean.interval) for mean in means))
    return [
        JointMean(**vars(mean_over_tasks(values, tested)), experiments=tested if is_known(mean.interval) else 1)
        for values, mean in zip(by_experiment, means, strict=True)
    ]


def mean_over_tasks(values: np.ndarray, experiments: int = 1) -> MeanOverTasks:
    """Mean of (T,) task effects, fractions of accuracy, none of them NaN, with mean ± t(.975, T - 1) sd / √T.

    Student's interval: it takes the tasks as draws from a population of tasks like these. It fails where a few tasks
    differ far more than the others (heavy tails), or where tasks resemble each other. One task, and tasks that all have
    the same effect, have no interval. With several `experiments` its level, and that of the tests, is 5% over their
    number. Raises ValueError without tasks.
    """
    values = np.asarray(values, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("the mean over tasks takes at least one task, and only known effects")
    mean, tasks, level = float(values.mean()), len(values), LEVEL / experiments
    signs = int((values > 0).sum()), int((values < 0).sum())
    if tasks == 1 or np.ptp(values) <= ROUNDING:
        reason = Missing(ONE_TASK if tasks == 1 else NO_SPREAD)
        return MeanOverTasks(mean, reason if tasks == 1 else 0.0, reason, tasks, *signs, reason, reason, reason)
    spread = float(values.std(ddof=1))
    error = spread / float(np.sqrt(tasks))
    reach = float(stats.t.ppf(1 - level / 2, tasks - 1)) * error
    p_values = {margin: min(1.0, experiments * equivalence_p(mean, error, tasks, margin)) for margin in MARGINS}
    return MeanOverTasks(
        mean,
        error,
        (mean - reach, mean + reach),
        tasks,
        *signs,
        excluded_beyond=excluded_beyond(mean, error, tasks, level),
        equivalence=tuple(EquivalenceTest(margin, p) for margin, p in p_values.items()),
        smallest_detectable=smallest_detectable(EffectVariance(spread, 0.0), tasks, 1, level),
    )


def equivalence_p(mean: float, error: float, tasks: int, margin: float) -> float:
    """p of two one-sided tests (TOST, Schuirmann 1987, J. Pharmacokinet. Biopharm. 15:657-680).

    The null hypothesis is an effect of at least `margin` in size. Both one-sided t tests on tasks - 1 degrees of
    freedom must reject, so p is the larger of theirs. `mean`, `error` (above 0), `margin`: fractions of accuracy.
    It rests on the same assumptions as the t interval over tasks.
    """
    return float(stats.t.sf((margin - abs(mean)) / error, tasks - 1))


def excluded_beyond(mean: float, error: float, tasks: int, level: float = LEVEL) -> float:
    """The smallest margin whose equivalence test rejects at `level`: |mean| + t(1 - level, tasks - 1) error."""
    return abs(mean) + float(stats.t.ppf(1 - level, tasks - 1)) * error


# ----------------------------------------------------------------------------------------------------------------------
# How the effects of subsamples, or the draws of a posterior, are distributed.

DENSITY_POINTS = 25


class Density(NamedTuple):
    """A kernel density: (25,) values, and (25,) heights at these, which need not add up to 1."""

    values: np.ndarray
    heights: np.ndarray


def kernel_density(differences: np.ndarray) -> Density:
    """Normal kernels around (K,) values, none of them NaN, of the width K^-0.2 sd (Scott's rule); of 0.004, a narrow
    spike, where nothing varies."""
    spread = differences.std(ddof=1) if len(differences) > 1 else 0.0
    width = spread * len(differences) ** -0.2 or 0.004
    grid = np.linspace(differences.min() - 3 * width, differences.max() + 3 * width, DENSITY_POINTS)
    return Density(grid, stats.norm.pdf((grid[:, None] - differences) / width).sum(axis=1))


# ----------------------------------------------------------------------------------------------------------------------
# Exact paired sign-flip test.
#
# Under the null hypothesis the two arms of a trial are exchangeable, so each trial's difference of counts d_k
# is as likely -d_k. The 2^K sign patterns need not be drawn: the distribution of the sum of K independent ±d_k
# is the convolution of K two-point distributions on the integers.


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


# ----------------------------------------------------------------------------------------------------------------------
# Do two language models show an effect in the same subsamples?
#
# If the draw of texts made the effect, subsamples with a large effect in one language model would have a large one in
# the other too. The mean over tasks of Spearman's correlation over subsamples is compared with its distribution where
# the second model's subsamples are in a random order, task by task.

FEWEST_SUBSAMPLES = 3
PERMUTATIONS = 1000
NO_COMMON_TASK = "No task has three subsamples of both language models in which both effects vary."


@dataclass(frozen=True)
class CommonSubsamples:
    """Mean rank correlation over `tasks`, the middle 95% of what chance gives, and p: one-sided, greater."""

    correlation: float
    null_interval: tuple[float, float]
    p: float
    tasks: int


def common_subsamples(tasks: Sequence[np.ndarray], seed: int = 0) -> CommonSubsamples | Missing:
    """From one (2, K) array a task: the effect of K common subsamples in two language models.

    Tasks with fewer than `FEWEST_SUBSAMPLES`, or with an effect that is the same throughout, are left out. p counts the
    observed order as one of the permutations, so it is at least 1 / (`PERMUTATIONS` + 1).
    """
    generator = np.random.default_rng(seed)
    observed, chance = list[float](), np.zeros(PERMUTATIONS)
    for shared in tasks:
        if shared.shape[1] < FEWEST_SUBSAMPLES or (np.ptp(shared, axis=1) == 0).any():
            continue
        first, second = stats.zscore(stats.rankdata(shared, axis=1), axis=1) / np.sqrt(shared.shape[1])
        observed.append(float(first @ second))
        chance += generator.permuted(np.tile(second, (PERMUTATIONS, 1)), axis=1) @ first
    if not observed:
        return Missing(NO_COMMON_TASK)
    mean, chance = float(np.mean(observed)), chance / len(observed)
    low, high = np.quantile(chance, [LEVEL / 2, 1 - LEVEL / 2])
    p = (1 + int((chance >= mean - ROUNDING).sum())) / (1 + PERMUTATIONS)
    return CommonSubsamples(mean, (float(low), float(high)), p, len(observed))


def smallest_detectable_shift(differences: np.ndarray, level: float) -> float | Missing:
    """The mean difference that the sign-flip test finds at one-sided `level` with probability `POWER`.

    differences: (K,) of one task, in the unit of the result. The power of the test is taken to be that of the one-sided
    t test on K - 1 degrees of freedom, to which it is asymptotically equal (Hoeffding 1952, Ann. Math. Stat. 23, p.
    169). That is rough below about 10 differences, and where they are very skew. Missing where no K signs reach the
    level, or where the differences do not vary.
    """
    number = len(differences)
    if 2.0**-number > level:
        return Missing(
            Reason("Too few subsamples: even if all of them went up, q would not be below .05.", ReasonCode.TOO_FEW)
        )
    spread = float(np.std(differences, ddof=1))
    if spread < 1e-12:
        return Missing("The subsamples of the task do not differ: what a test could find is unknown.")
    result: float | Missing = _shift_needed(number, level) * spread / np.sqrt(number)
    return result


@cache
def _shift_needed(number: int, level: float) -> float:
    """Noncentrality, in standard errors, at which the one-sided t test over `number` values has `POWER`."""
    critical = stats.t.ppf(1 - level, number - 1)
    return float(optimize.brentq(lambda shift: stats.nct.sf(critical, number - 1, shift) - POWER, 0.0, 50 + critical))


# ----------------------------------------------------------------------------------------------------------------------
# Meta-analysis: what one would have concluded from a single split per task.
#
# Keep one random subsample of each (language model, task), fit `method + lm_type + (1|pair)` to what is left,
# and look at the posterior of beta; 500 times (section 10 of arXiv 2410.00179). With one trial per task the pair
# is the task. The only standard deviation is integrated over a grid.

SLICES = 500
MODEL_FREE_SLICES = 10_000  # these cost no fit
THRESHOLD = 0.04  # log-odds; neighbours on the RAFT leaderboard differ by an odds ratio of 1.03
ONE_SUBSAMPLE = "Every task has one subsample: a slice would be the whole data."
META_OF_ONE_TASK = Reason("There is one task, and the interval is over tasks.", ReasonCode.TOO_FEW)
SLICE_FORMULA = Formula("slice", groups={}, pair_within_model=False)
GRID = np.geomspace(0.1, 4.0, 7)  # standard deviations of the pairs, in log-odds


@dataclass(frozen=True)
class MetaAnalysis:
    """Posterior means (S,) of beta by slice, in log-odds, and shares of the slices.

    share_beyond: |mean| > THRESHOLD; share_excluding_zero: the 89% credible interval excludes 0;
    share_t_excluding_zero: over `MODEL_FREE_SLICES` slices, how often the model-free 89% t interval of the mean
    difference over the tasks excludes 0 (Missing with one task). Without an effect that would be 11% on average over
    studies; all slices share one study's trials.
    """

    means: np.ndarray
    share_beyond: float
    share_excluding_zero: float
    share_t_excluding_zero: float | Missing


def meta_analysis(counts: PairedCounts, slices: int = SLICES, seed: int = 0) -> MetaAnalysis | Missing:
    """Analyse `slices` random slices with one subsample per (language model, task)."""
    generator = np.random.default_rng(seed)
    group = counts.task * len(counts.language_models) + counts.language_model
    order = np.argsort(group, kind="stable")
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    size = np.diff(np.append(first, len(order)))
    if size.max() == 1:
        return Missing(ONE_SUBSAMPLE)
    rows = order[first + generator.integers(size, size=(slices, len(size)))]
    answers = {name: getattr(counts, name)[rows] for name in ("total", "control", "treatment")}
    layout = {name: getattr(counts, name)[rows[0]] for name in ("task", "language_model")}  # the same in all slices
    design = build_design(replace(counts, subsample=np.zeros_like(rows[0]), **layout, **answers), SLICE_FORMULA)
    means, sds = _fit_slices(design, slices)
    reach = stats.norm.ppf((1 + INTERVAL) / 2)
    return MetaAnalysis(
        means=means,
        share_beyond=float(np.mean(np.abs(means) > THRESHOLD)),
        share_excluding_zero=float(np.mean(np.abs(means) > reach * sds)),
        share_t_excluding_zero=_share_of_t_intervals(
            counts, order[first + generator.integers(size, size=(MODEL_FREE_SLICES, len(size)))]
        ),
    )


class _SliceFits(NamedTuple):
    """Posterior means and sds (slices,) of beta."""

    means: np.ndarray
    sds: np.ndarray


def _fit_slices(design: Design, slices: int) -> _SliceFits:
    """Over the grid of the pairs' sd."""
    prior = stats.halfnorm.logpdf(GRID, scale=PAIR_SCALE) + np.log(GRID)
    density, means, variances = np.empty((3, len(GRID), slices))
    modes: Modes | None = None
    for index, scale in enumerate(GRID):
        modes = find_modes(design, np.full((slices, 1), scale), modes)
        density[index] = modes.log_marginal + prior[index]
        means[index], variances[index] = modes.u[:, design.beta], modes.beta_variance
    weights = softmax(density, axis=0)
    mean = np.sum(weights * means, axis=0)
    return _SliceFits(mean, np.sqrt(np.sum(weights * (variances + (means - mean) ** 2), axis=0)))


def _share_of_t_intervals(counts: PairedCounts, rows: np.ndarray) -> float | Missing:
    """Share of slices, of which `rows` (slices, cells) are the trials, whose t interval over task means excludes 0."""
    tasks = len(counts.tasks)
    if tasks < 2:
        return Missing(META_OF_ONE_TASK)
    member = np.eye(tasks)[counts.task[rows[0]]]
    difference = (counts.treatment - counts.control) / counts.total
    values = difference[rows] @ member / member.sum(axis=0)  # (slices, tasks)
    error = values.std(axis=1, ddof=1) / np.sqrt(tasks)
    return float(np.mean(np.abs(values.mean(axis=1)) > stats.t.ppf((1 + INTERVAL) / 2, tasks - 1) * error))


# ----------------------------------------------------------------------------------------------------------------------
# When unlabelled test data do bias a score: principal components before linear regression.
#
# Appendix G of arXiv 2410.00179: 20 features of known effective rank, a linear target with noise; `base`
# regresses on the features, `extra` and `test` on the components of n other rows or of the n test rows. Fitting
# the components on the test rows inflates R^2, most where the features have no low-rank structure to find.

FEATURES = 20
INFORMATIVE = 10
NOISE = 1.0
TRAIN = 100
DATA_SEED = 123
SPLIT_SEED = 42


def simulate_pca(effective_rank: int, n: int, trials: int) -> np.ndarray:
    """(trials, 3) test R^2 under base, extra and test, of splits of one data set of 100 + 2n rows (seeds 42, 43, …).

    The number of components is int(0.6 rank).
    """
    from sklearn.datasets import make_regression
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import train_test_split

    features, target = make_regression(
        n_samples=TRAIN + 2 * n,
        n_features=FEATURES,
        n_informative=INFORMATIVE,
        effective_rank=effective_rank,
        noise=NOISE,
        random_state=DATA_SEED,
    )
    components = int(0.6 * effective_rank)
    scores = np.empty((trials, 3))
    for trial in range(trials):
        train, remaining = train_test_split(np.arange(len(target)), train_size=TRAIN, random_state=SPLIT_SEED + trial)
        extra, test = train_test_split(remaining, train_size=n, test_size=n, random_state=SPLIT_SEED + 1 + trial)
        for arm, rows in enumerate((None, extra, test)):
            projected = features
            if rows is not None:  # the directions of largest variance
                axes = np.linalg.eigh(np.cov(features[rows], rowvar=False))[1][:, ::-1][:, :components]
                projected = (features - features[rows].mean(axis=0)) @ axes
            model = LinearRegression().fit(projected[train], target[train])
            scores[trial, arm] = model.score(projected[test], target[test])
    return scores
