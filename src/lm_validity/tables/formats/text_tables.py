"""A file as tables of texts: CSV, TSV, Markdown and parquet, with one header line and points for decimal commas."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from lm_validity.config.rows import parse_text_rows, read_text
from lm_validity.errors import InputError
from lm_validity.tables.cell_text import is_missing, plain, plain_text, read_cell
from lm_validity.tables.claims import Claim
from lm_validity.tables.columns import (
    FIRST,
    ROLES,
    SCORE_COLUMNS,
    names_metric,
    one_header,
    roles_said,
)
from lm_validity.tables.decisions import CONVERTED, EVERY, READ, UNSURE, Decision, Given
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.schema import readable
from lm_validity.tables.task_facts import are_tasks
from lm_validity.words import count, listing

_LAYOUT = "a header, and one row per score (model, benchmark, value) or one column per benchmark, as UTF-8 text."
MARKDOWN = (".md", ".markdown", ".txt")  # of files that were named; in folders these are texts
# Texts of answers to items, and what they count
ANSWERS = {"1": 1.0, "1.0": 1.0, "0": 0.0, "0.0": 0.0, "true": 1.0, "false": 0.0, "True": 1.0, "False": 0.0}
# 0,5 or 51,25; not 1,234, which may be a thousand
_DECIMAL_COMMA = re.compile(r"[-+]?(0?,\d+|\d+,\d{1,2}) ?%?")
_SEPARATED = re.compile(r"[^\n]*[\t,;][^\n]*\n.*[\t,;]")  # two lines of cells
_ERROR_ENDS = ("_stderr", "_std_err", "_err", "_se")  # of a file beside that of the scores
_OTHER_LINE_ENDS = re.compile("[\u2028\u2029\x85]")  # of texts in cells: no row ends there
# A heading of a Markdown text
_HEADING = re.compile(r"(#+) (.+?)[ #]*|\*\*([^*]+)\*\*:?|(?:<details>)?\s*<summary>(.+?)</summary>")
# A checkpoint's name, with what stands before its step
_POINT = re.compile(
    r"(\D*(?<![a-z])(?:global_?)?(?:steps?|iter(?:ation)?s?|checkpoint|ckpt))[-_ ]?(\d{1,15})", re.IGNORECASE
)
TASKS = ("task", "tasks", "benchmark", "benchmarks", "dataset", "datasets")  # a first column of rows of benchmarks


@dataclass(frozen=True)
class Table:
    """A file as texts: `cells` (rows, columns); `lines` counts from 1, the header's line; `title`: the heading above it
    in a text of several tables."""

    path: Path
    header: list[str]
    cells: np.ndarray
    lines: list[int]
    title: str = ""

    def texts(self, name: str) -> np.ndarray:
        """The texts of a column."""
        return self.cells[:, self.places[name]]

    @cached_property
    def places(self) -> dict[str, int]:
        """The indices of the columns, by name."""
        return {name: index for index, name in reversed(list(enumerate(self.header)))}

    def named(self, selector: str) -> list[str]:
        """The columns that a row of a reading is about: of that name, else of a range `FIRST..LAST`, else of names that
        fit a pattern such as `eval/*`."""
        first, dots, last = selector.partition("..")
        if selector in self.places:
            return [selector]
        if dots and {first, last} <= self.places.keys():
            return self.header[self.places[first] : self.places[last] + 1]
        return [name for name in self.header if fnmatchcase(name, selector)] if set(selector) & set("*?[") else []

    def said(self, corrections: Given) -> dict[str, str]:
        """What a reading says of columns, those of a row of their own before ranges and patterns; also of others."""
        rows = {selector: role for (kind, selector), role in corrections.items() if kind == "column"}
        patterns = [selector for selector in rows if selector not in self.places and selector != EVERY]
        return {name: rows[selector] for selector in reversed(patterns) for name in self.named(selector)} | rows

    def where(self, row: int, column: str) -> str:
        """The place of a cell."""
        return f"{self.path}, row {self.lines[row]}, column {column!r}"


@dataclass
class Notes:
    """What is said of a table: sentences, and decisions."""

    lines: list[str]
    decisions: list[Decision]


def open_tables(path: Path, options: ImportOptions, notes: Notes) -> list[Table]:
    """The tables of a file (several only of Markdown), without columns that have no name; a first one of texts is that
    of the models, where no other is."""
    if path.suffix == ".parquet":
        with readable(path):
            frame = pd.read_parquet(path).astype(object)  # in which bytes that are no text are found
        if not len(frame.columns):
            raise InputError(f"{path}: a table without columns.", "give one with a column of models and one of scores.")
        if not isinstance(frame.index, pd.RangeIndex):
            frame = frame.reset_index(names=frame.index.name or "")
        return [named_columns(frame_table(path, frame), options, notes)]
    text = _OTHER_LINE_ENDS.sub(" ", read_text(path, _LAYOUT))
    if re.match(r"\s*(<!--.*?-->\s*)?\|", text) or path.suffix in MARKDOWN:
        tables = list(markdown_tables(path, text))
        if not tables and path.suffix in MARKDOWN and not (path.suffix == ".txt" and _SEPARATED.match(text)):
            way = "cells of a table are between |, or in .txt, .csv and .tsv between tabs, commas or semicolons."
            way = html_way(path) if "<table" in text else way
            raise InputError(f"{path}: no table in it.", way)
        if tables:
            return [named_columns(table, options, notes) for table in tables]
    text, joined = (
        one_header(text)
        if options.corrections.one_of("column", "header", ("one line", "two lines")) != "one line"
        else (text, [])
    )
    if joined:
        words = f"two lines of names are read as one: {listing(joined, 4)}"
        notes.decisions.append(
            Decision("column", "header", "two lines", "structure", CONVERTED, len(joined), "one line", words)
        )
    rows = parse_text_rows(text, path, _LAYOUT, short_rows=True, headless=ANSWERS, breaks=True)
    if rows.over:
        notes.lines.append(
            f"Over several lines of {path.name}: {count(rows.over, 'row')}; a row is called by its first."
        )
    cells = np.array(rows.rows, dtype=object).reshape(len(rows.rows), len(rows.header))
    header = [plain_text(name) if set(name) & set("<[*") else name for name in rows.header]
    return [named_columns(Table(path, header, cells, rows.lines), options, notes)]


def errors_beside(path: Path, *, of_errors: bool) -> Path | None:
    """The file of standard errors beside one of scores (x_err.csv beside x.csv, of the same columns), or the other way
    round."""
    for end in _ERROR_ENDS:
        name = f"{path.stem}{end}{path.suffix}" if of_errors else path.stem.removesuffix(end) + path.suffix
        candidate = path.with_name(name)
        if name != path.name and candidate.is_file() and _header(candidate) == _header(path):
            return candidate
    return None


def _header(path: Path) -> list[str]:
    """The first line of a text, or the names of a parquet file's columns."""
    if path.suffix == ".parquet":
        with readable(path):
            return list(pq.read_schema(path).names)
    return read_text(path, _LAYOUT).splitlines()[:1]


def frame_table(path: Path, frame: pd.DataFrame) -> Table:
    """A frame as a table of texts, as though it had been read from a CSV file."""
    return text_table(path, [*frame.columns], frame.astype(object).where(frame.notna(), None).to_numpy(object).tolist())


def html_way(path: Path) -> str:
    """How a table in HTML becomes one that is read."""
    table = f"pandas.read_html('{path}')[0].to_csv('scores.csv', index=False)"
    return f'python -c "import pandas; {table}" (needs lxml; [0] is its first table), and give scores.csv.'


def text_table(path: Path, header: Sequence[object], rows: Sequence[Sequence[object]]) -> Table:
    """Rows of values as a table of texts; None is an empty cell."""
    cells = [["" if value is None else str(value).strip() for value in row] for row in rows]
    array = np.array(cells, dtype=object).reshape(len(cells), len(header))
    return Table(path, [str(name).strip() for name in header], array, list(range(1, len(cells) + 1)))


def markdown_tables(path: Path, text: str) -> Iterator[Table]:
    """The tables of a Markdown text: lines between |, the second of them a rule of dashes. A title is the nearest
    heading, behind the one above it where several tables have that; a line of names below it that begins with an
    empty cell is the header's second one."""
    block: list[tuple[int, list[str]]] = []
    headings: list[tuple[int, str]] = []
    in_code = False
    tables: list[tuple[Table, list[str]]] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.lstrip().startswith("|") or (block and "|" in line):
            inside = re.sub(r"\\\|", "\0", line.strip().strip("|"))
            block.append((number, [plain_text(cell.replace("\0", "|")) for cell in inside.split("|")]))
            continue
        if len(block) > 2 and all(re.fullmatch(r":?-+:?", cell) for cell in block[1][1]):
            header, rows = block[0][1], block[2:]
            cells = [(row + [""] * len(header))[: len(header)] for _, row in rows]
            if len(cells) > 1 and header[0] and not cells[0][0] and all(map(_is_name, cells[0][1:])):
                header = [
                    f"{name} ({below.strip('()')})" if below else name
                    for name, below in zip(header, cells[0], strict=True)
                ]
                cells, rows = cells[1:], rows[1:]
            table = Table(path, header, np.array(cells, dtype=object), [index for index, _ in rows])
            tables.append((table, [heading for _, heading in headings]))
        block = []
        in_code ^= line.lstrip().startswith(("```", "~~~"))  # where # begins a comment
        if not in_code and (heading := _HEADING.fullmatch(line.strip())):
            marks, *words = heading.groups()
            level = len(marks) if marks else 7  # a line in bold is below all headings
            headings = [(above, words_above) for above, words_above in headings if above < level]
            headings.append((level, plain_text(next(filter(None, words))).strip(" :")))
    nearest = Counter(titles[-1] for titles in {tuple(titles) for _, titles in tables if titles})
    for table, titles in tables:
        yield replace(table, title="/".join(titles[-2:] if titles and nearest[titles[-1]] > 1 else titles[-1:]))


def named_columns(table: Table, options: ImportOptions, notes: Notes) -> Table:
    """The columns that have a name, without rows that are titles of sections. A first column without a name has that of
    the models (or benchmarks, across which a row goes), where its cells are names, or what the reader says."""
    header = table.header
    said_of = table.said(options.corrections)
    said = said_of.get(FIRST)
    of_tasks = said_of.get(SCORE_COLUMNS) == "model" or are_tasks(table.cells[:, 0], header[1:])
    key = said if said in ROLES else "benchmark" if of_tasks else "model"
    names = {plain(name) for name in header} | set(roles_said(said_of, header))
    unnamed = header[:1] == [""] and said != "left out" and not {key, *ROLES[key]} & names
    if header[:1] == [""]:
        options.corrections.one_of("column", FIRST, (*ROLES, "left out"))
    if unnamed and all(map(_is_name, table.cells[:, 0])):
        text = f"the first column has no name and is read as that of the {key}s"
        source = "reading" if said else "structure"
        kind = READ if said else UNSURE
        notes.decisions.append(Decision("column", FIRST, key, source, kind, 1, "model, benchmark, left out", text))
        header = [key, *header[1:]]
    named = [index for index, name in enumerate(header) if name]
    kept = [row for row in range(len(table.cells)) if not all(map(is_missing, table.cells[row, 1:]))]
    if len(kept) < len(table.cells) and kept and len(header) > 2:  # titles of sections
        table = replace(table, cells=table.cells[kept], lines=[table.lines[row] for row in kept])
    return replace(table, header=[header[index] for index in named], cells=table.cells[:, named])


def _is_name(text: str) -> bool:
    return bool(text) and read_cell(text) is None


def upright(table: Table) -> Table:
    """The table with its names of columns where a frame's numbers of columns stand above them; turned, where its rows
    are metrics and its columns tasks."""
    if len(table.lines) > 1 and table.header == [str(number) for number in range(len(table.header))]:
        table = replace(table, header=[*map(str, table.cells[0])], cells=table.cells[1:], lines=table.lines[1:])
    if plain(table.header[0]) not in TASKS or not any(
        name == "Score" or names_metric(name) for name in table.cells[:, 0]
    ):
        return table
    cells = np.column_stack([np.array(table.header[1:], dtype=object), table.cells[:, 1:].T])
    return replace(table, header=["benchmark", *table.cells[:, 0]], cells=cells, lines=[table.lines[0]] * len(cells))


# A tracker's export of one measure by steps: `RUN - MEASURE`, with its least and largest values between two steps
_HISTORY = ["iteration", "model", "benchmark", "value"]
_OF_TAG, _TAG_FILE = ["Wall time", "Step", "Value"], re.compile(r"run-(.+?)-tag-(.+)\.csv")  # one measure of one run
_OF_RUN = re.compile(r"(.+?) - (\S+?)(?:__(?:MIN|MAX))?")


def histories(table: Table, notes: Notes) -> Table:
    """The table; of a tracker's histories, a column for each run, a row for each run, step and measure; of its runs
    (`metrics.x`, `params.y`), the metrics by the model that a parameter names, else by the run's name."""
    if table.header == _OF_TAG and (of_tag := _TAG_FILE.fullmatch(table.path.name)):
        of_steps = [[step, *of_tag.groups(), value] for _, step, value in table.cells]
        return replace(table, header=_HISTORY, cells=np.array(of_steps, dtype=object).reshape(len(of_steps), 4))
    if "run_id" in table.header and any(name.startswith("metrics.") for name in table.header):
        return _of_runs(table)
    names = {name: match for name in table.header[1:] if (match := _OF_RUN.fullmatch(name))}
    runs = [name for name in names if not name.endswith(("__MIN", "__MAX"))]
    if len(names) < len(table.header) - 1 or len(names) != 3 * len(runs) or not runs:
        return table
    rows = [
        [table.texts(table.header[0])[row], names[name][1], names[name][2], table.texts(name)[row]]
        for name in runs
        for row in range(len(table.lines))
    ]
    scored_rows = [index for index, row in enumerate(rows) if not is_missing(row[-1])]
    text = f"{table.path.name}: each column is a run, {runs[0]} is {names[runs[0]][2]} of {names[runs[0]][1]}"
    notes.decisions.append(Decision("column", table.path.name, "runs", "structure", CONVERTED, len(runs), "", text))
    cells = np.array([rows[index] for index in scored_rows], dtype=object).reshape(len(scored_rows), 4)
    lines = [table.lines[index % len(table.lines)] for index in scored_rows]
    return Table(table.path, _HISTORY, cells, lines)


def _of_runs(table: Table) -> Table:
    """The metrics of a tracker's runs, without those of the system, and the first column that names their models."""
    named = {name: name.removeprefix("metrics.") for name in table.header if name.startswith("metrics.")}
    named = {name: metric for name, metric in named.items() if not metric.startswith("system/")}
    of_models = [name for name in table.header if re.fullmatch(r"params\.(\w+[._])?model(_name|_id|_path)?", name)]
    model = next((name for name in (*of_models, "tags.mlflow.runName", "run_id") if name in table.header), "run_id")
    places = [table.places[name] for name in (model, *named)]
    return replace(table, header=["model", *named.values()], cells=table.cells[:, places])


def with_points(table: Table, options: ImportOptions, notes: Notes) -> Table:
    """The table with points for decimal commas, where no number of it has a point and some comma ends no thousand."""
    cells = [str(text) for text in table.cells.ravel()]
    commas = [text for text in cells if _DECIMAL_COMMA.fullmatch(text)]
    points = any(re.fullmatch(r"[-+]?\d*\.\d+.*", text) for text in cells)
    if not commas or points:
        return table
    if options.corrections.one_of("cell", table.path.name, ("decimal comma", "thousands")) == "thousands":
        return table
    pairs = [re.sub(r"(?<=\d),(?=\d)", ".", text) if re.match(r"[*_ ]*[-+]?\d*,\d", text) else text for text in cells]
    text = f"{commas[0]} is read as {commas[0].replace(',', '.')}"
    notes.decisions.append(
        Decision("cell", table.path.name, "decimal comma", "values", CONVERTED, len(commas), "thousands", text)
    )
    return replace(table, cells=np.array(pairs, dtype=object).reshape(table.cells.shape))


def steps_of_checkpoints(keys: Sequence[Claim]) -> dict[tuple[str | None, str | None], Claim]:
    """The step that the name of a checkpoint ends in (`step9`), by model and checkpoint: of models whose names with a
    number are alike before it and hold no other (`epoch1_step900` says nothing); none where steps or tokens are known.
    """
    named: dict[str | None, set[str]] = defaultdict(set)
    for key in keys:
        named[key.get("model")] |= {str(key.get("checkpoint"))}
    known = {key.get("model") for key in keys if {"iteration", "tokens_b"} & set(key)}
    found: dict[tuple[str | None, str | None], Claim] = {}
    for model in named.keys() - known:
        numbered = {name: _POINT.fullmatch(name) for name in named[model] if re.search(r"\d", name)}
        starts = {match and match[1].casefold() for match in numbered.values()}
        if len(starts) == 1:
            found |= {(model, name): {"iteration": int(match[2])} for name, match in numbered.items() if match}
    return found


def stem(path: Path) -> str:
    """A file's name without its endings."""
    return re.sub(r"(\.(csv|tsv|parquet|gz|jsonl?|ya?ml))+$", "", path.name)


def whole_number(text: str, least: int = -(2**63)) -> int | None:
    """A whole number from `least`, perhaps with `shots` or `k` behind it; None for any other text."""
    thousands = re.fullmatch(r"(\d+(?:\.\d+)?) ?k", text.strip(), re.IGNORECASE)
    number = plain_number(re.sub(r"[- ]?shots?$", "", text.strip(), flags=re.IGNORECASE))
    number = round(float(thousands[1]) * 1000, 6) if thousands else number
    return int(number) if number is not None and number == int(number) and least <= number < 2**63 else None


def plain_number(text: str) -> float | None:
    """The number of a text; None where there is none."""
    number = read_cell(text)
    return None if number is None else number.value
