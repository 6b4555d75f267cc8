"""Influence: without one model or benchmark, and over subsets of benchmarks."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.factors import first_shares_without_columns, shares_left_out
from lm_validity.studies.agreement.statistics.noise import taus_left_out
from lm_validity.studies.agreement.statistics.ranking import (
    finite_mean,
    finite_quantile,
    kendall_tau_matrix,
    kendall_tau_of_columns,
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

MANY_MODELS = 300  # from here on one deal of the models into groups is precise enough


@dataclass(frozen=True)
class SubsetAgreement:
    """Tau of the ranking from `sizes` benchmarks with that from all, on models that took no part in the choice.

    `random_mean`, `random_low`, `random_high`: (sizes,) mean, 5th and 95th percentile over random subsets;
    `greedy_mean`: (sizes,) of the subset chosen greedily on the other models; `greedy_order`: indices of
    benchmarks in the order of the greedy choice on all models; `others_mean`: (sizes,) mean tau of random subsets with
    the ranking from the *other* benchmarks, which share no benchmark with them. NaN where undefined.
    """

    sizes: np.ndarray
    random_mean: np.ndarray
    random_low: np.ndarray
    random_high: np.ndarray
    greedy_mean: np.ndarray
    greedy_order: np.ndarray
    others_mean: np.ndarray


def subset_agreement(
    scores: np.ndarray, rng: np.random.Generator, repeats: int = 4, subsets: int = 40
) -> SubsetAgreement:
    """Agreement of subsets of benchmarks with the whole set, cross-validated over models.

    `scores`: (models, benchmarks), more is better, NaN where missing. A ranking is that of the mean
    standardised score over the known benchmarks of the set. The models are dealt into up to 5 groups,
    `repeats` times; the greedy subset grows by the benchmark that raises the tau on the other groups most;
    both it and `subsets` random subsets of each size and group are scored on the group. The full ranking
    contains the subset's benchmarks, so the curve ends at 1: it answers how much of the whole set could
    have been saved, not how the ranking carries over to new benchmarks. For that there is `others_mean`;
    the ranking from the others rests on the fewer benchmarks the larger the subset is, so it is too low
    towards the end. Groups have at least 4 models with a score; with
    fewer than 8 of them all values are NaN.
    """
    standardized = standardize(scores[np.isfinite(scores).any(axis=1)])
    models, benchmarks = standardized.shape
    sizes = np.arange(1, benchmarks + 1)
    undefined = np.full(benchmarks, np.nan)
    (order,), _ = greedy_subsets([standardized])
    folds = min(5, models // 4)
    repeats = repeats if models <= MANY_MODELS else 1
    if folds < 2:
        return SubsetAgreement(sizes, undefined, undefined, undefined, undefined, order, undefined)
    groups, random, others_taus = [], [], []
    for _ in range(repeats):
        group = rng.permutation(np.arange(models) % folds)
        for fold in range(folds):
            groups.append(group == fold)
            chosen_at_random = np.array([rng.permutation(benchmarks) for _ in range(subsets)])
            random += [*nested_agreement(standardized[group == fold], chosen_at_random)]
            others_taus += [*agreement_with_others(standardized[group == fold], chosen_at_random)]
    chosen, _ = greedy_subsets([standardized[~held_out] for held_out in groups])
    greedy = [nested_agreement(standardized[held_out], best) for held_out, best in zip(groups, chosen, strict=True)]
    # a subset's score is its mean over groups of models: one group alone is too few models for a tau
    per_draw = finite_mean(np.array(random).reshape(repeats, folds, subsets, benchmarks), axis=1).reshape(
        -1, benchmarks
    )
    low, high = finite_quantile(per_draw, [0.05, 0.95])
    random_mean, greedy_mean, others_mean = (
        finite_mean(np.array(curves), axis=0) for curves in (random, greedy, others_taus)
    )
    return SubsetAgreement(sizes, random_mean, low, high, greedy_mean, order, others_mean)


def standardize(scores: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and standard deviation 1 over their known cells; constant columns become 0."""
    centered = scores - finite_mean(scores, axis=0)
    spread = np.sqrt(finite_mean(centered**2, axis=0))
    result: np.ndarray = centered / np.where(spread > 0, spread, 1.0)
    return result


def nested_agreement(standardized: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """(..., benchmarks) tau of the mean of the first 1, 2, ... benchmarks of each of `orders` with the mean of all."""
    total, count = _running(standardized, orders)
    means = ratio(total, count)
    last_means = np.broadcast_to(means[..., -1:], means.shape)
    return _tau_of_means(means, last_means)


def agreement_with_others(standardized: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """(..., benchmarks) tau of the mean of the first 1, 2, ... benchmarks of each of `orders` with that of the rest."""
    total, count = _running(standardized, orders)
    return _tau_of_means(ratio(total, count), ratio(total[..., [-1]] - total, count[..., [-1]] - count))


def _running(standardized: np.ndarray, orders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums and numbers of the known scores on the first 1, 2, ... benchmarks of `orders`, (models, ..., benchmarks)."""
    values = standardized[:, orders]
    is_known = np.isfinite(values)
    return np.cumsum(np.where(is_known, values, 0.0), axis=-1), np.cumsum(is_known, axis=-1)


def _tau_of_means(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Taus of the models' values in `first` with those in `second`, (models, ...) both."""
    flat = (values.reshape(len(values), -1) for values in (first, second))
    return kendall_tau_of_columns(*flat).reshape(first.shape[1:])


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


def greedy_subsets(tables: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(orders, taus), (tables, benchmarks) both: for each of the standardised `tables`, (its models, benchmarks),
    benchmarks in the order of greedy choice, and each size's tau with the mean of all.

    Ties go to the benchmark that comes first. Undefined taus (constant means) count as lowest.
    """
    shape = max(len(table) for table in tables), len(tables), tables[0].shape[1]
    values, is_known, full = np.zeros(shape), np.zeros(shape, dtype=bool), np.full(shape[:2], np.nan)
    for index, table in enumerate(tables):
        finite = np.isfinite(table)
        filled = np.where(finite, table, 0.0)
        means = ratio(filled.sum(axis=1), finite.sum(axis=1))
        rising = np.argsort(means)  # in which taus are found fastest, NaN last
        values[: len(table), index], is_known[: len(table), index] = filled[rising], finite[rising]
        full[: len(table), index] = means[rising]
    total, count, rows = np.zeros(shape[:2]), np.zeros(shape[:2]), np.arange(len(tables))
    remaining, orders, taus = np.tile(np.arange(shape[2]), (len(tables), 1)), [], []
    while remaining.size:
        added = total[..., None] + np.take_along_axis(values, remaining[None], axis=2)
        known_with = count[..., None] + np.take_along_axis(is_known, remaining[None], axis=2)
        tau = kendall_tau_of_columns(ratio(added, known_with), full[..., None])
        best = np.argmax(np.where(np.isfinite(tau), tau, -np.inf), axis=1)
        chosen = remaining[rows, best]
        orders.append(chosen)
        taus.append(tau[rows, best])
        total, count = total + values[:, rows, chosen], count + is_known[:, rows, chosen]
        remaining = remaining[np.arange(remaining.shape[1]) != best[:, None]].reshape(len(tables), -1)
    by_table = shape[2], len(tables)
    return np.array(orders, dtype=int).reshape(by_table).T, np.array(taus).reshape(by_table).T
