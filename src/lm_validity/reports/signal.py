"""The signal report: does a benchmark say something early in training?"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lm_validity.files import write_json
from lm_validity.reports.page import write_page
from lm_validity.reports.signal_analysis import BenchmarkResult, analyze_benchmark
from lm_validity.reports.signal_data import LearningCurves, read_learning_curves
from lm_validity.reports.signal_items import ItemAnalysis, analyze_items
from lm_validity.reports.signal_notes import summary_notes
from lm_validity.reports.signal_page import signal_page
from lm_validity.reports.signal_scores import Design, Options, make_design
from lm_validity.reports.signal_summary import signal_summary
from lm_validity.reports.summary import plain
from lm_validity.statistics.signal_ranking import RankingWindows
from lm_validity.tables.read_items import item_benchmarks, read_benchmark_items

# A training shorter than the first ranking window has its windows scaled to its own length
SHORT_TRAINING_B = 100.0
SEED = 0


@dataclass(frozen=True)
class SignalAnalysis:
    """All results of the report."""

    learning: LearningCurves
    options: Options
    results: dict[str, BenchmarkResult]
    resamples: int


def report_signal(
    scores: str | Path,
    models: str | Path,
    output: str | Path,
    benchmarks: str | Path | None = None,
    items: str | Path | None = None,
    selection: str = "all",
    resamples: int = 1000,
) -> None:
    """Write summary.json, tables, figures and the page of the signal report under `output`."""
    analysis = analyze_signal(scores, models, benchmarks, items, selection, resamples)
    summary = summarize(analysis)
    write_page(signal_page(analysis, summary), output)
    write_json(Path(output) / "summary.json", summary)


def analyze_signal(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path | None = None,
    items: str | Path | None = None,
    selection: str = "all",
    resamples: int = 1000,
) -> SignalAnalysis:
    """All results, from tables only. Raises InputError for bad input; what is missing goes to the notes."""
    learning = read_learning_curves(scores, models, benchmarks, selection)
    options = Options(windows=RankingWindows(relative=_is_short(learning)))
    with_items = item_benchmarks(items) if items is not None else []
    generator = np.random.default_rng(SEED)
    results = {}
    for benchmark in learning.curves:
        design = make_design(learning, benchmark, options)
        found = None
        if benchmark in with_items:
            found = _items(items, design, learning, options, resamples)
        results[benchmark] = analyze_benchmark(design, found, options, resamples, generator)
    return SignalAnalysis(learning, options, results, resamples)


def summarize(analysis: SignalAnalysis) -> dict:
    """The contents of summary.json."""
    relative = analysis.options.windows.relative
    notes = summary_notes(analysis.learning, analysis.results, analysis.resamples, relative)
    return plain(signal_summary(analysis.learning, analysis.results, analysis.options, analysis.resamples, notes))


def _items(
    path: str | Path, design: Design, learning: LearningCurves, options: Options, resamples: int
) -> ItemAnalysis:
    """One benchmark's items are in memory at a time."""
    answers = read_benchmark_items(path, design.benchmark)
    direction = learning.direction[design.benchmark]
    return analyze_items(design, answers, learning.facts, direction, options, resamples, SEED)


def _is_short(learning: LearningCurves) -> bool:
    """Whether every training is over before the competition's first window, or tokens are unknown."""
    ends = [curve.tokens_b[-1] for by_model in learning.curves.values() for curve in by_model.values()]
    return not np.nanmax([*ends, 0.0]) >= SHORT_TRAINING_B
