"""Shares in the top, clusters resampled whole, second factors."""

import numpy as np
import pytest
from scipy import stats

from lm_validity.studies.agreement.statistics.factors import component_ranks, rank_intervals, ranks_over_benchmarks
from lm_validity.studies.agreement.statistics.resampling import multiplicities


def test_rank_intervals_are_those_of_paired_t_tests_of_every_pair():
    rng = np.random.default_rng(5)
    scores = np.linspace(0, 3, 9)[:, None] + rng.normal(size=(9, 7))
    scores[2, 3] = scores[8, 1] = np.nan
    low, high = rank_intervals(scores)
    z = (scores - np.nanmean(scores, axis=0)) / np.nanstd(scores, axis=0)

    def better(i: int, j: int) -> bool:
        difference = (z[i] - z[j])[np.isfinite(z[i] - z[j])]
        return stats.ttest_1samp(difference, 0, alternative="greater").pvalue < 0.025 / 8

    for i, rank in enumerate(component_ranks(scores)):
        others = [j for j in range(9) if j != i]
        assert low[i] == min(rank, 1 + sum(better(j, i) for j in others))
        assert high[i] == max(rank, 9 - sum(better(i, j) for j in others))
    assert max(low) > 1 and min(high) < 9
    assert np.isnan(rank_intervals(scores[:, :3]).low).all()  # three benchmarks say nothing of others like them


def test_benchmarks_of_a_category_that_share_what_they_measure_count_as_fewer():
    """24 models on 12 benchmarks in two categories, whose specific parts are half the category's: one by one they would
    leave the best model out in 10% of tables."""
    rng, tables, clusters = np.random.default_rng(9), 200, np.repeat([0, 1], 6)
    held = {name: 0 for name in ("one by one", "categories")}
    for _ in range(tables):
        ability, loading = 0.5 * rng.normal(size=24), rng.uniform(0.5, 0.9, size=12)
        of_category = rng.normal(size=(24, 2))[:, clusters]
        specific = (of_category + rng.normal(size=(24, 12))) / np.sqrt(2)
        scores, best = loading * ability[:, None] + np.sqrt(1 - loading**2) * specific, int(ability.argmax())
        for name, of in (("one by one", None), ("categories", clusters)):
            held[name] += rank_intervals(scores, of).low[best] <= 1
    assert held["one by one"] < 0.95 * tables - 2 < held["categories"]
    # without categories, or with one benchmark in each, nothing changes
    alone = rank_intervals(scores, np.arange(12))
    assert np.array_equal(alone, rank_intervals(scores)) and not np.array_equal(alone, rank_intervals(scores, clusters))


@pytest.mark.parametrize(("models", "benchmarks", "spread"), [(20, 6, 0.3), (20, 6, 0.0), (30, 12, 1.0)])
def test_the_models_that_may_be_best_hold_the_best_one(models, benchmarks, spread):
    """Close abilities, equal ones (each is then the best), and four leaders that are nearly tied."""
    rng, tables, held, size = np.random.default_rng(6), 200, 0, 0.0
    for _ in range(tables):
        ability = spread * rng.normal(size=models)
        if spread == 1:
            ability[:4] = 2.5 + 0.02 * rng.normal(size=4)
        loading = rng.uniform(0.5, 0.9, size=benchmarks)
        noise = rng.normal(size=(models, benchmarks)) * np.sqrt(1 - loading**2)
        low, _ = rank_intervals(loading * ability[:, None] + noise)
        held += low[int(ability.argmax())] <= 1
        size += (low <= 1).sum() / tables
    assert held / tables >= 0.95 - 2 * np.sqrt(0.05 * 0.95 / tables)
    if spread == 0:
        assert size > 0.95 * models  # of equal models hardly one is missing
    if spread == 1:
        assert size < models / 2  # and where there are leaders, most others are


def test_a_benchmark_that_counts_the_other_way_turns_no_resample_around():
    """Three that agree and two the other way: the loadings of many resamples sum to nearly nothing."""
    rng, ability = np.random.default_rng(7), np.linspace(-1, 1, 25)
    scores = np.outer(ability, [1, 1, 1, -1, -1]) + 0.3 * rng.normal(size=(25, 5))
    drawn = ranks_over_benchmarks(scores, multiplicities(5, 300, rng))
    ranked = drawn.draws[np.isfinite(drawn.draws).all(axis=1)]
    agreeing = [np.corrcoef(row, drawn.rank)[0, 1] for row in ranked]
    assert len(ranked) > 200 and min(agreeing) > 0.5
