"""Everything that the bias report says, computed from the trials table."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import joblib
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from lm_validity.errors import InputError
from lm_validity.studies.bias.statistics.effects import (
    MeanOverTasks,
    cell_effects,
    mean_losses,
    mean_over_tasks,
    task_effects,
    task_means,
)
from lm_validity.studies.bias.statistics.meta import SLICES, MetaAnalysis, meta_analysis
from lm_validity.studies.bias.statistics.model import EFFECTS, FORMULAS, PairedCounts, build_design
from lm_validity.studies.bias.statistics.nuts import fit_nuts
from lm_validity.studies.bias.statistics.permutation import permutation_table
from lm_validity.studies.bias.statistics.posterior import fit_laplace
from lm_validity.studies.bias.statistics.power import (
    detection_power,
    smallest_detectable,
    subsamples_needed,
    tasks_needed,
    variance_components,
)
from lm_validity.studies.bias.statistics.predictive import equal_tailed, posterior_predictive
from lm_validity.studies.bias.statistics.provenance import base_drift, mismatched_test_sets
from lm_validity.studies.bias.table import CELL, SETTING, setting_counts

HEADLINE_FORMULA = "overdispersed"
DETECTABLE_BIAS = 0.005  # half a point of accuracy, what the power analysis asks for
PARALLEL_OBSERVATIONS = 20_000  # fewer are fitted faster than worker processes start
MOST_PROCESSES = 8


@dataclass(frozen=True)
class Fit:
    """One fit of the hierarchical model; `difference*` are accuracies, `beta*` and `scales` log-odds.

    `accuracies`: predicted and observed by task, language_model, arm (Laplace only, else None). `effective`: of
    the importance sampling's nodes, or the smallest number of effective draws. `log_evidence`: Laplace only.
    """

    experiment: str
    m: int
    n: int
    effect: str
    formula: str
    sampler: str
    beta_mean: float
    beta_sd: float
    interval: tuple[float, float]
    difference_draws: np.ndarray
    scales: dict[str, float]
    reliable: bool
    effective: float
    divergences: int | None = None
    rhat_max: float | None = None
    log_evidence: float | None = None
    accuracies: pd.DataFrame | None = None

    @property
    def difference_mean(self) -> float:
        """Mean of the posterior predictive accuracy difference."""
        return float(self.difference_draws.mean())

    @property
    def difference_interval(self) -> tuple[float, float]:
        """Its equal-tailed 89% interval."""
        return equal_tailed(self.difference_draws)

    @property
    def excludes_zero(self) -> int:
        """1 or -1 where the 89% interval of beta lies above or below zero, else 0."""
        low, high = self.interval
        return int(low > 0) - int(high < 0)


@dataclass(frozen=True)
class BiasAnalysis:
    """The frames and fits behind summary.json and the page.

    overall: by (experiment, effect), over tasks with equal weight of the cells; meta: by (experiment, m, n), None
    where a slice would always be the whole data.
    """

    trials: pd.DataFrame
    cells: pd.DataFrame
    tasks: pd.DataFrame
    settings: pd.DataFrame
    overall: dict[tuple[str, str], MeanOverTasks | None]
    fits: list[Fit]
    permutation: pd.DataFrame
    meta: dict[tuple[str, int, int], MetaAnalysis | None]
    drift: pd.DataFrame
    mismatches: pd.DataFrame
    power: pd.DataFrame
    headline_formula: str
    sampler: str
    losses: pd.DataFrame


def analyze_bias(trials: pd.DataFrame, sampler: str = "laplace", formula: str = "all") -> BiasAnalysis:
    """Analyse the frame of `tables.trials.pair_arms` with the named sampler and formula (or all formulas)."""
    names = list(FORMULAS) if formula == "all" else [formula]
    if not set(names) <= set(FORMULAS):
        raise InputError(f"unknown formula {formula!r}.", f"choose all, {', '.join(FORMULAS)}.")
    if sampler not in ("laplace", "nuts"):
        raise InputError(f"unknown sampler {sampler!r}.", "choose laplace or nuts.")
    counts = setting_counts(trials)
    small = sum(map(len, counts.values())) < PARALLEL_OBSERVATIONS
    jobs = [(_fit, (key, data, name, sampler)) for key, data in counts.items() for name in names]
    slices = {key[:3]: data for key, data in counts.items() if key[3] == "bias"}
    jobs += [(_meta, (data,)) for data in slices.values()]
    # nutpie runs its chains in parallel by itself
    results = _run(jobs, 1 if small or sampler == "nuts" else _processes())
    fits, rest = results[: len(counts) * len(names)], results[len(counts) * len(names) :]
    tasks = task_effects(trials)
    headline = HEADLINE_FORMULA if HEADLINE_FORMULA in names else names[0]
    return BiasAnalysis(
        trials=trials,
        cells=cell_effects(trials),
        tasks=tasks,
        settings=_settings(trials),
        overall={
            (experiment, effect): mean_over_tasks(group[effect].to_numpy())
            for experiment, group in tasks.groupby("experiment")
            for effect in EFFECTS
        },
        fits=fits,
        permutation=permutation_table(trials),
        meta=dict(zip(slices, rest, strict=True)),
        drift=base_drift(trials),
        mismatches=mismatched_test_sets(trials),
        power=_power(trials),
        headline_formula=headline,
        sampler=sampler,
        losses=mean_losses(trials),
    )


def _processes() -> int:
    """As many as there are cores, or as OMP_NUM_THREADS grants: Snakemake sets it to the rule's threads."""
    granted = os.environ.get("OMP_NUM_THREADS", "")
    if granted.isdigit() and int(granted):
        return min(int(granted), MOST_PROCESSES)
    # only Linux knows which cores a process may use
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def _run(jobs: list[tuple[Callable, tuple]], processes: int) -> list:
    """Results in the order of `jobs`. One BLAS thread a process: the matrices are small."""
    if processes == 1:
        with threadpool_limits(1):
            return [function(*arguments) for function, arguments in jobs]
    with joblib.parallel_config("loky", n_jobs=processes, inner_max_num_threads=1):
        return joblib.Parallel()(joblib.delayed(function)(*arguments) for function, arguments in jobs)


def _fit(key: tuple[str, int, int, str], counts: PairedCounts, formula: str, sampler: str) -> Fit:
    names = dict(zip([*SETTING, "effect"], key, strict=True)) | {"formula": formula, "sampler": sampler}
    if sampler == "nuts":
        posterior = fit_nuts(counts, FORMULAS[formula], cores=_processes())
        return Fit(
            **names,
            beta_mean=posterior.beta_mean,
            beta_sd=posterior.beta_sd,
            interval=posterior.interval,
            difference_draws=posterior.difference_draws,
            scales=posterior.scale_means,
            reliable=posterior.reliable,
            effective=posterior.effective_draws_min,
            divergences=posterior.divergences,
            rhat_max=posterior.rhat_max,
        )
    design = build_design(counts, FORMULAS[formula])
    posterior = fit_laplace(design)
    predictive = posterior_predictive(design, posterior)
    return Fit(
        **names,
        beta_mean=posterior.beta_mean,
        beta_sd=posterior.beta_sd,
        interval=posterior.interval,
        difference_draws=predictive.draws,
        scales=dict(zip(design.names, posterior.scale_means().tolist(), strict=True)),
        reliable=posterior.reliable,
        effective=posterior.effective_nodes,
        log_evidence=posterior.log_evidence,
        accuracies=_accuracies(counts, predictive.predicted, predictive.observed),
    )


def _accuracies(counts: PairedCounts, predicted: np.ndarray, observed: np.ndarray) -> pd.DataFrame:
    patterns = pd.MultiIndex.from_product(
        [counts.tasks, counts.language_models, ["control", "treatment"]], names=["task", "language_model", "arm"]
    )
    frame = pd.DataFrame({"predicted": predicted, "observed": observed}, index=patterns)
    return frame.dropna().reset_index()


def _meta(counts: PairedCounts) -> MetaAnalysis | None:
    per_task = np.bincount(counts.task * len(counts.language_models) + counts.language_model)
    return meta_analysis(counts, SLICES) if per_task.max() > 1 else None


def _settings(trials: pd.DataFrame) -> pd.DataFrame:
    """Model-free mean over tasks by (experiment, m, n, effect), the language models of a task averaged."""
    rows = []
    for effect in EFFECTS:
        by_model = task_means(trials, effect, [*SETTING, "task", "language_model"])
        by_task = by_model.groupby([*SETTING, "task"])[effect].mean()
        for key, values in by_task.groupby(SETTING):
            summary = mean_over_tasks(values.to_numpy())
            rows.append(
                {
                    **dict(zip(SETTING, key, strict=True)),
                    "effect": effect,
                    "mean": summary.mean,
                    "standard_error": summary.standard_error,
                    "tasks": summary.tasks,
                }
            )
    return pd.DataFrame(rows)


def _power(trials: pd.DataFrame) -> pd.DataFrame:
    """What each cell could have detected, and what it would take to detect `DETECTABLE_BIAS`."""
    rows = []
    known = trials.dropna(subset=["extra", "test"])
    for key, cell in known.groupby(CELL):
        components = variance_components(((cell["test"] - cell["extra"]) / cell["total"]).to_numpy(), cell["task"])
        row = dict(zip(CELL, key, strict=True)) | {"effect_size": DETECTABLE_BIAS}
        if components is not None:
            tasks = cell["task"].nunique()
            subsamples = max(1, round(len(cell) / tasks))
            row |= {
                "within_task_sd": components.within_task,
                "between_tasks_sd": components.between_tasks,
                "tasks": tasks,
                "subsamples": subsamples,
                "power": detection_power(DETECTABLE_BIAS, components, tasks, subsamples),
                "smallest_detectable": smallest_detectable(components, tasks, subsamples),
                "subsamples_needed": subsamples_needed(DETECTABLE_BIAS, components, tasks),
                "tasks_needed": tasks_needed(DETECTABLE_BIAS, components, subsamples),
            }
        rows.append(row)
    columns = ["within_task_sd", "between_tasks_sd", "tasks", "subsamples", "power", "smallest_detectable"]
    columns = [*CELL, "effect_size", *columns, "subsamples_needed", "tasks_needed"]
    frame = pd.DataFrame(rows, columns=columns)
    whole = ["tasks", "subsamples", "subsamples_needed", "tasks_needed"]
    return frame.astype(dict.fromkeys(whole, "Int64"))
