"""Filters that read an item's text: answers that stand in the prompt, and repeated items."""

import re
import string
import unicodedata
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lm_validity.studies.signal.filters.base import Candidates
from lm_validity.tables.documents import questions


def normalise_text(text: str) -> str:
    """Unicode NFKC, case folded, blanks collapsed, punctuation and blanks stripped at both ends."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip(string.punctuation + " ")


def occurs_in(answer: str, context: str, minimum_length: int = 2, *, digits_count: bool = True) -> bool:
    """Whether the normalised answer appears in the normalised context between word boundaries.

    Answers shorter than `minimum_length` never count, and without `digits_count` neither do answers of digits
    only: they are in many contexts by chance.
    """
    answer, context = normalise_text(answer), normalise_text(context)
    if len(answer) < minimum_length or (answer.isdigit() and not digits_count):
        return False
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", context) is not None


@dataclass(frozen=True)
class LeakageRates:
    """How often an answer appears in its own item's prompt; NaN without items.

    A gold answer that leaks no more than distractors do is no shortcut: a prompt that lists its options holds
    all. `examples`: how often the gold answer appears in what precedes the item's own prompt, its few-shot examples;
    NaN where the documents have no whole prompts.
    """

    gold: float
    distractors: float
    items: int
    examples: float = float("nan")


def leaked_gold(documents: pd.DataFrame, minimum_length: int = 2, *, digits_count: bool = True) -> np.ndarray:
    """Boolean (items,): the gold answer occurs in the item's own context (few-shot examples are not part of
    it)."""
    return np.array(
        [
            occurs_in(choices[gold], context, minimum_length, digits_count=digits_count)
            for context, choices, gold in questions(documents)
        ],
        dtype=bool,
    )


def leakage_rates(documents: pd.DataFrame) -> LeakageRates:
    """Share of gold answers in their prompt, and of distractors (mean over items) as the base rate."""
    if documents.empty:
        return LeakageRates(float("nan"), float("nan"), 0)
    rates = []
    for context, choices, gold in questions(documents):
        wrong = [choice for index, choice in enumerate(choices) if index != gold]
        rates.append(np.mean([occurs_in(choice, context) for choice in wrong]))
    leaked = leaked_gold(documents)
    examples = float("nan")
    if "prompt" in documents.columns and documents["prompt"].notna().all():
        before = [p.removesuffix(c) for p, c in zip(documents["prompt"], documents["context"], strict=True)]
        examples = float(leaked_gold(documents.assign(context=before)).mean())
    return LeakageRates(float(leaked.mean()), float(np.mean(rates)), len(documents), examples)


@dataclass(frozen=True)
class Leakage:
    """Drops items whose prompt contains the gold answer but not all distractors.

    With `strict` it drops them also where every distractor is in the prompt too (a prompt that lists the
    options).
    """

    minimum_length: int = 2
    digits_count: bool = True
    strict: bool = False
    name: str = field(default="leakage", init=False)
    fitted: bool = field(default=False, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where the gold answer is not in the item's context and, unless `strict`, also where every distractor is
        in it too."""
        documents = candidates.need_documents(self.name)
        leaked = leaked_gold(documents, self.minimum_length, digits_count=self.digits_count)
        if self.strict:
            return ~leaked
        listed = np.array(
            [
                all(
                    occurs_in(choice, context, self.minimum_length, digits_count=self.digits_count)
                    for index, choice in enumerate(choices)
                    if index != gold
                )
                for context, choices, gold in questions(documents)
            ],
            dtype=bool,
        )
        return ~leaked | listed


@dataclass(frozen=True)
class Duplicates:
    """Drops exact repetitions (normalised context and gold answer), keeping the first."""

    name: str = field(default="duplicates", init=False)
    fitted: bool = field(default=False, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True for the first item of each pair of normalised context and gold answer, in the order given."""
        documents = candidates.need_documents(self.name)
        texts = pd.Series(
            [
                (normalise_text(context), normalise_text(choices[gold]))
                for context, choices, gold in questions(documents)
            ]
        )
        return ~texts.duplicated().to_numpy()
