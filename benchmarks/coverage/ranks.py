"""The intervals of ranks on one simulated table, by the package's own functions: 200 resamples instead of 2,000."""

import numpy as np
from benchmarks.coverage.held import Result, many, one
from benchmarks.coverage.worlds import LOADINGS, Table, World

from lm_validity.studies.agreement.statistics.factors import (
    RankDraws,
    component_ranks,
    ranks_over_benchmarks,
)
from lm_validity.studies.agreement.statistics.resampling import (
    Interval,
    cluster_multiplicities,
    hull,
    multiplicities,
)
from lm_validity.tables.schema import PROTOCOLS

RANK_RESAMPLES = 200


def rank_results(world: World, table: Table, rng: np.random.Generator) -> dict[str, Result]:
    """Ranks on the first component of the prepared scores: over benchmarks, over categories."""
    prepared = PROTOCOLS[1]
    scores, benchmarks = table.scores[prepared], len(table.types)
    over_benchmarks = ranks_over_benchmarks(scores, multiplicities(benchmarks, RANK_RESAMPLES, rng))
    weights = cluster_multiplicities(table.categories, RANK_RESAMPLES, rng)
    over_categories = ranks_over_benchmarks(scores, weights, int(table.categories.max()) + 1)
    able = (-table.ability).argsort().argsort() + 1.0
    found = {}
    by_benchmark = over_benchmarks.interval()
    for name, draws, interval, truth in (
        ("benchmarks|benchmarks like these", over_benchmarks, by_benchmark, able),
        ("categories|categories like these", over_categories, hull(over_categories.interval(), by_benchmark), able),
    ):
        found |= _rank_results(name, draws, interval, truth)
    if world.category:
        truth = _rank_in_categories(world, table)
        found |= _rank_results("benchmarks|these categories", over_benchmarks, by_benchmark, truth)
    return found


def _rank_results(name: str, draws: RankDraws, interval: Interval, truth: np.ndarray) -> dict[str, Result]:
    """All models' intervals, and that of the model ranked first."""
    best = int(np.nanargmin(draws.rank))
    return {
        f"rank|{name}": many(interval, truth),
        f"rank of the first|{name}": one(draws.rank[best], Interval(*(end[best] for end in interval)), truth[best]),
    }


def _rank_in_categories(world: World, table: Table) -> np.ndarray:
    """Ranks over endlessly many benchmarks of these categories: their own parts average out."""
    loading = LOADINGS[PROTOCOLS[1]]
    common = np.sqrt((1 - loading**2) * world.category)
    parts = [loading * table.ability[:, None] + common * part[:, None] for part in table.by_category.T]
    return component_ranks(np.concatenate(parts, axis=1))
