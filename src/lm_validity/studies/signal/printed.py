"""Tables of overall scores that somebody printed: does the overall score follow from its parts?"""

from pathlib import Path

import pandas as pd

from lm_validity.config.text_rows import read_text_rows
from lm_validity.errors import InputError
from lm_validity.pages.page import Section, Table
from lm_validity.studies.signal.statistics.overall import Weights, check_printed_table
from lm_validity.studies.signal.summary import PrintedScore
from lm_validity.words import count, listing

_PARTS = ("SQ", "RC", "CS")
_COLUMNS = ("dataset", *_PARTS, "global_printed")


def read_printed(path: str | Path) -> pd.DataFrame:
    """A CSV of printed scores as text: dataset, SQ, RC, CS, global_printed, and table where it holds several.

    Raises InputError naming a missing column, or row, column and value of what is not a number.
    """
    frame = read_text_rows(Path(path), f"give a CSV with {', '.join(_COLUMNS)}.").frame()
    for column in _COLUMNS:
        if column not in frame.columns:
            raise InputError(f"{path}: column {column!r} is missing.", f"columns: {', '.join(_COLUMNS)}, table.")
    for column in (*_PARTS, "global_printed"):
        wrong = frame.index[pd.to_numeric(frame[column], errors="coerce").isna()]
        if len(wrong):
            raise InputError(
                f"{path}, row {wrong[0]}, column {column!r}, value {frame.at[wrong[0], column]!r}: not a number.",
                "leave rows without all four scores out.",
            )
    return frame.assign(table=frame["table"] if "table" in frame.columns else "")


def printed_scores(printed: pd.DataFrame, weights: Weights) -> list[PrintedScore]:
    """The score printed, the one that follows from the parts, and whether rounding explains the difference."""
    found = []
    for table, rows in printed.groupby("table", sort=False):
        parts = list(rows[list(_PARTS)].itertuples(index=False, name=None))
        checked = check_printed_table(parts, list(rows["global_printed"]), weights)
        for place, row in enumerate(rows.itertuples()):
            found.append(
                PrintedScore(
                    table=table,
                    dataset=row.dataset,
                    printed=float(row.global_printed),
                    recomputed=float(checked.recomputed[place]),
                    allowance=float(checked.allowance[place]),
                    follows=not checked.inconsistent[place],
                )
            )
    return found


def printed_section(printed: list[PrintedScore]) -> Section | None:
    """Printed overall scores beside those recomputed; None without printed tables."""
    if not printed:
        return None
    odd = list(dict.fromkeys(score.dataset for score in printed if not score.follows))
    finding = f"All {count(len(printed), 'printed overall score')} follow from their parts."
    if odd:
        finding = f"The printed overall score does not follow from its parts for {listing(odd)}."
    return Section(
        "Printed tables",
        finding=finding,
        explanation="Overall scores recomputed from the printed parts; the allowance is what rounding of all four "
        "numbers can make.",
        tables=[
            Table(
                "printed_tables",
                "Printed and recomputed",
                pd.DataFrame(printed),
                formats={"recomputed": ".4f", "allowance": ".4f"},
                folded=len(printed) > 8,
            )
        ],
    )
