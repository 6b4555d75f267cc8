"""Which Slurm jobs a killed Snakemake left behind, and which a living one waits for, by a squeue that answers as
Slurm's does."""

import asyncio
import logging
import operator
import os
import socket
import subprocess
import time
from types import SimpleNamespace

import pytest
from throttler import Throttler

from lm_validity.files import write_json
from lm_validity.monitor.status import (
    controller_since,
    keep_polled_jobs,
    orphan_jobs,
    record_controller,
    skip_hidden_jobs,
)


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


@pytest.fixture
def poll(tmp_path, monkeypatch):
    """A function that lets the plugin, as it is installed, ask about jobs 1 and 2 and says which it keeps and reports;
    `squeue` and `scontrol` are shell lines, and `sacct` is Slurm's where there is no accounting."""
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm")
    for name in ("query_job_status", "Executor.check_active_jobs"):
        monkeypatch.setattr(f"snakemake_executor_plugin_slurm.{name}", operator.attrgetter(name)(plugin))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    keep_polled_jobs()
    keep_polled_jobs()  # a workflow that is a module of two others is read twice

    def ask(scontrol, squeue):
        for name, line in (("scontrol", scontrol), ("squeue", squeue), ("sacct", "exit 1")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / name).chmod(0o755)
        executor, reported = object.__new__(plugin.Executor), {}
        settings = SimpleNamespace(
            status_command="squeue", status_attempts=2, init_seconds_before_status_checks=20, keep_successful_logs=True
        )
        vars(executor).update(
            workflow=SimpleNamespace(executor_settings=settings), logger=logging.getLogger(), run_uuid="lm-validity_x",
            status_rate_limiter=Throttler(100), _next_seconds_between_status_checks=20,
            _status_query_calls=0, _status_query_failures=0, _status_query_total_seconds=0.0,
            _status_query_min_seconds=None, _status_query_max_seconds=0.0, _status_query_cycle_rows=[],
            report_job_success=lambda job: reported.update({job.external_jobid: "done"}),
            report_job_error=lambda job, **_: reported.update({job.external_jobid: "failed"}),
        )  # fmt: skip

        async def one_poll():
            jobs = [SimpleNamespace(external_jobid=number, aux={}) for number in ("1", "2")]
            return [job.external_jobid async for job in executor.check_active_jobs(jobs)]

        return asyncio.run(one_poll()), reported

    return ask


CONFIG = "echo 'MinJobAge = 300 sec'"


@pytest.mark.parametrize(("scontrol", "squeue", "kept", "reported"), [
    (CONFIG, "echo '1|RUNNING'; echo '2|COMPLETED'", ["1"], {"2": "done"}),
    ("exit 1", "exit 1", ["1", "2"], {}),  # no controller: the plugin asks sacct instead, which knows nothing
    (CONFIG, "exit 1", ["1", "2"], {}),  # it dies between two calls
    (CONFIG, "echo '1|RUNNING'", ["1"], {"2": "failed"}),
    (CONFIG, "true", [], {"1": "failed", "2": "failed"}),
])  # fmt: skip
def test_no_job_of_a_poll_is_lost(poll, scontrol, squeue, kept, reported):
    """A job is kept until Slurm says how it ended, or no longer knows it."""
    assert poll(scontrol, squeue) == (kept, reported)


def test_a_dry_run_that_hides_rules_writes_no_job_out(monkeypatch):
    from snakemake.executors import dryrun
    from snakemake.settings.enums import Quietness

    own = dryrun.Executor.printjob
    monkeypatch.setattr(dryrun.Executor, "printjob", own)
    skip_hidden_jobs({Quietness.PROGRESS})
    assert dryrun.Executor.printjob is own
    skip_hidden_jobs({Quietness.RULES})
    assert dryrun.Executor.printjob(None, None) is None
