"""Rank agreement with measurement error taken out, and intervals by leaving out clusters of models."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.studies.agreement.statistics.ranking import PairSigns
from lm_validity.studies.agreement.statistics.resampling import Interval

LEAST_CLUSTERS = 3  # with two, a t quantile of 12.7 says nothing


def noise_corrected_tau(observed: np.ndarray | float, ceiling: np.ndarray | float) -> np.ndarray | float:
    """The tau that the benchmarks would have without measurement error.

        τ* = 2/π · asin( sin(π τ / 2) / sin(π c / 2) )

    with c the noise ceiling: the tau of benchmarks that share one order and differ by measurement error. sin(π τ / 2)
    is the correlation behind the tau of normal scores (Greiner 1909; Kruskal 1958), and dividing by the correlation
    that noise leaves is Spearman's (1904) correction for attenuation. Exact for normal scores with equal reliabilities;
    within 0.03 in the worlds of the review that proposed it. It fails where scores are far from normal after a
    monotone transformation of each benchmark, or where benchmarks share items, so that their errors agree too.
    NaN where the ceiling is not above 0 or the observed tau is above the ceiling: nothing is left to correct.
    """
    correlation = _attenuation(observed, ceiling)
    return 2 / np.pi * np.arcsin(np.where(np.abs(correlation) <= 1, correlation, np.nan))[()]


def corrected_interval(
    observed: float, ceiling: float, observed_left_out: np.ndarray, ceiling_left_out: np.ndarray
) -> Interval:
    """Jackknife-t interval of `noise_corrected_tau`: both taus of the whole table and without each cluster.

    Made for the corrected correlation, then transformed. A corrected correlation may be estimated above 1, a tau cannot
    be above 1: the interval is the part that can be. NaN as in `jackknife_interval`.
    """
    whole, parts = (_attenuation(*pair) for pair in ((observed, ceiling), (observed_left_out, ceiling_left_out)))
    low, high = jackknife_interval(whole, parts)
    return Interval(*(float(2 / np.pi * np.arcsin(np.clip(end, -1, 1))) for end in (low, high)))


def _attenuation(observed, ceiling):
    ceiling = np.where(np.asarray(ceiling) > 0, ceiling, np.nan)
    return (np.sin(np.pi * np.asarray(observed) / 2) / np.sin(np.pi * ceiling / 2))[()]


def jackknife_interval(estimate: float, left_out: np.ndarray, level: float = 0.95) -> Interval:
    """estimate ± t · se from the estimates `left_out` (clusters,), one without each cluster.

        se² = (G - 1) / G · Σ (θ₍g₎ - mean θ₍g₎)²,   t with G - 1 degrees of freedom

    (Tukey 1958; with few clusters: MacKinnon, Nielsen and Webb 2023, Journal of Econometrics 232). Clusters are taken
    as independent draws, members of one need not be. It fails where one cluster holds most models. NaN for fewer than
    3 clusters, or where leaving one out leaves no estimate.
    """
    number = len(left_out)
    if number < LEAST_CLUSTERS or not np.isfinite(left_out).all() or not np.isfinite(estimate):
        return Interval(float("nan"), float("nan"))
    error = np.sqrt((number - 1) / number * ((left_out - left_out.mean()) ** 2).sum())
    reach = stats.t.ppf(0.5 + level / 2, number - 1) * error
    return Interval(float(estimate - reach), float(estimate + reach))


def transformed_interval(estimate: float, left_out: np.ndarray, scale: str) -> Interval:
    """`jackknife_interval` on the scale of atanh (`tau`) or logit (`share`), so that it stays within the range."""
    forward, back = {
        "tau": (np.arctanh, np.tanh),
        "share": (lambda share: np.log(share / (1 - share)), lambda logit: 1 / (1 + np.exp(-logit))),
    }[scale]
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = jackknife_interval(float(forward(np.float64(estimate))), np.asarray(forward(left_out), dtype=float))
    return Interval(float(back(low)), float(back(high)))


def cluster_numbers(names: np.ndarray) -> np.ndarray:
    """(n,) whole numbers of the clusters that `names` (n,) gives; each unnamed unit (None) is a cluster of its own."""
    numbers: dict = {}
    keys = [(name, None) if name is not None else (None, i) for i, name in enumerate(names)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=int)


class ExpectedSigns(NamedTuple):
    """Products of signs that benchmarks with one common order would have, by pair of benchmarks and pair of models.

    `product`: (k (k + 1) / 2, pairs) expected products in [-1, 1], 0 where unknown; `untied`: (k, pairs) probability
    that a pair is not tied; `known`: (k, pairs); `columns`: the k benchmarks' places in the table.
    """

    product: np.ndarray
    untied: np.ndarray
    known: np.ndarray
    columns: np.ndarray


def mean_tau_left_out(
    signs: PairSigns, expected: ExpectedSigns | None, pairs: np.ndarray, clusters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(observed, ceiling): mean taus over pairs of benchmarks, of the whole table and then without each cluster.

    Both (1 + clusters,), over the pairs of models in the mask `pairs` (pairs,) and over the same pairs of benchmarks:
    those with both taus. Without `expected` the ceiling is NaN and the observed mean is over all pairs with a tau.
    """
    first, second = clusters[signs.first[pairs]], clusters[signs.second[pairs]]
    number, within = int(clusters.max()) + 1, first == second

    def totals(values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, dtype=float)
        concerned = np.bincount(first, values, number) + np.bincount(second, values, number)
        rest = values.sum() - concerned + np.bincount(first[within], values[within], number)
        return np.append(values.sum(), rest)

    columns = np.arange(signs.sign.shape[1]) if expected is None else expected.columns
    sign, known = signs.sign[pairs][:, columns], signs.known[pairs][:, columns]
    observed, ceiling = [], []
    if expected is not None:
        untied, common = expected.untied[:, pairs], expected.known[:, pairs]
    for place, (a, b) in enumerate(zip(*np.triu_indices(len(columns)), strict=True)):
        if a == b:
            continue
        left, right = totals(np.abs(sign[:, a]) * known[:, b]), totals(known[:, a] * np.abs(sign[:, b]))
        observed.append(_ratio(totals(sign[:, a] * sign[:, b]), left, right))
        if expected is not None:
            left, right = totals(untied[a] * common[b]), totals(common[a] * untied[b])
            ceiling.append(_ratio(totals(expected.product[place][pairs]), left, right))
    taus = np.array(observed)
    if expected is None or not len(taus):
        nothing = np.full(number + 1, np.nan)
        return (_mean(taus) if len(taus) else nothing), nothing
    limits = np.array(ceiling)
    both = np.isfinite(taus) & np.isfinite(limits)
    return _mean(np.where(both, taus, np.nan)), _mean(np.where(both, limits, np.nan))


def _ratio(product: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.maximum(left, 0.0) * np.maximum(right, 0.0))
    return np.divide(product, scale, out=np.full(product.shape, np.nan), where=scale > 1e-6)


def _mean(values: np.ndarray) -> np.ndarray:
    """(parts,) means of the finite entries of (pairs of benchmarks, parts)."""
    finite = np.isfinite(values)
    counts = finite.sum(axis=0)
    total = np.where(finite, values, 0.0).sum(axis=0)
    return np.divide(total, counts, out=np.full(values.shape[1], np.nan), where=counts > 0)
