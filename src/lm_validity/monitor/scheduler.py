"""The Snakemake that drives a run, and the Slurm jobs that it left behind if it was killed.

Slurm jobs live on when their Snakemake dies. That loses nothing (they hold leases, and a new run waits for the cells
that they compute), but a person should know of them before starting again.

While it lives, it waits for its jobs. `keep_polled_jobs` sees to it that an outage of Slurm does not make it wait for
ever.
"""

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

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
    result: float | None = record["since"]
    return result


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


def keep_polled_jobs() -> None:
    """Mend the executor plugin for Slurm, where Snakemake has it: every job of a poll is reported or asked about again.

    Version 2.8.0 drops all jobs of a poll that Slurm does not answer, and waits for ever for a job that squeue no
    longer lists, since it ended more than MinJobAge ago. Here the first are kept, and the second are reported as
    failed. Snakemake then submits them again, and they find what they finished in the store.
    """
    plugin: Any = sys.modules.get("snakemake_executor_plugin_slurm")
    query = getattr(plugin, "query_job_status", None)
    if query is None or query.__module__ == __name__:
        return
    check = plugin.Executor.check_active_jobs
    listed: set[str] | None = None  # by squeue at this poll; None where it was not asked or did not answer

    async def query_job_status(command: str, logger: logging.Logger) -> tuple[dict[str, str], float]:
        """States by job and the seconds the query took; no states where the command did not answer."""
        nonlocal listed
        states, seconds = await query(command, logger)
        listed = None
        if states is None:
            logger.warning(f"{command.split()[0]} does not answer. The jobs go on, and the next poll asks again.")
            return {}, 0.0
        if command.startswith("squeue"):
            listed = {_base_id(job) for job in states}
        return states, seconds

    async def check_active_jobs(self: Any, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """The jobs that go on; one that squeue no longer lists is reported as failed."""
        async for job in check(self, active_jobs):
            if listed is None or _base_id(job.external_jobid) in listed:
                yield job
            else:
                self.report_job_error(job, msg=f"Slurm no longer knows job {job.external_jobid}. ")

    plugin.query_job_status, plugin.Executor.check_active_jobs = query_job_status, check_active_jobs


def skip_hidden_jobs(quiet: Collection[object]) -> None:
    """A dry run that shows no rules (`--quiet rules`) does not write out every job's message and command either, which
    takes a third of its time. What is counted and shown stays the same."""
    dry_run: Any = sys.modules.get("snakemake.executors.dryrun")
    if dry_run is not None and any(getattr(kind, "name", "") == "RULES" for kind in quiet):
        dry_run.Executor.printjob = lambda self, job: None


_IN_RULE = re.compile(r"^Error in rule (\w+):$", re.MULTILINE)
_LOG = re.compile(r"^ {4}log: ([^\n]*?) \(check log file", re.MULTILINE)
_JOB = re.compile(r"^ {4}jobid: (\d+)$", re.MULTILINE)


def failed_jobs(logs: Iterable[Path]) -> list[str]:
    """A line for each job that failed and that no further attempt has finished, from Snakemake's logs: its rule, the
    last line of the job's own log, and where that is."""
    return list(dict.fromkeys(line for log in logs for line in _failed_in(_text(log))))


def _failed_in(written: str) -> list[str]:
    starts = [*_IN_RULE.finditer(written)]
    ends = [*(match.start() for match in starts[1:]), len(written)][: len(starts)]
    failures = []
    for start, end in zip(starts, ends, strict=True):
        job = _JOB.search(written, start.start(), end)
        if job and re.search(rf"^Finished jobid: {job[1]}\b", written[start.start() :], re.MULTILINE):
            continue
        log_entry = _LOG.search(written, start.start(), end)
        log_lines = (
            [line.strip() for line in _text(Path(log_entry[1])).splitlines() if line.strip()] if log_entry else []
        )
        words = ": ".join([f"failed job: {start[1]}", *log_lines[-1:]])
        failures.append(f"{words} ({log_entry[1]})" if log_entry else words)
    return failures


def _text(path: Path) -> str:
    """What is in a file; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _base_id(job: str) -> str:
    """The id of a job, or of the array that it is a task of."""
    return job.partition("_")[0]
