"""The ranking report: which model is best on a benchmark, which are not separated, and which gaps are found."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.pages.page import Answer, Finding, Lede, Page
from lm_validity.pages.svg import KINDS, NAMES, points
from lm_validity.results.put import Column, Rows
from lm_validity.results.sections import Dots, Says, SectionOf, Series, TableOf, write_rows
from lm_validity.studies.items.answers import (
    CELL,
    answers_matrix,
    cell_scores,
    mean_items,
    model_answers,
    model_scores,
    noise_of_runs,
    unlike_items,
    with_copies,
)
from lm_validity.studies.items.compare import compared_cells
from lm_validity.studies.items.statistics import LEVEL, NO_TEST, holm_over_pairs, may_be_best, p_by_errors, paired_tests
from lm_validity.tables.counted import Sources
from lm_validity.tables.metrics import PERPLEXITY
from lm_validity.tables.schema import trained_here
from lm_validity.words import Missing, Reason, ReasonCode, count, decimal, explain_protocols, known, listing

MOST_ROWS = 60  # that the picture shows
UNKNOWN = Missing(
    Reason("The first model and the others have neither common items nor standard errors.", ReasonCode.NO_ERRORS)
)

NO_ERROR = Missing(Reason("The score has no standard error.", ReasonCode.NO_ERRORS))
NO_GAP = Missing(Reason("It is the first model.", ReasonCode.NONE))


class Ranking(NamedTuple):
    """The rows, and what a page needs beside them. places: the benchmarks with their protocols, corpora last;
    in_points: those of them whose scores are fractions."""

    rows: Rows
    places: list[tuple[str, str]]
    in_points: set[tuple[str, str]]
    notes: tuple[str, ...]
    trained_here: bool


def report_ranking(sources: Sources, output: str | Path, only: Collection[str] = (), study: str | None = None) -> None:
    """Write results, tables and the page of the ranking report under `output`. The other arguments are those of
    `rank_models`. Raises InputError as that."""
    ranking = rank_models(sources, only, study)
    write_rows(ranking_page(ranking), ranking.rows, output)


# ----------------------------------------------------------------------------------------------------------------------
# What is found on each benchmark.


def rank_models(sources: Sources, only: Collection[str] = (), study: str | None = None) -> Ranking:
    """The models by score on every benchmark and protocol, with what tests of all pairs say.

    only: the models that are ranked, by default all. study: benchmarks of other studies, or of none, stay out.

    Raises InputError as `count_scores`.
    """
    counted = model_scores(sources, only, study=study)
    raw = None if sources.items is None else model_answers(sources.items, counted.rows)
    answers = {} if raw is None else dict(iter(mean_items(raw).groupby(CELL)))
    sampled = {} if raw is None else dict(iter(raw[raw["run"].notna()].groupby(CELL)))
    cells = cell_scores(counted)
    corpora = set(counted.benchmarks.loc[counted.benchmarks["output_type"] == PERPLEXITY, "benchmark"])
    places = sorted({key[1:] for key in cells.index}, key=lambda place: (place[0] in corpora, *place))
    rows, notes = Rows("ranking"), list(counted.notes)
    for place in places:
        of_place = cells.xs(place, level=(1, 2), drop_level=False)
        notes += _rank(rows.of(subject=place[0], protocol=place[1]), of_place, answers, sampled)
    in_points = {place for place in places if cells.xs(place, level=(1, 2))["in_points"].all()}
    return Ranking(rows, places, in_points, tuple(notes), trained_here(counted.rows))


def _rank(
    at: Rows,
    cells: pd.DataFrame,
    answers: Mapping[tuple[str, str, str], pd.DataFrame],
    sampled: Mapping[tuple[str, str, str], pd.DataFrame],
) -> Iterator[str]:
    """Put the rows of one benchmark and protocol, and say what its tests do not cover. cells: as `cell_scores` gives
    them; answers, sampled: items, and the answers of several runs, by cell."""
    oriented = (cells["value"] * cells["better"]).to_numpy(dtype=float)
    order = np.lexsort((cells.index.get_level_values("model"), -oriented))
    cells, oriented = cells.iloc[order], oriented[order]
    items, raw = [answers.get(cell) for cell in cells.index], [sampled.get(cell) for cell in cells.index]
    names, benchmark = cells.index.get_level_values("model").tolist(), cells.index[0][1]
    scores, errors = cells["value"].to_numpy(dtype=float), cells["stderr"].to_numpy(dtype=float)

    p, detectable = p_by_errors(scores, errors)
    matrix = answers_matrix(items, scores)
    noises = [None if rows is None else noise_of_runs(rows, matrix.documents) for rows in raw]
    of_items = paired_tests(float(cells["better"].iloc[0]) * matrix.correct, matrix.subjects, noises)
    shared = of_items.items > 0
    p, detectable = np.where(shared, of_items.p, p), np.where(shared, of_items.detectable, detectable)
    adjusted = holm_over_pairs(p)
    first, second = np.triu_indices(len(cells), 1)
    tested, sizes = np.isfinite(p[first, second]), detectable[first, second]
    n_tested, n_paired, sizes = int(tested.sum()), int(shared[first, second].sum()), sizes[np.isfinite(sizes)]
    in_set, with_first = may_be_best(p), int(np.isfinite(p[0]).sum())

    at.put("models", len(cells), "models")
    at.put("first", names[0], "text")
    at.put("may_be_best", int(in_set.sum()) if with_first else UNKNOWN, "models", counted=("models", len(cells)))
    at.put("pairs", len(first), "pairs")
    at.put("tested_pairs", n_tested, "pairs")
    at.put("paired_pairs", n_paired, "pairs")
    separated = int((adjusted < LEVEL)[first, second].sum()) if n_tested else NO_TEST
    at.put("separated_pairs", separated, "pairs", counted=("tested", n_tested))
    gap = float(np.median(sizes)) if len(sizes) else NO_TEST
    at.put("smallest_detectable", gap, "score", counted=("tested", n_tested))
    reach = float(stats.norm.ppf(1 - LEVEL / 2)) * errors
    for index, name in enumerate(names):
        of_model, error = at.of(other=name), float(reach[index])
        ends = (scores[index] - error, scores[index] + error) if np.isfinite(error) else NO_ERROR
        of_model.put("place", int(1 + (oriented > oriented[index]).sum()), "rank")
        of_model.put("score", float(scores[index]), "score", {"items": ends})
        of_model.put("model_may_be_best", float(in_set[index]) if with_first else UNKNOWN, "yes_or_no")
        if not index:
            of_model.put("behind_first", NO_GAP, "score", {"items": NO_GAP})
            of_model.put("behind_first_p_adjusted", NO_GAP, "probability")
            continue
        pair = [items[index], items[0]], [raw[index], raw[0]]
        behind = compared_cells(cells.iloc[index], cells.iloc[0], *pair)
        interval = behind.paired.interval if behind.paired else behind.tested.interval() if behind.tested else NO_TEST
        of_model.put("behind_first", behind.change, "score", {"items": interval})
        p_best = known(float(np.minimum(1.0, p[0, index] * with_first)), NO_TEST.reason)
        of_model.put("behind_first_p_adjusted", p_best, "probability")
        of_model.put("test", behind.test, "text")
    if n_paired and (unlike := unlike_items(items)):
        yield (
            f"Models did not answer the same items on {benchmark} ({unlike} to all). Scores are of all that a model "
            "answered, tests of those that both models answered."
        )
    if 0 < n_tested < len(first):
        yield f"Without a test on {benchmark}: {count(len(first) - n_tested, 'pair')} of models."
    if n_tested > n_paired:
        yield (
            "Unpaired test by standard errors, since there are no answers item by item; it is conservative: "
            f"{count(n_tested - n_paired, 'pair')} of models on {benchmark}."
        )


# ----------------------------------------------------------------------------------------------------------------------
# The page.

RULE = (
    "May be best: after Bonferroni's correction, 5% level. Intervals: 95%, each by itself, so overlaps decide nothing. "
)
MODELS = SectionOf(
    "Every model",
    Says("model_may_be_best", "{subject}{above} of {count:model} may be best.", by={"subject": {}}),
    TableOf(
        "models",
        {"subject": "benchmark", "protocol": "protocol", "other": "model"},
        {
            "place": Column("place", "place", ".0f"),
            **Column("score", "score", ".4f").with_ends("score"),
            "may_be_best": Column("model_may_be_best", "may be best", ".0f"),
            **Column("behind_first", "behind the first", "+.4f").with_ends("behind"),
            "p_adjusted": Column("behind_first_p_adjusted", "adjusted p", "p"),
            "test": Column("test", "test"),
        },
        "Models, best first",
    ),
    hint="scores, intervals, distance to the first",
    explanation="A model may be best unless its distance to the first one is significant: two-sided, 5%, after "
    "Bonferroni's correction for all tests with the first. The truly best model is left out of them in at most "
    "2.5% of samples of items. On common items the test is McNemar's or the paired t test, else it is by standard "
    "errors. The intervals here are 95% each by itself.",
)


def ranking_page(ranking: Ranking) -> Page:
    """The page: who may be best, each model with its interval, how many pairs are separated."""
    rows, first = ranking.rows, ranking.places[0]
    ledes = {place: _lede(ranking, *place) for place in ranking.places}
    picture = _picture(ranking, first, MOST_ROWS)
    findings = [
        Finding(f"{benchmark}, {NAMES[protocol]}: {sentence}.")
        for (benchmark, protocol), lede in ledes.items()
        for sentence in (lede.heading, lede.sentence)
    ]
    known_best = rows.row("may_be_best", subject=first[0], protocol=first[1])
    rule = RULE if known_best is not None and known_best.value is not None else ""
    heading = ledes[first].heading
    return Page(
        name="ranking",
        title="Ranking",
        question="Which model is best, which are not separated, and which gaps can be detected? "
        + explain_protocols({protocol for _, protocol in ranking.places}, trained_here=ranking.trained_here),
        findings=findings,
        sections=[MODELS.drawn(rows)],
        notes=ranking.notes,
        lede=with_copies(ledes[first], ranking.notes),
        picture=picture.draw(rows),
        answers=[
            Answer(
                "Which model is best?",
                heading if heading.endswith("?") else f"{heading}.",
                _picture(ranking, first, 7).draw(rows).svg,
                basis=f"{rule}{ledes[first].sentence}.",
                link="All models",
            )
        ],
    )


def _picture(ranking: Ranking, place: tuple[str, str], most: int) -> Dots:
    """The models of a benchmark, best first."""
    benchmark, protocol = place
    series = Series("score", {"other": "{}"}, {"subject": benchmark, "protocol": protocol}, KINDS[protocol])
    label = f"Scores on {benchmark} with their 95% intervals, best first. Intervals that overlap decide nothing"
    scores = [row.value or 0.0 for row in ranking.rows.all("score", **series.where)]
    least_first, unit = scores[0] < scores[-1], "share" if place in ranking.in_points else ""
    return Dots([series], label, sorted=not least_first, rising=least_first, most=most, zero=False, unit=unit)


def _lede(ranking: Ranking, benchmark: str, protocol: str) -> Lede:
    """Of a benchmark: how many may be best, which pairs are separated, and the gap that is found."""
    rows, place = ranking.rows, {"subject": benchmark, "protocol": protocol}
    models, best = int(rows.value("models", **place)), rows.value("may_be_best", **place)
    first = next(row for row in rows.all("first", **place)).text or ""
    name, tied = first.rsplit("/", 1)[-1], sum(row.value == 1 for row in rows.all("place", **place)) - 1
    leads = f"{name} and {tied} more score highest" if tied else f"{name} scores highest"
    if np.isnan(best):
        they = "they" if tied else "it"
        return Lede(
            f"Which model is best on {benchmark} is not known",
            f"{leads}, but {they} and the others have neither common items nor standard errors: bring either",
        )
    in_set = [str(row.other) for row in rows.all("model_may_be_best", **place) if row.value]
    heading = f"{int(best)} of {count(models, 'model')} may be best on {benchmark}; {leads}"
    if best == 1:
        heading = f"{name} is best of {count(models, 'model')} on {benchmark}"
    elif best == models:
        heading = f"Any of the {models} models may be best on {benchmark}"
    separated, tested = rows.value("separated_pairs", **place), int(rows.value("tested_pairs", **place))
    gap, in_points = rows.value("smallest_detectable", **place), (benchmark, protocol) in ranking.in_points
    size = f"{points(gap, 1)} points" if in_points else decimal(gap, 3)
    detects = "the smallest detectable gap is not known"
    if np.isfinite(gap):
        detects = f"a test of two models alone detects a gap of {size} with 80% power"
    sentence = f"Best may be {listing(in_set, 4)}; {separated:.0f} of {count(tested, 'pair')} are separated; {detects}"
    return Lede(heading, sentence)
