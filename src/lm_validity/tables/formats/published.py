"""Files of studies and of agents: train before test, the early-training competition, trials, and lists of what is
resolved."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_validity.config.rows import read_text_rows
from lm_validity.config.sections import E2LM_BATCH_RAMP
from lm_validity.errors import InputError
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.engine import Place, Spec, same
from lm_validity.tables.formats.joining import typed_scores
from lm_validity.tables.formats.score_files import (
    Opened,
    check_rows,
)
from lm_validity.tables.schema import DEFAULTS, Claim

# ---- train before test: {train_before_test | direct_eval}[_stderr] -> benchmark -> model id -> number ----------------

_BLOCKS = {"direct": "direct_eval", "train_before_test": "train_before_test"}
_AUTHORS_FILE = "is it the authors' notebooks/all_results.json?"


def _harmony(root: Place) -> Iterator[Place]:
    results = root.root
    blocks = {protocol: block for protocol, block in _BLOCKS.items() if isinstance(results, dict) and block in results}
    for protocol, block in (blocks or {"direct": "direct_eval"}).items():
        benchmarks = results[block] if blocks else None
        if not isinstance(benchmarks, dict) or not all(isinstance(scores, dict) for scores in benchmarks.values()):
            raise InputError(f"{root.path}: no object {block!r} of benchmarks with scores by model.", _AUTHORS_FILE)
        for benchmark, scores in benchmarks.items():
            errors = checked.part(results, f"{block}_stderr", benchmark)
            for model, value in scores.items():
                where = f"{root.path}, {block}, {benchmark}, {model}"
                cell: dict[str, Any] = {"value": checked.score(value, where, "remove the entry where it is unknown.")}
                cell |= {"model": model, "benchmark": benchmark, "protocol": protocol, "stderr": errors.get(model)}
                yield root.below(model, cell)


LM_HARMONY = Spec(
    "lm-harmony",
    lambda opened: isinstance(opened.document, dict) and bool(set(_BLOCKS.values()) & set(opened.document)),
    same("model", "benchmark", "protocol", "value", "stderr"),
    _harmony,
    # whichever prompt was better on validation
    finish=lambda file, root, places: replace(file, rows=[row | Claim(prompt=None) for row in file.rows]),
)

# ---- the early-training competition: model, iteration, gtokens and a column a benchmark, or lists of them by model ---

_CURVE_KEYS = ("model", "iteration", "gtokens")
_LAYOUT = "the columns are model, iteration, gtokens and one column per benchmark."
_NO_BENCHMARKS = ("model_type", "experiment")  # texts beside the numbers of the organisers' file


def _curves(opened: Opened) -> pd.DataFrame:
    """The file as text; the index is a row's line, or the number of a checkpoint through all models."""
    path = opened.path
    if path.suffix != ".json":
        rows = read_text_rows(path, _LAYOUT)
        for column in ("model", "iteration"):
            if column not in rows.header:
                raise InputError(f"{path}: column {column!r} is missing.", _LAYOUT)
        if "" in rows.header:
            number = rows.header.index("") + 1
            raise InputError(f"{path}: column {number} has no name.", "pandas writes no row numbers with index=False.")
        return rows.frame()
    frames = []
    for model, columns in checked.part(checked.read_json_file(path, _LAYOUT), "data").items():
        lists = {name: values for name, values in checked.part(columns).items() if name not in _NO_BENCHMARKS}
        if "iteration" not in lists or not all(isinstance(values, list) for values in lists.values()):
            raise InputError(f"{path}, {model!r}: not a list for each column, 'iteration' one of them.", _LAYOUT)
        for name, values in lists.items():
            if len(values) != (number := len(lists["iteration"])):
                problem = f"{path}, {model!r}, {name!r}: {len(values)} values for {number} checkpoints."
                raise InputError(problem, "write null where nothing was measured.")
        texts = {name: ["" if value is None else str(value) for value in values] for name, values in lists.items()}
        frames.append(pd.DataFrame({"model": model, **texts}, dtype=str))
    if not frames:
        raise InputError(f"{path}: no object 'data' of models with their curves.", _LAYOUT)
    curves = pd.concat(frames, ignore_index=True).fillna("")
    return curves.set_axis(curves.index + 1)


def _e2lm(root: Place) -> Iterator[Place]:
    """The cells of benchmarks; an empty one is a checkpoint that was not evaluated on it."""
    curves, benchmarks = root.root, [name for name in root.root.columns if name not in _CURVE_KEYS]
    if not benchmarks:
        raise InputError(f"{root.path}: no benchmark column beside {', '.join(_CURVE_KEYS)}.", _LAYOUT)

    def number(line: Any, column: str, text: str) -> float:
        value = pd.to_numeric(text, errors="coerce")
        if not np.isfinite(value) or (column == "iteration" and (value < 0 or value % 1)):
            kind = "step count" if column == "iteration" else "finite number"
            hint = "leave the cell empty where nothing was measured." if column in benchmarks else "write a number."
            raise InputError(f"{root.path}: row {line}, column {column!r}: {text!r} is not a {kind}.", hint)
        return float(value)

    seen = set[tuple[str, int]]()
    for line, row in zip(curves.index, curves.to_dict("records"), strict=True):
        if not row["model"]:
            raise InputError(f"{root.path}: row {line}: column 'model' is empty.", _LAYOUT)
        step = int(number(line, "iteration", row["iteration"]))
        tokens = number(line, "gtokens", row["gtokens"]) if "gtokens" in row else E2LM_BATCH_RAMP.tokens_b(step)
        if (row["model"], step) in seen:
            problem = f"{root.path}: row {line}: a second row for model {row['model']!r} at iteration {step}."
            raise InputError(problem, "keep one row per model and checkpoint.")
        seen.add((row["model"], step))
        shared = {"model": row["model"], "checkpoint": f"iter_{step:07d}", "iteration": step, "tokens_b": tokens}
        for name in benchmarks:
            if row[name]:
                yield root.below(f"row {line}", shared | {"benchmark": name, "value": number(line, name, row[name])})


E2LM = Spec(
    "e2lm",
    lambda opened: (
        opened.head.lstrip(b"\xef\xbb\xbf").startswith(b"model,iteration,gtokens,")
        or any(
            isinstance(checked.part(columns).get("iteration"), list)
            for columns in checked.part(opened.document, "data").values()
        )
    ),
    same("model", "checkpoint", "iteration", "tokens_b", "benchmark", "value"),
    _e2lm,
    load=_curves,
    suffixes=(".csv", ".json"),
)


def read_published(path: str | Path, spec: Spec) -> pd.DataFrame:
    """The columns of SCORES of a file of the train-before-test authors or of the competition, sorted.

    Metric, direction and numbers of items are not in the files: null, to be joined from the benchmarks sheet. Raises
    InputError, with the place, for a file that is none and for a score that is not a finite number.
    """
    path = Path(path)
    document = checked.read_json_file(path, _AUTHORS_FILE) if spec is LM_HARMONY else None
    (file,) = spec.read(Opened(path, named=True, document=document))
    if not file.rows:
        raise InputError(f"{path}: no scores in it.", _AUTHORS_FILE if spec is LM_HARMONY else _LAYOUT)
    rows = typed_scores(pd.DataFrame([DEFAULTS | Claim(source=spec.name) | row for row in file.rows]))
    check_rows(rows, path)
    key = ["protocol", "benchmark", "model"] if spec is LM_HARMONY else ["model", "benchmark", "iteration"]
    return rows.sort_values(key, ignore_index=True, kind="stable")


read_lm_harmony = partial(read_published, spec=LM_HARMONY)
read_e2lm = partial(read_published, spec=E2LM)
