"""Every number of a report as a row, from its summary by the table of `keys`, and the reader of these rows.

Rows are unique by `UNIQUE`. Those that differ in `interval_for` alone are intervals of one number, which each repeats.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm_validity.missing import Missing, Reason, ReasonCode
from lm_validity.results.keys import Line, lines_of
from lm_validity.results.summary import entries_of

COLUMNS = {
    "study": "the report: agreement, factors, readiness, signal, bias, items, ranking, compare or screening",
    "quantity": "what the number is",
    "subject": "what it is of: a benchmark, a model, a family, a category or a task; null: of all together",
    "other": "the other one, where it is of two",
    "protocol": "`direct` or `train_before_test`; null: of neither alone",
    "conditions": "what else it belongs to, as JSON with sorted keys; `{}` where there is nothing else",
    "value": "the number; 1 and 0 for yes and no; null where it is missing, and in the row of a text",
    "low": "lower end of the interval",
    "high": "upper end of the interval",
    "level": "of the interval: 0.95 or 0.89",
    "interval_for": "what the interval is over; null: the number has none",
    "n": "how many things the number rests on, where that is known",
    "unit": "of value, low and high; `yes_or_no`, or `text`",
    "text": "the result, where it is a text",
    "reason": "why the value is missing or, where there is one, its interval: a sentence",
    "reason_code": "the same as a code",
    "basis": "what `n` counts: the key of summary.json that holds it",
}
UNIQUE = ("study", "quantity", "subject", "other", "protocol", "conditions", "interval_for")
RANGE = Missing(Reason("This is a range, without a value in its middle.", ReasonCode.RANGE))
NONE = Missing(Reason("There is none here.", ReasonCode.NONE))
Conditions = dict[str, float | str | None]


class Row(NamedTuple):
    """A row of results.parquet; what is in the columns: `COLUMNS`."""

    study: str
    quantity: str
    subject: str | None
    other: str | None
    protocol: str | None
    conditions: str
    value: float | None
    low: float | None
    high: float | None
    level: float | None
    interval_for: str | None
    n: int | None
    unit: str
    text: str | None
    reason: str | None
    reason_code: str | None
    basis: str | None

    @property
    def said(self) -> Conditions:
        """The row's conditions as a dictionary, from the JSON text of its column."""
        conditions: Conditions = json.loads(self.conditions)
        return conditions


_Tree = dict[str, "_Tree | Line"]  # what may follow a part of a path: a name, a pattern, or `[...]`, which is alone


@cache
def _tree(study: str) -> _Tree:
    root: _Tree = {}
    for line in lines_of(study):
        *outer, last = re.findall(r"\[[^\]]*\]|[^.\[\]]+", line.path)
        node: Any = root
        for part in outer:
            node = node.setdefault(part, {})
        if node.setdefault(last, line) is not line:
            raise ValueError(f"{study}: two lines for {line.path}")
    return root


def _leaves(node: _Tree | Line) -> Iterator[Line]:
    """The lines of all paths from here, names before patterns."""
    if isinstance(node, Line):
        yield node
    else:
        for part in sorted(node, key=lambda part: "{" in part):
            yield from _leaves(node[part])


class _Found(NamedTuple):
    """A value of a summary with its line, what its path says, and the records around it."""

    line: Line
    labels: dict[str, object]
    value: object
    around: tuple[dict[str, object], ...]


def _walk(
    value: object,
    node: _Tree | Line,
    place_names: dict[str, object],
    around: tuple[dict[str, object], ...],
    where: str,
    conditions: Sequence[str] = (),
) -> Iterator[_Found]:
    """What is under `value`, which is at `where`; `conditions`: its fields that `place_names` has already."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(node, Line):
        yield _Found(node, place_names, value, around)
        return
    if value is None or isinstance(value, Missing):
        yield from (_Found(line, place_names, value, around) for line in _leaves(node))
        return
    part, below = next(iter(node.items()))
    if isinstance(value, list | tuple) and part[0] == "[":
        for index, item in enumerate(value, 1):
            record = _record(item, part[1:-1], index)
            yield from _walk(item, below, place_names | record.labels, around, f"{where}[{index}]", record.fields)
        return
    if isinstance(value, list | tuple):
        entries = {str(index): item for index, item in enumerate(value)}
    elif isinstance(value, dict) or is_dataclass(value):
        entries = dict(entries_of(value))
    else:
        raise ValueError(f"summary{where}: no line of results.keys.KEYS ends here")
    for key, item in entries.items():
        if key not in conditions and (where or key != "notes"):
            below, labels = _next(node, key, f"{where}.{key}")
            yield from _walk(item, below, place_names | labels, (*around, entries), f"{where}.{key}")


class _Told(NamedTuple):
    """What tells an item of a list apart, and which of its fields say so."""

    labels: dict[str, object]
    fields: list[str]


def _record(item: object, part: str, index: int) -> _Told:
    """The labels of an item by its line's `part` in brackets; `index`: its number from 1."""
    if part.startswith("#"):
        return _Told({part[1:]: index}, [])
    labels, fields_told = dict[str, object](), []
    entries = dict(entries_of(item)) if is_dataclass(item) else item
    for name in part.split(","):
        path, _, column = name.partition("=")
        value = entries
        for key in path.split("."):
            if isinstance(value, list | tuple):
                value = value[int(key)]
            else:
                value = value[key] if isinstance(value, dict) and key in value else dict(entries_of(value))[key]
        labels[column or path] = value.item() if isinstance(value, np.generic) else value
        fields_told.append(path.partition(".")[0])
    return _Told(labels, fields_told)


class _Step(NamedTuple):
    """What follows a key of a summary, and what the key itself says of the numbers below."""

    below: "_Tree | Line"
    labels: dict[str, object]


def _next(node: _Tree, key: str, where: str) -> _Step:
    if key in node:
        return _Step(node[key], {})
    for part, below in node.items():
        if "{" in part and (match := _pattern(part).fullmatch(key)) is not None:
            return _Step(below, match.groupdict())
    raise ValueError(f"summary{where}: no line of results.keys.KEYS begins so")


@cache
def _names(text: str) -> frozenset[str]:
    """The names in braces of a path or another text of `KEYS`."""
    return frozenset(re.findall(r"\{(\w+)\}", text))


@cache
def _pattern(part: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>.+)", part), re.DOTALL)


_Place = tuple[str, str | None, str | None, str | None, str]  # quantity, subject, other, protocol, conditions


@dataclass
class _Number:
    """A number with its intervals, by what they are over."""

    line: Line | None = None
    value: Any = RANGE
    n: int | None = None
    counted: str | None = None
    intervals: dict[str, tuple[Any, Line]] = field(default_factory=dict)


def rows_of(study: str, summary: object) -> list[Row]:
    """The rows of a summary, in the order of its keys. Raises ValueError for a key that `KEYS` does not have."""
    numbers: dict[_Place, _Number] = {}
    with_values = {line.quantity for line in lines_of(study) if not line.over}
    without: list[tuple[_Found, str]] = []  # intervals of which a summary says why there is none, once for many
    for leaf in _walk(summary, _tree(study), {}, (), ""):
        labels, over = {**leaf.labels, **leaf.line.conditions}, leaf.line.over
        if "{" in over:
            over = over.format(**labels)
            labels = {name: text for name, text in labels.items() if name not in _names(leaf.line.over)}
        if over and leaf.line.quantity in with_values and _names(leaf.line.path) - leaf.labels.keys():
            without.append((leaf, over))
            continue
        number = numbers.setdefault(_place(leaf.line.quantity, labels), _Number())
        if over:
            if over in number.intervals:
                raise ValueError(f"{study}: two intervals for {leaf.line.path} at {leaf.labels}")
            number.intervals[over] = leaf.value, leaf.line
        elif number.line is not None:
            raise ValueError(f"{study}: two values for {leaf.line.path} at {leaf.labels}")
        else:
            number.line, number.value = leaf.line, leaf.value
            counted = leaf.line.counted
            number.counted = (counted.format(**labels) if "{" in counted else counted) or None
            number.n = _count(number.counted, leaf.around)
    lacking = {leaf.line.quantity for leaf, _ in without}
    places = [(lacking_place, number) for lacking_place, number in numbers.items() if lacking_place[0] in lacking]
    for leaf, over in without:
        for lacking_place, number in places:
            if lacking_place[0] == leaf.line.quantity and _holds(leaf.labels, lacking_place):
                number.intervals.setdefault(over, (leaf.value, leaf.line))
    return [row for lacking_place, number in numbers.items() for row in _rows(study, lacking_place, number)]


def _place(quantity: str, labels: Mapping[str, Any]) -> _Place:
    conditions = {name: value for name, value in labels.items() if name not in ("subject", "other", "protocol")}
    text = _written(conditions) if conditions else "{}"
    return quantity, labels.get("subject"), labels.get("other"), labels.get("protocol"), text


_written = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode


def _holds(labels: Mapping[str, object], row_place: _Place) -> bool:
    """Whether a number is at `labels`, as far as that says where."""
    of_place = dict(zip(("subject", "other", "protocol"), row_place[1:4], strict=True)) | json.loads(row_place[4])
    return all(of_place.get(name) == value for name, value in labels.items())


def _count(name: str | None, around: Sequence[Mapping[str, object]]) -> int | None:
    """The number `name` of the nearest record that has it, where it is a number."""
    if name is None:
        return None
    value = next((record[name] for record in reversed(around) if name in record), None)
    return int(value) if isinstance(value, int | np.integer) else None


def _rows(study: str, row_place: _Place, number: _Number) -> Iterator[Row]:
    """The rows of a number: one for each of its intervals, one where it has none."""
    value, text = NONE if number.value is None else number.value, None
    if isinstance(value, str):
        value, text = None, value
    lines: list[tuple[str | None, tuple[Any, Line | None]]] = [*number.intervals.items()] or [
        (None, (None, number.line))
    ]
    for over, (interval, line) in lines:
        ends = NONE if over and interval is None else interval
        reasons = [reason for reason in (value, ends) if isinstance(reason, Missing) and reason is not RANGE]
        lacks = reasons[0] if reasons else RANGE if value is RANGE else None
        low, high = (None, None) if ends is None or isinstance(ends, Missing) else map(float, ends)
        yield Row(
            study,
            *row_place,
            value=None if value is None or isinstance(value, Missing) else float(value),
            low=low,
            high=high,
            level=line.level if over and line else None,
            interval_for=over,
            n=number.n,
            unit=line.unit if line else "",
            text=text,
            reason=None if lacks is None else str(lacks.reason),
            reason_code=None if lacks is None else lacks.code.value,
            basis=number.counted if number.n is not None else None,
        )


class Results:
    """The rows of some quantities of a results.parquet, by what they are of. Of several intervals of a number its first
    row counts."""

    def __init__(self, path: Path, quantities: Collection[str]) -> None:
        import pyarrow.parquet as pq

        table = pq.read_table(path, filters=[("quantity", "in", sorted(quantities))])
        self._rows: dict[_Place, Row] = {}
        self._of: dict[tuple[str, str | None], list[Row]] = {}
        for values in zip(*(table.column(name).to_pylist() for name in Row._fields), strict=True):
            row = Row._make(values)
            row_place = (row.quantity, row.subject, row.other, row.protocol, row.conditions)
            if row_place not in self._rows:
                self._rows[row_place] = row
                self._of.setdefault((row.quantity, row.subject), []).append(row)

    def one(
        self, quantity: str, subject: str | None = None, protocol: str | None = None, **conditions: object
    ) -> Row | None:
        """The row of a number that is of one thing; None where there is none."""
        return self._rows.get(_place(quantity, {"subject": subject, "protocol": protocol, **conditions}))

    def all(self, quantity: str, subject: str | None = None, **conditions: object) -> list[Row]:
        """The rows of a subject, in the order of the file, under these conditions among others."""
        rows = self._of.get((quantity, subject), [])
        return [row for row in rows if conditions.items() <= row.said.items()] if conditions else list(rows)

    def rows(self, quantity: str) -> list[Row]:
        """Every number of a quantity, in the order of the file."""
        return [row for row in self._rows.values() if row.quantity == quantity]
