"""Prefetching without a network: the hub is asked once, and never where nothing comes from it."""

import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lm_validity.cli.jobs import _try_hub


@pytest.fixture(autouse=True)
def without_offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # so that it is as before after the test
    monkeypatch.delenv("HF_HUB_OFFLINE")


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
    _try_hub(needed=True)
    assert len(paths) == 1 and "HF_HUB_OFFLINE" not in os.environ and capsys.readouterr().err == ""


def test_a_hub_out_of_reach_is_asked_once(monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    _try_hub(needed=True)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert len(capsys.readouterr().err.splitlines()) == 1
    _try_hub(needed=True)
    assert capsys.readouterr().err == ""


def test_local_files_need_no_hub(asked, monkeypatch):
    endpoint, paths = asked
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    _try_hub(needed=False)
    assert paths == [] and "HF_HUB_OFFLINE" not in os.environ
