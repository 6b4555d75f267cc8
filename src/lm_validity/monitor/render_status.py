"""How a run stands, as text for a terminal and as a page. Names are escaped on the page."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from importlib import resources

from lm_validity.monitor.planning import describe_plans, unplanned_pairs
from lm_validity.monitor.status import STATES, CellState, Progress, RunState
from lm_validity.run.cell import Cell, label
from lm_validity.run.participants import kind_label
from lm_validity.run.rules import rule_of

SUBJECT_SHEETS = {"models": "benchmarks", "language_models": "tasks"}  # what the models of a sheet are tried on
LISTED = 20  # failed cells named in the terminal; the page names all
SIGNS = {"failed": "F", "running": "R", "stale": "s"}
NOT_PLANNED = ", -: all done, and fine-tuning is not planned"
LEGEND = "#: all done, +: some done, .: none, R: running, F: failed, s: finished under another recipe"


def render_summary(state: RunState, so_far: Progress) -> str:
    """Counts by rule, progress, and what failed."""
    width = max(len(rule) for rule in [*state.counts, "rule"])
    lines = ["  ".join([f"{'rule':>{width}}", *(f"{name:>8}" for name in STATES)])]
    for rule, counts in state.counts.items():
        lines.append("  ".join([f"{rule:>{width}}", *(f"{counts[name]:>8}" for name in STATES)]))
    lines.append(describe_progress(so_far))
    lines += describe_plans(state.run)
    failed = [one for one in state.cells if one.state == "failed"]
    lines += [f"failed: {label(one.cell)}: {one.error}" for one in failed[:LISTED]]
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
    """Models by benchmarks, one sign each. `unplanned`: (model, benchmark) that are not fine-tuned by plan."""
    squares, not_planned = matrix(cells), unplanned_squares(cells, unplanned)
    models = list(dict.fromkeys(model for model, _ in squares))
    columns = list(dict.fromkeys(column for _, column in squares))
    width = max((len(model) for model in models), default=0)
    head = " ".join(f"{number:>2}" for number in range(1, len(columns) + 1))
    lines = [f"{'':{width}} {head}"]
    for model in models:
        signs = [
            _sign(squares[model, column], not_planned=(model, column) in not_planned)
            if (model, column) in squares
            else " "
            for column in columns
        ]
        lines.append(f"{model:{width}} " + " ".join(f"{sign:>2}" for sign in signs))
    lines.append(LEGEND + NOT_PLANNED * bool(not_planned))
    lines.append(", ".join(f"{number}: {column}" for number, column in enumerate(columns, 1)))
    return "\n".join(lines)


def matrix(cells: list[CellState]) -> dict[tuple[str, str], Counter[str]]:
    """(model, benchmark or task) -> number of cells by state, in the grid's order.

    An id that both a model and a language model have, or a benchmark and a task, stands twice, each with its kind.
    """
    name = _square_names(cells)
    found: dict[tuple[str, str], Counter[str]] = {}
    for one in cells:
        found.setdefault(name(one.cell), Counter())[one.state] += 1
    return found


def unplanned_squares(cells: list[CellState], unplanned: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """The squares of `matrix` whose (model, benchmark) is in `unplanned`."""
    name, pairs = _square_names(cells), set(unplanned)
    of_models = (one.cell for one in cells if rule_of(one.cell).sheet == "models")
    return {name(cell) for cell in of_models if (cell.model, cell.subject) in pairs}


def _square_names(cells: list[CellState]) -> Callable[[Cell], tuple[str, str]]:
    """What the square of a cell is called."""
    kinds = {one.cell: rule_of(one.cell).sheet for one in cells}
    models = _names((kind, cell.model) for cell, kind in kinds.items())
    subjects = _names((SUBJECT_SHEETS[kind], cell.subject) for cell, kind in kinds.items())
    return lambda cell: (models[kinds[cell], cell.model], subjects[SUBJECT_SHEETS[kinds[cell]], cell.subject])


def _names(ids: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(sheet, id) -> what it is called: the id, with its kind where another sheet has it too."""
    distinct = dict.fromkeys(ids)
    count = Counter(name for _, name in distinct)
    return {(kind, name): name if count[name] == 1 else f"{name} ({kind_label(kind)})" for kind, name in distinct}


def render_page(title: str, state: RunState, so_far: Progress, refresh: float | None = None) -> str:
    """The page: progress, counts, the matrix with a tooltip a square, every failed cell."""
    from jinja2 import Environment

    squares = matrix(state.cells)
    text = (resources.files("lm_validity.pages") / "assets" / "status.html.j2").read_text(encoding="utf-8")
    return (
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(text)
        .render(
            title=title,
            written=time.strftime("%Y-%m-%d %H:%M:%S"),
            refresh=refresh,
            sentence=describe_progress(so_far),
            share=so_far.done / so_far.cells if so_far.cells else 1,
            states=STATES,
            counts=state.counts,
            models=list(dict.fromkeys(model for model, _ in squares)),
            columns=list(dict.fromkeys(column for _, column in squares)),
            squares=squares,
            plan=" ".join(describe_plans(state.run)),
            unplanned=unplanned_squares(state.cells, unplanned_pairs(state.run)),
            failed=[(label(one.cell), one.error) for one in state.cells if one.state == "failed"],
        )
    )


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
