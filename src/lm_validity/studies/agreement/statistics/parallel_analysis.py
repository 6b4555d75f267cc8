"""How many factors: eigenvalues against those of tables whose columns were shuffled (Horn 1965)."""

from typing import NamedTuple

import numpy as np

from lm_validity.studies.agreement.statistics.factors import principal_components
from lm_validity.studies.agreement.statistics.missing import finite_mean, finite_quantile


class ParallelAnalysis(NamedTuple):
    """`observed`: (k,) shares of variance; `null_mean`, `null_95`: (k,) mean and 95th percentile of the
    null's; `factors`: number of leading components above the null's 95th percentile; `p_first`: share of
    null tables whose first component is at least the observed one, with one added to both counts.
    """

    observed: np.ndarray
    null_mean: np.ndarray
    null_95: np.ndarray
    factors: int
    p_first: float


def parallel_analysis(scores: np.ndarray, rng: np.random.Generator, permutations: int = 500) -> ParallelAnalysis:
    """Compare the explained variances of `scores` (models, benchmarks) with a permutation null.

    The null shuffles the known scores of each benchmark over the models that have one, independently: no
    common factor, the same marginal distributions and the same missing cells (Buja & Eyuboglu 1992).
    Columns that cannot take part are left out, as in `principal_components`. Components after the first are
    compared with a null without any factor, which is strict towards them: the count is a lower bound.
    """
    components = principal_components(scores)
    observed = components.explained_variance
    if not len(observed):
        return ParallelAnalysis(observed, observed, observed, 0, float("nan"))
    values = scores[:, components.used]
    null = np.full((permutations, len(observed)), np.nan)
    for draw in range(permutations):
        shares = principal_components(_shuffled(values, rng)).explained_variance
        null[draw, : len(shares)] = shares
    null_95 = finite_quantile(null, [0.95])[0]
    above = observed > null_95
    factors = len(above) if above.all() else int(np.argmin(above))
    p_first = (1 + (null[:, 0] >= observed[0]).sum()) / (1 + permutations)
    return ParallelAnalysis(observed, finite_mean(null, axis=0), null_95, factors, float(p_first))


def without_group_means(scores: np.ndarray, groups: np.ndarray, least: int = 3) -> np.ndarray:
    """`scores` (models, benchmarks) of the groups of at least `least` models, less the mean of their group.

    Families of models make parallel analysis find factors where benchmarks are independent within each family: what is
    left here has no differences between families. `groups`: (models,) names, None where unknown (left out).
    """
    parts = [
        scores[groups == name] - finite_mean(scores[groups == name], axis=0)
        for name in dict.fromkeys(groups)
        if name is not None and (groups == name).sum() >= least
    ]
    return np.concatenate(parts) if parts else scores[:0]


def _shuffled(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    known = np.isfinite(values)
    if known.all():
        return rng.permuted(values, axis=0)
    shuffled = values.copy()
    for j in range(values.shape[1]):
        shuffled[known[:, j], j] = rng.permutation(values[known[:, j], j])
    return shuffled
