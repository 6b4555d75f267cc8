"""Pages of a site that no study writes: the data; where a reader's own models stand beside published ones (`report
--beside`); and what changed since an earlier report, or without items that others have found to be wrong: models and
benchmarks that came or went, ranks and answers that changed beyond noise. Each report leaves `snapshot.json` for this.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
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
from lm_validity.pages.page import Answer, Finding, Lede, Page, Picture, Section, Table
from lm_validity.results.put import Column, Rows, ends_of
from lm_validity.results.sections import MOST_CELLS, POINTS, Heat, Says, SectionOf, TableOf, write_rows
from lm_validity.site.cards.card import Card
from lm_validity.site.cards.values import NO, YES, CardSources
from lm_validity.site.gather import Gathered, Sheets
from lm_validity.statistics import NORMAL_95
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.studies.items.answers import SAME_SCORE
from lm_validity.tables.counted import Sources
from lm_validity.tables.items import comparable, item_values
from lm_validity.tables.schema import DIRECT, ITEMS, KEY, PROTOCOLS, SCORES, read_scores
from lm_validity.words import Missing, count, listing

NO_ERROR = Missing("The score has no standard error.")
SNAPSHOT, FORMAT = "snapshot.json", 1
WITHOUT = "Left out: "  # what a line on items that are left out begins with
MOST_NAMED, MOST_WRITTEN = 4, 61  # names in a sentence; models whose names stand beside the lines
EVERYWHERE = ""  # the order over all benchmarks, in a snapshot

# ----------------------------------------------------------------------------------------------------------------------
# The page on the data themselves: what came in, what was guessed, what could not be written.


def data_page(scores: pd.DataFrame, sheets: Sheets, lines: list[str], sources: CardSources, source: str = "") -> Page:
    """The scores that count, the two sheets with what was guessed, and the import's summary. `source`: of the data."""
    models, benchmarks = sheets
    per_benchmark = scores.groupby("benchmark")["model"].nunique()
    per_model = scores.groupby("model").agg(benchmarks=("benchmark", "nunique"), checkpoints=("checkpoint", "nunique"))
    guessed = (
        "The column `guessed` marks values that no file gave. They come from names and from a table of lm-eval's "
        "tasks. To correct them, edit models.tsv and benchmarks.tsv beside this page and pass them back with --models "
        "and --benchmarks."
    )
    explained = {"guessed": guessed, "studies": "An empty cell in `studies` means all studies."}
    columns = {column for sheet in (models, benchmarks) for column in sheet.dropna(axis=1, how="all")}
    tables = [
        _table("benchmarks", benchmarks.assign(models=benchmarks["benchmark"].map(per_benchmark))),
        _table("models", models.join(per_model, on="model")),
    ]
    rows = score_rows(sources)
    units = {str(row.subject): row.unit for row in rows}
    in_units = [name for name, unit in units.items() if unit != POINTS]
    metrics = sources.sheet["metric"].dropna()
    written = "Scores are in hundredths of the metric" if len(in_units) < len(units) else "Scores are as they were read"
    written += f"; on {listing(in_units, 4)} in units of the metric" if 0 < len(in_units) < len(units) else ""
    whence = f"From {source or 'a source that is not known here'}, read on {date.today().isoformat()}."
    size = f"{count(len(scores), 'score')} of {count(scores['model'].nunique(), 'model')} on "
    size += f"{count(scores['benchmark'].nunique(), 'benchmark')}."
    return Page(
        "data",
        "The data",
        findings=[Finding(size, whence), Finding(f"{written} ({listing(metrics.unique(), 4)}).")],
        picture=heat_picture(rows, sources.sheet),
        sections=[
            Section("What was left out, and why", notes=list(sources.counted.notes)),
            Section("Inputs", explanation=" ".join(explained[name] for name in explained if name in columns),
                    tables=tables, notes=[line.strip() for line in lines]),
        ],
    )  # fmt: skip


def _table(name: str, sheet: pd.DataFrame) -> Table:
    """The columns in which anything is known, under their names in the sheet; numbers as numbers."""
    filled = sheet.dropna(axis=1, how="all").convert_dtypes()
    return Table(name, name.capitalize(), filled, labels={str(column): str(column) for column in filled}, folded=True)


def score_rows(sources: CardSources) -> Rows:
    """The scores that count by benchmark, model (`other`) and protocol, the best models first, with their intervals.

    Seeds are averaged; their standard errors are root mean squares, since they share the items. Models are named as in
    the models sheet. Of more cells than a table shows, the models that come last are left out.
    """
    scores = sources.last_rows.assign(square=lambda rows: rows["stderr"].astype("float64") ** 2)
    keys = ["model", "benchmark", "protocol"]
    means = scores.groupby(keys, sort=False).agg(value=("value", "mean"), square=("square", "mean")).reset_index()
    lower = _lower(sources.sheet)
    rows = Rows("data")
    for protocol in PROTOCOLS:
        cells = means[means["protocol"] == protocol]
        if cells.empty:
            continue
        oriented = cells["value"].where(~cells["benchmark"].isin(lower), -cells["value"])
        ranks = oriented.groupby(cells["benchmark"]).rank(pct=True).groupby(cells["model"]).mean()
        order = ranks.sort_values(ascending=False, kind="stable").index[: MOST_CELLS // cells["benchmark"].nunique()]
        in_points = cells["value"].between(-1, 1).groupby(cells["benchmark"]).all()
        ordered = cells.sort_values("benchmark").set_index("model").loc[order].reset_index()
        for row in ordered.itertuples():
            half = NORMAL_95 * float(np.sqrt(row.square))
            ends = (row.value - half, row.value + half) if np.isfinite(half) else NO_ERROR
            unit = POINTS if in_points[row.benchmark] else "score"
            names = {"subject": row.benchmark, "other": row.model, "protocol": protocol}
            rows.put("score", row.value, unit, {"items": ends}, **names)
    return rows


def _lower(sheet: pd.DataFrame) -> set[str]:
    """The benchmarks on which lower is better."""
    return set(sheet.index[~sheet["higher_is_better"].astype(bool)])


def heat_picture(rows: Rows, sheet: pd.DataFrame) -> Picture:
    """One table for each protocol that has scores. More colour is better within a column."""
    protocols, tables = [name for name in PROTOCOLS if rows.all("score", protocol=name)], Markup("")
    for protocol in protocols:
        heading = Markup("<h2>{}</h2>").format(svg.NAMES[protocol].capitalize()) if len(protocols) > 1 else ""
        heat = Heat("score", {"other": "{}"}, {"subject": "{}"}, "", {"protocol": protocol}, by_column=True,
                    lower=_lower(sheet))  # fmt: skip
        tables += heading + heat.draw(rows).svg
    note = (
        "The more colour, the better on that benchmark. A score under the pointer, or a row in focus, has its interval."
    )
    return Picture(tables, note)


# ----------------------------------------------------------------------------------------------------------------------
# A reader's own models beside published ones, on the benchmarks that both have.


def add_beside(scores: pd.DataFrame, path: Path | None) -> pd.DataFrame:
    """The scores with those of other models in the table at `path`, on the benchmarks of the scores.

    A model of both tables is the reader's own. Raises InputError where the tables have no benchmark in common.
    """
    if path is None:
        return scores
    beside_scores = read_scores(path)
    in_both = beside_scores["benchmark"].isin(scores["benchmark"].unique())
    if not in_both.any():
        raise InputError(
            f"--beside {path}: none of its benchmarks ({', '.join(sorted(beside_scores['benchmark'].unique())[:3])}, "
            "...) is among yours.",
            "benchmarks are matched by their names.",
        )
    added = beside_scores[in_both & ~beside_scores["model"].isin(scores["model"])]
    joined = pd.concat([frame.dropna(axis=1, how="all") for frame in (scores, added)], ignore_index=True)
    return joined.reindex(columns=SCORES.names)


def beside_page(own_models: Sequence[str], path: Path, sources: Sources) -> Page:
    """Where the reader's models stand among the others, whose scores lie at `path`, by benchmark."""
    matrix = read_score_matrix(sources)
    places = places_table(matrix, own_models)
    mine = places["model"].nunique()
    against = Finding(
        f"{count(mine, 'model')} of yours and {len(matrix.models) - mine} others on "
        f"{count(len(matrix.benchmarks), 'benchmark')}.",
        f"Others: {path.name}. Benchmarks with the same name count as the same. Scores under another "
        "prompt or with another number of few-shot examples can differ.",
    )
    caption = "Place 1 is the best. Models with equal scores share the better place."
    formats = {"score": ".4f", "next_better_score": ".4f"}
    table = Table("places", "Places of your models", places, formats, labels={"of": "of models"}, caption=caption)
    return Page(
        "beside",
        "Your models beside the others",
        findings=[*(Finding(_place_sentence(rows)) for _, rows in places.groupby("model", sort=False)), against],
        answers=[_place_answer(places)] if len(places) else (),
        sections=[Section("Scores by benchmark", tables=[table])],
    )


def _place_sentence(places: pd.DataFrame) -> str:
    """Where one model stands highest and where lowest."""
    share, model = places["place"] / places["of"], places["model"].iloc[0]
    best, worst = (f"{row['place']} of {row['of']} models on {row['benchmark']}"
                   for row in (places.loc[share.idxmin()], places.loc[share.idxmax()]))  # fmt: skip
    if len(places) == 1:
        return f"{model} has place {best}."
    return f"At best, {model} has place {best}; at worst, place {worst}. Noise is not taken into account."


def _place_answer(places: pd.DataFrame) -> Answer:
    """A row for each own model, at most seven, with a tick at its place on each benchmark."""
    shares = (places["place"] - 1) / (places["of"] - 1).clip(lower=1)
    models: Sequence[str] = list(places.groupby("model")["place"].median().sort_values().index)[:7]
    axis, step = svg.Axis(0, 1, 120, 372), 104 / len(models)
    marks = [svg.ticks(axis, (0, 0.5, 1), 4, 108, ("first", "middle", "last"))]
    for index, model in enumerate(models):
        y = 4 + step * (index + 0.5)
        marks.append(svg.text(0, y + 4, svg.shortened(model, 18), "lab"))
        marks.append(svg.rug(axis, shares[places["model"] == model].tolist(), y - 6, y + 6, "k"))
    best = places.loc[(places["place"] / places["of"]).idxmin()]
    sentence = f"{best['model']} is best with place {best['place']} of {best['of']} on {best['benchmark']}."
    picture = svg.svg(380, 132, f"Places of {count(len(models), 'model')} of yours; {sentence}", *marks)
    basis = f"A tick for each of {count(places['benchmark'].nunique(), 'benchmark')}. Noise is not taken into account."
    return Answer("Where do your models stand?", sentence, picture, basis=basis, link="All places")


def places_table(matrix: ScoreMatrix, own_models: Sequence[str]) -> pd.DataFrame:
    """A row for each own model and benchmark with a direct score: its place among all models, and the next better
    one."""
    oriented, values = matrix.oriented(DIRECT), matrix.value[DIRECT]
    columns = ["model", "benchmark", "score", "place", "of", "next_better", "next_better_score"]
    rows = []
    for j, benchmark in enumerate(matrix.benchmarks):
        column = oriented[:, j]
        for i in np.flatnonzero(np.isin(matrix.models, own_models) & np.isfinite(column)):
            better = np.flatnonzero(column > column[i])
            following = better[np.argmin(column[better])] if len(better) else None
            next_better = (None, np.nan) if following is None else (matrix.labels[following], values[following, j])
            rank = 1 + len(better), int(np.isfinite(column).sum())
            rows.append((matrix.labels[i], benchmark, values[i, j], *rank, *next_better))
    return pd.DataFrame(rows, columns=columns)


# ----------------------------------------------------------------------------------------------------------------------
# What changed since an earlier report: what a report leaves for this, and what is read of it.


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
    by benchmark and question of its card."""

    format: int
    ranks: dict[str, dict[str, dict[str, list[float]]]]
    answers: dict[str, dict[str, str]]


def snapshot_of(reports: Mapping[str, Path], cards: Sequence[Card]) -> Snapshot:
    """What a later report compares itself with. reports: the folders of the reports, by name. The order on single
    benchmarks is in it only where there is none over all."""
    ranks: dict[str, dict[str, dict[str, list[float]]]] = {}
    path = reports["models"] / "results.parquet" if "models" in reports else Path()
    rows = Rows.read(path, ["model_rank", "tier"]) if path.is_file() else Rows("models")
    together = rows.all("model_rank", subject=None)
    for row in together or rows.all("model_rank"):
        ends, tier = ends_of(row), rows.value("tier", subject=row.subject, other=row.other, protocol=row.protocol)
        if row.value is not None and ends:
            places = ranks.setdefault(str(row.protocol), {}).setdefault(row.subject or EVERYWHERE, {})
            places[str(row.other)] = [row.value, *ends, tier]
    answers = {card.benchmark: {key: mark.outcome for key, mark in card.verdict.marks.items()} for card in cards}
    return {"format": FORMAT, "ranks": ranks, "answers": answers}


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
    file = path / SNAPSHOT if path.is_dir() else path
    hint = f"name the folder of an earlier report, or its {SNAPSHOT}."
    if not file.is_file():
        raise absent(file, "file", hint)
    try:
        snapshot: Snapshot = json.loads(file.read_text(encoding="utf-8"))
        if snapshot["format"] == FORMAT:
            [Standing(*four) for orders in snapshot["ranks"].values() for of in orders.values() for four in of.values()]
            _ = [marks.items() for marks in snapshot["answers"].values()]
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
        lede=Lede(heading, ". ".join([since, *lines[1:]])),
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
