"""The scores as a heat table: values, intervals and shades, and what has no score."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd

from lm_validity.site.data import heat_picture, score_rows


def drawn(rows, lower=()) -> str:
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "value", "stderr"]).assign(protocol="direct")
    sheet = pd.DataFrame({"higher_is_better": [name not in lower for name in frame["benchmark"].unique()]})
    sheet.index = frame["benchmark"].unique()
    return str(heat_picture(score_rows(SimpleNamespace(last_rows=frame, sheet=sheet)), sheet).svg)


def test_seeds_are_averaged_and_the_interval_is_that_of_the_mean_error():
    markup = drawn([("o/a", "x", 0.5, 0.05), ("o/b", "x", 0.6, 0.03), ("o/b", "x", 0.8, 0.04)])
    half = 195.9964 * np.sqrt((0.03**2 + 0.04**2) / 2)
    assert ">70.00<" in markup and f"(95%: +{70 - half:.2f} to +{70 + half:.2f})" in markup
    assert re.findall(r'scope="row"[^>]*>([^<]+)', markup) == ["o/b", "o/a"]  # the best first, as in the sheets
    assert len(re.findall(r'tabindex="0"', markup)) == 2  # one stop of the keyboard a row


def test_darker_is_better_in_either_direction_and_a_dash_is_no_score():
    markup = drawn([("a", "up", 0.9, 0.1), ("b", "up", 0.1, 0.1), ("a", "loss", 2.0, np.nan)], lower=("loss",))
    shades = dict(re.findall(r'data-v="([\d.]+)" class="h(\d)"', markup))
    assert shades["0.9"] > shades["0.1"] and shades["2"] == "7" and "—" in markup
    both = drawn([("a", "loss", 2.0, 0.1), ("b", "loss", 1.0, 0.1)], lower=("loss",))
    shades = dict(re.findall(r'data-v="([\d.]+)" class="h(\d)"', both))
    assert shades["1"] > shades["2"]


def test_names_that_are_markup_are_text():
    assert "<i>" not in drawn([("<i>a</i>", "<i>x</i>", 0.5, 0.1)])
