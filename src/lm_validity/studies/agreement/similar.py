"""Agreement among models of like size or compute, with rankings by perplexity, and pooled, as rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from lm_validity.results.put import Rows
from lm_validity.statistics import Interval, section_generator
from lm_validity.studies.agreement.data import JACKKNIFED, Data, draws
from lm_validity.studies.agreement.score_matrix import (
    MINIMUM_FAMILY,
    distance_groups,
    measurement_error,
    size_ratios,
    tuned_members,
)
from lm_validity.studies.agreement.statistics import noise, ranking, resampling
from lm_validity.studies.agreement.statistics.sparse import pooled_left_out
from lm_validity.studies.agreement.values import (
    LOST_CLUSTER,
    LOST_MODEL,
    WHY_ABOVE,
    Range,
    Value,
    ends,
    no_clusters,
    no_correction,
    over_families,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import Missing, Reason, ReasonCode, count, known, no_scores

# model sizes within these ratios, and beyond the last one
RATIOS = ((1.0, 1.25), (1.0, 2.0), (1.0, 4.0), (4.0, None))
LEAST_PAIRS = 10  # of models; fewer say nothing about a mean over pairs of benchmarks
TOO_FEW_PAIRS = Missing(Reason(f"There are fewer than {LEAST_PAIRS} such pairs of models.", ReasonCode.TOO_FEW))
NO_TAU_AMONG = "No pair of benchmarks has a tau among these pairs of models."
ABOVE_CEILING = f"The tau observed is above its noise ceiling, so there is no noise left to correct for. {WHY_ABOVE}"


# ----------------------------------------------------------------------------------------------------------------------
# Among models of like size.


def put_by_size(rows: Rows, data: Data) -> None:
    """Agreement by distance in size and in compute as rows: over all scores of each protocol, and over the cells known
    under both where these leave some out."""
    _put_by_ratio(rows, data, data.scores, data.ceiling)
    if not data.whole and len(data.matrix.protocols) == len(PROTOCOLS):
        rng = section_generator("noise ceiling of models of similar size", 6)
        errors, groups = {p: measurement_error(data.matrix, p) for p in PROTOCOLS}, distance_groups(data.matrix.sizes())
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
            few = Reason(f"Fewer than two of the models compared here have known {quantity}.", ReasonCode.TOO_FEW)
            none = Missing(few if data.matrix.has(p) else no_scores(p))
            by_ratio.put(f"tau_mean{where}_by_ratio", none, "tau", {"models": none, "families": none})
            continue
        ratios, present = size_ratios(size)[first, second], scored[first] & scored[second]
        masks = np.array([present & (ratios > low if high is None else ratios <= high) for low, high in RATIOS])
        over_models, over_families, reason = clusters_left_out(data, p, scores[p], ceilings[p], masks)
        for index, (low, high) in enumerate(RATIOS):
            mean: Value = TOO_FEW_PAIRS
            limit: Value = TOO_FEW_PAIRS
            intervals: dict[str, Range] = dict.fromkeys(("models", "families"), TOO_FEW_PAIRS)
            if masks[index].sum() >= LEAST_PAIRS:
                mean = known(float(over_models[index].taus[0]), NO_TAU_AMONG)
                limit = known(over_models[index].limit, reason or LOST_MODEL)
                intervals = left_out_intervals(
                    mean, over_models[index], over_families[index], data.matrix.families, tau_interval
                )
            between, counted = by_ratio.of(at_least=low, at_most=high), ("pairs_of_models", int(masks[index].sum()))
            between.put(f"tau_mean{where}_by_ratio", mean, "tau", data.sure(intervals, p), counted=counted)
            between.put(f"tau_ceiling{where}_by_ratio", limit, "tau", counted=counted)


class TausWithoutClusters(NamedTuple):
    """Mean taus over some pairs of models, (1 + clusters,): of all and without each cluster that has such a pair;
    `limit`: the ceiling of all; `sizes`: (clusters,) their numbers of models that do."""

    taus: np.ndarray
    limit: float
    sizes: np.ndarray


class LeftOut(NamedTuple):
    """Of each mask of pairs of models the taus without each model and without each family, or why families give no
    clusters; and why nothing is corrected for noise, None where it is."""

    models: list[TausWithoutClusters]
    families: list[TausWithoutClusters | Missing]
    reason: str | None


def clusters_left_out(
    data: Data, protocol: str, scores: np.ndarray, ceiling: noise.Ceiling, masks: np.ndarray
) -> LeftOut:
    """Of the `scores` (models, benchmarks) among the pairs of models of each of the `masks` (masks, pairs)."""
    signs, reason = ranking.pair_signs(scores), no_correction(ceiling, scores, protocol)
    expected, families = ceiling.expected if reason is None else None, data.matrix.families
    clusters = no_clusters(families)
    over_families: list[TausWithoutClusters | Missing] = [Missing(clusters or "")] * len(masks)
    if clusters is None:
        over_families = [*_left_out(signs, expected, masks, resampling.cluster_numbers(families))]
    return LeftOut(_left_out(signs, expected, masks, np.arange(len(families))), over_families, reason)


def tau_interval(part: TausWithoutClusters, sizes: np.ndarray | None) -> Interval[float]:
    """The interval of a mean tau, of clusters of these sizes."""
    return resampling.transformed_interval(part.taus[0], part.taus[1:], "tau", sizes)


def corrected_interval(part: TausWithoutClusters, sizes: np.ndarray | None) -> Interval[float]:
    """The interval of a mean tau without noise, of clusters of these sizes."""
    return noise.corrected_interval(part.taus[0], part.limit, part.taus[1:], sizes)


def left_out_intervals(
    value: Value,
    models: TausWithoutClusters,
    families: TausWithoutClusters | Missing,
    names: np.ndarray,
    interval: Callable[[TausWithoutClusters, np.ndarray | None], Interval[float]],
) -> dict[str, Range]:
    """The intervals of a tau over models and over families; `names`: the models' families."""
    over_models = ends(value, interval(models, None), LOST_MODEL)
    if isinstance(families, Missing):
        return {"models": over_models, "families": families}
    clustered = ends(value, interval(families, families.sizes), LOST_CLUSTER)
    return {"models": over_models, "families": over_families(clustered, over_models, names)}


def _left_out(
    signs: ranking.PairSigns, expected: noise.ExpectedSigns | None, masks: np.ndarray, clusters: np.ndarray
) -> list[TausWithoutClusters]:
    """Of each mask (masks, pairs)."""
    left_out_sizes = []
    for pairs, taus, limit in zip(masks, *noise.mean_tau_left_out(signs, expected, masks, clusters), strict=True):
        in_pairs = np.zeros(len(clusters), dtype=bool)
        in_pairs[signs.first[pairs]] = in_pairs[signs.second[pairs]] = True
        sizes = np.bincount(clusters, in_pairs, minlength=len(taus) - 1)
        not_empty = np.concatenate([[True], sizes > 0])
        left_out_sizes.append(TausWithoutClusters(taus[not_empty], float(limit), sizes[sizes > 0]))
    return left_out_sizes


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
            at.put(quantity, mean, "tau", {"models": ends(mean, interval, data.no_intervals)}, counted=counted)
        both = replace(in_both[p], corpus_benchmark=with_benchmarks[p], corpus_corpus=with_corpora[p])
        for quantity, mean in zip(PERPLEXITY, _perplexity_means(data, p, both, " under both protocols"), strict=True):
            at.put("tau_perplexity_in_both", mean, "tau", kind=quantity.removeprefix("tau_"))
        grid = np.hstack([taus[p].corpus_corpus, taus[p].corpus_benchmark])
        _put_grid(at, corpora, [*corpora, *data.tasks], grid)
    too_few = Reason(
        "Fewer than two models have its perplexity under both protocols, or they are tied.", ReasonCode.TOO_FEW
    )
    for index, name in enumerate(corpora):
        twice = np.column_stack([data.corpora[p][:, index] for p in PROTOCOLS])
        tau = float(ranking.kendall_tau_matrix(ranking.pair_signs(twice))[0, 1])
        rows.put("tau_same_corpus", tau, "tau", counted=counted, subject=name, why=Reason(too_few, ReasonCode.TOO_FEW))
    few, rng = Reason(f"There are fewer than {MINIMUM_FAMILY} such models.", ReasonCode.TOO_FEW), draws("perplexity")
    for kind, members in tuned_members(matrix).items():
        before, after = (ranking.pair_signs(part[members]) for part in (data.corpora[DIRECT], data.scores[TRAINED]))
        grid, interval = ranking.kendall_tau_matrix(before, after), None
        if data.no_intervals is None and len(members) >= MINIMUM_FAMILY:
            weights = resampling.multiplicities(len(members), data.resamples, rng)
            resampled = ranking.resampled_kendall_tau(before, weights, after)
            means_of = ranking.finite_mean(resampled.reshape(len(resampled), -1), axis=1)
            interval = resampling.percentile_interval(means_of, len(members))
        mean = known(ranking.finite_mean(grid), _no_before_after(data, kind))
        over_models = {"models": ends(mean, interval, data.no_intervals or few)}
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
    members, words = tuned_members(data.matrix), kind.replace("_", "-")
    if not any(len(rows) for rows in members.values()):
        return "Which models are instruction-tuned is unknown."
    has_direct, has_trained = (
        np.isfinite(values).any(axis=1) for values in (data.corpora[DIRECT], data.scores[TRAINED])
    )
    n_in_both = int((has_direct & has_trained)[members[kind]].sum())
    if n_in_both < 2:
        return f"Fewer than two {words} models have both a perplexity and a train-before-test score ({n_in_both})."
    return f"The {n_in_both} {words} models are tied in perplexity or in scores, or share no two."


# ----------------------------------------------------------------------------------------------------------------------
# Taus pooled over the same comparisons for both protocols, for a table with missing cells.


HEADLINE_RATIO = 2.0  # models that a reader chooses between
NO_COMPARISON = "No two models are known on two benchmarks."
FEW_MODELS = Reason(f"Fewer than {JACKKNIFED} models have comparisons whose cells are all known.", ReasonCode.TOO_FEW)


def put_pooled(rows: Rows, data: Data) -> None:
    """Pooled taus of `all` models and of those of `like_size` as rows, over comparisons whose cells are known under
    every protocol that has scores, and their change; nothing for a complete table, or without common cells.

    A mean over pairs of benchmarks gives a pair with few models in common the weight of any other. With half of the
    published cells, that mean is off by .1 for models of like size (root mean square over 20 plans), the pooled tau by
    .012.
    """
    if not data.incomplete:
        return
    present = data.matrix.protocols
    scores = data.compared_scores if len(present) > 1 else data.scores
    signs = {p: ranking.pair_signs(scores[p]) for p in present}
    either = signs[present[0]]
    compared = either.known.sum(axis=1) >= 2  # two benchmarks, or the pair of models says nothing on agreement
    like = size_ratios(data.matrix.sizes()[0])[either.first, either.second] <= HEADLINE_RATIO
    for name, pairs, least in (("all", compared, 1), ("like_size", compared & like, LEAST_PAIRS)):
        if pairs.sum() >= least:
            of_pairs = {p: ranking.PairSigns(*(part[pairs] for part in part_signs)) for p, part_signs in signs.items()}
            _put_pooled(rows.of(pairs=name), data, of_pairs)


def _put_pooled(at: Rows, data: Data, signs: dict[str, ranking.PairSigns]) -> None:
    """`signs`: by protocol, of the pairs of models that are compared, with the same cells known."""
    either, all_families = next(iter(signs.values())), data.matrix.families
    models = np.unique([either.first, either.second])
    place, cluster = np.zeros((2, len(all_families)), dtype=int)
    families = all_families[models]
    place[models], cluster[models] = np.arange(len(models)), resampling.cluster_numbers(families)
    sizes, benchmarks = np.bincount(cluster[models]), either.known.sum(axis=1)
    counted = "comparisons", round(float((benchmarks * (benchmarks - 1)).sum() / 2))
    too_few = FEW_MODELS if len(models) < JACKKNIFED else None
    no_families = too_few or no_clusters(families)
    by_model, by_family = ({p: pooled_left_out(part, units) for p, part in signs.items()} for units in (place, cluster))
    if len(signs) == len(PROTOCOLS):
        for taus_of in (by_model, by_family):
            taus_of["change"] = taus_of[TRAINED] - taus_of[DIRECT]
    for key, taus in by_model.items():
        scale = "change" if key == "change" else "tau"
        over_models = Missing(too_few) if too_few else _left_out_interval(taus, scale, None, LOST_MODEL)
        clustered = (
            Missing(no_families) if no_families else _left_out_interval(by_family[key], scale, sizes, LOST_CLUSTER)
        )
        intervals = {"models": over_models, "families": over_families(clustered, over_models, families)}
        intervals = data.sure(intervals, *(PROTOCOLS if key == "change" else [key]))
        if key == "change":
            at.put("tau_pooled_change", float(taus[0]), "tau", intervals, counted=counted, why=NO_COMPARISON)
        else:
            at.put(
                "tau_pooled_in_both", float(taus[0]), "tau", intervals, counted=counted, why=NO_COMPARISON, protocol=key
            )


def _left_out_interval(left_out: np.ndarray, scale: str, sizes: np.ndarray | None, reason: str) -> Range:
    """Missing also where no model changes the figure: that is no certainty about other models."""
    interval = resampling.transformed_interval(left_out[0], left_out[1:], scale, sizes)
    return interval if interval.low < interval.high else Missing(reason)
