"""The table of benchmark cards and a card in headless Chromium: keyboard, links, narrow screens, no console message.

Needs selenium (extra `test`) and Debian's packages chromium and chromium-driver; skipped where they are absent.
"""

from pathlib import Path

import pandas as pd
import pytest
from tests.browser.checks import assert_accessible

from lm_validity.pages.page import Page, write_page
from lm_validity.site.cards.values import CardSources
from lm_validity.site.first_page import build_site
from lm_validity.tables.schema import SCORES, write_table

NAMES = [f"bench{i:02}" for i in range(30)] + ['<b id="x">b</b>/"q"']


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """31 benchmarks that no report speaks of: the cards say what they measure and what is not measured."""
    folder = tmp_path_factory.mktemp("cards")
    rows = [(model, name, 0.5, 100 + i) for i, name in enumerate(NAMES) for model in ("m1", "m2", "m3")]
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "value", "n_items"])
    frame = frame.assign(protocol="direct", split="test", metric="acc", selected=True, checkpoint="final")
    write_table(frame, SCORES, folder / "scores.parquet")
    sheet = pd.DataFrame({"benchmark": NAMES, "metric": "acc", "output_type": "multiple_choice", "chance": 0.25})
    sheet.to_csv(folder / "benchmarks.csv", index=False)
    write_page(Page("data", "The data", [], []), folder / "data")
    cards = CardSources(folder / "scores.parquet", folder / "benchmarks.csv", [])
    return build_site([folder / "data"], folder / "site", cards=cards)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_table_sorts_by_keyboard_and_leads_to_cards(driver, site, width):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get_log("browser")
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    driver.get(site.as_uri())
    fits = "return document.documentElement.scrollWidth <= window.innerWidth"
    assert driver.execute_script(fits)
    assert driver.execute_script("return document.getElementById('x')") is None  # a name is text
    table = driver.find_element("css selector", "table.m")
    assert len(table.find_elements("css selector", "tbody tr")) == 31
    button = table.find_elements("css selector", "th button")[0]
    button.send_keys(Keys.ENTER)
    names = "return [...arguments[0].tBodies[0].rows].map((row) => row.cells[0].textContent.trim())"
    shown = driver.execute_script(names, table)
    assert shown[:30] == [f"bench{i:02}" for i in reversed(range(30))] and NAMES[-1] in shown[30]
    link = table.find_elements("css selector", "tbody a")[-1]
    assert link.text == NAMES[-1]
    link.send_keys(Keys.ENTER)
    WebDriverWait(driver, 30).until(lambda page: page.find_elements("css selector", ".verdict"))
    assert driver.find_element("css selector", ".bench").text == NAMES[-1]
    assert driver.execute_script(fits)
    driver.find_element("css selector", "a.brand").click()
    WebDriverWait(driver, 30).until(lambda page: page.find_elements("css selector", "table.m"))
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_on_the_first_page_and_a_card(driver, site, width, theme):
    for page in (site, site.parent / "cards" / NAMES[0] / "index.html"):
        assert_accessible(driver, page, width, theme)
