"""Another wording of a benchmark: asked the same questions beside it, and a facet of its scores in the tables."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from toy_run import run_all, start_run
from toy_world import toy_rows, write_toy_tasks

from lm_validity.cells.tasks.splits import prefetch_benchmark, write_splits
from lm_validity.config.load import build_run
from lm_validity.errors import InputError
from lm_validity.files import read_json, write_json
from lm_validity.run.workspace import Workspace
from lm_validity.tables.merge import Merger
from lm_validity.tables.schema import read_benchmark_facts

OTHER = "toy_choice_other"

SOME = """def results(doc, results):
    right = float(max(results)[0] == results[doc["gold"]][0])
    return {"acc": right} | ({"some": right} if doc["gold"] == 0 else {})
"""


def write_variant(folder: Path, text: str = "{{name}} has the color", task: str = OTHER, own: str = "toy_choice"):
    body = (folder / f"{own}.yaml").read_text().replace(f"task: {own}", f"task: {task}")
    body = body.replace('"Question: what is the color of {{name}}?\\nAnswer:"', f'"{text}"')
    assert text in body
    (folder / f"{task}.yaml").write_text(body)


def with_variant(workspace: Workspace, folder: Path, **changed) -> Workspace:
    """The run with a second row, prefetched and split."""
    row = {"task": OTHER, "include_path": str(folder / "tasks"), "variant_of": "toy_choice"} | changed
    columns = [name for name in row if name not in ("task", "include_path")]
    own = ["toy_choice", "toy_choice", str(folder / "tasks"), *("" for _ in columns)]
    lines = ["\t".join(["benchmark", "task", "include_path", *columns]), "\t".join(own)]
    lines.append("\t".join([OTHER, row["task"], row["include_path"], *(row[name] for name in columns)]))
    Path("benchmarks.tsv").write_text("\n".join(lines) + "\n")
    run = build_run(workspace.run.configuration.model_dump(exclude_none=True, exclude_defaults=True), "toy")
    again = Workspace(run)
    write_json(run.results / "prefetch/benchmarks" / f"{OTHER}.json", prefetch_benchmark(run.benchmarks[OTHER]))
    write_splits(again, OTHER)
    return Workspace(run)


def test_a_second_wording_is_a_facet_of_its_benchmark(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/some.py").write_text(SOME)
    before = start_run(tmp_path, rows=toy_rows)
    run_all(before, "evaluate_model")
    recipes = {cell: before.recipe(cell) for cell in before.grid.cells() if cell.rule == "evaluate_model"}
    write_variant(tmp_path / "tasks")
    with open(tmp_path / "tasks" / f"{OTHER}.yaml", "a") as file:
        file.write("process_results: !function some.results\n")
    workspace = with_variant(before, tmp_path)
    assert (
        recipes.items()
        <= {cell: workspace.recipe(cell) for cell in workspace.grid.cells() if cell.rule == "evaluate_model"}.items()
    )
    # scored on test only, never trained on
    cells = [cell for cell in workspace.grid.cells() if cell.benchmark == OTHER]
    assert [(cell.rule, cell.checkpoint, cell.split) for cell in cells] == [("evaluate_model", "final", "test")]
    run_all(workspace, "evaluate_model")
    merger = Merger(workspace.run, partial=True)
    merger.write_scores(tmp_path)
    scores = pd.read_parquet(tmp_path / "scores.parquet")
    assert set(scores["benchmark"]) == {"toy_choice"}
    test = scores[(scores["split"] == "test") & (scores["metric"] == "acc,none")]
    own, other = test[test["prompt_variant"].isna()], test[test["prompt_variant"] == OTHER]
    assert own["selected"].tolist() == [True] and other["selected"].tolist() == [False]
    assert own["n_items"].tolist() == other["n_items"].tolist() == [14]
    some = scores[scores["metric"] == "some,none"]
    count = sum(row["gold"] == 0 for row in toy_rows("test"))
    assert 0 < count < 14 and some["n_items"].tolist() == [count]  # of those that have a value, as its error is
    merger.write_items(tmp_path)
    items = pd.read_parquet(tmp_path / "items.parquet")
    items = items[items["split"] == "test"]
    texts = items.groupby(items["prompt_variant"].fillna(""))["choice_loglikelihoods"].first()
    assert list(texts[""]) != list(texts[OTHER])  # it read the other template
    assert read_benchmark_facts("benchmarks.tsv")["benchmark"].tolist() == ["toy_choice"]


def test_a_wording_of_other_questions_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workspace = start_run(tmp_path, rows=toy_rows)
    shutil.copytree(tmp_path / "tasks", tmp_path / "elsewhere")
    text = (tmp_path / "elsewhere/toy_choice.yaml").read_text().replace("test_split: test", "test_split: validation")
    (tmp_path / "elsewhere/toy_choice.yaml").write_text(text)
    write_variant(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="its test documents are not those of 'toy_choice'"):
        with_variant(workspace, tmp_path, include_path=str(tmp_path / "elsewhere"))
    assert len(read_json(workspace.split_path("toy_choice", "test"))["addresses"]) == 14


def test_a_wording_of_the_same_rows_in_another_order_is_refused(tmp_path, monkeypatch):
    """As many documents, at the same addresses."""
    monkeypatch.chdir(tmp_path)
    workspace = start_run(tmp_path, rows=toy_rows)
    (tmp_path / "elsewhere").mkdir()
    write_toy_tasks(tmp_path / "elsewhere", rows=lambda split: toy_rows(split)[::-1])
    write_variant(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="its test documents are not those of 'toy_choice'"):
        with_variant(workspace, tmp_path, include_path=str(tmp_path / "elsewhere"))


@pytest.mark.parametrize(
    ("changed", "column"),
    [({"variant_of": OTHER}, "variant_of"), ({"variant_of": "none"}, "variant_of"), ({"metric": "acc_norm"}, "metric")],
)
def test_a_row_that_is_no_wording_of_another_is_refused(tmp_path, monkeypatch, changed, column):
    monkeypatch.chdir(tmp_path)
    workspace = start_run(tmp_path)
    write_variant(tmp_path / "tasks")
    with pytest.raises(InputError, match=f"'{column}'"):
        with_variant(workspace, tmp_path, **changed)
