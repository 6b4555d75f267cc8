"""Intervals by resampling and by leaving out clusters, and how often a model is among the first."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from lm_validity.statistics import Interval
from lm_validity.studies.agreement.statistics import ranking

# ----------------------------------------------------------------------------------------------------------------------
# Resampling of models and benchmarks, and intervals from it.
#
# Two estimands. *These benchmarks*: what would the figure be for other models of the same kind? Models are
# resampled. *A population of benchmarks*: what would it be for other models and other benchmarks? Both are resampled,
# independently (Owen 2007, "The pigeonhole bootstrap"), and the draws are rescaled to the two-way variance of Cameron,
# Gelbach and Miller (2011), since by themselves they count the noise of the cells three times. Both take models as
# exchangeable, although models of one family are not independent: leave-one-family-out shows what that matters.
#
# Resamples are multiplicities. A model is never compared with its own copy and a benchmark never paired with
# its own, so that duplicates create neither ties nor perfect agreement.

LEVEL = 0.95  # of intervals
LEAST_DEFINED = 0.95  # share of the resamples that must give a value: those without one are not like the others


def multiplicities(units: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """(resamples, units) how often each unit is drawn in a bootstrap resample."""
    return rng.multinomial(units, np.full(units, 1 / units), size=resamples).astype(float)


def expanded_level(units: int | None) -> float:
    """The level at which percentiles of resamples of so many `units` are taken for 95%; 95% itself for None or one.

    The expanded percentile interval, alpha' / 2 = Phi(-sqrt(n / (n - 1)) t_{n-1}), corrects for the bootstrap's
    narrowness in small samples (Hesterberg 2015, American Statistician 69:371, section 5.3).
    """
    if units is None or units < 2:
        return LEVEL
    return float(1 - 2 * stats.norm.cdf(stats.t.ppf((1 - LEVEL) / 2, units - 1) * np.sqrt(units / (units - 1))))


def percentile_interval(draws: np.ndarray, units: int | None = None) -> Interval[Any]:
    """Percentile interval of `draws` (resamples, ...) along the first axis.

    With `units`, the number of resampled units, the level is `expanded_level`. Undefined draws (NaN) are left out, and
    an entry with fewer than 95% of its draws defined is NaN: where cells are missing, those that remain have more in
    common than the table, and intervals from them are too narrow. Draws of one unit again and again, n^(1-n) of them
    all, give no value of any pair and are not counted. Draws without an entry have bounds without one.
    """
    least = LEAST_DEFINED * (1 - float(units) ** (1 - units)) if units and units > 1 else LEAST_DEFINED
    return _percentiles(draws, expanded_level(units), least)


def _percentiles(draws: np.ndarray, level: float, least: float) -> Interval[Any]:
    """Percentiles of `draws` at `level`; NaN for an entry with a smaller share of draws defined than `least`."""
    tail = (1 - level) / 2
    draws = np.asarray(draws, dtype=float)
    if not draws.size:  # nanquantile does not return two bounds of nothing
        nothing = np.full(draws.shape[1:], np.nan)[()]
        return Interval(nothing, nothing)
    defined = np.isfinite(draws).mean(axis=0) >= least
    safe = np.where(defined, draws, 0.0)
    # the same quantiles, many times slower, where some are missing
    quantile = np.nanquantile if np.isnan(safe).any() else np.quantile
    low, high = quantile(safe, [tail, 1 - tail], axis=0)
    return Interval(np.where(defined, low, np.nan)[()], np.where(defined, high, np.nan)[()])


def shortest_interval(
    draws: np.ndarray, level: float = 0.95, holding: np.ndarray | None = None
) -> Interval[np.ndarray]:
    """The shortest interval that holds at least `level` of `draws` (resamples, units), for each unit.

    For whole numbers such as ranks: quantiles of either tail keep whole ranks that the level does not need. Of several
    shortest intervals the middle one. Undefined draws (infinite or NaN) are left out; a unit with fewer than half of
    its draws defined is NaN. `holding`: (units,) estimates that the intervals must hold as well: the shortest of those
    that do, which is longer where the draws leave the estimate aside, as ranks of a model that leads by chance do.
    """
    draws = np.asarray(draws, dtype=float)
    low, high = np.full((2, draws.shape[1]), np.nan)
    for unit, column in enumerate(draws.T):
        ordered = np.sort(column[np.isfinite(column)])
        if len(ordered) and 2 * len(ordered) >= len(column):
            held = int(np.ceil(level * len(ordered)))
            lows, highs = ordered[: len(ordered) - held + 1], ordered[held - 1 :]
            if holding is not None and np.isfinite(holding[unit]):
                lows, highs = np.minimum(lows, holding[unit]), np.maximum(highs, holding[unit])
            widths = highs - lows
            shortest = np.flatnonzero(widths == widths.min())
            start = shortest[(len(shortest) - 1) // 2]
            low[unit], high[unit] = lows[start], highs[start]
    return Interval(low, high)


def hull(first: Interval[Any], second: Interval[Any]) -> Interval[Any]:
    """The shortest intervals that hold both; where one is NaN, NaN."""
    return Interval(np.minimum(first.low, second.low), np.maximum(first.high, second.high))


def two_way_interval(
    joint_draws: np.ndarray, over_models: np.ndarray, over_benchmarks: np.ndarray, models: int
) -> Interval[float]:
    """Interval of a figure for a population of models and of benchmarks.

    `joint_draws`, `over_models`, `over_benchmarks`: (resamples,) draws with models and benchmarks, only models, only
    benchmarks resampled. The variance of the first is V_models + V_benchmarks + 3 V_cells (Owen 2007), that of the
    others V_models + V_cells and V_benchmarks + V_cells; wanted is V_models + V_benchmarks + V_cells (Cameron, Gelbach
    and Miller 2011, Journal of Business & Economic Statistics 29:238), so

        V = 2 (V over models + V over benchmarks) - V both,     at least the larger of the two,

    and the quantiles of `joint_draws`, at the expanded levels for `models`, are drawn towards its median by
    sqrt(V / V both). NaN draws are left out; NaN bounds where fewer than half of `joint_draws` are defined, or where
    `percentile_interval` of `over_models` has none.
    """
    wide = _percentiles(joint_draws, expanded_level(models), 0.5)
    if not (np.isfinite(wide.low) and np.isfinite(percentile_interval(over_models, models).low)):
        return Interval(float("nan"), float("nan"))
    of_models, of_benchmarks, joint = (float(np.nanvar(draws)) for draws in (over_models, over_benchmarks, joint_draws))
    variance = max(2 * (of_models + of_benchmarks) - joint, of_models, of_benchmarks)
    scale = min(1.0, np.sqrt(variance / joint)) if joint > 0 else 1.0
    centre = float(np.nanmedian(joint_draws))
    return Interval(centre + scale * (wide.low - centre), centre + scale * (wide.high - centre))


TAUS_AT_ONCE = 2**22


def mean_over_pairs_by_resample(tau: np.ndarray, benchmark_weights: np.ndarray | None = None) -> np.ndarray:
    """(resamples,) means over the pairs a < b of `tau` (resamples or 1, k, k), symmetric, NaN left out.

    `benchmark_weights`: (resamples, k) multiplicities of benchmarks; None counts each benchmark once.
    """
    weights = np.ones((1, tau.shape[1])) if benchmark_weights is None else benchmark_weights
    resamples, step = len(tau) if len(weights) == 1 else len(weights), max(1, TAUS_AT_ONCE // max(1, tau.shape[1] ** 2))
    tau, weights = (
        np.broadcast_to(tau, (resamples, *tau.shape[1:])),
        np.broadcast_to(weights, (resamples, tau.shape[1])),
    )
    parts = [slice(start, start + step) for start in range(0, max(1, resamples), step)]
    return np.concatenate([_means_over_pairs(tau[part], weights[part]) for part in parts])


def _means_over_pairs(tau: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """As `mean_over_pairs_by_resample`, of few of them: `tau` (resamples, k, k) and `weights` (resamples, k)."""
    sums, weighed = weighted_pairs(tau, weights[:, :, None])
    diagonal = (np.nan_to_num(np.diagonal(tau, axis1=1, axis2=2)) * weights**2).sum(axis=1)
    on_diagonal = (np.isfinite(np.diagonal(tau, axis1=1, axis2=2)) * weights**2).sum(axis=1)
    return ranking.ratio(sums[:, 0, 0] - diagonal, weighed[:, 0, 0] - on_diagonal)


def weighted_pairs(tau: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(sums, weights), (resamples, sets, sets) both: of `tau` (resamples, k, k) over all a and b weighted by v_a u_b,
    with v and u two of the columns of `weights` (resamples or 1, k, sets); NaN has no weight."""
    finite = np.isfinite(tau)
    transposed = weights.swapaxes(1, 2)
    if finite.all():
        total = weights.sum(axis=1)
        return transposed @ (tau @ weights), total[:, :, None] * total[:, None, :]
    return transposed @ (np.where(finite, tau, 0.0) @ weights), transposed @ (finite @ weights)


def resampled_mean_tau(signs: ranking.PairSigns, weights: np.ndarray) -> np.ndarray:
    """(resamples,) `mean_over_pairs_by_resample` of `resampled_kendall_tau`, of many columns without the taus where all
    is known.

    Then tau_ab = sum w s_a s_b / (n_a n_b) with n_a² = sum w s_a², sums over pairs of models, so that the sum of all
    taus is that of w (sum_a s_a / n_a)². There rounded to 1e-12, above its error. `weights`: (resamples, models).
    """
    if signs.sign.shape[1] <= ranking.SOME_COLUMNS or not (signs.known > 0).all():
        step = max(1, TAUS_AT_ONCE // max(1, signs.sign.shape[1] ** 2))
        draws = (weights[start : start + step] for start in range(0, max(1, len(weights)), step))
        return np.concatenate(
            [mean_over_pairs_by_resample(ranking.resampled_kendall_tau(signs, part)) for part in draws]
        )
    columns, total, squares = signs.sign.shape[1], np.zeros(len(weights)), np.zeros((len(weights), signs.sign.shape[1]))
    of_models = np.ascontiguousarray(weights.T)  # whose rows are read as they lie in memory
    step = max(1, 2**20 // max(1, len(weights), columns))  # pairs at a time
    parts = [slice(start, start + step) for start in range(0, len(signs.first), step)]
    for part in parts:
        squares += (of_models[signs.first[part]] * of_models[signs.second[part]]).T @ np.abs(signs.sign[part])
    scale = np.sqrt(ranking.ratio(np.ones(squares.shape), squares))
    defined = np.isfinite(scale).sum(axis=1)
    scale = np.nan_to_num(scale).T
    for part in parts:
        weight = of_models[signs.first[part]] * of_models[signs.second[part]]
        total += np.einsum("pr,pr->r", weight, (signs.sign[part] @ scale) ** 2)
    return np.round(ranking.ratio(total - defined, defined * (defined - 1.0)), 12)


# ----------------------------------------------------------------------------------------------------------------------
# Intervals by leaving out clusters, such as families of models.

LEAST_CLUSTERS = 3  # with two, a t quantile of 12.7 says nothing
MOST_IN_ONE = 0.5  # of all units; a cluster that holds more is no draw from clusters like it


def effective_clusters(sizes: np.ndarray) -> float:
    """(Σ m)² / Σ m² of clusters of m units each: as many equal clusters would vary as much; their number if all are
    equal (Carter, Schnepel and Steigerwald 2017, Review of Economics and Statistics 99:698). NaN without units.
    """
    sizes = np.asarray(sizes, dtype=float)
    return float(sizes.sum() ** 2 / (sizes**2).sum()) if sizes.any() else float("nan")


def jackknife_interval(
    estimate: float | np.ndarray,
    left_out: np.ndarray,
    sizes: np.ndarray | None = None,
    other_estimates: np.ndarray | None = None,
    other_sizes: np.ndarray | None = None,
) -> Interval[Any]:
    """estimate ± t · se from the estimates `left_out` (clusters,), one without each cluster.

        se² = (G - 1) / G · Σ (θ₍g₎ - mean θ₍g₎)²,   t with G* - 1 degrees of freedom

    (Tukey 1958; with few clusters: MacKinnon, Nielsen and Webb 2023, Journal of Econometrics 232). G is the number of
    clusters and G* the effective one (`effective_clusters`) of their `sizes` (clusters,), in units; without `sizes` all
    are equal and G* is G. With G - 1 degrees of freedom the interval is too narrow where sizes differ. Clusters are
    taken as independent draws, members of one need not be. NaN for fewer than 3 clusters, where one holds more than
    half of the units, and where leaving one out leaves no estimate.

    `other_estimates` (clusters,): estimates without each cluster of a second kind, such as categories of benchmarks
    beside families of models, of `other_sizes`. The two squared errors are added, with the degrees of freedom of
    Satterthwaite (1946, Biometrics 2:110). What belongs to a family and a category together is then counted twice:
    rather too wide than too narrow.

    Of many estimates (...,) at once the left-out ones are (..., clusters), and so are the intervals' ends (...,).
    """
    estimate = np.asarray(estimate, dtype=float)
    kinds = [(left_out, sizes)] if other_estimates is None else [(left_out, sizes), (other_estimates, other_sizes)]
    parts = [np.asarray(values, dtype=float) for values, _ in kinds]
    units = [
        np.ones(part.shape[-1]) if m is None else np.asarray(m, dtype=float)
        for part, (_, m) in zip(parts, kinds, strict=True)
    ]
    too_few = any(part.shape[-1] < LEAST_CLUSTERS for part in parts)
    if too_few or not all(0 < m.max() <= MOST_IN_ONE * m.sum() for m in units):
        nothing = np.full(estimate.shape, np.nan)[()]
        return Interval(nothing, nothing)
    defined = np.logical_and.reduce([np.isfinite(estimate), *(np.isfinite(part).all(axis=-1) for part in parts)])
    freedom = np.array([effective_clusters(m) for m in units]) - 1
    parts = [np.where(defined[..., None], part, 0.0) for part in parts]
    deviations = (((part - part.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for part in parts)
    squares = np.array([(len(m) - 1) / len(m) * square for m, square in zip(units, deviations, strict=True)])
    total = squares.sum(axis=0)
    weighted = (squares.T**2 / freedom).T.sum(axis=0)
    joint = np.divide(total**2, weighted, out=np.full(total.shape, freedom.min()), where=total > 0)
    reach = np.where(defined, stats.t.ppf(0.5 + LEVEL / 2, joint) * np.sqrt(total), np.nan)
    return Interval((estimate - reach)[()], (estimate + reach)[()])


def transformed_interval(
    estimate: float | np.ndarray,
    left_out: np.ndarray,
    scale: str,
    sizes: np.ndarray | None = None,
    other_estimates: np.ndarray | None = None,
    other_sizes: np.ndarray | None = None,
) -> Interval[Any]:
    """`jackknife_interval` on the scale of atanh (`tau`; of half of it, `change`) or logit (`share`), so that it stays
    within the range: -1 to 1, -2 to 2, or 0 to 1."""
    scales: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
        "tau": (np.arctanh, np.tanh),
        "change": (lambda change: np.arctanh(change / 2), lambda half: 2 * np.tanh(half)),
        "share": (lambda share: np.log(share / (1 - share)), lambda logit: 1 / (1 + np.exp(-logit))),
    }
    forward, back = scales[scale]
    with np.errstate(divide="ignore", invalid="ignore"):
        transformed = np.asarray(forward(left_out), dtype=float)
        other_transformed = None if other_estimates is None else np.asarray(forward(other_estimates), dtype=float)
        low, high = jackknife_interval(
            forward(np.asarray(estimate, dtype=float)), transformed, sizes, other_transformed, other_sizes
        )
    return Interval(back(low), back(high))


def means_without_clusters(tau: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """(clusters,) means over the pairs of benchmarks of `tau` (k, k) without the benchmarks of each cluster (k,)."""
    parts = (clusters != cluster for cluster in range(int(clusters.max()) + 1))
    return np.array([ranking.mean_over_pairs(tau[np.ix_(units_left, units_left)]) for units_left in parts])


def cluster_numbers(names: np.ndarray) -> np.ndarray:
    """(n,) whole numbers of the clusters that `names` (n,) gives; each unnamed unit (None) is a cluster of its own."""
    numbers: dict[tuple[object, int | None], int] = {}
    keys = [(name, None) if name is not None else (None, i) for i, name in enumerate(names)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=int)
