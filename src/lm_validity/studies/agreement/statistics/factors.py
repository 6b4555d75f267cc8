"""Principal components of the standardised score matrix, also where cells are missing."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.missing import finite_mean


@dataclass(frozen=True)
class Components:
    """Principal components of n models × k benchmarks.

    `explained_variance`: (k,) shares of the total variance, descending, fractions that sum to 1.
    `loadings`: (k,) unit vector of the first component, oriented so that its sum is positive; `scores`:
    (n,) each model's coordinate on it. Benchmarks that could not take part have loading NaN; models without
    a score have score NaN.
    """

    explained_variance: np.ndarray
    loadings: np.ndarray
    scores: np.ndarray
    used: np.ndarray


def principal_components(scores: np.ndarray) -> Components:
    """PCA of `scores` (models, benchmarks), NaN where missing.

    Columns are centred and divided by their population standard deviation. Centring alone does not give the paper's
    numbers. The explained variances are the eigenvalues of the correlation matrix over their sum. With missing cells
    each correlation is that of the models known in both columns, so that no value is filled in. Such a matrix may have
    slightly negative eigenvalues. A model's score is the least-squares coordinate sum_j z_ij v_j / sum_j v_j² over its
    known cells: the ordinary PCA score where all are known.

    Constant columns and columns without two common models with every other one are left out (`used` is
    False).
    """
    used, matrix = usable_columns(scores)
    k = scores.shape[1]
    empty = Components(np.full(0, np.nan), np.full(k, np.nan), np.full(len(scores), np.nan), used)
    if used.sum() < 2:
        return empty
    values = scores[:, used]
    centred = values - finite_mean(values, axis=0)
    standardized = centred / np.sqrt(finite_mean(centred**2, axis=0))
    eigenvalues, vectors = np.linalg.eigh(matrix)
    first = vectors[:, -1] * (1.0 if vectors[:, -1].sum() >= 0 else -1.0)
    known = np.isfinite(standardized)
    projection = np.where(known, standardized, 0.0) @ first
    weight = known @ first**2
    loadings = np.full(k, np.nan)
    loadings[used] = first
    return Components(
        explained_variance=eigenvalues[::-1] / eigenvalues.sum(),
        loadings=loadings,
        scores=np.divide(projection, weight, out=np.full(len(scores), np.nan), where=weight > 0),
        used=used,
    )


def pairwise_correlation(scores: np.ndarray) -> np.ndarray:
    """(k, k) Pearson correlations of the columns of `scores` (n, k) over the models known in both, else NaN."""
    known = np.isfinite(scores)
    # centring first keeps the sums of squares free of cancellation
    values = np.where(known, scores - finite_mean(scores, axis=0), 0.0)
    if known.all():
        covariance = values.T @ values / len(values)
        square = np.broadcast_to(np.diag(covariance)[:, None], covariance.shape)
    else:
        covariance, square = pairwise_moments(values, known.astype(float), np.ones(len(values)))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = covariance / np.sqrt(square * square.T)
    constant = ~(square > 1e-24)
    correlation[constant | constant.T] = np.nan
    np.fill_diagonal(correlation, np.where(np.isnan(np.diag(correlation)), np.nan, 1.0))
    return correlation


def pairwise_moments(values: np.ndarray, known: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([a, b]: covariance of columns a and b, variance of a), both over the models known in a and b.

    `values`: (..., models, columns), about centred, 0 where `known` (models, columns) is 0; `weights`: (..., models).
    """
    weighted_known, weighted_values = known * weights[..., None], values * weights[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        count = weighted_known.swapaxes(-1, -2) @ known
        mean = (weighted_values.swapaxes(-1, -2) @ known) / count
        square = ((weighted_values * values).swapaxes(-1, -2) @ known) / count - mean**2
        covariance = (weighted_values.swapaxes(-1, -2) @ values) / count - mean * mean.swapaxes(-1, -2)
        return covariance, square


def usable_columns(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(k,) columns whose correlations with all other usable columns are defined, and those correlations.

    The worst column leaves first. A column of which no two scores differ by more than rounding (1e-12 of the largest)
    is constant.
    """
    if not len(scores):
        return np.zeros(scores.shape[1], dtype=bool), np.empty((0, 0))
    known = np.isfinite(scores)
    lowest, highest = np.where(known, scores, np.inf).min(axis=0), np.where(known, scores, -np.inf).max(axis=0)
    used = highest > lowest
    used[used] = (highest - lowest)[used] > 1e-12 * np.maximum(np.abs(highest), np.abs(lowest))[used]
    while used.sum() >= 2:
        correlation = pairwise_correlation(scores[:, used])
        undefined = np.isnan(correlation).sum(axis=0)
        if not undefined.any():
            return used, correlation
        used[np.flatnonzero(used)[np.argmax(undefined)]] = False
    return np.zeros(scores.shape[1], dtype=bool), np.empty((0, 0))


@dataclass(frozen=True)
class ComputeRelation:
    """First-component scores against pretraining compute: correlations in [-1, 1] over `models` models."""

    kendall: float
    spearman: float
    pearson: float
    models: int


def pretraining_compute(parameters_b: np.ndarray, tokens_b: np.ndarray) -> np.ndarray:
    """Floating-point operations of pretraining, 6 N D (Kaplan et al. 2020), from billions of parameters and tokens."""
    return 6.0 * parameters_b * 1e9 * tokens_b * 1e9


def relate_to_compute(scores: np.ndarray, compute: np.ndarray) -> ComputeRelation:
    """Correlations of `scores` with `compute` (models,); Pearson's uses log10 of compute. NaN where undefined.

    Models with either value missing are left out; at least 3 models and two distinct values of each are
    needed.
    """
    from scipy.stats import pearsonr, spearmanr

    from lm_validity.studies.agreement.statistics.ranking import kendall_tau

    both = np.isfinite(scores) & np.isfinite(compute)
    x, y = scores[both], compute[both]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return ComputeRelation(float("nan"), float("nan"), float("nan"), len(x))
    return ComputeRelation(
        kendall=kendall_tau(x, y),
        spearman=float(spearmanr(x, y).statistic),
        pearson=float(pearsonr(x, np.log10(y)).statistic),
        models=len(x),
    )


def without_size(scores: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Residuals of each benchmark's scores on the logarithm of `size` (models,), over models with both; others NaN.

    What models of like size still have in common: the first component of a table mostly orders models by size. It takes
    the relation to be a line in the logarithm, so scores that level off leave a part of it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.log(np.where(size > 0, size, np.nan))
    known = np.isfinite(scores) & np.isfinite(logarithm)[:, None]
    x, y = (np.where(known, values, np.nan) for values in (logarithm[:, None], scores))
    x, y = x - finite_mean(x, axis=0), y - finite_mean(y, axis=0)
    square = np.nansum(x**2, axis=0)
    slope = np.divide(np.nansum(x * y, axis=0), square, out=np.zeros(len(square)), where=square > 0)
    return y - slope * x
