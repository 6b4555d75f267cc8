"""Factors: shares, compute, bias, many tables at once."""

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from lm_validity.studies.agreement.statistics import factors


def test_equals_scikit_learn_where_complete():
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(30, 6)) + 2 * rng.normal(size=(30, 1))
    ours = factors.principal_components(scores)
    scaled = StandardScaler().fit_transform(scores)
    theirs = PCA().fit(scaled)
    np.testing.assert_allclose(ours.explained_variance, theirs.explained_variance_ratio_, atol=1e-12)
    projection = theirs.transform(scaled)[:, 0]
    np.testing.assert_allclose(ours.scores, projection * np.sign(projection @ ours.scores), atol=1e-9)


def test_missing_cells_use_the_models_known_in_both():
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(20, 4)) + rng.normal(size=(20, 1))
    scores[rng.random(scores.shape) < 0.25] = np.nan
    correlation = factors.pairwise_correlation(scores)
    both = np.isfinite(scores[:, 0]) & np.isfinite(scores[:, 2])
    assert correlation[0, 2] == pytest.approx(np.corrcoef(scores[both, 0], scores[both, 2])[0, 1])
    result = factors.principal_components(scores)
    assert result.included.all() and result.explained_variance.sum() == pytest.approx(1)


@pytest.mark.parametrize("size", [0.2, 1e-13, 1e6])
def test_columns_constant_up_to_rounding_stay_out_of_a_complete_table(size):
    scores = np.random.default_rng(0).normal(size=(4, 3))
    scores[:, 0] = [np.nextafter(size, 1e9), size, size, size]
    result = factors.principal_components(scores)
    assert result.included.tolist() == [False, True, True]
    assert len(result.explained_variance) == 2 and np.isfinite(result.scores).all()


def test_compute():
    assert factors.pretraining_compute(np.array([8.03]), np.array([15000.0]))[0] == pytest.approx(7.227e23)
    scores = np.array([1.0, 2, 3, np.nan])
    relation = factors.relate_to_compute(scores, np.array([1e20, 1e21, 1e22, 1e23]))
    assert (relation.kendall, relation.spearman, relation.models, relation.pearson) == (1, 1, 3, pytest.approx(1))
    assert np.isnan(factors.relate_to_compute(scores[:2], np.array([1e20, 1e21])).kendall)


def test_intervals_of_the_first_share_hold_it_and_are_nan_without_a_component():
    rng = np.random.default_rng(6)
    for clusters in (np.arange(9), np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])):
        for _ in range(10):
            scores = rng.normal(size=(9, 7)) + 0.5 * rng.normal(size=(9, 1))
            low, high = factors.share_interval(scores, clusters)
            assert 0 < low < factors.principal_components(scores).explained_variance[0] < high < 1
    assert np.isnan(factors.share_interval(scores[:, :1], np.arange(9)).low)


@pytest.mark.parametrize(("models", "benchmarks", "correlation"), [(30, 20, 0.4), (40, 10, 0.6), (60, 24, 0.15)])
def test_the_mean_first_share_of_samples_without_its_bias_is_the_populations(models, benchmarks, correlation):
    rng, truth = np.random.default_rng(7), (1 + (benchmarks - 1) * correlation) / benchmarks
    tables = np.sqrt(correlation) * rng.normal(size=(400, models, 1))
    tables = tables + np.sqrt(1 - correlation) * rng.normal(size=(400, models, benchmarks))
    mean = float(factors.component_shares(tables)[:, 0].mean())
    assert factors.without_bias(mean, models, benchmarks) == pytest.approx(truth, abs=0.03)
    assert factors.without_bias(1 / benchmarks, models, benchmarks) == 1 / benchmarks


def test_what_size_explains_is_removed():
    rng = np.random.default_rng(7)
    size = np.exp(rng.normal(size=200))
    scores = np.log(size)[:, None] * np.array([1.0, 2, -1]) + rng.normal(size=(200, 3))
    rest = factors.without_size(scores, size)
    assert np.abs(np.corrcoef(np.column_stack([rest, np.log(size)]), rowvar=False)[3, :3]).max() < 1e-9
    assert factors.principal_components(scores).explained_variance[0] > 0.7
    assert factors.principal_components(rest).explained_variance[0] < 0.45
    size[0] = np.nan
    unknown, *known = factors.without_size(scores, size)
    assert np.isnan(unknown).all() and np.isfinite(known).all()


def scores(kind: str, rng: np.random.Generator) -> np.ndarray:
    table = rng.normal(size=(12, 1)) + rng.normal(size=(12, 6))
    if kind != "complete":
        table[rng.random(table.shape) < 0.2] = np.nan
    if kind == "constant":
        table[:, 2] = np.where(np.isfinite(table[:, 2]), 3.0, np.nan)
        table[:, 4] = np.nan
    if kind == "disjoint":  # two benchmarks without a common model
        table[:6, 0] = table[6:, 1] = np.nan
    return table


KINDS = ("complete", "missing", "constant", "disjoint")


def assert_shares(found, table):
    """Those of the table alone, and NaN for components that it has not."""
    expected = factors.principal_components(table).explained_variance
    np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-12)
    assert np.isnan(found[len(expected) :]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_many_tables_at_once_have_the_shares_of_each(kind):
    """Of redrawn scores, in which a constant benchmark stays one, and without clusters of models."""
    rng = np.random.default_rng(1)
    table, clusters = scores(kind, rng), np.arange(12) // 2
    tables = table + np.where(np.arange(6) == 2, 0.0, 0.3) * rng.normal(size=(20, *table.shape))
    for found, one in zip(factors.component_shares(tables), tables, strict=True):
        assert_shares(found, one)
    for number, found in enumerate(factors.shares_left_out(table, clusters, 7)):
        assert_shares(found, table[clusters != number])
