"""Kendall's tau between rankings, over all pairs of models and over significant differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from scipy.stats import rankdata

from lm_validity.config.sections import Screening
from lm_validity.statistics import cluster_codes

# ----------------------------------------------------------------------------------------------------------------------
# Means that leave missing values out, without numpy's warnings where nothing is left.


@overload
def finite_mean(values: np.ndarray, axis: None = None) -> float: ...
@overload
def finite_mean(values: np.ndarray, axis: int) -> np.ndarray: ...
def finite_mean(values: np.ndarray, axis: int | None = None) -> np.ndarray | float:
    """Mean of the finite values along `axis` (all by default), NaN where there is none."""
    finite = np.isfinite(values)
    mean = ratio(np.where(finite, values, 0.0).sum(axis=axis), finite.sum(axis=axis))
    return mean if mean.ndim else float(mean)


def ratio(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """`part` over `total`, NaN where that is not above 0."""
    return np.asarray(np.divide(part, total, out=np.full(np.shape(part), np.nan), where=np.asarray(total) > 0))


def finite_quantile(values: np.ndarray, levels: list[float]) -> np.ndarray:
    """(levels, ...) quantiles of the finite values along the first axis, NaN where there is none."""
    has_value = np.isfinite(values).any(axis=0)
    quantiles = np.nanquantile(np.where(has_value, values, 0.0), levels, axis=0)
    return np.where(has_value, quantiles, np.nan)


def known_in_all(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays, all of one shape, with NaN wherever one of them is not finite."""
    is_known = np.logical_and.reduce([np.isfinite(values) for values in arrays.values()])
    return {name: np.where(is_known, values, np.nan) for name, values in arrays.items()}


def fewest_in_common(scores: np.ndarray) -> float:
    """The smallest share of the models, in [0, 1], that two benchmarks of `scores` (models, benchmarks) share."""
    is_known = np.isfinite(scores).astype(float)
    return float((is_known.T @ is_known).min() / len(scores)) if is_known.size else 0.0


# ----------------------------------------------------------------------------------------------------------------------
# Rank correlation of many score columns at once, with ties, missing values and resampling weights.


class PairSigns(NamedTuple):
    """Which model of each pair is better, by column.

    `sign`: (pairs, columns) in {-1, 0, 1}, 0 where tied or unknown. `known`: (pairs, columns), 1 where both
    models have a score. `first`, `second`: (pairs,) indices of the pair's models, first < second.
    """

    sign: np.ndarray
    known: np.ndarray
    first: np.ndarray
    second: np.ndarray


def pair_signs(scores: np.ndarray) -> PairSigns:
    """Signs of all pairwise differences of `scores` (models, columns), NaN where missing; ties are equal floats."""
    first, second = np.triu_indices(len(scores), 1)
    difference, start = np.empty((len(first), scores.shape[1])), 0
    for model, score in enumerate(scores[:-1]):
        part = slice(start, start := start + len(scores) - 1 - model)
        np.subtract(score, scores[model + 1 :], out=difference[part])
    if np.isfinite(scores).all():
        return PairSigns(np.sign(difference, out=difference), _ones(difference.shape), first, second)
    is_known = np.isfinite(difference)
    sign = np.sign(np.where(is_known, difference, 0.0))
    return PairSigns(sign, is_known.astype(float), first, second)


def _ones(shape: tuple[int, ...]) -> np.ndarray:
    """Ones that take no memory and cannot be written to."""
    return np.broadcast_to(1.0, shape)


def kendall_tau_matrix(signs: PairSigns, other_signs: PairSigns | None = None) -> np.ndarray:
    """Kendall's tau-b between all columns: a (columns, columns of `other_signs`) array, or of `signs` by default.

    With a, b the signs of a pair of models i < j in two columns, over the pairs known in both,

        tau = sum a b / sqrt(sum a² · sum b²)

    (Kendall 1945): `scipy.stats.kendalltau`'s of the models known in both columns. `resampled_kendall_tau` is the same
    over many resamples. NaN where a column has no untied pair among those known in both.
    """
    other_signs = signs if other_signs is None else other_signs
    product = signs.sign.T @ other_signs.sign
    if signs.known.all() and other_signs.known.all():
        scale = np.sqrt(np.outer(*(np.abs(pairs_signs.sign).sum(axis=0) for pairs_signs in (signs, other_signs))))
    else:
        scale = np.sqrt((np.abs(signs.sign).T @ other_signs.known) * (signs.known.T @ np.abs(other_signs.sign)))
    return ratio(product, scale)


def kendall_tau(x: np.ndarray, y: np.ndarray) -> float:
    """tau-b of two score vectors (models,); models missing in either are left out; NaN where undefined."""
    return float(kendall_tau_matrix(pair_signs(np.column_stack([x, y])))[0, 1])


def average_ranks(scores: np.ndarray) -> np.ndarray:
    """Ranks down the columns of `scores` (models, columns), 1 = highest, ties averaged; NaN stays NaN."""
    return rankdata(-np.asarray(scores, dtype=float), axis=0, nan_policy="omit")


SOME_COLUMNS = 100  # up to so many, products of two columns are summed over all pairs of models at once


class _Compared(NamedTuple):
    """What `resampled_kendall_tau` sums of the `columns` that have an untied pair: their signs, (pairs, columns), which
    of them are untied, the distinct columns of known pairs, (pairs, kinds), and which of these each column has."""

    columns: np.ndarray
    sign: np.ndarray
    untied: np.ndarray
    is_known: np.ndarray
    kind: np.ndarray

    @classmethod
    def of(cls, signs: PairSigns, dtype: type) -> "_Compared":
        """What is summed of these signs, in numbers of this type."""
        columns = np.flatnonzero(signs.sign.any(axis=0))
        kind, first_of_kind = np.zeros(len(columns), dtype=int), columns[:1]
        if not signs.known.all():
            numbers: dict[bytes, int] = {}
            packed = np.packbits(signs.known[:, columns] > 0, axis=0).T
            kind = np.array([numbers.setdefault(column.tobytes(), len(numbers)) for column in packed], dtype=int)
            first_of_kind = columns[np.unique(kind, return_index=True)[1]]
        sign: np.ndarray = signs.sign[:, columns].astype(dtype)
        return cls(columns, sign, np.abs(sign), signs.known[:, first_of_kind].astype(dtype), kind)


def resampled_kendall_tau(signs: PairSigns, weights: np.ndarray, other_signs: PairSigns | None = None) -> np.ndarray:
    """`kendall_tau_matrix` (tau-b) of many resamples at once: (resamples, columns, columns of `other_signs`).

    `weights`: (resamples, models) multiplicities, whole numbers. A pair of models weighs w_i w_j. Sums of whole numbers
    are exact in single precision up to 4,096 models, above which they are taken in double precision.
    """
    dtype = np.float32 if weights.shape[1] <= 4096 else np.float64
    weights, rows = np.asarray(weights, dtype=dtype), _Compared.of(signs, dtype)
    columns = rows if other_signs is None else _Compared.of(other_signs, dtype)
    shape = signs.sign.shape[1], (other_signs or signs).sign.shape[1]
    tau = np.full((len(weights), *shape), np.nan)
    if not (len(rows.columns) and len(columns.columns)):
        return tau
    sums = _sums_by_products if max(shape) <= SOME_COLUMNS else _sums_by_resample
    product = sums(signs, weights, rows.sign, columns.sign)
    if rows is columns and not rows.kind.any():  # the square of a sign is 1 where a pair is not tied
        of_rows = of_columns = np.diagonal(product, axis1=1, axis2=2)[..., None]
    else:  # untied pairs of a column among those known in the other one
        of_rows = sums(signs, weights, rows.untied, columns.is_known)
        of_columns = of_rows if rows is columns else sums(signs, weights, columns.untied, rows.is_known)
    places = np.ix_(rows.columns, columns.columns)
    for resample, (total, row_untied, column_untied) in enumerate(zip(product, of_rows, of_columns, strict=True)):
        squares = row_untied[:, columns.kind].astype(float) * column_untied[:, rows.kind].T.astype(float)
        tau[resample][places] = ratio(total.astype(float), np.sqrt(squares))
    return tau


def _sums_by_products(signs: PairSigns, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """As `_sums_by_resample`, all resamples at once: weights of pairs of models times products of two columns."""
    columns, sums = (x.shape[1], y.shape[1]), np.zeros((len(weights), x.shape[1], y.shape[1]), dtype=weights.dtype)
    a, b = np.triu_indices(columns[0]) if y is x else (part.ravel() for part in np.indices(columns))
    total = np.zeros((len(weights), len(a)), dtype=weights.dtype)
    of_models = np.ascontiguousarray(weights.T)  # whose rows are read as they lie in memory
    # pairs at a time, so that their weights stay in the cache, and their products in memory
    step = max(1, min(2**21 // max(len(weights), 1), 2**23 // max(len(a), 1)))
    for start in range(0, len(signs.first), step):
        part = slice(start, start + step)
        weight = (of_models[signs.first[part]] * of_models[signs.second[part]]).T
        total += weight @ (x[part][:, a] * y[part][:, b])
    sums[:, a, b] = total
    if y is x:
        sums[:, b, a] = total
    return sums


def _sums_by_resample(signs: PairSigns, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(resamples, columns of x, columns of y) sums of products of `x` and `y`, (pairs, columns) both, over the weighted
    pairs of models. Those of models that a resample leaves out, more than a third of all, are left out: 6 in 10. Those
    of equal weight are multiplied together: where `y` is `x` that takes half as long."""
    sums = np.zeros((len(weights), x.shape[1], y.shape[1]), dtype=weights.dtype)
    for weight, total in zip(weights, sums, strict=True):
        of_pairs = (weight[signs.first] * weight[signs.second]).astype(np.int64)
        for level in np.flatnonzero(np.bincount(of_pairs)):
            if level:
                pairs = np.flatnonzero(of_pairs == level)
                x_drawn = x[pairs]
                total += weight.dtype.type(level) * (x_drawn.T @ (x_drawn if y is x else y[pairs]))
    return sums


# ----------------------------------------------------------------------------------------------------------------------
# Ranking agreement between benchmarks: means of a matrix of taus over all pairs and over sets of pairs.


def mean_by_category(tau: np.ndarray, categories: Sequence[str | None]) -> dict[tuple[str, str], float]:
    """By pair of `categories` (k,) the mean of `tau` (k, k) within it, over unordered pairs, or between the two. NaN is
    left out, and there is none without a pair; a benchmark without a category is in none."""
    names = dict.fromkeys(name for name in categories if name is not None)
    members = {name: [i for i, category in enumerate(categories) if category == name] for name in names}
    return {
        (a, b): mean_over_pairs(tau[np.ix_(rows, rows)]) if a == b else finite_mean(tau[np.ix_(rows, columns)])
        for a, rows in members.items()
        for b, columns in members.items()
    }


def mean_over_pairs(tau: np.ndarray) -> float:
    """Mean over the unordered pairs a < b of `tau` (k, k), NaN left out; NaN without any pair."""
    return finite_mean(tau[np.triu_indices(len(tau), 1)])


def mean_with_others(tau: np.ndarray) -> np.ndarray:
    """(k,) mean of each row of `tau` (k, k) without its diagonal, NaN left out."""
    return finite_mean(np.where(np.eye(len(tau), dtype=bool), np.nan, tau), axis=1)


def standardize(scores: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and standard deviation 1 over their known cells; constant columns become 0."""
    centered = scores - finite_mean(scores, axis=0)
    spread = np.sqrt(finite_mean(centered**2, axis=0))
    return np.asarray(centered / np.where(spread > 1e-12, spread, 1.0))


def one_with_others(scores: np.ndarray) -> np.ndarray:
    """(1 + models,) mean tau-b of a benchmark with the mean standardised score on the others; then without each model.

    `scores`: (models, benchmarks), more is better, NaN where missing. Without a model its pairs are left out, the
    standardisation stays. NaN where undefined.
    """
    standardized = standardize(scores)
    is_known = np.isfinite(standardized)
    values = np.where(is_known, standardized, 0.0)
    total, count = values.sum(axis=1, keepdims=True), is_known.sum(axis=1, keepdims=True)
    single, remaining_signs = pair_signs(standardized), pair_signs(ratio(total - values, count - is_known))
    models = len(scores)

    def totals(by_pair: np.ndarray) -> np.ndarray:
        own_totals = [
            np.bincount(single.first, column, models) + np.bincount(single.second, column, models)
            for column in by_pair.T
        ]
        whole_totals = by_pair.sum(axis=0)
        return np.vstack([whole_totals, whole_totals - np.array(own_totals).T])

    untied, untied_of_others = (
        totals(np.abs(single.sign) * remaining_signs.known),
        totals(single.known * np.abs(remaining_signs.sign)),
    )
    return finite_mean(
        ratio(totals(single.sign * remaining_signs.sign), np.sqrt(np.round(untied) * np.round(untied_of_others))),
        axis=1,
    )


class ImprovedPairs(NamedTuple):
    """How many pairs of columns have a strictly greater tau afterwards, of those compared: with a tau in both."""

    improved: int
    compared: int


def improved_pairs(tau_before: np.ndarray, tau_after: np.ndarray) -> ImprovedPairs:
    """Over the pairs a < b of two (k, k) matrices."""
    upper = np.triu_indices(len(tau_before), 1)
    difference = tau_after[upper] - tau_before[upper]
    return ImprovedPairs(int((difference > 0).sum()), int(np.isfinite(difference).sum()))


@dataclass(frozen=True)
class PerplexityAgreement:
    """Rank agreement of perplexity corpora with benchmarks; all taus in [-1, 1], NaN where undefined.

    `corpus_benchmark`: (corpora, benchmarks) taus; `corpus_corpus`: (corpora, corpora) taus;
    `average_average`: tau of the mean score over corpora with the mean score over benchmarks, over
    `complete_models` models that have all of them; `models`: number with a score on at least one corpus.
    """

    corpus_benchmark: np.ndarray
    corpus_corpus: np.ndarray
    average_average: float
    models: int
    complete_models: int


def perplexity_agreement(corpora: np.ndarray, benchmarks: np.ndarray) -> PerplexityAgreement:
    """Agreement of `corpora` (models, corpora) with `benchmarks` (models, benchmarks), both oriented: more is better.

    The averages are of raw scores (bits per byte; accuracies): the only one of the obvious conventions that
    gives the paper's 0.55 and 0.84.
    """
    corpus_signs, benchmark_signs = pair_signs(corpora), pair_signs(benchmarks)
    complete = np.isfinite(corpora).all(axis=1) & np.isfinite(benchmarks).all(axis=1)
    average = float("nan")
    if complete.sum() >= 3 and corpora.shape[1] and benchmarks.shape[1]:
        average = kendall_tau(corpora[complete].mean(axis=1), benchmarks[complete].mean(axis=1))
    return PerplexityAgreement(
        corpus_benchmark=kendall_tau_matrix(corpus_signs, other_signs=benchmark_signs),
        corpus_corpus=kendall_tau_matrix(corpus_signs),
        average_average=average,
        models=int(np.isfinite(corpora).any(axis=1).sum()),
        complete_models=int(complete.sum()),
    )


# ----------------------------------------------------------------------------------------------------------------------
# Differences that the standard errors can tell apart, and rank agreement that counts no others.

Z_95 = 1.96  # the paper's two-sided 95% threshold of a normal difference


def significant_signs(scores: np.ndarray, stderr: np.ndarray) -> PairSigns:
    """Signs of the significant differences of each column: 0 where |s_i - s_j| <= 1.96 sqrt(se_i² + se_j²).

    `scores`, `stderr`: (models, columns). A pair with both standard errors 0 is never significant (they
    come from degenerate predictions, not from certainty). Pairs where a score or standard error is missing
    are not known. Note that "not significantly different" is not transitive, so these are not the ties of a
    ranking; tau-b of the pairs (`kendall_tau_matrix`) is still sum ab / sqrt(sum a² sum b²).
    """
    signs = pair_signs(scores)
    variance = stderr[signs.first] ** 2 + stderr[signs.second] ** 2
    is_known = np.isfinite(variance) & (signs.known > 0)
    difference = np.abs(scores[signs.first] - scores[signs.second])
    significant = is_known & (variance > 0) & (difference > Z_95 * np.sqrt(variance))
    known_pairs = _ones(is_known.shape) if is_known.all() else is_known.astype(float)
    return PairSigns(np.where(significant, signs.sign, 0.0), known_pairs, signs.first, signs.second)


# ----------------------------------------------------------------------------------------------------------------------
# Significance of the difference of two models on the same test items.


def paired_signs(correct: np.ndarray, z: float = Z_95, clusters: np.ndarray | None = None) -> PairSigns:
    """Signs of the significant differences of one benchmark, paired over its items: a single column.

    `correct`: (models, items) each item's value of the metric, NaN where a model has no such item. With d
    the differences of two models on the items that both have, the pair is significant where

        |sum d| / sqrt(sum d²) > z

    which for right-or-wrong items is McNemar's test without continuity correction, (b - c) / sqrt(b + c), b
    and c the numbers of items that only one of the two gets right (McNemar 1947), and for graded items its
    score-test form. Models that answer all common items alike are never significant. Pairs without a common
    item are not known.

    `clusters`: (items,) labels, such as the subjects of a benchmark. With at least 10 of them, fewer than items, d is a
    cluster's sum: McNemar's test for clustered items (Durkalski et al. 2003, Statistics in Medicine 22:2417, with
    clusters weighted by their items). It speaks for new clusters too, and takes clusters as independent.
    """
    codes = cluster_codes(clusters)
    if codes is not None:
        return _clustered_signs(correct, z, codes)
    is_known = np.isfinite(correct)
    values = np.where(is_known, correct, 0.0)
    is_known = is_known.astype(float)
    total = values @ is_known.T  # [i, j]: sum of i's values over the items that j has too
    square = (values**2) @ is_known.T
    first, second = np.triu_indices(len(correct), 1)
    difference = (total - total.T)[first, second]
    spread = (square + square.T - 2 * values @ values.T)[first, second]
    return PairSigns(*_decided(difference, spread, (is_known @ is_known.T)[first, second] > 0, z), first, second)


def _clustered_signs(correct: np.ndarray, z: float, codes: np.ndarray) -> PairSigns:
    """As `paired_signs`, with the sums of d over the items of each cluster in the place of d."""
    first, second = np.triu_indices(len(correct), 1)
    difference, spread, common = np.zeros((3, len(first)))
    for cluster in range(int(codes.max()) + 1):
        part = correct[:, codes == cluster]
        is_known = np.isfinite(part).astype(float)
        total = np.where(is_known > 0, part, 0.0) @ is_known.T
        own_differences = (total - total.T)[first, second]
        difference += own_differences
        spread += own_differences**2
        common += (is_known @ is_known.T)[first, second]
    return PairSigns(*_decided(difference, spread, common > 0, z), first, second)


def _decided(difference: np.ndarray, spread: np.ndarray, common: np.ndarray, z: float) -> tuple[np.ndarray, np.ndarray]:
    """Signs and known pairs (pairs, 1), significant where |difference| > z √spread; all sums by pair of models."""
    significant = common & (spread > 1e-12) & (np.abs(difference) > z * np.sqrt(np.maximum(spread, 0.0)))
    return np.where(significant, np.sign(difference), 0.0)[:, None], common.astype(float)[:, None]


def replace_column(signs: PairSigns, column: int, replacement: PairSigns) -> PairSigns:
    """`signs` with one column taken from a single-column `replacement` where that knows the pair."""
    is_known = replacement.known[:, 0] > 0
    sign, known_matrix = signs.sign.copy(), signs.known.copy()
    sign[is_known, column] = replacement.sign[is_known, 0]
    known_matrix[is_known, column] = 1.0
    return PairSigns(sign, known_matrix, signs.first, signs.second)


# ----------------------------------------------------------------------------------------------------------------------
# Which candidate benchmarks can serve in a train-before-test study: three rules, one after the other.
#
# The rules are those by which the 24 benchmarks of the published study were chosen from 37 (Train-before-Test, appendix
# A.1): enough training examples; fine-tuning helps most models; the direct ranking is not the reverse of all others'.


@dataclass(frozen=True)
class Screened:
    """Arrays over the k candidates; NaN where unknown.

    models: with both scores. unimproved: of these, with a train-before-test score not above the direct one.
    eligible, negative: number of other benchmarks that pass the first two rules, and of those with a negative tau to
    the candidate. mean_tau: over the eligible ones, of direct rankings. reasons: why it leaves, by the first rule that
    it fails; None where it stays.
    """

    models: np.ndarray
    unimproved: np.ndarray
    eligible: np.ndarray
    negative: np.ndarray
    mean_tau: np.ndarray
    reasons: tuple[str | None, ...]


def screen_benchmarks(direct: np.ndarray, trained: np.ndarray, examples: np.ndarray, thresholds: Screening) -> Screened:
    """Apply the rules to (models, candidates) arrays of scores of which more is better, NaN where missing.

    `examples`: for training (candidates,), NaN where unknown. What is unknown excludes nothing. Agreement is Kendall's
    tau-b of direct scores with each other candidate that passes the first two rules.
    """
    has_both = np.isfinite(direct) & np.isfinite(trained)
    models, unimproved = has_both.sum(axis=0), (has_both & ~(trained > direct)).sum(axis=0)
    too_few = examples < thresholds.training_examples
    unmoved = unimproved > thresholds.unimproved_share * models
    tau = kendall_tau_matrix(pair_signs(direct))
    counted = np.isfinite(tau) & (~too_few & ~unmoved)[:, None] & ~np.eye(len(tau), dtype=bool)
    eligible, negative = counted.sum(axis=0), (counted & (tau < 0)).sum(axis=0)
    reasons: list[str | None] = []
    for column in range(direct.shape[1]):
        reason = None
        if too_few[column]:
            reason = f"{examples[column]:.0f} training examples, fewer than {thresholds.training_examples}"
        elif unmoved[column]:
            reason = f"no improvement in {unimproved[column]} of {models[column]} models"
        elif negative[column] > thresholds.negative_share * eligible[column]:
            reason = f"negative agreement with {negative[column]} of {eligible[column]} other benchmarks"
        reasons.append(reason)
    return Screened(
        models, unimproved, eligible, negative, finite_mean(np.where(counted, tau, np.nan), axis=0), tuple(reasons)
    )
