"""The words that need an explanation: one text, for the pages of the reports and for the documentation."""

import re
from functools import cache
from importlib import resources

from markupsafe import Markup, escape

_ENTRY = re.compile(r"^## ([^\n]+)\n\n(.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_OTHER_NAME = re.compile(r"also called an? \*(.+?)\*")


def glossary_text() -> str:
    """The glossary as Markdown: a title, a sentence, then a heading and a paragraph per entry."""
    return (resources.files("lm_validity.pages") / "assets" / "glossary.md").read_text(encoding="utf-8")


@cache
def entries() -> dict[str, str]:
    """The explanation of each entry, as plain text."""
    return {name: " ".join(text.replace("*", "").split()) for name, text in _ENTRY.findall(glossary_text())}


@cache
def _pattern() -> tuple[re.Pattern[str], dict[str, str]]:
    """What finds a name, in any case and in the plural, and the entry of each name in small letters."""
    entry_of = {name.lower(): name for name in entries()}
    entry_of |= {other: name for name, text in _ENTRY.findall(glossary_text()) for other in _OTHER_NAME.findall(text)}
    longest_first = sorted(entry_of, key=len, reverse=True)
    forms = "|".join(rf"{re.escape(name[:-1])}(?:y|ies)" if name.endswith("y") else re.escape(name) + "s?"
                     for name in longest_first)  # fmt: skip
    return re.compile(rf"(?<![\w-])(?:{forms})(?![\w-])", re.IGNORECASE), entry_of


def _entry(found: str) -> str:
    """The entry of a name as it was found in a text."""
    name, entry_of = found.lower(), _pattern()[1]
    singular = next(one for one in (name, name.removesuffix("s"), name.removesuffix("ies") + "y") if one in entry_of)
    return entry_of[singular]


class Words:
    """Marks the first mention of each entry on one page; `used` has the entries that the page mentions."""

    def __init__(self) -> None:
        self.used: dict[str, str] = {}

    def mark(self, text: str) -> Markup:
        """The text, escaped, with a link to the explanation of each word where it first appears on the page."""
        parts, end = [], 0
        for match in _pattern()[0].finditer(text):
            name = _entry(match.group())
            if name not in self.used:
                self.used[name] = entries()[name]
                link = Markup('<a class="term" href="#word-{}" title="{}">{}</a>')
                parts += [escape(text[end : match.start()]), link.format(len(self.used), self.used[name], match[0])]
                end = match.end()
        return Markup("").join([*parts, escape(text[end:])])
