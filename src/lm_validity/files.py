"""Writing that leaves either the old file or the new one, never half of one."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_validity.errors import InputError, Problem, nearest

if TYPE_CHECKING:
    from lm_validity.pages.page import PageDocument

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


# ----------------------------------------------------------------------------------------------------------------------
# Folders that commands write: a command replaces what it wrote itself there, and nothing else.

LIST = "lm-validity.json"
FORMAT = 1  # of LIST

# A path below the folder -> the digests that the file may have to count as the command's own. Two: a command was ended
# while it moved its files. None: an empty folder, whose path ends with a slash.
_Own = Mapping[str, list[str]]


@contextlib.contextmanager
def replaced_folder(
    output: str | Path,
    command: str,
    *,
    inputs: Iterable[str | Path | None] = (),
    names: Collection[str] = (),
    entries_to_keep: Collection[str] = (),
) -> Iterator[Path]:
    """Yield a folder to write into. On success its files take the place of those that `command` wrote into `output`
    before, and files that it wrote before and not now are removed; after an error `output` is as it was.

    `inputs`: what the command reads: none may be `output` or lie in it. `names`: what it may write there, so that
    somebody's own files under these names are found before the work is done. `entries_to_keep`: files in `output` that
    the user gave as an input, which stay. Raises InputError, with the file's name, where something would be lost.
    """
    output = Path(output)
    check_folder(output, command, inputs=inputs, names={*names} - {*entries_to_keep})
    with made_folder(output.parent), _draft(output) as folder:
        try:
            yield folder
        except InputError as error:  # about a file that will have been there only for a while
            raise error.reworded({str(folder): str(output)}) from error
        _move(folder, output, command, entries_to_keep)


def check_folder(
    output: str | Path, command: str, *, inputs: Iterable[str | Path | None] = (), names: Iterable[str] = ()
) -> None:
    """Raises InputError where `output` is no folder, is an input or holds one, or where somebody's own file, folder or
    link is under one of `names`."""
    output = Path(output)
    if output.is_symlink() and not output.exists():
        raise InputError(f"{output}: a link that leads nowhere.", "remove it, or make the folder.")
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: a file, where a folder is to be written.", "name a new folder with --output.")
    resolved = output.resolve()
    for path in (source for source in inputs if source is not None):
        source_path = Path(path).resolve()
        if source_path == resolved or resolved in source_path.parents:
            problem = "is what is read" if source_path == resolved else f"holds {path}, which is read"
            raise InputError(f"--output {output}: the folder {problem}.", "name a new folder with --output.")
    own_files = _listed(output).get(command, {})
    for name in sorted(names):
        if (foreign := _in_the_way(output, name, own_files)) is not None:
            _refuse(foreign, output)


def check_file(path: str | Path, marks: Iterable[str] = ()) -> None:
    """Raises InputError where a file to write is there already and is none that the same command wrote: all `marks`
    stand in one of those, in its first 64 kB. Without marks any file is refused; so is a link."""
    path, marks_as_bytes = Path(path), [mark.encode() for mark in marks]
    if path.is_symlink():
        raise InputError(f"{path}: a link.", "name a new file, or the file that the link leads to.")
    if path.is_dir():
        raise InputError(f"{path}: a folder, where a file is to be written.", "name a new file.")
    if not path.exists():
        return
    with open(path, "rb") as handle:
        head = handle.read(2**16) if path.is_file() else b""
    if not marks_as_bytes or not all(mark in head for mark in marks_as_bytes):
        raise InputError(f"{path}: it is there already, and this command did not write it.", "name a new file.")


def read_page(path: Path) -> "PageDocument":
    """The content of a report's page.json. Raises InputError where it is not a whole file."""
    document: PageDocument | None = read_json_or(path, None)
    if document is None:
        raise InputError(f"{path}: not a whole file.", "delete its folder and have the report written again.")
    return document


def report_problems(folder: Path) -> list[Problem]:
    """The files of a run's report of which only a part is there, or nothing though others are. None where no report was
    written."""
    action = f"delete the folder {folder}, and run the workflow again: it writes the report anew"
    files = [folder / name for name in ("page.json", "results.parquet")]
    present = [path for path in files if path.is_file()]
    problems = [Problem(str(path), "not a whole file", action) for path in present if not is_whole(path)]
    return (
        [Problem(str(files[0]), "no such file", action), *problems] if present and files[0] not in present else problems
    )


def made_of_results(folder: Path) -> set[Path]:
    """The files of a folder that commands made of results, as it lists them: pages and tables. What an export wrote is
    result files again. None where there is no list, or none of this program."""
    try:
        commands = _listed(folder)
    except InputError:
        return set()
    return {folder / name for command in commands for name in commands[command] if not command.startswith("export")}


# ----------------------------------------------------------------------------------------------------------------------
# Whose a file is.


def _listed(output: Path) -> dict[str, dict[str, list[str]]]:
    """The list: command -> file -> digests. Raises InputError where the file is not of this program."""
    if not (output / LIST).is_file():
        return {}
    hint = "name a new folder with --output, or remove the file: the files that it lists then count as yours."
    document = read_json_or(output / LIST, None)
    try:
        commands = document["commands"]
        complete = {
            str(command): {str(name): [str(digest) for digest in digests] for name, digests in files.items()}
            for command, files in commands.items()
        }
    except (TypeError, KeyError, AttributeError):
        raise InputError(f"{output / LIST}: not a list of what was written here.", hint) from None
    outside = [
        name for files in complete.values() for name in files if ".." in Path(name).parts or Path(name).is_absolute()
    ]
    if outside:
        raise InputError(f"{output / LIST}: it lists {outside[0]}, which is not in the folder.", hint)
    if document.get("format") != FORMAT:
        raise InputError(f"{output / LIST}: of format {document.get('format')}, not {FORMAT}.", hint)
    return complete


def _in_the_way(output: Path, name: str, own_files: _Own, digest: str | None = None) -> Path | None:
    """What would be lost if the file of this digest were written, or (None) something of this name: somebody's own file
    there or in a folder of the name, a link on the way, a file for a folder. A folder that holds files of the command
    may hold others too, which stay."""
    target = output / name
    above = [output / part for part in reversed(Path(name).parents) if part != Path()]
    for path in (*above, target):
        if path.is_symlink() or (path != target and path.exists() and not path.is_dir()):
            return path
    if target.is_file():
        return None if file_sha256(target) in (digest, *own_files.get(name, ())) else target
    if digest is not None or not target.is_dir():
        return target if target.exists() else None
    written = [entry for entry in own_files if entry.startswith(f"{name}/") and not entry.endswith("/")]
    edited = (lost for entry in written if (lost := _in_the_way(output, entry, own_files)))
    others = (path for path in sorted(target.rglob("*")) if not path.is_dir() or path.is_symlink())
    return next(edited if written else others, None)


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _refuse(path: Path, output: Path, further: int = 0) -> None:
    further_words = f" (and {further} more)" if further else ""
    if path.is_symlink():
        raise InputError(f"{path}: a link{further_words}; what it points to is not overwritten.", "name a new folder.")
    listed = _below(path, output) in {name for files in _listed(output).values() for name in files}
    explanation = (
        "another command wrote it, or it was edited since it was written" if listed else "it is not of this command"
    )
    raise InputError(
        f"{path}: {explanation}{further_words}, and it would be overwritten.",
        "name a new folder with --output, or move the file"
        + (f"; pass an edited sheet with --{path.stem}." if path.name in ("models.tsv", "benchmarks.tsv") else "."),
    )


# ----------------------------------------------------------------------------------------------------------------------
# Writing beside, and moving into place.


@contextlib.contextmanager
def _draft(output: Path) -> Iterator[Path]:
    """A folder on the output's own disk, in it or else beside it, which is removed at the end."""
    base = output if output.is_dir() else output.parent
    try:
        folder = Path(tempfile.mkdtemp(prefix=".lm-validity-draft.", dir=base))
    except OSError as error:
        raise InputError(
            f"{output}: no file can be written there ({error.strerror}).", "choose another place."
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, output: Path, command: str, entries_to_keep: Collection[str]) -> None:
    """Put the files of a draft into the output. Nothing is written where one of them meets somebody's own."""
    own_files, paths = _listed(output).get(command, {}), sorted(folder.rglob("*"))
    new = {_below(path, folder): file_sha256(path) for path in paths if path.is_file()}
    new = {name: digest for name, digest in new.items() if name not in entries_to_keep}
    # a page without figures has the folder that rules declare
    empty = [f"{_below(path, folder)}/" for path in paths if path.is_dir() and not any(path.iterdir())]
    foreign = [barrier for name in new if (barrier := _in_the_way(output, name, own_files, new[name]))]
    foreign += [output / name for name in empty if (output / name).exists() and not (output / name).is_dir()]
    if foreign:
        _refuse(foreign[0], output, len({*foreign}) - 1)
    obsolete = sorted({*own_files} - {*new, *entries_to_keep})
    stale = [name for name in obsolete if (output / name).is_file() and not _in_the_way(output, name, own_files)]
    still = {name: digests for name, digests in own_files.items() if name in entries_to_keep}
    with made_folder(output):
        if new:
            both = {name: [digest, *own_files.get(name, ())] for name, digest in new.items()}
            _write_list(output, command, both | still | {name: own_files[name] for name in stale})
        for name in new:
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, output / name)
        for name in empty:
            (output / name).mkdir(parents=True, exist_ok=True)
        _remove(output, stale)
        written = {name: [digest] for name, digest in new.items()}
        _write_list(output, command, written | still | {name: [] for name in empty})


def _remove(output: Path, names: Iterable[str]) -> None:
    """Remove files, and the folders that are empty then."""
    for name in names:
        (output / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something is in it
            for folder in [*Path(name).parents][:-1]:
                (output / folder).rmdir()


def _write_list(output: Path, command: str, files: Mapping[str, Iterable[str]]) -> None:
    """Say what the command wrote into the folder; a list of nothing goes."""
    commands: dict[str, object] = dict(_listed(output))
    commands[command] = {name: list(dict.fromkeys(digests)) for name, digests in sorted(files.items())}
    commands = {name: listed for name, listed in sorted(commands.items()) if listed}
    if not commands:
        (output / LIST).unlink(missing_ok=True)
        return
    about = "What lm-validity wrote into this folder. It replaces and removes these files only, and none that changed."
    write_text(output / LIST, json.dumps({"format": FORMAT, "about": about, "commands": commands}, indent=1) + "\n")
