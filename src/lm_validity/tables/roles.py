"""What a column may be: its role by the words of its header, and what its cells tell."""

import math
import re
from collections.abc import Iterable
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lm_validity.tables import metrics
from lm_validity.tables.frame import IDENTIFIERS, Table
from lm_validity.tables.schema import PROTOCOLS

if TYPE_CHECKING:
    from lm_validity.tables.told import Told

# Roles that --columns gives, in the order in which it is printed
SETTINGS = ("protocol", "num_fewshot", "iteration", "tokens_b", "seed", "split", "prompt", "prompt_variant",
            "prepared_on", "higher_is_better")  # fmt: skip
ROLES = ("model", "benchmark", "metric", "score", "answer", "item", "subject", "n", "error", "run", "checkpoint",
         *SETTINGS, "ignore")  # fmt: skip
# The kinds of an error's column: a standard error, a standard deviation, half of a 95% interval
ERRORS = ("se", "sd", "ci95")

_SETTING_VALUES = {
    "protocol": {*PROTOCOLS}, "split": {"test", "validation"}, "prompt": {"plain", "chat"},
    "higher_is_better": {"true", "false", "0", "1"},
}  # fmt: skip
_NUMBERS = ("num_fewshot", "iteration", "tokens_b", "n")
_MOST_NUMBERS = 0.5  # of the cells that say anything, in a column of numbers; the others are left out, and said
_SHORT_TASK = 3  # letters: `arc`, `mmlu` begin other names, `race`, `drop` are words
_COMMON_TASKS = {"drop", "race", "math", "copa"}
_FAMILIES = (
    r"gpt|llama|claude|gemini|gemma|qwen|mistral|mixtral|phi|falcon|pythia|olmo|yi|deepseek|command|opus|sonnet|grok"
)
MODEL_LIKE = re.compile(rf"(\b|[-_])(\d+(\.\d+)?[bmk]|{_FAMILIES}|\d+x\d+b)(\b|[-_])|^[\w.-]+/[\w.:-]+$", re.I)
RUN_LIKE = re.compile(r"(run|seed|trial|rep|repeat|try|attempt)[-_ ]*\d+$", re.I)
STEP_LIKE = re.compile(r"(step|ckpt|checkpoint|iter|global)[-_ ]*\d+", re.I)
# Digests, dates, addresses, files of other kinds: no names of models
_HASH_LIKE = re.compile(
    r"^(?=.*\d)[0-9a-f]{8}[0-9a-f-]{4,}…?$|^\d{4}-?\d\d-?\d\d|^https?://|\.(png|jpe?g|pdf|csv|jsonl?|md|html|txt|py)$"
)
_NAME_LIKE = re.compile(r"^(?!.*; ).*[^\W\d_]", re.S)  # a letter, and no list
_LIKE = {"model": MODEL_LIKE, "run": RUN_LIKE, "step": STEP_LIKE, "hash": _HASH_LIKE, "name": _NAME_LIKE}
_MACHINE = frozenset(("cpu", "gpu", "ram", "vram", "memory", "load", "usage"))
_PASSED = {"pass": 1.0, "passed": 1.0, "fail": 0.0, "failed": 0.0}
_TRUTHS = ({"true", "false"}, {"0", "1", "0.0", "1.0"}, {*_PASSED})
_LOOKED_AT = 300
_MARKED = re.compile(r"%|↑|↓|⬆|⬇|\(pts?\)")
_NOTE = re.compile(r"\s*[(（][^()（）]*[)）]")
_LONGEST_NAME = 80
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+\s*%?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")


@cache
def _role_of(word: str) -> str | None:
    return next((role for role, words in metrics.vocabulary("is").items() if word in words and role != "task"), None)


@cache
def known_names() -> frozenset[str]:
    """Tasks and metrics by name, without those that are words of everyday."""
    names = {metrics.plain(name.removeprefix(metrics.METRIC)) for name in metrics.task_names()}
    names = {name for name in names if len(name) > _SHORT_TASK and not name[0].isdigit()}
    return frozenset(names - _COMMON_TASKS) | metrics.vocabulary("is")["task"]


def is_known(word: str) -> bool:
    """Whether a word is the name of a task or a metric; `hella_swag` is hellaswag."""
    return word in known_names() or word.replace("_", "") in known_names()


class Column:
    """What can be said of a column by its header and its cells (n,).

    codes (n,): the place of each cell in `texts`, the different ones. numbers (n,): NaN where there is none; a cell
    that is more than a number has none. spreads, counts (n,): the errors and numbers of items in the cells. filled
    (n,): whether a cell says anything.
    """

    def __init__(self, name: str, kind: str, cells: pd.Series) -> None:
        self.name, self.kind = name, kind
        codes, uniques = pd.factorize(cells)
        self.codes: np.ndarray = codes
        self.texts: list[str] = list(uniques)
        self.blank = np.array([text.strip().casefold() in metrics.MISSING for text in self.texts])
        self.filled: np.ndarray = ~self.blank[codes]
        self.different = [text for text, no in zip(self.texts, self.blank, strict=True) if not no]
        values, spreads, counts = self._values()
        self.numbers: np.ndarray = values[codes]
        self.spreads: np.ndarray = spreads[codes]
        self.counts: np.ndarray = counts[codes]
        rows, with_number = np.count_nonzero(self.filled), np.count_nonzero(~np.isnan(self.numbers))
        self.distinct = len(self.different)
        self.numeric = kind == "cell" and 0 < _MOST_NUMBERS * rows <= with_number
        known = values[~np.isnan(values)]
        decimal = any("." in text for text in self.different)
        self.whole = bool(self.numeric and not decimal and np.all(known == np.round(known)))
        self.low, self.high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
        words = {text.lower() for text in self.different}
        self.boolean = bool(words) and any(map(words.issubset, _TRUTHS))
        self.all_different = self.distinct == rows and rows > 1

    def _values(self) -> np.ndarray:
        """Of each different text its number, the error in it, and the items, as in `20% (8/40)`: (3, texts)."""
        values, spreads, counts = found = np.full((3, len(self.texts)), np.nan)
        values[:] = pd.to_numeric(pd.Series(self.texts, dtype=object), errors="coerce")
        values[~np.isfinite(values) | self.blank] = np.nan
        others = np.flatnonzero(np.isnan(values) & ~self.blank)
        texts = [self.texts[i] for i in others]
        commas = [text for text in texts if _DECIMAL_COMMA.fullmatch(text)]  # the decimal sign, unless of thousands
        decimal = any(not _THOUSANDS.fullmatch(text) for text in commas) and not any("." in text for text in texts)
        self.percent, self.spread_kind = False, None
        truths = {"true": 1.0, "false": 0.0}
        if {self.texts[i].lower() for i in others} <= _PASSED.keys():
            truths |= _PASSED
        for i in others:
            text = self.texts[i]
            if text.lower() in truths:
                values[i] = truths[text.lower()]
            elif len(text) < _LONGEST_NAME and (cell := metrics.read_cell(text.replace(",", ".") if decimal else text)):
                values[i], spreads[i], counts[i] = cell.value, cell.error, cell.items
                self.percent |= cell.percent and math.isnan(cell.items)
                self.spread_kind = cell.kind or self.spread_kind
        return found

    @cached_property
    def length(self) -> float:
        """The mean length of its different cells that say anything."""
        return float(np.mean([*map(len, self.different)] or [0]))

    @cached_property
    def clean(self) -> np.ndarray:
        """The cells (n,) without markup, as names; "" for those that say nothing."""
        texts = ["" if no else metrics.plain_text(text) for text, no in zip(self.texts, self.blank, strict=True)]
        names: np.ndarray = np.array([*texts, ""], dtype=object)[self.codes]
        return names

    @cached_property
    def head(self) -> str:
        """The last part of the header, in small letters; the one above where it is no more than `name` or `id`."""
        parts = (_NOTE.sub("", metrics.plain_text(self.name)) or self.name).split(".")
        last = metrics.plain(parts[-1])
        above = metrics.plain(parts[-2]) if len(parts) > 1 else ""
        return above if last in IDENTIFIERS and _role_of(above) else last

    @cached_property
    def word(self) -> str | None:
        """The role that the header says exactly; of a setting only where all cells may be its values."""
        word = _role_of(self.head) if self.kind == "cell" else None
        if word == "benchmark" and self.numeric and self.head.endswith("s"):
            word = "n"  # `Tasks`: how many
        if word in ("model", "benchmark") and not self.numeric and self.like["name"] <= 0.5:
            return None
        values = _SETTING_VALUES.get(word or "")
        fits = values is None or {text.lower() for text in self.different} <= values
        return word if fits and (self.numeric or word not in _NUMBERS) else None

    @cached_property
    def parts(self) -> frozenset[str]:
        """The words of the header."""
        return frozenset(metrics.plain(self.name).split("_"))

    def has(self, role: str) -> bool:
        """Whether a word of the header is one of this role."""
        return bool(self.parts & metrics.vocabulary("has")[role])

    @cached_property
    def error_of(self) -> str | None:
        """What kind of error it is, if its header says so."""
        parts = self.parts
        if parts & {"stderr", "sem", "se"} or {"std", "err"} <= parts or {"standard", "error"} <= parts:
            return "se"
        if "ci95" in parts or {"ci", "95"} <= parts:
            return "ci95"
        return "sd" if parts & {"std", "sd", "stdev", "stddev"} else None

    @cached_property
    def never(self) -> bool:
        """A number that is no score without somebody's word."""
        if is_known(self.head) or (self.percent and not self.error_of):
            return False
        marked = "%" in self.name and "#" not in self.name and not _MACHINE & self.parts
        other = self.word not in {None, "score", "answer", "model", "benchmark"}
        head, spreads = self.head, metrics.spread_ends().items()
        ends = (kind for end, kind in spreads if head == end or ("_" in end and head.endswith(end)))
        p_value = "p" in self.parts and len(self.parts) > 1 and self.high <= 1
        other |= next(ends, "") in {"low", "high"} or p_value
        return bool(other or self.error_of or self.name.startswith("#") or (self.has("no score") and not marked))

    @cached_property
    def evidence(self) -> int:
        """2: the header is a task, a metric, or bears a mark; 1: a part of it is; 0: nothing."""
        if self.never or not self.numeric:
            return 0
        if self.word == "score" or is_known(self.head) or _MARKED.search(self.name) or self.percent:
            return 2
        return 1 if self.has("score") or self.head.startswith(("mmlu", "arc_", "gsm8k")) else 0

    @cached_property
    def textual(self) -> bool:
        """Whether its cells can be names."""
        texts = not (self.numeric or self.boolean or self.says) and self.length < _LONGEST_NAME
        return texts and self.like["name"] > 0.5

    @cached_property
    def says(self) -> bool:
        """Whether its cells are what a model said, or only the numbers of a list."""
        numbered = self.kind == "level" and all(text.isdigit() for text in self.texts if text)
        return numbered or bool(self.kind == "cell" and self.has("said") and self.word is None)

    @cached_property
    def like(self) -> dict[str, float]:
        """The share of its different names (of the first `_LOOKED_AT`) that look like a kind of `_LIKE`, and of known
        tasks (`task`)."""
        names = [metrics.plain_text(text) for text in self.different[:_LOOKED_AT]]
        shares = {kind: sum(bool(pattern.search(name)) for name in names) for kind, pattern in _LIKE.items()}
        shares["task"] = sum(metrics.plain(name) in known_names() for name in names)
        return {kind: number / max(1, len(names)) for kind, number in shares.items()}

    @cached_property
    def places(self) -> bool:
        """Whether its numbers are 1, 2, 3, ... without a gap: a rank, a run or an index."""
        steps = self.high - self.low + 1 == self.distinct
        return self.whole and self.low in {0.0, 1.0} and steps and self.distinct > 2 - self.low


class Columns(dict[str, Column]):
    """The columns of a table by name, and which of them determine others; each is counted once for many readings."""

    def __init__(self, table: Table) -> None:
        super().__init__((name, Column(name, table.kinds[name], table.cells[name])) for name in table.cells)
        self.table = table
        owners = {metrics.plain(name): name for name in self}
        self.spreads = {name for name in self if metrics.spread_owner(name, owners) is not None}
        self.means: dict[tuple[str, ...], set[str]] = {}  # averages among columns
        self.readings: list[Told] | None = None  # those to try, once they are known
        self._codes: dict[frozenset[str], np.ndarray] = {frozenset(): np.zeros(len(table.cells), dtype=np.int64)}
        self._counts: dict[tuple[frozenset[str], bytes], int] = {}

    def is_metric(self, name: str) -> bool:
        """Whether a column's header is that of a metric, or of a score, and no task's."""
        return self[name].word == "score" or metrics.metric_direction(self[name].head) is not None

    def codes(self, names: frozenset[str]) -> np.ndarray:
        """One code (n,) from 0 for each combination of the cells of some columns."""
        if names not in self._codes:
            last = max(names)
            both = self.codes(names - {last}) * (len(self[last].texts) + 1) + self[last].codes
            self._codes[names] = pd.factorize(both)[0]
        return self._codes[names]

    def count(self, names: frozenset[str], rows: np.ndarray | None = None) -> int:
        """How many different combinations of cells some columns have, in the rows (n,) that are true."""
        which = b"" if rows is None or rows.all() else rows.tobytes()
        if (names, which) not in self._counts:
            codes = self.codes(names)
            self._counts[names, which] = len(pd.unique(codes[rows] if which and rows is not None else codes))
        return self._counts[names, which]

    def unique(self, names: Iterable[str], rows: np.ndarray | None = None) -> bool:
        """Whether no combination of the cells of some columns stands twice in the rows (n,) that are true."""
        total = len(self.table.cells) if rows is None else int(np.count_nonzero(rows))
        return self.count(frozenset(names), rows) == total

    def alike(self, name: str, other: str) -> bool:
        """Whether each of two columns determines the other."""
        return self.determines([name], other) and self.determines([other], name)

    def determines(self, names: Iterable[str], other: str) -> bool:
        """Whether a column has one value for each value of the others together."""
        key = frozenset(names)
        return self.count(key | {other}) == self.count(key)
