"""Files that no harness wrote: one frame, a reading that is sure, told or asked for, and the scores that it gives."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import as_written
from lm_validity.tables.asking import Reader, meaning, size
from lm_validity.tables.formats.score_files import Found, ImportOptions, ScoreFile
from lm_validity.tables.frame import Source, frame
from lm_validity.tables.roles import SETTINGS, Columns
from lm_validity.tables.scales import Scaled
from lm_validity.tables.schema import Claim, Facts, Item
from lm_validity.tables.told import Long, needed, show
from lm_validity.words import count

READING = "reading.yaml"
TABLE = "table"  # the `source` of scores that no harness wrote
_KEYS = ("columns", "units", "directions")  # that --reading takes back; an import writes more
_STEP = re.compile(r"(?:step|ckpt|checkpoint|iter(?:ation)?)[-_ ]*(\d+)", re.I)
_WHOLE = ("num_fewshot", "iteration", "seed")
_ABOUT = {"parameters_b": "parameters_b", "params_b": "parameters_b", "size_b": "parameters_b", "family": "family"}


class TablesRead(NamedTuple):
    """The scores of tables by file, the files that gave none with the reason, what a reader is told in one line, and
    the reading that gave it."""

    files: list[ScoreFile]
    skipped: dict[Path, str]
    line: str
    reading: str


@dataclass(frozen=True)
class Said:
    """What a reader says of tables: --columns, or a file of it with units and directions."""

    columns: str | None
    units: Mapping[str, str]
    directions: Mapping[str, str]


def read_tables(
    files: Sequence[Found],
    options: ImportOptions,
    paths: Iterable[str | Path],
    origin: Callable[[Path], Path] = Path,
    *,
    beside: bool = False,
) -> TablesRead:
    """The scores of tables. `paths`: as they were given, for the command that is printed; `origin`: what a path was
    called before it was unpacked. Of files `beside` those of a harness what is not sure is left out. Raises Question
    where headers do not say what columns mean, and InputError for what is told and not there."""
    said = _said(options)
    places = [*map(Path, paths)]
    named = " ".join(quote(str(path)) for path in places)
    sources = [
        Source(file.path, parts, file.named)
        for file, parts in zip(files, _parts(files, places, options, origin), strict=True)
    ]
    command = options.command or f"lm-validity import {named}"
    reader = Reader(frame(sources), named, command, said.units, said.directions)
    only_sure = beside and said.columns is None and not any(file.named for file in files)
    longs = reader.certain() if only_sure else reader.read(said.columns)
    if not longs:
        reasons = {file.path: "nothing says for sure what its columns are" for file in files}
        return TablesRead([], reasons | reader.frame.skipped, "", "")
    finals = [reader.scale(long) for long in longs]
    read = [file for long, final in zip(longs, finals, strict=True) for file in _score_files(reader, long, final)]
    left = reader.left_out(longs)
    taken = f"{len(sources) - len(left)} of {count(len(sources), 'file')}"
    line = f"{taken}: {size(longs, finals)}, {meaning(finals)}.{reader.skipped(longs)}"
    notes = [note for long, final in zip(longs, finals, strict=True) for note in (*long.notes, *final.notes)]
    read[:1] = [replace(file, notes=(*file.notes, *notes)) for file in read[:1]]
    return TablesRead(read, left, line, _record(longs, finals, line, notes))


def _said(options: ImportOptions) -> Said:
    """What --columns or --reading says. Raises InputError for a file that is no reading."""
    if options.reading is None:
        return Said(options.columns, {}, {})
    hint = f"a {READING} as an import writes it, with columns, units and directions."
    try:
        document = yaml.safe_load(options.reading.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{options.reading}: cannot be read.", hint) from error
    if not isinstance(document, dict) or not isinstance(document.get("columns"), str):
        raise InputError(f"{options.reading}: says no columns.", hint)
    unknown = next((str(key) for key in document if key not in (*_KEYS, *_WRITTEN)), None)
    if unknown is not None:
        raise InputError(f"{options.reading}: {unknown!r} is no part of a reading.", did_you_mean(unknown, _KEYS, hint))
    parts = {name: document.get(name) or {} for name in _KEYS[1:]}
    if not all(isinstance(part, dict) for part in parts.values()):
        raise InputError(f"{options.reading}: units and directions are by benchmark.", hint)
    if options.columns is not None and options.columns != document["columns"]:
        raise InputError("--columns and --reading: they say different columns.", "give one of the two.")
    return Said(document["columns"], *({str(k): str(v) for k, v in parts[name].items()} for name in _KEYS[1:]))


_WRITTEN = ("read", "left out")


def _record(longs: Sequence[Long], finals: Sequence[Scaled], line: str, notes: Iterable[str]) -> str:
    """The reading as text, which --reading takes."""
    text = "; ".join(dict.fromkeys(show(long.told) for long in longs))
    units = {name: unit for final in finals for name, unit in final.units.items()}
    directions = {name: direction for final in finals for name, direction in final.directions.items()}
    record = {"columns": text, "units": units, "directions": directions, "read": line, "left out": [*notes]}
    return yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=1000)


# ----------------------------------------------------------------------------------------------------------------------
# Paths.


def _parts(
    files: Sequence[Found], places: Sequence[Path], options: ImportOptions, origin: Callable[[Path], Path]
) -> list[tuple[str, ...]]:
    """The parts of each file's path below what was given, with the names that the reader gives to them."""
    originals = [as_written(origin(file.path)) for file in files]
    given = [as_written(path) for path in places]
    folders = {path if path.is_dir() or path not in originals else path.parent for path in given}
    root = Path(os.path.commonpath([*folders, *(path.parent for path in originals)]))
    found = []
    for path in originals:
        parts = list(path.relative_to(root).parts)
        for named, name in options.names.items():
            if named == path or named in path.parents:
                depth = (
                    len(named.relative_to(root).parts) if named.is_relative_to(root) and named != root else len(parts)
                )
                parts[depth - 1] = name + (path.suffix if named == path else "")
        last = parts[-1].removesuffix(".gz")
        parts[-1] = last.removesuffix(Path(last).suffix) or last
        found.append(tuple(parts))
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Scores and items.


def _score_files(reader: Reader, long: Long, final: Scaled) -> list[ScoreFile]:
    """The scores by file, and where they are means of answers to items, these."""
    columns = reader.of(long.table)
    facts = _facts(columns, long)
    scores = final.scores.assign(file=long.table.files[final.scores["row"].to_numpy()])
    rows = long.rows.assign(
        correct=long.rows["value"] * final.factors.to_numpy(), file=long.table.files[long.rows["row"].to_numpy()]
    )
    runs = _runs(scores["run"]) if "run" in scores else {}
    found = []
    for file, part in scores.groupby("file", sort=True):
        items = None
        if "item" in rows and rows["correct"].notna().any():
            items = _ItemRows(rows[(rows["file"] == file) & rows["correct"].notna()], runs)
        path = reader.frame.sources[int(file)].path
        found.append(ScoreFile(path, [_claim(row, runs) for row in part.to_dict("records")], facts=facts, items=items))
    with_scores = {file.path for file in found}
    for number in sorted(set(rows["file"]) if "item" in rows else ()):
        path = reader.frame.sources[int(number)].path
        if path not in with_scores:  # its answers are part of a mean that another file has
            found.append(ScoreFile(path, [], items=_ItemRows(rows[rows["file"] == number], runs)))
    return found


class _ItemRows:
    """Answers to items as the records of a table."""

    def __init__(self, rows: pd.DataFrame, runs: Mapping[str, int]) -> None:
        self.rows, self.runs = rows, runs

    def __call__(self) -> Iterator[Item]:
        """Each answer in turn."""
        for row in self.rows.to_dict("records"):
            item: Any = {**_place(row, self.runs), "doc_id": row["item"], "correct": float(row["correct"])}
            yield item | {"subject": row["subject"]} if row.get("subject") else item


def _claim(row: Mapping[Any, Any], runs: Mapping[str, int]) -> Claim:
    """A score with what is told of it."""
    claim: Any = {**_place(row, runs), "value": float(row["value"])}
    if np.isfinite(row["error"]):
        claim["stderr"] = float(row["error"])
    if np.isfinite(row["n"]) and row["n"] >= 1:
        claim["n_items"] = int(row["n"])
    if pd.notna(row["higher_is_better"]):
        claim["higher_is_better"] = bool(row["higher_is_better"])
    if row.get("metric"):
        claim["metric"] = metric_key(row["metric"])
    if row.get("prepared_on"):
        claim["prepared_on"] = row["prepared_on"]
    result: Claim = claim
    return result


def _place(row: Mapping[Any, Any], runs: Mapping[str, int]) -> dict[str, Any]:
    """What a score or an answer is of: model, checkpoint, benchmark, run and settings."""
    place: dict[str, Any] = {"model": row["model"], "benchmark": row["benchmark"]}
    for name in SETTINGS:
        if name in ("prepared_on", "higher_is_better") or not (text := row.get(name)):
            continue
        place[name] = int(float(text)) if name in _WHOLE else float(text) if name == "tokens_b" else text
    if row.get("checkpoint"):
        place |= checkpoint(row["checkpoint"])
    elif "iteration" in place:
        place["checkpoint"] = f"step{place['iteration']}"
    elif "tokens_b" in place:
        place["checkpoint"] = f"tokens{place['tokens_b']:g}B"
    if row.get("run"):
        place["run"] = runs[row["run"]]
    return place


def checkpoint(text: str) -> dict[str, Any]:
    """The name of a checkpoint, and its iteration where the name says it: of `1000` step1000."""
    if re.fullmatch(r"\d+(\.0+)?", text):
        step = int(float(text))
        return {"checkpoint": f"step{step}", "iteration": step}
    steps = _STEP.findall(text)
    return {"checkpoint": text} | ({"iteration": int(steps[-1])} if steps else {})


def _runs(names: pd.Series) -> dict[str, int]:
    """The number of each run: itself where all are whole numbers, else its place in the order of names."""
    texts = sorted({text for text in names if text})
    if all(text.isdigit() for text in texts):
        return {text: int(text) for text in texts}
    return {text: place for place, text in enumerate(texts)}


def _facts(columns: Columns, long: Long) -> dict[str, Facts]:
    """Columns of the models sheet that the table has, by model."""
    facts: dict[str, Facts] = {}
    names = needed({"model": long.told["model"]})
    firsts = long.rows.drop_duplicates("model")
    for column in columns.values():
        sheet = _ABOUT.get(column.head)
        if sheet is None or not names or not columns.determines(names, column.name):
            continue
        for model, row in zip(firsts["model"], firsts["row"], strict=True):
            value = column.numbers[row] if sheet == "parameters_b" else column.clean[row]
            if value and value == value:
                facts.setdefault(model, {})[sheet] = float(value) if sheet == "parameters_b" else value
    return facts
