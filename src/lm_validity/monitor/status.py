"""Which cells are done, running, failed or missing, and the page of what was computed."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from lm_validity.config.load import Run
from lm_validity.config.sections import PATIENCE
from lm_validity.errors import CellError, InputError
from lm_validity.pages.figures import lines, tooltips
from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.run.cell import Cell, label
from lm_validity.run.rules import rule_of
from lm_validity.run.store import Entry, Store, is_stale, read_failures
from lm_validity.run.workspace import Workspace

# ----------------------------------------------------------------------------------------------------------------------
# What a run's finished cells took to compute: the counters of their sidecars, summed by phase.


@dataclass
class Spent:
    """cells: finished cells; uncounted: those whose sidecar has no counters (replayed scores, trials).
    phases: phase -> counter -> sum. wall_seconds: of the cells, without process start.
    written_by_vllm: cells whose answers vLLM wrote. truncated: (model, benchmark) -> phase -> requests of all passes,
    and under `train` texts of all fine-tunes, that were longer than allowed and lost tokens.
    early_stops: of fine-tunes with `early_stop` on, their number as `fine_tunes`, how many `stopped`, and their epochs,
    `trained` and `allowed`; empty without any."""

    cells: int = 0
    uncounted: int = 0
    wall_seconds: float = 0.0
    phases: dict[str, Counter[str]] = field(default_factory=dict)
    written_by_vllm: int = 0
    truncated: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    early_stops: Counter[str] = field(default_factory=Counter)


def count_spent(store: Store) -> Spent:
    """Sum the sidecars of every finished cell in the store, cells of older recipes included."""
    spent = Spent()
    for folder in store.folders():
        sidecar = store.sidecar(folder)
        spent.cells += 1
        spent.wall_seconds += sidecar.get("wall_seconds") or 0.0
        counters = sidecar.get("counters") or {}
        trials = {"trials": counters} if counters else {}  # which have no phases
        phases = counters.get("by_phase", trials)
        spent.uncounted += not counters
        spent.written_by_vllm += sidecar.get("generation_backend") == "vllm"
        spent.early_stops.update(_early_stop(sidecar))
        for phase, counts in phases.items():
            spent.phases.setdefault(phase, Counter()).update(counts)
        cut = Counter({phase: counts.get("truncated_requests", 0) for phase, counts in phases.items()})
        cut["train"] += sidecar.get("truncated_texts", 0)
        if cut.total():
            try:
                key = store.read(folder)["key"]
            except InputError:  # damaged, or of an older recipe and purged: no number depends on this
                continue
            spent.truncated.setdefault((key["model"], key["benchmark"]), Counter()).update(cut)
    return spent


def _early_stop(sidecar: Mapping[str, Any]) -> dict[str, int]:
    """What a cell adds to `Spent.early_stops`."""
    allowed, trained = sidecar.get("epochs_allowed"), sidecar.get("epochs")
    if not allowed:
        return {}
    return {"fine_tunes": 1, "stopped": int(trained < allowed), "trained": trained, "allowed": allowed}


# ----------------------------------------------------------------------------------------------------------------------
# The state of every cell of a run, and how fast it goes, from files alone.
#
# The store is listed once and each cell is looked up by the folder that its present recipe gives; manifests are opened
# only for selections, which have no folder, and for cells that are not finished, whose manifest may say why.

# stale: finished under another recipe than the present one; missing: not computed, or a cell it depends on is missing
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
        self._running = _held_leases(run.results / "store" / ".leases")
        self._failures = read_failures(run)

    @cached_property
    def cells(self) -> list[CellState]:
        """One entry per cell of the grid."""
        return [self._state(cell) for cell in self.workspace.grid.cells()]

    @cached_property
    def counts(self) -> dict[str, Counter[str]]:
        """rule -> number of cells in each of STATES."""
        found: dict[str, Counter[str]] = {}
        for one in self.cells:
            found.setdefault(one.cell.rule, Counter(dict.fromkeys(STATES, 0)))[one.state] += 1
        return found

    def latest_recipe(self, cell: Cell) -> dict[str, Any] | None:
        """The recipe under which the cell was finished last; None where it never was or cannot be read."""
        try:
            return self.workspace.store.read(self._latest[label(cell)])["recipe"]
        except (KeyError, InputError):
            return None

    def _state(self, cell: Cell) -> CellState:
        if not rule_of(cell).in_store:
            return self._selection_state(cell)
        folder = self._folder(cell)
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
        if chosen not in self.workspace.grid.job_of or self._folder(chosen) != folder:
            return CellState(cell, "stale")
        return CellState(cell, "done" if folder in self._finished else "missing")

    def _folder(self, cell: Cell) -> str | None:
        """Where the present recipe puts the cell; None where that cannot be known yet."""
        try:
            return self.workspace.place(rule_of(cell).stand_in(self.workspace, cell) or cell).folder
        except (InputError, CellError, OSError, KeyError):
            return None

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
    computed = [one for one in states if rule_of(one.cell).in_store]
    recent = sorted(
        ((one.finished, weight(one.cell)) for one in computed if one.finished and one.finished > now - window),
        key=lambda pair: pair[0],
    )
    before = any(one.finished and one.finished <= now - window for one in computed)
    if recent and not before:  # the first cell only starts the clock
        window, recent = now - recent[0][0], recent[1:]
    done = sum(one.state == "done" for one in states)
    left = sum(weight(one.cell) for one in computed if one.state != "done")
    if not recent or window <= 0:
        return Progress(done, len(states), window, None, 0.0 if done == len(states) else None)
    work = sum(each for _, each in recent)
    return Progress(done, len(states), window, len(recent) / window * 3600, left / work * window if work else None)


def _list_store(root: Path) -> dict[str, float]:
    """folder -> time of its renaming into place. Folders appear whole; what is being written begins with a dot."""
    found = {}
    for rule in _folders(root):
        for model in _folders(rule.path):
            for cell in _folders(model.path):
                found[f"{rule.name}/{model.name}/{cell.name}"] = cell.stat().st_mtime
    return found


def _folders(path: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except FileNotFoundError:
        return []


def _held_leases(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.json") if not is_stale(path)}


# ----------------------------------------------------------------------------------------------------------------------
# The page of what was computed: how often models were loaded and splits read, tokens and steps, by phase.

CURVES = 24  # figures of training on the page
PHASES = ("load", "train", "validation", "test", "trials")
COLUMNS = {
    "model_loads": "model loads",
    "evaluate_passes": "passes over a split",
    "optimizer_steps": "optimizer steps",
    "training_tokens": "tokens trained",
    "training_tokens_padded": "with padding",
    "forward_tokens": "tokens scored",
    "forward_tokens_padded": "with padding",
    "shared_tokens": "spared by sharing",
    "generated_tokens": "tokens generated",
    "oom_halvings": "out of memory",
}


def computation_page(spent: Spent, planned: Finding | None = None, losses: pd.DataFrame | None = None) -> Page | None:
    """The page, or None where no cell was counted. `planned`: what a plan spares. `losses`: with the columns of
    LOSSES."""
    if spent.cells == spent.uncounted:
        return None
    phases = [*(phase for phase in PHASES if phase in spent.phases), *sorted(set(spent.phases) - set(PHASES))]
    frame = pd.DataFrame([{"phase": phase} | {key: spent.phases[phase][key] for key in COLUMNS} for phase in phases])
    totals = sum(spent.phases.values(), start=type(spent.phases[phases[0]])())
    minutes = spent.wall_seconds / 60
    took = f"{minutes / 60:,.2f} hours" if minutes >= 60 else f"{minutes:.1f} minutes"
    sentence = (
        f"{spent.cells:,} cells took {took}: {totals['model_loads']:,} model loads, "
        f"{totals['evaluate_passes']:,} passes over a split, {totals['optimizer_steps']:,} optimizer steps."
    )
    basis = (
        "Counted over all finished cells that computed something, also those of older settings of this run. Selections "
        "compute nothing."
    )
    if spent.uncounted:
        basis += f" {spent.uncounted:,} cells have no counters."
    if spent.written_by_vllm:
        basis += f" vLLM wrote the answers of {spent.written_by_vllm:,} cells."
    if spent.truncated:
        basis += (
            f" Text was cut to fit the model in {len(spent.truncated):,} pairs of model and benchmark, listed below."
        )
    table = Table(
        "computation",
        "By phase",
        frame,
        formats=dict.fromkeys(COLUMNS, ",d"),
        labels=COLUMNS,
        caption="Spared by sharing: tokens of choices that were not computed again because another choice has them. "
        "The time above is that of the cells on the clock, without starting processes. Trials: the bias study.",
    )
    return Page(
        "computation",
        "What was computed",
        [one for one in (Finding(sentence, basis), planned, _early_stops(spent)) if one],
        [
            Section("Counts", tables=[table]),
            *([_truncation(spent)] if spent.truncated else []),
            *([_training(losses)] if losses is not None and len(losses) else []),
        ],
        question="What did this run take?",
    )


def _training(losses: pd.DataFrame) -> Section:
    """The course of training: a figure for each model, benchmark, prompt and seed with a line for each rate."""
    fine_tunes = losses.groupby(["model", "benchmark", "prompt", "seed"], sort=False)
    figures, epochs = [], []
    for number, (names, own) in enumerate(fine_tunes):
        if number == CURVES:
            break
        hover = tooltips(learning_rate="learning rate", epoch="epoch", step="step", loss="loss|.4f")
        rate = alt.Color("learning_rate:N", title="learning rate")
        chart = lines(
            own, x="step", y="loss", x_title="step", y_title="loss (nats)", tooltip=hover, color=rate, points=False
        )
        figures.append(Figure(f"losses_{number}", ", ".join(map(str, names[:3])) + f", seed {names[3]}", chart))
        ends = own.groupby(["learning_rate", "epoch"], sort=False)
        ends = ends.agg(loss=("loss", "mean"), validation_value=("validation_value", "last")).reset_index()
        epochs.append(ends.assign(**dict(zip(("model", "benchmark", "prompt", "seed"), names, strict=True))))
    frame = pd.concat(epochs)[["model", "benchmark", "prompt", "seed", *ends.columns]]
    labels = {"learning_rate": "learning rate", "loss": "mean training loss", "validation_value": "value on validation"}
    formats = {"loss": ".4f", "validation_value": ".4f", "seed": "d", "epoch": "d"}
    table = Table("training", "By epoch", frame, formats=formats, labels=labels, folded=True)
    rest = fine_tunes.ngroups - len(figures)
    more = f" The other {rest:,} are in tables/losses.parquet of the run." if rest else ""
    note = f"Loss in nats per predicted token of the training texts, dropout on, a line for each learning rate.{more}"
    return Section("Training", figures=figures, tables=[table], notes=[note])


def _early_stops(spent: Spent) -> Finding | None:
    """What `finetuning.early_stop` spared, where it was on."""
    found = spent.early_stops
    if not found["fine_tunes"]:
        return None
    return Finding(
        f"{found['stopped']:,} of {found['fine_tunes']:,} fine-tunes stopped early, which saved "
        f"{found['allowed'] - found['trained']:,} of {found['allowed']:,} epochs.",
        f"finetuning.early_stop: a learning rate ends after {PATIENCE} epochs without improvement on validation. "
        "A later epoch might have been better. Fine-tunes that diverged are not counted.",
    )


def _truncation(spent: Spent) -> Section:
    """What was longer than the model or than the configured lengths: scores that rest on less than the whole text."""
    phases = ("train", "validation", "test")
    rows = [
        {"model": model, "benchmark": benchmark} | {phase: cut[phase] for phase in phases}
        for (model, benchmark), cut in sorted(spent.truncated.items())
    ]
    table = Table(
        "truncation",
        "Cut to fit",
        pd.DataFrame(rows),
        formats=dict.fromkeys(phases, ",d"),
        labels={"train": "training texts", "validation": "requests on validation", "test": "requests on test"},
        caption="Requests that lost the beginning of their context, over all passes (each epoch and learning rate "
        "reads validation once), and training texts that lost tokens, over all fine-tunes. The models of a comparison "
        "may differ in this. What helps: a longer evaluation.max_length or finetuning.max_length if the model "
        "allows it, fewer examples in a prompt, or a shorter max_gen_toks.",
    )
    return Section("Truncation", tables=[table])
