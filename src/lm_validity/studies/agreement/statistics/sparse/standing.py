"""What a process of the cells says of orders: expected signs of differences, and ranks over all benchmarks."""

import numpy as np
from scipy.special import ndtr

from lm_validity.studies.agreement.statistics.ranking import average_ranks
from lm_validity.studies.agreement.statistics.sparse.process import CellProcess


def expected_signs(process: CellProcess) -> np.ndarray:
    """(pairs of models, benchmarks) P(first better) - P(second better), each cell predicted by the others alone.

    Pairs in the order of `pair_signs`. 2 Phi((m - m') / sqrt(v + v')) - 1 of normal predictions.
    """
    first, second = np.triu_indices(len(process.scores), 1)
    mean, variance = process.without, process.without_variance
    return 2 * ndtr((mean[first] - mean[second]) / np.sqrt(variance[first] + variance[second])) - 1


def mean_standing(tables: np.ndarray) -> np.ndarray:
    """(..., models) mean over benchmarks of `tables` (..., models, benchmarks), each in its standard deviations.

    No value may be missing; a benchmark on which all models are equal counts as 0.
    """
    centred = tables - tables.mean(axis=-2, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-2, keepdims=True))
    return np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12).mean(axis=-1)


def rank_draws(tables: np.ndarray) -> np.ndarray:
    """(draws, models) ranks by `mean_standing` of the tables (draws, models, benchmarks), 1 = best, ties averaged."""
    return average_ranks(mean_standing(tables).T).T
