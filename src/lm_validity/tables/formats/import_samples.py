"""lm-eval's samples: answers to documents, as items."""

import filecmp
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lm_validity.errors import InputError, first_line
from lm_validity.files import Document
from lm_validity.tables.formats.engine import finite, is_sampled
from lm_validity.tables.formats.score_files import (
    Found,
    ImportLog,
    ScoreFile,
    date_in,
    date_text,
    folder_identity,
    folder_name,
    mean_of_items,
    with_progress,
)
from lm_validity.tables.schema import DEFAULTS, ITEMS, LARGEST_SCORE, Claim, Item, as_record
from lm_validity.words import count

# ----------------------------------------------------------------------------------------------------------------------
# One line of lm-eval's samples_*.jsonl: what it says of a document and of the model's answer to it.
#
# Lines differ between versions: log-likelihoods are numbers or texts, requests a list or an object, and the metrics and
# the filter are named since 0.4.5 only.

_NO_METRICS = frozenset(
    ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
     "target_hash")
)  # fmt: skip
_PAIRS = ("mcc", "f1")  # metrics whose value of a document is the pair (gold, predicted)
_WEIGHTED: dict[str, Callable[[float], float]] = {
    "bits_per_byte": lambda mean: -mean / math.log(2),
    "byte_perplexity": lambda mean: math.exp(-mean),
}
_WEIGHTED["word_perplexity"] = _WEIGHTED["byte_perplexity"]


class Sample(NamedTuple):
    """One answer. `item` has columns of ITEMS, `gold` only of a multiple choice (None: unknown).

    `values`: the document's value of each metric, a number.
    """

    doc_id: str
    filter: str | None  # None where the line does not say
    item: Item
    values: dict[str, float]
    answers: int = 1  # that were written to the document


def read_sample(line: Document) -> Sample:
    """Raises KeyError, TypeError or ValueError for what is no sample."""
    if not isinstance(line.get("filter"), str | None):
        raise TypeError(f"its filter is {line['filter']!r}, not a name")
    names = line.get("metrics")
    if not isinstance(names, list):
        names = [name for name in line if name not in _NO_METRICS]
    metrics = {name: _value(name, line.get(name)) for name in names}
    values = {name: value for name, value in metrics.items() if value is not None and abs(value) <= LARGEST_SCORE}
    document = line.get("doc")
    subject = document.get("subject") if isinstance(document, dict) else None
    doc_id = _text(line["doc_id"])
    if doc_id is None:
        raise TypeError("its doc_id is null")
    item: Item = {"doc_id": doc_id, "doc_hash": _text(line.get("doc_hash")), "subject": _text(subject)}
    requests = _requests(line.get("arguments"))
    responses = line.get("resps") or []  # left out where answers are not to be published
    answers = [response[0] for response in responses]
    if not answers and not values:
        raise KeyError("answers (resps) and no metrics")
    if not answers:
        return Sample(doc_id, line.get("filter"), item, values)
    if isinstance(answers[0], list) and len(answers) > 1:
        item |= _choices(line, requests, answers, values)
    elif isinstance(answers[0], list) or (requests and len(requests[0]) == 1):  # a text alone: rolling log-likelihood
        item["choice_loglikelihoods"] = [_loglikelihood(answers[0])]
    else:
        item["response"] = _text(answers[0])
    written = len(responses[0]) if "response" in item else 1
    return Sample(doc_id, line.get("filter"), item, values, written)


def _why(error: Exception) -> str:
    """What an error of `read_sample` says of the line."""
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    if isinstance(error, IndexError | AttributeError):
        return "its answers are not lists as lm-eval writes them"
    return first_line(error)


def _choices(line: Document, requests: list[list[object]], answers: list[object], values: dict[str, float]) -> Item:
    """Log-likelihoods and lengths of the choices, and the right one."""
    loglikelihoods = [_loglikelihood(answer) for answer in answers]
    texts = [str(request[1]) for request in requests] if all(len(request) > 1 for request in requests) else []
    columns: Item = {}
    half = len(answers) // 2
    contexts = [str(request[0]) for request in requests]
    if len(texts) == len(answers) == 2 * half and texts[:half] == texts[half:] and not any(contexts[half:]):
        # acc_mutual_info: the same choices again, without the question
        columns["unconditional_loglikelihoods"] = loglikelihoods[half:]
        loglikelihoods, texts = loglikelihoods[:half], texts[:half]
    columns["choice_loglikelihoods"] = loglikelihoods
    if len(texts) == len(loglikelihoods):
        texts = [text.removeprefix(" ") for text in texts]  # lm-eval's target delimiter, which its lengths leave out
        columns["choice_characters"] = [len(text) for text in texts]
        columns["choice_bytes"] = [len(text.encode(errors="replace")) for text in texts]
    return columns | {"gold": _gold(line.get("target"), texts, loglikelihoods, values.get("acc"))}


def _gold(target: object, texts: list[str], loglikelihoods: list[float], accuracy: float | None) -> int | None:
    """The right choice: the target as its place or its text, and not at odds with whether the answer was right.

    An `acc` that contradicts every reading of the target is no share of right answers (truthfulqa_mc2, say).
    """
    chosen = loglikelihoods.index(max(loglikelihoods))
    named = str(target).strip()
    places = [int(named)] if named.isascii() and named.isdigit() else []
    equal_places = [index for index, text in enumerate(texts) if text.strip() == named]
    places += equal_places if len(equal_places) == 1 else []
    places = [index for index in places if index < len(loglikelihoods)]
    if accuracy == 1.0 and (chosen in places or not places):
        return chosen
    if accuracy == 0.0 and not places and len(loglikelihoods) == 2:
        return 1 - chosen
    wrong = chosen if accuracy == 0.0 else None
    return next((index for index in places if index != wrong), places[0] if places else None)


def _value(name: str, value: object) -> float | None:
    """A document's own value of a metric; None where it has none."""
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, list):
        return finite(value)
    if len(value) != 2:
        return None
    if name in _PAIRS:
        return float(value[0] == value[1])
    if name in _WEIGHTED:
        total, weight = finite(value[0]), finite(value[1])
        try:
            return None if total is None or not weight else _WEIGHTED[name](total / weight)
        except OverflowError:
            return None
    return None


def _text(value: object) -> str | None:
    """A text that a table can hold: half a pair of surrogates becomes a question mark."""
    return None if value is None else str(value).encode(errors="replace").decode()


def _requests(arguments: object) -> list[list[object]]:
    """The arguments of each request; [] where the line has none."""
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if not isinstance(arguments, list):
        return []
    return [list(argument.values()) if isinstance(argument, dict) else list(argument) for argument in arguments]


def _loglikelihood(answer: Any) -> float:
    """From `-1.5`, `"-1.5"`, `[-1.5, false]` or `["-1.5", "False"]`."""
    return float(answer[0] if isinstance(answer, list) else answer)


# ----------------------------------------------------------------------------------------------------------------------
# Files of samples.

_HINT = "lm-eval writes such a file with --log_samples: samples_<task>_<date>.jsonl."
_NAME = re.compile(r"samples_(.+?)(?:_(\d{4}-\d\d-\d\d[T_-]\d\d[-:]\d\d[-:]\d\d(?:\.\d+)?))?\.jsonl$")
_OF_FILE = ITEMS.names[: ITEMS.names.index("doc_id")]  # the columns that name an evaluation
# Metrics whose score is not the mean over documents
_NO_MEAN = frozenset(("perplexity", "ppl", "word_perplexity", "byte_perplexity", "bits_per_byte", "mcc", "f1"))


@dataclass(frozen=True)
class SampleFile(ScoreFile):
    """A samples file of a task, whose `common` are the columns of ITEMS that its rows share, `benchmark` among them the
    task or the group whose score counts. named: the file was named itself. scores: the keys `name,filter` under which
    its result file has scores of the benchmark; empty where there is no result file."""

    task: str = ""
    named: bool = False
    scores: tuple[str, ...] = ()

    @property
    def evaluation(self) -> tuple[object, ...]:
        """What two files of the same answers have in common."""
        return (self.task, *map(self.common.get, _OF_FILE))


def is_samples(path: Path) -> bool:
    """Whether a file has the name that lm-eval gives to samples."""
    return _NAME.match(path.name) is not None


def match_all_samples(
    samples: list[Found], results: list[ScoreFile], names: dict[Path, str], log: ImportLog
) -> list[SampleFile]:
    """Each samples file with what its result file says, one of those of its folder with scores of its task.

    names: models' names by file, where they are given. A file that matches files of several models goes to `log`.
    """
    places: dict[tuple[Path, str], list[ScoreFile]] = {}
    for result in results if samples else ():
        for task in {row["benchmark"] for row in result.rows} | set(result.members):
            places.setdefault((result.path.parent, task), []).append(result)
    matched = []
    for sample in samples:
        task = _NAME.sub(r"\1", sample.path.name)
        try:
            score_files = places.get((sample.path.parent, task), [])
            matched.append(_match(sample, task, score_files, names.get(sample.path)))
        except InputError as error:
            log.skip(sample.path, error.problem, error.hint, named=sample.named)
    return matched


def _match(file: Found, task: str, score_files: list[ScoreFile], given_name: str | None) -> SampleFile:
    """A samples file with what one of `score_files` says: that of its date, else the best one.

    Without one the model is `given_name` or the folder's. Raises InputError where `score_files` are result files of
    several models and none of its date.
    """
    date = date_in(file.path.stem)
    of_date = [result for result in score_files if date is not None and date_in(result.path.stem) == date]
    best = max(of_date or score_files, key=lambda result: result.rank, default=None)
    if best is None:
        common = _completed({"model": given_name or folder_name(file.path), "benchmark": task})
        identity = {} if given_name else folder_identity(file.path)
        return SampleFile(file.path, [], common, date, identity=identity, task=task, named=file.named)
    if not of_date and len({result.common["model"] for result in score_files}) > 1:
        raise InputError(
            f"{file.path}: result files of several models are in its folder, none of its date.",
            f"put each model's files into a folder of its own, or name it: --model '{file.path}=NAME'.",
        )
    benchmark = best.members.get(task, task)
    rows = [row for row in best.rows if row["benchmark"] == benchmark]
    own_fields: Claim = {"num_fewshot": rows[0].get("num_fewshot"), "run": rows[0].get("run")}
    common = _completed(best.common | {"benchmark": benchmark} | own_fields)
    common["model"] = given_name or common["model"]
    scores = tuple(str(row["metric"]) for row in rows)
    date = best.date if date is None else date
    return SampleFile(file.path, [], common, date, limited=best.limited, task=task, named=file.named, scores=scores)


def _completed(common: Claim) -> Claim:
    return as_record(Claim, {name: common.get(name, DEFAULTS.get(name)) for name in _OF_FILE})


def read_all_samples(samples: list[SampleFile], log: ImportLog) -> list[SampleFile]:
    """The newest samples file of each evaluation with its items, and with scores where it has no result file.

    A document's place in the task names it, so all files of a task must mean the same documents by the same numbers.
    Their hashes tell, where lines have them; the same documents in another order are named as in the first file.
    """
    files, reordered, many = list[SampleFile](), list[Path](), list[Path]()
    first: tuple[str, Path, dict[str, str]] = "", Path(), {}  # task, path and hashes of the first file of the task
    for sample in with_progress(_newest(_with_runs(samples), log), "files of samples"):
        path = sample.path
        try:
            part = _read(sample)
        except InputError as error:
            log.skip(path, error.problem, error.hint, named=sample.named)
            log.formats["lm-eval"] -= 1
            continue
        table, hashes = part.table, part.hashes
        if hashes and first[0] != sample.task:
            first = sample.task, path, hashes
        in_both = hashes.keys() & first[2].keys()
        differ = sum(hashes[name] != first[2][name] for name in in_both)
        numbers = {hashed: name for name, hashed in first[2].items()}
        if differ and len(numbers) == len(first[2]) and set(hashes.values()) == set(numbers):
            reordered.append(path)
            names = [numbers[hashed] for hashed in table.column("doc_hash").to_pylist()]
            table = table.set_column(table.column_names.index("doc_id"), "doc_id", pa.array(names))
        elif differ:
            problem = (
                f"{path}: {differ} of {len(in_both)} documents differ from those in {first[1]}: another version of "
            )
            log.skip(path, f"{problem}the task; its items are left out", "import it into another folder.")
            table = table.slice(0, 0)
        many += [path] if part.answers > 1 else []
        log.notes += part.notes
        files.append(replace(sample, rows=part.rows, items=lambda table=table: table))  # type: ignore[misc]
    for paths, text in (
        (many, "Several answers to each document, which lm-eval scored as one: no runs to tell apart"),
        (reordered, "Documents in another order than in the task's first file, told by their hashes"),
    ):
        log.notes += [f"{text}: {count(len(paths), 'file')}, such as {paths[0]}."] if paths else []
    return files


def _with_runs(samples: list[SampleFile]) -> list[SampleFile]:
    """The files with the number of their run, in the order of their dates, where several without a result file hold
    sampled answers of one model to one task. Equal files are one run."""
    groups = defaultdict[tuple[object, ...], list[Path]](list)
    for file in sorted(samples, key=lambda sample: sample.rank[1]):
        if not file.scores:
            groups[file.evaluation].append(file.path)
    runs: dict[Path, int] = {}
    for paths in (paths for paths in groups.values() if len(paths) > 1 and all(map(_is_sampled, paths))):
        firsts: list[Path] = []
        for path in paths:
            equal = (run for run, first in enumerate(firsts) if filecmp.cmp(first, path, shallow=False))
            runs[path] = next(equal, len(firsts))
            firsts += [path] if runs[path] == len(firsts) else []
    return [
        replace(file, common=file.common | Claim(run=runs[file.path])) if file.path in runs else file
        for file in samples
    ]


def _is_sampled(path: Path) -> bool:
    """Whether the first line's request has a temperature. A line that cannot be read is refused later, by its place."""
    try:
        with open(path, "rb") as handle:
            requests = _requests(json.loads(handle.readline()).get("arguments"))
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    return any(isinstance(part, dict) and is_sampled(part) for request in requests for part in request)


def _newest(samples: list[SampleFile], log: ImportLog) -> list[SampleFile]:
    best: dict[tuple[object, ...], SampleFile] = {}
    for file in sorted(samples, key=lambda sample: sample.rank, reverse=True):
        newest = best.setdefault(file.evaluation, file)
        if newest is not file:
            if newest.rank == file.rank and not filecmp.cmp(newest.path, file.path, shallow=False):
                raise InputError(
                    f"{newest.path} and {file.path}: different answers of one model on one task, and "
                    "neither file is newer.",
                    f"name a model: --model '{file.path}=NAME', or leave out the file that does not count.",
                )
            log.repeat(
                f"{file.path} ({date_text(file.date)}): the same documents are answered in {newest.path} "
                f"({date_text(newest.date)})"
            )
    return sorted(best.values(), key=lambda file: (file.task, str(file.path)))


class _Read(NamedTuple):
    """What a samples file holds. table: ITEMS, without the columns of `_OF_FILE`. rows: scores, where no result file
    has them. hashes: of documents by their ids, where lines have them. answers: to a document, at most."""

    table: pa.Table
    rows: list[Claim]
    hashes: dict[str, str]
    notes: list[str]
    answers: int


def _read(file: SampleFile) -> _Read:
    """Read a samples file. Raises InputError, with the line, for a line that is no sample, and for a file without any.

    Further answers to a document are those of further filters, which are numbers from 1 until the result file names
    them.
    """
    path, items = file.path, dict[str, Item]()
    values = defaultdict[tuple[str, str | int], dict[str, float]](dict)  # by metric and filter, then by document
    repeated, answers = 0, 1
    for sample in _samples(path):
        document = sample.doc_id
        items.setdefault(document, sample.item)
        answers = max(answers, sample.answers)
        for metric, value in sample.values.items():
            label = sample.filter or next(k for k in itertools.count(1) if document not in values[metric, k])
            if document in values[metric, label]:
                repeated += 1
                break
            values[metric, label][document] = value
    if not items:
        raise InputError(f"{path}: no samples.", _HINT)
    columns = {(metric, _filter(file, metric, label)): column for (metric, label), column in values.items() if column}
    named = {f"{metric},{name}": column for (metric, name), column in columns.items() if name is not None}
    notes = [f"{path}: {repeated} lines repeat a document; the first one of each counts."] if repeated else []
    if len(named) < len(columns):
        notes.append(f"{path}: several answers to a document and no name of their filters; the first ones count.")
    firsts = next(iter(named.values()), {})
    for document, item in items.items():
        item["correct"] = firsts.get(document)
        item["metric_values"] = [(name, column[document]) for name, column in named.items() if document in column]
    means = {key: mean_of_items(np.array([*column.values()])) for key, column in named.items() if not file.scores}
    rows = [Claim(benchmark=file.task, metric=key) | mean for key, mean in means.items() if _of_mean(key)]
    table = pa.Table.from_pylist([*items.values()], schema=pa.schema([*ITEMS][len(_OF_FILE) :]))
    hashes = {name: str(item["doc_hash"]) for name, item in items.items() if item["doc_hash"]}
    return _Read(table, rows, hashes, notes, answers)


def _of_mean(key: str) -> bool:
    return key.partition(",")[0] not in _NO_MEAN


def _samples(path: Path) -> Iterator[Sample]:
    """The samples of a file, line by line: what is not kept of a line may be larger than memory."""
    try:
        handle = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).", _HINT) from error
    with handle:
        for number, line in enumerate(handle, 1):
            if not line.strip():
                continue
            try:
                yield read_sample(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
                problem = f"{path}, line {number}: not a sample of lm-eval ({_why(error)})."
                raise InputError(problem, _HINT) from error


def _filter(file: SampleFile, metric: str, label: str | int) -> str | None:
    """The name of a filter; None where neither the lines nor the result file tell."""
    if isinstance(label, str):
        return label
    names = [name for key in file.scores for scored, _, name in [key.partition(",")] if scored == metric]
    if label <= len(names):
        return names[label - 1]
    return "none" if label == 1 else None


# ----------------------------------------------------------------------------------------------------------------------
# items.parquet.


def write_items(samples: list[SampleFile], further_files: list[ScoreFile], path: Path, log: ImportLog) -> int:
    """items.parquet at `path`, of samples and of further files with items; how many rows.

    Models have the names that their scores got, of which two may have become one: the first file's items count, of
    files other than samples the best one's. The right choices of a benchmark are left out where one file does not tell
    all of its own: with some of them the table would be no complete answer sheet.
    """
    named = [file.task if file.common["benchmark"] in log.split else file.common["benchmark"] for file in samples]
    unknown = sorted({name for file, name in zip(samples, named, strict=True) if _lacks_gold(_samples_of(file))})
    if unknown:
        log.notes.append(f"Right choices unknown, so no chance level and no margins: {', '.join(unknown)}.")
    written, owners = 0, dict[tuple[object, ...], int]()
    with pq.ParquetWriter(path, ITEMS, compression="zstd") as writer:
        for number, file in enumerate([*samples, *sorted(further_files, key=lambda file: file.rank, reverse=True)]):
            task = file.task if isinstance(file, SampleFile) else ""
            table = _of_samples(file, named[number]) if isinstance(file, SampleFile) else _rows_of(file)
            if task and named[number] in unknown:
                table = _with_column(table, "gold", [None] * len(table))
            if log.renamed:
                names = [log.renamed.get(name, name) for name in table.column("model").to_pylist()]
                table = _with_column(table, "model", names)
            keys = table.select(_OF_FILE)
            evaluations = keys.group_by(_OF_FILE).aggregate([]).to_pylist()
            owned = [owners.setdefault((task, *key.values()), number) == number for key in evaluations]
            if not all(owned):
                mine = [key for key, is_own in zip(evaluations, owned, strict=True) if is_own]
                table = table.filter(pa.array([key in mine for key in keys.to_pylist()], pa.bool_()))
            writer.write_table(table)
            written += len(table)
    return written


def _samples_of(file: ScoreFile) -> pa.Table:
    assert file.items is not None, file.path
    return file.items()


def _lacks_gold(table: pa.Table) -> bool:
    """Whether the right choice of some document with choices is unknown."""
    has_choices = pc.greater(pc.fill_null(pc.list_value_length(table.column("choice_loglikelihoods")), 0), 1)
    return bool(pc.any(pc.and_(has_choices, table.column("gold").is_null())).as_py())


def _of_samples(file: SampleFile, benchmark: str) -> pa.Table:
    """The columns of ITEMS of a samples file; of a task of a group with that in its documents' names."""
    items, shared = _samples_of(file), _completed(file.common | Claim(benchmark=benchmark))
    columns = {name: pa.array([shared.get(name)] * len(items), ITEMS.field(name).type) for name in _OF_FILE}
    table = pa.table(columns | {name: items.column(name) for name in items.column_names}, schema=ITEMS)
    if benchmark == file.task:
        return table
    # tasks number their documents each from 0
    names = [f"{file.task}/{name}" for name in items.column("doc_id").to_pylist()]
    return _with_column(_with_column(table, "doc_id", names), "subject", [file.task] * len(names))


def _with_column(table: pa.Table, name: str, values: Sequence[object]) -> pa.Table:
    return table.set_column(ITEMS.names.index(name), ITEMS.field(name), pa.array(values, ITEMS.field(name).type))


def _rows_of(file: ScoreFile) -> pa.Table:
    """The columns of ITEMS of a file that gives rows, with the run by benchmark where the file is one."""
    runs: dict[str, set[int | None]] = {}
    for row in file.rows:
        runs.setdefault(row["benchmark"], set()).add(row.get("run"))
    shared, rows = _completed(file.common), list[dict[str, object]]()
    for item in file.items() if file.items is not None else ():
        of_benchmark = runs.get(str(item.get("benchmark", shared.get("benchmark"))), set())
        run = item.get("run", shared.get("run"))
        rows.append(
            {**shared, **item, "run": next(iter(of_benchmark)) if run is None and len(of_benchmark) == 1 else run}
        )
    return pa.Table.from_pylist(rows, schema=ITEMS)
