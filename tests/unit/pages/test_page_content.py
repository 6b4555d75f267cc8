"""What a page shows and leaves out: empty figures and sections, folded findings, room for names, its size."""

import json
import re
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
import pytest

from lm_validity.missing import Missing
from lm_validity.pages import figures
from lm_validity.pages.figures import label_room
from lm_validity.pages.page import (
    Figure,
    Finding,
    Lede,
    Page,
    Panel,
    Picture,
    Section,
    Table,
    _shown,
    page_document,
    render,
    write_page,
)
from lm_validity.pages.svg import dot, line, svg

NAMES = [f"a benchmark of number {number}" for number in range(65)]


def heatmap(values: np.ndarray, names: list[str]) -> object:
    frame = figures.matrix_frame(values, names, names, "tau")
    tooltip = figures.tooltips(row="", column="with", tau="tau|.3f")
    options = {"x": "column", "y": "row", "value": "tau", "title": "tau", "tooltip": tooltip}
    return figures.heatmap(frame, x_order=names, y_order=names, **options)


def dots(frame: pd.DataFrame) -> dict:
    chart = figures.interval_dots(
        frame,
        y="benchmark",
        value="tau",
        title="tau",
        y_order=list(dict.fromkeys(frame["benchmark"])),
        color=figures.protocol_color(),
        tooltip=figures.tooltips(tau="tau|.3f"),
        offset="protocol",
    )
    return figures.vega_lite(chart)


def page(sections=(), findings=(), name="agreement") -> Page:
    return Page(name, name, list(findings), list(sections))


def test_a_figure_without_a_value_is_left_out_with_its_files(tmp_path):
    known, unknown = np.full((2, 2), 0.5), np.full((2, 2), np.nan)
    shown = [Figure(name, name, heatmap(grid, ["a", "b"])) for name, grid in (("one", known), ("two", unknown))]
    write_page(page([Section("Pairs", figures=shown)]), tmp_path)
    (section,) = page_document(page([Section("Pairs", figures=shown)]))["sections"]
    assert [figure["name"] for figure in section["figures"]] == ["one"]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"one.svg"}


@pytest.mark.parametrize("partly", [False, True])
def test_a_figure_with_one_value_stays(partly):
    grid = np.array([[0.5, np.nan], [np.nan, np.nan]]) if partly else np.full((2, 2), 0.0)
    (section,) = page_document(page([Section("Pairs", figures=[Figure("one", "one", heatmap(grid, ["a", "b"]))])]))[
        "sections"
    ]
    assert len(section["figures"]) == 1


def test_a_section_without_content_is_left_out():
    sections = [Section("Nothing", explanation="How it would be."), Section("Something", notes=["A note."])]
    assert [section["title"] for section in page_document(page(sections))["sections"]] == ["Something"]


def test_sections_are_folds_below_a_lede_and_open_without():
    sections = [Section("Part", notes=["-"])]
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


def test_a_protocol_without_a_value_has_no_row_and_no_colour():
    frame = pd.DataFrame(
        {
            "benchmark": ["a", "a", "b", "b"],
            "protocol": ["Direct", "Train before test"] * 2,
            "tau": [0.5, np.nan, np.nan, np.nan],
        }
    )
    one = dots(frame)
    (rows,) = one["datasets"].values()
    assert [(row["benchmark"], row["protocol"]) for row in rows] == [("a", "Direct"), ("b", "Direct")]
    colors = [layer["encoding"]["color"]["scale"] for layer in one["layer"] if "color" in layer["encoding"]]
    assert [scale["domain"] for scale in colors] == [["Direct"]] and len(colors[0]["range"]) == 1
    assert dots(frame[frame["protocol"] == "Direct"])["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["Direct"]
    both = dots(frame.assign(tau=[0.5, 0.6, np.nan, np.nan]))
    assert [len(rows) for rows in both["datasets"].values()] == [4]


def test_layers_are_those_of_altair():
    """Shared rows, parameters and the size above the layers, layers in layers; Altair's own layers say the same."""

    def parts(rows, other_rows) -> list:
        base = alt.Chart(rows).encode(y=alt.Y("name:N"))
        pick = alt.param(name="shown", value=1, bind=alt.binding_range(min=0, max=2))
        dots = base.transform_filter("datum.at > shown").mark_point().add_params(pick)
        line = alt.Chart(other_rows).mark_rule().encode(x=alt.X("zero:Q"))
        return [dots.encode(x=alt.X("at:Q")), base.mark_bar().encode(x=alt.X("at:Q")), line]

    values, zero = [{"name": "a", "at": 1.5}, {"name": "b", "at": None}], [{"zero": 0}]
    first, second, line = parts(figures.inline(values), figures.inline(zero))
    written = figures.vega_lite(figures.layered(figures.layered(first, second, height=40, description="d"), line))
    first, second, line = parts(alt.InlineData(values=values), alt.InlineData(values=zero))
    inner = alt.layer(first, second, description="d", width="container", height=40)
    of_altair = alt.layer(inner, line, width="container", height=40).to_dict()
    assert written | {"config": 0} == of_altair | {"config": 0} and len(written["datasets"]) == 2
    assert "data" in written["layer"][0] and "data" not in written["layer"][0]["layer"][0]


def test_numbers_in_cells_and_legends_of_lines_have_room():
    names = NAMES[:16]
    frame = figures.matrix_frame(np.full((16, 16), 0.5), names, names, "tau")
    options = {"x": "column", "y": "row", "value": "tau", "title": "tau", "tooltip": figures.tooltips(row="")}
    grid = figures.heatmap(frame, x_order=names, y_order=names, number_format=".2f", **options)
    assert label_room(figures.vega_lite(grid)) >= 16 * 28 + 100  # four characters of 7 pixels
    frame = pd.DataFrame({"name": names * 2, "at": [0] * 16 + [1] * 16, "tau": 0.5})
    options = {"x": "at", "y": "tau", "x_title": "at", "y_title": "tau", "tooltip": figures.tooltips(tau="tau")}
    color = figures.listed_color("name", dict.fromkeys(names, "#000000"))
    assert label_room(figures.vega_lite(figures.lines(frame, color=color, **options))) >= 4 * 140


@pytest.mark.parametrize(("lede", "shown"), [(None, 3), (Lede("Found"), 0)])
def test_without_a_lede_three_findings_are_shown_and_alarms_always(lede, shown):
    findings = [Finding(f"finding {number}") for number in range(8)] + [Finding("an alarm", alarm=True)]
    above, folded = render(page_document(replace(page(findings=findings), lede=lede))).split('id="findings"')
    listed = re.compile(r"<li[^>]*>(finding \d|an alarm)")
    assert listed.findall(above) == ["an alarm", *[f"finding {n}" for n in range(shown)]]
    assert listed.findall(folded) == [f"finding {n}" for n in range(shown, 8)]


def test_few_findings_are_not_folded():
    assert 'id="findings"' not in render(page_document(page(findings=[Finding("only")])))


def test_a_page_of_real_size_stays_small(tmp_path):
    """65 × 65 pairs, and a table of 40,000 scores with all their digits."""
    rng = np.random.default_rng(0)
    scores = pd.DataFrame({"benchmark": np.resize(NAMES, 40_000), "score": rng.random(40_000)})
    section = Section(
        "Pairs",
        figures=[Figure("pairs", "Pairs", heatmap(rng.random((65, 65)), NAMES))],
        tables=[Table("scores", "All scores", scores, formats={"score": ".4f"}, folded=True)],
    )
    write_page(page([section]), tmp_path / "apart")
    assert (tmp_path / "apart" / "index.html").stat().st_size < 50_000
    assert (tmp_path / "apart" / "assets" / "agreement.js").stat().st_size < 1_000_000


def test_hostile_names_cannot_leave_their_place():
    hostile = '</script><script>alert(1)</script>"'
    frame = pd.DataFrame({"family": [hostile], "score": [0.5]})
    html = render(page_document(page([Section(hostile, tables=[Table("t", hostile, frame)])], name=hostile)))
    assert "<script>alert" not in html


def test_texts_that_a_spreadsheet_would_compute(tmp_path):
    cells = ["=1+1", "@x", "+x", "-x", "-", "-0.5", "+1", "a=b", 'a"b']
    frame = pd.DataFrame({"=name": cells, "value": [-0.5] * len(cells)})
    write_page(page([Section("Here", tables=[Table("told", "Told", frame)])]), tmp_path)
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
    write_page(page([Section("Here", tables=[Table("told", "Told", frame)])]), tmp_path)
    expected = frame.assign(known=[1.0, np.nan, 2.5, 3.0]).to_csv(index=False, lineterminator="\n")
    assert (tmp_path / "tables" / "told.csv").read_text(encoding="utf-8") == expected
    (section,) = page_document(page([Section("Here", tables=[Table("told", "Told", frame)])]))["sections"]
    assert section["tables"][0]["reasons"] == {"1,5": "Nobody knows."}


def test_scales_and_p_values_change_what_the_page_shows_but_not_the_csv(tmp_path):
    frame = pd.DataFrame({"from_b": [2.5e-5, None], "p": [1e-74, 0.0314], "to_b": [Missing("Unknown.")] * 2})
    scales = {"from_b": 1e6, "to_b": 1e6, "absent": 2.0}
    table = Table("told", "Told", frame, formats={"from_b": ".1f", "p": "p"}, scales=scales)
    write_page(page([Section("Here", tables=[table])]), tmp_path)
    (shown,) = page_document(page([Section("Here", tables=[table])]))["sections"][0]["tables"]
    assert [column["name"] for column in shown["columns"]] == ["from_b", "p", "to_b"]
    assert shown["rows"] == [[2.5e-5, 1e-74, None], [None, 0.0314, None]]  # what sorting and the download use
    assert [column["scale"] for column in shown["columns"]] == [1e6, 1.0, 1e6]
    assert _shown(2.5e-5, ".1f", 1e6) == "25.0"
    assert pd.read_csv(tmp_path / "tables" / "told.csv")["from_b"].tolist()[0] == 2.5e-5
    assert [_shown(value, "p", 1.0) for value in frame["p"]] == ["<.001", "0.031"]


@pytest.mark.parametrize(("name", "upright"), [("arc", True), ("a_benchmark_with_a_long_name", False)])
def test_names_below_bars_are_upright_only_where_they_have_room(name, upright):
    names = [f"{name}{i}" for i in range(6)]
    frame = pd.DataFrame({"benchmark": names, "protocol": "Direct evaluation", "tau": 0.5})
    chart = figures.grouped_bars(frame, x="benchmark", value="tau", title="t", x_order=names, tooltip=[])
    angles = re.findall(r'"labelAngle": (-?\d+)', json.dumps(figures.vega_lite(chart)))
    assert angles and all((angle == "0") == upright for angle in angles)
