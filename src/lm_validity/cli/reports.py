"""`lm-validity report …`: from tables only, so they also run on published or imported scores."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lm_validity.cli.configfile import takes_section
from lm_validity.cli.help import make_group, paths_or_command
from lm_validity.cli.report_site import NAME, report_site
from lm_validity.config.load import load_run
from lm_validity.config.sections import Reports, Screening, SignalConventions

app = make_group(
    "Write one report from tables, or all that the data allow from result files. "
    "If a folder has a subcommand's name, write ./signal.",
    paths_or_command(NAME),
)
app.command(NAME)(report_site)
Scores = Annotated[Path, typer.Option(help="scores.parquet")]
Models = Annotated[Path, typer.Option(help="Models sheet (CSV or TSV).")]
Benchmarks = Annotated[Path, typer.Option(help="Benchmarks sheet (CSV or TSV).")]
Output = Annotated[Path, typer.Option(help="Folder for summary.json, tables, figures and the page.")]
Plan = Annotated[Path | None, typer.Option(help="Plan sheet: cells outside it do not count as missing.")]
PlannedBy = Annotated[Path | None, typer.Option(help="The run's configuration, which says what was planned.")]
CONVENTIONS = (f"signal.{key}" for key in SignalConventions.model_fields)


@app.command("agreement")
@takes_section("reports", "resamples")
def agreement(
    scores: Scores,
    models: Models,
    benchmarks: Benchmarks,
    output: Output,
    section: Reports,
    items: Annotated[Path | None, typer.Option(help="items.parquet, for paired significance.")] = None,
    tau: Annotated[Literal["a", "b", "c"], typer.Option(help="Variant of Kendall's tau. b is the paper's.")] = "b",
    align: Annotated[
        str | None, typer.Option(help="Two benchmarks for the plot of two rankings: BENCHMARK,BENCHMARK.")
    ] = None,
    selections: Annotated[
        Path | None, typer.Option(help="selections.parquet, for the prompts that were chosen.")
    ] = None,
    plan: Plan = None,
) -> None:
    """Do the benchmarks agree on which model is better, under direct evaluation and train before test?"""
    from lm_validity.studies.agreement.report import report_agreement

    report_agreement(scores, models, benchmarks, output, items, section, tau, align, selections, plan)


@app.command("factors")
@takes_section("reports", "resamples")
def factors(
    scores: Scores,
    models: Models,
    benchmarks: Benchmarks,
    output: Output,
    section: Reports,
    plan: Plan = None,
) -> None:
    """How many factors does the score matrix have, and what is the first?"""
    from lm_validity.studies.agreement.factors.report import report_factors

    report_factors(scores, models, benchmarks, output, section, plan)


@app.command("screening")
@takes_section("screening", *Screening.model_fields)
def screening(
    scores: Scores,
    models: Models,
    benchmarks: Benchmarks,
    output: Output,
    section: Screening,
    results: Annotated[
        Path | None, typer.Option(help="results/<run>, whose records have the numbers of training examples.")
    ] = None,
    plan: Plan = None,
) -> None:
    """Which candidate benchmarks are usable, and why the others are not."""
    from lm_validity.studies.agreement.screening_report import report_screening

    report_screening(scores, models, benchmarks, output, section, results=results, plan=plan)


@app.command("signal")
@takes_section("reports", "resamples", "checkpoints", *CONVENTIONS, checkpoints="selection")
def signal(
    scores: Scores,
    models: Models,
    output: Output,
    section: Reports,
    benchmarks: Annotated[Path | None, typer.Option(help="Benchmarks sheet (CSV or TSV).")] = None,
    items: Annotated[Path | None, typer.Option(help="items.parquet, for intervals and filters.")] = None,
) -> None:
    """Does a benchmark tell you anything early in training?"""
    from lm_validity.studies.signal.report import report_signal

    report_signal(scores, models, output, benchmarks, items, section)


@app.command("bias")
def bias(
    trials: Annotated[Path, typer.Option(help="trials.parquet")],
    output: Output,
    sampler: Annotated[
        Literal["laplace", "nuts"],
        typer.Option(help="laplace takes seconds. nuts takes minutes and needs the extra `bayes`."),
    ] = "laplace",
    formula: Annotated[
        Literal["all", "equations", "notebooks", "overdispersed"], typer.Option(help="One formula, or all.")
    ] = "all",
    configfile: PlannedBy = None,
) -> None:
    """Does pretraining on unlabelled test text inflate a score?"""
    from lm_validity.studies.bias.report import report_bias

    plan = None if configfile is None else load_run(configfile).bias_plan
    report_bias(trials, output, sampler=sampler, formula=formula, plan=plan)


@app.command("items")
def items(
    scores: Scores,
    items: Annotated[Path, typer.Option(help="items.parquet")],
    output: Output,
    documents: Annotated[list[Path] | None, typer.Option(help="documents.parquet with the items' texts.")] = None,
    benchmarks: Annotated[Path | None, typer.Option(help="Benchmarks sheet (CSV or TSV), for metrics.")] = None,
    models: Annotated[Path | None, typer.Option(help="Models sheet (CSV or TSV): its reruns take no part.")] = None,
) -> None:
    """How finely do the benchmarks tell models apart, and which items work against them?"""
    from lm_validity.studies.items.item_report import report_items

    report_items(scores, items, output, tuple(documents or ()), benchmarks, models)
