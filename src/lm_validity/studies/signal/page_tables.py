"""The parts of the signal page that are tables: compliance, overall score, criteria of others."""

import pandas as pd

from lm_validity.pages.page import Section, Table
from lm_validity.studies.agreement.score_matrix import listing

_COMPLIANCE_LABELS = {
    "none": "not normalised",
    "joint_minmax": "by joint range",
    "sci_range": "by science range",
    "above_chance": "by gain over chance",
    "first_under_weights": "first under all weights",
}


def compliance_section(summary: dict) -> Section | None:
    """Science against web models, and the overall score that needs them; None without such a pair."""
    rows = []
    for name, entry in summary["compliance"].items():
        if entry["value"] is None:
            continue
        low, high = entry["interval"] or (None, None)
        gap_low, gap_high = entry["raw_gap_interval"] or (None, None)
        overall = summary["overall_interval"][name] or (None, None)
        weights = (summary["weight_sensitivity"] or {}).get(name, {})
        rows.append(
            {
                "benchmark": name,
                "compliance": entry["value"],
                "low": low,
                "high": high,
                "p": entry["null_p"],
                "raw_gap": entry["raw_gap"],
                "gap_low": gap_low,
                "gap_high": gap_high,
                **{key: value for key, value in entry["normalisations"].items() if key != entry["normalisation"]},
                "overall": summary["overall"][name],
                "overall_low": overall[0],
                "overall_high": overall[1],
                "first_under_weights": weights.get("share_first"),
            }
        )
    if not rows:
        return None
    frame = as_numbers(pd.DataFrame(rows), skip=("benchmark",)).sort_values("compliance", ascending=False)
    positive = [row["benchmark"] for row in rows if row["gap_low"] is not None and row["gap_low"] > 0]
    finding = f"The science model is ahead beyond the items' chance on {listing(positive)}." if positive else ""
    normalisation = summary["conventions"]["normalisation"]
    return Section(
        "Compliance and overall score",
        finding=finding,
        explanation=f"Normalisation: {normalisation}; the others stand beside it, and the raw gap in the score's unit. "
        "One pair of trainings: another seed of either is not in the interval. "
        "First under all weights: the share of weightings of the three parts that rank the benchmark first.",
        tables=[
            Table(
                "compliance",
                "Science against web",
                frame,
                formats=dict.fromkeys(frame.columns[1:], ".3f"),
                labels=_COMPLIANCE_LABELS,
            )
        ],
    )


def criteria_section(summary: dict) -> Section:
    """FineTasks, Signal and Noise, DataDecide."""
    rows = []
    for name, entry in summary["criteria"].items():
        fine, noise = entry["finetasks"], entry["signal_and_noise"]
        rows.append(
            {
                "benchmark": name,
                "monotonicity": fine["monotonicity"],
                "passes": fine["monotonicity_passes"],
                "seed_signal_to_noise": fine["signal_to_noise"],
                "non_randomness": fine["non_randomness"],
                "ordering_consistency": fine["ordering_consistency"],
                "signal": noise["signal"],
                "noise": noise["noise"],
                "signal_to_noise": noise["signal_to_noise"],
                "step_direction": noise["step_direction"],
                "total_variation": noise["total_variation"],
                "decision_middle_to_last": entry["decision_accuracy"]["middle_to_last"],
                "decision_small_to_large": entry["decision_accuracy"]["smallest_to_largest"],
            }
        )
    frame = as_numbers(pd.DataFrame(rows), skip=("benchmark", "passes"))
    reasons = sorted({reason for entry in summary["criteria"].values() for reason in entry["reasons"]})
    return Section(
        "Criteria of others",
        explanation="FineTasks asks for a monotonicity of 0.5, a signal-to-noise over seeds of 20 and a non-randomness "
        "of 3; Signal and Noise and DataDecide report their ratios without thresholds.",
        tables=[
            Table(
                "criteria", "Side by side", frame, formats=dict.fromkeys(frame.columns[3:], ".3f"), folded=len(rows) > 8
            )
        ],
        notes=[f"Missing where it stands so: {reason}." for reason in reasons],
    )


def as_numbers(frame: pd.DataFrame, skip: tuple[str, ...]) -> pd.DataFrame:
    """Columns as floats, None as NaN."""
    kinds = {column: float for column in frame.columns if column not in skip}
    return frame.astype(kinds)
