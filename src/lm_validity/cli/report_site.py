"""`lm-validity report DIR_OR_FILES...`: from result files to a site, beside the reports as subcommands."""

from pathlib import Path
from typing import Annotated

import typer

from lm_validity.cli import imports
from lm_validity.config.sections import REPORTS, Reports

NAME = "DIR_OR_FILES..."  # of the command without a name, as the help lists it


def report_site(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Result files of any known format, folders to search for them, or tables (scores, items, trials). "
            "PROTOCOL=FOLDER (direct, train_before_test) for the results of one protocol."
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the site.")],
    models: Annotated[Path | None, typer.Option(help="Models sheet, such as an edited OUTPUT/models.tsv.")] = None,
    benchmarks: Annotated[
        Path | None, typer.Option(help="Benchmarks sheet, such as an edited OUTPUT/benchmarks.tsv.")
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(help="scores.parquet of other models, which are shown on the benchmarks that both have."),
    ] = None,
    model: imports.ModelNames = None,
    path: imports.PathPattern = None,
    protocol: imports.Protocol = None,
    prepared_on: imports.PreparedOn = None,
    groups: imports.Groups = "keep",
    errors_from_items: imports.ErrorsFromItems = False,
    tokens_per_step: imports.TokensPerStep = None,
    format_name: imports.FormatName = None,
    strict: imports.Strict = False,
    columns: imports.Columns = "",
    scores: imports.ScoreColumns = "",
    across: imports.Across = None,
    percent: imports.Percent = False,
    as_is: imports.AsIs = False,
    repeats: imports.RepeatsOf = "refuse",
    plan: Annotated[Path | None, typer.Option(help="Plan sheet: cells outside it do not count as missing.")] = None,
    resamples: Annotated[
        int, typer.Option(min=0, help="Resamples for intervals. 0 skips the intervals that need them.")
    ] = REPORTS.resamples,
    processes: Annotated[int, typer.Option(min=1, help="Reports written at the same time.")] = 2,
) -> None:
    """Import results, guess the sheets, and write every report that the data allow as one site."""
    from lm_validity.site.report import Given
    from lm_validity.site.report import report_site as write

    paths, options = imports.import_options(
        results,
        model=model,
        path=path,
        protocol=protocol,
        prepared_on=prepared_on,
        groups=groups,
        errors_from_items=errors_from_items,
        tokens_per_step=tokens_per_step,
        format_name=format_name,
        strict=strict,
        csv=imports.csv_options(columns, scores, across, repeats, percent=percent, as_is=as_is),
    )
    given = Given(models, benchmarks, beside, options, Reports(resamples=resamples), processes, plan=plan)
    print("\n".join(write(paths, output, given)))
