"""Differences that the standard errors can tell apart, and rank agreement that counts no others."""

from typing import NamedTuple

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import PairSigns, pair_signs

Z_95 = 1.96  # the paper's two-sided 95% threshold of a normal difference


class RankBands(NamedTuple):
    """Ranks (models,) that significance allows: best = 1 + #significantly better, worst = n - #significantly worse."""

    best: np.ndarray
    worst: np.ndarray


def significant_signs(scores: np.ndarray, stderr: np.ndarray, z: float = Z_95) -> PairSigns:
    """Signs of the significant differences of each column: 0 where |s_i - s_j| <= z sqrt(se_i² + se_j²).

    `scores`, `stderr`: (models, columns). A pair with both standard errors 0 is never significant (they
    come from degenerate predictions, not from certainty). Pairs where a score or standard error is missing
    are not known. Note that "not significantly different" is not transitive, so these are not the ties of a
    ranking; tau-b of the pairs (`kendall_tau_matrix`) is still sum ab / sqrt(sum a² sum b²).
    """
    signs = pair_signs(scores)
    variance = stderr[signs.first] ** 2 + stderr[signs.second] ** 2
    known = np.isfinite(variance) & (signs.known > 0)
    difference = np.where(known, scores[signs.first] - scores[signs.second], 0.0)
    threshold = z * np.sqrt(np.where(known, variance, 0.0))
    significant = known & (variance > 0) & (np.abs(difference) > threshold)
    return PairSigns(np.where(significant, signs.sign, 0.0), known.astype(float), signs.first, signs.second)


def opposite_significant_pairs(signs: PairSigns) -> np.ndarray:
    """(columns, columns) number of model pairs significant in both columns with opposite order."""
    positive, negative = (signs.sign > 0).astype(float), (signs.sign < 0).astype(float)
    return (positive.T @ negative + negative.T @ positive).astype(int)


def better_than(signs: PairSigns, column: int, models: int) -> np.ndarray:
    """(models, models) True where the row's model is significantly better than the column's model."""
    order = np.zeros((models, models), dtype=bool)
    up, down = signs.sign[:, column] > 0, signs.sign[:, column] < 0
    order[signs.first[up], signs.second[up]] = True
    order[signs.second[down], signs.first[down]] = True
    return order


def rank_bands(better: np.ndarray) -> RankBands:
    """Bands of a partial order `better` (models, models), True where the row's model beats the column's."""
    return RankBands(better.sum(axis=0) + 1, len(better) - better.sum(axis=1))
