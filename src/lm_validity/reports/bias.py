"""The bias report: does pretraining on a benchmark's unlabelled test text inflate its score?"""

import math
from pathlib import Path

import pandas as pd

from lm_validity.files import write_json
from lm_validity.reports.bias_analysis import BiasAnalysis, analyze_bias
from lm_validity.reports.bias_page import bias_page
from lm_validity.reports.page import write_page
from lm_validity.reports.summary import plain
from lm_validity.statistics.bias_meta import THRESHOLD
from lm_validity.statistics.bias_model import EFFECTS
from lm_validity.tables.trials import ARMS, read_trials


def report_bias(trials: str | Path, output: str | Path, sampler: str = "laplace", formula: str = "all") -> None:
    """Write summary.json, tables, figures and the page of the bias report under `output`.

    `trials`: a trials table. `sampler`: laplace (seconds a fit) or nuts (minutes; needs the extra `bayes`).
    `formula`: all, or one of `statistics.bias_model.FORMULAS`.
    """
    analysis = analyze_bias(read_trials(trials), sampler=sampler, formula=formula)
    summary = bias_summary(analysis)
    write_page(bias_page(analysis, summary["notes"]), output)
    write_json(Path(output) / "summary.json", summary)


def bias_summary(analysis: BiasAnalysis) -> dict:
    """The keys of summary.json."""
    return plain(
        {
            "headline": _headline(analysis),
            "cells": _records(analysis.cells),
            "tasks": _records(analysis.tasks),
            "posterior": [_posterior(fit) for fit in analysis.fits],
            "permutation": _records(analysis.permutation),
            "meta_analysis": _meta_analysis(analysis),
            "power": _records(analysis.power),
            "base_drift": _records(analysis.drift),
            "pretraining_loss": _records(analysis.losses),
            "test_set_mismatches": _records(analysis.mismatches),
            "pca_simulation": [
                {"effective_rank": rank, "n": n, "bias": list(result.bias), "boost": list(result.boost)}
                for (rank, n), result in analysis.pca.items()
            ],
            "notes": notes(analysis),
        }
    )


def _headline(analysis: BiasAnalysis) -> dict:
    experiments: dict[str, dict] = {}
    for (experiment, effect), mean in analysis.overall.items():
        experiments.setdefault(experiment, {})[effect] = None if mean is None else vars(mean)
    return experiments


def _records(frame: pd.DataFrame) -> list[dict]:
    """Rows as dictionaries; missing values as None."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _posterior(fit) -> dict:
    return {
        "experiment": fit.experiment,
        "m": fit.m,
        "n": fit.n,
        "effect": fit.effect,
        "formula": fit.formula,
        "sampler": fit.sampler,
        "beta_mean": fit.beta_mean,
        "beta_sd": fit.beta_sd,
        "interval89": fit.interval,
        "difference_mean": fit.difference_mean,
        "difference_interval89": fit.difference_interval,
        "divergences": fit.divergences,
        "rhat_max": fit.rhat_max,
        "effective_draws_min" if fit.sampler == "nuts" else "effective_nodes": fit.effective,
        "reliable": fit.reliable,
        "log_evidence": fit.log_evidence,
        "standard_deviations": fit.scales,
    }


def _meta_analysis(analysis: BiasAnalysis) -> list[dict]:
    rows = []
    for (experiment, m, n), result in analysis.meta.items():
        rows.append(
            {
                "experiment": experiment,
                "m": m,
                "n": n,
                "slices": len(result.means) if result else 0,
                "threshold": THRESHOLD,
                "share_beyond": result.share_beyond if result else None,
                "share_excluding_zero": result.share_excluding_zero if result else None,
                "share_t_excluding_zero": result.share_t_excluding_zero if result else None,
            }
        )
    return rows


def notes(analysis: BiasAnalysis) -> list[str]:
    """What a reader must know about these data and about what is null."""
    found = [
        "Boost and bias share the extra arm: chance that raises accuracy(extra) raises the boost and lowers the bias. "
        "Do not read the two together as if they were independent.",
        "A boost from text of the benchmark's own domain can itself be unfair: a model may generalise better within "
        "that domain only, and a score that it gains there need not show elsewhere.",
        "cells: means over all subsamples of all tasks, standard errors over task means. tasks: every cell (language "
        "model, m, n) weighs the same. Intervals of posteriors are 89%, equal-tailed; all others are 95%.",
    ]
    if analysis.sampler == "laplace":
        found.append("divergences and rhat_max are null: the Laplace path draws no chains (see effective_nodes).")
    else:
        found.append("log_evidence is null: NUTS does not estimate it.")
    return found + _missing_notes(analysis) + _provenance_notes(analysis) + _reliability_notes(analysis)


def _missing_notes(analysis: BiasAnalysis) -> list[str]:
    trials, found = analysis.trials, []
    for arm in ARMS:
        if missing := int(trials[arm].isna().sum()):
            effects = " and ".join(effect for effect, arms in EFFECTS.items() if arm in arms)
            found.append(f"{missing} of {len(trials)} trials have no arm {arm}; they do not count for {effects}.")
    if analysis.cells["tasks"].min() == 1:
        found.append("boost_se and bias_se are null in cells with one task: they are standard errors over tasks.")
    if any(result is None for result in analysis.meta.values()):
        found.append("meta_analysis is null where every task has one subsample: a slice would be the whole data.")
    if any(result is not None and math.isnan(result.share_t_excluding_zero) for result in analysis.meta.values()):
        found.append("share_t_excluding_zero is null in settings with one task: its interval is one over tasks.")
    if analysis.power["power"].isna().any():
        found.append("power is null where fewer than two tasks have two subsamples: variances are unknown.")
    if analysis.power["subsamples_needed"].isna().any() or analysis.power["tasks_needed"].isna().any():
        found.append(
            "subsamples_needed and tasks_needed are null where more alone of the one would never suffice: then the "
            "tasks differ too much, or there are too few subsamples."
        )
    models = trials.groupby("experiment")["language_model"].nunique()
    for experiment in models.index[models == 1]:
        found.append(f"Experiment {experiment} has one language model: the terms that tell models apart are dropped.")
    return found


def _provenance_notes(analysis: BiasAnalysis) -> list[str]:
    found = [
        f"Mixed provenance: the base accuracy of {row.language_model} at m = {row.m} is {row.base:.4f} for n = "
        f"{row.n} and {row.reference_base:.4f} for n = {row.reference_n} (z = {row.z:.1f}), though the base arm "
        "never sees the n texts. These rows come from different code or data; trends over n at this m are "
        "confounded."
        for row in analysis.drift[analysis.drift["mixed"]].itertuples()
    ]
    if len(analysis.mismatches):
        setting = analysis.mismatches.groupby(["experiment", "m", "n"])[["mismatched", "subsamples"]].sum()
        places = ", ".join(f"{row.mismatched} at m = {key[1]}, n = {key[2]}" for key, row in setting.iterrows())
        names = ", ".join(sorted(analysis.mismatches["task"].unique()))
        found.append(
            f"Subsamples of the same number had different test sets in different language models ({places}; tasks "
            f"{names}). The formulas equations and notebooks share a pair effect between models and are wrong for "
            "these; overdispersed pairs within a model and is not affected."
        )
    return found


def _reliability_notes(analysis: BiasAnalysis) -> list[str]:
    return [
        f"UNRELIABLE FIT: {fit.effect} at m = {fit.m}, n = {fit.n}, formula {fit.formula} ({fit.experiment}): "
        + (
            f"{fit.divergences} divergences, largest r-hat {fit.rhat_max:.3f}, {fit.effective:.0f} effective draws."
            if fit.sampler == "nuts"
            else f"only {fit.effective:.0f} effective nodes."
        )
        for fit in analysis.fits
        if not fit.reliable
    ]
