"""The pages and files of cards: one of each, their overview, and those of a run."""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from lm_validity.config.load import Run
from lm_validity.files import write_json, write_text
from lm_validity.pages.page import Page, Section, Table, asset, environment, write_page
from lm_validity.site.cards.card import NOT_KNOWN, NOT_MEASURED, Card, Value
from lm_validity.site.cards.other_values import (
    bias_values,
    item_values,
    prompt_values,
    signal_values,
    split_values,
    splits_folder,
)
from lm_validity.site.cards.ranking_values import ranking_values
from lm_validity.site.cards.rules import make_verdict
from lm_validity.site.cards.sources import CardSources
from lm_validity.site.cards.words import basis_words, gaps, outcome_words, shown, threshold_words, unmeasured
from lm_validity.summaries import Missing
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, explain_protocols, scale_of

# ----------------------------------------------------------------------------------------------------------------------
# A card as an HTML page and as Markdown.

_MARKED = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_[]<>|#"} | {"\n": " "})


def card_html(card: Card, home: str = "") -> str:
    """The card as a page of its own, without scripts; `home`: where the table of all benchmarks is."""
    return (
        environment()
        .get_template("card.html.j2")
        .render(
            card=card,
            home=home,
            style=asset("page.css") + asset("card.css"),
            scope=_scope(card),
            sections=[
                {
                    "title": title,
                    "rows": rows(values),
                    "gaps": gaps(values),
                }
                for title, values in card.sections().items()
            ],
            not_known=card.verdict.subjects(NOT_KNOWN),
            not_measured=card.verdict.subjects(NOT_MEASURED),
            outcome_words=outcome_words,
            threshold_words=threshold_words,
        )
    )


def card_markdown(card: Card) -> str:
    """The card for a data set's README: the verdict, the values that are measured, and what is not."""
    lines = [
        f"## {_marked(card.benchmark)}: how far can it be trusted?",
        "",
        f"**{_marked(card.verdict.sentence)}**",
        "",
    ]
    for outcome, words in (
        (NOT_KNOWN, "Not known, because these data do not decide it"),
        (NOT_MEASURED, "Not measured"),
    ):
        subjects = card.verdict.subjects(outcome)
        lines += [f"{words}: {_marked('; '.join(subjects))}.", ""] if subjects else []
    lines += [f"{_marked(_scope(card))} Intervals are 95% intervals, in brackets.", ""]
    for title, values in card.sections().items():
        found = rows(values)
        if found:
            lines += [f"### {title}", "", "| | | based on |", "|---|---|---|"]
            lines += [_markdown_row(row) for row in found] + [""]
    missing = gaps(card.values)
    if missing:
        lines += ["### Not measured", ""]
        for gap in missing:
            command = f" To measure: `{gap.command}`." if gap.command else ""
            lines.append(f"- {_marked('; '.join(gap.labels))}: {_marked(gap.reason)}{command}")
        lines.append("")
    if card.notes:
        lines += ["### Notes on these data", "", *(f"- {_marked(note)}" for note in card.notes), ""]
    lines.append("Made by lm-validity from the results named above; docs/reference/cards.md there explains each line.")
    return "\n".join(lines) + "\n"


def _scope(card: Card) -> str:
    models = [value for value in card.values if value.quantity.name == "models" and value.is_measured]
    counts = "; ".join(
        f"{value.estimate} {'model' if value.estimate == 1 else 'models'} {UNDER[str(value.protocol)]}"
        for value in models
    )
    if not counts:
        return f"From {card.source}."
    explained = explain_protocols([str(value.protocol) for value in models], own=card.trained_here)
    return f"From {card.source}: {counts}. This card holds for models like these. {explained}"


def rows(values: Sequence[Value]) -> list[dict[str, Any]]:
    """The values that are measured, a row for each quantity with both its protocols."""
    found: dict[str, list[Value]] = {}
    for value in values:
        if value.is_measured:
            found.setdefault(value.quantity.name, []).append(value)
    return [
        {
            "label": group[0].quantity.label,
            "values": [{"shown": shown(one), "protocol": UNDER.get(one.protocol or "")} for one in group],
            "explanation": group[0].quantity.explanation,
            "basis": "; ".join(dict.fromkeys(filter(None, map(basis_words, group)))),
            "no_interval": list(dict.fromkeys(one.interval_reason for one in group if one.interval_reason)),
        }
        for group in found.values()
    ]


def _markdown_row(row: Mapping[str, Any]) -> str:
    parts = [f"{one['shown']} {one['protocol']}" if one["protocol"] else one["shown"] for one in row["values"]]
    return f"| {' | '.join(map(_marked, (row['label'], ', '.join(parts), row['basis'])))} |"


def _marked(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(_MARKED)


# ----------------------------------------------------------------------------------------------------------------------
# The site's first page: all benchmarks in a table, each with its verdict and a link to its card.

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
    return Page("cards", "Benchmark by benchmark", [], [section])


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


# ----------------------------------------------------------------------------------------------------------------------
# Benchmark cards: one function from the studies' results to a folder of cards.

FOLDER = "cards"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def write_cards(sources: CardSources, output: str | Path) -> dict[str, Path]:
    """Write `output`/cards/<benchmark>/{index.html,card.json,card.md}; the folders by benchmark.

    Of all benchmarks of the sheet that have scores, and then the table of all as a report in `output`/cards. Nothing
    where no benchmark has scores.
    """
    cards = [make_card(sources, name) for name in sources.sheet["benchmark"]]
    if not cards:
        return {}
    folders = {card.benchmark: folder_name(card.benchmark) for card in cards}
    place = Path(output) / FOLDER
    for card in cards:
        folder = place / folders[card.benchmark]
        write_json(folder / "card.json", card.to_json())
        write_text(folder / "card.md", card_markdown(card))
        write_text(folder / "index.html", card_html(card, home="../../index.html"))
    write_page(overview_page(cards, folders), place)
    return {name: place / folder for name, folder in folders.items()}


def make_card(sources: CardSources, benchmark: str) -> Card:
    """The card of a benchmark that has scores."""
    values = (
        *ranking_values(sources, benchmark),
        *signal_values(sources, benchmark),
        *bias_values(sources, benchmark),
        *split_values(sources, benchmark),
        *prompt_values(sources, benchmark),
        *item_values(sources, benchmark),
    )
    verdict = make_verdict({value.key: value for value in values}, sources.settings)
    return Card(
        benchmark,
        sources.source or "these results",
        values,
        verdict,
        sources.notes(benchmark),
        sources.trained_here(benchmark),
    )


def folder_name(benchmark: str) -> str:
    """A name for a folder: the benchmark's own, or letters of it and a digest where it holds others."""
    own = benchmark in ("tables", "figures") or benchmark.endswith((".html", ".json", ".parquet"))  # of the page there
    if _PLAIN.fullmatch(benchmark) and not own:
        return benchmark
    plain = re.sub(r"[^A-Za-z0-9-]+", "_", benchmark).strip("_")[:60]
    return f"{plain or 'benchmark'}-{sha256(benchmark.encode()).hexdigest()[:8]}"


# ----------------------------------------------------------------------------------------------------------------------
# The cards of a run of the workflow, finished or not.


def run_sources(run: Run, reports: Sequence[Path], tables: Path, missing: Sequence[str] = ()) -> CardSources | None:
    """What a run's cards are made from; None where it has no benchmarks with scores (the bias study alone)."""
    scores, items = tables / "scores.parquet", tables / "items.parquet"
    if run.configuration.benchmarks is None or not scores.is_file():
        return None
    of_items = run.results / "reports" / "items"
    options = {"scores": scores, "items": items, "benchmarks": run.configuration.benchmarks, "output": of_items}
    written = " ".join(f"--{name} {value}" for name, value in options.items())
    return CardSources(
        scores=scores,
        benchmarks=Path(run.configuration.benchmarks),
        reports=[*reports, of_items],  # written only when somebody asks for it
        items=items if items.is_file() else None,
        splits=splits_folder(run.results),
        settings=run.configuration.cards,
        source=f"the run {run.name}",
        missing=missing,
        items_command=f"lm-validity report items {written} && lm-validity build-site",
    )


def write_run_cards(
    run: Run, reports: Sequence[Path], tables: Path, output: Path, missing: Sequence[str] = ()
) -> list[Path]:
    """Write the cards under `output`; the folder of their table, for the site, or nothing where there are none."""
    sources = run_sources(run, reports, tables, missing)
    return [output / FOLDER] if sources is not None and write_cards(sources, output) else []
