"""One benchmark analysed: scores, resampled scores, nulls."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.signal.items import ItemAnalysis
from lm_validity.studies.signal.scores import (
    Design,
    Options,
    Scores,
    Values,
    compute_scores,
    mean_of_known,
    mean_over_sizes,
    point_values,
)
from lm_validity.studies.signal.statistics.ranking import bootstrap_pair_consistency, coin_flip_consistency
from lm_validity.studies.signal.statistics.resampling import (
    Interval,
    exceedance_p,
    resampling_interval,
    shuffled_quality,
)


@dataclass(frozen=True)
class BenchmarkResult:
    """Everything known about one benchmark."""

    design: Design
    scores: Scores
    resampled: Scores | None  # leading axis: item resamples
    items: ItemAnalysis | None
    chance: float | None
    quality_null: dict[str, np.ndarray]  # by model: quality of shuffled checkpoints
    consistency_blocks: np.ndarray  # ranking consistency under a block bootstrap of checkpoints; NaN without
    consistency_coin: np.ndarray  # and if coins decided


def analyze_benchmark(
    design: Design, items: ItemAnalysis | None, options: Options, resamples: int, generator: np.random.Generator
) -> BenchmarkResult:
    """Scores, resampled scores and nulls of one benchmark."""
    chance = items.chance if items is not None else None
    values = point_values(design)
    resampled = None
    if items is not None and items.resampled is not None:
        resampled = compute_scores(design, items.resampled, options, chance)
    selected = {model: values[model][design.selected[model]] for model in design.curves}
    shuffled = shuffled_quality(list(selected.values()), resamples, generator, options.convention, options.ties)
    blocks, coin = _consistency_draws(design, values, resamples, generator)
    return BenchmarkResult(
        design=design,
        scores=compute_scores(design, values, options, chance),
        resampled=resampled,
        items=items,
        chance=chance,
        quality_null={model: shuffled[:, index] for index, model in enumerate(selected)},
        consistency_blocks=blocks,
        consistency_coin=coin,
    )


def _consistency_draws(
    design: Design, values: Values, resamples: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Ranking consistency (resamples,) under the block bootstrap and if coins decided, averaged as the value is.

    The pairs are those that count in the value: with a checkpoint in either window. NaN without any; the block
    bootstrap also where one of them has too few checkpoints to draw blocks from, since without it the draws would be
    of another mean than the value.
    """
    counted = [pair for pair in design.ranking_pairs if pair.base.any() and pair.later.any()]
    if not counted:
        return np.full(resamples, np.nan), np.full(resamples, np.nan)
    blocks = [
        bootstrap_pair_consistency(
            values[pair.first][pair.first_at],
            values[pair.second][pair.second_at],
            pair.base,
            pair.later,
            resamples,
            generator,
        )
        for pair in counted
    ]
    coins = [coin_flip_consistency(int(pair.later.sum()), resamples, generator) for pair in counted]
    enough = not np.isnan(blocks).any()
    return mean_over_sizes(counted, blocks) if enough else np.full(resamples, np.nan), mean_over_sizes(counted, coins)


def interval_of(value, resampled: np.ndarray | None, minimum: float = -np.inf, maximum: float = np.inf) -> Interval:
    """The resampling interval, unknown bounds without resamples."""
    return resampling_interval(float(value), np.array([]) if resampled is None else resampled, minimum, maximum)


def quality_interval(result: BenchmarkResult) -> Interval:
    resampled = None if result.resampled is None else result.resampled.mean_quality
    return interval_of(result.scores.mean_quality, resampled, 0.0, 1.0)


def quality_p(result: BenchmarkResult) -> float:
    """p of the mean quality over models against independent shuffles of each."""
    null = mean_of_known([result.quality_null[model] for model in result.design.scored])
    return exceedance_p(float(result.scores.mean_quality), null)


def overall_interval(result: BenchmarkResult) -> Interval:
    resampled = None if result.resampled is None else result.resampled.overall
    return interval_of(result.scores.overall, resampled)
