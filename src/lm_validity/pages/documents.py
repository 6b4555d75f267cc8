"""A page as JSON: what `page.json` holds and the HTML is made of."""

from typing import Literal, NotRequired, TypedDict

from lm_validity.pages.figure_content import Spec

Value = bool | int | float | str | None  # of a cell: what sorting and the CSV download use; null where missing


class FindingDocument(TypedDict):
    """`basis`: what the sentence rests on and what is missing. `alarm`: the page shows it in red."""

    sentence: str
    basis: str
    alarm: bool


class FigureDocument(TypedDict):
    """`spec`: Vega-Lite. `wide`: it takes a row of its own. `min_width`: in pixels; narrower screens scroll it."""

    name: str
    title: str
    caption: str
    wide: bool
    min_width: int
    spec: Spec


class ColumnDocument(TypedDict):
    """`format`: Python's format spec of its numbers, or "p"; `scale`: what they are multiplied by when shown."""

    name: str
    label: str
    numeric: bool
    format: str | None
    scale: NotRequired[float]


class TableDocument(TypedDict):
    """`reasons`: by `row,column`, why a value is missing. `links`: by row, where the first column leads."""

    name: str
    title: str
    caption: str
    folded: bool
    columns: list[ColumnDocument]
    rows: list[list[Value]]
    reasons: NotRequired[dict[str, str]]
    links: NotRequired[list[str]]


class SectionDocument(TypedDict):
    """`finding`: the sentence that its figures show, or "". Figures that would show no value are left out."""

    title: str
    finding: str
    explanation: str
    figures: list[FigureDocument]
    tables: list[TableDocument]
    notes: list[str]
    folded: NotRequired[bool]


class PageDocument(TypedDict):
    """`format`: version of the layout. `reasons`: of the dashes in its tables."""

    format: Literal[1]
    name: str
    title: str
    question: str
    before_findings: bool
    findings: list[FindingDocument]
    sections: list[SectionDocument]
    notes: list[str]
    reasons: list[str]
