"""The hierarchical model of all answers: its fits by setting, effect and formula, and fits of slices of the data."""

import os
from dataclasses import dataclass
from functools import partial

import joblib
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from lm_validity.missing import Missing, is_known, number
from lm_validity.results.summary import named, page_only
from lm_validity.studies.bias.effects import task_means
from lm_validity.studies.bias.statistics.effects import (
    MARGINS,
    MODEL_FREE_SLICES,
    SLICES,
    THRESHOLD,
    Density,
    MeanOverTasks,
    MetaAnalysis,
    kernel_density,
    mean_over_tasks,
    meta_analysis,
)
from lm_validity.studies.bias.statistics.latent import FORMULAS, PairedCounts, build_design
from lm_validity.studies.bias.statistics.model import (
    INTERVAL,
    LaplacePosterior,
    equal_tailed,
    fit_laplace,
    marginal_effect,
    model_levels,
    model_spreads,
    posterior_predictive,
)
from lm_validity.studies.bias.statistics.nuts import NutsPosterior, fit_nuts
from lm_validity.studies.bias.trials import EFFECTS, SETTING, setting_counts

# ----------------------------------------------------------------------------------------------------------------------
# Fits of every setting, effect and formula, and slices of the settings, in parallel.

PARALLEL_OBSERVATIONS = 20_000  # fewer are fitted faster than worker processes start
MOST_PROCESSES = 8
MARGINAL_LEVEL = 0.95
PREDICTIVE_QUANTILES = {"low": 0.055, "q25": 0.25, "median": 0.5, "q75": 0.75, "high": 0.945}  # low to high: 89%
NO_CHAINS = Missing("This fit was computed without random chains, so it has no such diagnostic.")
NO_EVIDENCE = Missing("NUTS does not estimate the log evidence.")
NO_NODES = Missing("NUTS draws chains and has no nodes (see effective_draws_min).")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One fit of the hierarchical model; `difference*` are accuracies, `beta*` and `scales` log-odds.

    `marginal_*`: the effect in accuracy for new tasks and trainings, with a 95% interval (`statistics.model`).
    `difference_draws`: posterior predictive, for these tasks and trainings; `by_task`: its quantiles and the observed
    difference of each task. `accuracies`: predicted and observed, by task, language_model and arm. NUTS keeps neither.
    `effective_nodes`: of the importance sampling; `effective_draws_min`: the smallest of any parameter.
    """

    experiment: str
    m: int
    n: int
    effect: str
    formula: str
    sampler: str
    beta_mean: float
    beta_sd: float
    interval: tuple[float, float] = named("interval89")
    marginal_mean: float
    marginal_interval: tuple[float, float]
    difference_mean: float
    difference_interval: tuple[float, float] = named("difference_interval89")
    divergences: int | Missing = NO_CHAINS
    rhat_max: float | Missing = NO_CHAINS
    effective_nodes: float | Missing = NO_NODES
    effective_draws_min: float | Missing = NO_CHAINS
    reliable: bool
    log_evidence: float | Missing = NO_EVIDENCE
    scales: dict[str, float] = named("standard_deviations")
    difference_draws: np.ndarray = page_only()
    accuracies: pd.DataFrame = page_only(default_factory=pd.DataFrame)
    by_task: pd.DataFrame = page_only(default_factory=pd.DataFrame)

    @property
    def excludes_zero(self) -> int:
        """1 or -1 where the 89% interval of beta lies above or below zero, else 0."""
        return int(self.interval[0] > 0) - int(self.interval[1] < 0)

    @property
    def density(self) -> Density:
        """A kernel density of the posterior predictive difference."""
        return kernel_density(self.difference_draws)


@dataclass(frozen=True)
class Fits:
    """The fits, and by (experiment, m, n) what slices of one subsample a task show. `main`: the formula to trust."""

    fits: tuple[Fit, ...]
    slices: dict[tuple[str, int, int], MetaAnalysis | Missing]
    main: str

    def of(self, effect: str, experiment: str | None = None, formula: str | None = None) -> list[Fit]:
        """The fits of an effect, of one experiment or formula where given, in the order of the settings."""
        return [
            fit
            for fit in self.fits
            if fit.effect == effect and experiment in (None, fit.experiment) and formula in (None, fit.formula)
        ]


def fit_all(trials: pd.DataFrame, formula: str, sampler: str) -> Fits:
    """Fits by (experiment, m, n, effect) and formula (one or `all`), and slices of the settings that have a bias."""
    counts, formulas = setting_counts(trials), list(FORMULAS) if formula == "all" else [formula]
    sliced = [key[:3] for key in counts if key[3] == "bias"]
    calls = [joblib.delayed(fit_setting)(key, rows, name, sampler) for key, rows in counts.items() for name in formulas]
    calls += [joblib.delayed(meta_analysis)(counts[*key, "bias"], SLICES) for key in sliced]
    # nutpie runs its chains in parallel by itself
    one_process = sampler == "nuts" or sum(map(len, counts.values())) < PARALLEL_OBSERVATIONS
    # one BLAS thread a process: the matrices are small
    with threadpool_limits(1), joblib.parallel_config("loky", inner_max_num_threads=1):
        results = joblib.Parallel(1 if one_process else processes())(calls)
    fits = results[: len(counts) * len(formulas)]
    main = "overdispersed" if "overdispersed" in formulas else formulas[0]
    return Fits(tuple(fits), dict(zip(sliced, results[len(fits) :], strict=True)), main)


def processes() -> int:
    """How many processes fit models at once: as many as there are cores, or as OMP_NUM_THREADS grants (Snakemake sets
    it to the rule's threads)."""
    granted = os.environ.get("OMP_NUM_THREADS", "")
    if granted.isdigit() and int(granted):
        return min(int(granted), MOST_PROCESSES)
    # only Linux knows which cores a process may use
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def fit_setting(key: tuple[str, int, int, str], counts: PairedCounts, formula: str, sampler: str = "laplace") -> Fit:
    """The hierarchical model's fit to one effect in one setting.

    `key`: (experiment, m, n, effect); `formula`: a name in FORMULAS; `sampler`: `laplace`, or `nuts` for draws by a
    Markov chain.
    """
    (experiment, m, n, effect), design = key, build_design(counts, FORMULAS[formula])
    posterior: LaplacePosterior | NutsPosterior
    if sampler == "nuts":
        posterior = fit_nuts(counts, FORMULAS[formula])
        draws, fixed = posterior.difference_draws, posterior.fixed
        weights = np.full(len(draws), 1 / len(draws))
        ends = equal_tailed(posterior.beta_draws, MARGINAL_LEVEL)
        fit = partial(
            Fit,
            divergences=posterior.divergences,
            rhat_max=posterior.rhat_max,
            effective_draws_min=posterior.effective_draws_min,
        )
    else:
        posterior = fit_laplace(design)
        predictive = posterior_predictive(design, posterior)
        draws, fixed, weights = predictive.draws, posterior.mode.u[0, : design.beta], posterior.weights
        ends = posterior.interval_at(MARGINAL_LEVEL)
        patterns = pd.MultiIndex.from_product(
            [counts.tasks, counts.language_models, ["control", "treatment"]], names=["task", "language_model", "arm"]
        )
        answers = pd.DataFrame({"predicted": predictive.predicted, "observed": predictive.observed}, index=patterns)
        # every trial of a task weighs the same
        observed = pd.Series((counts.treatment - counts.control) / counts.total).groupby(counts.task).mean()
        quantiles = np.quantile(predictive.by_task, list(PREDICTIVE_QUANTILES.values()), axis=0)
        by_task = pd.DataFrame(dict(zip(PREDICTIVE_QUANTILES, quantiles, strict=True)))
        fit = partial(
            Fit,
            effective_nodes=posterior.effective_nodes,
            log_evidence=posterior.log_evidence,
            accuracies=answers.dropna().reset_index(),
            by_task=by_task.assign(task=counts.tasks, observed=observed, mean=predictive.by_task.mean(axis=0)),
        )
    levels, spreads = model_levels(design, fixed), model_spreads(design, posterior.scales)
    mean, low, high = marginal_effect(levels, spreads, weights, np.array([posterior.beta_mean, *ends])).tolist()
    return fit(
        experiment=experiment,
        m=m,
        n=n,
        effect=effect,
        formula=formula,
        sampler=sampler,
        beta_mean=posterior.beta_mean,
        beta_sd=posterior.beta_sd,
        interval=posterior.interval,
        marginal_mean=mean,
        marginal_interval=(low, high),
        difference_mean=float(draws.mean()),
        difference_interval=equal_tailed(draws),
        reliable=posterior.reliable,
        scales=dict(zip(design.names, (weights @ posterior.scales).tolist(), strict=True)),
        difference_draws=draws,
    )


# ----------------------------------------------------------------------------------------------------------------------
# Setting by setting: means without the model, the spread of single trials, and what slices show.

MARGIN = MARGINS[0]  # accuracy; of the equivalence test that the page shows
CHANCE = 1 - INTERVAL  # of an 89% interval without zero where there is no effect
FREE_SLICES = MODEL_FREE_SLICES
CURVE = np.linspace(0.005, 0.995, 67)  # shares of slices at which the curve of a setting is drawn


@dataclass(frozen=True)
class SettingEffect:
    """The mean over tasks of an effect in a setting; the language models of a task are averaged first."""

    experiment: str
    m: int
    n: int
    effect: str
    over_tasks: MeanOverTasks


def setting_effects(trials: pd.DataFrame) -> list[SettingEffect]:
    """By effect and setting, without effects that no trial of a setting has both arms of."""
    settings = []
    for effect in EFFECTS:
        by_model = task_means(trials, effect, [*SETTING, "task", "language_model"])
        by_task = by_model.groupby([*SETTING, "task"])[effect].mean()
        for (experiment, m, n), values in by_task.groupby(SETTING):
            settings.append(SettingEffect(str(experiment), m, n, effect, mean_over_tasks(values.to_numpy())))
    return settings


@dataclass(frozen=True)
class TrialSpread:
    """Standard deviation of a single trial's bias, observed and as the binomial explains it, in one setting."""

    experiment: str
    m: int
    n: int
    language_model: str
    observed: float
    binomial: float


def trial_spreads(trials: pd.DataFrame) -> list[TrialSpread]:
    """Of each experiment's language models, in its setting with the largest m and n of those with both arms."""
    spreads = []
    for experiment, complete in trials.dropna(subset=["extra", "test"]).groupby("experiment"):
        m, n = max(zip(complete["m"], complete["n"], strict=True))
        largest = complete[(complete["m"] == m) & (complete["n"] == n)]
        shares = largest[["extra", "test"]].div(largest["total"], axis=0)
        variances = (shares * (1 - shares)).div(largest["total"], axis=0).sum(axis=1)
        frame = pd.DataFrame({"observed": shares["test"] - shares["extra"], "binomial": variances})
        frame = frame.groupby(largest["language_model"]).agg({"observed": "std", "binomial": "mean"}).dropna()
        for name, observed, binomial in frame[frame["binomial"] > 0].itertuples():
            spreads.append(TrialSpread(str(experiment), m, n, name, observed, float(np.sqrt(binomial))))
    return spreads


@dataclass(frozen=True)
class SliceShares:
    """What one subsample a task would have had one conclude in a setting: shares of the slices, as `MetaAnalysis` has
    them. threshold: log-odds, of `share_beyond`. means: quantiles of the posterior means, at the shares `CURVE`."""

    experiment: str
    m: int
    n: int
    slices: int
    threshold: float
    share_beyond: float | Missing
    share_excluding_zero: float | Missing
    share_t_excluding_zero: float | Missing
    means: np.ndarray = page_only(default_factory=lambda: np.empty(0))


def slice_shares(fits: Fits) -> list[SliceShares]:
    """By setting that has a bias; without slices where a slice would be the whole data."""
    shares = []
    for key, slices in fits.slices.items():
        if isinstance(slices, Missing):
            shares.append(SliceShares(*key, 0, THRESHOLD, slices, slices, slices))
        else:
            values = slices.share_beyond, slices.share_excluding_zero, slices.share_t_excluding_zero
            means = np.quantile(slices.means, CURVE)
            shares.append(SliceShares(*key, len(slices.means), THRESHOLD, *values, means))
    return shares


def unreliable_fits(fits: Fits) -> list[str]:
    """A note on each fit that did not converge."""
    return [
        f"UNRELIABLE FIT: {fit.effect} at m = {fit.m}, n = {fit.n}, formula {fit.formula} ({fit.experiment}): "
        + (
            f"only {number(fit.effective_nodes):.0f} effective nodes."
            if is_known(fit.effective_nodes)
            else f"{fit.divergences} divergences, largest r-hat {number(fit.rhat_max):.3f}, "
            f"{number(fit.effective_draws_min):.0f} effective draws."
        )
        for fit in fits.fits
        if not fit.reliable
    ]
