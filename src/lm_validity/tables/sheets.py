"""The sheets as the reports read them: what is known about each model and benchmark beside its scores.

CSV or TSV. `ModelFacts` and `BenchmarkFacts` are their columns, with other spellings of their names (those of the
published train-before-test sheets: `model_id`, `params_B`, `tokens_B`, `task`, ...); all others are ignored. Absent
columns and empty values mean unknown.
"""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.plan import Group, members, with_columns
from lm_validity.config.rows import SheetRow, read_rows
from lm_validity.config.sheets import BenchmarkFacts, ModelFacts, check_reruns

NO_STUDY = "none"  # in the column `studies`: in no comparison of models
NUMBERS = ("parameters_b", "tokens_b", "tokens_per_step", "n_items", "chance", "num_fewshot", "training_examples")
_MARKS = {
    "models": {"family", "parameters_b", "params_B", "instruction_tuned"},
    "benchmarks": {"output_type", "higher_is_better"},
}  # columns by which a file beside results is a sheet
_BOOLEANS = ("instruction_tuned", "in_compute_analysis", "in_perplexity_analysis", "higher_is_better")


def sheets_in(folder: Path) -> dict[str, Path]:
    """The sheets that lie in a folder beside results: `models` and `benchmarks`, CSV or TSV, told by their columns."""
    found = dict[str, Path]()
    for name, marks in _MARKS.items():
        for path in (folder / f"{name}.csv", folder / f"{name}.tsv"):
            with contextlib.suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as handle:
                if marks & set(handle.readline().strip().split("," if path.suffix == ".csv" else "\t")):
                    found[name] = path
    return found


def read_model_facts(path: str | Path, groups: Sequence[Group] = ()) -> pd.DataFrame:
    """One row per model with the fields of `ModelFacts` and the columns of `groups`; unknown values are null.

    Raises InputError for an unreadable file, a missing `model` column, an empty or repeated id, a value
    that is not of its column's kind, a `rerun_of` that names no first training.
    """
    kind = with_columns(ModelFacts, groups)
    rows = read_rows(path, kind)
    check_reruns(path, rows)
    return sheet_frame(rows.values(), kind)


def group_members(sheet: pd.DataFrame, group: Group, path: str | Path) -> list[bool | None]:
    """Which models of the sheet are in the group, None where that is unknown; `path`: of the sheet, for errors.

    Raises InputError as `members`.
    """
    facts = sheet.reindex(columns=["parameters_b", "tokens_b", "in_compute_analysis", group.column]).astype(object)
    facts = facts.where(facts.notna(), None)
    has_compute = facts["parameters_b"].notna() & facts["tokens_b"].notna() & (facts["in_compute_analysis"] != 0)
    return members(group, facts[group.column].tolist(), has_compute.tolist(), path)


def read_benchmark_facts(path: str | Path) -> pd.DataFrame:
    """One row per benchmark with the fields of `BenchmarkFacts`; a bare metric name gets the filter `none`.

    Other wordings of a benchmark (`variant_of`) are no rows: scores name them in `prompt_variant`. Raises InputError as
    `read_model_facts` does.
    """
    rows = read_rows(path, BenchmarkFacts).values()
    return sheet_frame((row for row in rows if row.variant_of is None), BenchmarkFacts)


def sheet_frame(sheet_rows: Iterable[SheetRow], kind: type[SheetRow]) -> pd.DataFrame:
    """Rows of a sheet as a table with the fields of `kind`, but for `variant_of`; unknown values are null."""
    rows = [row.model_dump() for row in sheet_rows]
    types = dict.fromkeys(NUMBERS, "float64") | dict.fromkeys(_BOOLEANS, "boolean")
    columns = {
        name: pd.Series([row[name] for row in rows], dtype=types.get(name, "object"))
        for name in kind.model_fields
        if name != "variant_of"
    }
    columns["studies"] = columns["studies"].map(lambda names: ",".join(names) or None)
    return pd.DataFrame(columns)


def as_in_scores(sheet: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    """The models sheet with the ids that scores or items use, `names`: imported ones name a model by its `path`."""
    by_path = ~sheet["model"].isin(names) & sheet["path"].isin(names) & ~sheet["path"].duplicated(keep=False)
    label = sheet["label"].where(sheet["label"].notna() | ~by_path, sheet["model"])
    ids = sheet["model"].where(~by_path, sheet["path"])
    renamed = dict(zip(sheet["model"], ids, strict=True))
    return sheet.assign(model=ids, label=label, rerun_of=sheet["rerun_of"].map(renamed, na_action="ignore"))


def reruns_of(sheet: pd.DataFrame) -> dict[str, str]:
    """The model of which each rerun is another training, by the rerun's id."""
    is_rerun = sheet["rerun_of"].notna().to_numpy()
    return dict(zip(sheet["model"][is_rerun], sheet["rerun_of"][is_rerun], strict=True)) if is_rerun.any() else {}


def of_study(sheet: pd.DataFrame, study: str) -> np.ndarray:
    """Which rows (n,) of a sheet take part in a study: those that name it, and those that name none."""
    return np.array([pd.isna(names) or study in names.replace(" ", "").split(",") for names in sheet["studies"]], bool)


def unique_labels(labels: pd.Series, models: pd.Series) -> pd.Series:
    """Labels for figures; the model's id where there is none or where several models have the same."""
    labels = labels.where(labels.notna(), models)
    return labels.where(~labels.duplicated(keep=False), models)
