"""What the hierarchical model says in accuracy: posterior and prior predictive differences between two arms.

The paper's figures 2 to 4: draw every count anew, pair treated with control, average (Y1 - Y0) / n over language
models, tasks and subsamples, the groups being those of the data. That average is one weighted sum of thousands of
independent binomials, so given the probabilities it is drawn from its Gaussian limit with the exact mean and variance.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from lm_validity.studies.bias.statistics.laplace import Start, draw_predictor, find_mode
from lm_validity.studies.bias.statistics.model import Design
from lm_validity.studies.bias.statistics.posterior import INTERVAL, LaplacePosterior

NODES = 25  # standard deviations among which the draws are divided


@dataclass(frozen=True)
class Predictive:
    """Draws (R,) of the mean accuracy difference, a fraction, with mean and equal-tailed `INTERVAL` interval.

    predicted, observed (Q,): mean accuracy by pattern (task, model, arm); NaN for a pattern without observations.
    """

    draws: np.ndarray
    mean: float
    interval: tuple[float, float]
    predicted: np.ndarray
    observed: np.ndarray


def equal_tailed(draws: np.ndarray, level: float = INTERVAL) -> tuple[float, float]:
    """The equal-tailed interval of probability `level`."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def posterior_predictive(design: Design, posterior: LaplacePosterior, size: int = 1000, seed: int = 0) -> Predictive:
    """Posterior predictive mean difference, treated minus control, in accuracy."""
    generator = np.random.default_rng(seed)
    # systematic resampling: each node appears in proportion to its weight
    places = (generator.random() + np.arange(NODES)) / NODES
    nodes = np.minimum(np.searchsorted(np.cumsum(posterior.weights), places), len(posterior.weights) - 1)
    start = Start(posterior.mode.u, posterior.mode.v, posterior.mode.e)
    per_node = -(-size // NODES)
    parts, probability = list[np.ndarray](), np.zeros_like(design.correct)
    for node in nodes:
        mode = find_mode(design, posterior.scales[node], start)
        drawn = expit(draw_predictor(design, mode, per_node, generator))
        parts.append(difference_draws(design, drawn, generator))
        probability += drawn.mean(axis=0) / NODES
    draws = np.concatenate(parts)
    return Predictive(
        draws=draws,
        mean=float(draws.mean()),
        interval=equal_tailed(draws),
        predicted=_by_pattern(design, probability * (design.total > 0), design.total > 0),
        observed=_by_pattern(design, design.correct / np.maximum(design.total, 1), design.total > 0),
    )


def difference_draws(design: Design, probability: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(R,) mean differences of new counts given probabilities (R, P, S)."""
    present = design.total > 0
    trials = present.sum() / 2
    sign = np.where(design.arm == 1, 1.0, -1.0) * present / trials
    noise = present / np.maximum(design.total, 1) / trials**2
    mean = np.einsum("ps,rps->r", sign, probability)
    variance = np.einsum("ps,rps->r", noise, probability * (1 - probability))
    return mean + np.sqrt(variance) * generator.standard_normal(len(mean))


def _by_pattern(design: Design, values: np.ndarray, present: np.ndarray) -> np.ndarray:
    patterns = len(design.columns)
    number = np.bincount(design.pattern.ravel(), present.ravel(), patterns)
    total = np.bincount(design.pattern.ravel(), values.ravel(), patterns)
    return np.divide(total, number, out=np.full(patterns, np.nan), where=number > 0)


@dataclass(frozen=True)
class Simulated:
    """One data set from the model: counts (P, S), the beta and the standard deviations (H,) behind them."""

    correct: np.ndarray
    beta: float
    scales: np.ndarray


def simulate(design: Design, generator: np.random.Generator, beta: float | None = None) -> Simulated:
    """Draw standard deviations, effects and counts from the prior, in the layout of `design`.

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
    return Simulated(correct, float(effects[design.beta]), scales)


@dataclass(frozen=True)
class PriorPredictive:
    """What the priors alone say: accuracies (R, Q) by pattern and mean differences (R,), fractions."""

    accuracies: np.ndarray
    differences: np.ndarray


def prior_predictive(design: Design, size: int, generator: np.random.Generator) -> PriorPredictive:
    """Simulate `size` data sets from the prior in the layout of `design`."""
    accuracies, differences = np.empty((size, len(design.columns))), np.empty(size)
    present = design.total > 0
    sign = np.where(design.arm == 1, 2.0, -2.0) * present / present.sum()
    for draw in range(size):
        share = simulate(design, generator).correct / np.maximum(design.total, 1)
        accuracies[draw] = _by_pattern(design, share, present)
        differences[draw] = np.sum(sign * share)
    return PriorPredictive(accuracies, differences)
