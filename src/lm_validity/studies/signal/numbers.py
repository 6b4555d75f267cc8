"""The numbers of the signal report, as rows, and what a benchmark's items add to them."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd

from lm_validity.config.sections import Normalisation, Reports, SignalConventions
from lm_validity.results.put import RANGE, Rows, ends_of
from lm_validity.statistics import NORMAL_95, cluster_codes
from lm_validity.studies.signal import benchmark as base
from lm_validity.studies.signal.benchmark import BenchmarkCurves, SignalData, Value, Values
from lm_validity.studies.signal.filters import kinds
from lm_validity.studies.signal.filters.recipe import folds_by_design, judge
from lm_validity.studies.signal.statistics import quality as scores_of
from lm_validity.studies.signal.statistics.quality import E2LM_WINDOWS, NOT_NEGATIVE, SHARE, Controls, RankingWindows
from lm_validity.tables.items import BenchmarkItems
from lm_validity.words import Missing, Reason, ReasonCode, is_known, known, listing, number

E2LM_LATER_CHECKPOINTS = 47  # of the competition's ranking consistency, 222.8 to 994.5 billion tokens
AT_CHANCE = Missing("The score is not above chance by 1.96 standard errors at the last point.")
NOBODY = Missing("No model is shown to end above chance.")
TOGETHER = Missing("The models are above chance on average, but no model by itself.")
NOT_BEFORE_THE_END = Missing("It is not ready before the end of training.")
ANYWHERE = Missing("Given the noise of scores, the order may settle at any point of the training.")
TOKENS = "billion_tokens"
COUNTED = {"nearly_stable_from": "pairs", "settled_from": "separable_pairs"}


def signal_rows(data: SignalData) -> Rows:
    """All numbers of the signal report."""
    rows = Rows("signal")
    for name, benchmark in data.benchmarks.items():
        at = rows.of(subject=name)
        _curve_rows(at, data, benchmark)
        _benchmark_rows(at, data, benchmark)
        _settling_rows(at, benchmark)
        _compliance_rows(at, benchmark, data)
        _filter_rows(at, benchmark.items if isinstance(benchmark.items, Missing) else benchmark.items.trials)
    _consistency_rows(rows, data)
    _ready_rows(rows, data)
    return rows


# ----------------------------------------------------------------------------------------------------------------------
# Signal quality, and scores above chance.


def _curve_rows(at: Rows, data: SignalData, benchmark: BenchmarkCurves) -> None:
    """Signal quality and its parts of each model's curve over the selected checkpoints, with intervals over items."""
    too_few = base.too_few_checkpoints(data.section.signal)
    whys = {"monotonicity": "A curve needs two selected checkpoints.", "autocorrelation": too_few}
    drawn = benchmark.resampled_scores
    for model, quality in benchmark.scores.quality.items():
        counted = "checkpoints", int(benchmark.selected[model].sum())
        for name, why in (whys | {"signal_quality": too_few}).items():
            value = known(float(getattr(quality, name)), why)
            draws = drawn if isinstance(drawn, Missing) else getattr(drawn.quality[model], name)
            at.put(name, value, "index", {"items": base.bounds(value, draws, SHARE)}, counted=counted, model=model)


def _benchmark_rows(at: Rows, data: SignalData, benchmark: BenchmarkCurves) -> None:
    """Means over the scored models, and what is known of the benchmark."""
    alignment, items, models = benchmark.alignment, benchmark.items, ("models", len(benchmark.scored))
    none = None if alignment.reason is None else Missing(alignment.reason)
    interval = benchmark.over_items(benchmark.quality, lambda drawn: drawn.mean_quality, SHARE)
    at.put("signal_quality_mean", benchmark.quality, "index", {"items": interval}, counted=models)
    at.put("signal_quality_mean_walk_p", benchmark.walk_p, "probability", counted=models)
    at.put("steady", data.steady[benchmark.benchmark], "yes_or_no", counted=models)
    at.put("models", models[1], "models")
    at.put("items", items if isinstance(items, Missing) else items.items, "items")
    at.put("chance", benchmark.chance, "score")
    at.put("above_chance", benchmark.models_above_chance, "models", counted=models)
    at.put("above_chance_from_mean", _above_chance_from(benchmark), TOKENS, counted=models)
    at.put("common_points", none or len(alignment.progress), "points")
    at.put("common_points_at_end", none or alignment.at_end, "yes_or_no")
    # a score beyond 1 is no share, so that its distance from chance has no points
    if is_known(benchmark.chance) and len(benchmark.mean_curve) and np.abs(benchmark.mean_curve).max() <= 1:
        for place, score in zip(("first", "last"), benchmark.mean_curve[[0, -1]], strict=True):
            gap = benchmark.direction * (score - benchmark.chance)
            at.put("mean_above_chance", gap, "accuracy", counted=models, point=place)


def _above_chance_from(benchmark: BenchmarkCurves) -> Value:
    """Tokens from which the mean over models is above chance for good, by 1.96 standard errors.

    Its standard error is the mean of the models' own, as though their errors were one: models answer the same items.
    The normal approximation is poor below about ten right answers, and a standard error says nothing of another
    training seed. Chance is that of a guess among the choices: a model that always gives one letter can beat it where
    right answers are unevenly spread over the letters.
    """
    if benchmark.alignment.reason is not None:
        return Missing(benchmark.alignment.reason)
    if isinstance(benchmark.chance, Missing):
        return benchmark.chance
    mean, errors = (benchmark.at_common_points(values).mean(axis=0) for values in (benchmark.values, benchmark.errors))
    if np.isnan(errors).any():
        return base.NO_ERRORS
    above = mean - NORMAL_95 * errors > benchmark.chance_level
    first = float(scores_of.from_then_on(above, benchmark.alignment.tokens_b))
    return known(first, base.UNKNOWN_TOKENS) if above[-1] else AT_CHANCE


# ----------------------------------------------------------------------------------------------------------------------
# The order of the models: whether an early order lasts, and from when on it is the final one.


def _consistency_rows(rows: Rows, data: SignalData) -> None:
    """Ranking consistency by benchmark, mean over pairs of one size, then over sizes: beside coin tosses, and on which
    benchmarks the order lasts longer than these would keep it."""
    p = dict[str, Value]()
    for name, benchmark in data.benchmarks.items():
        draws = benchmark.order_draws
        value = known(float(benchmark.scores.order), _no_consistency(benchmark, data.windows))
        p[name] = tail = base.p_value(value, draws.coins)
        coins: base.Bounds = tail if isinstance(tail, Missing) else base.SKIPPED
        if is_known(tail) and not isinstance(draws.coins, Missing):
            low, high = np.quantile(draws.coins, [0.025, 0.975])
            coins = float(low), float(high)
        over_items = benchmark.over_items(value, lambda drawn: drawn.order, SHARE)
        at = rows.of(subject=name)
        intervals = {"checkpoints": base.bounds(value, draws.blocks, SHARE), "items": over_items}
        at.put("consistency", value, "share", intervals)
        at.put("consistency_coin_flips", RANGE, "share", {"coin_flips": coins})
        at.put("consistency_coin_flip_p", p[name], "probability")
        at.put("consistency_pairs", len(benchmark.ranking_pairs), "pairs")
    for name, lasts in base.discoveries(p).items():
        rows.put("consistency_lasts", lasts, "yes_or_no", subject=name)


def _no_consistency(benchmark: BenchmarkCurves, windows: RankingWindows) -> str:
    """Why a benchmark has no ranking consistency, where it has none."""
    pairs = benchmark.ranking_pairs
    if not pairs:
        return "There are no two architectures of one size (columns size and architecture of the models sheet)."
    reasons = [pair.alignment.reason for pair in pairs]
    if reasons[0] is not None and None not in reasons:
        return reasons[0]
    if not windows.relative and all(np.isnan(curve.tokens_b).all() for curve in benchmark.curves.values()):
        return "The windows are in billions of tokens, and tokens are unknown."
    ends_of_windows = {"base": windows.base, "later": windows.later}
    empty = [kind for index, kind in enumerate(ends_of_windows) if not any(pair.windows[index].any() for pair in pairs)]
    if not empty:
        return "No pair has a checkpoint in the base window and one in the later window."
    ends = ends_of_windows[empty[0]]
    low, high = (end / 10 for end in ends) if windows.relative else ends  # relative: of a training of 1000 billion
    unit = "% of the training" if windows.relative else " billion tokens"
    return f"No checkpoint lies in the {empty[0]} window ({low:g} to {high:g}{unit})."


def _settling_rows(at: Rows, benchmark: BenchmarkCurves) -> None:
    """From when on 9 of 10 pairs of models keep their final order: of all pairs, and of those that can be told apart.

    The final order is that at the last common point, which need not be the end of any training.
    """
    noise, alignment = benchmark.noise, benchmark.alignment
    if len(benchmark.scored) < 2 or len(alignment.progress) < 2:
        too_few = "An order along training needs two models with two points of training in common."
        none = Missing(alignment.reason or too_few)
        at.put("point_tokens", none, TOKENS)
        at.put("separable_pairs", none, "pairs")
        for name in COUNTED:
            at.put(name, none, TOKENS, {"differences": none})
        return
    curves, tokens = benchmark.at_common_points(benchmark.values), alignment.tokens_b
    unknown = bool(np.isnan(tokens).any())
    deviations = noise if isinstance(noise, Missing) else scores_of.difference_errors(noise)
    every = np.ones(len(curves) * (len(curves) - 1) // 2, dtype=bool)
    separable = (
        deviations if isinstance(deviations, Missing) else scores_of.separable_pairs(curves[:, -1], deviations[:, -1])
    )
    equal = base.UNKNOWN_TOKENS if unknown else "No two models can be told apart at the last common point."
    if unknown:
        at.put("point_tokens", Missing(base.UNKNOWN_TOKENS), TOKENS)
    for point, tokens_b in enumerate(() if unknown else tokens, 1):
        at.put("point_tokens", tokens_b, TOKENS, point=point)
    tied = base.UNKNOWN_TOKENS if unknown else "Models tie at the last common point: their order cannot settle."
    told_apart = separable if isinstance(separable, Missing) else int(separable.sum())
    at.put("separable_pairs", told_apart, "pairs", counted=("pairs", len(every)))
    # the tokens from which these pairs keep their final order; the interval is what differences may change
    for name, pairs, reason in (("nearly_stable_from", every, tied), ("settled_from", separable, equal)):
        value: Value = pairs if isinstance(pairs, Missing) else Missing(reason)
        ends: base.Bounds = pairs if isinstance(pairs, Missing) else Missing(reason)
        if not isinstance(pairs, Missing) and np.isfinite(first := scores_of.settled_from(curves, tokens, pairs)):
            value, ends = float(first), base.NO_NOISE
            if not isinstance(deviations, Missing):
                interval = scores_of.settling_interval(curves, deviations, tokens, pairs)
                ends = base.known_bounds(*interval, equal)
        counted = None if isinstance(pairs, Missing) else (COUNTED[name], int(pairs.sum()))
        at.put(name, value, TOKENS, {"differences": ends}, counted=counted)


# ----------------------------------------------------------------------------------------------------------------------
# Readiness: above chance for good, and the order of the models nearly settled.


def _ready_rows(rows: Rows, data: SignalData) -> None:
    """Whether each benchmark is `ready` before the end of training, and by how many tokens for sure: those that are
    ready first, the earliest first."""
    found = {name: _ready_by(rows, benchmark) for name, benchmark in data.benchmarks.items()}
    for name in sorted(found, key=lambda name: (not is_known(found[name]), np.nan_to_num(number(found[name])))):
        by = found[name]
        ready = by if isinstance(by, Missing) and by is not NOT_BEFORE_THE_END else is_known(by)  # not shown: no no
        rows.put("ready", ready, "yes_or_no", subject=name)
        rows.put("ready_by", by, TOKENS, subject=name)


def _ready_by(rows: Rows, benchmark: BenchmarkCurves) -> Value:
    """From how many tokens on a benchmark is surely ready: the mean of the models is above chance for good, and by the
    interval of `settled_from` their order is nearly settled."""
    alignment, above = benchmark.alignment, benchmark.models_above_chance
    starts = rows.row("above_chance_from_mean", subject=benchmark.benchmark)
    settled = rows.row("settled_from", subject=benchmark.benchmark)
    assert starts is not None and settled is not None, "they are put before"
    start, ends = starts.value, ends_of(settled)
    if above == 0:
        return NOBODY if start is None else TOGETHER
    if unknown := next(
        (each for each in (benchmark.chance, above, benchmark.noise) if isinstance(each, Missing)), None
    ):
        return unknown
    if alignment.reason is not None or not alignment.at_end:
        return Missing(alignment.reason or "The models' trainings end at different points.")
    if start is None or ends is None:
        return Missing((starts if start is None else settled).reason or "")
    last = float(alignment.tokens_b[-1])
    if max(start, ends[1]) < last:
        return max(start, ends[1])
    return NOT_BEFORE_THE_END if max(start, ends[0]) >= last else ANYWHERE


# ----------------------------------------------------------------------------------------------------------------------
# Science models against web models, the overall score that needs them, and filters.


def _compliance_rows(at: Rows, benchmark: BenchmarkCurves, data: SignalData) -> None:
    """The science models' mean lead over the web models, the same in units of the score, and the overall score."""
    scores, lead = benchmark.scores, benchmark.scores.lead
    value = known(float(lead.value), _no_compliance(benchmark, data.section.signal.normalisation))
    gap = known(float(lead.gap), _no_compliance(benchmark, "none"))
    whole = known(float(scores.overall), "The overall score needs signal quality, ranking consistency and compliance.")
    over = benchmark.over_items(value, lambda drawn: drawn.lead.value, NOT_NEGATIVE)
    at.put("compliance", value, "share", {"items": over})
    at.put("compliance_raw_gap", gap, "score", {"items": benchmark.over_items(gap, lambda drawn: drawn.lead.gap)})
    at.put("overall", whole, "index", {"items": benchmark.over_items(whole, lambda drawn: drawn.overall)})


def _no_compliance(benchmark: BenchmarkCurves, normalisation: Normalisation) -> str:
    """Why compliance is missing, where it is."""
    pairs = benchmark.compliance_pairs
    if not pairs:
        return Reason(
            "There is no pair of a science and a web model of one size (column training_data of the models sheet).",
            ReasonCode.NO_MODEL_PAIR,
        )
    reason = pairs[0].alignment.reason
    if reason is not None and not any(len(pair.alignment.progress) for pair in pairs):
        return reason
    if normalisation == "above_chance" and isinstance(benchmark.chance, Missing):
        return benchmark.chance.reason
    return "What the gap is divided by is not above 0: a constant curve, or a science curve at chance."


FILTER_UNITS = {
    "unfiltered": "index",
    "in_sample": "index",
    "held_out": "index",
    "control_mean": "index",
    "p": "probability",
    "useful": "yes_or_no",
    "kept_in_sample": "items",
}


def _filter_rows(at: Rows, trials: base.Trials) -> None:
    """Each trial of a filter: where it was fitted, held out, and of random choices of as many items."""
    for name, unit in FILTER_UNITS.items():
        if isinstance(trials, Missing):
            at.put(f"filter_{name}", trials, unit)
            continue
        for (kind, score, design), trial in trials.items():
            counted = None if name == "useful" else ("items", trial.items)
            why = "The filter keeps no item where it was fitted."
            if name == "in_sample":
                why = "The filter keeps no item when it sees all models that are scored."
            elif np.isnan(trial.unfiltered):
                why = "The score is unknown for some items, such as those with one choice."
            of_trial = at.of(filter=kind, score=score, design=design)
            of_trial.put(f"filter_{name}", getattr(trial, name), unit, counted=counted, why=why)


# ----------------------------------------------------------------------------------------------------------------------
# Notes.


def notes_on(data: SignalData) -> list[str]:
    """What was left out and what numbers rest on, of all benchmarks."""
    analyses = [benchmark.items for benchmark in data.benchmarks.values()]
    of_items = chain.from_iterable(items.notes for items in analyses if isinstance(items, base.ItemAnalysis))
    notes = [*data.learning.notes, *of_items]
    constant = [
        f"{model} on {name}"
        for name, benchmark in data.benchmarks.items()
        for model, quality in benchmark.scores.quality.items()
        if benchmark.selected[model].any() and quality.degenerate
    ]
    if constant:
        notes.append(f"Constant curves, scored 0: {listing(constant)}.")
    pairs = [pair for benchmark in data.benchmarks.values() for pair in benchmark.ranking_pairs]
    later = sorted({int(pair.windows.later.sum()) for pair in pairs if pair.counts})
    if later and later[0] < E2LM_LATER_CHECKPOINTS:
        ends = later[0] if later[0] == later[-1] else f"{later[0]} to {later[-1]}"
        # other windows than the competition's hold other numbers of its checkpoints
        released = f"; the competition had {E2LM_LATER_CHECKPOINTS} up to 1000 billion tokens, which are not released"
        beside = released if data.windows == E2LM_WINDOWS else ""
        notes.append(f"Ranking consistency rests on {ends} later checkpoints per pair{beside}.")
    return notes


# ----------------------------------------------------------------------------------------------------------------------
# What a benchmark's items add: resampled curves, and filters on trial. Called while its items are in memory.

SEED = 0

# Name on the page, the filter, the item score that its authors then used
METRICS = ("confidence_margin", "log_probability_gap", "probability")  # of these, and by which they choose
FILTERS: tuple[tuple[str, kinds.ItemFilter, str], ...] = (
    ("slope (Noor)", kinds.PositiveSlope(), "confidence_margin"),
    ("top half (Morai)", kinds.TopShare(), "log_probability_gap"),
    ("top half, matched", kinds.TopShare(length_matched=True), "log_probability_gap"),
)


def analyze_items(design: base.CurveDesign, answers: BenchmarkItems, section: Reports) -> base.ItemAnalysis | Missing:
    """Everything that needs items, or why they cannot be used.

    Draws have one seed for all metrics, so that these compare.
    """
    aligned = _aligned(design, answers)
    if isinstance(aligned, Missing):
        return aligned
    answers, notes = aligned, list[str]()
    correct = {model.model: model.correct for model in answers.models}
    clusters = cluster_codes(answers.subjects)
    counts = scores_of.draw_items(len(answers.doc_ids), section.resamples, np.random.default_rng(SEED), clusters)
    names = {model: index for index, model in enumerate(correct) if model in design.scored}
    of_scored = answers.rows([(index, np.flatnonzero(design.selected[model])) for model, index in names.items()])
    trials = _trials(of_scored, design.facts, section.signal, notes)
    if clusters is not None:
        drawn = f"its items are drawn by whole subjects ({int(clusters.max()) + 1}), so intervals also hold for"
        notes.append(f"{answers.benchmark}: {drawn} other subjects.")
    covariances = {model: scores_of.error_covariance(scores, clusters) for model, scores in correct.items()}
    resampled: Values | Missing = base.SKIPPED
    if section.resamples:  # all models and checkpoints from the same draws of items
        means = scores_of.resample_item_means(np.concatenate([*correct.values()]), counts)
        ends = np.cumsum([len(scores) for scores in correct.values()])[:-1]
        resampled = dict(zip(correct, np.split(means, ends, axis=1), strict=True))
    return base.ItemAnalysis(
        items=len(answers.doc_ids),
        errors={model: np.sqrt(np.diagonal(covariance)) for model, covariance in covariances.items()},
        noise=_noise(design, correct, clusters),
        resampled=resampled,
        trials=trials,
        notes=tuple(notes),
    )


def _aligned(design: base.CurveDesign, answers: BenchmarkItems) -> BenchmarkItems | Missing:
    """The answers of the curves' models and checkpoints to the benchmark, oriented.

    Missing where items are, or where their mean is not the benchmark's score: then resampling items would say nothing
    about it.
    """
    rows, by_name = [], {model.model: (index, model) for index, model in enumerate(answers.models)}
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
        means = design.direction * model.correct[row].mean(axis=1)
        if not np.allclose(means, curve.values, rtol=0, atol=1e-6):
            return Missing(f"The score of {name} on {design.benchmark} is not the mean over its items.")
    chosen = answers.rows(rows)
    models = tuple(replace(model, correct=design.direction * model.correct) for model in chosen.models)
    return replace(chosen, models=models)


def _noise(design: base.CurveDesign, correct: Values, clusters: np.ndarray | None) -> np.ndarray:
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


# ----------------------------------------------------------------------------------------------------------------------
# Filters, on models and checkpoints that they did not see.


def _trials(answers: BenchmarkItems, facts: pd.DataFrame, options: SignalConventions, notes: list[str]) -> base.Trials:
    """The competition's filters under every split that the models allow; those that cannot be tried are noted."""
    if any(kinds.missing_for(answers, model, "confidence_margin") is not None for model in answers.models):
        return Missing("The filters need the log-likelihoods of the choices and the right choice.")
    models = []  # a filter's trial asks for the same scores of many subsets, which are small without log-likelihoods
    for model in answers.models:
        scores = {metric: kinds.model_scores(answers, model, metric) for metric in METRICS}
        models.append(replace(model, loglikelihoods=None, scores=scores))
    answers = replace(answers, models=tuple(models))
    candidates = kinds.Candidates(answers.doc_ids, answers)
    if not (designs := folds_by_design(answers, facts.reset_index(names="model"))):
        return Missing("Filters cannot be judged without a second model or more checkpoints.")
    lengths, trials = kinds.answer_lengths(answers), base.ByTrial()
    for name, item_filter, metric in FILTERS:
        if item_filter == kinds.TopShare(length_matched=True) and (lengths is None or np.ptp(lengths) == 0):
            reason = "lengths of the choices are unknown" if lengths is None else "all right answers are equally long"
            notes.append(f"{answers.benchmark}: the filter '{name}' was not tried: {reason}.")
            continue
        for score in ("correct", metric):
            controls = Controls(np.random.default_rng(SEED), base.CONTROLS, options)
            judged = judge([item_filter], candidates, designs, score, controls)
            trials |= {(name, score, design): trial for design, trial in judged.items()}
    return trials
