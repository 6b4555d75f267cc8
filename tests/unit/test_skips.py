"""A skip in CI that nobody listed fails the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(("ci", "reason", "code"), [
    ("true", "no chromium", 1), ("true", "REAL_DATA names no folder of clones", 0), ("", "no chromium", 0),
])  # fmt: skip
def test_a_skip_in_ci_is_listed_or_fails(tmp_path, ci, reason, code):
    (tmp_path / "tests/published").mkdir(parents=True)
    for name in ("conftest.py", "skips_in_ci.txt"):
        (tmp_path / "tests" / name).write_text((TESTS / name).read_text())
    test = f"import pytest\ndef test_one(): pytest.skip({reason!r})\ndef test_two(): pass\n"
    (tmp_path / "tests/published/test_example_cards.py").write_text(test)
    environment = {**os.environ, "CI": ci, "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "tests"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout
    assert ("and not in skips_in_ci.txt: tests/published/test_example_cards.py: no chromium" in done.stdout) == bool(
        code
    )
