"""Reading a TSV sheet whose rows are a Pydantic model, with errors that name row, column and value.

Standard library and pydantic only: the Snakefile reads this at parse time.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from lm_validity.errors import InputError, nearest

Row = TypeVar("Row", bound=BaseModel)


def read_rows(
    path: str | Path,
    kind: type[Row],
    *,
    setting: str,
    described_in: str,
    check: Callable[[Row, str], None] = lambda row, where: None,
) -> dict[str, Row]:
    """The sheet's rows by their first field (the id), in order; empty values are left out.

    setting: the configuration's key that names the sheet; described_in: the page about its columns. Both for hints.
    check: called with each row and where it is in words, `<sheet>, row <line of the file>`, to raise InputError.
    Raises InputError.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such sheet.", f"check `{setting}` in the configuration.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}).", "save the sheet as UTF-8.") from None
    # rows are named by their line in the file, blank lines and comments counted
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(keepends=True), start=1)
        if line.strip() and not line.startswith("#")
    ]
    key = next(iter(kind.model_fields))
    found: dict[str, Row] = {}
    reader = csv.DictReader([line for _, line in lines], delimiter="\t")
    for row in reader:
        where = f"{path}, row {lines[reader.line_num - 1][0]}"
        one = _read_row(where, row, kind, described_in)
        identifier = getattr(one, key)
        if identifier in found:
            raise InputError(
                f"{where}, column {key!r}, value {identifier!r}: this id occurs twice.", "give each row its own id."
            )
        check(one, where)
        found[identifier] = one
    if not found:
        raise InputError(f"{path}: no rows.", "add at least one.")
    return found


def _read_row(where: str, row: dict, kind: type[Row], described_in: str) -> Row:
    if None in row or None in row.values():
        raise InputError(f"{where}: not as many columns as the header.", "separate columns by single tabs.")
    try:
        return kind.model_validate({column: value.strip() for column, value in row.items() if value.strip()})
    except ValidationError as error:
        first = error.errors()[0]
        column = str(first["loc"][0]) if first["loc"] else "row"
        close = nearest(column, kind.model_fields) if first["type"] == "extra_forbidden" else None
        raise InputError(
            f"{where}, column {column!r}, value {row.get(column)!r}: {first['msg'].removeprefix('Value error, ')}.",
            f"did you mean {close!r}?" if close else f"{described_in} describes the columns.",
        ) from None
