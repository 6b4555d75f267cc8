"""How many subsamples and tasks an experiment needs to detect an effect of a given size.

A task's mean over K subsamples varies between tasks by tau^2 (tasks differ in their true effect) and
sigma^2 / K (splits and training noise); the mean over T tasks is tested by a two-sided t test on T - 1
degrees of freedom, with noncentrality effect / sqrt((tau^2 + sigma^2 / K) / T).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from lm_validity.summaries import Missing

LEAST_SPREAD = 1e-12  # of the largest difference: a standard deviation below it is the rounding of equal numbers
TOO_FEW = "Fewer than two tasks have two subsamples: variances within and between tasks are unknown."
LARGEST_SHIFT = 1e6  # standard errors, which no t test misses; scipy's noncentral t is NaN for some larger shifts


@dataclass(frozen=True)
class VarianceComponents:
    """sd of the true effect between tasks and of one subsample's effect within a task, in accuracy."""

    between_tasks: float
    within_task: float


def variance_components(differences: np.ndarray, task: np.ndarray) -> VarianceComponents | Missing:
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
    within = float(np.sum((differences - mean[task]) ** 2) / np.sum(number - 1))
    between = float(np.var(mean, ddof=1) - np.mean(within / number))
    least = LEAST_SPREAD * float(np.abs(differences).max())
    sds = [float(np.sqrt(max(variance, 0.0))) for variance in (between, within)]
    return VarianceComponents(*(sd if sd > least else 0.0 for sd in sds))


def detection_power(
    effect: float, components: VarianceComponents, tasks: int, subsamples: int, level: float = 0.05
) -> float:
    """Probability that a two-sided t test over `tasks` (at least 2) task means finds `effect` in accuracy."""
    variance = components.between_tasks**2 + components.within_task**2 / subsamples
    if variance == 0:
        return 1.0 if effect else level
    shift = min(abs(effect) / np.sqrt(variance / tasks), LARGEST_SHIFT)
    critical = stats.t.ppf(1 - level / 2, tasks - 1)
    # scipy's far tail is NaN for some large shifts, where it is zero to any precision that matters
    wrong_side = np.nan_to_num(stats.nct.cdf(-critical, tasks - 1, shift))
    return float(stats.nct.sf(critical, tasks - 1, shift) + wrong_side)


def subsamples_needed(
    effect: float,
    components: VarianceComponents,
    tasks: int,
    power: float = 0.8,
    level: float = 0.05,
    most: int = 100_000,
) -> int | Missing:
    """Fewest subsamples per task with at least `power`; Missing where `most` of them do not suffice."""
    if detection_power(effect, components, tasks, most, level) < power:
        return Missing("More subsamples alone never suffice: the tasks differ too much, or are too few.")
    return _fewest(lambda subsamples: detection_power(effect, components, tasks, subsamples, level) >= power, 1, most)


def tasks_needed(
    effect: float,
    components: VarianceComponents,
    subsamples: int,
    power: float = 0.8,
    level: float = 0.05,
    most: int = 10_000,
) -> int | Missing:
    """Fewest tasks (at least 2) with at least `power`; Missing where `most` of them do not suffice."""
    if detection_power(effect, components, most, subsamples, level) < power:
        return Missing(f"Not even {most:,} tasks suffice with so few subsamples.")
    return _fewest(lambda tasks: detection_power(effect, components, tasks, subsamples, level) >= power, 2, most)


def smallest_detectable(
    components: VarianceComponents, tasks: int, subsamples: int, power: float = 0.8, level: float = 0.05
) -> float:
    """The effect that is found with probability `power`."""
    error = np.sqrt((components.between_tasks**2 + components.within_task**2 / subsamples) / tasks)
    if error == 0:
        return 0.0

    def excess(effect: float) -> float:
        return detection_power(effect, components, tasks, subsamples, level) - power

    # the noncentrality that a t test on one degree of freedom needs is below 100 standard errors
    return float(optimize.brentq(excess, 0.0, 100 * error))


def _fewest(enough: Callable[[int], bool], least: int, most: int) -> int:
    """The smallest number from `least` on that is enough, by bisection; `most` is."""
    low, high = least - 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
