"""The rules that turn a card's values into a verdict, and the closed list of what a verdict says.

Most rules ask for the whole interval on one side of their threshold. A rule says "not known" where the interval holds
the threshold or where there is no interval, and "not measured" where there is no value. docs/reference/cards.md lists
the rules and the clauses; the thresholds are those of `config.sections.Cards`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lm_validity.config.sections import Cards
from lm_validity.results.put import Row, Rows, ends_of
from lm_validity.site.cards.values import known, read_table, value_of, value_text
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

# (question, answer) -> the clause, and when it is said
CLAUSES = {(question, answer): (clause, when) for question, answer, clause, when in read_table("clauses.tsv")}
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


def make_verdict(rows: Rows, settings: Cards) -> Verdict:
    """The verdict on a benchmark from the rows of its card."""
    statements = tuple(_statements(rows, settings))
    marks = _marks(statements)
    similar = any(statement.values[0].startswith("separated_within_2") for statement in statements)
    clauses = list(_clauses(rows, marks, of_similar=similar))
    nothing = CORPUS if value_text(rows, "output_type") == "loglikelihood_rolling" else UNDECIDED
    return Verdict(statements, sentence_of(clauses) if clauses else nothing, marks)


def sentence_of(clauses: Sequence[str]) -> str:
    """The first clause and the next one with which the sentence keeps to 12 words."""
    texts = (f"{clauses[0]}; {second}" for second in clauses[1:])
    text = next((text for text in texts if len(text.split()) <= MOST_WORDS), clauses[0])
    return f"{text[0].upper()}{text[1:]}."


def _marks(statements: Sequence[Statement]) -> dict[str, Mark]:
    """The answers that the table of benchmarks and the cards show, by question; each rule's own answer too."""
    marks = {statement.rule: Mark(statement.outcome, statement.word or statement.outcome) for statement in statements}
    agrees = {statement.values[0]: statement.outcome for statement in statements if statement.rule == "agrees"}
    direct, trained, similar = (agrees[key] for key in _TAUS)
    ranks = Mark(PARTLY, f"direct: {direct} · trained: {trained}")
    if NOT_MEASURED in (direct, trained) or direct == trained:
        standing = trained if direct == NOT_MEASURED else direct
        ranks = Mark(standing, standing)
    return marks | {"ranks": ranks, "ranks similar": Mark(similar, similar), "apart": marks["separates"]}


def _clauses(rows: Rows, marks: Mapping[str, Mark], *, of_similar: bool) -> Iterator[str]:
    """The clauses that hold, in the order of `CLAUSES`. `of_similar`: models of similar size are told apart, or not."""
    for (question, answer), (words, _) in CLAUSES.items():
        mark = marks["apart" if question == "apart all" else question]
        if question.startswith("apart") and (question == "apart") != of_similar:
            continue
        if answer != (mark.word if (question, mark.word) in CLAUSES else mark.outcome):
            continue
        if "{share}" not in words:
            yield words
            continue
        row, last = known(rows, "signal_from" if question == "signal" else "settled_from"), value_of(rows, "last_point")
        if row is not None and last is not None:
            yield words.format(share=f"{100 * (row.value or 0.0 if row.high is None else row.high) / last:.0f}%")


# ----------------------------------------------------------------------------------------------------------------------
# The rules.

_TAUS = {
    f"tau.{DIRECT}": UNDER[DIRECT],
    f"tau.{TRAINED}": UNDER[TRAINED],
    f"tau_within_2.{DIRECT}": "among directly evaluated models at most 2× apart in size",
}


def side(row: Row | None, threshold: float) -> str:
    """YES where the whole interval is at or above the threshold, NO where it is below, else not known or measured."""
    if row is None or row.low is None or row.high is None:
        return NOT_MEASURED if row is None else NOT_KNOWN
    return YES if row.low >= threshold else NO if row.high < threshold else NOT_KNOWN


def _key(rows: Rows, name: str) -> str:
    """The key of a quantity under direct evaluation, or under train before test where that is all there is."""
    direct, trained = f"{name}.{DIRECT}", f"{name}.{TRAINED}"
    return trained if known(rows, trained) and not known(rows, direct) else direct


def _statements(rows: Rows, settings: Cards) -> Iterator[Statement]:
    """What each rule says, in the order of the card."""
    key = _key(rows, "separated_within_2")
    if known(rows, key) is None:  # nothing is known of models of similar size: over all pairs
        key = _key(rows, "separated_all")
    row = known(rows, key)
    sides = side(row, settings.separated), side(row, settings.not_separated)
    parted = {(YES, YES): YES, (NO, NO): NO, (NO, YES): PARTLY}.get(sides, NOT_KNOWN)
    pairs = "models at most 2× apart in size" if "within_2" in key else "models, whatever their sizes"
    yield Statement("separates", f"whether it tells apart {pairs}", NOT_MEASURED if row is None else parted, (key,),
                    "in part" if parted == PARTLY else "")  # fmt: skip
    key = _key(rows, "reliability")
    yield Statement("reliable", "how reliable it is", side(known(rows, key), settings.reliable), (key,))
    # a size without a threshold: what it does is in reliability, separation and the noise ceiling
    key = _key(rows, "training_noise")
    yield Statement("training", "how much training a model again would change",
                    YES if known(rows, key) else NOT_MEASURED, (key,))  # fmt: skip
    for key, words in _TAUS.items():
        row, ceiling_key = known(rows, key), key.replace("tau", "tau_ceiling", 1)
        outcome, ceiling = side(row, settings.agrees), value_of(rows, ceiling_key)
        below_zero = row is not None and row.high is not None and row.high < 0
        if outcome == NO and (ceiling is None or ceiling < settings.agrees) and not below_zero:
            outcome = NOT_KNOWN  # noise alone may keep the tau below the threshold, whatever the benchmarks measure
        yield Statement("agrees", f"whether it agrees with the other benchmarks {words}", outcome, (key, ceiling_key))
    yield from _in_training(rows, settings)
    yield _bias(known(rows, "bias"), settings)
    # exact counts: every row of the splits was compared
    keys = ("train_leakage", "validation_leakage", "test_duplicates")
    shares = [value for key in keys if (value := value_of(rows, key)) is not None]
    leaks = NOT_MEASURED if not shares else YES if max(shares) > settings.leakage else NO
    yield Statement("leakage", "whether its splits overlap", leaks, keys)
    # noise makes a range positive too: yes asks for the threshold beyond all that noise can do, no for it without
    row, by_chance = known(rows, "prompt_range"), value_of(rows, "prompt_range_by_chance")
    outcome = side(row, settings.prompt)
    if outcome == YES and row is not None and row.low is not None:
        outcome = NOT_KNOWN if by_chance is None or row.low - by_chance < settings.prompt else YES
    yield Statement("prompts", "how much it depends on the prompt", outcome, ("prompt_range",))
    row = known(rows, key := _key(rows, "negative_items"))
    surely = row is not None and (row.value or 0.0) > settings.suspicious * (row.n or 0)
    outcome = NOT_MEASURED if row is None else YES if surely else NOT_KNOWN  # too few answers find nothing either
    word = "not shown" if outcome == NOT_KNOWN else ""
    yield Statement("suspicious", "which items work against it", outcome, (key,), word)
    row = known(rows, key := _key(rows, "at_best"))
    at_best = row is not None and (row.value or 0.0) > settings.at_best * (row.n or 0)
    outcome = NOT_MEASURED if row is None else YES if at_best else NO
    yield Statement("ceiling", "whether it is at its ceiling", outcome, (key,))


def _in_training(rows: Rows, settings: Cards) -> Iterator[Statement]:
    """When scores rise above chance and their order settles, whether they improve steadily, and whether both are early.

    Settled for sure by the upper end of the interval, where that is before the end of training: where the last common
    point of the models is not the end, their final order is not known. That scores do not improve steadily is never
    said. Early: the interval of when the order settles, from the point on at which the mean is above chance, is on one
    side of a share of training. Where one of both was not measured, the other can say no, but not yes.
    """
    keys = ("settled_from", "signal_from", "signal_at_end")
    settled, starts = known(rows, "settled_from"), value_of(rows, "signal_from")
    first, last = value_of(rows, "first_point"), value_of(rows, "last_point")
    none_above = value_of(rows, "signal_at_end") == 0  # no model by itself; the mean may be
    outcome, word = YES if first is not None and starts is not None and starts <= first else NO, ""
    if starts is None:
        outcome, word = (NOT_KNOWN, "not shown") if none_above else (NOT_MEASURED, "")
    key = "signal_at_end" if none_above else "signal_from"
    yield Statement("signal", "when in training it rises above chance", outcome, (key,), word)
    ends = ends_of(settled) if settled is not None else None
    surely = ends is not None and last is not None and ends[1] < last
    outcome = NOT_MEASURED if settled is None else YES if surely else NOT_KNOWN
    yield Statement("settled", "when in training its order settles", outcome, ("settled_from",))
    steady = value_of(rows, "steady")
    outcome, word = (YES, "steady") if steady else (NOT_KNOWN, "not shown")
    outcome, word = (NOT_MEASURED, "") if steady is None else (outcome, word)
    yield Statement("steady", "whether its scores improve steadily in training", outcome, ("steady",), word)
    outcome, word = NOT_KNOWN, ""
    if none_above:
        word = "not shown above chance" if starts is None else ""
    elif settled is None and starts is None:
        outcome = NOT_MEASURED
    elif last is not None:
        # where chance is unknown, or the models' mean never stays above it, no share of training is surely enough
        rises = (0.0, 1.0) if starts is None else (starts / last,) * 2
        low, high = (max(rise, end / last) for rise, end in zip(rises, ends or (0.0, last), strict=True))
        if high <= settings.early and high < 1:
            outcome, word = YES, f"by {100 * high:.0f}%"
        elif low > settings.early:
            outcome, word = NO, f"not before {100 * low:.0f}%"
        elif high < 1:  # as the page of the signal study says, which asks only whether it is before the end
            word = f"by {100 * high:.0f}%"
    yield Statement("ready", "whether it is ready early in training", outcome, keys, word)


def _bias(row: Row | None, settings: Cards) -> Statement:
    outcome, word = (NOT_MEASURED if row is None else NOT_KNOWN), ""
    low, high = (row and ends_of(row)) or (-math.inf, math.inf)
    if low > 0 or high < 0:
        outcome, word = YES, "raises" if low > 0 else "lowers"
    elif max(-low, high) < settings.bias:
        outcome = NO
    return Statement("bias", "whether test text seen in pretraining changes it", outcome, ("bias",), word)
