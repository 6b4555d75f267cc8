"""A value, or the reason why there is none.

A value that cannot be computed is a `Missing` with its reason, made where it arises. In a row it is null
beside its reason; on a page it is a dash that shows the reason.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from typing import TypeGuard, TypeVar

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
