"""The files that an importer is given: named themselves, or found in folders."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from lm_validity.errors import InputError

# 2024-11-26T10-47-32.305387 (lm-eval 0.4), 2022-07-13-11-29-13, 2024-11-26
_DATE = re.compile(r"(?<!\d)(\d{4})-(\d\d)-(\d\d)(?:[T_ -](\d\d)[-:](\d\d)(?:[-:](\d\d)(\.\d+)?)?)?(?!\d)")


class Found(NamedTuple):
    """A file, and whether it was named itself or found in a folder that was."""

    path: Path
    named: bool


def find_files(paths: Iterable[str | Path], suffixes: tuple[str, ...]) -> tuple[list[Found], Counter[str]]:
    """The named files, and those with one of `suffixes` in the named folders and below, each once, in order of path.

    An empty suffix stands for names without one, of which those are taken that begin like a JSON object. Hidden files
    and folders are left out; links to folders are not followed. Also: how many files with other suffixes the folders
    hold, by suffix. Raises InputError for a path that is not there.
    """
    found: dict[Path, Found] = {}
    others: Counter[str] = Counter()
    for path in map(Path, paths):
        if path.is_file():
            found[path.resolve()] = Found(path, named=True)
        elif not path.is_dir():
            raise InputError(f"{path}: no such file or folder.", "check the path.")
        for each in _below(path):
            ends = {each.suffix, "".join(each.suffixes[-2:])}
            if not ends & set(suffixes) or (not each.suffix and not _begins_like_json(each)):
                others[each.suffix or each.name] += 1
            else:
                found.setdefault(each.resolve(), Found(each, named=False))
    return list(found.values()), others


def _begins_like_json(path: Path) -> bool:
    """Whether a file without a suffix may be JSON: LICENSE and Makefile are not to be listed as broken."""
    try:
        with open(path, "rb") as handle:
            return handle.read(64).lstrip()[:1] == b"{"
    except OSError:
        return False


def date_in(name: str) -> float | None:
    """The last date in a file's name, in seconds since 1970, its time of day taken as UTC; None where there is none."""
    for year, month, day, hour, minute, second, fraction in reversed(_DATE.findall(name)):
        try:
            moment = datetime(
                int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC
            )
        except ValueError:  # 2024-13-45 is no date
            continue
        return moment.timestamp() + float(fraction or 0)
    return None


def date_text(date: float | None) -> str:
    """A date as a reader knows it."""
    return "no date" if date is None else f"{datetime.fromtimestamp(date, UTC):%Y-%m-%d %H:%M:%S}"


def _below(folder: Path) -> Iterable[Path]:
    if not folder.is_dir():
        return
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place) / name
            if not name.startswith(".") and path.is_file():
                yield path
