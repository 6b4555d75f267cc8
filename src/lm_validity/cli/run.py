"""Subcommands about a whole run: tables, checks, repairs, the site. They read manifests, never 30,000 arguments."""

import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Literal

import typer

from lm_validity.cli.configfile import DEFAULT, Configfile
from lm_validity.config.load import Run, load_planned_run, load_run, planned_sheets
from lm_validity.errors import InputError
from lm_validity.words import count


def register(app: typer.Typer) -> None:
    """Add this module's subcommands."""
    for command in (merge, check_cells, partial_reports, build_site, preflight, forget, findings):
        app.command()(command)


def merge(
    configfile: Configfile = DEFAULT,
    partial: Annotated[bool, typer.Option("--partial", help="Merge only the cells that exist.")] = False,
    only: Annotated[Literal["scores", "items", "trials"] | None, typer.Option(help="Write only this table.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the tables.")] = None,
) -> None:
    """Merge the cells into tables. With --partial, merge the cells that exist, into results/<run>/partial/tables."""
    from lm_validity.tables.merge import Merger

    run = load_planned_run(configfile)
    merger = Merger(run, partial=partial)
    folder = output or (run.results / "partial" / "tables" if partial else run.results / "tables")
    studies = set(run.configuration.studies)
    scored = bool(studies & {"agreement", "signal"})
    if only == "scores" or (only is None and scored):
        merger.write_scores(folder)
        if len(merger.versions) > 1:
            print(f"note: cells of {len(merger.versions)} sets of library versions; see {folder / 'versions.json'}")
    if only == "items" or (only is None and scored):
        merger.write_items(folder)
    if only == "trials" or (only is None and "bias" in studies):
        merger.write_trials(folder)
    for missing in merger.missing:
        print(f"missing: {missing.describe()}", file=sys.stderr)
    print(f"{folder}: {count(len(merger.missing), 'cell')} missing" if partial else folder)


def check_cells(
    configfile: Configfile = DEFAULT,
    output: Annotated[Path | None, typer.Option(help="File to write if no cell failed.")] = None,
    after_error: Annotated[
        bool, typer.Option("--after-error", help="Name cells and remove manifests, but exit 0 (for onerror).")
    ] = False,
) -> None:
    """Name the failed cells and those of another recipe, set aside the manifests that hold them, and exit 1. If there
    are none, write --output."""
    from lm_validity.files import write_json
    from lm_validity.monitor.check import failed_cells, manifests_digest, outdated_cells, set_aside
    from lm_validity.monitor.planning import describe_plans
    from lm_validity.run.cell import label
    from lm_validity.run.store import write_failures
    from lm_validity.run.workspace import Workspace

    run = load_planned_run(configfile)
    workspace = Workspace(run)
    grid = workspace.grid
    failed, manifests = failed_cells(grid)
    if not after_error or failed:
        write_failures(run, failed)
    for entry in failed:
        print(f"failed cell: {label(entry.cell)}: {entry.error} Hint: {entry.hint}")
    outdated = outdated_cells(workspace)
    for cell, why in outdated.items():
        print(f"cell of another recipe: {label(cell)}: {why}. Hint: run the workflow again, which computes it anew.")
    manifests |= {grid.manifest_of(cell) for cell in outdated}
    set_aside(manifests)
    if failed or manifests:
        print(
            f"{count(len(failed), 'cell')} failed, {len(outdated)} of another recipe. "
            f"{count(len(manifests), 'manifest')} of them, or of cells that depend on them, set aside. Remove the "
            "cause and run again: only these cells are computed."
        )
        sys.exit(0 if after_error else 1)
    for line in describe_plans(run):
        print(line)
    for path in planned_sheets(configfile).edited():
        print(f"note: {path} was edited after this run was planned. Run the workflow again to have it count.")
    if output is not None:
        cells = sum(len(job.cells) for job in grid.jobs.values())
        write_json(output, {"cells": cells, "failed": 0, "manifests": manifests_digest(grid)})


def partial_reports(
    configfile: Configfile = DEFAULT,
    without_items: Annotated[
        bool, typer.Option("--without-items", help="Skip the per-document table, which is faster.")
    ] = False,
) -> None:
    """Write tables, reports and a site of the cells that exist to results/<run>/partial. They list what is missing."""
    from lm_validity.site.partial import write_partial_reports

    run = load_planned_run(configfile)
    missing, page = write_partial_reports(run, with_items=not without_items)
    print(f"The tables lack {count(missing, 'cell')}. Cells that only lead to these are not counted.")
    print(f"partial report: {page}" if page else "No report is possible yet.")


def build_site(configfile: Configfile = DEFAULT) -> None:
    """Make one site, a folder with index.html, from the run's reports."""
    from lm_validity.monitor.planning import plan_finding
    from lm_validity.monitor.status import computation_page, count_spent
    from lm_validity.pages.page import write_page
    from lm_validity.run.store import Store
    from lm_validity.site.cards.write import run_sources
    from lm_validity.site.first_page import about_run
    from lm_validity.site.first_page import build_site as build
    from lm_validity.tables.schema import LOSSES, read_table

    run = load_planned_run(configfile)
    name = f"{run.name} (replayed scores: no model was run)" if run.configuration.replay else run.name
    folders = _report_folders(run)
    table = run.results / "tables" / "losses.parquet"  # not of runs that an earlier version finished
    losses = read_table(table, LOSSES) if table.is_file() else None
    computation = computation_page(count_spent(Store(run.results / "store")), plan_finding(run), losses)
    if computation:
        folders = [*folders, run.results / "reports" / computation.name]
        write_page(computation, folders[-1])
    cards = run_sources(run, folders, run.results / "tables")
    build(folders, run.results / "report", cards=cards, name=name, about=about_run(run))


def preflight(
    configfile: Configfile = DEFAULT,
    fast: Annotated[bool, typer.Option("--fast", help="Do not check every file's sha256.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Rehearse the models first (see `lm-validity rehearse`).")
    ] = False,
) -> None:
    """Before you submit: say what is missing, damaged or locked, and what would be computed again because its recipe
    changed. One line each. Damaged cells, and manifests of damaged cells or of another recipe, are removed, so that
    they are made again. Exit 0, whatever is found."""
    from lm_validity.monitor.check import (
        leases,
        orphan_problems,
        readiness_problems,
        recomputed_cells,
        record_problems,
        remove_outdated,
        repair,
    )
    from lm_validity.run.rehearsals import unfetched_models

    run = load_run(configfile)
    for line in recomputed_cells(run):
        print(f"will be computed again: {line}")
    remove_outdated(run)
    if memory and not run.configuration.replay:
        from lm_validity.cli.rehearse import rehearse_run

        for line in rehearse_run(run):
            print(f"rehearsed: {line}", flush=True)
    problems = [*record_problems(run), *readiness_problems(run)]
    if unfetched_models(run) and not run.configuration.replay:
        from lm_validity.cells.models.prefetch import access_problems

        problems += access_problems(unfetched_models(run))
    stale, held = leases(run)
    problems += [*repair(run, verify=not fast), *stale, *orphan_problems(run)]
    for one in [*held, *problems]:
        print(one)
    found = count(len(problems), "problem") if problems else "nothing missing, damaged or locked"
    print(f"{run.name}: {found}")


def forget(
    patterns: Annotated[list[str], typer.Argument(help="Shell patterns of rule/model/cell.")],
    configfile: Configfile = DEFAULT,
) -> None:
    """Drop cells from the store, so that they are computed again."""
    from lm_validity.monitor.check import forget as drop

    for folder in drop(load_run(configfile), patterns):
        print(f"forgot {folder}")


def findings(configfile: Configfile = DEFAULT) -> None:
    """Print where the run's report is, and its findings: one per line, or wrapped in a terminal."""
    from lm_validity.files import read_json

    run = load_run(configfile)
    page = run.results / "report" / "index.html"
    if not page.is_file():
        hint = "run the workflow to its end; `lm-validity status` says how far it is, with the same --configfile."
        raise InputError(f"{page}: it does not exist yet.", hint)
    print(f"Report: {page}")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for folder in _report_folders(run):
        for finding in read_json(folder / "page.json")["findings"]:
            print(textwrap.fill(finding["sentence"], width, initial_indent="- ", subsequent_indent="  "))


def _report_folders(run: Run) -> list[Path]:
    """The reports of the studies that the configuration asks for; older ones of others may lie beside them."""
    from lm_validity.run.grid import REPORTS_OF

    names = [name for study in run.configuration.studies for name in REPORTS_OF[study]]
    folders = [run.results / "reports" / name for name in names]
    return [folder for folder in folders if (folder / "page.json").is_file()]
