"""One question where headers do not say what columns mean: the frame, at most three readings that were executed on the
input, what each gives, and the command that is that reading."""

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
from lm_validity.tables.candidates import Candidate, answers, find, ignored_rows, one, score_sets
from lm_validity.tables.frame import Frame, Table
from lm_validity.tables.roles import SETTINGS, Columns, key
from lm_validity.tables.scales import ASSUMED, LOWER, Scaled, scaled
from lm_validity.tables.told import (
    Given,
    Long,
    Refused,
    Told,
    apply_table,
    averages,
    first_with,
    named_average,
    needed,
    parse,
    show,
)
from lm_validity.words import count, listing

_NAMES_SHOWN = 12
_COLUMNS_SHOWN = 16


@dataclass
class Reader:
    """The tables of an input and what was counted of each. `name`: of the input; `command`: what was typed, to which
    the answer is added; `units`, `directions`: what the reader says of benchmarks; `refusals`: of readings tried."""

    frame: Frame
    name: str
    command: str = "lm-validity import"
    units: Mapping[str, str] = field(default_factory=dict)
    directions: Mapping[str, str] = field(default_factory=dict)
    counted: dict[int, Columns] = field(default_factory=dict)
    refusals: list[InputError] = field(default_factory=list)

    def of(self, table: Table) -> Columns:
        """The columns of a table."""
        if id(table) not in self.counted:
            self.counted[id(table)] = Columns(table)
        return self.counted[id(table)]

    @cached_property
    def groups(self) -> list[list[Table]]:
        """Tables that lie above each other in the same files, coarsest first; rectangular ones each by itself. Those
        without a number are none."""
        groups: list[list[Table]] = []
        files: list[set[int]] = []
        for table in self.frame.tables:
            columns = self.of(table)
            if not any(column.numeric or column.boolean for column in columns.values()) and not answers(columns):
                continue
            own = set(table.files.tolist())
            if table.schema == ("table",):
                groups.append([table])
                files.append(set())
                continue
            place = next((i for i, theirs in enumerate(files) if theirs & own), None)
            if place is None:
                groups.append([table])
                files.append(own)
            else:
                groups[place].append(table)
                files[place] |= own
        return groups

    def read(self, text: str | None) -> list[Long]:
        """The long tables that the reader says, or that are sure. Raises Question where they are not."""
        if text is not None:
            return self._told(parse(text))
        found = [self._sure(group) for group in self.groups]
        if found and all(found):
            return [long for longs in found for long in longs]
        raise self.question(found)

    def certain(self) -> list[Long]:
        """The long tables that are sure; of others nothing is asked."""
        return [long for group in self.groups for long in self._sure(group)]

    def _told(self, readings: Sequence[Told]) -> list[Long]:
        """The long table of each group of tables under the reading that has the most columns in it."""
        found = []
        for group in self.groups:
            fitting = [(told, table) for told in readings if (table := first_with(group, told)) is not None]
            if fitting:
                told, table = max(fitting, key=lambda pair: len(needed(pair[0])))
                found.append(apply_table(self.frame, self.of(table), told))
        if found:
            return found
        names, known = (
            needed(readings[0]) if readings else [],
            [name for table in self.frame.tables for name in table.cells],
        )
        absent = next((name for name in names if name not in known), None)
        if absent is None:
            raise Refused(
                f"--columns: no table has numbers and all of {', '.join(names)}.", "name columns of one table."
            )
        hint = did_you_mean(absent, known, f"columns: {listing(dict.fromkeys(known), 12)}.")
        raise Refused(f"--columns: there is no column {absent!r}.", hint)

    def _sure(self, group: Sequence[Table]) -> list[Long]:
        longs = []
        for table in group:
            told = sure(self.of(table))
            try:
                longs += [] if told is None else [apply_table(self.frame, self.of(table), told)]
            except Refused as refused:
                self.refusals.append(refused)
                return []
        return longs if len(longs) == len(group) else []

    def question(self, certain: Sequence[list[Long]]) -> Question:
        """The question, with at most three readings of all tables, each of which was executed; without any, the refusal
        of the likeliest."""
        if not self.frame.tables:
            reasons = [f"{path}: {reason}" for path, reason in self.frame.skipped.items()]
            raise InputError(
                f"{self.name}: no table ({'; '.join(reasons[:2]) or 'no file'}).", "give a table of scores."
            )
        found = [
            (math.inf, [longs]) if longs else _offered(find(self.frame, group, self.of, self.refusals))
            for longs, group in zip(certain, self.groups, strict=True)
        ]
        readings = _together([options for _, options in sorted(found, key=lambda pair: -pair[0])])
        shown = readings[0][0].table if readings else self.frame.tables[0]
        lines = [f"what do the columns of {self.name} mean? Their headers do not say it for sure.", ""]
        lines += self._described(shown)
        texts = ["; ".join(dict.fromkeys(show(long.told) for long in reading)) for reading in readings]
        for number, (text, reading) in enumerate(zip(texts, readings, strict=True), 1):
            lines += ["", f"  {number}. {self.preview(reading)}"]
            lines.append(f"     {self.command} --columns {quote(text)}")
        if not readings:
            why = "no column has numbers that may be scores, or right and wrong answers."
            if any(score_sets(self.of(table), ()) for table in self.frame.tables[:3]):
                why = "nothing names the models: --model PATH=NAME names that of a file."
            for refused in self.refusals[:1]:
                why = f"no reading gives a table; the likeliest: {refused.problem} {refused.hint}"
            return Question("\n".join(lines), f"{why} Correct the files, or write --columns yourself.")
        used = {name for long in readings[0] for name in needed(long.told)}
        left = [name for name in shown.cells if name not in used and self.of(shown)[name].distinct]
        lines += ["", f"Reading 1 does not use: {some(left) or 'nothing'}.{self.skipped(readings[0])}"]
        return Question("\n".join(lines), "choose a reading, or write --columns yourself.", texts)

    def scale(self, long: Long) -> Scaled:
        """The scores in shares, with directions."""
        return scaled(self.frame, long, self.units, self.directions)

    def preview(self, longs: Sequence[Long]) -> str:
        """What a reading gives, in a few lines."""
        return preview(longs, [self.scale(long) for long in longs])

    def _described(self, table: Table) -> list[str]:
        lines = [f"{count(len(table.cells), 'row')} of {count(len(set(table.files)), 'file')}:"]
        columns = self.of(table)
        for column in list(columns.values())[:_COLUMNS_SHOWN]:
            texts = [text for text, no in zip(column.texts, column.blank, strict=True) if not no][:3]
            values = ", ".join(" ".join(text.split())[:24] for text in texts)
            lines.append(f"   {column.name:<24.24} {column.distinct:>5} different   {values}")
        if len(columns) > _COLUMNS_SHOWN:
            lines.append(f"   … and {len(columns) - _COLUMNS_SHOWN} more columns")
        return lines

    def skipped(self, longs: Sequence[Long]) -> str:
        """The files that were left out, in a few words."""
        left = self.left_out(longs)
        if not left:
            return ""
        first = next(iter(left.values()))
        names = some([path.name for path in left], 3)
        return f" Left out: {count(len(left), 'file')} of {len(self.frame.sources)} ({names}: {first})."

    def left_out(self, longs: Sequence[Long]) -> dict[Path, str]:
        """The files that give nothing under a reading, with the reason."""
        used = {int(file) for long in longs for file in np.unique(long.table.files)}
        rest = {source.path: "not of the tables read" for i, source in enumerate(self.frame.sources) if i not in used}
        return rest | self.frame.skipped


def _offered(found: Sequence[Candidate]) -> tuple[float, list[list[Long]]]:
    """How likely the best reading of a group is, and all, best first."""
    return found[0].points if found else -math.inf, [[each.long] for each in found]


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
        for options in offered:
            longs = options[min(rank, len(options) - 1)] if options else []
            own = {place: value for long in longs for place, value in _by_key(long).items()}
            called = {
                (role, key(name))
                for long in longs
                for role in ("model", "benchmark")
                for name in long.scores[role].unique()
            }
            contradicts = any(abs(values.get(place, value) - value) > 1e-9 for place, value in own.items())
            if longs and not contradicts and (not names or names & called):
                reading += longs
                values |= own
                names |= called
        if reading and all([id(long) for long in reading] != [id(long) for long in other] for other in found):
            found.append(reading)
    return found


def _by_key(long: Long) -> dict[tuple[object, ...], float]:
    keys = long.scores[long.keys].assign(told=",".join(long.keys)).itertuples(index=False, name=None)
    return dict(zip(keys, long.scores["value"], strict=True))


def some(values: Iterable[object], most: int = _NAMES_SHOWN) -> str:
    """The first names of several."""
    shown = [str(value)[:40] for value in values]
    return ", ".join(shown[:most]) + (f", … ({len(shown)})" if len(shown) > most else "")


_STRANGE = re.compile(r"(^|[^a-z])(avg|average|mean|overall|human|total)", re.I)  # names that are always shown


def preview(longs: Sequence[Long], finals: Sequence[Scaled]) -> str:
    """What a reading gives: how many models and benchmarks, their names, units, directions, and one cell."""
    lines = [f"{size(longs, finals)}, {meaning(finals)}"]
    for role in ("model", "benchmark"):
        names = list(dict.fromkeys(str(name) for final in finals for name in final.scores[role]))
        shown = names if len(names) <= _NAMES_SHOWN else [*names[:3], *filter(_STRANGE.search, names[3:])]
        more = f", … ({len(names)})" if len(shown) < len(names) else ""
        lines.append(f"{role}s: {', '.join(name[:40] for name in shown)}{more}")
    for long in longs[:1]:
        first = long.scores.iloc[0]
        place = long.table.places[int(first["row"])]
        lines.append(f"{first['model']} on {first['benchmark']}: {first['value']:g} ({place})")
    notes = [note for long, final in zip(longs, finals, strict=True) for note in (*final.notes, *long.notes)]
    return "\n     ".join([*lines, *notes[:3]])


def size(longs: Sequence[Long], finals: Sequence[Scaled]) -> str:
    """How many models, benchmarks, runs and checkpoints, and answers or items of each."""
    scores = pd.concat([final.scores for final in finals]) if len(finals) > 1 else finals[0].scores
    roles = [role for role in ("model", "benchmark", "metric", "checkpoint", "run") if role in scores]
    text = " × ".join(count(scores[role].nunique(), role) for role in roles)
    n = scores["n"].dropna()
    if n.empty:
        return text
    what = "answer" if longs[0].items else "item"
    each = count(int(n.min()), what) if n.min() == n.max() else f"{n.min():g} to {n.max():g} {what}s"
    return f"{text}, {each} each"


def meaning(finals: Sequence[Scaled]) -> str:
    """Units and directions in a few words."""
    units = dict.fromkeys(unit for final in finals for unit in final.units.values())
    directions = {name: direction for final in finals for name, direction in final.directions.items()}
    assumed = sum(direction == ASSUMED for direction in directions.values())
    lower = [name for name, direction in directions.items() if direction == LOWER]
    text = f"lower is better on {some(lower, 3)}, else higher" if lower else "higher is better"
    return f"{', '.join(units)}, {text}" + (f" (assumed for {assumed})" if assumed else "")


# ----------------------------------------------------------------------------------------------------------------------
# What is sure.


def sure(columns: Columns) -> Told | None:
    """The reading that headers and marks alone give, and that leaves no column that nothing explains; else None."""
    by_word = _by_word(columns)
    texts = [c for c in columns.values() if c.textual and c.kind == "cell"]
    model = [name for name in by_word.get("model", []) if columns[name].distinct > 1] or by_word.get("model", [])
    if not model and len(texts) == 1 and texts[0].all_different and texts[0].word is None:
        model = [texts[0].name]
    told: Told = {"model": one(model[0])} if len(model) == 1 else {}
    for role in ("benchmark", "metric", "item", "subject", "run", "checkpoint", *SETTINGS):
        names = by_word.get(role, [])
        names = sorted(names, key=lambda name: columns[name].head == "filter")
        if role == "metric" and len(names) == 2 and columns[names[1]].head == "filter":
            told["metric"] = [Given(tuple(names))]  # of lm-eval's printed tables
            continue
        if len(names) > 1 and all(
            columns.determines([names[0]], n) and columns.determines([n], names[0]) for n in names
        ):
            names = sorted(names, key=lambda name: not name.endswith("name"))[:1]
        if len(names) > 1 or (role == "item" and names and columns[names[0]].head in _WEAK and "answer" not in by_word):
            return None
        told |= {role: one(names[0])} if names else {}
    scores = _sure_scores(columns, by_word, told) if "model" in told else None
    if scores is None:
        return None
    told |= scores
    unnamed = columns[model[0]].word is None and columns[model[0]].like["model"] < 0.5
    if unnamed and all(columns.is_metric(name) for name in needed({"score": told.get("score", [])})):
        return None  # of what is measured only by accuracy, rows may be subjects as well as models
    named = {*needed(told), *by_word.get("metric", [])}
    if any(str(given.names[0]) in named for given in ignored_rows(columns)):
        return None  # rows of averages
    return told if _explained(columns, told) else None


_WEAK = ("id", "idx", "index", "no", "example")  # may number anything


def _by_word(columns: Columns) -> dict[str, list[str]]:
    """The columns whose headers say a role; a subject is one of answers to items of a benchmark, else a benchmark."""
    by_word: dict[str, list[str]] = {}
    for c in columns.values():
        if c.word and c.distinct:
            by_word.setdefault(c.word, []).append(c.name)
    if "subject" in by_word and ("benchmark" not in by_word or "item" not in by_word):
        by_word["benchmark"] = by_word.get("benchmark", []) + by_word.pop("subject")
    return by_word


def _sure_scores(columns: Columns, by_word: Mapping[str, list[str]], told: Told) -> Told | None:
    """The scores of a reading, with numbers of items and errors; None where they are not sure."""
    used = set(needed(told))
    numeric = [c for c in columns.values() if c.numeric and c.name not in used]
    answers = [name for name in by_word.get("answer", []) if columns[name].boolean]
    if "item" in told and "benchmark" in told and len(answers) == 1:
        return {"answer": one(answers[0])}
    names = [c.name for c in numeric if c.evidence == 2]
    proved = averages(columns, names)
    names = [
        name
        for name in names
        if name not in proved and name not in columns.spreads and not named_average(columns, name, names)
    ]
    if not names:
        return None
    found: Told = {"score": [Given((name,)) for name in names]}
    heads_are_metrics = all(map(columns.is_metric, names))
    if "benchmark" not in told:
        found["benchmark"] = [Given((None,))]
    elif len(names) > 1:
        if not heads_are_metrics or "metric" in told:
            return None
        found["metric"] = [Given((None,))]
    counts = by_word.get("n", [])
    if len(counts) > 1:
        return None
    found |= {"n": one(counts[0])} if counts and "item" not in told else {}
    errors = [c for c in numeric if c.error_of]
    return found | ({"error": [Given((c.name,), c.error_of) for c in errors]} if errors else {})


def _explained(columns: Columns, told: Told) -> bool:
    """Whether every varying column is used, or a fact of a model, a benchmark or an item, or no score for sure."""
    used = set(needed(told))
    scores = needed({"score": told.get("score", [])})
    keys = [names for role in ("model", "benchmark", "item") if (names := needed({role: told.get(role, [])}))]
    left = [c for c in columns.values() if c.name not in used and c.distinct > 1]
    numbers = [
        c
        for c in left
        if c.numeric and not c.never and not c.places and c.word in {None, "score"} and c.name not in columns.spreads
    ]
    proved = averages(columns, [*scores, *(c.name for c in numbers)])
    if any(c.name not in proved and not named_average(columns, c.name, [*scores, c.name]) for c in numbers):
        return False
    texts = [c for c in left if not c.numeric and not c.says and c.word != "about" and c.length < 80]
    return all(any(columns.determines(names, c.name) for names in keys) for c in texts)
