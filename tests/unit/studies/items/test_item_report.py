"""The items report: values, texts, small tables, and the command."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from lm_validity.errors import InputError
from lm_validity.studies.items.report import NOT_GRADED, TOO_FEW, analyze_items, items_page
from lm_validity.studies.items.statistics import fit_2pl, neighbour_tests
from lm_validity.tables.counted import Sources
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


def files(folder, models=None):
    return Sources(folder / "scores.parquet", models, items=folder / "items.parquet")


def value(analysis, quantity, **place):
    return analysis.rows.value(quantity, **place)


def test_reversed_items_are_listed_with_their_text(write, tmp_path):
    cells = world(models=150)
    folder = write(cells)
    documents = pd.DataFrame({"benchmark": "cloze", "doc_id": [str(i) for i in range(80)]})
    documents = documents.assign(context=[f"text {i}" for i in range(80)], choices=[["a", "b"]] * 80, gold=0)
    write_table(documents, DOCUMENTS, folder / "documents.parquet")
    rows = analyze_items(files(folder), [folder / "documents.parquet"]).rows
    first = rows.all("item_discrimination")[0]
    assert first.other == "79" and first.value < 0
    assert rows.all("item_text")[0].text == "text 79" and rows.all("item_negative_certain")[0].value == 1
    correct = np.array([cells[key] for key in sorted(cells)], dtype=float)
    fit = fit_2pl(correct[:, np.argsort([str(i) for i in range(80)])])
    expected = {"models": 150, "items": 80, "neighbours": 149, "items_below_zero": (fit.discrimination < 0).sum()}
    expected["neighbours_resolved_share"] = np.mean([pair.p < 0.05 for pair in neighbour_tests(correct)])
    expected["negative_items"] = fit.negative().sum()
    assert {name: rows.value(name) for name in expected} == pytest.approx(expected)
    write_table(documents.assign(benchmark="other"), DOCUMENTS, tmp_path / "other.parquet")
    tables = [tmp_path / "other.parquet", folder / "documents.parquet"]
    assert analyze_items(files(folder), tables).rows.all("item_text")[0].text == "text 79"
    assert not analyze_items(files(folder), tables[:1]).rows.all("item_text")
    write_table(documents.assign(gold=5), DOCUMENTS, tables[0])
    with pytest.raises(InputError, match="gold"):
        analyze_items(files(folder), tables)


def test_few_models_and_graded_items_have_no_item_response_model(write):
    two, three_points = world(models=2), {key: 3.0 * values for key, values in world(models=5).items()}
    for cells, neighbours, reason, metric in ((two, 1, TOO_FEW, "acc"), (three_points, 4, NOT_GRADED, "points")):
        analysis = analyze_items(files(write(cells, metric=f"{metric},none")))
        row = analysis.rows.row("negative_items")
        assert row.value is None and row.reason == reason.reason
        assert value(analysis, "neighbours") == neighbours and value(analysis, "paired_difference") > 0
        # a gap of such scores has no points
        questions = [panel.question for panel in items_page(analysis).panels]
        assert ("Which gap is found?" in questions) is (metric == "acc")


def test_reruns_and_copies_are_no_models(write, tmp_path):
    cells = world(models=5)
    first, *_, last = sorted({key[0] for key in cells})
    (tmp_path / "models.csv").write_text(f"model,rerun_of\n{first},\n{last},{first}\n")
    folder = write(cells)
    assert value(analyze_items(files(folder)), "models") == 5
    assert value(analyze_items(files(folder, tmp_path / "models.csv")), "models") == 4
    analysis = analyze_items(files(write(cells | {("copy", "cloze", DIRECT): cells[first, "cloze", DIRECT]})))
    assert value(analysis, "models") == 5 and any(f"{first} (as copy)" in note for note in analysis.notes)


def test_items_of_other_scores_are_an_error(write, tmp_path):
    folder = write(world(models=3), changes=lambda scores: scores.assign(benchmark="other"))
    with pytest.raises(InputError, match="no item belongs"):
        analyze_items(files(folder))


@pytest.mark.parametrize(
    ("models", "heading", "outcome"),
    [(150, "Fewer than half", "yes"), (5, "", "not known"), (2, "", None), (1, "Not known", None)],
)
def test_the_page_answers_what_its_models_allow(write, models, heading, outcome):
    """Neighbours told apart, and whether items work against the benchmark, which few models cannot tell."""
    analysis = analyze_items(files(write(world(models=models))))
    page = items_page(analysis)
    assert page.lede.heading.startswith(heading)
    said = f"{value(analysis, 'neighbours_resolved'):.0f} of {value(analysis, 'neighbours'):.0f}"
    assert (said in page.lede.sentence) is (models > 1)
    panels = {panel.question: panel for panel in page.panels}
    panel = panels.get("Do items work against the benchmark?")
    assert (panel and panel.outcome) == outcome
    if panel:
        assert f"**{value(analysis, 'negative_items'):.0f} of 80 items**" in panel.text
