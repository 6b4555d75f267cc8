"""Paired significance from items: which models differ on a benchmark, given that they answered the same questions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lm_validity.errors import InputError
from lm_validity.studies.agreement.score_matrix import SELECTED, ScoreMatrix, listing
from lm_validity.studies.agreement.statistics.paired import paired_signs, replace_column
from lm_validity.studies.agreement.statistics.ranking import PairSigns
from lm_validity.tables.read_items import item_values

_KEY = [name for name in SELECTED if name != "benchmark"]
_COLUMNS = [*_KEY, "split", "doc_id", "correct", "metric_values"]


def use_paired_tests(
    signs: dict[str, PairSigns], path: str | Path, matrix: ScoreMatrix, tasks: list[str]
) -> tuple[dict[str, PairSigns], list[str]]:
    """`signs` by protocol, with the paired test wherever the items give the benchmark's score, and notes on that.

    A metric that is not the mean of its items (Matthews correlation, F1) keeps the test from standard errors: its
    items do not add up to the score. One benchmark is read at a time: a table of items may be larger than memory.
    Items have the metric's own direction, as `matrix.value` has; signs say which model is better.
    """
    table = _open_items(Path(path))
    signs = dict(signs)
    paired: dict[str, list[str]] = {protocol: [] for protocol in signs}
    unpaired: dict[str, list[str]] = {protocol: [] for protocol in signs}
    for column, task in enumerate(tasks):
        items = _selected_items(table, matrix, task)
        place = matrix.benchmarks.index(task)
        for protocol in signs:
            correct = _item_matrix(items[items["protocol"] == protocol], matrix)
            if not correct.size:
                continue
            if _is_mean_of_items(correct, matrix.value[protocol][:, place]):
                better = paired_signs(matrix.direction[place] * correct)
                signs[protocol] = replace_column(signs[protocol], column, better)
                paired[protocol].append(task)
            else:
                unpaired[protocol].append(task)
    notes = [note for protocol in signs for note in _notes(protocol, paired[protocol], unpaired[protocol])]
    return signs, notes or [f"No item of {path} belongs to a selected score: significance is from standard errors."]


def _open_items(path: Path) -> ds.Dataset:
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "check the path of the items table.")
    try:
        table = ds.dataset(path, format="parquet")
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{path}: not a readable parquet file ({error}).", "write it with pandas or pyarrow."
        ) from error
    for name in ("model", "benchmark", "protocol", "doc_id", "correct"):
        if name not in table.schema.names:
            raise InputError(f"{path}: no column {name!r}.", "see docs/tables.md for the columns of items.")
    return table


def _selected_items(table: ds.Dataset, matrix: ScoreMatrix, task: str) -> pd.DataFrame:
    """Items behind the selected scores of one benchmark: `model, protocol, doc_id, correct`, averaged over seeds."""
    columns = [name for name in _COLUMNS if name in table.schema.names]
    rows = table.to_table(columns=columns, filter=pc.field("benchmark") == task)
    selected = matrix.selected[matrix.selected["benchmark"] == task]
    metric = next(iter(selected["metric"].dropna()), None)
    items = rows.select([name for name in columns if name != "metric_values"]).to_pandas()
    items = items.assign(correct=item_values(rows, metric).to_pandas()).reindex(columns=_COLUMNS)
    items = items[(items["split"].isna() | (items["split"] == "test")) & items["correct"].notna()]
    items = _known_keys(items).merge(_known_keys(selected[_KEY].drop_duplicates()), on=_KEY)
    return items.groupby(["model", "protocol", "doc_id"], as_index=False)["correct"].mean()


def _known_keys(frame: pd.DataFrame) -> pd.DataFrame:
    """The same value for what is unknown on both sides of the join."""
    return frame.assign(
        seed=frame["seed"].astype("Float64").fillna(-1),
        prompt=frame["prompt"].fillna("plain"),
        prompt_variant=frame["prompt_variant"].astype(object).where(frame["prompt_variant"].notna(), ""),
        num_fewshot=frame["num_fewshot"].astype("Float64").fillna(-1),
        checkpoint=frame["checkpoint"].fillna("final"),
    )


def _item_matrix(items: pd.DataFrame, matrix: ScoreMatrix) -> np.ndarray:
    """(models, items) of the metric's value, NaN where a model has no such item."""
    if items.empty:
        return np.empty((len(matrix.models), 0))
    table = items.pivot(index="model", columns="doc_id", values="correct")
    return table.reindex(list(matrix.models)).to_numpy(dtype=float)


def _is_mean_of_items(correct: np.ndarray, score: np.ndarray) -> bool:
    known = np.isfinite(correct)
    counts = known.sum(axis=1)
    total = np.where(known, correct, 0.0).sum(axis=1)
    mean = np.divide(total, counts, out=np.full(len(correct), np.nan), where=counts > 0)
    both = np.isfinite(mean) & np.isfinite(score)
    return bool(both.any() and np.abs(mean - score)[both].max() <= 1e-6)


def _notes(protocol: str, paired: list[str], unpaired: list[str]) -> list[str]:
    """What was tested how, in sentences."""
    notes = []
    if paired:
        notes.append(f"{protocol}: differences on {listing(paired)} are tested paired over items (McNemar's test).")
    if unpaired:
        notes.append(
            f"{protocol}: the metric of {listing(unpaired)} is not the mean of its items; tested from standard errors."
        )
    return notes
