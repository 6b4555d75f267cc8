"""JSON files of no known format -> scores, where `--format json` asks for it: the largest object of nothing but scores.

Its keys are the benchmarks. Numbers elsewhere whose keys say so (`params`, `tokens`, `lr`) are facts of the model; a
file may hold these alone.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_csv import fact_column, in_billions
from lm_validity.tables.formats.score_files import (
    Format,
    ImportOptions,
    Opened,
    ScoreFile,
    date_in,
    finite,
    required_text,
)

_NAMES = ("model_name", "name", "model")
_FEWEST = 2  # scores of an object of scores


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores and facts of a file. The model is that of `--path` or `--model`, else `model_name`, `name` or `model`.

    Raises InputError for a file with neither, and for one that names no model.
    """
    path, document = opened.path, opened.document
    objects: dict[tuple[str, ...], dict[str, Any]] = defaultdict(dict)
    for place, value in _values(document, ()):
        objects[place[:-1]][place[-1]] = value
    unit = options.csv.unit
    scale, most = (0.01, 100.0) if unit == "percentages" else (1.0, 1.0 if unit == "fractions" else float("inf"))
    scored = {place: _scores(values, most) for place, values in objects.items()}
    place = max(scored, key=lambda each: len(scored[each]), default=())
    scores = scored.get(place, {})
    facts: dict[str, Any] = {}
    for other, values in objects.items():
        for key, value in values.items():
            column = fact_column(key)
            if column is not None and (other != place or not scores) and finite(value) is not None:
                known = in_billions(key, [float(value)])[0] if column in ("tokens_b", "parameters_b") else value
                facts.setdefault(column, known)
    if not scores and not facts:
        raise InputError(f"{path}: no object of scores (benchmarks with numbers from 0 to {most:g}).", "leave it out.")
    named = next((document[key] for key in _NAMES if document.get(key)), None) if isinstance(document, dict) else None
    name = required_text(opened.model or named, f"{path}, the model", f"name it: --model '{path}=NAME', or --path.")
    rows = [{"benchmark": benchmark, "value": scale * value} for benchmark, value in scores.items()]
    return [ScoreFile(path, rows, {"model": name}, date_in(path.stem), facts={name: facts} if facts else {})]


def _values(value: object, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values in objects within objects, with the keys that lead to them."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _values(each, (*place, key))
    elif place:
        yield place, value


def _scores(values: dict[str, Any], most: float) -> dict[str, float]:
    """An object's numbers, if it has several and nothing else; {} otherwise."""
    numbers = {key: finite(value) for key, value in values.items() if value is not None}
    scores = {key: number for key, number in numbers.items() if number is not None and 0 <= number <= most}
    return scores if len(scores) == len(numbers) >= _FEWEST else {}


FORMAT = Format("json", (".json",), lambda opened: False, _read)
