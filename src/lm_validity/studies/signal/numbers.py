"""The numbers of the report: signal quality, compliance and the criteria of others, and all that it found.

Records have the fields of summary.json, in its order. A missing value is a `Missing` with its reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from lm_validity.config.sections import Normalisation, SignalConventions
from lm_validity.missing import Missing, Reason, ReasonCode, is_known, known, number
from lm_validity.studies.signal.benchmark import (
    CHOSEN,
    CONTROLS,
    NO_ERRORS,
    SIZES,
    SKIPPED,
    UNKNOWN_TOKENS,
    BenchmarkCurves,
    Bounds,
    Found,
    ItemAnalysis,
    MetricQuality,
    SharedTraining,
    SignalData,
    Subgroup,
    Trial,
    Value,
    bounds,
    compliance_of,
    known_bounds,
    mean_of_known,
    p_value,
    too_few_checkpoints,
)
from lm_validity.studies.signal.curves import ModelFacts, align
from lm_validity.studies.signal.settling import Consistency, Settling, consistencies, settling
from lm_validity.studies.signal.statistics.quality import (
    FINETASKS_MONOTONICITY,
    FINETASKS_NON_RANDOMNESS,
    FINETASKS_SIGNAL_TO_NOISE,
    LAST_CHECKPOINTS,
    MINIMUM_RELIABILITY,
    NoiseFree,
    SignalQuality,
    above_chance_from,
    fewest_checkpoints,
    ordering_consistency,
    pair_share_interval,
    quality_by_errors,
    rank_correlation,
    seed_criteria,
    signal_to_noise,
    signal_to_noise_interval,
    step_direction,
    total_variation,
    weight_sensitivity,
)
from lm_validity.studies.signal.statistics.ranking import (
    E2LM_WINDOWS,
    NORMALISATIONS,
    decision_accuracy,
)
from lm_validity.tables.standard_errors import ErrorCheck
from lm_validity.words import listing

WEIGHT_DRAWS = 10_000
E2LM_LATER_CHECKPOINTS = 47  # of the competition's ranking consistency, 222.8 to 994.5 billion tokens
NO_POINT = "A curve needs two selected checkpoints."
NO_CURVE = "No model has two selected checkpoints."
AT_CHANCE = Missing("The score is not above chance by 1.96 standard errors at the last point.")

T = TypeVar("T")


# ----------------------------------------------------------------------------------------------------------------------
# Signal quality.


@dataclass(frozen=True)
class CurveQuality:
    """Scores of one model's learning curve, over the selected checkpoints.

    signal_quality_null_p compares with shuffled checkpoints (white noise), walk_p with random walks. noise_free_quality
    is that of endlessly many items, reliability the share of variance that is no noise of items. net_rise: last minus
    first value, the size that a rank correlation does not see.
    """

    monotonicity: Value
    monotonicity_interval: Bounds
    rank_correlation: Value
    autocorrelation: Value
    autocorrelation_interval: Bounds
    signal_quality: Value
    signal_quality_interval: Bounds
    signal_quality_null_p: Value
    signal_quality_null_mean: Value
    signal_quality_null_95: Value
    signal_quality_walk_p: Value
    noise_free_quality: Value
    reliability: Value
    above_chance_from_b: Value
    checkpoints: int
    net_rise: Value
    degenerate: Found


@dataclass(frozen=True)
class BenchmarkQuality:
    """Means over a benchmark's models.

    direction_assumed: neither the sheet nor the scores say it. signal_quality_by_errors: None where items are known.
    noise_free_quality: mean over models, all of whose curves are at least half signal. above_chance_from_b: of the mean
    over models at their common points.
    """

    signal_quality: Value
    signal_quality_interval: Bounds
    signal_quality_null_p: Value
    signal_quality_walk_p: Value
    steady: Found
    rank_correlation: Value
    direction_assumed: bool
    signal_quality_by_size: dict[str, Value]
    signal_quality_by_size_interval: dict[str, Bounds]
    signal_quality_by_items: dict[int, float] | Missing
    signal_quality_by_errors: dict[int, float] | Missing | None
    noise_free_quality: Value
    noise_free_quality_interval: Bounds
    models: int
    items: int | Missing
    chance: Value
    models_above_chance: int | Missing
    above_chance_from_b: Value
    interval_source: str | Missing
    training_noise: Value
    reruns: int
    separable_at_end: int | Missing
    common: SharedTraining | Missing

    @property
    def quality_by_items(self) -> dict[int, float] | Missing:
        """Signal quality by number of items: from standard errors, else from the items."""
        by_errors = self.signal_quality_by_errors
        return by_errors if is_known(by_errors) else self.signal_quality_by_items


def curve_quality(data: SignalData, benchmark: BenchmarkCurves, model: str) -> CurveQuality:
    """Signal quality and its parts for one model's curve on the benchmark, with intervals, or reasons where missing."""
    too_few, scores = too_few_checkpoints(data.options), benchmark.scores.quality[model]
    selected, null = benchmark.curves[model].at(benchmark.selected[model]), benchmark.quality_null[model]
    monotonicity = known(float(scores.monotonicity), NO_POINT)
    autocorrelation = known(float(scores.autocorrelation), too_few)
    quality = known(float(scores.signal_quality), too_few)

    def interval(value: Value, read: Callable[[SignalQuality], np.ndarray]) -> Bounds:
        return bounds(value, benchmark.draws(lambda resampled: read(resampled.quality[model])), 0.0, 1.0)

    unknown = quality if isinstance(quality, Missing) else None if null.size else SKIPPED
    curve = benchmark.curves[model]
    empty = Missing("No checkpoint of this curve is selected.")
    return CurveQuality(
        monotonicity=monotonicity,
        monotonicity_interval=interval(monotonicity, lambda resampled: resampled.monotonicity),
        rank_correlation=known(float(scores.rank_correlation), NO_POINT),
        autocorrelation=autocorrelation,
        autocorrelation_interval=interval(autocorrelation, lambda resampled: resampled.autocorrelation),
        signal_quality=quality,
        signal_quality_interval=interval(quality, lambda resampled: resampled.signal_quality),
        signal_quality_null_p=p_value(quality, null),
        signal_quality_null_mean=unknown or float(np.mean(null)),
        signal_quality_null_95=unknown or float(np.quantile(null, 0.95)),
        signal_quality_walk_p=p_value(quality, benchmark.quality_walk[model]),
        noise_free_quality=_noise_free_quality(benchmark, model),
        reliability=_noise_free(benchmark, model, lambda noise_free: noise_free.reliability),
        above_chance_from_b=_above_chance_from(benchmark, curve.values, benchmark.errors[model], curve.tokens_b),
        checkpoints=len(selected.values),
        net_rise=float(selected.values[-1] - selected.values[0]) if len(selected.values) else empty,
        degenerate=bool(scores.degenerate) if len(selected.values) else empty,
    )


def benchmark_quality(data: SignalData, benchmark: BenchmarkCurves) -> BenchmarkQuality:
    """Signal quality of the benchmark: means over its models, with intervals, or reasons where missing."""
    items, again = benchmark.items, benchmark.training_noise
    by_size = {
        size: known(float(mean), too_few_checkpoints(data.options))
        for size, mean in benchmark.scores.quality_by_size.items()
    }

    def interval(size: str, mean: Value) -> Bounds:
        return bounds(mean, benchmark.draws(lambda resampled: resampled.quality_by_size[size]), 0.0, 1.0)

    by_model = [_noise_free_quality(benchmark, model) for model in benchmark.scored]
    noise_free: Value = next((value for value in by_model if isinstance(value, Missing)), None) or float(
        np.mean([number(value) for value in by_model])
    )
    return BenchmarkQuality(
        signal_quality=benchmark.quality,
        signal_quality_interval=benchmark.quality_interval,
        signal_quality_null_p=p_value(benchmark.quality, benchmark.mean_over_models(benchmark.quality_null)),
        signal_quality_walk_p=benchmark.walk_p,
        steady=data.steady[benchmark.benchmark],
        rank_correlation=known(benchmark.rank_correlation, NO_POINT),
        direction_assumed=benchmark.direction_assumed,
        signal_quality_by_size=by_size,
        signal_quality_by_size_interval={size: interval(size, mean) for size, mean in by_size.items()},
        signal_quality_by_items=items if isinstance(items, Missing) else items.by_items,
        signal_quality_by_errors=_quality_by_errors(data.options, benchmark),
        noise_free_quality=noise_free,
        noise_free_quality_interval=_noise_free_interval(items, noise_free),
        models=len(benchmark.scored),
        items=items if isinstance(items, Missing) else items.items,
        chance=benchmark.chance,
        models_above_chance=benchmark.models_above_chance,
        above_chance_from_b=_mean_above_chance_from(benchmark),
        interval_source=benchmark.interval_source,
        training_noise=again if isinstance(again, Missing) else again.sd,
        reruns=0 if isinstance(again, Missing) else again.reruns,
        separable_at_end=benchmark.separable_at_end,
        common=benchmark.common,
    )


def _noise_free(
    benchmark: BenchmarkCurves,
    model: str,
    read: Callable[[NoiseFree], float],
    reason: str = "This needs eight checkpoints and a curve that is not constant.",
) -> Value:
    """What noise-free scores say of a model that counts in the benchmark's scores."""
    if isinstance(benchmark.items, Missing):
        return benchmark.items
    noise_free = benchmark.items.noise_free
    if isinstance(noise_free, Missing):
        return noise_free
    if model not in noise_free:
        return Missing("The model is kept for comparison and has no noise-free signal quality.")
    return known(read(noise_free[model]), reason)


def _noise_free_quality(benchmark: BenchmarkCurves, model: str) -> Value:
    """Noise-free signal quality, of a curve that is at least half signal."""
    reliability = _noise_free(benchmark, model, lambda noise_free: noise_free.reliability)
    if is_known(reliability) and reliability < MINIMUM_RELIABILITY:
        reason = "More than half of the curve's variance is noise of its items."
        return _noise_free(benchmark, model, lambda noise_free: noise_free.value, reason)
    return _noise_free(benchmark, model, lambda noise_free: noise_free.value)


def _noise_free_interval(items: ItemAnalysis | Missing, noise_free: Value) -> Bounds:
    if isinstance(noise_free, Missing):
        return noise_free
    if isinstance(items, Missing):
        return items
    reason = "It needs resampling, and 40 items or 20 subjects. The figure must exist with each of 20 groups of items "
    return known_bounds(*items.noise_free_interval, f"{reason}left out.")


def _above_chance_from(benchmark: BenchmarkCurves, values: np.ndarray, errors: np.ndarray, tokens: np.ndarray) -> Value:
    """Tokens from which a score is above chance for good."""
    if isinstance(benchmark.chance, Missing):
        return benchmark.chance
    if np.isnan(errors).any():
        return NO_ERRORS
    first = above_chance_from(values, errors, benchmark.chance_level)
    return AT_CHANCE if first is None else known(float(tokens[first]), UNKNOWN_TOKENS)


def _mean_above_chance_from(benchmark: BenchmarkCurves) -> Value:
    """Tokens from which the mean over models is above chance for good.

    Its standard error is the mean of the models' own, as though their errors were one: models answer the same items.
    """
    if benchmark.alignment.reason is not None:
        return Missing(benchmark.alignment.reason)
    mean, errors = (benchmark.at_common_points(values).mean(axis=0) for values in (benchmark.values, benchmark.errors))
    return _above_chance_from(benchmark, mean, errors, benchmark.alignment.tokens_b)


def _quality_by_errors(options: SignalConventions, benchmark: BenchmarkCurves) -> dict[int, float] | Missing | None:
    """Signal quality at fewer items from their number and the standard errors; None where the items are known."""
    if is_known(benchmark.items):
        return None
    selected = benchmark.selected_curves
    curves = [selected[model] for model in benchmark.scored]
    curves = [curve for curve in curves if len(curve.values) >= fewest_checkpoints(options.convention)]
    if not curves:
        return Missing(too_few_checkpoints(options))
    numbers = [curve.items for curve in curves]
    if np.isnan(numbers).any() or any(np.isnan(curve.errors).any() for curve in curves):
        return Missing(
            Reason("It needs the items, or their number and the standard error of every score.", ReasonCode.NO_ITEMS)
        )
    pairs = [(curve.values, curve.errors) for curve in curves]
    rng = np.random.default_rng(0)
    quality = quality_by_errors(pairs, numbers, SIZES, CONTROLS, rng, options)
    return quality or Missing(Reason(f"The benchmark has fewer than {SIZES[0]} items.", ReasonCode.TOO_FEW))


# ----------------------------------------------------------------------------------------------------------------------
# Science models against web models, and the overall score that needs them.


@dataclass(frozen=True)
class Compliance:
    """The science models' mean lead over the web models; `normalisations`: the same divided by something else."""

    value: Value
    interval: Bounds
    null_p: Value
    raw_gap: Value
    raw_gap_interval: Bounds
    normalisation: str
    normalisations: dict[str, Value]
    pairs: list[tuple[str, str]]
    checkpoints: list[int]


class Overall(NamedTuple):
    """The weighted sum of signal quality, ranking consistency and compliance; `p`: if each follows its own null."""

    value: Value
    interval: Bounds
    p: Value


@dataclass(frozen=True)
class WeightShare:
    """Of a benchmark: the share of weightings that rank it first, and 95% of its ranks."""

    share_first: float
    rank_interval: tuple[float, float]


def compliance_numbers(benchmark: BenchmarkCurves, options: SignalConventions) -> Compliance:
    """Compliance of the benchmark, with the reason where it is missing."""
    values, pairs = benchmark.values, benchmark.compliance_pairs
    reasons = {normalisation: _no_compliance(benchmark, normalisation) for normalisation in NORMALISATIONS}
    value = known(float(benchmark.scores.lead.value), reasons[options.normalisation])
    gap = known(float(benchmark.scores.lead.gap), reasons["none"])
    under = {name: compliance_of(benchmark, values, name, benchmark.chance_level).value for name in NORMALISATIONS}
    return Compliance(
        value=value,
        interval=bounds(value, benchmark.draws(lambda resampled: resampled.lead.value), 0.0),
        null_p=p_value(value, benchmark.compliance_null),
        raw_gap=gap,
        raw_gap_interval=bounds(gap, benchmark.draws(lambda resampled: resampled.lead.gap)),
        normalisation=options.normalisation,
        normalisations={name: known(float(lead), reasons[name]) for name, lead in under.items()},
        pairs=[(pair.first, pair.second) for pair in pairs],
        checkpoints=[len(pair.alignment.progress) for pair in pairs],
    )


def overall_score(benchmark: BenchmarkCurves, options: SignalConventions) -> Overall:
    """The overall score of the benchmark, with a p for nulls of all three parts that are drawn independently."""
    incomplete = "The overall score needs signal quality, ranking consistency and compliance."
    value = known(float(benchmark.scores.overall), incomplete)
    null = benchmark.compliance_null
    coins = benchmark.order_draws[CHOSEN].coins
    draws = null if isinstance(null, Missing) else coins
    if not isinstance(null, Missing) and not isinstance(coins, Missing):
        quality = benchmark.mean_over_models(benchmark.quality_null)
        draws = np.stack([quality, coins, null], axis=-1) @ np.array(options.weights)
    interval = bounds(value, benchmark.draws(lambda resampled: resampled.overall))
    return Overall(value, interval, p_value(value, draws))


def weight_shares(benchmarks: Mapping[str, BenchmarkCurves]) -> dict[str, WeightShare] | Missing:
    """What the weights of the overall score decide, over all weightings of the three parts; by benchmark with all."""
    parts = {
        name: [scores.mean_quality, scores.orders[CHOSEN].value, scores.lead.value]
        for name, scores in ((name, benchmark.scores) for name, benchmark in benchmarks.items())
        if np.isfinite(scores.overall)
    }
    if len(parts) < 2:
        return Missing("The sensitivity to the weights needs two benchmarks with all three parts.")
    components = np.array(list(parts.values()), dtype=float)
    shares = weight_sensitivity(components, WEIGHT_DRAWS, np.random.default_rng(0))
    return {name: WeightShare(first, (low, high)) for name, first, low, high in zip(parts, *shares, strict=True)}


def _no_compliance(benchmark: BenchmarkCurves, normalisation: Normalisation) -> str:
    """Why compliance is missing, where it is."""
    pairs = benchmark.compliance_pairs
    if not pairs:
        return Reason(
            "There is no pair of a science and a web model of one size (column training_data of the models sheet).",
            ReasonCode.NO_MODEL_PAIR,
        )
    reason = pairs[0].alignment.reason
    if reason is not None and not any(len(pair.alignment.progress) for pair in pairs):
        return reason
    if normalisation == "above_chance" and isinstance(benchmark.chance, Missing):
        return benchmark.chance.reason
    return "What the gap is divided by is not above 0: a constant curve, or a science curve at chance."


# ----------------------------------------------------------------------------------------------------------------------
# FineTasks, Signal and Noise, DataDecide.


@dataclass(frozen=True)
class FineTasks:
    """Criteria of FineTasks, and whether their thresholds are passed; its monotonicity is not clipped."""

    monotonicity: Value
    monotonicity_passes: Found
    signal_to_noise: Value
    signal_to_noise_passes: Found
    non_randomness: Value
    non_randomness_passes: Found
    ordering_consistency: Value


@dataclass(frozen=True)
class SignalAndNoise:
    """Criteria of Signal and Noise, which gives no thresholds. noise_from: last checkpoints or reruns."""

    signal: Value
    noise: Value
    noise_from: str
    signal_to_noise: Value
    signal_to_noise_interval: Bounds
    step_direction: Value
    total_variation: Value


@dataclass(frozen=True)
class DecisionAccuracy:
    """DataDecide's share of pairs of models that have the same winner, early and late, small and large."""

    middle_to_last: Value
    middle_to_last_interval: Bounds
    smallest_to_largest: Value
    smallest_to_largest_interval: Bounds


@dataclass(frozen=True)
class Criteria:
    """What others ask of a benchmark for early training."""

    finetasks: FineTasks
    signal_and_noise: SignalAndNoise
    decision_accuracy: DecisionAccuracy


def criteria_of(data: SignalData, benchmark: BenchmarkCurves) -> Criteria:
    """Values of one benchmark, and the thresholds passed where there are any."""
    selected = benchmark.selected_curves
    curves = [selected[model].values for model in benchmark.scored if len(selected[model].values) >= 2]
    return Criteria(
        finetasks=_finetasks(data, benchmark, curves),
        signal_and_noise=_signal_and_noise(data, benchmark, curves),
        decision_accuracy=_decision_accuracy(benchmark, data.learning.model_facts),
    )


def _finetasks(data: SignalData, benchmark: BenchmarkCurves, curves: list[np.ndarray]) -> FineTasks:
    monotonicity = known(float(mean_of_known([rank_correlation(curve) for curve in curves])), NO_CURVE)
    over_seeds = _seed_criteria(data, benchmark)
    return FineTasks(
        monotonicity=monotonicity,
        monotonicity_passes=_passes(monotonicity, FINETASKS_MONOTONICITY),
        signal_to_noise=over_seeds.signal_to_noise,
        signal_to_noise_passes=_passes(over_seeds.signal_to_noise, FINETASKS_SIGNAL_TO_NOISE),
        non_randomness=over_seeds.non_randomness,
        non_randomness_passes=_passes(over_seeds.non_randomness, FINETASKS_NON_RANDOMNESS),
        ordering_consistency=_ordering_consistency(benchmark),
    )


def _signal_and_noise(data: SignalData, benchmark: BenchmarkCurves, curves: list[np.ndarray]) -> SignalAndNoise:
    again = benchmark.training_noise
    training = None if isinstance(again, Missing) else (again.sd, again.reruns)
    noise = signal_to_noise(curves, training=training)
    reason = "Signal to noise needs some noise: the last checkpoints lie on a line."
    if len(curves) < 2 or any(len(curve) < LAST_CHECKPOINTS for curve in curves):
        reason = f"Signal to noise needs two models, and {LAST_CHECKPOINTS} checkpoints of every model."
    elif np.isnan(noise.signal):
        reason = "Signal to noise is relative to the mean score, and needs scores of one sign."
    ratio = known(noise.ratio, reason)
    ends = signal_to_noise_interval(curves, data.section.resamples, np.random.default_rng(0), training=training)
    constant = "All curves are constant, or have fewer than two selected checkpoints."
    return SignalAndNoise(
        signal=known(noise.signal, reason),
        noise=known(noise.noise, reason),
        noise_from="last checkpoints" if training is None else "reruns",
        signal_to_noise=ratio,
        signal_to_noise_interval=known_bounds(*ends, reason if isinstance(ratio, Missing) else SKIPPED.reason),
        step_direction=known(float(mean_of_known([step_direction(curve) for curve in curves])), NO_CURVE),
        total_variation=known(float(mean_of_known([total_variation(curve) for curve in curves])), constant),
    )


def _decision_accuracy(benchmark: BenchmarkCurves, facts: Mapping[str, ModelFacts]) -> DecisionAccuracy:
    half_way, between_sizes = _half_way(benchmark), _across_sizes(benchmark, facts)
    return DecisionAccuracy(
        middle_to_last=half_way,
        middle_to_last_interval=_share_interval(half_way, len(benchmark.scored)),
        smallest_to_largest=between_sizes.share,
        smallest_to_largest_interval=_share_interval(between_sizes.share, between_sizes.recipes),
    )


def _passes(value: Value, threshold: float) -> Found:
    return value if isinstance(value, Missing) else bool(value >= threshold)


def _share_interval(share: Value, models: int) -> Bounds:
    return share if isinstance(share, Missing) else known_bounds(*pair_share_interval(share, models), "No pair.")


class _OverSeeds(NamedTuple):
    """FineTasks' criteria that compare repeated trainings, with the reason where one is unknown."""

    signal_to_noise: Value
    non_randomness: Value


def _seed_criteria(data: SignalData, benchmark: BenchmarkCurves) -> _OverSeeds:
    """Over repeated trainings at their common points: the reruns that the sheet names, else the models that are alike
    in size, architecture and training data."""
    curves = benchmark.curves
    if benchmark.reruns:
        groups = [[curves[model], *benchmark.reruns.get(model, [])] for model in benchmark.scored]
    else:
        facts = data.learning.facts.loc[benchmark.scored, ["size", "architecture", "training_data"]].dropna()
        groups = [[curves[model] for model in alike.index] for _, alike in facts.groupby(list(facts), sort=False)]
    runs = []
    for group in groups:
        places = align({f"{index}": curve for index, curve in enumerate(group)}).places
        if len(group) > 1 and len(places[0].share):
            runs.append(np.array([points.read(curve.values) for points, curve in zip(places, group, strict=True)]))
    if not runs:
        reason = "Signal to noise over seeds and non-randomness need repeated trainings of one model."
        none = Missing(Reason(reason, ReasonCode.NO_RERUNS))
        return _OverSeeds(none, none)
    best = max(float(curves[model].values[-1]) for model in benchmark.scored)
    criteria = seed_criteria(runs, benchmark.chance_level, best)
    agree = "Repeated trainings agree exactly, so there is no noise to divide by."
    chance = benchmark.chance
    non_randomness = chance if isinstance(chance, Missing) else known(criteria.non_randomness, agree)
    return _OverSeeds(known(criteria.signal_to_noise, agree), non_randomness)


def _ordering_consistency(benchmark: BenchmarkCurves) -> Value:
    too_few = "Ordering consistency needs two models and two points in common in the second half of these."
    if len(benchmark.scored) < 2 or len(benchmark.alignment.progress) < 2:
        return Missing(benchmark.alignment.reason or too_few)
    return known(ordering_consistency(benchmark.at_common_points(benchmark.values)), too_few)


def _half_way(benchmark: BenchmarkCurves) -> Value:
    """Decision accuracy of the models half way to their last common point against it."""
    progress = benchmark.alignment.progress
    if len(benchmark.scored) < 2 or len(progress) < 2:
        no_decision = "Decision accuracy needs two models with two points of training in common."
        return Missing(benchmark.alignment.reason or no_decision)
    curves = benchmark.at_common_points(benchmark.values)
    half = int(np.argmin(np.abs(progress - progress[-1] / 2)))
    return float(decision_accuracy(curves[:, half], curves[:, -1]))


class _AcrossSizes(NamedTuple):
    """The share of pairs of recipes with the same order at two sizes, and how many recipes there are."""

    share: Value
    recipes: int


def _across_sizes(benchmark: BenchmarkCurves, facts: Mapping[str, ModelFacts]) -> _AcrossSizes:
    """Order of the recipes at the smallest and at the largest size that all of them have.

    A recipe is an architecture and a training mixture; it takes part with models of two sizes or more. Several
    trainings of a recipe at one size are averaged at their last checkpoints.
    """
    scores: dict[tuple[str | None, str | None], dict[str, list[float]]] = {}
    weights: dict[str, list[float]] = {}
    for model, curve in benchmark.curves.items():
        fact = facts[model]
        if np.isnan(fact.parameters):
            continue
        # Two architectures of one named size have not quite the same number of parameters
        size = fact.size.casefold() if fact.size is not None else f"{fact.parameters:g} billion"
        recipe = (fact.architecture, fact.training_data)
        scores.setdefault(recipe, {}).setdefault(size, []).append(float(curve.values[-1]))
        weights.setdefault(size, []).append(fact.parameters)
    recipes = [by_size for by_size in scores.values() if len(by_size) > 1]
    if len(recipes) < 2:
        too_few = Missing("Decision accuracy across sizes needs two recipes at two sizes each.")
        return _AcrossSizes(too_few, len(recipes))
    common = sorted(set.intersection(*map(set, recipes)), key=lambda size: np.mean(weights[size]))
    if len(common) < 2:
        none = Missing("Decision accuracy across sizes needs two sizes that all recipes of several sizes have.")
        return _AcrossSizes(none, len(recipes))
    small, large = (np.array([np.mean(by_size[size]) for by_size in recipes]) for size in (common[0], common[-1]))
    return _AcrossSizes(float(decision_accuracy(small, large)), len(recipes))


# ----------------------------------------------------------------------------------------------------------------------
# All of it.


@dataclass(frozen=True)
class Windows:
    """The windows of training over which ranking consistency is taken, in billions of tokens or `relative`."""

    base: tuple[float, float]
    later: tuple[float, float]
    relative: bool


@dataclass(frozen=True)
class Conventions:
    """How scores are computed; `weights`: of the parts of the overall score."""

    convention: str
    ties: str
    normalisation: str
    weights: dict[str, float]
    windows_b: Windows
    resamples: int


@dataclass(frozen=True)
class SignalSummary:
    """What the signal report found: `models` by model and benchmark, the rest by benchmark."""

    selection: str
    conventions: Conventions
    models: dict[str, dict[str, CurveQuality]]
    benchmarks: dict[str, BenchmarkQuality]
    ranking_consistency: dict[str, Consistency]
    compliance: dict[str, Compliance]
    overall: dict[str, Value]
    overall_interval: dict[str, Bounds]
    overall_null_p: dict[str, Value]
    weight_sensitivity: dict[str, WeightShare] | Missing
    ranking: dict[str, Settling | Missing]
    criteria: dict[str, Criteria]
    item_metrics: dict[str, dict[str, MetricQuality] | Missing]
    filters: dict[str, list[Trial] | Missing]
    subgroups: dict[str, list[Subgroup] | Missing]
    standard_errors: tuple[ErrorCheck, ...]
    notes: list[str]


def summarize(data: SignalData) -> SignalSummary:
    """All numbers of the signal report, as summary.json holds them."""
    benchmarks, options = data.benchmarks, data.options
    overall = {name: overall_score(benchmark, options) for name, benchmark in benchmarks.items()}
    return SignalSummary(
        selection=data.learning.selection,
        conventions=_conventions(data),
        models={
            model: {
                name: curve_quality(data, benchmark, model)
                for name, benchmark in benchmarks.items()
                if model in benchmark.curves
            }
            for model in data.learning.models
        },
        benchmarks={name: benchmark_quality(data, benchmark) for name, benchmark in benchmarks.items()},
        ranking_consistency=consistencies(data),
        compliance={name: compliance_numbers(benchmark, options) for name, benchmark in benchmarks.items()},
        overall={name: score.value for name, score in overall.items()},
        overall_interval={name: score.interval for name, score in overall.items()},
        overall_null_p={name: score.p for name, score in overall.items()},
        weight_sensitivity=weight_shares(benchmarks),
        ranking={name: settling(benchmark) for name, benchmark in benchmarks.items()},
        criteria={name: criteria_of(data, benchmark) for name, benchmark in benchmarks.items()},
        item_metrics=_of_items(data, lambda items: items.metrics),
        filters=_of_items(data, lambda items: items.trials),
        subgroups=_of_items(data, lambda items: items.subgroups),
        standard_errors=data.learning.error_checks,
        notes=_notes(data),
    )


def _of_items(data: SignalData, read: Callable[[ItemAnalysis], T | Missing]) -> dict[str, T | Missing]:
    """A part of every benchmark's item analysis, or why there is none."""
    return {
        name: benchmark.items if isinstance(benchmark.items, Missing) else read(benchmark.items)
        for name, benchmark in data.benchmarks.items()
    }


def _conventions(data: SignalData) -> Conventions:
    options, windows = data.options, data.windows
    named = ("signal_quality", "ranking_consistency", "compliance")
    return Conventions(
        convention=options.convention,
        ties=options.ties,
        normalisation=options.normalisation,
        weights=dict(zip(named, options.weights, strict=True)),
        windows_b=Windows(windows.base, windows.later, windows.relative),
        resamples=data.section.resamples,
    )


def _notes(data: SignalData) -> list[str]:
    """What was left out and what numbers rest on, of all benchmarks."""
    analyses = [benchmark.items for benchmark in data.benchmarks.values()]
    of_items = chain.from_iterable(items.notes for items in analyses if isinstance(items, ItemAnalysis))
    notes = [*data.learning.notes, *of_items]
    constant = [
        f"{model} on {name}"
        for name, benchmark in data.benchmarks.items()
        for model, quality in benchmark.scores.quality.items()
        if benchmark.selected[model].any() and quality.degenerate
    ]
    if constant:
        notes.append(f"Constant curves, scored 0: {listing(constant)}.")
    pairs = [pair for benchmark in data.benchmarks.values() for pair in benchmark.ranking_pairs[CHOSEN]]
    later = sorted({int(pair.windows.later.sum()) for pair in pairs if pair.counts})
    if later and later[0] < E2LM_LATER_CHECKPOINTS:
        ends = later[0] if later[0] == later[-1] else f"{later[0]} to {later[-1]}"
        # other windows than the competition's hold other numbers of its checkpoints
        released = f"; the competition had {E2LM_LATER_CHECKPOINTS} up to 1000 billion tokens, which are not released"
        beside = released if data.windows == E2LM_WINDOWS else ""
        notes.append(f"Ranking consistency rests on {ends} later checkpoints per pair{beside}.")
    return notes
