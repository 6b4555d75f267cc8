"""Logs of Inspect (`.eval`, or `.json`) -> scores and items, through inspect_ai's own reader."""

import json
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from lm_validity.errors import InputError, first_line
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.lm_eval_results import training_point
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in

_HINT = "Inspect writes such a log into ./logs: <date>_<task>_<id>.eval."
_ERRORS = frozenset(("stderr", "bootstrap_stderr"))
_MEANS = ("accuracy", "mean")  # the metrics of which `stderr` is the standard error, and answers have values
_SPREADS = frozenset(("std", "var"))
_HUB = ("hf/", "vllm/", "sglang/")  # providers whose models are called by their hub ids
_SHOTS = ("num_fewshot", "fewshot", "shots")  # of a task's arguments


def _recognises(opened: Opened) -> bool:
    if opened.path.suffix == ".eval":
        return opened.head.startswith(b"PK")  # a zip archive
    document = opened.document
    return isinstance(document, dict) and isinstance(document.get("eval"), dict) and {"status", "plan"} <= set(document)


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores of a log, `metric,scorer`, and its answers. Raises InputError for a log that cannot be read, and for
    a run that did not end well."""
    path = opened.path
    try:
        from inspect_ai.log import read_eval_log
    except ImportError as error:
        raise InputError(f"{path}: inspect_ai is not installed.", "pip install 'lm-validity[inspect]'.") from error
    try:
        log = read_eval_log(str(path), header_only=True)
    except Exception as error:  # of the zip archive, its compression, its JSON or its values
        raise InputError(f"{path}: not a log of Inspect ({first_line(error)}).", _HINT) from error
    if log.status != "success" or log.results is None:
        raise InputError(f"{path}: the run has no scores (it ended as {log.status!r}).", "run `inspect eval-retry`.")
    told, arguments = log.eval, log.eval.model_args
    name = str(arguments.get("model_path") or told.model)
    for provider in _HUB:
        name = name.removeprefix(provider)
    benchmark = told.task.rpartition("/")[2]
    shots = next((told.task_args[key] for key in _SHOTS if type(told.task_args.get(key)) is int), None)
    point = training_point({"revision": str(arguments["revision"])}) if arguments.get("revision") else None
    settings = {
        "generation": told.model_generate_config.model_dump(exclude_none=True),
        "task": told.task_args,
        "epochs": told.config.epochs,
    }
    return [
        ScoreFile(
            path,
            [row | {"benchmark": benchmark, "num_fewshot": shots} for row in _rows(log, str(path))],
            {"model": name, "unit": "own", **(point._asdict() if point else {})},
            date_in(told.created),
            limited=told.config.limit is not None or told.config.sample_id is not None,
            weights=json.dumps([told.model, arguments], sort_keys=True, default=str),
            settings=json.dumps(settings, sort_keys=True, default=str),
            items=partial(_items, path, benchmark, shots),
        )
    ]


def _rows(log: Any, where: str) -> Iterable[dict[str, Any]]:
    for scorer in log.results.scores:
        values = {name: metric.value for name, metric in scorer.metrics.items()}
        error = next((values[name] for name in values if name in _ERRORS), None)
        items = scorer.scored_samples or log.results.completed_samples // (log.eval.config.epochs or 1)
        for name, value in values.items():
            if name not in _ERRORS | _SPREADS and checked.finite(value) is not None:
                yield {
                    "metric": f"{name},{scorer.name}",
                    "value": checked.score(value, f"{where}, {scorer.name}, {name}", _HINT),
                    "stderr": checked.standard_error(error, f"{where}, {scorer.name}") if name in _MEANS else None,
                    "n_items": items or None,
                }


def _items(path: Path, benchmark: str, shots: int | None) -> Iterable[dict[str, Any]]:
    """A row for each sample with the mean over its epochs, by scorer; the first scorer's is `correct`."""
    from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
    from inspect_ai.scorer import value_to_float

    number = value_to_float()
    known = [
        (scorer.name, f"{metric},{scorer.name}")
        for scorer in read_eval_log(str(path), header_only=True).results.scores
        if (metric := next((name for name in _MEANS if name in scorer.metrics), None))
    ]
    answers: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    responses: dict[str, str] = {}
    for sample in read_eval_log_sample_summaries(str(path)):
        for scorer, key in known:
            score = (sample.scores or {}).get(scorer)
            if score is not None and not isinstance(score.value, dict | list):
                answers[str(sample.id)][key].append(number(score.value))
                responses.setdefault(str(sample.id), score.answer)
    for document, of_metric in answers.items():
        means = [(key, sum(values) / len(values)) for key, values in of_metric.items()]
        yield {
            "benchmark": benchmark,
            "num_fewshot": shots,
            "doc_id": document,
            "correct": means[0][1],
            "response": responses[document],
            "metric_values": means,
        }


FORMAT = Format("inspect", (".eval", ".json"), _recognises, _read)
