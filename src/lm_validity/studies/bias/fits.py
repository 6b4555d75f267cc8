"""The hierarchical model's fits of every setting, effect and formula, and slices of them, in parallel."""

import os
from collections.abc import Callable
from typing import Any, TypedDict

import joblib
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from lm_validity.studies.bias.statistics.effects import SLICES, THRESHOLD, meta_analysis
from lm_validity.studies.bias.statistics.model import (
    FORMULAS,
    Design,
    PairedCounts,
    build_design,
    equal_tailed,
    fit_laplace,
    marginal_effect,
    model_levels,
    model_spreads,
    posterior_predictive,
)
from lm_validity.studies.bias.statistics.nuts import fit_nuts
from lm_validity.studies.bias.summary import Fit, Slices
from lm_validity.summaries import Missing, number

PARALLEL_OBSERVATIONS = 20_000  # fewer are fitted faster than worker processes start
MOST_PROCESSES = 8
MARGINAL_LEVEL = 0.95
PREDICTIVE_QUANTILES = {"low": 0.055, "q25": 0.25, "median": 0.5, "q75": 0.75, "high": 0.945}  # low to high: 89%
NO_CHAINS = Missing("This fit was computed without random chains, so it has no such diagnostic.")
NO_NODES = Missing("NUTS draws chains and has no nodes (see effective_draws_min).")

SettingCounts = dict[tuple[str, int, int, str], PairedCounts]


def fit_all(counts: SettingCounts, formulas: list[str], sampler: str) -> tuple[tuple[Fit, ...], tuple[Slices, ...]]:
    """Fits by (experiment, m, n, effect) and formula, and the slices of the settings that have a bias."""
    small = sum(map(len, counts.values())) < PARALLEL_OBSERVATIONS
    fit = _fit_nuts if sampler == "nuts" else _fit_laplace
    jobs: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (fit, (key, data, name)) for key, data in counts.items() for name in formulas
    ]
    fits = len(jobs)
    jobs += [(_slices, (key[:3], data)) for key, data in counts.items() if key[3] == "bias"]
    # nutpie runs its chains in parallel by itself
    results = _run(jobs, 1 if small or sampler == "nuts" else _processes())
    return tuple(results[:fits]), tuple(results[fits:])


def reliability_notes(fits: tuple[Fit, ...]) -> tuple[str, ...]:
    """The fits whose intervals cannot be used, and why."""
    return tuple(
        f"UNRELIABLE FIT: {fit.effect} at m = {fit.m}, n = {fit.n}, formula {fit.formula} ({fit.experiment}): "
        + (
            f"{fit.divergences} divergences, largest r-hat {number(fit.rhat_max):.3f}, "
            f"{number(fit.effective_draws_min):.0f} effective draws."
            if fit.sampler == "nuts"
            else f"only {number(fit.effective_nodes):.0f} effective nodes."
        )
        for fit in fits
        if not fit.reliable
    )


def _processes() -> int:
    """As many as there are cores, or as OMP_NUM_THREADS grants: Snakemake sets it to the rule's threads."""
    granted = os.environ.get("OMP_NUM_THREADS", "")
    if granted.isdigit() and int(granted):
        return min(int(granted), MOST_PROCESSES)
    # only Linux knows which cores a process may use
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def _run(jobs: list[tuple[Callable[..., Any], tuple[Any, ...]]], processes: int) -> list[Any]:
    """Results in the order of `jobs`. One BLAS thread a process: the matrices are small."""
    if processes == 1:
        with threadpool_limits(1):
            return [function(*arguments) for function, arguments in jobs]
    with joblib.parallel_config("loky", n_jobs=processes, inner_max_num_threads=1):
        return joblib.Parallel()(joblib.delayed(function)(*arguments) for function, arguments in jobs)


def _fit_nuts(key: tuple[str, int, int, str], counts: PairedCounts, formula: str) -> Fit:
    posterior = fit_nuts(counts, FORMULAS[formula], cores=_processes())
    design, even = build_design(counts, FORMULAS[formula]), np.full(len(posterior.scales), 1 / len(posterior.scales))
    low, high = equal_tailed(posterior.beta_draws, MARGINAL_LEVEL)
    return Fit(
        experiment=key[0],
        m=key[1],
        n=key[2],
        effect=key[3],
        formula=formula,
        sampler="nuts",
        beta_mean=posterior.beta_mean,
        beta_sd=posterior.beta_sd,
        interval=posterior.interval,
        **_marginal(design, posterior.fixed, posterior.scales, even, (posterior.beta_mean, low, high)),
        difference_mean=float(posterior.difference_draws.mean()),
        difference_interval=equal_tailed(posterior.difference_draws),
        divergences=posterior.divergences,
        rhat_max=posterior.rhat_max,
        effective_nodes=NO_NODES,
        effective_draws_min=posterior.effective_draws_min,
        reliable=posterior.reliable,
        log_evidence=Missing("NUTS does not estimate the log evidence."),
        scales=dict(zip(design.names, posterior.scales.mean(axis=0).tolist(), strict=True)),
        difference_draws=posterior.difference_draws,
        accuracies=Missing("NUTS keeps no predicted accuracies."),
        by_task=Missing("NUTS keeps no differences by task."),
    )


def _fit_laplace(key: tuple[str, int, int, str], counts: PairedCounts, formula: str) -> Fit:
    design = build_design(counts, FORMULAS[formula])
    posterior = fit_laplace(design)
    predictive = posterior_predictive(design, posterior)
    fixed, ends = posterior.mode.u[: design.beta], posterior.interval_at(MARGINAL_LEVEL)
    return Fit(
        experiment=key[0],
        m=key[1],
        n=key[2],
        effect=key[3],
        formula=formula,
        sampler="laplace",
        beta_mean=posterior.beta_mean,
        beta_sd=posterior.beta_sd,
        interval=posterior.interval,
        **_marginal(design, fixed, posterior.scales, posterior.weights, (posterior.beta_mean, *ends)),
        difference_mean=predictive.mean,
        difference_interval=predictive.interval,
        divergences=NO_CHAINS,
        rhat_max=NO_CHAINS,
        effective_nodes=posterior.effective_nodes,
        effective_draws_min=NO_CHAINS,
        reliable=posterior.reliable,
        log_evidence=posterior.log_evidence,
        scales=dict(zip(design.names, posterior.scale_means().tolist(), strict=True)),
        difference_draws=predictive.draws,
        accuracies=_accuracies(counts, predictive.predicted, predictive.observed),
        by_task=_by_task(counts, predictive.by_task),
    )


class _Marginal(TypedDict):
    """Fields of `Fit`."""

    marginal_mean: float
    marginal_interval: tuple[float, float]


def _marginal(
    design: Design, fixed: np.ndarray, scales: np.ndarray, weights: np.ndarray, beta: tuple[float, float, float]
) -> _Marginal:
    """The marginal effect at beta's mean and at the ends of its interval."""
    levels, spreads = model_levels(design, fixed), model_spreads(design, scales)
    mean, low, high = marginal_effect(levels, spreads, weights, np.array(beta)).tolist()
    return {"marginal_mean": mean, "marginal_interval": (low, high)}


def _accuracies(counts: PairedCounts, predicted: np.ndarray, observed: np.ndarray) -> pd.DataFrame:
    patterns = pd.MultiIndex.from_product(
        [counts.tasks, counts.language_models, ["control", "treatment"]], names=["task", "language_model", "arm"]
    )
    frame = pd.DataFrame({"predicted": predicted, "observed": observed}, index=patterns)
    return frame.dropna().reset_index()


def _by_task(counts: PairedCounts, draws: np.ndarray) -> pd.DataFrame:
    """Quantiles of the predictive differences (R, T), and the observed ones: every trial of a task weighs the same."""
    observed = pd.Series((counts.treatment - counts.control) / counts.total).groupby(counts.task).mean()
    frame = pd.DataFrame(
        np.quantile(draws, list(PREDICTIVE_QUANTILES.values()), axis=0).T, columns=list(PREDICTIVE_QUANTILES)
    )
    return frame.assign(task=counts.tasks, observed=observed.to_numpy(), mean=draws.mean(axis=0))


def _slices(key: tuple[str, int, int], counts: PairedCounts) -> Slices:
    found = meta_analysis(counts, SLICES)
    if isinstance(found, Missing):
        return Slices(*key, 0, THRESHOLD, found, found, found, found)
    return Slices(
        *key,
        slices=len(found.means),
        threshold=THRESHOLD,
        share_beyond=found.share_beyond,
        share_excluding_zero=found.share_excluding_zero,
        share_t_excluding_zero=found.share_t_excluding_zero,
        means=found.means,
    )
