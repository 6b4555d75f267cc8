"""Intervals by resampling and by leaving out clusters, and how often a model is among the first."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from lm_validity.statistics import Interval
from lm_validity.studies.agreement.statistics import ranking
from lm_validity.studies.agreement.statistics.ranking import PairSigns

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
Values = float | np.ndarray  # of one number, or of many
Bounds = Interval[Any]  # of one number, or of many: two arrays
Sizes = np.ndarray | None  # (clusters,) in units; None where all are equal
Clusters = tuple[np.ndarray, Sizes] | None  # estimates without each of them, and their sizes
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


def percentile_interval(draws: np.ndarray, units: int | None = None) -> Bounds:
    """Percentile interval of `draws` (resamples, ...) along the first axis.

    With `units`, the number of resampled units, the level is `expanded_level`. Undefined draws (NaN) are left out, and
    an entry with fewer than 95% of its draws defined is NaN: where cells are missing, those that remain have more in
    common than the table, and intervals from them are too narrow. Draws of one unit again and again, n^(1-n) of them
    all, give no value of any pair and are not counted. Draws without an entry have bounds without one.
    """
    least = LEAST_DEFINED * (1 - float(units) ** (1 - units)) if units and units > 1 else LEAST_DEFINED
    return _percentiles(draws, expanded_level(units), least)


def _percentiles(draws: np.ndarray, level: float, least: float) -> Bounds:
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


def hull(first: Bounds, second: Bounds) -> Bounds:
    """The shortest intervals that hold both; where one is NaN, NaN."""
    return Interval(np.minimum(first.low, second.low), np.maximum(first.high, second.high))


def two_way_interval(joint: np.ndarray, over_models: np.ndarray, over_benchmarks: np.ndarray, models: int) -> Bounds:
    """Interval of a figure for a population of models and of benchmarks.

    `joint`, `over_models`, `over_benchmarks`: (resamples,) draws with models and benchmarks, only models, only
    benchmarks resampled. The variance of the first is V_models + V_benchmarks + 3 V_cells (Owen 2007), that of the
    others V_models + V_cells and V_benchmarks + V_cells; wanted is V_models + V_benchmarks + V_cells (Cameron, Gelbach
    and Miller 2011, Journal of Business & Economic Statistics 29:238), so

        V = 2 (V over models + V over benchmarks) - V both,     at least the larger of the two,

    and the quantiles of `joint`, at the expanded levels for `models`, are drawn towards its median by
    sqrt(V / V both). NaN draws are left out; NaN bounds where fewer than half of `joint` are defined, or where
    `percentile_interval` of `over_models` has none.
    """
    wide = _percentiles(joint, expanded_level(models), 0.5)
    if not (np.isfinite(wide.low) and np.isfinite(percentile_interval(over_models, models).low)):
        return Interval(float("nan"), float("nan"))
    of_models, of_benchmarks, of_both = (float(np.nanvar(draws)) for draws in (over_models, over_benchmarks, joint))
    variance = max(2 * (of_models + of_benchmarks) - of_both, of_models, of_benchmarks)
    scale = min(1.0, np.sqrt(variance / of_both)) if of_both > 0 else 1.0
    centre = float(np.nanmedian(joint))
    return Interval(centre + scale * (wide.low - centre), centre + scale * (wide.high - centre))


TAUS_AT_ONCE = 2**22


def mean_over_pairs_by_resample(tau: np.ndarray, benchmark_weights: np.ndarray | None = None) -> np.ndarray:
    """(resamples,) means over the pairs a < b of `tau` (resamples or 1, k, k), symmetric, NaN left out.

    `benchmark_weights`: (resamples, k) multiplicities of benchmarks; None counts each benchmark once.
    """
    weights = np.ones((1, tau.shape[1])) if benchmark_weights is None else benchmark_weights
    resamples, step = len(tau) if len(weights) == 1 else len(weights), max(1, TAUS_AT_ONCE // max(1, tau.shape[1] ** 2))
    tau = np.broadcast_to(tau, (resamples, *tau.shape[1:]))
    weights = np.broadcast_to(weights, (resamples, tau.shape[1]))
    means = []
    for start in range(0, max(1, resamples), step):
        part, weight = tau[start : start + step], weights[start : start + step]
        finite, diagonal = np.isfinite(part), np.diagonal(part, axis1=1, axis2=2)
        sums = ((np.where(finite, part, 0.0) @ weight[:, :, None])[:, :, 0] * weight).sum(axis=1)
        sums -= (np.nan_to_num(diagonal) * weight**2).sum(axis=1)
        weighed = weight.sum(axis=1) ** 2 if finite.all() else ((finite @ weight[:, :, None])[:, :, 0] * weight).sum(1)
        means.append(ranking.ratio(sums, weighed - (np.isfinite(diagonal) * weight**2).sum(axis=1)))
    return np.concatenate(means)


def resampled_mean_tau(signs: PairSigns, weights: np.ndarray) -> np.ndarray:
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


def jackknife_interval(estimate: Values, left_out: np.ndarray, sizes: Sizes = None, also: Clusters = None) -> Bounds:
    """estimate ± t · se from the estimates `left_out` (clusters,), one without each cluster.

        se² = (G - 1) / G · Σ (θ₍g₎ - mean θ₍g₎)²,   t with G* - 1 degrees of freedom

    (Tukey 1958; with few clusters: MacKinnon, Nielsen and Webb 2023, Journal of Econometrics 232). G is the number of
    clusters and G* the effective one (`effective_clusters`) of their `sizes` (clusters,), in units; without `sizes` all
    are equal and G* is G. With G - 1 degrees of freedom the interval is too narrow where sizes differ. Clusters are
    taken as independent draws, members of one need not be. NaN for fewer than 3 clusters, where one holds more than
    half of the units, and where leaving one out leaves no estimate.

    `also`: estimates without each cluster of a second kind, such as categories of benchmarks beside families of models,
    (clusters,), and their sizes. The two squared errors are added, with the degrees of freedom of
    Satterthwaite (1946, Biometrics 2:110). What belongs to a family and a category together is then counted twice:
    rather too wide than too narrow.

    Of many estimates (...,) at once the left-out ones are (..., clusters), and so are the intervals' ends (...,).
    """
    estimate = np.asarray(estimate, dtype=float)
    kinds = [(left_out, sizes), *([also] if also else [])]
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
    estimate: Values, left_out: np.ndarray, scale: str, sizes: Sizes = None, also: Clusters = None
) -> Bounds:
    """`jackknife_interval` on the scale of atanh (`tau`; of half of it, `change`) or logit (`share`), so that it stays
    within the range: -1 to 1, -2 to 2, or 0 to 1."""
    scales: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
        "tau": (np.arctanh, np.tanh),
        "change": (lambda change: np.arctanh(change / 2), lambda half: 2 * np.tanh(half)),
        "share": (lambda share: np.log(share / (1 - share)), lambda logit: 1 / (1 + np.exp(-logit))),
    }
    forward, back = scales[scale]
    with np.errstate(divide="ignore", invalid="ignore"):
        of_second_kind = also and (forward(also[0]), also[1])
        low, high = jackknife_interval(forward(np.asarray(estimate)), forward(left_out), sizes, of_second_kind)
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


# ----------------------------------------------------------------------------------------------------------------------
# Rank agreement with measurement error taken out, and intervals by leaving out clusters of models.

AT_ONCE = 2**20  # numbers, of pairs of models by benchmarks, that are summed together


def noise_corrected_tau(observed: Values, ceiling: Values) -> Values:
    """The tau that the benchmarks would have without measurement error.

        τ* = 2/π · asin( sin(π τ / 2) / sin(π c / 2) )

    with c the noise ceiling: the tau of benchmarks that share one order and differ by measurement error. sin(π τ / 2)
    is the correlation behind the tau of normal scores (Greiner 1909; Kruskal 1958), and dividing by the correlation
    that noise leaves is Spearman's (1904) correction for attenuation. Exact for normal scores with equal reliabilities;
    within 0.03 in the worlds of the review that proposed it. It fails where scores are far from normal after a
    monotone transformation of each benchmark, or where benchmarks share items, so that their errors agree too.
    NaN where the ceiling is not above 0 or the observed tau is above the ceiling: nothing is left to correct.
    """
    correlation = _attenuation(observed, ceiling)
    return 2 / np.pi * np.arcsin(np.where(np.abs(correlation) <= 1, correlation, np.nan))[()]


def corrected_interval(observed: Values, ceiling: Values, left_out: np.ndarray, sizes: Sizes = None) -> Bounds:
    """Interval of `noise_corrected_tau`: that of the observed tau (`transformed_interval`), both ends corrected.

    `left_out`: taus without each cluster, of `sizes` models. The ceiling is that of the whole table. Its own
    error mostly moves with that of the tau, so leaving it out makes the interval rather too wide. A jackknife of the
    corrected correlation itself covered 0.92 to 0.95 of simulated truths at 95%, this interval 0.94 to 0.99 (20 models,
    8 benchmarks). A tau cannot be above 1: the interval is the part that can be. NaN as in `jackknife_interval`, which
    also says how to give many.
    """
    return corrected_ends(transformed_interval(observed, left_out, "tau", sizes), ceiling)


def corrected_ends(observed: Bounds, ceiling: Values) -> Bounds:
    """Both ends of an interval of an observed tau as `noise_corrected_tau` has them, the part that a tau can be: an end
    beyond the ceiling is 1 or -1. NaN where the ceiling is not above 0."""
    return Interval(*(2 / np.pi * np.arcsin(np.clip(_attenuation(end, ceiling), -1, 1)) for end in observed))


def _attenuation(observed: Values, ceiling: Values) -> np.ndarray:
    ceiling = np.where(np.asarray(ceiling) > 0, ceiling, np.nan)
    return np.asarray(np.sin(np.pi * np.asarray(observed) / 2) / np.sin(np.pi * ceiling / 2))


class ExpectedSigns(NamedTuple):
    """Products of signs that benchmarks with one common order have in simulated tables, by group of pairs of models.

    Sums over the tables, whole numbers: `product`: (groups, k, k) of the products over the pairs of a group and the
    tables, by pair of benchmarks, 0 where unknown; `untied`: (pairs, k) how often a pair is not tied. `known`: (pairs,
    k); `group`: (pairs,) of each pair of models; `columns`: the k benchmarks' places in the table; `draws`: the number
    of tables.
    """

    product: np.ndarray
    untied: np.ndarray
    known: np.ndarray
    group: np.ndarray
    columns: np.ndarray
    draws: int


Expected = ExpectedSigns | None


class TausLeftOut(NamedTuple):
    """Observed taus of the whole table and then without each cluster, and their noise ceilings, of the whole table."""

    observed: np.ndarray
    ceiling: np.ndarray


def mean_tau_left_out(signs: PairSigns, expected: Expected, pairs: np.ndarray, clusters: np.ndarray) -> TausLeftOut:
    """Mean taus over pairs of benchmarks: observed ones (1 + clusters,) and the ceiling ().

    Over the pairs of models in the mask `pairs` (pairs,), which holds all or nothing of each group of `expected`, and
    over the same pairs of benchmarks: those with both taus. Without `expected` the ceiling is NaN and the observed mean
    is over all pairs with a tau. Of several masks (masks, pairs) they are (masks, 1 + clusters) and (masks,).
    """
    masks, observed = np.atleast_2d(pairs), []
    for taus, has_limit in tables_left_out(signs, expected, masks, clusters):
        observed.append(ranking.finite_mean(taus if has_limit is None else np.where(has_limit, taus, np.nan), axis=1))
        if len(observed) == 1:
            limits = limits_of(expected, masks)
            ceiling = ranking.finite_mean(np.where(np.isfinite(taus), limits, np.nan) if expected else limits, axis=1)
    shape = pairs.shape[:-1]
    return TausLeftOut(np.array(observed).T.reshape(*shape, -1), ceiling.reshape(shape))


def taus_left_out(signs: PairSigns, expected: Expected, pairs: np.ndarray, clusters: np.ndarray) -> TausLeftOut:
    """Taus by pair of benchmarks, (benchmark pairs, 1 + clusters) and (benchmark pairs,), as in `mean_tau_left_out`.

    Benchmarks are all columns, or those of `expected`; pairs in the order of `np.triu_indices` without the diagonal.
    NaN where a tau is undefined; without `expected` there are no ceilings: (0,).
    """
    tables = [taus[0] for taus, _ in tables_left_out(signs, expected, pairs[None], clusters)]
    return TausLeftOut(np.array(tables).T, limits_of(expected, pairs[None])[0])


def tables_left_out(
    signs: PairSigns, expected: Expected, masks: np.ndarray, clusters: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """(observed taus, whether simulated tables have one), both (masks, benchmark pairs), of the whole table and then
    without each cluster.

    The sums over pairs of models that leave a cluster out are those of the whole table less those of the pairs that
    concern it. All are whole numbers, hence exact.
    """
    columns = np.arange(signs.sign.shape[1]) if expected is None else expected.columns
    upper = np.triu_indices(len(columns), 1)
    everything = len(columns) == signs.sign.shape[1]
    sign, is_known = (matrix if everything else matrix[:, columns] for matrix in (signs.sign, signs.known))
    parts = [_Sums(sign, is_known, masks)]
    if expected is not None:
        parts.append(_Sums(expected.untied, expected.known, masks, expected.draws))
    whole_sums = [part.over(np.flatnonzero(part.part < len(part.inside))) for part in parts]
    # for each cluster the pairs of models with a model in it that are in a mask, in the order of parts
    pairs = np.flatnonzero(parts[0].part < len(parts[0].inside))
    first, second = clusters[signs.first[pairs]], clusters[signs.second[pairs]]
    between = first != second  # a pair within a cluster concerns it once
    concerned, places = np.concatenate([first, second[between]]), np.concatenate([pairs, pairs[between]])
    order = np.lexsort((places, parts[0].part[places], concerned))
    ends = np.cumsum(np.bincount(concerned, minlength=int(clusters.max(initial=-1)) + 1))[:-1]
    of_clusters = ([part.over(chosen) for part in parts] for chosen in np.split(places[order], ends))
    for concerned_sums in ([NOTHING] * len(parts), *of_clusters):
        observed, *of_tables = [
            _Sum(total.product - removed.product, total.untied - removed.untied)
            for total, removed in zip(whole_sums, concerned_sums, strict=True)
        ]
        taus = ranking.ratio(observed.product[:, *upper], np.sqrt(_both_untied(observed.untied, upper)))
        yield taus, _both_untied(of_tables[0].untied, upper) > 0 if of_tables else None


def _both_untied(untied: np.ndarray, upper: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """(masks, benchmark pairs) products of the two numbers of untied pairs of models, from what `_Sums` gives."""
    first, second = upper
    if untied.shape[2] == 1:
        product: np.ndarray = untied[:, first, 0] * untied[:, second, 0]
    else:
        product = untied[:, first, second] * untied[:, second, first]
    return product


class _Sum(NamedTuple):
    """Sums over pairs of models: of products of signs (masks, k, k), and of untied pairs (masks, k, k), those known on
    the other benchmark too; (masks, k, 1) where all is known."""

    product: np.ndarray
    untied: np.ndarray


NOTHING = _Sum(np.zeros(()), np.zeros(()))


class _Sums:
    """Sums over pairs of models in each of some masks, of signs or, with `draws`, of numbers of untied tables.

    Pairs of models that are in the same masks are a part, which is summed once for all masks.
    """

    def __init__(self, values: np.ndarray, is_known: np.ndarray, masks: np.ndarray, draws: int = 0):
        self.values, self.masks, self.draws = values.astype(np.int16 if draws else np.int8), len(masks), draws
        self.known = None if is_known.all() else is_known.astype(bool)
        # the masks that a pair is not in, as bits; pairs that are in none are the last part, which does not count
        code = np.zeros(masks.shape[1], dtype=np.int64)
        for bit, mask in enumerate(masks):
            code |= (~mask).astype(np.int64) << bit
        codes = np.flatnonzero(np.bincount(code, minlength=1))
        self.part = np.searchsorted(codes, np.arange(2 ** len(masks)))[code]
        inside = (codes[:, None] >> np.arange(len(masks)) & 1) == 0  # (parts, masks): which masks a part is in
        self.inside = inside[inside.any(axis=1)]
        # whole numbers are exact in single precision up to 2^24
        self.step = max(1, min(AT_ONCE // max(1, values.shape[1]), 2**24 // max(1, draws)))

    def over(self, pairs: np.ndarray) -> _Sum:
        """Over the `pairs` (indices, in the order of parts or not)."""
        k, part = self.values.shape[1], self.part[pairs]
        product, untied = np.zeros((self.masks, k, k)), np.zeros((self.masks, k, 1 if self.known is None else k))
        for number in np.unique(part):
            of_part, inside = pairs[part == number], np.flatnonzero(self.inside[number])
            for start in range(0, len(of_part), self.step):
                own_product, own_untied = self._block(of_part[start : start + self.step])
                for mask in inside:
                    product[mask] += own_product
                    untied[mask] += own_untied
        return _Sum(product, untied)

    def _block(self, pairs: np.ndarray) -> _Sum:
        """As `over`, of pairs of one part, once; no products of tables."""
        values = self.values[pairs].astype(np.float32)
        product = NOTHING.product if self.draws else values.T @ values
        if self.known is None:  # the square of a sign is 1 where a pair is not tied
            return _Sum(product, (values.sum(axis=0) if self.draws else np.diagonal(product))[:, None])
        return _Sum(product, np.abs(values).T @ self.known[pairs].astype(np.float32))


def limits_of(expected: Expected, masks: np.ndarray) -> np.ndarray:
    """(masks, benchmark pairs) ceilings: taus of the simulated tables over the pairs of models in each mask; no
    benchmark pairs without `expected`. Raises ValueError for a mask that has some pairs of a group but not all."""
    if expected is None:
        return np.empty((len(masks), 0))
    upper, counted = np.triu_indices(len(expected.columns), 1), expected.known.any(axis=1)
    group = expected.group[counted]
    size = np.bincount(group, minlength=len(expected.product))
    inside = np.array([np.bincount(group, mask, minlength=len(size)) for mask in masks[:, counted]])
    if ((inside > 0) & (inside < size)).any():
        raise ValueError("A mask holds some pairs of models of a group but not all.")
    product = np.tensordot((inside > 0).astype(float), expected.product, axes=1)
    _, untied = _Sums(expected.untied, expected.known, masks, expected.draws).over(np.flatnonzero(masks.any(axis=0)))
    return ranking.ratio(product[:, *upper], np.sqrt(_both_untied(untied, upper)))
