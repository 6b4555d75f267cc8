"""A wrong command line ends with exit code 2 and one line that has a hint."""

import errno
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from lm_validity.cli import EXTRAS, app, main, study
from lm_validity.cli.options import DEMO, default_configfile
from lm_validity.config.sections import Reports, Screening
from lm_validity.template.folder import make_study

ROOT = Path(__file__).parents[3]

FILES = ("--scores", "s.parquet", "--models", "m.tsv", "--output", "out")


@pytest.fixture
def end(monkeypatch, capsys, tmp_path):
    """Runs a command in a folder of its own: its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # `python -m pytest` would be the command's name

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lm-validity", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("report", "signal", *FILES, "--convention", "papre"), ("--convention", "'papre'")),
        (("report", "signal", *FILES, "--selection", "some"), ("--selection", "'some'", "'e2lm'")),
        (("report", "signal", *FILES, "--base-window", "200,100"), ("base_window", "'200,100'")),
        (("report", "signal", *FILES, "--resamples", "-1"), ("resamples", "value -1")),
        (("report", "bias", "--trials", "t", "--output", "out", "--sampler", "gibbs"), ("--sampler", "'gibbs'")),
        (("report", "bias", "--trials", "t", "--output", "out", "--formula", "equation"), ("--formula", "'equation'")),
        (("report", "bias", "--output", "out"), ("--trials",)),
        (("import", "e2lm", "curves.json", "--output", "out"), ("curves.json: no such file",)),
        (("reprot",), ("'reprot'",)),
    ],
)
def test_one_line_names_the_option_and_the_value(end, tmp_path, words, named):
    code, out, error = end(*words)
    assert code == 2 and out == "" and error.count("\n") == 1
    assert error.startswith("Error: ") and "Hint: " in error and all(word in error for word in named)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (("report", "https://hub/data", "--output", "o"), "download it first"),
        (("report", "-", "--output", "o"), "write it to a file"),
        (("report", "runs/*.json", "--output", "o"), "name the folder"),
        (("report", "rums/a", "--output", "o"), "did you mean 'runs/a'?"),
        (("report", "there/a", "--output", "o"), "there is no folder 'there'"),
        (("report", "runs", "page"), "--output"),
        (("report", "runs", "--output", "o"), "name result files"),
        (("import", "runz", "--output", "o"), "did you mean 'runs'?"),
        (("compare", "runs", "a", "b"), "compare a b runs"),
        (("compare", "runs", "runs/"), "name two"),
        (("compare", "run", "runs"), "did you mean 'runs'?"),
        (("compare", "a", "b", "runs", "--markdown"), "`lm-validity compare --help`"),
        (("report", "agreement", *FILES, "--benchmarks", "b.tsv"), "check the path"),
    ],
)
def test_the_hint_for_a_path_where_nothing_is_can_be_followed(end, tmp_path, words, way):
    Path("runs").mkdir()
    code, out, error = end(*words)
    assert code == 2 and out == "" and error.count("\n") == 1 and way in error.partition("Hint: ")[2]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_home_folder_that_the_shell_did_not_put_in(end, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "s.csv").write_text("model,mmlu\na,0.5\n")
    assert end("import", "~/s.csv", "--output=~/tables")[0] == 0
    assert (tmp_path / "tables" / "scores.parquet").is_file()


def test_a_sheet_of_other_columns_is_not_taken_for_one(end, tmp_path):
    Path("s.csv").write_text("model,mmlu,piqa\na,0.5,0.6\nd,0.4,0.7\n")
    code, _, error = end("report", "s.csv", "--models", "s.csv", "--output", "o")
    assert code == 2 and "s.csv" in error and "family" in error and not Path("o").exists()
    Path("own.csv").write_text("model,team\na,north\nd,2\n")  # columns of the user's own say nothing, and do no harm
    assert end("report", "s.csv", "--models", "own.csv", "--output", "o")[0] == 0


def test_help_and_no_arguments(end):
    code, out, _ = end("report", "signal", "--help")
    assert code == 0 and "--base-window" in out
    code, _, error = end("report")
    assert code == 2 and "Commands:" in error
    assert end("--version")[:2] == (0, f"{version('lm-validity')}\n")


@pytest.mark.parametrize("output", ["taken", "taken/below"])
def test_an_output_that_is_no_folder(end, tmp_path, output):
    Path("s.csv").write_text("model,mmlu\na,0.5\n")
    Path("taken").write_text("a file")
    code, _, error = end("import", "s.csv", "--output", output)
    assert code == 2 and error.startswith("Error: taken") and error.count("\n") == 1 and "Hint: " in error
    assert Path("taken").read_text() == "a file"


@pytest.mark.parametrize("table", [1, 2])
def test_a_full_disk(end, monkeypatch, tmp_path, table):
    """The first file that is written, and the second."""
    Path("s.csv").write_text("model,mmlu\na,0.5\n")
    replace, calls = os.replace, []

    def full(source, target):
        calls.append(target)
        if len(calls) == table:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    code, _, error = end("import", "s.csv", "--output", "out")
    assert code == 2 and f"{calls[-1]}: No space left" in error and error.count("\n") == 1
    assert not list(tmp_path.rglob(".*")) and not Path("out").exists()


def test_the_defaults_are_the_configurations(end):
    _, out, _ = end("report", "screening", "--help")
    assert all(f"default: {value}" in " ".join(out.split()) for value in Screening().model_dump().values())
    _, out, _ = end("report", "signal", "--help")
    shown = " ".join(out.split())
    assert f"default: {Reports().resamples}" in shown
    assert all(f"default: {word}" in shown for word in ("code", "stable", "100,200", "220,1000", "0.5,0.1,0.4"))
    _, out, _ = end("report", "DIR_OR_FILES...", "--help")
    assert f"default: {Reports().resamples}" in " ".join(out.split())


def test_an_option_before_a_subcommand_of_plan_is_refused(end):
    """It would be an option of `plan` itself, which does not run."""
    code, _, error = end("plan", "--seed", "1", "run", "--goal", "rank=2")
    assert code == 2 and "--seed" in error and "plan run" in error


def test_help_lists_at_most_16_commands_and_nothing_of_the_workflow(end):
    code, out, _ = end("--help")
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", out, re.MULTILINE)
    assert code == 0 and len(listed) == len(set(listed)) <= 16
    assert {"report", "import", "plan", "status"} <= set(listed)
    assert not {"merge", "evaluate-model", "miniature", "next", "rounds", "add-model"} & set(listed)
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert len(names) == len(set(names)), "however often the command line was run in this process"


def test_the_exit_code_of_control_c(end, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "load_run", interrupted)
    assert end("status")[0] == 130


# ---- an installation without extras: reports from score files, and one line where a command needs more -------

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
def test_a_command_names_the_extra_that_it_needs(end, module, extra, words, monkeypatch, tmp_path):
    for name in (module, *(loaded for loaded in sys.modules if loaded.startswith(f"{module}."))):
        monkeypatch.setitem(sys.modules, name, None)  # of an earlier test, too
    code, _, error = end(*words)
    assert code == 2 and error.count("\n") == 1 and f"needs {module}" in error
    assert f"lm-validity[{extra}]" in error and list(tmp_path.iterdir()) == []


def test_every_extra_that_is_named_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])


def test_without_a_configuration_it_is_the_one_that_snakemake_reads_there(tmp_path):
    make_study(tmp_path / "study")
    assert default_configfile(tmp_path / "study") == Path("study.yaml")
    assert default_configfile(ROOT) == DEMO and default_configfile(tmp_path) == DEMO
    (tmp_path / "Snakefile").write_text('configfile: "of_another_workflow.yaml"\n')
    assert default_configfile(tmp_path) == DEMO
