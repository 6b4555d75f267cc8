"""The toy world of tests/unit/cells/toy_world.py, made once a session in temporary folders."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")
sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode leaves helpers unimportable

from early_fork import EarlyFork
from toy_world import load_toy, toy_model, write_toy_tasks

from lm_validity.cells.tasks.tasks import find_task, load_task

FORKED: list[EarlyFork] = []


def pytest_collection_finish(session):
    if any("early_fork" in getattr(item, "fixturenames", ()) for item in session.items):
        FORKED.append(EarlyFork())


def pytest_sessionfinish():
    while FORKED:
        FORKED.pop().close()


@pytest.fixture(scope="session")
def early_fork() -> EarlyFork:
    """Calls functions in processes that have imported everything and run nothing."""
    return FORKED[0]


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory) -> Path:
    return write_toy_tasks(tmp_path_factory.mktemp("toy_tasks"))


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("toy_models")
    return {kind: toy_model(kind, folder / kind) for kind in ("llama", "gpt2")}


@pytest.fixture(params=["llama", "gpt2"])
def lm(request, model_folders):
    return load_toy(model_folders[request.param])


@pytest.fixture
def llama(model_folders):
    return load_toy(model_folders["llama"])


@pytest.fixture
def toy_task(toy_folder):
    """Load a toy task by name."""
    return lambda name: load_task(find_task(name, toy_folder))
