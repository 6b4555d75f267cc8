"""A wrong command line ends with exit code 2 and one line that has a hint."""

import errno
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from lm_validity.cli import app, main, study
from lm_validity.config.sections import Reports, Screening

FILES = ("--scores", "s.parquet", "--models", "m.tsv", "--output", "out")


def end(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["lm-validity", *words])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # `python -m pytest` would be the command's name
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


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
def test_one_line_names_the_option_and_the_value(monkeypatch, capsys, tmp_path, words, named):
    monkeypatch.chdir(tmp_path)
    code, out, error = end(monkeypatch, capsys, *words)
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
def test_the_hint_for_a_path_where_nothing_is_can_be_followed(monkeypatch, capsys, tmp_path, words, way):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    code, out, error = end(monkeypatch, capsys, *words)
    assert code == 2 and out == "" and error.count("\n") == 1 and way in error.partition("Hint: ")[2]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_home_folder_that_the_shell_did_not_put_in(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "s.csv").write_text("model,mmlu\na,0.5\n")
    assert end(monkeypatch, capsys, "import", "~/s.csv", "--output=~/tables")[0] == 0
    assert (tmp_path / "tables" / "scores.parquet").is_file()


def test_a_sheet_of_other_columns_is_not_taken_for_one(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text("model,mmlu,piqa\na,0.5,0.6\nd,0.4,0.7\n")
    code, _, error = end(monkeypatch, capsys, "report", "s.csv", "--models", "s.csv", "--output", "o")
    assert code == 2 and "s.csv" in error and "family" in error and not Path("o").exists()
    Path("own.csv").write_text("model,team\na,north\nd,2\n")  # columns of the user's own say nothing, and do no harm
    assert end(monkeypatch, capsys, "report", "s.csv", "--models", "own.csv", "--output", "o")[0] == 0


def test_help_and_no_arguments(monkeypatch, capsys):
    code, out, _ = end(monkeypatch, capsys, "report", "signal", "--help")
    assert code == 0 and "--base-window" in out
    code, _, error = end(monkeypatch, capsys, "report")
    assert code == 2 and "Commands:" in error
    assert end(monkeypatch, capsys, "--version")[:2] == (0, f"{version('lm-validity')}\n")


@pytest.mark.parametrize("output", ["taken", "taken/below"])
def test_an_output_that_is_no_folder(monkeypatch, capsys, tmp_path, output):
    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text("model,mmlu\na,0.5\n")
    Path("taken").write_text("a file")
    code, _, error = end(monkeypatch, capsys, "import", "s.csv", "--output", output)
    assert code == 2 and error.startswith("Error: taken") and error.count("\n") == 1 and "Hint: " in error
    assert Path("taken").read_text() == "a file"


@pytest.mark.parametrize("table", [1, 2])
def test_a_full_disk(monkeypatch, capsys, tmp_path, table):
    """The first file that is written, and the second."""
    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text("model,mmlu\na,0.5\n")
    replace, calls = os.replace, []

    def full(source, target):
        calls.append(target)
        if len(calls) == table:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    code, _, error = end(monkeypatch, capsys, "import", "s.csv", "--output", "out")
    assert code == 2 and f"{calls[-1]}: No space left" in error and error.count("\n") == 1
    assert not list(tmp_path.rglob(".*")) and not Path("out").exists()


def test_without_the_packages_of_cells_a_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    code, _, error = end(monkeypatch, capsys, "lm-eval", "--help")
    assert code == 2 and error.count("\n") == 1 and "needs lm_eval" in error and "lm-validity[cells]" in error


def test_the_defaults_are_the_configurations(monkeypatch, capsys):
    _, out, _ = end(monkeypatch, capsys, "report", "screening", "--help")
    assert all(f"default: {value}" in " ".join(out.split()) for value in Screening().model_dump().values())
    _, out, _ = end(monkeypatch, capsys, "report", "signal", "--help")
    shown = " ".join(out.split())
    assert f"default: {Reports().resamples}" in shown
    assert all(f"default: {word}" in shown for word in ("code", "stable", "100,200", "220,1000", "0.5,0.1,0.4"))
    _, out, _ = end(monkeypatch, capsys, "report", "DIR_OR_FILES...", "--help")
    assert f"default: {Reports().resamples}" in " ".join(out.split())


def test_an_option_before_a_subcommand_of_plan_is_refused(monkeypatch, capsys):
    """It would be an option of `plan` itself, which does not run."""
    code, _, error = end(monkeypatch, capsys, "plan", "--seed", "1", "run", "--goal", "rank=2")
    assert code == 2 and "--seed" in error and "plan run" in error


def test_help_lists_at_most_16_commands_and_nothing_of_the_workflow(monkeypatch, capsys):
    code, out, _ = end(monkeypatch, capsys, "--help")
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", out, re.MULTILINE)
    assert code == 0 and len(listed) == len(set(listed)) <= 16
    assert {"report", "import", "plan", "status"} <= set(listed)
    assert not {"merge", "evaluate-model", "miniature", "next", "rounds", "add-model"} & set(listed)
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert len(names) == len(set(names)), "however often the command line was run in this process"


def test_the_exit_code_of_control_c(monkeypatch, capsys, tmp_path):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "load_run", interrupted)
    assert end(monkeypatch, capsys, "status")[0] == 130
