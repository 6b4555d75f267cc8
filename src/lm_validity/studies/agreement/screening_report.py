"""The screening page: which candidate benchmarks stay, and why each of the others does not."""

from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.sections import Screening
from lm_validity.errors import InputError
from lm_validity.files import read_json
from lm_validity.missing import known
from lm_validity.pages.page import Finding, Page, Section, Table
from lm_validity.results.files import write_report
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import screen_benchmarks
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, explain_protocols

NO_EXAMPLES = "The number of training examples is unknown. This excludes no benchmark."
NO_OTHER = "No other benchmark that passes both rules has a tau with this one."


def report_screening(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    section: Screening,
    results: str | Path | None = None,
    plan: str | Path | None = None,
) -> None:
    """Write summary.json, the table and the page of the screening under `output`.

    Training examples are those of the benchmarks sheet's column `training_examples`, else those that a run's records
    under `results` (results/<run>) count. Perplexity corpora are not screened. `plan`: what was to be fine-tuned; its
    cells that earlier scores chose are left out.
    """
    matrix = read_score_matrix(scores, models, benchmarks, plan)
    for protocol in PROTOCOLS:
        if not matrix.has(protocol):
            raise InputError(f"{scores}: no {protocol} scores.", "screening compares both protocols.")
    tasks = ~matrix.is_corpus
    facts = matrix.benchmark_facts[tasks]
    examples = facts["training_examples"].to_numpy(dtype=float)
    if results:
        recorded = [_recorded(Path(results), benchmark) for benchmark in facts["benchmark"]]
        examples = np.where(np.isnan(examples), recorded, examples)
    direct, trained = (matrix.oriented(protocol)[:, tasks] for protocol in PROTOCOLS)
    screening = screen_benchmarks(direct, trained, examples, section)
    table = pd.DataFrame(
        {
            "benchmark": fact.benchmark,
            "kept": screening.reasons[i] is None,
            "reason": screening.reasons[i] or "",
            "training_examples": known(examples[i], NO_EXAMPLES),
            "models": screening.models[i],
            "not_improved": screening.unimproved[i],
            "others": screening.eligible[i],
            "negative_agreement": screening.negative[i],
            "mean_tau": known(screening.mean_tau[i], NO_OTHER),
            "category": None if pd.isna(fact.category) else fact.category,
            "output_type": None if pd.isna(fact.output_type) else fact.output_type,
        }
        for i, fact in enumerate(facts.itertuples())
    )
    summary = {"thresholds": section.model_dump(), "benchmarks": table.to_dict("records"), "notes": matrix.notes}
    dropped = table.loc[~table["kept"], ["benchmark", "reason"]]
    reasons = "; ".join(f"{row.benchmark}: {row.reason}" for row in dropped.itertuples())
    finding = Finding(
        f"{int(table['kept'].sum())} of {count(len(table), 'candidate benchmark')} pass.",
        f"Dropped: {reasons}." if reasons else "None is dropped.",
    )
    explanation = (
        "There are three rules. A benchmark is dropped if it has fewer than "
        f"{section.training_examples} training examples. It is dropped if more than "
        f"{section.unimproved_share:.0%} of the models do not score higher under train before test. (A model at "
        "its ceiling before fine-tuning counts too, so look at the scores of benchmarks dropped by this rule.) It is "
        "dropped if its direct ranking has a negative Kendall's tau with more than "
        f"{section.negative_share:.0%} of the benchmarks that pass the first two rules."
    )
    formats = {"training_examples": ".0f", "mean_tau": ".3f"}
    labels = {
        "training_examples": "training examples",
        "not_improved": "models not improved",
        "negative_agreement": "others with negative tau",
        "mean_tau": "mean tau, direct",
    }
    tables = [Table("screening", "Candidates", table, formats=formats, labels=labels)]
    explained = explain_protocols(PROTOCOLS, trained_here=matrix.trained_here)
    page = Page(
        name="screening",
        title="Screening of benchmarks",
        question=f"Which candidate benchmarks are usable in the study? {explained}",
        findings=[finding],
        sections=[Section("Each candidate and the reason", explanation=explanation, tables=tables)],
        notes=matrix.notes,
    )
    write_report(page, summary, output)


def _recorded(results: Path, benchmark: str) -> float:
    """What lm-eval's task offers for training, by the prefetch record."""
    try:
        return float(read_json(results / "prefetch" / "benchmarks" / f"{benchmark}.json")["documents"]["train"])
    except (OSError, ValueError, KeyError):
        return float("nan")
