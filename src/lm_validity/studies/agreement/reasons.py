"""Why a number of the agreement reports is missing or has no interval, in sentences."""

import numpy as np

from lm_validity.missing import Reason, ReasonCode
from lm_validity.studies.agreement.score_matrix import MINIMUM_FAMILY
from lm_validity.studies.agreement.statistics.noise import LEAST_CORRECTED, Ceiling
from lm_validity.studies.agreement.statistics.resampling import LEAST_CLUSTERS, MOST_IN_ONE, cluster_numbers
from lm_validity.words import count, decimal, no_scores

FEW_FAMILIES = 5
NO_FAMILIES = f"The models sheet names no family of at least {MINIMUM_FAMILY} models with scores."
NO_TAU = Reason(
    "The two benchmarks have fewer than two models in common, or all of those are tied on one of the two.",
    ReasonCode.TOO_FEW,
)
SMALL_FAMILY = Reason(f"The family has fewer than {MINIMUM_FAMILY} models.", ReasonCode.TOO_FEW)
OUTSIDE = Reason(
    "The estimate lies outside what its resamples give, so there is no interval to trust.", ReasonCode.NO_INTERVAL
)
NO_SPREAD = Reason(
    "Every resample gives the same value, which says nothing about other models: there is no interval.",
    ReasonCode.NO_INTERVAL,
)
UNDEFINED_RESAMPLES = Reason("Too few of the resamples give a value, so there is no interval.", ReasonCode.NO_INTERVAL)
LOST_MODEL = Reason(
    "Without one of the models no tau is left, or a tau is 1 or -1, where this interval does not exist.",
    ReasonCode.NO_INTERVAL,
)
LOST_CLUSTER = (
    f"There are fewer than {LEAST_CLUSTERS} families, or one holds more than half of the models. Or leaving one of "
    "them out leaves no tau, or a tau of 1 or -1."
)
LOST_CATEGORY = (
    f"There are fewer than {LEAST_CLUSTERS} families, or one family or category holds more than half of its kind. Or "
    "leaving a family or a category out leaves no tau, or a tau of 1 or -1."
)
NARROWER = (
    f"There are fewer than {FEW_FAMILIES} families, and it would be narrower than the interval over models: these "
    "families happen to differ less than their models do, which says nothing about other families."
)
NO_DIRECTION = Reason(
    "Nothing says whether higher or lower is better on it, and its order of the models is against the others'.",
    ReasonCode.NO_INTERVAL,
)
FEW_IN_BOTH = Reason("Fewer than 3 models have scores under both protocols.", ReasonCode.TOO_FEW)


def no_intervals(resamples: int, models: int) -> Reason | None:
    """Why there are no intervals over models, None where there are."""
    if resamples == 0:
        return Reason("No resampling was asked for (--resamples 0).", ReasonCode.SKIPPED)
    if models < MINIMUM_FAMILY:
        return Reason(f"There are too few models to resample ({models}).", ReasonCode.TOO_FEW)
    return None


def no_clusters(families: np.ndarray) -> str | None:
    """Why families give no clusters, None where they do; a model of unknown family is a cluster of its own."""
    named = [name for name in families if name is not None]
    if not named:
        return "The models sheet names no family."
    if len(named) == len(set(named)):
        return "No family has two models: the interval over models is that over families."
    clusters = int(cluster_numbers(families).max()) + 1
    if clusters < LEAST_CLUSTERS:
        return Reason(f"There are fewer than {LEAST_CLUSTERS} families.", ReasonCode.TOO_FEW)
    largest = max(set(named), key=named.count)
    size_of_largest = named.count(largest)
    if size_of_largest > MOST_IN_ONE * len(families):
        return f"{size_of_largest} of {len(families)} models are of one family."
    return None


def no_categories(categories: list[str | None]) -> str | None:
    """Why categories give no clusters, None where they do; a benchmark of no category is a cluster of its own."""
    named = [name for name in categories if name is not None]
    if not named:
        return "The benchmarks sheet names no category."
    if len(named) == len(set(named)):
        return "No category has two benchmarks: the interval over benchmarks is that over categories."
    clusters = len(set(named)) + len(categories) - len(named)
    if clusters < LEAST_CLUSTERS:
        return Reason(f"There are fewer than {LEAST_CLUSTERS} categories.", ReasonCode.TOO_FEW)
    return None


def no_ceiling(included: np.ndarray, scores: np.ndarray, protocol: str) -> str:
    """Why a noise ceiling of `scores` (models, benchmarks) under `protocol`, over the benchmarks `included` (mask), is
    not defined."""
    if not np.isfinite(scores).any():
        return no_scores(protocol)
    if (np.isfinite(scores).sum(axis=0) >= 2).sum() < 2:
        return Reason(
            "Fewer than two benchmarks have scores of two models, so there is no noise ceiling.", ReasonCode.TOO_FEW
        )
    if included.sum() < 2:
        return Reason(
            "Fewer than two benchmarks on which models differ have standard errors, so there is no noise ceiling.",
            ReasonCode.TOO_FEW,
        )
    return Reason(
        "No two benchmarks with standard errors have models in common that differ, so there is no noise ceiling.",
        ReasonCode.TOO_FEW,
    )


def no_correction(ceiling: Ceiling, scores: np.ndarray, protocol: str) -> str | None:
    """Why a noise ceiling cannot correct a tau, None where it can."""
    if np.isnan(ceiling.mean_tau):
        return no_ceiling(ceiling.included, scores, protocol)
    if ceiling.models < LEAST_CORRECTED:
        return f"The noise ceiling is over {count(ceiling.models, 'model')}, fewer than {LEAST_CORRECTED}."
    if not ceiling.above_zero:
        return f"At a tau of {decimal(ceiling.mean_tau)} the noise ceiling is not clearly above 0."
    return None
