"""What a benchmark scores: signal quality beside curves that learn nothing, compliance, and the criteria of others."""

from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.missing import Missing, Reason, ReasonCode, as_columns, is_known, known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.signal.benchmark import (
    CHOSEN,
    NO_ERRORS,
    SKIPPED,
    UNKNOWN_TOKENS,
    BenchmarkCurves,
    Bounds,
    Draws,
    SignalData,
    Value,
    as_numbers,
    bounds,
    compliance_of,
    known_bounds,
    mean_of_known,
    p_value,
    parameters,
    part,
    shown_or_not,
    too_few_checkpoints,
)
from lm_validity.studies.signal.curves import align
from lm_validity.studies.signal.items import CONTROLS, SIZES
from lm_validity.studies.signal.statistics.quality import (
    FINETASKS_MONOTONICITY,
    FINETASKS_NON_RANDOMNESS,
    FINETASKS_SIGNAL_TO_NOISE,
    LAST_CHECKPOINTS,
    MINIMUM_RELIABILITY,
    above_chance_from,
    fewest_checkpoints,
    noise_levels,
    ordering_consistency,
    pair_share_interval,
    quality_by_errors,
    rank_correlation,
    seed_criteria,
    signal_to_noise,
    signal_to_noise_interval,
    step_direction,
    total_variation,
    weight_sensitivity,
)
from lm_validity.studies.signal.statistics.ranking import NORMALISATIONS, decision_accuracy
from lm_validity.words import count, decimal, listing, with_interval

NOISE_DRAWS = 20_000
NO_POINT = "A curve needs two selected checkpoints."
AT_CHANCE = Missing("The score is not above chance by 1.96 standard errors at the last point.")
AUTOCORRELATION = {"code": "scoring code", "paper": "paper"}
TIES = {"stable": "count as an increase", "average": "share their ranks"}
WEIGHT_DRAWS = 10_000
NO_CURVE = "No model has two selected checkpoints."
NORMALISED = {
    "none": "not divided by anything",
    "joint_minmax": "divided by the joint range of both models",
    "sci_range": "divided by the range of the science model",
    "above_chance": "divided by the science model's gain over chance",
}


# ----------------------------------------------------------------------------------------------------------------------
# Signal quality: the numbers.


def _of_model(data: SignalData, benchmark: BenchmarkCurves, model: str) -> dict[str, Any]:
    """Scores of one model's learning curve, over the selected checkpoints."""
    too_few, scores = too_few_checkpoints(data.options), benchmark.scores.quality[model]
    curve, null = benchmark.curves[model].at(benchmark.selected[model]), benchmark.quality_null[model]
    monotonicity = known(float(scores.monotonicity), NO_POINT)
    autocorrelation = known(float(scores.autocorrelation), too_few)
    quality = known(float(scores.signal_quality), too_few)

    def interval(value: Value, name: str) -> Bounds:
        return bounds(value, benchmark.draws(lambda resampled: getattr(resampled.quality[model], name)), 0.0, 1.0)

    unknown = quality if isinstance(quality, Missing) else None if null.size else SKIPPED
    curve_of_model = benchmark.curves[model]
    empty = Missing("No checkpoint of this curve is selected.")
    return {
        "monotonicity": monotonicity,
        "monotonicity_interval": interval(monotonicity, "monotonicity"),
        "rank_correlation": known(float(scores.rank_correlation), NO_POINT),
        "autocorrelation": autocorrelation,
        "autocorrelation_interval": interval(autocorrelation, "autocorrelation"),
        "signal_quality": quality,
        "signal_quality_interval": interval(quality, "signal_quality"),
        "signal_quality_null_p": p_value(quality, null),
        "signal_quality_null_mean": unknown or float(np.mean(null)),
        "signal_quality_null_95": unknown or float(np.quantile(null, 0.95)),
        # against random walks; null_p is against white noise
        "signal_quality_walk_p": p_value(quality, benchmark.quality_walk[model]),
        "noise_free_quality": _noise_free(benchmark, model, "value"),  # of endlessly many items
        "reliability": _noise_free(benchmark, model, "reliability"),  # share of variance that is no noise of items
        "above_chance_from_b": _above_chance_from(
            benchmark, curve_of_model.values, benchmark.errors[model], curve_of_model.tokens_b
        ),
        "checkpoints": len(curve.values),
        # last minus first value: the size that a rank correlation does not see
        "net_rise": float(curve.values[-1] - curve.values[0]) if len(curve.values) else empty,
        "degenerate": bool(scores.degenerate) if len(curve.values) else empty,
    }


def _of_benchmark(data: SignalData, benchmark: BenchmarkCurves) -> dict[str, Any]:
    """Means over a benchmark's models."""
    options, items, alignment = data.options, benchmark.items, benchmark.alignment
    by_size = {
        size: known(float(mean), too_few_checkpoints(options))
        for size, mean in benchmark.scores.quality_by_size.items()
    }

    def draws_of(size: str) -> Draws:
        return benchmark.draws(lambda resampled: resampled.quality_by_size[size])

    by_model = [_noise_free(benchmark, model, "value") for model in benchmark.scored]
    noise_free: Value = next((value for value in by_model if isinstance(value, Missing)), None) or float(
        np.mean([number(value) for value in by_model])
    )
    noise_free_interval: Bounds | Value = noise_free
    if is_known(items) and is_known(noise_free):
        reason = (
            "It needs resampling, and 40 items or 20 subjects. The figure must exist with each of 20 groups of items "
        )
        noise_free_interval = known_bounds(*items.noise_free_interval, f"{reason}left out.")
    above: Value = Missing(alignment.reason)
    if not alignment.reason:
        # The mean's standard error is the mean of the models' own, as though their errors were one: models answer the
        # same items
        mean, errors = (
            benchmark.at_common_points(values).mean(axis=0) for values in (benchmark.values, benchmark.errors)
        )
        above = _above_chance_from(benchmark, mean, errors, alignment.tokens_b)
    again = benchmark.training_noise
    return {
        "signal_quality": benchmark.quality,
        "signal_quality_interval": benchmark.quality_interval,
        "signal_quality_null_p": p_value(benchmark.quality, benchmark.mean_over_models(benchmark.quality_null)),
        "signal_quality_walk_p": benchmark.walk_p,
        "steady": data.steady[benchmark.benchmark],
        "rank_correlation": known(benchmark.rank_correlation, NO_POINT),
        "direction_assumed": benchmark.direction_assumed,  # neither the sheet nor the scores say it
        "signal_quality_by_size": by_size,
        "signal_quality_by_size_interval": {
            size: bounds(mean, draws_of(size), 0.0, 1.0) for size, mean in by_size.items()
        },
        "signal_quality_by_items": items if isinstance(items, Missing) else items.by_items,
        "signal_quality_by_errors": _quality_by_errors(data, benchmark),  # None where items are known
        "noise_free_quality": noise_free,  # mean over models, all of whose curves are at least half signal
        "noise_free_quality_interval": noise_free_interval,
        "models": len(benchmark.scored),
        "items": items if isinstance(items, Missing) else items.items,
        "chance": benchmark.chance,
        "models_above_chance": benchmark.models_above_chance,
        "above_chance_from_b": above,  # of the mean over models at their common points
        "interval_source": benchmark.interval_source,
        "training_noise": again if isinstance(again, Missing) else again.sd,
        "reruns": 0 if isinstance(again, Missing) else again.reruns,
        "separable_at_end": benchmark.separable_at_end,
        "common": benchmark.common,
    }


def _noise_free(benchmark: BenchmarkCurves, model: str, quantity: str) -> Value:
    """Noise-free quality or reliability of a model that counts in the benchmark's scores."""
    if isinstance(benchmark.items, Missing):
        return benchmark.items
    noise_free = benchmark.items.noise_free
    if isinstance(noise_free, Missing):
        return noise_free
    if model not in noise_free:
        return Missing("The model is kept for comparison and has no noise-free signal quality.")
    reason = "This needs eight checkpoints and a curve that is not constant."
    if quantity == "value" and noise_free[model].reliability < MINIMUM_RELIABILITY:
        reason = "More than half of the curve's variance is noise of its items."
    return known(getattr(noise_free[model], quantity), reason)


def _above_chance_from(benchmark: BenchmarkCurves, values: np.ndarray, errors: np.ndarray, tokens: np.ndarray) -> Value:
    """Tokens from which a score is above chance for good."""
    if isinstance(benchmark.chance, Missing):
        return benchmark.chance
    if np.isnan(errors).any():
        return NO_ERRORS
    first = above_chance_from(values, errors, benchmark.chance_level)
    return AT_CHANCE if first is None else known(float(tokens[first]), UNKNOWN_TOKENS)


def _quality_by_errors(data: SignalData, benchmark: BenchmarkCurves) -> dict[int, float] | Missing | None:
    """Signal quality at fewer items from their number and the standard errors; None where the items are known."""
    if is_known(benchmark.items):
        return None
    options, selected = data.options, benchmark.selected_curves
    curves = [selected[model] for model in benchmark.scored]
    curves = [curve for curve in curves if len(curve.values) >= fewest_checkpoints(options.convention)]
    if not curves:
        return Missing(too_few_checkpoints(options))
    numbers = [curve.items for curve in curves]
    if np.isnan(numbers).any() or any(np.isnan(curve.errors).any() for curve in curves):
        return Missing(
            Reason("It needs the items, or their number and the standard error of every score.", ReasonCode.NO_ITEMS)
        )
    pairs = [(curve.values, curve.errors) for curve in curves]
    rng = np.random.default_rng(0)
    quality = quality_by_errors(pairs, numbers, SIZES, CONTROLS, rng, options)
    return quality or Missing(Reason(f"The benchmark has fewer than {SIZES[0]} items.", ReasonCode.TOO_FEW))


class _NoiseLevel(NamedTuple):
    """The commonest number of checkpoints, and the mean quality of white noise and of a random walk."""

    checkpoints: int
    white_noise: float
    random_walk: float


def _noise_level(data: SignalData) -> _NoiseLevel | None:
    """The commonest number of selected checkpoints, and the mean quality of so much white noise and random walk."""
    selected = [int(mask.sum()) for benchmark in data.benchmarks.values() for mask in benchmark.selected.values()]
    enough = [number for number in selected if number >= fewest_checkpoints(data.options.convention)]
    if not enough:
        return None
    commonest = max(set(enough), key=enough.count)
    return _NoiseLevel(commonest, *noise_levels(commonest, NOISE_DRAWS, np.random.default_rng(0), data.options))


# ----------------------------------------------------------------------------------------------------------------------
# Signal quality: the section.


def steady_improvement(data: SignalData) -> Part:
    """Signal quality by benchmark and by model, beside that of curves that learn nothing."""
    by_benchmark = {name: _of_benchmark(data, benchmark) for name, benchmark in data.benchmarks.items()}
    by_model = {
        model: {
            name: _of_model(data, benchmark, model)
            for name, benchmark in data.benchmarks.items()
            if model in benchmark.curves
        }
        for model in data.learning.models
    }
    noise = _noise_level(data)
    # at the largest number of items that all benchmarks have, of which that many can be had
    by_errors = {
        n: signal_quality
        for n, entry in by_benchmark.items()
        if is_known(signal_quality := entry["signal_quality_by_errors"])
    }
    matched = {n: by_errors.get(n, entry["signal_quality_by_items"]) for n, entry in by_benchmark.items()}
    frame, of_models = _by_benchmark(by_benchmark, matched), _by_model(data, by_model)
    numbers = ("signal_quality", "low", "high", "p", "walk_p")
    drawn = as_numbers(frame[["benchmark", *numbers]], numbers).sort_values("signal_quality", ascending=False)
    frame = frame.loc[drawn.index]
    of_errors = [
        name
        for name, entry in by_benchmark.items()
        if name in by_errors or entry["interval_source"] == "standard errors"
    ]
    section = Section(
        "Signal quality",
        hint="how steadily scores improve, beside curves that learn nothing",
        explanation=_explained(data, of_errors),
        figures=_figures(drawn, of_models, noise),
        tables=_tables(data, frame, of_models, numbers),
    )
    constant = [
        f"{model} on {name}"
        for name, benchmark in data.benchmarks.items()
        for model, quality in benchmark.scores.quality.items()
        if benchmark.selected[model].any() and quality.degenerate
    ]
    notes = [f"Constant curves, scored 0: {listing(constant)}."] if constant else []
    findings = _findings(data, by_benchmark, noise)
    return Part({"models": by_model, "benchmarks": by_benchmark}, section, findings, notes)


def _by_benchmark(by_benchmark: dict[str, dict[str, Any]], matched: dict[str, Any]) -> pd.DataFrame:
    """A row a benchmark. `matched`: its quality by number of items, shown at the largest number that all have."""
    sizes = [set(quality) for quality in matched.values() if is_known(quality)]
    common = sorted(set.intersection(*sizes))[-1:] if sizes else []
    of_benchmark = ("rank_correlation", "chance", "models_above_chance", "above_chance_from_b", "items")
    return pd.DataFrame(
        [
            {
                "benchmark": name,
                "signal_quality": entry["signal_quality"],
                **as_columns(entry["signal_quality_interval"]),
                "p": entry["signal_quality_null_p"],
                "walk_p": entry["signal_quality_walk_p"],
                "steady": shown_or_not(entry["steady"]),
                **{key: entry[key] for key in of_benchmark},
                **{f"at {n} items": part(matched[name], n) for n in common},
                "noise_free_quality": entry["noise_free_quality"],
                **as_columns(entry["noise_free_quality_interval"], "noise_free_low", "noise_free_high"),
                **{f"size {size}": value for size, value in entry["signal_quality_by_size"].items()},
            }
            for name, entry in by_benchmark.items()
        ]
    )


OF_A_CURVE = ("monotonicity", "autocorrelation", "signal_quality")


def _by_model(data: SignalData, by_model: dict[str, dict[str, dict[str, Any]]]) -> pd.DataFrame:
    """A row a model and benchmark."""
    return pd.DataFrame(
        [
            {
                "model": model,
                "label": data.learning.facts.at[model, "label"],
                "benchmark": name,
                **{column: entry[column] for column in OF_A_CURVE},
                **as_columns(entry["signal_quality_interval"]),
                "p": entry["signal_quality_null_p"],
                "null_mean": entry["signal_quality_null_mean"],
                "null_95": entry["signal_quality_null_95"],
                "walk_p": entry["signal_quality_walk_p"],
                **{key: entry[key] for key in ("above_chance_from_b", "rank_correlation", "net_rise", "checkpoints")},
            }
            for model, entries in by_model.items()
            for name, entry in entries.items()
        ]
    )


def _figures(drawn: pd.DataFrame, of_models: pd.DataFrame, noise: _NoiseLevel | None) -> list[Figure]:
    """The benchmarks of `drawn` in its order, over models and by model, with what curves that learn nothing have."""
    order = list(drawn["benchmark"])
    dots = figures.interval_dots(
        drawn,
        y="benchmark",
        value="signal_quality",
        title="Signal quality, mean over models",
        y_order=order,
        color=alt.value(figures.CATEGORY_COLORS[0]),
        tooltip=figures.tooltips(
            benchmark="Benchmark", signal_quality="Signal quality|.3f", low="Low|.3f", high="High|.3f", p="p|.3f"
        ),
        zero=True,
    )
    if noise is not None:
        dots = figures.layered(dots, *(figures.dashed_lines("at", level) for level in noise[1:]))
    heatmap = figures.heatmap(
        as_numbers(of_models[["label", "benchmark", "signal_quality"]], ["signal_quality"]),
        x="label",
        y="benchmark",
        value="signal_quality",
        title="Signal quality",
        x_order=list(dict.fromkeys(of_models["label"])),
        y_order=order,
        tooltip=figures.tooltips(benchmark="Benchmark", label="Model", signal_quality="Signal quality|.3f"),
        number_format=".2f",
    )
    return [
        Figure("signal_quality", "Mean over models", dots),
        Figure("signal_quality_by_model", "By model", heatmap, wide=True),
    ]


def _tables(data: SignalData, frame: pd.DataFrame, of_models: pd.DataFrame, numbers: tuple[str, ...]) -> list[Table]:
    """The tables in the fold: by benchmark, with its columns of `numbers`, and by model and benchmark."""
    scales = {"above_chance_from_b": data.progress.scale}
    labels = {
        "p": "p (white noise)",
        "walk_p": "p (random walk)",
        "null_mean": "of shuffled checkpoints, mean",
        "null_95": "of shuffled checkpoints, 95th percentile",
        "noise_free_quality": "without noise of items",
        "noise_free_low": "from",
        "noise_free_high": "to",
        "models_above_chance": "models above chance",
        "above_chance_from_b": f"above chance from ({data.progress.words})",
    }
    return [
        Table(
            "signal_quality",
            "By benchmark",
            frame,
            formats=dict.fromkeys((*numbers, "rank_correlation", "chance"), ".3f") | {"p": "p", "walk_p": "p"},
            scales=scales,
            labels=labels,
        ),
        Table(
            "signal_quality_by_model",
            "By model and benchmark",
            of_models.drop(columns="label"),
            labels=labels,
            formats=dict.fromkeys((*OF_A_CURVE, "rank_correlation", "null_mean", "null_95"), ".4f")
            | {"p": "p", "walk_p": "p"},
            scales=scales,
            folded=True,
        ),
    ]


def _explained(data: SignalData, of_errors: list[str]) -> str:
    """What signal quality and its nulls are; `of_errors`: the benchmarks whose intervals are from standard errors."""
    explanation = (
        f"Half monotonicity, half autocorrelation. Autocorrelation is as in the competition's "
        f"{AUTOCORRELATION[data.options.convention]}. Equal scores {TIES[data.options.ties]}. Dashed lines: the means "
        "of curves that learn nothing. White noise has independent points, a random walk independent steps. p (white "
        "noise) compares with shuffled checkpoints and is small for any drift. p (random walk) gives the steps random "
        "signs. Quote this one. More items mean less noise and so a higher signal quality: compare benchmarks at one "
        "number of items or without the noise of items. The interval is for benchmarks of this size, noise included."
    )
    if of_errors:
        explanation += (
            f" For {listing(of_errors, 4)}, intervals and figures at one number of items are based on standard errors, "
            "as if each checkpoint had its own items. Because checkpoints share their items, the figures are too low, "
            "and the intervals too wide, and too low for noisy curves."
        )
    return explanation


def _findings(
    data: SignalData, entries: dict[str, dict[str, Any]], noise: tuple[int, float, float] | None
) -> list[Finding]:
    """The highest and the lowest, how many improve more than drift, and how many are at chance."""
    quality = {
        name: value
        for name, entry in entries.items()
        if is_known(value := entry["signal_quality"]) and name not in data.falling
    }
    basis = f"{count(len(data.learning.models), 'model')}, {count(len(entries), 'benchmark')}, at "
    basis += "the checkpoints of the competition." if data.learning.selection == "e2lm" else "all checkpoints."
    contradictions = []
    if data.falling:
        sentence = f"Is lower better on {listing(data.falling, 4)}? Scores fall steadily there, and nothing says which "
        sentence += "direction is better. Their signal quality is not compared until that is known."
        reason = (
            f"Mean rank correlation of score and checkpoint of {-FINETASKS_MONOTONICITY} or less. Fill in the column "
        )
        contradictions = [Finding(sentence, reason + "`higher_is_better` of the benchmarks sheet.")]
    if not quality:
        return contradictions or [Finding("No signal quality can be computed.", basis)]
    order = sorted(quality, key=lambda name: -quality[name])
    highest, lowest = (
        f"{name}, {with_interval(quality[name], ends if is_known(ends) else None)}"
        for name in (order[0], order[-1])
        for ends in [entries[name]["signal_quality_interval"]]
    )
    sentence = f"Signal quality is highest on {highest}" + (f", and lowest on {lowest}" if len(order) > 1 else "")
    if noise is not None:
        checkpoints, white, walk = noise
        sentence += f". For comparison: over {checkpoints} checkpoints, pure noise has a mean signal quality of "
        sentence += f"{decimal(white)}, and a random walk {decimal(walk)}"
    findings = [*contradictions, Finding(f"{sentence}.", basis)]
    if all(is_known(data.steady[name]) for name in order):
        improving = [name for name in order if data.steady[name]]
        not_improving = [name for name in order if name not in improving]
        sentence = f"Scores improve more steadily than a random walk on {len(improving)} of "
        sentence += count(len(order), "benchmark") + (f" ({listing(improving)})" if improving and not_improving else "")
        sentence += (
            f". On {listing(not_improving, 4)} this cannot be shown, or scores end at chance." if not_improving else "."
        )
        basis = (
            "A test by random signs of the steps between checkpoints, false discovery rate 5% (Benjamini-Hochberg). "
        )
        findings.append(Finding(sentence, f"{basis}It is cautious if curves are noisy."))
    with_chance = {name: above for name, entry in entries.items() if is_known(above := entry["models_above_chance"])}
    if with_chance:
        at_chance = [name for name, above in with_chance.items() if above == 0]
        of_all = f"{count(len(with_chance), 'benchmark')} with a known chance level"
        sentence = f"No model is shown to end above chance on {len(at_chance)} of {of_all}: {listing(at_chance, 4)}."
        if not at_chance:
            sentence = f"On each of {of_all}, at least one model ends above chance."
        basis = "One-sided tests of the last scores by their standard errors, at 5% with Holm's adjustment over models."
        findings.append(Finding(sentence, basis))
    return findings


# ----------------------------------------------------------------------------------------------------------------------
# Compliance and the overall score.


def science_against_web(data: SignalData) -> Part:
    """Science against web models, and the overall score that needs them; no section without such a pair."""
    options = data.options
    scores: dict[str, dict[str, Any]] = {}
    overall: dict[str, Value] = {}
    overall_interval: dict[str, Bounds] = {}
    overall_p: dict[str, Value] = {}
    parts = {}
    for name, benchmark in data.benchmarks.items():
        items, values = benchmark.items, benchmark.values
        null = items if isinstance(items, Missing) else items.compliance_null
        reasons = {normalisation: _no_compliance(benchmark, normalisation) for normalisation in NORMALISATIONS}
        value = known(float(benchmark.scores.compliance), reasons[options.normalisation])
        gap = known(float(benchmark.scores.gap), reasons["none"])
        scores[name] = {
            "value": value,
            "interval": bounds(value, benchmark.draws(lambda resampled: resampled.compliance), 0.0),
            "null_p": p_value(value, null),
            "raw_gap": gap,
            "raw_gap_interval": bounds(gap, benchmark.draws(lambda resampled: resampled.gap)),
            "normalisation": options.normalisation,
            "normalisations": {
                normalisation: known(
                    float(compliance_of(benchmark, values, normalisation, benchmark.chance_level)[0]),
                    reasons[normalisation],
                )
                for normalisation in NORMALISATIONS
            },
            "pairs": [[pair.first, pair.second] for pair in benchmark.compliance_pairs],
            "checkpoints": [len(pair.alignment.progress) for pair in benchmark.compliance_pairs],
        }
        incomplete = "The overall score needs signal quality, ranking consistency and compliance."
        overall[name] = known(float(benchmark.scores.overall), incomplete)
        overall_interval[name] = bounds(overall[name], benchmark.draws(lambda resampled: resampled.overall))
        # when all three parts follow their own nulls, drawn independently
        quality, (_, coin) = benchmark.mean_over_models(benchmark.quality_null), benchmark.order_draws[CHOSEN]
        draws = null if isinstance(null, Missing) else coin
        if not isinstance(null, Missing) and not isinstance(coin, Missing):
            draws = np.stack([quality, coin, null], axis=-1) @ np.array(options.weights)
        overall_p[name] = p_value(overall[name], draws)
        if is_known(overall[name]):
            parts[name] = [benchmark.scores.mean_quality, benchmark.scores.orders[CHOSEN].value, value]
    # over all weightings of the parts
    sensitivity: dict[str, dict[str, Any]] | Missing = Missing(
        "The sensitivity to the weights needs two benchmarks with all three parts."
    )
    if len(parts) > 1:
        components = np.array(list(parts.values()), dtype=float)
        shares = weight_sensitivity(components, WEIGHT_DRAWS, np.random.default_rng(0))
        sensitivity = {
            name: {"share_first": first, "rank_interval": ranks}
            for name, first, *ranks in zip(parts, *shares, strict=True)
        }
    summary = {
        "compliance": scores,
        "overall": overall,
        "overall_interval": overall_interval,
        "overall_null_p": overall_p,
        "weight_sensitivity": sensitivity,
    }
    lacks_part = {"share_first": Missing("The benchmark lacks one of the three parts.")}
    rows = [
        {
            "benchmark": name,
            "compliance": score["value"],
            **as_columns(score["interval"]),
            "p": score["null_p"],
            "raw_gap": score["raw_gap"],
            **as_columns(score["raw_gap_interval"], "gap_low", "gap_high"),
            **{key: value for key, value in score["normalisations"].items() if key != score["normalisation"]},
            "overall": overall[name],
            **as_columns(overall_interval[name], "overall_low", "overall_high"),
            "first_under_weights": sensitivity
            if isinstance(sensitivity, Missing)
            else sensitivity.get(name, lacks_part)["share_first"],
        }
        for name, score in scores.items()
        if is_known(score["value"])
    ]
    if not rows:
        return Part(summary)
    frame = pd.DataFrame(rows).sort_values("compliance", ascending=False)
    positive = [row["benchmark"] for row in rows if number(row["gap_low"]) > 0]
    section = Section(
        "Compliance and overall score",
        hint="models of science texts against models of web texts",
        finding=f"The science model is ahead by more than item noise on {listing(positive)}." if positive else "",
        explanation="Compliance is the science model's mean lead over the web model, and 0 if it is behind. Here the "
        f"lead is {NORMALISED[options.normalisation]}. The other normalisations and the raw gap are "
        "beside it. The interval is for one pair of training runs and does not cover other seeds. First under all "
        "weights: share of weightings of the three parts that rank the benchmark first.",
        tables=[
            Table(
                "compliance",
                "Science against web",
                frame,
                formats=dict.fromkeys(frame.columns[1:], ".3f") | {"p": "p"},
                labels={
                    "none": "not normalised",
                    "joint_minmax": "by joint range",
                    "sci_range": "by science range",
                    "above_chance": "by gain over chance",
                    "first_under_weights": "first under all weights",
                },
            )
        ],
    )
    return Part(summary, section)


def _no_compliance(benchmark: BenchmarkCurves, normalisation: str) -> str:
    """Why compliance is missing, where it is."""
    pairs = benchmark.compliance_pairs
    if not pairs:
        return Reason(
            "There is no pair of a science and a web model of one size (column training_data of the models sheet).",
            ReasonCode.NO_MODEL_PAIR,
        )
    if not any(len(pair.alignment.progress) for pair in pairs):
        return pairs[0].alignment.reason
    if normalisation == "above_chance" and isinstance(benchmark.chance, Missing):
        return benchmark.chance.reason
    return "What the gap is divided by is not above 0: a constant curve, or a science curve at chance."


# ----------------------------------------------------------------------------------------------------------------------
# FineTasks, Signal and Noise, DataDecide.


# of the table: the column, what it holds, and its label
COLUMNS = (
    ("monotonicity", "finetasks.monotonicity", "FineTasks: monotonicity"),
    ("passes", "finetasks.monotonicity_passes", "FineTasks: monotonicity passes"),
    ("seed_signal_to_noise", "finetasks.signal_to_noise", "FineTasks: signal to noise over seeds"),
    ("non_randomness", "finetasks.non_randomness", "FineTasks: non-randomness"),
    ("ordering_consistency", "finetasks.ordering_consistency", "FineTasks: ordering consistency"),
    ("signal", "signal_and_noise.signal", "Signal and Noise: signal"),
    ("noise", "signal_and_noise.noise", "Signal and Noise: noise"),
    ("signal_to_noise", "signal_and_noise.signal_to_noise", "Signal and Noise: signal to noise"),
    ("signal_to_noise_low", "signal_and_noise.signal_to_noise_interval.low", "signal to noise, from"),
    ("signal_to_noise_high", "signal_and_noise.signal_to_noise_interval.high", "signal to noise, to"),
    ("step_direction", "signal_and_noise.step_direction", "Signal and Noise: direction of steps"),
    ("total_variation", "signal_and_noise.total_variation", "Signal and Noise: total variation"),
    ("decision_middle_to_last", "decision_accuracy.middle_to_last",
     "DataDecide: same winner half way as at the last common point"),
    ("decision_low", "decision_accuracy.middle_to_last_interval.low", "same winner, from"),
    ("decision_high", "decision_accuracy.middle_to_last_interval.high", "same winner, to"),
    ("decision_small_to_large", "decision_accuracy.smallest_to_largest",
     "DataDecide: same winner for small as for large models"),
)  # fmt: skip


def criteria_of_others(data: SignalData) -> Part:
    """Values, and the thresholds passed where there are any."""
    criteria = {name: _criteria(data, benchmark) for name, benchmark in data.benchmarks.items()}
    rows = []
    for name, entry in criteria.items():
        values = {f"{source}.{key}": value for source, part in entry.items() for key, value in part.items()}
        for column_name in [column_name for column_name in values if column_name.endswith("_interval")]:
            values |= as_columns(values[column_name], f"{column_name}.low", f"{column_name}.high")
        rows.append({"benchmark": name} | {column: values[column_name] for column, column_name, _ in COLUMNS})
    frame = pd.DataFrame(rows)
    section = Section(
        "Criteria of others",
        hint="FineTasks, Signal and Noise, DataDecide",
        explanation="FineTasks asks for a monotonicity of 0.5, a signal-to-noise ratio over seeds of 20 and a "
        "non-randomness of 3. Its monotonicity is the mean rank correlation of score and checkpoint. Its signal to "
        "noise is the mean score over the spread between seeds. Its non-randomness is the best final score above "
        "chance, over that spread. Its ordering consistency compares the models' order between neighbouring "
        "checkpoints of the second half. Signal and Noise takes the spread between models (signal) and the scatter "
        "within a model (noise) over the last checkpoints, relative to the mean score. Direction of steps is the share "
        "of rising steps minus that of falling ones. Total variation is 0 for a straight climb. DataDecide takes the "
        "share of pairs of models that have the same winner. The papers Signal and Noise and DataDecide give no "
        "thresholds. Intervals of signal to noise are for other checkpoints near the end of these trainings. Those of "
        "the same winner are for other models like these.",
        tables=[
            Table(
                "criteria",
                "Side by side",
                frame,
                formats=dict.fromkeys(frame.columns[3:], ".3f"),
                labels={column: label for column, _, label in COLUMNS},
                folded=len(frame) > 8,
            )
        ],
    )
    return Part({"criteria": criteria}, section)


def _criteria(data: SignalData, benchmark: BenchmarkCurves) -> dict[str, dict[str, object]]:
    selected = benchmark.selected_curves
    curves = [selected[model].values for model in benchmark.scored if len(selected[model].values) >= 2]
    # FineTasks' monotonicity is not clipped
    monotonicity = known(float(mean_of_known([rank_correlation(curve) for curve in curves])), NO_CURVE)
    ratio, non_randomness = _seed_criteria(data, benchmark)
    again = benchmark.training_noise
    training = None if isinstance(again, Missing) else (again.sd, again.reruns)
    noise = signal_to_noise(curves, training=training)
    reason = "Signal to noise needs some noise: the last checkpoints lie on a line."
    if len(curves) < 2 or any(len(curve) < LAST_CHECKPOINTS for curve in curves):
        reason = f"Signal to noise needs two models, and {LAST_CHECKPOINTS} checkpoints of every model."
    elif np.isnan(noise.signal):
        reason = "Signal to noise is relative to the mean score, and needs scores of one sign."
    noise_ratio = known(noise.ratio, reason)
    ends = signal_to_noise_interval(curves, data.section.resamples, np.random.default_rng(0), training=training)
    constant = "All curves are constant, or have fewer than two selected checkpoints."
    ordering, half_way = _in_the_middle(benchmark)
    between_sizes, recipes = _across_sizes(benchmark, data.learning.facts)
    return {
        "finetasks": {
            "monotonicity": monotonicity,
            "monotonicity_passes": _passes(monotonicity, FINETASKS_MONOTONICITY),
            "signal_to_noise": ratio,
            "signal_to_noise_passes": _passes(ratio, FINETASKS_SIGNAL_TO_NOISE),
            "non_randomness": non_randomness,
            "non_randomness_passes": _passes(non_randomness, FINETASKS_NON_RANDOMNESS),
            "ordering_consistency": ordering,
        },
        "signal_and_noise": {
            "signal": known(noise.signal, reason),
            "noise": known(noise.noise, reason),
            "noise_from": "last checkpoints" if training is None else "reruns",
            "signal_to_noise": noise_ratio,
            "signal_to_noise_interval": known_bounds(
                *ends, reason if isinstance(noise_ratio, Missing) else SKIPPED.reason
            ),
            "step_direction": known(float(mean_of_known([step_direction(curve) for curve in curves])), NO_CURVE),
            "total_variation": known(float(mean_of_known([total_variation(curve) for curve in curves])), constant),
        },
        "decision_accuracy": {
            "middle_to_last": half_way,
            "middle_to_last_interval": _share_interval(half_way, len(benchmark.scored)),
            "smallest_to_largest": between_sizes,
            "smallest_to_largest_interval": _share_interval(between_sizes, recipes),
        },
    }


def _passes(value: Value, threshold: float) -> bool | Missing:
    return value if isinstance(value, Missing) else bool(value >= threshold)


def _share_interval(share: Value, models: int) -> Bounds:
    return share if isinstance(share, Missing) else known_bounds(*pair_share_interval(share, models), "No pair.")


def _seed_criteria(data: SignalData, benchmark: BenchmarkCurves) -> tuple[Value, Value]:
    """Over repeated trainings at their common points: the reruns that the sheet names, else the models that are alike
    in size, architecture and training data."""
    curves = benchmark.curves
    if benchmark.reruns:
        groups = [[curves[model], *benchmark.reruns.get(model, [])] for model in benchmark.scored]
    else:
        facts = data.learning.facts.loc[benchmark.scored, ["size", "architecture", "training_data"]].dropna()
        groups = [[curves[model] for model in alike.index] for _, alike in facts.groupby(list(facts), sort=False)]
    runs = []
    for group in groups:
        places = align({f"{number}": curve for number, curve in enumerate(group)}).places
        if len(group) > 1 and len(places[0].share):
            runs.append(np.array([points.read(curve.values) for points, curve in zip(places, group, strict=True)]))
    if not runs:
        reason = "Signal to noise over seeds and non-randomness need repeated trainings of one model."
        none = Missing(Reason(reason, ReasonCode.NO_RERUNS))
        return none, none
    best = max(float(curves[model].values[-1]) for model in benchmark.scored)
    to_noise, non_randomness = seed_criteria(runs, benchmark.chance_level, best)
    agree = "Repeated trainings agree exactly, so there is no noise to divide by."
    chance = benchmark.chance
    return known(to_noise, agree), chance if isinstance(chance, Missing) else known(non_randomness, agree)


def _in_the_middle(benchmark: BenchmarkCurves) -> tuple[Value, Value]:
    """Ordering consistency, and decision accuracy of the models half way to their last common point against it."""
    progress = benchmark.alignment.progress
    too_few = "Ordering consistency needs two models and two points in common in the second half of these."
    if len(benchmark.scored) < 2 or len(progress) < 2:
        no_decision = "Decision accuracy needs two models with two points of training in common."
        reason = benchmark.alignment.reason
        return Missing(reason or too_few), Missing(reason or no_decision)
    curves = benchmark.at_common_points(benchmark.values)
    half = int(np.argmin(np.abs(progress - progress[-1] / 2)))
    return known(ordering_consistency(curves), too_few), float(decision_accuracy(curves[:, half], curves[:, -1]))


def _across_sizes(benchmark: BenchmarkCurves, facts: pd.DataFrame) -> tuple[Value, int]:
    """Order of the recipes at the smallest and at the largest size that all of them have; and how many recipes.

    A recipe is an architecture and a training mixture; it takes part with models of two sizes or more. Several
    trainings of a recipe at one size are averaged at their last checkpoints.
    """
    scores: dict[tuple[str, str], dict[str, list[float]]] = {}
    weights: dict[str, list[float]] = {}
    for model, curve in benchmark.curves.items():
        fact = facts.loc[model]
        if np.isnan(parameters(fact)):
            continue
        # Two architectures of one named size have not quite the same number of parameters
        size = str(fact["size"]).casefold() if pd.notna(fact["size"]) else f"{parameters(fact):g} billion"
        recipe = (str(fact["architecture"]), str(fact["training_data"]))
        scores.setdefault(recipe, {}).setdefault(size, []).append(float(curve.values[-1]))
        weights.setdefault(size, []).append(parameters(fact))
    recipes = [by_size for by_size in scores.values() if len(by_size) > 1]
    if len(recipes) < 2:
        return Missing("Decision accuracy across sizes needs two recipes at two sizes each."), len(recipes)
    common = sorted(set.intersection(*map(set, recipes)), key=lambda size: np.mean(weights[size]))
    if len(common) < 2:
        none = Missing("Decision accuracy across sizes needs two sizes that all recipes of several sizes have.")
        return none, len(recipes)
    small, large = (np.array([np.mean(by_size[size]) for by_size in recipes]) for size in (common[0], common[-1]))
    return float(decision_accuracy(small, large)), len(recipes)
