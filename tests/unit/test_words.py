"""Words for numbers; values that are missing, in words and in summaries."""

import math

import numpy as np

from lm_validity.words import Missing, ReasonCode, decimal, is_known, known, no_scores, number, with_interval

REASON = "Fewer than two models have scores."


def test_a_missing_value_has_the_code_of_its_reason():
    assert known(math.nan, no_scores("direct")) == Missing("There are no scores under direct evaluation.")
    assert known(math.nan, no_scores("direct")).code is ReasonCode.NO_SCORES
    assert Missing(REASON).code is ReasonCode.NOT_COMPUTED


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
