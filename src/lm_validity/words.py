"""Words for numbers: what sentences of reports, commands and pages have in common; and what commands print."""

import math
import os
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from lm_validity.files import read_page

if TYPE_CHECKING:  # every command imports this module, and the pages' imports pandas
    from lm_validity.pages.page import PageDocument

# ----------------------------------------------------------------------------------------------------------------------
# A value, or the reason why there is none.

T = TypeVar("T")


class ReasonCode(StrEnum):
    """Why a value is missing, for programs: the codes of `results.parquet`, each with what it means."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> "ReasonCode":
        """A code, with its meaning beside it."""
        member = str.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    NOT_COMPUTED = "not_computed", "The reason has no code of its own: its sentence says why."
    NO_SCORES = "no_scores", "There are no scores under the protocol."
    NO_ITEMS = "no_items", "It needs results item by item."
    NO_ERRORS = "no_errors", "It needs standard errors."
    NO_CHANCE = "no_chance", "It needs the benchmark's chance level."
    NO_RERUNS = "no_reruns", "It needs a model that was trained more than once."
    NO_RUNS = "no_runs", "It needs models whose answers were sampled several times."
    NO_PROMPTS = "no_prompts", "It needs scores under several prompts."
    NO_MODEL_PAIR = "no_model_pair", "It needs models that differ in their training data alone."
    TOO_FEW = "too_few", "There are too few models, benchmarks, tasks, items or checkpoints."
    SKIPPED = "skipped", "Nothing was resampled (`--resamples 0`)."
    NO_INTERVAL = "no_interval", "The resamples give no interval that could be trusted."
    RANGE = "range", "A range, of which only the ends have a meaning."
    NONE = "none", "There is no such thing in these data."


class Reason(str):
    """The sentence that says why a value is missing, with its code. Text that is made from it has the code no more."""

    code: ReasonCode

    def __new__(cls, sentence: str, code: ReasonCode = ReasonCode.NOT_COMPUTED) -> "Reason":
        """The sentence, with its code beside it."""
        reason = super().__new__(cls, sentence)
        reason.code = code
        return reason


def too_few(sentence: str) -> Reason:
    """The reason why a number that rests on too few things is missing."""
    return Reason(sentence, ReasonCode.TOO_FEW)


@dataclass(frozen=True)
class Missing:
    """A value that cannot be computed, and why: one sentence, which may be a `Reason` with its code."""

    reason: str

    @property
    def code(self) -> ReasonCode:
        """The code of the reason."""
        return self.reason.code if isinstance(self.reason, Reason) else ReasonCode.NOT_COMPUTED


def known(value: T | None, reason: str) -> T | Missing:
    """`value`, or a `Missing` with the reason where it is None or a number that is not finite."""
    if value is None or (isinstance(value, Real) and not math.isfinite(value)):
        return Missing(reason)
    return value


def is_known(value: T | Missing | None) -> TypeGuard[T]:
    """Whether a value is there: neither None nor `Missing`."""
    return value is not None and not isinstance(value, Missing)


def number(value: float | Missing | None) -> float:
    """The value for arithmetic and figures: NaN where it is missing."""
    return float(value) if value is not None and not isinstance(value, Missing) else math.nan


MINUS = "−"
# the two protocols in a sentence, and what they mean; of fine-tunes that others made only what their name says
UNDER = {"direct": "under direct evaluation", "train_before_test": "under train before test"}
_EXPLAINED = {
    "direct": "Direct evaluation scores each model as it is.",
    "train_before_test": "Train before test first fine-tunes each model on the benchmark's training set, by the same "
    "recipe for every model, and then scores it.",
}
_IMPORTED = (
    "Scores under train before test are of models that were prepared for the benchmark first, as their source says. "
    "How they were prepared, and whether all in the same way, is not known here."
)


def explain_protocols(protocols: Collection[str], *, trained_here: bool = False) -> str:
    """What those protocols mean, a sentence each. `trained_here`: a run of the workflow fine-tuned the models."""
    explained = _EXPLAINED if trained_here else _EXPLAINED | {"train_before_test": _IMPORTED}
    return " ".join(sentence for protocol, sentence in explained.items() if protocol in protocols)


def no_scores(protocol: str) -> Reason:
    """The reason why everything under a protocol without scores is missing."""
    return Reason(f"There are no scores {UNDER[protocol]}.", ReasonCode.NO_SCORES)


def decimal(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """A number for a sentence or a picture, with a real minus sign; `unknown` where there is none."""
    if value is None or not math.isfinite(value):
        return "unknown"
    rounded = round(float(value), digits) + 0.0  # no minus before a zero
    return f"{rounded:{'+' if signed else ''}.{digits}f}".replace("-", MINUS)


def percent(value: float | None) -> str:
    """A fraction for a sentence, as a percentage."""
    return "unknown" if value is None or not math.isfinite(value) else f"{100 * value:.0f}%"


def scale_of(billions: float) -> tuple[float, str]:
    """(factor, unit) for a number of billions: what to multiply it by, and `billion`, `million` or `thousand`."""
    for factor, unit in ((1.0, "billion"), (1e3, "million")):
        if billions * factor >= 1:
            return factor, unit
    return 1e6, "thousand"


def with_interval(
    value: float | None, interval: Sequence[float | None] | None, digits: int = 2, *, signed: bool = False
) -> str:
    """`0.52 (95% interval 0.48 to 0.56)`, or the number alone where there is no interval."""
    text = decimal(value, digits, signed=signed)
    if interval is None or any(end is None or not math.isfinite(end) for end in interval):
        return text
    low, high = (decimal(end, digits, signed=signed) for end in interval)
    return f"{text} (95% interval {low} to {high})"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun, such as `1 model` or `3 models`."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def listing(names: Iterable[object], limit: int = 12) -> str:
    """Names for a sentence; the rest is counted."""
    all_names = [str(name) for name in names]
    names_shown = ", ".join(all_names[:limit])
    return names_shown if len(all_names) <= limit else f"{names_shown} and {len(all_names) - limit} more"


def with_names(sentences: Mapping[str, Collection[object]]) -> list[str]:
    """Of `{"Models without a score: {}.": names}` the sentences that have names, with their listing in them."""
    return [sentence.format(listing(names)) for sentence, names in sentences.items() if names]


def shared_beginning(names: Iterable[str]) -> int:
    """How many letters all names begin with, up to a sign that ends a part of a name."""
    sorted_names = sorted(names)
    first, last = sorted_names[0], sorted_names[-1]  # what these two share, all share
    alike = next((index for index, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return max((first.rfind(sign, 0, alike) + 1 for sign in "_:/|- "), default=0)


def beginnings(names: Collection[str], least: int) -> dict[str, str]:
    """How each name begins, of the names that begin as at least `least` of them do, but not all. What all names begin
    with is passed over: `eval/arc_easy` and `eval/mmlu_law` begin with `arc` and `mmlu`."""
    shared_length = shared_beginning(names) if names else 0
    begins = {name: re.split(r"[_:/|-]", name[shared_length:])[0] for name in names}
    numbers = Counter(begins.values())
    return {name: begin for name, begin in begins.items() if least <= numbers[begin] < len(begins)}


# ----------------------------------------------------------------------------------------------------------------------
# What commands print: no line is wider than the terminal. Where standard output is none, lines are whole. What
# reports found, as lines of a terminal: a line or two a study, or everything.


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
