"""What the login node fetches from a hub on this machine, in a process of its own."""

import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import sys
import threading
import urllib.parse
import warnings
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath

import pyarrow

COMMIT = "5" * 40
NAMES = ("main", "v1", "refs/convert/parquet", COMMIT)


def _blob(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path

    def log_message(self, *_):
        pass

    def _send(self, content, code=200, **headers):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        place = [urllib.parse.unquote(part) for part in urllib.parse.urlparse(self.path).path.strip("/").split("/")]
        if place[0] == "api":
            return self._api(place[1], "/".join(place[2:4]), place[4:], body)
        kind, place = ("datasets", place[1:]) if place[0] == "datasets" else ("models", place)
        path = self.root / kind / place[0] / place[1] / "/".join(place[4:])
        if not (self.root / kind / place[0] / place[1]).is_dir():
            return self._send({}, 404, X_Error_Code="RepoNotFound")
        if place[3] not in NAMES:
            return self._send({}, 404, X_Error_Code="RevisionNotFound")
        if not path.is_file():
            return self._send({}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        return self._send(path.read_bytes(), ETag=f'"{_blob(path)}"', X_Repo_Commit=COMMIT)

    do_HEAD = do_POST = do_GET

    def _api(self, kind, name, more, body):
        repository = self.root / kind / name
        if not repository.is_dir():
            return self._send({}, 404, X_Error_Code="RepoNotFound")
        entries = []
        for path in sorted(path for path in repository.rglob("*") if path.is_file()):
            name_here = path.relative_to(repository).as_posix()
            entries.append({"type": "file", "path": name_here, "size": path.stat().st_size, "oid": _blob(path)})
        if more[:1] == ["revision"] and more[1] not in NAMES:
            return self._send({}, 404, X_Error_Code="RevisionNotFound")
        if more[:1] == ["tree"]:
            return self._send(self._tree(entries, "/".join(more[2:])))
        if more[:1] == ["paths-info"]:
            return self._send([entry for entry in entries if entry["path"] in body["paths"]])
        if more[1:] and more[0] not in ("revision",):
            return self._send({}, 404)
        siblings = [{"rfilename": e["path"], "size": e["size"], "blobId": e["oid"]} for e in entries]
        about = {"_id": "1", "id": name, "sha": COMMIT, "private": False, "gated": False, "disabled": False}
        return self._send(about | {"downloads": 0, "likes": 0, "tags": [], "siblings": siblings})

    def _tree(self, entries, folder):
        """Files and folders below a folder, those directly in it unless the query says `recursive`."""
        folders = {str(parent) for entry in entries for parent in PurePosixPath(entry["path"]).parents} - {"."}
        entries = entries + [{"type": "directory", "path": path, "oid": COMMIT, "size": 0} for path in sorted(folders)]
        inside = [entry for entry in entries if entry["path"].startswith(f"{folder}/" if folder else "")]
        if "recursive=true" in self.path.lower():
            return inside
        return [entry for entry in inside if "/" not in entry["path"][len(folder) :].strip("/")]


@contextlib.contextmanager
def local_hub(root: Path) -> Iterator[str]:
    """The address of a hub that gives away what is under `root`, until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"root": root}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
