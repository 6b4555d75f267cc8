"""What several tests on the published table share."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import sparse_grid  # noqa: E402


@pytest.fixture(scope="module")
def table() -> sparse_grid.Published:
    """The published scores as `benchmarks/sparse_grid.py` reads them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return sparse_grid.Published()
