"""Runs plans' trials in child processes and kills all but the last with SIGKILL at random moments.

    python kill_worker.py PLANS.pickle KILLS      (PLANS: a list of plans and folders)

Each is killed after it finished at least one trial. Everything heavy is imported once: a child is a fork that has run
nothing yet.
Prints one JSON line: of each plan, how many trials were finished at each kill.
"""

import json
import os
import pickle
import random
import signal
import sys
import time
from pathlib import Path

import sklearn.model_selection  # noqa: F401
from transformers import (  # noqa: F401
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

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


def kill_and_resume(plan, folder: Path, kills: int, chance: random.Random) -> list[int]:
    """Finished trials at each kill."""
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


def main() -> None:
    plans, kills = pickle.loads(Path(sys.argv[1]).read_bytes()), int(sys.argv[2])
    chance = random.Random(0)
    print(json.dumps([kill_and_resume(plan, folder, kills, chance) for plan, folder in plans]))


if __name__ == "__main__":
    main()
