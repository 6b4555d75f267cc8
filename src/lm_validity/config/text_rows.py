"""Rows of a CSV or TSV text file, each as wide as the header and under names that occur once.

pandas' own reader takes the first column for row names where rows are wider than the header, and renames a repeated
column: both give other numbers than the file's without a word. Standard library only, but for `TextRows.frame`: the
Snakefile reads sheets at parse time.
"""

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lm_validity.errors import InputError
from lm_validity.files import unprintable

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 2**27  # bytes of a text, unpacked: a small gzip file may hold any number


@dataclass(frozen=True)
class TextRows:
    """`rows` have the header's length, their values without surrounding blanks; `lines` counts from 1, the header's
    line."""

    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    def frame(self) -> "pd.DataFrame":
        """The rows as text under the header's names; the index is the row's line."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=self.header, index=self.lines, dtype=str)


def read_text_rows(
    path: Path, layout: str, *, short_rows: bool = True, headless: Collection[str] = frozenset()
) -> TextRows:
    """The rows of a file, as `read_text` and `parse_text_rows` have them. Raises InputError."""
    return parse_text_rows(read_text(path, layout), path, layout, short_rows=short_rows, headless=headless)


def read_text(path: Path, layout: str) -> str:
    """The text of a file, gzipped or not. `layout` is the hint. Raises InputError for one that is absent, damaged or no
    UTF-8 text, and for one that is larger than any table of scores."""
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "check the path.")
    try:
        with open(path, "rb") as start:
            opener = gzip.open if start.read(2) == b"\x1f\x8b" else open
        with opener(path, "rb") as handle:
            found = handle.read(_LARGEST + 1)
        if len(found) > _LARGEST:
            raise InputError(f"{path}: more than {_LARGEST >> 20} MiB of text.", "divide it, or import parts of it.")
        return found.decode("utf-8-sig")
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a readable CSV or TSV text file ({error}).", layout) from error


def parse_text_rows(
    text: str, path: Path, layout: str, *, short_rows: bool = True, headless: Collection[str] = frozenset()
) -> TextRows:
    """The rows of a text, separated by tabs where its first line has one, else by commas, or by semicolons where that
    line has no comma. `path` is for errors.

    Rows without any value and lines that begin with # are skipped, shorter rows have empty values at their end, and a
    last column that is empty throughout is left out. Where all values of the first line are in `headless`, it is a row,
    and the columns are called 1, 2, ... `layout` is the hint of errors that concern the whole file. Raises
    InputError for a control character, a quote that does not end on its line, a row wider than the header (or shorter,
    without `short_rows`), a column's name that occurs twice, and a file without rows.
    """
    if (odd := unprintable(text, allowed="\t\r\n")) is not None:
        line = text.count("\n", 0, text.index(odd)) + 1
        raise InputError(f"{path}, row {line}: holds the character {odd!r}.", "remove it.")
    try:
        found = _parse(io.StringIO(text, newline=""), path, headless, short_rows=short_rows)
    except csv.Error as error:
        raise InputError(f"{path}: not a readable CSV or TSV text file ({error}).", layout) from error
    if not found.rows:
        raise InputError(f"{path}: no rows.", layout)
    return found


def _parse(handle: Iterable[str], path: Path, headless: Collection[str], *, short_rows: bool) -> TextRows:
    numbered = [(number, line) for number, line in enumerate(handle, 1) if line.strip() and not line.startswith("#")]
    # The last line may lack its end, by which a quote that does not end is told
    text = [line.rstrip("\r\n") + "\n" for _, line in numbered]
    separator = _separator((text or [""])[0])
    reader = csv.reader(text, delimiter=separator, skipinitialspace=separator != "\t")
    first = next(reader, [])
    if numbered:
        _check_quotes(first, path, numbered[0][0])
    header = [name.strip() for name in first]
    rows, lines, before = list[list[str]](), list[int](), reader.line_num
    if header and all(name in headless for name in header):
        rows, lines = [header], [numbered[0][0]]
        header = [str(number) for number in range(1, len(header) + 1)]
    for name, times in Counter(header).items():
        if name and times > 1:
            raise InputError(f"{path}: two columns are called {name!r}.", "rename or remove one of them.")
    for row in reader:
        line = numbered[before][0]
        _check_quotes(row, path, line)
        before = reader.line_num
        values = [value.strip() for value in row]
        if not any(values):
            continue
        if len(values) > len(header) or (len(values) < len(header) and not short_rows):
            raise InputError(
                f"{path}, row {line}: {len(values)} values for {len(header)} columns.",
                "write one separator between two values, also where one is empty; quote values that contain it.",
            )
        rows.append(values + [""] * (len(header) - len(values)))
        lines.append(line)
    while header and not header[-1] and not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return TextRows(header, rows, lines)


def _separator(header: str) -> str:
    """A tab where the header has one; a semicolon, which spreadsheets write where commas are decimal, only where it has
    no comma."""
    if "\t" in header:
        return "\t"
    return ";" if ";" in header and "," not in header else ","


def _check_quotes(row: list[str], path: Path, line: int) -> None:
    """Raises InputError for a value that holds the end of its line: its quote would swallow the rows after it."""
    if any("\n" in value for value in row):
        raise InputError(
            f"{path}, row {line}: a quote does not end on its line.", "close it, or take the end of line out."
        )
