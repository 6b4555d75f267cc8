"""Leases: one holder at a time; what a dead holder leaves is taken over."""

import errno
import json
import multiprocessing
import os
import socket
import time

import pytest

from lm_validity.run import store as leases
from lm_validity.run.store import Store, hold_lease, is_stale


def _work(lease, log, seconds):
    done = log.with_suffix(".done")
    leases.POLL = 0.02
    with hold_lease(lease, done.exists) as ours:
        if ours:
            with open(log, "a") as handle:
                handle.write(f"{os.getpid()}\n")
            time.sleep(seconds)
            done.touch()


@pytest.fixture
def start(tmp_path):
    """A function that starts a job on one cell, which takes so many seconds."""
    context = multiprocessing.get_context("fork")

    def job(seconds):
        started = context.Process(target=_work, args=(tmp_path / "cell.json", tmp_path / "log", seconds))
        started.start()
        return started

    return job


def test_of_many_jobs_one_computes(tmp_path, start):
    for job in [start(0.2) for _ in range(6)]:
        job.join(20)
        assert job.exitcode == 0
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert not (tmp_path / "cell.json").exists()


def test_a_killed_holder_is_replaced_at_once(tmp_path, start):
    job, lease = start(60), tmp_path / "cell.json"
    while not (tmp_path / "log").exists():
        time.sleep(0.01)
    job.kill()
    job.join(20)
    assert lease.exists() and is_stale(lease)
    with hold_lease(lease, lambda: False) as ours:
        assert ours


@pytest.fixture
def foreign(tmp_path):
    """A lease of a job on another host."""
    path = tmp_path / "cell.json"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": None, "slurm_job": None}))
    return path


def test_a_foreign_lease_is_stale_by_its_heartbeat_and_not_by_this_clock(foreign, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + leases.STALE + 10)
    assert not is_stale(foreign)
    os.utime(foreign, (now - leases.STALE - 1, now - leases.STALE - 1))
    assert is_stale(foreign)


def test_a_link_whose_reply_is_lost_is_held(tmp_path, monkeypatch):
    """NFS asks again, and the second reply says that the file exists."""
    link, waits = os.link, []

    def link_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    with hold_lease(tmp_path / "cell.json", lambda: bool(waits), waits.append) as ours:
        assert ours and not waits
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing_of_a_lease(tmp_path, monkeypatch):
    def full(path, text, encoding):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(leases.Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"), hold_lease(tmp_path / "cell.json", lambda: False):
        pass
    assert not list(tmp_path.iterdir())


def test_a_cell_of_a_long_name_can_be_held(tmp_path):
    """A file name may have 255 bytes."""
    store = Store(tmp_path)
    one, other = (store.lease(f"evaluate_model/{'é' * 60}/{'b' * 120}--{name}") for name in "ab")
    with hold_lease(one, lambda: False) as ours, hold_lease(other, lambda: False) as ours_too:
        assert ours and ours_too and one != other


def test_a_foreign_lease_is_stale_when_its_slurm_job_is_gone(foreign, tmp_path, monkeypatch):
    foreign.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": None, "slurm_job": "7"}))
    assert not is_stale(foreign), "a lease that is touched is held, and the scheduler is not asked"
    tools = tmp_path / "bin"
    tools.mkdir()
    squeue = tools / "squeue"
    quiet = time.time() - 2 * leases.HEARTBEAT - 1
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    for answer, stale in (("echo RUNNING", False), ("echo FAILED", True), ("echo 'Invalid job id' >&2; exit 1", True)):
        squeue.write_text(f"#!/bin/sh\n{answer}\n")
        squeue.chmod(0o755)
        os.utime(foreign, (quiet, quiet))
        assert is_stale(foreign) is stale


def test_a_reused_pid_is_not_the_holder(tmp_path):
    path = tmp_path / "cell.json"
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": "1", "slurm_job": None}
    path.write_text(json.dumps(holder))
    assert is_stale(path)
    path.write_text(json.dumps(holder | {"started": leases.process_start(os.getpid())}))
    assert not is_stale(path)


def test_heartbeat_touches_the_lease(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT", 0.05)
    path = tmp_path / "cell.json"
    with hold_lease(path, lambda: False) as ours:
        assert ours
        os.utime(path, (1, 1))
        time.sleep(0.3)
        assert path.stat().st_mtime > 1
