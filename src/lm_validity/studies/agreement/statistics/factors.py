"""Factors of the score matrix: shares, how many there are, ranks on the first one."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit, logit

from lm_validity.statistics import Interval
from lm_validity.studies.agreement.statistics.ranking import finite_mean, finite_quantile, kendall_tau
from lm_validity.studies.agreement.statistics.resampling import transformed_interval

# ----------------------------------------------------------------------------------------------------------------------
# Principal components of the standardised score matrix, also where cells are missing.


@dataclass(frozen=True)
class Components:
    """Principal components of n models × k benchmarks.

    `explained_variance`: (k,) shares of the total variance, descending, fractions that sum to 1.
    `scores`: (n,) each model's coordinate on the first one, whose vector has a positive sum; NaN for models without a
    score. `included`: (k,) mask of the benchmarks that take part.
    """

    explained_variance: np.ndarray
    scores: np.ndarray
    included: np.ndarray


def principal_components(scores: np.ndarray) -> Components:
    """PCA of `scores` (models, benchmarks), NaN where missing.

    Columns are centred and divided by their population standard deviation. Centring alone does not give the paper's
    numbers. The explained variances are the eigenvalues of the correlation matrix over their sum. With missing cells
    each correlation is that of the models known in both columns, so that no value is filled in. Such a matrix may have
    slightly negative eigenvalues. A model's score is the least-squares coordinate sum_j z_ij v_j / sum_j v_j² over its
    known cells: the ordinary PCA score where all are known.

    Constant columns and columns without two common models with every other one are left out (`included` is
    False).
    """
    is_used, matrix = usable_columns(scores)
    if is_used.sum() < 2:
        return Components(np.full(0, np.nan), np.full(len(scores), np.nan), is_used)
    values = scores[:, is_used]
    centred = values - finite_mean(values, axis=0)
    standardized = centred / np.sqrt(finite_mean(centred**2, axis=0))
    eigenvalues, vectors = np.linalg.eigh(matrix)
    first = vectors[:, -1] * (1.0 if vectors[:, -1].sum() >= 0 else -1.0)
    is_known = np.isfinite(standardized)
    projection = np.where(is_known, standardized, 0.0) @ first
    weight = is_known @ first**2
    return Components(
        explained_variance=eigenvalues[::-1] / eigenvalues.sum(),
        scores=np.divide(projection, weight, out=np.full(len(scores), np.nan), where=weight > 0),
        included=is_used,
    )


def pairwise_correlation(scores: np.ndarray) -> np.ndarray:
    """(k, k) Pearson correlations of the columns of `scores` (n, k) over the models known in both, else NaN."""
    is_known = np.isfinite(scores)
    # centring first keeps the sums of squares free of cancellation
    values = np.where(is_known, scores - finite_mean(scores, axis=0), 0.0)
    if is_known.all():
        covariance = values.T @ values / len(values)
        square = np.broadcast_to(np.diag(covariance)[:, None], covariance.shape)
    else:
        covariance, square = _moments(*_sums(values, is_known.astype(float)))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = covariance / np.sqrt(square * square.T)
    constant = ~(square > 1e-24)
    correlation[constant | constant.T] = np.nan
    np.fill_diagonal(correlation, np.where(np.isnan(np.diag(correlation)), np.nan, 1.0))
    return correlation


def _sums(values: np.ndarray, is_known: np.ndarray) -> list[np.ndarray]:
    """What `_moments` takes, (..., columns, columns) each, of `values` (..., models, columns), about centred and 0
    where `is_known` (models, columns) is 0."""
    turned = values.swapaxes(-1, -2)
    return [is_known.T @ is_known, turned @ is_known, turned**2 @ is_known, turned @ values]


def _moments(count: np.ndarray, total: np.ndarray, of_squares: np.ndarray, product: np.ndarray) -> np.ndarray:
    """(2, ..., columns, columns) the covariance of columns a and b and the variance of a, both over the models known in
    a and b, from sums over these: their number, and of a's values, a's squares and the products."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / count
        return np.array([product / count - mean * mean.swapaxes(-1, -2), of_squares / count - mean**2])


class UsableColumns(NamedTuple):
    """The columns that take part in principal components.

    `columns`: (k,) mask of those whose correlations with all other usable columns are defined; `correlation`: these
    correlations, (usable, usable).
    """

    columns: np.ndarray
    correlation: np.ndarray


def usable_columns(scores: np.ndarray) -> UsableColumns:
    """The usable columns of `scores` (models, k).

    The worst column leaves first. A column of which no two scores differ by more than rounding (1e-12 of the largest)
    is constant.
    """
    none = UsableColumns(np.zeros(scores.shape[1], dtype=bool), np.empty((0, 0)))
    if not len(scores):
        return none
    is_known = np.isfinite(scores)
    lowest, highest = np.where(is_known, scores, np.inf).min(axis=0), np.where(is_known, scores, -np.inf).max(axis=0)
    is_used = highest > lowest
    is_used[is_used] = (highest - lowest)[is_used] > 1e-12 * np.maximum(np.abs(highest), np.abs(lowest))[is_used]
    while is_used.sum() >= 2:
        correlation = pairwise_correlation(scores[:, is_used])
        undefined = np.isnan(correlation).sum(axis=0)
        if not undefined.any():
            return UsableColumns(is_used, correlation)
        is_used[np.flatnonzero(is_used)[np.argmax(undefined)]] = False
    return none


@dataclass(frozen=True)
class ComputeRelation:
    """First-component scores against pretraining compute: correlations in [-1, 1] over `models` models."""

    kendall: float
    spearman: float
    pearson: float
    models: int


def pretraining_compute(parameters_b: np.ndarray, tokens_b: np.ndarray) -> np.ndarray:
    """Floating-point operations of pretraining, 6 N D (Kaplan et al. 2020), from billions of parameters and tokens."""
    return np.asarray(6.0 * parameters_b * 1e9 * tokens_b * 1e9)


def relate_to_compute(scores: np.ndarray, compute: np.ndarray) -> ComputeRelation:
    """Correlations of `scores` with `compute` (models,); Pearson's uses log10 of compute. NaN where undefined.

    Models with either value missing are left out; at least 3 models and two distinct values of each are
    needed.
    """
    has_both = np.isfinite(scores) & np.isfinite(compute)
    x, y = scores[has_both], compute[has_both]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return ComputeRelation(float("nan"), float("nan"), float("nan"), len(x))
    return ComputeRelation(
        kendall=kendall_tau(x, y),
        spearman=float(stats.spearmanr(x, y).statistic),
        pearson=float(stats.pearsonr(x, np.log10(y)).statistic),
        models=len(x),
    )


def without_size(scores: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Residuals of each benchmark's scores on the logarithm of `size` (models,), over models with both; others NaN.

    What models of like size still have in common: the first component of a table mostly orders models by size. It takes
    the relation to be a line in the logarithm, so scores that level off leave a part of it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.log(np.where(size > 0, size, np.nan))
    is_known = np.isfinite(scores) & np.isfinite(logarithm)[:, None]
    x, y = (np.where(is_known, values, np.nan) for values in (logarithm[:, None], scores))
    x, y = x - finite_mean(x, axis=0), y - finite_mean(y, axis=0)
    square = np.nansum(x**2, axis=0)
    slope = np.divide(np.nansum(x * y, axis=0), square, out=np.zeros(len(square)), where=square > 0)
    return np.asarray(y - slope * x)


# ----------------------------------------------------------------------------------------------------------------------
# First components of many tables at once: of redrawn scores, of resampled benchmarks, without some of the models.
#
# Equal to one call of `principal_components` a table up to rounding. A table in which a benchmark takes no part goes
# through `principal_components` itself, which decides what takes part.

COMPONENTS_AT_ONCE = 2**21  # numbers in tables without some of the models
SHARE_ROUNDING = 1e-9  # of a share of variance: by so little two that are equal may differ
NEARLY_CONSTANT = 1e-12  # of the largest square of a benchmark's scores


def component_shares(tables: np.ndarray) -> np.ndarray:
    """(tables, benchmarks) shares of variance of the components of `tables` (tables, models, benchmarks), the largest
    first; NaN for those that do not exist.

    What is missing must be the same cells in all tables. Some tables are taken at a time, so memory is bounded.
    """
    shares = np.full((len(tables), tables.shape[2]), np.nan)
    if not tables.size:
        return shares
    is_known = np.isfinite(tables[0]).astype(float)
    step = max(1, COMPONENTS_AT_ONCE // max(1, is_known.size, is_known.shape[1] ** 2))
    for start in range(0, len(tables), step):
        part = tables[start : start + step]
        filled = np.where(is_known > 0, part, 0.0)
        values = is_known * (filled - filled.sum(axis=1, keepdims=True) / np.maximum(is_known.sum(axis=0), 1))
        if is_known.all():
            covariance = values.swapaxes(1, 2) @ values / len(is_known)
            square = np.broadcast_to(np.diagonal(covariance, axis1=1, axis2=2)[:, :, None], covariance.shape)
        else:
            covariance, square = _moments(*_sums(values, is_known))
        correlation, plain = _correlation(covariance, square, (filled**2).max(axis=1))
        shares[start + np.flatnonzero(plain)] = _shares(correlation[plain])
        for index in np.flatnonzero(~plain):
            own_shares = principal_components(part[index]).explained_variance
            shares[start + index, : len(own_shares)] = own_shares
    return shares


def share_interval(scores: np.ndarray, clusters: np.ndarray) -> Interval[float]:
    """Bounds of the first share of variance: a jackknife-t interval on the logit scale (see `jackknife_interval`; a
    cluster's size is its number of models with a score) whose low end is moved by the bias of the estimate.

    `clusters`: (models,) whole numbers from 0; each in turn is left out (one per model: for other models; families: for
    models of other families). It always holds its estimate. NaN where there is no component, and where leaving out a
    cluster leaves none. The first share of a sample is too large on average, most where benchmarks are weakly related
    and models few (`without_bias`); where parallel analysis finds no factor it says nothing. *It fails* where few
    models decide: least with scores of infinite variance.
    """
    shares = principal_components(scores).explained_variance
    if not len(shares):
        return Interval(float("nan"), float("nan"))
    present = np.isfinite(scores).any(axis=1)
    parts = shares_left_out(scores, clusters, 1)[:, 0]
    low, high = transformed_interval(float(shares[0]), parts, "share", np.bincount(clusters, present))
    corrected = without_bias(float(shares[0]), int(present.sum()), len(shares))
    return Interval(float(expit(logit(low) + logit(corrected) - logit(shares[0]))), float(high))


def without_bias(share: float, models: int, benchmarks: int) -> float:
    """The first share λ / k of a population in which samples of n `models` have on average this `share` l / k.

    l = λ + γ σ² λ / (λ - σ²), with γ = k / (n - 1) and σ² = (k - λ) / (k - 1) the variance that is left for each other
    component (Baik and Silverstein 2006, Journal of Multivariate Analysis 97:1382). Where l is so small that no factor
    shows, it is that of benchmarks without one.
    """
    ratio = benchmarks / max(models - 1, 1)

    def excess(factor: float) -> float:  # of the expected first share over that of the sample
        rest = (benchmarks - factor) / (benchmarks - 1)
        if factor <= rest * (1 + np.sqrt(ratio)):  # below it the first share does not depend on the factor
            return float(rest * (1 + np.sqrt(ratio)) ** 2 - share * benchmarks)
        return factor + ratio * rest * factor / (factor - rest) - share * benchmarks

    if share >= 1 or excess(1.0) >= 0:
        return share if share >= 1 else 1 / benchmarks
    return float(brentq(excess, 1.0, float(benchmarks))) / benchmarks


def shares_left_out(scores: np.ndarray, clusters: np.ndarray, components: int) -> np.ndarray:
    """(clusters, components) first shares of variance without each cluster; NaN where there are none."""
    number = int(clusters.max()) + 1
    left_out = np.full((number, components), np.nan)
    is_known = np.isfinite(scores).astype(float)
    filled = np.where(is_known > 0, scores, 0.0)
    values = is_known * (filled - filled.sum(axis=0) / np.maximum(is_known.sum(axis=0), 1))
    whole_sums = np.array(_sums(values, is_known))
    step = max(1, COMPONENTS_AT_ONCE // max(1, values.shape[1] ** 2))
    for start in range(0, number, step):
        out = np.arange(start, min(start + step, number))
        concerned = [clusters == cluster for cluster in out]
        parts = np.array([_sums(values[rows], is_known[rows]) for rows in concerned])
        covariance, square = _moments(*np.moveaxis(whole_sums - parts, 1, 0))
        correlation, plain = _correlation(covariance, square, (filled**2).max(axis=0))
        shares = _shares(correlation[plain])[:, :components]
        left_out[out[plain], : shares.shape[1]] = shares
        for index in out[~plain]:
            part = principal_components(scores[clusters != index]).explained_variance[:components]
            left_out[index, : len(part)] = part
    return left_out


def _correlation(covariance: np.ndarray, square: np.ndarray, largest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Correlations, and whether they are all defined and clearly so; `largest`: (..., k) largest square of a score."""
    plain = np.asarray((square > NEARLY_CONSTANT * largest[..., :, None]).all(axis=(-1, -2)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return covariance / np.sqrt(square * square.swapaxes(-1, -2)), plain


def _shares(correlation: np.ndarray) -> np.ndarray:
    """(tables, k) eigenvalues of (tables, k, k) over their sum, the largest first."""
    eigenvalues = np.linalg.eigvalsh(correlation)[:, ::-1]
    return np.asarray(eigenvalues / eigenvalues.sum(axis=1, keepdims=True))


# ----------------------------------------------------------------------------------------------------------------------
# How many factors: eigenvalues against those of tables whose columns were shuffled (Horn 1965).


class ParallelAnalysis(NamedTuple):
    """`null_95`: (k,) 95th percentile of the null's shares of variance; `factors`: number of leading components above
    that; `p_first`: share of null tables whose first component is at least the observed one, with one added to both
    counts.
    """

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
        return ParallelAnalysis(observed, 0, float("nan"))
    values = scores[:, components.included]
    step = max(1, COMPONENTS_AT_ONCE // max(1, values.size))
    parts = [min(step, permutations - start) for start in range(0, permutations, step)]
    null = np.concatenate([component_shares(_shuffled(values, rng, size)) for size in parts])
    null_95 = finite_quantile(null, [0.95])[0]
    above = observed > null_95 * (1 + SHARE_ROUNDING)
    factors = len(above) if above.all() else int(np.argmin(above))
    p_first = (1 + (null[:, 0] >= observed[0] * (1 - SHARE_ROUNDING)).sum()) / (1 + permutations)
    return ParallelAnalysis(null_95, factors, float(p_first))


def _shuffled(values: np.ndarray, rng: np.random.Generator, draws: int) -> np.ndarray:
    """(draws, models, benchmarks) the known scores of each benchmark in other orders."""
    is_known, shuffled = np.isfinite(values), np.repeat(values[None], draws, axis=0)
    for draw in shuffled:
        if is_known.all():
            draw[:] = rng.permuted(values, axis=0)
            continue
        for column, (scores, present) in enumerate(zip(values.T, is_known.T, strict=True)):
            draw[present, column] = rng.permutation(scores[present])
    return shuffled
