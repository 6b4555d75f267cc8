"""`lm-validity card TASK.yaml`: what one new benchmark needs on the configured models, and its card."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

CHECKOUT = Path(__file__).parents[3]  # of an installation from a clone


def register(app: typer.Typer) -> None:
    """Add this module's subcommand."""
    app.command()(card)


def card(
    task: Annotated[Path, typer.Argument(metavar="TASK.yaml", help="YAML file of an lm-eval task.")],
    configfile: Annotated[Path, typer.Option(help="The run whose models are asked.")] = Path("config/config.yaml"),
    profile: Annotated[Path | None, typer.Option(help="Snakemake's profile; profiles/local by default.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would run.")] = False,
) -> None:
    """Score one new benchmark on the configured models, and write its card.

    Runs the workflow for the cells of that benchmark alone. Finished cells of other benchmarks are read for the
    agreement with them.
    """
    from lm_validity.site.own_task import read_own_task, write_own_report, write_run

    snakefile = _snakefile()
    own = read_own_task(task, configfile)
    write_run(own)
    print("\n".join(own.lines()), flush=True)
    code = _snakemake(snakefile, own.configfile, profile, dry_run)
    if code:
        raise typer.Exit(code)
    if not dry_run:
        print("\n".join(write_own_report(own)))


def _snakefile() -> Path:
    from lm_validity.errors import InputError

    found = next((folder / "Snakefile" for folder in (Path(), CHECKOUT) if (folder / "Snakefile").is_file()), None)
    if found is None:
        raise InputError(
            "Snakefile: no such file.", "start the command in the project's root, a clone of its repository."
        )
    return found


def _snakemake(snakefile: Path, configfile: Path, profile: Path | None, dry_run: bool) -> int:
    """Run the workflow up to its merged tables; Snakemake's exit code."""
    command = [sys.executable, "-m", "snakemake", "scores", "--snakefile", str(snakefile)]
    command += ["--profile", str(profile or snakefile.parent / "profiles" / "local"), "--configfile", str(configfile)]
    command += ["--dry-run", "--quiet", "rules"] if dry_run else []
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # rules start lm-validity by name
    return subprocess.run(command, env={**os.environ, "PATH": path}).returncode
