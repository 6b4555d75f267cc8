"""Kendall's tau between benchmarks as rows: the mean, also without noise, each benchmark, pairs, the change, among
models of like size or compute, and with rankings by perplexity."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from lm_validity.results.put import Rows
from lm_validity.statistics import Interval, section_generator
from lm_validity.studies.agreement import data as base
from lm_validity.studies.agreement import score_matrix
from lm_validity.studies.agreement.data import Data, Range, Value
from lm_validity.studies.agreement.statistics import noise, ranking, resampling
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import Missing, count, known, no_scores, too_few

NO_PAIR = too_few("The benchmark has fewer than two models in common with each other one, or they are tied.")
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
    value = improved if compared else Missing(data.nothing_compared("significance tau"))
    rows.put("significance_improved_pairs", value, "pairs", counted=("compared_pairs", compared))


def _put_protocol(at: Rows, data: Data, protocol: str) -> None:
    names, taus, ceiling = data.tasks, data.tau[protocol], data.ceiling[protocol]
    of_pair, of_benchmark = (data.no_tau(protocol, reason) for reason in (base.NO_TAU, NO_PAIR))
    counted = "models", data.models(protocol)
    total = ranking.mean_over_pairs(taus)
    mean = data.mean_or_reason(protocol, total, f"No pair of benchmarks has a tau. {base.NO_TAU}")
    with_others = [known(tau, of_benchmark) for tau in ranking.mean_with_others(taus)]
    of_mean, intervals = _resampled(data, protocol, mean, with_others)
    of_mean |= over_clusters(data, mean, of_mean["models"], protocol)
    at.put("tau_mean", mean, "tau", data.sure(of_mean, protocol), counted=counted)
    without = base.no_ceiling(ceiling.included, data.scores[protocol], protocol)
    at.put("tau_ceiling", ceiling.mean_tau, "tau", counted=counted, why=without)
    outside = without if np.isnan(ceiling.mean_tau) else OUT_OF_CEILING
    # models with scores on both benchmarks of a pair; on the diagonal, on the one
    common = (np.isfinite(data.scores[protocol]).astype(int).T @ np.isfinite(data.scores[protocol])).tolist()
    for i, (name, value, limit) in enumerate(zip(names, with_others, ceiling.by_benchmark, strict=True)):
        of_one = "models", common[i][i]
        at.put("tau_with_others", value, "tau", {"models": intervals[i]}, counted=of_one, subject=name)
        at.put("tau_with_others_ceiling", limit, "tau", counted=of_one, subject=name, why=outside)
    for (i, a), (j, b) in combinations(enumerate(names), 2):
        at.put("tau", float(taus[i, j]), "tau", counted=("models", common[i][j]), subject=a, other=b, why=of_pair)
    single = Missing(too_few("A category of one benchmark has no tau within itself."))
    for (a, b), tau in ranking.mean_by_category(taus, data.categories).items():
        tau_of = known(tau, of_pair) if a != b or data.categories.count(a) > 1 else single
        at.put("tau_of_categories", tau_of, "tau", counted=counted, subject=a, other=b)
    _put_corrected(at, data, protocol, of_mean["models"], dict(zip(names, intervals, strict=True)))
    _put_above_chance(at, data, protocol)
    _put_significant(at, data, protocol)
    if data.matrix.has(protocol):
        single_taus = ranking.one_with_others(data.scores[protocol])
        value = known(float(single_taus[0]), "No benchmark has a tau with the others.")
        ends = resampling.transformed_interval(single_taus[0], single_taus[1:], "tau")
        at.put("tau_one_with_others", value, "tau", {"models": base.ends(value, ends, base.LOST_MODEL)})


class _Resampled(NamedTuple):
    """Intervals of the mean tau, over models or benchmarks too, and of each benchmark's, over models."""

    means: dict[str, Range]
    by_benchmark: list[Range]


def _resampled(data: Data, protocol: str, mean: Value, with_others: list[Value]) -> _Resampled:
    """Where the direction of a benchmark is not known and its order is surely against the others', its tau has no
    interval, and those of the others hold either way."""
    names, models = data.tasks, len(data.matrix.models)
    if isinstance(mean, Missing) or data.no_intervals is not None:
        nothing: Range = base.ends(mean, None, data.no_intervals)
        return _Resampled({"models": nothing, "benchmarks": nothing}, [nothing] * len(names))
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
        either_way = base.ends(value, data.either_way(protocol, name, Interval(low, high)))
        intervals.append(Missing(base.NO_DIRECTION) if name in data.opposed[protocol] else either_way)
    wide = resampling.percentile_interval(means, models), resampling.two_way_interval(both, means, fixed, models)
    over_models, over_benchmarks = (base.ends(mean, interval) for interval in wide)
    return _Resampled({"models": over_models, "benchmarks": over_benchmarks}, intervals)


def _put_significant(at: Rows, data: Data, protocol: str) -> None:
    """Agreement where models that do not differ significantly count as tied."""
    signs = data.significant[protocol]
    tau = ranking.kendall_tau_matrix(signs)
    mean, interval = data.mean_or_reason(protocol, ranking.mean_over_pairs(tau), NO_SIGNIFICANT), None
    if data.no_intervals is None:
        interval = resampling.percentile_interval(
            resampling.resampled_mean_tau(signs, data.weights), len(data.matrix.models)
        )
    over_models = data.sure({"models": base.ends(mean, interval, data.no_intervals)}, protocol)
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
    lacks = too_few("Fewer than two benchmarks on which a model is above chance have a tau.")
    mean = ranking.mean_over_pairs(data.tau[protocol][np.ix_(above, above)]) if above else np.nan
    at.put("tau_mean_above_chance", mean, "tau", counted=("above", len(above)), why=lacks)


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
    reason = base.no_correction(ceiling, scores, protocol)
    mean: Value = Missing(reason or ABOVE_CEILING)
    corrected: dict[str, Range] = dict.fromkeys(("models", "families"), Missing(reason or ABOVE_CEILING))
    taus, intervals = np.full(len(names), np.nan), dict[int, Interval[float]]()
    if reason is None:
        mean = known(float(resampling.noise_corrected_tau(ceiling.observed, ceiling.mean_tau)), ABOVE_CEILING)
        if not isinstance(mean, Missing):
            number = len(data.matrix.models)
            everyone = np.ones((1, number * (number - 1) // 2), dtype=bool)
            (left_out,) = clusters_left_out(scores, data.matrix.families, ceiling.expected, everyone)
            of_mean = resampling.noise_corrected_tau(left_out.models[0], left_out.limit)
            corrected = left_out.intervals(known(float(of_mean), ABOVE_CEILING), data.matrix.families, corrected=True)
            corrected["models"] = _extended(corrected["models"], observed, ceiling.mean_tau)
        means = np.array([ranking.finite_mean(taus_of) for taus_of in ceiling.observed_by_pair])
        taus = np.asarray(resampling.noise_corrected_tau(means, ceiling.by_benchmark))
        intervals = _corrected_intervals(data, protocol)
    at.put("tau_mean_corrected", mean, "tau", data.sure(corrected, protocol), counted=counted)
    why = reason or "The benchmark has no tau or no noise ceiling, or its tau is above the ceiling."
    for index, (name, tau) in enumerate(zip(names, taus, strict=True)):
        value = known(float(tau), why)
        resampled = observed if isinstance(observed, Missing) else by_name[name]
        interval = _extended(
            base.ends(value, intervals.get(index), base.LOST_MODEL), resampled, ceiling.by_benchmark[index]
        )
        counted = "models", int(np.isfinite(scores[:, index]).sum())
        at.put("tau_with_others_corrected", value, "tau", {"models": interval}, counted=counted, subject=name)


def _corrected_intervals(data: Data, protocol: str) -> dict[int, Interval[float]]:
    """The interval of the corrected tau of each benchmark (its place) that is in the noise ceiling."""
    expected, signs = data.ceiling[protocol].expected, ranking.pair_signs(data.scores[protocol])
    if expected is None:
        return {}
    everyone = np.ones(len(signs.first), bool)
    taus, limits = resampling.taus_left_out(signs, expected, everyone, np.arange(len(data.matrix.models)))
    first, second = np.triu_indices(len(expected.columns), 1)
    has_both = np.isfinite(taus[:, 0]) & np.isfinite(limits)
    intervals = {}
    for index, column in enumerate(expected.columns.tolist()):
        pairs = has_both & ((first == index) | (second == index))
        if pairs.any():
            means = taus[pairs].mean(axis=0)
            intervals[column] = resampling.corrected_interval(means[0], limits[pairs].mean(), means[1:])
    return intervals


def _extended(interval: Range, observed: Range, ceiling: float) -> Range:
    """An interval of a corrected tau, that of the observed one in it where it is much surer than that."""
    if isinstance(interval, Missing) or isinstance(observed, Missing):
        return interval
    low, high = map(float, resampling.corrected_ends(observed, ceiling))
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
    means = {p: ranking.mean_over_pairs(data.common_tau[p]) for p in PROTOCOLS}
    mean = known(means[TRAINED] - means[DIRECT], reason)
    no_interval = data.no_intervals or base.FEW_IN_BOTH
    over_models = over_benchmarks = None
    if data.no_intervals is None and len(models) >= score_matrix.MINIMUM_FAMILY:
        signs = {p: ranking.pair_signs(data.common[p][models]) for p in PROTOCOLS}
        taus = data.resampled_tau
        if not data.whole:  # the models that have a cell known under both protocols, by themselves
            weights = resampling.multiplicities(len(models), data.resamples, base.draws("changes"))
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
    interval, counted = base.ends(mean, over_models, no_interval), ("models_in_both", len(models))
    intervals = {"models": interval, "benchmarks": base.ends(mean, over_benchmarks, no_interval)}
    intervals |= over_clusters(data, mean, interval)
    rows.put("tau_change", mean, "tau", data.sure(intervals, *PROTOCOLS), counted=counted)
    for p in PROTOCOLS:
        rows.put("tau_mean_in_both", means[p], "tau", counted=counted, protocol=p, why=reason)


def over_clusters(data: Data, mean: Value, over_models: Range, protocol: str | None = None) -> dict[str, Range]:
    """Intervals of the mean tau under `protocol`, without it of the change over the cells known under both.

    That over `families` has these as clusters. That over `categories` is for other models and other benchmarks:
    families and categories are clusters. Models of a table without families are clusters by themselves.
    """
    no_families = base.no_clusters(data.matrix.families)
    no_categories = base.no_clusters(data.categories, "category", "categories", "benchmarks")
    if isinstance(mean, Missing):
        return {"families": mean, "categories": mean}
    if no_families and no_categories:
        return {"families": Missing(no_families), "categories": Missing(no_categories)}
    rows, compared = np.arange(len(data.matrix.models)), [data.scores[protocol]] if protocol else []
    if protocol is None:
        rows, compared = data.models_in_both, [data.compared_scores[p] for p in PROTOCOLS]
    families = resampling.cluster_numbers(data.matrix.families[rows])
    categories = resampling.cluster_numbers(np.array(data.categories, dtype=object))
    signs = [ranking.pair_signs(scores[rows]) for scores in compared]
    everyone = np.ones(len(signs[0].first), bool)
    taus = np.array([resampling.mean_tau_left_out(part, None, everyone, families)[0] for part in signs])
    between = np.array(
        [resampling.means_without_clusters(ranking.kendall_tau_matrix(part), categories) for part in signs]
    )
    taus, between = (means[-1] - means[:-1].sum(axis=0) for means in (taus, between))
    of_mean = partial(resampling.transformed_interval, taus[0], taus[1:], "tau" if protocol else "change")
    sizes = np.bincount(families, np.isfinite(compared[0]).any(axis=1) if protocol else None)
    clustered = base.ends(mean, of_mean(sizes), base.LOST_CLUSTER)
    population = base.ends(mean, of_mean(sizes, (between, np.bincount(categories))), base.LOST_CATEGORY)
    clustered = base.over_families(clustered, over_models, data.matrix.families)
    return {
        "families": Missing(no_families) if no_families else clustered,
        "categories": Missing(no_categories) if no_categories else population,
    }


# ----------------------------------------------------------------------------------------------------------------------
# Intervals of taus over models and families, by leaving out each.


class LeftOut(NamedTuple):
    """Mean taus among some pairs of models: of all, then without each model or each family that has such a pair,
    (1 + clusters,), or why families give no clusters; `limit`: the ceiling of all; `sizes`: (families,) how many of
    their models have such a pair."""

    models: np.ndarray
    families: np.ndarray | Missing
    limit: float
    sizes: np.ndarray

    def intervals(self, value: Value, names: np.ndarray, *, corrected: bool = False) -> dict[str, Range]:
        """The intervals of the tau, without noise where it is `corrected`, over models and over families; `names`: the
        models' families."""

        def interval(taus: np.ndarray, sizes: np.ndarray | None, lost: str) -> Range:
            ends = resampling.transformed_interval(taus[0], taus[1:], "tau", sizes)
            return base.ends(value, resampling.corrected_ends(ends, self.limit) if corrected else ends, lost)

        over_models = interval(self.models, None, base.LOST_MODEL)
        if isinstance(self.families, Missing):
            return {"models": over_models, "families": self.families}
        clustered = interval(self.families, self.sizes, base.LOST_CLUSTER)
        return {"models": over_models, "families": base.over_families(clustered, over_models, names)}


def clusters_left_out(
    scores: np.ndarray, families: np.ndarray, expected: resampling.Expected, masks: np.ndarray
) -> Iterator[LeftOut]:
    """Of the `scores` (models, benchmarks) among the pairs of models of each of the `masks` (masks, pairs)."""
    signs, no_families = ranking.pair_signs(scores), base.no_clusters(families)
    kinds = [np.arange(len(families)), resampling.cluster_numbers(families)][: 1 if no_families else 2]
    left_out = [resampling.mean_tau_left_out(signs, expected, masks, clusters) for clusters in kinds]
    for index, pairs in enumerate(masks):
        in_pairs = np.zeros(len(families), dtype=bool)
        in_pairs[signs.first[pairs]] = in_pairs[signs.second[pairs]] = True
        sizes = [np.bincount(clusters, in_pairs) for clusters in kinds]
        taus = [part.observed[index, np.append(True, size > 0)] for part, size in zip(left_out, sizes, strict=True)]
        of_families = Missing(no_families) if no_families else taus[1]
        yield LeftOut(taus[0], of_families, float(left_out[0].ceiling[index]), sizes[-1][sizes[-1] > 0])


# model sizes within these ratios, and beyond the last one
RATIOS = ((1.0, 1.25), (1.0, 2.0), (1.0, 4.0), (4.0, None))
LEAST_PAIRS = 10  # of models; fewer say nothing about a mean over pairs of benchmarks
TOO_FEW_PAIRS = Missing(too_few(f"There are fewer than {LEAST_PAIRS} such pairs of models."))
NO_TAU_AMONG = "No pair of benchmarks has a tau among these pairs of models."
ABOVE_CEILING = (
    f"The tau observed is above its noise ceiling, so there is no noise left to correct for. {base.WHY_ABOVE}"
)


# ----------------------------------------------------------------------------------------------------------------------
# Among models of like size.


def put_by_size(rows: Rows, data: Data) -> None:
    """Agreement by distance in size and in compute as rows: over all scores of each protocol, and over the cells known
    under both where these leave some out."""
    _put_by_ratio(rows, data, data.scores, data.ceiling)
    if not data.whole and len(data.matrix.protocols) == len(PROTOCOLS):
        rng = section_generator("noise ceiling of models of similar size", 6)
        errors, groups = (
            {p: score_matrix.measurement_error(data.matrix, p) for p in PROTOCOLS},
            score_matrix.distance_groups(data.matrix.sizes()),
        )
        ceilings = {p: noise.noise_ceiling(data.compared_scores[p], errors[p], rng, groups=groups) for p in PROTOCOLS}
        _put_by_ratio(rows, data, data.compared_scores, ceilings, "_in_both")


def _put_by_ratio(
    rows: Rows, data: Data, scores: dict[str, np.ndarray], ceilings: dict[str, noise.Ceiling], where: str = ""
) -> None:
    """`where`: in the names of the quantities. One row says why where fewer than two models with scores have a size."""
    kinds = zip(("size", "compute"), data.matrix.sizes(), ("parameters", "pretraining compute"), strict=True)
    for (distance, size, quantity), p in product(kinds, PROTOCOLS):
        scored, (first, second) = np.isfinite(scores[p]).any(axis=1), np.triu_indices(len(size), 1)
        by_ratio = rows.of(protocol=p, distance=distance)
        if not data.matrix.has(p) or np.isfinite(size[scored]).sum() < 2:
            few = too_few(f"Fewer than two of the models compared here have known {quantity}.")
            none = Missing(few if data.matrix.has(p) else no_scores(p))
            by_ratio.put(f"tau_mean{where}_by_ratio", none, "tau", {"models": none, "families": none})
            continue
        ratios, present = score_matrix.size_ratios(size)[first, second], scored[first] & scored[second]
        masks = np.array([present & (ratios > low if high is None else ratios <= high) for low, high in RATIOS])
        reason, families = base.no_correction(ceilings[p], scores[p], p), data.matrix.families
        left_out = clusters_left_out(scores[p], families, None if reason else ceilings[p].expected, masks)
        for (low, high), pairs, among in zip(RATIOS, masks, left_out, strict=True):
            mean: Value = TOO_FEW_PAIRS
            limit: Value = TOO_FEW_PAIRS
            intervals: dict[str, Range] = dict.fromkeys(("models", "families"), TOO_FEW_PAIRS)
            if pairs.sum() >= LEAST_PAIRS:
                mean = known(float(among.models[0]), NO_TAU_AMONG)
                limit = known(among.limit, reason or base.LOST_MODEL)
                intervals = among.intervals(mean, families)
            between, counted = by_ratio.of(at_least=low, at_most=high), ("pairs_of_models", int(pairs.sum()))
            between.put(f"tau_mean{where}_by_ratio", mean, "tau", data.sure(intervals, p), counted=counted)
            between.put(f"tau_ceiling{where}_by_ratio", limit, "tau", counted=counted)


# ----------------------------------------------------------------------------------------------------------------------
# Perplexity.

PERPLEXITY = ("tau_corpus_benchmark", "tau_corpus_corpus", "tau_average_average")


def put_perplexity(rows: Rows, data: Data) -> None:
    """Agreement of perplexity corpora with benchmarks and with each other and of both averages, by protocol, also over
    the cells known under both (`tau_perplexity_in_both`); each corpus with itself; direct perplexity with scores under
    train before test (`tau_before_after`, by kind of model). `tau_of_corpus`: the taus behind the means."""
    matrix = data.matrix
    if not matrix.is_corpus.any():
        for quantity in (*PERPLEXITY, "tau_before_after"):
            none = Missing("There is no perplexity corpus in the tables.")
            rows.put(quantity, none, "tau", {"models": none})
        return
    corpora = [name for name, corpus in zip(matrix.benchmarks, matrix.is_corpus, strict=True) if corpus]
    taus = {p: ranking.perplexity_agreement(data.corpora[p], data.scores[p]) for p in PROTOCOLS}
    counted = "models", max(of_protocol.models for of_protocol in taus.values())
    common_corpora = ranking.known_in_all(data.corpora)
    in_both = {p: ranking.perplexity_agreement(common_corpora[p], data.common[p]) for p in PROTOCOLS}
    with_benchmarks = ranking.known_in_all({p: tau.corpus_benchmark for p, tau in in_both.items()})
    with_corpora = ranking.known_in_all({p: tau.corpus_corpus for p, tau in in_both.items()})
    for p in PROTOCOLS:
        at = rows.of(protocol=p)
        means, intervals = _perplexity_means(data, p, taus[p]), _perplexity_intervals(data, p)
        for quantity, mean, interval in zip(PERPLEXITY, means, intervals, strict=True):
            at.put(quantity, mean, "tau", {"models": base.ends(mean, interval, data.no_intervals)}, counted=counted)
        both = replace(in_both[p], corpus_benchmark=with_benchmarks[p], corpus_corpus=with_corpora[p])
        for quantity, mean in zip(PERPLEXITY, _perplexity_means(data, p, both, " under both protocols"), strict=True):
            at.put("tau_perplexity_in_both", mean, "tau", kind=quantity.removeprefix("tau_"))
        grid = np.hstack([taus[p].corpus_corpus, taus[p].corpus_benchmark])
        _put_grid(at, corpora, [*corpora, *data.tasks], grid)
    lacks = too_few("Fewer than two models have its perplexity under both protocols, or they are tied.")
    for index, name in enumerate(corpora):
        twice = np.column_stack([data.corpora[p][:, index] for p in PROTOCOLS])
        tau = float(ranking.kendall_tau_matrix(ranking.pair_signs(twice))[0, 1])
        rows.put("tau_same_corpus", tau, "tau", counted=counted, subject=name, why=lacks)
    few, rng = (too_few(f"There are fewer than {score_matrix.MINIMUM_FAMILY} such models."), base.draws("perplexity"))
    for kind, members in score_matrix.tuned_members(matrix).items():
        before, after = (ranking.pair_signs(part[members]) for part in (data.corpora[DIRECT], data.scores[TRAINED]))
        grid, interval = ranking.kendall_tau_matrix(before, after), None
        if data.no_intervals is None and len(members) >= score_matrix.MINIMUM_FAMILY:
            weights = resampling.multiplicities(len(members), data.resamples, rng)
            resampled = ranking.resampled_kendall_tau(before, weights, after)
            means_of = ranking.finite_mean(resampled.reshape(len(resampled), -1), axis=1)
            interval = resampling.percentile_interval(means_of, len(members))
        mean = known(ranking.finite_mean(grid), _no_before_after(data, kind))
        over_models = {"models": base.ends(mean, interval, data.no_intervals or few)}
        rows.put("tau_before_after", mean, "tau", over_models, kind=kind)
        _put_grid(rows.of(kind=kind), corpora, data.tasks, grid)


def _put_grid(at: Rows, corpora: Sequence[str], others: Sequence[str], taus: np.ndarray) -> None:
    """The known ones of `taus` (corpora, others); none of a corpus with itself."""
    for (i, corpus), (j, other) in product(enumerate(corpora), enumerate(others)):
        if corpus != other and np.isfinite(taus[i, j]):
            at.put("tau_of_corpus", float(taus[i, j]), "tau", subject=corpus, other=other)


def _perplexity_intervals(data: Data, protocol: str) -> list[Interval[float] | None]:
    """Intervals over models of the three comparisons."""
    if data.no_intervals is not None:
        return [None] * len(PERPLEXITY)
    signs, scores = ranking.pair_signs(data.corpora[protocol]), data.scores[protocol]
    with_benchmarks = ranking.resampled_kendall_tau(signs, data.weights, ranking.pair_signs(scores))
    averages = np.column_stack([data.corpora[protocol].mean(axis=1), scores.mean(axis=1)])
    averages[~np.isfinite(averages).all(axis=1)] = np.nan
    resampled = (
        ranking.finite_mean(with_benchmarks.reshape(len(with_benchmarks), -1), axis=1),
        resampling.resampled_mean_tau(signs, data.weights),
        ranking.resampled_kendall_tau(ranking.pair_signs(averages), data.weights)[:, 0, 1],
    )
    return [resampling.percentile_interval(taus, len(data.matrix.models)) for taus in resampled]


def _perplexity_means(data: Data, protocol: str, taus: ranking.PerplexityAgreement, where: str = "") -> list[Value]:
    """The three means."""
    corpora = int(np.isfinite(data.corpora[protocol]).any(axis=0).sum())
    none = "" if corpora else "No perplexity is known."
    no_pair = f"No corpus and benchmark rank two models{where}." if data.matrix.has(protocol) else no_scores(protocol)
    alone = "There is one perplexity corpus." if corpora == 1 else f"No two corpora rank two models{where}."
    equal = "too equal" if taus.complete_models >= 3 else "too few"
    average = f"{count(taus.complete_models, 'model')} with all corpora and benchmarks: {equal} to compare."
    return [
        known(ranking.finite_mean(taus.corpus_benchmark), none or no_pair),
        known(ranking.mean_over_pairs(taus.corpus_corpus), none or alone),
        known(taus.average_average, average),
    ]


def _no_before_after(data: Data, kind: str) -> str:
    """Why perplexity of untouched models and train-before-test scores cannot be compared among models of a kind."""
    members, words = score_matrix.tuned_members(data.matrix), kind.replace("_", "-")
    if not any(len(rows) for rows in members.values()):
        return "Which models are instruction-tuned is unknown."
    has_direct, has_trained = (
        np.isfinite(values).any(axis=1) for values in (data.corpora[DIRECT], data.scores[TRAINED])
    )
    n_in_both = int((has_direct & has_trained)[members[kind]].sum())
    if n_in_both < 2:
        return f"Fewer than two {words} models have both a perplexity and a train-before-test score ({n_in_both})."
    return f"The {n_in_both} {words} models are tied in perplexity or in scores, or share no two."
