"""The state of every cell of a run, and how fast it goes, from files alone."""

import os
import time
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.errors import InputError
from lm_validity.run.cell import Cell, label
from lm_validity.run.leases import is_stale
from lm_validity.run.rules import rule_of
from lm_validity.run.workspace import Entry, Workspace, read_failures

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
        # label -> the folder finished last, of whatever recipe
        self._latest = {
            name.rpartition("--")[0]: name for name in sorted(self._finished, key=self._finished.__getitem__)
        }
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

    def latest_recipe(self, cell: Cell) -> dict[str, object] | None:
        """The recipe under which the cell was finished last; None where it never was or cannot be read."""
        try:
            result: dict[str, object] | None = self.workspace.store.read(self._latest[label(cell)])["recipe"]
            return result
        except (KeyError, InputError):
            return None

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
        return CellState(cell, "stale" if label(cell) in self._latest else "missing")

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
            return self.workspace.manifests.entry(cell)
        except InputError:
            return None

    def _failure(self, cell: Cell) -> str | None:
        entry = self._entry(cell)
        if entry is not None and entry.status == "failed":
            return entry.error
        return None if entry is not None and entry.status == "done" else self._failures.get(cell)


class Progress(NamedTuple):
    """How far a run is. Work is in expected seconds; rate in cells per hour over the last `window` seconds (null where
    nothing was finished in it), `remaining_seconds` from the work done in it."""

    done: int
    cells: int
    window: float
    rate: float | None
    remaining_seconds: float | None


def _alike(cell: Cell) -> float:
    return 1.0


def progress(
    states: list[CellState],
    weight: Callable[[Cell], float] = _alike,
    now: float | None = None,
    window: float = 3600.0,
) -> Progress:
    """Cells done, rate, and the time that the rest takes at the rate of the last `window` seconds.

    weight: expected seconds of a cell, so that an hour of short evaluations does not promise fast fine-tunes.
    A run that began within the window is measured from its first finished cell; cells that two entries share count
    once.
    """
    now = time.time() if now is None else now
    computed = [state for state in states if rule_of(state.cell).in_store]
    recent = sorted(
        (
            (state.finished, weight(state.cell))
            for state in computed
            if state.finished and state.finished > now - window
        ),
        key=lambda pair: pair[0],
    )
    computed_before = any(state.finished and state.finished <= now - window for state in computed)
    if recent and not computed_before:  # the first cell only starts the clock
        window, recent = now - recent[0][0], recent[1:]
    done = sum(state.state == "done" for state in states)
    work_left = sum(weight(state.cell) for state in computed if state.state != "done")
    if not recent or window <= 0:
        return Progress(done, len(states), window, None, 0.0 if done == len(states) else None)
    work = sum(weight_of_cell for _, weight_of_cell in recent)
    return Progress(done, len(states), window, len(recent) / window * 3600, work_left / work * window if work else None)


def _list_store(root: Path) -> dict[str, float]:
    """folder -> time of its renaming into place. Folders appear whole; what is being written begins with a dot."""
    times = {}
    for rule in _folders(root):
        for model in _folders(rule.path):
            for cell in _folders(model.path):
                times[f"{rule.name}/{model.name}/{cell.name}"] = cell.stat().st_mtime
    return times


def _folders(path: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except FileNotFoundError:
        return []
