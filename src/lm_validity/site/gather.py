"""Everything that a command was given, in one place: result files imported, tables of ours read, scores joined."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join, quote
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from lm_validity.errors import InputError
from lm_validity.files import as_written, made_of_results, read_json_or
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.schema import KEY, SCORES, read_scores, readable, sheets_in, write_table
from lm_validity.tables.settings import joined_settings
from lm_validity.words import count

MODELS, BENCHMARKS = "models.tsv", "benchmarks.tsv"
NO_ERRORS = (
    "No standard errors. If the scores are shares of right answers, say so: --columns '..., error=COLUMN(items)'."
)
# A table of ours by the columns that only it has
_MARKS = {
    "scores": {"benchmark", "protocol", "value"},
    "items": {"benchmark", "doc_id", "correct"},
    "trials": {"experiment", "arm", "correct"},
    "selections": {"learning_rate", "direct_validation_value"},
    "losses": {"learning_rate", "step", "loss"},  # which no report reads
    "settings": {"task_version", "harness", "n_items_scored"},  # read where it lies beside scores
}


class Sheets(NamedTuple):
    """The models sheet and the benchmarks sheet of a site."""

    models: pd.DataFrame
    benchmarks: pd.DataFrame


@dataclass
class Gathered:
    """Tables by kind. `facts`: columns of the models sheet that result files say, by model. `groups`: of each benchmark
    that is a group of tasks, one of these. `settings`: how the scores were made."""

    scores: pd.DataFrame | None = None
    items: Path | None = None
    trials: Path | None = None
    selections: Path | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    settings: pd.DataFrame | None = None
    line: str = ""  # what was read of tables, for the first page
    lines: list[str] = field(default_factory=list)


def gather(paths: Iterable[str | Path], folder: Path, options: ImportOptions) -> Gathered:
    """Import what is to be imported into `folder`, read the tables among the paths, and join the scores.

    A folder that holds scores.parquet or trials.parquet (itself or in `tables/`) counts as those tables; any other is
    searched for files of the known formats. Raises InputError for a path that is not there, two tables of items, trials
    or selections, different scores of one thing in two tables, and as `import_files` does.
    """
    tables, gathered = _sorted_out(paths), Gathered()
    score_tables, results = tables.get("scores", []), tables.get("", [])
    _check_options(options, score_tables, results)
    frames = [read_scores(path) for path in score_tables]
    gathered.lines += [f"{path}: no rows." for path, frame in zip(score_tables, frames, strict=True) if frame.empty]
    for kind in ("items", "trials", "selections"):
        if kind in tables:
            setattr(gathered, kind, _only(kind, tables[kind]))
    for path in score_tables:
        log = read_json_or(path.with_name("import.json"), {})  # what an import wrote of the models
        facts = log.get("facts") if isinstance(log, dict) else None
        gathered.facts = {**gathered.facts, **(facts if isinstance(facts, dict) else {})}
        if gathered.items is None and path.with_name("items.parquet").is_file():
            gathered.lines.append(f"{path.parent}/items.parquet is not read: give the folder, {path.parent}.")
    if results:
        scores, imported = import_files(results, folder, options)
        frames.append(scores)
        gathered.lines += imported.lines(scores)
        gathered.facts, gathered.groups = {**gathered.facts, **imported.facts}, imported.groups
        gathered.line = imported.line
        if imported.items:
            gathered.items = _only("items", [*([gathered.items] if gathered.items else []), folder / "items.parquet"])
    if any(map(len, frames)):
        names = [*map(str, score_tables), *(["the files"] if results else [])]
        gathered.scores = _joined(frames, names, gathered.lines)
        gathered.settings = joined_settings([*score_tables, folder / "scores.parquet"])
        write_table(gathered.scores, SCORES, folder / "scores.parquet")
        if results and not gathered.items and scores["stderr"].isna().all() and scores["n_items"].notna().any():
            gathered.lines.append(NO_ERRORS)
    elif frames and not (gathered.items or gathered.trials):
        raise InputError(f"{score_tables[0]}: no rows.", "give a table with scores.")
    return gathered


def table_kind(path: Path) -> str | None:
    """Which of our tables a parquet file is: scores, items, trials or selections; None for one of others."""
    with readable(path):
        columns = set(pq.read_schema(path).names)
    return next((kind for kind, marks in _MARKS.items() if marks <= columns), None)


def _check_options(options: ImportOptions, tables: Iterable[Path], results: Collection[Path]) -> None:
    """Raises InputError for what is said of result files where tables written by lm-validity are given."""
    for path in tables:
        if options.protocols.keys() & {as_written(path), *as_written(path).parents}:
            raise InputError(
                f"{path}: a table written by lm-validity has the protocol of each score.", "leave out PROTOCOL=."
            )
    settings: dict[str, object] = {"--protocol": options.protocol, "--prepared-on": options.prepared_on}
    settings |= {"--columns": options.columns, "--reading": options.reading}
    typed = [f"{name} {quote(str(value))}" for name, value in settings.items() if value is not None]
    typed += [f"--model {quote(f'{path}={name}')}" for path, name in options.names.items()]
    if not results and typed:
        raise InputError(
            f"{typed[0]}: tables written by lm-validity are read as they are.",
            f"leave it out, or make new ones: lm-validity import {join(map(str, tables))} {typed[0]} --output FOLDER.",
        )


def _sorted_out(paths: Iterable[str | Path]) -> dict[str, list[Path]]:
    """Our tables among the paths by kind, told by their columns, and under "" the rest, which is imported."""
    sorted_paths = dict[str, list[Path]]()
    for path in map(Path, paths):
        tables = _tables_in(path) if path.is_dir() else [path] if path.is_file() and path.suffix == ".parquet" else []
        kinds = {table: kind for table in tables if (kind := table_kind(table))}
        for table, kind in kinds.items():
            sorted_paths.setdefault(kind, []).append(table)
        if kinds:
            continue
        is_report = (path / "page.json").is_file() and (path / "results.parquet").is_file()
        if path.is_dir() and (is_report or made_of_results(path)):
            raise InputError(
                f"{path}: a report that this program wrote, not the scores it is of.",
                "give scores.parquet of the site, or the run's folder.",
            )
        sheets = sheets_in(path) if path.is_dir() else {}
        sorted_paths.setdefault("", []).extend(sorted({*path.iterdir()} - {*sheets.values()}) if sheets else [path])
    return sorted_paths


def _tables_in(folder: Path) -> list[Path]:
    for tables_folder in (folder, folder / "tables"):
        tables = [path for kind in _MARKS if (path := tables_folder / f"{kind}.parquet").is_file()]
        if any(path.stem in ("scores", "trials") for path in tables):
            return tables
    return []


def _only(kind: str, paths: list[Path]) -> Path:
    if len(paths) > 1:
        raise InputError(f"{paths[1]}: a second table of {kind}, beside {paths[0]}.", f"give one table of {kind}.")
    return paths[0]


def _joined(frames: list[pd.DataFrame], names: list[str], lines: list[str]) -> pd.DataFrame:
    """The scores of all tables, each once. Raises InputError, with the `names` of two tables, for different ones."""
    if len(frames) == 1:
        return frames[0]
    parts = [frame.dropna(axis=1, how="all").assign(table=name) for frame, name in zip(frames, names, strict=True)]
    frame = pd.concat(parts, ignore_index=True).reindex(columns=[*SCORES.names, "table"])
    key = list(KEY)
    again = frame.duplicated(key)
    first = frame.groupby(key, dropna=False, sort=False)[["value", "table"]].transform("first")
    contradicts = again & ~np.isclose(
        frame["value"].astype(float), first["value"].astype(float), rtol=1e-9, equal_nan=True
    )
    if contradicts.any():
        row = frame[contradicts].iloc[0]
        raise InputError(
            f"{count(int(contradicts.sum()), 'score')} with different values in {first.at[row.name, 'table']} and "
            f"{row['table']}, such as {row['model']} on {row['benchmark']}.",
            "give one of the two, or name the models of result files otherwise: --model PATH=NAME.",
        )
    if again.any():
        lines.append(f"Scores that an earlier table has too are left out: {int(again.sum())}.")
    return frame[~again].drop(columns="table").reset_index(drop=True)
