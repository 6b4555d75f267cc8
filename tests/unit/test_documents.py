"""The documents: reference pages are what the code says, links of the pages outside docs/ lead somewhere (within docs/
`make lint` builds the site), and what guides show is read as it stands there: sheets, configurations, a task.
"""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from lm_validity.config.load import load_run
from lm_validity.config.sections import Experiment
from lm_validity.config.sheets import Benchmark, BenchmarkFacts, BiasModel, Model, ModelFacts, Task, read_models

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "config/README.md", "envs/README.md")


def test_reference_pages_are_up_to_date():
    """Rewrite them with: python docs/generate_reference.py"""
    command = [sys.executable, ROOT / "docs" / "generate_reference.py", "--check"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


GUIDES = sorted(page for folder in ("tutorials", "how_to") for page in (ROOT / "docs" / folder).glob("*.md"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_every_tutorial_and_how_to_opens_with_what_comes_out(guide):
    """A picture that a command makes, or what a command prints, before any text."""
    opening = guide.read_text(encoding="utf-8").split("\n\n")[1]
    if picture := re.match(r"!\[[^]]+\]\((\S+)\)$", opening):
        path = (guide.parent / picture[1]).resolve()
        assert path.stat().st_size < 200_000
        assert path.suffix == ".svg" or path.stem in json.loads(
            (path.parent / "pages.json").read_text(encoding="utf-8")
        )
    else:
        assert all(line.startswith("    ") for line in opening.splitlines())


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and not target.startswith(("http:", "https:"))]
    assert [target for target in local if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_one_version_everywhere():
    from lm_validity import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    latest = re.search(r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert latest.groups() == (__version__, str(citation["date-released"]))
    assert project["version"] == citation["version"] == __version__


def test_every_command_is_listed_once():
    from lm_validity.cli import FURTHER, GROUPS, register_commands

    root = typer.main.get_command(register_commands()).commands
    named = [*FURTHER, *(name for names in GROUPS.values() for name in names)]
    assert len(named) == len(set(named)) and set(named) <= set(root)


def test_every_command_and_parameter_has_help_in_full():
    from lm_validity.cli import register_commands

    def check(command, path: str) -> None:
        assert command.get_short_help_str(limit=200).endswith((".", "?")), path
        for parameter in command.params:
            assert parameter.name == "help" or parameter.help, f"{path}: {parameter.name}"
        for name, one in getattr(command, "commands", {}).items():
            check(one, f"{path} {name}")

    check(typer.main.get_command(register_commands()), "lm-validity")


GUIDE_FILE = ROOT / "docs" / "how_to" / "own_models_and_benchmarks.md"
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
