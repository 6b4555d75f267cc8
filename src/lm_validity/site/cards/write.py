"""A card as a page, as Markdown and as JSON, and the folder of all cards."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lm_validity.config.load import Run
from lm_validity.files import write_json, write_text
from lm_validity.pages.page import Link, Panel, from_template, legend_of, write_csv
from lm_validity.site.cards.panels import card_panels, outcome
from lm_validity.site.cards.values import CardSources, Value, Values, basis_words, card_values, measured_value, shown
from lm_validity.site.cards.verdict import NOT_KNOWN, NOT_MEASURED, Verdict, make_verdict
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, explain_protocols

FORMAT = 2  # of card.json; a change that a reader of it has to know raises it
FOLDER = "cards"


@dataclass(frozen=True)
class Card:
    """A benchmark's card. `source`: the run or the folder of the site that it is from; `notes`: on its data;
    `trained_here`: a run of the workflow made the fine-tunes."""

    benchmark: str
    source: str
    values: Values  # in order
    verdict: Verdict
    panels: Sequence[Panel] = ()
    notes: tuple[str, ...] = ()
    trained_here: bool = False

    def value(self, key: str) -> Value | None:
        """The value of a key, if it is measured."""
        return measured_value(self.values, key)

    def sections(self) -> dict[str, list[Value]]:
        """The values by section, in order."""
        sections: dict[str, list[Value]] = {}
        for value in self.values.values():
            sections.setdefault(value.quantity.section, []).append(value)
        return sections

    def to_json(self) -> dict[str, object]:
        """What card.json holds; `format` is the version of its layout."""
        return {
            "format": FORMAT,
            "benchmark": self.benchmark,
            "source": self.source,
            "verdict": self.verdict.to_json(),
            "values": {key: value.to_json() for key, value in self.values.items()},
            "notes": list(self.notes),
        }


def make_card(sources: CardSources, benchmark: str) -> Card:
    """The card of a benchmark that has scores."""
    values = {value.key: value for value in card_values(sources, benchmark)}
    verdict = make_verdict(values, sources.settings)
    return Card(
        benchmark,
        sources.source or "these results",
        values,
        verdict,
        card_panels(sources, benchmark, values, verdict),
        sources.notes(benchmark),
        sources.trained_here(benchmark),
    )


# ----------------------------------------------------------------------------------------------------------------------
# The page.

# question of a mark -> what "also checked" calls it
CHECKED = {
    "reliable": "Reliable scores",
    "ready": "Ready early in training",
    "ceiling": "Models at its ceiling",
    "leakage": "Splits overlap",
    "prompts": "Depends on the prompt",
    "suspicious": "Faulty items",
    "bias": "Test text seen changes scores",
}
# rule -> what the line of unmeasured things calls it
_LACKED = {
    "agrees": "agreement",
    "separates": "telling models apart",
    "reliable": "reliability",
    "training": "training a model again",
    **dict.fromkeys(("signal", "settled", "steady", "ready"), "scores in training"),
    "bias": "effect of test text seen",
    "leakage": "overlap of splits",
    "prompts": "prompts",
    "suspicious": "faulty items",
    "ceiling": "ceiling",
}


def card_html(card: Card, navigation: Sequence[Link] = (), missing: Sequence[str] = ()) -> str:
    """The card as a page of a site; `navigation`: of the site, the table of all benchmarks first."""
    marks = card.verdict.marks
    rules = {statement.rule for statement in card.verdict.statements}
    lacked = {rule for rule in rules if all(
        entry.outcome == NOT_MEASURED for entry in card.verdict.statements if entry.rule == rule)}  # fmt: skip
    scores_in_training = {"signal", "settled", "steady", "ready"}
    lacked -= set() if scores_in_training <= lacked else scores_in_training
    return from_template(
        "card.html.j2",
        title=f"{card.benchmark}: {card.verdict.sentence}",
        navigation=navigation,
        missing=list(missing),
        card=card,
        about=_about(card),
        legend=legend_of([panel.svg for panel in card.panels]),
        checks=[(name, outcome(marks[rule].outcome), marks[rule].word) for rule, name in CHECKED.items()
                if marks[rule].outcome != NOT_MEASURED],
        lacked=list(dict.fromkeys(name for rule, name in _LACKED.items() if rule in lacked)),
        scope=_scope(card),
        sections={title: table for title, values in card.sections().items() if (table := measured_rows(values))},
        gaps=gaps(list(card.values.values())),
    )  # fmt: skip


def _about(card: Card) -> str:
    """`questions · written answer · 61 models`."""
    items, described = card.value("items"), [card.value(name) for name in ("category", "output_type")]
    parts = [shown(value) for value in described if value is not None]
    numbers = [value.number for protocol in PROTOCOLS if (value := card.value(f"models.{protocol}")) is not None]
    parts += [f"{max(numbers):,.0f} models"] if numbers else []
    return " · ".join([*parts, *([f"{items.number:,.0f} items"] if items is not None else [])])


def _scope(card: Card) -> str:
    models = [value for value in card.values.values() if value.quantity.name == "models" and value.is_measured]
    counts = "; ".join(
        f"{value.estimate} {'model' if value.estimate == 1 else 'models'} {UNDER[str(value.protocol)]}"
        for value in models
    )
    if not counts:
        return f"From {card.source}."
    explained = explain_protocols([str(value.protocol) for value in models], trained_here=card.trained_here)
    return f"From {card.source}: {counts}. For other kinds of models it may differ. {explained}"


class NotMeasured(NamedTuple):
    """The labels of values that are not measured for one reason, and the command that would measure them, if any."""

    labels: tuple[str, ...]
    reason: str
    command: str | None


def gaps(values: Sequence[Value]) -> list[NotMeasured]:
    """The values that are not measured, those of one reason and command together; of a quantity that is missing under
    each protocol for that reason the label without a protocol."""
    totals = Counter(value.quantity.name for value in values)
    missing: dict[tuple[str, str | None], list[Value]] = {}
    for value in values:
        if value.reason is not None:
            missing.setdefault((value.reason, value.command), []).append(value)
    listed = []
    for (reason, command), group in missing.items():
        in_group = Counter(value.quantity.name for value in group)
        labels = [value.quantity.label if in_group[value.quantity.name] == totals[value.quantity.name] else value.label
                  for value in group]  # fmt: skip
        listed.append(NotMeasured(tuple(dict.fromkeys(labels)), reason, command))
    return listed


class MeasuredRow(NamedTuple):
    """A quantity of a card's table, with both its protocols."""

    label: str
    estimates: list[str]
    explanation: str
    basis: str
    no_interval: list[str]


def measured_rows(values: Sequence[Value]) -> list[MeasuredRow]:
    """The values that are measured, a row for each quantity."""
    groups: dict[str, list[Value]] = {}
    for value in values:
        if value.is_measured:
            groups.setdefault(value.quantity.name, []).append(value)
    return [
        MeasuredRow(
            label=group[0].quantity.label,
            estimates=[" ".join(filter(None, (shown(value), UNDER.get(value.protocol or "")))) for value in group],
            explanation=group[0].quantity.explanation,
            basis="; ".join(dict.fromkeys(filter(None, map(basis_words, group)))),
            no_interval=list(dict.fromkeys(value.interval_reason for value in group if value.interval_reason)),
        )
        for group in groups.values()
    ]


# ----------------------------------------------------------------------------------------------------------------------
# The card as Markdown, for a data set's README.

_MARKED = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_[]<>|#"} | {"\n": " "})


def card_markdown(card: Card) -> str:
    """The verdict and a small table; then the values that are measured, and what is not."""
    lines = [
        f"## {_marked(card.benchmark)}: how far can it be trusted?",
        "",
        f"**{_marked(card.verdict.sentence)}**",
        "",
    ]
    answers = [
        (panel.question, panel.word or panel.outcome or "", panel.text.replace("**", "")) for panel in card.panels
    ]
    answers += [(name, card.verdict.marks[rule].word, "") for rule, name in CHECKED.items()
                if card.verdict.marks[rule].outcome != NOT_MEASURED]  # fmt: skip
    lines += ["| | | |", "|---|---|---|"] if answers else []
    lines += [f"| {' | '.join(map(_marked, answer))} |" for answer in answers] + [""]
    for outcome_, words in (
        (NOT_KNOWN, "Not known, because these data do not decide it"),
        (NOT_MEASURED, "Not measured"),
    ):
        subjects = card.verdict.subjects(outcome_)
        lines += [f"{words}: {_marked('; '.join(subjects))}.", ""] if subjects else []
    lines += [f"{_marked(_scope(card))} Intervals are 95% intervals, in brackets.", ""]
    for title, values in card.sections().items():
        table = measured_rows(values)
        if table:
            lines += [f"### {title}", "", "| | | based on |", "|---|---|---|"]
            lines += [f"| {' | '.join(map(_marked, (row.label, ', '.join(row.estimates), row.basis)))} |"
                      for row in table]  # fmt: skip
            lines.append("")
    missing = gaps(list(card.values.values()))
    if missing:
        lines += ["### Not measured", ""]
        for gap in missing:
            command = f" To measure: `{gap.command}`." if gap.command else ""
            lines.append(f"- {_marked('; '.join(gap.labels))}: {_marked(gap.reason)}{command}")
        lines.append("")
    if card.notes:
        lines += ["### Notes on these data", "", *(f"- {_marked(note)}" for note in card.notes), ""]
    lines.append(
        "Made by lm-validity from the results named above; its documentation on benchmark cards explains each line."
    )
    return "\n".join(lines) + "\n"


def _marked(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(_MARKED)


# ----------------------------------------------------------------------------------------------------------------------
# Files.

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# columns of tables/benchmarks.csv -> key of the card's value; those that are empty throughout are left out
_COLUMNS = {
    "items": "items",
    "models": "models.direct",
    "chance": "chance",
    "highest": "highest.direct",
    "reliability": "reliability.direct",
    "smallest_difference": "smallest_difference.direct",
    "separated_within_2": "separated_within_2.direct",
    "tau_direct": "tau.direct",
    "tau_tuned": "tau.train_before_test",
    "tau_within_2": "tau_within_2.direct",
    "signal_from": "signal_from",
    "settled_from": "settled_from",
    "bias": "bias",
    "train_leakage": "train_leakage",
    "prompt_range": "prompt_range",
    "negative_items": "negative_items.direct",
}
_DESCRIBED = ("items", "models", "chance", "highest")  # columns that are known of any benchmark with scores


def write_cards(
    cards: Sequence[Card], output: Path, navigation: Sequence[Link] = (), missing: Sequence[str] = ()
) -> dict[str, str]:
    """Write `output`/<benchmark>/{index.html,card.json,card.md} and tables/benchmarks.csv; the folders' names by
    benchmark."""
    folders = {card.benchmark: folder_name(card.benchmark) for card in cards}
    for card in cards:
        folder = output / folders[card.benchmark]
        write_json(folder / "card.json", card.to_json())
        write_text(folder / "card.md", card_markdown(card))
        write_text(folder / "index.html", card_html(card, navigation, missing))
    frame = cards_frame(cards)
    write_csv(output / "tables" / "benchmarks.csv", frame.columns, frame.itertuples(index=False, name=None))
    return folders


def cards_frame(cards: Sequence[Card]) -> pd.DataFrame:
    """A row a benchmark: its verdict and its main figures; what no study compared comes last."""
    frame = pd.DataFrame(
        [
            {"benchmark": card.benchmark, "verdict": card.verdict.sentence}
            | {name: value.estimate for name, key in _COLUMNS.items() if (value := card.value(key)) is not None}
            | {"not_measured": sum(not value.is_measured for value in card.values.values())}
            for card in cards
        ]
    )
    names = [name for name in _COLUMNS if name in frame]
    compared = frame[[name for name in names if name not in _DESCRIBED]].notna().any(axis=1)
    return frame[["benchmark", "verdict", *names, "not_measured"]].sort_values(
        "benchmark", key=lambda _: ~compared, kind="stable"
    )


def folder_name(benchmark: str) -> str:
    """A name for a folder: the benchmark's own, or letters of it and a digest where it holds others."""
    is_reserved = benchmark in ("tables", "figures") or benchmark.endswith(
        (".html", ".json", ".parquet")
    )  # of the page there
    if _PLAIN.fullmatch(benchmark) and not is_reserved:
        return benchmark
    plain = re.sub(r"[^A-Za-z0-9-]+", "_", benchmark).strip("_")[:60]
    return f"{plain or 'benchmark'}-{sha256(benchmark.encode()).hexdigest()[:8]}"


def run_sources(run: Run, reports: Sequence[Path], tables: Path, missing: Sequence[str] = ()) -> CardSources | None:
    """What a run's cards are made from; None where it has no benchmarks with scores (the bias study alone)."""
    scores, items, splits = tables / "scores.parquet", tables / "items.parquet", run.results / "splits"
    if run.configuration.benchmarks is None or not scores.is_file():
        return None
    of_items = run.results / "reports" / "items"
    options = {"scores": scores, "items": items, "benchmarks": run.configuration.benchmarks, "output": of_items}
    written = " ".join(f"--{name} {value}" for name, value in options.items())
    return CardSources(
        scores=scores,
        benchmarks=Path(run.configuration.benchmarks),
        reports=[*reports, of_items],  # written only when somebody asks for it
        models=Path(run.configuration.models) if run.configuration.models else None,
        items=items if items.is_file() else None,
        splits=splits if splits.is_dir() else None,
        settings=run.configuration.cards,
        source=f"the run {run.name}",
        missing=missing,
        items_command=f"lm-validity report items {written} && lm-validity build-site",
    )
