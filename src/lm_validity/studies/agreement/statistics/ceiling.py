"""The noise ceiling: how well benchmarks could agree if one latent order of the models held for all of them."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.agreement import mean_over_pairs
from lm_validity.studies.agreement.statistics.corrected import ExpectedSigns
from lm_validity.studies.agreement.statistics.many_components import first_shares
from lm_validity.studies.agreement.statistics.missing import finite_mean
from lm_validity.studies.agreement.statistics.ranking import average_ranks, kendall_tau_matrix, pair_signs
from lm_validity.studies.agreement.statistics.resampling import mean_over_pairs_by_resample

LEAST_CEILING = 0.05  # of tau: below it there is no signal to correct for noise
LEAST_MODELS = 5  # with fewer, tau takes so few values that correcting it is mostly chance
MANY_MODELS = 300  # from here on fewer tables are simulated: each averages over more pairs of models
LARGEST_EXPECTED = 2**28  # numbers, of 4 bytes
AT_ONCE = 2**21  # signs of simulated tables that are counted together


@dataclass(frozen=True)
class Ceiling:
    """Means over simulated tables in which one order holds for all benchmarks.

    `mean_tau` in [-1, 1]; `by_benchmark`: (k,) mean tau with the others; `first_component`: share of
    variance in [0, 1]; `tau_draws`: (draws,) mean taus by simulated table; `used`:
    (k,) benchmarks with standard errors on which models differ, the others taking no part (NaN in
    `by_benchmark`); `observed`: mean tau-b of the scores over the pairs of benchmarks that `mean_tau` is over;
    `models`: number with a score on a benchmark that takes part; `by_pair`, `observed_by_pair`: (k, k) mean simulated
    and observed taus, NaN on the diagonal; `expected`: mean products of signs of the simulated tables, None where there
    is no ceiling or where they would take more than a gigabyte.
    """

    mean_tau: float
    by_benchmark: np.ndarray
    first_component: float
    tau_draws: np.ndarray
    used: np.ndarray
    observed: float
    models: int
    by_pair: np.ndarray
    observed_by_pair: np.ndarray
    expected: ExpectedSigns | None

    @property
    def above_zero(self) -> bool:
        """Whether `mean_tau` is at least 0.05 and more than 3 standard errors of the simulation above 0."""
        draws = self.tau_draws[np.isfinite(self.tau_draws)]
        return bool(len(draws) and self.mean_tau > max(LEAST_CEILING, 3 * draws.std() / np.sqrt(len(draws))))


def noise_ceiling(scores: np.ndarray, stderr: np.ndarray, rng: np.random.Generator, draws: int = 200) -> Ceiling:
    """Simulate tables with one latent order and the observed benchmarks' own score distributions and noise.

    `scores`, `stderr`: (models, benchmarks), NaN where missing; more is better. Per benchmark the scores
    are de-noised by shrinking them to their mean until their variance is var(scores) - mean(stderr²) (at
    least 0), sorted, and given to the models in the order of their mean rank over all benchmarks; then
    normal noise of the standard error that belonged to the score is added. Cells that are missing stay
    missing. A missing standard error is taken as the root mean square of its benchmark's others. Only pairs of
    benchmarks with a tau in the scores themselves count, in each simulated table as in the observed mean.

    What remains between 1 and the ceiling is measurement error; what remains between the observed agreement
    and the ceiling is disagreement about the order (or dependence between the benchmarks' errors). The observed
    tau may be above the ceiling: noise in the observed table is one draw, and errors of benchmarks that share items
    are not independent. From 300 models on, fewer than `draws` tables are simulated, at least 20.
    """
    known, observed = np.isfinite(scores), kendall_tau_matrix(pair_signs(scores))
    k = scores.shape[1]
    used = np.isfinite(np.diag(observed)) & (known & np.isfinite(stderr)).any(axis=0)
    by_benchmark, no_pairs = np.full(k, np.nan), np.full((k, k), np.nan)
    if used.sum() < 2:
        nan = float("nan")
        return Ceiling(nan, by_benchmark, nan, np.full(0, np.nan), used, nan, 0, no_pairs, no_pairs, None)
    observed = np.where(np.eye(used.sum(), dtype=bool), np.nan, observed[np.ix_(used, used)])
    pairs = np.isfinite(observed)
    truth, noise = latent_order_table(scores[:, used], stderr[:, used])
    draws = max(20, int(draws * min(1.0, (MANY_MODELS / len(scores)) ** 2)))
    expected = _Expectation(np.isfinite(truth))
    tau_parts, share_parts, grid_parts = [], [], []
    step = max(1, AT_ONCE // max(1, len(expected.first) * truth.shape[1]))
    for start in range(0, draws, step):
        tables = truth + noise * rng.standard_normal((min(step, draws - start), *truth.shape))
        tau = np.where(pairs, expected.add(tables), np.nan)
        tau_parts.append(mean_over_pairs_by_resample(tau))
        grid_parts.append(tau)
        share_parts.append(first_shares(tables))
    taus, shares, grids = (np.concatenate(parts) for parts in (tau_parts, share_parts, grid_parts))
    by_benchmark[used] = finite_mean(finite_mean(grids, axis=2), axis=0)
    return Ceiling(
        mean_tau=finite_mean(taus),
        by_benchmark=by_benchmark,
        first_component=finite_mean(shares),
        tau_draws=taus,
        used=used,
        observed=mean_over_pairs(observed),
        models=int(known[:, used].any(axis=1).sum()),
        by_pair=_in_table(finite_mean(grids, axis=0), used),
        observed_by_pair=_in_table(observed, used),
        expected=expected.mean(draws, np.flatnonzero(used)),
    )


def _in_table(values: np.ndarray, used: np.ndarray) -> np.ndarray:
    """(k, k) with `values` in the rows and columns of the `used` benchmarks, NaN elsewhere."""
    table = np.full((len(used), len(used)), np.nan)
    table[np.ix_(used, used)] = values
    return table


class _Expectation:
    """Taus of simulated tables, and sums of products of signs over them, unless those would be too many numbers."""

    def __init__(self, known: np.ndarray):
        models, columns = known.shape
        self.first, self.second = np.triu_indices(models, 1)
        self.upper = np.triu_indices(columns)
        self.known = (known[self.first] & known[self.second]).T.astype(np.float32)
        self.fits = len(self.first) * len(self.upper[0]) <= LARGEST_EXPECTED
        if self.fits:
            self.product = np.zeros((len(self.upper[0]), len(self.first)), dtype=np.float32)
            self.untied = np.zeros((columns, len(self.first)), dtype=np.float32)

    def add(self, tables: np.ndarray) -> np.ndarray:
        """(tables, k, k) tau-b of `tables` (tables, models, k), which count; sums of whole numbers, hence exact."""
        values = np.nan_to_num(tables).transpose(0, 2, 1)
        sign = np.sign(values[:, :, self.first] - values[:, :, self.second]) * self.known
        untied = np.abs(sign)
        scale = untied @ self.known.T.astype(float)
        scale = np.sqrt(scale * scale.swapaxes(1, 2))
        product = sign @ sign.swapaxes(1, 2)
        if self.fits:  # for each pair of models one product, of the benchmarks' signs over the tables
            by_pair = sign.astype(np.float32).transpose(2, 1, 0)
            self.product += (by_pair @ by_pair.swapaxes(1, 2))[:, *self.upper].T
            self.untied += untied.sum(axis=0)
        return np.divide(product, scale, out=np.full(product.shape, np.nan), where=scale > 0)

    def mean(self, draws: int, columns: np.ndarray) -> ExpectedSigns | None:
        if not self.fits:
            return None
        return ExpectedSigns(self.product / draws, self.untied / draws, self.known, columns)


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
