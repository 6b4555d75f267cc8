"""What is failed, missing or damaged in a run, and how to have it computed again.

Removing a manifest is how a cell is asked for: Snakemake starts its job anew, and the job finds every other cell of it
in the store.
"""

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lm_validity.config.grid import Cell, Grid
from lm_validity.config.load import Run
from lm_validity.errors import InputError
from lm_validity.store.cells import Store
from lm_validity.store.leases import describe_holder, is_stale
from lm_validity.store.manifests import Entry, read_manifest


class Problem(NamedTuple):
    """One line of preflight: where, what, and what to do (or what was done)."""

    where: str
    what: str
    action: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.action}"


def existing_entries(grid: Grid) -> Iterator[tuple[str, list[Entry]]]:
    """(manifest path, entries) of every manifest of the run that exists and can be read."""
    for path in grid.all_manifests():
        if Path(path).is_file():
            try:
                yield path, read_manifest(path)
            except InputError:
                yield path, []


def failed_cells(grid: Grid) -> tuple[list[Entry], set[str]]:
    """The cells that failed by their own fault, and every manifest that holds a failed or missing cell."""
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


def repair(run: Run, verify: bool = True) -> list[Problem]:
    """Remove manifests whose cells are missing, damaged or failed, and damaged cells themselves.

    With `verify` every file's sha256 is read; without, only that the cells are there.
    """
    grid, store = Grid(run), Store(run.results / "store")
    problems: list[Problem] = []
    remove: set[str] = set()
    damage: dict[str, str | None] = {}
    for path, entries in existing_entries(grid):
        if not entries and not _may_be_empty(path):
            problems.append(Problem(path, "not a readable manifest", "removed, its job runs again"))
            remove.add(path)
        for entry in entries:
            if entry.status != "done":
                label = _label(entry.cell)
                problems.append(Problem(label, f"{entry.status} ({entry.error})", "will be computed again"))
                remove.add(path)
            for folder in filter(None, (entry.folder, (entry.content or {}).get("folder"))):
                if folder not in damage:
                    damage[folder] = _damage(store, folder, verify)
                    if damage[folder]:
                        problems.append(Problem(folder, damage[folder], "will be computed again"))
                if damage[folder]:
                    remove.add(path)
    for folder, what in damage.items():
        if what:
            store.remove(folder)
    remove_manifests(remove)
    return problems


def _damage(store: Store, folder: str, verify: bool) -> str | None:
    if verify:
        return store.damage(folder)
    return None if store.has(folder) else "missing from the store"


def _label(cell: Cell) -> str:
    return f"{cell.rule}/{cell.model}/{cell.name}"


def lease_problems(run: Run) -> list[Problem]:
    """Leases that are held or stale. A stale one is taken over by the next job by itself."""
    found = []
    for path in sorted((run.results / "store" / ".leases").glob("*.json")):
        if is_stale(path):
            found.append(Problem(path.stem, "stale lease of a job that is gone", "the next job takes it over"))
        else:
            found.append(
                Problem(
                    path.stem,
                    f"being computed by {describe_holder(path)}",
                    "a second job waits for it; or cancel it",
                )
            )
    return found


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
        store.remove(folder)
    return sorted(dropped)


def _matches(folder: str, pattern: str) -> bool:
    name = folder.rpartition("--")[0]
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")
