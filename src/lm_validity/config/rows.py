"""Sheets: rows of text read, checked against a pydantic model, and refused with place and hint; groups of models."""

import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import pydantic
from pydantic_core import PydanticCustomError

from lm_validity.errors import InputError, did_you_mean, nearest
from lm_validity.files import absent, unprintable
from lm_validity.words import listing

if TYPE_CHECKING:
    import pandas as pd


# ----------------------------------------------------------------------------------------------------------------------
# What all sections of the configuration, and the rows of its sheets, have in common.
#
# Only the standard library and pydantic are imported: the Snakefile reads this at parse time.

Positive = Annotated[int, pydantic.Field(ge=1)]
LONGEST_NAME = 120  # characters of an id or a run's name: a file name of two ids and their recipe has at most 255


class ConfigSection(pydantic.BaseModel):
    """Unknown keys are errors; values are frozen once read."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    @pydantic.field_validator("*", mode="wrap")
    @classmethod
    def _yes_is_no_number(cls, value: object, handler: pydantic.ValidatorFunctionWrapHandler) -> object:
        """YAML's `yes`, `on` and `true` are no 1, which is what pydantic would make of them."""
        read = handler(value)
        if _is_yes_for_number(value, read):
            raise bad_value("yes, no, on, off, true and false are no numbers", "write the number.")
        return read


def _is_yes_for_number(value: object, read: object) -> bool:
    """Whether a truth value, perhaps in a list or a mapping, was read as something else."""
    if isinstance(value, list) and isinstance(read, list | tuple):
        return any(starmap(_is_yes_for_number, zip(value, read, strict=False)))
    if isinstance(value, dict) and isinstance(read, dict):
        return any(starmap(_is_yes_for_number, zip(value.values(), read.values(), strict=False)))
    return isinstance(value, bool) and not isinstance(read, bool)


def key(default: Any, description: str | None, **limits: Any) -> Any:
    """A field that a configuration may set (`...`: must set). Fields that are no keys have one value in every run."""
    return pydantic.Field(default, description=description, **limits)


def check_distinct(values: tuple[object, ...]) -> tuple[object, ...]:
    """A validator: raises ValueError for a value that is there twice."""
    if len(set(values)) != len(values):
        raise ValueError("holds a value twice")
    return values


def bad_value(problem: str, hint: str, column: str | None = None) -> PydanticCustomError:
    """What a validator raises to give its own hint. `column`: for a validator of the whole row."""
    return PydanticCustomError("bad_value", "{problem}", {"problem": problem, "hint": hint, "column": column})


# ----------------------------------------------------------------------------------------------------------------------
# Rows of a CSV or TSV text file, each as wide as the header and under names that occur once.
#
# pandas' own reader takes the first column for row names where rows are wider than the header, and renames a repeated
# column: both give other numbers than the file's without a word. Standard library only, but for `TextRows.frame`: the
# Snakefile reads sheets at parse time.

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


def read_text_rows(path: Path, layout: str) -> TextRows:
    """The rows of a file, as `read_text` and `parse_text_rows` have them. Raises InputError."""
    return parse_text_rows(read_text(path, layout), path, layout, short_rows=True)


def read_text(path: Path, layout: str) -> str:
    """The text of a file, gzipped or not. `layout` is the hint. Raises InputError for one that is absent, damaged or no
    UTF-8 or UTF-16 text, and for one that is larger than any table of scores."""
    if not path.is_file():
        raise absent(path)
    try:
        with open(path, "rb") as start:
            opener = gzip.open if start.read(2) == b"\x1f\x8b" else open
        with opener(path, "rb") as handle:
            content = handle.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise InputError(f"{path}: more than {_LARGEST >> 20} MiB of text.", "divide it, or import parts of it.")
        utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")  # as spreadsheets write "Unicode text"
        return content.decode("utf-16" if utf16 else "utf-8-sig")
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a readable CSV or TSV text file ({error}).", layout) from error


def parse_text_rows(text: str, path: Path, layout: str, *, short_rows: bool) -> TextRows:
    """The rows of a text, separated by tabs where its first line has one, else by commas, or by semicolons where that
    line has no comma. `path` is for errors.

    Rows without any value and lines that begin with # are skipped, shorter rows have empty values at their end, and a
    last column that is empty throughout is left out. `layout` is the hint of errors that concern the whole file. Raises
    InputError for a control character, a quote that does not end on its line, a row wider than the header (or shorter,
    without `short_rows`), a column's name that occurs twice, and a file without rows.
    """
    if (odd := unprintable(text, allowed="\t\r\n")) is not None:
        line = text.count("\n", 0, text.index(odd)) + 1
        raise InputError(f"{path}, row {line}: holds the character {odd!r}.", "remove it.")
    records = list(_records(text, path))
    if len(records) < 2:
        raise InputError(f"{path}: no rows.", layout)
    header = records.pop(0)[1]
    for name, times in Counter(header).items():
        if name and times > 1:
            raise InputError(f"{path}: two columns are called {name!r}.", "rename or remove one of them.")
    width, rows = len(header), list[list[str]]()
    for number, values in records:
        if short_rows and not header[-1] and not any(values[width:]):
            values = values[:width]  # separators behind the end, as the header has
        if len(values) > width or (len(values) < width and not short_rows):
            raise InputError(
                f"{path}, row {number}: {len(values)} values for {width} columns.",
                "write one separator between two values, also where one is empty; quote values that contain it.",
            )
        rows.append(values + [""] * (width - len(values)))
    while header and not header[-1] and not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return TextRows(header, rows, [number for number, _ in records])


def _records(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the values of each line that is no comment and has any."""
    csv.field_size_limit(_LARGEST)  # a cell may hold a whole prompt
    separator = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        separator = separator or ("\t" if "\t" in line else ";" if ";" in line and "," not in line else ",")
        (values,) = csv.reader([f"{line}\n"], delimiter=separator, skipinitialspace=separator != "\t")
        if any("\n" in value for value in values):
            problem = f"{path}, row {number}: a quote does not end on its line."
            raise InputError(problem, "close it, or take the end of line out.")
        values = [value.strip() for value in values]
        if any(values):
            yield number, values


# ----------------------------------------------------------------------------------------------------------------------
# The one reader of sheets: each row of a CSV or TSV file as a Pydantic model, errors with file, row, column and value.
#
# Standard library and pydantic only: the Snakefile reads this at parse time.

LAYOUT = "a sheet has a header and one row per entry, in UTF-8, its columns separated by tabs or by commas."

# What is wrong with a value by the kind of Pydantic's error; other kinds have Pydantic's message.
_PROBLEMS = {
    "missing": "empty",
    "bool_parsing": "not a yes or no (0/1 or true/false)",
    "float_parsing": "not a number",
    "finite_number": "not a number",
    "int_parsing": "not a whole number",
    "int_from_float": "not a whole number",
}


class SheetRow(pydantic.BaseModel):
    """A row of a sheet. Its first field is the row's id, unless `identified_by` names several; an empty value means the
    field's default.

    Where `extra` is "forbid", an unknown column is an error, so that a typing mistake does not pass, and every row has
    as many values as the header; where it is "ignore", neither matters.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    # by field: other names of its column, tried in this order where the field's own name is no column
    other_names: ClassVar[dict[str, tuple[str, ...]]] = {}
    # fields that together are the row's id, where the first alone is not
    identified_by: ClassVar[tuple[str, ...]] = ()
    # columns that are known and not read; so are those whose names begin with `published_`
    ignored: ClassVar[frozenset[str]] = frozenset()


Row = TypeVar("Row", bound=SheetRow)


class Sheets:
    """The texts of a run's sheets by path, None where there is no such file. Each is read once; those that are `given`
    are never read: a job has the sheets as they were when its run was planned."""

    def __init__(self, texts: Mapping[str, str | None] | None = None):
        self.texts: dict[str, str | None] = dict(texts or {})

    def text(self, path: str | Path) -> str | None:
        """The text of a sheet. Raises InputError as `read_text`."""
        path = Path(path)
        if str(path) not in self.texts:
            self.texts[str(path)] = read_text(path, LAYOUT) if path.is_file() else None
        return self.texts[str(path)]


def _check_identifier(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise bad_value(
            "not a usable id", "ids become file names: letters, digits, '.', '_' and '-'; hub ids go into `path`."
        )
    if len(value) > LONGEST_NAME:
        raise bad_value(f"{len(value)} characters, too many for a part of file names", f"at most {LONGEST_NAME}.")
    return value


Identifier = Annotated[str, pydantic.AfterValidator(_check_identifier)]


def read_rows(path: str | Path, kind: type[Row], *, setting: str | None = None, **context: object) -> dict[str, Row]:
    """`list_rows` by their id, which is the first field alone."""
    assert not kind.identified_by, "list_rows is for ids of several fields"
    identifier = next(iter(kind.model_fields))
    rows = list_rows(path, kind, setting=setting, context=context)
    return {getattr(row, identifier): row for row in rows}


def list_rows(
    path: str | Path, kind: type[Row], *, setting: str | None = None, context: Mapping[str, Any]
) -> list[Row]:
    """The sheet's rows, in order; no two have the same id.

    setting: the configuration's key that names the sheet; for hints.
    context: what the row's validators may ask for: `run`, the configuration's name; `results`, the folder of all runs;
    `size_classes`; `sheets`, where texts are taken from (None: the files).
    They also get `sheet`, the path. Raises InputError.
    """
    path = Path(path)
    text = (context.get("sheets") or Sheets()).text(path)
    if text is None:
        if setting is None:
            raise absent(path, "sheet")
        raise InputError(f"{path}: no such sheet.", f"check `{setting}` in the configuration.")
    table = parse_text_rows(text, path, LAYOUT, short_rows=kind.model_config["extra"] == "ignore")
    columns = _columns(path, table, kind)
    flags = {name for name, field in kind.model_fields.items() if field.annotation in (bool, bool | None)}
    key = kind.identified_by or (next(iter(kind.model_fields)),)
    rows: list[Row] = []
    lines: dict[tuple[object, ...], int] = {}
    context = {**context, "sheet": path}
    for values, line in zip(table.rows, table.lines, strict=True):
        texts = {field: values[column] for field, column in columns.items() if values[column]}
        # pandas writes 1.0 for a yes in a column with empty cells
        texts |= {field: text[0] for field, text in texts.items() if field in flags and text in ("0.0", "1.0")}
        try:
            row = kind.model_validate(texts, context=context)
        except pydantic.ValidationError as error:
            names = {field: table.header[column] for field, column in columns.items()}
            raise _input_error(error, kind, texts, names, f"{path}, row {line}") from None
        identifier = tuple(getattr(row, field) for field in key)
        if identifier in lines:
            where = ", ".join(
                f"column {table.header[columns[field]]!r}, value {value!r}"
                for field, value in zip(key, identifier, strict=True)
            )
            raise InputError(
                f"{path}, row {line}, {where}: this id occurs twice (also in row {lines[identifier]}).",
                "give each row its own id.",
            )
        rows.append(row)
        lines[identifier] = line
    return rows


def _columns(path: Path, table: TextRows, kind: type[SheetRow]) -> dict[str, int]:
    """By field: the place of its column. Raises InputError for one that is missing or unknown."""
    fields, header = kind.model_fields, table.header
    names = {
        field: (field, *(name for name in kind.other_names.get(field, ()) if name not in fields)) for field in fields
    }
    source = {field: next((name for name in names[field] if name in header), None) for field in fields}
    for field, name in source.items():
        if name is None and fields[field].is_required():
            close = nearest(field, header)
            raise InputError(
                f"{path}: no column {field!r}.",
                f"rename {close!r} to {field!r}." if close else f"the columns are: {', '.join(header)}.",
            )
    known_names = {name for of_field in names.values() for name in of_field}
    if kind.model_config["extra"] == "forbid":
        for name in header:
            if name not in known_names | kind.ignored and not name.startswith("published_"):
                hint = did_you_mean(name, known_names, f"known are {', '.join(sorted(known_names))}.")
                raise InputError(f"{path}: unknown column {name!r}.", hint)
    key = kind.identified_by or (next(iter(fields)),)
    has_fields = any(name for field, name in source.items() if field not in key)
    if not has_fields and any(re.fullmatch(r"-?\d*[.,]\d+ ?%?", value) for row in table.rows for value in row):
        raise InputError(  # a table of scores
            f"{path}: no column but {key[0]!r} is one of this sheet's ({listing(header, 4)}).",
            f"a sheet says of each {key[0]} what its columns are for: {listing(sorted(set(fields) - {*key}), 5)}.",
        )
    return {field: header.index(name) for field, name in source.items() if name is not None}


def _input_error(
    error: pydantic.ValidationError, kind: type[SheetRow], texts: dict[str, str], names: dict[str, str], where: str
) -> InputError:
    """The first thing that is wrong with a row. names: the column of each field, as the header has it."""
    first = error.errors()[0]
    context = first.get("ctx", {})
    field = str(first["loc"][0]) if first["loc"] else context.get("column")
    if field is not None:
        value = first["input"] if isinstance(first["input"], str) else texts.get(field, "")
        where += f", column {names.get(field, field)!r}, value {value!r}"
    if first["type"] == "bad_value":
        return InputError(f"{where}: {context['problem']}.", context["hint"])
    if first["type"] == "literal_error":
        choices = re.findall("'([^']*)'", context["expected"])
        return InputError(
            f"{where}: unknown.", did_you_mean(first["input"], choices, f"use one of {', '.join(choices)}.")
        )
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    problem = _PROBLEMS.get(first["type"], message)
    if field in kind.model_fields and not kind.model_fields[field].is_required():
        return InputError(f"{where}: {problem}.", "leave it empty where it is unknown.")
    return InputError(f"{where}: {problem}.", "every row needs it." if not texts.get(str(field)) else "correct it.")


# ----------------------------------------------------------------------------------------------------------------------
# Groups of models whose lead the agreement report asks about: what `--group` and `agreement.groups` may say.
#
#     released>=2023-11      models released in that month or later
#     family=Qwen            models of a family
#     COLUMN                 models with a 1 in a column of 0 and 1

_FORMS = "one of 'released>=2023-11', 'family=NAME' and the name of a column of 0 and 1, such as 'instruction_tuned'."
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
_DATE_HINT = "write a month or a day, such as 2023-11 or 2023-11-05."


def _day(text: str) -> date | None:
    """The day of `2023-11-05`, the first day of `2023-11`; None for any other text, a number of seconds among them."""
    try:
        return date.fromisoformat(f"{text}-01"[:10]) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def _read_date(value: object) -> object:
    if isinstance(value, str) and (value := _day(value)) is None:
        raise bad_value("not a date", _DATE_HINT)
    return value


Released = Annotated[date, pydantic.BeforeValidator(_read_date)]


class Group(NamedTuple):
    """A group as it was written; `value` is what its column must hold: a day or later, a family, or yes."""

    text: str
    column: str
    value: date | str | Literal[True] = True

    @property
    def words(self) -> str:
        """Its models, in a sentence."""
        if isinstance(self.value, date):
            return f"models released since {self.value:%B %Y}"
        return f"models of the family {self.value}" if isinstance(self.value, str) else f"{self.column} models"

    def has(self, value: object) -> bool | None:
        """Whether a model whose column holds `value` is in it; None where nothing is known of the model."""
        if value is None:
            return None
        if isinstance(self.value, date):
            return isinstance(value, date) and value >= self.value
        return value == self.value


def parse_group(text: str) -> Group:
    """A group from `--group` or the configuration. Raises InputError."""
    column, sign, value = (part.strip() for part in re.fullmatch(r"([^=<>]*)([=<>]*)(.*)", text, re.DOTALL).groups())  # type: ignore[union-attr]
    if column == "released" and sign == ">=":
        day = _day(value)
        if day is None:
            raise InputError(f"group {text!r}: {value!r} is not a date.", _DATE_HINT)
        return Group(text, column, day)
    if column == "family" and sign == "=" and value:
        return Group(text, column, value)
    if sign or column in ("", "released", "family"):
        raise InputError(f"group {text!r}: not a group of models.", _FORMS)
    return Group(text, column)


def with_columns(kind: type[Row], groups: Iterable[Group]) -> type[Row]:
    """The kind of row with a column of 0 and 1 for each group that names one of its own."""
    columns: Any = {group.column: (bool | None, None) for group in groups if group.column not in kind.model_fields}
    wider: type[Row] = pydantic.create_model(kind.__name__, __base__=kind, __module__=kind.__module__, **columns)
    return wider if columns else kind


def members(
    group: Group, values: Sequence[object], compute_known: Sequence[bool], path: str | Path
) -> list[bool | None]:
    """Which models are in the group, by what its column holds (None: unknown).

    Raises InputError where no compute is known, and where no model of known compute is in the group or all are: a lead
    needs both sides. `path`: the models sheet.
    """
    memberships = [group.has(value) for value in values]
    sides = {side for side, is_known in zip(memberships, compute_known, strict=True) if is_known and side is not None}
    where = f"{path}: group {group.text!r}"
    if not any(compute_known):
        hint = "fill in parameters_b and tokens_b: leads are compared at equal pretraining compute."
        raise InputError(f"{where}: no model's compute is known.", hint)
    if not any(value is not None for value in values):
        raise InputError(f"{where}: no model has a value in the column {group.column!r}.", "fill it in, or add it.")
    if group.value is True and any(value not in (None, True, False) for value in values):
        raise InputError(f"{where}: the column {group.column!r} does not hold 0 and 1.", _FORMS)
    if sides != {True, False}:
        quantifier, hint = "no" if True not in sides else "every", "a group has some models in it and others outside."
        if isinstance(group.value, str):
            hint = did_you_mean(group.value, [value for value in values if value is not None], hint)
        raise InputError(f"{where}: {quantifier} model whose compute and {group.column!r} are known is in it.", hint)
    return memberships
