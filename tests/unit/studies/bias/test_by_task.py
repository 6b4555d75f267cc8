"""Effects of single tasks with intervals over subsamples."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lm_validity.missing import Missing
from lm_validity.studies.bias.effects import effects_by_task, tasks_found


def trials(differences: dict[tuple[str, int], list[float]], total: int = 1000) -> pd.DataFrame:
    """Trials of one task: by (language model, n) the bias of each subsample."""
    rows = [
        ("x", model, "t", 50, n, subsample, total, 400.0, 500.0, 500.0 + total * value)
        for (model, n), values in differences.items()
        for subsample, value in enumerate(values)
    ]
    names = ["experiment", "language_model", "task", "m", "n", "subsample", "total", "base", "extra", "test"]
    return pd.DataFrame(rows, columns=names)


def bias_of(frame: pd.DataFrame):
    return next(row for row in effects_by_task(frame) if row.effect == "bias")


def test_one_cell_is_students_interval():
    values = [0.01, 0.03, -0.02, 0.05, 0.0]
    found = bias_of(trials({("lm", 100): values}))
    interval = stats.ttest_1samp(values, 0).confidence_interval()
    assert found.mean == pytest.approx(np.mean(values)) and found.interval == pytest.approx(tuple(interval))
    error = stats.sem(values)
    assert found.excluded_beyond == pytest.approx(np.mean(values) + stats.t.ppf(0.95, 4) * error)
    assert (found.cells, found.subsamples, found.trials) == (1, 5, 5)


def test_language_models_share_their_subsamples():
    """Two models with the same differences are one draw of each subsample, not two."""
    values = [0.01, 0.03, -0.02, 0.05]
    once, twice = bias_of(trials({("a", 100): values})), bias_of(trials({("a", 100): values, ("b", 100): values}))
    assert twice.interval == pytest.approx(once.interval) and twice.trials == 8


def test_cells_weigh_the_same_and_one_subsample_has_no_interval():
    assert bias_of(trials({("a", 50): [0.0, 0.0, 0.0], ("a", 100): [0.02]})).mean == pytest.approx(0.01)
    found = bias_of(trials({("a", 50): [0.01]}))
    assert found.mean == pytest.approx(0.01) and isinstance(found.interval, Missing)


def test_each_task_is_tested_by_itself_after_holm():
    """Equal draws have no spread and no test, and are no task among those that the others are adjusted for."""
    values = {"t1": [0.04, 0.05, 0.03, 0.045], "t2": [0.01, 0.03, -0.02, 0.05], "t3": [0.02, 0.02, 0.02, 0.02]}
    frame = pd.concat([trials({("lm", 100): biases}).assign(task=task) for task, biases in values.items()])
    rows = [row for row in effects_by_task(frame) if row.effect == "bias"]
    p = [stats.ttest_1samp(values[task], 0).pvalue for task in ("t1", "t2")]
    assert rows[0].p_adjusted == pytest.approx(2 * p[0]) and rows[1].p_adjusted == pytest.approx(p[1])
    assert isinstance(rows[2].p_adjusted, Missing)
    assert [row.task for row in tasks_found(rows)] == ["t1"]
    assert all(isinstance(row.p_adjusted, Missing) for row in effects_by_task(frame) if row.effect != "bias")
