"""The signal study's quality of a learning curve: worlds of items, and the interval over items of the page."""

from collections.abc import Callable

import numpy as np
from benchmarks.coverage.held import Result, one

from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.signal.statistics.quality import signal_quality
from lm_validity.studies.signal.statistics.resampling import draw_items, resample_item_means, resampling_interval

RESAMPLES, TRUTHS = 2000, 1500
RISES = {"no_signal": 0.0, "slow_rise": 0.1, "rise": 0.3, "steep_rise": 1.0}
WORLDS = {
    "no_signal": "Right or wrong items of random difficulty; nothing is learnt.",
    "slow_rise": "The same, and items get easier by 0.1 standard deviations of their difficulty.",
    "rise": "The same, by 0.3.",
    "steep_rise": "The same, by 1.",
}
SIZES = ("200x14", "200x27", "1000x14")


def draw_curve(world: str, items: int, checkpoints: int, rng: np.random.Generator) -> np.ndarray:
    """(checkpoints, items) right or wrong; items rise with the square root of training."""
    training = np.sqrt(np.linspace(0, 1, checkpoints))[:, None]
    level = rng.normal(size=items) + RISES[world] * training + rng.normal(size=(checkpoints, items))
    return (level > 0.5).astype(float)


def prepare(world: str, size: str, seed: list[int]) -> Callable[[np.random.Generator], dict[str, Result]]:
    """What other items would give on average is simulated once."""
    items, checkpoints = (int(part) for part in size.split("x"))
    rng = np.random.default_rng([*seed, TRUTHS])
    curves = np.array([draw_curve(world, items, checkpoints, rng).mean(axis=1) for _ in range(TRUTHS)])
    truth = float(signal_quality(curves).signal_quality.mean())

    def simulate(rng: np.random.Generator) -> dict[str, Result]:
        scores = draw_curve(world, items, checkpoints, rng)
        draws = signal_quality(resample_item_means(scores, draw_items(items, RESAMPLES, rng))).signal_quality
        value = float(signal_quality(scores.mean(axis=1)).signal_quality)
        found = resampling_interval(value, draws, 0.0, 1.0)
        return {"signal quality|items|other items of this number": one(value, Interval(found.low, found.high), truth)}

    return simulate
