"""What the login node fetches, in a process of its own: the hub's clients read their address when they are imported.

`python hub_client.py <folder of tasks> <adapter's base>` reads lines, `step|step|...`, and prints one JSON object for
each: what was found, or the error's line. Each line has a process of its own, forked from one that has only imported.
"""

import json
import os
import sys

import datasets  # noqa: F401 (these are imported once for all lines)
import lm_eval.tasks  # noqa: F401
import peft  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401

from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.tasks.splits import prefetch_benchmark
from lm_validity.cells.trials.data import source_columns
from lm_validity.config.sheets import Benchmark, Model, Task
from lm_validity.errors import InputError


def attempt(function):
    try:
        return function()
    except InputError as error:
        return f"InputError: {error}"


def model(revision=None, **columns):
    row = Model(**{"model": "m", "path": "org/toy", "revision": revision} | columns)
    return prefetch_model(row)["checkpoints"]["final"]


def benchmark(name):
    record = prefetch_benchmark(Benchmark(benchmark=name, include_path=sys.argv[1], metric="acc,none"))
    return record["documents"] | {"data": record["data"]}


def texts(**columns):
    row = {"task": "t", "path": "org/texts", "text": ["text"], "label": "label", "class_names": ["bad", "good"]}
    columns, revision = source_columns(Task.model_validate(row | columns))
    return [columns["text"], columns["label"], revision]


STEPS = {
    "model": model,
    "model by name": lambda: model("v1"),
    "model by commit": lambda: model("5" * 40),
    "model of another name": lambda: model("v2"),
    "unknown model": lambda: model(path="org/nobody"),
    "adapter": lambda: model(path=sys.argv[2], adapter="org/adapter"),
    "task": lambda: benchmark("hub_choice"),
    "texts": texts,
    "texts by name": lambda: texts(revision="v1"),
    "texts in files": lambda: texts(files=["data/*.parquet"]),
    "texts converted": lambda: texts(files=["data/*.parquet"], revision="refs/convert/parquet"),
    "texts of another commit": lambda: texts(revision="6" * 40),
    "unknown texts": lambda: texts(path="org/none"),
}


if __name__ == "__main__":
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            print(json.dumps({name: attempt(STEPS[name]) for name in line.strip().split("|")}), flush=True)
            os._exit(0)
        if os.waitpid(pid, 0)[1] != 0:
            sys.exit(1)
