"""Files of every_eval_ever -> scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError
from lm_validity.tables.formats.every_eval_ever import OWN, check_schema, find_schema
from lm_validity.tables.formats.found_files import date_in
from lm_validity.tables.formats.json_values import (
    flag,
    number,
    score,
    standard_error,
    text,
    whole,
)
from lm_validity.tables.formats.model_arguments import parse_arguments, training_point
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile

_HINT = "see github.com/evaleval/every_eval_ever for the format."
_PERCENT = frozenset(("percent", "percentage", "%"))
_CHECKED = "0.3"  # files of older schemas lack fields that the schema requires


def _recognises(opened: Opened) -> bool:
    return isinstance(opened.document, dict) and isinstance(opened.document.get("evaluation_results"), list)


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores of a file.

    A result's `evaluation_name` is the benchmark, its `metric_id` or `metric_name` the metric; a score in percent
    becomes a fraction. Files that `export every-eval-ever` wrote give their rows back. A file of the schema's version
    is checked against `options.schema`, else against the installed package's.
    """
    path, document = opened.path, opened.document
    if not _recognises(opened):
        raise InputError(f"{path}: no list 'evaluation_results' in it.", _HINT)
    version = str(document.get("schema_version"))
    if version.startswith(_CHECKED):
        check_schema(document, options.schema or find_schema(None), str(path))
    model = _object(document.get("model_info"), f"{path}, 'model_info'")
    name = text(model.get("id"), f"{path}, 'model_info', 'id'")
    if not name:
        raise InputError(f"{path}: no 'model_info', 'id'.", _HINT)
    own = _own(document, path)
    if own is None:
        details = _details(model)
        arguments = parse_arguments(details.get("model_args"))
        if details.get("revision"):
            arguments = arguments | {"revision": str(details["revision"])}
        own = training_point(arguments)._asdict()
    common = {"model": name, **own}
    rows = [
        _row(_object(result, f"{path}, a result"), document, f"{path}, result {place}")
        for place, result in enumerate(document["evaluation_results"], 1)
    ]
    return [ScoreFile(path, rows, common, _date(document, path))]


def _row(result: dict[str, Any], document: dict[str, Any], where: str) -> dict[str, Any]:
    benchmark = text(result.get("evaluation_name"), f"{where}, 'evaluation_name'")
    if not benchmark:
        raise InputError(f"{where}: no 'evaluation_name'.", _HINT)
    where = f"{where} ({benchmark})"
    metric = _object(result.get("metric_config"), f"{where}, 'metric_config'")
    details = _object(result.get("score_details"), f"{where}, 'score_details'")
    uncertainty = details.get("uncertainty") or {}
    known = uncertainty if isinstance(uncertainty, dict) else {}
    error = standard_error((known.get("standard_error") or {}).get("value"), where)
    scale = 0.01 if str(metric.get("metric_unit")).casefold() in _PERCENT else 1.0
    lower = flag(metric.get("lower_is_better"), f"{where}, 'lower_is_better'")
    benchmark, key = _names(benchmark, metric, document)
    shots = {**_details(metric), **_details(result.get("generation_config"))}.get("num_fewshot")
    own = _details(metric)
    return {
        "benchmark": own.get(f"{OWN}benchmark", benchmark),
        "metric": own.get(f"{OWN}metric", key),
        "value": scale * score(details.get("score"), f"{where}, 'score'", _HINT),
        "stderr": None if error is None else scale * error,
        "n_items": _count(uncertainty, result, where),
        "higher_is_better": None if lower is None else not lower,
        "num_fewshot": _number(shots, whole, f"{where}, 'num_fewshot'"),
        "selected": own.get(f"{OWN}selected", "true") == "true",
    }


def _names(benchmark: str, metric: dict[str, Any], document: dict[str, Any]) -> tuple[str, str | None]:
    """Benchmark and metric. Of lm-eval's files the converter of every_eval_ever writes the filter behind a slash."""
    name = metric.get("metric_id") or metric.get("metric_name")
    library = document.get("eval_library")
    if isinstance(name, str) and name:
        return benchmark, metric_key(name)
    description = metric.get("evaluation_description")
    if not isinstance(library, dict) or library.get("name") != "lm_eval" or not isinstance(description, str):
        return benchmark, None
    key, _, rest = description.partition(" (filter: ")
    filter_name = rest.removesuffix(")")
    return benchmark.removesuffix(f"/{filter_name}") if filter_name else benchmark, f"{key},{filter_name or 'none'}"


def _count(uncertainty: dict[str, Any], result: dict[str, Any], where: str) -> int | None:
    found = uncertainty.get("num_samples") if isinstance(uncertainty, dict) else None
    source = result.get("source_data")
    if found is None and isinstance(source, dict):
        found = source.get("samples_number")
    return whole(found, f"{where}, number of samples")


def _own(document: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """The columns that `export every-eval-ever` wrote for a whole file; None in a file of others."""
    details = _details(document.get("source_metadata"))
    own = {name.removeprefix(OWN): value for name, value in details.items() if name.startswith(OWN)}
    if not own:
        return None
    kinds = {"iteration": whole, "seed": whole, "tokens_b": number}
    names = ("checkpoint", "iteration", "tokens_b", "protocol", "prompt", "prompt_variant", "seed", "split")
    return {
        name: _number(own.get(name), kinds[name], f"{path}, {name!r}") if name in kinds else own.get(name)
        for name in names
    }


def _number(value: object, check: Callable[[object, str], float | None], where: str) -> float | None:
    """A number that the format keeps as a text."""
    if isinstance(value, str):
        try:
            value = float(value) if value else None
        except ValueError:
            raise InputError(f"{where}: {value!r} is not a number.", _HINT) from None
    return check(value, where)


def _date(document: dict[str, Any], path: Path) -> float | None:
    for name in ("evaluation_timestamp", "retrieved_timestamp"):
        value: Any = document.get(name)
        try:
            return float(value)
        except (TypeError, ValueError):
            if isinstance(value, str) and date_in(value) is not None:
                return date_in(value)
    return date_in(path.stem)


def _details(part: object) -> dict[str, Any]:
    found = part.get("additional_details") if isinstance(part, dict) else None
    return found if isinstance(found, dict) else {}


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is not an object but {str(value)[:60]}.", _HINT)
    return value


FORMAT = Format("every_eval_ever", (".json",), _recognises, _read)
