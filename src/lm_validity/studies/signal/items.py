"""What a benchmark's items add: resampled curves, other item scores, filters on trial, subjects and answer
lengths."""

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from lm_validity.studies.agreement.score_matrix import listing
from lm_validity.studies.signal.filters.base import Candidates, ItemFilter, missing_for, model_scores, with_scores_only
from lm_validity.studies.signal.filters.held_out import folds_by_design, judge
from lm_validity.studies.signal.filters.learning import PositiveSlope, TopShare
from lm_validity.studies.signal.filters.lengths import answer_lengths, length_dependence, length_strata
from lm_validity.studies.signal.scores import Design, Options, Values, mean_of_known
from lm_validity.studies.signal.statistics.compliance import compliance, exchanged_curves
from lm_validity.studies.signal.statistics.items import METRICS
from lm_validity.studies.signal.statistics.quality import signal_quality
from lm_validity.studies.signal.statistics.resampling import (
    Interval,
    draw_items,
    resample_item_means,
    resampling_interval,
)
from lm_validity.studies.signal.statistics.splits import FilterTrial
from lm_validity.tables.item_arrays import BenchmarkItems

CONTROLS = 200  # random choices of the same size beside every filter
STRATA = 5  # groups of gold answers of similar length
SUBGROUP_RESAMPLES = 200
MINIMUM_SUBGROUP = 10  # items; a curve of fewer is mostly ties

# Name on the page, the filter, the item score that its authors then used
FILTERS: tuple[tuple[str, ItemFilter, str], ...] = (
    ("slope (Noor)", PositiveSlope(), "confidence_margin"),
    ("top half (Morai)", TopShare(), "log_probability_gap"),
    ("top half, matched", TopShare(length_matched=True), "log_probability_gap"),
)


@dataclass(frozen=True)
class MetricQuality:
    """Signal quality of a benchmark if its items were scored otherwise; the same draws for all metrics."""

    metric: str
    label: str
    quality: Interval
    less_accuracy: Interval | None  # quality minus that of accuracy


@dataclass(frozen=True)
class Subgroup:
    """Scores of some of a benchmark's items."""

    kind: str  # subject or answer length
    name: str
    items: int
    quality: Interval
    last_score: float  # mean over models at their last checkpoint
    last_log_likelihood: float  # of the gold answer per token there; NaN where unknown


@dataclass(frozen=True)
class Trial:
    """One filter under one split design."""

    filter: str
    score: str
    design: str
    trial: FilterTrial
    length_dependence: float


@dataclass(frozen=True)
class ItemAnalysis:
    """Results for one benchmark; `resampled` is None where items do not reproduce the scores."""

    items: int
    chance: float | None  # the score of guessing; None where the metric is no share of right answers
    resampled: Values | None
    metrics: list[MetricQuality] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    subgroups: list[Subgroup] = field(default_factory=list)
    compliance_null: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)


def analyze_items(
    design: Design,
    answers: BenchmarkItems,
    facts: pd.DataFrame,
    direction: float,
    options: Options,
    resamples: int,
    seed: int,
) -> ItemAnalysis:
    """Everything that needs items. Draws are seeded by `seed`, the same for all metrics, so that these compare."""
    notes: list[str] = []
    answers, correct = _aligned(design, answers, direction, notes)
    if answers is None:
        return ItemAnalysis(0, None, None, notes=notes)
    chance = _chance(answers, direction, notes)
    counts = draw_items(len(answers.doc_ids), resamples, np.random.default_rng(seed))
    resampled = _resample(correct, counts) if resamples else None
    scored = [index for index, model in enumerate(answers.models) if model.model in design.scored]
    of_scored = answers.rows([(index, np.flatnonzero(_selected(design, answers, index))) for index in scored])
    return ItemAnalysis(
        items=len(answers.doc_ids),
        chance=chance,
        resampled=resampled,
        metrics=_metrics(of_scored, options, counts),
        trials=_trials(of_scored, facts, options, seed, notes),
        subgroups=_subgroups(of_scored, direction, options, min(resamples, SUBGROUP_RESAMPLES), seed),
        compliance_null=_compliance_null(design, correct, options, chance, resamples, seed) if resamples else None,
        notes=notes,
    )


def _aligned(
    design: Design, answers: BenchmarkItems, direction: float, notes: list[str]
) -> tuple[BenchmarkItems | None, Values]:
    """The answers of the curves' models and checkpoints, oriented, and their scores (n, items) by model.

    None where items are missing, or where their mean is not the benchmark's score: then resampling items would say
    nothing about it.
    """
    rows, correct = [], {}
    by_name = {model.model: (index, model) for index, model in enumerate(answers.models)}
    for name, curve in design.curves.items():
        if name not in by_name:
            notes.append(f"{design.benchmark}: no items of {name}, so nothing that needs items.")
            return None, {}
        index, model = by_name[name]
        places = {checkpoint: at for at, checkpoint in enumerate(model.checkpoints)}
        missing = [checkpoint for checkpoint in curve.checkpoints if checkpoint not in places]
        if missing:
            notes.append(
                f"{design.benchmark}: no items of {name} at {listing(missing, 4)}, so nothing that needs items."
            )
            return None, {}
        at = np.array([places[checkpoint] for checkpoint in curve.checkpoints])
        rows.append((index, at))
        correct[name] = direction * model.correct[at]
        if not np.allclose(correct[name].mean(axis=1), curve.values, rtol=0, atol=1e-6):
            notes.append(
                f"{design.benchmark}: the score of {name} is not the mean over its items, so nothing that needs items."
            )
            return None, {}
    oriented = answers.rows(rows)
    models = tuple(replace(model, correct=correct[model.model]) for model in oriented.models)
    return replace(oriented, models=models), correct


def _chance(answers: BenchmarkItems, direction: float, notes: list[str]) -> float | None:
    """The score of guessing among the choices; None without choices, and where the metric is no share of right answers.

    Guessing gives 1 / choices of an accuracy; of a log-likelihood gap, a correlation or an error it says nothing.
    """
    if answers.choices is None:
        return None
    if direction < 0 or not all(np.isin(model.correct, (0.0, 1.0)).all() for model in answers.models):
        why = "lower is better" if direction < 0 else "its items are not right or wrong (1 or 0)"
        notes.append(
            f"{answers.benchmark}: no chance level, since {why}: chance, non-randomness and compliance above chance "
            "are null."
        )
        return None
    return float(np.mean(1.0 / answers.choices))


def _selected(design: Design, answers: BenchmarkItems, index: int) -> np.ndarray:
    return design.selected[answers.models[index].model]


def _resample(correct: Values, counts: np.ndarray) -> Values:
    """Bootstrap means (resamples, n) of every model, from the same draws of items."""
    means = resample_item_means(np.concatenate(list(correct.values())), counts)
    ends = np.cumsum([len(values) for values in correct.values()])[:-1]
    return dict(zip(correct, np.split(means, ends, axis=1), strict=True))


def _quality_of(curves: list[np.ndarray], options: Options, counts: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean signal quality over models of item scores [(n, items)], and of its bootstrap (resamples,)."""

    def mean_quality(means: list[np.ndarray]) -> np.ndarray:
        return mean_of_known([signal_quality(mean, options.convention, options.ties).signal_quality for mean in means])

    value = float(mean_quality([scores.mean(axis=1) for scores in curves]))
    if not len(counts):
        return value, np.array([])
    means = resample_item_means(np.concatenate(curves), counts)
    ends = np.cumsum([len(scores) for scores in curves])[:-1]
    return value, mean_quality(np.split(means, ends, axis=1))


def _metrics(answers: BenchmarkItems, options: Options, counts: np.ndarray) -> list[MetricQuality]:
    """Signal quality under every item metric that the table has what it needs for, accuracy first."""
    results: list[MetricQuality] = []
    accuracy: tuple[float, np.ndarray] | None = None
    for metric, described in METRICS.items():
        if any(missing_for(answers, model, metric) for model in answers.models):
            continue
        curves = [model_scores(answers, model, metric) for model in answers.models]
        if any(np.isnan(scores).any() for scores in curves):
            continue
        value, draws = _quality_of(curves, options, counts)
        less = None
        if metric == "accuracy":
            accuracy = value, draws
        elif accuracy is not None:
            less = resampling_interval(value - accuracy[0], draws - accuracy[1], -1.0, 1.0)
        results.append(MetricQuality(metric, described.label, resampling_interval(value, draws, 0.0, 1.0), less))
    return results


def _trials(answers: BenchmarkItems, facts: pd.DataFrame, options: Options, seed: int, notes: list[str]) -> list[Trial]:
    """The competition's filters under every split that the models allow; never an in-sample figure alone."""
    if any(missing_for(answers, model, "confidence_margin") for model in answers.models):
        return []
    answers = with_scores_only(answers, ("confidence_margin", "log_probability_gap", "probability"))
    candidates = Candidates(answers.doc_ids, answers)
    sheet = facts.reset_index(names="model")
    if not folds_by_design(candidates, sheet):
        notes.append(f"{answers.benchmark}: filters cannot be judged: no second model, and too few checkpoints.")
        return []
    trials = []
    for name, item_filter, metric in FILTERS:
        if missing := _missing_lengths(item_filter, answers):
            notes.append(f"{answers.benchmark}: no {name}: {missing}.")
            continue
        dependence = float("nan")
        if answers.models[0].tokens is not None or answers.characters is not None:
            dependence = length_dependence(item_filter.keep(candidates), answer_lengths(answers))
        for score in ("correct", metric):
            generator = np.random.default_rng(seed)
            judged = judge([item_filter], candidates, sheet, score, generator, CONTROLS, options.convention)
            trials += [Trial(name, score, design, trial, dependence) for design, trial in judged.items()]
    return trials


def _missing_lengths(item_filter: ItemFilter, answers: BenchmarkItems) -> str | None:
    if not (isinstance(item_filter, TopShare) and item_filter.length_matched):
        return None
    if answers.models[0].tokens is None and answers.characters is None:
        return "lengths of the choices are unknown"
    if np.ptp(answer_lengths(answers)) == 0:
        return "all right answers are equally long"
    return None


def _subgroups(
    answers: BenchmarkItems, direction: float, options: Options, resamples: int, seed: int
) -> list[Subgroup]:
    """Views by subject and by length of the gold answer, where there are at least two groups."""
    groupings = []
    if len(set(answers.subjects)) > 1:
        groupings += [("subject", name, answers.subjects == name) for name in sorted(set(answers.subjects)) if name]
    known = answers.models[0].tokens is not None or answers.characters is not None
    if known and answers.gold is not None:
        lengths = answer_lengths(answers)
        strata = length_strata(lengths, STRATA)
        unit = "tokens" if answers.models[0].tokens is not None else "characters"
        for stratum in range(int(strata.max()) + 1) if strata.max() else ():
            inside = strata == stratum
            low, high = lengths[inside].min(), lengths[inside].max()
            groupings.append(("answer length", f"{low:g} to {high:g} {unit}", inside))
    subgroups = []
    for kind, name, inside in groupings:
        if inside.sum() < MINIMUM_SUBGROUP:
            continue
        curves = [model.correct[:, inside] for model in answers.models]
        counts = draw_items(int(inside.sum()), resamples, np.random.default_rng(seed))
        value, draws = _quality_of(curves, options, counts)
        subgroups.append(
            Subgroup(
                kind=kind,
                name=str(name),
                items=int(inside.sum()),
                quality=resampling_interval(value, draws, 0.0, 1.0),
                last_score=direction * float(np.mean([scores[-1].mean() for scores in curves])),
                last_log_likelihood=_last_log_likelihood(answers, inside),
            )
        )
    return subgroups


def _last_log_likelihood(answers: BenchmarkItems, inside: np.ndarray) -> float:
    metric = "log_likelihood_per_token"
    if any(missing_for(answers, model, metric) for model in answers.models):
        return float("nan")
    # The last checkpoints first: copying all of them for every subgroup would take longer than all the rest
    last = answers.rows([(i, [len(m.checkpoints) - 1]) for i, m in enumerate(answers.models)]).take(inside)
    return float(np.mean([model_scores(last, model, metric).mean() for model in last.models]))


def _compliance_null(
    design: Design, correct: Values, options: Options, chance: float | None, exchanges: int, seed: int
) -> np.ndarray | None:
    """Compliance (exchanges,) when the labels of science and web model are exchanged item by item."""
    if not design.compliance_pairs or (options.normalisation == "above_chance" and chance is None):
        return None
    draws = []
    for pair in design.compliance_pairs:
        science, web = exchanged_curves(
            correct[pair.first][pair.first_at],
            correct[pair.second][pair.second_at],
            exchanges,
            np.random.default_rng(seed),
        )
        draws.append(compliance(science, web, options.normalisation, chance).value)
    return mean_of_known(draws)
