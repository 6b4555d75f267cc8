"""The numbers of the bias study as rows: means over tasks, by setting, by cell and task by task, where tasks stop, what
a hierarchical model says, and two simulations.

Effects are fractions of accuracy: boost = accuracy(extra) - accuracy(base), bias = accuracy(test) - accuracy(extra).
Differences are those of integer counts, so a task without a difference is exactly 0. Trials that lack an arm of an
effect do not count for that effect. `trials` is the frame of `trials.pair_arms` throughout.
"""

import os
from functools import cache
from itertools import product
from typing import NamedTuple

import joblib
import numpy as np
import pandas as pd
from scipy import optimize, stats
from threadpoolctl import threadpool_limits

from lm_validity.config.load import BiasPlan
from lm_validity.errors import InputError
from lm_validity.results.put import Rows, ends_of, labels_of
from lm_validity.statistics import holm
from lm_validity.studies.bias.statistics import model
from lm_validity.studies.bias.statistics.latent import FORMULAS, PairedCounts, build_design
from lm_validity.studies.bias.trials import CELL, EFFECTS, SETTING, setting_counts
from lm_validity.words import Missing, Reason, ReasonCode, is_known, known, too_few

LEVEL, POWER = 0.05, 0.8
ROUNDING = 1e-12  # accuracy; a spread below it is the rounding of equal numbers
ONE_TASK = Missing(too_few("Only one task has both arms. Standard errors and intervals need several."))
EQUAL_TASKS = Missing(
    Reason(
        "All tasks have the same difference: without a spread between them there is no interval and no test.",
        ReasonCode.NO_INTERVAL,
    )
)
ONE_SUBSAMPLE = Missing(too_few("One subsample has the two arms: the interval of a task is over subsamples."))
NO_SPREAD = Missing(
    Reason("All subsamples have the same difference: without a spread there is no interval.", ReasonCode.NO_INTERVAL)
)


def without_arms(effect: str) -> Missing:
    """Why an effect is unknown where no trial has both its arms."""
    return Missing(f"No trial there has the arms {' and '.join(reversed(EFFECTS[effect]))}.")


def with_difference(trials: pd.DataFrame, effect: str) -> pd.DataFrame:
    """The trials with both arms of `effect`, its `change` in right answers and its `difference` of accuracies."""
    treatment, control = EFFECTS[effect]
    change = trials[treatment] - trials[control]
    trials = trials.assign(change=change, difference=change / trials["total"])
    return trials[change.notna()] if change.hasnans else trials


def task_means(trials: pd.DataFrame, effect: str, keys: list[str]) -> pd.Series:
    """Mean `effect` by `keys`: the difference of the counts over the observations."""
    sums = with_difference(trials, effect).groupby(keys)[["change", "total"]].sum()
    return sums["change"] / sums["total"]


# ----------------------------------------------------------------------------------------------------------------------
# Averages over tasks, the sampling unit of the bias study: how large an effect is, and how large it is not.


class StudentTest(NamedTuple):
    """Of a mean with its error on so many degrees of freedom: Student's interval, what is excluded beyond it, and the
    two-sided p of 0.

    excluded_beyond: effects of this size or larger, up or down, are excluded at the test's level, by two one-sided
    tests (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15:657-680): |mean| + t(1 - level) error.
    """

    interval: tuple[float, float] | Missing
    excluded_beyond: float | Missing
    p: float | Missing


def t_test(mean: float, error: float, freedom: int, level: float = LEVEL) -> StudentTest:
    """The test of a mean whose error is above 0."""
    reach, beyond = (float(stats.t.ppf(1 - tail, freedom)) * error for tail in (level / 2, level))
    p = float(2 * stats.t.sf(abs(mean) / error, freedom))
    return StudentTest((mean - reach, mean + reach), abs(mean) + beyond, p)


class MeanOverTasks(NamedTuple):
    """Mean over tasks with its 95% t interval, and what is excluded beyond it, which hold over several experiments at
    once.

    smallest_detectable: an effect of this size would have had an interval without zero four times out of five.
    """

    mean: float
    interval: tuple[float, float] | Missing
    excluded_beyond: float | Missing
    smallest_detectable: float | Missing


def mean_over_tasks(values: np.ndarray, experiments: int = 1) -> MeanOverTasks:
    """Mean of (T,) task effects, fractions of accuracy, none of them NaN, with mean ± t(.975, T - 1) sd / √T.

    Student's interval: it takes the tasks as draws from a population of tasks like these. It fails where a few tasks
    differ far more than the others (heavy tails), or where tasks resemble each other. One task, and tasks that all have
    the same effect, have no interval. With several `experiments` its level, and that of the tests, is 5% over their
    number. Raises ValueError without tasks.
    """
    values = np.asarray(values, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("the mean over tasks takes at least one task, and only known effects")
    mean, tasks, level = float(values.mean()), len(values), LEVEL / experiments
    if tasks == 1 or np.ptp(values) <= ROUNDING:
        reason = ONE_TASK if tasks == 1 else EQUAL_TASKS
        return MeanOverTasks(mean, reason, reason, reason)
    error = float(values.std(ddof=1)) / float(np.sqrt(tasks))
    interval, excluded, _ = t_test(mean, error, tasks - 1, level)
    return MeanOverTasks(mean, interval, excluded, error * smallest_in_errors(tasks, level))


@cache
def smallest_in_errors(tasks: int, level: float) -> float:
    """The smallest effect, in standard errors of the mean, that a two-sided t test over `tasks` at `level` finds with
    probability `POWER`."""
    critical = stats.t.ppf(1 - level / 2, tasks - 1)

    def excess(shift: float) -> float:
        # scipy's far tail is NaN for some large shifts, where it is zero to any precision that matters
        wrong_side = np.nan_to_num(stats.nct.cdf(-critical, tasks - 1, shift))
        return float(stats.nct.sf(critical, tasks - 1, shift) + wrong_side) - POWER

    # the noncentrality that a t test on one degree of freedom needs is below 100 at 5%, and goes with 1 / level
    return float(optimize.brentq(excess, 0.0, 100 * LEVEL / level))


def mean_rows(rows: Rows, trials: pd.DataFrame) -> None:
    """`effect`: the mean over tasks of each experiment, of a task's mean over its cells, which weigh the same.

    Weighting trials instead would let the cells with small n, which have most subsamples, decide: in the published
    data 10 instead of 12 tasks then have a positive bias. Intervals hold over `effect_experiments` at once, each effect
    by itself: with many experiments one interval without 0 is found by chance. `setting_effect` is the same by (m, n);
    the language models of a task are averaged first.
    """
    for effect in EFFECTS:
        means = task_means(trials, effect, [*CELL, "task"]).groupby(["experiment", "task"]).mean()
        values = {name: of_experiment.to_numpy() for name, of_experiment in means.groupby("experiment")}
        # Bonferroni's correction for the experiments that have an interval
        tested = max(1, sum(is_known(mean_over_tasks(each).interval) for each in values.values()))
        for experiment in sorted(trials["experiment"].unique()):
            at = rows.of(experiment=experiment, effect=effect)
            if experiment not in values:
                at.put("effect", without_arms(effect), "accuracy", {"tasks": without_arms(effect)})
                continue
            mean, counted = mean_over_tasks(values[experiment], tested), ("tasks", len(values[experiment]))
            at.put("effect", mean.mean, "accuracy", {"tasks": mean.interval}, counted=counted)
            at.put("effect_excluded_beyond", mean.excluded_beyond, "accuracy", counted=counted)
            at.put("effect_smallest_detectable", mean.smallest_detectable, "accuracy", counted=counted)
            at.put("effect_experiments", tested if is_known(mean.interval) else 1, "experiments")
        by_model = task_means(trials, effect, [*SETTING, "task", "language_model"])
        for (experiment, m, n), of_setting in by_model.groupby([*SETTING, "task"]).mean().groupby(SETTING):
            mean, counted = mean_over_tasks(of_setting.to_numpy()), ("tasks", len(of_setting))
            at = rows.of(experiment=experiment, m=m, n=n, effect=effect)
            at.put("setting_effect", mean.mean, "accuracy", {"tasks": mean.interval}, counted=counted)


def cell_rows(rows: Rows, trials: pd.DataFrame) -> None:
    """`cell_effect`, the paper's table 1: the mean of the task means by language model, m and n, and its error.

    That is their standard deviation over the root of the number of tasks. Where every task has as many subsamples, the
    mean is that over all trials; elsewhere that would let the tasks with most subsamples decide, which are the noisiest
    ones where tasks stop on a width. `cell_subsamples` is the largest number that a task has, of whatever arms.
    """
    for (experiment, language_model, m, n), cell in trials.groupby(CELL):
        at, sizes = rows.of(experiment=experiment, language_model=language_model, m=m, n=n), cell.groupby("task").size()
        at.put("cell_subsamples", sizes.max(), "subsamples")
        at.put("cell_tasks", len(sizes), "tasks")
        at.put("cell_trials", len(cell), "trials")
        for effect in EFFECTS:
            means, of_effect, without = task_means(cell, effect, ["task"]), at.of(effect=effect), without_arms(effect)
            counted = (f"{effect}_tasks", len(means))
            value = float(means.mean()) if len(means) else without
            error = known(float(means.sem()), ONE_TASK.reason) if len(means) else without
            of_effect.put("cell_effect", value, "accuracy", counted=counted)
            of_effect.put("cell_effect_standard_error", error, "accuracy", counted=counted)


# ----------------------------------------------------------------------------------------------------------------------
# One task by itself: its mean effect with an interval over subsamples, its tests, and how its subsamples differ.


def task_rows(rows: Rows, trials: pd.DataFrame, plan: BiasPlan | None = None) -> None:
    """`task_effect` by (experiment, task), of trials with both arms.

    Every one of the C cells (language model, m, n) weighs the same. With d a trial's difference, n_c the trials of a
    cell and S the number of subsamples,

        mean ± t(.975, S - 1) · √(S / (S - 1) Σ_s u_s²),   u_s = Σ_c (d_cs - mean_c) / (C n_c)

    the cluster-robust error of the mean, subsamples being the clusters: language models share those of a number.

    With a `plan`, the bias' interval of a task that has not all subsamples is at least as wide as the width
    that it stops at, and what is excluded beyond it as much wider. The stop selects intervals that are narrow by
    chance. At this width the interval holds the truth at least as often as it says (docs/reference/coverage.md).

    `task_effect_p_adjusted`: of the t test of each bias' interval that it is 0, by Holm over all tasks of all
    experiments. In simulated studies without an effect 0% to 5.5% had one below 5%.
    """
    present = trials.groupby(["experiment", "task"])["subsample"].nunique()
    tests = list[tuple[Rows, float | Missing, int]]()  # of each bias the p, and over how many subsamples
    for effect in EFFECTS:
        for (experiment, task), group in with_difference(trials, effect).groupby(["experiment", "task"]):
            mean = float(group.groupby(CELL)["difference"].mean().mean())
            parts = apart(group).groupby(group["subsample"]).sum().to_numpy()
            may_stop = plan is not None and plan.may_stop(experiment, task, present[experiment, task])
            least = plan.half_width if plan and may_stop and effect == "bias" else 0.0
            test = over_subsamples(mean, parts, least)
            at = rows.of(experiment=experiment, subject=task, effect=effect)
            counted = ("subsamples", len(parts))
            at.put("task_effect", mean, "accuracy", {"subsamples": test.interval}, counted=counted)
            at.put("task_effect_excluded_beyond", test.excluded_beyond, "accuracy", counted=counted)
            at.put("task_effect_subsamples", len(parts), "subsamples")
            at.put("task_effect_trials", len(group), "trials")
            if effect == "bias":
                tests.append((at, test.p, len(parts)))
    adjusted = iter(holm(np.array([p for _, p, _ in tests if is_known(p)])).tolist())
    for at, p, number in tests:
        value = next(adjusted) if is_known(p) else p
        at.put("task_effect_p_adjusted", value, "probability", counted=("subsamples", number))


def apart(trials: pd.DataFrame) -> pd.Series:
    """Of each trial of a task: (d_cs - mean_c) / (C n_c), whose sums over cells are the u_s."""
    by_cell = trials.groupby(CELL)["difference"]
    return (trials["difference"] - by_cell.transform("mean")) / (by_cell.ngroups * by_cell.transform("size"))


def over_subsamples(mean: float, parts: np.ndarray, least: float) -> StudentTest:
    """The t test of the mean, with an interval of half-width `least` or more; `parts`: u (subsamples,)."""
    number = len(parts)
    if number < 2 or np.abs(parts).max() <= ROUNDING:
        return StudentTest(*[ONE_SUBSAMPLE if number < 2 else NO_SPREAD] * 3)
    error = float(np.sqrt(number / (number - 1) * (parts**2).sum()))
    return t_test(mean, max(error, least / float(stats.t.ppf(1 - LEVEL / 2, number - 1))), number - 1)


def sign_flip_p(differences: np.ndarray) -> float:
    """Exact one-sided p: P(sum of ±d_k >= observed sum), for (K,) integer differences (treated - control).

    At least 2^-K. Raises ValueError for an empty or non-integer array.
    """
    observed = np.asarray(differences)
    steps = np.rint(observed).astype(np.int64)
    if len(steps) == 0 or not np.array_equal(steps, observed):
        raise ValueError("the sign-flip test takes at least one whole-number difference")
    sizes = np.abs(steps[steps != 0])
    # counting how many flips go up: sum of ±d = 2 * (sum of the d that go up) - sum |d|
    distribution = np.ones(1)
    for size in sizes:
        beyond = np.zeros(size)
        distribution = 0.5 * (np.concatenate([distribution, beyond]) + np.concatenate([beyond, distribution]))
    up = int(sizes.sum() + steps.sum()) // 2
    return float(min(1.0, distribution[up:].sum()))


def trial_rows(rows: Rows, trials: pd.DataFrame) -> None:
    """By cell, task and effect: exact one-sided sign-flip tests, adjusted by Benjamini & Hochberg (1995) over the tasks
    of a cell, and `subsample_effect`, the paper's figure 1: the median over subsamples with their middle 90% and 50%.
    """
    levels = {"subsamples": 0.9, "middle_subsamples": 0.5}
    for effect in EFFECTS:
        for (experiment, language_model, m, n), cell in with_difference(trials, effect).groupby(CELL):
            of_cell = rows.of(experiment=experiment, language_model=language_model, m=m, n=n, effect=effect)
            by_task = cell.groupby("task")
            p = by_task["change"].agg(lambda values: sign_flip_p(values.to_numpy()))
            for (task, differences), q in zip(by_task["difference"], stats.false_discovery_control(p), strict=True):
                at = of_cell.of(subject=task)
                at.put("permutation_p", float(p[task]), "probability")
                at.put("permutation_p_adjusted", float(q), "probability")
                low, lower, median, upper, high = np.quantile(differences, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist()
                middle, counted = dict(zip(levels, ((low, high), (lower, upper)), strict=True)), len(differences)
                at.put("subsample_effect", median, "accuracy", middle, counted=("subsamples", counted), level=levels)


# ----------------------------------------------------------------------------------------------------------------------
# Where tasks stop on the width of their interval.

STOPPED, OPEN, ALL, PLANNED = "stopped", "too wide", "all subsamples", "planned, not there yet"
HOPELESS = "cannot be narrow"  # cells that have all their subsamples keep it above the width
STATES = {
    STOPPED: ", stopped because {reason}",
    OPEN: ", needs more because {reason}",
    ALL: ", which is all; {reason}",
    HOPELESS: ", stopped although {reason}: cells that have all their subsamples keep it too wide",
    PLANNED: ", more are planned but not finished; {reason}",
}


def stop_rows(rows: Rows, trials: pd.DataFrame, plan: BiasPlan) -> None:
    """`stop_state` of each task with a bias, and the half-width that it was looked at with: 0 where all differences are
    the same.

    Only the width of the bias' interval is read, never where it lies. Raises InputError where the trials are not those
    of the plan's experiments.
    """
    if strange := sorted(set(trials["experiment"]) - set(plan.subsamples)):
        raise InputError(
            f"experiment {strange[0]!r} of the trials is not in the configuration.",
            f"give the configuration that they were made with; it has {', '.join(plan.subsamples)}.",
        )
    looked_at = Rows("bias")
    task_rows(looked_at, trials)
    for row in looked_at.all("task_effect", effect="bias"):
        experiment, task = str(row.said["experiment"]), str(row.subject)
        of_task = trials[(trials["experiment"] == experiment) & (trials["task"] == task)]
        present, most = of_task["subsample"].nunique(), plan.subsamples[experiment]
        width: float | Missing = Missing(row.reason or "")
        if ends := ends_of(row):
            width = (ends[1] - ends[0]) / 2
        elif row.reason_code == ReasonCode.NO_INTERVAL:
            width = 0.0
        if present < plan.planned(experiment, task):
            state = PLANNED
        elif not plan.may_stop(experiment, task, present):
            state = ALL
        elif not isinstance(width, Missing) and width <= plan.half_width:
            state = STOPPED
        else:
            state = HOPELESS if least_half_width(of_task, most) > plan.half_width else OPEN
        at = rows.of(experiment=experiment, subject=task)
        at.put("stop_subsamples", row.n or 0, "subsamples", counted=("most", most))
        at.put("stop_half_width", width, "accuracy", counted=("subsamples", row.n or 0))
        at.put("stop_state", state, "text")


def stop_words(rows: Rows, experiment: str, task: str) -> str:
    """`news: 15 of 100 subsamples, stopped because the interval is ±0.0098`."""
    at = {"experiment": experiment, "subject": task}
    state, subsamples = rows.row("stop_state", **at), rows.row("stop_subsamples", **at)
    width = rows.value("stop_half_width", **at)
    reason = "all differences are the same" if width == 0 else f"the interval is ±{width:.4f}"
    reason = reason if np.isfinite(width) else "the interval is unknown"
    numbers = f"{subsamples.value:.0f} of {subsamples.n}" if subsamples else ""
    return f"{task}: {numbers} subsamples{STATES[str(state and state.text)].format(reason=reason)}"


def least_half_width(trials: pd.DataFrame, limit: int) -> float:
    """Half-width of a task's bias that cells with fewer subsamples than the task leave, however many the others get.

    `trials` of one task. Those cells have all of theirs. This is the interval of `task_rows` with the u_s over
    them alone, as if the other cells had no error, and with the S = `limit` that the task can have. 0 without such
    cells.
    """
    complete = with_difference(trials, "bias")
    sizes = complete.groupby(CELL)["difference"].transform("size")
    full = complete[sizes < complete["subsample"].nunique()]
    if full.empty:
        return 0.0
    parts = apart(complete).loc[full.index].groupby(full["subsample"]).sum().to_numpy()
    return float(stats.t.ppf(1 - LEVEL / 2, limit - 1) * np.sqrt(limit / (limit - 1) * (parts**2).sum()))


# ----------------------------------------------------------------------------------------------------------------------
# The hierarchical model of all answers: fits by setting, effect and formula, and slices of the data.

SLICES = 500
PARALLEL_OBSERVATIONS = 20_000  # fewer are fitted faster than worker processes start
MOST_PROCESSES = 8
MARGINAL_LEVEL = 0.95


def model_rows(rows: Rows, trials: pd.DataFrame, formula: str, sampler: str) -> None:
    """The fits by (experiment, m, n, effect) and formula (one or `all`), and slices of settings that have a bias."""
    counts, formulas = setting_counts(trials), list(FORMULAS) if formula == "all" else [formula]
    calls = [joblib.delayed(fit_rows)(key, each, name, sampler) for key, each in counts.items() for name in formulas]
    calls += [joblib.delayed(slice_rows)(key, each, SLICES) for key, each in counts.items() if key[3] == "bias"]
    # nutpie runs its chains in parallel by itself
    one_process = sampler == "nuts" or sum(map(len, counts.values())) < PARALLEL_OBSERVATIONS
    # one BLAS thread a process: the matrices are small
    with threadpool_limits(1), joblib.parallel_config("loky", inner_max_num_threads=1):
        for found in joblib.Parallel(1 if one_process else processes())(calls):
            rows.extend(found)


def processes() -> int:
    """How many processes fit models at once: as many as there are cores, or as OMP_NUM_THREADS grants (Snakemake sets
    it to the rule's threads)."""
    granted = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(granted) if granted.isdigit() and int(granted) else joblib.cpu_count(), MOST_PROCESSES)


def fit_rows(key: tuple[str, int, int, str], counts: PairedCounts, formula: str, sampler: str = "laplace") -> Rows:
    """One fit of one effect in one setting: `beta` in log-odds, the `marginal_effect` in accuracy for new tasks and
    trainings, the `predicted_difference` of these tasks and trainings on new test items, and the sampler's diagnostics.

    `key`: (experiment, m, n, effect); `formula`: a name in FORMULAS; `sampler`: `laplace`, or `nuts` for draws by a
    Markov chain.
    """
    (experiment, m, n, effect), design = key, build_design(counts, FORMULAS[formula])
    rows = Rows("bias").of(experiment=experiment, m=m, n=n, effect=effect, formula=formula, sampler=sampler)
    posterior: model.LaplacePosterior | model.NutsPosterior
    if sampler == "nuts":
        posterior = model.fit_nuts(counts, FORMULAS[formula])
        draws, fixed = posterior.difference_draws, posterior.fixed
        weights = np.full(len(draws), 1 / len(draws))
        rows.put("divergences", posterior.divergences, "draws")
        rows.put("rhat_max", posterior.rhat_max, "ratio")
        rows.put("effective_draws_min", posterior.effective_draws_min, "draws")
    else:
        posterior = model.fit_laplace(design)
        draws, fixed = model.posterior_predictive(design, posterior), posterior.mode.u[0, : design.beta]
        weights = posterior.weights
        rows.put("effective_nodes", posterior.effective_nodes, "nodes")
        rows.put("log_evidence", posterior.log_evidence, "nats")
    levels, spreads = model.model_levels(design, fixed), model.model_spreads(design, posterior.scales)
    interval, ends = posterior.interval_at(model.INTERVAL), posterior.interval_at(MARGINAL_LEVEL)
    mean, low, high = model.marginal_effect(levels, spreads, weights, np.array([posterior.beta_mean, *ends])).tolist()
    rows.put("beta", posterior.beta_mean, "log_odds", {"posterior": interval}, level=model.INTERVAL)
    rows.put("beta_sd", posterior.beta_sd, "log_odds")
    rows.put("marginal_effect", mean, "accuracy", {"posterior": (low, high)}, level=MARGINAL_LEVEL)
    predicted = {"posterior": model.equal_tailed(draws)}
    rows.put("predicted_difference", float(draws.mean()), "accuracy", predicted, level=model.INTERVAL)
    rows.put("fit_reliable", posterior.reliable, "yes_or_no")
    return rows


def slice_rows(key: tuple[str, int, int, str], counts: PairedCounts, slices: int) -> Rows:
    """What one subsample a task would have had one conclude in a setting: shares of the `slices`, of which a posterior
    mean lies beyond ±0.04, or an 89% interval excludes 0."""
    (experiment, m, n, _), found = key, model.meta_analysis(counts, slices)
    rows, number = Rows("bias").of(experiment=experiment, m=m, n=n), 0 if isinstance(found, Missing) else slices
    beyond, excluding = (found, found) if isinstance(found, Missing) else found
    rows.put("slices_beyond", beyond, "share", counted=("slices", number))
    rows.put("slices_excluding_zero", excluding, "share", counted=("slices", number))
    return rows


def unreliable_fits(rows: Rows) -> list[str]:
    """A note on each fit that did not converge."""
    notes = []
    for row in rows.all("fit_reliable"):
        if row.value:
            continue
        at = labels_of(row)
        values = {name: rows.value(name, **at) for name in ("divergences", "rhat_max", "effective_draws_min")}
        words = (
            "{divergences:.0f} divergences, largest r-hat {rhat_max:.3f}, {effective_draws_min:.0f} effective draws."
        )
        if at["sampler"] == "laplace":
            words, values = "only {nodes:.0f} effective nodes.", {"nodes": rows.value("effective_nodes", **at)}
        where = "UNRELIABLE FIT: {effect} at m = {m}, n = {n}, formula {formula} ({experiment}): ".format(**at)
        notes.append(where + words.format(**values))
    return notes


# ----------------------------------------------------------------------------------------------------------------------
# Two simulations beside the report: principal components, and the priors alone.

PCA_RANKS, PCA_SIZES = (5, 10, 15, 20), (25, 50, 100, 200, 500)
PCA_TRAIN, PCA_SEED, SPLIT_SEED = 100, 123, 42


def pca_rows(splits: int) -> Rows:
    """`pca_effect` in R², of `splits` splits for each rank and n: when unlabelled test data do bias a score.

    Appendix G of arXiv 2410.00179: principal components before linear regression. Fitting the components on the test
    rows inflates R², most where the features have no low-rank structure to find.
    """
    rows = Rows("pca")
    for rank, n in product(PCA_RANKS, PCA_SIZES):
        base, extra, test = simulate_pca(rank, n, splits).T
        for effect, values in (("bias", test - extra), ("boost", extra - base)):
            mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(splits))
            ends = {"splits": (mean - 1.96 * error, mean + 1.96 * error)}
            rows.put("pca_effect", mean, "r_squared", ends, counted=("splits", splits), rank=rank, n=n, effect=effect)
    return rows


def simulate_pca(effective_rank: int, n: int, trials: int) -> np.ndarray:
    """(trials, 3) test R^2 under base, extra and test, of splits of one data set of 100 + 2n rows (seeds 42, 43, …).

    20 features of known effective rank, a linear target with noise; `base` regresses on the features, `extra` and
    `test` on the int(0.6 rank) components of n other rows or of the n test rows.
    """
    from sklearn.datasets import make_regression
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import train_test_split

    features, target = make_regression(
        PCA_TRAIN + 2 * n, 20, n_informative=10, effective_rank=effective_rank, noise=1.0, random_state=PCA_SEED
    )
    components, scores = int(0.6 * effective_rank), np.empty((trials, 3))
    for trial, seed in enumerate(range(SPLIT_SEED, SPLIT_SEED + trials)):
        train, remaining = train_test_split(np.arange(len(target)), train_size=PCA_TRAIN, random_state=seed)
        extra, test = train_test_split(remaining, train_size=n, test_size=n, random_state=seed + 1)
        for arm, rows in enumerate((None, extra, test)):
            projected = features
            if rows is not None:  # the directions of largest variance
                axes = np.linalg.eigh(np.cov(features[rows], rowvar=False))[1][:, ::-1][:, :components]
                projected = (features - features[rows].mean(axis=0)) @ axes
            regression = LinearRegression().fit(projected[train], target[train])
            scores[trial, arm] = regression.score(projected[test], target[test])
    return scores


def prior_rows(trials: pd.DataFrame, formula: str, draws: int) -> Rows:
    """What `formula`'s priors say before any data, of `draws` data sets in the layout of a table of trials."""
    if formula not in FORMULAS:
        raise InputError(f"unknown formula {formula!r}.", f"choose {', '.join(FORMULAS)}.")
    # settings of one study have one layout: the smallest is simulated fastest
    layout = min(setting_counts(trials).values(), key=len)
    rows, levels = Rows("prior").of(formula=formula), {"prior": 0.89, "middle": 0.5}
    for name, values in model.prior_predictive(build_design(layout, FORMULAS[formula]), draws).items():
        ends = {over: model.equal_tailed(values, level) for over, level in levels.items()}
        counted = ("data sets", draws)
        rows.put(f"prior_{name}", float(np.median(values)), "accuracy", ends, level=levels, counted=counted)
    return rows
