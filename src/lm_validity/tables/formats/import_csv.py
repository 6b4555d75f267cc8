"""A table of scores as CSV, TSV, Markdown or parquet: one score per row (long), or one column per benchmark, model or
metric (wide); JSON records.

A file without a column of models whose rows are steps of training is one run. A matrix of 0 and 1, and a row for each
answer, are items. What columns and values mean is decided in `tables/columns.py` and `tables/reading.py`.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_validity.errors import InputError
from lm_validity.files import Document, as_written
from lm_validity.tables.cell_text import (
    names_average,
    names_spread,
    parts,
    plain,
    read_cell,
)
from lm_validity.tables.claims import Claim
from lm_validity.tables.columns import (
    ITEM,
    MODELS,
    RIGHT,
    ROLES,
    SAYINGS,
    SCORE_COLUMNS,
    WITH_STEP,
    Columns,
    classify,
    fact_column,
    find_roles,
    is_setting,
    is_sheet,
    names_metric,
    roles_said,
    telling,
)
from lm_validity.tables.decisions import EVERY, LEFT_OUT, READ, UNSURE, Decision, in_reading, reading_row
from lm_validity.tables.formats import table_rows
from lm_validity.tables.formats.item_tables import (
    FEWEST_TOLD,
    OF_ITEMS,
    a_row_a_metric,
    a_row_an_answer,
    are_answers,
    is_of_items,
    item_files,
    item_rows,
    long_items,
    of_answers,
    only_answers,
)
from lm_validity.tables.formats.model_names import by_path, model_of_path, pattern_of
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in
from lm_validity.tables.formats.text_tables import (
    MARKDOWN,
    TASKS,
    Notes,
    Table,
    errors_beside,
    histories,
    named_columns,
    open_tables,
    stem,
    text_table,
    upright,
    with_points,
)
from lm_validity.tables.task_facts import are_tasks, find_task_facts
from lm_validity.words import listing

_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_MOST_COLUMNS = 10_000  # of scores: no table of benchmarks has more

_OURS = {"protocol", "prompt"}  # columns of our own tables, which are read as they are
_NAMED_FIRST = (
    "",
    "name",
    "system",
    "systems",
    "method",
    "methods",
    "approach",
    "checkpoints",
    "runs",
)  # columns of names, fmt: skip
# Roles of columns that may tell the rows of a model apart, and how far to the right a part of its name is looked for
_APART = frozenset(("benchmark", "iteration", "checkpoint", "tokens_b", "protocol", "prompt", "prompt_variant", "run",
                    "seed", "split", "num_fewshot", "metric"))  # fmt: skip
_MOST_NAMES = 10
_FEWEST_SCORES = 2  # columns of numbers in such a table
_SCORES = ("value", *ROLES["value"])
_NO_SCORE = 10_000  # beyond any score, also of Elo ratings
_GROUPS = frozenset((*ROLES["benchmark"], *ROLES["metric"], "suite", "subset", "subject", "category", "domain", "group",
                     "language", "lang"))  # fmt: skip
_ASKED = ("user_input", "prompt", "input", "query", "instruction")  # of items, beside ITEM
_FEW_LINES = 20  # by which the columns of a table that is not read are told
_DATA = ("dataset", "dataset_name")  # of a record with a task beside it, which is one of these kinds
_KINDS = frozenset(("answering", "captioning", "classification", "clustering", "completion", "generation", "inference",
                    "nli", "qa", "reading", "recognition", "reranking", "retrieval", "similarity", "summarization",
                    "translation"))  # fmt: skip
_OF_AVERAGES = (["average"], ["avg"], ["mean"], ["overall"])  # first words of columns beside scores
_PART = "model name"  # in a reading, a column that is a part of the models' names
_BENCHMARK_PART = "benchmark name"  # and one that is a part of the benchmarks'
_PARTS = ("subset", "subtask", "sub_task", "subject", "split_name", "category", "language", "lang", "locale", "domain",
          "config", "length", "difficulty", "level")  # fmt: skip
_COLUMN_ROWS = (*SAYINGS, *ROLES, WITH_STEP, _PART, _BENCHMARK_PART, "item", "no item")  # what it may say of a column
_NAMES = ("name", "run_name")  # the column of runs in a tracker's table
_BETWEEN = ("pred", "synthetic")  # folders between a model's and its files
_ROUNDS = ("epoch", "epochs", "round")  # names of columns that are runs where nothing else tells scores apart


class _Roles(NamedTuple):
    """A table, the column of each role, and what holds of all its rows."""

    table: Table
    roles: dict[str, str]
    own: Claim = Claim()


def read_table(path: Path, options: ImportOptions, model: str | None = None) -> list[ScoreFile]:
    """The claims of a table; `model`: the name of the model of one without a column of models.

    Values stay as they stand. Raises InputError, naming row and column, for a key of the wrong type and for a table
    whose columns are not understood.
    """
    if errors_beside(path, of_errors=False):
        return []  # standard errors, read with the scores that they belong to
    notes = Notes([], [])
    return _read_all(open_tables(path, options, notes), options, model, notes)


def _read_all(tables: list[Table], options: ImportOptions, model: str | None, notes: Notes) -> list[ScoreFile]:
    """The claims of tables, with all that is said of them."""
    tables = [histories(upright(with_points(table, options, notes)), notes) for table in tables]
    files, errors = list[ScoreFile](), list[InputError]()
    for table in tables:
        try:
            files += [replace(file, title=table.title) for file in _of_table(table, options, model, notes)]
        except InputError as error:
            errors.append(error)
            roles = find_roles(table.header, roles_said(table.said(options.corrections), table.header))
            if "value" in roles or classify(table.header, table.texts, roles, {}).scores:
                raise
            text = f"a table that is not read ({', '.join(table.header[:3])}): {error.problem.rstrip('.')}"
            notes.decisions.append(Decision("column", table.header[0], "left out", "structure", LEFT_OUT, 1, "", text))
    if errors and not files:
        raise errors[0]
    columns = tuple(name for table in tables for name in table.header)
    return [
        replace(file, notes=tuple(notes.lines), decisions=tuple(notes.decisions), columns=columns) for file in files
    ]


def _of_table(table: Table, options: ImportOptions, model: str | None, notes: Notes) -> list[ScoreFile]:
    path = table.path
    if (sheet := is_sheet(table.header)) is not None:
        hint = f"give it as --{sheet}." if sheet in ("models", "benchmarks") else "give a table with scores."
        raise InputError(f"{path}: a sheet of {sheet}, without scores.", hint)
    given = table.said(options.corrections)
    options.corrections.known("column", table.header, _COLUMN_ROWS)
    table = a_row_a_metric(a_row_an_answer(table, given, options, notes), given, options)
    notes.decisions += _said(table, options)
    roles = find_roles(
        table.header, roles_said(given, table.header), [name for name, said in given.items() if said in SAYINGS]
    )
    if model is not None and "model" not in roles and is_of_items(table, given):
        names = np.full((len(table.lines), 1), model, dtype=object)
        table = replace(table, header=[*table.header, "model"], cells=np.hstack([table.cells, names]))
        roles = roles | {"model": "model"}
    roles = _with_finer_benchmarks(table, roles, given, notes)
    table = _with_parts(table, roles, given, options, notes)
    table, roles, own = _with_runs(table, roles, given, options, notes)
    answers = are_answers(table, [name for name in table.header if name not in roles.values()], options)
    if len(table.header) > _MOST_COLUMNS and not (answers or given.get(EVERY) == "left out"):
        problem = f"{path}: {len(table.header)} columns, too many for a table of benchmarks."
        hint = f"{in_reading('column', EVERY, 'left out')}, and a row for each column of scores: column,NAME,score."
        raise InputError(problem, hint)
    long = None if answers else item_rows(table, roles, given)
    if long and long.item in given:
        options.corrections.take("column", [long.item])
    if long and given.get(long.item) != "no item":
        keys = table_rows.keys(table, {role: name for role, name in roles.items() if role in OF_ITEMS})
        return long_items(table, keys, *long, options, notes)
    of_models = given.get(SCORE_COLUMNS) == "model"
    if not answers and not of_models and model is None:
        table, roles, own = _with_whole_names(table, roles, own, given, options, notes)
    if "model" not in roles and not of_models:
        table, roles, own = _models_of(table, roles, options, model, notes, answers=answers)
    return _read_roles(table, options, roles, own, given, notes, answers=answers)


def _with_finer_benchmarks(
    table: Table, roles: dict[str, str], by_reader: Mapping[str, str], notes: Notes
) -> dict[str, str]:
    """The roles; the column of benchmarks is another of such a name (`dataset` beside `task`) where only this tells the
    rows of a model apart: each of its texts has one of the first column."""
    first = roles.get("benchmark")
    if first is None or first in by_reader or "model" not in roles:
        return roles
    models, coarse = table.texts(roles["model"]), table.texts(first)
    apart = len({*zip(models, coarse, strict=True)})
    for name in table.header:
        if plain(name) not in ROLES["benchmark"] or name in (*roles.values(), *by_reader):
            continue
        fine = table.texts(name)
        pairs = {*zip(fine, coarse, strict=True)}
        finer = len(pairs) == len({*fine}) > len({*coarse}) and len({*zip(models, fine, strict=True)}) > apart
        is_kind = len(fine) == 1 and plain(name) in _DATA and {*parts(coarse[0])[-1:]} <= _KINDS
        if all(fine) and (finer or is_kind):
            reason = "a text of that has several of this" if finer else "a task is the kind, data are one of it"
            text = f"{name!r} is read as the column of benchmarks, not {first!r}: {reason}"
            notes.decisions.append(Decision("column", name, "benchmark", "values", UNSURE, len({*fine}), first, text))
            return roles | {"benchmark": name}
    return roles


def _with_parts(
    table: Table, roles: Mapping[str, str], by_reader: Mapping[str, str], options: ImportOptions, notes: Notes
) -> Table:
    """The table, in which a column that is a part of the benchmarks' names stands behind these (`arc/danish`): the
    reader's, else one of such a name that alone tells the rows of a model apart. Means of parts are left out."""
    columns_given = [name for name in table.header if by_reader.get(name) == _BENCHMARK_PART]
    if "benchmark" not in roles or not (columns_given or "model" in roles):
        return table
    keys = [table.texts(name) for role, name in roles.items() if role not in ("value", "stderr", "n_items")]
    free = [name for name in table.header if plain(name) in _PARTS and name not in (*roles.values(), *by_reader)]
    free = [name for name in free if not any(text and read_cell(text) for text in table.texts(name))]
    n_keys, n_rows = len({*zip(*keys, strict=True)}), len(table.lines)
    if "value" in roles and len({*zip(*keys, table.texts(roles["value"]), strict=True)}) == n_keys:
        free = []  # one score for all of its parts
    telling_apart = [name for name in free if len({*zip(*keys, table.texts(name), strict=True)}) == n_rows > n_keys]
    for name in columns_given or telling_apart[:1]:
        index, texts = table.places[roles["benchmark"]], table.texts(name)
        cells = table.cells.copy()
        cells[:, index] = ["/".join(filter(None, pair)) for pair in zip(cells[:, index], texts, strict=True)]
        kind, source = (READ, "reading") if columns_given else (UNSURE, "values")
        text = f"{name!r} is read as a part of the benchmarks' names: only it tells rows apart"
        notes.decisions.append(Decision("column", name, _BENCHMARK_PART, source, kind, len({*texts}), LEFT_OUT, text))
        options.corrections.take("column", [name])
        means = {cells[row, index] for row in range(n_rows) if names_average(texts[row]) and cells[row, index]}
        means = {mean for mean in means if options.corrections.get(("average", mean)) != "benchmark"}
        for mean in sorted(means):
            text = f"{mean!r} is an average"
            notes.decisions.append(Decision("average", mean, LEFT_OUT, "name", LEFT_OUT, 1, "benchmark", text))
        rows_left = [row for row in range(n_rows) if cells[row, index] not in means]
        header = [other_name for other_name in table.header if other_name != name]
        cells = cells[rows_left][:, [table.places[other_name] for other_name in header]]
        table = replace(table, header=header, cells=cells, lines=[table.lines[row] for row in rows_left])
        n_rows = len(table.lines)
    return table


def _said(table: Table, options: ImportOptions) -> list[Decision]:
    """What the reader says of the table's columns."""
    options.corrections.take("column", [SCORE_COLUMNS])
    return [
        Decision(what, where, decided, "reading", READ, number)
        for (what, where), decided in options.corrections.items()
        if what == "column" and where != EVERY and decided in (*ROLES, *SAYINGS, MODELS)
        if (number := len(table.named(where)))
    ]


def _models_of(
    table: Table,
    roles: dict[str, str],
    options: ImportOptions,
    model: str | None,
    notes: Notes,
    *,
    answers: bool,
) -> _Roles:
    """Table, roles and the model of all rows, of a table without a column of models: a column of texts that are all
    different is that of the models; steps of training, and metrics of benchmarks, are of one model."""
    column = telling(table.header, table.texts)
    runs = column is not None and plain(column) in _NAMES
    steps_of_one = "iteration" in roles and ("benchmark" not in roles or "value" in roles)
    if model is not None or (steps_of_one and not runs):
        if model is None:
            notes.decisions.append(by_path(table.path, stem(table.path))._replace(kind=READ))
        return _Roles(table, roles, {"model": model or stem(table.path)})
    if ("column", SCORE_COLUMNS) not in options.corrections and _of_one_model(table, roles):
        return _by_path(table, roles, notes)
    if column is not None and column == roles.get("metric") and not {"benchmark", "value"} & set(roles):
        text = f"{column!r} is read as the column of benchmarks, the others as models"
        notes.decisions.append(Decision("column", column, "benchmark", "values", UNSURE, 1, "model", text))
        return _Roles(table, {role: name for role, name in roles.items() if role != "metric"} | {"benchmark": column})
    if answers or column is None or "benchmark" in roles or options.corrections.peek("column", column) == "score":
        return _Roles(table, roles)
    if are_tasks(table.texts(column), [name for name in table.header if name != column]):
        text = f"{column!r} is read as the column of benchmarks: its texts are names of tasks"
        notes.decisions.append(Decision("column", column, "benchmark", "values", UNSURE, 1, "model", text))
        return _Roles(table, roles | {"benchmark": column})
    text = f"{column!r} is read as the column of models: its texts are all different"
    notes.decisions.append(Decision("column", column, "model", "values", UNSURE, 1, "benchmark", text))
    if runs:
        roles = {role: name for role, name in roles.items() if not name.startswith("_")}  # a tracker's own steps
    return _Roles(table, roles | {"model": column})


def _with_whole_names(
    table: Table, roles: dict[str, str], common: Claim, sayings: Mapping[str, str], options: ImportOptions, notes: Notes
) -> _Roles:
    """The table with whole names of models, where a part of them stands in a column of texts of its own: one column
    does not tell the rows apart, and two do. Only where no column has a role that may tell them apart, and not of
    settings (`precision`); or the part is the column that the reader says."""
    named = roles.get("model")
    part = next((name for name, saying in sayings.items() if saying == _PART), None)
    numbers = [
        name for name in table.header if name not in roles.values() and table_rows.holds_scores(table.texts(name))
    ]
    long = "value" in roles or len(numbers) < _FEWEST_SCORES  # the other column is rather that of benchmarks
    if part is None and (
        long or _APART & set(roles) or (named is None and telling(table.header, table.texts) is not None)
    ):
        return _Roles(table, roles, common)
    free = [name for name in table.header[:_MOST_NAMES] if name not in roles.values() and name not in sayings]
    free = [name for name in free if not is_setting(name) and fact_column(name) is None and plain(name) not in _GROUPS]
    free = [name for name in free if all(text and read_cell(text) is None for text in table.texts(name))]
    pairs = combinations(free, 2) if named is None else ((named, name) for name in free)
    for first, second in pairs if part is None else [(named or next(iter(free), part), part)]:
        names = [" ".join(texts) for texts in zip(table.texts(first), table.texts(second), strict=True)]
        if (part is None and not len(set(table.texts(first))) < len(set(names)) == len(names)) or first == second:
            continue
        options.corrections.take("column", [second] if part else [])
        cells = table.cells.copy()
        cells[:, table.places[first]] = names
        text = f"{second!r} is read as a part of the models' names, behind {first!r}: only both tell rows apart"
        kind, source = (READ, "reading") if part else (UNSURE, "values")
        notes.decisions.append(Decision("column", second, _PART, source, kind, 1, LEFT_OUT, text))
        header = [name for name in table.header if name != second]
        cells = cells[:, [table.places[name] for name in header]]
        return _Roles(replace(table, header=header, cells=cells), roles | {"model": first}, common)
    return _Roles(table, roles, common)


def _of_one_model(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether a table without a column of models has rows of benchmarks and columns of metrics."""
    further_columns = [name for name in table.header if name not in roles.values()]
    return "benchmark" in roles and ("value" in roles or any(map(names_metric, further_columns)))


def _by_path(table: Table, roles: dict[str, str], notes: Notes) -> _Roles:
    """The table with the model that its path names; numbers of folders between them, such as lengths of a text, are
    put behind the benchmarks' names."""
    folder, numbers = as_written(table.path), list[str]()
    while folder.parent.name.isdigit() or folder.parent.name in _BETWEEN:
        folder = folder.parent
        numbers += [folder.name] if folder.name.isdigit() else []
    own = model_of_path(folder.with_name(table.path.name), None)
    notes.decisions.append(by_path(table.path, own["model"]))
    cells = table.cells.copy()
    place = table.places[roles["benchmark"]]
    cells[:, place] = ["/".join([text, *numbers]) for text in cells[:, place]]
    return _Roles(replace(table, cells=cells), roles, own)


def _with_runs(
    table: Table, roles: dict[str, str], given: Mapping[str, str], options: ImportOptions, notes: Notes
) -> _Roles:
    """The table and roles with a column of runs: one of that role, or a seed of direct scores, or a round (`epoch`)
    where nothing else tells scores apart. Runs without numbers are numbered in order of their names.

    Of points of training and of a table without models or with one run of each model there are no such runs.
    """
    roles = dict(roles)
    trained = {"protocol", "iteration", "checkpoint", "tokens_b"} & set(roles) or options.protocol or options.protocols
    named = next((name for name in table.header if plain(name) in _ROUNDS and name not in roles.values()), None)
    column, role = roles.get("run"), "run"
    if column is None and not trained:
        column, role = (roles["seed"], "seed") if "seed" in roles else (named, "round")
    if column is None or given.get(column) == "seed":
        return _Roles(table, roles)
    texts, models = table.texts(column), table.texts(roles["model"]) if "model" in roles else np.array([])
    several = len(models) and len(set(zip(models, texts, strict=True))) > len(set(models))
    if several or given.get(column) == "run":
        if role == "run" and any(text and not re.fullmatch(r"\d{1,15}(\.0*)?", text) for text in texts):
            order = {text: str(place) for place, text in enumerate(sorted(set(texts) - {""}))}
            cells = table.cells.copy()
            cells[:, table.places[column]] = [order.get(text, "") for text in texts]
            table = replace(table, cells=cells)
        if role != "run":
            roles.pop("seed", None)
            text = f"{column!r} is read as runs of sampled answers"
            notes.decisions.append(Decision("column", column, "run", "name", UNSURE, 1, "seed", text))
        return _Roles(table, roles | {"run": column})
    if role == "run":
        roles.pop("run")
    return _Roles(table, roles)


def _read_roles(
    table: Table,
    options: ImportOptions,
    roles: dict[str, str],
    common: Claim,
    sayings: dict[str, str],
    notes: Notes,
    *,
    answers: bool,
) -> list[ScoreFile]:
    path = table.path
    columns = classify(table.header, table.texts, roles, sayings) if not answers else Columns()
    spread = _spread(roles, sayings.get(SCORE_COLUMNS), columns, with_models=bool(common or "model" in roles))
    if spread is not None:
        roles = {role: column for role, column in roles.items() if role not in (spread, "value")}
        if not answers:
            columns = classify(table.header, table.texts, roles, sayings, facts=spread != "model")
    scored = columns.scores if spread is not None else [roles["value"]]
    _check_metrics(table, spread, scored, sayings)
    table = table if answers else table_rows.without_nameless(table, roles, scored, notes)
    keys = [common | fields for fields in table_rows.keys(table, roles)]
    if answers and not {"model", "benchmark"} & set(keys[0]):
        keys = [fields | {"model": f"{stem(path)}-{row}"} for row, fields in enumerate(keys, 1)]
        name = keys[0]["model"]
        text = f"{path.name} names no models: they are called as the file, with the number of their row"
        notes.decisions.append(Decision("model", name, name, "structure", UNSURE, len(keys), "", text))
    key = "benchmark" if spread == "model" else "model"
    if not any(key in fields for fields in keys):
        table_rows.check_said(table, sayings, key, MODELS if key == "model" else key)
        of_texts = (
            name for name in table.header if all(text and read_cell(text) is None for text in table.texts(name))
        )
        way = in_reading("column", telling(table.header, table.texts) or next(of_texts, "COLUMN"), key)
        raise InputError(
            f"{path}: no column of {key}s among {', '.join(table.header[:8])}.",
            f"say which: {way}; for a table of models in columns: column,{SCORE_COLUMNS},model.",
        )
    if answers and spread == "benchmark":
        own_columns = [name for name in table.header if name not in roles.values()]
        notes.decisions.append(of_answers(table, own_columns, "items", options))
        return item_files(table, keys, own_columns)
    if spread != "model":
        table_rows.split_steps(keys, roles.get("model", "model"), sayings, notes)
    scores = [roles["value"]] if spread is None else columns.scores
    facts = {name: fact for name, fact in columns.facts.items() if name not in scores}
    facts_of_models = table_rows.facts(table, keys, facts, notes) if spread != "model" else {}
    if not scores:
        table_rows.check_said(table, sayings, "score")
        raise InputError(f"{path}: no column of scores.", f"name each: {in_reading('column', 'COLUMN', 'score')}.")
    if spread == "benchmark" and len(scores) >= FEWEST_TOLD and only_answers(table, scores):
        notes.decisions.append(of_answers(table, scores, "benchmarks", options))
    errors = table_rows.errors(table, roles, columns, scores, spread, options, notes)
    notes.decisions += columns.decisions if spread is not None else _further_scores(columns, scores[0], len(keys))
    variants = columns.variants if spread == "benchmark" else {}
    claims = table_rows.claims(table, table_rows.cells(table, scores, errors, spread, variants), keys, options, notes)
    rows = table_rows.once(table, claims, options, notes.lines)
    if not rows:
        raise table_rows.no_number(table, scores)
    return [ScoreFile(path, rows, date=date_in(path.stem), facts=facts_of_models)]


def _check_metrics(table: Table, spread: str | None, columns: Sequence[str], sayings: Mapping[str, str]) -> None:
    """Raises InputError where columns are to be metrics, none is one by its name, some have numbers beyond any score,
    and the reader does not say so: a list of models and their tasks has counts and sizes."""
    is_said = SCORE_COLUMNS in sayings or "score" in sayings.values()
    if spread != "metric" or is_said or any(names_metric(name) or plain(name) in _SCORES for name in columns):
        return
    numbers = (read_cell(text) for name in columns for text in table.texts(name))
    if any(number is not None and number.value > _NO_SCORE for number in numbers):
        problem = f"{table.path}: no column of numbers is a metric by its name ({listing(columns, 3)})."
        raise InputError(problem, f"name each column of scores: {in_reading('column', 'COLUMN', 'score')}.")


def _further_scores(columns: Columns, value: str, rows: int) -> list[Decision]:
    """That columns which may hold scores are not read, in a table in whose rows one column is the score."""
    return [
        Decision(
            "column", name, "left out", "structure", LEFT_OUT, rows, "score", f"{name!r}: a row's score is {value!r}"
        )
        for name in columns.scores
        if name != value and names_spread(name) is None
    ]


def _spread(roles: dict[str, str], correction: str | None, columns: Columns, *, with_models: bool) -> str | None:
    """What the names of the columns of scores are, `model`, `benchmark` or `metric`; None where each row is one score.
    With columns of models and benchmarks and none of values, the columns of numbers are metrics. `correction`: what the
    reader says of it."""
    if with_models and {"benchmark", "value"} <= set(roles):
        return None
    if correction in ("model", "benchmark", "metric"):
        return correction
    if "benchmark" in roles and not with_models:
        return "model"
    return "metric" if with_models and "benchmark" in roles and columns.scores else "benchmark"


# ---- records -----------------------------------------------------------------------------------------------------


def read_records(
    path: Path, records: list[Document], options: ImportOptions, model: str | None, decisions: Iterable[Decision] = ()
) -> list[ScoreFile]:
    """The claims of records, as those of a table with a column for each key, with further `decisions` about them."""
    header = list(dict.fromkeys(key for record in records for key in record))
    table = text_table(path, header, [[record.get(key) for key in header] for record in records])
    files = read_text_table(table, options, model)
    return [replace(file, decisions=(*file.decisions, *decisions)) for file in files]


def read_text_table(table: Table, options: ImportOptions, model: str | None) -> list[ScoreFile]:
    """The claims of one table, with all that is said of it."""
    notes = Notes([], [])
    return _read_all([named_columns(table, options, notes)], options, model, notes)


# ---- the format --------------------------------------------------------------------------------------------------


def _recognises(opened: Opened) -> bool:
    """A file that was named itself, or one in a folder whose header has a column of models or of steps, or whose first
    column holds names by its header and numbers stand beside it."""
    if opened.named or not opened.path.name.endswith(_SUFFIXES):
        return opened.named and opened.path.name.endswith((*_SUFFIXES, *MARKDOWN))
    names, below = _first_lines(opened)
    found = {plain(name) for name in names}
    if not below and (found >= _OURS or "validation_value" in found):
        return False
    turned = names == [*map(str, range(len(names)))] and plain("".join(below[:1])) in TASKS
    of_one = bool(found & {"benchmark", *ROLES["benchmark"]}) and any(map(names_metric, names))
    of_one |= opened.model is not None and bool(found & {*ITEM}) and bool(found & {*RIGHT})  # answers of a model
    first, *others = names or [""]
    of_tasks = first == "" and are_tasks(below[:1], others)  # in rows
    of_names = of_tasks or (plain(first) in _NAMED_FIRST and below[:1] != [""])
    of_names &= sum(read_cell(cell) is not None for cell in below[1:]) > 1
    beside_scores = any(find_task_facts(plain(name)) or parts(name)[:1] in _OF_AVERAGES for name in others)
    of_names &= of_tasks or plain(first) not in ("", "name") or beside_scores
    return bool(found & {"model", *ROLES["model"], "iteration", *ROLES["iteration"]}) or of_one or turned or of_names


def _is_value(text: str) -> bool:
    return text.casefold() in ("true", "false") or read_cell(text) is not None


def way_of_answers(opened: Opened) -> str | None:
    """How a table with a row for each answer of a model that only the path names is read; None for what is none."""
    lines = opened.head.decode("utf-8", errors="replace").lstrip("\ufeff").split("\n")[:-1][:_FEW_LINES]
    names, *rows = [*csv.reader(lines, delimiter="\t" if opened.path.suffix == ".tsv" else ",")] or [[]]
    cells = {name: [row[index] for row in rows if len(row) == len(names)] for index, name in enumerate(names) if name}
    item = next((name for name in cells if plain(name) in (*ITEM, *_ASKED)), None)
    numbers = [name for name, texts in cells.items() if name != item and texts and all(map(_is_value, texts))]
    right = [name for name in numbers if plain(name).endswith(tuple(f"_{word}" for word in RIGHT))]
    right = [f"*{re.sub('.*[^A-Za-z]', '_', name)}" for name in right[:1]] or numbers
    if item is None or (opened.named and opened.model is None):
        return None
    path = "" if opened.model else f"--path '{pattern_of(opened.path)}' (or '{{model}}/{{task}}.csv') "
    if not right:
        return f"answers of one model: with a column correct of 0 and 1, {path}".rstrip()
    further = "".join(f" and {reading_row('column', name, 'score')}" for name in right)
    return f"answers of one model: {path}--format csv {in_reading('column', item, 'item')}{further}"


def _first_lines(opened: Opened) -> tuple[list[str], list[str]]:
    """The names of a file's columns and the cells below them; of parquet only the names, none of one with lists."""
    if opened.path.suffix == ".parquet":
        try:
            columns = pq.read_schema(opened.path)
        except (OSError, ValueError):
            return [], []
        return ([] if any(map(pa.types.is_nested, columns.types)) else columns.names), []
    lines = (opened.head + b"\n").split(b"\n", 2)[:2]
    texts = [re.split(r"[,;\t]", line.decode("utf-8", errors="replace").lstrip("\ufeff")) for line in lines]
    names, below = ([cell.strip(' "\r') for cell in cells] for cells in texts)
    return names, below


CSV = Format("csv", _SUFFIXES, _recognises, lambda opened, options: read_table(opened.path, options, opened.model))
