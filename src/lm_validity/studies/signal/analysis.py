"""One benchmark analysed: scores, resampled scores, nulls."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lm_validity.config.sections import SignalConventions
from lm_validity.statistics import section_generator
from lm_validity.studies.signal.alignment import own_ends
from lm_validity.studies.signal.items import ItemAnalysis
from lm_validity.studies.signal.scores import (
    Design,
    Pair,
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
    persistence,
)
from lm_validity.studies.signal.statistics.resampling import drawn_around, shuffled_quality, walked_quality
from lm_validity.studies.signal.summary import SKIPPED, Draws, Value
from lm_validity.summaries import Missing, is_known
from lm_validity.words import Reason, ReasonCode

NO_NOISE = Missing(Reason("It needs a standard error of every model's scores, or items.", ReasonCode.NO_ERRORS))


@dataclass(frozen=True)
class ConsistencyDraws:
    """Ranking consistency (resamples,) under a block bootstrap of checkpoints, and if coins decided."""

    blocks: Draws
    coin: Draws


@dataclass(frozen=True)
class BenchmarkResult:
    """Everything known about one benchmark."""

    design: Design
    scores: Scores
    resampled: Values | Missing  # curves (resamples, n) by model: means of resampled items, else normal draws
    resampled_scores: Scores | Missing  # leading axis: resamples
    interval_source: str | Missing  # items or standard errors
    items: ItemAnalysis | Missing
    chance: Value  # the score of guessing, in the metric's own direction
    errors: dict[str, np.ndarray]  # by model: standard errors (n,) of its curve; NaN where unknown
    noise: np.ndarray | Missing  # (points, models, models) covariances of the scored models' errors, common points
    end_noise: np.ndarray | Missing  # (models, models) the same at the last checkpoint of each
    quality_null: dict[str, np.ndarray]  # by model: quality of shuffled checkpoints
    quality_walk: dict[str, np.ndarray]  # by model: quality of its random walks
    consistency: ConsistencyDraws
    fitted: ConsistencyDraws

    @property
    def chance_level(self) -> float | None:
        """Chance as statistics take it: oriented as the curves are."""
        return self.design.direction * self.chance if is_known(self.chance) else None

    def draws(self, read: Callable[[Scores], np.ndarray]) -> Draws:
        """A score under the resamples, or why there are none."""
        return self.resampled_scores if isinstance(self.resampled_scores, Missing) else read(self.resampled_scores)


def analyze_benchmark(
    design: Design,
    items: ItemAnalysis | Missing,
    chance: Value,
    options: SignalConventions,
    resamples: int,
) -> BenchmarkResult:
    """Scores, resampled scores and nulls of one benchmark."""
    level = design.direction * chance if is_known(chance) else None
    values = point_values(design)
    selected = {model: curve.at(design.selected[model]) for model, curve in design.curves.items()}
    curves = [curve.values for curve in selected.values()]
    of_shuffles, of_order, of_walks, of_fits = (
        section_generator(f"{section} {design.benchmark}") for section in ("shuffles", "order", "walks", "fits")
    )
    shuffled = shuffled_quality(curves, resamples, of_shuffles, options.convention, options.ties)
    consistency = _consistency_draws(design.ranking_pairs, values, resamples, of_order)
    names = [curve.checkpoints for curve in selected.values()]
    walked = walked_quality(curves, names, resamples, of_walks, options.convention, options.ties)
    errors = {model: _errors(curve.errors, items, model) for model, curve in design.curves.items()}
    noise, end_noise = _noise(design, errors, items)
    resampled, source = _resampled(values, errors, items, resamples)
    return BenchmarkResult(
        design=design,
        scores=compute_scores(design, values, options, level),
        resampled=resampled,
        resampled_scores=resampled
        if isinstance(resampled, Missing)
        else compute_scores(design, resampled, options, level),
        interval_source=source,
        items=items,
        chance=chance,
        errors=errors,
        noise=noise,
        end_noise=end_noise,
        quality_null={model: shuffled[:, index] for index, model in enumerate(selected)},
        quality_walk={model: walked[:, index] for index, model in enumerate(selected)},
        consistency=consistency,
        fitted=_consistency_draws(design.fitted_pairs, values, resamples, of_fits),
    )


def _errors(in_table: np.ndarray, items: ItemAnalysis | Missing, model: str) -> np.ndarray:
    """Standard errors (n,) from the scores table, else from the items."""
    if isinstance(items, Missing) or not np.isnan(in_table).any():
        return in_table
    return items.errors[model]


def _noise(
    design: Design, errors: Values, items: ItemAnalysis | Missing
) -> tuple[np.ndarray | Missing, np.ndarray | Missing]:
    """Covariances of the scored models' errors at their common points and at the end of each: over the items, else of
    standard errors taken as independent between models. Missing where a model lacks one. The noise of training, where
    it was measured, comes on top: each model was trained once."""
    training = 0.0 if isinstance(design.training_noise, Missing) else design.training_noise.sd**2
    more = training * np.eye(len(design.scored))
    if isinstance(items, ItemAnalysis):
        return items.noise + more, items.end_noise + more
    found = []
    for places in (design.alignment.places, own_ends([design.curves[model] for model in design.scored])):
        at = np.array([one.read(errors[model]) for model, one in zip(design.scored, places, strict=True)])
        found.append(at.T[:, :, None] ** 2 * np.eye(len(at)) + more)
    noise, end_noise = (NO_NOISE if np.isnan(one).any() else one for one in found)
    return noise, end_noise if isinstance(end_noise, Missing) else end_noise[0]


def _resampled(
    values: Values, errors: Values, items: ItemAnalysis | Missing, resamples: int
) -> tuple[Values | Missing, str | Missing]:
    """Curves under resampled items, else drawn around their values by their standard errors; and which of both."""
    if not resamples:
        return SKIPPED, SKIPPED
    if isinstance(items, ItemAnalysis):
        return items.resampled, "items"
    if any(np.isnan(found).any() for found in errors.values()):
        none = Missing(
            Reason(f"{items.reason} Not all of its scores have a standard error either.", ReasonCode.NO_ERRORS)
        )
        return none, none
    generator = np.random.default_rng(0)
    drawn = {model: drawn_around(values[model], errors[model], resamples, generator) for model in values}
    return drawn, "standard errors"


def _consistency_draws(
    pairs: list[Pair], values: Values, resamples: int, generator: np.random.Generator
) -> ConsistencyDraws:
    """Draws averaged as the value is.

    The pairs are those that count in the value: with a checkpoint in either window. Missing without any; the block
    bootstrap also where one of them has too few checkpoints to draw blocks from, since without it the draws would be
    of another mean than the value.
    """
    counted = [pair for pair in pairs if pair.counts]
    if not counted:
        none = Missing("No pair of architectures has a checkpoint in either window.")
        return ConsistencyDraws(none, none)
    blocks = [
        bootstrap_pair_consistency(
            *pair.read(values),
            *pair.windows,
            resamples,
            generator,
        )
        for pair in counted
    ]
    coins = [_coins(pair, values, resamples, generator) for pair in counted]
    if any(pair.windows[1].sum() < MINIMUM_FOR_BLOCKS for pair in counted):
        few = Missing(
            Reason(
                f"One of its pairs has fewer than {MINIMUM_FOR_BLOCKS} later checkpoints to draw blocks from.",
                ReasonCode.TOO_FEW,
            )
        )
        return ConsistencyDraws(few, mean_over_sizes(counted, coins))
    return ConsistencyDraws(mean_over_sizes(counted, blocks), mean_over_sizes(counted, coins))


def _coins(pair: Pair, values: Values, resamples: int, generator: np.random.Generator) -> np.ndarray:
    base, later = pair.windows
    first, second = pair.read(values)
    gap = (first - second)[base | later]
    return coin_flip_consistency(int(later.sum()), resamples, generator, persistence(gap))


def quality_null(result: BenchmarkResult) -> np.ndarray:
    """Mean quality over models (resamples,) if the checkpoints of each were in random order, independently."""
    return mean_of_known([result.quality_null[model] for model in result.design.scored])


def quality_walk(result: BenchmarkResult) -> np.ndarray:
    """Mean quality over models (resamples,) if the curves drifted."""
    return mean_of_known([result.quality_walk[model] for model in result.design.scored])
