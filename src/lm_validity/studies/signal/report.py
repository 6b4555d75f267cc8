"""The signal report: does a benchmark say something early in training?"""

from dataclasses import dataclass
from pathlib import Path

from lm_validity.config.sections import REPORTS, Reports, SignalConventions
from lm_validity.pages.page import write_report
from lm_validity.studies.signal.analysis import BenchmarkResult, analyze_benchmark
from lm_validity.studies.signal.curves import LearningCurves, read_learning_curves
from lm_validity.studies.signal.items import ItemAnalysis, analyze_items
from lm_validity.studies.signal.page import signal_page
from lm_validity.studies.signal.scores import Design, make_design
from lm_validity.studies.signal.summarize import summarize_results
from lm_validity.studies.signal.summary import SignalSummary, Value
from lm_validity.summaries import Missing
from lm_validity.tables.items import item_benchmarks, read_benchmark_items
from lm_validity.words import Reason, ReasonCode

SEED = 0


@dataclass(frozen=True)
class SignalAnalysis:
    """All results of the report."""

    learning: LearningCurves
    section: Reports
    results: dict[str, BenchmarkResult]


def report_signal(
    scores: str | Path,
    models: str | Path,
    output: str | Path,
    benchmarks: str | Path | None = None,
    items: str | Path | None = None,
    section: Reports = REPORTS,
) -> None:
    """Write summary.json, tables, figures and the page of the signal report under `output`."""
    analysis = analyze_signal(scores, models, benchmarks, items, section)
    summary = summarize(analysis)
    write_report(signal_page(summary), summary, output)


def analyze_signal(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path | None = None,
    items: str | Path | None = None,
    section: Reports = REPORTS,
) -> SignalAnalysis:
    """All results, from tables only. Raises InputError for bad input."""
    learning = read_learning_curves(scores, models, benchmarks, section.checkpoints)
    options, resamples = section.signal, section.resamples
    with_items = item_benchmarks(items) if items is not None else []
    results = {}
    for benchmark in learning.curves:
        design = make_design(learning, benchmark, options)
        found: ItemAnalysis | Missing = Missing(
            Reason("This needs the benchmark's items, and no items table has them.", ReasonCode.NO_ITEMS)
        )
        if items is not None and benchmark in with_items:
            found = _items(items, design, learning, options, resamples)
        chance = _chance(learning.chance.get(benchmark), found)
        results[benchmark] = analyze_benchmark(design, found, chance, options, resamples)
    return SignalAnalysis(learning, section, results)


def summarize(analysis: SignalAnalysis) -> SignalSummary:
    """All that summary.json and the page say."""
    return summarize_results(analysis.learning, analysis.results, analysis.section.signal, analysis.section.resamples)


def _items(
    path: str | Path, design: Design, learning: LearningCurves, options: SignalConventions, resamples: int
) -> ItemAnalysis | Missing:
    """One benchmark's items are in memory at a time."""
    name = design.benchmark
    answers = read_benchmark_items(path, name, learning.num_fewshot.get(name), learning.metrics.get(name))
    direction = learning.direction[design.benchmark]
    return analyze_items(design, answers, learning.facts, direction, options, resamples, SEED)


def _chance(in_sheet: float | None, items: ItemAnalysis | Missing) -> Value:
    """The score of guessing: the benchmarks sheet's, else that of the items."""
    if in_sheet is not None:
        return in_sheet
    if isinstance(items, Missing):
        return Missing(
            Reason(
                "The benchmarks sheet has no chance level, and there are no items that tell it.", ReasonCode.NO_CHANCE
            )
        )
    return items.chance
