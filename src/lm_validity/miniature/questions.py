"""Benchmark items: every fact of a split asked once, values balanced, the right answer's place rotated."""

from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from lm_validity.miniature.language import (
    ATTRIBUTES,
    FORMATS,
    LETTERS,
    NOUNS,
    PREPOSITIONS,
    VERBS,
    Format,
    cloze_context,
)
from lm_validity.miniature.world import World, generator

GRAMMAR_ITEMS = {"test": 240, "validation": 100, "training": 200}


@dataclass(frozen=True)
class Question:
    """A context, its choices (the right one at `gold`), and what a document adds after the answer."""

    context: str
    choices: tuple[str, ...]
    gold: int
    closing: str = ""

    @property
    def answer(self) -> str:
        """The right choice."""
        return self.choices[self.gold]

    @property
    def document(self) -> str:
        """The question with its answer, as pretraining shows it."""
        return f"{self.context} {self.answer}{self.closing}"


def ask(draw: Random, world: World, name: str, entity: str, attribute: str, place: int | None = None) -> Question:
    """Ask for one fact in the format `name`; wrong options are other values of the attribute.

    `place` is the right answer's position (taken modulo the number of options); None draws it.
    """
    form: Format = FORMATS[name]
    value = world.facts[entity][attribute]
    options = draw.sample([other for other in ATTRIBUTES[attribute].values if other != value], form.options - 1)
    gold = draw.randrange(form.options) if place is None else place % form.options
    options.insert(gold, value)
    if name == "cloze":
        return Question(cloze_context(attribute, entity), tuple(options), gold, form.closing)
    if form.lettered:
        shown = " ".join(f"{letter} {option}" for letter, option in zip(LETTERS, options, strict=True))
        choices: tuple[str, ...] = LETTERS
    else:
        shown = " or ".join(options)
        choices = tuple(form.choice.format(attribute=attribute, value=option) for option in options)
    context = form.context.format(attribute=attribute, entity=entity, shown=shown)
    return Question(context, tuple(choices), gold, form.closing)


def fact_items(
    world: World, benchmark: str, name: str, split: str, attributes: tuple[str, ...] = tuple(ATTRIBUTES)
) -> list[dict[str, Any]]:
    """Rows of one split of a benchmark in the format `name`: id, subject, context, choices, gold, answer."""
    draw = generator(world.seed, "items", benchmark, split)
    facts = list(product(world.asked_entities(name, split), attributes))
    draw.shuffle(facts)
    rows = []
    for place, (entity, attribute) in enumerate(facts):
        question = ask(draw, world, name, entity, attribute, place)
        rows.append(_row(f"{entity}-{attribute}", attribute, question))
    return rows


def grammar_items(world: World, split: str) -> list[dict[str, Any]]:
    """Rows of one split of the grammar benchmark: does the verb agree with the first noun?"""
    return [
        _row(question.context.replace(" ", "-"), "plural" if question.gold else "singular", question)
        for question in _grammar_splits(world)[split]
    ]


def grammar_questions(world: World) -> list[Question]:
    """The sentences that pretraining may show: those that no split of the benchmark asks."""
    return _grammar_splits(world)["pretraining"]


def _grammar_splits(world: World) -> dict[str, list[Question]]:
    draw = generator(world.seed, "grammar")
    by_number: tuple[list[Question], list[Question]] = ([], [])
    for noun, preposition, other in product(NOUNS, PREPOSITIONS, [*NOUNS, *(noun + "s" for noun in NOUNS)]):
        for plural, ending in enumerate(("", "s")):
            context = f"the {noun}{ending} {preposition} the {other}"
            by_number[plural].append(Question(context, VERBS, plural, closing=" there ."))
    for questions in by_number:
        draw.shuffle(questions)
    splits, start = {}, 0
    for split, size in GRAMMAR_ITEMS.items():
        stretch = slice(start, start + size // 2)
        splits[split] = [question for pair in zip(*(q[stretch] for q in by_number), strict=True) for question in pair]
        start += size // 2
    splits["pretraining"] = [question for questions in by_number for question in questions[start:]]
    return splits


def _row(identifier: str, subject: str, question: Question) -> dict[str, Any]:
    return {
        "id": identifier,
        "subject": subject,
        "context": question.context,
        "choices": list(question.choices),
        "gold": question.gold,
        "answer": question.answer,
    }
