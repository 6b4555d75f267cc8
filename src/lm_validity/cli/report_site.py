"""`lm-validity report DIR_OR_FILES...`: from result files to a site, beside the reports as subcommands."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lm_validity.cli.help import WholeHelp
from lm_validity.config.sections import Reports

NAME = "DIR_OR_FILES..."  # of the command without a name, as the help lists it


class PathsOrCommand(WholeHelp):
    """A group whose first argument is a subcommand's name, or else a path for the command `NAME`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # typer's copy of click is private
        """Put `NAME` before a first argument that is neither a subcommand nor a call for help."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [NAME, *args]
        return super().parse_args(ctx, args)


def report_site(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Result files of lm-eval, folders to search for them, tables (scores, items, trials) or CSV."
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
    model: Annotated[
        list[str] | None, typer.Option(help="PATH=NAME: the model's name for a file, or for all files in a folder.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if a file would be skipped or a score occurs twice.")
    ] = False,
    plan: Annotated[Path | None, typer.Option(help="Plan sheet: cells outside it do not count as missing.")] = None,
    resamples: Annotated[
        int, typer.Option(min=0, help="Resamples for intervals. 0 skips the intervals that need them.")
    ] = Reports().resamples,
    processes: Annotated[int, typer.Option(min=1, help="Reports written at the same time.")] = 2,
) -> None:
    """Import results, guess the sheets, and write every report that the data allow as one site."""
    from lm_validity.cli.imports import names_of
    from lm_validity.site.report import Given
    from lm_validity.site.report import report_site as write

    given = Given(models, benchmarks, beside, strict, names_of(model or []), resamples, processes, plan=plan)
    print("\n".join(write(results, output, given)))
