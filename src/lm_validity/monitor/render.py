"""Status and cost as lines of a terminal; status as a page too."""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from shlex import quote as quote_for_shell
from urllib.parse import quote

from lm_validity.monitor.cost import Estimator, Need, memory_by_class, needs
from lm_validity.monitor.planning import describe_hours_of_a_gpu, describe_plans, describe_savings, unplanned_pairs
from lm_validity.monitor.status import STATES, CellState, Progress, RunState
from lm_validity.run.cell import Cell, Job, label
from lm_validity.run.participants import kind_label
from lm_validity.run.rules import RULES, rule_of
from lm_validity.terminal import render_table, terminal_width
from lm_validity.words import count, listing

# ----------------------------------------------------------------------------------------------------------------------
# How a run stands, as text for a terminal and as a page. Names are escaped on the page.

SUBJECT_SHEETS = {"models": "benchmarks", "language_models": "tasks"}  # what the models of a sheet are tried on
PAGE_MARKS = ("--stale:", "% done</title>")  # in every page of this kind, of any version
LOOKED_AT_FIRST = {"failed": 0, "running": 1}  # the cells whose log a square leads to
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


def render_matrix(cells: list[CellState], unplanned: Collection[tuple[str, str]] = ()) -> str:
    """Models by benchmarks, one sign each, in blocks as wide as the terminal. `unplanned`: (model, benchmark) that are
    not fine-tuned by plan."""
    squares, not_planned = matrix(cells), unplanned_squares(cells, unplanned)
    signs = {square: _sign(counts, not_planned=square in not_planned) for square, counts in squares.items()}
    models = list(dict.fromkeys(model for model, _ in squares))
    columns = list(enumerate(dict.fromkeys(column for _, column in squares), 1))
    half = terminal_width() // 2
    short = {model: model if len(model) <= half else f"{model[: half - 1]}…" for model in models}
    names = max(map(len, short.values()), default=0)
    digits = len(str(len(columns)))
    fitting = max(1, (terminal_width() - names) // 2)
    lines = []
    for block in (columns[start : start + fitting] for start in range(0, len(columns), fitting)):
        heads = [("", [f"{number:>{digits}}"[square] for number, _ in block]) for square in range(digits)]  # downwards
        rows = [(short[model], [signs.get((model, column), " ") for _, column in block]) for model in models]
        lines += [" ".join([f"{model:{names}}", *row]).rstrip() for model, row in [*heads, *rows]]
    lines.append(LEGEND + NOT_PLANNED * bool(not_planned))
    lines.append(", ".join(f"{number}: {column}" for number, column in columns))
    return "\n".join(lines)


def matrix(cells: list[CellState]) -> dict[tuple[str, str], Counter[str]]:
    """(model, benchmark or task) -> number of cells by state, in the grid's order.

    An id that both a model and a language model have, or a benchmark and a task, stands twice, each with its kind.
    """
    name = _square_names(cells)
    squares: dict[tuple[str, str], Counter[str]] = {}
    for entry in cells:
        squares.setdefault(name(entry.cell), Counter())[entry.state] += 1
    return squares


def unplanned_squares(cells: list[CellState], unplanned: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """The squares of `matrix` whose (model, benchmark) is in `unplanned`."""
    name, pairs = _square_names(cells), set(unplanned)
    of_models = (entry.cell for entry in cells if rule_of(entry.cell).sheet == "models")
    return {name(cell) for cell in of_models if (cell.model, cell.subject) in pairs}


def _square_names(cells: list[CellState]) -> Callable[[Cell], tuple[str, str]]:
    """What the square of a cell is called."""
    kinds = {entry.cell: rule_of(entry.cell).sheet for entry in cells}
    models = _names((kind, cell.model) for cell, kind in kinds.items())
    subjects = _names((SUBJECT_SHEETS[kind], cell.subject) for cell, kind in kinds.items())
    return lambda cell: (models[kinds[cell], cell.model], subjects[SUBJECT_SHEETS[kinds[cell]], cell.subject])


def _names(ids: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(sheet, id) -> what it is called: the id, with its kind where another sheet has it too."""
    distinct = dict.fromkeys(ids)
    count = Counter(name for _, name in distinct)
    return {(kind, name): name if count[name] == 1 else f"{name} ({kind_label(kind)})" for kind, name in distinct}


def render_page(
    title: str, state: RunState, so_far: Progress, refresh: float | None = None, folder: Path = Path()
) -> str:
    """The page: progress, every failed cell, a square for each model and benchmark that leads to its log, the counts.

    `folder`: where the page will lie, from which its links lead. `refresh`: seconds after which it is read again.
    """
    from lm_validity.pages.page import from_template  # pandas, which a terminal does without

    squares, links = matrix(state.cells), Links(state, folder)
    return from_template(
        "status.html.j2",
        navigation=[],
        missing=[],
        title=title,
        heading=_heading(state, so_far),
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
        refresh=refresh,
        sentence=describe_progress(so_far),
        share=so_far.done / so_far.cells if so_far.cells else 1,
        states=STATES,
        counts={RULES[rule].words: counts for rule, counts in state.counts.items()},
        models=list(dict.fromkeys(model for model, _ in squares)),
        columns=list(dict.fromkeys(column for _, column in squares)),
        squares=squares,
        logs=links.by_square(),
        plan=" ".join(describe_plans(state.run)),
        unplanned=unplanned_squares(state.cells, unplanned_pairs(state.run)),
        failed=[
            (label(entry.cell), entry.error, links.log(entry.cell)) for entry in state.cells if entry.state == "failed"
        ],
    )


def _heading(state: RunState, so_far: Progress) -> str:
    """What is missing, in a few words."""
    counts = Counter(entry.state for entry in state.cells)
    if so_far.done == so_far.cells:
        return "all cells are done"
    remarks = [
        f"{counts[name]:,} {word}" for name, word in (("failed", "failed"), ("running", "running")) if counts[name]
    ]
    return ", ".join([f"{so_far.cells - so_far.done:,} of {so_far.cells:,} cells are still missing", *remarks])


class Links:
    """Links from a page to the logs of a run's jobs."""

    def __init__(self, state: RunState, folder: Path):
        self.state, self.folder = state, folder

    def log(self, cell: Cell) -> str | None:
        """The log of the job that computes a cell, relative to the page's folder; None where there is none yet."""
        job = self.state.workspace.grid.job_of[cell]
        path = self.state.run.results / "logs" / job.rule / job.model / f"{job.batch}.log"
        return quote(Path(os.path.relpath(path, self.folder)).as_posix()) if path.is_file() else None

    def by_square(self) -> dict[tuple[str, str], str]:
        """(model, benchmark or task) -> the log of a cell that failed, else of one that runs, else of the last."""
        name = _square_names(self.state.cells)
        chosen: dict[tuple[str, str], tuple[int, str]] = {}
        for entry in self.state.cells:
            rank = LOOKED_AT_FIRST.get(entry.state, len(LOOKED_AT_FIRST))
            square = name(entry.cell)
            if rank <= chosen.get(square, (rank, ""))[0] and (path := self.log(entry.cell)):
                chosen[square] = rank, path
        return {square: path for square, (_, path) in chosen.items()}


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
        return f"{max(1, round(minutes))} min"
    return f"{minutes / 60:.1f} h" if minutes < 48 * 60 else f"{minutes / 60 / 24:.1f} days"


# ----------------------------------------------------------------------------------------------------------------------
# What a run is expected to cost, as text for a terminal.

NAMED = 6  # ids listed where something had to be assumed


def render_cost(estimator: Estimator, state: RunState) -> str:
    """Jobs, hours, memory and storage, of everything and of what is left; what was assumed; how good the guess is."""
    run = estimator.run
    lines = [f"{run.name}: expected cost", *_table(needs(estimator)), ""]
    if any(entry.state == "done" for entry in state.cells):
        lines.append(render_left(estimator, state))
    lines += describe_plans(run)
    if run.plan is not None:
        lines.append(describe_savings(estimator, run.plan))
    models, stored = (
        estimator.workload.model_bytes,
        sum(estimator.workload.stored_bytes(entry.cell) for entry in state.cells),
    )
    fetched = f"{_bytes(models)} of models from the hub" if models else "no models from the hub"
    storage = f"storage: {fetched}, {_bytes(stored)} in the store; data sets not counted"
    lines += [*_memory(estimator), storage, "", *_trust(estimator)]
    return "\n".join(lines)


def render_left(estimator: Estimator, state: RunState, asked_again: Iterable[Job[Cell]] = ()) -> str:
    """The cells that are to be computed, in one line: how many, in how many jobs and hours; and how many finished ones
    are among the jobs `asked_again`, whose models or documents are read anew first."""
    unfinished = {entry.cell for entry in state.cells if entry.state != "done"}
    to_do = needs(estimator, unfinished)
    open_cells = {cell for job in asked_again for cell in job.cells} - unfinished
    perhaps = f", and perhaps {count(len(open_cells), 'finished cell')} whose models or documents are read anew first"
    return (
        f"left: {len(unfinished):,} of {len(state.cells):,} cells in {sum(need.jobs for need in to_do):,} jobs, "
        f"{_hours(sum(need.hours for need in to_do))} hours, "
        f"{_hours(sum(need.gpu_hours for need in to_do))} of them on GPUs{perhaps * bool(open_cells)}"
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
    entry = state.workspace.manifests.entry(cell)
    return entry is not None and not all(map(state.workspace.store.has, entry.folders))


def _table(rows: list[Need]) -> list[str]:
    total = Need(
        "total",
        cells=sum(row.cells for row in rows),
        jobs=sum(row.jobs for row in rows),
        hours=sum(row.hours for row in rows),
        gpu_hours=sum(row.gpu_hours for row in rows),
        requested_gpu_hours=sum(row.requested_gpu_hours for row in rows),
        calibrated=True,
    )
    cells = [
        (
            RULES[row.rule].words if row.rule in RULES else row.rule,
            f"{row.cells:,}",
            f"{row.jobs:,}",
            _hours(row.hours),
            _hours(row.gpu_hours),
            f"{row.requested_gpu_hours:,.0f}",
            "" if row.calibrated or not row.hours else "uncalibrated",
        )
        for row in [*rows, total]
    ]
    return [
        render_table(("jobs that", "cells", "jobs", "hours", "GPU hours", "requested", ""), cells, text=(0, 6)),
        "hours: of processes, one after the other; requested: GPU hours if every job used its time limit",
    ]


def _memory(estimator: Estimator) -> list[str]:
    lines = ["memory per job, by size class:"]
    for name, row in memory_by_class(estimator).items():
        text = f"  {name}: {count(row.models, 'model')}; asks for {row.mem_mb / 1000:g} GB, {row.gpus} GPU"
        if row.gpu_gb:
            text += f" with at least {row.gpu_gb:.0f} GB"
        if row.measured_mb:
            text += f"; measured {row.measured_mb / 1000:.1f} GB"
        if row.measured_gpu_mb:
            text += f", on the GPU {row.measured_gpu_mb / 1000:.1f} GB"
        lines.append(text)
    return lines


def _trust(estimator: Estimator) -> list[str]:
    """How far these figures can be trusted."""
    lines = [warning] if (warning := describe_hours_of_a_gpu(estimator)) else []
    if not estimator.measured:
        lines.append(
            "UNCALIBRATED: no finished cell to learn from. The hours are a formula's, by the gpu_type of each "
            "size class. If documents are assumed, they are far too high (`snakemake prefetch` counts them). Run a "
            "few cells of each size class, then ask again."
        )
    else:
        devices = ", ".join(sorted({cell.device for cell in estimator.measured}))
        lines.append(
            f"by {count(len(estimator.measured), 'finished cell')} on {devices}: medians by rule and size class"
        )
    for assumption, names in sorted(estimator.workload.assumed.items()):
        lines.append(f"assumed: {assumption} ({listing(sorted(names), NAMED)})")
    return lines


def _hours(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 or not value else f"{value:.3f}"


def _bytes(value: float) -> str:
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:,.1f} {unit}"
    return f"{value / 1000:,.1f} TB"
