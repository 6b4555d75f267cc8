"""A missing value in a table: a dash on the page that shows the reason, nothing in the CSV."""

import base64
import json
import re
import zlib

import pandas as pd

from lm_validity.pages.page import Page, Section, Table, page_document, render, write_page
from lm_validity.summaries import Missing

REASON = 'fewer than "two" models <here>'


def page() -> Page:
    frame = pd.DataFrame({"benchmark": ["a", "b"], "tau": [0.5, Missing(REASON)]})
    section = Section("Pairs", tables=[Table("pairs", "All pairs", frame, formats={"tau": ".2f"})])
    return Page("agreement", "Agreement", [], [section])


def test_the_page_shows_a_dash_with_its_reason():
    document = page_document(page())
    (table,) = document["sections"][0]["tables"]
    assert table["rows"] == [["a", 0.5], ["b", None]] and table["reasons"] == {"1,1": REASON}
    assert [column["numeric"] for column in table["columns"]] == [False, True]
    (packed,) = re.findall(r'class="rows">([^<]+)<', render([document], title="t"))
    rows = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert rows["values"] == [["a", "b"], [0.5, None]] and rows["reasons"] == {"1,1": REASON}
    assert rows["shown"] == [None, ["0.50", "—"]]


def test_the_csv_has_nothing_there(tmp_path):
    write_page(page(), tmp_path)
    assert (tmp_path / "tables" / "pairs.csv").read_text() == "benchmark,tau\na,0.5\nb,\n"


def test_a_table_without_missing_values_has_no_reasons():
    frame = pd.DataFrame({"benchmark": ["a"], "tau": [0.5]})
    section = Section("Pairs", tables=[Table("pairs", "All pairs", frame)])
    document = page_document(Page("agreement", "Agreement", [], [section]))
    assert "reasons" not in document["sections"][0]["tables"][0]
