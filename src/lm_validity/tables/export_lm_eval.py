"""Scores -> result files in lm-eval's own layout, for programs that read those."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import write_json
from lm_validity.tables.schema import SCORES

# What an lm-eval file has no place for; `import lm-eval` reads it back from the file's key `lm_validity`
OWN_COLUMNS = ("checkpoint", "iteration", "tokens_b", "protocol", "prompt", "prompt_variant", "seed", "split")
_FILE_COLUMNS = (*OWN_COLUMNS, "num_fewshot")
_WHOLE = ("iteration", "seed", "num_fewshot")


def write_lm_eval(scores: pd.DataFrame, output: str | Path, examples: dict[str, int] | None = None) -> list[Path]:
    """Write one file per (model, checkpoint, iteration, tokens_b, protocol, prompt, variant, count, seed, split); the
    paths. The count is that of solved examples before each question.

    `<output>/<model>/results_<protocol>...json`, as lm-eval writes `<output_path>/<model>/results_<date>.json`, with
    `results`, `versions`, `n-shot`, `higher_is_better`, `n-samples`, `group_subtasks`, `config` and `model_name`.
    `n-shot` has the table's `num_fewshot`, else `examples`: of a benchmark, the solved ones before each question;
    where both are unknown there is no entry. Raises InputError, writing nothing, where a score's
    metric is unknown (lm-eval's files name scores by it), where a value is missing, and where two files would have one
    name.
    """
    unnamed = scores[scores["metric"].isna()]
    if len(unnamed):
        raise InputError(
            f"{len(unnamed)} of {len(scores)} scores have no metric, the first of {unnamed['model'].iloc[0]} on "
            f"{unnamed['benchmark'].iloc[0]}.",
            "lm-eval's files name each score by its metric: fill the column `metric`.",
        )
    valueless = scores[~np.isfinite(scores["value"].to_numpy(dtype=float))]
    if len(valueless):
        raise InputError(
            f"{len(valueless)} of {len(scores)} scores have no finite value, the first of "
            f"{valueless['model'].iloc[0]} on {valueless['benchmark'].iloc[0]}.",
            "lm-eval's files have no place for a missing score: remove these rows.",
        )
    scores = scores.reindex(columns=SCORES.names)
    frame = scores.assign(**{column: scores[column].astype(object) for column in _FILE_COLUMNS})
    groups = [
        (key[0], _own(key[1:]), rows) for key, rows in frame.groupby(["model", *_FILE_COLUMNS], dropna=False, sort=True)
    ]
    paths = _paths([(model, own) for model, own, _ in groups])
    for path, (model, own, rows) in zip(paths, groups, strict=True):
        write_json(Path(output) / path, _document(model, own, rows, examples or {}))
    return [Path(output) / path for path in paths]


def _own(key: tuple) -> dict:
    """What holds of a whole file. pandas makes floats of whole numbers among nulls."""
    own = {name: _plain(value) for name, value in zip(_FILE_COLUMNS, key, strict=True)}
    return own | {name: int(own[name]) for name in _WHOLE if own[name] is not None}


def _paths(files: list[tuple[str, dict]]) -> list[Path]:
    """A path of its own for each file: with count and point of training only where files of one name differ in them."""
    paths = [_path(model, own) for model, own in files]
    count = Counter(paths)
    paths = [
        _path(model, own, exact=True) if count[path] > 1 else path
        for path, (model, own) in zip(paths, files, strict=True)
    ]
    for path, times in Counter(paths).items():
        if times > 1:
            models = {model for at, (model, _) in zip(paths, files, strict=True) if at == path}
            raise InputError(
                f"{times} files of {' and '.join(sorted(models))} would have the name {path}.",
                "rename a model or a checkpoint, or export them into folders of their own.",
            )
    return paths


def _path(model: str, own: dict, exact: bool = False) -> Path:
    """Below the output folder. `exact`: with solved examples, iteration and tokens."""
    parts = [own["protocol"], own["checkpoint"], own["prompt"], own["split"]]
    parts += [own["prompt_variant"]] if own["prompt_variant"] is not None else []
    parts += [f"seed{own['seed']}"] if own["seed"] is not None else []
    if exact:
        parts += [f"{own['num_fewshot']}shot"] if own["num_fewshot"] is not None else []
        parts += [f"iter{own['iteration']}"] if own["iteration"] is not None else []
        parts += [f"{own['tokens_b']!r}B"] if own["tokens_b"] is not None else []
    name = "_".join(["results", *(part for part in parts if part)])
    return Path(_file_name(model)) / f"{_file_name(name)}.json"


def _file_name(name: str) -> str:
    """As lm-eval makes one of a model's name."""
    return name.replace("/", "__")


def _document(model: str, own: dict, rows: pd.DataFrame, examples: dict[str, int]) -> dict:
    document = {
        "results": {},
        "group_subtasks": {},
        "configs": {},
        "versions": {},
        "n-shot": {},
        "higher_is_better": {},
        "n-samples": {},
        "config": {"model": "hf", "model_args": {"pretrained": model}, "bootstrap_iters": 0},
        "model_source": "hf",
        "model_name": model,
        "model_name_sanitized": _file_name(model),
        # lm-eval puts the template's text here, which a table of scores does not have
        "chat_template": "the model's own" if own["prompt"] == "chat" else None,
        "lm_validity": {name: own[name] for name in OWN_COLUMNS} | {"selected": {}},
    }
    for benchmark, found in rows.groupby("benchmark", sort=True):
        results: dict = {"alias": benchmark}
        directions: dict = {}
        for row in found.itertuples():
            name, _, filter_name = row.metric.partition(",")
            filter_name = filter_name or "none"
            results[f"{name},{filter_name}"] = float(row.value)
            results[f"{name}_stderr,{filter_name}"] = "N/A" if pd.isna(row.stderr) else float(row.stderr)
            if not pd.isna(row.higher_is_better):
                directions[name] = bool(row.higher_is_better)
        document["results"][benchmark] = results
        document["group_subtasks"][benchmark] = []
        document["higher_is_better"][benchmark] = directions
        shots = examples.get(benchmark) if own["num_fewshot"] is None else own["num_fewshot"]
        if shots is not None:
            document["n-shot"][benchmark] = shots
        count = _plain(found["n_items"].iloc[0])
        if count is not None:
            document["n-samples"][benchmark] = {"original": count, "effective": count}
        document["lm_validity"]["selected"][benchmark] = _plain(found["selected"].iloc[0])
    return document


def _plain(value):
    """Python's own type of a table's value; None for null."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
