"""Scores -> result files in lm-eval's own layout, for programs that read those, and files of every_eval_ever."""

import hashlib
import json
import re
import time
import uuid
from collections import Counter
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
# Result files in lm-eval's own layout.


def write_lm_eval(scores: pd.DataFrame, output: str | Path) -> list[Path]:
    """Write one file per (model, checkpoint, iteration, tokens_b, protocol, prompt, prompt_variant, seed, run, split),
    and a further one where a benchmark has scores with several numbers of solved examples; the paths.

    `<output>/<model>/results_<protocol>...json`, as lm-eval writes `<output_path>/<model>/results_<date>.json`, with
    `results`, `versions`, `n-shot`, `higher_is_better`, `n-samples`, `group_subtasks`, `config` and `model_name`.
    `n-shot` has the benchmarks whose `num_fewshot` is known. Raises InputError, writing nothing, where a score's
    metric is unknown (lm-eval's files name scores by it: `completed` takes it from a sheet), where a value is missing,
    where two files would have one name, and where a model's name is none that a folder can have.
    """
    files = _files(scores, "lm-eval's files")
    paths = _paths(files)
    for path, file in zip(paths, files, strict=True):
        write_json(Path(output) / path, _lm_eval_document(file))
    return [Path(output) / path for path in paths]


def _paths(files: list[_File]) -> list[Path]:
    """A path of its own for each file: with the point of training only where files of one name differ in them."""
    for file in files:
        if _folder_name(file.model) in ("", ".", ".."):
            raise InputError(f"model {file.model!r}: no folder can have its name.", "rename it in the table of scores.")
    paths = [_path(file) for file in files]
    count = Counter(paths)
    paths = [_path(file, exact=True) if count[path] > 1 else path for path, file in zip(paths, files, strict=True)]
    for path, times in Counter(paths).items():
        if times > 1:
            models = {file.model for other_path, file in zip(paths, files, strict=True) if other_path == path}
            raise InputError(
                f"{times} files of {' and '.join(sorted(models))} would have the name {path}.",
                "rename a model or a checkpoint, or export them into folders of their own.",
            )
    return paths


def _path(file: _File, *, exact: bool = False) -> Path:
    """Below the output folder. `exact`: with iteration and tokens."""
    common = file.common
    parts = [common["protocol"], common["checkpoint"], common["prompt"], common["split"], common["prompt_variant"]]
    parts += [f"seed{common['seed']}"] if common["seed"] is not None else []
    parts += [f"run{common['run']}"] if common["run"] is not None else []
    parts += [f"part{file.part}"] if file.part > 1 else []
    if exact:
        parts += [f"iter{common['iteration']}"] if common["iteration"] is not None else []
        parts += [f"{common['tokens_b']!r}B"] if common["tokens_b"] is not None else []
    name = "_".join(["results", *(part for part in parts if part)])
    return Path(_folder_name(file.model)) / f"{_folder_name(name)}.json"


def _folder_name(name: str) -> str:
    """The folder name that lm-eval derives from a model's name."""
    return name.replace("/", "__")


def _lm_eval_document(file: _File) -> dict[str, object]:
    results: dict[str, dict[str, object]] = {}
    shots: dict[str, object] = {}
    directions: dict[str, dict[str, bool]] = {}
    counts: dict[str, dict[str, object]] = {}
    selected: dict[str, object] = {}
    for benchmark, rows in file.rows.groupby("benchmark", sort=True):
        results[benchmark], directions[benchmark] = {"alias": benchmark}, {}
        for row in rows.itertuples():
            name, _, filter_name = row.metric.partition(",")
            filter_name = filter_name or "none"
            results[benchmark][f"{name},{filter_name}"] = float(row.value)
            results[benchmark][f"{name}_stderr,{filter_name}"] = "N/A" if pd.isna(row.stderr) else float(row.stderr)
            if not pd.isna(row.higher_is_better):
                directions[benchmark][name] = bool(row.higher_is_better)
        if (number := _plain(rows["num_fewshot"].iloc[0])) is not None:
            shots[benchmark] = number
        if (number := _plain(rows["n_items"].iloc[0])) is not None:
            counts[benchmark] = {"original": number, "effective": number}
        selected[benchmark] = _plain(rows["selected"].iloc[0])
    return {
        "results": results,
        "group_subtasks": {benchmark: [] for benchmark in results},
        "configs": {},
        "versions": {},
        "n-shot": shots,
        "higher_is_better": directions,
        "n-samples": counts,
        "config": {"model": "hf", "model_args": {"pretrained": file.model}, "bootstrap_iters": 0},
        "model_source": "hf",
        "model_name": file.model,
        "model_name_sanitized": _folder_name(file.model),
        # lm-eval puts the template's text here, which a table of scores does not have
        "chat_template": "the model's own" if file.common["prompt"] == "chat" else None,
        "lm_validity": {**file.common, "selected": selected},
    }


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
