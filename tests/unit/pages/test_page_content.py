"""What a page shows and leaves out: empty figures and sections, folded findings, room for names, its size."""

import base64
import json
import re
import zlib
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from lm_validity.pages import page as kit
from lm_validity.pages.page import Finding, Lede, Page, Panel, Picture, Section, Table, page_document, render
from lm_validity.pages.svg import dot, line, svg
from lm_validity.words import Missing, no_scores

NAMES = [f"a benchmark of number {number}" for number in range(65)]


def page(sections=(), findings=(), name="agreement") -> Page:
    return Page(name, name, list(findings), list(sections))


def page_with(frame, **options) -> Page:
    """A page with one table, told.csv."""
    return page([Section("Here", tables=[Table("told", "Told", frame, **options)])])


def test_sections_are_folds_below_a_lede_and_open_without_and_those_without_content_are_left_out():
    sections = [Section("Nothing", explanation="How it would be."), Section("Part", notes=["-"])]
    plain = render(page_document(page(sections)))
    assert re.findall(r"<h([1-6])[^>]*>([^<]+)", plain) == [("1", "agreement"), ("2", "Part")]
    found = render(page_document(replace(page(sections), lede=Lede("Rankings agree better", "0.5 → 0.7", "95%: +1"))))
    assert re.findall(r"<h([1-6])[^>]*>([^<]+)", found) == [("1", "Rankings agree better")]
    assert "<summary>Part</summary>" in found and '0.5 → 0.7 <span class="ci">(95%: +1)</span>' in found


def test_above_the_folds_stand_the_picture_the_panels_and_the_legend_of_their_marks():
    drawn = svg(20, 20, "0.5 & more, 95% 0.4 to 0.6", dot(10, 10, "d"), line(1, 2, 3, 4, "d w"))
    panels = [Panel("How <many>?", "**3** of 4", drawn, "in part", "some")]
    one = replace(page(), lede=Lede("Found"), picture=Picture(drawn, "A note."), panels=panels)
    html = render(json.loads(json.dumps(page_document(one))))
    above = html[: html.index('class="folds"')]
    assert above.count('aria-label="0.5 &amp; more, 95% 0.4 to 0.6"') == 2 and "<b>3</b> of 4" in above
    assert "How &lt;many&gt;?" in above and re.search(r'class="mk p">.*some', above)
    assert "direct: each model" in above and "95% interval" in above and "noise ceiling" not in above


@pytest.mark.parametrize(("lede", "shown"), [(None, 3), (Lede("Found"), 0)])
def test_without_a_lede_three_findings_are_shown_and_alarms_always(lede, shown):
    findings = [Finding(f"finding {number}") for number in range(8)] + [Finding("an alarm", alarm=True)]
    above, folded = render(page_document(replace(page(findings=findings), lede=lede))).split('id="findings"')
    listed = re.compile(r"<li[^>]*>(finding \d|an alarm)")
    assert listed.findall(above) == ["an alarm", *[f"finding {n}" for n in range(shown)]]
    assert listed.findall(folded) == [f"finding {n}" for n in range(shown, 8)]
    assert 'id="findings"' not in render(page_document(page(findings=[Finding("only")])))


def test_a_page_of_real_size_stays_small(tmp_path):
    """65 × 65 pairs, and a table of 40,000 scores with all their digits."""
    rng = np.random.default_rng(0)
    scores = pd.DataFrame({"benchmark": np.resize(NAMES, 40_000), "score": rng.random(40_000)})
    section = Section("Pairs", tables=[Table("scores", "All scores", scores, formats={"score": ".4f"}, folded=True)])
    kit.write_page(page([section]), tmp_path / "apart")
    assert (tmp_path / "apart" / "index.html").stat().st_size < 50_000
    assert (tmp_path / "apart" / "assets" / "agreement.js").stat().st_size < 1_000_000


def test_texts_that_a_spreadsheet_would_compute(tmp_path):
    cells = ["=1+1", "@x", "+x", "-x", "-", "-0.5", "+1", "a=b", 'a"b']
    frame = pd.DataFrame({"=name": cells, "value": [-0.5] * len(cells)})
    kit.write_page(page_with(frame), tmp_path)
    written = pd.read_csv(tmp_path / "tables" / "told.csv", dtype={"'=name": str})
    assert written["'=name"].tolist() == ["'=1+1", "'@x", "'+x", "'-x", *cells[4:]]
    assert written["value"].tolist() == [-0.5] * len(cells)


def test_a_tables_file_is_that_of_pandas(tmp_path):
    frame = pd.DataFrame(
        {
            "name": ["a,b", 'c"d', None, "two\nlines"],
            "value": [1e-7, 1e16, np.nan, 0.1 + 0.2],
            "count": [1, -2, 3, 2**40],
            "found": [True, False, None, np.float64(0.5)],
            "whole": pd.array([1, None, 3, 4], dtype="Int64"),
            "known": [1, Missing("Nobody knows."), 2.5, 3],
        }
    )
    kit.write_page(page_with(frame), tmp_path)
    expected = frame.assign(known=[1.0, np.nan, 2.5, 3.0]).to_csv(index=False, lineterminator="\n")
    assert (tmp_path / "tables" / "told.csv").read_text(encoding="utf-8") == expected
    (section,) = page_document(page_with(frame))["sections"]
    assert section["tables"][0]["reasons"] == {"1,5": "Nobody knows."}


def test_a_missing_value_is_a_dash_with_its_reason_and_nothing_in_the_csv(tmp_path):
    reason = 'fewer than "two" models <here>'
    frame = pd.DataFrame({"benchmark": ["a", "b"], "tau": [0.5, Missing(reason)]})
    made = page_with(frame, formats={"tau": ".2f"})
    document = page_document(replace(made, notes=["A note."]))
    (table,) = document["sections"][0]["tables"]
    assert table["rows"] == [["a", 0.5], ["b", None]] and table["reasons"] == {"1,1": reason}
    assert [column["numeric"] for column in table["columns"]] == [False, True]
    assert document["reasons"] == [reason] and "Point at it" in render(document)
    kit.write_page(made, tmp_path)
    held = json.loads((tmp_path / "assets" / "agreement.js").read_text().partition(" = ")[2].rstrip(";\n"))
    rows = json.loads(zlib.decompress(base64.b64decode(held["table told"])))
    assert rows == {"values": [["a", "b"], [0.5, None]], "shown": [None, ["0.50", "—"]], "reasons": {"1,1": reason}}
    assert (tmp_path / "tables" / "told.csv").read_text() == "benchmark,tau\na,0.5\nb,\n"


def test_a_page_leaves_out_protocols_and_columns_without_a_value_and_the_csv_has_them(tmp_path):
    nothing, reason = Missing(no_scores("train_before_test")), "too few"
    columns = {"benchmark": list("abab"), "protocol": ["Direct"] * 2 + ["Train before test"] * 2}
    columns |= {"tau": [0.5, Missing(reason), nothing, nothing], "change": [None] * 4, "power": [Missing(reason)] * 4}
    made = page_with(pd.DataFrame(columns))
    (table,) = page_document(made)["sections"][0]["tables"]
    assert [column["name"] for column in table["columns"]] == ["benchmark", "protocol", "tau", "power"]
    assert table["rows"] == [["a", "Direct", 0.5, None], ["b", "Direct", None, None]]
    assert table["reasons"] == dict.fromkeys(("0,3", "1,2", "1,3"), reason)
    kit.write_page(made, tmp_path)
    assert pd.read_csv(tmp_path / "tables" / "told.csv").shape == (4, 5)


def test_scales_and_p_values_change_what_the_page_shows_but_not_the_csv(tmp_path):
    frame = pd.DataFrame({"from_b": [2.5e-5, None], "p": [1e-74, 0.0314], "to_b": [Missing("Unknown.")] * 2})
    scales = {"from_b": 1e6, "to_b": 1e6, "absent": 2.0}
    made = page_with(frame, formats={"from_b": ".1f", "p": "p"}, scales=scales)
    kit.write_page(made, tmp_path)
    (shown,) = page_document(made)["sections"][0]["tables"]
    assert [column["name"] for column in shown["columns"]] == ["from_b", "p", "to_b"]
    assert shown["rows"] == [[2.5e-5, 1e-74, None], [None, 0.0314, None]]  # what sorting and the download use
    assert [column["scale"] for column in shown["columns"]] == [1e6, 1.0, 1e6]
    assert kit._shown(2.5e-5, ".1f", 1e6) == "25.0"
    assert pd.read_csv(tmp_path / "tables" / "told.csv")["from_b"].tolist()[0] == 2.5e-5
    assert [kit._shown(value, "p", 1.0) for value in frame["p"]] == ["<.001", "0.031"]


def test_a_picture_is_a_file_of_its_own_too(tmp_path):
    drawn = Picture(svg(20, 20, "a & b", dot(10, 10, "d")), "Of <b>two</b> & more.")
    kit.write_page(page([Section("Pairs", pictures=[drawn])]), tmp_path)
    (path,) = (tmp_path / "figures").iterdir()
    text = "".join(ElementTree.parse(path).getroot().itertext())
    assert path.name == "agreement_1.svg" and text.strip().endswith("Of <b>two</b> & more.")
