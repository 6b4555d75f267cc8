"""What an import decided about its files: kept, shown, written to reading.tsv, and taken back corrected."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lm_validity.config.rows import read_text_rows
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import write_text

CONVERTED, AVERAGED, LEFT_OUT, CONTRADICTED, UNSURE, READ = KINDS = (
    "converted", "averaged", "left out", "contradicted", "unsure", "read",
)  # fmt: skip
WHATS = (
    "unit", "errors", "direction", "metric", "average", "model", "benchmark", "column", "cell", "items",
    "tokens_per_step",
)  # fmt: skip
EVERY = "*"  # the place of a row about all that no row of its own is about
OF_TASKS = ("tasks", "split")  # the tasks of a group in place of its own score
FROM_ITEMS = "from items"  # errors of accuracies without one, from these and numbers of items
Corrections = Mapping[tuple[str, str], str]  # what a reading decides, by what and where
_COLUMNS = ("what", "where", "decided", "source", "alternatives", "values", "kind", "text")
_NO_CORRECTION = ("runs", "by suite", "pooled")  # what a reading says that is no name, unit or kind
_LAYOUT = f"a reading.tsv as an import writes it: columns {', '.join(_COLUMNS[:3])}."


class Decision(NamedTuple):
    """One decision. `kind`: one of KINDS; `values`: how many it concerns; `text`: how it is said to a reader."""

    what: str
    where: str
    decided: str
    source: str
    kind: str = READ
    values: int = 1
    alternatives: str = ""
    text: str = ""


@dataclass
class Reading:
    """The decisions of an import. `given`: the reader's own, which count before them. `renamed`: by column (`model`,
    `benchmark`) the names that scores got, which their items get too."""

    given: Corrections = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    renamed: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep the rows about everything, so that reading.tsv has all that was said."""
        general = [(what, decided) for (what, where), decided in self.given.items() if where == EVERY]
        self.decisions += [Decision(what, EVERY, decided, "reading") for what, decided in general]

    def add(
        self, what: str, where: str, decided: str, source: str, kind: str = READ, values: int = 1,
        alternatives: str = "", text: str = "",
    ) -> None:  # fmt: skip
        """Keep a decision about how the files were read, for the terminal and reading.tsv."""
        self.decisions.append(Decision(what, where, decided, source, kind, values, alternatives, text))

    def said(self, what: str, where: str) -> str | None:
        """What the reader decided, kept as a decision of the source `reading`; else what is said of everything."""
        decided = self.given.get((what, where))
        if decided is not None:
            self.add(what, where, decided, "reading")
        return self.given.get((what, EVERY)) if decided is None else decided

    def lines(self) -> list[str]:
        """A line for each kind: how many values or names, and an example."""
        lines = []
        for kind in KINDS[:-1]:
            own = [each for each in self.decisions if each.kind == kind]
            own.sort(key=lambda each: kind != UNSURE or each.what != "unit")  # a unit changes most
            if own:
                first = own[0].text or f"{own[0].where}: {own[0].decided}"
                rest = "" if len(own) == 1 else f"; {len(own) - 1} more in reading.tsv"
                lines.append(f"{kind.capitalize()} ({len(own)}): {first}{rest}.")
        return lines

    def frame(self) -> pd.DataFrame:
        """A row a decision, in the columns of reading.tsv."""
        return pd.DataFrame([each._asdict() for each in self.decisions], columns=_COLUMNS)

    def write(self, path: Path) -> None:
        """Write the decisions to reading.tsv, a row each."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _one_line(value) for name, value in each._asdict().items()} for each in self.decisions)
        write_text(path, text.getvalue())


def in_reading(what: str, where: str, decided: str) -> str:
    """How a hint says that a row of a reading is to be given."""
    row = ",".join(f'"{text}"' if "," in text else text for text in (what, where, decided))
    return f"--reading FILE with the lines what,where,decided and {row}"


def _one_line(value: object) -> object:
    return " ".join(value.split()) if isinstance(value, str) else value


def read_corrections(path: Path) -> Corrections:
    """What a reading says.

    Raises InputError for a file without the columns, and for a kind of decision that is not known.
    """
    table = read_text_rows(path, _LAYOUT)
    absent = [name for name in _COLUMNS[:3] if name not in table.header]
    if absent:
        raise InputError(f"{path}: no column {absent[0]!r}.", _LAYOUT)
    given = {}
    for line, values in zip(table.lines, table.rows, strict=True):
        row = dict(zip(table.header, values, strict=True))
        if row["what"] not in WHATS:
            hint = did_you_mean(row["what"], WHATS, f"one of {', '.join(WHATS)}.")
            raise InputError(f"{path}, row {line}, column 'what': {row['what']!r} is no decision.", hint)
        if row["decided"] not in _NO_CORRECTION:
            given[row["what"], row["where"]] = row["decided"]
    return given
