"""Paired comparisons against scipy and simulation; resolution of a benchmark on worlds that are known."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from lm_validity.studies.items import statistics
from lm_validity.words import Missing, number


def answers(generator, items, first, second, clusters=None, spread=0.0):
    """Right-or-wrong answers of two models; difficulty is shared, and in part that of the item's cluster."""
    easy = generator.standard_normal(items)
    if clusters is not None:
        easy = easy + spread * generator.standard_normal(clusters.max() + 1)[clusters]
    return [(generator.logistic(size=items) < easy + ability).astype(float) for ability in (first, second)]


def test_right_or_wrong_items_are_tested_by_mcnemar_and_graded_ones_by_t():
    first, second = answers(np.random.default_rng(0), 300, 0.4, 0.0)
    found = statistics.paired_difference(first, second)
    only = int((first > second).sum()), int((second > first).sum())
    assert (found.first_only, found.second_only) == only
    assert found.p == pytest.approx(stats.binomtest(only[0], sum(only)).pvalue) == statistics.mcnemar_p(*only)
    graded = statistics.paired_difference(first + 0.25, second)
    assert graded.first_only is None
    assert graded.p == pytest.approx(stats.ttest_rel(first + 0.25, second).pvalue)
    expected = stats.ttest_rel(first + 0.25, second).confidence_interval()
    assert graded.interval == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("items", [30, 100, 400])
def test_the_interval_of_right_or_wrong_items_holds_zero_where_mcnemar_does_not_refuse_it(items):
    """All tables of up to 25 differing items: p is scipy's, and the interval is what p does not refuse."""
    for first in range(26):
        for second in range(26 - first):
            test = statistics.McNemarTest(items, first, second)
            p, (low, high) = statistics.mcnemar_p(first, second), test.interval()
            assert test.p(0.0) == pytest.approx(p)
            assert low <= test.difference <= high
            assert abs(p - 0.05) <= 1e-9 or (p <= 0.05) == (not low <= 0 <= high)


def test_with_many_differing_items_the_interval_is_tangos():
    # the score equation of Tango 1998 by bisection, with the continuity correction that the exact test has
    first, second, items = 400, 330, 5000

    def z(null):
        b, c = 730 + null * 70, null * 70 - (items - 730) * null**2
        share = (b + np.sqrt(b**2 - 4 * items * c)) / (2 * items)
        return (abs(70 - items * null) - 1) / np.sqrt(items * (share - null**2))

    for end in statistics.McNemarTest(items, first, second).interval():
        assert z(end) == pytest.approx(1.96, abs=0.01)


def test_intervals_of_right_or_wrong_items_hold_the_true_difference():
    generator, held = np.random.default_rng(1), []
    for items, share, difference in ((100, 0.1, 0.05), (200, 0.3, 0.15), (500, 0.05, 0.045)):
        shares = [(share + difference) / 2, (share - difference) / 2, 1 - share]
        for first, second, _ in generator.multinomial(items, shares, size=400):
            low, high = statistics.McNemarTest(items, int(first), int(second)).interval()
            held.append(low <= difference <= high)
    assert 0.945 < np.mean(held) < 0.99


def test_the_smallest_detectable_difference_is_found_with_the_promised_power():
    """Exact power: over the number of differing items, and over whose they are."""

    def power(items, share, difference):
        share, found = max(share, difference), 0.0
        for differing in range(6, items + 1):
            firsts = np.arange(differing + 1)
            tail = np.minimum(stats.binom.cdf(firsts, differing, 0.5), stats.binom.sf(firsts - 1, differing, 0.5))
            own = stats.binom.pmf(firsts, differing, (1 + difference / share) / 2)
            found += stats.binom.pmf(differing, items, share) * own[2 * tail < 0.05].sum()
        return found

    for items, differing in ((100, 10), (100, 30), (100, 60), (300, 30)):
        test = statistics.McNemarTest(items, differing // 2, differing - differing // 2)
        assert 0.78 < power(items, differing / items, test.detectable()) < 0.93
    # with no more differing items than the difference itself, which a normal test would call .028 of 100
    assert statistics.McNemarTest(100, 1, 0).detectable() > 0.08
    needed = statistics.McNemarTest(100, 15, 10).needed(0.05, 100)
    assert 0.78 < power(needed, 0.25, 0.05) < 0.83


def test_equal_answers_are_no_difference_and_one_graded_item_is_no_evidence():
    values = np.array([1.0, 0.0, 1.0])
    found = statistics.paired_difference(values, values)
    assert (found.difference, found.p) == (0.0, 1.0)
    assert isinstance(found.test.needed(found.difference, 3), Missing)
    # of 3 items that never differ, no loss below .7 is refused
    assert found.interval == pytest.approx((-found.interval[1], found.interval[1])) and found.interval[1] > 0.7
    graded = statistics.paired_difference(values / 2, values / 2)
    assert isinstance(graded.interval, Missing) and graded.p == 1.0
    assert statistics.paired_difference(np.array([0.7]), np.array([0.2])).p == 1.0
    assert statistics.paired_difference(np.full(6, 0.75), np.full(6, 0.25)).p == pytest.approx(2 * 0.5**6)
    with pytest.raises(ValueError, match="at least one common item"):
        statistics.paired_difference(np.array([]), np.array([]))


def test_power_and_items_needed_are_those_of_simulation():
    generator, items = np.random.default_rng(0), 400
    first, second = answers(generator, 100_000, 0.25, 0.0)
    difference = first - second
    mean, spread = float(difference.mean()), float(difference.std())
    needed = statistics.StudentTest(mean, spread, np.inf).needed(mean, 1)
    chosen = difference[generator.integers(len(first), size=(1500, needed))]
    assert np.mean(stats.ttest_1samp(chosen, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.04)
    sample = statistics.paired_difference(first[:items] / 2, second[:items] / 2)  # graded, and so tested by t
    assert sample.smallest_detectable == pytest.approx(2.80 * sample.test.error, rel=0.01)


def test_clusters_are_left_out_in_turn():
    generator, clusters = np.random.default_rng(2), np.repeat(np.arange(12), np.arange(2, 14))
    first, second = generator.random((2, len(clusters)))
    found = statistics.paired_difference(first, second, clusters)
    without = np.array([np.mean((first - second)[clusters != one]) for one in range(12)])
    expected = np.sqrt(11 / 12 * np.sum((without - found.difference) ** 2))
    assert found.test.error == pytest.approx(expected)
    assert found.interval[1] - found.difference == pytest.approx(stats.t.ppf(0.975, 90**2 / 818 - 1) * expected)


@pytest.mark.parametrize(("number", "counted"), [(2, None), (3, 3), (90, None)])
def test_too_few_clusters_or_one_for_each_item_are_not_used(number, counted):
    first, second = answers(np.random.default_rng(0), 90, 0.4, 0.0)
    assert statistics.paired_difference(first, second, np.repeat(np.arange(number), 90 // number)).clusters == counted


def test_unpaired_scores_are_compared_by_their_errors():
    test = statistics.unpaired_difference(0.1, (0.03, 0.04), None)
    assert test.error == pytest.approx(0.05) and test.p(0.0) == pytest.approx(2 * stats.norm.sf(2))
    assert test.interval() == pytest.approx((0.1 - 1.959964 * 0.05, 0.1 + 1.959964 * 0.05))
    assert test.detectable() > 0.1
    with pytest.raises(ValueError, match="without an error"):
        statistics.unpaired_difference(0.1, (0.0, 0.0), None)


def test_a_benchmark_resolves_models_that_are_apart_and_no_others():
    generator = np.random.default_rng(0)
    easy = generator.standard_normal(2000)
    apart = np.array([(generator.logistic(size=2000) < easy + ability) for ability in (2.0, 0.0, 1.0)], dtype=float)
    assert [pair.p < 0.05 for pair in statistics.neighbour_tests(apart)] == [True, True]
    equal = [(generator.logistic(size=(5, 300)) < generator.standard_normal(300)).astype(float) for _ in range(50)]
    assert np.mean([pair.p < 0.05 for correct in equal for pair in statistics.neighbour_tests(correct)]) < 0.05
    nothing_in_common = np.array([[1.0, 0.0, np.nan, np.nan], [np.nan, np.nan, 1.0, 0.0]])
    assert statistics.neighbour_tests(nothing_in_common) == statistics.neighbour_tests(np.array([[1.0, 0.0]])) == []


@pytest.mark.parametrize("kind", ["right or wrong", "with gaps", "graded", "graded with gaps", "clusters", "one item"])
def test_all_pairs_at_once_are_the_pairs_one_by_one(kind):
    generator = np.random.default_rng(7)
    correct = (generator.uniform(size=(6, 90)) < 0.6).astype(float)
    correct[1] = correct[0]  # two that never differ
    if "graded" in kind:
        correct[2:] = generator.uniform(size=(4, 90))
        correct[3] = correct[2] + 0.1  # that differ by the same everywhere
    if "gaps" in kind:
        correct[generator.uniform(size=correct.shape) < 0.2] = np.nan
        correct[5] = np.nan  # a model without items
    correct = correct[:, :1] if kind == "one item" else correct
    clusters = generator.integers(0, 12, size=90).astype(str) if kind == "clusters" else None
    p, detectable, items = statistics.paired_tests(correct, clusters)
    assert np.isnan(np.diag(p)).all() and np.isnan(np.diag(detectable)).all()
    assert all(np.array_equal(table, table.T, equal_nan=True) for table in (p, detectable))
    for i, j in combinations(range(6), 2):
        both = np.isfinite(correct[i] + correct[j])
        assert items[i, j] == both.sum()
        if not both.any():
            assert np.isnan(p[i, j]) and np.isnan(detectable[i, j])
            continue
        own = None if clusters is None else clusters[both]
        pair = statistics.paired_difference(correct[i, both], correct[j, both], own)
        assert p[i, j] == pytest.approx(pair.p, rel=1e-6, abs=1e-12)
        assert detectable[i, j] == pytest.approx(number(pair.smallest_detectable), rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("sizes", [(30, 30, 30), (40, 5, 20, 60), tuple(range(5, 65, 5))], ids=str)
def test_intervals_over_few_subjects_cover_where_those_over_items_do_not(sizes):
    """Subjects on which one model is better than the other: new subjects differ more than new items."""
    generator, clusters, held = np.random.default_rng(0), np.repeat(np.arange(len(sizes)), sizes), []
    for _ in range(500):
        first = generator.normal(0.0, 0.2, len(sizes))[clusters] + generator.normal(0, 0.5, len(clusters))
        second = generator.normal(0, 0.5, len(clusters))
        found = [statistics.paired_difference(first, second, labels).interval for labels in (clusters, None)]
        held.append([low <= 0 <= high for low, high in found])
    clustered, plain = np.mean(held, axis=0)
    assert clustered > 0.93 and plain < 0.9
