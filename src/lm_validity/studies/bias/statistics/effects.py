"""Averages over tasks, the sampling unit of the bias study: how large an effect is, and how large it is not."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from lm_validity.studies.bias.statistics.power import VarianceComponents, smallest_detectable
from lm_validity.summaries import Missing

ONE_TASK = "Only one task has both arms. Standard errors and intervals need several."
NO_SPREAD = "All tasks have the same difference: without a spread between them there is no interval and no test."
ROUNDING = 1e-12  # accuracy; a spread below it is the rounding of equal numbers
LEVEL = 0.05
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


def mean_over_tasks(values: np.ndarray) -> MeanOverTasks:
    """Mean of (T,) task effects, fractions of accuracy, none of them NaN, with mean ± t(.975, T - 1) sd / √T.

    Student's interval: it takes the tasks as draws from a population of tasks like these. It fails where a few tasks
    differ far more than the others (heavy tails), or where tasks resemble each other. One task, and tasks that all have
    the same effect, have no interval. Raises ValueError without tasks.
    """
    values = np.asarray(values, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("the mean over tasks takes at least one task, and only known effects")
    mean, tasks = float(values.mean()), len(values)
    signs = int((values > 0).sum()), int((values < 0).sum())
    if tasks == 1 or np.ptp(values) <= ROUNDING:
        why = Missing(ONE_TASK if tasks == 1 else NO_SPREAD)
        return MeanOverTasks(mean, why if tasks == 1 else 0.0, why, tasks, *signs, why, why, why)
    spread = float(values.std(ddof=1))
    error = spread / float(np.sqrt(tasks))
    reach = float(stats.t.ppf(1 - LEVEL / 2, tasks - 1)) * error
    return MeanOverTasks(
        mean,
        error,
        (mean - reach, mean + reach),
        tasks,
        *signs,
        excluded_beyond=excluded_beyond(mean, error, tasks),
        equivalence=tuple(EquivalenceTest(margin, equivalence_p(mean, error, tasks, margin)) for margin in MARGINS),
        smallest_detectable=smallest_detectable(VarianceComponents(spread, 0.0), tasks, 1),
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
