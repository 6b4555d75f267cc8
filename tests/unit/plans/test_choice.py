"""Choosing cells for the ranks: against regressions, scipy, and cases with one answer."""

import itertools

import numpy as np
import pytest

from lm_validity.plans.rounds import CellChoice
from lm_validity.studies.agreement.statistics.ranking import average_ranks
from lm_validity.studies.agreement.statistics.sparse import mean_standing, rank_draws

EVERYONE = np.ones(5, dtype=bool)


@pytest.fixture
def tables():
    """400 draws of 5 models × 3 benchmarks; the last benchmark is measured."""
    rng = np.random.default_rng(0)
    ability = rng.normal(size=(400, 5, 1))
    drawn = ability + 0.5 * rng.normal(size=(400, 5, 3))
    drawn[..., 2] = np.arange(5.0)
    return drawn


def test_a_reduction_is_what_a_regression_on_the_cell_explains(tables):
    found, learnt = CellChoice(tables).reductions(EVERYONE), tables[:200]
    ranks = rank_draws(learnt)
    for i, j in itertools.product(range(5), range(2)):
        explained = [np.corrcoef(learnt[:, i, j], rank)[0, 1] ** 2 * rank.var() for rank in ranks.T]
        assert found[i, j] == pytest.approx(max(0, sum(explained) - ranks.var(axis=0).sum() / 200))
    assert (found[:, 2] == 0).all()  # measured: nothing to learn
    one = np.arange(5) == 1
    assert CellChoice(tables).reductions(one)[1, :2].min() > 10 * CellChoice(tables).reductions(one)[0, :2].max()


def many_cells(draws: int, seed: int) -> np.ndarray:
    """16 models of unlike ability × 12 benchmarks, of which only the first two can be chosen: most stays unsure."""
    return np.linspace(-1, 1, 16)[:, None] + np.random.default_rng(seed).normal(size=(draws, 16, 12))


@pytest.mark.parametrize(("draws", "least", "most"), [(280, 1.0, 1.4), (4000, 0.97, 1.06)])
def test_what_is_expected_holds_on_other_draws(draws, least, most):
    """32 cells of 280 draws explain much of them by chance, on which nothing may be built."""
    tables, others = many_cells(draws, 0), many_cells(12_000, 1)
    hours = np.where(np.arange(12) < 2, 1.0, np.inf) * np.ones((16, 1))
    *_, last = CellChoice(tables).steps(hours, np.ones(16, dtype=bool))
    standing, inputs = mean_standing(others), others[..., :2].reshape(len(others), -1)
    inputs = np.column_stack([np.ones(len(others)), inputs])
    estimated = inputs @ np.linalg.lstsq(inputs, standing, rcond=None)[0]
    off = average_ranks(standing.T) - average_ranks(estimated.T)
    low, high = np.quantile(off, [0.025, 0.975], axis=1)
    assert least < last.outlook.half_width.mean() / ((high - low) / 2).mean() < most
    taus = (np.sign(pairs(standing)) * np.sign(pairs(estimated))).mean()
    assert last.outlook.tau < taus + 0.01
    ranks = rank_draws(others)
    left = ranks - inputs @ np.linalg.lstsq(inputs, ranks, rcond=None)[0]
    whole = rank_draws(tables)[draws // 2 :].var(axis=0).sum()
    fallen = sum(one.reduction for one in CellChoice(tables).steps(hours, np.ones(16, dtype=bool)))
    assert fallen < 1.3 * (ranks.var(axis=0) - left.var(axis=0)).sum() < whole


def pairs(values: np.ndarray) -> np.ndarray:
    """(draws, pairs) differences."""
    first, second = np.triu_indices(values.shape[1], 1)
    return values[:, first] - values[:, second]


def test_the_second_choice_knows_the_first(tables):
    """A cell that only repeats another one says nothing more."""
    tables[:, 0, 1] = tables[:, 0, 0]
    choice = CellChoice(tables)
    before = choice.reductions(EVERYONE)
    choice.measure(0, 0)
    after = choice.reductions(EVERYONE)
    assert before[0, 1] > 0.5 and after[0, 0] == after[0, 1] == 0 and after[1, 0] > 0.5


def test_once_everything_is_measured_the_ranks_are_sure():
    rng = np.random.default_rng(1)
    tables = np.broadcast_to(rng.normal(size=(12, 3)), (300, 12, 3)).copy()
    tables[:, 1, 1] += 0.4 * rng.normal(size=300)
    hours = np.where(np.arange(36).reshape(12, 3) == 4, 2.0, np.inf)
    (step,) = CellChoice(tables).steps(hours, np.ones(12, dtype=bool))
    before = CellChoice(tables).outlook()
    assert (step.model, step.benchmark) == (1, 1) and before.tau < 0.99 < step.outlook.tau
    assert step.outlook.half_width[1] < 0.5 * before.half_width[1]


def test_hours_decide_between_cells_that_say_as_much_and_none_is_chosen_that_must_not_be(tables):
    tables[:, 0, 1] = tables[:, 0, 0]
    hours = np.full((5, 3), np.inf)
    hours[0, :2] = 2.0, 1.0
    assert [(one.model, one.benchmark) for one in CellChoice(tables).steps(hours, EVERYONE)] == [(0, 1)]
    hours[:, :2] = 1.0
    chosen = [(one.model, one.benchmark) for one in CellChoice(tables).steps(hours, EVERYONE, most_hours=3.5)]
    assert len(chosen) == len(set(chosen)) == 3
    assert not list(CellChoice(tables).steps(hours, EVERYONE, most_hours=0.5))
