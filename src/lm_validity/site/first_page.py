"""A site: its first page (three answers, the table of all benchmarks, folds), the cards, and each report's own page."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.errors import InputError
from lm_validity.files import read_page, write_text
from lm_validity.pages import svg as draw
from lm_validity.pages.page import FORMAT, Link, PageDocument, from_template, legend_of, write_html
from lm_validity.results.put import Row, Rows, ends_of
from lm_validity.site.cards import card as parts
from lm_validity.site.cards import values as facts
from lm_validity.site.cards.card import Card
from lm_validity.site.cards.values import NO, NOT_KNOWN, NOT_MEASURED, PARTLY, YES, CardSources, known
from lm_validity.site.pages import SNAPSHOT, Earlier, snapshot_of, write_since
from lm_validity.tables.schema import PREPARED, PROTOCOLS, REPLAY, TRAINED
from lm_validity.tables.settings import Difference
from lm_validity.words import beginnings, count, decimal, percent, scale_of

ORDER = (
    "since", "beside", "compare", "models", "agreement", "factors", "readiness", "signal", "items", "bias",
    "computation", "data",
)  # fmt: skip
ANSWERS = 3  # on the first page
# reports whose first answers come before any second answer; of the others in the order of ORDER
FIRST = ("since", "beside", "compare", "readiness", "agreement", "models", "signal", "bias")
LONG = 40  # benchmarks, above which they stand in groups
LEAST_IN_GROUP = 5  # whose names begin alike
LONGEST = 34  # letters of a benchmark's name in the table
HIGH = 28  # of a cell's picture


def build_site(
    report_folders: Sequence[str | Path], output: str | Path, *, cards: CardSources | None = None,
    missing: Sequence[str] = (), name: str = "", about: str = "", source: str = "", earlier: Earlier | None = None,
) -> Path:  # fmt: skip
    """Write the first page (`output`/index.html, which is returned), the cards, and each report's own page.

    Figures, tables and results.csv are copied to `output`/<report>, unless they are there. `missing` lists what an
    unfinished run lacks (cells, reports): named on every page. `name`: of the run; `about`: sentences under the title.
    `source`: what it is made from, for the feet of its pages. `earlier`: a report, what changed since which is a page.
    Raises InputError where a folder holds no report, or one of another version.
    """
    output, reports = Path(output), {folder.name: folder for folder in map(Path, report_folders)}
    documents = {}
    for folder in reports.values():
        document = _page_of(folder)
        documents[document["name"]], copy = document, output / document["name"]
        for kind in ("figures", "tables"):
            if (folder / kind).is_dir() and folder != copy:
                shutil.copytree(folder / kind, copy / kind, dirs_exist_ok=True)
        if (numbers := folder / "results.csv").is_file() and folder != copy:
            shutil.copy(numbers, copy)
    if not documents:
        raise InputError("no report to build a site from.", "name at least one report folder.")
    made = [parts.make_card(cards, benchmark) for benchmark in cards.sheet["benchmark"]] if cards else []
    snapshot = snapshot_of(reports, made)
    write_text(output / SNAPSHOT, json.dumps(snapshot, ensure_ascii=False, separators=(",", ":")) + "\n")
    if earlier is not None:
        write_since(earlier, snapshot, output / "since")
        documents["since"] = _page_of(output / "since")
    pages, folders = [documents[study] for study in sorted(documents, key=ORDER.index)], dict[str, str]()
    links = [Link("Benchmarks" if made else "Answers", "index.html")]
    links += [Link(page["title"], f"{page['name']}/index.html") for page in pages]
    feet = {"missing": missing, "source": source}

    def seen_from(up: str) -> list[Link]:
        return [link._replace(href=f"{up}{link.href}") for link in links]

    for page in pages:
        write_html(page, output / page["name"], navigation=seen_from("../"), missing=missing, source=source)
    if made:
        folders = parts.write_cards(made, output / parts.FOLDER, navigation=seen_from("../../"), **feet)
    lead = [f"The run {name}."] if name else []
    lead += [_population(cards, made)] if cards and made else []
    variables = first_page(pages, cards, made, folders) | {"about": " ".join([*lead, about]).strip()}
    write_text(output / "index.html", from_template("index.html.j2", navigation=links, **feet, **variables))
    write_text(output / "findings.md", _findings_text(pages))
    return output / "index.html"


def _findings_text(documents: Sequence[PageDocument]) -> str:
    """All findings by study, as Markdown."""
    lines = ["# Findings"]
    for page in filter(itemgetter("findings"), documents):
        lines += ["", f"## {page['title']}", ""]
        lines += [f"- {finding['sentence']} {finding['basis']}".rstrip() for finding in page["findings"]]
    return "\n".join(lines) + "\n"


def _page_of(folder: Path) -> PageDocument:
    path = folder / "page.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "run `lm-validity report ...` into that folder first.")
    document: PageDocument = read_page(path)
    if document.get("format") != FORMAT:
        raise InputError(f"{path}: a page of another version.", "write the report again with this one.")
    return document


def first_page(
    documents: Sequence[PageDocument], sources: CardSources | None, cards: Sequence[Card], folders: Mapping[str, str]
) -> dict[str, object]:
    """The variables of the template `index.html.j2`; `folders`: of each card, by benchmark."""
    table = benchmark_table(sources, cards, folders) if sources and cards else None
    answers = chosen_answers(documents)
    pictures = [cell.picture for row in table.rows for cell in row.cells] if table else []
    noun = "this benchmark" if len(cards) == 1 else f"these {len(cards)} benchmarks" if cards else "these benchmarks"
    reports = sources.results if sources else {}
    lacking = [words for report, words in _UNMEASURED.items() if report not in reports]
    if "agreement" in reports and not any(known(card.rows, f"models.{TRAINED}") for card in cards):
        lacking = [_DIRECT_ALONE, *lacking]
    limits = dict[str, list[str]]()  # the notes on the data by study, each note once
    for page in documents:
        earlier_notes = {note for notes in limits.values() for note in notes}
        limits[page["title"]] = [note for note in page["notes"] if note not in earlier_notes]
    return {
        "title": f"How far can {noun} be trusted?",
        "description": " ".join(f"{answer['sentence'].rstrip('.')}." for answer in answers),
        "answers": answers,
        "not_measured": next(iter(lacking), None) if sources and cards else None,
        "table": table,
        "legend": legend_of(pictures),
        "cards": sources.settings if sources else None,
        "limits": [(title, notes) for title, notes in limits.items() if notes],
        "documents": documents,
        "percent": percent,
    }


def chosen_answers(documents: Sequence[PageDocument]) -> list[dict[str, str]]:
    """At most three answers: the first of each study, then their second ones; shown in the order of the studies."""
    answers = []  # how urgent, and the answer
    for document in documents:
        name = document["name"]
        place = FIRST.index(name) if name in FIRST else len(FIRST)
        for index, answer in enumerate(document["answers"]):
            urgency = (index, place) if name in FIRST else (index + 1, place)
            answers.append((urgency, {**answer, "href": f"{name}/index.html"}))
    most_urgent = sorted(answers, key=itemgetter(0))[:ANSWERS]
    return [entry[1] for entry in answers if any(entry is chosen for chosen in most_urgent)]


def _population(sources: CardSources, cards: Sequence[Card]) -> str:
    """`61 models of 6 families, 0.1 to 14.8 billion parameters. Direct and train before test.`"""
    models = sources.last_scores["model"].unique()
    words = count(len(models), "model")
    families = sources.counted.models.set_index("model").loc[:, "family"].reindex(models)
    words += f" of {count(families.nunique(), 'family', 'families')}" if families.notna().all() else ""
    sizes = [sources.sizes[model] for model in models if sources.sizes.get(model)]
    if sizes:
        factor, unit = scale_of(max(sizes))
        words += (
            f", up to {max(sizes) * factor:.3g} {unit} parameters{'' if len(sizes) == len(models) else ' where known'}"
        )
    protocols_used = [
        draw.NAMES[protocol] for protocol in PROTOCOLS if any(known(card.rows, f"models.{protocol}") for card in cards)
    ]
    words += f". {' and '.join(protocols_used).capitalize()}{' scores only' if len(protocols_used) == 1 else ''}."
    compared = sum(any(known(card.rows, f"tau.{protocol}") for protocol in PROTOCOLS) for card in cards)
    if 0 < compared < len(cards):
        words += f" {compared} of the {len(cards)} benchmarks are compared with each other."
    if (sampled := _sampled(sources.last_rows)) is not None:
        words += f" {sampled}"
    if sources.differing:
        words += f" Settings differ: {'; '.join(_settings_differing(sources.differing))}."
    agreement = sources.results.get("agreement")
    if agreement is not None and agreement.all("selected_on_test_equal"):
        words += " Each score after training is the better one of both protocols on the test split."
    trained = sources.counted.rows[sources.counted.rows["protocol"] == TRAINED]
    is_told = trained["prepared_on"].notna() | trained["benchmark"].map(sources.sheet["prepared_on"]).notna()
    is_prepared = trained["source"].isin(PREPARED) | trained["source"].str.startswith(REPLAY)
    if not (is_told | is_prepared).all():
        words += (
            " We assume that models were trained on each benchmark's own training set first; the files do not say so."
        )
    return words


def _sampled(scores: pd.DataFrame) -> str | None:
    """Which of the scores are means of several sampled runs, as a sentence; None where each is of one run."""
    runs = scores["runs"].dropna().astype(int)
    runs = runs[runs > 1]
    if runs.empty:
        return None
    low, high = runs.min(), runs.max()
    of_runs = "Each score is the mean" if len(runs) == len(scores) else f"{len(runs)} of {len(scores)} scores are means"
    return f"{of_runs} of {low if low == high else f'{low} to {high}'} sampled runs."


def _settings_differing(differing: Sequence[Difference]) -> list[str]:
    """Each setting once: with its values where they are one on all benchmarks concerned, else by its name."""
    by_name: dict[str, set[str]] = {}
    for difference in differing:
        by_name.setdefault(difference.words.partition(":")[0], set()).add(difference.words)
    return [name if len(words) > 1 else min(words) for name, words in by_name.items()]


# what is not measured, by the report that would do so, and what direct scores alone cannot say
_UNMEASURED = {
    "agreement": "Do the benchmarks agree on which model is better? That needs scores of three models on two "
    "benchmarks.",
    "signal": "Do scores improve steadily in training? That needs scores of three checkpoints of a model.",
    "bias": "Does having seen test text change scores? That needs models trained with and without it.",
}
_DIRECT_ALONE = "Is the first model better, or only better prepared for these tests? Direct scores cannot say."


# ----------------------------------------------------------------------------------------------------------------------
# The table of all benchmarks: one question a column, a row a benchmark, or a group of many.


class TableCell(NamedTuple):
    """`sort`: what the column is sorted by, None last. `words`: beside the picture, where there is no mark. `counts`:
    of a group, how many benchmarks have each answer. `gap_reason`: why it is not known or not measured."""

    sort: float | None
    picture: Markup = Markup("")
    mark: facts.Statement | None = None
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
    cell: Callable[["Column", CardSources, Card], TableCell]
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
    made = [(column, [column.cell(column, sources, card) for card in cards]) for column in _columns(sources, cards)]
    made = [(column, cells) for column, cells in made[is_long:] if any(cell != EMPTY for cell in cells)]
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


_TAUS = ("tau", "tau_within_2")


def _columns(sources: CardSources, cards: Sequence[Card]) -> list[Column]:
    taus = {name: [row for card in cards for row in parts.drawn_taus(card.rows, name).values()] for name in _TAUS}
    protocols = {row.protocol for row in taus["tau"]}
    trained, kind = "train_before_test" in protocols, "t" if protocols == {"train_before_test"} else "d"
    # an axis of tau begins at 0, or lower by halves
    low, low_similar = (floor(2 * min([0.0, *_extent(numbers)])) / 2 for numbers in taus.values())
    effects = _extent(row for card in cards for row in card.rows.all("bias"))
    widest = ceil(max([5.0, *(abs(100 * end) for end in effects)])) / 100  # whole points
    similar = 150 if sources.curves.empty else 110  # beside what curves say there is less room
    wide = (200 if sources.curves.empty else 165) if trained else similar
    sizes = any(card.rows.all("separated_within_2") and parts.separated(card.rows) for card in cards)
    pairs = "pairs at most 2× apart in size" if sizes else "all pairs of models"
    units = "points" if all(parts.in_points(card.rows) for card in cards) else "points, or in units of the score"
    many, limits = len(sources.last_scores["model"].unique()) > draw.MOST_TICKS, sources.settings
    shares = [limits.separated, limits.not_separated]
    ticked = f"a tick for each model, shades for over {draw.MOST_TICKS}" if many else "one tick for each model"

    def tau_ticks(lowest: float) -> list[tuple[float, str]]:
        return [(half / 2, _plain(half / 2) if half > -2 else "") for half in range(int(2 * lowest), 3)]

    columns = [
        Column("scores", "What do scores look like?", ticked, "Scores", _scores_cell, 118,
               draw.Axis(0, 1, 1, 117), [(0, "0"), (0.5, "0.5"), (1, "1")]),
        Column("ranks", "Does it rank models like the others?", "agreement (tau), all models", "Ranks like others?",
               _tau_cell, wide, draw.Axis(low, 1, 5, wide - 5), tau_ticks(low), kind,
               [f"tau.{name}" for name in PROTOCOLS], [limits.agrees]),
        Column("similar", "And models of similar size?", "agreement, at most 2× apart", "…of similar size?",
               _tau_cell, similar, draw.Axis(low_similar, 1, 5, similar - 5), tau_ticks(low_similar), kind,
               ["tau_within_2.direct"], [limits.agrees]),
        Column("apart", "Does it tell similar models apart?" if sizes else "Does it tell models apart?", pairs,
               "Tells apart?", _apart_cell, 112, draw.Axis(0, 1, 5, 107),
               [(0, "0%"), *((share, percent(share)) for share in sorted(shares)), (1, "")], "k",
               ["separated_within_2", "separated_all"], shares),
        Column("gap", "Smallest gap it can detect", f"{units}, with 80% power", "Smallest gap", _gap_cell,
               rests_on=["smallest_difference"]),
        Column("steady", "Do scores improve steadily in training?", "mean score of the models", "Improves steadily?",
               _steady_cell, 76, rests_on=["signal_quality"]),
        Column("ready", "Is it ready early?", "above chance, order settled", "Ready early?", _ready_cell,
               rests_on=["settled_from", "signal_from"]),
        Column("bias", "Does having seen test text change it?", "points of its score", "Seen test text",
               _bias_cell, 96, draw.Axis(-widest, widest, 5, 91),
               [*zip((-widest, 0.0, widest), draw.written_points((-widest, 0.0, widest)), strict=True)],
               rests_on=["bias"]),
    ]  # fmt: skip
    return [column for column in columns if not (column.key == "similar" and trained)]


def _extent(numbers: Iterable[Row]) -> list[float]:
    """The values and the ends of the intervals of numbers."""
    return [end or 0.0 for row in numbers for end in (row.value, *(ends_of(row) or ()))]


def _plain(value: float) -> str:
    """A number of an axis, without zeros at its end."""
    return f"{value:g}".replace("-", "−")


def _scores_cell(column: Column, sources: CardSources, card: Card) -> TableCell:
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


def _dots_cell(column: Column, label: str, numbers: Sequence[Row], mark: facts.Statement, rows: Rows,
               write: Callable[[float], str] = decimal) -> TableCell:  # fmt: skip
    """A dot on its interval for each number, in the colour of its protocol or of the column; `rows` have the noise
    ceilings of these numbers."""
    if not numbers or column.axis is None:
        return EMPTY
    marks, words = [], []
    for index, row in enumerate(numbers):
        y, value = (14 if len(numbers) == 1 else 9 + 10 * index), row.value or 0.0
        ceiling = parts.ceiling_of(rows, row) if row.quantity.startswith("tau") else None
        if ceiling is not None:
            x = column.axis(ceiling.value or 0.0)
            marks.append(draw.line(x, y - 4.5, x, y + 4.5, "s cl"))
        kind = column.kind if column.kind == "k" else draw.KINDS[str(row.protocol)]
        marks.append(draw.estimate(column.axis, value, ends_of(row), y, kind))
        name = f"{draw.NAMES[row.protocol]} " if row.protocol else ""
        limit = f", noise ceiling {decimal(ceiling.value)}" if ceiling is not None else ""
        words.append(f"{name}{write(value)}{parts.between(row, write)}{limit}")
    return TableCell(numbers[0].value, column.drawn(f"{label}: {'; '.join(words)}", marks), mark)


def _tau_cell(column: Column, sources: CardSources, card: Card) -> TableCell:
    quantity, question = ("tau", "ranks") if column.key == "ranks" else ("tau_within_2", "ranks similar")
    taus = [*parts.drawn_taus(card.rows, quantity).values()]
    return _dots_cell(column, "Agreement with the other benchmarks", taus, card.verdict.marks[question], card.rows)


def _apart_cell(column: Column, sources: CardSources, card: Card) -> TableCell:
    row = parts.separated(card.rows)
    is_similar = row is not None and row.quantity == "separated_within_2"
    label = f"Pairs of models told apart, {'at most 2× apart in size' if is_similar else 'of all pairs'}"
    return _dots_cell(column, label, [row] if row else [], card.verdict.marks["apart"], card.rows, percent)


def _gap_cell(column: Column, sources: CardSources, card: Card) -> TableCell:
    gap = next(iter(facts.by_protocol(card.rows, "smallest_difference").values()), None)
    return TableCell(gap.value, words=parts.gap_words(card.rows, gap).removesuffix(" points")) if gap else EMPTY


def _steady_cell(column: Column, sources: CardSources, card: Card) -> TableCell:
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


def _ready_cell(column: Column, sources: CardSources, card: Card) -> TableCell:
    mark = card.verdict.marks["ready"]
    settled = [value for key in column.rests_on if (value := facts.value_of(card.rows, key)) is not None]
    return EMPTY if mark.outcome == NOT_MEASURED else TableCell(settled[0] if settled else None, mark=mark)


def _bias_cell(column: Column, sources: CardSources, card: Card) -> TableCell:
    row, write = known(card.rows, "bias"), partial(draw.points, digits=1, signed=True)
    label, mark = "What seen test text adds to the score, in points", card.verdict.marks["bias"]
    return _dots_cell(column, label, [row] if row else [], mark, card.rows, write)
