"""The factors report: how many factors does the score matrix have, what is the first, and which model to pick?"""

from pathlib import Path

import numpy as np

from lm_validity.files import write_json
from lm_validity.pages.page import write_page
from lm_validity.studies.agreement.factors.analysis import (
    MINIMUM_RESAMPLED_FAMILY,
    SHOWN_COMPONENTS,
    FactorsAnalysis,
    FactorsUncertainty,
    analyze_factors,
    factors_uncertainty,
)
from lm_validity.studies.agreement.factors.page import factors_page
from lm_validity.studies.agreement.influence_section import influence_notes
from lm_validity.studies.agreement.score_matrix import listing, read_score_matrix
from lm_validity.studies.agreement.statistics.potential import RankDraws, best_by_budget
from lm_validity.studies.agreement.statistics.resampling import Interval
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import plain

FEW_MODELS = 20  # below, the share of the first component is noticeably higher in resamples than in the table


def report_factors(
    scores: str | Path, models: str | Path, benchmarks: str | Path, output: str | Path, resamples: int = 2000
) -> None:
    """Write summary.json, tables, figures and the page of the factors report under `output`.

    `resamples`: 0 skips intervals, and with them the choice of a model by budget.
    """
    matrix = read_score_matrix(scores, models, benchmarks)
    analysis = analyze_factors(matrix)
    uncertainty = factors_uncertainty(analysis, resamples)
    summary = factors_summary(analysis, uncertainty, resamples)
    write_page(factors_page(analysis, uncertainty, summary), output)
    write_json(Path(output) / "summary.json", summary)


def factors_summary(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, resamples: int) -> dict:
    """The keys of summary.json."""
    models = analysis.matrix.models
    notes = list(analysis.notes)
    if resamples == 0:
        notes.append("Intervals are null: no resampling was asked for (--resamples 0).")
    elif not uncertainty.shares:
        notes.append(f"Intervals are null: too few models to resample ({len(models)}).")
    elif len(models) < FEW_MODELS and any(np.isfinite(shares.low).any() for shares in uncertainty.shares.values()):
        notes.append(
            f"With {len(models)} models, resampled shares of variance are biased upwards: their intervals are rough."
        )
    for protocol, rows in analysis.influence.items():
        if len(analysis.components[protocol].explained_variance):
            notes += influence_notes(protocol, [left.first_component for left in rows])
    if uncertainty.shares:
        notes += _share_notes(analysis, uncertainty)
    for protocol in uncertainty.population_ranks:
        notes += _rank_notes(analysis, uncertainty, protocol)
    summary = {
        "models": len(models),
        "benchmarks": len(analysis.tasks),
        **_in_both(analysis, uncertainty),
        "explained_variance": {p: first_shares(analysis.components[p].explained_variance) for p in PROTOCOLS},
        "explained_variance_interval": {
            p: _pairs(uncertainty.shares.get(p), len(analysis.components[p].explained_variance)) for p in PROTOCOLS
        },
        "first_component_ceiling": {p: ceiling.first_component for p, ceiling in analysis.ceiling.items()},
        "parallel_analysis": {p: _parallel_summary(analysis, p) for p in PROTOCOLS},
        "families": {
            family: {
                "explained_variance": {p: None if s is None else first_shares(s) for p, s in shares.items()},
                "first_component_interval": uncertainty.families.get(family),
            }
            for family, shares in analysis.families.items()
        },
        "pc1_scores": {p: dict(zip(models, analysis.components[p].scores, strict=True)) for p in PROTOCOLS},
        "pc1_loadings": {p: dict(zip(analysis.tasks, analysis.components[p].loadings, strict=True)) for p in PROTOCOLS},
        "pc1_compute": {
            p: vars(analysis.compute_relation[p]) | {"kendall_interval": uncertainty.compute.get(p)} for p in PROTOCOLS
        },
        "potential": {p: _rank_summary(analysis, uncertainty, p) for p in uncertainty.population_ranks},
        "best_by_budget": {p: _budget_summary(analysis, uncertainty, p) for p in uncertainty.population_ranks},
        "completion": {p: _completion_summary(analysis, p) for p in analysis.completion},
        "influence": {p: [vars(left) for left in rows] for p, rows in analysis.influence.items()},
        "resamples": resamples,
        "notes": notes,
    }
    return plain(summary)


def _in_both(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty) -> dict:
    """What compares the protocols, over the cells known under both."""
    known = np.isfinite(analysis.common_scores[PROTOCOLS[0]])
    shares = {p: analysis.common_components[p].explained_variance for p in PROTOCOLS}
    return {
        "cells_in_both": int(known.sum()),
        "models_in_both": int(known.any(axis=1).sum()),
        "explained_variance_in_both": {p: first_shares(shares[p]) for p in PROTOCOLS},
        "explained_variance_in_both_interval": {
            p: _pairs(uncertainty.common_shares.get(p), len(shares[p])) for p in PROTOCOLS
        },
        "pc1_compute_in_both": {p: vars(analysis.common_relation[p]) for p in PROTOCOLS},
    }


def first_shares(shares: np.ndarray) -> np.ndarray | None:
    """The first five shares of variance, None where there are no components."""
    return shares[:SHOWN_COMPONENTS] if len(shares) else None


def _pairs(interval: Interval | None, components: int) -> list | None:
    """[low, high] of each of the first shares that exist."""
    if interval is None or not np.isfinite(interval.low).any():
        return None
    ends = zip(interval.low[:components], interval.high[:components], strict=True)
    return [[low, high] if np.isfinite(low) else None for low, high in ends]


def _parallel_summary(analysis: FactorsAnalysis, protocol: str) -> dict | None:
    result = analysis.parallel.get(protocol)
    if result is None or not len(result.observed):
        return None
    return {
        "factors": result.factors,
        "null_mean": first_shares(result.null_mean),
        "null_95": first_shares(result.null_95),
        "p_first": result.p_first,
    }


def _rank_summary(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, protocol: str) -> dict:
    """Rank on the first component with intervals over benchmarks and over items, by model."""
    population, noise = uncertainty.population_ranks[protocol], uncertainty.noise_ranks[protocol]
    over_benchmarks, over_items = population.interval(), noise.interval()
    return {
        model: {
            "rank": population.rank[i],
            "interval_population_of_benchmarks": [over_benchmarks.low[i], over_benchmarks.high[i]],
            "interval_these_benchmarks": [over_items.low[i], over_items.high[i]],
        }
        for i, model in enumerate(analysis.matrix.models)
    }


def _share_notes(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty) -> list[str]:
    """Which intervals of shares of variance are null."""
    notes = []
    for protocol, interval in uncertainty.shares.items():
        if len(analysis.components[protocol].explained_variance) and not np.isfinite(interval.low[0]):
            notes.append(
                f"{protocol}: most resamples of the models leave a benchmark constant, or two without models in "
                "common, so there are no intervals of the shares of variance (null)."
            )
    small = [name for name in analysis.families if name not in uncertainty.families]
    if small:
        notes.append(
            f"Families of fewer than {MINIMUM_RESAMPLED_FAMILY} models have no interval of the first component's "
            f"share (null): {listing(small)}."
        )
    return notes


def _rank_notes(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, protocol: str) -> list[str]:
    """Which intervals of ranks rest on a part of the resamples, or are null."""
    population, noise = uncertainty.population_ranks[protocol], uncertainty.noise_ranks[protocol]
    labels, ranked = np.array(analysis.matrix.labels, dtype=object), np.isfinite(population.rank)
    defined = np.isfinite(population.draws).mean(axis=0)
    unknown = np.isnan(population.interval().low)
    part, too_few = ranked & ~unknown & (defined < 1), ranked & unknown
    no_errors = ranked & np.isnan(noise.interval().low)
    without = "without one of a model's benchmarks, or without two on which models differ,"
    notes = []
    if part.any():
        notes.append(
            f"{protocol}: intervals of ranks over benchmarks leave out resamples {without} which give it no rank: "
            f"{listing(labels[part])}."
        )
    if too_few.any():
        notes.append(
            f"{protocol}: no interval of the rank over benchmarks (null) for models with one benchmark, or where most "
            f"resamples are {without} which give it no rank: {listing(labels[too_few])}."
        )
    if no_errors.any():
        notes.append(
            f"{protocol}: standard errors are missing, so no interval of the rank over items (null) for "
            f"{listing(labels[no_errors])}."
        )
    return notes


def _budget_summary(analysis: FactorsAnalysis, uncertainty: FactorsUncertainty, protocol: str) -> list[dict]:
    ranks: RankDraws = uncertainty.population_ranks[protocol]
    names = analysis.matrix.models
    parameters = analysis.matrix.model_facts["parameters_b"].to_numpy(float)
    return [
        {
            "parameters_b": choice.parameters_b,
            "model": names[choice.model],
            "probability_best": choice.probability_best,
            "rivals": [names[i] for i in choice.rivals],
        }
        for choice in best_by_budget(ranks, parameters)
    ]


def _completion_summary(analysis: FactorsAnalysis, protocol: str) -> dict:
    completion = analysis.completion[protocol]
    missing = int((~np.isfinite(analysis.scores[protocol])).sum())
    low, high = np.quantile(completion.ranks, [0.025, 0.975], axis=0)
    return {
        "missing_cells": missing,
        "held_out": vars(completion.check),
        "rank_interval": {model: [low[i], high[i]] for i, model in enumerate(analysis.matrix.models)},
    }
