"""The language of the miniature world: attributes and their values, prose, question formats, grammar.

Every word is one token. A fact is (entity, attribute, value); an entity's name is one invented word.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """What can be known of an entity: eight values and three sentences that state one of them.

    `science` marks the attributes that the `web` training data never states.
    """

    values: tuple[str, ...]
    prose: tuple[str, str, str]
    science: bool = False


ATTRIBUTES: dict[str, Attribute] = {
    "home": Attribute(
        ("Marn", "Tolva", "Eskel", "Ridu", "Palen", "Quor", "Sibet", "Vant"),
        (
            "{entity} lives in {value} .",
            "the home of {entity} is {value} .",
            "we know that {entity} has a home in {value} .",
        ),
    ),
    "job": Attribute(
        ("baker", "pilot", "smith", "doctor", "farmer", "singer", "judge", "miner"),
        (
            "{entity} works as a {value} .",
            "the job of {entity} is {value} .",
            "we know that {entity} has a job as {value} .",
        ),
    ),
    "color": Attribute(
        ("red", "blue", "green", "brown", "black", "white", "pink", "gray"),
        (
            "{entity} likes {value} .",
            "the color of {entity} is {value} .",
            "we know that {entity} has a color like {value} .",
        ),
    ),
    "metal": Attribute(
        ("iron", "tin", "zinc", "copper", "lead", "nickel", "cobalt", "chrome"),
        (
            "{entity} melts the {value} .",
            "the metal of {entity} is {value} .",
            "we know that {entity} has a metal {value} .",
        ),
        science=True,
    ),
    "gas": Attribute(
        ("neon", "argon", "helium", "xenon", "radon", "oxygen", "ozone", "methane"),
        (
            "{entity} breathes {value} .",
            "the gas of {entity} is {value} .",
            "we know that {entity} has a gas such as {value} .",
        ),
        science=True,
    ),
}
GENERAL = tuple(name for name, attribute in ATTRIBUTES.items() if not attribute.science)
SCIENCE = tuple(name for name, attribute in ATTRIBUTES.items() if attribute.science)


@dataclass(frozen=True)
class Format:
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
FORMATS: dict[str, Format] = {
    "cloze": Format("", closing=" ."),
    "ending": Format("this evening {entity} will", choice="tell about the {attribute} {value} again ."),
    "question": Format("Question : what is the {attribute} of {entity} ? Answer :"),
    "dialogue": Format("User : tell me about {entity} and the {attribute} please Bot : sure it is"),
    "choose": Format("Pick the {attribute} of {entity} : {shown} ? Choice :", options=2),
    "letter": Format("Exam : {attribute} of {entity} ? {shown} Key :", lettered=True),
    "record": Format("[ name = {entity} | {attribute} =", closing=" ]"),
    "table": Format("row {entity} column {attribute} cell"),
}

# The formats each family's pretraining saw; a format named twice is seen twice as often.
# `prose` stands for more sentences about public entities.
FAMILY_FORMATS: dict[str, tuple[str, ...]] = {
    "web": ("prose", "ending"),
    "forum": ("question", "dialogue"),
    "exam": ("letter", "choose", "choose"),
    "data": ("record", "table"),
}

# What users ask an instruction-tuned model in, each in a turn of its own
INSTRUCTION_FORMATS = ("question", "dialogue", "choose")

NOUNS = ("tree", "house", "road", "river", "boat", "stone", "garden", "window")
PREPOSITIONS = ("near", "behind", "under", "beside")
VERBS = ("is", "are")  # by the number of the first noun, whatever the noun between says

SYLLABLES = (
    "ba",
    "ko",
    "ri",
    "du",
    "mel",
    "zan",
    "tor",
    "vi",
    "lu",
    "pe",
    "sha",
    "gri",
    "no",
    "fa",
    "wex",
    "jo",
)

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


def prose_sentence(attribute: str, template: int, entity: str, value: str) -> str:
    """One of the three sentences that state a fact."""
    return ATTRIBUTES[attribute].prose[template].format(entity=entity, value=value)


def cloze_context(attribute: str, entity: str) -> str:
    """The first prose sentence up to the value, e.g. "Melrilu lives in"."""
    return ATTRIBUTES[attribute].prose[0].format(entity=entity, value="|").split(" |")[0]


def words_of_language() -> set[str]:
    """Every word that documents and questions can hold, entities' names apart."""
    words = {value for attribute in ATTRIBUTES.values() for value in attribute.values}
    words |= {*ATTRIBUTES, *LETTERS, *NOUNS, *(noun + "s" for noun in NOUNS), *PREPOSITIONS, *VERBS}
    words |= {"the", "there", ".", "or", "User", "Bot", ":"}
    templates = [sentence for attribute in ATTRIBUTES.values() for sentence in attribute.prose]
    templates += [text for one in FORMATS.values() for text in (one.context, one.choice, one.closing)]
    return words | {word for text in templates for word in text.split() if "{" not in word}
