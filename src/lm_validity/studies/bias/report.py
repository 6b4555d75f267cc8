"""The bias report: does pretraining on a benchmark's unlabelled test text inflate its score?"""

from pathlib import Path

from lm_validity.config.plan import BiasPlan
from lm_validity.pages.page import write_report
from lm_validity.studies.bias.analysis import analyze_bias
from lm_validity.studies.bias.page import bias_page
from lm_validity.studies.bias.table import read_trials


def report_bias(
    trials: str | Path,
    output: str | Path,
    sampler: str = "laplace",
    formula: str = "all",
    plan: BiasPlan | None = None,
) -> None:
    """Write summary.json, tables, figures and the page of the bias report under `output`.

    `trials`: a trials table. `sampler`: laplace (seconds a fit) or nuts (minutes; needs the extra `bayes`).
    `formula`: all, or one of `statistics.model.FORMULAS`. `plan`: where tasks stop on the width of their interval.
    """
    summary = analyze_bias(read_trials(trials), sampler=sampler, formula=formula, plan=plan)
    write_report(bias_page(summary), summary, output)
