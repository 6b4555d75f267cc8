"""The rows of a table and their cells as claims: what each row says of its score, what the table says of its models,
scores with their errors, and each score once."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError
from lm_validity.tables.cell_text import (
    FAILED,
    SPREAD_ENDS,
    is_missing,
    plain,
    plain_text,
    read_cell,
)
from lm_validity.tables.claims import Claim, Facts, as_record
from lm_validity.tables.columns import (
    MODELS,
    SCORE_COLUMNS,
    WITH_STEP,
    Columns,
    by_metric,
    check_column,
    fact_column,
    in_billions,
    is_setting,
    telling,
)
from lm_validity.tables.decisions import EVERY, LEFT_OUT, READ, UNSURE, Corrections, Decision, in_reading
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.formats.text_tables import (
    Notes,
    Table,
    errors_beside,
    open_tables,
    plain_number,
    steps_of_checkpoints,
    whole_number,
)
from lm_validity.tables.reading import KEY
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, listing

_WORDINGS = ("template", "prompt_name", "prompt_id", "instruction", "format")  # of a question
_BOOLEANS = dict.fromkeys(("1", "1.0", "true", "yes"), True) | dict.fromkeys(("0", "0.0", "false", "no"), False)
_PROMPTS = ("plain", "chat")  # other prompts are wordings
# The end of a model's name that is a point of its training
_STEP = re.compile(r"(.+?)[-_/@: ]+(?:global_?)?(?:steps?|iter(?:ation)?s?|checkpoint|ckpt)[-_]?(\d{1,15})", re.I)
_FEWEST_STEPS = 100  # of the last of several such names
_NUMBER = re.compile(r"(.+?)[-_/@: ]*(?<!\d)(\d{1,15})")
_LAST = re.compile(r"(.+?)[-_/@: ]+(?:main|final|last)", re.I)


class _Cell(NamedTuple):
    """A score as it stands: its row, its column, what the column says of it, and texts of errors by kind."""

    row: int
    column: str
    spread: Claim
    text: str
    errors: dict[str, str]


_Errors = Mapping[str, str | np.ndarray]  # by kind (`stderr`, `sd`, ..) the texts (rows,), or the column that has them


# ---- what each row says of its scores, and of its model ------------------------------------------------------------


def facts(table: Table, keys: list[Claim], described: dict[str, str], notes: Notes) -> dict[str, Facts]:
    """What the table says of each model. Tokens that differ within a model are those of its checkpoints, and go to
    `keys`; other columns that differ within one are left out."""
    facts_found: dict[str, Facts] = defaultdict(dict)
    for name in described:
        fact = described[name]
        values: list[str | float | None] = [
            None if is_missing(text) else text if (number := read_cell(text)) is None else number.value
            for text in table.texts(name)
        ]
        if fact in ("tokens_b", "parameters_b"):
            values = in_billions(plain(name), values)
        by_model: dict[str, set[str | float]] = defaultdict(set)
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                by_model[key["model"]].add(value)
        decided, kind = fact, READ
        if all(len(model_values) == 1 for model_values in by_model.values()):
            for model, model_values in by_model.items():
                facts_found[model].setdefault(fact, *model_values)
        elif fact == "tokens_b" and not any(isinstance(value, str) for value in values):
            for key, value in zip(keys, values, strict=True):
                key.setdefault("tokens_b", None if isinstance(value, str) else value)
        else:
            decided, kind = "left out", LEFT_OUT
        text = f"{name!r} has not one value for each model"
        notes.decisions.append(Decision("column", name, decided, "name", kind, len(by_model), "score", text))
    return dict(facts_found)


def split_steps(keys: list[Claim], column: str, sayings: Mapping[str, str], notes: Notes) -> None:
    """Points of training out of models' names, where one name comes with several steps (`name-step_100`), not with
    rounds of tuning (`name-iter2`). Where the reader says so, any number at the end is a step; or none is."""
    correction = None if sayings.get(column) == MODELS else sayings.get(column)
    ends: list[re.Match[str] | None] = []
    for key in keys:
        is_number = _NUMBER.fullmatch(key["model"]) if correction == WITH_STEP else None
        has_step = {"checkpoint", "iteration"} & set(key) or correction == "model"
        ends.append(None if has_step else _STEP.fullmatch(key["model"]) or is_number)
    steps: dict[str, set[int]] = defaultdict(set)
    for end in filter(None, ends):
        steps[end[1]].add(int(end[2]))
    runs = {
        name for name, numbers in steps.items()
        if correction == WITH_STEP or (len(numbers) > 1 and max(numbers) >= _FEWEST_STEPS)
    }  # fmt: skip
    for key, ending in zip(keys, ends, strict=True):
        if ending and ending[1] in runs:
            key |= {"model": ending[1], "iteration": int(ending[2]), "checkpoint": f"step{int(ending[2])}"}
        elif (match := _LAST.fullmatch(key["model"])) and match[1] in runs:
            key["model"] = match[1]
    if runs:
        text = f"models' names end in steps of training, read as {count(len(runs), 'model')}"
        kind, source = (READ, "reading") if correction else (UNSURE, "name")
        notes.decisions.append(Decision("column", column, WITH_STEP, source, kind, len(runs), "model", text))


def keys(table: Table, roles: dict[str, str]) -> list[Claim]:
    """Of each row what the columns with a role say beside the score, in the types of the scores table."""
    readers: dict[str, Callable[[str], object]] = {
        **dict.fromkeys(("iteration", "seed", "run"), whole_number),
        **{name: partial(whole_number, least=least) for name, least in (("num_fewshot", 0), ("n_items", 1))},
        "tokens_b": plain_number,
        "higher_is_better": lambda text: _BOOLEANS.get(text.casefold()),
        "metric": lambda text: None if is_missing(text) else metric_key(text),
        "protocol": lambda text: text if text in PROTOCOLS else None,
        **dict.fromkeys(("model", "benchmark"), plain_text),
    }
    rows: list[dict[str, object]] = [{} for _ in table.lines]
    for role, column in roles.items():
        if role in ("value", "stderr"):
            continue
        reader = readers.get(role, str)
        for row, text in enumerate(_filled(table.texts(column), role, roles)):
            value = None if text == "" else reader(text)
            if value is None and (text != "" or role in ("model", "benchmark")) and role != "metric":
                problem = "empty" if text == "" else f"{text!r} is not a {role}"
                hint = (
                    "fill it in, or remove the row."
                    if text == ""
                    else "correct it, or leave it empty where it is unknown."
                )
                raise InputError(f"{table.where(row, role)}: {problem}.", hint)
            if value is not None:
                rows[row][role] = value
    keys_found = [as_record(Claim, columns) for columns in rows]
    _place(keys_found)
    return by_metric(keys_found)


def _filled(texts: np.ndarray, role: str, roles: dict[str, str]) -> np.ndarray:
    """The texts of a column with a role: of merged cells, whose text stands in the first, where a column of prompts
    tells their rows apart; a sign that there is no number of examples is none."""
    if role == "num_fewshot":
        return np.array(["" if is_missing(text) else text for text in texts], dtype=object)
    merged = role in ("model", "benchmark") and "prompt" in roles and texts[0] and not all(texts)
    return pd.Series(texts).replace("", np.nan).ffill().to_numpy() if merged else texts


def without_nameless(table: Table, roles: dict[str, str], scores: Sequence[str], notes: Notes) -> Table:
    """The table without rows that name no model, or no benchmark, where it loses no score or fewer than half of the
    rows, and none that may have the name of the row above it, which a merged cell shows once."""
    for role in ("model", "benchmark"):
        if role not in roles:
            continue
        texts = _filled(table.texts(roles[role]), role, roles)
        empty = [row for row, text in enumerate(texts) if not text]
        scored = [row for row in empty if any(not is_missing(table.texts(name)[row]) for name in scores)]
        if not empty or 2 * len(scored) >= len(texts) or _may_be_merged(table, roles, role, scored):
            continue
        rows = listing([str(table.lines[row]) for row in empty], 3)
        text = f"without a {role}, {count(len(empty), 'row')} ({rows}) of {table.path.name}"
        where = f"{table.path.name}, {roles[role]}, empty"
        notes.decisions.append(Decision("cell", where, "left out", "values", LEFT_OUT, len(empty), "", text))
        rows_kept = [row for row in range(len(texts)) if row not in {*empty}]
        table = replace(table, cells=table.cells[rows_kept], lines=[table.lines[row] for row in rows_kept])
    return table


def _may_be_merged(table: Table, roles: dict[str, str], role: str, empty: Sequence[int]) -> bool:
    """Whether rows without a name may have that of the row above, in a cell merged over both: a column that is no score
    tells them from the other rows of that name."""
    names = pd.Series(table.texts(roles[role])).replace("", np.nan).ffill().fillna("").to_numpy()
    beside = [name for role_name, name in roles.items() if role_name not in (role, "value", "stderr")]
    free = [name for name in table.header if name not in roles.values()]
    beside += [name for name in free if fact_column(name) is not None or not holds_scores(table.texts(name))]
    keys = [*zip(names, *(table.texts(name) for name in beside), strict=True)]
    times = Counter(keys)
    return any(any(keys[row][1:]) and times[keys[row]] == 1 for row in empty)


def _place(keys: list[Claim]) -> None:
    """Give each key the wording of its prompt, and its checkpoint by steps or tokens."""
    for key in keys:
        if key.get("prompt", "plain") not in _PROMPTS:
            key["prompt_variant"] = key.pop("prompt")
    points = Counter(model for model, _ in {(key.get("model"), key.get("tokens_b")) for key in keys})
    steps = steps_of_checkpoints(keys)
    for key in keys:
        key |= steps.get((key.get("model"), key.get("checkpoint")), {})
        if "iteration" in key:
            key.setdefault("checkpoint", f"step{key['iteration']}")
        elif "tokens_b" in key and points[key.get("model")] > 1:
            key.setdefault("checkpoint", f"tokens{key['tokens_b']:g}B")


def cells(
    table: Table,
    columns: list[str],
    errors: Mapping[str, _Errors],
    spread: str | None,
    variants: Mapping[str, Claim],
) -> Iterator[_Cell]:
    """Column by column; `errors`: by the column of scores."""
    for column in columns:
        name = column
        if errors.get(column) and spread == "benchmark":  # x_mean beside x_std is x
            name = re.sub(r"[-_ ](mean|avg)$", "", column, flags=re.IGNORECASE) or column
        fields = (
            Claim()
            if spread is None
            else as_record(Claim, {spread: metric_key(column) if spread == "metric" else name})
        )
        fields |= variants.get(column, Claim())
        error_texts = {
            kind: table.texts(texts) if isinstance(texts, str) else texts
            for kind, texts in errors.get(column, {}).items()
        }
        for row, text in enumerate(table.texts(column)):
            yield _Cell(row, column, fields, text, {kind: texts[row] for kind, texts in error_texts.items()})


def errors(
    table: Table,
    roles: dict[str, str],
    columns: Columns,
    scores: list[str],
    spread: str | None,
    options: ImportOptions,
    notes: Notes,
) -> Mapping[str, _Errors]:
    """The errors of each column of scores."""
    if spread is None:
        of_columns, value = _of_long(table, roles, columns), roles["value"]
        shared_columns = [name for name in table.header if name != value]
        return (
            of_columns
            if of_columns[value]
            else _beside_errors(table, None, options, notes, shared_columns) or of_columns
        )
    if "stderr" in roles and len(scores) == 1:
        columns.spreads.setdefault(scores[0], {}).setdefault("stderr", roles["stderr"])
    elif "stderr" in roles:
        columns.leave_out(roles["stderr"], "is a spread of no column", "name")
    return _beside_errors(table, spread, options, notes) or columns.spreads


def _of_long(table: Table, roles: dict[str, str], columns: Columns) -> Mapping[str, _Errors]:
    """The columns of errors of a long table: `stderr`, or one named as a kind of error is."""
    error_columns = dict(columns.spreads.get(roles["value"], {}))
    for name in table.header:
        kind = SPREAD_ENDS.get(plain(name))
        if kind not in (None, "n", "other") and name not in roles.values():
            error_columns.setdefault(str(kind), name)
    if "stderr" in roles:
        error_columns["stderr"] = roles["stderr"]
    return {roles["value"]: error_columns}


def _beside_errors(
    table: Table, spread: str | None, options: ImportOptions, notes: Notes, shared_columns: Collection[str] = ()
) -> Mapping[str, _Errors]:
    """Texts of standard errors by the column of their scores, of a file of the same shape beside a table;
    `shared_columns`: those that have the same texts in both."""
    beside = errors_beside(table.path, of_errors=True)
    if beside is None:
        return {}
    corrected = {} if spread is None else {("column", SCORE_COLUMNS): spread}
    same_spread = replace(options, corrections=Corrections().beside({**options.corrections, **corrected}))
    (errors,) = open_tables(beside, same_spread, Notes([], []))
    alike = errors.header == table.header and errors.cells.shape == table.cells.shape
    if not alike or any((errors.texts(name) != table.texts(name)).any() for name in shared_columns):
        hint = "give it the same rows and columns, or another name."
        raise InputError(f"{beside}: not of the same rows and columns as {table.path}, whose errors it has.", hint)
    notes.lines.append(f"{beside.name} is read as the standard errors of {table.path.name}.")
    return {name: {"stderr": errors.texts(name)} for name in errors.header if name not in shared_columns}


def claims(
    table: Table, cells: Iterable[_Cell], keys: list[Claim], options: ImportOptions, notes: Notes
) -> list[tuple[_Cell, Claim]]:
    """The claims with the cells that they are from; cells that are no number are missing, and named."""
    empty, claims_found = 0, list[tuple[_Cell, Claim]]()
    for cell in cells:
        if is_missing(cell.text) and cell.text.strip().casefold() not in FAILED:
            empty += 1
            continue
        number = read_cell(cell.text)
        if number is None:
            where = f"{table.path.name}, {cell.column}, row {table.lines[cell.row]}"
            text_given = options.corrections.get(("cell", where)) or "missing"
            number = read_cell(text_given)
            if number is None and text_given != "missing":
                raise InputError(f"--reading: cell {where!r}: {text_given!r} is no number.", "a number, or missing.")
        if number is None:
            text = f"{cell.text[:40]!r} in column {cell.column!r}, row {table.lines[cell.row]}, is no score"
            notes.decisions.append(Decision("cell", where, "missing", "values", LEFT_OUT, 1, "", text))
            continue
        row = keys[cell.row] | cell.spread
        row |= {"value": number.value, "place": table.where(cell.row, cell.column)}
        if number.items is not None:
            row |= {"unit": "share", "n_items": number.items}
        if number.percent:
            row["unit"] = "percent"
        row |= _error(table, cell, number.error, number.kind)
        if (items := plain_number(cell.errors.get("n", ""))) and items >= 1:
            row.setdefault("n_items", int(items))
        claims_found.append((cell, row))
    notes.lines += [f"Empty cells, no score: {empty}."] if empty else []
    return claims_found


def holds_scores(cells: np.ndarray) -> bool:
    """Whether the cells that are not missing are numbers, and there are some."""
    numbers = [read_cell(text) for text in cells if not is_missing(text)]
    return bool(numbers) and None not in numbers


def check_said(table: Table, corrections: Mapping[str, str], *sayings: str) -> None:
    """Raises InputError for a column of which the reader says one of `sayings`, and that is not there."""
    for name in (name for name, role in corrections.items() if role in sayings):
        check_column(name, table.header, table.path)


def no_number(table: Table, columns: list[str]) -> InputError:
    """Names the first cell of scores that is none."""
    for name in columns:
        for row, text in enumerate(table.texts(name)):
            if text and (not is_missing(text) or text.casefold() in FAILED):
                hint = "leave the cell empty where nothing was measured."
                return InputError(f"{table.where(row, name)}: {text[:40]!r} is not a number.", hint)
    return InputError(f"{table.path}: no scores in {listing(columns, 3)}.", "name other columns.")


def _error(table: Table, cell: _Cell, error: float | None, kind: str | None) -> Claim:
    """The error of a cell in the unit of its score, and what the file calls it; {} for none."""
    numbers = {name: read_cell(text) for name, text in cell.errors.items() if not is_missing(text)}
    for name in ("stderr", "ci95", "sd", "variance"):
        if name not in numbers:
            continue
        number = numbers[name]
        if number is None:
            problem = f"{table.where(cell.row, name)}: {cell.errors[name]!r} is not a number."
            raise InputError(problem, "leave the cell empty where nothing was measured.")
        if number.value < 0:
            raise InputError(f"{table.where(cell.row, name)}: {cell.errors[name]} is negative.", checked.NO_STDERR)
        return {"stderr": number.value, "error": name}
    low, high = numbers.get("low"), numbers.get("high")
    if low is not None and high is not None and low.value <= high.value:
        return {"stderr": (high.value - low.value) / 2, "error": "ci95"}
    return {} if error is None else {"stderr": abs(error), "error": kind or "unknown"}


def _beside_models(table: Table, models: Mapping[int, str]) -> str | None:
    """The first column of texts that tells the rows of each model apart; None where none does."""
    for name in (name for name in table.header if not is_setting(name)):
        texts = {(model, table.texts(name)[row]) for row, model in models.items()}
        if len(texts) == len(models) and all(text and read_cell(text) is None for _, text in texts):
            return name
    return None


def _apart(table: Table, models: Mapping[int, str]) -> str | None:
    """The first column of texts that takes several for one model."""
    for name in (name for name in table.header if not is_setting(name)):
        texts = {(model, table.texts(name)[row]) for row, model in models.items()}
        in_words = all(text and read_cell(text) is None for _, text in texts)
        if in_words and len(texts) > len({*models.values()}) and len({text for _, text in texts}) < len(models):
            return name
    return None


def once(table: Table, rows: list[tuple[_Cell, Claim]], options: ImportOptions, notes: list[str]) -> list[Claim]:
    """Each score once. Raises InputError for two different scores under one key, unless the reader says `first`."""
    first_rows: dict[tuple[object, ...], Claim] = {}
    different = []
    for cell, row in rows:
        first = first_rows.setdefault(tuple(row.get(name) for name in KEY), row)
        if first["value"] != row["value"]:
            different.append((cell, row))
    if different and options.corrections.get(("cell", EVERY)) != "first":
        cell, row = different[0]
        column = telling(table.header, table.texts)
        way = in_reading("column", column or "COLUMN", "model" if column else "checkpoint")
        models = {cell.row: claim["model"] for cell, claim in rows}
        if column is None and (part := _apart(table, models)):
            name = "model name" if row["benchmark"] in table.header else "benchmark name"  # of a benchmark a column
            way = in_reading("column", part, "prompt_variant" if plain(part) in _WORDINGS else name)
        if column is None and len(models) == len(rows) and (column := _beside_models(table, models)):
            way = in_reading("column", column, "benchmark")
        raise InputError(
            f"{table.path}, row {table.lines[cell.row]}: another score of {row['model']} on {row['benchmark']} "
            f"({count(len(different), 'such score')}).",
            f"say which column tells them apart: {way}; in rows of answers, which has items: column,COLUMN,item; with "
            "cell,*,first the first of them counts.",
        )
    if len(first_rows) < len(rows):
        notes.append(f"Twice in the file, the first counts: {count(len(rows) - len(first_rows), 'score')}.")
    return list(first_rows.values())
