"""The exact sign-flip test against enumeration and scipy."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from lm_validity.missing import Missing
from lm_validity.studies.bias.effects import task_tests
from lm_validity.studies.bias.statistics.effects import sign_flip_p, smallest_detectable_shift


@pytest.mark.parametrize("seed", range(6))
def test_equals_enumeration_of_all_signs(seed):
    differences = np.random.default_rng(seed).integers(-4, 6, 9)
    sums = np.array(list(product((-1, 1), repeat=9))) @ differences
    assert sign_flip_p(differences) == pytest.approx(np.mean(sums >= differences.sum()), abs=1e-15)


def test_equals_scipy():
    differences = np.array([3, -1, 4, 1, -5, 9, 2, 6])
    expected = stats.permutation_test(
        (differences, np.zeros(8)),
        lambda x, y: np.sum(x - y),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert sign_flip_p(differences) == pytest.approx(expected.pvalue, abs=1e-15)


def test_extremes():
    assert sign_flip_p(np.ones(10)) == 2.0**-10
    assert sign_flip_p(-np.ones(10)) == 1.0
    assert sign_flip_p(np.zeros(5)) == 1.0
    assert sign_flip_p(np.full(100, 30)) == pytest.approx(2.0**-100, rel=1e-9)


@pytest.mark.parametrize("wrong", [np.array([]), np.array([0.5, 1.0])])
def test_refuses_what_it_cannot_count(wrong):
    with pytest.raises(ValueError, match="whole-number"):
        sign_flip_p(wrong)


def test_table_adjusts_over_the_tasks_of_a_cell(trials):
    table = task_tests(trials(models=2, tasks=5, sizes=(40,)))
    assert len(table) == 2 * 5 * 2
    for _, cell in table.groupby(["language_model", "n", "effect"]):
        assert cell["p_adjusted"].to_numpy() == pytest.approx(stats.false_discovery_control(cell["p"]))


@pytest.mark.parametrize("number", [20, 50])
def test_the_smallest_detectable_shift_is_found_four_times_out_of_five(number):
    generator, level = np.random.default_rng(0), 0.05 / 25
    sample = generator.normal(0, 5, 4000)
    shift = smallest_detectable_shift(sample[:number] * 5 / np.std(sample[:number], ddof=1), level)
    found = [sign_flip_p(np.rint(generator.normal(shift, 5, number)).astype(int)) < level for _ in range(1000)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.05)


def test_tests_that_can_find_nothing_say_so():
    assert isinstance(smallest_detectable_shift(np.array([1, 2, 3, 4]), level=0.05 / 2), Missing)
    assert not isinstance(smallest_detectable_shift(np.array([1, 2, 3, 4, 5, 6]), level=0.05 / 2), Missing)
    assert isinstance(smallest_detectable_shift(np.zeros(10), level=0.05), Missing)
