"""Which unmeasured cells would say most about the ranks for what they cost, from draws of the whole table."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import average_ranks
from lm_validity.studies.agreement.statistics.sparse.standing import mean_standing, rank_draws

LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class Outlook:
    """How sure the ranks are. `tau`: expected agreement of the estimated ranking with the one that all cells would
    give; `half_width`: (models,) half of the central 95% of each rank."""

    tau: float
    half_width: np.ndarray


@dataclass(frozen=True)
class Step:
    """A chosen cell (`model` and `benchmark` numbers), and what is expected once it and those before it are measured.

    `reduction`: of the sum of the rank variances it was chosen for.
    """

    model: int
    benchmark: int
    reduction: float
    outlook: Outlook


class Choice:
    """Cells chosen one after the other from `tables` (draws, models, benchmarks), in which measured cells are the same
    in every draw.

    What a cell would say of the ranks is taken to be linear: measuring y leaves of a rank r what a straight line in y
    does not explain, so that the variance falls by cov(r, y)² / var(y). Chance correlations of n draws, var(r) / n for
    each rank, are taken off. After a choice, ranks, standings and all cells are replaced by what the line leaves, which
    makes the next choice one that knows the first.
    """

    def __init__(self, tables: np.ndarray):
        self._standing, self._ranks = mean_standing(tables), rank_draws(tables)
        self._standing_left, self._ranks_left, self._cells_left = (
            values - values.mean(axis=0) for values in (self._standing, self._ranks, tables)
        )

    def outlook(self) -> Outlook:
        """As it is now, or is expected to be once the chosen cells are measured.

        A draw is a table that may be the true one. Its standings less what is left unexplained are those that would be
        estimated then, so the mean of tau between the two over draws is the agreement to expect. Ranks are drawn by
        what is left around the mean standings.
        """
        ranks = average_ranks((self._standing.mean(axis=0) + self._standing_left).T)
        low, high = np.quantile(ranks, [0.025, 0.975], axis=1)
        first, second = np.triu_indices(self._standing.shape[1], 1)
        estimated = self._standing - self._standing_left
        signs = [np.sign(values[:, first] - values[:, second]) for values in (estimated, self._standing)]
        return Outlook(float((signs[0] * signs[1]).mean()), (high - low) / 2)

    def reductions(self, models: np.ndarray) -> np.ndarray:
        """(models, benchmarks) by how much the sum of the rank variances of `models` (a mask) is expected to fall."""
        ranks, cells = self._ranks_left[:, models], self._cells_left
        variance = (cells**2).mean(axis=0)
        shared = np.tensordot(ranks, cells, (0, 0)) / len(cells)
        explained = (shared**2).sum(axis=0) - variance * (ranks**2).mean(axis=0).sum() / len(cells)
        open_cells = variance > LEAST_VARIANCE
        return np.divide(explained, variance, out=np.zeros_like(variance), where=open_cells).clip(0)

    def measure(self, model: int, benchmark: int) -> None:
        """Go on as if the cell were measured."""
        value = self._cells_left[:, model, benchmark].copy()
        self._standing_left, self._ranks_left, self._cells_left = (
            values - np.multiply.outer(value, np.tensordot(value, values, 1) / (value @ value))
            for values in (self._standing_left, self._ranks_left, self._cells_left)
        )

    def steps(self, hours: np.ndarray, models: np.ndarray, most_hours: float = np.inf) -> Iterator[Step]:
        """The cell with the greatest expected reduction an hour, then the next, while there is one that helps.

        `hours`: (models, benchmarks) what a cell costs, inf for those that cannot be chosen. `models`: (models,) the
        mask of those whose ranks matter. `most_hours`: of all chosen cells together.
        """
        free, left = np.isfinite(hours), most_hours
        while True:
            found = self.reductions(models) * (free & (hours <= left))
            rate = np.divide(found, hours, out=np.zeros_like(found), where=(found > 0) & (hours > 0))
            model, benchmark = np.unravel_index(rate.argmax(), rate.shape)
            if rate[model, benchmark] <= 0:
                return
            free[model, benchmark], left = False, left - hours[model, benchmark]
            self.measure(model, benchmark)
            yield Step(int(model), int(benchmark), float(found[model, benchmark]), self.outlook())
