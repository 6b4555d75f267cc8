"""Averages over tasks, the sampling unit of the bias study."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from lm_validity.summaries import Missing

ONE_TASK = "One task alone has the two arms: standard errors and intervals are over tasks."


@dataclass(frozen=True)
class MeanOverTasks:
    """Mean over `tasks` with its standard error and 95% t interval, and how many tasks are above and below zero."""

    mean: float
    standard_error: float | Missing
    interval: tuple[float, float] | Missing
    tasks: int
    positive: int
    negative: int


def mean_over_tasks(values: np.ndarray) -> MeanOverTasks:
    """Mean of (T,) task effects, fractions of accuracy, none of them NaN, with mean ± t(.975, T - 1) sd / √T.

    Student's interval: it takes the tasks as draws from a population of tasks like these. It fails where a few tasks
    differ far more than the others (heavy tails), or where tasks resemble each other. One task has neither standard
    error nor interval. Raises ValueError without tasks.
    """
    values = np.asarray(values, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("the mean over tasks takes at least one task, and only known effects")
    mean, error, interval = float(values.mean()), Missing(ONE_TASK), Missing(ONE_TASK)
    if len(values) > 1:
        error = float(values.std(ddof=1) / np.sqrt(len(values)))
        reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
        interval = (mean - reach, mean + reach)
    return MeanOverTasks(mean, error, interval, len(values), int((values > 0).sum()), int((values < 0).sum()))
