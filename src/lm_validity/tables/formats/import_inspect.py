"""Logs of Inspect (`.eval`, a zip archive of JSON, or `.json`) -> scores, their settings, and items."""

import json
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from lm_validity.errors import InputError, first_line
from lm_validity.files import Document
from lm_validity.tables.claims import Claim, Item, Settings
from lm_validity.tables.decisions import EVERY
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.lm_eval_results import training_point
from lm_validity.tables.formats.score_files import (
    Format,
    ImportOptions,
    Opened,
    ScoreFile,
    date_in,
    mean_of_items,
)
from lm_validity.tables.settings import NEARLY_ALL

_HINT = "Inspect writes such a log into ./logs: <date>_<task>_<id>.eval."
_ERRORS = frozenset(("stderr", "bootstrap_stderr"))
_MEANS = ("accuracy", "mean")  # the metrics of which `stderr` is the standard error, and answers have values
_SPREADS = frozenset(("std", "var"))
_HUB = ("hf/", "vllm/", "sglang/")  # providers whose models are called by their hub ids
_SHOTS = ("num_fewshot", "fewshot", "shots")  # of a task's arguments
_ZSTANDARD, _HEADER = 93, 30  # the compression of a zip's member; bytes of its header before name and extra field
_SAME = 1e-6  # of a score and the mean of its answers
_MOST = 2**29  # bytes of a member
# What a scorer's value counts: correct, partly, incorrect, no answer; other texts count nothing
_VALUES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def _recognises(opened: Opened) -> bool:
    if opened.path.suffix == ".eval":
        return opened.head.startswith(b"PK")  # a zip archive
    document = opened.document
    return isinstance(document, dict) and isinstance(document.get("eval"), dict) and {"status", "plan"} <= set(document)


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores of a log, `metric,scorer`, with how many of the items were scored, and its answers.

    Raises InputError for a log that cannot be read, and for a run that did not end well.
    """
    path = opened.path
    log = opened.document if path.suffix == ".json" else _member(path, "header.json")
    eval_part, config = _part(log, path, "eval"), _part(log, path, "eval", "config")
    results = log.get("results")
    if log.get("status") != "success" or not isinstance(results, dict):
        raise InputError(f"{path}: the run has no scores (it ended as {log.get('status')!r}).", "`inspect eval-retry`.")
    arguments, task = _part(eval_part, path, "model_args"), _part(eval_part, path, "task_args")
    name = checked.required_text(arguments.get("model_path") or eval_part.get("model"), f"{path}, eval, model", _HINT)
    for provider in _HUB:
        name = name.removeprefix(provider)
    benchmark = checked.required_text(eval_part.get("task"), f"{path}, eval, task", _HINT).rpartition("/")[2]
    shots = next((task[key] for key in _SHOTS if type(task.get(key)) is int), None)
    point = training_point({"revision": str(arguments["revision"])}) if arguments.get("revision") else None
    settings = {"generation": eval_part.get("model_generate_config"), "task": task, "epochs": config.get("epochs")}
    generation = checked.part(eval_part, "model_generate_config")
    seed = generation.get("seed")
    rows = [row | {"benchmark": benchmark, "num_fewshot": shots} for row in _rows(results, eval_part, str(path))]
    answers = _answers(opened, results) if (config.get("epochs") or 1) > 1 else {}
    rows = [run for row in rows for run in _by_epoch(row, answers)]
    several = bool(rows) and all("run" in row for row in rows)
    return [
        ScoreFile(
            path,
            rows,
            {"model": name, "unit": "own", **(point.claim() if point else Claim())},
            date_in(str(eval_part.get("created"))),
            limited=any(config.get(name) is not None for name in ("limit", "sample_id")) or not _is_whole(rows),
            weights=json.dumps([eval_part.get("model"), arguments], sort_keys=True),
            settings=json.dumps(settings, sort_keys=True),
            items=partial(_items, opened, benchmark, shots, results, by_epoch=several),
            sampling={EVERY: "" if seed is None else str(seed)} if checked.is_sampled(generation) else {},
            made=_made(eval_part, config),
            log=str(eval_part.get("eval_id") or eval_part.get("run_id") or "") if several else "",
        )
    ]


def _is_whole(rows: list[Claim]) -> bool:
    """Whether nearly all items of each score were scored; those whose run failed are not."""
    counts = [(row["made"]["n_items_scored"], row["made"]["n_items_total"]) for row in rows]
    return all(scored is None or total is None or scored >= NEARLY_ALL * total for scored, total in counts)


def _member(path: Path, name: str) -> Any:
    """The JSON value of a member of a log. Inspect compresses with Zstandard, which Python's zipfile does not know."""
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            entry_known = archive.getinfo(name)
            if entry_known.file_size > _MOST:
                raise ValueError(f"{name} is too large")
            if entry_known.compress_type != _ZSTANDARD:
                return json.loads(archive.read(entry_known))
            file.seek(entry_known.header_offset)
            header = file.read(_HEADER)
            file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
            packed = pa.BufferReader(file.read(entry_known.compress_size))
            return json.loads(pa.input_stream(packed, compression="zstd").read(_MOST))
    except (zipfile.BadZipFile, zlib.error, KeyError, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"{path}: not a log of Inspect ({first_line(error)}).", _HINT) from error


def _part(log: Any, path: Path, *names: str) -> Document:
    """A part of a log that must be an object."""
    for name in names:
        log = log.get(name) if isinstance(log, dict) else None
    if not isinstance(log, dict):
        raise InputError(f"{path}: not a log of Inspect (no {'.'.join(names)}).", _HINT)
    return log


def _scorers(results: Document) -> dict[str, dict[str, object]]:
    """The values of each scorer's metrics by name."""
    scores = results.get("scores")
    scorers = [scorer for scorer in scores if isinstance(scorer, dict)] if isinstance(scores, list) else []
    return {
        str(scorer.get("name")): {
            name: metric.get("value") for name, metric in scorer["metrics"].items() if isinstance(metric, dict)
        }
        for scorer in scorers
        if isinstance(scorer.get("metrics"), dict)
    }


def _rows(results: Document, eval_part: Document, where: str) -> Iterable[Claim]:
    epochs = eval_part["config"].get("epochs") or 1
    scored = {str(entry.get("name")): entry.get("scored_samples") for entry in results.get("scores") or ()}
    of_all = [(eval_part.get("dataset") or {}).get("samples"), (results.get("total_samples") or 0) // epochs]
    total = max((number for number in of_all if type(number) is int), default=0)
    for scorer, values in _scorers(results).items():
        error = next((values[name] for name in values if name in _ERRORS), None)
        items = scored[scorer] or (results.get("completed_samples") or 0) // epochs
        for name, value in values.items():
            if name not in _ERRORS | _SPREADS and checked.finite(value) is not None:
                yield {
                    "metric": f"{name},{scorer}",
                    "value": checked.score(value, f"{where}, {scorer}, {name}", _HINT),
                    "stderr": checked.standard_error(error, f"{where}, {scorer}") if name in _MEANS else None,
                    "n_items": items or None,
                    "made": {"n_items_scored": items or None, "n_items_total": total or None},
                }


def _made(eval_part: Document, config: Document) -> Settings:
    """How all scores of a log were made, as far as it says so."""
    generation, version = (
        checked.part(eval_part, "model_generate_config"),
        checked.part(eval_part, "packages").get("inspect_ai"),
    )
    limit = config.get("limit")
    return {
        "harness": "inspect",
        "harness_version": version if isinstance(version, str) else None,
        "task_version": None if eval_part.get("task_version") is None else str(eval_part["task_version"]),
        "limit": limit[1] - limit[0] if isinstance(limit, list) and len(limit) == 2 else checked.finite(limit),
        "temperature": checked.finite(generation.get("temperature")),
        "top_p": checked.finite(generation.get("top_p")),
        "max_gen_toks": generation.get("max_tokens"),
        "backend": str(eval_part["model"]).partition("/")[0],
    }


def _value(value: object) -> float:
    """What a scorer's value counts, as in Inspect's own means."""
    number = checked.finite(float(value) if isinstance(value, bool) else value)
    if number is None and isinstance(value, str):
        try:
            return _VALUES[value.strip().lower()] if value.strip().lower() in _VALUES else float(value)
        except ValueError:
            return 0.0
    return number or 0.0


class _Answers(NamedTuple):
    """Of one scorer's metric, the value of each document in each epoch, and what was answered first."""

    values: dict[str, dict[int, float]]
    responses: dict[str, str | None]


def _answers(opened: Opened, results: Document) -> dict[str, _Answers]:
    """By the metric, `metric,scorer`, that is a mean of answers."""
    keys_known = {
        f"{metric},{scorer}": scorer
        for scorer, values in _scorers(results).items()
        if (metric := next((name for name in _MEANS if name in values), None))
    }
    answers_found = {key: _Answers(defaultdict(dict), {}) for key in keys_known}
    log_document = opened.document
    samples = log_document.get("samples") if isinstance(log_document, dict) else _member(opened.path, "summaries.json")
    for sample in samples or ():
        document, epoch = str(sample.get("id")), sample.get("epoch") or 1
        for key, scorer in keys_known.items():
            score = (sample.get("scores") or {}).get(scorer)
            if isinstance(score, dict) and not isinstance(score.get("value"), dict | list | None):
                answers_found[key].values[document][epoch] = _value(score["value"])
                answers_found[key].responses.setdefault(document, score.get("answer"))
    return answers_found


def _by_epoch(row: Claim, answers: dict[str, _Answers]) -> list[Claim]:
    """A score for each epoch, which is a run, where their mean is the log's own score. Another way to join epochs (the
    commonest answer, one of k) gives one score."""
    answers_found = answers.get(str(row["metric"]))
    if answers_found is None:
        return [row]
    table = pd.DataFrame.from_dict(answers_found.values, orient="index").dropna()
    if table.shape[1] < 2 or abs(table.to_numpy().mean() - row["value"]) > _SAME:
        return [row]
    return [row | mean_of_items(table[epoch].to_numpy()) | {"run": epoch - 1} for epoch in sorted(table)]


def _items(opened: Opened, benchmark: str, shots: int | None, results: Document, *, by_epoch: bool) -> Iterable[Item]:
    """A row for each sample, `by_epoch` for each of its epochs, else their mean; the first scorer's is `correct`."""
    answers = _answers(opened, results)
    if not answers:
        return
    first = next(iter(answers.values()))
    for document, of_document in first.values.items():
        epochs = [[epoch] for epoch in sorted(of_document)] if by_epoch else [sorted(of_document)]
        for chosen in epochs:
            means = []
            for key, answers_found in answers.items():
                values = [
                    answers_found.values[document][epoch]
                    for epoch in chosen
                    if epoch in answers_found.values.get(document, {})
                ]
                means += [(key, sum(values) / len(values))] if values else []
            yield {
                "benchmark": benchmark,
                "num_fewshot": shots,
                "run": chosen[0] - 1 if by_epoch else None,
                "doc_id": document,
                "correct": means[0][1],
                "response": first.responses[document],
                "metric_values": means,
            }


FORMAT = Format("inspect", (".eval", ".json"), _recognises, _read)
