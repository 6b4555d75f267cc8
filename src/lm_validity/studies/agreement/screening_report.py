"""The screening page: which candidate benchmarks stay, and why each of the others does not."""

from pathlib import Path

import numpy as np

from lm_validity.config.sections import Screening
from lm_validity.errors import InputError
from lm_validity.files import read_json
from lm_validity.pages.page import Finding, Page, Section
from lm_validity.results.files import write_rows
from lm_validity.results.put import Column, Rows
from lm_validity.results.sections import TableOf
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import screen_benchmarks
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import count, explain_protocols

NO_EXAMPLES = "The number of training examples is unknown. This excludes no benchmark."
NO_OTHER = "No other benchmark that passes both rules has a tau with this one."
TABLE = TableOf(
    "screening",
    {"subject": "benchmark"},
    {
        "kept": Column("kept", "kept"),
        "reason": Column("dropped_because", "reason"),
        "training_examples": Column("training_examples", "training examples", ".0f"),
        "models": Column("models", "models", ".0f"),
        "not_improved": Column("models_not_improved", "models not improved", ".0f"),
        "others": Column("tau_with_kept", "others", ".0f", "n"),
        "negative_agreement": Column("others_with_negative_tau", "others with negative tau", ".0f"),
        "mean_tau": Column("tau_with_kept", "mean tau, direct", ".3f"),
    },
    "Candidates",
)


def report_screening(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    section: Screening,
    results: str | Path | None = None,
    plan: str | Path | None = None,
) -> None:
    """Write results.parquet, the table and the page of the screening under `output`.

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
    rows = Rows("screening")
    for i, fact in enumerate(facts.itertuples()):
        at, others = rows.of(subject=fact.benchmark), ("others", int(screening.eligible[i]))
        at.put("kept", screening.reasons[i] is None, "yes_or_no")
        at.put("dropped_because", screening.reasons[i] or "", "text")
        at.put("training_examples", examples[i], "texts", why=NO_EXAMPLES)
        at.put("models", screening.models[i], "models")
        improved = ("models", int(screening.models[i]))
        at.put("models_not_improved", screening.unimproved[i], "models", counted=improved)
        at.put("others_with_negative_tau", screening.negative[i], "benchmarks", counted=others)
        at.put("tau_with_kept", screening.mean_tau[i], "tau", counted=others, why=NO_OTHER)
    kept = [bool(row.value) for row in rows.all("kept")]
    reasons = "; ".join(f"{row.subject}: {row.text}" for row in rows.all("dropped_because") if row.text)
    finding = Finding(
        f"{sum(kept)} of {count(len(kept), 'candidate benchmark')} pass.",
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
    tables = [TABLE.made(rows)]
    explained = explain_protocols(PROTOCOLS, trained_here=matrix.trained_here)
    page = Page(
        name="screening",
        title="Screening of benchmarks",
        question=f"Which candidate benchmarks are usable in the study? {explained}",
        findings=[finding],
        sections=[Section("Each candidate and the reason", explanation=explanation, tables=tables)],
        notes=matrix.notes,
    )
    write_rows(page, rows, output)


def _recorded(results: Path, benchmark: str) -> float:
    """What lm-eval's task offers for training, by the prefetch record."""
    try:
        return float(read_json(results / "prefetch" / "benchmarks" / f"{benchmark}.json")["documents"]["train"])
    except (OSError, ValueError, KeyError):
        return float("nan")
