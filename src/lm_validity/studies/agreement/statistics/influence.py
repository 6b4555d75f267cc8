"""Influence: the headline figures with one family, one benchmark or one model left out."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.agreement import mean_over_pairs
from lm_validity.studies.agreement.statistics.factors import principal_components
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, pair_signs


@dataclass(frozen=True)
class LeftOut:
    """Figures without one part: `mean_tau` in [-1, 1] and `first_component` in [0, 1], NaN where undefined."""

    kind: str  # family | benchmark | model
    name: str
    mean_tau: float
    first_component: float


def leave_one_out(scores: np.ndarray, models: list[str], benchmarks: list[str], families: np.ndarray) -> list[LeftOut]:
    """Leave out each family, each benchmark and each model in turn.

    `scores`: (models, benchmarks), more is better, NaN where missing; `families`: (models,) names, None
    where unknown.
    """
    tau = kendall_tau_matrix(pair_signs(scores))
    results = []
    for family in dict.fromkeys(name for name in families if name is not None):
        rest = scores[families != family]
        if len(rest) >= 2:
            results.append(LeftOut("family", family, _mean_tau(rest), _first_share(rest)))
    for j, name in enumerate(benchmarks):
        rest = np.delete(np.arange(len(benchmarks)), j)
        results.append(
            LeftOut("benchmark", name, mean_over_pairs(tau[np.ix_(rest, rest)]), _first_share(scores[:, rest]))
        )
    for i, name in enumerate(models):
        rest = np.delete(scores, i, axis=0)
        if len(rest) >= 2:
            results.append(LeftOut("model", name, _mean_tau(rest), _first_share(rest)))
    return results


def _mean_tau(scores: np.ndarray) -> float:
    return mean_over_pairs(kendall_tau_matrix(pair_signs(scores)))


def _first_share(scores: np.ndarray) -> float:
    shares = principal_components(scores).explained_variance
    return float(shares[0]) if len(shares) else float("nan")
