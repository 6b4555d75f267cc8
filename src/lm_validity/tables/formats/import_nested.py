"""JSON whose numbers stand below names of several kinds (models, benchmarks, metrics) -> the rows of a table.

An object with numbers is a row. The names that lead to it are columns called `level 1`, `level 2`, ..; the texts of the
objects above it are columns of their own names. Which level is what the reader says, where one of them is left over.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from lm_validity.files import Document
from lm_validity.tables.cell_text import (
    is_missing,
    is_no_score,
    names_average,
    names_cost,
    names_count,
    plain,
    read_cell,
)
from lm_validity.tables.columns import ITEM, RIGHT, ROLES, fact_column, names_metric
from lm_validity.tables.decisions import EVERY, LEFT_OUT, UNSURE, Decision, in_reading, reading_row
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.import_csv import read_records
from lm_validity.tables.formats.import_json import holding_scores, lines_of_json
from lm_validity.tables.formats.model_names import pattern_of
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile
from lm_validity.tables.task_facts import names_task
from lm_validity.words import listing

_LEVEL = "level {}"
LEVEL = re.compile(r"level \d+")
_MODELS, _BENCHMARKS, _METRICS = ({role, *ROLES[role]} for role in ("model", "benchmark", "metric"))
_ROLES = frozenset((*ROLES, *ITEM, *chain(*ROLES.values())))
_SEVERAL = 2
_BESIDE = r"_|(config|metadata|settings|usage|timing)$"  # objects that hold no scores
_MANY = 20  # names of a level, which are rather those of items
_NAMES = ("name", "id")  # of what a list or an object above is called after: `models: [{name: ..}]`
_SIZE = re.compile(r"(?<![a-z\d])\d+(\.\d+)?[bm](?![a-z])|^[\w.-]+/[\w.-]+$|gpt|llama|claude|qwen|gemini|mistral", re.I)


class Rows(NamedTuple):
    """The rows of nested objects, their columns of levels with the names in each, and what stands beside the scores."""

    records: list[Document]
    levels: dict[str, list[str]]
    unread: Counter[str]


def unfold(document: object, path: Path) -> Rows:
    """The rows of a document; columns with one text for all are left out, but a model's, benchmark's or metric's. A
    level whose only name stands in the file's name too is the model."""
    unread = Counter[str]()
    records = [*_below(document, {}, 1, "", unread)]
    names = dict.fromkeys(name for record in records for name in record)
    texts = {name: {str(record.get(name, "")) for record in records} for name in names}
    constant = {name for name in names if len(texts[name]) == 1 and plain(name) not in _MODELS | _BENCHMARKS | _METRICS}
    of_file = [name for name in constant if name.startswith("level ") and re.search(r"\d", records[0][name])]
    of_file = [name for name in of_file if records[0][name] in path.stem]
    if of_file and not _MODELS & {*map(plain, names)}:
        records = [{"model": record[of_file[0]]} | record for record in records]
    constant = {
        name for name in constant if name.startswith("level ") or all(_is_text(record.get(name)) for record in records)
    }
    levels = {
        name: list(dict.fromkeys(str(record[name]) for record in records if name in record))
        for name in sorted(names)
        if name.startswith("level ") and name not in constant
    }
    rows_told = [{name: value for name, value in record.items() if name not in constant} for record in records]
    return Rows(rows_told, levels, unread)


def _below(value: object, outer: Document, depth: int, key: str, unread: Counter[str]) -> Iterator[Document]:
    """The rows of a value below `key`, with the columns of what stands above it."""
    if isinstance(value, list):
        for entry in value:
            yield from _below(entry, outer, depth, key, unread) if isinstance(entry, dict) else ()
    if not isinstance(value, dict):
        return
    own_values = {str(name): entry for name, entry in value.items() if not isinstance(entry, dict | list)}
    inner = {str(name): entry for name, entry in value.items() if isinstance(entry, dict | list)}
    scored = _with_scores(inner, unread)
    fields = outer | _named({name: entry for name, entry in own_values.items() if _is_text(entry)}, key, outer)
    for name, entry in inner.items():
        if name not in scored and isinstance(entry, dict):
            fields |= _named({part: text for part, text in entry.items() if _is_text(text)}, name, fields)
    numbers = {name: entry for name, entry in own_values.items() if not _is_text(entry) and entry is not None}
    if not scored:
        yield from [fields | _named(numbers, key, fields)] if numbers else []
        return
    fields |= {name: number for name, number in numbers.items() if fact_column(name) or plain(name) in _ROLES}
    unread.update(numbers.keys() - fields.keys())
    parts = _parts({name: inner[name] for name in scored}) if len(fields) > len(outer) else {}
    if parts:
        yield fields | parts
        return
    for name in scored:
        yield from _below(inner[name], fields | {_LEVEL.format(depth): name}, depth + 1, name, unread)


def _with_scores(inner: Mapping[str, object], unread: Counter[str]) -> list[str]:
    """The names of the objects and lists that hold numbers; of lists and what stands beside them that with most."""
    numbers = {name: _numbers_in(entry) for name, entry in inner.items() if not re.match(_BESIDE, name)}
    with_numbers = [name for name, number in numbers.items() if number]
    scored = holding_scores(with_numbers)
    unread.update(name for name in with_numbers if name not in scored)
    if len(scored) < _SEVERAL or _are_alike([inner[name] for name in scored]):
        return scored
    largest = max(scored, key=lambda name: numbers[name])
    unread.update(name for name in scored if name != largest)
    return [largest]


def _are_alike(entries: list[object]) -> bool:
    """Whether entries are objects, or lists whose first objects have a name in common."""
    heads = [entry[0] for entry in entries if isinstance(entry, list)]
    return not heads or (len(heads) == len(entries) and bool(set(heads[0]).intersection(*heads[1:])))


def _parts(entries: Mapping[str, object]) -> Document:
    """The values of several objects that have no name in common, as parts of one record; {} for what is none."""
    objects = {name: entry for name, entry in entries.items() if isinstance(entry, dict)}
    values = [value for entry in objects.values() for value in entry.values()]
    once = Counter(part for entry in objects.values() for part in entry).values()
    if len(objects) < max(_SEVERAL, len(entries)) or max(once) > 1 or any(isinstance(v, dict | list) for v in values):
        return {}
    return {f"{name}.{part}": value for name, entry in objects.items() for part, value in entry.items()}


def _named(entries: Document, key: str, outer: Document) -> Document:
    """Entries as columns: a name is called after what it is of, where that is a model or a benchmark (`models: [{name:
    ..}]`); a name that stands above already gets the one of its object in front."""
    singular = re.sub(r"s$", "", plain(key))
    role = next((role for role, words in (("model", _MODELS), ("benchmark", _BENCHMARKS)) if singular in words), None)
    called = next((name for name in _NAMES if name in entries), None) if role and not {*entries} & {role} else None
    return {
        str(role) if name == called else f"{key}.{name}" if name in outer else name: entry
        for name, entry in entries.items()
    }


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not is_missing(value) and read_cell(value) is None


def _numbers_in(value: object) -> int:
    """How many numbers, as such or as texts, a value holds below its names."""
    if isinstance(value, dict):
        return sum(map(_numbers_in, value.values()))
    if isinstance(value, list):
        return sum(_numbers_in(entry) for entry in value if isinstance(entry, dict))
    return int(read_cell(value) is not None if isinstance(value, str) else checked.finite(value) is not None)


def _columns(rows: Rows) -> set[str]:
    return {plain(name) for record in rows.records for name in record}


def _left_over(rows: Rows, options: ImportOptions | None, *, has_model: bool) -> tuple[str, str] | None:
    """The only level of which nobody says what it is, and what is missing: the benchmark or the model."""
    roles_given = [options.corrections.peek("column", level) if options else None for level in rows.levels]
    free = [level for level, role in zip(rows.levels, roles_given, strict=True) if role is None]
    if free and len(rows.levels[free[0]]) >= _MANY and not any(map(names_task, rows.levels[free[0]])):
        return None  # rather items
    names = _columns(rows)
    missing = [
        role
        for role, words in (("model", _MODELS), ("benchmark", _BENCHMARKS))
        if not (words & names or role in roles_given or (role == "model" and has_model))
        if not (role == "benchmark" and any(map(names_task, _numbers(rows))))  # in columns
    ]
    return (free[0], missing[0]) if len(free) == 1 and len(missing) == 1 else None


def way(document: object, path: Path, *, named: bool, has_model: bool) -> str | None:
    """How objects within objects are read: what the reader types; None for what holds no rows of numbers."""
    rows = unfold(document, path)
    if not rows.records or not any(_numbers_in(record) for record in rows.records):
        return None
    names = _columns(rows)
    has_model |= bool(_MODELS & names)
    of_models = any(2 * sum(map(bool, map(_SIZE.search, texts))) >= len(texts) for texts in rows.levels.values())
    by_path = not (has_model or named or of_models)
    columns = rows.levels or ({} if has_model or by_path else _texts(rows))
    over = _left_over(rows, None, has_model=has_model or by_path)
    roles = _roles({} if over else columns, has_model=has_model or by_path, has_benchmark=bool(_BENCHMARKS & names))
    read = f"--format {FORMAT.name}" + (f" --path '{pattern_of(path)}'" if by_path else "")
    if not (by_path or has_model or "model" in roles.values() or (over and over[1] == "model")):
        read += f" --model '{path}=NAME'"
    if not roles:
        return f"objects with numbers: {read}"
    if "item" in roles.values() and (right := _right(rows)):
        roles[right], columns[right] = "score", ["0", "1"]
    elif "metric" in roles.values() and (scores := [name for name in _numbers(rows) if not is_no_score(name)]):
        roles[scores[0]] = "value"
    elif means := [name for name in dict.fromkeys(chain(*rows.records)) if names_average(name)]:
        roles |= {means[0]: "score", EVERY: "left out"}
    _, *further = [reading_row("column", level, role) for level, role in roles.items()]
    examples = "; ".join(f"{level}: {listing(columns[level], 2)}" for level in roles if level in columns)
    lines = in_reading("column", *next(iter(roles.items()))) + "".join(f" and {row}" for row in further)
    return f"say what the names above its numbers are ({examples}): {read} {lines}, or as they are"


def _right(rows: Rows) -> str | None:
    """The column that says whether an answer is right: by its name, else the only one of numbers."""
    numbers = _numbers(rows)
    by_name = [name for name in dict.fromkeys(chain(*rows.records)) if plain(name.rpartition(".")[2]) in RIGHT]
    return next(iter(by_name), numbers[0] if len(numbers) == 1 else None)


def _numbers(rows: Rows) -> list[str]:
    """The columns without texts, but for numbers of things, times and costs."""
    names = [name for name in dict.fromkeys(chain(*rows.records)) if not (names_cost(name) or names_count(name))]
    return [name for name in names if not any(_is_text(record.get(name)) for record in rows.records)]


def _texts(rows: Rows) -> dict[str, list[str]]:
    """The columns of names that are no role's, and their texts."""
    names = dict.fromkeys(name for record in rows.records for name in record if plain(name).split("_")[-1] in _NAMES)
    return {name: list(dict.fromkeys(str(record.get(name, "")) for record in rows.records)) for name in names}


def _roles(columns: dict[str, list[str]], *, has_model: bool, has_benchmark: bool) -> dict[str, str]:
    """What columns of names may be, for a reader to correct."""
    alike = {name: sum(map(bool, map(_SIZE.search, texts))) / len(texts) for name, texts in columns.items()}
    free = [name for name, texts in columns.items() if not any(map(names_metric, texts))]
    free = [name for name in free if len(free) > 1 or 2 * alike[name] >= 1]
    of_models = max(free, key=lambda name: (alike[name], name), default=None)
    roles = dict[str, str]()
    for name, texts in columns.items():
        if name == of_models and not has_model:
            roles[name] = "model"
        elif any(map(names_metric, texts)):
            roles[name] = "metric"
        elif len(texts) >= _MANY and not alike[name]:
            roles[name] = "item"
        else:
            roles[name] = "benchmark name" if has_benchmark or "benchmark" in roles.values() else "benchmark"
    return roles


def is_one_nameless(document: object, path: Path) -> bool:
    """Whether a document is one row of numbers that names no model."""
    rows = unfold(document, path)
    return len(rows.records) == 1 and not _MODELS & _columns(rows)


def _recognises(opened: Opened) -> bool:
    """Only what names its models, its benchmarks and a metric or a score, where one level may be left over. A `value`
    is a score beside the name of its metric: of a task and a model alone it may be seconds."""
    document = opened.document
    if opened.path.suffix == ".jsonl":
        try:
            document = [json.loads(opened.head.split(b"\n", 1)[0])]
        except ValueError:
            return False
    elif opened.path.suffix != ".json":
        return False
    rows = unfold(document, opened.path)
    names, has_model = _columns(rows), opened.model is not None
    over = _left_over(rows, None, has_model=has_model)
    if not rows.records or len(rows.levels) > (over is not None):
        return False
    values = {*ROLES["value"]} if names.isdisjoint(_METRICS) else {"value", *ROLES["value"]}
    scored = any(map(names_metric, names)) or not names.isdisjoint(values)
    of_model = has_model or bool(_MODELS & names)
    is_known = over is None or of_model or any(map(names_task, rows.levels[over[0]]))
    return bool(scored and is_known and (of_model or over) and (_BENCHMARKS & names or over))


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    path = opened.path
    rows = unfold(lines_of_json(path) if path.suffix == ".jsonl" else opened.document, path)
    decisions = [
        Decision("column", name, "left out", "structure", LEFT_OUT, times, "", f"{name!r} stands beside the scores")
        for name, times in rows.unread.items()
    ]
    records = rows.records
    if (over := _left_over(rows, options, has_model=opened.model is not None)) is not None:
        level, role = over
        records = [{(role if name == level else name): value for name, value in record.items()} for record in records]
        text = f"{path.name}: {listing(rows.levels[level], 2)} are read as {role}s"
        decisions.append(Decision("column", level, role, "structure", UNSURE, len(rows.levels[level]), "", text))
    return read_records(path, records, options, opened.model, decisions)


FORMAT = Format("nested", (".json", ".jsonl", ".yaml", ".yml"), _recognises, _read)
