"""A site: its first page (three answers, the table of all benchmarks, folds), the cards, and each report's own page."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.config.load import Run
from lm_validity.config.sections import Cards
from lm_validity.errors import InputError
from lm_validity.files import write_text
from lm_validity.outputs import read_page
from lm_validity.pages.page import (
    FORMAT,
    AnswerDocument,
    Link,
    PageDocument,
    asset,
    from_template,
    legend_of,
    write_html,
)
from lm_validity.pages.svg import MOST_TICKS, NAMES, Axis, dot, rug, shortened, svg, text, ticks
from lm_validity.site.cards import panels
from lm_validity.site.cards.values import CardSources, shown
from lm_validity.site.cards.verdict import NO, NOT_KNOWN, NOT_MEASURED, PARTLY, YES, Mark
from lm_validity.site.cards.write import FOLDER, Card, make_card, write_cards
from lm_validity.site.one_file import into_one_file
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.tables.settings import Difference
from lm_validity.words import beginnings, count, decimal, percent, scale_of

ORDER = (
    "beside", "ranking", "compare", "agreement", "factors", "readiness", "signal", "items", "bias", "computation",
    "data",
)  # fmt: skip
SYNTHETIC = "The models of this run are synthetic. They live in a miniature world, made for trying out the workflow."
ANSWERS = 3  # on the first page
# reports whose first answers come before any second answer; of the others in the order of ORDER
FIRST = ("beside", "ranking", "compare", "readiness", "agreement", "signal", "bias")
LONG = 40  # benchmarks, above which they stand in groups
LEAST_IN_GROUP = 5  # whose names begin alike
LONGEST = 34  # letters of a benchmark's name in the table


def build_site(
    report_folders: Sequence[str | Path],
    output: str | Path,
    *,
    cards: CardSources | None = None,
    missing: Sequence[str] = (),
    name: str = "",
    about: str = "",
    single_file: bool = False,
) -> Path:
    """Write the first page (`output`/index.html, which is returned), the cards, and each report's own page.

    Figures and tables are copied to `output`/<report>/{figures,tables}, unless they are there. `missing` lists what an
    unfinished run lacks (cells, reports): named on every page. `name`: of the run; `about`: sentences under the title.
    `single_file`: the first page holds all others too.
    Raises InputError where a folder holds no report, or one of another version.
    """
    output = Path(output)
    documents = {}
    for folder in map(Path, report_folders):
        document = _page_of(folder)
        documents[document["name"]] = document
        for kind in ("figures", "tables"):
            if (folder / kind).is_dir() and folder != output / document["name"]:
                shutil.copytree(folder / kind, output / document["name"] / kind, dirs_exist_ok=True)
    if not documents:
        raise InputError("no report to build a site from.", "name at least one report folder.")
    names = sorted(
        documents, key=lambda study_name: (ORDER.index(study_name) if study_name in ORDER else len(ORDER), study_name)
    )
    links = [Link(documents[study_name]["title"], f"{study_name}/index.html") for study_name in names]
    made = [make_card(cards, study_name) for study_name in cards.sheet["benchmark"]] if cards else []
    first = Link("Benchmarks" if made else "Answers", "index.html")

    def seen_from(up: str) -> list[Link]:
        return [link._replace(href=f"{up}{link.href}") for link in (first, *links)]

    for study_name in names:
        write_html(documents[study_name], output / study_name, navigation=seen_from("../"), missing=missing)
    folders = write_cards(made, output / FOLDER, seen_from("../../"), missing) if made else {}
    page = first_page([documents[study_name] for study_name in names], cards, made, folders, name, about)
    write_text(
        output / "index.html", from_template("index.html.j2", navigation=seen_from(""), missing=list(missing), **page)
    )
    if single_file:
        into_one_file(output)
    return output / "index.html"


def _page_of(folder: Path) -> PageDocument:
    path = folder / "page.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "run `lm-validity report ...` into that folder first.")
    document: PageDocument = read_page(path)
    if document.get("format") != FORMAT:
        raise InputError(f"{path}: a page of another version.", "write the report again with this one.")
    return document


def about_run(run: Run) -> str:
    """What the site of a run says under its title: that its models are synthetic, where all are the miniature's."""
    paths = [*(row.path for row in run.models.values()), *(row.path for row in run.language_models.values())]
    return SYNTHETIC if paths and all(map(run.is_miniature, paths)) else ""


def first_page(
    documents: Sequence[PageDocument],
    sources: CardSources | None,
    cards: Sequence[Card],
    folders: Mapping[str, str],
    name: str,
    about: str,
) -> dict[str, Any]:
    """The variables of the template `index.html.j2`; `folders`: of each card, by benchmark."""
    table = benchmark_table(sources, cards, folders) if sources and cards else None
    answers = chosen_answers(documents)
    pictures = [cell.picture for row in table.rows for cell in row.cells] if table else []
    columns = [column.key for column in table.columns] if table else []
    how_many = f"these {len(cards)}" if len(cards) > 1 else "this" if cards else "these"
    benchmarks = "benchmark" if len(cards) == 1 else "benchmarks"
    lead = [f"The run {name}."] if name else []
    lead += [_population(sources, cards)] if sources and cards else []
    return {
        "title": f"How far can {how_many} {benchmarks} be trusted?",
        "about": " ".join([*lead, about]).strip(),
        "description": " ".join(f"{answer['sentence'].rstrip('.')}." for answer in answers),
        "style": asset("page.css") + _tabs_style(columns),
        "answers": answers,
        "not_measured": _invitation(sources, cards),
        "table": table,
        "legend": legend_of(pictures),
        "rules": _rules(sources.settings, columns) if sources else [],
        "limits": _limits(documents),
        "documents": documents,
        "outcome": panels.outcome,
    }


def _limits(documents: Sequence[PageDocument]) -> list[tuple[str, list[str]]]:
    """The notes on the data by study, each note once."""
    said, limits = set[str](), []
    for document in documents:
        if notes := [note for note in document["notes"] if note not in said]:
            limits.append((document["title"], notes))
            said.update(notes)
    return limits


def chosen_answers(documents: Sequence[PageDocument]) -> list[dict[str, Any]]:
    """At most three answers: the first of each study, then their second ones; shown in the order of the studies."""
    all_answers = [
        (index, document, answer) for document in documents for index, answer in enumerate(document["answers"])
    ]

    def urgency(entry: tuple[int, PageDocument, AnswerDocument]) -> tuple[int, int]:
        index, document, _ = entry
        return (index, FIRST.index(document["name"])) if document["name"] in FIRST else (index + 1, len(FIRST))

    answers_kept = sorted(all_answers, key=urgency)[:ANSWERS]
    return [
        {**answer, "href": f"{document['name']}/index.html"}
        for index, document, answer in all_answers
        if any(answer is chosen for _, _, chosen in answers_kept)
    ]


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
        NAMES[protocol] for protocol in PROTOCOLS if any(card.value(f"models.{protocol}") for card in cards)
    ]
    words += f". {' and '.join(protocols_used).capitalize()}{' scores only' if len(protocols_used) == 1 else ''}."
    compared = sum(any(card.value(f"tau.{protocol}") for protocol in PROTOCOLS) for card in cards)
    if 0 < compared < len(cards):
        words += f" {compared} of the {len(cards)} benchmarks are compared with each other."
    if (sampled := _sampled(sources.last_rows)) is not None:
        words += f" {sampled}"
    if sources.differing:
        words += f" Settings differ: {'; '.join(_settings_differing(sources.differing))}."
    if sources.preparation_is_assumed:
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


# ----------------------------------------------------------------------------------------------------------------------
# The table of all benchmarks: one question a column.


@dataclass(frozen=True)
class Column:
    """`question` is its heading, `hint` a line below it, `short` its tab on a telephone. `cell`: of a card. `scale`,
    `ticks` (value, what is written) and `kind` of its marks: of the axis under its heading and of the strips of groups.
    """

    key: str
    question: str
    hint: str
    short: str
    cell: Callable[[Card], panels.TableCell]
    width: int = 0
    scale: Axis | None = None
    ticks: Sequence[tuple[float, str]] = ()
    kind: str = "k"

    @property
    def axis(self) -> Markup:
        """The numbers under the column's heading, as a picture; empty where the column has no scale."""
        if self.scale is None:
            return Markup()
        marks = []
        for position, words in filter(itemgetter(1), self.ticks):
            x = self.scale(position)
            marks.append(text(x, 11, words, "", "start" if x < 8 else "end" if x > self.width - 12 else "middle"))
        return svg(self.width, 13, "", *marks).replace(Markup('role="img" aria-label=""'), Markup('aria-hidden="true"'))


class BenchmarkRow(NamedTuple):
    """A benchmark, or a group of them: its name, how it is written, its category, where its card lies ("": a group),
    its cells, the group that it belongs to or is, how many are in it, and its answers for the filters."""

    name: str
    written: str
    category: str
    href: str
    cells: list[panels.TableCell]
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
    columns, rows = [], {card.benchmark: list[panels.TableCell]() for card in cards}
    is_long = len(cards) > LONG
    for column in _columns(sources, cards)[int(is_long) :]:
        cells = {card.benchmark: column.cell(card) for card in cards}
        if all(cell == panels.EMPTY for cell in cells.values()):
            continue
        columns.append(column)
        for card in cards:
            cell = cells[card.benchmark]
            rows[card.benchmark].append(cell._replace(gap_reason=_gap_reason(column.key, card, cell, sources.settings)))
    keys = [column.key for column in columns]
    sorted_by = next((key for key in ("ranks", "steady", "apart", "scores") if key in keys), "")
    groups = groups_of(cards) if is_long else {}
    listed = [
        BenchmarkRow(
            card.benchmark,
            shortened(card.benchmark, LONGEST),
            shown(value) if (value := card.value("category")) is not None else "",
            f"{FOLDER}/{folders[card.benchmark]}/index.html",
            rows[card.benchmark],
            groups.get(card.benchmark, ""),
            answers="".join(f"{key}:{card.verdict.marks[key].outcome};" for key in ("ranks", "apart")),
        )
        for card in cards
    ]

    def place(row: BenchmarkRow) -> tuple[bool, float]:
        sort = row.cells[keys.index(sorted_by)].sort if sorted_by else None
        return (sort is None, -(sort or 0.0))

    inside: dict[str, list[BenchmarkRow]] = {}
    for row in sorted(listed, key=place):
        inside.setdefault(row.group, []).append(row)
    ungrouped = inside.pop("", [])
    above = [
        BenchmarkRow(name, shortened(name, LONGEST), "", "", _group_cells(columns, members), name, len(members))
        for name, members in inside.items()
    ]
    ordered = [
        row_shown for row in sorted([*ungrouped, *above], key=place) for row_shown in (row, *inside.get(row.group, ()))
    ]
    filters = [(f"{key}:{answer}", words) for (key, answer), words in _FILTERS.items()
               if is_long and any(f"{key}:{answer};" in row.answers for row in listed)]  # fmt: skip
    return BenchmarkTable(columns, ordered, sorted_by, len(above), filters)


def groups_of(cards: Sequence[Card]) -> dict[str, str]:
    """The group of each benchmark that has one: how the names of at least five begin, else a category of several."""
    groups = beginnings([card.benchmark for card in cards], LEAST_IN_GROUP)
    categories = {card.benchmark: shown(value) for card in cards
                  if card.benchmark not in groups and (value := card.value("category")) is not None}  # fmt: skip
    several = {name for name, number in Counter(categories.values()).items() if 1 < number < len(cards)}
    return groups | {benchmark: name for benchmark, name in categories.items() if name in several}


def _group_cells(columns: Sequence[Column], members: Sequence[BenchmarkRow]) -> list[panels.TableCell]:
    """Of a group: a tick for each benchmark, a dot for their median, and how many have each answer."""
    cells = []
    for index, column in enumerate(columns):
        in_column = [row.cells[index] for row in members]
        values = [cell.sort for cell in in_column if cell.sort is not None]
        answers = Counter(cell.mark.outcome for cell in in_column if cell.mark is not None)
        counts = tuple((answer, answers[answer]) for answer in (YES, PARTLY, NO, NOT_KNOWN) if answers[answer])
        middle = float(np.median(values)) if values else None
        picture, words = Markup(), ""
        if column.scale is not None and middle is not None:
            marks = [ticks(column.scale, [position for position, _ in column.ticks], 2, 22)]
            marks += [rug(column.scale, values, 6, 18, column.kind), dot(column.scale(middle), 12, column.kind, 3.8)]
            ends = f"{decimal(min(values))} to {decimal(max(values))}"
            label = f"{len(values)} benchmarks: median {decimal(middle)}, {ends}"
            picture = svg(column.width, 24, label, *marks)
        elif column.key == "gap" and values:
            written = {cell.sort: cell.words for cell in in_column}
            words = " to ".join(dict.fromkeys((written[min(values)], written[max(values)])))
        cells.append(panels.TableCell(middle, picture, None, words, counts))
    return cells


def _columns(sources: CardSources, cards: Sequence[Card]) -> list[Column]:
    values = [card.values for card in cards]
    trained = any("train_before_test" in panels.drawn_taus(card.values, "tau") for card in cards)
    low = panels.lowest_tau(values, ("tau.direct", "tau.train_before_test"))
    low_similar = panels.lowest_tau(values, ("tau_within_2.direct",))
    similar = 150 if sources.curves.empty else 110  # beside what curves say there is less room
    wide = (200 if sources.curves.empty else 165) if trained else similar
    gaps_in_points = (card.value(f"smallest_difference.{key}") for card in cards for key in PROTOCOLS
                      if panels.in_points(card.values))  # fmt: skip
    gap = max((value.number for value in gaps_in_points if value is not None), default=1.0)
    sizes = any(card.value(f"separated_within_2.{protocol}") for card in cards for protocol in PROTOCOLS)
    pairs = "pairs at most 2× apart in size" if sizes else "all pairs of models"
    units = "points" if all(map(panels.in_points, values)) else "points, or in units of the score"

    def mark(card: Card, question: str) -> Mark:
        return card.verdict.marks[question]

    def tau_ticks(lowest: float) -> list[tuple[float, str]]:
        return [(lowest, ""), *((tick, panels.plain(tick)) for tick in (-0.5, 0.0, 0.5, 1.0) if tick >= lowest)]

    many = len(sources.last_scores["model"].unique()) > MOST_TICKS
    ticked = f"a tick for each model, shades for over {MOST_TICKS}" if many else "one tick for each model"
    kind = "t" if trained and not any("direct" in panels.drawn_taus(card.values, "tau") for card in cards) else "d"
    columns = [
        Column("scores", "What do scores look like?", ticked, "Scores",
               lambda card: panels.scores_cell(sources, card.benchmark, card.values), 118, Axis(0, 1, 1, 117),
               [(0, "0"), (0.5, "0.5"), (1, "1")]),
        Column("ranks", "Does it rank models like the others?", "agreement (tau), all models", "Ranks like others?",
               lambda card: panels.tau_cell(card.values, "tau", mark(card, "ranks"), low, wide), wide,
               Axis(low, 1, 5, wide - 5), tau_ticks(low), kind),
        Column("similar", "And models of similar size?", "agreement, at most 2× apart", "…of similar size?",
               lambda card: panels.tau_cell(card.values, "tau_within_2", mark(card, "ranks similar"), low_similar,
                                            similar),
               similar, Axis(low_similar, 1, 5, similar - 5), tau_ticks(low_similar), kind),
        Column("apart", "Does it tell similar models apart?" if sizes else "Does it tell models apart?", pairs,
               "Tells apart?", lambda card: panels.apart_cell(card.values, mark(card, "apart")), 112,
               Axis(0, 1, 5, 107), [(0, "0%"), (0.5, "50%"), (0.8, "80%"), (1, "")]),
        Column("gap", "Smallest gap it can detect", f"{units}, with 80% power", "Smallest gap",
               lambda card: panels.gap_cell(card.values, gap)),
        Column("steady", "Do scores improve steadily in training?", "mean score of the models", "Improves steadily?",
               lambda card: panels.steady_cell(sources, card.benchmark, card.values, mark(card, "steady"))),
        Column("ready", "Is it ready early?", "above chance, order settled", "Ready early?", _ready_cell),
        Column("bias", "Does having seen test text change it?", "points of its score", "Seen test text",
               lambda card: panels.bias_cell(card.values, mark(card, "bias"))),
    ]  # fmt: skip
    return [column for column in columns if not (column.key == "similar" and trained)]


_DECIDED_BY = {
    "ranks": ("tau.direct", "tau.train_before_test"),
    "similar": ("tau_within_2.direct",),
    "apart": ("separated_within_2.direct", "separated_within_2.train_before_test", "separated_all.direct"),
    "gap": ("smallest_difference.direct", "smallest_difference.train_before_test"),
    "steady": ("signal_quality",),
    "ready": ("settled_from", "signal_from"),
    "bias": ("bias",),
}


def _gap_reason(column: str, card: Card, cell: panels.TableCell, settings: Cards) -> str | None:
    """Why an answer is not known or not measured; None where it is known."""
    values = [card.values[key] for key in _DECIDED_BY.get(column, ()) if key in card.values]
    if cell.sort is None and not cell.mark:
        reasons = [value.reason for value in values if value.reason]
        return f"not measured: {reasons[0]}" if reasons else None
    if cell.mark is None or (NOT_KNOWN not in cell.mark.word and cell.mark.outcome != NOT_KNOWN):
        return None
    if column == "steady":
        return "that the scores beat a random walk is not shown"
    limits = {"ranks": (settings.agrees,), "similar": (settings.agrees,),
              "apart": (settings.separated, settings.not_separated)}.get(column, ())  # fmt: skip
    causes = []
    for value in values:
        held = [limit for limit in limits if value.interval and value.interval[0] < limit <= value.interval[1]]
        name = NAMES[value.protocol] if value.protocol else "it"
        if value.estimate is not None and value.interval is None and limits:
            causes.append(f"{name} has no interval")
        elif held:
            causes.append(f"{name}: the interval holds {panels.plain(held[0])}, the threshold")
    return "; ".join(causes) or "these data do not decide it"


def _ready_cell(card: Card) -> panels.TableCell:
    mark = card.verdict.marks["ready"]
    if mark.outcome == NOT_MEASURED:
        return panels.EMPTY
    settled = card.value("settled_from") or card.value("signal_from")
    return panels.TableCell(None if settled is None else settled.number, mark=mark)


def _tabs_style(keys: Sequence[str]) -> str:
    """On narrow screens the tab that is chosen shows its column."""
    rules = [
        f"#q-{key}:checked~table.m .c-{key}{{display:table-cell}}"
        f"#q-{key}:checked~.tabs label[for=q-{key}]{{background:var(--ink);color:var(--paper);border-color:var(--ink)}}"
        f"#q-{key}:focus-visible~.tabs label[for=q-{key}]{{outline:2px solid var(--accent);outline-offset:2px}}"
        for key in keys
    ]
    return f"@media screen and (max-width:1000px){{{''.join(rules)}}}" if keys else ""


# ----------------------------------------------------------------------------------------------------------------------
# The folds.


def _rules(limits: Cards, columns: Sequence[str]) -> list[tuple[str, str]]:
    """What the words of the table mean, by question."""
    meanings = {
        "ranks": ("Ranks like the others", f"The mean agreement (Kendall's tau) with the other benchmarks is at least "
                  f"{limits.agrees:g}. We say “no” only if noise alone could not explain it. Direct: each model as it "
                  "is. After training: train before test. “Only”: the other way it does not. A half mark with a dotted "
                  "edge: the other way is not known. The noise ceiling is the agreement that would be seen if all "
                  "benchmarks ordered the models identically and only item noise differed."),
        "apart": ("Tells apart", f"At least {percent(limits.separated)} of the pairs of models have scores that differ "
                  f"by more than noise. No: fewer than {percent(limits.not_separated)}. In part: between the two."),
        "gap": ("Smallest gap", "Two models this far apart are told apart four times out of five by a test that "
                "ignores which items they share."),
        "steady": ("Steady", "Scores improve more steadily than a random walk (false discovery rate 5%). The "
                   "absence of “steady” is not evidence of the opposite."),
        "ready": ("Ready early", f"By {percent(limits.early)} of training the mean score is above chance for good, "
                  "and models that can be told apart are nearly in their final order."),
        "bias": ("Seen test text", "Raises, lowers: having read the test's texts in pretraining surely does so. No: it "
                 f"changes the score by less than {100 * limits.bias:g} points."),
    }  # fmt: skip
    return [meanings[key] for key in columns if key in meanings]


def _invitation(sources: CardSources | None, cards: Sequence[Card]) -> str | None:
    """The one line on what was not measured; None where every study took part."""
    if sources is None or not cards:
        return None
    numbers = {
        protocol: max((value.number for card in cards if (value := card.value(f"models.{protocol}"))), default=0)
        for protocol in PROTOCOLS
    }
    first, then = numbers.values()
    if 0 < then < first and not any("train_before_test" in panels.drawn_taus(card.values, "tau") for card in cards):
        return (
            f"{then:.0f} of {first:.0f} models have scores after training so far. Their dots follow once an interval "
            "can be given."
        )
    if "agreement" in sources.results and not then:
        return "Is the first model better, or only better prepared for these tests? Direct scores cannot say."
    if "agreement" not in sources.results:
        return "Do the benchmarks agree on which model is better? That needs scores of three models on two benchmarks."
    if "signal" not in sources.results:
        return "Do scores improve steadily in training? That needs scores of three checkpoints of a model."
    if "bias" not in sources.results:
        return "Does having seen test text change scores? That needs models trained with and without it."
    return None
