"""A small project to break: one model, one benchmark, two fine-tunes in one job; and what a fault did to it.

Work is counted in cells and epochs, never in jobs: `trouble`, which stands in front of lm-validity, keeps what every
process said it computed, and each finished cell has a sidecar that is written when it is.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from machine import clean_environment, output, wait_for

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
CONFIG = ("--configfile", "config/fault.yaml")
RESULTS = Path("results/fault")
# merged on the login node; the table of items takes a job of its own and adds nothing to what the store says
TARGET = str(RESULTS / "tables" / "scores.parquet")
MODEL = "forum-llama-xs"
# two fine-tunes, one after the other in one job on one fake GPU
CONFIGURATION = """\
name: fault
studies: [agreement]
models: config/fault_models.tsv
benchmarks: config/fault_benchmarks.tsv
evaluation: {device: cpu, batch_size: 64}
finetuning: {learning_rates: [1e-3, 3e-3], epochs: 8, gradient_checkpointing: true}
batching: {finetune_adapter: {benchmarks: 1, learning_rates: all}}
size_classes: {miniature: {gpu: 1, cpus: 1, mem_mb: 1000, evaluate_minutes: 2, finetune_minutes: 2}}
miniature: {pool: config/fault_miniature.tsv}
"""
# answers sooner than the profile; everything else is the profile's
QUICK = ("--slurm-init-seconds-before-status-checks=4", "--seconds-between-status-checks=4", "--latency-wait=15")


def copy_project(folder: Path) -> Path:
    """The files that a run needs, as in a fresh clone: Snakemake is started in `folder` as in the project's root."""
    for name in ("Snakefile", "workflow", "config", "profiles", "envs", "slurm"):
        source = ROOT / name
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, folder / name, symlinks=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name, follow_symlinks=False)
    return folder


class FaultProject:
    """A folder in which Snakemake runs and something goes wrong."""

    def __init__(self, folder: Path, notes: Path | None = None):
        self.folder = folder
        self.store = folder / RESULTS / "store"
        # beside the project: a full disk must not keep us from counting
        notes = notes or folder.with_name(f"{folder.name}.notes")
        notes.mkdir(exist_ok=True)
        self.ledger, self.screen = notes / "ledger", notes / "screen"
        self.processes: list[subprocess.Popen] = []
        self.programs, self.trouble = BIN, Path(__file__).parent / "bin"
        self.user: dict = {}  # as whom commands run, for subprocess
        self.variables: dict = {}

    # ---- running ----------------------------------------------------------------------------------------------------

    def environment(self, trouble: str = "none") -> dict:
        """This environment's programs with `trouble` in front of lm-validity. No offline switch: jobs set their own."""
        path = f"{self.trouble}:{self.programs}:{os.environ['PATH']}"
        own = {"PATH": path, "OMP_NUM_THREADS": "1", "TROUBLE": trouble, "TROUBLE_LEDGER": str(self.ledger)}
        own |= {"TROUBLE_LM_VALIDITY": str(self.programs / "lm-validity")}
        inherited = {key: value for key, value in clean_environment().items() if not key.startswith("HF_")}
        return inherited | own | self.variables

    def run(self, *command: str, code: int | None = 0) -> str:
        """A command's output; a failure of the test where its exit code is another."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=600, **self.user
        )
        said = done.stdout + done.stderr
        if code is not None and done.returncode != code:
            pytest.fail(f"{' '.join(command)}: exit {done.returncode}\n{said[-6000:]}")
        return said

    def start(
        self, *arguments: str, trouble: str = "held", targets: tuple[str, ...] = (TARGET,), profile: str = "slurm"
    ) -> subprocess.Popen:
        """Start Snakemake on the cluster, as from a terminal: Ctrl-C is heard. Troubles: `bin/lm-validity`."""
        command = ("snakemake", *targets, "--profile", profile, *QUICK, *CONFIG, *arguments)
        with open(self.screen, "a") as screen:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(trouble),
                stdout=screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_as_from_a_terminal,
                **self.user,
            )
        self.processes.append(process)
        return process

    def begin(self, *arguments: str, trouble: str = "held") -> tuple[subprocess.Popen, dict[str, int]]:
        """Start Snakemake on the cluster; and the cells that are finished when `wait_for_progress` ends."""
        return self.start(*arguments, trouble=trouble), self.wait_for_progress()

    def finish(self, process: subprocess.Popen, code: int | None = 0, seconds: float = 400) -> str:
        """Wait for Snakemake; a failure of the test where its exit code is another. What it said so far."""
        try:
            found = process.wait(seconds)
        except subprocess.TimeoutExpired:
            found = "none in time"
        said = self.screen.read_text()
        if found != code and code is not None:
            pytest.fail(f"snakemake: exit {found}\n{said[-5000:]}\n== ledger\n{self.said_by_cells()[-3000:]}")
        return said

    def let_go(self) -> None:
        """Let a job go on that `trouble` holds back."""
        self.ledger.with_name("go").touch()

    def recover(self, *arguments: str) -> str:
        """What docs/how_to/cluster.md says to do after a run broke off, and the run to its end."""
        self.run("snakemake", "--unlock", *CONFIG)
        return self.finish(self.start(*arguments, trouble="none"))

    def stop(self) -> None:
        """End what a failed test left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        output("scancel", *[job for job, _ in self.jobs()])

    # ---- looking ----------------------------------------------------------------------------------------------------

    def jobs(self, state: str = "PENDING,RUNNING") -> list[tuple[str, str]]:
        """(id, comment) of this folder's jobs in Slurm's queue."""
        lines = output("squeue", "-h", "-t", state, "-o", "%i|%Z|%k").splitlines()
        rows = [line.split("|", 2) for line in lines]
        return [(job, comment) for job, workdir, comment in rows if Path(workdir) == self.folder]

    def sidecars(self) -> dict[str, int]:
        """Finished cell -> when its sidecar was written, which is when it was computed."""
        found = {}
        for path in self.store.glob("*/*/*/sidecar.json"):
            found[path.parent.relative_to(self.store).as_posix()] = path.stat().st_mtime_ns
        return found

    def cells(self) -> dict[str, str]:
        """Finished cell -> the sha256 of each of its files, the sidecar left out."""
        found = self.store.glob("*/*/*/sha256.json")
        return {path.parent.relative_to(self.store).as_posix(): path.read_text() for path in found}

    def tables(self) -> dict[str, bytes]:
        folder = self.folder / RESULTS / "tables"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}

    def said_by_cells(self) -> str:
        return self.ledger.read_text() if self.ledger.exists() else ""

    def computations(self) -> Counter:
        """Cell -> how many times its computation was begun."""
        return Counter(re.findall(r"computing (\S+)$", self.said_by_cells(), re.MULTILINE))

    def epochs(self) -> Counter:
        """(cell, epoch) -> how many times it was trained."""
        return Counter(re.findall(r" (\S+) epoch (\d+):", self.said_by_cells()))

    def wait_for_progress(self) -> dict[str, int]:
        """Until one fine-tune is finished and the other has begun to save epochs. The cells that are finished."""
        second = lambda: [epoch for cell, epoch in self.epochs() if "lr3e-3" in cell]  # noqa: E731
        wait_for("the second fine-tune saves epochs", lambda: len(second()) >= 2, 240)
        return self.sidecars()

    def finetune_job(self) -> str:
        """The Slurm id of the running fine-tune."""
        (job,) = (job for job, comment in self.jobs("RUNNING") if "finetune_adapter" in comment)
        return job

    def a_job_waits(self) -> bool:
        """Whether a job waits for a cell that another Slurm job computes."""
        return re.search(r"waiting for another job \(.*, Slurm job \d+\)", self.said_by_cells()) is not None

    def check(self, before: dict[str, int], undisturbed: "FaultProject") -> None:
        """Fail where a cell that was finished `before` was lost, computed or begun again, or the tables are others."""
        assert before.items() <= self.sidecars().items()
        assert self.cells() == undisturbed.cells(), "the same cells with the same bytes"
        finished = {cell.split("--")[0] for cell in before if cell.startswith("finetune_adapter")}
        assert all(self.computations()[cell] <= 1 for cell in finished)
        assert self.tables() == undisturbed.tables()


def _as_from_a_terminal() -> None:
    """In a child: Ctrl-C is heard, and the child ends when the tests are killed, so that it submits nothing to the
    next test cluster."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def make_project(folder: Path) -> FaultProject:
    """A fresh project with the configuration of the faults: the first model and benchmark of config/test.yaml."""
    project = FaultProject(copy_project(folder))
    config = folder / "config"
    (config / "fault.yaml").write_text(CONFIGURATION)
    for name in ("models", "benchmarks", "miniature"):
        head, first, *_ = (config / f"test_{name}.tsv").read_text().splitlines()
        (config / f"fault_{name}.tsv").write_text(f"{head}\n{first}\n")
    return project


def complete(finished: FaultProject, folder: Path, notes: Path | None = None) -> FaultProject:
    """A copy of a finished project. Times are kept: Snakemake looks at them."""
    shutil.copytree(finished.folder, folder, symlinks=True)
    return FaultProject(folder, notes)


def before_training(finished: FaultProject, folder: Path, notes: Path | None = None) -> FaultProject:
    """A copy of a finished project without its fine-tunes and what stands on them."""
    project, results = complete(finished, folder, notes), folder / RESULTS
    for gone in ("store/finetune_adapter", "store/evaluate_adapter", "cells/finetune_adapter", "cells/select_adapter"):
        shutil.rmtree(results / gone)
    for gone in ("cells/evaluate_adapter", "tables", "work"):
        shutil.rmtree(results / gone, ignore_errors=True)
    (results / "cells" / "check.json").unlink()
    return project
