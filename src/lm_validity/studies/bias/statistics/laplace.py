"""Posterior of the hierarchical binomial model by nested Laplace approximation.

For given standard deviations theta the latent effects (fixed and group effects u, pair effects v, observation effects
e) have a log-concave posterior, which is replaced by the Gaussian at its mode; this also gives the marginal
likelihood of theta, and the posterior of theta is integrated by importance sampling (Rue, Martino & Chopin 2009,
JRSS B 71:319-392; Tierney & Kadane 1986). Each observation has one e and belongs to one pair, so e and v are
eliminated in closed form and only the few dozen entries of u need a dense solve: a fit takes a second or two.
"""

from dataclasses import dataclass

import numpy as np
from scipy import linalg
from scipy.special import expit

from lm_validity.studies.bias.statistics.model import Design

NEWTON_STEPS = 60
NEWTON_TOLERANCE = 1e-8  # of the Newton decrement, in nats


@dataclass(frozen=True)
class Mode:
    """The Gaussian approximation of the latent effects at given standard deviations.

    u (d,), v (P,), e (P, S): the mode; factor (d, d): lower Cholesky factor of the precision of u; log_marginal:
    log p(counts | sd) up to a constant.
    For drawing v given u and e given u, v: pair_precision (P,), observation_precision (P, S; None without
    over-dispersion), weight (P, S) the binomial's working weight n p (1 - p), residual_weight (P, S) what e leaves
    of it.
    """

    u: np.ndarray
    v: np.ndarray
    e: np.ndarray
    factor: np.ndarray
    log_marginal: float
    pair_precision: np.ndarray
    observation_precision: np.ndarray | None
    residual_weight: np.ndarray
    weight: np.ndarray

    def variance(self, index: int) -> float:
        """Posterior variance of u[index] at these standard deviations."""
        unit = np.zeros(len(self.u))
        unit[index] = 1.0
        return float(np.sum(linalg.solve_triangular(self.factor, unit, lower=True, check_finite=False) ** 2))


@dataclass(frozen=True)
class Start:
    """Where Newton's iteration begins."""

    u: np.ndarray
    v: np.ndarray
    e: np.ndarray


def zero_start(design: Design) -> Start:
    """All effects zero."""
    shape = design.correct.shape
    return Start(np.zeros(design.columns.shape[1]), np.zeros(shape[0]), np.zeros(shape))


class _Precisions:
    """Prior precisions at given standard deviations `scale` (H,)."""

    def __init__(self, design: Design, scale: np.ndarray):
        grouped = design.column_scale >= 0
        self.u = np.where(grouped, scale[design.column_scale], design.fixed_scale) ** -2.0
        self.v = scale[design.pair] ** -2.0
        self.e = None if design.noise is None else scale[design.noise] ** -2.0


def _log_joint(design: Design, prior: _Precisions, state: Start) -> float:
    """log p(counts, effects | sd) without the constants that depend on neither effects nor sd."""
    predictor = (design.columns @ state.u)[design.pattern] + state.v[:, None] + state.e
    value = np.sum(design.correct * predictor - design.total * np.logaddexp(0.0, predictor))
    value -= 0.5 * (state.u @ (prior.u * state.u) + prior.v * state.v @ state.v)
    if prior.e is not None:
        value -= 0.5 * np.sum(prior.e * state.e**2)
    return float(value)


def find_mode(design: Design, scale: np.ndarray, start: Start) -> Mode:
    """Newton's method with step halving on the joint log density of all effects at standard deviations `scale` (H,)."""
    prior = _Precisions(design, scale)
    state, value = start, _log_joint(design, prior, start)
    for _ in range(NEWTON_STEPS):
        system = _reduce(design, prior, state)
        step, decrement = _newton_step(design, prior, system)
        if decrement < NEWTON_TOLERANCE:
            break
        length = 1.0
        while True:
            trial = Start(state.u + length * step.u, state.v + length * step.v, state.e + length * step.e)
            trial_value = _log_joint(design, prior, trial)
            if trial_value >= value - 1e-9 * abs(value) or length < 1e-4:
                break
            length /= 2
        state, value = trial, trial_value
    return _at_mode(design, prior, state, value, system)


@dataclass(frozen=True)
class _System:
    """Newton's equations after the elimination of e and v (names as in `Mode`)."""

    weight: np.ndarray
    residual_weight: np.ndarray
    gradient_e: np.ndarray
    pair_precision: np.ndarray
    gradient_v: np.ndarray
    gradient_u: np.ndarray
    factor: np.ndarray  # lower Cholesky factor of the precision of u


def _reduce(design: Design, prior: _Precisions, state: Start) -> _System:
    predictor = (design.columns @ state.u)[design.pattern] + state.v[:, None] + state.e
    probability = expit(predictor)
    expected = design.total * probability
    weight = expected * (1.0 - probability)
    gradient = design.correct - expected
    if prior.e is None:
        residual_weight, gradient_e = weight, np.zeros_like(weight)
    else:
        gradient_e = gradient - prior.e * state.e
        gain = weight / (weight + prior.e)
        residual_weight = weight - weight * gain
        gradient = gradient - gain * gradient_e
    pair_precision = residual_weight.sum(axis=1) + prior.v
    gradient_v = gradient.sum(axis=1) - prior.v * state.v
    gradient = gradient - residual_weight * (gradient_v / pair_precision)[:, None]
    patterns = len(design.columns)
    by_pattern = np.bincount(design.pattern.ravel(), gradient.ravel(), patterns)
    information = _pattern_information(design, residual_weight, pair_precision)
    precision = design.columns.T @ information @ design.columns
    precision[np.diag_indices_from(precision)] += prior.u
    return _System(
        weight=weight,
        residual_weight=residual_weight,
        gradient_e=gradient_e,
        pair_precision=pair_precision,
        gradient_v=gradient_v,
        gradient_u=design.columns.T @ by_pattern - prior.u * state.u,
        factor=linalg.cholesky(precision, lower=True, check_finite=False),
    )


def _pattern_information(design: Design, weight: np.ndarray, pair_precision: np.ndarray) -> np.ndarray:
    """(Q, Q): diag(sum of weights) less the pairs' share, sum over pairs of w w' / (sum w + pair precision)."""
    patterns, slots = len(design.columns), weight.shape[1]
    shared = weight[:, :, None] * (weight / pair_precision[:, None])[:, None, :]
    local = -np.add.reduceat(shared, design.block_start, axis=0)
    local[:, np.arange(slots), np.arange(slots)] += np.add.reduceat(weight, design.block_start, axis=0)
    rows = design.pattern[design.block_start]
    information = np.zeros((patterns, patterns))
    information[rows[:, :, None], rows[:, None, :]] = local
    return information


def _newton_step(design: Design, prior: _Precisions, system: _System) -> tuple[Start, float]:
    """The step in all effects and half the decrease that it promises."""
    u = linalg.cho_solve((system.factor, True), system.gradient_u, check_finite=False)
    moved = (design.columns @ u)[design.pattern]
    v = (system.gradient_v - np.sum(system.residual_weight * moved, axis=1)) / system.pair_precision
    decrement = u @ system.gradient_u + np.sum(system.gradient_v**2 / system.pair_precision)
    if prior.e is None:
        return Start(u, v, np.zeros_like(moved)), 0.5 * float(decrement)
    total_precision = system.weight + prior.e
    e = (system.gradient_e - system.weight * (moved + v[:, None])) / total_precision
    decrement += np.sum(system.gradient_e**2 / total_precision)
    return Start(u, v, e), 0.5 * float(decrement)


def _at_mode(design: Design, prior: _Precisions, state: Start, value: float, system: _System) -> Mode:
    log_determinant = 2.0 * np.sum(np.log(np.diag(system.factor))) + np.sum(np.log(system.pair_precision))
    log_prior = np.sum(np.log(prior.u)) + len(state.v) * np.log(prior.v)
    observation_precision = None
    if prior.e is not None:
        observation_precision = system.weight + prior.e
        log_determinant += np.sum(np.log(observation_precision))
        log_prior += np.sum(np.log(prior.e))
    return Mode(
        u=state.u,
        v=state.v,
        e=state.e,
        factor=system.factor,
        log_marginal=float(value + 0.5 * (log_prior - log_determinant)),
        pair_precision=system.pair_precision,
        observation_precision=observation_precision,
        residual_weight=system.residual_weight,
        weight=system.weight,
    )


def draw_predictor(design: Design, mode: Mode, size: int, generator: np.random.Generator) -> np.ndarray:
    """(size, P, S) draws of the linear predictor from the Gaussian at `mode`."""
    noise = generator.standard_normal((len(mode.u), size))
    effects = linalg.solve_triangular(mode.factor, noise, lower=True, trans="T", check_finite=False)
    moved = (design.columns @ effects).T[:, design.pattern]
    pairs = generator.standard_normal((size, len(mode.v))) / np.sqrt(mode.pair_precision)
    pairs -= np.einsum("ps,rps->rp", mode.residual_weight / mode.pair_precision[:, None], moved)
    moved += pairs[:, :, None]
    if mode.observation_precision is not None:
        noise = generator.standard_normal(moved.shape) / np.sqrt(mode.observation_precision)
        moved = moved * (1.0 - mode.weight / mode.observation_precision) + noise
    return moved + ((design.columns @ mode.u)[design.pattern] + mode.v[:, None] + mode.e)
