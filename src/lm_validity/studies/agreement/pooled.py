"""The headlines of a table with missing cells: taus pooled over the same comparisons for both protocols."""

from dataclasses import dataclass

import numpy as np

from lm_validity.missing import Missing, Reason, ReasonCode, known
from lm_validity.studies.agreement.data import JACKKNIFED, Data
from lm_validity.studies.agreement.intervals import ByProtocol, Range, RangeByProtocol, Value, over_families
from lm_validity.studies.agreement.reasons import LOST_CLUSTER, LOST_MODEL, no_clusters
from lm_validity.studies.agreement.score_matrix import size_ratios
from lm_validity.studies.agreement.statistics.ranking import PairSigns, pair_signs
from lm_validity.studies.agreement.statistics.resampling import cluster_numbers, transformed_interval
from lm_validity.studies.agreement.statistics.sparse import pooled_left_out
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED

HEADLINE_RATIO = 2.0  # models that a reader chooses between
LEAST_PAIRS = 10  # of models; fewer say nothing about a mean over pairs of benchmarks
NO_COMPARISON = "No two models are known on two benchmarks."
ONE_PROTOCOL = Missing("One protocol has scores.")
FEW_MODELS = Reason(f"Fewer than {JACKKNIFED} models have comparisons whose cells are all known.", ReasonCode.TOO_FEW)


@dataclass(frozen=True)
class Pooled:
    """Taus by protocol over `comparisons`, of two models on two benchmarks each, and their change; intervals over
    models and over families."""

    pairs_of_models: int
    models: int
    comparisons: int
    mean: ByProtocol
    interval: RangeByProtocol
    interval_clustered: RangeByProtocol
    change: Value
    change_interval: Range
    change_interval_clustered: Range


def compare_pooled(data: Data) -> dict[str, Pooled]:
    """Pooled taus of `all` models and of those of `like_size`, over comparisons whose cells are known under every
    protocol that has scores; nothing for a complete table, or without common cells.

    A mean over pairs of benchmarks gives a pair with few models in common the weight of any other. With half of the
    published cells, that mean is off by .1 for models of like size (root mean square over 20 plans), the pooled tau by
    .012.
    """
    if not data.incomplete:
        return {}
    present = data.matrix.protocols
    scores = data.compared_scores if len(present) > 1 else data.scores
    signs = {p: pair_signs(scores[p]) for p in present}
    either = signs[present[0]]
    compared = either.known.sum(axis=1) >= 2  # two benchmarks, or the pair of models says nothing on agreement
    like = size_ratios(data.matrix.sizes()[0])[either.first, either.second] <= HEADLINE_RATIO
    return {
        name: _pooled(
            {p: PairSigns(*(part[pairs] for part in part_signs)) for p, part_signs in signs.items()},
            data.matrix.families,
        )
        for name, pairs, least in (("all", compared, 1), ("like_size", compared & like, LEAST_PAIRS))
        if pairs.sum() >= least
    }


def _pooled(signs: dict[str, PairSigns], all_families: np.ndarray) -> Pooled:
    """`signs`: by protocol, of the pairs of models that are compared, with the same cells known."""
    either = next(iter(signs.values()))
    models = np.unique([either.first, either.second])
    family_index, cluster = np.zeros((2, len(all_families)), dtype=int)
    families = all_families[models]
    family_index[models], cluster[models] = np.arange(len(models)), cluster_numbers(families)
    sizes = np.bincount(cluster[models])
    too_few = FEW_MODELS if len(models) < JACKKNIFED else None
    no_families = too_few or no_clusters(families)
    by_model, by_family = (
        {p: pooled_left_out(signs_of_protocol, units) for p, signs_of_protocol in signs.items()}
        for units in (family_index, cluster)
    )
    if len(signs) == len(PROTOCOLS):
        for by_key in (by_model, by_family):
            by_key["change"] = by_key[TRAINED] - by_key[DIRECT]
    means: dict[str, Value] = {}
    intervals: dict[str, Range] = {}
    clustered: dict[str, Range] = {}
    for key, taus in by_model.items():
        scale = "change" if key == "change" else "tau"
        means[key] = known(float(taus[0]), NO_COMPARISON)
        intervals[key] = Missing(too_few) if too_few is not None else _left_out_interval(taus, scale, None, LOST_MODEL)
        of_families = (
            Missing(no_families)
            if no_families is not None
            else _left_out_interval(by_family[key], scale, sizes, LOST_CLUSTER)
        )
        clustered[key] = over_families(of_families, intervals[key], families)
    benchmarks = either.known.sum(axis=1)
    return Pooled(
        pairs_of_models=len(either.first),
        models=len(models),
        comparisons=round(float((benchmarks * (benchmarks - 1)).sum() / 2)),
        change=means.pop("change", ONE_PROTOCOL),
        change_interval=intervals.pop("change", ONE_PROTOCOL),
        change_interval_clustered=clustered.pop("change", ONE_PROTOCOL),
        mean=means,
        interval=intervals,
        interval_clustered=clustered,
    )


def _left_out_interval(left_out: np.ndarray, scale: str, sizes: np.ndarray | None, reason: str) -> Range:
    """Missing also where no model changes the figure: that is no certainty about other models."""
    interval = transformed_interval(left_out[0], left_out[1:], scale, sizes)
    return interval if interval.low < interval.high else Missing(reason)
