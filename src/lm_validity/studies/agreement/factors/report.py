"""The factors report: how many factors does the score matrix have, what is the first, and which model to pick?"""

from pathlib import Path

from lm_validity.config.sections import REPORTS, Reports
from lm_validity.pages.page import write_report
from lm_validity.studies.agreement.factors.analysis import analyze_factors, factors_uncertainty
from lm_validity.studies.agreement.factors.page import factors_page
from lm_validity.studies.agreement.factors.summarize import summarize_factors_report
from lm_validity.studies.agreement.score_matrix import read_score_matrix


def report_factors(
    scores: str | Path,
    models: str | Path,
    benchmarks: str | Path,
    output: str | Path,
    section: Reports = REPORTS,
    plan: str | Path | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the factors report under `output`.

    Without resamples, intervals are skipped, and with them the choice of a model by budget. `plan`: what was to be
    fine-tuned.
    """
    matrix = read_score_matrix(scores, models, benchmarks, plan)
    analysis = analyze_factors(matrix)
    uncertainty = factors_uncertainty(analysis, section.resamples)
    summary = summarize_factors_report(analysis, uncertainty, section.resamples)
    write_report(factors_page(summary), summary, output)
