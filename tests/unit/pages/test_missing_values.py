"""A missing value in a table: a dash on the page that shows the reason, nothing in the CSV."""

import base64
import json
import zlib
from dataclasses import replace

import pandas as pd

from lm_validity.missing import Missing
from lm_validity.pages.page import Page, Section, Table, page_document, render, write_page
from lm_validity.words import no_scores

REASON = 'fewer than "two" models <here>'


def page() -> Page:
    frame = pd.DataFrame({"benchmark": ["a", "b"], "tau": [0.5, Missing(REASON)]})
    section = Section("Pairs", tables=[Table("pairs", "All pairs", frame, formats={"tau": ".2f"})])
    return Page("agreement", "Agreement", [], [section])


def test_the_page_shows_a_dash_with_its_reason(tmp_path):
    document = page_document(page())
    (table,) = document["sections"][0]["tables"]
    assert table["rows"] == [["a", 0.5], ["b", None]] and table["reasons"] == {"1,1": REASON}
    assert [column["numeric"] for column in table["columns"]] == [False, True]
    write_page(page(), tmp_path)
    held = json.loads((tmp_path / "assets" / "agreement.js").read_text().partition(" = ")[2].rstrip(";\n"))
    rows = json.loads(zlib.decompress(base64.b64decode(held["table pairs"])))
    assert rows["values"] == [["a", "b"], [0.5, None]] and rows["reasons"] == {"1,1": REASON}
    assert rows["shown"] == [None, ["0.50", "—"]]


def test_the_csv_has_nothing_there(tmp_path):
    write_page(page(), tmp_path)
    assert (tmp_path / "tables" / "pairs.csv").read_text() == "benchmark,tau\na,0.5\nb,\n"


def test_a_table_without_missing_values_has_no_reasons():
    frame = pd.DataFrame({"benchmark": ["a"], "tau": [0.5]})
    section = Section("Pairs", tables=[Table("pairs", "All pairs", frame)])
    document = page_document(Page("agreement", "Agreement", [], [section]))
    assert document["sections"][0]["tables"][0]["reasons"] == {}


def test_a_page_leaves_out_protocols_and_columns_without_a_value_and_the_csv_has_them(tmp_path):
    nothing = Missing(no_scores("train_before_test"))
    frame = pd.DataFrame(
        {
            "benchmark": ["a", "b", "a", "b"],
            "protocol": ["Direct", "Direct", "Train before test", "Train before test"],
            "tau": [0.5, Missing(REASON), nothing, nothing],
            "change": [None] * 4,
            "power": [Missing(REASON)] * 4,
        }
    )
    whole = Page("agreement", "Agreement", [], [Section("Pairs", tables=[Table("pairs", "All pairs", frame)])])
    (table,) = page_document(whole)["sections"][0]["tables"]
    assert [column["name"] for column in table["columns"]] == ["benchmark", "protocol", "tau", "power"]
    assert table["rows"] == [["a", "Direct", 0.5, None], ["b", "Direct", None, None]]
    assert table["reasons"] == dict.fromkeys(("0,3", "1,2", "1,3"), REASON)
    write_page(whole, tmp_path)
    assert pd.read_csv(tmp_path / "tables" / "pairs.csv").shape == (4, 5)


def test_the_page_lists_the_reasons():
    document = page_document(replace(page(), notes=["A note."]))
    assert document["reasons"] == [REASON]
    shown = render(document)
    assert "A note." in shown and "Point at it" in shown
