"""The shell lines of the pipelines in docs/how_to/gate.md, as a shell of GitHub or GitLab runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.unit.site.test_comparison import answers, rows_of, table

from lm_validity.cli.warm import warm_commands

PAGE = (Path(__file__).parents[3] / "docs" / "how_to" / "gate.md").read_text()


def block(title):
    """The indented block under a heading, as YAML."""
    lines = PAGE.partition(f"## {title}\n")[2].splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("    "))
    own = []
    for line in lines[start:]:
        if line and not line.startswith("    "):
            break
        own.append(line[4:])
    return yaml.safe_load("\n".join(own))


def github():
    # GitHub runs each step by itself: `bash -e`; a step with `always()` also after a failure
    steps = block("A GitHub Action")["jobs"]["gate"]["steps"]
    return [(step["run"], step.get("if") == "always()") for step in steps if "run" in step]


def gitlab():
    return [("\n".join(block("A GitLab job")["gate"]["script"]), False)]


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A folder whose `lm-validity` starts warm."""
    imported = ("lm_validity.cli.reports", "lm_validity.site.compare")
    with warm_commands(
        tmp_path_factory.mktemp("warm") / "bin",
        dict(os.environ),
        ("lm_validity.cli", *imported, "tests.workflow.warm_programs"),
    ) as bin:
        yield bin


@pytest.mark.parametrize("steps", [github, gitlab])
@pytest.mark.parametrize(("lost", "won", "code"), [(0, 0, 0), (60, 4, 1), (12, 12, 3)])
def test_its_lines_pass_fail_and_do_not_know(warm, tmp_path, steps, lost, won, code):
    table(tmp_path / "runs" / "main", rows_of("ant", "sums", answers(200)))
    table(tmp_path / "runs" / "candidate", rows_of("ant", "sums", answers(200, lost, won)))
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "pip").write_text("#!/bin/sh\nexit 0\n")  # what it would install is what is tested
    (binaries / "pip").chmod(0o755)
    path = f"{binaries}:{warm}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    ended = 0
    for line, always in steps():
        if ended and not always:
            continue
        done = subprocess.run(["bash", "-e", "-c", line], cwd=tmp_path, env=environment, check=False)
        ended = ended or done.returncode
    assert ended == code
    assert (tmp_path / "gate.xml").is_file()
    if steps is github:
        assert "| sums |" in (tmp_path / "summary.md").read_text()
    else:
        assert block("A GitLab job")["gate"]["allow_failure"] == {"exit_codes": [3]}
