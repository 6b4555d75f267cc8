"""Prefetching without a network: the hub is asked once, and never where nothing comes from it."""

import os
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from lm_validity.cli import jobs
from lm_validity.files import read_json

SHEETS = {
    "models.tsv": "model\tpath\tsize_class\nhub\torg/hub\tlarge\nmine\t./mine\tlarge\n",
    "benchmarks.tsv": "benchmark\ttask\tcategory\tmetric\toutput_type\thigher_is_better\n"
    "q\tq\tLU\tacc\tmultiple_choice\t1\n",
    "run.yaml": "{name: run, studies: [agreement], models: models.tsv, benchmarks: benchmarks.tsv}",
}


@pytest.fixture(autouse=True)
def study(monkeypatch, tmp_path):
    """A run of a model of the hub and one of a folder; what fetches them, which is not asked here, finds nothing."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # so that it is as before after the test
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.chdir(tmp_path)
    for name, text in SHEETS.items():
        Path(name).write_text(text)
    fetches = SimpleNamespace(prefetch_model=lambda row, chat: {"model": row.model})
    monkeypatch.setitem(sys.modules, "lm_validity.cells.models.prefetch", fetches)


def prefetch(model: str) -> None:
    jobs.PREFETCH["models"](model, Path("run.yaml"))
    assert read_json("results/run/prefetch/models/" + model + ".json") == {"model": model, "sources": {}}


@pytest.fixture
def asked():
    """An endpoint that has no page, and the paths it was asked for."""
    paths: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    server.server_close()


def test_a_hub_that_answers_is_used(asked, monkeypatch, capsys):
    endpoint, paths = asked
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    prefetch("hub")
    assert len(paths) == 1 and "HF_HUB_OFFLINE" not in os.environ and capsys.readouterr().err == ""


def test_a_hub_out_of_reach_is_asked_once(monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    prefetch("hub")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert len(capsys.readouterr().err.splitlines()) == 1
    prefetch("hub")
    assert capsys.readouterr().err == ""


def test_local_files_need_no_hub(asked, monkeypatch):
    endpoint, paths = asked
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    prefetch("mine")
    assert paths == [] and "HF_HUB_OFFLINE" not in os.environ
