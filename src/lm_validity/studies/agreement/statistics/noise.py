"""Noise of scores: the noise ceiling, and what one benchmark tells."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import stats

from lm_validity.statistics import Estimate, Interval
from lm_validity.studies.agreement.statistics import ranking, resampling
from lm_validity.studies.agreement.statistics.factors import component_shares

Values = TypeVar("Values", float, np.ndarray)

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

    `mean_tau` in [-1, 1]; `by_benchmark`: (k,) mean tau with the others; `included`: (k,) mask of the benchmarks with
    standard errors on which models differ, the others taking no part (NaN in `by_benchmark`); `models`: number with a
    score on a benchmark that takes part; `observed_by_pair`: (k, k) observed taus, NaN on the diagonal; `expected`:
    products of signs of the simulated tables, None where there is no ceiling; `above_zero`: whether `mean_tau` is at
    least 0.05 and more than 3 standard errors of the simulation above 0.
    """

    mean_tau: float
    by_benchmark: np.ndarray
    included: np.ndarray
    models: int
    observed_by_pair: np.ndarray
    expected: resampling.ExpectedSigns | None
    above_zero: bool

    @property
    def observed(self) -> float:
        """Mean tau-b of the scores over the pairs of benchmarks that `mean_tau` is over."""
        return ranking.mean_over_pairs(self.observed_by_pair[np.ix_(self.included, self.included)])


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
    by_benchmark, observed_by_pair = np.full(k, np.nan), np.full((k, k), np.nan)
    if is_used.sum() < 2:
        return Ceiling(float("nan"), by_benchmark, is_used, 0, observed_by_pair, None, above_zero=False)
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
    observed_by_pair[np.ix_(is_used, is_used)] = observed
    finite, mean = taus[np.isfinite(taus)], ranking.finite_mean(taus)
    above_zero = bool(len(finite) and mean > max(LEAST_CEILING, 3 * finite.std() / np.sqrt(len(finite))))
    models, columns = int(np.isfinite(scores).any(axis=1).sum()), np.flatnonzero(is_used)
    sums = expected.product, expected.untied, expected.known, expected.group
    signs = resampling.ExpectedSigns(*sums, columns, draws)
    return Ceiling(mean, by_benchmark, is_used, models, observed_by_pair, signs, above_zero)


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
    highest = np.where(is_known, scores, -np.inf).max(axis=0, initial=-np.inf)
    lowest = np.where(is_known, scores, np.inf).min(axis=0, initial=np.inf)
    return np.asarray((highest > lowest) & (is_known & np.isfinite(stderr)).any(axis=0))


def _affordable(draws: int, models: int) -> int:
    return max(20, int(draws * min(1.0, (MANY_MODELS / models) ** 2)))


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
    overall, (truth, noise) = _standing(scores), np.full((2, *scores.shape), np.nan)
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
    return np.asarray(values + step * ((places + 0.5) / number - 0.5))


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
    return np.asarray((apart > FAR * middle) & (middle > 0))


def _standing(scores: np.ndarray) -> np.ndarray:
    """(models,) mean standardised scores over the benchmarks on which models differ; NaN for a model without any."""
    centred = scores - ranking.finite_mean(scores, axis=0)
    spread = np.sqrt(ranking.finite_mean(centred**2, axis=0))
    return np.asarray(ranking.finite_mean(centred / np.where(spread > 0, spread, np.nan), axis=1))


def _within_groups(values: np.ndarray) -> np.ndarray:
    """(2,) shares of the sum of squares of `values` (n,) that are left within the best two groups, and three."""
    ordered = np.sort(values - values.mean())
    sums, squares = (np.append(0.0, np.cumsum(power)) for power in (ordered, ordered**2))
    first, second = np.triu_indices(len(ordered) - 1, 1)

    def within(start: np.ndarray | int, end: np.ndarray | int) -> np.ndarray:
        return np.asarray(squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / np.subtract(end, start))

    cut, n = np.arange(1, len(ordered)), len(ordered)
    two, (a, b) = within(0, cut) + within(cut, n), (first + 1, second + 1)
    three = within(0, a) + within(a, b) + within(b, n)
    return np.asarray(np.array([two.min(), three.min()]) / max(squares[-1], 1e-300))


def shown_ceiling(ceiling: Values, value: Values) -> Values:
    """A noise ceiling where a picture or a sentence may name it: NaN where it lies below the `value` that it is of.

    It counts the noise of each score as independent. Models that answer the same items share part of theirs, and so do
    benchmarks with items in common: the ceiling is then too low, and below the value it plainly bounds nothing. One
    that prints as the value does is not below it.
    """
    as_printed = np.round(np.asarray(ceiling), 2) >= np.round(np.asarray(value), 2)
    return np.where(as_printed, ceiling, np.nan)[()]  # type: ignore[return-value]


# ----------------------------------------------------------------------------------------------------------------------
# What one benchmark tells: its reliability, its agreement with the others, and which models it tells apart.

NONE = Interval(float("nan"), float("nan"))


def _by_pair(taus: np.ndarray, columns: int) -> np.ndarray:
    """(masks, columns, columns) from `taus` (masks, pairs of columns), NaN on the diagonal."""
    by_pair = np.full((len(taus), columns, columns), np.nan)
    first, second = np.triu_indices(columns, 1)
    by_pair[:, first, second] = by_pair[:, second, first] = taus
    return by_pair


LEAST_MODELS = 3


def reliability(scores: np.ndarray, stderr: np.ndarray) -> Estimate:
    """Share of the variance of `scores` (models,) that is no error of the items: 1 - mean(stderr²) / var(scores).

    Spearman's reliability of one benchmark, over the models with a score and a standard error; below 0 it counts as 0.
    The interval is a jackknife over models on the scale log(1 - reliability). It fails where one model is far from all
    others. NaN for fewer than 3 models, or scores without a spread.
    """
    is_known = np.isfinite(scores) & np.isfinite(stderr)
    values, errors = scores[is_known], stderr[is_known] ** 2
    if len(values) < LEAST_MODELS or np.ptp(values) == 0:
        return Estimate(float("nan"), NONE)
    share = errors.mean() / values.var(ddof=1)
    interval = NONE
    if share > 0 and len(values) > LEAST_MODELS:
        other_benchmarks = np.nonzero(~np.eye(len(values), dtype=bool))[1].reshape(len(values), -1)
        with np.errstate(divide="ignore"):
            left_out = errors[other_benchmarks].mean(axis=1) / values[other_benchmarks].var(axis=1, ddof=1)
            low, high = resampling.jackknife_interval(float(np.log(share)), np.log(left_out))
        interval = Interval(max(0.0, float(1 - np.exp(high))), max(0.0, float(1 - np.exp(low))))
    return Estimate(float(max(0.0, 1 - share)), interval)


def tau_with_others(scores: np.ndarray, in_range: np.ndarray) -> list[Estimate]:
    """Each benchmark's mean tau-b with the others over the pairs of models in the mask `in_range` (models, models).

    `scores`: (models, benchmarks), more is better, NaN where missing. The interval leaves out one model at a time
    (`transformed_interval`). NaN where no other benchmark has a tau, and without an interval where a model left out
    leaves none.
    """
    signs, models = ranking.pair_signs(scores), np.flatnonzero(in_range.any(axis=1))
    if len(models) < LEAST_MODELS:
        return [Estimate(float("nan"), NONE)] * scores.shape[1]
    masks = in_range[signs.first, signs.second][None]
    left_out = resampling.tables_left_out(signs, None, masks, np.arange(len(scores)))
    means = np.array([ranking.finite_mean(_by_pair(taus, scores.shape[1])[0], axis=1) for taus, _ in left_out])
    intervals = resampling.transformed_interval(means[0], np.ascontiguousarray(means[1:][models]).T, "tau")
    return [
        Estimate(float(tau), Interval(float(low), float(high)))
        for tau, low, high in zip(means[0], *intervals, strict=True)
    ]


def columns_against(scores: np.ndarray, assumed: np.ndarray) -> np.ndarray:
    """(k,) True for columns of `scores` (models, k) whose direction is `assumed` (k,) and that are on the other side of
    the first eigenvector of the matrix of taus than the columns whose direction is known, or than most."""
    tau = np.nan_to_num(ranking.kendall_tau_matrix(ranking.pair_signs(scores)))
    if not assumed.any() or len(tau) < 3:
        return np.zeros(len(tau), dtype=bool)
    side = np.linalg.eigh(tau)[1][:, -1]
    side_told = side[~assumed].sum() if (np.abs(side[~assumed]) > 1e-9).any() else np.sign(side).sum()
    return np.asarray(assumed & (side * (1.0 if side_told >= 0 else -1.0) < -1e-9))


def opposed_columns(scores: np.ndarray, against: np.ndarray) -> np.ndarray:
    """(k,) True for those of the columns `against` (k,) the others that would surely agree with them if they counted
    the other way: turned around, the mean tau with the others has an interval above 0 or, where it has none, is above
    0.5."""
    if not against.any():
        return against
    estimates = tau_with_others(scores * np.where(against, -1.0, 1.0), ~np.eye(len(scores), dtype=bool))
    surely = [
        estimate.interval.low > 0 if np.isfinite(estimate.interval.low) else estimate.value > 0.5
        for estimate in estimates
    ]
    return np.asarray(against & np.array(surely))


def ceiling_with_others(signs: ranking.PairSigns, expected: resampling.Expected, in_range: np.ndarray) -> np.ndarray:
    """(benchmarks,) each one's noise ceiling: its mean tau with the others if all ordered the models identically.

    Over the pairs of models in the mask `in_range` (models, models), from the `expected` signs of tables with one
    order. NaN for a benchmark without standard errors, and without `expected`.
    """
    ceilings = np.full(signs.sign.shape[1], np.nan)
    if expected is None:
        return ceilings
    limits = resampling.limits_of(expected, in_range[signs.first, signs.second][None])
    ceilings[expected.columns] = ranking.finite_mean(_by_pair(limits, len(expected.columns))[0], axis=1)
    return ceilings


# ----------------------------------------------------------------------------------------------------------------------
# Which pairs of models it tells apart, and how many items it would take.

POWER = float(stats.norm.ppf(0.975) + stats.norm.ppf(0.8))  # standard errors: found four times out of five at p < .05


def separated_shares(significant: np.ndarray, is_known: np.ndarray, in_range: np.ndarray) -> list[Estimate]:
    """Of each benchmark the share of the pairs of models in the mask `in_range` (models, models) that it separates.

    `significant`, `is_known`: (benchmarks, models, models), symmetric: whether a pair differs significantly, and
    whether that is known. Pairs that share a model are not independent. So the interval is that of Korn and Graubard
    (1998, Survey Methodology 24:193-201): Clopper and Pearson's with the number of independent pairs that has the
    jackknife's variance over models, at least half the models: so many pairs share none. Where all pairs are separated,
    or none is, there is no such variance, and the number is that of the models. It fails there if single models decide
    whether a pair is separated, whatever the other one. NaN for fewer than 3 models.
    """
    rows = [_separated(*of_benchmark, in_range) for of_benchmark in zip(significant, is_known, strict=True)]
    share, pairs, models, variance = np.reshape(rows, (-1, 4)).T
    enough = models >= LEAST_MODELS
    freedom = np.maximum(models, LEAST_MODELS) - 1
    independent = np.divide(share * (1 - share), variance, out=models.copy(), where=variance > 0)
    quantile = stats.norm.ppf(0.975) / stats.t.ppf(0.975, freedom)
    between = np.maximum(models / 2, np.minimum(independent * quantile**2, pairs))
    independent = np.where((share > 0) & (share < 1), between, independent)
    right, wrong = share * independent, (1 - share) * independent
    with np.errstate(invalid="ignore"):
        low = np.where(right > 0, stats.beta.ppf(0.025, right, wrong + 1), 0.0)
        high = np.where(wrong > 0, stats.beta.ppf(0.975, right + 1, wrong), 1.0)
    return [
        Estimate(float(value), Interval(float(least), float(most_pairs))) if some else Estimate(float("nan"), NONE)
        for value, least, most_pairs, some in zip(share, low, high, enough, strict=True)
    ]


def _separated(significant: np.ndarray, is_known: np.ndarray, in_range: np.ndarray) -> np.ndarray:
    """(4,) the share of the pairs that are separated, the numbers of pairs and of models, and the jackknife's variance
    of the share; share and variance are 0 for fewer than 3 models. All arguments (models, models)."""
    counted = is_known & in_range
    pairs_of_model = counted.sum(axis=1)
    pairs, models = int(pairs_of_model.sum()) // 2, int((pairs_of_model > 0).sum())
    if models < LEAST_MODELS:
        return np.array([0.0, pairs, models, 0.0])
    separated = (counted & significant).sum(axis=1)
    share = separated.sum() / 2 / pairs
    pairs_without = pairs - pairs_of_model
    left_out = np.divide(
        separated.sum() / 2 - separated, pairs_without, out=np.full(len(pairs_of_model), share), where=pairs_without > 0
    )[pairs_of_model > 0]
    variance = (models - 1) / models * ((left_out - left_out.mean()) ** 2).sum()
    return np.array([share, pairs, models, variance])


def smallest_difference(stderr: np.ndarray) -> float:
    """The difference of two scores that a test finds four times out of five: 2.8 · median of √(se_i² + se_j²).

    `stderr`: (models,). As though the two models had answered different items; a test paired over items sees smaller
    ones. NaN for fewer than 2 standard errors.
    """
    errors = stderr[np.isfinite(stderr)]
    if len(errors) < 2:
        return float("nan")
    first, second = np.triu_indices(len(errors), 1)
    return POWER * float(np.median(np.sqrt(errors[first] ** 2 + errors[second] ** 2)))


class TypicalDifference(NamedTuple):
    """The root mean square difference of two models without noise, and the mean variance of the noise."""

    difference: float
    noise: float


def typical_difference(scores: np.ndarray, stderr: np.ndarray, in_range: np.ndarray) -> TypicalDifference:
    """The typical true difference between two models of a pair: the root mean square of scores' differences, less
    noise.

    `scores`, `stderr`: (models,), NaN where unknown; `in_range`: (models, models) mask of the pairs. The noise of a
    pair is se_i² + se_j², and its mean is taken off the mean square. 0 where noise is all there is; NaN without a pair
    that has scores and standard errors.
    """
    first, second = np.nonzero(np.triu(in_range, 1))
    square, noise = (scores[first] - scores[second]) ** 2, stderr[first] ** 2 + stderr[second] ** 2
    is_known = np.isfinite(square) & np.isfinite(noise)
    if not is_known.any():
        return TypicalDifference(float("nan"), float("nan"))
    mean_noise = float(noise[is_known].mean())
    return TypicalDifference(float(np.sqrt(max(0.0, float(square[is_known].mean()) - mean_noise))), mean_noise)


def items_needed(items: float, difference: float, noise: float, training: float = 0.0) -> float:
    """Items with which a test finds `difference` four times out of five, from `items` and the noise of a pair there.

    `training`: variance of the difference that no item takes away. Infinite where it alone hides the difference.
    """
    room = difference**2 / POWER**2 - training
    return items * noise / room if room > 0 else float("inf")
