"""The sections on scores: signal quality beside curves that learn nothing, compliance, and the criteria of others."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from lm_validity.config.sections import SignalConventions
from lm_validity.missing import Missing, as_columns, is_known
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.signal.benchmark import SignalData, as_numbers, shown_or_not
from lm_validity.studies.signal.numbers import BenchmarkQuality, CurveQuality, SignalSummary, WeightShare
from lm_validity.studies.signal.statistics.quality import (
    FINETASKS_MONOTONICITY,
    NoiseLevels,
    fewest_checkpoints,
    noise_levels,
)
from lm_validity.words import at_extreme, count, decimal, listing, with_interval

NOISE_DRAWS = 20_000
AUTOCORRELATION = {"code": "scoring code", "paper": "paper"}
TIES = {"stable": "count as an increase", "average": "share their ranks"}
NORMALISED = {
    "none": "not divided by anything",
    "joint_minmax": "divided by the joint range of both models",
    "sci_range": "divided by the range of the science model",
    "above_chance": "divided by the science model's gain over chance",
}


# ----------------------------------------------------------------------------------------------------------------------
# Signal quality.


class _NoiseLevel(NamedTuple):
    """The commonest number of checkpoints, and the mean quality of white noise and of a random walk."""

    checkpoints: int
    means: NoiseLevels


def _noise_level(data: SignalData) -> _NoiseLevel | None:
    """The commonest number of selected checkpoints, and the mean quality of so much white noise and random walk."""
    selected = [int(mask.sum()) for benchmark in data.benchmarks.values() for mask in benchmark.selected.values()]
    enough = [number for number in selected if number >= fewest_checkpoints(data.options.convention)]
    if not enough:
        return None
    commonest = max(set(enough), key=enough.count)
    return _NoiseLevel(commonest, _noise_levels(commonest, data.options))


@lru_cache
def _noise_levels(checkpoints: int, options: SignalConventions) -> NoiseLevels:
    """The same for all reports of a process."""
    return noise_levels(checkpoints, NOISE_DRAWS, np.random.default_rng(0), options)


def steady_improvement(data: SignalData, summary: SignalSummary) -> Part:
    """Signal quality by benchmark and by model, beside that of curves that learn nothing."""
    noise = _noise_level(data)
    frame, of_models = _by_benchmark(summary.benchmarks), _by_model(data, summary.models)
    numbers = ("signal_quality", "low", "high", "p", "walk_p")
    drawn = as_numbers(frame[["benchmark", *numbers]], numbers).sort_values("signal_quality", ascending=False)
    frame = frame.loc[drawn.index]
    of_errors = [
        name
        for name, entry in summary.benchmarks.items()
        if is_known(entry.signal_quality_by_errors) or entry.interval_source == "standard errors"
    ]
    section = Section(
        "Signal quality",
        hint="how steadily scores improve, beside curves that learn nothing",
        explanation=_explained(data, of_errors),
        figures=_figures(drawn, of_models, noise),
        tables=_tables(data, frame, of_models, numbers),
    )
    return Part({}, section, _findings(data, summary.benchmarks, noise))


def _by_benchmark(by_benchmark: Mapping[str, BenchmarkQuality]) -> pd.DataFrame:
    """A row a benchmark. Quality is also shown at the largest number of items that all have, of which that many can be
    had."""
    sizes = [set(quality) for entry in by_benchmark.values() if is_known(quality := entry.quality_by_items)]
    common = sorted(set.intersection(*sizes))[-1:] if sizes else []
    return pd.DataFrame(
        [
            {
                "benchmark": name,
                "signal_quality": entry.signal_quality,
                **as_columns(entry.signal_quality_interval),
                "p": entry.signal_quality_null_p,
                "walk_p": entry.signal_quality_walk_p,
                "steady": shown_or_not(entry.steady),
                "rank_correlation": entry.rank_correlation,
                "chance": entry.chance,
                "models_above_chance": entry.models_above_chance,
                "above_chance_from_b": entry.above_chance_from_b,
                "items": entry.items,
                **{f"at {n} items": by_items[n] if is_known(by_items) else by_items for n in common},
                "noise_free_quality": entry.noise_free_quality,
                **as_columns(entry.noise_free_quality_interval, "noise_free_low", "noise_free_high"),
                **{f"size {size}": value for size, value in entry.signal_quality_by_size.items()},
            }
            for name, entry in by_benchmark.items()
            for by_items in [entry.quality_by_items]
        ]
    )


OF_A_CURVE = ("monotonicity", "autocorrelation", "signal_quality")


def _by_model(data: SignalData, by_model: Mapping[str, Mapping[str, CurveQuality]]) -> pd.DataFrame:
    """A row a model and benchmark."""
    return pd.DataFrame(
        [
            {
                "model": model,
                "label": data.learning.facts.at[model, "label"],
                "benchmark": name,
                "monotonicity": entry.monotonicity,
                "autocorrelation": entry.autocorrelation,
                "signal_quality": entry.signal_quality,
                **as_columns(entry.signal_quality_interval),
                "p": entry.signal_quality_null_p,
                "null_mean": entry.signal_quality_null_mean,
                "null_95": entry.signal_quality_null_95,
                "walk_p": entry.signal_quality_walk_p,
                "above_chance_from_b": entry.above_chance_from_b,
                "rank_correlation": entry.rank_correlation,
                "net_rise": entry.net_rise,
                "checkpoints": entry.checkpoints,
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
        color=alt.ColorValue(figures.CATEGORY_COLORS[0]),
        tooltip=figures.tooltips(
            benchmark="Benchmark", signal_quality="Signal quality|.3f", low="Low|.3f", high="High|.3f", p="p|.3f"
        ),
        zero=True,
    )
    if noise is not None:
        dots = figures.layered(dots, *(figures.dashed_lines("at", level) for level in noise.means))
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


def _at(quality: Mapping[str, float], entries: Mapping[str, BenchmarkQuality], value: float) -> str:
    """The benchmarks whose quality is `value`, and the value; with its interval where it is one benchmark."""
    names = at_extreme(quality, value)
    ends = entries[names[0]].signal_quality_interval
    return f"{listing(names, 4)}, {with_interval(value, ends if len(names) == 1 and is_known(ends) else None)}"


def _findings(data: SignalData, entries: Mapping[str, BenchmarkQuality], noise: _NoiseLevel | None) -> list[Finding]:
    """The highest and the lowest, how many improve more than drift, and how many are at chance."""
    quality = {
        name: value
        for name, entry in entries.items()
        if is_known(value := entry.signal_quality) and name not in data.falling
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
    highest, lowest = (_at(quality, entries, quality[name]) for name in (order[0], order[-1]))
    sentence = f"Signal quality is highest on {highest}" + (f", and lowest on {lowest}" if len(order) > 1 else "")
    if len(at_extreme(quality, quality[order[0]])) == len(order) > 1:
        sentence = f"Signal quality is the same on all {len(order)} benchmarks, {decimal(quality[order[0]])}"
    if noise is not None:
        sentence += f". For comparison: over {noise.checkpoints} checkpoints, pure noise has a mean signal quality of "
        sentence += f"{decimal(noise.means.white_noise)}, and a random walk {decimal(noise.means.random_walk)}"
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
    with_chance = {name: above for name, entry in entries.items() if is_known(above := entry.models_above_chance)}
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


def science_against_web(summary: SignalSummary) -> Part:
    """Science against web models, and the overall score that needs them; no section without such a pair."""
    rows = [_compliance_row(name, summary) for name, score in summary.compliance.items() if is_known(score.value)]
    if not rows:
        return Part({})
    frame = pd.DataFrame(rows).sort_values("compliance", ascending=False)
    leads = {name: score.raw_gap_interval for name, score in summary.compliance.items() if is_known(score.value)}
    positive = [name for name, ends in leads.items() if is_known(ends) and ends[0] > 0]
    section = Section(
        "Compliance and overall score",
        hint="models of science texts against models of web texts",
        finding=f"The science model is ahead by more than item noise on {listing(positive)}." if positive else "",
        explanation="Compliance is the science model's mean lead over the web model, and 0 if it is behind. Here the "
        f"lead is {NORMALISED[summary.conventions.normalisation]}. The other normalisations and the raw gap are "
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
    return Part({}, section)


def _compliance_row(name: str, summary: SignalSummary) -> dict[str, object]:
    """The row of a benchmark in the table: its compliance, and its overall score under the weights and under all."""
    score, shares = summary.compliance[name], summary.weight_sensitivity
    share: WeightShare | Missing | None = shares if isinstance(shares, Missing) else shares.get(name)
    if share is None:
        share = Missing("The benchmark lacks one of the three parts.")
    return {
        "benchmark": name,
        "compliance": score.value,
        **as_columns(score.interval),
        "p": score.null_p,
        "raw_gap": score.raw_gap,
        **as_columns(score.raw_gap_interval, "gap_low", "gap_high"),
        **{key: value for key, value in score.normalisations.items() if key != score.normalisation},
        "overall": summary.overall[name],
        **as_columns(summary.overall_interval[name], "overall_low", "overall_high"),
        "first_under_weights": share if isinstance(share, Missing) else share.share_first,
    }


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


def criteria_of_others(summary: SignalSummary) -> Part:
    """Values, and the thresholds passed where there are any."""
    rows = []
    for name, criteria in summary.criteria.items():
        values = {
            f"{source}.{key}": value for source, record in vars(criteria).items() for key, value in vars(record).items()
        }
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
    return Part({}, section)
