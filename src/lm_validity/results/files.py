"""The files of a report: its page, and its numbers as results.parquet, results.csv and results.json."""

import json
from collections.abc import Iterable
from pathlib import Path

from lm_validity.files import replace_file, write_text
from lm_validity.pages.page import Page, write_csv, write_page
from lm_validity.results.rows import Row


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
