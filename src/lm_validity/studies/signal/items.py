"""What a benchmark's items add: resampled curves, other item scores, filters on trial, subjects and answer lengths.

`analyze_items` is called while a benchmark's items are in memory; the sections show what it found.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.config.sections import SignalConventions
from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, is_known, known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.signal.benchmark import (
    SKIPPED,
    Bounds,
    CurveDesign,
    Draws,
    ItemAnalysis,
    SignalData,
    Value,
    Values,
    as_numbers,
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
from lm_validity.studies.signal.filters.recipe import DESIGNS, folds_by_design, judge
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
from lm_validity.words import count, decimal, listing, percent

CONTROLS = 200  # random choices of the same size beside every filter
SIZES = (100, 300, 1000, 3000, 10_000)  # items at which benchmarks are compared
SUBGROUP_RESAMPLES = 200
FEWEST_SUBJECTS = 10  # to draw whole subjects: with fewer their spread is too uncertain
MINIMUM_SUBGROUP = 10  # items; a curve of fewer is mostly ties
SHOWN_SUBGROUPS = 60
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
    answers, correct = aligned
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
    noise_free_ends = np.nan, np.nan
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


def _aligned(design: CurveDesign, answers: BenchmarkItems) -> tuple[BenchmarkItems, Values] | Missing:
    """The answers of the curves' models and checkpoints, oriented, and their scores (n, items) by model.

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
        draws.append(compliance(science, web, options.normalisation, number(chance))[0])
    return mean_of_known(draws)


def _means(curves: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Bootstrap means [(resamples, n)] of item scores [(n, items)], from the same draws of items."""
    means = resample_item_means(np.concatenate(curves), counts)
    return np.split(means, np.cumsum([len(curve) for curve in curves])[:-1], axis=1)


def _quality_of(curves: list[np.ndarray], options: SignalConventions, counts: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean signal quality over models of item scores [(n, items)], and of its bootstrap (resamples,)."""

    def mean_quality(means: list[np.ndarray]) -> np.ndarray:
        return mean_of_known([signal_quality(mean, options).signal_quality for mean in means])

    value = float(mean_quality([scores.mean(axis=1) for scores in curves]))
    return value, mean_quality(_means(curves, counts)) if len(counts) else np.array([])


def _each(data: SignalData, part: str) -> dict[str, Any]:
    """A part of every benchmark's item analysis, or why there is none."""
    return {
        name: benchmark.items if isinstance(benchmark.items, Missing) else getattr(benchmark.items, part)
        for name, benchmark in data.benchmarks.items()
    }


# ----------------------------------------------------------------------------------------------------------------------
# Filters, on models and checkpoints that they did not see.


def _trials(
    answers: BenchmarkItems, facts: pd.DataFrame, options: SignalConventions
) -> tuple[list[dict[str, object]] | Missing, list[str]]:
    """The competition's filters under every split that the models allow, and notes on those that cannot be tried."""
    if any(missing_for(answers, model, "confidence_margin") for model in answers.models):
        return Missing("The filters need the log-likelihoods of the choices and the right choice."), []
    answers = with_scores_only(answers, ("confidence_margin", "log_probability_gap", "probability"))
    candidates = Candidates(answers.doc_ids, answers)
    sheet = facts.reset_index(names="model")
    if not folds_by_design(candidates, sheet):
        return Missing("Filters cannot be judged without a second model or more checkpoints."), []
    lengths, trials, notes = answer_lengths(answers), [], []
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
                trials.append({"filter": name, "score": score, "design": design, **_trial(trial, dependence)})
    return trials, notes


def _trial(trial: FilterTrial, length_dependence: Value) -> dict[str, object]:
    """A trial as summary.json has it: what the filter leaves unknown with its reason."""
    nothing = "The filter keeps no item where it was fitted."
    if np.isnan(trial.unfiltered):
        nothing = "The score is unknown for some items, such as those with one choice."
    in_sample = known(trial.in_sample, "The filter keeps no item when it sees all models that are scored.")
    values = {name: known(value, nothing) if isinstance(value, float) else value for name, value in vars(trial).items()}
    if isinstance(in_sample, Missing):
        values |= {"in_sample": in_sample, "optimism_gap": in_sample}
    ratio: Value = values["held_out"]
    if not trial.kept_in_sample or not trial.unfiltered:
        ratio = Missing("No score per item: the filter keeps no item, or all items together score 0.")
    elif is_known(ratio):
        ratio = known(trial.per_item_score_ratio, nothing)
    return values | {"length_dependence": length_dependence, "per_item_score_ratio": ratio}


def filters_on_trial(data: SignalData) -> Part:
    """In-sample, held-out and random choices side by side, and whether any filter holds beyond its own data."""
    summary = _each(data, "trials")
    rows = [{"benchmark": name, **trial} for name, trials in summary.items() if is_known(trials) for trial in trials]
    if not rows:
        return Part({"filters": summary})
    table = pd.DataFrame(rows).drop(columns="kept_by_fold")
    numbers = ["unfiltered", "in_sample", "held_out", "optimism_gap", "control_mean", "control_high", "p"]
    frame = as_numbers(table, numbers)
    charts = []
    for index, (name, trials) in enumerate(frame.groupby("benchmark", sort=False)):
        dots = [
            {"row": f"{trial.filter}, {DESIGNS[trial.design][0]}", "kind": kind, **values}
            for trial in trials[trials["score"] != "correct"].itertuples()
            for kind, values in {
                "where it was fitted": {"value": trial.in_sample},
                "held out": {"value": trial.held_out},
                "random, same size": {
                    "value": trial.control_mean, "low": trial.control_mean, "high": trial.control_high
                },
            }.items()
        ]  # fmt: skip
        drawn = pd.DataFrame(dots, columns=["row", "kind", "value", "low", "high"])
        kinds = {"where it was fitted": "#d55e00", "held out": "#2f7ec0", "random, same size": "#8a8a8a"}
        chart = figures.interval_dots(
            drawn,
            y="row",
            value="value",
            title="Signal quality, mean over models",
            y_order=list(dict.fromkeys(drawn["row"])),
            offset="kind",
            color=figures.listed_color("kind", kinds),
            tooltip=figures.tooltips(row="Filter", kind="Items chosen", value="Signal quality|.3f"),
            zero=True,
            row_height=30,
        )
        caption = "Each filter by the item score of its authors. Grey: random choices of the same number of items, "
        caption += "up to their 97.5th percentile."
        charts.append(Figure(f"filters_{index}", f"Filters on {name}", chart, caption=caption))
    scores = {metric: described.label for metric, described in METRICS.items()} | {"correct": "the benchmark's own"}
    designs = " ".join(
        f"{short.capitalize()}: {text}." for design, (short, text) in DESIGNS.items() if design in set(frame["design"])
    )
    section = Section(
        "Filters on data they were not fitted on",
        hint="whether fewer items give more signal",
        explanation=f"Ignore the per item score ratio: it is near 2 for any half of the items, good or bad. {designs}",
        figures=charts,
        tables=[
            Table(
                "filters",
                "All trials",
                table.replace({"design": {design: short for design, (short, _) in DESIGNS.items()}, "score": scores}),
                formats=dict.fromkeys([*numbers, "length_dependence", "per_item_score_ratio"], ".3f") | {"p": "p"},
                labels={
                    "score": "item score",
                    "in_sample": "where it was fitted",
                    "optimism_gap": "gain lost on new data",
                    "control_mean": "random choices, mean",
                    "control_high": "97.5th percentile of random choices",
                    "kept_in_sample": "items kept",
                },
                folded=True,
            )
        ],
    )
    return Part({"filters": summary}, section, [_filter_finding(frame)])


def _filter_finding(frame: pd.DataFrame) -> Finding | None:
    judged = frame[frame["p"].notna()]
    if judged.empty:
        return None
    basis = (
        f"A filter keeps some of a benchmark's items. {count(len(judged), 'trial')} of filters on models or "
        f"checkpoints that they did not see, each against {CONTROLS} random choices of as many items."
    )
    # A filter can keep items in every fold and none over all models: there is no optimism to tell of
    gaps = [gap for gap in judged["optimism_gap"] if np.isfinite(gap)]
    if gaps:
        basis += f" On the data that they were fitted on, they gain {decimal(sum(gaps) / len(gaps), signed=True)} more."
    useful = judged[judged["useful"]]
    if useful.empty:
        return Finding("The filters found nothing that holds beyond the data they were fitted on.", basis)
    gains = useful["held_out"] - useful["control_mean"]
    best = useful.loc[gains.idxmax()]
    sentence = (
        f"In {len(useful)} of {count(len(judged), 'trial')} ({percent(len(useful) / len(judged))}), a filter of items "
        "beats both no filter and 97.5% of random choices of as many items. By chance, at most 2.5% of trials would. "
        f"The largest gain over random choices is {decimal(gains.max(), signed=True)}, with the filter "
        f"{best['filter']} on {best['benchmark']}."
    )
    return Finding(sentence, basis)


# ----------------------------------------------------------------------------------------------------------------------
# The same items under other scores.


def _metrics(
    answers: BenchmarkItems, options: SignalConventions, counts: np.ndarray
) -> dict[str, dict[str, object]] | Missing:
    """Signal quality under every item metric that the table has what it needs for, accuracy first."""
    results: dict[str, dict[str, Any]] = {}
    too_few = too_few_checkpoints(options)
    for metric in METRICS:
        if any(missing_for(answers, model, metric) for model in answers.models):
            continue
        curves = [model_scores(answers, model, metric) for model in answers.models]
        if any(np.isnan(scores).any() for scores in curves):
            continue
        value, draws = _quality_of(curves, options, counts)
        quality = known(value, too_few)
        results[metric] = {"signal_quality": quality, "interval": bounds(quality, draws, 0.0, 1.0)}
        # signal quality minus that of accuracy, which is the first, and known where another score is
        less: Value | None = None
        less_interval: Bounds | None = None
        if metric == "accuracy":
            of_accuracy, draws_of_accuracy = value, draws
        else:
            less = known(value - of_accuracy, too_few)
            less_interval = bounds(less, draws - draws_of_accuracy, -1.0, 1.0)
        results[metric] |= {"less_accuracy": less, "less_accuracy_interval": less_interval}
    return results or Missing("Other item scores need the log-likelihoods of the choices and the right choice.")


def item_metrics(data: SignalData) -> Part:
    """Signal quality of a benchmark if its items were scored otherwise; the same draws for all metrics."""
    summary = _each(data, "metrics")
    with_items = {name: metrics for name, metrics in summary.items() if is_known(metrics)}
    rows = [
        {
            "benchmark": name,
            "label": METRICS[metric].label,
            "signal_quality": entry["signal_quality"],
            **as_columns(entry["interval"]),
            "less_accuracy": entry["less_accuracy"],
            **as_columns(entry["less_accuracy_interval"], "less_accuracy_low", "less_accuracy_high"),
        }
        for name, metrics in with_items.items()
        for metric, entry in metrics.items()
    ]
    if not rows:
        return Part({"item_metrics": summary})
    frame = pd.DataFrame(rows)
    labels = [described.label for described in METRICS.values() if described.label in set(frame["label"])]
    # A score that a benchmark lacks is a grey cell, not a hole
    grid = pd.MultiIndex.from_product([list(with_items), labels], names=["benchmark", "label"])
    drawn = as_numbers(frame, ["signal_quality"])
    cells = drawn.set_index(["benchmark", "label"])[["signal_quality"]].reindex(grid).reset_index()
    chart = figures.heatmap(
        cells,
        x="benchmark",
        y="label",
        value="signal_quality",
        title="Signal quality",
        x_order=list(with_items),
        y_order=labels,
        tooltip=figures.tooltips(label="Item score", benchmark="Benchmark", signal_quality="Signal quality|.3f"),
        number_format=".2f",
    )
    minus = {"less_accuracy": "", "less_accuracy_low": ", from", "less_accuracy_high": ", to"}
    section = Section(
        "Item scores",
        hint="the same items scored otherwise",
        explanation="Scores of different tokenizers are not comparable, and log-probability scores depend on the "
        "length of answers. Compare within a row, and look at the views by length.",
        figures=[Figure("item_metrics", "Signal quality by item score", chart, wide=True)],
        tables=[
            Table(
                "item_metrics",
                "With intervals",
                frame,
                formats=dict.fromkeys(frame.columns[2:], ".3f"),
                labels={"label": "item score"} | {name: f"minus that of accuracy{end}" for name, end in minus.items()},
                folded=True,
            )
        ],
    )
    return Part({"item_metrics": summary}, section)


# ----------------------------------------------------------------------------------------------------------------------
# Subjects and answer lengths.


def _subgroups(
    answers: BenchmarkItems, direction: float, options: SignalConventions, resamples: int
) -> list[dict[str, object]] | Missing:
    """Views by subject and by length of the gold answer, where there are at least two groups."""
    subgroups = []
    metric = "log_likelihood_per_token"
    lacks = next(filter(None, (missing_for(answers, model, metric) for model in answers.models)), None)
    for kind, name, inside in _groupings(answers):
        if inside.sum() < MINIMUM_SUBGROUP:
            continue
        curves = [model.correct[:, inside] for model in answers.models]
        clusters = _clusters(answers.subjects[inside])
        counts = draw_items(int(inside.sum()), resamples, np.random.default_rng(SEED), clusters)
        value, draws = _quality_of(curves, options, counts)
        quality = known(value, too_few_checkpoints(options))
        likelihood: Value = Missing(f"The items table lacks {lacks}.")
        if not lacks:
            # The last checkpoints first: copying all of them for every subgroup would take longer than all the rest
            last = answers.rows([(i, [len(m.checkpoints) - 1]) for i, m in enumerate(answers.models)]).take(inside)
            mean = float(np.mean([model_scores(last, model, metric).mean() for model in last.models]))
            likelihood = known(mean, "Some right answers have no log-likelihood.")
        subgroups.append(
            {
                "kind": kind,
                "name": str(name),
                "items": int(inside.sum()),
                "signal_quality": quality,
                "interval": bounds(quality, draws, 0.0, 1.0),
                "last_score": direction * float(np.mean([scores[-1].mean() for scores in curves])),
                "last_log_likelihood_per_token": likelihood,
            }
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


def subgroups(data: SignalData) -> Part:
    """Views by subject and by length of the gold answer."""
    summary = _each(data, "subgroups")
    rows = [
        {"benchmark": name, **{key: value for key, value in group.items() if key != "interval"}}
        | as_columns(group["interval"])
        for name, groups in summary.items()
        for group in (groups if is_known(groups) else ())
    ]
    if not rows:
        return Part({"subgroups": summary})
    frame = pd.DataFrame(rows)
    numbers = ["signal_quality", "last_score", "last_log_likelihood_per_token", "low", "high"]
    charts = []
    for kind, groups in as_numbers(frame, numbers).groupby("kind"):
        drawn = groups.assign(row=groups["benchmark"] + ": " + groups["name"]).head(SHOWN_SUBGROUPS)
        caption = f"The first {SHOWN_SUBGROUPS} of {len(groups)}." if len(drawn) == SHOWN_SUBGROUPS else ""
        chart = figures.interval_dots(
            drawn,
            y="row",
            value="signal_quality",
            title="Signal quality, mean over models",
            y_order=list(drawn["row"]),
            color=alt.value(figures.CATEGORY_COLORS[0]),
            tooltip=figures.tooltips(row="Items", items="Number|d", signal_quality="Signal quality|.3f"),
            zero=True,
        )
        by_subject = kind == "subject"
        name, title = ("subjects", "By subject") if by_subject else ("answer_lengths", "By length of the gold answer")
        charts.append(Figure(name, title, chart, caption=caption))
    table = Table("subgroups", "All groups", frame, formats=dict.fromkeys(numbers, ".3f"), folded=True)
    return Part(
        {"subgroups": summary},
        Section("Subjects and answer lengths", hint="groups of items", figures=charts, tables=[table]),
    )
