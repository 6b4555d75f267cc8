"""One question where headers do not say what columns mean: the frame, at most three readings that were executed on the
input, what each gives, and the command that is that reading."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from shlex import quote

import numpy as np
import pandas as pd

from lm_validity.errors import InputError, Question, did_you_mean
from lm_validity.tables import told as readings
from lm_validity.tables.candidates import answers, find, score_sets, sure
from lm_validity.tables.frame import Frame
from lm_validity.tables.metrics import plain
from lm_validity.tables.roles import Columns
from lm_validity.tables.told import Long, Scaled, Told
from lm_validity.words import count, listing

_NAMES_SHOWN = 12
_COLUMNS_SHOWN = 16
_STRANGE = re.compile(r"(^|[^a-z])(avg|average|mean|overall|human|total)", re.I)  # names that are always shown


@dataclass
class Reader:
    """The tables of an input and what was counted of each. `name`: of the input; `command`: what was typed, to which
    the answer is added; `units`, `directions`: what the reader says of benchmarks; `refusals`: of readings tried."""

    frame: Frame
    name: str
    command: str = "lm-validity import"
    units: Mapping[str, str] = field(default_factory=dict)
    directions: Mapping[str, str] = field(default_factory=dict)
    refusals: list[InputError] = field(default_factory=list)

    @cached_property
    def tables(self) -> list[Columns]:
        """The columns of each table."""
        return [Columns(table) for table in self.frame.tables]

    @cached_property
    def groups(self) -> list[list[Columns]]:
        """Tables that lie above each other in the same files, coarsest first; rectangular ones each by itself. Those
        without a number are none."""
        groups: list[tuple[set[int], list[Columns]]] = []
        for columns in self.tables:
            table = columns.table
            if not any(column.numeric or column.boolean for column in columns.values()) and not answers(columns):
                continue
            files = set[int]() if table.schema == ("table",) else set(table.files.tolist())
            shared = next((group for group in groups if group[0] & files), None)
            if shared is None:
                groups.append((files, [columns]))
            else:
                shared[0].update(files)
                shared[1].append(columns)
        return [tables for _, tables in groups]

    def read(self, text: str | None) -> list[Long]:
        """The long tables that the reader says, or that are sure. Raises Question where they are not."""
        if text is not None:
            return self._told(readings.parse(text))
        found = [self._sure(group) for group in self.groups]
        if found and all(found):
            return [long for longs in found for long in longs]
        raise self.question(found)

    def certain(self) -> list[Long]:
        """The long tables that are sure; of others nothing is asked."""
        return [long for group in self.groups for long in self._sure(group)]

    def _told(self, options: Sequence[Told]) -> list[Long]:
        """The long table of each group of tables under the reading that has the most columns in it."""
        found = []
        for group in self.groups:
            pairs = [(told, columns) for told in options if (columns := readings.first_with(group, told)) is not None]
            if pairs:
                told, columns = max(pairs, key=lambda pair: len(readings.needed(pair[0])))
                found.append(readings.apply_table(columns, told))
        if found:
            return found
        names = readings.needed(options[0]) if options else []
        there = dict.fromkeys(itertools.chain(*self.tables))
        for absent in [name for name in names if name not in there][:1]:
            hint = did_you_mean(absent, there, f"columns: {listing(there, 12)}.")
            raise InputError(f"--columns: there is no column {absent!r}.", hint)
        raise InputError(f"--columns: no table has all of {', '.join(names)}, and numbers.", "name columns of one.")

    def _sure(self, group: Sequence[Columns]) -> list[Long]:
        longs = []
        for columns in group:
            told = sure(columns)
            try:
                longs += [] if told is None else [readings.apply_table(columns, told)]
            except InputError as refused:
                self.refusals.append(refused)
                return []
        return longs if len(longs) == len(group) else []

    def question(self, certain: Sequence[list[Long]]) -> Question:
        """The question, with at most three readings of all tables, each of which was executed; without any, the refusal
        of the likeliest."""
        if not self.frame.tables:
            reasons = [f"{path}: {reason}" for path, reason in self.frame.skipped.items()]
            problem = f"no table ({'; '.join(reasons[:2]) or 'no file'})."
            raise InputError(f"{self.name}: {problem}", "give a table of scores.")
        tried: list[tuple[float, list[list[Long]]]] = []
        for longs, group in zip(certain, self.groups, strict=True):
            found = [] if longs else find(group, self.refusals)
            points = math.inf if longs else found[0].points if found else -math.inf
            tried.append((points, [longs] if longs else [[each.long] for each in found]))
        options = _together([longs for _, longs in sorted(tried, key=lambda pair: -pair[0])])
        shown = options[0][0].columns if options else self.tables[0]
        lines = [f"what do the columns of {self.name} mean? Their headers do not say it for sure.", ""]
        lines += self._described(shown)
        texts = ["; ".join(dict.fromkeys(readings.show(long.told) for long in longs)) for longs in options]
        for number, (text, longs) in enumerate(zip(texts, options, strict=True), 1):
            lines += ["", f"  {number}. {preview([self.scale(long) for long in longs])}"]
            lines.append(f"     {self.command} --columns {quote(text)}")
        if not options:
            why = "no column has numbers that may be scores, or right and wrong answers."
            if any(score_sets(columns, ()) for columns in self.tables[:3]):
                why = "nothing names the models: --model PATH=NAME names that of a file."
            for refused in self.refusals[:1]:
                why = f"no reading gives a table; the likeliest: {refused.problem} {refused.hint}"
            return Question("\n".join(lines), f"{why} Correct the files, or write --columns yourself.")
        used = {name for long in options[0] for name in readings.needed(long.told)}
        free = [name for name, column in shown.items() if name not in used and column.distinct]
        lines += ["", f"Reading 1 does not use: {some(free) or 'nothing'}.{self.skipped(options[0])}"]
        return Question("\n".join(lines), "choose a reading, or write --columns yourself.", texts)

    def scale(self, long: Long) -> Scaled:
        """The scores in shares, with directions."""
        return readings.scaled(long, self.units, self.directions)

    def _described(self, columns: Columns) -> list[str]:
        table = columns.table
        lines = [f"{count(len(table.cells), 'row')} of {count(len(set(table.files)), 'file')}:"]
        for column in list(columns.values())[:_COLUMNS_SHOWN]:
            values = ", ".join(" ".join(text.split())[:24] for text in column.different[:3])
            lines.append(f"   {column.name:<24.24} {column.distinct:>5} different   {values}")
        more = len(columns) - _COLUMNS_SHOWN
        return [*lines, f"   … and {more} more columns"] if more > 0 else lines

    def skipped(self, longs: Sequence[Long]) -> str:
        """The files that were left out, in a few words."""
        reasons = self.left_out(longs)
        if not reasons:
            return ""
        names = some([path.name for path in reasons], 3)
        out = f"{count(len(reasons), 'file')} of {len(self.frame.sources)}"
        return f" Left out: {out} ({names}: {next(iter(reasons.values()))})."

    def left_out(self, longs: Sequence[Long]) -> dict[Path, str]:
        """The files that give nothing under a reading, with the reason."""
        used = {int(file) for long in longs for file in np.unique(long.columns.table.files)}
        unused = [source.path for i, source in enumerate(self.frame.sources) if i not in used]
        return dict.fromkeys(unused, "not of the tables read") | self.frame.skipped


def _together(offered: Sequence[Sequence[list[Long]]]) -> list[list[Long]]:
    """Readings of all groups of tables, the best of each first. A group that has neither a model nor a benchmark in
    common with those before it, or whose scores contradict theirs, is left out."""
    if len(offered) == 1:
        return [*offered[0]]
    found: list[list[Long]] = []
    for rank in range(max((len(options) for options in offered), default=0)):
        reading: list[Long] = []
        values: dict[tuple[object, ...], float] = {}
        names: set[tuple[str, object]] = set()
        for options in filter(None, offered):
            longs = options[min(rank, len(options) - 1)]
            scores = {(*long.keys, *row[:-1]): row[-1] for long in longs
                      for row in long.scores[[*long.keys, "value"]].itertuples(index=False, name=None)}  # fmt: skip
            called = {(role, plain(name)) for long in longs for role in ("model", "benchmark")
                      for name in long.scores[role].unique()}  # fmt: skip
            contradicts = any(abs(values.get(place, value) - value) > 1e-9 for place, value in scores.items())
            if not contradicts and (not names or names & called):
                reading += longs
                values |= scores
                names |= called
        if reading and all([id(long) for long in reading] != [id(long) for long in each] for each in found):
            found.append(reading)
    return found


def some(values: Iterable[object], most: int = _NAMES_SHOWN) -> str:
    """The first names of several, and those of later ones that may be averages or people."""
    names = [str(value)[:40] for value in values]
    shown = names if len(names) <= most else [*names[:3], *filter(_STRANGE.search, names[3:])]
    return ", ".join(shown) + (f", … ({len(names)})" if len(shown) < len(names) else "")


def preview(finals: Sequence[Scaled]) -> str:
    """What a reading gives: how many models and benchmarks, their names, units, directions, and one cell."""
    lines = [f"{size(finals)}, {meaning(finals)}"]
    for role in ("model", "benchmark"):
        lines.append(f"{role}s: {some(dict.fromkeys(name for final in finals for name in final.scores[role]))}")
    first = finals[0].long.scores.iloc[0]
    place = finals[0].long.columns.table.places[int(first["row"])]
    lines.append(f"{first['model']} on {first['benchmark']}: {first['value']:g} ({place})")
    notes = [note for final in finals for note in (*final.notes, *final.long.notes)]
    return "\n     ".join([*lines, *notes[:3]])


def size(finals: Sequence[Scaled]) -> str:
    """How many models, benchmarks, runs and checkpoints, and answers or items of each."""
    scores = pd.concat([final.scores for final in finals])
    roles = [role for role in ("model", "benchmark", "metric", "checkpoint", "run") if role in scores]
    text = " × ".join(count(scores[role].nunique(), role) for role in roles)
    n, noun = scores["n"].dropna(), "answer" if finals[0].long.items else "item"
    if n.empty:
        return text
    return f"{text}, {count(int(n.min()), noun) if n.min() == n.max() else f'{n.min():g} to {n.max():g} {noun}s'} each"


def meaning(finals: Sequence[Scaled]) -> str:
    """Units and directions in a few words."""
    units = dict.fromkeys(unit for final in finals for unit in final.units.values())
    directions = {name: direction for final in finals for name, direction in final.directions.items()}
    assumed = sum(direction == readings.ASSUMED for direction in directions.values())
    lower = [name for name, direction in directions.items() if direction == readings.LOWER]
    text = f"lower is better on {some(lower, 3)}, else higher" if lower else "higher is better"
    scales = ", ".join("scale unknown" if unit == readings.POINTS else unit for unit in units)
    return f"{scales}, {text}" + (f" (assumed for {assumed})" if assumed else "")
