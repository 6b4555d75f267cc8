"""The agreement report: do benchmarks agree on which model is better, under direct evaluation and train before test?"""

from pathlib import Path

import numpy as np

from lm_validity.config.sections import REPORTS, Reports
from lm_validity.errors import InputError, did_you_mean
from lm_validity.pages.page import write_report
from lm_validity.studies.agreement.analysis import analyze_agreement
from lm_validity.studies.agreement.by_benchmark.prompts import prompt_ranges, wording_error
from lm_validity.studies.agreement.page import agreement_page
from lm_validity.studies.agreement.prompt_section import adapted_shares, prompt_choices, prompt_error
from lm_validity.studies.agreement.score_matrix import ScoreMatrix, read_score_matrix
from lm_validity.studies.agreement.statistics.ranking import TauVariant
from lm_validity.studies.agreement.summarize import summarize_agreement_report
from lm_validity.studies.agreement.uncertainty import agreement_uncertainty
from lm_validity.words import listing


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
    choices = prompt_choices(scores, selections, matrix)
    shares = adapted_shares(selections, matrix)
    prompts = prompt_ranges(scores, matrix)
    over_prompts = prompt_error(choices, matrix)
    direct, wording = over_prompts["direct"], wording_error(scores, matrix)
    over_prompts["direct"] = np.where(np.isnan(direct), wording, direct)
    analysis = analyze_agreement(matrix, items=items, variant=tau, prompt_error=over_prompts)
    uncertainty = agreement_uncertainty(analysis, section.resamples)
    summary = summarize_agreement_report(analysis, uncertainty, pair, choices, section.resamples, prompts, shares)
    write_report(agreement_page(summary), summary, output)


def _alignment_pair(align: str | None, matrix: ScoreMatrix) -> tuple[str, str] | None:
    if align is None:
        return None
    names = matrix.task_names()
    pair = tuple(name.strip() for name in align.split(","))
    if len(pair) != 2 or pair[0] == pair[1]:
        raise InputError(f"--align {align}: not two benchmarks.", "write two names with a comma between them.")
    for name in pair:
        if name not in names:
            hint = did_you_mean(name, names, f"the benchmarks are {listing(names)}.")
            raise InputError(f"--align {align}: no benchmark {name!r}.", hint)
    return pair
