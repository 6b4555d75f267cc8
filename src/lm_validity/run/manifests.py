"""Manifests: what became of the cells of a job, and the failures of a run."""

import contextlib
from pathlib import Path
from typing import NamedTuple

from lm_validity.config.load import Run
from lm_validity.errors import InputError
from lm_validity.files import read_json, read_json_or, write_json
from lm_validity.run.cell import Cell
from lm_validity.run.grid import Grid
from lm_validity.run.records import Choice
from lm_validity.run.rules import read_cell

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
            f"{path}: not a readable manifest ({error}).",
            "run `lm-validity preflight`, then the workflow again.",
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
