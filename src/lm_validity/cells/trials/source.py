"""Columns of a text classification data set: a local file, parquet files of a hub repository, or what the `datasets`
library makes of a hub id. No remote code."""

import json
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from lm_validity.cells.models.prefetch import hub_errors
from lm_validity.config.bias_sheets import Task as TaskRow
from lm_validity.errors import InputError, nearest

Columns: TypeAlias = dict[str, list[Any]]  # values by name, one a row

LOCAL_FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def source_columns(source: TaskRow) -> tuple[Columns, str | None]:
    """The text and label columns of a task's source, and the commit they are of (null: a local file).

    Raises InputError where it cannot be read, naming the line, or where a column is missing.
    """
    path = Path(source.path).expanduser()
    if path.suffix in LOCAL_FORMATS or path.is_file():
        columns, revision = _local_columns(source, path), None
    else:
        columns, revision = _hub_columns(source)
    for name in (*source.text, source.label):
        if name not in columns:
            close = nearest(name, columns)
            raise InputError(
                f"task {source.task!r}: no column {name!r} in {source.path}.",
                f"did you mean {close!r}?" if close else f"it has {', '.join(columns)}.",
            )
    return columns, revision


def _local_columns(source: TaskRow, path: Path) -> Columns:
    where = f"task {source.task!r}: {path}"
    if not path.is_file():
        raise InputError(f"{where}: no such file.", "correct `path` in the tasks sheet.")
    try:
        if path.suffix in (".jsonl", ".json"):
            return _json_lines(source, path)
        if path.suffix == ".parquet":
            return pq.read_table(path).to_pydict()
        if path.suffix in (".csv", ".tsv"):
            return _separated(path)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read ({error}).", "check the file.") from error
    raise InputError(f"{where}: unknown format.", f"use one of {', '.join(LOCAL_FORMATS)}.")


def _json_lines(source: TaskRow, path: Path) -> Columns:
    needed = (*source.text, source.label)
    columns: Columns = {}
    with open(path, encoding="utf-8") as handle:
        for number, line in enumerate(handle, start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}: line {number} is not JSON ({error}).", "one object per line.") from None
            if not isinstance(row, dict):
                raise InputError(f"{path}: line {number} is not a JSON object.", "one object per line.")
            if number == 1:
                columns = {name: [] for name in row}
            missing = [name for name in needed if name in columns and name not in row]
            if missing:
                raise InputError(f"{path}: line {number} has no {missing[0]!r}.", "every line needs it.")
            for name, values in columns.items():
                values.append(row.get(name))
    return columns


def _separated(path: Path) -> Columns:
    """All columns as text, so that a text `NA` stays one."""
    parse = pyarrow.csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",", newlines_in_values=True)
    header = pyarrow.csv.open_csv(path, parse_options=parse).schema.names
    convert = pyarrow.csv.ConvertOptions(column_types={name: pa.string() for name in header}, strings_can_be_null=False)
    return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert).to_pydict()


def _hub_columns(source: TaskRow) -> tuple[Columns, str]:
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    where = f"task {source.task!r} ({source.path})"
    try:
        revision = source.revision
        if not HF_HUB_OFFLINE:
            revision = HfApi().dataset_info(source.path, revision=source.revision).sha
        read = _hub_parquet if source.files else _hub_library
        return read(source, revision)
    except GatedRepoError:
        raise InputError(
            f"{where}: gated, and this account has no access.",
            "accept its terms on the hub and log in with `hf auth login`.",
        ) from None
    except RepositoryNotFoundError:
        raise InputError(f"{where}: no such data set on the hub.", "check `path` in the tasks sheet.") from None
    except (*hub_errors(), HFValidationError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{where}: cannot be fetched ({reason}).",
            "check configuration, split and files; without network it must be in the local cache already.",
        ) from error


def _hub_parquet(source: TaskRow, revision: str | None) -> tuple[Columns, str]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    folder = Path(
        snapshot_download(
            source.path,
            repo_type="dataset",
            revision=revision,
            allow_patterns=list(source.files),
            local_files_only=HF_HUB_OFFLINE,
        )
    )
    files = sorted({found for pattern in source.files for found in folder.glob(pattern)})
    if not files:
        raise InputError(
            f"task {source.task!r} ({source.path}): no file matches {', '.join(source.files)}.",
            "correct `files` in the tasks sheet.",
        )
    needed = [*source.text, source.label]
    tables = [pq.read_table(file) for file in files]
    names = [name for name in tables[0].column_names if name in needed] or tables[0].column_names
    return pa.concat_tables([table.select(names) for table in tables]).to_pydict(), folder.name


def _hub_library(source: TaskRow, revision: str | None) -> tuple[Columns, str]:
    import datasets

    datasets.disable_progress_bars()
    found = datasets.load_dataset(source.path, source.configuration, split=source.split, revision=revision)
    needed = {*source.text, source.label}
    names = [name for name in found.column_names if name in needed] or found.column_names
    return {name: list(found[name]) for name in names}, revision or ""
