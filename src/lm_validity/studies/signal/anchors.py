"""Criteria of FineTasks, Signal and Noise and DataDecide for one benchmark, with what they need and lack."""

import numpy as np
import pandas as pd

from lm_validity.studies.signal.analysis import BenchmarkResult
from lm_validity.studies.signal.scores import Design, mean_of_known, parameters, point_values, ranked_curves
from lm_validity.studies.signal.statistics.criteria import (
    FINETASKS_MONOTONICITY,
    FINETASKS_NON_RANDOMNESS,
    FINETASKS_SIGNAL_TO_NOISE,
    LAST_CHECKPOINTS,
    SignalToNoise,
    mean_rank_correlation,
    ordering_consistency,
    seed_criteria,
    signal_to_noise,
    step_direction,
    total_variation,
)
from lm_validity.studies.signal.statistics.ranking import decision_accuracy


def criteria_entry(result: BenchmarkResult, facts: pd.DataFrame) -> dict:
    """Values, thresholds passed (null where a value cannot be computed), and why."""
    design, reasons = result.design, []
    curves = [design.curves[model].values[design.selected[model]] for model in design.scored]
    curves = [curve for curve in curves if len(curve) >= 2]
    monotonicity = mean_rank_correlation(curves) if curves else float("nan")
    ratio, non_randomness = _seed_criteria(result, facts, reasons)
    noise = signal_to_noise(curves)
    if np.isnan(noise.ratio):
        reasons.append(_no_ratio(curves, noise))
    early, across = _decisions(result, facts, reasons)
    return {
        "finetasks": {
            "monotonicity": monotonicity,
            "monotonicity_passes": _passes(monotonicity, FINETASKS_MONOTONICITY),
            "signal_to_noise": ratio,
            "signal_to_noise_passes": _passes(ratio, FINETASKS_SIGNAL_TO_NOISE),
            "non_randomness": non_randomness,
            "non_randomness_passes": _passes(non_randomness, FINETASKS_NON_RANDOMNESS),
            "ordering_consistency": _ordering(result),
        },
        "signal_and_noise": {
            "signal": noise.signal,
            "noise": noise.noise,
            "signal_to_noise": noise.ratio,
            "step_direction": mean_of_known([step_direction(curve) for curve in curves]),
            "total_variation": mean_of_known([total_variation(curve) for curve in curves]),
        },
        "decision_accuracy": {"middle_to_last": early, "smallest_to_largest": across},
        "reasons": reasons,
    }


def _no_ratio(curves: list[np.ndarray], noise: SignalToNoise) -> str:
    """Why Signal and Noise's ratio is null."""
    if len(curves) < 2 or any(len(curve) < LAST_CHECKPOINTS for curve in curves):
        return f"signal to noise needs two models, and {LAST_CHECKPOINTS} checkpoints of every model"
    if np.isnan(noise.signal):
        return "signal to noise is relative to the mean score, and needs scores of one sign"
    return "signal to noise needs some noise: the last checkpoints lie on a line"


def _passes(value: float, threshold: float) -> bool | None:
    return bool(value >= threshold) if np.isfinite(value) else None


def _seed_criteria(result: BenchmarkResult, facts: pd.DataFrame, reasons: list[str]) -> tuple[float, float]:
    """Over the models that are alike in size, architecture and training data: repeated trainings."""
    design = result.design
    alike: dict[tuple, list[int]] = {}
    columns = ["size", "architecture", "training_data"]
    for position, model in enumerate(design.ranked):
        if facts.loc[model, columns].notna().all():
            alike.setdefault(tuple(facts.loc[model, columns]), []).append(position)
    repeated = [positions for positions in alike.values() if len(positions) > 1]
    if not repeated or not design.ranked_at:
        reasons.append("signal to noise over seeds and non-randomness need repeated trainings of one model")
        return float("nan"), float("nan")
    curves = ranked_curves(design, point_values(design))
    best = float(curves[:, -1].max())
    found = [seed_criteria(curves[positions], result.chance, best) for positions in repeated]
    if result.chance is None:
        reasons.append("non-randomness needs the chance level, which the items of an accuracy over choices give")
    ratios = mean_of_known([np.array(each.signal_to_noise) for each in found])
    return float(ratios), float(mean_of_known([np.array(each.non_randomness) for each in found]))


def _ordering(result: BenchmarkResult) -> float:
    if len(result.design.ranked_at) < 2:
        return float("nan")
    return ordering_consistency(ranked_curves(result.design, point_values(result.design)))


def _decisions(result: BenchmarkResult, facts: pd.DataFrame, reasons: list[str]) -> tuple[float, float]:
    """Order of the models half way and at the end; order of recipes at the smallest and at the largest size."""
    design = result.design
    if len(design.ranked_at) < 2 or len(design.ranked_tokens) < 2:
        reasons.append("decision accuracy needs two models with common checkpoints")
        return float("nan"), float("nan")
    curves = ranked_curves(design, point_values(design))
    half = int(np.argmin(np.abs(design.ranked_progress - design.ranked_progress[-1] / 2)))
    early = float(decision_accuracy(curves[:, half], curves[:, -1]))

    return early, _across_sizes(design, facts, reasons)


def _across_sizes(design: Design, facts: pd.DataFrame, reasons: list[str]) -> float:
    """Order of the recipes at the smallest and at the largest size that all of them have.

    A recipe is an architecture and a training mixture; it takes part with models of two sizes or more. Several
    trainings of a recipe at one size are averaged at their last checkpoints.
    """
    scores: dict[tuple, dict[str, list[float]]] = {}
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
        reasons.append("decision accuracy across sizes needs two recipes at two sizes each")
        return float("nan")
    common = sorted(set.intersection(*map(set, recipes)), key=lambda size: np.mean(weights[size]))
    if len(common) < 2:
        reasons.append("decision accuracy across sizes needs two sizes that all recipes of several sizes have")
        return float("nan")
    small, large = ([np.mean(by_size[size]) for by_size in recipes] for size in (common[0], common[-1]))
    return float(decision_accuracy(small, large))
