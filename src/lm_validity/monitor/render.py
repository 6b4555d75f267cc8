"""Status, cost and plans as lines of a terminal; status, and what was computed, as pages too."""

import contextlib
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from shlex import quote as quote_for_shell
from typing import TYPE_CHECKING, NamedTuple, TextIO
from urllib.parse import quote

from lm_validity.config.load import Run
from lm_validity.errors import PREFETCH, InputError
from lm_validity.monitor import status
from lm_validity.monitor.status import STATES, TRAINING_RULES, CellState, Estimator, Pair, Progress, RunState
from lm_validity.run.cell import Cell, Job, label
from lm_validity.run.rules import RULES, rule_of
from lm_validity.run.rules.base import size_class
from lm_validity.run.store import Store
from lm_validity.run.workspace import UNCOUNTED, Grid, read_manifest
from lm_validity.words import count, listing, render_table, terminal_width

if TYPE_CHECKING:
    from lm_validity.pages.page import Page

# ----------------------------------------------------------------------------------------------------------------------
# How a run stands, as text for a terminal and as a page. Names are escaped on the page.

TITLES = {"models": "Models and benchmarks", "language_models": "Language models and tasks"}  # of squares, by sheet
PAGE_MARKS = ("--stale:", "% done</title>")  # in every page of this kind, of any version
LOOKED_AT_LAST = {"running": 1, "failed": 2}  # the cells whose log a square leads to
LISTED = 20  # failed cells named in the terminal; the page names all
SIGNS = {"failed": "F", "running": "R", "stale": "s"}
NOT_PLANNED = ", -: all done, and fine-tuning is not planned"
LEGEND = "#: all done, +: some done, .: none, R: running, F: failed, s: finished under another recipe, or one not known"


def render_summary(state: RunState, so_far: Progress) -> str:
    """Counts by rule, progress, and what failed."""
    rows = [(RULES[rule].words, *(f"{counts[name]:,}" for name in STATES)) for rule, counts in state.counts.items()]
    lines = [render_table(("jobs", *STATES), rows), describe_progress(so_far)]
    lines += describe_plans(state.run)
    failed = [entry for entry in state.cells if entry.state == "failed"]
    lines += [f"failed: {label(entry.cell)}: {entry.error}" for entry in failed[:LISTED]]
    if len(failed) > LISTED:
        lines.append(f"... and {len(failed) - LISTED} more failed cells; --html FILE lists all.")
    return "\n".join(lines)


def describe_progress(so_far: Progress, now: float | None = None) -> str:
    """One sentence: cells done, rate, expected finish."""
    share = so_far.done / so_far.cells if so_far.cells else 1.0
    text = f"{so_far.done:,} of {so_far.cells:,} cells done ({share:.1%})"
    if so_far.done == so_far.cells:
        return f"{text}."
    if so_far.rate is None:
        return f"{text}; none was finished in the last hour, so no rate."
    text += f"; {so_far.rate:,.1f} cells per hour over the last {_duration(so_far.window)}"
    if so_far.remaining_seconds is None:
        return f"{text}."
    finish = time.localtime((time.time() if now is None else now) + so_far.remaining_seconds)
    when = time.strftime("%Y-%m-%d %H:%M", finish)
    return f"{text}; at this rate of work the rest takes {_duration(so_far.remaining_seconds)}, until {when}."


class Square(NamedTuple):
    """A model and what it is tried on; the sheet tells a model from a language model of the same id."""

    sheet: str
    model: str
    subject: str


def square_of(cell: Cell) -> Square:
    """The square of a cell."""
    return Square(rule_of(cell).sheet, cell.model, cell.subject)


def matrix(cells: Iterable[CellState]) -> dict[Square, Counter[str]]:
    """The number of cells of each square by state, in the grid's order."""
    squares: dict[Square, Counter[str]] = {}
    for entry in cells:
        squares.setdefault(square_of(entry.cell), Counter())[entry.state] += 1
    return squares


class Matrix(NamedTuple):
    """The rows and columns of one sheet's models."""

    sheet: str
    title: str
    models: list[str]
    subjects: list[str]


def matrices(squares: Iterable[Square]) -> Iterator[Matrix]:
    """A matrix for each sheet that has squares."""
    for sheet, title in TITLES.items():
        of_sheet = [square for square in squares if square.sheet == sheet]
        if of_sheet:
            models, subjects = (list(dict.fromkeys(names)) for names in list(zip(*of_sheet, strict=True))[1:])
            yield Matrix(sheet, title, models, subjects)


def render_matrix(cells: list[CellState], unplanned: Collection[Pair] = ()) -> str:
    """Models by benchmarks, and language models by tasks, one sign each, in blocks as wide as the terminal.
    `unplanned`: (model, benchmark) that are not fine-tuned by plan."""
    squares, lines = matrix(cells), list[str]()
    signs = {square: _sign(counts, not_planned=_is_unplanned(square, unplanned)) for square, counts in squares.items()}
    half = terminal_width() // 2
    for sheet, _, models, subjects in matrices(squares):
        columns = list(enumerate(subjects, 1))
        short = {model: model if len(model) <= half else f"{model[: half - 1]}…" for model in models}
        width, digits = max(map(len, short.values())), len(str(len(columns)))
        fitting = max(1, (terminal_width() - width) // 2)
        for block in (columns[start : start + fitting] for start in range(0, len(columns), fitting)):
            heads = [
                ("", [f"{number:>{digits}}"[digit] for number, _ in block]) for digit in range(digits)
            ]  # downwards
            rows = [
                (short[model], [signs.get(Square(sheet, model, name), " ") for _, name in block]) for model in models
            ]
            lines += [" ".join([f"{model:{width}}", *row]).rstrip() for model, row in [*heads, *rows]]
        lines.append(", ".join(f"{number}: {column}" for number, column in columns))
    return "\n".join([*lines, LEGEND + NOT_PLANNED * bool(unplanned)])


def _is_unplanned(square: Square, unplanned: Collection[Pair]) -> bool:
    return square.sheet == "models" and square[1:] in unplanned


def render_page(title: str, state: RunState, so_far: Progress, folder: Path) -> str:
    """The page: progress, every failed cell, a square for each model and benchmark that leads to its log, the counts.

    `folder`: where the page will lie, from which its links lead.
    """
    from lm_validity.pages.page import from_template  # pandas, which a terminal does without

    squares, unplanned = matrix(state.cells), set(status.unplanned_pairs(state.run))
    failed, logs = [entry for entry in state.cells if entry.state == "failed"], dict[Square, str]()
    # the log of a cell that failed, else of one that runs, else of the last, of each square
    for entry in sorted(state.cells, key=lambda entry: LOOKED_AT_LAST.get(entry.state, 0)):
        if path := _log(state, entry.cell, folder):
            logs[square_of(entry.cell)] = path
    return from_template(
        "status.html.j2",
        title=title,
        heading=f"{so_far.done:,} of {so_far.cells:,} cells are done" + f", {len(failed):,} failed" * bool(failed),
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
        sentence=describe_progress(so_far),
        share=so_far.done / so_far.cells if so_far.cells else 1,
        states=STATES,
        counts={RULES[rule].words: counts for rule, counts in state.counts.items()},
        matrices=list(matrices(squares)),
        squares=squares,
        logs=logs,
        plan=" ".join(describe_plans(state.run)),
        unplanned={square for square in squares if _is_unplanned(square, unplanned)},
        failed=[(label(entry.cell), entry.error, _log(state, entry.cell, folder)) for entry in failed],
    )


def _log(state: RunState, cell: Cell, folder: Path) -> str | None:
    """A link to the log of the job that computes a cell, from a page in `folder`; None where there is none yet."""
    job = state.workspace.grid.job_of[cell]
    path = state.run.results / "logs" / job.rule / job.model / f"{job.batch}.log"
    return quote(Path(os.path.relpath(path, folder)).as_posix()) if path.is_file() else None


def _sign(counts: Counter[str], *, not_planned: bool) -> str:
    for name, sign in SIGNS.items():
        if counts[name]:
            return sign
    if not counts["done"]:
        return "."
    if counts["missing"]:
        return "+"
    return "-" if not_planned else "#"


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 90:
        return f"{round(minutes)} min" if minutes > 1.5 else f"{round(seconds)} s"
    return f"{minutes / 60:.1f} h" if minutes < 48 * 60 else f"{minutes / 60 / 24:.1f} days"


# ----------------------------------------------------------------------------------------------------------------------
# A run that goes on in a terminal, as one bar.

PRINTED = (None, "error", "job_error", "group_error")  # kinds of Snakemake's records that are shown above the bar
ROUTINE = re.compile(r"Select jobs to execute|Trying to restart job|Job \S+ has been submitted")
BAR_WIDTH = 24


def draw_bar(logger: logging.Logger, run: Run, jobs: Mapping[int, Job[Cell]], quiet: Collection[object]) -> None:
    """From now on Snakemake shows a run as a bar, where its own handler writes to a terminal and is not to be quiet.

    jobs: by Snakemake's ids, the planned ones that compute cells; theirs are the cells that are counted.
    """
    for printer in logger.handlers:
        stream = printer.stream if isinstance(printer, logging.StreamHandler) else None
        hushed = {"ALL", "PROGRESS"} & {getattr(kind, "name", "") for kind in quiet}
        if stream is not None and stream.isatty() and not hushed and os.environ.get("TERM") != "dumb":
            logger.removeHandler(printer)
            logger.addHandler(Bar(printer, stream, run, jobs))


class Bar(logging.Handler):
    """The last line of a terminal: cells done, rate, time left and Snakemake's steps. `printer` prints above it what is
    to be read: warnings, and what fails. Cells count as they come into the store, or are done in their job's manifest.
    """

    def __init__(self, printer: logging.Handler, stream: TextIO, run: Run, jobs: Mapping[int, Job[Cell]]):
        super().__init__()
        self._printer, self._stream, self._jobs, self._grid = printer, stream, jobs, Grid(run)
        self._store, self._begun, estimator = run.results / "store", time.time(), Estimator(run)
        self._seconds = {cell: estimator.seconds(cell) for job in jobs.values() for cell in job.cells}
        self._cells = {label(cell): cell for cell in self._seconds}
        self._finished: dict[Cell, float | None] = {}
        self._failed, self._step, self._steps = 0, 0, 0
        self._writing, self._ended = threading.RLock(), threading.Event()
        self._redraw()
        threading.Thread(target=self._keep_drawing, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Count a job that is finished, and the steps; print what is to be read."""
        values = vars(record)
        event = values.get("event")
        if event == "job_finished" and values["job_id"] in self._jobs:
            self._count(self._jobs[values["job_id"]])
        elif event == "progress":
            self._step, self._steps = values["done"], values["total"]
        elif event in PRINTED and not ROUTINE.match(str(record.msg)):
            with self._writing:
                self._stream.write("\r\033[K")
                self._printer.handle(record)
                self._write()

    def close(self) -> None:
        """Leave the bar as it is at the end."""
        if not self._ended.is_set():
            self._ended.set()
            self._redraw()
            self._stream.write("\n")
            self._printer.close()
        super().close()

    def _keep_drawing(self) -> None:
        """Once a second, and on a large grid or a slow disk in a fiftieth of the time."""
        seconds = 0.0
        while not self._ended.wait(max(1.0, 50 * seconds)):
            start = time.perf_counter()
            self._look(self._seconds)
            self._redraw()
            seconds = time.perf_counter() - start

    def _look(self, cells: Iterable[Cell]) -> None:
        """Take note of those of the cells that have come into the store."""
        for folder in {(cell.rule, cell.model) for cell in cells if cell not in self._finished}:
            for entry in status.list_folder(self._store.joinpath(*folder)):
                cell = self._cells.get("/".join((*folder, entry.name.rpartition("--")[0])))
                with contextlib.suppress(OSError):
                    if cell is not None and cell not in self._finished and entry.stat().st_mtime > self._begun:
                        self._finished[cell] = entry.stat().st_mtime

    def _count(self, job: Job[Cell]) -> None:
        """Take note of the cells of a finished job, by its manifests."""
        self._look(job.cells)
        for path in self._grid.manifests(job):
            with contextlib.suppress(InputError):
                for entry in read_manifest(path):
                    self._failed += entry.status == "failed"
                    if entry.status == "done":
                        self._finished.setdefault(entry.cell, None)

    def _redraw(self) -> None:
        states = [
            CellState(cell, "done" if cell in self._finished else "missing", finished=self._finished.get(cell))
            for cell in self._seconds
        ]
        so_far, words = status.progress(states, self._seconds.__getitem__), list[str]()
        if states:
            words.append(f"{so_far.done:,} of {so_far.cells:,} cells")
        if self._failed:
            words.append(f"{self._failed:,} failed")
        if so_far.rate and so_far.done < so_far.cells:
            words.append(f"{so_far.rate:,.0f} an hour")
        if so_far.remaining_seconds:
            words.append(f"{_duration(so_far.remaining_seconds)} left")
        if self._steps:
            words.append(f"step {self._step:,} of {self._steps:,}")
        with self._writing:
            self._share = so_far.done / so_far.cells if states else self._step / max(1, self._steps)
            self._words = ", ".join(words)
            self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80
            width = min(BAR_WIDTH, max(0, columns - len(self._words) - 4))
            line = f"[{'#' * int(self._share * width):.<{width}}] {self._words}"
            self._stream.write(f"\r{line[: columns - 1]}\033[K")
            self._stream.flush()


# ----------------------------------------------------------------------------------------------------------------------
# What a run is expected to cost, as text for a terminal.

NAMED = 6  # ids listed where something had to be assumed


def render_cost(estimator: Estimator, state: RunState) -> str:
    """Jobs, hours, memory and storage, of everything and of what is left; what was assumed; how good the guess is."""
    run = estimator.run
    lines = [f"{run.name}: expected cost", *_table(estimator), ""]
    if any(entry.state == "done" for entry in state.cells):
        lines.append(render_left(estimator, state))
    lines += describe_plans(run)
    if run.plan is not None:
        lines.append(describe_savings(estimator, run.plan))
    models = estimator.workload.model_bytes
    stored = sum(rule_of(entry.cell).stored_bytes(estimator.workload, entry.cell) for entry in state.cells)
    fetched = f"{_bytes(models)} of models from the hub" if models else "no models from the hub"
    storage = f"storage: {fetched}, {_bytes(stored)} in the store; data sets not counted"
    lines += [*_memory(estimator), storage, "", *_trust(estimator)]
    return "\n".join(lines)


def render_left(estimator: Estimator, state: RunState, asked_again: Iterable[Job[Cell]] = ()) -> str:
    """The cells that are to be computed, in one line: how many, in how many jobs and hours; and how many finished ones
    are among the jobs `asked_again`, whose models or documents are read anew first."""
    unfinished = {entry.cell for entry in state.cells if entry.state != "done"}
    to_do = status.needs(estimator, unfinished)
    open_cells = {cell for job in asked_again for cell in job.cells} - unfinished
    perhaps = f", and perhaps {count(len(open_cells), 'finished cell')} whose models or documents are read anew first"
    return (
        f"left: {len(unfinished):,} of {len(state.cells):,} cells in {sum(need.jobs for need in to_do):,} jobs, "
        f"{hours_in_words(sum(need.hours for need in to_do))} hours, "
        f"{hours_in_words(sum(need.gpu_hours for need in to_do))} of them on GPUs{perhaps * bool(open_cells)}"
    )


def render_stale(state: RunState, planned: Iterable[Job[Cell]], configfile: str) -> str:
    """The cells that are stale, or gone from the store, and have a manifest, so that Snakemake takes them for finished,
    and that none of the `planned` jobs computes: in one line with what to type; empty where there are none."""
    computed = {cell for job in planned for cell in job.cells}
    left = [entry for entry in state.cells if rule_of(entry.cell).in_store and entry.cell not in computed]
    stale = [entry.cell for entry in left if entry.state == "stale"]
    by_rule = Counter(cell.rule for cell in stale if Path(state.workspace.grid.manifest_of(cell)).is_file())
    gone = Counter(entry.cell.rule for entry in left if entry.state == "missing" and _is_gone(state, entry.cell))
    if not by_rule and not gone:
        return ""
    parts = [
        f"{rules.total():,} {name} ({', '.join(f'{rule}: {number}' for rule, number in rules.items())})"
        for name, rules in (("stale", by_rule), ("gone from the store", gone))
        if rules
    ]
    return (
        f"{count(by_rule.total() + gone.total(), 'cell')} that no job of this run computes: {', '.join(parts)}; "
        f"`lm-validity preflight --configfile {quote_for_shell(configfile)}` says why; type it, and run again"
    )


def _is_gone(state: RunState, cell: Cell) -> bool:
    """Whether its manifest says that it is done, and what it lists is not in the store."""
    entry = state.workspace.entry(cell)
    return entry is not None and not all(map(state.workspace.store.has, entry.folders))


def _table(estimator: Estimator) -> list[str]:
    rows, calibrated = status.needs(estimator), {cell.rule for cell in estimator.measured}
    cells = [
        (
            RULES[row.rule].words if row.rule in RULES else row.rule,
            f"{row.cells:,}",
            f"{row.jobs:,}",
            hours_in_words(row.hours),
            hours_in_words(row.gpu_hours),
            f"{row.requested_gpu_hours:,.0f}",
            "uncalibrated" if row.rule in RULES and row.hours and row.rule not in calibrated else "",
        )
        for row in [*rows, status.sum_of(rows, "total")]
    ]
    return [
        render_table(("jobs that", "cells", "jobs", "hours", "GPU hours", "requested", ""), cells, text=(0, 6)),
        "hours: of processes, one after the other; requested: GPU hours if every job used its time limit",
    ]


def _memory(estimator: Estimator) -> list[str]:
    """A line for each size class: what a job's first attempt asks for, what is expected and what was measured."""
    lines, rows = ["memory per job, by size class:"], Grid(estimator.run).used_rows
    for name in dict.fromkeys(row.size_class for row in rows):
        of_class = [row for row in rows if row.size_class == name]
        asked = size_class(estimator.run, of_class[0])
        text = f"  {name}: {count(len(of_class), 'model')}; asks for {asked.mem_mb / 1000:g} GB, {asked.gpu} GPU"
        if needed := max(map(estimator.workload.gpu_gb, of_class)):
            text += f" with at least {needed:.0f} GB"
        cells = [cell for cell in estimator.measured if cell.size_class == name]
        if memory := max((cell.memory_mb or 0.0 for cell in cells), default=0.0):
            text += f"; measured {memory / 1000:.1f} GB"
        if memory := max((cell.gpu_memory_mb or 0.0 for cell in cells), default=0.0):
            text += f", on the GPU {memory / 1000:.1f} GB"
        lines.append(text)
    return lines


def _trust(estimator: Estimator) -> list[str]:
    """How far these figures can be trusted."""
    lines = warnings_of(estimator)
    if not estimator.measured:
        lines.append(
            "UNCALIBRATED: no finished cell to learn from. The hours are a formula's, by the gpu_type of each "
            "size class. Run a few cells of each size class, then ask again."
        )
    else:
        devices = ", ".join(sorted({cell.device for cell in estimator.measured}))
        lines.append(
            f"by {count(len(estimator.measured), 'finished cell')} on {devices}: medians by rule and size class"
        )
    for assumption, names in sorted(estimator.workload.assumed.items()):
        lines.append(f"assumed: {assumption} ({listing(sorted(names), NAMED)})")
    return lines


def _bytes(value: float) -> str:
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:,.1f} {unit}"
    return f"{value / 1000:,.1f} TB"


# ----------------------------------------------------------------------------------------------------------------------
# Plans in words: what is fine-tuned, and the hours of it.

ROUNDING = 1e-9  # of the whole: what sums in another order differ by


def describe_savings(estimator: Estimator, pairs: Iterable[Pair]) -> str:
    """What the planned pairs cost, and what leaving out the others saves, in one line."""
    costs = status.training_costs(estimator)
    whole, planned = status.total(costs, costs), status.total(costs, set(pairs))
    share = f" ({planned / whole:.1%})" if whole else ""
    spared = whole - planned if whole - planned > ROUNDING * whole else 0.0
    is_calibrated = any(cell.rule in TRAINING_RULES for cell in estimator.measured)
    trust = "" if is_calibrated else " UNCALIBRATED: no finished fine-tune to learn from."
    return (
        f"fine-tuning and scoring of adapters: {hours_in_words(planned)} of {hours_in_words(whole)} hours{share}. "
        f"{hours_in_words(spared)} hours saved, not counting the starts of processes.{trust}"
    )


def warnings_of(estimator: Estimator) -> list[str]:
    """Warnings where benchmarks' costs rest on the splits' caps instead of counted documents, and where what computes
    on a CPU is estimated by a GPU's speed."""
    lines, names = [], estimator.workload.assumed.get(UNCOUNTED, ())
    device, rows = estimator.run.configuration.evaluation.device, Grid(estimator.run).used_rows
    on_cpu = device == "cpu" or not all(size_class(estimator.run, row).gpu for row in rows)
    if on_cpu and not any(cell.device == status.NO_GPU for cell in estimator.measured):
        lines.append(
            "Cells on a CPU have the hours of a GPU here: they take many times as long, until one is finished."
        )
    if names:
        lines.append(
            f"Documents of {count(len(names), 'benchmark')} are not counted yet: they count with the splits' caps, "
            f"which may be far too many. Run {PREFETCH} first."
        )
    return lines


def hours_in_words(value: float) -> str:
    """Hours with as many digits as they deserve."""
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


def describe_plans(run: Run) -> list[str]:
    """A line on the plan of each study that has one."""
    return [line for line in (describe_plan(run), describe_bias_plan(run)) if line]


def describe_plan(run: Run) -> str | None:
    """One line on how much is planned; None where there is no plan."""
    if run.plan is None:
        return None
    unplanned, rounds = len(status.unplanned_pairs(run)), max(cell.round for cell in run.plan.values())
    return (
        f"plan {run.configuration.plan}: {len(run.plan):,} of {len(run.plan) + unplanned:,} pairs of model and "
        f"benchmark are fine-tuned, in {count(rounds, 'round')}. {unplanned:,} are not planned and do not count as "
        "missing. All are scored under direct evaluation."
    )


def describe_bias_plan(run: Run) -> str | None:
    """One line on how many subsamples are planned; None where all are."""
    plan = run.bias_plan
    if plan is None:
        return None
    parts = []
    for name, experiment in run.bias.experiments.items():
        numbers = [plan.planned(name, task) for task in experiment.tasks or run.tasks]
        low, high = min(numbers), max(numbers)
        parts.append(f"{name}: {low} to {high}" if low < high else f"{name}: {low}")
        parts[-1] += f" of {plan.subsamples[name]} subsamples of {count(len(numbers), 'task')}"
    return (
        f"plan {run.bias.plan}: {'; '.join(parts)}. Tasks whose interval is ±{plan.half_width:g} or narrower stop. "
        "`lm-validity plan next` continues with the others. What is not planned does not count as missing."
    )


# ----------------------------------------------------------------------------------------------------------------------
# The page of what was computed: one sentence, and a row for each kind of job, from the counters of finished cells.

COLUMNS = {
    "cells": "cells",
    "model_loads": "model loads",
    "evaluate_passes": "passes over a split",
    "optimizer_steps": "optimizer steps",
    "training_tokens": "tokens trained",
    "forward_tokens": "tokens scored",
    "generated_tokens": "tokens generated",
    "cut": "texts cut",
    "oom_halvings": "out of memory",
}


def count_spent(store: Store) -> dict[str, Counter[str]]:
    """Rule -> what its finished cells took, by the keys of `COLUMNS`, and `milliseconds` on the clock; `uncounted`:
    cells without counters (replayed scores). Cells of other recipes are among them."""
    spent: dict[str, Counter[str]] = {}
    for folder in store.folders():
        sidecar, rule = store.sidecar(folder), spent.setdefault(folder.partition("/")[0], Counter())
        counters = sidecar.get("counters") or {}
        rule.update(cells=1, uncounted=int(not counters), milliseconds=round(1000 * (sidecar.get("wall_seconds") or 0)))
        for phase in counters.get("by_phase", {"trials": counters}).values():
            rule.update({key: value for key, value in phase.items() if key in COLUMNS})
            rule["cut"] += phase.get("truncated_requests", 0)
        rule["cut"] += sidecar.get("truncated_texts", 0)
    return spent


def computation_page(spent: dict[str, Counter[str]]) -> "Page | None":
    """The page; None where no cell was counted."""
    import pandas as pd

    from lm_validity.pages.page import Finding, Page, Section, Table

    total = sum(spent.values(), Counter[str]())
    if total["cells"] == total["uncounted"]:
        return None
    hours = total["milliseconds"] / 3.6e6
    took = f"{hours:,.2f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    cut = f" Of {count(total['cut'], 'text')} the beginning was cut, to fit the model or the configured length."
    finding = Finding(
        f"{total['cells']:,} cells took {took}: {total['model_loads']:,} model loads, {total['evaluate_passes']:,} "
        f"passes over a split, {total['optimizer_steps']:,} optimizer steps.",
        f"On the clock, without starting processes, over all finished cells of this run.{cut * bool(total['cut'])}",
    )
    rows = []
    for rule, of in spent.items():
        job = RULES[rule].words if rule in RULES else rule
        rows.append({"job": job, "hours": of["milliseconds"] / 3.6e6} | {key: of[key] for key in COLUMNS})
    frame = pd.DataFrame(rows)
    table = Table("computation", "By kind of job", frame, formats={"hours": ".2f", **dict.fromkeys(COLUMNS, ",d")},
                  labels=COLUMNS)  # fmt: skip
    return Page("computation", "What was computed", [finding], [Section("Jobs", tables=[table])],
                question="What did this run take?")  # fmt: skip
