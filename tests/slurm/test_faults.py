"""What may happen to a run of days, one after the other: finished cells stay, the next run computes only what is
missing, and the final tables are the bytes of an undisturbed run."""

import os
import shutil
import signal
import subprocess
import time

import pytest
from faults import CONFIG, MODEL, RESULTS, TARGET, before_training, complete, make_project
from machine import output, wait_for
from slurm_cluster import NODES

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


def test_a_flaky_job_is_tried_again(project, undisturbed):
    before = project.sidecars()
    said = project.finish(project.start(trouble="flaky"))
    assert "Trying to restart job" in said
    finetunes = {cell for cell, times in project.computations().items() if cell.startswith("finetune_adapter/")}
    assert max(project.computations()[cell] for cell in finetunes) == 2, "the second fine-tune was begun twice"
    first = next(cell for cell in project.sidecars() if "lr1e-3" in cell)
    before[first] = project.sidecars()[first]
    project.record("job killed (kill -9)", "retry in the same run", before, undisturbed)


def test_out_of_memory_is_tried_again_with_more(project, undisturbed):
    process = project.start(trouble="memory")
    before = project.wait_for_progress()
    said = project.finish(process)
    assert "Trying to restart job" in said
    finetunes = [job for job, comment in project.jobs("all") if "finetune_adapter" in comment]
    asked = [output("squeue", "-h", "-t", "all", "-j", job, "-o", "%m").strip() for job in sorted(finetunes, key=int)]
    assert asked == ["1000M", "2000M"]
    project.record("out of memory", "retry with twice the memory", before, undisturbed)


def test_scancel(project, undisturbed):
    process = project.start()
    before = project.wait_for_progress()
    output("scancel", project.finetune_job())
    assert "CANCELLED" in project.finish(process)
    project.record("scancel of a job", "retry in the same run", before, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "survived"), [
    (signal.SIGINT, "next run; its jobs are cancelled"),
    (signal.SIGTERM, "next run; its jobs finish first"),
])  # fmt: skip
def test_snakemake_is_told_to_stop(project, undisturbed, number, survived):
    process = project.start()
    before = project.wait_for_progress()
    process.send_signal(number)
    project.finish(process, code=1)
    wait_for("no job is left", lambda: not project.jobs(), 30)
    project.recover()
    project.record(f"{number.name} to Snakemake", survived, before, undisturbed)


def test_snakemake_is_killed_and_its_jobs_live_on(project, undisturbed):
    """The orphan goes on, preflight names it, the next run waits for its cells instead of computing them again."""
    process = project.start()
    before = project.wait_for_progress()
    process.kill()
    process.wait()
    orphan = project.finetune_job()
    said = project.run("lm-validity", "preflight", *CONFIG)
    assert f"Slurm job {orphan} (rule_finetune_adapter_wildcards_{MODEL}_" in said
    assert "left by a Snakemake that is gone; let it finish" in said
    assert "being computed by another job" in said
    assert "LockException" in project.run("snakemake", "--profile", "slurm", *CONFIG, code=1)
    project.recover()
    project.record("SIGKILL to Snakemake, jobs live on", "next run, after --unlock", before, undisturbed)
    assert set(project.computations().values()) == {1}, "nothing was even begun twice"


@pytest.mark.parametrize("how", ["one byte changed", pytest.param("truncated", marks=pytest.mark.slow)])
def test_a_damaged_file_in_the_store(shared, undisturbed, tmp_path, show, how):
    project = complete(undisturbed, tmp_path / "project")
    project.show = show
    before = project.sidecars()
    cell = next(cell for cell in before if "lr3e-3" in cell)
    victim = next((project.store / cell).rglob("*.safetensors"))
    content = victim.read_bytes()
    victim.write_bytes(content[: len(content) // 2] if how == "truncated" else content[:-1] + b"?")
    said = project.run("lm-validity", "preflight", *CONFIG)
    assert f"{cell}: " in said and "does not have the recorded sha256; will be computed again" in said
    # as the collection targets do: Snakemake does not restore a missing manifest whose descendants exist
    cells = undisturbed.folder / RESULTS / "cells"
    manifests = [str(path.relative_to(undisturbed.folder)) for path in sorted(cells.glob("*/*/*.json"))]
    try:
        project.finish(project.start(targets=(TARGET, *manifests)))
    finally:
        project.stop()
    assert project.computations() == {cell.split("--")[0]: 1}, "that cell and no other"
    del before[cell]
    project.record(f"file in the store {how}", "preflight, next run", before, undisturbed)


@pytest.mark.slow
def test_a_full_disk(shared, undisturbed, tmp_path, show):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
        project = before_training(undisturbed, disk / "project", notes=tmp_path / "notes")
        project.show = show
        process = project.start()
        before = project.wait_for_progress()
        with open(disk / "filler", "wb") as filler:
            free = shutil.disk_usage(disk).free
            os.posix_fallocate(filler.fileno(), 0, free)
        project.finish(process, code=1)
        wait_for("no job is left", lambda: not project.jobs(), 60)
        (disk / "filler").unlink()
        assert not list(project.store.rglob(".writing-*")), "nothing half-written"
        project.recover()
        project.record("full disk", "next run, with space", before, undisturbed)
    finally:
        project.stop()
        subprocess.run(["umount", disk], check=True)


# Those that break the cluster for everybody come last: they wait until nobody else uses it.


@pytest.mark.parametrize(
    ("with_jobs", "fault"),
    [(True, "node loses power"), pytest.param(False, "node cut off, its job lives on", marks=pytest.mark.slow)],
)
def test_a_node_goes_down(alone, project, undisturbed, with_jobs, fault):
    process = project.start()
    before = project.wait_for_progress()
    node = output("squeue", "-h", "-j", project.finetune_job(), "-o", "%N").strip()
    assert node in NODES
    try:
        alone.kill_node(node, with_jobs=with_jobs)
        said = project.finish(process)
    finally:
        alone.start_node(node)
        alone.wait_for_nodes()
    assert "NODE_FAIL" in said
    project.record(fault, "retry on another node", before, undisturbed)
    if not with_jobs:
        assert set(project.computations().values()) == {1}, "the job on the other node waited for the lease"


@pytest.mark.slow
def test_slurms_controller_is_killed(alone, project, undisturbed):
    process = project.start()
    before = project.wait_for_progress()
    alone.kill_controller()
    time.sleep(15)  # status checks fail meanwhile
    alone.start_controller()
    project.finish(process)
    project.record("slurmctld dead for 15 s", "the same run goes on", before, undisturbed)
    assert set(project.computations().values()) == {1}


@pytest.mark.slow
def test_the_time_limit(shared, tmp_path, show):
    """One minute at the first attempt, two at the second: SIGTERM, and the retry goes on after the last epoch."""
    long = {"epochs: 24": "epochs: 400"}
    projects = [make_project(tmp_path / name / "project") for name in ("undisturbed", "limited")]
    for project in projects:
        file = project.folder / "config" / "fault.yaml"
        for old, new in long.items():
            file.write_text(file.read_text().replace(old, new))
    undisturbed, project = projects
    project.show = show
    undisturbed.run("snakemake", TARGET, "--profile", "profiles/local", "--cores", "2", *CONFIG)
    process = project.start("--set-resources", "finetune_adapter:runtime=attempt")
    try:
        said = project.finish(process, seconds=800)
    finally:
        project.stop()
    assert "TIMEOUT" in said
    project.record("time limit", "retry with more time", {}, undisturbed)
    resumed = (project.folder / RESULTS / "store").rglob("sidecar.json")
    assert any('"resumed_epochs": 0' not in path.read_text() for path in resumed if "finetune" in str(path))
