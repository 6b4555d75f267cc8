"""What the tests with real models share: the models, the benchmark files, and the list of what was seen."""

import json
import os
import resource
import time
from pathlib import Path

import pytest
from tests.real.fetch_models import SOURCES
from tests.real.real_tasks import write_tasks

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".real"
MODELS = tuple(SOURCES)
# Documents of a benchmark that tests in one process score; 0: all of them. `make test-real` says how to set it.
DOCUMENTS = int(os.environ.get("REAL_DOCUMENTS", "0")) or None


def model_folder(name: str) -> Path:
    folder = CACHE / name
    if not (folder / "config.json").is_file():
        pytest.skip(f"{folder} is not there: python tests/real/fetch_models.py {CACHE}")
    return folder


@pytest.fixture(scope="session")
def tasks() -> Path:
    """The include_path of the real tasks, made from the files under REAL_DATA."""
    data = os.environ.get("REAL_DATA")
    if not data:
        pytest.skip("REAL_DATA is not set: tests/real/README.md says what must lie there")
    return write_tasks(Path(data).expanduser().resolve(), CACHE / "tasks")


@pytest.fixture(scope="module")
def load():
    """A function (model's name, options) -> the language model, loaded once; one is held at a time."""
    from lm_validity.cells.models.language_model import load_language_model

    held: dict[str, object] = {}

    def language_model(name: str, **options):
        key = f"{name} {options}"
        if key not in held:
            held.clear()
            options = {"dtype": "float32", "device": "cpu", "eval_batch_size": 8, "max_length": 1024} | options
            held[key] = load_language_model(model_folder(name), **options)
        return held[key]

    return language_model


@pytest.fixture
def seen(request):
    """A function that adds a line to .real/seen.jsonl: figures, with the test's CPU seconds and peak memory."""
    start = time.process_time()

    def note(**figures) -> None:
        own = resource.getrusage(resource.RUSAGE_SELF)
        cost = {"cpu_seconds": round(time.process_time() - start, 1), "peak_gb": round(own.ru_maxrss / 1e6, 2)}
        with open(CACHE / "seen.jsonl", "a") as lines:
            lines.write(json.dumps({"test": request.node.name} | figures | cost) + "\n")

    return note
