"""The screening page: which candidate benchmarks stay, and why each of the others does not."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import read_json
from lm_validity.pages.page import Finding, Page, Section, Table, write_report
from lm_validity.studies.agreement.analysis import DIRECT, TRAINED
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import Screening, Thresholds, screen_benchmarks
from lm_validity.summaries import Missing, known, page_only
from lm_validity.words import count, explain_protocols


@dataclass(frozen=True)
class Candidate:
    """A benchmark, whether it is kept, and what its screening rests on."""

    benchmark: str
    kept: bool
    reason: str
    training_examples: float | Missing
    models: int
    not_improved: int
    others: int
    negative_agreement: int
    mean_tau: float | Missing
    category: str | None
    output_type: str | None


@dataclass(frozen=True)
class ScreeningSummary:
    """The screening of all candidates."""

    thresholds: Thresholds
    benchmarks: list[Candidate]
    notes: tuple[str, ...]
    trained_here: bool = page_only(default=False)


def report_screening(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    thresholds: Thresholds,
    results: str | Path | None = None,
    plan: str | Path | None = None,
) -> None:
    """Write summary.json, the table and the page of the screening under `output`.

    Training examples are those of the benchmarks sheet's column `training_examples`, else those that a run's records
    under `results` (results/<run>) count. Perplexity corpora are not screened. `plan`: what was to be fine-tuned; its
    cells that earlier scores chose are left out.
    """
    matrix = read_score_matrix(scores, models, benchmarks, plan)
    tasks = ~matrix.is_corpus
    for protocol in (DIRECT, TRAINED):
        if not matrix.has(protocol):
            raise InputError(f"{scores}: no {protocol} scores.", "screening compares both protocols.")
    examples = _training_examples(matrix, Path(results) if results else None)[tasks]
    found = screen_benchmarks(
        matrix.oriented(DIRECT)[:, tasks], matrix.oriented(TRAINED)[:, tasks], examples, thresholds
    )
    candidates = _candidates(matrix, tasks, examples, found)
    summary = ScreeningSummary(thresholds, candidates, matrix.notes, matrix.trained_here)
    write_report(_page(summary), summary, output)


def _training_examples(matrix: ScoreMatrix, results: Path | None) -> np.ndarray:
    """(benchmarks,) documents to train on, before the run's own caps; NaN where unknown."""
    known = matrix.benchmark_facts["training_examples"].to_numpy(dtype=float)
    if results is not None:
        recorded = [_recorded(results, benchmark) for benchmark in matrix.benchmarks]
        known = np.where(np.isnan(known), recorded, known)
    return known


def _recorded(results: Path, benchmark: str) -> float:
    """What lm-eval's task offers for training, by the prefetch record."""
    try:
        return float(read_json(results / "prefetch" / "benchmarks" / f"{benchmark}.json")["documents"]["train"])
    except (OSError, ValueError, KeyError):
        return float("nan")


def _candidates(matrix: ScoreMatrix, tasks: np.ndarray, examples: np.ndarray, found: Screening) -> list[Candidate]:
    facts = matrix.benchmark_facts[tasks]
    return [
        Candidate(
            benchmark=benchmark,
            kept=not reason,
            reason=reason,
            training_examples=known(number, "The number of training examples is unknown. This excludes no benchmark."),
            models=models,
            not_improved=unimproved,
            others=others,
            negative_agreement=negative,
            mean_tau=known(tau, "No other benchmark that passes both rules has a tau with this one."),
            category=None if pd.isna(category) else category,
            output_type=None if pd.isna(output_type) else output_type,
        )
        for benchmark, category, output_type, number, reason, models, unimproved, others, negative, tau in zip(
            facts["benchmark"],
            facts["category"],
            facts["output_type"],
            examples,
            found.reasons,
            found.models,
            found.unimproved,
            found.others,
            found.negative,
            found.mean_tau,
            strict=True,
        )
    ]


def _page(summary: ScreeningSummary) -> Page:
    table, thresholds = pd.DataFrame([vars(candidate) for candidate in summary.benchmarks]), summary.thresholds
    kept = int(table["kept"].sum())
    left = table.loc[~table["kept"], ["benchmark", "reason"]]
    reasons = "; ".join(f"{row.benchmark}: {row.reason}" for row in left.itertuples())
    finding = Finding(
        f"{kept} of {count(len(table), 'candidate benchmark')} pass.",
        f"Dropped: {reasons}." if reasons else "None is dropped.",
    )
    explanation = (
        "There are three rules. A benchmark is dropped if it has fewer than "
        f"{thresholds.training_examples} training examples. It is dropped if more than "
        f"{thresholds.unimproved_share:.0%} of the models do not score higher under train before test. (A model at its "
        "ceiling before fine-tuning counts too, so look at the scores of benchmarks dropped by this rule.) It is "
        "dropped if its direct ranking has a negative Kendall's tau with more than "
        f"{thresholds.negative_share:.0%} of the benchmarks that pass the first two rules."
    )
    formats = {"training_examples": ".0f", "mean_tau": ".3f"}
    labels = {
        "training_examples": "training examples",
        "not_improved": "models not improved",
        "negative_agreement": "others with negative tau",
        "mean_tau": "mean tau, direct",
    }
    section = Section(
        "Each candidate and the reason",
        explanation=explanation,
        tables=[Table("screening", "Candidates", table, formats=formats, labels=labels)],
    )
    explained = explain_protocols((DIRECT, TRAINED), own=summary.trained_here)
    question = f"Which candidate benchmarks are usable in the study? {explained}"
    return Page(
        name="screening", title="Screening of benchmarks", question=question, findings=[finding], sections=[section],
        notes=summary.notes,
    )  # fmt: skip
