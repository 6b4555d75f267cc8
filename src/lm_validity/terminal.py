"""What commands print: no line is wider than the terminal. Where standard output is none, lines are whole."""

import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence


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
