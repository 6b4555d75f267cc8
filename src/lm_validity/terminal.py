"""What commands print: no line is wider than the terminal. Where standard output is none, lines are whole. What reports
found, as lines of a terminal: a line or two a study, or everything."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lm_validity.files import read_page

if TYPE_CHECKING:  # every command imports this module, and the pages' imports pandas
    from lm_validity.pages.page import PageDocument


def terminal_width() -> int:
    """Columns of the terminal; where standard output is none (a file, a pipe), more than any line has."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 100_000


def say(*texts: object) -> None:
    """Print texts, each line broken between words and continued under its beginning. A path stays whole."""
    for line in (line for text in texts for line in str(text).split("\n")):
        if len(line) <= (width := terminal_width()):
            print(line, flush=True)
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        broken = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        print("\n".join(broken), flush=True)


def error_text(problem: str, hint: str) -> str:
    """A problem and what to do about it, for standard error.

    In a terminal two wrapped paragraphs, `error:` and `help:`, in colour unless NO_COLOR is set (no-color.org). A
    program that reads it gets one line: `Error: ... Hint: ...`.
    """
    if not sys.stderr.isatty():
        return " ".join(f"Error: {problem} Hint: {hint}".split())
    width = shutil.get_terminal_size().columns
    paragraphs = []
    for title, colour, text in (("error:", 31, problem), ("help:", 36, hint)):
        lines = textwrap.wrap(
            f"{title} {' '.join(text.split())}", width, subsequent_indent="  ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        coloured = "" if os.environ.get("NO_COLOR") else f"\x1b[1;{colour}m"
        paragraphs.append("\n".join(lines).replace(title, f"{coloured}{title}\x1b[0m" if coloured else title, 1))
    return "\n".join(paragraphs)


def say_markdown(text: str) -> None:
    """Print Markdown: set in a terminal, as it is elsewhere."""
    from rich.console import Console
    from rich.markdown import Markdown

    if sys.stdout.isatty():
        Console(width=terminal_width()).print(Markdown(text))
    else:
        print(text)


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]], text: Collection[int] = (0,)) -> str:
    """Aligned columns no wider than the terminal: those in `text` to the left and folded where they must be, the
    others to the right."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="none")
    for number, name in enumerate(head):
        table.add_column(Text(name), justify="left" if number in text else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    written = StringIO()
    console = Console(file=written, width=terminal_width(), color_system=None)
    if console.measure(table).maximum > console.width:
        table.padding = (0, 1, 0, 0)
    console.print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


# ----------------------------------------------------------------------------------------------------------------------
# What reports found.

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
