"""What the login node fetches, in processes of its own: the hub's clients read their address when they are imported.

`python hub_client.py <folder of tasks> <adapter's base>` reads lines of JSON, [HF_HUB_OFFLINE, [step, ...]], and prints
one JSON object for each: what was found, or the error's line. Each value of HF_HUB_OFFLINE has a process, forked from
this one, which has imported what asks no hub; it imports the clients, and forks a process for each line.
"""

import json
import multiprocessing
import os
import sys

import bitsandbytes  # noqa: F401 (these are imported once for all clients)
import pandas  # noqa: F401
import torch._dynamo  # noqa: F401

FORKED = multiprocessing.get_context("fork")


def serve(offline: str, asked) -> None:
    """Answer steps until there are no more."""
    os.environ["HF_HUB_OFFLINE"] = offline
    import datasets  # noqa: F401 (these are imported once for all lines)
    import lm_eval.tasks  # noqa: F401
    import peft  # noqa: F401
    import transformers  # noqa: F401

    import lm_validity.cells.models.prefetch
    import lm_validity.cells.tasks.splits
    import lm_validity.cells.trials.data  # noqa: F401

    while steps := asked.recv():
        process = FORKED.Process(target=lambda: asked.send({name: attempt(STEPS[name]) for name in steps}))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(1)


def attempt(function):
    from lm_validity.errors import InputError

    try:
        return function()
    except InputError as error:
        return f"InputError: {error}"


def model(revision=None, **columns):
    from lm_validity.cells.models.prefetch import prefetch_model
    from lm_validity.config.sheets import Model

    row = Model(**{"model": "m", "path": "org/toy", "revision": revision} | columns)
    return prefetch_model(row)["checkpoints"]["final"]


def benchmark(name):
    from lm_validity.cells.tasks.splits import prefetch_benchmark
    from lm_validity.config.sheets import Benchmark

    record = prefetch_benchmark(Benchmark(benchmark=name, include_path=sys.argv[1], metric="acc,none"))
    return record["documents"] | {"data": record["data"]}


def texts(**columns):
    from lm_validity.cells.trials.data import source_columns
    from lm_validity.config.sheets import Task

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
    assert "huggingface_hub" not in sys.modules
    clients = {}
    for line in sys.stdin:
        offline, steps = json.loads(line)
        if offline not in clients:
            clients[offline], theirs = FORKED.Pipe()
            FORKED.Process(target=serve, args=(offline, theirs), daemon=False).start()
            theirs.close()
        clients[offline].send(steps)
        print(json.dumps(clients[offline].recv()), flush=True)
    for client in clients.values():
        client.send([])
