"""The numbers of the bias study as rows: means over tasks, by setting, by cell and task by task, and where tasks stop.

Effects are fractions of accuracy: boost = accuracy(extra) - accuracy(base), bias = accuracy(test) - accuracy(extra).
Differences are those of integer counts, so a task without a difference is exactly 0. Trials that lack an arm of an
effect do not count for that effect. `trials` is the frame of `trials.pair_arms` throughout.
"""

import os

import joblib
import numpy as np
import pandas as pd
from scipy import stats
from threadpoolctl import threadpool_limits

from lm_validity.config.plan import BiasPlan
from lm_validity.errors import InputError
from lm_validity.results.put import Rows, ends_of, labels_of, reason_of
from lm_validity.statistics import holm
from lm_validity.studies.bias.statistics import effects, model
from lm_validity.studies.bias.statistics.effects import SLICES, meta_analysis
from lm_validity.studies.bias.statistics.latent import FORMULAS, PairedCounts, build_design
from lm_validity.studies.bias.statistics.nuts import NutsPosterior, fit_nuts
from lm_validity.studies.bias.trials import CELL, EFFECTS, SETTING, setting_counts
from lm_validity.words import Missing, Reason, ReasonCode, known

ONE_SUBSAMPLE = Missing(
    Reason("One subsample has the two arms: the interval of a task is over subsamples.", ReasonCode.TOO_FEW)
)
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
# Means over tasks: of each experiment, of each setting, of each cell.


def mean_rows(rows: Rows, trials: pd.DataFrame) -> None:
    """`effect`: the mean over tasks of each experiment, of a task's mean over its cells, which weigh the same.

    Weighting trials instead would let the cells with small n, which have most subsamples, decide: in the published
    data 10 instead of 12 tasks then have a positive bias. Intervals hold over `effect_experiments` at once, each effect
    by itself: with many experiments one interval without 0 is found by chance. `setting_effect` is the same by (m, n);
    the language models of a task are averaged first.
    """
    for effect in EFFECTS:
        means = task_means(trials, effect, [*CELL, "task"]).groupby(["experiment", "task"]).mean()
        by_experiment = {name: values.to_numpy() for name, values in means.groupby("experiment")}
        joint = dict(zip(by_experiment, effects.simultaneous(list(by_experiment.values())), strict=True))
        for experiment in sorted(trials["experiment"].unique()):
            at, mean = rows.of(experiment=experiment, effect=effect), joint.get(experiment)
            if mean is None:
                at.put("effect", without_arms(effect), "accuracy", {"tasks": without_arms(effect)})
                continue
            counted = ("tasks", mean.tasks)
            at.put("effect", mean.mean, "accuracy", {"tasks": mean.interval}, counted=counted)
            at.put("effect_excluded_beyond", mean.excluded_beyond, "accuracy", counted=counted)
            at.put("effect_smallest_detectable", mean.smallest_detectable, "accuracy", counted=counted)
            at.put("effect_experiments", mean.experiments, "experiments")
        by_model = task_means(trials, effect, [*SETTING, "task", "language_model"])
        for (experiment, m, n), values in by_model.groupby([*SETTING, "task"]).mean().groupby(SETTING):
            mean = effects.mean_over_tasks(values.to_numpy())
            at = rows.of(experiment=experiment, m=m, n=n, effect=effect)
            at.put("setting_effect", mean.mean, "accuracy", {"tasks": mean.interval}, counted=("tasks", mean.tasks))


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
            error = known(float(means.sem()), effects.ONE_TASK) if len(means) else without
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
    """
    present = trials.groupby(["experiment", "task"])["subsample"].nunique()
    for effect in EFFECTS:
        for (experiment, task), group in with_difference(trials, effect).groupby(["experiment", "task"]):
            mean = float(group.groupby(CELL)["difference"].mean().mean())
            parts = apart(group).groupby(group["subsample"]).sum().to_numpy()
            may_stop = plan is not None and plan.may_stop(experiment, task, present[experiment, task])
            least = plan.half_width if plan and may_stop and effect == "bias" else 0.0
            interval, excluded = interval_over_subsamples(mean, parts, least)
            at = rows.of(experiment=experiment, subject=task, effect=effect)
            counted = ("subsamples", len(parts))
            at.put("task_effect", mean, "accuracy", {"subsamples": interval}, counted=counted)
            at.put("task_effect_excluded_beyond", excluded, "accuracy", counted=counted)
            at.put("task_effect_subsamples", len(parts), "subsamples")
            at.put("task_effect_trials", len(group), "trials")
    adjusted_rows(rows)


def adjusted_rows(rows: Rows) -> None:
    """`task_effect_p_adjusted`, of the t test of each bias' interval that it is 0, by Holm over all tasks of all
    experiments. In simulated studies without an effect 0% to 5.5% had one below 5%."""
    biases, p = rows.all("task_effect", effect="bias"), dict[int, float]()
    for index, row in enumerate(biases):
        if row.n and row.value is not None and (ends := ends_of(row)):
            error = (ends[1] - ends[0]) / 2 / stats.t.ppf(1 - effects.LEVEL / 2, row.n - 1)
            p[index] = float(2 * stats.t.sf(abs(row.value) / error, row.n - 1))
    adjusted = dict(zip(p, holm(np.array([*p.values()])).tolist(), strict=True))
    for index, row in enumerate(biases):
        value = adjusted.get(index, reason_of(row) or NO_SPREAD)
        at = rows.of(subject=row.subject, **row.said)
        at.put("task_effect_p_adjusted", value, "probability", counted=("subsamples", row.n or 0))


def apart(trials: pd.DataFrame) -> pd.Series:
    """Of each trial of a task: (d_cs - mean_c) / (C n_c), whose sums over cells are the u_s."""
    by_cell = trials.groupby(CELL)["difference"]
    return (trials["difference"] - by_cell.transform("mean")) / (by_cell.ngroups * by_cell.transform("size"))


def interval_over_subsamples(
    mean: float, parts: np.ndarray, least: float
) -> tuple[tuple[float, float] | Missing, float | Missing]:
    """The t interval of the mean, of half-width `least` or more, and what is excluded beyond it; `parts`: u
    (subsamples,)."""
    number = len(parts)
    if number < 2 or np.abs(parts).max() <= effects.ROUNDING:
        reason = ONE_SUBSAMPLE if number < 2 else NO_SPREAD
        return reason, reason
    quantile = float(stats.t.ppf(1 - effects.LEVEL / 2, number - 1))
    error = max(float(np.sqrt(number / (number - 1) * (parts**2).sum())), least / quantile)
    reach = quantile * error
    return (mean - reach, mean + reach), effects.excluded_beyond(mean, error, number)


def trial_rows(rows: Rows, trials: pd.DataFrame) -> None:
    """By cell, task and effect: exact one-sided sign-flip tests, adjusted by Benjamini & Hochberg (1995) over the tasks
    of a cell, and `subsample_effect`, the paper's figure 1: the median over subsamples with their middle 90% and 50%.
    """
    levels = {"subsamples": 0.9, "middle_subsamples": 0.5}
    for effect in EFFECTS:
        for (experiment, language_model, m, n), cell in with_difference(trials, effect).groupby(CELL):
            by_task = cell.groupby("task")
            p = by_task["change"].agg(lambda values: effects.sign_flip_p(values.to_numpy()))
            for (task, differences), q in zip(by_task["difference"], stats.false_discovery_control(p), strict=True):
                at = rows.of(
                    experiment=experiment, language_model=language_model, m=m, n=n, subject=task, effect=effect
                )
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
    return float(stats.t.ppf(1 - effects.LEVEL / 2, limit - 1) * np.sqrt(limit / (limit - 1) * (parts**2).sum()))


# ----------------------------------------------------------------------------------------------------------------------
# The hierarchical model of all answers: fits by setting, effect and formula, and slices of the data.

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
    if granted.isdigit() and int(granted):
        return min(int(granted), MOST_PROCESSES)
    # only Linux knows which cores a process may use
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def fit_rows(key: tuple[str, int, int, str], counts: PairedCounts, formula: str, sampler: str = "laplace") -> Rows:
    """One fit of one effect in one setting: `beta` in log-odds, the `marginal_effect` in accuracy for new tasks and
    trainings, the `predicted_difference` of these tasks and trainings on new test items, and the sampler's diagnostics.

    `key`: (experiment, m, n, effect); `formula`: a name in FORMULAS; `sampler`: `laplace`, or `nuts` for draws by a
    Markov chain.
    """
    (experiment, m, n, effect), design = key, build_design(counts, FORMULAS[formula])
    rows = Rows("bias").of(experiment=experiment, m=m, n=n, effect=effect, formula=formula, sampler=sampler)
    posterior: model.LaplacePosterior | NutsPosterior
    if sampler == "nuts":
        posterior = fit_nuts(counts, FORMULAS[formula])
        draws, fixed = posterior.difference_draws, posterior.fixed
        weights = np.full(len(draws), 1 / len(draws))
        ends = model.equal_tailed(posterior.beta_draws, MARGINAL_LEVEL)
        rows.put("divergences", posterior.divergences, "draws")
        rows.put("rhat_max", posterior.rhat_max, "ratio")
        rows.put("effective_draws_min", posterior.effective_draws_min, "draws")
    else:
        posterior = model.fit_laplace(design)
        draws, fixed = model.posterior_predictive(design, posterior), posterior.mode.u[0, : design.beta]
        weights, ends = posterior.weights, posterior.interval_at(MARGINAL_LEVEL)
        rows.put("effective_nodes", posterior.effective_nodes, "nodes")
        rows.put("log_evidence", posterior.log_evidence, "nats")
    levels, spreads = model.model_levels(design, fixed), model.model_spreads(design, posterior.scales)
    mean, low, high = model.marginal_effect(levels, spreads, weights, np.array([posterior.beta_mean, *ends])).tolist()
    rows.put("beta", posterior.beta_mean, "log_odds", {"posterior": posterior.interval}, level=model.INTERVAL)
    rows.put("beta_sd", posterior.beta_sd, "log_odds")
    rows.put("marginal_effect", mean, "accuracy", {"posterior": (low, high)}, level=MARGINAL_LEVEL)
    predicted = {"posterior": model.equal_tailed(draws)}
    rows.put("predicted_difference", float(draws.mean()), "accuracy", predicted, level=model.INTERVAL)
    rows.put("fit_reliable", posterior.reliable, "yes_or_no")
    return rows


def slice_rows(key: tuple[str, int, int, str], counts: PairedCounts, slices: int) -> Rows:
    """What one subsample a task would have had one conclude in a setting: shares of the `slices`, of which a posterior
    mean lies beyond ±0.04, or an 89% interval excludes 0."""
    (experiment, m, n, _), found = key, meta_analysis(counts, slices)
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
