"""One benchmark: which models and checkpoints are compared, its scores, and the same of resampled curves and of nulls.

What several sections of the report read is here; what one section alone needs, it computes itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.random import Generator
from scipy.stats import false_discovery_control

from lm_validity.config.sections import Reports, SignalConventions
from lm_validity.statistics import Interval, models_above_chance, section_generator
from lm_validity.studies.signal.curves import CommonPoints, Curve, LearningCurves, align, select
from lm_validity.studies.signal.statistics import quality as scores_of
from lm_validity.studies.signal.statistics.items import FilterTrial
from lm_validity.studies.signal.statistics.quality import RankingWindows, ScienceLead
from lm_validity.tables.items import NO_CHANCE
from lm_validity.tables.training import NOT_MEASURED, TrainingNoise
from lm_validity.words import Missing, Reason, ReasonCode, known, number, scale_of, too_few

Value = float | Missing
Found = bool | Missing  # whether something is found: False does not say that it is not there
Bounds = tuple[float, float] | Missing
Draws = np.ndarray | Missing  # (resamples,) or (resamples, ...), or why there are none
# Scores of each model, (..., n): leading axes are resamples, the last one the checkpoints of the model's curve
Values = dict[str, np.ndarray]

SKIPPED = Missing(Reason("Intervals and p-values were skipped (resamples = 0).", ReasonCode.SKIPPED))
CONTROLS = 200  # random choices of the same size beside every filter
FALLING = 0.5  # rank correlation of score and checkpoint, from which below 0 scores fall
FALSE_DISCOVERIES = 0.05  # rate, of what is said of several benchmarks
WHICH_DIRECTION = Missing("Scores fall steadily, and nothing says which direction is better.")
UNKNOWN_TOKENS = "Tokens are unknown."
NO_ERRORS = Missing(Reason("Whether a score is above chance needs its standard error.", ReasonCode.NO_ERRORS))
NO_ITEMS = Missing(Reason("This needs the benchmark's items, and no items table has them.", ReasonCode.NO_ITEMS))
NO_NOISE = Missing(Reason("It needs a standard error of every model's scores, or items.", ReasonCode.NO_ERRORS))


def bounds(value: Value, draws: Draws, limits: Interval[float] = scores_of.UNLIMITED) -> Bounds:
    """The resampling interval of a value; the value's own reason, or that of the draws, where there is none."""
    if isinstance(value, Missing):
        return value
    if isinstance(draws, Missing):
        return draws
    if draws.size == 0:
        return SKIPPED
    none = Reason("None of the resamples has a value.", ReasonCode.NO_INTERVAL)
    return known_bounds(*scores_of.resampling_interval(value, draws, limits), none)


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
    return known(scores_of.exceedance_p(value, null), "The null has no value in some of its draws.")


def discoveries(p: Mapping[str, Value]) -> dict[str, Found]:
    """Which of these are found, at a false discovery rate of 5% over those with a p (Benjamini and Hochberg 1995)."""
    tested = {name: value for name, value in p.items() if not isinstance(value, Missing)}
    adjusted = dict(zip(tested, false_discovery_control(list(tested.values())), strict=True)) if tested else {}
    return {
        name: value if isinstance(value, Missing) else bool(adjusted[name] <= FALSE_DISCOVERIES)
        for name, value in p.items()
    }


def mean_of_known(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Mean over a list of equally shaped arrays, NaN left out; NaN where none is known."""
    if not arrays:
        return np.array(np.nan)
    stacked = np.stack(np.broadcast_arrays(*arrays))
    n_present = (~np.isnan(stacked)).sum(axis=0)
    return np.asarray(np.nansum(stacked, axis=0) / np.where(n_present, n_present, np.nan))


# ----------------------------------------------------------------------------------------------------------------------
# What belongs together: pairs of architectures, science and web models, common points of training.


def too_few_checkpoints(options: SignalConventions) -> str:
    """Why a model has no signal quality."""
    fewest = scores_of.fewest_checkpoints(options.convention)
    return f"Signal quality needs {fewest} selected checkpoints of a model for its autocorrelation."


def windows_of(learning: LearningCurves, options: SignalConventions) -> RankingWindows:
    """The windows of ranking consistency. The competition's are scaled to the length of each pair's training where
    every training is over before the first of them, or tokens are unknown."""
    windows = RankingWindows(options.base_window, options.later_window)
    if windows != scores_of.E2LM_WINDOWS:
        return windows
    ends = [curve.tokens_b[-1] for by_model in learning.curves.values() for curve in by_model.values()]
    return windows._replace(relative=bool(not np.nanmax([*ends, 0.0]) >= windows.base[0]))


class Pair(NamedTuple):
    """Two models at their common points of training, and which of these lie in the windows of ranking consistency."""

    first: str
    second: str
    alignment: CommonPoints
    size: str
    windows: scores_of.WindowMasks  # empty of pairs that are not compared in windows

    def read(self, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """Both models' values (..., points) at the common points, from `values` (..., n) at their own checkpoints."""
        first, second = self.alignment.places
        return first.read(values[self.first]), second.read(values[self.second])

    def gap(self, values: Values) -> np.ndarray:
        """By how much the first is ahead of the second (..., points)."""
        first, second = self.read(values)
        return np.asarray(first - second)

    @property
    def counts(self) -> bool:
        """Whether there is a checkpoint in either window."""
        return all(window.any() for window in self.windows)


@dataclass(frozen=True)
class CurveDesign:
    """Which models and checkpoints of one benchmark each score reads."""

    benchmark: str
    direction_assumed: bool  # nothing says it
    direction: float  # -1 where the metric is better when lower: curves are the metric times this
    chance: Value  # the score of guessing, in the metric's own direction
    facts: pd.DataFrame  # as of `LearningCurves`
    curves: dict[str, Curve]
    training_noise: TrainingNoise | Missing
    selected: dict[str, np.ndarray]  # by model: checkpoints of signal quality
    scored: list[str]
    ranking_pairs: list[Pair]  # of ranking consistency
    compliance_pairs: list[Pair]  # first: science, second: web
    alignment: CommonPoints  # of the scored models

    @classmethod
    def of(cls, learning: LearningCurves, benchmark: str, options: SignalConventions) -> "CurveDesign":
        """The curves of a benchmark, and which models, pairs, points and windows belong together: decided once."""
        by_model, scored = learning.curves[benchmark], learning.scored(benchmark)
        curves = {model: by_model[model] for model in learning.facts.index if model in by_model}
        return cls(
            benchmark=benchmark,
            direction_assumed=benchmark in learning.assumed,
            direction=learning.direction[benchmark],
            chance=learning.chance.get(benchmark, NO_CHANCE),
            facts=learning.facts,
            curves=curves,
            training_noise=learning.training_noise.get(benchmark, Missing(NOT_MEASURED)),
            selected={model: select(curve, learning.selection) for model, curve in curves.items()},
            scored=scored,
            ranking_pairs=_ranking_pairs(learning, benchmark, windows_of(learning, options)),
            compliance_pairs=_compliance_pairs(learning, benchmark),
            alignment=align({model: curves[model] for model in scored}),
        )

    @property
    def chance_level(self) -> float:
        """Chance as statistics take it: oriented as the curves are, NaN where it is unknown."""
        return self.direction * number(self.chance)

    @property
    def values(self) -> Values:
        """The scores of the curves, by model."""
        return {model: curve.values for model, curve in self.curves.items()}

    @property
    def selected_curves(self) -> dict[str, Curve]:
        """By model its curve at the checkpoints that signal quality takes."""
        return {model: curve.at(self.selected[model]) for model, curve in self.curves.items()}

    def at_common_points(self, values: Values) -> np.ndarray:
        """Values (..., models, points) of the scored models at their common points of training."""
        places = zip(self.scored, self.alignment.places, strict=True)
        return np.stack([points.read(values[model]) for model, points in places], axis=-2)


def _ranking_pairs(learning: LearningCurves, benchmark: str, windows: RankingWindows) -> list[Pair]:
    """Pairs of one size and training data and of two architectures, the alphabetically first architecture first."""
    facts, curves, pairs = learning.model_facts, learning.curves[benchmark], list[Pair]()
    scored = learning.scored(benchmark)
    for size in dict.fromkeys(size for model in scored if (size := facts[model].size) is not None):
        named = {m: name for m in scored if facts[m].size == size and (name := facts[m].architecture) is not None}
        for first, second in combinations(sorted(named, key=lambda model: (named[model], model)), 2):
            alike = _alike(facts[first].training_data, facts[second].training_data)
            if named[first] == named[second] or not alike:
                continue
            pair = {first: curves[first], second: curves[second]}
            common = align(pair, [select(curve, learning.selection, early=False) for curve in pair.values()])
            # relative windows are shares of the training, whatever it is counted in; the others are billions of tokens
            window_masks = windows.masks(common.progress if windows.relative else common.tokens_b)
            pairs.append(Pair(first, second, common, size, window_masks))
    return pairs


def _compliance_pairs(learning: LearningCurves, benchmark: str) -> list[Pair]:
    """Pairs of a science and a web model of one size, of one architecture where it is known."""
    curves, no_windows, pairs = learning.curves[benchmark], scores_of.WindowMasks(*np.empty((2, 0))), list[Pair]()
    for science, web in product([model for model in learning.facts.index if model in curves], repeat=2):
        a, b = learning.model_facts[science], learning.model_facts[web]
        if (a.training_data, b.training_data) != ("science", "web"):
            continue
        if a.size is None or a.size != b.size or not _alike(a.architecture, b.architecture):
            continue
        pair = {science: curves[science], web: curves[web]}
        common = align(pair, [select(curve, learning.selection, spaced=False) for curve in pair.values()])
        pairs.append(Pair(science, web, common, a.size, no_windows))
    return pairs


def _alike(a: str | None, b: str | None) -> bool:
    """Equal, or unknown in either."""
    return a is None or b is None or a == b


# ----------------------------------------------------------------------------------------------------------------------
# Scores: the same code for the curves themselves and for resampled ones.


class CurveScores(NamedTuple):
    """Scores of one benchmark; arrays have the values' leading shape."""

    quality: dict[str, scores_of.SignalQuality]
    mean_quality: np.ndarray  # over scored models
    rank_correlation: np.ndarray  # of score and checkpoint, mean over scored models; NaN where no curve has two points
    order: np.ndarray  # ranking consistency
    lead: ScienceLead  # of the science models over the web models
    overall: np.ndarray


Reader = Callable[[CurveScores], np.ndarray]  # of one score from all


def compute_scores(design: CurveDesign, values: Values, options: SignalConventions, chance: float) -> CurveScores:
    """All scores of a benchmark from `values`, e.g. bootstrap means (resamples, n) of every model."""
    quality = {
        model: scores_of.signal_quality(values[model][..., design.selected[model]], options) for model in design.curves
    }
    of_scored = [quality[model] for model in design.scored]
    mean_quality = mean_of_known([of_model.signal_quality for of_model in of_scored])
    pairs = design.ranking_pairs
    order = _mean_over_sizes(pairs, [scores_of.pair_consistency(pair.gap(values), pair.windows) for pair in pairs])
    leads = [
        scores_of.compliance(*pair.read(values), options.normalisation, chance) for pair in design.compliance_pairs
    ]
    lead = ScienceLead(mean_of_known([pair.value for pair in leads]), mean_of_known([pair.gap for pair in leads]))
    parts = np.stack(np.broadcast_arrays(mean_quality, order, lead.value), -1)
    correlation = mean_of_known([of_model.rank_correlation for of_model in of_scored])
    overall = parts @ np.array(options.weights)  # NaN where a part is
    return CurveScores(quality, mean_quality, correlation, order, lead, overall)


def _mean_over_sizes(pairs: list[Pair], values: list[np.ndarray]) -> np.ndarray:
    """Mean over sizes of the mean over the pairs of each, so that every size has one vote; NaN is left out."""
    of_size: dict[str, list[np.ndarray]] = {}
    for pair, value in zip(pairs, values, strict=True):
        of_size.setdefault(pair.size, []).append(value)
    return mean_of_known([mean_of_known(values_of_size) for values_of_size in of_size.values()])


# ----------------------------------------------------------------------------------------------------------------------
# A benchmark with its scores, their resamples, and what they would be by chance.


ByTrial = dict[tuple[str, str, str], FilterTrial]  # by filter, item score and design
Trials = ByTrial | Missing


class ItemAnalysis(NamedTuple):
    """What items add to a benchmark whose items reproduce its scores; `notes` are remarks on what the items lack."""

    items: int
    errors: dict[str, np.ndarray]  # by model: standard errors (n,) of its curve over items
    noise: np.ndarray  # (points, models, models) covariances of the scored models' errors at their common points
    resampled: Values | Missing
    trials: Trials
    notes: tuple[str, ...]


class OrderDraws(NamedTuple):
    """Ranking consistency (resamples,) under a block bootstrap of checkpoints, and if coins decided."""

    blocks: Draws
    coins: Draws


@dataclass(frozen=True)
class BenchmarkCurves(CurveDesign):
    """A benchmark's curves with all that is computed from them: scores, resamples, nulls and noise."""

    scores: CurveScores
    resampled: Values | Missing  # curves (resamples, n) by model: means of resampled items, else normal draws
    resampled_scores: CurveScores | Missing  # leading axis: resamples
    items: ItemAnalysis | Missing
    errors: dict[str, np.ndarray]  # by model: standard errors (n,) of its curve; NaN where unknown
    noise: np.ndarray | Missing  # (points, models, models) covariances of the scored models' errors, common points
    quality_walk: dict[str, np.ndarray]  # by model: quality of its random walks
    order_draws: OrderDraws
    quality: Value  # signal quality, mean over the scored models
    fall_p: Value  # as `walk_p`, of the curves upside down; where the direction is assumed

    def over_items(self, value: Value, read: Reader, limits: Interval[float] = scores_of.UNLIMITED) -> Bounds:
        """The 95% interval of a score that is read from all scores, over resampled items."""
        drawn = self.resampled_scores
        return bounds(value, drawn if isinstance(drawn, Missing) else read(drawn), limits)

    @cached_property
    def mean_curve(self) -> np.ndarray:
        """(points,) mean of the scored models at their common points, in the metric's own direction."""
        return np.asarray(self.direction * self.at_common_points(self.values).mean(axis=0))

    @cached_property
    def walk_p(self) -> Value:
        """p of the signal quality against curves that drift: random signs of the steps."""
        return p_value(self.quality, mean_of_known([self.quality_walk[model] for model in self.scored]))

    @cached_property
    def models_above_chance(self) -> int | Missing:
        """How many models end above chance, by one-sided tests at 5% with Holm's adjustment over models."""
        if isinstance(self.chance, Missing):
            return self.chance
        last, errors = np.array([(self.curves[m].values[-1], self.errors[m][-1]) for m in self.scored]).T
        return NO_ERRORS if np.isnan(errors).any() else models_above_chance(last, errors, self.chance_level)


def analyze_benchmark(design: CurveDesign, items: ItemAnalysis | Missing, section: Reports) -> BenchmarkCurves:
    """Compute a benchmark's curve scores, those of resampled items, and those of random walks."""
    options, resamples, level = section.signal, section.resamples, design.chance_level
    values, selected = design.values, design.selected_curves
    curves, names = [c.values for c in selected.values()], [c.checkpoints for c in selected.values()]
    of_order, of_walks = (section_generator(f"{name} {design.benchmark}") for name in ("order", "walks"))
    walked = scores_of.walked_quality(curves, names, scores_of.Controls(of_walks, resamples, options))
    errors = {
        model: curve.errors if isinstance(items, Missing) or not np.isnan(curve.errors).any() else items.errors[model]
        for model, curve in design.curves.items()
    }
    resampled = _resampled(values, errors, items, resamples)
    scores = compute_scores(design, values, options, level)
    return BenchmarkCurves(
        **vars(design),
        scores=scores,
        resampled=resampled,
        resampled_scores=resampled
        if isinstance(resampled, Missing)
        else compute_scores(design, resampled, options, level),
        items=items,
        errors=errors,
        noise=_noise(design, errors, items),
        quality_walk={model: walked[:, index] for index, model in enumerate(selected)},
        order_draws=_consistency_draws(design.ranking_pairs, values, resamples, of_order),
        quality=known(float(scores.mean_quality), too_few_checkpoints(options)),
        fall_p=_fall_p(design, scores, section),
    )


def _fall_p(design: CurveDesign, scores: CurveScores, section: Reports) -> Value:
    """p of a steady fall, where nothing says which direction is better; 1 where scores do not fall.

    The curves upside down, against their random walks: that scores fall from the first checkpoint to the last is no
    more than a drift does half of the time.
    """
    if not design.direction_assumed:
        return Missing("It is known which direction is better.")
    if not np.isfinite(scores.mean_quality):
        return Missing(too_few_checkpoints(section.signal))
    if not scores.rank_correlation <= -FALLING:
        return 1.0
    curves = [design.selected_curves[model] for model in design.scored]
    turned, names = [-curve.values for curve in curves], [curve.checkpoints for curve in curves]
    controls = scores_of.Controls(section_generator(f"falls {design.benchmark}"), section.resamples, section.signal)
    quality = mean_of_known([scores_of.signal_quality(curve, section.signal).signal_quality for curve in turned])
    walks = scores_of.walked_quality(turned, names, controls)
    return p_value(float(quality), mean_of_known(list(walks.T)))


def _noise(design: CurveDesign, errors: Values, items: ItemAnalysis | Missing) -> np.ndarray | Missing:
    """Covariances (points, models, models) of the scored models' errors at their common points: over the items, else of
    standard errors taken as independent between models. Missing where a model lacks one. The noise of training, where
    it was measured, comes on top: each model was trained once."""
    training = 0.0 if isinstance(design.training_noise, Missing) else design.training_noise.sd**2
    training_noise = training * np.eye(len(design.scored))
    if isinstance(items, ItemAnalysis):
        return items.noise + training_noise
    error = design.at_common_points(errors)
    covariance = error.T[:, :, None] ** 2 * np.eye(len(error)) + training_noise
    return NO_NOISE if np.isnan(covariance).any() else covariance


def _resampled(values: Values, errors: Values, items: ItemAnalysis | Missing, resamples: int) -> Values | Missing:
    """Curves under resampled items, else normal draws x_i + se_i z_i around their values by their standard errors.

    These are drawn independently, as though every checkpoint had items of its own. Checkpoints share their items, so
    that their true errors move together and disturb the shape of a curve less: intervals from these draws are too wide,
    and lie too low for a score that noise lowers.
    """
    if not resamples:
        return SKIPPED
    if isinstance(items, ItemAnalysis):
        return items.resampled
    if any(np.isnan(errors_of_model).any() for errors_of_model in errors.values()):
        lacks = f"{items.reason} Not all of its scores have a standard error either."
        return Missing(Reason(lacks, ReasonCode.NO_ERRORS))
    generator = np.random.default_rng(0)
    return {m: x + errors[m] * generator.standard_normal((resamples, len(x))) for m, x in values.items()}


def _consistency_draws(pairs: list[Pair], values: Values, resamples: int, generator: Generator) -> OrderDraws:
    """Ranking consistency by block bootstrap, and by coins, averaged as the value is.

    The pairs are those that count in the value: with a checkpoint in either window. Missing without any; the block
    bootstrap also where one of them has too few checkpoints to draw blocks from, since without it the draws would be
    of another mean than the value.
    """
    counted = [pair for pair in pairs if pair.counts]
    if not counted:
        none = Missing("No pair of architectures has a checkpoint in either window.")
        return OrderDraws(none, none)
    gaps = [pair.gap(values) for pair in counted]
    windows, coins = [pair.windows for pair in counted], list[np.ndarray]()
    of_gaps = zip(gaps, windows, strict=True)
    blocks = [scores_of.bootstrap_pair_consistency(gap, masks, resamples, generator) for gap, masks in of_gaps]
    for gap, (base, later) in zip(gaps, windows, strict=True):
        lasting = scores_of.persistence(gap[base | later])
        coins.append(scores_of.coin_flip_consistency(int(later.sum()), resamples, generator, lasting))
    coin = _mean_over_sizes(counted, coins)
    if min(later.sum() for _, later in windows) < (fewest := scores_of.MINIMUM_FOR_BLOCKS):
        sentence = f"One of its pairs has fewer than {fewest} later checkpoints to draw blocks from."
        return OrderDraws(Missing(too_few(sentence)), coin)
    return OrderDraws(_mean_over_sizes(counted, blocks), coin)


# ----------------------------------------------------------------------------------------------------------------------
# All benchmarks.


class TrainingAxis(NamedTuple):
    """How training is measured on the page: the scale from billions, and words."""

    scale: float
    words: str
    in_tokens: bool = True


@dataclass(frozen=True)
class SignalData:
    """What every section of the signal report reads: curves, settings and the results of each benchmark."""

    learning: LearningCurves
    section: Reports
    benchmarks: dict[str, BenchmarkCurves]
    own_models: tuple[str, ...] = ()  # models of the reader, whose curves stand out among those of others

    @cached_property
    def windows(self) -> RankingWindows:
        """The windows of training over which ranking consistency is taken."""
        return windows_of(self.learning, self.section.signal)

    @cached_property
    def falling(self) -> list[str]:
        """The benchmarks whose scores fall more steadily than a random walk (false discovery rate 5%) while nothing
        says which direction is better: most likely the other one."""
        falls = discoveries({name: entry.fall_p for name, entry in self.benchmarks.items()})
        return [name for name, is_fall in falls.items() if is_fall is True]

    @cached_property
    def steady(self) -> dict[str, Found]:
        """By benchmark, whether its scores improve steadily in training: whether that is shown.

        They move more steadily than a random walk (`walk_p`, false discovery rate 5% over benchmarks, Benjamini and
        Hochberg 1995), they improve, and they do not end at chance.
        """
        falling = self.falling
        p = {n: WHICH_DIRECTION if n in falling else entry.walk_p for n, entry in self.benchmarks.items()}
        steady = discoveries(p)
        for name, benchmark in self.benchmarks.items():
            if steady[name] is True:
                steady[name] = bool(benchmark.scores.rank_correlation > 0) and benchmark.models_above_chance != 0
        return steady

    @cached_property
    def progress(self) -> TrainingAxis:
        """Billions, millions or thousands of tokens, by the longest training; iterations where tokens are unknown."""
        curves = [curve for benchmark in self.benchmarks.values() for curve in benchmark.curves.values()]
        if any(np.isnan(curve.tokens_b).any() for curve in curves):
            return TrainingAxis(1.0, "steps", in_tokens=False)
        scale, unit = scale_of(max(curve.tokens_b[-1] for curve in curves))
        return TrainingAxis(scale, f"{unit} tokens")
