"""One benchmark analysed: scores, resampled scores, nulls."""

from collections.abc import Callable
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
from lm_validity.studies.signal.statistics.ranking import (
    MINIMUM_FOR_BLOCKS,
    bootstrap_pair_consistency,
    coin_flip_consistency,
)
from lm_validity.studies.signal.statistics.resampling import shuffled_quality
from lm_validity.studies.signal.summary import Draws, Value
from lm_validity.summaries import Missing, is_known


@dataclass(frozen=True)
class BenchmarkResult:
    """Everything known about one benchmark."""

    design: Design
    scores: Scores
    resampled: Scores | Missing  # leading axis: item resamples
    items: ItemAnalysis | Missing
    quality_null: dict[str, np.ndarray]  # by model: quality of shuffled checkpoints
    consistency_blocks: Draws  # ranking consistency under a block bootstrap of checkpoints
    consistency_coin: Draws  # and if coins decided

    @property
    def chance(self) -> Value:
        """The score of guessing."""
        return self.items if isinstance(self.items, Missing) else self.items.chance

    @property
    def chance_level(self) -> float | None:
        """Chance as statistics take it."""
        return self.chance if is_known(self.chance) else None

    def draws(self, read: Callable[[Scores], np.ndarray]) -> Draws:
        """A score under the item resamples, or why there are none."""
        return self.resampled if isinstance(self.resampled, Missing) else read(self.resampled)


def analyze_benchmark(
    design: Design,
    items: ItemAnalysis | Missing,
    options: Options,
    resamples: int,
    generator: np.random.Generator,
) -> BenchmarkResult:
    """Scores, resampled scores and nulls of one benchmark."""
    chance = items.chance if isinstance(items, ItemAnalysis) and is_known(items.chance) else None
    values = point_values(design)
    resampled = items if isinstance(items, Missing) else items.resampled
    if not isinstance(resampled, Missing):
        resampled = compute_scores(design, resampled, options, chance)
    selected = {model: values[model][design.selected[model]] for model in design.curves}
    shuffled = shuffled_quality(list(selected.values()), resamples, generator, options.convention, options.ties)
    blocks, coin = _consistency_draws(design, values, resamples, generator)
    return BenchmarkResult(
        design=design,
        scores=compute_scores(design, values, options, chance),
        resampled=resampled,
        items=items,
        quality_null={model: shuffled[:, index] for index, model in enumerate(selected)},
        consistency_blocks=blocks,
        consistency_coin=coin,
    )


def _consistency_draws(
    design: Design, values: Values, resamples: int, generator: np.random.Generator
) -> tuple[Draws, Draws]:
    """Ranking consistency (resamples,) under the block bootstrap and if coins decided, averaged as the value is.

    The pairs are those that count in the value: with a checkpoint in either window. Missing without any; the block
    bootstrap also where one of them has too few checkpoints to draw blocks from, since without it the draws would be
    of another mean than the value.
    """
    counted = [pair for pair in design.ranking_pairs if pair.base.any() and pair.later.any()]
    if not counted:
        none = Missing("No pair of architectures has a checkpoint in either window.")
        return none, none
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
    if any(pair.later.sum() < MINIMUM_FOR_BLOCKS for pair in counted):
        few = Missing(f"One of its pairs has fewer than {MINIMUM_FOR_BLOCKS} later checkpoints to draw blocks from.")
        return few, mean_over_sizes(counted, coins)
    return mean_over_sizes(counted, blocks), mean_over_sizes(counted, coins)


def quality_null(result: BenchmarkResult) -> np.ndarray:
    """Mean quality over models (resamples,) if the checkpoints of each were in random order, independently."""
    return mean_of_known([result.quality_null[model] for model in result.design.scored])
