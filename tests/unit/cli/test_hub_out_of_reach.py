"""Prefetching without a network: the hub is asked once, and never where nothing comes from it."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError

import pytest

from lm_validity.cli import jobs
from lm_validity.files import read_json

SHEETS = {
    "models.tsv": "model\tpath\tsize_class\nhub\torg/hub\tlarge\nmine\t./mine\tlarge\n",
    "benchmarks.tsv": "benchmark\ttask\tcategory\tmetric\toutput_type\thigher_is_better\n"
    "q\tq\tLU\tacc\tmultiple_choice\t1\n",
    "run.yaml": "{name: run, studies: [agreement], models: models.tsv, benchmarks: benchmarks.tsv}",
}


@pytest.mark.parametrize(
    ("model", "answer", "asked", "offline"),
    [
        ("hub", HTTPError("https://hub", 404, "no page", {}, None), 2, None),  # it answers, and is used
        ("hub", OSError("no network"), 1, "1"),
        ("mine", OSError("no network"), 0, None),
    ],
)
def test_the_hub_is_asked_once_and_never_for_local_files(monkeypatch, capsys, tmp_path, model, answer, asked, offline):
    """Two models are fetched one after the other; what fetches them, which is not asked here, finds nothing."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # so that it is as before after the test
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.chdir(tmp_path)
    for name, text in SHEETS.items():
        Path(name).write_text(text)
    fetches = SimpleNamespace(prefetch_model=lambda row, chat: {"model": row.model})
    monkeypatch.setitem(sys.modules, "lm_validity.cells.models.prefetch", fetches)
    addresses = []

    def urlopen(address: str, timeout: float) -> None:
        addresses.append(address)
        raise answer

    monkeypatch.setenv("HF_ENDPOINT", "https://hub")
    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    for _ in range(2):
        jobs.PREFETCH["models"](model, Path("run.yaml"))
        record = read_json(f"results/run/prefetch/models/{model}.json")
        assert record == {"model": model, "sources": {}}
    assert addresses == ["https://hub"] * asked and os.environ.get("HF_HUB_OFFLINE") == offline
    assert len(capsys.readouterr().err.splitlines()) == (offline is not None)
