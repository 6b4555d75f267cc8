"""Which model to pick: ranks on the first component, with intervals, and how far direct ranks mislead."""

from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.factors import principal_components
from lm_validity.studies.agreement.statistics.many_components import first_components, first_components_of_resamples
from lm_validity.studies.agreement.statistics.ranking import average_ranks
from lm_validity.studies.agreement.statistics.resampling import Interval, expanded_level, shortest_interval

AT_ONCE = 2**21  # numbers in the redrawn tables that are kept
# benchmarks or categories that are resampled; with 3, intervals of ranks held in .85 to .91 of simulated tables
LEAST_UNITS = 4


@dataclass(frozen=True)
class RankDraws:
    """Ranks on the first component, 1 = best: `rank` (models,) as observed, `draws` (resamples, models);
    NaN where a model has no score. `lone`: (models,) True where the draws are of one benchmark again and again.
    `score`, `score_draws`: the first component behind them, of the same shapes. `units`: number of benchmarks or of
    categories that were resampled, None where none were.
    """

    rank: np.ndarray
    draws: np.ndarray
    score: np.ndarray
    score_draws: np.ndarray
    lone: np.ndarray | None = None
    units: int | None = None

    def interval(self) -> Interval[np.ndarray]:
        """(models,) shortest 95% intervals over the draws that have a rank, holding the rank observed; NaN if those are
        fewer than half, and for `lone` models, whose draws cannot differ by their benchmarks. Few `units` vary less in
        resamples than their population does: the level among the draws is `expanded_level`.
        """
        interval = shortest_interval(self.draws, expanded_level(self.units), holding=self.rank)
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
            None if self.lone is None or other.lone is None else self.lone | other.lone,
            self.units,
        )


def component_ranks(scores: np.ndarray) -> np.ndarray:
    """(models,) ranks on the first component of `scores` (models, benchmarks), 1 = best, ties averaged."""
    return average_ranks(principal_components(scores).scores[:, None])[:, 0]


def _rank_draws(
    scores: np.ndarray, component_draws: np.ndarray, lone: np.ndarray | None = None, units: int | None = None
) -> RankDraws:
    draws = average_ranks(component_draws.T).T
    return RankDraws(component_ranks(scores), draws, principal_components(scores).scores, component_draws, lone, units)


def ranks_over_benchmarks(scores: np.ndarray, weights: np.ndarray, units: int | None = None) -> RankDraws:
    """Ranks when the benchmarks are resampled: a population of benchmarks like these.

    `weights`: (resamples, benchmarks) multiplicities; a benchmark drawn twice counts twice in the
    component, which makes no ties among models. `units`: number of clusters that were resampled, None for benchmarks.
    All draws are NaN for fewer than `LEAST_UNITS`.
    """
    units = units or scores.shape[1]
    few = units < LEAST_UNITS
    draws = np.full((len(weights), len(scores)), np.nan) if few else first_components_of_resamples(scores, weights)
    return _rank_draws(scores, draws, np.isfinite(scores).sum(axis=1) < 2, units)


def ranks_over_noise(scores: np.ndarray, stderr: np.ndarray, resamples: int, rng: np.random.Generator) -> RankDraws:
    """Ranks when each score is drawn again from N(score, stderr²): these benchmarks, other items.

    A parametric bootstrap. Where a standard error is missing the draws are NaN for that model.
    """
    unknown = (np.isfinite(scores) & ~np.isfinite(stderr)).any(axis=1)
    noise = np.where(np.isfinite(stderr), stderr, 0.0)
    step = max(1, AT_ONCE // max(1, scores.size))
    parts = [np.empty((0, len(scores)))]
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        parts.append(first_components(scores + noise * rng.standard_normal((size, *scores.shape))))
    found = _rank_draws(scores, np.concatenate(parts))
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
