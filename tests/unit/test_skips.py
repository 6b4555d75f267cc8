"""A skip in CI fails the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_a_skip_in_ci_fails(tmp_path, ci, code):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_two.py").write_text(
        "import pytest\ndef test_one(): pytest.skip('no chromium')\ndef test_two(): pass\n"
    )
    environment = {**os.environ, "CI": ci, "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout
    assert ("skipped in CI: test_two.py: Skipped: no chromium" in done.stdout) == bool(code)
