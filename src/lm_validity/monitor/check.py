"""What is failed, missing or damaged in a run, and how to have it computed again.

Removing a manifest is how a cell is asked for: Snakemake starts its job anew, and the job finds every other cell of it
in the store.
"""

import fnmatch
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lm_validity.config.load import Run
from lm_validity.errors import PREFETCH, InputError, Problem
from lm_validity.files import read_json
from lm_validity.monitor.recomputed import outdated_cells
from lm_validity.monitor.scheduler import controller_since, orphan_jobs
from lm_validity.run.cell import label
from lm_validity.run.grid import Grid
from lm_validity.run.leases import describe_holder, is_stale
from lm_validity.run.manifests import ASIDE, Entry, read_manifest
from lm_validity.run.rules import RULES
from lm_validity.run.store import Store
from lm_validity.run.task_files import document_order
from lm_validity.run.workspace import Workspace


def existing_entries(grid: Grid) -> Iterator[tuple[str, list[Entry]]]:
    """(manifest path, entries) of every manifest of the run that exists; no entries where it cannot be read."""
    for path in grid.all_manifests():
        if Path(path).is_file():
            try:
                yield path, read_manifest(path)
            except InputError:
                yield path, []


def failed_cells(grid: Grid) -> tuple[list[Entry], set[str]]:
    """The cells that caused their own failure, and every manifest that holds a failed or missing cell."""
    failed, manifests = [], set()
    for path, entries in existing_entries(grid):
        broken = [entry for entry in entries if entry.status != "done"]
        if broken or (not entries and not _may_be_empty(path)):
            manifests.add(path)
        failed += [entry for entry in broken if entry.status == "failed"]
    return failed, manifests


def _may_be_empty(path: str) -> bool:
    """A model that is only scored on test has an empty validation manifest; an unreadable file has entries []."""
    try:
        read_manifest(path)
    except InputError:
        return False
    return True


def remove_manifests(paths: set[str]) -> None:
    """Delete manifests, so that their jobs run again."""
    for path in paths:
        Path(path).unlink(missing_ok=True)


def set_aside(paths: set[str]) -> None:
    """Rename manifests, so that their jobs run again while partial reports still find what they hold."""
    for path in paths:
        os.replace(path, f"{path}{ASIDE}")


def manifests_digest(grid: Grid) -> str:
    """sha256 over all manifests of the run: tables are made anew when any cell's content changed."""
    digest = hashlib.sha256()
    for path in grid.all_manifests():
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()


def repair(run: Run, *, verify: bool = True) -> list[Problem]:
    """Remove manifests whose cells are missing, damaged or failed, and damaged cells themselves, whether or not a
    manifest lists them: the next job would take them for finished.

    With `verify` every file's sha256 is read; without, only that the cells are there.
    """
    grid, store = Grid(run), Store(run.results / "store")
    problems: list[Problem] = []
    remove: set[str] = set()
    listed = list(existing_entries(grid))  # before the store, in which jobs put cells before they list them
    damage = {folder: store.damage(folder) if verify else None for folder in store.folders()}
    for path, entries in listed:
        if not entries and not _may_be_empty(path):
            problems.append(Problem(path, "not a readable manifest", "removed, its job runs again"))
            remove.add(path)
        for entry in entries:
            if entry.status != "done":
                what = f"{entry.status} ({entry.error})"
                problems.append(Problem(label(entry.cell), what, "will be computed again"))
                remove.add(path)
            folders = [folder for folder in (entry.folder, (entry.content or {}).get("folder")) if folder]
            for folder in folders:
                damage.setdefault(folder, "missing from the store")
            if any(damage[folder] for folder in folders):
                remove.add(path)
    remove_manifests(remove)
    for folder, harm in damage.items():
        if harm:
            problems.append(Problem(folder, harm, "will be computed again"))
            _remove_cell(run, store, folder)
    return problems


def remove_outdated(run: Run) -> None:
    """Remove the manifests with a cell of another recipe than the present one, so that their jobs run again. Nothing is
    removed while a Snakemake is at work, whose jobs need them."""
    if controller_since(run.results) is None:
        workspace = Workspace(run)
        remove_manifests(set(map(workspace.grid.manifest_of, outdated_cells(workspace))))


def _remove_cell(run: Run, store: Store, folder: str) -> None:
    """A finished cell, and what a killed job may have left for resuming it: it is to be computed from the start."""
    store.remove(folder)
    shutil.rmtree(run.results / "work" / folder, ignore_errors=True)


def record_problems(run: Run) -> list[Problem]:
    """Models and benchmarks that were not fetched yet, and records that cannot be read. The miniature's are not
    fetched: the workflow makes them."""
    grid, found, prefetch = Grid(run), [], run.results / "prefetch"
    sources: dict[tuple[str, str], dict[str, str | None]] = {
        ("model", "models"): {name: run.models[name].path for name in grid.used_models},
        ("benchmark", "benchmarks"): {name: run.benchmarks[name].include_path for name in grid.used_benchmarks},
        ("language model", "language_models"): {name: row.path for name, row in run.language_models.items()},
        ("task", "tasks"): {name: row.path for name, row in run.tasks.items()},
    }
    wanted = [
        (kind, prefetch / folder / f"{name}.json", source)
        for (kind, folder), rows in sources.items()
        for name, source in rows.items()
    ]
    for kind, path, source in wanted:
        if not path.is_file():
            if not run.is_miniature(source):
                action = f"run {PREFETCH}, where there is a network"
                found.append(Problem(f"{kind} {path.stem}", "not fetched yet", action))
            continue
        try:
            record = read_json(path)
        except ValueError:
            found.append(Problem(str(path), "not valid JSON", f"delete it and run {PREFETCH}"))
            continue
        if kind == "benchmark" and "document_order" not in record and document_order(record):
            what = "its task draws at random, and was fetched before that was done with lm-eval's seeds"
            found.append(Problem(f"{kind} {path.stem}", what, f"delete {path} and run {PREFETCH}"))
        for name, point in record.get("checkpoints", {}).items() if not record.get("replay") else ():
            places = [Path(point["path"]) / (point["subfolder"] or "")]
            places += [Path(point["adapter"]["path"])] if "adapter" in point else []
            for place in (one for one in places if not any(one.glob("*.safetensors"))):
                what = f"checkpoint {name}: no weights in {place} any more"
                found.append(Problem(f"{kind} {path.stem}", what, f"delete {path} and run {PREFETCH}"))
    return found


def leases(run: Run) -> tuple[list[Problem], list[Problem]]:
    """(stale leases, which the next job takes over by itself; held ones: cells that are being computed)."""
    stale, held = [], []
    for path in sorted((run.results / "store" / ".leases").glob("*.json")):
        if is_stale(path):
            stale.append(Problem(path.stem, "stale lease of a job that no longer runs", "the next job takes it over"))
        else:
            what = f"being computed by {describe_holder(path)}"
            held.append(Problem(path.stem, what, "a second job waits for it; or cancel it"))
    return stale, held


def orphan_problems(run: Run) -> list[Problem]:
    """Slurm jobs that a killed Snakemake left behind."""
    return [
        Problem(
            f"Slurm job {job.id} ({job.comment}, {job.state})",
            "left by a Snakemake that no longer runs",
            f"let it finish, a new run waits for its cells; or `scancel {job.id}`",
        )
        for job in orphan_jobs(run.results)
    ]


def forget(run: Run, patterns: list[str]) -> list[str]:
    """Drop finished cells whose `rule/model/name` matches a shell pattern, and the manifests that hold them.

    Returns the folders dropped. Raises InputError for a pattern that matches nothing.
    """
    grid, store = Grid(run), Store(run.results / "store")
    dropped: set[str] = set()
    folders = list(store.folders())
    for pattern in patterns:
        matching = {folder for folder in folders if _matches(folder, pattern)}
        if not matching:
            raise InputError(
                f"{run.results / 'store'}: no finished cell matches {pattern!r}.",
                "patterns are rule/model/cell, e.g. 'finetune_adapter/web-*/qa.*'.",
            )
        dropped |= matching
    remove = {
        path
        for path, entries in existing_entries(grid)
        for entry in entries
        if entry.folder in dropped or (entry.content or {}).get("folder") in dropped
    }
    remove_manifests(remove)
    for folder in dropped:
        _remove_cell(run, store, folder)
    for rule in {folder.partition("/")[0] for folder in dropped} & set(RULES):
        for shared in RULES[rule].shared_work(run.results / "work"):  # or it would be read, not computed again
            shutil.rmtree(shared, ignore_errors=True)
    return sorted(dropped)


def _matches(folder: str, pattern: str) -> bool:
    name = folder.rpartition("--")[0]
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")
