"""Scores from many files in one table: the types that formats share, and what counts where files differ."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.formats.found_files import date_text
from lm_validity.tables.formats.import_log import ImportLog
from lm_validity.tables.schema import SCORES
from lm_validity.tables.standard_errors import SHARES_OF_ITEMS
from lm_validity.words import count

KEY = (
    "model",
    "checkpoint",
    "benchmark",
    "protocol",
    "prompt",
    "prompt_variant",
    "num_fewshot",
    "seed",
    "split",
    "metric",
)
_TYPES = {
    **dict.fromkeys(("iteration", "seed", "num_fewshot", "n_items"), "Int64"),
    **dict.fromkeys(("value", "stderr", "tokens_b"), "float64"),
    **dict.fromkeys(("higher_is_better", "selected"), "boolean"),
}
# What holds of a score where its file does not say otherwise
DEFAULTS = {"checkpoint": "final", "protocol": "direct", "prompt": "plain", "split": "test", "selected": True}
# Scores that differ by less are equal: files round differently, and another batch size changes the last digits
_SAME, _SAME_ERRORS = 1e-9, 0.01  # relative, and in standard errors
_SHOWN = 3  # conflicts and ways out that an error names

Across = Literal["benchmarks", "models"]
Unit = Literal["fractions", "percentages", "neither"]
Repeats = Literal["refuse", "first"]


@dataclass(frozen=True)
class CsvOptions:
    """How a table is to be read.

    columns: the file's column by role (ROLES), where the header does not say it. scores: in a wide table, the columns
    of scores; all columns of numbers where empty. across: what these columns are, `benchmarks` or `models`; by default
    whatever the table has no column of. unit: what scores are. repeats: `refuse` two different scores under one key, or
    take the `first`.
    """

    columns: dict[str, str] = field(default_factory=dict)
    scores: tuple[str, ...] = ()
    across: Across | None = None
    unit: Unit = "fractions"
    repeats: Repeats = "refuse"


@dataclass(frozen=True)
class ImportOptions:
    """What a reader says of files that they do not say themselves.

    names: models' names by file or folder. protocols: by folder or file, before `protocol`, that of all files. path: a
    pattern of paths (`path_pattern`). prepared_on: what models were prepared on before the test. split_groups: members
    of a group in place of the group's own score. tokens_per_step: training tokens of an optimizer step.
    errors_from_items: standard errors from scores and numbers of items. format: the only one that is tried. schema: the
    JSON schema of every_eval_ever. csv: how tables are read.
    """

    names: Mapping[Path, str] = field(default_factory=dict)
    protocols: Mapping[Path, str] = field(default_factory=dict)
    protocol: str | None = None
    path: str | None = None
    prepared_on: str | None = None
    split_groups: bool = False
    tokens_per_step: float | None = None
    errors_from_items: bool = False
    format: str | None = None
    strict: bool = False
    schema: dict[str, Any] | None = None
    csv: CsvOptions = field(default_factory=CsvOptions)


class Opened(NamedTuple):
    """A file, read once. `document`: the JSON value of a JSON file, else None, and `head` has the first bytes.
    `named`: the file was named itself. `model`: the name that the reader gives, which counts before the file's."""

    path: Path
    named: bool
    document: Any = None
    head: bytes = b""
    model: str | None = None


@dataclass(frozen=True)
class ScoreFile:
    """The scores of one file: `rows` are columns of SCORES, `common` those that all rows share.

    Both hold only what the file says: `DEFAULTS` are filled in later. `date`: in seconds since 1970. `identity`: what a
    file says of its model beside the name, such as the number of its parameters. `weights` (path, revision, adapter)
    and `settings` (what else changes numbers): a newer date decides only between files in which both are equal; "" is
    unknown. `limited`: not all documents were scored. `commit`: of the model on its hub, "" where unknown. Scores that
    are no finite number are not in `rows` but counted in `missing`. `members`: the group of each task whose scores are
    in the group's. `facts`: columns of the models sheet by model. `items`: gives rows of ITEMS when it is called.
    """

    path: Path
    rows: list[dict[str, Any]]
    common: dict[str, Any] = field(default_factory=dict)
    date: float | None = None
    identity: dict[str, str] = field(default_factory=dict)
    limited: bool = False
    commit: str = ""
    missing: int = 0
    notes: tuple[str, ...] = ()
    weights: str = ""
    settings: str = ""
    stamp: float | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    items: Callable[[], Iterable[dict[str, Any]]] | None = None

    @property
    def rank(self) -> tuple[bool, tuple[float, ...], int, list[int]]:
        """Larger is better: all documents, then the newer date, then the newer time stamp in the file's name. More
        scores and an earlier path give an order, but decide nothing."""
        dates = tuple(float("-inf") if date is None else date for date in (self.date, self.stamp))
        return (not self.limited, dates, len(self.rows), [-ord(letter) for letter in str(self.path)])

    def replaces(self, other: "ScoreFile") -> bool:
        """Whether this file's scores count before the different ones of `other`: a newer run of the same weights with
        the same settings, or one on all documents where the other has a limit."""
        if (self.weights, self.settings) != (other.weights, other.settings):
            return False
        if self.limited != other.limited:
            return other.limited
        for own, theirs in ((self.date, other.date), (self.stamp, other.stamp)):
            if own is not None and theirs is not None and own != theirs:
                return own > theirs
        return False


@dataclass(frozen=True)
class Format:
    """A format of others. `suffixes`: of its files in folders. `recognises` tells its files by their content, `read`
    gives their scores: InputError for a file that is not as it should be, [] for one that belongs to another file."""

    name: str
    suffixes: tuple[str, ...]
    recognises: Callable[[Opened], bool]
    read: Callable[[Opened, ImportOptions], list[ScoreFile]]


def typed_scores(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the columns of SCORES, absent ones null, and the types that nulls leave as they are."""
    return rows.reindex(columns=SCORES.names).astype(_TYPES)


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a file under names that tell a reader where they stand: their model and benchmark."""
    return (
        rows
        if rows.empty
        else rows.set_axis(
            [f"{one!r} on {other!r}" for one, other in zip(rows["model"], rows["benchmark"], strict=True)]
        )
    )


def with_tokens(file: ScoreFile, tokens_per_step: float) -> ScoreFile:
    """The file with training tokens of the checkpoints whose iteration it gives and whose tokens it does not."""

    def filled(row: dict[str, Any]) -> dict[str, Any]:
        if row.get("iteration") is None or row.get("tokens_b") is not None:
            return row
        return row | {"tokens_b": row["iteration"] * tokens_per_step / 1e9}

    return replace(file, rows=[filled(row) for row in file.rows], common=filled(file.common))


def with_item_errors(scores: pd.DataFrame, items: pd.Series) -> tuple[pd.DataFrame, int]:
    """The scores with sqrt(p (1 - p) / (n - 1)) as the standard error of each accuracy p that has none, and how many.

    items: n by row, null where unknown. Only metrics that are shares of items count, and unknown ones.
    """
    names = scores["metric"].fillna("acc").str.partition(",")[0].str.lower()
    value, number = scores["value"].astype(float), items.astype(float)
    known = names.isin((*SHARES_OF_ITEMS, "accuracy")) & scores["stderr"].isna() & value.between(0, 1) & (number > 1)
    error = np.sqrt(value.where(known) * (1 - value) / (number - 1))
    return scores.assign(stderr=scores["stderr"].astype(float).where(~known, error)), int(known.sum())


def score_table(files: Iterable[ScoreFile], log: ImportLog) -> pd.DataFrame:
    """The columns of SCORES, sorted by key, each score once; what is left out goes to `log`.

    Of several files with different scores under one key the newest counts, if all are of the same weights and settings
    (`ScoreFile.replaces`). Raises InputError for all other such scores, for two different models under one name, and
    for no score at all.
    """
    files = sorted(files, key=lambda one: one.rank, reverse=True)
    check_identities(files)
    frame = _frame(files)
    if frame.empty:
        raise InputError("no scores in the given files.", "see docs/how_to/importing.md for the layouts that are read.")
    missing = sum(one.missing for one in files)
    if missing:
        log.notes.append(f"No finite number, so left out: {count(missing, 'score')}.")
    limited = sum(one.limited for one in files)
    if limited:
        log.notes.append(f"With a limit on the number of documents (--limit): {count(limited, 'file')}.")
    log.notes += dict.fromkeys(note for one in files for note in one.notes)
    log.notes += _several_commits(files)
    _settle(frame, files, log)
    frame = frame.drop_duplicates(list(KEY)).drop(columns="file")
    return frame.sort_values(list(KEY), ignore_index=True, kind="stable")


def _frame(files: list[ScoreFile]) -> pd.DataFrame:
    """All rows in order of rank, with the number of their file."""
    columns: dict[str, list[Any]] = {name: [] for name in SCORES.names}
    numbers: list[int] = []
    for number, one in enumerate(files):
        common = DEFAULTS | {name: value for name, value in one.common.items() if value is not None}
        for name, column in columns.items():
            default = common.get(name)
            column.extend(row.get(name, default) for row in one.rows)
        numbers.extend([number] * len(one.rows))
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    return typed_scores(frame).assign(file=numbers)


def _settle(frame: pd.DataFrame, files: list[ScoreFile], log: ImportLog) -> None:
    """A sentence for each pair of files with scores in common; InputError with all pairs that no rule decides."""
    key = list(KEY)
    groups = frame.groupby(key, dropna=False, sort=False)
    again = frame[frame.duplicated(key)]
    first = pd.DataFrame(
        {name: groups[name].transform("first").loc[again.index] for name in ("file", "value", "stderr")}
    )
    errors = np.fmax(again["stderr"], first["stderr"]).fillna(0.0)
    equal = (again["value"] - first["value"]).abs() <= _SAME * again["value"].abs() + _SAME_ERRORS * errors + _SAME
    conflicts: dict[tuple[int, int], list[tuple[int, float]]] = {}  # rows, and the values that the first files give
    pairs: dict[tuple[int, int], Counter[bool]] = {}
    columns = (again.index, again["file"], first["file"], first["value"], equal)
    for row, lost, winner, value, same in zip(*columns, strict=True):
        pairs.setdefault((lost, winner), Counter())[bool(same)] += 1
        if not same and (lost == winner or not files[winner].replaces(files[lost])):
            conflicts.setdefault((winner, lost), []).append((row, value))
    if conflicts:
        raise _conflict(frame, files, conflicts)
    for (lost, winner), times in sorted(pairs.items()):
        path, better = files[lost], files[winner]
        number = count(times.total(), "score")
        if lost == winner:
            log.repeat(f"{path.path}: {number} twice in it, with the same value")
            continue
        why = "newer" if path.limited == better.limited else "of all documents"
        log.repeat(
            f"{path.path} ({date_text(path.date)}): {number} also in {better.path} ({date_text(better.date)}), "
            + (f"which is {why} ({times[False]} differ)" if times[False] else "with the same values but for rounding")
        )


def _conflict(
    frame: pd.DataFrame, files: list[ScoreFile], conflicts: dict[tuple[int, int], list[tuple[int, float]]]
) -> InputError:
    """Every pair of files with different scores of one thing, and what would separate them."""
    told, ways = list[str](), dict[str, None]()
    for (winner, lost), rows in conflicts.items():
        ways.setdefault(_way_apart(files[winner], files[lost]))
        if len(told) < _SHOWN:
            place, value = rows[0]
            row = frame.loc[place]
            told.append(
                f"{files[winner].path} and {files[lost].path}: {count(len(rows), 'score')}, such as {row['metric']} of "
                f"{row['model']} on {row['benchmark']} ({value:.4g} and {row['value']:.4g})"
            )
    more = f"; and {len(conflicts) - len(told)} more pairs of files" if len(conflicts) > len(told) else ""
    number = sum(map(len, conflicts.values()))
    return InputError(
        f"{count(number, 'score')} with different values under one name, and no newer run of the same weights and "
        f"settings decides: {'; '.join(told)}{more}.",
        " Or ".join(list(ways)[:_SHOWN]),
    )


def _way_apart(one: ScoreFile, other: ScoreFile) -> str:
    """What a reader would write to keep two files apart: a pattern for the folder or name in which they differ."""
    if one.path == other.path:
        return "remove one of the two, or name the column that tells them apart."
    ways = []
    models = tuple(each.weights.partition("@")[0] for each in (one, other))
    for first, second in (models, (str(one.path), str(other.path))):
        parts, others = (re.split(r"/+", text.strip("/")) for text in (first, second))
        differ = [place for place, pair in enumerate(zip(parts, others, strict=False)) if len(set(pair)) > 1]
        if len(parts) == len(others) and len(differ) == 1:
            rest = parts[differ[0] + 1 :]
            pattern = "/".join(["{model}", *rest]) if rest else f"{{model}}{one.path.suffix}"
            ways.append(f"--path '{pattern}' if these are models")
            break
    own, theirs = one.path.parts, other.path.parts
    same = next(i for i, pair in enumerate(zip(own, theirs, strict=False)) if len(set(pair)) > 1)
    places = (Path(*own[: same + 1]), Path(*theirs[: same + 1]))
    ways.append(f"direct={places[0]} train_before_test={places[1]} if that is what they hold")
    return "; ".join([*ways, "else leave out what does not count."])


def check_identities(files: list[ScoreFile]) -> None:
    """Raises InputError where files of one model's name say different things of the model."""
    known: dict[tuple[str, str], tuple[str, Path]] = {}
    for one in files:
        for what, value in one.identity.items():
            model = one.common["model"]
            before, path = known.setdefault((model, what), (value, one.path))
            if before != value:
                raise InputError(
                    f"two different models are called {model}: {what} {before} in {path}, {value} in {one.path}.",
                    f"name one of them: --model '{one.path}=another name' (a file or a folder).",
                )


def _several_commits(files: list[ScoreFile]) -> list[str]:
    """Models whose files name several commits at one checkpoint: perhaps two models, perhaps two texts of its page."""
    commits: dict[tuple[str, str], set[str]] = {}
    for one in files:
        if one.commit:
            place = one.common["model"], one.common.get("checkpoint", "final")
            commits.setdefault(place, set()).add(one.commit[:8])
    return [
        f"{model}, {checkpoint}: evaluated at {len(found)} commits ({', '.join(sorted(found))}), taken as one model."
        for (model, checkpoint), found in sorted(commits.items())
        if len(found) > 1
    ]
