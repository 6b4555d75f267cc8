"""How a card writes its values: units, intervals, what they rest on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lm_validity.site.cards.card import NO, PARTLY, YES, Card, Statement, Value
from lm_validity.words import decimal, scale_of

_DIGITS = {"tau": 2, "index": 2, "score": 3}  # by unit
_TASKS = {
    "multiple_choice": "choice among answers",
    "generate_until": "written answer",
    "loglikelihood": "likelihood of a given answer",
    "loglikelihood_rolling": "perplexity",
}
_OUTCOMES = {YES: "yes", NO: "no", PARTLY: "in part"}


def tokens_words(billions: float) -> str:
    """`27 billion tokens`, in millions or thousands where they are few."""
    if not billions:
        return "0 tokens"
    factor, unit = scale_of(billions)
    return f"{billions * factor:.3g} {unit} tokens"


def shown(value: Value) -> str:
    """The estimate with its interval, in its unit."""
    estimate, unit = value.estimate, value.quantity.unit
    if estimate is None:
        return "not measured"
    if isinstance(estimate, str):
        return _TASKS.get(estimate, estimate) if value.quantity.name == "output_type" else estimate
    text = _number(estimate, unit)
    return text if value.interval is None else f"{text} ({' to '.join(_number(end, unit) for end in value.interval)})"


def _number(number: float, unit: str) -> str:
    if unit == "billion tokens":
        return tokens_words(number)
    if unit == "share":
        return f"{decimal(100 * number, 1)}%"
    if unit in _DIGITS:
        return decimal(number, _DIGITS[unit])
    return f"{number:,d}" if isinstance(number, int) else f"{number:.3g}"


def basis_words(value: Value) -> str:
    """What a value rests on: `61 models, 24 benchmarks`."""
    parts = []
    for name, number in value.basis.items():
        if name.endswith(("checkpoint", "point")):
            parts.append(f"{name} at {tokens_words(float(number))}")
        elif isinstance(number, str):
            parts.append(f"{name} {number}")
        else:
            singular = re.sub(r"s\b", "", name, count=1)  # `pair of models`
            parts.append(f"{number:,} {singular if number == 1 else name}")
    return ", ".join(parts)


@dataclass(frozen=True)
class Gap:
    """Values of a section that are not measured for one reason."""

    labels: tuple[str, ...]
    reason: str
    command: str


def gaps(values: Sequence[Value]) -> list[Gap]:
    """The values that are not measured, those of one reason and command together."""
    found: dict[tuple[str, str], list[str]] = {}
    for value in values:
        if not value.is_measured:
            found.setdefault((value.reason, value.command), []).append(value.label)
    return [Gap(tuple(labels), reason, command) for (reason, command), labels in found.items()]


def outcome_words(statement: Statement) -> str:
    """What the table of rules shows: the clause, else why there is none."""
    answer = _OUTCOMES.get(statement.outcome, statement.outcome)
    return f"{answer}: {statement.words}" if statement.is_decided else answer


def threshold_words(statement: Statement) -> str:
    """`separated 0.8, not_separated 0.5`, as the configuration names them."""
    return ", ".join(f"{name} {number:g}" for name, number in statement.thresholds.items()) or "none"


def unmeasured(card: Card) -> list[Gap]:
    """Everything that the card does not have, by reason."""
    return gaps(card.values)
