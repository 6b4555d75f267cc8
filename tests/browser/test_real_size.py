"""A page of real size: 65 benchmarks × 20 models, on a desk and on a telephone, by keyboard, and for axe."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.browser.checks import WIDTHS, assert_accessible, assert_operable, assert_readable
from tests.browser.conftest import open_page

from lm_validity.pages.page import page_document, write_html
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.report import agreement
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.tables.schema import SCORES, write_table

pytestmark = pytest.mark.slow  # the analysis of 65 benchmarks takes half a minute
SUBJECTS = [
    "abstract_algebra",
    "anatomy",
    "college_computer_science",
    "high_school_european_history",
    "moral_scenarios",
]


@pytest.fixture(scope="module")
def page(driver, tmp_path_factory) -> Path:
    """The agreement page of synthetic scores; files of figures are not drawn, which takes most of a report's time."""
    folder = tmp_path_factory.mktemp("real")
    rng = np.random.default_rng(0)
    models = [f"{'family-name' if i % 2 else 'other'}-{i + 1}b-instruct-v0.{i}" for i in range(20)]
    benchmarks = [f"hendrycksTest-{SUBJECTS[j % 5]}_{j}" for j in range(57)] + list("stuvwxyz")
    ability = np.sort(rng.normal(size=20))
    frames = []
    for protocol, noise in (("direct", 1.2), ("train_before_test", 0.4)):
        values = 0.5 + 0.08 * (ability[:, None] + noise * rng.normal(size=(20, 65)))
        frame = pd.DataFrame(values.clip(0, 1), index=models, columns=benchmarks).rename_axis("model").reset_index()
        frames.append(frame.melt("model", var_name="benchmark").assign(protocol=protocol))
    scores = pd.concat(frames).assign(stderr=0.02, split="test", metric="acc,none", selected=True, checkpoint="final")
    write_table(scores, SCORES, folder / "scores.parquet")
    sheet = pd.DataFrame({"model": models, "family": [f"Family {i % 4}" for i in range(20)]})
    sheet.assign(parameters_b=np.arange(1.0, 21), tokens_b=100).to_csv(folder / "models.csv", index=False)
    categories = [f"category {j % 6}" for j in range(65)]
    pd.DataFrame({"benchmark": benchmarks, "category": categories, "metric": "acc"}).to_csv(
        folder / "benchmarks.csv", index=False
    )
    matrix = read_score_matrix(*(folder / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")))
    write_html(page_document(agreement(Data.of(matrix, resamples=20))[0]), folder)
    return folder / "index.html"


def test_the_page_is_small_and_its_first_picture_is_near_the_top(page, driver):
    assert page.stat().st_size <= 1_500_000
    open_page(driver, page, 1280)
    tops = "return [...document.querySelectorAll('main svg')].filter((svg) => svg.checkVisibility()).map((svg) => "
    assert 0 < min(driver.execute_script(f"{tops} svg.getBoundingClientRect().top)")) <= 400


@pytest.mark.parametrize("width", WIDTHS)
def test_its_figures_are_readable(page, driver, width):
    open_page(driver, page, width)
    assert_readable(driver, width)


def test_everything_is_reached_and_operated_by_keyboard(page, driver):
    assert_operable(driver, page)


@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing(page, driver, width):
    assert_accessible(driver, page, width, "light", tables=False)
