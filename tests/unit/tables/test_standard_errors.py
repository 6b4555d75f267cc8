"""Standard errors that cannot be those of their scores, row by row."""

import numpy as np
import pandas as pd
import pytest

from lm_validity.tables.schema import SCORES
from lm_validity.tables.standard_errors import checked_errors, error_notes

SHEET = pd.DataFrame([{"benchmark": "quiz", "metric": "acc,none", "output_type": "multiple_choice", "n_items": 500.0}])


NO_SHEET = SHEET.assign(metric=None, output_type=None, n_items=np.nan)


def scores(values, stderr, **more) -> pd.DataFrame:
    names = [f"m{i}" for i in range(len(values))]
    found = {"model": names, "benchmark": "quiz", "protocol": "direct", "metric": "acc", "value": values}
    return pd.DataFrame(found | {"stderr": stderr} | more).reindex(columns=SCORES.names)


def codes(rows, sheet=NO_SHEET) -> list[tuple[str, int, int]]:
    return [(one.code, one.scores, one.of) for one in checked_errors(rows, sheet)[1]]


@pytest.mark.parametrize(
    ("values", "errors", "more", "found"),
    [
        ([0.2, 0.5, 0.8, 1.0], [0.01, 0.0, 0.01, 0.01], {}, ("zero", 1, 4)),
        ([0.2, -0.5, 0.8, 1.0], [0.01, 0.0, 0.01, 0.01], {"metric": "f1"}, ("zero", 1, 4)),
        ([0.2, 0.5, 0.8, 1.0], [0.01, 0.0, 0.01, 0.01], {"metric": None}, ("zero", 1, 4)),
        ([0.2, 0.0, 0.8, 1.0], [0.01, 0.0, 0.01, 0.01], {"metric": "mcc"}, None),  # always the same answer: no error
        ([1.0, 1.0, 1.0], 0.0, {"metric": None}, ("at_bound", 3, 3)),  # all right: that is not known without an error
        ([1.0, 1.0, 1.0], 0.0, {"metric": "our_measure"}, None),
        ([1.0, 1.0, 1.0], 0.0, {"metric": None, "benchmark": "loss"}, None),
    ],
)
def test_a_minority_of_zeros_is_not_used_and_at_bounds_nothing_is_known(values, errors, more, found):
    rows = scores(values, errors).assign(**more)
    used, checks = checked_errors(rows, NO_SHEET.assign(benchmark=rows["benchmark"][0]))
    assert [(one.code, one.scores, one.of) for one in checks] == ([found] if found else [])
    out = np.isnan(used["stderr"])
    assert out.sum() == (found[1] if found else 0)
    if found and found[0] == "zero":
        assert out.tolist() == [False, True, False, False] and "quiz (1 of 4)" in error_notes(checks)[0]


@pytest.mark.parametrize(("unit", "value", "right"), [(1, 0.0, 2), (1, 1.0, 502), (100, 0.0, 2), (100, 100.0, 502)])
def test_at_zero_and_one_two_answers_of_each_kind_are_added(unit, value, right):
    rows = scores([value, 0.5 * unit], [0.0, 0.0223 * unit])
    used, checks = checked_errors(rows, SHEET)
    share = right / 504
    assert used["stderr"].iloc[0] == pytest.approx(unit * np.sqrt(share * (1 - share) / 504))
    assert [one.code for one in checks] == ["at_bound"] and used["stderr"].iloc[1] == 0.0223 * unit
    # without the number of items, that of the other errors: 0.25 / 0.0223² + 1 = 503.7
    assert checked_errors(rows, NO_SHEET)[0]["stderr"].iloc[0] == pytest.approx(used["stderr"].iloc[0], rel=0.01)
    assert np.isnan(checked_errors(rows.iloc[:1], NO_SHEET)[0]["stderr"].iloc[0])


@pytest.mark.parametrize("named", [{"metric": None}, {"metric": "our_measure"}])
def test_scores_within_0_and_1_have_no_errors_beyond_a_half_whatever_the_metric_is_called(named):
    """Errors in percent beside shares of 100 items: none is used, the one below 0.5 neither."""
    rows = scores([0.34, 0.51, 0.62, 0.999], [4.76, 5.02, 4.88, 0.3], **named)
    used, checks = checked_errors(rows, NO_SHEET)
    assert np.isnan(used["stderr"]).all() and [(one.code, one.scores) for one in checks] == [("too_large", 4)]
    assert codes(rows.assign(value=rows["value"] * 1000)) == codes(rows.assign(metric="loss")) == []
    used, checks = checked_errors(rows.assign(stderr=[0.02, 0.03, 0.6, 0.01]), NO_SHEET)  # one is wrong, not its unit
    assert [(one.code, one.scores) for one in checks] == [("too_large", 1)]
    assert np.allclose(used["stderr"], [0.02, 0.03, np.nan, 0.01], equal_nan=True)


def curves(error: float, models=3, points=20) -> pd.DataFrame:
    """Learning curves with a scatter of 0.004 between checkpoints, in no order."""
    noise = np.random.default_rng(1).normal(0, 0.004, (models, points))
    values, steps = 0.25 + 0.002 * np.arange(points) + noise, np.tile(np.arange(points), models)
    rows = scores(values.ravel(), error, checkpoint=steps.astype(str), iteration=steps.astype(float))
    return rows.assign(model=np.repeat([f"m{i}" for i in range(models)], points)).sample(frac=1, random_state=0)


def test_errors_are_held_against_the_scatter_between_checkpoints_where_items_are_unknown():
    (check,) = checked_errors(curves(0.04), NO_SHEET).checks
    assert (check.code, check.scores, check.of) == ("beyond_scatter", 60, 60) and check.ratio == pytest.approx(10, 0.2)
    assert codes(curves(0.012)) == codes(curves(0.04, models=1, points=9)) == []  # of which the last are too few
    right = np.sqrt(0.25 * 0.75 / 149)
    assert codes(curves(right).assign(n_items=150)) == []  # answers that hardly change between checkpoints


def test_errors_of_eleven_items_beside_scores_that_are_shares_of_a_thousand_are_not_used():
    counts = np.array([330, 412, 471, 555, 618, 702, 761, 880])
    right = np.sqrt(counts / 1000 * (1 - counts / 1000) / 999)
    rows = scores((counts / 1000).tolist(), (10 * right).round(4).tolist())
    used, checks = checked_errors(rows, NO_SHEET)
    assert np.isnan(used["stderr"]).all() and [(one.code, one.scores) for one in checks] == [("not_items", 8)]
    percent = rows.assign(value=rows["value"] * 100, stderr=rows["stderr"] * 100)
    assert [one.code for one in checked_errors(percent, NO_SHEET)[1]] == ["not_items"]
    # half of the errors are of another kind, the scores may be shares of 99 items, or of 1000 or 250: all are used
    assert codes(rows.assign(stderr=[*(10 * right[:4]), *(3 * right[4:])])) == []
    thirds = np.array([3, 4, 5, 6, 7, 8]) / 11
    assert codes(scores(thirds.tolist(), np.sqrt(thirds * (1 - thirds) / 10).tolist())) == []
    assert codes(scores(thirds.tolist(), (2.9 * np.sqrt(thirds * (1 - thirds) / 98)).tolist())) == []
    assert codes(rows.assign(stderr=right)) == codes(rows.assign(stderr=2 * right)) == []
    # errors that are all the same beside scores around one half are of no number of items
    assert codes(scores([0.4417, 0.4671, 0.4893, 0.5102, 0.5391, 0.5533], 0.2)) == []
    # scores of two digits are within rounding of shares of nearly any number
    assert codes(scores((counts / 1000).round(2).tolist(), (10 * right).tolist())) == []
    # means over parts of unequal length are shares of no number
    rng = np.random.default_rng(0)
    parts = [rng.binomial(n, 0.6, size=12) / n for n in (101, 207, 153, 311)]
    mean = np.mean(parts, axis=0)
    error = np.sqrt(sum(part * (1 - part) / n for part, n in zip(parts, (101, 207, 153, 311), strict=True))) / 4
    assert codes(scores(mean.tolist(), error.tolist())) == []


@pytest.mark.parametrize("digits", [5, 16])
def test_errors_of_whole_numbers_of_items_are_held_against_these_whatever_the_metric_is_called(digits):
    """Ten times too small, or too large, beside counts of 798 items: seen by n_items, and the small ones without it."""
    counts = np.array([330, 412, 471, 555, 618, 702])
    shares = (counts / 798).round(digits)
    right = np.sqrt(shares * (1 - shares) / 797)
    for named in ({"metric": None}, {"metric": "our_measure"}):
        rows = scores(shares.tolist(), right.tolist(), **named)
        known = rows.assign(n_items=798)
        assert codes(rows) == codes(known) == codes(rows.assign(stderr=2.5 * right)) == []
        assert codes(rows.assign(stderr=right / 10)) == codes(known.assign(stderr=right / 10)) == [("other_size", 6, 6)]
        assert codes(rows.assign(stderr=right / 3)) == [("other_size", 6, 6)] and not codes(
            rows.assign(stderr=right / 1.5)
        )
        assert codes(known.assign(stderr=right * 10)) == [("other_size", 6, 6)]
        graded = rows.assign(value=(shares / 2 + 0.3).round(digits), stderr=right / 4)  # of no number of items
        assert codes(graded) == codes(graded.assign(n_items=798)) == []
    assert codes(scores((counts / 798).round(2).tolist(), (right / 10).tolist(), metric=None)) == []
