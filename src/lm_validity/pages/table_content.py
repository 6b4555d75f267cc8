"""A table's frame as a page shows it: missing values with their reasons, without what no protocol has."""

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lm_validity.pages.documents import ColumnDocument, TableDocument, Value
from lm_validity.summaries import Missing
from lm_validity.words import UNDER, no_scores

if TYPE_CHECKING:
    from lm_validity.pages.page import Table

_UNSCORED = set(map(no_scores, UNDER))


def table_document(table: "Table") -> TableDocument:
    """The table as JSON: what a page shows of its frame."""
    filled = _filled(table.frame)
    frame = without_missing(filled)
    columns: list[ColumnDocument] = [
        {
            "name": str(name),
            "label": table.labels.get(str(name), str(name).replace("_", " ")),
            "numeric": _is_numeric(values),
            "format": table.formats.get(str(name)),
            "scale": table.scales.get(str(name), 1.0),
        }
        for name, values in frame.items()
    ]
    document: TableDocument = {
        "name": table.name,
        "title": table.title,
        "caption": table.caption,
        "folded": table.folded,
        "columns": columns,
        "rows": [[plain_value(value) for value in row] for row in frame.itertuples(index=False, name=None)],
    }
    reasons = {
        f"{row},{column}": value.reason
        for row, values in enumerate(filled.itertuples(index=False, name=None))
        for column, value in enumerate(values)
        if isinstance(value, Missing)
    }
    if reasons:
        document["reasons"] = reasons
    if table.links:
        document["links"] = list(table.links)
    return document


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame without the rows and columns of a protocol under which nothing is known."""
    columns = list(frame.columns)
    if "protocol" in columns[:-1]:
        right, protocol = columns[columns.index("protocol") + 1 :], frame["protocol"]
        known = without_missing(frame)[right].notna().any(axis=1).groupby(protocol).transform("any")
        unscored = frame[right].map(_is_unscored).any(axis=1).groupby(protocol).transform("any")
        frame = frame[known | ~unscored]
    return frame.drop(
        columns=[name for name, values in frame.items() if len(frame) and all(map(_says_nothing, values))]
    )


def _is_unscored(value: object) -> bool:
    return isinstance(value, Missing) and value.reason in _UNSCORED


def _says_nothing(value: object) -> bool:
    return _is_unscored(value) or (not isinstance(value, Missing) and plain_value(value) is None)


def without_missing(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `Missing` values as nulls; a column of numbers is one of numbers again."""
    concerned = [str(name) for name, values in frame.items() if any(isinstance(value, Missing) for value in values)]
    known = {name: [None if isinstance(value, Missing) else value for value in frame[name]] for name in concerned}
    return frame.assign(**{name: pd.Series(values, index=frame.index) for name, values in known.items()})


def for_spreadsheets(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame for a CSV file: texts that a spreadsheet would compute (`=1+1`, `@x`) get an apostrophe before them.

    Numbers are none of these, negative ones too, whether they are numbers in the frame or texts.
    """
    return frame.map(_uncomputed).rename(columns=_uncomputed)


def _uncomputed(value: object) -> object:
    if not isinstance(value, str) or len(value) < 2 or value[0] not in "=+-@":
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _is_numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def plain_value(value: object) -> Value:
    """What sorting and the CSV download use; null where missing."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, bool | int | float) else str(value)
