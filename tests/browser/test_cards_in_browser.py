"""The table of benchmark cards and a card in headless Chromium: keyboard, links, narrow screens, no console message.

Needs selenium (extra `test`) and Debian's packages chromium and chromium-driver; skipped where they are absent.
"""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from lm_validity.site.cards.sources import CardSources

from lm_validity.site.cards.write import write_cards
from lm_validity.site.report import build_site
from lm_validity.tables.schema import SCORES, write_table

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver on this machine")

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
    write_cards(CardSources(folder / "scores.parquet", folder / "benchmarks.csv", []), folder / "site")
    return build_site([folder / "site" / "cards"], folder / "site")


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_table_sorts_by_keyboard_and_leads_to_cards(browser, site, width):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(site.as_uri())
    WebDriverWait(browser, 30).until(lambda page: len(page.find_elements("css selector", "#cards tbody tr")) == 31)
    fits = "return document.documentElement.scrollWidth <= window.innerWidth"
    assert browser.execute_script(fits)
    assert browser.execute_script("return document.getElementById('x')") is None  # a name is text
    table = browser.find_element("css selector", "#cards table")
    items = json.loads(table.get_attribute("data-columns")).index("items")
    button = table.find_elements("css selector", "th button")[items]
    button.send_keys(Keys.ENTER)
    cells = "return [...arguments[0].tBodies[0].rows].map((row) => row.cells[arguments[1]].textContent)"
    numbers = [int(text) for text in browser.execute_script(cells, table, items)]
    assert numbers == sorted(numbers, reverse=True) and numbers[0] == 130
    link = table.find_element("css selector", "tbody a")
    assert link.text == NAMES[-1]  # the most items
    link.send_keys(Keys.ENTER)
    WebDriverWait(browser, 30).until(lambda page: page.find_elements("css selector", ".benchmark-card h1"))
    assert NAMES[-1] in browser.find_element("css selector", "h1").text
    assert browser.execute_script(fits)
    browser.find_element("css selector", "a.brand").click()
    WebDriverWait(browser, 30).until(lambda page: page.find_elements("id", "cards"))
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
