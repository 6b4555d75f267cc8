"""The site in headless Chromium, from the file system: clicks, filters, sorting, downloads, no console message.

Needs selenium (extra `test`) and Debian's packages chromium and chromium-driver; skipped where they are absent.
"""

import csv
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.browser.checks import WIDTHS, assert_accessible, assert_operable, assert_readable
from tests.browser.conftest import open_folds, open_page, settle, wait_for

from lm_validity.config.sections import Reports
from lm_validity.pages.page import Finding, Page, Section, Table, write_page
from lm_validity.site.cards.values import CardSources
from lm_validity.site.first_page import build_site
from lm_validity.site.report import into_one_file
from lm_validity.studies.agreement.factors import report_factors
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.studies.models.report import report_models
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SCORES, write_table

HOSTILE = '<script>document.title = "broken"</script> "quoted" & more'
NAMES = ("one", "two", "three", "four", "five", "<i>six</i>", "corpus")
STUDIES = ("models", "agreement", "factors")
FAMILIES = ["Alpha", "Beta", '<b>Gamma</b> "x"']


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A site of both reports over 12 models × 6 benchmarks with missing cells and names that are markup."""
    folder = tmp_path_factory.mktemp("site")
    rng = np.random.default_rng(0)
    models = [f"model-{i}" for i in range(11)] + [HOSTILE]
    ability = rng.normal(size=12)
    rows = []
    for protocol, noise in (("direct", 0.8), ("train_before_test", 0.2)):
        for benchmark in NAMES:
            for i, model in enumerate(models):
                score = 0.5 + 0.1 * (ability[i] + noise * rng.normal())
                if (i, benchmark) not in ((3, "two"), (7, "corpus")):
                    rows.append((model, benchmark, protocol, -score if benchmark == "corpus" else score, 0.02))
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "protocol", "value", "stderr"])
    frame = frame.assign(split="test", metric="acc,none", selected=True, source="test", checkpoint="final")
    write_table(frame, SCORES, folder / "scores.parquet")
    sheet = pd.DataFrame({"model": models, "family": [FAMILIES[i % 3] for i in range(12)]})
    sheet = sheet.assign(parameters_b=np.arange(1.0, 13), tokens_b=100, instruction_tuned=[0, 1] * 6)
    sheet.to_csv(folder / "models.csv", index=False)
    kinds = ["multiple_choice"] * 6 + ["loglikelihood_rolling"]
    sheet = pd.DataFrame({"benchmark": NAMES, "category": list("xxyyzzp"), "metric": "acc", "output_type": kinds})
    sheet.to_csv(folder / "benchmarks.csv", index=False)
    paths = [folder / name for name in ("scores.parquet", "models.csv", "benchmarks.csv")]
    report_agreement(Sources(*paths), folder / "agreement", section=Reports(resamples=60))
    report_factors(Sources(*paths), folder / "factors", section=Reports(resamples=60))
    report_models(Sources(*paths), folder / "models")
    reports = [folder / name for name in STUDIES]
    cards = CardSources(paths[0], paths[2], reports, paths[1])
    build_site(reports, folder / "report", missing=[HOSTILE], cards=cards)
    return folder / "report" / "agreement" / "index.html"


LOADED = "return performance.getEntriesByType('resource').map((entry) => entry.name)"


@pytest.fixture(scope="module", params=WIDTHS)
def opened(request, driver, site):
    """The page at a width with all folds open, for tests that look at it only: the width, and what was loaded before
    they were."""
    driver.get_log("browser")
    open_page(driver, site, request.param, folds=False)
    loaded = driver.execute_script(LOADED)
    open_folds(driver)
    return request.param, loaded


def test_every_figure_is_drawn_without_a_word_on_the_console(driver, opened):
    width, loaded = opened
    assert loaded == []  # what folds hold is read when they open
    assert driver.execute_script("return [...document.images].every((image) => image.complete)")
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert all(name.startswith("file:") for name in driver.execute_script(LOADED))


def test_figures_are_readable(driver, opened):
    assert_readable(driver, opened[0])


def test_names_that_are_markup_are_text(driver, opened):
    markup = "main b:not(.panel *), main i:not([aria-hidden]), main script"
    assert driver.execute_script("return document.querySelectorAll(arguments[0]).length", markup) == 0
    assert HOSTILE in driver.execute_script("return document.querySelector('.missing').textContent")
    assert "<i>six</i>" in driver.execute_script("return document.getElementById('content').textContent")


def test_files_of_figures_lie_beside_the_page(driver, site, opened):
    links = driver.execute_script("return [...document.querySelectorAll('.alone a')].map(a => a.getAttribute('href'))")
    assert {link.rpartition(".")[2] for link in links if not link.startswith("#")} == {"svg", "csv"}
    assert all((site.parent / link).is_file() for link in links if not link.startswith("#"))
    anchors = [link[1:] for link in links if link.startswith("#")]
    assert (
        len({*anchors})
        == len(anchors)
        == driver.execute_script("return arguments[0].filter((id) => document.getElementById(id)).length", anchors)
    )


def test_a_site_in_one_file_has_all_pages_and_no_dead_link(driver, site, tmp_path_factory):
    """The file alone in a folder: to a page and back, folds and figures there, every link leads to a page."""
    folder = site.parent.parent.parent
    built, alone = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("mailed")
    build_site([folder / name for name in STUDIES], built, missing=[HOSTILE])
    into_one_file(built)
    shutil.copy(built / "index.html", alone / "site.html")
    driver.get_log("browser")
    driver.get((alone / "site.html").as_uri())
    title = "return document.querySelector('h1').textContent"
    first = driver.execute_script(title)
    links = "return [...document.querySelectorAll('a[href]')].map((a) => a.getAttribute('href'))"
    pages = {"index.html", *(f"{name}/index.html" for name in STUDIES)}
    assert {link for link in driver.execute_script(links) if not link.startswith("#")} <= pages
    driver.execute_script("document.querySelector('nav a[href=\"agreement/index.html\"]').click()")
    wait_for(lambda: driver.execute_script(title) not in (first, None))
    open_folds(driver)
    assert driver.execute_script("return [...document.images].every((image) => image.src.startsWith('data:'))")
    dead = [link for link in driver.execute_script(links) if not link.startswith(("#", "../"))]
    assert dead == []
    driver.execute_script("document.querySelector('nav a[href=\"../factors/index.html\"]').click()")
    wait_for(lambda: "factors" in driver.current_url)
    driver.back()
    driver.back()
    wait_for(lambda: driver.execute_script(title) == first)
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def reveal(driver, element):
    """The element, in view, with all that it lies in open and filled."""
    script = "for (let e = arguments[0].closest('details'); e; e = e.parentElement.closest('details')) e.open = true"
    driver.execute_script(script, element)
    settle(driver)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    return element


def benchmark_table(driver):
    tables = "return [...document.querySelectorAll('details.table')]"
    title = "d.querySelector('summary').textContent.startsWith('Mean tau by benchmark')"
    return reveal(driver, driver.execute_script(f"{tables}.find((d) => {title})"))


def column(driver, table, index: int) -> list[str]:
    script = "return [...arguments[0].tBodies[0].rows].map(r => r.cells[arguments[1]].textContent)"
    return driver.execute_script(script, table.find_element("css selector", "table"), index)


def test_sorting_by_mouse_and_keyboard(driver, site):
    from selenium.webdriver.common.keys import Keys

    open_page(driver, site, 1280, folds=False)
    table = benchmark_table(driver)
    button = table.find_elements("css selector", "th button")[1]
    button.click()
    values = [float(text) for text in column(driver, table, 1)]
    assert values == sorted(values, reverse=True) and len(values) == 6
    assert table.find_elements("css selector", "th")[1].get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.ENTER)
    values = [float(text) for text in column(driver, table, 1)]
    assert values == sorted(values)


def test_a_table_whose_rows_are_still_unpacked_is_sorted(driver, site):
    open_page(driver, site, 1280, folds=False)
    header = driver.execute_script(
        "const d = document.querySelector('details.table:not([open])');"
        "d.closest('details.fold').open = d.open = true;"
        "const th = d.querySelectorAll('th')[1]; th.querySelector('button').click(); return th"
    )
    wait_for(lambda: header.get_attribute("aria-sort") != "none")


def test_searching_and_downloading_what_is_shown(driver, site):
    open_page(driver, site, 1280, folds=False)
    table = benchmark_table(driver)
    table.find_element("css selector", "input").send_keys("six")
    shown = column(driver, table, 0)
    assert len(shown) == 1
    assert table.find_element("css selector", ".matches").text == "1 of 6"
    table.find_element("css selector", ".download").click()
    path = driver.downloads / "tau_by_benchmark.csv"
    wait_for(path.exists)
    with open(path, encoding="utf-8", newline="") as handle:
        rows = list(csv.reader(handle))
    assert [row[0] for row in rows[1:]] == shown
    whole = pd.read_csv(site.parent / "tables" / "tau_by_benchmark.csv")
    assert float(rows[1][1]) in whole.iloc[:, 1].tolist()  # unrounded, unlike on the page


def test_light_and_dark_and_print(driver, site):
    open_page(driver, site, 1280)
    paper = "return getComputedStyle(document.body).backgroundColor"
    before = driver.execute_script(paper)
    driver.find_element("id", "theme").click()
    assert driver.execute_script(paper) != before
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 50_000


def test_what_is_closed_is_not_printed_and_what_is_open_has_its_figures(driver, site):
    """Ctrl-P, which asks no script: no closed fold, no heading of a group without an open fold, nothing empty."""
    open_page(driver, site, 1280, folds=False)
    driver.execute_script("document.querySelectorAll('details.fold')[1].open = true")
    settle(driver)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    printed = "return [...document.querySelectorAll('details.fold, .asked')].filter((e) => e.getClientRects().length)"
    folds = driver.execute_script(f"{printed}.map((e) => [e.className, e.querySelectorAll('svg, table').length > 0])")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert folds == [["asked", True], ["fold", True]]


def test_models_are_found_and_the_sentence_of_a_pair_is_read_by_keyboard(driver, site):
    from selenium.webdriver.common.keys import Keys

    open_page(driver, site.parent.parent / "models" / "index.html", 1280)
    rows = "return [...document.querySelectorAll('table.models tbody tr')].filter((row) => !row.hidden).length"
    assert driver.execute_script(rows) == 12
    driver.find_element("css selector", ".tools input").send_keys("Alpha")
    assert driver.execute_script(rows) == 4  # by family
    assert driver.find_element("css selector", ".tools output").text == "4 of 12 models"
    carpet = driver.find_element("css selector", "svg.carpet[data-ranks]")
    carpet.send_keys(Keys.ARROW_RIGHT)
    carpet.send_keys(Keys.ENTER)
    said = driver.execute_script("return document.querySelector('.read').textContent")
    names = driver.execute_script("return JSON.parse(document.querySelector('svg.carpet').dataset.ranks).rows")
    assert names[0] in said and names[1] in said and " after Holm." in said
    words = []
    for key in (Keys.ARROW_DOWN, *[Keys.ARROW_RIGHT] * 11, Keys.ARROW_DOWN, *[Keys.ARROW_LEFT] * 11):
        carpet.send_keys(key)
        words.append(driver.execute_script("return document.querySelector('.read').textContent"))
    assert sum(" beats " in text or "told apart" in text for text in words) >= 21  # all but the pairs of one model
    assert not [text for text in words if "{" in text or "undefined" in text or "NaN" in text]
    button = driver.find_element("css selector", ".alone button")
    button.click()
    sentence = button.get_attribute("data-copy")
    assert driver.find_element("id", "tip").text == sentence and " may be best" in sentence


@pytest.mark.parametrize("study", ["agreement", "models"])
def test_everything_is_reached_and_operated_by_keyboard(driver, site, study):
    assert_operable(driver, site.parent.parent / study / "index.html", every=4)


@pytest.mark.parametrize(
    ("width", "theme", "rows"),
    [(1280, "light", 3), (390, "dark", 3), pytest.param(390, "dark", 1000, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("page", ["agreement", "models", ".", "cards/one"])
def test_axe_finds_nothing(driver, site, width, theme, rows, page):
    assert_accessible(driver, site.parent.parent / page / "index.html", width, theme, rows=rows)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_benchmarks_sorts_by_keyboard_and_leads_to_cards(driver, site, width):
    from selenium.webdriver.common.keys import Keys

    driver.get_log("browser")
    open_page(driver, site.parent.parent / "index.html", width)
    fits = "return document.documentElement.scrollWidth <= window.innerWidth"
    assert driver.execute_script(fits)
    table = driver.find_element("css selector", "table.m")
    table.find_elements("css selector", "th button")[0].send_keys(Keys.ENTER)
    names = "return [...arguments[0].tBodies[0].rows].map((row) => row.querySelector('bdi').textContent)"
    shown = driver.execute_script(names, table)
    assert set(shown) == set(NAMES)  # a name is text
    plain = [name for name in shown if name.isalpha()]
    assert plain == sorted(plain, reverse=True)
    table.find_elements("css selector", "tbody a")[shown.index(NAMES[5])].send_keys(Keys.ENTER)
    wait_for(lambda: driver.find_elements("css selector", ".verdict"))
    assert driver.find_element("css selector", ".bench").text == NAMES[5] and driver.execute_script(fits)
    driver.find_element("css selector", "a.brand").click()
    wait_for(lambda: driver.find_elements("css selector", "table.m"))
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_very_long_names_do_not_widen_a_narrow_page(driver, tmp_path):
    name = "x" * 300
    table = Table(name="t", title=name, frame=pd.DataFrame({"model": [name], name: [0.5]}), caption=name)
    section = Section(name, finding=name, explanation=name, tables=[table])
    write_page(Page("agreement", name, [Finding(name)], [section], notes=[name], question=name), tmp_path)
    open_page(driver, tmp_path / "index.html", 390)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
