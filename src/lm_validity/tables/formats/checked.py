"""Values of others' JSON files, checked before they become a column of a table."""

import json
import math
from pathlib import Path
from typing import Any

from lm_validity.errors import InputError
from lm_validity.files import Document, absent, check_encodable
from lm_validity.tables.schema import LARGEST_SCORE

NO_STDERR = "write the standard error itself, or leave it out where it is unknown."
_LARGEST = 2**63 - 1  # of a table's integers
_LAST_DATE = 253402300799.0  # the end of the year 9999, in seconds since 1970
_LARGEST_FILE = 2**29  # bytes of a file that is read as a whole


def read_json_file(path: Path, hint: str) -> Any:
    """The JSON value of others' file. Raises InputError, with the hint, for what no importer could read."""
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise InputError(f"{path}: {size / 2**20:.0f} MiB, too large for a file of scores.", hint)
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}).", hint) from error
    except FileNotFoundError as error:
        raise absent(path) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).", hint) from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}).", hint) from error
    if "\\ud" in text.lower():  # perhaps half of a pair of surrogates, which no table can hold
        check_encodable(json.dumps(document, ensure_ascii=False), str(path))
    return document


def part(value: object, *names: str) -> Document:
    """An object, or that under `names`, each in the one before; {} where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Document]:
    """A list of objects; [] for anything else."""
    return value if isinstance(value, list) and all(isinstance(entry, dict) for entry in value) else []


def finite(value: object) -> float | None:
    """A finite number as a float; None for anything else: texts, booleans, NaN, numbers that no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def parsed(value: object) -> object:
    """The number of a text; what is no number of a text stays as it is, and what is empty is None."""
    try:
        return float(value) if isinstance(value, str) and value else value or None
    except ValueError:
        return value


def score(value: object, where: str, hint: str) -> float:
    """A finite number; InputError otherwise, and for one beyond all scores."""
    as_float = finite(value)
    if as_float is None or abs(as_float) > LARGEST_SCORE:
        raise InputError(f"{where}: {_shown(value)} is not a finite number.", hint)
    return as_float


def standard_error(value: object, where: str) -> float | None:
    """A finite number, None for anything else; InputError for a negative one and for one beyond all scores."""
    error = finite(value)
    if error is not None and error < 0:
        raise InputError(f"{where}: the standard error {_shown(value)} is negative.", NO_STDERR)
    return None if error is None else score(value, f"{where}, standard error", NO_STDERR)


def number(value: object, where: str) -> float | None:
    """A finite number, or null; InputError otherwise."""
    return None if value is None else score(value, where, "write a number, or null for unknown.")


def whole(value: object, where: str, least: int = -_LARGEST) -> int | None:
    """A whole number (9.0 is one) from `least`, or null; InputError otherwise."""
    as_float = number(value, where)
    if as_float is None:
        return None
    if as_float != math.floor(as_float) or abs(as_float) > _LARGEST:
        raise InputError(f"{where}: {_shown(value)} is not a whole number.", "write one, or null for unknown.")
    if as_float < least:
        raise InputError(f"{where}: {_shown(value)} is less than {least}.", "write null for unknown.")
    assert isinstance(value, int | float)  # `as_float` is its value
    return int(value)


def date(value: object) -> float | None:
    """Seconds since 1970, also as a text; None for what is none, and for one that no calendar has."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    seconds = finite(value)
    return seconds if seconds is not None and 0 <= seconds <= _LAST_DATE else None


def flag(value: object, where: str) -> bool | None:
    """True, false or null; InputError otherwise."""
    if not isinstance(value, bool | None):
        raise InputError(f"{where}: {_shown(value)} is not a boolean.", "write true, false, or null for unknown.")
    return value


def text(value: object, where: str) -> str | None:
    """A text or null; InputError otherwise."""
    if not isinstance(value, str | None):
        raise InputError(f"{where}: {_shown(value)} is not text.", "write a text, or null for unknown.")
    return value


def _shown(value: object) -> str:
    return repr(value)[:60]


def required_text(value: object, where: str, hint: str) -> str:
    """A text that is not blank; InputError otherwise."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {_shown(value)} is no name.", hint)
    return value


def is_sampled(options: Document) -> bool:
    """Whether answers were drawn at random, by the options of generation as a file has them: numbers or texts."""
    temperature = options.get("temperature")
    try:
        warm = temperature is not None and float(temperature) > 0
    except (TypeError, ValueError):
        warm = False
    return warm and str(options.get("do_sample", True)).lower() not in ("false", "0", "none")
