"""`make test-near` finds the tests of a changed file."""

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
