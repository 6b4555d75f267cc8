"""The sheets and the task that docs/how_to/own_models_and_benchmarks.md shows are read as they stand there, and
docs/reference/tables.md has the columns that reports read."""

import importlib
import json
import re
from pathlib import Path

import pytest
import yaml

from lm_validity.config.load import load_run
from lm_validity.config.sections import DEFAULT_SIZE_CLASSES
from lm_validity.config.sheets import Benchmark, BenchmarkFacts, Model, ModelFacts, read_benchmarks, read_models

GUIDE_FILE = Path(__file__).parents[2] / "docs" / "how_to" / "own_models_and_benchmarks.md"
GUIDE = GUIDE_FILE.read_text(encoding="utf-8")


def block(first: str) -> str:
    """The indented block whose first line begins with `first`, without the indentation."""
    lines = GUIDE[GUIDE.index(f"    {first}") :].splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("    ")), len(lines))
    return "\n".join(line[4:] for line in lines[:end]) + "\n"


def table_columns(after: str) -> set[str]:
    """The column names in the first cells of the table under a heading."""
    table = GUIDE[GUIDE.index(after) :].split("\n## ")[0]
    return set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models.tsv").write_text(block("model\tpath"), encoding="utf-8")
    (tmp_path / "benchmarks.tsv").write_text(block("benchmark\ttask"), encoding="utf-8")
    return tmp_path


def test_the_sheets_are_read(folder):
    models = read_models(folder / "models.tsv", run="my-run", size_classes=DEFAULT_SIZE_CLASSES)
    assert models["qwen2.5-0.5b"] == Model(
        model="qwen2.5-0.5b",
        path="Qwen/Qwen2.5-0.5B",
        family="Qwen",
        parameters_b=0.494,
        tokens_b=18_000,
        dtype="float32",
    )
    assert set(models) == {"qwen2.5-0.5b", "mine-step-9000"}
    benchmarks = read_benchmarks(folder / "benchmarks.tsv", run="my-run")
    assert benchmarks["arc_easy"] == Benchmark(benchmark="arc_easy", category="QA", metric="acc_norm,none")
    assert benchmarks["capitals"].include_path == "my_tasks"


def test_the_sheet_of_checkpoints_is_read(folder):
    (folder / "points.tsv").write_text(block("checkpoint\titeration"), encoding="utf-8")
    (folder / "models.tsv").write_text("model\tpath\tcheckpoints\nm\tfolder\tpoints.tsv\n", encoding="utf-8")
    points = read_models(folder / "models.tsv", run="my-run")["m"].checkpoints
    assert [(point.checkpoint, point.iteration, point.tokens_b, point.subfolder) for point in points] == [
        ("step-1000", 1000, 2.1, "checkpoint-1000"),
        ("step-2000", 2000, 4.2, "checkpoint-2000"),
        ("final", None, None, None),
    ]


def test_the_configuration_is_read(folder, monkeypatch):
    (folder / "my.yaml").write_text(
        block("# my.yaml").replace("my_models", "models").replace("my_benchmarks", "benchmarks"), encoding="utf-8"
    )
    monkeypatch.chdir(folder)
    run = load_run("my.yaml")
    assert run.name == "my-run" and len(run.models) == 2 and len(run.benchmarks) == 2


def test_every_documented_column_exists_and_every_column_is_documented():
    for heading, kind in (("## Models", Model), ("## Benchmarks", Benchmark)):
        documented, fields = table_columns(heading), set(kind.model_fields)
        assert fields <= documented
        assert documented - fields <= {name for names in kind.other_names.values() for name in names}


def test_the_task_is_a_task(folder, monkeypatch):
    tasks = pytest.importorskip("lm_validity.cells.tasks.tasks", reason="lm_eval is not installed (extra `cells`)")
    text = block("# my_tasks/capitals.yaml")
    local = folder / "my_tasks"
    local.mkdir()
    (local / "capitals.yaml").write_text(text, encoding="utf-8")
    document = re.search(r'^    (\{"country".*\})$', GUIDE, re.MULTILINE)[1]
    for name in yaml.safe_load(text)["dataset_kwargs"]["data_files"].values():
        (folder / name).write_text(document + "\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(folder / "cache"))
    finding = importlib.import_module("lm_validity.cells.tasks.finding")
    task = tasks.load_task(finding.find_task("capitals", Path("my_tasks")))
    row = next(iter(task.training_docs()))
    assert row == json.loads(document)
    assert task.doc_to_text(row) == "Question: What is the capital of Peru?\nAnswer:"
    assert task.doc_to_choice(row)[task.doc_to_target(row)] == "Lima"


@pytest.mark.parametrize(("sheet", "facts"), [("models", ModelFacts), ("benchmarks", BenchmarkFacts)])
def test_the_page_on_tables_has_every_column_that_reports_read(sheet, facts):
    page = (GUIDE_FILE.parents[1] / "reference" / "tables.md").read_text(encoding="utf-8")
    section = page.partition(f"## The {sheet} sheet, as reports read it")[2].partition("\n## ")[0]
    named = {word for row in re.findall(r"^\| (`.*)", section, re.MULTILINE) for word in re.findall(r"`(\w+)`", row)}
    assert set(facts.model_fields) <= named
    others = {other for names in facts.other_names.values() for other in names}
    assert others <= named | {word.lower() for word in named}
