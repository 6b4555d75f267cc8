"""Words for numbers; values that are missing, in words and in summaries."""

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from lm_validity.missing import Missing, ReasonCode, is_known, known, number
from lm_validity.results.summary import named, page_only, summary_values
from lm_validity.words import at_extreme, decimal, no_scores, with_interval

REASON = "Fewer than two models have scores."


@dataclass(frozen=True)
class Tau:
    mean: float | Missing
    by_pair: list = field(default_factory=list)
    drawn: object = page_only(default=None)
    level: float = named("interval89", default=0.89)
    notes: list[str] = field(default_factory=list)


def test_missing_values_are_null_and_their_reason_is_a_note():
    values = summary_values(Tau(Missing(REASON), [["a", "b", Missing(REASON)], ["a", "c", 0.5]], notes=["First."]))
    assert values == {
        "mean": None,
        "by_pair": [["a", "b", None], ["a", "c", 0.5]],
        "interval89": 0.89,
        "notes": ["First.", f"mean, by_pair: {REASON}"],
    }


def test_many_places_of_one_reason_are_counted():
    values = summary_values({"tau": {name: Missing(REASON) for name in "abcde"}})
    assert values["notes"] == [f"tau.a, tau.b, tau.c and 2 more: {REASON}"]


def test_a_missing_value_has_the_code_of_its_reason():
    assert known(math.nan, no_scores("direct")) == Missing("There are no scores under direct evaluation.")
    assert known(math.nan, no_scores("direct")).code is ReasonCode.NO_SCORES
    assert Missing(REASON).code is ReasonCode.NOT_COMPUTED


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float64("nan"), np.array([1.0, np.nan])])
def test_a_number_that_is_not_finite_needs_a_reason(value):
    with pytest.raises(ValueError, match="mean"):
        summary_values(Tau(value))


def test_numpy_values_become_plain():
    values = Tau(np.float64(0.5), [np.int64(3), np.bool_(True), np.array([1, 2]), np.array(4.0)])
    read = json.loads(json.dumps(summary_values(values)))
    assert read["mean"] == 0.5 and read["by_pair"] == [3, True, [1, 2], 4.0] and "drawn" not in read


def test_known_and_number():
    assert known(0.0, REASON) == 0.0 and known(None, REASON) == known(math.nan, REASON) == Missing(REASON)
    assert is_known(0.0) and not is_known(Missing(REASON)) and not is_known(None)
    assert number(2) == 2.0 and math.isnan(number(Missing(REASON))) and math.isnan(number(None))


def test_numbers_in_sentences_and_pictures_have_a_real_minus_sign():
    assert [decimal(-0.016), decimal(-0.004), decimal(None), decimal(math.nan)] == [
        "−0.02",
        "0.00",
        "unknown",
        "unknown",
    ]
    assert [decimal(value, 1, signed=True) for value in (-0.26, np.float64(-0.04), 0.26)] == ["−0.3", "+0.0", "+0.3"]
    assert with_interval(-0.5, (-0.75, 0.25)) == "−0.50 (95% interval −0.75 to 0.25)"


def test_names_that_share_the_extreme_are_all_named():
    values = {"a": 0.3, "b": 0.1 + 0.2, "c": 0.4}
    assert at_extreme(values, min(values.values())) == ["a", "b"] and at_extreme(values, 0.4) == ["c"]
