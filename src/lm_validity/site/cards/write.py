"""Benchmark cards: one function from the studies' results to a folder of cards."""

import re
from hashlib import sha256
from pathlib import Path

from lm_validity.files import write_json, write_text
from lm_validity.pages.page import write_page
from lm_validity.site.cards.card import Card
from lm_validity.site.cards.other_values import bias_values, item_values, prompt_values, signal_values, split_values
from lm_validity.site.cards.overview import overview_page
from lm_validity.site.cards.ranking_values import ranking_values
from lm_validity.site.cards.render import card_html, card_markdown
from lm_validity.site.cards.rules import make_verdict
from lm_validity.site.cards.sources import CardSources

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
