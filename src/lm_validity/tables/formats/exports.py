"""Scores -> result files in lm-eval's own layout, for programs that read those, and files of every_eval_ever."""

import hashlib
import json
import re
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lm_validity import __version__
from lm_validity.errors import InputError
from lm_validity.files import Document, write_json
from lm_validity.tables.claims import Claim, as_record
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.import_every_eval_ever import METRICS, OWN, VERSION, check_schema
from lm_validity.tables.schema import SCORES

# ----------------------------------------------------------------------------------------------------------------------
# Scores divided into files, and the refusal of scores that no file has a place for.


class _File(NamedTuple):
    """What a file holds: the model, what else holds of all its scores (`checked.OF_FILE`; None where unknown), and its
    rows. A file has one number of solved examples of a benchmark: a second one is in the file whose `part` is 2."""

    model: str
    common: Claim
    part: int
    rows: pd.DataFrame


def _files(scores: pd.DataFrame, files: str) -> list[_File]:
    """The files of scores, sorted. Raises InputError where a score has no metric or no finite value; `files` names
    the format in its hint.
    """
    scores = scores.reindex(columns=SCORES.names)
    _check_known(scores, scores["metric"].notna(), "metric", f"{files} name each score by its metric")
    finite = np.isfinite(scores["value"].to_numpy(dtype=float, na_value=np.nan))
    _check_known(scores, finite, "finite value", f"{files} have no place for a missing score")
    frame = scores.assign(**{column: scores[column].astype(object) for column in checked.OF_FILE})
    counts = frame.assign(count=scores["num_fewshot"].astype("Float64").fillna(-1))
    evaluation = ["model", *checked.OF_FILE, "benchmark"]
    frame["part"] = counts.groupby(evaluation, dropna=False)["count"].rank("dense").astype(int)
    columns, groups = [*checked.OF_FILE, "part"], []
    for (model, *key), rows in frame.groupby(["model", *columns], dropna=False, sort=True):
        common = dict(zip(columns, map(_plain, key), strict=True))
        # pandas makes floats of whole numbers among nulls
        common |= {name: int(common[name]) for name in ("iteration", "seed", "run", "part") if common[name] is not None}
        part = common.pop("part")
        groups.append(_File(model, as_record(Claim, common), part, rows))
    return groups


def _plain(value: Any) -> Any:
    """Python's own type of a table's value; None for null."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def _check_known(scores: pd.DataFrame, is_known: pd.Series | np.ndarray, noun: str, reason: str) -> None:
    unknown = scores[~np.asarray(is_known, dtype=bool)]
    if len(unknown):
        first = unknown.iloc[0]
        raise InputError(
            f"{len(unknown)} of {len(scores)} scores have no {noun}, the first of {first['model']} on "
            f"{first['benchmark']}.",
            f"{reason}: fill it in (--benchmarks with a sheet gives metrics and directions), or remove these rows.",
        )


# ----------------------------------------------------------------------------------------------------------------------
# Files of every_eval_ever.

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")


def write_every_eval_ever(
    scores: pd.DataFrame,
    output: str | Path,
    organization: str,
    relationship: str = "other",
    collection: str = "lm-validity",
    schema: Document | None = None,
) -> list[Path]:
    """Write `<output>/data/<collection>/<developer>/<model>/<uuid>.json`, one file per evaluation; the paths.

    Every score has a direction (`with_directions`). organization: who publishes the scores; relationship: theirs to the
    models' developers. The same evaluation has the same identifier and path each time. What the format has no place for
    stands under keys that begin with `lm_validity_`, from which `import every-eval-ever` reads the same rows back.
    Raises InputError, writing nothing, where a score has no metric or no finite value, and for a file that does not fit
    the `schema`.
    """
    if relationship not in RELATIONSHIPS:
        raise InputError(f"--relationship {relationship}: not known.", f"one of {', '.join(RELATIONSHIPS)}.")
    documents = {}
    for file in _files(scores, "files of every_eval_ever"):
        model = file.model
        key = json.dumps([collection, model, {**file.common, "part": file.part}], sort_keys=True)
        digest = hashlib.sha256(key.encode()).digest()
        name = uuid.UUID(bytes=digest[:16], version=4)
        developer, _, short = model.rpartition("/")
        path = Path("data", *(_file_name(part) for part in (collection, developer or "unknown", short)), f"{name}.json")
        publisher = {"source_organization_name": organization, "evaluator_relationship": relationship}
        document = _document(file, f"{collection}/{_file_name(model)}/{name}", publisher)
        check_schema(document, schema, str(path))
        documents[Path(output) / path] = document
    for path, document in documents.items():
        write_json(path, document)
    return list(documents)


def with_directions(scores: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The scores of which it is known whether higher is better, and the metrics of the others.

    Where the table leaves it open the metric tells, if it is one of `METRICS`. Raises InputError where none is left.
    """
    names = scores["metric"].str.partition(",")[0]
    by_name = names.map({name: metric.higher_is_better for name, metric in METRICS.items()}).astype("boolean")
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


def _document(file: _File, identifier: str, publisher: dict[str, str]) -> dict[str, object]:
    """The file. Details are texts, as the format asks."""
    model, sources = file.model, set(file.rows["source"].dropna())
    library = {"name": "lm-validity", "version": __version__}
    if sources == {"lm-eval"}:
        library = {"name": "lm_eval", "version": "unknown"}
    details = {f"{OWN}{name}": str(value) for name, value in file.common.items() if value is not None}
    developer = {"developer": model.split("/")[0]} if "/" in model else {}
    return {
        "schema_version": VERSION,
        "evaluation_id": identifier,
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {
            "source_name": "lm-validity",
            "source_type": "evaluation_run" if sources <= {"lm-validity", "lm-eval"} else "documentation",
            "additional_details": details,
            **publisher,
        },
        "eval_library": library,
        "model_info": {
            "name": model,
            "id": model,
            **developer,
            "additional_details": {"deployment_type": "unknown", "model_availability": "unknown"},
        },
        "evaluation_results": [_result(row) for row in file.rows.itertuples()],
    }


def _result(row: Any) -> dict[str, object]:
    name, _, filter_name = row.metric.partition(",")
    metric_known = METRICS.get(name)
    metric_details = {
        f"{OWN}benchmark": row.benchmark,
        f"{OWN}metric": row.metric,
        f"{OWN}selected": str(pd.isna(row.selected) or bool(row.selected)).lower(),
    }
    metric: dict[str, object] = {
        "evaluation_description": name if filter_name == "none" else f"{name} (filter: {filter_name})",
        "metric_id": metric_known.identifier if metric_known else name,
        "metric_name": name,
        "lower_is_better": not row.higher_is_better,
        "additional_details": metric_details,
    }
    if metric_known is None:
        metric_details["bounds_status"] = "unknown"
    else:
        metric |= {"score_type": "continuous", "min_score": metric_known.low, "max_score": metric_known.high}
        metric |= {"metric_unit": "proportion"} if metric_known.high == 1 else {}
    uncertainty: dict[str, object] = {}
    if not pd.isna(row.stderr):
        uncertainty["standard_error"] = {"value": float(row.stderr)}
    if not pd.isna(row.n_items):
        uncertainty["num_samples"] = int(row.n_items)
    details = {"score": float(row.value)} | ({"uncertainty": uncertainty} if uncertainty else {})
    shots = _plain(row.num_fewshot)
    generation = {} if shots is None else {"generation_config": {"additional_details": {"num_fewshot": str(shots)}}}
    return {
        "evaluation_name": row.benchmark if filter_name == "none" else f"{row.benchmark}/{filter_name}",
        "source_data": {"dataset_name": row.benchmark, "source_type": "other"},
        "metric_config": metric,
        "score_details": details,
        **generation,
    }
