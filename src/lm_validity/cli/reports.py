"""`lm-validity report …`: from tables only, so they also run on published or imported scores."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lm_validity.cli.help import make_group, paths_or_command
from lm_validity.cli.report_site import NAME, GroupsOfModels, Knots, agreement_section, report_site
from lm_validity.config.load import load_run
from lm_validity.config.sections import E2LM, Checkpoints, Convention, Normalisation, Reports, Screening, Ties

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
Resamples = Annotated[int, typer.Option(min=0, help="Resamples for intervals. 0 skips intervals.")]
Plan = Annotated[Path | None, typer.Option(help="Plan sheet: cells outside it do not count as missing.")]
PlannedBy = Annotated[Path | None, typer.Option(help="The run's configuration, which says what was planned.")]
REPORTS, SCREENING, WORDS = Reports(), Screening(), E2LM.as_words()


@app.command("agreement")
def agreement(
    scores: Scores,
    models: Models,
    benchmarks: Benchmarks,
    output: Output,
    items: Annotated[Path | None, typer.Option(help="items.parquet, for paired significance.")] = None,
    resamples: Resamples = REPORTS.resamples,
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

    report_agreement(scores, models, benchmarks, output, items, resamples, tau, align, selections, plan)


@app.command("factors")
def factors(
    scores: Scores,
    models: Models,
    benchmarks: Benchmarks,
    output: Output,
    resamples: Resamples = REPORTS.resamples,
    plan: Plan = None,
) -> None:
    """How many factors does the score matrix have, and what is the first?"""
    from lm_validity.studies.agreement.factors.report import report_factors

    report_factors(scores, models, benchmarks, output, resamples=resamples, plan=plan)


@app.command("readiness")
def readiness(
    scores: Scores,
    models: Models,
    benchmarks: Benchmarks,
    output: Output,
    group: GroupsOfModels,
    knots: Knots = "1e22,1e23",
    plan: Plan = None,
) -> None:
    """Does a group of models lead at equal compute, and does preparation for the test take the lead away?"""
    from lm_validity.studies.agreement.readiness import report_readiness

    report_readiness(scores, models, benchmarks, output, agreement_section(group, knots), plan)


@app.command("screening")
def screening(
    scores: Scores,
    models: Models,
    benchmarks: Benchmarks,
    output: Output,
    results: Annotated[
        Path | None, typer.Option(help="results/<run>, whose records have the numbers of training examples.")
    ] = None,
    training_examples: Annotated[
        int, typer.Option(min=0, help="Smallest number of training examples.")
    ] = SCREENING.training_examples,
    unimproved_share: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of models that do not improve.")
    ] = SCREENING.unimproved_share,
    negative_share: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of the other benchmarks with negative agreement.")
    ] = SCREENING.negative_share,
    plan: Plan = None,
) -> None:
    """Which candidate benchmarks are usable, and why the others are not."""
    from lm_validity.studies.agreement.screening_report import report_screening
    from lm_validity.studies.agreement.statistics.ranking import Thresholds

    thresholds = Thresholds(training_examples, unimproved_share, negative_share)
    report_screening(scores, models, benchmarks, output, thresholds, results=results, plan=plan)


@app.command("signal")
def signal(
    scores: Scores,
    models: Models,
    output: Output,
    benchmarks: Annotated[Path | None, typer.Option(help="Benchmarks sheet (CSV or TSV).")] = None,
    items: Annotated[Path | None, typer.Option(help="items.parquet, for intervals and filters.")] = None,
    selection: Annotated[Checkpoints, typer.Option(help="Checkpoints to use.")] = REPORTS.checkpoints,
    resamples: Resamples = REPORTS.resamples,
    convention: Annotated[
        Convention, typer.Option(help="Autocorrelation as in the competition's scoring code, or as in its paper.")
    ] = E2LM.convention,
    ties: Annotated[
        Ties, typer.Option(help="Equal scores: stable (they count as an increase) or average (they share ranks).")
    ] = E2LM.ties,
    normalisation: Annotated[
        Normalisation, typer.Option(help="What compliance divides the science model's lead by.")
    ] = E2LM.normalisation,
    base_window: Annotated[
        str, typer.Option(help="FROM,TO in billion tokens: the window that sets the order.")
    ] = WORDS["base_window"],
    later_window: Annotated[
        str, typer.Option(help="FROM,TO in billion tokens: the window in which it should hold.")
    ] = WORDS["later_window"],
    weights: Annotated[str, typer.Option(help="Weights of quality, consistency and compliance.")] = WORDS["weights"],
) -> None:
    """Does a benchmark tell you anything early in training?"""
    from lm_validity.studies.signal.options import make_options
    from lm_validity.studies.signal.report import report_signal

    options = make_options(
        convention=convention,
        ties=ties,
        normalisation=normalisation,
        base_window=base_window,
        later_window=later_window,
        weights=weights,
    )
    report_signal(scores, models, output, benchmarks, items, selection, resamples, options)


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
