"""`lm-validity report`, really killed: no process goes on without it, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lm_validity.cli import main

SECONDS = 60  # a busy machine's


@pytest.fixture
def place(tmp_path) -> Path:
    rng = np.random.default_rng(3)
    table = pd.DataFrame(np.round(rng.uniform(0.2, 0.9, (60, 12)), 3), columns=[f"craft_{i} %" for i in range(12)])
    table.insert(0, "model", [f"ash-{i + 1}b" for i in range(60)])
    table.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path


def children(parent: int) -> set[int]:
    """The processes that have this parent, from Linux's own list."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == parent:
            found.add(int(path.parent.name))
    return found


def is_worker(process: int) -> bool:
    return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait(condition) -> bool:
    end = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


@pytest.fixture
def report(place):
    """Start a report that takes minutes, and wait until both its workers are there; (the process, its children)."""
    started = []

    def start(group: bool) -> tuple[subprocess.Popen, set[int]]:
        words = ("report", "table.csv", "--resamples", "200000", "--output", "out")
        code = "from lm_validity.cli import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=group,
        )
        started.append(process)
        assert wait(lambda: process.poll() is not None or sum(map(is_worker, children(process.pid))) == 2)
        assert process.poll() is None, process.communicate()
        return process, children(process.pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def left(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} - {"table.csv"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are listed in Linux's /proc")
class TestKilled:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("number", "group"),
        [
            (signal.SIGTERM, False),
            (signal.SIGTERM, True),
            (signal.SIGINT, True),
            (signal.SIGHUP, False),
            (signal.SIGHUP, True),
        ],
    )
    def test_by_a_signal_that_can_be_heard(self, place, report, number, group):
        process, others = report(group=group)
        time.sleep(3)  # in the middle of an import, or of the work
        (os.killpg if group else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 128 + number
        assert errors == ("Interrupted.\n" if number == signal.SIGINT else "")
        assert wait(lambda: not any(map(alive, others))), others
        assert left(place) == set()

    def test_by_one_that_cannot(self, place, report, monkeypatch):
        process, others = report(group=False)
        process.kill()
        process.wait()
        assert wait(lambda: not any(map(alive, others))), others
        (draft,) = left(place)
        assert draft.startswith(".lm-validity-draft.")
        monkeypatch.chdir(place)
        monkeypatch.setattr(sys, "argv", ["lm-validity", "report", "nothing.csv", "--output", "out"])
        with pytest.raises(SystemExit):
            main()
        assert left(place) == set()

    def test_a_worker_killed_for_want_of_memory_is_one_line(self, place, report):
        process, others = report(group=False)
        os.kill(next(filter(is_worker, others)), signal.SIGKILL)
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 2 and errors.count("\n") == 1, errors
        assert "killed" in errors and "GB" in errors and "--processes 1" in errors
        assert wait(lambda: not any(map(alive, others)))
        # what was read stays, as after any report that fails: tables, sheets and the reading, and no page
        assert left(place) == {"out"}
        kept = {path.name for path in (place / "out").iterdir()}
        assert {"scores.parquet", "models.tsv", "benchmarks.tsv"} <= kept, kept
        assert not [*(place / "out").rglob("*.html")] and not [name for name in kept if name.startswith(".")], kept
