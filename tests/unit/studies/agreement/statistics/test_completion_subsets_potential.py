"""Rank-one completion, subsets of benchmarks, ranks by potential, influence."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from lm_validity.studies.agreement.statistics.factors import (
    RankDraws,
    best_by_budget,
    ranks_over_benchmarks,
)
from lm_validity.studies.agreement.statistics.one_factor import (
    ability_ranks,
    check_held_out,
    fit_one_factor,
    fit_one_factors,
)
from lm_validity.studies.agreement.statistics.resampling import expanded_level, multiplicities, share_in_top
from lm_validity.studies.agreement.statistics.subsets import (
    leave_one_out,
    one_with_others,
    standardize,
)


def one_factor(rng, models=50, benchmarks=10, noise=0.3, missing=0.3):
    ability = rng.normal(size=models)
    loading = rng.uniform(0.5, 1.5, benchmarks)
    scores = 10 + np.outer(ability, loading) + noise * rng.normal(size=(models, benchmarks))
    holes = rng.random(scores.shape) < missing
    return ability, scores, np.where(holes, np.nan, scores)


def test_completion_finds_what_was_taken_away():
    rng = np.random.default_rng(0)
    ability, complete, holed = one_factor(rng)
    model = fit_one_factor(holed)
    mean, deviation = model.predict()
    missing = np.isnan(holed)
    error = complete[missing] - mean[missing]
    assert np.abs(error).mean() < 0.35  # noise of 0.3 has a mean absolute value of 0.24
    assert 0.9 <= (np.abs(error) < 1.96 * deviation[missing]).mean() <= 0.99
    assert np.corrcoef(model.ability, ability)[0, 1] > 0.98
    assert (model.loading > 0).all()


def test_tables_that_are_fitted_together_end_as_they_would_alone():
    """Their loadings come to rest after unlike numbers of steps; one has a constant benchmark."""
    rng = np.random.default_rng(4)
    tables = np.array([one_factor(rng, models=20, benchmarks=6, noise=noise)[2] for noise in (0.1, 1.0, 5.0)])
    tables[1][:, 3] = 7.0
    for table, model in zip(tables, fit_one_factors(tables), strict=True):
        for name, values in vars(fit_one_factor(table)).items():
            assert getattr(model, name) == pytest.approx(values, abs=1e-9, nan_ok=True)


def test_completion_of_a_model_without_scores_and_a_constant_benchmark():
    rng = np.random.default_rng(1)
    _, _, scores = one_factor(rng, missing=0.1)
    scores[4] = np.nan
    scores[:, 2] = 0.5
    model = fit_one_factor(scores)
    mean, _ = model.predict()
    assert model.ability[4] == 0 and model.ability_variance[4] == 1
    assert np.isnan(mean[:, 2]).all() and np.isfinite(np.delete(mean, 2, axis=1)).all()
    ranks = ability_ranks(model, rng, draws=500)
    low, high = np.quantile(ranks[:, 4], [0.025, 0.975])
    assert high - low > 40
    after = model.variance_after()
    assert np.nanargmax(1 - after[:, 0] / model.ability_variance) == 4  # most is learned about the unknown model


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_held_out_check_covers_and_beats_the_mean(missing):
    rng = np.random.default_rng(2)
    _, _, scores = one_factor(rng, missing=missing)
    check = check_held_out(scores, rng)
    assert check.cells == np.isfinite(scores).sum()
    assert check.mean_absolute_error < 0.5 * check.baseline_error
    assert check.coverage == pytest.approx(0.95, abs=0.03)


def test_held_out_errors_in_standard_deviations_do_not_mix_units():
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(20, 1)) + 0.3 * rng.normal(size=(20, 6))
    one, other = (
        check_held_out(values, np.random.default_rng(3)) for values in (scores, scores * [1, 1, 1, 1, 1, 100])
    )
    assert other.error_in_sd == pytest.approx(one.error_in_sd, rel=0.02)
    assert other.baseline_in_sd == pytest.approx(one.baseline_in_sd, rel=0.02)
    assert other.mean_absolute_error > 5 * one.mean_absolute_error


def test_held_out_check_of_a_tiny_table_says_nothing():
    check = check_held_out(np.array([[0.1, 0.2], [0.3, 0.4]]), np.random.default_rng(0))
    assert np.isnan(check.mean_absolute_error) and check.cells == 0


def test_ranks_over_benchmarks():
    scores = np.outer(np.arange(6.0), np.ones(4)) + 0.01 * np.arange(4)
    rng = np.random.default_rng(6)
    population = ranks_over_benchmarks(scores, multiplicities(4, 30, rng))
    assert population.rank.tolist() == [6, 5, 4, 3, 2, 1]
    assert (population.draws[np.isfinite(population.draws).all(axis=1)] == population.rank).all()


def test_rank_intervals_of_few_units_hold_more_of_the_draws():
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(15, 1)) + 0.8 * rng.normal(size=(15, 6))
    weights = multiplicities(6, 400, rng)
    benchmarks, categories = ranks_over_benchmarks(scores, weights), ranks_over_benchmarks(scores, weights, units=4)
    assert (benchmarks.units, categories.units) == (6, 4)
    shares = []
    for ranks, level in ((benchmarks, expanded_level(6)), (categories, expanded_level(4))):
        low, high = ranks.interval()
        inside = ((ranks.draws >= low) & (ranks.draws <= high)).mean(axis=0)
        assert (inside >= level - 1e-9).all()
        shares.append(inside.mean())
    assert 0.95 < shares[0] < shares[1] == 1.0  # 400 draws of 4 categories: all of them


def test_three_benchmarks_give_ranks_and_no_interval_for_others():
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(15, 3))
    ranks = ranks_over_benchmarks(scores, multiplicities(3, 50, rng))
    assert sorted(ranks.rank) == list(range(1, 16)) and np.isnan(ranks.interval().low).all()
    (first, *_), shares = best_by_budget(ranks, np.ones(15)), share_in_top(ranks.draws, 1)
    assert first.model == ranks.rank.argmin() and np.isnan(first.probability_best) and np.isnan(shares).all()


def test_best_model_by_budget():
    draws = np.array([[1, 2, 3, 4.0], [2, 1, 3, 4], [1, 2, 3, 4], [1, 2, 4, 3]])
    ranks = RankDraws(np.array([1.0, 2, 3, 4]), draws, np.zeros(4, dtype=bool), 4)
    choices = best_by_budget(ranks, np.array([7.0, 3.0, 1.0, np.nan]))
    assert [(c.parameters_b, c.model) for c in choices] == [(1.0, 2), (3.0, 1), (7.0, 0)]
    assert choices[-1].probability_best == 0.75 and choices[-1].rivals == (1,)


def test_resamples_without_ranks_choose_no_model():
    draws = np.array([[1, 2.0], [np.nan, np.nan], [np.nan, 1], [np.nan, np.nan]])
    (choice,) = best_by_budget(RankDraws(np.array([1.0, 2]), draws, np.zeros(2, dtype=bool), 4), np.array([1.0, 1.0]))
    assert (choice.model, choice.probability_best, choice.rivals) == (0, 0.5, (1,))


def test_leave_one_out_names_what_matters():
    rng = np.random.default_rng(8)
    scores = rng.normal(size=(20, 1)) + 0.2 * rng.normal(size=(20, 5))
    scores[:, 4] = rng.normal(size=20)
    families = np.array(["x"] * 10 + ["y"] * 9 + [None], dtype=object)
    results = leave_one_out(scores, [f"m{i}" for i in range(20)], list("abcde"), families)
    assert [r.kind for r in results] == ["family"] * 2 + ["benchmark"] * 5 + ["model"] * 20
    benchmarks = {r.name: r for r in results if r.kind == "benchmark"}
    assert max(benchmarks, key=lambda name: benchmarks[name].mean_tau) == "e"
    assert max(benchmarks, key=lambda name: benchmarks[name].first_component) == "e"


def test_one_benchmark_against_the_others_by_hand():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(12, 1)) + 0.7 * rng.normal(size=(12, 4))
    scores[2, 1] = np.nan
    found = one_with_others(scores)
    z = standardize(scores)

    def mean_tau(rows):
        rest = [np.nanmean(np.delete(z, j, axis=1), axis=1) for j in range(4)]
        ok = [np.isfinite(z[rows, j]) for j in range(4)]
        return np.mean([kendalltau(z[rows, j][ok[j]], rest[j][rows][ok[j]])[0] for j in range(4)])

    assert found[0] == pytest.approx(mean_tau(np.arange(12)))
    assert found[5] == pytest.approx(mean_tau(np.delete(np.arange(12), 4)))
    assert len(found) == 13
