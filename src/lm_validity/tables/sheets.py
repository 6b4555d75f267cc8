"""The sheets of models and benchmarks that reports read, as tables: what is known about each beside its scores.

CSV or TSV. `ModelFacts` and `BenchmarkFacts` are their columns, with other spellings of their names (those of the
published train-before-test sheets: `model_id`, `params_B`, `tokens_B`, `task`, ...); all others are ignored. Absent
columns and empty values mean unknown.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.rows import SheetRow, read_rows
from lm_validity.config.sheets import BenchmarkFacts, ModelFacts, check_reruns

NO_STUDY = "none"  # in the column `studies`: in no comparison of models
NUMBERS = ("parameters_b", "tokens_b", "tokens_per_step", "n_items", "chance", "num_fewshot", "training_examples")
_BOOLEANS = ("instruction_tuned", "in_compute_analysis", "in_perplexity_analysis", "higher_is_better")


def read_models(path: str | Path) -> pd.DataFrame:
    """One row per model with the fields of `ModelFacts`; unknown values are null.

    Raises InputError for an unreadable file, a missing `model` column, an empty or repeated id, a value
    that is not of its column's kind, a `rerun_of` that names no first training.
    """
    rows = read_rows(path, ModelFacts)
    check_reruns(path, rows)
    return _frame(rows, ModelFacts)


def read_benchmarks(path: str | Path) -> pd.DataFrame:
    """One row per benchmark with the fields of `BenchmarkFacts`; a bare metric name gets the filter `none`.

    Other wordings of a benchmark (`variant_of`) are no rows: scores name them in `prompt_variant`. Raises InputError as
    `read_models` does.
    """
    found = _frame(read_rows(path, BenchmarkFacts), BenchmarkFacts)
    return found[found.pop("variant_of").isna()].reset_index(drop=True)


def _frame(found: Mapping[str, SheetRow], kind: type[SheetRow]) -> pd.DataFrame:
    rows = [row.model_dump() for row in found.values()]
    columns = {name: pd.Series([row[name] for row in rows], dtype=_dtype(name)) for name in kind.model_fields}
    columns["studies"] = columns["studies"].map(lambda names: ",".join(names) or None)
    return pd.DataFrame(columns)


def _dtype(column: str) -> str:
    if column in NUMBERS:
        return "float64"
    return "boolean" if column in _BOOLEANS else "object"


def as_in_scores(sheet: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    """The models sheet with the ids that scores or items use, `names`: imported ones name a model by its `path`."""
    by_path = ~sheet["model"].isin(names) & sheet["path"].isin(names) & ~sheet["path"].duplicated(keep=False)
    label = sheet["label"].where(sheet["label"].notna() | ~by_path, sheet["model"])
    ids = sheet["model"].where(~by_path, sheet["path"])
    renamed = dict(zip(sheet["model"], ids, strict=True))
    return sheet.assign(model=ids, label=label, rerun_of=sheet["rerun_of"].map(renamed, na_action="ignore"))


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


def of_study(sheet: pd.DataFrame, study: str) -> np.ndarray:
    """Which rows (n,) of a sheet take part in a study: those that name it, and those that name none."""
    return np.array([pd.isna(names) or study in names.replace(" ", "").split(",") for names in sheet["studies"]], bool)


def unique_labels(labels: pd.Series, models: pd.Series) -> pd.Series:
    """Labels for figures; the model's id where there is none or where several models have the same."""
    labels = labels.where(labels.notna(), models)
    return labels.where(~labels.duplicated(keep=False), models)
