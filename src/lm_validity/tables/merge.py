"""Merging: from the manifests of a run and the store to tables. A cell that is not there is listed, never 0.

Rows come in the grid's order, so that the same cells give the same bytes.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_validity.config.load import Run
from lm_validity.errors import InputError
from lm_validity.files import replace_file, write_json
from lm_validity.run.cell import BenchmarkCell, Cell, label
from lm_validity.run.rules import rule_of
from lm_validity.run.rules.benchmarks import FINETUNE_ADAPTER, SELECT_PROMPT
from lm_validity.run.store import check_read
from lm_validity.run.workspace import Entry, MissingCell, Workspace, read_failures
from lm_validity.tables import schema

STEPS = "losses.parquet"  # of a fine-tune's cell: epoch, step, loss, validation_value
LOSSES_AN_EPOCH = 50
ROW_GROUP = 100_000  # rows held in memory before they are written


class AbsentCell(NamedTuple):
    """A cell the tables lack, and why."""

    cell: Cell
    reason: str

    def describe(self) -> str:
        """`rule model cell: reason`, as errors and lists of missing cells have it."""
        return f"{self.cell.rule} {self.cell.model} {self.cell.name}: {self.reason}"


class Merger:
    """Reads a run's finished cells. With `partial`, missing cells are collected; without, they are an error."""

    def __init__(self, run: Run, *, partial: bool = False):
        self.run, self.partial = run, partial
        self.workspace = Workspace(run, also_aside=partial)
        self.grid, self.store = self.workspace.grid, self.workspace.store
        self.failures = read_failures(run)
        self._missing: dict[Cell, AbsentCell] = {}
        self.versions: Counter[str] = Counter()  # of libraries, by the scores that were merged
        self._points = {
            (row.model, point.checkpoint): point for row in run.models.values() for point in row.checkpoints
        }

    @property
    def missing(self) -> list[AbsentCell]:
        """The cells the tables lack, in the grid's order."""
        return list(self._missing.values())

    def write_scores(self, folder: Path) -> None:
        """scores.parquet, settings.parquet, selections.parquet and losses.parquet."""
        self.versions.clear()
        scores, selections = self.scores(), self.selections()
        schema.write_table(scores, schema.SCORES, folder / "scores.parquet")
        schema.write_table(self.settings(), schema.SETTINGS, folder / "settings.parquet")
        schema.write_table(selections, schema.SELECTIONS, folder / "selections.parquet")
        schema.write_table(self.losses(), schema.LOSSES, folder / "losses.parquet")
        mixed = [{"cells": cells, "versions": json.loads(text)} for text, cells in self.versions.most_common()]
        write_json(folder / "versions.json", mixed)

    def write_items(self, folder: Path) -> None:
        """items.parquet."""
        items = (self._items(cell, entry) for cell, entry in self._of_benchmarks("items"))
        _write(folder / "items.parquet", schema.ITEMS, items)

    def write_trials(self, folder: Path) -> None:
        """trials.parquet and probabilities.parquet of the bias study."""
        for name, columns in (("trials.parquet", schema.TRIALS), ("probabilities.parquet", schema.PROBABILITIES)):
            entries = map(self._entry, self.grid.cells(name.removesuffix(".parquet")))
            tables = (pq.read_table(check_read(self.store, entry.in_store, name)) for entry in entries if entry)
            _write(folder / name, columns, (table.select(columns.names).cast(columns) for table in tables))

    # ---- rows ---------------------------------------------------------------------------------------------------

    def scores(self) -> pd.DataFrame:
        """One row a metric of each scored cell, with the columns of SCORES."""
        rows = [row for cell, entry in self._of_benchmarks("scores") for row in self._score_rows(cell, entry)]
        return pd.DataFrame(rows, columns=schema.SCORES.names)

    def settings(self) -> pd.DataFrame:
        """How each score on the test split was made, with the columns of SETTINGS; replayed cells say nothing of it."""
        scored = (found for found in self._of_benchmarks("scores") if found[0].scored_split == "test")
        rows = pd.DataFrame([self._settings_row(*found) for found in scored], columns=schema.SETTINGS.names)
        return rows.drop_duplicates(list(schema.SETTINGS_KEY), ignore_index=True)

    def selections(self) -> pd.DataFrame:
        """What each selection chose from, with the columns of SELECTIONS."""
        rows = [row for cell, entry in self._of_benchmarks("selections") for row in _selection_rows(cell, entry.chosen)]
        return pd.DataFrame(rows, columns=schema.SELECTIONS.names)

    def losses(self) -> pd.DataFrame:
        """The training losses of the fine-tunes that are there, with the columns of LOSSES. Those of before they were
        stored have none."""
        losses = []
        for cell in (cell for job in self.grid.jobs.values() for cell in job.cells):
            entry = self.workspace.entry(cell)
            done = rule_of(cell) is FINETUNE_ADAPTER and entry is not None and entry.status == "done"
            if entry is None or not done or not (self.store.path(entry.in_store) / STEPS).is_file():
                continue
            steps = pd.read_parquet(check_read(self.store, entry.in_store, STEPS))
            by_epoch = steps.groupby("epoch")["step"]
            n_steps = by_epoch.transform("size")
            part = (by_epoch.cumcount() * LOSSES_AN_EPOCH // n_steps).where(n_steps > LOSSES_AN_EPOCH, steps["step"])
            means = steps.groupby(["epoch", part], sort=False)
            means_kept = means.agg({"epoch": "last", "step": "last", "loss": "mean", "validation_value": "last"})
            key = {name: getattr(cell, name) for name in ("model", "benchmark", "seed", "prompt", "learning_rate")}
            losses.append(means_kept.reset_index(drop=True).assign(**key))
        return pd.concat(losses, ignore_index=True) if losses else pd.DataFrame(columns=schema.LOSSES.names)

    def _score_rows(self, cell: BenchmarkCell, entry: Entry) -> Iterator[schema.Claim]:
        benchmark = self.run.benchmarks[cell.benchmark]
        result = self.store.read(entry.in_store)["result"]
        self.versions[json.dumps(self.store.sidecar(entry.in_store).get("versions", {}), sort_keys=True)] += 1
        for metric, score in result["metrics"].items():
            yield {
                **self._key(cell),
                "metric": metric,
                "value": score["value"],
                "stderr": score["stderr"],
                "n_items": score.get("n_items", result["n_items"]),
                "higher_is_better": benchmark.higher_is_better if metric == benchmark.metric else None,
                "selected": self._is_selected(cell),
                "source": result.get("source", schema.OWN),
            }

    def _settings_row(self, cell: BenchmarkCell, entry: Entry) -> dict[str, object]:
        """What is known of how a cell was scored: by its recipe, its result and its sidecar."""
        key = {name: value for name, value in self._key(cell).items() if name in schema.SETTINGS_KEY}
        result, sidecar = self.store.read(entry.in_store)["result"], self.store.sidecar(entry.in_store)
        if result.get("source", schema.OWN) != schema.OWN:
            return key
        model, chat = self.run.models[cell.model], key["prompt"] == "chat"
        generation = self.run.configuration.evaluation.generation if cell.run is not None else None
        return key | {
            "temperature": generation and generation.temperature,
            "top_p": generation and generation.top_p,
            "task_version": result.get("task_version"),
            "harness": "lm-eval",
            "harness_version": (sidecar.get("versions") or {}).get("lm_eval"),
            "chat_template": chat,
            "system_instruction": (self.run.configuration.evaluation.system_instruction if chat else None) or "none",
            "n_items_scored": result["n_items"],
            "n_items_total": result["n_items"],
            "backend": "hf",
            "dtype": model.dtype,
            "adapter": model.adapter_of(self._points[cell.model, cell.checkpoint or "final"]) or "none",
        }

    def _items(self, cell: BenchmarkCell, entry: Entry) -> pa.Table:
        table = pq.read_table(check_read(self.store, entry.in_store, "items.parquet"))
        key, columns = self._key(cell), list[pa.Array]()
        for field in schema.ITEMS:
            stored = table.column(field.name).cast(field.type) if field.name in table.column_names else None
            values = pa.array([key.get(field.name)] * len(table), field.type)
            columns.append(values if field.name in key or stored is None else stored)
        return pa.table(columns, schema=schema.ITEMS)

    def _key(self, cell: BenchmarkCell) -> schema.Claim:
        """The columns that name a cell."""
        model, row = self.run.models[cell.model], self.run.benchmarks[cell.benchmark]
        point = self._points[cell.model, cell.checkpoint or "final"]
        return {
            "model": cell.model,
            "checkpoint": point.checkpoint,
            "iteration": point.iteration,
            "tokens_b": model.tokens_b if point.tokens_b is None and point.checkpoint == "final" else point.tokens_b,
            "benchmark": row.variant_of or cell.benchmark,
            "protocol": rule_of(cell).protocol,
            "prompt": cell.prompt or self.workspace.selection(cell)["prompt"],
            "prompt_variant": cell.benchmark if row.variant_of else None,
            "num_fewshot": row.num_fewshot,
            "seed": cell.seed,
            "run": cell.run,
            "split": cell.scored_split,
        }

    def _is_selected(self, cell: BenchmarkCell) -> bool:
        """Whether the score counts: of several prompts, the one chosen on validation does; other wordings never."""
        if self.run.benchmarks[cell.benchmark].variant_of:
            return False
        selection = SELECT_PROMPT.choice_for(self.grid, cell)
        if selection is None or selection not in self.grid.job_of:
            return True
        entry = self.workspace.entry(selection)
        chosen = entry is not None and entry.status == "done" and entry.chosen["prompt"] == cell.prompt
        return chosen and self.workspace.outdated(selection) is None

    # ---- cells --------------------------------------------------------------------------------------------------

    def _of_benchmarks(self, table: str) -> Iterator[tuple[BenchmarkCell, Entry]]:
        """The finished cells that are rows of a table whose cells are all of a model and a benchmark."""
        for cell in self.grid.cells(table):
            if isinstance(cell, BenchmarkCell) and (entry := self._entry(cell)) is not None:
                yield cell, entry

    def _entry(self, cell: Cell) -> Entry | None:
        """The entry of a finished cell of the current recipe, as is all that it depends on; None (and remembered as
        missing) otherwise.

        A partial table also takes cells whose manifest is gone, because a sibling of their job failed.
        """
        try:
            outdated = self.workspace.outdated(cell)
        except InputError as error:  # what it stands on is damaged, or not there
            if not self.partial:
                raise
            self._lacks(cell, f"its recipe is not known ({error.problem})")
            return None
        if outdated is not None:
            reason = "" if outdated == cell else f"depends on {label(outdated)}, which was "
            self._lacks(cell, f"{reason}finished under another recipe, not yet under this one")
            return None
        entry = self.workspace.entry(cell)
        if entry is not None and entry.status == "done":
            if entry.folder is None or self.store.has(entry.folder):
                return entry
            self._lacks(cell, "missing from the store")
        elif self.partial and (stored := self._from_store(cell)) is not None:
            return stored
        else:
            reason = self.failures.get(cell, "not computed yet") if entry is None else entry.error or entry.status
            self._lacks(cell, reason)
        return None

    def _from_store(self, cell: Cell) -> Entry | None:
        rule = rule_of(cell)
        with contextlib.suppress(MissingCell, InputError):
            address = self.workspace.address(rule.stand_in(self.workspace, cell) or cell) if rule.in_store else None
            if address is not None and self.store.has(address):
                return Entry(cell, "done", folder=address.folder)
        return None

    def _lacks(self, cell: Cell, reason: str) -> None:
        lack = AbsentCell(cell, reason)
        if not self.partial:
            hint = "run the workflow to its end (lm-validity preflight first), or use --partial."
            raise InputError(f"{self.grid.manifest_of(cell)}: {lack.describe()}.", hint)
        self._missing.setdefault(cell, lack)


def _write(path: Path, columns: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write the tables as one, cell by cell, since it may be larger than memory."""
    with replace_file(path) as temporary, pq.ParquetWriter(temporary, columns, compression="zstd") as writer:
        waiting: list[pa.Table] = []
        for table in tables:
            waiting.append(table)
            if sum(map(len, waiting)) >= ROW_GROUP:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _selection_rows(cell: BenchmarkCell, choice: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """One row a candidate, and one for the untouched model (no learning rate, no epoch)."""
    common = {"model": cell.model, "benchmark": cell.benchmark, "seed": cell.seed}
    common |= {name: choice[name] for name in ("metric", "direct_validation_value")}
    picked = (choice["prompt"], choice["learning_rate"])
    direct = {"prompt": choice["direct_prompt"], "validation_value": choice["direct_validation_value"]}
    direct |= {"learning_rate": None, "epoch": None, "diverged": False, "selected": choice["folder"] is None}
    yield common | direct
    for row in choice["candidates"]:
        selected = choice["folder"] is not None and (row["prompt"], row["learning_rate"]) == picked
        yield {**common, **row, "selected": selected}
