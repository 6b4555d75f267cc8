"""README's first command writes a page of real data, and its findings are those in README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.published


def test_findings_in_readme_are_those_of_the_published_page(tmp_path):
    program = Path(sys.executable).with_name("lm-validity")
    command = [program, "report", "examples/published", "--output", tmp_path / "page"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    printed = [line.rstrip() for line in re.findall(r"\n {4}(Agreement  .*?)\n\n", README, re.DOTALL)[0].split("\n")]
    findings = [line.removeprefix("    ") for line in printed]
    assert len(findings) >= 4
    assert "\n".join(findings) in done.stdout
    assert (tmp_path / "page" / "index.html").is_file()


def test_what_readme_shows_can_be_pasted():
    lines = re.findall(r"^ {4}(\S.*)$", README, re.MULTILINE)
    assert lines and not [line for line in lines if "<" in line or "path/to" in line]
