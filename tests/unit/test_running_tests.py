"""What tests stand on: `make test-near` finds the tests of a changed file, and a skip in CI fails the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def near(*paths: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "tests/near.py", *paths], cwd=ROOT, capture_output=True, text=True)


OWN = " ".join(sorted(f"tests/unit/{path.name}" for path in Path(__file__).parent.glob("test_*")))


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("src/lm_validity/studies/agreement/statistics/sparse/pooled.py", "tests/unit/studies/agreement"),
        ("tests/unit/cells/toy_world.py", "tests/unit/cells"),
        ("tests/unit/tables/test_merge.py", "tests/unit/tables/test_merge.py"),
        ("src/lm_validity/files.py", OWN),
    ],
)
def test_a_file_leads_to_the_tests_that_mirror_it(path, tests):
    assert near(path).stdout.strip() == tests


def test_without_a_change_nothing_runs():
    assert near().returncode == 1


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_a_skip_in_ci_fails(tmp_path, ci, code):
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_two.py").write_text(
        "import pytest\ndef test_one(): pytest.skip('no chromium')\ndef test_two(): pass\n"
    )
    environment = {**os.environ, "CI": ci, "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout
    assert ("skipped in CI: test_two.py: Skipped: no chromium" in done.stdout) == bool(code)
