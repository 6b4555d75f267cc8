"""The agreement report: do benchmarks agree on which model is better, under direct evaluation and train before test?"""

from pathlib import Path

import pandas as pd

from lm_validity.config.sections import REPORTS, Reports
from lm_validity.missing import Missing
from lm_validity.pages.page import Finding, Page, Part, asked
from lm_validity.results.files import Report, joined, write_report
from lm_validity.studies.agreement import (
    benchmarks,
    benchmarks_page,
    incomplete,
    incomplete_page,
    robustness,
    significance,
    similar,
    similar_page,
    tau,
    tau_page,
)
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.front import above_the_folds
from lm_validity.studies.agreement.notes import selected_on_test
from lm_validity.studies.agreement.pooled import compare_pooled
from lm_validity.studies.agreement.score_matrix import read_score_matrix
from lm_validity.studies.agreement.wording import value_in_words
from lm_validity.tables.schema import PROTOCOLS, SCORES, SELECTIONS, read_table
from lm_validity.words import explain_protocols

# what summary.json holds, in this order
KEYS = (
    "models", "benchmarks", "pairs", "cells_in_both", "models_in_both", "improved_pairs", "compared_pairs",
    "kendall_tau", "improvement", "significance_tau", "perplexity", "reliability", "subsets", "incomplete", "pooled",
    "selected_on_test", "by_benchmark", "prompt_range", "standard_errors", "resamples", "notes",
)  # fmt: skip


def report_agreement(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    items: str | Path | None = None,
    section: Reports = REPORTS,
    selections: str | Path | None = None,
    plan: str | Path | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the agreement report under `output`.

    `items`: makes significance paired. `selections`: shows which prompts were chosen after fine-tuning. Without
    resamples, intervals are skipped. `plan`: the sheet of what was to be fine-tuned; other cells are not missing.
    """
    matrix = read_score_matrix(scores, models, benchmarks, plan)
    rows = read_table(scores, SCORES)  # those of prompts that are not selected, too
    selected = None if selections is None else read_table(selections, SELECTIONS)
    report = agreement(Data.of(matrix, section.resamples, items), rows, selected)
    write_report(report.page, report.summary, output)


FOLDS = (  # questions above the folds
    "Which benchmarks agree?",
    "For which models does it hold?",
    "How much of it is noise?",
    "What does it rest on?",
)


def agreement(
    data: Data,
    rows: pd.DataFrame | None = None,
    selections: pd.DataFrame | None = None,
) -> Report:
    """The report on the agreement of benchmarks: its page and the contents of summary.json.

    `rows`: the scores table, for what prompts do; `selections`: which fine-tunes were selected.
    """
    matrix, choices = data.matrix, None
    prompt_range: dict[str, benchmarks.PromptRange | Missing] = {}
    if rows is not None:
        choices = benchmarks.prompt_choices(rows, selections, matrix)
        prompt_range = benchmarks.prompt_ranges(rows, matrix)
    by_benchmark = benchmarks.benchmark_figures(data)
    significant, pooled = significance.significance_tau(data), compare_pooled(data)
    by_ratio = similar.by_ratio(data, data.scores, data.ceiling)
    in_both = similar.by_ratio_in_both(data, by_ratio)
    taus = {p: tau.tau_of_protocol(data, p, by_ratio, by_benchmark[p]) for p in PROTOCOLS}
    change = tau.improvement(data, in_both)
    which_model, whom, noise, rests = FOLDS
    parts = joined(
        asked(whom, similar_page.similar_sizes(data, by_ratio, in_both, pooled)),
        asked(which_model, tau_page.change_of_agreement(data, change, pooled)),
        asked(noise, tau_page.without_noise(data, taus)),
        asked(rests, incomplete_page.despite_missing_cells(data, incomplete.despite_missing_cells(data), pooled)),
        asked(which_model, tau_page.each_benchmark(data, taus, significant)),
        robustness.one_with_others(data),
        asked(whom, similar_page.perplexity(data, similar.compare_perplexity(data))),
        chosen_on_test(data),
        asked(which_model, tau_page.categories_of_benchmarks(data, taus)),
        asked(noise, significance.significant_differences(data, significant)),
        asked(noise, benchmarks_page.sampled_runs(data)),
        asked(noise, benchmarks_page.agreement_between_seeds(data, benchmarks.agreement_between_seeds(data))),
        asked(noise, benchmarks_page.prompts_chosen(choices, matrix)),
    )
    notes = (*data.notes, *parts.notes)
    front = above_the_folds(data, taus, change, pooled, by_benchmark)
    summary = {
        "models": len(matrix.models),
        "benchmarks": len(data.tasks),
        "by_benchmark": by_benchmark,
        "prompt_range": prompt_range,
        "standard_errors": matrix.error_checks,
        "resamples": data.resamples,
        "notes": notes,
    } | parts.summary
    page = Page(
        name="agreement",
        title="Ranking agreement",
        question="Do the benchmarks agree on which model is better? "
        + explain_protocols(matrix.protocols, trained_here=matrix.trained_here),
        findings=parts.findings,
        sections=sorted(parts.sections, key=lambda section: FOLDS.index(section.group)),
        notes=notes,
        lede=front.lede,
        picture=front.picture,
        panels=front.panels,
        answers=front.answers,
    )
    return Report(page, {key: summary[key] for key in KEYS})


def chosen_on_test(data: Data) -> Part:
    """Whether train-before-test scores look like the larger of both test scores."""
    chosen = selected_on_test(data.matrix, data.scores)
    if chosen is None:
        return Part({"selected_on_test": None})
    finding = Finding(
        "Caution: the train-before-test scores of this table are the better of both protocols on the test split.",
        f"{chosen.equal} of {chosen.cells} cells equal the direct score and none is below it. Without the equal "
        f"cells the mean tau under train before test is {value_in_words(chosen.mean_tau_without, digits=3)}.",
    )
    return Part({"selected_on_test": chosen}, findings=[finding])
