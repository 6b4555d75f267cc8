"""The authors' own files: train-before-test's scores, and the early-training competition's curves."""

from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.rows import read_text_rows
from lm_validity.config.sections import E2LM_BATCH_RAMP
from lm_validity.errors import InputError
from lm_validity.tables.claims import DEFAULTS, Claim
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.score_files import Format, ScoreFile, check_rows, typed_scores

# ----------------------------------------------------------------------------------------------------------------------
# The train-before-test authors' all_results.json -> scores.
#
# Layout: `{train_before_test | direct_eval}` and the same with `_stderr`, each benchmark -> model id ->
# number. A standard error, or all of a benchmark's or of a block's, may be the string "N/A". Scores of one of the two
# protocols are enough.

_BLOCKS = {"direct": "direct_eval", "train_before_test": "train_before_test"}
_AUTHORS_FILE = "is it the authors' notebooks/all_results.json?"


def read_lm_harmony(path: str | Path) -> pd.DataFrame:
    """One row per (model, benchmark, protocol), with the columns of SCORES.

    Metric, direction and item count are not in the file: null, to be joined from the benchmarks sheet. So
    are the prompt (plain or chat, whichever was better on validation) and the seed.

    Raises InputError for a file that is not such JSON and for a score that is not a finite number.
    """
    path = Path(path)
    rows = _harmony_rows(checked.read_json_file(path, _AUTHORS_FILE), path)
    frame = typed_scores(pd.DataFrame([DEFAULTS | {"source": LM_HARMONY.name} | row for row in rows]))
    check_rows(frame, path)
    return frame.sort_values(["protocol", "benchmark", "model"], ignore_index=True)


def _harmony_rows(results: object, path: Path) -> list[Claim]:
    blocks_given = [block for block in _BLOCKS.values() if isinstance(results, dict) and block in results]
    for block in blocks_given or ("direct_eval",):
        benchmarks = results[block] if isinstance(results, dict) and blocks_given else None
        if not isinstance(benchmarks, dict) or not all(isinstance(scores, dict) for scores in benchmarks.values()):
            raise InputError(f"{path}: no object {block!r} of benchmarks with scores by model.", _AUTHORS_FILE)
    assert isinstance(results, dict)
    rows: list[Claim] = [
        {
            "model": model,
            "benchmark": benchmark,
            "protocol": protocol,
            "prompt": None,
            "value": checked.score(
                value, f"{path}, {block}, {benchmark}, {model}", "remove the entry where it is unknown."
            ),
            "stderr": checked.finite(checked.part(results, f"{block}_stderr", benchmark).get(model)),
        }
        for protocol, block in _BLOCKS.items()
        for benchmark, scores in results.get(block, {}).items()
        for model, value in scores.items()
    ]
    if not rows:
        raise InputError(f"{path}: no scores in it.", _AUTHORS_FILE)
    return rows


LM_HARMONY = Format(
    "lm-harmony",
    (".json",),
    lambda opened: isinstance(opened.document, dict) and bool(set(_BLOCKS.values()) & set(opened.document)),
    lambda opened, options: [ScoreFile(opened.path, _harmony_rows(opened.document, opened.path), {"unit": "own"})],
)


# ----------------------------------------------------------------------------------------------------------------------
# Learning curves of the early-training competition as a scores table.
#
# The layout: `model, iteration, gtokens`, then one column per benchmark; one row per model and checkpoint. An
# absent `gtokens` column is computed from the iteration with the competition's batch ramp. The organisers' own
# `plot-data-combined-all.json` holds the same columns as lists by model: `{"data": {model: {column: [...]}}}`.

_KEYS = ("model", "iteration", "gtokens")
_LAYOUT = "the columns are model, iteration, gtokens and one column per benchmark."
_NO_BENCHMARKS = ("model_type", "experiment")  # texts beside the numbers of the organisers' file


def read_e2lm(path: str | Path) -> pd.DataFrame:
    """Read learning curves into the columns of SCORES, one row per model, checkpoint and benchmark.

    Accuracies stay fractions. The file names no metric, direction, standard error or item count: these are
    null and come from the benchmarks sheet. An empty cell means that the checkpoint was not evaluated on
    the benchmark: it gives no row. Anything else that is not a finite number is an InputError naming row,
    column and value; so is a row wider than the header, a column without a name or named twice, and a file without
    any value.
    """
    path = Path(path)
    curves = _read_curves(path)
    benchmarks = [column for column in curves.columns if column not in _KEYS]
    if not benchmarks:
        raise InputError(f"{path}: no benchmark column beside {', '.join(_KEYS)}.", _LAYOUT)
    steps = _numbers(path, curves, "iteration")
    for index in np.flatnonzero((steps < 0) | (steps != np.floor(steps))):
        step = curves["iteration"].iloc[index]
        raise InputError(
            f"{path}: row {curves.index[index]}, column 'iteration': {step!r} is not a step count.",
            "write optimizer steps as whole numbers.",
        )
    curves["iteration"] = steps.astype(np.int64)
    if "gtokens" in curves.columns:
        curves["gtokens"] = _numbers(path, curves, "gtokens")
    else:
        curves["gtokens"] = [E2LM_BATCH_RAMP.tokens_b(iteration) for iteration in curves["iteration"]]
    for benchmark in benchmarks:
        curves[benchmark] = _numbers(path, curves, benchmark, empty_allowed=True)
    _check_checkpoints(path, curves)

    rows = curves.melt(id_vars=list(_KEYS), value_vars=benchmarks, var_name="benchmark", value_name="value")
    rows = rows.dropna(subset=["value"]).rename(columns={"gtokens": "tokens_b"})
    if rows.empty:
        raise InputError(f"{path}: no value of any benchmark ({', '.join(benchmarks)}).", _LAYOUT)
    rows = rows.assign(**DEFAULTS, source="e2lm")
    rows["checkpoint"] = [f"iter_{iteration:07d}" for iteration in rows["iteration"]]
    rows = rows.sort_values(["model", "benchmark", "iteration"], kind="stable", ignore_index=True)
    check_rows(rows, path)
    return typed_scores(rows)


def _read_curves(path: Path) -> pd.DataFrame:
    """The file as text, so that an error can show a value as it stands there; the index is the row's line."""
    if path.suffix == ".json":
        return _organisers_curves(path)
    rows = read_text_rows(path, _LAYOUT)
    for column in ("model", "iteration"):
        if column not in rows.header:
            raise InputError(f"{path}: column {column!r} is missing.", _LAYOUT)
    if "" in rows.header:
        raise InputError(
            f"{path}: column {rows.header.index('') + 1} has no name.",
            "each column beside the keys is a benchmark; pandas writes no row numbers with to_csv(index=False).",
        )
    curves = rows.frame()
    for line in curves.index[curves["model"] == ""]:
        raise InputError(f"{path}: row {line}: column 'model' is empty.", _LAYOUT)
    return curves


def _organisers_curves(path: Path) -> pd.DataFrame:
    """The same of the organisers' file; the index is a checkpoint's number, counted through all models."""
    document = checked.read_json_file(path, _LAYOUT)
    models = checked.part(document, "data")
    if not models:
        raise InputError(f"{path}: no object 'data' of models with their curves.", _LAYOUT)
    frames = []
    for model, columns in models.items():
        lists = {name: values for name, values in checked.part(columns).items() if name not in _NO_BENCHMARKS}
        if "iteration" not in lists or not all(isinstance(values, list) for values in lists.values()):
            raise InputError(f"{path}, {model!r}: not a list for each column, 'iteration' one of them.", _LAYOUT)
        for name, values in lists.items():
            if len(values) != len(lists["iteration"]):
                raise InputError(
                    f"{path}, {model!r}, {name!r}: {len(values)} values for {len(lists['iteration'])} checkpoints.",
                    "write null where nothing was measured.",
                )
        texts = {name: ["" if value is None else str(value) for value in values] for name, values in lists.items()}
        frames.append(pd.DataFrame({"model": model, **texts}, dtype=str))
    curves = pd.concat(frames, ignore_index=True).fillna("")
    return curves.set_axis(curves.index + 1)


def _numbers(path: Path, curves: pd.DataFrame, column: str, *, empty_allowed: bool = False) -> np.ndarray:
    """One column as floats; empty becomes NaN where that is allowed."""
    text = curves[column]
    values: np.ndarray = pd.to_numeric(text.where(text != "", np.nan), errors="coerce").to_numpy(dtype=float)
    bad = ~np.isfinite(values)
    if empty_allowed:
        bad &= (text != "").to_numpy()
    for index in np.flatnonzero(bad):
        raise InputError(
            f"{path}: row {curves.index[index]}, column {column!r}: {text.iloc[index]!r} is not a finite number.",
            "leave the cell empty where nothing was measured." if empty_allowed else "write a number.",
        )
    return values


def _check_checkpoints(path: Path, curves: pd.DataFrame) -> None:
    """One row per model and iteration, and tokens that grow with the iteration."""
    for index in np.flatnonzero(curves.duplicated(["model", "iteration"])):
        row = curves.iloc[index]
        raise InputError(
            f"{path}: row {row.name}: a second row for model {row['model']!r} at iteration {row['iteration']}.",
            "keep one row per model and checkpoint.",
        )
    for model, rows in curves.sort_values("iteration").groupby("model"):
        falls = np.flatnonzero(np.diff(rows["gtokens"].to_numpy()) <= 0)
        if falls.size:
            first_fall = rows.iloc[falls[0] + 1]
            raise InputError(
                f"{path}: row {first_fall.name}, column 'gtokens': model {model!r} has no more tokens at"
                f" iteration {first_fall['iteration']} than at its checkpoint before ({first_fall['gtokens']}).",
                "tokens must grow with the iteration.",
            )
