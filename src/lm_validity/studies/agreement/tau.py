"""Kendall's tau between benchmarks as rows: the mean, also without noise, each benchmark, pairs, the change."""

from collections.abc import Mapping
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from lm_validity.results.put import Rows
from lm_validity.statistics import Interval
from lm_validity.studies.agreement.data import Data, draws
from lm_validity.studies.agreement.score_matrix import MINIMUM_FAMILY
from lm_validity.studies.agreement.similar import (
    ABOVE_CEILING,
    clusters_left_out,
    corrected_interval,
    left_out_intervals,
)
from lm_validity.studies.agreement.statistics import noise, ranking, resampling
from lm_validity.studies.agreement.values import (
    FEW_IN_BOTH,
    LOST_CATEGORY,
    LOST_CLUSTER,
    LOST_MODEL,
    NO_DIRECTION,
    NO_TAU,
    Range,
    Value,
    ends,
    no_categories,
    no_ceiling,
    no_clusters,
    no_correction,
    over_families,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import Missing, Reason, ReasonCode, known

NO_PAIR = Reason(
    "The benchmark has fewer than two models in common with each other one, or they are tied.", ReasonCode.TOO_FEW
)
NO_SIGNIFICANT = "On one of the two benchmarks no difference of the models in common is known to be significant."
OUT_OF_CEILING = "The benchmark is not in the noise ceiling: no standard errors, or models do not differ."
SURER = 0.5  # times as wide as resampling has it: an interval that is narrower has lost the variance between models


def put_agreement(rows: Rows, data: Data) -> None:
    """The agreement of the benchmarks under each protocol, over all of its scores, as rows. The rows of each benchmark
    (`above_chance`) are there already."""
    for protocol in PROTOCOLS:
        _put_protocol(rows.of(protocol=protocol), data, protocol)
    significant = ranking.known_in_all(
        {p: ranking.kendall_tau_matrix(signs) for p, signs in data.common_significant.items()}
    )
    improved, compared = ranking.improved_pairs(significant[DIRECT], significant[TRAINED])
    rows.put(
        "significance_improved_pairs",
        improved if compared else Missing(data.nothing_compared("significance tau")),
        "pairs",
        counted=("compared_pairs", compared),
    )


def _put_protocol(at: Rows, data: Data, protocol: str) -> None:
    names, agreement, ceiling = data.tasks, data.agreement[protocol], data.ceiling[protocol]
    of_pair, of_benchmark = (data.no_tau(protocol, reason) for reason in (NO_TAU, NO_PAIR))
    counted = "models", data.models(protocol)
    mean = data.mean_or_reason(protocol, agreement.mean, f"No pair of benchmarks has a tau. {NO_TAU}")
    with_others = [known(tau, of_benchmark) for tau in agreement.by_benchmark]
    over_models, over_benchmarks, intervals = _resampled(data, protocol, mean, with_others)
    families, categories = over_clusters(data, mean, over_models, protocol)
    means = {"models": over_models, "families": families, "benchmarks": over_benchmarks, "categories": categories}
    at.put("tau_mean", mean, "tau", data.sure(means, protocol), counted=counted)
    without = no_ceiling(ceiling.included, data.scores[protocol], protocol)
    at.put("tau_ceiling", ceiling.mean_tau, "tau", counted=counted, why=without)
    outside = without if np.isnan(ceiling.mean_tau) else OUT_OF_CEILING
    # models with scores on both benchmarks of a pair; on the diagonal, on the one
    common = (np.isfinite(data.scores[protocol]).astype(int).T @ np.isfinite(data.scores[protocol])).tolist()
    for i, (name, value, limit) in enumerate(zip(names, with_others, ceiling.by_benchmark, strict=True)):
        of_one = "models", common[i][i]
        at.put("tau_with_others", value, "tau", {"models": intervals[i]}, counted=of_one, subject=name)
        at.put("tau_with_others_ceiling", limit, "tau", counted=of_one, subject=name, why=outside)
    for (i, a), (j, b) in combinations(enumerate(names), 2):
        tau, of_both = float(data.tau[protocol][i, j]), ("models", common[i][j])
        at.put("tau", tau, "tau", counted=of_both, subject=a, other=b, why=of_pair)
    single = Missing(Reason("A category of one benchmark has no tau within itself.", ReasonCode.TOO_FEW))
    for (i, a), (j, b) in product(enumerate(agreement.categories), repeat=2):
        has_tau = a != b or data.categories.count(a) > 1
        tau_of = known(float(agreement.by_category[i, j]), of_pair) if has_tau else single
        at.put("tau_of_categories", tau_of, "tau", counted=counted, subject=a, other=b)
    _put_corrected(at, data, protocol, over_models, dict(zip(names, intervals, strict=True)))
    _put_above_chance(at, data, protocol)
    _put_significant(at, data, protocol)
    if data.matrix.has(protocol):
        taus = ranking.one_with_others(data.scores[protocol])
        alone = known(float(taus[0]), "No benchmark has a tau with the others.")
        interval = ends(alone, resampling.transformed_interval(taus[0], taus[1:], "tau"), LOST_MODEL)
        at.put("tau_one_with_others", alone, "tau", {"models": interval})


class _Resampled(NamedTuple):
    """Intervals of the mean tau, over models and over benchmarks too, and of each benchmark's, over models."""

    models: Range
    benchmarks: Range
    by_benchmark: list[Range]


def _resampled(data: Data, protocol: str, mean: Value, with_others: list[Value]) -> _Resampled:
    """Where the direction of a benchmark is not known and its order is surely against the others', its tau has no
    interval, and those of the others hold either way."""
    names, models = data.tasks, len(data.matrix.models)
    if isinstance(mean, Missing) or data.no_intervals is not None:
        nothing: Range = ends(mean, None, data.no_intervals)
        return _Resampled(nothing, nothing, [nothing] * len(names))
    taus = data.resampled_tau[protocol]
    means, both = (resampling.mean_over_pairs_by_resample(taus, weights) for weights in (None, data.benchmark_weights))
    fixed = resampling.mean_over_pairs_by_resample(data.tau[protocol][None], data.benchmark_weights)
    bounds = resampling.percentile_interval(np.array([ranking.mean_with_others(tau) for tau in taus]), models)
    if data.opposed[protocol]:  # whichever way those benchmarks count
        turned = np.where(np.isin(names, data.opposed[protocol]), -1.0, 1.0)
        turned_taus = (ranking.mean_with_others(tau * np.outer(turned, turned)) for tau in taus)
        bounds = resampling.hull(bounds, resampling.percentile_interval(np.array([*turned_taus]), models))
    intervals: list[Range] = []
    for name, value, low, high in zip(names, with_others, *bounds, strict=True):
        either_way = ends(value, data.either_way(protocol, name, Interval(low, high)))
        intervals.append(Missing(NO_DIRECTION) if name in data.opposed[protocol] else either_way)
    over_models = ends(mean, resampling.percentile_interval(means, models))
    return _Resampled(over_models, ends(mean, resampling.two_way_interval(both, means, fixed, models)), intervals)


def _put_significant(at: Rows, data: Data, protocol: str) -> None:
    """Agreement where models that do not differ significantly count as tied."""
    signs = data.significant[protocol]
    tau = ranking.kendall_tau_matrix(signs)
    mean, interval = data.mean_or_reason(protocol, ranking.mean_over_pairs(tau), NO_SIGNIFICANT), None
    if data.no_intervals is None:
        interval = resampling.percentile_interval(
            resampling.resampled_mean_tau(signs, data.weights), len(data.matrix.models)
        )
    over_models = data.sure({"models": ends(mean, interval, data.no_intervals)}, protocol)
    at.put("significance_tau_mean", mean, "tau", over_models)


def _put_above_chance(at: Rows, data: Data, protocol: str) -> None:
    """The agreement over the benchmarks on which a model is above chance, of those where that is known; missing where
    there is none without such a model."""
    counts = {row.subject: row.value for row in at.all("above_chance", protocol=protocol) if row.value is not None}
    above = [index for index, name in enumerate(data.tasks) if counts.get(name)]
    if len(above) == len(counts):
        none = Missing("No benchmark is known to be one on which no model is above chance.")
        at.put("tau_mean_above_chance", none, "tau")
        return
    too_few = Reason("Fewer than two benchmarks on which a model is above chance have a tau.", ReasonCode.TOO_FEW)
    mean = ranking.mean_over_pairs(data.tau[protocol][np.ix_(above, above)]) if above else np.nan
    at.put("tau_mean_above_chance", mean, "tau", counted=("above", len(above)), why=too_few)


# ----------------------------------------------------------------------------------------------------------------------
# Without noise.


def _put_corrected(at: Rows, data: Data, protocol: str, observed: Range, by_name: Mapping[str, Range]) -> None:
    """The agreement without measurement error, over all and by benchmark.

    A benchmark's interval leaves out one model at a time; ceilings stay those of the whole table. `observed`,
    `by_name`: resampled intervals of the observed taus. Leaving out one model at a time changes hardly anything where
    the models are two groups of equal size, although other draws of models would. Resampling sees that: an interval
    that is less than `SURER` times as wide as the resampled one, both of whose ends are corrected, is extended to hold
    it.
    """
    ceiling, names, counted = data.ceiling[protocol], data.tasks, ("models", data.models(protocol))
    scores = data.scores[protocol]
    reason = no_correction(ceiling, scores, protocol)
    mean: Value = Missing(reason or ABOVE_CEILING)
    corrected: dict[str, Range] = dict.fromkeys(("models", "families"), Missing(reason or ABOVE_CEILING))
    taus, intervals = np.full(len(names), np.nan), dict[int, Interval[float]]()
    if reason is None:
        mean = known(float(noise.noise_corrected_tau(ceiling.observed, ceiling.mean_tau)), ABOVE_CEILING)
        if not isinstance(mean, Missing):
            number = len(data.matrix.models)
            everyone = np.ones((1, number * (number - 1) // 2), dtype=bool)
            (of_models,), (of_families,), _ = clusters_left_out(data, protocol, scores, ceiling, everyone)
            value = known(float(noise.noise_corrected_tau(of_models.taus[0], of_models.limit)), ABOVE_CEILING)
            corrected = left_out_intervals(value, of_models, of_families, data.matrix.families, corrected_interval)
            corrected["models"] = _extended(corrected["models"], observed, ceiling.mean_tau)
        means = np.array([ranking.finite_mean(taus_of) for taus_of in ceiling.observed_by_pair])
        taus = np.asarray(noise.noise_corrected_tau(means, ceiling.by_benchmark))
        intervals = _corrected_intervals(data, protocol)
    at.put("tau_mean_corrected", mean, "tau", data.sure(corrected, protocol), counted=counted)
    why = reason or "The benchmark has no tau or no noise ceiling, or its tau is above the ceiling."
    for index, (name, tau) in enumerate(zip(names, taus, strict=True)):
        value = known(float(tau), why)
        resampled = observed if isinstance(observed, Missing) else by_name[name]
        interval = _extended(ends(value, intervals.get(index), LOST_MODEL), resampled, ceiling.by_benchmark[index])
        counted = "models", int(np.isfinite(scores[:, index]).sum())
        at.put("tau_with_others_corrected", value, "tau", {"models": interval}, counted=counted, subject=name)


def _corrected_intervals(data: Data, protocol: str) -> dict[int, Interval[float]]:
    """The interval of the corrected tau of each benchmark (its place) that is in the noise ceiling."""
    expected, signs = data.ceiling[protocol].expected, ranking.pair_signs(data.scores[protocol])
    if expected is None:
        return {}
    everyone = np.ones(len(signs.first), bool)
    taus, limits = noise.taus_left_out(signs, expected, everyone, np.arange(len(data.matrix.models)))
    first, second = np.triu_indices(len(expected.columns), 1)
    has_both = np.isfinite(taus[:, 0]) & np.isfinite(limits)
    intervals = {}
    for index, column in enumerate(expected.columns.tolist()):
        pairs = has_both & ((first == index) | (second == index))
        if pairs.any():
            means = taus[pairs].mean(axis=0)
            intervals[column] = noise.corrected_interval(means[0], limits[pairs].mean(), means[1:])
    return intervals


def _extended(interval: Range, observed: Range, ceiling: float) -> Range:
    """An interval of a corrected tau, that of the observed one in it where it is much surer than that."""
    if isinstance(interval, Missing) or isinstance(observed, Missing):
        return interval
    low, high = map(float, noise.corrected_ends(observed, ceiling))
    if not interval.high - interval.low < SURER * (high - low):  # also where one of them is not known
        return interval
    return Interval(min(low, interval.low), max(high, interval.high))


# ----------------------------------------------------------------------------------------------------------------------
# What train before test changes.


def put_change(rows: Rows, data: Data) -> None:
    """What train before test changes, over what is known under both protocols, as rows."""
    reason, models = data.nothing_compared("tau"), data.models_in_both
    improved, compared = data.improved
    rows.put("pairs", len(data.tasks) * (len(data.tasks) - 1) // 2, "pairs")
    rows.put("cells_in_both", int(data.in_both.sum()), "cells")
    pairs = improved if compared else Missing(reason)
    rows.put("improved_pairs", pairs, "pairs", counted=("compared_pairs", compared))
    rows.put("compared_pairs", compared, "pairs")
    mean = known(data.common_agreement[TRAINED].mean - data.common_agreement[DIRECT].mean, reason)
    no_interval = data.no_intervals or FEW_IN_BOTH
    over_models = over_benchmarks = None
    if data.no_intervals is None and len(models) >= MINIMUM_FAMILY:
        signs = {p: ranking.pair_signs(data.common[p][models]) for p in PROTOCOLS}
        taus = data.resampled_tau
        if not data.whole:  # the models that have a cell known under both protocols, by themselves
            weights = resampling.multiplicities(len(models), data.resamples, draws("changes"))
            taus = {p: ranking.resampled_kendall_tau(signs[p], weights) for p in PROTOCOLS}
        taus = ranking.known_in_all(taus)
        observed = ranking.known_in_all({p: ranking.kendall_tau_matrix(signs[p]) for p in PROTOCOLS})
        fixed = {p: observed[p][None] for p in PROTOCOLS}
        of_models, of_both, of_benchmarks = (
            resampling.mean_over_pairs_by_resample(resampled[TRAINED], weights)
            - resampling.mean_over_pairs_by_resample(resampled[DIRECT], weights)
            for resampled, weights in ((taus, None), (taus, data.benchmark_weights), (fixed, data.benchmark_weights))
        )
        over_models = resampling.percentile_interval(of_models, len(models))
        over_benchmarks = resampling.two_way_interval(of_both, of_models, of_benchmarks, len(models))
    interval, counted = ends(mean, over_models, no_interval), ("models_in_both", len(models))
    families, categories = over_clusters(data, mean, interval)
    benchmarks = ends(mean, over_benchmarks, no_interval)
    intervals = {"models": interval, "families": families, "benchmarks": benchmarks, "categories": categories}
    rows.put("tau_change", mean, "tau", data.sure(intervals, *PROTOCOLS), counted=counted)
    for p in PROTOCOLS:
        rows.put("tau_mean_in_both", data.common_agreement[p].mean, "tau", counted=counted, protocol=p, why=reason)


class _ClusterRanges(NamedTuple):
    """Intervals of the mean tau, or of the change, for other families, and for other families and benchmarks."""

    families: Range
    categories: Range


def over_clusters(data: Data, mean: Value, over_models: Range, protocol: str | None = None) -> _ClusterRanges:
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
    everyone = np.ones(len(signs[0].first), bool)
    taus = np.array([noise.mean_tau_left_out(part, None, everyone, families)[0] for part in signs])
    between = np.array(
        [resampling.means_without_clusters(ranking.kendall_tau_matrix(part), categories) for part in signs]
    )
    taus, between = (means[-1] - means[:-1].sum(axis=0) for means in (taus, between))
    of_mean = partial(resampling.transformed_interval, taus[0], taus[1:], "tau" if protocol else "change")
    sizes = np.bincount(families, np.isfinite(compared[0]).any(axis=1) if protocol else None)
    clustered, population = of_mean(sizes), of_mean(sizes, between, np.bincount(categories))
    return _ClusterRanges(
        over_families(ends(mean, clustered, LOST_CLUSTER), over_models, data.matrix.families)
        if without_families is None
        else Missing(without_families),
        ends(mean, population, LOST_CATEGORY) if without_categories is None else Missing(without_categories),
    )
