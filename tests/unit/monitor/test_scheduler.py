"""Which Slurm jobs a killed Snakemake left behind, by a squeue that answers as Slurm's does."""

import os
import socket
import subprocess
import time

import pytest

from lm_validity.files import write_json
from lm_validity.monitor.scheduler import controller_since, orphan_jobs, record_controller


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A function that puts lines (id, state, seconds since submission, name, folder) into the queue."""
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)

    def put(*rows):
        lines = [
            f"{number}|{state}|{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(time.time() - age))}"
            f"|{name}|{folder}|rule_finetune_adapter_wildcards_m_x|y"
            for number, state, age, name, folder in rows
        ]
        (tools / "squeue").write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
        (tools / "squeue").chmod(0o755)

    return put


def test_jobs_older_than_the_living_snakemake_are_orphans(tmp_path, queue):
    queue(
        (1, "RUNNING", 1000, "lm-validity_a", tmp_path),
        (2, "PENDING", -5, "lm-validity_b", tmp_path),
        (3, "RUNNING", 1000, "lm-validity_c", tmp_path / "elsewhere"),
        (4, "RUNNING", 1000, "somebody", tmp_path),
    )
    assert [job.id for job in orphan_jobs(tmp_path)] == ["1", "2"], "no Snakemake drives the run"
    record_controller(tmp_path)
    (job,) = orphan_jobs(tmp_path)
    assert (job.id, job.state, job.comment) == ("1", "RUNNING", "rule_finetune_adapter_wildcards_m_x|y")


def test_a_controller_is_known_by_its_process(tmp_path):
    assert controller_since(tmp_path) is None
    before = time.time()
    record_controller(tmp_path)
    assert before <= controller_since(tmp_path) <= time.time()
    gone = subprocess.Popen(["true"])
    gone.wait()
    record = {"host": socket.gethostname(), "pid": gone.pid, "started": None, "since": 5.0}
    write_json(tmp_path / "controller.json", record)
    assert controller_since(tmp_path) is None
    write_json(tmp_path / "controller.json", record | {"host": "another login node"})
    assert controller_since(tmp_path) == 5.0, "another host's processes cannot be seen"


def test_without_slurm_there_are_no_orphans(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert orphan_jobs(tmp_path) == []
