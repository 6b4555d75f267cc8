"""Ranking agreement between benchmarks: means of a matrix of taus over all pairs and over sets of pairs."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.missing import finite_mean
from lm_validity.studies.agreement.statistics.ranking import kendall_tau, kendall_tau_matrix, pair_signs


@dataclass(frozen=True)
class Agreement:
    """Summary of a (k, k) matrix of rank correlations between k benchmarks.

    `mean`: over the unordered pairs with a defined tau, in [-1, 1]; `pairs`: their number; `by_benchmark`:
    (k,) mean of each benchmark with the others; `by_category`: (c, c) means within (diagonal) and between
    categories, in the order of `categories`; `within`, `between`: means over all pairs of benchmarks of one
    category, of two. NaN where there is no pair.
    """

    mean: float
    pairs: int
    within: float
    between: float
    by_benchmark: np.ndarray
    by_category: np.ndarray
    categories: tuple[str, ...]


def summarize_agreement(tau: np.ndarray, categories: list[str | None]) -> Agreement:
    """Means of `tau` (k, k), whose diagonal is ignored; pairs with NaN are left out.

    `categories`: (k,) names, None where unknown (then only left out of `by_category`).
    """
    names = tuple(dict.fromkeys(name for name in categories if name is not None))
    grid = np.full((len(names), len(names)), np.nan)
    members = [[i for i, category in enumerate(categories) if category == name] for name in names]
    for i, rows in enumerate(members):
        for j, columns in enumerate(members):
            grid[i, j] = mean_over_pairs(tau[np.ix_(rows, rows)]) if i == j else finite_mean(tau[np.ix_(rows, columns)])
    first, second = np.triu_indices(len(tau), 1)
    upper = tau[first, second]
    named = np.array([name is not None for name in categories], dtype=bool)
    both = named[first] & named[second]
    same = np.array([categories[a] == categories[b] for a, b in zip(first, second, strict=True)], dtype=bool)
    return Agreement(
        mean=mean_over_pairs(tau),
        pairs=int(np.isfinite(upper).sum()),
        within=finite_mean(upper[both & same]),
        between=finite_mean(upper[both & ~same]),
        by_benchmark=mean_with_others(tau),
        by_category=grid,
        categories=names,
    )


def mean_over_pairs(tau: np.ndarray) -> float:
    """Mean over the unordered pairs a < b of `tau` (k, k), NaN left out; NaN without any pair."""
    return finite_mean(tau[np.triu_indices(len(tau), 1)])


def mean_with_others(tau: np.ndarray) -> np.ndarray:
    """(k,) mean of each row of `tau` (k, k) without its diagonal, NaN left out."""
    return finite_mean(np.where(np.eye(len(tau), dtype=bool), np.nan, tau), axis=1)


def improved_pairs(before: np.ndarray, after: np.ndarray) -> tuple[int, int]:
    """(pairs a < b whose tau is strictly greater in `after`, pairs defined in both), of two (k, k) matrices."""
    upper = np.triu_indices(len(before), 1)
    difference = after[upper] - before[upper]
    return int((difference > 0).sum()), int(np.isfinite(difference).sum())


@dataclass(frozen=True)
class PerplexityAgreement:
    """Rank agreement of perplexity corpora with benchmarks; all taus in [-1, 1], NaN where undefined.

    `corpus_benchmark`: (corpora, benchmarks) taus; `corpus_corpus`: (corpora, corpora) taus;
    `average_average`: tau of the mean score over corpora with the mean score over benchmarks, over
    `complete_models` models that have all of them; `models`: number with a score on at least one corpus.
    """

    corpus_benchmark: np.ndarray
    corpus_corpus: np.ndarray
    average_average: float
    models: int
    complete_models: int


def perplexity_agreement(corpora: np.ndarray, benchmarks: np.ndarray) -> PerplexityAgreement:
    """Agreement of `corpora` (models, corpora) with `benchmarks` (models, benchmarks), both oriented: more is better.

    The averages are of raw scores (bits per byte; accuracies): the only one of the obvious conventions that
    gives the paper's 0.55 and 0.84.
    """
    corpus_signs, benchmark_signs = pair_signs(corpora), pair_signs(benchmarks)
    complete = np.isfinite(corpora).all(axis=1) & np.isfinite(benchmarks).all(axis=1)
    average = float("nan")
    if complete.sum() >= 3 and corpora.shape[1] and benchmarks.shape[1]:
        average = kendall_tau(corpora[complete].mean(axis=1), benchmarks[complete].mean(axis=1))
    return PerplexityAgreement(
        corpus_benchmark=kendall_tau_matrix(corpus_signs, others=benchmark_signs),
        corpus_corpus=kendall_tau_matrix(corpus_signs),
        average_average=average,
        models=int(np.isfinite(corpora).any(axis=1).sum()),
        complete_models=int(complete.sum()),
    )
