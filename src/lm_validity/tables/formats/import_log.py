"""What an import read, what it left out and why: collected on the way, printed at the end, kept beside the tables."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import write_json
from lm_validity.tables.schema import SCORES, write_table
from lm_validity.words import count

Thing = TypeVar("Thing")
_SHOWN = 10  # lines of one kind that are printed; all are in import.json


@dataclass
class ImportLog:
    """What became of the files of an import. With `strict` what would be left out raises InputError instead."""

    strict: bool = False
    files: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)  # file and reason
    repeated: list[str] = field(default_factory=list)  # scores that a newer or larger file has too
    notes: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # files of other kinds in the folders, by suffix
    items: int = 0
    paths: dict[str, set[str]] = field(default_factory=dict)  # of models that are named by them, by model
    formats: Counter[str] = field(default_factory=Counter)  # files that were read, by format
    groups: dict[str, str] = field(default_factory=dict)  # of benchmarks that are groups, one of their tasks
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)  # what files say for the models sheet, by model

    def skip(self, path: Path, reason: str, hint: str, *, named: bool = False) -> None:
        """Leave a file out; one that was named itself, or any with `strict`, raises InputError."""
        if named or self.strict:
            raise InputError(reason, hint)
        self.skipped.append((str(path), reason.removeprefix(f"{path}: ")))

    def repeat(self, sentence: str) -> None:
        """Leave scores out that another file has too; with `strict` that raises InputError."""
        if self.strict:
            raise InputError(sentence, "remove one of the files, or leave out --strict.")
        self.repeated.append(sentence)

    def lines(self, scores: pd.DataFrame) -> list[str]:
        """The summary of an import as lines for a terminal."""
        models, points = scores["model"].nunique(), len(scores.drop_duplicates(["model", "checkpoint"]))
        checkpoints = "" if points == models else f"{points} checkpoints of them, "
        found = [
            f"{count(len(scores), 'score')} from {count(self.files, 'file')}: "
            f"{count(models, 'model')}, {checkpoints}{count(scores['benchmark'].nunique(), 'benchmark')}."
        ]
        if len(self.formats) > 1 or set(self.formats) - {"lm-eval"}:
            kinds = ", ".join(f"{count(number, 'file')} of {name}" for name, number in sorted(self.formats.items()))
            found.append(f"Read: {kinds}.")
        found.append(f"Solved examples before each question (few-shot): {_fewshot(scores)}.")
        if self.items:
            found.append(f"{self.items} items.")
        found += self.notes
        found += _block("Left out, since another file has the score too", self.repeated)
        found += _block("Skipped", [f"{path}: {reason}" for path, reason in self.skipped])
        if self.others:
            kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(self.others.items()))
            found.append(f"Not looked at, by the ends of their names: {kinds}.")
        return found

    def write(self, scores: pd.DataFrame, output: Path) -> None:
        """Write the scores as scores.parquet and all of this as import.json under `output`."""
        write_table(scores, SCORES, output / "scores.parquet")
        write_json(
            output / "import.json",
            {
                "files": self.files,
                "formats": dict(sorted(self.formats.items())),
                "scores": len(scores),
                "items": self.items,
                "models": sorted(scores["model"].unique()),
                "benchmarks": sorted(scores["benchmark"].unique()),
                "checkpoints": {
                    model: sorted(rows["checkpoint"].dropna().unique()) for model, rows in scores.groupby("model")
                },
                "num_fewshot": sorted(int(count) for count in scores["num_fewshot"].dropna().unique()),
                "model_paths": {model: sorted(paths) for model, paths in sorted(self.paths.items())},
                "facts": self.facts,
                "notes": self.notes,
                "repeated": self.repeated,
                "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
                "other_files": dict(sorted(self.others.items())),
            },
        )


class Ticker:
    """Lines to stderr on a long import: one every few seconds."""

    def __init__(self, every: float = 5.0):
        self.every, self.last = every, time.monotonic()

    def say(self, line: str) -> None:
        """Print the line if the last one is long enough ago."""
        if time.monotonic() - self.last >= self.every:
            self.last = time.monotonic()
            print(line, file=sys.stderr, flush=True)


def with_progress(things: Sequence[Thing], what: str) -> Iterator[Thing]:
    """The things one after the other; on a long import stderr says how many are done."""
    ticker = Ticker()
    for done, thing in enumerate(things):
        ticker.say(f"{done} of {len(things)} {what}")
        yield thing


def _fewshot(scores: pd.DataFrame) -> str:
    counts = scores["num_fewshot"].astype("Int64").value_counts(dropna=False).sort_index()
    parts = [f"{'unknown' if pd.isna(shots) else shots} for {count(times, 'score')}" for shots, times in counts.items()]
    return ", ".join(parts)


def _block(title: str, lines: Iterable[str]) -> list[str]:
    lines = list(lines)
    if not lines:
        return []
    shown = [f"  {line}" for line in lines[:_SHOWN]]
    shown += [f"  and {len(lines) - _SHOWN} more (all in import.json)"] if len(lines) > _SHOWN else []
    return [f"{title} ({len(lines)}):", *shown]
