"""How steadily scores rise in training: signal quality, beside that of curves that learn nothing, and chance."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.signal.benchmark import (
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
    known_bounds,
    p_value,
    shown_or_not,
    too_few_checkpoints,
)
from lm_validity.studies.signal.items import CONTROLS, SIZES
from lm_validity.studies.signal.statistics.quality import (
    FINETASKS_MONOTONICITY,
    MINIMUM_RELIABILITY,
    above_chance_from,
    fewest_checkpoints,
    net_rise,
    noise_levels,
    quality_by_errors,
)
from lm_validity.words import (
    Missing,
    Reason,
    ReasonCode,
    as_columns,
    count,
    decimal,
    is_known,
    known,
    listing,
    number,
    with_interval,
)

NOISE_DRAWS = 20_000
NO_POINT = "A curve needs two selected checkpoints."
AT_CHANCE = Missing("The score is not above chance by 1.96 standard errors at the last point.")
AUTOCORRELATION = {"code": "scoring code", "paper": "paper"}
TIES = {"stable": "count as an increase", "average": "share their ranks"}


# ----------------------------------------------------------------------------------------------------------------------
# The numbers.


def _of_model(data: SignalData, benchmark: BenchmarkCurves, model: str) -> dict[str, Any]:
    """Scores of one model's learning curve, over the selected checkpoints."""
    few, scores = too_few_checkpoints(data.options), benchmark.scores.quality[model]
    curve, null = benchmark.curves[model].at(benchmark.selected[model]), benchmark.quality_null[model]
    monotonicity = known(float(scores.monotonicity), NO_POINT)
    autocorrelation = known(float(scores.autocorrelation), few)
    quality = known(float(scores.signal_quality), few)

    def interval(value: Value, name: str) -> Bounds:
        return bounds(value, benchmark.draws(lambda resampled: getattr(resampled.quality[model], name)), 0.0, 1.0)

    unknown = quality if isinstance(quality, Missing) else None if null.size else SKIPPED
    whole = benchmark.curves[model]
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
        "above_chance_from_b": _above_chance_from(benchmark, whole.values, benchmark.errors[model], whole.tokens_b),
        "checkpoints": len(curve.values),
        "net_rise": float(net_rise(curve.values)) if len(curve.values) else empty,
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
    why = (
        "It needs resampling, and 40 items or 20 subjects. The figure must exist with each of 20 groups of items left "
    )
    noise_free_interval: Bounds = noise_free if isinstance(noise_free, Missing) else Missing(f"{why}out.")
    if is_known(items) and is_known(noise_free):
        noise_free_interval = known_bounds(*items.noise_free_interval, f"{why}out.")
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


def _noise_free(benchmark: BenchmarkCurves, model: str, what: str) -> Value:
    """Noise-free quality or reliability of a model that counts in the benchmark's scores."""
    if isinstance(benchmark.items, Missing):
        return benchmark.items
    noise_free = benchmark.items.noise_free
    if isinstance(noise_free, Missing):
        return noise_free
    if model not in noise_free:
        return Missing("The model is kept for comparison and has no noise-free signal quality.")
    why = "This needs eight checkpoints and a curve that is not constant."
    if what == "value" and noise_free[model].reliability < MINIMUM_RELIABILITY:
        why = "More than half of the curve's variance is noise of its items."
    return known(getattr(noise_free[model], what), why)


def _above_chance_from(benchmark: BenchmarkCurves, values: np.ndarray, errors: np.ndarray, tokens: np.ndarray) -> Value:
    """Tokens from which a score is above chance for good."""
    if isinstance(benchmark.chance, Missing):
        return benchmark.chance
    if np.isnan(errors).any():
        return NO_ERRORS
    assert benchmark.chance_level is not None
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
    quality = quality_by_errors(pairs, numbers, SIZES, CONTROLS, rng, options.convention, options.ties)
    return quality or Missing(Reason(f"The benchmark has fewer than {SIZES[0]} items.", ReasonCode.TOO_FEW))


def _noise_level(data: SignalData) -> tuple[int, float, float] | None:
    """The commonest number of selected checkpoints, and the mean quality of so much white noise and random walk."""
    selected = [int(at.sum()) for benchmark in data.benchmarks.values() for at in benchmark.selected.values()]
    enough = [number for number in selected if number >= fewest_checkpoints(data.options.convention)]
    if not enough:
        return None
    commonest = max(set(enough), key=enough.count)
    return commonest, *noise_levels(commonest, NOISE_DRAWS, np.random.default_rng(0), data.options.convention)


# ----------------------------------------------------------------------------------------------------------------------
# The section.


def rise_of_scores(data: SignalData) -> Part:
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
    noise, options = _noise_level(data), data.options
    # at the largest number of items that all benchmarks have, of which that many can be had
    by_errors = {n: of for n, entry in by_benchmark.items() if is_known(of := entry["signal_quality_by_errors"])}
    matched = {n: by_errors.get(n, entry["signal_quality_by_items"]) for n, entry in by_benchmark.items()}
    sizes = [set(quality) for quality in matched.values() if is_known(quality)]
    common = sorted(set.intersection(*sizes))[-1:] if sizes else []
    of_benchmark = ("rank_correlation", "chance", "models_above_chance", "above_chance_from_b", "items")
    frame = pd.DataFrame(
        [
            {
                "benchmark": name,
                "signal_quality": entry["signal_quality"],
                **as_columns(entry["signal_quality_interval"]),
                "p": entry["signal_quality_null_p"],
                "walk_p": entry["signal_quality_walk_p"],
                "steady": shown_or_not(entry["steady"]),
                **{key: entry[key] for key in of_benchmark},
                **{f"at {n} items": of if isinstance(of := matched[name], Missing) else of[n] for n in common},
                "noise_free_quality": entry["noise_free_quality"],
                **as_columns(entry["noise_free_quality_interval"], "noise_free_low", "noise_free_high"),
                **{f"size {size}": value for size, value in entry["signal_quality_by_size"].items()},
            }
            for name, entry in by_benchmark.items()
        ]
    )
    columns = ("monotonicity", "autocorrelation", "signal_quality")
    of_models = pd.DataFrame(
        [
            {
                "model": model,
                "label": data.labels[model],
                "benchmark": name,
                **{column: entry[column] for column in columns},
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
    numbers = ("signal_quality", "low", "high", "p", "walk_p")
    drawn = as_numbers(frame[["benchmark", *numbers]], numbers).sort_values("signal_quality", ascending=False)
    frame, order = frame.loc[drawn.index], list(drawn["benchmark"])
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
        as_numbers(of_models, columns)[["label", "benchmark", "signal_quality", "monotonicity", "autocorrelation"]],
        x="label",
        y="benchmark",
        value="signal_quality",
        title="Signal quality",
        x_order=list(dict.fromkeys(of_models["label"])),
        y_order=order,
        tooltip=figures.tooltips(
            benchmark="Benchmark",
            label="Model",
            signal_quality="Signal quality|.3f",
            monotonicity="Monotonicity|.3f",
            autocorrelation="Autocorrelation|.3f",
        ),
        number_format=".2f",
    )
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
    explanation = (
        f"Half monotonicity, half autocorrelation. Autocorrelation is as in the competition's "
        f"{AUTOCORRELATION[options.convention]}. Equal scores {TIES[options.ties]}. Dashed lines: the means "
        "of curves that learn nothing. White noise has independent points, a random walk independent steps. p (white "
        "noise) compares with shuffled checkpoints and is small for any drift. p (random walk) gives the steps random "
        "signs. Quote this one. More items mean less noise and so a higher signal quality: compare benchmarks at one "
        "number of items or without the noise of items. The interval is for benchmarks of this size, noise included."
    )
    drawn_by_errors = [name for name, entry in by_benchmark.items() if entry["interval_source"] == "standard errors"]
    if drawn_by_errors:
        explanation += (
            f" Intervals for {listing(drawn_by_errors, 4)} are based on standard errors, as if each checkpoint had its "
            "own items. They are too wide, and too low for noisy curves, because checkpoints share their items."
        )
    if by_errors:
        explanation += (
            f" Figures at one number of items are based on standard errors for {listing(by_errors, 4)}. They are too "
            "low, because the checkpoints share their items."
        )
    section = Section(
        "Signal quality",
        hint="how steadily scores improve, beside curves that learn nothing",
        explanation=explanation,
        figures=[
            Figure("signal_quality", "Mean over models", dots),
            Figure("signal_quality_by_model", "By model", heatmap, wide=True),
        ],
        tables=[
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
                formats=dict.fromkeys((*columns, "rank_correlation", "null_mean", "null_95"), ".4f")
                | {"p": "p", "walk_p": "p"},
                scales=scales,
                folded=True,
            ),
        ],
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


def _findings(
    data: SignalData, entries: dict[str, dict[str, Any]], noise: tuple[int, float, float] | None
) -> list[Finding]:
    """The highest and the lowest, how many rise more than drift, and how many are at chance."""
    known_ones = {
        name: entry for name, entry in entries.items() if is_known(entry["signal_quality"]) and name not in data.falling
    }
    basis = f"{count(len(data.learning.models), 'model')}, {count(len(entries), 'benchmark')}, at "
    basis += "the checkpoints of the competition." if data.learning.selection == "e2lm" else "all checkpoints."
    asked = []
    if data.falling:
        sentence = f"Is lower better on {listing(data.falling, 4)}? Scores fall steadily there, and nothing says which "
        sentence += "direction is better. Their signal quality is not compared until that is known."
        why = f"Mean rank correlation of score and checkpoint of {-FINETASKS_MONOTONICITY} or less. Fill in the column "
        asked = [Finding(sentence, why + "`higher_is_better` of the benchmarks sheet.")]
    if not known_ones:
        return asked or [Finding("No signal quality can be computed.", basis)]
    order = sorted(known_ones, key=lambda name: -number(known_ones[name]["signal_quality"]))
    described = {
        name: f"{name}, {with_interval(entry['signal_quality'], ends if is_known(ends) else None)}"
        for name, entry in known_ones.items()
        for ends in [entry["signal_quality_interval"]]
    }
    sentence = f"Signal quality is highest on {described[order[0]]}"
    sentence += f", and lowest on {described[order[-1]]}" if len(order) > 1 else ""
    if noise is not None:
        checkpoints, white, walk = noise
        sentence += f". For comparison: over {checkpoints} checkpoints, pure noise has a mean signal quality of "
        sentence += f"{decimal(white)}, and a random walk {decimal(walk)}"
    findings = [*asked, Finding(f"{sentence}.", basis)]
    if all(is_known(data.steady[name]) for name in order):
        rising = [name for name in order if data.steady[name]]
        rest = [name for name in order if name not in rising]
        sentence = f"Scores improve more steadily than a random walk on {len(rising)} of "
        sentence += count(len(order), "benchmark") + (f" ({listing(rising)})" if rising and rest else "")
        sentence += f". On {listing(rest, 4)} this cannot be shown, or scores end at chance." if rest else "."
        basis = (
            "A test by random signs of the steps between checkpoints, false discovery rate 5% (Benjamini-Hochberg). "
        )
        findings.append(Finding(sentence, f"{basis}It is cautious if curves are noisy."))
    with_chance = {name: above for name, entry in entries.items() if is_known(above := entry["models_above_chance"])}
    if with_chance:
        at_chance = [name for name, above in with_chance.items() if above == 0]
        of_all = f"{count(len(with_chance), 'benchmark')} with a known chance level"
        sentence = f"No model ends above chance on {len(at_chance)} of {of_all}: {listing(at_chance, 4)}."
        if not at_chance:
            sentence = f"On each of {of_all}, at least one model ends above chance."
        basis = "One-sided tests of the last scores by their standard errors, at 5% with Holm's adjustment over models."
        findings.append(Finding(sentence, basis))
    return findings
