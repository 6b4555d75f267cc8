"""Posterior of beta and of the standard deviations: importance sampling around the mode of nested Laplace.

The target is p(sd | counts) from `bias_laplace.find_mode`, the proposal a Student t, adapted round by round to the
weighted nodes of all rounds before (adaptive multiple importance sampling, Cornuet et al. 2012, Scand. J. Statist.
39:798-812) until enough nodes are effective. The posterior of beta is then a weighted mixture of Gaussians, one a
node, so that the uncertainty of the standard deviations, large where there are few tasks, is part of every interval.
"""

from dataclasses import dataclass

import numpy as np
from scipy import linalg, optimize, stats
from scipy.special import gammaln, logsumexp

from lm_validity.studies.bias.statistics.laplace import Mode, Start, find_mode, zero_start
from lm_validity.studies.bias.statistics.model import Design

INTERVAL = 0.89  # the paper's credible intervals
NODES = 128  # a round
ROUNDS = 12
PROPOSAL_FREEDOM = 5.0  # Student t: heavier tails than the posterior of a standard deviation
LOG_SCALE_RANGE = (np.log(1e-5), np.log(30.0))  # of a standard deviation on the logit scale
MINIMUM_EFFECTIVE_NODES = 40.0  # below it the report calls the fit unreliable


@dataclass(frozen=True)
class LaplacePosterior:
    """Posterior of one fit; H standard deviations (named in the design), M nodes.

    beta_mean, beta_sd: of beta, in log-odds; interval: equal-tailed, of probability `INTERVAL`
    scales (M, H) nodes, weights (M,) summing to 1, node_means and node_sds (M,) of beta at each node
    effective_nodes: 1 / sum(weights^2), the quality of the importance sampling
    log_evidence: log p(counts) up to a constant shared by all formulas for the same counts
    mode: the latent effects at the mode of the standard deviations
    """

    beta_mean: float
    beta_sd: float
    interval: tuple[float, float]
    scales: np.ndarray
    weights: np.ndarray
    node_means: np.ndarray
    node_sds: np.ndarray
    effective_nodes: float
    log_evidence: float
    mode: Mode

    @property
    def reliable(self) -> bool:
        """Whether enough nodes carry the weight."""
        return self.effective_nodes >= MINIMUM_EFFECTIVE_NODES

    def scale_means(self) -> np.ndarray:
        """(H,) posterior means of the standard deviations."""
        return self.weights @ self.scales

    def interval_at(self, level: float) -> tuple[float, float]:
        """Equal-tailed interval of beta, of probability `level`."""
        return _mixture_interval(self.weights, self.node_means, self.node_sds, level)


class _Target:
    """The posterior density of the standard deviations; the last mode is where the next Newton iteration starts."""

    def __init__(self, design: Design):
        self.design = design
        self.start = zero_start(design)

    def mode(self, scale: np.ndarray) -> Mode:
        return find_mode(self.design, scale, self.start)

    def density(self, mode: Mode, scale: np.ndarray) -> float:
        """Log marginal likelihood and HalfNormal prior."""
        prior = np.log(2) + stats.norm.logpdf(scale, scale=self.design.prior_scale)
        return mode.log_marginal + float(np.sum(prior))

    def negative_log(self, log_scale: np.ndarray) -> float:
        """Minus the log density of the logarithms (with their Jacobian, so that a mode away from zero exists)."""
        log_scale = np.clip(log_scale, *LOG_SCALE_RANGE)
        mode = self.mode(np.exp(log_scale))
        self.start = Start(mode.u, mode.v, mode.e)
        return -self.density(mode, np.exp(log_scale)) - float(np.sum(log_scale))


def fit_laplace(design: Design, nodes: int = NODES, seed: int = 0) -> LaplacePosterior:
    """Fit `design`, with rounds of `nodes` nodes until half as many are effective; `seed` scrambles the nodes."""
    target = _Target(design)
    log_centre = _maximise(target)
    covariance = _curvature(target, log_centre)
    target.negative_log(log_centre)
    centre = np.exp(log_centre)
    mode = target.mode(centre)
    proposals = [_Proposal(centre, centre[:, None] * covariance * centre)]
    sample = _Sample(target)
    for attempt in range(ROUNDS):
        sample.extend(proposals[-1].draw(nodes, seed + attempt))
        weights, log_evidence = sample.weigh(proposals)
        effective = float(1.0 / np.sum(weights**2))
        if effective >= nodes / 2:
            break
        proposals.append(_Proposal.adapted(sample.scales, weights))
    means, sds = sample.means, sample.sds
    beta_mean = float(weights @ means)
    return LaplacePosterior(
        beta_mean=beta_mean,
        beta_sd=float(np.sqrt(weights @ (sds**2 + (means - beta_mean) ** 2))),
        interval=_mixture_interval(weights, means, sds),
        scales=sample.scales,
        weights=weights,
        node_means=means,
        node_sds=sds,
        effective_nodes=effective,
        log_evidence=log_evidence,
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
        size = len(self.centre)
        uniform = stats.qmc.Sobol(size + 1, rng=np.random.default_rng(seed)).random(32 * nodes)
        uniform = np.clip(uniform, 1e-9, 1 - 1e-9)
        stretch = np.sqrt(PROPOSAL_FREEDOM / stats.chi2.ppf(uniform[:, -1], PROPOSAL_FREEDOM))
        scales = self.centre + (stats.norm.ppf(uniform[:, :-1]) * stretch[:, None]) @ self.factor.T
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
        return density - np.sum(np.log(np.diag(self.factor))) - self.log_inside


class _Sample:
    """All nodes of all rounds: the target's log density, and mean and sd of beta, at each."""

    def __init__(self, target: _Target):
        self.target = target
        self.scales = np.empty((0, len(target.design.names)))
        self.densities, self.means, self.sds = np.empty((3, 0))

    def extend(self, scales: np.ndarray) -> None:
        """Evaluate more nodes (M, H)."""
        values, beta = np.empty((3, len(scales))), self.target.design.beta
        for index, scale in enumerate(scales):
            mode = self.target.mode(scale)
            values[:, index] = self.target.density(mode, scale), mode.u[beta], np.sqrt(mode.variance(beta))
        self.scales = np.vstack([self.scales, scales])
        self.densities = np.append(self.densities, values[0])
        self.means, self.sds = np.append(self.means, values[1]), np.append(self.sds, values[2])

    def weigh(self, proposals: list[_Proposal]) -> tuple[np.ndarray, float]:
        """Normalised weights (M,) and log evidence: every node counts as a draw of the mixture of all rounds."""
        mixture = logsumexp([proposal.log_density(self.scales) for proposal in proposals], axis=0) - np.log(
            len(proposals)
        )
        log_weights = self.densities - mixture
        total = logsumexp(log_weights)
        return np.exp(log_weights - total), float(total - np.log(len(log_weights)))


def _maximise(target: _Target) -> np.ndarray:
    start = np.log(0.2 * target.design.prior_scale)
    bounds = [LOG_SCALE_RANGE] * len(start)
    options = {"ftol": 1e-9, "gtol": 0.02, "maxiter": 60, "eps": 1e-3}
    found = optimize.minimize(  # type: ignore[call-overload] # the stub knows no options of L-BFGS-B
        target.negative_log, start, method="L-BFGS-B", bounds=bounds, options=options
    )
    best: np.ndarray = found.x
    return best


def _curvature(target: _Target, centre: np.ndarray, step: float = 0.2) -> np.ndarray:
    """Covariance of the logarithms: inverse Hessian by central differences, kept within sensible spreads.

    The step is wide on purpose: it measures the curvature over the width of the posterior.
    """
    size = len(centre)
    steps = step * np.eye(size)
    middle = target.negative_log(centre)
    up = np.array([target.negative_log(centre + row) for row in steps])
    down = np.array([target.negative_log(centre - row) for row in steps])
    hessian = np.diag((up + down - 2 * middle) / step**2)
    for i in range(size):
        for j in range(i):
            corner = target.negative_log(centre + steps[i] + steps[j])
            opposite = target.negative_log(centre - steps[i] - steps[j])
            mixed = corner + opposite - up[i] - up[j] - down[i] - down[j] + 2 * middle
            hessian[i, j] = hessian[j, i] = mixed / (2 * step**2)
    values, vectors = np.linalg.eigh(hessian)
    return (vectors / np.clip(values, 0.5, 1e6)) @ vectors.T


def _mixture_interval(
    weights: np.ndarray, means: np.ndarray, sds: np.ndarray, level: float = INTERVAL
) -> tuple[float, float]:
    """Equal-tailed interval of probability `level` of a mixture of Gaussians."""

    def quantile(probability: float) -> float:
        low, high = np.min(means - 10 * sds), np.max(means + 10 * sds)
        return float(optimize.brentq(lambda x: float(weights @ stats.norm.cdf(x, means, sds) - probability), low, high))

    tail = (1 - level) / 2
    return quantile(tail), quantile(1 - tail)
