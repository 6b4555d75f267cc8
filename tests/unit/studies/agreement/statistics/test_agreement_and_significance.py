"""Means of tau matrices, significant pairs, perplexity: hand-computed."""

import numpy as np
import pytest

from lm_validity.studies.agreement.statistics.ranking import (
    improved_pairs,
    kendall_tau_matrix,
    perplexity_agreement,
    significant_signs,
    summarize_agreement,
)

TAU = np.array([[1, 0.2, 0.4, 0.6], [0.2, 1, 0.0, -0.2], [0.4, 0.0, 1, np.nan], [0.6, -0.2, np.nan, 1]])


def test_summary_of_a_small_matrix():
    summary = summarize_agreement(TAU, ["x", "x", "y", None])
    assert summary.mean == pytest.approx((0.2 + 0.4 + 0.6 + 0 - 0.2) / 5)
    np.testing.assert_allclose(summary.by_benchmark, [0.4, 0.0, 0.2, 0.2])
    assert summary.categories == ("x", "y")
    np.testing.assert_allclose(summary.by_category, [[0.2, 0.2], [0.2, np.nan]])


def test_improvement_is_strict_and_ignores_undefined_pairs():
    after = TAU.copy()
    after[0, 1], after[0, 2] = 0.2, 0.5
    after[1, 2] = np.nan
    assert improved_pairs(TAU, after) == (1, 4)


def test_significant_signs_by_hand():
    scores = np.array([[0.50, 0.9], [0.60, 0.8], [0.61, 0.1], [0.40, np.nan]])
    stderr = np.array([[0.03, 0.0], [0.03, 0.0], [0.03, 0.1], [0.0, 0.1]])
    signs = significant_signs(scores, stderr)
    # thresholds: 1.96 · sqrt(2) · 0.03 = 0.0832, and 1.96 · 0.03 = 0.0588 against the last model
    pairs = dict(zip(zip(signs.first, signs.second, strict=True), signs.sign[:, 0], strict=True))
    assert pairs == {(0, 1): -1, (0, 2): -1, (0, 3): 1, (1, 2): 0, (1, 3): 1, (2, 3): 1}
    # both errors zero: never significant; a missing score: not known
    assert signs.sign[0, 1] == 0 and signs.known[0, 1] == 1
    assert signs.known[2, 1] == 0


def test_significance_tau_counts_pairs_not_ranks():
    # in A only 0-2 and 0-3 differ significantly, in B only 0-3: tau = 1 / sqrt(2 · 1)
    scores = np.array([[0.4, 0.4], [0.3, 0.3], [0.1, 0.25], [0.0, 0.0]])
    stderr = np.array([[0.05, 0.1], [0.2, 0.2], [0.05, 0.2], [0.05, 0.1]])
    signs = significant_signs(scores, stderr)
    assert np.abs(signs.sign).sum(axis=0).tolist() == [2, 1]
    assert kendall_tau_matrix(signs)[0, 1] == pytest.approx(1 / np.sqrt(2))


def test_perplexity_agreement_by_hand():
    corpora = -np.array([[1.0], [0.9], [0.8], [np.nan]])  # bits per byte, negated: more is better
    benchmarks = np.array([[0.2, 0.5], [0.3, 0.4], [0.4, 0.6], [0.9, 0.9]])
    result = perplexity_agreement(corpora, benchmarks)
    np.testing.assert_allclose(result.corpus_benchmark, [[1.0, 1 / 3]])
    assert (result.models, result.complete_models) == (3, 3)
    # means .35, .35, .5: one tie, two concordant pairs: 2 / sqrt(3 · 2)
    assert result.average_average == pytest.approx(2 / np.sqrt(6))
