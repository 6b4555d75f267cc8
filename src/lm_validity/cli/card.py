"""`lm-validity card`: a benchmark's card as text, or what one new benchmark needs on the configured models, and its
card."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from lm_validity.cli.configfile import DEFAULT, Configfile
from lm_validity.config.load import load_run
from lm_validity.errors import InputError, did_you_mean


def register(app: typer.Typer) -> None:
    """Add this module's subcommand."""
    app.command()(card)


def card(
    benchmarks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK.yaml | BENCHMARK...", help="YAML file of an lm-eval task, or names of benchmarks."
        ),
    ],
    configfile: Configfile = DEFAULT,
    profile: Annotated[Path | None, typer.Option(help="Snakemake's profile. Default: profiles/local.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would run, but run nothing.")] = False,
) -> None:
    """Score one new benchmark, given as a task file, on the configured models, and write its card. Given names of
    benchmarks, print their cards from a finished run.

    For a task file, the workflow computes the cells of the new benchmark only. Finished cells of other benchmarks are
    read for the agreement with them. Code that the task file names (`!function`) is run: read a task from somebody
    else before you score it.
    """
    if not any(name.endswith((".yaml", ".yml")) for name in benchmarks):
        print("\n".join(_cards(benchmarks, configfile)))
        return
    from lm_validity.site.own_task import read_own_task, write_own_report, write_run

    if len(benchmarks) > 1:
        raise InputError(f"{' '.join(benchmarks)}: more than one task file.", "give one task file at a time.")
    own = read_own_task(Path(benchmarks[0]), configfile)
    write_run(own)
    print("\n".join(own.lines()), flush=True)
    code = _snakemake(own.configfile, profile, dry_run=dry_run)
    if code:
        raise typer.Exit(code)
    if not dry_run:
        print("\n".join(write_own_report(own)))


def _cards(benchmarks: list[str], configfile: Path) -> list[str]:
    """The Markdown of cards in the run's site. Raises InputError for one that is not there."""
    from lm_validity.site.cards.write import FOLDER, folder_name

    run = load_run(configfile)
    found = []
    for name in benchmarks:
        path = run.results / "report" / FOLDER / folder_name(name) / "card.md"
        if not path.is_file():
            run_first = f"run the workflow first: snakemake --configfile {configfile}."
            hint = run_first if name in run.benchmarks else did_you_mean(name, run.benchmarks, run_first)
            raise InputError(f"{path}: no card of {name!r}.", hint)
        found.append(path.read_text(encoding="utf-8"))
    return found


def _snakemake(configfile: Path, profile: Path | None, *, dry_run: bool) -> int:
    """Run the workflow up to its merged tables; Snakemake's exit code."""
    from lm_validity.template.folder import SHIPPED

    workflow, own = SHIPPED / "workflow" / "Snakefile", Path("profiles/local")
    command = [sys.executable, "-m", "snakemake", "scores", "--snakefile", str(workflow)]
    command += ["--profile", str(profile or (own if own.is_dir() else SHIPPED / "profiles" / "local"))]
    command += ["--configfile", str(configfile)]
    command += ["--dry-run", "--quiet", "rules"] if dry_run else []
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # rules start lm-validity by name
    return subprocess.run(command, env={**os.environ, "PATH": path}).returncode
