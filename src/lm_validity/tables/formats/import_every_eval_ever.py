"""Files of every_eval_ever: the format, and reading it."""

import functools
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lm_validity.config.rows import read_text
from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError
from lm_validity.files import Document, check_encodable
from lm_validity.tables.claims import Claim, Item, Settings, as_record
from lm_validity.tables.columns import names_metric
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.lm_eval_results import parse_arguments, training_point
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in
from lm_validity.tables.schema import PROTOCOLS

# ----------------------------------------------------------------------------------------------------------------------
# The format of every_eval_ever, an interchange format for scores (github.com/evaleval/every_eval_ever).
#
# A file is one evaluation of a model: `model_info`, `source_metadata`, `eval_library` and a list `evaluation_results`,
# each with a name, a metric and a score. Its JSON schema is not part of this project: it is that of the installed
# package `every_eval_ever`, or a file that is named.

VERSION = "0.3.0"  # of the schema that exported files follow
OWN = "lm_validity_"  # begins the keys of what the format has no place for


class Metric(NamedTuple):
    """What a metric of lm-eval is called there, its bounds, and which scores are better."""

    identifier: str
    low: float
    high: float | str
    higher_is_better: bool


# Others are given without bounds
METRICS = {
    "acc": Metric("accuracy", 0, 1, higher_is_better=True),
    "acc_norm": Metric("acc_norm", 0, 1, higher_is_better=True),
    "exact_match": Metric("exact_match", 0, 1, higher_is_better=True),
    "em": Metric("exact_match", 0, 1, higher_is_better=True),
    "f1": Metric("f1", 0, 1, higher_is_better=True),
    "mc1": Metric("mc1", 0, 1, higher_is_better=True),
    "mc2": Metric("mc2", 0, 1, higher_is_better=True),
    "mcc": Metric("mcc", -1, 1, higher_is_better=True),
    "bits_per_byte": Metric("bits_per_byte", 0, "Infinity", higher_is_better=False),
    "byte_perplexity": Metric("byte_perplexity", 1, "Infinity", higher_is_better=False),
    "word_perplexity": Metric("word_perplexity", 1, "Infinity", higher_is_better=False),
    "perplexity": Metric("perplexity", 1, "Infinity", higher_is_better=False),
    "ppl": Metric("perplexity", 1, "Infinity", higher_is_better=False),
}


@functools.cache
def find_schema(named: Path | None) -> Document | None:
    """The JSON schema in the file that is named, else that of the installed package, else None."""
    path = named
    if path is None:
        package = importlib.util.find_spec("every_eval_ever")
        if package is None or package.origin is None:
            return None
        path = Path(package.origin).parent / "schemas" / "eval.schema.json"
        if not path.is_file():
            return None
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: not a readable JSON schema ({error}).", "every_eval_ever has eval.schema.json."
        ) from error
    if not isinstance(schema, dict) or "evaluation_results" not in schema.get("properties", {}):
        raise InputError(f"{path}: no schema of every_eval_ever's files.", "every_eval_ever has eval.schema.json.")
    return schema


def check_schema(document: Document, schema: Document | None, where: str) -> None:
    """Raises InputError, with the first error and its place, for a document that does not fit the schema."""
    if schema is None:
        return
    import jsonschema

    errors = jsonschema.validators.validator_for(schema)(schema).iter_errors(document)
    error = min(
        errors, key=lambda error_found: (len(error_found.absolute_path), str(error_found.message)), default=None
    )
    if error is not None:
        error_path = "/".join(map(str, error.absolute_path)) or "the file"
        raise InputError(
            f"{where}: {error_path}: {error.message[:200]}.",
            "see eval.schema.json of every_eval_ever for what it may hold.",
        )


# ----------------------------------------------------------------------------------------------------------------------
# Files of every_eval_ever -> scores, and items of the samples beside them.

_HINT = "see github.com/evaleval/every_eval_ever for the format."
_SAMPLES = "_samples"  # ends the name of a file of samples before `.jsonl`
_PERCENT = frozenset(("percent", "percentage", "%"))
_HUNDRED = 100.0
_LEVEL = 0.95
_NUMBER = re.compile(r"\d|^\s*[+-]?(inf|nan)", re.IGNORECASE)  # a number as a text, which is refused
_OF_SPLIT = re.compile(r"(?:test|val|validation|eval)_(\w+)")
_CHECKED = "0.3"  # files of older schemas lack fields that the schema requires


def _recognises(opened: Opened) -> bool:
    if opened.path.suffix == ".jsonl":
        keys = (b"evaluation_id", b"sample_id" if opened.path.stem.endswith(_SAMPLES) else b'"evaluation_results"')
        return all(key in opened.head.partition(b"\n")[0] for key in keys)
    return isinstance(opened.document, dict) and isinstance(opened.document.get("evaluation_results"), list)


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores of a file, and the items of the `_samples.jsonl` beside it.

    A result's `evaluation_name` is the benchmark, its `metric_id` or `metric_name` the metric. A result whose score is
    null, or no number, is missing. Files that `export every-eval-ever` wrote give their rows back. A file of the
    schema's version is checked against `options.schema`, else against the installed package's.
    """
    path, document = opened.path, opened.document
    if path.suffix == ".jsonl" and path.stem.endswith(_SAMPLES):
        owner = path.with_name(path.stem.removesuffix(_SAMPLES) + ".json")  # with which a file of samples is read
        if not owner.is_file():
            raise InputError(f"{path}: no {owner.name} beside it, which tells model and scores.", _HINT)
        return []
    documents = _documents(path) if path.suffix == ".jsonl" else [(str(path), document)]
    return [_of_evaluation(path, where, evaluation, options) for where, evaluation in documents]


def _documents(path: Path) -> list[tuple[str, Document]]:
    """The evaluations of a file that has one in each line, with their places."""
    documents = []
    for number, line in enumerate(read_text(path, _HINT).split("\n"), 1):
        try:
            documents += [(f"{path}, line {number}", json.loads(line))] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error}).", _HINT) from error
    return documents


def _of_evaluation(path: Path, where: str, document: Document, options: ImportOptions) -> ScoreFile:
    if not isinstance(document, dict) or not isinstance(document.get("evaluation_results"), list):
        raise InputError(f"{where}: no list 'evaluation_results' in it.", _HINT)
    version = str(document.get("schema_version"))
    if version.startswith(_CHECKED):
        check_schema(document, options.schema or find_schema(None), where)
    model = _object(document.get("model_info"), f"{where}, 'model_info'")
    model_name = checked.required_text(model.get("id"), f"{where}, 'model_info', 'id'", _HINT)
    details = checked.part(model, "additional_details")
    own_record = _own(document, path)
    if own_record is None:
        arguments = parse_arguments(details.get("model_args"))
        if details.get("revision"):
            arguments = arguments | {"revision": str(details["revision"])}
        own_record = training_point(arguments).claim()
    results = [_object(result, f"{where}, a result") for result in document["evaluation_results"]]
    scored = [result for result in results if _has_score(result)]
    rows = [_row(result, document, f"{where}, result {number}") for number, result in enumerate(scored, 1)]
    where = f"{where}, 'params_billions'"
    size = checked.number(_number(details.get("params_billions"), where), where)
    return ScoreFile(
        path,
        rows,
        {"model": model_name, **own_record},
        _date(document, path),
        weights=f"{model_name}@{details.get('revision', '')}",
        settings=" ".join(sorted({json.dumps(result.get("generation_config"), sort_keys=True) for result in results})),
        sampling={row["benchmark"]: "" for row, result in zip(rows, scored, strict=True) if _is_sampled(result)},
        facts={} if size is None else {model_name: {"parameters_b": size}},
        items=_items(path, document, scored, rows),
        missing=len(results) - len(scored),
        made=_made(document, model),
    )


def _is_sampled(result: Document) -> bool:
    """Whether a result says that its answers were drawn with a temperature."""
    return checked.is_sampled(checked.part(result, "generation_config", "generation_args"))


def _has_score(result: Document) -> bool:
    """Whether a result has a score; null, NaN and a text such as N/A are missing ones."""
    details = result.get("score_details")
    if not isinstance(details, dict) or "score" not in details:
        return True  # which `_row` refuses
    value = details["score"]
    if isinstance(value, str):
        return _NUMBER.search(value) is not None
    return not (value is None or (isinstance(value, float) and checked.finite(value) is None))


def _row(result: Document, document: Document, where: str) -> Claim:
    benchmark = checked.required_text(result.get("evaluation_name"), f"{where}, 'evaluation_name'", _HINT)
    where = f"{where} ({benchmark})"
    metric = _object(result.get("metric_config"), f"{where}, 'metric_config'")
    details = _object(result.get("score_details"), f"{where}, 'score_details'")
    uncertainty = _object(details.get("uncertainty") or {}, f"{where}, 'uncertainty'")
    error = uncertainty.get("standard_error")
    error = checked.standard_error(error.get("value") if isinstance(error, dict) else error, where)
    error, kind = _half_width(uncertainty) if error is None else (error, None)
    lower = checked.flag(metric.get("lower_is_better"), f"{where}, 'lower_is_better'")
    named = _names(benchmark, metric, document, checked.part(result, "source_data").get("dataset_name"))
    own_details = checked.part(metric, "additional_details")
    shots = {**own_details, **checked.part(result, "generation_config", "additional_details")}.get("num_fewshot")
    return {
        "benchmark": checked.required_text(
            own_details.get(f"{OWN}benchmark", named["benchmark"]), f"{where}, '{OWN}benchmark'", _HINT
        ),
        "metric": checked.text(own_details.get(f"{OWN}metric", named["metric"]), f"{where}, '{OWN}metric'"),
        "value": checked.score(details.get("score"), f"{where}, 'score'", _HINT),
        "stderr": error,
        "error": kind,
        "unit": "own" if f"{OWN}metric" in own_details or f"{OWN}benchmark" in own_details else _unit(metric),
        "n_items": _count(uncertainty, result, where),
        "higher_is_better": None if lower is None else not lower,
        "num_fewshot": checked.whole(_number(shots, f"{where}, 'num_fewshot'"), f"{where}, 'num_fewshot'", least=0),
        "selected": own_details.get(f"{OWN}selected", "true") == "true",
        "made": _made_of_result(result),
    }


def _half_width(uncertainty: Document) -> tuple[float | None, str | None]:
    """Half of a 95% interval and what it is; None where there is none."""
    interval = checked.part(uncertainty, "confidence_interval")
    low, high, level = (checked.finite(interval.get(name)) for name in ("lower", "upper", "confidence_level"))
    if low is None or high is None or level != _LEVEL or high < low:
        return None, None
    return (high - low) / 2, "ci95"


def _made(document: Document, model: Document) -> Settings:
    """How all scores of a file were made, as far as it says so."""
    library = checked.part(document, "eval_library")
    version, backend = library.get("version"), checked.part(model, "inference_engine").get("name")
    return {
        "harness": str(library["name"]).replace("_", "-") if library.get("name") else None,
        "harness_version": None if version in (None, "unknown") else str(version),
        "backend": None if backend is None else str(backend),
    }


def _made_of_result(result: Document) -> Settings:
    """What a result says of how its answers were written."""
    drawn = checked.part(result, "generation_config", "generation_args")
    max_tokens = drawn.get("max_tokens")
    return {
        "temperature": checked.finite(drawn.get("temperature")),
        "top_p": checked.finite(drawn.get("top_p")),
        "max_gen_toks": max_tokens if type(max_tokens) is int else None,
    }


def _unit(metric: Document) -> str | None:
    """What a file says of the unit: by its name, else by the largest score that there can be."""
    max_score = checked.finite(metric.get("max_score"))
    if str(metric.get("metric_unit")).casefold() in _PERCENT or max_score == _HUNDRED:
        return "percent"
    return None if max_score in (None, 1.0) else "own"


def _names(benchmark: str, metric: Document, document: Document, dataset: object) -> Claim:
    """Benchmark and metric. Of lm-eval's files the converter of every_eval_ever writes the filter behind a slash. Of
    a metric behind its split (`test_mcc`) the benchmark is the dataset."""
    metric_name = metric.get("metric_id") or metric.get("metric_name")
    if metric_name:
        key = metric_key(checked.required_text(metric_name, f"{benchmark}, metric", _HINT))
        return {"benchmark": benchmark, "metric": key}
    if isinstance(dataset, str) and (of_split := _OF_SPLIT.fullmatch(benchmark)) and names_metric(of_split[1]):
        return {"benchmark": dataset, "metric": metric_key(of_split[1])}
    description = metric.get("evaluation_description")
    if checked.part(document, "eval_library").get("name") != "lm_eval" or not isinstance(description, str):
        return {"benchmark": benchmark, "metric": None}
    key, _, remainder = description.partition(" (filter: ")
    filter_name = remainder.removesuffix(")")
    name = benchmark.removesuffix(f"/{filter_name}") if filter_name else benchmark
    return {"benchmark": name, "metric": f"{key},{filter_name or 'none'}"}


def _count(uncertainty: Document, result: Document, where: str) -> int | None:
    number = None if "confidence_interval" in uncertainty else uncertainty.get("num_samples")  # else of the bootstrap
    number = checked.part(result, "source_data").get("samples_number") if number is None else number
    return checked.whole(number, f"{where}, number of samples", least=0) or None  # some converters write 0 for unknown


def _own(document: Document, path: Path) -> Claim | None:
    """What `export every-eval-ever` wrote for a whole file; None in a file of others."""
    details = checked.part(document, "source_metadata", "additional_details")
    own_details = {name.removeprefix(OWN): value for name, value in details.items() if name.startswith(OWN)}
    if not own_details:
        return None
    columns: dict[str, str | float | None] = {}
    for name, check in checked.OF_FILE.items():
        where, value = f"{path}, {OWN + name!r}", own_details.get(name)
        columns[name] = check(value if check is checked.text else _number(value, where), where)
    if columns["protocol"] not in (None, *PROTOCOLS):
        raise InputError(
            f"{path}, '{OWN}protocol': {columns['protocol']!r} is no protocol.", f"one of {', '.join(PROTOCOLS)}."
        )
    return as_record(Claim, columns)


def _number(value: object, where: str) -> object:
    """The number of a text, as which the format keeps it; what is no text stays as it is."""
    if isinstance(value, str):
        try:
            return float(value) if value else None
        except ValueError:
            raise InputError(f"{where}: {value!r} is not a number.", _HINT) from None
    return value


def _date(document: Document, path: Path) -> float | None:
    for name in ("evaluation_timestamp", "retrieved_timestamp"):
        value = document.get(name)
        date = checked.date(value)
        if date is None and isinstance(value, str):
            date = date_in(value)
        if date is not None:
            return date
    return date_in(path.stem)


# ---- items -------------------------------------------------------------------------------------------------------


def _items(
    path: Path, document: Document, results: list[Document], rows: list[Claim]
) -> Callable[[], Iterable[Item]] | None:
    """What reads the samples of an evaluation, where it has a file of them. Raises InputError for a broken one."""
    file_path = checked.part(document, "detailed_evaluation_results").get("file_path")
    names = [Path(file_path).name] if isinstance(file_path, str) and file_path else []
    beside = (path.with_name(name) for name in (*names, f"{path.stem}{_SAMPLES}.jsonl"))
    samples = next((candidate for candidate in beside if candidate.is_file()), None)
    if samples is None:
        return None
    meant: dict[str, Claim] = {}
    for result, row in zip(results, rows, strict=True):
        meant.setdefault(str(result["evaluation_name"]), row)
        if result.get("evaluation_result_id"):
            meant[str(result["evaluation_result_id"])] = row
    for _ in _lines(samples):  # broken lines are found before anything is written
        pass
    return partial(_item_rows, samples, meant)


def _item_rows(path: Path, meant: dict[str, Claim]) -> Iterable[Item]:
    """A row for each document, with the values of all metrics; of several answers to one document the first counts."""
    items: dict[tuple[str, str], Item] = {}
    metrics: dict[tuple[str, str], dict[str, float]] = {}
    for sample in _lines(path):
        row = meant.get(str(sample.get("evaluation_result_id"))) or meant.get(sample["evaluation_name"])
        benchmark = row["benchmark"] if row else sample["evaluation_name"]
        value = float(sample["evaluation"]["score"])
        raw = checked.part(sample, "output").get("raw")
        response = raw[0] if isinstance(raw, list) and raw else raw
        key = benchmark, sample["sample_id"]
        item: Item = {
            "benchmark": benchmark,
            "doc_id": sample["sample_id"],
            "doc_hash": sample.get("sample_hash"),
            "correct": value,
            "num_fewshot": row["num_fewshot"] if row else None,
            "response": response.encode(errors="replace").decode() if isinstance(response, str) else None,
        }
        items.setdefault(key, item)
        values = metrics.setdefault(key, {})
        metric = row["metric"] if row else None
        if metric is not None:
            values.setdefault(metric, value)
    return (item | {"metric_values": list(metrics[key].items())} for key, item in items.items())


def _lines(path: Path) -> Iterator[Document]:
    """The samples of a file. Raises InputError, with the line, for what is none."""
    with open(path, "rb") as handle:
        for number, line in enumerate(handle, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                sample = _object(json.loads(line), where)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not JSON ({error}).", _HINT) from error
            for key in ("evaluation_name", "sample_id"):
                check_encodable(checked.required_text(sample.get(key), f"{where}, {key!r}", _HINT), where)
            evaluation = _object(sample.get("evaluation"), f"{where}, 'evaluation'")
            checked.score(evaluation.get("score"), f"{where}, 'score'", _HINT)
            check_encodable(checked.text(sample.get("sample_hash"), f"{where}, 'sample_hash'") or "", where)
            yield sample


def _object(value: object, where: str) -> Document:
    if not isinstance(value, dict):
        raise InputError(f"{where} is not an object but {repr(value)[:60]}.", _HINT)
    return value


FORMAT = Format("every_eval_ever", (".json", ".jsonl"), _recognises, _read)
