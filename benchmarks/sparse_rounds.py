"""What rounds chosen by earlier scores cost, and how near they come to the full grid, on the published table.

    python benchmarks/sparse_rounds.py [--seeds 5] [--goals tau=.96 rank=3] [--output FILE]

Each seed draws the default plan, hides every prepared score that is not planned, and adds rounds as `lm-validity next`
does until the goal is reached. Beside it, as many hours of random cells. Then models that join: each is hidden whole
and placed by the cells that `lm-validity add-model` chooses. Needs the published scores in ../shared/published.
"""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from sparse_grid import Published

from lm_validity.monitor.planning import cheap_and_block, total
from lm_validity.site.rounds import Goal, parse_goal, round_is_full
from lm_validity.studies.agreement.statistics.ranking import kendall_tau, pair_signs
from lm_validity.studies.agreement.statistics.sparse import (
    DRAWS,
    CellProcess,
    Choice,
    fit_process,
    mean_standing,
    pooled_tau,
    rank_draws,
    widening_of,
)

MOST_ROUNDS = 20


class Measuring:
    """The published table with some cells measured."""

    def __init__(self, table: Published, known: np.ndarray):
        self.table, self.known = table, known
        self.hours = np.array([[table.costs[m, b].hours for b in table.benchmarks] for m in table.models])

    def fit(self) -> CellProcess:
        """The process of the measured cells."""
        table = self.table
        scores = np.where(self.known, table.scores, np.nan)
        return fit_process(scores, table.stderr, table.direct, table.size, table.families)

    def tables(self, seed: int) -> np.ndarray:
        """Draws of the whole table."""
        process = self.fit()
        return process.draws(DRAWS, np.random.default_rng(seed), widening_of(process.residuals()))

    @property
    def open_hours(self) -> np.ndarray:
        """Hours of unmeasured cells, inf for measured ones."""
        return np.where(self.known | ~np.isfinite(self.table.scores), np.inf, self.hours)

    def add_round(self, goal: Goal, seed: int) -> bool:
        """Measure a round as `next` chooses it; False where the goal is reached."""
        choice = Choice(self.tables(seed))
        before, number = choice.outlook(), 0
        if goal.reached(before):
            return False
        for step in choice.steps(self.open_hours, goal.models(before)):
            self.known[step.model, step.benchmark] = True
            number += 1
            if round_is_full(goal, step.outlook, number, self.known.size):
                break
        return number > 0

    def judge(self, seed: int) -> dict:
        """Against the full table."""
        whole, tables = self.table.scores, self.tables(seed)
        low, high = np.quantile(rank_draws(tables), [0.025, 0.975], axis=0)
        rank, now = rank_draws(whole[None])[0], Choice(tables).outlook()
        return {
            "cells": self.known.mean(),
            "hours": (self.hours * self.known).sum() / self.hours.sum(),
            "expected tau": now.tau,
            "ranking tau": kendall_tau(mean_standing(tables).mean(axis=0), mean_standing(whole)),
            "rank half-width": now.half_width.mean(),
            "widest": now.half_width.max(),
            "rank coverage": np.mean((low <= rank) & (rank <= high)),
        }


def follow_goal(table: Published, goal: Goal, seed: int) -> list[dict]:
    """The first round, rounds until the goal, and the first round with as many hours of random cells."""
    first = planned(table, seed)
    run, truth = Measuring(table, first.copy()), pooled_tau(pair_signs(table.scores)).mean
    found = [{"what": "first round", "rounds": 1} | run.judge(seed)]
    rounds = 1
    while rounds < MOST_ROUNDS and run.add_round(goal, seed):
        rounds += 1
    headline, everything = (
        pooled_tau(pair_signs(np.where(known, table.scores, np.nan))).mean - truth for known in (first, run.known)
    )
    errors = {"pooled error, planned": headline, "pooled error, all cells": everything}
    found.append({"what": f"until {goal}", "rounds": rounds} | run.judge(seed) | errors)
    rng, spent = np.random.default_rng(seed), (run.hours * run.known).sum()
    random = Measuring(table, first.copy())
    for place in rng.permutation(np.flatnonzero(np.isfinite(random.open_hours).ravel())):
        if (random.hours * random.known).sum() >= spent:
            break
        random.known.ravel()[place] = True
    found.append({"what": f"as many hours as {goal}, random", "rounds": 2} | random.judge(seed))
    return found


def join(table: Published, row: int, numbers: tuple[int, ...] = (0, 4, 8)) -> list[dict]:
    """A model whose row is hidden, placed by so many cells as `add-model` chooses them."""
    run = Measuring(table, np.isfinite(table.scores))
    run.known[row] = False
    only = (np.arange(len(table.models)) == row)[:, None]
    chosen, found = [], []
    steps = Choice(run.tables(row)).steps(np.where(only, run.open_hours, np.inf), only[:, 0])
    expected = [run_outlook.half_width[row] for run_outlook in _outlooks(steps, chosen, max(numbers))]
    truth = rank_draws(table.scores[None])[0, row]
    for number in numbers:
        for benchmark in chosen[:number]:
            run.known[row, benchmark] = True
        low, high = np.quantile(rank_draws(run.tables(row))[:, row], [0.025, 0.975])
        spent = run.hours[row, chosen[:number]].sum() / run.hours[row].sum()
        found.append(
            {
                "cells": number,
                "chosen": len(chosen[:number]),
                "hours": spent,
                "half-width": (high - low) / 2,
                # a choice ends where no further cell is expected to help
                "expected half-width": expected[min(number, len(expected)) - 1] if number else (high - low) / 2,
                "coverage": float(low <= truth <= high),
            }
        )
    return found


def _outlooks(steps, chosen: list[int], most: int):
    """The outlooks of the first steps; their benchmarks are put into `chosen`."""
    for step in islice(steps, most):
        chosen.append(step.benchmark)
        yield step.outlook


def planned(table: Published, seed: int) -> np.ndarray:
    """(models, benchmarks) True in the default plan."""
    size = {model: table.size[row, 0] for row, model in enumerate(table.models)}
    cells = {(one.model, one.benchmark) for one in cheap_and_block(table.costs, size, seed)}
    assert total(table.costs, cells).hours > 0
    return np.array([[(model, name) in cells for name in table.benchmarks] for model in table.models])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--goals", nargs="*", default=["tau=.96", "rank=3"])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--joining", type=int, default=20, help="models that join, spread over the sheet")
    options = parser.parse_args()
    table = Published()
    if options.joining:
        rows = np.linspace(0, len(table.models) - 1, options.joining).round().astype(int)
        joined = pd.DataFrame([one for row in rows for one in join(table, row)])
        print(joined.groupby("cells").mean().round(3).to_string())
    rows = [
        {"seed": seed} | row
        for goal in map(parse_goal, options.goals)
        for seed in range(options.seeds)
        for row in follow_goal(table, goal, seed)
    ]
    if options.output:
        pd.DataFrame(rows).to_csv(options.output, sep="\t", index=False, float_format="%.5f")
    if not rows:
        return
    means = pd.DataFrame(rows).groupby("what", sort=False).mean(numeric_only=True).drop(columns="seed")
    print(means.T.round(4).to_string())


if __name__ == "__main__":
    main()
