"""An installation without extras: reports from score files, and one line where a command needs more."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lm_validity.cli import EXTRAS, main

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from importlib.machinery import PathFinder
hidden, find = sys.argv.pop(1).split(","), PathFinder.find_spec
PathFinder.find_spec = lambda name, *given: None if name.partition(".")[0] in hidden else find(name, *given)
from lm_validity.cli import main
main()
"""


def test_a_report_needs_no_extra(tmp_path):
    """Pages with their pictures, tables and results.parquet are there."""
    arguments = ("report", ROOT / "tests/fixtures/lm_eval", "--output", "site", "--resamples", "20")
    command = [sys.executable, "-c", PROGRAM, ",".join(EXTRAS), *map(str, arguments)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("findings --all site")
    page = json.loads((tmp_path / "site" / "agreement" / "page.json").read_text())
    assert any(section["pictures"] for section in page["sections"])
    names = ("index.html", "agreement/index.html", "agreement/results.parquet")
    assert all((tmp_path / "site" / name).is_file() for name in names)


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("lm_eval", "cells", ("lm-eval", "--help")),
        ("sklearn", "cells", ("simulate", "pca", "--output", "pca", "--splits", "2")),
        ("snakemake", "workflow", ("plan", "run", "--goal", "rank=2")),
    ],
)
def test_a_command_names_the_extra_that_it_needs(module, extra, words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in (module, *(loaded for loaded in sys.modules if loaded.startswith(f"{module}."))):
        monkeypatch.setitem(sys.modules, name, None)  # of an earlier test, too
    monkeypatch.setattr(sys, "argv", ["lm-validity", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1 and f"needs {module}" in error
    assert f"lm-validity[{extra}]" in error and list(tmp_path.iterdir()) == []


def test_every_extra_that_is_named_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])
