"""Kendall's tau between benchmarks: the mean, also without noise, its change, each benchmark, pairs, categories."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from lm_validity.missing import Missing, Reason, ReasonCode, is_known, known, number
from lm_validity.results.summary import page_only
from lm_validity.statistics import Interval
from lm_validity.studies.agreement.benchmarks import FiguresByName
from lm_validity.studies.agreement.data import Data, draws
from lm_validity.studies.agreement.intervals import ByProtocol, Range, Value, each, ends, over_families
from lm_validity.studies.agreement.reasons import (
    FEW_IN_BOTH,
    LOST_CATEGORY,
    LOST_CLUSTER,
    LOST_MODEL,
    NO_DIRECTION,
    NO_TAU,
    no_categories,
    no_ceiling,
    no_clusters,
    no_correction,
)
from lm_validity.studies.agreement.score_matrix import MINIMUM_FAMILY
from lm_validity.studies.agreement.similar import ABOVE_CEILING, ByRatio, RatioRows, Scored, among_pairs
from lm_validity.studies.agreement.statistics import noise, ranking, resampling
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED

Key = TypeVar("Key")
NO_PAIR = Reason(
    "The benchmark has fewer than two models in common with each other one, or they are tied.", ReasonCode.TOO_FEW
)


# ----------------------------------------------------------------------------------------------------------------------
# The numbers that several sections show: each protocol by itself, and the change.


TauOfPair = tuple[str, str, Value]  # of two benchmarks, by name
RangeOfPair = tuple[str, str, Range]
Ranges = dict[str, Range] | Missing  # by benchmark
SURER = 0.5  # times as wide as resampling has it: an interval that is narrower has lost the variance between models


@dataclass(frozen=True)
class CorrectedTau:
    """The agreement without measurement error: over all, by benchmark, by pair; intervals over models, and over
    families (`interval_clustered`)."""

    mean: Value
    interval: Range
    interval_clustered: Range
    by_benchmark: dict[str, Value]
    by_benchmark_interval: dict[str, Range]
    by_pair: list[TauOfPair]
    by_pair_interval: list[RangeOfPair]


@dataclass(frozen=True)
class AboveChance:
    """The agreement over the benchmarks on which a model is above chance: `above` of those where that is `known`."""

    above: int
    known: int
    mean: Value
    ceiling: Value


@dataclass(frozen=True)
class KendallTau:
    """Agreement of the benchmarks under one protocol over all of its scores; intervals over models, families
    (`interval_clustered`), and both models and benchmarks, or families and categories (`population`).

    `category_bounds`: (categories, categories) of the mean taus, over models.
    """

    models: int
    mean: Value
    interval: Range
    interval_population_of_benchmarks: Range
    by_benchmark: dict[str, Value]
    by_benchmark_interval: Ranges
    by_pair: list[TauOfPair]
    by_category: dict[str, dict[str, Value]]
    ceiling: Value
    ceiling_by_benchmark: dict[str, Value]
    corrected: CorrectedTau
    interval_clustered: Range
    interval_population_of_categories: Range
    by_size_ratio: RatioRows
    by_compute_ratio: RatioRows
    above_chance: AboveChance | Missing
    category_bounds: Interval[np.ndarray] | None = page_only()


ByProtocolTau = dict[str, KendallTau]


def tau_of_protocol(data: Data, protocol: str, by_ratio: ByRatio, single_benchmarks: FiguresByName) -> KendallTau:
    """The agreement of the benchmarks under a protocol, over all of its scores. `single_benchmarks`: what each
    benchmark by itself tells."""
    names, scores, agreement, ceiling = (
        data.tasks, data.scores[protocol], data.agreement[protocol], data.ceiling[protocol]
    )  # fmt: skip
    of_pair, of_benchmark = (data.no_tau(protocol, reason) for reason in (NO_TAU, NO_PAIR))
    no_tau = f"No pair of benchmarks has a tau. {NO_TAU}"
    mean = data.mean_or_reason(protocol, agreement.mean, no_tau)
    by_benchmark = each(names, agreement.by_benchmark, of_benchmark)
    over_models = over_benchmarks = None
    intervals: Ranges
    if data.no_intervals is not None:
        intervals = Missing(data.no_intervals)
    else:
        taus, models = data.resampled_tau[protocol], len(data.matrix.models)
        means = resampling.mean_over_pairs_by_resample(taus)
        over_models = resampling.percentile_interval(means, models)
        over_benchmarks = resampling.two_way_interval(
            resampling.mean_over_pairs_by_resample(taus, data.benchmark_weights),
            means,
            resampling.mean_over_pairs_by_resample(data.tau[protocol][None], data.benchmark_weights),
            models,
        )
        model_interval = resampling.percentile_interval(
            np.array([ranking.mean_with_others(tau) for tau in taus]), models
        )
        if data.opposed[protocol]:  # whichever way those benchmarks count
            turned = np.where(np.isin(names, data.opposed[protocol]), -1.0, 1.0)
            both_turned = np.outer(turned, turned)
            interval_turned = resampling.percentile_interval(
                np.array([ranking.mean_with_others(tau * both_turned) for tau in taus]), models
            )
            model_interval = resampling.hull(model_interval, interval_turned)
        bounds = zip(names, *model_interval, strict=True)
        either_way = {name: data.either_way(protocol, name, Interval(low, high)) for name, low, high in bounds}
        intervals = {name: ends(by_benchmark[name], interval) for name, interval in either_way.items()}
        intervals |= dict.fromkeys(data.opposed[protocol], Missing(NO_DIRECTION))
    interval = ends(mean, over_models, data.no_intervals)
    clustered, population = _over_clusters(data, mean, interval, protocol)
    without_ceiling = no_ceiling(ceiling.included, scores, protocol)
    return KendallTau(
        models=data.models(protocol),
        mean=mean,
        interval=interval,
        interval_population_of_benchmarks=ends(mean, over_benchmarks, data.no_intervals),
        by_benchmark=by_benchmark,
        by_benchmark_interval=mean if isinstance(mean, Missing) else intervals,
        by_pair=by_pair(names, data.tau[protocol], of_pair),
        by_category=by_category(agreement, data.categories, of_pair),
        ceiling=known(ceiling.mean_tau, without_ceiling),
        ceiling_by_benchmark=each(
            names,
            ceiling.by_benchmark,
            without_ceiling
            if np.isnan(ceiling.mean_tau)
            else "The benchmark is not in the noise ceiling: no standard errors, or models do not differ.",
        ),
        corrected=_no_surer(corrected_tau(data, protocol), data, protocol, interval, intervals),
        interval_clustered=clustered,
        interval_population_of_categories=population,
        by_size_ratio=by_ratio.by_size[protocol],
        by_compute_ratio=by_ratio.by_compute[protocol],
        above_chance=_above_chance(data, protocol, single_benchmarks),
        category_bounds=_category_bounds(data, protocol, agreement.categories),
    )


def by_pair(names: list[str], tau: np.ndarray, reason: str) -> list[TauOfPair]:
    """The tau of each pair of benchmarks with their names, missing for `reason` where it is NaN."""
    upper = zip(*np.triu_indices(len(names), 1), strict=True)
    return [(names[i], names[j], known(float(tau[i, j]), reason)) for i, j in upper]


def by_category(
    agreement: ranking.RankAgreement, categories: list[str | None], reason: str
) -> dict[str, dict[str, Value]]:
    """The mean taus within each category and between any two, by the categories' names; missing for `reason` where
    NaN."""
    single = Missing(Reason("A category of one benchmark has no tau within itself.", ReasonCode.TOO_FEW))
    return {
        a: {
            b: single if a == b and categories.count(a) == 1 else known(float(agreement.by_category[i, j]), reason)
            for j, b in enumerate(agreement.categories)
        }
        for i, a in enumerate(agreement.categories)
    }


def _category_bounds(data: Data, protocol: str, categories: Sequence[str]) -> Interval[np.ndarray] | None:
    """(categories, categories) intervals over models of the mean taus within and between categories."""
    if data.no_intervals is not None or not categories:
        return None
    members = np.array([[category == name for name in categories] for category in data.categories], dtype=float)
    off_diagonal = np.where(np.eye(len(data.tasks), dtype=bool), np.nan, 1.0)
    sums, pairs = resampling.weighted_pairs(data.resampled_tau[protocol] * off_diagonal, members[None])
    return resampling.percentile_interval(ranking.ratio(sums, pairs), len(data.matrix.models))


def _above_chance(data: Data, protocol: str, figures_of: FiguresByName) -> AboveChance | Missing:
    """The agreement over the benchmarks on which a model is above chance, of those where that is known; missing where
    there is none without such a model."""
    counts = {
        index: number(figures.models_above_chance)
        for index, figures in enumerate(figures_of.values())
        if not isinstance(figures, Missing) and is_known(figures.models_above_chance)
    }
    above = [index for index, models in counts.items() if models]
    if len(above) == len(counts):
        return Missing("No benchmark is known to be one on which no model is above chance.")
    square = np.ix_(above, above)
    too_few = Reason(
        "Fewer than two benchmarks on which a model is above chance have a tau or a noise ceiling.", ReasonCode.TOO_FEW
    )
    return AboveChance(
        above=len(above),
        known=len(counts),
        mean=known(ranking.mean_over_pairs(data.tau[protocol][square]) if above else float("nan"), too_few),
        ceiling=known(
            ranking.mean_over_pairs(data.ceiling[protocol].by_pair[square]) if above else float("nan"), too_few
        ),
    )


@dataclass(frozen=True)
class FlipTest:
    """The sign-flip test of the change: its effect, its one-sided p, and over how many benchmarks."""

    effect: Value
    p: Value
    units: int


@dataclass(frozen=True)
class Improvement:
    """What train before test changes: the mean taus before and after, and `mean`, their difference, with its intervals
    as those of `KendallTau`."""

    mean: Value
    means: ByProtocol
    interval: Range
    interval_clustered: Range
    interval_population_of_benchmarks: Range
    interval_population_of_categories: Range
    test: FlipTest
    by_size_ratio: dict[str, RatioRows]
    by_compute_ratio: dict[str, RatioRows]


def improvement(data: Data, by_ratio: ByRatio) -> Improvement:
    """What train before test changes, over what is known under both protocols, as `by_ratio` is."""
    reason, rows = data.nothing_compared("tau"), data.models_in_both
    means = {p: known(data.common_agreement[p].mean, reason) for p in PROTOCOLS}
    mean = known(data.common_agreement[TRAINED].mean - data.common_agreement[DIRECT].mean, reason)
    no_interval = data.no_intervals or FEW_IN_BOTH
    over_models = over_benchmarks = None
    if data.no_intervals is None and len(rows) >= MINIMUM_FAMILY:
        signs = {p: ranking.pair_signs(data.common[p][rows]) for p in PROTOCOLS}
        taus = data.resampled_tau
        if not data.whole:  # the models that have a cell known under both protocols, by themselves
            weights = resampling.multiplicities(len(rows), data.resamples, draws("changes"))
            taus = {p: ranking.resampled_kendall_tau(signs[p], weights) for p in PROTOCOLS}
        taus = ranking.known_in_all(taus)
        observed = ranking.known_in_all({p: ranking.kendall_tau_matrix(signs[p]) for p in PROTOCOLS})
        fixed = {p: observed[p][None] for p in PROTOCOLS}
        of_models, of_both, of_benchmarks = (
            resampling.mean_over_pairs_by_resample(resampled[TRAINED], weights)
            - resampling.mean_over_pairs_by_resample(resampled[DIRECT], weights)
            for resampled, weights in (
                (taus, None), (taus, data.benchmark_weights), (fixed, data.benchmark_weights)
            )
        )  # fmt: skip
        over_models = resampling.percentile_interval(of_models, len(rows))
        over_benchmarks = resampling.two_way_interval(of_both, of_models, of_benchmarks, len(rows))
    interval = ends(mean, over_models, no_interval)
    clustered, population = _over_clusters(data, mean, interval)
    test = _paired_test(data)
    return Improvement(
        mean=mean,
        means=means,
        interval=interval,
        interval_clustered=clustered,
        interval_population_of_benchmarks=ends(mean, over_benchmarks, no_interval),
        interval_population_of_categories=population,
        test=FlipTest(known(test.effect, reason), known(test.p, reason), test.units),
        by_size_ratio=by_ratio.by_size,
        by_compute_ratio=by_ratio.by_compute,
    )


def _paired_test(data: Data) -> resampling.PairedTest:
    """The sign-flip test of the change."""
    if not data.improved.compared:
        return resampling.PairedTest(float("nan"), float("nan"), 0)
    trained_direct = ranking.kendall_tau_matrix(
        ranking.pair_signs(data.common[TRAINED]), other_signs=ranking.pair_signs(data.common[DIRECT])
    )
    contributions = resampling.agreement_contributions(
        data.common_tau[DIRECT], data.common_tau[TRAINED], trained_direct
    )
    return resampling.sign_flip_test(contributions, draws("paired test"))


class _ClusterRanges(NamedTuple):
    """Intervals of the mean tau, and of the change for other models and other benchmarks."""

    mean: Range
    change: Range


def _over_clusters(data: Data, mean: Value, over_models: Range, protocol: str | None = None) -> _ClusterRanges:
    """Intervals of the mean tau under `protocol`, without it of the change over the cells known under both.

    The first has families as clusters. The second is for other models and other benchmarks: families and categories are
    clusters. Models of a table without families are clusters of their own.
    """
    without_families, without_categories = no_clusters(data.matrix.families), no_categories(data.categories)
    if isinstance(mean, Missing):
        return _ClusterRanges(mean, mean)
    if without_families is not None and without_categories is not None:
        return _ClusterRanges(Missing(without_families), Missing(without_categories))
    rows, compared = np.arange(len(data.matrix.models)), [data.scores[protocol]] if protocol else []
    if protocol is None:
        rows, compared = data.models_in_both, [data.compared_scores[p] for p in PROTOCOLS]
    families = resampling.cluster_numbers(data.matrix.families[rows])
    categories = resampling.cluster_numbers(np.array(data.categories, dtype=object))
    signs = [ranking.pair_signs(scores[rows]) for scores in compared]
    taus = np.array(
        [
            noise.mean_tau_left_out(signs_of_protocol, None, np.ones(len(signs_of_protocol.first), bool), families)[0]
            for signs_of_protocol in signs
        ]
    )
    between_categories = np.array(
        [
            resampling.means_without_clusters(ranking.kendall_tau_matrix(signs_of_protocol), categories)
            for signs_of_protocol in signs
        ]
    )
    taus, between_categories = (means[-1] - means[:-1].sum(axis=0) for means in (taus, between_categories))
    of_mean = partial(resampling.transformed_interval, taus[0], taus[1:], "tau" if protocol else "change")
    sizes = np.bincount(families, np.isfinite(compared[0]).any(axis=1) if protocol else None)
    clustered, population = of_mean(sizes), of_mean(sizes, between_categories, np.bincount(categories))
    return _ClusterRanges(
        over_families(ends(mean, clustered, LOST_CLUSTER), over_models, data.matrix.families)
        if without_families is None
        else Missing(without_families),
        ends(mean, population, LOST_CATEGORY) if without_categories is None else Missing(without_categories),
    )


def _no_surer(corrected: CorrectedTau, data: Data, protocol: str, over_models: Range, by_name: Ranges) -> CorrectedTau:
    """The corrected taus with no interval that is much surer than the one of the observed tau, corrected likewise.

    Leaving out one model at a time changes hardly anything where the models are two groups of equal size, although
    other draws of models would. Resampling sees that: an interval that is less than `SURER` times as wide as the
    resampled one, both of whose ends are corrected, is extended to hold it. `over_models`, `by_name`: resampled
    intervals of the observed taus, over all and by benchmark.
    """
    if isinstance(over_models, Missing) or isinstance(by_name, Missing):
        return corrected
    ceiling = data.ceiling[protocol]
    of_pairs = resampling.percentile_interval(data.resampled_tau[protocol], len(data.matrix.models))
    places = zip(*np.triu_indices(len(data.tasks), 1), strict=True)
    return replace(
        corrected,
        interval=_extended(corrected.interval, over_models, ceiling.mean_tau),
        by_benchmark_interval={
            name: _extended(interval, by_name[name], ceiling.by_benchmark[index])
            for index, (name, interval) in enumerate(corrected.by_benchmark_interval.items())
        },
        by_pair_interval=[
            (first, second, _extended(interval, Interval(*(float(end[at]) for end in of_pairs)), ceiling.by_pair[at]))
            for at, (first, second, interval) in zip(places, corrected.by_pair_interval, strict=True)
        ],
    )


def _extended(interval: Range, observed: Range, ceiling: float) -> Range:
    """An interval of a corrected tau, that of the observed one in it where it is much surer than that."""
    if isinstance(interval, Missing) or isinstance(observed, Missing):
        return interval
    low, high = map(float, noise.corrected_ends(observed, ceiling))
    if not interval.high - interval.low < SURER * (high - low):  # also where one of them is not known
        return interval
    return Interval(min(low, interval.low), max(high, interval.high))


def corrected_tau(data: Data, protocol: str) -> CorrectedTau:
    """The agreement without measurement error.

    A benchmark's or a pair's interval leaves out one model at a time; ceilings stay those of the whole table.
    """
    scored, names = Scored(protocol, data.scores[protocol], data.ceiling[protocol], data.matrix.families), data.tasks
    ceiling = scored.ceiling
    reason = no_correction(ceiling, scored.scores, protocol)
    mean: Value
    interval: Range
    clustered: Range
    by_benchmark, by_pair = np.full(len(names), np.nan), np.full((len(names), len(names)), np.nan)
    if reason is not None:
        mean = interval = clustered = Missing(reason)
    else:
        mean = known(float(noise.noise_corrected_tau(ceiling.observed, ceiling.mean_tau)), ABOVE_CEILING)
        everyone = among_pairs(
            scored, [np.ones(len(ranking.pair_signs(scored.scores).first), dtype=bool)], ((1.0, None),)
        )[0]
        interval = mean if isinstance(mean, Missing) else everyone.corrected_interval
        clustered = mean if isinstance(mean, Missing) else everyone.corrected_interval_clustered
        defined = [row[np.isfinite(row)] for row in ceiling.observed_by_pair]
        observed = np.array([row.mean() if len(row) else np.nan for row in defined])
        by_benchmark = np.asarray(noise.noise_corrected_tau(observed, ceiling.by_benchmark))
        by_pair = np.asarray(noise.noise_corrected_tau(ceiling.observed_by_pair, ceiling.by_pair))
    benchmark_intervals: dict[int, Interval[float]] = {}
    pair_intervals: dict[tuple[int, int], Interval[float]] = {}
    if reason is None and ceiling.expected is not None:
        signs, columns = ranking.pair_signs(scored.scores), ceiling.expected.columns
        taus, limits = noise.taus_left_out(
            signs, ceiling.expected, np.ones(len(signs.first), bool), np.arange(len(data.matrix.models))
        )
        first, second = np.triu_indices(len(columns), 1)
        has_both = np.isfinite(taus[:, :1]) & np.isfinite(limits[:, None])
        taus, limits = np.where(has_both, taus, np.nan), np.where(has_both[:, 0], limits, np.nan)
        places = zip(columns[first], columns[second], strict=True)
        pair_intervals = _intervals(places, noise.corrected_interval(taus[:, 0], limits, taus[:, 1:]))
        of_benchmark = [has_both[:, 0] & ((first == index) | (second == index)) for index in range(len(columns))]
        known_places = [index for index, has_any in enumerate(of_benchmark) if has_any.any()]
        means = np.array([taus[of_benchmark[index]].mean(axis=0) for index in known_places])
        tops = np.array([limits[of_benchmark[index]].mean() for index in known_places])
        if known_places:
            bounds = noise.corrected_interval(means[:, 0], tops, means[:, 1:])
            benchmark_intervals = _intervals(columns[known_places], bounds)
    reason_alone = " has no tau or no noise ceiling, or its tau is above the ceiling."
    of_benchmarks = each(names, by_benchmark.tolist(), reason or f"The benchmark{reason_alone}")
    of_pairs = {
        (int(i), int(j)): known(float(by_pair[i, j]), reason or f"The pair{reason_alone}")
        for i, j in zip(*np.triu_indices(len(names), 1), strict=True)
    }
    return CorrectedTau(
        mean=mean,
        interval=interval,
        interval_clustered=clustered,
        by_benchmark=of_benchmarks,
        by_benchmark_interval={
            name: ends(of_benchmarks[name], benchmark_intervals.get(j), LOST_MODEL) for j, name in enumerate(names)
        },
        by_pair=[(names[i], names[j], tau) for (i, j), tau in of_pairs.items()],
        by_pair_interval=[
            (names[i], names[j], ends(tau, pair_intervals.get((i, j)), LOST_MODEL)) for (i, j), tau in of_pairs.items()
        ],
    )


def _intervals(keys: Iterable[Key], bounds: Interval[np.ndarray]) -> dict[Key, Interval[float]]:
    """One interval a key, from the bounds of all."""
    return {key: Interval(*ends) for key, *ends in zip(keys, *(end.tolist() for end in bounds), strict=True)}


def benchmark_order(tau: ByProtocolTau, tasks: Sequence[str]) -> list[str]:
    """Benchmarks from most to least agreement, directly where that is known."""
    by_protocol = {p: tau[p].by_benchmark for p in PROTOCOLS}
    values = by_protocol[DIRECT if any(map(is_known, by_protocol[DIRECT].values())) else TRAINED]
    return sorted(tasks, key=lambda name: -number(values[name]) if is_known(values[name]) else np.inf)


def category_grid(of_categories: dict[str, dict[str, Value]]) -> np.ndarray:
    """(categories, categories) taus, NaN where missing."""
    return np.array([[number(tau) for tau in row.values()] for row in of_categories.values()])
