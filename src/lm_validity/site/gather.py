"""Everything that `lm-validity report` was given, in one place: result files imported, tables read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_csv import CsvOptions, read_csv_scores
from lm_validity.tables.formats.import_lm_eval import import_lm_eval
from lm_validity.tables.formats.import_log import ImportLog
from lm_validity.tables.formats.json_values import NO_STDERR
from lm_validity.tables.formats.score_files import KEY
from lm_validity.tables.schema import SCORES, read_scores, readable, write_table

# A table of ours by the columns that only it has
_MARKS = {
    "scores": {"benchmark", "protocol", "value"},
    "items": {"benchmark", "doc_id", "correct"},
    "trials": {"experiment", "arm", "correct"},
    "selections": {"learning_rate", "direct_validation_value"},
    "losses": {"learning_rate", "step", "loss"},  # which no report reads
}
_CSV = (".csv", ".tsv")


@dataclass
class Gathered:
    """Tables by kind. `parameters`: numbers of parameters that result files say, by model."""

    scores: pd.DataFrame | None = None
    items: Path | None = None
    trials: Path | None = None
    selections: Path | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def gather(
    paths: Iterable[str | Path], folder: Path, *, strict: bool = False, names: Mapping[Path, str] | None = None
) -> Gathered:
    """Import what is to be imported into `folder`, read the tables among the paths, and join the scores.

    A folder that holds scores.parquet or trials.parquet (itself or in `tables/`) counts as those tables; any other is
    searched for lm-eval's files. A score that two of them have is the first one's. Raises InputError for a path that
    is not there, a parquet file that is no table of ours, two tables of items, trials or selections, and as
    `import_lm_eval` does.
    """
    tables, sheets, results = _sorted_out(paths)
    found = Gathered()
    frames = [_own_scores(path, found.lines) for path in tables.get("scores", ())]
    for path in sheets:
        log = ImportLog(strict)
        frames.append(_csv_scores(path, log))
        found.lines += log.lines(frames[-1])
    for kind in ("items", "trials", "selections"):
        if kind in tables:
            setattr(found, kind, _only(kind, tables[kind]))
    if results:
        scores, log = import_lm_eval(results, folder, strict=strict, names=dict(names or {}))
        frames.append(scores)
        found.lines += log.lines(scores)
        found.parameters = log.parameters
        if log.items:
            found.items = _only("items", [*([found.items] if found.items else []), folder / "items.parquet"])
    if any(map(len, frames)):
        found.scores = _joined(frames, found.lines)
        write_table(found.scores, SCORES, folder / "scores.parquet")
    elif frames and not (found.items or found.trials):
        raise InputError(f"{tables['scores'][0]}: no rows.", "give a table with scores.")
    return found


def _own_scores(path: Path, lines: list[str]) -> pd.DataFrame:
    """A table of ours. Raises InputError for a negative standard error, while the reader's own file can be named."""
    rows = read_scores(path)
    negative = rows.index[rows["stderr"] < 0]
    if len(negative):
        value = rows.at[negative[0], "stderr"]
        raise InputError(f"{path}, row {negative[0]}, column 'stderr': {value} is negative.", NO_STDERR)
    if rows.empty:
        lines.append(f"{path}: no rows.")
    return rows


def _csv_scores(path: Path, log: ImportLog) -> pd.DataFrame:
    """The scores of a CSV file without options. Raises InputError, where an option would help with its command."""
    try:
        return read_csv_scores(path, CsvOptions(), log)
    except InputError as error:
        if "--" not in error.hint:
            raise
        command = f"`lm-validity import csv {path} --output scores`"
        raise InputError(error.problem, f"{command} has options for it; then give scores here. {error.hint}") from None


def table_kind(path: Path) -> str:
    """Which of our tables a parquet file is: one of `_MARKS`."""
    with readable(path):
        columns = set(pq.read_schema(path).names)
    kind = next((kind for kind, marks in _MARKS.items() if marks <= columns), None)
    if kind is None:
        raise InputError(
            f"{path}: not one of our tables, judging by its columns.",
            "docs/reference/tables.md has the columns of each.",
        )
    return kind


def _sorted_out(paths: Iterable[str | Path]) -> tuple[dict[str, list[Path]], list[Path], list[Path]]:
    """Our tables by kind, CSV files, and the rest, which lm-eval's importer looks at."""
    tables: dict[str, list[Path]] = {}
    sheets, results = [], []
    for path in map(Path, paths):
        if path.is_dir() and (own := _tables_in(path)):
            for one in own:
                tables.setdefault(table_kind(one), []).append(one)
        elif path.is_file() and path.suffix == ".parquet":
            tables.setdefault(table_kind(path), []).append(path)
        elif path.is_file() and (path.suffix in _CSV or path.with_suffix("").suffix in _CSV):
            sheets.append(path)
        else:
            results.append(path)
    return tables, sheets, results


def _tables_in(folder: Path) -> list[Path]:
    for place in (folder, folder / "tables"):
        own = [path for kind in _MARKS if (path := place / f"{kind}.parquet").is_file()]
        if any(path.stem in ("scores", "trials") for path in own):
            return own
    return []


def _only(kind: str, paths: list[Path]) -> Path:
    if len(paths) > 1:
        raise InputError(f"{paths[1]}: a second table of {kind}, beside {paths[0]}.", f"give one table of {kind}.")
    return paths[0]


def _joined(frames: list[pd.DataFrame], lines: list[str]) -> pd.DataFrame:
    if len(frames) == 1:
        return frames[0]
    frame = pd.concat([frame.dropna(axis=1, how="all") for frame in frames], ignore_index=True)
    frame = frame.reindex(columns=SCORES.names)
    again = frame.duplicated(list(KEY))
    if again.any():
        lines.append(f"Scores that an earlier table has too are left out: {int(again.sum())}.")
    return frame[~again].reset_index(drop=True)
