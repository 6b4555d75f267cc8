"""Commands of a study of one's own: its folder, what it takes, how it stands, what it found."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lm_validity.cli.options import DEFAULT, Calibration, Configfile, report_folders
from lm_validity.config.load import Run, load_run
from lm_validity.errors import PREFETCH, InputError, did_you_mean, first_line
from lm_validity.words import count

if TYPE_CHECKING:
    from lm_validity.config.sheets import Model
    from lm_validity.run.rehearsals import Rehearsal


def register(app: typer.Typer) -> None:
    """Add this module's subcommands."""
    for command in (init, config, cost, rehearse, preflight, status, findings, forget, card):
        app.command()(command)


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


def status(
    configfile: Configfile = DEFAULT,
    html: Annotated[Path | None, typer.Option(help="Also write the matrix as a page.")] = None,
    matrix: Annotated[bool, typer.Option(help="Print the matrix of models and benchmarks.")] = True,
    watch: Annotated[float | None, typer.Option(min=1, help="Repeat after this many seconds.")] = None,
) -> None:
    """Say which cells are done, running, failed, stale or missing, and the rate and expected finish. Only reads."""
    from lm_validity.files import write_text
    from lm_validity.monitor.cost import Estimator
    from lm_validity.monitor.planning import unplanned_pairs
    from lm_validity.monitor.render import render_matrix, render_page, render_summary
    from lm_validity.monitor.status import RunState, progress

    while True:
        run = load_run(configfile)
        state = RunState(run)
        so_far = progress(state.cells, Estimator(run).seconds)
        print(render_summary(state, so_far))
        if matrix:
            print(render_matrix(state.cells, unplanned_pairs(run)))
        if html is not None:
            write_text(html, render_page(run.name, state, so_far, refresh=watch))
            print(html)
        if watch is None or so_far.done == so_far.cells:
            return
        sys.stdout.flush()
        time.sleep(watch)


def config(
    configfile: Configfile = DEFAULT,
    defaults: Annotated[bool, typer.Option("--defaults", help="With the defaults instead, without a run.")] = False,
) -> None:
    """Print every key of a run's configuration with its meaning and value."""
    from lm_validity.config.generate import render_defaults, render_yaml

    print(render_defaults() if defaults else render_yaml(load_run(configfile).configuration), end="")


def cost(
    configfile: Configfile = DEFAULT,
    calibration: Calibration = None,
) -> None:
    """Say how many jobs, GPU hours, memory and storage a run is expected to take."""
    from lm_validity.monitor.cost import Estimator
    from lm_validity.monitor.render import render_cost
    from lm_validity.monitor.status import RunState

    run = load_run(configfile)
    print(render_cost(Estimator(run, map(load_run, calibration or ())), RunState(run)))


def rehearse(
    configfile: Configfile = DEFAULT,
    model: Annotated[list[str] | None, typer.Option(help="Only these models.")] = None,
) -> int:
    """Run every model's work at full size on a fake GPU: say which micro-batch fits, or what to change."""
    from lm_validity.run.rehearsals import memory_problem, question_of, read_rehearsal, rehearsed_models

    run = load_run(configfile)
    known = [row.model for row in rehearsed_models(run)]
    unknown = [name for name in model or () if name not in known]
    if unknown:
        raise InputError(f"--model {unknown[0]}: not a model of this run.", f"choose one of {', '.join(known)}.")
    for line in rehearse_run(run, model):
        print(line, flush=True)
    rows = [row for row in rehearsed_models(run) if not model or row.model in model]
    found = [(row, read_rehearsal(run, row)) for row in rows]
    failed = [row.model for row, known in found if known is None and question_of(run, row) is not None]
    problems = [one for row, known in found if known is not None for one in memory_problem(run, row, known)]
    if failed:
        print(f"{', '.join(failed)}: not rehearsed, see above; correct the model's row, or leave it out")
    for one in problems:
        print(one)
    return 1 if failed or problems else 0


def rehearse_run(run: Run, only: list[str] | None = None) -> Iterator[str]:
    """A line for each model; what nobody has asked yet is rehearsed first, and kept. A model that cannot be run has its
    line too."""
    from dataclasses import asdict

    from lm_validity.files import write_json
    from lm_validity.run.rehearsals import question_of, read_rehearsal, rehearsal_path, rehearsed_models

    for row in rehearsed_models(run):
        if only and row.model not in only:
            continue
        question = question_of(run, row)
        if question is None:
            yield f"{row.model}: not rehearsed, its config.json is not here; run {PREFETCH} first"
            continue
        found = read_rehearsal(run, row)
        if found is None:
            from lm_validity.cells.rehearsal.rehearse import rehearse as ask

            try:
                found = ask(f"model {row.model!r}", question)
            except Exception as error:  # no causal model, a bug on GPUs, or an operation that cannot be faked
                unforeseen = f"{type(error).__name__}: {first_line(error)[:200]}"
                what = error.problem if isinstance(error, InputError) else unforeseen
                yield f"{row.model}: FAILS on the fake GPU ({what})"
                continue
            write_json(rehearsal_path(run, question), asdict(found))
        yield _line(run, row, found)


def _line(run: Run, row: "Model", found: "Rehearsal") -> str:
    from lm_validity.run.rehearsals import checkpoints_activations, judge, needed_gb

    verdict, details = judge(run, row, found), found.details
    words = [f"{row.model}: {found.parameters / 1e9:.2f}B parameters"]
    if found.refused:
        words.append(f"CANNOT BE FINE-TUNED: {found.refused}")
    if found.training:
        peaks = found.checkpointed if checkpoints_activations(run, row) else found.training
        listed = ", ".join(f"{needed_gb(peak):.1f} at {rows}" for rows, peak in sorted(peaks.items()))
        words.append(f"training takes {listed} rows per pass (GB)")
    words.append(f"scoring a full batch {needed_gb(found.scoring):.1f} GB")
    if verdict.available and verdict.fits:
        at = f" at micro-batch {verdict.micro_batch}" if verdict.micro_batch else ""
        words.append(f"fits{at} on {row.size_class!r} ({verdict.available:g} GB); smallest: {verdict.smallest_class}")
    elif verdict.available:
        words.append(f"DOES NOT FIT {row.size_class!r} ({verdict.available:g} GB): {verdict.advice}")
    else:
        words.append(f"size class {row.size_class!r} has no GPU")
    if details["config"] != "config.json":
        words.append(f"unverified: {details['config']}")
    return "; ".join(words)


def preflight(
    configfile: Configfile = DEFAULT,
    fast: Annotated[bool, typer.Option("--fast", help="Do not check every file's sha256.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Rehearse the models first (see `lm-validity rehearse`).")
    ] = False,
) -> int:
    """Before you submit: say what is missing, damaged or locked, and what would be computed again because its recipe
    changed. One line each. Damaged cells, and manifests of damaged cells or of another recipe, are removed, so that
    they are made again."""
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
    return 1 if problems else 0


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
    for folder in report_folders(run):
        for finding in read_json(folder / "page.json")["findings"]:
            print(textwrap.fill(finding["sentence"], width, initial_indent="- ", subsequent_indent="  "))


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
