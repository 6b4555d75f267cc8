"""The parts of the signal page that are tables: compliance, overall score, criteria of others."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lm_validity.pages.page import Section, Table
from lm_validity.studies.signal.summary import SignalSummary, Value
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.words import listing

_COMPLIANCE_LABELS = {
    "none": "not normalised",
    "joint_minmax": "by joint range",
    "sci_range": "by science range",
    "above_chance": "by gain over chance",
    "first_under_weights": "first under all weights",
}
_NORMALISED = {
    "none": "not divided by anything",
    "joint_minmax": "divided by the joint range of both models",
    "sci_range": "divided by the range of the science model",
    "above_chance": "divided by the science model's gain over chance",
}
_CRITERIA_LABELS = {
    "monotonicity": "FineTasks: monotonicity",
    "passes": "FineTasks: monotonicity passes",
    "seed_signal_to_noise": "FineTasks: signal to noise over seeds",
    "non_randomness": "FineTasks: non-randomness",
    "ordering_consistency": "FineTasks: ordering consistency",
    "signal": "Signal and Noise: signal",
    "noise": "Signal and Noise: noise",
    "signal_to_noise": "Signal and Noise: signal to noise",
    "signal_to_noise_low": "signal to noise, from",
    "signal_to_noise_high": "signal to noise, to",
    "step_direction": "Signal and Noise: direction of steps",
    "total_variation": "Signal and Noise: total variation",
    "decision_middle_to_last": "DataDecide: same winner half way as at the last common point",
    "decision_low": "same winner, from",
    "decision_high": "same winner, to",
    "decision_small_to_large": "DataDecide: same winner for small as for large models",
}


def as_numbers(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The frame for a figure: these columns as floats, NaN where a value is missing."""
    return frame.assign(**{column: [number(value) for value in frame[column]] for column in columns})


def compliance_section(summary: SignalSummary) -> Section | None:
    """Science against web models, and the overall score that needs them; None without such a pair."""
    rows: list[dict[str, Any]] = []
    for name, score in summary.compliance.items():
        if not is_known(score.value):
            continue
        rows.append(
            {
                "benchmark": name,
                "compliance": score.value,
                **as_columns(score.interval),
                "p": score.null_p,
                "raw_gap": score.raw_gap,
                **as_columns(score.raw_gap_interval, "gap_low", "gap_high"),
                **{key: value for key, value in score.normalisations.items() if key != score.normalisation},
                "overall": summary.overall[name],
                **as_columns(summary.overall_interval[name], "overall_low", "overall_high"),
                "first_under_weights": _share_first(summary, name),
            }
        )
    if not rows:
        return None
    frame = pd.DataFrame(rows).sort_values("compliance", ascending=False)
    positive = [row["benchmark"] for row in rows if number(row["gap_low"]) > 0]
    finding = f"The science model is ahead by more than item noise on {listing(positive)}." if positive else ""
    return Section(
        "Compliance and overall score",
        finding=finding,
        explanation="Compliance is the science model's mean lead over the web model, and 0 if it is behind. Here the "
        f"lead is {_NORMALISED[summary.conventions.normalisation]}. The other normalisations and the raw gap are "
        "beside it. The interval is for one pair of training runs and does not cover other seeds. First under all "
        "weights: share of weightings of the three parts that rank the benchmark first.",
        tables=[
            Table(
                "compliance",
                "Science against web",
                frame,
                formats=dict.fromkeys(frame.columns[1:], ".3f") | {"p": "p"},
                labels=_COMPLIANCE_LABELS,
            )
        ],
    )


def _share_first(summary: SignalSummary, name: str) -> Value:
    shares = summary.weight_sensitivity
    if isinstance(shares, Missing):
        return shares
    return shares[name].share_first if name in shares else Missing("The benchmark lacks one of the three parts.")


def criteria_section(summary: SignalSummary) -> Section:
    """FineTasks, Signal and Noise, DataDecide."""
    rows = []
    for name, criteria in summary.criteria.items():
        fine, noise, decisions = criteria.finetasks, criteria.signal_and_noise, criteria.decision_accuracy
        rows.append(
            {
                "benchmark": name,
                "monotonicity": fine.monotonicity,
                "passes": fine.monotonicity_passes,
                "seed_signal_to_noise": fine.signal_to_noise,
                "non_randomness": fine.non_randomness,
                "ordering_consistency": fine.ordering_consistency,
                "signal": noise.signal,
                "noise": noise.noise,
                "signal_to_noise": noise.signal_to_noise,
                **as_columns(noise.signal_to_noise_interval, "signal_to_noise_low", "signal_to_noise_high"),
                "step_direction": noise.step_direction,
                "total_variation": noise.total_variation,
                "decision_middle_to_last": decisions.middle_to_last,
                **as_columns(decisions.middle_to_last_interval, "decision_low", "decision_high"),
                "decision_small_to_large": decisions.smallest_to_largest,
            }
        )
    frame = pd.DataFrame(rows)
    return Section(
        "Criteria of others",
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
                labels=_CRITERIA_LABELS,
                folded=len(rows) > 8,
            )
        ],
    )
