"""The sheets and the task that docs/how_to/own_models_and_benchmarks.md shows are read as they stand there, and
docs/reference/tables.md has the columns that reports read."""

import importlib
import json
import re
from pathlib import Path

import pytest
import yaml

from lm_validity.config.load import load_run
from lm_validity.config.sections import Experiment
from lm_validity.config.sheets import Benchmark, BenchmarkFacts, BiasModel, Model, ModelFacts, Task, read_models

GUIDE_FILE = Path(__file__).parents[2] / "docs" / "how_to" / "own_models_and_benchmarks.md"
GUIDE = GUIDE_FILE.read_text(encoding="utf-8")


def block(first: str, page: str = GUIDE) -> str:
    """The indented block whose first line begins with `first`, without the indentation."""
    lines = page[page.index(f"    {first}") :].splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("    ")), len(lines))
    return "\n".join(line[4:] for line in lines[:end]) + "\n"


def table_columns(heading: str, page: str = GUIDE) -> set[str]:
    """The names in the first cells of the tables under a heading."""
    section = page[page.index(f"\n{heading}\n") + 1 :].split("\n## ")[0]
    return set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, first in (("my_models.tsv", "model\tpath"), ("my_benchmarks.tsv", "benchmark\ttask")):
        Path(name).write_text(block(first), encoding="utf-8")
    Path("my.yaml").write_text(block("# my.yaml"), encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_configuration_and_its_sheets_are_read():
    run = load_run("my.yaml")
    assert run.name == "my-run" and set(run.models) == {"qwen2.5-0.5b", "mine-step-9000"}
    qwen = {"model": "qwen2.5-0.5b", "path": "Qwen/Qwen2.5-0.5B", "family": "Qwen", "dtype": "float32"}
    assert run.models["qwen2.5-0.5b"] == Model(**qwen, parameters_b=0.494, tokens_b=18_000)
    arc = Benchmark(benchmark="arc_easy", category="QA", metric="acc_norm,none")
    assert run.benchmarks["arc_easy"] == arc and run.benchmarks["capitals"].include_path == "my_tasks"


@pytest.mark.usefixtures("folder")
def test_the_sheet_of_checkpoints_is_read():
    Path("points.tsv").write_text(block("checkpoint\titeration"), encoding="utf-8")
    Path("models.tsv").write_text("model\tpath\tcheckpoints\nm\tfolder\tpoints.tsv\n", encoding="utf-8")
    points = read_models("models.tsv", run="my-run")["m"].checkpoints
    first = ("step-1000", 1000, 2.1, "checkpoint-1000")
    found = [(point.checkpoint, point.iteration, point.tokens_b, point.subfolder) for point in points]
    assert found == [first, ("step-2000", 2000, 4.2, "checkpoint-2000"), ("final", None, None, None)]


def test_the_guide_of_the_bias_study_shows_what_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide = (GUIDE_FILE.parent / "bias_study.md").read_text(encoding="utf-8")
    shown = {"my_language_models.tsv": "language_model\t", "my_tasks.tsv": "task\t", "my.yaml": "# my.yaml"}
    for name, first in shown.items():
        Path(name).write_text(block(first, guide), encoding="utf-8")
    run = load_run("my.yaml")
    assert list(run.tasks) == ["news", "tickets"] and run.tasks["tickets"].text == ("subject", "body")
    assert run.tasks["tickets"].labels == ("billing", "technical") and run.tasks["news"].labels == ()  # words, numbers
    assert set(BiasModel.model_fields) <= table_columns("## Language models", guide)
    assert set(Task.model_fields) <= table_columns("## Tasks", guide)
    keys = (GUIDE_FILE.parents[1] / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert set(Experiment.model_fields) == table_columns("## `bias.experiments.<name>`", keys)


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
