"""Cases from the outside world: what was tried, and what must come out. README.md beside this file says how."""

import functools
import importlib.util
import math
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer.main
import yaml

from lm_validity.cli import main

CASES = Path(__file__).parent / "cases"
KEYS = {"kind", "title", "source", "first", "commands", "asks", "exit", "expect", "refused", "slow", "tests"}
TESTS = Path(__file__).parent.parent
FIRST = ("right", "refused", "wrong")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, ten times faster


@functools.cache
def read_cases() -> dict[Path, dict[str, Any]]:
    """What each case.yaml says, in the order of their folders."""
    return {
        path: yaml.load(path.read_text(encoding="utf-8"), LOADER)  # one of the two safe ones
        for path in sorted(CASES.glob("*/case.yaml"))
    }


def cases(*, tried: bool = False) -> list[Any]:
    """Each folder as a parameter of the test, with its marks; `tried`: those that are tried here."""
    found = []
    for path, case in read_cases().items():
        if tried and not case.get("commands") and not (path.parent / "check.py").exists():
            continue  # `tests` names where
        marks = [pytest.mark.slow] if case.get("slow") else []
        found.append(pytest.param(path.parent, case, id=path.parent.name, marks=marks))
    return found


@pytest.fixture(scope="module", autouse=True)
def one_command_line():
    """The command line is put together once, not for each command of each case."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", functools.cache(typer.main.get_command))
        yield


@pytest.mark.parametrize(("folder", "case"), cases(tried=True))
def test_what_was_tried_comes_out_right(folder, case, tmp_path, monkeypatch, capsys):
    """The commands of a case give its values, or refuse it in one line that names what is wrong."""
    here, out = tmp_path / "case", tmp_path / "out"
    shutil.copytree(folder, here, ignore=shutil.ignore_patterns("__pycache__"))
    (here / "case.yaml").unlink()
    monkeypatch.chdir(tmp_path)
    said = ""
    commands = case.get("commands", [])
    if case.get("asks"):
        commands = [reading(case["asks"], commands[0].format(case=here, out=out), monkeypatch, capsys)]
        assert not out.exists(), "a question has written something"
    for number, command in enumerate(commands, 1):
        words = [word.format(case=here, out=out) for word in shlex.split(command)]
        code = called(words, monkeypatch)
        output = capsys.readouterr()
        said += output.out + output.err
        wanted = case.get("exit", 0) if number == len(commands) else 0
        assert code == wanted, f"{command}: exit {code}, not {wanted}\n{output.out}\n{output.err}"
    if case.get("refused"):
        line = output.err.strip()
        assert line.startswith("Error: ") or line.startswith("error:"), line
        missing = [word for word in case["refused"] if str(word) not in " ".join(line.split())]
        assert not missing, f"the refusal does not name {missing}: {line}"
    for expected in case.get("expect", []):
        compare(expected, out, said)
    if (folder / "check.py").exists():
        module_of(folder / "check.py").check(here, out)


def reading(number: int, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The command of a reading that a question prints, as it stands there."""
    assert called(shlex.split(command), monkeypatch) == 2
    printed = re.findall(r"^\s+lm-validity (.* --columns .*)$", capsys.readouterr().err, re.M)
    return printed[number - 1].replace("{", "{{").replace("}", "}}")


def called(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the command line with these words."""
    monkeypatch.setattr(sys, "argv", ["lm-validity", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def compare(expected: dict[str, Any], out: Path, said: str) -> None:
    """Compare one entry of `expect` with what is there. Raises AssertionError."""
    if "file" in expected:
        assert (out / expected["file"]).exists(), f"{expected['file']} is not there"
        return
    if "says" in expected:
        flat = " ".join(said.split())
        missing = [word for word in expected["says"] if str(word) not in flat]
        assert not missing, f"nothing says {missing}:\n{said}"
        return
    rows = matching(out / expected.get("rows", expected.get("count", "")), expected["where"])
    if "count" in expected:
        assert len(rows) == expected["value"], f"{len(rows)} rows answer {expected['where']}:\n{rows}"
        return
    assert len(rows) == 1, f"{len(rows)} rows answer {expected['where']}:\n{rows}"
    column = expected.get("column", "value")
    value = rows.iloc[0][column]
    if expected["value"] is None:
        assert value is None or pd.isna(value), f"{expected['where']}: {value}, and should be missing"
        assert "reason" not in rows or rows.iloc[0]["reason"], f"{expected['where']}: no reason"
    elif isinstance(expected["value"], str):
        assert value == expected["value"]
    else:
        assert value is not None and math.isclose(value, expected["value"], abs_tol=expected.get("within", 1e-6)), (
            f"{expected['where']}: {value}, not {expected['value']} ({expected['how']})"
        )


def matching(path: Path, where: dict[str, Any]) -> pd.DataFrame:
    """The rows of a Parquet, CSV or TSV file that have these values; null asks for a missing one."""
    if path.suffix == ".parquet":
        rows = pd.read_parquet(path)
    else:
        rows = pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", keep_default_na=False)
    for column, wanted in where.items():
        assert column in rows, f"{path.name} has no column {column}: {list(rows)}"
        values = rows[column]
        rows = rows[values.isna() | (values == "") if wanted is None else values == wanted]
    return rows


def module_of(path: Path) -> Any:
    """A case's check.py as a module."""
    spec = importlib.util.spec_from_file_location(f"contact_{path.parent.name.replace('-', '_')}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("folder", "case"), cases())
def test_a_case_says_what_it_is(folder, case):
    """Each case has kind, title, source and first outcome, and something that can fail."""
    assert set(case) <= KEYS, f"unknown keys {set(case) - KEYS}"
    assert all(case.get(key) for key in ("kind", "title", "source")), folder.name
    assert case["first"] in FIRST
    assert case.get("expect") or case.get("refused") or case.get("tests") or (folder / "check.py").exists()
    for test in case.get("tests", []):
        path, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8"), f"{folder.name}: no test {test}"
    assert (case.get("exit", 0) == 2) == bool(case.get("refused"))
    for expected in case.get("expect", []):
        assert "value" not in expected or expected.get("how"), f"{folder.name}: say how the value was computed"
