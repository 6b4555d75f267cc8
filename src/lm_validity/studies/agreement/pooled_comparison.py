"""The headlines of a table with missing cells: taus pooled over the same comparisons for both protocols."""

import numpy as np

from lm_validity.studies.agreement.analysis import DIRECT, TRAINED, AgreementAnalysis
from lm_validity.studies.agreement.incomplete.estimates import JACKKNIFED, NO_COMPARISON
from lm_validity.studies.agreement.incomplete.summary import PooledRow, Range
from lm_validity.studies.agreement.similar_models import (
    HEADLINE_RATIO,
    LEAST_PAIRS,
    LOST_CLUSTER,
    LOST_MODEL,
    compared_scores,
    no_clusters,
    over_families,
    size_ratios,
)
from lm_validity.studies.agreement.statistics.noise import cluster_numbers, transformed_interval
from lm_validity.studies.agreement.statistics.ranking import PairSigns, pair_signs
from lm_validity.studies.agreement.statistics.sparse import pooled_left_out
from lm_validity.summaries import Missing, known
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import Reason, ReasonCode

FEW_MODELS = Reason(f"Fewer than {JACKKNIFED} models have comparisons whose cells are all known.", ReasonCode.TOO_FEW)


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
    like = size_ratios(parameters, of_one) <= HEADLINE_RATIO
    found = {"all": (compared, 1), "like_size": (compared & like, LEAST_PAIRS)}
    return {
        name: _row({p: PairSigns(*(part[pairs] for part in one)) for p, one in signs.items()}, analysis.matrix.families)
        for name, (pairs, least) in found.items()
        if pairs.sum() >= least
    }


def _row(signs: dict[str, PairSigns], families: np.ndarray) -> PooledRow:
    one = next(iter(signs.values()))
    models = np.unique([one.first, one.second])
    place = np.zeros(len(families), dtype=int)
    place[models] = np.arange(len(models))
    family = np.zeros(len(families), dtype=int)
    family[models] = cluster_numbers(families[models])
    by_model = {p: pooled_left_out(values, place) for p, values in signs.items()}
    by_family = {p: pooled_left_out(values, family) for p, values in signs.items()}
    sizes = np.bincount(family[models])
    few = FEW_MODELS if len(models) < JACKKNIFED else ""
    no_families = few or no_clusters(families[models])

    def interval(left_out: np.ndarray, scale: str) -> Range:
        return Missing(few) if few else _interval(left_out, scale, None, LOST_MODEL)

    def clustered(by_family: np.ndarray, by_model: np.ndarray, scale: str) -> Range:
        found = Missing(no_families) if no_families else _interval(by_family, scale, sizes, LOST_CLUSTER)
        return over_families(found, interval(by_model, scale), families[models])

    both = len(signs) == len(PROTOCOLS)
    no_change = Missing("One protocol has scores.")
    model_changes, family_changes = (
        taus[TRAINED] - taus[DIRECT] if both else np.empty(0) for taus in (by_model, by_family)
    )
    benchmarks = one.known.sum(axis=1)
    return PooledRow(
        pairs_of_models=len(one.first),
        models=len(models),
        comparisons=round(float((benchmarks * (benchmarks - 1)).sum() / 2)),
        mean={p: known(float(taus[0]), NO_COMPARISON) for p, taus in by_model.items()},
        interval={p: interval(taus, "tau") for p, taus in by_model.items()},
        interval_clustered={p: clustered(taus, by_model[p], "tau") for p, taus in by_family.items()},
        change=known(float(model_changes[0]), NO_COMPARISON) if both else no_change,
        change_interval=interval(model_changes, "change") if both else no_change,
        change_interval_clustered=clustered(family_changes, model_changes, "change") if both else no_change,
    )


def _interval(left_out: np.ndarray, scale: str, sizes: np.ndarray | None, reason: str) -> Range:
    """Missing also where no model changes the figure: that is no certainty about other models."""
    found = transformed_interval(left_out[0], left_out[1:], scale, sizes)
    return found if found.low < found.high else Missing(reason)
