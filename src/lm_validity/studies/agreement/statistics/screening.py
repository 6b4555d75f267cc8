"""Which candidate benchmarks can serve in a train-before-test study: three rules, one after the other.

The rules are those by which the 24 benchmarks of the published study were chosen from 37 (Train-before-Test, appendix
A.1): enough training examples; fine-tuning helps most models; the direct ranking is not the reverse of all others'.
"""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.missing import finite_mean
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, pair_signs


@dataclass(frozen=True)
class Thresholds:
    """A candidate leaves with fewer training examples than `training_examples`, with a larger share of models that do
    not improve than `unimproved_share`, or with negative taus to a larger share of the others than `negative_share`."""

    training_examples: int
    unimproved_share: float
    negative_share: float


@dataclass(frozen=True)
class Screening:
    """Arrays over the k candidates; NaN where unknown.

    models: with both scores. unimproved: of these, with a train-before-test score not above the direct one.
    others, negative: benchmarks that pass the first two rules, and those of them with a negative tau to the candidate.
    mean_tau: over these others, of direct rankings. reasons: why it leaves, by the first rule it fails, or "".
    """

    models: np.ndarray
    unimproved: np.ndarray
    others: np.ndarray
    negative: np.ndarray
    mean_tau: np.ndarray
    reasons: tuple[str, ...]


def screen_benchmarks(
    direct: np.ndarray, trained: np.ndarray, training_examples: np.ndarray, thresholds: Thresholds
) -> Screening:
    """Apply the rules to (models, candidates) arrays of scores of which more is better, NaN where missing.

    `training_examples`: (candidates,), NaN where unknown. What is unknown excludes nothing. Agreement is Kendall's
    tau-b of direct scores with each other candidate that passes the first two rules.
    """
    both = np.isfinite(direct) & np.isfinite(trained)
    models, unimproved = both.sum(axis=0), (both & ~(trained > direct)).sum(axis=0)
    few = training_examples < thresholds.training_examples
    unmoved = unimproved > thresholds.unimproved_share * models
    tau = kendall_tau_matrix(pair_signs(direct))
    others, negative, mean_tau = _agreement(tau, passed=~few & ~unmoved)
    reasons = []
    for column in range(direct.shape[1]):
        if few[column]:
            reason = f"{training_examples[column]:.0f} training examples, fewer than {thresholds.training_examples}"
        elif unmoved[column]:
            reason = f"no improvement in {unimproved[column]} of {models[column]} models"
        elif negative[column] > thresholds.negative_share * others[column]:
            reason = f"negative agreement with {negative[column]} of {others[column]} other benchmarks"
        else:
            reason = ""
        reasons.append(reason)
    return Screening(models, unimproved, others, negative, mean_tau, tuple(reasons))


def _agreement(tau: np.ndarray, passed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By column: others among `passed` with a defined tau, those of them below zero, and the mean; NaN for none."""
    counted = np.isfinite(tau) & passed[:, None] & ~np.eye(len(tau), dtype=bool)
    mean = finite_mean(np.where(counted, tau, np.nan), axis=0)
    return counted.sum(axis=0), (counted & (tau < 0)).sum(axis=0), mean
