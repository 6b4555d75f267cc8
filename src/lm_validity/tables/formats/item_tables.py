"""Answers to items in tables: a matrix of 0 and 1, or a row for each answer -> scores and items."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from lm_validity.errors import InputError
from lm_validity.files import as_written
from lm_validity.tables.cell_text import is_missing, plain
from lm_validity.tables.claims import Claim, Item, as_record
from lm_validity.tables.columns import (
    ITEM,
    MODELS,
    RIGHT,
    RIGHT_ANSWERS,
    ROLES,
    SAYINGS,
    SCORE_COLUMNS,
    WITH_STEP,
    names_metric,
)
from lm_validity.tables.decisions import AVERAGED, CONVERTED, LEFT_OUT, READ, UNSURE, Decision
from lm_validity.tables.formats.score_files import ImportOptions, ScoreFile, date_in, mean_of_items
from lm_validity.tables.formats.text_tables import ANSWERS, Notes, Table, plain_number, stem, whole_number
from lm_validity.tables.reading import choose_metric
from lm_validity.tables.standard_errors import SHARES_OF_ITEMS
from lm_validity.tables.task_facts import TaskFacts, are_tasks, find_task_facts
from lm_validity.tables.units import MOST_OF_RATINGS
from lm_validity.words import count

_HUNDRED = 100.0
_FEWEST_ANSWERS = 2  # of each model, in a table with a row for each answer
_FEWEST_MODELS = 2  # columns of answers beside a column of items
_MOSTLY = 0.75  # of a model's answers are 0 or 1; others are shares of a point
_OF_ITEMS_ONLY = ("item_id", "question_id", "example_id", "doc_id", "sample_id", "instance_id", "qid", "problem_id")
_NAMES_OF_THINGS = ("name", "run_name", "system", "method", "approach", "checkpoint")
_NUMBERED = r"\d+|(seed|run|trial|attempt|sample|repeat|epoch)_?\d*"
_IN_WORDS = {"pass": 1.0, "fail": 0.0, "yes": 1.0, "no": 0.0, "correct": 1.0, "incorrect": 0.0}
_FEWEST_ITEMS = 20  # columns of nothing but 0 and 1, from which they are items
FEWEST_METRICS = 2  # columns of scores in rows of items, which the reader names
FEWEST_TOLD = 3  # such columns, from which it is said that they are benchmarks
_SHARES = (*SHARES_OF_ITEMS, "accuracy", "pass1", "pass_1", "pass@1", "pass_at_1", "f1", "qem", "precision", "recall")
_NEARLY_ALL = 0.95  # of the answers to items in percent are 0 or 100
_ROUNDED = 0.01  # of a share beside its counts
_SAYS_RIGHT = {*RIGHT} - {"value", "score", "result"}  # of which more is better by their names
_COUNTS = ("correct", "count")  # right answers and all answers to an item
_ITEM = re.compile(r"(.*?)[-_/:. ]*(\d+)")  # an item's column: benchmark and number
# Roles in a table with a row for each answer; `steps` may be those of an agent's answer
OF_ITEMS = ("model", "benchmark", "metric", "checkpoint", "protocol", "num_fewshot", "run")


class _ItemPlace(NamedTuple):
    """What several items share, beside model and metric."""

    benchmark: str
    checkpoint: str | None
    protocol: str | None
    num_fewshot: int | None
    run: int | None

    def known(self) -> dict[str, object]:
        """What of it is known, as columns of claims and items."""
        return {name: value for name, value in self._asdict().items() if value is not None}


_Answers = dict[_ItemPlace, dict[str | None, dict[str, list[float]]]]  # by metric and document


def are_answers(table: Table, columns: list[str], options: ImportOptions) -> bool:
    """Whether many columns, or as many as the reader says, hold nothing but 0 and 1: answers to items rather than
    scores on benchmarks."""
    said = options.corrections.peek("column", table.path.name)
    fewest = {"items": 1, "benchmarks": len(columns) + 1}.get(said or "", _FEWEST_ITEMS)
    return len(columns) >= fewest and only_answers(table, columns)


def only_answers(table: Table, columns: list[str]) -> bool:
    """Whether columns hold nothing but 0 and 1."""
    return all(_answer(text) in (0, 1) for name in columns for text in table.texts(name) if not is_missing(text))


def of_answers(table: Table, columns: list[str], decided: str, options: ImportOptions) -> Decision:
    """That columns of 0 and 1 are read as `items` or as `benchmarks`."""
    other = {"items": "benchmarks", "benchmarks": "items"}[decided]
    options.corrections.one_of("column", table.path.name, ("items", "benchmarks"))
    text = f"{table.path.name}: {len(columns)} columns of 0 and 1 are read as {decided}"
    if options.corrections.peek("column", table.path.name) == other:
        beside = next((name for name in table.header if name not in columns), "")
        way = f"leave out what is no answer: column,{beside},left out." if beside else "remove the row."
        raise InputError(f"{table.path}: its columns are not read as {other}, since not all hold 0 and 1.", way)
    kind, source = (UNSURE, "values") if ("column", table.path.name) not in options.corrections else (READ, "reading")
    return Decision("column", table.path.name, decided, source, kind, len(columns), other, text)


def item_files(table: Table, keys: list[Claim], columns: list[str]) -> list[ScoreFile]:
    """A file of scores and items for each row. Items `name 12` or `name/12` are of the benchmark of that name, where
    there are several names; else all are of one that is called as the file."""
    parts = {name: part for name in columns if (part := _ITEM.fullmatch(name))}
    names = {part[1] for part in parts.values()}
    several = len(parts) == len(columns) and len(names) > 1 and "" not in names
    own_name = stem(table.path)
    items: dict[str, dict[str, str]] = defaultdict(dict)
    for name in columns:
        items[parts[name][1] if several else own_name][parts[name][2] if several else name] = name
    texts = {name: table.texts(name) for name in columns}
    files = []
    for row, key in enumerate(keys):
        answers = {
            benchmark: {doc: _answer(texts[name][row]) for doc, name in of_benchmark.items()}
            for benchmark, of_benchmark in items.items()
        }
        rows = list[Claim]()
        for benchmark, answers_of_items in answers.items():
            known_values = np.array([value for value in answers_of_items.values() if value is not None])
            if len(known_values):
                rows.append({"benchmark": benchmark, **mean_of_items(known_values)})
        date, own_items = date_in(table.path.stem), partial(_items, answers)
        files.append(ScoreFile(table.path, rows, key | {"unit": "share"}, date, items=own_items))
    return files


def _items(answers: Mapping[str, Mapping[str, float | None]]) -> Iterator[Item]:
    for benchmark, answers_of_items in answers.items():
        for document, value in answers_of_items.items():
            if value is not None:
                yield {"benchmark": benchmark, "doc_id": document, "correct": value}


class ItemColumns(NamedTuple):
    """The column of documents, and those that may hold the values of answers, the one that counts first."""

    item: str
    rights: list[str]


def a_row_an_answer(table: Table, sayings: Mapping[str, str], options: ImportOptions, notes: Notes) -> Table:
    """The table; of one with a row for each item and a column of 0 and 1 for each model, a row for each answer, without
    the columns that the reader leaves out.

    `sayings`: what the reader says of columns. A role or a score that the reader names, a column of other numbers, and
    names of tasks, metrics, seeds or right answers among those of the models speak against it.
    """
    kept = [name for name in table.header if sayings.get(name) != LEFT_OUT]
    item = _item_column(table, kept, sayings)
    if item is None or options.corrections.peek("column", table.path.name) is not None:
        return table
    models = [name for name in kept if name != item and _mostly_answers(table.texts(name))]
    texts = [name for name in kept if name not in (item, *models)]
    asked = sayings.get(SCORE_COLUMNS) == "model"
    if not asked and not (len(models) >= _FEWEST_MODELS and _are_of_items(table, item, texts, sayings)):
        return table
    if not models or not _may_be_models(models) or any(map(_holds_numbers, map(table.texts, texts))):
        return table
    kind, source = (READ, "reading") if asked else (UNSURE, "values")
    text = f"{table.path.name}: rows are read as items ({item}), {len(models)} columns of answers as models"
    notes.decisions.append(Decision("column", SCORE_COLUMNS, "model", source, kind, len(models), "benchmark", text))
    options.corrections.take("column", [item, *(name for name in table.header if name not in kept)])
    rows = [
        [table.texts(item)[row], *(table.texts(name)[row] for name in texts), model, table.texts(model)[row]]
        for model in models
        for row in range(len(table.lines))
    ]
    header = ["doc_id" if plain(item) not in ITEM else item, *texts, "model", "correct"]
    return Table(table.path, header, np.array(rows, dtype=object), table.lines * len(models))


def _item_column(table: Table, names: list[str], sayings: Mapping[str, str]) -> str | None:
    """The column of items of a table without a column of models: the reader's, else one of such a name."""
    by_word = {plain(name): name for name in reversed(names)}
    if {"model", *ROLES["model"]} & by_word.keys() or sayings.get(SCORE_COLUMNS, "model") != "model":
        return None
    if any(sayings.get(name) in (*ROLES, *SAYINGS, MODELS, WITH_STEP) for name in names):
        return None
    by_reader = next((name for name in names if sayings.get(name) == "item"), None)
    return by_reader or next((by_word[word] for word in (*ITEM, "task_id", "prompt", "input") if word in by_word), None)


def _are_of_items(table: Table, item: str, texts: list[str], sayings: Mapping[str, str]) -> bool:
    """Whether rows are items, each once or once in each benchmark: by the column's name, or where many rows have names
    that are no models' and no other column names things."""
    benchmarks = [name for name in texts if plain(name) in {"benchmark", *ROLES["benchmark"]} - {plain(item)}]
    documents = list(zip(*map(table.texts, [item, *benchmarks]), strict=True))
    if len(set(documents)) < len(documents):
        return False
    if sayings.get(item) == "item" or plain(item) in _OF_ITEMS_ONLY:
        return True
    named = any(plain(name) in _NAMES_OF_THINGS for name in texts)
    paths = sum(re.fullmatch(r"[^/]+/[A-Za-z].*", text) is not None for text in table.texts(item))
    return len(documents) >= _FEWEST_ITEMS and not named and 2 * paths < len(documents)


def _may_be_models(names: list[str]) -> bool:
    """False where a name is a metric's, a seed's or a right answer's, or most are tasks'."""
    words = {plain(name) for name in names}
    other = any(names_metric(name) or re.fullmatch(_NUMBERED, plain(name)) for name in names)
    return not (other or words & {*RIGHT, *RIGHT_ANSWERS} or are_tasks(names, []))


def _mostly_answers(texts: np.ndarray) -> bool:
    """Whether cells hold values from 0 to 1, nearly all of them 0 or 1."""
    values = [_answer(text) for text in texts if not is_missing(text)]
    known = [value for value in values if value is not None and 0 <= value <= 1]
    return (
        bool(values) and len(known) == len(values) and sum(value in (0, 1) for value in known) >= _MOSTLY * len(known)
    )


def _holds_numbers(texts: np.ndarray) -> bool:
    """Whether most cells are numbers."""
    return 2 * sum(plain_number(text) is not None for text in texts) > len(texts)


def is_of_items(table: Table, sayings: Mapping[str, str]) -> bool:
    """Whether a table has a column of items and one that says whether an answer is right."""
    names = {plain(name) for name in table.header} - {
        plain(name) for name, saying in sayings.items() if saying == LEFT_OUT
    }
    of_items = names & {*ITEM} or "item" in sayings.values()
    return bool(of_items and (names & {*RIGHT} or "score" in sayings.values()))


def a_row_a_metric(table: Table, sayings: Mapping[str, str], options: ImportOptions) -> Table:
    """The table; of one with a row for each item in which the reader calls several columns scores, a row for each of
    these, which are metrics."""
    scores = [name for name in table.header if sayings.get(name) == "score"]
    if len(scores) < FEWEST_METRICS or "item" not in sayings.values():
        return table
    options.corrections.take("column", scores)
    columns_left = [name for name in table.header if name not in scores]
    rows = [
        [*(table.texts(name)[row] for name in columns_left), score, table.texts(score)[row]]
        for score in scores
        for row in range(len(table.lines))
    ]
    return Table(
        table.path, [*columns_left, "metric", "value"], np.array(rows, dtype=object), table.lines * len(scores)
    )


def _benchmark_of(table: Table, keys: list[Claim]) -> str:
    """The name of a benchmark that only the path says: the file's without the model's, else the folder's."""
    name, models = stem(table.path), {str(key.get("model")) for key in keys}
    if len(models) == 1:
        model = re.escape(models.pop().rpartition("/")[2])
        name = re.sub(rf"(?<![A-Za-z\d]){model}(?![A-Za-z\d])", "", name).strip("-_. ")
    return name or as_written(table.path).parent.name


def item_rows(table: Table, roles: dict[str, str], given: Mapping[str, str]) -> ItemColumns | None:
    """The columns in a table with a row for each answer: each model has many documents, and the same ones, and values
    are from 0 to 1, or to 100.

    `given`: what the reader says of a column: `item` is that of documents, `score` comes first, `left out` not at all.
    """
    names = {plain(name): name for name in reversed(table.header) if given.get(name) != "left out"}
    free = [names[name] for name in ITEM if name in names and names[name] not in roles.values()]
    item = next((name for name in names.values() if given.get(name) == "item"), next(iter(free), None))
    said = [name for name in names.values() if given.get(name) == "score"]
    rights = [
        name for name in dict.fromkeys([*said, *(names[name] for name in RIGHT if name in names)]) if name != item
    ]
    if item is None or not rights or "model" not in roles:
        return None
    models, documents = table.texts(roles["model"]), table.texts(item)
    if len(set(documents)) <= 1 or len(table.lines) < _FEWEST_ANSWERS * len(set(models)):
        return None
    benchmarks = table.texts(roles["benchmark"]) if "benchmark" in roles else documents[:0]
    if item not in given and len(benchmarks) and len({*zip(benchmarks, documents, strict=True)}) == len({*benchmarks}):
        return None  # the identifier of a benchmark
    counts = set(_COUNTS) if set(_COUNTS) <= set(names) else set()
    rights = [name for name in rights if name == rights[0] or plain(name) not in counts]
    return ItemColumns(item, rights) if _are_values(table, rights[0]) else None


def _are_values(table: Table, right: str) -> bool:
    values = [_answer(text) for text in table.texts(right) if not is_missing(text)]
    return bool(values) and all(value is not None and 0 <= value <= _HUNDRED for value in values)


def _answer(text: str) -> float | None:
    word = text.strip().casefold()
    word_value = ANSWERS.get(word, _IN_WORDS.get(word))
    return plain_number(text) if word_value is None else word_value


def long_items(
    table: Table, keys: list[Claim], item: str, rights: list[str], options: ImportOptions, notes: Notes
) -> list[ScoreFile]:
    """A file of scores and items for each model, by checkpoint, protocol, metric, examples in the prompt, and run where
    there are runs; else several answers to a document are averaged. Where a row has the numbers of right and of all
    answers, these are runs of the item.

    `rights`: the column of values, and others that may hold some, which are said. Raises InputError for two different
    answers to a document in one run.
    """
    right, *others = rights
    others = [name for name in others if list(table.texts(name)) != list(table.texts(right))]
    notes.decisions += [_another(table, right, name) for name in others if _are_values(table, name)]
    counts, answer_values = _counts(table, right), [_answer(text) for text in table.texts(right)]
    defaults = {"benchmark": _benchmark_of(table, keys)}
    places = [_ItemPlace(*map((defaults | key).get, _ItemPlace._fields)) for key in keys]  # type: ignore[arg-type]
    graded: dict[tuple[str, str | None], list[float]] = defaultdict(list)
    for key, item_place, answer in zip(keys, places, answer_values, strict=True):
        if answer is not None:
            graded[item_place.benchmark, key.get("metric")].append(answer)
    shares = counts is not None or plain(right) in _SHARES
    units = {pair: _unit_of_items(*pair, values, options, notes, shares=shares) for pair, values in graded.items()}
    answers: dict[str, _Answers] = defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list))))
    several, only_first = 0, options.corrections.one_of("cell", item, ("first", "mean")) == "first"
    for row, (key, item_place, document, answer) in enumerate(
        zip(keys, places, table.texts(item), answer_values, strict=True)
    ):
        if answer is None:
            continue
        metric = key.get("metric")
        value = answer * units[item_place.benchmark, metric].factor
        of_run = answers[key["model"]][item_place][metric][document]
        if item_place.run is not None and of_run and of_run[0] != value:
            problem = (
                f"{table.where(row, right)}: another answer of {key['model']} to {document} in run {item_place.run}."
            )
            raise InputError(problem, "number the runs of a model, one answer to each document in each.")
        new = [1.0] * counts[row][0] + [0.0] * (counts[row][1] - counts[row][0]) if counts else [value]
        of_run += [] if only_first and of_run else new
        several += len(of_run) == 2 and not counts and item_place.run is None
    files = []
    for model, parts in answers.items():
        rows = [
            as_record(Claim, item_place.known())
            | {"metric": metric, "unit": units[item_place.benchmark, metric].name}
            | ({"higher_is_better": True} if metric is None and plain(right) in _SAYS_RIGHT else {})
            | mean_of_items(np.array([np.mean(runs_of_item) for runs_of_item in documents.values()]))
            for item_place, metrics in parts.items()
            for metric, documents in metrics.items()
        ]
        items = partial(_answers_by_run, dict(parts), _main_metrics(graded), counted=counts is not None)
        files.append(ScoreFile(table.path, rows, {"model": model}, date_in(table.path.stem), items=items))
    decided = f"{right} of each {item}"
    text = f"{table.path.name}: {len(table.lines)} rows are answers to items ({decided})"
    notes.decisions.append(Decision("column", item, "item", "values", AVERAGED, len(table.lines), "no item", text))
    if without := [row for row, answer in enumerate(answer_values) if answer is None]:
        first = f"{table.where(without[0], right)} ({table.texts(right)[without[0]] or 'empty'})"
        text = f"{count(len(without), 'answer')} without a value, so of fewer items, first {first}"
        where = f"{item} without a value"
        notes.decisions.append(Decision("cell", where, "left out", "values", LEFT_OUT, len(without), "", text))
    if several:
        text = f"{several} items with several answers, their mean"
        notes.decisions.append(Decision("cell", item, "mean", "structure", AVERAGED, several, "first", text))
    if counts:
        low, high = min(number for _, number in counts), max(number for _, number in counts)
        many = f"{low}" if low == high else f"{low} to {high}"
        notes.lines.append(f"Runs of each item, by its counts of right and of all answers: {many}.")
    return files


def _another(table: Table, right: str, name: str) -> Decision:
    """That another column may hold the values of answers."""
    text = f"{table.path.name}: {right!r} says whether an answer is right, {name!r} is left out"
    return Decision("column", name, "left out", "name", LEFT_OUT, len(table.lines), "score", text)


class _Unit(NamedTuple):
    """What makes answers to items shares, and their unit as claims have it; None: what `with_units` is to decide."""

    factor: float
    name: str | None


def _unit_of_items(
    benchmark: str, metric: str | None, values: list[float], options: ImportOptions, notes: Notes, *, shares: bool
) -> _Unit:
    """The unit of answers to items (n,).

    Above 1 they are percentages where nearly all are 0 or 100, or where they are `shares` by their name and beyond the
    scales of judges (to 5 or 10: an `Accuracy` of 4); else ratings, which stay as they are. What the reader says counts
    first.
    """
    if max(values) <= 1:
        return _Unit(1.0, "share")
    unit = options.said("unit", benchmark)
    by_reading = unit is not None
    if unit is None:
        ends = sum(value in (0, _HUNDRED) for value in values) >= _NEARLY_ALL * len(values)
        named = max(values) > MOST_OF_RATINGS and (shares or (metric or "").partition(",")[0] in _SHARES)
        unit = "percent" if ends or named else "points"
    source, name = "reading" if by_reading else "arithmetic", benchmark
    if unit == "percent":
        text = f"{name}: percent to share, {len(values)} answers"
        notes.decisions.append(Decision("unit", name, unit, source, CONVERTED, len(values), "points", text))
    elif unit == "points":
        text = f"{name}: {len(values)} answers from {min(values):g} to {max(values):g} are ratings, kept as they are"
        kind = READ if by_reading else UNSURE
        notes.decisions.append(Decision("unit", name, unit, source, kind, len(values), "percent", text))
    name_in_claims = {"percent": "share", "share": "share", "points": "points"}.get(unit)
    return _Unit(1 / _HUNDRED if unit == "percent" else 1.0, name_in_claims)


def _main_metrics(graded: Iterable[tuple[str, str | None]]) -> dict[str, str | None]:
    """The metric that is `correct` of the items of each benchmark that has several: the one that counts, else the
    first."""
    metrics: dict[str, list[str | None]] = defaultdict(list)
    for benchmark, metric in graded:
        metrics[benchmark].append(metric)
    return {
        benchmark: choose_metric(find_task_facts(benchmark) or TaskFacts(), list(filter(None, metric_names)))
        or metric_names[0]
        for benchmark, metric_names in metrics.items()
        if len(metric_names) > 1
    }


def _counts(table: Table, right: str) -> list[tuple[int, int]] | None:
    """How many answers of each row are right, and how many there are, where columns of both agree with its share."""
    names = {plain(name): name for name in reversed(table.header)}
    if not set(_COUNTS) <= set(names) or right == names["correct"]:
        return None
    pairs = [
        tuple(map(whole_number, pair)) for pair in zip(*(table.texts(names[name]) for name in _COUNTS), strict=True)
    ]
    known_values = [
        (number, number_of_all)
        for number, number_of_all in pairs
        if number is not None and number_of_all is not None and 0 <= number <= number_of_all > 0
    ]
    shares = [_answer(text) for text in table.texts(right)]
    if len(known_values) < len(pairs) or None in shares:
        return None
    agree = all(
        abs(number / number_of_all - (share or 0.0)) < _ROUNDED
        for (number, number_of_all), share in zip(known_values, shares, strict=True)
    )
    return known_values if agree else None


def _answers_by_run(parts: _Answers, main: Mapping[str, str | None], *, counted: bool) -> Iterator[Item]:
    """Items, of benchmarks in `main` with the values of all metrics; `correct` is that of the main one, null where it
    is not known. `counted`: the answers to an item are its runs, else their mean counts."""
    for item_place, metrics in parts.items():
        several = item_place.benchmark in main
        counts = main.get(item_place.benchmark, next(iter(metrics)))
        for document in dict.fromkeys(document for documents in metrics.values() for document in documents):
            by_run: dict[int | None, dict[str | None, float]] = defaultdict(dict)
            for metric, documents in metrics.items():
                answers = documents.get(document, [])
                runs = enumerate(answers) if counted else [(item_place.run, float(np.mean(answers)))] if answers else []
                for run, value in runs:
                    by_run[run][metric] = value
            for run, value_by_metric in by_run.items():
                named = [(metric, value) for metric, value in value_by_metric.items() if metric is not None]
                item: Item = {"run": run, "doc_id": document, "correct": value_by_metric.get(counts)}
                yield as_record(Item, item_place.known()) | item | {"metric_values": named if several else None}
