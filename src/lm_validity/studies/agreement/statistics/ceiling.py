"""The noise ceiling: how well benchmarks could agree if one latent order of the models held for all of them."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.agreement import mean_over_pairs
from lm_validity.studies.agreement.statistics.factors import principal_components
from lm_validity.studies.agreement.statistics.missing import finite_mean
from lm_validity.studies.agreement.statistics.ranking import average_ranks, kendall_tau_matrix, pair_signs

LEAST_CEILING = 0.05  # of tau: below it, a share of the ceiling says nothing
LEAST_MODELS = 5  # with fewer, tau takes so few values that a share of the ceiling is mostly chance


@dataclass(frozen=True)
class Ceiling:
    """Means over simulated tables in which one order holds for all benchmarks.

    `mean_tau` in [-1, 1]; `by_benchmark`: (k,) mean tau with the others; `first_component`: share of
    variance in [0, 1]; `tau_draws`, `component_draws`: (draws,) their values by simulated table; `used`:
    (k,) benchmarks with standard errors on which models differ, the others taking no part (NaN in
    `by_benchmark`); `observed`: mean tau-b of the scores over the pairs of benchmarks that `mean_tau` is over;
    `models`: number with a score on a benchmark that takes part.
    """

    mean_tau: float
    by_benchmark: np.ndarray
    first_component: float
    tau_draws: np.ndarray
    component_draws: np.ndarray
    used: np.ndarray
    observed: float
    models: int

    @property
    def above_zero(self) -> bool:
        """Whether `mean_tau` is at least 0.05 and more than 3 standard errors of the simulation above 0."""
        draws = self.tau_draws[np.isfinite(self.tau_draws)]
        return bool(len(draws) and self.mean_tau > max(LEAST_CEILING, 3 * draws.std() / np.sqrt(len(draws))))

    @property
    def share(self) -> float:
        """`observed` over `mean_tau`; NaN for fewer than 5 models, a negative tau, or a ceiling not above 0."""
        defined = self.models >= LEAST_MODELS and self.observed >= 0 and self.above_zero
        return self.observed / self.mean_tau if defined else float("nan")


def noise_ceiling(scores: np.ndarray, stderr: np.ndarray, rng: np.random.Generator, draws: int = 200) -> Ceiling:
    """Simulate tables with one latent order and the observed benchmarks' own score distributions and noise.

    `scores`, `stderr`: (models, benchmarks), NaN where missing; more is better. Per benchmark the scores
    are de-noised by shrinking them to their mean until their variance is var(scores) - mean(stderr²) (at
    least 0), sorted, and given to the models in the order of their mean rank over all benchmarks; then
    normal noise of the standard error that belonged to the score is added. Cells that are missing stay
    missing. A missing standard error is taken as the root mean square of its benchmark's others. Only pairs of
    benchmarks with a tau in the scores themselves count, in each simulated table as in the observed mean.

    What remains between 1 and the ceiling is measurement error; what remains between the observed agreement
    and the ceiling is disagreement about the order (or dependence between the benchmarks' errors). Ratios
    above 1 are possible: noise in the observed table is one draw, and errors of benchmarks that share items
    are not independent.
    """
    known, observed = np.isfinite(scores), kendall_tau_matrix(pair_signs(scores))
    used = np.isfinite(np.diag(observed)) & (known & np.isfinite(stderr)).any(axis=0)
    by_benchmark, nothing = np.full(scores.shape[1], np.nan), np.full(0, np.nan)
    if used.sum() < 2:
        return Ceiling(float("nan"), by_benchmark, float("nan"), nothing, nothing, used, float("nan"), 0)
    observed = observed[np.ix_(used, used)]
    pairs = np.isfinite(observed) & ~np.eye(len(observed), dtype=bool)
    truth, noise = latent_order_table(scores[:, used], stderr[:, used])
    taus, shares, rows = [], [], []
    for _ in range(draws):
        table = truth + noise * rng.standard_normal(truth.shape)
        tau = np.where(pairs, kendall_tau_matrix(pair_signs(table)), np.nan)
        taus.append(mean_over_pairs(tau))
        rows.append(finite_mean(tau, axis=1))
        explained = principal_components(table).explained_variance
        shares.append(explained[0] if len(explained) else np.nan)
    by_benchmark[used] = finite_mean(np.array(rows), axis=0)
    return Ceiling(
        mean_tau=finite_mean(np.array(taus)),
        by_benchmark=by_benchmark,
        first_component=finite_mean(np.array(shares)),
        tau_draws=np.array(taus),
        component_draws=np.array(shares),
        used=used,
        observed=mean_over_pairs(observed),
        models=int(known[:, used].any(axis=1).sum()),
    )


def latent_order_table(scores: np.ndarray, stderr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(noise-free scores, standard errors), both (models, benchmarks), when one order holds for all benchmarks."""
    order = average_ranks(scores)
    overall = finite_mean(order, axis=1)
    truth, noise = np.full(scores.shape, np.nan), np.full(scores.shape, np.nan)
    for j in range(scores.shape[1]):
        rows = np.flatnonzero(np.isfinite(scores[:, j]))
        values, errors = scores[rows, j], stderr[rows, j]
        errors = np.where(np.isfinite(errors), errors, np.sqrt(np.nanmean(errors**2)))
        variance = values.var()
        shrinkage = np.sqrt(max(0.0, 1 - np.mean(errors**2) / variance)) if variance > 0 else 0.0
        descending = np.argsort(-values, kind="stable")
        best_first = rows[np.argsort(overall[rows], kind="stable")]
        truth[best_first, j] = (values.mean() + shrinkage * (values - values.mean()))[descending]
        noise[best_first, j] = errors[descending]
    return truth, noise
