"""How a spec reads a file: what is said of the whole file, where its scores are, and what their columns can hold.

A path is keys joined by points, from the file's root, or after `NAME.json:` from that of a file beside it; "" is the
root, `%` the path of the file. Of alternatives (`a|b`) the first that leads to something counts. A source is a path, or
paths and the function that makes a value of what they lead to.
"""

import gzip
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa

from lm_validity.config.rows import read_text, read_text_rows
from lm_validity.errors import InputError, first_line
from lm_validity.files import Document, check_encodable
from lm_validity.tables import schema
from lm_validity.tables.formats.score_files import Opened, ScoreFile, date_in, model_place
from lm_validity.tables.schema import DEFAULTS, ITEMS, SCORES, SETTINGS, SETTINGS_KEY, Claim, Facts, Item
from lm_validity.tables.settings import NEARLY_ALL
from lm_validity.words import count

Source = str | tuple[Any, ...]
Columns = Mapping[str, Source]
_MEND = "mend it, or leave it out where it is unknown."
_NUMBER = re.compile(r"\d|^\s*[+-]?(inf|nan)", re.I)  # a number as a text, which is refused
_LAST_DATE = 253402300799.0  # the end of the year 9999, in seconds since 1970

# ----------------------------------------------------------------------------------------------------------------------
# Values of others' files, checked before they become a column of a table.

_TYPES = {pa.string(): str, pa.bool_(): bool, pa.float64(): float, pa.int64(): int}
_KINDS = {field.name: _TYPES.get(field.type, str) for columns in (ITEMS, SETTINGS, SCORES) for field in columns}
_PROBLEMS = {str: "is no name", bool: "is not a boolean", float: "is not a finite number", int: "is no whole number"}
_MADE = frozenset(SETTINGS.names) - set(SETTINGS_KEY)
_OF_FILE = frozenset(("date", "identity", "limited", "weights", "settings", "notes", "log"))  # fields of ScoreFile


BROKEN_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


def opened(path: Path) -> BinaryIO:
    """The bytes of a file, gzipped or not."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def read_json_file(path: Path) -> Any:
    """The JSON value of others' file. Raises InputError for what no importer could read."""
    try:
        with opened(path) as handle:
            document = json.loads(text := handle.read().decode())
    except (*BROKEN_GZIP, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({first_line(error)}).", _MEND) from error
    if "\\ud" in text.lower():  # perhaps half of a pair of surrogates, which no table can hold
        check_encodable(json.dumps(document, ensure_ascii=False), str(path))
    return document


def json_lines(path: Path) -> list[Any]:
    """The values of a file of JSON lines. Raises InputError, with the line, for what is none."""
    values = []
    for number, line in enumerate(read_text(path, _MEND).split("\n"), 1):
        try:
            values += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error}).", _MEND) from error
    return values


def part(value: object, *names: str) -> Document:
    """An object, or that under `names`, each in the one before; {} where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Document]:
    """A list of objects; [] for anything else."""
    return value if isinstance(value, list) and all(isinstance(entry, dict) for entry in value) else []


def finite(value: object) -> float | None:
    """A finite number as a float; None for anything else: texts, booleans, NaN, numbers that no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def parsed(value: object) -> object:
    """The number of a text; what is no number of a text stays as it is, and what is empty is None."""
    try:
        return float(value) if isinstance(value, str) and value else value or None
    except ValueError:
        return value


def date_of(*values: object) -> float | None:
    """The first date of several values, in seconds since 1970: a number, also as a text, or a text with a date in it;
    None where there is none that a calendar has."""
    for value in values:
        seconds = finite(parsed(value))
        if seconds is None and isinstance(value, str):
            seconds = date_in(value)
        if seconds is not None and 0 <= seconds <= _LAST_DATE:
            return seconds
    return None


# What names a model's weights, or says where and how fast it runs: no settings
_NO_SETTINGS = frozenset(
    ("model_name", "model", "pretrained", "path", "engine", "revision", "subfolder", "step", "peft", "delta",
     "base_model", "delta_weights", "adapter_weights", "generation_parameters", "device", "device_map", "parallelize",
     "model_parallel", "trust_remote_code", "batch_size", "max_batch_size", "cache_dir", "compile", "token",
     "use_fast_tokenizer", "tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization", "offload_folder",
     "max_memory_per_gpu", "max_cpu_memory", "low_cpu_mem_usage", "swap_space", "use_accelerate", "base_url",
     "num_concurrent")
)  # fmt: skip


def as_text(*settings: object) -> str:
    """What changes scores beside weights and task, as one text."""
    pairs = [pair for each in settings for pair in sorted(part(each).items())]
    return ",".join(f"{name}={value}" for name, value in pairs if name not in _NO_SETTINGS and value is not None)


def is_sampled(options: Document) -> bool:
    """Whether answers were drawn at random, by the options of generation as a file has them: numbers or texts."""
    warm = (finite(parsed(options.get("temperature"))) or 0) > 0
    return warm and str(options.get("do_sample", True)).lower() not in ("false", "0", "none")


def fitting(column: str, value: object) -> Any:
    """The value as its column holds it, 9.0 as a whole number too; None where it is of another type."""
    kind = _KINDS.get(column, str)
    if kind in (str, bool):
        return value if isinstance(value, kind) else None
    number = finite(value)
    if number is None or kind is float:
        return number
    return int(number) if number == math.floor(number) else None


def checked(column: str, value: object, where: str) -> Any:
    """The value as its column holds it. Raises InputError, with the place, for what it cannot have, null too."""
    kind, fits = _KINDS.get(column, str), fitting(column, value)
    if fits is None or not schema.may_hold(column, fits):
        problem = "is out of range" if fits is not None and kind is not str else _PROBLEMS[kind]
        hint = "name it: --model 'PATH=NAME'." if column == "model" else _MEND
        raise InputError(f"{where}, {column!r}: {repr(value)[:60]} {problem}.", hint)
    return fits


def _checked_row(columns: Mapping[str, object], where: str) -> Document:
    """Columns of a claim with their values checked, without those that are unknown; null in place of a default stays.
    An error that is no number and 0 items, which some programs write, are unknown."""
    row = Document()
    for name, value in columns.items():
        is_unknown = (name == "stderr" and finite(value) is None) or (name == "n_items" and value == 0)
        if value is not None and not is_unknown:
            row[name] = checked(name, value, where)
        elif value is None and name in DEFAULTS:
            row[name] = None
    return row


# ----------------------------------------------------------------------------------------------------------------------
# Specs.


class Place(NamedTuple):
    """The root and path of a file, and the files beside it that were read."""

    root: Any
    path: Path
    beside: Document

    def beside_it(self, name: str) -> Path | None:
        """The file of that name beside this one; None where there is none."""
        return path if (path := self.path.with_name(name)).is_file() else None

    def find(self, paths: str) -> Any:
        """What the first of the paths leads to that leads to something; None where none does."""
        if paths == "%":
            return self.path
        for path in paths.split("|"):
            name, colon, way = path.rpartition(":")
            if colon and name not in self.beside:
                file = self.beside_it(name)
                self.beside[name] = None if file is None else read_json_file(file)
            found = self.beside[name] if colon else self.root
            for key in filter(None, way.split(".")):
                found = found.get(key) if isinstance(found, dict) else None
            if found is not None and found != "":
                return found
        return None

    def take(self, columns: Columns) -> Document:
        """The values of sources by column; a function is asked only where one of its paths leads to something."""
        values = Document()
        for name, source in columns.items():
            *paths, change = (source, lambda found: found) if isinstance(source, str) else source
            found = [self.find(path) for path in paths]
            values[name] = change(*found) if any(value is not None for value in found) else None
        return values


def roots(file: Opened) -> list[Any]:
    """The value of a JSON file, those of JSON lines, or the rows of a table, whose index is their line."""
    if file.suffix == ".csv":
        return [read_text_rows(file.path, _MEND).frame()]
    return json_lines(file.path) if file.suffix == ".jsonl" else [file.document]


class Answer(NamedTuple):
    """The value that a metric has of a model's answer to a document; the metric may be unknown, and without a value
    the document only is there."""

    item: Item
    metric: str | None
    value: float | None


@dataclass(frozen=True)
class Spec:
    """A format. `when`: paths that lead to something in its files, or a question about a file. `of_file`: what holds of
    a whole file: columns of all its scores (also those of a mapping under ""), settings, fields of ScoreFile. `scores`:
    where each score stands, in words, and its columns and settings. Scores with a `doc_id` are answers, whose means are
    the scores. `named_by`: the model by a file's path, where nothing else names it. `beside`: names of files that
    others are read with. `load`: the roots of a file. `answers_in`: the file with the answers to items, where there is
    one; `answers`: these, by that file, the root and its scores, when items are asked for."""

    name: str
    when: tuple[str, ...] | Callable[[Opened], bool]
    scores: Callable[[Place], Iterable[tuple[object, Document]]]
    of_file: Columns = field(default_factory=dict)
    named_by: Callable[[Opened], str | None] = lambda opened: None
    beside: tuple[str, ...] = ()
    load: Callable[[Opened], list[Any]] = roots
    answers_in: Callable[[Place], Path | None] = lambda root: None
    answers: Callable[[Path, Place, list[Claim]], Iterator[Answer]] = lambda path, root, rows: iter(())

    def recognises(self, opened: Opened) -> bool:
        """Whether a file is one of these."""
        if not isinstance(self.when, tuple):
            return self.when(opened)
        root = Place(opened.document, opened.path, {})
        return opened.path.name in self.beside or all(root.find(path) is not None for path in self.when)

    def read(self, opened: Opened) -> list[ScoreFile]:
        """The scores of a file, of answers a file for each model. Raises InputError, with the place, for what no column
        can hold, where nothing names the model, and for a file that is not as its harness writes it."""
        try:
            documents = [] if opened.path.name in self.beside else self.load(opened)
            return [file for document in documents for file in self._read(opened, document)]
        except (AttributeError, TypeError, KeyError, ValueError, IndexError, RecursionError) as error:
            described = f"{type(error).__name__}: {first_line(error)}"
            problem = f"{opened.path}: not as {self.name} writes its files ({described})."
            raise InputError(problem, "has somebody edited it? else write its scores as a table.") from error

    def _read(self, opened: Opened, document: Any) -> list[ScoreFile]:
        path = opened.path
        root = Place(document, path, {})
        said = root.take(self.of_file)
        parameters = finite(said.pop("parameters_b", None))
        columns = (said.pop("", None) or {}) | {name: said[name] for name in said.keys() - _OF_FILE - _MADE}
        common = {name: value for name, value in _checked_row(columns, str(path)).items() if value is not None}
        common |= {"source": self.name} | ({"prompt": "chat"} if said.get("chat_template") else {})
        shared: Document = {name: common.pop(name) for name in ("benchmark", "num_fewshot") if name in common}
        rows, missing = self._rows_at(root, shared)
        if not rows:
            problem = f"none of its {count(missing, 'score')} is a finite number" if missing else "no scores in it"
            raise InputError(f"{path}: {problem}.", "run that task again, or leave the file out.")
        rows = [row | {"model": opened.model} if opened.model and "model" in row else row for row in rows]
        own_name, answered = opened.model or common.get("model"), self.answers_in(root)
        read = [row.copy() for row in rows]  # before runs are numbered
        fields: Document = {"date": date_in(path.stem)}
        fields |= {name: said[name] for name in said.keys() & _OF_FILE if said[name] is not None}
        fields["made"] = _settings({"harness": self.name} | said) if self.of_file.keys() & _MADE else {}
        if any("model" not in row for row in rows):
            name = checked("model", own_name or self.named_by(opened), f"{path}, the model")
            place = model_place(name)
            facts: Facts = {"parameters_b": parameters} if parameters else {}
            if not opened.model:
                name = checked("model", place.name, f"{path}, the model {name!r}")
                facts |= {"path": place.path} if place.path != name else {}
                if common.get("checkpoint", "final") == "final" and place.point["iteration"] is not None:
                    common |= place.point
            common["model"] = name
            fields["facts"] = {name: facts} if facts else {}
        if any(made["n_items_scored"] < NEARLY_ALL * made["n_items_total"] for row in rows
               if {"n_items_scored", "n_items_total"} <= (made := row.get("made", {})).keys()):  # fmt: skip
            fields["limited"] = True
        file = ScoreFile(
            path, rows, cast(Claim, common), missing=missing,
            items=None if answered is None else lambda: items_of(self.answers(answered, root, read)),
            by_path="model" in common and not own_name and "/" not in common["model"], **fields,
        )  # fmt: skip
        files = of_answers(file) if any("doc_id" in row for row in rows) else [file]
        return [replace(each, identity={}) for each in files] if opened.model else files

    def _rows_at(self, root: Place, shared: Document) -> tuple[list[Any], int]:
        """The checked rows of all places that count, and how many scores are missing."""
        rows, missing = list[Document](), 0
        for key, columns in self.scores(root):
            value, where = columns.get("value"), f"{root.path}, {key}"
            if value is None or value != value or (isinstance(value, str) and not _NUMBER.search(value)):
                missing += 1
                continue
            row = _checked_row(shared | {name: columns[name] for name in columns.keys() - _MADE}, where)
            checked("benchmark", row.get("benchmark"), where)
            scored = {"n_items_scored": row.get("n_items")} if "n_items_total" in columns else {}
            made = _settings({**columns, **scored})
            rows.append(row | ({"made": made} if made else {}))
        return rows, missing


def _settings(columns: Mapping[str, object]) -> Document:
    """The settings among columns, as far as their values are of their kinds."""
    fits = {name: fitting(name, columns[name]) for name in columns.keys() & _MADE}
    return {name: value for name, value in fits.items() if value is not None}


# ----------------------------------------------------------------------------------------------------------------------
# Answers and items.


def items_of(answers: Iterable[Answer]) -> Iterator[Item]:
    """An item for each document of a benchmark and each run of it: the means of its answers' values by metric, of which
    the benchmark's first is `correct`."""
    items = dict[tuple[object, ...], Item]()
    values = defaultdict[tuple[object, ...], dict[str | None, list[float]]](lambda: defaultdict(list))
    firsts = dict[object, str | None]()
    for item, metric, value in answers:
        key: tuple[object, ...] = (item.get("benchmark"), item["doc_id"], item.get("run"))
        items.setdefault(key, item)
        if value is not None:
            firsts.setdefault(key[0], metric)
            values[key][metric].append(value)
    for key, item in items.items():
        means = {metric: sum(of_metric) / len(of_metric) for metric, of_metric in values[key].items()}
        named = [(metric, mean) for metric, mean in means.items() if metric is not None]
        yield item | Item(correct=means.get(firsts.get(key[0])), metric_values=named or None)


def mean_of_items(values: np.ndarray) -> Claim:
    """Value, error and number of items for a mean over items' values (n,); without a standard error for one item."""
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return {"value": float(values.mean()), "stderr": error, "n_items": len(values)}


def scores_of(items: Iterable[Item]) -> list[Claim]:
    """The mean of each metric over the items of a benchmark, with its error and their number."""
    values = defaultdict[tuple[str, str], list[float]](list)
    for item in items:
        for metric, value in item.get("metric_values") or ():
            values[item["benchmark"], metric].append(value)
    return [Claim(benchmark=key[0], metric=key[1]) | mean_of_items(np.array(column)) for key, column in values.items()]


def of_answers(file: ScoreFile) -> list[ScoreFile]:
    """A file of scores and items for each model in a file of answers; of several answers to one document their mean."""
    rows: Any = file.rows
    by_model = defaultdict[str, list[Any]](list)
    for row in rows:
        by_model[row.get("model", file.common.get("model"))].append(row)
    files = []
    for model, of_model in by_model.items():
        answers = [Answer(Item(benchmark=row["benchmark"], doc_id=row["doc_id"]), row["metric"], row["value"])
                   for row in of_model]  # fmt: skip
        items = [*items_of(answers)]
        lower = {row["metric"] for row in of_model if row.get("higher_is_better") is False}
        scores = [row | Claim(higher_is_better=False) if row["metric"] in lower else row for row in scores_of(items)]
        repeated = len(answers) - sum(len(item["metric_values"] or ()) for item in items)
        note = f"{file.path.name}: the mean of several answers counts: {count(repeated, 'answer')} more than items."
        notes = (*file.notes, note) if repeated else file.notes
        common = file.common | Claim(model=model)
        files.append(replace(file, rows=scores, common=common, notes=notes, items=items.copy))
    return files
