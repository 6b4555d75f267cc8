"""`lm-validity report …`, and what else is made from results that are there: `compare` and `simulate`.

Reports read tables only, so they also run on published or imported scores."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from lm_validity.cli.imports import takes_options, typed_command
from lm_validity.cli.options import (
    GroupedOptions,
    make_group,
    paths_or_command,
    say_findings,
    site_reports,
    takes_section,
)
from lm_validity.config.load import load_run
from lm_validity.config.sections import REPORTS, Agreement, Reports, Screening, SignalConventions
from lm_validity.files import check_file, made_from, replaced_folder
from lm_validity.words import say

if TYPE_CHECKING:
    from lm_validity.tables.formats.score_files import ImportOptions

NAME = "DIR_OR_FILES..."  # of the command without a name, as the help lists it
app = make_group(
    "Write one report from tables, or all that the data allow from result files. "
    "If a folder has a subcommand's name, write ./signal.",
    paths_or_command(NAME),
)
Scores = Annotated[Path, typer.Option(help="scores.parquet")]
Models = Annotated[Path, typer.Option(help="Models sheet (CSV or TSV).")]
Benchmarks = Annotated[Path, typer.Option(help="Benchmarks sheet (CSV or TSV).")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for results.parquet, tables and the page.")]
GroupsOfModels = Annotated[
    list[str] | None,
    typer.Option(
        help="A group of models: 'released>=2023-11', family=NAME, or a column of 0 and 1 of the models sheet. May be "
        "given several times."
    ),
]
Plan = Annotated[Path | None, typer.Option(help="Plan sheet: cells outside it do not count as missing.")]
PlannedBy = Annotated[Path | None, typer.Option(help="The run's configuration, which says what was planned.")]
MixVersions = Annotated[
    bool,
    typer.Option(
        "--mix-versions", help="Compare scores of different versions of a task, and of different parts of its items."
    ),
]
# what a report writes into its folder
PAGE = ("index.html", "page.json", "results.parquet", "results.csv", "results.json", "tables", "figures", "assets")
CONVENTIONS = (f"signal.{key}" for key in SignalConventions.model_fields)


def register(root: typer.Typer) -> None:
    """Add the commands that write reports."""
    root.add_typer(app, name="report")
    root.command()(compare)
    root.add_typer(simulations, name="simulate")


@contextmanager
def _folder_of(output: Path, command: str, *inputs: Path | None) -> Iterator[Path]:
    """A folder for a report, whose page then says in its foot what it was made from."""
    from lm_validity.files import read_page
    from lm_validity.pages.page import write_html

    with replaced_folder(output, command, inputs=inputs, names=PAGE) as folder:
        yield folder
        write_html(read_page(folder / "page.json"), folder, source=made_from(inputs))


class SiteHelp(GroupedOptions):
    """The help of `lm-validity report`."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "What is read": ("results",),
        "What is written": ("output", "single_file"),
        "What is compared": ("models", "benchmarks", "group", "beside", "plan", "mix_versions", "resamples"),
        "How files are read": ("columns", "reading", "model", "protocol", "prepared_on", "strict"),
    }
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("lm-validity report results/", "Reads every known file under results/; then open report/index.html."),
        (
            "lm-validity report direct=base/ train_before_test=tuned/ -o site --single-file",
            "Both protocols; site/index.html can be mailed.",
        ),
    )
    beside = "Single reports, from tables"


@app.command(NAME, cls=SiteHelp)
@takes_options
def report_site(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Result files of any known format, folders to search for them, or tables (scores, items, trials). "
            "PROTOCOL=FOLDER (direct, train_before_test) for the results of one protocol."
        ),
    ],
    options: "ImportOptions",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the site.")] = Path("report"),
    models: Annotated[Path | None, typer.Option(help="Models sheet, such as an edited OUTPUT/models.tsv.")] = None,
    benchmarks: Annotated[
        Path | None, typer.Option(help="Benchmarks sheet, such as an edited OUTPUT/benchmarks.tsv.")
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(help="scores.parquet of other models, which are shown on the benchmarks that both have."),
    ] = None,
    plan: Plan = None,
    resamples: Annotated[
        int, typer.Option(min=0, help="Resamples for intervals. 0 skips the intervals that need them.")
    ] = REPORTS.resamples,
    group: GroupsOfModels = None,
    single_file: Annotated[
        bool, typer.Option("--single-file", help="Make index.html one file with all pages inside, to be mailed.")
    ] = False,
    mix_versions: MixVersions = False,
) -> None:
    """Import results, guess the sheets, and write every report that the data allow as one site."""
    from lm_validity.site.report import Given
    from lm_validity.site.report import report_site as write

    agreement = Agreement(groups=tuple(dict.fromkeys(group or ())))
    section = Reports(resamples=resamples)
    inputs = Given(models, benchmarks, beside, options, section, plan=plan, agreement=agreement)
    inputs = replace(inputs, single_file=single_file, mix_versions=mix_versions)
    write(results, output, inputs, say)
    say_findings(output, site_reports(output), quote(str(output)))


@app.command("agreement")
@takes_section("reports", "resamples")
def agreement(
    scores: Scores,
    models: Models,
    benchmarks: Benchmarks,
    output: Output,
    section: Reports,
    items: Annotated[Path | None, typer.Option(help="items.parquet, for paired significance.")] = None,
    selections: Annotated[
        Path | None, typer.Option(help="selections.parquet, for the prompts that were chosen.")
    ] = None,
    plan: Plan = None,
) -> None:
    """Do the benchmarks agree on which model is better, under direct evaluation and train before test?"""
    from lm_validity.studies.agreement.report import report_agreement
    from lm_validity.tables.counted import Sources

    with _folder_of(output, "report agreement", scores, items, selections) as folder:
        report_agreement(Sources(scores, models, benchmarks, items, plan), folder, section, selections)


@app.command("factors")
@takes_section("reports", "resamples")
def factors(
    scores: Scores, models: Models, benchmarks: Benchmarks, output: Output, section: Reports, plan: Plan = None
) -> None:
    """How many factors does the score matrix have, and what is the first?"""
    from lm_validity.studies.agreement.factors import report_factors
    from lm_validity.tables.counted import Sources

    with _folder_of(output, "report factors", scores) as folder:
        report_factors(Sources(scores, models, benchmarks, plan=plan), folder, section)


@app.command("readiness")
@takes_section("agreement", "knots")
def readiness(
    scores: Scores,
    models: Models,
    benchmarks: Benchmarks,
    output: Output,
    section: Agreement,
    group: GroupsOfModels = None,
    plan: Plan = None,
) -> None:
    """Does a group of models lead at equal compute, and is it ahead once all are prepared for the test?"""
    from lm_validity.studies.agreement.readiness import report_readiness
    from lm_validity.tables.counted import Sources

    named = section.model_copy(update={"groups": tuple(dict.fromkeys(group))}) if group else section
    with _folder_of(output, "report readiness", scores) as folder:
        report_readiness(Sources(scores, models, benchmarks, plan=plan), folder, named)


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
    from lm_validity.studies.agreement.benchmarks import report_screening
    from lm_validity.tables.counted import Sources

    with _folder_of(output, "report screening", scores, results) as folder:
        report_screening(Sources(scores, models, benchmarks, plan=plan), folder, section, results)


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
    from lm_validity.tables.counted import Sources

    with _folder_of(output, "report signal", scores, items) as folder:
        report_signal(Sources(scores, models, benchmarks, items), folder, section)


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
    from lm_validity.studies.bias.page import report_bias

    plan = None if configfile is None else load_run(configfile).bias_plan
    with _folder_of(output, "report bias", trials) as folder:
        report_bias(trials, folder, sampler=sampler, formula=formula, plan=plan)


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
    from lm_validity.studies.items.report import report_items
    from lm_validity.tables.counted import Sources

    with _folder_of(output, "report items", scores, items, *(documents or ())) as folder:
        report_items(Sources(scores, models, benchmarks, items), folder, tuple(documents or ()))


def compare(
    model_a: Annotated[str, typer.Argument(metavar="A", help="A file or folder of results, or the name of a model.")],
    model_b: Annotated[str, typer.Argument(metavar="B", help="The same, of the model that is judged against A.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of a page, or result files, in which A and B are models.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Billions of tokens at which both are compared, or `final`. Default: the last both have."),
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option(
            help="Loss that is accepted, such as 0.01 (a point), or a sheet (benchmark, margin, must): worse is an "
            "interval below minus the margin, not worse one above it; any other is not known."
        ),
    ] = None,
    gated: Annotated[
        bool, typer.Option("--gate", help="Exit with 0 if B is not worse, 1 if it is worse, 3 if that is not known.")
    ] = False,
    unknown: Annotated[
        Literal["pass", "fail"] | None, typer.Option(help="What --gate does where nothing is known: exit 0 or 1.")
    ] = None,
    self_check: Annotated[
        bool, typer.Option("--self-check", help="Say how often the gate fails a model against itself (several runs).")
    ] = False,
    mix_versions: MixVersions = False,
    scores: Annotated[Path | None, typer.Option(help="scores.parquet, in place of FOLDER.")] = None,
    items: Annotated[Path | None, typer.Option(help="items.parquet, if it is not beside the scores.")] = None,
    benchmarks: Annotated[Path | None, typer.Option(help="Benchmarks sheet (CSV or TSV), for metrics.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="What columns of tables are: 'model=COLUMN, benchmark=COLUMN, score=COLUMN'.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for a page, its tables and results.parquet.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for a comment on a pull request.")] = None,
    junit: Annotated[Path | None, typer.Option(help="File for test results (JUnit).")] = None,
) -> None:
    """Is B better than A, worse, or not worse by more than a margin?"""
    from lm_validity.site import compare as verdicts
    from lm_validity.tables.formats.score_files import ImportOptions

    for file in filter(None, (markdown, junit)):
        check_file(file, [verdicts.MARK])
    options = ImportOptions(columns=columns, command=typed_command())
    request = verdicts.Comparing(at, margin, mix_versions, self_check, benchmarks, for_page=output is not None)
    request = replace(request, options=options)
    compared = verdicts.compare(model_a, model_b, scores or folder, request, items)
    if output is not None:
        inputs = [scores, folder, items, benchmarks, *filter(Path.exists, map(Path, (model_a, model_b)))]
        with _folder_of(output, "compare", *inputs) as written:
            verdicts.write_page(compared, written)
    if markdown is not None:
        verdicts.write_markdown(compared, markdown)
    if junit is not None:
        verdicts.write_junit(compared, junit)
    say(*verdicts.terminal_lines(compared))
    if output is not None:
        say(f"Page: {output / 'index.html'}")
    if gated:
        code = verdicts.EXIT_CODES[compared.decision]
        if compared.decision == "not known" and unknown is not None:
            code = 0 if unknown == "pass" else 1
        say(f"Gate: {compared.decision} (exit {code}).")
        raise typer.Exit(code)


# ----------------------------------------------------------------------------------------------------------------------
# `lm-validity simulate …`: simulations that explain a study's statistics.

simulations = make_group("Run a simulation and write its page.")
Pages = Annotated[Path, typer.Option("--output", "-o", help="Folder for the page, its figures and tables.")]


@simulations.command("pca")
def pca(output: Pages, splits: Annotated[int, typer.Option(min=2, help="Splits for each rank and n.")] = 100) -> None:
    """Simulate principal components fitted on test rows: a case in which unlabelled test data inflate a score."""
    from lm_validity.studies.bias.page import write_pca_simulation

    with _folder_of(output, "simulate pca") as folder:
        write_pca_simulation(folder, splits)


@simulations.command("prior")
def prior(
    trials: Annotated[Path, typer.Option(help="trials.parquet, for the layout of the simulated data.")],
    output: Pages,
    formula: Annotated[str, typer.Option(help="equations, notebooks or overdispersed.")] = "overdispersed",
    draws: Annotated[int, typer.Option(min=10, help="Simulated data sets.")] = 300,
) -> None:
    """Show what the priors of the bias study's model imply before any data."""
    from lm_validity.studies.bias.page import write_prior_simulation

    with _folder_of(output, "simulate prior", trials) as folder:
        write_prior_simulation(trials, folder, formula, draws)
