"""What every page has to stand: no text over another, nothing cut, all of it by keyboard, nothing for axe to find."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.browser.conftest import SETTLED, open_page, wait_for

SCRIPT = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")
WIDTHS = (1280, 390)
MOST_STOPS = 2000


def ask(driver, check: str):
    """The answer of a function of checks.js."""
    return driver.execute_script(SCRIPT, check)


def assert_readable(driver, width: int) -> None:
    """No sideways scrolling; no text of a figure lies over another or sticks out; every figure shows something."""
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    for check in ("overlaps", "cut", "empty"):
        marks = ask(driver, check)
        assert marks == [], (check, marks)


def assert_operable(driver, page: Path, every: int = 1) -> None:
    """The tabulator key reaches every control; Enter opens tables and sorts them. Of the tables, one of `every` stays:
    they are alike, and a press of a key costs Chromium 30 ms."""
    open_page(driver, page, 1280, folds=False)
    thin = "[...document.querySelectorAll('details.table')].forEach((t, i) => i % arguments[0] && t.remove())"
    driver.execute_script(thin, every)
    opened = sorted_by = stops = 0
    for _ in range(MOST_STOPS):
        press(driver, "Tab", 9)
        kind = ask(driver, "focused")
        if kind in ("seen", "none"):
            break
        stops += 1
        if kind == "closed":
            press(driver, "Enter", 13)
            opened += 1
        elif kind == "header":
            press(driver, "Enter", 13)
            wait_for(lambda: driver.execute_script("return document.activeElement.closest('th').ariaSort") != "none")
            sorted_by += 1
    assert stops == ask(driver, "controls")
    buttons = driver.execute_script("return document.querySelectorAll('th button').length")
    assert sorted_by == buttons > 0
    assert opened and driver.execute_script("return document.querySelectorAll('details:not([open])').length") == 0


def press(driver, key: str, code: int) -> None:
    """Press and release a key, as a keyboard does."""
    event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": "\r" if key == "Enter" else ""}
    for kind in ("keyDown", "keyUp"):
        driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": kind, **event})


def assert_accessible(driver, page: Path, width: int, theme: str, tables: bool = True, rows: int = 3) -> None:
    """axe-core's rules, contrast among them; `tables`: with every table open, of each the first `rows`. A figure is one
    image with a label, so that its thousands of marks are not looked at."""
    found = violations(driver, page, width, theme, tables, rows)
    assert found == [], found


def violations(driver, page: Path, width: int, theme: str, tables: bool, rows: int) -> list[tuple[str, list[str]]]:
    """The rules of axe-core that the page breaks, each with the first places."""
    package = find_spec("axe_core_python")
    if package is None:
        pytest.skip("axe-core-python is not installed")
    axe = Path(package.submodule_search_locations[0]) / "axe.min.js"
    open_page(driver, page, width)
    driver.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    if tables:
        driver.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
        wait_for(lambda: driver.execute_script(SETTLED), 60)
        further = f"tbody tr:nth-child(n + {rows + 1})"
        driver.execute_script("document.querySelectorAll(arguments[0]).forEach((row) => row.remove())", further)
    driver.execute_script(axe.read_text(encoding="utf-8"))
    driver.set_script_timeout(120)
    run = "axe.run({resultTypes: ['violations']})"
    script = f"const done = arguments[0]; {run}.then(done, (error) => done({{violations: [{{id: String(error)}}]}}))"
    found = driver.execute_async_script(script)["violations"]
    return [(one["id"], [node["html"][:160] for node in one.get("nodes", ())][:3]) for one in found]
