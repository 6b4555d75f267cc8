"""The table of all benchmarks on a site's first page: one question a column, a row a benchmark, or a group of many."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from lm_validity.pages import svg as draw
from lm_validity.results.put import Row, Rows, ends_of
from lm_validity.site.cards import card as parts
from lm_validity.site.cards import values as facts
from lm_validity.site.cards.card import Card
from lm_validity.site.cards.values import NO, NOT_KNOWN, NOT_MEASURED, PARTLY, YES, CardSources, known
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import beginnings, decimal, percent

LONG = 40  # benchmarks, above which they stand in groups
LEAST_IN_GROUP = 5  # whose names begin alike
LONGEST = 34  # letters of a benchmark's name in the table
HIGH = 28  # of a cell's picture


class TableCell(NamedTuple):
    """`sort`: what the column is sorted by, None last. `words`: beside the picture, where there is no mark. `counts`:
    of a group, how many benchmarks have each answer. `gap_reason`: why it is not known or not measured."""

    sort: float | None
    picture: Markup = Markup("")
    mark: facts.Mark | None = None
    words: str = ""
    counts: tuple[tuple[str, int], ...] = ()
    gap_reason: str | None = None


EMPTY = TableCell(None)


@dataclass(frozen=True)
class Column:
    """`question` is its heading, `hint` a line below it, `short` its tab on a telephone. `cell`: of a card. `axis`,
    `ticks` (value, what is written) and `kind` of its marks: under its heading and in the strips of groups. `rests_on`:
    the numbers that decide its answer, and the thresholds that their intervals are held against.
    """

    key: str
    question: str
    hint: str
    short: str
    cell: Callable[["Column", Card], TableCell]
    width: int = 0
    axis: draw.Axis | None = None
    ticks: Sequence[tuple[float, str]] = ()
    kind: str = "k"
    rests_on: Sequence[str] = ()
    limits: Sequence[float] = ()

    @property
    def scale(self) -> Markup:
        """The numbers under the column's heading, as a picture; empty where the column has no axis."""
        if self.axis is None:
            return Markup()
        marks = []
        for position, words in filter(itemgetter(1), self.ticks):
            x = self.axis(position)
            marks.append(draw.text(x, 11, words, "", "start" if x < 8 else "end" if x > self.width - 12 else "middle"))
        return draw.svg(self.width, 13, "", *marks)

    def drawn(self, label: str, marks: Iterable[Markup]) -> Markup:
        """A cell's picture, on the column's grid."""
        grid = [draw.ticks(self.axis, [value for value, _ in self.ticks], 2, 26)] if self.axis else []
        return draw.svg(self.width, HIGH, label, *grid, *marks)


class BenchmarkRow(NamedTuple):
    """A benchmark, or a group of them: its name, how it is written, its category, where its card lies ("": a group),
    its cells, the group that it belongs to or is, how many are in it, and its answers for the filters."""

    name: str
    written: str
    category: str
    href: str
    cells: list[TableCell]
    group: str = ""
    members: int = 0
    answers: str = ""


@dataclass(frozen=True)
class BenchmarkTable:
    """`sorted_by`: the key of a column. `groups`: how many there are.
    `filters`: (question and answer, what it is called) of those that some benchmarks have."""

    columns: Sequence[Column]
    rows: Sequence[BenchmarkRow]
    sorted_by: str
    groups: int
    filters: Sequence[tuple[str, str]]


_FILTERS = {
    ("ranks", NO): "ranks unlike the others",
    ("apart", YES): "tells similar models apart",
    ("apart", NO): "cannot separate most",
    ("ranks", NOT_KNOWN): "not known",
}


def benchmark_table(sources: CardSources, cards: Sequence[Card], folders: Mapping[str, str]) -> BenchmarkTable:
    """The table, sorted by agreement, else by how steadily scores improve; columns that nobody measured are left out.
    Of more than 40 benchmarks those of a group stand below its row, and scores are left to the cards."""
    is_long = len(cards) > LONG
    made = [(column, [column.cell(column, card) for card in cards]) for column in _columns(sources, cards)[is_long:]]
    made = [(column, cells) for column, cells in made if any(cell != EMPTY for cell in cells)]
    columns, keys = [column for column, _ in made], [column.key for column, _ in made]
    sorted_by = next((key for key in ("ranks", "steady", "apart", "scores") if key in keys), "")
    groups = groups_of(cards) if is_long else {}
    listed = [
        BenchmarkRow(
            card.benchmark,
            draw.shortened(card.benchmark, LONGEST),
            facts.value_text(card.rows, "category") or "",
            f"{parts.FOLDER}/{folders[card.benchmark]}/index.html",
            [cells[index]._replace(gap_reason=_gap_reason(column, card, cells[index])) for column, cells in made],
            groups.get(card.benchmark, ""),
            answers="".join(f"{key}:{card.verdict.marks[key].outcome};" for key in ("ranks", "apart")),
        )
        for index, card in enumerate(cards)
    ]

    def rank(row: BenchmarkRow) -> tuple[bool, float]:
        sort = row.cells[keys.index(sorted_by)].sort if sorted_by else None
        return (sort is None, -(sort or 0.0))

    inside: dict[str, list[BenchmarkRow]] = {}
    for row in sorted(listed, key=rank):
        inside.setdefault(row.group, []).append(row)
    ungrouped = inside.pop("", [])
    above = [
        BenchmarkRow(name, draw.shortened(name, LONGEST), "", "", _group_cells(columns, members), name, len(members))
        for name, members in inside.items()
    ]
    ordered = [
        row_shown for row in sorted([*ungrouped, *above], key=rank) for row_shown in (row, *inside.get(row.group, ()))
    ]
    filters = [(f"{key}:{answer}", words) for (key, answer), words in _FILTERS.items()
               if is_long and any(f"{key}:{answer};" in row.answers for row in listed)]  # fmt: skip
    return BenchmarkTable(columns, ordered, sorted_by, len(above), filters)


def groups_of(cards: Sequence[Card]) -> dict[str, str]:
    """The group of each benchmark that has one: how the names of at least five begin, else a category of several."""
    groups = beginnings([card.benchmark for card in cards], LEAST_IN_GROUP)
    categories = {card.benchmark: facts.shown(row) for card in cards
                  if card.benchmark not in groups and (row := known(card.rows, "category")) is not None}  # fmt: skip
    several = {name for name, number in Counter(categories.values()).items() if 1 < number < len(cards)}
    return groups | {benchmark: name for benchmark, name in categories.items() if name in several}


def _group_cells(columns: Sequence[Column], members: Sequence[BenchmarkRow]) -> list[TableCell]:
    """Of a group: a tick for each benchmark, a dot for their median, and how many have each answer."""
    cells = []
    for index, column in enumerate(columns):
        in_column = [row.cells[index] for row in members]
        values = [cell.sort for cell in in_column if cell.sort is not None]
        answers = Counter(cell.mark.outcome for cell in in_column if cell.mark is not None)
        counts = tuple((answer, answers[answer]) for answer in (YES, PARTLY, NO, NOT_KNOWN) if answers[answer])
        middle = float(np.median(values)) if values else None
        picture, words = Markup(), ""
        if column.axis is not None and middle is not None:
            marks = draw.rug(column.axis, values, 6, 18, column.kind), draw.dot(column.axis(middle), 12, column.kind)
            ends = f"{decimal(min(values))} to {decimal(max(values))}"
            picture = column.drawn(f"{len(values)} benchmarks: median {decimal(middle)}, {ends}", marks)
        elif column.key == "gap" and values:
            written = {cell.sort: cell.words for cell in in_column}
            words = " to ".join(dict.fromkeys((written[min(values)], written[max(values)])))
        cells.append(TableCell(middle, picture, None, words, counts))
    return cells


def _gap_reason(column: Column, card: Card, cell: TableCell) -> str | None:
    """Why an answer is not known or not measured; None where it is known."""
    rows = [row for key in column.rests_on for row in card.rows.all(*key.split(".")[:1])
            if key.partition(".")[2] in ("", row.protocol)]  # fmt: skip
    if cell.sort is None and not cell.mark:
        return next((f"not measured: {row.reason}" for row in rows if row.value is None and row.reason), None)
    if cell.mark is None or (NOT_KNOWN not in cell.mark.word and cell.mark.outcome != NOT_KNOWN):
        return None
    causes = []
    for row in rows:
        limits = [limit for limit in column.limits if row.low is not None and row.low < limit <= (row.high or limit)]
        name = draw.NAMES[row.protocol] if row.protocol else "it"
        if row.value is not None and row.low is None and column.limits:
            causes.append(f"{name} has no interval")
        elif limits:
            causes.append(f"{name}: the interval holds {_plain(limits[0])}, the threshold")
    return "; ".join(causes) or "these data do not decide it"


# ----------------------------------------------------------------------------------------------------------------------
# The columns and their cells.


def _columns(sources: CardSources, cards: Sequence[Card]) -> list[Column]:
    taus = [parts.drawn_taus(card.rows, "tau") for card in cards]
    trained = any("train_before_test" in taus_of_card for taus_of_card in taus)
    low = _lowest(row for taus_of_card in taus for row in taus_of_card.values())
    low_similar = _lowest(row for card in cards for row in parts.drawn_taus(card.rows, "tau_within_2").values())
    similar = 150 if sources.curves.empty else 110  # beside what curves say there is less room
    wide = (200 if sources.curves.empty else 165) if trained else similar
    sizes = any(card.rows.all("separated_within_2") and parts.separated(card.rows) for card in cards)
    pairs = "pairs at most 2× apart in size" if sizes else "all pairs of models"
    units = "points" if all(parts.in_points(card.rows) for card in cards) else "points, or in units of the score"
    many, limits = len(sources.last_scores["model"].unique()) > draw.MOST_TICKS, sources.settings
    shares = [limits.separated, limits.not_separated]
    ticked = f"a tick for each model, shades for over {draw.MOST_TICKS}" if many else "one tick for each model"
    kind = "t" if trained and not any("direct" in taus_of_card for taus_of_card in taus) else "d"

    def tau_ticks(lowest: float) -> list[tuple[float, str]]:
        return [(half / 2, _plain(half / 2) if half > -2 else "") for half in range(int(2 * lowest), 3)]

    columns = [
        Column("scores", "What do scores look like?", ticked, "Scores",
               lambda column, card: scores_cell(column, sources, card), 118, draw.Axis(0, 1, 1, 117),
               [(0, "0"), (0.5, "0.5"), (1, "1")]),
        Column("ranks", "Does it rank models like the others?", "agreement (tau), all models", "Ranks like others?",
               lambda column, card: _tau_cell(column, card, "tau", "ranks"), wide, draw.Axis(low, 1, 5, wide - 5),
               tau_ticks(low), kind, [f"tau.{name}" for name in PROTOCOLS], [limits.agrees]),
        Column("similar", "And models of similar size?", "agreement, at most 2× apart", "…of similar size?",
               lambda column, card: _tau_cell(column, card, "tau_within_2", "ranks similar"), similar,
               draw.Axis(low_similar, 1, 5, similar - 5), tau_ticks(low_similar), kind, ["tau_within_2.direct"],
               [limits.agrees]),
        Column("apart", "Does it tell similar models apart?" if sizes else "Does it tell models apart?", pairs,
               "Tells apart?", lambda column, card: _apart_cell(column, card), 112, draw.Axis(0, 1, 5, 107),
               [(0, "0%"), *((share, percent(share)) for share in sorted(shares)), (1, "")], "k",
               ["separated_within_2", "separated_all"], shares),
        Column("gap", "Smallest gap it can detect", f"{units}, with 80% power", "Smallest gap", _gap_cell,
               rests_on=["smallest_difference"]),
        Column("steady", "Do scores improve steadily in training?", "mean score of the models", "Improves steadily?",
               lambda column, card: steady_cell(column, sources, card), 76, rests_on=["signal_quality"]),
        Column("ready", "Is it ready early?", "above chance, order settled", "Ready early?", _ready_cell,
               rests_on=["settled_from", "signal_from"]),
        Column("bias", "Does having seen test text change it?", "points of its score", "Seen test text",
               _bias_cell, 112, rests_on=["bias"]),
    ]  # fmt: skip
    return [column for column in columns if not (column.key == "similar" and trained)]


def _lowest(taus: Iterable[Row]) -> float:
    """Where an axis of tau begins: 0, or lower by halves where a value or an interval is."""
    ends = [end for row in taus for end in (row.value or 0.0, *(ends_of(row) or ()))]
    return floor(2 * min(ends, default=0.0)) / 2 if min(ends, default=0.0) < 0 else 0.0


def _plain(value: float) -> str:
    """A number of an axis, without zeros at its end."""
    return f"{value:g}".replace("-", "−")


def scores_cell(column: Column, sources: CardSources, card: Card) -> TableCell:
    """A tick for each model, on an axis from 0 to 1; scores of metrics that go beyond 1 or below -1 in words."""
    frame = sources.scores_of(card.benchmark)
    if frame.empty:
        return EMPTY
    scores = {protocol: frame.loc[frame["protocol"] == protocol, "value"].to_numpy() for protocol in PROTOCOLS}
    scores = {protocol: values for protocol, values in scores.items() if len(values)}
    words, highest = parts.range_words(card.rows, scores).replace("**", ""), float(frame["value"].max())
    is_corpus = facts.value_text(card.rows, "output_type") == "loglikelihood_rolling"
    if is_corpus or not frame["value"].between(-1, 1).all() or column.axis is None:
        return TableCell(highest, words=words.partition(",")[0].rpartition(" ")[0])
    marks, high = [], 12 if len(scores) == 1 else 9
    for index, (protocol, values) in enumerate(scores.items()):
        top = 8 if len(scores) == 1 else 4 + 11 * index
        marks.append(draw.rug(column.axis, values.tolist(), top, top + high, draw.KINDS[protocol]))
    return TableCell(highest, column.drawn(f"Scores of {frame['model'].nunique()} models: {words}", marks))


def _dots_cell(column: Column, label: str, shown_rows: Mapping[str, Row], mark: facts.Mark, rows: Rows | None = None,
               write: Callable[[float], str] = decimal) -> TableCell:  # fmt: skip
    """A dot on its interval for each of several kinds of marks; `rows` have the noise ceilings of these numbers."""
    if not shown_rows or column.axis is None:
        return EMPTY
    marks, words = [], []
    for index, (kind, row) in enumerate(shown_rows.items()):
        y, value = (14 if len(shown_rows) == 1 else 9 + 10 * index), row.value or 0.0
        ceiling = None if rows is None else parts.ceiling_of(rows, row)
        if ceiling is not None:
            x = column.axis(ceiling.value or 0.0)
            marks.append(draw.line(x, y - 4.5, x, y + 4.5, "s cl"))
        marks.append(draw.estimate(column.axis, value, ends_of(row), y, kind))
        name = f"{draw.NAMES[row.protocol]} " if row.protocol else ""
        limit = f", noise ceiling {decimal(ceiling.value)}" if ceiling is not None else ""
        words.append(f"{name}{write(value)}{parts.between(row, write)}{limit}")
    first = next(iter(shown_rows.values()))
    return TableCell(first.value, column.drawn(f"{label}: {'; '.join(words)}", marks), mark)


def _tau_cell(column: Column, card: Card, quantity: str, question: str) -> TableCell:
    taus = {draw.KINDS[protocol]: row for protocol, row in parts.drawn_taus(card.rows, quantity).items()}
    return _dots_cell(column, "Agreement with the other benchmarks", taus, card.verdict.marks[question], card.rows)


def _apart_cell(column: Column, card: Card) -> TableCell:
    row = parts.separated(card.rows)
    is_similar = row is not None and row.quantity == "separated_within_2"
    label = f"Pairs of models told apart, {'at most 2× apart in size' if is_similar else 'of all pairs'}"
    return _dots_cell(column, label, {"k": row} if row else {}, card.verdict.marks["apart"], write=percent)


def _gap_cell(column: Column, card: Card) -> TableCell:
    gap = next(iter(facts.by_protocol(card.rows, "smallest_difference").values()), None)
    return TableCell(gap.value, words=parts.gap_words(card.rows, gap).removesuffix(" points")) if gap else EMPTY


def steady_cell(column: Column, sources: CardSources, card: Card) -> TableCell:
    """The mean score of the models in training; dashed where it is not shown to improve steadily. The answer alone
    where their training has nothing in common."""
    frame, mark = sources.curves[sources.curves["benchmark"] == card.benchmark], card.verdict.marks["steady"]
    quality = known(card.rows, "signal_quality")
    if frame.empty:
        return EMPTY
    sort, (progress, scores) = quality.value if quality else None, parts.mean_curve(frame)
    if len(progress) < 2:
        return TableCell(sort, words="no common points") if mark.outcome == NOT_MEASURED else TableCell(sort, mark=mark)
    mean, chance = scores.mean(axis=0), facts.value_of(card.rows, "chance")
    ends = [*mean, *([] if chance is None else [chance])]
    x_axis, up = draw.Axis(progress[0], progress[-1], 2, column.width - 2), draw.Axis(min(ends), max(ends), 26, 3)
    level = 26.0 if chance is None else up(chance)
    base = draw.line(2, level, column.width - 2, level, "ax" if chance is None else "chance")
    path = draw.curve([*map(x_axis, progress)], [*map(up, mean)], "ln m" if mark.outcome == YES else "ln m no")
    words = (
        f"signal quality {decimal(quality.value)}{parts.between(quality)}"
        if quality
        else "too few checkpoints for more"
    )
    label = f"Mean score of {len(scores)} models in training, from {decimal(mean[0])} to {decimal(mean[-1])}; {words}"
    return TableCell(sort, column.drawn(label, (base, path)), mark)


def _ready_cell(column: Column, card: Card) -> TableCell:
    mark = card.verdict.marks["ready"]
    settled = [value for key in column.rests_on if (value := facts.value_of(card.rows, key)) is not None]
    return EMPTY if mark.outcome == NOT_MEASURED else TableCell(settled[0] if settled else None, mark=mark)


def _bias_cell(column: Column, card: Card) -> TableCell:
    """What seen test text adds to the score, on its interval; the axis is at least from -5 to 5 points."""
    row = known(card.rows, "bias")
    if row is None:
        return EMPTY
    widest = max(0.05, *(abs(end) for end in (row.value or 0.0, *(ends_of(row) or ()))))
    axis, write = draw.Axis(-widest, widest, 5, column.width - 5), partial(draw.points, digits=1, signed=True)
    marks = [draw.ticks(axis, (-widest, 0, widest), 2, 26), draw.estimate(axis, row.value, ends_of(row), 14, "k")]
    words = f"{write(row.value or 0.0)}{parts.between(row, write)}"
    label = f"Test text seen changes the score by {words} points"
    return TableCell(row.value, column.drawn(label, marks), card.verdict.marks["bias"])
