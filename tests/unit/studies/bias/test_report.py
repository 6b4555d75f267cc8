"""The report on small tables: what its page says of its rows, incomplete data, bad input, hostile names."""

import json
import re
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from lm_validity.cli import register_commands, reports
from lm_validity.errors import InputError
from lm_validity.pages.svg import points
from lm_validity.results.put import Rows, ends_of
from lm_validity.studies.bias.numbers import ONE_TASK, PCA_RANKS, PCA_SIZES, simulate_pca
from lm_validity.studies.bias.page import bias_page, bias_rows, report_bias, write_prior_simulation
from lm_validity.studies.bias.statistics.model import ONE_SUBSAMPLE
from lm_validity.studies.bias.trials import ARMS, pair_arms
from lm_validity.tables.schema import TRIALS, write_table

BIAS = {"effect": "bias"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The slices take most of a small report's time."""
    monkeypatch.setattr("lm_validity.studies.bias.numbers.SLICES", 20)


@pytest.fixture
def report(tmp_path, rows):
    """Write a table of simulated trials, report on it, return its rows and its page."""

    def run(change=None, formula="equations", **layout):
        table = rows(**layout)
        write_table(table if change is None else change(table), TRIALS, tmp_path / "trials.parquet")
        report_bias(tmp_path / "trials.parquet", tmp_path / "bias", formula=formula)
        page = json.loads((tmp_path / "bias" / "page.json").read_text())
        return Rows.read(tmp_path / "bias" / "results.parquet"), page

    return run


def test_all_tasks_at_the_ceiling_have_no_interval_and_say_why(report):
    rows, page = report(lambda table: table.assign(correct=table["total"]), models=1, sizes=(40,))
    bias = rows.row("effect", **BIAS)
    assert bias.value == 0 and bias.low is None and bias.reason_code == "no_interval"
    assert any("4 of 4 tasks show no difference at all" in note for note in page["notes"])
    assert any("4 of 4 tasks at the ceiling or the floor" in note for note in page["notes"])


def lifted(table):
    """38 right answers of the first task after reading the test's texts."""
    return table.assign(correct=table["correct"].mask((table["task"] == "task0") & (table["arm"] == "test"), 38))


FOUND = "Having read the test's texts changes scores"


@pytest.mark.parametrize(
    ("layout", "heading", "answer"),
    [
        ({"tasks": 6, "shift": {"test": 0.8}}, FOUND, "Yes:"),
        ({"tasks": 6, "shift": {"test": -0.8}}, FOUND, "It lowers scores:"),
        ({"seed": 2}, "No effect found", "No effect found:"),
        ({"tasks": 1}, "Not known:", "Not known:"),
        ({"change": lifted}, f"{FOUND} on 1 of 4 tasks, not shown", "On 1 of 4 tasks, not shown"),
        ({"arms": ("base", "extra")}, "Not measured:", None),
    ],
)
def test_the_page_begins_with_what_the_interval_over_tasks_decides(report, layout, heading, answer):
    rows, page = report(models=1, sizes=(40,), **layout)
    assert page["lede"]["heading"].startswith(heading) and len(page["answers"]) == (answer is not None)
    if answer is None:
        return
    (shown,), bias = page["answers"], rows.row("effect", **BIAS)
    printed = [points(value, 2, signed=True) for value in (bias.value, *(ends_of(bias) or ()))]
    assert shown["sentence"].startswith(answer) and shown["interval"] == page["lede"]["interval"]
    assert re.findall(r"[+−]\d+\.\d+", page["lede"]["sentence"] + page["lede"]["interval"]) == printed
    for picture in (shown["svg"], page["picture"]["svg"]):
        label = re.search('aria-label="([^"]*)"', picture)[1]
        assert all(number in label for number in printed)
    assert all(len(said.split()) <= 18 for said in (page["lede"]["sentence"], shown["sentence"]))


def test_several_experiments_are_counted_and_never_pooled(rows):
    clean = rows(models=1, tasks=5, sizes=(80,)).assign(experiment="clean")
    planted = rows(models=1, tasks=4, sizes=(40,), shift={"test": 2.5}, seed=1).assign(experiment="planted")
    trials = pair_arms(pd.concat([clean, planted], ignore_index=True))
    found = bias_rows(trials, None, "laplace", "equations")
    page = bias_page(trials, found)
    assert page.lede.heading.endswith(" in 1 of 2 experiments")  # and the one that decides is quoted
    bias = found.row("effect", experiment="planted", **BIAS)
    quoted = [points(value, 2, signed=True) for value in (bias.value, *ends_of(bias))]
    assert page.lede.interval.startswith("95% over 2 experiments: ")
    assert quoted == re.findall(r"[+−]\d+\.\d+", page.lede.sentence + page.lede.interval)
    answer = page.answers[0]
    assert answer.interval == page.lede.interval and answer.sentence.startswith("Yes, in 1 of 2 experiments:")
    for section in page.sections:
        assert section.finding.startswith("clean: ") and " planted: " in section.finding
    low, high = ends_of(bias)
    others = [row for row in found if (row.quantity, row.said.get("experiment")) != ("effect", "clean")]
    clean = bias.conditions.replace("planted", "clean")
    opposed = bias._replace(value=-bias.value, low=-high, high=-low, conditions=clean)
    page = bias_page(trials, Rows("bias", [*others, opposed]))
    for words in (page.lede.heading, page.answers[0].sentence):
        assert "raises scores in 1 and lowers them in 1 of 2 experiments" in words and len(words.split()) <= 18


LAYOUTS = [{"models": 1}, {"tasks": 1}, {"subsamples": 1}, {"models": 1, "tasks": 1, "subsamples": 1}]


@pytest.mark.parametrize("layout", [*LAYOUTS, {"arms": ("extra", "test")}, {"arms": ("base", "extra")}])
def test_incomplete_data_are_reported_with_what_is_missing(report, layout):
    rows, page = report(sizes=(40,), **layout)
    notes = " ".join(page["notes"])
    assert all(row.value is not None or row.text is not None or row.reason for row in rows)
    assert "models" not in layout or "one language model" in notes
    if layout.get("tasks") == 1:
        assert {row.reason for row in rows.all("cell_effect_standard_error", **BIAS)} == {str(ONE_TASK.reason)}
    assert layout.get("subsamples") != 1 or rows.all("slices_beyond")[0].reason == ONE_SUBSAMPLE
    for missing in {"base", "extra", "test"} - set(layout.get("arms", ARMS)):
        assert f"have no arm {missing}" in notes


def test_nuts_without_its_packages_is_an_input_error(rows, tmp_path, monkeypatch):
    write_table(rows(models=1, tasks=2, sizes=(40,)), TRIALS, tmp_path / "trials.parquet")
    monkeypatch.setitem(sys.modules, "nutpie", None)
    with pytest.raises(InputError, match="needs a package") as caught:
        report_bias(tmp_path / "trials.parquet", tmp_path / "nuts", sampler="nuts")
    assert "bayes" in caught.value.hint


def test_the_command_imports_accuracies(tmp_path):
    """What is written of a table of trials: tests/golden/rows.py."""
    lines = [f"e,lm,50,10,t{task},{s},0.{3 + s},0.{4 + s},0.{5 + s},0.5" for task in range(3) for s in range(3)]
    (tmp_path / "a.csv").write_text("\n".join(["experiment,lm,m,n,task,subsample,base,extra,test,majority", *lines]))
    words = ["import", "pretrain-on-test", tmp_path / "a.csv", "--output", tmp_path / "in"]
    CliRunner().invoke(register_commands(), [*map(str, words)])
    assert (pair_arms(pd.read_parquet(tmp_path / "in" / "trials.parquet")).eval("test - extra") == 1).all()


def simulate(*arguments):
    return CliRunner().invoke(reports.simulations, [str(argument) for argument in arguments], catch_exceptions=False)


def test_the_command_writes_the_values_of_the_simulation(tmp_path):
    simulate("pca", "--output", tmp_path, "--splits", 3)
    rows = Rows.read(tmp_path / "results.parquet")
    assert len(rows.all("pca_effect")) == 2 * len(PCA_RANKS) * len(PCA_SIZES)
    base, extra, test = simulate_pca(10, 50, 3).T
    for effect, of in (("bias", test - extra), ("boost", extra - base)):
        row = rows.row("pca_effect", rank=10, n=50, effect=effect)
        half = 1.96 * of.std(ddof=1) / np.sqrt(3)
        assert (row.value, *ends_of(row)) == pytest.approx((of.mean(), of.mean() - half, of.mean() + half))
    assert (tmp_path / "index.html").is_file()


def test_the_priors_have_a_page_of_their_own(tmp_path, rows):
    write_table(rows(tasks=2, subsamples=2, sizes=(40,)), TRIALS, tmp_path / "trials.parquet")
    simulate("prior", "--trials", tmp_path / "trials.parquet", "--output", tmp_path / "prior", "--draws", 20)
    difference = Rows.read(tmp_path / "prior" / "results.parquet").row("prior_difference")
    assert difference.low < 0 < difference.high and (tmp_path / "prior" / "index.html").is_file()
    with pytest.raises(InputError, match="unknown formula 'all'"):
        write_prior_simulation(tmp_path / "trials.parquet", tmp_path / "other", "all", 20)
    assert not (tmp_path / "other").exists()
