"""The parts of the summary that belong to one benchmark, out of its results."""

from collections.abc import Callable
from functools import partial

import numpy as np

from lm_validity.config.sections import SignalConventions
from lm_validity.statistics import models_above_chance
from lm_validity.studies.signal.alignment import Alignment
from lm_validity.studies.signal.analysis import BenchmarkResult, quality_null, quality_walk
from lm_validity.studies.signal.items import CONTROLS, SIZES, too_few_checkpoints
from lm_validity.studies.signal.scores import (
    FITTED_WINDOWS,
    Design,
    OrderScores,
    Pair,
    Scores,
    compliance_of,
    mean_of_known,
    point_values,
    ranked_curves,
)
from lm_validity.studies.signal.settling import separable_at_end
from lm_validity.studies.signal.statistics.quality import (
    MINIMUM_RELIABILITY,
    above_chance_from,
    fewest_checkpoints,
    net_rise,
    quality_by_errors,
)
from lm_validity.studies.signal.statistics.ranking import (
    NORMALISATIONS,
    PairConsistency,
    RankingWindows,
)
from lm_validity.studies.signal.summary import (
    SKIPPED,
    BenchmarkQuality,
    Bounds,
    CommonPoints,
    ComplianceScore,
    Consistency,
    ConsistencyScore,
    ModelQuality,
    PairOrder,
    Value,
    bounds,
    known_bounds,
    p_value,
)
from lm_validity.summaries import Missing, known, number
from lm_validity.words import Reason, ReasonCode

_NO_POINT = "A curve needs two selected checkpoints."


def model_quality(result: BenchmarkResult, model: str, options: SignalConventions) -> ModelQuality:
    """Scores of one model's curve."""
    quality = result.scores.quality[model]
    curve = result.design.curves[model].at(result.design.selected[model])
    null = result.quality_null[model]
    few = too_few_checkpoints(options)
    monotonicity = known(float(quality.monotonicity), _NO_POINT)
    autocorrelation = known(float(quality.autocorrelation), few)
    value = known(float(quality.signal_quality), few)

    def interval(score: Value, name: str) -> Bounds:
        return bounds(score, result.draws(lambda scores: getattr(scores.quality[model], name)), 0.0, 1.0)

    def of_null(read: Callable[[np.ndarray], float]) -> Value:
        if isinstance(value, Missing) or not null.size:
            return value if isinstance(value, Missing) else SKIPPED
        return float(read(null))

    empty = Missing("No checkpoint of this curve is selected.")
    return ModelQuality(
        monotonicity=monotonicity,
        monotonicity_interval=interval(monotonicity, "monotonicity"),
        rank_correlation=known(float(quality.rank_correlation), _NO_POINT),
        autocorrelation=autocorrelation,
        autocorrelation_interval=interval(autocorrelation, "autocorrelation"),
        signal_quality=value,
        signal_quality_interval=interval(value, "signal_quality"),
        signal_quality_null_p=p_value(value, null),
        signal_quality_null_mean=of_null(np.mean),
        signal_quality_null_95=of_null(lambda draws: np.quantile(draws, 0.95)),
        signal_quality_walk_p=p_value(value, result.quality_walk[model]),
        noise_free_quality=_noise_free(result, model, "value"),
        reliability=_noise_free(result, model, "reliability"),
        above_chance_from_b=_above_chance_from(result, result.design.curves[model].tokens_b, model),
        checkpoints=len(curve.values),
        net_rise=float(net_rise(curve.values)) if len(curve.values) else empty,
        degenerate=bool(quality.degenerate) if len(curve.values) else empty,
    )


def benchmark_quality(result: BenchmarkResult, options: SignalConventions) -> BenchmarkQuality:
    """Means over the benchmark's models."""
    few = too_few_checkpoints(options)
    value = known(float(result.scores.mean_quality), few)
    by_size = {size: known(float(mean), few) for size, mean in result.scores.quality_by_size.items()}
    again = result.design.training_noise
    correlations = [result.scores.quality[model].rank_correlation for model in result.design.scored]
    return BenchmarkQuality(
        signal_quality=value,
        signal_quality_interval=bounds(value, result.draws(lambda scores: scores.mean_quality), 0.0, 1.0),
        signal_quality_null_p=p_value(value, quality_null(result)),
        signal_quality_walk_p=p_value(value, quality_walk(result)),
        rank_correlation=known(float(mean_of_known(correlations)), _NO_POINT),
        direction_assumed=result.design.direction_assumed,
        signal_quality_by_size=by_size,
        signal_quality_by_size_interval={
            size: bounds(mean, result.draws(partial(_quality_of_size, size)), 0.0, 1.0)
            for size, mean in by_size.items()
        },
        signal_quality_by_items=result.items if isinstance(result.items, Missing) else result.items.by_items,
        signal_quality_by_errors=_quality_by_errors(result, options),
        noise_free_quality=_mean_noise_free(result),
        noise_free_quality_interval=_noise_free_interval(result, options),
        models=len(result.design.scored),
        items=result.items if isinstance(result.items, Missing) else result.items.items,
        chance=result.chance,
        models_above_chance=_models_above_chance(result),
        above_chance_from_b=_mean_above_chance_from(result),
        interval_source=result.interval_source,
        training_noise=again if isinstance(again, Missing) else again.sd,
        reruns=0 if isinstance(again, Missing) else again.reruns,
        separable_at_end=separable_at_end(result),
        common=_common_points(result.design.alignment),
    )


def _common_points(found: Alignment) -> CommonPoints | Missing:
    if found.reason:
        return Missing(found.reason)
    between = int((found.interpolated > 0).sum())
    last = known(float(found.tokens_b[-1]), "Tokens are unknown.")
    return CommonPoints(found.by, len(found.progress), between, last, found.at_end)


def _quality_of_size(size: str, scores: Scores) -> np.ndarray:
    return scores.quality_by_size[size]


def _noise_free(result: BenchmarkResult, model: str, what: str) -> Value:
    """Noise-free quality or reliability of a model that counts in the benchmark's scores."""
    if isinstance(result.items, Missing):
        return result.items
    noise_free = result.items.noise_free
    if isinstance(noise_free, Missing):
        return noise_free
    if model not in noise_free:
        return Missing("The model is kept for comparison and has no noise-free signal quality.")
    why = "This needs eight checkpoints and a curve that is not constant."
    found = noise_free[model]
    if what == "value" and found.reliability < MINIMUM_RELIABILITY:
        why = "More than half of the curve's variance is noise of its items."
    return known(getattr(found, what), why)


def _mean_noise_free(result: BenchmarkResult) -> Value:
    values = [_noise_free(result, model, "value") for model in result.design.scored]
    missing = [value for value in values if isinstance(value, Missing)]
    return missing[0] if missing else float(np.mean([number(value) for value in values]))


def _noise_free_interval(result: BenchmarkResult, options: SignalConventions) -> Bounds:
    mean = _mean_noise_free(result)
    if isinstance(mean, Missing):
        return mean
    if isinstance(result.items, Missing):
        return result.items
    why = (
        "It needs resampling, and 40 items or 20 subjects. The figure must exist with each of 20 groups of items left "
    )
    why += "out."
    low, high = result.items.noise_free_interval
    return known_bounds(low, high, why)


def _quality_by_errors(result: BenchmarkResult, options: SignalConventions) -> dict[int, float] | Missing | None:
    """Signal quality at fewer items from their number and the standard errors; None where the items are known."""
    if not isinstance(result.items, Missing):
        return None
    curves = [result.design.curves[model].at(result.design.selected[model]) for model in result.design.scored]
    curves = [curve for curve in curves if len(curve.values) >= fewest_checkpoints(options.convention)]
    if not curves:
        return Missing(too_few_checkpoints(options))
    numbers = [curve.items for curve in curves]
    if np.isnan(numbers).any() or any(np.isnan(curve.errors).any() for curve in curves):
        return Missing(
            Reason("It needs the items, or their number and the standard error of every score.", ReasonCode.NO_ITEMS)
        )
    pairs = [(curve.values, curve.errors) for curve in curves]
    generator = np.random.default_rng(0)
    found = quality_by_errors(pairs, numbers, SIZES, CONTROLS, generator, options.convention, options.ties)
    return found or Missing(Reason(f"The benchmark has fewer than {SIZES[0]} items.", ReasonCode.TOO_FEW))


def _above_chance_from(result: BenchmarkResult, tokens: np.ndarray, model: str) -> Value:
    """Tokens from which a model is above chance for good."""
    return _tokens_above(result, result.design.curves[model].values, result.errors[model], tokens)


def _mean_above_chance_from(result: BenchmarkResult) -> Value:
    """The same of the mean over the benchmark's models at their common points.

    Its standard error is the mean of the models' own, as though their errors were one: models answer the same items.
    """
    design = result.design
    if design.alignment.reason:
        return Missing(design.alignment.reason)
    values = ranked_curves(design, point_values(design)).mean(axis=0)
    errors = ranked_curves(design, result.errors).mean(axis=0)
    return _tokens_above(result, values, errors, design.alignment.tokens_b)


def _tokens_above(result: BenchmarkResult, values: np.ndarray, errors: np.ndarray, tokens: np.ndarray) -> Value:
    if isinstance(result.chance, Missing):
        return result.chance
    if np.isnan(errors).any():
        return _NO_ERRORS
    assert result.chance_level is not None
    found = above_chance_from(values, errors, result.chance_level)
    if found is None:
        return _AT_CHANCE
    return known(float(tokens[found]), "Tokens are unknown.")


_AT_CHANCE = Missing("The score is not above chance by 1.96 standard errors at the last point.")
_NO_ERRORS = Missing(Reason("Whether a score is above chance needs its standard error.", ReasonCode.NO_ERRORS))


def _models_above_chance(result: BenchmarkResult) -> int | Missing:
    """How many models end above chance, by one-sided tests at 5% with Holm's adjustment over models."""
    if isinstance(result.chance, Missing):
        return result.chance
    ends = [(result.design.curves[model].values[-1], result.errors[model][-1]) for model in result.design.scored]
    last, errors = np.array(ends).T
    assert result.chance_level is not None
    return _NO_ERRORS if np.isnan(errors).any() else models_above_chance(last, errors, result.chance_level)


def consistency_of(result: BenchmarkResult) -> Consistency:
    """Ranking consistency under the chosen windows and under fitted ones."""
    design = result.design
    chosen = _consistency(result, design.ranking_pairs, design.windows, lambda scores: scores.consistency)
    fitted = _consistency(result, design.fitted_pairs, FITTED_WINDOWS, lambda scores: scores.fitted)
    return Consistency(**vars(chosen), fitted=fitted)


def _consistency(
    result: BenchmarkResult, pairs: list[Pair], windows: RankingWindows, read: Callable[[Scores], OrderScores]
) -> ConsistencyScore:
    """Ranking consistency, its two intervals, and the level of coins."""
    design, scores = result.design, read(result.scores)
    drawn = result.fitted if windows is FITTED_WINDOWS else result.consistency
    coin = drawn.coin
    orders = [_pair_order(pair, found, design, windows) for pair, found in zip(pairs, scores.pairs, strict=True)]
    why = _no_consistency(pairs, design, windows)
    value = known(float(scores.value), why)
    coins: Bounds = SKIPPED
    if isinstance(value, Missing):
        coins = value
    elif isinstance(coin, Missing):
        coins = coin
    elif coin.size:
        low, high = np.quantile(coin, [0.025, 0.975])
        coins = known_bounds(low, high, SKIPPED.reason)
    return ConsistencyScore(
        value=value,
        by_size={
            size: known(float(found), _no_consistency([pair for pair in pairs if pair.size == size], design, windows))
            for size, found in scores.by_size.items()
        },
        interval=bounds(value, drawn.blocks, 0.0, 1.0),
        item_interval=bounds(value, result.draws(lambda found: read(found).value), 0.0, 1.0),
        with_last=known(float(scores.with_last), why if isinstance(value, Missing) else _ONE_LATER),
        coin_flip_interval=coins,
        coin_flip_p=p_value(value, coin),
        pairs=orders,
    )


_ONE_LATER = "The order at the last checkpoint is compared with that of other later checkpoints, and there is none."


def _pair_order(pair: Pair, found: PairConsistency, design: Design, windows: RankingWindows) -> PairOrder:
    why = _no_consistency([pair], design, windows)
    return PairOrder(
        size=pair.size,
        first=pair.first,
        second=pair.second,
        value=known(float(found.value), why),
        base_gap=known(float(found.base_gap), why),
        with_last=known(float(found.with_last), _ONE_LATER if pair.windows[1].any() else why),
        base_checkpoints=found.base_checkpoints,
        later_checkpoints=found.later_checkpoints,
    )


def _no_consistency(pairs: list[Pair], design: Design, windows: RankingWindows) -> str:
    """Why pairs have no ranking consistency, where they have none."""
    if not pairs:
        return "There are no two architectures of one size (columns size and architecture of the models sheet)."
    if all(pair.alignment.reason for pair in pairs):
        return pairs[0].alignment.reason
    if not windows.relative and all(np.isnan(curve.tokens_b).all() for curve in design.curves.values()):
        return "The windows are in billions of tokens, and tokens are unknown."
    empty = [kind for kind in ("base", "later") if not any(getattr(pair, kind).any() for pair in pairs)]
    if not empty:
        return "No pair has a checkpoint in the base window and one in the later window."
    ends = getattr(windows, empty[0])
    low, high = (end / 10 for end in ends) if windows.relative else ends  # relative: of a training of 1000 billion
    unit = "% of the training" if windows.relative else " billion tokens"
    return f"No checkpoint lies in the {empty[0]} window ({low:g} to {high:g}{unit})."


def compliance_score(result: BenchmarkResult, options: SignalConventions) -> ComplianceScore:
    """Compliance under the chosen normalisation, under the others, and the raw gap."""
    design, scores = result.design, result.scores
    value = known(float(scores.compliance), _no_compliance(result, options.normalisation))
    gap = known(float(scores.gap), _no_compliance(result, options.normalisation))
    null = result.items if isinstance(result.items, Missing) else result.items.compliance_null
    values = point_values(design)
    return ComplianceScore(
        value=value,
        interval=bounds(value, result.draws(lambda found: found.compliance), 0.0),
        null_p=p_value(value, null),
        raw_gap=gap,
        raw_gap_interval=bounds(gap, result.draws(lambda found: found.gap)),
        normalisation=options.normalisation,
        normalisations={
            name: known(
                float(compliance_of(design, values, name, result.chance_level)[0]), _no_compliance(result, name)
            )
            for name in NORMALISATIONS
        },
        pairs=[[pair.first, pair.second] for pair in design.compliance_pairs],
        checkpoints=[len(pair.alignment.progress) for pair in design.compliance_pairs],
    )


def _no_compliance(result: BenchmarkResult, normalisation: str) -> str:
    """Why compliance is missing, where it is."""
    pairs = result.design.compliance_pairs
    if not pairs:
        return Reason(
            "There is no pair of a science and a web model of one size (column training_data of the models sheet).",
            ReasonCode.NO_MODEL_PAIR,
        )
    if not any(len(pair.alignment.progress) for pair in pairs):
        return pairs[0].alignment.reason
    if normalisation == "above_chance" and isinstance(result.chance, Missing):
        return result.chance.reason
    return "What the gap is divided by is not above 0: a constant curve, or a science curve at chance."


def overall_p(result: BenchmarkResult, overall: Value, options: SignalConventions) -> Value:
    """p of the overall score when all three parts follow their own nulls, drawn independently."""
    null = result.items if isinstance(result.items, Missing) else result.items.compliance_null
    coin = result.consistency.coin
    if isinstance(overall, Missing):
        return overall
    if isinstance(null, Missing):
        return null
    if isinstance(coin, Missing):
        return coin
    draws = np.stack([quality_null(result), coin, null], axis=-1) @ np.array(options.weights)
    return p_value(overall, draws)
