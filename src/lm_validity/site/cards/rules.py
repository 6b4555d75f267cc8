"""The rules that turn a card's values into a verdict. Each asks for the whole interval on one side of its threshold.

A rule says "not known" where the interval holds the threshold or where there is no interval, and "not measured" where
there is no value. docs/reference/cards.md lists the rules; the thresholds are those of `config.cards.Cards`.
"""

from collections.abc import Iterator, Mapping

from lm_validity.config.sections import Cards
from lm_validity.site.cards.card import (
    NO,
    NOT_KNOWN,
    NOT_MEASURED,
    PARTLY,
    YES,
    Statement,
    Value,
    Verdict,
    both,
)
from lm_validity.site.cards.words import shown, tokens_words
from lm_validity.words import UNDER, count, decimal

DIRECT, TRAINED = "direct", "train_before_test"
Values = Mapping[str, Value]

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


def make_verdict(values: Values, settings: Cards) -> Verdict:
    """The verdict on a benchmark from its values by key."""
    return Verdict(
        (
            *_separation(values, settings),
            _reliability(values, settings),
            _training(values),
            *_agreement(values, settings),
            _signal(values),
            _settled(values),
            _bias(values, settings),
            _leakage(values, settings),
            _prompts(values, settings),
            _suspicious(values, settings),
            _ceiling(values, settings),
        )
    )


def side(value: Value | None, threshold: float) -> str:
    """YES where the whole interval is at or above the threshold, NO where it is below, else not known or measured."""
    if value is None or not value.is_measured:
        return NOT_MEASURED
    if value.interval is None:
        return NOT_KNOWN
    low, high = value.interval
    return YES if low >= threshold else NO if high < threshold else NOT_KNOWN


def _protocol(values: Values, name: str) -> str:
    """The key of a quantity under direct evaluation, or under train before test where that is all there is."""
    direct, trained = f"{name}.{DIRECT}", f"{name}.{TRAINED}"
    known = {key for key in (direct, trained) if key in values and values[key].is_measured}
    return trained if trained in known and direct not in known else direct


def _separation(values: Values, settings: Cards) -> Iterator[Statement]:
    """By distance in size; over all pairs where no sizes are known."""
    distances = {_protocol(values, name): words for name, words in _DISTANCES.items()}
    if not any(key in values and values[key].is_measured for key in distances):
        distances = {_protocol(values, "separated_all"): "models, whatever their sizes"}
    thresholds = {"separated": settings.separated, "not_separated": settings.not_separated}
    for key, words in distances.items():
        value = values.get(key)
        most, half = side(value, settings.separated), side(value, settings.not_separated)
        if most == YES:
            outcome, stem, rest = YES, "tells apart", f"most pairs of {words}"
        elif half == NO:
            outcome, stem, rest = NO, "cannot tell apart", f"most pairs of {words}"
        elif half == YES and most == NO:
            outcome, stem, rest = PARTLY, "tells apart", f"more than half of the pairs of {words}"
        else:
            outcome, stem, rest = (NOT_MEASURED if most == NOT_MEASURED else NOT_KNOWN), "", ""
        yield Statement("separates", f"whether it tells apart {words}", outcome, stem, thresholds, (key,), rest)


def _reliability(values: Values, settings: Cards) -> Statement:
    key = _protocol(values, "reliability")
    outcome = side(values.get(key), settings.reliable)
    words = {
        YES: "its scores are reliable",
        NO: "its scores are noisy",
    }
    thresholds = {"reliable": settings.reliable}
    return Statement("reliable", "how reliable it is", outcome, words.get(outcome, ""), thresholds, (key,))


def _training(values: Values) -> Statement:
    """A size without a threshold: what it does is in reliability, separation and the noise ceiling."""
    key = _protocol(values, "training_noise")
    value, outcome, words = values.get(key), NOT_MEASURED, ""
    if value is not None and value.is_measured:
        outcome, words = YES, f"training a model again moves its score by {shown(value)} (standard deviation)"
    subject = "how much training a model again would change"
    return Statement("training", subject, outcome, words, {}, (key,), in_sentence=False)


def _agreement(values: Values, settings: Cards) -> Iterator[Statement]:
    for key, words in _TAUS.items():
        outcome = side(values.get(key), settings.agrees)
        ceiling_key = key.replace("tau", "tau_ceiling", 1)
        ceiling = values.get(ceiling_key)
        if outcome == NO and ceiling is not None and ceiling.is_measured and ceiling.number < settings.agrees:
            outcome = NOT_KNOWN  # noise alone keeps the tau below the threshold, whatever the benchmarks measure
        stem = {YES: "agrees with the other benchmarks", NO: "agrees little with the other benchmarks"}.get(outcome, "")
        subject = f"whether it agrees with the other benchmarks {words}"
        rest = words if stem else ""
        yield Statement("agrees", subject, outcome, stem, {"agrees": settings.agrees}, (key, ceiling_key), rest)


def _signal(values: Values) -> Statement:
    """The first common point from which on the mean is above chance for good is itself from interval ends."""
    value, key = values.get("signal_from"), "signal_from"
    subject = "when in training it rises above chance"
    at_end = values.get("signal_at_end")
    if at_end is not None and at_end.is_measured and at_end.number == 0:
        return Statement("signal", subject, NO, "no model ends training above chance", {}, ("signal_at_end",))
    if value is None or not value.is_measured:
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
    value, key = values.get("settled_from"), "settled_from"
    subject = "when in training its order settles"
    outcome, words = NOT_MEASURED, ""
    if value is not None and value.is_measured:
        outcome, last = NOT_KNOWN, value.basis.get("last checkpoint")
        if value.interval is not None and last is not None and value.interval[1] < float(last):
            outcome, words = YES, f"its order settles by {tokens_words(value.interval[1])} of training"
    return Statement("settled", subject, outcome, words, {}, (key,))


def _bias(values: Values, settings: Cards) -> Statement:
    value, key = values.get("bias"), "bias"
    outcome, words = NOT_MEASURED, ""
    if value is not None and value.is_measured:
        outcome = NOT_KNOWN
        if value.interval is not None and value.interval[0] > 0:
            low = decimal(100 * value.interval[0], 1)
            outcome, words = YES, f"test text seen in pretraining raises it by at least {low} points"
        elif value.interval is not None and max(map(abs, value.interval)) < settings.bias:
            size = f"{100 * settings.bias:g}"
            outcome, words = NO, f"test text seen in pretraining changes it by less than {size} points"
    subject = "whether test text seen in pretraining changes it"
    return Statement("bias", subject, outcome, words, {"bias": settings.bias}, (key,))


def _leakage(values: Values, settings: Cards) -> Statement:
    """Exact counts: every row of the splits was compared."""
    keys = ("train_leakage", "validation_leakage", "test_duplicates")
    known = [values[key] for key in keys if key in values and values[key].is_measured]
    subject = "whether its splits overlap"
    if not known:
        return Statement("leakage", subject, NOT_MEASURED, "", {"leakage": settings.leakage}, keys)
    over = [value for value in known if value.number > settings.leakage]
    parts = {value.key: f"{value.quantity.label.lower()}: {shown(value)}" for value in over}
    repeated = parts.pop("test_duplicates", "")
    clauses = [f"its published splits share rows, which were removed ({', '.join(parts.values())})"] if parts else []
    clauses += [f"its test rows repeat ({repeated})"] if repeated else []
    words = both(clauses) if clauses else "its published splits hardly share rows"
    thresholds = {"leakage": settings.leakage}
    return Statement("leakage", subject, YES if over else NO, words, thresholds, keys, in_sentence=bool(over))


def _prompts(values: Values, settings: Cards) -> Statement:
    key = "prompt_range"
    outcome = side(values.get(key), settings.prompt)
    size = f"{settings.prompt:g}"
    words = {YES: f"its scores differ by {size} or more between prompts", NO: f"prompts change it by less than {size}"}
    subject = "how much it depends on the prompt"
    return Statement("prompts", subject, outcome, words.get(outcome, ""), {"prompt": settings.prompt}, (key,))


def _suspicious(values: Values, settings: Cards) -> Statement:
    """Counted are items that are certain: the correction for their number is the interval."""
    key = _protocol(values, "negative_items")
    value, outcome, words = values.get(key), NOT_MEASURED, ""
    if value is not None and value.is_measured:
        number, items = int(value.number), int(value.basis["items"])
        outcome = YES if number > settings.suspicious * items else NO
        words = f"{count(number, 'item')} of {items} work{'s' if number == 1 else ''} against it"
    thresholds = {"suspicious": settings.suspicious}
    subject = "which items work against it"
    return Statement("suspicious", subject, outcome, words, thresholds, (key,), in_sentence=outcome == YES)


def _ceiling(values: Values, settings: Cards) -> Statement:
    key = _protocol(values, "at_best")
    value, outcome, words = values.get(key), NOT_MEASURED, ""
    if value is not None and value.is_measured:
        number, models = int(value.number), int(value.basis["models"])
        outcome = YES if number > settings.at_best * models else NO
        words = f"{number} of {count(models, 'model')} {'is' if number == 1 else 'are'} at its ceiling"
    thresholds = {"at_best": settings.at_best}
    subject = "whether it is at its ceiling"
    return Statement("ceiling", subject, outcome, words, thresholds, (key,), in_sentence=outcome == YES)
