"""What the YAML files of lm-eval, and of the user, declare: a text scan, where lm-eval's index takes 15 s."""

import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import lm_eval

from lm_validity.run.scoring import GROUP_LINE, TASK_LINE

PACKAGE = Path(lm_eval.__file__).resolve().parent


def _texts(folder: Path) -> Sequence[tuple[Path, str]]:
    """The files under `folder` that declare tasks or that these include, with their texts.

    In the order in which lm-eval keeps the first of several that declare a name. lm-eval's own are read once a process.
    """
    return _shipped_texts(folder) if folder == PACKAGE / "tasks" else _read_texts(folder)


def _read_texts(folder: Path) -> Sequence[tuple[Path, str]]:
    paths = [path for path in folder.rglob("*") if path.suffix in ("", ".yaml") and path.is_file()]
    paths.sort(key=lambda path: path.as_posix())
    return [(path, path.read_text(encoding="utf-8-sig", errors="replace")) for path in paths]


_shipped_texts = cache(_read_texts)


class Declaration(NamedTuple):
    """The names in a YAML file: of tasks, unless it is a group's, and of groups."""

    path: Path
    tasks: Sequence[str]
    groups: Sequence[str]


def declarations_in(folder: Path) -> Sequence[Declaration]:
    """Of the YAML files among `_texts`, in their order."""
    return _shipped_declarations(folder) if folder == PACKAGE / "tasks" else _read_declarations(folder)


def _read_declarations(folder: Path) -> Sequence[Declaration]:
    found = []
    for path, text in _texts(folder):
        if path.suffix == ".yaml":
            groups = GROUP_LINE.findall(text)
            found.append(Declaration(path, [] if groups else TASK_LINE.findall(text), groups))
    return found


_shipped_declarations = cache(_read_declarations)


def folders_naming(names: Collection[str], folder: Path) -> list[Path]:
    """Top folders under `folder` with a YAML file (or a template that YAML files include) with one of the names in
    it; `folder` itself where such a file lies in it directly."""
    if not names:
        return []
    words = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")
    folders = set()
    for path, text in _texts(folder):
        if any(name in text for name in names) and words.search(text):
            parts = path.relative_to(folder).parts
            folders.add(folder / parts[0] if len(parts) > 1 else folder)
    return [folder] if folder in folders else sorted(folders)
