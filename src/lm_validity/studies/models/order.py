"""Which models are told apart, and in what order: pairs of models, joint sets of ranks, tiers. Functions of arrays."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.statistics import holm
from lm_validity.studies.agreement.statistics.ranking import finite_mean
from lm_validity.studies.items.statistics import LEVEL, POWER

LEAST_BENCHMARKS = 8  # over which models are compared; with 6, joint sets held in .91 of tables of equal models


class Leads(NamedTuple):
    """All pairs of M models. lead (M, M): of the model of the row over that of the column, better upwards; error:
    its standard error; dof: degrees of freedom of its t test, infinite for a z test; p: two-sided of no lead, of each
    pair by itself. NaN where a pair has no test, and on the diagonal."""

    lead: np.ndarray
    error: np.ndarray
    dof: np.ndarray
    p: np.ndarray

    @classmethod
    def tested(cls, lead: np.ndarray, error: np.ndarray, dof: np.ndarray) -> "Leads":
        """With p of the t test."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return cls(lead, error, dof, np.asarray(2 * stats.t.sf(np.abs(lead / error), dof)))


class Order(NamedTuple):
    """What all pairs of M models say at once. ahead (M, M): the row's model is found better than the column's. low,
    high (M,): the first and the last rank that the model may have. tier (M,): 1 for the models than which none is found
    better, 2 for those that are left once these are taken out, and so on: of two models of a tier none is found
    better."""

    ahead: np.ndarray
    low: np.ndarray
    high: np.ndarray
    tier: np.ndarray


def order_of(leads: Leads) -> Order:
    """The order of M models by all pairs.

    A model is found better than another where its p is below 5% after Holm's adjustment over all pairs. So with at
    least 95% probability no finding is wrong, and every model's rank (among equal models any) is between 1 + the number
    of models that are found better and M less the number of those that are found worse: joint confidence sets of ranks
    (Mogstad, Romano, Shaikh and Wilhelm 2024, Review of Economic Studies 91:476). Holm's adjustment is valid under any
    dependence; with few benchmarks it finds more than a bootstrap of the largest studentised difference, whose
    quantiles are larger than those of t.
    """
    lead, p, models = leads.lead, leads.p, len(leads.lead)
    first, second = np.triu_indices(models, 1)
    tested = np.isfinite(p[first, second])
    first, second = first[tested], second[tested]
    rejected = holm(p[first, second]) < LEVEL
    ahead = np.zeros((models, models), dtype=bool)
    ahead[first[rejected], second[rejected]] = lead[first[rejected], second[rejected]] > 0
    ahead[second[rejected], first[rejected]] = lead[second[rejected], first[rejected]] > 0
    tier, remaining = np.zeros(models, dtype=int), np.ones(models, dtype=bool)
    while remaining.any():
        top = remaining & ~ahead[remaining].any(axis=0)
        if not top.any():  # findings in a circle, which pairs with other items allow: the one that the fewest beat
            top[np.argmin(np.where(remaining, ahead[remaining].sum(axis=0), models))] = True
        tier[top], remaining = tier.max() + 1, remaining & ~top
    return Order(ahead, 1 + ahead.sum(axis=0), models - ahead.sum(axis=1), tier)


def leads_over_benchmarks(scores: np.ndarray, clusters: np.ndarray | None = None, *, standardised: bool) -> Leads:
    """Pairs of models by the mean difference of their `scores` (models, benchmarks), better upwards, over the b
    benchmarks that both have: a t test with b - 1 degrees of freedom, for a population of benchmarks like these.

    standardised: the scores of each benchmark are divided by their standard deviation first, as those of unlike units
    must be. clusters (benchmarks,): numbers from 0 of categories; where benchmarks of a category have something in
    common, `_design_effect` multiplies the squared errors and divides b. NaN for pairs with fewer than
    `LEAST_BENCHMARKS` in common. *It fails* where differences are far from normal.
    """
    values = scores - finite_mean(scores, axis=0)
    deviations = np.sqrt(finite_mean(values**2, axis=0))
    differs = deviations > 0
    values, deviations = values[:, differs], deviations[differs]
    effect = 1.0 if clusters is None else _design_effect(values / deviations, clusters[differs])
    values = values / deviations if standardised else values
    has, z = np.isfinite(values).astype(float), np.nan_to_num(values)
    number, total, square = has @ has.T, z @ has.T, z**2 @ has.T
    with np.errstate(invalid="ignore", divide="ignore"):
        lead = (total - total.T) / number
        variance = (square + square.T - 2 * z @ z.T - number * lead**2) / (number - 1)
        error = np.sqrt(effect * np.maximum(variance, 1e-18) / number)
    untested = (number < LEAST_BENCHMARKS) | np.eye(len(scores), dtype=bool)
    dof = np.maximum(number / effect - 1, 1)
    return Leads.tested(np.where(untested, np.nan, lead), np.where(untested, np.nan, error), dof)


def _design_effect(values: np.ndarray, clusters: np.ndarray) -> float:
    """1 + ρ (Σ m² / b - 1), at least 1: by how much the variance of a mean over b benchmarks in `clusters` of m is
    larger than of independent ones (Kish 1965, Survey Sampling, section 5.4).

    `values`: (models, b) standardised, NaN where missing. ρ is the correlation of what is left of them without the
    models' means, over all models and all pairs of benchmarks of one cluster; being centred, independent ones have
    -1 / (b - 1).
    """
    residuals = values - finite_mean(values, axis=1)[:, None]
    residuals = np.nan_to_num(residuals - finite_mean(residuals, axis=0))
    same_cluster, count = np.equal.outer(clusters, clusters) & ~np.eye(len(clusters), dtype=bool), len(clusters)
    products = residuals.T @ residuals
    scale = (np.add.outer(np.diag(products), np.diag(products)) / 2)[same_cluster].sum()
    if not scale:
        return 1.0
    correlation = max(0.0, (products[same_cluster].sum() / scale + 1 / (count - 1)) / (1 + 1 / (count - 1)))
    return float(1 + correlation * ((np.bincount(clusters) ** 2).sum() / count - 1))


def more_to_decide(leads: Leads, n: np.ndarray) -> np.ndarray:
    """(M, M) how many things more than the `n` (M, M) that each pair was compared on would tell it apart four times out
    of five if its lead stays what it is, at the level that the pairs that are not told apart share; NaN for pairs that
    are told apart or have no test."""
    ahead = order_of(leads).ahead
    undecided = np.isfinite(leads.lead) & ~ahead & ~ahead.T
    critical = stats.norm.isf(LEVEL / max(undecided.sum(), 1)) + stats.norm.ppf(POWER)  # both sides of all such pairs
    with np.errstate(invalid="ignore", divide="ignore"):
        further = np.ceil(n * ((critical * leads.error / np.abs(leads.lead)) ** 2 - 1))
    return np.where(undecided & np.isfinite(further), np.maximum(further, 1), np.nan)
