"""A Gaussian process on the logits of train-before-test scores: what the measured cells say about the others."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import expit, logit

from lm_validity.studies.agreement.statistics.sparse.covariance import (
    PRIOR_SPREAD,
    Cells,
    Covariance,
    Kernels,
    make_kernels,
    standardized,
)

LEAST_CELLS, MOST_CELLS = 12, 4000  # known cells: fewer say too little, more take too long
MOST_MODELS = 500  # with more, the kernels take too much memory
FITTED_CELLS, ITERATIONS = 300, 25  # of the search for weights
ROBUST_STEPS, FREEDOM = 3, 5.0  # the noise is Student's t with so many degrees of freedom
SHRINKAGE, NOISE_SHRINKAGE = 2.0, 5.0  # cells that the common spread, and the common noise, are worth
CLIP = 0.004  # nearest that a fraction comes to 0 or 1
UNKNOWN_ERROR = 0.02  # standard error of a score where none is known
NORMAL_95 = 1.959964
JITTER = 1e-8


@dataclass(frozen=True)
class Link:
    """From scores to an unbounded scale, by benchmark: the logit of (x - low) / width, where scores lie between `low`
    and `low` + `width`; with a width of 0 they stay as they are."""

    low: np.ndarray
    width: np.ndarray

    @property
    def bounded(self) -> np.ndarray:
        """(benchmarks,) True where scores have a range."""
        return self.width > 0

    def to(self, scores: np.ndarray) -> np.ndarray:
        """(..., benchmarks) scores on the unbounded scale."""
        return np.where(self.bounded, logit(self._inside(scores)), scores)

    def back(self, values: np.ndarray) -> np.ndarray:
        """(..., benchmarks) the scores of values on the unbounded scale."""
        return np.where(self.bounded, self.low + self.width * expit(values), values)

    def slope(self, scores: np.ndarray) -> np.ndarray:
        """(..., benchmarks) derivative of the unbounded scale with respect to the score."""
        inside = self._inside(scores)
        return np.where(self.bounded, 1 / (inside * (1 - inside) * np.where(self.bounded, self.width, 1.0)), 1.0)

    def _inside(self, scores: np.ndarray) -> np.ndarray:
        """Places in the range, in (0, 1)."""
        return np.clip((scores - self.low) / np.where(self.bounded, self.width, 1.0), CLIP, 1 - CLIP)


class Losses(NamedTuple):
    """(benchmarks,) masks: `lower` is better; of these, `errors` are known to be shares of wrong answers."""

    lower: np.ndarray
    errors: np.ndarray


def link_for(*tables: np.ndarray, losses: Losses | None = None) -> Link:
    """By the range of each benchmark's scores in all `tables` (models, benchmarks), NaN where unknown; more is better.

    Fractions lie between 0 and 1, correlations between -1 and 1, and error rates (negative here, since more is better)
    between -1 and 0. What exceeds these has no range, nor has any other loss: it may well exceed 1.
    """
    values = np.concatenate(tables)
    least, most = (edge(np.where(np.isfinite(values), values, 0.0), axis=0) for edge in (np.min, np.max))
    lower, errors = losses or np.zeros((2, len(least)), dtype=bool)
    fraction, error = ~lower & (least >= 0) & (most <= 1), errors & (least >= -1) & (most <= 0)
    signed = ~lower & (least >= -1) & (most <= 1)
    return Link(low=np.where(fraction, 0.0, -1.0), width=np.select([fraction | error, signed], [1.0, 2.0], 0.0))


@dataclass(frozen=True)
class CellProcess:
    """The posterior over all cells, (models, benchmarks) throughout, on the scale of `link` in standard deviations.

    `mean`, `variance`: of the latent value; `noise`: variance of a new score around it. `without`, `without_variance`:
    of a measured cell's score, predicted by the others; of others, mean and variance + noise. `measured`: their scores.
    """

    scores: np.ndarray
    link: Link
    center: np.ndarray
    scale: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    noise: np.ndarray
    without: np.ndarray
    without_variance: np.ndarray
    _solver: "_Solver"

    @property
    def measured(self) -> np.ndarray:
        """(models, benchmarks) True where there is a score."""
        return np.isfinite(self.scores)

    def predict(self, widening: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(score, low, high): a new score of each cell and its 95% interval, in the scores' own units."""
        reach = NORMAL_95 * widening * np.sqrt(self.variance + self.noise)
        places = (self.mean, self.mean - reach, self.mean + reach)
        score, low, high = (self.link.back(self.center + self.scale * place) for place in places)
        return score, low, high

    def residuals(self) -> np.ndarray:
        """(models, benchmarks) each measured score against its prediction from the others, in predicted standard
        deviations; NaN where there is no score."""
        standard = (self.link.to(self.scores) - self.center) / self.scale
        return (standard - self.without) / np.sqrt(self.without_variance)

    def draws(self, number: int, rng: np.random.Generator, widening: float = 1.0) -> np.ndarray:
        """(number, models, benchmarks) tables: measured scores as they are, the others drawn together.

        A draw of the process and of the data it would have given is moved by what was measured instead (Matheron's
        rule; Wilson et al. 2020).
        """
        solver, shape = self._solver, self.scores.shape
        prior = solver.covariance.sample(solver.cells, shape[1], number, rng)
        seen = prior[solver.known] + np.sqrt(solver.observed)[:, None] * rng.standard_normal(
            (len(solver.known), number)
        )
        latent = prior + solver.spread_out(solver.values[:, None] - seen)
        heavy = rng.standard_t(FREEDOM, latent.shape) * np.sqrt((FREEDOM - 2) / FREEDOM)
        drawn = latent + np.sqrt(self.noise.ravel())[:, None] * heavy
        drawn = self.mean.ravel()[:, None] + widening * (drawn - self.mean.ravel()[:, None])
        tables = self.link.back(self.center + self.scale * drawn.T.reshape(number, *shape))
        return np.where(self.measured, self.scores, tables)


@dataclass(frozen=True)
class _Solver:
    """What posterior and draws need: all cells, which are known, their standardised values and noise, the covariance,
    and the inverse of a Cholesky factor of the known cells'."""

    cells: Cells
    known: np.ndarray
    values: np.ndarray
    observed: np.ndarray
    covariance: Covariance
    inverse_root: np.ndarray

    def spread_out(self, values: np.ndarray) -> np.ndarray:
        """(cells, ...) posterior mean of all cells for `values` (known, ...) of the known ones."""
        weights = self.inverse_root.T @ (self.inverse_root @ values)
        return np.concatenate(
            [self.covariance.between(part, self.cells[self.known]) @ weights for part in self.blocks()]
        )

    def variance(self) -> np.ndarray:
        """(cells,) posterior variance."""
        explained = [
            ((self.covariance.between(part, self.cells[self.known]) @ self.inverse_root.T) ** 2).sum(axis=1)
            for part in self.blocks()
        ]
        return np.maximum(self.covariance.variance(self.cells) - np.concatenate(explained), 1e-9)

    def blocks(self) -> list[Cells]:
        """All cells, in parts small enough for a matrix with the known ones."""
        return [self.cells[start : start + 2000] for start in range(0, len(self.cells), 2000)]


def fit_process(
    scores: np.ndarray,
    stderr: np.ndarray,
    direct: np.ndarray,
    size: np.ndarray,
    families: np.ndarray,
    seed: int = 0,
    losses: Losses | None = None,
) -> CellProcess | None:
    """The process given the known `scores` (models, benchmarks), NaN where not measured; more is better.

    `stderr`: of the same shape, NaN where unknown; `direct`: direct scores of the same cells, NaN where
    unknown; `size`: (models, columns) logarithms; `families`: (models,); `losses`: None where higher is better on all
    benchmarks. The weights of the kernels are the most likely ones under log-normal priors, on at most 300 cells; the
    noise is Student's t, estimated by benchmark. None for fewer than 12 known cells, more than 4,000, or more than 500
    models.
    """
    known = np.flatnonzero(np.isfinite(scores))
    if not LEAST_CELLS <= len(known) <= MOST_CELLS or len(scores) > MOST_MODELS:
        return None
    link = link_for(scores, direct, losses=losses)
    values = np.where(np.isfinite(scores), link.to(scores), np.nan)
    center, scale = _moments(values, link.bounded)
    before = standardized(np.where(np.isfinite(direct), link.to(direct), np.nan))[0]
    model, benchmark = (place.ravel() for place in np.indices(scores.shape))
    cells = Cells(model, benchmark, before.ravel())
    kernels = make_kernels(before, size, families)
    standard = ((values - center) / scale).ravel()
    items = _item_noise(scores, stderr, link, scale)
    chosen = known
    if len(known) > FITTED_CELLS:
        chosen = np.random.default_rng(seed).choice(known, FITTED_CELLS, replace=False)
    weights = np.exp(_most_likely(kernels, cells[chosen], standard[chosen], items.ravel()[chosen]))
    solver, own_noise = _robust(
        kernels.weighted(weights[:-1]), cells, known, standard[known], items.ravel(), weights[-1]
    )
    return _posterior(scores, link, center, scale, solver, items + own_noise * FREEDOM / (FREEDOM - 2))


def _posterior(
    scores: np.ndarray, link: Link, center: np.ndarray, scale: np.ndarray, solver: _Solver, noise: np.ndarray
) -> CellProcess:
    shape, known = scores.shape, solver.known
    mean, variance = solver.spread_out(solver.values), solver.variance()
    inverse_diagonal = (solver.inverse_root**2).sum(axis=0)
    weights = solver.inverse_root.T @ (solver.inverse_root @ solver.values)
    without, without_variance = mean.copy(), variance + noise.ravel()
    without[known] = solver.values - weights / inverse_diagonal
    # the noise of a robust fit is the cell's own; of a new score it is the benchmark's
    latent = np.maximum(1 / inverse_diagonal - solver.observed, 1e-9)
    without_variance[known] = latent + noise.ravel()[known]
    return CellProcess(
        scores,
        link,
        center,
        scale,
        mean.reshape(shape),
        variance.reshape(shape),
        noise.reshape(shape),
        without.reshape(shape),
        without_variance.reshape(shape),
        solver,
    )


def _moments(values: np.ndarray, linked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(benchmarks,) means and standard deviations of the known values, few of them drawn to those of all benchmarks in
    the mask `linked`; scores on other scales have nothing in common."""
    known = np.isfinite(values)
    number, total = known.sum(axis=0), np.where(known, values, 0.0).sum(axis=0)
    typical = total[linked].sum() / max(number[linked].sum(), 1)
    mean = np.where(number > 0, total / np.maximum(number, 1), typical)
    squares = (np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
    freedom = (number - 1).clip(0)
    common = squares[linked].sum() / max(freedom[linked].sum(), 1)
    worth = np.where(linked, SHRINKAGE, 0.0)
    spread = np.sqrt((squares + worth * common) / np.maximum(freedom + worth, 1))
    return mean, np.where(spread > 1e-9, spread, 1.0)


def _item_noise(scores: np.ndarray, stderr: np.ndarray, link: Link, scale: np.ndarray) -> np.ndarray:
    """(models, benchmarks) variance of a standardised score by its items alone; its benchmark's mean elsewhere."""
    known = np.isfinite(scores)
    error = np.where(np.isfinite(stderr), stderr, UNKNOWN_ERROR)
    noise = (error * link.slope(np.where(known, scores, 0.5)) / scale) ** 2
    number = known.sum(axis=0)
    mean = np.divide(
        np.where(known, noise, 0.0).sum(axis=0), number, out=np.full(len(number), np.nan), where=number > 0
    )
    mean = np.where(np.isfinite(mean), mean, np.nanmean(mean))
    return np.where(known, noise, mean)


def _most_likely(kernels: Kernels, cells: Cells, values: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Log weights of greatest posterior density, by gradient."""
    parts, prior, eye = kernels.parts(cells), kernels.prior, np.eye(len(values))

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        weights = np.exp(theta)
        covariance = np.tensordot(weights[:-1], parts, 1) + np.diag(items + weights[-1] + JITTER)
        try:
            root = cholesky(covariance, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        inverse_root = solve_triangular(root, eye, lower=True, check_finite=False)
        inverse = inverse_root.T @ inverse_root
        solved = inverse @ values
        slope = np.outer(solved, solved) - inverse
        gradient = -0.5 * weights * np.append(np.tensordot(parts, slope, 2), np.trace(slope))
        away = theta - prior
        fit = 0.5 * values @ solved + np.log(np.diag(root)).sum()
        return fit + away @ away / 2 / PRIOR_SPREAD**2, gradient + away / PRIOR_SPREAD**2

    found = minimize(loss, prior, jac=True, method="L-BFGS-B", bounds=[(-9, 3)] * len(prior),
                     options={"maxiter": ITERATIONS})  # fmt: skip
    return found.x


def _robust(
    covariance: Covariance, cells: Cells, known: np.ndarray, values: np.ndarray, items: np.ndarray, common: float
) -> tuple[_Solver, np.ndarray]:
    """The solver with each known cell's noise, and the (benchmarks,) noise beside the items', both reweighted.

    A cell far from what the others say gets more noise (Student's t as a mixture of normals); a benchmark's noise is
    what is left beside its items', shrunk to the common one.
    """
    column = cells.benchmark[known]
    benchmarks = int(cells.benchmark.max()) + 1
    own, outlying = np.full(benchmarks, common), np.ones(len(known))
    prior = covariance.between(cells[known], cells[known])
    for step in range(ROBUST_STEPS + 1):
        observed = items[known] + own[column] * outlying
        root = cholesky(prior + np.diag(observed + JITTER), lower=True, check_finite=False)
        inverse_root = solve_triangular(root, np.eye(len(known)), lower=True, check_finite=False)
        if step == ROBUST_STEPS:
            break
        solved, diagonal = inverse_root.T @ (inverse_root @ values), (inverse_root**2).sum(axis=0)
        # mean and variance of the latent value of each known cell, given all of them
        squares = (observed * solved) ** 2 + np.maximum(observed - observed**2 * diagonal, 0.0)
        outlying = (FREEDOM + squares / np.maximum(items[known] + own[column], 1e-4)) / (FREEDOM + 1)
        left = np.maximum(squares / outlying - items[known], 0.02 * common)
        number, total = np.bincount(column, minlength=benchmarks), np.bincount(column, left, benchmarks)
        own = (total + NOISE_SHRINKAGE * total.sum() / number.sum()) / (number + NOISE_SHRINKAGE)
    return _Solver(cells, known, values, observed, covariance, inverse_root), own


def widening_of(residuals: np.ndarray, level: float = 0.95) -> float:
    """By how much intervals must be wider so that the share `level` of these standardised residuals lies inside.

    At least 1. The conformal quantile of the largest of n + 1 (Vovk 2015). NaN for fewer residuals than that takes.
    """
    found = np.sort(np.abs(residuals[np.isfinite(residuals)]))
    place = int(np.ceil(level * (len(found) + 1)))
    return max(1.0, float(found[place - 1] / NORMAL_95)) if 0 < place <= len(found) else float("nan")
