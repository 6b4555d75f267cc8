"""`lm-validity init DIR`: a study's folder from the installed package."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add this module's subcommand."""
    app.command()(init)


def init(
    folder: Annotated[Path, typer.Argument(help="New folder. Its name becomes the run's.")],
    scores: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Result files of lm-eval, folders of them, tables or CSV, from which to start."),
    ] = None,
) -> None:
    """Write a new study's folder: Snakefile of the installed workflow, configuration, sheets, profiles and a README."""
    from lm_validity.template.folder import make_study

    print("\n".join(make_study(folder, scores or ())))
