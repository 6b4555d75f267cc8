"""JSON of no known format: flat records, which are read as a table, and with `--format json` an object of scores.

The largest object of nothing but scores: its keys are the benchmarks. Numbers elsewhere whose keys say so (`params`,
`tokens`, `lr`) are facts of the model; a file may hold these alone.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm_validity.config.rows import read_text
from lm_validity.errors import InputError
from lm_validity.tables.columns import fact_column, in_billions
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in

# ---- records -----------------------------------------------------------------------------------------------------


def flat_records(document: Any) -> list[dict[str, Any]]:
    """The flat objects of a list of them, or of an object of objects, where each one's key is the model; else []."""
    if isinstance(document, dict) and len(document) == 1 and isinstance(next(iter(document.values())), list | dict):
        document = next(iter(document.values()))
    if isinstance(document, dict) and len(document) > 1 and all(isinstance(each, dict) for each in document.values()):
        document = [{"model": key, **each} for key, each in document.items() if "model" not in each]
    if not isinstance(document, list) or not document or not all(isinstance(each, dict) for each in document):
        return []
    flat = all(not isinstance(value, dict | list) for each in document for value in each.values())
    return document if flat else []


def lines_of_json(path: Path) -> list[dict[str, Any]]:
    """The records of a file with a JSON object on each line. Raises InputError with the line that is none."""
    records = []
    for number, line in enumerate(read_text(path, "a JSON object on each line.").splitlines(), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{path}, line {number}: not JSON ({error}).", "a JSON object on each line."
                ) from error
    return flat_records(records)


# ---- an object of scores ---------------------------------------------------------------------------------------------

_NAMING = ("model_name", "name", "model")
_FEWEST_SCORES = 2  # scores of an object of scores


def _read_json(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores and facts of a file. The model is that of `--path` or `--model`, else `model_name`, `name` or `model`.

    Raises InputError for a file with neither, and for one that names no model.
    """
    path, document = opened.path, opened.document
    objects: dict[tuple[str, ...], dict[str, Any]] = defaultdict(dict)
    for place, value in _leaves(document, ()):
        objects[place[:-1]][place[-1]] = value
    scored: dict[tuple[str, ...], dict[str, float]] = {}
    for most in {"decided": (1.0, 100.0), "percentages": (100.0,), "fractions": (1.0,)}.get(options.unit, (1e99,)):
        scored = scored if any(scored.values()) else {each: _only_scores(objects[each], most) for each in objects}
    place = max(scored, key=lambda each: len(scored[each]), default=())
    scores = scored.get(place, {})
    facts: dict[str, Any] = {}
    for other, values in objects.items():
        for key, value in values.items():
            column = fact_column(key)
            if column is not None and (other != place or not scores) and checked.finite(value) is not None:
                known = in_billions(key, [float(value)])[0] if column in ("tokens_b", "parameters_b") else value
                facts.setdefault(column, known)
    if not scores and not facts:
        raise InputError(f"{path}: no object of scores (benchmarks with numbers).", "leave it out.")
    named = next((document[key] for key in _NAMING if document.get(key)), None) if isinstance(document, dict) else None
    name = checked.required_text(
        opened.model or named, f"{path}, the model", f"name it: --model '{path}=NAME', or --path."
    )
    rows = [{"benchmark": benchmark, "value": value} for benchmark, value in scores.items()]
    return [ScoreFile(path, rows, {"model": name}, date_in(path.stem), facts={name: facts} if facts else {})]


def _leaves(value: object, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values in objects within objects, with the keys that lead to them."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, (*place, key))
    elif place:
        yield place, value


def _only_scores(values: dict[str, Any], most: float) -> dict[str, float]:
    """An object's numbers, if it has several and nothing else; {} otherwise."""
    numbers = {key: checked.finite(value) for key, value in values.items() if value is not None}
    scores = {key: number for key, number in numbers.items() if number is not None and 0 <= number <= most}
    return scores if len(scores) == len(numbers) >= _FEWEST_SCORES else {}


FORMAT = Format("json", (".json",), lambda opened: False, _read_json)
