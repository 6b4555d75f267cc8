"""Scores from many files in one table: each score once, the newest of several, one model under one name."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.formats.found_files import date_text
from lm_validity.tables.formats.import_log import ImportLog
from lm_validity.tables.schema import SCORES
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
_COMMON = {"checkpoint": "final", "protocol": "direct", "prompt": "plain", "split": "test", "selected": True}


@dataclass(frozen=True)
class ScoreFile:
    """The scores of one file: `rows` are columns of SCORES, `common` those that all rows share.

    `identity`: what a file says of its model beside the name, such as the number of its parameters. `limited`: not all
    documents were scored. `commit`: of the model on its hub, "" where unknown. Scores that are no finite number are
    not in `rows` but counted in `missing`.
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

    @property
    def rank(self) -> tuple[bool, float, int, list[int]]:
        """Larger is better: all documents, then the newer date, then more scores, then the earlier path."""
        newest = float("-inf") if self.date is None else self.date
        return (not self.limited, newest, len(self.rows), [-ord(letter) for letter in str(self.path)])


def typed_scores(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the columns of SCORES, absent ones null, and the types that nulls leave as they are."""
    return rows.reindex(columns=SCORES.names).astype(_TYPES)


def with_tokens(file: ScoreFile, tokens_per_step: float) -> ScoreFile:
    """The file with training tokens of the checkpoints whose iteration it gives and whose tokens it does not."""

    def filled(row: dict[str, Any]) -> dict[str, Any]:
        if row.get("iteration") is None or row.get("tokens_b") is not None:
            return row
        return row | {"tokens_b": row["iteration"] * tokens_per_step / 1e9}

    return replace(file, rows=[filled(row) for row in file.rows], common=filled(file.common))


def score_table(files: Iterable[ScoreFile], source: str, log: ImportLog) -> pd.DataFrame:
    """The columns of SCORES, sorted by key, each score once; what is left out goes to `log`.

    Of several files with one score the one that scored all documents counts, then the newest, then the one with more
    scores, then the first by path. Raises InputError for two different models under one name, and for no score at all.
    """
    files = sorted(files, key=lambda one: one.rank, reverse=True)
    check_identities(files)
    frame = _frame(files, source)
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
    _log_repeated(frame, files, log)
    frame = frame.drop_duplicates(list(KEY)).drop(columns="file")
    return frame.sort_values(list(KEY), ignore_index=True, kind="stable")


def _frame(files: list[ScoreFile], source: str) -> pd.DataFrame:
    """All rows in order of rank, with the number of their file."""
    columns: dict[str, list[Any]] = {name: [] for name in SCORES.names}
    numbers: list[int] = []
    for number, one in enumerate(files):
        common = _COMMON | {"source": source} | one.common
        for name, column in columns.items():
            default = common.get(name)
            column.extend(row.get(name, default) for row in one.rows)
        numbers.extend([number] * len(one.rows))
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    return typed_scores(frame).assign(file=numbers)


def _log_repeated(frame: pd.DataFrame, files: list[ScoreFile], log: ImportLog) -> None:
    """One sentence per pair of files that have scores in common."""
    key = list(KEY)
    places = frame.groupby(key, dropna=False, sort=False)["file"].transform("first")
    again = frame[frame.duplicated(key)]
    kept = places.loc[again.index]
    for (lost, winner), times in sorted(Counter(zip(again["file"], kept, strict=True)).items()):
        path, better = files[lost], files[winner]
        if lost == winner:
            log.repeat(f"{path.path}: {count(times, 'score')} twice in it; the first counts")
        else:
            log.repeat(
                f"{path.path} ({date_text(path.date)}): {count(times, 'score')} also in {better.path} "
                f"({date_text(better.date)})"
            )


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
