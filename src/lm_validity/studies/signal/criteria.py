"""Science against web models, the overall score that needs them, and criteria of others."""

from typing import Any

import numpy as np
import pandas as pd

from lm_validity.pages.page import Part, Section, Table
from lm_validity.studies.signal.benchmark import (
    CHOSEN,
    SKIPPED,
    BenchmarkCurves,
    Bounds,
    SignalData,
    Value,
    bounds,
    compliance_of,
    known_bounds,
    mean_of_known,
    p_value,
    parameters,
)
from lm_validity.studies.signal.curves import Curve, align
from lm_validity.studies.signal.statistics.quality import (
    FINETASKS_MONOTONICITY,
    FINETASKS_NON_RANDOMNESS,
    FINETASKS_SIGNAL_TO_NOISE,
    LAST_CHECKPOINTS,
    ordering_consistency,
    pair_share_interval,
    rank_correlation,
    seed_criteria,
    signal_to_noise,
    signal_to_noise_interval,
    step_direction,
    total_variation,
    weight_sensitivity,
)
from lm_validity.studies.signal.statistics.ranking import NORMALISATIONS, decision_accuracy
from lm_validity.words import Missing, Reason, ReasonCode, as_columns, is_known, known, listing, number

WEIGHT_DRAWS = 10_000
NO_CURVE = "No model has two selected checkpoints."
NORMALISED = {
    "none": "not divided by anything",
    "joint_minmax": "divided by the joint range of both models",
    "sci_range": "divided by the range of the science model",
    "above_chance": "divided by the science model's gain over chance",
}


# ----------------------------------------------------------------------------------------------------------------------
# Compliance and the overall score.


def science_against_web(data: SignalData) -> Part:
    """Science against web models, and the overall score that needs them; no section without such a pair."""
    options, parts = data.options, {}
    scores: dict[str, dict[str, Any]] = {}
    overall: dict[str, Value] = {}
    for name, benchmark in data.benchmarks.items():
        items, values = benchmark.items, benchmark.values
        null = items if isinstance(items, Missing) else items.compliance_null
        why = {normalisation: _no_compliance(benchmark, normalisation) for normalisation in NORMALISATIONS}
        value = known(float(benchmark.scores.compliance), why[options.normalisation])
        gap = known(float(benchmark.scores.gap), why[options.normalisation])
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
                    why[normalisation],
                )
                for normalisation in NORMALISATIONS
            },
            "pairs": [[pair.first, pair.second] for pair in benchmark.compliance_pairs],
            "checkpoints": [len(pair.alignment.progress) for pair in benchmark.compliance_pairs],
        }
        incomplete = "The overall score needs signal quality, ranking consistency and compliance."
        overall[name] = known(float(benchmark.scores.overall), incomplete)
        parts[name] = np.array(
            [benchmark.scores.mean_quality, benchmark.scores.orders[CHOSEN].value, benchmark.scores.compliance],
            dtype=float,
        )
    overall_interval = {
        name: bounds(value, data.benchmarks[name].draws(lambda resampled: resampled.overall))
        for name, value in overall.items()
    }
    complete = [name for name, row in parts.items() if np.isfinite(row).all()]
    # over all weightings of the parts
    sensitivity: dict[str, dict[str, Any]] | Missing = Missing(
        "The sensitivity to the weights needs two benchmarks with all three parts."
    )
    if len(complete) > 1:
        components = np.stack([parts[name] for name in complete])
        shares = weight_sensitivity(components, WEIGHT_DRAWS, np.random.default_rng(0))
        sensitivity = {
            name: {"share_first": shares.share_first[i], "rank_interval": [shares.rank_low[i], shares.rank_high[i]]}
            for i, name in enumerate(complete)
        }
    summary = {
        "compliance": scores,
        "overall": overall,
        "overall_interval": overall_interval,
        "overall_null_p": {name: _overall_p(data, name, value) for name, value in overall.items()},
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


def _overall_p(data: SignalData, name: str, overall: Value) -> Value:
    """p of the overall score when all three parts follow their own nulls, drawn independently."""
    benchmark = data.benchmarks[name]
    null = benchmark.items if isinstance(benchmark.items, Missing) else benchmark.items.compliance_null
    coin = benchmark.order_draws[CHOSEN].coin
    if isinstance(overall, Missing):
        return overall
    if isinstance(null, Missing):
        return null
    if isinstance(coin, Missing):
        return coin
    draws = np.stack([benchmark.mean_over_models(benchmark.quality_null), coin, null], axis=-1)
    return p_value(overall, draws @ np.array(data.options.weights))


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
        for place in [place for place in values if place.endswith("_interval")]:
            values |= as_columns(values[place], f"{place}.low", f"{place}.high")
        rows.append({"benchmark": name} | {column: values[place] for column, place, _ in COLUMNS})
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


def _criteria(data: SignalData, benchmark: BenchmarkCurves) -> dict[str, dict[str, Any]]:
    selected = benchmark.selected_curves
    curves = [selected[model].values for model in benchmark.scored if len(selected[model].values) >= 2]
    # FineTasks' monotonicity is not clipped
    monotonicity = known(float(mean_of_known([rank_correlation(curve) for curve in curves])), NO_CURVE)
    ratio, non_randomness = _seed_criteria(data, benchmark)
    again = benchmark.training_noise
    training = None if isinstance(again, Missing) else (again.sd, again.reruns)
    noise = signal_to_noise(curves, training=training)
    why = "Signal to noise needs some noise: the last checkpoints lie on a line."
    if len(curves) < 2 or any(len(curve) < LAST_CHECKPOINTS for curve in curves):
        why = f"Signal to noise needs two models, and {LAST_CHECKPOINTS} checkpoints of every model."
    elif np.isnan(noise.signal):
        why = "Signal to noise is relative to the mean score, and needs scores of one sign."
    noise_ratio = known(noise.ratio, why)
    ends = signal_to_noise_interval(curves, data.section.resamples, np.random.default_rng(0), training=training)
    constant = "All curves are constant, or have fewer than two selected checkpoints."
    ordering, half_way = _in_the_middle(benchmark)
    across, recipes = _across_sizes(benchmark, data.learning.facts)
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
            "signal": known(noise.signal, why),
            "noise": known(noise.noise, why),
            "noise_from": "last checkpoints" if training is None else "reruns",
            "signal_to_noise": noise_ratio,
            "signal_to_noise_interval": known_bounds(
                *ends, why if isinstance(noise_ratio, Missing) else SKIPPED.reason
            ),
            "step_direction": known(float(mean_of_known([step_direction(curve) for curve in curves])), NO_CURVE),
            "total_variation": known(float(mean_of_known([total_variation(curve) for curve in curves])), constant),
        },
        "decision_accuracy": {
            "middle_to_last": half_way,
            "middle_to_last_interval": _share_interval(half_way, len(benchmark.scored)),
            "smallest_to_largest": across,
            "smallest_to_largest_interval": _share_interval(across, recipes),
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
    groups = {model: {model: curves[model]} for model in benchmark.scored}
    if benchmark.reruns:
        for model, group in groups.items():
            again = benchmark.reruns.get(model, ())
            group |= {f"{model} {number}": curve for number, curve in enumerate(again)}
    else:
        facts = data.learning.facts[["size", "architecture", "training_data"]].dropna()
        alike: dict[tuple[object, ...], dict[str, Curve]] = {}
        for model, *recipe in facts.itertuples(name=None):
            if model in benchmark.scored:
                alike.setdefault(tuple(recipe), {})[model] = curves[model]
        groups = {str(recipe): group for recipe, group in alike.items()}
    runs = []
    for group in groups.values():
        places = align(group).places
        if len(group) > 1 and len(places[0].share):
            runs.append(np.array([at.read(curve.values) for at, curve in zip(places, group.values(), strict=True)]))
    if not runs:
        why = "Signal to noise over seeds and non-randomness need repeated trainings of one model."
        none = Missing(Reason(why, ReasonCode.NO_RERUNS))
        return none, none
    best = max(float(curves[model].values[-1]) for model in benchmark.scored)
    to_noise, non_randomness = seed_criteria(runs, benchmark.chance_level, best)
    agree = "Repeated trainings agree exactly, so there is no noise to divide by."
    chance = benchmark.chance
    return known(to_noise, agree), chance if isinstance(chance, Missing) else known(non_randomness, agree)


def _in_the_middle(benchmark: BenchmarkCurves) -> tuple[Value, Value]:
    """Ordering consistency, and decision accuracy of the models half way to their last common point against it."""
    progress = benchmark.alignment.progress
    few = "Ordering consistency needs two models and two points in common in the second half of these."
    if len(benchmark.scored) < 2 or len(progress) < 2:
        no_decision = "Decision accuracy needs two models with two points of training in common."
        reason = benchmark.alignment.reason
        return Missing(reason or few), Missing(reason or no_decision)
    curves = benchmark.at_common_points(benchmark.values)
    half = int(np.argmin(np.abs(progress - progress[-1] / 2)))
    return known(ordering_consistency(curves), few), float(decision_accuracy(curves[:, half], curves[:, -1]))


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
