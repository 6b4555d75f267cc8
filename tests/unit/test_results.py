"""Every number of every summary is in one row of its results, and every null has its reason."""

import dataclasses
import functools
import itertools
import json
import re
import types
import typing
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from lm_validity.missing import Missing, Reason, ReasonCode
from lm_validity.pages.page import Page
from lm_validity.results.files import write_rows
from lm_validity.results.keys import INTERVALS, KEYS, lines_of
from lm_validity.results.put import Rows
from lm_validity.results.rows import COLUMNS, UNIQUE, Row, rows_of
from lm_validity.results.summary import summary_values

SUMMARIES: dict = {}
WHY = Missing(Reason("It was not measured.", ReasonCode.NO_ITEMS))


class Filled:
    """Makes a value of any type of a summary: each number another one, or what is `lacking` where a type allows it."""

    def __init__(self, lacking=()):
        self.numbers, self.lacking = itertools.count(1000), lacking

    def of(self, kind):
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            if type(self.lacking) in inner:
                return self.lacking
            return self.of(next(one for one in inner if one not in (Missing, type(None))))
        if origin is dict:
            return {key: self.of(inner[1]) for key in (("10", 20) if inner[0] is int else ("direct", "some other"))}
        if origin is list or (origin is tuple and inner[1:] == (...,)):
            return [self.of(inner[0]), self.of(inner[0])]
        if kind is np.ndarray:
            return np.array([self.of(float), self.of(float)])
        if isinstance(origin, type) and issubclass(origin, tuple):
            return tuple(map(self.of, inner)) if origin is tuple else origin(self.of(float), self.of(float))
        if dataclasses.is_dataclass(kind):
            return self.record(kind)
        number = next(self.numbers)
        return kind(number % 2) if kind is bool else f"text {number}" if kind is str else kind(number)

    def record(self, kind):
        made, hints = object.__new__(kind), typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if not field.metadata.get("page_only"):
                object.__setattr__(made, field.name, self.of(hints[field.name]))
        return made


def filled(study, lacking=()):
    """A summary of the study: of its type, or where that is a mapping with a value at each line of `KEYS`."""
    made = Filled(lacking)
    if study in SUMMARIES:
        return made.of(SUMMARIES[study])
    summary: dict = {}
    for line in lines_of(study):
        fill(summary, re.findall(r"\[[^\]]*\]|[^.\[\]]+", line.path), line, made)
    return summary


def fill(record, parts, line, made):
    """Put a value under the parts of a path: two keys for `{name}`, two records for `[fields]`."""
    part, *rest = parts
    over = ("benchmarks", "categories") if "{over}" in part else ("direct", "some other")
    kind = tuple[float, float] if line.over else {"text": str, "yes_or_no": bool}.get(line.unit, float)
    kind = kind if made.lacking == () else kind | type(made.lacking)
    for text in over if "{" in part else ("",):
        key = re.sub(r"\{\w+\}", text, part)
        if not rest:
            record[key] = made.of(kind)
        elif all(part[0] == "[" for part in rest):
            record[key] = made.of(functools.reduce(lambda inner, _: list[inner], rest, kind))
        elif rest[0][0] == "[":
            paths = [name.partition("=")[0].split(".") for name in rest[0][1:-1].split(",") if name[0] != "#"]
            items = record.setdefault(key, [{}, {}])
            for item in items:
                for *outer, last in paths if not item else ():
                    functools.reduce(lambda inner, name: inner.setdefault(name, {}), outer, item)[last] = made.of(str)
                fill(item, rest[1:], line, made)
        else:
            fill(record.setdefault(key, {}), rest, line, made)


def leaves(value, where=""):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{where}.{key}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, f"{where}.{place}")
    elif not isinstance(value, bool):
        yield where, value


def told(rows: list[Row]) -> Counter:
    """How often the rows tell each number or text: a value once with all its intervals, and each end of these."""
    values = {row[:6]: row.value if row.text is None else row.text for row in rows if row.unit != "yes_or_no"}
    ends = [end for row in rows for end in (row.low, row.high)]
    return Counter(one for one in [*values.values(), *ends] if one is not None)


@pytest.mark.parametrize("study", KEYS)
def test_every_number_of_a_summary_is_in_one_row(study):
    summary = filled(study)
    rows = rows_of(study, summary)
    assert len({tuple(getattr(row, name) for name in UNIQUE) for row in rows}) == len(rows)
    found = told(rows)
    assert set(found.values()) == {1}
    places = [[row.subject, row.other, row.protocol, *json.loads(row.conditions).values()] for row in rows]
    said = {value for place in places for value in place}
    for where, value in leaves({**summary_values(summary), "notes": []}):
        assert (value in found) != (value in said), where
    assert {row.quantity for row in rows} == {line.quantity for line in lines_of(study)}


@pytest.mark.parametrize("study", KEYS)
@pytest.mark.parametrize(("lacking", "code"), [(WHY, "no_items"), (None, "none")])
def test_every_null_has_its_reason(study, lacking, code):
    rows = rows_of(study, filled(study, lacking))
    assert {row.quantity for row in rows} == {line.quantity for line in lines_of(study)}
    for row in rows:
        whole = (row.value is not None or row.text is not None) and (row.interval_for is None or row.low is not None)
        assert (row.reason_code is None) == (row.reason is None) == whole, row
        assert row.reason_code in (None, "range", code)
        assert row.reason_code != "no_items" or row.reason == WHY.reason


def test_a_report_writes_its_results_as_rows(tmp_path):
    numbers = Rows("compare")
    at = numbers.of(subject="facts", protocol="direct")
    numbers.put("first", "=a", "text")
    at.put("difference", 0.25, "score", {"items": (0.125, 0.375)}, counted=("items", 40))
    at.put("difference_p", WHY, "probability")
    for folder in ("one", "two"):
        write_rows(Page("compare", "A comparison", [], []), numbers, tmp_path / folder)
    assert (tmp_path / "one" / "results.parquet").read_bytes() == (tmp_path / "two" / "results.parquet").read_bytes()
    rows = pd.read_parquet(tmp_path / "one" / "results.parquet")
    columns = "study, quantity, subject, other, protocol, conditions, value, low, high, level, interval_for, n, unit, "
    assert list(rows) == (columns + "text, reason, reason_code, basis").split(", ")
    difference = rows.set_index("quantity").loc["difference"]
    assert difference[["study", "subject", "protocol", "conditions", "unit", "interval_for", "basis"]].tolist() == [
        "compare", "facts", "direct", "{}", "score", "items", "items"
    ]  # fmt: skip
    assert difference[["value", "low", "high", "level", "n"]].tolist() == [0.25, 0.125, 0.375, 0.95, 40]
    assert rows.set_index("quantity").loc["difference_p", "reason_code"] == "no_items"
    sheet = pd.read_csv(tmp_path / "one" / "results.csv")
    assert sheet["text"][0] == "'=a" and rows["text"][0] == "=a"
    assert sheet["value"].equals(rows["value"]) and sheet["n"].equals(rows["n"])


def test_intervals_over_several_populations_are_rows_of_one_value():
    rows = [row for row in rows_of("agreement", filled("agreement")) if row.quantity == "tau_mean"]
    direct = [row for row in rows if row.protocol == "direct"]
    assert {row.interval_for for row in direct} == {"models", "benchmarks", "families", "categories"}
    assert len({row.value for row in direct}) == 1 and len({row.low for row in direct}) == 4


def test_a_missing_group_of_intervals_says_so_for_each_value():
    of_protocol = {"mean": 0.5, "by_benchmark": {"facts": 0.25}, "by_benchmark_interval": WHY}
    row = next(row for row in rows_of("agreement", {"kendall_tau": {"direct": of_protocol}}) if row.subject == "facts")
    assert (row.value, row.low, row.interval_for, row.reason_code) == (0.25, None, "models", "no_items")


def test_every_column_and_interval_is_explained():
    assert tuple(COLUMNS) == Row._fields
    rows = [row for study in KEYS for row in rows_of(study, filled(study))]
    assert {row.interval_for for row in rows} - {None} <= set(INTERVALS)


def test_a_key_without_a_line_is_refused():
    with pytest.raises(ValueError, match="models_in_neither"):
        rows_of("agreement", {"models": 3, "models_in_neither": 2})
