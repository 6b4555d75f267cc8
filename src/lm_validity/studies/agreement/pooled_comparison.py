"""The headlines of a table with missing cells: taus pooled over the same comparisons for both protocols."""

import numpy as np

from lm_validity.studies.agreement.analysis import DIRECT, TRAINED, AgreementAnalysis
from lm_validity.studies.agreement.incomplete.estimates import JACKKNIFED, NO_COMPARISON
from lm_validity.studies.agreement.incomplete.summary import PooledRow, Range
from lm_validity.studies.agreement.similar_models import (
    LEAST_PAIRS,
    LOST_CLUSTER,
    LOST_MODEL,
    compared_scores,
    no_clusters,
)
from lm_validity.studies.agreement.statistics.corrected import cluster_numbers, transformed_interval
from lm_validity.studies.agreement.statistics.ranking import PairSigns, pair_signs
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.studies.agreement.statistics.sparse.pooled import pooled_left_out
from lm_validity.summaries import Missing, is_known, known
from lm_validity.tables.schema import PROTOCOLS

LIKE_SIZE = 2.0  # models that a reader chooses between differ by at most this factor in their number of parameters
FEW_MODELS = f"Fewer than {JACKKNIFED} models have comparisons whose cells are all known."


def compare_pooled(analysis: AgreementAnalysis) -> dict[str, PooledRow]:
    """Rows `all` and `like_size` of a table with missing cells; none for a complete one, or without common cells.

    A mean over pairs of benchmarks gives a pair with few models in common the weight of any other. With half of the
    published cells, that mean is off by .1 for models of like size (root mean square over 20 plans), the pooled tau by
    .012.
    """
    present = [p for p in PROTOCOLS if analysis.matrix.has(p)]
    if all(np.isfinite(analysis.scores[p]).all() for p in present):
        return {}
    scores = compared_scores(analysis) if len(present) > 1 else {p: analysis.scores[p] for p in present}
    signs = {p: pair_signs(scores[p]) for p in present}
    of_one = next(iter(signs.values()))
    compared = of_one.known.sum(axis=1) >= 2  # two benchmarks, or the pair of models says nothing on agreement
    parameters, _ = analysis.matrix.sizes()
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.log(np.where(parameters > 0, parameters, np.nan))
        like = np.abs(size[of_one.first] - size[of_one.second]) <= np.log(LIKE_SIZE) + 1e-9
    found = {"all": (compared, 1), "like_size": (compared & like, LEAST_PAIRS)}
    return {
        name: _row({p: _among(one, pairs) for p, one in signs.items()}, analysis.matrix.families)
        for name, (pairs, least) in found.items()
        if pairs.sum() >= least
    }


def _among(signs: PairSigns, pairs: np.ndarray) -> PairSigns:
    return PairSigns(signs.sign[pairs], signs.known[pairs], signs.first[pairs], signs.second[pairs])


def _row(signs: dict[str, PairSigns], families: np.ndarray) -> PooledRow:
    one = next(iter(signs.values()))
    models = np.unique([one.first, one.second])
    place = np.zeros(len(families), dtype=int)
    place[models] = np.arange(len(models))
    family = np.zeros(len(families), dtype=int)
    family[models] = cluster_numbers(families[models])
    by_model = {p: pooled_left_out(values, place) for p, values in signs.items()}
    by_family = {p: pooled_left_out(values, family) for p, values in signs.items()}
    sizes, nothing = np.bincount(family[models]), no_clusters(families[models])
    few = FEW_MODELS if len(models) < JACKKNIFED else ""

    def interval(left_out: np.ndarray) -> Range:
        return Missing(few) if few else _interval(left_out, None, LOST_MODEL)

    def clustered(left_out: np.ndarray) -> Range:
        return Missing(few or nothing) if few or nothing else _interval(left_out, sizes, LOST_CLUSTER)

    both = len(signs) == len(PROTOCOLS)
    no_change = Missing("One protocol has scores.")
    model_changes, family_changes = (
        # a change lies between -2 and 2, and intervals are made on the scale of a tau
        (taus[TRAINED] - taus[DIRECT]) / 2 if both else np.empty(0)
        for taus in (by_model, by_family)
    )
    return PooledRow(
        pairs_of_models=len(one.first),
        models=len(models),
        comparisons=round(float((one.known.sum(axis=1) * (one.known.sum(axis=1) - 1)).sum() / 2)),
        mean={p: known(float(taus[0]), NO_COMPARISON) for p, taus in by_model.items()},
        interval={p: interval(taus) for p, taus in by_model.items()},
        interval_clustered={p: clustered(taus) for p, taus in by_family.items()},
        change=known(float(2 * model_changes[0]), NO_COMPARISON) if both else no_change,
        change_interval=_twice(interval(model_changes)) if both else no_change,
        change_interval_clustered=_twice(clustered(family_changes)) if both else no_change,
    )


def _interval(left_out: np.ndarray, sizes: np.ndarray | None, reason: str) -> Range:
    found = transformed_interval(left_out[0], left_out[1:], "tau", sizes)
    return found if np.isfinite(found.low) else Missing(reason)


def _twice(interval: Range) -> Range:
    return Interval(2 * interval.low, 2 * interval.high) if is_known(interval) else interval
