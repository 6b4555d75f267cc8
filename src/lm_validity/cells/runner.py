"""A job: asks the store, computes what is missing, commits each cell, writes the manifest last; selections; replays.

Imports no torch, nor does what it calls, until a cell really has to be computed.
"""

import importlib.metadata
import logging
import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cache
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lm_validity.config.load import Run
from lm_validity.config.sheets import Benchmark, Model
from lm_validity.errors import CellError, InputError
from lm_validity.files import write_json
from lm_validity.run.cell import BenchmarkCell, Candidate, Cell, Choice, Job, ModelRecord, Prompt, given, label
from lm_validity.run.rules import rule_of
from lm_validity.run.rules.benchmarks import SELECT_ADAPTER, SELECT_PROMPT
from lm_validity.run.store import Address, hold_gpus, hold_lease
from lm_validity.run.workspace import Entry, MissingCell, Workspace, write_manifest

if TYPE_CHECKING:
    import torch

# ----------------------------------------------------------------------------------------------------------------------
# What a job does: ask the store, compute what is missing, commit cell by cell, write the manifest last.
#
# If the cell itself is the cause (CellError), it becomes a failure record and the other cells continue. Anything else
# (a crash, out of memory, a signal) ends the process with the finished cells kept, so that Snakemake's retries apply.

log = logging.getLogger(__name__)

REPLAY_WORKER = "lm_validity.cells.runner:ReplayWorker"  # of every rule, where known scores are served


class CellWorker(Protocol):
    """What a job asks of its rule's worker; the last where the rule has groups of cells `side_by_side`."""

    def compute(self, address: Address[Cell]) -> None:
        """Compute one cell and commit it to the store. Raises CellError for a failure that the cell causes."""

    def compute_together(self, addresses: list[Address[Cell]]) -> None:
        """Bring cells as far as they can be brought side by side; `compute` finishes each."""


def run_job(workspace: Workspace, job: Job[Cell]) -> None:
    """Run one job and write its manifest(s)."""
    rule, entries = rule_of(job), run_cells(workspace, job)
    for part, path in zip(rule.parts, workspace.grid.manifests(job), strict=True):
        write_manifest(path, [entry for entry in entries if rule.part(entry.cell) == part])
    failed = sum(entry.status == "failed" for entry in entries)
    log.info("%s %s %s: %d cells, %d failed", job.rule, job.model, job.batch, len(entries), failed)


def run_cells(workspace: Workspace, job: Job[Cell]) -> list[Entry]:
    """The manifest entries of a job's cells, computed where they are not in the store."""
    rule = rule_of(job)
    if not rule.in_store:
        make = resolve_name(rule.worker)
        return [_try(cell, lambda cell: Entry(cell, "done", content=make(workspace, cell))) for cell in job.cells]

    @cache
    def worker() -> CellWorker:
        made: CellWorker = resolve_name(REPLAY_WORKER if workspace.replay else rule.worker)(workspace, job)
        return made

    entries: dict[Cell, Entry] = {}
    groups = [] if workspace.replay else rule.side_by_side(workspace.run, job)
    for cells in groups:  # each to its end before the next, whose requests take the place of these
        _compute_together(workspace, worker, cells)
        entries |= {cell: _try(cell, lambda cell: _stored(workspace, worker, cell)) for cell in cells}
    return [entries.get(cell) or _try(cell, lambda cell: _stored(workspace, worker, cell)) for cell in job.cells]


def _try(cell: Cell, finish: Callable[[Cell], Entry]) -> Entry:
    """The cell's entry. A failure that the cell itself causes is recorded."""
    try:
        return finish(cell)
    except MissingCell as error:
        return Entry(cell, "missing", error=error.problem)
    except CellError as error:
        log.error("cell failed: %s: %s", label(cell), error)
        return Entry(cell, "failed", error=error.problem, hint=error.hint)


def _lease(workspace: Workspace, address: Address[Cell]) -> AbstractContextManager[bool]:
    """The lease of a cell that is missing. Its GPUs come first: who holds a lease never waits for a job that may wait
    for this lease."""
    # the other devices name their GPUs
    if workspace.run.configuration.evaluation.device in ("auto", "cuda") and not workspace.replay:
        hold_gpus(rule_of(address.cell).size_class(workspace.run, address.cell.model).gpu, say=log.info)
    return hold_lease(workspace.store.lease(address.folder), lambda: workspace.store.has(address), say=log.info)


def _compute_together(workspace: Workspace, worker: Callable[[], CellWorker], cells: list[Cell]) -> None:
    """Bring those of the cells that are missing to their end side by side; what cannot be computed so is left to
    `_stored`, which says why."""
    missing = [address for address in map(workspace.address, cells) if not workspace.store.has(address)]
    with ExitStack() as leases:
        held = [address for address in missing if leases.enter_context(_lease(workspace, address))]
        if len(held) < 2:
            return
        log.info("computing %d cells side by side, from %s on", len(held), label(held[0].cell))
        try:
            worker().compute_together(held)
        except CellError as error:
            log.info("not side by side: %s", error)


def _stored(workspace: Workspace, worker: Callable[[], CellWorker], cell: Cell) -> Entry:
    """The entry of a cell that the store holds; computed only if it does not yet."""
    stand_in = rule_of(cell).stand_in(workspace, cell)
    if stand_in is not None:
        folder = workspace.finished(stand_in)["folder"]
    else:
        address = workspace.address(cell)
        folder = address.folder
        if not workspace.store.has(address):
            with _lease(workspace, address) as is_held:
                if is_held:
                    log.info("computing %s", label(cell))
                    worker().compute(address)
    workspace.store.read(folder)  # raises where it is damaged
    return Entry(cell, "done", folder=folder, sha256=workspace.store.digest(folder))


# ----------------------------------------------------------------------------------------------------------------------
# What computed a cell: library versions, machine, and this program's own commit. For sidecars, never for tables.

PACKAGES = ["lm-validity", "lm_eval", "torch", "transformers", "tokenizers", "peft", "safetensors"]
PACKAGES += ["datasets", "accelerate", "numpy"]


@cache
def versions() -> dict[str, str]:
    """Versions of everything that can move a number, Python included."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}


@cache
def machine(device: "torch.device") -> dict[str, object]:
    """The computer and the device that computed: host, threads, GPU and CUDA, Slurm job, and the commit of the checkout
    that this program runs from, with `+` where files differ; null outside of one."""
    import torch

    command, commit = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"], ""
    with suppress(OSError, subprocess.SubprocessError):
        folder, quiet = Path(__file__).resolve().parent, subprocess.DEVNULL
        commit = subprocess.check_output(command, cwd=folder, stderr=quiet, text=True, timeout=10).strip()
    record: dict[str, object] = {
        "host": platform.node(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "git": commit or None,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        record |= {"gpu": properties.name, "gpu_memory_mb": properties.total_memory // 2**20}
        record |= {"gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return record


# ----------------------------------------------------------------------------------------------------------------------
# A cell's sidecar: what it cost and where it ran. It may differ from run to run and enters no table.


class Stopwatch:
    """Costs from now on, of this process, and seconds (of the clock, and of processors) that were spent before."""

    def __init__(self, wall: float = 0.0, cpu: float = 0.0) -> None:
        self._wall, self._cpu, self._started = time.perf_counter() - wall, time.process_time() - cpu, time.time()

    def costs(self, device: "torch.device") -> dict[str, object]:
        """Time, memory, machine and versions; `device` is the torch device that computed. The peak of GPU memory is
        that of the GPU that used most, since the last cell."""
        import torch

        gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
        peaks = [torch.cuda.max_memory_allocated(gpu) for gpu in gpus]
        for gpu in gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        return {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
            "wall_seconds": round(time.perf_counter() - self._wall, 3),
            "cpu_seconds": round(time.process_time() - self._cpu, 3),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            **({"peak_gpu_memory_mb": max(peaks) // 2**20} if peaks else {}),
            "machine": machine(device),
            "versions": versions(),
        }


# ----------------------------------------------------------------------------------------------------------------------
# Choosing on validation: the prompt of the direct regime, and the adapter of train-before-test.
#
# Reads validation results only. An adapter is chosen over the untouched model only where it is strictly better.

PROMPT_ORDER = ("plain", "chat")  # ties go to the earlier one


def select_prompt(workspace: Workspace, cell: BenchmarkCell) -> Choice:
    """The direct regime's prompt: the best on validation, ties to plain."""
    benchmark = workspace.run.benchmarks[cell.benchmark]
    values: dict[Prompt, float] = {}
    for direct in SELECT_PROMPT.stands_on(workspace.grid, cell):
        values[given(direct.prompt)] = workspace.finished(direct)["result"]["metrics"][benchmark.metric]["value"]
    better = 1 if benchmark.higher_is_better else -1
    best = max(values, key=lambda prompt: (better * values[prompt], -PROMPT_ORDER.index(prompt)))
    return {"prompt": best, "metric": benchmark.metric, "validation_value": values[best], "validation_values": values}


def select_adapter(workspace: Workspace, cell: BenchmarkCell) -> Choice:
    """The best (learning rate, prompt, epoch) on validation for (model, benchmark, seed).

    Ties go to the earlier epoch, then the smaller rate, then plain. A fine-tune that diverged is recorded and left
    out; where all diverged the cell fails. The untouched model stays unless an adapter is strictly better than the
    best direct prompt: then `learning_rate`, `epoch` and `folder` are None and the test score is the direct cell's.
    """
    benchmark = workspace.run.benchmarks[cell.benchmark]
    better = 1 if benchmark.higher_is_better else -1
    direct = select_prompt(workspace, cell)
    rows: list[Candidate] = []
    folders: list[str] = []
    for candidate in SELECT_ADAPTER.candidates(workspace.grid, cell):
        trained = workspace.finished(candidate)
        result = trained["result"]
        rows.append(
            {
                "prompt": given(candidate.prompt),
                "learning_rate": given(candidate.learning_rate),
                "epoch": result["best_epoch"],
                "validation_value": result["best_value"],
                "diverged": result["diverged"],
                "adapted_share": result.get("adapted_share"),  # replays have none
            }
        )
        folders.append(trained["folder"])

    def order(number: int) -> tuple[float, ...]:
        row = rows[number]
        rate, prompt = float(row["learning_rate"]), PROMPT_ORDER.index(row["prompt"])
        return better * given(row["validation_value"]), -given(row["epoch"]), -rate, -prompt

    number = max((number for number, row in enumerate(rows) if not row["diverged"]), key=order, default=None)
    if number is None:
        hint = "try smaller finetuning.learning_rates, or check the training data."
        raise CellError(f"every fine-tune of {cell.model} on {cell.benchmark} (seed {cell.seed}) diverged", hint)
    chosen = rows[number]
    best = given(chosen["validation_value"])
    trained_is_better = better * best > better * direct["validation_value"]
    return {
        "metric": benchmark.metric,
        "direct_prompt": direct["prompt"],
        "direct_validation_value": direct["validation_value"],
        "candidates": rows,
        "prompt": chosen["prompt"] if trained_is_better else direct["prompt"],
        "learning_rate": chosen["learning_rate"] if trained_is_better else None,
        "epoch": chosen["epoch"] if trained_is_better else None,
        "validation_value": best if trained_is_better else direct["validation_value"],
        "folder": folders[number] if trained_is_better else None,
    }


# ----------------------------------------------------------------------------------------------------------------------
# Replay: known scores are served instead of running models, so that the whole workflow runs without a GPU.
#
# Every rule, path, manifest, merge and report is the real one; only what a model would have said comes from a file. It
# cannot be taken for a result: the file's sha256 is in every recipe (so these cells lie in folders of their own), each
# score's `source` begins with `replay:`, and every page says so. No torch here.
#
# Published files hold test scores only. Where a selection asks for validation, the test score stands in: that of train
# before test for every prompt and learning rate, the direct one for the untouched model.


class Served(NamedTuple):
    """One score of the file. n_items is null where the file does not say."""

    value: float
    stderr: float | None
    n_items: int | None
    source: str


class ReplayWorker:
    """The worker of every rule in a replay: commits cells from the scores file."""

    def __init__(self, workspace: Workspace, job: Job[BenchmarkCell]):
        self.workspace, self.run = workspace, workspace.run

    def compute(self, address: Address[BenchmarkCell]) -> None:
        """Commit one cell. Raises CellError where the file has no such score."""
        started, cell = time.time(), address.cell
        (path, digest), protocol, row = self.workspace.served, rule_of(cell).protocol, self.run.models[cell.model]
        scores, checkpoint = read_served(path, digest), cell.checkpoint or "final"
        names = product((row.model, row.path), (cell.seed, None))
        keys = ((model, checkpoint, cell.benchmark, protocol, seed) for model, seed in names)
        served = next((scores[key] for key in keys if key in scores), None)
        if served is None:
            problem = f"{path}: no {protocol} score of {row.path} ({checkpoint}) on {cell.benchmark}."
            raise CellError(problem, "leave the model or the benchmark out of the sheets, or complete the file.")
        is_score = "scores" in rule_of(cell).tables
        of_validation = not is_score or cell.split == "validation"
        result: dict[str, object] = {"source": f"{served.source}:test" if of_validation else served.source}
        if is_score:
            metric = self.run.benchmarks[cell.benchmark].metric
            result["metrics"] = {metric: {"value": served.value, "stderr": served.stderr}}
            result |= {"n_items": served.n_items, "prompt_sha256": None, "task_version": None}
        else:  # what a fine-tune of the real kind records, as far as a selection reads it
            result |= {"epochs": [], "best_epoch": 1, "best_value": served.value, "adapter_sha256": None}
            result |= {"diverged": False, "reason": None}
        sidecar = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "wall_seconds": round(time.time() - started, 3),
            "replay": {"scores": path, "sha256": digest},
            "versions": {"lm-validity": importlib.metadata.version("lm-validity"), "replay": digest},
        }

        def write_files(folder: Path) -> None:
            if is_score:  # a finished fine-tune has an adapter's folder, which nobody opens in a replay
                from pyarrow import parquet

                from lm_validity.tables.schema import ITEMS

                parquet.write_table(ITEMS.empty_table(), folder / "items.parquet")

        self.workspace.store.commit(address, result, sidecar, write_files)


@cache
def read_served(path: str, digest: str) -> dict[tuple[object, ...], Served]:
    """(model, checkpoint, benchmark, protocol, seed) -> score, of the selected test rows of a score file.

    digest: the file's sha256; it is read once as long as that stays. `.parquet`: a table with the columns of SCORES;
    anything else: the authors' JSON. Raises InputError for neither, and for two scores of one key.
    """
    from lm_validity.tables.formats.specs import read_lm_harmony
    from lm_validity.tables.schema import REPLAY, read_scores

    table = read_scores(path) if str(path).endswith(".parquet") else read_lm_harmony(path)
    rows = table[table["selected"].fillna(value=True).astype(bool) & (table["split"].fillna("test") == "test")]
    scores: dict[tuple[object, ...], Served] = {}
    for row in rows.astype(object).where(rows.notna(), None).to_dict("records"):
        seed = None if row["seed"] is None else int(row["seed"])
        key = (row["model"], row["checkpoint"] or "final", row["benchmark"], row["protocol"], seed)
        if key in scores:
            raise InputError(f"{path}: two selected test scores of {key}.", "keep one of each.")
        items = None if row["n_items"] is None else int(row["n_items"])
        source = (row["source"] or Path(path).name).removeprefix(REPLAY)
        scores[key] = Served(float(row["value"]), row["stderr"], items, f"{REPLAY}{source}")
    return scores


def replayed_model(run: Run, row: Model) -> ModelRecord:
    """A model's record, as `prefetch_model` writes it, without fetching anything."""
    sha = _check_listed(run, 0, {row.model, row.path}, f"model {row.model!r} ({row.path})")
    digest, names = f"{row.path} replayed", [checkpoint.checkpoint for checkpoint in row.checkpoints]
    return {
        "model": row.model,
        "checkpoints": {
            name: {"path": row.path, "subfolder": None, "revision": None, "digest": digest} for name in names
        },
        "chat_template": row.instruction_tuned,
        "replay": sha,
    }


def replayed_benchmark(run: Run, row: Benchmark) -> dict[str, object]:
    """A benchmark's record, as `prefetch_benchmark` writes it, without its data set."""
    sha = _check_listed(run, 2, {row.benchmark}, f"benchmark {row.benchmark!r}")
    nothing: dict[str, object] = {"documents": {}, "data": None, "fewshot": None}
    record = {"task": row.task, "version": None, "metrics": [row.metric]}
    digest = f"{row.task} replayed"
    return {"record": record, "digest": digest, "output_type": row.output_type, "replay": sha, **nothing}


def write_replayed_splits(workspace: Workspace, benchmark: str) -> None:
    """The files of a benchmark's splits, as `cells.tasks.splits` writes them, without a document."""
    from lm_validity.tables.items import write_no_documents

    for name in ("train", "validation", "test"):
        nothing = {"split": name, "documents": 0, "digest": "replayed", "replay": workspace.replay}
        write_json(workspace.split_path(benchmark, name), nothing)
    write_no_documents(workspace.split_path(benchmark, "test").with_name("documents.parquet"))


def _check_listed(run: Run, part: int, names: set[str], noun: str) -> str:
    """sha256 of the score file, which must have at least one score of the model or benchmark."""
    path, digest = Workspace(run).served
    if not any(key[part] in names for key in read_served(path, digest)):
        raise InputError(f"{path}: no score of {noun}.", "leave it out of the sheet, or complete the file.")
    return digest
