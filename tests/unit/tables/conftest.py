"""Scores of files, read as `lm-validity import` does."""

import json
import tempfile
import zipfile
from dataclasses import replace

import numpy as np

from lm_validity.tables.formats.import_files import import_files


def read_files(paths, options, log):
    """The scores that an import of the files writes. `log` says whether it is strict, and gets what the import says."""
    with tempfile.TemporaryDirectory() as folder:
        scores, found = import_files(paths, folder, replace(options, strict=log.strict))
    vars(log).update(vars(found))
    return scores


def put(path, content):
    """Write a text, or a value as JSON; the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def inspect_log(path, model, answers, *, total=None, epochs=1, reported=None, config=None, **run):
    """Write a log as Inspect does: `answers` (items,) or (epochs, items), right or wrong; of `total` samples the others
    failed. `run`: further parts of `eval`."""
    answers = np.atleast_2d(answers)
    total = total or answers.size
    metrics = {"accuracy": {"value": reported or float(answers.mean())}, "stderr": {"value": 0.1}, "std": {"value": 1}}
    scorer = {"name": "match", "metrics": metrics} | ({} if epochs > 1 else {"scored_samples": answers.size})
    evaluation = {
        "task": "pkg/quiz", "model": model, "created": "2026-11-26T10:00:00+00:00", "task_args": {"fewshot": 3},
        "model_args": {}, "dataset": {"samples": total // epochs}, "config": (config or {}) | {"epochs": epochs},
        "model_generate_config": {"temperature": 0.0, "max_tokens": 64}, "packages": {"inspect_ai": "0.3.1"},
    }  # fmt: skip
    results = {"total_samples": total, "completed_samples": answers.size, "scores": [scorer]}
    log = {"status": "success", "plan": {}, "eval": evaluation | run, "results": results}
    samples = [
        {"id": n, "epoch": epoch, "scores": {"match": {"value": "C" if right else "I"}}}
        for epoch, own in enumerate(answers, 1)
        for n, right in enumerate(own)
    ] + [{"id": n, "epoch": 1, "scores": {}, "error": "timeout"} for n in range(answers.size, total)]
    if path.suffix == ".json":
        return put(path, log | {"samples": samples})
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps(log))
        archive.writestr("summaries.json", json.dumps(samples))
    return path
