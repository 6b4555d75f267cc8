"""What the intervals should hold: taus and shares of variance in the populations that the tables are drawn from.

Normal worlds have closed forms: the tau of two normal scores with correlation r is 2/π asin(r) (Greiner 1909). The
others are simulated once, from `PAIRS` independent pairs of models on two benchmarks of each type.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from benchmarks.coverage.worlds import FREEDOM, LOADINGS, NOISE, TYPES, Size, Table, World, scored
from scipy import stats

from lm_validity.tables.schema import PROTOCOLS

PAIRS, BATCH = 400_000, 20_000
NODES = np.polynomial.legendre.leggauss(48)


class Population(NamedTuple):
    """Of two benchmarks by their types, (TYPES, TYPES) each: tau, tau without noise, correlation."""

    tau: np.ndarray
    noise_free: np.ndarray
    correlation: np.ndarray


class Truth(NamedTuple):
    """Of one protocol: mean tau, mean tau without noise, share of the first component, tau by benchmark (benchmarks,).

    `population_tau`: mean tau over the population of benchmarks.
    """

    tau: float
    noise_free: float
    share: float
    by_benchmark: np.ndarray
    population_tau: float


def simulated_population(world: World, protocol: str, rng: np.random.Generator, pairs: int = PAIRS) -> Population:
    """By simulation, for worlds without families and categories; correlations are those of the scores."""
    types = np.tile(np.arange(TYPES), 2)
    loading = LOADINGS[protocol][types]
    sums, moments = np.zeros((2, 2, 2 * TYPES, 2 * TYPES)), np.zeros((1 + 2 * TYPES, 1 + 2 * TYPES))
    for _ in range(-(-pairs // BATCH)):
        draw = (lambda shape: rng.standard_t(FREEDOM, shape)) if world.heavy else (lambda shape: rng.normal(size=shape))
        ability, specific = draw((2 * BATCH, 1)), draw((2 * BATCH, 2 * TYPES))
        latent = loading * ability + np.sqrt(1 - loading**2) * specific
        if world.heavy:
            latent /= np.sqrt(FREEDOM / (FREEDOM - 2))
        _, _, scores = scored(world, latent, types, rng)
        for kind, values in enumerate((scores, latent)):
            sign = np.sign(values[:BATCH] - values[BATCH:])
            sums[kind] += [sign.T @ sign, np.abs(sign).T @ np.abs(sign)]
        with_one = np.column_stack([np.ones(len(scores)), scores])
        moments += with_one.T @ with_one
    taus = [_two_of_a_type(one / np.sqrt(np.outer(np.diag(untied), np.diag(untied)))) for one, untied in sums]
    mean = moments[0, 1:] / moments[0, 0]
    covariance = moments[1:, 1:] / moments[0, 0] - np.outer(mean, mean)
    deviation = np.sqrt(np.diag(covariance))
    correlation = _two_of_a_type(covariance / np.outer(deviation, deviation))
    if world.heavy:  # without fourth moments a simulated correlation converges slowly, and this one is known
        correlation = np.outer(LOADINGS[protocol], LOADINGS[protocol]) / (1 + NOISE**2)
    return Population(*taus, correlation)


def _two_of_a_type(matrix: np.ndarray) -> np.ndarray:
    """Of (2 TYPES, 2 TYPES): one benchmark of a type with another of the same or another type."""
    block = matrix[:TYPES, TYPES:]
    return (block + block.T) / 2


def normal_truth(world: World, size: Size, table: Table, protocol: str, these_families: bool) -> Truth:
    """Closed forms in normal worlds: for other models of these families, or for families like these as well."""
    loading = LOADINGS[protocol][table.types]
    same = table.categories[:, None] == table.categories
    corner = np.sqrt(1 - loading**2)
    latent = np.outer(loading, loading) + world.category * same * np.outer(corner, corner)
    np.fill_diagonal(latent, 1.0)
    taus = [_tau(world, size, latent, n, table.family_means[protocol] if these_families else None) for n in (NOISE, 0)]
    share = _first_share(_covariance(world, size, latent, table.family_means[protocol] if these_families else None))
    return _truth(taus[0], taus[1], share, _population_tau(world, size, protocol))


def typed_truth(population: Population, table: Table) -> Truth:
    """From taus and correlations by type."""
    taus, free, correlation = (values[np.ix_(table.types, table.types)] for values in population)
    np.fill_diagonal(correlation, 1.0)
    return _truth(taus, free, np.linalg.eigvalsh(correlation)[-1] / len(correlation), float(population.tau.mean()))


def _truth(tau: np.ndarray, free: np.ndarray, share: float, population: float) -> Truth:
    k = len(tau)
    tau, free = (np.where(np.eye(k, dtype=bool), np.nan, values) for values in (tau, free))
    return Truth(float(np.nanmean(tau)), float(np.nanmean(free)), float(share), np.nanmean(tau, axis=1), population)


def _tau(world: World, size: Size, latent: np.ndarray, noise: float, means: np.ndarray | None) -> np.ndarray:
    """(k, k) taus among so many models of each family, whose latent means are `means` (families, k) or unknown."""
    counts = np.array(size.families, dtype=float)
    within = latent * (1 - world.family) + noise**2 * np.eye(len(latent))
    total = within + latent * world.family
    tau = _sum_of_pairs(counts) * 2 / np.pi * np.arcsin(_correlation(within))
    between = (counts.sum() ** 2 - (counts**2).sum()) / 2
    if means is None or not world.family:
        tau = tau + between * 2 / np.pi * np.arcsin(_correlation(total))
    else:
        spread = np.sqrt(2 * np.diag(within))
        for g, h in zip(*np.triu_indices(len(counts), 1), strict=True):
            tau = tau + counts[g] * counts[h] * sign_product((means[g] - means[h]) / spread, _correlation(within))
    return tau / (counts.sum() * (counts.sum() - 1) / 2)


def _sum_of_pairs(counts: np.ndarray) -> float:
    return float((counts * (counts - 1)).sum() / 2)


def sign_product(mean: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """(k, k) E sign(x_a) sign(x_b) of normals of variance 1 with `mean` (k,) and `correlation` (k, k).

    4 P(x_a > 0, x_b > 0) - 2 P(x_a > 0) - 2 P(x_b > 0) + 1, by Plackett's integral over the angle asin(r).
    """
    h, k = mean[:, None, None], mean[None, :, None]
    angle = np.arcsin(np.clip(correlation, -1, 1))[:, :, None] * (NODES[0] + 1) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.exp(-(h**2 + k**2 - 2 * h * k * np.sin(angle)) / (2 * np.cos(angle) ** 2))
    upper = stats.norm.cdf(mean)
    both = np.outer(upper, upper) + (density @ NODES[1]) * angle_range(correlation) / (4 * np.pi)
    return 4 * both - 2 * upper[:, None] - 2 * upper + 1


def angle_range(correlation: np.ndarray) -> np.ndarray:
    """The angles asin(r) up to which Plackett's integral goes."""
    return np.arcsin(np.clip(correlation, -1, 1))


def _correlation(covariance: np.ndarray) -> np.ndarray:
    deviation = np.sqrt(np.diag(covariance))
    return np.clip(covariance / np.outer(deviation, deviation), -1, 1)


def _covariance(world: World, size: Size, latent: np.ndarray, means: np.ndarray | None) -> np.ndarray:
    """Of scores of models in the proportions of these families."""
    weights = np.array(size.families) / sum(size.families)
    within = latent * (1 - world.family) + NOISE**2 * np.eye(len(latent))
    if means is None:
        return within + latent * world.family * (1 - (weights**2).sum())
    centred = means - weights @ means
    return within + (centred * weights[:, None]).T @ centred


def _first_share(covariance: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(_correlation(covariance))[-1] / len(covariance))


@cache
def _population_tau(world: World, size: Size, protocol: str) -> float:
    """Mean tau of two benchmarks of a population: of categories in the proportions of the table."""
    loading = LOADINGS[protocol]
    corner = np.sqrt(1 - loading**2)
    found = []
    for same in (0.0, 1.0):
        latent = np.outer(loading, loading) + world.category * same * np.outer(corner, corner)
        np.fill_diagonal(latent, 1.0)
        # two benchmarks of one type correlate like any two of these loadings: off-diagonal cells of a doubled table
        off = latent - np.diag(np.diag(latent)) + np.diag(loading**2 + world.category * same * corner**2)
        doubled = np.block([[latent, off], [off, latent]])
        found.append(_tau(world, size, doubled, NOISE, None)[:TYPES, TYPES:].mean())
    counts = np.array(size.categories)
    share = (counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1))
    return float((1 - share) * found[0] + share * found[1])


@cache
def populations(world: World) -> dict[str, Population] | None:
    """The simulated populations of a world, None where closed forms do."""
    if not world.heavy and world.scale == "linear" and not world.unequal_noise:
        return None
    return {p: simulated_population(world, p, np.random.default_rng([0, i])) for i, p in enumerate(PROTOCOLS)}
