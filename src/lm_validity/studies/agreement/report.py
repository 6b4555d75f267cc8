"""The agreement report: do benchmarks agree on which model is better, under direct evaluation and train before test?"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.sections import REPORTS, Reports
from lm_validity.errors import InputError, did_you_mean
from lm_validity.missing import Missing
from lm_validity.pages.page import Finding, Page, Part, asked
from lm_validity.results.files import Report, joined, write_report
from lm_validity.studies.agreement import (
    benchmarks,
    benchmarks_page,
    incomplete,
    incomplete_page,
    robustness,
    robustness_page,
    significance,
    significance_page,
    similar,
    similar_page,
    tau,
    tau_page,
)
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.front import above_the_folds
from lm_validity.studies.agreement.notes import selected_on_test
from lm_validity.studies.agreement.pooled import compare_pooled
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import TauVariant
from lm_validity.studies.agreement.wording import value_in_words
from lm_validity.tables.schema import PROTOCOLS, SCORES, SELECTIONS, read_table
from lm_validity.words import explain_protocols, listing


class PairOfNames(NamedTuple):
    """The names of two benchmarks that a report compares."""

    first: str
    second: str


# what summary.json holds, in this order
KEYS = (
    "models", "benchmarks", "pairs", "cells_in_both", "models_in_both", "improved_pairs", "compared_pairs",
    "kendall_tau", "improvement", "significance_tau", "variance_components", "perplexity", "families",
    "families_in_both", "families_interval", "reliability", "subsets", "influence", "incomplete", "pooled",
    "alignment", "selected_on_test", "by_benchmark", "prompt_range", "standard_errors", "resamples", "notes",
)  # fmt: skip


def report_agreement(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    items: str | Path | None = None,
    section: Reports = REPORTS,
    tau: TauVariant = "b",
    align: str | None = None,
    selections: str | Path | None = None,
    plan: str | Path | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the agreement report under `output`.

    `items`: makes significance paired. `selections`: shows which prompts were chosen after fine-tuning, and how much
    of each model it trained.
    Without resamples, intervals and the alignment of all pairs are skipped. `tau`: the variant of Kendall's tau without
    resampling. `align`: the two benchmarks of the bump plot; by default the pair within one category whose
    direct rankings contradict each other most. `plan`: the sheet of what was to be fine-tuned; other cells are not
    missing.
    """
    matrix = read_score_matrix(scores, models, benchmarks, plan)
    pair = _alignment_pair(align, matrix)
    rows = read_table(scores, SCORES)  # those of prompts that are not selected, too
    selected = None if selections is None else read_table(selections, SELECTIONS)
    report = agreement(Data.of(matrix, section.resamples, tau, items), pair, rows, selected)
    write_report(report.page, report.summary, output)


FOLDS = (  # questions above the folds
    "Which benchmarks agree?",
    "For which models does it hold?",
    "How much of it is noise?",
    "What does it rest on?",
)


def agreement(
    data: Data,
    align: PairOfNames | None = None,
    rows: pd.DataFrame | None = None,
    selections: pd.DataFrame | None = None,
) -> Report:
    """The report on the agreement of benchmarks: its page and the contents of summary.json.

    `align`: the pair of benchmarks to draw; `rows`: the scores table, for what prompts do; `selections`: which
    fine-tunes were selected.
    """
    matrix, choices = data.matrix, None
    of_prompts: dict[str, np.ndarray] = {}
    prompt_range: dict[str, benchmarks.PromptRange | Missing] = {}
    if rows is not None:
        choices = benchmarks.prompt_choices(rows, selections, matrix)
        prompt_range = benchmarks.prompt_ranges(rows, matrix)
        of_prompts = benchmarks.prompt_error(choices, rows, matrix)
    by_benchmark = benchmarks.benchmark_figures(data)
    significant, pooled = significance.significance_tau(data), compare_pooled(data)
    aligned = significance.aligned_rankings(data, align, significant.contradictions)
    by_ratio = similar.by_ratio(data, data.scores, data.ceiling)
    in_both = similar.by_ratio_in_both(data, by_ratio)
    taus = {p: tau.tau_of_protocol(data, p, by_ratio, by_benchmark[p]) for p in PROTOCOLS}
    change = tau.improvement(data, in_both)
    which_model, whom, noise, rests = FOLDS
    parts = joined(
        asked(whom, similar_page.similar_sizes(data, by_ratio, in_both, pooled)),
        asked(which_model, tau_page.pairs_of_benchmarks(data, taus, change, pooled)),
        asked(noise, tau_page.without_noise(data, taus)),
        asked(rests, incomplete_page.despite_missing_cells(data, incomplete.despite_missing_cells(data), pooled)),
        asked(which_model, tau_page.each_benchmark(data, taus, significant)),
        asked(rests, robustness_page.subsets_of_benchmarks(data, robustness.subsets_of_benchmarks(data))),
        asked(whom, similar_page.perplexity(data, similar.compare_perplexity(data))),
        chosen_on_test(data),
        asked(which_model, tau_page.categories_of_benchmarks(data, taus)),
        asked(whom, similar_page.families_of_models(data, similar.within_families(data))),
        asked(noise, robustness_page.sources_of_variance(robustness.sources_of_variance(data, of_prompts))),
        asked(noise, significance_page.significant_differences(data, significant)),
        asked(
            rests,
            robustness_page.influence(
                robustness.left_out(data), {p: entry.mean_tau_b for p, entry in taus.items()}, "mean_tau"
            ),
        ),
        asked(noise, benchmarks_page.sampled_runs(data)),
        asked(noise, benchmarks_page.agreement_between_seeds(data, benchmarks.agreement_between_seeds(data))),
        asked(rests, benchmarks_page.fine_tuned_shares(benchmarks.adapted_shares(selections, matrix), matrix)),
        asked(which_model, significance_page.aligned_rankings(data, aligned)),
        asked(noise, benchmarks_page.prompts_chosen(choices, matrix)),
        asked(rests, robustness_page.all_scores(data)),
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


def _alignment_pair(align: str | None, matrix: ScoreMatrix) -> PairOfNames | None:
    if align is None:
        return None
    names = matrix.task_names()
    first, *other_names = (name.strip() for name in align.split(","))
    if len(other_names) != 1 or other_names[0] == first:
        raise InputError(f"--align {align}: not two benchmarks.", "write two names with a comma between them.")
    for name in (first, other_names[0]):
        if name not in names:
            hint = did_you_mean(name, names, f"the benchmarks are {listing(names)}.")
            raise InputError(f"--align {align}: no benchmark {name!r}.", hint)
    return PairOfNames(first, other_names[0])
