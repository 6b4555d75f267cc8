"""What is recorded of an interval on one simulated table, and the rows of all, in a CSV file that grows.

A killed run goes on where it stopped.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lm_validity.statistics import Interval

NOTHING = (float("nan"), float("nan"))
FIRST = ("table", "seconds")


class Result(NamedTuple):
    """`covered`: share of the interval's values that it holds (0 or 1 for one value); `width`. NaN: no interval."""

    covered: float
    width: float


def one(estimate: float, interval: Interval, truth: float) -> Result:
    """A scalar interval; a page gives none that leaves its estimate out."""
    low, high = (float(end) for end in interval)
    if not low <= estimate <= high:
        return Result(*NOTHING)
    return Result(float(low <= truth <= high), high - low)


def many(interval: Interval, truth: np.ndarray) -> Result:
    """Intervals of several values: the share that holds."""
    low, high = interval
    defined = np.isfinite(low) & np.isfinite(truth)
    if not defined.any():
        return Result(*NOTHING)
    inside = (low <= truth) & (truth <= high)
    return Result(float(inside[defined].mean()), float((high - low)[defined].mean()))


def finished(path: Path) -> int:
    """Number of tables in the file, which hold 0, 1, ...; a line that a killed run left unfinished is cut off."""
    if not path.is_file():
        return 0
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return max(0, whole.count(b"\n") - 1)


def append(path: Path, table: int, seconds: float, results: dict[str, Result]) -> None:
    """Add one table's row, and before the first one the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.is_file() or not path.stat().st_size
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow([*FIRST, *(f"{name}|{part}" for name in results for part in Result._fields)])
        values = (f"{value:.4g}" for result in results.values() for value in result)
        writer.writerow([table, f"{seconds:.3f}", *("" if value == "nan" else value for value in values)])
        file.flush()


def read(path: Path) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """By interval: what it covered and its widths (tables,), NaN where a table had none; and seconds (tables,)."""
    count = finished(path)
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = list(csv.reader(file))[: count + 1]
    values = np.array([[float(cell) if cell else np.nan for cell in row] for row in rows]).reshape(count, len(header))
    names = header[len(FIRST) :: 2]
    found = {
        name.rpartition("|")[0]: (values[:, len(FIRST) + 2 * i], values[:, len(FIRST) + 2 * i + 1])
        for i, name in enumerate(names)
    }
    return found, values[:, 1]
