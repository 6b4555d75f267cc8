"""A card as an HTML page and as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from lm_validity.pages.page import asset, environment
from lm_validity.site.cards.card import NOT_KNOWN, NOT_MEASURED, Card, Value
from lm_validity.site.cards.words import basis_words, gaps, outcome_words, shown, threshold_words
from lm_validity.words import UNDER, explain_protocols

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
