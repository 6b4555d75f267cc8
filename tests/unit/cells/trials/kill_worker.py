"""Runs a plan's trials in child processes and kills all but the last with SIGKILL at random moments.

Each is killed after it finished at least one trial. The process that calls it has run nothing yet: a child is a fork.
"""

import os
import random
import signal
import time
from pathlib import Path

from lm_validity.cells.trials.worker import ResidentWorker

LIMIT_S = 240.0


def finished(folder: Path) -> int:
    return len(list(folder.glob("trial-*.parquet")))


def start(plan, folder: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ResidentWorker().run(plan, folder, shared=folder.parent / "shared")
            status = 0
        finally:
            os._exit(status)
    return child


def kill_and_resume(plan, folder: Path, kills: int, seed: int) -> list[int]:
    """Finished trials at each kill."""
    chance = random.Random(seed)
    deadline = time.monotonic() + LIMIT_S
    counts = []
    for _ in range(kills):
        before, child = finished(folder), start(plan, folder)
        while finished(folder) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.15))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the worker ended by itself ({status}): more subsamples are needed"
        counts.append(finished(folder))
    _, status = os.waitpid(start(plan, folder), 0)
    assert status == 0, status
    return counts
