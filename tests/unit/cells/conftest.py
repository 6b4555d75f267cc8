"""The toy world of tests/unit/cells/toy_world.py, made once a session in temporary folders."""

import re
import sys
from functools import cache, partial
from pathlib import Path

import pytest
import yaml

pytest.importorskip("lm_eval")
sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode leaves helpers unimportable

import toy_texts
from early_fork import EarlyFork
from toy_run import SETTINGS, make_world, run, start_run
from toy_world import load_toy, toy_model, write_lines, write_toy_tasks

from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.tasks import load_task

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


@pytest.fixture
def world(toy_task):
    """A function (lm) -> (examples, validate)."""
    return lambda lm: make_world(lm, toy_task("toy_choice"))


@pytest.fixture(scope="session")
def undisturbed(model_folders, toy_folder, tmp_path_factory):
    """A function (kind of model, epochs) -> what `run` gives in a world, its folder; trained once."""

    @cache
    def train(kind: str, epochs: int = SETTINGS.epochs):
        lm, folder = load_toy(model_folders[kind]), tmp_path_factory.mktemp(f"undisturbed_{kind}")
        examples, validate = make_world(lm, load_task(find_task("toy_choice", toy_folder)))
        return run(lm, examples, validate, folder, SETTINGS.model_copy(update={"epochs": epochs})), folder

    return train


@pytest.fixture
def start(tmp_path, monkeypatch):
    """`start_run` in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(start_run, tmp_path)


CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{q}}\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "gold",
    "metric_list": [{"metric": "acc"}],
}


@pytest.fixture
def write_file(tmp_path, monkeypatch):
    """A function (rows by split, code of own.py, keys of the YAML file) -> the folder of a task."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))

    def write(parts, code="", **keys):
        files = {split: str(tmp_path / f"{split}.jsonl") for split in parts}
        for split, documents in parts.items():
            write_lines(files[split], documents)
        names = {f"{'training' if split == 'train' else split}_split": split for split in parts}
        config = {"task": "asked", "dataset_path": "json", "dataset_kwargs": {"data_files": files}, **names}
        config = {key: value for key, value in (config | CHOICE | keys).items() if value is not None}
        text = re.sub("'(!function [\w.]+)'", r"\1", yaml.safe_dump(config))
        (tmp_path / f"{config['task']}.yaml").write_text(text, encoding="utf-8")
        (tmp_path / "own.py").write_text(code, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def write_task(write_file):
    """A function (rows by split, number of solved examples, more as of `write_file`) -> the loaded task."""
    return lambda parts, shots=0, **keys: load_task(find_task("asked", write_file(parts, **keys)), shots)


@pytest.fixture(scope="session")
def record(tmp_path_factory) -> dict:
    """The small text-classification task of trials."""
    return toy_texts.toy_task(tmp_path_factory.mktemp("toy_task"))


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """The tiny models of trials."""
    folder = tmp_path_factory.mktemp("tiny_models")
    return {kind: toy_texts.toy_model(kind, folder / kind) for kind in ("bert", "gpt2")}


@pytest.fixture
def plan_of(models, record):
    """A plan of a tiny model, with whatever options."""
    return lambda kind, **options: toy_texts.toy_plan(kind, models[kind], record, **options)
