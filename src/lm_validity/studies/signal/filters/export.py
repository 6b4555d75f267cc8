"""What a selection leaves on disk: the kept ids, lm-eval's `--samples` file, and an lm-eval task of its own.

kept.csv                  the ids that stay
kept.json                 benchmark, filters with their settings, what each step left, sha256 of the ids
samples.json              {task: [rows]} for `lm_eval --samples`, where ids are rows of the scored split ("test:17", of
                          a group's task "mmlu_anatomy/test:17")
tasks/<name>.yaml, ...    with the documents' texts: a task that runs by `lm_eval --include_path tasks`
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lm_validity.errors import InputError
from lm_validity.files import json_text, write_text
from lm_validity.studies.signal.filters.base import Selection

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ROW = re.compile(r"(?:(?P<task>.+)/)?(?:test|validation):(?P<row>\d+)")

# lm-eval would resolve data files against the working directory; a loader beside the task finds them anywhere
_LOADER = '''"""Loads the documents beside this file, wherever the folder lies."""

import json
from pathlib import Path

import datasets


def load(files: dict[str, str], **_metadata) -> datasets.DatasetDict:
    """The named splits, without a network or a cache."""
    loaded = {}
    for split, name in files.items():
        with open(Path(__file__).resolve().parent / name, encoding="utf-8") as lines:
            loaded[split] = datasets.Dataset.from_list([json.loads(line) for line in lines])
    return datasets.DatasetDict(loaded)
'''


def check_name(name: str, where: str = "") -> str:
    """A task's name as it may stand in file names. Raises InputError for others."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{where}{name!r} is not a task name.", "use letters, digits, dots, dashes and underscores.")
    return name


def selection_files(
    selection: Selection, *, name: str, benchmark: str, task: str, recipe: Mapping[str, Any]
) -> dict[str, str]:
    """kept.csv, kept.json and, where ids are rows of the test split, samples.json: the text of each."""
    ids = list(selection.doc_ids)
    record = {
        "name": check_name(name),
        "benchmark": benchmark,
        "items": len(ids),
        "sha256": hashlib.sha256("\n".join(ids).encode()).hexdigest(),
        "steps": [{"filter": s.filter, "before": s.before, "after": s.after} for s in selection.steps],
        "recipe": _as_json(recipe),
    }
    files = {
        "kept.csv": pd.DataFrame({"doc_id": ids}).to_csv(index=False, lineterminator="\n"),
        "kept.json": json_text(record),
    }
    rows = [_ROW.fullmatch(doc_id) for doc_id in ids]
    found = [row for row in rows if row is not None]
    if ids and len(found) == len(rows):
        by_task: dict[str, list[int]] = {}
        for row in found:
            by_task.setdefault(row["task"] or task, []).append(int(row["row"]))
        files["samples.json"] = json_text({name: sorted(numbers) for name, numbers in by_task.items()})
    return files


def task_files(
    documents: pd.DataFrame,
    doc_ids: tuple[str, ...],
    *,
    name: str,
    fewshot: pd.DataFrame | None = None,
    num_fewshot: int = 0,
    description: str | None = None,
    target_delimiter: str | None = None,
) -> dict[str, str]:
    """The kept documents as a multiple-choice task: the text of each file; <name>.yaml is lm-eval's.

    Where the documents have a column `prompt`, and neither `num_fewshot` nor `description` is given, that is what
    stands before a choice: description and examples included, exactly as the original task showed them. Else prompts
    are the documents' contexts, `description` may use the documents' columns, e.g. {{subject}}, and the first
    `num_fewshot` rows of `fewshot` stand before each question. `target_delimiter` is by default the documents' own,
    else a blank. Raises InputError for what cannot be such a task.
    """
    check_name(name)
    if not doc_ids:
        raise InputError(f"task {name!r}: no document is left.", "filter less.")
    if num_fewshot and (fewshot is None or len(fewshot) < num_fewshot):
        raise InputError(
            f"task {name!r}: {num_fewshot} few-shot examples asked for, "
            f"{0 if fewshot is None else len(fewshot)} given.",
            "add documents with split 'fewshot'.",
        )
    kept = documents.set_index("doc_id", drop=False).loc[list(doc_ids)]
    whole = "prompt" in kept.columns and not num_fewshot and description is None
    if whole and kept["prompt"].isna().any():
        raise InputError(
            f"task {name!r}: its choices stand in the prompt, which cannot be written as a task of choices.",
            "use samples.json with lm_eval --samples.",
        )
    names = {"test": f"{name}.test.jsonl"}
    files = {names["test"]: _lines(kept)}
    if num_fewshot:
        names["fewshot"] = f"{name}.fewshot.jsonl"
        files[names["fewshot"]] = _lines(fewshot)
    delimiter = _delimiter(name, kept) if target_delimiter is None else target_delimiter
    config = _task_config(name, names, description or "", delimiter, num_fewshot)
    config["doc_to_text"] = "prompt" if whole else "context"
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    # A YAML tag cannot be written by safe_dump; the quotes around it would make it a string
    text = text.replace("'!function dataset.load'", "!function dataset.load")
    return {**files, "dataset.py": _LOADER, f"{name}.yaml": text}


def write_files(files: dict[str, str], output: Path) -> None:
    """Write each text under its name, in order."""
    for name, text in files.items():
        write_text(output / name, text)


def _as_json(value: object) -> object:
    """A recipe's value as JSON has it: an infinite bound as YAML spells it, for JSON has none."""
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return value


def _delimiter(name: str, documents: pd.DataFrame) -> str:
    """What the documents say stands before a choice; a blank where they say nothing."""
    if "target_delimiter" not in documents.columns:
        return " "
    found = documents["target_delimiter"].fillna(" ").unique()
    if len(found) > 1:
        raise InputError(
            f"task {name!r}: the documents differ in target_delimiter ({', '.join(map(repr, found))}).",
            "filter them apart, or set target_delimiter in the recipe's export.",
        )
    return str(found[0])


def _task_config(
    name: str, files: dict[str, str], description: str, target_delimiter: str, num_fewshot: int
) -> dict[str, Any]:
    """lm-eval's keys of a cloze task over the documents' columns."""
    metrics = ("acc", "acc_norm")
    config = {
        "task": name,
        "custom_dataset": "!function dataset.load",
        "dataset_kwargs": {"files": files},
        "output_type": "multiple_choice",
        "test_split": "test",
        "description": description,
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "target_delimiter": target_delimiter,
        "num_fewshot": num_fewshot,
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics],
        "metadata": {"version": 1.0},
    }
    if num_fewshot:
        config |= {"fewshot_split": "fewshot", "fewshot_config": {"sampler": "first_n"}}
    return config


def _lines(documents: pd.DataFrame) -> str:
    """JSON lines with the columns that a task reads."""
    columns = [
        name for name in ("doc_id", "subject", "context", "prompt", "choices", "gold") if name in documents.columns
    ]
    rows = documents[columns].to_dict("records")
    for row in rows:
        row["choices"], row["gold"] = list(row["choices"]), int(row["gold"])
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
