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
from lm_validity.tables.formats.engine import (
    Answer,
    Place,
    Spec,
    checked,
    date_of,
    finite,
    fitting,
    is_sampled,
    items_of,
    json_lines,
    parsed,
    part,
)
from lm_validity.tables.formats.score_files import Opened, ScoreFile, date_in, parse_arguments, training_point
from lm_validity.tables.metrics import metric_direction
from lm_validity.tables.schema import SCORES, Item
from lm_validity.tables.standard_errors import SHARES_OF_ITEMS

VERSION = "0.3.0"  # of the schema that exported files follow
OWN = "lm_validity_"  # begins the keys of what the format has no place for
_HINT = "see github.com/evaleval/every_eval_ever for the format."
# Columns of claims that hold for a whole file, for which the format has no place
_OF_FILE = ("checkpoint", "iteration", "tokens_b", "protocol", "prompt", "prompt_variant", "seed", "run", "split")
_NUMBERS = ("iteration", "tokens_b", "seed", "run")
_SAMPLES = "_samples"  # ends the name of a file of samples before `.jsonl`
# What lm-eval's metrics are called there, where it is not the same
_IDENTIFIERS = {"acc": "accuracy", "em": "exact_match", "ppl": "perplexity"}


# ---- scores ----------------------------------------------------------------------------------------------------------

_OF_SPLIT = re.compile(r"(?:test|val|validation|eval)_(\w+)")
_CI95 = 1.959964


def _named(name: str, metric: object, result: Document, library: object) -> tuple[str, str | None]:
    """Benchmark and metric. Of lm-eval's files the converter of every_eval_ever writes the filter behind a slash; of a
    metric behind its split (`test_mcc`) the benchmark is the dataset."""
    if metric:
        return name, metric_key(checked("metric", metric, name))
    dataset, of_split = part(result, "source_data").get("dataset_name"), _OF_SPLIT.fullmatch(name)
    if isinstance(dataset, str) and of_split and metric_direction(of_split[1]) is not None:
        return dataset, metric_key(of_split[1])
    described = part(result, "metric_config").get("evaluation_description")
    if library != "lm_eval" or not isinstance(described, str):
        return name, None
    key, _, rest = described.partition(" (filter: ")
    rest = rest.removesuffix(")")
    return name.removesuffix(f"/{rest}") if rest else name, f"{key},{rest or 'none'}"


def _own(details: object) -> Document:
    """What `export every-eval-ever` wrote for the format has no place for it."""
    return {key.removeprefix(OWN): value for key, value in part(details).items() if key.startswith(OWN)}


def _results(root: Place) -> Iterator[tuple[object, Document]]:
    """The results of an evaluation, with the benchmark and the metric that are meant. Scores in percent, by the name of
    the unit, else by the largest score that there can be, become shares; half a 95% interval gives the error."""
    library = root.find("^eval_library.name")
    for number, result in enumerate(root.root["evaluation_results"], 1):
        name = checked("benchmark", part(result).get("evaluation_name"), f"{root.path}, result {number}, the name")
        config, generation = part(result, "metric_config"), part(result, "generation_config")
        said, drawn = _own(config.get("additional_details")), part(generation, "generation_args")
        metric = config.get("metric_id") or config.get("metric_name")
        benchmark, metric = _named(name, metric, result, library)
        if metric == "mean_win_rate,none":  # HELM's, of places among models
            continue
        unit = str(config.get("metric_unit")).casefold()
        is_percent = not said and (unit in ("percent", "percentage", "%") or config.get("max_score") == 100)
        factor = 0.01 if is_percent else 1.0
        value, uncertainty = part(result, "score_details").get("score"), part(result, "score_details", "uncertainty")
        error, interval = uncertainty.get("standard_error"), part(uncertainty, "confidence_interval")
        error = error.get("value") if isinstance(error, dict) else error
        if finite(error) is None and interval.get("confidence_level") == 0.95:
            low, high = (finite(interval.get(end)) for end in ("lower", "upper"))
            error = None if low is None or high is None or high < low else (high - low) / 2 / _CI95
        scored = uncertainty.get("num_samples")
        if scored is None or interval:  # then those may be resamples
            scored = part(result, "source_data").get("samples_number")
        shots = part(generation, "additional_details").get("num_fewshot")
        lower = config.get("lower_is_better")
        columns = {
            "benchmark": said.get("benchmark") or benchmark,
            "metric": said.get("metric") or metric,
            "value": value if (score := finite(value)) is None else score * factor,
            "stderr": None if (size := finite(error)) is None else size * factor,
            "n_items": scored,
            "higher_is_better": not lower if isinstance(lower, bool) else lower,
            "num_fewshot": parsed(shots or part(config, "additional_details").get("num_fewshot")),
            "drawn": "" if is_sampled(drawn) else None,
            "temperature": drawn.get("temperature"),
            "top_p": drawn.get("top_p"),
            "max_gen_toks": drawn.get("max_tokens"),
        }
        yield (
            f"result {number} ({name})",
            columns | ({"selected": said["selected"] == "true"} if "selected" in said else {}),
        )


def _point(details: object, of_model: object) -> Mapping[str, object]:
    if own := _own(details):
        return {name: parsed(own.get(name)) if name in _NUMBERS else own.get(name) for name in _OF_FILE}
    arguments, revision = parse_arguments(part(of_model).get("model_args")), part(of_model).get("revision")
    return training_point(arguments | ({"revision": str(revision)} if revision else {})).claim()


def _load(opened: Opened) -> list[Any]:
    """The evaluations of a file that has one in each line; samples are read with the file that they are beside."""
    path = opened.path
    if path.suffix != ".jsonl":
        return [opened.document]
    if path.stem.endswith(_SAMPLES):
        if not (owner := path.with_name(path.stem.removesuffix(_SAMPLES) + ".json")).is_file():
            raise InputError(f"{path}: no {owner.name} beside it, which tells model and scores.", _HINT)
        return []
    return json_lines(path, _HINT)


def _recognises(opened: Opened) -> bool:
    keys = (b"evaluation_id", b"sample_id" if opened.path.stem.endswith(_SAMPLES) else b'"evaluation_results"')
    if opened.path.suffix == ".jsonl":
        return all(key in opened.head.partition(b"\n")[0] for key in keys)
    return isinstance(part(opened.document).get("evaluation_results"), list)


def _with_samples(file: ScoreFile, root: Place) -> ScoreFile:
    """The file with the items of the samples beside it. Raises InputError for a broken file of samples."""
    named = root.find("^detailed_evaluation_results.file_path")
    names = (*([Path(named).name] if isinstance(named, str) else []), f"{root.path.stem}{_SAMPLES}.jsonl")
    samples = next((path for name in names if (path := root.path.with_name(name)).is_file()), None)
    if samples is None:
        return file
    items = [*items_of(_answers(samples, root))]  # broken lines are found before anything is written
    return replace(file, items=lambda: items)


def _answers(path: Path, root: Place) -> Iterator[Answer]:
    """The samples; of several answers to one document the first counts. Raises InputError, with the line, for what is
    no sample."""
    meant = dict[object, Document]()
    for result, (_, columns) in zip(root.root["evaluation_results"], _results(root), strict=False):
        meant.setdefault(result["evaluation_name"], columns)
        meant[result.get("evaluation_result_id")] = columns
    seen = set[tuple[object, ...]]()
    for number, sample in enumerate(json_lines(path, _HINT), 1):
        where = f"{path}, line {number}"
        name = checked("benchmark", part(sample).get("evaluation_name"), where)
        document = checked("doc_id", sample.get("sample_id") or None, where)
        value = checked("value", part(sample, "evaluation").get("score"), where)
        check_encodable(document, where)
        columns = meant.get(sample.get("evaluation_result_id") or name) or meant.get(name) or {}
        raw = part(sample, "output").get("raw")
        response = raw[0] if isinstance(raw, list) and raw else raw
        item = Item(
            benchmark=columns.get("benchmark", name), doc_id=document, num_fewshot=columns.get("num_fewshot"),
            doc_hash=fitting("doc_hash", sample.get("sample_hash")),
            response=response.encode(errors="replace").decode() if isinstance(response, str) else None,
        )  # fmt: skip
        answer = Answer(item, columns.get("metric"), value)
        if (key := (item["benchmark"], document, answer.metric)) not in seen:
            seen.add(key)
            yield answer


_OF_MODEL = "^model_info.additional_details"
EVERY_EVAL_EVER = Spec(
    "every_eval_ever",
    _recognises,
    _results,
    {
        "model": "^model_info.id",
        "": ("^source_metadata.additional_details", _OF_MODEL, "%", lambda own, of_model, path: _point(own, of_model)),
        "harness": ("^eval_library.name", lambda name: str(name).replace("_", "-")),
        "harness_version": ("^eval_library.version", lambda version: None if version == "unknown" else str(version)),
        "backend": ("^model_info.inference_engine.name", str),
        "date": ("^evaluation_timestamp", "^retrieved_timestamp", "%",
                 lambda evaluated, retrieved, path: date_of(evaluated, retrieved) or date_in(path.stem)),
        "weights": (f"{_OF_MODEL}.revision", str),
        "settings": ("^evaluation_results", lambda results: " ".join(sorted(
            {json.dumps(part(result).get("generation_config"), sort_keys=True) for result in results}))),
        "parameters_b": (f"{_OF_MODEL}.params_billions", parsed),
    },
    load=_load,
    finish=_with_samples,
    suffixes=(".json", ".jsonl"),
)  # fmt: skip


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
