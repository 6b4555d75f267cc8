"""Files of scores: how they are found, what formats make of them, and the log of an import."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import LIST, as_written, made_of_results, write_json, write_text
from lm_validity.tables.schema import SCORES, SETTINGS, Claim, Facts, Item, Settings, write_table
from lm_validity.words import count, listing

# ----------------------------------------------------------------------------------------------------------------------
# The files that an importer is given: named themselves, or found in folders.

# 2024-11-26T10-47-32.305387 (lm-eval 0.4), 2022-07-13-11-29-13, 2024-11-26
_DATE = re.compile(r"(?<!\d)(\d{4})-(\d\d)-(\d\d)(?:[T_ -](\d\d)[-:](\d\d)(?:[-:](\d\d)(\.\d+)?)?)?(?!\d)")


ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")


def find_files(paths: Iterable[str | Path], suffixes: tuple[str, ...], log: "ImportLog") -> list[Path]:
    """The named files, and those with one of `suffixes` in the named folders and below, each once, in order of path.

    Hidden files and folders are left out; links to folders are not followed. Of what commands of this program made of
    results, only scores.parquet is taken, and that only where a folder holds nothing else. `log` gets which files were
    named, and what else the folders hold. Raises InputError for the folder of a study.
    """
    files, own_tables = dict[Path, Path](), list[Path]()
    for path in map(Path, paths):
        if path.is_file():
            files[path.resolve()] = path
            log.named.add(path)
        if all((path / name).is_file() for name in ("study.yaml", "Snakefile")):  # full of sheets and configurations
            way = "give its tables, results/RUN/tables, once it has run (its README.md says how), or your result files."
            raise InputError(f"{path}: the folder of a study, not of scores.", way)
        below = list(_below(path))
        made = set[Path]().union(*(made_of_results(listed.parent) for listed in below if listed.name == LIST))
        results = [file for file in below if file.name != LIST and file not in made]
        tables = [file for file in below if file in made and file.name == "scores.parquet"]
        own_tables += tables if results else []
        for file in results or tables:
            ends = {file.suffix, "".join(file.suffixes[-2:])}
            if ends & set(suffixes):
                if files.setdefault(file.resolve(), file) is file and not results:
                    log.named.add(file)
            elif not ends & set(ARCHIVES):
                log.other_files[file.suffix or file.name] += 1
    log.notes += [f"Not read, since lm-validity wrote them: {listing(own_tables, 3)}."] if own_tables else []
    return list(files.values())


def date_in(name: str) -> float | None:
    """The last date in a file's name, in seconds since 1970, its time of day taken as UTC; None where there is none."""
    for *parts, fraction in reversed(_DATE.findall(name)):
        year, month, day, hour, minute, second = (int(part or 0) for part in parts)
        try:
            moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError:  # 2024-13-45 is no date
            continue
        return moment.timestamp() + float(fraction or 0)
    return None


def date_text(date: float | None) -> str:
    """A date as a reader knows it."""
    return "no date" if date is None else f"{datetime.fromtimestamp(date, UTC):%Y-%m-%d %H:%M:%S}"


def _below(folder: Path) -> Iterable[Path]:
    """The files below a folder; a file has none."""
    for folder_path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder_path) / name
            if not name.startswith(".") and path.is_file():
                yield path


# ----------------------------------------------------------------------------------------------------------------------
# What an import read, what it left out and why: collected on the way, printed at the end, kept beside the tables.

_MOST_LINES = 12  # that are printed of an import; all is in import.json


@dataclass
class ImportLog:
    """What became of the files of an import. With `strict` what would be left out raises InputError instead."""

    strict: bool = False
    files: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)  # file and reason
    repeated: list[str] = field(default_factory=list)  # scores that a newer or larger file has too
    notes: list[str] = field(default_factory=list)
    other_files: Counter[str] = field(default_factory=Counter)  # files of other kinds in the folders, by suffix
    items: int = 0
    formats: Counter[str] = field(default_factory=Counter)  # files that were read, by format
    named: set[Path] = field(default_factory=set)  # files that were named themselves
    members: dict[str, str] = field(default_factory=dict)  # the groups of tasks
    noted: dict[str, list[Path]] = field(default_factory=dict)  # what holds of files
    facts: dict[str, Facts] = field(default_factory=dict)  # what files say for the models sheet, by model
    line: str = ""  # what tables gave, in one line
    reading: str = ""  # of tables, as text for --reading
    hint: str = ""  # of the first file that was left out
    split: set[str] = field(default_factory=set)  # groups in whose place their tasks count
    renamed: dict[str, str] = field(default_factory=dict)  # models that have another one's name
    origins: dict[str, str] = field(default_factory=dict)  # by the path of what was unpacked, its archive's
    settings: pd.DataFrame | None = None  # columns of SETTINGS, where files say how scores were made

    def as_given(self, text: str) -> str:
        """A text in which what was unpacked is called by the path of its archive."""
        for unpacked, archive in self.origins.items():
            text = text.replace(unpacked, archive)
        return text

    @property
    def groups(self) -> dict[str, str]:
        """Of benchmarks that are groups, one of their tasks."""
        return {group: task for task, group in sorted(self.members.items(), reverse=True)}

    def skip(self, path: Path, reason: str, hint: str) -> None:
        """Leave a file out; one that was named itself, or any with `strict`, raises InputError."""
        if path in self.named or self.strict:
            raise InputError(reason, hint)
        self.hint = self.hint or hint
        self.skipped.append((str(path), re.sub(rf"^{re.escape(str(path))}(: |, )", "", reason)))

    @contextmanager
    def skipping(self, path: Path) -> Iterator[None]:
        """Leave a file out where what runs inside raises InputError."""
        try:
            yield
        except InputError as error:
            self.skip(path, error.problem, error.hint)

    def note(self, text: str, path: Path) -> None:
        """Say something of a file, once of all of which it holds."""
        if path not in (paths := self.noted.setdefault(text, [])):
            paths.append(path)

    def repeat(self, sentence: str) -> None:
        """Leave scores out that another file has too; with `strict` that raises InputError."""
        if self.strict:
            raise InputError(sentence, "remove one of the files, or leave out --strict.")
        self.repeated.append(sentence)

    def lines(self, scores: pd.DataFrame) -> list[str]:
        """The summary of an import as lines for a terminal: at most 12."""
        models, points = scores["model"].nunique(), len(scores.drop_duplicates(["model", "checkpoint"]))
        checkpoints = "" if points == models else f"{points} checkpoints of them, "
        kinds = f" ({', '.join(f'{number} of {name}' for name, number in sorted(self.formats.items()))})"
        kinds = kinds if set(self.formats) != {"lm-eval"} else ""
        lines = [
            f"{count(len(scores), 'score')} from {count(self.files, 'file')}{kinds}: "
            f"{count(models, 'model')}, {checkpoints}{count(scores['benchmark'].nunique(), 'benchmark')}"
            f"{f', {self.items} items' if self.items else ''}."
        ]
        lines += [self.line] if self.line else []
        others = [f"{number} {suffix}" for suffix, number in sorted(self.other_files.items())]
        last = [
            *_block("Left out, since another file has the score too", self.repeated),
            *_block("Skipped", [f"{path}: {reason}" for path, reason in self.skipped]),
            *([f"Not read, because of their file extensions: {', '.join(others[:6])}."] if others else []),
        ]
        room = max(_MOST_LINES - len(lines) - len(last), 1)
        notes = self.notes if len(self.notes) <= room else self.notes[: room - 1]
        further = len(self.notes) - len(notes)
        return [*lines, *notes, *([f"And {count(further, 'further line')} in import.json."] if further else []), *last]

    def write(self, scores: pd.DataFrame, output: Path) -> None:
        """Write the scores as scores.parquet and all of this as import.json under `output`, in which what was unpacked
        is called by the paths of the archives."""
        for text, paths in self.noted.items():
            self.notes.append(f"{text}: {count(len(paths), 'file')}, such as {paths[0]}.")
        self.skipped = [(self.as_given(path), self.as_given(reason)) for path, reason in self.skipped]
        self.repeated, self.notes = ([*map(self.as_given, texts)] for texts in (self.repeated, self.notes))
        write_table(scores, SCORES, output / "scores.parquet")
        if self.reading:
            write_text(output / "reading.yaml", self.reading)
        if self.settings is not None:
            write_table(self.settings, SETTINGS, output / "settings.parquet")
        names = ("files", "formats", "items", "facts", "notes", "repeated", "other_files")
        record = {name: getattr(self, name) for name in names} | {
            "scores": len(scores),
            "models": sorted(scores["model"].unique()),
            "benchmarks": sorted(scores["benchmark"].unique()),
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }
        write_json(output / "import.json", record)


def _block(title: str, lines: list[str]) -> list[str]:
    """One line: how many, and the first."""
    if not lines:
        return []
    remainder = "" if len(lines) == 1 else f"; {len(lines) - 1} more in import.json"
    return [f"{title} ({len(lines)}): {lines[0].rstrip('.')}{remainder}."]


# ----------------------------------------------------------------------------------------------------------------------
# What formats share.


@dataclass(frozen=True)
class ImportOptions:
    """What a reader says of files that they do not say themselves.

    names: models' names by file or folder. protocols: by folder or file, before `protocol`, that of all files.
    prepared_on: what models were prepared on before the test. columns: the
    roles of columns of tables, as --columns has them; reading: a file that says them. command: that was typed.
    """

    names: Mapping[Path, str] = field(default_factory=dict)
    protocols: Mapping[Path, str] = field(default_factory=dict)
    protocol: str | None = None
    prepared_on: str | None = None
    strict: bool = False
    reading: Path | None = None
    columns: str | None = None
    command: str = ""


class Opened(NamedTuple):
    """A file, read once. `document`: the JSON value of a JSON file, else None, and `head` has the first bytes.
    `named`: the file was named itself. `model`: the name that the reader gives, which counts before the file's."""

    path: Path
    named: bool
    document: Any = None
    head: bytes = b""
    model: str | None = None

    @property
    def suffix(self) -> str:
        """The end of its name that says its kind, without that of gzip."""
        return Path(self.path.name.removesuffix(".gz")).suffix


@dataclass(frozen=True)
class ScoreFile:
    """The claims of one file, `rows`, and what all of them have in common.

    Both hold only what the file says: `with_defaults` fills in the rest. `date`: in seconds since 1970, of the file,
    else of its name. `identity`: what a file says of its model beside the name, such as the number of its parameters.
    `weights` (path, revision, adapter) and `settings` (what else changes numbers): a newer date decides only between
    files in which both are equal; "" is unknown. `limited`: not all documents were scored. Scores that are no finite
    number are not in `rows` but counted in `missing`. `facts`: columns of the models sheet by model. `items`: gives the
    items when it is called. `made`: the settings of all rows; a row may have its own under `made`. `log`: the id of a
    log that may have several runs of its own; those of other logs are further ones. `by_path`: only the path names the
    model.
    """

    path: Path
    rows: list[Claim]
    common: Claim = field(default_factory=Claim)
    date: float | None = None
    identity: dict[str, str] = field(default_factory=dict)
    limited: bool = False
    missing: int = 0
    notes: tuple[str, ...] = ()
    weights: str = ""
    settings: str = ""
    facts: Mapping[str, Facts] = field(default_factory=dict)
    items: Callable[[], Iterable[Item]] | None = None
    made: Settings = field(default_factory=Settings)
    log: str = ""
    by_path: bool = False

    @property
    def members(self) -> dict[str, str]:
        """The group of each task whose scores are in the group's."""
        return {row["benchmark"]: group for row in self.rows if (group := row.get("group"))}

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Larger is better: all documents, then the newer date. More scores, and of as many an earlier path, give an
        order, but decide nothing."""
        return not self.limited, float("-inf") if self.date is None else self.date, len(self.rows)

    def replaces(self, other_file: "ScoreFile") -> bool:
        """Whether this file's scores count before the different ones of `other_file`: a newer run of the same weights
        with the same settings, or one on all documents where the other has a limit."""
        if (self.weights, self.settings) != (other_file.weights, other_file.settings):
            return False
        if self.limited != other_file.limited:
            return other_file.limited
        return self.date is not None and other_file.date is not None and self.date > other_file.date


# ----------------------------------------------------------------------------------------------------------------------
# What arguments, paths and file names say of a model: its name, and the point of its training that was evaluated.

# Optimizer steps in the name of a revision or folder: step1000, global_step-1000, iter_0001000; "step10k" is left alone
_STEPS = re.compile(
    r"(?<![a-z])(?:global_?)?(?:steps?|iter(?:ation)?s?|checkpoint|ckpt)[-_ ]?(\d{1,15})(?![\da-z])", re.IGNORECASE
)
_TOKENS = re.compile(r"(?<![a-z])tokens[-_]?(\d{1,9}(?:\.\d+)?)B(?![a-z])", re.IGNORECASE)
_LATER_STAGE = re.compile(r"(?<![a-z])stage[-_]?([2-9]|\d\d+)(?!\d)", re.IGNORECASE)
# Arguments from which lm-eval takes the model's name: that of an adapter before that of its base
NAMES = ("peft", "delta", "pretrained", "model", "path", "engine")
# A folder that holds a checkpoint: step_30, checkpoint-500, iter_0001000, global_step1000
_FOLDER = re.compile(
    r"(?:checkpoint|ckpt|(?:global_?)?steps?|iter(?:ation)?s?)[-_]?(\d{1,15})(?:[-_](?:hf|converted|fp16|bf16))?", re.I
)
_CACHE = re.compile(r"models--([^/]+?)--([^/]+)")  # of a hub id, in its cache
_FINISHED = frozenset(("", "main", "master", "none", "null", "final"))


def _point(checkpoint: str = "final", iteration: int | None = None, tokens_b: float | None = None) -> Claim:
    """A point of training, as claims of it have it: `checkpoint` is `final` for the finished model."""
    return {"checkpoint": checkpoint, "iteration": iteration, "tokens_b": tokens_b}


def parse_arguments(arguments: object) -> dict[str, str]:
    """`model_args` as lm-eval records them: a text `a=b,c=d`, or an object. Values are texts; {} for anything else."""
    if isinstance(arguments, str):
        pairs = (part.split("=", 1) for part in arguments.split(",") if "=" in part)
        return {name.strip(): value.strip() for name, value in pairs}
    if isinstance(arguments, dict):
        return {str(name): "" if value is None else str(value) for name, value in arguments.items()}
    return {}


def training_point(arguments: dict[str, str]) -> Claim:
    """The point of training that `revision`, `subfolder` and `step` name; `final` for none of them and for `main`.

    The checkpoint has the revision's own name, so that two revisions of one model stay apart. Its iteration and its
    tokens are what that name says: `step1000`, `iter_1000`, `stage1-step1000-tokens4B`. Steps of a later stage of
    training are counted from that stage's beginning and give no iteration.
    """
    names = [arguments.get(name, "") for name in ("revision", "subfolder")]
    names = [name for name in names if name.lower() not in _FINISHED]
    if step := arguments.get("step", ""):
        names.append(f"step{int(step)}" if step.isascii() and step.isdigit() else step)
    if not names:
        return _point()
    name = "/".join(names)
    later = _LATER_STAGE.search(name)
    steps, tokens = _STEPS.findall(name), _TOKENS.findall(name)
    iteration = int(steps[-1]) if steps and not later else None
    return _point(name, iteration, float(tokens[-1]) if tokens and not later else None)


class ModelPlace(NamedTuple):
    """A model's name as its path gives it, the path without what does not tell models apart, and a checkpoint."""

    name: str
    path: str
    point: Claim


def model_place(raw: str) -> ModelPlace:
    """The model that a name or path in a file means.

    A hub id stays as it is. Of a path, slashes at the end, the folders `snapshots/<hash>` and `model` and a folder of a
    checkpoint (`step_30`, `checkpoint-500`, `iter_0001000`, `global_step1000`) are taken off; the name is its last
    folder, or the hub id of a folder in the hub's cache.
    """
    parts = [part for part in raw.split("/") if part not in ("", ".")]
    point = _point()
    folder = _FOLDER.fullmatch(parts[-1]) if len(parts) > 1 else None
    if folder is not None:
        point = _point(parts.pop(), int(folder[1]))
    if not parts:  # the root of a disk, which has no name: `check_rows` asks for one
        return ModelPlace("", raw, point)
    local = raw.startswith(("/", "./", "../", "~")) or len(parts) > 2 or (folder is not None and len(parts) > 1)
    if not local:
        return ModelPlace("/".join(parts) or raw, "/".join(parts), point)
    if "snapshots" in parts[1:]:
        parts = parts[: parts.index("snapshots", 1)]
    elif parts[-1] == "model" and len(parts) > 1:
        parts.pop()
    path = "/" * raw.startswith("/") + "/".join(parts)
    cached = _CACHE.fullmatch(parts[-1])
    return ModelPlace("/".join(cached.groups()) if cached else parts[-1], path, point)


def folder_identity(path: Path) -> dict[str, str]:
    """The folder of a model that is named by it, unless it tells the model's owner."""
    return {} if "__" in (folder := as_written(path).parent).name else {"folder": str(folder)}


def folder_name(path: Path) -> str:
    """A model's name from its folder, where lm-eval writes `__` for the `/` of a hub id."""
    return as_written(path).parent.name.replace("__", "/", 1)
