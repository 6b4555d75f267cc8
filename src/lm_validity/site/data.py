"""Two pages of a site that no study writes: the data, and where a reader's own models stand beside published ones
(`report --beside`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup

from lm_validity.errors import InputError
from lm_validity.pages.page import Answer, Finding, Page, Picture, Section, Table
from lm_validity.pages.svg import NAMES, Axis, rug, shortened, svg, text, ticks
from lm_validity.results.put import Rows
from lm_validity.results.sections import MOST_CELLS, POINTS, Heat
from lm_validity.site.cards.values import CardSources
from lm_validity.site.gather import Sheets
from lm_validity.statistics import NORMAL_95
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import DIRECT, PROTOCOLS, SCORES, read_scores
from lm_validity.words import Missing, count, listing

NO_ERROR = Missing("The score has no standard error.")

# ----------------------------------------------------------------------------------------------------------------------
# The page on the data themselves: what came in, what was guessed, what could not be written.


def data_page(scores: pd.DataFrame, sheets: Sheets, lines: list[str], sources: CardSources, source: str = "") -> Page:
    """The scores that count, the two sheets with what was guessed, and the import's summary. `source`: of the data."""
    models, benchmarks = sheets
    per_benchmark = scores.groupby("benchmark")["model"].nunique()
    per_model = scores.groupby("model").agg(benchmarks=("benchmark", "nunique"), checkpoints=("checkpoint", "nunique"))
    unlisted = ~scores["benchmark"].isin(benchmarks["benchmark"])
    labels = {"benchmarks": "benchmarks with scores, listed or not"} if unlisted.any() else {}
    guessed = (
        "The column `guessed` marks values that no file gave. They come from names and from a table of lm-eval's "
        "tasks. To correct them, edit models.tsv and benchmarks.tsv beside this page and pass them back with --models "
        "and --benchmarks."
    )
    explained = {"guessed": guessed, "studies": "An empty cell in `studies` means all studies."}
    columns = {column for sheet in (models, benchmarks) for column in sheet.dropna(axis=1, how="all")}
    tables = [
        _table("benchmarks", benchmarks.assign(models=benchmarks["benchmark"].map(per_benchmark))),
        _table("models", models.join(per_model, on="model"), **labels),
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


def _table(name: str, sheet: pd.DataFrame, **labels: str) -> Table:
    """The columns in which anything is known, under `labels` or their names in the sheet; numbers as numbers."""
    filled = sheet.dropna(axis=1, how="all").convert_dtypes()
    names = {str(column): str(column) for column in filled} | labels
    return Table(name, name.capitalize(), filled, labels=names, folded=True)


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
        heading = Markup("<h2>{}</h2>").format(NAMES[protocol].capitalize()) if len(protocols) > 1 else ""
        heat = Heat("score", {"other": "{}"}, {"subject": "{}"}, "", {"protocol": protocol}, by_column=True,
                    lower=_lower(sheet))  # fmt: skip
        tables += heading + heat.draw(rows).svg
    note = (
        "The more colour, the better on that benchmark. A score under the pointer, or a row in focus, has its interval."
    )
    return Picture(tables, note)


# ----------------------------------------------------------------------------------------------------------------------
# A reader's own models beside published ones, on the benchmarks that both have.


@dataclass(frozen=True)
class Beside:
    """The reader's own models, and on how many benchmarks scores of others were added."""

    own_models: tuple[str, ...]
    benchmarks: int
    path: Path


def add_beside(scores: pd.DataFrame, path: Path | None) -> tuple[pd.DataFrame, Beside | None]:
    """The scores with those of other models in the table at `path`, on the benchmarks of the scores.

    A model of both tables is the reader's own. Raises InputError where the tables have no benchmark in common.
    """
    if path is None:
        return scores, None
    beside_scores = read_scores(path)
    own_models = tuple(sorted(scores["model"].unique()))
    in_both = beside_scores["benchmark"].isin(scores["benchmark"].unique())
    if not in_both.any():
        raise InputError(
            f"--beside {path}: none of its benchmarks ({', '.join(sorted(beside_scores['benchmark'].unique())[:3])}, "
            "...) is among yours.",
            "benchmarks are matched by their names.",
        )
    added = beside_scores[in_both & ~beside_scores["model"].isin(own_models)]
    joined = pd.concat([frame.dropna(axis=1, how="all") for frame in (scores, added)], ignore_index=True)
    return joined.reindex(columns=SCORES.names), Beside(own_models, added["benchmark"].nunique(), path)


def beside_page(beside: Beside, sources: Sources) -> Page:
    """Where the reader's models stand among the others, by benchmark."""
    matrix = read_score_matrix(sources)
    places = places_table(matrix, beside.own_models)
    mine = places["model"].nunique()
    against = Finding(
        f"{count(mine, 'model')} of yours and {len(matrix.models) - mine} others on "
        f"{count(len(matrix.benchmarks), 'benchmark')}.",
        f"Others: {beside.path.name}. Benchmarks with the same name count as the same. Scores under another "
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
    axis, step = Axis(0, 1, 120, 372), 104 / len(models)
    marks = [ticks(axis, (0, 0.5, 1), 4, 108, ("first", "middle", "last"))]
    for index, model in enumerate(models):
        y = 4 + step * (index + 0.5)
        marks.append(text(0, y + 4, shortened(model, 18), "lab"))
        marks.append(rug(axis, shares[places["model"] == model].tolist(), y - 6, y + 6, "k"))
    best = places.loc[(places["place"] / places["of"]).idxmin()]
    sentence = f"{best['model']} is best with place {best['place']} of {best['of']} on {best['benchmark']}."
    picture = svg(380, 132, f"Places of {count(len(models), 'model')} of yours; {sentence}", *marks)
    basis = f"A tick for each of {count(places['benchmark'].nunique(), 'benchmark')}. Noise is not taken into account."
    return Answer("Where do your models stand?", sentence, picture, basis=basis, link="All places")


def places_table(matrix: ScoreMatrix, own_models: tuple[str, ...]) -> pd.DataFrame:
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
