"""The documented commands on a real Slurm: what they submit, what squeue shows, what comes out."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from faults import BIN, CONFIG, MODEL, ROOT, FaultProject, copy_project, make_project
from machine import output, wait_for
from slurm_cluster import Cluster

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
    assert tables(project.folder) == tables(local) and len(tables(local)) == 3
    for name in ("agreement", "factors"):
        summary = f"results/test/reports/{name}/summary.json"
        assert (project.folder / summary).read_bytes() == (local / summary).read_bytes()

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
    "model": ("gpu_model: fake", "TresPerJob=gres:gpu:fake:1", {"0", "1"}),
    "gres": ("gpu: 0\n    gres: gpu:fake:2", "TresPerNode=gres:gpu:fake:2", {"0,1"}),
}


@pytest.mark.parametrize("site", SITES)
def test_gpu_requests_of_three_kinds_of_cluster(shared, tmp_path, site):
    """The flags of docs/cluster.md reach Slurm, and the job sees its GPUs. One rule, whose job does nothing else."""
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


def test_it_refuses_a_slurm_that_it_did_not_start(cluster, tmp_path):
    """A second cluster with files elsewhere finds the first one's configuration, and leaves everything as it is."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom pathlib import Path\n" \
           f"from slurm_cluster import Cluster\nCluster(Path({str(tmp_path)!r})).up()\n"  # fmt: skip
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True)
    assert done.returncode == 1 and "is another Slurm's configuration: it stays untouched" in done.stderr
    Cluster(tmp_path).down()
    assert cluster.is_ours() and cluster.answers() and set(cluster.node_states()) <= {"idle", "mix", "alloc", "comp"}


def test_another_user_than_root_submits(shared):
    """The cluster's daemons are root's; its users are not."""
    folder = Path(tempfile.mkdtemp(prefix="lm-validity-nobody-"))
    try:
        folder.chmod(0o755)
        as_nobody = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
        # through a shell: setpriv itself still has root's right to look into folders
        usable = (*as_nobody, "sh", "-c", f"exec {BIN / 'python'} -c 'import lm_validity'")
        if subprocess.run(usable, capture_output=True).returncode:
            pytest.skip("the user `nobody` cannot start this checkout's Python")
        project = make_project(folder / "project")
        subprocess.run(("chown", "-R", "nobody:nogroup", folder), check=True)
        command = (*as_nobody, "snakemake", "results/fault/prefetch/models/" + MODEL + ".json",
                   "--profile", "slurm", "--slurm-init-seconds-before-status-checks", "4", *CONFIG)  # fmt: skip
        environment = project.environment() | {"HOME": str(folder)}
        done = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        weights = project.folder / "results/fault/miniature/models" / MODEL / "model.safetensors"
        assert weights.is_file() and weights.owner() == "nobody"
        assert "== miniature job " in project.said_by_cells()
    finally:
        shutil.rmtree(folder)
