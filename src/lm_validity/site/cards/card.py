"""A card: the panels of one benchmark, its page, its Markdown and JSON, and the folder of all cards."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.config.sections import Cards
from lm_validity.files import write_json, write_text
from lm_validity.pages import svg as draw
from lm_validity.pages.page import Outcome, Panel, from_template, legend_of, write_csv
from lm_validity.results.put import Row, Rows, ends_of
from lm_validity.results.sections import POINTS, Dots, Lines, Points, Series
from lm_validity.site.cards import values as facts
from lm_validity.studies.agreement.statistics.noise import shown_ceiling
from lm_validity.tables.schema import PROTOCOLS, trained_here
from lm_validity.words import UNDER, count, decimal, explain_protocols, percent

FORMAT = 4  # of card.json; a change that a reader of it has to know raises it
FOLDER = "cards"
# rules whose answers stand below the panels, and what they are called there
CHECKED = {
    "reliable": "Reliable scores",
    "ready": "Ready early in training",
    "ceiling": "Models at its ceiling",
    "leakage": "Splits overlap",
    "prompts": "Depends on the prompt",
    "suspicious": "Faulty items",
    "bias": "Test text seen changes scores",
}


class MeasuredLine(NamedTuple):
    """A quantity of a card's table, with all its numbers."""

    label: str
    estimates: list[str]
    explanation: str
    basis: str
    no_interval: list[str]


@dataclass(frozen=True)
class Card:
    """A benchmark's card. `source`: the run or the folder of the site that it is from; `notes`: on its data;
    `trained_here`: a run of the workflow made the fine-tunes."""

    benchmark: str
    source: str
    rows: Rows
    verdict: facts.Verdict
    panels: Sequence[Panel] = ()
    notes: tuple[str, ...] = ()
    trained_here: bool = False

    def to_json(self) -> dict[str, object]:
        """What card.json holds; `format` is the version of its layout."""
        statements = [statement._asdict() for statement in self.verdict.statements]
        verdict = {"sentence": self.verdict.sentence, "statements": statements}
        start = {"format": FORMAT, "benchmark": self.benchmark, "source": self.source, "verdict": verdict}
        return {**start, "rows": [row._asdict() for row in self.rows], "notes": list(self.notes)}

    @property
    def checks(self) -> list[tuple[str, facts.Statement]]:
        """What was also checked: its name and its mark."""
        marks = [(name, self.verdict.marks[rule]) for rule, name in CHECKED.items()]
        return [(name, mark) for name, mark in marks if mark.outcome != facts.NOT_MEASURED]

    @property
    def scope(self) -> str:
        """What the card speaks for: which models, and what the protocols mean."""
        models = [row for row in self.rows.all("models") if row.value is not None]
        counts = "; ".join(f"{count(int(row.value or 0), 'model')} {UNDER[str(row.protocol)]}" for row in models)
        explained = explain_protocols([str(row.protocol) for row in models], trained_here=self.trained_here)
        return f"From {self.source}: {counts}. For other kinds of models it may differ. {explained}"

    @property
    def measured(self) -> dict[str, list[MeasuredLine]]:
        """The numbers that are known, a line for each quantity, by section."""
        sections = dict[str, list[MeasuredLine]]()
        for name, quantity in facts.QUANTITIES.items():
            numbers = [row for row in self.rows.all(name) if row.value is not None or row.text is not None]
            if numbers:
                written = [" ".join(filter(None, (facts.shown(row), UNDER.get(row.protocol or "")))) for row in numbers]
                basis = "; ".join(dict.fromkeys(filter(None, map(facts.basis_words, numbers))))
                reasons = list(dict.fromkeys(row.reason for row in numbers if row.reason))
                line = MeasuredLine(quantity.label, written, quantity.explanation, basis, reasons)
                sections.setdefault(quantity.section, []).append(line)
        return sections

    @property
    def gaps(self) -> list[tuple[str, str]]:
        """What is not measured: the labels of quantities that are missing for one reason, and the reason."""
        reasons = dict[str, dict[str, None]]()
        for row in self.rows:
            if row.value is None and row.text is None and row.reason:
                several = any(row_too.value is not None for row_too in self.rows.all(row.quantity))
                under = f", {UNDER[row.protocol]}" if row.protocol and several else ""
                reasons.setdefault(row.reason, {})[f"{facts.QUANTITIES[row.quantity].label}{under}"] = None
        return [("; ".join(labels), reason) for reason, labels in reasons.items()]


def make_card(sources: facts.CardSources, benchmark: str) -> Card:
    """The card of a benchmark that has scores, with a panel for each question that the data answer."""
    rows = facts.card_rows(sources, benchmark)
    verdict = facts.make_verdict(rows, sources.settings)
    panels = (
        _ranks_panel(rows, verdict),
        _apart_panel(rows, verdict, sources.settings),
        _scores_panel(sources, benchmark, rows),
        _gap_panel(rows),
        _training_panel(sources, benchmark, rows, verdict),
    )
    is_own = trained_here(sources.counted.rows[sources.counted.rows["benchmark"] == benchmark])
    answered, source = [panel for panel in panels if panel is not None], sources.source or "these results"
    return Card(benchmark, source, rows, verdict, answered, sources.notes(benchmark), is_own)


# ----------------------------------------------------------------------------------------------------------------------
# Words and pictures of a card's rows.


def ceiling_of(rows: Rows, tau: Row) -> Row | None:
    """The noise ceiling of an agreement, where it is shown."""
    ceiling = facts.known(rows, f"{tau.quantity.replace('tau', 'tau_ceiling')}.{tau.protocol}")
    is_shown = ceiling is not None and not math.isnan(shown_ceiling(ceiling.value or 0.0, tau.value or 0.0))
    return ceiling if is_shown else None


def between(row: Row, write: Callable[[float], str] = decimal) -> str:
    """` (95%: 0.30 to 0.68)`, or "" where there is no interval."""
    ends = ends_of(row)
    return "" if ends is None else f" (95%: {write(ends[0])} to {write(ends[1])})"


def in_points(rows: Rows) -> bool:
    """Whether scores are from -1 to 1, so that gaps are written in points."""
    ends = [row.value for name in ("lowest", "highest") for row in rows.all(name) if row.value is not None]
    return all(-1 <= end <= 1 for end in ends)


def gap_words(rows: Rows, gap: Row) -> str:
    """A smallest difference in words, in points where scores are from -1 to 1."""
    return f"{draw.points(gap.value or 0.0, 1)} points" if in_points(rows) else decimal(gap.value, 3)


def drawn_taus(rows: Rows, quantity: str) -> dict[str, Row]:
    """A tau by protocol; without an interval only where none has one: of few models it would mislead."""
    taus = facts.by_protocol(rows, quantity)
    return {protocol: row for protocol, row in taus.items() if ends_of(row)} or taus


def separated(rows: Rows) -> Row | None:
    """The share of pairs of similar models that it tells apart; of all pairs without sizes."""
    keys = (f"separated_{name}.{protocol}" for protocol in PROTOCOLS for name in ("within_2", "all"))
    return next(filter(None, (facts.known(rows, key) for key in keys)), None)


def range_words(rows: Rows, scores: Mapping[str, np.ndarray]) -> str:
    """`**0.00 to 0.26** direct, **0.05 to 0.32** train before test`."""
    parts = []
    for protocol, values in scores.items():
        low, high = (facts.value_of(rows, f"{end}.{protocol}") for end in ("lowest", "highest"))
        ends = values.min() if low is None else low, values.max() if high is None else high
        parts.append(f"**{decimal(ends[0])} to {decimal(ends[1])}** {draw.NAMES[protocol]}")
    return ", ".join(parts)


class MeanCurve(NamedTuple):
    """The mean learning curve: positions in training (points,), and the models' scores at each (models, points)."""

    progress: np.ndarray
    scores: np.ndarray


def mean_curve(frame: pd.DataFrame) -> MeanCurve:
    """The models' scores where all have some, read between their checkpoints; no points where they have no stretch of
    training in common."""
    curves = [rows.sort_values("at") for _, rows in frame.groupby("model")]
    start, end = max(rows["at"].min() for rows in curves), min(rows["at"].max() for rows in curves)
    progress = np.unique(np.concatenate([rows["at"].to_numpy() for rows in curves]))
    progress = progress[(progress >= start) & (progress <= end)]
    return MeanCurve(progress, np.array([np.interp(progress, rows["at"], rows["value"]) for rows in curves]))


# ----------------------------------------------------------------------------------------------------------------------
# The panels of a card.


def _drawn(rows: Rows, label: str, lines: Iterable[tuple[str, Row]], unit: str = "",
           dashed: Sequence[float] = ()) -> Markup:  # fmt: skip
    """Numbers of the card, each on its interval in the line of its name, in the colour of its protocol."""
    series = []
    for name, row in lines:
        is_ceiling = "ceiling" in row.quantity
        mark, words = ("s", "noise ceiling") if is_ceiling else (draw.KINDS[row.protocol or "direct"], "")
        series.append(Series(row.quantity, {"subject": name}, {"protocol": row.protocol}, mark, words))
    return Dots(series, label, dashed=dashed, unit=unit).draw(rows).svg


def _marked(question: str, words: str, picture: Markup, verdict: facts.Verdict, rule: str) -> Panel:
    mark = verdict.marks[rule]
    return Panel(question, words, picture, cast(Outcome, mark.outcome), mark.word)


def _ranks_panel(rows: Rows, verdict: facts.Verdict) -> Panel | None:
    """Agreement over all models, then among models of similar size."""
    overall, lines = drawn_taus(rows, "tau"), list[tuple[str, Row]]()
    if not overall:
        return None
    for quantity, name in (("tau", "all models"), ("tau_within_2", "at most 2× apart")):
        for protocol, row in drawn_taus(rows, quantity).items():
            lines += [(name, row)] if protocol in overall else []
            lines += [(name, ceiling)] if (ceiling := ceiling_of(rows, row)) is not None else []
    if len(overall) == 1:
        ((protocol, row),) = overall.items()
        words = f"**{decimal(row.value)}** {draw.NAMES[protocol]}{between(row)}"
    elif len({row.n for row in overall.values()}) == 1:
        words = f"**{' → '.join(decimal(row.value) for row in overall.values())}** after training"
    else:
        words = ", ".join(f"**{decimal(row.value)}** {draw.NAMES[protocol]} ({row.n} models)"
                          for protocol, row in overall.items())  # fmt: skip
    picture = _drawn(rows, "Agreement (tau) with the other benchmarks", lines, dashed=(1.0,))
    return _marked("Does it rank models like the others?", words, picture, verdict, "ranks")


def _apart_panel(rows: Rows, verdict: facts.Verdict, limits: Cards) -> Panel | None:
    row = separated(rows)
    if row is None:
        return None
    is_similar = row.quantity == "separated_within_2"
    pairs, name = ("similar pairs", "at most 2× apart") if is_similar else ("pairs", "all pairs")
    words = f"**{percent(row.value)}** of {pairs}{between(row, percent)}, {draw.NAMES[row.protocol or 'direct']}"
    question = "Does it tell similar models apart?" if is_similar else "Does it tell models apart?"
    dashed = (0.0, limits.not_separated, limits.separated, 1.0)
    picture = _drawn(rows, "Share of pairs of models told apart", [(name, row)], dashed=dashed)
    return _marked(question, words, picture, verdict, "apart")


def _scores_panel(sources: facts.CardSources, benchmark: str, rows: Rows) -> Panel | None:
    """Scores of all models by size, where sizes are known."""
    frame, dots = sources.scores_of(benchmark), Rows("card")
    if frame["model"].map(sources.sizes).nunique() < 2:
        return None
    for model in frame["model"].unique():
        if size := sources.sizes.get(model):
            dots.put("parameters", 1e9 * size, "parameters", subject=model)
    for score in frame.itertuples():
        dots.put("score", score.value, "score", subject=score.model, protocol=score.protocol)
    words = range_words(rows, {str(name): part["value"].to_numpy() for name, part in frame.groupby("protocol")})
    picture = Points("parameters", "score", draw.NAMES, "Scores by number of parameters", height=110).draw(dots).svg
    return Panel("What do scores look like?", f"{words}; {count(frame['model'].nunique(), 'model')}", picture)


def _gap_panel(rows: Rows) -> Panel | None:
    gaps = [*facts.by_protocol(rows, "smallest_difference").values()]
    if not gaps:
        return None
    lines = [(draw.NAMES[row.protocol or "direct"], row) for row in gaps]
    label, unit = "The smallest gap that is detected with 80% power", POINTS if in_points(rows) else ""
    words = f"**{gap_words(rows, gaps[0])}**: with 80% power"
    return Panel("Smallest gap it can detect", words, _drawn(rows, label, lines, unit))


def _training_panel(sources: facts.CardSources, benchmark: str, rows: Rows, verdict: facts.Verdict) -> Panel | None:
    """The models' mean score along training, in a band from the lowest to the highest."""
    frame = sources.curves[sources.curves["benchmark"] == benchmark]
    progress, scores = mean_curve(frame) if len(frame) else MeanCurve(np.empty(0), np.empty((0, 0)))
    if len(progress) < 2:
        return None
    dots = Rows("card")
    for index, position in enumerate(progress):
        ends = float(scores[:, index].min()), float(scores[:, index].max())
        dots.put("score", float(scores[:, index].mean()), "score", {"models": ends}, at=float(position))
    quality, models = facts.known(rows, "signal_quality"), count(frame["model"].nunique(), "model")
    words = f"**Signal quality {decimal(quality.value)}**{between(quality)}; {models}" if quality else models
    settled, starts = facts.known(rows, "settled_from"), facts.value_of(rows, "signal_from")
    words += "" if starts is None else f"; above chance from {facts.tokens_words(starts)}"
    if settled is not None and (ends_of_order := ends_of(settled)) is not None:
        words += f"; order settles by {facts.tokens_words(ends_of_order[1])}"
    unit, chance = "billion tokens" if sources.in_tokens else "steps", facts.value_of(rows, "chance")
    words += f"; over {progress[-1]:,.3g} {unit}"
    chart = Lines([Series("score", {}, mark="k")], "at", f"Mean score of {models}, in a band from lowest to highest",
                  unit, height=110, dashed=() if chance is None else (chance,), zero=False)  # fmt: skip
    return _marked("Do scores improve steadily in training?", words, chart.draw(dots).svg, verdict, "steady")


# ----------------------------------------------------------------------------------------------------------------------
# The page.


def card_html(card: Card, **site: object) -> str:
    """The card as a page of a site; `site`: variables of `base.html.j2`."""
    numbers = [facts.known(card.rows, name) for name in ("category", "output_type")]
    about = [facts.shown(row) for row in numbers if row is not None]
    models = max((int(row.value or 0) for row in card.rows.all("models")), default=0)
    items = facts.value_of(card.rows, "items")
    about += [count(models, "model")] if models else []
    about += [f"{items:,.0f} items"] if items is not None else []
    words = {"title": f"{card.benchmark}: {card.verdict.sentence}", "about": " · ".join(about)}
    legend = legend_of([panel.svg for panel in card.panels])
    return from_template("card.html.j2", card=card, legend=legend, **words, **site)


_MARKED = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_[]<>|#"} | {"\n": " "})


def card_markdown(card: Card) -> str:
    """The card as Markdown, for a data set's README: the verdict and a small table; then the values that are measured,
    and what is not."""
    gaps = [f"{labels}: {reason}" for labels, reason in card.gaps]
    return from_template("card.md.j2", card=card, gaps=gaps, plain=lambda text: text.translate(_MARKED))


# ----------------------------------------------------------------------------------------------------------------------
# Files.

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def write_cards(cards: Sequence[Card], output: Path, **site: object) -> dict[str, str]:
    """Write `output`/<benchmark>/{index.html,card.json,card.md} and tables/benchmarks.csv, which has a line a benchmark
    with its verdict and every number that some benchmark has; the folders' names by benchmark. `site`: as `card_html`
    takes it."""
    folders = {card.benchmark: folder_name(card.benchmark) for card in cards}
    for card in cards:
        folder = output / folders[card.benchmark]
        write_json(folder / "card.json", card.to_json())
        write_text(folder / "card.md", card_markdown(card))
        write_text(folder / "index.html", card_html(card, **site))
    keys = [key for name in facts.QUANTITIES for key in (name, *(f"{name}.{protocol}" for protocol in PROTOCOLS))]
    keys = [key for key in keys if any(facts.value_of(card.rows, key) is not None for card in cards)]
    lines = [
        [card.benchmark, card.verdict.sentence, *(facts.value_of(card.rows, key) for key in keys)] for card in cards
    ]
    write_csv(output / "tables" / "benchmarks.csv", ["benchmark", "verdict", *keys], lines)
    return folders


def folder_name(benchmark: str) -> str:
    """A name for a folder: the benchmark's own, or letters of it and a digest where it holds others."""
    # of the page there
    is_reserved = benchmark in ("tables", "figures") or benchmark.endswith((".html", ".json", ".parquet"))
    if _PLAIN.fullmatch(benchmark) and not is_reserved:
        return benchmark
    plain = re.sub(r"[^A-Za-z0-9-]+", "_", benchmark).strip("_")[:60]
    return f"{plain or 'benchmark'}-{sha256(benchmark.encode()).hexdigest()[:8]}"
