"""Greedy alignment by hand and against its definition; McNemar's test against counts and statsmodels' formula."""

import itertools

import numpy as np
import pytest
from scipy import stats

from lm_validity.studies.agreement.statistics.ranking import (
    align_rankings,
    aligned_figures,
    average_ranks,
    better_than,
    cluster_codes,
    paired_signs,
    replace_column,
    significant_signs,
)


def order_of(pairs, n: int) -> np.ndarray:
    better = np.zeros((n, n), dtype=bool)
    for a, b in pairs:
        better[a, b] = True
    return better


def aligned(first, second, ranks_first, ranks_second):
    """The two orders of one pair of benchmarks, best first."""
    places = align_rankings(first[None], second[None], np.array([ranks_first]), np.array([ranks_second]))
    return [np.argsort(place[0]).tolist() for place in places]


def discordant(first, second):
    """Pairs of models that two vectors of scores or places order oppositely."""
    pairs = itertools.combinations(range(len(first)), 2)
    return sum((first[i] - first[j]) * (second[i] - second[j]) < 0 for i, j in pairs)


def by_definition(first, second, ranks_first, ranks_second):
    """Algorithm 3 as it is defined: the smallest of all keys of two models that may come next."""
    n, orders = len(ranks_first), ([], [])
    for _ in range(n):
        may = [
            [m for m in range(n) if m not in order and not (set(np.flatnonzero(better[:, m])) - set(order))]
            for order, better in zip(orders, (first, second), strict=True)
        ]

        def place(order, model):
            return order.index(model) + 1 if model in order else n + 1

        keys = [
            (place(orders[1], a) + place(orders[0], b), a != b, ranks_second[a] + ranks_first[b], a, b)
            for a, b in itertools.product(*may)
        ]
        *_, a, b = min(keys)
        orders[0].append(a)
        orders[1].append(b)
    return list(orders)


def test_without_significant_differences_the_orders_become_equal():
    free = np.zeros((4, 4), dtype=bool)
    first, second = aligned(free, free, [1.0, 2, 3, 4], [4.0, 3, 2, 1])
    assert first == second


def test_significant_contradictions_stay():
    # A: 0 and 1 both significantly better than 2; B: 2 significantly better than 0; 1 is free in B
    first, second = order_of([(0, 2), (1, 2)], 3), order_of([(2, 0)], 3)
    scores = np.array([[3.0, 1], [2, 2], [1, 3]])
    ((_, models, figures, orders),) = aligned_figures(np.array([first, second]), scores, [(0, 1)])
    assert models.tolist() == [0, 1, 2] and figures.violations == 0 and figures.opposite == 1
    assert figures.crossings == 3 and figures.tau == -1
    assert figures.aligned_crossings == 1  # only 0 and 2, which both orders put significantly
    assert figures.aligned_tau == pytest.approx(1 / 3)
    assert [order.tolist() for order in orders] == by_definition(first, second, [1.0, 2, 3], [3.0, 2, 1])


def test_plain_ranks_break_ties_between_models_that_may_both_come_next():
    free = np.zeros((3, 3), dtype=bool)
    # sums of plain ranks: 2 + 2, 1 + 3, 3 + 1: all equal; the smallest index comes first
    assert aligned(free, free, [2.0, 1, 3], [2.0, 3, 1])[0] == [0, 1, 2]
    assert aligned(free, free, [3.0, 1, 2], [2.0, 1, 3])[0][0] == 1


@pytest.mark.parametrize("seed", range(3))
def test_aligned_orders_are_those_of_the_definition_break_nothing_and_agree_more(seed):
    """Three benchmarks with ties, all pairs at once, some scores missing."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.normal(size=(14, 1)) + 0.7 * rng.normal(size=(14, 3)), 1)
    scores[rng.random(scores.shape) < 0.1 * seed] = np.nan
    signs = significant_signs(scores, np.full(scores.shape, 0.25))
    better = np.array([better_than(signs, column, 14) for column in range(3)])
    for (a, b), models, figures, orders in aligned_figures(better, scores, [(0, 1), (0, 2), (1, 2)]):
        assert models.tolist() == np.flatnonzero(np.isfinite(scores[:, [a, b]]).all(axis=1)).tolist()
        first, second = (better[column][np.ix_(models, models)] for column in (a, b))
        own = scores[models][:, [a, b]]
        ranks = average_ranks(own)
        assert [order.tolist() for order in orders] == by_definition(first, second, ranks[:, 0], ranks[:, 1])
        places = [np.argsort(order) for order in orders]
        assert figures.aligned_crossings == discordant(*places)
        assert figures.crossings == discordant(*own.T)
        assert figures.opposite == (first & second.T).sum() <= figures.aligned_crossings <= figures.crossings
        assert figures.tau == pytest.approx(stats.kendalltau(*own.T).statistic)
        assert figures.aligned_tau == pytest.approx(stats.kendalltau(*places).statistic)
        assert figures.aligned_tau >= figures.tau and figures.violations == 0


def test_mcnemar_by_counts():
    # model 0 alone right on 15 items, model 1 alone on 4: (15 - 4) / sqrt(19) = 2.52; model 2 equals model 0
    both, neither = np.ones(10), np.zeros(8)
    first = np.concatenate([both, neither, np.ones(15), np.zeros(4)])
    second = np.concatenate([both, neither, np.zeros(15), np.ones(4)])
    signs = paired_signs(np.array([first, second, first]))
    assert signs.sign[:, 0].tolist() == [1, 0, -1]
    assert paired_signs(np.array([first, second]), z=2.6).sign[0, 0] == 0


def test_paired_test_uses_common_items_and_beats_the_unpaired_one():
    rng = np.random.default_rng(0)
    difficulty = rng.random(400)
    first = (difficulty < 0.60).astype(float)
    second = (difficulty < 0.57).astype(float)  # right wherever the easier items are: differs on few items only
    unpaired = significant_signs(np.array([[first.mean()], [second.mean()]]), np.full((2, 1), 0.0245))
    assert unpaired.sign[0, 0] == 0
    assert paired_signs(np.array([first, second])).sign[0, 0] == 1
    second[:200] = np.nan
    half = paired_signs(np.array([first, second]))
    assert half.known[0, 0] == 1
    second[:] = np.nan
    assert paired_signs(np.array([first, second])).known[0, 0] == 0


def test_replaced_columns_keep_what_the_paired_test_cannot_know():
    scores, stderr = np.array([[0.9, 0.9], [0.1, 0.1], [0.5, 0.5]]), np.full((3, 2), 0.01)
    signs = significant_signs(scores, stderr)
    correct = np.array([[1.0, 1, 0], [1.0, 0, 1], [np.nan, np.nan, np.nan]])
    merged = replace_column(signs, 1, paired_signs(correct))
    assert merged.sign[:, 0].tolist() == signs.sign[:, 0].tolist()
    assert merged.sign[:, 1].tolist() == [0, signs.sign[1, 1], signs.sign[2, 1]]


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
    assert abs(paired_signs(correct, z=statistic - 1e-9, clusters=subjects).sign[0, 0]) == 1
    assert paired_signs(correct, z=statistic + 1e-9, clusters=subjects).sign[0, 0] == 0
    assert abs(paired_signs(correct, z=statistic + 1e-9).sign[0, 0]) == 1  # single items claim more


def test_few_or_unknown_subjects_are_no_clusters():
    correct = (np.random.default_rng(1).random((4, 60)) < np.linspace(0.3, 0.8, 4)[:, None]).astype(float)
    plain = paired_signs(correct)
    for labels in (np.repeat([f"s{i}" for i in range(6)], 10), np.array([""] * 60), np.arange(60).astype(str)):
        assert (paired_signs(correct, clusters=labels).sign == plain.sign).all() and cluster_codes(labels) is None
