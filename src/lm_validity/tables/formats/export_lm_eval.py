"""Scores -> result files in lm-eval's own layout, for programs that read those."""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import write_json
from lm_validity.tables.formats.export_rows import OWN_COLUMNS, OfFile, file_groups, plain


def write_lm_eval(scores: pd.DataFrame, output: str | Path) -> list[Path]:
    """Write one file per (model, checkpoint, iteration, tokens_b, protocol, prompt, prompt_variant, seed, split), and
    a further one where a benchmark has scores with several numbers of solved examples; the paths.

    `<output>/<model>/results_<protocol>...json`, as lm-eval writes `<output_path>/<model>/results_<date>.json`, with
    `results`, `versions`, `n-shot`, `higher_is_better`, `n-samples`, `group_subtasks`, `config` and `model_name`.
    `n-shot` has the benchmarks whose `num_fewshot` is known. Raises InputError, writing nothing, where a score's
    metric is unknown (lm-eval's files name scores by it: `completed` takes it from a sheet), where a value is missing,
    where two files would have one name, and where a model's name is none that a folder can have.
    """
    groups = file_groups(scores, "lm-eval's files")
    paths = _paths([(model, own) for model, own, _ in groups])
    for path, (model, own, rows) in zip(paths, groups, strict=True):
        write_json(Path(output) / path, _document(model, own, rows))
    return [Path(output) / path for path in paths]


def _paths(files: list[tuple[str, OfFile]]) -> list[Path]:
    """A path of its own for each file: with the point of training only where files of one name differ in them."""
    for model, _ in files:
        if _file_name(model) in ("", ".", ".."):
            raise InputError(f"model {model!r}: no folder can have its name.", "rename it in the table of scores.")
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


def _path(model: str, own: OfFile, *, exact: bool = False) -> Path:
    """Below the output folder. `exact`: with iteration and tokens."""
    parts = [own.protocol, own.checkpoint, own.prompt, own.split]
    parts += [own.prompt_variant] if own.prompt_variant is not None else []
    parts += [f"seed{own.seed}"] if own.seed is not None else []
    parts += [f"part{own.part}"] if own.part > 1 else []
    if exact:
        parts += [f"iter{own.iteration}"] if own.iteration is not None else []
        parts += [f"{own.tokens_b!r}B"] if own.tokens_b is not None else []
    name = "_".join(["results", *(part for part in parts if part)])
    return Path(_file_name(model)) / f"{_file_name(name)}.json"


def _file_name(name: str) -> str:
    """The folder name that lm-eval derives from a model's name."""
    return name.replace("/", "__")


def _document(model: str, own: OfFile, rows: pd.DataFrame) -> dict[str, Any]:
    document: dict[str, Any] = {
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
        "chat_template": "the model's own" if own.prompt == "chat" else None,
        "lm_validity": {name: getattr(own, name) for name in OWN_COLUMNS} | {"selected": {}},
    }
    for benchmark, found in rows.groupby("benchmark", sort=True):
        results: dict[str, object] = {"alias": benchmark}
        directions: dict[str, bool] = {}
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
        shots = plain(found["num_fewshot"].iloc[0])
        if shots is not None:
            document["n-shot"][benchmark] = shots
        count = plain(found["n_items"].iloc[0])
        if count is not None:
            document["n-samples"][benchmark] = {"original": count, "effective": count}
        document["lm_validity"]["selected"][benchmark] = plain(found["selected"].iloc[0])
    return document
