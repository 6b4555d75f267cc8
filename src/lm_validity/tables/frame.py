"""Any container as tables of text cells: CSV, Excel, parquet, JSON, YAML, Markdown and HTML, alone and in folders.

Every column has a name. Parts of the path become `folder 1`, `folder 2`, ..., `file`, what the names of several files
share `files`, the heading above a table `heading`, and keys of nested objects that are data `level 1`, `level 2`, ...
"""

import csv
import io
import itertools
import json
import operator
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from lm_validity.config.rows import read_text
from lm_validity.errors import InputError, first_line
from lm_validity.files import check_encodable
from lm_validity.tables.metrics import plain_text

READABLE = (".csv", ".tsv", ".txt", ".xlsx", ".parquet", ".json", ".jsonl", ".ndjson", ".yaml", ".yml", ".md",
            ".markdown", ".html", ".htm")  # fmt: skip
_TREES = (".json", ".jsonl", ".ndjson", ".yaml", ".yml", "")
_OTHER_KINDS = {
    ".xls": "save it as .xlsx or CSV", ".ods": "save the sheet as .xlsx or CSV",
    ".tex": "write the table as CSV or Markdown", ".ipynb": "write the table as a file: frame.to_csv('scores.csv')",
}  # fmt: skip
_LAYOUT = "give a table as CSV, Excel, parquet, JSON, YAML, Markdown or HTML."
_MOST_ROWS = 10_000_000  # of a parquet file, which may be small with very many
GLUE = "\x1f"  # between the names of nested keys, until they are shortened
_PLACES = re.compile(r"folder \d+|files|file( [12])?|heading|level \d+")
IDENTIFIERS = ("name", "id", "label", "title", "slug", "key", "display_name")  # say little without the key above
_AROUND = {"folder": "path", "files": "path", "file": "path", "heading": "heading", "level": "level"}  # in this order
# What libraries say of broken files
_BROKEN = (ValueError, KeyError, AttributeError, TypeError, RecursionError, OSError, pa.ArrowException, yaml.YAMLError,
           zipfile.BadZipFile)  # fmt: skip
Schema = tuple[str, ...]
Row = dict[str, str]


class Source(NamedTuple):
    """A file, and the parts of its path below what was given, the last without its ending."""

    path: Path
    parts: tuple[str, ...]
    named: bool = True


class Block(NamedTuple):
    """Rows of one kind of a file as text cells. `places`: of each, where it stands in its file."""

    schema: Schema
    cells: pd.DataFrame
    places: list[str]


@dataclass
class Table:
    """Rows of one kind, from any number of files: text cells, and where each row is from."""

    cells: pd.DataFrame
    places: list[str]
    files: np.ndarray
    kinds: dict[str, str]  # of each column: path, level, heading or cell
    schema: Schema
    sources: Sequence[Source]

    def place(self, row: int) -> str:
        """Where a row stands: file and line, or file and object."""
        return f"{self.sources[self.files[row]].path}, {self.places[row]}"


@dataclass
class Frame:
    """All tables of an input, coarsest first, its files, and those that gave none, with the reason."""

    tables: list[Table]
    sources: list[Source]
    skipped: dict[Path, str]


def frame(sources: Sequence[Source]) -> Frame:
    """The tables of the files. A file that was named itself and cannot be read raises InputError."""
    skipped: dict[Path, str] = {}
    groups: dict[Schema, list[_Group]] = {}
    common, names = file_names([source.parts for source in sources])
    halves = _halves(set(names))
    for number, (source, name) in enumerate(zip(sources, names, strict=True)):
        try:
            blocks = [block for block in _blocks(source.path) if block.places]
        except InputError as error:
            if source.named:
                raise
            skipped[source.path] = error.problem.removeprefix(f"{source.path}").lstrip(":, ")
            continue
        if not blocks:
            skipped[source.path] = "has no table"
        above = {f"folder {i}": part for i, part in enumerate(source.parts[:-1], 1)}
        above |= {"file": name} | ({"files": common} if common else {})
        above |= dict(zip(("file 1", "file 2"), halves.get(name, ()), strict=False))
        for block in blocks:
            cells = block.cells.assign(**{key: text for key, text in above.items() if key not in block.cells})
            _group(block, groups).append((number, block._replace(cells=cells)))
    tables = [_table(group.parts, sources) for group in itertools.chain(*groups.values())]
    return Frame(sorted(tables, key=lambda table: (len(table.schema), -len(table.cells))), list(sources), skipped)


class _Group(NamedTuple):
    """Rows of one kind from several files, with the number of each: the first column of a table, and all columns."""

    first: str | None
    names: set[str]
    parts: list[tuple[int, Block]]


def _group(block: Block, groups: dict[Schema, list[_Group]]) -> list[tuple[int, Block]]:
    """The rows of the same kind from earlier files, or a new group."""
    names = set(map(str, block.cells))
    similar = groups.setdefault(block.schema, [])
    first = next((name for name in block.cells if not _PLACES.fullmatch(name)), None)
    for group in similar[::-1]:
        shared = 2 * len(names & group.names) >= min(len(names), len(group.names))
        if shared and (block.schema != ("table",) or group.first == first):
            group.names.update(names)
            return group.parts
    similar.append(_Group(first, names, []))
    return similar[-1].parts


def _table(group: list[tuple[int, Block]], sources: Sequence[Source]) -> Table:
    cells = pd.concat([block.cells for _, block in group], ignore_index=True).fillna("")
    own = [name for name in cells if not _PLACES.fullmatch(name)]
    order = [*_AROUND].index
    around = sorted(set(cells) - set(own), key=lambda name: (order(name.split()[0]), name.zfill(12)))
    short = _short(own)
    kinds = {name: _AROUND[name.split()[0]] for name in around} | {short[name]: "cell" for name in own}
    files = np.repeat([number for number, _ in group], [len(block.places) for _, block in group])
    places = [place for _, block in group for place in block.places]
    return Table(cells[[*around, *own]].rename(columns=short), places, files, kinds, group[0][1].schema, sources)


def _short(names: list[str]) -> dict[str, str]:
    """The shortest ending of nested keys that tells each column from the others."""
    endings: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(GLUE)
        first = len(parts) - 1 - (parts[-1] in IDENTIFIERS and len(parts) > 1)
        endings[name] = [".".join(parts[i:]) for i in range(first, -1, -1)]
    counts = Counter(ending for each in endings.values() for ending in each)
    return {
        name: next((end for end in each if counts[end] == 1 and not _PLACES.fullmatch(end)), each[-1])
        for name, each in endings.items()
    }


def file_names(paths: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """What the names of files share at their beginning and end, and each without it; whole where a name of digits
    would be left."""
    stems = [parts[-1] for parts in paths]
    split = [re.split(r"([_. ]+)", stem) for stem in stems]
    if len(set(stems)) < 2:
        return "", stems
    shortest = min(map(len, split))
    front = next((i for i in range(shortest) if len({words[i] for words in split}) > 1), shortest - 1) // 2 * 2
    back = next((i for i in range(shortest - front) if len({words[-1 - i] for words in split}) > 1), 0) // 2 * 2
    names = ["".join(words[front : len(words) - back]) for words in split]
    if not all(re.search(r"[^\W\d_]{2}", name) for name in names):
        return "", stems
    shared = [*split[0][:front:2], *split[0][len(split[0]) - back + 1 :: 2]] if front or back else []
    return " ".join(filter(None, shared)), names


def _halves(names: set[str]) -> dict[str, tuple[str, str]]:
    """The two parts of each file's name, where they are a grid: of `ant_law`, `ant_art`, `bee_law` and `bee_art` the
    models and the tasks; {} where they are none."""
    for sign, last in itertools.product(("__", "_", "-", " ", "."), (False, True)):
        parts = {name: name.rpartition(sign) if last else name.partition(sign) for name in names}
        pairs = {name: (first, second) for name, (first, _, second) in parts.items() if first and second}
        firsts, seconds = ({pair[i] for pair in pairs.values()} for i in (0, 1))
        if len(pairs) == len(names) == len(firsts) * len(seconds) and len(firsts) > 1 and len(seconds) > 1:
            return pairs
    return {}


# ----------------------------------------------------------------------------------------------------------------------
# One file.


def _blocks(path: Path) -> list[Block]:
    """The rows of a file, by kind. Raises InputError for a file that its library cannot read."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in _OTHER_KINDS:
        raise InputError(f"{path}: {suffix} is not read.", f"{_OTHER_KINDS[suffix]}.")
    try:
        if suffix == ".xlsx":
            return _of_excel(path)
        return [_of_parquet(path)] if suffix == ".parquet" else _of_text(read_text(path, _LAYOUT), suffix, path)
    except InputError:
        raise
    except _BROKEN as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}).", _LAYOUT) from error


def _of_text(text: str, suffix: str, path: Path) -> list[Block]:
    """The rows of a text by its suffix; of others as Markdown where it has such a table, else as separated cells."""
    if suffix in (".yaml", ".yml"):
        return _of_tree(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    if suffix in _TREES:
        document = _json(text)
        if "\\ud" in text.lower():  # perhaps half of a pair of surrogates, which no file can hold
            check_encodable(json.dumps(document, ensure_ascii=False), str(path))
        return _of_tree(document)
    if suffix in (".html", ".htm"):
        return _of_html(text, path)
    if (card := _of_card(text)) is not None:
        return [card]
    marked = suffix not in (".csv", ".tsv") and re.search(r"^\s*\|.*\|.*\|\s*$", text, re.M)
    return _of_markdown(text) if marked or suffix in (".md", ".markdown") else [_grid(_cells(text), "row ")]


def _library(name: str, path: Path) -> Any:
    """A library of the extra `tables`. Raises InputError where it is not installed."""
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as error:
        hint = "pip install 'lm-validity[tables]'; or save the table as CSV."
        raise InputError(f"{path}: needs {name.split('.')[0]}, which is not installed.", hint) from error


def _text(value: Any) -> str:
    """A value as a cell: nothing for null and not-a-number, the parts of a list with semicolons."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, list | tuple | np.ndarray):
        return "; ".join(map(_text, value))
    return str(value).strip()


def _of_excel(path: Path) -> list[Block]:
    book = _library("openpyxl", path).load_workbook(path, data_only=True, read_only=True)
    blocks = []
    for sheet in book.worksheets:
        rows = [[_text(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
        blocks.append(_grid(rows, f"{sheet.title}, row ", sheet.title if len(book.worksheets) > 1 else ""))
    return blocks


def _of_parquet(path: Path) -> Block:
    rows = pq.read_metadata(path).num_rows
    if rows > _MOST_ROWS:
        raise InputError(f"{path}: {rows} rows, more than any table of scores.", "give the scores, or a part of them.")
    cells = pd.read_parquet(path)
    if not isinstance(cells.index, pd.RangeIndex):
        cells = cells.reset_index()
    texts = {str(name): [_text(value) for value in cells[name]] for name in cells}
    return Block(("table",), pd.DataFrame(texts, dtype=object), [f"row {i}" for i in range(1, len(cells) + 1)])


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines]


def _cells(text: str) -> list[list[str]]:
    """The cells of a text with a separator: the one that cuts most lines into the same number of parts."""
    head = [line for line in text.splitlines()[:30] if line.strip()]

    def regular(separator: str) -> tuple[int, int]:
        counts = Counter(len(row) for row in csv.reader(head, delimiter=separator) if len(row) > 1)
        width, often = max(counts.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
        return often, width

    csv.field_size_limit(2**27)
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=max("\t,;|", key=regular)))


_RULE = re.compile(r"[-:=| ]*")


def _grid(rows: list[list[str]], place: str, heading: str = "", *, fill: bool = False) -> Block:
    """The rows below the header, which is the first line at least half as wide as the table. `place` begins the name of
    a row, which ends in its number; with `fill` an empty first cell is as the one above."""
    filled = [sum(bool(cell.strip()) for cell in row) for row in rows]
    wide = max(filled, default=0)
    top = next((i for i, number in enumerate(filled) if number > 1 and 2 * number > wide), None)
    if top is None:
        return Block(("table",), pd.DataFrame(), [])
    names, below = _header(rows, top)
    width = len(names)
    body, places, above = list[list[str]](), list[str](), ""
    for i, row in enumerate(rows[below:], below + 1):
        if filled[i - 1] == 0 or (filled[i - 1] == 1 and wide > 2) or row == rows[top]:
            continue
        cells = [cell.strip() for cell in row[:width]] + [""] * (width - len(row))
        if fill and "-" in "".join(cells) and all(map(_RULE.fullmatch, cells)):
            continue
        if fill:
            above = cells[0] = cells[0] or above
        body.append(cells)
        places.append(f"{place}{i}")
    table = pd.DataFrame(body, columns=names, dtype=object)
    table = table[[name for name in names if not name.startswith("column ") or table[name].any()]]
    return Block(("table",), table.assign(heading=heading) if heading else table, places)


_DECIMAL = re.compile(r"-?\d*\.\d+")
_PLAIN_NUMBER = re.compile(r"[-+]?[\d.]+%?")


def _header(rows: list[list[str]], top: int) -> tuple[list[str], int]:
    """The names of the columns, and the first row below them: of a header of several lines the words of all, of a table
    without one `column 1`, ..."""
    width = max(len(rows[top]), *(len(row) for row in rows[top : top + 3]))
    lines = [[*map(plain_text, row[:width])] + [""] * (width - len(row)) for row in rows[: top + 4]]
    names, below = lines[top], top + 1
    if any(map(_DECIMAL.fullmatch, names)):
        return [f"column {i}" for i in range(1, width + 1)], top
    for i in range(top + 1, min(len(lines), len(rows) - 1)):
        if all(map(_RULE.fullmatch, lines[i])):
            continue
        is_open = [not name or names.count(name) > 1 for name in names]
        if any(map(_PLAIN_NUMBER.fullmatch, lines[i])) or not any(map(operator.and_, is_open, map(bool, lines[i]))):
            break
        names, below = _joined_lines(names, lines[i]), i + 1
    for i in range(top - 1, max(top - 3, -1), -1):  # merged cells above names that are there twice
        twice = len(set(filter(None, names))) < sum(map(bool, names))
        if not twice or sum(map(bool, lines[i])) < 2 or any(map(_PLAIN_NUMBER.fullmatch, lines[i])):
            break
        names = _joined_lines(lines[i], names)
    found: list[str] = []
    for i, name in enumerate(names, 1):
        name = name or f"column {i}"
        found.append(name if name not in found and not _PLACES.fullmatch(name) else f"{name} {i}")
    return found, below


def _joined_lines(upper: list[str], lower: list[str]) -> list[str]:
    """The names of two lines of a header; a cell above reaches as far as cells below it say something."""
    group, joined = "", list[str]()
    for name, word in zip(upper, lower, strict=True):
        group = name or (group if word else "")
        joined.append(" ".join(filter(None, [group, word] if group != word else [word])))
    return joined


def _of_card(text: str) -> Block | None:
    """The results in the front matter of a model's card on its hub, as rows; None where there are none. Parts of a
    dataset are benchmarks; scores of one part that contradict each other are left out."""
    before, begin, rest = text.partition("---\n")
    if before.strip() or not begin or "model-index:" not in rest:
        return None
    found: dict[tuple[str, ...], set[str]] = {}
    for model in yaml.safe_load(rest.partition("\n---")[0]).get("model-index") or []:
        for result in model.get("results") or []:
            data = result.get("dataset") or {}
            name = re.sub(r"\s*\([^)]*-shot\)", "", _text(data.get("name")), flags=re.I)
            for metric in result.get("metrics") or []:
                benchmark = "/".join(filter(None, [name, _text(data.get("config"))]))
                key = (_text(model.get("name")), benchmark, _text(metric.get("type")))
                found.setdefault(key, set()).add(_text(metric.get("value")))
    rows = [(*key, *values) for key, values in found.items() if len(values) == 1]
    cells = pd.DataFrame(rows, columns=["model", "benchmark", "metric", "score"], dtype=object)
    return Block(("table",), cells, [f"result {i}" for i in range(1, len(rows) + 1)])


_RULE_BELOW = re.compile(r"\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*")  # below the header of a table in Markdown
_PRINTED = re.compile(r"\((?:pretrained|model)=([^,)]+)")


def _of_markdown(text: str) -> list[Block]:
    heading, model, block, start, found = "", "", list[list[str]](), 0, list[Block]()
    lines = [*text.splitlines(), ""]
    for i, line in enumerate(lines, 1):
        opens = "|" in line and i < len(lines) and bool(_RULE_BELOW.fullmatch(lines[i]))
        if line.strip().startswith("|") or opens or (block and "|" in line):
            start = start or i
            block.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
            continue
        if block:
            if model:  # tasks of a group whose own score counts
                block = [row for row in block if not row[0].startswith("- ")]
            rows = _grid([[""]] * (start - 1) + block, "line ", heading, fill=True)
            found.append(rows._replace(cells=rows.cells.assign(model=model)) if model else rows)
            block, start = [], 0
        if printed := _PRINTED.search(line):  # above a table that lm-eval prints
            model = printed[1]
        if match := re.match(r"#+\s+(.*)|\*\*(.+)\*\*:?\s*$|(\S.*):\s*$", line):
            heading = plain_text(next(filter(None, match.groups()), ""))
    return found


def _of_html(text: str, path: Path) -> list[Block]:
    html = _library("lxml.html", path)
    heading, found = "", list[Block]()
    for number, node in enumerate(html.fromstring(text or "<p/>").iter("h1", "h2", "h3", "h4", "table"), 1):
        if node.tag != "table":
            heading = " ".join(node.text_content().split())
            continue
        caption = node.find("caption")
        own = heading if caption is None else " ".join(caption.text_content().split())
        found.append(_grid(_html_rows(node), f"table {number}, row ", own, fill=True))
    return found


def _html_rows(table: Any) -> list[list[str]]:
    """The cells of a table in HTML, each merged cell in all its places."""
    rows, pending = list[list[str]](), dict[tuple[int, int], str]()
    for i, line in enumerate(table.iter("tr")):
        row: list[str] = []
        for cell in line.iter("td", "th"):
            while (i, len(row)) in pending:
                row.append(pending[i, len(row)])
            text = " ".join(cell.text_content().split())
            for _ in range(_span(cell.get("colspan"))):
                pending |= {(i + down, len(row)): text for down in range(1, _span(cell.get("rowspan")))}
                row.append(text)
        while (i, len(row)) in pending:
            row.append(pending[i, len(row)])
        rows.append(row)
    return rows


def _span(text: str | None) -> int:
    return min(int(text), 100) if text and text.isdigit() else 1


# ----------------------------------------------------------------------------------------------------------------------
# Nested objects.


def _of_tree(document: Any) -> list[Block]:
    """Nested objects as rows, by kind: keys that are data become levels, keys that are names become columns."""
    by_kind: dict[Schema, list[tuple[Row, str]]] = {}
    for schema, row, place in _tree(document, (), (), (), {}, ""):
        by_kind.setdefault(schema, []).append((row, place))
    return [Block(schema, pd.DataFrame([row for row, _ in rows], dtype=object).fillna(""), [place for _, place in rows])
            for schema, rows in by_kind.items()]  # fmt: skip


def _leaf(value: Any) -> bool:
    """Whether a value is no object, and no list of objects or lists."""
    if isinstance(value, list):
        return not any(isinstance(each, dict | list) for each in value)
    return not isinstance(value, dict)


def _tree(
    node: Any, schema: Schema, names: tuple[str, ...], levels: tuple[str, ...], carried: Row, spot: str
) -> Iterator[tuple[Schema, Row, str]]:
    """Each record below a node with its kind, its cells and its place. `names`: keys above that are names; `levels`:
    keys above that are data; `carried`: cells of the records above."""
    for i, child in enumerate(node if isinstance(node, list) else (), 1):
        lower = (*levels, str(i)) if levels else levels
        yield from _tree(child, (*schema, "[]"), names, lower, carried, f"{spot}[{i}]")
    if isinstance(node, list):
        return
    node = {str(key): value for key, value in node.items()} if isinstance(node, dict) else {"value": node}
    if (table := _by_columns(node)) is not None:
        yield from _tree(table, schema, names, levels, carried, spot)
        return
    leaves = _leaves(node)
    below = {key: value for key, value in node.items() if key not in leaves}
    if not leaves and below and _alike(list(below.values()), nested=bool(levels)):
        for key, child in below.items():
            yield from _tree(child, (*schema, "*"), names, (*levels, key), carried, f"{spot}.{key}")
        return
    flat = _flat(below)
    own = {GLUE.join((*names, key)): _text(value) for key, value in leaves.items()}
    own |= {GLUE.join((*names, key, str(name))): _text(x) for key, child in flat.items() for name, x in child.items()}
    if own:
        at = {f"level {i}": level for i, level in enumerate(levels, 1)}
        yield schema, {**at, **carried, **own}, spot.lstrip(".") or "its object"
    deep = {key: child for key, child in below.items() if key not in flat}
    records = {key: child for key, child in deep.items() if isinstance(child, dict)}
    if not own or len(records) < 2 or not _alike(list(records.values()), nested=True):
        records = {}
    for key, child in deep.items():
        if key in records:
            yield from _tree(child, (*schema, "*"), names, (*levels, key), carried | own, f"{spot}.{key}")
        else:
            yield from _tree(child, (*schema, key), (*names, key), levels, carried | own, f"{spot}.{key}")


def _leaves(node: dict[str, Any]) -> dict[str, Any]:
    """What is no object in an object; nothing where each key has a list of numbers, which are runs or items."""
    leaves = {key: value for key, value in node.items() if _leaf(value)}
    return {} if len(leaves) == len(node) > 1 and all(map(_numbers, leaves.values())) else leaves


def _numbers(value: Any) -> bool:
    """Whether a value is a list of several numbers."""
    return isinstance(value, list) and len(value) > 1 and all(isinstance(x, int | float | None) for x in value)


def _flat(below: dict[str, Any]) -> dict[str, Any]:
    """Objects of nothing but leaves, whose keys are further columns; {} where they are alike, so records."""
    flat = {key: child for key, child in below.items() if isinstance(child, dict) and all(map(_leaf, child.values()))}
    shapes = {frozenset(child) for child in flat.values()}
    return {} if len(flat) > 1 and len(shapes) == 1 and max(map(len, shapes)) > 1 else flat


def _by_columns(node: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The records of a table that is written by columns, or as rows beside a list of their names; None elsewhere."""
    rows = next((value for key in ("data", "rows") if isinstance(value := node.get(key), list)), None)
    if rows:
        return _of_rows(node, rows)
    columns = list(node.values())
    if len(columns) < 2:
        return None
    if all(isinstance(each, dict) for each in columns):
        keys = list(columns[0])
        numbered = len(keys) > 1 and list(map(str, keys)) == [str(i) for i in range(len(keys))]
        if not numbered or any(list(each) != keys for each in columns):
            return None
        columns = [list(each.values()) for each in columns]
    if not all(isinstance(each, list) and _leaf(each) for each in columns):
        return None
    of_names = any(all(isinstance(cell, str) for cell in each) for each in columns)
    if not of_names or len({len(each) for each in columns}) > 1 or len(columns[0]) < 2:
        return None
    return [dict(zip(node, row, strict=True)) for row in zip(*columns, strict=True)]


def _of_rows(node: dict[str, Any], rows: list[Any]) -> list[dict[str, Any]] | None:
    """The records of rows, lists beside a list of names."""
    if not all(isinstance(row, list) and _leaf(row) for row in rows):
        return None
    heads = [value for value in node.values() if isinstance(value, list) and value is not rows]
    heads = [head for head in heads if all(isinstance(cell, str) for cell in head)]
    names = next((head for head in heads if len(head) == len(rows[0])), None)
    if names is None:
        return None
    labels = next((head for head in heads if head is not names and len(head) == len(rows)), None)
    index = [{}] * len(rows) if labels is None else [{"index": label} for label in labels]
    return [label | dict(zip(names, row, strict=False)) for label, row in zip(index, rows, strict=True)]


def _alike(values: list[Any], *, nested: bool) -> bool:
    """Whether the values of an object are of one kind, so that its keys are data and no names of fields."""
    if len({type(value) for value in values}) > 1:
        return False
    if len(values) == 1:
        return nested or isinstance(values[0], dict)
    shapes = [_shape(value) for value in values]
    union = set[str]().union(*shapes)
    if sum(len(shape) for shape in shapes) >= 0.5 * len(union) * len(shapes):
        return True
    kinds = [{type(each) for each in value.values()} for value in values if isinstance(value, dict)]
    return bool(kinds) and all(kind <= {int, float, type(None)} or kind == {dict} for kind in kinds)


def _shape(value: Any) -> set[str]:
    first = next((each for each in value if isinstance(each, dict)), {}) if isinstance(value, list) else value
    return set(map(str, first))
