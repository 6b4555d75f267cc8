"""Rank-one completion: a one-factor model of the score matrix, for missing cells and for a ranking despite them."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from lm_validity.studies.agreement.statistics.parallel_analysis import parallel_analysis

# The prior of a benchmark's specific variance, in units of its variance: worth 2 observations of 0.1. It keeps EM away
# from Heywood cases (a benchmark without noise of its own), which few models invite.
PRIOR_VARIANCE, PRIOR_WEIGHT = 0.1, 2.0


@dataclass(frozen=True)
class OneFactorModel:
    """z_ij = intercept_j + loading_j u_i + e_ij, u_i ~ N(0, 1), e_ij ~ N(0, specific_j), z standardised scores.

    `center`, `scale`: (k,) of the standardisation; `intercept`, `loading`, `specific`: (k,) parameters, NaN
    for a benchmark without two distinct scores; `ability`, `ability_variance`: (n,) posterior mean and
    variance of u.
    """

    center: np.ndarray
    scale: np.ndarray
    intercept: np.ndarray
    loading: np.ndarray
    specific: np.ndarray
    ability: np.ndarray
    ability_variance: np.ndarray

    def predict(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, standard deviation), (n, k) each: the predictive distribution of a new score in the scores' units."""
        mean = self.intercept + np.outer(self.ability, self.loading)
        variance = self.specific + np.outer(self.ability_variance, self.loading**2)
        return self.center + self.scale * mean, self.scale * np.sqrt(variance)

    def variance_after(self) -> np.ndarray:
        """(n, k) posterior variance of each model's ability if it were scored on one more benchmark."""
        return 1 / (1 / self.ability_variance[:, None] + self.loading**2 / self.specific)


def fit_one_factor(scores: np.ndarray, iterations: int = 500, tolerance: float = 1e-7) -> OneFactorModel:
    """Fit by expectation-maximisation over the known cells of `scores` (models, benchmarks), NaN where missing.

    Missing cells are ignored, not filled (Rubin & Thayer 1982 with missing data; they are assumed to be
    missing for reasons unrelated to their value). More is better; the factor points the way that most
    benchmarks do.
    """
    center, scale = _moments(scores)
    known = np.isfinite(scores) & np.isfinite(scale)
    z = np.where(known, (scores - center) / scale, 0.0)
    weight = known.astype(float)
    count = weight.sum(axis=0)
    intercept, loading, specific = np.zeros(z.shape[1]), np.full(z.shape[1], 0.8), np.full(z.shape[1], 0.36)
    for _ in range(iterations):
        ability, variance = _posterior(z, weight, intercept, loading, specific)
        before = loading
        sum_u, sum_uu = weight.T @ ability, weight.T @ (ability**2 + variance)
        sum_z, sum_zu = z.sum(axis=0), z.T @ ability
        spread = np.maximum(count * sum_uu - sum_u**2, 1e-12)
        loading = (count * sum_zu - sum_u * sum_z) / spread
        intercept = (sum_z - loading * sum_u) / np.maximum(count, 1)
        residual = weight * (z - intercept - np.outer(ability, loading))
        squares = (residual**2).sum(axis=0) + loading**2 * (weight.T @ variance)
        specific = (squares + PRIOR_WEIGHT * PRIOR_VARIANCE) / (count + PRIOR_WEIGHT)
        if np.abs(loading - before).max() < tolerance:
            break
    sign = 1.0 if np.sum(loading * count) >= 0 else -1.0
    ability, variance = _posterior(z, weight, intercept, sign * loading, specific)
    usable = np.isfinite(scale)
    parts = (np.where(usable, part, np.nan) for part in (intercept, sign * loading, specific))
    known_intercept, known_loading, known_specific = parts
    return OneFactorModel(center, scale, known_intercept, known_loading, known_specific, ability, variance)


def _moments(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column's known cells, NaN where they cannot be had or are 0."""
    known = np.isfinite(scores)
    count = known.sum(axis=0)
    values = np.where(known, scores, 0.0)
    center = np.divide(values.sum(axis=0), count, out=np.full(scores.shape[1], np.nan), where=count > 0)
    spread = np.where(known, scores - center, 0.0)
    scale = np.sqrt((spread**2).sum(axis=0) / np.maximum(count, 1))
    return center, np.where((count >= 2) & (scale > 0), scale, np.nan)


def _posterior(
    z: np.ndarray, weight: np.ndarray, intercept: np.ndarray, loading: np.ndarray, specific: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    variance = 1 / (1 + weight @ (loading**2 / specific))
    return variance * ((weight * (z - intercept)) @ (loading / specific)), variance


@dataclass(frozen=True)
class HeldOutCheck:
    """Known cells predicted from the others.

    `mean_absolute_error`, `baseline_error`: in the scores' units, of the model and of the benchmark's mean;
    `coverage`: share of cells inside their interval of level `level`; `multiplier`: standard deviations
    that hold the share `level` of the held-out cells; `cells`: their number; `error_in_sd`, `baseline_in_sd`: the two
    errors in standard deviations of each cell's benchmark, which do not mix units.
    """

    mean_absolute_error: float
    baseline_error: float
    coverage: float
    multiplier: float
    cells: int
    level: float
    error_in_sd: float = float("nan")
    baseline_in_sd: float = float("nan")


def check_held_out(scores: np.ndarray, rng: np.random.Generator, folds: int = 10, level: float = 0.95) -> HeldOutCheck:
    """Hide each known cell once, `folds` groups of cells at a time, and predict it from the rest.

    The `coverage` is that of intervals as they are made for missing cells: mean ± c standard deviations, c
    the `multiplier` of the cells of the *other* groups (cross-conformal, Vovk 2015), so it is an honest
    check.
    """
    rows, columns = np.nonzero(np.isfinite(scores))
    group = rng.permutation(np.arange(len(rows)) % folds)
    error, standardized, baseline, scale = (np.full(len(rows), np.nan) for _ in range(4))
    for fold in range(min(folds, len(rows))):
        here = group == fold
        training = scores.copy()
        training[rows[here], columns[here]] = np.nan
        model = fit_one_factor(training)
        mean, deviation = (part[rows[here], columns[here]] for part in model.predict())
        truth = scores[rows[here], columns[here]]
        error[here] = truth - mean
        standardized[here] = np.abs(error[here]) / deviation
        baseline[here] = np.abs(truth - model.center[columns[here]])
        scale[here] = model.scale[columns[here]]
    predicted = np.isfinite(standardized)
    if predicted.sum() < folds:
        nothing = float("nan")
        return HeldOutCheck(nothing, nothing, nothing, float(stats.norm.ppf(0.5 + level / 2)), 0, level)
    inside = np.zeros(len(rows), dtype=bool)
    for fold in range(folds):
        others = predicted & (group != fold)
        here = predicted & (group == fold)
        inside[here] = standardized[here] <= np.quantile(standardized[others], level)
    return HeldOutCheck(
        mean_absolute_error=float(np.abs(error[predicted]).mean()),
        baseline_error=float(baseline[predicted].mean()),
        coverage=float(inside[predicted].mean()),
        multiplier=float(np.quantile(standardized[predicted], level)),
        cells=int(predicted.sum()),
        level=level,
        error_in_sd=float((np.abs(error) / scale)[predicted].mean()),
        baseline_in_sd=float((baseline / scale)[predicted].mean()),
    )


def second_factor(scores: np.ndarray, rng: np.random.Generator, permutations: int = 200) -> float:
    """Probability, under one factor, of a common component of the residuals at least as large as that observed.

    Residuals of `fit_one_factor` over the known cells of `scores` (models, benchmarks) against the same residuals
    shuffled over the models of each benchmark. The ranks of `ability_ranks` take one factor for granted: where there is
    a second one they are far too certain. NaN where residuals have no components. It has little power below about
    20 models: a large probability there shows no absence.
    """
    model = fit_one_factor(scores)
    residuals = scores - (model.center + model.scale * (model.intercept + np.outer(model.ability, model.loading)))
    return parallel_analysis(residuals, rng, permutations).p_first


def ability_ranks(
    model: OneFactorModel, rng: np.random.Generator, draws: int = 2000, widening: float = 1.0
) -> np.ndarray:
    """(draws, n) ranks (1 = best) of abilities drawn from their posteriors, given the fitted parameters.

    widening: factor of the posterior standard deviations; that of intervals that hold what they claim, where few cells
    are known (the parameters are then far from certain).
    """
    deviation = widening * np.sqrt(model.ability_variance)
    sample = model.ability + deviation * rng.standard_normal((draws, len(model.ability)))
    return (-sample).argsort(axis=1).argsort(axis=1) + 1
