"""Folders that commands write: a command replaces what it wrote itself there, and nothing else.

What commands wrote into a folder stands in a file of it, `lm-validity.json`: by command, each file with its SHA-256. A
file that is not listed there, or was edited since, is somebody's own: it is neither moved, removed nor written over.
Where such a file has the name of one that a command would write, the command ends before it writes anything.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lm_validity.errors import InputError, Problem
from lm_validity.files import file_sha256, is_whole, made_folder, read_json_or, write_text

if TYPE_CHECKING:
    from lm_validity.pages.page import PageDocument

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
