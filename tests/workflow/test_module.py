"""The workflow as a module of another one, and in a clone in which the package is not installed."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.workflow.conftest import ROOT, Project
from tests.workflow.warm_programs import BARE_PROGRAM

MADE_UP = Path(__file__).with_name("replay")
OUTER = """
configfile: "outer.yaml"

module validity:
    snakefile: "{snakefile}"
    config: config["validity"]
    prefix: "study"

use rule * from validity as validity_*
"""
PLACE = "study/results/replay"
CELL = f"{PLACE}/cells/evaluate_model/oak-s/riddles.final.plain.test.json"
LOCK = ".snakemake/locks/0.output.lock"


class Outer(Project):
    """A workflow of somebody else's that has this one as a module, under a prefix and with other names of rules."""

    def __init__(self, folder: Path, configuration: dict):
        super().__init__(folder)
        (folder / "Snakefile").write_text(OUTER.format(snakefile=ROOT / "workflow/Snakefile"))
        self.configure(configuration)

    def configure(self, configuration: dict) -> None:
        (self.folder / "outer.yaml").write_text(json.dumps({"validity": configuration}))

    def snakemake_command(self, *arguments: str) -> tuple[str, ...]:
        return ("snakemake", *arguments)

    def configuration(self) -> dict:
        return json.loads((self.folder / PLACE / "configuration.json").read_text())


@pytest.fixture
def outer(tmp_path) -> Outer:
    """One made-up model and benchmark, served scores."""
    shutil.copytree(MADE_UP, tmp_path / "replay")
    for sheet in ("models.tsv", "benchmarks.tsv"):
        path = tmp_path / "replay" / sheet
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    return Outer(tmp_path, yaml.safe_load((MADE_UP / "replay.yaml").read_text()))


def test_a_cell_is_computed_under_the_prefix(outer):
    """No handler of a module runs: the jobs' configuration is there all the same, and only where jobs run."""
    outer.snakemake(CELL, "-n")
    assert not (outer.folder / "study").exists()
    outer.snakemake(CELL)
    assert json.loads((outer.folder / CELL).read_text())["cells"][0]["status"] == "done"
    assert outer.configuration()["results"] == "study/results" and not (outer.folder / "results").exists()
    assert (outer.folder / PLACE / "controller.json").is_file()
    sheets = json.loads((outer.folder / PLACE / "sheets.json").read_text())
    assert sheets["replay/models.tsv"] == (outer.folder / "replay/models.tsv").read_text()
    done = outer.lm_validity("status", "--configfile", f"{PLACE}/configuration.json", "--no-matrix")
    assert re.search(r"score models +2 ", done.stdout)


def test_a_run_that_is_locked_keeps_its_configuration(outer):
    """Another Snakemake is at work on these results: its jobs still read the configuration it started with."""
    settings = outer.folder / PLACE / "configuration.json"
    settings.parent.mkdir(parents=True)
    settings.write_text("its own")
    lock = outer.folder / LOCK
    lock.parent.mkdir(parents=True)
    lock.write_text(f"{CELL}\n")
    done = outer.snakemake(CELL, code=1)
    assert "locked" in done.stderr and settings.read_text() == "its own"


@pytest.mark.slow
def test_the_miniature_world_runs_as_a_module(tmp_path):
    """Models and benchmarks that the workflow makes itself are found under the prefix too."""
    settings = yaml.safe_load((ROOT / "config/test.yaml").read_text())
    outer = Outer(tmp_path, settings)
    outer.snakemake("validity_all")
    results = tmp_path / "study/results/test"
    assert (results / "report/index.html").is_file() and not (tmp_path / "results").exists()
    done = outer.snakemake("validity_all", "-n")
    assert "Nothing to be done" in done.stdout + done.stderr


def test_a_clone_without_the_package_is_linted_and_does_not_run(project):
    """As the workflow catalog lints it: with Snakemake alone."""
    blocked = project.folder / "blocked"
    (blocked / "lm_validity").mkdir(parents=True)
    (blocked / "lm_validity/__init__.py").write_text("raise ImportError('no lm_validity')")
    code = f"import sys\nsys.path.insert(0, {str(blocked)!r})\nfrom snakemake.cli import main\nmain()"
    command = (BARE_PROGRAM, code, "--snakefile", str(ROOT / "workflow/Snakefile"))
    done = project.run(*command, "--lint")
    assert "good condition" in done.stderr + done.stdout
    done = project.run(*command, "-n", code=1)
    assert "lm_validity cannot be imported (no lm_validity). Hint: " in done.stderr + done.stdout
