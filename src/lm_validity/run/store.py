"""The store of finished cells: a folder for each, which is never changed once it is there."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypedDict

from lm_validity.errors import InputError, again
from lm_validity.files import file_sha256, read_json, read_json_or, write_json
from lm_validity.run.cell import Cell, CellT, CellT_co, Recipe, label, recipe_hash
from lm_validity.run.records import CellRecord

# ----------------------------------------------------------------------------------------------------------------------
# The store: one folder a finished cell, written under a temporary name and renamed, never changed afterwards.
#
#     results/<run>/store/<rule>/<model>/<cell name>--<hash>/
#         cell.json      key, recipe, result
#         items.parquet  per document, where the cell scored documents
#         adapter/       PEFT format, where the cell trained one
#         losses.parquet of every training step, beside the adapter
#         sha256.json    of all of the above
#         sidecar.json   cost, machine and versions: what may differ from run to run, and enters no table
#
# Snakemake does not know these files, so it neither deletes nor reruns them: whatever it starts again finds them here.


class Address(NamedTuple, Generic[CellT_co]):
    """Where the store keeps a cell of a given recipe, whether or not it is there yet."""

    cell: CellT_co
    recipe: Recipe
    folder: str  # relative to the store's root

    @property
    def label(self) -> str:
        """What a person calls it: rule/model/name."""
        return label(self.cell)


class Sidecar(TypedDict, total=False):
    """What is read of the cost of a finished cell. `counters`: counts by name, and under `by_phase` those of each
    phase; a replayed cell has none."""

    wall_seconds: float | None
    counters: dict[str, Any]
    versions: dict[str, str]
    epochs: int
    truncated_texts: int
    cut_answers: int


class Store:
    """Finished cells below one folder."""

    def __init__(self, root: str | Path):
        self.root = Path(root)

    def address(self, cell: CellT, recipe: Recipe) -> Address[CellT]:
        """The address of a cell with this recipe, whether or not its folder exists."""
        return Address(cell, recipe, f"{label(cell)}--{recipe_hash(recipe)}")

    def path(self, address: Address[Cell] | str) -> Path:
        """A cell's folder, whether or not it exists. A string is that folder relative to the root."""
        return self.root / (address if isinstance(address, str) else address.folder)

    def has(self, address: Address[Cell] | str) -> bool:
        """Whether the cell is finished. Folders are renamed into place whole, so the index file is enough."""
        return (self.path(address) / "sha256.json").is_file()

    def lease(self, folder: str) -> Path:
        """The lease of a cell's folder. A name may have 255 bytes: the end of a longer one is replaced by its hash."""
        name = folder.replace("/", ".")
        if len(name.encode()) > 200:
            name = f"{name[:40]}--{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        return self.root / ".leases" / f"{name}.json"

    def read(self, address: Address[Cell] | str) -> CellRecord:
        """The cell's record: `key`, `recipe`, `result`. Raises InputError where it is missing or damaged."""
        folder = address if isinstance(address, str) else address.folder
        record: CellRecord = read_json(check_read(self, folder, "cell.json"))
        return record

    def sidecar(self, folder: str) -> Sidecar:
        """What a cell cost and where it ran; empty where that file is gone: no number depends on it."""
        sidecar: Sidecar = read_json_or(self.root / folder / "sidecar.json", {})
        return sidecar

    def digest(self, address: Address[Cell] | str) -> str:
        """sha256 over the cell's files, its sidecar left out."""
        return file_sha256(self.path(address) / "sha256.json")

    def commit(
        self,
        address: Address[Cell],
        result: Mapping[str, object],
        sidecar: Mapping[str, object],
        write_files: Callable[[Path], None],
    ) -> None:
        """Write a finished cell. `write_files` puts items or an adapter into the folder it is given.

        Where another process finished the same cell first, its folder stays: the recipe is the same.
        """
        target = self.path(address)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=target.parent))
        try:
            write_files(temporary)
            write_json(
                temporary / "cell.json",
                {"key": _key(address.cell), "recipe": address.recipe, "result": result},
            )
            write_json(temporary / "sha256.json", {name: file_sha256(temporary / name) for name in _files(temporary)})
            write_json(temporary / "sidecar.json", sidecar)
            _share(temporary)
            if target.exists() and not self.has(address):
                shutil.rmtree(target)  # a folder someone emptied by hand
            try:
                os.rename(temporary, target)
            except OSError:
                if not self.has(address):
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def damage(self, folder: str) -> str | None:
        """What is wrong with a finished cell's files, or None. Reads every byte."""
        path = self.root / folder
        if not (path / "sha256.json").is_file():
            return "missing from the store"
        index = read_json_or(path / "sha256.json", None)
        if index is None:
            return "sha256.json cannot be read"
        for name, expected in index.items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file_sha256(file) != expected:
                return f"{name} does not have the recorded sha256"
        return None

    def folders(self) -> Iterator[str]:
        """Every finished cell's folder, relative to the root, sorted."""
        for index in sorted(self.root.glob("*/*/*/sha256.json")):
            if not index.parent.name.startswith("."):  # a writer that was killed
                yield index.parent.relative_to(self.root).as_posix()

    def remove(self, folder: str) -> None:
        """Forget a cell: renamed away first, so that a reader never sees half of it."""
        path = self.root / folder
        if not path.exists():
            return
        gone = Path(tempfile.mkdtemp(prefix=".removing-", dir=path.parent))
        os.rename(path, gone / "cell")
        shutil.rmtree(gone, ignore_errors=True)


def check_read(store: Store, folder: str, name: str) -> Path:
    """The path of one file of a cell, its sha256 checked. Raises InputError where it is missing or damaged."""
    path = store.root / folder / name
    expected = read_json_or(store.root / folder / "sha256.json", {}).get(name)
    if expected is None or not path.is_file() or file_sha256(path) != expected:
        raise InputError(
            f"{path}: missing or damaged (sha256 differs).",
            f"run {again('preflight')}, then the workflow again: the cell is computed anew.",
        )
    return path


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _share(folder: Path) -> None:
    """mkdtemp makes private folders; results are shared within a group, by the usual umask."""
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)


def _key(cell: Cell) -> dict[str, object]:
    """The cell as its record has it: without `run` where nothing is sampled, as before there were runs."""
    key = cell._asdict()
    if key.get("run", 0) is None:
        del key["run"]
    return key
