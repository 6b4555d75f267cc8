"""Folders that commands write: a command replaces what it wrote itself there, and nothing else.

What commands wrote into a folder stands in a file of it, `lm-validity.json`: by command, each file with its SHA-256. A
file that is not listed there, or was edited since, is somebody's own: it is neither moved, removed nor written over.
Where such a file has the name of one that a command would write, the command ends before it writes anything.

Versions up to 0.3 wrote no list. Their files are known by what they say themselves: a report by its page.json, which
names its tables and figures; a site by the reports in it; an import by its import.json. All else is somebody's own.
"""

import contextlib
import fcntl
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
_DRAFT = ".lm-validity-draft."  # a folder in which a command writes until all is there
_LOCK = "lock"  # in it; held while the command lives

# A path below the folder -> the digests that the file may have to count as the command's own. Two: a command was ended
# while it moved its files.
_Own = Mapping[str, tuple[str, ...]]


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
    output: str | Path,
    command: str,
    *,
    inputs: Iterable[str | Path | None] = (),
    names: Iterable[str] = (),
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
    own_files = _own(output, command)
    for name in sorted(names):
        if (foreign := _foreign(output, name, own_files)) is not None:
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


def _own(output: Path, command: str) -> _Own:
    """What the command wrote into the folder before."""
    files = _listed(output).get(command, {})
    return {name: tuple(digests) for name, digests in files.items()}


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


def _is_own(path: Path, digests: tuple[str, ...]) -> bool:
    """Whether the file is there as the command wrote it."""
    return not path.is_symlink() and path.is_file() and file_sha256(path) in digests


def _foreign(output: Path, name: str, own_files: _Own) -> Path | None:
    """What is under a name in the folder and is not the command's own. A folder that holds files of the command may
    hold others too, which stay."""
    path = output / name
    if path.is_symlink():
        return path
    if path.is_dir():
        held = [entry for entry in own_files if entry.startswith(f"{name}/")]
        if held:
            return next((output / entry for entry in held if _was_edited(output / entry, own_files[entry])), None)
        return next((entry for entry in sorted(path.rglob("*")) if not entry.is_dir() or entry.is_symlink()), None)
    return path if path.exists() and not (name in own_files and _is_own(path, own_files[name])) else None


def _was_edited(path: Path, digests: tuple[str, ...]) -> bool:
    """Whether there is something else under the name of a file that was written; folders that were empty are fine."""
    return digests != () and (path.is_symlink() or path.exists()) and not _is_own(path, digests)


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
        "name a new folder with --output, or move the file; pass an edited sheet with --models or --benchmarks.",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Writing beside, and moving into place.


@contextlib.contextmanager
def _draft(output: Path) -> Iterator[Path]:
    """A folder on the output's own disk, in it or else beside it, which is removed at the end. So are those of calls
    that were killed."""
    base = output if output.is_dir() else output.parent
    for parent in {output, output.parent}:
        _remove_dead(parent, output)
    try:
        made = Path(tempfile.mkdtemp(prefix=".lm-validity-new.", dir=base))
    except OSError as error:
        raise InputError(
            f"{output}: no file can be written there ({error.strerror}).", "choose another place."
        ) from error
    folder = made
    with open(made / _LOCK, "w", encoding="utf-8") as lock:
        try:
            with contextlib.suppress(OSError):  # not on every disk
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = made.rename(base / f"{_DRAFT}{output.name[:50]}{made.suffix}")  # whose lock is held, never before
            (folder / "files").mkdir()
            yield folder / "files"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_dead(folder: Path, output: Path) -> None:
    """Remove what killed calls for this output left in a folder: drafts whose lock nobody holds."""
    if not folder.is_dir():
        return
    for draft in folder.glob(f"{_DRAFT}{_escaped(output.name[:50])}.*/{_LOCK}"):
        with contextlib.suppress(OSError), open(draft, encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(draft.parent, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _move(folder: Path, output: Path, command: str, entries_to_keep: Collection[str]) -> None:
    """Put the files of a draft into the output. Nothing is written where one of them meets somebody's own."""
    own_files, listed = _own(output, command), _listed(output)
    files = sorted(_below(path, folder) for path in folder.rglob("*") if path.is_file())
    # a page without figures has the folder that rules declare
    empty = [f"{_below(path, folder)}/" for path in folder.rglob("*") if path.is_dir() and not any(path.iterdir())]
    new = {name: file_sha256(folder / name) for name in files if name not in entries_to_keep}
    foreign = list(dict.fromkeys(path for name in new if (path := _in_the_way(output, name, own_files, new[name]))))
    foreign += [output / name for name in empty if (output / name).exists() and not (output / name).is_dir()]
    if foreign:
        _refuse(foreign[0], output, len(foreign) - 1)
    obsolete = {*own_files} - {*new, *entries_to_keep}
    stale = [name for name in sorted(obsolete) if _is_own(output / name, own_files[name])]
    still = {name: listed[command][name] for name in entries_to_keep if name in listed.get(command, {})}
    with made_folder(output):
        if new:
            replaced = {name: [digest, *own_files.get(name, ())] for name, digest in new.items()}
            gone = {name: list(own_files[name]) for name in stale}
            _write_list(output, command, {**gone, **replaced, **still})
        for name in new:
            target = output / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, target)
        for name in empty:
            (output / name).mkdir(parents=True, exist_ok=True)
        _remove(output, stale)
        _write_list(
            output, command, {name: [digest] for name, digest in new.items()} | still | dict.fromkeys(empty, ())
        )


def _in_the_way(output: Path, name: str, own_files: _Own, digest: str) -> Path | None:
    """What would be lost if a file were written: somebody's own file there, a link on the way, a file for a folder."""
    target = output / name
    above = [output / part for part in reversed(Path(name).parents) if part != Path()]
    for folder in above:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            return folder
    if target.is_symlink() or target.is_dir():
        return target
    if not target.exists() or (name in own_files and _is_own(target, own_files[name])):
        return None
    return None if target.is_file() and file_sha256(target) == digest else target


def _remove(output: Path, names: Iterable[str]) -> None:
    """Remove files, and the folders that are empty then."""
    for name in names:
        (output / name).unlink(missing_ok=True)
        for folder in Path(name).parents:
            if folder == Path():
                break
            try:
                (output / folder).rmdir()
            except OSError:  # something is in it
                break


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
