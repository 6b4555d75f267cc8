"""A site: its first page (three answers, the table of all benchmarks, folds), the cards, and each report's own page."""

import json
import posixpath
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import read_page, write_text
from lm_validity.pages.page import (
    FORMAT,
    Fields,
    Link,
    PageDocument,
    asset,
    deflated,
    from_template,
    legend_of,
    write_html,
)
from lm_validity.pages.svg import NAMES
from lm_validity.site.cards.card import FOLDER, Card, drawn_taus, make_card, outcome, write_cards
from lm_validity.site.cards.values import CardSources, known, value_of
from lm_validity.site.since import FILE as SNAPSHOT
from lm_validity.site.since import Earlier, snapshot_of, write_since
from lm_validity.site.table import benchmark_table
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.tables.settings import Difference
from lm_validity.words import count, percent, scale_of

ORDER = (
    "since", "beside", "compare", "models", "agreement", "factors", "readiness", "signal", "items", "bias",
    "computation", "data",
)  # fmt: skip
ANSWERS = 3  # on the first page
# reports whose first answers come before any second answer; of the others in the order of ORDER
FIRST = ("since", "beside", "compare", "readiness", "agreement", "models", "signal", "bias")


def build_site(
    report_folders: Sequence[str | Path],
    output: str | Path,
    *,
    cards: CardSources | None = None,
    missing: Sequence[str] = (),
    name: str = "",
    about: str = "",
    source: str = "",
    single_file: bool = False,
    earlier: Earlier | None = None,
) -> Path:
    """Write the first page (`output`/index.html, which is returned), the cards, and each report's own page.

    Figures, tables and results.csv are copied to `output`/<report>, unless they are there. `missing` lists what an
    unfinished run lacks (cells, reports): named on every page. `name`: of the run; `about`: sentences under the title.
    `source`: what it is made from, for the feet of its pages.
    `single_file`: the first page holds all others too. `earlier`: a report, what changed since which is a page.
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
        if (numbers := folder / "results.csv").is_file() and folder != output / document["name"]:
            shutil.copy(numbers, output / document["name"])
    if not documents:
        raise InputError("no report to build a site from.", "name at least one report folder.")
    made = [make_card(cards, benchmark) for benchmark in cards.sheet["benchmark"]] if cards else []
    snapshot = snapshot_of({folder.name: folder for folder in map(Path, report_folders)}, made)
    write_text(output / SNAPSHOT, json.dumps(snapshot, ensure_ascii=False, separators=(",", ":")) + "\n")
    if earlier is not None:
        write_since(earlier, snapshot, output / "since")
        documents["since"] = _page_of(output / "since")
    names = sorted(documents, key=lambda study: (ORDER.index(study) if study in ORDER else len(ORDER), study))
    links = [Link(documents[study]["title"], f"{study}/index.html") for study in names]
    first = Link("Benchmarks" if made else "Answers", "index.html")

    def seen_from(up: str) -> list[Link]:
        return [link._replace(href=f"{up}{link.href}") for link in (first, *links)]

    feet = {"missing": list(missing), "source": source}
    for study in names:
        write_html(documents[study], output / study, navigation=seen_from("../"), missing=missing, source=source)
    folders = write_cards(made, output / FOLDER, seen_from("../../"), missing, source) if made else {}
    page = first_page([documents[study] for study in names], cards, made, folders, name, about) | feet
    write_text(output / "index.html", from_template("index.html.j2", navigation=seen_from(""), **page))
    write_text(output / "findings.md", _findings_text([documents[study] for study in names]))
    if single_file:
        into_one_file(output)
    return output / "index.html"


def _findings_text(documents: Sequence[PageDocument]) -> str:
    """All findings by study, as Markdown."""
    parts = ["# Findings"]
    for page in documents:
        listed = "\n".join(f"- {found['sentence']} {found['basis']}".rstrip() for found in page["findings"])
        parts += [f"## {page['title']}", listed] if listed else []
    return "\n\n".join(parts) + "\n"


def _page_of(folder: Path) -> PageDocument:
    path = folder / "page.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "run `lm-validity report ...` into that folder first.")
    document: PageDocument = read_page(path)
    if document.get("format") != FORMAT:
        raise InputError(f"{path}: a page of another version.", "write the report again with this one.")
    return document


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
    how_many = f"these {len(cards)}" if len(cards) > 1 else "this" if cards else "these"
    benchmarks = "benchmark" if len(cards) == 1 else "benchmarks"
    lead = [f"The run {name}."] if name else []
    lead += [_population(sources, cards)] if sources and cards else []
    return {
        "title": f"How far can {how_many} {benchmarks} be trusted?",
        "about": " ".join([*lead, about]).strip(),
        "description": " ".join(f"{answer['sentence'].rstrip('.')}." for answer in answers),
        "answers": answers,
        "not_measured": _invitation(sources, cards),
        "table": table,
        "legend": legend_of(pictures),
        "cards": sources.settings if sources else None,
        "limits": _limits(documents),
        "documents": documents,
        "outcome": outcome,
        "percent": percent,
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

    def urgency(entry: tuple[int, PageDocument, Fields]) -> tuple[int, int]:
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
        NAMES[protocol] for protocol in PROTOCOLS if any(known(card.rows, f"models.{protocol}") for card in cards)
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


_UNMEASURED = {
    "agreement": "Do the benchmarks agree on which model is better? That needs scores of three models on two "
    "benchmarks.",
    "signal": "Do scores improve steadily in training? That needs scores of three checkpoints of a model.",
    "bias": "Does having seen test text change scores? That needs models trained with and without it.",
}


def _invitation(sources: CardSources | None, cards: Sequence[Card]) -> str | None:
    """The one line on what was not measured; None where every study took part."""
    if sources is None or not cards:
        return None
    first, then = (max(value_of(card.rows, f"models.{p}") or 0 for card in cards) for p in PROTOCOLS)
    if 0 < then < first and not any("train_before_test" in drawn_taus(card.rows, "tau") for card in cards):
        return (
            f"{then:.0f} of {first:.0f} models have scores after training so far. Their dots follow once an interval "
            "can be given."
        )
    if "agreement" in sources.results and not then:
        return "Is the first model better, or only better prepared for these tests? Direct scores cannot say."
    return next((words for report, words in _UNMEASURED.items() if report not in sources.results), None)


# ----------------------------------------------------------------------------------------------------------------------
# A site as one file, which can be mailed: its first page with all others inside.

_DATA = re.compile(r'<div id="data" hidden data-source="([^"]+)"></div>')
_LINK = re.compile(r'<a\b([^>]*?)\shref="(?!#|[a-z]+:)([^"#]+)(?:#[^"]*)?"', re.IGNORECASE)
_LAST = "</body>"
STYLE, SCRIPT, ROUTER = "\x01STYLE\x01", "\x01SCRIPT\x01", "\x01ROUTER\x01"


def into_one_file(site: Path) -> None:
    """Put all pages of a finished site, and what their folds hold, into its `index.html`.

    The folder keeps its other files. In the one file a link to a page shows that page; a link to any other file (a
    table, a figure) is plain text, since that file does not travel. Without script the first page can be read.
    """
    paths = sorted(path.relative_to(site).as_posix() for path in site.rglob("index.html"))
    pages = {}
    for path in paths:
        html = (site / path).read_text(encoding="utf-8")
        if data := _DATA.search(html):
            rows = (site / path).parent / data[1]  # not there where the page has no folds that need it
            held = rows.read_text(encoding="utf-8") if rows.is_file() else ""
            html = html.replace(data[0], f'<div id="data" hidden></div><script>{held}</script>', 1)
        pages[path] = _LINK.sub(partial(_kept, page_of_link=path, pages=set(paths)), html)
    router = asset("one_file.js")
    ending = f"<script>{ROUTER}</script>\n{_LAST}"
    site_of = {
        "style": deflated(asset("page.css")),
        "script": deflated(asset("page.js")),
        "router": deflated(router),
        "pages": {path: deflated(_shortened(html).replace(_LAST, ending, 1)) for path, html in pages.items()},
    }
    held_pages = f'<script type="application/json" id="site">{json.dumps(site_of, separators=(",", ":"))}</script>'
    document = f"{held_pages}\n<script>{router}</script>\n{_LAST}"
    write_text(site / "index.html", pages["index.html"].replace(_LAST, document, 1))


def _shortened(html: str) -> str:
    """The page with marks in place of the style and script that all pages share."""
    return html.replace(asset("page.css"), STYLE, 1).replace(asset("page.js"), SCRIPT, 1)


def _kept(link: re.Match[str], page_of_link: str, pages: set[str]) -> str:
    """The link where it leads to a page of the site, else the same element without an address."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page_of_link), link[2]))
    return link[0] if target in pages else f"<a{link[1]}"
