"""Text-classification tasks of the miniature world, for the bias study: texts in the world's words, a class for each.

    <world>/classification/<task>.jsonl      one object per line: text, label (class number)

Names of classes are words of the world, so that a language model can read them. None can be solved by a word that only
one class has: a class is known by words that are alike (values of one attribute), by order, or by a relation, so that
what a language model learned in pretraining helps, and few labelled texts leave something to learn. Classes are equally
frequent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from lm_validity.miniature.language import ATTRIBUTES, GENERAL, NOUNS, PREPOSITIONS, SCIENCE, VERBS
from lm_validity.miniature.questions import grammar_items
from lm_validity.miniature.world import SPLITS, World, generator

TEXTS = 500  # of each task, all different


@dataclass(frozen=True)
class ClassificationTask:
    """A task: its name, its classes, and an endless (or long enough) stream of texts of one class."""

    name: str
    class_names: tuple[str, ...]
    texts: Callable[[World, int, Random], Iterator[str]]

    def rows(self, world: World) -> list[dict[str, Any]]:
        """`TEXTS` different texts with their class numbers, shuffled."""
        draw = generator(world.seed, "classification", self.name)
        share = TEXTS // len(self.class_names)
        rows = []
        for label in range(len(self.class_names)):
            found: dict[str, None] = {}
            for text in self.texts(world, label, draw):
                found[text] = None
                if len(found) == share:
                    break
            assert len(found) == share, f"{self.name}: only {len(found)} texts of class {label}"
            rows += [{"text": text, "label": label} for text in found]
        draw.shuffle(rows)
        return rows


def _first_attribute(world: World, label: int, draw: Random) -> Iterator[str]:
    """An entity with two values, the first one of eight of the class's attribute; nothing else tells the attribute."""
    values = {name: attribute.values for name, attribute in ATTRIBUTES.items()}
    own = list(values)[label]
    while True:
        other = draw.choice([name for name in values if name != own])
        entity, first, second = draw.choice(world.entities), draw.choice(values[own]), draw.choice(values[other])
        yield f"row {entity} cell {first} cell {second}"


def _science_majority(world: World, label: int, draw: Random) -> Iterator[str]:
    """Five values, at least three of them of the class's attributes (general, science)."""
    groups = [[value for name in names for value in ATTRIBUTES[name].values] for names in (GENERAL, SCIENCE)]
    while True:
        own = draw.choice((3, 3, 4, 5))
        words = draw.sample(groups[label], own) + draw.sample(groups[1 - label], 5 - own)
        draw.shuffle(words)
        yield " or ".join(words)


def _first_number(world: World, label: int, draw: Random) -> Iterator[str]:
    """Three nouns, the first of them of the class's number. Pretraining has sentences of two."""
    while True:
        nouns = [noun + draw.choice(("", "s")) for noun in draw.sample(NOUNS, 2)]
        first = draw.choice(NOUNS) + ("", "s")[label]
        yield " ".join(f"the {noun} {draw.choice(PREPOSITIONS)}" for noun in (first, nouns[0])) + f" the {nouns[1]}"


def _agreement(world: World, label: int, draw: Random) -> Iterator[str]:
    """A noun phrase with a verb that agrees with its first noun (class 1) or does not. Never part of pretraining."""
    half = [pair for place, pair in enumerate(_phrases(world, draw)) if place % 2 == label]
    return (f"{context} {VERBS[number if label else 1 - number]} there ." for context, number in half)


def _phrases(world: World, draw: Random) -> list[tuple[str, int]]:
    rows = [(row["context"], row["gold"]) for split in SPLITS for row in grammar_items(world, split)]
    draw.shuffle(rows)
    return rows


TASKS = (
    ClassificationTask("first_attribute", tuple(ATTRIBUTES), _first_attribute),
    ClassificationTask("science_majority", ("home", "gas"), _science_majority),
    ClassificationTask("first_number", VERBS, _first_number),
    ClassificationTask("agreement", ("again", "sure"), _agreement),
)
