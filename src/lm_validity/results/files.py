"""The files of a report: its page, results.parquet and results.csv, and summary.json."""

from pathlib import Path
from typing import NamedTuple

from lm_validity.files import replace_file, write_json
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


def write_report(page: Page, summary: object, output: str | Path) -> None:
    """Write a report under `output`: the page, the results as rows, then summary.json.

    The same rows give the same bytes: no pandas metadata, no time stamps. Raises ValueError as `summary_values` and
    `rows_of`, before anything is written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, values, rows = Path(output), summary_values(summary), rows_of(page.name, summary)
    write_page(page, folder)
    numbers = {"n": pa.int64()} | dict.fromkeys(("value", "low", "high", "level"), pa.float64())
    columns = [pa.array([row[index] for row in rows], numbers.get(name, pa.string()))
               for index, name in enumerate(Row._fields)]  # fmt: skip
    with replace_file(folder / "results.parquet") as temporary:
        pq.write_table(pa.table(columns, names=list(Row._fields)), temporary, compression="zstd")
    write_csv(folder / "results.csv", Row._fields, rows)
    write_json(folder / "summary.json", values)
