"""The site's first page: all benchmarks in a table, each with its verdict and a link to its card."""

from collections.abc import Mapping, Sequence

import pandas as pd

from lm_validity.pages.page import Page, Section, Table
from lm_validity.site.cards.card import Card, Value
from lm_validity.site.cards.words import unmeasured
from lm_validity.summaries import Missing
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import scale_of

# column -> (key of the card's value, heading, format); columns that are empty throughout are left out
_COLUMNS = {
    "items": ("items", "items", ".0f"),
    "models": (f"models.{PROTOCOLS[0]}", "models", ".0f"),
    "chance": ("chance", "chance", ".3g"),
    "highest": (f"highest.{PROTOCOLS[0]}", "highest score", ".3f"),
    "reliability": (f"reliability.{PROTOCOLS[0]}", "reliability", ".1%"),
    "smallest_difference": (f"smallest_difference.{PROTOCOLS[0]}", "smallest difference", ".3f"),
    "separated_within_2": (f"separated_within_2.{PROTOCOLS[0]}", "separated within 2×", ".0%"),
    "separated_beyond_2": (f"separated_beyond_2.{PROTOCOLS[0]}", "separated beyond 2×", ".0%"),
    "tau_direct": (f"tau.{PROTOCOLS[0]}", "τ with the others", ".2f"),
    "tau_tuned": (f"tau.{PROTOCOLS[1]}", "τ under train before test", ".2f"),
    "tau_within_2": (f"tau_within_2.{PROTOCOLS[0]}", "τ within 2×", ".2f"),
    "signal_from": ("signal_from", "above chance from ({} tokens)", ".3g"),
    "settled_from": ("settled_from", "order settled from ({} tokens)", ".3g"),
    "bias": ("bias", "effect of test text seen", "+.3f"),
    "train_leakage": ("train_leakage", "training rows in later splits", ".1%"),
    "prompt_range": ("prompt_range", "range over prompts", ".3f"),
    "negative_items": (f"negative_items.{PROTOCOLS[0]}", "suspicious items", ".0f"),
}
_DESCRIBED = ("items", "models", "chance", "highest")  # columns that are known of any benchmark with scores
EXPLANATION = (
    "Each row is a benchmark. Its name leads to its card, which has the intervals, the basis of each figure, and what "
    "the words mean. A dash marks a figure that was not measured. Point at it for the reason. The verdict says only "
    "what whole 95% intervals allow. Reliability is over models of all sizes. Sizes of models are numbers of "
    "parameters. τ is the mean Kendall's tau with the other benchmarks, from -1 to 1. Figures are under direct "
    "evaluation (models as they are) unless the heading says otherwise."
)


def overview_page(cards: Sequence[Card], folders: Mapping[str, str]) -> Page:
    """The table of all benchmarks; `folders`: of each card, by benchmark."""
    cards = sorted(cards, key=_is_left_out)
    rows = [_row(card) for card in cards]
    names = [name for name in _COLUMNS if any(not isinstance(row[name], Missing) for row in rows)]
    frame = pd.DataFrame(rows)[["benchmark", "verdict", *names, "not_measured"]]
    tokens = [name for name in names if "{}" in _COLUMNS[name][1]]
    values = [value for name in tokens for value in frame[name] if not isinstance(value, Missing)]
    factor, unit = scale_of(max(values, default=1.0))
    labels = {name: _COLUMNS[name][1].format(unit) for name in names} | {"not_measured": "figures not measured"}
    table = Table(
        "benchmarks",
        "Benchmarks",
        frame,
        formats={name: _COLUMNS[name][2] for name in names},
        scales=dict.fromkeys(tokens, factor),
        labels=labels,
        links=[f"{folders[card.benchmark]}/index.html" for card in cards],
    )
    section = Section("All benchmarks", explanation=EXPLANATION, tables=[table])
    return Page("cards", "Benchmark by benchmark", [], [section], before_findings=True)


def _is_left_out(card: Card) -> bool:
    """Whether no study compared the benchmark, as where few models have scores on it: such rows come last."""
    compared = [card.value(key) for name, (key, _, _) in _COLUMNS.items() if name not in _DESCRIBED]
    return not any(value is not None and value.is_measured for value in compared)


def _row(card: Card) -> dict[str, object]:
    values = {name: _cell(card.value(key)) for name, (key, _, _) in _COLUMNS.items()}
    missing = sum(len(gap.labels) for gap in unmeasured(card))
    return {"benchmark": card.benchmark, "verdict": card.verdict.sentence, **values, "not_measured": missing}


def _cell(value: Value | None) -> object:
    if value is None:
        return Missing("There are no scores under direct evaluation.")
    return Missing(value.reason) if value.estimate is None else value.estimate
