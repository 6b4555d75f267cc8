"""The documented commands on a real Slurm: what they submit, what squeue shows, what comes out.

Also for a user who may not look into the folders of this environment: root's home, a private checkout.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from faults import BIN, CONFIG, MODEL, RESULTS, ROOT, FaultProject, complete, copy_project, make_project
from machine import output, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
TEST = ("--configfile", "config/test.yaml")
TOKEN = "hf_" + "thisMustNotBeWrittenAnywhere"


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    """config/test.yaml on this machine without Slurm."""
    project = FaultProject(copy_project(tmp_path_factory.mktemp("local") / "project"))
    project.run("snakemake", "--profile", "profiles/local", "--cores", "2", *TEST)
    return project.folder


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "results/test/tables").glob("*.parquet"))}


@pytest.mark.timeout(1800)  # with the local run that it compares with
def test_the_literal_command_gives_the_tables_of_a_local_run(shared, local, tmp_path):
    """`snakemake --profile slurm` from the project's root; the jobs have no network at all, and a token in the
    environment is written nowhere."""
    project = FaultProject(copy_project(tmp_path / "project"))
    environment = project.environment("offline") | {"HF_TOKEN": TOKEN, "HUGGING_FACE_HUB_TOKEN": TOKEN}
    with open(project.screen, "w") as screen:
        process = subprocess.Popen(
            ("snakemake", "--profile", "slurm", *TEST),
            cwd=project.folder, env=environment, stdout=screen, stderr=subprocess.STDOUT,
        )  # fmt: skip
    project.processes.append(process)
    seen, shown = set(), ""

    def look():
        nonlocal shown
        shown += output("scontrol", "show", "jobs", "--details")
        seen.update(project.jobs())
        return process.poll() is not None

    try:
        wait_for("the end of the run", look, 800)
        said = project.finish(process)
    finally:
        project.stop()
    assert tables(project.folder) == tables(local) and len(tables(local)) == 5
    for name in ("agreement", "factors"):
        rows = f"results/test/reports/{name}/results.parquet"
        assert (project.folder / rows).read_bytes() == (local / rows).read_bytes()

    comments = {comment for _, comment in seen}
    assert f"rule_finetune_adapter_wildcards_{MODEL}_cloze.plain.all-rates.seed0" in comments
    assert "JobName=lm-validity_" in shown
    # what Snakemake says of a job: its log's path has model and benchmark
    assert f"slurm_logs/rule_finetune_adapter/{MODEL}_cloze.plain.all-rates.seed0/" in said

    calls = re.findall(r"^== (\S+) job (\d+) node (n\d)", project.said_by_cells(), re.MULTILINE)
    assert {"evaluate-model", "finetune-adapter", "evaluate-adapter", "miniature", "merge"} <= {
        name for name, *_ in calls
    }
    assert {node for *_, node in calls} == {"n1", "n2"}
    interfaces = re.findall(r"^interfaces: (.*)$", project.said_by_cells(), re.MULTILINE)
    assert len(interfaces) == len(calls) and set(interfaces) == {"lo"}

    assert TOKEN not in said + shown + project.said_by_cells()
    found = subprocess.run(("grep", "-rl", TOKEN, project.folder), capture_output=True, text=True)
    assert found.stdout == ""
    # a second run has nothing to do and submits nothing
    assert "Nothing to be done" in project.run("snakemake", "--profile", "slurm", *TEST)


# what a profile's set-resources say -> what Slurm then says of the job, and the GPUs that it sees
SITES = {
    "number": ("gpu: 1", "TresPerJob=gres:gpu:1", {"0", "1"}),
    "model": ("gpu_model: a100", "TresPerJob=gres:gpu:a100:1", {"0", "1"}),
    "gres": ("gpu: 0\n    gres: gpu:a100:2", "TresPerNode=gres:gpu:a100:2", {"0,1"}),
}


@pytest.mark.parametrize("site", SITES)
def test_gpu_requests_of_three_kinds_of_cluster(shared, tmp_path, site):
    """The flags of docs/how_to/cluster.md reach Slurm, and the job sees its GPUs. One rule, and no other job."""
    flags, request, visible = SITES[site]
    profile = tmp_path / "profiles" / "mine"
    profile.mkdir(parents=True)
    own = (ROOT / "profiles/slurm/config.yaml").read_text()
    own = own.replace("seconds-before-status-checks: 20", "seconds-before-status-checks: 3")
    (profile / "config.yaml").write_text(f"{own}\nset-resources:\n  work:\n    {flags}\n")
    (tmp_path / "Snakefile").write_text(
        "rule work:\n    output: 'seen'\n    resources: gpu=1, mem_mb=600, runtime=5\n"
        "    shell: 'echo $CUDA_VISIBLE_DEVICES > {output}; scontrol show job $SLURM_JOB_ID > job'\n"
    )  # fmt: skip
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    subprocess.run(("snakemake", "--profile", "profiles/mine"), cwd=tmp_path, env=environment, check=True, timeout=200)
    assert (tmp_path / "seen").read_text().strip() in visible
    # newer Slurm writes gres/gpu
    assert request in (tmp_path / "job").read_text().replace("gres/", "gres:")


# profiles/slurm-example-site, its commented lines included -> what Slurm says of a CPU job and of a GPU job
EXAMPLE = {
    "split_benchmark": {"Partition=cpu", "Account=my_project"},
    "evaluate_model": {"Partition=gpu", "Account=my_project", "TresPerJob=gres:gpu:a100:1", "Features=a100_80gb"},
}


def test_the_example_of_a_sites_profile(shared, undisturbed, tmp_path):
    """As it stands it plans the whole run; with its commented lines taken in, its jobs ask for what they say."""
    project = complete(undisturbed, tmp_path / "project")
    profile = "profiles/slurm-example-site"
    manifests = sorted((project.folder / RESULTS / "cells/evaluate_model").glob("*/*.json"))
    for path in [*manifests, *(project.folder / RESULTS / "splits").glob("*/*.json")]:
        path.unlink()
    shutil.rmtree(project.store / "evaluate_model")
    targets = tuple(str(path.relative_to(project.folder)) for path in manifests)
    planned = project.run("snakemake", "-n", *targets, "--profile", profile, *CONFIG)
    assert set(re.findall(r"^(\w+) +1$", planned, re.MULTILINE)) == set(EXAMPLE)

    example = project.folder / profile / "config.yaml"
    # `key: value` behind a # at a list's indentation is a line to take in; the rest are comments
    taken, count = re.subn(r"^( +)# (\w+: )", r"\1\2", example.read_text(), flags=re.MULTILINE)
    assert count == 4
    reservation = ("ReservationName=ml", "Users=root", "StartTime=now", "Duration=30", "Nodes=n1", "CoreCnt=2")
    example.write_text(taken)
    output("scontrol", "create", "reservation", *reservation)
    shown = ""
    process = project.start(trouble="none", targets=targets, profile=profile)
    try:
        project.finish(process)
        shown = output("scontrol", "show", "jobs", "--oneliner")
    finally:
        project.stop()
        output("scontrol", "delete", "ReservationName=ml")
    mine = {
        comment: line for job, comment in project.jobs("all") for line in shown.splitlines() if f"JobId={job} " in line
    }
    for rule, wanted in EXAMPLE.items():
        (line,) = (line for comment, line in mine.items() if f"rule_{rule}_" in comment)
        assert wanted <= set(line.replace("gres/", "gres:").split())
    assert "Reservation=ml" in line
    assert project.cells() == undisturbed.cells()


def test_an_ordinary_user_runs_it_from_nothing_to_the_tables(shared, undisturbed):
    """The cluster's daemons are root's; its users are not. No file is taken over from root's run."""
    folder = Path(tempfile.mkdtemp(prefix="lm-validity-nobody-"))
    folder.chmod(0o755)
    project = make_project(folder / "home" / "project")
    project.user = NOBODY
    try:
        with environment_for_everyone(folder / "environment") as environment:
            project.programs, project.trouble, variables = environment
            project.variables = variables | {"HOME": str(folder / "home")}
            subprocess.run(("chown", "-R", "nobody:nogroup", folder / "home"), check=True)
            project.finish(project.start(trouble="none"))
            project.stop()
        made = [path for path in folder.joinpath("home/project/results").rglob("*")]
        assert {path.owner() for path in made} == {"nobody"}
        assert re.search(r"^== finetune-adapter job \d+ node n\d", project.said_by_cells(), re.MULTILINE)
        assert project.cells() == undisturbed.cells()
        assert project.tables() == undisturbed.tables()
    except CannotMount as reason:
        pytest.skip(f"mount is not allowed here: {reason}")
    finally:
        project.stop()
        shutil.rmtree(folder)


# for subprocess: as this user, without root's groups
NOBODY = {"user": "nobody", "group": "nogroup", "extra_groups": []}
SCRIPTS = ("snakemake", "lm-validity")


class Environment(NamedTuple):
    """Where its programs are, those that make trouble, and the variables that it needs."""

    programs: Path
    trouble: Path
    variables: dict[str, str]


class CannotMount(Exception):
    """This machine does not let root mount, as in many containers."""


@contextmanager
def environment_for_everyone(folder: Path) -> Iterator[Environment]:
    """A virtual environment under `folder` with this Python, its packages and this package, while the block runs.

    Mounted, because a copy is gigabytes; read-only, so that whatever removes `folder` cannot remove the checkout.
    Raises CannotMount.
    """
    packages = Path(sysconfig.get_path("purelib"))
    own_packages = folder / packages.relative_to(sys.prefix)
    mounts = {Path(sys.base_prefix): folder / "python", packages: own_packages, ROOT / "src": folder / "src"}
    mounted = []
    try:
        for source, target in mounts.items():
            target.mkdir(parents=True)
            done = subprocess.run(("mount", "-o", "bind,ro", source, target), capture_output=True, text=True)
            if done.returncode != 0:
                raise CannotMount(done.stderr.strip())
            mounted.append(target)
        yield _environment(folder)
    finally:
        for target in mounted:  # lazily: a process of a failed test may still use it
            subprocess.run(("umount", "--lazy", target), check=True)


def _environment(folder: Path) -> Environment:
    """The files that make `folder` a virtual environment around what is mounted there."""
    programs, trouble, python = folder / "bin", folder / "trouble", folder / "python"
    programs.mkdir()
    executable = python / Path(os.path.realpath(sys.executable)).relative_to(os.path.realpath(sys.base_prefix))
    (programs / "python").symlink_to(executable)
    (folder / "pyvenv.cfg").write_text(f"home = {executable.parent}\n")
    for name in SCRIPTS:
        script = (Path(sys.executable).parent / name).read_text().partition("\n")[2]
        (programs / name).write_text(f"#!{programs / 'python'}\n{script}")
        (programs / name).chmod(0o755)
    shutil.copytree(Path(__file__).parent / "bin", trouble)
    # a Python built with a shared library looks for it where this user may not
    return Environment(programs, trouble, {"PYTHONPATH": str(folder / "src"), "LD_LIBRARY_PATH": str(python / "lib")})
