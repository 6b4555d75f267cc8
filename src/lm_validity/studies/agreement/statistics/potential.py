"""Which model to pick: ranks on the first component, with intervals, and how far direct ranks mislead."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.factors import principal_components
from lm_validity.studies.agreement.statistics.ranking import average_ranks
from lm_validity.studies.agreement.statistics.resampling import Interval, shortest_interval


@dataclass(frozen=True)
class RankDraws:
    """Ranks on the first component, 1 = best: `rank` (models,) as observed, `draws` (resamples, models);
    NaN where a model has no score. `lone`: (models,) True where the draws are of one benchmark again and again.
    `score`, `score_draws`: the first component behind them, of the same shapes.
    """

    rank: np.ndarray
    draws: np.ndarray
    score: np.ndarray
    score_draws: np.ndarray
    lone: np.ndarray | None = None

    def interval(self) -> Interval:
        """(models,) shortest 95% intervals over the draws that have a rank, holding the rank observed; NaN if those are
        fewer than half, and for `lone` models, whose draws cannot differ by their benchmarks.
        """
        interval = shortest_interval(self.draws, holding=self.rank)
        if self.lone is None:
            return interval
        return Interval(*(np.where(self.lone, np.nan, end) for end in interval))

    def minus(self, other: "RankDraws") -> "RankDraws":
        """Differences of the ranks, draw by draw."""
        return RankDraws(
            self.rank - other.rank,
            self.draws - other.draws,
            self.score - other.score,
            self.score_draws - other.score_draws,
            self.lone | other.lone,
        )


def component_ranks(scores: np.ndarray) -> np.ndarray:
    """(models,) ranks on the first component of `scores` (models, benchmarks), 1 = best, ties averaged."""
    return average_ranks(principal_components(scores).scores[:, None])[:, 0]


def _rank_draws(scores: np.ndarray, component_draws: np.ndarray, lone: np.ndarray | None = None) -> RankDraws:
    draws = average_ranks(component_draws.T).T
    return RankDraws(component_ranks(scores), draws, principal_components(scores).scores, component_draws, lone)


def ranks_over_benchmarks(scores: np.ndarray, weights: np.ndarray) -> RankDraws:
    """Ranks when the benchmarks are resampled: a population of benchmarks like these.

    `weights`: (resamples, benchmarks) multiplicities; a benchmark drawn twice counts twice in the
    component, which makes no ties among models.
    """
    draws = np.full((len(weights), len(scores)), np.nan)
    for index, row in enumerate(weights):
        chosen = np.repeat(np.arange(scores.shape[1]), row.astype(int))
        draws[index] = principal_components(scores[:, chosen]).scores
    return _rank_draws(scores, draws, lone=np.isfinite(scores).sum(axis=1) < 2)


def ranks_over_noise(scores: np.ndarray, stderr: np.ndarray, resamples: int, rng: np.random.Generator) -> RankDraws:
    """Ranks when each score is drawn again from N(score, stderr²): these benchmarks, other items.

    A parametric bootstrap. Where a standard error is missing the draws are NaN for that model.
    """
    unknown = (np.isfinite(scores) & ~np.isfinite(stderr)).any(axis=1)
    noise = np.where(np.isfinite(stderr), stderr, 0.0)
    draws = np.full((resamples, len(scores)), np.nan)
    for index in range(resamples):
        draws[index] = principal_components(scores + noise * rng.standard_normal(scores.shape)).scores
    found = _rank_draws(scores, draws)
    # the other models are ranked among all, those of unknown error included
    found.draws[:, unknown] = np.nan
    found.score_draws[:, unknown] = np.nan
    return found


@dataclass(frozen=True)
class BudgetChoice:
    """The best model of at most `parameters_b` billion parameters, and in which share of resamples it is."""

    parameters_b: float
    model: int
    probability_best: float
    rivals: tuple[int, ...]


def best_by_budget(ranks: RankDraws, parameters_b: np.ndarray) -> list[BudgetChoice]:
    """One choice per model size at which the best model changes, from small to large.

    `parameters_b`: (models,), NaN where unknown (left out). `rivals`: the other models that are best in at
    least 5% of the resamples, most frequent first. Resamples in which no model within the budget has a rank are left
    out; a share of none is NaN.
    """
    choices: list[BudgetChoice] = []
    usable = np.isfinite(parameters_b) & np.isfinite(ranks.rank)
    for budget in np.unique(parameters_b[usable]):
        within = np.flatnonzero(usable & (parameters_b <= budget))
        best = within[np.argmin(ranks.rank[within])]
        if choices and choices[-1].model == best:
            continue
        drawn = np.where(np.isfinite(ranks.draws[:, within]), ranks.draws[:, within], np.inf)
        drawn = drawn[np.isfinite(drawn).any(axis=1)]
        share = np.bincount(within[drawn.argmin(axis=1)], minlength=len(parameters_b)) / max(len(drawn), 1)
        rivals = [int(i) for i in np.argsort(-share, kind="stable") if i != best and share[i] >= 0.05]
        probability = float(share[best]) if len(drawn) else float("nan")
        choices.append(BudgetChoice(float(budget), int(best), probability, tuple(rivals)))
    return choices
