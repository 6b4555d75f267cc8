"""The headlines of a table with missing cells: taus pooled over the same comparisons for both protocols."""

import numpy as np

from lm_validity.missing import Missing, Reason, ReasonCode
from lm_validity.results.put import Rows
from lm_validity.studies.agreement.data import JACKKNIFED, Data
from lm_validity.studies.agreement.score_matrix import size_ratios
from lm_validity.studies.agreement.statistics import ranking, resampling
from lm_validity.studies.agreement.statistics.sparse import pooled_left_out
from lm_validity.studies.agreement.values import LOST_CLUSTER, LOST_MODEL, Range, no_clusters, over_families
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED

HEADLINE_RATIO = 2.0  # models that a reader chooses between
LEAST_PAIRS = 10  # of models; fewer say nothing about a mean over pairs of benchmarks
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
