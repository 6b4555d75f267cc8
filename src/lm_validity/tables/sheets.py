"""The sheets of models and benchmarks that reports read: what is known about each beside its scores.

CSV or TSV; any columns beyond those named here are ignored. Absent columns and empty values mean unknown.
The column names of the published train-before-test sheets (`model_id`, `params_B`, `tokens_B`, `task`, ...)
are read too.
"""

import math
from pathlib import Path

import pandas as pd

from lm_validity.errors import InputError, nearest
from lm_validity.tables.schema import OUTPUT_TYPES
from lm_validity.tables.text_rows import read_text_rows

# Column as the reports call it -> the kind of its values.
MODEL_COLUMNS = {
    "model": "text",
    "path": "text",  # hub id or folder; imported scores may call the model by it
    "label": "text",  # a short name for figures; the model's id where there is none
    "studies": "text",  # comma-separated: the studies it takes part in; all of them where empty
    "family": "text",
    "parameters_b": "positive",
    "tokens_b": "positive",
    "instruction_tuned": "boolean",
    "size": "text",
    "architecture": "text",
    "training_data": "text",
    "in_compute_analysis": "boolean",  # false: tokens or parameters are not reliable enough for the compute figure
    "in_perplexity_analysis": "boolean",  # false: its rolling log-likelihoods are not comparable
}
BENCHMARK_COLUMNS = {
    "benchmark": "text",
    "studies": "text",
    "category": "text",
    "metric": "metric",
    "output_type": "output_type",
    "higher_is_better": "boolean",
    "n_items": "positive",
    "num_fewshot": "count",  # solved examples before each question
    "training_examples": "positive",
    "corpus": "text",  # a file or folder of texts: its metric, type and direction need not be written
}

# Other spellings of a column's name, tried in this order where the name itself is absent.
_OTHER_NAMES = {
    "model": ("model_id",),
    "label": ("display_name",),
    "parameters_b": ("params_B", "params_b"),
    "tokens_b": ("tokens_B",),
    "in_compute_analysis": ("in_compute_plot",),
    "benchmark": ("task",),
    "training_examples": ("published_train_rows", "train_rows"),
    "n_items": ("test_rows_inferred_from_stderr",),
}
_CORPUS = {"metric": "bits_per_byte,none", "output_type": "loglikelihood_rolling", "higher_is_better": False}
_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_models(path: str | Path) -> pd.DataFrame:
    """One row per model with exactly `MODEL_COLUMNS`; unknown values are null.

    Raises InputError for an unreadable file, a missing `model` column, an empty or repeated id, a value
    that is not of its column's kind.
    """
    return _read_sheet(Path(path), MODEL_COLUMNS, key="model")


def read_benchmarks(path: str | Path) -> pd.DataFrame:
    """One row per benchmark with exactly `BENCHMARK_COLUMNS`; a bare metric name gets the filter `none`.

    Raises InputError as `read_models` does.
    """
    frame = _read_sheet(Path(path), BENCHMARK_COLUMNS, key="benchmark")
    corpus = frame["corpus"].notna()
    for column, value in _CORPUS.items():
        frame[column] = frame[column].where(frame[column].notna() | ~corpus, value)
    return frame


def as_in_scores(sheet: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    """The models sheet with the ids that scores or items use, `names`: imported ones name a model by its `path`."""
    by_path = ~sheet["model"].isin(names) & sheet["path"].isin(names) & ~sheet["path"].duplicated(keep=False)
    label = sheet["label"].where(sheet["label"].notna() | ~by_path, sheet["model"])
    return sheet.assign(model=sheet["model"].where(~by_path, sheet["path"]), label=label)


def completed(scores: pd.DataFrame, sheet: pd.DataFrame) -> pd.DataFrame:
    """Scores with what they leave open (metric, direction, number of solved examples) from the benchmarks sheet.

    The sheet's direction is that of its metric: scores of a benchmark under another metric do not get it.
    """
    facts = sheet.set_index("benchmark").reindex(scores["benchmark"]).set_axis(scores.index)
    other = scores["metric"].notna() & facts["metric"].notna() & (scores["metric"] != facts["metric"])
    known = {
        "metric": facts["metric"],
        "higher_is_better": facts["higher_is_better"].astype("boolean").mask(other),
        "num_fewshot": facts["num_fewshot"].astype("Int64"),
    }
    return scores.assign(**{name: scores[name].where(scores[name].notna(), values) for name, values in known.items()})


def metric_key(name: str) -> str:
    """lm-eval's key of a metric, `name,filter`; a bare name means `name,none`."""
    return name if "," in name else f"{name},none"


def _read_sheet(path: Path, kinds: dict[str, str], key: str) -> pd.DataFrame:
    found = read_text_rows(path, "a sheet has a header and one row per model or benchmark, as UTF-8 text.")
    header, line_numbers = found.header, found.lines
    rows = [dict(zip(header, row, strict=True)) for row in found.rows]
    sources = {column: _source(column, header) for column in kinds}
    if sources[key] is None:
        like = nearest(key, header)
        hint = f"rename {like!r} to {key!r}." if like else f"the columns are: {', '.join(header)}."
        raise InputError(f"{path}: no column {key!r}.", hint)
    columns = {}
    for column, kind in kinds.items():
        source = sources[column]
        columns[column] = [
            None if source is None else _parse(row[source], kind, f"{path}, row {line}, column {source!r}")
            for row, line in zip(rows, line_numbers, strict=True)
        ]
    _check_keys(columns[key], line_numbers, path, sources[key])
    frame = pd.DataFrame({name: pd.Series(values, dtype="object") for name, values in columns.items()})
    for column, kind in kinds.items():
        if kind in ("positive", "count"):
            frame[column] = frame[column].astype("float64")
        elif kind == "boolean":
            frame[column] = frame[column].astype("boolean")
    return frame


def _source(column: str, header: list[str]) -> str | None:
    return next((name for name in (column, *_OTHER_NAMES.get(column, ())) if name in header), None)


def _parse(value: str, kind: str, where: str):
    if value == "":
        return None
    if kind == "positive":
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise InputError(f"{where}: {value!r} is not a positive number.", "leave it empty where unknown.")
        return number
    if kind == "count":
        if not (value.isascii() and value.isdigit()):
            raise InputError(f"{where}: {value!r} is not a count.", "write 0, 1, 2, ...; empty where unknown.")
        return int(value)
    if kind == "boolean":
        if value.lower() not in _BOOLEANS:
            raise InputError(f"{where}: {value!r} is not a boolean.", "write 0, 1, true or false.")
        return _BOOLEANS[value.lower()]
    if kind == "output_type" and value not in OUTPUT_TYPES:
        like = nearest(value, OUTPUT_TYPES)
        hint = f"did you mean {like!r}?" if like else f"one of {', '.join(OUTPUT_TYPES)}."
        raise InputError(f"{where}: {value!r} is not an output type.", hint)
    return metric_key(value) if kind == "metric" else value


def _check_keys(keys: list[str | None], line_numbers: list[int], path: Path, column: str) -> None:
    seen: dict[str, int] = {}
    for value, line in zip(keys, line_numbers, strict=True):
        where = f"{path}, row {line}, column {column!r}"
        if value is None:
            raise InputError(f"{where}: empty.", "each row needs an id.")
        if value in seen:
            raise InputError(
                f"{where}: {value!r} is there twice (also in row {seen[value]}).", "remove one of the rows."
            )
        seen[value] = line
