"""A reader's own models beside published ones, on the benchmarks that both have."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.tables.schema import PROTOCOLS, SCORES, read_scores
from lm_validity.words import count

OWN, OTHERS = "yours", "others"
_COLORS = {OWN: "#d55e00", OTHERS: "#7f7f7f"}


@dataclass(frozen=True)
class Beside:
    """The reader's own models, and on how many benchmarks scores of others were added."""

    own: tuple[str, ...]
    benchmarks: int
    path: Path


def add_beside(scores: pd.DataFrame, path: Path | None) -> tuple[pd.DataFrame, Beside | None]:
    """The scores with those of other models in the table at `path`, on the benchmarks of the scores.

    A model of both tables is the reader's own. Raises InputError where the tables have no benchmark in common.
    """
    if path is None:
        return scores, None
    others = read_scores(path)
    own = tuple(sorted(scores["model"].unique()))
    here = others["benchmark"].isin(scores["benchmark"])
    if not here.any():
        raise InputError(
            f"--beside {path}: none of its benchmarks ({', '.join(sorted(others['benchmark'].unique())[:3])}, ...) is "
            "among yours.",
            "benchmarks are matched by their names.",
        )
    added = others[here & ~others["model"].isin(own)]
    joined = pd.concat([frame.dropna(axis=1, how="all") for frame in (scores, added)], ignore_index=True)
    return joined.reindex(columns=SCORES.names), Beside(own, added["benchmark"].nunique(), path)


def beside_page(beside: Beside, scores: Path, models: pd.DataFrame, benchmarks: pd.DataFrame) -> Page:
    """Where the reader's models stand among the others, by benchmark."""
    matrix = read_score_matrix(scores, scores.with_name("models.tsv"), scores.with_name("benchmarks.tsv"))
    protocol = PROTOCOLS[0]
    places = places_table(matrix, beside.own, protocol)
    frame = _scores_frame(matrix, beside.own, protocol)
    chart = figures.strip(
        frame,
        y="benchmark",
        value="score",
        title="Score",
        y_order=list(matrix.benchmarks),
        color=figures.listed_color("whose", _COLORS),
        tooltip=figures.tooltips(model="Model", benchmark="Benchmark", score="Score|.4f"),
    )
    models_with = places["model"].nunique()
    against = Finding(
        f"{count(models_with, 'model')} of yours and {len(matrix.models) - models_with} others on "
        f"{count(len(matrix.benchmarks), 'benchmark')}.",
        basis=f"Others: {beside.path.name}. Benchmarks with the same name count as the same. Scores under another "
        "prompt or with another number of solved examples can differ.",
    )
    return Page(
        "beside",
        "Your models beside the others",
        findings=[*_place_findings(places), against],
        sections=[
            Section(
                "Scores by benchmark",
                figures=[Figure("beside_scores", "Every model's score", chart, wide=True)],
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


def _place_findings(places: pd.DataFrame) -> list[Finding]:
    """A sentence for each own model: where it stands highest and where lowest."""
    findings = []
    for model, own in places.groupby("model", sort=False):
        highest, lowest = (own.loc[found(own["place"] / own["of"])] for found in (pd.Series.idxmin, pd.Series.idxmax))
        ends = [f"{one['place']} of {one['of']} models on {one['benchmark']}" for one in (highest, lowest)]
        others = f" at best and {ends[1]} at worst" if len(own) > 1 else ""
        basis = (
            f"Places on {count(len(own), 'benchmark')}, as scored: noise is not taken into account." if others else ""
        )
        findings.append(Finding(f"{model} has place {ends[0]}{others}.", basis))
    return findings


def places_table(matrix: ScoreMatrix, own: tuple[str, ...], protocol: str) -> pd.DataFrame:
    """A row for each own model and benchmark with a score: its place among all models, and the next better one."""
    oriented, values = matrix.oriented(protocol), matrix.value[protocol]
    rows = []
    for j, benchmark in enumerate(matrix.benchmarks):
        column = oriented[:, j]
        for i in np.flatnonzero(np.isin(matrix.models, own) & np.isfinite(column)):
            better = np.flatnonzero(column > column[i])
            next_better = better[np.argmin(column[better])] if len(better) else None
            rows.append(
                {
                    "model": matrix.labels[i],
                    "benchmark": benchmark,
                    "score": values[i, j],
                    "place": 1 + len(better),
                    "of": int(np.isfinite(column).sum()),
                    "next_better": None if next_better is None else matrix.labels[next_better],
                    "next_better_score": np.nan if next_better is None else values[next_better, j],
                }
            )
    columns = ["model", "benchmark", "score", "place", "of", "next_better", "next_better_score"]
    return pd.DataFrame(rows, columns=columns)


def _scores_frame(matrix: ScoreMatrix, own: tuple[str, ...], protocol: str) -> pd.DataFrame:
    values = matrix.value[protocol]
    rows = [
        {
            "model": matrix.labels[i],
            "benchmark": benchmark,
            "score": values[i, j],
            "whose": OWN if matrix.models[i] in own else OTHERS,
        }
        for j, benchmark in enumerate(matrix.benchmarks)
        for i in np.flatnonzero(np.isfinite(values[:, j]))
    ]
    return pd.DataFrame(rows, columns=["model", "benchmark", "score", "whose"]).sort_values("whose")
