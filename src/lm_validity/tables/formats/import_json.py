"""JSON of others that names its format nowhere: records, scores by benchmark, answers, an object of scores."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lm_validity.config.rows import read_text
from lm_validity.errors import InputError
from lm_validity.files import Document, as_written
from lm_validity.tables.cell_text import (
    is_missing,
    is_no_score,
    names_average,
    names_cost,
    names_count,
    names_loss,
    names_spread,
    plain,
    read_cell,
    spread_of,
)
from lm_validity.tables.claims import Claim, Facts
from lm_validity.tables.columns import (
    ITEM,
    RIGHT,
    RIGHT_ANSWERS,
    ROLES,
    fact_column,
    in_billions,
    names_metric,
    not_a_score,
)
from lm_validity.tables.decisions import EVERY, LEFT_OUT, UNSURE, Decision
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.import_csv import read_records
from lm_validity.tables.formats.model_names import PlacesRead, by_path, model_of_path
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in
from lm_validity.tables.task_facts import names_task
from lm_validity.tables.units import PERCENT, SHARE
from lm_validity.words import listing

HOLDERS = (
    "results",
    "scores",
    "benchmarks",
    "metrics",
    "evals",
    "evaluation",
    "evaluations",
    "performance",
)
_SUMMARY = "summary"  # holds the scores where no other object stands beside it
_SETTINGS = ("config", "metadata", "settings")  # beside scores
_TASKS = ("task_name", "task", "benchmark", "dataset")

# ---- records: flat objects, as the rows of a table -------------------------------------------------------------------


def _records(document: object) -> list[Document]:
    """The flat objects of a list of them, the longest one that an object holds, or of an object of objects, whose keys
    are models, or where their names say so benchmarks; of an object that is a score itself, that; else [].
    Lists and objects stay out of answers, and of records with a score beside them."""
    records = _unfolded(document)
    lists = _nested(records)
    names = {plain(name) for name in records[0] if name not in lists} if records else set()
    if lists and not (names & {*ITEM} and names & {*RIGHT}) and not _has_score(names):
        return []
    return [{name: value for name, value in record.items() if name not in lists} for record in records]


def _unfolded(document: object) -> list[Document]:
    """The objects of `_records`, with the lists and objects in them that are no scores."""
    document = [document] if _is_score(document) else _inner(document)
    if (by_name := _by_name(document)) is not None:
        if _are_models_of_benchmarks(by_name):
            document = [
                {"benchmark": benchmark, "model": model} | (scores if isinstance(scores, dict) else {"value": scores})
                for benchmark, entry in by_name.items()
                for model, scores in entry.items()
            ]
        else:
            document = [{"model": key, **entry} for key, entry in by_name.items()]
    if not isinstance(document, list) or not document or not all(isinstance(entry, dict) for entry in document):
        return []
    return [
        row
        for entry in document
        for of_metric in _of_metrics(entry)
        for of_task in _of_task(of_metric)
        for row in _of_objects(of_task)
    ]


def _of_head(document: object) -> object:
    """The document; of a list of objects whose first has a metric and no key of the others (a score, and answers that
    were wrong below it), the first with the one model and benchmark that the others name."""
    if not isinstance(document, list) or len(document) < 2 or not all(isinstance(entry, dict) for entry in document):
        return document
    head, tail = document[0], document[1:]
    keys = {key for entry in tail for key in entry}
    numbers = all(checked.finite(value) is not None for value in head.values())
    if not head or set(head) & keys or not numbers or not any(map(names_metric, head)):
        return document
    named = dict[str, str]()
    for role, words in (
        ("model", ("model", *ROLES["model"])),
        ("benchmark", ("benchmark", *ROLES["benchmark"], *_SUBJECTS)),
    ):
        names = [
            key for key in tail[0] if plain(key) in words or plain(key).endswith(tuple(f"_{word}" for word in words))
        ]
        texts = {entry.get(names[0]) if names else None for entry in tail}
        if len(texts) == 1 and isinstance(text := texts.pop(), str):
            named[role] = text
    items = next((head[key] for key in _TOTALS if key in head), None)
    scores = {key: value for key, value in head.items() if names_metric(key)}
    return [named | scores | ({} if items is None else {"n_items": items})]


def _has_score(names: set[str]) -> bool:
    """Whether one of plain names is that of a score or of a metric."""
    return bool(names & {"value", *ROLES["value"]}) or any(map(names_metric, names))


def _is_score(document: object) -> bool:
    """Whether an object names a model and a benchmark, and has a score beside them."""
    if not isinstance(document, dict):
        return False
    names = {plain(name) for name, value in document.items() if not isinstance(value, dict | list)}
    return _has_score(names) and all(names & {role, *ROLES[role]} for role in ("model", "benchmark"))


def _nested(records: list[Document]) -> list[str]:
    """The names under which records hold lists or objects."""
    found = (name for entry in records for name, value in entry.items() if isinstance(value, dict | list))
    return list(dict.fromkeys(found))


def _rows(document: object) -> object:
    """A table as pandas writes it, by columns (objects whose keys are row numbers, or lists) or in parts (`columns` and
    `data`), as a list of its rows; anything else as it is."""
    if not isinstance(document, dict):
        return document
    names, cells = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(cells, list) and document.keys() <= {"columns", "data", "index"}:
        index, numbers = document.get("index"), [*range(len(cells))]
        if isinstance(index, list) and len(index) == len(cells) and index != numbers:  # names of rows
            names, cells = ["model", *names], [[name, *row] for name, row in zip(index, cells, strict=True)]
        whole = all(isinstance(row, list) and len(row) == len(names) for row in cells)
        return [dict(zip(map(str, names), row, strict=True)) for row in cells] if whole else document
    columns = [*document.values()]
    if len(columns) < 2 or not all(isinstance(column, type(columns[0])) and column for column in columns):
        return document
    if isinstance(columns[0], dict) and all(
        [*column] == [str(row) for row in range(len(column))] for column in columns
    ):
        columns = [[*column.values()] for column in columns]
    of_rows = all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns)
    if not of_rows or any(isinstance(cell, list | dict) for column in columns for cell in column):
        return document
    return [dict(zip(document, row, strict=True)) for row in zip(*columns, strict=True)]


def _inner(document: object) -> object:
    """The longest list of objects that an object holds, else the only object in it; else the document itself."""
    if not isinstance(document, dict):
        return document
    lists = [entry for entry in document.values() if isinstance(entry, list) and entry and isinstance(entry[0], dict)]
    only = next(iter(document.values())) if len(document) == 1 else None
    return max(lists, key=len) if lists else only if isinstance(only, dict) else document


def _by_name(document: object) -> dict[str, Document] | None:
    """An object of several objects; None for anything else."""
    if not isinstance(document, dict) or len(document) < 2:
        return None
    return document if all(isinstance(entry, dict) for entry in document.values()) else None


def _levels(document: object, path: Path) -> list[Decision]:
    """That the outer names of an object of objects of metrics are read as models, where neither these nor the inner
    names are those of known tasks. The reader's row about a level is for the format `nested`."""
    by_name = _by_name(_inner(document)) or {}
    inner = [name for entry in by_name.values() for name, scores in entry.items() if isinstance(scores, dict)]
    if not inner or any(names_task(name) or name in (*HOLDERS, _SUMMARY, *_SETTINGS) for name in (*by_name, *inner)):
        return []
    read = f"{listing([*by_name], 2)} are read as models, {listing(sorted(set(inner)), 2)} as benchmarks"
    text = f"{path.name}: {read}"
    return [Decision("column", "level 1", "model", "structure", UNSURE, len(by_name), "benchmark", text)]


def _not_read(document: object, path: Path) -> list[Decision]:
    """Objects with numbers that stand in records beside the one that holds the scores, and what `_records` leaves."""
    inner = _inner(document)
    entries = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    unread = Counter(
        name
        for entry in entries
        if isinstance(entry, dict) and len([name for name in entry if name in HOLDERS]) == 1
        for name, scores in entry.items()
        if isinstance(scores, dict) and name not in (*HOLDERS, *_SETTINGS)
        if any(checked.finite(value) is not None for value in scores.values())
    )
    unread |= Counter(dict.fromkeys(_nested(_unfolded(document)), 1))
    text = "{path}: {name!r} is an object or a list beside the scores, and is not read"
    return [
        Decision("column", name, "left out", "structure", LEFT_OUT, number, "", text.format(path=path.name, name=name))
        for name, number in unread.items()
    ]


def _of_metrics(record: Document) -> list[Document]:
    """A record; of one with objects of numbers by benchmark under a metric's name (`pass@1`) a record for each."""
    by_metric = {name: entry for name, entry in record.items() if isinstance(entry, dict) and names_metric(name)}
    numbers = [value for entry in by_metric.values() for value in entry.values()]
    if not numbers or any(value is not None and checked.finite(value) is None for value in numbers):
        return [record]
    fields = {name: value for name, value in record.items() if name not in by_metric}
    return [
        fields | {"benchmark": benchmark, "metric": metric, "value": value}
        for metric, entry in by_metric.items()
        for benchmark, value in entry.items()
        if value is not None
    ]


def _of_task(record: Document) -> list[Document]:
    """A record; of one with the object `metrics` of a task a record for each of them, with the model and the number of
    solved examples that its other objects name."""
    metrics, task = record.get("metrics"), next((record[name] for name in _TASKS if record.get(name)), None)
    model = record.get("model") or _text_in(record.get("model_config"), "model")
    if not isinstance(metrics, dict) or not isinstance(task, str) or not model:
        return [record]
    task_config = record.get("task_config")
    shots = (
        [task_config[name] for name in ("num_shots", "num_fewshot") if name in task_config]
        if isinstance(task_config, dict)
        else []
    )
    fields = {
        "model": model,
        "benchmark": task,
        "num_fewshot": next(iter(shots), None),
        "n_items": record.get("num_instances"),
    }
    numbers = {name: value for name, value in metrics.items() if checked.finite(value) is not None}
    return [fields | {"metric": name, "value": value} for name, value in numbers.items() if not is_no_score(name)]


def _of_objects(record: Document) -> list[Document]:
    """A record; of one whose scores lie in an object (`results`), or in one for each benchmark, one row with the scores
    by benchmark, or a row for each benchmark with its metrics. Its `name` is the model where nothing else is, and other
    objects (settings) are left out."""
    objects = {name: entry for name, entry in record.items() if isinstance(entry, dict) and name not in _SETTINGS}
    holders = [name for name in objects if plain(name) in (HOLDERS if len(objects) > 1 else (*HOLDERS, _SUMMARY))]
    scores = objects[holders[0]] if len(holders) == 1 else objects
    if isinstance(scores.get("total"), dict) and not any(map(_may_be_score, scores.values())):
        scores = scores["total"]  # beside the runs that it sums up
    fields = {name: value for name, value in record.items() if not isinstance(value, dict | list)}
    if not {"model", *ROLES["model"]} & set(map(plain, fields)):
        named = (_text_in(record.get(name), "model") for name in _SETTINGS)
        fields = {"model": next(filter(None, named), fields.get("name") or fields.get("run_name"))} | fields
    if not scores or fields.get("model", True) is None:
        return [{name: value for name, value in record.items() if name not in _SETTINGS}]
    if all(map(_may_be_score, scores.values())):
        return [fields | scores]
    if not all(isinstance(metrics, dict) and any(map(names_metric, metrics)) for metrics in scores.values()):
        return [record]
    return [
        fields
        | {"benchmark": benchmark}
        | {name: value for name, value in metrics.items() if not isinstance(value, dict | list)}
        for benchmark, metrics in scores.items()
    ]


def _may_be_score(value: object) -> bool:
    """A number, or a text that is read as one or says that there is none."""
    if isinstance(value, str):
        return is_missing(value) or read_cell(value) is not None
    return value is None or checked.finite(value) is not None


def _are_models_of_benchmarks(document: dict[str, Document]) -> bool:
    """Whether objects are benchmarks, by the names of known tasks, and what they hold is of models: by names of which
    none is a task or a metric, or written as settings are (`batch_size`)."""
    names = {name for entry in document.values() for name in entry}
    if not all(names_task(key) for key in document) or not names:
        return False
    return all(re.search(r"[A-Z\d/.-]", name) and not names_metric(name) and not names_task(name) for name in names)


def _text_in(value: object, key: str) -> str | None:
    text_found = value.get(key) if isinstance(value, dict) else None
    return text_found if isinstance(text_found, str) else None


def lines_of_json(path: Path) -> list[Document]:
    """The objects of a file of JSON lines."""
    records = []
    for number, line in enumerate(read_text(path, "a JSON object on each line.").split("\n"), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{path}, line {number}: not JSON ({error}).", "a JSON object on each line."
                ) from error
    return records


def _recognises_records(opened: Opened) -> bool:
    if opened.path.suffix == ".jsonl":
        try:
            records = _records([json.loads(opened.head.split(b"\n", 1)[0])])
        except ValueError:
            return False
    else:
        document = _of_head(_rows(opened.document))
        records = _records(document) if _may_be_scores(document) else []
    keys = {plain(key) for key in records[0]} if records else set()
    of_one = opened.model is not None and bool({"benchmark", *ROLES["benchmark"]} & keys)
    return of_one or bool({"model", *ROLES["model"]} & keys) or _of_one_run(records)


def _of_one_run(records: list[Document]) -> bool:
    """Whether records without a model have the steps of a training and losses or metrics, as a trainer's log has."""
    names = {name for record in records for name in record}
    keys = {plain(name) for name in names} - {"step", "epoch"}
    named = any(names_loss(name) or names_metric(re.sub("^(eval|val|test)_", "", name)) for name in keys)
    has_model = {"model", *ROLES["model"]} & keys
    return bool(records) and named and not has_model and all("step" in map(plain, record) for record in records)


def _may_be_scores(document: object) -> bool:
    """False for an object of objects in whose records nothing has the name of a model, a known task or a metric beside
    other columns: settings (`optimizer: {beta1: ..}`), or metrics of benchmarks whose model nobody says."""
    if not isinstance(document, dict) or not all(isinstance(entry, dict) for entry in document.values()):
        return True
    names = {name for entry in document.values() for name in entry}
    if len(document) == 1:
        names = {
            name for entry in document.values() for inner in entry.values() if isinstance(inner, dict) for name in inner
        }
    objects = [inner for entry in document.values() for inner in entry.values() if isinstance(inner, dict)]
    below_metrics = {
        name
        for entry in document.values()
        for metric, inner in entry.items()
        if isinstance(inner, dict) and names_metric(metric)
        for name in inner
    }
    if any(names_cost(name) or names_count(name) for name in below_metrics):  # of a benchmark whose model nobody says
        return False
    if _are_models_of_benchmarks(document) or (objects and all(any(map(names_metric, inner)) for inner in objects)):
        return True
    names |= {
        name
        for entry in document.values()
        for holder in (*HOLDERS, _SUMMARY)
        if isinstance(entry.get(holder), dict)
        for name in entry[holder]
    }
    names = {name for name in names if names_spread(name) is None}
    if {plain(name) for name in names} & {"model", *ROLES["model"]}:
        return True
    return any(names_task(name) for name in names) or 0 < sum(map(names_metric, names)) < len(names)


def _read_records(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    path, model = opened.path, opened.model
    document = _of_head(lines_of_json(path) if path.suffix == ".jsonl" else _rows(opened.document))
    decisions = [*_levels(document, path), *_not_read(document, path)]
    records = _records(document)
    if not records:
        raise InputError(f"{path}: no list of objects with scores, and no object of them.", "try --format nested.")
    if model is None and _of_one_run(records):
        of_path, folder = model_of_path(path, None)["model"], as_written(path).parent
        model = PlacesRead().read(str(folder)).name if of_path == folder.name else of_path  # not `checkpoint-500`
        decisions.append(by_path(path, model))
    return read_records(path, records, options, model, decisions)


RECORDS = Format("records", (".json", ".jsonl"), _recognises_records, _read_records)


# ---- answers to questions, and scores by benchmark, of one model that the path names ---------------------------------

_PREDICTIONS = ("pred", "prediction", "predicted", "predicted_answer", "model_answer", "extracted_answer", "model_pred")
_SUBJECTS = ("category", "subject", "subset", "task", "dataset", "benchmark")
_TOTALS = ("total_count", "total", "n", "count", "num")  # of the items of a score
_RIGHT, _WRONG = ("corr", "correct", "right"), ("wrong", "incorrect")


class _AnswerKeys(NamedTuple):
    """The keys of the question, of the prediction and of the right choice."""

    item: str
    prediction: str
    right: str


def _answers(document: object) -> _AnswerKeys | None:
    """The keys of a list of answers whose right choices are letters."""
    if not isinstance(document, list) or not document or not all(isinstance(answer, dict) for answer in document):
        return None
    keys = document[0].keys()
    item, prediction, right = (
        next((name for name in names if name in keys), None) for names in (ITEM, _PREDICTIONS, RIGHT_ANSWERS)
    )
    if item is None or prediction is None or right is None or keys & {"correct", *RIGHT[1:3]}:
        return None
    letters = all(
        isinstance(answer.get(right), str) and re.fullmatch(r"[A-Za-z]", answer[right]) for answer in document
    )
    return _AnswerKeys(item, prediction, right) if letters else None


def _read_answers(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    keys = _answers(opened.document) or _AnswerKeys("", "", "")
    subject = next((name for name in _SUBJECTS if isinstance(opened.document[0].get(name), str)), None)
    benchmarks = {str(answer.get(subject)) for answer in opened.document} if subject else set()
    of_path = model_of_path(opened.path, opened.model, benchmarks)
    named = opened.model is not None or all(answer.get("model") for answer in opened.document)
    records = [
        {
            "model": answer.get("model") or of_path["model"],
            "benchmark": str(answer.get(subject)) if subject else opened.path.parent.name,
            "metric": "exact_match",
            "num_fewshot": of_path.get("num_fewshot"),
            "question_id": answer.get(keys.item),
            "correct": int(str(answer.get(keys.prediction)).strip().casefold() == answer[keys.right].casefold()),
        }
        for answer in opened.document
    ]
    decisions = [] if named else [by_path(opened.path, of_path["model"])]
    return read_records(opened.path, records, options, None, decisions)


def _benchmarks(document: object, *, of_one: bool = False) -> dict[str, Document]:
    """The metrics of each benchmark by its name, in an object that has them; {} for what is none: one has no metric, or
    nothing tells their names from those of models: settings, a known task, an average, or the reader (`of_one`)."""
    if not isinstance(document, dict) or not all(
        isinstance(scores_of_benchmark, dict) for scores_of_benchmark in document.values()
    ):
        return {}
    own_scores = {name: metrics for name, metrics in document.items() if name not in _SETTINGS}
    is_told = of_one or len(own_scores) < len(document)
    is_known = is_told or any(names_average(name) or names_task(name) for name in own_scores)
    numbers = [
        {name for name, value in metrics.items() if not isinstance(value, dict)} for metrics in own_scores.values()
    ]
    return own_scores if is_known and all(any(map(names_metric, names)) for names in numbers) else {}


def _read_scored(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    benchmarks = _benchmarks(opened.document, of_one=opened.model is not None)
    common = model_of_path(opened.path, opened.model, set(benchmarks))
    named = (_text_in(opened.document.get(name), "model") for name in _SETTINGS)
    said = opened.model or next(filter(None, named), None)
    common["model"] = said or common["model"]
    means = {
        name for name in benchmarks for whole in benchmarks if names_average(whole) and name.startswith(f"{whole}-")
    }
    means = {
        name for name in means if options.corrections.one_of("average", name, (LEFT_OUT, "benchmark")) != "benchmark"
    }
    decisions = [
        Decision("average", name, "left out", "name", LEFT_OUT, 1, "benchmark", f"{name!r} is an average")
        for name in sorted(means)
    ] + ([] if said else [by_path(opened.path, common["model"])])
    records = list[Document]()
    for benchmark, metrics in benchmarks.items():
        if benchmark in means:
            continue
        numbers = {name: number for name, value in metrics.items() if (number := checked.finite(value)) is not None}
        counts = [next((numbers[name] for name in names if name in numbers), None) for names in (_RIGHT, _WRONG)]
        items = int(numbers.get("num", 0)) if None in counts else int(sum(filter(None, counts)))
        scores = {name: value for name, value in numbers.items() if name not in (*_RIGHT, *_WRONG, "num")}
        records.append({**common} | {"benchmark": benchmark} | scores | ({"n_items": items} if items else {}))
    files = read_records(opened.path, records, options, None, decisions)
    return [replace(file, date=date_in(opened.path.stem)) for file in files]


ANSWERS = Format("answers", (".json",), lambda opened: _answers(opened.document) is not None, _read_answers)
SCORED = Format(
    "scores by benchmark",
    (".json",),
    lambda opened: bool(_benchmarks(opened.document, of_one=opened.model is not None)),
    _read_scored,
)


# ---- JSON of no known format ----------------------------------------------------------------------------------------
#
# Where `--format json` asks for it: the largest object of nothing but scores. Its keys are the benchmarks. Numbers
# elsewhere whose keys say so (`params`, `tokens`, `lr`) are facts of the model; a file may hold these alone.

_NAMING = ("model_name", "name", "model")
_SPREADS = ("stderr", "sd", "variance", "ci95")  # kinds that benchmarks' names do not end in
# Names of settings of a run
_SETTING = re.compile(r"(\w+_)?(seed|version|batch_size)|limit|(num_|n_)?(few_?shot|shots?)")
# Largest values of scores, in the order in which objects of such are looked for, by their unit
_HIGHEST = {None: (1.0, 100.0), SHARE: (1.0,), PERCENT: (100.0,)}
_FEWEST_SCORES = 2  # scores of an object of scores
_OF_SCORES = frozenset(("score", "result", "metric", "eval", "evaluation", "benchmark"))  # words of a file's name


def _read_json(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores and facts of a file. The model is that of `--path` or `--model`, else `model_name`, `name` or `model`.

    Raises InputError for a file with neither, and for one that names no model.
    """
    path, document = opened.path, opened.document
    objects: dict[tuple[str, ...], dict[str, object]] = defaultdict(dict)
    for object_path, value in _leaves(document, ()):
        objects[object_path[:-1]][object_path[-1]] = value
    beside = {
        path_scored: {
            name
            for name in values
            if _is_beside_scores(name, values)
            and options.corrections.one_of("column", name, (LEFT_OUT, "score")) != "score"
        }
        for path_scored, values in objects.items()
    }
    scored: dict[tuple[str, ...], dict[str, float]] = {}
    for highest in _HIGHEST.get(options.said("unit", EVERY), (1e99,)):
        scored = (
            scored
            if any(scored.values())
            else {
                path_scored: {
                    name: value
                    for name, value in _only_scores(objects[path_scored], highest).items()
                    if name not in beside[path_scored]
                }
                for path_scored in objects
            }
        )
    if not any(scored.values()):  # nothing but scores, beside texts, lists, counts, times and settings of the run
        scores_named = {
            name: value
            for name, value in objects[()].items()
            if name not in beside.get((), ()) and not isinstance(value, str | list)
        }
        scored = {(): _only_scores(scores_named, 1e99, fewest=1)}
    object_path = max(scored, key=lambda path_scored: len(scored[path_scored]), default=())
    scores = scored.get(object_path, {})
    alike = [where for where in scored if where[:-1] == object_path[:-1] and scored[where].keys() & scores.keys()]
    if len(alike) > 1 and len(holders := holding_scores([where[-1] for where in alike])) == 1:
        object_path = (*object_path[:-1], *holders)
        scores = scored[object_path]
    elif len(alike) > 1:
        names = listing([where[-1] for where in alike], 3)
        raise InputError(f"{path}: {len(alike)} objects of scores ({names}).", "read them all: --format nested.")
    facts = Facts()
    for other_path, values in objects.items():
        for key, value in values.items():
            column, number = fact_column(key), _number(value)
            if column is not None and (other_path != object_path or key not in scores) and number is not None:
                facts.setdefault(column, _in_sheet(key, column, number))
    if not scores and not facts:
        raise InputError(f"{path}: no object of scores (benchmarks with numbers).", "leave it out.")
    named = next((document[key] for key in _NAMING if document.get(key)), None) if isinstance(document, dict) else None
    name = checked.required_text(
        opened.model or named, f"{path}, the model", f"name it: --model '{path}=NAME', or --path."
    )
    rows: list[Claim] = [{"benchmark": benchmark, "value": value} for benchmark, value in scores.items()]
    reasons = {
        key: "is no score by its name"
        for key, value in objects.get(object_path, {}).items()
        if scores and key in beside[object_path] and fact_column(key) is None and _number(value) is not None
    } | {where[-1]: "stands beside the scores" for where in alike if where != object_path}
    decisions = tuple(
        Decision("column", key, "left out", "name", LEFT_OUT, 1, "score", f"{path.name}: {key!r} {text}")
        for key, text in reasons.items()
    )
    facts_of_model = {name: facts} if facts else {}
    return [ScoreFile(path, rows, {"model": name}, date_in(path.stem), facts=facts_of_model, decisions=decisions)]


def holding_scores(names: Sequence[str]) -> list[str]:
    """Of the names of objects beside each other, the only one that says that it holds the scores, else those that are
    no errors, counts or costs; all where nothing is left."""
    holders = [name for name in names if plain(name) in HOLDERS]
    of_results = [name for name in names if not (names_cost(name) or names_count(name) or names_spread(name))]
    return holders if len(holders) == 1 else of_results or [*names]


def _number(value: object) -> float | None:
    """A finite number as it stands, whole or not; None for anything else."""
    return value if isinstance(value, int | float) and checked.finite(value) is not None else None


def _in_sheet(key: str, column: str, number: float) -> str | float:
    """A number as the models sheet has it: in billions where the column is."""
    (scaled,) = in_billions(key, [float(number)]) if column in ("tokens_b", "parameters_b") else (number,)
    return number if scaled is None else scaled


def _leaves(value: object, object_path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values in objects within objects, with the keys that lead to them."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _leaves(child, (*object_path, key))
    elif object_path:
        yield object_path, value


def _is_beside_scores(name: str, names: Iterable[str]) -> bool:
    """Whether one of an object's names is that of a setting, a time, a count, a spread or a fact about the model, and
    of no known task: `race_high` is a spread only beside `race`."""
    if names_task(name):
        return False
    is_spread = names_spread(name) in _SPREADS or spread_of(name, {plain(owner): owner for owner in names})
    is_setting = _SETTING.fullmatch(plain(name)) is not None or fact_column(name) is not None
    of_run = not_a_score(name, {}) is not None
    return is_setting or of_run or names_cost(name) or is_no_score(name) or bool(is_spread)


def _only_scores(values: dict[str, object], highest: float, fewest: int = _FEWEST_SCORES) -> dict[str, float]:
    """An object's numbers, if it has several and nothing else; {} otherwise."""
    numbers = {key: checked.finite(value) for key, value in values.items() if value is not None}
    scores = {key: number for key, number in numbers.items() if number is not None and 0 <= number <= highest}
    return scores if len(scores) == len(numbers) >= fewest else {}


def _of_one_model(opened: Opened) -> bool:
    """An object of nothing but scores, of the model that the reader names: by a known task, or by the file's name."""
    document = opened.document
    if opened.model is None or not isinstance(document, dict) or not _only_scores(document, 100.0):
        return False
    words = {word.removesuffix("s") for word in plain(opened.path.stem).split("_")}
    has_task = any(map(names_task, document))
    return has_task or (bool(words & _OF_SCORES) and not any(map(names_metric, document)))


JSON = Format("json", (".json",), _of_one_model, _read_json)
