"""Two models, or one benchmark, from a file to the site: what is compared, in which unit, and what is not known."""

import json

import pytest
from typer.testing import CliRunner

from lm_validity.cli.reports import app
from lm_validity.results.put import Rows

SCORES = "model,benchmark,metric,value,stderr"


@pytest.fixture
def site(tmp_path):
    """Write a table and its site; the folder of its pages."""

    def write(header, *lines):
        (tmp_path / "table.csv").write_text("\n".join([header, *lines]) + "\n")
        words = [str(tmp_path / "table.csv"), "--output", str(tmp_path / "site")]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return tmp_path / "site"

    return write


def test_two_models_on_a_benchmark_whose_metric_nobody_names(site):
    answers = [
        f"{model},quiz_of_ours,{item},{int(item % 3 > least)}"
        for model, least in (("a", 0), ("b", 1))
        for item in range(60)
    ]
    rows = Rows.read(site("model,benchmark,item,score", *answers) / "compare" / "results.parquet")
    # 20 of 60 items are right for a alone
    assert rows.value("joint_change") == pytest.approx(-20 / 60) and rows.row("joint_verdict").text == "worse"


def test_bits_per_byte_between_0_and_1_are_no_points(site):
    cells = [("acc", "arc_challenge", 0.50, 0.51, 0.01), ("bits_per_byte", "wikitext", 0.90, 0.70, 0.005)]
    lines = [
        f"{model},{benchmark},{metric},{value},{error}"
        for metric, benchmark, *values, error in cells
        for model, value in zip("ab", values, strict=True)
    ]
    rows = Rows.read(site(SCORES, *lines) / "compare" / "results.parquet")
    assert rows.value("joint_change") == pytest.approx(0.01) and rows.row("joint_verdict").text == "not known"


def test_the_page_of_two_models_has_the_difference_along_training(site):
    lines = [
        f"{model},{benchmark},acc,{tokens},{0.3 + tokens / 100 + (model == 'b') * tokens / 1000},.01"
        for model in "ab"
        for benchmark in ("arc_challenge", "hellaswag")
        for tokens in (10, 20, 30)
    ]
    rows = Rows.read(site("model,benchmark,metric,tokens_b,value,stderr", *lines) / "compare" / "results.parquet")
    together = {row.said["point"]: row.value for row in rows.all("change_along_training", subject=None)}
    assert together == pytest.approx({10: 0.01, 20: 0.02, 30: 0.03})


def test_what_is_left_out_of_the_site_is_not_ranked(site):
    lines = [f"m{number},gsm8k,acc,{0.3 + number / 100},.01" for number in range(10)]
    lines += [f"m{number},arc_challenge,acc,{0.4 + number / 20},.01" for number in range(3)]
    rows = Rows.read(site(SCORES, *lines) / "models" / "results.parquet")
    assert [(row.subject, row.value) for row in rows.all("models")] == [("gsm8k", 10)]


def test_a_gap_that_is_not_known_is_no_number(site):
    answers = [
        f"{model},quiz,{item},{0.1 * (item % 7) + more}" for more, model in enumerate("abc") for item in range(20)
    ]
    page = json.loads((site("model,benchmark,item,score", *answers) / "models" / "page.json").read_text())
    words = json.dumps([page["lede"], page["findings"], page["answers"]])
    assert "unknown" not in words and "nan" not in words


def test_what_was_not_done_is_not_said_to_be(site):
    """Scores without errors are not tested; of a model whose family nobody knows it is not said that it is of one."""
    folder = site("model,piqa", "base-1b,.5", "tuned-1b,.6", "tuned-3b,.7")
    answer = json.loads((folder / "models" / "page.json").read_text())["answers"][0]
    assert "Bonferroni" not in answer["basis"] and "95%" not in answer["basis"] and "?" not in answer["sentence"]
    assert "famil" not in (folder / "index.html").read_text().partition("<h1")[2].partition("</p>")[0]
