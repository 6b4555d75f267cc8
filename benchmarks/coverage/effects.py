"""The studies that have no table of models and benchmarks: effects of tasks and of subsamples (bias), curves (signal).

Tasks: the mean over tasks, its t interval and its equivalence margin. Stops: tasks that stop on the width of their
interval; bias (test - extra) and boost (extra - base) share an arm, and in every world their correlation over
subsamples is -1/2, as where the three arms are equally noisy. Curves: signal quality of a learning curve, over items.
"""

from collections.abc import Callable

import numpy as np
from benchmarks.coverage.results import NOTHING, Result, one

from lm_validity.config.load import LEAST
from lm_validity.statistics import Interval
from lm_validity.studies.bias.numbers import mean_over_tasks, over_subsamples
from lm_validity.studies.signal.statistics.quality import (
    SHARE,
    draw_items,
    resample_item_means,
    resampling_interval,
    signal_quality,
)
from lm_validity.words import Missing

MEAN, SPREAD, TASK_NOISE = 0.01, 0.01, 0.005  # accuracy: mean and standard deviation of effects, error of one
TASK_WORLDS = {
    "normal": "Effects of tasks are normal.",
    "heavy_tails": "Effects have a t distribution with 2.5 degrees of freedom.",
    "saturation": "Every second task, drawn at random, is at its ceiling and shows no effect at all.",
    "unequal_noise": "Errors of the tasks' effects differ by a factor of up to 16.",
    "families": "Tasks come in threes of a kind, which share half of the variance.",
}
TASK_SIZES = ("25", "12", "5")


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
        return np.where(shown, effects + TASK_NOISE * rng.normal(size=tasks), 0.0), MEAN / 2
    scale = np.exp(rng.uniform(-np.log(4), np.log(4), tasks)) if world == "unequal_noise" else 1.0
    return effects + TASK_NOISE * scale * rng.normal(size=tasks), MEAN


def task_results(world: str, tasks: int, rng: np.random.Generator) -> dict[str, Result]:
    """The t interval, and whether the effects called excluded do exclude no true one."""
    effects, truth = task_effects(world, tasks, rng)
    found = mean_over_tasks(effects)
    interval = margin = Result(*NOTHING)
    if not isinstance(found.interval, Missing) and not isinstance(found.excluded_beyond, Missing):
        low, high = found.interval
        interval = Result(float(low <= truth <= high), high - low)
        margin = Result(float(abs(truth) <= found.excluded_beyond), found.excluded_beyond)
    return {"mean effect|tasks|tasks like these": interval, "excluded beyond|tasks|tasks like these": margin}


NOISE, WIDTH = 0.03, 0.0125  # accuracy; standard deviation of a subsample's difference, the half-width to stop at
BATCH, MOST, ITEMS = 5, 100, 50
STOP_WORLDS = {
    "normal": "Differences of subsamples are normal.",
    "heavy_tails": "They have a t distribution with 2.5 degrees of freedom.",
    "unequal_noise": "Their standard deviations differ between tasks by a factor of up to 16.",
    "ties": "They are differences of two counts of 50 items: many are the same.",
    "skewed": "They are exponential: most tasks have a few large ones.",
}
STOP_SIZES = ("25", "5")


Differences = tuple[np.ndarray, np.ndarray]  # (tasks, subsamples) of all that there could be; true effects (tasks,)


def differences(world: str, tasks: int, rng: np.random.Generator) -> tuple[Differences, Differences]:
    """(biases, boosts). Half of a bias' variance is the shared arm's, which the boost has with the other sign."""
    if world == "ties":
        gained, lost, effects = _counts(tasks, rng)
        more, less, others = _counts(tasks, rng)
        shared, own = (rng.binomial(up, 0.5) - rng.binomial(down, 0.5) for up, down in ((gained, lost), (more, less)))
        return ((gained - lost) / ITEMS, effects), ((own - shared) / ITEMS, (others - effects) / 2)
    effects, shape = _effects(tasks, rng), (tasks, MOST)
    scale = np.exp(rng.uniform(-np.log(4), np.log(4), tasks)) if world == "unequal_noise" else np.ones(tasks)
    draw = {
        "heavy_tails": lambda: rng.standard_t(2.5, shape) / np.sqrt(5),
        "skewed": lambda: rng.exponential(size=shape) - 1,
    }.get(world, lambda: rng.normal(size=shape))
    noise, boosts = draw(), _effects(tasks, rng)
    spread = NOISE * scale[:, None]
    biased = effects[:, None] + spread * noise
    boosted = boosts[:, None] + spread * (np.sqrt(3 / 4) * draw() - noise / 2)
    return (biased, effects), (boosted, boosts)


def _effects(tasks: int, rng: np.random.Generator) -> np.ndarray:
    return MEAN + SPREAD * rng.normal(size=tasks)


def _counts(tasks: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(items gained, items lost (tasks, subsamples), true effects) of one arm against another."""
    effects = _effects(tasks, rng)
    changed = np.maximum(ITEMS * NOISE**2, np.abs(effects))  # share of items that one arm alone answers rightly
    shares = np.stack([(changed + effects) / 2, (changed - effects) / 2, 1 - changed], -1)
    gained, lost, _ = np.moveaxis(rng.multinomial(ITEMS, shares[:, None], (tasks, MOST)), -1, 0)
    return gained, lost, effects


def stopped(values: np.ndarray) -> tuple[int, float, tuple, tuple]:
    """(subsamples, mean, interval as it was looked at, interval as it is shown) of one task's differences."""
    for number in range(LEAST, MOST + 1, BATCH):
        mean, interval = _interval(values[:number])
        narrow = isinstance(interval, Missing) or interval[1] - interval[0] <= 2 * WIDTH
        if number == MOST or narrow:
            return number, mean, interval, _interval(values[:number], WIDTH if number < MOST else 0.0)[1]
    raise AssertionError("the last look ends it")


def _interval(values: np.ndarray, least: float = 0.0) -> tuple[float, tuple]:
    """Mean of a task's differences, and the page's interval of it."""
    mean = float(values.mean())
    return mean, over_subsamples(mean, (values - mean) / len(values), least).interval


def stop_results(world: str, tasks: int, rng: np.random.Generator) -> dict[str, Result]:
    """The tasks' intervals as looked at and as shown, those of their boosts, and the t intervals over tasks' means."""
    (biases, effects), (boosts, true_boosts) = differences(world, tasks, rng)
    found = [stopped(own) for own in biases]
    beside = [_interval(own[: one[0]]) for own, one in zip(boosts, found, strict=True)]
    means = [mean_over_tasks(np.array(own)).interval for own in ([one[1] for one in found], [one[0] for one in beside])]
    centre = np.array([MEAN])
    return {
        "bias of a task, as it was looked at|subsamples|this task": _held([one[2] for one in found], effects),
        "bias of a task, as shown|subsamples|this task": _held([one[3] for one in found], effects),
        "boost of a task|subsamples|this task": _held([one[1] for one in beside], true_boosts),
        "mean bias|tasks|tasks like these": _held([means[0]], centre),
        "mean boost|tasks|tasks like these": _held([means[1]], 0 * centre if world == "ties" else centre),
    }


def _held(intervals: list, truths: np.ndarray) -> Result:
    known = [(one, truth) for one, truth in zip(intervals, truths, strict=True) if not isinstance(one, Missing)]
    if not known:
        return Result(*NOTHING)
    held = [one[0] <= truth <= one[1] for one, truth in known]
    return Result(float(np.mean(held)), float(np.mean([one[1] - one[0] for one, _ in known])))


CURVE_RESAMPLES, TRUTHS = 2000, 1500
RISES = {"no_signal": 0.0, "slow_rise": 0.1, "rise": 0.3, "steep_rise": 1.0}
CURVE_WORLDS = {
    "no_signal": "Right or wrong items of random difficulty; nothing is learnt.",
    "slow_rise": "The same, and items get easier by 0.1 standard deviations of their difficulty.",
    "rise": "The same, by 0.3.",
    "steep_rise": "The same, by 1.",
}
CURVE_SIZES = ("200x14", "200x27", "1000x14")


def draw_curve(world: str, items: int, checkpoints: int, rng: np.random.Generator) -> np.ndarray:
    """(checkpoints, items) right or wrong; items rise with the square root of training."""
    training = np.sqrt(np.linspace(0, 1, checkpoints))[:, None]
    level = rng.normal(size=items) + RISES[world] * training + rng.normal(size=(checkpoints, items))
    return (level > 0.5).astype(float)


def prepare_curve(world: str, size: str, seed: list[int]) -> Callable[[np.random.Generator], dict[str, Result]]:
    """What other items would give on average is simulated once."""
    items, checkpoints = (int(part) for part in size.split("x"))
    rng = np.random.default_rng([*seed, TRUTHS])
    curves = np.array([draw_curve(world, items, checkpoints, rng).mean(axis=1) for _ in range(TRUTHS)])
    truth = float(signal_quality(curves).signal_quality.mean())

    def simulate(rng: np.random.Generator) -> dict[str, Result]:
        scores = draw_curve(world, items, checkpoints, rng)
        draws = signal_quality(resample_item_means(scores, draw_items(items, CURVE_RESAMPLES, rng))).signal_quality
        value = float(signal_quality(scores.mean(axis=1)).signal_quality)
        found = resampling_interval(value, draws, SHARE)
        return {"signal quality|items|other items of this number": one(value, Interval(*found), truth)}

    return simulate
