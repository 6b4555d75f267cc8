"""The items report: values, texts, small tables, and the command."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from typer.testing import CliRunner

from lm_validity.cli import reports
from lm_validity.errors import InputError
from lm_validity.studies.items.numbers import NOT_GRADED, TOO_FEW, analyze_items
from lm_validity.studies.items.page import items_page
from lm_validity.studies.items.statistics import fit_2pl, resolution
from lm_validity.tables.schema import DOCUMENTS, write_table

DIRECT, TRAINED = "direct", "train_before_test"


def world(models=60, items=80, protocol=DIRECT, seed=0):
    """Answers of models of different ability; the last item is answered the wrong way round."""
    generator = np.random.default_rng(seed)
    abilities = generator.standard_normal(models)
    right = expit(2.0 * abilities[:, None] + generator.normal(0, 1, items))
    right[:, -1] = 1 - right[:, -1]
    answers = generator.uniform(size=right.shape) < right
    return {(f"m{index:03}", "cloze", protocol): row for index, row in enumerate(answers)}


def files(folder):
    return folder / "scores.parquet", folder / "items.parquet"


def test_reversed_items_are_listed_with_their_text(write, tmp_path):
    cells = world(models=150)
    folder = write(cells)
    documents = pd.DataFrame({"benchmark": "cloze", "doc_id": [str(i) for i in range(80)]})
    documents = documents.assign(context=[f"text {i}" for i in range(80)], choices=[["a", "b"]] * 80, gold=0)
    write_table(documents, DOCUMENTS, folder / "documents.parquet")
    summary = analyze_items(*files(folder), [folder / "documents.parquet"])
    first = summary.negative_items[0]
    assert (first.doc_id, first.text, first.certain) == ("79", "text 79", True) and first.discrimination < 0
    (row,) = summary.benchmarks
    correct = np.array([cells[key] for key in sorted(cells)], dtype=float)
    assert (row.models, row.items) == (150, 80)
    assert row.share_resolved == resolution(correct).share_resolved and row.neighbours == 149
    fit = fit_2pl(correct[:, np.argsort([str(i) for i in range(80)])])
    assert row.information == pytest.approx(np.median(fit.information(fit.abilities)))
    assert row.negative == (fit.discrimination < 0).sum() and row.negative_certain == fit.negative().sum()
    assert analyze_items(*files(folder)).negative_items[0].text is None
    write_table(documents.assign(benchmark="other"), DOCUMENTS, tmp_path / "other.parquet")
    tables = [tmp_path / "other.parquet", folder / "documents.parquet"]
    assert analyze_items(*files(folder), tables).negative_items[0].text == "text 79"
    assert analyze_items(*files(folder), tables[:1]).negative_items[0].text is None
    write_table(documents.assign(gold=5), DOCUMENTS, tables[0])
    with pytest.raises(InputError, match="gold"):
        analyze_items(*files(folder), tables)


def test_protocols_stand_side_by_side(write):
    folder = write(world(models=12) | world(models=12, protocol=TRAINED, seed=1))
    summary = analyze_items(*files(folder))
    assert [row.protocol for row in summary.benchmarks] == [DIRECT, TRAINED]


def test_two_models_have_a_resolution_but_no_item_response_model(write):
    folder = write(world(models=2))
    (row,) = (summary := analyze_items(*files(folder))).benchmarks
    assert "not known" in items_page(summary).sections[-1].finding
    assert row.neighbours == 1 and row.reliability == TOO_FEW and row.negative == TOO_FEW


def test_reruns_are_no_models(write, tmp_path):
    folder = write(cells := world(models=5))
    first, *_, last = sorted({key[0] for key in cells})
    (tmp_path / "models.csv").write_text(f"model,rerun_of\n{first},\n{last},{first}\n")
    assert [row.models for row in analyze_items(*files(folder)).benchmarks] == [5]
    assert [row.models for row in analyze_items(*files(folder), models=tmp_path / "models.csv").benchmarks] == [4]


def test_graded_items_beyond_one_are_not_fitted(write):
    cells = {key: 3.0 * values for key, values in world(models=5).items()}
    (row,) = (data := analyze_items(*files(write(cells, metric="points,none")))).benchmarks
    assert row.information == NOT_GRADED and row.neighbours == 4
    # a gap of such scores has no points: the picture has the dot of the share told apart alone, wide and narrow
    assert row.minimal_detectable_difference > 0
    assert items_page(data).picture.svg.count("<circle") == 2


def test_items_of_other_scores_are_an_error(write, tmp_path):
    folder = write(world(models=3), changes=lambda scores: scores.assign(benchmark="other"))
    with pytest.raises(InputError, match="no item belongs"):
        analyze_items(*files(folder))


def test_the_command_writes_the_report(write, monkeypatch):
    monkeypatch.setattr("lm_validity.pages.figures.save_figure", lambda spec, stem: None)
    folder = write(world(models=8) | world(models=8, protocol=TRAINED, seed=1))
    scores, items = map(str, files(folder))
    arguments = ["items", "--scores", scores, "--items", items, "--output", str(folder / "report")]
    CliRunner().invoke(reports.app, arguments, catch_exceptions=False)
    summary = json.loads((folder / "report" / "summary.json").read_text())
    assert [row["protocol"] for row in summary["benchmarks"]] == [DIRECT, TRAINED]
    page = json.loads((folder / "report" / "page.json").read_text())
    names = [figure["name"] for section in page["sections"] for figure in section["figures"]]
    assert names == ["information_1", "information_2"] and len(page["findings"]) == 2


@pytest.mark.parametrize(("models", "heading"), [(60, "Fewer than half"), (1, "Not known")])
def test_the_page_begins_with_how_many_neighbours_are_told_apart(write, models, heading):
    summary = analyze_items(*files(write(world(models=models))))
    page, (row,) = items_page(summary), summary.benchmarks
    assert page.lede.heading.startswith(heading)
    if models == 1:
        assert page.picture is None and row.neighbours == 0
    else:
        said = f"{row.resolved} of {row.neighbours}"
        assert said in page.lede.sentence and said in page.picture.svg and len(page.lede.sentence.split()) <= 18


@pytest.mark.parametrize(("models", "outcome"), [(150, "yes"), (5, "not known"), (2, None)])
def test_whether_items_work_against_a_benchmark_is_not_known_of_few_models(write, models, outcome):
    summary = analyze_items(*files(write(world(models=models))))
    panels = {panel.question: panel for panel in items_page(summary).panels}
    (row,) = summary.benchmarks
    assert f"**{row.all_equal} of 80 items**" in panels.pop("Which items count?").text
    assert [panel.outcome for panel in panels.values()] == ([] if outcome is None else [outcome])
    if outcome is not None:
        (panel,) = panels.values()
        assert f"**{row.negative_certain} of 80 items**" in panel.text
