"""The toy task and the tiny models of toy_texts.py, made once a session in temporary folders."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode leaves helpers unimportable

from toy_texts import toy_model, toy_plan, toy_task

KINDS = ("bert", "gpt2")


@pytest.fixture(scope="session")
def record(tmp_path_factory) -> dict:
    return toy_task(tmp_path_factory.mktemp("toy_task"))


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny_models")
    return {kind: toy_model(kind, folder / kind) for kind in KINDS}


@pytest.fixture
def plan_of(models, record):
    """A plan of a tiny model, with whatever options."""
    return lambda kind, **options: toy_plan(kind, models[kind], record, **options)
