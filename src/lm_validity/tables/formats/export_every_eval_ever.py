"""Scores -> files of every_eval_ever."""

import hashlib
import json
import re
import time
import uuid
from pathlib import Path
from typing import Any

import pandas as pd

from lm_validity import __version__
from lm_validity.errors import InputError
from lm_validity.files import write_json
from lm_validity.tables.formats.export_rows import OWN_COLUMNS, OfFile, file_groups, plain
from lm_validity.tables.formats.import_every_eval_ever import METRICS, OWN, VERSION, check_schema

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")


def write_every_eval_ever(
    scores: pd.DataFrame,
    output: str | Path,
    organization: str,
    relationship: str = "other",
    collection: str = "lm-validity",
    schema: dict[str, Any] | None = None,
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
    for model, own, rows in file_groups(scores, "files of every_eval_ever"):
        key = json.dumps([collection, model, own._asdict()], sort_keys=True)
        digest = hashlib.sha256(key.encode()).digest()
        name = uuid.UUID(bytes=digest[:16], version=4)
        developer, _, short = model.rpartition("/")
        path = Path("data", *(_file_name(part) for part in (collection, developer or "unknown", short)), f"{name}.json")
        document = _document(model, own, rows, f"{collection}/{_file_name(model)}/{name}")
        document["source_metadata"] |= {
            "source_organization_name": organization,
            "evaluator_relationship": relationship,
        }
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
    kept = scores.assign(higher_is_better=direction)[direction.notna()]
    if kept.empty:
        raise InputError(
            f"no score of which it is known whether higher is better (metrics: {', '.join(unknown) or 'none'}).",
            "give --benchmarks with a sheet of metrics and directions.",
        )
    return kept, unknown


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "unknown"


def _document(model: str, own: OfFile, rows: pd.DataFrame, identifier: str) -> dict[str, Any]:
    """The file without who publishes it. Details are texts, as the format asks."""
    sources = set(rows["source"].dropna())
    library = {"name": "lm-validity", "version": __version__}
    if sources == {"lm-eval"}:
        library = {"name": "lm_eval", "version": "unknown"}
    details = {f"{OWN}{name}": _text(value) for name in OWN_COLUMNS if (value := getattr(own, name)) is not None}
    developer = {"developer": model.split("/")[0]} if "/" in model else {}
    return {
        "schema_version": VERSION,
        "evaluation_id": identifier,
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {
            "source_name": "lm-validity",
            "source_type": "evaluation_run" if sources <= {"lm-validity", "lm-eval"} else "documentation",
            "additional_details": details,
        },
        "eval_library": library,
        "model_info": {
            "name": model,
            "id": model,
            **developer,
            "additional_details": {"deployment_type": "unknown", "model_availability": "unknown"},
        },
        "evaluation_results": [_result(row) for row in rows.itertuples()],
    }


def _result(row: Any) -> dict[str, Any]:
    name, _, filter_name = row.metric.partition(",")
    known = METRICS.get(name)
    metric = {
        "evaluation_description": name if filter_name == "none" else f"{name} (filter: {filter_name})",
        "metric_id": known.identifier if known else name,
        "metric_name": name,
        "lower_is_better": not row.higher_is_better,
        "additional_details": {
            f"{OWN}benchmark": row.benchmark,
            f"{OWN}metric": row.metric,
            f"{OWN}selected": _text(pd.isna(row.selected) or bool(row.selected)),
        },
    }
    if known is None:
        metric["additional_details"]["bounds_status"] = "unknown"
    else:
        metric |= {"score_type": "continuous", "min_score": known.low, "max_score": known.high}
        metric |= {"metric_unit": "proportion"} if known.high == 1 else {}
    uncertainty: dict[str, object] = {}
    if not pd.isna(row.stderr):
        uncertainty["standard_error"] = {"value": float(row.stderr)}
    if not pd.isna(row.n_items):
        uncertainty["num_samples"] = int(row.n_items)
    details = {"score": float(row.value)} | ({"uncertainty": uncertainty} if uncertainty else {})
    shots = plain(row.num_fewshot)
    asked = {} if shots is None else {"generation_config": {"additional_details": {"num_fewshot": str(shots)}}}
    return {
        "evaluation_name": row.benchmark if filter_name == "none" else f"{row.benchmark}/{filter_name}",
        "source_data": {"dataset_name": row.benchmark, "source_type": "other"},
        "metric_config": metric,
        "score_details": details,
        **asked,
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
