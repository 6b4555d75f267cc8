"""A headless Chromium, one for all tests; they are skipped where it or its driver is absent."""

import shutil
import time
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (BROWSER and DRIVER):
        pytest.skip("no chromium and chromedriver on this machine")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ARGUMENTS:
        options.add_argument(argument)
    downloads = tmp_path_factory.mktemp("downloads")
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    browser.downloads = downloads
    yield browser
    browser.quit()


def open_page(driver, site: Path, width: int, folds: bool = True) -> None:
    """Open a page at a width in pixels, with all its `folds`, and wait until every figure is drawn and table filled."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    driver.get(site.as_uri())
    if folds:
        open_folds(driver)
    else:
        settle(driver)


def open_folds(driver) -> None:
    """Open all folds of the page, and wait until every figure is drawn."""
    driver.execute_script("for (const fold of document.querySelectorAll('details.fold')) fold.open = true")
    settle(driver)


def settle(driver) -> None:
    wait_for(lambda: driver.execute_script(SETTLED), 60)


SETTLED = """
const open = [...document.querySelectorAll('details.table table')].filter((e) => !e.closest('details:not([open])'));
return document.documentElement.dataset.drawn !== undefined && open.every((e) => e.tBodies[0].rows.length);
"""


def wait_for(condition, seconds: float = 10):
    """The first true value of `condition`, asked until then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("the page did not get there in time")
