"""What --columns says: which columns of the input have which roles, the long table that they give, and its units."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables import metrics
from lm_validity.tables.roles import ERRORS, ROLES, SETTINGS, Column, Columns
from lm_validity.words import count, listing

HEADER = "*"  # in the place of a column: the header of each score column
NAMES = ("model", "benchmark", "metric", "item", "subject", "run", "checkpoint", *SETTINGS)  # roles that name
_MANY = ("score", "answer", "error", "ignore")  # roles of several columns
HINT = "write --columns 'model=COLUMN, benchmark=COLUMN, score=COLUMN'; `*` is the header of a score column."
_NEEDS_QUOTES = re.compile(r"[,;=+:\"']|\((se|sd|ci95)\)$|^\*$|^\s|\s$|^$")
_Z95 = 1.959964
_MOST_SCORES = 400  # columns among which averages are looked for


class Given(NamedTuple):
    """The columns of a role, whose cells are joined by a blank; `*` (HEADER) is not among them where it is a column's
    name. `detail`: of an error its kind, of rows to ignore the cell, of an answer the column that it must equal."""

    names: tuple[str | None, ...]  # None: the header
    detail: str | None = None


Told = dict[str, list[Given]]


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
                raise InputError(f"--columns: {role} twice.", f"write {role}=A,B, or {role}=A+B to join them.")
        if role is None:
            raise InputError(f"--columns: {part.strip()!r} has no role.", HINT)
        told.setdefault(role, []).append(_given(role, part))
    for role, given in told.items():
        if len(given) > 1 and role not in _MANY:
            raise InputError(f"--columns: {role} has several columns.", f"join them: {role}=A+B.")
    if "score" in told and "answer" in told:
        raise InputError("--columns: score and answer.", "give one of the two.")
    return told


def _split(text: str, sign: str) -> list[str]:
    """The parts of a text between signs that do not stand in quotes."""
    return [part for part in re.split(rf'{sign}(?=(?:[^"]*"[^"]*")*[^"]*$)', text) if part.strip()]


def _given(role: str, text: str) -> Given:
    text, *further = _split(text, {"answer": "==", "ignore": ":"}.get(role, "$^")) or [""]
    detail = _plain(further[0]) if len(further) == 1 else None
    if role == "error":
        match = re.fullmatch(rf"(.*)\(({'|'.join(ERRORS)})\)\s*", text, re.S)
        text, detail = (match[1], match[2]) if match else (text, "se")
    names = tuple(None if part.strip() == HEADER else _plain(part) for part in _split(text, r"\+"))
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
    columns: Columns
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


def first_with(tables: Iterable[Columns], told: Told) -> Columns | None:
    """The first table that has all columns of a reading."""
    return next((columns for columns in tables if columns.keys() >= {*needed(told)}), None)


def apply_table(columns: Columns, told: Told) -> Long:
    """The long table that a reading gives of a table. Raises InputError, with the cell, for what it cannot be."""
    rows = np.ones(len(columns.table.cells), dtype=bool)
    for given in told.get("ignore", []):
        name = str(given.names[0])
        hit = columns[name].clean == given.detail
        if given.detail is not None and not hit.any():
            raise InputError(f"--columns: no row has {given.detail!r} in the column {name!r}.", "leave that part out.")
        rows &= ~hit
    values = _values(columns, told, rows)
    header = any(None in given.names for role, sources in told.items() if role != "score" for given in sources)
    if len(values) > 1 and not header:
        raise InputError(f"--columns: the headers of {len(values)} scores have no role.", "add benchmark=* or model=*.")
    told = told if header or "benchmark" in told else told | {"benchmark": [Given((None,))]}
    for role in ("model", "benchmark"):
        if role not in told:
            raise InputError(f"--columns: no column has the role {role}.", HINT)
    long = Long(told, columns, _rows(columns, told, values, rows))
    long.percent = frozenset(name for name in values if name in columns and columns[name].percent)
    _leave_out(long, values, rows)
    if long.rows.empty:
        raise InputError("--columns: no row has a model, a benchmark and a number.", "name other columns.")
    _check_once(long)
    if "error" in told or any(name in columns and not np.isnan(columns[name].spreads).all() for name in values):
        long.rows = long.rows.assign(error=_errors(long))
    return long


def _values(columns: Columns, told: Told, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The numbers (n,) of each score column by its header, or whether answers are right (1) or wrong (0)."""
    names = [name for given in told.get("score", []) for name in given.names]
    values = {name: _numbers(columns, name, rows) for name in names if name is not None}
    for given in told.get("answer", []):
        name = str(given.names[0])
        if given.detail is not None:
            left, right = (columns.table.cells[each].str.strip().str.lower() for each in (name, given.detail))
            values[name] = np.where(columns[given.detail].filled, left == right, np.nan)
            continue
        numbers = values[name] = _numbers(columns, name, rows)
        outside = rows & ((numbers < 0) | (numbers > 1))
        if outside.any():
            row = int(np.argmax(outside))
            spot = f"{columns.table.place(row)}, column {name!r}"
            raise InputError(f"{spot}: {numbers[row]:g} is no answer from 0 to 1.", f"write score={_quoted(name)}.")
    if not values:
        raise InputError("--columns: no column has the role score or answer.", HINT)
    return values


def _numbers(columns: Columns, name: str, rows: np.ndarray) -> np.ndarray:
    """The numbers (n,) of a column. Raises InputError, with the cell, where most of what it says is none."""
    column = columns[name]
    if not column.numeric:
        row = int(np.argmax(column.filled & np.isnan(column.numbers) & rows))
        text = columns.table.cells[name].iloc[row][:40]
        raise InputError(f"{columns.table.place(row)}, column {name!r}: {text!r} is no number.", "name one of numbers.")
    return column.numbers


def _rows(columns: Columns, told: Told, values: dict[str, np.ndarray], rows: np.ndarray) -> pd.DataFrame:
    pieces = []
    n_items = columns[str(told["n"][0].names[0])].numbers if "n" in told else None
    for header, numbers in values.items():
        places = np.flatnonzero(rows & ~np.isnan(numbers))
        piece = {"value": numbers[places], "row": places, "source": np.full(len(places), header, dtype=object)}
        for role in NAMES:
            if role in told:
                sign = "," if role == "metric" else " "  # as in lm-eval's `name,filter`
                piece[role] = joined(columns, told[role][0].names, metrics.plain_text(header), places, sign)
        counts = columns[header].counts if header in columns else np.full(len(numbers), np.nan)
        pieces.append(pd.DataFrame(piece | {"n": (counts if n_items is None else n_items)[places]}))
    return pd.concat(pieces, ignore_index=True).assign(error=np.nan)


def joined(columns: Columns, names: Iterable[str | None], header: str, places: np.ndarray, sign: str) -> np.ndarray:
    """The names that columns joined give to some rows."""
    parts = [np.full(len(places), header, dtype=object) if name is None else columns[name].clean[places]
             for name in names]  # fmt: skip
    if len(parts) == 1:
        return parts[0]
    return np.array([sign.join(filter(None, each)) for each in zip(*parts, strict=True)], dtype=object)


def _leave_out(long: Long, values: Iterable[str], rows: np.ndarray) -> None:
    """Leave rows without a model or a benchmark out, and say it; say too which cells of score columns are no numbers,
    with the place of the first."""
    for role in ("model", "benchmark"):
        empty = (long.rows[role] == "").to_numpy()
        if empty.any():
            long.notes.append(f"Left out: {count(int(empty.sum()), 'score')} without a {role}.")
            long.rows = long.rows[~empty].reset_index(drop=True)
    columns = long.columns
    for name in needed({role: long.told[role] for role in ("model", "benchmark")}):
        rows = rows & columns[name].filled
    for name in values:
        column = columns[name]
        lost = np.flatnonzero(column.filled & np.isnan(column.numbers) & rows)
        if len(lost) and column.numeric:
            text, place = columns.table.cells[name].iloc[lost[0]][:40], columns.table.place(int(lost[0]))
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            long.notes.append(f"Left out: {place}, {name}: {text!r} is no number{more}.")


def _check_once(long: Long) -> None:
    """Raises InputError where a score, or an answer to an item, stands in several rows."""
    keys = [name for name in NAMES if name in long.rows]
    twice = long.rows.duplicated(keys, keep=False)
    if (long.items and "item" not in keys) or not twice.any():
        return
    rows = long.rows[twice]
    same = rows.loc[(rows[keys] == rows[keys].iloc[0]).all(axis=1), "row"].tolist()[:2]
    used = set(needed(long.told))
    differ = [name for name, column in long.columns.items() if name not in used and (column.textual or column.whole)
              and len({column.codes[row] for row in same}) > 1]  # fmt: skip
    names = ", ".join(f"{key} {rows[key].iloc[0]!r}" for key in keys)
    places = " and ".join(long.columns.table.place(row) for row in same)
    by = f"what differs between them: {listing(differ, 5)}." if differ else "leave one of them out."
    raise InputError(f"{places}: {names} twice.", by)


def _errors(long: Long) -> np.ndarray:
    """The standard error (n,) of each score: of an error's column all other words are the score column's too. NaN where
    there is none, and where nothing says what a number after ± is."""
    errors = np.full(len(long.rows), np.nan)
    several = long.rows["source"].nunique() > 1
    for header, rows in long.rows.groupby("source", sort=False):
        column = long.columns.get(str(header))
        options = [] if column is None else [(column.spreads, column.spread_kind)]
        for given in long.told.get("error", []):
            error = long.columns[str(given.names[0])]
            words = error.parts - metrics.vocabulary("has")["error"] - metrics.vocabulary("has")["score"]
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

    A standard error is itself, half of a 95% interval 1.96 of them. Errors that are sqrt(p (1 - p)) in all values are
    standard deviations between items, whatever they are called: over sqrt(n) they are standard errors. Other standard
    deviations, and errors of no kind, say nothing.
    """
    unit = 100.0 if np.nanmax(values, initial=0) > 1 else 1.0
    share, scaled = values / unit, errors / unit
    inside = (share > 0.02) & (share < 0.98) & (scaled > 0)
    off = np.abs(scaled[inside] / np.sqrt(share[inside] * (1 - share[inside])) - 1)
    if kind != "ci95" and len(off) >= _FEWEST and off.max() <= _LIKE:
        by_items: np.ndarray = errors / np.sqrt(n)
        return by_items
    factors: dict[str | None, float] = {"se": 1.0, "ci95": 1 / _Z95}
    return errors * factors.get(kind, np.nan)


def averages(columns: Columns, names: Sequence[str]) -> set[str]:
    """Columns that arithmetic shows to be the mean of all others, at least three, within rounding, in every row; of two
    others, where their headers say an average too."""
    if (found := columns.means.get(tuple(names))) is not None:
        return found
    found = columns.means[tuple(names)] = set[str]()
    for name in sorted(names, key=lambda name: not columns[name].has("average")):
        column = columns[name]
        parts = [each for each in names if each != name and not (each in found or columns[each].has("average"))]
        if len(parts) < (2 if column.has("average") else 3) or len(parts) > _MOST_SCORES:
            continue
        means = np.mean([columns[each].numbers for each in parts], axis=0)
        rows = ~np.isnan(means) & ~np.isnan(column.numbers)
        off = np.abs(means[rows] - column.numbers[rows])
        if len(off) > 1 and off.max() <= 0.6 * 10.0 ** -_digits(column):
            found.add(name)
    return found


def _digits(column: Column) -> int:
    """To how many decimals the numbers of a column are written."""
    if not np.isnan(column.counts).all():
        return 4  # `37/43`
    texts = {column.texts[code] for code in column.codes[~np.isnan(column.numbers)]}
    return max((len(text.partition(".")[2].rstrip("% ")) for text in texts), default=0)


def named_average(columns: Columns, name: str, names: Sequence[str]) -> bool:
    """Whether a column is called an average and lies between the others in every row."""
    if not columns[name].has("average") or len(names) < 3:
        return False
    others = np.array([columns[other].numbers for other in names if other != name])
    value = columns[name].numbers
    rows = ~np.isnan(value) & ~np.isnan(others).all(axis=0)
    value, others = value[rows], others[:, rows]
    return bool(np.all((np.nanmin(others, axis=0) <= value) & (value <= np.nanmax(others, axis=0))))


# ----------------------------------------------------------------------------------------------------------------------
# The unit and the direction of scores: by the whole column, marks, known metrics and the reader, else assumed.

FRACTION, PERCENT, POINTS = UNITS = ("fraction", "percent", "points")
HIGHER, LOWER, ASSUMED = DIRECTIONS = ("higher", "lower", "higher (assumed)")
_IN_PARENTHESES = re.compile(r"[(（]([^()（）]*[^\W\d_]{3}[^()（）]*)[)）]")
_ONE = 1 + 1e-9
_CLEAR = 10.0  # percent: a value of at most 1 among ones above this is in another unit
_RATINGS = 25.0  # the largest value up to which numbers of no known metric may be ratings as well as percentages
_SLIGHTLY = 0.05  # below 0, of the largest value: chance, where a metric is centred
_SLIPS = 0.1  # of the values, at least one: so many may be slips, such as 640 among percentages


@dataclass
class Scaled:
    """Scores of a reading in shares where they are percentages. `scores`: the columns of `Long.scores`, and
    `higher_is_better`; `factors`: of each row of `Long.rows`; `units`, `directions`: by benchmark; `notes`: what was
    left out."""

    long: Long
    scores: pd.DataFrame
    factors: pd.Series
    units: dict[str, str]
    directions: dict[str, str]
    notes: list[str] = field(default_factory=list)


def scaled(long: Long, units: Mapping[str, str], directions: Mapping[str, str]) -> Scaled:
    """The scores of a reading in shares or points, with the direction of each benchmark; `units`, `directions`: what
    the reader says of benchmarks. Raises InputError for a benchmark that is not there."""
    scores = long.scores
    names = scores["benchmark"].unique().tolist()
    for by_name, title, words in ((units, "units", UNITS), (directions, "directions", DIRECTIONS)):
        for name, text in by_name.items():
            if name not in names:
                hint = did_you_mean(name, names, listing(names, 8))
                raise InputError(f"reading: {title} of {name!r}: no such benchmark.", hint)
            if text not in words:
                raise InputError(f"reading: {title} of {name}: {text!r}.", f"one of {', '.join(words)}.")
    keys = ["benchmark", *(["metric"] if "metric" in scores else [])]
    groups = dict(iter(scores.groupby(keys, sort=False)))
    factors, odd = pd.Series(1.0, scores.index), pd.Series(data=False, index=scores.index)
    higher = pd.Series(pd.NA, scores.index, dtype="boolean")
    first_units, first_directions = dict[str, str](), dict[str, str]()
    for (name, *metric), unit in _units(groups, long).items():
        rows, up = groups[name, *metric], _direction((name, *metric), long)
        unit = units.get(name, unit)
        first_units.setdefault(name, unit)
        first_directions.setdefault(name, HIGHER if up else ASSUMED if up is None else LOWER)
        higher[rows.index] = {HIGHER: True, LOWER: False}.get(directions[name]) if name in directions else up
        if unit == PERCENT:
            factors[rows.index] = 0.01
            odd[rows.index] = _odd(rows["value"].to_numpy()) & (name not in units)
    factors, notes = _without_odd(long, scores, factors, odd)
    scores = scores.assign(value=scores["value"] * factors, error=scores["error"] * factors, higher_is_better=higher)
    by_row = factors
    if long.items:
        by_row = long.rows.merge(scores.assign(factor=factors)[[*long.keys, "factor"]], "left", long.keys)["factor"]
    return Scaled(long, scores[factors.notna()], by_row, first_units, first_directions | dict(directions), notes)


def _units(groups: Mapping[tuple[str, ...], pd.DataFrame], long: Long) -> dict[tuple[str, ...], str]:
    """The unit of each benchmark and metric: what values, marks and names say; of those that leave it open, percent
    where as many of the table are percentages."""
    units, unclear = dict[tuple[str, ...], str](), dict[tuple[str, ...], bool]()
    for name, rows in groups.items():
        text = " ".join(name)
        values = rows["value"].to_numpy(float)
        values = np.abs(values) if metrics.may_be_negative(text) else values
        marked = bool(rows["source"].isin(long.percent).any()) or "%" in text
        unit = unit_of(values, text, marked=marked, known=_is_known_share(name, long))
        if unit is None or (unit == FRACTION and values.max() < 1 and not marked):
            hundredths = np.allclose(values, values.round(2), atol=1e-9) and values.max() > 0
            unclear[name] = values.max() > 1 or (hundredths and not metrics.lower_is_better(name[0]))
        units[name] = unit or POINTS
    percent = sum(unit == PERCENT for unit in units.values())
    for name, coarse in unclear.items():
        high = groups[name]["value"].max() > _CLEAR
        if coarse and percent >= (1 if high else max(2, len(unclear))):
            units[name] = PERCENT
    return units


def _is_known_share(name: tuple[str, ...], long: Long) -> bool:
    """Whether a benchmark is a known task, or its metric one whose scores are shares."""
    metric = _metric_of(name, long)
    words = set(metrics.plain(" ".join((*name, metric))).split("_"))
    task, measure = metrics.find_task_facts(metrics.plain(name[0])), metrics.metric_direction(metrics.plain(metric))
    return bool(task or measure is not None or words & metrics.vocabulary("has")["higher is better"])


def _metric_of(name: tuple[str, ...], long: Long) -> str:
    """The metric of scores: the one told, else the header of their only column; "" where the header is the name."""
    headed = any(None in given.names for role in ("benchmark", "metric") for given in long.told.get(role, []))
    if len(name) > 1 or headed or long.items:
        return name[1] if len(name) > 1 else ""
    return str(long.scores.loc[long.scores["benchmark"] == name[0], "source"].iloc[0])


def unit_of(values: np.ndarray, name: str, *, marked: bool, known: bool = False) -> str | None:
    """The unit of values (n,) of a benchmark and metric, which may be `marked` as percentages; None where they may be
    percentages or ratings: up to 10, and up to 25 where the metric is not `known`."""
    if metrics.is_unbounded(name) and not (metrics.names_perplexity(name) and values.max(initial=0) <= 1):
        return POINTS
    outside = _outside(values)
    if outside.sum() > max(1.0, _SLIPS * len(values)) or (outside.any() and len(values) < 4):
        return POINTS
    values = values[~outside]
    if not marked and values.max(initial=0) <= _ONE:
        return FRACTION
    return PERCENT if marked or values.max() > (_CLEAR if known else _RATINGS) else None


def _outside(values: np.ndarray) -> np.ndarray:
    """Which values (n,) can be no share and no percentage: below 0 by more than a little, and above 100."""
    inside = np.abs(values[np.abs(values) <= 100 * _ONE])
    outside: np.ndarray = (values > 100 * _ONE) | (-values > _SLIGHTLY * inside.max(initial=0))
    return outside


def _odd(values: np.ndarray) -> np.ndarray:
    """Which percentages (n,) are in another unit than the others: at most 1 among ones above 10, and above 100."""
    small = (np.abs(values) <= _ONE) & (values != 0)
    large = values[np.abs(values) > _ONE]
    odd: np.ndarray = (small & (large.min(initial=101) > _CLEAR) & bool(len(large))) | _outside(values)
    return odd


def _without_odd(long: Long, scores: pd.DataFrame, factors: pd.Series, odd: pd.Series) -> tuple[pd.Series, list[str]]:
    """The factors with those of odd values: a model all of whose values are at most 1, two at least, is in shares;
    single values are left out (NaN), and said with their place."""
    notes = []
    for model, rows in scores[odd].groupby("model", sort=False):
        own = scores["model"] == model
        if len(rows) >= 2 and (scores.loc[own, "value"].abs() <= _ONE).all():
            factors = factors.where(~own, 1.0)
            notes.append(f"{model}: its {own.sum()} scores are shares, those of others percentages.")
            continue
        factors = factors.where(~scores.index.isin(rows.index), np.nan)
        for row in rows.itertuples():
            place = long.columns.table.place(int(row.row))
            value = f"{row.value:g} for {model} on {row.benchmark}"
            notes.append(f"Left out: {place}: {value} is in another unit than the others.")
    return factors, notes


def _direction(name: tuple[str, ...], long: Long) -> bool | None:
    """Whether higher is better on a benchmark and metric: by a mark, the table of metrics and tasks, a word of the name
    of which less, or more, is better; None: nothing says it."""
    if "answer" in long.told:  # right or wrong
        return True
    marks, text = " ".join(name), _metric_of(name, long).partition(",")[0] or name[0]
    for signs, higher in (("↓⬇", False), ("↑⬆", True)):
        if any(sign in marks for sign in signs):
            return higher
    known = metrics.metric_direction(metrics.plain(text))
    if known is None and (facts := metrics.find_task_facts(metrics.plain(name[0]))) and facts.higher_is_better:
        known = facts.higher_is_better == "1"
    if known is not None:
        return known
    if metrics.lower_is_better(text) or any(map(metrics.lower_is_better, _IN_PARENTHESES.findall(text))):
        values = long.scores.loc[long.scores["benchmark"] == name[0], "value"]
        return None if metrics.names_perplexity(text) and values.max() <= 1 else False
    words, has = set(metrics.plain(text).split("_")), metrics.vocabulary("has")
    return True if words & has["higher is better"] and not words & has["no score"] else None
