"""What a benchmark's items add: resampled curves, other item scores, filters on trial, subjects and answer
lengths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lm_validity.config.sections import SignalConventions
from lm_validity.studies.signal.alignment import Places, own_ends
from lm_validity.studies.signal.filters.apply import folds_by_design, judge
from lm_validity.studies.signal.filters.kinds import (
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
from lm_validity.studies.signal.scores import Design, Values, mean_of_known
from lm_validity.studies.signal.statistics.items import METRICS, FilterTrial
from lm_validity.studies.signal.statistics.quality import (
    NoiseFree,
    fewest_checkpoints,
    noise_free_interval,
    noise_free_quality,
    per_item_score_ratio,
    quality_by_items,
    signal_quality,
)
from lm_validity.studies.signal.statistics.ranking import compliance, exchanged_curves
from lm_validity.studies.signal.statistics.resampling import (
    draw_items,
    error_covariance,
    resample_item_means,
    standard_errors,
)
from lm_validity.studies.signal.summary import SKIPPED, Bounds, Draws, MetricQuality, Subgroup, Trial, Value, bounds
from lm_validity.summaries import Missing, is_known, known
from lm_validity.tables.items import BenchmarkItems
from lm_validity.words import Reason, ReasonCode, listing

CONTROLS = 200  # random choices of the same size beside every filter
SIZES = (100, 300, 1000, 3000, 10_000)  # items at which benchmarks are compared
STRATA = 5  # groups of gold answers of similar length
SUBGROUP_RESAMPLES = 200
FEWEST_SUBJECTS = 10  # to draw whole subjects: with fewer their spread is too uncertain
MINIMUM_SUBGROUP = 10  # items; a curve of fewer is mostly ties

# Name on the page, the filter, the item score that its authors then used
FILTERS: tuple[tuple[str, ItemFilter, str], ...] = (
    ("slope (Noor)", PositiveSlope(), "confidence_margin"),
    ("top half (Morai)", TopShare(), "log_probability_gap"),
    ("top half, matched", TopShare(length_matched=True), "log_probability_gap"),
)


@dataclass(frozen=True)
class ItemAnalysis:
    """Results for one benchmark whose items reproduce its scores; `notes` are remarks on what the items lack."""

    items: int
    chance: Value  # the score of guessing; unknown where the metric is no share of right answers
    errors: dict[str, np.ndarray]  # by model: standard errors (n,) of its curve over items
    by_items: dict[int, float] | Missing  # signal quality if there were fewer items
    noise: np.ndarray  # (points, models, models) covariances of the scored models' errors at their common points
    end_noise: np.ndarray  # (models, models) the same at the last checkpoint of each
    noise_free: dict[str, NoiseFree] | Missing  # by scored model
    noise_free_interval: tuple[float, float]  # of the mean over these; NaN where there is none
    resampled: Values | Missing
    metrics: dict[str, MetricQuality] | Missing
    trials: list[Trial] | Missing
    subgroups: list[Subgroup] | Missing
    compliance_null: Draws
    notes: tuple[str, ...]


def analyze_items(
    design: Design,
    answers: BenchmarkItems,
    facts: pd.DataFrame,
    direction: float,
    options: SignalConventions,
    resamples: int,
    seed: int,
) -> ItemAnalysis | Missing:
    """Everything that needs items, or why they cannot be used.

    Draws are seeded by `seed`, the same for all metrics, so that these compare.
    """
    aligned = _aligned(design, answers, direction)
    if isinstance(aligned, Missing):
        return aligned
    answers, correct = aligned
    chance = _chance(answers, direction)
    clusters = subject_numbers(answers.subjects)
    counts = draw_items(len(answers.doc_ids), resamples, np.random.default_rng(seed), clusters)
    scored = [index for index, model in enumerate(answers.models) if model.model in design.scored]
    of_scored = answers.rows([(index, np.flatnonzero(_selected(design, answers, index))) for index in scored])
    trials, notes = _trials(of_scored, facts, options, seed)
    return ItemAnalysis(
        items=len(answers.doc_ids),
        chance=chance,
        errors={name: standard_errors(scores, clusters) for name, scores in correct.items()},
        by_items=_by_items(of_scored, options, seed),
        noise=_noise(design, design.alignment.places, correct, clusters),
        end_noise=_noise(design, own_ends([design.curves[model] for model in design.scored]), correct, clusters)[0],
        noise_free=_noise_free(of_scored, options, clusters),
        noise_free_interval=_noise_free_interval(of_scored, options, clusters, seed) if resamples else (np.nan, np.nan),
        resampled=_resample(correct, counts) if resamples else SKIPPED,
        metrics=_metrics(of_scored, options, counts),
        trials=trials,
        subgroups=_subgroups(of_scored, direction, options, min(resamples, SUBGROUP_RESAMPLES), seed),
        compliance_null=_compliance_null(design, correct, options, chance, resamples, seed),
        notes=notes if clusters is None else (*notes, _clustered_note(answers.benchmark, clusters)),
    )


def subject_numbers(subjects: np.ndarray) -> np.ndarray | None:
    """(items,) whole numbers of at least `FEWEST_SUBJECTS` subjects, fewer than items and all known; else None."""
    names, numbers = np.unique(subjects, return_inverse=True)
    return numbers if "" not in names and FEWEST_SUBJECTS <= len(names) < len(numbers) else None


def _clustered_note(benchmark: str, clusters: np.ndarray) -> str:
    return (
        f"{benchmark}: its items are drawn by whole subjects ({int(clusters.max()) + 1}), so intervals also hold for "
        "other subjects."
    )


def _by_items(answers: BenchmarkItems, options: SignalConventions, seed: int) -> dict[int, float] | Missing:
    """Signal quality at the numbers of items in `SIZES` that the benchmark reaches."""
    curves = [model.correct for model in answers.models if len(model.correct) >= fewest_checkpoints(options.convention)]
    if not curves:
        return Missing(too_few_checkpoints(options))
    generator = np.random.default_rng(seed)
    found = quality_by_items(curves, SIZES, CONTROLS, generator, options.convention, options.ties)
    return found or Missing(Reason(f"The benchmark has fewer than {SIZES[0]} items.", ReasonCode.TOO_FEW))


def _noise(design: Design, places: Sequence[Places], correct: Values, clusters: np.ndarray | None) -> np.ndarray:
    """Covariances (points, models, models) of the errors of the scored models' scores over the items, one point at a
    time."""
    found = np.zeros((len(places[0].share), len(places), len(places)))
    for point in range(len(found)):
        scores = [
            place.only(point).read(correct[model].T)[:, 0] for model, place in zip(design.scored, places, strict=True)
        ]
        found[point] = error_covariance(np.array(scores), clusters)
    return found


def _noise_free(
    answers: BenchmarkItems, options: SignalConventions, clusters: np.ndarray | None
) -> dict[str, NoiseFree] | Missing:
    if options.convention != "code":
        return Missing("Noise-free signal quality is defined for the convention `code`.")
    return {model.model: noise_free_quality(model.correct, options.ties, clusters) for model in answers.models}


def _noise_free_interval(
    answers: BenchmarkItems, options: SignalConventions, clusters: np.ndarray | None, seed: int
) -> tuple[float, float]:
    curves = [model.correct for model in answers.models]
    if options.convention != "code" or not curves:
        return np.nan, np.nan
    return noise_free_interval(curves, np.random.default_rng(seed), options.ties, clusters)


def _aligned(design: Design, answers: BenchmarkItems, direction: float) -> tuple[BenchmarkItems, Values] | Missing:
    """The answers of the curves' models and checkpoints, oriented, and their scores (n, items) by model.

    Missing where items are, or where their mean is not the benchmark's score: then resampling items would say nothing
    about it.
    """
    rows, correct = [], {}
    by_name = {model.model: (index, model) for index, model in enumerate(answers.models)}
    for name, curve in design.curves.items():
        if name not in by_name:
            return Missing(
                Reason(f"The items table has no items of {name} on {design.benchmark}.", ReasonCode.NO_ITEMS)
            )
        index, model = by_name[name]
        places = {checkpoint: at for at, checkpoint in enumerate(model.checkpoints)}
        missing = [checkpoint for checkpoint in curve.checkpoints if checkpoint not in places]
        if missing:
            return Missing(
                Reason(
                    f"The items table has no items of {name} on {design.benchmark} at {listing(missing, 4)}.",
                    ReasonCode.NO_ITEMS,
                )
            )
        at = np.array([places[checkpoint] for checkpoint in curve.checkpoints])
        rows.append((index, at))
        correct[name] = direction * model.correct[at]
        if not np.allclose(correct[name].mean(axis=1), curve.values, rtol=0, atol=1e-6):
            return Missing(f"The score of {name} on {design.benchmark} is not the mean over its items.")
    oriented = answers.rows(rows)
    models = tuple(replace(model, correct=correct[model.model]) for model in oriented.models)
    return replace(oriented, models=models), correct


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


def _selected(design: Design, answers: BenchmarkItems, index: int) -> np.ndarray:
    return design.selected[answers.models[index].model]


def _resample(correct: Values, counts: np.ndarray) -> Values:
    """Bootstrap means (resamples, n) of every model, from the same draws of items."""
    means = resample_item_means(np.concatenate(list(correct.values())), counts)
    ends = np.cumsum([len(values) for values in correct.values()])[:-1]
    return dict(zip(correct, np.split(means, ends, axis=1), strict=True))


def _quality_of(curves: list[np.ndarray], options: SignalConventions, counts: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean signal quality over models of item scores [(n, items)], and of its bootstrap (resamples,)."""

    def mean_quality(means: list[np.ndarray]) -> np.ndarray:
        return mean_of_known([signal_quality(mean, options.convention, options.ties).signal_quality for mean in means])

    value = float(mean_quality([scores.mean(axis=1) for scores in curves]))
    if not len(counts):
        return value, np.array([])
    means = resample_item_means(np.concatenate(curves), counts)
    ends = np.cumsum([len(scores) for scores in curves])[:-1]
    return value, mean_quality(np.split(means, ends, axis=1))


def _metrics(
    answers: BenchmarkItems, options: SignalConventions, counts: np.ndarray
) -> dict[str, MetricQuality] | Missing:
    """Signal quality under every item metric that the table has what it needs for, accuracy first."""
    results: dict[str, MetricQuality] = {}
    accuracy: tuple[float, np.ndarray] | None = None
    for metric, described in METRICS.items():
        if any(missing_for(answers, model, metric) for model in answers.models):
            continue
        curves = [model_scores(answers, model, metric) for model in answers.models]
        if any(np.isnan(scores).any() for scores in curves):
            continue
        value, draws = _quality_of(curves, options, counts)
        quality = known(value, too_few_checkpoints(options))
        unknown = Missing("Accuracy is unknown for some items.")
        less: Value | None = unknown
        less_interval: Bounds | None = unknown
        if metric == "accuracy":
            accuracy = value, draws
            less = less_interval = None
        elif accuracy is not None:
            difference = known(value - accuracy[0], too_few_checkpoints(options))
            less, less_interval = difference, bounds(difference, draws - accuracy[1], -1.0, 1.0)
        interval = bounds(quality, draws, 0.0, 1.0)
        results[metric] = MetricQuality(quality, interval, less, less_interval, described.label)
    return results or Missing("Other item scores need the log-likelihoods of the choices and the right choice.")


def too_few_checkpoints(options: SignalConventions) -> str:
    """Why a model has no signal quality."""
    return (
        f"Signal quality needs {fewest_checkpoints(options.convention)} selected checkpoints of a model for its "
        "autocorrelation."
    )


def _trials(
    answers: BenchmarkItems, facts: pd.DataFrame, options: SignalConventions, seed: int
) -> tuple[list[Trial] | Missing, tuple[str, ...]]:
    """The competition's filters under every split that the models allow, and notes on those that cannot be tried."""
    if any(missing_for(answers, model, "confidence_margin") for model in answers.models):
        return Missing("The filters need the log-likelihoods of the choices and the right choice."), ()
    answers = with_scores_only(answers, ("confidence_margin", "log_probability_gap", "probability"))
    candidates = Candidates(answers.doc_ids, answers)
    sheet = facts.reset_index(names="model")
    if not folds_by_design(candidates, sheet):
        return Missing("Filters cannot be judged without a second model or more checkpoints."), ()
    trials, notes = [], []
    for name, item_filter, metric in FILTERS:
        if missing := _missing_lengths(item_filter, answers):
            notes.append(f"{answers.benchmark}: the filter '{name}' was not tried: {missing}.")
            continue
        dependence = _length_dependence(item_filter, candidates, answers)
        for score in ("correct", metric):
            generator = np.random.default_rng(seed)
            judged = judge([item_filter], candidates, sheet, score, generator, CONTROLS, options.convention)
            trials += [_trial(name, score, design, trial, dependence) for design, trial in judged.items()]
    return trials, tuple(notes)


def _trial(name: str, score: str, design: str, trial: FilterTrial, length_dependence: Value) -> Trial:
    nothing = "The filter keeps no item where it was fitted."
    in_sample = known(trial.in_sample, "The filter keeps no item when it sees all models that are scored.")
    held_out = known(trial.held_out, nothing)
    ratio = known(trial.held_out, nothing)
    if not trial.kept_in_sample or not trial.unfiltered:
        ratio = Missing("No score per item: the filter keeps no item, or all items together score 0.")
    elif is_known(ratio):  # held-out quality per item that was kept, over that of all items
        ratio = per_item_score_ratio(trial.held_out, trial.kept_in_sample, trial.unfiltered, trial.items)
    return Trial(
        filter=name,
        score=score,
        design=design,
        unfiltered=trial.unfiltered,
        in_sample=in_sample,
        held_out=held_out,
        optimism_gap=known(trial.optimism_gap, nothing) if is_known(in_sample) else in_sample,
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


def _length_dependence(item_filter: ItemFilter, candidates: Candidates, answers: BenchmarkItems) -> Value:
    """Correlation of being kept, over all models, with the length of the right answer."""
    if answers.models[0].tokens is None and answers.characters is None:
        return Missing("The lengths of the choices are unknown.")
    found = length_dependence(item_filter.keep(candidates), answer_lengths(answers))
    return known(found, "The filter keeps all items or none, or all right answers are equally long.")


def _missing_lengths(item_filter: ItemFilter, answers: BenchmarkItems) -> str | None:
    if not (isinstance(item_filter, TopShare) and item_filter.length_matched):
        return None
    if answers.models[0].tokens is None and answers.characters is None:
        return "lengths of the choices are unknown"
    if np.ptp(answer_lengths(answers)) == 0:
        return "all right answers are equally long"
    return None


def _subgroups(
    answers: BenchmarkItems, direction: float, options: SignalConventions, resamples: int, seed: int
) -> list[Subgroup] | Missing:
    """Views by subject and by length of the gold answer, where there are at least two groups."""
    subgroups = []
    for kind, name, inside in _groupings(answers):
        if inside.sum() < MINIMUM_SUBGROUP:
            continue
        curves = [model.correct[:, inside] for model in answers.models]
        clusters = subject_numbers(answers.subjects[inside])
        counts = draw_items(int(inside.sum()), resamples, np.random.default_rng(seed), clusters)
        value, draws = _quality_of(curves, options, counts)
        quality = known(value, too_few_checkpoints(options))
        subgroups.append(
            Subgroup(
                kind=kind,
                name=str(name),
                items=int(inside.sum()),
                signal_quality=quality,
                interval=bounds(quality, draws, 0.0, 1.0),
                last_score=direction * float(np.mean([scores[-1].mean() for scores in curves])),
                last_log_likelihood_per_token=_last_log_likelihood(answers, inside),
            )
        )
    return subgroups or Missing(f"The items have no two subjects or answer lengths, or under {MINIMUM_SUBGROUP} each.")


def _groupings(answers: BenchmarkItems) -> list[tuple[str, str, np.ndarray]]:
    """Kind, name and items (items,) of every group."""
    groupings = []
    if len(set(answers.subjects)) > 1:
        groupings += [("subject", name, answers.subjects == name) for name in sorted(set(answers.subjects)) if name]
    with_lengths = answers.models[0].tokens is not None or answers.characters is not None
    if with_lengths and answers.gold is not None:
        lengths = answer_lengths(answers)
        strata = length_strata(lengths, STRATA)
        unit = "tokens" if answers.models[0].tokens is not None else "characters"
        for stratum in range(int(strata.max()) + 1) if strata.max() else ():
            inside = strata == stratum
            low, high = lengths[inside].min(), lengths[inside].max()
            groupings.append(("answer length", f"{low:g} to {high:g} {unit}", inside))
    return groupings


def _last_log_likelihood(answers: BenchmarkItems, inside: np.ndarray) -> Value:
    metric = "log_likelihood_per_token"
    lacks = [missing_for(answers, model, metric) for model in answers.models]
    if any(lacks):
        return Missing(f"The items table lacks {next(filter(None, lacks))}.")
    # The last checkpoints first: copying all of them for every subgroup would take longer than all the rest
    last = answers.rows([(i, [len(m.checkpoints) - 1]) for i, m in enumerate(answers.models)]).take(inside)
    mean = float(np.mean([model_scores(last, model, metric).mean() for model in last.models]))
    return known(mean, "Some right answers have no log-likelihood.")


def _compliance_null(
    design: Design, correct: Values, options: SignalConventions, chance: Value, exchanges: int, seed: int
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
        science, web = exchanged_curves(first.T, second.T, exchanges, np.random.default_rng(seed))
        draws.append(compliance(science, web, options.normalisation, chance if is_known(chance) else None).value)
    return mean_of_known(draws)
