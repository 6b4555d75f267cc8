"""A table of scores as CSV, TSV or parquet: one score per row (long), or one column per benchmark or model (wide); JSON
of no known format.

A file without a column of models whose rows are steps of training is one run. A matrix of 0 and 1 is answers to items.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.rows import read_text_rows
from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.score_files import KEY, Format, ImportOptions, Opened, ScoreFile, date_in, mean_of_items
from lm_validity.tables.schema import LARGEST_SCORE, PROTOCOLS, readable
from lm_validity.words import count, listing

_LAYOUT = "a header, and one row per score (model, benchmark, value) or one column per benchmark, as UTF-8 text."
_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
# Columns of a score that a file may have, and other names by which they are found in a header
ROLES: dict[str, tuple[str, ...]] = {
    "model": ("model_name", "model_id", "llm_model", "fullname"),
    "benchmark": ("task", "dataset", "scenario", "evaluation", "eval"),
    "value": ("score", "result"),
    "stderr": ("standard_error", "std_err"),
    "metric": (),
    "checkpoint": (),
    "iteration": ("step", "steps"),
    "tokens_b": (),
    "protocol": (),
    "prepared_on": (),
    "prompt": (),
    "prompt_variant": (),
    "num_fewshot": ("n_shot", "shots"),
    "seed": (),
    "split": (),
    "n_items": ("num_samples",),
    "higher_is_better": (),
}
_MISSING = frozenset(("", "-", "–", "—", "?", "na", "n/a", "nan", "none", "null"))
_BOOLEANS = dict.fromkeys(("1", "1.0", "true", "yes"), True) | dict.fromkeys(("0", "0.0", "false", "no"), False)
_ANSWERS = {"1": 1.0, "1.0": 1.0, "0": 0.0, "0.0": 0.0}  # right and wrong in a matrix of items
_FEWEST_ITEMS = 20  # columns of nothing but 0 and 1, from which they are items
_MOST_COLUMNS = 10_000  # of scores: no table of benchmarks has more
_PLUS_MINUS = re.compile(r"\s*(?:±|\+/-|\+-)\s*")
# 0,5 or 51,25; not 1,234, which may be a thousand
_DECIMAL_COMMA = re.compile(r"[-+]?(0?,\d+|\d+,\d{1,2}) ?%?")
_NOT_A = {
    "percentage": "import the columns that are percentages with --scores.",
    "fraction": "--percent where scores are percentages, --as-is where they are neither; --scores names the columns of "
    "scores.",
}
_ERROR_ENDS = ("_stderr", "_std_err", "_err", "_se")  # of a column or a file beside that of the scores

# By a column's plain name: what leaderboards have beside their scores
_NO_BENCHMARK = re.compile(
    r"(average|avg|mean|overall|rank|ranking|mean_win_rate|likes?|hub|hub_likes|votes?|generation)|.*cost.*"
)
# what says something of a model, under the models sheet's names
_FACTS = {
    "tokens_per_step": re.compile(r"(.*_)?(batch_size_(in_)?tokens|tokens_per_(step|batch))"),
    "tokens_b": re.compile(
        r"((num|n|total|train(ing)?|pretrain(ing)?|throughput_total)_)?(g?tokens|(pre)?training_data_size)"
        r"(_seen|_trained)?(_[tbm]|_billions?|_trillions?)?"
    ),
    "parameters_b": re.compile(
        r"((num|n|total)_)?(params?|parameters?|model_size|size(?=_))(_in)?(_[bm]|_billions?|_millions?)?"
    ),
}
# and under their own
_OTHER_FACT = re.compile(
    r"((peak|max)_)?lr|(.*_)?(learning_rate(_\w+)?|vocab(ulary)?_size|batch_size|(n|num)_(layers?|heads?)|hidden_(size|dim)|d_model|"
    r"(context|seq|sequence)_(len|length|window|size)|warmup(_\w+)?|weight_decay|epochs?|\w*flops|date|year|"
    r"max_tokens|params_\w+|parameters_\w+)"
    r"|label|family|size|architecture|training_data|instruction_tuned|rerun_of|licen[sc]e"
)
# scores without bounds, of which the lower ones are better
_LOSS = re.compile(r"(.*_)?(\w*loss|bpb|bits_per_byte|bits_per_token|\w*perplexity|ppl|nll)(_.*)?")

# The end of a model's name that is a point of its training
_STEP = re.compile(r"(.+?)[-_/@: ]+(?:global_?)?(?:steps?|iter(?:ation)?s?|checkpoint|ckpt)[-_]?(\d{1,15})", re.I)
_FEWEST_STEPS = 100  # of the last of several such names
_LAST = re.compile(r"(.+?)[-_/@: ]+(?:main|final|last)", re.I)
_ITEM = re.compile(r"(.*?)[-_/:. ]*(\d+)")  # an item's column: benchmark and number


class _CellValue(NamedTuple):
    """What a cell says. `percent`: it has the sign."""

    value: float
    error: float | None = None
    percent: bool = False


class _Cell(NamedTuple):
    """A score as it stands in the file: its row, its column, what the column says of it, and its standard error."""

    row: int
    column: str
    spread: dict[str, str]
    text: str
    error: str


@dataclass(frozen=True)
class _Table:
    """A file as texts: `cells` (rows, columns); `lines` counts from 1, the header's line."""

    path: Path
    header: list[str]
    cells: np.ndarray
    lines: list[int]

    def columns(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Texts of columns by their names."""
        places = {name: place for place, name in enumerate(self.header)}
        return {name: self.cells[:, places[name]] for name in names}

    def where(self, row: int, column: str) -> str:
        """The place of a cell."""
        return f"{self.path}, row {self.lines[row]}, column {column!r}"


def read_table(path: Path, options: ImportOptions, model: str | None = None) -> list[ScoreFile]:
    """The scores of a table; `model`: the name of the model of one without a column of models.

    Scores are fractions: one outside 0 to 1 is refused unless they are `percentages` (then 0 to 100, standard errors
    likewise) or `neither`; losses, known by their names, have no bounds. A cell `12.5%` is a percentage by itself, and
    `0.6 ± 0.01` has its standard error. Empty cells are missing scores. Raises InputError, naming row and column, for a
    value of the wrong type and for a table whose columns are not understood.
    """
    if _beside(path, of_errors=False):
        return []  # standard errors, read with the scores that they belong to
    notes: list[str] = []
    table = _open(path, options, notes)
    roles = _roles(table, options)
    answers = _are_answers(table, [name for name in table.header if name not in roles.values()])
    if len(table.header) > _MOST_COLUMNS and not (answers or options.scores):
        problem = f"{path}: {len(table.header)} columns, too many for a table of benchmarks."
        raise InputError(problem, "name those of scores: --scores COLUMN,COLUMN,...")
    steps_of_one = "iteration" in roles and ("benchmark" not in roles or "value" in roles)
    own: dict[str, Any] = {}
    if "model" not in roles and options.across != "models" and (model is not None or steps_of_one):
        own = {"model": model or _stem(path)}
    spread = _spread(roles, options.across, with_models=bool(own or "model" in roles))
    if spread is not None:
        roles = {role: column for role, column in roles.items() if role not in (spread, "value", "stderr")}
    keys = [own | said for said in _keys(table, roles)]
    if answers and not {"model", "benchmark"} & set(keys[0]):
        keys = [said | {"model": f"{_stem(path)}-{row}"} for row, said in enumerate(keys, 1)]
        notes.append("No names of models: they are called as the file, with the number of their row.")
    key = "benchmark" if spread == "model" else "model"
    if key not in keys[0]:
        column = _quoted(f"{key}={_telling(table) or 'COLUMN'}")
        raise InputError(
            f"{path}: no column of {key}s among {', '.join(table.header[:8])}.",
            f"say which: --columns {column}; for a table of models in columns, --across models.",
        )
    taken = {*roles.values(), *(_named(table, options.scores) if options.scores else ())}
    described = {name: fact for name in table.header if name not in taken and (fact := fact_column(name))}
    if spread == "model":
        described = {}
    columns = _score_columns(table, {*roles.values(), *described}, options, notes) if spread else [roles["value"]]
    if answers and spread == "benchmark":
        return _item_files(table, keys, columns, notes)
    if spread != "model":
        _split_steps(keys, notes)
    facts = _facts(table, keys, described, notes)
    cells = _cells(table, columns, _errors(table, roles, spread), spread)
    rows = _once(table, _scores(table, cells, keys, options, notes), options, notes)
    return [ScoreFile(path, rows, date=date_in(path.stem), facts=facts, notes=tuple(notes))]


def _spread(roles: dict[str, str], across: str | None, *, with_models: bool) -> str | None:
    """What the names of the columns of scores are, `model` or `benchmark`; None where each row is one score."""
    if with_models and {"benchmark", "value"} <= set(roles):
        return None
    if across is None and "benchmark" in roles and not with_models:
        return "model"
    return "model" if across == "models" else "benchmark"


# ---- the file ----------------------------------------------------------------------------------------------------


def _open(path: Path, options: ImportOptions, notes: list[str]) -> _Table:
    """The file, without columns that have no name; a first one of texts is that of the models, where no other is."""
    if path.suffix == ".parquet":
        with readable(path):
            frame = pd.read_parquet(path)
        if not isinstance(frame.index, pd.RangeIndex):
            frame = frame.reset_index(names=frame.index.name or "")
        cells = frame.astype(object).where(frame.notna(), "").map(str).to_numpy(object)
        table = _Table(path, [str(name).strip() for name in frame.columns], cells, list(range(1, len(cells) + 1)))
    else:
        text_rows = read_text_rows(path, _LAYOUT, headless=_ANSWERS)
        cells = np.array(text_rows.rows, dtype=object).reshape(len(text_rows.rows), len(text_rows.header))
        table = _Table(path, text_rows.header, cells, text_rows.lines)
    key = "benchmark" if options.across == "models" else "model"
    names = {_plain(name) for name in table.header} | set(options.columns)
    header = table.header
    if header[:1] == [""] and not {key, *ROLES[key]} & names and all(map(_is_name, table.cells[:, 0])):
        notes.append(f"The first column has no name and is read as that of the {key}s.")
        header = [key, *header[1:]]
    named = [place for place, name in enumerate(header) if name]
    return replace(table, header=[header[place] for place in named], cells=table.cells[:, named])


def _is_name(text: str) -> bool:
    return bool(text) and _parsed(text) is None


def _beside(path: Path, *, of_errors: bool) -> Path | None:
    """The file of standard errors beside one of scores (x_err.csv beside x.csv), or the other way round."""
    for end in _ERROR_ENDS:
        name = f"{path.stem}{end}{path.suffix}" if of_errors else path.stem.removesuffix(end) + path.suffix
        if name != path.name and path.with_name(name).is_file():
            return path.with_name(name)
    return None


def _roles(table: _Table, options: ImportOptions) -> dict[str, str]:
    """The file's column of each role that it has."""
    for role, column in options.columns.items():
        if role not in ROLES:
            hint = did_you_mean(role, ROLES, f"one of {', '.join(ROLES)}.")
            raise InputError(f"--columns {role}={column}: {role!r} is no column of a score.", hint)
        _check_column(table, column)
    roles = dict(options.columns)
    plain = {_plain(column): column for column in reversed(table.header)}
    for role, others in ROLES.items():
        named = next((plain[name] for name in (role, *others) if name in plain), None)
        if role not in roles and named is not None and named not in (*roles.values(), *options.scores):
            roles[role] = named
    return roles


def _plain(name: str) -> str:
    """A column's name in small letters and digits: `Average ⬆️` is average."""
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")


def _check_column(table: _Table, column: str) -> None:
    if column not in table.header:
        hint = did_you_mean(column, table.header[:_MOST_COLUMNS], f"the columns are: {listing(table.header, 20)}.")
        raise InputError(f"{table.path}: no column {column!r}.", hint)


def _stem(path: Path) -> str:
    return re.sub(r"(\.(csv|tsv|parquet|gz))+$", "", path.name)


def _telling(table: _Table) -> str | None:
    """The first column of texts that are all different: perhaps that of the models."""
    for name, texts in table.columns(table.header[:100]).items():
        if len(set(texts)) == len(texts) and all(map(_is_name, texts)):
            return name
    return None


def _quoted(text: str) -> str:
    return f"'{text}'" if re.search(r"[^\w=.,/-]", text) else text


# ---- what the columns are ----------------------------------------------------------------------------------------


def fact_column(name: str) -> str | None:
    """The column of the models sheet for a column of this name; None where it is a score's."""
    plain = _plain(name)
    if _NO_BENCHMARK.fullmatch(plain) or _LOSS.fullmatch(plain):
        return None
    known = next((fact for fact, pattern in _FACTS.items() if pattern.fullmatch(plain)), None)
    return known or (plain if _OTHER_FACT.fullmatch(plain) else None)


def _score_columns(table: _Table, taken: set[str], options: ImportOptions, notes: list[str]) -> list[str]:
    """The columns of scores: those named, else all columns of numbers, without what leaderboards have beside them,
    and without the few that are outside of the scores' range where most are inside."""
    if options.scores:
        return _named(table, options.scores)
    left_out: dict[str, list[str]] = defaultdict(list)
    taken = taken | set(_error_columns(table.header))
    columns = []
    for name, cells in table.columns(name for name in table.header if name not in taken).items():
        known = [text for text in cells if text.casefold() not in _MISSING]
        wrong = [text for text in known if _parsed(text) is None]
        if wrong and all(map(_DECIMAL_COMMA.fullmatch, wrong)):
            raise _no_number(table.where(int(np.flatnonzero(cells == wrong[0])[0]), name), wrong[0])
        if not known or wrong:
            left_out["Columns with values that are not numbers, left out"].append(name)
        elif _NO_BENCHMARK.fullmatch(_plain(name)):
            left_out["Not recognised as benchmarks, left out (name them with --scores)"].append(name)
        else:
            columns.append(name)
    bounded = [name for name in columns if options.unit != "neither" and not _LOSS.fullmatch(_plain(name))]
    odd = _outside(table, bounded, percent=options.unit == "percentages")
    if odd and 2 * len(odd) < len(bounded):
        left_out["Outside of the scores' range, so left out (name them with --scores, and --as-is)"] = odd
        columns = [name for name in columns if name not in set(odd)]
    notes += [f"{title}: {listing(names, 10)}." for title, names in left_out.items()]
    if not columns:
        raise InputError(f"{table.path}: no column of scores.", "name them: --scores COLUMN,COLUMN,...")
    return columns


def _named(table: _Table, given: Iterable[str]) -> list[str]:
    """The columns of `--scores`: names, patterns such as `eval/*`, and ranges `FIRST..LAST`, in the file's order."""
    chosen = set[str]()
    for each in given:
        first, dots, last = each.partition("..")
        if each in table.header:
            chosen.add(each)
        elif dots:
            _check_column(table, first)
            _check_column(table, last)
            chosen |= set(table.header[table.header.index(first) : table.header.index(last) + 1])
        elif matching := [name for name in table.header if fnmatchcase(name, each)]:
            chosen |= set(matching)
        else:
            _check_column(table, each)
    return [name for name in table.header if name in chosen]


def _error_columns(header: list[str]) -> dict[str, str]:
    """Columns of standard errors, `x_stderr` beside x, and the columns that they belong to."""
    plain = {_plain(name): name for name in reversed(header)}
    owners = {}
    for name in header:
        for end in _ERROR_ENDS:
            owner = plain.get(_plain(name).removesuffix(end))
            if owner is not None and owner != name:
                owners[name] = owner
    return owners


def _outside(table: _Table, columns: list[str], *, percent: bool) -> list[str]:
    """The columns with a score that is no fraction (no percentage)."""
    odd = []
    for name, cells in table.columns(columns).items():
        scaled = (number.value * (0.01 if percent or number.percent else 1) for number in map(_parsed, cells) if number)
        if any(not 0 <= value <= 1 for value in scaled):
            odd.append(name)
    return odd


def _facts(
    table: _Table, keys: list[dict[str, Any]], described: dict[str, str], notes: list[str]
) -> dict[str, dict[str, Any]]:
    """What the table says of each model. Tokens that differ within a model are those of its checkpoints, and go to
    `keys`; other columns that differ within one are left out."""
    facts: dict[str, dict[str, Any]] = defaultdict(dict)
    told, varying = [], []
    for name, cells in table.columns(described).items():
        fact = described[name]
        values: list[Any] = [
            None if text.casefold() in _MISSING else text if (number := _parsed(text)) is None else number.value
            for text in cells
        ]
        if fact in ("tokens_b", "parameters_b"):
            values = in_billions(_plain(name), values)
        by_model: dict[str, set[Any]] = defaultdict(set)
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                by_model[key["model"]].add(value)
        if all(len(said) == 1 for said in by_model.values()):
            told.append(name)
            for model, said in by_model.items():
                facts[model].setdefault(fact, *said)
        elif fact == "tokens_b" and all(isinstance(value, float | None) for value in values):
            for key, value in zip(keys, values, strict=True):
                key.setdefault("tokens_b", value)
        else:
            varying.append(name)
    notes += [f"Columns about the models, for the models sheet: {listing(told, 10)}."] if told else []
    notes += [f"Not one value for each model, left out: {listing(varying, 10)}."] if varying else []
    return dict(facts)


def in_billions(plain: str, values: list[Any]) -> list[Any]:
    """Tokens or parameters in billions: by the unit in the column's name, else counts are told by their size."""
    numbers = [value for value in values if isinstance(value, float)]
    unit = re.search(r"_(t|trillions?|b|billions?|m|millions?)$", plain)
    scale = {"t": 1e3, "b": 1.0, "m": 1e-3}[unit[1][0]] if unit else 1e-9 if max(numbers, default=0) > 1e6 else 1.0
    return [value * scale if isinstance(value, float) else value for value in values]


def _split_steps(keys: list[dict[str, Any]], notes: list[str]) -> None:
    """Points of training out of models' names, where one name comes with several steps (`name-step_100`), not with
    rounds of tuning (`name-iter2`)."""
    steps: dict[str, set[int]] = defaultdict(set)
    for key in keys:
        if (match := _STEP.fullmatch(key["model"])) and not {"checkpoint", "iteration"} & set(key):
            steps[match[1]].add(int(match[2]))
    runs = {name for name, numbers in steps.items() if len(numbers) > 1 and max(numbers) >= _FEWEST_STEPS}
    for key in keys:
        if (match := _STEP.fullmatch(key["model"])) and match[1] in runs:
            key |= {"model": match[1], "iteration": int(match[2]), "checkpoint": f"step{int(match[2])}"}
        elif (match := _LAST.fullmatch(key["model"])) and match[1] in runs:
            key["model"] = match[1]
    if runs:
        notes.append(f"Models' names end in steps of training, read as {count(len(runs), 'model')}.")


# ---- the scores --------------------------------------------------------------------------------------------------


def _parsed(text: str) -> _CellValue | None:
    """A number, perhaps with a percent sign, perhaps with a standard error behind ±; None for anything else."""
    first, *rest = _PLUS_MINUS.split(text, maxsplit=1)
    percent = text.endswith("%") or first.endswith("%")
    try:
        numbers = [float(part.removesuffix("%")) for part in (first, *rest)]
    except ValueError:
        return None
    if not all(abs(number) <= LARGEST_SCORE for number in numbers):
        return None
    return _CellValue(numbers[0], numbers[1] if rest else None, percent)


def _no_number(where: str, text: str) -> InputError:
    comma = _DECIMAL_COMMA.fullmatch(text)
    hint = (
        "write a decimal point instead of the comma." if comma else "leave the cell empty where nothing was measured."
    )
    return InputError(f"{where}: {text!r} is not a number.", hint)


def _keys(table: _Table, roles: dict[str, str]) -> list[dict[str, Any]]:
    """Of each row what the columns with a role say beside the score, in the types of the scores table."""
    readers: dict[str, Callable[[str], object]] = {
        **dict.fromkeys(("iteration", "seed"), _whole),
        **{name: partial(_whole, least=least) for name, least in (("num_fewshot", 0), ("n_items", 1))},
        "tokens_b": _plain_number,
        "higher_is_better": lambda text: _BOOLEANS.get(text.casefold()),
        "metric": metric_key,
        "protocol": lambda text: text if text in PROTOCOLS else None,
    }
    keys: list[dict[str, Any]] = [{} for _ in table.lines]
    for role, column in roles.items():
        if role in ("value", "stderr"):
            continue
        reader = readers.get(role, str)
        for row, text in enumerate(table.columns([column])[column]):
            value = None if text == "" else reader(text)
            if value is None and (text != "" or role in ("model", "benchmark")):
                problem = "empty" if text == "" else f"{text!r} is not a {role}"
                raise InputError(f"{table.where(row, role)}: {problem}.", "see docs/reference/tables.md.")
            if value is not None:
                keys[row][role] = value
    for key in keys:
        if "iteration" in key:
            key.setdefault("checkpoint", f"step{key['iteration']}")
    return keys


def _whole(text: str, least: int = -(2**63)) -> int | None:
    number = _plain_number(text)
    return int(number) if number is not None and number == int(number) and least <= number < 2**63 else None


def _plain_number(text: str) -> float | None:
    number = _parsed(text)
    return None if number is None else number.value


def _cells(table: _Table, columns: list[str], errors: dict[str, np.ndarray], spread: str | None) -> Iterator[_Cell]:
    """Column by column; `errors`: the texts of standard errors by the column of their scores."""
    nothing = [""] * len(table.lines)
    for column, texts in table.columns(columns).items():
        said = {spread: column} if spread else {}
        for row, (text, error) in enumerate(zip(texts, errors.get(column, nothing), strict=True)):
            yield _Cell(row, column, said, text, error)


def _errors(table: _Table, roles: dict[str, str], spread: str | None) -> dict[str, np.ndarray]:
    """Texts of standard errors by the column of their scores. Those of a wide table are in a file of the same shape
    beside it, else in columns `x_stderr` beside x."""
    if spread is None:
        return {roles["value"]: table.columns([roles["stderr"]])[roles["stderr"]]} if "stderr" in roles else {}
    beside = _beside(table.path, of_errors=True)
    if beside is not None:
        notes: list[str] = []
        errors = _open(beside, ImportOptions(across="models" if spread == "model" else None), notes)
        if errors.header != table.header or errors.cells.shape != table.cells.shape:
            hint = "give it the same rows and columns, or another name."
            raise InputError(f"{beside}: not of the same rows and columns as {table.path}, whose errors it has.", hint)
        return errors.columns(errors.header)
    owners = _error_columns(table.header)
    return {owners[name]: texts for name, texts in table.columns(owners).items()}


def _scores(
    table: _Table, cells: Iterable[_Cell], keys: list[dict[str, Any]], options: ImportOptions, notes: list[str]
) -> list[tuple[_Cell, dict[str, Any]]]:
    """The rows of SCORES with the cells that they are from. Raises InputError for a score outside of its range."""
    percent, empty, signs = options.unit == "percentages", 0, 0
    largest: dict[str, float] = defaultdict(float)
    rows = []
    for cell in cells:
        where = partial(table.where, cell.row, cell.column)
        if cell.text.casefold() in _MISSING:
            empty += 1
            continue
        number = _parsed(cell.text)
        if number is None:
            raise _no_number(where(), cell.text)
        row = keys[cell.row] | cell.spread
        loss = bool(_LOSS.fullmatch(_plain(row["benchmark"])) or _LOSS.fullmatch(_plain(row.get("metric") or "")))
        scale = 0.01 if number.percent or (percent and not loss) else 1.0
        row["value"] = number.value * scale
        if options.unit != "neither" and not loss and not 0 <= row["value"] <= 1:
            what = "percentage" if percent or number.percent else "fraction"
            raise InputError(f"{where()}: {cell.text} is not a {what}.", _NOT_A[what])
        if loss:
            row.setdefault("higher_is_better", False)
        error = _error(table, cell, number)
        if error is not None:
            row["stderr"] = error * scale
        signs += number.error is not None
        largest[row["benchmark"]] = max(largest[row["benchmark"]], number.value)
        rows.append((cell, row))
    notes += [f"Empty cells, no score: {empty}."] if empty else []
    notes += [f"Numbers behind ± are taken as standard errors, of {count(signs, 'score')}."] if signs else []
    small = [name for name, value in largest.items() if 0 < value <= 1]
    if percent and small:
        notes.append(f"No value above 1% (are they fractions already?): {listing(small, 10)}.")
    return rows


def _error(table: _Table, cell: _Cell, number: _CellValue) -> float | None:
    """The standard error of a cell, in the unit of its score."""
    if cell.error.casefold() in _MISSING:
        error, text = number.error, cell.text
    else:
        error, text = _plain_number(cell.error), cell.error
        if error is None:
            raise _no_number(table.where(cell.row, "stderr"), text)
    if error is not None and error < 0:
        raise InputError(f"{table.where(cell.row, 'stderr')}: {text} is negative.", checked.NO_STDERR)
    return error


def _once(
    table: _Table, rows: list[tuple[_Cell, dict[str, Any]]], options: ImportOptions, notes: list[str]
) -> list[dict[str, Any]]:
    """Each score once. Raises InputError for two different scores under one key unless `repeats` is `first`."""
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    different = []
    for cell, row in rows:
        first = kept.setdefault(tuple(row.get(name) for name in KEY), row)
        if first["value"] != row["value"]:
            different.append((cell, row))
    if different and options.repeats == "refuse":
        cell, row = different[0]
        telling = _telling(table)
        other = f"--columns {_quoted(f'model={telling}')}, " if telling else ""
        raise InputError(
            f"{table.path}, row {table.lines[cell.row]}: another score of {row['model']} on {row['benchmark']} "
            f"({count(len(different), 'such score')}).",
            f"map the column that tells them apart ({other}--columns checkpoint=COLUMN), or --repeats first.",
        )
    if len(kept) < len(rows):
        notes.append(f"Twice in the file, the first counts: {count(len(rows) - len(kept), 'score')}.")
    return list(kept.values())


# ---- items -------------------------------------------------------------------------------------------------------


def _are_answers(table: _Table, columns: list[str]) -> bool:
    """Whether many columns hold nothing but 0 and 1: answers to items rather than scores on benchmarks."""
    known = (text for texts in table.columns(columns).values() for text in texts if text.casefold() not in _MISSING)
    return len(columns) >= _FEWEST_ITEMS and all(text in _ANSWERS for text in known)


def _item_files(table: _Table, keys: list[dict[str, Any]], columns: list[str], notes: list[str]) -> list[ScoreFile]:
    """A file of scores and items for each row. Items `name 12` or `name/12` are of the benchmark of that name, where
    there are several names; else all are of one that is called as the file."""
    parts = {name: part for name in columns if (part := _ITEM.fullmatch(name))}
    names = {part[1] for part in parts.values()}
    several = len(parts) == len(columns) and len(names) > 1 and "" not in names
    own = _stem(table.path)
    items: dict[str, dict[str, str]] = defaultdict(dict)
    for name in columns:
        items[parts[name][1] if several else own][parts[name][2] if several else name] = name
    texts = table.columns(columns)
    notes = [*notes, f"{len(columns)} columns of 0 and 1 are read as items of {count(len(items), 'benchmark')}."]
    files = []
    for row, key in enumerate(keys):
        answers = {
            benchmark: {doc: _ANSWERS.get(texts[name][row]) for doc, name in of_benchmark.items()}
            for benchmark, of_benchmark in items.items()
        }
        rows = []
        for benchmark, given in answers.items():
            known = np.array([value for value in given.values() if value is not None])
            if len(known):
                rows.append({"benchmark": benchmark, **mean_of_items(known)})
        date, own_items = date_in(table.path.stem), partial(_items, answers)
        files.append(ScoreFile(table.path, rows, key, date, notes=tuple(notes), items=own_items))
    return files


def _items(answers: dict[str, dict[str, float | None]]) -> Iterator[dict[str, Any]]:
    for benchmark, given in answers.items():
        for document, value in given.items():
            if value is not None:
                yield {"benchmark": benchmark, "doc_id": document, "correct": value}


# ---- the format --------------------------------------------------------------------------------------------------


def _recognises(opened: Opened) -> bool:
    """A file that was named itself, or a text in a folder whose header has a column of models or of steps."""
    if opened.named or not opened.path.name.endswith(_SUFFIXES) or opened.path.suffix == ".parquet":
        return opened.named and opened.path.name.endswith(_SUFFIXES)
    header = opened.head.split(b"\n", 1)[0].decode("utf-8", errors="replace")
    names = {_plain(name) for name in re.split(r"[,;\t]", header)}
    return bool(names & {"model", *ROLES["model"], "iteration", *ROLES["iteration"]})


CSV = Format("csv", _SUFFIXES, _recognises, lambda opened, options: read_table(opened.path, options, opened.model))


# ---- JSON of no known format ----------------------------------------------------------------------------------------
#
# Where `--format json` asks for it: the largest object of nothing but scores. Its keys are the benchmarks. Numbers
# elsewhere whose keys say so (`params`, `tokens`, `lr`) are facts of the model; a file may hold these alone.

_NAMING = ("model_name", "name", "model")
_FEWEST_SCORES = 2  # scores of an object of scores


def _read_json(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores and facts of a file. The model is that of `--path` or `--model`, else `model_name`, `name` or `model`.

    Raises InputError for a file with neither, and for one that names no model.
    """
    path, document = opened.path, opened.document
    objects: dict[tuple[str, ...], dict[str, Any]] = defaultdict(dict)
    for place, value in _leaves(document, ()):
        objects[place[:-1]][place[-1]] = value
    unit = options.unit
    scale, most = (0.01, 100.0) if unit == "percentages" else (1.0, 1.0 if unit == "fractions" else float("inf"))
    scored = {place: _only_scores(values, most) for place, values in objects.items()}
    place = max(scored, key=lambda each: len(scored[each]), default=())
    scores = scored.get(place, {})
    facts: dict[str, Any] = {}
    for other, values in objects.items():
        for key, value in values.items():
            column = fact_column(key)
            if column is not None and (other != place or not scores) and checked.finite(value) is not None:
                known = in_billions(key, [float(value)])[0] if column in ("tokens_b", "parameters_b") else value
                facts.setdefault(column, known)
    if not scores and not facts:
        raise InputError(f"{path}: no object of scores (benchmarks with numbers from 0 to {most:g}).", "leave it out.")
    named = next((document[key] for key in _NAMING if document.get(key)), None) if isinstance(document, dict) else None
    name = checked.required_text(
        opened.model or named, f"{path}, the model", f"name it: --model '{path}=NAME', or --path."
    )
    rows = [{"benchmark": benchmark, "value": scale * value} for benchmark, value in scores.items()]
    return [ScoreFile(path, rows, {"model": name}, date_in(path.stem), facts={name: facts} if facts else {})]


def _leaves(value: object, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values in objects within objects, with the keys that lead to them."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, (*place, key))
    elif place:
        yield place, value


def _only_scores(values: dict[str, Any], most: float) -> dict[str, float]:
    """An object's numbers, if it has several and nothing else; {} otherwise."""
    numbers = {key: checked.finite(value) for key, value in values.items() if value is not None}
    scores = {key: number for key, number in numbers.items() if number is not None and 0 <= number <= most}
    return scores if len(scores) == len(numbers) >= _FEWEST_SCORES else {}


JSON = Format("json", (".json",), lambda opened: False, _read_json)
