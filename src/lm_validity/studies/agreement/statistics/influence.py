"""Influence: the headline figures with one family, one benchmark or one model left out."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.agreement import mean_over_pairs
from lm_validity.studies.agreement.statistics.factors import principal_components
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, leave_out_kendall_tau, pair_signs


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
    signs = pair_signs(scores)
    tau = kendall_tau_matrix(signs)
    results = []
    if len(scores) < 2:
        return [_without_benchmark(tau, scores, j, name) for j, name in enumerate(benchmarks)]
    names = list(dict.fromkeys(name for name in families if name is not None))
    if names:
        clusters = np.array([names.index(name) if name is not None else len(names) for name in families])
        taus = leave_out_kendall_tau(signs, clusters)
        for number, family in enumerate(names):
            rest = scores[families != family]
            if len(rest) >= 2:
                results.append(LeftOut("family", family, mean_over_pairs(taus[number]), _first_share(rest)))
    results += [_without_benchmark(tau, scores, j, name) for j, name in enumerate(benchmarks)]
    taus = leave_out_kendall_tau(signs, np.arange(len(models)))
    for i, name in enumerate(models if len(models) > 2 else []):
        results.append(LeftOut("model", name, mean_over_pairs(taus[i]), _first_share(np.delete(scores, i, axis=0))))
    return results


def _without_benchmark(tau: np.ndarray, scores: np.ndarray, column: int, name: str) -> LeftOut:
    rest = np.delete(np.arange(len(tau)), column)
    return LeftOut("benchmark", name, mean_over_pairs(tau[np.ix_(rest, rest)]), _first_share(scores[:, rest]))


def _first_share(scores: np.ndarray) -> float:
    shares = principal_components(scores).explained_variance
    return float(shares[0]) if len(shares) else float("nan")
