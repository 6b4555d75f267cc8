"""A worker that is killed (SIGKILL, any moment) and started again ends with the tables of an undisturbed one."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from lm_validity.cells.trials.worker import ResidentWorker, write_tables
from lm_validity.config.sections import Adapter


def plans_of(plan_of, subsamples: int) -> dict:
    """A head on each architecture, its base arms shared with another n, and zero-shot with adapters."""
    options = {"subsamples": tuple(range(1, subsamples + 1)), "share_base": ((20, subsamples),)}
    zero_shot = {"classification": {"method": "zero_shot"}, "pretraining": {"adapter": Adapter(rank=4)}}
    return {
        "bert": plan_of("bert", **options),
        "gpt2": plan_of("gpt2", **options),
        "zero-shot": plan_of("gpt2", **options, **zero_shot),
    }


def tables(plan, folder: Path, output: Path) -> dict[str, bytes]:
    output.mkdir(parents=True)
    write_tables(plan, folder, output)
    return {path.name: path.read_bytes() for path in output.iterdir()}


def kill_and_compare(plans: dict, folder: Path, kills: int, early_fork) -> None:
    for number, (name, plan) in enumerate(plans.items()):
        (folder / name / "killed").mkdir(parents=True)
        counts = early_fork.call(kill_and_resume, plan, folder / name / "killed", kills, number)
        # no trial lost: every process found those before it and finished at least one of its own
        assert len(counts) == kills and all(later > earlier for earlier, later in zip([0, *counts], counts))  # noqa: B905
        assert counts[-1] < len(plan.subsamples)
        ResidentWorker().run(plan, folder / name / "undisturbed")
        expected = tables(plan, folder / name / "undisturbed", folder / name / "expected")
        assert tables(plan, folder / name / "killed", folder / name / "found") == expected


@pytest.mark.parametrize(("kills", "subsamples"), [(1, 4), pytest.param(20, 70, marks=pytest.mark.slow)])
def test_kills_lose_no_trial(plan_of, tmp_path, early_fork, kills, subsamples):
    kill_and_compare(plans_of(plan_of, subsamples), tmp_path, kills, early_fork)


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
