"""Screening of candidate benchmarks: each rule by hand, in order, with missing values."""

import numpy as np

from lm_validity.config.sections import Screening
from lm_validity.studies.agreement.statistics.ranking import screen_benchmarks

PUBLISHED = Screening()

MODELS = np.arange(10.0)


def table(*columns) -> np.ndarray:
    return np.column_stack(columns)


def test_each_rule_and_its_reason():
    reversed_order = MODELS[::-1]
    direct = table(MODELS, MODELS, MODELS**2, reversed_order, MODELS)
    trained = direct + 1
    trained[:3, 1] = direct[:3, 1]  # three of ten models fall back to the direct score
    trained[9, 2] = direct[9, 2] - 1  # one is worse: a tenth, which is allowed
    examples = np.array([1000, 5000, np.nan, 2000, 999])
    found = screen_benchmarks(direct, trained, examples, PUBLISHED)
    assert found.reasons == (
        None,
        "no improvement in 3 of 10 models",
        None,
        "negative agreement with 2 of 2 other benchmarks",
        "999 training examples, fewer than 1000",
    )
    # agreement is counted with benchmarks that pass the first two rules: a, c and the reversed one
    assert list(found.eligible) == [2, 3, 2, 2, 3] and list(found.negative) == [1, 1, 1, 2, 1]
    np.testing.assert_allclose(found.mean_tau, [0, 1 / 3, 0, -1, 1 / 3])


def test_exactly_a_fifth_and_exactly_half_are_allowed():
    direct = table(MODELS, MODELS, MODELS[::-1])
    trained = direct + 1
    trained[:2, 0] = direct[:2, 0]
    found = screen_benchmarks(direct, trained, np.full(3, 1e4), PUBLISHED)
    assert found.unimproved[0] == 2 and found.negative[0] == 1 and found.eligible[0] == 2
    assert found.reasons[:2] == (None, None) and found.reasons[2].startswith("negative agreement with 2 of 2")


def test_models_without_both_scores_do_not_count():
    direct, trained = table(MODELS, MODELS), table(MODELS, MODELS) + 1
    trained[4:, 0] = np.nan
    direct[0, 0] = np.nan
    found = screen_benchmarks(direct, trained, np.full(2, 2000.0), PUBLISHED)
    assert list(found.models) == [3, 10] and list(found.unimproved) == [0, 0]
    alone = screen_benchmarks(direct[:, :1], trained[:, :1], np.full(1, 2000.0), PUBLISHED)
    assert alone.reasons == (None,) and np.isnan(alone.mean_tau[0]) and alone.eligible[0] == 0
