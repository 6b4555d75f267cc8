"""The hierarchical model's posterior over standard deviations, and what it predicts."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import linalg, optimize, stats
from scipy.special import expit, gammaln, logsumexp, ndtr, ndtri

from lm_validity.statistics import Interval
from lm_validity.studies.bias.statistics.latent import Design, Modes, draw_predictors, find_modes

# ----------------------------------------------------------------------------------------------------------------------
# The hierarchical model's effect in accuracy for new tasks, splits and trainings like these.
#
# beta is a difference of log-odds. What it means in accuracy depends on where on the logistic curve a task lies.
# Averaged over tasks, splits and trainings drawn anew from the fitted population, with the language models weighing
# the same:
#
#     g(beta) = mean over models and z ~ N(0, 1) of  expit(level + s z + beta / 2) - expit(level + s z - beta / 2)
#
# s² is the sum of all variances of the model: tasks, pairs, and the noise of training. g grows with beta and g(0) = 0,
# so an interval of beta becomes one of g(beta), and excludes zero exactly where beta's does. The levels are held at
# their estimates; the standard deviations are averaged over their posterior. (Zeger, Liang & Albert 1988, Biometrics
# 44:1049-1060, call such effects population-averaged.) It speaks for tasks like these: it fails where the log-odds of
# the tasks are far from normal.

QUADRATURE_NODES = 32


def marginal_effect(levels: np.ndarray, spreads: np.ndarray, weights: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """g at each of `beta` (B,), in accuracy (-1 to 1).

    levels (L,): mean log-odds of each language model; spreads (M, L): s at M draws or nodes of the posterior, whose
    weights (M,) sum to 1. Nothing may be NaN. Gauss-Hermite quadrature over z.
    """
    points, mass = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    mass = mass / mass.sum()
    middle = levels[None, :, None] + spreads[:, :, None] * points  # (M, L, nodes)
    effects = [expit(middle + value / 2) - expit(middle - value / 2) for value in beta]
    return np.array([weights @ (effect @ mass).mean(axis=1) for effect in effects])


def model_levels(design: Design, fixed: np.ndarray) -> np.ndarray:
    """(L,) mean log-odds of the language models between the two arms, from `fixed` effects (mu, alphas; L,)."""
    models = len(fixed)
    result: np.ndarray = design.columns[: 2 * models : 2, :models] @ fixed
    return result


def model_spreads(design: Design, scales: np.ndarray) -> np.ndarray:
    """(M, L) root of the sum of all variances of a language model, at standard deviations (M, H)."""
    models = design.beta
    shared = (scales[:, : design.pair + 1] ** 2).sum(axis=1, keepdims=True)
    variances = scales[:, design.pair + 1 :] ** 2 if design.noise is not None else np.zeros((len(scales), models))
    result: np.ndarray = np.sqrt(shared + variances)
    return result


# ----------------------------------------------------------------------------------------------------------------------
# Posterior of beta and of the standard deviations: importance sampling around the mode of nested Laplace.
#
# The target is p(sd | counts) from `find_mode`, the proposal a Student t, adapted round by round to the
# weighted nodes of all rounds before (adaptive multiple importance sampling, Cornuet et al. 2012, Scand. J. Statist.
# 39:798-812) until enough nodes are effective. The posterior of beta is then a weighted mixture of Gaussians, one a
# node, so that the uncertainty of the standard deviations, large where there are few tasks, is part of every interval.

INTERVAL = 0.89  # the paper's credible intervals
NODES = 128  # a round
ROUNDS = 12
PROPOSAL_FREEDOM = 5.0  # Student t: heavier tails than the posterior of a standard deviation
GRADIENT_STEP = 1e-3  # of a logarithm
LOG_SCALE_RANGE = (np.log(1e-5), np.log(30.0))  # of a standard deviation on the logit scale
MINIMUM_EFFECTIVE_NODES = 40.0  # below it the report calls the fit unreliable


@dataclass(frozen=True)
class LaplacePosterior:
    """Posterior of one fit; H standard deviations (named in the design), M nodes.

    beta_mean, beta_sd: of beta, in log-odds
    scales (M, H) nodes, weights (M,) summing to 1, node_means and node_sds (M,) of beta at each node
    effective_nodes: 1 / sum(weights^2), the quality of the importance sampling
    log_evidence: log p(counts) up to a constant shared by all formulas for the same counts
    mode: the latent effects at the mode of the standard deviations (M = 1)
    """

    beta_mean: float
    beta_sd: float
    scales: np.ndarray
    weights: np.ndarray
    node_means: np.ndarray
    node_sds: np.ndarray
    effective_nodes: float
    log_evidence: float
    mode: Modes

    @property
    def reliable(self) -> bool:
        """Whether enough nodes of the importance sampling carry its weight: at least MINIMUM_EFFECTIVE_NODES."""
        return self.effective_nodes >= MINIMUM_EFFECTIVE_NODES

    @property
    def interval(self) -> Interval[float]:
        """The credible interval that holds the mean with probability `INTERVAL`."""
        return self.interval_at(INTERVAL)

    def interval_at(self, level: float) -> Interval[float]:
        """Equal-tailed interval of beta, a mixture of Gaussians, of probability `level`."""
        weights, means, sds = self.weights, self.node_means, self.node_sds
        low, high = np.min(means - 10 * sds), np.max(means + 10 * sds)

        def excess(x: float, probability: float) -> float:
            return float(weights @ ndtr((x - means) / sds)) - probability

        tail = (1 - level) / 2
        lower, upper = (float(optimize.brentq(excess, low, high, args=(share,))) for share in (tail, 1 - tail))

        return Interval(lower, upper)


class _Target:
    """The posterior density of the standard deviations; Newton's iterations start at the mode of the last centre."""

    def __init__(self, design: Design):
        self.design = design
        self.start: Modes | None = None

    def density(self, modes: Modes) -> np.ndarray:
        """(M,) log marginal likelihood and HalfNormal prior."""
        log_prior = np.log(2) + stats.norm.logpdf(modes.scales, scale=self.design.prior_scale)
        result: np.ndarray = modes.log_marginal + log_prior.sum(axis=1)
        return result

    def evaluate(self, scales: np.ndarray) -> np.ndarray:
        """(3, M) log density, and mean and sd of beta, at nodes (M, H)."""
        modes = find_modes(self.design, scales, self.start)
        return np.stack([self.density(modes), modes.u[:, self.design.beta], np.sqrt(modes.beta_variance)])

    def negative_log(self, log_scales: np.ndarray) -> np.ndarray:
        """Minus the log density (M,) of the logarithms (M, H; with their Jacobian, so that a mode away from zero
        exists). The first row is the new centre."""
        log_scales = np.clip(log_scales, *LOG_SCALE_RANGE)
        modes = find_modes(self.design, np.exp(log_scales), self.start)
        self.start = modes.one(0)
        result: np.ndarray = -self.density(modes) - log_scales.sum(axis=1)
        return result

    def with_gradient(self, log_scale: np.ndarray) -> tuple[float, np.ndarray]:
        """`negative_log` at (H,), and its gradient by differences."""
        step = np.where(log_scale + GRADIENT_STEP > LOG_SCALE_RANGE[1], -GRADIENT_STEP, GRADIENT_STEP)
        middle, *beside = self.negative_log(np.vstack([log_scale, log_scale + np.diag(step)]))
        return float(middle), (np.array(beside) - middle) / step


def fit_laplace(design: Design, nodes: int = NODES, seed: int = 0) -> LaplacePosterior:
    """Fit `design`, with rounds of `nodes` nodes until half as many are effective; `seed` scrambles the nodes."""
    target = _Target(design)
    optimum = optimize.minimize(
        target.with_gradient,
        np.log(0.2 * design.prior_scale),
        jac=True,
        method="L-BFGS-B",
        bounds=[LOG_SCALE_RANGE] * len(design.names),
        options={"ftol": 1e-9, "gtol": 0.02, "maxiter": 60},
    )
    covariance = _curvature(target, optimum.x)
    centre = np.exp(optimum.x)
    target.start = mode = find_modes(design, centre[None], target.start)
    proposals = [_Proposal(centre, centre[:, None] * covariance * centre)]
    scales, values = np.empty((0, len(centre))), np.empty((3, 0))
    for attempt in range(ROUNDS):
        drawn = proposals[-1].draw(nodes, seed + attempt)
        scales, values = np.vstack([scales, drawn]), np.hstack([values, target.evaluate(drawn)])
        # every node counts as a draw of the mixture of all rounds
        mixture = logsumexp([proposal.log_density(scales) for proposal in proposals], axis=0) - np.log(len(proposals))
        total = logsumexp(values[0] - mixture)
        weights = np.exp(values[0] - mixture - total)
        effective = float(1.0 / np.sum(weights**2))
        if effective >= nodes / 2:
            break
        proposals.append(_Proposal.adapted(scales, weights))
    _, means, sds = values
    beta_mean = float(weights @ means)
    return LaplacePosterior(
        beta_mean=beta_mean,
        beta_sd=float(np.sqrt(weights @ (sds**2 + (means - beta_mean) ** 2))),
        scales=scales,
        weights=weights,
        node_means=means,
        node_sds=sds,
        effective_nodes=effective,
        log_evidence=float(total - np.log(len(weights))),
        mode=mode,
    )


class _Proposal:
    """A Student t truncated to positive standard deviations: what falls outside is never evaluated."""

    def __init__(self, centre: np.ndarray, covariance: np.ndarray):
        self.centre = centre
        self.factor = np.linalg.cholesky(covariance)
        self.log_inside = 0.0

    @classmethod
    def adapted(cls, scales: np.ndarray, weights: np.ndarray) -> "_Proposal":
        """Centre and covariance of a weighted sample, a little wider along the axes."""
        centre = weights @ scales
        spread = scales - centre
        covariance = (spread.T * weights) @ spread
        covariance[np.diag_indices_from(covariance)] *= 1.1
        return cls(centre, covariance)

    def draw(self, nodes: int, seed: int) -> np.ndarray:
        """(nodes, H) points of a scrambled Sobol sequence (fewer if hardly any fall inside)."""
        scales: np.ndarray = self.centre + _standard_points(len(self.centre), nodes, seed) @ self.factor.T
        low, high = np.exp(LOG_SCALE_RANGE)
        inside = np.all((scales > low) & (scales < high), axis=1)
        self.log_inside = float(np.log(inside.mean()))
        return scales[inside][:nodes]

    def log_density(self, scales: np.ndarray) -> np.ndarray:
        """(M,) of the truncated t."""
        size, freedom = len(self.centre), PROPOSAL_FREEDOM
        standard = linalg.solve_triangular(self.factor, (scales - self.centre).T, lower=True)
        density = -0.5 * (freedom + size) * np.log1p(np.sum(standard**2, axis=0) / freedom)
        density += gammaln((freedom + size) / 2) - gammaln(freedom / 2) - 0.5 * size * np.log(freedom * np.pi)
        result: np.ndarray = density - np.sum(np.log(np.diag(self.factor))) - self.log_inside
        return result


@lru_cache(maxsize=32)
def _standard_points(size: int, nodes: int, seed: int) -> np.ndarray:
    """(32 nodes, size) points of the t distribution, from which those inside are taken; the same in many fits."""
    uniform = stats.qmc.Sobol(size + 1, rng=np.random.default_rng(seed)).random(32 * nodes)
    uniform = np.clip(uniform, 1e-9, 1 - 1e-9)
    stretch = np.sqrt(PROPOSAL_FREEDOM / stats.chi2.ppf(uniform[:, -1], PROPOSAL_FREEDOM))
    points: np.ndarray = ndtri(uniform[:, :-1]) * stretch[:, None]
    points.flags.writeable = False
    return points


def _curvature(target: _Target, centre: np.ndarray) -> np.ndarray:
    """Covariance of the logarithms: inverse Hessian by central differences, kept within sensible spreads."""
    size, step = len(centre), 0.2  # wide on purpose: it measures the curvature over the width of the posterior
    steps, (rows, columns) = step * np.eye(size), np.tril_indices(size, -1)
    corners = steps[rows] + steps[columns]
    values = target.negative_log(centre + np.vstack([np.zeros(size), steps, -steps, corners, -corners]))
    middle, up, down = values[0], values[1 : 1 + size], values[1 + size : 1 + 2 * size]
    corner, opposite = values[1 + 2 * size :].reshape(2, -1)
    hessian = np.diag((up + down - 2 * middle) / step**2)
    mixed = corner + opposite - up[rows] - up[columns] - down[rows] - down[columns] + 2 * middle
    hessian[rows, columns] = hessian[columns, rows] = mixed / (2 * step**2)
    values, vectors = np.linalg.eigh(hessian)
    result: np.ndarray = (vectors / np.clip(values, 0.5, 1e6)) @ vectors.T
    return result


# ----------------------------------------------------------------------------------------------------------------------
# What the hierarchical model says in accuracy: posterior and prior predictive differences between two arms.
#
# The paper's figures 2 to 4: draw every count anew, pair treated with control, average (Y1 - Y0) / n over language
# models, tasks and subsamples, the groups being those of the data. That average is one weighted sum of thousands of
# independent binomials, so given the probabilities it is drawn from its Gaussian limit with the exact mean and
# variance.

STRATA = 25  # standard deviations among which the draws are divided


def equal_tailed(draws: np.ndarray, level: float = INTERVAL) -> Interval[float]:
    """The equal-tailed interval of probability `level`."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def posterior_predictive(design: Design, posterior: LaplacePosterior, size: int = 1000) -> np.ndarray:
    """Draws (R,) of the mean difference of new counts, treated minus control, in accuracy."""
    generator = np.random.default_rng(0)
    # systematic resampling: each node appears in proportion to its weight
    places = (generator.random() + np.arange(STRATA)) / STRATA
    nodes = np.minimum(np.searchsorted(np.cumsum(posterior.weights), places), len(posterior.weights) - 1)
    modes = find_modes(design, posterior.scales[nodes], posterior.mode)
    drawn = draw_predictors(design, modes, -(-size // STRATA), generator)
    return np.concatenate([difference_draws(design, expit(predictor), generator) for predictor in drawn])


def difference_draws(design: Design, probability: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(R,) mean differences of new counts given probabilities (R, P, S)."""
    first = np.flatnonzero(np.diff(design.pattern[:, 0] // design.patterns, prepend=-1))  # a pair is of one task
    present = design.total > 0
    trials = np.add.reduceat(present.sum(axis=1), first) / 2
    sign, noise = np.where(design.arm == 1, 1.0, -1.0) * present, present / np.maximum(design.total, 1)
    mean = np.add.reduceat(np.einsum("ps,rps->rp", sign, probability), first, axis=1) / trials
    variance = np.add.reduceat(np.einsum("ps,rps->rp", noise, probability * (1 - probability)), first, axis=1)
    share = trials / trials.sum()
    mean, variance = mean @ share, (variance / trials**2) @ share**2
    result: np.ndarray = mean + np.sqrt(variance) * generator.standard_normal(mean.shape)
    return result


def _by_pattern(design: Design, values: np.ndarray) -> np.ndarray:
    """(Q,) mean of values (P, S) over the observations of each pattern; NaN without one."""
    present, patterns = design.total > 0, len(design.columns)
    number = np.bincount(design.pattern.ravel(), present.ravel(), patterns)
    total = np.bincount(design.pattern.ravel(), (values * present).ravel(), patterns)
    result: np.ndarray = np.divide(total, number, out=np.full(patterns, np.nan), where=number > 0)
    return result


class Simulated(NamedTuple):
    """Counts (P, S) of right answers, and the beta behind them."""

    correct: np.ndarray
    beta: float


def simulate(design: Design, generator: np.random.Generator, beta: float | None = None) -> Simulated:
    """Counts drawn from the prior in the layout of `design`.

    `beta` fixes the effect of the treatment, as in the paper's null and non-null recovery checks.
    """
    scales = np.abs(generator.normal(0.0, design.prior_scale))
    spread = np.where(design.column_scale >= 0, scales[design.column_scale], design.fixed_scale)
    effects = generator.normal(0.0, spread)
    if beta is not None:
        effects[design.beta] = beta
    predictor = (design.columns @ effects)[design.pattern]
    predictor = predictor + generator.normal(0.0, scales[design.pair], len(predictor))[:, None]
    if design.noise is not None:
        predictor = predictor + generator.normal(0.0, scales[design.noise])
    correct = generator.binomial(design.total.astype(np.int64), expit(predictor)).astype(float)
    return Simulated(correct, float(effects[design.beta]))


class PriorPredictive(NamedTuple):
    """Of simulated data sets: accuracies (size, Q) by pattern, NaN for a pattern without observations, and mean
    differences (size,), fractions."""

    accuracies: np.ndarray
    differences: np.ndarray


def prior_predictive(design: Design, size: int, generator: np.random.Generator) -> PriorPredictive:
    """What the priors alone say, of `size` simulated data sets in the layout of `design`."""
    accuracies, differences = np.empty((size, len(design.columns))), np.empty(size)
    present = design.total > 0
    sign = np.where(design.arm == 1, 2.0, -2.0) * present / present.sum()
    for draw in range(size):
        share = simulate(design, generator).correct / np.maximum(design.total, 1)
        accuracies[draw] = _by_pattern(design, share)
        differences[draw] = np.sum(sign * share)
    return PriorPredictive(accuracies, differences)
