"""What the login node wrote about models, tasks and splits, and the recipes of cells made from it.

Reads JSON only, so that a job whose cells are all in the store never imports torch.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

from lm_validity.config.load import Run
from lm_validity.errors import CellError, InputError
from lm_validity.files import read_json
from lm_validity.run.cell import BenchmarkCell, Cell, CellT
from lm_validity.run.grid import Grid
from lm_validity.run.rules import rule_of
from lm_validity.run.rules.select_adapter import SELECT_ADAPTER
from lm_validity.run.store import Manifests, Place, Store, file_sha256


class Workspace:
    """One run's files: its grid, store, manifests and the login node's records."""

    def __init__(self, run: Run, *, also_aside: bool = False):
        self.run = run
        self.grid = Grid(run)
        self.store = Store(run.results / "store")
        self.manifests = Manifests(self.grid, also_aside=also_aside)
        self._json: dict[str, dict[str, Any]] = {}
        self._outdated: dict[Cell, Cell | None] = {}

    @cached_property
    def work(self) -> Path:
        """Where training keeps what it needs to resume: declared to nobody, so Snakemake never deletes it."""
        return self.run.results / "work"

    def model_record(self, model: str) -> dict[str, Any]:
        """What `prefetch-model` wrote about a model; `prefetch_model` lists the keys.

        Raises InputError where the file is missing, is not JSON, or was made with another `replay` setting. So do the
        other records.
        """
        return self._read(f"prefetch/models/{model}.json", f"lm-validity prefetch-model --model {model}")

    def task_record(self, benchmark: str) -> dict[str, Any]:
        """What `prefetch-benchmark` wrote about a benchmark: its lm-eval task, and digests of what determines its
        numbers."""
        return self._read(
            f"prefetch/benchmarks/{benchmark}.json", f"lm-validity prefetch-benchmark --benchmark {benchmark}"
        )

    def language_model_record(self, language_model: str) -> dict[str, Any]:
        """What `prefetch-language-model` wrote about a model of the bias study; the keys are those of
        `model_record`."""
        command = f"lm-validity prefetch-language-model --language-model {language_model}"
        return self._read(f"prefetch/language_models/{language_model}.json", command)

    def trial_task_record(self, task: str) -> dict[str, Any]:
        """What `prefetch-task` wrote about a task of the bias study; the task's texts are in a parquet file beside
        it."""
        return self._read(f"prefetch/tasks/{task}.json", f"lm-validity prefetch-task --task {task}")

    def split_path(self, benchmark: str, split: str) -> Path:
        """The file of a benchmark's split (train, validation or test), whether or not it exists."""
        return self.run.results / "splits" / benchmark / f"{split}.json"

    def split_digest(self, benchmark: str, split: str) -> str:
        """sha256 over the addresses and the rendered texts of a split's documents. Raises InputError as
        `model_record`."""
        record = self._read(f"splits/{benchmark}/{split}.json", f"lm-validity split-benchmark --benchmark {benchmark}")
        digest: str = record["digest"]
        return digest

    def _read(self, name: str, command: str) -> dict[str, Any]:
        if name not in self._json:
            path = self.run.results / name
            try:
                self._json[name] = read_json(path)
            except FileNotFoundError:
                raise InputError(f"{path}: no such file.", f"make it first: {command}.") from None
            except ValueError as error:
                raise InputError(f"{path}: not valid JSON ({error}).", f"delete it and run {command}.") from error
            if self._json[name].get("replay") != self.replay:  # neither stands in for the other
                raise InputError(f"{path}: made with another `replay` setting.", f"delete it and run {command}.")
        return self._json[name]

    @cached_property
    def replay(self) -> str | None:
        """sha256 of the scores that are served instead of running models; None in a real run."""
        if self.run.configuration.replay is None:
            return None
        path = Path(self.run.configuration.replay.scores)
        if not path.is_file():
            raise InputError(f"{path}: no such file (replay.scores).", "name your copy of the scores to serve.")
        return file_sha256(path)

    @property
    def served(self) -> tuple[str, str]:
        """(the file of scores, its sha256) of a replay."""
        settings, digest = self.run.configuration.replay, self.replay
        assert settings is not None and digest is not None, "no replay"
        return settings.scores, digest

    # ---- recipes ------------------------------------------------------------------------------------------------

    def place(self, cell: CellT) -> Place[CellT]:
        """A cell's folder in the store, from its recipe."""
        return self.store.place(cell, self.recipe(cell))

    def recipe(self, cell: Cell) -> dict[str, Any]:
        """Everything that determines the cell's numbers. An adapter's evaluation needs its selection first."""
        rule = rule_of(cell)
        recipe = {"rule": rule.name, "recipe_version": rule.recipe_version} | rule.recipe(self, cell)
        return recipe | {"replay": self.replay} if self.replay else recipe

    def outdated(self, cell: Cell) -> Cell | None:
        """The finished cell because of which this one must not be used: its manifest has a result of another recipe
        than the present one. It is a cell that this one stands on, else this one itself; None where there is none.

        Raises as `place` where a present recipe cannot be known.
        """
        if cell not in self._outdated:
            beneath = map(self.outdated, rule_of(cell).stands_on(self.grid, cell))
            found = next((one for one in beneath if one is not None), None)
            self._outdated[cell] = found or (cell if self._is_outdated(cell) else None)
        return self._outdated[cell]

    def _is_outdated(self, cell: Cell) -> bool:
        rule, entry = rule_of(cell), self.manifests.entry(cell)
        if entry is None or entry.status != "done":
            return False
        if entry.folder is not None:
            return entry.folder != self.place(rule.stand_in(self, cell) or cell).folder
        chosen = rule.choice(cell, entry.chosen)
        return chosen is not None and (
            chosen not in self.grid.job_of or entry.chosen["folder"] != self.place(chosen).folder
        )

    # ---- what a cell depends on --------------------------------------------------------------------------------

    def finished(self, cell: Cell) -> dict[str, Any]:
        """The record of a finished cell that another one needs. Raises MissingCell where it failed or is missing."""
        entry = self.manifests.entry(cell)
        if entry is None:
            raise InputError(
                f"{self.grid.manifest_of(cell)}: {cell.name} is not in it.",
                "run the job that makes it first.",
            )
        if entry.status != "done":
            raise MissingCell(f"{cell.rule} {cell.model} {cell.name}: {entry.error or 'missing'}")
        return self.store.read(entry.in_store) | {"folder": entry.folder}

    def selection(self, cell: BenchmarkCell) -> dict[str, Any]:
        """The choice that `select_adapter` made for (model, benchmark, seed)."""
        entry = self.manifests.entry(cell._replace(rule=SELECT_ADAPTER.name))
        if entry is None:
            raise InputError(f"no selection of {cell.model} {cell.name}.", "run select-adapter first.")
        if entry.status != "done":
            raise MissingCell(f"select_adapter {cell.model} {cell.name}: {entry.error or 'missing'}")
        return entry.chosen


class MissingCell(CellError):
    """A cell that this one depends on failed. This one counts as missing."""

    def __init__(self, what: str):
        super().__init__(f"a cell that it depends on failed: {what}", "remove the cause of that failure and run again.")
