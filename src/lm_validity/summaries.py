"""Typed summaries: a report's results as frozen dataclasses, written to summary.json and read by its page.

A value that cannot be computed is a `Missing` with its reason, made where it arises. In summary.json it is null and
its reason is a note; on a page it is a dash that shows the reason.

    @dataclass(frozen=True)
    class Tau:
        mean: float | Missing
        by_pair: list[tuple[str, str, float | Missing]]
        rankings: np.ndarray = page_only()
        notes: list[str] = field(default_factory=list)

    summary_values(Tau(known(mean, "Fewer than two models have scores."), ...))
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeGuard, TypeVar

import numpy as np

from lm_validity.words import Reason, ReasonCode

T = TypeVar("T")
KEYS_NAMED = 3  # of the places that share a reason


@dataclass(frozen=True)
class Missing:
    """A value that cannot be computed, and why: one sentence, which may be a `Reason` with its code."""

    reason: str

    @property
    def code(self) -> ReasonCode:
        """The code of the reason."""
        return self.reason.code if isinstance(self.reason, Reason) else ReasonCode.NOT_COMPUTED


def known(value: T | None, reason: str) -> T | Missing:
    """`value`, or a `Missing` with the reason where it is None or a number that is not finite."""
    if value is None or (isinstance(value, float | np.floating) and not math.isfinite(value)):
        return Missing(reason)
    return value


def is_known(value: T | Missing | None) -> TypeGuard[T]:
    """Whether a value is there: neither None nor `Missing`."""
    return value is not None and not isinstance(value, Missing)


def number(value: float | Missing | None) -> float:
    """The value for arithmetic and figures: NaN where it is missing."""
    return float(value) if value is not None and not isinstance(value, Missing) else math.nan


def as_columns(interval: object, low: str = "low", high: str = "high") -> dict[str, Any]:
    """The ends of an interval as two columns of a table; what is no pair, such as a `Missing`, is in both."""
    ends = interval if isinstance(interval, tuple) else (interval, interval)
    return dict(zip((low, high), ends, strict=True))


def page_only(**options: Any) -> Any:
    """A dataclass field that the page shows and summary.json leaves out."""
    return field(metadata={"page_only": True}, **options)


def named(key: str, **options: Any) -> Any:
    """A dataclass field whose key in summary.json is not its name."""
    return field(metadata={"key": key}, **options)


def summary_values(summary: object) -> dict[str, Any]:
    """The contents of summary.json: keys in the fields' order, nulls for missing values, their reasons under `notes`.

    A note of a missing value names its keys, then the reason. Raises ValueError for a number that is not finite: a
    null needs a reason.
    """
    reasons: dict[str, list[str]] = {}
    values = _plain(summary, "", reasons)
    notes = list(values.pop("notes", None) or [])
    for reason, keys in reasons.items():
        more = f" and {len(keys) - KEYS_NAMED} more" if len(keys) > KEYS_NAMED else ""
        notes.append(f"{', '.join(keys[:KEYS_NAMED])}{more}: {reason}")
    return values | {"notes": notes}


def entries_of(value: Any) -> Iterator[tuple[str, object]]:
    """(key, value) of a dataclass's fields that summary.json holds, or of a mapping."""
    if isinstance(value, dict):
        yield from ((str(key), item) for key, item in value.items())
        return
    for one in fields(value):
        if not one.metadata.get("page_only"):
            yield one.metadata.get("key", one.name), getattr(value, one.name)


def _plain(value: object, where: str, reasons: dict[str, list[str]]) -> Any:
    if isinstance(value, Missing):
        keys = reasons.setdefault(value.reason, [])
        if where not in keys:
            keys.append(where)
        return None
    if isinstance(value, dict) or (is_dataclass(value) and not isinstance(value, type)):
        inner = f"{where}." if where else ""
        return {key: _plain(item, f"{inner}{key}", reasons) for key, item in entries_of(value)}
    if isinstance(value, np.ndarray | np.generic) and value.ndim == 0:
        return _plain(value.item(), where, reasons)
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item, where, reasons) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {value} in a summary without a reason")
    return value
