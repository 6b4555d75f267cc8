"""A summary: the results of a report as mappings and frozen dataclasses, and what summary.json holds of them.

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
from dataclasses import field, fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np

from lm_validity.missing import Missing

KEYS_NAMED = 3  # of the places that share a reason
_AS_THEY_ARE = frozenset((str, int, bool))


def page_only(**options: Any) -> Any:
    """A dataclass field that the page shows and summary.json leaves out."""
    return field(metadata={"page_only": True}, **options)


def named(key: str, **options: Any) -> Any:
    """A dataclass field whose key in summary.json is not its name."""
    return field(metadata={"key": key}, **options)


def summary_values(summary: object) -> dict[str, object]:
    """The contents of summary.json: keys in the fields' order, nulls for missing values, their reasons under `notes`.

    A note of a missing value names its keys, then the reason. Raises ValueError for a number that is not finite: a
    null needs a reason.
    """
    reasons: dict[str, dict[str, None]] = {}
    values: dict[str, Any] = _plain(summary, "", reasons)
    notes = list(values.pop("notes", None) or [])
    for reason, keys in ((reason, list(places)) for reason, places in reasons.items()):
        remainder = f" and {len(keys) - KEYS_NAMED} more" if len(keys) > KEYS_NAMED else ""
        notes.append(f"{', '.join(keys[:KEYS_NAMED])}{remainder}: {reason}")
    return values | {"notes": notes}


def entries_of(value: Any) -> Iterator[tuple[str, object]]:
    """(key, value) of a dataclass's fields that summary.json holds, or of a mapping."""
    if isinstance(value, dict):
        yield from ((str(key), item) for key, item in value.items())
        return
    for key, name in _keys_of(type(value)):  # type: ignore[arg-type] # classes are hashable
        yield key, getattr(value, name)


@cache
def _keys_of(record: type) -> tuple[tuple[str, str], ...]:
    """(key in summary.json, name) of each field of a dataclass that summary.json holds."""
    return tuple(
        (member.metadata.get("key", member.name), member.name)
        for member in fields(record)
        if not member.metadata.get("page_only")
    )


def _plain(value: object, where: str, reasons: dict[str, dict[str, None]]) -> Any:
    if value is None or type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, Missing):
        reasons.setdefault(value.reason, {})[where] = None
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
