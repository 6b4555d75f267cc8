"""Files of one evaluation each: logs of Inspect, and every_eval_ever's, an interchange format, read and written.

A log of Inspect is a zip archive of JSON (`.eval`) or JSON. A file of every_eval_ever
(github.com/evaleval/every_eval_ever) has `model_info`, `source_metadata`, `eval_library` and a list
`evaluation_results`, each with a name, a metric and a score.
"""

import hashlib
import json
import re
import time
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lm_validity import __version__
from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError, first_line
from lm_validity.files import Document, write_json
from lm_validity.tables.formats import engine
from lm_validity.tables.formats.engine import Answer, Place, Spec, checked, finite, is_sampled, parsed, part
from lm_validity.tables.formats.score_files import Opened, parse_arguments, training_point
from lm_validity.tables.metrics import SHARES_OF_ITEMS, metric_direction
from lm_validity.tables.schema import SCORES, Claim, Item

# ----------------------------------------------------------------------------------------------------------------------
# Inspect.

_LOG_HINT = "Inspect writes such a log into ./logs: <date>_<task>_<id>.eval."
_ERRORS = frozenset(("stderr", "bootstrap_stderr"))
_MEANS = ("accuracy", "mean")  # the metrics of which `stderr` is the standard error, and answers have values
_NO_SCORES = _ERRORS | {"std", "var"}
_SHOTS = ("num_fewshot", "fewshot", "shots")  # of a task's arguments
_ZSTANDARD, _HEADER = 93, 30  # the compression of a zip's member; bytes of its header before name and extra field
_SAME = 1e-6  # of a score and the mean of its answers
# What a scorer's value counts: correct, partly, incorrect, no answer; other texts count nothing
_VALUES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def _member(path: Path, name: str) -> Any:
    """The JSON value of a member of a log. Inspect compresses with Zstandard, which Python's zipfile does not know."""
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            entry = archive.getinfo(name)
            if entry.compress_type != _ZSTANDARD:
                return json.loads(archive.read(entry))
            file.seek(entry.header_offset)
            header = file.read(_HEADER)
            file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
            packed = pa.BufferReader(file.read(entry.compress_size))
            return json.loads(pa.input_stream(packed, compression="zstd").read())
    except (zipfile.BadZipFile, zlib.error, KeyError, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"{path}: not a log of Inspect ({first_line(error)}).", _LOG_HINT) from error


def _log(opened: Opened) -> Document:
    """A log, or its header. Raises InputError for a run that did not end well."""
    log = _member(opened.path, "header.json") if opened.path.suffix == ".eval" else opened.document
    if part(log).get("status") != "success" or not isinstance(log.get("results"), dict):
        problem = f"{opened.path}: the run has no scores (it ended as {part(log).get('status')!r})."
        raise InputError(problem, "`inspect eval-retry`.")
    return part(log)


def _metrics(scorer: Document) -> dict[str, object]:
    return {name: part(metric).get("value") for name, metric in part(scorer, "metrics").items()}


def _log_scores(root: Place) -> Iterator[tuple[object, Document]]:
    """The scores, `metric,scorer`. Of a mean over epochs each of these, which is a run: another way to join them (the
    commonest answer, one of k) gives one score."""
    log, results = root.root, root.root["results"]
    epochs = log["eval"]["config"].get("epochs") or 1
    totals = (part(log["eval"], "dataset").get("samples"), (results.get("total_samples") or 0) // epochs)
    total = max((number for number in totals if type(number) is int), default=0) or None
    answers = _log_answers(root) if epochs > 1 else pd.DataFrame()
    for scorer in engine.objects(results.get("scores")):
        metrics = _metrics(scorer)
        error = next((metrics[name] for name in metrics if name in _ERRORS), None)
        items = scorer.get("scored_samples") or (results.get("completed_samples") or 0) // epochs or None
        for name, value in metrics.items():
            if name in _NO_SCORES or finite(value) is None:
                continue
            key = f"{name},{scorer.get('name')}"
            cell = {"metric": key, "value": value, "n_items": items, "n_items_total": total}
            cell["stderr"] = error if name in _MEANS else None
            runs = list[Document]()
            if len(answers):
                own = answers[answers["key"] == key]
                table = own.pivot_table(index="document", columns="epoch", values="value").dropna()
                if table.shape[1] > 1 and abs(table.to_numpy().mean() - value) <= _SAME:
                    runs = [{**engine.mean_of_items(table[epoch].to_numpy()), "run": epoch - 1} for epoch in table]
            for run in runs or [{}]:
                yield key, cell | run


def _value(value: object) -> float:
    """What a scorer's value counts, as in Inspect's own means."""
    number = finite(float(value) if isinstance(value, bool) else parsed(value))
    return _VALUES.get(str(value).strip().lower(), 0.0) if number is None else number


def _log_answers(root: Place) -> pd.DataFrame:
    """The answers that a metric `metric,scorer` is a mean of: `key, document, epoch, value, answer`."""
    keys = {str(scorer.get("name")): metric for scorer in engine.objects(root.root["results"].get("scores"))
            if (metric := next((name for name in _MEANS if name in _metrics(scorer)), None))}  # fmt: skip
    samples = _member(root.path, "summaries.json") if root.path.suffix == ".eval" else root.root.get("samples")
    rows = [
        (f"{metric},{name}", str(item.get("id")), item.get("epoch") or 1, _value(score["value"]), score.get("answer"))
        for name, metric in keys.items()
        for item in engine.objects(samples)
        if not isinstance((score := part(item, "scores", name)).get("value"), dict | list | None)
    ]
    return pd.DataFrame(rows, columns=["key", "document", "epoch", "value", "answer"])


def _answers_of_log(path: Path, root: Place, rows: list[Claim]) -> Iterator[Answer]:
    """The answers to the samples that were scored, of runs by epoch."""
    by_epoch = all("run" in row for row in rows)
    shared = Item(benchmark=rows[0]["benchmark"], num_fewshot=rows[0].get("num_fewshot"))
    for row in _log_answers(root).itertuples():
        run = row.epoch - 1 if by_epoch else None
        yield Answer(shared | Item(doc_id=row.document, run=run, response=row.answer), row.key, row.value)


_CONFIG, _GENERATE = "eval.config", "eval.model_generate_config"
INSPECT = Spec(
    "inspect",
    lambda opened: opened.path.suffix == ".eval" or {"eval", "status", "plan"} <= part(opened.document).keys(),
    _log_scores,
    {
        # of providers whose models are called by their hub ids, these
        "model": ("eval.model_args.model_path|eval.model", lambda name: re.sub("^(hf|vllm|sglang)/", "", name)),
        "benchmark": ("eval.task", lambda name: name.rpartition("/")[2] if isinstance(name, str) else name),
        "num_fewshot": ("eval.task_args", lambda task: next(
            (task[key] for key in _SHOTS if type(task.get(key)) is int), None)),
        "": ("eval.model_args.revision", lambda revision: training_point({"revision": str(revision)})),
        "date": ("eval.created", engine.date_of),
        "limited": (f"{_CONFIG}.limit|{_CONFIG}.sample_id", lambda limit: True),
        "log": ("eval.eval_id|eval.run_id", str),
        "weights": ("eval.model", "eval.model_args", lambda *model: json.dumps(model, sort_keys=True)),
        "settings": ("eval", lambda run: json.dumps({
            "generation": run.get("model_generate_config"), "task": run.get("task_args"),
            "epochs": run["config"].get("epochs")}, sort_keys=True)),
        "drawn": (_GENERATE, f"{_GENERATE}.seed", lambda drawn, seed: (
            "" if seed is None else str(seed)) if is_sampled(drawn) else None),
        "harness_version": "eval.packages.inspect_ai",
        "task_version": ("eval.task_version", str),
        "limit": (f"{_CONFIG}.limit", lambda limit: limit[1] - limit[0] if isinstance(limit, list) else limit),
        "temperature": f"{_GENERATE}.temperature",
        "top_p": f"{_GENERATE}.top_p",
        "max_gen_toks": f"{_GENERATE}.max_tokens",
        "backend": ("eval.model", lambda name: str(name).partition("/")[0]),
    },
    load=lambda opened: [_log(opened)],
    answers_in=lambda root: root.path,
    answers=_answers_of_log,
)  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# every_eval_ever.

VERSION = "0.3.0"  # of the schema that exported files follow
OWN = "lm_validity_"  # begins the keys of what the format has no place for
# Columns of claims that hold for a whole file, for which the format has no place
_OF_FILE = ("checkpoint", "iteration", "tokens_b", "protocol", "prompt", "prompt_variant", "seed", "run", "split")
_NUMBERS = ("iteration", "tokens_b", "seed", "run")
# What lm-eval's metrics are called there, where it is not the same
_IDENTIFIERS = {"acc": "accuracy", "em": "exact_match", "ppl": "perplexity"}


# ---- scores ----------------------------------------------------------------------------------------------------------

_OF_SPLIT = re.compile(r"(?:test|val|validation|eval)_(\w+)")
_CI95, _PERCENT = 1.959964, ("percent", "percentage", "%")


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
    """What `export every-eval-ever` wrote where the format has no place for it."""
    return {key.removeprefix(OWN): value for key, value in part(details).items() if key.startswith(OWN)}


def _results(root: Place) -> Iterator[tuple[object, Document]]:
    """The results of an evaluation, with the benchmark and the metric that are meant. Scores in percent, by the name of
    the unit, else by the largest score that there can be, become shares; half a 95% interval gives the error."""
    library = root.find("eval_library.name")
    for number, result in enumerate(root.root["evaluation_results"], 1):
        name = checked("benchmark", part(result).get("evaluation_name"), f"{root.path}, result {number}, the name")
        config, generation = part(result, "metric_config"), part(result, "generation_config")
        said, drawn = _own(config.get("additional_details")), part(generation, "generation_args")
        metric = config.get("metric_id") or config.get("metric_name")
        benchmark, metric = _named(name, metric, result, library)
        if metric == "mean_win_rate,none":  # HELM's, of places among models
            continue
        unit = str(config.get("metric_unit")).casefold()
        factor = 0.01 if not said and (unit in _PERCENT or config.get("max_score") == 100) else 1.0
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
        columns: Document = {
            "benchmark": said.get("benchmark") or benchmark,
            "metric": said.get("metric") or metric,
            "value": value if (score := finite(value)) is None else score * factor,
            "stderr": None if (size := finite(error)) is None else size * factor,
            "n_items": scored,
            "higher_is_better": not lower if isinstance(lower := config.get("lower_is_better"), bool) else lower,
            "num_fewshot": parsed(shots or part(config, "additional_details").get("num_fewshot")),
            "drawn": "" if is_sampled(drawn) else None,
            "temperature": drawn.get("temperature"),
            "top_p": drawn.get("top_p"),
            "max_gen_toks": drawn.get("max_tokens"),
        }
        columns |= {"selected": said["selected"] == "true"} if "selected" in said else {}
        yield f"result {number} ({name})", columns


def _point(details: object, of_model: object) -> Mapping[str, object]:
    if own := _own(details):
        return {name: parsed(own.get(name)) if name in _NUMBERS else own.get(name) for name in _OF_FILE}
    arguments, revision = parse_arguments(part(of_model).get("model_args")), part(of_model).get("revision")
    return training_point(arguments | ({"revision": str(revision)} if revision else {}))


def _evaluations(file: Opened) -> list[Any]:
    """The evaluations of a file. Raises InputError for samples, whose scores stand in the file beside it."""
    if "evaluation_results" not in file.document:
        problem = f"{file.path}: answers of every_eval_ever are not read."
        raise InputError(problem, "its scores are in the file beside it.")
    return engine.roots(file)


_OF_MODEL = "model_info.additional_details"
EVERY_EVAL_EVER = Spec(
    "every_eval_ever",
    lambda opened: "evaluation_results" in (keys := part(opened.document).keys())
    or {"evaluation_id", "sample_id"} <= keys,
    _results,
    {
        "model": "model_info.id",
        "": ("source_metadata.additional_details", _OF_MODEL, "%", lambda own, of_model, path: _point(own, of_model)),
        "harness": ("eval_library.name", lambda name: str(name).replace("_", "-")),
        "harness_version": ("eval_library.version", lambda version: None if version == "unknown" else str(version)),
        "backend": ("model_info.inference_engine.name", str),
        "date": ("evaluation_timestamp", "retrieved_timestamp", engine.date_of),
        "weights": (f"{_OF_MODEL}.revision", str),
        "settings": ("evaluation_results", lambda results: " ".join(sorted(
            {json.dumps(part(result).get("generation_config"), sort_keys=True) for result in results}))),
        "parameters_b": (f"{_OF_MODEL}.params_billions", parsed),
    },
    load=_evaluations,
)  # fmt: skip


# ---- export ----------------------------------------------------------------------------------------------------------


def write_every_eval_ever(
    scores: pd.DataFrame, output: Path, organization: str, relationship: str = "other", collection: str = "lm-validity"
) -> list[Path]:
    """Write `<output>/data/<collection>/<developer>/<model>/<uuid>.json`, one file per evaluation; the paths.

    scores: as `with_directions` gives them. organization: who publishes the scores; relationship: theirs to the
    models' developers. The same evaluation has the same identifier and path each time. What the format has no place for
    stands under keys that begin with `lm_validity_`, from which an import reads the same rows back.
    """
    scores = scores.reindex(columns=SCORES.names)
    publisher = {"source_organization_name": organization, "evaluator_relationship": relationship}
    columns, documents = ["model", *_OF_FILE], dict[Path, Document]()
    for _, rows in scores.astype(dict.fromkeys(columns, object)).groupby(columns, dropna=False, sort=True):
        common = {name: None if pd.isna(value) else value for name, value in rows.iloc[0][columns].items()}
        digest = hashlib.sha256(json.dumps([collection, common], sort_keys=True).encode()).digest()
        name, model = uuid.UUID(bytes=digest[:16], version=4), str(common.pop("model"))
        developer, _, short = model.rpartition("/")
        path = Path("data", *map(_file_name, (collection, developer or "unknown", short)), f"{name}.json")
        document = _document(model, common, rows, publisher)
        documents[output / path] = document | {"evaluation_id": f"{collection}/{_file_name(model)}/{name}"}
    for path, document in documents.items():
        write_json(path, document)
    return list(documents)


def with_directions(scores: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The scores with a value of which it is known whether higher is better, by the table or by the metric, and the
    metrics of the others. Raises InputError where none is left."""
    scores = scores[scores["value"].notna()]
    names = scores["metric"].str.partition(",")[0]
    by_name = names.map({name: metric_direction(name) for name in names.dropna().unique()}).astype("boolean")
    direction = scores["higher_is_better"].astype("boolean").fillna(by_name)
    is_known = direction.notna() & names.notna()
    unknown = sorted(names[~is_known].fillna("no metric").unique())
    if not is_known.any():
        problem = f"no score of which it is known whether higher is better (metrics: {', '.join(unknown)})."
        raise InputError(problem, "give --benchmarks with a sheet of metrics and directions.")
    return scores.assign(higher_is_better=direction)[is_known], unknown


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "unknown"


def _document(model: str, common: Mapping[Any, object], rows: pd.DataFrame, publisher: Mapping[str, str]) -> Document:
    """The file of an evaluation. Details are texts, as the format asks."""
    sources = set(rows["source"].dropna())
    is_ours, of_lm_eval = sources <= {"lm-validity", "lm-eval"}, {"name": "lm_eval", "version": "unknown"}
    details = {f"{OWN}{name}": str(value) for name, value in common.items() if value is not None}
    kind = {"source_name": "lm-validity", "source_type": "evaluation_run" if is_ours else "documentation"}
    unknown = {"deployment_type": "unknown", "model_availability": "unknown"}
    developer = {"developer": model.split("/")[0]} if "/" in model else {}
    return {
        "schema_version": VERSION,
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {**kind, **publisher, "additional_details": details},
        "eval_library": of_lm_eval if sources == {"lm-eval"} else {"name": "lm-validity", "version": __version__},
        "model_info": {"name": model, "id": model, **developer, "additional_details": unknown},
        "evaluation_results": [_result(row) for row in rows.itertuples()],
    }


def _result(row: Any) -> Document:
    name, _, filter_name = row.metric.partition(",")
    is_plain, is_share = filter_name in ("", "none"), name in SHARES_OF_ITEMS
    selected = str(pd.isna(row.selected) or bool(row.selected)).lower()
    details = {f"{OWN}benchmark": row.benchmark, f"{OWN}metric": row.metric, f"{OWN}selected": selected}
    bounds = {"score_type": "continuous", "min_score": 0, "max_score": 1, "metric_unit": "proportion"}
    uncertainty: Document = {} if pd.isna(row.stderr) else {"standard_error": {"value": float(row.stderr)}}
    uncertainty |= {} if pd.isna(row.n_items) else {"num_samples": int(row.n_items)}
    examples = {} if pd.isna(row.num_fewshot) else {"num_fewshot": str(int(row.num_fewshot))}
    config = {
        "evaluation_description": name if is_plain else f"{name} (filter: {filter_name})",
        "metric_id": _IDENTIFIERS.get(name, name),
        "metric_name": name,
        "lower_is_better": not row.higher_is_better,
        "additional_details": details | ({} if is_share else {"bounds_status": "unknown"}),
    }
    return {
        "evaluation_name": row.benchmark if is_plain else f"{row.benchmark}/{filter_name}",
        "source_data": {"dataset_name": row.benchmark, "source_type": "other"},
        "metric_config": config | (bounds if is_share else {}),
        "score_details": {"score": float(row.value)} | ({"uncertainty": uncertainty} if uncertainty else {}),
        **({"generation_config": {"additional_details": examples}} if examples else {}),
    }
