"""The state of every cell of a run, how fast it goes and what it costs, from files alone; and the Snakemake that drives
it.

Standard library and pydantic only: the Snakefile imports this.
"""

import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lm_validity.config.load import Run
from lm_validity.errors import InputError
from lm_validity.files import read_json_or, write_json
from lm_validity.run.cell import BenchmarkCell, Cell, label
from lm_validity.run.rules import RULES, rule_of
from lm_validity.run.rules.benchmarks import EVALUATE_ADAPTER, FINETUNE_ADAPTER
from lm_validity.run.store import is_alive, is_stale, process_start
from lm_validity.run.workspace import Entry, Grid, Workload, Workspace, read_failures

# The store is listed once and each cell is looked up by the folder that its present recipe gives; manifests are opened
# only for selections, which have no folder, and for cells that are not finished, whose manifest may say why.

# stale: finished under another recipe than the present one, or the present one is not known (a record or a cell that it
# depends on is missing); missing: not computed
STATES = ("done", "running", "failed", "stale", "missing")


class CellState(NamedTuple):
    """A cell, one of STATES, why it failed (else null), and when it was finished (seconds since 1970; else null)."""

    cell: Cell
    state: str
    error: str | None = None
    finished: float | None = None


class RunState:
    """The states of a run's cells, in the grid's order."""

    def __init__(self, run: Run):
        self.run = run
        self.workspace = Workspace(run, also_aside=True)
        self._finished = _list_store(run.results / "store")
        self._labels = {name.rpartition("--")[0] for name in self._finished}  # finished, under whatever recipe
        leases = (run.results / "store" / ".leases").glob("*.json")
        self._running = {path.name for path in leases if not is_stale(path)}
        self._failures = read_failures(run)

    @cached_property
    def cells(self) -> list[CellState]:
        """One entry per cell of the grid."""
        return [self._state(cell) for cell in self.workspace.grid.cells()]

    @cached_property
    def counts(self) -> dict[str, Counter[str]]:
        """rule -> number of cells in each of STATES."""
        counts: dict[str, Counter[str]] = {}
        for state in self.cells:
            counts.setdefault(state.cell.rule, Counter(dict.fromkeys(STATES, 0)))[state.state] += 1
        return counts

    def _state(self, cell: Cell) -> CellState:
        if not rule_of(cell).in_store:
            return self._selection_state(cell)
        stored_folder = self.workspace.known_address(cell)
        folder = stored_folder and stored_folder.folder
        if folder in self._finished:
            return CellState(cell, "done", finished=self._finished[folder])
        if folder is not None and self.workspace.store.lease(folder).name in self._running:
            return CellState(cell, "running")
        failed = self._failure(cell)
        if failed:
            return CellState(cell, "failed", failed)
        return CellState(cell, "stale" if label(cell) in self._labels else "missing")

    def _selection_state(self, cell: Cell) -> CellState:
        """A selection lies in its manifest; it is stale where the cell it chose is not a present one."""
        entry = self._entry(cell)
        if entry is None or entry.status != "done":
            failed = self._failure(cell)
            return CellState(cell, "failed" if failed else "missing", failed)
        chosen = rule_of(cell).choice(cell, entry.chosen)
        if chosen is None:
            return CellState(cell, "done")
        folder = entry.chosen["folder"]
        stored_folder = self.workspace.known_address(chosen) if chosen in self.workspace.grid.job_of else None
        if stored_folder is None or stored_folder.folder != folder:
            return CellState(cell, "stale")
        return CellState(cell, "done" if folder in self._finished else "missing")

    def _entry(self, cell: Cell) -> Entry | None:
        try:
            return self.workspace.entry(cell)
        except InputError:
            return None

    def _failure(self, cell: Cell) -> str | None:
        entry = self._entry(cell)
        if entry is not None and entry.status == "failed":
            return entry.error
        return None if entry is not None and entry.status == "done" else self._failures.get(cell)


HOUR = 3600.0  # seconds


class Progress(NamedTuple):
    """How far a run is. Work is in expected seconds; rate in cells per hour over the last `window` seconds (null where
    nothing was finished in it), `remaining_seconds` from the work done in it."""

    done: int
    cells: int
    window: float
    rate: float | None
    remaining_seconds: float | None


def progress(states: list[CellState], weight: Callable[[Cell], float], now: float | None = None) -> Progress:
    """Cells done, rate, and the time that the rest takes at the rate of the last hour.

    weight: expected seconds of a cell, so that an hour of short evaluations does not promise fast fine-tunes.
    A run that began within the hour is measured from its first finished cell; cells that two entries share count once.
    """
    now, window = time.time() if now is None else now, HOUR
    computed = [state for state in states if rule_of(state.cell).in_store]
    finished = sorted((state.finished, weight(state.cell)) for state in computed if state.finished)
    recent = [weight_of_cell for moment, weight_of_cell in finished if moment > now - window]
    if recent and len(recent) == len(finished):  # the first cell only starts the clock
        window, recent = now - finished[0][0], recent[1:]
    done = sum(state.state == "done" for state in states)
    work, work_left = sum(recent), sum(weight(state.cell) for state in computed if state.state != "done")
    if not recent or window <= 0:
        return Progress(done, len(states), window, None, 0.0 if done == len(states) else None)
    return Progress(done, len(states), window, len(recent) / window * HOUR, work_left / work * window if work else None)


def _list_store(root: Path) -> dict[str, float]:
    """folder -> time of its renaming into place. Folders appear whole; what is being written begins with a dot."""
    times = {}
    for rule in list_folder(root):
        for model in list_folder(rule.path):
            for cell in list_folder(model.path):
                times[f"{rule.name}/{model.name}/{cell.name}"] = cell.stat().st_mtime
    return times


def list_folder(path: str | Path) -> list[os.DirEntry[str]]:
    """The folders in a folder but hidden ones; none where it is not there."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except FileNotFoundError:
        return []


# ----------------------------------------------------------------------------------------------------------------------
# The Snakemake that drives a run, and the Slurm jobs that it left behind if it was killed.
#
# Slurm jobs live on when their Snakemake dies. That loses nothing (they hold leases, and a new run waits for the cells
# that they compute), but a person should know of them before starting again. While it lives, it waits for its jobs.
# `keep_polled_jobs` sees to it that an outage of Slurm does not make it wait for ever.

JOB_PREFIX = "lm-validity"  # slurm-jobname-prefix of profiles/slurm
RECORD = "controller.json"
SHOWN_OF_A_LOG = 15


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
    since: float | None = record["since"]
    return since


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


def show_ends_of_logs() -> None:
    """Of a failed job's logs Snakemake shows the last lines, not all (`show-failed-logs`)."""
    logs: Any = sys.modules["snakemake.logging"]
    logs.show_logs = lambda paths: [line for path in paths for line in last_lines(path)]


def last_lines(log: str) -> list[str]:
    """The name of a log and its last SHOWN_OF_A_LOG lines, indented; its name alone where it cannot be read."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path(log).read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"Logfile {log}:", *(f"    {line}" for line in lines[-SHOWN_OF_A_LOG:])]


def _base_id(job: str) -> str:
    """The id of a job, or of the array that it is a task of."""
    return job.partition("_")[0]


# ----------------------------------------------------------------------------------------------------------------------
# What a run costs: the formula of `run.workspace`, times the medians of what finished cells took over it.

NO_GPU = "a processor without GPU"
SIDECARS = 30  # read a (rule, model): enough for a median
TRAINING_RULES = (FINETUNE_ADAPTER.name, EVALUATE_ADAPTER.name)  # the rules whose cells a plan leaves out
Pair = tuple[str, str]  # model, benchmark


class Measured(NamedTuple):
    """One finished cell: what it took, and what the formula says. Memory in MB, null where not recorded."""

    rule: str
    size_class: str
    seconds: float
    predicted: float
    memory_mb: float | None
    gpu_memory_mb: float | None
    device: str


class Estimator:
    """Expected cost of a run's cells. `sources`: other runs whose finished cells are learned from too."""

    def __init__(self, run: Run, sources: Iterable[Run] = ()):
        self.run, self.workload = run, Workload(run)
        self.measured = [cell for source in (run, *sources) for cell in self._measure(source)]
        ratios: dict[tuple[str, ...], list[float]] = {}
        for cell in self.measured:
            for key in ((cell.rule, cell.size_class), (cell.rule,), ()) if cell.predicted else ():
                ratios.setdefault(key, []).append(cell.seconds / cell.predicted)
        self._corrections = {key: median(values) for key, values in ratios.items()}

    def seconds(self, cell: Cell) -> float:
        """Expected seconds of a cell: the formula's, times the median ratio of its rule and size class, else of its
        rule, else of all cells."""
        keys = ((cell.rule, rule_of(cell).row(self.run, cell.model).size_class), (cell.rule,), ())
        return self.workload.seconds(cell) * next(
            (self._corrections[key] for key in keys if key in self._corrections), 1
        )

    def _measure(self, run: Run) -> list[Measured]:
        """Sidecars of a run's finished cells; those of a replay say nothing about cost, nor do those of cells that were
        resumed, whose earlier attempts nobody timed."""
        workload, measured = self.workload if run is self.run else Workload(run), []
        by_model: dict[tuple[str, str], list[Cell]] = {}
        for job in Grid(run).jobs.values():
            for cell in () if rule_of(job).on_login_node else job.cells:
                by_model.setdefault((job.rule, cell.model), []).append(cell)
        for (rule, model), cells in by_model.items():
            folder, row = run.results / "store" / rule / model, RULES[rule].row(run, model)
            names = {path.name.rpartition("--")[0]: path for path in folder.glob("*--*")}
            present = [(cell, names[cell.name]) for cell in cells if cell.name in names]
            for cell, path in present[:: max(1, len(present) // SIDECARS)][:SIDECARS]:
                sidecar = read_json_or(path / "sidecar.json", {})
                if "replay" in sidecar or not sidecar.get("wall_seconds") or sidecar.get("resumed_epochs"):
                    continue  # of no model, without a time, or with that of the last attempt only
                memory = (sidecar.get("peak_memory_mb"), sidecar.get("peak_gpu_memory_mb"))
                device = (sidecar.get("machine") or {}).get("gpu") or NO_GPU
                seconds = sidecar["wall_seconds"]
                measured.append(Measured(rule, row.size_class, seconds, workload.seconds(cell), *memory, device))
        return measured


class Need(NamedTuple):
    """One rule's cells: how many, in how many jobs, expected GPU hours and hours of processes, and requested ones."""

    rule: str
    cells: int
    jobs: int
    hours: float
    gpu_hours: float
    requested_gpu_hours: float


def needs(estimator: Estimator, unfinished: Collection[Cell] | None = None) -> list[Need]:
    """Per rule, over all cells, or over the `unfinished` ones. Selections run on the login node and cost nothing."""
    run, by_rule = estimator.run, dict[str, Need]()
    for job in Grid(run).jobs.values():
        cells = [cell for cell in job.cells if unfinished is None or cell in unfinished]
        if not cells:
            continue
        rule = rule_of(job)
        request, seconds = rule.resources(run, job), 0.0
        if not rule.on_login_node:
            start = estimator.workload.start_seconds(rule.row(run, job.model))
            seconds = sum(map(estimator.seconds, cells)) + start
        hours, requested = seconds / 3600, request.minutes * request.gpus / 60
        need = Need(job.rule, len(cells), 1, hours, hours * request.gpus, requested)
        by_rule[job.rule] = sum_of([by_rule[job.rule], need]) if job.rule in by_rule else need
    return list(by_rule.values())


def sum_of(rows: Collection[Need], rule: str | None = None) -> Need:
    """Several needs as one, under another name or the first one's."""
    columns = zip(*(row[1:] for row in rows), strict=True)
    return Need(rule or next(iter(rows)).rule, *map(sum, columns))


# ----------------------------------------------------------------------------------------------------------------------
# What fine-tuning each model on each benchmark is expected to cost, and what a plan leaves out of it.


def training_costs(estimator: Estimator) -> dict[Pair, float]:
    """(model, benchmark) -> expected hours (GPU hours where the model's size class has GPUs) of all fine-tunes and of
    the look at test, of every pair of the study, planned or not.

    In the order of the sheets, models outside. Without the start of processes, which several pairs share.
    """
    costs: dict[Pair, float] = {}
    for job in Grid(replace(estimator.run, plan=None)).jobs.values():
        if job.rule not in TRAINING_RULES:
            continue
        gpus = max(1, rule_of(job).size_class(estimator.run, job.model).gpu)
        for cell in job.cells:
            assert isinstance(cell, BenchmarkCell)
            pair = cell.model, cell.benchmark
            costs[pair] = costs.get(pair, 0.0) + estimator.seconds(cell) * gpus / 3600
    return costs


def total(costs: Mapping[Pair, float], pairs: Iterable[Pair]) -> float:
    """The hours of some pairs together."""
    return sum(costs[pair] for pair in pairs)


def unplanned_pairs(run: Run) -> list[Pair]:
    """(model, benchmark) of the agreement study that the plan leaves out, in the order of the sheets."""
    grid = Grid(run)
    return [
        (model.model, benchmark)
        for model in grid.models("agreement")
        for benchmark in grid.benchmarks("agreement")
        if not grid.is_planned(model.model, benchmark)
    ]
