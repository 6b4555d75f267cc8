"""Significance of the difference of two models on the same test items."""

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import PairSigns
from lm_validity.studies.agreement.statistics.significance import Z_95

FEWEST_CLUSTERS = 10  # with fewer, sums over clusters are too few to tell their spread


def paired_signs(correct: np.ndarray, z: float = Z_95, clusters: np.ndarray | None = None) -> PairSigns:
    """Signs of the significant differences of one benchmark, paired over its items: a single column.

    `correct`: (models, items) each item's value of the metric, NaN where a model has no such item. With d
    the differences of two models on the items that both have, the pair is significant where

        |sum d| / sqrt(sum d²) > z

    which for right-or-wrong items is McNemar's test without continuity correction, (b - c) / sqrt(b + c), b
    and c the numbers of items that only one of the two gets right (McNemar 1947), and for graded items its
    score-test form. Models that answer all common items alike are never significant. Pairs without a common
    item are not known.

    `clusters`: (items,) labels, such as the subjects of a benchmark. With at least 10 of them, fewer than items, d is a
    cluster's sum: McNemar's test for clustered items (Durkalski et al. 2003, Statistics in Medicine 22:2417, with
    clusters weighted by their items). It speaks for new clusters too, and takes clusters as independent.
    """
    codes = cluster_codes(clusters)
    if codes is not None:
        return _clustered_signs(correct, z, codes)
    known = np.isfinite(correct)
    values = np.where(known, correct, 0.0)
    known = known.astype(float)
    total = values @ known.T  # [i, j]: sum of i's values over the items that j has too
    square = (values**2) @ known.T
    first, second = np.triu_indices(len(correct), 1)
    difference = (total - total.T)[first, second]
    spread = (square + square.T - 2 * values @ values.T)[first, second]
    return PairSigns(*_decided(difference, spread, (known @ known.T)[first, second] > 0, z), first, second)


def cluster_codes(labels: np.ndarray | None) -> np.ndarray | None:
    """(items,) numbers of at least 10 clusters that are fewer than the items and all named, else None."""
    if labels is None or (labels == "").any():
        return None
    names, codes = np.unique(labels, return_inverse=True)
    return codes if FEWEST_CLUSTERS <= len(names) < len(codes) else None


def _clustered_signs(correct: np.ndarray, z: float, codes: np.ndarray) -> PairSigns:
    """As `paired_signs`, with the sums of d over the items of each cluster in the place of d."""
    first, second = np.triu_indices(len(correct), 1)
    difference, spread, common = np.zeros((3, len(first)))
    for cluster in range(int(codes.max()) + 1):
        part = correct[:, codes == cluster]
        known = np.isfinite(part).astype(float)
        total = np.where(known > 0, part, 0.0) @ known.T
        own = (total - total.T)[first, second]
        difference += own
        spread += own**2
        common += (known @ known.T)[first, second]
    return PairSigns(*_decided(difference, spread, common > 0, z), first, second)


def _decided(difference: np.ndarray, spread: np.ndarray, common: np.ndarray, z: float) -> tuple[np.ndarray, np.ndarray]:
    """Signs and known pairs (pairs, 1), significant where |difference| > z √spread; all sums by pair of models."""
    significant = common & (spread > 1e-12) & (np.abs(difference) > z * np.sqrt(np.maximum(spread, 0.0)))
    return np.where(significant, np.sign(difference), 0.0)[:, None], common.astype(float)[:, None]


def replace_column(signs: PairSigns, column: int, replacement: PairSigns) -> PairSigns:
    """`signs` with one column taken from a single-column `replacement` where that knows the pair."""
    known = replacement.known[:, 0] > 0
    sign, known_matrix = signs.sign.copy(), signs.known.copy()
    sign[known, column] = replacement.sign[known, 0]
    known_matrix[known, column] = 1.0
    return PairSigns(sign, known_matrix, signs.first, signs.second)
