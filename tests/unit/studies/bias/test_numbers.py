"""Effects of cells, tasks and experiments against values worked out by hand, scipy and enumeration."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.datasets import make_regression
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

from lm_validity.results.put import Rows, ends_of
from lm_validity.studies.bias import numbers
from lm_validity.studies.bias.numbers import cell_rows, mean_rows, task_rows, trial_rows
from lm_validity.studies.bias.statistics.model import meta_analysis
from lm_validity.studies.bias.trials import pair_arms, paired_counts
from lm_validity.words import Missing

KEYS = ["experiment", "language_model", "m", "n", "task", "subsample"]
BIAS, BOOST = {"effect": "bias"}, {"effect": "boost"}


def table(*trials):
    """Trials given as (n, task, subsample, base, extra, test)."""
    rows = [
        ("e", "lm", 50, n, task, subsample, arm, correct, n, None, np.nan)
        for n, task, subsample, *counts in trials
        for arm, correct in zip(("base", "extra", "test"), counts, strict=True)
        if correct is not None
    ]
    return pair_arms(pd.DataFrame(rows, columns=[*KEYS, "arm", "correct", "total", "test_hash", "pretraining_loss"]))


def biases(differences, total=1000):
    """Trials of tasks: by (task, language model, n) the bias of each subsample."""
    rows = [
        ("x", model, task, 50, n, subsample, total, 400.0, 500.0, 500.0 + total * value)
        for (task, model, n), values in differences.items()
        for subsample, value in enumerate(values)
    ]
    names = ["experiment", "language_model", "task", "m", "n", "subsample", "total", "base", "extra", "test"]
    return pd.DataFrame(rows, columns=names)


def put(maker, trials):
    """What it makes of the trials."""
    rows = Rows("bias")
    maker(rows, trials)
    return rows


@pytest.mark.parametrize(
    ("trials", "boost", "bias"),  # of each the mean and its standard error
    [  # boosts by trial: .2 .2 .0 .1, task means .2 .05; biases .1 -.1 .3 .2, task means 0 .25
        ([(10, "a", 1, 2, 4, 5), (10, "a", 2, 3, 5, 4), (10, "b", 1, 5, 5, 8), (10, "b", 2, 5, 6, 8)],
         (0.125, stats.sem([0.2, 0.05])), (0.125, 0.125)),
        # by trial it would be .36
        ([*[(10, "a", s, 0, 4, 8) for s in range(1, 10)], (10, "b", 1, 0, 0, 0)], (0.2, 0.2), (0.2, 0.2)),
        ([(10, "a", 1, 2, 4, 5)], (0.2, None), (0.1, None)),
        ([(10, "a", 1, None, 4, 5), (10, "a", 2, 1, 2, None)], (0.1, None), (0.1, None)),
        ([(10, "a", 1, 3, 4, None)], (0.1, None), (None, None)),
    ],
)  # fmt: skip
def test_a_cell_is_the_mean_of_its_tasks_means(trials, boost, bias):
    rows = put(cell_rows, table(*trials))
    for where, expected in ((BOOST, boost), (BIAS, bias)):
        found = [rows.row(name, **where) for name in ("cell_effect", "cell_effect_standard_error")]
        assert [row.value for row in found] == [None if value is None else pytest.approx(value) for value in expected]
        assert all(row.value is not None or row.reason for row in found)
    assert rows.value("cell_trials") == len(trials)


def test_tasks_weigh_cells_not_trials():
    tasks = [(10, "a", 1, 0, 0, 5), (10, "a", 2, 0, 0, 5), (10, "a", 3, 0, 0, 5), (20, "a", 1, 0, 10, 0)]
    rows = put(task_rows, table(*tasks))
    # by cell: bias .5 and -.5, mean 0; by trial it would be (3 x .5 - .5) / 4 = .25
    assert rows.value("task_effect", **BIAS) == 0.0 and rows.value("task_effect", **BOOST) == pytest.approx(0.25)
    cancel = [(100, "a", s, 0, 29 + d, 29 - d) for s, d in enumerate((7, -3, -4, 1, -1))]
    assert put(task_rows, table(*cancel)).value("task_effect", **BIAS) == 0.0


@pytest.mark.parametrize("tasks", [2, 3, 6])
def test_a_mean_over_tasks_has_the_t_interval_excludes_and_detects_as_its_t_tests(tasks):
    values = np.array([0.002, -0.001, 0.0015, 0.0005, -0.0005, 0.001])[:tasks]
    mean, error = numbers.mean_over_tasks(values), stats.sem(values)
    assert mean.interval == pytest.approx(tuple(stats.ttest_1samp(values, 0).confidence_interval(0.95)))
    # an effect of exactly this size is rejected at exactly 5%, and the interval's power is that of its t test
    ends = {"less": mean.excluded_beyond, "greater": -mean.excluded_beyond}
    tests = [stats.ttest_1samp(values, end, alternative=side).pvalue for side, end in ends.items()]
    assert max(tests) == pytest.approx(0.05)
    shift, critical = mean.smallest_detectable / error, stats.t.ppf(0.975, tasks - 1)
    found = stats.nct.sf(critical, tasks - 1, shift) + np.nan_to_num(stats.nct.cdf(-critical, tasks - 1, shift))
    assert found == pytest.approx(0.8)


@pytest.mark.parametrize("others", ["", "b", "bc", "bcd"])
def test_an_effect_in_one_of_many_experiments_is_held_against_their_number(others):
    """The t test by scipy at 5% over the number of experiments; experiments without the bias do not count."""
    values, none = np.array([0.01, 0.02, 0.05, 0.03, 0.01]), np.array([-0.01, 0.02, -0.03, 0.02, 0.0])
    made = {"a": values} | dict.fromkeys(others, none)
    trials = [
        biases({(f"t{place}", "lm", 100): [value] for place, value in enumerate(found)}).assign(experiment=name)
        for name, found in made.items()
    ]
    without = biases({("t0", "lm", 100): [0.0]}).assign(experiment="no test arm", test=np.nan)
    rows, number = put(mean_rows, pd.concat([*trials, without])), 1 + len(others)
    row = rows.row("effect", experiment="a", **BIAS)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(1 - 0.05 / number)
    assert ends_of(row) == pytest.approx((low, high))
    assert rows.value("effect_experiments", experiment="a", **BIAS) == number
    assert rows.row("effect", experiment="no test arm", **BIAS).value is None
    at_once = stats.ttest_1samp(values, 0, alternative="less").confidence_interval(1 - 0.05 / number)
    assert rows.value("effect_excluded_beyond", experiment="a", **BIAS) == pytest.approx(at_once.high)
    shift = rows.value("effect_smallest_detectable", experiment="a", **BIAS) / stats.sem(values)
    assert stats.nct.sf(stats.t.ppf(1 - 0.025 / number, 4), 4, shift) == pytest.approx(0.8, abs=1e-6)


def test_language_models_share_their_subsamples_and_cells_weigh_the_same():
    """Two models with the same differences are one draw of each subsample, not two."""
    values = [0.01, 0.03, -0.02, 0.05]

    def effect(differences):
        return put(task_rows, biases(differences)).row("task_effect", **BIAS)

    once, twice = (effect({("t", model, 100): values for model in models}) for models in ("a", "ab"))
    assert ends_of(twice) == pytest.approx(ends_of(once))
    assert effect({("t", "a", 50): [0.0, 0.0, 0.0], ("t", "a", 100): [0.02]}).value == pytest.approx(0.01)
    alone = effect({("t", "a", 50): [0.01]})
    assert alone.value == pytest.approx(0.01) and alone.low is None and alone.reason_code == "too_few"


def test_each_task_is_tested_by_itself_after_holm():
    """Equal draws have no spread and no test, and are no task among those that the others are adjusted for."""
    values = {"t1": [0.04, 0.05, 0.03, 0.045], "t2": [0.01, 0.03, -0.02, 0.05], "t3": [0.02] * 4}
    rows = put(task_rows, biases({(task, "lm", 100): found for task, found in values.items()}))
    found = [row.value for row in rows.all("task_effect_p_adjusted")]
    p = [stats.ttest_1samp(values[task], 0).pvalue for task in ("t1", "t2")]
    assert found == [pytest.approx(2 * p[0]), pytest.approx(p[1]), None]


def test_trials_have_exact_tests_over_the_tasks_of_a_cell_and_their_quantiles(trials):
    frame = trials(models=2, tasks=5, sizes=(40,), subsamples=9)
    rows = put(trial_rows, frame)
    assert len(rows.all("permutation_p")) == len(rows.all("subsample_effect")) == 2 * 5 * 2
    for model, effect in product(("lm0", "lm1"), ("bias", "boost")):
        at = {"language_model": model, "effect": effect}
        p, q = ([row.value for row in rows.all(name, **at)] for name in ("permutation_p", "permutation_p_adjusted"))
        assert q == pytest.approx(stats.false_discovery_control(p))
    at = {"language_model": "lm1", "subject": "task2"}
    own = frame[(frame["task"] == "task2") & (frame["language_model"] == "lm1")]
    differences = np.sort(((own["test"] - own["extra"]) / own["total"]).to_numpy())
    median, inner = (rows.row("subsample_effect", over, **at, **BIAS) for over in (None, "middle_subsamples"))
    assert (median.value, median.level, inner.level, median.n) == (differences[4], 0.9, 0.5, 9)
    assert (inner.low, inner.high) == (differences[2], differences[6])


@pytest.mark.parametrize("seed", range(6))
def test_the_sign_flip_test_equals_enumeration_of_all_signs(seed):
    differences = np.random.default_rng(seed).integers(-4, 6, 9)
    sums = np.array(list(product((-1, 1), repeat=9))) @ differences
    assert numbers.sign_flip_p(differences) == pytest.approx(np.mean(sums >= differences.sum()), abs=1e-15)


def test_slices_are_right_without_training_noise_and_too_sure_with_it(trials):

    def found(slices=40, **layout):
        return meta_analysis(paired_counts(trials(**layout), "bias"), slices)

    assert 0.03 < found(150, tasks=12, subsamples=60, sizes=(100,)).excluding_zero < 0.22  # slices share their trials
    assert found(150, tasks=12, subsamples=60, sizes=(500,), noise=0.4).excluding_zero > 0.4
    planted = {"tasks": 12, "subsamples": 10, "sizes": (100,), "shift": {"test": 0.5}}
    assert found(**planted).beyond > 0.95 and found(**planted) == found(**planted)
    assert isinstance(found(subsamples=1, sizes=(40,)), Missing)


def test_pca_trials_equal_scikit_learn():
    result = numbers.simulate_pca(effective_rank=10, n=40, trials=2)
    x, y = make_regression(180, n_features=20, n_informative=10, effective_rank=10, noise=1.0, random_state=123)
    for trial in range(2):
        train, rest = train_test_split(np.arange(180), train_size=100, random_state=42 + trial)
        extra, test = train_test_split(rest, train_size=40, test_size=40, random_state=43 + trial)
        projections = [x, *(PCA(6).fit(x[rows]).transform(x) for rows in (extra, test))]
        expected = [LinearRegression().fit(p[train], y[train]).score(p[test], y[test]) for p in projections]
        assert result[trial] == pytest.approx(expected, abs=1e-9)
