"""Pages: sections, tables, findings, and how they become HTML, JSON and CSV."""

import base64
import csv
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from importlib import metadata, resources
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from lm_validity.files import replace_file, write_text
from lm_validity.words import UNDER, Missing, no_scores

if TYPE_CHECKING:
    from jinja2 import Environment


# ----------------------------------------------------------------------------------------------------------------------
# A page as JSON: what `page.json` holds and the HTML is made of.

FORMAT = 6  # of page.json; another one is of another version, whose pages this one cannot make
Value = bool | int | float | str | None  # of a cell: what sorting and the CSV download use; null where missing


class ColumnDocument(TypedDict):
    """`format`: Python's format spec of its numbers, or "p"; `scale`: what they are multiplied by when shown."""

    name: str
    label: str
    numeric: bool
    format: str | None
    scale: float


class TableDocument(TypedDict):
    """`reasons`: by `row,column`, why a value is missing."""

    name: str
    title: str
    caption: str
    folded: bool
    columns: list[ColumnDocument]
    rows: list[list[Value]]
    reasons: dict[str, str]


Fields = dict[str, str]  # of a `Lede`, `Picture`, `Panel` or `Answer`, by name; of a figure also its `file`


class SectionDocument(TypedDict):
    """`finding`: the sentence that its figures show, or ""."""

    title: str
    group: str
    hint: str
    finding: str
    explanation: str
    pictures: list[Fields]
    tables: list[TableDocument]
    notes: list[str]


class FindingDocument(TypedDict):
    """A `Finding` as page.json holds it."""

    sentence: str
    basis: str
    alarm: bool


class PageDocument(TypedDict):
    """`format`: version of the layout. `reasons`: of the dashes in its tables. `panels`: their fields, of which the
    outcome may be null."""

    format: int
    name: str
    title: str
    question: str
    lede: Fields | None
    picture: Fields | None
    panels: list[Fields]
    answers: list[Fields]
    findings: list[FindingDocument]
    sections: list[SectionDocument]
    notes: list[str]
    reasons: list[str]


# ----------------------------------------------------------------------------------------------------------------------
# A table's frame as a page shows it: missing values with their reasons, without what no protocol has.

_UNSCORED = set(map(no_scores, UNDER))


def table_document(table: "Table") -> TableDocument:
    """The table as JSON: what a page shows of its frame."""
    filled = _filled(table.frame)
    frame = without_missing(filled)
    columns: list[ColumnDocument] = [
        {
            "name": str(name),
            "label": table.labels.get(str(name), str(name).replace("_", " ")),
            "numeric": pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values),
            "format": table.formats.get(str(name)),
            "scale": table.scales.get(str(name), 1.0),
        }
        for name, values in frame.items()
    ]
    return {
        "name": table.name,
        "title": table.title,
        "caption": table.caption,
        "folded": table.folded,
        "columns": columns,
        "rows": [[plain_value(value) for value in row] for row in frame.itertuples(index=False, name=None)],
        "reasons": {f"{row},{column}": reason for row, column, reason in sorted(_reasons(filled))},
    }


def _reasons(frame: pd.DataFrame) -> Iterator[tuple[int, int, str]]:
    """Row, column and reason of each missing value that has one; columns of numbers have none."""
    for column, (_, values) in enumerate(frame.items()):
        if values.dtype == object:
            yield from ((row, column, value.reason) for row, value in enumerate(values) if isinstance(value, Missing))


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame without the rows and columns of a protocol under which nothing is known."""
    columns = list(frame.columns)
    if "protocol" in columns[:-1] and any(reason in _UNSCORED for _, _, reason in _reasons(frame)):
        right, protocol = columns[columns.index("protocol") + 1 :], frame["protocol"]
        has_value = without_missing(frame)[right].notna().any(axis=1).groupby(protocol).transform("any")
        unscored = frame[right].map(_is_unscored).any(axis=1).groupby(protocol).transform("any")
        frame = frame[has_value | ~unscored]
    unknown = [name for name, values in frame.items() if len(frame) and all(map(_says_nothing, values))]
    return frame.drop(columns=unknown) if unknown else frame


def _is_unscored(value: object) -> bool:
    return isinstance(value, Missing) and value.reason in _UNSCORED


def _says_nothing(value: object) -> bool:
    return _is_unscored(value) or (not isinstance(value, Missing) and plain_value(value) is None)


def without_missing(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `Missing` values as nulls; a column of numbers is one of numbers again."""
    columns = {
        str(name): [None if isinstance(value, Missing) else value for value in values]
        for name, values in frame.items()
        if values.dtype == object and any(isinstance(value, Missing) for value in values)
    }
    if not columns:
        return frame
    return frame.assign(**{name: pd.Series(values, index=frame.index) for name, values in columns.items()})


def write_csv(path: Path, columns: Iterable[object], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV file: a missing value is empty; texts that a spreadsheet would compute (`=1+1`, `@x`) get an
    apostrophe before them.

    Numbers are none of these, negative ones too, whether they are numbers or texts.
    """
    with replace_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(map(_csv_cell, columns))
        table.writerows(map(_csv_cell, row) for row in rows)


def _csv_cell(value: object) -> object:
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if not isinstance(value, str):
        return None if value is pd.NA else value
    if len(value) < 2 or value[0] not in "=+-@":
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def plain_value(value: object) -> Value:
    """What sorting and the CSV download use; null where missing."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, bool | int | float) else str(value)


# ----------------------------------------------------------------------------------------------------------------------
# A report as a page: the finding as its heading, a picture, panels, and everything else in folds.
#
#     page = Page(
#         name="agreement", title="Agreement", lede=Lede("Rankings agree better", "Agreement: 0.52 → 0.76", "95% of the
#         change: +0.15 to +0.33"), picture=Picture(svg(...)), findings=[Finding("Train before test raises the mean tau
#         from 0.52 to 0.76.", "61 models × 24 benchmarks.")], sections=[
#             Section(
#                 "Pairs of benchmarks", finding="274 of 276 pairs agree more.", figures=[Figure("tau_direct",
#                 "Direct evaluation", chart, caption="Kendall's tau-b.")], tables=[Table("tau_by_pair", "All
#                 pairs", frame, formats={"tau": ".3f"}, labels={"tau": "τ"})], notes=["Pairs with fewer than
#                 two common models are left out."],
#             )
#         ],
#         notes=["Notes on the data."],
#     )
#     write_page(page, output)
#
# `write_page` writes `page.json` (all that is needed to compose the page into a site), `index.html`,
# `tables/<name>.csv` with unrounded numbers, `figures/<name>.svg`, and `assets/`: the rows of the folds' tables, read
# when a fold is opened. All text is plain text: it is escaped on the page, so names from a user's files may hold
# anything. Figures without any value and sections without content are left out.

_NAME = re.compile(r"[a-z0-9_]+")
FINDINGS_SHOWN = 3  # on a page without a lede; alarms always


@dataclass(frozen=True)
class Finding:
    """One sentence that answers a question, with its interval in it; `basis` says what it rests on and what
    is missing. An `alarm` is shown in red: something went wrong that invalidates what follows.
    """

    sentence: str
    basis: str = ""
    alarm: bool = False


@dataclass(frozen=True)
class Table:
    """A frame under a file name. `formats`: Python format specs by column for the page (the CSV is
    unrounded), or "p" for p-values; `scales`: factors by column for what the page shows (CSV files are unscaled);
    `labels`: column headings, the column's name by default.
    A value may be a `Missing`: a dash that shows its reason, empty in the CSV.
    """

    name: str
    title: str
    frame: pd.DataFrame
    formats: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    caption: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Picture:
    """A static SVG of `pages/svg.py`, and a line under it that says how to read it."""

    svg: Markup
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A fold of the page: its title with a `hint` beside it, the sentence that its figures show, the figures, the
    tables, and remarks. On a page without a lede it is open. `group`: the question that it answers together with its
    neighbours, as a heading above them."""

    title: str
    finding: str = ""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    explanation: str = ""
    hint: str = ""
    group: str = ""
    pictures: Sequence[Picture] = ()


Outcome = Literal["yes", "in part", "no", "not known", "not measured"]


@dataclass(frozen=True)
class Panel:
    """A small picture that answers one question. `text`: **what it counts** in asterisks, with at most one interval.
    `outcome`: its mark; `word`: what stands beside the mark, the outcome itself by default."""

    question: str
    text: str
    svg: Markup
    outcome: Outcome | None = None
    word: str = ""


@dataclass(frozen=True)
class Answer:
    """An answer of a site's first page. `sentence`: at most 18 words with one pair of numbers. `interval`: its one
    interval in words, "95%: +0.15 to +0.33", or "". `basis`: on which models and benchmarks. `link`: to the page."""

    question: str
    sentence: str
    svg: Markup
    interval: str = ""
    basis: str = ""
    link: str = "More"


@dataclass(frozen=True)
class Lede:
    """What a page says above its first picture. `heading`: the finding. `sentence` and `interval`: as an answer's."""

    heading: str
    sentence: str = ""
    interval: str = ""


@dataclass(frozen=True)
class Page:
    """A report. `name` is its folder name: agreement, factors, signal, bias. `notes`: on the data. Above the folds
    stand the `lede`, the `picture` and up to three `panels`; `answers` are for the first page of a site.
    """

    name: str
    title: str
    findings: Sequence[Finding]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    question: str = ""
    lede: Lede | None = None
    picture: Picture | None = None
    panels: Sequence[Panel] = ()
    answers: Sequence[Answer] = ()


def write_page(page: Page, output: str | Path) -> None:
    """Write the page with its tables and figures under `output`; `index.html` last."""
    output = Path(output)
    _check_names(page)
    for section in page.sections:
        for table in section.tables:
            frame = without_missing(table.frame)
            write_csv(output / "tables" / f"{table.name}.csv", frame.columns, frame.itertuples(index=False, name=None))
    (output / "figures").mkdir(parents=True, exist_ok=True)  # a page without pictures has the folder that rules declare
    document = page_document(page)
    pictures = [document["picture"], *(picture for part in document["sections"] for picture in part["pictures"])]
    for figure in (*filter(None, pictures), *document["panels"]):
        note = figure["note"] if "note" in figure else figure["text"].replace("**", "")
        text = _ALONE.format(style=asset("page.css"), picture=figure["svg"], note=escape(note))
        write_text(output / "figures" / f"{figure['file']}.svg", text)
    write_text(output / "page.json", json.dumps(document, ensure_ascii=False, allow_nan=False))
    write_html(document, output)


# a picture as a file of its own, which browsers show and print
_ALONE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="800"><foreignObject width="100%" height="100%"><div '
    'xmlns="http://www.w3.org/1999/xhtml" class="picture"><style>{style}</style>{picture}<p>{note}</p></div>'
    "</foreignObject></svg>\n"
)


def page_document(page: Page) -> PageDocument:
    """The page as JSON: texts, pictures, table cells with what is shown and sorted by."""
    numbers = count(1)

    def drawn(figure: Picture | Panel) -> Fields:
        return {**_fields(figure), "file": f"{page.name}_{next(numbers)}"}

    picture = drawn(page.picture) if page.picture else None
    sections: list[SectionDocument] = [
        _fields(section) | {
            "pictures": [*map(drawn, section.pictures)],
            "tables": [table_document(table) for table in section.tables],
            "notes": list(section.notes),
        }
        for section in page.sections
    ]  # fmt: skip
    tables = [table for section in sections for table in section["tables"]]
    document: PageDocument = _fields(page) | {
        "format": FORMAT,
        "lede": _fields(page.lede) if page.lede else None,
        "picture": picture,
        "panels": [*map(drawn, page.panels)],
        "sections": [section for section in sections if any(section[part] for part in _CONTENT)],
        "notes": list(page.notes),
        "reasons": list(dict.fromkeys(reason for table in tables for reason in table["reasons"].values())),
    } | {name: list(map(_fields, getattr(page, name))) for name in ("answers", "findings")}  # fmt: skip
    return document


def _fields(record: object) -> Any:
    """A record as page.json holds it: its fields by name."""
    return dict(vars(record))


_CONTENT: tuple[Literal["finding", "pictures", "tables", "notes"], ...] = ("finding", "pictures", "tables", "notes")


# ----------------------------------------------------------------------------------------------------------------------
# The HTML. A page is read without script; a script draws what a fold holds when it opens.


class Link(NamedTuple):
    """An entry of a site's navigation: a title and the page that it leads to."""

    label: str
    href: str


Links = Sequence[Link]


def write_html(
    document: PageDocument, output: Path, navigation: Links = (), missing: Sequence[str] = (), source: str = ""
) -> None:
    """Write `index.html` of a page document under `output`, and the rows of its tables under `assets/`.

    `missing`: what an unfinished run lacks, named on top. `source`: what the page was made from, for its foot.
    """
    held = {f"table {table['name']}": _packed_rows(table) for part in document["sections"] for table in part["tables"]}
    if held:
        text = f"(window.lmValidity ??= {{}}).data = {json.dumps(held, separators=(',', ':'))};\n"
        write_text(output / "assets" / f"{document['name']}.js", text)
    write_text(output / "index.html", render(document, navigation, missing, source))


def render(document: PageDocument, navigation: Links = (), missing: Sequence[str] = (), source: str = "") -> str:
    """The HTML of a page document."""
    findings = document["findings"]
    quiet_findings = [finding for finding in findings if not finding["alarm"]]
    limit = 0 if document["lede"] else FINDINGS_SHOWN
    pictures = [document["picture"]["svg"]] if document["picture"] else []
    return from_template(
        "page.html.j2",
        title=document["lede"]["heading"] if document["lede"] else document["title"],
        description=document["lede"]["sentence"] if document["lede"] else document["question"],
        document=document,
        navigation=navigation,
        current=document["title"],
        missing=list(missing),
        source=source,
        alarms=[finding for finding in findings if finding["alarm"]],
        shown_findings=quiet_findings[:limit],
        folded_findings=quiet_findings[limit:],
        legend=legend_of([*pictures, *(panel["svg"] for panel in document["panels"])]),
    )


def from_template(template: str, **values: object) -> str:
    """The HTML of a template beside this module, which extends `base.html.j2`: `navigation`, `missing`, `title`."""
    inserted = {"style": asset("page.css"), "script": asset("page.js"), "current": "", "source": "",
                "navigation": (), "missing": (),
                "version": metadata.version("lm-validity"), "date": date.today().isoformat()}  # fmt: skip
    return environment().get_template(template).render(**inserted | values)


def legend_of(pictures: Sequence[str]) -> list[str]:
    """Which marks of `svg.py` need a line of the legend: d direct, t train before test, w interval, cl ceiling."""
    kinds_drawn = {kind for picture in pictures for marks in _CLASSES.findall(picture) for kind in marks.split()}
    return [kind for kind in ("d", "t", "w", "cl") if kind in kinds_drawn]


_CLASSES = re.compile(r'class="([^"]*)"')


def deflated(text: str) -> str:
    """Text, compressed (deflate) and in base64."""
    return base64.b64encode(zlib.compress(text.encode())).decode("ascii")


def _packed_rows(table: TableDocument) -> str:
    """The rows of a table document: by column the values, and what a cell shows where that is not the value itself;
    text for a <script> element, whatever strings are in it."""
    columns = list(zip(*table["rows"], strict=True)) or [() for _ in table["columns"]]
    rows_shown = [
        [_shown(value, column["format"], column["scale"]) for value in values]
        if any(value is not None and not isinstance(value, str) for value in values)
        else None
        for column, values in zip(table["columns"], columns, strict=True)
    ]
    held = {"values": columns, "shown": rows_shown, "reasons": table["reasons"]}
    return deflated(json.dumps(held, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def _shown(value: Value, number_format: str | None, scale: float) -> str:
    """What a table cell shows; missing values sort last and show a dash."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if number_format == "p":
        return "<.001" if value < 0.001 else format(value, ".3f")
    value = value if scale == 1.0 else value * scale
    return format(value, number_format or ("d" if isinstance(value, int) else ".4g"))


def _check_names(page: Page) -> None:
    """Table names become file names: plain and unique. A wrong one is a programming error."""
    names = [table.name for section in page.sections for table in section.tables]
    if wrong := [name for name in names if not _NAME.fullmatch(name) or names.count(name) > 1]:
        raise ValueError(f"tables of the page {page.name!r} with a bad or repeated name: {wrong}")


@cache
def environment() -> "Environment":
    """Jinja's environment of the templates beside this module, each compiled once: all but Markdown is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    templates = Environment(
        loader=PackageLoader("lm_validity.pages", "assets"),
        autoescape=select_autoescape(disabled_extensions=("md.j2",), default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["emphasised"] = emphasised
    return templates


def panel_grid(panels: Sequence[Panel]) -> Markup:
    """Small panels side by side, as many as there is room for: a picture that is made of them."""
    macro = environment().get_template("parts.html.j2").module.panel  # type: ignore[attr-defined]
    return Markup('<div class="grid4">{}</div>').format(Markup("").join(macro(panel) for panel in panels))


def emphasised(text: str) -> Markup:
    """The text, escaped, with **this** in bold."""
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(text))))


def asset(name: str) -> str:
    """The text of a file of the page kit."""
    return (resources.files("lm_validity.pages") / "assets" / name).read_text(encoding="utf-8")
