"""lm-eval's samples: answers to documents, as items."""

import filecmp
import json
import math
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_validity.errors import InputError, first_line
from lm_validity.files import Document
from lm_validity.tables.claims import DEFAULTS, Claim, Item, as_record
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.model_names import folder_identity, folder_name
from lm_validity.tables.formats.score_files import (
    Found,
    ImportLog,
    ScoreFile,
    Ticker,
    date_in,
    date_text,
    mean_of_items,
    with_progress,
)
from lm_validity.tables.schema import ITEMS, LARGEST_SCORE
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
    item: Item = {
        "doc_id": doc_id,
        "doc_hash": _text(line.get("doc_hash")),
        "subject": _text(subject),
    }
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
        return checked.finite(value)
    if len(value) != 2:
        return None
    if name in _PAIRS:
        return float(value[0] == value[1])
    if name in _WEIGHTED:
        total, weight = checked.finite(value[0]), checked.finite(value[1])
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
# lm-eval's samples_*.jsonl -> items.parquet, line by line: a file may be larger than memory.
#
# A file's documents go to a table of their own under a temporary folder, while the numbers (metrics) stay in memory;
# then all of them are put together. What only the whole file tells (which filter an answer belongs to, whether every
# right choice is known) is known by then.

_HINT = "lm-eval writes such a file with --log_samples: samples_<task>_<date>.jsonl."
_NAME = re.compile(r"samples_(.+?)(?:_(\d{4}-\d\d-\d\d[T_-]\d\d[-:]\d\d[-:]\d\d(?:\.\d+)?))?\.jsonl$")
# Columns that a file's lines fill; the others are the same for a whole file, or made of the metrics
_OF_DOCUMENT = (
    "doc_id", "doc_hash", "subject", "gold", "choice_loglikelihoods", "unconditional_loglikelihoods",
    "choice_characters", "choice_bytes", "response",
)  # fmt: skip
_PART = pa.schema([ITEMS.field(name) for name in _OF_DOCUMENT])
_Names = Mapping[str, Mapping[str, str]]  # by column, other names by name
_OF_FILE = [name for name in ITEMS.names[: ITEMS.names.index("doc_id")]]
# Metrics whose score is not the mean over documents
_NO_MEAN = frozenset(("perplexity", "ppl", "word_perplexity", "byte_perplexity", "bits_per_byte", "mcc", "f1"))
_ROWS, _BYTES = 20_000, 2**24  # documents and bytes of text that are held before they are written


@dataclass(frozen=True)
class SampleFile:
    """A samples file of a task: `common` are the columns of ITEMS that its rows share, `benchmark` among them the task
    or the group whose score counts; `scores` the keys `name,filter` under which its result file has scores of the
    benchmark; empty where there is no result file."""

    found: Found
    task: str
    common: Claim
    scores: tuple[str, ...] = ()
    date: float | None = None
    limited: bool = False
    identity: dict[str, str] = field(default_factory=dict)

    @property
    def benchmark(self) -> str:
        """The benchmark of its items."""
        return str(self.common["benchmark"])

    @property
    def rank(self) -> tuple[bool, float]:
        """As that of a result file: larger is better."""
        return (not self.limited, -math.inf if self.date is None else self.date)


class SamplesPart(NamedTuple):
    """A samples file that was read: its documents are in `path`, its metrics in `values`, by document. `numbers`: what
    the task's first file calls a document, where this one has the same documents in another order."""

    file: SampleFile
    path: Path
    values: dict[tuple[str, str], "array[float]"]  # by metric and filter, NaN where a document has none
    gold_known: bool
    notes: tuple[str, ...]
    numbers: Mapping[str, str] = {}
    answers: int = 1  # to a document, at most

    def of_its_task(self) -> "SamplesPart":
        """The part as one of its task, where the tasks of a group count in place of its own score."""
        common = self.file.common | Claim(benchmark=self.file.task)
        return self._replace(file=replace(self.file, common=common))


def is_samples(path: Path) -> bool:
    """Whether a file has the name that lm-eval gives to samples."""
    return _NAME.match(path.name) is not None


def benchmark_of(path: Path) -> str:
    """The task in the name of a samples file."""
    match = _NAME.match(path.name)
    assert match is not None, path
    return match.group(1)


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
        score_files = places.get((sample.path.parent, benchmark_of(sample.path)), [])
        try:
            matched.append(_match(sample, score_files, names.get(sample.path)))
        except InputError as error:
            log.skip(sample.path, error.problem, error.hint, named=sample.named)
    return matched


def _match(file: Found, score_files: list[ScoreFile], given_name: str | None) -> SampleFile:
    """A samples file with what one of `score_files` says: that of its date, else the best one.

    Without one the model is `given_name` or the folder's. Raises InputError where `score_files` are result files of
    several models and none of its date.
    """
    task, date = benchmark_of(file.path), date_in(file.path.stem)
    of_date = [result for result in score_files if date is not None and date_in(result.path.stem) == date]
    best = max(of_date or score_files, key=lambda result: result.rank, default=None)
    if best is None:
        common = _completed({"model": given_name or folder_name(file.path), "benchmark": task})
        identity = {} if given_name else folder_identity(file.path)
        return SampleFile(file, task, common, date=date, identity=identity)
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
    return SampleFile(file, task, common, scores, best.date if date is None else date, best.limited)


def _completed(common: Claim) -> Claim:
    return as_record(Claim, {name: common.get(name, DEFAULTS.get(name)) for name in _OF_FILE})


# ---- reading -----------------------------------------------------------------------------------------------------


def read_all_samples(
    samples: list[SampleFile], folder: Path, log: ImportLog
) -> tuple[list[SamplesPart], list[ScoreFile]]:
    """The parts of items.parquet, of the newest samples file of each evaluation, and the scores of files without a
    result file.

    A document's place in the task names it, so all files of a task must mean the same documents by the same numbers.
    Their hashes tell, where lines have them; the same documents in another order are named as in the first file.
    """
    parts, scores, reordered = list[SamplesPart](), list[ScoreFile](), list[Path]()
    first: tuple[str, Path, dict[str, int]] = "", Path(), {}  # task, path and hashes of the first file of the task
    for number, file in enumerate(with_progress(_newest(_with_runs(samples), log), "files of samples")):
        path, reader = file.found.path, _Reader(file)
        try:
            part = reader.part(folder / f"{number}.parquet")
        except InputError as error:
            log.skip(path, error.problem, error.hint, named=file.found.named)
            log.formats["lm-eval"] -= 1
            continue
        scores += [] if file.scores else [_score_file(part)]
        if reader.hashes and first[0] != file.task:
            first = file.task, path, reader.hashes
        in_both = reader.hashes.keys() & first[2].keys()
        differ = sum(reader.hashes[name] != first[2][name] for name in in_both)
        numbers = {hashed: name for name, hashed in first[2].items()}
        if differ and len(numbers) == len(first[2]) and set(reader.hashes.values()) == set(numbers):
            reordered.append(path)
            part = part._replace(numbers={name: numbers[hashed] for name, hashed in reader.hashes.items()})
        elif differ:
            problem = (
                f"{path}: {differ} of {len(in_both)} documents differ from those in {first[1]}: another version of "
            )
            log.skip(path, f"{problem}the task; its items are left out", "import it into another folder.")
            continue
        parts.append(part)
    log.notes += [note for part in parts for note in part.notes]
    if many := [part for part in parts if part.answers > 1]:
        text = f"{many[0].answers} answers to each document, which lm-eval scored as one: no runs to tell apart"
        log.notes.append(f"{text}: {count(len(many), 'file')}, such as {many[0].file.found.path}.")
    if reordered:
        text = "Documents in another order than in the task's first file, told by their hashes"
        log.notes.append(f"{text}: {count(len(reordered), 'file')}, such as {reordered[0]}.")
    if unknown := sorted({part.file.benchmark for part in parts if not part.gold_known}):
        log.notes.append(f"Right choices unknown, so no chance level and no margins: {', '.join(unknown)}.")
    return parts, scores


def _with_runs(samples: list[SampleFile]) -> list[SampleFile]:
    """The files with the number of their run, in the order of their dates, where several without a result file hold
    sampled answers of one model to one task. Equal files are one run."""
    groups = defaultdict[tuple[object, ...], list[Path]](list)
    for file in sorted(samples, key=lambda sample: sample.rank[1]):
        if not file.scores:
            groups[file.task, *map(file.common.get, _OF_FILE)].append(file.found.path)
    runs: dict[Path, int] = {}
    for paths in (paths for paths in groups.values() if len(paths) > 1 and all(map(_is_sampled, paths))):
        firsts: list[Path] = []
        for path in paths:
            equal = (run for run, first in enumerate(firsts) if filecmp.cmp(first, path, shallow=False))
            runs[path] = next(equal, len(firsts))
            firsts += [path] if runs[path] == len(firsts) else []
    return [
        replace(file, common=file.common | Claim(run=runs[file.found.path])) if file.found.path in runs else file
        for file in samples
    ]


def _is_sampled(path: Path) -> bool:
    """Whether the first line's request has a temperature. A line that cannot be read is refused later, by its place."""
    try:
        with open(path, "rb") as handle:
            requests = _requests(json.loads(handle.readline()).get("arguments"))
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    return any(isinstance(part, dict) and checked.is_sampled(part) for request in requests for part in request)


def _newest(samples: list[SampleFile], log: ImportLog) -> list[SampleFile]:
    best: dict[tuple[object, ...], SampleFile] = {}  # by evaluation
    for file in sorted(samples, key=lambda sample: sample.rank, reverse=True):
        newest = best.setdefault((file.task, *map(file.common.get, _OF_FILE)), file)
        if newest is not file:
            if newest.rank == file.rank and not filecmp.cmp(newest.found.path, file.found.path, shallow=False):
                raise InputError(
                    f"{newest.found.path} and {file.found.path}: different answers of one model on one task, and "
                    "neither file is newer.",
                    f"name a model: --model '{file.found.path}=NAME', or leave out the file that does not count.",
                )
            log.repeat(
                f"{file.found.path} ({date_text(file.date)}): the same documents are answered in {newest.found.path} "
                f"({date_text(newest.date)})"
            )
    return sorted(best.values(), key=lambda file: (file.task, str(file.found.path)))


@dataclass
class _Reader:
    file: SampleFile
    places: dict[str, int] = field(default_factory=dict)  # of a document: its row
    # by metric and filter; filters without a name are numbers from 1
    values: dict[tuple[str, str | int], "array[float]"] = field(default_factory=dict)
    hashes: dict[str, int] = field(default_factory=dict)  # of documents, where lines have them
    gold_known: bool = True
    repeated: int = 0
    answers: int = 1

    def part(self, path: Path) -> SamplesPart:
        """Read the file into a table of its documents at `path`. Raises InputError, with the line, for a line that is
        no sample, and for a file without any."""
        source = self.file.found.path
        with pq.ParquetWriter(path, _PART, compression="zstd") as writer:
            for table in _portions(self._documents(), _PART):
                writer.write_table(table)
        if not self.places:
            raise InputError(f"{source}: no samples.", _HINT)
        values, notes = {}, []
        for (metric, label), column in self.values.items():
            name = self._filter(metric, label)
            if name is None:
                notes.append(
                    f"{source}: several answers to a document and no name of their filters; the first ones count."
                )
                continue
            column.extend([math.nan] * (len(self.places) - len(column)))
            values[metric, name] = column
        if self.repeated:
            notes.append(f"{source}: {self.repeated} lines repeat a document; the first one of each counts.")
        return SamplesPart(self.file, path, values, self.gold_known, tuple(dict.fromkeys(notes)), answers=self.answers)

    def _documents(self) -> Iterator[tuple[Item, int]]:
        """Each document once, with what its first line says, and the bytes of the line."""
        path, ticker, done = self.file.found.path, Ticker(), 0
        try:
            size = path.stat().st_size
            handle = open(path, "rb")  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}).", _HINT) from error
        with handle:
            for number, line in enumerate(handle, 1):
                done += len(line)
                ticker.say(f"{path}: {done / 2**20:.0f} of {size / 2**20:.0f} MiB")
                if not line.strip():
                    continue
                try:
                    sample = read_sample(json.loads(line))
                except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
                    problem = f"{path}, line {number}: not a sample of lm-eval ({_why(error)})."
                    raise InputError(problem, _HINT) from error
                first = sample.doc_id not in self.places
                self._add(sample)
                if first:
                    yield sample.item, len(line)

    def _add(self, sample: Sample) -> None:
        """Keep the numbers of an answer. Further answers to a document are those of further filters."""
        number = self.places.setdefault(sample.doc_id, len(self.places))
        label = sample.filter or self._free_number(sample, number)
        self.answers = max(self.answers, sample.answers)
        self.gold_known &= sample.item.get("gold", 0) is not None
        if sample.item["doc_hash"]:
            self.hashes.setdefault(sample.doc_id, hash(sample.item["doc_hash"]))
        for metric, value in sample.values.items():
            column = self.values.setdefault((metric, label), array("d"))
            column.extend([math.nan] * (number + 1 - len(column)))
            if math.isnan(column[number]):
                column[number] = value
            else:
                self.repeated += 1
                return

    def _free_number(self, sample: Sample, position: int) -> int:
        number = 1
        for metric in sample.values:
            while len(column := self.values.get((metric, number), ())) > position and not math.isnan(column[position]):
                number += 1
        return number

    def _filter(self, metric: str, label: str | int) -> str | None:
        """The name of a filter; None where neither the lines nor the result file tell."""
        if isinstance(label, str):
            return label
        names = [name for key in self.file.scores for scored, _, name in [key.partition(",")] if scored == metric]
        if label <= len(names):
            return names[label - 1]
        return "none" if label == 1 else None


# ---- putting together --------------------------------------------------------------------------------------------


def _score_file(part: SamplesPart) -> ScoreFile:
    """Scores of a samples file without a result file: means over documents, with their standard errors."""
    rows = list[Claim]()
    for (metric, name), column in part.values.items():
        if metric in _NO_MEAN:
            continue
        values_known = np.asarray(column)
        mean = mean_of_items(values_known[~np.isnan(values_known)])
        rows.append({"benchmark": part.file.task, "metric": f"{metric},{name}", **mean})
    common = as_record(Claim, {name: value for name, value in part.file.common.items() if name != "benchmark"})
    return ScoreFile(part.file.found.path, rows, common, part.file.date)


def write_items(parts: list[SamplesPart], other_files: list[ScoreFile], path: Path, renamed: _Names) -> int:
    """items.parquet at `path`, portion by portion, of lm-eval's parts and of other files with items; how many rows.

    `renamed`: by column the names that scores got, of which two may have become one: the first part's items count.
    The right choices of a benchmark are left out where one part does not tell all of its own: with some of them the
    table would be no complete answer sheet. Of several files with items of one evaluation the best counts.
    """
    unknown = {part.file.benchmark for part in parts if not part.gold_known}
    written, evaluations = 0, set[tuple[object, ...]]()
    with pq.ParquetWriter(path, ITEMS, compression="zstd") as writer:
        for part in parts:
            start, evaluation = 0, (part.file.task, *_with_names(part.file.common, renamed).values())
            if evaluation in evaluations or "" in evaluation:
                continue
            evaluations.add(evaluation)
            with pq.ParquetFile(part.path) as documents:
                for number in range(documents.num_row_groups):
                    table = documents.read_row_group(number)
                    with_gold = part.file.benchmark not in unknown
                    writer.write_table(_item_table(part, table, start, renamed, with_gold=with_gold))
                    start += len(table)
            written += start
        for table in _portions(_rows_of(other_files, renamed), ITEMS):
            writer.write_table(table)
            written += len(table)
    return written


def _with_names(common: Mapping[str, object], renamed: _Names) -> dict[str, object]:
    """What names an evaluation, the columns `_OF_FILE`, with the names that its scores got."""
    named = {name: common.get(name) for name in _OF_FILE}
    return named | {name: names.get(str(named[name]), named[name]) for name, names in renamed.items()}


def _rows_of(files: list[ScoreFile], renamed: _Names) -> Iterator[tuple[Mapping[str, object], int]]:
    """The items of files that give rows; of one evaluation those of the best file."""
    owner: dict[tuple[object, ...], int] = {}
    for number, file in enumerate(sorted(files, key=lambda sample: sample.rank, reverse=True)):
        common, runs = _completed(file.common), _runs_of(file)
        for item in file.items() if file.items is not None else ():
            row: dict[str, object] = {**common, **item}
            if row["run"] is None:
                row["run"] = runs.get(str(row["benchmark"]))
            row |= _with_names(row, renamed)
            if "" not in (row["model"], row["benchmark"]) and (
                owner.setdefault(tuple(row[name] for name in _OF_FILE), number) == number
            ):
                yield row, 0


def _runs_of(file: ScoreFile) -> dict[str, int]:
    """The run by benchmark, where a file is one."""
    runs: dict[str, set[int | None]] = {}
    for row in file.rows:
        runs.setdefault(row["benchmark"], set()).add(row.get("run"))
    return {name: run for name, (run, *further_runs) in runs.items() if run is not None and not further_runs}


def _portions(rows: Iterable[tuple[Mapping[str, object], int]], schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows, each with the bytes of its text, as tables that are not too large."""
    waiting, size = list[Mapping[str, object]](), 0
    for row, bytes_of_row in rows:
        waiting.append(row)
        size += bytes_of_row
        if len(waiting) >= _ROWS or size >= _BYTES:
            yield pa.Table.from_pylist(waiting, schema=schema)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_pylist(waiting, schema=schema)


def _item_table(part: SamplesPart, documents: pa.Table, start: int, renamed: _Names, *, with_gold: bool) -> pa.Table:
    """The columns of ITEMS of a portion of a part, whose first document is number `start`."""
    size = len(documents)
    values = {
        f"{metric},{name}": np.asarray(column[start : start + size]) for (metric, name), column in part.values.items()
    }
    file, columns = part.file, []
    evaluation = _with_names(file.common, renamed)
    in_group = file.task != file.benchmark  # its tasks number their documents each from 0
    for item in ITEMS:
        if item.name in _OF_FILE:
            columns.append(pa.array([evaluation[item.name]] * size, item.type))
        elif item.name == "correct":
            first = next(iter(values.values()), np.full(size, np.nan))
            columns.append(pa.array(first, item.type, from_pandas=True))
        elif item.name == "metric_values":
            rows = [
                [(name, column[row]) for name, column in values.items() if not math.isnan(column[row])]
                for row in range(size)
            ]
            columns.append(pa.array(rows, item.type))
        elif (in_group or part.numbers) and item.name == "doc_id":
            names = [part.numbers.get(name, name) for name in documents.column("doc_id").to_pylist()]
            columns.append(pa.array([f"{file.task}/{name}" for name in names] if in_group else names, item.type))
        elif in_group and item.name == "subject":
            columns.append(pa.array([file.task] * size))
        elif item.name in documents.column_names and (with_gold or item.name != "gold"):
            columns.append(documents.column(item.name))
        else:
            columns.append(pa.nulls(size, item.type))
    return pa.table(columns, schema=ITEMS)
