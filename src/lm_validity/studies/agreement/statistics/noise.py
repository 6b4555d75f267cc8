"""Noise of scores: components of variance, agreement corrected for noise, and what one benchmark tells apart."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import sparse, stats

from lm_validity.studies.agreement.statistics.ranking import PairSigns, finite_mean, mean_over_pairs
from lm_validity.studies.agreement.statistics.resampling import Interval

PRINTED = 0.01  # the step of taus and shares as pages print them
Values = TypeVar("Values", float, np.ndarray)

# ----------------------------------------------------------------------------------------------------------------------
# Where the variance of scores comes from, and how reliable a mean over benchmarks, items or seeds is.


@dataclass(frozen=True)
class VarianceComponents:
    """Components of the variance of standardised scores: 1 is the variance of the models on one benchmark.

    `model`: differences that hold on all benchmarks; `model_benchmark`: those that hold on one benchmark only, whatever
    its items, seeds and prompts; `item`, `seed`, `prompt`, `training`: measurement error of one score, of its items, of
    a repeated fine-tune, of the prompt and of training the model again (NaN where it was not measured, and then within
    `model_benchmark`). `reliability`: of the
    mean over `benchmarks` benchmarks for an order of models, Eρ² in Cronbach's notation. Estimates below 0 are set to
    0; `raw_model`, `raw_model_benchmark` are as estimated.
    """

    model: float
    model_benchmark: float
    item: float
    seed: float
    prompt: float
    training: float
    reliability: float
    raw_model: float
    raw_model_benchmark: float
    benchmarks: int


def variance_components(
    scores: np.ndarray,
    item_error: np.ndarray,
    seed_error: np.ndarray,
    prompt_error: np.ndarray | None = None,
    training_error: np.ndarray | None = None,
) -> VarianceComponents:
    """A generalisability study (Cronbach et al. 1972; Brennan 2001) of models × benchmarks, both random.

    `scores`: (models, benchmarks), more is better; `item_error`, `seed_error`: (models, benchmarks) standard errors of
    the scores from their items and from the seeds that were averaged, NaN where unknown; `prompt_error`: (benchmarks,)
    standard deviation of a model's score over prompts, less what a prompt does to all models; `training_error`:
    (models, benchmarks) that of a score between trainings of one model, as if independent between benchmarks. Each is
    standardised over its models, so that benchmarks of different spread weigh alike and the component of benchmarks
    is 0. With the mean squares of models and of the residual,

        model = (MS_model - MS_residual) / k,   model_benchmark = MS_residual - item - seed - prompt - training

    these being mean squared errors in units of the benchmark's variance. A difference of mean squares
    may be below 0 and is then set to 0 (Brennan 2001, section 3.4): the component is too small to be seen, or the
    standard errors are too large. Over the models that have
    every benchmark, benchmarks that are constant among these left out. It assumes that models are exchangeable;
    families make `model` larger than it is between models of one family. NaN for fewer than 3 models or 2 benchmarks.
    """
    complete = np.isfinite(scores).all(axis=1)
    values = scores[complete]
    nan = float("nan")
    nothing = VarianceComponents(nan, nan, nan, nan, nan, nan, nan, nan, nan, benchmarks=0)
    if len(values) < 3:
        return nothing
    spread = values.std(axis=0)
    varied = spread > 1e-12 * np.maximum(np.abs(values).max(axis=0), 1e-300)
    if varied.sum() < 2:
        return nothing
    z = (values[:, varied] - values[:, varied].mean(axis=0)) / spread[varied]
    models, benchmarks = z.shape
    means = z.mean(axis=1, keepdims=True)
    between = benchmarks * float(means.var(ddof=1))
    residual = float(((z - means) ** 2).sum() / ((models - 1) * (benchmarks - 1)))
    nothing_known = np.full(scores.shape, np.nan)
    item, seed, training = (
        float(finite_mean((error[complete][:, varied] / spread[varied]) ** 2))
        for error in (item_error, seed_error, nothing_known if training_error is None else training_error)
    )
    over_prompts = np.full(len(spread), np.nan) if prompt_error is None else prompt_error
    prompt = float(finite_mean((over_prompts[varied] / spread[varied]) ** 2))
    raw_model = (between - residual) / benchmarks
    raw_model_benchmark = float(residual - np.nansum([item, seed, prompt, training]))
    model = max(raw_model, 0.0)
    return VarianceComponents(
        model=model,
        model_benchmark=max(raw_model_benchmark, 0.0),
        item=item,
        seed=seed,
        prompt=prompt,
        training=training,
        reliability=model / (model + residual / benchmarks),
        raw_model=raw_model,
        raw_model_benchmark=raw_model_benchmark,
        benchmarks=benchmarks,
    )


def reliability_of(
    components: VarianceComponents, benchmarks: float, items: float = 1.0, seeds: float = 1.0, prompts: float = 1.0
) -> float:
    """A decision study: Eρ² of a mean over `benchmarks` benchmarks with `items` times the items, likewise the others.

        Eρ² = model / (model + (model_benchmark + item / items + seed / seeds + prompt / prompts) / benchmarks)

    in [0, 1]; components that were not measured stay within model_benchmark. Each model has one training, whose noise
    is added to these.
    """
    parts = (components.item / items, components.seed / seeds, components.prompt / prompts, components.training)
    error = (components.model_benchmark + sum(part for part in parts if np.isfinite(part))) / benchmarks
    model = components.model
    return model / (model + error) if model + error > 0 else float("nan")


# ----------------------------------------------------------------------------------------------------------------------
# Rank agreement with measurement error taken out, and intervals by leaving out clusters of models.

LEAST_CLUSTERS = 3  # with two, a t quantile of 12.7 says nothing
MOST_IN_ONE = 0.5  # of all units; a cluster that holds more is no draw from clusters like it
AT_ONCE = 2**19  # numbers, of pairs of models by pairs of benchmarks, that are summed together


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
    observed: float, ceiling: float, observed_left_out: np.ndarray, sizes: np.ndarray | None = None
) -> Interval[float]:
    """Interval of `noise_corrected_tau`: that of the observed tau (`transformed_interval`), both ends corrected.

    `observed_left_out`: taus without each cluster, of `sizes` models. The ceiling is that of the whole table. Its own
    error mostly moves with that of the tau, so leaving it out makes the interval rather too wide. A jackknife of the
    corrected correlation itself covered 0.92 to 0.95 of simulated truths at 95%, this interval 0.94 to 0.99 (20 models,
    8 benchmarks). A tau cannot be above 1: the interval is the part that can be. NaN as in `jackknife_interval`.
    """
    low, high = (
        np.clip(_attenuation(end, ceiling), -1, 1)
        for end in transformed_interval(observed, observed_left_out, "tau", sizes)
    )
    return Interval(float(2 / np.pi * np.arcsin(low)), float(2 / np.pi * np.arcsin(high)))


def _attenuation(observed: np.ndarray | float, ceiling: np.ndarray | float) -> Any:
    ceiling = np.where(np.asarray(ceiling) > 0, ceiling, np.nan)
    return (np.sin(np.pi * np.asarray(observed) / 2) / np.sin(np.pi * ceiling / 2))[()]


def effective_clusters(sizes: np.ndarray) -> float:
    """(Σ m)² / Σ m² of clusters of m units each: as many equal clusters would vary as much; their number if all are
    equal (Carter, Schnepel and Steigerwald 2017, Review of Economics and Statistics 99:698). NaN without units.
    """
    sizes = np.asarray(sizes, dtype=float)
    return float(sizes.sum() ** 2 / (sizes**2).sum()) if sizes.any() else float("nan")


def jackknife_interval(
    estimate: float,
    left_out: np.ndarray,
    sizes: np.ndarray | None = None,
    others: np.ndarray | None = None,
    other_sizes: np.ndarray | None = None,
    level: float = 0.95,
) -> Interval[float]:
    """estimate ± t · se from the estimates `left_out` (clusters,), one without each cluster.

        se² = (G - 1) / G · Σ (θ₍g₎ - mean θ₍g₎)²,   t with G* - 1 degrees of freedom

    (Tukey 1958; with few clusters: MacKinnon, Nielsen and Webb 2023, Journal of Econometrics 232). G is the number of
    clusters and G* the effective one (`effective_clusters`) of their `sizes` (clusters,), in units; without `sizes` all
    are equal and G* is G. With G - 1 degrees of freedom the interval is too narrow where sizes differ. Clusters are
    taken as independent draws, members of one need not be. NaN for fewer than 3 clusters, where one holds more than
    half of the units, and where leaving one out leaves no estimate.

    `others` (clusters,): estimates without each cluster of a second kind, such as categories of benchmarks beside
    families of models, of `other_sizes`. The two squared errors are added, with the degrees of freedom of Satterthwaite
    (1946, Biometrics 2:110). What belongs to a family and a category together is then counted twice: rather too wide
    than too narrow.
    """
    kinds = [(left_out, sizes)] if others is None else [(left_out, sizes), (others, other_sizes)]
    units = [np.ones(len(one)) if m is None else np.asarray(m, dtype=float) for one, m in kinds]
    few = any(len(one) < LEAST_CLUSTERS or not np.isfinite(one).all() for one, _ in kinds)
    if not np.isfinite(estimate) or few or not all(0 < m.max() <= MOST_IN_ONE * m.sum() for m in units):
        return Interval(float("nan"), float("nan"))
    freedom = np.array([effective_clusters(m) for m in units]) - 1
    squares = np.array([(len(one) - 1) / len(one) * ((one - one.mean()) ** 2).sum() for one, _ in kinds])
    total = squares.sum()
    joint = total**2 / (squares**2 / freedom).sum() if total > 0 else freedom.min()
    reach = stats.t.ppf(0.5 + level / 2, joint) * np.sqrt(total)
    return Interval(float(estimate - reach), float(estimate + reach))


def transformed_interval(
    estimate: float,
    left_out: np.ndarray,
    scale: str,
    sizes: np.ndarray | None = None,
    others: np.ndarray | None = None,
    other_sizes: np.ndarray | None = None,
) -> Interval[float]:
    """`jackknife_interval` on the scale of atanh (`tau`; of half of it, `change`) or logit (`share`), so that it stays
    within the range: -1 to 1, -2 to 2, or 0 to 1."""
    scales: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "tau": (np.arctanh, np.tanh),
        "change": (lambda change: np.arctanh(change / 2), lambda half: 2 * np.tanh(half)),
        "share": (lambda share: np.log(share / (1 - share)), lambda logit: 1 / (1 + np.exp(-logit))),
    }
    forward, back = scales[scale]
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.asarray(forward(left_out), dtype=float)
        other = None if others is None else np.asarray(forward(others), dtype=float)
        low, high = jackknife_interval(float(forward(np.float64(estimate))), own, sizes, other, other_sizes)
    return Interval(float(back(low)), float(back(high)))


def means_without_clusters(tau: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """(clusters,) means over the pairs of benchmarks of `tau` (k, k) without the benchmarks of each cluster (k,)."""
    means = []
    for cluster in range(int(clusters.max()) + 1):
        rest = clusters != cluster
        means.append(mean_over_pairs(tau[np.ix_(rest, rest)]))
    return np.array(means)


def cluster_numbers(names: np.ndarray) -> np.ndarray:
    """(n,) whole numbers of the clusters that `names` (n,) gives; each unnamed unit (None) is a cluster of its own."""
    numbers: dict[tuple[object, int | None], int] = {}
    keys = [(name, None) if name is not None else (None, i) for i, name in enumerate(names)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=int)


class ExpectedSigns(NamedTuple):
    """Products of signs that benchmarks with one common order would have, by pair of benchmarks and pair of models.

    `product`: (k (k + 1) / 2, pairs) expected products in [-1, 1], 0 where unknown; `untied`: (k, pairs) probability
    that a pair is not tied; `known`: (k, pairs); `columns`: the k benchmarks' places in the table.
    """

    product: np.ndarray
    untied: np.ndarray
    known: np.ndarray
    columns: np.ndarray


def mean_tau_left_out(
    signs: PairSigns, expected: ExpectedSigns | None, pairs: np.ndarray, clusters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(observed, ceiling): mean taus over pairs of benchmarks, of the whole table and then without each cluster.

    Both (1 + clusters,), over the pairs of models in the mask `pairs` (pairs,) and over the same pairs of benchmarks:
    those with both taus. Without `expected` the ceiling is NaN and the observed mean is over all pairs with a tau.
    """
    taus, limits = taus_left_out(signs, expected, pairs, clusters)
    if expected is None or not len(taus):
        nothing = np.full(taus.shape[1], np.nan)
        return (finite_mean(taus, axis=0) if len(taus) else nothing), nothing
    both = np.isfinite(taus) & np.isfinite(limits)
    return finite_mean(np.where(both, taus, np.nan), axis=0), finite_mean(np.where(both, limits, np.nan), axis=0)


def taus_left_out(
    signs: PairSigns, expected: ExpectedSigns | None, pairs: np.ndarray, clusters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(observed, ceiling): taus by pair of benchmarks, (benchmark pairs, 1 + clusters), as in `mean_tau_left_out`.

    Benchmarks are all columns, or those of `expected`; pairs in the order of `np.triu_indices` without the diagonal.
    NaN where a tau is undefined; without `expected` there are no ceilings: (0, 1 + clusters).
    """
    first, second = clusters[signs.first[pairs]], clusters[signs.second[pairs]]
    number, own = int(clusters.max()) + 1, np.arange(len(first))
    across = first != second  # a pair within a cluster goes once
    row, column = np.concatenate([first, second[across]]), np.concatenate([own, own[across]])
    of_clusters = sparse.csr_array((np.ones(len(row)), (row, column)), shape=(number, len(first)))
    # a small product is faster with all its zeros
    concerned = of_clusters.toarray() if number * len(first) <= AT_ONCE else of_clusters

    def totals(values: np.ndarray) -> np.ndarray:
        """(1 + clusters, columns) sums of `values` (pairs, columns), of all pairs and without each cluster."""
        whole = values.sum(axis=0, dtype=float)
        return np.vstack([whole, whole - concerned @ values.astype(float)])

    columns = np.arange(signs.sign.shape[1]) if expected is None else expected.columns
    sign, known = signs.sign[pairs][:, columns], signs.known[pairs][:, columns]
    observed, ceiling = [np.empty((0, number + 1))], [np.empty((0, number + 1))]
    if expected is not None:
        untied, common = expected.untied[:, pairs].T, expected.known[:, pairs].T
    upper = np.column_stack(np.triu_indices(len(columns)))
    places = np.flatnonzero(upper[:, 0] < upper[:, 1])
    step = max(1, AT_ONCE // max(1, len(first)))
    for start in range(0, len(places), step):
        here = places[start : start + step]
        a, b = upper[here].T
        left, right = totals(np.abs(sign[:, a]) * known[:, b]), totals(known[:, a] * np.abs(sign[:, b]))
        observed.append(_ratio(totals(sign[:, a] * sign[:, b]), left, right).T)
        if expected is not None:
            left, right = totals(untied[:, a] * common[:, b]), totals(common[:, a] * untied[:, b])
            ceiling.append(_ratio(totals(expected.product[here][:, pairs].T), left, right).T)
    return np.concatenate(observed), np.concatenate(ceiling)


def _ratio(product: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.maximum(left, 0.0) * np.maximum(right, 0.0))
    return np.divide(product, scale, out=np.full(product.shape, np.nan), where=scale > 1e-6)


# ----------------------------------------------------------------------------------------------------------------------
# What one benchmark can tell apart: reliability, separated pairs of models, agreement.

LEAST_MODELS = 3
POWER = float(stats.norm.ppf(0.975) + stats.norm.ppf(0.8))  # standard errors: found four times out of five at p < .05
NONE = Interval(float("nan"), float("nan"))


class Estimate(NamedTuple):
    """A value and its 95% interval, NaN where there is none."""

    value: float
    interval: Interval[float]


def reliability(scores: np.ndarray, stderr: np.ndarray) -> Estimate:
    """Share of the variance of `scores` (models,) that is no error of the items: 1 - mean(stderr²) / var(scores).

    Spearman's reliability of one benchmark, over the models with a score and a standard error; below 0 it counts as 0.
    The interval is a jackknife over models on the scale log(1 - reliability). It fails where one model is far from all
    others. NaN for fewer than 3 models, or scores without a spread.
    """
    known = np.isfinite(scores) & np.isfinite(stderr)
    values, errors = scores[known], stderr[known] ** 2
    if len(values) < LEAST_MODELS or np.ptp(values) == 0:
        return Estimate(float("nan"), NONE)
    share = errors.mean() / values.var(ddof=1)
    interval = NONE
    if share > 0 and len(values) > LEAST_MODELS:
        parts = [np.delete(values, i) for i in range(len(values))]
        with np.errstate(divide="ignore"):
            left_out = [np.delete(errors, i).mean() / part.var(ddof=1) for i, part in enumerate(parts)]
            low, high = jackknife_interval(float(np.log(share)), np.log(left_out))
        interval = Interval(max(0.0, float(1 - np.exp(high))), max(0.0, float(1 - np.exp(low))))
    return Estimate(float(max(0.0, 1 - share)), interval)


def separated_share(significant: np.ndarray, known: np.ndarray, within: np.ndarray) -> Estimate:
    """Share of the pairs of models in the mask `within` that the benchmark separates.

    All (models, models), symmetric: whether a pair differs significantly, whether that is known, and the mask. Pairs
    that share a model are not independent. So the interval is that of Korn and Graubard (1998, Survey Methodology
    24:193-201): Clopper and Pearson's with the number of independent pairs that has the jackknife's variance over
    models, at least half the models: so many pairs share none. Where all pairs are separated, or none is, there is no
    such variance, and the number is that of the models. It fails there if single models decide whether a pair is
    separated, whatever the other one. NaN for fewer than 3 models.
    """
    counted = np.triu(known & within, 1)
    pairs, models = int(counted.sum()), int((counted | counted.T).any(axis=1).sum())
    if models < LEAST_MODELS:
        return Estimate(float("nan"), NONE)
    hits = (counted | counted.T) & significant
    each, found = (counted | counted.T).sum(axis=1), hits.sum(axis=1)
    share = found.sum() / 2 / pairs
    rest = pairs - each
    left_out = np.divide(found.sum() / 2 - found, rest, out=np.full(len(each), share), where=rest > 0)[each > 0]
    variance = (models - 1) / models * ((left_out - left_out.mean()) ** 2).sum()
    independent = share * (1 - share) / variance if variance > 0 else models
    if 0 < share < 1:
        quantile = stats.norm.ppf(0.975) / stats.t.ppf(0.975, models - 1)
        independent = max(models / 2, min(independent * quantile**2, pairs))
    right, wrong = share * independent, (1 - share) * independent
    low = stats.beta.ppf(0.025, right, wrong + 1) if right > 0 else 0.0
    high = stats.beta.ppf(0.975, right + 1, wrong) if wrong > 0 else 1.0
    return Estimate(float(share), Interval(float(low), float(high)))


def tau_with_others(scores: np.ndarray, within: np.ndarray) -> list[Estimate]:
    """Each benchmark's mean tau-b with the others over the pairs of models in the mask `within` (models, models).

    `scores`: (models, benchmarks), more is better, NaN where missing. The interval leaves out one model at a time
    (`transformed_interval`). NaN where no other benchmark has a tau, and without an interval where a model left out
    leaves none.
    """
    models, columns = scores.shape
    product, untied = np.zeros((2, models, columns, columns))
    for i in range(models):
        difference = scores[i] - scores[within[i]]
        known = np.isfinite(difference)
        sign = np.sign(np.where(known, difference, 0.0))
        product[i] = sign.T @ sign
        untied[i] = np.abs(sign).T @ known
    # each pair of models was met twice; without a model its pairs are gone
    whole = _mean_tau(product.sum(axis=0) / 2, untied.sum(axis=0) / 2)
    concerned = np.flatnonzero(within.any(axis=1))
    left_out = np.array(
        [_mean_tau(product.sum(axis=0) / 2 - product[i], untied.sum(axis=0) / 2 - untied[i]) for i in concerned]
    )
    if len(concerned) < LEAST_MODELS:
        return [Estimate(float("nan"), NONE)] * columns
    return [
        Estimate(float(whole[j]), transformed_interval(float(whole[j]), left_out[:, j], "tau")) for j in range(columns)
    ]


def _mean_tau(product: np.ndarray, untied: np.ndarray) -> np.ndarray:
    """(benchmarks,) mean over the others, NaN where there is none."""
    scale = np.sqrt(untied * untied.T)
    tau = np.divide(product, scale, out=np.full(product.shape, np.nan), where=scale > 0.5)
    np.fill_diagonal(tau, np.nan)
    return finite_mean(tau, axis=1)


def ceiling_with_others(signs: PairSigns, expected: ExpectedSigns | None, within: np.ndarray) -> np.ndarray:
    """(benchmarks,) each one's noise ceiling: its mean tau with the others if all ordered the models identically.

    Over the pairs of models in the mask `within` (models, models), from the `expected` signs of tables with one order.
    NaN for a benchmark without standard errors, and without `expected`.
    """
    ceilings = np.full(signs.sign.shape[1], np.nan)
    if expected is None:
        return ceilings
    nothing_left_out = np.zeros(len(within), dtype=int)
    _, limits = taus_left_out(signs, expected, within[signs.first, signs.second], nothing_left_out)
    by_pair = np.full((len(expected.columns),) * 2, np.nan)
    first, second = np.triu_indices(len(by_pair), 1)
    by_pair[first, second] = by_pair[second, first] = limits[:, 0]
    ceilings[expected.columns] = finite_mean(by_pair, axis=1)
    return ceilings


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


def typical_difference(scores: np.ndarray, stderr: np.ndarray, within: np.ndarray) -> tuple[float, float]:
    """(root mean square difference of the pairs of models in the mask, without noise; mean variance of the noise).

    The noise of a pair is se_i² + se_j², and its mean is taken off the mean square. 0 where noise is all there is; NaN
    without a pair that has scores and standard errors.
    """
    first, second = np.nonzero(np.triu(within, 1))
    square, noise = (scores[first] - scores[second]) ** 2, stderr[first] ** 2 + stderr[second] ** 2
    known = np.isfinite(square) & np.isfinite(noise)
    if not known.any():
        return float("nan"), float("nan")
    mean_noise = float(noise[known].mean())
    return float(np.sqrt(max(0.0, float(square[known].mean()) - mean_noise))), mean_noise


def items_needed(items: float, difference: float, noise: float, training: float = 0.0) -> float:
    """Items with which a test finds `difference` four times out of five, from `items` and the noise of a pair there.

    `training`: variance of the difference that no item takes away. Infinite where it alone hides the difference.
    """
    room = difference**2 / POWER**2 - training
    return items * noise / room if room > 0 else float("inf")


def shown_ceiling(ceiling: Values, value: Values) -> Values:
    """A noise ceiling where a picture or a sentence may name it: NaN where it lies below the `value` that it is of.

    It counts the noise of each score as independent. Models that answer the same items share part of theirs, and so do
    benchmarks with items in common: the ceiling is then too low, and below the value it plainly bounds nothing. One
    that prints as the value does is not below it.
    """
    return np.where(np.asarray(ceiling) >= np.asarray(value) - PRINTED / 2, ceiling, np.nan)[()]  # type: ignore[return-value]
