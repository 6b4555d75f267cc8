"""Plans on the published table: the null, another target, a family that is left out, cells that scores chose."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sparse_grid
from tests.unit.studies.agreement.conftest import incomplete_of

from lm_validity.config.load import BY_SCORES
from lm_validity.plans.drawing import balanced, cheap_and_block
from lm_validity.plans.rounds import DRAWS, CellChoice, Goal, parse_goal, round_is_full
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import PairSigns, kendall_tau_matrix, mean_over_pairs, pair_signs
from lm_validity.studies.agreement.statistics.sparse import fit_process, pooled_left_out, pooled_tau, widening_of
from lm_validity.tables.counted import Sources
from lm_validity.tables.formats.specs import read_lm_harmony
from lm_validity.tables.schema import SCORES, write_table

DIRECT, TRAINED = "direct", "train_before_test"
UNIT = 1.0

pytestmark = pytest.mark.published


@pytest.fixture(scope="module")
def rows(table) -> pd.DataFrame:
    """The published scores of the 24 benchmarks."""
    found = read_lm_harmony(sparse_grid.PUBLISHED / "scores.json")
    return found[found.benchmark.isin(table.benchmarks)]


def files_of(folder: Path, rows: pd.DataFrame, protocol: str, kept: dict[tuple, str]) -> list[Path]:
    """[scores, models, benchmarks, plan]: of one protocol only the cells `kept` (their reasons), of others all."""
    pairs = pd.MultiIndex.from_frame(rows[["model", "benchmark"]])
    write_table(rows[(rows.protocol != protocol) | pairs.isin(list(kept))], SCORES, folder / "scores.parquet")
    lines = "".join(f"{model}\t{benchmark}\t{reason}\n" for (model, benchmark), reason in kept.items())
    (folder / "plan.tsv").write_text("\t".join(("model", "benchmark", "reason")) + "\n" + lines)
    sheets = [sparse_grid.PUBLISHED / f"{name}.csv" for name in ("models", "benchmarks")]
    return [folder / "scores.parquet", *sheets, folder / "plan.tsv"]


def default_plan(table, seed: int) -> np.ndarray:
    """(models, benchmarks) True where the default plan of this seed has a cell."""
    size = dict(zip(table.models, table.size[:, 0], strict=True))
    planned = {(one.model, one.benchmark) for one in cheap_and_block(table.costs, size, seed)}
    return np.array([[(model, name) in planned for name in table.benchmarks] for model in table.models])


# ---- what the headlines are off by -----------------------------------------------------------------------------------


def test_pooled_headlines_of_a_plan_are_those_of_the_full_table(table):
    """Six plans: the change by training and the agreement among models of like size. The mean over pairs of benchmarks,
    in which a pair with few models in common weighs like any other, is off by ten times as much."""
    size = table.size[:, 0]  # logarithm of the number of parameters
    first, second = np.triu_indices(len(size), 1)
    like = np.abs(size[first] - size[second]) <= np.log(2) + 1e-9

    def taus(scores: np.ndarray) -> tuple[float, float, float, float]:
        signs = pair_signs(scores)
        near = PairSigns(*(part[like] for part in signs))
        means = (mean_over_pairs(kendall_tau_matrix(one)) for one in (signs, near))
        models = np.arange(len(size))
        return *(pooled_left_out(one, models)[0] for one in (signs, near)), *means

    def changes(known: np.ndarray) -> np.ndarray:
        trained, direct = (taus(np.where(known, values, np.nan)) for values in (table.scores, table.direct))
        return np.array([trained[0] - direct[0], trained[1], trained[2] - direct[2], trained[3]])

    truth = changes(np.ones(table.scores.shape, dtype=bool))
    errors = np.array([changes(default_plan(table, seed)) - truth for seed in range(6)])
    change, near, change_of_means, near_of_means = np.sqrt((errors**2).mean(axis=0))
    assert change < 0.015 and near < 0.025
    assert change_of_means > 3 * change and near_of_means > 3 * near


@pytest.mark.slow
def test_twenty_plans_meet_what_was_asked_of_them(table):
    """The mean ranking tau, the coverage of ranks, the error of the pooled tau and the cost; and on halves."""
    wanted = ("cheap and block, all", "cheap and block, half of the models", "cheap and block, half of the benchmarks")
    rows = [
        {"plan": case.name} | sparse_grid.measure(table, case, seed)
        for seed in range(20)
        for case in sparse_grid.cases(table, seed)
        if case.name in wanted
    ]
    found = sparse_grid.summarise(rows)
    whole = found.loc[wanted[0]]
    assert whole["plans"] == 20 and whole["ranking tau"] >= 0.94 and whole["rank coverage"] >= 0.92
    assert whole["pooled rmse"] <= 0.025 and whole["hours"] <= 0.25
    for name in wanted[1:]:
        assert found.loc[name, "plans"] == 40 and found.loc[name, "ranking tau"] >= 0.925


# ---- columns shuffled ------------------------------------------------------------------------------------------------


def null_deviation(known: np.ndarray) -> float:
    """Standard deviation of the pooled tau where every column is in random order, without ties.

    tau of n common models has the variance v(n) = 2 (2 n + 5) / (9 n (n - 1)) (Kendall 1938). Taus of two pairs of
    benchmarks are uncorrelated, also where they share a benchmark: given that column, each has the mean 0. The pooled
    tau weighs them by their comparisons c = n (n - 1) / 2, so its variance is sum c² v / (sum c)².
    """
    common = (known[:, :, None] & known[:, None, :]).sum(axis=0)[np.triu_indices(known.shape[1], 1)].astype(float)
    comparisons, variance = common * (common - 1) / 2, 2 * (2 * common + 5) / (9 * common * (common - 1))
    return float(np.sqrt((comparisons**2 * variance).sum()) / comparisons.sum())


def test_the_null_deviation_is_that_of_all_orders_of_three_columns():
    """Four models on three benchmarks of which the third lacks one: 24 x 6 tables, the first column's order fixed."""
    known = np.ones((4, 3), dtype=bool)
    known[3, 2] = False
    taus = []
    for second, third in itertools.product(itertools.permutations(range(4)), itertools.permutations(range(3))):
        scores = np.column_stack([np.arange(4.0), second, [*third, np.nan]])
        taus.append(pooled_tau(pair_signs(scores)).mean)
    assert np.mean(taus) == pytest.approx(0) and np.std(taus) == pytest.approx(null_deviation(known))


@pytest.mark.parametrize("sparse", [False, True])
def test_shuffled_columns_pool_to_zero_with_no_more_spread_than_chance(table, sparse):
    """The full table's own tau of shuffled columns has a standard deviation of .005, a plan's one of .012."""
    values, found = [], []
    for seed in range(100):
        known = default_plan(table, seed) if sparse else np.ones(table.scores.shape, dtype=bool)
        shuffled = np.random.default_rng(seed).permuted(table.scores, axis=0)
        values.append(pooled_tau(pair_signs(np.where(known, shuffled, np.nan))).mean)
        found.append(null_deviation(known))
    deviation = np.mean(found)
    assert deviation == pytest.approx(0.0120 if sparse else 0.0053, abs=2e-4)
    assert abs(np.mean(values)) < 4 * deviation / 10 < 0.02
    assert np.abs(values).max() < 4 * deviation
    # ties make it a little less
    assert 0.75 * deviation < np.std(values) < 1.2 * deviation


# ---- the direct scores as target -------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.25, pytest.param(0.5, marks=pytest.mark.slow)])
def test_intervals_of_predicted_direct_scores_hold_what_they_claim(table, rows, tmp_path, share):
    """The direct table with holes and no other table beside it: sizes and families only."""
    hours, inside = dict.fromkeys(table.costs, UNIT), []
    truth = rows[rows.protocol == DIRECT].set_index(["model", "benchmark"])["value"]
    for seed in range(3):
        kept = {(one.model, one.benchmark): one.reason for one in balanced(hours, seed, share * len(hours))}
        matrix = read_score_matrix(Sources(*files_of(tmp_path, rows[rows.protocol == DIRECT], DIRECT, kept)[:3]))
        found, predictions = incomplete_of(matrix, DIRECT)
        assert (found.value("cells"), len(predictions)) == (len(kept), len(hours) - len(kept))
        inside += [one.low <= truth[one.model, one.benchmark] <= one.high for one in predictions.itertuples()]
    assert 0.90 < np.mean(inside) < 0.97


# ---- cells that scores chose -----------------------------------------------------------------------------------------


def with_round(table: sparse_grid.Published, known: np.ndarray, goal: Goal) -> np.ndarray:
    """The measured cells (models, benchmarks) and those of a round as `next` chooses it."""
    scores, measured, losses = np.where(known, table.scores, np.nan), known.copy(), np.zeros((2, known.shape[1]), bool)
    process = fit_process(scores, table.stderr, table.direct, table.size, table.families, losses)
    choice = CellChoice(process.draws(DRAWS, np.random.default_rng(0), widening_of(process.residuals())))
    hours = np.array([[table.costs[model, name] for name in table.benchmarks] for model in table.models])
    steps = choice.steps(np.where(known | ~np.isfinite(table.scores), np.inf, hours), goal.models(choice.outlook()))
    for number, step in enumerate(steps, 1):
        measured[step.model, step.benchmark] = True
        if round_is_full(goal, step.outlook, number, known.size):
            break
    return measured


@pytest.mark.slow
def test_the_planned_tau_is_right_where_that_of_all_measured_cells_is_not(table, rows, tmp_path):
    """A fifth of the cells at random, then a round as `next` chooses it: models that are close, as many cells again."""
    planned = {
        (one.model, one.benchmark): one.reason for one in balanced(dict.fromkeys(table.costs, UNIT), 0, 0.2 * 1464)
    }
    known = np.array([[(model, name) in planned for name in table.benchmarks] for model in table.models])
    measured = with_round(table, known, parse_goal("rank=0.6"))
    chosen = [(table.models[i], table.benchmarks[j]) for i, j in zip(*np.nonzero(measured), strict=True)]
    reasons = {pair: planned.get(pair, BY_SCORES) for pair in chosen}
    assert sum(reason == BY_SCORES for reason in reasons.values()) == 147
    files = files_of(tmp_path, rows, TRAINED, reasons)
    truth = pooled_tau(pair_signs(table.scores)).mean
    found, every = (
        incomplete_of(read_score_matrix(Sources(*files[:3], plan=plan)), TRAINED)[0] for plan in (files[3], None)
    )
    assert [rows.value("cells_by_scores") for rows in (found, every)] == [147, 0]
    assert found.value("cells") == every.value("cells")
    pooled = found.row("tau_pooled")
    assert abs(pooled.value - truth) < 0.05 and pooled.low < truth
    assert abs(found.value("tau_assisted") - truth) < 0.05
    assert every.value("tau_pooled") - truth < -0.15
