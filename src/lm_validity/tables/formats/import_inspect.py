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
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.engine import Place, Spec, same
from lm_validity.tables.formats.score_files import EVERY, Opened, ScoreFile, date_in, mean_of_items, training_point
from lm_validity.tables.schema import Item
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
    run = checked.part(log, "eval")
    missing = [name for name in ("config", "model_args", "task_args") if not isinstance(run.get(name), dict)]
    if missing:
        raise InputError(f"{opened.path}: not a log of Inspect (no {missing[0]}).", _HINT)
    if log.get("status") != "success" or not isinstance(log.get("results"), dict):
        problem = f"{opened.path}: the run has no scores (it ended as {log.get('status')!r})."
        raise InputError(problem, "`inspect eval-retry`.")
    return checked.part(log)


def _scorers(log: Document) -> dict[str, Document]:
    """The values of each scorer's metrics by name, and under "" the number of items that were scored."""
    return {
        str(scorer.get("name")): {"": scorer.get("scored_samples")}
        | {name: checked.part(metric).get("value") for name, metric in checked.part(scorer, "metrics").items()}
        for scorer in checked.objects(log["results"].get("scores"))
    }


def _scores(root: Place) -> Iterator[Place]:
    """The scores, `metric,scorer`. Of a mean over epochs each of these, which is a run: another way to join them (the
    commonest answer, one of k) gives one score."""
    log, results = root.root, root.root["results"]
    epochs = log["eval"]["config"].get("epochs") or 1
    totals = (checked.part(log["eval"], "dataset").get("samples"), (results.get("total_samples") or 0) // epochs)
    total = max((number for number in totals if type(number) is int), default=0) or None
    answers = _answers(root) if epochs > 1 else pd.DataFrame(columns=["key"])
    for scorer, values in _scorers(log).items():
        error = next((values[name] for name in values if name in _ERRORS), None)
        items = values.pop("") or (results.get("completed_samples") or 0) // epochs or None
        for name, value in values.items():
            if name in _NO_SCORES or checked.finite(value) is None:
                continue
            key = f"{name},{scorer}"
            cell = {"metric": key, "value": value, "n_items": items, "scored": items, "total": total}
            cell["stderr"] = error if name in _MEANS else None
            own = answers[answers["key"] == key]
            for run in (_epochs(own, float(value)) if len(own) else []) or [{}]:
                yield root.below(key, cell | run)


def _epochs(answers: pd.DataFrame, value: float) -> list[Document]:
    """The score of each epoch, where their mean is the log's own score."""
    table = answers.pivot_table(index="document", columns="epoch", values="value").dropna()
    if table.shape[1] < 2 or abs(table.to_numpy().mean() - value) > _SAME:
        return []
    return [{**mean_of_items(table[epoch].to_numpy()), "run": epoch - 1} for epoch in table]


def _value(value: object) -> float:
    """What a scorer's value counts, as in Inspect's own means."""
    number = checked.finite(float(value) if isinstance(value, bool) else value)
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
        for sample in checked.objects(samples)
        if not isinstance((score := checked.part(sample, "scores", scorer)).get("value"), dict | list | None)
    ]
    return pd.DataFrame(rows, columns=["key", "document", "epoch", "value", "answer"])


def _items(root: Place, shared: Item, *, by_epoch: bool) -> Iterator[Item]:
    """A row for each sample, `by_epoch` for each of its epochs, else their mean; the first scorer's is `correct`."""
    answers = _answers(root)
    if answers.empty:
        return
    first = answers[answers["key"] == answers["key"].iloc[0]]
    responses = first.drop_duplicates("document").set_index("document")["answer"]
    names = ["document", "epoch"] if by_epoch else ["document"]
    means = answers.groupby([*names, "key"], sort=False)["value"].mean()
    for place, of_place in means[means.index.get_level_values("document").isin(responses.index)].groupby(names):
        named = [*zip(of_place.index.get_level_values("key"), of_place.tolist(), strict=True)]
        item: Item = {"doc_id": str(place[0]), "correct": named[0][1], "metric_values": named}
        run = int(place[1]) - 1 if by_epoch else None
        yield shared | item | Item(run=run, response=responses[place[0]])


def _with_items(file: ScoreFile, root: Place, places: list[Place]) -> ScoreFile:
    """The file with its items; limited where fewer than nearly all items of a score were scored: their runs failed."""
    counts = [(place.value["scored"], place.value["total"]) for place in places]
    is_whole = all(scored is None or total is None or scored >= NEARLY_ALL * total for scored, total in counts)
    several = bool(file.rows) and all("run" in row for row in file.rows)
    shared: Item = (
        {}
        if not file.rows
        else {"benchmark": file.rows[0]["benchmark"], "num_fewshot": file.rows[0].get("num_fewshot")}
    )
    return replace(
        file,
        limited=file.limited or not is_whole,
        items=partial(_items, root, shared, by_epoch=several),
        log=str(root.find("^eval.eval_id|^eval.run_id") or "") if several else "",
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
    same("metric", "value", "stderr", "n_items", "run"),
    _scores,
    common={
        "model": ("^eval.model_args.model_path|^eval.model", _model),
        "benchmark": ("^eval.task", lambda name: name.rpartition("/")[2] if isinstance(name, str) else name),
        "num_fewshot": ("^eval.task_args", lambda task: next(
            (task[key] for key in _SHOTS if type(task.get(key)) is int), None)),
        "": ("^eval.model_args.revision", lambda revision: training_point({"revision": str(revision)}).claim()),
    },
    of_file={
        "date": ("^eval.created", lambda text: date_in(str(text))),
        "limited": (f"{_CONFIG}.limit|{_CONFIG}.sample_id", lambda limit: True),
        "weights": ("^eval.model", "^eval.model_args", lambda *model: json.dumps(model, sort_keys=True)),
        "settings": ("^eval", lambda run: json.dumps({
            "generation": run.get("model_generate_config"), "task": run.get("task_args"),
            "epochs": run["config"].get("epochs")}, sort_keys=True)),
        "sampling": (_GENERATE, f"{_GENERATE}.seed", lambda drawn, seed: {
            EVERY: "" if seed is None else str(seed)} if checked.is_sampled(drawn) else None),
    },
    made={
        "harness_version": "^eval.packages.inspect_ai",
        "task_version": "^eval.task_version",
        "limit": (f"{_CONFIG}.limit", _limit),
        "temperature": f"{_GENERATE}.temperature",
        "top_p": f"{_GENERATE}.top_p",
        "max_gen_toks": f"{_GENERATE}.max_tokens",
        "backend": ("^eval.model", lambda name: str(name).partition("/")[0]),
    },
    made_of_score={"n_items_scored": "scored", "n_items_total": "total"},
    load=_log,
    finish=_with_items,
    suffixes=(".eval", ".json"),
)  # fmt: skip
