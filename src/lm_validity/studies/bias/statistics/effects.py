"""Boost and bias of a cell: means over tasks, permutation tests, meta-analysis, and simulated components."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats
from scipy.special import softmax

from lm_validity.studies.bias.statistics import latent
from lm_validity.studies.bias.statistics.model import INTERVAL
from lm_validity.words import Missing, Reason, ReasonCode, is_known

LEVEL, POWER = 0.05, 0.8


def smallest_detectable(error: float, tasks: int, level: float = LEVEL) -> float:
    """The smallest effect that a two-sided t test over `tasks` at `level` finds with probability `POWER`, in the unit
    of `error`, the standard error of their mean."""
    return error * _smallest_in_errors(tasks, level) if error else 0.0


@cache
def _smallest_in_errors(tasks: int, level: float) -> float:
    """The noncentrality at which the test has `POWER`."""
    critical = stats.t.ppf(1 - level / 2, tasks - 1)

    def excess(shift: float) -> float:
        # scipy's far tail is NaN for some large shifts, where it is zero to any precision that matters
        wrong_side = np.nan_to_num(stats.nct.cdf(-critical, tasks - 1, shift))
        return float(stats.nct.sf(critical, tasks - 1, shift) + wrong_side) - POWER

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


@dataclass(frozen=True)
class MeanOverTasks:
    """Mean over `tasks` with its 95% t interval, which holds over `experiments` at once.

    excluded_beyond: effects of this size or larger, up or down, are excluded at the 5% level, by two one-sided tests
    (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15:657-680). smallest_detectable: an effect of this size would have
    had an interval without zero four times out of five.
    """

    mean: float
    tasks: int
    interval: tuple[float, float] | Missing
    excluded_beyond: float | Missing
    smallest_detectable: float | Missing
    experiments: int = 1


def simultaneous(by_experiment: Sequence[np.ndarray]) -> list[MeanOverTasks]:
    """The mean over tasks in each of K experiments, with intervals and tests that hold in all of them at once.

    Bonferroni's correction for the k experiments that have an interval: mean ± t(1 - .025 / k, T - 1) standard errors.
    """
    tested = max(1, sum(is_known(mean_over_tasks(values).interval) for values in by_experiment))
    return [mean_over_tasks(values, tested) for values in by_experiment]


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
    if tasks == 1 or np.ptp(values) <= ROUNDING:
        reason = Missing(ONE_TASK if tasks == 1 else NO_SPREAD)
        return MeanOverTasks(mean, tasks, reason, reason, reason)
    error = float(values.std(ddof=1)) / float(np.sqrt(tasks))
    reach = float(stats.t.ppf(1 - level / 2, tasks - 1)) * error
    excluded, smallest = excluded_beyond(mean, error, tasks, level), smallest_detectable(error, tasks, level)
    return MeanOverTasks(mean, tasks, (mean - reach, mean + reach), excluded, smallest, experiments)


def excluded_beyond(mean: float, error: float, tasks: int, level: float = LEVEL) -> float:
    """The smallest size of which both one-sided t tests on tasks - 1 degrees of freedom exclude an effect at `level`:
    |mean| + t(1 - level, tasks - 1) error."""
    return abs(mean) + float(stats.t.ppf(1 - level, tasks - 1)) * error


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
# Meta-analysis: what one would have concluded from a single split per task.
#
# Keep one random subsample of each (language model, task), fit `method + lm_type + (1|pair)` to what is left,
# and look at the posterior of beta; 500 times (section 10 of arXiv 2410.00179). With one trial per task the pair
# is the task. The only standard deviation is integrated over a grid.

SLICES = 500
THRESHOLD = 0.04  # log-odds; neighbours on the RAFT leaderboard differ by an odds ratio of 1.03
ONE_SUBSAMPLE = "Every task has one subsample: a slice would be the whole data."
SLICE_FORMULA = latent.Formula("slice", groups={}, pair_within_model=False)
GRID = np.geomspace(0.1, 4.0, 7)  # standard deviations of the pairs, in log-odds


class MetaAnalysis(NamedTuple):
    """Shares of the slices: `beyond`, |posterior mean of beta| > THRESHOLD; `excluding_zero`, the 89% credible interval
    excludes 0, which is 11% on average over studies without an effect."""

    beyond: float
    excluding_zero: float


def meta_analysis(counts: latent.PairedCounts, slices: int = SLICES, seed: int = 0) -> MetaAnalysis | Missing:
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
    design = latent.build_design(replace(counts, subsample=np.zeros_like(rows[0]), **layout, **answers), SLICE_FORMULA)
    prior = stats.halfnorm.logpdf(GRID, scale=latent.PAIR_SCALE) + np.log(GRID)
    density, means, variances = np.empty((3, len(GRID), slices))
    modes: latent.Modes | None = None
    for index, scale in enumerate(GRID):
        modes = latent.find_modes(design, np.full((slices, 1), scale), modes)
        density[index] = modes.log_marginal + prior[index]
        means[index], variances[index] = modes.u[:, design.beta], modes.beta_variance
    weights = softmax(density, axis=0)
    mean = np.sum(weights * means, axis=0)
    sds = np.sqrt(np.sum(weights * (variances + (means - mean) ** 2), axis=0))
    outside = np.abs(mean) > stats.norm.ppf((1 + INTERVAL) / 2) * sds
    return MetaAnalysis(float(np.mean(np.abs(mean) > THRESHOLD)), float(np.mean(outside)))


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
