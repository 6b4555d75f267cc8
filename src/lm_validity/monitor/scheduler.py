"""The Snakemake that drives a run, and the Slurm jobs that it left behind if it was killed.

Slurm jobs live on when their Snakemake dies. That loses nothing (they hold leases, and a new run waits for the cells
that they compute), but a person should know of them before starting again.
"""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from lm_validity.files import read_json_or, write_json
from lm_validity.run.leases import is_alive, process_start

JOB_PREFIX = "lm-validity"  # slurm-jobname-prefix of profiles/slurm
RECORD = "controller.json"


class SlurmJob(NamedTuple):
    """A job in Slurm's queue; `comment` is what Snakemake's plugin writes: rule and wildcards."""

    id: str
    state: str
    submitted: float
    comment: str


def record_controller(results: Path) -> None:
    """Write down which Snakemake drives the run, when it starts."""
    record = {"host": socket.gethostname(), "pid": os.getpid(), "started": process_start(os.getpid())}
    write_json(results / RECORD, record | {"since": time.time()})


def controller_since(results: Path) -> float | None:
    """When the Snakemake that drives the run started; None where it is gone. One on another host counts as alive."""
    record = read_json_or(results / RECORD, None)
    if record is None:
        return None
    if record["host"] == socket.gethostname() and not is_alive(record["pid"], record["started"]):
        return None
    return record["since"]


def orphan_jobs(results: Path) -> list[SlurmJob]:
    """Jobs of this folder in Slurm's queue that no living Snakemake waits for; none where there is no Slurm."""
    since = controller_since(results)
    # the plugin submits after the start; Slurm's times are whole seconds
    return [job for job in queued_jobs(Path.cwd()) if since is None or job.submitted < since - 1]


def queued_jobs(folder: Path) -> list[SlurmJob]:
    """This user's pending and running jobs that a Snakemake submitted from `folder`."""
    if shutil.which("squeue") is None:
        return []
    # the comment last: it may hold anything
    command = ("squeue", "--noheader", "--user", str(os.getuid()), "--format", "%i|%T|%V|%j|%Z|%k")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.split("|", 5) for line in answer.stdout.splitlines()]
    return [
        SlurmJob(number, state, time.mktime(time.strptime(submitted, "%Y-%m-%dT%H:%M:%S")), comment)
        for number, state, submitted, name, workdir, comment in (row for row in rows if len(row) == 6)
        if name.startswith(f"{JOB_PREFIX}_") and Path(workdir) == folder
    ]
