"""Statistics that several studies share."""

import numpy as np
import pytest

from lm_validity.statistics import holm, models_above_chance, p_above_chance


def test_p_above_chance():
    p = p_above_chance(
        np.array([0.25, 0.25 + 1.644854 * 0.02, 0.3, 0.2, np.nan]), np.array([0.02, 0.02, 0, 0, 0.1]), 0.25
    )
    np.testing.assert_allclose(p, [0.5, 0.05, 0, 1, np.nan], atol=1e-6)
    # p = .03 each: above chance alone, not beside another; an unknown one is not counted
    assert models_above_chance([0.25 + 1.88 * 0.02], [0.02], 0.25) == 1
    assert models_above_chance([0.25 + 1.88 * 0.02] * 2, [0.02] * 2, 0.25) == 0
    assert models_above_chance([0.25 + 1.88 * 0.02] * 2, [0.02, np.nan], 0.25) == 1


def test_holm_holds_the_familywise_level():
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    generator = np.random.default_rng(0)
    false = [(holm(generator.uniform(size=20)) < 0.05).any() for _ in range(2000)]
    assert np.mean(false) == pytest.approx(0.05, abs=0.015)
