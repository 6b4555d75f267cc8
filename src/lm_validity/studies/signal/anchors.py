"""Criteria of FineTasks, Signal and Noise and DataDecide for one benchmark."""

import numpy as np
import pandas as pd

from lm_validity.studies.signal.alignment import align
from lm_validity.studies.signal.analysis import BenchmarkResult
from lm_validity.studies.signal.curves import Curve
from lm_validity.studies.signal.scores import Design, mean_of_known, parameters, point_values, ranked_curves
from lm_validity.studies.signal.statistics.quality import (
    FINETASKS_MONOTONICITY,
    FINETASKS_NON_RANDOMNESS,
    FINETASKS_SIGNAL_TO_NOISE,
    LAST_CHECKPOINTS,
    SignalToNoise,
    mean_rank_correlation,
    ordering_consistency,
    pair_share_interval,
    seed_criteria,
    signal_to_noise,
    signal_to_noise_interval,
    step_direction,
    total_variation,
)
from lm_validity.studies.signal.statistics.ranking import decision_accuracy
from lm_validity.studies.signal.summary import (
    SKIPPED,
    Bounds,
    Criteria,
    Decisions,
    FineTasks,
    SignalAndNoise,
    Value,
    known_bounds,
)
from lm_validity.summaries import Missing, known
from lm_validity.words import Reason, ReasonCode

_NO_CURVE = "No model has two selected checkpoints."


def criteria_of(result: BenchmarkResult, facts: pd.DataFrame, resamples: int) -> Criteria:
    """Values, and the thresholds passed where there are any."""
    design = result.design
    curves = [design.curves[model].values[design.selected[model]] for model in design.scored]
    curves = [curve for curve in curves if len(curve) >= 2]
    monotonicity = known(mean_rank_correlation(curves), _NO_CURVE) if curves else Missing(_NO_CURVE)
    ratio, non_randomness = _seed_criteria(result, facts)
    again = design.training_noise
    training = None if isinstance(again, Missing) else (again.sd, again.reruns)
    noise = signal_to_noise(curves, training=training)
    why = _no_ratio(curves, noise)
    noise_ratio = known(noise.ratio, why)
    ends = signal_to_noise_interval(curves, resamples, np.random.default_rng(0), training=training)
    across, recipes = _across_sizes(design, facts)
    half_way = _half_way(design)
    return Criteria(
        FineTasks(
            monotonicity=monotonicity,
            monotonicity_passes=_passes(monotonicity, FINETASKS_MONOTONICITY),
            signal_to_noise=ratio,
            signal_to_noise_passes=_passes(ratio, FINETASKS_SIGNAL_TO_NOISE),
            non_randomness=non_randomness,
            non_randomness_passes=_passes(non_randomness, FINETASKS_NON_RANDOMNESS),
            ordering_consistency=_ordering(design),
        ),
        SignalAndNoise(
            signal=known(noise.signal, why),
            noise=known(noise.noise, why),
            noise_from="last checkpoints" if training is None else "reruns",
            signal_to_noise=noise_ratio,
            signal_to_noise_interval=known_bounds(*ends, why if isinstance(noise_ratio, Missing) else SKIPPED.reason),
            step_direction=known(float(mean_of_known([step_direction(curve) for curve in curves])), _NO_CURVE),
            total_variation=known(
                float(mean_of_known([total_variation(curve) for curve in curves])),
                "All curves are constant, or have fewer than two selected checkpoints.",
            ),
        ),
        Decisions(half_way, _share_interval(half_way, len(design.scored)), across, _share_interval(across, recipes)),
    )


def _no_ratio(curves: list[np.ndarray], noise: SignalToNoise) -> str:
    """Why Signal and Noise's ratio is missing, where it is."""
    if len(curves) < 2 or any(len(curve) < LAST_CHECKPOINTS for curve in curves):
        return f"Signal to noise needs two models, and {LAST_CHECKPOINTS} checkpoints of every model."
    if np.isnan(noise.signal):
        return "Signal to noise is relative to the mean score, and needs scores of one sign."
    return "Signal to noise needs some noise: the last checkpoints lie on a line."


def _passes(value: Value, threshold: float) -> bool | Missing:
    return value if isinstance(value, Missing) else bool(value >= threshold)


def _seed_criteria(result: BenchmarkResult, facts: pd.DataFrame) -> tuple[Value, Value]:
    """Over repeated trainings at their common points: the reruns that the sheet names, else the models that are alike
    in size, architecture and training data."""
    design = result.design
    groups = {model: {model: design.curves[model]} for model in design.scored}
    if design.reruns:
        for model in groups:
            groups[model] |= {f"{model} {number}": curve for number, curve in enumerate(design.reruns.get(model, ()))}
    else:
        rows = facts[["size", "architecture", "training_data"]].to_dict("index")
        alike: dict[tuple[object, ...], dict[str, Curve]] = {}
        for model in design.scored:
            recipe = tuple(rows[model].values())
            if not pd.isna(list(recipe)).any():
                alike.setdefault(recipe, {})[model] = design.curves[model]
        groups = {str(recipe): group for recipe, group in alike.items()}
    runs = []
    for group in groups.values():
        places = align(group).places
        if len(group) > 1 and len(places[0].share):
            runs.append(np.array([one.read(curve.values) for one, curve in zip(places, group.values(), strict=True)]))
    if not runs:
        none = Missing(
            Reason(
                "Signal to noise over seeds and non-randomness need repeated trainings of one model.",
                ReasonCode.NO_RERUNS,
            )
        )
        return none, none
    best = max(float(design.curves[model].values[-1]) for model in design.scored)
    found = seed_criteria(runs, result.chance_level, best)
    agree = "Repeated trainings agree exactly, so there is no noise to divide by."
    ratio = known(found.signal_to_noise, agree)
    return ratio, result.chance if isinstance(result.chance, Missing) else known(found.non_randomness, agree)


def _ordering(design: Design) -> Value:
    few = "Ordering consistency needs two models and two points in common in the second half of these."
    if len(design.scored) < 2 or len(design.alignment.progress) < 2:
        return Missing(design.alignment.reason or few)
    return known(ordering_consistency(ranked_curves(design, point_values(design))), few)


def _share_interval(share: Value, models: int) -> Bounds:
    return share if isinstance(share, Missing) else known_bounds(*pair_share_interval(share, models), "No pair.")


def _half_way(design: Design) -> Value:
    """Decision accuracy of the models half way to their last common point against that point."""
    progress = design.alignment.progress
    if len(design.scored) < 2 or len(progress) < 2:
        few = "Decision accuracy needs two models with two points of training in common."
        return Missing(design.alignment.reason or few)
    curves = ranked_curves(design, point_values(design))
    half = int(np.argmin(np.abs(progress - progress[-1] / 2)))
    return float(decision_accuracy(curves[:, half], curves[:, -1]))


def _across_sizes(design: Design, facts: pd.DataFrame) -> tuple[Value, int]:
    """Order of the recipes at the smallest and at the largest size that all of them have; and how many recipes.

    A recipe is an architecture and a training mixture; it takes part with models of two sizes or more. Several
    trainings of a recipe at one size are averaged at their last checkpoints.
    """
    scores: dict[tuple[str, str], dict[str, list[float]]] = {}
    weights: dict[str, list[float]] = {}
    for model, curve in design.curves.items():
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
