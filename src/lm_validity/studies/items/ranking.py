"""The ranking report: which model is best on one benchmark, which are not separated, and which gaps are found."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup
from scipy import stats

from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, is_known, known, number
from lm_validity.pages import svg
from lm_validity.pages.figures import PROTOCOL_LABELS
from lm_validity.pages.page import Answer, Finding, Lede, Page, Picture, Section, Table
from lm_validity.pages.svg import KINDS
from lm_validity.results.files import write_report
from lm_validity.results.summary import page_only
from lm_validity.statistics import holm
from lm_validity.studies.items.answers import CELL, answers_matrix, cell_scores, model_items, model_scores
from lm_validity.studies.items.compare.numbers import NO_TEST, compared_cells
from lm_validity.studies.items.statistics import LEVEL, POWER, paired_tests
from lm_validity.tables.counted import PERPLEXITY
from lm_validity.tables.schema import trained_here
from lm_validity.tables.sheets import unique_labels
from lm_validity.words import count, decimal, explain_protocols, listing

MOST_PAIRS = 2000  # that are listed
MOST_ROWS = 60  # models that the picture shows
FACTOR = float(stats.norm.ppf(1 - LEVEL / 2) + stats.norm.ppf(POWER))
UNKNOWN = Missing(
    Reason("The first model and the others have neither common items nor standard errors.", ReasonCode.NO_ERRORS)
)
NO_ERROR = Missing(Reason("The score has no standard error.", ReasonCode.NO_ERRORS))
NO_GAP = Missing(Reason("It is the first model.", ReasonCode.NONE))


# ----------------------------------------------------------------------------------------------------------------------
# Statistics: arrays in, arrays out.


def p_by_errors(scores: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(p, detectable), both (M, M) and symmetric, of all pairs of M scores with standard errors, as if independent.

    p = 2 P(Z > |x_i - x_j| / √(se_i² + se_j²)); detectable = (z(.975) + z(.8)) √(se_i² + se_j²), the gap that this test
    by itself finds four times out of five. NaN where an error is unknown or both are 0, and on the diagonal.
    """
    gaps, error = np.abs(scores[:, None] - scores), np.hypot(errors[:, None], errors)
    error = np.where((error > 0) & ~np.eye(len(scores), dtype=bool), error, np.nan)
    return 2 * stats.norm.sf(gaps / error), FACTOR * error


def holm_over_pairs(p: np.ndarray) -> np.ndarray:
    """p (M, M) adjusted by Holm over the known pairs above the diagonal; symmetric, NaN where unknown."""
    first, second = np.triu_indices(len(p), 1)
    values = p[first, second]
    tested = np.isfinite(values)
    adjusted = np.full(p.shape, np.nan)
    adjusted[first[tested], second[tested]] = holm(values[tested])
    adjusted[second, first] = adjusted[first, second]
    return adjusted


def may_be_best(p: np.ndarray) -> np.ndarray:
    """(M,) whether each model may be the best, the one of the highest score first in p (M, M).

    Out are those that differ from the first at 5% after Bonferroni's correction for the tests with it. The truly best
    one is out in at most 2.5% of samples: this takes one of at most M - 1 two-sided tests at 5% / (M - 1) to be wrong
    on one side, whichever model comes first. A model without a test stays in.
    """
    with_first = p[0]
    tested = int(np.isfinite(with_first).sum())
    return ~(np.nan_to_num(with_first, nan=1.0) * tested < LEVEL)


# ----------------------------------------------------------------------------------------------------------------------
# What is found on a benchmark.


@dataclass(frozen=True)
class RankedModel:
    """A model on a benchmark: its place (equal scores share the better one), score with its 95% interval, and how far
    it is behind the first one (95% interval, p and p after Bonferroni's correction for all tests with the first)."""

    benchmark: str
    protocol: str
    model: str
    place: int
    score: float
    score_interval: tuple[float, float] | Missing
    may_be_best: bool | Missing
    behind: float | Missing
    behind_interval: tuple[float, float] | Missing
    p: float | Missing
    p_adjusted: float | Missing
    test: str | None


@dataclass(frozen=True)
class RankedPair:
    """Two models on a benchmark, `first` with the higher place. p_adjusted: Holm's, over the tested pairs."""

    benchmark: str
    protocol: str
    first: str
    second: str
    difference: float
    p: float | Missing
    p_adjusted: float | Missing
    separated: bool | Missing
    smallest_detectable: float | Missing


@dataclass(frozen=True)
class Ranked:
    """A benchmark under a protocol. may_be_best: how many models; first: the one of the highest score. pairs: of
    models; tested, paired: of them, paired on common items. smallest_detectable: the median over tested pairs."""

    benchmark: str
    protocol: str
    metric: str | None
    models: int
    first: str
    may_be_best: int | Missing
    pairs: int
    tested: int
    paired: int
    separated: int | Missing
    smallest_detectable: float | Missing
    in_points: bool = page_only(default=True)  # the scores are fractions


@dataclass(frozen=True)
class RankingSummary:
    """What the ranking report found: models by benchmark, who may be best, and the notes that go with it."""

    benchmarks: tuple[Ranked, ...]
    ranked: tuple[RankedModel, ...]
    pairs: tuple[RankedPair, ...]
    notes: tuple[str, ...]


def report_ranking(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    items: str | Path | None = None,
    *,
    only: Collection[str] = (),
    study: str | None = None,
) -> None:
    """Write summary.json, results, tables and the page of the ranking report under `output`.

    only: the models that are ranked, by default all. study: benchmarks of other studies, or of none, stay out.

    Raises InputError as `count_scores`.
    """
    counted = model_scores(scores, only, benchmarks, models, study=study)
    answers = {} if items is None else dict(iter(model_items(items, counted.rows).groupby(CELL)))
    cells = cell_scores(counted)
    corpora = set(counted.benchmarks.loc[counted.benchmarks["output_type"] == PERPLEXITY, "benchmark"])
    places = sorted(
        {key[1:] for key in cells.index}, key=lambda protocol_place: (protocol_place[0] in corpora, *protocol_place)
    )
    parts = [_rank(cells.xs(protocol_place, level=(1, 2), drop_level=False), answers) for protocol_place in places]
    benchmarks_found = tuple(part[0] for part in parts)
    notes = list(counted.notes)
    for entry in benchmarks_found:
        if 0 < entry.tested < entry.pairs:
            notes.append(f"Without a test on {entry.benchmark}: {count(entry.pairs - entry.tested, 'pair')} of models.")
        if entry.tested > entry.paired:
            notes.append(
                f"By standard errors, as if the models had answered different items, which is mostly too cautious: "
                f"{count(entry.tested - entry.paired, 'pair')} of models on {entry.benchmark}."
            )
        if entry.pairs > MOST_PAIRS:
            notes.append(f"The first {MOST_PAIRS} of {entry.pairs} pairs of models on {entry.benchmark} are listed.")
    ranked = tuple(model for part in parts for model in part[1])
    summary = RankingSummary(benchmarks_found, ranked, tuple(pair for part in parts for pair in part[2]), tuple(notes))
    write_report(ranking_page(summary, own_prompts=trained_here(counted.rows)), summary, output)


def _rank(
    cells: pd.DataFrame, answers: Mapping[tuple[str, str, str], pd.DataFrame]
) -> tuple[Ranked, list[RankedModel], list[RankedPair]]:
    """Of one benchmark and protocol: `cells` as `cell_scores` gives them, `answers` the items by cell."""
    oriented = cells["value"] * cells["better"]
    cells = cells.iloc[np.lexsort((cells.index.get_level_values("model"), -oriented.to_numpy()))]
    names = cells.index.get_level_values("model").tolist()
    _, benchmark, protocol = cells.index[0]
    where = (str(benchmark), str(protocol))
    values = (cells["value"] * cells["better"]).to_numpy(dtype=float)
    p, detectable = p_by_errors(values, cells["stderr"].to_numpy(dtype=float))
    of_cells = [answers.get((model, *where)) for model in names]
    correct, subjects = answers_matrix(of_cells, cells["value"].to_numpy(dtype=float))
    of_items = paired_tests(float(cells["better"].iloc[0]) * correct, subjects)
    shared = of_items[2] > 0
    p, detectable = np.where(shared, of_items[0], p), np.where(shared, of_items[1], detectable)
    paired = int(np.triu(shared, 1).sum())
    compared = {
        (0, i): compared_cells(*where, cells.iloc[0], cells.iloc[i], [of_cells[0], of_cells[i]])
        for i in range(1, len(names))
    }
    adjusted, in_set = holm_over_pairs(p), may_be_best(p)
    with_first = int(np.isfinite(p[0]).sum())
    models = [
        RankedModel(
            *where,
            model,
            int(1 + (values > values[i]).sum()),
            float(cells["value"].iloc[i]),
            _interval(float(cells["value"].iloc[i]), float(cells["stderr"].iloc[i])),
            bool(in_set[i]) if with_first else UNKNOWN,
            compared[0, i].difference if i else NO_GAP,
            compared[0, i].interval if i else NO_GAP,
            compared[0, i].p if i else NO_GAP,
            known(float(np.minimum(1.0, p[0, i] * with_first)), NO_TEST.reason) if i else NO_GAP,
            compared[0, i].test if i else None,
        )
        for i, model in enumerate(names)
    ]
    first, second = np.triu_indices(len(names), 1)
    tested = np.isfinite(p[first, second])
    separated = adjusted < LEVEL
    pairs = [
        RankedPair(
            *where,
            names[i],
            names[j],
            float(values[i] - values[j]),
            known(float(p[i, j]), NO_TEST.reason),
            known(float(adjusted[i, j]), NO_TEST.reason),
            bool(separated[i, j]) if np.isfinite(adjusted[i, j]) else NO_TEST,
            known(float(detectable[i, j]), NO_TEST.reason),
        )
        for i, j in zip(first[:MOST_PAIRS], second[:MOST_PAIRS], strict=True)
    ]
    sizes = detectable[first, second]
    sizes = sizes[np.isfinite(sizes)]
    metric = cells["metric"].iloc[0]
    summary = Ranked(
        *where,
        metric,
        len(names),
        names[0],
        int(in_set.sum()) if with_first else UNKNOWN,
        len(first),
        int(tested.sum()),
        paired,
        int(separated[first, second].sum()) if tested.any() else NO_TEST,
        float(np.median(sizes)) if len(sizes) else NO_TEST,
        bool(cells["in_points"].all()),
    )
    return summary, models, pairs


def _interval(value: float, error: float) -> tuple[float, float] | Missing:
    """95%, normal."""
    if not np.isfinite(error):
        return NO_ERROR
    reach = float(stats.norm.ppf(1 - LEVEL / 2)) * error
    return value - reach, value + reach


# ----------------------------------------------------------------------------------------------------------------------
# The page.


def ranking_page(summary: RankingSummary, *, own_prompts: bool = False) -> Page:
    """The page: who may be best, each model with its interval, each pair separated or not."""
    lede, first = _lede(summary), summary.benchmarks[0]
    return Page(
        name="ranking",
        title="Ranking",
        question="Which model is best, which are not separated, and which gaps are found? "
        + explain_protocols({ranked.protocol for ranked in summary.benchmarks}, own=own_prompts),
        findings=[Finding(sentence) for ranked in summary.benchmarks for sentence in _sentences(summary, ranked)],
        sections=[_model_section(summary), _pair_section(summary)],
        notes=summary.notes,
        lede=lede,
        picture=_picture(summary),
        answers=[
            Answer(
                "Which model is best?",
                f"{lede.heading}.",
                _small_svg(summary, first),
                basis="May be best: after Bonferroni's correction, 5% level. Intervals: 95%, each by itself, so "
                f"overlaps decide nothing. {lede.sentence}.",
                link="All models",
            )
        ],
    )


def _gap_words(ranked: Ranked) -> str | None:
    """The smallest gap that is found, in the unit of the benchmark's scores; None where it is not known."""
    if not is_known(ranked.smallest_detectable):
        return None
    size = number(ranked.smallest_detectable)
    return f"{svg.points(size, 1)} points" if ranked.in_points else decimal(size, 3)


def _models_of(summary: RankingSummary, ranked: Ranked) -> list[RankedModel]:
    return [
        model for model in summary.ranked if (model.benchmark, model.protocol) == (ranked.benchmark, ranked.protocol)
    ]


def _lede(summary: RankingSummary) -> Lede:
    """Of the first benchmark: how many may be best, and the gap that is found."""
    ranked = summary.benchmarks[0]
    first = ranked.first.rsplit("/", 1)[-1]
    if isinstance(ranked.may_be_best, Missing):
        return Lede(
            f"Not known: which model is best on {ranked.benchmark}?",
            f"{first} scores highest, but it and the others have neither common items nor standard errors",
        )
    heading = f"{ranked.may_be_best} of {count(ranked.models, 'model')} may be best on {ranked.benchmark}; "
    heading += f"{first} scores highest"
    if ranked.may_be_best == 1:
        heading = f"{first} is best of {count(ranked.models, 'model')} on {ranked.benchmark}"
    elif ranked.may_be_best == ranked.models:
        heading = f"Any of the {ranked.models} models may be best on {ranked.benchmark}"
    size = _gap_words(ranked)
    gap = "Which gap is found is not known" if size is None else f"A test of two models alone finds a gap of {size}"
    return Lede(heading, gap if size is None else f"{gap} four times out of five")


def _sentences(summary: RankingSummary, ranked: Ranked) -> list[str]:
    """Who may be best, and how many pairs are separated."""
    where = f"{ranked.benchmark}, {PROTOCOL_LABELS[ranked.protocol].lower()}"
    if isinstance(ranked.may_be_best, Missing):
        return [f"Which model is best on {where} is not known. {ranked.may_be_best.reason}"]
    best = [model.model for model in _models_of(summary, ranked) if model.may_be_best is True]
    size = _gap_words(ranked)
    gap = (
        ""
        if size is None
        else (f" A gap of {size} is found four times out of five, by one test alone (median over pairs).")
    )
    return [
        f"Best on {where} may be {listing(best)}.",
        f"{ranked.separated} of {count(ranked.tested, 'tested pair')} of models on {where} are separated after Holm's "
        f"correction.{gap}",
    ]


def _model_section(summary: RankingSummary) -> Section:
    rows = [
        {name: value for name, value in vars(model).items() if not name.endswith("_interval")}
        | as_columns(model.score_interval)
        | as_columns(model.behind_interval, "behind_low", "behind_high")
        for model in summary.ranked
    ]
    columns = ["benchmark", "protocol", "place", "model", "score", "low", "high", "may_be_best", "behind"]
    columns += ["behind_low", "behind_high", "p", "p_adjusted", "test"]
    table = Table(
        "models",
        "Models, best first",
        pd.DataFrame(rows)[columns].replace({"protocol": PROTOCOL_LABELS}),
        formats=dict.fromkeys(["score", "low", "high"], ".4f")
        | dict.fromkeys(["behind", "behind_low", "behind_high"], "+.4f")
        | dict.fromkeys(["p", "p_adjusted"], "p"),
        labels={"low": "95% from", "high": "to", "may_be_best": "may be best", "behind": "behind the first"}
        | {"behind_low": "95% from (behind)", "behind_high": "to (behind)", "p_adjusted": "adjusted p"},
    )
    return Section(
        "Every model",
        hint="scores, intervals, distance to the first",
        explanation="A model may be best unless its distance to the first one is significant: two-sided, 5%, after "
        "Bonferroni's correction for all tests with the first. The truly best model is left out of them in at most "
        "2.5% of samples of items. On common items the test is McNemar's or the paired t test, else it is by standard "
        "errors. The intervals here are 95% each by itself.",
        tables=[table],
    )


def _pair_section(summary: RankingSummary) -> Section:
    table = Table(
        "pairs",
        "Pairs of models",
        pd.DataFrame([vars(pair) for pair in summary.pairs]).replace({"protocol": PROTOCOL_LABELS}),
        formats={"difference": "+.4f", "smallest_detectable": ".4f"} | dict.fromkeys(["p", "p_adjusted"], "p"),
        labels={"p_adjusted": "adjusted p", "smallest_detectable": "smallest gap found"},
        folded=True,
    )
    return Section(
        "Every pair: separated or not",
        hint="after Holm's correction over all pairs",
        explanation="Separated: adjusted p below 0.05 (Holm 1979, over all tested pairs). Smallest gap found: the "
        "difference that the pair's test by itself finds four times out of five. Not separated is not equal.",
        tables=[table],
    )


def _picture(summary: RankingSummary) -> Picture:
    """A row for each model: its score on its 95% interval; large dots may be best."""
    drawn = [
        _rows_svg(summary, ranked, *size)
        for ranked in summary.benchmarks
        for size in ((1180, 230, "w640"), (380, 118, "n640"))
    ]
    note = (
        "Scores with their 95% intervals, best first. Large dots: may be best. Intervals that overlap decide nothing."
    )
    if any(ranked.models > MOST_ROWS for ranked in summary.benchmarks):
        note += f" The first {MOST_ROWS} models."
    return Picture(Markup("").join(drawn), note)


def _rows_svg(summary: RankingSummary, ranked: Ranked, width: float, room: float, kind: str) -> Markup:
    models = _models_of(summary, ranked)[:MOST_ROWS]
    labels = _labels(models)
    ends = [end for model in models if isinstance(model.score_interval, tuple) for end in model.score_interval]
    all_ends = [*ends, *(model.score for model in models)]
    axis = svg.Axis(min(all_ends), max(all_ends), room, width - 16)
    height, values = 30 + 23 * len(models) + 24, svg.round_values(axis.low, axis.high, 10 if width > 500 else 5)
    written = (
        [words.lstrip("+") for words in svg.written_points(values)] if ranked.in_points else [f"{v:g}" for v in values]
    )
    marks = [
        svg.text(
            4, 14, svg.shortened(f"{ranked.benchmark}, {svg.NAMES[ranked.protocol]}", int((width - 8) / 6.4)), "lab"
        ),
        *(svg.box(0, 24 + 23 * index, width, 23, "zone") for index in range(1, len(models), 2)),
        svg.ticks(axis, values, 24, 24 + 23 * len(models), written),
    ]
    for index, (model, label) in enumerate(zip(models, labels, strict=True)):
        y = 24 + 23 * (index + 0.5)
        interval = model.score_interval if isinstance(model.score_interval, tuple) else None
        marks.append(svg.text(4, y + 4, svg.shortened(label, int(room / 6.4)), "lab"))
        marks.append(svg.whisker(axis, interval, y, KINDS[ranked.protocol]))
        marks.append(svg.dot(axis(model.score), y, KINDS[ranked.protocol], 4.2 if model.may_be_best is True else 2.6))
    description = "; ".join(
        f"{label} {decimal(model.score, 3)}{_ends(model)}" for model, label in zip(models, labels, strict=True)
    )
    return svg.svg(width, height, f"Scores on {ranked.benchmark} with 95% intervals: {description}.", *marks, kind=kind)


def _small_svg(summary: RankingSummary, ranked: Ranked) -> Markup:
    """The first seven models for the first page of a site."""
    models = _models_of(summary, ranked)[:7]
    rows = [
        (label, model.score, model.score_interval if isinstance(model.score_interval, tuple) else None)
        for label, model in zip(_labels(models), models, strict=True)
    ]
    all_values = [value for _, score, ends in rows for value in (score, *(ends or ()))]
    values = svg.round_values(min(all_values), max(all_values), 4)
    written = (
        [words.lstrip("+") for words in svg.written_points(values)] if ranked.in_points else [f"{v:g}" for v in values]
    )
    description = "; ".join(f"{model.model} {decimal(model.score, 3)}{_ends(model)}" for model in models)
    return svg.named_rows(f"Scores on {ranked.benchmark} with 95% intervals: {description}.", rows, values, written)


def _labels(models: list[RankedModel]) -> list[str]:
    names = pd.Series([model.model for model in models])
    return list(unique_labels(names.str.rsplit("/", n=1).str[-1], names))


def _ends(model: RankedModel) -> str:
    if not isinstance(model.score_interval, tuple):
        return ""
    return f" ({' to '.join(decimal(end, 3) for end in model.score_interval)})"
