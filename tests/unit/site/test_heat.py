"""The scores as a heat table: values, intervals and shades, and what has no score."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lm_validity.site.heat import MOST, heat_picture, score_rows


def last_rows(**columns) -> pd.DataFrame:
    frame = pd.DataFrame(
        {"model": ["o/a", "o/b", "o/b"], "benchmark": ["x", "x", "x"], "protocol": "direct", **columns}
    )
    return frame.assign(n_items=100)


def test_seeds_are_averaged_and_the_interval_is_that_of_the_mean_error():
    frame = last_rows(value=[0.5, 0.6, 0.8], stderr=[0.05, 0.03, 0.04])
    rows = score_rows(SimpleNamespace(last_rows=frame)).set_index("model")
    assert rows.loc["o/b", "value"] == pytest.approx(0.7)
    half = 1.959964 * np.sqrt((0.03**2 + 0.04**2) / 2)
    assert rows.loc["o/b", ["low", "high"]].tolist() == pytest.approx([0.7 - half, 0.7 + half])


def cells(markup: str) -> list[tuple[str, str, str]]:
    """(value, shade, what is told) of each score."""
    return re.findall(r'data-v="([^"]+)" class="h(\d)" title="([^"]+)"', markup)


def test_darker_is_better_in_either_direction_and_a_dash_is_no_score():
    rows = pd.DataFrame(
        [
            (m, b, "direct", v, v - 0.1, v + 0.1, 50)
            for m, b, v in (("a", "up", 0.9), ("b", "up", 0.1), ("a", "loss", 0.2))
        ],
        columns=["model", "benchmark", "protocol", "value", "low", "high", "n_items"],
    )
    rows.loc[len(rows)] = ("c", "loss", "direct", 3.0, np.nan, np.nan, 50)
    markup = str(heat_picture(rows, {"up": True, "loss": False}).svg)
    shades = {value: int(shade) for value, shade, _ in cells(markup)}
    assert shades["0.9"] > shades["0.1"] and shades["0.2"] > shades["3.0"]
    assert ("0.9", str(shades["0.9"]), "0.9 (95%: 0.8 to 1)") in cells(markup)
    assert [told for value, _, told in cells(markup) if value == "3.0"] == ["3"]
    assert markup.count('<td data-v="" class="none">–</td>') == 2


def test_names_that_are_markup_are_text():
    rows = pd.DataFrame([("<b>m</b>", "<i>x</i>", "direct", 0.5, 0.4, 0.6, 9)],
                        columns=["model", "benchmark", "protocol", "value", "low", "high", "n_items"])  # fmt: skip
    markup = str(heat_picture(rows, {}).svg)
    assert "<i>x</i>" not in markup and "&lt;i&gt;x&lt;/i&gt;" in markup and "<b>m" not in markup


def test_a_large_table_says_how_many_models_are_below():
    models, benchmarks = MOST // 100 + 40, 100
    rows = pd.DataFrame(
        [(f"m{i}", f"b{j}", "direct", i / 1000, np.nan, np.nan, 9) for i in range(models) for j in range(benchmarks)],
        columns=["model", "benchmark", "protocol", "value", "low", "high", "n_items"],
    )
    picture = heat_picture(rows, {})
    assert len(cells(str(picture.svg))) == MOST and "40 models" in picture.note
