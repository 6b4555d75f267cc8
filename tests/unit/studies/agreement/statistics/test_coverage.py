"""Do 95% intervals hold what they say? 500 simulated score tables of known truth (slow; figures in docs/statistics.md).

A table has one ability per model and normal benchmark-specific parts: score_ij = l_j u_i + sqrt(1 - l_j²) e_ij. Two
benchmarks then correlate with l_a l_b, and Kendall's tau of normal variables is 2/pi asin(rho): the truth is exact.
"""

import numpy as np
import pytest

from lm_validity.studies.agreement.statistics.many_components import share_intervals
from lm_validity.studies.agreement.statistics.potential import component_ranks, ranks_over_benchmarks, ranks_over_noise
from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, pair_signs, resampled_kendall_tau
from lm_validity.studies.agreement.statistics.resampling import (
    Interval,
    mean_over_pairs_by_resample,
    multiplicities,
    percentile_interval,
    shortest_interval,
    two_way_interval,
)

pytestmark = pytest.mark.slow
TABLES, RESAMPLES = 500, 400
LOADINGS = {"direct": (0.5, 0.9), "train_before_test": (0.8, 0.98)}


def mean_pair(matrix: np.ndarray) -> float:
    return float(matrix[np.triu_indices(len(matrix), 1)].mean())


def normal_tau(loadings: np.ndarray) -> np.ndarray:
    return 2 / np.pi * np.arcsin(np.outer(loadings, loadings))


def draw_table(ability: np.ndarray, loadings: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    specific = rng.normal(size=(len(ability), len(loadings)))
    return np.outer(ability, loadings) + np.sqrt(1 - loadings**2) * specific


def covered(interval, truth) -> np.ndarray:
    return (interval.low <= truth) & (truth <= interval.high)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("models", "benchmarks"), [(61, 24), (20, 8)])
def test_intervals_of_agreement_and_first_component_cover(models, benchmarks, capsys):
    rng = np.random.default_rng(models)
    large = {p: rng.uniform(*limits, 4000) for p, limits in LOADINGS.items()}
    population_truth = {p: mean_pair(normal_tau(values)) for p, values in large.items()}
    hits: dict[str, list[bool]] = {}
    for _ in range(TABLES):
        ability = rng.normal(size=models)
        weights = multiplicities(models, RESAMPLES, rng)
        benchmark_weights = multiplicities(benchmarks, RESAMPLES, rng)
        mean, fixed_models, population, truth = {}, {}, {}, {}
        for protocol, limits in LOADINGS.items():
            loadings = rng.uniform(*limits, benchmarks)
            scores = draw_table(ability, loadings, rng)
            signs = pair_signs(scores)
            tau = resampled_kendall_tau(signs, weights)
            observed = np.broadcast_to(kendall_tau_matrix(signs), tau.shape)
            fixed_models[protocol] = mean_over_pairs_by_resample(observed, benchmark_weights)
            mean[protocol] = mean_over_pairs_by_resample(tau)
            population[protocol] = mean_over_pairs_by_resample(tau, benchmark_weights)
            truth[protocol] = mean_pair(normal_tau(loadings))
            correlation = np.outer(loadings, loadings)
            np.fill_diagonal(correlation, 1.0)
            share = np.linalg.eigvalsh(correlation)[-1] / benchmarks
            shares = Interval(*(end[0] for end in share_intervals(scores, np.arange(models), 1)))
            results = {
                f"{protocol} mean tau, these benchmarks": covered(
                    percentile_interval(mean[protocol], models), truth[protocol]
                ),
                f"{protocol} mean tau, population": covered(
                    two_way_interval(population[protocol], mean[protocol], fixed_models[protocol], models),
                    population_truth[protocol],
                ),
                f"{protocol} share of the first component": covered(shares, share),
            }
            for name, hit in results.items():
                hits.setdefault(name, []).append(bool(hit))
        first, second = LOADINGS
        change = percentile_interval(mean[second] - mean[first], models)
        hits.setdefault("improvement, these benchmarks", []).append(bool(covered(change, truth[second] - truth[first])))
        change = two_way_interval(*(d[second] - d[first] for d in (population, mean, fixed_models)), models)
        difference = population_truth[second] - population_truth[first]
        hits.setdefault("improvement, population", []).append(bool(covered(change, difference)))
    coverage = {name: float(np.mean(values)) for name, values in hits.items()}
    with capsys.disabled():
        print(
            f"\n{models} models × {benchmarks} benchmarks:", *(f"\n  {name}: {c:.3f}" for name, c in coverage.items())
        )
    assert all(0.90 <= c <= 0.98 for c in coverage.values()), coverage


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("error", [0.4, 0.15])
def test_rank_intervals_cover(error, capsys):
    """Over items: the rank of the noise-free scores. Over benchmarks: the rank of the ability."""
    rng = np.random.default_rng(5)
    items, benchmarks = [], []
    for _ in range(TABLES):
        ability = rng.normal(size=40)
        loadings = rng.uniform(0.7, 0.95, 16)
        truth = draw_table(ability, loadings, rng)
        stderr = np.full(truth.shape, error)
        scores = truth + stderr * rng.normal(size=truth.shape)
        noise = shortest_interval(ranks_over_noise(scores, stderr, 200, rng).draws)
        items.append(covered(noise, component_ranks(truth)).mean())
        over = shortest_interval(ranks_over_benchmarks(scores, multiplicities(16, 200, rng)).draws)
        benchmarks.append(covered(over, (-ability).argsort().argsort() + 1).mean())
    coverage = {"rank, these benchmarks": np.mean(items), "rank, population": np.mean(benchmarks)}
    with capsys.disabled():
        print(
            f"\n40 models × 16 benchmarks, standard error {error}:", *(f"\n  {n}: {c:.3f}" for n, c in coverage.items())
        )
    assert all(0.90 <= c <= 0.98 for c in coverage.values()), coverage
