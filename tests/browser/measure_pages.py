"""How far a reader has to go to the first figure of a page, and how hard its sentences are: a table in Markdown.

    python -m tests.browser.measure_pages SITE [SITE ...]

SITE is a folder that `lm-validity report` wrote, or one page. Of a site these are measured: the first page, each
report's page, and the card with most words. Also: the smallest letters at 1280 and at 390 pixels, folds closed, and the
sheets of A4 that the page takes with all folds open. Needs selenium and Chromium, as the tests in this folder do.
"""

import base64
import json
import re
import statistics
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from tests.browser.conftest import ARGUMENTS, BROWSER, DRIVER, SETTLED, open_page, wait_for

# Of the page as it opens, at 1280 pixels: nothing in a closed fold; the words inside pictures do not count
MEASURE = """
const shown = [...document.querySelectorAll("main svg[role=img], main figure img")];
const figure = shown.find((one) => one.checkVisibility());
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const words = (text) => (text.match(/[\\p{L}\\p{N}][^\\s]*/gu) ?? []).length;
let above = 0, all = 0;
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  if (node.parentElement.closest("svg, script, style") || !node.parentElement.checkVisibility()) continue;
  all += words(node.data);
  if (figure && node.compareDocumentPosition(figure) & Node.DOCUMENT_POSITION_FOLLOWING) above += words(node.data);
}
const prose = [...document.querySelectorAll("h1, h2, h3, p, li, main .lead, main figcaption")];
return {
  above: figure ? above : null,
  top: figure ? Math.round(figure.getBoundingClientRect().top + scrollY) : null,
  all,
  height: document.documentElement.scrollHeight,
  requests: performance.getEntriesByType("resource").length,
  prose: prose.filter((one) => one.checkVisibility() && !one.closest("nav, table, svg")).map((one) => one.innerText),
};
"""
# The height of the smallest letters that are seen: those of a picture as it is scaled, in pixels
SMALLEST = """
let least = Infinity;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.data.trim() || element.closest("script, style") || !element.checkVisibility()) continue;
  const box = element.getBoundingClientRect();
  if (!box.width || !box.height || box.right < 0) continue;
  const matrix = element.closest("svg") && element.getScreenCTM ? element.getScreenCTM() : { a: 1, b: 0 };
  const scale = Math.hypot(matrix.a, matrix.b);
  least = Math.min(least, parseFloat(getComputedStyle(element).fontSize) * scale);
}
return least;
"""
HEAD = ("page", "words above", "first figure, px", "words", "height, px", "kB", "requests", "smallest, 1280",
        "smallest, 390", "A4", "numbers a sentence", "most numbers", "longest sentence", "grade")  # fmt: skip


def pages_of(site: Path) -> list[Path]:
    """The pages of a site that are measured."""
    if site.is_file():
        return [site]
    reports = sorted(path for path in site.glob("*/index.html") if path.parent.name != "cards")
    cards = sorted(site.glob("cards/*/index.html"), key=lambda path: len(path.read_text(encoding="utf-8").split()))
    return [site / "index.html", *reports, *cards[-1:]]


def sentences(texts: list[str]) -> list[str]:
    """The sentences of a page's prose, and its headings."""
    whole = (" ".join(text.split()) for text in texts)
    parts = (part for text in whole for part in re.split(r"(?<=[.?!])\s+(?=[A-Z])", text))
    return [part for part in parts if len(part.split()) > 2]


def grade(found: list[str]) -> float:
    """Flesch and Kincaid's grade; a syllable is a group of vowels."""
    words = re.findall(r"[A-Za-z]+", " ".join(found))
    syllables = sum(max(len(re.findall(r"[aeiouy]+", word.lower().removesuffix("e"))), 1) for word in words)
    return 0.39 * len(words) / len(found) + 11.8 * syllables / len(words) - 15.59


def sheets_of_paper(driver: webdriver.Chrome, page: Path) -> int:
    """A4 sheets, upright, of the page with all that is folded."""
    open_page(driver, page, 1280)
    driver.get(f"{page.as_uri()}#print")
    driver.refresh()
    wait_for(lambda: driver.execute_script(SETTLED), 60)
    pdf = driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})["data"]
    return len(re.findall(rb"/Type */Page\b", base64.b64decode(pdf)))


def row_of(driver: webdriver.Chrome, page: Path, name: str) -> list[str]:
    letters = []
    for width in (390, 1280):
        open_page(driver, page, width, folds=False)
        letters.append(f"{driver.execute_script(SMALLEST):.1f}")
    seen = driver.execute_script(MEASURE)
    found = sentences(seen["prose"])
    numbers = [len(re.findall(r"\d[\d,]*(?:\.\d+)?", sentence)) for sentence in found]
    sizes = [seen["above"], seen["top"], seen["all"], seen["height"], page.stat().st_size // 1000, seen["requests"]]
    longest = max(len(sentence.split()) for sentence in found)
    style = [f"{statistics.mean(numbers):.1f}", max(numbers), longest, f"{grade(found):.1f}"]
    paper = [*reversed(letters), str(sheets_of_paper(driver, page))]
    return [name, *("none" if size is None else f"{size:,}" for size in sizes), *paper, *map(str, style)]


def verdict_line(site: Path) -> str:
    """How many words the verdicts of a site's cards have."""
    cards = [json.loads(path.read_text(encoding="utf-8")) for path in site.glob("cards/*/card.json")]
    words = [len(card["verdict"]["sentence"].split()) for card in cards]
    middle = statistics.median(words)
    return f"{site.name}: {len(words)} verdicts of {min(words)} to {max(words)} words, median {middle:g}"


def main() -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ARGUMENTS:
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    sites = [Path(argument).resolve() for argument in sys.argv[1:]]
    print(f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}", sep="\n")
    for site in sites:
        for page in pages_of(site):
            name = (page.parent.relative_to(site.parent) if site.is_dir() else Path(page.name)).as_posix()
            print(f"| {' | '.join(row_of(driver, page, name))} |")
    driver.quit()
    for site in sites:
        if any(site.glob("cards/*/card.json")):
            print(verdict_line(site))


if __name__ == "__main__":
    main()
