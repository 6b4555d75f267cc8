"""What documents show is what commands make today: README's findings, the tutorial's numbers, the example cards."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.published


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> tuple[Path, str]:
    """The page that README's first command writes, and what the command prints."""
    program, folder = Path(sys.executable).with_name("lm-validity"), tmp_path_factory.mktemp("readme") / "page"
    command = [program, "report", "examples/published", "--output", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return folder, done.stdout


def test_findings_in_readme_are_those_of_the_published_page(page):
    printed = [line.rstrip() for line in re.findall(r"\n {4}(Models  .*?)\n\n", README, re.DOTALL)[0].split("\n")]
    findings = [line.removeprefix("    ") for line in printed]
    assert len(findings) >= 4
    assert "\n".join(findings) in page[1]
    assert (page[0] / "index.html").is_file()


def test_the_numbers_of_the_tutorial_are_those_of_the_page(page, monkeypatch):
    """Rewrite them with: python docs/generate_examples.py"""
    monkeypatch.syspath_prepend(ROOT / "docs")
    from generate_examples import TUTORIAL, tutorial

    text = TUTORIAL.read_text(encoding="utf-8")
    assert text.count("<!-- . -->") > 20
    assert tutorial(page[0]) == text


def test_what_readme_shows_can_be_pasted():
    lines = re.findall(r"^ {4}(\S.*)$", README, re.MULTILINE)
    assert lines and not [line for line in lines if "<" in line or "path/to" in line]


@pytest.mark.slow
def test_example_cards_are_up_to_date():
    """Rewrite them with: python docs/generate_examples.py"""
    command = [sys.executable, ROOT / "docs" / "generate_examples.py", "--check"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
