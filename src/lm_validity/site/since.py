"""What changed since an earlier report: models and benchmarks that came or went, ranks and answers that changed beyond
noise. Each report leaves `snapshot.json` for this."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup

from lm_validity.errors import InputError
from lm_validity.files import absent, replace_file
from lm_validity.pages import svg
from lm_validity.pages.page import Answer, Finding, Lede, Page, Picture
from lm_validity.results.put import Column, Rows, ends_of
from lm_validity.results.sections import Says, SectionOf, TableOf, write_rows
from lm_validity.site.cards.card import Card
from lm_validity.site.cards.values import NO, YES
from lm_validity.site.gather import Gathered
from lm_validity.studies.items.answers import SAME_SCORE
from lm_validity.tables.items import comparable, item_values
from lm_validity.tables.schema import ITEMS, KEY
from lm_validity.words import count, decimal, listing

FILE, FORMAT = "snapshot.json", 1
WITHOUT = "Left out: "  # what a line on items that are left out begins with
MOST_NAMED, MOST_WRITTEN = 4, 61  # names in a sentence; models whose names stand beside the lines
EVERYWHERE = ""  # the order over all benchmarks, in a snapshot


class Standing(NamedTuple):
    """The rank of a model, the first and the last that it may have, and its tier."""

    rank: float
    low: float
    high: float
    tier: float

    def among(self, common: int, gone: int) -> "Standing":
        """Its ranks among the models that two reports have in common: any of those `gone` may be before it."""
        return self._replace(low=max(1.0, self.low - gone), high=min(self.high, float(common)))


class Snapshot(TypedDict):
    """`ranks`: by protocol, then benchmark ("": all together), then model, the four numbers of a `Standing`. `answers`:
    by benchmark and question of its card. `agreement`: by protocol the mean tau."""

    format: int
    ranks: dict[str, dict[str, dict[str, list[float]]]]
    answers: dict[str, dict[str, str]]
    agreement: dict[str, float]


def snapshot_of(reports: Mapping[str, Path], cards: Sequence[Card]) -> Snapshot:
    """What a later report compares itself with. reports: the folders of the reports, by name. The order on single
    benchmarks is in it only where there is none over all."""
    ranks: dict[str, dict[str, dict[str, list[float]]]] = {}
    rows = _rows_of(reports, "models", "model_rank", "tier")
    together = rows.all("model_rank", subject=None)
    for row in together or rows.all("model_rank"):
        ends, tier = ends_of(row), rows.value("tier", subject=row.subject, other=row.other, protocol=row.protocol)
        if row.value is not None and ends:
            places = ranks.setdefault(str(row.protocol), {}).setdefault(row.subject or EVERYWHERE, {})
            places[str(row.other)] = [row.value, *ends, tier]
    tau = _rows_of(reports, "agreement", "tau_mean")
    return {
        "format": FORMAT,
        "ranks": ranks,
        "answers": {card.benchmark: {key: mark.outcome for key, mark in card.verdict.marks.items()} for card in cards},
        "agreement": {str(row.protocol): row.value for row in tau.all("tau_mean") if row.value is not None},
    }


def _rows_of(reports: Mapping[str, Path], name: str, *quantities: str) -> Rows:
    """Some rows of a report; none where it was not written."""
    path = reports[name] / "results.parquet" if name in reports else Path()
    return Rows.read(path, quantities) if path.is_file() else Rows(name)


class Earlier(NamedTuple):
    """A report to compare with. without: the same results with all items; then every change counts, since noise is
    the same."""

    snapshot: Snapshot
    name: str
    without: str = ""

    @property
    def rule(self) -> str:
        """What counts as a change."""
        if self.without:
            return "Any other tier and any other answer is a change: the noise of the other items is the same."
        return "A rank changed if no rank is possible both times; an answer, if a yes became a no or the reverse."


def read_earlier(path: Path) -> Earlier:
    """The snapshot of an earlier report: its folder, or the file itself. Raises InputError for what is none."""
    file = path / FILE if path.is_dir() else path
    hint = f"name the folder of an earlier report, or its {FILE}."
    if not file.is_file():
        raise absent(file, "file", hint)
    try:
        snapshot: Snapshot = json.loads(file.read_text(encoding="utf-8"))
        if snapshot["format"] == FORMAT:
            [Standing(*four) for orders in snapshot["ranks"].values() for of in orders.values() for four in of.values()]
            _ = [marks.items() for marks in snapshot["answers"].values()], snapshot["agreement"].items()
            return Earlier(snapshot, str(path))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: no snapshot of a report.", hint) from error
    raise InputError(f"{file}: a snapshot of another version.", "write the earlier report again with this one.")


class Turn(NamedTuple):
    """An answer on a benchmark that is the opposite now."""

    benchmark: str
    question: str
    then: str
    now: str


class Changes(NamedTuple):
    """What is new and what is gone, the models of which no rank is possible both times (protocol, benchmark, model),
    and the answers that turned; the standings of the models in common in the first order of both reports."""

    models: tuple[list[str], list[str]]
    benchmarks: tuple[list[str], list[str]]
    moved: list[tuple[str, str, str]]
    turned: list[Turn]
    standings: dict[str, tuple[Standing, Standing]]


def changes(earlier: Earlier, new: Snapshot) -> Changes:
    """What changed beyond noise: a model's possible ranks, each set from sets that hold for all models at once in 95%
    of tables, have none in common; a yes is a no now, or the reverse. What was not known then or is not now is no
    change. Without items: every tier and answer that is another one."""
    old, strict = earlier.snapshot, bool(earlier.without)
    models = [{m for ranks in s["ranks"].values() for spot in ranks.values() for m in spot} for s in (old, new)]
    moved, standings = list[tuple[str, str, str]](), dict[str, tuple[Standing, Standing]]()
    for protocol in reversed(new["ranks"]):
        for spot, ranks_now in new["ranks"][protocol].items():
            ranks_then = old["ranks"].get(protocol, {}).get(spot, {})
            common = ranks_now.keys() & ranks_then.keys()
            pairs = {
                model: (Standing(*ranks_then[model]).among(len(common), len(ranks_then) - len(common)),
                        Standing(*ranks_now[model]).among(len(common), len(ranks_now) - len(common)))
                for model in ranks_now if model in common
            }  # fmt: skip
            standings = standings or pairs
            moved += [
                (protocol, spot, model)
                for model, (a, b) in pairs.items()
                if (a.tier != b.tier if strict else a.low > b.high or b.low > a.high)
            ]
    turned = [
        Turn(benchmark, question, then, now)
        for benchmark, marks in new["answers"].items()
        for question, now in marks.items()
        if (then := old["answers"].get(benchmark, {}).get(question, now)) != now
        and (strict or {then, now} == {YES, NO})
    ]
    benchmarks = [set(snapshot["answers"]) for snapshot in (old, new)]
    of_models, of_benchmarks = ((sorted(now - then), sorted(then - now)) for then, now in (models, benchmarks))
    return Changes(of_models, of_benchmarks, moved, turned, standings)


# ----------------------------------------------------------------------------------------------------------------------
# The page.


def write_since(earlier: Earlier, new: Snapshot, output: Path) -> None:
    """Write the page of what changed since a report, in at most four sentences, with a line for each model from its
    rank then to its rank now, in colour where that changed."""
    changed, rows = changes(earlier, new), Rows("since")
    for model, standings in changed.standings.items():
        for when, standing in zip(("then", "now"), standings, strict=True):
            ends = {"pairs": (min(standing.low, standing.rank), max(standing.high, standing.rank))}
            rows.put("model_rank", standing.rank, "rank", ends, other=model, report=when)
    lines, picture = sentences(changed, earlier), _slopes(changed) if changed.standings else svg.svg(1, 1, "")
    since = f"Without {earlier.without}" if earlier.without else f"Since {earlier.name}"
    taus = [
        f"agreement {svg.NAMES[protocol]} {decimal(then)}, now {decimal(now)}"
        for protocol, now in new["agreement"].items()
        if (then := earlier.snapshot["agreement"].get(protocol)) is not None
    ]
    heading = (
        lines[0] if lines else "No tier and no answer changed" if earlier.without else "Nothing changed beyond noise"
    )
    answer = Answer("What changed?", f"{heading}.", picture, basis=f"{since}. {earlier.rule}", link="All changes")
    page = Page(
        name="since",
        title=since if earlier.without else "What changed",
        question=f"What came, went or changed? {since}. {earlier.rule}",
        findings=[Finding(f"{sentence}.", since) for sentence in lines or [heading]],
        sections=[_RANKS.drawn(rows)] if changed.standings else [],
        lede=Lede(heading, ". ".join([since, *lines[1:], "; ".join(taus)]).rstrip(". ")),
        picture=Picture(picture, f"Ranks of {count(len(changed.standings), 'model')}, in colour where they changed."),
        answers=[answer],
    )
    write_rows(page, rows, output)


_RANKS = SectionOf(
    "Ranks then and now",
    Says("model_rank", "{count:model} are in both reports.", {"report": "now"}),
    TableOf(
        "ranks",
        {"other": "model"},
        Column("model_rank", "rank then", ".0f", where={"report": "then"}).with_ends("then")
        | Column("model_rank", "rank now", ".0f", where={"report": "now"}).with_ends("now"),
        "Models in both reports",
    ),
    explanation="Where models came or went, the possible ranks are those among the models of both reports.",
)


def sentences(changed: Changes, earlier: Earlier) -> list[str]:
    """At most four, the most telling first."""

    def line(noun: str, names: list[str], words: str) -> list[str]:
        return [f"{count(len(names), noun)} {words}: {listing(names, MOST_NAMED)}"] * bool(names)

    orders = {_order(protocol, benchmark) for protocol, benchmark, _ in changed.moved}
    several = len(orders) > 1
    moved = [f"{m} ({_order(protocol, benchmark)})" if several else m for protocol, benchmark, m in changed.moved]
    words = "changed tier" if earlier.without else "changed in rank beyond noise"
    lines = line("rank" if several else "model", moved, words if several else ", ".join([words, *orders]))
    turned = [f"{turn.benchmark} ({turn.question}: {turn.then}, now {turn.now})" for turn in changed.turned]
    lines += line("answer", turned, "changed")
    for noun, (new, gone) in (("model", changed.models), ("benchmark", changed.benchmarks)):
        parts = line(noun, new, "new") + line(noun, gone, "gone")
        lines += ["; ".join(parts)] * bool(parts)
    return lines


def _order(protocol: str, benchmark: str) -> str:
    """Which order of models: that over all benchmarks, or on one, and under which protocol."""
    return f"{benchmark}, {svg.NAMES[protocol]}" if benchmark != EVERYWHERE else svg.NAMES[protocol]


def _slopes(changed: Changes) -> Markup:
    """A line for each model from its rank then, on the left, to that now."""
    moved, last = {model for *_, model in changed.moved}, len(changed.standings)
    height = max(160.0, min(900.0, 14.0 * last))
    spot = svg.Axis(1, max(last, 2), 20, height)
    marks = [svg.text(150, 9, "then", "lab", "end"), svg.text(450, 9, "now", "lab")]
    for model, (then, now) in sorted(changed.standings.items(), key=lambda entry: entry[0] in moved):
        kind, ends = ("t" if model in moved else "ax"), (spot(then.rank), spot(now.rank))
        marks.append(svg.line(156, ends[0], 444, ends[1], kind))
        if model in moved or last <= MOST_WRITTEN:
            marks.append(svg.text(150, ends[0] + 4, svg.shortened(model, 24), "", "end"))
            marks.append(svg.text(450, ends[1] + 4, svg.shortened(model, 24)))
    label = f"Ranks then and now of {count(last, 'model')}; {len(moved)} changed"
    return svg.svg(600, height + 8, label, *marks)


# ----------------------------------------------------------------------------------------------------------------------
# Without items that others have found to be wrong.

_CELL = [name for name in ITEMS.names[: ITEMS.names.index("doc_id")] if name in KEY]


def leave_items_out(gathered: Gathered, listed: Path, folder: Path) -> Gathered:
    """Without the items that a file lists, a line each: a doc_id as in items.parquet or, where several benchmarks have
    it, `benchmark<tab>doc_id`. Scores that are the means of their items are computed again from the others, with their
    standard errors; other scores of these benchmarks are left out, and said.

    The items that are left are written into `folder`; the table that they come from stays as it is. Raises InputError
    where there are no items, or for an id that none or several benchmarks have.
    """
    if gathered.items is None or gathered.scores is None:
        raise InputError(f"{listed}: these results have no answers item by item.", "leave --without out.")
    table = pq.read_table(gathered.items)
    items = table.select([name for name in [*_CELL, "doc_id"] if name in table.column_names]).to_pandas()
    out = _listed(items, listed)
    keys, hit = _CELL, items.loc[out, "benchmark"].unique()
    scores, on_hit = gathered.scores, gathered.scores["benchmark"].isin(hit)
    renewed, items = [], _joinable(items)
    for metric, rows in scores[on_hit].groupby("metric", dropna=False):
        values = items.assign(value=item_values(table, None if pd.isna(metric) else str(metric)).to_pandas())
        all_items, kept_items = (part.groupby(keys, dropna=False)["value"] for part in (values, values[~out]))
        means = kept_items.agg(now="mean", n="count", error="sem").assign(whole=all_items.mean())
        found = _joinable(rows)[keys].merge(means.reset_index(), on=keys, how="left").set_index(rows.index)
        fits = (rows["value"] - found["whole"]).abs() < SAME_SCORE
        renewed.append(rows.assign(value=found["now"], stderr=found["error"], n_items=found["n"])[fits])
    again = pd.concat([scores[~on_hit], *renewed]).sort_index().reset_index(drop=True)
    with replace_file(folder / "items.parquet") as temporary:
        pq.write_table(table.filter(pa.array(~out)), temporary)
    number = len(items[out].drop_duplicates(["benchmark", "doc_id"]))
    line = f"{WITHOUT}{count(number, 'item')} of {listing(hit, 3)}"
    if lost := len(scores) - len(again):
        line += f", and {count(lost, 'score')} that cannot be computed again"
    return replace(gathered, scores=again, items=folder / "items.parquet", lines=[*gathered.lines, f"{line}."])


def _joinable(frame: pd.DataFrame) -> pd.DataFrame:
    """The same value for what is unknown in scores or in items."""
    frame = comparable(frame.reindex(columns=[*dict.fromkeys([*frame.columns, *_CELL])]))
    return frame.assign(split=frame["split"].fillna("test"), run=frame["run"].astype("Float64").fillna(-1))


def _listed(items: pd.DataFrame, path: Path) -> np.ndarray:
    """(n,) which rows of a table of items a file lists."""
    if not path.is_file():
        raise absent(path, "file", "a text file with an item's id on each line.")
    named = items[["benchmark", "doc_id"]].drop_duplicates()
    chosen = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        benchmark, _, doc_id = line.strip().rpartition("\t")
        changed = named[(named["doc_id"] == doc_id) & ((named["benchmark"] == benchmark) | (benchmark == ""))]
        if doc_id and len(changed) != 1:
            several = f"is one of {listing(sorted(changed['benchmark']))}." if len(changed) else "is none."
            example = named.iloc[0]
            hint = f"ids are those of items.parquet, such as {example['doc_id']!r} of {example['benchmark']}."
            hint = "write its benchmark, a tab, and the id." if len(changed) else hint
            raise InputError(f"{path}, line {number}: the item {doc_id!r} {several}", hint)
        chosen |= {*changed.itertuples(index=False, name=None)}
    return np.asarray(pd.MultiIndex.from_frame(items[["benchmark", "doc_id"]]).isin(chosen))
