"""The studies whose intervals are simulated: their worlds, their sizes, and a function that simulates one table."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from benchmarks.coverage.effects import (
    CURVE_SIZES,
    CURVE_WORLDS,
    STOP_SIZES,
    STOP_WORLDS,
    TASK_SIZES,
    TASK_WORLDS,
    prepare_curve,
    stop_results,
    task_results,
)
from benchmarks.coverage.intervals import agreement_results, corrected_results, population_results
from benchmarks.coverage.results import Result
from benchmarks.coverage.truth import populations
from benchmarks.coverage.worlds import SIZES, WORLDS, draw_table

Simulate = Callable[[np.random.Generator], dict[str, Result]]


class Study(NamedTuple):
    """`worlds`: name to sentence; `sizes`: from small to large; `prepare(world, size, seed)` simulates the truth."""

    name: str
    title: str
    worlds: dict[str, str]
    sizes: tuple[str, ...]
    prepare: Callable[[str, str, list[int]], Simulate]


def _of_table(results: Callable) -> Callable[[str, str, list[int]], Simulate]:
    """A study whose results need a table and the populations that it is drawn from."""

    def prepare(world: str, size: str, seed: list[int]) -> Simulate:
        known = populations(WORLDS[world])

        def simulate(rng: np.random.Generator) -> dict[str, Result]:
            return results(WORLDS[world], SIZES[size], draw_table(WORLDS[world], SIZES[size], rng), known)

        return simulate

    return prepare


def _of_effects(results: Callable) -> Callable[[str, str, list[int]], Simulate]:
    return lambda world, size, seed: lambda rng: results(world, int(size), rng)


SAYS = {name: world.says for name, world in WORLDS.items()}
MODELS_BY_BENCHMARKS = ("20x8", "6x4", "61x24")
STUDIES = (
    Study("agreement", "Agreement and shares of variance", SAYS, MODELS_BY_BENCHMARKS, _of_table(agreement_results)),
    Study("population", "Agreement on other benchmarks too", SAYS, MODELS_BY_BENCHMARKS, _of_table(population_results)),
    Study("corrected", "Agreement without noise", SAYS, MODELS_BY_BENCHMARKS, _of_table(corrected_results)),
    Study("bias", "Bias: mean effect over tasks", TASK_WORLDS, TASK_SIZES, _of_effects(task_results)),
    Study("stops", "Bias: tasks that stop on a width", STOP_WORLDS, STOP_SIZES, _of_effects(stop_results)),
    Study("signal", "Signal quality of one model", CURVE_WORLDS, CURVE_SIZES, prepare_curve),
)
