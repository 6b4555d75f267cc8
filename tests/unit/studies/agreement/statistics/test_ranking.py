"""Kendall's tau and its resamples, significance, perplexity, paired tests and screening, by hand and by scipy."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from lm_validity.config.sections import Screening
from lm_validity.studies.agreement.statistics import ranking
from lm_validity.studies.agreement.statistics.resampling import taus_left_out


@pytest.mark.parametrize("seed", range(5))
def test_equals_scipy_with_ties_and_missing_values(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 8, size=(25, 6)).astype(float)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    tau = ranking.kendall_tau_matrix(ranking.pair_signs(scores))
    for i, j in np.ndindex(tau.shape):
        both = np.isfinite(scores[:, i]) & np.isfinite(scores[:, j])
        expected = kendalltau(scores[both, i], scores[both, j]).statistic
        assert tau[i, j] == pytest.approx(expected, abs=1e-12)


def test_leaving_out_clusters_at_once_is_leaving_out_each():
    rng = np.random.default_rng(4)
    scores = rng.integers(0, 6, size=(20, 4)).astype(float)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    for clusters in (np.arange(20), rng.integers(0, 4, 20)):
        signs = ranking.pair_signs(scores)
        taus, _ = taus_left_out(signs, None, np.ones(len(signs.first), dtype=bool), clusters)
        for number, tau in enumerate(taus[:, 1:].T):
            rest = ranking.kendall_tau_matrix(ranking.pair_signs(scores[clusters != number]))
            np.testing.assert_allclose(tau, rest[np.triu_indices(4, 1)], atol=1e-12)


TAU = np.array([[1, 0.2, 0.4, 0.6], [0.2, 1, 0.0, -0.2], [0.4, 0.0, 1, np.nan], [0.6, -0.2, np.nan, 1]])


def test_means_of_a_small_matrix_and_improvement_that_is_strict():
    assert ranking.mean_over_pairs(TAU) == pytest.approx((0.2 + 0.4 + 0.6 + 0 - 0.2) / 5)
    np.testing.assert_allclose(ranking.mean_with_others(TAU), [0.4, 0.0, 0.2, 0.2])
    found = ranking.mean_by_category(TAU, ["x", "x", "y", None])
    expected = {("x", "x"): 0.2, ("x", "y"): 0.2, ("y", "x"): 0.2, ("y", "y"): np.nan}
    assert found == pytest.approx(expected, nan_ok=True)
    after = TAU.copy()
    after[0, 1], after[0, 2] = 0.2, 0.5
    after[1, 2] = np.nan
    assert ranking.improved_pairs(TAU, after) == (1, 4)


def test_significant_signs_by_hand():
    scores = np.array([[0.50, 0.9], [0.60, 0.8], [0.61, 0.1], [0.40, np.nan]])
    stderr = np.array([[0.03, 0.0], [0.03, 0.0], [0.03, 0.1], [0.0, 0.1]])
    signs = ranking.significant_signs(scores, stderr)
    # thresholds: 1.96 · sqrt(2) · 0.03 = 0.0832, and 1.96 · 0.03 = 0.0588 against the last model
    pairs = dict(zip(zip(signs.first, signs.second, strict=True), signs.sign[:, 0], strict=True))
    assert pairs == {(0, 1): -1, (0, 2): -1, (0, 3): 1, (1, 2): 0, (1, 3): 1, (2, 3): 1}
    # both errors zero: never significant; a missing score: not known
    assert (signs.sign[0, 1], signs.known[0, 1], signs.known[2, 1]) == (0, 1, 0)
    # tau counts pairs, not ranks: in A only 0-2 and 0-3 differ significantly, in B only 0-3: tau = 1 / sqrt(2 · 1)
    scores = np.array([[0.4, 0.4], [0.3, 0.3], [0.1, 0.25], [0.0, 0.0]])
    signs = ranking.significant_signs(scores, np.array([[0.05, 0.1], [0.2, 0.2], [0.05, 0.2], [0.05, 0.1]]))
    assert ranking.kendall_tau_matrix(signs)[0, 1] == pytest.approx(1 / np.sqrt(2))


def test_perplexity_agreement_by_hand():
    corpora = -np.array([[1.0], [0.9], [0.8], [np.nan]])  # bits per byte, negated: more is better
    benchmarks = np.array([[0.2, 0.5], [0.3, 0.4], [0.4, 0.6], [0.9, 0.9]])
    result = ranking.perplexity_agreement(corpora, benchmarks)
    np.testing.assert_allclose(result.corpus_benchmark, [[1.0, 1 / 3]])
    assert (result.models, result.complete_models) == (3, 3)
    # means .35, .35, .5: one tie, two concordant pairs: 2 / sqrt(3 · 2)
    assert result.average_average == pytest.approx(2 / np.sqrt(6))


def test_mcnemar_by_counts():
    # model 0 alone right on 15 items, model 1 alone on 4: (15 - 4) / sqrt(19) = 2.52; model 2 equals model 0
    both, neither = np.ones(10), np.zeros(8)
    first = np.concatenate([both, neither, np.ones(15), np.zeros(4)])
    second = np.concatenate([both, neither, np.zeros(15), np.ones(4)])
    signs = ranking.paired_signs(np.array([first, second, first]))
    assert signs.sign[:, 0].tolist() == [1, 0, -1]
    assert ranking.paired_signs(np.array([first, second]), z=2.6).sign[0, 0] == 0


def test_paired_test_uses_common_items_and_beats_the_unpaired_one():
    difficulty = np.random.default_rng(0).random(400)
    # the second is right wherever the easier items are: it differs on few items only
    first, second = ((difficulty < share).astype(float) for share in (0.60, 0.57))
    unpaired = ranking.significant_signs(np.array([[first.mean()], [second.mean()]]), np.full((2, 1), 0.0245))
    assert (unpaired.sign[0, 0], ranking.paired_signs(np.array([first, second])).sign[0, 0]) == (0, 1)
    for unknown, is_known in ((200, 1), (400, 0)):
        second[:unknown] = np.nan
        assert ranking.paired_signs(np.array([first, second])).known[0, 0] == is_known


def test_items_of_one_subject_count_together():
    rng = np.random.default_rng(0)
    subjects = np.repeat([f"s{i}" for i in range(12)], 25)
    # the first model is better by a share that differs from subject to subject
    lead = np.repeat(rng.choice([-0.35, 0.5], p=[0.4, 0.6], size=12), 25)
    second = (rng.random(300) < 0.5).astype(float)
    first = np.where(rng.random(300) < np.abs(lead), (lead > 0).astype(float), second)
    correct = np.array([first, second])
    correct[0, ::40] = np.nan
    sums = np.array([np.nansum((correct[0] - correct[1])[subjects == f"s{i}"]) for i in range(12)])
    statistic = abs(sums.sum()) / np.sqrt((sums**2).sum())
    found = [ranking.paired_signs(correct, z=statistic + step, clusters=subjects).sign[0, 0] for step in (-1e-9, 1e-9)]
    assert (abs(found[0]), found[1]) == (1, 0)
    assert abs(ranking.paired_signs(correct, z=statistic + 1e-9).sign[0, 0]) == 1  # single items claim more


def test_one_benchmark_against_the_others_by_hand():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(12, 1)) + 0.7 * rng.normal(size=(12, 4))
    scores[2, 1] = np.nan
    found = ranking.one_with_others(scores)
    z = ranking.standardize(scores)

    def mean_tau(rows):
        rest = [np.nanmean(np.delete(z, j, axis=1), axis=1) for j in range(4)]
        ok = [np.isfinite(z[rows, j]) for j in range(4)]
        return np.mean([kendalltau(z[rows, j][ok[j]], rest[j][rows][ok[j]])[0] for j in range(4)])

    assert found[0] == pytest.approx(mean_tau(np.arange(12)))
    assert found[5] == pytest.approx(mean_tau(np.delete(np.arange(12), 4)))
    assert len(found) == 13


RISING = np.arange(10.0)


def screened(columns, unimproved=0, examples=None, **changes):
    """Of direct scores in columns, and trained ones that are 1 higher but for so many models of the first column."""
    direct = np.column_stack(columns)
    trained = direct + 1
    trained[:unimproved, 0] = direct[:unimproved, 0]
    for table, lost in ((direct, changes.get("no_direct", 0)), (trained, changes.get("no_trained", 0))):
        table[len(table) - lost :, 0] = np.nan
    return ranking.screen_benchmarks(
        direct, trained, np.full(len(columns), 2e3) if examples is None else examples, Screening()
    )


def test_each_rule_of_screening_and_its_reason():
    examples = np.array([5000, 1000, np.nan, 2000, 999])
    found = screened([RISING, RISING, RISING**2, RISING[::-1], RISING], 3, examples)
    negative = "negative agreement with 2 of 2 other benchmarks"
    few = "999 training examples, fewer than 1000"
    assert found.reasons == ("no improvement in 3 of 10 models", None, None, negative, few)
    # agreement is counted with benchmarks that pass the first two rules: b, c and the reversed one
    assert list(found.eligible) == [3, 2, 2, 2, 3] and list(found.negative) == [1, 1, 1, 2, 1]
    np.testing.assert_allclose(found.mean_tau, [1 / 3, 0, 0, -1, 1 / 3])


def test_exactly_a_fifth_and_exactly_half_are_allowed_and_models_without_both_scores_do_not_count():
    found = screened([RISING, RISING, RISING[::-1]], 2)
    assert (found.unimproved[0], found.negative[0], found.eligible[0]) == (2, 1, 2)
    assert found.reasons[:2] == (None, None) and found.reasons[2].startswith("negative agreement with 2 of 2")
    found = screened([RISING, RISING], no_direct=1, no_trained=6)
    assert list(found.models) == [4, 10] and list(found.unimproved) == [0, 0]
    alone = screened([RISING])
    assert alone.reasons == (None,) and np.isnan(alone.mean_tau[0]) and alone.eligible[0] == 0
