"""The files of a report: its page, and its numbers as results.parquet, results.csv and results.json."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lm_validity.files import replace_file, write_json, write_text
from lm_validity.pages.page import Finding, Page, Panel, Part, Section, write_csv, write_page
from lm_validity.results.rows import Row, rows_of
from lm_validity.results.summary import summary_values


class Parts(NamedTuple):
    """What all sections of a report add to it."""

    summary: dict[str, object]
    sections: list[Section]
    findings: list[Finding]
    notes: list[str]
    panels: list[Panel]


class Report(NamedTuple):
    """A report before it is written: its page, and the summary that holds its numbers."""

    page: Page
    summary: dict[str, object]


def joined(*parts: Part) -> Parts:
    """What the `parts` add together, in their order, without what a part lacks."""
    return Parts(
        {key: value for part in parts for key, value in part.summary.items()},
        [part.section for part in parts if part.section is not None],
        [finding for part in parts for finding in part.findings if finding is not None],
        [note for part in parts for note in part.notes],
        [part.panel for part in parts if part.panel is not None],
    )


def write_report(page: Page, summary: object, output: str | Path, rows: Iterable[Row] = ()) -> None:
    """Write a report whose numbers are in a summary or, as far as they have moved, in `rows`; summary.json too.

    Raises ValueError as `summary_values` and `rows_of`, before anything is written.
    """
    values, numbers = summary_values(summary), [*rows_of(page.name, summary), *rows]
    write_rows(page, numbers, output)
    write_json(Path(output) / "summary.json", values)


def write_rows(page: Page, rows: Iterable[Row], output: str | Path) -> None:
    """Write a report under `output`: the page, then its numbers as results.parquet, results.csv and results.json.

    The same rows give the same bytes: no pandas metadata, no time stamps.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, numbers = Path(output), list(rows)
    write_page(page, folder)
    types = {"n": pa.int64()} | dict.fromkeys(("value", "low", "high", "level"), pa.float64())
    columns = {name: [row[index] for row in numbers] for index, name in enumerate(Row._fields)}
    table = pa.table({name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()})
    with replace_file(folder / "results.parquet") as temporary:
        pq.write_table(table, temporary, compression="zstd")
    write_csv(folder / "results.csv", Row._fields, numbers)
    lines = ",\n".join(json.dumps(row._asdict(), ensure_ascii=False, allow_nan=False) for row in numbers)
    write_text(folder / "results.json", f"[\n{lines}\n]\n")
