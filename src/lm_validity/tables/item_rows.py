"""Rows of a table of items that belong to scores: opened as a data set, since it may be larger than memory."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds

from lm_validity.errors import InputError
from lm_validity.tables.schema import readable


def open_items(path: str | Path) -> ds.Dataset:
    """The items table. Raises InputError for a file that is none."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "check the path of the items table.")
    with readable(path):
        table = ds.dataset(path, format="parquet")
    for name in ("model", "benchmark", "protocol", "doc_id", "correct"):
        if name not in table.schema.names:
            raise InputError(f"{path}: no column {name!r}.", "see docs/reference/tables.md for the columns of items.")
    return table


def items_of_scores(items: pd.DataFrame, scores: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    """The items of the test split with a value whose `key` some score has; an unknown subject is "".

    What is unknown on both sides (null) is the same: a prompt is plain, a checkpoint final.
    """
    items = items.assign(subject=items["subject"].fillna(""))
    items = items[(items["split"].isna() | (items["split"] == "test")) & items["correct"].notna()]
    return _comparable(items).merge(_comparable(scores[[*key]].drop_duplicates()), on=[*key])


def _comparable(frame: pd.DataFrame) -> pd.DataFrame:
    """The same value for what is unknown on both sides of a join."""
    numbers = {name: frame[name].astype("Float64").fillna(-1) for name in ("seed", "num_fewshot")}
    texts = {"prompt": "plain", "prompt_variant": "", "checkpoint": "final"}
    filled = {n: frame[n].astype(object).where(frame[n].notna(), other) for n, other in texts.items()}
    return frame.assign(**numbers, **filled)
