"""A reader's own models beside published ones (`report --beside`), on the benchmarks that both have."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.pages.page import Answer, Finding, Page, Section, Table
from lm_validity.pages.svg import Axis, rug, shortened, svg, text, ticks
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.tables.schema import DIRECT, SCORES, read_scores
from lm_validity.words import count


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


def beside_page(beside: Beside, scores: Path, models: Path, benchmarks: Path) -> Page:
    """Where the reader's models stand among the others, by benchmark."""
    matrix = read_score_matrix(scores, models, benchmarks)
    places = places_table(matrix, beside.own_models)
    mine = places["model"].nunique()
    against = Finding(
        f"{count(mine, 'model')} of yours and {len(matrix.models) - mine} others on "
        f"{count(len(matrix.benchmarks), 'benchmark')}.",
        basis=f"Others: {beside.path.name}. Benchmarks with the same name count as the same. Scores under another "
        "prompt or with another number of few-shot examples can differ.",
    )
    return Page(
        "beside",
        "Your models beside the others",
        findings=[*_place_findings(places), against],
        answers=[_place_answer(places)] if len(places) else (),
        sections=[
            Section(
                "Scores by benchmark",
                tables=[
                    Table(
                        "places",
                        "Places of your models",
                        places,
                        formats={"score": ".4f", "next_better_score": ".4f"},
                        labels={"of": "of models"},
                        caption="Place 1 is the best. Models with equal scores share the better place.",
                    )
                ],
            )
        ],
    )


def _place_answer(places: pd.DataFrame) -> Answer:
    """A row for each own model, at most seven, with a tick at its place on each benchmark."""
    shares = (places["place"] - 1) / (places["of"] - 1).clip(lower=1)
    models = list(places.groupby("model")["place"].median().sort_values().index)[:7]
    axis, step = Axis(0, 1, 120, 372), 104 / len(models)
    marks = [ticks(axis, (0, 0.5, 1), 4, 108, ("first", "middle", "last"))]
    for index, model in enumerate(models):
        y = 4 + step * (index + 0.5)
        marks.append(text(0, y + 4, shortened(model, 18), "lab"))
        marks.append(rug(axis, shares[places["model"] == model].tolist(), y - 6, y + 6, "k"))
    share = places["place"] / places["of"]
    best, worst = places.loc[share.idxmin()], places.loc[share.idxmax()]
    ends = f"place {best['place']} of {best['of']} on {best['benchmark']}"
    picture = svg(380, 132, f"Places of {count(len(models), 'model')} of yours; the best is {ends}.", *marks)
    sentence = f"{best['model']} is best with {ends}."
    if len(models) == 1 and len(places) > 1:
        sentence = f"{best['model']} has place {best['place']} of {best['of']} at best and {worst['place']} at worst."
    basis = f"A tick for each of {count(places['benchmark'].nunique(), 'benchmark')}. Noise is not taken into account."
    return Answer("Where do your models stand?", sentence, picture, basis=basis, link="All places")


def _place_findings(places: pd.DataFrame) -> list[Finding]:
    """A sentence for each own model: where it stands highest and where lowest."""
    findings = []
    for model, places_of_model in places.groupby("model", sort=False):
        share = places_of_model["place"] / places_of_model["of"]
        highest, lowest = (
            f"{row['place']} of {row['of']} models on {row['benchmark']}"
            for row in (places_of_model.loc[share.idxmin()], places_of_model.loc[share.idxmax()])
        )
        sentence, basis = f"{model} has place {highest}.", ""
        if len(places_of_model) > 1:
            sentence = f"At best, {model} has place {highest}; at worst, place {lowest}."
            basis = f"Places on {count(len(places_of_model), 'benchmark')}, as scored: noise is not taken into account."
        findings.append(Finding(sentence, basis))
    return findings


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
            place_of_model = (1 + len(better), int(np.isfinite(column).sum()))
            following = better[np.argmin(column[better])] if len(better) else None
            next_better = (None, np.nan) if following is None else (matrix.labels[following], values[following, j])
            rows.append((matrix.labels[i], benchmark, values[i, j], *place_of_model, *next_better))
    return pd.DataFrame(rows, columns=columns)
