"""What a benchmark's items add: resampled curves, other item scores, filters on trial, subjects and answer lengths.

`analyze_items` is called while a benchmark's items are in memory; `item_sections` show what it found.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.sections import SignalConventions
from lm_validity.missing import Missing, Reason, ReasonCode, is_known, known, number
from lm_validity.statistics import Interval
from lm_validity.studies.signal.benchmark import (
    CONTROLS,
    SIZES,
    SKIPPED,
    Bounds,
    CurveDesign,
    Draws,
    ItemAnalysis,
    MetricQuality,
    Subgroup,
    Trial,
    Value,
    Values,
    bounds,
    mean_of_known,
    too_few_checkpoints,
)
from lm_validity.studies.signal.curves import Places, own_ends
from lm_validity.studies.signal.filters.kinds import (
    STRATA,
    Candidates,
    ItemFilter,
    PositiveSlope,
    TopShare,
    answer_lengths,
    length_dependence,
    length_strata,
    missing_for,
    model_scores,
    with_scores_only,
)
from lm_validity.studies.signal.filters.recipe import folds_by_design, judge
from lm_validity.studies.signal.statistics.items import METRICS, FilterTrial
from lm_validity.studies.signal.statistics.quality import (
    NoiseFree,
    draw_items,
    error_covariance,
    fewest_checkpoints,
    noise_free_interval,
    noise_free_quality,
    quality_by_items,
    resample_item_means,
    signal_quality,
)
from lm_validity.studies.signal.statistics.ranking import compliance, exchanged_curves
from lm_validity.tables.items import BenchmarkItems
from lm_validity.words import listing

SUBGROUP_RESAMPLES = 200
FEWEST_SUBJECTS = 10  # to draw whole subjects: with fewer their spread is too uncertain
MINIMUM_SUBGROUP = 10  # items; a curve of fewer is mostly ties
SEED = 0

# Name on the page, the filter, the item score that its authors then used
FILTERS: tuple[tuple[str, ItemFilter, str], ...] = (
    ("slope (Noor)", PositiveSlope(), "confidence_margin"),
    ("top half (Morai)", TopShare(), "log_probability_gap"),
    ("top half, matched", TopShare(length_matched=True), "log_probability_gap"),
)


def analyze_items(
    design: CurveDesign, answers: BenchmarkItems, facts: pd.DataFrame, options: SignalConventions, resamples: int
) -> ItemAnalysis | Missing:
    """Everything that needs items, or why they cannot be used.

    Draws have one seed for all metrics, so that these compare.
    """
    aligned = _aligned(design, answers)
    if isinstance(aligned, Missing):
        return aligned
    answers, correct = aligned.answers, aligned.scores
    chance = _chance(answers, design.direction)
    clusters = _clusters(answers.subjects)
    counts = draw_items(len(answers.doc_ids), resamples, np.random.default_rng(SEED), clusters)
    scored = [
        (index, np.flatnonzero(design.selected[model.model]))
        for index, model in enumerate(answers.models)
        if model.model in design.scored
    ]
    of_scored = answers.rows(scored)
    curves = [model.correct for model in of_scored.models]
    trials, notes = _trials(of_scored, facts, options)
    if clusters is not None:
        drawn = f"its items are drawn by whole subjects ({int(clusters.max()) + 1}), so intervals also hold for"
        notes.append(f"{answers.benchmark}: {drawn} other subjects.")
    noise_free: dict[str, NoiseFree] | Missing = Missing(
        "Noise-free signal quality is defined for the convention `code`."
    )
    noise_free_ends = Interval(np.nan, np.nan)
    if options.convention == "code":
        noise_free = {
            model.model: noise_free_quality(model.correct, options.ties, clusters) for model in of_scored.models
        }
        if resamples and curves:
            noise_free_ends = noise_free_interval(curves, np.random.default_rng(SEED), options.ties, clusters)
    return ItemAnalysis(
        items=len(answers.doc_ids),
        chance=chance,
        errors={name: np.sqrt(np.diagonal(error_covariance(scores, clusters))) for name, scores in correct.items()},
        by_items=_by_items(curves, options),
        noise=_noise(design, design.alignment.places, correct, clusters),
        end_noise=_noise(design, own_ends([design.curves[model] for model in design.scored]), correct, clusters)[0],
        noise_free=noise_free,
        noise_free_interval=noise_free_ends,
        resampled=dict(zip(correct, _means(list(correct.values()), counts), strict=True)) if resamples else SKIPPED,
        compliance_null=_compliance_null(design, correct, options, chance, resamples),
        metrics=_metrics(of_scored, options, counts),
        trials=trials,
        subgroups=_subgroups(of_scored, design.direction, options, min(resamples, SUBGROUP_RESAMPLES)),
        notes=tuple(notes),
    )


def _clusters(subjects: np.ndarray) -> np.ndarray | None:
    """(items,) whole numbers of at least `FEWEST_SUBJECTS` subjects, fewer than items and all known; else None."""
    names, numbers = np.unique(subjects, return_inverse=True)
    return numbers if "" not in names and FEWEST_SUBJECTS <= len(names) < len(numbers) else None


class _Aligned(NamedTuple):
    """The answers of the curves' models and checkpoints, oriented, and their scores (n, items) by model."""

    answers: BenchmarkItems
    scores: Values


def _aligned(design: CurveDesign, answers: BenchmarkItems) -> _Aligned | Missing:
    """The answers to the benchmark, as its curves read them.

    Missing where items are, or where their mean is not the benchmark's score: then resampling items would say nothing
    about it.
    """
    rows, correct = [], {}
    by_name = {model.model: (index, model) for index, model in enumerate(answers.models)}
    for name, curve in design.curves.items():
        lacks = f"The items table has no items of {name} on {design.benchmark}"
        if name not in by_name:
            return Missing(Reason(f"{lacks}.", ReasonCode.NO_ITEMS))
        index, model = by_name[name]
        places = {checkpoint: row for row, checkpoint in enumerate(model.checkpoints)}
        missing = [checkpoint for checkpoint in curve.checkpoints if checkpoint not in places]
        if missing:
            return Missing(Reason(f"{lacks} at {listing(missing, 4)}.", ReasonCode.NO_ITEMS))
        row = np.array([places[checkpoint] for checkpoint in curve.checkpoints])
        rows.append((index, row))
        correct[name] = design.direction * model.correct[row]
        if not np.allclose(correct[name].mean(axis=1), curve.values, rtol=0, atol=1e-6):
            return Missing(f"The score of {name} on {design.benchmark} is not the mean over its items.")
    oriented = answers.rows(rows)
    models = tuple(replace(model, correct=correct[model.model]) for model in oriented.models)
    return _Aligned(replace(oriented, models=models), correct)


def _chance(answers: BenchmarkItems, direction: float) -> Value:
    """The score of guessing among the choices; unknown without choices, and where the metric is no share of right ones.

    Guessing gives 1 / choices of an accuracy; of a log-likelihood gap, a correlation or an error it says nothing.
    """
    if answers.choices is None:
        return Missing("The items have no choices to guess among.")
    if direction < 0:
        return Missing("Guessing has no known score where lower is better.")
    if not all(np.isin(model.correct, (0.0, 1.0)).all() for model in answers.models):
        return Missing("Guessing has no known score where items are not right or wrong (1 or 0).")
    return float(np.mean(1.0 / answers.choices))


def _by_items(curves: list[np.ndarray], options: SignalConventions) -> dict[int, float] | Missing:
    """Signal quality at the numbers of items in `SIZES` that the benchmark reaches."""
    curves = [curve for curve in curves if len(curve) >= fewest_checkpoints(options.convention)]
    if not curves:
        return Missing(too_few_checkpoints(options))
    generator = np.random.default_rng(SEED)
    quality = quality_by_items(curves, SIZES, CONTROLS, generator, options)
    return quality or Missing(Reason(f"The benchmark has fewer than {SIZES[0]} items.", ReasonCode.TOO_FEW))


def _noise(design: CurveDesign, places: Sequence[Places], correct: Values, clusters: np.ndarray | None) -> np.ndarray:
    """Covariances (points, models, models) of the errors of the scored models' scores over the items, one point at a
    time."""
    covariance = np.zeros((len(places[0].share), len(places), len(places)))
    for point in range(len(covariance)):
        scores = [
            points.only(point).read(correct[model].T)[:, 0] for model, points in zip(design.scored, places, strict=True)
        ]
        covariance[point] = error_covariance(np.array(scores), clusters)
    return covariance


def _compliance_null(
    design: CurveDesign, correct: Values, options: SignalConventions, chance: Value, exchanges: int
) -> Draws:
    """Compliance (exchanges,) when the labels of science and web model are exchanged item by item."""
    if not exchanges:
        return SKIPPED
    if not design.compliance_pairs:
        return Missing(Reason("There is no pair of a science and a web model.", ReasonCode.NO_MODEL_PAIR))
    if options.normalisation == "above_chance" and isinstance(chance, Missing):
        return chance
    draws = []
    for pair in design.compliance_pairs:
        first, second = pair.read({model: correct[model].T for model in (pair.first, pair.second)})
        science, web = exchanged_curves(first.T, second.T, exchanges, np.random.default_rng(SEED))
        draws.append(compliance(science, web, options.normalisation, number(chance)).value)
    return mean_of_known(draws)


def _means(curves: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Bootstrap means [(resamples, n)] of item scores [(n, items)], from the same draws of items."""
    means = resample_item_means(np.concatenate(curves), counts)
    return np.split(means, np.cumsum([len(curve) for curve in curves])[:-1], axis=1)


class _MeanQuality(NamedTuple):
    """Mean signal quality over models, and of its bootstrap (resamples,)."""

    value: float
    draws: np.ndarray


def _quality_of(curves: list[np.ndarray], options: SignalConventions, counts: np.ndarray) -> _MeanQuality:
    """Mean signal quality over models of item scores [(n, items)]."""

    def mean_quality(means: list[np.ndarray]) -> np.ndarray:
        return mean_of_known([signal_quality(mean, options).signal_quality for mean in means])

    value = float(mean_quality([scores.mean(axis=1) for scores in curves]))
    return _MeanQuality(value, mean_quality(_means(curves, counts)) if len(counts) else np.array([]))


# ----------------------------------------------------------------------------------------------------------------------
# Filters, on models and checkpoints that they did not see.


class _NotedTrials(NamedTuple):
    """Trials of filters, and notes on those that cannot be tried."""

    trials: list[Trial] | Missing
    notes: list[str]


def _trials(answers: BenchmarkItems, facts: pd.DataFrame, options: SignalConventions) -> _NotedTrials:
    """The competition's filters under every split that the models allow."""
    if any(missing_for(answers, model, "confidence_margin") is not None for model in answers.models):
        return _NotedTrials(Missing("The filters need the log-likelihoods of the choices and the right choice."), [])
    answers = with_scores_only(answers, ("confidence_margin", "log_probability_gap", "probability"))
    candidates = Candidates(answers.doc_ids, answers)
    sheet = facts.reset_index(names="model")
    if not folds_by_design(candidates, sheet):
        return _NotedTrials(Missing("Filters cannot be judged without a second model or more checkpoints."), [])
    lengths, trials, notes = answer_lengths(answers), list[Trial](), list[str]()
    for name, item_filter, metric in FILTERS:
        if item_filter == TopShare(length_matched=True) and (lengths is None or np.ptp(lengths) == 0):
            reason = "lengths of the choices are unknown" if lengths is None else "all right answers are equally long"
            notes.append(f"{answers.benchmark}: the filter '{name}' was not tried: {reason}.")
            continue
        # correlation of being kept, over all models, with the length of the right answer
        dependence: Value = Missing("The lengths of the choices are unknown.")
        if lengths is not None:
            reason = "The filter keeps all items or none, or all right answers are equally long."
            dependence = known(length_dependence(item_filter.keep(candidates), lengths), reason)
        for score in ("correct", metric):
            generator = np.random.default_rng(SEED)
            judged = judge([item_filter], candidates, sheet, score, generator, CONTROLS, options)
            for design, trial in judged.items():
                trials.append(_trial(name, score, design, trial, dependence))
    return _NotedTrials(trials, notes)


def _trial(name: str, score: str, design: str, trial: FilterTrial, length_dependence: Value) -> Trial:
    """The trial of a filter, with the reason where it leaves something unknown."""
    nothing = "The filter keeps no item where it was fitted."
    if np.isnan(trial.unfiltered):
        nothing = "The score is unknown for some items, such as those with one choice."
    in_sample = known(trial.in_sample, "The filter keeps no item when it sees all models that are scored.")
    held_out = known(trial.held_out, nothing)
    ratio: Value = held_out
    if not trial.kept_in_sample or not trial.unfiltered:
        ratio = Missing("No score per item: the filter keeps no item, or all items together score 0.")
    elif is_known(ratio):
        ratio = known(trial.per_item_score_ratio, nothing)
    return Trial(
        filter=name,
        score=score,
        design=design,
        unfiltered=known(trial.unfiltered, nothing),
        in_sample=in_sample,
        held_out=held_out,
        optimism_gap=in_sample if isinstance(in_sample, Missing) else known(trial.optimism_gap, nothing),
        control_mean=known(trial.control_mean, nothing),
        control_high=known(trial.control_high, nothing),
        p=known(trial.p, nothing),
        useful=trial.useful,
        items=trial.items,
        kept_in_sample=trial.kept_in_sample,
        kept_by_fold=trial.kept_by_fold,
        length_dependence=length_dependence,
        per_item_score_ratio=ratio,
    )


# ----------------------------------------------------------------------------------------------------------------------
# The same items under other scores.


def _metrics(
    answers: BenchmarkItems, options: SignalConventions, counts: np.ndarray
) -> dict[str, MetricQuality] | Missing:
    """Signal quality under every item metric that the table has what it needs for, accuracy first."""
    results: dict[str, MetricQuality] = {}
    too_few = too_few_checkpoints(options)
    for metric in METRICS:
        if any(missing_for(answers, model, metric) is not None for model in answers.models):
            continue
        curves = [model_scores(answers, model, metric) for model in answers.models]
        if any(np.isnan(scores).any() for scores in curves):
            continue
        mean_quality = _quality_of(curves, options, counts)
        # signal quality minus that of accuracy, which is the first, and known where another score is
        less: Value | None = None
        less_interval: Bounds | None = None
        if metric == "accuracy":
            of_accuracy = mean_quality
        else:
            less = known(mean_quality.value - of_accuracy.value, too_few)
            less_interval = bounds(less, mean_quality.draws - of_accuracy.draws, -1.0, 1.0)
        quality = known(mean_quality.value, too_few)
        results[metric] = MetricQuality(quality, bounds(quality, mean_quality.draws, 0.0, 1.0), less, less_interval)
    return results or Missing("Other item scores need the log-likelihoods of the choices and the right choice.")


# ----------------------------------------------------------------------------------------------------------------------
# Subjects and answer lengths.


def _subgroups(
    answers: BenchmarkItems, direction: float, options: SignalConventions, resamples: int
) -> list[Subgroup] | Missing:
    """Views by subject and by length of the gold answer, where there are at least two groups."""
    subgroups = []
    metric = "log_likelihood_per_token"
    lacking = (missing_for(answers, model, metric) for model in answers.models)
    lacks = next((words for words in lacking if words is not None), None)
    for kind, name, inside in _groupings(answers):
        if inside.sum() < MINIMUM_SUBGROUP:
            continue
        curves = [model.correct[:, inside] for model in answers.models]
        clusters = _clusters(answers.subjects[inside])
        counts = draw_items(int(inside.sum()), resamples, np.random.default_rng(SEED), clusters)
        mean_quality = _quality_of(curves, options, counts)
        quality = known(mean_quality.value, too_few_checkpoints(options))
        likelihood: Value = Missing(f"The items table lacks {lacks}.")
        if lacks is None:
            # The last checkpoints first: copying all of them for every subgroup would take longer than all the rest
            last = answers.rows([(i, [len(m.checkpoints) - 1]) for i, m in enumerate(answers.models)]).take(inside)
            mean = float(np.mean([model_scores(last, model, metric).mean() for model in last.models]))
            likelihood = known(mean, "Some right answers have no log-likelihood.")
        subgroups.append(
            Subgroup(
                kind=kind,
                name=str(name),
                items=int(inside.sum()),
                signal_quality=quality,
                interval=bounds(quality, mean_quality.draws, 0.0, 1.0),
                last_score=direction * float(np.mean([scores[-1].mean() for scores in curves])),
                last_log_likelihood_per_token=likelihood,
            )
        )
    return subgroups or Missing(f"The items have no two subjects or answer lengths, or under {MINIMUM_SUBGROUP} each.")


def _groupings(answers: BenchmarkItems) -> list[tuple[str, str, np.ndarray]]:
    """Kind, name and items (items,) of every group."""
    groupings = []
    if len(set(answers.subjects)) > 1:
        groupings += [("subject", name, answers.subjects == name) for name in sorted(set(answers.subjects)) if name]
    lengths = answer_lengths(answers)
    if lengths is not None:
        strata = length_strata(lengths, STRATA)
        unit = "tokens" if answers.models[0].tokens is not None else "characters"
        for stratum in range(int(strata.max()) + 1) if strata.max() else ():
            inside = strata == stratum
            low, high = lengths[inside].min(), lengths[inside].max()
            groupings.append(("answer length", f"{low:g} to {high:g} {unit}", inside))
    return groupings
