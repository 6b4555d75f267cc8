"""Kill cells, jobs and Snakemake itself, again and again: the bytes at the end are those of an undisturbed run, and no
finished cell is computed, or even begun, a second time.

Every kill comes after something was achieved since the last one (a cell finished, an epoch saved, a table written), at
a moment drawn from a seed. What is begun is read from the jobs' own words, kept by a small program that stands in front
of lm-validity.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.workflow.conftest import BIN, ROOT, TOKEN, Project, is_warm

CONFIG = ("--configfile", "config/test.yaml")
RESULTS = Path("results/test")
SNAKEMAKE = ("scores", "--cores", "2", "--keep-going", "--rerun-incomplete", "--scheduler", "greedy", *CONFIG)
KINDS = {
    "a cell (SIGKILL)": ("cell", signal.SIGKILL),
    "a cell (SIGTERM)": ("cell", signal.SIGTERM),
    "a job's shell (SIGKILL)": ("shell", signal.SIGKILL),
    "Snakemake (SIGKILL)": ("snakemake", signal.SIGKILL),
    "Snakemake (SIGTERM)": ("snakemake", signal.SIGTERM),
    "Snakemake (SIGINT)": ("snakemake", signal.SIGINT),
}


class Victim:
    """A run of config/test.yaml that is killed and started again until it ends."""

    def __init__(self, finished: Project, folder: Path, command: str, model: str = "*"):
        self.project, self.command = finished.copy_to(folder), command
        # from the models and splits on: training the miniature models is not what is looked at
        results = folder / RESULTS
        for gone in ("tables", "reports", "report", "work", "logs", "partial"):
            shutil.rmtree(results / gone, ignore_errors=True)
        for kind in ("store", "cells"):
            for gone in (results / kind).glob(f"*/{model}"):
                shutil.rmtree(gone)
        for record in (results / "cells").glob("*.json"):
            record.unlink()
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.snakemake: subprocess.Popen | None = None
        self.finished: dict[str, tuple[int, int]] = {}  # cell -> (sidecar's time, place in the ledger when first seen)

    # ---- running ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start Snakemake as a person would after it was killed."""
        trouble = {"TROUBLE": "none", "TROUBLE_LEDGER": str(self.ledger)}
        trouble |= {"TROUBLE_LM_VALIDITY": self.command}
        path = f"{ROOT / 'tests' / 'slurm' / 'bin'}:{BIN}:{os.environ['PATH']}"
        environment = self.project.environment(**trouble) | {"PATH": path}
        _, *arguments = self.project.snakemake_command(*SNAKEMAKE)
        command = (str(Path(self.command).with_name("snakemake")), *arguments)
        self.project.run(*command, "--unlock")
        with open(self.project.folder / "screen", "a") as screen:
            # heard also where pytest itself was started in the background
            heard = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
            streams = {"stdout": screen, "stderr": subprocess.STDOUT, "preexec_fn": heard}
            self.snakemake = subprocess.Popen(command, env=environment, cwd=self.project.folder, **streams)

    def is_over(self) -> bool:
        return self.snakemake is not None and self.snakemake.poll() == 0

    def stop(self) -> None:
        """End everything that still runs in the folder."""
        for pid in [*self.pids("snakemake"), *self.pids("shell"), *self.pids("cell")]:
            kill(pid, signal.SIGKILL)
        if self.snakemake is not None:
            self.snakemake.wait()

    def pids(self, what: str) -> list[int]:
        """Processes of this run: Snakemake, the jobs' shells, the cells' own processes."""
        cells, processes = self.project.cells(), self.project.processes()
        if what == "cell":
            return cells
        if what == "shell":
            shells = {pid: words for pid, words in processes.items() if words[0].endswith(b"sh") and pid not in cells}
            return [pid for pid, words in shells.items() if b"lm-validity" in b" ".join(words)]
        if self.snakemake is None or self.snakemake.poll() is not None:
            return []
        warm = [pid for pid, words in processes.items() if is_warm(pid, words, "snakemake")]
        return warm[:1] or [self.snakemake.pid]  # of a warm one, the client only waits for it

    # ---- looking ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No finished cell was computed again, none was begun again, none is gone."""
        begun, now = self.begun(), self.project.sidecars()
        for cell, (written, place) in self.finished.items():
            assert now.get(cell) == written, f"{cell} was computed again, or is gone"
            assert cell.split("--")[0] not in begun[place:], f"{cell} was begun again"
        for cell, written in now.items():
            self.finished.setdefault(cell, (written, len(begun)))

    def begun(self) -> list[str]:
        """Cells in the order in which their computation was begun."""
        return re.findall(r"computing (\S+)$", self.ledger.read_text(), re.MULTILINE)

    def progress(self) -> tuple:
        """What has been achieved so far; it only ever grows."""
        epochs = set(re.findall(r" (\S+ epoch \d+):", self.ledger.read_text()))
        results = self.project.folder / RESULTS
        written = [path for name in ("cells", "tables", "reports") for path in (results / name).rglob("*.json")]
        return len(self.project.sidecars()), len(epochs), len(written)


def kill(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def strike(victim: Victim, draw: random.Random, kinds: list[str]) -> str | None:
    """One kill, of a kind for which there is a process; None where there is none (any more)."""
    for kind in draw.sample(kinds, len(kinds)):
        what, number = KINDS[kind]
        pids = victim.pids(what)
        if pids and kill(draw.choice(pids), number):
            if what == "snakemake":
                victim.snakemake.wait(120)
            return kind
    return None


def disturb(victim: Victim, draw: random.Random, kills: int, kinds: list[str] | None = None) -> Counter:
    """Run to the end with at most so many kills (in the order of `kinds`, or any), each after progress."""
    done: Counter = Counter()
    last = victim.progress()
    quiet_starts, deadline = 0, time.monotonic() + 3600
    while not victim.is_over():
        assert time.monotonic() < deadline, (victim.project.folder / "screen").read_text()[-4000:]
        if victim.snakemake is None or victim.snakemake.poll() is not None:
            victim.check()
            victim.start()
            quiet_starts += 1
            assert quiet_starts < 4, (victim.project.folder / "screen").read_text()[-4000:]
        time.sleep(0.02)
        if done.total() < kills and victim.progress() != last:
            time.sleep(draw.uniform(0, 0.4))
            victim.check()
            kind = strike(victim, draw, kinds[done.total() : done.total() + 1] if kinds else list(KINDS))
            if kind:
                done[kind] += 1
                last, quiet_starts = victim.progress(), 0
    victim.check()
    return done


def assert_same_bytes(victim: Victim, finished: Project) -> None:
    """Tables, summaries and every cell of the store."""
    assert victim.project.tables() == finished.tables() != {}
    store, other = (project.folder / RESULTS / "store" for project in (finished, victim.project))
    cells = sorted(path.relative_to(store) for path in store.glob("*/*/*/sha256.json"))
    assert cells == sorted(path.relative_to(other) for path in other.glob("*/*/*/sha256.json"))
    assert all((store / cell).read_bytes() == (other / cell).read_bytes() for cell in cells)


def test_three_kills(finished, tmp_path):
    """Cells and Snakemake start warm, as processes of their own all the same; those of the hundred as the users' do."""
    warm = Project.front.replace(":", "/lm-validity")
    victim = Victim(finished, tmp_path / "victim", warm, model="data-gpt2-xs")  # the other one's cells stay
    kinds = ["Snakemake (SIGKILL)", "a job's shell (SIGKILL)", "a cell (SIGTERM)"]
    try:
        done = disturb(victim, random.Random(0), len(kinds), kinds)
    finally:
        victim.stop()
    assert sorted(done.elements()) == sorted(kinds)
    assert_same_bytes(victim, finished)
    # not in logs, results, Snakemake's own files, or what it printed
    assert subprocess.run(("grep", "-rl", TOKEN, victim.project.folder), capture_output=True).stdout == b""


@pytest.mark.slow
@pytest.mark.timeout(10800)
def test_a_hundred_kills(finished, tmp_path):
    draw, total, runs = random.Random(1), Counter(), 0
    while total.total() < 100:
        victim = Victim(finished, tmp_path / f"victim{runs}", str(BIN / "lm-validity"))
        try:
            total += disturb(victim, draw, 100 - total.total())
        finally:
            victim.stop()
        assert_same_bytes(victim, finished)
        runs += 1
    print(f"{total.total()} kills in {runs} runs of config/test.yaml: {dict(total)}")
    assert set(total) == set(KINDS)
