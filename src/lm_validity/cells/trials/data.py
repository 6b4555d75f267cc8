"""The bias study's texts: their source, subsamples and batches of tokens."""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import datasets
import huggingface_hub
import huggingface_hub.constants
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from lm_validity.cells.models.prefetch import HUB_ERRORS, refusal
from lm_validity.config.load import Run
from lm_validity.config.sheets import Task as TaskRow
from lm_validity.errors import CellError, InputError, did_you_mean, first_line
from lm_validity.files import check_encodable, replace_file
from lm_validity.run.rules.pretrain_on_test import TaskData

# ----------------------------------------------------------------------------------------------------------------------
# Columns of a text classification data set: a local file, parquet files of a hub repository, or what the `datasets`
# library makes of a hub id. No remote code.

Columns: TypeAlias = dict[str, list[object]]  # values by name, one a row

log = logging.getLogger(__name__)

LOCAL_FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


class SourceColumns(NamedTuple):
    """The text and label columns of a task's source, and the commit they are of; a local file has none."""

    columns: Columns
    revision: str | None


def source_columns(source: TaskRow) -> SourceColumns:
    """The text and label columns of a task's source, and the commit they are of (null: a local file).

    Raises InputError where it cannot be read, naming the line, or where a column is missing.
    """
    path = Path(source.path).expanduser()
    if path.suffix in LOCAL_FORMATS or path.is_file():
        columns, revision = _local_columns(source, path), None
    else:
        columns, revision = _hub_columns(source)
    if not columns:
        raise InputError(
            f"task {source.task!r}: no rows in {source.path}.", "copy the file again, or leave the task out."
        )
    for name in (*source.text, source.label):
        if name not in columns:
            hint = did_you_mean(name, columns, f"it has {', '.join(columns)}.")
            raise InputError(f"task {source.task!r}: no column {name!r} in {source.path}.", hint)
    return SourceColumns(columns, revision)


def _local_columns(source: TaskRow, path: Path) -> Columns:
    where = f"task {source.task!r}: {path}"
    if not path.is_file():
        raise InputError(f"{where}: no such file.", "correct `path` in the tasks sheet.")
    try:
        if path.suffix in (".jsonl", ".json"):
            return _json_lines(source, path)
        if path.suffix == ".parquet":
            result: Columns = pq.read_table(path).to_pydict()
            return result
        if path.suffix in (".csv", ".tsv"):  # all columns as text, so that a text `NA` stays one
            parse = pyarrow.csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",", newlines_in_values=True)
            texts = {name: pa.string() for name in pyarrow.csv.open_csv(path, parse_options=parse).schema.names}
            convert = pyarrow.csv.ConvertOptions(column_types=texts, strings_can_be_null=False)
            result = pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert).to_pydict()
            return result
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read ({error}).", "check the file.") from error
    raise InputError(f"{where}: unknown format.", f"use one of {', '.join(LOCAL_FORMATS)}.")


def _json_lines(source: TaskRow, path: Path) -> Columns:
    keys, rows = {*source.text, source.label}, list[dict[str, object]]()
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
                lacking = sorted(keys & rows[0].keys() - rows[-1].keys())
            except (ValueError, AttributeError) as error:
                problem = f"{path}: line {number} is not a JSON object ({error})."
                raise InputError(problem, "one object per line.") from None
            if lacking:
                raise InputError(f"{path}: line {number} has no {lacking[0]!r}.", "every line needs it.")
    return {name: [row.get(name) for row in rows] for name in rows[0]} if rows else {}


def _hub_columns(source: TaskRow) -> SourceColumns:
    where = f"task {source.task!r} ({source.path})"
    try:
        if source.files:
            options = {"repo_type": "dataset", "revision": source.revision, "allow_patterns": [*source.files]}
            folder = Path(huggingface_hub.snapshot_download(source.path, **options))
            files = sorted({file for pattern in source.files for file in folder.glob(pattern)})
            if not files:
                raise InputError(
                    f"{where}: no file matches {', '.join(source.files)}.", "correct `files` in the tasks sheet."
                )
            tables = [pq.read_table(file) for file in files]
            names = _read_of(source, tables[0].column_names)
            return SourceColumns(pa.concat_tables([table.select(names) for table in tables]).to_pydict(), folder.name)
        known = _commit_on_hub(source)
        datasets.disable_progress_bars()
        dataset = datasets.load_dataset(
            source.path, source.configuration, split=source.split, revision=known or source.revision
        )
        # the library names the folder of its files by their commit: without the hub it takes what its cache has,
        # whatever revision it is asked for
        commits = (re.search(r"/([0-9a-f]{40})/", cache_file["filename"]) for cache_file in dataset.cache_files)
        commit = next((name[1] for name in commits if name), known or "")
        if known is None and source.revision and len(source.revision) == 40 and commit != source.revision:
            raise ValueError(f"the local cache holds commit {commit or 'unknown'}")
        return SourceColumns({name: list(dataset[name]) for name in _read_of(source, dataset.column_names)}, commit)
    except HUB_ERRORS as error:
        problem, hint = refusal(error, f"datasets/{source.path}", "`path` in the tasks sheet") or (
            f"cannot be fetched ({first_line(error)})",
            "check configuration, split and files; without network it must be in the local cache already",
        )
        raise InputError(f"{where}: {problem}.", f"{hint}.") from error


def _commit_on_hub(source: TaskRow) -> str | None:
    """The commit of a data set's revision; None where the hub is out of reach."""
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return None
    try:
        commit: str | None = huggingface_hub.HfApi().dataset_info(source.path, revision=source.revision).sha
    except (HfHubHTTPError, HFValidationError):
        raise
    except HUB_ERRORS as error:
        log.warning("%s: the hub is out of reach (%s); the local cache is looked into", source.path, first_line(error))
        return None
    return commit


def _read_of(source: TaskRow, columns: list[str]) -> list[str]:
    """The columns that the task needs; all where there is none of them, for the error that names them."""
    return [name for name in columns if name in (*source.text, source.label)] or columns


# ----------------------------------------------------------------------------------------------------------------------
# Texts and labels of the bias study's tasks: read once on the login node, checked against the sheet, written as one
# parquet file that jobs read without network; and the random draws of train, extra and test rows.
#
# Prepared files have the columns `row` (place in the source, from 0), `text` and `label` (class number).

SPLIT_SEED = 42  # as in the authors' code: subsample i is drawn with random state 42 + i
SHARE_TOLERANCE = 0.001  # between the sheet's share of the largest class and the one found
TRAINED = pa.schema([("row", pa.int64()), ("text", pa.string()), ("label", pa.int64())])


@dataclass(frozen=True)
class LoadedTask:
    """A task in memory. texts and labels (class numbers) have one entry an observation; rows: their places in the
    source, from 0."""

    name: str
    sha256: str
    class_names: tuple[str, ...]
    description: str
    texts: tuple[str, ...]
    labels: np.ndarray
    rows: np.ndarray

    def where(self, observation: int) -> str:
        """How an error names an observation."""
        return f"task {self.name!r}, row {self.rows[observation] + 1}"

    def class_name(self, observation: int) -> str:
        """The name of the class to which an observation belongs."""
        result: str = self.class_names[self.labels[observation]]
        return result


class Draw(NamedTuple):
    """Observations of one subsample: disjoint; train ordered by class, extra and test at random."""

    train: np.ndarray
    extra: np.ndarray
    test: np.ndarray


# ---- login node ---------------------------------------------------------------------------------------------------


def prefetch_trial_task(run: Run, task: str) -> dict[str, object]:
    """Read a task's texts and labels, check them against the sheet and the experiments' sizes; the record of it."""
    experiments = run.bias.experiments.values()
    experiments_of_task = [experiment for experiment in experiments if task in (experiment.tasks or run.tasks)]
    sizes = sorted({(m, n) for experiment in experiments_of_task for m in experiment.m for n in experiment.n})
    unique = run.bias.drop_duplicate_texts
    output = run.results / "prefetch" / "tasks" / f"{task}.parquet"
    return prefetch_task(run.tasks[task], output, sizes, unique=unique)


def prefetch_task(
    source: TaskRow, output: Path, sizes: Iterable[tuple[int, int]] = (), *, unique: bool = True
) -> dict[str, object]:
    """Read a task's source, check it against the sheet, write `output` (parquet); the record that jobs read.

    sizes: the (m, n) of the study, which the task must be large enough for; unique: without its duplicate texts. The
    file has all rows all the same.
    Keys: task, path, sha256 (of texts and labels), revision, rows, classes {name: rows}, majority_share,
    duplicate_rows (those whose text occurs more than once, case and blanks aside), unique_texts, class_names,
    description. Raises InputError naming task and row for empty texts, unknown labels, classes without rows, and
    counts that are not the sheet's.
    """
    columns, revision = source_columns(source)
    table = _checked(source, columns)
    texts, labels = table["text"].to_pylist(), table["label"].to_pylist()
    counts = Counter(labels)
    share = max(counts.values()) / len(labels)
    _check_against_sheet(source, counts, share)
    first = first_rows(texts)
    drawn = Counter(labels[row] for row in first) if unique else counts
    for m, n in sizes:
        _check_size(source.task, [drawn[index] for index in range(len(source.class_names))], m, n, InputError)
    with replace_file(output) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return {
        "task": source.task,
        "path": str(output),
        "sha256": content_digest(texts, labels),
        "revision": revision,
        "rows": len(texts),
        "classes": {name: counts[number] for number, name in enumerate(source.class_names)},
        "majority_share": share,
        "duplicate_rows": sum(count for count in Counter(map(normalized, texts)).values() if count > 1),
        "unique_texts": len(first),
        "class_names": list(source.class_names),
        "description": source.description,
    }


def normalized(text: str) -> str:
    """A text by which equal ones are found: case aside, blanks and line breaks as one blank."""
    return " ".join(text.casefold().split())


def first_rows(texts: Sequence[str]) -> np.ndarray:
    """Places of the first row of each normalized text, ascending."""
    return np.flatnonzero(~pd.Series(list(map(normalized, texts)), dtype=object).duplicated())


def content_digest(texts: Sequence[str], labels: Sequence[int]) -> str:
    """sha256 over texts and labels in their order, whatever file holds them."""
    digest = hashlib.sha256()
    for text, label in zip(texts, labels, strict=True):
        data = text.encode()
        digest.update(b"%d %d\n" % (label, len(data)))
        digest.update(data)
    return digest.hexdigest()


def _checked(source: TaskRow, columns: Columns) -> pa.Table:
    """Rows, texts and class numbers that the task keeps: the columns of TRAINED."""
    numbers = {label: number for number, label in enumerate(source.labels)} or {
        str(number): number for number in range(len(source.class_names))
    }
    rows, texts, labels = [], [], []
    parts = [columns[name] for name in source.text]
    for row, (label, *pieces) in enumerate(zip(columns[source.label], *parts, strict=True)):
        where = f"task {source.task!r}, row {row + 1}"
        empty = any(piece is None for piece in pieces) or not "".join(map(str, pieces)).strip()
        if empty and source.drop_empty:
            continue
        if empty:
            raise InputError(
                f"{where}: no text in {', '.join(source.text)}.", "correct the row, or set drop_empty for this task."
            )
        text = "\n".join(map(str, pieces))
        check_encodable(text, f"{where} of {source.path}")
        if source.shorter_than is not None and len(text) >= source.shorter_than:
            continue
        class_number = numbers.get(_label_text(label))
        if class_number is None:
            listed = f"the labels are {', '.join(numbers)}; the column's values go into the tasks sheet's `labels`."
            hint = did_you_mean(_label_text(label), numbers, listed)
            raise InputError(f"{where}: unknown label {label!r} in {source.label}.", hint)
        rows.append(row)
        texts.append(text)
        labels.append(class_number)
    if not texts:
        raise InputError(f"task {source.task!r}: no rows ({source.path}).", "check path, split and filters.")
    return pa.table([rows, texts, labels], schema=TRAINED)


def _label_text(label: object) -> str:
    """A label as the sheet writes it: numbers as integers, booleans as 0 and 1."""
    if isinstance(label, bool) or (isinstance(label, float) and label.is_integer()):
        label = int(label)
    return str(label).strip()


def _check_against_sheet(source: TaskRow, counts: Counter[int], share: float) -> None:
    where = f"task {source.task!r}"
    for number, name in enumerate(source.class_names):
        if not counts[number]:
            raise InputError(f"{where}: class {number} ({name!r}) has no rows.", "check class_names and labels.")
    total = sum(counts.values())
    if source.rows is not None and total != source.rows:
        hint = "the data set changed, or the filters differ: pin its revision, or correct the sheet."
        raise InputError(f"{where}: {total} rows, {source.rows} in the tasks sheet.", hint)
    if source.majority_share is not None and abs(share - source.majority_share) > SHARE_TOLERANCE:
        problem = f"{where}: the largest class has {share:.4f} of the rows, {source.majority_share:.4f} in the sheet."
        raise InputError(problem, "the data changed, or the labels are mapped otherwise: check revision and labels.")


# ---- jobs ---------------------------------------------------------------------------------------------------------


def read_task(data: TaskData) -> LoadedTask:
    """Read a prepared file. Raises CellError where it is not the one that was recorded."""
    try:
        table = pq.read_table(data.path, schema=TRAINED)
    except (OSError, pa.ArrowInvalid) as error:
        raise CellError(
            f"task {data.name!r}: {data.path} cannot be read ({error}).", "prefetch the tasks again."
        ) from error
    texts, labels = table["text"].to_pylist(), table["label"].to_numpy()
    if content_digest(texts, labels.tolist()) != data.sha256:
        hint = "prefetch the tasks again, then run the workflow: its cells are new ones."
        raise CellError(f"task {data.name!r}: the texts in {data.path} are not those that were recorded.", hint)
    return LoadedTask(
        data.name, data.sha256, data.class_names, data.description, tuple(texts), labels, table["row"].to_numpy()
    )


def without_duplicates(task: LoadedTask) -> LoadedTask:
    """The task with the first row of each text only, whatever the labels of the others."""
    rows_kept = first_rows(task.texts)
    texts = tuple(task.texts[row] for row in rows_kept)
    return replace(task, texts=texts, labels=task.labels[rows_kept], rows=task.rows[rows_kept])


def draw_trial(task: LoadedTask, m: int, n: int, subsample: int) -> Draw:
    """Rows of one subsample: floor(m / C) of each class to train on, then n extra and n test rows of the rest.

    The authors' draws: pandas' `sample` a class and scikit-learn's `train_test_split`, each with random state
    42 + subsample. So train depends on m and the subsample only, the same for every n and language model.
    Raises CellError where the task is too small.
    """
    from sklearn.model_selection import train_test_split

    counts = np.bincount(task.labels, minlength=len(task.class_names))
    _check_size(task.name, counts.tolist(), m, n, CellError)
    seed = SPLIT_SEED + subsample
    labels = pd.Series(task.labels)
    drawn = [rows.sample(m // len(counts), random_state=seed).index for _, rows in labels.groupby(labels)]
    train = np.concatenate(drawn)
    remaining = np.delete(np.arange(len(labels)), train)
    extra, test = train_test_split(remaining, train_size=n, test_size=n, random_state=seed)
    return Draw(train, extra, test)


def draw_hash(task: LoadedTask, rows: np.ndarray) -> str:
    """sha256 of a set of test rows, their order aside, and of the data that they are rows of. rows: observations."""
    listed = ",".join(map(str, sorted(task.rows[rows].tolist())))
    return hashlib.sha256(f"{task.sha256}:{listed}".encode()).hexdigest()


def _check_size(name: str, counts: list[int], m: int, n: int, error: type[InputError] | type[CellError]) -> None:
    """counts: rows of each class."""
    examples_of_class = m // len(counts)
    if examples_of_class < 1:
        hint = "use a larger m, or leave the task out."
        raise error(f"task {name!r}: m = {m} is less than one training text for each of {len(counts)} classes.", hint)
    for number, count in enumerate(counts):
        if count < examples_of_class:
            problem = f"task {name!r}: class {number} has {count} rows, m = {m} needs {examples_of_class} of each."
            raise error(problem, "use a smaller m, or leave the task out.")
    total, needed_rows = sum(counts), examples_of_class * len(counts) + 2 * n
    if total < needed_rows:
        hint = "use a smaller n, or leave the task out."
        raise error(f"task {name!r}: {total} rows, m = {m} and n = {n} need {needed_rows}.", hint)
