"""The factors report: how many factors does the score matrix have, and what is the first?"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lm_validity.files import write_json
from lm_validity.reports.factors_page import factors_page
from lm_validity.reports.page import write_page
from lm_validity.reports.score_matrix import ScoreMatrix, listing, read_score_matrix
from lm_validity.reports.summary import plain
from lm_validity.statistics.factors import (
    Components,
    ComputeRelation,
    pretraining_compute,
    principal_components,
    relate_to_compute,
)
from lm_validity.tables.schema import PROTOCOLS

MINIMUM_FAMILY = 3  # models of a family: two models always lie on one component
SHOWN_COMPONENTS = 5


@dataclass(frozen=True)
class FactorsAnalysis:
    """All results of the report, by protocol."""

    matrix: ScoreMatrix
    tasks: list[str]
    components: dict[str, Components]
    families: dict[str, dict[str, np.ndarray | None]]
    compute: np.ndarray
    compute_relation: dict[str, ComputeRelation]
    notes: list[str] = field(default_factory=list)


def report_factors(
    scores: str | Path, models: str | Path, benchmarks: str | Path, output: str | Path, resamples: int = 2000
) -> None:
    """Write summary.json, tables, figures and the page of the factors report under `output`."""
    matrix = read_score_matrix(scores, models, benchmarks)
    analysis = analyze_factors(matrix)
    summary = factors_summary(analysis)
    write_page(factors_page(analysis, summary), output)
    write_json(Path(output) / "summary.json", summary)


def analyze_factors(matrix: ScoreMatrix) -> FactorsAnalysis:
    """All statistics of the report that need no resampling."""
    notes = list(matrix.notes)
    tasks = matrix.task_names()
    oriented = {protocol: matrix.oriented(protocol)[:, ~matrix.is_corpus] for protocol in PROTOCOLS}
    components = {protocol: principal_components(oriented[protocol]) for protocol in PROTOCOLS}
    for protocol in PROTOCOLS:
        notes += _component_notes(protocol, oriented[protocol], components[protocol], tasks)
    compute = _compute(matrix, notes)
    return FactorsAnalysis(
        matrix=matrix,
        tasks=tasks,
        components=components,
        families=_family_components(matrix.families, oriented, notes),
        compute=compute,
        compute_relation={p: relate_to_compute(components[p].scores, compute) for p in PROTOCOLS},
        notes=notes,
    )


def factors_summary(analysis: FactorsAnalysis) -> dict:
    """The keys of summary.json."""
    models = analysis.matrix.models
    summary = {
        "models": len(models),
        "benchmarks": len(analysis.tasks),
        "explained_variance": {
            p: _first_shares(analysis.components[p].explained_variance) for p in PROTOCOLS
        },
        "explained_variance_interval": {p: None for p in PROTOCOLS},
        "families": {
            family: {
                "explained_variance": {p: None if s is None else _first_shares(s) for p, s in shares.items()}
            }
            for family, shares in analysis.families.items()
        },
        "pc1_scores": {p: dict(zip(models, analysis.components[p].scores, strict=True)) for p in PROTOCOLS},
        "pc1_compute": {p: vars(analysis.compute_relation[p]) for p in PROTOCOLS},
        "notes": analysis.notes,
    }
    return plain(summary)


def _first_shares(shares: np.ndarray) -> np.ndarray | None:
    return shares[:SHOWN_COMPONENTS] if len(shares) else None


def _family_components(families: np.ndarray, oriented: dict[str, np.ndarray], notes: list[str]) -> dict:
    names = list(dict.fromkeys(name for name in families if name is not None))
    small = [name for name in names if (families == name).sum() < MINIMUM_FAMILY]
    if small:
        notes.append(
            f"Families of fewer than {MINIMUM_FAMILY} models have no components of their own: {listing(small)}."
        )
    return {
        name: {
            protocol: None
            if name in small
            else principal_components(oriented[protocol][families == name]).explained_variance
            for protocol in PROTOCOLS
        }
        for name in names
    }


def _compute(matrix: ScoreMatrix, notes: list[str]) -> np.ndarray:
    """(models,) pretraining compute, NaN where unknown or kept out by the sheet."""
    facts = matrix.model_facts
    compute = pretraining_compute(facts["parameters_b"].to_numpy(float), facts["tokens_b"].to_numpy(float))
    excluded = (~facts["in_compute_analysis"].fillna(True)).to_numpy(dtype=bool)
    compute[excluded] = np.nan
    known = int(np.isfinite(compute).sum())
    if known < len(compute):
        notes.append(f"Pretraining compute is known and trusted for {known} of {len(compute)} models.")
    return compute


def _component_notes(
    protocol: str, scores: np.ndarray, components: Components, tasks: list[str]
) -> list[str]:
    notes = []
    if not np.isfinite(scores).any():
        return [f"No {protocol} scores: its components are null."]
    left_out = [name for name, used in zip(tasks, components.used, strict=True) if not used]
    if left_out:
        notes.append(
            f"{protocol}: constant or without enough common models, not in the components: {listing(left_out)}."
        )
    missing = int((~np.isfinite(scores[:, components.used])).sum())
    if missing and len(components.explained_variance):
        notes.append(
            f"{protocol}: {missing} cells are missing; correlations are over the models known on both benchmarks "
            f"(smallest eigenvalue share {components.explained_variance[-1]:.3f})."
        )
    return notes
