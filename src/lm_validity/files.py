"""Writing that leaves either the old file or the new one, never half of one."""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lm_validity.errors import InputError, nearest

# An object of JSON or YAML that another program or a person wrote. It stays open, since nothing is known of its parts
# before they are checked, each where it is read. Records of our own have types of their own
Document = dict[str, Any]

# no character of a name: control characters, ends of lines, halves of pairs, and what Unicode calls no character. XML,
# which figures are drawn as, has none of them
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def as_written(path: str | Path) -> Path:
    """The absolute path without `..`. A link keeps its own name: a hub's cache is made of links."""
    return Path(os.path.abspath(path))


def absent(path: str | Path, kind: str = "file", otherwise: str = "check the path.") -> InputError:
    """The error for a path where nothing is. Its hint says what an address, a pattern or standard input would need,
    which name beside it is nearly the same or which folder is not there; else `otherwise`."""
    text, path = re.sub("^([a-z][a-z0-9+.-]+):/(?!/)", r"\1://", str(path)), Path(path)
    if "://" in text:
        otherwise = "nothing is fetched: download it first, then name the file or folder."
    elif text == "-":
        otherwise = "standard input is not read: write it to a file, and name that."
    elif set(text) & set("*?["):
        otherwise = "no name fits this pattern; name the folder that holds the files."
    else:
        with contextlib.suppress(OSError):
            nearest_folder = next(folder for folder in (path.parent, *path.parent.parents) if folder.is_dir())
            below = path.relative_to(nearest_folder).parts
            if close := nearest(
                below[0], (entry.name for entry in nearest_folder.iterdir() if not entry.name.startswith("."))
            ):
                otherwise = f"did you mean '{nearest_folder.joinpath(close, *below[1:])}'?"
            elif len(below) > 1:
                otherwise = f"there is no folder '{nearest_folder / below[0]}'."
    return InputError(f"{text}: no such {kind}.", otherwise)


@contextlib.contextmanager
def made_folder(path: str | Path) -> Iterator[Path]:
    """Make a folder and those above it, where they are not there; an error inside removes those that it made, if
    nothing is in them. Raises InputError where there can be no folder, as below /proc."""
    path = Path(path)
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    try:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # although those above it are made first
            raise InputError(f"{path}: no folder can be made there.", "choose another place.") from error
        yield path
    except BaseException:
        with contextlib.suppress(OSError):
            for parent in missing:
                parent.rmdir()
        raise


@contextlib.contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` on success, remove it on failure.

    The temporary name keeps the file's suffix, since some writers choose the format by it.
    """
    path = Path(path)
    with made_folder(path.parent):
        try:
            handle, name = tempfile.mkstemp(prefix=f".{path.stem[:50]}.", suffix=path.suffix, dir=path.parent)
        except FileNotFoundError as error:  # although the folder is there, as /proc is
            raise InputError(f"{path}: no file can be written there.", "choose another place.") from error
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            # mkstemp makes files that only their owner reads; results are shared within a group
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            os.replace(temporary, path)
        except OSError as error:
            error.filename = error.filename or str(path)  # a full disk refuses what is written, and names no file
            raise
        finally:
            temporary.unlink(missing_ok=True)


def make_writable(folder: Path) -> None:
    """Make a folder, if it is not there. Raises InputError where no file can be made in it: /proc, for one, then says
    that the file is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{folder}: no file can be written there ({error.strerror}).", "choose another place."
        ) from error


def write_text(path: str | Path, text: str) -> None:
    """Write `text` (UTF-8) so that a reader sees the old file or the new one, never a part."""
    with replace_file(path) as temporary:
        # names of files need not be UTF-8; JSON spells their other bytes so
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def check_encodable(text: str, where: str) -> None:
    """Raises InputError for a text that no file can hold: JSON can spell half of a surrogate pair (`\\ud800`)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: character {error.start + 1}, {text[error.start]!r}, is half of a pair of surrogates.",
            "leave it out, or write the character itself.",
        ) from None


def unprintable(text: str, allowed: str = "") -> str | None:
    """The first character of `text` that no name has (control characters, ends of lines and the like); None where there
    is none. `allowed`: such characters that may be in it."""
    return next((character for character in _UNPRINTABLE.findall(text) if character not in allowed), None)


def json_text(value: object) -> str:
    """`value` as indented JSON with unrounded floats. NaN and infinity are refused."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: str | Path, value: object) -> None:
    """Write `value` as `json_text` spells it, atomically."""
    write_text(path, json_text(value))


def read_json_or(path: str | Path, otherwise: object) -> Any:
    """The JSON value of a file, or `otherwise` where it holds none of this kind: a list for a list, else an object."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return otherwise
    return value if isinstance(value, list if isinstance(otherwise, list) else dict) else otherwise


def read_object(path: str | Path) -> Document:
    """The JSON object of a file written by this program; another value is a ValueError, errors are as `read_json`'s."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def is_whole(path: Path) -> bool:
    """Whether a Parquet file has its beginning and its end, and a file of JSON holds an object."""
    if path.suffix == ".json":
        return read_json_or(path, None) is not None
    mark = b"PAR1"
    with open(path, "rb") as file:
        begins = file.read(len(mark)) == mark
        file.seek(-min(len(mark), path.stat().st_size), os.SEEK_END)
        return begins and file.read() == mark


def read_json(path: str | Path) -> Any:
    """The JSON value of a file written by this program (errors are the caller's: OSError, ValueError). A pipe, into
    which nobody may ever write, is an empty file."""
    with open(path, encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as handle:
        try:
            return json.load(handle)
        except RecursionError as error:
            raise ValueError(f"{path}: nested too deeply") from error


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def commit_of(path: Path) -> str:
    """`commit 9009072c`, the last one that git has of a file or folder, and whether it was changed since; `commit not
    known` where git has none."""
    folder, name = (path, ".") if path.is_dir() else (path.parent, path.name)
    answers = []
    for command in (["log", "-1", "--format=%h"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            done = subprocess.run(
                ["git", *command, "--", name], cwd=folder, capture_output=True, text=True, check=False
            )
        except OSError:  # there is no git, or no such folder
            return "commit not known"
        answers.append(done.stdout.strip() if done.returncode == 0 else "")
    commit, changed = answers
    return f"commit {commit}{', changed since' if changed else ''}" if commit else "commit not known"


def made_from(paths: Iterable[str | Path | None]) -> str:
    """What something was made from: the first three paths, each with its commit."""
    texts = [f"{path} ({commit_of(Path(path))})" for path in paths if path is not None]
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
