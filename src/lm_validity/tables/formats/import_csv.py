"""A table of scores as CSV or TSV -> scores: one score per row (long), or one column per benchmark or model (wide)."""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from lm_validity.config.sheets import metric_key
from lm_validity.config.text_rows import read_text_rows
from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables.formats.found_files import date_in
from lm_validity.tables.formats.json_values import NO_STDERR
from lm_validity.tables.formats.score_files import KEY, CsvOptions, Format, ImportOptions, Opened, Repeats, ScoreFile
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count

_LAYOUT = "a header, and one row per score (model, benchmark, value) or one column per benchmark, as UTF-8 text."
# Columns of a score that a file may have, and other names by which they are found in a header
ROLES: dict[str, tuple[str, ...]] = {
    "model": ("model_name", "model_id", "llm_model", "fullname"),
    "benchmark": ("task", "dataset", "scenario", "evaluation", "eval"),
    "value": ("score", "result"),
    "stderr": ("standard_error", "std_err"),
    "metric": (),
    "checkpoint": (),
    "iteration": ("step", "steps"),
    "tokens_b": (),
    "protocol": (),
    "prompt": (),
    "prompt_variant": (),
    "num_fewshot": ("n_shot", "shots"),
    "seed": (),
    "split": (),
    "n_items": ("num_samples",),
    "higher_is_better": (),
}
_MISSING = frozenset(("", "-", "–", "—", "?", "na", "n/a", "nan", "none", "null"))
# Columns of numbers that are no benchmark: what leaderboards have beside their scores
_NO_BENCHMARK = re.compile(
    r"(average|avg|mean|overall|rank|ranking|mean_win_rate|likes?|hub|hub_likes|votes?|generation|size|year|date)"
    r"|.*(params|parameters|cost).*"
)
# 0,5 or 51,25; not 1,234, which may be a thousand
_DECIMAL_COMMA = re.compile(r"[-+]?(0?,\d+|\d+,\d{1,2}) ?%?")
_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _recognises(opened: Opened) -> bool:
    """Whether the first line is a header of several columns."""
    return any(mark in opened.head.partition(b"\n")[0] for mark in (b",", b"\t", b";"))


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores of a table, as fractions.

    One outside 0 to 1 is refused unless they are `percentages` (then 0 to 100, standard errors likewise) or `neither`.
    A cell `12.5%` is a percentage by itself. Empty cells are missing scores. Raises InputError, naming row and column,
    for a value of the wrong type and for a table whose columns are not understood.
    """
    path, notes = opened.path, list[str]()
    found = read_text_rows(path, _LAYOUT)
    frame = found.frame()
    if "" in found.header:
        frame = frame.drop(columns="")
    roles = _roles(path, frame.columns, options.csv)
    rows = _long(path, frame, roles) if {"model", "benchmark", "value"} <= set(roles) else None
    if rows is None:
        rows = _wide(path, frame, roles, options.csv, notes)
    rows = _fractions(path, rows, options.csv, notes)
    rows = _typed(path, rows)
    rows = _once(path, rows, options.csv.repeats, notes)
    records = rows.drop(columns=["line", "column"]).to_dict("records")
    records = [{name: value for name, value in row.items() if not pd.isna(value)} for row in records]
    return [ScoreFile(path, records, date=date_in(path.stem), notes=tuple(notes))]


def _roles(path: Path, header: pd.Index, options: CsvOptions) -> dict[str, str]:
    """The file's column of each role that it has."""
    for role, column in options.columns.items():
        if role not in ROLES:
            hint = did_you_mean(role, ROLES, f"one of {', '.join(ROLES)}.")
            raise InputError(f"--columns {role}={column}: {role!r} is no column of a score.", hint)
        _check_column(path, column, header)
    roles = dict(options.columns)
    plain = {_plain(column): column for column in reversed(header)}
    for role, others in ROLES.items():
        named = next((plain[name] for name in (role, *others) if name in plain), None)
        if role not in roles and named is not None and named not in (*roles.values(), *options.scores):
            roles[role] = named
    return roles


def _plain(name: str) -> str:
    """A column's name in small letters and digits: `Average ⬆️` is average."""
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")


def _check_column(path: Path, column: str, header: pd.Index) -> None:
    if column not in header:
        hint = did_you_mean(column, header, f"the columns are: {', '.join(header)}.")
        raise InputError(f"{path}: no column {column!r}.", hint)


def _long(path: Path, frame: pd.DataFrame, roles: dict[str, str]) -> pd.DataFrame:
    """One row per score: `line` and `column` say where it stands in the file."""
    rows = frame[list(roles.values())].set_axis(list(roles), axis=1)
    rows = rows.assign(line=frame.index, column=roles["value"])
    rows["value"] = _numbers(path, rows, "value")
    return rows


def _wide(
    path: Path, frame: pd.DataFrame, roles: dict[str, str], options: CsvOptions, notes: list[str]
) -> pd.DataFrame:
    across = options.across or ("models" if "benchmark" in roles and "model" not in roles else "benchmarks")
    key, spread = ("model", "benchmark") if across == "benchmarks" else ("benchmark", "model")
    roles = {role: column for role, column in roles.items() if role not in (spread, "value", "stderr")}
    if key not in roles:
        raise InputError(
            f"{path}: no column of {key}s among {', '.join(frame.columns[:8])}.",
            f"say which: --columns {key}=COLUMN; for a table of models in columns, --across models.",
        )
    for column in options.scores:
        _check_column(path, column, frame.columns)
    columns = list(options.scores) or _score_columns(path, frame, set(roles.values()), notes)
    keys = frame[list(roles.values())].set_axis(list(roles), axis=1)
    parts = [
        keys.assign(**{spread: column, "value": frame[column], "line": frame.index, "column": column})
        for column in columns
    ]
    rows = pd.concat(parts, ignore_index=True)
    rows["value"] = _numbers(path, rows, "value")
    return rows


def _score_columns(path: Path, frame: pd.DataFrame, taken: set[str], notes: list[str]) -> list[str]:
    """The columns of numbers beside those with a role, without what leaderboards have beside their scores."""
    columns, texts, others = [], [], []
    for column in frame.columns:
        if column in taken:
            continue
        values = [value for value in frame[column] if value.casefold() not in _MISSING]
        no_numbers = [value for value in values if _parsed(value) is None]
        if no_numbers and all(map(_DECIMAL_COMMA.fullmatch, no_numbers)):
            line = frame.index[frame[column] == no_numbers[0]][0]
            raise _no_number(f"{path}, row {line}, column {column!r}", no_numbers[0])
        if not values or no_numbers:
            texts.append(column)
        elif _NO_BENCHMARK.fullmatch(_plain(column)):
            others.append(column)
        else:
            columns.append(column)
    if not columns:
        raise InputError(f"{path}: no column of scores.", "name them: --scores COLUMN,COLUMN,...")
    if texts:
        notes.append(f"Columns with values that are not numbers, left out: {', '.join(texts)}.")
    if others:
        notes.append(f"Not recognised as benchmarks, left out (name them with --scores): {', '.join(others)}.")
    return columns


def _parsed(text: str) -> float | None:
    """A number, also with a percent sign behind it; None for anything else."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _numbers(path: Path, rows: pd.DataFrame, name: str) -> pd.Series:
    """A column of numbers as texts, missing ones as null; `12%` stays apart until `_fractions`."""
    texts = rows[name].where(~rows[name].str.casefold().isin(_MISSING), None)
    for place, text in texts.dropna().items():
        if _parsed(text) is None:
            line, column = rows.at[place, "line"], rows.at[place, "column"] if name == "value" else name
            raise _no_number(f"{path}, row {line}, column {column!r}", text)
    return texts


def _no_number(where: str, text: str) -> InputError:
    comma = _DECIMAL_COMMA.fullmatch(text)
    hint = (
        "write a decimal point instead of the comma." if comma else "leave the cell empty where nothing was measured."
    )
    return InputError(f"{where}: {text!r} is not a number.", hint)


def _fractions(path: Path, rows: pd.DataFrame, options: CsvOptions, notes: list[str]) -> pd.DataFrame:
    """Scores as fractions: by their percent signs, else as `options` say; refused where that is not known."""
    if "stderr" in rows:
        rows = rows.assign(stderr=_numbers(path, rows, "stderr"))
    lost = int(rows["value"].isna().sum())
    if lost:
        notes.append(f"Empty cells, no score: {lost}.")
    rows = rows[rows["value"].notna()].reset_index(drop=True)
    signed = rows["value"].str.endswith("%")
    values = rows["value"].map(_parsed).astype(float)
    percent = options.unit == "percentages"
    scale = pd.Series(1.0, index=rows.index).mask(signed | percent, 0.01)
    if options.unit != "neither":
        outside = (values * scale < 0) | (values * scale > 1)
        for place in rows.index[outside][:1]:
            found = (
                f"{path}, row {rows.at[place, 'line']}, column {rows.at[place, 'column']!r}: {rows.at[place, 'value']}"
            )
            if percent or signed[place]:
                raise InputError(
                    f"{found} is not a percentage.", "import the columns that are percentages with --scores."
                )
            raise InputError(
                f"{found} is not a fraction.", "--percent where scores are percentages, --as-is where they are neither."
            )
    if percent:
        small = values.groupby(rows["benchmark"]).max()
        names = [str(name) for name in small.index[(small > 0) & (small <= 1)]]
        if names:
            notes.append(f"No value above 1% (are they fractions already?): {', '.join(names)}.")
    rows = rows.assign(value=values * scale)
    if "stderr" in rows:
        errors = rows["stderr"].map(_parsed, na_action="ignore").astype(float)
        for place in rows.index[errors < 0][:1]:
            where = f"{path}, row {rows.at[place, 'line']}, column 'stderr'"
            raise InputError(f"{where}: {rows.at[place, 'stderr']} is negative.", NO_STDERR)
        rows["stderr"] = errors * scale
    return rows


def _typed(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Every other column in the type of the scores table; empty cells are null."""
    readers: dict[str, Callable[[str], object]] = {
        name: _whole for name in ("iteration", "num_fewshot", "seed", "n_items")
    }
    readers |= {"tokens_b": _parsed, "higher_is_better": lambda text: _BOOLEANS.get(text.casefold())}
    readers |= {"metric": metric_key, "protocol": lambda text: text if text in PROTOCOLS else None}
    for column in rows.columns.difference(["line", "column", "value", "stderr"]):
        reader = readers.get(column, str)
        values = []
        for text, line in zip(rows[column], rows["line"], strict=True):
            value = None if text == "" else reader(text)
            if value is None and (text != "" or column in ("model", "benchmark")):
                problem = "empty" if text == "" else f"{text!r} is not a {column}"
                raise InputError(f"{path}, row {line}, column {column!r}: {problem}.", "see docs/reference/tables.md.")
            values.append(value)
        rows[column] = pd.Series(values, index=rows.index, dtype=object)
    return rows


def _whole(text: str) -> int | None:
    number = _parsed(text)
    return int(number) if number is not None and number == int(number) and abs(number) < 2**63 else None


def _once(path: Path, rows: pd.DataFrame, repeats: Repeats, notes: list[str]) -> pd.DataFrame:
    """Each score once. Raises InputError for two different scores under one key unless `repeats` is `first`."""
    key = [name for name in KEY if name in rows]
    different = rows.drop_duplicates([*key, "value"])
    again = different.duplicated(key)
    if again.any() and repeats == "refuse":
        row = different[again].iloc[0]
        raise InputError(
            f"{path}, row {row['line']}: another score of {row['model']} on {row['benchmark']} "
            f"({count(int(again.sum()), 'such score')}).",
            "map the column that tells them apart (--columns checkpoint=COLUMN), or --repeats first.",
        )
    kept = rows.drop_duplicates(key)
    if len(kept) < len(rows):
        notes.append(f"Twice in the file, the first counts: {count(len(rows) - len(kept), 'score')}.")
    return kept


FORMAT = Format("csv", (".csv", ".tsv", ".csv.gz", ".tsv.gz"), _recognises, _read)
