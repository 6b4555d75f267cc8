"""The signal report: does a benchmark say something early in training?"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.sections import REPORTS, Reports
from lm_validity.missing import Missing, Reason, ReasonCode
from lm_validity.pages.page import Page, Part, Section, Table
from lm_validity.results.files import joined, write_report
from lm_validity.studies.signal.benchmark import CurveDesign, ItemAnalysis, SignalData, analyze_benchmark
from lm_validity.studies.signal.curves import read_learning_curves
from lm_validity.studies.signal.glance import at_a_glance
from lm_validity.studies.signal.item_sections import filters_on_trial, item_metrics, subgroups
from lm_validity.studies.signal.items import analyze_items
from lm_validity.studies.signal.numbers import SignalSummary, summarize
from lm_validity.studies.signal.order import order_of_models
from lm_validity.studies.signal.quality import criteria_of_others, science_against_web, steady_improvement
from lm_validity.tables.items import item_benchmarks, read_benchmark_items
from lm_validity.words import explain_protocols

NO_ITEMS = Missing(Reason("This needs the benchmark's items, and no items table has them.", ReasonCode.NO_ITEMS))
WHO_TELLS = "The benchmarks sheet has no chance level, and there are no items that tell it."
NO_CHANCE = Missing(Reason(WHO_TELLS, ReasonCode.NO_CHANCE))


def report_signal(
    scores: str | Path,
    models: str | Path,
    output: str | Path,
    benchmarks: str | Path | None = None,
    items: str | Path | None = None,
    section: Reports = REPORTS,
    own_models: tuple[str, ...] = (),
) -> None:
    """Write summary.json, tables, figures and the page of the signal report under `output`.

    `own_models`: models of the reader, whose curves stand out among those of others.
    """
    data = replace(analyze_signal(scores, models, benchmarks, items, section), own_models=own_models)
    write_report(*signal(data), output)


def analyze_signal(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path | None = None,
    items: str | Path | None = None,
    section: Reports = REPORTS,
) -> SignalData:
    """Every benchmark with its scores and nulls, from tables only. Raises InputError for bad input.

    One benchmark's items are in memory at a time.
    """
    learning = read_learning_curves(scores, models, benchmarks, section.checkpoints)
    options, resamples = section.signal, section.resamples
    with_items = item_benchmarks(items) if items is not None else []
    analyzed = {}
    for name in learning.curves:
        design = CurveDesign.of(learning, name, options)
        of_items: ItemAnalysis | Missing = NO_ITEMS
        if items is not None and name in with_items:
            answers = read_benchmark_items(items, name, learning.num_fewshot.get(name), learning.metrics.get(name))
            of_items = analyze_items(design, answers, learning.facts, options, resamples)
        # the score of guessing: the benchmarks sheet's, else that of the items
        chance = learning.chance.get(name, NO_CHANCE if isinstance(of_items, Missing) else of_items.chance)
        analyzed[name] = analyze_benchmark(design, of_items, chance, options, resamples)
    return SignalData(learning, section, analyzed)


class SignalReport(NamedTuple):
    """The signal report: its page, and the numbers that the page shows."""

    page: Page
    summary: SignalSummary


def signal(data: SignalData) -> SignalReport:
    """The report of learning curves and their scores."""
    summary = summarize(data)
    parts = joined(
        steady_improvement(data, summary),
        order_of_models(data, summary),
        science_against_web(summary),
        filters_on_trial(summary),
        item_metrics(summary),
        subgroups(summary),
        criteria_of_others(summary),
        _all_scores(data),
    )
    glance = at_a_glance(data, summary)
    page = Page(
        name="signal",
        title="Early signal",
        question="Does a benchmark tell you anything early in training? Each model is scored at checkpoints along "
        f"its pretraining, under direct evaluation. {explain_protocols(['direct'])} Signal quality is high if scores "
        f"improve steadily. The order of the models has settled when it stays as it is at the end, and nearly "
        "settled when 9 of 10 pairs do.",
        findings=parts.findings,
        sections=parts.sections,
        notes=summary.notes,
        lede=glance.lede,
        picture=glance.picture,
        panels=glance.panels,
        answers=glance.answers,
    )
    return SignalReport(page, summary)


def _all_scores(data: SignalData) -> Part:
    """Every score along training, in the metric's own direction."""
    frames = []
    for name, benchmark in data.benchmarks.items():
        for model, curve in benchmark.curves.items():
            low, high = np.full((2, len(curve.values)), np.nan)
            if not isinstance(benchmark.resampled, Missing):
                ends = np.quantile(benchmark.resampled[model], [0.025, 0.975], axis=0)
                low, high = np.sort(benchmark.direction * ends, axis=0)
            columns = {
                "benchmark": name,
                "model": data.learning.facts.at[model, "label"],
                "checkpoint": list(curve.checkpoints),
                "progress": curve.progress * data.progress.scale,
                "score": benchmark.direction * curve.values,
                "low": low,
                "high": high,
                "selected": benchmark.selected[model],
            }
            frames.append(pd.DataFrame(columns))
    frame = pd.concat(frames, ignore_index=True)
    table = Table(
        "learning_curves",
        "All scores",
        frame,
        formats={"score": ".4f"},
        labels={"progress": data.progress.title, "selected": "used for signal quality"},
        folded=True,
    )
    return Part({}, Section("All scores", hint="each model at each checkpoint", tables=[table]))
