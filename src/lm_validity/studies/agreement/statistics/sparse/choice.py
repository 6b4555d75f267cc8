"""Which unmeasured cells would say most about the ranks for what they cost, from draws of the whole table."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lm_validity.studies.agreement.statistics.ranking import average_ranks
from lm_validity.studies.agreement.statistics.sparse.standing import mean_standing, rank_draws

LEAST_VARIANCE = 1e-12
DRAWS = 4000  # that a choice takes, where they fit into memory; half of them to learn from
DRAWS_A_CELL = 4  # to learn from, for each chosen cell: with fewer, lines through them are mostly chance


@dataclass(frozen=True)
class Outlook:
    """How sure the ranks are. `tau`: expected agreement of the estimated ranking with the one that all cells would
    give; `half_width`: (models,) half of the central 95% of each true rank less the estimated one."""

    tau: float
    half_width: np.ndarray


@dataclass(frozen=True)
class Step:
    """A chosen cell (`model` and `benchmark` numbers), and what is expected once it and those before it are measured.

    `reduction`: of the sum of the rank variances it was chosen for, at least 0.
    """

    model: int
    benchmark: int
    reduction: float
    outlook: Outlook


class Choice:
    """Cells chosen one after the other from `tables` (draws, models, benchmarks), in which measured cells are the same
    in every draw.

    What a cell would say of the ranks is taken to be linear: measuring y leaves of a rank r what a straight line in y
    does not explain, so that the variance falls by cov(r, y)² / var(y). After a choice, ranks, standings and all cells
    are replaced by what the line leaves, which makes the next choice one that knows the first.

    Lines and choices are learnt from the first half of the draws. What is expected of them is read off the second half,
    which had no part in them: on its own draws a line also explains what only chance has in common with the cell.
    """

    def __init__(self, tables: np.ndarray):
        self._half, self._open = len(tables) // 2, np.ptp(tables, axis=0) > 0
        self._standing = mean_standing(tables)
        self._standing_left, self._ranks_left, self._cells_left = (
            values - values[: self._half].mean(axis=0)
            for values in (self._standing, rank_draws(tables), tables[:, self._open])
        )

    def outlook(self) -> Outlook:
        """As it is now, or is expected to be once the chosen cells are measured.

        A draw is a table that may be the true one. Its standings less what is left unexplained are those that would be
        estimated then. The mean of tau between the two over draws is the agreement to expect, and the central 95% of
        the true rank less the estimated one is how wide a rank's interval must be, wherever the model turns out to be.
        """
        truth, left = self._standing[self._half :], self._standing_left[self._half :]
        estimated = truth - left
        low, high = np.quantile(average_ranks(truth.T) - average_ranks(estimated.T), [0.025, 0.975], axis=1)
        first, second = np.triu_indices(truth.shape[1], 1)
        signs = [np.sign(values[:, first] - values[:, second]) for values in (estimated, truth)]
        return Outlook(float((signs[0] * signs[1]).mean()), (high - low) / 2)

    def reductions(self, models: np.ndarray) -> np.ndarray:
        """(models, benchmarks) by how much the sum of the rank variances of `models` (a mask) is expected to fall.

        Chance correlations of n draws, var(r) / n for each rank, are taken off.
        """
        ranks, cells = self._ranks_left[: self._half, models], self._cells_left[: self._half]
        variance = (cells**2).mean(axis=0)
        shared = np.tensordot(ranks, cells, (0, 0)) / len(cells)
        explained = (shared**2).sum(axis=0) - variance * (ranks**2).mean(axis=0).sum() / len(cells)
        found = np.zeros(self._open.shape)
        told = np.divide(explained, variance, out=np.zeros_like(variance), where=variance > LEAST_VARIANCE)
        found[self._open] = told.clip(0)
        return found

    def measure(self, model: int, benchmark: int) -> None:
        """Go on as if the cell were measured."""
        place = np.count_nonzero(self._open.ravel()[: model * self._open.shape[1] + benchmark])
        value = self._cells_left[:, place].copy()
        learnt = value[: self._half]
        for values in (self._standing_left, self._ranks_left, self._cells_left):
            line = np.tensordot(learnt, values[: self._half], 1) / (learnt @ learnt)
            values -= np.multiply.outer(value, line)

    def steps(self, hours: np.ndarray, models: np.ndarray, most_hours: float = np.inf) -> Iterator[Step]:
        """The cell with the greatest expected reduction an hour, then the next, while there is one that helps, and at
        most an eighth as many as there are draws.

        `hours`: (models, benchmarks) what a cell costs, inf for those that cannot be chosen. `models`: (models,) the
        mask of those whose ranks matter. `most_hours`: of all chosen cells together.
        """
        free, left, before = np.isfinite(hours), most_hours, self._unsure(models)
        for _ in range(self._half // DRAWS_A_CELL):
            found = self.reductions(models) * (free & (hours <= left))
            rate = np.divide(found, hours, out=np.zeros_like(found), where=(found > 0) & (hours > 0))
            model, benchmark = np.unravel_index(rate.argmax(), rate.shape)
            if rate[model, benchmark] <= 0:
                return
            free[model, benchmark] = False
            left -= float(hours[model, benchmark])
            self.measure(model, benchmark)
            now = self._unsure(models)
            yield Step(int(model), int(benchmark), max(0.0, before - now), self.outlook())
            before = now

    def _unsure(self, models: np.ndarray) -> float:
        """The sum of the rank variances that are left, of draws that nothing was learnt from."""
        return float((self._ranks_left[self._half :, models] ** 2).mean(axis=0).sum())
