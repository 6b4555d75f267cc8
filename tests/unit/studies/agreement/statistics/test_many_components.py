"""Many tables at once give what `principal_components` gives one by one."""

import numpy as np
import pytest

from lm_validity.studies.agreement.statistics.factors import (
    component_shares,
    first_components_of_resamples,
    principal_components,
    shares_left_out,
)


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


@pytest.mark.parametrize("kind", KINDS)
def test_redrawn_scores(kind):
    rng = np.random.default_rng(1)
    table = scores(kind, rng)
    error = np.where(np.arange(6) == 2, 0.0, 0.3)  # a constant benchmark stays one
    tables = table + error * rng.normal(size=(20, *table.shape))
    for found, one in zip(component_shares(tables), tables, strict=True):
        expected = principal_components(one).explained_variance
        np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-12)
        assert np.isnan(found[len(expected) :]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_resampled_benchmarks(kind):
    rng = np.random.default_rng(2)
    table = scores(kind, rng)
    weights = rng.multinomial(6, np.full(6, 1 / 6), size=30).astype(float)
    weights[0] = [6, 0, 0, 0, 0, 0]
    weights[1] = [1, 0, 5, 0, 0, 0]
    found = first_components_of_resamples(table, weights)
    expected = [principal_components(np.repeat(table, row.astype(int), axis=1)).scores for row in weights]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert np.isnan(found[1]).all() == (kind == "constant")


@pytest.mark.parametrize("kind", KINDS)
def test_shares_without_clusters(kind):
    table, clusters = scores(kind, np.random.default_rng(3)), np.arange(12) // 2
    found = shares_left_out(table, clusters, 7)
    for number, row in enumerate(found):
        expected = principal_components(table[clusters != number]).explained_variance
        np.testing.assert_allclose(row[: len(expected)], expected, atol=1e-12)
        assert np.isnan(row[len(expected) :]).all()
