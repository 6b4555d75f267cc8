"""What reports found, as lines of a terminal: a line or two a study, or everything."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lm_validity.outputs import read_page
from lm_validity.terminal import terminal_width

if TYPE_CHECKING:  # every command imports this module, and the pages' imports Altair and pandas
    from lm_validity.pages.page import PageDocument

# of the studies together; with the report's place and the command for more, which narrow terminals break, at most 12
WIDTH, LINES = 80, 10
_SENTENCE_END = re.compile(r"(?<=[.?]) (?=[A-Z])")


def headlines(reports: Iterable[Path]) -> list[str]:
    """What each report's page says first, with its interval: together at most LINES lines of WIDTH columns. Where
    that is too few, headings go where a sentence has an interval, then what the run computed, and then the longest are
    cut, behind a sentence where one ends there."""
    documents = [read_page(folder / "page.json") for folder in reports]
    studies = documents
    indent = " " * (max((len(document["name"]) for document in documents), default=0) + 2)
    width = max(20, min(WIDTH, terminal_width()) - len(indent))
    texts = [_first(document) for document in documents]
    limit = LINES - (terminal_width() < WIDTH)
    if sum(len(textwrap.wrap(text, width)) for text in texts) > limit:
        studies = [document for document in documents if document["name"] != "computation"]
        texts = [_first(document, heading=False) for document in studies]
    line_counts = [len(textwrap.wrap(text, width)) for text in texts]
    while sum(line_counts) > limit and max(line_counts) > 1:
        line_counts[line_counts.index(max(line_counts))] -= 1
    lines = []
    for document, text, room in zip(studies, texts, line_counts, strict=True):
        first, *further_lines = _wrapped(text, width, max(1, room))
        lines += [document["name"].capitalize().ljust(len(indent)) + first, *(indent + line for line in further_lines)]
    return lines


def _wrapped(text: str, width: int, room: int) -> list[str]:
    """At most `room` lines, at least one: as many whole sentences as they hold, else the first is cut."""
    sentences = _SENTENCE_END.split(text)
    for number in range(len(sentences), 0, -1):
        lines = textwrap.wrap(" ".join(sentences[:number]), width, break_on_hyphens=False)
        if len(lines) <= room:
            return lines
    return textwrap.wrap(text, width, max_lines=room, placeholder=" …", break_on_hyphens=False)


def _first(document: "PageDocument", *, heading: bool = True) -> str:
    """The page's heading, sentence and interval; on a page without them its first finding's first sentence. Without
    `heading`: the sentence alone, where it has an interval."""
    if lede := document.get("lede"):
        texts = [lede["heading"], lede["sentence"]] if heading or not lede["interval"] else [lede["sentence"]]
        parts_of_lede = [text.removesuffix(".") for text in texts if text]
        parts_of_lede[-1] += f" ({lede['interval']})" * bool(lede["interval"])
        text = " ".join(part if part.endswith("?") else f"{part}." for part in parts_of_lede)
    else:
        sentences = [finding["sentence"] for finding in document["findings"]]
        text = _SENTENCE_END.split(sentences[0])[0] if sentences else "No finding."
    return text.replace("**", "")


def all_findings(reports: Sequence[Path]) -> list[str]:
    """Each report's findings as sentences; its numbers lie beside its page, in results.csv."""
    lines = []
    for folder in reports:
        document = read_page(folder / "page.json")
        lines += ["", document["title"], *(f"- {finding['sentence']}" for finding in document["findings"])]
    return lines
