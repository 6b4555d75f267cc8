"""The hierarchical model of all answers as rows: fits by setting, effect and formula, and slices of the data."""

import os

import joblib
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from lm_validity.missing import Missing
from lm_validity.results.put import Rows, labels_of
from lm_validity.studies.bias.statistics import model
from lm_validity.studies.bias.statistics.effects import SLICES, meta_analysis
from lm_validity.studies.bias.statistics.latent import FORMULAS, PairedCounts, build_design
from lm_validity.studies.bias.statistics.nuts import NutsPosterior, fit_nuts
from lm_validity.studies.bias.trials import setting_counts

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
