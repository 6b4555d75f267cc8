"""GPUs of one machine, as CUDA_VISIBLE_DEVICES or nvidia-smi counts them: real processes, no GPU and no torch."""

import os
import subprocess
import sys

import pytest

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
