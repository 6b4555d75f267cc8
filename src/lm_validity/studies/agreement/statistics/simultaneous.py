"""Ranks that hold for all models at once, and how often a model is among the first."""

import numpy as np

from lm_validity.studies.agreement.statistics.resampling import Interval, expanded_level

MANY_MODELS = 300  # from here on fewer draws are compared, since the pairs of models are many
DRAWS_OF_MANY = 400
AT_ONCE = 2**18  # differences between models that are compared together


def simultaneous_ranks(estimates: np.ndarray, draws: np.ndarray, units: int | None = None) -> Interval[np.ndarray]:
    """Sets of ranks (models,) that hold the ranks of all models together with probability 0.95.

    `estimates`: (models,) abilities, more is better; `draws`: (resamples, models) of them. Few resampled `units` (such
    as benchmarks) vary less in resamples than in truth: the level is `expanded_level`, 0.95 without `units`. Draws
    without all models are left out while half remain, else models that are not in all draws: these have NaN, and any
    place among the others is open to them. Two models are told apart where they differ by more than c standard
    deviations of the draws, c being the quantile at this level over draws of the largest standardised deviation
    |D_ij - d_ij| / sd_ij of any pair. A model's ranks run from 1 + the models surely better to n - the models surely
    worse (Mogstad, Romano, Shaikh and Wilhelm 2024, Review of Economic Studies 91:476). It fails where the draws do not
    show the dependence there is, e.g. benchmarks resampled one by one that come in categories.
    """
    known = np.isfinite(draws)
    usable = np.isfinite(estimates) & (known.mean(axis=0) >= 0.5)
    whole = known[:, usable].all(axis=1)
    if whole.mean() < 0.5:
        usable, whole = np.isfinite(estimates) & known.all(axis=0), np.ones(len(draws), dtype=bool)
    elsewhere = np.isfinite(estimates).sum() - usable.sum()
    low, high = np.full((2, len(estimates)), np.nan)
    values, sample = estimates[usable], draws[whole][:, usable]
    if len(values) < 2:
        low[usable], high[usable] = 1.0, 1.0 + elsewhere
        return Interval(low, high)
    if len(values) > MANY_MODELS:
        sample = sample[:DRAWS_OF_MANY]
    covariance = np.cov(sample, rowvar=False)
    variance = np.diag(covariance)
    spread = np.sqrt(np.maximum(variance[:, None] + variance - 2 * covariance, 0.0))
    difference = values[:, None] - values
    inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 1e-12)
    deviation = sample - values
    step = max(1, AT_ONCE // inverse.size)
    parts = (deviation[start : start + step] for start in range(0, len(deviation), step))
    largest = [(np.abs(part[:, :, None] - part[:, None]) * inverse).max(axis=(1, 2)) for part in parts]
    surely = difference > np.quantile(np.concatenate(largest), expanded_level(units)) * spread
    low[usable] = 1 + surely.sum(axis=0)
    high[usable] = len(values) - surely.sum(axis=1) + elsewhere
    return Interval(low, high)


def share_in_top(ranks: np.ndarray, first: int) -> np.ndarray:
    """(models,) share of the draws `ranks` (draws, models; 1 = best, NaN where unranked) in which a model is among the
    `first`; NaN for a model without a rank.

    A share of resamples is no probability that a model truly is among the best: a model that leads by chance leads in
    most resamples too.
    """
    defined = np.isfinite(ranks)
    number = defined.sum(axis=0)
    inside = (defined & (np.where(defined, ranks, np.inf) <= first)).sum(axis=0)
    return np.divide(inside, number, out=np.full(ranks.shape[1], np.nan), where=number > 0)


def cluster_multiplicities(clusters: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """(resamples, units) how often each unit is drawn when whole clusters are; `clusters`: (units,) numbers from 0."""
    number = int(clusters.max()) + 1
    drawn = rng.multinomial(number, np.full(number, 1 / number), size=resamples)
    return drawn[:, clusters].astype(float)
