"""Makes this folder's modules importable, and finds the test cluster."""

import fcntl
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

sys.path.insert(0, str(Path(__file__).parent))

from faults import CONFIG, TARGET, FaultProject, before_training, make_project
from slurm_cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that `make slurm-test` started; tests skip without it."""
    found = Cluster()
    if not (found.is_ours() and found.answers()):
        pytest.skip("no test cluster is running: make slurm-test")
    return found


@contextmanager
def held(root: Path, how: int):
    with open(root / "cluster.lock", "w") as lock:
        fcntl.flock(lock, how)
        yield


@pytest.fixture
def shared(cluster, root):
    """The cluster, used by other tests at the same time."""
    with held(root, fcntl.LOCK_SH):
        yield cluster


@pytest.fixture
def alone(cluster, root):
    """The cluster, for a test that breaks what others would need."""
    with held(root, fcntl.LOCK_EX):
        yield cluster


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    """A folder that the processes of a test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def undisturbed(root) -> FaultProject:
    """A run on this machine, without Slurm and without a fault, made once."""
    with FileLock(root / "undisturbed.lock"):
        if (root / "undisturbed.done").exists():
            return FaultProject(root / "undisturbed" / "project")
        project = make_project(root / "undisturbed" / "project")
        project.run("snakemake", TARGET, "--profile", "profiles/local", "--cores", "2", *CONFIG)
        assert len(project.sidecars()) >= 4
        (root / "undisturbed.done").touch()
    return project


@pytest.fixture
def project(request, undisturbed, tmp_path):
    """A copy of the undisturbed run in which training is still to come."""
    if "alone" not in request.fixturenames:
        request.getfixturevalue("shared")
    project = before_training(undisturbed, tmp_path / "project")
    yield project
    project.stop()
