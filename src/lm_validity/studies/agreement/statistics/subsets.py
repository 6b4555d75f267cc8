"""Influence: without one model or benchmark, and one benchmark against all others together."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.factors import first_shares_without_columns, shares_left_out
from lm_validity.studies.agreement.statistics.noise import taus_left_out
from lm_validity.studies.agreement.statistics.ranking import (
    finite_mean,
    kendall_tau_matrix,
    mean_over_pairs,
    pair_signs,
    ratio,
)
from lm_validity.studies.agreement.statistics.resampling import cluster_numbers

# ----------------------------------------------------------------------------------------------------------------------
# Influence: the headline figures with one family, one benchmark or one model left out.


@dataclass(frozen=True)
class LeftOut:
    """Figures without one part: `mean_tau` in [-1, 1] and `first_component` in [0, 1], NaN where undefined."""

    kind: str  # family | benchmark | model
    name: str
    mean_tau: float
    first_component: float


def leave_one_out(scores: np.ndarray, models: list[str], benchmarks: list[str], families: np.ndarray) -> list[LeftOut]:
    """Leave out each family, each benchmark and each model in turn.

    `scores`: (models, benchmarks), more is better, NaN where missing; `families`: (models,) names, None
    where unknown.
    """
    signs, tau = pair_signs(scores), kendall_tau_matrix(pair_signs(scores))

    def without(clusters: np.ndarray) -> np.ndarray:
        taus, _ = taus_left_out(signs, None, np.ones(len(signs.first), dtype=bool), clusters)
        return finite_mean(np.ascontiguousarray(taus[:, 1:].T), axis=1)

    clusters = cluster_numbers(families)
    taus, shares, parts = without(clusters), shares_left_out(scores, clusters, 1)[:, 0], []
    for name in dict.fromkeys(name for name in families if name is not None):
        remaining = families != name
        if remaining.sum() >= 2:
            cluster = clusters[~remaining][0]
            parts.append(LeftOut("family", name, float(taus[cluster]), float(shares[cluster])))
    shares = first_shares_without_columns(scores)
    for j, name in enumerate(benchmarks):
        remaining = np.arange(len(tau)) != j
        parts.append(LeftOut("benchmark", name, mean_over_pairs(tau[np.ix_(remaining, remaining)]), float(shares[j])))
    if len(models) > 2:
        all_models = np.arange(len(models))
        figures = zip(models, without(all_models), shares_left_out(scores, all_models, 1)[:, 0], strict=True)
        parts += [LeftOut("model", name, float(mean), float(share)) for name, mean, share in figures]
    return parts


# ----------------------------------------------------------------------------------------------------------------------
# How many benchmarks are enough: the ranking from a few benchmarks against the ranking from all.


def standardize(scores: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and standard deviation 1 over their known cells; constant columns become 0."""
    centered = scores - finite_mean(scores, axis=0)
    spread = np.sqrt(finite_mean(centered**2, axis=0))
    result: np.ndarray = centered / np.where(spread > 0, spread, 1.0)
    return result


def one_with_others(scores: np.ndarray) -> np.ndarray:
    """(1 + models,) mean tau-b of a benchmark with the mean standardised score on the others; then without each model.

    `scores`: (models, benchmarks), more is better, NaN where missing. Without a model its pairs are left out, the
    standardisation stays. NaN where undefined.
    """
    standardized = standardize(scores)
    is_known = np.isfinite(standardized)
    values = np.where(is_known, standardized, 0.0)
    total, count = values.sum(axis=1, keepdims=True), is_known.sum(axis=1, keepdims=True)
    single, remaining_signs = pair_signs(standardized), pair_signs(ratio(total - values, count - is_known))
    models = len(scores)

    def totals(by_pair: np.ndarray) -> np.ndarray:
        own_totals = [
            np.bincount(single.first, column, models) + np.bincount(single.second, column, models)
            for column in by_pair.T
        ]
        whole_totals = by_pair.sum(axis=0)
        return np.vstack([whole_totals, whole_totals - np.array(own_totals).T])

    untied, untied_of_others = (
        totals(np.abs(single.sign) * remaining_signs.known),
        totals(single.known * np.abs(remaining_signs.sign)),
    )
    return finite_mean(
        ratio(totals(single.sign * remaining_signs.sign), np.sqrt(np.round(untied) * np.round(untied_of_others))),
        axis=1,
    )
