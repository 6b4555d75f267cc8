"""Scores -> result files in lm-eval's own layout, for programs that read those."""

from pathlib import Path

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import write_json

# What an lm-eval file has no place for; `import lm-eval` reads it back from the file's key `lm_validity`
OWN_COLUMNS = ("checkpoint", "iteration", "tokens_b", "protocol", "prompt", "seed", "split")


def write_lm_eval(scores: pd.DataFrame, output: str | Path, examples: dict[str, int] | None = None) -> list[Path]:
    """Write one file per (model, checkpoint, protocol, prompt, seed, split); the paths.

    `<output>/<model>/results_<protocol>...json`, as lm-eval writes `<output_path>/<model>/results_<date>.json`, with
    `results`, `versions`, `n-shot`, `higher_is_better`, `n-samples`, `group_subtasks`, `config` and `model_name`.
    examples: of a benchmark, the solved ones before each question. A table of scores does not say how many there were,
    so that benchmarks not named here have no entry under `n-shot`. Raises InputError, writing nothing, where a score's
    metric is unknown: lm-eval's files name scores by it.
    """
    unnamed = scores[scores["metric"].isna()]
    if len(unnamed):
        raise InputError(
            f"{len(unnamed)} of {len(scores)} scores have no metric, the first of {unnamed['model'].iloc[0]} on "
            f"{unnamed['benchmark'].iloc[0]}.",
            "lm-eval's files name each score by its metric: fill the column `metric`.",
        )
    written = []
    frame = scores.assign(**{column: scores[column].astype(object) for column in OWN_COLUMNS})
    for key, rows in frame.groupby(["model", *OWN_COLUMNS], dropna=False, sort=True):
        model, own = key[0], {name: _plain(value) for name, value in zip(OWN_COLUMNS, key[1:], strict=True)}
        path = Path(output) / model.replace("/", "__") / f"{_file_name(own)}.json"
        write_json(path, _document(model, own, rows, examples or {}))
        written.append(path)
    return written


def _file_name(own: dict) -> str:
    parts = [own["protocol"], own["checkpoint"], own["prompt"], own["split"]]
    parts += [f"seed{own['seed']}"] if own["seed"] is not None else []
    return "_".join(["results", *(part for part in parts if part)])


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
        "model_name_sanitized": model.replace("/", "__"),
        # lm-eval puts the template's text here, which a table of scores does not have
        "chat_template": "the model's own" if own["prompt"] == "chat" else None,
        "lm_validity": own | {"selected": {}},
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
        if benchmark in examples:
            document["n-shot"][benchmark] = examples[benchmark]
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
