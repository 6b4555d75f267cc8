"""What the login node fetches, in a process of its own: the hub's clients read their address when they are imported.

`find_all` is called in a process that has imported everything. It imports the clients anew, with the hub's address, and
forks a process for each list of steps, which reads anew what the environment says of HF_HUB_OFFLINE.
"""

import contextlib
import importlib
import multiprocessing
import os
import sys
import warnings
from functools import partial
from pathlib import Path

import pyarrow
from local_hub import local_hub

CLIENTS = ("huggingface_hub", "datasets", "transformers", "accelerate", "peft", "evaluate", "lm_eval", "lm_validity")
# What reads HF_HUB_OFFLINE when it is imported; all others ask these two.
READ_OFFLINE = ("huggingface_hub.constants", "datasets.config")
FORKED = multiprocessing.get_context("fork")


def find_all(folder: Path) -> dict[str, dict]:
    """What is found with the hub of `folder`, offline, and where the hub is out of reach; or the error's line."""
    home, found = folder / "home", {}
    with contextlib.ExitStack() as hub:
        address = hub.enter_context(local_hub(folder / "hub"))
        os.environ.update({"HF_ENDPOINT": address, "HF_HOME": str(home)})
        import_anew()
        found["online"] = find("0", folder)
    found["out of reach"] = find("0", folder, ("model", "texts in files"))
    found["offline"] = find("1", folder)
    home.rename(folder / "elsewhere")
    found["nothing fetched"] = find("1", folder)
    return found


def import_anew() -> None:
    """The clients, with the environment's address and folders."""
    for name in [name for name in sys.modules if name.partition(".")[0] in CLIENTS]:
        del sys.modules[name]
    for rank in range(2, 6):
        pyarrow.unregister_extension_type(f"datasets.features.features.Array{rank}DExtensionType")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # datasets' file systems are registered again
        importlib.import_module("datasets")
    for name in ("cells.models.prefetch", "cells.tasks.splits", "cells.trials.data"):
        importlib.import_module(f"lm_validity.{name}")


def find(offline: str, folder: Path, steps: tuple[str, ...] = ()) -> dict:
    """What the steps, or all, find in a process of their own."""
    mine, theirs = FORKED.Pipe()
    process = FORKED.Process(target=lambda: theirs.send(attempt_all(offline, folder, steps or tuple(STEPS))))
    process.start()
    theirs.close()
    found = mine.recv()
    process.join()
    return found


def attempt_all(offline: str, folder: Path, steps: tuple[str, ...]) -> dict:
    os.environ["HF_HUB_OFFLINE"] = offline
    for name in READ_OFFLINE:
        importlib.reload(sys.modules[name])
    return {name: attempt(STEPS[name], folder) for name in steps}


def attempt(function, folder: Path):
    from lm_validity.errors import InputError

    try:
        return function(folder)
    except InputError as error:
        return f"InputError: {error}"


def model(_, revision=None, **columns):
    from lm_validity.cells.models.prefetch import prefetch_model
    from lm_validity.config.sheets import Model

    row = Model(**{"model": "m", "path": "org/toy", "revision": revision} | columns)
    return prefetch_model(row)["checkpoints"]["final"]


def benchmark(folder, name):
    from lm_validity.cells.tasks.splits import prefetch_benchmark
    from lm_validity.config.sheets import Benchmark

    record = prefetch_benchmark(Benchmark(benchmark=name, include_path=str(folder / "tasks"), metric="acc,none"))
    return record["documents"] | {"data": record["data"]}


def texts(_, **columns):
    from lm_validity.cells.trials.data import source_columns
    from lm_validity.config.sheets import Task

    row = {"task": "t", "path": "org/texts", "text": ["text"], "label": "label", "class_names": ["bad", "good"]}
    columns, revision = source_columns(Task.model_validate(row | columns))
    return [columns["text"], columns["label"], revision]


STEPS = {
    "model": model,
    "model by name": partial(model, revision="v1"),
    "model by commit": partial(model, revision="5" * 40),
    "model of another name": partial(model, revision="v2"),
    "unknown model": partial(model, path="org/nobody"),
    "adapter": lambda folder: model(folder, path=str(folder / "base"), adapter="org/adapter"),
    "task": partial(benchmark, name="hub_choice"),
    "texts": texts,
    "texts by name": partial(texts, revision="v1"),
    "texts in files": partial(texts, files=["data/*.parquet"]),
    "texts converted": partial(texts, files=["data/*.parquet"], revision="refs/convert/parquet"),
    "texts of another commit": partial(texts, revision="6" * 40),
    "unknown texts": partial(texts, path="org/none"),
}
