"""The summary of the signal report as one typed object: written to summary.json, and all that the page is built from.

Scores are fractions or in the benchmark's own unit, tokens are in billions, intervals are 95% intervals. What cannot be
computed is a `Missing` with its reason. Fields that are `page_only` are for figures and stay out of summary.json.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lm_validity.studies.signal.statistics.resampling import exceedance_p, resampling_interval
from lm_validity.summaries import Missing, is_known, known, page_only
from lm_validity.tables.standard_errors import ErrorCheck
from lm_validity.words import Reason, ReasonCode, with_interval

Value = float | Missing
Bounds = tuple[float, float] | Missing
Draws = np.ndarray | Missing  # (resamples,) or (resamples, ...), or why there are none

SKIPPED = Missing(Reason("Intervals and p-values were skipped (resamples = 0).", ReasonCode.SKIPPED))


def bounds(value: Value, draws: Draws, minimum: float = -np.inf, maximum: float = np.inf) -> Bounds:
    """The resampling interval of a value; the value's own reason, or that of the draws, where there is none."""
    if isinstance(value, Missing):
        return value
    if isinstance(draws, Missing):
        return draws
    if draws.size == 0:
        return SKIPPED
    interval = resampling_interval(value, draws, minimum, maximum)
    return known_bounds(
        interval.low, interval.high, Reason("None of the resamples has a value.", ReasonCode.NO_INTERVAL)
    )


def known_bounds(low: float, high: float, reason: str) -> Bounds:
    """An interval, or a `Missing` where its ends are not finite."""
    return (float(low), float(high)) if np.isfinite([low, high]).all() else Missing(reason)


def p_value(value: Value, null: Draws) -> Value:
    """One-sided p of a value against draws of its null; the value's own reason, or the null's, where there is none."""
    if isinstance(value, Missing):
        return value
    if isinstance(null, Missing):
        return null
    if null.size == 0:
        return SKIPPED
    return known(exceedance_p(value, null), "The null has no value in some of its draws.")


@dataclass(frozen=True)
class Windows:
    """Windows of ranking consistency: billions of tokens, or `relative` to a training of 1000 billion."""

    base: tuple[float, float]
    later: tuple[float, float]
    relative: bool


@dataclass(frozen=True)
class Conventions:
    """The choices that the source leaves open, by name."""

    convention: str
    ties: str
    normalisation: str
    weights: dict[str, float]
    windows_b: Windows
    resamples: int


@dataclass(frozen=True)
class ModelQuality:
    """Scores of one model's learning curve on one benchmark, over the selected checkpoints."""

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
    signal_quality_walk_p: Value  # against random walks; null_p is against white noise
    noise_free_quality: Value  # of endlessly many items
    reliability: Value  # share of the curve's variance that is no noise of items
    above_chance_from_b: Value
    checkpoints: int
    net_rise: Value
    degenerate: bool | Missing


@dataclass(frozen=True)
class CommonPoints:
    """Points of training that all models of a benchmark have. interpolated: those at which a model is read between two
    of its checkpoints. at_end: whether the last one is the last checkpoint of every model."""

    aligned_by: str  # names of checkpoints, tokens or share of training
    points: int
    interpolated: int
    last_b: Value
    at_end: bool


@dataclass(frozen=True)
class BenchmarkQuality:
    """Means over a benchmark's models."""

    signal_quality: Value
    signal_quality_interval: Bounds
    signal_quality_null_p: Value
    signal_quality_walk_p: Value
    rank_correlation: Value
    direction_assumed: bool  # neither the sheet nor the scores say that higher is better
    signal_quality_by_size: dict[str, Value]
    signal_quality_by_size_interval: dict[str, Bounds]
    signal_quality_by_items: dict[int, float] | Missing  # if the benchmark had so many items
    signal_quality_by_errors: dict[int, float] | Missing | None  # from standard errors; None where items are known
    noise_free_quality: Value  # mean over models, all of whose curves are at least half signal
    noise_free_quality_interval: Bounds
    models: int
    items: int | Missing
    chance: Value
    models_above_chance: int | Missing  # at the last checkpoint, by Holm's adjustment over models
    above_chance_from_b: Value  # of the mean over models at their common points
    interval_source: str | Missing  # items or standard errors
    training_noise: Value  # standard deviation of a score between trainings of one model
    reruns: int  # trainings beyond the first, of which it is known
    separable_at_end: int | Missing  # pairs of models whose last scores differ by more than noise, wherever those are
    common: CommonPoints | Missing  # what is said of the models' order, and of their mean, rests on these


@dataclass(frozen=True)
class PairOrder:
    """Ranking consistency of one pair of models."""

    size: str
    first: str
    second: str
    value: Value
    base_gap: Value
    with_last: Value
    base_checkpoints: int
    later_checkpoints: int


@dataclass(frozen=True)
class ConsistencyScore:
    """Ranking consistency under one choice of windows: mean over pairs of one size, then over sizes."""

    value: Value
    by_size: dict[str, Value]
    interval: Bounds
    item_interval: Bounds
    with_last: Value
    coin_flip_interval: Bounds
    coin_flip_p: Value
    pairs: list[PairOrder]


@dataclass(frozen=True)
class Consistency(ConsistencyScore):
    """Ranking consistency of a benchmark under the chosen windows, and under windows that fit each pair's training."""

    fitted: ConsistencyScore


@dataclass(frozen=True)
class ComplianceScore:
    """Science against web models on one benchmark."""

    value: Value
    interval: Bounds
    null_p: Value
    raw_gap: Value
    raw_gap_interval: Bounds
    normalisation: str
    normalisations: dict[str, Value]
    pairs: list[list[str]]
    checkpoints: list[int]


@dataclass(frozen=True)
class WeightShare:
    """How a benchmark ranks by the overall score over all weightings of its parts."""

    share_first: float
    rank_interval: list[float]


@dataclass(frozen=True)
class Ranking:
    """The order of a benchmark's models along their common points of training; `final` and `last`: at the last one."""

    models: list[str]
    tokens_b: np.ndarray | Missing
    interpolated: list[int]  # models that are read between two of their checkpoints, by point
    agreement_with_last: np.ndarray | Missing
    stable_from_b: Value
    stable_from_interval_b: Bounds
    nearly_stable_tau: float
    nearly_stable_from_b: Value
    nearly_stable_from_interval_b: Bounds
    pairs: int
    separable_pairs: int | Missing  # of them, those whose scores at the last point differ by more than noise
    settled_from_b: Value  # as nearly_stable_from_b, over the separable pairs
    settled_from_interval_b: Bounds
    size_pairs: int
    size_order_share: np.ndarray | Missing
    size_gap: np.ndarray | Missing
    separated_from_b: Value
    progress: np.ndarray = page_only()


@dataclass(frozen=True)
class FineTasks:
    """Criteria of FineTasks, and whether its thresholds are passed."""

    monotonicity: Value
    monotonicity_passes: bool | Missing
    signal_to_noise: Value
    signal_to_noise_passes: bool | Missing
    non_randomness: Value
    non_randomness_passes: bool | Missing
    ordering_consistency: Value


@dataclass(frozen=True)
class SignalAndNoise:
    """Criteria of Signal and Noise."""

    signal: Value
    noise: Value
    noise_from: str  # last checkpoints, or reruns where there are any
    signal_to_noise: Value
    signal_to_noise_interval: Bounds
    step_direction: Value
    total_variation: Value


@dataclass(frozen=True)
class Decisions:
    """Decision accuracy as in DataDecide."""

    middle_to_last: Value
    middle_to_last_interval: Bounds
    smallest_to_largest: Value
    smallest_to_largest_interval: Bounds


@dataclass(frozen=True)
class Criteria:
    """What others ask of a benchmark of early training."""

    finetasks: FineTasks
    signal_and_noise: SignalAndNoise
    decision_accuracy: Decisions


@dataclass(frozen=True)
class MetricQuality:
    """Signal quality of a benchmark if its items were scored otherwise; the same draws for all metrics."""

    signal_quality: Value
    interval: Bounds
    less_accuracy: Value | None  # signal quality minus that of accuracy; None for accuracy itself
    less_accuracy_interval: Bounds | None
    label: str = page_only()


@dataclass(frozen=True)
class Trial:
    """One filter under one split design (see `FilterTrial`)."""

    filter: str
    score: str
    design: str
    unfiltered: Value
    in_sample: Value
    held_out: Value
    optimism_gap: Value
    control_mean: Value
    control_high: Value
    p: Value
    useful: bool
    items: int
    kept_in_sample: int
    kept_by_fold: dict[str, int]
    length_dependence: Value
    per_item_score_ratio: Value


@dataclass(frozen=True)
class Subgroup:
    """Scores of some of a benchmark's items."""

    kind: str  # subject or answer length
    name: str
    items: int
    signal_quality: Value
    interval: Bounds
    last_score: float  # mean over models at their last checkpoint
    last_log_likelihood_per_token: Value  # of the right answer there


@dataclass(frozen=True)
class Progress:
    """How training is measured on the page: the axis title, the scale from billions, and words."""

    title: str
    scale: float
    words: str
    in_tokens: bool = True

    def describe(self, value: Value, interval: Bounds) -> str:
        """A point of training in words, with its interval where there is one."""
        ends = [end * self.scale for end in interval] if is_known(interval) else None
        return f"{with_interval(value * self.scale if is_known(value) else None, ends, 1)} {self.words}"


@dataclass(frozen=True)
class NoiseLevel:
    """Mean signal quality of white noise and of random walks of so many checkpoints."""

    checkpoints: int
    white: float
    walk: float


@dataclass(frozen=True)
class SignalSummary:
    """Everything that the signal report found; mappings are by benchmark unless they say otherwise."""

    selection: str
    conventions: Conventions
    models: dict[str, dict[str, ModelQuality]]  # by model, then benchmark
    benchmarks: dict[str, BenchmarkQuality]
    ranking_consistency: dict[str, Consistency]
    compliance: dict[str, ComplianceScore]
    overall: dict[str, Value]
    overall_interval: dict[str, Bounds]
    overall_null_p: dict[str, Value]
    weight_sensitivity: dict[str, WeightShare] | Missing
    ranking: dict[str, Ranking | Missing]
    criteria: dict[str, Criteria]
    item_metrics: dict[str, dict[str, MetricQuality] | Missing]  # then by metric
    filters: dict[str, list[Trial] | Missing]
    subgroups: dict[str, list[Subgroup] | Missing]
    standard_errors: tuple[ErrorCheck, ...]  # those that are not used
    notes: tuple[str, ...]
    labels: dict[str, str] = page_only()  # by model
    curves: pd.DataFrame = page_only()  # a row per benchmark, model and checkpoint, in the metric's own direction
    progress: Progress = page_only()
    noise: NoiseLevel | Missing = page_only()
