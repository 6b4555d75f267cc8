"""The rules that turn a card's values into a verdict, and the closed list of what a verdict says.

Most rules ask for the whole interval on one side of their threshold. A rule says "not known" where the interval holds
the threshold or where there is no interval, and "not measured" where there is no value. docs/reference/cards.md lists
the rules and the clauses; the thresholds are those of `config.sections.Cards`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from lm_validity.config.sections import Cards
from lm_validity.site.cards.values import BY_CHANCE, Value, Values, measured_value
from lm_validity.tables.schema import DIRECT, TRAINED
from lm_validity.words import UNDER

YES, NO, PARTLY, NOT_KNOWN, NOT_MEASURED = "yes", "no", "partly", "not known", "not measured"


@dataclass(frozen=True)
class Statement:
    """What one rule says. `subject`: what it is about, for lists. `values`: keys of the values that it rests on.
    `word`: what stands beside its mark, where that is not the outcome."""

    rule: str
    subject: str
    outcome: str
    values: tuple[str, ...]
    word: str = ""


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
    ("ranks", "direct: no · trained: yes"): (
        "ranks like others after training only",
        "*agrees*: no under direct evaluation, yes under train before test",
    ),
    ("ranks", "direct: yes · trained: no"): (
        "ranks like others only if scored direct",
        "*agrees*: yes under direct evaluation, no under train before test",
    ),
    ("ranks", "direct: not known · trained: yes"): (
        "ranks like the others after training",
        "*agrees*: not known under direct evaluation, yes under train before test",
    ),
    ("ranks", "direct: yes · trained: not known"): (
        "ranks like the others if scored direct",
        "*agrees*: yes under direct evaluation, not known under train before test",
    ),
    ("ranks", "direct: no · trained: not known"): (
        "ranks unlike the others if scored direct",
        "*agrees*: no under direct evaluation, not known under train before test",
    ),
    ("ranks", "direct: not known · trained: no"): (
        "ranks unlike the others after training",
        "*agrees*: not known under direct evaluation, no under train before test",
    ),
    ("reliable", YES): ("reliable scores", "*reliable*: yes"),
    ("reliable", NO): ("noisy scores", "*reliable*: no"),
    ("steady", YES): ("scores improve steadily in training", "*steady*: yes"),
    ("signal", YES): ("above chance from the first checkpoint", "*signal*: yes"),
    ("signal", NO): ("above chance from {share} of training", "*signal*: no, but some model ends above chance"),
    ("signal", "not shown"): ("no model shown to end above chance", "*signal*: no model is shown to end above chance"),
    ("settled", YES): ("order settles by {share} of training", "*settled*: yes"),
    ("bias", "raises"): ("test text seen raises scores", "*bias*: yes, the interval is above 0"),
    ("bias", "lowers"): ("test text seen lowers scores", "*bias*: yes, the interval is below 0"),
}
CORPUS = "A text corpus, compared with the benchmarks as a group only."
UNDECIDED = "These data answer none of the questions."


@dataclass(frozen=True)
class Mark:
    """The answer to a question as a matrix and a card show it: an outcome, and what stands beside its mark."""

    outcome: str
    word: str


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
    statements = tuple(_statements(values, settings))
    marks = _marks(statements)
    similar = any(each.values[0].startswith("separated_within_2") for each in statements)
    clauses = list(_clauses(values, marks, of_similar=similar))
    kind = values.get("output_type")
    nothing = CORPUS if kind is not None and kind.estimate == "loglikelihood_rolling" else UNDECIDED
    return Verdict(statements, sentence_of(clauses) if clauses else nothing, marks)


def sentence_of(clauses: Sequence[str]) -> str:
    """The first clause and the next one with which the sentence keeps to 12 words."""
    texts = (f"{clauses[0]}; {second}" for second in clauses[1:])
    text = next((text for text in texts if len(text.split()) <= MOST_WORDS), clauses[0])
    return f"{text[0].upper()}{text[1:]}."


def _marks(statements: Sequence[Statement]) -> dict[str, Mark]:
    """The answers that the table of benchmarks and the cards show, by question; each rule's own answer too."""
    marks = {each.rule: Mark(each.outcome, each.word or each.outcome) for each in statements}
    agrees = {each.values[0]: each.outcome for each in statements if each.rule == "agrees"}
    direct, trained, similar = (agrees[key] for key in _TAUS)
    ranks = Mark(PARTLY, f"direct: {direct} · trained: {trained}")
    if NOT_MEASURED in (direct, trained) or direct == trained:
        standing = trained if direct == NOT_MEASURED else direct
        ranks = Mark(standing, standing)
    return marks | {"ranks": ranks, "ranks similar": Mark(similar, similar), "apart": marks["separates"]}


def _clauses(values: Values, marks: Mapping[str, Mark], *, of_similar: bool) -> Iterator[str]:
    """The clauses that hold, in the order of `CLAUSES`. `of_similar`: models of similar size are told apart, or not."""
    for (question, answer), (words, _) in CLAUSES.items():
        mark = marks["apart" if question == "apart all" else question]
        if question.startswith("apart") and (question == "apart") != of_similar:
            continue
        if answer != (mark.word if (question, mark.word) in CLAUSES else mark.outcome):
            continue
        if "{share}" not in words:
            yield words
        elif share := _share_of_training(values["signal_from" if question == "signal" else "settled_from"]):
            yield words.format(share=share)


def _share_of_training(value: Value) -> str | None:
    """`27%`: the upper end of a value, in tokens, of the whole training; None where its end is not known."""
    last = _tokens(value, "last checkpoint")
    if last is None or not value.is_measured:
        return None
    return f"{100 * (value.number if value.interval is None else value.interval[1]) / last:.0f}%"


# ----------------------------------------------------------------------------------------------------------------------
# The rules.

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


def _statements(values: Values, settings: Cards) -> Iterator[Statement]:
    """What each rule says, in the order of the card."""

    def of(name: str) -> tuple[Value | None, tuple[str]]:
        key = _protocol(values, name)
        return measured_value(values, key), (key,)

    value, keys = of("separated_within_2")
    if value is None:  # nothing is known of models of similar size: over all pairs
        value, keys = of("separated_all")
    most, half = side(value, settings.separated), side(value, settings.not_separated)
    parted = {(YES, YES): YES, (NO, NO): NO, (NO, YES): PARTLY}.get((most, half), NOT_KNOWN)
    pairs = "models at most 2× apart in size" if "within_2" in keys[0] else "models, whatever their sizes"
    yield Statement("separates", f"whether it tells apart {pairs}", NOT_MEASURED if value is None else parted, keys,
                    "in part" if parted == PARTLY else "")  # fmt: skip
    value, keys = of("reliability")
    yield Statement("reliable", "how reliable it is", side(value, settings.reliable), keys)
    # a size without a threshold: what it does is in reliability, separation and the noise ceiling
    value, keys = of("training_noise")
    yield Statement("training", "how much training a model again would change", NOT_MEASURED if value is None else YES,
                    keys)  # fmt: skip
    for key, words in _TAUS.items():
        value, ceiling_key = measured_value(values, key), key.replace("tau", "tau_ceiling", 1)
        outcome, ceiling = side(value, settings.agrees), measured_value(values, ceiling_key)
        below_zero = value is not None and value.interval is not None and value.interval[1] < 0
        if outcome == NO and (-math.inf if ceiling is None else ceiling.number) < settings.agrees and not below_zero:
            outcome = NOT_KNOWN  # noise alone may keep the tau below the threshold, whatever the benchmarks measure
        yield Statement("agrees", f"whether it agrees with the other benchmarks {words}", outcome, (key, ceiling_key))
    yield from _in_training(values, settings)
    yield _bias(measured_value(values, "bias"), settings)
    # exact counts: every row of the splits was compared
    keys_of_splits = ("train_leakage", "validation_leakage", "test_duplicates")
    shares = [value.number for key in keys_of_splits if (value := measured_value(values, key))]
    leaks = NOT_MEASURED if not shares else YES if max(shares) > settings.leakage else NO
    yield Statement("leakage", "whether its splits overlap", leaks, keys_of_splits)
    # noise makes a range positive too: yes asks for the threshold beyond all that noise can do, no for it without
    value = measured_value(values, "prompt_range")
    outcome = side(value, settings.prompt)
    if outcome == YES and value is not None and value.interval is not None:
        by_chance = value.basis.get(BY_CHANCE)
        beyond = by_chance is not None and value.interval[0] - float(by_chance) >= settings.prompt
        outcome = YES if beyond else NOT_KNOWN
    yield Statement("prompts", "how much it depends on the prompt", outcome, ("prompt_range",))
    for rule, subject, name, of_what, most_share in (
        ("suspicious", "which items work against it", "negative_items", "items", settings.suspicious),
        ("ceiling", "whether it is at its ceiling", "at_best", "models", settings.at_best),
    ):
        value, keys = of(name)
        outcome = NOT_MEASURED
        if value is not None:
            outcome = YES if value.number > most_share * int(value.basis[of_what]) else NO
        yield Statement(rule, subject, outcome, keys)


def _tokens(value: Value | None, name: str) -> float | None:
    """A point of training that a value rests on, in billions of tokens; None where it is not known."""
    place = None if value is None else value.basis.get(name)
    return None if place is None else float(place)


def _in_training(values: Values, settings: Cards) -> Iterator[Statement]:
    """When scores rise above chance and their order settles, whether they improve steadily, and whether both are early.

    Settled for sure by the upper end of the interval, where that is before the end of training: where the last common
    point of the models is not the end, their final order is not known. That scores do not improve steadily is never
    said. Early: the interval of when the order settles, from the point on at which the mean is above chance, is on one
    side of a share of training. Where one of both was not measured, the other can say no, but not yes.
    """
    keys = ("settled_from", "signal_from", "signal_at_end")
    settled, starts, at_end = (measured_value(values, key) for key in keys)
    none_above = at_end is not None and at_end.number == 0  # no model by itself; the mean may be
    subject, first = "when in training it rises above chance", _tokens(starts, "first common point")
    if starts is None:
        outcome, word = (NOT_KNOWN, "not shown") if none_above else (NOT_MEASURED, "")
    else:
        outcome, word = (YES if first is not None and starts.number <= first else NO), ""
    yield Statement("signal", subject, outcome, ("signal_at_end" if none_above else "signal_from",), word)
    outcome, last = (NOT_MEASURED if settled is None else NOT_KNOWN), _tokens(settled, "last checkpoint")
    if settled is not None and settled.interval is not None and last is not None and settled.interval[1] < last:
        outcome = YES
    yield Statement("settled", "when in training its order settles", outcome, ("settled_from",))
    steady = measured_value(values, "steady")
    outcome = NOT_MEASURED if steady is None else YES if steady.number else NOT_KNOWN
    words = {YES: "steady", NOT_KNOWN: "not shown"}
    yield Statement("steady", "whether its scores improve steadily in training", outcome, ("steady",),
                    words.get(outcome, ""))  # fmt: skip
    either = settled or starts
    last, outcome, word = _tokens(either, "last checkpoint"), NOT_KNOWN, ""
    if none_above:
        word = "not shown above chance" if starts is None else ""
    elif either is None:
        outcome = NOT_MEASURED
    elif last is not None:
        # where chance is unknown, or the models' mean never stays above it, no share of training is surely enough
        rises = (0.0, 1.0) if starts is None else (starts.number / last,) * 2
        ends = (0.0, last) if settled is None or settled.interval is None else settled.interval
        low, high = (max(rise, end / last) for rise, end in zip(rises, ends, strict=True))
        if high <= settings.early and high < 1:
            outcome, word = YES, f"by {100 * high:.0f}%"
        elif low > settings.early:
            outcome, word = NO, f"not before {100 * low:.0f}%"
        elif high < 1:  # as the page of the signal study says, which asks only whether it is before the end
            word = f"by {100 * high:.0f}%"
    yield Statement("ready", "whether it is ready early in training", outcome, keys, word)


def _bias(value: Value | None, settings: Cards) -> Statement:
    outcome, word = (NOT_MEASURED if value is None else NOT_KNOWN), ""
    low, high = (value and value.interval) or (-math.inf, math.inf)
    if low > 0 or high < 0:
        outcome, word = YES, "raises" if low > 0 else "lowers"
    elif max(-low, high) < settings.bias:
        outcome = NO
    return Statement("bias", "whether test text seen in pretraining changes it", outcome, ("bias",), word)
