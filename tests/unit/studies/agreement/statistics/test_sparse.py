"""Agreement and predictions where cells are missing: against closed forms, brute force and simulated tables."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm, rankdata
from scipy.stats import t as t_distribution

from lm_validity.studies.agreement.statistics import sparse
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, pair_signs


def table(seed=0, models=24, benchmarks=8, share=0.5):
    """(scores with holes, whole scores, direct scores, log sizes, families): one ability, families, item noise."""
    rng = np.random.default_rng(seed)
    families = np.array([f"f{i % 4}" for i in range(models)], dtype=object)
    size = rng.normal(size=(models, 2))
    ability = size[:, 0] + 0.5 * rng.normal(size=4)[np.arange(models) % 4] + 0.3 * rng.normal(size=models)
    latent = ability[:, None] * rng.uniform(0.5, 1, benchmarks) + 0.3 * rng.normal(size=(models, benchmarks))
    whole = 1 / (1 + np.exp(-latent)) + 0.01 * rng.normal(size=latent.shape)
    direct = 1 / (1 + np.exp(-latent - 0.7 * rng.normal(size=latent.shape) + 1))
    known = rng.random(latent.shape) < share
    known[:4] = True
    return np.where(known, whole, np.nan), whole, direct, size, families


def fitted(scores, direct, size, families):
    none = np.zeros((2, scores.shape[1]), dtype=bool)
    return sparse.fit_process(scores, np.full(scores.shape, 0.01), direct, size, families, none)


# ---- pooled and assisted agreement --------------------------------------------------------------------------


def test_pooled_agreement_counts_every_comparison_once_with_the_jackknife_over_models_or_families():
    scores, whole, *_ = table(1, models=10, benchmarks=4)
    pairs = itertools.product(itertools.combinations(range(4), 2), itertools.combinations(range(10), 2))
    products = [np.sign((scores[i, a] - scores[j, a]) * (scores[i, b] - scores[j, b])) for (a, b), (i, j) in pairs]
    found = sparse.pooled_tau(pair_signs(scores))
    assert (found.comparisons, found.mean) == (np.isfinite(products).sum(), pytest.approx(np.nanmean(products)))
    left = [sparse.pooled_tau(pair_signs(np.delete(scores, i, axis=0))).mean for i in range(10)]
    assert found.standard_error == pytest.approx(np.sqrt(0.9 * 10 * np.var(left)))
    families = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3, 4])
    left = [sparse.pooled_tau(pair_signs(scores[families != family])).mean for family in range(5)]
    np.testing.assert_allclose(sparse.pooled_left_out(pair_signs(scores), families), [found.mean, *left])
    # with every cell known and no ties both estimates are the mean tau
    signs = pair_signs(whole)
    expected = np.random.default_rng(0).uniform(-1, 1, signs.sign.shape)
    mean = kendall_tau_matrix(signs)[np.triu_indices(4, 1)].mean()
    assert [sparse.pooled_tau(signs).mean, sparse.pooled_tau(signs, expected).mean] == pytest.approx([mean] * 2)


def test_assistance_puts_right_what_the_choice_of_cells_got_wrong():
    """Cheap benchmarks that agree better than the others: the pooled tau is theirs, the assisted one is everyone's."""
    rng = np.random.default_rng(5)
    ability, noise = rng.normal(size=120), np.repeat([0.3, 1.5], [4, 8])
    whole = ability[:, None] + noise * rng.normal(size=(120, 12))
    scores = whole.copy()
    scores[30:, 4:] = np.nan
    truth, signs = sparse.pooled_tau(pair_signs(whole)).mean, pair_signs(scores)
    # what is right on average for benchmarks of each kind, and knows nothing of single cells
    expected = 2 * norm.cdf((ability[signs.first] - ability[signs.second])[:, None] / (np.sqrt(2) * noise)) - 1
    pooled, assisted = sparse.pooled_tau(signs).mean, sparse.pooled_tau(signs, expected)
    assert pooled - truth > 0.2 and abs(assisted.mean - truth) < 0.03
    assert assisted.mean < pooled - 0.15


# ---- whether cells are missing by chance ---------------------------------------------------------------------------


def by_value(rng, models, benchmarks, share, loading=0.8):
    """Scores of one ability, and which are missing: half of the lowest ones, twice this share; or any for None."""
    ability = rng.normal(size=(models, 1))
    scores = loading * ability + np.sqrt(1 - loading**2) * rng.normal(size=(models, benchmarks))
    low = rankdata(scores, axis=0) <= 2 * (share or 0.5) * models
    missing = (low if share else np.ones_like(low)) & (rng.random(scores.shape) < (0.5 if share else 0.25))
    return np.where(missing, np.nan, scores), missing


def test_the_standing_of_missing_scores_is_that_of_their_models_beside_shuffled_ones():
    """Against all orders of the six models."""
    scores, missing = by_value(np.random.default_rng(1), 6, 5, 0.25)
    quantiles = np.full(scores.shape, np.nan)
    for column, own in zip(quantiles.T, scores.T, strict=True):
        known = np.isfinite(own)
        column[known] = norm.ppf(rankdata(own[known]) / (known.sum() + 1))
    others = np.array([[np.nanmean(np.delete(row, j)) for j in range(5)] for row in quantiles])
    others -= others.mean(axis=0)
    known = np.isfinite(quantiles)
    slope = (quantiles * others)[known].sum() / (quantiles[known] ** 2).sum()
    sums = [others[list(order)][missing].mean() / slope for order in itertools.permutations(range(6))]
    found = sparse.standing_of_missing(scores, missing)
    assert found.value == pytest.approx(sums[0] - np.mean(sums))
    reach = t_distribution.ppf(0.975, 4) * np.std(sums)
    assert found.interval == pytest.approx((found.value - reach, found.value + reach))
    assert np.isnan(sparse.standing_of_missing(scores[:3], missing[:3]).value)
    assert np.isnan(sparse.standing_of_missing(np.nan_to_num(scores), missing & False).value)


@pytest.mark.parametrize(
    ("models", "benchmarks", "share", "least", "most"),
    [(20, 8, None, 0.0, 0.06), (12, 6, None, 0.0, 0.06), (20, 8, 0.25, 0.85, 1.0), (40, 12, 0.125, 0.98, 1.0)],
)
def test_what_is_missing_by_value_is_found_and_what_is_missing_by_chance_is_not(models, benchmarks, share, least, most):
    found = []
    for seed in range(300):
        world = by_value(np.random.default_rng(seed), models, benchmarks, share)
        low, high = sparse.standing_of_missing(*world).interval
        found.append(low > 0 or high < 0)
    assert least <= np.mean(found) <= most


# ---- the process --------------------------------------------------------------------------


def test_the_covariance_of_two_sets_of_cells_is_the_weighted_sum_of_the_parts():
    _, whole, direct, size, families = table(3, models=6, benchmarks=3)
    before = sparse.standardized(direct)
    model, benchmark = (part.ravel() for part in np.indices(whole.shape))
    cells, kernels = sparse.Cells(model, benchmark, before.ravel()), sparse.make_kernels(before, size, families)
    weights = np.exp(np.random.default_rng(0).normal(size=len(kernels.prior) - 1))
    expected = np.tensordot(weights, kernels.parts(cells), 1)
    covariance = kernels.weighted(weights)
    np.testing.assert_allclose(covariance.between(cells, cells), expected)
    np.testing.assert_allclose(covariance.variance(cells), np.diag(expected))
    drawn = covariance.sample(cells, 3, 40_000, np.random.default_rng(1))
    np.testing.assert_allclose(np.cov(drawn), expected, atol=0.05 * expected.max())


def test_the_posterior_is_that_of_the_normal_distribution():
    scores, _, direct, size, families = table(4, models=8, benchmarks=4)
    process = fitted(scores, direct, size, families)
    solver = process._solver
    among = solver.covariance.between(solver.cells, solver.cells)
    known, noise = solver.known_cells, np.diag(solver.observed + 1e-8)
    gain = among[:, known] @ np.linalg.inv(among[np.ix_(known, known)] + noise)
    np.testing.assert_allclose(process.mean.ravel(), gain @ solver.values, atol=1e-8)
    np.testing.assert_allclose(process.variance.ravel(), np.diag(among - gain @ among[known]), atol=1e-8)
    # a measured cell predicted without itself is the posterior of the others
    left, others = known[0], known[1:]
    gain = among[left, others] @ np.linalg.inv(among[np.ix_(others, others)] + noise[1:, 1:])
    assert process.without.ravel()[left] == pytest.approx(gain @ solver.values[1:])
    variance = among[left, left] - gain @ among[others, left] + process.noise.ravel()[left]
    assert process.without_variance.ravel()[left] == pytest.approx(variance, abs=1e-6)


def test_draws_keep_measured_cells_and_have_the_posteriors_moments():
    scores, _, direct, size, families = table(6, models=10, benchmarks=4)
    process = fitted(scores, direct, size, families)
    tables = process.draws(4000, np.random.default_rng(0))
    known = process.measured
    assert (tables[:, known] == scores[known]).all()
    latent = (process.link.to(tables) - process.center) / process.scale
    np.testing.assert_allclose(latent.mean(axis=0)[~known], process.mean[~known], atol=0.07)
    spread = np.sqrt(process.variance + process.noise)
    np.testing.assert_allclose(latent.std(axis=0)[~known], spread[~known], rtol=0.15)
    again = fitted(scores, direct, size, families).draws(3, np.random.default_rng(0))
    np.testing.assert_array_equal(again, process.draws(3, np.random.default_rng(0)))


def test_predictions_are_better_than_the_mean_and_their_intervals_hold_what_they_claim():
    inside, errors, naive = [], [], []
    for seed in range(4):
        scores, whole, direct, size, families = table(seed, models=30, benchmarks=8)
        process = fitted(scores, direct, size, families)
        value, low, high = process.predict()
        hidden = np.isnan(scores)
        inside += list(((low <= whole) & (whole <= high))[hidden])
        errors += list((value - whole)[hidden])
        naive += list((np.nanmean(scores, axis=0) - whole)[hidden])
    assert 0.9 <= np.mean(inside) <= 0.985
    assert np.std(errors) < 0.6 * np.std(naive)


@pytest.mark.parametrize("change", ["constant benchmark", "nothing direct", "no size", "one family", 100, -3])
def test_odd_tables_give_finite_predictions(change):
    """Per cent and losses, too."""
    scores, _, direct, size, families = table(8, models=12, benchmarks=5)
    if change == "constant benchmark":
        scores[:, 2] = np.where(np.isfinite(scores[:, 2]), 0.25, np.nan)
    direct = np.full_like(direct, np.nan) if change == "nothing direct" else direct
    size = np.full_like(size, np.nan) if change == "no size" else size
    families = np.array(["f"] * 12, dtype=object) if change == "one family" else families
    unit = change if isinstance(change, int) else 1
    process = fitted(unit * scores, unit * direct, size, families)
    assert np.isfinite(process.predict()).all() and np.isfinite(process.draws(5, np.random.default_rng(0))).all()


def test_scores_stay_in_their_range():
    """A fraction, an error rate (negative: more is better), a correlation, percent."""
    table = np.array([[0.0, -0.9, -0.2, 3.0], [0.9, -0.05, 0.7, 80.0]])
    link = sparse.link_for(table, losses=np.array([np.arange(4) == 1] * 2))
    assert list(link.low[:3]) == [0, -1, -1] and list(link.width) == [1, 1, 2, 0]
    inside = np.array([[0.3, -0.4, -0.1, 7.0]])
    np.testing.assert_allclose(link.back(link.to(inside)), inside)
    ends = [link.back(np.full(4, value)) for value in (-30, 30)]
    np.testing.assert_allclose(ends, [[0, -1, -1, -30], [1, 0, 1, 30]], atol=1e-9)
    slope = (link.to(inside + 1e-6) - link.to(inside - 1e-6)) / 2e-6
    np.testing.assert_allclose(link.slope(inside), slope, rtol=1e-5)
    # correlations near chance that happen to be below 0, and losses below 1 such as a Brier score, do not end at 1
    below = np.array([[-0.02, -0.9, -0.9], [-0.05, -0.2, -0.2]])
    link = sparse.link_for(below, losses=np.array([[False, True, True], [False, False, True]]))
    assert list(link.width) == [2, 0, 1]
    assert link.back(np.array([3.0, -1.2, -9.0]))[:2] == pytest.approx([0.905148, -1.2])


# ---- how wide --------------------------------------------------------------------------


def test_intervals_widen_to_what_the_checked_cells_need_and_never_narrow():
    normal = np.random.default_rng(0).standard_normal(20_000)
    assert [sparse.widening_of(factor * normal) for factor in (1, 2, 0.1)] == pytest.approx([1, 2, 1], rel=0.03)
    assert np.isnan(sparse.widening_of(normal[:18])) and np.isfinite(sparse.widening_of(normal[:19]))
