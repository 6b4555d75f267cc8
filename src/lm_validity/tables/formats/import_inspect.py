"""Logs of Inspect (`.eval`, a zip archive of JSON, or `.json`) -> scores, their settings, and items."""

import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lm_validity.errors import InputError, first_line
from lm_validity.files import Document
from lm_validity.tables.formats.engine import Answer, Place, Spec, finite, is_sampled, items_of, objects, part
from lm_validity.tables.formats.score_files import Opened, ScoreFile, date_in, mean_of_items, training_point
from lm_validity.tables.schema import Claim, Item
from lm_validity.tables.settings import NEARLY_ALL

_HINT = "Inspect writes such a log into ./logs: <date>_<task>_<id>.eval."
_ERRORS = frozenset(("stderr", "bootstrap_stderr"))
_MEANS = ("accuracy", "mean")  # the metrics of which `stderr` is the standard error, and answers have values
_NO_SCORES = _ERRORS | {"std", "var"}
_HUB = ("hf/", "vllm/", "sglang/")  # providers whose models are called by their hub ids
_SHOTS = ("num_fewshot", "fewshot", "shots")  # of a task's arguments
_ZSTANDARD, _HEADER = 93, 30  # the compression of a zip's member; bytes of its header before name and extra field
_SAME = 1e-6  # of a score and the mean of its answers
_MOST = 2**29  # bytes of a member
# What a scorer's value counts: correct, partly, incorrect, no answer; other texts count nothing
_VALUES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def _member(path: Path, name: str) -> Any:
    """The JSON value of a member of a log. Inspect compresses with Zstandard, which Python's zipfile does not know."""
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            entry = archive.getinfo(name)
            if entry.file_size > _MOST:
                raise ValueError(f"{name} is too large")
            if entry.compress_type != _ZSTANDARD:
                return json.loads(archive.read(entry))
            file.seek(entry.header_offset)
            header = file.read(_HEADER)
            file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
            packed = pa.BufferReader(file.read(entry.compress_size))
            return json.loads(pa.input_stream(packed, compression="zstd").read(_MOST))
    except (zipfile.BadZipFile, zlib.error, KeyError, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"{path}: not a log of Inspect ({first_line(error)}).", _HINT) from error


def _log(opened: Opened) -> Document:
    """A log, or its header. Raises InputError for what is none, and for a run that did not end well."""
    log = opened.document if opened.path.suffix == ".json" else _member(opened.path, "header.json")
    run = part(log, "eval")
    missing = [name for name in ("config", "model_args", "task_args") if not isinstance(run.get(name), dict)]
    if missing:
        raise InputError(f"{opened.path}: not a log of Inspect (no {missing[0]}).", _HINT)
    if log.get("status") != "success" or not isinstance(log.get("results"), dict):
        problem = f"{opened.path}: the run has no scores (it ended as {log.get('status')!r})."
        raise InputError(problem, "`inspect eval-retry`.")
    return part(log)


def _scorers(log: Document) -> dict[str, Document]:
    """The values of each scorer's metrics by name, and under "" the number of items that were scored."""
    return {
        str(scorer.get("name")): {"": scorer.get("scored_samples")}
        | {name: part(metric).get("value") for name, metric in part(scorer, "metrics").items()}
        for scorer in objects(log["results"].get("scores"))
    }


def _scores(root: Place) -> Iterator[tuple[object, Document]]:
    """The scores, `metric,scorer`. Of a mean over epochs each of these, which is a run: another way to join them (the
    commonest answer, one of k) gives one score."""
    log, results = root.root, root.root["results"]
    epochs = log["eval"]["config"].get("epochs") or 1
    totals = (part(log["eval"], "dataset").get("samples"), (results.get("total_samples") or 0) // epochs)
    total = max((number for number in totals if type(number) is int), default=0) or None
    answers = _answers(root) if epochs > 1 else pd.DataFrame(columns=["key"])
    for scorer, values in _scorers(log).items():
        error = next((values[name] for name in values if name in _ERRORS), None)
        items = values.pop("") or (results.get("completed_samples") or 0) // epochs or None
        for name, value in values.items():
            if name in _NO_SCORES or finite(value) is None:
                continue
            key = f"{name},{scorer}"
            cell = {"metric": key, "value": value, "n_items": items, "n_items_scored": items, "n_items_total": total}
            cell["stderr"] = error if name in _MEANS else None
            own = answers[answers["key"] == key]
            for run in (_epochs(own, float(value)) if len(own) else []) or [{}]:
                yield key, cell | run


def _epochs(answers: pd.DataFrame, value: float) -> list[Document]:
    """The score of each epoch, where their mean is the log's own score."""
    table = answers.pivot_table(index="document", columns="epoch", values="value").dropna()
    if table.shape[1] < 2 or abs(table.to_numpy().mean() - value) > _SAME:
        return []
    return [{**mean_of_items(table[epoch].to_numpy()), "run": epoch - 1} for epoch in table]


def _value(value: object) -> float:
    """What a scorer's value counts, as in Inspect's own means."""
    number = finite(float(value) if isinstance(value, bool) else value)
    if number is None and isinstance(value, str):
        try:
            return _VALUES[value.strip().lower()] if value.strip().lower() in _VALUES else float(value)
        except ValueError:
            return 0.0
    return number or 0.0


def _answers(root: Place) -> pd.DataFrame:
    """The answers that a metric `metric,scorer` is a mean of: `key, document, epoch, value, answer`."""
    keys = {f"{metric},{scorer}": scorer for scorer, values in _scorers(root.root).items()
            if (metric := next((name for name in _MEANS if name in values), None))}  # fmt: skip
    samples = root.root.get("samples") if root.path.suffix == ".json" else _member(root.path, "summaries.json")
    rows = [
        (key, str(sample.get("id")), sample.get("epoch") or 1, _value(score["value"]), score.get("answer"))
        for key, scorer in keys.items()
        for sample in objects(samples)
        if not isinstance((score := part(sample, "scores", scorer)).get("value"), dict | list | None)
    ]
    return pd.DataFrame(rows, columns=["key", "document", "epoch", "value", "answer"])


def _with_items(file: ScoreFile, root: Place) -> ScoreFile:
    """The file with its items, of runs by epoch; limited where fewer than nearly all items of a score were scored:
    their runs failed."""
    counts = [(made.get("n_items_scored"), made.get("n_items_total")) for row in file.rows if (made := row.get("made"))]
    is_whole = all(scored is None or total is None or scored >= NEARLY_ALL * total for scored, total in counts)
    several = all("run" in row for row in file.rows)
    log = str(root.find("^eval.eval_id|^eval.run_id") or "") if several else ""
    items = partial(_items, root, file.rows[0], by_epoch=several)
    return replace(file, limited=file.limited or not is_whole, items=items, log=log)


def _items(root: Place, score: Claim, *, by_epoch: bool) -> Iterator[Item]:
    """An item for each sample that the first scorer scored, `by_epoch` for each of its epochs, else their mean."""
    shared = Item(benchmark=score["benchmark"], num_fewshot=score.get("num_fewshot"))
    return (
        item
        for item in items_of(
            Answer(
                shared | Item(doc_id=row.document, run=row.epoch - 1 if by_epoch else None, response=row.answer),
                row.key,
                row.value,
            )
            for row in _answers(root).itertuples()
        )
        if item["correct"] is not None
    )


def _model(name: object) -> object:
    for provider in _HUB:
        name = name.removeprefix(provider) if isinstance(name, str) else name
    return name


def _limit(limit: Any) -> Any:
    return limit[1] - limit[0] if isinstance(limit, list) and len(limit) == 2 else limit


_CONFIG, _GENERATE = "^eval.config", "^eval.model_generate_config"
INSPECT = Spec(
    "inspect",
    lambda opened: opened.head.startswith(b"PK") if opened.path.suffix == ".eval" else (
        isinstance(opened.document, dict) and isinstance(opened.document.get("eval"), dict)
        and {"status", "plan"} <= set(opened.document)),
    _scores,
    {
        "model": ("^eval.model_args.model_path|^eval.model", _model),
        "benchmark": ("^eval.task", lambda name: name.rpartition("/")[2] if isinstance(name, str) else name),
        "num_fewshot": ("^eval.task_args", lambda task: next(
            (task[key] for key in _SHOTS if type(task.get(key)) is int), None)),
        "": ("^eval.model_args.revision", lambda revision: training_point({"revision": str(revision)}).claim()),
        "date": ("^eval.created", lambda text: date_in(str(text))),
        "limited": (f"{_CONFIG}.limit|{_CONFIG}.sample_id", lambda limit: True),
        "weights": ("^eval.model", "^eval.model_args", lambda *model: json.dumps(model, sort_keys=True)),
        "settings": ("^eval", lambda run: json.dumps({
            "generation": run.get("model_generate_config"), "task": run.get("task_args"),
            "epochs": run["config"].get("epochs")}, sort_keys=True)),
        "drawn": (_GENERATE, f"{_GENERATE}.seed", lambda drawn, seed: (
            "" if seed is None else str(seed)) if is_sampled(drawn) else None),
        "harness_version": "^eval.packages.inspect_ai",
        "task_version": ("^eval.task_version", str),
        "limit": (f"{_CONFIG}.limit", _limit),
        "temperature": f"{_GENERATE}.temperature",
        "top_p": f"{_GENERATE}.top_p",
        "max_gen_toks": f"{_GENERATE}.max_tokens",
        "backend": ("^eval.model", lambda name: str(name).partition("/")[0]),
    },
    load=lambda opened: [_log(opened)],
    finish=_with_items,
    suffixes=(".eval", ".json"),
)  # fmt: skip
