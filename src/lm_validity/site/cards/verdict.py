"""The rules that turn a card's values into a verdict, and the closed list of what a verdict says.

Most rules ask for the whole interval on one side of their threshold. A rule says "not known" where the interval holds
the threshold or where there is no interval, and "not measured" where there is no value. docs/reference/cards.md lists
the rules and the clauses; the thresholds are those of `config.sections.Cards`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from lm_validity.config.sections import Cards
from lm_validity.site.cards.values import BY_CHANCE, Value, Values, measured_value, shown, tokens_words
from lm_validity.tables.schema import DIRECT, TRAINED
from lm_validity.words import UNDER, count, decimal

YES, NO, PARTLY, NOT_KNOWN, NOT_MEASURED = "yes", "no", "partly", "not known", "not measured"


@dataclass(frozen=True)
class Statement:
    """What one rule says. `subject`: what it is about, for lists. `words`: what is decided, as a clause; "" where
    nothing is. `values`: keys of the values that it rests on."""

    rule: str
    subject: str
    outcome: str
    words: str
    thresholds: Mapping[str, float]
    values: tuple[str, ...]


# ----------------------------------------------------------------------------------------------------------------------
# The closed list of clauses: a verdict is the first that holds, in this order, and the next that holds with which it
# keeps to 12 words; or that one alone; or a sentence of its own where none holds.

MOST_WORDS = 12

# (question, answer) -> clause, when it is said
CLAUSES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("apart", YES): ("tells similar models apart", "*separates*, models at most 2× apart in size: yes"),
    ("apart", PARTLY): ("tells some similar models apart", "the same: in part"),
    ("apart", NO): ("cannot separate most similar models", "the same: no"),
    ("apart all", YES): ("tells models apart", "no such pairs are known; *separates*, all pairs: yes"),
    ("apart all", PARTLY): ("tells some models apart", "the same: in part"),
    ("apart all", NO): ("cannot separate most models", "the same: no"),
    ("ranks", YES): ("ranks models like the others", "*agrees*: yes under each protocol that has scores"),
    ("ranks", NO): ("ranks models unlike the others", "*agrees*: no under each protocol that has scores"),
    ("ranks", "after training only"): (
        "ranks like others after training only",
        "*agrees*: no under direct evaluation, yes under train before test",
    ),
    ("ranks", "only direct"): (
        "ranks like others only if scored direct",
        "*agrees*: yes under direct evaluation, no under train before test",
    ),
    ("ranks", "after training"): (
        "ranks like the others after training",
        "*agrees*: not known under direct evaluation, yes under train before test",
    ),
    ("ranks", "direct"): (
        "ranks like the others if scored direct",
        "*agrees*: yes under direct evaluation, not known under train before test",
    ),
    ("ranks", "not direct"): (
        "ranks unlike the others if scored direct",
        "*agrees*: no under direct evaluation, not known under train before test",
    ),
    ("ranks", "not after training"): (
        "ranks unlike the others after training",
        "*agrees*: not known under direct evaluation, no under train before test",
    ),
    ("reliable", YES): ("reliable scores", "*reliable*: yes"),
    ("reliable", NO): ("noisy scores", "*reliable*: no"),
    ("steady", YES): ("scores improve steadily in training", "*steady*: yes"),
    ("signal", YES): ("above chance from the first checkpoint", "*signal*: yes"),
    ("signal", "from"): ("above chance from {share} of training", "*signal*: no, but some model ends above chance"),
    ("signal", NO): ("no model shown to end above chance", "*signal*: no model is shown to end above chance"),
    ("settled", YES): ("order settles by {share} of training", "*settled*: yes"),
    ("bias", "raises"): ("test text seen raises scores", "*bias*: yes, the interval is above 0"),
    ("bias", "lowers"): ("test text seen lowers scores", "*bias*: yes, the interval is below 0"),
}
CORPUS = "A text corpus, compared with the benchmarks as a group only."
UNDECIDED = "These data decide none of the questions."


@dataclass(frozen=True)
class Mark:
    """The answer to a question as a matrix and a card show it: an outcome, the word beside its mark, and in brackets
    what is not known of the other protocol."""

    outcome: str
    word: str
    caveat: str = ""

    @property
    def said(self) -> str:
        """The word, with the rest."""
        return f"{self.word} ({self.caveat})" if self.caveat else self.word


@dataclass(frozen=True)
class Verdict:
    """The rules' statements on one benchmark, and the sentence of at most 12 words that they make."""

    statements: tuple[Statement, ...]
    sentence: str
    marks: Mapping[str, Mark]

    def subjects(self, outcome: str) -> list[str]:
        """What the statements of an outcome are about."""
        return [statement.subject for statement in self.statements if statement.outcome == outcome]

    def to_json(self) -> dict[str, object]:
        """Its entry in card.json: the sentence, the subjects that are not known or not measured, and every
        statement."""
        return {
            "sentence": self.sentence,
            "not_known": self.subjects(NOT_KNOWN),
            "not_measured": self.subjects(NOT_MEASURED),
            "statements": [asdict(statement) for statement in self.statements],
        }


def make_verdict(values: Values, settings: Cards) -> Verdict:
    """The verdict on a benchmark from its values by key."""
    statements = (
        *_separation(values, settings),
        _reliability(values, settings),
        _training(values),
        *_agreement(values, settings),
        _signal(values),
        _settled(values),
        _steady(values),
        _ready(values, settings),
        _bias(values, settings),
        _leakage(values, settings),
        _prompts(values, settings),
        _suspicious(values, settings),
        _ceiling(values, settings),
    )
    marks = _marks(statements)
    clauses = list(_clauses(values, statements, marks))
    kind = values.get("output_type")
    nothing = CORPUS if kind is not None and kind.estimate == "loglikelihood_rolling" else UNDECIDED
    return Verdict(statements, sentence_of(clauses) if clauses else nothing, marks)


def sentence_of(clauses: Sequence[str]) -> str:
    """The first clause and the next one with which the sentence keeps to 12 words."""
    texts = (f"{clauses[0]}; {second}" for second in clauses[1:])
    text = next((text for text in texts if len(text.split()) <= MOST_WORDS), clauses[0])
    return f"{text[0].upper()}{text[1:]}."


def _marks(statements: tuple[Statement, ...]) -> dict[str, Mark]:
    """The answers that the table of benchmarks and the cards show, by question; each rule's own answer too."""
    by_value = {(statement.rule, statement.values[0].partition(".")[0]): statement for statement in statements}
    of_question = {statement.rule: statement for statement in statements} | {
        "apart": by_value.get(("separates", "separated_within_2")) or by_value[("separates", "separated_all")],
        "ranks similar": by_value[("agrees", "tau_within_2")],
    }
    marks = {question: Mark(statement.outcome, _WORDS.get(statement.outcome, statement.outcome))
             for question, statement in of_question.items()}  # fmt: skip
    agrees = {statement.values[0]: statement.outcome for statement in statements if statement.rule == "agrees"}
    marks["ranks"] = _ranks(agrees[f"tau.{DIRECT}"], agrees[f"tau.{TRAINED}"])
    ready, steady = of_question["ready"], of_question["steady"].outcome
    marks["ready"] = Mark(ready.outcome, ready.words.removesuffix(" of training") or ready.outcome)
    marks["steady"] = Mark(steady, {YES: "steady", NOT_KNOWN: "not shown"}.get(steady, steady))
    bias = of_question["bias"]
    if bias.outcome == YES:
        marks["bias"] = Mark(YES, "raises" if RAISES in bias.words else "lowers")
    return marks


_WORDS = {PARTLY: "in part"}
RAISES, LOWERS = "raises it by at least", "lowers it by at least"  # what test text seen does
_RANKS = {
    (YES, NO): Mark(PARTLY, "only direct"),
    (NO, YES): Mark(PARTLY, "after training only"),
    (NOT_KNOWN, YES): Mark(PARTLY, "after training", "direct: not known"),
    (YES, NOT_KNOWN): Mark(PARTLY, "direct", "after training: not known"),
    (NO, NOT_KNOWN): Mark(PARTLY, "not direct", "after training: not known"),
    (NOT_KNOWN, NO): Mark(PARTLY, "not after training", "direct: not known"),
}


def _ranks(direct: str, trained: str) -> Mark:
    """Whether it ranks models like the others, from the answers under both protocols."""
    if NOT_MEASURED in (direct, trained):
        standing = trained if direct == NOT_MEASURED else direct
        return Mark(standing, standing)
    return _RANKS.get((direct, trained), Mark(direct, direct) if direct == trained else Mark(NOT_KNOWN, NOT_KNOWN))


def _clauses(values: Values, statements: tuple[Statement, ...], marks: Mapping[str, Mark]) -> Iterator[str]:
    """The clauses that hold, in the order of `CLAUSES`."""
    sizes = any(statement.values[0].startswith("separated_within_2.") for statement in statements)
    answers = {("apart" if sizes else "apart all", marks["apart"].outcome), ("ranks", marks["ranks"].word)}
    answers |= {(rule, marks[rule].outcome) for rule in ("reliable", "steady", "settled")}
    answers.add(("bias", marks["bias"].word))
    late = marks["signal"].outcome == NO and measured_value(values, "signal_from") is not None
    answers.add(("signal", "from" if late else marks["signal"].outcome))
    for question, answer in CLAUSES:
        if (question, answer) in answers:
            words = CLAUSES[question, answer][0]
            if "{share}" not in words:
                yield words
            elif share := _share_of_training(values["signal_from" if question == "signal" else "settled_from"]):
                yield words.format(share=share)


def _share_of_training(value: Value) -> str | None:
    """`27%`: the upper end of a value, in tokens, of the whole training; None where its end is not known."""
    last = value.basis.get("last checkpoint")
    if last is None:
        return None
    return f"{100 * (value.number if value.interval is None else value.interval[1]) / float(last):.0f}%"


# ----------------------------------------------------------------------------------------------------------------------
# The rules.

_DISTANCES = {
    "separated_beyond_2": "models more than 2× apart in size",
    "separated_within_2": "models at most 2× apart in size",
    "separated_within_1_25": "models at most 1.25× apart in size",
}
_TAUS = {
    f"tau.{DIRECT}": UNDER[DIRECT],
    f"tau.{TRAINED}": UNDER[TRAINED],
    f"tau_within_2.{DIRECT}": "among directly evaluated models at most 2× apart in size",
}


def side(value: Value | None, threshold: float) -> str:
    """YES where the whole interval is at or above the threshold, NO where it is below, else not known or measured."""
    if value is None:
        return NOT_MEASURED
    if value.interval is None:
        return NOT_KNOWN
    low, high = value.interval
    return YES if low >= threshold else NO if high < threshold else NOT_KNOWN


def _protocol(values: Values, name: str) -> str:
    """The key of a quantity under direct evaluation, or under train before test where that is all there is."""
    direct, trained = f"{name}.{DIRECT}", f"{name}.{TRAINED}"
    return trained if measured_value(values, trained) and not measured_value(values, direct) else direct


def _separation(values: Values, settings: Cards) -> Iterator[Statement]:
    """By distance in size; over all pairs where nothing is known of models of similar size."""
    distances = {_protocol(values, name): words for name, words in _DISTANCES.items()}
    if not measured_value(values, _protocol(values, "separated_within_2")):
        distances = {key: words for key, words in distances.items() if measured_value(values, key)}
        distances[_protocol(values, "separated_all")] = "models, whatever their sizes"
    thresholds = {"separated": settings.separated, "not_separated": settings.not_separated}
    for key, words in distances.items():
        value = measured_value(values, key)
        most_pairs, half = side(value, settings.separated), side(value, settings.not_separated)
        if most_pairs == YES:
            outcome, clause = YES, f"tells apart most pairs of {words}"
        elif half == NO:
            outcome, clause = NO, f"cannot tell apart most pairs of {words}"
        elif half == YES and most_pairs == NO:
            outcome, clause = PARTLY, f"tells apart more than half of the pairs of {words}"
        else:
            outcome, clause = (NOT_MEASURED if most_pairs == NOT_MEASURED else NOT_KNOWN), ""
        yield Statement("separates", f"whether it tells apart {words}", outcome, clause, thresholds, (key,))


def _reliability(values: Values, settings: Cards) -> Statement:
    key = _protocol(values, "reliability")
    outcome = side(measured_value(values, key), settings.reliable)
    words = {YES: "its scores are reliable", NO: "its scores are noisy"}.get(outcome, "")
    return Statement("reliable", "how reliable it is", outcome, words, {"reliable": settings.reliable}, (key,))


def _training(values: Values) -> Statement:
    """A size without a threshold: what it does is in reliability, separation and the noise ceiling."""
    key = _protocol(values, "training_noise")
    value, outcome, words = measured_value(values, key), NOT_MEASURED, ""
    if value is not None:
        outcome, words = YES, f"training a model again moves its score by {shown(value)} (standard deviation)"
    subject = "how much training a model again would change"
    return Statement("training", subject, outcome, words, {}, (key,))


def _agreement(values: Values, settings: Cards) -> Iterator[Statement]:
    for key, words in _TAUS.items():
        outcome = side(measured_value(values, key), settings.agrees)
        ceiling_key = key.replace("tau", "tau_ceiling", 1)
        ceiling = measured_value(values, ceiling_key)
        least = -math.inf if ceiling is None else ceiling.number
        if outcome == NO and least < settings.agrees and not _below_zero(values, key):
            outcome = NOT_KNOWN  # noise alone may keep the tau below the threshold, whatever the benchmarks measure
        stem = {YES: "agrees with the other benchmarks", NO: "agrees little with the other benchmarks"}.get(outcome, "")
        subject = f"whether it agrees with the other benchmarks {words}"
        clause = f"{stem} {words}" if stem else ""
        yield Statement("agrees", subject, outcome, clause, {"agrees": settings.agrees}, (key, ceiling_key))


def _below_zero(values: Values, key: str) -> bool:
    """Whether the whole interval is below 0, where no noise moves an agreement."""
    value = measured_value(values, key)
    return value is not None and value.interval is not None and value.interval[1] < 0


def _signal(values: Values) -> Statement:
    """The first common point from which on the mean is above chance for good is itself from interval ends."""
    value, key = measured_value(values, "signal_from"), "signal_from"
    subject = "when in training it rises above chance"
    at_end = measured_value(values, "signal_at_end")
    if value is None and at_end is not None and at_end.number == 0:
        return Statement(
            "signal", subject, NO, "no model is shown to end training above chance", {}, ("signal_at_end",)
        )
    if value is None:
        return Statement("signal", subject, NOT_MEASURED, "", {}, (key,))
    first = value.basis.get("first common point")
    tokens = tokens_words(value.number)
    if first is not None and value.number <= float(first):
        return Statement("signal", subject, YES, f"above chance from the first common point on ({tokens})", {}, (key,))
    return Statement("signal", subject, NO, f"no lasting signal before {tokens} of training", {}, (key,))


def _settled(values: Values) -> Statement:
    """Settled for sure by the upper end of the interval, where that is before the end of training.

    Where the last common point of the models is not the end of training, their final order is not known.
    """
    value, key = measured_value(values, "settled_from"), "settled_from"
    subject = "when in training its order settles"
    outcome, words = NOT_MEASURED, ""
    if value is not None:
        outcome, last = NOT_KNOWN, value.basis.get("last checkpoint")
        if value.interval is not None and last is not None and value.interval[1] < float(last):
            outcome, words = YES, f"its order settles by {tokens_words(value.interval[1])} of training"
    return Statement("settled", subject, outcome, words, {}, (key,))


def _steady(values: Values) -> Statement:
    """The signal report's test against a random walk, at a false discovery rate of 5% over its benchmarks. That scores
    do not improve steadily is never said."""
    value, key = measured_value(values, "steady"), "steady"
    outcome, words = NOT_MEASURED if value is None else NOT_KNOWN, ""
    if value is not None and value.number:
        outcome, words = YES, "its scores improve more steadily than a random walk"
    return Statement("steady", "whether its scores improve steadily in training", outcome, words, {}, (key,))


def _ready(values: Values, settings: Cards) -> Statement:
    """Above chance for good, and its order settled, by an early share of training: the interval of when the order
    settles, from the point on at which the mean is above chance, is on one side of that share. Where one of both was
    not measured, the other can say no, but not yes."""
    keys = ("settled_from", "signal_from", "signal_at_end")
    settled, starts, at_end = (measured_value(values, key) for key in keys)
    subject, thresholds = "whether it is ready early in training", {"early": settings.early}
    if at_end is not None and at_end.number == 0:  # no model by itself; the mean may be
        outcome, words = (NO, "not shown above chance") if starts is None else (NOT_KNOWN, "")
        return Statement("ready", subject, outcome, words, thresholds, keys)
    either = settled or starts
    last = None if either is None else either.basis.get("last checkpoint")
    if either is None or last is None:
        return Statement("ready", subject, NOT_MEASURED if either is None else NOT_KNOWN, "", thresholds, keys)
    # where chance is unknown, or the models' mean never stays above it, no share of training is surely enough
    rises = (0.0, 1.0) if starts is None else (starts.number / float(last),) * 2
    ends = (0.0, float(last)) if settled is None or settled.interval is None else settled.interval
    low, high = (max(rise, end / float(last)) for rise, end in zip(rises, ends, strict=True))
    if high <= settings.early and high < 1:
        return Statement("ready", subject, YES, f"by {100 * high:.0f}% of training", thresholds, keys)
    if low > settings.early:
        return Statement("ready", subject, NO, f"not before {100 * low:.0f}% of training", thresholds, keys)
    return Statement("ready", subject, NOT_KNOWN, "", thresholds, keys)


def _bias(values: Values, settings: Cards) -> Statement:
    value, key = measured_value(values, "bias"), "bias"
    outcome, words = NOT_MEASURED if value is None else NOT_KNOWN, ""
    low, high = (value and value.interval) or (0.0, math.inf)
    if low > 0 or high < 0:
        does, least = (RAISES, low) if low > 0 else (LOWERS, -high)
        outcome, words = (
            YES,
            f"test text seen in pretraining {does} {decimal(100 * least, 1 if least >= 0.0005 else 4)} points",
        )
    elif max(-low, high) < settings.bias:
        outcome, words = NO, f"test text seen in pretraining changes it by less than {100 * settings.bias:g} points"
    subject = "whether test text seen in pretraining changes it"
    return Statement("bias", subject, outcome, words, {"bias": settings.bias}, (key,))


def _leakage(values: Values, settings: Cards) -> Statement:
    """Exact counts: every row of the splits was compared."""
    keys = ("train_leakage", "validation_leakage", "test_duplicates")
    shares = [value for key in keys if (value := measured_value(values, key))]
    subject, thresholds = "whether its splits overlap", {"leakage": settings.leakage}
    if not shares:
        return Statement("leakage", subject, NOT_MEASURED, "", thresholds, keys)
    over = [value for value in shares if value.number > settings.leakage]
    parts = {value.key: f"{value.quantity.label.lower()}: {shown(value)}" for value in over}
    repeated = parts.pop("test_duplicates", "")
    clauses = [f"its published splits share rows, which were removed ({', '.join(parts.values())})"] if parts else []
    clauses += [f"its test rows repeat ({repeated})"] if repeated else []
    words = " and ".join(clauses) or "its published splits hardly share rows"
    return Statement("leakage", subject, YES if over else NO, words, thresholds, keys)


def _prompts(values: Values, settings: Cards) -> Statement:
    """Noise makes a range positive too: yes asks for the threshold beyond all that noise can do, no for it without."""
    key = "prompt_range"
    value = measured_value(values, key)
    outcome, size = side(value, settings.prompt), f"{settings.prompt:g}"
    by_chance = None if value is None else value.basis.get(BY_CHANCE)
    if outcome == YES and value is not None and value.interval is not None:
        least = None if by_chance is None else value.interval[0] - float(by_chance)
        outcome = YES if least is not None and least >= settings.prompt else NOT_KNOWN
    words = {YES: f"prompts change it by {size} or more", NO: f"prompts change it by less than {size}"}
    subject = "how much it depends on the prompt"
    return Statement("prompts", subject, outcome, words.get(outcome, ""), {"prompt": settings.prompt}, (key,))


def _suspicious(values: Values, settings: Cards) -> Statement:
    """Counted are items that are certain: the correction for their number is the interval."""
    key = _protocol(values, "negative_items")
    value, outcome, words = measured_value(values, key), NOT_MEASURED, ""
    if value is not None:
        number, items = int(value.number), int(value.basis["items"])
        outcome = YES if number > settings.suspicious * items else NO
        words = f"{count(number, 'item')} of {items} work{'s' if number == 1 else ''} against it"
    thresholds = {"suspicious": settings.suspicious}
    return Statement("suspicious", "which items work against it", outcome, words, thresholds, (key,))


def _ceiling(values: Values, settings: Cards) -> Statement:
    key = _protocol(values, "at_best")
    value, outcome, words = measured_value(values, key), NOT_MEASURED, ""
    if value is not None:
        number, models = int(value.number), int(value.basis["models"])
        outcome = YES if number > settings.at_best * models else NO
        words = f"{number} of {count(models, 'model')} {'is' if number == 1 else 'are'} at its ceiling"
    thresholds = {"at_best": settings.at_best}
    return Statement("ceiling", "whether it is at its ceiling", outcome, words, thresholds, (key,))
