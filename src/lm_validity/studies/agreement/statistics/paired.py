"""Significance of the difference of two models on the same test items."""

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import PairSigns
from lm_validity.studies.agreement.statistics.significance import Z_95


def paired_signs(correct: np.ndarray, z: float = Z_95) -> PairSigns:
    """Signs of the significant differences of one benchmark, paired over its items: a single column.

    `correct`: (models, items) each item's value of the metric, NaN where a model has no such item. With d
    the differences of two models on the items that both have, the pair is significant where

        |sum d| / sqrt(sum d²) > z

    which for right-or-wrong items is McNemar's test without continuity correction, (b - c) / sqrt(b + c), b
    and c the numbers of items that only one of the two gets right (McNemar 1947), and for graded items its
    score-test form. Models that answer all common items alike are never significant. Pairs without a common
    item are not known.
    """
    known = np.isfinite(correct)
    values = np.where(known, correct, 0.0)
    known = known.astype(float)
    total = values @ known.T  # [i, j]: sum of i's values over the items that j has too
    square = (values**2) @ known.T
    first, second = np.triu_indices(len(correct), 1)
    difference = (total - total.T)[first, second]
    spread = (square + square.T - 2 * values @ values.T)[first, second]
    common = (known @ known.T)[first, second] > 0
    significant = common & (spread > 1e-12) & (np.abs(difference) > z * np.sqrt(np.maximum(spread, 0.0)))
    sign = np.where(significant, np.sign(difference), 0.0)
    return PairSigns(sign[:, None], common.astype(float)[:, None], first, second)


def replace_column(signs: PairSigns, column: int, replacement: PairSigns) -> PairSigns:
    """`signs` with one column taken from a single-column `replacement` where that knows the pair."""
    known = replacement.known[:, 0] > 0
    sign, known_matrix = signs.sign.copy(), signs.known.copy()
    sign[known, column] = replacement.sign[known, 0]
    known_matrix[known, column] = 1.0
    return PairSigns(sign, known_matrix, signs.first, signs.second)
