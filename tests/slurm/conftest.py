"""Makes this folder's modules importable, finds the test cluster, and prints the table of faults at the end."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from faults import FAULTS, describe_faults
from slurm_cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that `make slurm-test` started; tests skip without it."""
    found = Cluster()
    if not (found.is_ours() and found.answers()):
        pytest.skip("no test cluster is running: make slurm-test")
    return found


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    if FAULTS:
        terminalreporter.section("faults: one model, one benchmark")
        terminalreporter.write_line(describe_faults())
