"""What a benchmark's items add: resampled curves, and filters on trial.

`analyze_items` is called while a benchmark's items are in memory; `item_sections` show what it found.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.sections import SignalConventions
from lm_validity.missing import Missing, Reason, ReasonCode
from lm_validity.studies.signal.benchmark import (
    CONTROLS,
    SKIPPED,
    CurveDesign,
    ItemAnalysis,
    Trial,
    Value,
    Values,
)
from lm_validity.studies.signal.filters import kinds
from lm_validity.studies.signal.filters.kinds import ItemFilter
from lm_validity.studies.signal.filters.recipe import folds_by_design, judge
from lm_validity.studies.signal.statistics import quality as scores_of
from lm_validity.tables.items import BenchmarkItems
from lm_validity.words import listing

FEWEST_SUBJECTS = 10  # to draw whole subjects: with fewer their spread is too uncertain
SEED = 0

# Name on the page, the filter, the item score that its authors then used
FILTERS: tuple[tuple[str, ItemFilter, str], ...] = (
    ("slope (Noor)", kinds.PositiveSlope(), "confidence_margin"),
    ("top half (Morai)", kinds.TopShare(), "log_probability_gap"),
    ("top half, matched", kinds.TopShare(length_matched=True), "log_probability_gap"),
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
    counts = scores_of.draw_items(len(answers.doc_ids), resamples, np.random.default_rng(SEED), clusters)
    scored = [
        (index, np.flatnonzero(design.selected[model.model]))
        for index, model in enumerate(answers.models)
        if model.model in design.scored
    ]
    of_scored = answers.rows(scored)
    trials, notes = _trials(of_scored, facts, options)
    if clusters is not None:
        drawn = f"its items are drawn by whole subjects ({int(clusters.max()) + 1}), so intervals also hold for"
        notes.append(f"{answers.benchmark}: {drawn} other subjects.")
    return ItemAnalysis(
        items=len(answers.doc_ids),
        chance=chance,
        errors={
            name: np.sqrt(np.diagonal(scores_of.error_covariance(scores, clusters))) for name, scores in correct.items()
        },
        noise=_noise(design, correct, clusters),
        resampled=dict(zip(correct, _means(list(correct.values()), counts), strict=True)) if resamples else SKIPPED,
        trials=trials,
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


def _noise(design: CurveDesign, correct: Values, clusters: np.ndarray | None) -> np.ndarray:
    """Covariances (points, models, models) of the errors of the scored models' scores over the items, one common point
    at a time."""
    places = design.alignment.places
    covariance = np.zeros((len(places[0].share), len(places), len(places)))
    for point in range(len(covariance)):
        scores = [
            points.only(point).read(correct[model].T)[:, 0] for model, points in zip(design.scored, places, strict=True)
        ]
        covariance[point] = scores_of.error_covariance(np.array(scores), clusters)
    return covariance


def _means(curves: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Bootstrap means [(resamples, n)] of item scores [(n, items)], from the same draws of items."""
    means = scores_of.resample_item_means(np.concatenate(curves), counts)
    return np.split(means, np.cumsum([len(curve) for curve in curves])[:-1], axis=1)


# ----------------------------------------------------------------------------------------------------------------------
# Filters, on models and checkpoints that they did not see.


def _trials(
    answers: BenchmarkItems, facts: pd.DataFrame, options: SignalConventions
) -> tuple[list[Trial] | Missing, list[str]]:
    """The competition's filters under every split that the models allow, and notes on those that cannot be tried."""
    if any(kinds.missing_for(answers, model, "confidence_margin") is not None for model in answers.models):
        return (Missing("The filters need the log-likelihoods of the choices and the right choice."), [])
    answers = kinds.with_scores_only(answers, ("confidence_margin", "log_probability_gap", "probability"))
    candidates = kinds.Candidates(answers.doc_ids, answers)
    sheet = facts.reset_index(names="model")
    if not folds_by_design(candidates, sheet):
        return (Missing("Filters cannot be judged without a second model or more checkpoints."), [])
    lengths, trials, notes = kinds.answer_lengths(answers), list[Trial](), list[str]()
    for name, item_filter, metric in FILTERS:
        if item_filter == kinds.TopShare(length_matched=True) and (lengths is None or np.ptp(lengths) == 0):
            reason = "lengths of the choices are unknown" if lengths is None else "all right answers are equally long"
            notes.append(f"{answers.benchmark}: the filter '{name}' was not tried: {reason}.")
            continue
        for score in ("correct", metric):
            generator = np.random.default_rng(SEED)
            judged = judge([item_filter], candidates, sheet, score, generator, CONTROLS, options)
            trials += [Trial(name, score, design, trial) for design, trial in judged.items()]
    return (trials, notes)
