"""Scores and items of some models, as the statistics of this study take them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables.items import items_of_scores, open_items
from lm_validity.tables.schema import read_scores
from lm_validity.tables.sheets import completed, read_benchmarks, report_rows
from lm_validity.tables.standard_errors import checked_errors, error_notes

CELL = ["model", "benchmark", "protocol"]
_KEYS = [*CELL, "checkpoint", "prompt", "prompt_variant", "num_fewshot", "seed"]
_ITEM_COLUMNS = [*_KEYS, "split", "doc_id", "subject", "correct"]


def model_scores(
    path: str | Path, models: list[str] | None = None, benchmarks: str | Path | None = None
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The selected test scores of `models` (all by default), one metric for each benchmark, and notes.

    Of several checkpoints a model's final one counts, else its last. Raises InputError for a model without scores and
    for a benchmark with several metrics of which neither the sheet nor a known direction names one.
    """
    notes: list[str] = []
    rows = read_scores(path)
    for model in models or []:
        if model not in set(rows["model"]):
            hint = did_you_mean(model, rows["model"].unique(), "see the table's column `model` for the names.")
            raise InputError(f"{path}: no score of the model {model!r}.", hint)
    rows = rows[rows["model"].isin(models)] if models else rows
    sheet = None if benchmarks is None else read_benchmarks(benchmarks)
    if sheet is not None:
        known = sheet.dropna(subset=["metric"]).set_index("benchmark")["metric"]
        wanted = rows["benchmark"].map(known)
        rows = completed(rows[rows["metric"].isna() | wanted.isna() | (rows["metric"] == wanted)], sheet)
    rows, checks = checked_errors(_one_metric(report_rows(rows, sheet, notes), path), sheet)
    notes += error_notes(checks)
    rows = _final(rows)
    if rows.empty:
        raise InputError(f"{path}: no selected test score.", "are the rows `selected`, and of the split test?")
    return rows[np.isfinite(rows["value"].astype(float))], tuple(notes)


def _one_metric(rows: pd.DataFrame, path: str | Path) -> pd.DataFrame:
    """Of several metrics of a benchmark the one whose direction is known: a run's own tables mark theirs so."""
    several = rows.groupby("benchmark")["metric"].transform("nunique") > 1
    rows = rows[~several | rows["higher_is_better"].notna()]
    counts = rows.groupby("benchmark")["metric"].nunique()
    if (counts > 1).any():
        name = counts.index[counts > 1][0]
        metrics = ", ".join(sorted(rows.loc[rows["benchmark"] == name, "metric"].dropna().unique()))
        raise InputError(
            f"{path}: {name} has several metrics ({metrics}).",
            "name one in a sheet: --benchmarks (the one that lm-validity report writes will do).",
        )
    return rows


def _final(rows: pd.DataFrame) -> pd.DataFrame:
    final = rows["checkpoint"].fillna("final") == "final"
    has_final = final.groupby([rows[key] for key in CELL]).transform("any")
    rows = rows[final | ~has_final]
    order = rows["iteration"].astype("Float64").fillna(rows["tokens_b"].astype("Float64")).fillna(0)
    last = order.groupby([rows[key] for key in CELL]).transform("max")
    return rows[order == last]


def cell_scores(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each model, benchmark and protocol: `value`, `stderr`, `metric`, `better` (1, -1); over seeds."""
    cells = rows.assign(variance=rows["stderr"].astype(float) ** 2, up=rows["higher_is_better"].astype("boolean"))
    cells = cells.groupby(CELL).agg(
        value=("value", "mean"), variance=("variance", "mean"), up=("up", "first"), metric=("metric", "first")
    )
    cells["stderr"] = np.sqrt(cells.pop("variance"))  # seeds share their items: averaging does not shrink this error
    cells["metric"] = cells["metric"].astype(object).where(cells["metric"].notna(), None)
    cells["better"] = np.where(cells.pop("up").fillna(value=True).astype(bool), 1.0, -1.0)
    return cells.reset_index()


def model_items(path: str | Path, scores: pd.DataFrame) -> pd.DataFrame:
    """The items behind `scores` (rows of `model_scores`): `model, benchmark, protocol, doc_id, subject, correct`.

    Averaged over seeds. Raises InputError for a file that is no table of items.
    """
    table = open_items(path)
    wanted = pc.field("model").isin(scores["model"].unique().tolist())
    wanted &= pc.field("benchmark").isin(scores["benchmark"].unique().tolist())
    columns = [name for name in _ITEM_COLUMNS if name in table.schema.names]
    items = table.to_table(columns=columns, filter=wanted).to_pandas().reindex(columns=_ITEM_COLUMNS)
    items = items_of_scores(items, scores, _KEYS)
    return items.groupby([*CELL, "doc_id", "subject"], as_index=False)["correct"].mean()
