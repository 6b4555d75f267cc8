"""The bias report: does pretraining on a benchmark's unlabelled test text inflate its score?"""

from pathlib import Path

import pandas as pd

from lm_validity.files import write_json
from lm_validity.pages.page import write_page
from lm_validity.studies.bias.analysis import BiasAnalysis, analyze_bias
from lm_validity.studies.bias.notes import notes
from lm_validity.studies.bias.page import bias_page
from lm_validity.studies.bias.statistics.meta import THRESHOLD
from lm_validity.studies.bias.table import read_trials
from lm_validity.words import plain


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
