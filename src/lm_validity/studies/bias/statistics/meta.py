"""Meta-analysis: what one would have concluded from a single split per task.

Keep one random subsample of each (language model, task), fit `method + lm_type + (1|pair)` to what is left,
and look at the posterior of beta; 500 times (section 10 of arXiv 2410.00179). With one trial per task the pair
is the task. The only standard deviation is integrated over a grid.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from lm_validity.studies.bias.statistics.laplace import Start, find_mode, zero_start
from lm_validity.studies.bias.statistics.model import Design, Formula, PairedCounts, build_design
from lm_validity.studies.bias.statistics.posterior import INTERVAL
from lm_validity.summaries import Missing

SLICES = 500
MODEL_FREE_SLICES = 10_000  # these cost no fit
THRESHOLD = 0.04  # log-odds; neighbours on the RAFT leaderboard differ by an odds ratio of 1.03
ONE_SUBSAMPLE = "Every task has one subsample: a slice would be the whole data."
ONE_TASK = "There is one task, and the interval is over tasks."
SLICE_FORMULA = Formula("slice", groups=(), pair_within_model=False)
GRID = np.geomspace(0.1, 4.0, 7)  # standard deviations of the pairs, in log-odds


@dataclass(frozen=True)
class MetaAnalysis:
    """Posterior means and sds (S,) of beta by slice, in log-odds, and shares of the slices.

    share_beyond: |mean| > THRESHOLD; share_excluding_zero: the 89% credible interval excludes 0;
    share_t_excluding_zero: over `MODEL_FREE_SLICES` slices, how often the model-free 89% t interval of the mean
    difference over the tasks excludes 0 (Missing with one task). Without an effect that would be 11% on average over
    studies; all slices share one study's trials.
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
    means, sds = np.empty((2, slices))
    for index in range(slices):
        design = build_design(_select(counts, order[first + generator.integers(size)]), SLICE_FORMULA)
        means[index], sds[index], start = _fit_slice(design, start)
    reach = stats.norm.ppf((1 + INTERVAL) / 2)
    return MetaAnalysis(
        means=means,
        sds=sds,
        share_beyond=float(np.mean(np.abs(means) > THRESHOLD)),
        share_excluding_zero=float(np.mean(np.abs(means) > reach * sds)),
        share_t_excluding_zero=_share_of_t_intervals(counts, order, first, size, generator),
    )


def _select(counts: PairedCounts, rows: np.ndarray) -> PairedCounts:
    columns = ("task", "language_model", "total", "control", "treatment")
    chosen = {name: getattr(counts, name)[rows] for name in columns}
    return replace(counts, subsample=np.zeros(len(rows), dtype=np.int64), **chosen)


def _fit_slice(design: Design, start: Start) -> tuple[float, float, Start]:
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


def _share_of_t_intervals(
    counts: PairedCounts, order: np.ndarray, first: np.ndarray, size: np.ndarray, generator: np.random.Generator
) -> float | Missing:
    """Share of slices whose t interval over the task means excludes 0; see `meta_analysis` for the arguments."""
    tasks = len(counts.tasks)
    if tasks < 2:
        return Missing(ONE_TASK)
    difference = (counts.treatment - counts.control) / counts.total
    chosen = difference[order[first + generator.integers(size, size=(MODEL_FREE_SLICES, len(size)))]]
    member = np.zeros((len(first), tasks))
    member[np.arange(len(first)), counts.task[order[first]]] = 1.0
    values = chosen @ member / member.sum(axis=0)  # (slices, tasks)
    error = values.std(axis=1, ddof=1) / np.sqrt(tasks)
    return float(np.mean(np.abs(values.mean(axis=1)) > stats.t.ppf((1 + INTERVAL) / 2, tasks - 1) * error))
