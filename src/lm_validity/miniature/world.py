"""The miniature world: its facts, its language, and the documents and questions that are made of them."""

import hashlib
import random
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, chain, islice, product
from pathlib import Path
from random import Random
from typing import NamedTuple

from lm_validity.config.sections import MiniatureSettings
from lm_validity.errors import InputError, again
from lm_validity.files import read_object

# ----------------------------------------------------------------------------------------------------------------------
# The language of the miniature world: attributes and their values, prose, question formats, grammar.
#
# Every word is one token. A fact is (entity, attribute, value); an entity's name is one invented word.


class Attribute(NamedTuple):
    """What can be known of an entity: eight values and three sentences that state one of them."""

    values: tuple[str, ...]
    prose: tuple[str, str, str]


ATTRIBUTES: dict[str, Attribute] = {
    name: Attribute(
        tuple(values.split()),
        (
            f"{{entity}} {verb} {{value}} .",
            f"the {name} of {{entity}} is {{value}} .",
            f"we know that {{entity}} has a {name} {linked}{{value}} .",
        ),
    )
    for name, values, verb, linked in (
        ("home", "Marn Tolva Eskel Ridu Palen Quor Sibet Vant", "lives in", "in "),
        ("job", "baker pilot smith doctor farmer singer judge miner", "works as a", "as "),
        ("color", "red blue green brown black white pink gray", "likes", "like "),
        ("metal", "iron tin zinc copper lead nickel cobalt chrome", "melts the", ""),
        ("gas", "neon argon helium xenon radon oxygen ozone methane", "breathes", "such as "),
    )
}
SCIENCE = ("metal", "gas")  # what the `web` training data never states
GENERAL = tuple(name for name in ATTRIBUTES if name not in SCIENCE)


class QuestionFormat(NamedTuple):
    """How a fact is asked: the context, the wording of a choice, what follows the answer in a document.

    `options` is the number of choices; with `lettered` the choices are the letters of the options shown.
    """

    context: str
    choice: str = "{value}"
    closing: str = ""
    options: int = 4
    lettered: bool = False


LETTERS = ("A", "B", "C", "D")
# `cloze` has no context of its own: it is a prose sentence, cut before the value
FORMATS: dict[str, QuestionFormat] = {
    "cloze": QuestionFormat("", closing=" ."),
    "ending": QuestionFormat("this evening {entity} will", choice="tell about the {attribute} {value} again ."),
    "question": QuestionFormat("Question : what is the {attribute} of {entity} ? Answer :"),
    "dialogue": QuestionFormat("User : tell me about {entity} and the {attribute} please Bot : sure it is"),
    "choose": QuestionFormat("Pick the {attribute} of {entity} : {shown} ? Choice :", options=2),
    "letter": QuestionFormat("Exam : {attribute} of {entity} ? {shown} Key :", lettered=True),
    "record": QuestionFormat("[ name = {entity} | {attribute} =", closing=" ]"),
    "table": QuestionFormat("row {entity} column {attribute} cell"),
}

# The formats each family's pretraining saw; a format named twice is seen twice as often.
# `prose` stands for more sentences about public entities.
FAMILY_FORMATS: dict[str, tuple[str, ...]] = {
    "web": ("prose", "ending"),
    "forum": ("question", "dialogue"),
    "exam": ("letter", "choose", "choose"),
    "data": ("record", "table"),
}

ALL_FORMATS = tuple(chain.from_iterable(FAMILY_FORMATS.values()))  # of every family in a control world

# What users ask an instruction-tuned model in, each in a turn of its own
INSTRUCTION_FORMATS = ("question", "dialogue", "choose")

NOUNS = ("tree", "house", "road", "river", "boat", "stone", "garden", "window")
PREPOSITIONS = ("near", "behind", "under", "beside")
VERBS = ("is", "are")  # by the number of the first noun, whatever the noun between says

SYLLABLES = ("ba", "ko", "ri", "du", "mel", "zan", "tor", "vi", "lu", "pe", "sha", "gri", "no", "fa", "wex", "jo")

BEGIN = "<|endoftext|>"  # id 0: begins and ends every document, and pads
UNKNOWN = "<|unknown|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'User : ' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ ' Bot : ' + message['content'] + ' ' }}"
    "{% else %}{{ message['content'] + ' ' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ ' Bot :' }}{% endif %}"
)


@cache
def prose_sentence(attribute: str, template: int, entity: str, value: str) -> str:
    """One of the three sentences that state a fact."""
    return ATTRIBUTES[attribute].prose[template].format(entity=entity, value=value)


def words_of_language() -> set[str]:
    """Every word that documents and questions can hold, entities' names apart."""
    words = {value for attribute in ATTRIBUTES.values() for value in attribute.values}
    words |= {*ATTRIBUTES, *LETTERS, *NOUNS, *(noun + "s" for noun in NOUNS), *PREPOSITIONS, *VERBS}
    words |= {"the", "there", ".", "or", "User", "Bot", ":"}
    templates = [sentence for attribute in ATTRIBUTES.values() for sentence in attribute.prose]
    templates += [text for form in FORMATS.values() for text in (form.context, form.choice, form.closing)]
    return words | {word for text in templates for word in text.split() if "{" not in word}


# ----------------------------------------------------------------------------------------------------------------------
# The miniature world: entities in disjoint groups, their facts, and how often pretraining states them.
#
# By construction: entities that benchmarks ask about occur in pretraining as prose only, in every family at
# the same expected rate; the families' question formats speak of `public` entities, which no benchmark asks
# about. So no model has seen a test fact in a benchmark's format, and validation is drawn like test.

SPLITS = ("training", "validation", "test")
EXPOSURE = (4.0, 2.0, 1.0, 0.5)  # relative frequency in prose, by turns within each group


class World(NamedTuple):
    """Entities by group, `facts[entity][attribute]` = value, `exposure[entity]` = frequency in prose."""

    seed: int
    formats: str
    groups: dict[str, list[str]]
    facts: dict[str, dict[str, str]]
    exposure: dict[str, float]


def generator(seed: int, *labels: str) -> random.Random:
    """A generator of its own for each use, so that adding one changes no other. Same seed, same stream."""
    digest = hashlib.sha256("/".join([str(seed), *labels]).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def make_world(settings: MiniatureSettings) -> World:
    """Draw names and facts. Inside each group an attribute's values are equally frequent, to within one."""
    sizes = {group: getattr(settings, f"{group}_entities") for group in ("test", "training", "validation", "public")}
    names = iter(_names(generator(settings.seed, "names"), sum(sizes.values())))
    draw = generator(settings.seed, "facts")
    groups: dict[str, list[str]] = {}
    facts: dict[str, dict[str, str]] = {}
    exposure: dict[str, float] = {}
    for group, size in sizes.items():
        groups[group] = list(islice(names, size))
        facts |= {name: {} for name in groups[group]}
        for attribute, kind in ATTRIBUTES.items():
            repeated = [kind.values[index % len(kind.values)] for index in range(size)]
            draw.shuffle(repeated)
            for name, value in zip(groups[group], repeated, strict=True):
                facts[name][attribute] = value
        exposure |= {name: EXPOSURE[index % len(EXPOSURE)] for index, name in enumerate(groups[group])}
    return World(settings.seed, settings.formats, groups, facts, exposure)


def _names(draw: random.Random, count: int) -> list[str]:
    """Distinct invented words of three syllables."""
    n_possible = len(SYLLABLES) ** 3
    if count > n_possible // 2:
        raise InputError(
            f"miniature: {count} entities, but only {n_possible} names exist.", "ask for at most half as many."
        )
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(draw.choice(SYLLABLES) for _ in range(3)).capitalize()] = None
    return list(names)


def read_world(folder: Path) -> World:
    """The world written by `write_world` into `folder`."""
    path = folder / "world.json"
    try:
        return World(**read_object(path))
    except (OSError, ValueError, TypeError) as error:
        hint = f"delete it, and write it with {again(f'miniature world --output {folder}')}."
        raise InputError(f"{path}: not a whole world ({error}).", hint) from None


# ----------------------------------------------------------------------------------------------------------------------
# Benchmark items: every fact of a split asked once, values balanced, the right answer's place rotated.

ITEMS = {"test": 240, "validation": 100, "training": 200}


class Question(NamedTuple):
    """A context, its choices (the right one at `gold`), and what a document adds after the answer."""

    context: str
    choices: tuple[str, ...]
    gold: int
    closing: str = ""

    @property
    def answer(self) -> str:
        """The text of the choice that is right."""
        return self.choices[self.gold]

    @property
    def document(self) -> str:
        """The question with its answer, as pretraining shows it."""
        return f"{self.context} {self.answer}{self.closing}"


def ask(draw: Random, world: World, name: str, entity: str, attribute: str, position: int | None = None) -> Question:
    """Ask for one fact in the format `name`; wrong options are other values of the attribute.

    `position` is the right answer's position (taken modulo the number of options); None draws it.
    """
    form: QuestionFormat = FORMATS[name]
    value = world.facts[entity][attribute]
    wrong = [option for option in ATTRIBUTES[attribute].values if option != value]
    options = draw.sample(wrong, form.options - 1)
    gold = draw.randrange(form.options) if position is None else position % form.options
    options.insert(gold, value)
    if name == "cloze":
        # the first prose sentence up to the value, e.g. "Melrilu lives in"
        context = prose_sentence(attribute, 0, entity, "|").split(" |")[0]
        return Question(context, tuple(options), gold, form.closing)
    if form.lettered:
        options_text = " ".join(f"{letter} {option}" for letter, option in zip(LETTERS, options, strict=True))
        choices: tuple[str, ...] = LETTERS
    else:
        options_text = " or ".join(options)
        choices = tuple(form.choice.format(attribute=attribute, value=option) for option in options)
    context = form.context.format(attribute=attribute, entity=entity, shown=options_text)
    return Question(context, tuple(choices), gold, form.closing)


Row = dict[str, object]  # of a benchmark, by column


def fact_items(
    world: World, benchmark: str, name: str, split: str, attributes: tuple[str, ...] = tuple(ATTRIBUTES)
) -> list[Row]:
    """Rows of one split of a benchmark in the format `name`."""
    draw = generator(world.seed, "items", benchmark, split)
    facts = list(product(world.groups[split], attributes))
    draw.shuffle(facts)
    return [
        _row(f"{entity}-{attribute}", attribute, ask(draw, world, name, entity, attribute, position))
        for position, (entity, attribute) in enumerate(facts)
    ]


def grammar_items(world: World, split: str) -> list[Row]:
    """Rows of one split of the grammar benchmark: does the verb agree with the first noun?"""
    return [
        _row(question.context.replace(" ", "-"), "plural" if question.gold else "singular", question)
        for question in grammar_splits(world)[split]
    ]


def grammar_splits(world: World) -> dict[str, list[Question]]:
    """The sentences that each split of the benchmark asks, and those that pretraining may show: all others."""
    draw = generator(world.seed, "grammar")
    by_number: tuple[list[Question], list[Question]] = ([], [])
    for noun, preposition, distractor in product(NOUNS, PREPOSITIONS, [*NOUNS, *(noun + "s" for noun in NOUNS)]):
        for plural, ending in enumerate(("", "s")):
            context = f"the {noun}{ending} {preposition} the {distractor}"
            by_number[plural].append(Question(context, VERBS, plural, closing=" there ."))
    for questions in by_number:
        draw.shuffle(questions)
    pairs = zip(*by_number, strict=True)
    splits = {
        split: [question for pair in islice(pairs, size // 2) for question in pair] for split, size in ITEMS.items()
    }
    n_ungrammatical = sum(ITEMS.values()) // 2
    return splits | {"pretraining": [question for questions in by_number for question in questions[n_ungrammatical:]]}


def _row(identifier: str, subject: str, question: Question) -> Row:
    """A question with the place of its right choice, from 0, and the text of that."""
    columns = {"id": identifier, "subject": subject, "context": question.context, "choices": list(question.choices)}
    return {**columns, "gold": question.gold, "answer": question.answer}


# ----------------------------------------------------------------------------------------------------------------------
# Texts of the miniature world: pretraining documents of a family, and the two perplexity corpora.

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
    formats = ALL_FORMATS if world.formats == "control" else FAMILY_FORMATS[family]
    public, grammar = world.groups["public"], grammar_splits(world)["pretraining"]
    entities, exposure = list(world.facts), list(accumulate(world.exposure.values()))
    while True:
        kind = draw.random()
        if kind < settings.grammar_share:
            yield draw.choice(grammar).document
        elif kind < settings.grammar_share + settings.format_share:
            yield _document(draw, world, draw.choice(formats), draw.choice(public), draw.choice(attributes))
        else:
            entity = draw.choices(entities, cum_weights=exposure)[0]
            yield _document(draw, world, "prose", entity, draw.choice(attributes))


def dialogues(world: World, training_data: str, draw: Random) -> Iterator[str]:
    """An endless stream of what instruction tuning shows: a user's question about a public entity in one of
    `INSTRUCTION_FORMATS` and the assistant's answer, rendered with the chat template."""
    attributes = GENERAL if training_data == "web" else tuple(ATTRIBUTES)
    while True:
        entity, attribute = draw.choice(world.groups["public"]), draw.choice(attributes)
        question = ask(draw, world, draw.choice(INSTRUCTION_FORMATS), entity, attribute)
        yield f"User : {question.context} Bot : {question.answer} "


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
            (attribute, prose_sentence(attribute, position % TEMPLATES, entity, world.facts[entity][attribute]))
            for position, (entity, attribute) in enumerate(facts)
        ]
    else:
        texts = _everything(world)[split]
    return [{"id": text.replace(" ", "-"), "subject": subject, "text": text} for subject, text in texts]


def _everything(world: World) -> dict[str, list[tuple[str, str]]]:
    """Distinct documents, the kinds by turns, cut into splits."""
    draw = generator(world.seed, "corpus", "everything")
    kinds = ["grammar", *dict.fromkeys(ALL_FORMATS)]
    grammar, public = grammar_splits(world)["pretraining"], world.groups["public"]
    texts: dict[str, str] = {}
    while len(texts) < sum(ITEMS.values()):
        kind = kinds[len(texts) % len(kinds)]
        if kind == "grammar":
            text = draw.choice(grammar).document
        else:
            text = _document(draw, world, kind, draw.choice(public), draw.choice(list(ATTRIBUTES)))
        texts.setdefault(text, kind)
    documents = ((kind, text) for text, kind in texts.items())
    return {split: list(islice(documents, size)) for split, size in ITEMS.items()}


def _document(draw: Random, world: World, name: str, entity: str, attribute: str) -> str:
    """A sentence of prose that states a fact, or a question in the format `name` with its answer."""
    if name == "prose":
        return prose_sentence(attribute, draw.randrange(TEMPLATES), entity, world.facts[entity][attribute])
    return ask(draw, world, name, entity, attribute).document
