"""What a benchmark card is: values with their intervals and what they rest on, and a verdict by rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lm_validity.site.cards.quantities import Quantity
from lm_validity.words import UNDER

FORMAT = 1  # of card.json; a change that a reader of it has to know raises it
YES, NO, PARTLY, NOT_KNOWN, NOT_MEASURED = "yes", "no", "partly", "not known", "not measured"


@dataclass(frozen=True)
class Value:
    """One quantity of a benchmark, under one protocol where it has any.

    estimate: null where it is not measured, which `reason` and `command` explain. interval: 95%, null for counts, texts
    and where `interval_reason` says why. basis: numbers of models, items, ... by name.
    """

    quantity: Quantity
    protocol: str | None
    estimate: float | int | str | None
    interval: tuple[float, float] | None = None
    basis: Mapping[str, int | float | str] = field(default_factory=dict)
    reason: str = ""
    interval_reason: str = ""
    command: str = ""

    @property
    def key(self) -> str:
        """`quantity.protocol`, or the quantity alone where it has no protocol. A card has each key once."""
        return self.quantity.name if self.protocol is None else f"{self.quantity.name}.{self.protocol}"

    @property
    def label(self) -> str:
        """What a person calls the quantity, with the protocol in words where it has one."""
        words = "" if self.protocol is None else f", {UNDER[self.protocol]}"
        return self.quantity.label + words

    @property
    def is_measured(self) -> bool:
        """Whether there is an estimate; where there is none, `reason` says why."""
        return self.estimate is not None

    @property
    def number(self) -> float:
        """The estimate of a quantity that is measured, and is a number."""
        assert self.estimate is not None
        return float(self.estimate)

    def to_json(self) -> dict[str, Any]:
        """Its entry in card.json: an empty text is null, and `missing` is null where it is measured."""
        missing = None if self.is_measured else {"reason": self.reason, "command": self.command or None}
        return {
            "label": self.label,
            "section": self.quantity.section,
            "explanation": self.quantity.explanation,
            "unit": self.quantity.unit,
            "protocol": self.protocol,
            "estimate": self.estimate,
            "interval": None if self.interval is None else list(self.interval),
            "interval_reason": self.interval_reason or None,
            "basis": dict(self.basis),
            "missing": missing,
        }


@dataclass(frozen=True)
class Statement:
    """What one rule says. `subject`: what it is about, for lists. `stem` and `rest`: a clause where the outcome is
    decided; those of one stem share it in the verdict's sentence. `in_sentence`: whether the clause is part of it; that
    nothing is wrong need not be.
    """

    rule: str
    subject: str
    outcome: str
    stem: str
    thresholds: Mapping[str, float]
    values: tuple[str, ...]
    rest: str = ""
    in_sentence: bool = True

    @property
    def words(self) -> str:
        """The stem and the rest as one clause; "" where nothing is decided."""
        return f"{self.stem} {self.rest}".strip()

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is yes, no or partly; else it is not known or not measured."""
        return self.outcome in (YES, NO, PARTLY)

    def to_json(self) -> dict[str, Any]:
        """Its entry in card.json; `values` are the keys of the values that it rests on."""
        return {name: getattr(self, name) for name in ("rule", "subject", "outcome", "words")} | {
            "thresholds": dict(self.thresholds),
            "values": list(self.values),
        }


def both(words: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


@dataclass(frozen=True)
class Verdict:
    """The rules' statements on one benchmark, and the sentence that they make."""

    statements: tuple[Statement, ...]

    @property
    def sentence(self) -> str:
        """What is decided, in one sentence."""
        clauses: dict[str, list[str]] = {}
        for one in self.statements:
            if one.is_decided and one.in_sentence:
                clauses.setdefault(one.stem, []).append(one.rest)
        text = (
            "; ".join(f"{stem} {both(rests)}".strip() for stem, rests in clauses.items())
            or "these data allow no verdict"
        )
        return f"{text[0].upper()}{text[1:]}."

    def subjects(self, outcome: str) -> list[str]:
        """What the statements of an outcome are about."""
        return [one.subject for one in self.statements if one.outcome == outcome]

    def to_json(self) -> dict[str, Any]:
        """Its entry in card.json: the sentence, the subjects that are not known or not measured, and every
        statement."""
        return {
            "sentence": self.sentence,
            "not_known": self.subjects(NOT_KNOWN),
            "not_measured": self.subjects(NOT_MEASURED),
            "statements": [one.to_json() for one in self.statements],
        }


@dataclass(frozen=True)
class Card:
    """A benchmark's card. `source`: the run or the folder of the site that it is from; `notes`: on its data;
    `trained_here`: a run of the workflow made the fine-tunes."""

    benchmark: str
    source: str
    values: tuple[Value, ...]
    verdict: Verdict
    notes: tuple[str, ...] = ()
    trained_here: bool = False

    def value(self, key: str) -> Value | None:
        """The value of a key, None where the card has no such row."""
        return next((value for value in self.values if value.key == key), None)

    def sections(self) -> dict[str, list[Value]]:
        """The values by section, in order."""
        found: dict[str, list[Value]] = {}
        for value in self.values:
            found.setdefault(value.quantity.section, []).append(value)
        return found

    def to_json(self) -> dict[str, Any]:
        """What card.json holds; `format` is the version of its layout."""
        return {
            "format": FORMAT,
            "benchmark": self.benchmark,
            "source": self.source,
            "verdict": self.verdict.to_json(),
            "values": {value.key: value.to_json() for value in self.values},
            "notes": list(self.notes),
        }
