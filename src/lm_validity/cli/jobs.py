"""The rules' shell lines: a job of cells, a step before them, or tables and pages after them. Each can be pasted by a
person. They read manifests, never 30,000 arguments."""

import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from lm_validity.cells import runner
from lm_validity.cli import app as root
from lm_validity.cli.options import DEFAULT, DEMO, command, make_group, report_folders
from lm_validity.config.load import Run, load_planned_run, planned_sheets, read_values, validate
from lm_validity.config.sections import Configuration
from lm_validity.config.sheets import read_pool
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import check_file, replaced_folder, write_json
from lm_validity.monitor import check
from lm_validity.monitor.render import describe_plans
from lm_validity.run import inputs
from lm_validity.run.cell import CellT, label
from lm_validity.run.rules import RULES
from lm_validity.run.rules.base import RowT, Rule, kind_label
from lm_validity.run.store import Store
from lm_validity.run.workspace import Workspace, tables_of, write_failures
from lm_validity.words import count, listing, say

if TYPE_CHECKING:
    from lm_validity.config.sections import MiniatureSettings
    from lm_validity.tables.merge import Merger


def _read_model(run: Run, model: str) -> Mapping[str, object]:
    """Fetch a model at a pinned revision, or take a local folder, and record its digest."""
    row = run.models[model]
    if run.configuration.replay:
        return runner.replayed_model(run, row)
    _try_hub(required=not row.is_local)
    from lm_validity.cells.models.prefetch import prefetch_model

    return prefetch_model(row, chat="chat" in run.configuration.evaluation.instruction_tuned_prompts)


def _read_benchmark(run: Run, benchmark: str) -> Mapping[str, object]:
    """Find a benchmark's lm-eval task, fetch its data set, prove that it loads."""
    row = run.benchmarks[benchmark]
    if run.configuration.replay:
        return runner.replayed_benchmark(run, row)
    _try_hub(required=not (row.include_path or row.corpus))
    from lm_validity.cells.tasks.splits import prefetch_benchmark

    return prefetch_benchmark(row)


def _read_language_model(run: Run, language_model: str) -> Mapping[str, object]:
    """Fetch a language model of the bias study at a pinned revision, or take a local folder."""
    from lm_validity.cells.models.prefetch import prefetch_language_model

    return prefetch_language_model(run, language_model)


def _read_task(run: Run, task: str) -> Mapping[str, object]:
    """Read a text-classification task of the bias study, check it against the sheet, keep its texts."""
    from lm_validity.cells.trials.data import prefetch_trial_task

    return prefetch_trial_task(run, task)


READERS: dict[str, Callable[[Run, str], Mapping[str, object]]] = {
    "models": _read_model,
    "benchmarks": _read_benchmark,
    "language_models": _read_language_model,
    "tasks": _read_task,
}


def _id_in(sheet: str) -> object:
    """The option for the id of a row."""
    kind = sheet.removesuffix("s")
    return Annotated[str, typer.Option(f"--{kind.replace('_', '-')}", help=f"Id in the sheet of {kind_label(kind)}s.")]


def _make_prefetch(sheet: str) -> Callable[..., None]:
    """The command that writes the records of a sheet's rows."""

    def prefetch(row: _id_in(sheet), configfile: Path = DEFAULT) -> None:  # type: ignore[valid-type]
        _record(configfile, sheet, row)

    prefetch.__name__, prefetch.__doc__ = f"prefetch_{sheet.removesuffix('s')}", READERS[sheet].__doc__
    return command(root)(prefetch)


PREFETCH = {sheet: _make_prefetch(sheet) for sheet in READERS}


def _record(configfile: Path, kind: str, name: str) -> None:
    """Write a record with the states of the files that it is of, as they were before they were read."""
    run = _run_with(configfile, kind, name)
    states = inputs.states_of(inputs.own_files(run, kind, name))
    record = dict(READERS[kind](run, name))
    further = cast("list[str]", record.pop("files_read", []))  # which only reading it could tell
    outside = [path for path in further if not Path(path).is_relative_to(run.results)]
    record["sources"] = states | inputs.states_of(outside)
    write_json(run.results / "prefetch" / kind / f"{name}.json", record)


@command(root)
def split_benchmark(benchmark: str, configfile: Path = DEFAULT) -> None:
    """Divide a benchmark's documents into train, validation and test, disjoint by construction."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    run = _run_with(configfile, "benchmarks", benchmark)
    workspace = Workspace(run)
    if workspace.replay:
        runner.write_replayed_splits(workspace, benchmark)
    else:
        from lm_validity.cells.tasks.splits import write_splits

        write_splits(workspace, benchmark)


def _try_hub(*, required: bool) -> None:
    """Ask once whether the hub can be reached. Where it cannot, its libraries look into their caches only: they would
    try again for 20 seconds for each data set. To be called before they are imported."""
    if not required or "HF_HUB_OFFLINE" in os.environ:
        return
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        urlopen(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), timeout=10).close()
    except HTTPError:
        pass  # it answers
    except OSError as error:
        print(f"The hub cannot be reached ({error}). Only local copies are used.", file=sys.stderr)
        os.environ["HF_HUB_OFFLINE"] = "1"


def _make_command(rule: Rule[CellT, RowT]) -> None:
    """Add the command of a rule that computes cells: they differ in their names, their helps and the sheet."""

    def compute(row: _id_in(rule.sheet), batch: str, configfile: Path = DEFAULT) -> None:  # type: ignore[valid-type]
        _run_job(rule, row, batch, configfile)

    compute.__name__, compute.__doc__ = rule.name, rule.summary
    command(root)(compute)


for _rule in RULES.values():
    _make_command(_rule)


def _run_job(rule: Rule[CellT, RowT], model: str, batch: str, configfile: Path) -> None:
    # compute nodes have no network, and a job that finds one must not use it
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # a time limit or scancel ends the process in an orderly way: leases are given back
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = _run_with(configfile, rule.sheet, model)
    workspace = Workspace(run)
    try:
        job = workspace.grid.jobs[rule.name, model, batch]
    except KeyError:
        batches = [job.batch for job in workspace.grid.jobs.values() if (job.rule, job.model) == (rule.name, model)]
        raise InputError(
            f"{configfile}: {rule.name} of {model} has no batch {batch!r}.",
            did_you_mean(batch, batches, f"it has {batches[:5]}."),
        ) from None
    runner.run_job(workspace, job)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("lm_validity").setLevel(logging.INFO)


def _run_with(configfile: Path, sheet: str, identifier: str) -> Run:
    """The run, which must have this row in one of its sheets; from here on the job's log goes to stderr."""
    _log_to_stderr()
    run = load_planned_run(configfile)
    rows = getattr(run, sheet)
    if identifier not in rows:
        sheet_path = getattr(run.configuration, sheet, "the bias study's sheet")
        problem = f"{sheet_path}: no {kind_label(sheet)} {identifier!r}."
        raise InputError(problem, did_you_mean(identifier, rows, "check the sheet."))
    return run


# ----------------------------------------------------------------------------------------------------------------------
# After the cells: tables, checks, the site.


@command(root)
def merge(
    configfile: Path = DEFAULT, partial: bool = False, only: Literal["scores", "items", "trials"] | None = None,
    output: Path | None = None,
) -> None:  # fmt: skip
    """Merge the cells into tables. With --partial, merge the cells that exist, into results/<run>/partial/tables."""
    from lm_validity.tables.merge import Merger

    run = load_planned_run(configfile)
    merger = Merger(run, partial=partial)
    folder = run.results / "partial" / "tables" if partial else run.results / "tables"
    if output is None:
        _merge(merger, run, folder, only)
    else:  # no folder of the run's own
        with replaced_folder(output, f"merge {only or ''}".rstrip(), inputs=[run.results / "store"]) as draft:
            _merge(merger, run, draft, only)
        folder = output
    if len(merger.versions) > 1 and only in (None, "scores"):
        say(f"note: cells of {len(merger.versions)} sets of library versions; see {folder / 'versions.json'}")
    for missing in merger.missing:
        print(f"missing: {missing.describe()}", file=sys.stderr)
    say(f"{folder}: {count(len(merger.missing), 'cell')} missing" if partial else folder)


def _merge(merger: "Merger", run: Run, folder: Path, only: str | None) -> None:
    """Write the tables of the run's studies, or the one named."""
    studies = run.configuration.studies
    names = tables_of(studies)
    if only is not None and only not in names:
        raise InputError(f"--only {only}: no study of this run has that table.", f"its studies: {listing(studies)}.")
    writers = {"scores": merger.write_scores, "items": merger.write_items, "trials": merger.write_trials}
    for name, write in writers.items():  # selections are written with the scores, probabilities with the trials
        if name in ({only} if only else names):
            write(folder)


@command(root)
def check_cells(configfile: Path = DEFAULT, output: Path | None = None, after_error: bool = False) -> None:
    """Name the failed cells and those of another recipe, set aside the manifests that hold them, and exit 1. If there
    are none, write --output."""
    run = load_planned_run(configfile)
    workspace = Workspace(run)
    grid = workspace.grid
    unfinished = check.unfinished_cells(grid)
    failed = [entry for entries in unfinished.values() for entry in entries if entry.status == "failed"]
    if not after_error or failed:
        write_failures(run, failed)
    for entry in failed:
        say(f"failed cell: {label(entry.cell)}: {entry.error} Hint: {entry.hint}")
    outdated = check.outdated_cells(workspace)
    for cell, reason in outdated.items():
        say(f"cell of another recipe: {label(cell)}: {reason}. Hint: run the workflow again, which computes it anew.")
    manifests = {*unfinished, *map(grid.manifest_of, outdated)}
    check.set_aside(manifests)
    if manifests:
        say(
            f"{count(len(failed), 'cell')} failed, {len(outdated)} of another recipe. "
            f"{count(len(manifests), 'manifest')} of them, or of cells that depend on them, set aside. Remove the "
            "cause and run again: only these cells are computed."
        )
        sys.exit(0 if after_error else 1)
    for line in describe_plans(run):
        say(line)
    if output is not None:
        missing = [path for path in grid.all_manifests() if not Path(path).is_file()]
        if missing:
            raise InputError(f"{missing[0]}: no such file.", "run the workflow to its end first.")
        check_file(output, ('"cells"', '"failed"', '"manifests"'))
        cells = sum(len(job.cells) for job in grid.jobs.values())
        write_json(output, {"cells": cells, "failed": 0, "manifests": check.manifests_digest(grid)})


@command(root)
def partial_reports(configfile: Path = DEFAULT, without_items: bool = False) -> None:
    """Write tables, reports and a site of the cells that exist to results/<run>/partial. They list what is missing."""
    from lm_validity.site.report import write_partial_reports

    say(*write_partial_reports(load_planned_run(configfile), without_items=without_items))


@command(root)
def build_site(configfile: Path = DEFAULT) -> None:
    """Make one site, a folder with index.html, from the run's reports."""
    from lm_validity.monitor.render import computation_page, count_spent
    from lm_validity.pages.page import write_page
    from lm_validity.site.report import write_run_site

    run = load_planned_run(configfile)
    folders = report_folders(run)
    computation = computation_page(count_spent(Store(run.results / "store")))
    if computation:
        folders = [*folders, run.results / "reports" / computation.name]
        write_page(computation, folders[-1])
    write_run_site(run, folders, run.results)
    shutil.rmtree(run.results / "partial", ignore_errors=True)  # pages of the run as it was before it finished


# ----------------------------------------------------------------------------------------------------------------------
# `lm-validity miniature …`: the synthetic world and the tiny models trained in it.

miniature = make_group("Make the miniature world and its models.")
root.add_typer(miniature, name="miniature")


def _settings(configfile: Path) -> "MiniatureSettings":
    """The section `miniature` of a configuration file; the sheets it names may not exist yet."""
    section = validate(read_values(configfile), str(configfile), Configuration).miniature
    if section is None:
        raise InputError(f"{configfile}: no section `miniature`.", "config/config.yaml has one.")
    return section


@command(miniature)
def world(output: Path, configfile: Path = DEMO) -> None:
    """Write facts, benchmarks (lm-eval tasks over JSON lines), perplexity corpora and tokenizers."""
    from lm_validity.miniature.build import write_world

    write_world(_settings(configfile), output)
    say(output)


@command(miniature)
def pretrain(model: str, world: Path, output: Path, configfile: Path = DEMO, start: Path | None = None) -> None:
    """Train one tiny language model from scratch and keep its checkpoints. A tuned model starts from its parent."""
    from lm_validity.cells.training.miniature import pretrain_model

    settings = _settings(configfile)
    pool = read_pool(settings.pool, sheets=planned_sheets(configfile))
    if model not in pool:
        hint = did_you_mean(model, pool, f"models there: {', '.join(pool)}.")
        raise InputError(f"{settings.pool}: no model {model!r}.", hint)
    row = pool[model]
    if row.tuned_from:
        start = start or output.parent / row.tuned_from
    _log_to_stderr()
    pretrain_model(settings, world, row, output, start=start)
