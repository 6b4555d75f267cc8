"""The bias study whose tasks stop on the width of their interval: worlds of subsamples, and the page's intervals."""

import numpy as np
from benchmarks.coverage.held import NOTHING, Result
from benchmarks.coverage.tasks import MEAN, SPREAD

from lm_validity.config.bias_plan import LEAST
from lm_validity.studies.bias.by_task import interval_over_subsamples
from lm_validity.studies.bias.statistics.effects import mean_over_tasks
from lm_validity.summaries import Missing

NOISE, WIDTH = 0.03, 0.0125  # accuracy; standard deviation of a subsample's difference, the half-width to stop at
BATCH, MOST, ITEMS = 5, 100, 50
WORLDS = {
    "normal": "Differences of subsamples are normal.",
    "heavy_tails": "They have a t distribution with 2.5 degrees of freedom.",
    "unequal_noise": "Their standard deviations differ between tasks by a factor of up to 16.",
    "ties": "They are differences of two counts of 50 items: many are the same.",
    "skewed": "They are exponential: most tasks have a few large ones.",
}
SIZES = ("25", "5")


def differences(world: str, tasks: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(differences (tasks, subsamples), true effects (tasks,)) of all subsamples that there could be."""
    effects, shape = MEAN + SPREAD * rng.normal(size=tasks), (tasks, MOST)
    if world == "ties":
        changed = np.maximum(ITEMS * NOISE**2, np.abs(effects))  # share of items that one arm alone answers rightly
        shares = np.stack([(changed + effects) / 2, (changed - effects) / 2, 1 - changed], -1)
        gained, lost, _ = np.moveaxis(rng.multinomial(ITEMS, shares[:, None], shape), -1, 0)
        return (gained - lost) / ITEMS, effects
    scale = np.exp(rng.uniform(-np.log(4), np.log(4), tasks)) if world == "unequal_noise" else np.ones(tasks)
    noise = {
        "heavy_tails": lambda: rng.standard_t(2.5, shape) / np.sqrt(5),
        "skewed": lambda: rng.exponential(size=shape) - 1,
    }.get(world, lambda: rng.normal(size=shape))()
    return effects[:, None] + NOISE * scale[:, None] * noise, effects


def stopped(values: np.ndarray) -> tuple[int, float, tuple, tuple]:
    """(subsamples, mean, interval as it was looked at, interval as it is shown) of one task's differences."""
    for number in range(LEAST, MOST + 1, BATCH):
        own = values[:number]
        parts = (own - own.mean()) / number
        interval, _ = interval_over_subsamples(float(own.mean()), parts, 0.0)
        narrow = isinstance(interval, Missing) or interval[1] - interval[0] <= 2 * WIDTH
        if number == MOST or narrow:
            shown, _ = interval_over_subsamples(float(own.mean()), parts, WIDTH if number < MOST else 0.0)
            return number, float(own.mean()), interval, shown
    raise AssertionError("the last look ends it")


def stop_results(world: str, tasks: int, rng: np.random.Generator) -> dict[str, Result]:
    """The tasks' intervals as looked at and as shown, and the t interval over the tasks' means."""
    values, effects = differences(world, tasks, rng)
    found = [stopped(own) for own in values]
    mean = mean_over_tasks(np.array([one[1] for one in found]))
    return {
        "bias of a task, as it was looked at|subsamples|this task": _held([one[2] for one in found], effects),
        "bias of a task, as shown|subsamples|this task": _held([one[3] for one in found], effects),
        "mean effect|tasks|tasks like these": _held([mean.interval], np.array([MEAN])),
    }


def _held(intervals: list, truths: np.ndarray) -> Result:
    known = [(one, truth) for one, truth in zip(intervals, truths, strict=True) if not isinstance(one, Missing)]
    if not known:
        return Result(*NOTHING)
    held = [one[0] <= truth <= one[1] for one, truth in known]
    return Result(float(np.mean(held)), float(np.mean([one[1] - one[0] for one, _ in known])))
