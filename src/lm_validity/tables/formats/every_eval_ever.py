"""Files of every_eval_ever, an interchange format for scores (github.com/evaleval/every_eval_ever).

A file is one evaluation of a model: `model_info`, `source_metadata`, `eval_library` and a list `evaluation_results`,
each with a name, a metric and a score.
"""

import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_validity import __version__
from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError
from lm_validity.files import Document, check_encodable, write_json
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.engine import Place, Spec, json_lines
from lm_validity.tables.formats.score_files import Opened, ScoreFile, date_in, parse_arguments, training_point
from lm_validity.tables.metrics import metric_direction
from lm_validity.tables.schema import PROTOCOLS, SCORES, Claim, Item
from lm_validity.tables.standard_errors import SHARES_OF_ITEMS

VERSION = "0.3.0"  # of the schema that exported files follow
OWN = "lm_validity_"  # begins the keys of what the format has no place for
_HINT = "see github.com/evaleval/every_eval_ever for the format."
# Columns of claims that hold for a whole file, for which the format has no place
_OF_FILE = ("checkpoint", "iteration", "tokens_b", "protocol", "prompt", "prompt_variant", "seed", "run", "split")
_NUMBERS = ("iteration", "tokens_b", "seed", "run")
_SAMPLES = "_samples"  # ends the name of a file of samples before `.jsonl`
_CI95 = 1.959964


# What lm-eval's metrics are called there, where it is not the same
_IDENTIFIERS = {"acc": "accuracy", "em": "exact_match", "ppl": "perplexity"}


# ---- scores ----------------------------------------------------------------------------------------------------------

_OF_SPLIT = re.compile(r"(?:test|val|validation|eval)_(\w+)")
_METRIC, _DETAILS, _DRAWN = "metric_config", "metric_config.additional_details", "generation_config.generation_args"
_INTERVAL = "score_details.uncertainty.confidence_interval"


def _named(name: str, metric: object, described: object, library: object, dataset: object) -> tuple[str, str | None]:
    """Benchmark and metric. Of lm-eval's files the converter of every_eval_ever writes the filter behind a slash; of a
    metric behind its split (`test_mcc`) the benchmark is the dataset."""
    if metric:
        return name, metric_key(checked.required_text(metric, f"{name}, metric", _HINT))
    of_split = _OF_SPLIT.fullmatch(name)
    if isinstance(dataset, str) and of_split and metric_direction(of_split[1]) is not None:
        return dataset, metric_key(of_split[1])
    if library != "lm_eval" or not isinstance(described, str):
        return name, None
    key, _, rest = described.partition(" (filter: ")
    rest = rest.removesuffix(")")
    return name.removesuffix(f"/{rest}") if rest else name, f"{key},{rest or 'none'}"


def _results(root: Place) -> Iterator[Place]:
    """The results of an evaluation, with the benchmark and the metric that are meant."""
    for number, result in enumerate(root.root["evaluation_results"], 1):
        if not isinstance(result, dict):
            raise InputError(f"{root.path}, result {number} is not an object but {repr(result)[:60]}.", _HINT)
        where = f"{root.path}, result {number}, 'evaluation_name'"
        name, place = (
            checked.required_text(result.get("evaluation_name"), where, _HINT),
            Place(result, root.root, root.path),
        )
        benchmark, metric = _named(name, *map(place.find, (
            f"{_METRIC}.metric_id|{_METRIC}.metric_name", f"{_METRIC}.evaluation_description", "^eval_library.name",
            "source_data.dataset_name")))  # fmt: skip
        if metric != "mean_win_rate,none":  # HELM's, of places among models
            yield root.below(f"result {number} ({name})", result | {"_benchmark": benchmark, "_metric": metric})


def _factor(own: object, unit: object, most: object) -> float:
    """What makes shares of scores in percent, by the name of the unit, else by the largest score that there can be."""
    is_percent = own is None and (str(unit).casefold() in ("percent", "percentage", "%") or most == 100)
    return 0.01 if is_percent else 1.0


def _scaled(value: object, *unit: object) -> object:
    number = checked.finite(value)
    return value if number is None else number * _factor(*unit)


def _half_width(interval: object, *unit: object) -> float | None:
    """The standard error of a 95% interval."""
    low, high, level = (
        checked.finite(checked.part(interval).get(name)) for name in ("lower", "upper", "confidence_level")
    )
    if low is None or high is None or level != 0.95 or high < low:
        return None
    return (high - low) / 2 / _CI95 * _factor(*unit)


def _error(said: object, interval: object, *unit: object) -> object:
    said = said.get("value") if isinstance(said, dict) else said
    return _half_width(interval, *unit) if checked.finite(said) is None else _scaled(said, *unit)


def _own(details: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `export every-eval-ever` wrote for a whole file; None in a file of others."""
    own = {name.removeprefix(OWN): value for name, value in details.items() if name.startswith(OWN)}
    return (
        {name: checked.parsed(own.get(name)) if name in _NUMBERS else own.get(name) for name in _OF_FILE}
        if own
        else None
    )


def _point(details: Any, of_model: Any) -> Mapping[str, Any]:
    own = _own(details) if isinstance(details, dict) else None
    if own is not None:
        return own
    arguments = parse_arguments(checked.part(of_model).get("model_args"))
    revision = checked.part(of_model).get("revision")
    return training_point(arguments | ({"revision": str(revision)} if revision else {})).claim()


def _split(opened: Opened) -> list[Opened]:
    """The evaluations of a file that has one in each line; samples are read with the file that they are beside."""
    path = opened.path
    if path.suffix != ".jsonl":
        return [opened]
    if path.stem.endswith(_SAMPLES):
        if not (owner := path.with_name(path.stem.removesuffix(_SAMPLES) + ".json")).is_file():
            raise InputError(f"{path}: no {owner.name} beside it, which tells model and scores.", _HINT)
        return []
    documents = json_lines(path, _HINT)
    for number, document in enumerate(documents, 1):
        if not isinstance(checked.part(document).get("evaluation_results"), list):
            raise InputError(f"{path}, line {number}: no list 'evaluation_results' in it.", _HINT)
    return [opened._replace(document=document) for document in documents]


def _recognises(opened: Opened) -> bool:
    keys = (b"evaluation_id", b"sample_id" if opened.path.stem.endswith(_SAMPLES) else b'"evaluation_results"')
    if opened.path.suffix == ".jsonl":
        return all(key in opened.head.partition(b"\n")[0] for key in keys)
    return isinstance(checked.part(opened.document).get("evaluation_results"), list)


_UNIT = (f"{_DETAILS}.{OWN}metric|{_DETAILS}.{OWN}benchmark", f"{_METRIC}.metric_unit", f"{_METRIC}.max_score")
_OF_MODEL = "^model_info.additional_details"
EVERY_EVAL_EVER = Spec(
    "every_eval_ever",
    _recognises,
    {
        "benchmark": f"{_DETAILS}.{OWN}benchmark|_benchmark",
        "metric": f"{_DETAILS}.{OWN}metric|_metric",
        "value": ("score_details.score", *_UNIT, _scaled),
        "stderr": ("score_details.uncertainty.standard_error", _INTERVAL, *_UNIT, _error),
        "n_items": ("score_details.uncertainty.num_samples", _INTERVAL, "source_data.samples_number",
                    lambda scored, interval, total: total if scored is None or interval is not None else scored),
        "higher_is_better": (f"{_METRIC}.lower_is_better",
                             lambda lower: not lower if isinstance(lower, bool) else lower),
        "num_fewshot": (f"generation_config.additional_details.num_fewshot|{_DETAILS}.num_fewshot", checked.parsed),
        "selected": (f"{_DETAILS}.{OWN}selected", lambda text: text == "true"),
    },
    _results,
    common={
        "model": ("^model_info.id", "%", lambda name, path: checked.required_text(
            name, f"{path}, 'model_info', 'id'", _HINT)),
        "": ("^source_metadata.additional_details", _OF_MODEL, "%", lambda own, of_model, path: _point(own, of_model)),
    },
    made={
        "harness": ("^eval_library.name", lambda name: str(name).replace("_", "-")),
        "harness_version": ("^eval_library.version", lambda version: None if version == "unknown" else str(version)),
        "backend": ("^model_info.inference_engine.name", str),
    },
    made_of_score={"temperature": f"{_DRAWN}.temperature", "top_p": f"{_DRAWN}.top_p",
                   "max_gen_toks": f"{_DRAWN}.max_tokens"},
    of_file={
        "date": ("^evaluation_timestamp", "^retrieved_timestamp", "%", lambda *texts: next(
            (date for text in texts[:2] if (date := checked.date(text) or date_in(str(text))) is not None),
            date_in(texts[2].stem))),
        "weights": ("^model_info.id", f"{_OF_MODEL}.revision", lambda name, revision: f"{name}@{revision or ''}"),
        "settings": ("^evaluation_results", lambda results: " ".join(sorted(
            {json.dumps(checked.part(result).get("generation_config"), sort_keys=True) for result in results}))),
        "facts": (f"{_OF_MODEL}.params_billions", "^model_info.id", "%", lambda size, name, path: size and {
            name: {"parameters_b": checked.score(checked.parsed(size), f"{path}, 'params_billions'", _HINT)}}),
    },
    finish=lambda *file: _finished(*file),
    split=_split,
    suffixes=(".json", ".jsonl"),
)  # fmt: skip


def _finished(file: ScoreFile, root: Place, places: list[Place]) -> ScoreFile:
    """The file with its sampled benchmarks, and the items of the samples beside it. Raises InputError for a protocol
    that is none, and for a broken file of samples."""
    if file.common.get("protocol") not in (None, *PROTOCOLS):
        problem = f"{root.path}, '{OWN}protocol': {file.common['protocol']!r} is no protocol."
        raise InputError(problem, f"one of {', '.join(PROTOCOLS)}.")
    meant, sampling = dict[str, Claim](), dict[str, str]()
    for place, row in zip(places, file.rows, strict=True):
        meant.setdefault(str(place.find("evaluation_name")), row)
        meant[str(place.find("evaluation_result_id") or place.find("evaluation_name"))] = row
        if checked.is_sampled(place.find(_DRAWN) or {}):
            sampling[row["benchmark"]] = ""
    named = root.find("^detailed_evaluation_results.file_path")
    names = (*([Path(named).name] if isinstance(named, str) else []), f"{root.path.stem}{_SAMPLES}.jsonl")
    samples = next((path for name in names if (path := root.path.with_name(name)).is_file()), None)
    if samples is None:
        return replace(file, sampling=sampling)
    items = [*_items(samples, meant)]  # broken lines are found before anything is written
    return replace(file, sampling=sampling, items=lambda: items)


# ---- items -----------------------------------------------------------------------------------------------------------


def _items(path: Path, meant: Mapping[str, Claim]) -> Iterator[Item]:
    """A row for each document, with the values of all metrics; of several answers to one document the first counts.
    Raises InputError, with the line, for what is no sample."""
    items = dict[tuple[str, str], Item]()
    for number, sample in enumerate(json_lines(path, _HINT), 1):
        where = f"{path}, line {number}"
        name, document = (
            checked.required_text(checked.part(sample).get(key), f"{where}, {key!r}", _HINT)
            for key in ("evaluation_name", "sample_id")
        )
        value = checked.score(checked.part(sample, "evaluation").get("score"), f"{where}, 'score'", _HINT)
        check_encodable(f"{name}{document}", where)
        row = meant.get(str(sample.get("evaluation_result_id"))) or meant.get(name) or Claim(benchmark=name)
        raw = checked.part(sample, "output").get("raw")
        response = raw[0] if isinstance(raw, list) and raw else raw
        first = Item(
            benchmark=row["benchmark"], doc_id=document, correct=value, num_fewshot=row.get("num_fewshot"),
            doc_hash=checked.text(sample.get("sample_hash"), f"{where}, 'sample_hash'"),
            response=response.encode(errors="replace").decode() if isinstance(response, str) else None,
        )  # fmt: skip
        item = items.setdefault((row["benchmark"], document), first)
        if (metric := row.get("metric")) is not None:
            values = dict(item.get("metric_values") or ())
            values.setdefault(metric, value)
            item["metric_values"] = [*values.items()]
    yield from items.values()


# ---- export ----------------------------------------------------------------------------------------------------------

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")


def write_every_eval_ever(
    scores: pd.DataFrame,
    output: str | Path,
    organization: str,
    relationship: str = "other",
    collection: str = "lm-validity",
) -> list[Path]:
    """Write `<output>/data/<collection>/<developer>/<model>/<uuid>.json`, one file per evaluation; the paths.

    Every score has a direction (`with_directions`). organization: who publishes the scores; relationship: theirs to the
    models' developers. The same evaluation has the same identifier and path each time. What the format has no place for
    stands under keys that begin with `lm_validity_`, from which an import reads the same rows back. Raises InputError,
    writing nothing, where a score has no metric or no finite value.
    """
    if relationship not in RELATIONSHIPS:
        raise InputError(f"--relationship {relationship}: not known.", f"one of {', '.join(RELATIONSHIPS)}.")
    scores = scores.reindex(columns=SCORES.names)
    finite = np.isfinite(scores["value"].to_numpy(dtype=float, na_value=np.nan))
    for known, noun in ((scores["metric"].notna().to_numpy(), "metric"), (finite, "finite value")):
        if not known.all():
            first, number = scores[~known].iloc[0], int((~known).sum())
            place = f"the first of {first['model']} on {first['benchmark']}"
            raise InputError(
                f"{number} of {len(scores)} scores have no {noun}, {place}.",
                "fill it in (--benchmarks with a sheet gives metrics and directions), or remove these rows.",
            )
    publisher = {"source_organization_name": organization, "evaluator_relationship": relationship}
    columns, documents = ["model", *_OF_FILE], dict[Path, Document]()
    frame = scores.astype(dict.fromkeys(columns, object))
    for _, rows in frame.groupby(columns, dropna=False, sort=True):
        common = {name: None if pd.isna(value) else value for name, value in rows.iloc[0][columns].items()}
        digest = hashlib.sha256(json.dumps([collection, common], sort_keys=True).encode()).digest()
        name, model = uuid.UUID(bytes=digest[:16], version=4), str(common.pop("model"))
        developer, _, short = model.rpartition("/")
        path = Path("data", *map(_file_name, (collection, developer or "unknown", short)), f"{name}.json")
        identifier = f"{collection}/{_file_name(model)}/{name}"
        documents[Path(output) / path] = _document(model, common, rows, identifier, publisher)
    for path, document in documents.items():
        write_json(path, document)
    return list(documents)


def with_directions(scores: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The scores of which it is known whether higher is better, by the table or by the metric, and the metrics of the
    others. Raises InputError where none is left."""
    names = scores["metric"].str.partition(",")[0]
    by_name = names.map({name: metric_direction(name) for name in names.dropna().unique()}).astype("boolean")
    direction = scores["higher_is_better"].astype("boolean").fillna(by_name)
    unknown = sorted(names[direction.isna()].dropna().unique())
    with_direction = scores.assign(higher_is_better=direction)[direction.notna()]
    if with_direction.empty:
        raise InputError(
            f"no score of which it is known whether higher is better (metrics: {', '.join(unknown) or 'none'}).",
            "give --benchmarks with a sheet of metrics and directions.",
        )
    return with_direction, unknown


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "unknown"


def _document(
    model: str, common: Mapping[Any, object], rows: pd.DataFrame, identifier: str, publisher: dict[str, str]
) -> Document:
    """The file of an evaluation. Details are texts, as the format asks."""
    sources = set(rows["source"].dropna())
    of_lm_eval = {"name": "lm_eval", "version": "unknown"}
    return {
        "schema_version": VERSION,
        "evaluation_id": identifier,
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {
            "source_name": "lm-validity",
            "source_type": "evaluation_run" if sources <= {"lm-validity", "lm-eval"} else "documentation",
            "additional_details": {f"{OWN}{name}": str(value) for name, value in common.items() if value is not None},
            **publisher,
        },
        "eval_library": of_lm_eval if sources == {"lm-eval"} else {"name": "lm-validity", "version": __version__},
        "model_info": {
            "name": model,
            "id": model,
            **({"developer": model.split("/")[0]} if "/" in model else {}),
            "additional_details": {"deployment_type": "unknown", "model_availability": "unknown"},
        },
        "evaluation_results": [_result(row) for row in rows.itertuples()],
    }


def _result(row: Any) -> Document:
    name, _, filter_name = row.metric.partition(",")
    is_plain, is_share = filter_name in ("", "none"), name in SHARES_OF_ITEMS
    details = {
        f"{OWN}benchmark": row.benchmark,
        f"{OWN}metric": row.metric,
        f"{OWN}selected": str(pd.isna(row.selected) or bool(row.selected)).lower(),
    }
    bounds = {"score_type": "continuous", "min_score": 0, "max_score": 1, "metric_unit": "proportion"}
    uncertainty: Document = {} if pd.isna(row.stderr) else {"standard_error": {"value": float(row.stderr)}}
    uncertainty |= {} if pd.isna(row.n_items) else {"num_samples": int(row.n_items)}
    examples = {} if pd.isna(row.num_fewshot) else {"num_fewshot": str(int(row.num_fewshot))}
    return {
        "evaluation_name": row.benchmark if is_plain else f"{row.benchmark}/{filter_name}",
        "source_data": {"dataset_name": row.benchmark, "source_type": "other"},
        "metric_config": {
            "evaluation_description": name if is_plain else f"{name} (filter: {filter_name})",
            "metric_id": _IDENTIFIERS.get(name, name),
            "metric_name": name,
            "lower_is_better": not row.higher_is_better,
            "additional_details": details | ({} if is_share else {"bounds_status": "unknown"}),
            **(bounds if is_share else {}),
        },
        "score_details": {"score": float(row.value)} | ({"uncertainty": uncertainty} if uncertainty else {}),
        **({"generation_config": {"additional_details": examples}} if examples else {}),
    }
