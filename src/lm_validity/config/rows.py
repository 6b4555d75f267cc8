"""The one reader of sheets: each row of a CSV or TSV file as a Pydantic model, errors with file, row, column and value.

Standard library and pydantic only: the Snakefile reads this at parse time.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo

from lm_validity.config.section import bad_value
from lm_validity.config.text_rows import TextRows, read_text_rows
from lm_validity.errors import InputError, did_you_mean, nearest

DESCRIBED_IN = "docs/how_to/own_models_and_benchmarks.md"
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


class SheetRow(BaseModel):
    """A row of a sheet. Its first field is the row's id, unless `identified_by` names several; an empty value means the
    field's default.

    Where `extra` is "forbid", an unknown column is an error, so that a typing mistake does not pass, and every row has
    as many values as the header; where it is "ignore", neither matters.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    # by field: other names of its column, tried in this order where the field's own name is no column
    other_names: ClassVar[dict[str, tuple[str, ...]]] = {}
    # fields that together are the row's id, where the first alone is not
    identified_by: ClassVar[tuple[str, ...]] = ()
    # columns that are known and not read; so are those whose names begin with `published_`
    ignored: ClassVar[frozenset[str]] = frozenset()


Row = TypeVar("Row", bound=SheetRow)


def _split_at(separator: str) -> BeforeValidator:
    return BeforeValidator(
        lambda value: tuple(part.strip() for part in value.split(separator)) if isinstance(value, str) else value
    )


def _fill_in_run(path: str, info: ValidationInfo) -> str:
    known = info.context or {}
    if "run" not in known:
        return path
    if path == "results/{run}" or path.startswith("results/{run}/"):
        path = str(Path(known.get("results", "results"))) + path.removeprefix("results")
    return path.replace("{run}", known["run"])


def is_folder(path: str) -> bool:
    """A model's folder rather than a hub id, which has at most one slash: it need not be there yet."""
    return path.startswith((".", "/", "results/", "~")) or path.count("/") > 1 or Path(path).is_dir()


def split_revision(path: str) -> tuple[str, str | None]:
    """(hub id, revision) of `owner/name@revision`; a folder, or a hub id without one, as it is."""
    name, _, revision = path.partition("@")
    return (path, None) if Path(path).is_dir() or is_folder(name) else (name, revision or None)


def _check_identifier(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise bad_value(
            "not a usable id", "ids become file names: letters, digits, '.', '_' and '-'; hub ids go into `path`."
        )
    return value


def _check_size_class(name: str, info: ValidationInfo) -> str:
    known = (info.context or {}).get("size_classes")
    if known and name not in known:
        raise bad_value(
            "no such class in the configuration's size_classes",
            f"use one of {', '.join(known)}, or add it to size_classes.",
        )
    return name


Identifier = Annotated[str, AfterValidator(_check_identifier)]
PathInRun = Annotated[str, AfterValidator(_fill_in_run)]  # `results/{run}` becomes the run's folder
SizeClassName = Annotated[str, AfterValidator(_check_size_class)]
BETWEEN_BARS = _split_at("|")
BETWEEN_COMMAS = _split_at(",")


def read_rows(
    path: str | Path,
    kind: type[Row],
    *,
    setting: str | None = None,
    described_in: str = DESCRIBED_IN,
    **context: object,
) -> dict[str, Row]:
    """`list_rows` by their id, which is the first field alone."""
    assert not kind.identified_by, "list_rows is for ids of several fields"
    identifier = next(iter(kind.model_fields))
    rows = list_rows(path, kind, setting=setting, described_in=described_in, context=context)
    return {getattr(row, identifier): row for row in rows}


def list_rows(
    path: str | Path,
    kind: type[Row],
    *,
    setting: str | None = None,
    described_in: str = DESCRIBED_IN,
    context: Mapping[str, object],
) -> list[Row]:
    """The sheet's rows, in order; no two have the same id.

    setting: the configuration's key that names the sheet; described_in: the page about its columns. Both for hints.
    context: what the row's validators may ask for: `run`, the configuration's name; `results`, the folder of all runs;
    `size_classes`; `batch_ramps`.
    They also get `sheet`, the path. Raises InputError.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(
            f"{path}: no such sheet.", f"check `{setting}` in the configuration." if setting else "check the path."
        )
    found = read_text_rows(path, LAYOUT, short_rows=kind.model_config["extra"] == "ignore")
    columns = _columns(path, found, kind)
    flags = {name for name, field in kind.model_fields.items() if field.annotation in (bool, bool | None)}
    key = kind.identified_by or (next(iter(kind.model_fields)),)
    rows: list[Row] = []
    lines: dict[tuple[object, ...], int] = {}
    context = {**context, "sheet": path}
    for values, line in zip(found.rows, found.lines, strict=True):
        given = {field: values[at] for field, at in columns.items() if values[at]}
        # pandas writes 1.0 for a yes in a column with empty cells
        given |= {field: text[0] for field, text in given.items() if field in flags and text in ("0.0", "1.0")}
        try:
            row = kind.model_validate(given, context=context)
        except ValidationError as error:
            names = {field: found.header[at] for field, at in columns.items()}
            raise _input_error(error, kind, given, names, f"{path}, row {line}", described_in) from None
        identifier = tuple(getattr(row, field) for field in key)
        if identifier in lines:
            where = ", ".join(
                f"column {found.header[columns[field]]!r}, value {value!r}"
                for field, value in zip(key, identifier, strict=True)
            )
            raise InputError(
                f"{path}, row {line}, {where}: this id occurs twice (also in row {lines[identifier]}).",
                "give each row its own id.",
            )
        rows.append(row)
        lines[identifier] = line
    return rows


def _columns(path: Path, found: TextRows, kind: type[SheetRow]) -> dict[str, int]:
    """By field: the place of its column. Raises InputError for one that is missing or unknown."""
    fields, header = kind.model_fields, found.header
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
    if kind.model_config["extra"] == "forbid":
        known = {name for every in names.values() for name in every}
        for name in header:
            if name not in known | kind.ignored and not name.startswith("published_"):
                hint = did_you_mean(name, known, f"known are {', '.join(sorted(known))}.")
                raise InputError(f"{path}: unknown column {name!r}.", hint)
    return {field: header.index(name) for field, name in source.items() if name is not None}


def _input_error(
    error: ValidationError,
    kind: type[SheetRow],
    given: dict[str, str],
    names: dict[str, str],
    where: str,
    described_in: str,
) -> InputError:
    """The first thing that is wrong with a row. names: the column of each field, as the header has it."""
    first = error.errors()[0]
    more = first.get("ctx", {})
    field = str(first["loc"][0]) if first["loc"] else more.get("column")
    if field is not None:
        value = first["input"] if isinstance(first["input"], str) else given.get(field, "")
        where += f", column {names.get(field, field)!r}, value {value!r}"
    if first["type"] == "bad_value":
        return InputError(f"{where}: {more['problem']}.", more["hint"])
    if first["type"] == "literal_error":
        choices = re.findall("'([^']*)'", more["expected"])
        return InputError(
            f"{where}: unknown.", did_you_mean(first["input"], choices, f"use one of {', '.join(choices)}.")
        )
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    problem = _PROBLEMS.get(first["type"], message)
    if field in kind.model_fields and not kind.model_fields[field].is_required():
        return InputError(f"{where}: {problem}.", f"leave it empty where it is unknown; {described_in} describes it.")
    return InputError(f"{where}: {problem}.", f"{described_in} describes the columns.")
