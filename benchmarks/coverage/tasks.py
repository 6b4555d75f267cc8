"""The bias study's mean over tasks: worlds of task effects, and the t interval and equivalence margin of the page."""

import numpy as np
from benchmarks.coverage.held import NOTHING, Result

from lm_validity.studies.bias.statistics.effects import mean_over_tasks
from lm_validity.summaries import Missing

MEAN, SPREAD, NOISE = 0.01, 0.01, 0.005  # accuracy: mean and standard deviation of effects, error of one
WORLDS = {
    "normal": "Effects of tasks are normal.",
    "heavy_tails": "Effects have a t distribution with 2.5 degrees of freedom.",
    "saturation": "Every second task, drawn at random, is at its ceiling and shows no effect at all.",
    "unequal_noise": "Errors of the tasks' effects differ by a factor of up to 16.",
    "families": "Tasks come in threes of a kind, which share half of the variance.",
}
SIZES = ("25", "12", "5")


def task_effects(world: str, tasks: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """(observed effects (tasks,), mean effect of tasks like these)."""
    own = rng.normal(size=tasks)
    if world == "heavy_tails":
        own = rng.standard_t(2.5, tasks) / np.sqrt(5)
    if world == "families":
        own = np.sqrt(0.5) * (own + rng.normal(size=tasks)[np.arange(tasks) // 3])
    effects = MEAN + SPREAD * own
    if world == "saturation":
        shown = rng.random(tasks) < 0.5
        return np.where(shown, effects + NOISE * rng.normal(size=tasks), 0.0), MEAN / 2
    scale = np.exp(rng.uniform(-np.log(4), np.log(4), tasks)) if world == "unequal_noise" else 1.0
    return effects + NOISE * scale * rng.normal(size=tasks), MEAN


def task_results(world: str, tasks: int, rng: np.random.Generator) -> dict[str, Result]:
    """The t interval, and whether the effects called excluded do exclude no true one."""
    effects, truth = task_effects(world, tasks, rng)
    found = mean_over_tasks(effects)
    interval = margin = Result(*NOTHING)
    if not isinstance(found.interval, Missing) and not isinstance(found.excluded_beyond, Missing):
        low, high = found.interval
        interval = Result(float(low <= truth <= high), high - low)
        margin = Result(float(abs(truth) <= found.excluded_beyond), found.excluded_beyond)
    return {
        "mean effect|tasks|tasks like these": interval,
        "excluded beyond|tasks|tasks like these": margin,
    }
