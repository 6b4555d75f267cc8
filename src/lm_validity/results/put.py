"""Numbers as rows: put where they are computed, found by what they are of."""

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import pandas as pd

from lm_validity.words import Missing, Reason, ReasonCode

# ----------------------------------------------------------------------------------------------------------------------
# What a row of results.parquet is.

UNIQUE = ("study", "quantity", "subject", "other", "protocol", "conditions", "interval_for")
RANGE = Missing(Reason("This is a range, without a value in its middle.", ReasonCode.RANGE))
NONE = Missing(Reason("There is none here.", ReasonCode.NONE))


class Row(NamedTuple):
    """A row of results.parquet; docs/reference/results.md says what is in its columns."""

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
    def said(self) -> "dict[str, Condition]":
        """The row's conditions as a dictionary, from the JSON text of its column."""
        return _said(self.conditions)


Condition = str | int | float | None
Value = float | str | Missing
Ends = tuple[float, float] | Missing
Part = Literal["value", "low", "high", "n"]
PLACES = ("subject", "other", "protocol")


@dataclass(frozen=True)
class Column:
    """A column of a table: a `part` of a quantity's rows under the conditions `where`, and how a page shows it.

    `over`: which of several intervals; the first by default. `scale`: what a page multiplies the number with.
    """

    quantity: str
    label: str
    format: str = ""
    part: Part = "value"
    where: Mapping[str, Condition] = field(default_factory=dict)
    over: str | None = None
    scale: float = 1.0

    def with_ends(self, name: str) -> "dict[str, Column]":
        """This column under a name, and beside it the two ends of the number's interval."""
        ends = {"low": replace(self, label="95% from", part="low"), "high": replace(self, label="to", part="high")}
        return {name: self} | {f"{name}_{end}": column for end, column in ends.items()}


class Rows:
    """The rows of a report, in the order in which they are put. `of` says what the next ones have in common."""

    def __init__(self, study: str, rows: Iterable[Row] = ()) -> None:
        self.study = study
        self._common: dict[str, Condition] = {}
        self._all: list[Row] = []
        # by quantity, and by quantity and subject: the first row of each number
        self._numbers: dict[str | tuple[str, str | None], list[Row]] = {}
        self._places: dict[tuple[object, ...], Row] = {}  # by number, and by number and interval
        self.extend(rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._all)

    def of(self, **common: Condition) -> "Rows":
        """The same rows; what is put through it is of this, too."""
        view = copy.copy(self)
        view._common = self._common | common
        return view

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows as they are. Raises ValueError for a second row of one place."""
        for row in rows:
            number = row[1:6]
            if (*number, row.interval_for) in self._places:
                raise ValueError(f"{self.study}: two rows for {row.quantity} of {labels_of(row)}, {row.interval_for}")
            if number not in self._places:
                for key in (row.quantity, (row.quantity, row.subject)):
                    self._numbers.setdefault(key, []).append(row)
                self._places[number] = row
            self._places[*number, row.interval_for] = row
            self._all.append(row)

    def put(
        self, quantity: str, value: Value, unit: str, intervals: Mapping[str, Ends] | None = None, *,
        counted: tuple[str, int] | None = None, level: float | Mapping[str, float] = 0.95, why: str = "",
        **place: Condition,
    ) -> None:  # fmt: skip
        """A number with its intervals, by what they are over.

        `counted`: what the number rests on, and how many of these. `level`: of all intervals, or of each by its name.
        `why`: the reason where a value or an end of an interval is not finite. What else is named is what the number is
        of. Raises ValueError for such a value or end without a reason.
        """
        labels = (self._common | place).items()
        said = {name: label.item() if isinstance(label, np.generic) else label for name, label in labels}
        subject, other, protocol = (None if (label := said.pop(name, None)) is None else str(label) for name in PLACES)
        numbers = [] if isinstance(value, Missing | str) else [value]
        numbers += [end for ends in (intervals or {}).values() if isinstance(ends, tuple) for end in ends]
        if not why and not all(map(math.isfinite, numbers)):
            raise ValueError(f"{self.study}: {quantity} of {subject} {said} is {numbers}, without a reason")
        if not isinstance(value, Missing | str) and not math.isfinite(value):
            value = Missing(why)
        lines: list[tuple[str | None, Ends | None]] = [*intervals.items()] if intervals else [(None, None)]
        for over, ends in lines:
            if isinstance(ends, tuple) and not all(map(math.isfinite, ends)):
                ends = Missing(why)
            lacks = next((each for each in (value, ends) if isinstance(each, Missing) and each is not RANGE), None)
            lacks = RANGE if lacks is None and value is RANGE else lacks
            low, high = map(float, ends) if isinstance(ends, tuple) else (None, None)
            row = Row(
                study=self.study,
                quantity=quantity,
                subject=subject,
                other=other,
                protocol=protocol,
                conditions=json.dumps(said, sort_keys=True, ensure_ascii=False) if said else "{}",
                value=None if isinstance(value, Missing | str) else float(value),
                low=low,
                high=high,
                level=None if over is None else level[over] if isinstance(level, Mapping) else level,
                interval_for=over,
                n=int(counted[1]) if counted else None,
                unit=unit,
                text=value if isinstance(value, str) else None,
                reason=None if lacks is None else str(lacks.reason),
                reason_code=None if lacks is None else lacks.code.value,
                basis=counted[0] if counted else None,
            )
            self.extend([row])

    def all(self, quantity: str, **place: Condition) -> list[Row]:
        """The numbers of a quantity under these conditions among others, each with its first interval."""
        key = (quantity, cast(str | None, place["subject"])) if "subject" in place else quantity
        rows = self._numbers.get(key, [])
        return [row for row in rows if place.items() <= labels_of(row).items()] if place else list(rows)

    def row(self, quantity: str, over: Condition = None, **place: Condition) -> Row | None:
        """The one number of a quantity under these conditions, with its interval `over` something or else with its
        first one; None where there is none. Raises ValueError for several numbers."""
        found = self.all(quantity, **place)
        if len(found) > 1:
            raise ValueError(f"{self.study}: {len(found)} rows of {quantity} at {place}")
        return self.with_interval(found[0], over) if found else None

    def with_interval(self, row: Row, over: Condition) -> Row | None:
        """The row of the same number with its interval `over` something; the row itself where that is None."""
        return row if over is None else self._places.get((*row[1:6], over))

    def value(self, quantity: str, **place: Condition) -> float:
        """The value of one number; NaN where it is missing."""
        row = self.row(quantity, **place)
        return math.nan if row is None or row.value is None else row.value

    def labels(self, name: str, quantity: str) -> list[Condition]:
        """What a quantity's rows say for a label, such as all subjects, in their order."""
        return list(dict.fromkeys(labels_of(row)[name] for row in self.all(quantity)))

    def table(self, index: Sequence[str], columns: Mapping[str, Column], **place: Condition) -> pd.DataFrame:
        """A row for each place of the index, and a column for each of `columns`; what is not there says why."""
        found: dict[tuple[Condition, ...], dict[str, object]] = {}
        for name, column in columns.items():
            for first in self.all(column.quantity, **{**column.where, **place}):
                if (row := self.with_interval(first, column.over)) is None:
                    continue
                labels = labels_of(row)
                key = tuple(labels.get(each) for each in index)
                cells = found.setdefault(key, {})
                if name in cells:
                    raise ValueError(f"{self.study}: {index} does not tell the rows of {column.quantity} apart")
                cells[name] = part_of(row, column.part)
        records = [
            {**dict(zip(index, key, strict=True)), **{name: cells.get(name, NONE) for name in columns}}
            for key, cells in found.items()
        ]
        return pd.DataFrame(records, columns=[*index, *columns])

    @classmethod
    def read(cls, path: Path, quantities: Iterable[str] | None = None) -> "Rows":
        """The rows of a results.parquet, or those of some quantities."""
        import pyarrow.parquet as pq

        chosen = None if quantities is None else [("quantity", "in", sorted(quantities))]
        table = pq.read_table(path, filters=chosen)
        rows = [Row._make(values) for values in zip(*(table[name].to_pylist() for name in Row._fields), strict=True)]
        return cls(rows[0].study if rows else "", rows)


def labels_of(row: Row) -> dict[str, Condition]:
    """What a row is of: its subject, other and protocol, and its conditions."""
    return {"subject": row.subject, "other": row.other, "protocol": row.protocol, **_said(row.conditions)}


@cache
def _said(conditions: str) -> dict[str, Condition]:
    return cast(dict[str, Condition], json.loads(conditions))


def part_of(row: Row, part: Part) -> float | int | str | Missing:
    """The value, an end of the interval or the number of things of a row; where it has none, the reason."""
    found = row.text if part == "value" and row.text is not None else getattr(row, part)
    if part == "value" and row.unit == "yes_or_no" and found is not None:
        return bool(found)
    return Missing(row.reason or NONE.reason) if found is None else found


def reason_of(row: Row) -> Missing | None:
    """Why a row lacks its value or its interval; None where it lacks nothing."""
    if row.reason is None or row.reason_code is None:
        return None
    return Missing(Reason(row.reason, ReasonCode[row.reason_code.upper()]))


def ends_of(row: Row) -> tuple[float, float] | None:
    """The interval of a row, where it has one."""
    return None if row.low is None or row.high is None else (row.low, row.high)
