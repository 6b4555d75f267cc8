"""Noise of scores: the noise ceiling, agreement corrected for it, what one benchmark tells."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import stats

from lm_validity.statistics import Interval
from lm_validity.studies.agreement.statistics import ranking, resampling
from lm_validity.studies.agreement.statistics.factors import component_shares

Values = TypeVar("Values", float, np.ndarray)

# ----------------------------------------------------------------------------------------------------------------------
# Rank agreement with measurement error taken out, and intervals by leaving out clusters of models.

AT_ONCE = 2**20  # numbers, of pairs of models by benchmarks, that are summed together


Bounds = Interval[Any]  # of one tau, or of many: two arrays


def noise_corrected_tau(observed: np.ndarray | float, ceiling: np.ndarray | float) -> np.ndarray | float:
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


def corrected_interval(
    observed: float | np.ndarray,
    ceiling: float | np.ndarray,
    observed_left_out: np.ndarray,
    sizes: np.ndarray | None = None,
) -> Bounds:
    """Interval of `noise_corrected_tau`: that of the observed tau (`transformed_interval`), both ends corrected.

    `observed_left_out`: taus without each cluster, of `sizes` models. The ceiling is that of the whole table. Its own
    error mostly moves with that of the tau, so leaving it out makes the interval rather too wide. A jackknife of the
    corrected correlation itself covered 0.92 to 0.95 of simulated truths at 95%, this interval 0.94 to 0.99 (20 models,
    8 benchmarks). A tau cannot be above 1: the interval is the part that can be. NaN as in `jackknife_interval`, which
    also says how to give many.
    """
    return corrected_ends(resampling.transformed_interval(observed, observed_left_out, "tau", sizes), ceiling)


def corrected_ends(observed: Bounds, ceiling: float | np.ndarray) -> Bounds:
    """Both ends of an interval of an observed tau as `noise_corrected_tau` has them, the part that a tau can be: an end
    beyond the ceiling is 1 or -1. NaN where the ceiling is not above 0."""
    return Interval(*(2 / np.pi * np.arcsin(np.clip(_attenuation(end, ceiling), -1, 1)) for end in observed))


def _attenuation(observed: np.ndarray | float, ceiling: np.ndarray | float) -> np.ndarray:
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


class TausLeftOut(NamedTuple):
    """Observed taus of the whole table and then without each cluster, and their noise ceilings, of the whole table."""

    observed: np.ndarray
    ceiling: np.ndarray


def mean_tau_left_out(
    signs: ranking.PairSigns, expected: ExpectedSigns | None, pairs: np.ndarray, clusters: np.ndarray
) -> TausLeftOut:
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


def taus_left_out(
    signs: ranking.PairSigns, expected: ExpectedSigns | None, pairs: np.ndarray, clusters: np.ndarray
) -> TausLeftOut:
    """Taus by pair of benchmarks, (benchmark pairs, 1 + clusters) and (benchmark pairs,), as in `mean_tau_left_out`.

    Benchmarks are all columns, or those of `expected`; pairs in the order of `np.triu_indices` without the diagonal.
    NaN where a tau is undefined; without `expected` there are no ceilings: (0,).
    """
    tables = [taus[0] for taus, _ in tables_left_out(signs, expected, pairs[None], clusters)]
    return TausLeftOut(np.array(tables).T, limits_of(expected, pairs[None])[0])


def tables_left_out(
    signs: ranking.PairSigns, expected: ExpectedSigns | None, masks: np.ndarray, clusters: np.ndarray
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


def limits_of(expected: ExpectedSigns | None, masks: np.ndarray) -> np.ndarray:
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


# ----------------------------------------------------------------------------------------------------------------------
# The noise ceiling: how well benchmarks could agree if one latent order of the models held for all of them.

ROUNDS, DRAWS = 10, 64  # of correcting these quantiles where models lie in clumps, and tables simulated for it
CLUMPED = 19  # tables of normal abilities: one that is beyond all of them is so by chance in 5%
LEAST_LOWERED = 0.2  # over √models: how much lower a tau has to be with clumps
MOST_PAIRED = 100  # models: their 4,950 pairs say what tau noise leaves
KNOTS = 6  # quantiles of a benchmark's scores that say how it spreads the models
LEAST_CEILING = 0.05  # of tau: below it there is no signal to correct for noise
LEAST_CORRECTED = 5  # with fewer, tau takes so few values that correcting it is mostly chance
MANY_MODELS = 300  # from here on fewer tables are simulated: each averages over more pairs of models
SIGNS_AT_ONCE = 2**22  # signs of simulated tables that are counted together
IN_CACHE = 2**20  # of them, in one product of matrices


@dataclass(frozen=True)
class Ceiling:
    """Means over simulated tables in which one order holds for all benchmarks.

    `mean_tau` in [-1, 1]; `by_benchmark`: (k,) mean tau with the others; `tau_draws`: (draws,) mean taus by simulated
    table; `included`: (k,) mask of the benchmarks with standard errors on which models differ, the others taking no
    part (NaN in `by_benchmark`); `models`: number with a score on a benchmark that takes part; `by_pair`,
    `observed_by_pair`: (k, k) mean simulated and observed taus, NaN on the diagonal; `expected`: products of signs of
    the simulated tables, None where there is no ceiling.
    """

    mean_tau: float
    by_benchmark: np.ndarray
    tau_draws: np.ndarray
    included: np.ndarray
    models: int
    by_pair: np.ndarray
    observed_by_pair: np.ndarray
    expected: ExpectedSigns | None

    @property
    def observed(self) -> float:
        """Mean tau-b of the scores over the pairs of benchmarks that `mean_tau` is over."""
        return ranking.mean_over_pairs(self.observed_by_pair[np.ix_(self.included, self.included)])

    @property
    def above_zero(self) -> bool:
        """Whether `mean_tau` is at least 0.05 and more than 3 standard errors of the simulation above 0."""
        draws = self.tau_draws[np.isfinite(self.tau_draws)]
        return bool(len(draws) and self.mean_tau > max(LEAST_CEILING, 3 * draws.std() / np.sqrt(len(draws))))


def noise_ceiling(
    scores: np.ndarray, stderr: np.ndarray, rng: np.random.Generator, draws: int = 200, groups: np.ndarray | None = None
) -> Ceiling:
    """Simulate tables with one latent order and the observed benchmarks' own score distributions and noise.

    `scores`, `stderr`: (models, benchmarks), NaN where missing; more is better. The noise-free table is that of
    `latent_order_table`; normal noise of the standard error that belonged to the score is added, and the sum rounded as
    the benchmark's scores are (`grid_steps`). Cells that are missing stay missing. A missing standard error is taken as
    the root mean square of its benchmark's others. Only pairs of benchmarks with a tau in the scores themselves count,
    in each simulated table as in the observed mean.

    What remains between 1 and the ceiling is measurement error; what remains between the observed agreement
    and the ceiling is disagreement about the order (or dependence between the benchmarks' errors). The observed
    tau may be above the ceiling: noise in the observed table is one draw, so with one order it is in about half of all
    tables, and errors of benchmarks that share items are not independent. From 300 models on, fewer than `draws` tables
    are simulated, at least 20. `groups`: (pairs,) whole numbers from 0, in the order of `pair_signs`: what `expected`
    can be taken apart into; without, nothing.
    """
    is_used, k = _taking_part(scores, stderr), scores.shape[1]
    by_benchmark, no_pairs = np.full(k, np.nan), np.full((k, k), np.nan)
    if is_used.sum() < 2:
        return Ceiling(float("nan"), by_benchmark, np.full(0, np.nan), is_used, 0, no_pairs, no_pairs, None)
    scores, stderr = scores[:, is_used], stderr[:, is_used]
    observed = ranking.kendall_tau_matrix(ranking.pair_signs(scores))
    observed = np.where(np.eye(len(observed), dtype=bool), np.nan, observed)
    pairs, draws, latent = np.isfinite(observed), _affordable(draws, len(scores)), latent_order_table(scores, stderr)
    expected = _Expectation(np.isfinite(latent.truth), groups)
    tau_parts, grid_parts = [], []
    for tables in _simulated(latent, rng, draws, expected.at_once):
        tau = np.where(pairs, expected.add(tables), np.nan)
        tau_parts.append(resampling.mean_over_pairs_by_resample(tau))
        grid_parts.append(tau)
    taus, grids = np.concatenate(tau_parts), np.concatenate(grid_parts)
    by_benchmark[is_used] = ranking.finite_mean(ranking.finite_mean(grids, axis=2), axis=0)
    return Ceiling(
        mean_tau=ranking.finite_mean(taus),
        by_benchmark=by_benchmark,
        tau_draws=taus,
        included=is_used,
        models=int(np.isfinite(scores).any(axis=1).sum()),
        by_pair=_in_table(ranking.finite_mean(grids, axis=0), is_used),
        observed_by_pair=_in_table(observed, is_used),
        expected=expected.mean(draws, np.flatnonzero(is_used)),
    )


class ShareCeiling(NamedTuple):
    """Mean share of variance of the first component of simulated tables in which one order holds for all benchmarks, in
    [0, 1], NaN where there is none; and the (k,) mask of the benchmarks that take part, as in `Ceiling`."""

    first_component: float
    included: np.ndarray


def share_ceiling(scores: np.ndarray, stderr: np.ndarray, rng: np.random.Generator, draws: int = 200) -> ShareCeiling:
    """Of the tables that `noise_ceiling` simulates the first component's share, without any tau."""
    is_used, shares = _taking_part(scores, stderr), [np.full(0, np.nan)]
    if is_used.sum() >= 2:
        latent = latent_order_table(scores[:, is_used], stderr[:, is_used])
        draws, at_once = _affordable(draws, len(scores)), max(1, SIGNS_AT_ONCE // latent.truth.size)
        shares = [component_shares(tables)[:, 0] for tables in _simulated(latent, rng, draws, at_once)]
    return ShareCeiling(ranking.finite_mean(np.concatenate(shares)), is_used)


def _taking_part(scores: np.ndarray, stderr: np.ndarray) -> np.ndarray:
    """(k,) True for the benchmarks with a standard error on which two models differ."""
    is_known = np.isfinite(scores)
    highest, lowest = (
        np.where(is_known, scores, -np.inf).max(axis=0, initial=-np.inf),
        np.where(is_known, scores, np.inf).min(axis=0, initial=np.inf),
    )
    result: np.ndarray = (highest > lowest) & (is_known & np.isfinite(stderr)).any(axis=0)
    return result


def _affordable(draws: int, models: int) -> int:
    return max(20, int(draws * min(1.0, (MANY_MODELS / models) ** 2)))


def _in_table(values: np.ndarray, is_used: np.ndarray) -> np.ndarray:
    """(k, k) with `values` in the rows and columns of the `is_used` benchmarks, NaN elsewhere."""
    table = np.full((len(is_used), len(is_used)), np.nan)
    table[np.ix_(is_used, is_used)] = values
    return table


class _Expectation:
    """Taus of simulated tables, and sums of products of signs over them by group of pairs of models."""

    def __init__(self, is_known: np.ndarray, groups: np.ndarray | None):
        models, columns = is_known.shape
        self.first, self.second = np.triu_indices(models, 1)
        self.known = is_known[self.first] & is_known[self.second]
        self.all_known = bool(self.known.all())
        self.group = np.zeros(len(self.first), dtype=int) if groups is None else groups
        self.pairs = {group: np.flatnonzero(self.group == group) for group in np.unique(self.group)}
        self.at_once = max(1, SIGNS_AT_ONCE // max(1, self.known.size))  # tables
        self.product = np.zeros((int(self.group.max(initial=0)) + 1, columns, columns))
        self.untied = np.zeros(self.known.shape, dtype=np.int16)

    def add(self, tables: np.ndarray) -> np.ndarray:
        """(tables, k, k) tau-b of `tables` (tables, models, k), which count; sums of whole numbers, hence exact."""
        signs = self._signs(tables)
        is_untied = signs != 0
        self.untied += is_untied[:, 0] if len(tables) == 1 else is_untied.sum(axis=1, dtype=np.int16)
        product = np.zeros((len(tables), signs.shape[2], signs.shape[2]))
        untied = np.zeros_like(product)
        # whole numbers are exact in single precision up to 2^24
        step = max(1, min(IN_CACHE // max(1, signs[0].size), 2**24))
        for group, pairs in self.pairs.items():
            for start in range(0, len(pairs), step):
                part = pairs[start : start + step]
                is_known = None if self.all_known else self.known[part].astype(np.float32)
                for table, sign in enumerate(signs[part].transpose(1, 0, 2).astype(np.float32)):
                    product[table] += (own_product := sign.T @ sign)
                    self.product[group] += own_product
                    if is_known is not None:
                        untied[table] += np.abs(sign).T @ is_known
        if self.all_known:  # the square of a sign is 1 where a pair is not tied
            untied[:] = np.diagonal(product, axis1=1, axis2=2)[:, :, None]
        return ranking.ratio(product, np.sqrt(untied * untied.swapaxes(1, 2)))

    def _signs(self, tables: np.ndarray) -> np.ndarray:
        """(pairs, tables, k) in {-1, 0, 1}; 0 where unknown."""
        values = np.ascontiguousarray(np.nan_to_num(tables).transpose(1, 0, 2))
        signs, start = np.empty((len(self.first), *values.shape[1:]), dtype=np.int8), 0
        for model, value in enumerate(values[:-1]):
            part = slice(start, start := start + len(values) - 1 - model)
            later_values = values[model + 1 :]
            larger, smaller = value > later_values, value < later_values
            np.subtract(larger.view(np.int8), smaller.view(np.int8), out=signs[part])
        if not self.all_known:
            signs *= self.known[:, None]
        return signs

    def mean(self, draws: int, columns: np.ndarray) -> ExpectedSigns:
        """What the tables had on average, as sums."""
        return ExpectedSigns(self.product, self.untied, self.known, self.group, columns, draws)


class LatentOrder(NamedTuple):
    """Noise-free scores and standard errors, both (models, benchmarks), when one order holds for all benchmarks.

    `steps`: (benchmarks,) what scores are rounded to, 0 without one."""

    truth: np.ndarray
    noise: np.ndarray
    steps: np.ndarray


def latent_order_table(scores: np.ndarray, stderr: np.ndarray) -> LatentOrder:
    """The table of one order that is nearest to `scores`.

    That order, and how far apart models are in it, is the mean of the standardised scores, in which noise is least. On
    each benchmark it is mapped to scores of the benchmark's own distribution, by `KNOTS` of its quantiles, of the
    variance var(scores) - mean(stderr²) - step² / 12 (at least 0; the last is Sheppard's, for rounding to multiples of
    a step). Gaps between the sorted scores of one benchmark, noise and all, would be more uneven than the truth's, and
    taus from them too low: by 0.01 to 0.03 in six worlds, and by up to 0.2 where scores are rounded.

    One factor for all gaps is wrong where models lie in clumps: within these most of a gap is noise, between them
    nothing. There the quantiles are those with which the scores' own are expected, noise and all. That lowers the taus
    of other tables too, so it counts only if it lowers them by more than it does in each of `CLUMPED` tables of normal
    abilities with this noise (and by more than `LEAST_LOWERED` / √models, which spares most tables the drawing).
    """
    steps = grid_steps(scores)
    scaled, clumped, lowered = _with_clumps(scores, stderr, steps)
    if lowered <= LEAST_LOWERED / np.sqrt(len(scores)):
        return scaled
    abilities = np.random.default_rng(0).standard_normal((CLUMPED, len(scores), 1))
    spread, middle = (
        np.sqrt(ranking.finite_mean((scaled.truth - ranking.finite_mean(scaled.truth, axis=0)) ** 2, axis=0)),
        scores * 0,
    )
    for number, ability in enumerate(abilities):
        normal = scaled._replace(truth=middle + spread * ability)
        (table,) = next(_simulated(normal, np.random.default_rng(number), 1, 1))
        if _with_clumps(table, scaled.noise, steps)[2] >= lowered:
            return scaled
    return clumped


def _with_clumps(scores: np.ndarray, stderr: np.ndarray, steps: np.ndarray) -> tuple[LatentOrder, LatentOrder, float]:
    """The table of one order without clumps and with them, and how much lower the expected tau of the latter is."""
    scaled, clumped = (_one_order(scores, stderr, steps, rounds) for rounds in (0, ROUNDS))
    return scaled, clumped, _expected_tau(scaled) - _expected_tau(clumped)


def _one_order(scores: np.ndarray, stderr: np.ndarray, steps: np.ndarray, rounds: int) -> LatentOrder:
    """As `latent_order_table`, with `rounds` of correcting the quantiles by what noise is expected to make of them."""
    centred = scores - ranking.finite_mean(scores, axis=0)
    spread = np.sqrt(ranking.finite_mean(centred**2, axis=0))
    overall = ranking.finite_mean(centred / np.where(spread > 0, spread, np.nan), axis=1)
    truth, noise = np.full(scores.shape, np.nan), np.full(scores.shape, np.nan)
    draws = np.random.default_rng(0).standard_normal((DRAWS // 2, len(scores))) if rounds else np.empty((0, 0))
    for j, step in enumerate(steps):
        rows = np.flatnonzero(np.isfinite(scores[:, j]) & np.isfinite(overall))
        values, errors = scores[rows, j], stderr[rows, j]
        errors = np.where(np.isfinite(errors), errors, np.sqrt(np.nanmean(errors**2)))
        best_first = np.argsort(-overall[rows], kind="stable")
        noise[rows[best_first], j] = errors[np.argsort(-values, kind="stable")]
        spread_wanted = np.sqrt(max(0.0, values.var(ddof=min(1, len(rows) - 1)) - np.mean(errors**2) - step**2 / 12))
        quantiles = np.linspace(0, 1, min(KNOTS, len(rows)))
        quantiles_from, to = (
            np.quantile(overall[rows], quantiles),
            np.quantile(_spread_out(values, step), quantiles) - values.mean(),
        )
        apart = np.append(True, np.diff(quantiles_from) > 0)
        added = np.concatenate([draws, -draws])[:, : len(rows)] * noise[rows, j] if rounds else draws
        heights = to
        for turn in range(rounds + 1):
            mapped = np.interp(overall[rows], quantiles_from[apart], heights[apart])
            factor = spread_wanted / width if (width := mapped.std()) > 0 else 0.0
            placed, heights = factor * (mapped - mapped.mean()), factor * (heights - mapped.mean())
            if turn < rounds:
                expected = np.sort(placed + added, axis=1).mean(axis=0)
                expected_quantiles = np.interp(quantiles, np.linspace(0, 1, len(rows)), expected)
                heights = np.maximum.accumulate(heights + to - expected_quantiles)
        truth[rows, j] = values.mean() + placed
    return LatentOrder(truth, noise, steps)


def _expected_tau(latent: LatentOrder) -> float:
    """The mean tau over pairs of benchmarks that is expected with noise: of the products of 2 Φ(difference / its
    standard error) - 1 over pairs of models, of at most `MOST_PAIRED`."""
    models = slice(None, None, -(-len(latent.truth) // MOST_PAIRED))
    truth, variance = latent.truth[models], latent.noise[models] ** 2
    first, second = np.triu_indices(len(truth), 1)
    error = np.sqrt(variance[first] + variance[second])
    gap = truth[first] - truth[second]
    is_known = np.isfinite(gap)
    sure = np.where(is_known, np.sign(gap), 0.0)  # what is known without an error
    sure = np.where(is_known & (error > 0), 2 * stats.norm.cdf(gap / np.where(error > 0, error, 1.0)) - 1, sure)
    in_both = is_known.T.astype(float) @ is_known
    taus = ranking.ratio(sure.T @ sure, in_both)
    return float(ranking.finite_mean(taus[np.triu_indices(len(taus), 1)]))


def grid_steps(scores: np.ndarray) -> np.ndarray:
    """(k,) the step of which all differences of a benchmark's `scores` (models, k) are multiples, 0 without one.

    What scores are rounded to, or one item of those they are shares of: the greatest common divisor of the differences,
    unless it is as small as rounding errors are (1e-5 of their range). Where no two of at least `LEAST_CORRECTED`
    models have the same score, a step changes nothing, and few scores have a common divisor by chance: 0.
    """
    steps = np.zeros(scores.shape[1])
    for j, column in enumerate(scores.T):
        finite = column[np.isfinite(column)]
        gaps = np.diff(np.unique(finite))
        gaps = gaps[gaps > 1e-9 * gaps.sum()] if len(gaps) else gaps
        if len(finite) < LEAST_CORRECTED or len(gaps) + 1 == len(finite):
            continue
        step, span = 0.0, gaps.sum()
        for gap in gaps:
            small, large = sorted((step, float(gap)))
            while small > 1e-6 * span:
                small, large = sorted((abs(large - small * round(large / small)), small))
            step = large
        steps[j] = step if step > 1e-5 * span else 0.0
    return steps


def _spread_out(values: np.ndarray, step: float) -> np.ndarray:
    """`values`, equal ones evenly over the `step` that each was rounded from."""
    if not step:
        return values
    places = stats.rankdata(values, method="ordinal") - stats.rankdata(values, method="min")
    number = stats.rankdata(values, method="max") - stats.rankdata(values, method="min") + 1
    result: np.ndarray = values + step * ((places + 0.5) / number - 0.5)
    return result


def _simulated(latent: LatentOrder, rng: np.random.Generator, draws: int, at_once: int) -> Iterator[np.ndarray]:
    """`draws` tables (tables, models, k), at most `at_once` at a time: `latent` with noise, rounded to its steps."""
    for start in range(0, draws, at_once):
        noise = latent.noise * rng.standard_normal((min(at_once, draws - start), *latent.truth.shape))
        yield _rounded(latent.truth + noise, latent.steps)


def _rounded(tables: np.ndarray, steps: np.ndarray) -> np.ndarray:
    grid = np.where(steps > 0, steps, 1.0)
    return np.where(steps > 0, np.round(tables / grid) * grid, tables)


NORMAL = 19  # tables of normal abilities: half of the least of them is below what chance gives
LEAST_JUDGED = 8  # models, of which one may lie far from the others
FAR = 4.0  # robust standard deviations from the middle, as no model of normal abilities is


def in_clumps(scores: np.ndarray) -> bool:
    """Whether models lie in two or three clumps: within these, how far apart they are is hardly known, and so is the
    noise ceiling.

    Of the models' mean standardised scores, the share of the sum of squares that is left within the best two or three
    groups is less than half of the least one of `NORMAL` tables of normal abilities (population shares: .36 and .19).
    """
    standing = _standing(scores)
    standing = standing[np.isfinite(standing)]
    if len(standing) < LEAST_CORRECTED:
        return False
    normal = np.random.default_rng(0).standard_normal((NORMAL, len(standing)))
    least = np.min([_within_groups(abilities) for abilities in normal], axis=0)
    return bool((_within_groups(standing) < least / 2).any())


def far_models(scores: np.ndarray) -> np.ndarray:
    """(models,) True for those whose mean standardised score is more than `FAR` standard deviations, by the median of
    absolute deviations, from the median: the noise ceiling takes such a model for the scale of all, and is too low."""
    standing = _standing(scores)
    known = standing[np.isfinite(standing)]
    if len(known) < LEAST_JUDGED:
        return np.zeros(len(standing), dtype=bool)
    apart = np.abs(standing - np.median(known))
    middle = np.median(apart[np.isfinite(apart)]) / stats.norm.ppf(0.75)
    far: np.ndarray = (apart > FAR * middle) & (middle > 0)
    return far


def _standing(scores: np.ndarray) -> np.ndarray:
    """(models,) mean standardised scores over the benchmarks on which models differ; NaN for a model without any."""
    spread = np.sqrt(ranking.finite_mean((scores - ranking.finite_mean(scores, axis=0)) ** 2, axis=0))
    standing: np.ndarray = ranking.finite_mean(
        (scores - ranking.finite_mean(scores, axis=0)) / np.where(spread > 0, spread, np.nan), axis=1
    )
    return standing


def _within_groups(values: np.ndarray) -> np.ndarray:
    """(2,) shares of the sum of squares of `values` (n,) that are left within the best two groups, and three."""
    ordered = np.sort(values - values.mean())
    sums, squares = (np.append(0.0, np.cumsum(power)) for power in (ordered, ordered**2))
    first, second = np.triu_indices(len(ordered) - 1, 1)

    def within(start: np.ndarray | int, end: np.ndarray | int) -> np.ndarray:
        of_group: np.ndarray = squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / np.subtract(end, start)
        return of_group

    cut, n = np.arange(1, len(ordered)), len(ordered)
    two, (a, b) = within(0, cut) + within(cut, n), (first + 1, second + 1)
    three = within(0, a) + within(a, b) + within(b, n)
    shares: np.ndarray = np.array([two.min(), three.min()]) / max(squares[-1], 1e-300)
    return shares


def shown_ceiling(ceiling: Values, value: Values) -> Values:
    """A noise ceiling where a picture or a sentence may name it: NaN where it lies below the `value` that it is of.

    It counts the noise of each score as independent. Models that answer the same items share part of theirs, and so do
    benchmarks with items in common: the ceiling is then too low, and below the value it plainly bounds nothing. One
    that prints as the value does is not below it.
    """
    as_printed = np.round(np.asarray(ceiling), 2) >= np.round(np.asarray(value), 2)
    return np.where(as_printed, ceiling, np.nan)[()]  # type: ignore[return-value]
