"""Texts of the miniature world: pretraining documents of a family, and the two perplexity corpora."""

import functools
from collections.abc import Iterator
from itertools import accumulate, product
from random import Random

import jinja2

from lm_validity.config.miniature import MiniatureSettings
from lm_validity.miniature.language import (
    ATTRIBUTES,
    CHAT_TEMPLATE,
    FAMILY_FORMATS,
    GENERAL,
    INSTRUCTION_FORMATS,
    prose_sentence,
)
from lm_validity.miniature.questions import ask, grammar_questions
from lm_validity.miniature.world import World, generator

TEMPLATES = 3


def pretraining_documents(
    settings: MiniatureSettings, world: World, family: str, training_data: str, draw: Random
) -> Iterator[str]:
    """An endless stream of one family's documents, words separated by blanks.

    grammar_share of them are about grammar, format_share in the family's formats (public entities only),
    the rest prose about all entities by exposure. With training_data "web" the science attributes never
    occur.
    """
    attributes = GENERAL if training_data == "web" else tuple(ATTRIBUTES)
    formats, public, grammar = world.family_formats(family), world.groups["public"], grammar_questions(world)
    entities, exposure = world.entities, list(accumulate(world.exposure.values()))
    while True:
        kind = draw.random()
        if kind < settings.grammar_share:
            yield draw.choice(grammar).document
        elif kind < settings.grammar_share + settings.format_share:
            yield _format_document(draw, world, draw.choice(formats), draw.choice(public), draw.choice(attributes))
        else:
            entity = draw.choices(entities, cum_weights=exposure)[0]
            yield _prose_document(draw, world, entity, draw.choice(attributes))


def dialogues(world: World, training_data: str, draw: Random) -> Iterator[str]:
    """An endless stream of what instruction tuning shows: a user's question about a public entity in one of
    `INSTRUCTION_FORMATS` and the assistant's answer, rendered with the chat template."""
    attributes = GENERAL if training_data == "web" else tuple(ATTRIBUTES)
    while True:
        entity, attribute = draw.choice(world.groups["public"]), draw.choice(attributes)
        question = ask(draw, world, draw.choice(INSTRUCTION_FORMATS), entity, attribute)
        yield render_dialogue(question.context, question.answer)


def render_dialogue(question: str, answer: str) -> str:
    """One exchange under the miniature's chat template, as `tokenizer.apply_chat_template` renders it."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return _template().render(messages=messages, add_generation_prompt=False)


@functools.cache
def _template() -> jinja2.Template:
    return jinja2.Template(CHAT_TEMPLATE)


def corpus_rows(world: World, corpus: str, split: str) -> list[dict[str, str]]:
    """Documents of one split of a perplexity corpus: id, subject, text. No text occurs twice.

    encyclopedia: prose that states each fact of the split's entities once. everything: grammar and all
    families' formats in equal parts, about public entities, as every family's pretraining together would
    show them.
    """
    if corpus == "encyclopedia":
        facts = list(product(world.groups[split], ATTRIBUTES))
        generator(world.seed, "corpus", corpus, split).shuffle(facts)
        texts = [
            (attribute, prose_sentence(attribute, place % TEMPLATES, entity, world.facts[entity][attribute]))
            for place, (entity, attribute) in enumerate(facts)
        ]
    else:
        texts = _everything(world)[split]
    return [{"id": text.replace(" ", "-"), "subject": subject, "text": text} for subject, text in texts]


def _everything(
    world: World, sizes: tuple[tuple[str, int], ...] = (("test", 240), ("validation", 100), ("training", 200))
) -> dict[str, list[tuple[str, str]]]:
    """Distinct documents, the kinds by turns, cut into splits."""
    draw = generator(world.seed, "corpus", "everything")
    kinds = ["grammar", *dict.fromkeys(name for names in FAMILY_FORMATS.values() for name in names)]
    grammar, public = grammar_questions(world), world.groups["public"]
    texts: dict[str, str] = {}
    while len(texts) < sum(size for _, size in sizes):
        kind = kinds[len(texts) % len(kinds)]
        if kind == "grammar":
            text = draw.choice(grammar).document
        else:
            text = _format_document(draw, world, kind, draw.choice(public), draw.choice(list(ATTRIBUTES)))
        texts.setdefault(text, kind)
    documents = [(kind, text) for text, kind in texts.items()]
    splits, start = {}, 0
    for split, size in sizes:
        splits[split] = documents[start : start + size]
        start += size
    return splits


def _format_document(draw: Random, world: World, name: str, entity: str, attribute: str) -> str:
    if name == "prose":
        return _prose_document(draw, world, entity, attribute)
    return ask(draw, world, name, entity, attribute).document


def _prose_document(draw: Random, world: World, entity: str, attribute: str) -> str:
    return prose_sentence(attribute, draw.randrange(TEMPLATES), entity, world.facts[entity][attribute])
