"""Tables with planned gaps: a Gaussian process over models, pooled agreement, and which cells to add."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import expit, logit, ndtr, ndtri

from lm_validity.statistics import NORMAL_95, Estimate, Interval
from lm_validity.studies.agreement.statistics.noise import NONE
from lm_validity.studies.agreement.statistics.ranking import PairSigns, average_ranks, finite_mean, ratio, standardize

# ----------------------------------------------------------------------------------------------------------------------
# What two cells of a score table are expected to have in common: the kernels of the Gaussian process.

LENGTH = 1.5  # of the radial kernel, in standard deviations of its inputs
COMPONENTS = 3  # principal components of the direct scores
WEIGHT, BASE_WEIGHT, NOISE = 0.05, 0.3, 0.1  # medians of the priors; what all tables have gets more
PRIOR_SPREAD = 2.0  # standard deviation of the logarithm of a weight


@dataclass(frozen=True)
class Cells:
    """Cells of the table: `model` and `benchmark` numbers, and their standardised direct score (0 where unknown)."""

    model: np.ndarray
    benchmark: np.ndarray
    direct: np.ndarray

    def __getitem__(self, chosen: np.ndarray | slice) -> "Cells":
        return Cells(self.model[chosen], self.benchmark[chosen], self.direct[chosen])

    def __len__(self) -> int:
        return len(self.model)


@dataclass(frozen=True)
class Kernels:
    """Kernels over models: `shared` by all benchmarks, and `specific` to one benchmark; (parts, models, models) both.

    The first of each is a model's level and a benchmark's level. The last two weights are of the cell's direct score.
    """

    shared: np.ndarray
    specific: np.ndarray

    @property
    def prior(self) -> np.ndarray:
        """Medians of the log weights: of `shared`, of `specific`, of the direct score (as both), of the noise."""
        median = [np.full(len(kernels), WEIGHT) for kernels in (self.shared, self.specific)]
        for weights in median:
            weights[0] = BASE_WEIGHT
        return np.asarray(np.log(np.concatenate([*median, [WEIGHT, WEIGHT, NOISE]])))

    def parts(self, cells: Cells) -> np.ndarray:
        """(weights, cells, cells) covariance of the cells by weight, the noise left out."""
        pairs_of_cells = np.ix_(cells.model, cells.model)
        same_benchmark = cells.benchmark[:, None] == cells.benchmark
        product = np.outer(cells.direct, cells.direct)
        specific_kernels = [kernel[pairs_of_cells] * same_benchmark for kernel in self.specific]
        return np.array(
            [*(kernel[pairs_of_cells] for kernel in self.shared), *specific_kernels, product, product * same_benchmark]
        )

    def weighted(self, weights: np.ndarray) -> "Covariance":
        """The covariance under some weights (without the noise's)."""
        shared, specific_weights = weights[: len(self.shared)], weights[len(self.shared) : -2]
        return Covariance(
            np.tensordot(shared, self.shared, 1), np.tensordot(specific_weights, self.specific, 1), *weights[-2:]
        )


@dataclass(frozen=True)
class Covariance:
    """c = S[i, i'] + x x' s + [same benchmark] (O[i, i'] + x x' o), of cells with direct scores x and x'."""

    shared: np.ndarray
    specific: np.ndarray
    direct_shared: float
    direct_specific: float

    def between(self, first: Cells, second: Cells) -> np.ndarray:
        """(first, second) covariance of two sets of cells."""
        pairs_of_cells = np.ix_(first.model, second.model)
        same_benchmark = first.benchmark[:, None] == second.benchmark
        product = np.outer(first.direct, second.direct)
        return np.asarray(
            self.shared[pairs_of_cells]
            + self.direct_shared * product
            + same_benchmark * (self.specific[pairs_of_cells] + self.direct_specific * product)
        )

    def variance(self, cells: Cells) -> np.ndarray:
        """(cells,) prior variance of the process at each cell."""
        without_direct = np.diag(self.shared)[cells.model] + np.diag(self.specific)[cells.model]
        return np.asarray(without_direct + (self.direct_shared + self.direct_specific) * cells.direct**2)

    def sample(self, cells: Cells, benchmarks: int, draws: int, rng: np.random.Generator) -> np.ndarray:
        """(cells, draws) of the process at the cells, from factors of matrices that are only as large as the models."""
        models = len(self.shared)
        shared = _root(self.shared) @ rng.standard_normal((models, draws))
        specific_part = np.einsum("ij,jbr->ibr", _root(self.specific), rng.standard_normal((models, benchmarks, draws)))
        slope = np.sqrt(self.direct_shared) * rng.standard_normal(draws)
        slopes = np.sqrt(self.direct_specific) * rng.standard_normal((benchmarks, draws))
        process = shared[cells.model] + specific_part[cells.model, cells.benchmark]
        return np.asarray(process + cells.direct[:, None] * (slope + slopes[cells.benchmark]))


def _root(matrix: np.ndarray) -> np.ndarray:
    """A factor R with R R' = `matrix`, which may be singular."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def make_kernels(direct: np.ndarray, size: np.ndarray, families: np.ndarray) -> Kernels:
    """Levels, and lines in size and in direct scores, a smooth function of both, and family.

    `direct`: (models, benchmarks) standardised, 0 where unknown; `size`: (models, columns) such as logarithms of
    parameters and tokens, NaN where unknown; `families`: (models,) names, None where unknown. What the table does not
    tell apart is left out.
    """
    models = len(direct)
    size = standardized(size)
    left_vectors, values, _ = np.linalg.svd(direct, full_matrices=False)
    components = left_vectors[:, : min(COMPONENTS, int((values > 1e-9).sum()))] * np.sqrt(models)
    inputs = [columns for columns in (size, components) if columns.any()]
    kernels = [columns @ columns.T / columns.shape[1] for columns in inputs]
    if inputs:
        coordinates = np.column_stack([size, components[:, :2]])
        distance = ((coordinates[:, None] - coordinates) ** 2).sum(axis=-1)
        kernels.append(np.exp(-distance / 2 / LENGTH**2))
    named = np.array([name if isinstance(name, str) else f"\0{row}" for row, name in enumerate(families)])
    if 1 < len(set(named)) < models:
        kernels.append(np.equal.outer(named, named).astype(float))
    return Kernels(np.array([np.eye(models), *kernels]), np.array([np.ones((models, models)), *kernels]))


def standardized(values: np.ndarray) -> np.ndarray:
    """Values in standard deviations of their column, 0 where unknown and where all are equal."""
    return np.asarray(np.nan_to_num(standardize(values)))


# ----------------------------------------------------------------------------------------------------------------------
# A Gaussian process on the logits of train-before-test scores: what the measured cells say about the others.

SEED = 5  # of the cells that weights are fitted on
LEAST_CELLS, MOST_CELLS = 12, 4000  # known cells: fewer say too little, more take too long
MOST_MODELS = 500  # with more, the kernels take too much memory
FITTED_CELLS, ITERATIONS = 300, 25  # of the search for weights
ROBUST_STEPS, FREEDOM = 3, 5.0  # the noise is Student's t with so many degrees of freedom
SHRINKAGE, NOISE_SHRINKAGE = 2.0, 5.0  # cells that the common spread, and the common noise, are worth
CLIP = 0.004  # nearest that a fraction comes to 0 or 1
UNKNOWN_ERROR = 0.02  # standard error of a score where none is known
JITTER = 1e-8


@dataclass(frozen=True)
class ScoreLink:
    """From scores to an unbounded scale, by benchmark: the logit of (x - low) / width, where scores lie between `low`
    and `low` + `width`; with a width of 0 they stay as they are."""

    low: np.ndarray
    width: np.ndarray

    @property
    def bounded(self) -> np.ndarray:
        """(benchmarks,) True where scores have a range."""
        return self.width > 0

    def to(self, scores: np.ndarray) -> np.ndarray:
        """Scores (..., benchmarks) on the unbounded scale: logits of their place in the range, or unchanged without a
        range."""
        return np.where(self.bounded, logit(self._inside(scores)), scores)

    def back(self, values: np.ndarray) -> np.ndarray:
        """The scores (..., benchmarks) that belong to values on the unbounded scale: the inverse of `to`."""
        return np.where(self.bounded, self.low + self.width * expit(values), values)

    def slope(self, scores: np.ndarray) -> np.ndarray:
        """(..., benchmarks) derivative of the unbounded scale with respect to the score."""
        inside = self._inside(scores)
        return np.where(self.bounded, 1 / (inside * (1 - inside) * np.where(self.bounded, self.width, 1.0)), 1.0)

    def _inside(self, scores: np.ndarray) -> np.ndarray:
        """Places in the range, in (0, 1)."""
        return np.asarray(np.clip((scores - self.low) / np.where(self.bounded, self.width, 1.0), CLIP, 1 - CLIP))


def link_for(*tables: np.ndarray, losses: np.ndarray) -> ScoreLink:
    """The scale on which scores have no bounds, from the range of each benchmark's scores in all `tables`.

    `tables`: (models, benchmarks) each, NaN where unknown; more is better. `losses`: (2, benchmarks) True where lower
    is better, and for those of them that are known to be shares of wrong answers. Fractions lie between 0 and 1,
    correlations between -1 and 1, and error rates (negative here, since more is better) between -1 and 0. What exceeds
    these has no range, nor has any other loss: it may well exceed 1.
    """
    values = np.concatenate(tables)
    least, highest = (edge(np.where(np.isfinite(values), values, 0.0), axis=0) for edge in (np.min, np.max))
    lower, errors = losses
    fraction, error = ~lower & (least >= 0) & (highest <= 1), errors & (least >= -1) & (highest <= 0)
    signed = ~lower & (least >= -1) & (highest <= 1)
    return ScoreLink(low=np.where(fraction, 0.0, -1.0), width=np.select([fraction | error, signed], [1.0, 2.0], 0.0))


@dataclass(frozen=True)
class CellProcess:
    """The posterior over all cells, (models, benchmarks) throughout, on the scale of `link` in standard deviations.

    `mean`, `variance`: of the latent value; `noise`: variance of a new score around it. `without`, `without_variance`:
    of a measured cell's score, predicted by the others; of others, mean and variance + noise. `measured`: their scores.
    """

    scores: np.ndarray
    link: ScoreLink
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
        return np.asarray(np.isfinite(self.scores))

    def predict(self, widening: float = 1.0) -> np.ndarray:
        """(3, models, benchmarks) a new score of each cell and the ends of its 95% interval, in the scores' units."""
        reach = NORMAL_95 * widening * np.sqrt(self.variance + self.noise)
        places = (self.mean, self.mean - reach, self.mean + reach)
        return np.array([self.link.back(self.center + self.scale * standing) for standing in places])

    def residuals(self) -> np.ndarray:
        """(models, benchmarks) each measured score against its prediction from the others, in predicted standard
        deviations; NaN where there is no score."""
        standard = (self.link.to(self.scores) - self.center) / self.scale
        return np.asarray((standard - self.without) / np.sqrt(self.without_variance))

    def draws(self, number: int, rng: np.random.Generator, widening: float = 1.0) -> np.ndarray:
        """(number, models, benchmarks) tables: measured scores as they are, the others drawn together.

        A draw of the process and of the data it would have given is moved by what was measured instead (Matheron's
        rule; Wilson et al. 2020).
        """
        solver, shape = self._solver, self.scores.shape
        prior = solver.covariance.sample(solver.cells, shape[1], number, rng)
        seen = prior[solver.known_cells] + np.sqrt(solver.observed)[:, None] * rng.standard_normal(
            (len(solver.known_cells), number)
        )
        latent = prior + solver.spread_out(solver.values[:, None] - seen)
        heavy = rng.standard_t(FREEDOM, latent.shape) * np.sqrt((FREEDOM - 2) / FREEDOM)
        drawn = latent + np.sqrt(self.noise.ravel())[:, None] * heavy
        drawn = self.mean.ravel()[:, None] + widening * (drawn - self.mean.ravel()[:, None])
        tables = self.link.back(self.center + self.scale * drawn.T.reshape(number, *shape))
        return np.where(self.measured, self.scores, tables)


@dataclass(frozen=True)
class _Solver:
    """What posterior and draws need: all cells, the indices of the known ones, the standardised values and the noise of
    these, the covariance, and the inverse of a Cholesky factor of the known cells' covariance."""

    cells: Cells
    known_cells: np.ndarray
    values: np.ndarray
    observed: np.ndarray
    covariance: Covariance
    inverse_root: np.ndarray

    def spread_out(self, values: np.ndarray) -> np.ndarray:
        """(cells, ...) posterior mean of all cells for `values` (known, ...) of the known ones."""
        weights = self.inverse_root.T @ (self.inverse_root @ values)
        return np.concatenate([block @ weights for block in self.blocks()])

    def variance(self) -> np.ndarray:
        """(cells,) variance of the process at each cell, given the known scores."""
        explained = [((block @ self.inverse_root.T) ** 2).sum(axis=1) for block in self.blocks()]
        return np.asarray(np.maximum(self.covariance.variance(self.cells) - np.concatenate(explained), 1e-9))

    def blocks(self) -> Iterator[np.ndarray]:
        """(part, known) covariances of all cells with the known ones, part by part: together they take much memory."""
        for start in range(0, len(self.cells), 2000):
            yield self.covariance.between(self.cells[start : start + 2000], self.cells[self.known_cells])


def fit_process(
    scores: np.ndarray, stderr: np.ndarray, direct: np.ndarray, size: np.ndarray, family: np.ndarray, losses: np.ndarray
) -> CellProcess | None:
    """The process given the known `scores` (models, benchmarks), NaN where not measured; more is better.

    `stderr`: of the same shape, NaN where unknown; `direct`: direct scores of the same cells, NaN where unknown;
    `size`: (models, columns) logarithms; `family`: (models,); `losses`: as in `link_for`. The weights of the kernels
    are the most likely ones under log-normal priors, on at most 300 cells; the noise is Student's t, estimated by
    benchmark. None for fewer than 12 known cells, more than 4,000, or more than 500 models.
    """
    known_cells = np.flatnonzero(np.isfinite(scores))
    if not LEAST_CELLS <= len(known_cells) <= MOST_CELLS or len(scores) > MOST_MODELS:
        return None
    link = link_for(scores, direct, losses=losses)
    values = np.where(np.isfinite(scores), link.to(scores), np.nan)
    center, scale = _moments(values, link.bounded)
    direct_standardized = standardized(np.where(np.isfinite(direct), link.to(direct), np.nan))
    model, benchmark = (indices.ravel() for indices in np.indices(scores.shape))
    cells = Cells(model, benchmark, direct_standardized.ravel())
    kernels = make_kernels(direct_standardized, size, family)
    standard = ((values - center) / scale).ravel()
    items = _item_noise(scores, stderr, link, scale)
    chosen = known_cells
    if len(known_cells) > FITTED_CELLS:
        chosen = np.random.default_rng(SEED).choice(known_cells, FITTED_CELLS, replace=False)
    weights = np.exp(_most_likely(kernels, cells[chosen], standard[chosen], items.ravel()[chosen]))
    solver, own_noise = _robust(
        kernels.weighted(weights[:-1]), cells, known_cells, standard[known_cells], items.ravel(), weights[-1]
    )
    noise = items + own_noise * FREEDOM / (FREEDOM - 2)
    mean, variance = solver.spread_out(solver.values), solver.variance()
    inverse_diagonal = (solver.inverse_root**2).sum(axis=0)
    weights = solver.inverse_root.T @ (solver.inverse_root @ solver.values)
    without, without_variance = mean.copy(), variance + noise.ravel()
    without[known_cells] = solver.values - weights / inverse_diagonal
    # the noise of a robust fit is the cell's own; of a new score it is the benchmark's
    latent = np.maximum(1 / inverse_diagonal - solver.observed, 1e-9)
    without_variance[known_cells] = latent + noise.ravel()[known_cells]
    parts = (part.reshape(scores.shape) for part in (mean, variance, noise, without, without_variance))
    mean, variance, noise, without, without_variance = parts
    return CellProcess(scores, link, center, scale, mean, variance, noise, without, without_variance, solver)


def _moments(values: np.ndarray, linked: np.ndarray) -> np.ndarray:
    """(2, benchmarks) means and standard deviations of the known values: of benchmarks with few `values`, drawn to
    those of all benchmarks in the mask `linked`; scores on other scales have nothing in common."""
    finite = np.isfinite(values)
    number, total = finite.sum(axis=0), np.where(finite, values, 0.0).sum(axis=0)
    typical = total[linked].sum() / max(number[linked].sum(), 1)
    mean = np.where(number > 0, total / np.maximum(number, 1), typical)
    squares = (np.where(finite, values - mean, 0.0) ** 2).sum(axis=0)
    freedom = (number - 1).clip(0)
    common = squares[linked].sum() / max(freedom[linked].sum(), 1)
    worth = np.where(linked, SHRINKAGE, 0.0)
    spread = np.sqrt((squares + worth * common) / np.maximum(freedom + worth, 1))
    return np.array([mean, np.where(spread > 1e-9, spread, 1.0)])


def _item_noise(scores: np.ndarray, stderr: np.ndarray, link: ScoreLink, scale: np.ndarray) -> np.ndarray:
    """(models, benchmarks) variance of a standardised score by its items alone; its benchmark's mean elsewhere."""
    finite = np.isfinite(scores)
    error = np.where(np.isfinite(stderr), stderr, UNKNOWN_ERROR)
    noise = (error * link.slope(np.where(finite, scores, 0.5)) / scale) ** 2
    mean = finite_mean(np.where(finite, noise, np.nan), axis=0)
    return np.where(finite, noise, np.where(np.isfinite(mean), mean, np.nanmean(mean)))


def _most_likely(kernels: Kernels, cells: Cells, values: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Log weights of greatest posterior density, by gradient."""
    parts, prior, eye = kernels.parts(cells), kernels.prior, np.eye(len(values))

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log density of the posterior, up to a constant, and its gradient (weights,)."""
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

    optimum = minimize(loss, prior, jac=True, method="L-BFGS-B", bounds=[(-9, 3)] * len(prior),
                       options={"maxiter": ITERATIONS})  # fmt: skip
    return optimum.x


def _robust(
    covariance: Covariance, cells: Cells, known_cells: np.ndarray, values: np.ndarray, items: np.ndarray, common: float
) -> tuple[_Solver, np.ndarray]:
    """The solver with each known cell's noise, and the (benchmarks,) noise beside the items', both reweighted.

    A cell far from what the others say gets more noise (Student's t as a mixture of normals); a benchmark's noise is
    what is left beside its items', shrunk to the common one.
    """
    column = cells.benchmark[known_cells]
    benchmarks = int(cells.benchmark.max()) + 1
    variances, outlying = np.full(benchmarks, common), np.ones(len(known_cells))
    prior = covariance.between(cells[known_cells], cells[known_cells])
    for step in range(ROBUST_STEPS + 1):
        observed = items[known_cells] + variances[column] * outlying
        root = cholesky(prior + np.diag(observed + JITTER), lower=True, check_finite=False)
        inverse_root = solve_triangular(root, np.eye(len(known_cells)), lower=True, check_finite=False)
        if step == ROBUST_STEPS:
            break
        solved, diagonal = inverse_root.T @ (inverse_root @ values), (inverse_root**2).sum(axis=0)
        # mean and variance of the latent value of each known cell, given all of them
        squares = (observed * solved) ** 2 + np.maximum(observed - observed**2 * diagonal, 0.0)
        outlying = (FREEDOM + squares / np.maximum(items[known_cells] + variances[column], 1e-4)) / (FREEDOM + 1)
        remainder = np.maximum(squares / outlying - items[known_cells], 0.02 * common)
        number, total = np.bincount(column, minlength=benchmarks), np.bincount(column, remainder, benchmarks)
        variances = (total + NOISE_SHRINKAGE * total.sum() / number.sum()) / (number + NOISE_SHRINKAGE)
    return _Solver(cells, known_cells, values, observed, covariance, inverse_root), variances


def widening_of(residuals: np.ndarray) -> float:
    """By how much intervals must be wider so that 95% of these standardised residuals lie inside.

    At least 1. The conformal quantile of the largest of n + 1 (Vovk 2015). NaN for fewer residuals than that takes.
    """
    absolute = np.sort(np.abs(residuals[np.isfinite(residuals)]))
    rank = int(np.ceil(0.95 * (len(absolute) + 1)))
    return max(1.0, float(absolute[rank - 1] / NORMAL_95)) if 0 < rank <= len(absolute) else float("nan")


# ----------------------------------------------------------------------------------------------------------------------
# Are cells missing by chance?


def standing_of_missing(scores: np.ndarray, missing: np.ndarray) -> Estimate:
    """How high the scores that are missing would stand, in standard deviations, as the models' other scores tell.

    `scores`: (models, columns) of all that is known, also under the other protocol, more is better, NaN where missing;
    `missing`: mask of the cells in question. 0 for cells that are missing by chance; -.8 where half of the lower half
    of each benchmark is. A model's standing beside one of its cells, s, is the mean of its other scores as normal
    quantiles of their ranks. With b the slope of s on the score itself where that is known, and the rows of missing
    cells shuffled over the models,

        estimate = (mean s over the missing cells - its mean when shuffled) / b,   ± t · error when shuffled / b

    mean and error exactly (Hoeffding 1951, Annals of Mathematical Statistics 22:558), t with 2 degrees of freedom less
    than models. Models that lack many cells may be any models, without any trace in it. NaN without a missing cell or a
    model with other scores, for fewer than 4 models, and where b is not above 0. *It fails* to see cells that are
    missing since a model is worse there than on other benchmarks: only the missing scores could tell.
    """
    some = np.isfinite(scores).any(axis=1)
    scores, missing = scores[some], missing[some]
    ranks, is_known = average_ranks(-scores), np.isfinite(scores)
    values = np.nan_to_num(ndtri(ranks / (is_known.sum(axis=0) + 1)))
    others = ratio(
        values.sum(axis=1, keepdims=True) - values, np.maximum(is_known.sum(axis=1, keepdims=True) - is_known, 0)
    )
    counted = np.isfinite(others)
    others = np.where(counted, others - finite_mean(others, axis=0), 0.0)
    slope, models, number = ratio((values * others).sum(), (values**2).sum()), len(scores), (missing & counted).sum()
    if models < 4 or not number or not slope > 0:
        return Estimate(float("nan"), NONE)
    products = (missing & counted) @ others.T / (number * slope)
    value = float(np.trace(products) - products.sum() / models)
    spread = products - products.mean(axis=0) - products.mean(axis=1, keepdims=True) + products.mean()
    reach = float(stats.t.ppf(0.975, models - 2) * np.sqrt((spread**2).sum() / (models - 1)))
    return Estimate(value, Interval(value - reach, value + reach))


# ----------------------------------------------------------------------------------------------------------------------
# Agreement where many cells are missing: pooled over pairs of models, alone and assisted by a model's predictions.


class PooledTau(NamedTuple):
    """Agreement over all pairs of benchmarks together, in [-1, 1].

    `mean`: concordant less discordant comparisons over their number; `standard_error`: over models, by the jackknife;
    `comparisons`: (pair of models, pair of benchmarks) with all four cells known. NaN where there is no comparison.
    """

    mean: float
    standard_error: float
    comparisons: int


def pooled_tau(signs: PairSigns, expected: np.ndarray | float = 0.0) -> PooledTau:
    """sum s_pa s_pb / sum k_pa k_pb over pairs of models p and pairs of benchmarks a < b; s the signs, k known.

    Every comparison counts once, so a pair of benchmarks with few models in common weighs as little as it knows. With
    every cell known it is the mean of tau-a over pairs of benchmarks.

    `expected`: (pairs of models, benchmarks) in [-1, 1], P(first better) - P(second better) by a model that did not see
    the two cells themselves: assisted by it, the tau is that of `expected` over all cells, plus how much the measured
    comparisons differ from theirs. A wrong model costs precision only: what it gets wrong where cells are measured is
    put right (Angelopoulos et al. 2023, prediction-powered inference, pooled). That takes the measured cells to be like
    the others, which random cells are and cheap benchmarks may not be. With every cell known it changes nothing.
    """
    models = int(signs.second.max()) + 1 if len(signs.second) else 0
    taus, counts = pooled_left_out(signs, np.arange(models), expected), signs.known.sum(axis=1)
    error = float(np.sqrt((models - 1) * np.var(taus[1:]))) if models > 2 else float("nan")
    return PooledTau(float(taus[0]), error, round(((counts**2 - counts) / 2).sum()))


def pooled_left_out(signs: PairSigns, clusters: np.ndarray, expected: np.ndarray | float = 0.0) -> np.ndarray:
    """(1 + clusters,) pooled taus: over everything, then without each cluster of models; NaN without a comparison.

    `clusters`: (models,) whole numbers, such as families or, to leave out one model at a time, the models themselves.
    `expected`: as in `pooled_tau`.
    """
    expected = np.broadcast_to(expected, signs.sign.shape)
    first, second, number = clusters[signs.first], clusters[signs.second], int(clusters.max(initial=-1)) + 1

    def sums(values: np.ndarray) -> np.ndarray:
        """(1 + clusters,) sums over pairs of models of sum over a < b of v_a v_b, from the square of the sum."""
        part = (values.sum(axis=1) ** 2 - (values**2).sum(axis=1)) / 2
        twice = np.where(first == second, part, 0.0)
        gone = np.bincount(first, part, number) + np.bincount(second, part, number) - np.bincount(first, twice, number)
        return np.append(part.sum(), part.sum() - gone)

    left_out: np.ndarray = ratio(sums(expected), sums(np.ones_like(expected)))
    left_out += ratio(sums(signs.sign) - sums(expected * signs.known), sums(signs.known))
    return left_out


# ----------------------------------------------------------------------------------------------------------------------
# What a process of the cells says of orders: expected signs of differences, and ranks over all benchmarks.


def expected_signs(process: CellProcess) -> np.ndarray:
    """(pairs of models, benchmarks) P(first better) - P(second better), each cell predicted by the others alone.

    Pairs in the order of `pair_signs`. 2 Phi((m - m') / sqrt(v + v')) - 1 of normal predictions.
    """
    first, second = np.triu_indices(len(process.scores), 1)
    mean, variance = process.without, process.without_variance
    return np.asarray(2 * ndtr((mean[first] - mean[second]) / np.sqrt(variance[first] + variance[second])) - 1)


def mean_standing(tables: np.ndarray) -> np.ndarray:
    """(..., models) mean over benchmarks of `tables` (..., models, benchmarks), each in its standard deviations.

    No value may be missing; a benchmark on which all models are equal counts as 0.
    """
    centred = tables - tables.mean(axis=-2, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-2, keepdims=True))
    return np.asarray(np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12).mean(axis=-1))


def rank_draws(tables: np.ndarray) -> np.ndarray:
    """(draws, models) ranks by `mean_standing` of the tables (draws, models, benchmarks), 1 = best, ties averaged."""
    return average_ranks(mean_standing(tables).T).T
