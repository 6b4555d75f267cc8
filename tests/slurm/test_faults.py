"""What may happen to a run of days, one after the other: finished cells stay, the next run computes only what is
missing, and the final tables are the bytes of an undisturbed run."""

import os
import re
import shutil
import signal
import subprocess

import pytest
from faults import CONFIG, MODEL, RESULTS, TARGET, before_training, complete
from machine import output, wait_for
from slurm_cluster import NODES

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


def test_a_flaky_job_is_tried_again(project, undisturbed):
    process, before = project.begin(trouble="flaky")
    assert "Trying to restart job" in project.finish(process)
    assert max(project.computations().values()) == 2, "the second fine-tune was begun twice"
    project.check(before, undisturbed)


def test_out_of_memory_is_tried_again_with_more(project, undisturbed):
    process, before = project.begin(trouble="memory")
    said = project.finish(process)
    assert "Trying to restart job" in said
    finetunes = [job for job, comment in project.jobs("all") if "finetune_adapter" in comment]
    asked = [output("squeue", "-h", "-t", "all", "-j", job, "-o", "%m").strip() for job in sorted(finetunes, key=int)]
    assert asked == ["1000M", "2000M"]
    project.check(before, undisturbed)


def test_scancel(project, undisturbed):
    process, before = project.begin()
    output("scancel", project.finetune_job())
    assert "CANCELLED" in project.finish(process)
    project.check(before, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_snakemake_is_told_to_stop(project, undisturbed, number):
    """Its jobs are cancelled, or finish first; the next run goes on."""
    process, before = project.begin()
    process.send_signal(number)
    if number == signal.SIGTERM:  # Snakemake waits for its jobs
        wait_for("Snakemake says so", lambda: "Will exit after finishing" in project.screen.read_text(), 60)
        assert project.finetune_job() and process.poll() is None
        project.let_go()
    project.finish(process, code=1)
    wait_for("no job is left", lambda: not project.jobs(), 30)
    project.recover()
    project.check(before, undisturbed)


def test_snakemake_is_killed_and_its_jobs_live_on(project, undisturbed):
    """The orphan goes on, preflight names it, the next run waits for its cells instead of computing them again."""
    process, before = project.begin()
    process.kill()
    process.wait()
    orphan = project.finetune_job()
    said = project.run("lm-validity", "preflight", *CONFIG, code=1)
    assert f"Slurm job {orphan} (rule_finetune_adapter_wildcards_{MODEL}_" in said
    assert "left by a Snakemake" in said and "let it finish" in said
    assert "being computed by another job" in said
    assert "LockException" in project.run("snakemake", "--profile", "slurm", *CONFIG, code=1)
    project.run("snakemake", "--unlock", *CONFIG)
    process = project.start()
    wait_for("the new job waits", project.a_job_waits, 180)
    project.let_go()
    project.finish(process)
    project.check(before, undisturbed)
    assert set(project.computations().values()) == {1}, "nothing was even begun twice"


@pytest.mark.parametrize(("how", "whose"), [("one byte changed", "lr3e-3"), ("truncated", "plain.test")])
def test_a_damaged_file_in_the_store(shared, undisturbed, tmp_path, how, whose):
    project = complete(undisturbed, tmp_path / "project")
    before = project.sidecars()
    cell = next(cell for cell in before if whose in cell)
    victim = max((project.store / cell).rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    content = victim.read_bytes()
    victim.write_bytes(content[: len(content) // 2] if how == "truncated" else content[:-1] + b"?")
    said = project.run("lm-validity", "preflight", *CONFIG, code=1)
    assert f"{cell}: " in said and "does not have the recorded sha256; will be computed again" in said
    # as the collection targets do: Snakemake does not restore a missing manifest whose descendants exist
    cells = undisturbed.folder / RESULTS / "cells"
    manifests = [str(path.relative_to(undisturbed.folder)) for path in sorted(cells.glob("*/*/*.json"))]
    try:
        project.finish(project.start(trouble="none", targets=(TARGET, *manifests)))
    finally:
        project.stop()
    assert project.computations() == {cell.split("--")[0]: 1}, "that cell and no other"
    del before[cell]
    project.check(before, undisturbed)


@pytest.mark.slow
def test_a_full_disk(shared, undisturbed, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
        project = before_training(undisturbed, disk / "project", notes=tmp_path / "notes")
        process, before = project.begin()
        with open(disk / "filler", "wb") as filler:
            free = shutil.disk_usage(disk).free
            os.posix_fallocate(filler.fileno(), 0, free)
        project.let_go()
        project.finish(process, code=1)
        wait_for("no job is left", lambda: not project.jobs(), 60)
        (disk / "filler").unlink()
        assert not list(project.store.rglob(".writing-*")), "nothing half-written"
        project.recover()
        project.check(before, undisturbed)
    finally:
        project.stop()
        subprocess.run(["umount", disk], check=True)


# Those that break the cluster for everybody come last: they wait until nobody else uses it.


@pytest.mark.parametrize("lives_on", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_node_loses_power_or_is_cut_off_and_its_job_lives_on(alone, project, undisturbed, lives_on):
    """Slurm gives the job up; the retry on the other node waits for the one that still computes."""
    process, before = project.begin()
    node = output("squeue", "-h", "-j", project.finetune_job(), "-o", "%N").strip()
    assert node in NODES
    try:
        alone.kill_node(node, with_jobs=not lives_on)
        if lives_on:
            wait_for("the retry waits", project.a_job_waits, 180)
            project.let_go()
        said = project.finish(process)
    finally:
        alone.start_node(node)
        alone.wait_for_nodes()
    assert "NODE_FAIL" in said
    project.check(before, undisturbed)
    assert not lives_on or set(project.computations().values()) == {1}, "nothing was even begun twice"


def test_slurms_controller_is_killed_at_a_poll(alone, project, undisturbed, tmp_path):
    """A poll begins with `scontrol show config`. That call, and all others of this poll, find no controller."""
    killed, armed = tmp_path / "killed", tmp_path / "armed"
    project.trouble = shutil.copytree(project.trouble, tmp_path / "bin")
    (project.trouble / "scontrol").write_text(
        f"#!/bin/sh\nmv {armed} {killed} 2>/dev/null && kill -KILL $(cat {alone.pids}/slurmctld.pid)\n"
        f'exec {shutil.which("scontrol")} "$@"\n'
    )
    (project.trouble / "scontrol").chmod(0o755)
    process, before = project.begin()
    armed.touch()
    try:
        wait_for("a poll without an answer", lambda: "sacct does not answer" in project.screen.read_text(), 120)
        assert killed.exists()
    finally:
        alone.start_controller()
    project.let_go()
    project.finish(process)
    project.check(before, undisturbed)
    assert set(project.computations().values()) == {1}


@pytest.mark.slow
def test_the_time_limit(project, undisturbed):
    """One minute at the first attempt, two at the second: SIGTERM, and the retry goes on after the last epoch."""
    process, before = project.begin("--set-resources", "finetune_adapter:runtime=attempt")
    assert "TIMEOUT" in project.finish(process)
    project.check(before, undisturbed)
    sidecars = [path.read_text() for path in project.store.glob("finetune_adapter/*/*/sidecar.json")]
    resumed = [int(epochs) for text in sidecars for epochs in re.findall(r'"resumed_epochs": *(\d+)', text)]
    assert len(resumed) == len(sidecars) == 2 and max(resumed) >= 2
