"""Paired comparisons against scipy and simulation; resolution of a benchmark on worlds that are known."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.missing import Missing
from lm_validity.studies.items.statistics import (
    items_needed,
    mcnemar_p,
    paired_difference,
    resolution,
    unpaired_difference,
)


def answers(generator, items, first, second, clusters=None, spread=0.0):
    """Right-or-wrong answers of two models; difficulty is shared, and in part that of the item's cluster."""
    easy = generator.standard_normal(items)
    if clusters is not None:
        easy = easy + spread * generator.standard_normal(clusters.max() + 1)[clusters]
    return [(generator.logistic(size=items) < easy + ability).astype(float) for ability in (first, second)]


def test_right_or_wrong_items_are_tested_by_mcnemar_and_graded_ones_by_t():
    first, second = answers(np.random.default_rng(0), 300, 0.4, 0.0)
    found = paired_difference(first, second)
    only = int((first > second).sum()), int((second > first).sum())
    assert (found.first_only, found.second_only) == only
    assert found.p == pytest.approx(stats.binomtest(only[0], sum(only)).pvalue) == mcnemar_p(*only)
    expected = stats.ttest_rel(first, second).confidence_interval()
    assert found.interval == pytest.approx((expected.low, expected.high))
    graded = paired_difference(first + 0.25, second)
    assert graded.first_only is None
    assert graded.p == pytest.approx(stats.ttest_rel(first + 0.25, second).pvalue)


def test_equal_answers_are_no_difference():
    values = np.array([1.0, 0.0, 1.0])
    found = paired_difference(values, values)
    assert (found.difference, found.p) == (0.0, 1.0)
    assert isinstance(found.interval, Missing) and isinstance(found.items_needed, Missing)
    with pytest.raises(ValueError, match="at least one common item"):
        paired_difference(np.array([]), np.array([]))


def test_power_and_items_needed_are_those_of_simulation():
    generator, items = np.random.default_rng(0), 400
    first, second = answers(generator, 100_000, 0.25, 0.0)
    difference = first - second
    needed = items_needed(float(difference.mean()), float(difference.std()))
    found = []
    for _ in range(1500):
        chosen = generator.integers(len(first), size=needed)
        found.append(stats.ttest_1samp(difference[chosen], 0).pvalue < 0.05)
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)
    sample = paired_difference(first[:items], second[:items])
    assert sample.smallest_detectable == pytest.approx(2.80 * sample.standard_error, rel=0.01)


def test_clustered_intervals_cover_where_those_over_items_do_not():
    """Subjects on which one model is better than the other: new subjects differ more than new items."""
    generator, clusters = np.random.default_rng(0), np.repeat(np.arange(40), 25)
    held = {"clustered": [], "plain": []}
    for _ in range(300):
        shift = generator.normal(0.0, 0.2, 40)[clusters]
        first = shift + generator.normal(0, 0.5, len(clusters))
        second = generator.normal(0, 0.5, len(clusters))
        for name, labels in (("clustered", clusters), ("plain", None)):
            low, high = paired_difference(first, second, labels).interval
            held[name].append(low <= 0 <= high)
    assert np.mean(held["clustered"]) == pytest.approx(0.95, abs=0.035)
    assert np.mean(held["plain"]) < 0.85


def test_too_few_clusters_are_not_used():
    first, second = answers(np.random.default_rng(0), 90, 0.4, 0.0)
    assert paired_difference(first, second, np.repeat(np.arange(9), 10)).clusters is None
    assert paired_difference(first, second, np.repeat(np.arange(10), 9)).clusters == 10
    assert paired_difference(first, second, np.arange(90)).clusters is None


def test_unpaired_scores_are_compared_by_their_errors():
    error, p, smallest = unpaired_difference(0.1, (0.03, 0.04))
    assert error == pytest.approx(0.05) and p == pytest.approx(2 * stats.norm.sf(2)) and smallest > 0.1
    with pytest.raises(ValueError, match="without an error"):
        unpaired_difference(0.1, (0.0, 0.0))


def test_a_benchmark_resolves_models_that_are_apart_and_no_others():
    generator = np.random.default_rng(0)
    easy = generator.standard_normal(2000)
    apart = np.array([(generator.logistic(size=2000) < easy + ability) for ability in (2.0, 0.0, 1.0)], dtype=float)
    found = resolution(apart)
    assert (found.neighbours, found.resolved, found.share_resolved) == (2, 2, 1.0)
    shares = [
        resolution((generator.logistic(size=(5, 300)) < generator.standard_normal(300)).astype(float)).share_resolved
        for _ in range(50)
    ]
    assert np.mean(shares) < 0.05


def test_models_without_common_items_have_no_resolution():
    apart = np.array([[1.0, 0.0, np.nan, np.nan], [np.nan, np.nan, 1.0, 0.0]])
    found = resolution(apart)
    assert found.neighbours == 0 and isinstance(found.share_resolved, Missing)
    assert isinstance(resolution(np.array([[1.0, 0.0]])).share_resolved, Missing)


def test_one_graded_item_is_no_evidence():
    assert paired_difference(np.array([0.7]), np.array([0.2])).p == 1.0
    assert paired_difference(np.full(6, 0.75), np.full(6, 0.25)).p == pytest.approx(2 * 0.5**6)
