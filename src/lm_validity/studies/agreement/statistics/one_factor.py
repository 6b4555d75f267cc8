"""A model of one factor of the score matrix: for missing cells, and for a ranking despite them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from lm_validity.studies.agreement.statistics.factors import COMPONENTS_AT_ONCE, SHARE_ROUNDING, component_shares
from lm_validity.studies.agreement.statistics.ranking import finite_mean

# The prior of a benchmark's specific variance, in units of its variance: worth 2 observations of 0.1. It keeps EM away
# from Heywood cases (a benchmark without noise of its own), which few models invite.
PRIOR_VARIANCE, PRIOR_WEIGHT = 0.1, 2.0
ITERATIONS, TOLERANCE = 500, 1e-7  # of the loadings
FOLDS, LEVEL = 10, 0.95  # of the check by held-out cells
FEWEST_TO_DETERMINE, FEWEST_TO_CONTRADICT = 3, 4  # benchmarks: of one factor
ENOUGH = 10  # draws as large as what was observed


class PredictedScores(NamedTuple):
    """Means and standard deviations of new scores, (n, k) each."""

    mean: np.ndarray
    deviation: np.ndarray


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

    def predict(self) -> "PredictedScores":
        """The predictive distribution of a new score in the scores' units."""
        mean = self.intercept + np.outer(self.ability, self.loading)
        variance = self.specific + np.outer(self.ability_variance, self.loading**2)
        return PredictedScores(self.center + self.scale * mean, self.scale * np.sqrt(variance))

    def variance_after(self) -> np.ndarray:
        """(n, k) posterior variance of each model's ability if it were scored on one more benchmark."""
        result: np.ndarray = 1 / (1 / self.ability_variance[:, None] + self.loading**2 / self.specific)
        return result


def fit_one_factor(scores: np.ndarray) -> OneFactorModel:
    """Fit by expectation-maximisation over the known cells of `scores` (models, benchmarks), NaN where missing.

    Missing cells are ignored, not filled (Rubin & Thayer 1982 with missing data; they are assumed to be
    missing for reasons unrelated to their value). More is better; the factor points the way that most
    benchmarks do.
    """
    return fit_one_factors(scores[None])[0]


def fit_one_factors(tables: np.ndarray) -> list[OneFactorModel]:
    """`fit_one_factor` of each of `tables` (tables, models, benchmarks), all at once: each ends as it would alone."""
    center = finite_mean(tables, axis=1)
    scale = np.sqrt(finite_mean((tables - center[:, None]) ** 2, axis=1))
    scale = np.where(scale > 0, scale, np.nan)
    is_known = np.isfinite(tables) & np.isfinite(scale)[:, None]
    z = np.where(is_known, (tables - center[:, None]) / scale[:, None], 0.0)
    everything = _Cells.of(z, is_known.astype(float))
    intercept, loading, specific = (np.full(center.shape, start) for start in (0.0, 0.8, 0.36))
    rows, cells = np.arange(len(tables)), everything  # of the tables whose loadings still change
    for _ in range(ITERATIONS):
        previous = loading[rows]
        parameters = _maximised(cells, _posterior(cells, intercept[rows], previous, specific[rows]))
        intercept[rows], loading[rows], specific[rows] = parameters
        changes = np.abs(parameters.loading - previous).max(axis=1) >= TOLERANCE
        if not changes.any():
            break
        if not changes.all():
            rows, cells = rows[changes], _Cells(*(part[changes] for part in cells))
    loading *= np.where(np.sum(loading * everything.sum_weight, axis=1, keepdims=True) >= 0, 1.0, -1.0)
    ability = _posterior(everything, intercept, loading, specific)
    parts = (np.where(np.isfinite(scale), part, np.nan) for part in (intercept, loading, specific))
    return [OneFactorModel(*of_table) for of_table in zip(center, scale, *parts, *ability, strict=True)]


class _Cells(NamedTuple):
    """Standardised scores (tables, models, benchmarks), 0 where `weight` is 0 and not 1, and their sums over models."""

    z: np.ndarray
    weight: np.ndarray
    sum_z: np.ndarray
    sum_weight: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray, weight: np.ndarray) -> "_Cells":
        return cls(z, weight, z.sum(axis=1), weight.sum(axis=1))


class _Ability(NamedTuple):
    """Posterior mean and variance (tables, models) of the abilities."""

    mean: np.ndarray
    variance: np.ndarray


def _posterior(cells: _Cells, intercept: np.ndarray, loading: np.ndarray, specific: np.ndarray) -> _Ability:
    slope = (loading / specific)[:, :, None]
    variance = 1 / (1 + (cells.weight @ (loading[:, :, None] * slope))[:, :, 0])
    return _Ability(variance * ((cells.z - cells.weight * intercept[:, None]) @ slope)[:, :, 0], variance)


class _Parameters(NamedTuple):
    """Of the benchmarks, (tables, benchmarks)."""

    intercept: np.ndarray
    loading: np.ndarray
    specific: np.ndarray


def _maximised(cells: _Cells, ability: _Ability) -> _Parameters:
    """The parameters given the abilities' posteriors."""
    z, weight, u = cells.z, cells.weight, ability.mean[:, None]
    variance = ability.variance[:, None]
    sum_u, sum_uu, sum_of_variance = (((part @ weight)[:, 0]) for part in (u, u**2 + variance, variance))
    count, sum_z, sum_zu = cells.sum_weight, cells.sum_z, (u @ z)[:, 0]
    loading = (count * sum_zu - sum_u * sum_z) / np.maximum(count * sum_uu - sum_u**2, 1e-12)
    intercept = (sum_z - loading * sum_u) / np.maximum(count, 1)
    residual = z - weight * (intercept[:, None] + ability.mean[:, :, None] * loading[:, None])
    squares = (residual**2).sum(axis=1) + loading**2 * sum_of_variance
    specific = (squares + PRIOR_WEIGHT * PRIOR_VARIANCE) / (count + PRIOR_WEIGHT)
    return _Parameters(intercept, loading, specific)


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
    level: float = LEVEL
    error_in_sd: float = float("nan")
    baseline_in_sd: float = float("nan")


def check_held_out(scores: np.ndarray, rng: np.random.Generator) -> HeldOutCheck:
    """Hide each known cell once, a tenth of the cells at a time, and predict it from the rest.

    The `coverage` is that of intervals as they are made for missing cells: mean ± c standard deviations, c
    the `multiplier` of the cells of the *other* groups (cross-conformal, Vovk 2015), so it is an honest
    check.
    """
    rows, columns = np.nonzero(np.isfinite(scores))
    group = rng.permutation(np.arange(len(rows)) % FOLDS)
    error, standardized, baseline, scale = (np.full(len(rows), np.nan) for _ in range(4))
    training = np.repeat(scores[None], min(FOLDS, len(rows)), axis=0)
    training[group, rows, columns] = np.nan
    for fold, model in enumerate(fit_one_factors(training)):
        in_fold = group == fold
        mean, deviation = (part[rows[in_fold], columns[in_fold]] for part in model.predict())
        truth = scores[rows[in_fold], columns[in_fold]]
        error[in_fold] = truth - mean
        standardized[in_fold] = np.abs(error[in_fold]) / deviation
        baseline[in_fold] = np.abs(truth - model.center[columns[in_fold]])
        scale[in_fold] = model.scale[columns[in_fold]]
    predicted = np.isfinite(standardized)
    if predicted.sum() < FOLDS:
        nothing = float("nan")
        return HeldOutCheck(nothing, nothing, nothing, float(stats.norm.ppf(0.5 + LEVEL / 2)), 0)
    inside = np.zeros(len(rows), dtype=bool)
    for fold in range(FOLDS):
        outside_fold = predicted & (group != fold)
        in_fold = predicted & (group == fold)
        inside[in_fold] = standardized[in_fold] <= np.quantile(standardized[outside_fold], LEVEL)
    return HeldOutCheck(
        mean_absolute_error=float(np.abs(error[predicted]).mean()),
        baseline_error=float(baseline[predicted].mean()),
        coverage=float(inside[predicted].mean()),
        multiplier=float(np.quantile(standardized[predicted], LEVEL)),
        cells=int(predicted.sum()),
        error_in_sd=float((np.abs(error) / scale)[predicted].mean()),
        baseline_in_sd=float((baseline / scale)[predicted].mean()),
    )


def second_factor(scores: np.ndarray, rng: np.random.Generator, draws: int = 100) -> float:
    """Probability, under one factor, of a common component of the residuals at least as large as that observed.

    Residuals of the known cells of `scores` (models, benchmarks) against those of tables drawn from the fitted model,
    each fitted anew: residuals of a fit depend on each other. The draws end once `ENOUGH` are as large: ENOUGH over
    their number is then the probability (Besag and Clifford 1991). NaN below FEWEST_TO_CONTRADICT benchmarks.
    """
    model, observed = fit_one_factor(scores), _residual_share(scores[None])
    loading, specific = (part[np.isfinite(model.scale)] for part in (model.loading, model.specific))
    present, as_large = np.isfinite(scores[:, np.isfinite(model.scale)]), np.empty(0, dtype=bool)
    if len(loading) < FEWEST_TO_CONTRADICT or not np.isfinite(observed[0]):
        return float("nan")
    while len(as_large) < draws and as_large.sum() < ENOUGH:
        size = (min(draws - len(as_large), 2 * ENOUGH, max(1, COMPONENTS_AT_ONCE // scores.size)), len(scores))
        drawn = rng.normal(size=(*size, 1)) * loading + rng.normal(size=(*size, len(loading))) * np.sqrt(specific)
        shares = _residual_share(np.where(present, drawn, np.nan))
        as_large = np.append(as_large, shares >= observed * (1 - SHARE_ROUNDING))
    if as_large.sum() >= ENOUGH:
        return float(ENOUGH / (1 + np.flatnonzero(as_large)[ENOUGH - 1]))
    return float((1 + as_large.sum()) / (1 + draws))


def _residual_share(tables: np.ndarray) -> np.ndarray:
    """Of (tables, models, benchmarks), the share of the first component of what one factor leaves of each."""
    return component_shares(tables - np.stack([model.predict().mean for model in fit_one_factors(tables)]))[:, 0]


def ability_ranks(
    model: OneFactorModel, rng: np.random.Generator, draws: int = 2000, widening: float = 1.0
) -> np.ndarray:
    """(draws, n) ranks (1 = best) of abilities drawn from their posteriors, given the fitted parameters.

    widening: factor of the posterior standard deviations; that of intervals that hold what they claim, where few cells
    are known (the parameters are then far from certain).
    """
    deviation = widening * np.sqrt(model.ability_variance)
    sample = model.ability + deviation * rng.standard_normal((draws, len(model.ability)))
    result: np.ndarray = (-sample).argsort(axis=1).argsort(axis=1) + 1
    return result
