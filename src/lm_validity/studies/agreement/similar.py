"""Agreement among models of like size or compute and within families of models, and with rankings by perplexity."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from lm_validity.missing import Missing, Reason, ReasonCode, known
from lm_validity.results.summary import page_only
from lm_validity.statistics import section_generator
from lm_validity.studies.agreement.data import Data, draws
from lm_validity.studies.agreement.intervals import ByProtocol, Range, RangeByProtocol, Value, each, ends, over_families
from lm_validity.studies.agreement.notes import WHY_ABOVE
from lm_validity.studies.agreement.pooled import LEAST_PAIRS
from lm_validity.studies.agreement.reasons import (
    LOST_CLUSTER,
    LOST_MODEL,
    no_clusters,
    no_correction,
)
from lm_validity.studies.agreement.score_matrix import (
    MINIMUM_FAMILY,
    distance_groups,
    measurement_error,
    size_ratios,
    tuned_members,
)
from lm_validity.studies.agreement.statistics import ranking, resampling
from lm_validity.studies.agreement.statistics.noise import (
    Ceiling,
    ExpectedSigns,
    corrected_interval,
    mean_tau_left_out,
    noise_ceiling,
    noise_corrected_tau,
)
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.words import count, no_scores

# model sizes within these ratios, and beyond the last one
RATIOS = ((1.0, 1.25), (1.0, 2.0), (1.0, 4.0), (4.0, None))
ABOVE_CEILING = f"The tau observed is above its noise ceiling, so there is no noise left to correct for. {WHY_ABOVE}"


@dataclass(frozen=True)
class RatioRow:
    """Agreement among pairs of models whose sizes differ by a factor from `at_least` to `at_most` (null: any)."""

    at_most: float | None
    at_least: float
    pairs_of_models: int
    mean: Value
    ceiling: Value
    corrected: Value
    interval: Range
    interval_clustered: Range
    corrected_interval: Range
    corrected_interval_clustered: Range


RatioRows = list[RatioRow] | Missing


class ByRatio(NamedTuple):
    """Agreement by protocol among pairs of models by their distance in size, and in pretraining compute."""

    by_size: dict[str, RatioRows]
    by_compute: dict[str, RatioRows]


class Scored(NamedTuple):
    """Scores (models, benchmarks) under a protocol with their noise ceiling, and the models' families."""

    protocol: str
    scores: np.ndarray
    ceiling: Ceiling
    families: np.ndarray


# ----------------------------------------------------------------------------------------------------------------------
# Among models of like size.


def by_ratio(data: Data, scores: dict[str, np.ndarray], ceiling: dict[str, Ceiling]) -> ByRatio:
    """Agreement by distance in size and in compute; missing where fewer than two models with scores have one."""
    by_distance = ByRatio({}, {})
    for (by_protocol, size, quantity), p in product(
        zip(by_distance, data.matrix.sizes(), ("parameters", "pretraining compute"), strict=True), PROTOCOLS
    ):
        scored = np.isfinite(scores[p]).any(axis=1)
        first, second = np.triu_indices(len(size), 1)
        if not data.matrix.has(p):
            by_protocol[p] = Missing(no_scores(p))
        elif np.isfinite(size[scored]).sum() < 2:
            reason = f"Fewer than two of the models compared here have known {quantity}."
            by_protocol[p] = Missing(Reason(reason, ReasonCode.TOO_FEW))
        else:
            ratio, present = size_ratios(size)[first, second], scored[first] & scored[second]
            scored_models = Scored(p, scores[p], ceiling[p], data.matrix.families)
            masks = [present & (ratio > low if high is None else ratio <= high) for low, high in RATIOS]
            by_protocol[p] = among_pairs(scored_models, masks, RATIOS)
    return by_distance


def by_ratio_in_both(data: Data, in_each: ByRatio) -> ByRatio:
    """The same over the cells known under both; `in_each`: over all cells of each."""
    if data.whole:
        return in_each
    absent = [p for p in PROTOCOLS if not data.matrix.has(p)]
    if absent:
        missing: dict[str, RatioRows] = dict.fromkeys(PROTOCOLS, Missing(no_scores(absent[0])))
        return ByRatio(missing, missing)
    rng = section_generator("noise ceiling of models of similar size", 6)
    errors, groups = {p: measurement_error(data.matrix, p) for p in PROTOCOLS}, distance_groups(data.matrix.sizes())
    ceilings = {p: noise_ceiling(data.compared_scores[p], errors[p], rng, groups=groups) for p in PROTOCOLS}
    return by_ratio(data, data.compared_scores, ceilings)


class TausWithoutClusters(NamedTuple):
    """Mean taus over some pairs of models, (1 + clusters,): of all and without each cluster that has such a pair;
    `limit`: the ceiling of all; `sizes`: (clusters,) their numbers of models that do."""

    taus: np.ndarray
    limit: float
    sizes: np.ndarray


def among_pairs(
    scored: Scored, masks: list[np.ndarray], ratios: Sequence[tuple[float, float | None]]
) -> list[RatioRow]:
    """For each mask of pairs of models, of one of the `ratios` of sizes: the mean tau over them, its ceiling, and both
    corrected for noise."""
    signs, ceiling = ranking.pair_signs(scored.scores), scored.ceiling
    reason = no_correction(ceiling, scored.scores, scored.protocol)
    expected, clusters = ceiling.expected if reason is None else None, no_clusters(scored.families)
    enough = [index for index, pairs in enumerate(masks) if pairs.sum() >= LEAST_PAIRS]
    chosen = np.array([masks[index] for index in enough], dtype=bool).reshape(len(enough), len(signs.first))
    models = _left_out(signs, expected, chosen, np.arange(len(scored.families)))
    families = (
        _left_out(signs, expected, chosen, resampling.cluster_numbers(scored.families)) if clusters is None else []
    )
    rows = []
    for index, (pairs, (low, high)) in enumerate(zip(masks, ratios, strict=True)):
        size = high, low, int(pairs.sum())
        if index not in enough:
            too_few = Missing(Reason(f"There are fewer than {LEAST_PAIRS} such pairs of models.", ReasonCode.TOO_FEW))
            rows.append(RatioRow(*size, *[too_few] * 7))
            continue
        row_index = enough.index(index)
        of_families = families[row_index] if clusters is None else Missing(clusters)
        rows.append(_ratio_row(scored, size, models[row_index], of_families, reason))
    return rows


def _left_out(
    signs: ranking.PairSigns, expected: ExpectedSigns | None, masks: np.ndarray, clusters: np.ndarray
) -> list[TausWithoutClusters]:
    """Of each mask (masks, pairs)."""
    if not len(masks):
        return []
    left_out_sizes = []
    for pairs, taus, limit in zip(masks, *mean_tau_left_out(signs, expected, masks, clusters), strict=True):
        in_pairs = np.zeros(len(clusters), dtype=bool)
        in_pairs[signs.first[pairs]] = in_pairs[signs.second[pairs]] = True
        sizes = np.bincount(clusters, in_pairs, minlength=len(taus) - 1)
        not_empty = np.concatenate([[True], sizes > 0])
        left_out_sizes.append(TausWithoutClusters(taus[not_empty], float(limit), sizes[sizes > 0]))
    return left_out_sizes


def _ratio_row(
    scored: Scored,
    size: tuple[float | None, float, int],
    models: TausWithoutClusters,
    families: TausWithoutClusters | Missing,
    reason: str | None,
) -> RatioRow:
    """`reason`: why nothing is corrected for noise, None where it is."""
    tau, limit = models.taus[0], models.limit
    mean = known(float(tau), "No pair of benchmarks has a tau among these pairs of models.")
    corrected = known(float(noise_corrected_tau(tau, limit)), reason or ABOVE_CEILING)
    interval = ends(mean, resampling.transformed_interval(tau, models.taus[1:], "tau"), LOST_MODEL)
    of_corrected = ends(corrected, corrected_interval(tau, limit, models.taus[1:]), LOST_MODEL)
    clustered: Range
    corrected_clustered: Range
    if isinstance(families, Missing):
        clustered = corrected_clustered = families
    else:
        taus, sizes = families.taus, families.sizes
        clustered = ends(mean, resampling.transformed_interval(taus[0], taus[1:], "tau", sizes), LOST_CLUSTER)
        corrected_clustered = ends(
            corrected, corrected_interval(taus[0], families.limit, taus[1:], sizes), LOST_CLUSTER
        )
    return RatioRow(
        *size,
        mean=mean,
        ceiling=known(limit, reason or LOST_MODEL),
        corrected=corrected,
        interval=interval,
        interval_clustered=over_families(clustered, interval, scored.families),
        corrected_interval=of_corrected,
        corrected_interval_clustered=over_families(corrected_clustered, of_corrected, scored.families),
    )


# ----------------------------------------------------------------------------------------------------------------------
# Perplexity.

COMPARISONS = {
    "corpus_benchmark": "corpus with benchmark",
    "corpus_corpus": "corpus with corpus",
    "average_average": "average perplexity with average score",
}


@dataclass(frozen=True)
class Perplexity:
    """Agreement of `corpora` with benchmarks and with each other and of both averages, by protocol, of `models` with a
    perplexity; `in_both`: the three over the cells known under both protocols. `same_corpus`: by corpus, of its two
    rankings. `before_after`: by kind of model, of direct perplexity with scores under train before test.

    `taus`: by protocol the taus behind the means, `before_after_taus`: by kind (corpora, benchmarks).
    """

    models: int
    corpora: list[str]
    corpus_benchmark: ByProtocol
    corpus_benchmark_interval: RangeByProtocol
    corpus_corpus: ByProtocol
    corpus_corpus_interval: RangeByProtocol
    average_average: ByProtocol
    average_average_interval: RangeByProtocol
    same_corpus: dict[str, Value]
    in_both: dict[str, ByProtocol]
    before_after: dict[str, Value]
    before_after_interval: dict[str, Range]
    taus: dict[str, ranking.PerplexityAgreement] = page_only()
    before_after_taus: dict[str, np.ndarray] = page_only()


def compare_perplexity(data: Data) -> Perplexity | Missing:
    """Corpora against benchmarks in both protocols, and direct perplexity against train-before-test scores."""
    matrix = data.matrix
    if not matrix.is_corpus.any():
        return Missing("There is no perplexity corpus in the tables.")
    corpora = [name for name, corpus in zip(matrix.benchmarks, matrix.is_corpus, strict=True) if corpus]
    taus = {p: ranking.perplexity_agreement(data.corpora[p], data.scores[p]) for p in PROTOCOLS}
    means = _perplexity_means(data, taus)
    common_corpora = ranking.known_in_all(data.corpora)
    in_both_protocols = {p: ranking.perplexity_agreement(common_corpora[p], data.common[p]) for p in PROTOCOLS}
    corpus_to_benchmark, corpus_to_corpus = (
        ranking.known_in_all({p: getattr(of_protocol, name) for p, of_protocol in in_both_protocols.items()})
        for name in ("corpus_benchmark", "corpus_corpus")
    )
    in_both_protocols = {
        p: replace(in_both_protocols[p], corpus_benchmark=corpus_to_benchmark[p], corpus_corpus=corpus_to_corpus[p])
        for p in PROTOCOLS
    }
    tuned = tuned_members(matrix)
    before_after_taus = {
        kind: ranking.kendall_tau_matrix(
            ranking.pair_signs(data.corpora[DIRECT][rows]), other_signs=ranking.pair_signs(data.scores[TRAINED][rows])
        )
        for kind, rows in tuned.items()
    }
    before_after = {
        kind: known(ranking.finite_mean(tau), _no_before_after(data, kind)) for kind, tau in before_after_taus.items()
    }
    intervals = _perplexity_intervals(data, means)
    twice = (np.column_stack([data.corpora[p][:, index] for p in PROTOCOLS]) for index in range(len(corpora)))
    same_corpus = each(
        corpora,
        (float(ranking.kendall_tau_matrix(ranking.pair_signs(columns))[0, 1]) for columns in twice),
        Reason("Fewer than two models have its perplexity under both protocols, or they are tied.", ReasonCode.TOO_FEW),
    )
    return Perplexity(
        models=max(of_protocol.models for of_protocol in taus.values()),
        corpora=corpora,
        corpus_benchmark=means["corpus_benchmark"],
        corpus_benchmark_interval=intervals["corpus_benchmark"],
        corpus_corpus=means["corpus_corpus"],
        corpus_corpus_interval=intervals["corpus_corpus"],
        average_average=means["average_average"],
        average_average_interval=intervals["average_average"],
        same_corpus=same_corpus,
        in_both=_perplexity_means(data, in_both_protocols, " under both protocols"),
        before_after=before_after,
        before_after_interval=_before_after_intervals(data, before_after),
        taus=taus,
        before_after_taus=before_after_taus,
    )


def _perplexity_intervals(data: Data, means: dict[str, ByProtocol]) -> dict[str, RangeByProtocol]:
    """Intervals over models of the three comparisons, by protocol."""
    by_comparison: dict[str, RangeByProtocol] = {name: {} for name in COMPARISONS}
    for p in PROTOCOLS:
        resampled = dict.fromkeys(COMPARISONS)
        if data.no_intervals is None:
            signs = ranking.pair_signs(data.corpora[p])
            corpus_to_benchmark = ranking.resampled_kendall_tau(
                signs, data.weights, other_signs=ranking.pair_signs(data.scores[p])
            )
            averages = np.column_stack([data.corpora[p].mean(axis=1), data.scores[p].mean(axis=1)])
            averages[~np.isfinite(averages).all(axis=1)] = np.nan
            resampled = {
                "corpus_benchmark": ranking.finite_mean(
                    corpus_to_benchmark.reshape(len(corpus_to_benchmark), -1), axis=1
                ),
                "corpus_corpus": resampling.resampled_mean_tau(signs, data.weights),
                "average_average": ranking.resampled_kendall_tau(ranking.pair_signs(averages), data.weights)[:, 0, 1],
            }
        for name, taus in resampled.items():
            interval = None if taus is None else resampling.percentile_interval(taus, len(data.matrix.models))
            by_comparison[name][p] = ends(means[name][p], interval, data.no_intervals)
    return by_comparison


def _before_after_intervals(data: Data, before_after: dict[str, Value]) -> dict[str, Range]:
    """Intervals over models of direct perplexity with scores under train before test, by kind of model."""
    too_few = Reason(f"There are fewer than {MINIMUM_FAMILY} such models.", ReasonCode.TOO_FEW)
    rng, by_kind = draws("perplexity"), {}
    for kind, rows in tuned_members(data.matrix).items():
        interval = None
        if data.no_intervals is None and len(rows) >= MINIMUM_FAMILY:
            corpus_to_benchmark = ranking.resampled_kendall_tau(
                ranking.pair_signs(data.corpora[DIRECT][rows]),
                resampling.multiplicities(len(rows), data.resamples, rng),
                other_signs=ranking.pair_signs(data.scores[TRAINED][rows]),
            )
            interval = resampling.percentile_interval(
                ranking.finite_mean(corpus_to_benchmark.reshape(len(corpus_to_benchmark), -1), axis=1), len(rows)
            )
        by_kind[kind] = ends(before_after[kind], interval, data.no_intervals or too_few)
    return by_kind


def _perplexity_means(
    data: Data, taus: dict[str, ranking.PerplexityAgreement], where: str = ""
) -> dict[str, ByProtocol]:
    """The three means by protocol."""
    means: dict[str, ByProtocol] = {name: {} for name in COMPARISONS}
    for p, of_protocol in taus.items():
        corpora = int(np.isfinite(data.corpora[p]).any(axis=0).sum())
        none = "No perplexity is known." if not corpora else ""
        reason_for_benchmarks = (
            no_scores(p) if not data.matrix.has(p) else f"No corpus and benchmark rank two models{where}."
        )
        reason_for_corpora = (
            "There is one perplexity corpus." if corpora == 1 else f"No two corpora rank two models{where}."
        )
        equal = "too equal" if of_protocol.complete_models >= 3 else "too few"
        average = f"{count(of_protocol.complete_models, 'model')} with all corpora and benchmarks: {equal} to compare."
        means["corpus_benchmark"][p] = known(
            ranking.finite_mean(of_protocol.corpus_benchmark), none or reason_for_benchmarks
        )
        means["corpus_corpus"][p] = known(
            ranking.mean_over_pairs(of_protocol.corpus_corpus), none or reason_for_corpora
        )
        means["average_average"][p] = known(of_protocol.average_average, average)
    return means


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
