"""The agreement report: do benchmarks agree on which model is better, before and after equal preparation?"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lm_validity.files import write_json
from lm_validity.reports.agreement_page import agreement_page
from lm_validity.reports.page import write_page
from lm_validity.reports.score_matrix import ScoreMatrix, listing, read_score_matrix
from lm_validity.reports.summary import plain
from lm_validity.statistics.agreement import (
    Agreement,
    PerplexityAgreement,
    improved_pairs,
    mean_over_pairs,
    nanmean,
    perplexity_agreement,
    summarize_agreement,
)
from lm_validity.statistics.ranking import kendall_tau_matrix, pair_signs
from lm_validity.statistics.significance import significant_signs
from lm_validity.tables.schema import PROTOCOLS

MINIMUM_FAMILY = 3  # models of a family: with two a tau can only be -1, 0 or 1


@dataclass(frozen=True)
class AgreementAnalysis:
    """All results of the report, by protocol where they have one."""

    matrix: ScoreMatrix
    tasks: list[str]
    categories: list[str | None]
    tau: dict[str, np.ndarray]
    agreement: dict[str, Agreement]
    improved: tuple[int, int]
    significance_tau: dict[str, np.ndarray]
    significance_improved: tuple[int, int]
    families: dict[str, dict[str, float]]
    perplexity: dict[str, PerplexityAgreement] | None
    before_after: dict[str, np.ndarray]
    notes: list[str] = field(default_factory=list)


def report_agreement(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    items: str | Path | None = None,
    resamples: int = 2000,
) -> None:
    """Write summary.json, tables, figures and the page of the agreement report under `output`."""
    matrix = read_score_matrix(scores, models, benchmarks)
    analysis = analyze_agreement(matrix)
    summary = agreement_summary(analysis)
    write_page(agreement_page(analysis, summary), output)
    write_json(Path(output) / "summary.json", summary)


def analyze_agreement(matrix: ScoreMatrix) -> AgreementAnalysis:
    """All statistics of the report that need no resampling."""
    notes = list(matrix.notes)
    is_task = ~matrix.is_corpus
    tasks = matrix.task_names()
    facts = matrix.benchmark_facts[is_task]
    categories = [name if isinstance(name, str) else None for name in facts["category"]]
    oriented = {protocol: matrix.oriented(protocol)[:, is_task] for protocol in PROTOCOLS}
    stderr = {protocol: matrix.stderr[protocol][:, is_task] for protocol in PROTOCOLS}
    tau = {protocol: kendall_tau_matrix(pair_signs(oriented[protocol])) for protocol in PROTOCOLS}
    significance_tau = {
        protocol: kendall_tau_matrix(significant_signs(oriented[protocol], stderr[protocol]))
        for protocol in PROTOCOLS
    }
    notes += _coverage_notes(matrix, oriented, stderr, tasks)
    return AgreementAnalysis(
        matrix=matrix,
        tasks=tasks,
        categories=categories,
        tau=tau,
        agreement={protocol: summarize_agreement(tau[protocol], categories) for protocol in PROTOCOLS},
        improved=improved_pairs(tau["direct"], tau["train_before_test"]),
        significance_tau=significance_tau,
        significance_improved=improved_pairs(
            significance_tau["direct"], significance_tau["train_before_test"]
        ),
        families=_family_agreement(matrix.families, oriented, notes),
        perplexity=_perplexity(matrix, oriented, notes),
        before_after=_before_after(matrix, oriented, notes),
        notes=notes,
    )


def agreement_summary(analysis: AgreementAnalysis) -> dict:
    """The keys of summary.json."""
    improved, compared = analysis.improved
    significance_improved, significance_compared = analysis.significance_improved
    summary = {
        "models": len(analysis.matrix.models),
        "benchmarks": len(analysis.tasks),
        "pairs": len(analysis.tasks) * (len(analysis.tasks) - 1) // 2,
        "improved_pairs": improved if compared else None,
        "compared_pairs": compared,
        "kendall_tau": {protocol: _tau_summary(analysis, protocol) for protocol in PROTOCOLS},
        "significance_tau": {
            **{
                protocol: {"mean": mean_over_pairs(analysis.significance_tau[protocol])}
                for protocol in PROTOCOLS
            },
            "improved_pairs": significance_improved if significance_compared else None,
        },
        "perplexity": _perplexity_summary(analysis),
        "families": analysis.families,
        "notes": analysis.notes,
    }
    return plain(summary)


def _tau_summary(analysis: AgreementAnalysis, protocol: str) -> dict:
    tau, agreement = analysis.tau[protocol], analysis.agreement[protocol]
    names = analysis.tasks
    grid = agreement.by_category
    return {
        "mean": agreement.mean,
        "interval": None,
        "by_benchmark": dict(zip(names, agreement.by_benchmark, strict=True)),
        "by_pair": [
            [names[i], names[j], tau[i, j]] for i, j in zip(*np.triu_indices(len(names), 1), strict=True)
        ],
        "by_category": {
            a: {b: grid[i, j] for j, b in enumerate(agreement.categories)}
            for i, a in enumerate(agreement.categories)
        },
        "ceiling": None,
    }


def _perplexity_summary(analysis: AgreementAnalysis) -> dict | None:
    perplexity = analysis.perplexity
    if perplexity is None:
        return None
    return {
        "models": max(perplexity[protocol].models for protocol in PROTOCOLS),
        "corpora": [
            b
            for b, corpus in zip(analysis.matrix.benchmarks, analysis.matrix.is_corpus, strict=True)
            if corpus
        ],
        "corpus_benchmark": {p: nanmean(perplexity[p].corpus_benchmark) for p in PROTOCOLS},
        "corpus_corpus": {p: mean_over_pairs(perplexity[p].corpus_corpus) for p in PROTOCOLS},
        "average_average": {p: perplexity[p].average_average for p in PROTOCOLS},
        "before_after": {kind: nanmean(tau) for kind, tau in analysis.before_after.items()},
    }


def _family_agreement(families: np.ndarray, oriented: dict[str, np.ndarray], notes: list[str]) -> dict:
    """Mean tau within each family of at least `MINIMUM_FAMILY` models."""
    names = list(dict.fromkeys(name for name in families if name is not None))
    small = [name for name in names if (families == name).sum() < MINIMUM_FAMILY]
    if small:
        notes.append(
            f"Families of fewer than {MINIMUM_FAMILY} models have no agreement of their own: {listing(small)}."
        )
    return {
        name: {
            protocol: float("nan")
            if name in small
            else mean_over_pairs(kendall_tau_matrix(pair_signs(oriented[protocol][families == name])))
            for protocol in PROTOCOLS
        }
        for name in names
    }


def corpus_scores(matrix: ScoreMatrix, protocol: str) -> np.ndarray:
    """(models, corpora) oriented scores on the perplexity corpora, NaN for models kept out of that
    analysis.
    """
    scores = matrix.oriented(protocol)[:, matrix.is_corpus]
    excluded = (~matrix.model_facts["in_perplexity_analysis"].fillna(True)).to_numpy(dtype=bool)
    return np.where(excluded[:, None], np.nan, scores)


def _perplexity(matrix: ScoreMatrix, oriented: dict[str, np.ndarray], notes: list[str]) -> dict | None:
    if not matrix.is_corpus.any():
        notes.append("No perplexity corpus in the tables: nothing to compare with perplexity.")
        return None
    results = {p: perplexity_agreement(corpus_scores(matrix, p), oriented[p]) for p in PROTOCOLS}
    for protocol, result in results.items():
        if not np.isfinite(result.average_average):
            notes.append(
                f"{protocol}: {result.complete_models} models have all corpora and benchmarks, too few to compare "
                "average perplexity with average score."
            )
    return results


def _before_after(
    matrix: ScoreMatrix, oriented: dict[str, np.ndarray], notes: list[str]
) -> dict[str, np.ndarray]:
    """Perplexity before preparation against scores after it, for base and for instruction-tuned models."""
    if not matrix.is_corpus.any():
        return {}
    before, after = corpus_scores(matrix, "direct"), oriented["train_before_test"]
    tuned = matrix.model_facts["instruction_tuned"]
    if tuned.isna().all():
        notes.append("Which models are instruction-tuned is unknown: base and tuned ones are not told apart.")
    results = {}
    for kind, chosen in (("base", tuned.eq(False)), ("instruction_tuned", tuned.eq(True))):
        rows = chosen.fillna(False).to_numpy(dtype=bool)
        results[kind] = kendall_tau_matrix(pair_signs(before[rows]), others=pair_signs(after[rows]))
    return results


def _coverage_notes(matrix: ScoreMatrix, oriented: dict, stderr: dict, tasks: list[str]) -> list[str]:
    """What is missing, constant or without a standard error, in sentences."""
    notes = []
    for protocol in PROTOCOLS:
        scores = oriented[protocol]
        known = np.isfinite(scores)
        if not known.any():
            notes.append(f"No {protocol} scores: what compares the two protocols is null.")
            continue
        if not known.all():
            cells = [f"{matrix.models[i]} on {tasks[j]}" for i, j in zip(*np.nonzero(~known), strict=True)]
            notes.append(
                f"{protocol}: {len(cells)} of {known.size} cells are missing ({listing(cells, 6)}); each tau is over the "
                "models known on both benchmarks."
            )
        nowhere = [name for name, row in zip(matrix.models, known, strict=True) if not row.any()]
        if nowhere:
            notes.append(f"{protocol}: no score at all for {listing(nowhere)}.")
        constant = [
            name
            for name, column, ok in zip(tasks, scores.T, known.T, strict=True)
            if ok.any() and np.ptp(column[ok]) == 0
        ]
        if constant:
            notes.append(
                f"{protocol}: all models have the same score on {listing(constant)}; its taus are undefined (null)."
            )
        without = [
            name
            for name, error, ok in zip(tasks, stderr[protocol].T, known.T, strict=True)
            if not np.isfinite(error[ok]).any()
        ]
        if without:
            notes.append(
                f"{protocol}: no standard errors on {listing(without)}; nothing there counts as significant."
            )
    return notes
