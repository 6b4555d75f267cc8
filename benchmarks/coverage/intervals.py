"""The intervals of taus and of shares of variance on one simulated table, by the package's own functions.

Fewer draws than a page takes: 400 resamples instead of 2,000, and 30 simulated tables for a noise
ceiling instead of 200. Fewer draws make the ends of intervals noisier, which costs coverage rather than adds to it.
"""

import numpy as np
from benchmarks.coverage.results import NOTHING, Result, many, one
from benchmarks.coverage.truth import Population, Truth, normal_truth, typed_truth
from benchmarks.coverage.worlds import Size, Table, World

from lm_validity.statistics import Interval
from lm_validity.studies.agreement.data import no_correction
from lm_validity.studies.agreement.statistics.factors import parallel_analysis, principal_components, share_interval
from lm_validity.studies.agreement.statistics.noise import noise_ceiling
from lm_validity.studies.agreement.statistics.ranking import (
    finite_mean,
    kendall_tau_matrix,
    known_in_all,
    pair_signs,
    resampled_kendall_tau,
)
from lm_validity.studies.agreement.statistics.resampling import (
    corrected_interval,
    mean_over_pairs_by_resample,
    mean_tau_left_out,
    means_without_clusters,
    multiplicities,
    noise_corrected_tau,
    percentile_interval,
    transformed_interval,
    two_way_interval,
)
from lm_validity.tables.schema import PROTOCOLS

RESAMPLES, CEILING_TABLES = 400, 30


def agreement_results(
    world: World, size: Size, table: Table, populations: dict[str, Population] | None
) -> dict[str, Result]:
    """By "figure, protocol | what is resampled | what it should hold"."""
    signs = {p: pair_signs(table.scores[p]) for p in PROTOCOLS}
    these = _truths(world, size, table, populations, these_families=True)
    like_these = _truths(world, size, table, populations, these_families=False) if world.family else these
    without_family = {p: _left_out(signs[p], table) for p in PROTOCOLS}
    return {
        **_resampled(table, signs, these, like_these),
        **_changes_by_family(table, without_family, like_these),
        **_over_families(table, without_family, like_these),
        **_shares(table, these, like_these),
    }


def _truths(world, size, table, populations, these_families: bool) -> dict[str, Truth]:
    if populations:
        return {p: typed_truth(populations[p], table) for p in PROTOCOLS}
    return {p: normal_truth(world, size, table, p, these_families) for p in PROTOCOLS}


def _resampled(table: Table, signs: dict, these: dict[str, Truth], like_these: dict[str, Truth]) -> dict[str, Result]:
    """Percentile intervals over models, and over models and benchmarks."""
    rng = np.random.default_rng(1)
    models, benchmarks = table.scores[PROTOCOLS[0]].shape
    weights, benchmark_weights = multiplicities(models, RESAMPLES, rng), multiplicities(benchmarks, RESAMPLES, rng)
    taus = {p: resampled_kendall_tau(signs[p], weights) for p in PROTOCOLS}
    observed = {p: kendall_tau_matrix(signs[p]) for p in PROTOCOLS}
    others = np.where(np.eye(benchmarks, dtype=bool), np.nan, 1.0)
    found: dict[str, Result] = {}
    for p in PROTOCOLS:
        estimate, over_models, both, over_benchmarks = _draws(observed[p], taus[p], benchmark_weights)
        interval = percentile_interval(over_models, models)
        two_way = two_way_interval(both, over_models, over_benchmarks, models)
        by_benchmark = percentile_interval(finite_mean(taus[p] * others, axis=2), models)
        found |= {
            f"tau, {p}|models|these families": one(estimate, interval, these[p].tau),
            f"tau, {p}|models|families like these": one(estimate, interval, like_these[p].tau),
            f"tau, {p}|models and benchmarks|benchmarks like these": one(estimate, two_way, these[p].population_tau),
            f"tau by benchmark, {p}|models|these families": many(by_benchmark, these[p].by_benchmark),
        }
    return found | _changes(table, taus, benchmark_weights, these, like_these)


def _draws(observed: np.ndarray, taus: np.ndarray, benchmark_weights: np.ndarray) -> tuple:
    """(estimate, draws over models, over both, over benchmarks) of a mean tau."""
    fixed = np.broadcast_to(observed, taus.shape)
    estimate = float(mean_over_pairs_by_resample(observed[None])[0])
    weights = (None, benchmark_weights)
    over_models, both = (mean_over_pairs_by_resample(taus, w) for w in weights)
    return estimate, over_models, both, mean_over_pairs_by_resample(fixed, benchmark_weights)


def _changes(table: Table, taus: dict, benchmark_weights: np.ndarray, these, like_these) -> dict[str, Result]:
    """The change by train before test, over the cells known under both protocols as on the page."""
    direct, prepared = PROTOCOLS
    scores = known_in_all(table.scores)
    models = len(scores[direct])
    signs = {p: pair_signs(scores[p]) for p in PROTOCOLS}
    if not all(np.array_equal(scores[p], table.scores[p], equal_nan=True) for p in PROTOCOLS):
        weights = multiplicities(models, RESAMPLES, np.random.default_rng(2))
        taus = {p: resampled_kendall_tau(signs[p], weights) for p in PROTOCOLS}
    taus, observed = known_in_all(taus), known_in_all({p: kendall_tau_matrix(signs[p]) for p in PROTOCOLS})
    parts = {p: _draws(observed[p], taus[p], benchmark_weights) for p in PROTOCOLS}
    estimate, over_models, both, over_benchmarks = (b - a for a, b in zip(parts[direct], parts[prepared], strict=True))
    interval = percentile_interval(over_models, models)
    two_way = two_way_interval(both, over_models, over_benchmarks, models)
    own, like, population = (
        getattr(truth[prepared], name) - getattr(truth[direct], name)
        for truth, name in ((these, "tau"), (like_these, "tau"), (these, "population_tau"))
    )
    return {
        "change|models|these families": one(estimate, interval, own),
        "change|models|families like these": one(estimate, interval, like),
        "change|models and benchmarks|benchmarks like these": one(estimate, two_way, population),
    }


def _left_out(signs, table: Table) -> np.ndarray:
    """(1 + families,) mean taus, all and without each family."""
    return mean_tau_left_out(signs, None, _all(signs), table.families)[0]


def _changes_by_family(table: Table, taus: dict[str, np.ndarray], like_these: dict[str, Truth]) -> dict[str, Result]:
    direct, prepared = PROTOCOLS
    if not all(np.isfinite(scores).all() for scores in table.scores.values()):
        taus = {p: _left_out(pair_signs(scores), table) for p, scores in known_in_all(table.scores).items()}
    change = (taus[prepared] - taus[direct]) / 2  # between -1 and 1
    low, high = transformed_interval(change[0], change[1:], "tau", np.bincount(table.families))
    truth = like_these[prepared].tau - like_these[direct].tau
    return {"change|families|families like these": one(2 * change[0], Interval(2 * low, 2 * high), truth)}


def _all(signs) -> np.ndarray:
    return np.ones(len(signs.first), dtype=bool)


def _over_families(table: Table, taus: dict[str, np.ndarray], like_these: dict[str, Truth]) -> dict[str, Result]:
    """Jackknife intervals of the mean tau."""
    found = {}
    for p in PROTOCOLS:
        tau = taus[p]
        interval = transformed_interval(tau[0], tau[1:], "tau", np.bincount(table.families))
        found[f"tau, {p}|families|families like these"] = one(tau[0], interval, like_these[p].tau)
    return found


def population_results(
    world: World, size: Size, table: Table, populations: dict[str, Population] | None
) -> dict[str, Result]:
    """Jackknife intervals for other models and other benchmarks: families and categories are left out in turn."""
    truths = _truths(world, size, table, populations, these_families=False)
    sizes, of_categories = np.bincount(table.families), np.bincount(table.categories)
    kind, found = "families and categories|categories like these", {}

    def without(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        signs = pair_signs(scores)
        return _left_out(signs, table), means_without_clusters(kendall_tau_matrix(signs), table.categories)

    for p in PROTOCOLS:
        taus, categories = without(table.scores[p])
        interval = transformed_interval(taus[0], taus[1:], "tau", sizes, (categories, of_categories))
        found[f"tau, {p}|{kind}"] = one(taus[0], interval, truths[p].population_tau)
    direct, prepared = (without(scores) for scores in known_in_all(table.scores).values())
    taus, categories = ((after - before) / 2 for before, after in zip(direct, prepared, strict=True))
    low, high = transformed_interval(taus[0], taus[1:], "tau", sizes, (categories, of_categories))
    truth = truths[PROTOCOLS[1]].population_tau - truths[PROTOCOLS[0]].population_tau
    return found | {f"change|{kind}": one(2 * taus[0], Interval(2 * low, 2 * high), truth)}


def corrected_results(
    world: World, size: Size, table: Table, populations: dict[str, Population] | None
) -> dict[str, Result]:
    """Intervals of the tau without measurement error, over models and over families."""
    these = _truths(world, size, table, populations, these_families=True)
    like_these = _truths(world, size, table, populations, these_families=False) if world.family else these
    found = {}
    for p in PROTOCOLS:
        signs = pair_signs(table.scores[p])
        ceiling = noise_ceiling(table.scores[p], table.stderr[p], np.random.default_rng(3), CEILING_TABLES)
        expected = ceiling.expected if no_correction(ceiling, table.scores[p], p) is None else None
        for name, clusters, truth in (
            ("models|these families", np.arange(len(table.ability)), these),
            ("families|families like these", table.families, like_these),
        ):
            result = Result(*NOTHING)
            if expected is not None:
                tau, limit = mean_tau_left_out(signs, expected, _all(signs), clusters)
                interval = corrected_interval(tau[0], float(limit), tau[1:], np.bincount(clusters))
                result = one(float(noise_corrected_tau(tau[0], limit)), interval, truth[p].noise_free)
            found[f"corrected tau, {p}|{name}"] = result
    return found


def _shares(table: Table, these: dict[str, Truth], like_these: dict[str, Truth]) -> dict[str, Result]:
    found = {}
    for p in PROTOCOLS:
        components = principal_components(table.scores[p])
        share = float(components.explained_variance[0]) if len(components.explained_variance) else float("nan")
        factors = parallel_analysis(table.scores[p], np.random.default_rng(0), 99).factors
        for name, clusters, truth in (
            ("models|these families", np.arange(len(table.ability)), these),
            ("families|families like these", table.families, like_these),
        ):
            result = one(share, share_interval(table.scores[p], clusters), truth[p].share)
            if components.included.all() and factors:  # the truth is of all benchmarks
                found[f"first component, {p}|{name}"] = result
            else:
                found[f"first component, {p}|{name}"] = Result(*NOTHING)
    return found
