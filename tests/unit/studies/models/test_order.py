"""Joint ranks and tiers against csranks and scipy, and how often they hold."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.studies.items.statistics import holm_over_pairs, p_by_errors
from lm_validity.studies.models.order import LEAST_BENCHMARKS, Leads, leads_over_benchmarks, more_to_decide, order_of


def ranks(scores, clusters=None):
    """The order of models by standardised scores."""
    return order_of(leads_over_benchmarks(scores, clusters, standardised=True))


def by_errors(scores, errors):
    """The order of models whose scores have these standard errors."""
    return order_of(Leads(scores[:, None] - scores, errors, errors, p_by_errors(scores, errors)[0]))


def test_ranks_hold_those_of_csranks_and_at_most_one_more_at_each_end():
    """The example of its manual, version 0.1.0: `csranks(seq(1, 3, length = 10), rep(.2, 10))`. Its bootstrap knows
    that errors are normal and independent; Holm's adjustment does not."""
    scores = np.linspace(1, 3, 10)
    order = by_errors(scores, np.full(10, 0.2))
    low, high = np.array([7, 6, 5, 4, 3, 2, 1, 1, 1, 1]), np.array([10, 10, 10, 10, 9, 8, 7, 6, 5, 4])
    assert set(low - order.low) <= {0, 1} and set(order.high - high) <= {0, 1}


@pytest.mark.parametrize("missing", [0.0, 0.12])
def test_leads_are_paired_t_tests_adjusted_by_holm(missing):
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(7, 1)) * 2 + rng.normal(size=(7, 16))
    scores[rng.random(scores.shape) < missing] = np.nan
    leads = leads_over_benchmarks(scores, standardised=False)
    order, ahead = order_of(leads), set()
    for i, j in zip(*np.triu_indices(7, 1), strict=True):
        both = np.isfinite(scores[[i, j]]).all(axis=0)
        test = stats.ttest_rel(scores[i, both], scores[j, both])
        assert both.sum() >= LEAST_BENCHMARKS
        assert leads.lead[i, j] == pytest.approx((scores[i, both] - scores[j, both]).mean())
        assert leads.p[i, j] == leads.p[j, i] == pytest.approx(test.pvalue)
        if holm_over_pairs(leads.p)[i, j] < 0.05:
            ahead.add((i, j) if leads.lead[i, j] > 0 else (j, i))
    assert {*zip(*np.nonzero(order.ahead), strict=True)} == ahead and ahead
    for model in range(7):
        assert order.low[model] == 1 + sum(model == behind for _, behind in ahead)
        assert order.high[model] == 7 - sum(model == first for first, _ in ahead)


def test_no_model_of_a_tier_is_found_better_than_another_and_the_first_tier_may_be_best():
    rng = np.random.default_rng(5)
    for _ in range(20):
        order = by_errors(rng.normal(size=15), rng.uniform(0.05, 0.5, 15))
        assert not (order.ahead & np.equal.outer(order.tier, order.tier)).any()
        assert np.array_equal(order.tier == 1, order.low == 1)
        for model in np.flatnonzero(order.tier > 1):  # some model of the tier before is found better
            assert order.ahead[order.tier == order.tier[model] - 1, model].any()


def test_units_of_a_benchmark_do_not_matter_where_scores_are_standardised():
    scores = np.random.default_rng(1).normal(size=(6, 8))
    other = scores * np.array([1, 100, 1, 3, 1, 1, 0.01, 1]) + 5
    np.testing.assert_allclose(*(leads_over_benchmarks(x, standardised=True).p for x in (scores, other)))


def test_fewer_benchmarks_say_nothing_and_categories_say_less():
    scores = np.random.default_rng(2).normal(size=(6, 12)) + np.arange(6)[:, None]
    assert np.isnan(leads_over_benchmarks(scores[:, : LEAST_BENCHMARKS - 1], standardised=False).lead).all()
    scores[:, 6:] = scores[:, :6]  # every benchmark twice
    alone, pairs = (leads_over_benchmarks(scores, c, standardised=False) for c in (np.arange(12), np.arange(12) % 6))
    ratio = (pairs.error / alone.error)[~np.eye(6, dtype=bool)]
    assert (ratio > 1.3).all()  # about the square root of 2


def test_so_many_more_benchmarks_would_decide():
    rng = np.random.default_rng(4)
    scores = np.array([0.0, 0.4])[:, None] + rng.normal(size=(2, 10))
    leads = leads_over_benchmarks(scores, standardised=False)
    more = more_to_decide(leads, np.full((2, 2), 10.0))[0, 1]
    spread, gap = leads.error[0, 1] * np.sqrt(10), abs(leads.lead[0, 1])
    power = stats.norm.sf(stats.norm.isf(0.025) - gap / spread * np.sqrt(10 + more))
    assert power == pytest.approx(0.8, abs=0.02)


def test_benchmarks_of_a_category_that_share_what_they_measure_count_as_fewer():
    """24 models on 12 benchmarks in two categories, whose specific parts are half the category's: one by one, some
    model would be found better than a better one in three of four tables."""
    rng, tables, clusters = np.random.default_rng(9), 100, np.repeat([0, 1], 6)
    held = {"one by one": 0, "categories": 0}
    for _ in range(tables):
        ability, loading = 0.3 * rng.normal(size=24), rng.uniform(0.5, 0.9, size=12)
        specific = rng.normal(size=(24, 2))[:, clusters] + rng.normal(size=(24, 12))
        scores = loading * ability[:, None] + np.sqrt((1 - loading**2) / 2) * specific
        for name, kinds in (("one by one", None), ("categories", clusters)):
            held[name] += not (ranks(scores, kinds).ahead & (ability[:, None] < ability)).any()
    assert held["one by one"] < 0.5 * tables and held["categories"] > 0.93 * tables


@pytest.mark.parametrize(("models", "benchmarks", "spread"), [(20, 8, 0.3), (20, 8, 0.0), (30, 12, 1.0)])
def test_the_models_that_may_be_best_hold_the_best_one(models, benchmarks, spread):
    """Close abilities, equal ones (each is then the best), and four leaders that are nearly tied."""
    rng, tables, held, size = np.random.default_rng(6), 200, 0, 0.0
    for _ in range(tables):
        ability = spread * rng.normal(size=models)
        if spread == 1:
            ability[:4] = 2.5 + 0.02 * rng.normal(size=4)
        loading = rng.uniform(0.5, 0.9, size=benchmarks)
        noise = rng.normal(size=(models, benchmarks)) * np.sqrt(1 - loading**2)
        low = ranks(loading * ability[:, None] + noise).low
        held += (low[ability == ability.max()] == 1).all()
        size += (low == 1).sum() / tables
    assert held / tables >= 0.95 - 2 * np.sqrt(0.05 * 0.95 / tables)
    if spread == 0:
        assert size > 0.95 * models  # of equal models hardly one is missing
    if spread == 1:
        assert size < models / 2  # and where there are leaders, most others are
