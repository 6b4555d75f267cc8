"""The documents: reference pages are what the code says, and links of the pages outside docs/ lead somewhere.

Links within docs/ are checked by `make lint`, which builds the site.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

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
