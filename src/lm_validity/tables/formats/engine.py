"""How a spec reads a file: the way to its scores, and where each column of a score stands.

A path is keys joined by points, from the place of a score. `^` begins at the file's root, `NAME.json:` in a file beside
it; `@0` is the name of the first level that the way went through as `*`, which `{0}` puts into a path; `=TEXT` is the
text, `%` the path of the file. Of alternatives (`a|b`) the first that leads to something counts. A source is a path, or
paths and the function that makes a value of what they lead to.
"""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lm_validity.config.rows import read_text
from lm_validity.errors import InputError, first_line
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.score_files import Opened, ScoreFile, mean_of_items
from lm_validity.tables.schema import Claim, Item, as_record
from lm_validity.words import count

Source = str | tuple[Any, ...]
Columns = Mapping[str, Source]
_NUMBER = re.compile(r"\d|^\s*[+-]?(inf|nan)", re.I)  # a number as a text, which is refused
_OTHER_HINT = "mend it, or leave it out."
_ANSWER = ("model", "benchmark", "metric", "doc_id")


class Place(NamedTuple):
    """What a score's way led to, the root and path of its file, and the names of the levels between."""

    value: Any
    root: Any
    path: Path
    keys: tuple[str, ...] = ()

    def find(self, paths: str) -> Any:
        """What the first of the paths leads to that leads to something; None where none does."""
        if paths == "%" or paths.startswith("="):
            return self.path if paths == "%" else paths[1:]
        for path in paths.split("|"):
            found = self.keys[int(path[1:])] if path.startswith("@") else self._follow(path)
            if found is not None and found != "":
                return found
        return None

    def _follow(self, path: str) -> Any:
        name, colon, way = path.rpartition(":")
        value = _beside(self.path.with_name(name)) if colon else self.root if way.startswith("^") else self.value
        for key in filter(None, way.lstrip("^").split(".")):
            value = value.get(key.format(*self.keys)) if isinstance(value, dict) else None
        return value

    def take(self, source: Source) -> Any:
        """The value of a source; a function is asked only where one of its paths leads to something."""
        if isinstance(source, str):
            return self.find(source)
        *paths, change = source
        found = [self.find(path) for path in paths]
        return change(*found) if any(value is not None for value in found) else None

    def below(self, key: object, value: Any) -> "Place":
        """A place one level further."""
        return self._replace(value=value, keys=(*self.keys, str(key)))

    def follow(self, way: str) -> Iterator["Place"]:
        """The places at the end of a way, in which `*` stands for each key or entry of a level."""
        head, _, rest = way.partition(".")
        if not head:
            yield self
        elif head == "*" and isinstance(self.value, list | dict):
            for key, value in self.value.items() if isinstance(self.value, dict) else enumerate(self.value):
                yield from self.below(key, value).follow(rest)
        elif isinstance(self.value, dict) and head in self.value:
            yield from self._replace(value=self.value[head]).follow(rest)


@lru_cache(maxsize=256)
def _beside(path: Path) -> Any:
    return checked.read_json_file(path, _OTHER_HINT) if path.is_file() else None


def forget_files() -> None:
    """Read files beside others anew: they may have changed since the last import."""
    _beside.cache_clear()


CHECKS: Mapping[str, Callable[[Any, str], Any]] = {
    "model": lambda value, where: checked.required_text(value, where, "name it: --model 'PATH=NAME'."),
    "benchmark": lambda value, where: checked.required_text(value, where, _OTHER_HINT),
    "doc_id": lambda value, where: str(value),
    "value": lambda value, where: checked.score(value, where, _OTHER_HINT),
    "stderr": checked.standard_error,
    "n_items": lambda value, where: checked.whole(value, where, 0) or None,  # some write 0 for unknown
    "num_fewshot": lambda value, where: checked.whole(value, where, 0),
    **dict.fromkeys(("iteration", "run", "seed"), lambda value, where: checked.whole(value, where, 0)),
    "tokens_b": checked.number,
    **dict.fromkeys(("higher_is_better", "selected"), checked.flag),
}
# Settings, and what may be one of them: anything else is unknown
_KINDS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("temperature", "top_p", "limit"), checked.finite),
    **dict.fromkeys(("max_gen_toks", "seed", "n_items_scored", "n_items_total"),
                    lambda value: value if type(value) is int else None),
    "chat_template": lambda value: value if isinstance(value, bool) else None,
    "task_version": str,
}  # fmt: skip


def check_columns(columns: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Columns of a claim with their values checked. Raises InputError, with the place, for what none can hold."""
    return {
        name: CHECKS.get(name, checked.text)(value, f"{where}, {name!r}")
        for name, value in columns.items()
        if value is not None
    }


def known_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings whose values are of their kind."""
    kept = dict[str, Any]()
    for name, value in settings.items():
        kind: Callable[[Any], Any] = _KINDS.get(name, _text)
        if value is not None and (of_kind := kind(value)) is not None:
            kept[name] = of_kind
    return kept


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(frozen=True)
class Spec:
    """A format. `when`: paths that lead to something in its files, or a question about a file. `each`: the way to its
    scores, or a function that gives their places. `columns`: of a score; with `doc_id` they are answers, whose means
    are the scores. `common`: what all share; the
    columns of a mapping under "" are columns too. `of_file`: fields of ScoreFile; `made`, `made_of_score`: settings.
    `named_by`: the model by a file's path, where nothing else names it. `beside`: names of files that others are read
    with. `split`: a file's parts, which are read like files. `load`: what makes a root of a file that is not JSON.
    `finish`: what no path can say, of the file, its root and the places of its rows."""

    name: str
    when: tuple[str, ...] | Callable[[Opened], bool]
    columns: Columns
    each: str | Callable[[Place], Iterable[Place]] = ""
    common: Columns = field(default_factory=dict)
    of_file: Columns = field(default_factory=dict)
    made: Columns = field(default_factory=dict)
    made_of_score: Columns = field(default_factory=dict)
    named_by: Callable[[Opened], str | None] = lambda opened: None
    beside: tuple[str, ...] = ()
    split: Callable[[Opened], list[Opened]] = lambda opened: [opened]
    load: Callable[[Opened], Any] = lambda opened: opened.document
    finish: Callable[[ScoreFile, Place, list[Place]], ScoreFile] = lambda file, root, places: file
    suffixes: tuple[str, ...] = (".json",)

    def recognises(self, opened: Opened) -> bool:
        """Whether a file is one of these."""
        if not isinstance(self.when, tuple):
            return self.when(opened)
        place = Place(opened.document, opened.document, opened.path)
        if opened.path.name in self.beside:
            return True
        return all(place.find(path) is not None for path in self.when)

    def read(self, opened: Opened) -> list[ScoreFile]:
        """The scores of a file, of answers a file for each model. Raises InputError, with the place, for what no column
        can hold, where nothing names the model, and for a file that is not as its harness writes it."""
        try:
            documents = [] if opened.path.name in self.beside else self.split(opened)
            return [file for each in documents for file in self._read(each)]
        except (AttributeError, TypeError, KeyError, ValueError, IndexError) as error:
            problem = (
                f"{opened.path}: not as {self.name} writes its files ({type(error).__name__}: {first_line(error)})."
            )
            raise InputError(problem, "has somebody edited it? else write its scores as a table.") from error

    def _read(self, opened: Opened) -> list[ScoreFile]:
        path, document = opened.path, self.load(opened)
        root = Place(document, document, path)
        common = check_columns(_taken(root, self.common), str(path))
        shared: dict[str, Any] = {name: common.pop(name) for name in ("benchmark", "num_fewshot") if name in common}
        rows, places, missing = self._rows_at(root, shared)
        if missing and not rows:
            raise InputError(
                f"{path}: none of its {count(missing, 'score')} is a finite number.", "run that task again."
            )
        if "model" not in self.columns:
            name = opened.model or common.get("model") or self.named_by(opened)
            common["model"] = CHECKS["model"](name, f"{path}, the model")
        elif opened.model:
            rows = [row | {"model": opened.model} for row in rows]
        by_path = "model" not in self.columns and not opened.model and root.take(self.common.get("model", "^-")) is None
        fields = {name: value for name, source in self.of_file.items() if (value := root.take(source)) is not None}
        made = known_settings({"harness": self.name, **_taken(root, self.made)}) if self.made else {}
        file = ScoreFile(path, rows, as_record(Claim, common), missing=missing, made=made, by_path=by_path, **fields)  # type: ignore[arg-type]
        return [self.finish(each, root, places) for each in (_of_answers(file) if "doc_id" in self.columns else [file])]

    def _rows_at(self, root: Place, shared: dict[str, Any]) -> tuple[list[Any], list[Place], int]:
        """The checked rows of all places that count, these places, and how many scores are missing."""
        path = root.path
        rows, places, missing = list[dict[str, Any]](), list[Place](), 0
        for place in self.each(root) if callable(self.each) else root.follow(self.each):
            found = _taken(place, self.columns)
            value, where = found.get("value"), f"{path}, {'.'.join(place.keys) or 'the score'}"
            if value is None or value != value or (isinstance(value, str) and not _NUMBER.search(value)):
                missing += 1
                continue
            row = check_columns(shared | found, where)
            for name in {"benchmark", "model", "doc_id"} & {"benchmark", *self.columns}:
                checked.required_text(row.get(name), f"{where}, {name!r}", _OTHER_HINT)
            settings = known_settings(_taken(place, self.made_of_score))
            places.append(place)
            rows.append(row | ({"made": settings} if settings else {}))
        return rows, places, missing


def same(*names: str) -> dict[str, Source]:
    """Columns that are called as the keys of a place."""
    return {name: name for name in names}


def _taken(place: Place, columns: Columns) -> dict[str, Any]:
    values = {name: place.take(source) for name, source in columns.items()}
    return values | (values.pop("", None) or {})


def _of_answers(file: ScoreFile) -> list[ScoreFile]:
    """A file of scores and items for each model in a file of answers: the means over documents, of several answers to
    one their mean. The first metric is the items' `correct`."""
    answers = pd.DataFrame([{**file.common, **row} for row in file.rows], columns=[*_ANSWER, "value"])
    means = answers.groupby([*_ANSWER], sort=False)["value"].agg(["mean", "size"])
    files = []
    for model, of_model in means.groupby("model", sort=False):
        rows = [
            Claim(benchmark=benchmark, metric=metric) | mean_of_items(values.to_numpy())
            for (benchmark, metric), values in of_model.groupby(["benchmark", "metric"], sort=False)["mean"]
        ]
        several = int((of_model["size"] > 1).sum())
        note = f"{file.path.name}: the mean of several answers counts: {count(several, 'item')}."
        notes = (*file.notes, note) if several else file.notes
        common = file.common | Claim(model=str(model))
        files.append(replace(file, rows=rows, common=common, notes=notes, items=partial(_items, of_model["mean"])))
    return files


def _items(means: pd.Series) -> Iterator[Item]:
    for benchmark, of_benchmark in means.droplevel("model").groupby("benchmark", sort=False):
        table = of_benchmark.droplevel("benchmark").unstack("metric")
        table = table[of_benchmark.index.unique("metric")]
        for document, *values in table.itertuples():
            named = [(metric, value) for metric, value in zip(table, values, strict=True) if not math.isnan(value)]
            item: Item = {"benchmark": str(benchmark), "doc_id": document, "metric_values": None}
            yield (
                item
                | Item(correct=None if math.isnan(values[0]) else values[0])
                | (Item(metric_values=named) if len(values) > 1 else Item())
            )


def json_lines(path: Path, hint: str = _OTHER_HINT) -> list[Any]:
    """The values of a file of JSON lines. Raises InputError, with the line, for what is none."""
    values = []
    for number, line in enumerate(read_text(path, hint).split("\n"), 1):
        try:
            values += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error}).", hint) from error
    return values


def csv_rows(path: Path, hint: str = _OTHER_HINT) -> list[dict[str, str]]:
    """The rows of a CSV file by its header."""
    return list(csv.DictReader(io.StringIO(read_text(path, hint), newline="")))
