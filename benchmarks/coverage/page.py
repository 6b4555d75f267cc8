"""docs/reference/coverage.md and docs/reference/coverage.csv from the rows of results that there are."""

import csv
import datetime
import platform
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy
from benchmarks.coverage import results
from benchmarks.coverage.studies import STUDIES

from lm_validity.files import write_text

MARKS = ("<!-- measured: begin -->\n", "<!-- measured: end -->\n")
NOMINAL = 0.95
# (study, figure begins with, resampled, world) where pages or docs/reference/statistics.md say that it does not hold
NOT_CLAIMED = (
    ("agreement", "", "models", "families"),  # for families like these there is the interval over families
    ("agreement", "", "models and benchmarks", "families"),
    ("agreement", "first component", "", "heavy_tails"),
    ("agreement", "", "", "missing_ablest"),  # cells must be missing whatever their values
    ("corrected", "", "", "missing_ablest"),
    ("population", "", "", "missing_ablest"),
    ("bias", "", "", "families"),  # tasks must not resemble each other
    ("bias", "", "", "saturation"),
    ("stops", "bias of a task, as it was looked at", "", ""),  # what is shown is never narrower than the width
    ("stops", "", "", "skewed"),  # where a subsample's difference is large, its task goes on: means are pulled down
)
COLUMNS = ("study", "size", "world", "figure", "resampled", "holds", "tables", "without", "coverage", "error", "width")


class Row(NamedTuple):
    """Of one interval in one world and size; `without`: tables that had none; `error`: Monte Carlo standard error."""

    study: str
    size: str
    world: str
    figure: str
    resampled: str
    holds: str
    tables: int
    without: int
    coverage: float
    error: float
    width: float


def summarized(study: str, size: str, world: str, path: Path) -> tuple[list[Row], float]:
    """The rows of one file, and the CPU seconds that it took."""
    found, seconds = results.read(path)
    rows = []
    for name, (covered, width) in found.items():
        known = covered[np.isfinite(covered)]
        number = len(known)
        coverage, wide = (float(np.mean(v[np.isfinite(v)])) if number else float("nan") for v in (covered, width))
        error = float(known.std(ddof=1) / np.sqrt(number)) if number > 1 else float("nan")
        figure, resampled, holds = name.split("|")
        without = len(covered) - number
        rows.append(Row(study, size, world, figure, resampled, holds, len(covered), without, coverage, error, wide))
    return rows, float(seconds.sum())


def write_page(folder: Path, page: Path) -> None:
    """Renew what is between the marks of the page, and the CSV beside it, which has every world."""
    every, spent = list[Row](), 0.0
    for study in STUDIES:
        for size in study.sizes:
            for world in study.worlds:
                path = folder / f"{study.name}-{world}-{size}.csv"
                if results.finished(path):
                    found, seconds = summarized(study.name, size, world, path)
                    every, spent = every + found, spent + seconds
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}"
    head = (
        f"Written on {datetime.date.today()} with {versions}: {sum(_tables(every)):,} simulated tables, "
        f"{spent / 3600:.2f} CPU hours on {platform.machine()}.\n"
    )
    before, found_mark, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    if not found_mark:
        raise SystemExit(f"Error: {page} has no line {MARKS[0].strip()}. Hint: the tables are written after it.")
    write_text(page, before + MARKS[0] + "\n" + "\n".join([head, *tables(every)]) + "\n" + MARKS[1] + after)
    with page.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([f"{v:.4g}" if isinstance(v, float) else v for v in row] for row in every)


def tables(rows: list[Row]) -> list[str]:
    """What is too low although said to hold, and a table for each study."""
    own = [(study, [row for row in rows if row.study == study.name]) for study in STUDIES]
    return [
        _failures(rows),
        *(_overview(study.title, list(study.sizes), of_study) for study, of_study in own if of_study),
    ]


def _tables(rows: list[Row]) -> list[int]:
    return list({(row.study, row.size, row.world): row.tables for row in rows}.values())


def _overview(title: str, sizes: list[str], rows: list[Row]) -> str:
    """A table: intervals down, sizes across; each cell spans the worlds."""
    names = list(dict.fromkeys((row.figure, row.resampled, row.holds) for row in rows))
    sizes = [size for size in sizes if any(row.size == size for row in rows)]
    head = "| figure |" + "".join(f" {size.replace('x', '×')} |" for size in sizes)
    lines = [f"### {title}", "", head]
    lines.append("|---|" + "---|" * len(sizes))
    for name in names:
        cells = [_cell([row for row in rows if row.size == size and row[3:6] == name]) for size in sizes]
        figure, over, holds = (part.replace("train_before_test", "train before test") for part in name)
        lines.append(f"| {figure}, over {over}, for {holds} |" + "".join(f" {cell} |" for cell in cells))
    return "\n".join(lines) + "\n"


def _cell(rows: list[Row]) -> str:
    """The lowest and the highest coverage where it is said to hold, and with † the lowest in other worlds."""
    known = [row for row in rows if np.isfinite(row.coverage)]
    held = [row.coverage for row in known if _claimed(row) or not _too_low(row)]
    others = [row.coverage for row in known if not _claimed(row) and _too_low(row)]
    parts = ["–".join(dict.fromkeys(f"{end:.2f}" for end in (min(held), max(held))))] if held else []
    return " ".join([*parts, f"{min(others):.2f}†"] if others else parts) or "–"


def _too_low(row: Row) -> bool:
    return row.coverage + 2 * _error(row) < NOMINAL


def _claimed(row: Row) -> bool:
    """Whether the interval is said to hold in the row's world; what names these families is for these families."""
    return not any(
        row.study == study
        and row.figure.startswith(figure)
        and resampled in ("", row.resampled)
        and world in ("", row.world)
        and not (world == "families" and row.holds == "these families")
        for study, figure, resampled, world in NOT_CLAIMED
    )


def _failures(rows: list[Row]) -> str:
    """The intervals that hold too seldom in a world that they are said to hold in."""
    found = [
        f"{row.figure.replace('train_before_test', 'train before test')}, over {row.resampled}, for {row.holds}, "
        f"{row.size.replace('x', '×')}, {row.world.replace('_', ' ')}: {row.coverage:.3f} ± {_error(row):.3f}"
        for row in rows
        if np.isfinite(row.coverage) and _too_low(row) and _claimed(row)
    ]
    return f"Too low, although said to hold: {'; '.join(found) or 'none'}.\n"


def _error(row: Row) -> float:
    return row.error if np.isfinite(row.error) else 0.0
