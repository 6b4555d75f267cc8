"""What --columns says: which columns of the input have which roles, and the long table that they give."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables.cell_text import plain_text
from lm_validity.tables.frame import Frame, Table
from lm_validity.tables.roles import ERRORS, ROLES, SETTINGS, Column, Columns, vocabulary
from lm_validity.words import count, listing

HEADER = "*"  # in the place of a column: the header of each score column
NAMES = ("model", "benchmark", "metric", "item", "subject", "run", "checkpoint", *SETTINGS)  # roles that name
_MANY = ("score", "answer", "error", "ignore")  # roles of several columns
HINT = "write --columns 'model=COLUMN, benchmark=COLUMN, score=COLUMN'; `*` is the header of a score column."
_NEEDS_QUOTES = re.compile(r"[,;=+:\"']|\((se|sd|ci95|items)\)$|^\*$|^\s|\s$|^$")
_Z95 = 1.959964
_MOST_SCORES = 400  # columns among which averages are looked for


class Given(NamedTuple):
    """The columns of a role, whose cells are joined by a blank; `*` (HEADER) is not among them where it is a column's
    name. `detail`: of an error its kind, of rows to ignore the cell, of an answer the column that it must equal."""

    names: tuple[str | None, ...]  # None: the header
    detail: str | None = None


Told = dict[str, list[Given]]


class Refused(InputError):
    """What a reading cannot be, and the cell that stops it."""


def parse(text: str) -> list[Told]:
    """Readings between semicolons, each of another table: `model=Model+Size, score=A,B, benchmark=*` as roles and
    columns. Names with , ; = + : or quotes stand in double quotes. Raises InputError for what is no role, has none, or
    is given twice."""
    return [_told(part) for part in _split(text, ";")]


def _told(text: str) -> Told:
    told: Told = {}
    role = None
    for part in _split(text, ","):
        if match := re.match(r"\s*([\w ]+?)\s*=(?!=)(.*)", part, re.S):
            role, part = match[1], match[2]
            if role not in ROLES:
                hint = did_you_mean(role, ROLES, f"roles are {', '.join(ROLES)}.")
                raise InputError(f"--columns: {role!r} is no role.", hint)
            if role in told:
                raise InputError(
                    f"--columns: {role} twice.", f"write {role}=A,B for several columns, A+B to join them."
                )
        if role is None:
            raise InputError(f"--columns: {part.strip()!r} has no role.", HINT)
        told.setdefault(role, []).append(_given(role, part.strip()))
    for role, given in told.items():
        if len(given) > 1 and role not in _MANY:
            raise InputError(f"--columns: {role} has several columns.", f"join them: {role}=A+B.")
    if "score" in told and "answer" in told:
        raise InputError("--columns: score and answer.", "give one of the two.")
    return told


def _split(text: str, sign: str) -> list[str]:
    """The parts of a text between signs that do not stand in quotes."""
    parts, quoted, start = [], False, 0
    for i, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif not quoted and text.startswith(sign, i):
            parts.append(text[start:i])
            start = i + len(sign)
    return [part for part in [*parts, text[start:]] if part.strip()]


def _given(role: str, text: str) -> Given:
    detail = None
    if role == "answer" and len(both := _split(text, "==")) == 2:
        text, detail = both[0], _plain(both[1])
    if role == "ignore" and len(both := _split(text, ":")) == 2:
        text, detail = both[0], _plain(both[1])
    if role == "error":
        match = re.fullmatch(rf"(.*)\(({'|'.join(ERRORS)})\)", text.strip(), re.S)
        text, detail = (match[1], match[2]) if match else (text, "se")
    names = tuple(None if part.strip() == HEADER else _plain(part) for part in _split(text, "+"))
    if not names:
        raise InputError(f"--columns: {role} has no column.", HINT)
    return Given(names, detail)


def _plain(text: str) -> str:
    text = text.strip()
    return text[1:-1].replace('""', '"') if len(text) > 1 and text[0] == text[-1] == '"' else text


def show(told: Told) -> str:
    """Roles and columns as `parse` reads them."""
    return ", ".join(f"{role}={','.join(_shown(role, each) for each in told[role])}" for role in ROLES if role in told)


def _shown(role: str, given: Given) -> str:
    text = "+".join(HEADER if name is None else _quoted(name) for name in given.names)
    if given.detail is None:
        return text
    if role == "error":
        return f"{text}({given.detail})"
    return f"{text}{'==' if role == 'answer' else ':'}{_quoted(given.detail)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if _NEEDS_QUOTES.search(name) else name


def needed(told: Told, *, but: Sequence[str] = ()) -> list[str]:
    """The columns that a reading uses, but those of some roles."""
    names: list[str] = []
    for role, sources in told.items():
        for given in sources if role not in but else ():
            names += [name for name in given.names if name is not None]
            names += [given.detail] if role == "answer" and given.detail is not None else []
    return names


# ----------------------------------------------------------------------------------------------------------------------
# The long table of a reading.


@dataclass
class Long:
    """What a reading gives. `rows`: a row a score, or an answer to an item: the roles of `NAMES` told, `value`,
    `error` (a standard error; NaN: unknown), `n` (NaN: unknown), `row` of the table, and `source`, the header."""

    told: Told
    table: Table
    rows: pd.DataFrame
    percent: frozenset[str] = frozenset()  # score columns with percent signs
    notes: list[str] = field(default_factory=list)

    @property
    def items(self) -> bool:
        """Whether the rows are answers, whose mean is the score."""
        return "item" in self.told or "answer" in self.told

    @property
    def keys(self) -> list[str]:
        """The columns that name a score."""
        return [name for name in NAMES if name in self.rows and name not in ("item", "subject")]

    @cached_property
    def scores(self) -> pd.DataFrame:
        """A row a score, in the unit of the files: of answers their mean, its error and their number."""
        if not self.items:
            return self.rows
        groups = self.rows.groupby(self.keys, sort=False, observed=True)
        scores = groups.agg(value=("value", "mean"), sd=("value", "std"), n=("value", "size"), row=("row", "first"),
                            source=("source", "first")).reset_index()  # fmt: skip
        return scores.assign(error=scores.pop("sd") / np.sqrt(scores["n"]))


def first_with(tables: Iterable[Table], told: Told) -> Table | None:
    """The first table that has all columns of a reading."""
    names = needed(told)
    return next((table for table in tables if all(name in table.cells for name in names)), None)


def apply_table(frame: Frame, columns: Columns, told: Told) -> Long:
    """`apply` to one table."""
    table = columns.table
    keep = np.ones(len(table.cells), dtype=bool)
    for given in told.get("ignore", []):
        name = str(given.names[0])
        if given.detail is None:
            continue
        hit = columns[name].clean == given.detail
        if not hit.any():
            raise Refused(f"--columns: no row has {given.detail!r} in the column {name!r}.", "leave that part out.")
        keep &= ~hit
    values = _values(frame, columns, told, keep)
    header = any(None in given.names for role, sources in told.items() if role != "score" for given in sources)
    if len(values) > 1 and not header:
        raise Refused(
            f"--columns: {len(values)} score columns, whose headers have no role.", "add benchmark=* or model=*."
        )
    if not header and "benchmark" not in told:
        told = told | {"benchmark": [Given((None,))]}
    for role in ("model", "benchmark"):
        if role not in told:
            raise Refused(f"--columns: no column has the role {role}.", HINT)
    rows = _rows(columns, told, values, keep)
    if rows.empty:
        raise Refused("--columns: no cell of the score columns is a number.", "name columns with numbers.")
    long = Long(told, table, rows)
    long.percent = frozenset(name for name in values if name in columns and columns[name].percent)
    _without_names(frame, long)
    _say_lost(frame, columns, values, keep & _named(columns, told), long)
    _check_once(frame, columns, long)
    if "error" in told or any(name in columns and not np.isnan(columns[name].spreads).all() for name in values):
        long.rows = long.rows.assign(error=_errors(columns, told, long))
    return long


def _values(frame: Frame, columns: Columns, told: Told, keep: np.ndarray) -> dict[str, np.ndarray]:
    """The numbers (n,) of each score column by its header."""
    if "answer" in told:
        return {str(given.names[0]): _answers(frame, columns, given, keep) for given in told["answer"]}
    names = [name for given in told.get("score", []) for name in given.names]
    if not names:
        raise Refused("--columns: no column has the role score or answer.", HINT)
    if names == [None]:
        used = set(needed(told))
        names = [name for name, column in columns.items() if column.numeric and name not in used]
    return {name: _numbers(frame, columns, name, keep) for name in names if name is not None}


def _numbers(frame: Frame, columns: Columns, name: str, keep: np.ndarray) -> np.ndarray:
    """The numbers (n,) of a column. Raises Refused, with the cell, where most of what it says is none."""
    column = columns[name]
    if not column.numeric:
        row = int(np.argmax(column.filled & np.isnan(column.numbers) & keep))
        raise Refused(
            f"{frame.place(columns.table, row)}, column {name!r}: {columns.table.cells[name].iloc[row][:40]!r} is no "
            "number.",
            "name a column of numbers; rows are left out by ignore=COLUMN:VALUE.",
        )
    return column.numbers


def _answers(frame: Frame, columns: Columns, given: Given, keep: np.ndarray) -> np.ndarray:
    """Right (1) or wrong (0) by row (n,)."""
    name, table = str(given.names[0]), columns.table
    if given.detail is not None:
        left, right = (table.cells[each].str.strip().str.lower() for each in (name, given.detail))
        right_or_wrong: np.ndarray = (left == right).to_numpy(dtype=float)
        return np.where(columns[given.detail].filled, right_or_wrong, np.nan)
    numbers = _numbers(frame, columns, name, keep)
    outside = keep & ((numbers < 0) | (numbers > 1))
    if outside.any():
        row = int(np.argmax(outside))
        raise Refused(
            f"{frame.place(table, row)}, column {name!r}: an answer is from 0 to 1, and this is {numbers[row]:g}.",
            f"write score={_quoted(name)}, or A==B for two columns whose equality is right.",
        )
    return numbers


def _rows(columns: Columns, told: Told, values: dict[str, np.ndarray], keep: np.ndarray) -> pd.DataFrame:
    pieces: dict[str, list[np.ndarray]] = {}
    n_items = columns[str(told["n"][0].names[0])].numbers if "n" in told else None
    for header, numbers in values.items():
        places = np.flatnonzero(keep & ~np.isnan(numbers))
        piece = {"value": numbers[places], "row": places, "source": np.full(len(places), header, dtype=object)}
        for role in NAMES:
            if role in told:
                sign = "," if role == "metric" else " "  # as in lm-eval's `name,filter`
                piece[role] = joined(columns, told[role][0].names, plain_text(header), places, sign)
        counts = columns[header].counts if header in columns else np.full(len(numbers), np.nan)
        piece["n"] = (counts if n_items is None else n_items)[places]
        for name, array in piece.items():
            pieces.setdefault(name, []).append(array)
    rows = pd.DataFrame({name: np.concatenate(arrays) for name, arrays in pieces.items()})
    return rows.assign(error=np.nan)


def joined(columns: Columns, names: Iterable[str | None], header: str, places: np.ndarray, sign: str) -> np.ndarray:
    """The names that columns joined give to some rows."""
    parts = [header if name is None else columns[name].clean[places] for name in names]
    arrays = [np.full(len(places), part, dtype=object) if isinstance(part, str) else part for part in parts]
    if len(arrays) == 1:
        return arrays[0]
    return np.array([sign.join(filter(None, each)) for each in zip(*arrays, strict=True)], dtype=object)


def _without_names(frame: Frame, long: Long) -> None:
    """Leave rows without a model or a benchmark out. Raises Refused where these are most."""
    for role in ("model", "benchmark"):
        empty = (long.rows[role] == "").to_numpy()
        if 2 * empty.sum() > len(empty):
            place = frame.place(long.table, int(long.rows["row"].iloc[int(np.argmax(empty))]))
            raise Refused(f"{place}: no {role} ({int(empty.sum())} such rows).", "name another column, or fill it in.")
        if empty.any():
            long.notes.append(f"Left out: {count(int(empty.sum()), 'score')} without a {role}.")
            long.rows = long.rows[~empty].reset_index(drop=True)


def _named(columns: Columns, told: Told) -> np.ndarray:
    """Which rows (n,) have a model and a benchmark."""
    named = np.ones(len(columns.table.cells), dtype=bool)
    for name in needed({role: told[role] for role in ("model", "benchmark") if role in told}):
        named &= columns[name].filled
    return named


def _say_lost(frame: Frame, columns: Columns, values: Iterable[str], rows: np.ndarray, long: Long) -> None:
    """Say which cells of score columns are no numbers and were left out, with the place of the first."""
    for name in values:
        column = columns[name]
        lost = np.flatnonzero(column.filled & np.isnan(column.numbers) & rows)
        if len(lost) and column.numeric:
            text = columns.table.cells[name].iloc[lost[0]][:40]
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            long.notes.append(
                f"Left out: {frame.place(columns.table, int(lost[0]))}, {name}: {text!r} is no number{more}."
            )


def _check_once(frame: Frame, columns: Columns, long: Long) -> None:
    """Raises Refused where a score, or an answer to an item, stands in several rows."""
    keys = [name for name in NAMES if name in long.rows]
    if long.items and "item" not in keys:
        return
    twice = long.rows.duplicated(keys, keep=False)
    if not twice.any():
        return
    rows = long.rows[twice]
    first = (rows[keys] == rows[keys].iloc[0]).all(axis=1)
    same = rows.loc[first, "row"].tolist()[:2]
    used = set(needed(long.told))
    differ = [
        name
        for name, column in columns.items()
        if name not in used and len({column.codes[row] for row in same}) > 1 and (column.textual or column.whole)
    ]
    what = ", ".join(f"{key} {rows[key].iloc[0]!r}" for key in keys)
    places = " and ".join(frame.place(long.table, row) for row in same)
    by = f"what differs between them: {listing(differ, 5)}." if differ else "leave one of them out."
    raise Refused(f"{places}: {what} twice.", by)


def _errors(columns: Columns, told: Told, long: Long) -> np.ndarray:
    """The standard error (n,) of each score: of an error's column all other words are the score column's too. NaN where
    there is none, and where nothing says what a number after ± is."""
    errors = np.full(len(long.rows), np.nan)
    several = long.rows["source"].nunique() > 1
    for header, rows in long.rows.groupby("source", sort=False):
        column = columns.get(str(header))
        options = [] if column is None else [(column.spreads, column.spread_kind)]
        for given in told.get("error", []):
            error = columns[str(given.names[0])]
            words = error.parts - vocabulary("has")["error"] - vocabulary("has")["score"]
            if not several or (column is not None and words and words <= column.parts):
                options.append((error.numbers, given.detail))
        places, values, n = rows["row"].to_numpy(), rows["value"].to_numpy(), rows["n"].to_numpy()
        found = [standard_errors(values, numbers[places], n, kind) for numbers, kind in options]
        known = [each for each in found if not np.isnan(each).all()]
        errors[rows.index] = known[0] if known else np.nan
        lost = max((int(np.count_nonzero(~np.isnan(numbers[places]))) for numbers, _ in options), default=0)
        if lost and not known:
            long.notes.append(f"{header}: {lost} errors are not used, since nothing says of what they are.")
    return errors


_LIKE, _FEWEST = 0.08, 3  # relative difference between an error and that of its share; errors that tell it


def standard_errors(values: np.ndarray, errors: np.ndarray, n: np.ndarray, kind: str | None) -> np.ndarray:
    """Standard errors (k,) of values (k,) from errors of a kind; NaN where that cannot be had.

    A standard error is itself, half of a 95% interval 1.96 of them. A standard deviation, and an error of no kind, are
    read by p (1 - p), the variance of a share's items: sqrt(p(1-p)) is one over items, that over sqrt(n) a standard
    error. What is said to be a standard error and is a deviation by all shares is read as one. `items`: the errors are
    numbers of items, of which the share p has the error sqrt(p (1 - p) / (n - 1)).
    """
    share = values / (100.0 if np.nanmax(values, initial=0) > 1 else 1.0)
    scaled = errors / (100.0 if np.nanmax(values, initial=0) > 1 else 1.0)
    if kind == "items":
        by_binomial: np.ndarray = values / np.where(share > 0, share, 1) * np.sqrt(share * (1 - share) / (errors - 1))
        return by_binomial
    inside = (share > 0.02) & (share < 0.98) & (scaled > 0)
    spread = np.sqrt(np.where(inside, share * (1 - share), np.nan))

    def like(expected: np.ndarray) -> bool:
        known = inside & np.isfinite(expected)
        return known.sum() >= _FEWEST and bool(np.all(np.abs(scaled[known] / expected[known] - 1) <= _LIKE))

    if kind != "ci95" and like(spread):
        by_items: np.ndarray = errors / np.sqrt(n)
        return by_items
    if kind is None or kind == "sd":
        kind = "se" if like(spread / np.sqrt(n)) else "ci95" if like(_Z95 * spread / np.sqrt(n)) else "unknown"
    factor: dict[str, float] = {"se": 1.0, "ci95": 1 / _Z95}
    return errors * factor.get(kind, np.nan)


def averages(columns: Columns, names: Sequence[str]) -> set[str]:
    """Columns that arithmetic shows to be the mean of all others, or of at least three just before or behind them,
    within rounding, in every row; of two others, where their headers say an average too."""
    if (known := columns.means.get(tuple(names))) is None:
        known = columns.means[tuple(names)] = _averages(columns, names)
    return known


def _averages(columns: Columns, names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    called = [name for name in names if columns[name].averages]
    for name in [*called, *(name for name in names if name not in called)]:
        column = columns[name]
        others = [each for each in names if each != name and not (each in found or columns[each].averages)]
        place = sum(names.index(each) < names.index(name) for each in others)
        fewest = 2 if column.averages else 3
        windows = [
            (0, len(others)),
            *((i, place) for i in range(place)),
            *((place, i) for i in range(place + 1, len(others))),
        ]
        windows = [(first, last) for first, last in windows if last - first >= fewest]
        if not windows or len(others) > _MOST_SCORES:
            continue
        grid = np.array([columns[each].numbers for each in others])
        sums = np.vstack([np.zeros(grid.shape[1]), np.nan_to_num(grid).cumsum(axis=0)])
        gaps = np.vstack([np.zeros(grid.shape[1]), np.isnan(grid).cumsum(axis=0)])
        first, last = np.array(windows).T
        means = (sums[last] - sums[first]) / (last - first)[:, None]
        known = (gaps[last] == gaps[first]) & ~np.isnan(column.numbers)
        half = 0.6 * 10.0 ** -_digits(column, ~np.isnan(column.numbers))
        same = (np.abs(means - np.where(known, column.numbers, 0.0)) <= half) | ~known
        rows = np.where((first == 0) & (last == len(others)) | column.averages, 2, 4)
        if np.any(same.all(axis=1) & (known.sum(axis=1) >= rows)):
            found.add(name)
    return found


def _digits(column: Column, rows: np.ndarray) -> int:
    """To how many decimals the numbers of some rows (n,) are written."""
    if not np.isnan(column.counts).all():
        return 4  # `37/43`
    texts = {column.texts[code] for code in column.codes[rows]}
    return max((len(text.split(".")[1].rstrip("% ")) if "." in text else 0 for text in texts), default=0)


def named_average(columns: Columns, name: str, names: Sequence[str]) -> bool:
    """Whether a column is called an average and lies between the others in every row."""
    if not columns[name].averages or len(names) < 3:
        return False
    others = np.array([columns[other].numbers for other in names if other != name])
    value = columns[name].numbers
    rows = ~np.isnan(value) & ~np.isnan(others).all(axis=0)
    value, others = value[rows], others[:, rows]
    return bool(np.all((np.nanmin(others, axis=0) <= value) & (value <= np.nanmax(others, axis=0))))
