"""Influence: without one model or benchmark, and one benchmark against all others together."""

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import (
    finite_mean,
    pair_signs,
    ratio,
)

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
