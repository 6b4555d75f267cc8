"""Meta-analysis: what one would have concluded from a single split per task.

Keep one random subsample of each (language model, task), fit `method + lm_type + (1|pair)` to what is left,
and look at the posterior of beta; 500 times (section 10 of arXiv 2410.00179). With one trial per task the pair
is the task. The only standard deviation is integrated over a grid.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from lm_validity.studies.bias.statistics.laplace import Start, find_mode, zero_start
from lm_validity.studies.bias.statistics.model import Formula, PairedCounts, build_design
from lm_validity.studies.bias.statistics.posterior import INTERVAL
from lm_validity.summaries import Missing, known

SLICES = 500
THRESHOLD = 0.04  # log-odds; neighbours on the RAFT leaderboard differ by an odds ratio of 1.03
ONE_SUBSAMPLE = "Every task has one subsample: a slice would be the whole data."
ONE_TASK = "One task: the interval is one over tasks."
SLICE_FORMULA = Formula("slice", groups=(), pair_within_model=False)
GRID = np.geomspace(0.1, 4.0, 7)  # standard deviations of the pairs, in log-odds


@dataclass(frozen=True)
class MetaAnalysis:
    """Posterior means and sds (S,) of beta by slice, in log-odds, and shares of the slices.

    share_beyond: |mean| > THRESHOLD; share_excluding_zero: the 89% credible interval excludes 0;
    share_t_excluding_zero: so does the model-free 89% t interval of the mean difference over the tasks, whose
    nominal share without an effect is 11% (Missing with one task).
    """

    means: np.ndarray
    sds: np.ndarray
    share_beyond: float
    share_excluding_zero: float
    share_t_excluding_zero: float | Missing


def meta_analysis(counts: PairedCounts, slices: int = SLICES, seed: int = 0) -> MetaAnalysis | Missing:
    """Analyse `slices` random slices with one subsample per (language model, task)."""
    generator = np.random.default_rng(seed)
    group = counts.task * len(counts.language_models) + counts.language_model
    order = np.argsort(group, kind="stable")
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    size = np.diff(np.append(first, len(order)))
    if size.max() == 1:
        return Missing(ONE_SUBSAMPLE)
    layout = _select(counts, order[first])
    start = zero_start(build_design(layout, SLICE_FORMULA))
    means, sds, excluded = np.empty(slices), np.empty(slices), np.empty(slices)
    for index in range(slices):
        chosen = _select(counts, order[first + generator.integers(size)])
        design = build_design(chosen, SLICE_FORMULA)
        means[index], sds[index], start = _fit_slice(design, start)
        excluded[index] = _t_interval_excludes_zero(chosen)
    reach = stats.norm.ppf((1 + INTERVAL) / 2)
    return MetaAnalysis(
        means=means,
        sds=sds,
        share_beyond=float(np.mean(np.abs(means) > THRESHOLD)),
        share_excluding_zero=float(np.mean(np.abs(means) > reach * sds)),
        share_t_excluding_zero=known(float(excluded.mean()), ONE_TASK),
    )


def _select(counts: PairedCounts, rows: np.ndarray) -> PairedCounts:
    columns = ("task", "language_model", "total", "control", "treatment")
    chosen = {name: getattr(counts, name)[rows] for name in columns}
    return replace(counts, subsample=np.zeros(len(rows), dtype=np.int64), **chosen)


def _fit_slice(design, start: Start) -> tuple[float, float, Start]:
    """Posterior mean and sd of beta over the grid of the pairs' sd; the middle mode is the next start."""
    prior = stats.halfnorm.logpdf(GRID, scale=SLICE_FORMULA.pair_scale) + np.log(GRID)
    density, means, variances = np.empty((3, len(GRID)))
    for index, scale in enumerate(GRID):
        mode = find_mode(design, np.array([scale]), start)
        density[index] = mode.log_marginal + prior[index]
        means[index], variances[index] = mode.u[design.beta], mode.variance(design.beta)
        start = Start(mode.u, mode.v, mode.e)
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    mean = float(weights @ means)
    return mean, float(np.sqrt(weights @ (variances + (means - mean) ** 2))), start


def _t_interval_excludes_zero(counts: PairedCounts) -> float:
    difference = (counts.treatment - counts.control) / counts.total
    values = np.bincount(counts.task, difference) / np.bincount(counts.task)
    if len(values) < 2:
        return np.nan
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(abs(values.mean()) > stats.t.ppf((1 + INTERVAL) / 2, len(values) - 1) * error)
