"""The store: finished cells are whole or absent, and damage is found. Leases: one holder at a time; what a dead holder
leaves is taken over. GPUs of one machine, as CUDA_VISIBLE_DEVICES or nvidia-smi counts them, without GPU or torch.
"""

import errno
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from lm_validity.errors import InputError
from lm_validity.run import store as leases
from lm_validity.run.cell import BenchmarkCell, derive_seed, recipe_hash
from lm_validity.run.store import Store, check_read, hold_lease, is_stale
from lm_validity.run.workspace import Entry, read_manifest, write_manifest

CELL = BenchmarkCell("evaluate_model", "m", "x", "final", "plain", split="test")


def commit(store, address, text="items"):
    write = lambda folder: (folder / "items.txt").write_text(text)  # noqa: E731
    store.commit(address, {"value": 0.5}, {"seconds": 1}, write)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def address(store):
    return store.address(CELL, {"a": 1})


def test_a_committed_cell_is_found_and_whole(store, address):
    assert not store.has(address)
    commit(store, address)
    assert store.has(address) and store.damage(address.folder) is None
    assert store.read(address)["result"] == {"value": 0.5} and store.read(address)["recipe"] == {"a": 1}
    assert list(store.folders()) == [address.folder]
    assert check_read(store, address.folder, "items.txt").read_text() == "items"


def test_the_first_of_two_writers_stays(store, address):
    commit(store, address, "first")
    commit(store, address, "second")
    assert (store.path(address) / "items.txt").read_text() == "first"


def test_a_writer_that_dies_leaves_nothing(store, address):
    def die(folder):
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.commit(address, {}, {}, die)
    assert not store.has(address)
    assert [path.name for path in store.path(address).parent.iterdir()] == []


DAMAGE = {
    "delete file": lambda folder: (folder / "items.txt").unlink(),
    "change byte": lambda folder: (folder / "items.txt").write_text("itemz"),
    "delete index": lambda folder: (folder / "sha256.json").unlink(),
    "empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
    "delete folder": shutil.rmtree,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_found_and_mended(store, address, how):
    commit(store, address)
    DAMAGE[how](store.path(address))
    assert store.damage(address.folder)
    with pytest.raises(InputError, match="sha256 differs"):
        check_read(store, address.folder, "items.txt")
    store.remove(address.folder)
    commit(store, address)
    assert store.damage(address.folder) is None


def test_recipes_and_seeds_are_stable():
    assert recipe_hash({"b": 1, "a": [1, 2]}) == recipe_hash({"a": [1, 2], "b": 1})
    assert recipe_hash({"a": 1}) != recipe_hash({"a": 2})
    assert recipe_hash({"a": 1}) == "015abd7f5cc5"  # sha256 of {"a":1}: folders of older runs keep their names
    assert derive_seed("m", 0) == derive_seed("m", "0") != derive_seed("m", 1)
    assert 0 <= derive_seed("x") < 2**63


def test_manifests_keep_their_entries(tmp_path):
    entries = [
        Entry(CELL, "done", folder="f"),
        Entry(CELL._replace(benchmark="y"), "failed", error="NaN", hint="look"),
        Entry(BenchmarkCell("select_adapter", "m", "x", seed=0), "done", content={"prompt": "plain"}),
    ]
    write_manifest(tmp_path / "m.json", entries)
    assert read_manifest(tmp_path / "m.json") == entries
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(InputError, match="not a readable manifest"):
        read_manifest(tmp_path / "m.json")


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
def compute(tmp_path):
    """A function that starts a job on one cell, which takes so many seconds."""
    context = multiprocessing.get_context("fork")

    def job(seconds):
        started = context.Process(target=_work, args=(tmp_path / "cell.json", tmp_path / "log", seconds))
        started.start()
        return started

    return job


def test_of_many_jobs_one_computes(tmp_path, compute):
    for job in [compute(0.2) for _ in range(6)]:
        job.join(20)
        assert job.exitcode == 0
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert not (tmp_path / "cell.json").exists()


def test_a_killed_holder_is_replaced_at_once(tmp_path, compute):
    job, lease = compute(60), tmp_path / "cell.json"
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


CODE = """\
import os, sys
from lm_validity.run import store
store.POLL = 0.05
store.hold_gpus(int(sys.argv[1]), lambda line: print("waits", flush=True))
print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path):
    """A function that starts a job and returns it; what it prints are the GPUs that it is left with."""
    jobs = []

    def job(needed, **variables):
        inherited = {key: os.environ[key] for key in os.environ if key not in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = inherited | {"TMPDIR": str(tmp_path)} | variables
        jobs.append(subprocess.Popen((sys.executable, "-c", CODE, str(needed)), env=environment, **streams))
        return jobs[-1]

    yield job
    for one in jobs:
        one.kill()
        one.communicate()


def said(job):
    return job.stdout.readline().strip()


def test_each_job_has_gpus_of_its_own(start):
    jobs = [start(1, CUDA_VISIBLE_DEVICES="4, 5,GPU-6f") for _ in range(3)]
    found = [said(job) for job in jobs]
    assert sorted(found) == ["4", "5", "GPU-6f"]
    # one more waits until one of them ends, however it ends
    late = start(1, CUDA_VISIBLE_DEVICES="4,5,GPU-6f")
    assert said(late) == "waits"
    jobs[1].kill()
    assert said(late) == found[1]


def test_a_job_of_two_gpus_waits_for_both(start):
    first, second = start(1, CUDA_VISIBLE_DEVICES="0,1,2"), start(2, CUDA_VISIBLE_DEVICES="0,1,2")
    assert {said(first), *said(second).split(",")} == {"0", "1", "2"}
    third = start(2, CUDA_VISIBLE_DEVICES="0,1,2")
    assert said(third) == "waits"
    second.kill()
    assert len(said(third).split(",")) == 2


@pytest.mark.parametrize("visible", ["1", "", "NoDevFiles"])
def test_what_a_scheduler_bound_stays(start, visible):
    jobs = [start(1, CUDA_VISIBLE_DEVICES=visible) for _ in range(2)]
    assert [said(job) for job in jobs] == [visible, visible]


def test_jobs_of_slurm_number_their_own_gpus(start):
    jobs = [start(1, CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_ID=number) for number in ("7", "8", "8")]
    assert said(jobs[0]) == "0" and sorted(map(said, jobs[1:])) == ["0", "1"]


def test_without_the_variable_nvidia_smi_counts(start, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)'\necho 'GPU 1: A (UUID: GPU-2)'\n")
    tool.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert sorted(said(start(1, PATH=path)) for _ in range(2)) == ["0", "1"]
