"""A run's grid, store and manifests, and the recipes of its cells."""

import contextlib
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.errors import CellError, InputError, again
from lm_validity.files import read_json, read_json_or, write_json
from lm_validity.run.cell import BenchmarkCell, Cell, CellT, Recipe
from lm_validity.run.grid import Grid
from lm_validity.run.records import CellRecord, Choice, FinishedCell, Records
from lm_validity.run.rules import read_cell, rule_of
from lm_validity.run.rules.benchmarks import SELECT_ADAPTER
from lm_validity.run.store import Address, Store

# ----------------------------------------------------------------------------------------------------------------------
# Manifests: what became of the cells of a job, and the failures of a run.

# ----------------------------------------------------------------------------------------------------------------------
# Manifests: what a job declares to Snakemake. A small list of its cells, each done, failed or missing.
#
# *done* names the cell's folder in the store; *failed* is a cell that itself caused its failure, with the error;
# *missing* is a cell that could not be computed because one that it depends on failed.

ASIDE = ".failed"  # suffix of a manifest that holds a failed cell, set aside so that its job runs again


class Entry(NamedTuple):
    """One cell of a manifest. `content` is for results too small for the store (selections)."""

    cell: Cell
    status: str  # done | failed | missing
    folder: str | None = None
    sha256: str | None = None  # of the cell's files: a recomputed cell with other bytes is another manifest
    error: str | None = None
    hint: str | None = None
    content: Choice | None = None

    @property
    def in_store(self) -> str:
        """The folder of a finished cell whose result lies in the store."""
        assert self.folder is not None, self
        return self.folder

    @property
    def folders(self) -> list[str]:
        """The folders in the store that it names: of its result, or of the cell that it chose."""
        chosen = self.content.get("folder") if self.content is not None else None
        return [folder for folder in (self.folder, chosen) if folder]

    @property
    def chosen(self) -> Choice:
        """The content of a finished cell whose result is kept here."""
        assert self.content is not None, self
        return self.content


def write_manifest(path: str | Path, entries: list[Entry]) -> None:
    """Write a job's manifest, atomically; nulls are left out."""
    rows = []
    for entry in entries:
        row = {"cell": {key: value for key, value in entry.cell._asdict().items() if value is not None}}
        row |= {key: value for key, value in entry._asdict().items() if key != "cell" and value is not None}
        rows.append(row)
    write_json(path, {"cells": rows})
    Path(f"{path}{ASIDE}").unlink(missing_ok=True)


def read_manifest(path: str | Path) -> list[Entry]:
    """The entries of a manifest. Raises InputError where it cannot be read."""
    try:
        rows = read_json(path)["cells"]
        return [Entry(**{**row, "cell": read_cell(row["cell"])}) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a readable manifest ({error}).", f"run {again('preflight')}, then the workflow again."
        ) from error


def write_failures(run: Run, failed: list[Entry]) -> None:
    """Keep what failed, since the manifests that say so are removed: for status and partial reports."""
    rows = [{"cell": entry.cell._asdict(), "error": entry.error, "hint": entry.hint} for entry in failed]
    write_json(run.results / "cells" / "failed.json", rows)


def read_failures(run: Run) -> dict[Cell, str]:
    """Cell -> error, of the cells that failed when they were last checked."""
    failures = {}
    for row in read_json_or(run.results / "cells" / "failed.json", []):
        with contextlib.suppress(KeyError, TypeError):  # a file of another kind
            failures[read_cell(row["cell"])] = f"failed: {row['error']}"
    return failures


class Manifests:
    """Reads manifests once each and finds the entry of a cell; those set aside only where asked for."""

    def __init__(self, grid: Grid, *, also_aside: bool = False):
        self.grid, self.also_aside = grid, also_aside
        self._read: dict[str, dict[Cell, Entry]] = {}

    def entry(self, cell: Cell) -> Entry | None:
        """The entry of a cell, or None where its manifest does not exist (yet)."""
        path = self.grid.manifest_of(cell)
        if path not in self._read:
            places = [path, f"{path}{ASIDE}"] if self.also_aside else [path]
            manifest = next((existing for existing in places if Path(existing).is_file()), None)
            self._read[path] = {entry.cell: entry for entry in read_manifest(manifest)} if manifest else {}
        return self._read[path].get(cell)


# ----------------------------------------------------------------------------------------------------------------------

MAKE_AGAIN = "delete it where it is there, and run the workflow again: finished cells stay."


class Workspace(Records):
    """One run's files: its grid, store, manifests and the login node's records."""

    def __init__(self, run: Run, *, also_aside: bool = False):
        super().__init__(run)
        self.grid = Grid(run)
        self.store = Store(run.results / "store")
        self.manifests = Manifests(self.grid, also_aside=also_aside)
        self._outdated: dict[Cell, Cell | None] = {}

    @cached_property
    def work(self) -> Path:
        """Where training keeps what it needs to resume: declared to nobody, so Snakemake never deletes it."""
        return self.run.results / "work"

    # ---- recipes ------------------------------------------------------------------------------------------------

    def address(self, cell: CellT) -> Address[CellT]:
        """A cell's address in the store, from its present recipe."""
        return self.store.address(cell, self.recipe(cell))

    def known_address(self, cell: Cell) -> Address[Cell] | None:
        """Where the present recipe puts the cell, or the one that stands in for it; None where that cannot be known
        yet."""
        try:
            return self.address(rule_of(cell).stand_in(self, cell) or cell)
        except (InputError, CellError, OSError, KeyError):
            return None

    def recipe(self, cell: Cell) -> Recipe:
        """Everything that determines the cell's numbers. An adapter's evaluation needs its selection first."""
        rule = rule_of(cell)
        recipe = {"rule": rule.name, "recipe_version": rule.recipe_version} | rule.recipe(self, cell)
        return recipe | {"replay": self.replay} if self.replay else recipe

    def outdated(self, cell: Cell) -> Cell | None:
        """The finished cell because of which this one must not be used: its manifest has a result of another recipe
        than the present one. It is a cell that this one stands on, else this one itself; None where there is none.

        Raises as `address` where a present recipe cannot be known.
        """
        if cell not in self._outdated:
            beneath = map(self.outdated, rule_of(cell).stands_on(self.grid, cell))
            cause = next((unmet for unmet in beneath if unmet is not None), None)
            self._outdated[cell] = cause or (cell if self._is_outdated(cell) else None)
        return self._outdated[cell]

    def _is_outdated(self, cell: Cell) -> bool:
        rule, entry = rule_of(cell), self.manifests.entry(cell)
        if entry is None or entry.status != "done":
            return False
        if entry.folder is not None:
            return entry.folder != self.address(rule.stand_in(self, cell) or cell).folder
        chosen = rule.choice(cell, entry.chosen)
        return chosen is not None and (
            chosen not in self.grid.job_of or entry.chosen["folder"] != self.address(chosen).folder
        )

    # ---- what a cell depends on --------------------------------------------------------------------------------

    def finished(self, cell: Cell) -> FinishedCell:
        """The record of a finished cell that another one needs. Raises MissingCell where it failed or is missing."""
        entry = self.manifests.entry(cell)
        if entry is None:
            raise InputError(f"{self.grid.manifest_of(cell)}: {cell.name} is not in it.", MAKE_AGAIN)
        if entry.status != "done":
            raise MissingCell(f"{cell.rule} {cell.model} {cell.name}: {entry.error or 'missing'}")
        return {**self.store.read(entry.in_store), "folder": entry.in_store}

    def stored(self, folder: str) -> CellRecord:
        """The record of a finished cell, by its folder in the store."""
        return self.store.read(folder)

    def selection(self, cell: BenchmarkCell) -> Choice:
        """The choice that `select_adapter` made for (model, benchmark, seed). Raises MissingCell where it failed."""
        choosing = cell._replace(rule=SELECT_ADAPTER.name, run=None)
        entry = self.manifests.entry(choosing)
        if entry is None:
            where = self.grid.manifest_of(choosing)
            raise InputError(f"{where}: no selection of {cell.model} {cell.name} is in it.", MAKE_AGAIN)
        if entry.status != "done":
            raise MissingCell(f"select_adapter {cell.model} {cell.name}: {entry.error or 'missing'}")
        return entry.chosen


class MissingCell(CellError):
    """A cell that this one depends on failed. This one counts as missing."""

    def __init__(self, subject: str):
        super().__init__(
            f"a cell that it depends on failed: {subject}", "remove the cause of that failure and run again."
        )
